"""Attention replicas compute prompts side by side: how many share the time that a step waits for."""

from __future__ import annotations

import math

from rooflinekit.model.graph import named
from rooflinekit.model.types.numeric import Numeric, maximum, minimum, where

_SUMMED = 32.0  # chunks in a step up to which the sum is made; beyond it the mean of a rounded-up quotient is known
_TERMS = 80  # of the Poisson law with that mean: what is left out is below 1e-10


def side_by_side(chunks: Numeric, replicas: int) -> Numeric:
    """Chunks of prompts for each time that the fullest attention replica computes one.

    q chunks come with a step on average, J of them by Poisson's law, spread evenly over d replicas: the fullest has
    ⌈J/d⌉, so q/E⌈J/d⌉ share a time: one where they are few, d where they are many.

    Args:
        chunks: that come with a step on average, above 0.
        replicas: attention replicas.

    >>> side_by_side(5.0, 1), round(side_by_side(0.001, 8), 3), round(side_by_side(2.0, 8), 2)
    (1.0, 1.001, 2.31)
    >>> round(side_by_side(1e4, 8), 2)
    7.99
    """
    if replicas == 1:
        return 1.0
    few = maximum(minimum(chunks, _SUMMED), 1e-9)
    chance = math.e ** (-few)
    fullest: Numeric = 0.0
    for count in range(1, _TERMS):
        chance = chance * few / count
        fullest = fullest + -(-count // replicas) * chance
    many = chunks / maximum(chunks / replicas + (replicas - 1) / (2.0 * replicas), 1.0)
    found = maximum(where(chunks > _SUMMED, minimum(many, float(replicas)), few / fullest), 1.0)
    return named(found, "beside", "chunks that attention replicas compute side by side", source=_LAW)


_LAW = "rooflinekit.model.traffic.side_by_side"
