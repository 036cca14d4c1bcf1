"""Rows of a sweep as columns small enough for a page: words by number, six digits, thinned if they are many."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import pandas as pd

from rooflinekit.decision.sweeping.pareto import why_not
from rooflinekit.decision.sweeping.sweep import COST_COLUMNS, SIMULATED_COLUMNS
from rooflinekit.estimation.frames.columns import LOAD_COLUMNS, RESULT_COLUMNS
from rooflinekit.model.types.errors import InputError
from rooflinekit.report.markup import script_json
from rooflinekit.report.page.render import card, paragraphs
from rooflinekit.specs.files import table_of

MOST_BYTES = 1_700_000
"""Largest size of the rows of a page."""

_MOST_ROWS = 40_000  # of more, a browser takes too long to draw
_MOST_CELLS = 200_000  # up to which columns beyond the usual are kept
_MOST_COLUMNS = 60
_TABLE = table_of(__file__)
_FIRST, _ANSWERS, _MORE, _LESS = (tuple(_TABLE[name]) for name in ("first", "answers", "more", "less"))
_USER, _GPU = "output_tok_s_per_user", "output_tok_s_per_gpu"
_DIGITS = 6
_WORDS = 200  # different texts beyond which a column is no group


def rows_data(table: pd.DataFrame) -> dict[str, Any]:
    """Columns that vary, what is better of each (1: more, -1: less), and how much was left out.

    `titles` are words for known columns, `given` the columns that are no results, `barred` what keeps a row off fronts.

    Raises InputError where no column is an answer of `sweep` or `estimate_frame`.
    """
    table = table.set_axis([str(name) for name in table.columns], axis=1)
    table = table.loc[:, ~table.columns.duplicated()]
    answers = [name for name in _ANSWERS if name in table.columns]
    if not answers:
        has = ", ".join(map(str, table.columns[:12])) or "none"
        raise InputError(f"no column is an answer of a sweep ({', '.join(_ANSWERS)}); the table has: {has}")
    numbers = {name: pd.to_numeric(table[name], errors="coerce").astype(float) for name in answers}
    answered = table.assign(**numbers)[pd.DataFrame(numbers).notna().any(axis=1)]
    if answered.empty:
        raise InputError("no row has an answer: there is nothing to report")
    barred = pd.Series(why_not(answered), index=answered.index)
    names = sorted(map(str, answered), key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST))
    told = {name: column for name in names if (column := _telling(answered[name], name)) is not None}
    first = sum(name in _FIRST for name in told)
    kept = list(told)[: min(max(first, _MOST_CELLS // len(answered)), _MOST_COLUMNS)]
    most, columns = min(_MOST_ROWS, MOST_BYTES // (2 * len(kept))), dict[str, Any]()  # a cell takes two bytes at least
    while not columns:
        places = _thinned(answered, barred, most)
        columns = {name: _column(told[name].iloc[places]) for name in kept}
        size = len(script_json(columns).encode())
        if size > MOST_BYTES and most > 1:
            most, columns = min(most, len(places)) * MOST_BYTES // size * 9 // 10, {}
    better = {name: 1 if name.startswith(_MORE) else -1 for name in kept if name.startswith((*_MORE, *_LESS))}
    results = {*RESULT_COLUMNS, *LOAD_COLUMNS, *SIMULATED_COLUMNS, *COST_COLUMNS}
    return {
        "columns": columns,
        "better": better,
        "titles": titles_of(kept),
        "given": [name for name in kept if name not in results],
        "barred": _column(barred.iloc[places]),
        "reasons": {str(word): int(count) for word, count in barred.value_counts().items() if word},
        "rows": len(places),
        "total": len(table),
        "unanswered": len(table) - len(answered),
        "left": [name for name in told if name not in kept],
    }


def _telling(column: pd.Series[Any], name: str) -> pd.Series[Any] | None:
    """The column as numbers or texts; None if it says the same everywhere, or something else in each row."""
    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column):
        numbers = column.astype(float)
        return numbers if name in _ANSWERS or numbers.nunique(dropna=False) > 1 else None
    words = column.astype(object).where(column.notna(), "").astype(str)
    if name in ("fits", "stable"):
        words = words.str.strip().str.capitalize()
    return words if name == "gpu" or 1 < words.nunique() <= _WORDS else None


def _thinned(table: pd.DataFrame, barred: pd.Series[Any], most: int) -> list[int]:
    """Places of every n-th row, and of the whole front."""
    if len(table) <= most:
        return list(range(len(table)))
    keep = set(range(0, len(table), -(-len(table) // max(most, 1))))
    if _USER in table and _GPU in table:
        order = table[[_USER, _GPU]].reset_index(drop=True)
        order = order[(barred == "").to_numpy()].sort_values([_USER, _GPU], ascending=False)
        best = order[_GPU].cummax().shift(fill_value=-1.0)
        keep |= set(order.index[order[_GPU] > best])
    return sorted(keep)


def _column(column: pd.Series[Any]) -> dict[str, Any]:
    """Numbers of six digits, or words by number."""
    if not pd.api.types.is_numeric_dtype(column):
        codes, words = pd.factorize(column)
        return {"words": [str(word) for word in words], "codes": codes.tolist()}
    short = [float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None for value in column.tolist()]
    return {"values": [int(n) if n is not None and n.is_integer() and abs(n) < 1e15 else n for n in short]}


def rows_lead(data: dict[str, Any], name: str) -> str:
    """Sentence on the number of rows, and how many of them can stand on no front."""
    count = f"{data['total']:,} {'row' if data['total'] == 1 else 'rows'} of {name}"
    reasons = data["reasons"]
    words = [f"{reasons[word]:,} {said}" for word, said in _TABLE["reasons"].items() if word in reasons]
    lost = [f"{data['unanswered']:,} without an answer"] if data["unanswered"] else []
    return f"{', '.join([count, *words, *lost])}."


def rows_card(data: dict[str, Any]) -> str:
    """Card with controls and the chart."""
    told = "Choose both axes and the colours"
    if data["rows"] < data["total"] - data["unanswered"]:
        told += f"; {data['rows']:,} rows are here, the rest is left out evenly, the front of tokens/s is whole"
    if data["left"]:
        told += f"; {len(data['left'])} more columns do not fit into a page ({', '.join(data['left'][:5])} …)"
    boxes = '<div class="three" id="sweep-controls"></div><p id="sweep-said" aria-live="polite"></p>'
    chart = '<ul class="key" id="sweep-key"></ul><h3 id="sweep-up"></h3><div class="chart" id="sweep"></div>'
    body = f"{paragraphs([f'{told}.'])}{boxes}{chart}"
    pin = '<p><label>Pinned: <select id="sweep-base" style="width: auto"></select></label></p>'
    said = "Most output tokens/s of one GPU at which each user still gets so many. Bold: the best"
    said = paragraphs([f"{said}; in brackets: over the pinned."])
    table = card("Interactivity", f'{said}{pin}<div id="interactivity"></div>', "interactivity-card")
    return f'<div class="wrap">{card("Sweep", body, "sweep-card")}{table}</div>'


def titles_of(names: Collection[str]) -> dict[str, str]:
    """Words for the known columns of a table.

    The goodput of simulated rows, which have `goodput_rate` besides, is a share.

    >>> titles_of(["tpot_p99_ms", "team", "goodput"])
    {'tpot_p99_ms': 'TPOT, P99 [ms]', 'goodput': 'goodput [requests/s]'}
    """
    known = {name: title for name in names if (title := title_of(name)) != name}
    return known | {"goodput": "goodput, share of requests"} if {"goodput", "goodput_rate"} <= set(names) else known


def title_of(name: str) -> str:
    """Words for a column, or its name.

    >>> title_of("output_tok_s_per_gpu"), title_of("ttft_ms"), title_of("my column")
    ('output of one GPU [tokens/s]', 'TTFT [ms]', 'my column')
    """
    stem, _, statistic = name.removesuffix("_ms").partition("_")
    if not name.endswith("_ms") or stem not in _TABLE["times"] or statistic not in ("", *_TABLE["statistics"]):
        return str(_TABLE["columns"].get(name, name))
    part = f", {_TABLE['statistics'][statistic]}" if statistic else ""
    return f"{_TABLE['times'][stem]}{part} [ms]"
