"""A sweep for a terminal: what varies, and the results that people compare."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

import pandas as pd

from rooflinekit.report.table import WIDTH, aligned, markdown

__all__ = ["sweep_records", "sweep_text"]

_MOST = 60  # rows that a terminal shows
_WIDEST = 28  # letters of a cell
_SHOWN = {
    "fits": "fits", "stable": "stable", "ttft_ms": "TTFT ms", "ttft_p99_ms": "TTFT p99", "tpot_ms": "TPOT ms",
    "tpot_p99_ms": "TPOT p99", "output_tok_s_per_user": "tok/s/user", "output_tok_s_per_gpu": "tok/s/GPU",
    "knee_rate": "knee req/s", "request_rate": "req/s", "goodput": "goodput",
    "usd_per_million_output_tokens": "USD/M out", "gpus": "GPUs",
}  # fmt: skip


def sweep_text(table: pd.DataFrame, inputs: Sequence[str], markdown_style: bool = False) -> str:
    """What varies and the results beside it; what is the same in every row stands above.

    Args:
        table: the answers.
        inputs: names of the columns that were asked for.
        markdown_style: a Markdown table of all rows, in place of one for a terminal.
    """
    if not len(table):
        return "no rows"
    varying = [name for name in inputs if table[name].nunique(dropna=False) > 1]
    same = [f"{name} {_cell(table[name].iloc[0])}" for name in inputs if name not in varying]
    results = [name for name in _SHOWN if name in table and table[name].notna().any() and _tells(table, name)]
    shown = table if markdown_style else table.head(_MOST)
    lines = _narrow(shown, varying, results, markdown_style)
    more = len(table) - len(shown)
    after = ["", f"{more:,} more rows; --format csv or --out FILE has all of them"] if more else []
    return "\n".join([*_folded(", ".join(same)), *([""] if same else []), *lines, *after])


def _tells(table: pd.DataFrame, name: str) -> bool:
    """Whether a column says something: that all rows fit is no news."""
    if name in ("fits", "stable"):
        return not bool(table[name].dropna().all())
    return name != "gpus" or table[name].nunique() > 1


def _narrow(table: pd.DataFrame, varying: list[str], results: list[str], markdown_style: bool) -> list[str]:
    """As many of the results as a terminal has room for, from the left."""
    while True:
        names = [*varying, *results]
        cells = [[_cell(value) for value in row] for row in table[names].astype(object).to_numpy()]
        header = [*varying, *(_SHOWN[name] for name in results)]
        left = [place for place, name in enumerate(names) if pd.api.types.is_string_dtype(table[name])]
        if markdown_style:
            return markdown(header, cells, left)
        lines = aligned(header, cells, left)
        if max(map(len, lines)) <= WIDTH or len(names) <= 1:
            return lines
        results, varying = (results[:-1], varying) if len(results) > 2 else (results, varying[:-1])


def _cell(value: Any) -> str:
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        whole = abs(value) < 1e7 and (value.is_integer() or abs(value) >= 1e4)
        return f"{value:.0f}" if whole else f"{value:.4g}"
    text = str(value)
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"


def _folded(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent="  ")


def sweep_records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows for JSON: null for what is not there, and for what has no limit."""
    plain = table.astype(object)
    return [{str(name): _plain(value) for name, value in row.items()} for row in plain.to_dict("records")]


def _plain(value: Any) -> Any:
    if value is None or value is pd.NA or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return value
