"""Mixture of experts: which experts a batch touches, and the grouped GEMM over them."""

from __future__ import annotations

from dataclasses import dataclass

from rooflinekit.model.kernels.operation import Step, Weights
from rooflinekit.model.kernels.routing import Routing
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.kernel import Kernel
from rooflinekit.model.types.numeric import Numeric

__all__ = ["Experts", "distinct_experts"]


def distinct_experts(tokens: Numeric, experts: int, top_k: int) -> Numeric:
    """Expected number of distinct experts that `tokens` tokens touch under uniform routing: E·(1 − (1 − k/E)^T).

    Each token picks k of E without replacement, so an expert is missed by one token with probability 1 − k/E.

    >>> round(distinct_experts(32, 256, 8))  # neither 8 nor 256
    163
    >>> distinct_experts(1, 256, 8)
    8.0
    """
    return Routing(experts, top_k).distinct(tokens)


_SKEWED = 0.6  # half-way between the two kinds of routing that kernels were measured with: 0 and 1.2


@dataclass(frozen=True, slots=True)
class Experts:
    """This accelerator's experts: gate and up, activation, down, as one fused launch over the tokens routed here.

    It is the fullest of the ranks over which `routing` spreads whole experts, since the step waits for it. Each expert
    has `width` of its inner columns here.
    """

    routing: Routing
    hidden: int
    width: int
    matrices: int  #: 3 gated, 2 plain
    bias: int  #: bias elements of one expert here
    weight: Dtype
    compute: Dtype

    @property
    def local(self) -> int:
        """Experts held here, copies included."""
        return self.routing.local

    @property
    def expert_weights(self) -> int:
        """Weights of one expert held here."""
        return self.matrices * self.hidden * self.width

    grows = False

    @property
    def weights(self) -> tuple[Weights, ...]:
        """All local experts, touched or not."""
        matrices = Weights("experts", (self.local, self.matrices * self.width, self.hidden), self.weight)
        return (matrices, Weights("experts", (self.local, self.bias), Dtype.BF16)) if self.bias else (matrices,)

    def kernels(self, step: Step, count: int) -> list[Kernel]:
        """The grouped GEMMs: weights of the experts that were touched, work of the tokens that came.

        Activations: a routed token is read, written back and combined (3·D), and passes each matrix once (3·F gated).
        """
        tokens = step.tokens * step.replicas
        routed, touched = self.routing.fullest(tokens)
        wide = step.stream.bytes
        return [
            Kernel(
                "experts",
                "moe",
                count,
                self.compute,
                flops=2.0 * routed * self.expert_weights,
                weight_bytes=touched * (self.expert_weights * self.weight.bytes + self.bias * Dtype.BF16.bytes),
                activation_bytes=routed * (3 * self.hidden + self.matrices * self.width) * wide,
                dims={
                    "tokens": tokens,
                    "slots": tokens * self.routing.top_k,
                    "routed": routed,
                    "touched": touched,
                    "local": self.local,
                    "ranks": self.routing.ranks,
                    "hidden": self.hidden,
                    "width": self.width,
                },
                variant="power_law_1.2" if self.routing.skew > _SKEWED else "balanced",
            )
        ]
