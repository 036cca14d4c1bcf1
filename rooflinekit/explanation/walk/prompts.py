"""The sequences that walk through the model, and how their tokens are laid out."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Literal, TypeAlias

from rooflinekit.model.types.batch import Batch, Sequences, whole_number
from rooflinekit.model.types.errors import InputError, WorkloadError

PROMPT = "The cat sat on the mat"
"""Walks where nothing else is asked for: six words, six tokens."""

PhaseName: TypeAlias = Literal["prefill", "decode"]
_MOST_SEQUENCES = 10_000


@dataclass(frozen=True)
class Prompts:
    """Prompts of one step: `count` equal ones side by side, or several lengths packed without padding.

    words: what stands in for the tokens of a single prompt, for people to look at.
    """

    lengths: tuple[int, ...]  #: in tokens, cached ones included; one entry if all are equal
    count: int = 1
    cached: int = 0
    words: tuple[str, ...] = ()

    @property
    def packed(self) -> bool:
        """True if tokens of all sequences share one axis."""
        return len(self.lengths) > 1

    @property
    def sequences(self) -> int:
        """B, however they are laid out."""
        return len(self.lengths) if self.packed else self.count

    @property
    def new(self) -> tuple[int, ...]:
        """Tokens of each sequence that the prefill computes."""
        return tuple(length - self.cached for length in self.lengths) * (1 if self.packed else self.count)

    def shared(self, replicas: int, microbatches: int = 1) -> Prompts:
        """Prompts of the fullest of several attention replicas, and of one microbatch; `estimate` has all as full.

        >>> Prompts((6,), count=5).shared(2).count
        3

        Raises WorkloadError for packed prompts.
        """
        count = self.count
        for name, parts in (("dp", replicas), ("microbatches", microbatches)):
            if parts > 1 and self.packed:
                spread = f"{name}={parts} spreads prompts of one length"
                raise WorkloadError(f"{spread}; give one and --batch, or leave {name} out")
            count = -(-count // parts)
        return replace(self, count=count)

    def cu_seqlens(self, phase: PhaseName) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Offset of each sequence among the packed new tokens, and among the keys, and where the last one ends.

        >>> Prompts((6, 3, 9)).cu_seqlens("prefill")
        ((0, 6, 9, 18), (0, 6, 9, 18))
        >>> Prompts((6, 3, 9)).cu_seqlens("decode")
        ((0, 1, 2, 3), (0, 7, 11, 21))
        """
        keys = self.lengths if self.packed else self.lengths * self.count
        new = self.new if phase == "prefill" else (1,) * self.sequences
        keys = keys if phase == "prefill" else tuple(length + 1 for length in keys)
        return tuple(accumulate(new, initial=0)), tuple(accumulate(keys, initial=0))

    @property
    def padded_tokens(self) -> int:
        """Tokens that a padded prefill would compute: every sequence as long as the longest.

        >>> Prompts((6, 3, 9)).padded_tokens
        27
        """
        return self.sequences * max(self.new)

    def seen(self, phase: PhaseName, window: int | None, chunk: int | None) -> str:
        """Rule by which query-key pairs are counted: causal, or within a window or chunks.

        >>> Prompts((6,)).seen("prefill", None, None), Prompts((6,)).seen("prefill", 4, None)
        (', causal: S·(S+1)/2', ', at most 4 keys a token: 4·5/2 + 2·4')
        """
        decode, times = phase == "decode", "B·" if self.count > 1 else ""
        window = None if window is None else int(window)
        if chunk is not None:
            return f", within chunks of {chunk:,}"
        if window is not None:
            limit, rest = f", at most {window:,} keys a token", self.lengths[0] - window
            if decode or self.packed or self.cached or rest <= 0:
                return limit
            added = f"{window}·{window + 1}/2 + {rest}·{window}"
            return f"{limit}: B·({added})" if times else f"{limit}: {added}"
        if decode:
            return "" if self.packed else f": {times}T"
        if self.packed:
            return ", causal in each prompt"
        return f", causal: {times}{'(S·P+S·(S+1)/2)' if self.cached else 'S·(S+1)/2'}"

    def batch(self, phase: PhaseName) -> Batch:
        """The engine step: all new tokens, or the token behind them.

        >>> float(Prompts((6, 3, 9)).batch("prefill").tokens), float(Prompts((6, 3, 9)).batch("decode").tokens)
        (18.0, 3.0)
        """
        if self.packed:
            ragged = Batch.ragged(self.new, [self.cached] * len(self.lengths))
            (prompts,) = ragged.phases
            behind = Sequences(prompts.count, prompts.count, prompts.past + prompts.new, ragged=True)
            return ragged if phase == "prefill" else Batch(decoding=behind)
        length = float(self.lengths[0])
        if phase == "prefill":
            return Batch.prefill(float(self.count), length, float(self.cached))
        return Batch.decode(float(self.count), length + 1.0)


def read_prompts(tokens: object, prompt: object, batch: object, cached: object) -> Prompts:
    """Read what a user typed; with neither tokens nor a prompt, `PROMPT` walks.

    >>> read_prompts("6,3,9", None, 1, 0).lengths, read_prompts(None, "Hello there", 1, 0).lengths
    ((6, 3, 9), (2,))

    Raises InputError or WorkloadError.
    """
    if tokens is not None and prompt is not None:
        raise InputError("tokens and prompt both say how long the prompt is; give one of them")
    words = _words(PROMPT if prompt is None else prompt) if tokens is None else ()
    lengths = (len(words),) if tokens is None else _lengths(tokens)
    count, prefix = whole_number(batch, "batch"), whole_number(cached, "cached", 0)
    if len(lengths) > 1 and count > 1:
        raise WorkloadError(f"batch={count} repeats one length, and {len(lengths)} lengths were given; leave batch out")
    if prefix >= min(lengths):
        raise WorkloadError(f"cached={prefix} leaves nothing of {min(lengths)} tokens to compute; use less")
    return Prompts(lengths, count, prefix, words)


_ALONE = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]")  # kana and Han are written without spaces
_JOINING = ("M", "Cf")  # kinds of letters that belong to the one before: accents, vowel signs, emoji joiners


def _pieces(text: str) -> Iterator[str]:
    """Runs of letters and digits, and every other mark alone; an apostrophe between letters parts nothing."""
    piece, word = "", False
    for place, letter in enumerate(text):
        within = letter in "'’" and word and text[place + 1 : place + 2].isalpha()
        joins = piece and unicodedata.category(letter).startswith(_JOINING)
        wordy = (letter.isalnum() or letter == "_") and not _ALONE.match(letter)
        if piece and not (joins or within or (word and wordy)):
            yield piece
            piece = ""
        if not letter.isspace():
            piece, word = piece + letter, word if joins or within else wordy
    if piece:
        yield piece


def _words(prompt: object) -> tuple[str, ...]:
    """Words and marks, as most tokenizers part them before they cut words up.

    >>> _words("Don't sit, cat!"), _words("猫 sat")
    (("Don't", 'sit', ',', 'cat', '!'), ('猫', 'sat'))
    """
    words = tuple(_pieces(prompt)) if isinstance(prompt, str) else ()
    if not words:
        raise WorkloadError(f"prompt must be a text of at least one word, not {prompt!r}")
    return words


def _lengths(tokens: object) -> tuple[int, ...]:
    """One length, several, or text with commas between them."""
    parts: Iterable[Any]
    if isinstance(tokens, str):
        parts = [_number(part) for part in tokens.split(",")]
    else:
        parts = tokens if isinstance(tokens, Sequence) else [tokens]
    lengths = tuple(whole_number(part, "tokens") for part in parts)
    if not lengths:
        raise WorkloadError("tokens needs at least one length")
    if len(lengths) > _MOST_SEQUENCES:
        raise WorkloadError(f"{len(lengths)} sequences are more than a walk shows; use at most {_MOST_SEQUENCES}")
    return lengths


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise WorkloadError(f"tokens must be whole numbers such as 6 or 6,3,9, not {text.strip()[:24]!r}") from None
