"""The least that suffices: memory bandwidth, accelerators, and the price at which another accelerator is as cheap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from os import PathLike
from typing import Any

from rooflinekit.decision.planning.answer import PlanAnswer
from rooflinekit.decision.planning.front import plan
from rooflinekit.decision.planning.objective import Objective, parse_objectives
from rooflinekit.decision.planning.solution import (
    Solution,
    make_solution,
    meets,
    refuse_percentiles,
    resolved_of,
    static_times,
)
from rooflinekit.estimation.estimator import Resolved, read_workload
from rooflinekit.estimation.options import read
from rooflinekit.estimation.scenario import StaticCase
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.types.errors import DoesNotFitError, InfeasibleError, InputError
from rooflinekit.model.types.units import format_rate
from rooflinekit.model.types.workload import Workload
from rooflinekit.specs import load_accelerator
from rooflinekit.version import __version__

__all__ = ["BreakEven", "break_even_prices", "fewest_gpus", "required_bandwidth"]

_FASTEST = 1e3  # times the bandwidth there is


def required_bandwidth(
    model: str | PathLike[str], gpu: str | PathLike[str] = "h100-sxm", subject_to: str = "tpot<20ms", **scenario: Any
) -> Solution:
    """The memory bandwidth at which a static batch meets its objectives, all else of the accelerator as it is.

    The calibrated shares of the bandwidth, the launches and the network stay, so that beyond some bandwidth nothing is
    gained. Times fall with the bandwidth, so bisection finds it.

    Raises InputError (and its kinds) for anything that makes no sense, InfeasibleError where no bandwidth suffices.

    >>> solved = required_bandwidth("llama-3-8b", subject_to="tpot<10ms", isl=2047, osl=2, batch=32, calibration="none")
    >>> solved.value > 2e12, solved.value < 3.35e12  # 23.6 GB in 10 ms
    (True, True)
    """
    slo = parse_objectives(subject_to)
    refuse_percentiles(slo)
    given = read(StaticCase, scenario)
    resolved = resolved_of(model, gpu, given)
    work = read_workload(given)[0]
    now = float(resolved.plan.system.accelerator.memory_bandwidth)

    def good(bandwidth: float) -> bool:
        return bool(meets(_with_bandwidth(resolved.predictor, bandwidth), work, slo))

    if not good(now * _FASTEST):
        raise _no_bandwidth(resolved, work, slo, now)
    low, high = now / _FASTEST, now * _FASTEST
    while high - low > 1e-9 * high:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if good(middle) else (middle, high)
    times = static_times(_with_bandwidth(resolved.predictor, high), work)
    at = {f"{key}_ms": float(time.expected) * 1e3 for key, time in times.items()}
    answer = (
        f"{format_rate(high, 'B/s')} of memory bandwidth meet {', '.join(map(str, slo))}: "
        f"{high / now:.3g} times the {format_rate(now, 'B/s')} of {resolved.plan.system.accelerator.name}."
    )
    found = make_solution(resolved, ("bandwidth", high, "B/s", answer), slo, (("memory bandwidth",), at, False))
    return replace(found, scenario={"model": str(model), "gpu": str(gpu), **given})


def _with_bandwidth(predictor: Predictor, bandwidth: float) -> Predictor:
    plan = predictor.plan
    accelerator = replace(plan.system.accelerator, memory_bandwidth=bandwidth)
    return replace(predictor, plan=replace(plan, system=replace(plan.system, accelerator=accelerator)))


def _no_bandwidth(resolved: Resolved, work: Workload, slo: tuple[Objective, ...], now: float) -> InfeasibleError:
    times = static_times(_with_bandwidth(resolved.predictor, now * _FASTEST), work)
    left = [
        f"{each.metric.upper()} stays at {float(times[each.metric].expected) * 1e3:.4g} ms"
        for each in slo if float(times[each.metric].expected) > each.limit
    ]  # fmt: skip
    return InfeasibleError(
        f"no solution: with a thousand times the bandwidth {' and '.join(left)} (arithmetic, launches and network), "
        f"and {', '.join(map(str, slo))} is asked"
    )


def fewest_gpus(
    model: str | PathLike[str], gpus: str | Sequence[str], slo: str | None = None, **scenario: Any
) -> PlanAnswer:
    """The plan of fewest accelerators, whatever they cost; arguments and answer as of `plan`."""
    return plan(model, gpus, slo, **scenario, by="gpus")


@dataclass(frozen=True)
class BreakEven:
    """The fewest accelerators of each kind for one traffic, and the price at which each is the cheapest.

    rows: gpu, gpus, usd_per_gpu_hour (None: unknown), break_even_usd: at which it costs what the cheapest other costs
    (None: no other has a price), why (of those that cannot).
    """

    version: str
    model: str
    answer: str
    rows: tuple[dict[str, Any], ...]
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def break_even_prices(
    model: str | PathLike[str], gpus: Sequence[str], slo: str | None = None, **scenario: Any
) -> BreakEven:
    """The hourly price at which each accelerator costs as much a token as the cheapest of the others.

    All serve the same traffic within the same objectives (`plan`, with the keywords it takes), so the price of a token
    is equal where that of the fleet is: p·n = p'·n'.

    Raises InputError (and its kinds) for anything that makes no sense, InfeasibleError where fewer than two can serve.

    >>> found = break_even_prices(
    ...     "llama-3-8b", ["h100-sxm", "l40s"], "p95 tpot<50ms", rate=20, tp=[1], prices={"h100-sxm": 3.0},
    ...     confirm=0, disaggregated=False)
    >>> h100, l40s = found.rows
    >>> l40s["break_even_usd"] == 3.0 * h100["gpus"] / l40s["gpus"], h100["break_even_usd"]
    (True, None)
    """
    names = [gpus] if isinstance(gpus, str) else list(gpus)
    if len(names) < 2:
        raise InputError("a break-even price needs at least two gpus to compare")
    own = {**scenario, "mixed": False}
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    for gpu in names:
        prices = {name: price for name, price in dict(scenario.get("prices") or {}).items() if _same(name, gpu)}
        try:
            answer = plan(model, gpu, slo, **{**own, "prices": prices})
        except (InfeasibleError, DoesNotFitError) as error:
            rows.append({"gpu": gpu, "gpus": None, "usd_per_gpu_hour": None, "usd_per_hour": None, "why": str(error)})
            continue
        known = next(iter(answer.prices.values()))
        rows.append({
            "gpu": next(iter(answer.prices)), "gpus": answer.best.gpus,
            "usd_per_gpu_hour": None if known is None else known["usd_per_gpu_hour"],
            "usd_per_hour": answer.best.cost.usd_per_hour, "why": None,
        })  # fmt: skip
        notes += answer.warnings
    return _break_even(str(model), rows, notes)


def _same(name: str, gpu: str) -> bool:
    return load_accelerator(name).value.name == load_accelerator(gpu).value.name


def _break_even(model: str, rows: list[dict[str, Any]], notes: list[str]) -> BreakEven:
    able = [row for row in rows if row["gpus"]]
    if len(able) < 2:
        raise InfeasibleError("no solution: " + "; ".join(f"{r['gpu']}: {r['why']}" for r in rows if r["why"]))
    for row in rows:
        others = [o["usd_per_hour"] for o in able if o is not row and o["usd_per_hour"] is not None]
        row["break_even_usd"] = min(others) / row["gpus"] if others and row["gpus"] else None
    words = [
        f"{row['gpus']} x {row['gpu']} cost as much as the cheapest other at ${row['break_even_usd']:.2f} an hour each"
        + (f" (now ${row['usd_per_gpu_hour']:.2f})" if row["usd_per_gpu_hour"] is not None else "")
        for row in able if row["break_even_usd"] is not None
    ]  # fmt: skip
    answer = "; ".join(words) + "." if words else "no price is known; give one with --price"
    return BreakEven(__version__, model, answer, tuple(rows), tuple(dict.fromkeys(notes)))
