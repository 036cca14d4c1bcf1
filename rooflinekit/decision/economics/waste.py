"""Memory that holds nothing: room reserved for the longest sequence, against blocks handed out as it grows.

Over its life a sequence of S tokens in and N out holds S + N/2 on average. Long answers are there longer, so the mean
over time, with S and N independent, is

    held  = E[S] + E[N²]/(2·E[N])              tokens with content
    final = E[S] + E[N²]/E[N]                  tokens if the end were known and reserved
    paged = held + (b − 1)/2                   blocks of b tokens: half of the last one is empty

and a reservation takes the longest admitted length. Used shares are bytes(held)/bytes(what is taken), by the cache law
of the model, so that windows and states count as they are. The kinds of waste are those of Kwon et al. 2023 (vLLM,
arXiv:2309.06180, section 3.1).
"""

from __future__ import annotations

from dataclasses import dataclass

from rooflinekit.estimation.lengths import Length
from rooflinekit.model.memory.cache import cache_law
from rooflinekit.model.operating_point import Predictor

__all__ = ["Waste", "memory_waste"]


@dataclass(frozen=True)
class Waste:
    """Mean tokens of a sequence, shares of the taken memory that hold content, and sequences that fit."""

    reserved_tokens: float
    final_tokens: float
    held_tokens: float
    block: int
    reserved_used: float
    final_used: float
    paged_used: float
    reserved_sequences: int
    final_sequences: int
    paged_sequences: int

    @property
    def gain(self) -> float | None:
        """Sequences with blocks over sequences with reservations; None if not one reservation fits."""
        return self.paged_sequences / self.reserved_sequences if self.reserved_sequences else None


def memory_waste(predictor: Predictor, isl: Length, osl: Length, longest: int) -> Waste:
    """Compare reservations of `longest` tokens, exact reservations, and blocks.

    Sequences that fit are those of the mean length, without the engine's limit on their number.

    >>> from rooflinekit.estimation.estimator import read_deployment, resolve
    >>> from rooflinekit.estimation.lengths import Fixed, Uniform
    >>> plain = resolve("llama-3-8b", "h100-sxm", read_deployment({}), "none").predictor
    >>> w = memory_waste(plain, Fixed(1000), Fixed(200), 4400)
    >>> w.held_tokens, round(w.reserved_used, 3), w.block, round(w.paged_used, 4)  # 1100/4400, 1100/1107.5
    (1100.0, 0.25, 16, 0.9932)
    >>> memory_waste(plain, Fixed(1), Uniform(1, 6), 100).held_tokens  # 1 + (91/6)/7
    3.1667
    """
    plan = predictor.plan
    growth = osl.second_moment / osl.mean
    held, final = isl.mean + growth / 2.0, isl.mean + growth
    block = predictor.memory.stages[0].layout.block
    law = cache_law(plan.model.layers, plan.precision.kv, policy=plan.deployment.kv_policy)
    content = float(law.bytes(held))
    reserved, exact, paged = (
        content / float(law.bytes(taken)) for taken in (float(longest), final, held + (block - 1.0) / 2.0)
    )
    fit = [_fitting(predictor, tokens, isl.mean) for tokens in (float(longest), final, held)]
    return Waste(float(longest), final, held, block, reserved, exact, paged, *fit)


def _fitting(predictor: Predictor, tokens: float, prompt: float) -> int:
    return int(float(predictor.memory.max_batch(tokens, min(prompt, tokens))))
