"""Numbers that may be one scenario or a million: plain floats or NumPy arrays that broadcast.

The helpers keep scalars in pure Python (fast for one estimate) and give arrays to NumPy (fast for many).
"""

from __future__ import annotations

import math
from typing import TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Numeric", "ceil", "ceil_div", "floor_div", "maximum", "minimum", "where"]

Array: TypeAlias = NDArray[np.float64]
Numeric: TypeAlias = float | Array


def maximum(first: Numeric, second: Numeric) -> Numeric:
    """Elementwise maximum.

    >>> maximum(2.0, 3.0)
    3.0
    """
    if isinstance(first, (int, float)) and isinstance(second, (int, float)):
        return first if first > second else second
    return cast(Array, np.maximum(first, second))


def minimum(first: Numeric, second: Numeric) -> Numeric:
    """Elementwise minimum.

    >>> minimum(2.0, 3.0)
    2.0
    """
    if isinstance(first, (int, float)) and isinstance(second, (int, float)):
        return first if first < second else second
    return cast(Array, np.minimum(first, second))


def where(condition: object, yes: Numeric, no: Numeric) -> Numeric:
    """Elementwise choice.

    >>> where(True, 1.0, 2.0)
    1.0
    """
    if isinstance(condition, (bool, np.bool_)) and isinstance(yes, (int, float)) and isinstance(no, (int, float)):
        return yes if condition else no
    return cast(Array, np.where(cast(Array, condition), yes, no))


def ceil(value: Numeric) -> Numeric:
    """Round up.

    >>> ceil(1.2)
    2.0
    """
    if isinstance(value, (int, float)):
        return float(math.ceil(value))
    return cast(Array, np.ceil(value))


def ceil_div(value: Numeric, divisor: Numeric) -> Numeric:
    """Divide and round up.

    >>> ceil_div(9.0, 4.0)
    3.0
    """
    return ceil(value / divisor)


def floor_div(value: Numeric, divisor: Numeric) -> Numeric:
    """Divide and round down.

    >>> floor_div(9.0, 4.0)
    2.0
    """
    if isinstance(value, (int, float)) and isinstance(divisor, (int, float)):
        return float(value // divisor)
    return cast(Array, np.floor_divide(value, divisor))
