"""A sweep for a terminal: what varies, and the results that people compare."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from rooflinekit.decision.sweeping.pareto import GPU, USER, compared, interactivity
from rooflinekit.model.types.errors import InputError
from rooflinekit.model.types.units import significant
from rooflinekit.report.document import CellTable, Document, Section, Words, apart, three

MOST = 60  # rows that a terminal shows
_GOALS = (("lowest TPOT ", "tpot_ms", " ms"), ("cheapest output, $", "usd_per_million_output_tokens", "/Mtok"))
_SPEEDS = 20  # of a user, in the table of interactivity
_BARE = ("tp", "weights", "kv")  # whose values alone do not say what they are
_WIDEST = 28  # letters of a cell
_SHOWN = {
    "evidence": "evidence", "fits": "fits", "stable": "stable", "ttft_ms": "TTFT ms", "ttft_p99_ms": "TTFT p99",
    "tpot_ms": "TPOT ms", "tpot_p99_ms": "TPOT p99", "output_tok_s_per_user": "tok/s/user",
    "output_tok_s_per_gpu": "tok/s/GPU", "knee_rate": "knee req/s", "request_rate": "req/s", "goodput": "goodput",
    "usd_per_million_output_tokens": "$/Mtok out", "co2_kg_per_million_output_tokens": "kg CO2/M", "gpus": "GPUs",
}  # fmt: skip


def document(table: pd.DataFrame, inputs: Sequence[str], most: int | None, baseline: str | None = None) -> Document:
    """Document of the varying inputs and the results; what is the same in every row stands above.

    Args:
        table: the answers.
        inputs: names of the columns that were asked for.
        most: rows that are shown; all of them by default.
        baseline: the column of the table of interactivity that others are compared with; the first by default.
    """
    if not len(table):
        return apart(Words("no rows"))
    varying = [name for name in inputs if table[name].nunique(dropna=False) > 1]
    same = [f"{name} {_cell(table[name].iloc[0])}" for name in inputs if name not in varying]
    levels = set(table["evidence"].dropna()) - {""} if "evidence" in table else set()
    same += [f"evidence {level}" for level in levels if len(levels) == 1]
    results = [name for name in _SHOWN if name in table and table[name].notna().any() and _tells(table, name)]
    if not varying and not results:
        return apart(Words(", ".join(same)), Words("no row has an answer"))
    names, shown = [*varying, *results], table.head(most or len(table))
    cells = [
        [_cell(value, name in results) for name, value in zip(names, row, strict=True)]
        for row in shown[names].astype(object).to_numpy()
    ]
    left = [place for place, name in enumerate(names) if pd.api.types.is_string_dtype(shown[name])]
    last, first = len(names) - 1, len(varying) - 1
    drop = [*range(last, first + 2, -1), *range(first, 0, -1)]  # results down to two of them, then what varies
    rest = len(table) - len(shown)
    more = [f"{rest:,} more rows; --format csv or --out FILE has all of them"] if rest else []
    best = Words(*filter(None, [", ".join(same)]), *_best(table, varying))
    whole = CellTable([*varying, *(_SHOWN[name] for name in results)], cells, left, drop=drop)
    return [*apart(best), *_interactivity(table, baseline), *apart(whole, Words(*more))]


def _interactivity(table: pd.DataFrame, baseline: str | None) -> Iterator[Section]:
    """The best throughput of a GPU by the speed of a user, where several are compared."""
    by = compared(table)
    found = interactivity(table, by) if by and {USER, GPU} <= set(table) else pd.DataFrame()
    names = [str(name) for name in found.columns]
    if baseline is not None and baseline not in names:
        raise InputError(f"baseline: {baseline!r} is not compared here: {', '.join(names) or 'nothing is'}")
    if len(names) < 2 or len(found) < 2:
        return
    pinned = names.index(baseline or names[0])
    rows = []
    for speed, cells in zip(found.index, found.to_numpy(dtype=float), strict=True):
        best, base = cells[~np.isnan(cells)].max(), cells[pinned]
        ratios = [
            "" if place == pinned or math.isnan(base) else f" x {cell / base:.2f}" for place, cell in enumerate(cells)
        ]
        marks = [
            "-" if math.isnan(cell) else f"{three(cell)}{ratio}{' *' if cell == best else '  '}"
            for cell, ratio in zip(cells, ratios, strict=True)
        ]
        rows.append([f"{speed:.0f}", *marks])
    names = [f"{by} {name}" if by in _BARE else name for name in names]
    said = f"best tok/s of one GPU by tok/s of each user; x: over {names[pinned]}, *: the best"
    yield Section(said, [CellTable(["tok/s of a user", *(f"{name}  " for name in names)], rows[:_SPEEDS])])


def _best(table: pd.DataFrame, varying: Sequence[str]) -> Iterator[str]:
    """The row with the lowest time per token, and the one with the cheapest tokens, of several that hold."""
    holds = table
    for name in ("fits", "stable"):
        holds = holds[holds[name].fillna(False).astype(bool)] if name in holds and holds[name].notna().any() else holds
    if len(holds) < 2:
        return
    for said, name, unit in _GOALS:
        if name in holds and holds[name].notna().any():
            row = holds.iloc[int(pd.to_numeric(holds[name]).argmin())]
            where = ", ".join(f"{key} {_cell(row[key])}" for key in varying)
            yield f"{said}{significant(float(row[name]))}{unit}: {where}"


def _tells(table: pd.DataFrame, name: str) -> bool:
    """True if a column says something: that all rows fit is no news."""
    if name in ("fits", "stable"):
        return not bool(table[name].dropna().all())
    return name not in ("gpus", "evidence") or table[name][table[name] != ""].nunique() > 1


def _cell(value: Any, result: bool = False) -> str:
    """Cell of a table: an input as it was written; three digits of a result."""
    if pd.isna(value):
        return "-"
    if result and isinstance(value, float) and math.isfinite(value):
        return significant(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        whole = abs(value) < 1e7 and (value.is_integer() or abs(value) >= 1e4)
        return f"{value:.0f}" if whole else f"{value:.4g}"
    text = str(value)
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"


def sweep_records(table: pd.DataFrame) -> list[dict[Hashable, object]]:
    """Rows for JSON, with None for what is not there."""
    plain = table.astype(object)
    return plain.where(plain.notna(), None).to_dict("records")
