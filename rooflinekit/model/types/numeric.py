"""Numbers that may be one scenario, a million, or a formula: plain floats, NumPy arrays that broadcast, or symbols.

Scalars stay in pure Python, so that one estimate never pays for importing NumPy; arrays go to NumPy; the symbols of
`model.graph` pass through the same functions. What none of NumPy's functions can say stands here: a choice between two
calculations, a table, a loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from rooflinekit.model.graph.symbol import UNKNOWN, Symbol
from rooflinekit.model.graph.table import NodeTable, interpolated, located
from rooflinekit.model.types.late import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Array: TypeAlias = "NDArray[np.float64]"
Numeric: TypeAlias = "float | Array"
T = TypeVar("T")


def _both(first: object, second: object) -> bool:
    """True if both are plain numbers."""
    return isinstance(first, (int, float)) and isinstance(second, (int, float))


def maximum(first: Numeric, second: Numeric) -> Numeric:
    """Elementwise maximum."""
    if first.__class__ is float is second.__class__ or _both(first, second):
        return first if first > second else second
    return _elementwise("maximum", first, second)


def minimum(first: Numeric, second: Numeric) -> Numeric:
    """Elementwise minimum."""
    if first.__class__ is float is second.__class__ or _both(first, second):
        return first if first < second else second
    return _elementwise("minimum", first, second)


def where(condition: object, yes: Numeric, no: Numeric) -> Numeric:
    """Elementwise choice."""
    if condition.__class__ is bool and (yes.__class__ is float is no.__class__ or _both(yes, no)):
        return yes if condition else no
    return _elementwise("where", condition, yes, no)


def _elementwise(name: str, *given: object) -> Numeric:
    """A function of NumPy on arrays; on symbols its node, without waiting for NumPy."""
    for value in given:
        if isinstance(value, Symbol):
            return cast("Numeric", value.pool.apply({"maximum": "max", "minimum": "min"}.get(name, name), *given))
    return cast("Array", getattr(np, name)(*given))


def _function(name: str, scalar: Callable[[float], float]) -> Callable[[Numeric], Numeric]:
    """A function of one number: of floats in plain Python, of arrays by NumPy, of a symbol its node."""

    def applied(value: Numeric) -> Numeric:
        return float(scalar(value)) if isinstance(value, (int, float)) else _elementwise(name, value)

    return applied


ceil, sqrt = _function("ceil", math.ceil), _function("sqrt", math.sqrt)
exp, log, log2 = _function("exp", math.exp), _function("log", math.log), _function("log2", math.log2)


def ceil_div(value: Numeric, divisor: Numeric) -> Numeric:
    """Divide and round up."""
    return ceil(value / divisor)


def is_zero(value: Numeric) -> bool:
    """True if it is the number 0; of arrays and symbols nobody knows."""
    return isinstance(value, (int, float)) and not value


def logistic_above(deviations: Numeric) -> Numeric:
    """Share of a logistic distribution above so many standard deviations from its mean: 1/(1 + e^(x·π/√3)).

    >>> logistic_above(0.0), round(logistic_above(1.0), 3)
    (0.5, 0.14)
    """
    return 1.0 / (1.0 + exp(minimum(maximum(deviations * LOGISTIC, -_STEEP), _STEEP)))


LOGISTIC = math.pi / math.sqrt(3.0)
"""Standard deviation of the logistic distribution of scale 1."""

_STEEP = 50.0  # beyond which exp(−x) is nothing


def total(values: Numeric) -> Numeric:
    """Sum over the last axis; a scalar is its own sum."""
    return values if isinstance(values, (int, float)) else cast("Numeric", values.sum(axis=-1))


def largest(values: Numeric) -> Numeric:
    """Maximum over the last axis; a scalar is its own maximum."""
    return values if isinstance(values, (int, float)) else cast("Numeric", values.max(axis=-1))


def fails(condition: object) -> bool:
    """True if something does not hold for some scenario; of a symbol without a value nobody knows, and it may.

    >>> fails(True)
    False
    """
    if isinstance(condition, Symbol):
        return condition.value is not UNKNOWN and not condition.value
    return not (condition if isinstance(condition, bool) else cast("Array", condition).all())


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


def choose(condition: object, yes: Callable[[], T], no: Callable[[], T]) -> T:
    """One of two calculations, where the other may make no sense; of arrays or symbols both, and each element its own.

    >>> choose(True, lambda: 1.0, lambda: 1.0 / 0.0)
    1.0
    """
    if isinstance(condition, Symbol):
        known = condition.value is not UNKNOWN
        return (yes() if condition.value else no()) if known else _merged(condition, yes(), no())
    array: Any = condition
    if isinstance(condition, bool) or array.all() or not array.any():
        return yes() if (condition if isinstance(condition, bool) else array.all()) else no()
    return cast("T", _merged(condition, yes(), no()))


def _merged(condition: object, yes: Any, no: Any) -> Any:
    """Two results of the same type as one: numbers element by element, and all else as it is in the first."""
    if is_dataclass(yes) and not isinstance(yes, type):
        names = [entry.name for entry in fields(yes)]
        return replace(yes, **{name: _merged(condition, getattr(yes, name), getattr(no, name)) for name in names})
    if isinstance(yes, (bool, str)) or yes is None or yes is no:
        return yes
    return where(condition, yes, no)


def lattice(table: NodeTable, places: Sequence[Numeric]) -> Numeric:
    """Multilinear interpolation in a table, constant beyond its ends.

    >>> lattice(NodeTable(((0.0, 1.0), (0.0, 2.0)), (0.0, 2.0, 10.0, 12.0)), [0.5, 1.0])
    6.0
    """
    varying: list[Any] = [place for place in places if not isinstance(place, (int, float))]
    if not varying:
        return table.at(*cast("Sequence[float]", places))
    if len(varying) < len(places):
        table = table.sliced(tuple(place if isinstance(place, (int, float)) else None for place in places))
    if isinstance(varying[0], Symbol):
        return cast("Numeric", varying[0].pool.lattice(table.axes, table.values, varying))
    return interpolated(table.array, [located(nodes, place) for nodes, place in zip(table.axes, varying, strict=True)])
