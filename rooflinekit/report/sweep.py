"""A sweep for a terminal: what varies, and the results that people compare."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import pandas as pd

from rooflinekit.model.types.units import significant
from rooflinekit.report.document import Document, Section, Table, Words

MOST = 60  # rows that a terminal shows
_GOALS = (("lowest TPOT ", "tpot_ms", " ms"), ("cheapest output, $", "usd_per_million_output_tokens", "/Mtok"))
_WIDEST = 28  # letters of a cell
_SHOWN = {
    "evidence": "evidence", "fits": "fits", "stable": "stable", "ttft_ms": "TTFT ms", "ttft_p99_ms": "TTFT p99",
    "tpot_ms": "TPOT ms", "tpot_p99_ms": "TPOT p99", "output_tok_s_per_user": "tok/s/user",
    "output_tok_s_per_gpu": "tok/s/GPU", "knee_rate": "knee req/s", "request_rate": "req/s", "goodput": "goodput",
    "usd_per_million_output_tokens": "$/Mtok out", "co2_kg_per_million_output_tokens": "kg CO2/M", "gpus": "GPUs",
}  # fmt: skip


def document(table: pd.DataFrame, inputs: Sequence[str], most: int | None) -> Document:
    """What varies and the results beside it; what is the same in every row stands above.

    Args:
        table: the answers.
        inputs: names of the columns that were asked for.
        most: rows that are shown; all of them by default.
    """
    if not len(table):
        return [Section("", [Words("no rows")])]
    varying = [name for name in inputs if table[name].nunique(dropna=False) > 1]
    same = [f"{name} {_cell(table[name].iloc[0])}" for name in inputs if name not in varying]
    levels = set(table["evidence"].dropna()) - {""} if "evidence" in table else set()
    same += [f"evidence {level}" for level in levels if len(levels) == 1]
    results = [name for name in _SHOWN if name in table and table[name].notna().any() and _tells(table, name)]
    if not varying and not results:
        return [Section("", [Words(", ".join(same))]), Section("", [Words("no row has an answer")])]
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
    return [
        Section("", [Words(*filter(None, [", ".join(same)]), *_best(table, varying))]),
        Section("", [Table([*varying, *(_SHOWN[name] for name in results)], cells, left, drop=drop)]),
        Section("", [Words(*more)]),
    ]


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
    """Whether a column says something: that all rows fit is no news."""
    if name in ("fits", "stable"):
        return not bool(table[name].dropna().all())
    return name not in ("gpus", "evidence") or table[name][table[name] != ""].nunique() > 1


def _cell(value: Any, result: bool = False) -> str:
    """What was asked for as it was written; three digits of a number of the answer."""
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


def sweep_records(table: pd.DataFrame) -> list[dict[Hashable, Any]]:
    """Rows for JSON, with None for what is not there."""
    plain = table.astype(object)
    return plain.where(plain.notna(), None).to_dict("records")
