"""A column of texts that repeat: each is made once, however many rows say it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rooflinekit.estimation.notes import Remark

_WIDEST = 2**31  # a key that may be multiplied once more without leaving 64 bits

Rows = NDArray[np.intp]
"""Positions of rows in a table."""


class Texts:
    """A code a row, and the texts that codes stand for; code 0 is the empty text.

    >>> said = Texts(3)
    >>> said.put(np.array([0, 2]), "slow")
    >>> said.append(np.array([1, 2]), [Remark(True, lambda heat: f"hot: {heat:.0f}", (7.0,))])
    >>> list(said.column())
    ['slow', 'hot: 7', 'slow; hot: 7']
    """

    def __init__(self, rows: int) -> None:
        self._codes = np.zeros(rows, np.int64)
        self._known = {"": 0}  # codes by text, in their order

    def put(self, rows: Rows | int, text: str) -> None:
        """Say the same in some rows, in place of what they said."""
        self._codes[rows] = self._code(text)

    def empty(self, rows: Rows) -> Rows:
        """Those of the rows that say nothing."""
        silent: Rows = rows[self._codes[rows] == 0]
        return silent

    def append(self, rows: Rows, remarks: Iterable[Remark]) -> None:
        """Say more in those of the rows of which a remark holds; rows with equal facts share a text."""
        for remark in remarks:
            holds = np.broadcast_to(remark.holds, len(rows))
            code = self._codes[rows[0]] if len(rows) and not remark.facts else -1
            if remark.holds is True and (self._codes[rows] == code).all():
                self.put(rows, "; ".join(filter(None, (list(self._known)[code], remark.say()))))
            elif holds.any():
                self._add(rows[holds], remark, [np.broadcast_to(fact, len(rows))[holds] for fact in remark.facts])

    def _add(self, rows: Rows, remark: Remark, facts: list[Any]) -> None:
        key = self._codes[rows]
        for fact in facts:
            code, values = pd.factorize(fact)
            key = key * len(values) + code
            if key.max() > _WIDEST:
                key = pd.factorize(key)[0]
        key = pd.factorize(key)[0]
        first = np.zeros(int(key.max()) + 1, np.intp)
        first[key[::-1]] = np.arange(len(key))[::-1]
        texts = list(self._known)
        before = [texts[code] for code in self._codes[rows[first]].tolist()]
        told = zip(*(fact[first].tolist() for fact in facts), strict=True) if facts else [()] * len(first)
        added = [remark.say(*values) for values in told]
        codes = [self._code(f"{old}; {new}" if old else new) for old, new in zip(before, added, strict=True)]
        self._codes[rows] = np.array(codes)[key]

    def column(self) -> Any:
        """All rows, as an array that pandas takes."""
        return pd.Series(list(self._known)).array.take(self._codes)

    def _code(self, text: str) -> int:
        return self._known.setdefault(text, len(self._known))
