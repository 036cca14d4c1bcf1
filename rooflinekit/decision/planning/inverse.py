"""Questions the other way round: the largest batch, context, rate or number of users within objectives."""

from __future__ import annotations

import math
from dataclasses import replace
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rooflinekit.decision.planning.demand import Demand, read_demand
from rooflinekit.decision.planning.objective import Objective, parse_objectives, refuse_undecoded
from rooflinekit.decision.planning.replica import ability, feel, lay_out
from rooflinekit.decision.planning.solution import (
    Solution,
    last_before_violation,
    make_solution,
    meets,
    missed,
    refuse_percentiles,
    resolved_of,
    static_times,
)
from rooflinekit.estimation.estimator import Resolved, read_workload
from rooflinekit.estimation.options import part_of, read
from rooflinekit.estimation.scenario import DEPLOYMENT_KEYS, LoadCase, StaticCase
from rooflinekit.model.types.errors import DoesNotFitError, InfeasibleError, UnknownNameError
from rooflinekit.model.types.numeric import Numeric
from rooflinekit.model.types.units import format_time
from rooflinekit.model.types.workload import Workload

__all__ = ["LARGEST", "largest"]

LARGEST = ("batch", "context", "rate", "users")
_WAITING = 64  # users for each one that runs, up to which a limit on waiting is searched


def largest(
    what: str, model: str | PathLike[str], gpu: str | PathLike[str] = "h100-sxm", subject_to: str = "", **scenario: Any
) -> Solution:
    """The largest batch, context, rate or number of users that one deployment serves within objectives.

    Args:
        what: batch (a static batch of isl and osl), context (tokens of each sequence of a static batch, osl of them
            out), rate [requests/s] or users (under load).
        model: a model's name or path.
        gpu: an accelerator's name or path.
        subject_to: objectives, such as "tpot<30ms, ttft<500ms"; percentiles under load alone. "" asks for memory (or
            the knee) alone.
        **scenario: batch, isl, osl, cached; cv of the gaps under load; the deployment as `estimate` takes it;
            calibration.

    Returns:
        A `Solution`: the largest value below the first violation.

    Raises:
        InputError: (and its kinds) for anything that makes no sense; DoesNotFitError if not one request fits;
            InfeasibleError if even the smallest value fails: it says what the datasheet bound is.

    >>> largest("batch", "llama-3-8b", subject_to="tpot<10ms", isl=2048, osl=1, calibration="none").value
    68.0
    """
    if what not in LARGEST:
        raise UnknownNameError("quantity", what, LARGEST)
    slo = parse_objectives(subject_to) if subject_to.strip() else ()
    given = read(LoadCase if what in ("rate", "users") else StaticCase, scenario)
    if what in ("rate", "users"):
        return _under_load(what, str(model), str(gpu), slo, given)
    refuse_percentiles(slo)
    resolved = resolved_of(model, gpu, given)
    work = read_workload(given)[0]
    found = _batch(resolved, work, slo) if what == "batch" else _context(resolved, work, slo)
    return replace(found, scenario={"model": str(model), "gpu": str(gpu), **given})


def _batch(resolved: Resolved, work: Workload, slo: tuple[Objective, ...]) -> Solution:
    predictor = resolved.predictor
    room = int(predictor.memory.max_batch(work.isl + work.osl, work.isl - work.cached))
    if room < 1:
        raise DoesNotFitError(_no_room(resolved, float(work.isl + work.osl)))
    value, again = last_before_violation(lambda n: meets(predictor, replace(work, batch=n), slo), 1, room)
    if value is None:
        raise _no_solution(resolved, "batch 1", replace(work, batch=1.0), slo)
    stops = missed(predictor, replace(work, batch=value + 1.0), slo) if value < room else ["memory"]
    return _static(resolved, ("batch", "sequences"), replace(work, batch=float(value)), slo, (value, stops, again))


def _context(resolved: Resolved, work: Workload, slo: tuple[Objective, ...]) -> Solution:
    predictor, least = resolved.predictor, int(work.osl) + 1 + int(work.cached)
    most = int(min(float(predictor.memory.max_context(1.0, 1.0)), 1e7))
    if most < least:
        raise DoesNotFitError(_no_room(resolved, float(least)))

    def at(context: Numeric) -> Workload:
        return replace(work, isl=context - work.osl)

    def good(context: NDArray[np.float64]) -> NDArray[np.bool_]:
        now = at(context)
        held = predictor.memory.evaluate(work.batch, context, now.isl - work.cached)
        fits = np.asarray(held.fits) > 0
        limit = predictor.plan.model.max_context
        return fits & (context <= (limit or math.inf)) & meets(predictor, now, slo)

    value, again = last_before_violation(good, least, most)
    if value is None:
        if not bool(predictor.memory.evaluate(work.batch, float(least), 1.0).fits):
            raise DoesNotFitError(_no_room(resolved, float(least), int(work.batch)))
        raise _no_solution(resolved, f"a context of {least}", at(float(least)), slo)
    stops = missed(predictor, at(value + 1.0), slo)
    limit = predictor.plan.model.max_context
    stops = stops or ([f"{predictor.plan.model.name}'s own maximum"] if value == limit else ["memory"])
    return _static(resolved, ("context", "tokens"), at(float(value)), slo, (value, stops, again))


def _static(
    resolved: Resolved,
    what: tuple[str, str],
    work: Workload,
    slo: tuple[Objective, ...],
    found: tuple[int, list[str], bool],
) -> Solution:
    (name, unit), (value, stops, again) = what, found
    at = {f"{key}_ms": float(time.expected) * 1e3 for key, time in static_times(resolved.predictor, work).items()}
    inside = f"batch {work.batch:.0f}, {work.isl:,.0f} tokens in, {work.osl:,.0f} out"
    answer = (
        f"The largest {name} is {value:,}: {' and '.join(stops)} stops more. "
        f"There ({inside}) TTFT is {format_time(at['ttft_ms'] / 1e3)} and TPOT "
        f"{format_time(at['tpot_ms'] / 1e3)}."
    )
    return make_solution(resolved, (name, float(value), unit, answer), slo, (tuple(stops), at, again))


def _no_room(resolved: Resolved, tokens: float, batch: int = 1) -> str:
    plan, memory = resolved.plan, resolved.predictor.memory
    held = memory.evaluate(float(batch), tokens, 1.0)
    return (
        f"no solution: {plan.model.name} on {plan.deployment.gpus} x {plan.system.accelerator.name} has no room for "
        f"{batch} sequence{'s' if batch > 1 else ''} of {tokens:,.0f} tokens (weights take "
        f"{float(held.weight_bytes) / 1e9:.1f} of {float(held.capacity_bytes) / 1e9:.1f} GB a GPU); raise tp"
    )


def _no_solution(resolved: Resolved, where: str, work: Workload, slo: tuple[Objective, ...]) -> InfeasibleError:
    """Why even the least fails, and whether the datasheet allows it."""
    times = static_times(resolved.predictor, work)
    words = []
    for each in slo:
        time, bound = (float(getattr(times[each.metric], part)) * 1e3 for part in ("expected", "bound"))
        if time <= each.limit * 1e3:
            continue
        verdict = "so no engine can do it" if bound > each.limit * 1e3 else "so it is not out of reach of the hardware"
        words.append(f"{each.metric.upper()} is {time:.4g} ms (datasheet bound {bound:.4g} ms, {verdict})")
    return InfeasibleError(f"no solution: already with {where} {' and '.join(words)}; {', '.join(map(str, slo))} asked")


def _under_load(what: str, model: str, gpu: str, slo: tuple[Objective, ...], given: dict[str, Any]) -> Solution:
    cv = {"cv": given["burstiness"]} if "burstiness" in given else {}
    lengths = part_of(given, ("isl", "osl"))
    probe = read_demand({"rate": 1.0, **lengths, **cv} if what == "rate" else {"users": 1, **lengths})
    refuse_undecoded(slo, probe.osl.mean)
    replica = lay_out(model, gpu, part_of(given, DEPLOYMENT_KEYS), probe, given.get("calibration"))
    demand = probe if what == "rate" else _many(probe, replica.room, slo)
    able = ability(replica, demand, slo)
    if able.load <= 0.0:
        felt = feel(replica.answer(demand, 1.0 if demand.closed else 1e-6))
        words = [f"{each} is missed with {each.value(felt) * 1e3:.4g} ms" for each in slo if not each.met(felt)]
        raise InfeasibleError(f"no solution: even without waiting {' and '.join(words)}")
    felt = feel(replica.answer(demand, able.load))
    at = {f"{key}_ms": value * 1e3 for key, value in felt.means.items()}
    at |= {f"{each.statistic}_{each.metric}_ms": each.value(felt) * 1e3 for each in slo if each.share is not None}
    stops = tuple("places: no more run at once" if why == "users" else why for why in able.binds)
    number = f"{able.load:,.0f}" if demand.closed else f"{able.load:,.4g}"
    named = f"number of users is {number}" if demand.closed else f"rate is {number} {demand.unit}"
    answer = f"The largest {named}: {' and '.join(stops)} stops more."
    found = make_solution(replica.resolved, (what, able.load, demand.unit, answer), slo, (stops, at, able.regained))
    return replace(found, scenario={"model": model, "gpu": gpu, **given})


def _many(probe: Demand, room: float, slo: tuple[Objective, ...]) -> Demand:
    """Users up to those that run at once; more where an objective limits how long they wait."""
    waits = any(each.metric != "tpot" for each in slo)
    return replace(probe, users=room * (_WAITING if waits else 1))
