"""Common part of every kernel of a forward pass.

An `Operation` is a value (it hashes, so equal operations of many layers are counted, not repeated) that holds one
accelerator's share of some weights and turns an engine step into the work of its launches.
"""

from __future__ import annotations

from functools import cached_property
from math import inf, prod
from typing import Any, ClassVar, Literal, TypeAlias

from rooflinekit.model.graph.symbol import formula, named
from rooflinekit.model.types.batch import Batch, Sequences
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.frozen import dataclass, replace
from rooflinekit.model.types.kernel import Family, Kernel
from rooflinekit.model.types.numeric import Numeric, ceil_div, is_zero


@formula("a", "activations read and written", "B")
def passed_bytes(rows: Numeric, elements: Numeric, element: float) -> Numeric:
    """Activations that each row reads and writes: m·e·b [B].

    >>> passed_bytes(32.0, 4 * 4096, 2.0)  # a norm with the residual addition: two vectors read, two written
    1048576.0
    """
    return rows * elements * element


def pass_kernel(
    step: Step, name: str, family: Family, count: int, rows: Numeric, elements: Numeric, **work: Any
) -> Kernel:
    """One launch that reads and writes so many elements of each row, in the stream's format; `work`: further fields."""
    moved = passed_bytes(rows, elements, step.stream.bytes)
    return Kernel(name, family, count, step.stream, activation_bytes=moved, **work)


_SAMPLED = "m", "rows that are sampled"


@dataclass(frozen=True)
class Step:
    """One engine step as one accelerator sees it.

    `batch` holds the sequences of this accelerator's attention replica, whose tokens `context_ranks` (cp) share;
    `replicas` groups with tokens of their own (dp x cp) run side by side and share the experts; where the others have
    fewer tokens, as many as would have those of all. `stream` is the format
    of activations between kernels, `kv` that of the cache. Tokens beyond `token_budget` are in steps that follow.
    """

    batch: Batch
    stream: Dtype
    kv: Dtype
    replicas: Numeric = 1
    context_ranks: int = 1
    token_budget: float = inf

    @cached_property
    def tokens(self) -> Numeric:
        """Tokens that this accelerator, with those it shares layers with, computes."""
        if self.context_ranks == 1:
            return named(self.batch.tokens, "m", "tokens of the step")
        return named(sum((self.own(phase) for phase in self.batch.phases), 0.0), "m", "tokens of the step, this rank's")

    @cached_property
    def rows(self) -> Numeric:
        """Rows of logits that it needs; the last tokens of all prompts are with one of the context ranks."""
        if self.context_ranks == 1:
            return named(self.batch.sampled_rows, *_SAMPLED)
        rows = sum(
            (
                phase.sampled_rows / phase.tokens * self.own(phase)
                if phase is self.batch.decoding
                else phase.sampled_rows
                for phase in self.batch.phases
            ),
            0.0,
        )
        return named(rows, *_SAMPLED)

    @property
    def samples(self) -> bool:
        """True if any row of logits is needed: chunks of a prompt but the last need none."""
        return not is_zero(self.rows)

    def own(self, phase: Sequences) -> Numeric:
        """Tokens of a phase that this accelerator computes: its share of each prompt, or its share of the sequences."""
        if self.context_ranks == 1:
            return phase.tokens
        if phase is self.batch.decoding:
            return ceil_div(phase.sequences, float(self.context_ranks)) * (phase.tokens / phase.sequences)
        return ceil_div(phase.tokens, float(self.context_ranks))


@dataclass(frozen=True, slots=True)
class Weights:
    """A tensor of weights that one accelerator holds, for one kind of module."""

    module: str  #: embedding, attention, ffn, experts, shared_experts, lm_head or other
    shape: tuple[int, ...]
    dtype: Dtype
    name: str = "weight"

    @property
    def count(self) -> int:
        """Elements."""
        return prod(self.shape)

    @property
    def bytes(self) -> float:
        """Resident size [B]."""
        return self.count * self.dtype.bytes


Part: TypeAlias = "tuple[str, *tuple[int, ...]]"
"""A tensor's name, and its axes behind those of the tokens."""
Role: TypeAlias = Literal["tokens", "sampled", "cache", "state", "keys"]


def elements(parts: tuple[Part, ...]) -> int:
    """Elements of all parts, of one token.

    >>> elements((("Q", 32, 128), ("K", 8, 128)))
    5120
    """
    return sum(prod(axes) for _, *axes in parts)


@dataclass(frozen=True, slots=True)
class Output:
    """A tensor that an operation makes.

    The role says which axes stand before its own: new tokens, rows that are sampled, tokens in the cache, sequences,
    or every key of a prompt.
    """

    name: str
    axes: tuple[int, ...] = ()
    role: Role = "tokens"
    dtype: Dtype | str | None = None  #: where it is not the stream's, nor the cache's


def outputs(parts: tuple[Part, ...], role: Role = "tokens", dtype: Dtype | str | None = None) -> tuple[Output, ...]:
    """A tensor for each part."""
    return tuple(Output(name, tuple(axes), role, dtype) for name, *axes in parts)


class Operation:
    """One operation of the forward pass on one accelerator: a frozen dataclass of its sizes."""

    __slots__ = ()

    grows: ClassVar[bool] = False
    """True if a decode step costs more at a longer context: attention and nothing else."""

    @property
    def weights(self) -> tuple[Weights, ...]:
        """Weights of the operation in memory."""
        return ()

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The tensors it makes, for readers of shapes; none where it does not say."""
        return ()

    @property
    def views(self) -> tuple[Output, ...]:
        """Views of its output; nothing moves."""
        return ()

    def kernels(self, step: Step, count: int) -> list[Kernel]:
        """The launches it makes in a step, `count` times each; none if the step gives it nothing to do."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Wrapped(Operation):
    """Another operation, which runs at other times, on other tokens or in another place."""

    held: Operation

    resident: ClassVar[bool] = True
    """True if its weights take memory of the accelerator."""

    @property
    def grows(self) -> bool:  # type: ignore[override]
        """Return whether the operation itself grows with the context."""
        return self.held.grows

    @property
    def weights(self) -> tuple[Weights, ...]:
        """Weights of the operation, where they are resident."""
        return self.held.weights if self.resident else ()

    def kernels(self, step: Step, count: int) -> list[Kernel]:
        """Kernels of the operation."""
        return self.held.kernels(step, count)


@dataclass(frozen=True, slots=True)
class Repeated(Wrapped):
    """An operation with the weights of an earlier one: it reads them again, and they take no more memory."""

    resident = False


@dataclass(frozen=True, slots=True)
class Idle(Wrapped):
    """The weights of an operation that a prompt without an image passes by."""

    def kernels(self, step: Step, count: int) -> list[Kernel]:
        """None."""
        return []


@dataclass(frozen=True, slots=True)
class OnHost(Wrapped):
    """An operation whose weights and cache lie in the host's memory: it takes none of the accelerator's."""

    resident = False

    def kernels(self, step: Step, count: int) -> list[Kernel]:
        """Kernels of the work, which the host does or feeds."""
        held = self.held.kernels(step, count)
        return [replace(kernel, name=f"host_{kernel.name}", on_host=True) for kernel in held]


@dataclass(frozen=True, slots=True)
class OfPrompts(Wrapped):
    """An operation over the tokens of prompts alone: an encoder reads the prompt (T5) once."""

    def kernels(self, step: Step, count: int) -> list[Kernel]:
        """Kernels of the operation, where a step has prompts."""
        prompts = step.batch.prefilling
        return [] if prompts is None else self.held.kernels(replace(step, batch=Batch(prompts)), count)


@dataclass(frozen=True, slots=True)
class OfAnswers(Wrapped):
    """An operation over the tokens that are given out: the first of each prompt that ends, and those that decode.

    Of a prompt that an encoder reads the decoder sees no token but the one from which it starts.
    """

    def kernels(self, step: Step, count: int) -> list[Kernel]:
        """Kernels of the operation, with a first token that attends to the whole of its prompt."""
        prompts, decoding = step.batch.prefilling, step.batch.decoding
        if prompts is not None and is_zero(prompts.sampled_rows):
            prompts = None
        if prompts is None and decoding is None:
            return []
        if prompts is not None:
            seen = prompts.past + prompts.new
            prompts = Sequences(prompts.count * prompts.sampled, 1.0, seen - 1.0, ragged=prompts.ragged)
        return self.held.kernels(replace(step, batch=Batch(prompts, decoding, step.batch.filled)), count)
