"""Mixture of experts: which experts a batch touches, and the grouped GEMM over them."""

from __future__ import annotations

from rooflinekit.model.graph.symbol import about, formula
from rooflinekit.model.kernels.operation import Operation, Step, Weights
from rooflinekit.model.kernels.routing import Routing
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.frozen import dataclass, field
from rooflinekit.model.types.kernel import ExpertsShape, Kernel
from rooflinekit.model.types.numeric import Numeric


@formula("F", "grouped matrix products of the pairs that come here", "FLOP")
def expert_flops(routed: Numeric, weights: Numeric) -> Numeric:
    """Multiply-adds of every (token, expert) pair: 2·A·mats·D·F_e [FLOP].

    >>> expert_flops(256.0, 3 * 7168 * 2048) / 1e9  # 32 tokens in a layer of DeepSeek-V3
    22.5
    """
    return 2.0 * routed * weights


@formula("w", "weights of the touched experts", "B")
def expert_weight_bytes(touched: Numeric, weights: Numeric, element: float, bias: float = 0.0) -> Numeric:
    """Each touched expert is read once, however many tokens come: act·(mats·D·F_e·b_w + bias·2) [B].

    >>> expert_weight_bytes(163.0, 3 * 7168 * 2048, 1.0) / 1e9
    7.18
    """
    return touched * (weights * element + bias * Dtype.BF16.bytes)


@formula("a", "routed tokens read, passed through the matrices and combined", "B")
def expert_activation_bytes(
    routed: Numeric, hidden: Numeric, width: Numeric, matrices: Numeric, element: float
) -> Numeric:
    """A routed token is read, written back and combined, and passes each matrix once: A·(3·D + mats·F_e)·b [B].

    >>> expert_activation_bytes(256.0, 7168, 2048, 3, 2.0) / 1e6
    14.2
    """
    return routed * (3 * hidden + matrices * width) * element


_SKEWED = 1.0  # from here on kernels measured with a skew of 1.2; a choice: InferenceX's 0.8 agrees with the others


@dataclass(frozen=True, slots=True)
class Experts(Operation):
    """This accelerator's experts: gate and up, activation, down, as one fused launch over the tokens routed here.

    It is the fullest of the ranks over which `routing` spreads whole experts, since the step waits for it. Each expert
    has `width` of its inner columns here.
    """

    routing: Routing
    hidden: int = field(metadata=about("D", "width of a token"))
    width: int = field(metadata=about("F_e", "inner width of an expert here"))
    matrices: int = field(metadata=about("mats", "matrices of an expert"))  #: 3 gated, 2 plain
    bias: int = field(metadata=about("bias", "bias elements of an expert here"))  #: bias elements of one expert here
    weight: Dtype
    compute: Dtype
    down: Dtype | None = None  #: format of the down projections, where it differs
    chosen: bool = False  #: none but the pairs of its own experts come here, as DeepEP sends them

    @property
    def element(self) -> float:
        """Bytes of a weight on the mean over the matrices of an expert [B]."""
        if self.down is None:
            return self.weight.bytes
        return ((self.matrices - 1) * self.weight.bytes + self.down.bytes) / self.matrices

    @property
    def local(self) -> int:
        """Experts held here, copies included."""
        return self.routing.local

    @property
    def weights(self) -> tuple[Weights, ...]:
        """All local experts, touched or not."""
        whole = Weights("experts", (self.local, self.matrices * self.width, self.hidden), self.weight)
        up = Weights("experts", (self.local, (self.matrices - 1) * self.width, self.hidden), self.weight)
        down = Weights("experts", (self.local, self.hidden, self.width), self.down or self.weight)
        matrices = (whole,) if self.down is None else (up, down)
        return (*matrices, Weights("experts", (self.local, self.bias), Dtype.BF16)) if self.bias else matrices

    def kernels(self, step: Step, count: int) -> list[Kernel]:
        """The grouped GEMMs: weights of the experts that were touched, work of the tokens that came."""
        tokens, routing, each = step.tokens * step.replicas, self.routing, self.matrices * self.hidden * self.width
        routed, touched = routing.fullest(tokens)
        slots, wide = routed if self.chosen else tokens * routing.top_k, step.stream.bytes
        unpacked = self.weight.weight_only and self.weight.unit is not self.compute.unit
        plain = self.weight.unit.value if unpacked else "balanced"
        return [
            Kernel(
                "experts",
                "moe",
                count,
                self.compute,
                flops=expert_flops(routed, each),
                weight_bytes=expert_weight_bytes(touched, each, self.element, self.bias),
                activation_bytes=expert_activation_bytes(routed, self.hidden, self.width, self.matrices, wide),
                shape=ExpertsShape(
                    tokens, slots, routed, touched, self.local, routing.ranks, self.hidden, self.width, self.matrices
                ),
                variant="power_law_1.2" if routing.skew > _SKEWED else plain,
                dequantised=unpacked,
            )
        ]
