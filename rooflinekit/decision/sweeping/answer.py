"""One piece of a sweep: scenarios in, answers out. It runs in this process, in another, or on another machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol
from uuid import uuid4

import pandas as pd

from rooflinekit.decision.sweeping.price import COST_COLUMNS, with_costs
from rooflinekit.decision.sweeping.simulated import simulate_frame
from rooflinekit.estimation.frames.cells import Resolutions
from rooflinekit.estimation.frames.evaluate import answer_table
from rooflinekit.model.types.errors import InputError

__all__ = ["Job", "Piece", "Scenarios", "answer"]

_STATIC, _LOADED, _SIMULATED = 65_536, 8_192, 1  # rows of a piece: about a second of work


class Scenarios(Protocol):
    """Rows that travel to where they are answered."""

    def frame(self) -> pd.DataFrame:
        """The rows."""
        ...


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of a sweep, and their place in it."""

    number: int
    scenarios: Scenarios


@dataclass(frozen=True)
class Job:
    """What is done with each row: estimated or simulated, at a price of its own or at those of the accelerators."""

    simulate: bool = False
    price: float | Mapping[str, float] | None = None
    run: str = field(default_factory=lambda: uuid4().hex, repr=False, compare=False)  #: what is laid out once for all

    def piece_rows(self, columns: tuple[str, ...]) -> int:
        """Rows of a piece; the same however the sweep is run."""
        if self.simulate:
            return _SIMULATED
        return _LOADED if "concurrency" in columns or "rate" in columns else _STATIC


def answer(job: Job, piece: Piece) -> pd.DataFrame:
    """The rows of a piece with their results and costs; what cannot be answered says so in its row.

    Raises InputError for a table that cannot be read at all.
    """
    scenarios = piece.scenarios.frame()
    _check(scenarios)
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


_TEXTS = ("level", "calibration_hash", "warnings", "error", "version", "price_source")
FAULT = "\0fault"
"""A column that a reader adds: why a row cannot be read, empty where it can."""


def _answered(job: Job, scenarios: pd.DataFrame) -> pd.DataFrame:
    answers = simulate_frame(scenarios) if job.simulate else answer_table(scenarios, _resolutions(job.run))
    return with_costs(answers, job.price)


@lru_cache(maxsize=1)
def _resolutions(run: str) -> Resolutions:
    """Deployments that this process has laid out for a sweep; files may have changed before the next."""
    return Resolutions()


def _check(scenarios: Any) -> None:
    for column in scenarios.columns:
        if column in COST_COLUMNS:
            raise InputError(f"column {column!r} would be overwritten by a result; rename it")
