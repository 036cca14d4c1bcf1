"""Speculative decoding (Leviathan et al. 2023, arXiv:2211.17192): a draft proposes, the target keeps its distribution.

Letters: N independent trials, g drafted tokens, V vocabulary; q and p are the draft's and the target's probabilities.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - the customary name
from torch import Tensor

from rooflinekit.validate.cache import Room
from rooflinekit.validate.decoder import Decoder

__all__ = ["Session", "accepted", "distribution", "generate", "residual", "speculate", "verify"]


class Session:
    """One sequence in a decoder: its cache, and how many tokens are in it."""

    def __init__(self, decoder: Decoder, length: int) -> None:
        weight = decoder.embedding.weight
        self.decoder, self.past = decoder, 0
        self.cache = decoder.caches(Room(1, length, weight.dtype, weight.device))

    def logits(self, sequence: Tensor) -> Tensor:
        """Logits [1, new, V] of the tokens of sequence [1, T] that are not in the cache yet."""
        out: Tensor = self.decoder(sequence[:, self.past :], self.cache, self.past)
        self.past = sequence.shape[1]
        return out

    def rewind(self, length: int) -> None:
        """Forget what lies behind `length` tokens."""
        self.past = min(self.past, length)


def distribution(logits: Tensor, temperature: float) -> Tensor:
    """Probabilities over the last axis; at temperature 0 all of it on the best token."""
    if temperature == 0:
        return F.one_hot(logits.argmax(dim=-1), logits.shape[-1]).to(logits.dtype)
    return (logits / temperature).softmax(dim=-1)


def accepted(draft: Tensor, q: Tensor, p: Tensor, generator: torch.Generator) -> Tensor:
    """Whether each drafted token [N, g] is kept: with probability min(1, p/q). q [N, g, V], p [N, g + 1, V]."""
    there = draft[..., None]
    ratio = p[:, :-1].gather(-1, there) / q.gather(-1, there)  # [N, g, 1]
    return torch.rand(draft.shape, generator=generator, device=draft.device) < ratio[..., 0]


def residual(q: Tensor, p: Tensor) -> Tensor:
    """What to sample from after a rejection: max(p - q, 0), normalised; the rows of multinomial need not add up to 1.

    Where p equals q nothing is ever rejected, and p stands in.
    """
    rest = (p - q).clamp_min(0.0)
    return torch.where(rest.sum(dim=-1, keepdim=True) > 0, rest, p)


def verify(draft: Tensor, q: Tensor, p: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Tokens [N, g + 1] and how many of them count [N]: the drafted ones up to the first rejection, and one more.

    The last comes from the residual where a token was rejected, else from the target, for which q counts as zero.
    """
    kept = accepted(draft, q, p, generator).long().cumprod(dim=1).sum(dim=1)  # [N], 0 .. g
    row = kept[:, None, None].expand(-1, 1, p.shape[-1])
    q_all = F.pad(q, (0, 0, 0, 1))  # [N, g + 1, V]
    last = torch.multinomial(residual(q_all.gather(1, row), p.gather(1, row))[:, 0], 1, generator=generator)  # [N, 1]
    return F.pad(draft, (0, 1)).scatter(1, kept[:, None], last), kept + 1


def generate(session: Session, prompt: Tensor, count: int, generator: torch.Generator, temperature: float) -> Tensor:
    """The prompt [1, P] and `count` tokens sampled one by one."""
    sequence = prompt
    for _ in range(count):
        last = distribution(session.logits(sequence)[:, -1], temperature)
        sequence = torch.cat([sequence, torch.multinomial(last, 1, generator=generator)], dim=1)
    return sequence


def speculate(pair: tuple[Session, Session], prompt: Tensor, count: int, g: int, temperature: float = 0.0) -> Tensor:
    """The prompt [1, P] and `count` tokens of the second session's model, g at a time proposed by the first's."""
    drafter, target = pair
    generator = torch.Generator(prompt.device).manual_seed(0)
    sequence, goal = prompt, prompt.shape[1] + count
    while sequence.shape[1] < goal:
        known = sequence.shape[1]
        proposed, q = _draft(drafter, sequence, g, temperature, generator)
        p = distribution(target.logits(proposed)[:, -g - 1 :], temperature)
        tokens, taken = verify(proposed[:, known:], q, p, generator)
        sequence = torch.cat([sequence, tokens[:, : int(taken)]], dim=1)
        for session in pair:
            session.rewind(sequence.shape[1] - 1)  # the newest token came from sampling: no model has seen it
    return sequence[:, :goal]


def _draft(
    session: Session, sequence: Tensor, g: int, temperature: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """The sequence with g more tokens, and the distributions [1, g, V] that they came from."""
    rows = []
    for _ in range(g):
        rows.append(distribution(session.logits(sequence)[:, -1:], temperature))
        sequence = torch.cat([sequence, torch.multinomial(rows[-1][:, 0], 1, generator=generator)], dim=1)
    return sequence, torch.cat(rows, dim=1)
