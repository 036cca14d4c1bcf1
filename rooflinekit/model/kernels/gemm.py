"""Matrix multiplications: y[m, n] = x[m, k] W[n, k]; and low-rank adapters beside them.

Each sequence uses one of the adapters that are loaded: y = x W + (x A) B with A of k x r and B of r x n (Hu et al.
2021, arXiv:2106.09685). The tokens of a step are grouped by adapter: one launch shrinks them for all fused parts, one
expands (SGMV of Punica, arXiv:2310.18547; S-LoRA, arXiv:2311.03285). Nobody measured these launches here: they take the
time of plain products, by assumption.
"""

from __future__ import annotations

from typing import Literal

from rooflinekit.model.graph.symbol import about, formula, named, quantity
from rooflinekit.model.kernels.operation import Operation, Output, Part, Step, Weights, elements, outputs
from rooflinekit.model.kernels.routing import touched
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.frozen import dataclass, field, replace
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
    """Work that the loaded adapters add to one product: k inputs here, and the parts that are fused into it."""

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
            widths = tuple(elements((part,)) for part in op.parts)
            own = deployment.lora_rank, deployment.lora_adapters, stream
            found.append(Adapter(f"{op.name}_lora", op.k, widths, *own))
    return found


@formula("F", "multiply-adds of a matrix product, two FLOP each", "FLOP")
def gemm_flops(m: Numeric, n: Numeric, k: Numeric) -> Numeric:
    """Multiply-adds of y[m, n] = x[m, k] W[n, k], two FLOP each: 2·m·n·k [FLOP].

    >>> gemm_flops(2048, 4096, 4096) / 1e9  # the query projection of Llama-3-8B at S = 2048
    68.7
    """
    return 2.0 * m * n * k


@formula("w", "weights read, whatever the number of tokens", "B")
def gemm_weight_bytes(n: Numeric, k: Numeric, element: float, bias: float = 0.0, bias_element: float = 2.0) -> Numeric:
    """The matrix, and the bias if there is one, read once: n·k·b_w + bias·b_b [B].

    >>> gemm_weight_bytes(6144, 4096, 2.0) / 1e6  # the fused query, key and value projection of Llama-3-8B
    50.3
    """
    return n * k * element + bias * bias_element


@formula("a", "activations read and written", "B")
def gemm_activation_bytes(m: Numeric, n: Numeric, k: Numeric, read: float, written: float) -> Numeric:
    """Activations read and written once: m·(k·read + n·written) [B], `read` and `written` in bytes an element.

    >>> gemm_activation_bytes(32, 4096, 4096, 2.0, 2.0)
    524288.0
    """
    return m * (k * read + n * written)


def gemm_kernel(
    name: str, count: int, compute: Dtype, shape: GemmShape, weight_bytes: Numeric, moved: Numeric
) -> Kernel:
    """One launch of a matrix product that reads these weights, and reads and writes `moved` bytes of activations."""
    flops = gemm_flops(shape.m, shape.n, shape.k)
    return Kernel(name, "gemm", count, compute, flops, weight_bytes, activation_bytes=moved, shape=shape)


@dataclass(frozen=True, slots=True)
class Linear(Operation):
    """A linear layer, or several fused into one launch, over every token (or every sampled row).

    `parts` names what is fused, and how many heads of which width, or columns, each part has on this accelerator; their
    sum is n.
    """

    name: str
    k: int = field(metadata=about("k", "input width here"))
    parts: tuple[Part, ...]
    weight: Dtype
    compute: Dtype
    module: str
    bias: int = quantity("bias", "bias elements", default=0)  #: bias elements
    rows: Literal["tokens", "sampled"] = "tokens"
    resident: bool = True  #: False when another operation already holds the weights (a tied LM head)
    own: bool = False  #: of one layer alone, where layers share their other weights (Zamba2's adapters)

    @property
    def n(self) -> int:
        """Output width."""
        return named(elements(self.parts), "n", "output width here")

    @property
    def weights(self) -> tuple[Weights, ...]:
        """The matrix, and the bias in 16 bit if there is one."""
        if not self.resident:
            return ()
        matrix = Weights(self.module, (self.n, self.k), self.weight)
        kind = "other" if self.module == "lm_head" else self.module
        return (matrix, Weights(kind, (self.bias,), self.weight.widened, "bias")) if self.bias else (matrix,)

    @property
    def outputs(self) -> tuple[Output, ...]:
        """All parts side by side."""
        return (Output(", ".join(name for name, *_ in self.parts), (self.n,), self.rows),)

    @property
    def views(self) -> tuple[Output, ...]:
        """The parts, by heads where they have any."""
        return outputs(self.parts) if len(self.parts) > 1 or len(self.parts[0]) > 2 else ()

    def kernels(self, step: Step, count: int) -> list[Kernel]:
        """One GEMM; the weights are streamed once however many tokens there are."""
        if self.rows == "sampled" and not step.samples:
            return []
        m, n, k = (step.tokens if self.rows == "tokens" else step.rows), self.n, self.k
        weights = gemm_weight_bytes(n, k, self.weight.bytes, self.bias, self.weight.widened.bytes)
        read = step.stream.bytes if self.compute.is_wide else self.compute.bytes
        moved = gemm_activation_bytes(m, n, k, read, step.stream.bytes)
        kernel = gemm_kernel(self.name, count, self.compute, GemmShape(m, n, k), weights, moved)
        if self.compute.is_wide and not self.weight.is_wide:
            kernel = replace(
                kernel, variant=IN_BLOCKS if self.weight.in_blocks else self.weight.unit.value, dequantised=True
            )
        return [kernel]


IN_BLOCKS = "blocks"
"""Variant of matrix products with weights in the blocks of GGUF files, which kernels unpack."""


@dataclass(frozen=True, slots=True)
class BatchedLinear(Operation):
    """One small matrix a head, `batch` heads: y[h, m, n] = x[h, m, k] W[h, n, k]. Absorbed MLA: of decode, or of all.

    The weights are those of the up-projection.
    """

    name: str
    batch: int = field(metadata=about("H", "heads here"))
    n: int = field(metadata=about("n_head", "output width of a head"))
    k: int = field(metadata=about("k", "input width of a head"))
    weight: Dtype
    compute: Dtype
    prompts: bool = False  #: prompts take this form too

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The results by head."""
        return (Output("x", (self.batch, self.n)),)

    def kernels(self, step: Step, count: int) -> list[Kernel]:
        """One batched GEMM over the decoding tokens, or over all."""
        if step.batch.decoding is None and not self.prompts:
            return []
        rows = step.tokens if self.prompts or step.batch.decoding is None else step.own(step.batch.decoding)
        m, n, k, wide = rows, self.batch * self.n, self.k, step.stream.bytes
        weights = gemm_weight_bytes(n, k, self.weight.bytes)
        moved = gemm_activation_bytes(m, n, self.batch * k, wide, wide)
        return [gemm_kernel(self.name, count, self.compute, GemmShape(m, n, k), weights, moved)]
