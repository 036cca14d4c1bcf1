"""The time of one engine step from a table: built once a deployment with arrays, read in a microsecond.

A step's kernels fall into three kinds. Some work on all tokens of the step together (projections, experts, norms,
collectives), some on the rows that are sampled (LM head, sampler), some on each phase by itself (attention). Their
times add up, so one table each is enough, and a mixed step needs no grid over all of its numbers:

    t = shared(tokens) + sampled(rows) + sequences(count) + decode(sequences, mean context) + Σ prefill(new, past)

and with a prompt in it, where no CUDA graph is replayed, at least the time that the host needs for its launches. The
first three and the batch of the fourth are tabulated at every whole number; contexts, and the new and past tokens of a
chunk, are on grids with linear interpolation. Of attention replicas the fullest counts, but experts and their exchange
work on the tokens of all: these stand in a table of their own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Chunk", "Clock", "Span", "StepTable", "TokenTimes"]

Chunk = tuple[int, int]
"""New tokens of a prompt in this step, and the tokens before them that are in the cache."""

Span = tuple[float, float, int]
"""Time of the first decode step of a run [s], what each later one takes more [s], and for how many that holds."""


class Clock(Protocol):
    """How long an engine step takes. A `StepTable` is one; a test may bring its own."""

    def step(self, decodes: int, keys: int, chunks: Sequence[Chunk], firsts: int) -> float:
        """Time of a step [s].

        Args:
            decodes: sequences that decode.
            keys: tokens that these have in the cache, all together.
            chunks: pieces of prompts.
            firsts: prompts that end in this step, each of which samples a token.
        """
        ...

    def run(self, decodes: int, keys: int) -> Span:
        """Decode steps one after the other, in each of which every sequence gets a token."""
        ...


@dataclass(frozen=True)
class TokenTimes:
    """Times by number of tokens [s]: `dense` from 0, and beyond it `times` at `counts`, straight lines between."""

    dense: list[float]
    counts: list[float]
    times: list[float]

    def __call__(self, tokens: int) -> float:
        """The time of this many tokens."""
        if tokens < len(self.dense):
            return self.dense[tokens]
        counts, times = self.counts, self.times
        at = bisect_right(counts, tokens, 1, len(counts) - 1)
        low, left = counts[at - 1], times[at - 1]
        return left + (times[at] - left) * (tokens - low) / (counts[at] - low)


@dataclass(frozen=True)
class StepTable:
    """Time of the steps of one deployment [s]. Build it with `rk.step_table`.

    shared: by tokens of the fullest attention replica; pooled: what attention replicas do together, by tokens of all;
    a step of decodes alone is padded, so that all replicas replay the same CUDA graph. sampled, sequences: by whole
    number, from 0. grid: numbers of tokens, from 0, and `cells` the place in it of every whole number. decode: by
    sequences and place in the grid. prefill: for each cell of new and past tokens, a, b, c and d of a + b·new +
    (c + d·new)·past. launch: what every chunk after the first saves, because one launch serves all. width: tokens a
    sequence computes in a decode step (more than one verifies a draft). replicas: attention replicas that share the
    sequences evenly. floor: least time of a step that is launched kernel by kernel, of prompts, mixed, or of decoding
    sequences, and `sequence_floor` more for each sequence; `graphs` spares the last kind that.
    """

    shared: TokenTimes
    pooled: TokenTimes | None
    sampled: list[float]
    sequences: list[float]
    grid: list[float]
    cells: list[int]
    decode: list[list[float]]
    prefill: list[list[list[float]]]
    launch: float
    width: int = 1
    replicas: int = 1
    floor: tuple[float, float, float] = (0.0, 0.0, 0.0)
    sequence_floor: float = 0.0
    graphs: bool = True

    def __call__(self, batch: int, context: float, new: int = 0, past: int = 0) -> float:
        """Time of a step of `batch` decoding sequences at `context` keys and one chunk of `new` tokens [s].

        `context` includes the token that the step computes, as in `Batch.decode`; the chunk ends its prompt.
        """
        keys = batch * (context - self.width)
        return self.step(batch, keys, ((new, past),) if new else (), 1 if new else 0)

    def step(self, decodes: int, keys: float, chunks: Sequence[Chunk], firsts: int) -> float:
        """See `Clock`."""
        together = 0.0
        if self.replicas > 1:
            everywhere = decodes * self.width + sum(new for new, _ in chunks)
            decodes, keys, chunks, firsts = self._share(decodes, keys, chunks, firsts)
            if self.pooled is not None:
                together = self.pooled(everywhere if chunks else decodes * self.width * self.replicas)
        prompts, width, cells = len(chunks), self.width, self.cells
        tokens = decodes * width
        time = together + self.sequences[decodes + prompts] + self.sampled[tokens + firsts]
        if decodes:
            row, context = self.decode[decodes], keys / decodes + width
            at = cells[int(context)] if context < len(cells) else cells[-1]
            low, left = self.grid[at], row[at]
            time += left + (row[at + 1] - left) * (context - low) / (self.grid[at + 1] - low)
        for new, past in chunks:
            tokens += new
            row_of = self.prefill[cells[new] if new < len(cells) else cells[-1]]
            a, b, c, d = row_of[cells[past] if past < len(cells) else cells[-1]]
            time += a + b * new + past * (c + d * new)
        time += self.shared(tokens)
        if prompts > 1:
            time -= self.launch * (prompts - 1)
        if prompts or not self.graphs:
            kind = 2 if not prompts else 1 if decodes else 0
            least = self.floor[kind] + self.sequence_floor * (decodes + prompts)
            return least if least > time else time
        return time

    def run(self, decodes: int, keys: float) -> Span:
        """See `Clock`; straight up to the next context of the grid."""
        together = 0.0
        if self.replicas > 1:
            decodes, keys, _, _ = self._share(decodes, keys, (), 0)
            if self.pooled is not None:
                together = self.pooled(decodes * self.width * self.replicas)
        row, context, width, cells = self.decode[decodes], keys / decodes + self.width, self.width, self.cells
        at = cells[int(context)] if context < len(cells) else cells[-1]
        low, high, left = self.grid[at], self.grid[at + 1], row[at]
        slope = (row[at + 1] - left) / (high - low)
        time = together + self.sequences[decodes] + self.sampled[decodes * width] + left + slope * (context - low)
        time += self.shared(decodes * width)
        if not self.graphs and (least := self.floor[2] + self.sequence_floor * decodes) > time:
            return least, 0.0, 1
        return time, slope * width, int((high - context) / width) + 1 if high > context else 1 << 30

    def _share(
        self, decodes: int, keys: float, chunks: Sequence[Chunk], firsts: int
    ) -> tuple[int, float, Sequence[Chunk], int]:
        """What the fullest attention replica gets; a chunk is never divided."""
        local = -(-decodes // self.replicas)
        largest = sorted(chunks, reverse=True)[:: self.replicas]
        return local, keys / decodes * local if decodes else 0, largest, -(-firsts // self.replicas)
