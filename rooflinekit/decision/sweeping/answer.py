"""One piece of a sweep: scenarios in, answers out. It runs in this process, in another, or on another machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias
from uuid import uuid4

import numpy as np
import pandas as pd

from rooflinekit.decision.economics.price import co2_per_million, priced_names, quoted_price, usd_per_million
from rooflinekit.estimation.frames.evaluate import Resolutions, answer_table
from rooflinekit.estimation.options import options_of, part_of
from rooflinekit.estimation.scenario import SimulationOptions
from rooflinekit.model.power import plug_power
from rooflinekit.model.types.batch import positive
from rooflinekit.model.types.errors import InputError, RooflinekitError
from rooflinekit.model.types.numeric import Array
from rooflinekit.simulation.simulate import simulate
from rooflinekit.specs import load_accelerator
from rooflinekit.version import __version__

CO2_COLUMN = "co2_kg_per_million_output_tokens"
COST_COLUMNS = ("usd_per_hour", "usd_per_million_output_tokens", "price_source")

_SPREADS = ("ttft", "tpot", "itl", "e2e", "queue")
_NUMBERS = (
    "gpus", "arrived", "finished", "rejected", "cut", "measured", "preemptions",
    *(f"{name}_{part}_ms" for name in _SPREADS for part in ("mean", "p50", "p90", "p95", "p99", "max")),
    "request_rate", "goodput_rate", "goodput", "output_tok_s", "output_tok_s_per_gpu", "duration_s",
)  # fmt: skip

SIMULATED_COLUMNS = (*_NUMBERS, "level", "evidence", "calibration_hash", "warnings", "error", "version")
"""Results of a simulated row; with the simulator, `goodput` is the share of requests that meet the objectives."""

_OPTIONS = options_of(SimulationOptions)
_STATIC, _LOADED, _SIMULATED = 65_536, 16, 1  # rows of a piece: about a second of work
_TEXTS = ("level", "evidence", "calibration_hash", "warnings", "error", "version", "price_source")
FAULT = "\0fault"
"""A column that a reader adds: why a row cannot be read, empty where it can."""


def check_price(price: object) -> float | Mapping[str, float] | None:
    """Read a price for one accelerator hour [USD/h], of all or by name; None leaves it to the accelerators' files."""
    named = priced_names(price)
    if isinstance(named, Mapping):
        return {name: positive(each, f"price of {name}", zero=True) for name, each in named.items()}
    return None if named is None else positive(named, "price", zero=True)


def with_costs(answers: pd.DataFrame, price: float | Mapping[str, float] | None) -> pd.DataFrame:
    """Add what a row costs: price · accelerators [USD/h], and that over its output tokens an hour.

    An idle accelerator is paid too; the price is the dated quote of the accelerator's file, or the one given. Rows
    whose accelerator has no price stay empty.

    >>> row = pd.DataFrame({"gpu": ["h100-sxm"], "gpus": [2.0], "output_tok_s": [1000.0]})
    >>> with_costs(row, 3.6)[list(COST_COLUMNS)].values.tolist()  # 7.2 USD/h over 3.6 million tokens
    [[7.2, 2.0, 'given']]
    """
    names = answers["gpu"] if "gpu" in answers else pd.Series("h100-sxm", index=answers.index)
    codes, distinct = pd.factorize(names.where(names.notna(), "h100-sxm").astype(str))
    quotes = [_hour(str(name), price) for name in distinct]
    each: Array = np.array([quote for _, quote in quotes], dtype=float)[codes]
    sources = pd.Series([source for source, _ in quotes], dtype="object").astype("str").array.take(codes)
    hourly = each * answers["gpus"].to_numpy(dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        million = usd_per_million(hourly, answers["output_tok_s"].to_numpy(dtype=float))
    added = dict(zip(COST_COLUMNS, (hourly, million, sources), strict=True))
    return pd.concat([answers, pd.DataFrame(added, index=answers.index)], axis=1)


def _hour(gpu: str, price: float | Mapping[str, float] | None) -> tuple[str, float]:
    """Origin of the price of an accelerator hour, and the price [USD/h]; NaN where the row will say why not."""
    with suppress(RooflinekitError):
        known = price.get(load_accelerator(gpu).value.name) if isinstance(price, Mapping) else price
        quote = None if known is not None else quoted_price(load_accelerator(gpu).value)
        if quote is not None:
            return quote.source, float(quote.usd_per_gpu_hour)
        return ("", float("nan")) if known is None else ("given", known)
    return "", float("nan")


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
    row: dict[str, Any] = {"gpus": np.nan} | outcome.to_row()
    return empty | {name: np.nan if row[name] is None else row[name] for name in SIMULATED_COLUMNS if name != "error"}


def _plain(key: str, cell: Any) -> Any:
    """A cell as `simulate` takes it: empty ones None, NumPy's numbers Python's, texts that are numbers read."""
    if cell is None or (not isinstance(cell, (str, list, tuple)) and pd.isna(cell)):
        return None
    plain = cell.item() if isinstance(cell, np.generic) else cell
    return _OPTIONS[key].of_cell(plain) if key in _OPTIONS else plain


Rows: TypeAlias = Callable[[], pd.DataFrame]
"""Rows that travel to where they are answered, and are made there."""


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of a sweep, and their place in it."""

    number: int
    rows: Rows


@dataclass(frozen=True)
class SweepJob:
    """Task for each row: estimated or simulated, at a price of its own or at those of the accelerators."""

    simulate: bool = False
    price: float | Mapping[str, float] | None = None
    carbon: tuple[float, str] | None = None  #: grams of CO2 a kWh, and who says so
    run: str = field(default_factory=lambda: uuid4().hex, repr=False, compare=False)  #: what is laid out once for all

    def __post_init__(self) -> None:
        if self.simulate and self.carbon is not None:
            raise InputError("carbon: simulated rows have no energy; leave one of carbon and simulate out")

    def piece_rows(self, columns: tuple[str, ...]) -> int:
        """Rows of a piece; the same however the sweep is run."""
        if self.simulate:
            return _SIMULATED
        return _LOADED if "concurrency" in columns or "rate" in columns else _STATIC


def answer(job: SweepJob, piece: Piece) -> pd.DataFrame:
    """The rows of a piece with their results and costs; what cannot be answered says so in its row."""
    scenarios = piece.rows()
    for column in scenarios.columns:
        if column in (*COST_COLUMNS, CO2_COLUMN):
            raise InputError(f"column {column!r} would be overwritten by a result; rename it")
    faults = scenarios.pop(FAULT) if FAULT in scenarios else None
    if faults is None or (faults == "").all():
        return _answered(job, scenarios)
    good = _answered(job, scenarios[faults == ""])
    rest = scenarios.drop(columns=[name for name in scenarios if name not in good])
    results = good[[name for name in good if name not in rest]].reindex(scenarios.index)
    texts = [name for name in _TEXTS if name in results]
    results[texts] = results[texts].fillna("")
    results["error"] = results["error"].where(faults == "", faults)
    return pd.concat([rest, results], axis=1)


def _answered(job: SweepJob, scenarios: pd.DataFrame) -> pd.DataFrame:
    answers = simulate_frame(scenarios) if job.simulate else answer_table(scenarios, _resolutions(job.run))
    answers = with_costs(answers, job.price)
    if job.carbon is not None and "energy_per_output_token_j" in answers:
        joules = answers["energy_per_output_token_j"].astype(float)
        gpus = answers.get("gpu", pd.Series("h100-sxm", answers.index)).where(joules.notna())
        plug = gpus.map({each: _plug(str(each)) for each in gpus.dropna().unique()}).astype(float)
        answers[CO2_COLUMN] = co2_per_million(np.asarray(joules * plug, float), job.carbon[0])
    return answers


def _plug(gpu: str) -> float:
    """Power at the plug over that of the board."""
    law = load_accelerator(gpu).value.power
    return math.nan if law is None else float(plug_power(1.0, law.host))


@lru_cache(maxsize=1)
def _resolutions(run: str) -> Resolutions:
    """Deployments that this process has laid out for a sweep; files may have changed before the next."""
    return Resolutions()
