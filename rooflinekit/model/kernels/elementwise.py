"""Kernels that move activations: norms, rotary positions, activations, embeddings, sampling."""

from __future__ import annotations

from dataclasses import dataclass

from rooflinekit.model.kernels.operation import Step, Weights
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.kernel import Kernel

__all__ = ["Elementwise", "Embedding", "Parameters", "Sampling"]


@dataclass(frozen=True, slots=True)
class Elementwise:
    """A pass over the tokens that reads, computes a little, and writes; bytes bound, or launch bound when small.

    read, written: elements a token; flops: operations a token; `parameters` are its own weights (a norm's scale).
    """

    name: str
    read: int
    written: int
    flops: float
    parameters: int = 0
    dtype: Dtype = Dtype.BF16

    grows = False

    @property
    def weights(self) -> tuple[Weights, ...]:
        """Scales and biases."""
        return (Weights("other", (self.parameters,), self.dtype),) if self.parameters else ()

    def kernels(self, step: Step, count: int) -> list[Kernel]:
        """One launch."""
        return [
            Kernel(
                self.name,
                "elementwise",
                count,
                step.stream,
                flops=step.tokens * self.flops,
                weight_bytes=self.parameters * self.dtype.bytes,
                activation_bytes=step.tokens * (self.read + self.written) * step.stream.bytes,
                dims={"rows": step.tokens},
                variant=self.name.rpartition("_")[2],  # residual_norm is a norm
            )
        ]


@dataclass(frozen=True, slots=True)
class Parameters:
    """Small weights that another kernel reads along with its own (biases, gates); they only take memory here."""

    module: str
    count: int
    dtype: Dtype

    grows = False

    @property
    def weights(self) -> tuple[Weights, ...]:
        """The weights."""
        return (Weights(self.module, (self.count,), self.dtype),)

    def kernels(self, step: Step, count: int) -> list[Kernel]:
        """None: the cost is counted where they are used."""
        return []


@dataclass(frozen=True, slots=True)
class Embedding:
    """Look up one row per token. The table is resident but not streamed: only the rows looked up are read."""

    rows: int  #: vocabulary rows held here, or learned positions
    width: int
    dtype: Dtype
    module: str = "embedding"

    grows = False

    @property
    def weights(self) -> tuple[Weights, ...]:
        """The table."""
        return (Weights(self.module, (self.rows, self.width), self.dtype),)

    def kernels(self, step: Step, count: int) -> list[Kernel]:
        """One gather."""
        moved = step.tokens * self.width * (self.dtype.bytes + step.stream.bytes)
        rows = {"rows": step.tokens}
        return [Kernel("embedding", "embedding", count, step.stream, activation_bytes=moved, dims=rows)]


@dataclass(frozen=True, slots=True)
class Sampling:
    """Pick a token from each row of logits: one read of V logits (16 bit) at the least."""

    vocab: int

    grows = False

    @property
    def weights(self) -> tuple[Weights, ...]:
        """None."""
        return ()

    def kernels(self, step: Step, count: int) -> list[Kernel]:
        """One pass over the logits."""
        if not step.samples:
            return []
        logits = step.rows * self.vocab
        return [
            Kernel(
                "sampling", "sampling", count, step.stream, flops=logits, activation_bytes=logits * step.stream.bytes
            )
        ]
