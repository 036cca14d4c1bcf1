"""Data that a benchmark loop finds in the last-level cache."""

from __future__ import annotations

from rooflinekit.model.types.numeric import Numeric

__all__ = ["streamed"]


def streamed(traffic: Numeric, capacity: float, speed: float) -> Numeric:
    """Bytes that cost as much as `traffic` bytes used again and again, with a cache of `capacity` bytes in between [B].

    bytes·(1 − h + h/speed), h = 1/(1 + (bytes/capacity)^4): below the capacity they come `speed` times faster than
    memory delivers. Serving uses cold data and does not call this.

    >>> streamed(1e6, 50e6, 3.0) / 1e6, streamed(1e9, 50e6, 3.0) / 1e9
    (0.333, 1.000)
    """
    squared = (traffic / capacity) * (traffic / capacity)
    hit = 1.0 / (1.0 + squared * squared)
    return traffic * (1.0 - hit * (1.0 - 1.0 / speed))
