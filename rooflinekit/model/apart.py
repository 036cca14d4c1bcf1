"""Parts of a model on accelerators of their own: feed-forward blocks, or the tower that encodes images.

Attention-FFN disaggregation (MegaScale-Infer, arXiv:2504.02263; Step-3, arXiv:2507.19427): attention, its cache and the
router keep the tokens. In every layer a token goes to the accelerators of its feed-forward block and back, while other
microbatches compute. Encoders apart (vLLM's disaggregated encoder, SGLang's EPD): embeddings of images travel once.
"""

from __future__ import annotations

from rooflinekit.model.graph.symbol import about
from rooflinekit.model.kernels.collective import (
    Collective,
    Exchange,
    Tiers,
    exchange_kernel,
    group_share,
    payload_bytes,
    tiers,
)
from rooflinekit.model.kernels.operation import Operation, Step, Wrapped
from rooflinekit.model.shard import Shard
from rooflinekit.model.types.frozen import dataclass, field, replace
from rooflinekit.model.types.kernel import Kernel
from rooflinekit.model.types.model import MixtureOfExperts
from rooflinekit.model.types.numeric import ceil_div
from rooflinekit.model.vision import OfImages

ROUTED = ("router", "expert_select")
"""Operation that stays with the tokens: it says where each of them goes."""


@dataclass(frozen=True, slots=True)
class Elsewhere(Wrapped):
    """An operation on another group of accelerators, whose `replicas` share the tokens of all attention replicas.

    images: each prompt brings so many, of which each replica takes whole ones.
    """

    place: str
    replicas: int
    images: int = 0

    def kernels(self, step: Step, count: int) -> list[Kernel]:
        """Kernels of the operation over a replica's share."""
        share = step.replicas / self.replicas
        seen = replace(step, batch=step.batch.shared(share), replicas=self.replicas, context_ranks=1)
        if self.images and (prompts := seen.batch.prefilling):
            whole = ceil_div(prompts.count * self.images, 1.0) / self.images
            seen = replace(seen, batch=replace(seen.batch, prefilling=replace(prompts, count=whole)))
        held, mark = self.held.kernels(seen, count), "ffn_" if self.place == "ffn" else ""
        return [replace(kernel, place=self.place, name=f"{mark}{kernel.name}") for kernel in held]


@dataclass(frozen=True, slots=True)
class Handover(Operation):
    """Tokens of all replicas to the accelerators of their feed-forward block, or results back.

    Nobody published times of libraries that do this (M2N, StepMesh): DeepEP's, which send tokens to the ranks of their
    experts, stand in. Each direction has its own lanes.
    """

    name: str
    width: int = field(metadata=about("D", "elements of a token"))
    element: float = field(metadata=about("b", "bytes of an element on its way", "B"))
    copies: float = field(metadata=about("c", "copies of a token: groups of experts that it visits"))
    ends: int = field(metadata=about("n", "accelerators of the smaller group"))
    gpus: int = field(metadata=about("g", "accelerators of both groups"))
    experts: int = field(metadata=about("E", "experts, or 1 block"))
    sent: Tiers = Tiers(1.0)  #: through a scale-up domain, or beyond

    def kernels(self, step: Step, count: int) -> list[Kernel]:
        """One launch; each accelerator of the smaller group has its share of the tokens."""
        tokens = step.tokens * step.replicas / self.ends
        payload = payload_bytes(tokens * self.copies, self.width, self.element)
        like = _LIKE[self.name], step, count, tokens, self.experts, self.gpus, payload, self.sent
        return [replace(exchange_kernel(self.name, *like), place=self.name)]


_LIKE = {"ffn_send": "dispatch", "ffn_return": "combine"}


def feed_forward_shard(shard: Shard) -> Shard:
    """Shard of feed-forward blocks on accelerators of their own: `ep` groups, each block cut over those of a group."""
    asked = shard.deployment
    own = replace(asked, tp=asked.ffn_tp, dp=asked.ep, ffn_gpus=0, all_to_all="deepep")  # none but chosen pairs come
    return replace(shard, deployment=own)


def sent_away(block: object, inner: list[Operation], shard: Shard, dispatched: float) -> list[Operation]:
    """A feed-forward block, laid out as `inner`, on its own accelerators, with what brings the tokens and results.

    A token goes once to each group that has any of its experts. There each of the group's ranks gets its share, and an
    all-reduce stands for gathering the tokens and scattering the results; here an all-gather brings them together.
    """
    asked, there, stream = shard.deployment, feed_forward_shard(shard), shard.precision.stream.bytes
    copies, experts, element = 1.0, 1, stream
    if isinstance(block, MixtureOfExperts):
        copies = asked.ep * group_share(block.experts, block.top_k, asked.ep)
        experts, element = block.experts, dispatched
    ends, way = min(asked.stage, asked.ffn_gpus), tiers("send", 2, asked.gpus, shard.domain)
    to = Handover("ffn_send", shard.hidden, element, copies, ends, asked.joined, experts, way)
    back = replace(to, name="ffn_return", element=stream)
    own = [op for op in inner if not isinstance(op, Exchange)]
    if there.tp > 1:
        own.append(there.joined("all_reduce", "all_reduce", copies * shard.hidden))
    here = [op for op in own if getattr(op, "name", "") in ROUTED]
    away: list[Operation] = [Elsewhere(op, "ffn", asked.ep) for op in own if op not in here]
    gather = [shard.joined("ffn_gather", "all_gather", shard.hidden)] if shard.tp > 1 else []
    return [*here, to, *away, back, *gather]


def encoded_away(
    tower: list[tuple[list[Operation], int]], shard: Shard, images: int, embeddings: int
) -> list[tuple[list[Operation], int]]:
    """The tower on its own accelerators, each of which takes whole images, and the way of the embeddings."""
    asked = shard.deployment
    sent = Collective(_SENT, "send", 2, shard.hidden, tiers("send", 2, asked.gpus, shard.domain))
    way = OfImages(sent, asked.dp / min(asked.stage, asked.encoder_gpus), embeddings)
    runs: list[tuple[list[Operation], int]] = [
        ([Elsewhere(op, "encoder", asked.encoder_gpus, images) for op in ops], count) for ops, count in tower
    ]
    return [*runs, ([way], 1)]


_SENT = "image_send"


def of_encoders(op: Operation) -> bool:
    """True if this is of accelerators that encode images, or the way of the embeddings from them."""
    if isinstance(op, Elsewhere):
        return op.place == "encoder"
    return isinstance(op, OfImages) and isinstance(op.held, Collective) and op.held.name == _SENT
