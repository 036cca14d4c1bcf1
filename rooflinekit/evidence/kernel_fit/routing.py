"""What the routing of a benchmark brings to its busiest accelerator."""

from __future__ import annotations

from functools import cache

import numpy as np

from rooflinekit.model.types.numeric import Array

__all__ = ["balanced_load", "power_law_load"]

_SAMPLES = 32
_LOW, _SMALL, _HIGH = 1.0, (0.01, 2.0), 0.8
"""Bounds of the sampled counts: 1 to 0.8·tokens, or 0.01 to 2 when there are fewer pairs than experts."""


def balanced_load(tokens: Array, top_k: Array, experts: Array, ranks: Array) -> tuple[Array, Array]:
    """(token, expert) pairs and distinct experts on one rank when tokens spread evenly over all experts.

    >>> pairs, touched = balanced_load(np.array([4.0]), np.array([8.0]), np.array([256.0]), np.array([8.0]))
    >>> float(pairs[0]), float(touched[0])
    (4.0, 4.0)
    """
    pairs = np.maximum(tokens * top_k / ranks, 1.0)
    return pairs, np.minimum(experts / ranks, pairs)


def power_law_load(tokens: Array, top_k: Array, experts: Array, ranks: Array) -> tuple[Array, Array]:
    """The same for the busiest rank when counts per expert follow a power law of exponent 1.2.

    Counts are drawn by the inverse of the distribution function between 1 and 0.8·tokens and scaled to the number of
    pairs, as the benchmark behind the tables does (aiconfigurator, collector helper `power_law_logits`); the mean over
    seeded draws is returned.
    """
    cases = [tuple(int(value) for value in case) for case in zip(tokens, top_k, experts, ranks, strict=True)]
    found = {case: _busiest(*case) for case in set(cases)}
    return np.array([found[case][0] for case in cases]), np.array([found[case][1] for case in cases])


@cache
def _busiest(tokens: int, top_k: int, experts: int, ranks: int) -> tuple[float, float]:
    low, high = (_LOW, max(_HIGH * tokens, _LOW + 1.0)) if tokens * top_k > experts else _SMALL
    power = 1.0 - 1.2
    draws = np.random.default_rng(experts).random((_SAMPLES, experts))
    counts = (draws * (high**power - low**power) + low**power) ** (1.0 / power)
    counts = np.minimum(counts * (tokens * top_k / counts.sum(1, keepdims=True)), float(tokens))
    by_rank = counts.reshape(_SAMPLES, ranks, -1)
    busiest = by_rank[np.arange(_SAMPLES), by_rank.sum(2).argmax(1)]
    touched = np.minimum(busiest, 1.0).sum(1).mean()
    return max(float(busiest.sum(1).mean()), 1.0), max(float(touched), 1.0)
