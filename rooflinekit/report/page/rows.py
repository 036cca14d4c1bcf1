"""Rows of a sweep as columns small enough for a page: words by number, six digits, thinned if they are many."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rooflinekit.report.page.render import card, paragraphs
from rooflinekit.types.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["MOST_CELLS", "rows_card", "rows_data"]

MOST_CELLS = 300_000
"""Cells that a page holds: about 1.3 MB."""

_KNOWN = ("model", "gpu", "engine", "tp", "pp", "ep", "dp", "weights", "kv", "batch", "concurrency", "rate", "isl",
          "osl",
          "ttft_ms", "tpot_ms", "e2e_ms", "output_tok_s", "output_tok_s_per_user", "output_tok_s_per_gpu",
          "usd_per_million_tokens", "usd_per_hour", "total_bytes", "fits")  # fmt: skip
_ANSWERS = ("ttft_ms", "tpot_ms", "output_tok_s", "output_tok_s_per_gpu", "output_tok_s_per_user")
_USER, _GPU = "output_tok_s_per_user", "output_tok_s_per_gpu"
_DIGITS = 6
_WORDS = 200  # different texts beyond which a column is no group


def rows_data(table: pd.DataFrame) -> dict[str, Any]:
    """Columns that vary and mean something here.

    Raises InputError where no column is an answer of `sweep` or `estimate_frame`.
    """
    kept = table[[name for name in _KNOWN if name in table.columns]]
    if not set(_ANSWERS) & set(kept.columns):
        raise InputError(f"no column is an answer of a sweep ({', '.join(_ANSWERS)}); the table has: "
                         f"{', '.join(map(str, table.columns[:12])) or 'none'}")  # fmt: skip
    kept = kept[[name for name in kept if name in _ANSWERS or kept[name].astype(str).nunique() > 1 or name == "gpu"]]
    total, answered = len(kept), kept[kept[[name for name in _ANSWERS if name in kept]].notna().any(axis=1)]
    if answered.empty:
        raise InputError("no row has an answer: there is nothing to report")
    shown = _thinned(answered, MOST_CELLS // max(len(kept.columns), 1))
    columns = {name: column for name in shown if (column := _column(shown[name])) is not None}
    return {"columns": columns, "rows": len(shown), "total": total, "unanswered": total - len(answered)}


def _thinned(table: pd.DataFrame, most: int) -> pd.DataFrame:
    """Every n-th row, and all of the front."""
    if len(table) <= most:
        return table.reset_index(drop=True)
    step = -(-len(table) // max(most, 1))
    keep = set(range(0, len(table), step))
    if _USER in table and _GPU in table:
        order = table[[_USER, _GPU]].reset_index(drop=True).sort_values([_USER, _GPU], ascending=False)
        best = order[_GPU].cummax().shift(fill_value=-1.0)
        keep |= set(order.index[order[_GPU] > best])
    return table.iloc[sorted(keep)].reset_index(drop=True)


def _column(column: pd.Series[Any]) -> dict[str, Any] | None:
    import pandas as pd  # noqa: PLC0415 - only where a table is at hand

    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column):
        return {"values": [_short(value) for value in column.tolist()]}
    codes, words = pd.factorize(column.astype(str))
    if len(words) > _WORDS:
        return None
    return {"words": [str(word) for word in words], "codes": codes.tolist()}


def _short(value: float) -> float | int | None:
    if math.isnan(value):
        return None
    short = float(f"{value:.{_DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def rows_card(data: dict[str, Any], name: str) -> str:
    """What is shown, controls and the chart."""
    told = f"{data['rows']:,} of {data['total']:,} rows of {name}"
    if data["unanswered"]:
        told += f"; {data['unanswered']:,} have no answer"
    if data["rows"] < data["total"] - data["unanswered"]:
        told += "; the rest is left out evenly, the front is whole"
    words = paragraphs([f"{told}. The line is what nothing else beats in both; its rows stand in the table below."])
    boxes = '<div class="three" id="sweep-controls"></div><ul class="key" id="sweep-key"></ul>'
    body = f'{words}{boxes}<div class="chart" id="sweep"></div>'
    return f'<div class="wrap">{card("Sweep", body, "sweep-card")}</div>'
