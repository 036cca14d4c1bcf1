"""One engine step: which sequences take part, how many tokens each adds, how many it already has.

Prefill, decode, chunked prefill, speculative verification and mixed steps are all a `Batch`. Every number may be a
scalar (one scenario) or an array (many scenarios at once); a ragged batch is an array over sequences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from numbers import Real
from typing import Any

from rooflinekit.model.graph.symbol import formula, named
from rooflinekit.model.types.errors import WorkloadError
from rooflinekit.model.types.frozen import dataclass, replace
from rooflinekit.model.types.late import np
from rooflinekit.model.types.numeric import Numeric, is_zero, largest, maximum, minimum, total

MOST = 10**18
"""No count that a user may ask for is larger: the work of such a step still fits in a float."""

MOST_NUMBER = 1e12
"""No other number that a user may give is larger."""

_DIGITS = 24
_PAST = "past", "tokens each has in the cache already"


def real_number(  # noqa: PLR0913, PLR0917 - what a number has to be, and how it is called
    value: object, name: str, least: float = 0.0, most: float = MOST_NUMBER, above: bool = False, help_: str = ""
) -> float:
    """A number that a user gave, from `least` or above it, to `most`."""
    words, hint = f"above {least:g}" if above else f"at least {least:g}", ""
    if most < MOST_NUMBER:
        words = f"{words} and at most {most:,.12g}" if above else f"from {least:g} to {most:,.12g}"
        hint = f" ({help_.rstrip('.')})" if help_ else ""
    if isinstance(value, bool) or not isinstance(value, Real) or math.isnan(float(value)):
        raise WorkloadError(f"{name} must be {words if words[0] == 'f' else f'a number {words}'}, not {value!r}")
    number = float(value)
    if MOST_NUMBER < number < math.inf and most == MOST_NUMBER:
        raise WorkloadError(f"{name} must be at most {MOST_NUMBER:g}, not {value!r}")
    if math.isinf(number) and not math.isinf(most):
        raise WorkloadError(f"{name} must be a finite number, not {number}")
    if not least <= number <= most or (above and number == least):
        raise WorkloadError(f"{name} must be {words}, not {value!r}{hint}")
    return number


def positive(value: object, name: str, zero: bool = False) -> float:
    """A number that a user gave; above 0, or at least 0.

    >>> positive(2, "price")
    2.0
    """
    return real_number(value, name, above=not zero)


def whole_number(value: object, name: str, least: int = 1) -> int:
    """Read a count given by a user.

    >>> whole_number(32, "batch")
    32
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise WorkloadError(f"{name} must be a whole number, not {value!r}")
    number: Any = value
    if not least <= number <= MOST or int(number) != number:
        limit = f"at most {MOST:.0e}" if MOST < number < float("inf") else f"at least {least}"
        raise WorkloadError(f"{name} must be a whole number of {limit}, not {_short(number)}")
    return int(number)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _DIGITS else f"{text[:_DIGITS]}…"


def cumulative_keys(tokens: Numeric, window: int | None = None, chunk: int | None = None) -> Numeric:
    """Query-key pairs of the first `tokens` tokens of a causal sequence.

    Token p (from 1) sees p keys; a window w caps that at w; a chunk c at its place inside its chunk.

    >>> cumulative_keys(4.0), cumulative_keys(4.0, window=2), cumulative_keys(5.0, chunk=2)
    (10.0, 7.0, 7.0)
    """
    if chunk is not None:
        chunks = tokens // (1.0 * chunk)
        rest = tokens - chunks * chunk
        return chunks * (chunk * (chunk + 1) / 2) + rest * (rest + 1) / 2
    if window is not None:
        inside = minimum(tokens, 1.0 * window)
        return inside * (inside + 1) / 2 + maximum(tokens - window, 0.0) * window
    return tokens * (tokens + 1) / 2


@dataclass(frozen=True)
class Sequences:
    """Sequences in the same phase of a step.

    count: how many such sequences; new: tokens each computes in this step; past: tokens each already has in the
    cache; sampled: rows of logits each needs. With `ragged`, the last axis of the arrays runs over sequences.
    span: the work is the mean over this many consecutive contexts, `past` the one in the middle; for one new token.
    """

    count: Numeric
    new: Numeric
    past: Numeric = 0.0
    sampled: Numeric = 1.0
    ragged: bool = False
    span: Numeric = 1.0

    def total(self, each: Numeric) -> Numeric:
        """Sum a per-sequence quantity over the sequences."""
        return total(self.count * each) if self.ragged else self.count * each

    @property
    def sequences(self) -> Numeric:
        """Number of sequences."""
        return total(self.count) if self.ragged else self.count

    @property
    def tokens(self) -> Numeric:
        """Tokens computed in this step."""
        return named(self.total(self.new), "new", "new tokens of these sequences")

    @property
    def sampled_rows(self) -> Numeric:
        """Rows of logits."""
        return self.total(self.sampled)

    @formula("pairs", "query-key pairs, causal", source="docs/method.md, query-key pairs")
    def pairs(self, window: int | None = None, chunk: int | None = None) -> Numeric:
        """Query-key pairs that causal attention scores, exact.

        A prefill of S after a cached prefix P has S*P + S(S+1)/2; a decode step at context T has T. The mean over the
        contexts a .. b is (the pairs of the first b tokens - those of the first a - 1) / (b - a + 1).

        >>> Sequences(1.0, new=4.0, past=2.0).pairs(), Sequences(2.0, new=1.0, past=9.0).pairs()
        (18.0, 20.0)
        >>> Sequences(1.0, new=1.0, past=6.0, span=3.0).pairs(chunk=4)  # at 6, 7 and 8 tokens: 2, 3 and 4 keys
        3.0
        """
        if window is None and chunk is None:  # linear in the context, so the one in the middle is the mean
            return self.total(self.new * (self.past + (self.new + 1.0) / 2))
        if self._averaged:
            first, last = self.past - (self.span - 1.0) / 2, self.past + (self.span + 1.0) / 2
            seen = cumulative_keys(last, window, chunk) - cumulative_keys(first, window, chunk)
            return self.total(maximum(seen / self.span, 1.0))  # a query sees itself, whatever is lost to rounding
        upto = cumulative_keys(self.past + self.new, window, chunk)
        if is_zero(self.past):
            return self.total(upto)
        return self.total(upto - cumulative_keys(self.past, window, chunk))

    @formula("keys", "cached tokens that are read", source="docs/method.md, query-key pairs")
    def keys_read(self, window: int | None = None, chunk: int | None = None) -> Numeric:
        """Cached tokens that at least one new token sees, each counted once (the new ones included).

        >>> Sequences(1.0, new=4.0, past=10.0).keys_read(window=3)
        6.0
        """
        if self._averaged:  # one query: every key that it sees is read for it
            return self.pairs(window, chunk)
        if is_zero(self.past):
            return self.total(self.new)
        seen = self.past
        if window is not None:
            seen = minimum(seen, window - 1.0)
        if chunk is not None:
            seen = seen - seen // (1.0 * chunk) * chunk
        return self.total(seen + self.new)

    @property
    def _averaged(self) -> bool:
        return not isinstance(self.span, (int, float)) or self.span != 1.0

    @property
    def longest(self) -> Numeric:
        """Longest context, new tokens included (with a span, the one in the middle)."""
        context = self.past + self.new
        return largest(context) if self.ragged else context


@dataclass(frozen=True)
class Batch:
    """The sequences of one engine step, by phase: attention runs a different kernel for each.

    filled: with attention replicas, the mean tokens of a replica over those of the fullest. The sequences are those of
    the fullest; experts and their exchange take the mean. varying: of a step that is the mean of many, the standard
    deviation of their tokens. padding: tokens that nobody asked for, up to the size of a CUDA graph; no sequence of the
    cache belongs to them.
    """

    prefilling: Sequences | None = None
    decoding: Sequences | None = None
    filled: Numeric = 1.0
    varying: Numeric = 0.0
    padding: Numeric = 0.0

    @classmethod
    def prefill(cls, batch: Numeric, isl: Numeric, cached: Numeric = 0.0) -> Batch:
        """`batch` prompts of `isl` tokens, of which `cached` are already in the cache.

        >>> Batch.prefill(2.0, 1024.0, cached=1000.0).tokens
        48.0
        """
        return cls(prefilling=Sequences(batch, isl - cached, cached))

    @classmethod
    def chunk(cls, batch: Numeric, new: Numeric, past: Numeric, last: bool) -> Batch:
        """A piece of a prompt; only the last piece samples."""
        return cls(prefilling=Sequences(batch, new, past, 1.0 if last else 0.0))

    @classmethod
    def decode(cls, batch: Numeric, context: Numeric, new: Numeric = 1.0) -> Batch:
        """One decode step in which each sequence ends at `context` keys, its `new` tokens included.

        `new` above 1 is the verification of drafted tokens.

        >>> Batch.decode(32.0, 2048.0).decoding.pairs()
        65536.0
        """
        return cls(decoding=Sequences(batch, new, named(context - new, *_PAST), new))

    @classmethod
    def mean_decode(cls, batch: Numeric, first: Numeric, steps: Numeric) -> Batch:
        """The mean of `steps` decode steps, of which the first ends at `first` keys and each other one key later.

        Its work is the exact mean for full, windowed and chunked attention.

        >>> Batch.mean_decode(1.0, 3.0, 4.0).decoding.pairs(window=4)  # at 3, 4, 5 and 6 keys: 3, 4, 4 and 4
        3.75
        """
        return cls(decoding=Sequences(batch, 1.0, named(first + (steps - 3.0) / 2, *_PAST), span=steps))

    @classmethod
    def ragged(cls, lengths: Sequence[int], past: Sequence[int] | None = None) -> Batch:
        """Prompts of different lengths packed without padding (varlen attention, cu_seqlens).

        >>> float(Batch.ragged([3, 5]).tokens)
        8.0

        Raises WorkloadError for an empty list, a length below 1 or lists of different length.
        """
        if len(lengths) == 0:
            raise WorkloadError("a ragged batch needs at least one length")
        new = np.array([whole_number(length, "length") for length in lengths], dtype=float)
        cached = (
            np.zeros_like(new) if past is None else np.array([whole_number(p, "past", 0) for p in past], dtype=float)
        )
        if cached.shape != new.shape:
            raise WorkloadError(f"{len(new)} lengths but {len(cached)} past lengths")
        return cls(prefilling=Sequences(np.ones_like(new), new, cached, ragged=True))

    @classmethod
    def from_cu_seqlens(cls, cu_seqlens: Sequence[int]) -> Batch:
        """Make a batch from cumulative offsets, as varlen kernels take them.

        >>> float(Batch.from_cu_seqlens([0, 3, 8]).tokens)
        8.0
        """
        if len(cu_seqlens) < 2 or cu_seqlens[0] != 0:
            raise WorkloadError("cu_seqlens starts at 0 and has one entry more than there are sequences")
        ends = [whole_number(end, "cu_seqlens", 0) for end in cu_seqlens]
        return cls.ragged([end - start for start, end in pairwise(ends)])

    def __or__(self, other: Batch) -> Batch:
        """A mixed step: the prefill of one and the decode of the other."""
        if (self.prefilling and other.prefilling) or (self.decoding and other.decoding):
            raise WorkloadError("a mixed batch joins one prefill with one decode")
        return Batch(self.prefilling or other.prefilling, self.decoding or other.decoding)

    @property
    def half(self) -> Batch:
        """Half of the work: half the tokens of every prompt, in the mean of both halves, and half the other sequences.

        >>> Batch.prefill(1.0, 4.0).half.prefilling.pairs(), Batch.decode(8.0, 9.0).half.decoding.sequences
        (5.0, 4.0)
        """
        new, decoding = self.prefilling, self.decoding
        if new is not None:
            tokens = new.new / 2.0
            new = replace(new, new=tokens, past=new.past + tokens / 2.0, sampled=new.sampled / 2.0)
        decoding = decoding and replace(decoding, count=decoding.count / 2.0)
        return replace(self, prefilling=new, decoding=decoding, varying=self.varying / 2.0)

    def shared(self, share: Numeric) -> Batch:
        """Multiply the sequences.

        >>> Batch.decode(8.0, 9.0).shared(0.25).decoding.sequences
        2.0
        """
        new, old = (part and replace(part, count=part.count * share) for part in (self.prefilling, self.decoding))
        return replace(self, prefilling=new, decoding=old)

    @property
    def phases(self) -> tuple[Sequences, ...]:
        """The phases present."""
        return tuple(phase for phase in (self.prefilling, self.decoding) if phase is not None)

    @property
    def tokens(self) -> Numeric:
        """Tokens computed in this step."""
        return sum((phase.tokens for phase in self.phases), self.padding)

    @property
    def sequences(self) -> Numeric:
        """Sequences in this step."""
        return sum((phase.sequences for phase in self.phases), 0.0)

    @property
    def sampled_rows(self) -> Numeric:
        """Rows of logits."""
        return sum((phase.sampled_rows for phase in self.phases), self.padding)
