"""Rows of a sweep as columns small enough for a page: words by number, six digits, thinned if they are many."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rooflinekit.model.types.errors import InputError
from rooflinekit.report.markup import script_json
from rooflinekit.report.page.render import card, paragraphs
from rooflinekit.report.titles import titles_of

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["MOST_BYTES", "rows_card", "rows_data", "rows_lead"]

MOST_BYTES = 1_700_000
"""What rows may take of a page."""

_MOST_ROWS = 40_000  # of more, a browser takes too long to draw
_MOST_CELLS = 200_000  # up to which columns beyond the usual are kept
_MOST_COLUMNS = 60
_FIRST = ("model", "gpu", "engine", "tp", "pp", "ep", "dp", "cp", "weights", "kv", "batch", "concurrency", "rate",
          "isl", "osl", "ttft_ms", "tpot_ms", "e2e_ms", "output_tok_s", "output_tok_s_per_user", "output_tok_s_per_gpu",
          "usd_per_million_output_tokens", "usd_per_hour", "total_bytes", "fits", "stable")  # fmt: skip
_ANSWERS = ("ttft_ms", "tpot_ms", "output_tok_s", "output_tok_s_per_gpu", "output_tok_s_per_user")
_MORE = ("output_tok_s", "goodput", "request_rate", "max_batch", "max_context", "kv_pool", "knee_rate")
_LESS = ("ttft_", "tpot_", "itl_", "e2e_", "queue_", "usd_", "total_bytes", "needed_bytes")
_USER, _GPU = "output_tok_s_per_user", "output_tok_s_per_gpu"
_DIGITS = 6
_REASONS = {"does not fit": "not fitting in memory", "overloaded": "overloaded",
            "misses the objectives": "missing the objectives", "has an error": "with an error"}  # fmt: skip
_WORDS = 200  # different texts beyond which a column is no group


def rows_data(table: pd.DataFrame) -> dict[str, Any]:
    """Columns that vary, what is better of each (1: more, -1: less), and how much was left out.

    `titles` are words for known columns, `given` the columns that are no results, `barred` what keeps a row off fronts.

    Raises InputError where no column is an answer of `sweep` or `estimate_frame`.
    """
    table = _numbers(table)
    answers = [name for name in _ANSWERS if name in table.columns]
    if not answers:
        raise InputError(f"no column is an answer of a sweep ({', '.join(_ANSWERS)}); the table has: "
                         f"{', '.join(map(str, table.columns[:12])) or 'none'}")  # fmt: skip
    answered = table[table[answers].notna().any(axis=1)]
    if answered.empty:
        raise InputError("no row has an answer: there is nothing to report")
    barred = _barred(answered)
    told = {name: column for name in _ordered(answered) if (column := _telling(answered[name], name)) is not None}
    first = sum(name in _FIRST for name in told)
    kept = list(told)[: min(max(first, _MOST_CELLS // len(answered)), _MOST_COLUMNS)]
    places, columns = _fitting(answered, {name: told[name] for name in kept})
    return {
        "columns": columns,
        "better": {name: side for name in kept if (side := _better(name))},
        "titles": titles_of(kept), "given": _given(kept), "barred": _column(barred.iloc[places]),
        "reasons": {str(word): int(count) for word, count in barred.value_counts().items() if word},
        "rows": len(places), "total": len(table), "unanswered": len(table) - len(answered),
        "left": [name for name in told if name not in kept],
    }  # fmt: skip


def _fitting(answered: pd.DataFrame, told: dict[str, pd.Series[Any]]) -> tuple[list[int], dict[str, Any]]:
    """As many rows as a page has room for: their places, and their columns."""
    most = min(_MOST_ROWS, MOST_BYTES // (2 * len(told)))  # a cell takes two bytes at least
    while True:
        places = _thinned(answered, most)
        columns = {name: _column(column.iloc[places]) for name, column in told.items()}
        size = len(script_json(columns).encode())
        if size <= MOST_BYTES or most <= 1:
            return places, columns
        most = min(most, len(places)) * MOST_BYTES // size * 9 // 10


def _numbers(table: pd.DataFrame) -> pd.DataFrame:
    """Headers as texts, each once; answers as numbers, whatever they were written as."""
    import pandas as pd  # noqa: PLC0415 - only where a table is at hand

    table = table.set_axis([str(name) for name in table.columns], axis=1)
    table = table.loc[:, ~table.columns.duplicated()]
    texts = {name: pd.to_numeric(table[name], errors="coerce").astype(float) for name in _ANSWERS if name in table}
    return table.assign(**texts)


def _ordered(table: pd.DataFrame) -> Iterator[str]:
    """Known columns first."""
    yield from (name for name in _FIRST if name in table.columns)
    yield from (name for name in table.columns if name not in _FIRST)


def _telling(column: pd.Series[Any], name: str) -> pd.Series[Any] | None:
    """The column as numbers or texts; None if it says the same everywhere, or something else in each row."""
    import pandas as pd  # noqa: PLC0415 - only where a table is at hand

    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column):
        numbers = column.astype(float)
        return numbers if name in _ANSWERS or numbers.nunique(dropna=False) > 1 else None
    words = column.astype(object).where(column.notna(), "").astype(str)
    if name in ("fits", "stable"):
        words = words.str.strip().str.capitalize()
    return words if name == "gpu" or 1 < words.nunique() <= _WORDS else None


def _given(names: list[str]) -> list[str]:
    """Columns that are no results."""
    from rooflinekit.decision.sweeping.answer import COST_COLUMNS, SIMULATED_COLUMNS  # noqa: PLC0415
    from rooflinekit.estimation.frames.columns import LOAD_COLUMNS, RESULT_COLUMNS  # noqa: PLC0415 - pages without a table do

    results = {*RESULT_COLUMNS, *LOAD_COLUMNS, *SIMULATED_COLUMNS, *COST_COLUMNS}
    return [name for name in names if name not in results]


def _barred(table: pd.DataFrame) -> pd.Series[Any]:
    """What keeps each row off fronts, in words."""
    import pandas as pd  # noqa: PLC0415 - only where a table is at hand

    from rooflinekit.decision.sweeping.pareto import why_not  # noqa: PLC0415 - as above

    return pd.Series(why_not(table), index=table.index)


def _better(name: str) -> int:
    return 1 if name.startswith(_MORE) else -1 if name.startswith(_LESS) else 0


def _thinned(table: pd.DataFrame, most: int) -> list[int]:
    """Places of every n-th row, and of the whole front."""
    if len(table) <= most:
        return list(range(len(table)))
    keep = set(range(0, len(table), -(-len(table) // max(most, 1))))
    if _USER in table and _GPU in table:
        order = table[[_USER, _GPU]].reset_index(drop=True)
        order = order[(_barred(table) == "").to_numpy()].sort_values([_USER, _GPU], ascending=False)
        best = order[_GPU].cummax().shift(fill_value=-1.0)
        keep |= set(order.index[order[_GPU] > best])
    return sorted(keep)


def _column(column: pd.Series[Any]) -> dict[str, Any]:
    import pandas as pd  # noqa: PLC0415 - only where a table is at hand

    if pd.api.types.is_numeric_dtype(column):
        return {"values": [_short(value) for value in column.tolist()]}
    codes, words = pd.factorize(column)
    return {"words": [str(word) for word in words], "codes": codes.tolist()}


def _short(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    short = float(f"{value:.{_DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def rows_lead(data: dict[str, Any], name: str) -> str:
    """How many rows there are, and how many of them can stand on no front."""
    count = f"{data['total']:,} {'row' if data['total'] == 1 else 'rows'} of {name}"
    words = {word: f"{data['reasons'][word]:,} {said}" for word, said in _REASONS.items() if word in data["reasons"]}
    lost = [f"{data['unanswered']:,} without an answer"] if data["unanswered"] else []
    return f"{', '.join([count, *words.values(), *lost])}."


def rows_card(data: dict[str, Any]) -> str:
    """What is shown, controls and the chart."""
    told = "Choose what stands across and up, and what colours mean"
    if data["rows"] < data["total"] - data["unanswered"]:
        told += f"; {data['rows']:,} rows are here, the rest is left out evenly, the front of tokens/s is whole"
    if data["left"]:
        told += f"; {len(data['left'])} more columns do not fit into a page ({', '.join(data['left'][:5])} …)"
    boxes = '<div class="three" id="sweep-controls"></div><p id="sweep-said" aria-live="polite"></p>'
    chart = '<ul class="key" id="sweep-key"></ul><h3 id="sweep-up"></h3><div class="chart" id="sweep"></div>'
    body = f"{paragraphs([f'{told}.'])}{boxes}{chart}"
    return f'<div class="wrap">{card("Sweep", body, "sweep-card")}</div>'
