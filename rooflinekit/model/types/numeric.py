"""Numbers that may be one scenario or a million: plain floats or NumPy arrays that broadcast.

Scalars stay in pure Python, so that one estimate never pays for importing NumPy; arrays go to NumPy.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias, cast

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Array: TypeAlias = "NDArray[np.float64]"
Numeric: TypeAlias = "float | Array"

__all__ = [
    "Array",
    "Numeric",
    "absolute",
    "ceil",
    "ceil_div",
    "distinct",
    "every",
    "exp",
    "floor_div",
    "largest",
    "log",
    "log2",
    "maximum",
    "minimum",
    "smooth_maximum",
    "sqrt",
    "total",
    "where",
]


def maximum(first: Numeric, second: Numeric) -> Numeric:
    """Elementwise maximum.

    >>> maximum(2.0, 3.0)
    3.0
    """
    if isinstance(first, (int, float)) and isinstance(second, (int, float)):
        return first if first > second else second
    import numpy as np  # noqa: PLC0415

    return cast("Array", np.maximum(first, second))


def minimum(first: Numeric, second: Numeric) -> Numeric:
    """Elementwise minimum.

    >>> minimum(2.0, 3.0)
    2.0
    """
    if isinstance(first, (int, float)) and isinstance(second, (int, float)):
        return first if first < second else second
    import numpy as np  # noqa: PLC0415

    return cast("Array", np.minimum(first, second))


def where(condition: object, yes: Numeric, no: Numeric) -> Numeric:
    """Elementwise choice.

    >>> where(True, 1.0, 2.0)
    1.0
    """
    if isinstance(condition, bool) and isinstance(yes, (int, float)) and isinstance(no, (int, float)):
        return yes if condition else no
    import numpy as np  # noqa: PLC0415

    return cast("Array", np.where(cast("Array", condition), yes, no))


def absolute(value: Numeric) -> Numeric:
    """Without its sign.

    >>> absolute(-2.0)
    2.0
    """
    return cast("Numeric", abs(value))


def ceil(value: Numeric) -> Numeric:
    """Round up.

    >>> ceil(1.2)
    2.0
    """
    if isinstance(value, (int, float)):
        return float(math.ceil(value))
    import numpy as np  # noqa: PLC0415

    return cast("Array", np.ceil(value))


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
    return value // divisor


def distinct(values: Numeric) -> tuple[Numeric, NDArray[np.intp] | None]:
    """The different values, and the place of each element among them; None where that saves nothing.

    >>> distinct(3.0)
    (3.0, None)
    """
    if isinstance(values, (int, float)) or values.ndim != 1:
        return values, None
    import numpy as np  # noqa: PLC0415

    found, places = np.unique(values, return_inverse=True)
    return (found, places) if 2 * len(found) <= len(values) else (values, None)


def total(values: Numeric) -> Numeric:
    """Sum over the last axis; a scalar is its own sum.

    >>> total(3.0)
    3.0
    """
    return values if isinstance(values, (int, float)) else cast("Numeric", values.sum(axis=-1))


def largest(values: Numeric) -> Numeric:
    """Maximum over the last axis; a scalar is its own maximum.

    >>> largest(3.0)
    3.0
    """
    return values if isinstance(values, (int, float)) else cast("Numeric", values.max(axis=-1))


def sqrt(value: Numeric) -> Numeric:
    """Square root.

    >>> sqrt(9.0)
    3.0
    """
    if isinstance(value, (int, float)):
        return math.sqrt(value)
    import numpy as np  # noqa: PLC0415

    return cast("Array", np.sqrt(value))


def exp(value: Numeric) -> Numeric:
    """Exponential.

    >>> exp(0.0)
    1.0
    """
    if isinstance(value, (int, float)):
        return math.exp(value)
    import numpy as np  # noqa: PLC0415

    return cast("Array", np.exp(value))


def log(value: Numeric) -> Numeric:
    """Natural logarithm.

    >>> log(1.0)
    0.0
    """
    if isinstance(value, (int, float)):
        return math.log(value)
    import numpy as np  # noqa: PLC0415

    return cast("Array", np.log(value))


def every(condition: object) -> bool:
    """Whether something holds for all scenarios.

    >>> every(True)
    True
    """
    return condition if isinstance(condition, bool) else bool(cast("Array", condition).all())


def log2(value: Numeric) -> Numeric:
    """Logarithm to base 2.

    >>> log2(8.0)
    3.0
    """
    if isinstance(value, (int, float)):
        return math.log2(value)
    import numpy as np  # noqa: PLC0415

    return cast("Array", np.log2(value))


def smooth_maximum(first: Numeric, second: Numeric, sharpness: int) -> Numeric:
    """(x^p + y^p)^(1/p) for p = 1 (the sum), 2 or 4: two resources that overlap not at all, in part, nearly fully.

    Only products and square roots, so that arrays stay cheap; both numbers are positive.

    >>> smooth_maximum(3.0, 4.0, 1), smooth_maximum(3.0, 4.0, 2), round(smooth_maximum(3.0, 4.0, 4), 2)
    (7.0, 5.0, 4.28)
    """
    if sharpness == 1:
        return first + second
    x, y = first * first, second * second
    return sqrt(x + y) if sharpness == 2 else sqrt(sqrt(x * x + y * y))
