"""Speculative sampling changes how fast tokens come, never which: the target's distribution stays."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from rooflinekit.validate import speculative
from rooflinekit.validate.tolerance import CheckResult, Trial, chi_square, critical_chi_square

__all__ = ["SPECULATIVE_CHECKS"]

N, V, g = 20_000, 6, 2  # trials, vocabulary, drafted tokens: 20,000 over 36 pairs is some 500 a cell


def sampled(trial: Trial) -> Iterator[CheckResult]:
    """First and second token of many trials follow the target, though the draft differs; chi-square at 1 in 10,000.

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
    tokens, count = speculative.verify(torch.stack([first, second], dim=1), q, p, run)
    yield _fits("speculative sampling, first token", tokens[:, 0], p_first)
    both = count >= 2
    pair = tokens[both, 0] * V + tokens[both, 1]
    share = (torch.minimum(q_first, p_first)[:, None] * p_next).flatten()  # accepted first, then any second
    yield _fits("speculative sampling, second token", pair, share / share.sum())


def _fits(name: str, tokens: Tensor, probability: Tensor) -> CheckResult:
    counts = torch.bincount(tokens, minlength=len(probability)).double()
    statistic, limit = chi_square(counts, probability.double() * len(tokens)), critical_chi_square(len(probability) - 1)
    detail = f"chi-square of {len(tokens)} tokens over {len(probability)} cells"
    return CheckResult(name, statistic <= limit, statistic, limit, detail)


SPECULATIVE_CHECKS = (sampled,)
