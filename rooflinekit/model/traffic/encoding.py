"""Encoders of images on accelerators of their own under load: a queue of requests before the prompts.

    w    = min(k, N)                                   accelerators that share the k images of a request, N in all
    s    = t(⌈k/w⌉)                                    an accelerator encodes its images of a request together
    ρ_e  = λ·Σt/N                                      Σt: all parts of a request; 1 at the knee of the encoders
    wait = v/2·(s·w/N)·ρ_e^(√(2(N/w + 1)) − 1)/(1 − ρ_e)    Sakasegawa; v: squared variation of the gaps; none of s
    TTFT = request + wait + s + t(send) + …            what follows finds a request without images to encode
    ahead = max(ahead − wait, 0)                        who waited here does not wait again behind the same prompts

Queues in a row whose servers take the same for all make a request wait no longer than the longest of them alone
(Friedman 1965, doi:10.1287/opre.13.1.121): those that come together leave the encoders one after the other.

The proxies of vLLM's and SGLang's encoders deal the images of a request over all of them, and the prompt waits for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from rooflinekit.model.apart import Elsewhere
from rooflinekit.model.graph import fact, named
from rooflinekit.model.kernels.operation import Operation
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.power import Energy, idle_energy
from rooflinekit.model.roofline import StepTime
from rooflinekit.model.step import Plan
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.model.types.hardware import PowerLaw
from rooflinekit.model.types.numeric import Numeric, maximum, minimum, sqrt
from rooflinekit.model.types.time import NOTHING, KernelTime, Time
from rooflinekit.model.vision import OfImages

FULL = 1.0 - 1e-6
"""Load at which a wait is taken at most: it grows as 1/(1 − load), without end towards 1."""


def queue_wait(load: Numeric, servers: Numeric, held: Numeric, variation: Numeric) -> Numeric:
    """Mean wait for one of so many servers, each held for `held` seconds (Sakasegawa, doi:10.1007/BF02480951) [s].

    variation: mean of the squared variations of gaps and of times; one server is then Kingman's formula.

    >>> queue_wait(0.5, 1.0, 2.0, 0.5), round(queue_wait(0.5, 4.0, 2.0, 0.5), 3)
    (1.0, 0.112)
    """
    return variation * held / servers * load ** (sqrt(2.0 * (servers + 1.0)) - 1.0) / (1.0 - load)


@dataclass(frozen=True)
class Encoded:
    """What a request finds at the encoders [s].

    time: its images and the way of their embeddings; wait: behind the images of others; waits: chance of that;
    apart: between requests where encoders never rest.
    """

    time: Time
    wait: Numeric
    waits: Numeric
    apart: Numeric

    @property
    def whole(self) -> Numeric:
        """Until the embeddings have come [s]."""
        return self.wait + self.time.expected

    def burst(self, crowd: Numeric) -> Numeric:
        """Mean wait where `crowd` users send at once, each behind half of the others [s]."""
        return maximum(crowd - 1.0, 0.0) / 2.0 * self.apart

    def begun(self, crowd: Numeric, share: Numeric) -> Encoded:
        """The mean with a share of the requests that `crowd` users send at once."""
        wait = self.wait + share * (self.burst(crowd) - self.wait)
        return replace(self, wait=named(wait, "images_wait", "for an accelerator of the encoder, first ones included"))


@dataclass(frozen=True)
class Encoders:
    """Accelerators of the encoder, and what a request asks of them.

    gpus: accelerators; parts: how many of them have a part of a request's images, with its time, the longest first;
    send: the way of the embeddings.
    """

    gpus: int
    parts: tuple[tuple[int, StepTime], ...]
    send: Time

    @property
    def sharing(self) -> int:
        """Accelerators that share a request."""
        return sum(count for count, _ in self.parts)

    @property
    def spent(self) -> Numeric:
        """Seconds of accelerators that a request takes."""
        return sum((count * part.expected for count, part in self.parts), 0.0)

    @property
    def apart(self) -> Numeric:
        """Least time from one request to the next in the mean, the knee's inverse [s]."""
        each = self.spent / fact(self.gpus, "encoder_gpus", "accelerators of the encoder", source="the question")
        return named(each, "apart", "from one encoded request to the next, where encoders never rest", "s")

    @property
    def time(self) -> Time:
        """Of the images of a request that waits for nobody, and of the way of its embeddings."""
        whole = self.parts[0][1].total.plus(self.send)
        return whole.named("encoded", "the images of the prompt on their accelerators, and the way of the embeddings")

    def at_bound(self) -> Encoders:
        """The same at the datasheet's rates."""
        parts = ((count, StepTime(tuple(_bound(part)))) for count, part in self.parts)
        return Encoders(self.gpus, tuple(parts), self.send.at_bound())

    def beside(self, rate: Numeric, gaps: Numeric) -> Encoded:
        """A request among `rate` others a second, whose gaps vary so."""
        busy = named(minimum(rate * self.apart, FULL), "rho_e", "share of the time in which encoders work")
        servers, held = self.gpus / self.sharing, self.parts[0][1].expected
        wait = queue_wait(busy, servers, held, gaps**2 / 2.0)
        wait = named(wait, "images_wait", "for an accelerator of the encoder (Sakasegawa 1977)", "s")
        return Encoded(self.time, wait, busy ** (sqrt(2.0 * (servers + 1.0)) - 1.0), self.apart)

    def energy(self, plan: Plan, law: PowerLaw) -> Energy:
        """What a request takes of them beyond idling, which they do at all other times."""
        busy = sum((count * each.expected for count, part in self.parts for each in part.kernels), 0.0)
        parts = (plan.energy(each).times(float(count)) for count, part in self.parts for each in part.kernels)
        return sum(parts, Energy()) + idle_energy(law, -busy)


def served(predictor: Predictor) -> Predictor:
    """The same under load: encoders of their own work beside the steps of the model, and are in none of them."""
    plan = predictor.plan.under_load
    return predictor if plan is predictor.plan else replace(predictor, plan=plan)


def encoders_of(plan: Plan) -> Encoders | None:
    """The encoders of a plan as `served` gives it; None where images are encoded in the steps of the model."""
    if not plan.encoders or (images := plan.deployment.images) is None:
        return None
    sharing = min(images.count, plan.deployment.encoder_gpus)
    whole, more = divmod(images.count, sharing)
    shares = [(more, whole + 1), (sharing - more, whole)]
    parts = tuple((count, _alone(plan, _tower(plan, own, images.count))) for count, own in shares if count)
    links = min(plan.deployment.stage, sharing)
    way: dict[Operation, int] = {
        replace(op, sequences=1.0 / links): n for op, n in plan.encoders.items() if isinstance(op, OfImages)
    }
    return Encoders(plan.deployment.encoder_gpus, parts, _alone(plan, way).total if way else NOTHING)


def _tower(plan: Plan, own: int, images: int) -> dict[Operation, int]:
    """The tower over so many of the images of a request, on one accelerator."""
    held = ((op.held, count) for op, count in plan.encoders.items() if isinstance(op, Elsewhere))
    return {replace(op, sequences=op.sequences * own / images): n for op, n in held if isinstance(op, OfImages)}


def _alone(plan: Plan, operations: Mapping[Operation, int]) -> StepTime:
    """These operations for one request in a step of their own: of the engine, launches alone."""
    costs = replace(
        plan.engine.costs, step=0.0, ranks=0.0, sequence=0.0, sequence_ranks=0.0, layer=0.0, graph_tokens=0.0
    )
    deployment = replace(plan.deployment, two_batch=False)
    bare = replace(plan, operations=operations, deployment=deployment, engine=replace(plan.engine, costs=costs))
    return bare.time(Batch.prefill(1.0, 1.0))


def _bound(part: StepTime) -> Iterator[KernelTime]:
    for each in part.kernels:
        yield replace(each, expected=each.bound, low=each.bound, high=each.bound)
