"""Encoders of images on accelerators of their own, beside the steps of the model.

    w    = min(k, N)           accelerators that share the k images of a request, N in all
    s    = t(⌈k/w⌉)            an accelerator encodes its images of a request together

The proxies of vLLM's and SGLang's encoders deal the images of a request over all of them, and the prompt waits for all.
"""

from __future__ import annotations

from collections.abc import Mapping

from rooflinekit.model.apart import Elsewhere
from rooflinekit.model.kernels.operation import Operation
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.power import Energy, idle_energy
from rooflinekit.model.roofline import StepTime
from rooflinekit.model.step import Plan
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.frozen import dataclass, replace
from rooflinekit.model.types.hardware import PowerLaw
from rooflinekit.model.types.time import NOTHING, Time
from rooflinekit.model.vision import OfImages


@dataclass(frozen=True)
class Encoders:
    """Accelerators of the encoder, and what a request asks of them.

    gpus: accelerators; parts: how many of them have a part of a request's images, with its time, the longest first;
    send: the way of the embeddings.
    """

    gpus: int
    parts: tuple[tuple[int, StepTime], ...]
    send: Time

    def energy(self, plan: Plan, law: PowerLaw) -> Energy:
        """Energy that a request takes of the encoders beyond idling, which they do at all other times."""
        busy = sum((count * each.expected for count, part in self.parts for each in part.kernels), 0.0)
        parts = (plan.energy(each).times(float(count)) for count, part in self.parts for each in part.kernels)
        return sum(parts, Energy()) + idle_energy(law, -busy, serving=False)


def served(predictor: Predictor) -> Predictor:
    """The predictor under load: separate encoders work beside the steps of the model, and are in none of them."""
    plan = predictor.plan.under_load
    return predictor if plan is predictor.plan else replace(predictor, plan=plan)


def encoders_of(plan: Plan) -> Encoders | None:
    """The encoders of a plan as `served` gives it; None where images are encoded in the steps of the model."""
    if not plan.encoders or (images := plan.deployment.images) is None:
        return None
    sharing = min(images.count, plan.deployment.encoder_gpus)
    whole, more = divmod(images.count, sharing)
    shares = [(more, whole + 1), (sharing - more, whole)]
    away = ((op.held, count) for op, count in plan.encoders.items() if isinstance(op, Elsewhere))
    tower = [(op, count) for op, count in away if isinstance(op, OfImages)]
    parts = tuple(
        (count, _alone(plan, {replace(op, sequences=op.sequences * own / images.count): n for op, n in tower}))
        for count, own in shares
        if count
    )
    links = min(plan.deployment.stage, sharing)
    way: dict[Operation, int] = {
        replace(op, sequences=1.0 / links): n for op, n in plan.encoders.items() if isinstance(op, OfImages)
    }
    return Encoders(plan.deployment.encoder_gpus, parts, _alone(plan, way).total if way else NOTHING)


def _alone(plan: Plan, operations: Mapping[Operation, int]) -> StepTime:
    """Time of these operations for one request in a step of their own: of the engine, launches alone."""
    costs = replace(
        plan.engine.costs, step=0.0, ranks=0.0, sequence=0.0, sequence_ranks=0.0, layer=0.0, graph_tokens=0.0
    )
    deployment = replace(plan.deployment, two_batch=False)
    bare = replace(plan, operations=operations, deployment=deployment, engine=replace(plan.engine, costs=costs))
    return bare.time(Batch.prefill(1.0, 1.0))
