"""Kernels that move activations: norms, rotary positions, activations, embeddings, sampling."""

from __future__ import annotations

from rooflinekit.model.graph.symbol import about, formula, quantity
from rooflinekit.model.kernels.operation import Operation, Output, Step, Weights, pass_kernel
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.frozen import dataclass, field
from rooflinekit.model.types.kernel import ASSUMED, Kernel, RowsShape
from rooflinekit.model.types.numeric import Numeric


@formula("F", "arithmetic on every row", "FLOP")
def elementwise_flops(rows: Numeric, each: Numeric) -> Numeric:
    """Arithmetic of a pass: m·f [FLOP].

    >>> elementwise_flops(32.0, 5 * 4096)  # a norm over the residual width
    655360.0
    """
    return rows * each


@formula("w", "its own weights read", "B")
def own_bytes(parameters: float, element: float) -> float:
    """Scales, taps and other small weights, read once: p·b_w [B].

    >>> own_bytes(4096, 2.0)
    8192.0
    """
    return parameters * element


@formula("a", "rows of the table read and written on", "B")
def gathered_bytes(rows: Numeric, width: Numeric, table: float, written: float) -> Numeric:
    """Rows looked up in a table of another format: m·D·(b_w + b) [B].

    >>> gathered_bytes(32.0, 4096, 2.0, 2.0)
    524288.0
    """
    return rows * width * (table + written)


@dataclass(frozen=True, slots=True)
class Elementwise(Operation):
    """A pass over the tokens that reads, computes a little, and writes; bytes bound, or launch bound when small.

    read, written: elements a token; flops: operations a token; `parameters` are its own weights (a norm's scale).
    """

    name: str
    read: int = field(metadata=about("e_in", "elements read of a row"))
    written: int = field(metadata=about("e_out", "elements written of a row"))
    flops: float = field(metadata=about("f", "operations on a row"))
    parameters: int = quantity("p", "weights of its own", default=0)
    dtype: Dtype = Dtype.BF16
    assumed: bool = False  #: taken for one pass, which nobody measured
    made: tuple[Output, ...] = field(default=(), compare=False)  #: its tensors, where it writes more than one

    @property
    def weights(self) -> tuple[Weights, ...]:
        """Scales and biases."""
        return (Weights("other", (self.parameters,), self.dtype, "scale"),) if self.parameters else ()

    @property
    def outputs(self) -> tuple[Output, ...]:
        """One tensor of all that it writes, or those that it was told of."""
        return self.made or (Output("x", (self.written,)),)

    def kernels(self, step: Step, count: int) -> list[Kernel]:
        """One launch."""
        kernel = pass_kernel(
            step,
            self.name,
            "elementwise",
            count,
            step.tokens,
            self.read + self.written,
            flops=elementwise_flops(step.tokens, self.flops),
            weight_bytes=own_bytes(self.parameters, self.dtype.bytes),
            shape=RowsShape(step.tokens),
            variant=ASSUMED if self.assumed else self.name.rpartition("_")[2],  # residual_norm is a norm
        )
        return [kernel]


@dataclass(frozen=True, slots=True)
class Parameters(Operation):
    """Small weights that another kernel reads along with its own (biases, gates); they only take memory here."""

    module: str
    count: int = field(metadata=about("p", "weights"))
    dtype: Dtype

    @property
    def weights(self) -> tuple[Weights, ...]:
        """The weights."""
        return (Weights(self.module, (self.count,), self.dtype),)

    def kernels(self, step: Step, count: int) -> list[Kernel]:
        """None: the cost is counted where they are used."""
        return []


@dataclass(frozen=True, slots=True)
class Embedding(Operation):
    """Look up one row per token. The table is resident but not streamed: only the rows looked up are read."""

    rows: int = field(metadata=about("V", "rows of the table here"))  #: vocabulary rows held here, or learned positions
    width: int = field(metadata=about("D", "width of a row"))
    dtype: Dtype
    module: str = "embedding"

    @property
    def weights(self) -> tuple[Weights, ...]:
        """The table."""
        return (Weights(self.module, (self.rows, self.width), self.dtype, "table"),)

    @property
    def outputs(self) -> tuple[Output, ...]:
        """A row for each token."""
        return (Output("x" if self.module == "embedding" else "positions", (self.width,)),)

    def kernels(self, step: Step, count: int) -> list[Kernel]:
        """One gather."""
        moved = gathered_bytes(step.tokens, self.width, self.dtype.bytes, step.stream.bytes)
        shape = RowsShape(step.tokens)
        return [Kernel("embedding", "embedding", count, step.stream, activation_bytes=moved, shape=shape)]


@dataclass(frozen=True, slots=True)
class Sampling(Operation):
    """Pick a token from each row of logits: one read of V logits (16 bit) at the least."""

    vocab: int = field(metadata=about("V", "logits of a row"))

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The tokens."""
        return (Output("token", (), "sampled", "int64"),)

    def kernels(self, step: Step, count: int) -> list[Kernel]:
        """One pass over the logits."""
        if not step.samples:
            return []
        work = elementwise_flops(step.rows, self.vocab)
        return [pass_kernel(step, "sampling", "sampling", count, step.rows, self.vocab, flops=work)]
