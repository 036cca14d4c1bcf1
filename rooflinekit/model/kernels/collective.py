"""Communication between accelerators: bytes that one of them sends, over the links of its domain and over its NIC."""

from __future__ import annotations

import math
from functools import cache
from typing import Any, Literal, TypeAlias, cast

from rooflinekit.model.graph.symbol import about, formula, quantity
from rooflinekit.model.kernels.operation import Operation, Step
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.frozen import dataclass, field
from rooflinekit.model.types.kernel import CollectiveShape, ExchangeShape, Kernel
from rooflinekit.model.types.numeric import Numeric

CollectiveKind: TypeAlias = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"]

_PHASES = {"two_shot": 2.0, "in_switch": 2.0}
_VARIANTS = {"ring": "nccl_all_reduce"}


def sent_bytes(kind: CollectiveKind, payload: Numeric, gpus: int) -> Numeric:
    """Bytes that each of `gpus` accelerators sends, for a payload of `payload` bytes (NCCL's bus-bandwidth factors).

    All-reduce 2(n−1)/n (reduce-scatter and all-gather); all-gather and reduce-scatter (n−1)/n of the whole;
    all-to-all (n−1)/n of what the accelerator holds; a send all of it.

    >>> sent_bytes("all_reduce", 8.0, 4), sent_bytes("all_gather", 8.0, 4), sent_bytes("all_reduce", 8.0, 1)
    (12.0, 6.0, 0.0)
    """
    if kind == "send":
        return payload
    return payload * ((2.0 if kind == "all_reduce" else 1.0) * (gpus - 1) / gpus)


def all_reduce_bytes(algorithm: str, payload: Numeric, gpus: int) -> Numeric:
    """Bytes that each of `gpus` accelerators sends to sum `payload` bytes, all within one domain.

    one_shot: everything to everyone, (n−1); two_shot and ring: reduce-scatter and all-gather, 2(n−1)/n; in_switch: the
    switch adds up what the accelerators send, and copies each one's share of the sum to all, 1 + 1/n (Klenk et al.,
    ISCA 2020; NCCL's NVLS).

    >>> [all_reduce_bytes(name, 8.0, 8) for name in ("one_shot", "two_shot", "in_switch")]
    [56.0, 14.0, 9.0]
    """
    if gpus == 1:
        return 0.0 * payload
    if algorithm == "one_shot":
        return payload * (gpus - 1.0)
    if algorithm == "in_switch":
        return payload * (1.0 + 1.0 / gpus)
    return sent_bytes("all_reduce", payload, gpus)


@dataclass(frozen=True, slots=True)
class Tiers:
    """Bytes that an accelerator sends for each byte of payload: within its domain, and to other domains."""

    links: float = field(metadata=about("sent", "bytes sent for each byte of payload"))
    nic: float = quantity("sent_nic", "bytes sent to other domains for each byte of payload", default=0.0)

    def sent(self, payload: Numeric) -> dict[str, Any]:
        """Bytes that an accelerator sends of a payload, in all and beyond its domain, as fields of a kernel [B].

        >>> Tiers(1.75, 0.125).sent(8.0)
        {'network_bytes': 15.0, 'nic_bytes': 1.0}
        """
        outside = network_bytes(payload, self.nic) if self.nic else 0.0
        return {"network_bytes": network_bytes(payload, self.links) + outside, "nic_bytes": outside}


def tiers(kind: CollectiveKind, gpus: int, span: int, domain: int, algorithm: str = "auto") -> Tiers:
    """Split of a collective over `gpus` of `span` consecutive accelerators, where `domain` of them share links.

    Within one domain all goes over links. Over m domains an all-to-all sends each peer its part where that is; the
    others are hierarchical: what another domain needs crosses once, split over the NICs of all accelerators that need
    it, and spreads inside (NCCL's and Horovod's hierarchical all-reduce): reduce-scatter inside, all-reduce of the
    shares between, all-gather inside.

    >>> tiers("all_reduce", 16, 16, 8)  # inside 2·7/8, between 2·1/2 of an eighth
    Tiers(links=1.75, nic=0.125)
    >>> tiers("all_to_all", 16, 16, 8)  # 7 of 16 parts stay inside, 8 of 16 leave
    Tiers(links=0.4375, nic=0.5)
    >>> tiers("all_gather", 2, 16, 8)  # two replicas of 8 ranks that all want the same: half of it, in eighths
    Tiers(links=0.4375, nic=0.0625)
    """
    if span <= domain:
        sent = all_reduce_bytes(algorithm, 1.0, gpus) if kind == "all_reduce" else sent_bytes(kind, 1.0, gpus)
        return Tiers(cast("float", sent))
    if kind == "send":
        return Tiers(0.0, 1.0)
    nodes = -(-span // domain)
    local = max(gpus / nodes, 1.0)
    remote = (nodes - 1.0) / nodes
    if kind == "all_to_all":
        return Tiers((local - 1.0) / gpus, remote)
    twice = 2.0 if kind == "all_reduce" else 1.0
    if algorithm == "in_switch":
        return Tiers(1.0 + 1.0 / domain, twice * remote / domain)
    own = (local - 1.0) / local / nodes
    return Tiers(twice * (own + (domain - 1.0) / domain * remote), twice * remote / domain)


@cache
def group_share(experts: int, top_k: int, groups: int) -> float:
    """Share of the tokens that need at least one of the E/g experts of a group: 1 - C(E - E/g, k) / C(E, k).

    Top-k without replacement, uniform routing.

    >>> 7 * group_share(256, 8, 8)  # other ranks that a token goes to
    4.63
    """
    return 1.0 - math.comb(experts - experts // groups, top_k) / math.comb(experts, top_k)


def exchange_tiers(experts: int, top_k: int, ranks: int, nodes: int, each: bool) -> Tiers:
    """Copies of a token that leave a rank for its experts: within its host, and to other hosts.

    DeepEP's low-latency kernels send one copy for `each` expert, straight to its rank. Its normal kernels and
    TensorRT-LLM's send one to a rank with any of them, and to another host once, from where links carry it on
    (DeepSeek-V3, arXiv:2412.19437, 3.2.2).

    >>> exchange_tiers(256, 8, 16, 2, each=True)  # 8 copies: 7 of 16 stay inside, 8 of 16 leave
    Tiers(links=3.5, nic=4.0)
    >>> exchange_tiers(256, 8, 8, 1, each=False)
    Tiers(links=4.63, nic=0.0)
    """
    local = ranks / nodes
    if each:
        return Tiers(top_k * (local - 1.0) / ranks, top_k * (1.0 - 1.0 / nodes))
    copies = group_share(experts, top_k, ranks) * (ranks - 1)
    return Tiers(copies * nodes * (local - 1.0) / (ranks - 1.0), group_share(experts, top_k, nodes) * (nodes - 1))


@formula("payload", "data that is summed, gathered or exchanged", "B")
def payload_bytes(rows: Numeric, width: Numeric, element: float) -> Numeric:
    """The rows of a collective, or the copies of tokens on their way to experts: m·D·b [B].

    >>> payload_bytes(32.0, 4096, 2.0), payload_bytes(128.0, 7168, SCALED)
    (262144.0, 946176.0)
    """
    return rows * width * element


@formula("net", "sent to other accelerators", "B")
def network_bytes(payload: Numeric, sent: float) -> Numeric:
    """Bytes that an accelerator sends of a payload: payload·sent [B]; `sent` as `tiers` says.

    >>> network_bytes(262144.0, tiers("all_reduce", 8, 8, 8).links)
    458752.0
    """
    return payload * sent


def collective_kernel(
    name: str, kind: str, gpus: int, sent: Tiers, payload: Numeric, stream: Dtype, count: int, phases: float = 1.0
) -> Kernel:
    """One launch over `payload` bytes, which are read and written once on this side."""
    return Kernel(
        name,
        "collective",
        count,
        stream,
        activation_bytes=2.0 * payload,
        **sent.sent(payload),
        gpus=gpus,
        shape=CollectiveShape(payload, phases),
        variant=kind,
    )


@dataclass(frozen=True, slots=True)
class Collective(Operation):
    """One collective over `gpus` accelerators; the payload is `width` elements for every token (or sampled row).

    For an all-to-all it is the mean rank's payload: no rank is fuller than another.
    """

    name: str
    kind: CollectiveKind
    gpus: int = field(metadata=about("g", "accelerators that it joins"))
    width: float = field(metadata=about("D", "elements of a row"))
    sent: Tiers
    replicas: bool = False  #: the payload covers the tokens of all attention replicas
    sampled: bool = False
    algorithm: str = "auto"  #: of an all-reduce

    def kernels(self, step: Step, count: int) -> list[Kernel]:
        """One launch."""
        if self.sampled and not step.samples:
            return []
        rows = (step.rows if self.sampled else step.tokens) * (step.replicas if self.replicas else 1)
        payload = payload_bytes(rows, self.width, step.stream.bytes)
        kind, phases = _VARIANTS.get(self.algorithm, self.kind), _PHASES.get(self.algorithm, 1.0)
        return [collective_kernel(self.name, kind, self.gpus, self.sent, payload, step.stream, count, phases)]


MOVERS = 20
"""Cores that DeepEP's normal kernels take (`Buffer.num_sms`), which its users may change: an assumption."""

SCALED = 1.0 + 4.0 / 128.0
"""Bytes of an element in FP8 with an fp32 scale for each 128 channels, as DeepEP sends it."""


@dataclass(frozen=True, slots=True)
class Exchange(Operation):
    """Tokens to their experts, or results back, by DeepEP; every rank sends the tokens that are its own.

    Steps without prompts run its low-latency kernels, the others its normal ones. Tokens travel in FP8 unless asked
    otherwise, results in 16 bit.
    """

    name: str
    gpus: int = field(metadata=about("g", "ranks that hold the experts"))
    width: int = field(metadata=about("D", "elements of a token"))
    experts: int = field(metadata=about("E", "experts of all ranks"))
    element: float = field(metadata=about("b", "bytes of an element on its way", "B"))
    each: Tiers  #: copies of a token that leave in a step without prompts: one for each expert
    once: Tiers  #: and in one with prompts: one for each rank
    tp: int = 1  #: ranks that share the tokens of a replica

    def kernels(self, step: Step, count: int) -> list[Kernel]:
        """One launch."""
        decoding = step.batch.prefilling is None
        tokens = step.tokens / self.tp
        sent = self.each if decoding else self.once
        payload = payload_bytes(tokens, self.width, self.element)
        where = self.name.removeprefix("expert_")
        return [exchange_kernel(self.name, where, step, count, tokens, self.experts, self.gpus, payload, sent)]


def exchange_kernel(
    name: str,
    like: str,
    step: Step,
    count: int,
    tokens: Numeric,
    experts: int,
    gpus: int,
    payload: Numeric,
    sent: Tiers,
) -> Kernel:
    """One launch of DeepEP's kernel `like` (dispatch or combine) for `tokens` of this accelerator."""
    decoding = step.batch.prefilling is None
    return Kernel(
        name,
        "exchange",
        count,
        step.stream,
        activation_bytes=2.0 * payload,
        **sent.sent(payload),
        gpus=gpus,
        shape=ExchangeShape(tokens, 1.0 * experts, 0.0 if decoding else float(MOVERS)),
        variant=f"{'low_latency' if decoding else 'normal'}_{like}",
    )
