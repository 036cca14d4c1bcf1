"""A spreadsheet formula together with the value that Python finds for it.

Operators build the text and evaluate it at once, so that what a cell caches is what its formula says. A value that a
formula does not use may be undefined (NaN): only the chosen branch of an IF counts.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TypeAlias, Union

__all__ = [
    "Formula",
    "Given",
    "Range",
    "all_of",
    "ceil",
    "choose",
    "floor",
    "index",
    "is_number",
    "joined",
    "literal",
    "log2",
    "match",
    "maximum",
    "minimum",
    "position",
    "sqrt",
    "summed",
    "sumproduct",
    "when",
]

Value: TypeAlias = float | str
Given: TypeAlias = Union["Formula", float, str]


def _number(value: Value) -> float:
    """What arithmetic makes of a cell: an empty one counts as 0."""
    return 0.0 if value == "" else value if isinstance(value, (int, float)) else math.nan


@dataclass(frozen=True, slots=True, eq=False)
class Formula:
    """Text without the leading "=", and its value; a comparison has the value 1 or 0."""

    text: str
    value: Value

    @property
    def number(self) -> float:
        """The value in arithmetic."""
        return _number(self.value)

    def __add__(self, other: Given) -> Formula:
        return _binary(self, "+", other, lambda a, b: a + b)

    def __radd__(self, other: Given) -> Formula:
        return literal(other) + self

    def __sub__(self, other: Given) -> Formula:
        return _binary(self, "-", other, lambda a, b: a - b)

    def __rsub__(self, other: Given) -> Formula:
        return literal(other) - self

    def __mul__(self, other: Given) -> Formula:
        return _binary(self, "*", other, lambda a, b: a * b)

    def __rmul__(self, other: Given) -> Formula:
        return literal(other) * self

    def __truediv__(self, other: Given) -> Formula:
        return _binary(self, "/", other, lambda a, b: a / b if b else math.nan)

    def __rtruediv__(self, other: Given) -> Formula:
        return literal(other) / self

    def __pow__(self, other: Given) -> Formula:
        return _binary(self, "^", other, lambda a, b: a**b if a > 0 or b > 0 else math.nan)

    def __le__(self, other: Given) -> Formula:
        return _binary(self, "<=", other, lambda a, b: float(a <= b))

    def __lt__(self, other: Given) -> Formula:
        return _binary(self, "<", other, lambda a, b: float(a < b))

    def __ge__(self, other: Given) -> Formula:
        return _binary(self, ">=", other, lambda a, b: float(a >= b))

    def __gt__(self, other: Given) -> Formula:
        return _binary(self, ">", other, lambda a, b: float(a > b))

    def equals(self, other: Given) -> Formula:
        """Whether two cells hold the same."""
        right = literal(other)
        return Formula(f"({self.text}={right.text})", float(self.value == right.value))


def literal(value: Given) -> Formula:
    """A number or text as it stands in a formula; never with an exponent.

    >>> literal(1e-9).text, literal(3.0).text, literal("fp8").text
    ('0.000000001', '3', '"fp8"')
    """
    if isinstance(value, Formula):
        return value
    if isinstance(value, str):
        return Formula('"' + value.replace('"', '""') + '"', value)
    number = float(value)
    text = str(int(number)) if number.is_integer() else format(Decimal(repr(number)), "f")
    return Formula(text, number)


def _binary(left: Formula, sign: str, other: Given, work: object) -> Formula:
    right = literal(other)
    return Formula(f"({left.text}{sign}{right.text})", work(left.number, right.number))  # type: ignore[operator]


def _call(name: str, *arguments: Formula) -> str:
    return f"{name}({','.join(argument.text for argument in arguments)})"


def maximum(*values: Given) -> Formula:
    """The largest.

    >>> f = maximum(Formula("A1", 2.0), 3.0)
    >>> f.text, f.value
    ('MAX(A1,3)', 3.0)
    """
    given = [literal(value) for value in values]
    return Formula(_call("MAX", *given), _extreme(max, given))


def minimum(*values: Given) -> Formula:
    """The smallest."""
    given = [literal(value) for value in values]
    return Formula(_call("MIN", *given), _extreme(min, given))


def _extreme(choice: object, given: list[Formula]) -> float:
    numbers = [value.number for value in given]
    return math.nan if any(math.isnan(n) for n in numbers) else float(choice(numbers))  # type: ignore[operator]


def when(condition: Formula, yes: Given, no: Given) -> Formula:
    """IF."""
    first, second = literal(yes), literal(no)
    return Formula(_call("IF", condition, first, second), first.value if condition.number else second.value)


def all_of(*conditions: Formula) -> Formula:
    """AND."""
    return Formula(_call("AND", *conditions), float(all(condition.number for condition in conditions)))


def is_number(value: Formula) -> Formula:
    """ISNUMBER."""
    return Formula(f"ISNUMBER({value.text})", float(isinstance(value.value, (int, float))))


def joined(*parts: Given) -> Formula:
    """Text put together; numbers must be whole.

    >>> joined("tp", Formula("B2", 8.0)).value
    'tp8'
    """
    given = [literal(part) for part in parts]
    values = [part.value if isinstance(part.value, str) else f"{part.value:.0f}" for part in given]
    return Formula("(" + "&".join(part.text for part in given) + ")", "".join(values))


def ceil(value: Formula) -> Formula:
    """Round up; not below 0."""
    return Formula(f"ROUNDUP({value.text},0)", _whole(math.ceil, value.number))


def floor(value: Formula) -> Formula:
    """Round down."""
    return Formula(f"INT({value.text})", _whole(math.floor, value.number))


def _whole(rounding: object, number: float) -> float:
    return float(rounding(number)) if math.isfinite(number) else math.nan  # type: ignore[operator]


def sqrt(value: Formula) -> Formula:
    """Square root."""
    return Formula(f"SQRT({value.text})", math.sqrt(value.number) if value.number >= 0 else math.nan)


def log2(value: Formula) -> Formula:
    """Logarithm to base 2."""
    return Formula(f"LOG({value.text},2)", math.log2(value.number) if value.number > 0 else math.nan)


@dataclass(frozen=True, slots=True)
class Range:
    """Cells in one row or one column, with their values."""

    text: str
    values: Sequence[Value]


def summed(cells: Range) -> Formula:
    """SUM."""
    return Formula(f"SUM({cells.text})", sum(_number(value) for value in cells.values))


def sumproduct(first: Range, second: Range) -> Formula:
    """Σ of products."""
    pairs = zip(first.values, second.values, strict=True)
    return Formula(f"SUMPRODUCT({first.text},{second.text})", sum(_number(a) * _number(b) for a, b in pairs))


def index(cells: Range, place: Given) -> Formula:
    """The cell at a place, from 1."""
    at = literal(place)
    inside = 1 <= at.number <= len(cells.values)
    found: Value = cells.values[int(at.number) - 1] if inside else math.nan
    return Formula(f"INDEX({cells.text},{at.text})", 0.0 if found == "" else found)


def match(wanted: Given, cells: Range, missing: Given) -> Formula:
    """Place of a text in a column, exactly; `missing` if it is not there."""
    key, other = literal(wanted), literal(missing)
    known = {str(value).lower(): place for place, value in reversed(list(enumerate(cells.values, 1)))}
    found: Value = known.get(str(key.value).lower(), other.value)  # as spreadsheets do, whatever the case
    return Formula(f"IFERROR(MATCH({key.text},{cells.text},0),{other.text})", float(found))


def position(wanted: Formula, cells: Range) -> Formula:
    """Place of the last number that is at most `wanted`, in ascending ones of which the first is."""
    numbers = [_number(value) for value in cells.values]
    return Formula(f"MATCH({wanted.text},{cells.text},1)", float(bisect_right(numbers, wanted.number)))


def choose(code: Formula, *options: Formula) -> Formula:
    """The option of that number, from 1."""
    at = int(code.number) if math.isfinite(code.number) else 0
    value = options[at - 1].value if 1 <= at <= len(options) else math.nan
    return Formula(_call("CHOOSE", code, *options), value)
