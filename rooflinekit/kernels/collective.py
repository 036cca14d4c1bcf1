"""Communication between accelerators: bytes that one of them sends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from rooflinekit.kernels.operation import Step, Weights
from rooflinekit.types.kernel import Kernel
from rooflinekit.types.numeric import Numeric

__all__ = ["Collective", "CollectiveKind", "sent_bytes"]

CollectiveKind: TypeAlias = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"]


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


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective over `gpus` accelerators; the payload is `width` elements for every token (or sampled row).

    For an all-to-all it is the mean rank's payload: no rank is fuller than another.
    """

    name: str
    kind: CollectiveKind
    gpus: int
    width: float
    span: int  #: consecutive accelerators that the group is spread over
    replicas: bool = False  #: the payload covers the tokens of all attention replicas
    sampled: bool = False

    grows = False

    @property
    def weights(self) -> tuple[Weights, ...]:
        """None."""
        return ()

    def kernels(self, step: Step, count: int) -> list[Kernel]:
        """One launch; the payload is read and written once on this side."""
        rows = (step.rows if self.sampled else step.tokens) * (step.replicas if self.replicas else 1)
        payload = rows * self.width * step.stream.bytes
        return [
            Kernel(
                self.name,
                "collective",
                count,
                step.stream,
                activation_bytes=2.0 * payload,
                network_bytes=sent_bytes(self.kind, payload, self.gpus),
                gpus=self.gpus,
                span=self.span,
                shared=self.kind not in ("all_to_all", "send"),
                dims={"bytes": payload},
                variant=self.kind,
            )
        ]
