"""Ranking of moves: the rule of advice, which pages run too.

Written in the subset of Python that `rooflinekit.load.javascript` prints.
"""

from __future__ import annotations

from collections.abc import Sequence


def worth(ratios: Sequence[float], metric: int, losses: int) -> float:
    """The gain of a metric times the largest loss of another, as a ratio: below 1, a move gains more than it costs.

    ratios: of each metric, over what it is now; losses: metrics from the first on whose growth is a loss.

    >>> round(worth([0.6, 1.2, 0.6], 0, 2), 12)  # twice the accelerators: faster, and dearer
    0.72
    """
    most = 1.0
    for other in range(losses):
        if other != metric:
            most = max(most, ratios[other])
    return ratios[metric] * most


def rank(ratios: Sequence[Sequence[float]], losses: int, metrics: int, enough: float, found: list[int]) -> None:
    """Write down the best moves: the best for each metric, then the second of each, and so on; -1 where none is left.

    ratios: of each move; enough: ratio that a gain, and a gain with its losses, reaches; found: places for the moves.
    """
    for turn in range(len(found) // metrics):
        for metric in range(metrics):
            best = -1
            least = 0.0
            for move in range(len(ratios)):
                each = worth(ratios[move], metric, losses)
                left = ratios[move][metric] <= enough and each <= enough
                for before in range(turn):
                    if found[before * metrics + metric] == move:
                        left = False
                if left and (best < 0 or each < least * (1.0 - 1e-12)):  # but for rounding, the first of equals
                    best = move
                    least = each
            found[turn * metrics + metric] = best
