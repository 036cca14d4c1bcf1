"""Scenarios through the request-level simulator, one run a row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from rooflinekit.estimation.options import options_of, part_of
from rooflinekit.estimation.scenario import Simulation
from rooflinekit.model.types.errors import InputError, RooflinekitError
from rooflinekit.simulation.front import simulate
from rooflinekit.simulation.outcome import Outcome
from rooflinekit.version import __version__

__all__ = ["SIMULATED_COLUMNS", "simulate_frame"]

_SPREADS = ("ttft", "tpot", "itl", "e2e", "queue")
_NUMBERS = (
    "gpus", "arrived", "finished", "rejected", "cut", "measured", "preemptions",
    *(f"{name}_{part}_ms" for name in _SPREADS for part in ("mean", "p50", "p90", "p99", "max")),
    "request_rate", "goodput_rate", "goodput", "output_tok_s", "output_tok_s_per_gpu", "duration_s",
)  # fmt: skip
SIMULATED_COLUMNS = (*_NUMBERS, "level", "calibration_hash", "warnings", "error", "version")
"""Results of a simulated row; with the simulator, `goodput` is the share of requests that meet the objectives."""

_OPTIONS = options_of(Simulation)


def simulate_frame(scenarios: pd.DataFrame) -> pd.DataFrame:
    """Simulate every row of a table; columns are keywords of `simulate`, with objectives `ttft` and `tpot` in ms.

    Args:
        scenarios: one run a row; `model`, and a load (rate, concurrency, arrivals or trace). Other columns stay.

    Returns:
        The rows with `SIMULATED_COLUMNS`; `error` says what could not be run.

    Raises:
        InputError: no column `model`, or one named like a result.

    >>> import pandas as pd
    >>> one = {"model": "llama-3-8b", "rate": [4.0, -1.0], "requests": 20, "isl": 64, "osl": 8, "calibration": "none"}
    >>> simulate_frame(pd.DataFrame(one))["finished"].tolist()
    [20.0, nan]
    """
    if "model" not in scenarios:
        raise InputError(f"the table has no column 'model'; it has: {', '.join(map(str, scenarios.columns)) or 'none'}")
    for column in map(str, scenarios.columns):
        if column in SIMULATED_COLUMNS:
            raise InputError(f"column {column!r} would be overwritten by a result; rename it")
    rows = [_row(row) for row in scenarios.astype(object).to_dict("records")]
    results = pd.DataFrame(rows, columns=list(SIMULATED_COLUMNS), index=scenarios.index)
    kinds = dict.fromkeys(_NUMBERS, "float64") | dict.fromkeys(SIMULATED_COLUMNS[len(_NUMBERS) :], "str")
    return pd.concat([scenarios, results.astype(kinds)], axis=1)


def _row(scenario: dict[Any, Any]) -> dict[str, Any]:
    given = {str(key): plain for key, cell in scenario.items() if (plain := _plain(str(key), cell)) is not None}
    known: Any = part_of(given, _OPTIONS)
    empty: dict[str, Any] = dict.fromkeys(_NUMBERS, np.nan) | dict.fromkeys(SIMULATED_COLUMNS[len(_NUMBERS) :], "")
    empty["version"] = __version__
    try:
        if "model" not in given:
            raise InputError("model is empty")
        outcome = simulate(str(given["model"]), str(given.get("gpu", "h100-sxm")), **known)
    except RooflinekitError as error:
        return empty | {"error": str(error)}
    if outcome.interrupted:  # the sweep is, with this row unanswered
        raise KeyboardInterrupt
    return empty | _numbers(outcome)


def _plain(key: str, cell: Any) -> Any:
    """A cell as `simulate` takes it: empty ones None, NumPy's numbers Python's, texts that are numbers read."""
    if cell is None or (not isinstance(cell, (str, list, tuple)) and pd.isna(cell)):
        return None
    plain = cell.item() if isinstance(cell, np.generic) else cell
    return _OPTIONS[key].of_cell(plain) if key in _OPTIONS else plain


def _numbers(outcome: Outcome) -> dict[str, Any]:
    row = outcome.to_row()
    row["gpus"] = row.get("gpus", np.nan)
    found = {name: row[name] for name in SIMULATED_COLUMNS if name != "error"}
    return {name: np.nan if cell is None else cell for name, cell in found.items()}
