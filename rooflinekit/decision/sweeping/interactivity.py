"""Throughput of a GPU by the speed of each user: the best that every accelerator of a sweep reaches."""

from __future__ import annotations

import numpy as np
import pandas as pd

from rooflinekit.decision.sweeping.pareto import why_not
from rooflinekit.estimation.frames.columns import INPUT_COLUMNS
from rooflinekit.model.types.errors import InputError, nearest

USER, GPU = "output_tok_s_per_user", "output_tok_s_per_gpu"
STEP = 10.0
"""Width of a bucket [tok/s of a user]."""

_BY = ("gpu", "model", "engine", "tp", "weights", "kv")  # the first that differs is compared


def compared(table: pd.DataFrame) -> str:
    """The input whose values are compared; empty where none of the usual ones differs."""
    return next((name for name in _BY if name in table and table[name].nunique() > 1), "")


def interactivity(table: pd.DataFrame, by: str = "") -> pd.DataFrame:
    """The most output tokens a second of one GPU at which each user still gets 10, 20, 30 … tokens a second.

    Args:
        table: what `sweep` or `estimate_frame` returned.
        by: the input whose values are compared; by default the first of gpu, model, engine, tp, weights, kv that
            differs.

    Returns:
        A row for each speed of a user [tok/s], a column for each value of `by`, of the rows that fit, hold their load
        and meet their objectives; NaN where none is as fast. Of speeds between which nothing changes the fastest stays.

    Raises:
        InputError: for a table without both rates, or without such an input.

    >>> rows = pd.DataFrame({"gpu": ["a", "a", "b"], USER: [35.0, 12.0, 22.0], GPU: [100.0, 300.0, 200.0]})
    >>> interactivity(rows).to_dict()
    {'a': {10.0: 300.0, 20.0: 100.0, 30.0: 100.0}, 'b': {10.0: 200.0, 20.0: 200.0, 30.0: nan}}
    """
    by = by or compared(table)
    if not {USER, GPU} <= set(table) or by not in table:
        lacking = by if {USER, GPU} <= set(table) else f"{USER} and {GPU}"
        near = nearest(by, INPUT_COLUMNS) if by else []
        words = f"; nearest: {', '.join(near)}" if near else ""
        raise InputError(f"interactivity: the table has no column {lacking or 'that differs between its rows'}{words}")
    rows = table[(why_not(table) == "") & table[[USER, GPU]].notna().all(axis=1)]
    speeds = np.arange(1.0, np.floor(rows[USER].max() / STEP) + 1.0) * STEP if len(rows) else np.array([])
    found = pd.DataFrame(
        {
            name: [part[GPU][part[USER] >= speed].max() for speed in speeds]
            for name, part in rows.groupby(by, sort=False)
        },
        index=pd.Index(speeds, name="tok/s of a user"),
    )
    after = found.shift(-1)
    same = ((found == after) | (found.isna() & after.isna())).all(axis=1)
    return found[~same.to_numpy(dtype=bool)] if len(found) else found
