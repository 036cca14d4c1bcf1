"""What the inverse questions share: the form of their answer, the search over whole numbers, a static batch's times."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rooflinekit.decision.planning.objective import Objective
from rooflinekit.estimation.estimator import Resolved, read_deployment, resolve
from rooflinekit.estimation.options import part_of
from rooflinekit.estimation.scenario import DEPLOYMENT_KEYS
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.types.errors import InputError
from rooflinekit.model.types.time import Time
from rooflinekit.model.types.workload import Workload
from rooflinekit.version import __version__

__all__ = [
    "Solution", "last_before_violation", "make_solution", "meets", "missed", "refuse_percentiles", "resolved_of",
    "static_times",
]  # fmt: skip

_ALL = 1 << 15  # whole numbers up to which every one is tried
_PROBES = 1025

Test = Callable[[NDArray[np.float64]], NDArray[np.bool_]]


@dataclass(frozen=True)
class Solution:
    """The answer to one inverse question.

    binds: what stops it; at: latencies there [ms]; regained: larger values meet the objectives again, which is not
    counted on.
    """

    version: str
    what: str
    value: float
    unit: str
    answer: str
    model: str
    gpu: str
    subject_to: tuple[str, ...]
    binds: tuple[str, ...]
    at: dict[str, float]
    regained: bool
    scenario: dict[str, Any]
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def last_before_violation(good: Test, low: int, high: int) -> tuple[int | None, bool]:
    """The largest whole number up to `high` below which nothing fails, None if `low` does; and whether more is good.

    Up to 32,768 numbers are all tried. Of more, 1,025 are, and then those between the last good one and the first that
    fails: exact where `good` does not change twice within such a gap.

    >>> last_before_violation(lambda n: n * n <= 1000, 1, 10**6)
    (31, False)
    >>> last_before_violation(lambda n: n != 7, 1, 100)
    (6, True)
    """
    points = np.arange(low, high + 1) if high - low < _ALL else np.unique(np.linspace(low, high, _PROBES).astype(int))
    fine = np.broadcast_to(good(points.astype(float)), points.shape)
    if fine.all():
        return high, False
    at = int(np.argmin(fine))
    again = bool(fine[at:].any())
    if at == 0:
        return None, again
    if points[at] - points[at - 1] == 1:
        return int(points[at - 1]), again
    found, within = last_before_violation(good, int(points[at - 1]), int(points[at]))
    return found, again or within


def resolved_of(model: str | PathLike[str], gpu: str | PathLike[str], given: Mapping[str, Any]) -> Resolved:
    """The deployment that the keywords describe."""
    return resolve(model, gpu, read_deployment(part_of(given, DEPLOYMENT_KEYS)), given.get("calibration"))


def refuse_percentiles(slo: tuple[Objective, ...]) -> None:
    """Raise InputError for an objective on a percentile."""
    for each in slo:
        if each.share is not None:
            raise InputError(f"{each}: a static batch has no percentiles; leave {each.statistic} out, or ask for rate")


def static_times(predictor: Predictor, work: Workload) -> dict[str, Time]:
    """TTFT, TPOT and the time of a whole request."""
    ttft, tpot = predictor.ttft(work), predictor.tpot(work)
    return {"ttft": ttft, "tpot": tpot, "e2el": ttft.plus(tpot, work.osl - 1.0)}


def meets(predictor: Predictor, work: Workload, slo: tuple[Objective, ...]) -> NDArray[np.bool_]:
    """Whether every objective holds; an array where the workload is one."""
    times = static_times(predictor, work)
    met = [np.asarray(times[each.metric].expected) <= each.limit for each in slo]
    return np.asarray(np.logical_and.reduce(np.broadcast_arrays(True, *met)), bool)


def missed(predictor: Predictor, work: Workload, slo: tuple[Objective, ...]) -> list[str]:
    """Objectives that fail."""
    times = static_times(predictor, work)
    return [str(each) for each in slo if float(times[each.metric].expected) > each.limit]


def make_solution(
    resolved: Resolved,
    said: tuple[str, float, str, str],
    slo: tuple[Objective, ...],
    why: tuple[tuple[str, ...], dict[str, float], bool],
) -> Solution:
    """Put an answer together: (what, value, unit, words) and (what binds, latencies, whether more is good again)."""
    (what, value, unit, answer), (binds, at, again) = said, why
    note = "Larger values meet the objectives again, but one below them does not: they are not counted on."
    plan = resolved.plan
    return Solution(
        __version__, what, value, unit, f"{answer} {note}" if again else answer, plan.model.name,
        plan.system.accelerator.name, tuple(map(str, slo)), binds, at, again, {}, resolved.warnings,
    )  # fmt: skip
