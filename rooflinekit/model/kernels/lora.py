"""Low-rank adapters beside the products of the layers: each sequence uses one of those that are loaded.

y = x W + (x A) B with A of k x r and B of r x n (Hu et al. 2021, arXiv:2106.09685). The tokens of a step are grouped by
adapter: one launch shrinks them for all fused parts, one expands (SGMV of Punica, arXiv:2310.18547; S-LoRA,
arXiv:2311.03285). Nobody measured these launches here: they take the time of plain products, by assumption.
"""

from __future__ import annotations

from dataclasses import field, replace

from rooflinekit.model.graph.symbol import about, formula, named
from rooflinekit.model.kernels.gemm import Linear, gemm_activation_bytes, gemm_kernel, gemm_weight_bytes
from rooflinekit.model.kernels.operation import Operation, Step, Weights
from rooflinekit.model.kernels.routing import touched
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.model.types.kernel import LORA, GemmShape, Kernel
from rooflinekit.model.types.numeric import Numeric

TARGETS = ("qkv_proj", "o_proj", "gate_up_proj", "up_proj", "down_proj")
"""Products that adapters stand beside: those of attention and of dense blocks, as `all-linear` of PEFT has them."""


@formula("used", "different adapters of a step")
def distinct_adapters(adapters: int, sequences: Numeric) -> Numeric:
    """A·(1 − (1 − 1/A)^B): different ones among B sequences that use any of A adapters alike.

    >>> distinct_adapters(1, 32.0), round(distinct_adapters(16, 16.0), 2)
    (1.0, 10.3)
    """
    return touched(adapters, 1.0 - 1.0 / adapters, sequences)


@dataclass(frozen=True, slots=True)
class Adapter(Operation):
    """What the loaded adapters add to one product: k inputs here, and the parts that are fused into it."""

    name: str
    k: int = field(metadata=about("k", "input width here"))
    widths: tuple[int, ...]
    rank: int = field(metadata=about("r", "rank"))
    adapters: int = field(metadata=about("A", "adapters that are loaded"))
    dtype: Dtype

    @property
    def weights(self) -> tuple[Weights, ...]:
        """A and B of each part, of all adapters."""
        inner = self.adapters * self.rank
        shrink = Weights("other", (inner * len(self.widths), self.k), self.dtype)
        return shrink, Weights("other", (inner, sum(self.widths)), self.dtype)

    def kernels(self, step: Step, count: int) -> list[Kernel]:
        """Shrink and expand; the weights of those adapters that the step's sequences use are read."""
        used = named(distinct_adapters(self.adapters, step.batch.sequences), "used", "different adapters of the step")
        m, wide, inner = step.tokens, step.stream.bytes, self.rank * len(self.widths)
        launches = []
        for end, n, k, held in (("shrink", inner, self.k, inner), ("expand", sum(self.widths), self.rank, self.rank)):
            outer = self.k if end == "shrink" else n
            moved = gemm_activation_bytes(m, n, inner if end == "expand" else k, wide, wide)
            weights = used * gemm_weight_bytes(outer, held, self.dtype.bytes)
            kernel = gemm_kernel(f"{self.name}_{end}", count, step.stream, GemmShape(m, n, k), weights, moved)
            launches.append(replace(kernel, variant=LORA))
        return launches


def with_adapters(ops: list[Operation], deployment: Deployment, stream: Dtype) -> list[Operation]:
    """The operations of a layer, each target followed by its adapters.

    >>> from rooflinekit.model.types.deployment import Deployment
    >>> op = Linear("o_proj", 4096, (("o", 4096),), Dtype.BF16, Dtype.BF16, "attention")
    >>> [op.name for op in with_adapters([op], Deployment(lora_rank=16), Dtype.BF16)]
    ['o_proj', 'o_proj_lora']
    """
    found: list[Operation] = []
    for op in ops:
        found.append(op)
        if isinstance(op, Linear) and op.name in TARGETS:
            widths = tuple(width for _, width in op.parts)
            own = deployment.lora_rank, deployment.lora_adapters, stream
            found.append(Adapter(f"{op.name}_lora", op.k, widths, *own))
    return found
