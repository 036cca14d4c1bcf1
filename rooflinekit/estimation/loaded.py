"""A played load as `Estimate` states it: rates, percentiles, what times are made of and memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rooflinekit.estimation.results import LoadResult
from rooflinekit.load.answer import LoadPlay, play_load
from rooflinekit.load.lengths import LogNormal
from rooflinekit.load.played import PERCENTILES
from rooflinekit.model.capacity import Memory
from rooflinekit.model.roofline import TIME_PARTS, time_parts
from rooflinekit.model.step import Plan
from rooflinekit.model.types.units import format_time
from rooflinekit.specs.doubt import nearest_measured

TOKEN_PARTS = (*("engine" if name == "host" else name for name in TIME_PARTS), "prompts")
"""Parts of the mean time of an output token: parts of a decode step, and prompts of others."""

FEWER = "{crowd} of {users} users have a request to send; the others send none"
"""Note where a closed loop has more users than requests."""

_FIFTH = 0.2  # variation of lengths beside which equal ones are set


def load_result(found: LoadPlay) -> LoadResult:
    """Latencies in ms and requests a second of a load."""
    asked, done, stable = found.asked, found.played, found.stable
    counted = int(done.counted.sum())
    percentiles = {
        f"{metric}_ms": {name: 1e3 * found.quantile(metric, share) for name, share in PERCENTILES.items()}
        for metric in ("ttft", "tpot", "e2e")
    }
    parts, encoders = done.first_parts, found.scene.front.encoders
    wanted = asked.ttft is not None or asked.tpot is not None
    good = done.good(asked.ttft, asked.tpot) / max(counted, 1) * found.rate
    busy = done.now * done.rules.replicas
    return LoadResult(
        arrivals=asked.arrivals,
        stable=stable,
        running=done.running,
        slots=found.places,
        rate=found.rate,
        knee_rate=found.knee,
        prompt_share=float(done.replicas["delays"].sum()) / busy if busy else 0.0,
        queue_ms=1e3 * (parts.behind + parts.place),
        percentiles=percentiles,
        slo={
            f"{key}_ms": None if goal is None else 1e3 * goal
            for key, goal in (("ttft", asked.ttft), ("tpot", asked.tpot))
        },
        goodput=good if wanted else None,
        encoders_busy=min(done.encoding / encoders.gpus / done.now, 1.0) if encoders else None,
        encoders_wait_ms=1e3 * done.encoder_wait / done.arrived if encoders else None,
        errors={f"{metric}_ms": found.errors(metric) for metric in ("ttft", "tpot", "e2e")},
        ttft_parts_ms={name: 1e3 * part for name, part in parts._asdict().items()},
        tpot_parts_ms=token_parts(found),
        others_spans=done.others_spans,
        requests=counted,
        warmup=asked.filling,
        makespan_s=done.makespan,
    )


def token_parts(found: LoadPlay) -> dict[str, float]:
    """Parts of the mean time of an output token [ms]: a decode step in its parts, and prompts of others."""
    step = time_parts(found.decode, found.predictor.plan.system.accelerator)
    whole = sum(step.values(), 0.0)
    parts = {name: float(1e3 * found.tokens.step * part / whole) for name, part in step.items()}
    return dict(zip(TOKEN_PARTS, (*parts.values(), 1e3 * found.tokens.prompts), strict=True))


def load_memory(found: LoadPlay) -> Memory:
    """Memory of the running sequences, at their mean length; those that have room, as the engine admits them."""
    isl, osl, model = found.asked.isl.mean, found.asked.osl.mean, found.predictor.memory
    memory = model.evaluate(float(found.held), isl + osl / 2.0, isl)
    if not found.scene.rules.reserves:
        return memory
    return replace(memory, max_batch=model.max_batch(isl + osl, isl))


def version_notes(plan: Plan) -> Iterator[str]:
    """Say where loads of the engine's version were not measured."""
    deployment = plan.deployment
    near = nearest_measured(deployment.engine, deployment.engine_version)
    if near is not None and near.releases and plan.calibration is not None:
        yield (
            f"loads of {deployment.engine} {deployment.engine_version} were not measured; the nearest version is "
            f"{near.version}, and the intervals grow with each release between ({near.releases:.0f})"
        )


def load_notes(found: LoadPlay) -> Iterator[str]:
    """Notes for the reader of a played load: overload, users who wait for a place, users who move in step."""
    asked, done, places = found.asked, found.played, found.places
    yield from version_notes(found.predictor.plan)
    if not found.stable:
        yield (
            f"overload: {asked.rate:.4g} requests/s arrive, {found.knee:.4g} are served. First tokens wait the "
            f"longer, the longer it lasts: up to {float(done.ttft.max()):.3g} s in the {done.now:.3g} s played"
        )
    if asked.at_once < (asked.users or 0):
        yield FEWER.format(crowd=asked.at_once, users=asked.users)
    if asked.at_once > places:
        why = ": the engine admits a request where its whole answer has room" if done.rules.reserves else ""
        yield f"{places} of {asked.at_once} requests run at a time; the others wait for a place{why}"
    if asked.equal:
        yield (
            "equal lengths keep users in step, so that prompts come together; with lengths that vary by a fifth, "
            f"{_varied(found)}"
        )


def _varied(found: LoadPlay) -> str:
    """Note on the times of lengths that vary by a fifth."""
    asked = found.asked
    isl, osl = (LogNormal(each.mean, _FIFTH) for each in (asked.isl, asked.osl))
    other = play_load(found.predictor, replace(asked, isl=isl, osl=osl))
    return f"TTFT is {format_time(other.samples['ttft'].mean)} and TPOT {format_time(other.tpot)}"
