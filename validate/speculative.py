"""Speculative decoding (Leviathan et al. 2023, arXiv:2211.17192): a draft proposes, the target keeps its distribution.

Letters: N independent trials, g drafted tokens, V vocabulary; q and p are the draft's and the target's probabilities.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F  # noqa: N812 - the customary name
from torch import Tensor

from rooflinekit.validate.tolerance import CheckResult, Trial, follows

__all__ = ["SPECULATIVE_CHECKS", "accepted", "residual", "verify"]

N, V = 20_000, 6  # trials, vocabulary: 20,000 over 36 pairs is some 500 a cell


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


def sampled(trial: Trial) -> Iterator[CheckResult]:
    """First and second token of many trials follow the target, though the draft differs: g = 2.

    Each model is a table of V conditional distributions [previous, next], so that the second token tests what
    happens after an acceptance.
    """
    device, random = trial.device, trial.generator()
    start, draft_table, target_table = (torch.rand(V, V, generator=random).to(device) + 0.1 for _ in range(3))
    q_first, p_first = start[0] / start[0].sum(), start[1] / start[1].sum()
    q_next, p_next = (table / table.sum(dim=1, keepdim=True) for table in (draft_table, target_table))
    run = torch.Generator(device).manual_seed(trial.number(1))
    first = torch.multinomial(q_first, N, replacement=True, generator=run)  # [N]
    second = torch.multinomial(q_next[first], 1, generator=run)[:, 0]
    q = torch.stack([q_first.expand(N, V), q_next[first]], dim=1)  # [N, g, V]
    p = torch.stack([p_first.expand(N, V), p_next[first], p_next[second]], dim=1)  # [N, g + 1, V]
    tokens, count = verify(torch.stack([first, second], dim=1), q, p, run)
    yield follows("speculative sampling, first token", tokens[:, 0], p_first)
    pair = (tokens[:, 0] * V + tokens[:, 1])[count >= 2]
    both = (torch.minimum(q_first, p_first)[:, None] * p_next).flatten()  # accepted first, then any second
    yield follows("speculative sampling, second token", pair, both / both.sum())


SPECULATIVE_CHECKS = (sampled,)
