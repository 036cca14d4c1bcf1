"""A step of equal sequences, and the numbers of it that kernels ask for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from rooflinekit.model.types.batch import Batch, cumulative_keys

__all__ = ["FEATURES", "Feature", "Features", "Shape", "State"]

Feature: TypeAlias = Literal["rows", "padded_rows", "sequences", "tokens", "keys", "cached", "length"]
FEATURES: tuple[Feature, ...] = Feature.__args__  # type: ignore[attr-defined]
"""Sizes that corrections and intervals depend on, in the order of their codes from 1."""

_PADDING = 64.0  # rows above which a correction sees them in multiples (timing/surface.py)


@dataclass(frozen=True)
class State:
    """`sequences` equal sequences: a prefill of `new` tokens each, or the mean of `steps` decode steps.

    The first of the decode steps ends at `first` keys, each other one key later.
    """

    sequences: float
    new: float = 1.0
    first: float = 0.0
    steps: float = 1.0

    @classmethod
    def prefill(cls, batch: float, isl: float) -> State:
        """Whole prompts."""
        return cls(batch, isl)

    @classmethod
    def decode(cls, batch: float, first: float, steps: float = 1.0) -> State:
        """One decode step at `first` keys, or the mean of several from there on."""
        return cls(batch, 1.0, first, steps)

    @property
    def tokens(self) -> float:
        """Tokens of the step."""
        return self.sequences * self.new

    @property
    def batch(self) -> Batch:
        """The same as the rest of the package knows it."""
        if self.first:
            return Batch.mean_decode(self.sequences, self.first, self.steps)
        return Batch.prefill(self.sequences, self.new)


@dataclass(frozen=True)
class Shape:
    """What turns a step into the sizes of one kernel.

    window, chunk: most keys that a token sees (0: all); by_tokens: rows are tokens, not sequences; tile: rows come in
    multiples of it; experts: of which a token misses each with the chance `missed` (0: no experts).
    """

    window: float = 0.0
    chunk: float = 0.0
    by_tokens: bool = True
    tile: float = 1.0
    experts: float = 0.0
    missed: float = 1.0

    def seen(self, tokens: float) -> float:
        """Query-key pairs of the first `tokens` tokens of a sequence."""
        return float(cumulative_keys(tokens, int(self.window) or None, int(self.chunk) or None))

    def at(self, state: State) -> Features:
        """The sizes of a step."""
        if state.first:
            last = state.first + state.steps - 1.0
            limited = self.window or self.chunk
            seen = (self.seen(last) - self.seen(state.first - 1.0)) / state.steps
            pairs = max(seen, 1.0) if limited else state.first + (state.steps - 1.0) / 2.0
            keys = pairs
        else:
            pairs, keys = self.seen(state.new), state.new
        rows = state.tokens if self.by_tokens else state.sequences
        touched = self.experts * (1.0 - self.missed**state.tokens)
        return Features(state, pairs, keys, rows, touched)


@dataclass(frozen=True)
class Features:
    """A step as one kernel sees it: pairs and keys of one sequence, rows, distinct experts."""

    state: State
    pairs: float
    keys: float
    rows: float
    touched: float

    @property
    def basis(self) -> tuple[float, float, float, float]:
        """What `Linear.at` takes."""
        return self.state.sequences, self.state.tokens, self.state.sequences * self.pairs, self.touched

    def size(self, feature: Feature) -> float:
        """One size by name."""
        match feature:
            case "rows":
                return self.rows
            case "padded_rows":
                return self.rows if self.rows <= _PADDING else _PADDING * math.ceil(self.rows / _PADDING)
            case "sequences":
                return self.state.sequences
            case "tokens":
                return self.state.tokens
            case "keys":
                return self.keys
            case "cached":
                return self.state.sequences * self.keys
            case "length":
                return math.sqrt(2.0 * self.pairs + 0.25) - 0.5
