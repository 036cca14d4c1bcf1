"""Doubts of an answer: the widest part of its intervals, and their ends after one measured run of one's own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rooflinekit.estimation.results import DoubtResult
from rooflinekit.model.roofline import StepTime
from rooflinekit.model.step import Plan
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.engine import ROOM, OwnLoads, Reach
from rooflinekit.model.types.time import Time
from rooflinekit.specs.doubt import nearest_measured

if TYPE_CHECKING:
    from rooflinekit.load.answer import LoadPlay

FAMILIES = {
    "gemm": "matrix products",
    "moe": "experts",
    "attention_prefill": "attention of prompts",
    "attention_decode": "decode attention",
    "mla_prefill": "latent attention of prompts",
    "mla_decode": "latent decode attention",
    "sparse_attention": "sparse attention",
    "linear_attention": "linear attention",
    "collective": "collectives",
    "exchange": "the exchange of experts",
    "host": "the engine's own time",
}
OTHERS = "small kernels"
"""Kernels of all other families."""

CAUSE_WORDS = {
    "loads": "how clients and servers are set up",
    "stand_in": "no measurements of this accelerator with this engine",
    "few_users": "hosts, at few users",
    "many_users": "queues of many users",
    "full": "waits for a place in a full engine",
    ROOM: "a cache a few percent smaller or larger decides whether users wait",
}


def widest_part(step: StepTime) -> str:
    """The kernels whose interval is the widest in a step, in words; all of a family together."""
    spans: dict[str, float] = defaultdict(float)
    for each in step.kernels:
        spans[FAMILIES.get(each.kernel.family, OTHERS)] += float(each.high - each.low)
    return max(spans, key=lambda words: spans[words])


def static_doubts(prompt: StepTime, decode: StepTime) -> dict[str, DoubtResult]:
    """The widest part of a static batch's interval: the kernels with the widest one, of a step."""
    return {
        f"{metric}_ms": DoubtResult(widest_part(step), None) for metric, step in (("ttft", prompt), ("tpot", decode))
    }


def load_doubts(found: LoadPlay, reaches: Mapping[str, Reach]) -> dict[str, DoubtResult]:
    """The widest part of a played load's intervals, and the 80 % interval after one run of one's own [ms]."""
    plan, steps = found.predictor.plan, {"ttft": found.prompt, "tpot": found.decode}
    times = dict(zip(("ttft", "tpot"), found.times()[:2], strict=True))
    return {
        f"{metric}_ms": DoubtResult(
            _said(reach, plan, steps[metric]), _after_one(plan.load_errors.own, metric, reach, times[metric])
        )
        for metric, reach in reaches.items()
    }


def _said(reach: Reach, plan: Plan, step: StepTime) -> str:
    """The largest part of the variance in words."""
    cause = max(reach.causes, key=lambda name: reach.causes[name])
    if cause == "version":
        return version_words(plan.deployment)
    return widest_part(step) if cause == "steps" else CAUSE_WORDS[cause]


def version_words(deployment: Deployment) -> str:
    """The version of the engine, and the nearest one whose loads were measured."""
    near = nearest_measured(deployment.engine, deployment.engine_version)
    return f"{deployment.engine} {deployment.engine_version}: the nearest measured is {near.version if near else '-'}"


def _after_one(own: OwnLoads, metric: str, reach: Reach, time: Time) -> list[float] | None:
    """The 80 % interval with one load measured [ms]; None where there is one, or nobody knows what it would say.

    Nothing is faster than the bound.
    """
    if own.loads or getattr(own, metric) == (0.0, 0.0):
        return None
    low, high = reach.knowing(own.after_one(metric), 0.0).factors(0.8)
    expected, least = float(time.expected), float(time.bound)
    return [1e3 * max(expected * low, least), 1e3 * expected * high]
