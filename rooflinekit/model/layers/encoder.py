"""Encoder-decoders: what runs over the positions of an encoder, what over the tokens that are given out.

An encoder reads the prompt (T5), or a sound of fixed length that comes with every prompt (Whisper), once. Of a prompt
that it reads the decoder sees no token but the one from which it starts.
"""

from __future__ import annotations

from dataclasses import replace

from rooflinekit.model.kernels.operation import Operation, Step, Weights
from rooflinekit.model.types.batch import Batch, Sequences
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.model.types.kernel import Kernel
from rooflinekit.model.types.numeric import Numeric


def _none(number: Numeric) -> bool:
    return isinstance(number, (int, float)) and not number


@dataclass(frozen=True, slots=True)
class OfPrompts(Operation):
    """An operation over the tokens of prompts alone."""

    held: Operation

    @property
    def weights(self) -> tuple[Weights, ...]:
        """Those of the operation."""
        return self.held.weights

    def kernels(self, step: Step, count: int) -> list[Kernel]:
        """Those of the operation, where a step has prompts."""
        prompts = step.batch.prefilling
        return [] if prompts is None else self.held.kernels(replace(step, batch=Batch(prompts)), count)


@dataclass(frozen=True, slots=True)
class OfAnswers(Operation):
    """An operation over the tokens that are given out: the first of each prompt that ends, and those that decode."""

    held: Operation

    @property
    def grows(self) -> bool:  # type: ignore[override]
        """As the operation itself."""
        return self.held.grows

    @property
    def weights(self) -> tuple[Weights, ...]:
        """Those of the operation."""
        return self.held.weights

    def kernels(self, step: Step, count: int) -> list[Kernel]:
        """Those of the operation, with a first token that attends to the whole of its prompt."""
        prompts, decoding = step.batch.prefilling, step.batch.decoding
        if prompts is not None and _none(prompts.sampled_rows):
            prompts = None
        if prompts is None and decoding is None:
            return []
        if prompts is not None:
            seen = prompts.past + prompts.new
            prompts = Sequences(prompts.count * prompts.sampled, 1.0, seen - 1.0, ragged=prompts.ragged)
        return self.held.kernels(replace(step, batch=Batch(prompts, decoding, step.batch.filled)), count)
