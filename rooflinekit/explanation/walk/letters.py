"""Numbers that carry the letters they were made of, so that the code that computes a number also writes its formula."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import TypeAlias

from rooflinekit.model.types.numeric import Numeric

Monomial: TypeAlias = "frozenset[tuple[str, int]]"  # letters and their powers
Terms: TypeAlias = "frozenset[tuple[Monomial, float]]"  # products of letters, each with its factor

_LETTER = re.compile(r"[A-Za-z_]\w*")
_ORDER = {
    name: place
    for place, name in enumerate(
        _LETTER.findall(
            "B S past T cached Nc N cells seen allkeys keys copies A touched E k H Hk Hv I K G Hi Rq R n r e dk dv d "
            "Ds Rt di best t allpairs pairs F Fe Fs Dl De D V positions ep dp cp tp"
        )
    )
}
"""Letters as a product has them; bytes of an element come last."""
_FUNCTIONS = ("ceil", "floor")
_MOST_DIGITS = 1e15
_ROUNDING = 1e-12
_ONE: Monomial = frozenset()


class Lettered(float):
    """A number that is also a sum of products of letters, and stays one through + - * /.

    It goes wherever a float goes. What is no such sum (a root, a maximum of two) is one of its parts or a plain number.

    >>> N, D, H, K, d, tp = (Lettered.of(name, value) for name, value in
    ...                      (("N", 6), ("D", 4096), ("H", 32), ("K", 8), ("d", 128), ("tp", 2)))
    >>> flops = 2.0 * N * (H // tp * d + K // tp * d + K // tp * d) * D
    >>> flops, written(flops)
    (150994944.0, '2·N·(H+2·K)·d·D/tp')
    """

    __slots__ = ("terms",)
    terms: Terms

    @classmethod
    def of(cls, name: str, value: float) -> float:
        """One letter, or a text that stands as one factor."""
        return cls.made(value, {frozenset({(name, 1)}): 1.0})

    @classmethod
    def made(cls, value: float, terms: Mapping[Monomial, float]) -> float:
        """A number with its terms, or a plain one where no letter is left."""
        number = cls(value)
        number.terms = frozenset((letters, factor) for letters, factor in terms.items() if factor)
        return number if any(letters for letters, _ in number.terms) else value

    def __index__(self) -> int:
        return int(self)

    def __neg__(self) -> float:
        return self * -1.0

    def __add__(self, other: float) -> float:
        terms = Counter(dict(self.terms))
        terms.update(dict(_terms(other)))
        return Lettered.made(float(self) + float(other), terms)

    def __sub__(self, other: float) -> float:
        return self + -other

    def __rsub__(self, other: float) -> float:
        return -self + other

    def __mul__(self, other: object) -> float:
        if not isinstance(other, (int, float)):
            return NotImplemented
        return Lettered.made(float(self) * float(other), _multiplied(self.terms, _terms(other)))

    def __truediv__(self, other: float) -> float:
        return _quotient(self, other)

    def __rtruediv__(self, other: float) -> float:
        return _quotient(other, self)

    def __floordiv__(self, other: float) -> float:
        return _floored(self, other)

    def __rfloordiv__(self, other: float) -> float:
        return _floored(other, self)

    def __pow__(self, power: float, mod: None = None) -> float:
        return self * self if power == 2 else float(self) ** power

    __radd__ = __add__
    __rmul__ = __mul__


def _terms(number: Numeric) -> Terms:
    return number.terms if isinstance(number, Lettered) else frozenset({(_ONE, float(number))})


@lru_cache(maxsize=4096)
def _multiplied(first: Terms, second: Terms) -> dict[Monomial, float]:
    product: dict[Monomial, float] = {}
    for mine, factor in first:
        for theirs, other in second:
            powers = Counter(dict(mine))
            powers.update(dict(theirs))
            letters = frozenset((name, power) for name, power in powers.items() if power)
            product[letters] = product.get(letters, 0.0) + factor * other
    return product


def _quotient(first: float, second: float) -> float:
    value, above, below = float(first) / float(second), _terms(first), _terms(second)
    if above == below:
        return value
    if len(below) > 1:  # a sum below the line stays one factor
        below = frozenset({(frozenset({(f"({_formula(below)})", 1)}), 1.0)})
    ((letters, factor),) = below
    inverse = frozenset({(frozenset((name, -power) for name, power in letters), 1.0 / factor)})
    return Lettered.made(value, _multiplied(above, inverse))


def _floored(first: float, second: float) -> float:
    value, whole = float(first) // float(second), _quotient(first, second)
    if value == float(whole):
        return whole
    if all(factor < 0.0 for _, factor in _terms(whole)):  # how code rounds up: -(-a // b)
        return -Lettered.of(f"ceil({written(-whole)})", -value)
    return Lettered.of(f"floor({written(whole)})", value)


def ceiling(number: Numeric) -> Numeric:
    """Rounded up.

    >>> written(ceiling(Lettered.of("A", 6.5)))
    'ceil(A)'
    """
    return number if number == int(number) else Lettered.of(f"ceil({written(number)})", math.ceil(number))


def written(number: Numeric) -> str:
    """The formula of a number, or the number where it has none.

    >>> written(Lettered.of("tp", 2.0) - 1.0), written(6.0)
    ('tp-1', '6')
    """
    return _formula(_terms(number))


@lru_cache(maxsize=4096)
def _formula(terms: Terms) -> str:
    """Common factors in front of what is left, numbers first, divisors last."""
    factor, powers, rest = _common(terms)
    if len(rest) == 1:
        return _product(factor, powers)
    sums = _two_sums(rest) or [rest]
    if len(sums) == 1 and factor == 1.0 and not powers:
        return _sum(rest)
    return _product(factor, powers, *(f"({_sum(each)})" for each in sums))


def _product(factor: float, powers: Monomial, *brackets: str) -> str:
    above = [name for name, power in powers for _ in range(power)]
    below = "".join(f"/{name}" for name in sorted(name for name, power in powers for _ in range(-power)))
    product = "·".join(sorted([*above, *brackets], key=rank))
    for unit, sign in ((1.0, ""), (-1.0, "-")):
        if product and math.isclose(factor, unit, rel_tol=_ROUNDING):
            return f"{sign}{product}{below}"
    return f"{_number(factor)}·{product}{below}" if product else f"{_number(factor)}{below}"


def _common(terms: Terms) -> tuple[float, Monomial, Terms]:
    """Factor that all terms share, a number and powers of letters, and what is left of them."""
    every, factors = [dict(letters) for letters, _ in terms], [factor for _, factor in terms]
    shared = factors[0]
    if len(set(factors)) > 1:
        whole = all(factor == int(factor) for factor in factors)
        shared = math.copysign(math.gcd(*map(int, factors)), max(factors)) if whole else 1.0
    shared = shared or 1.0  # of nothing but zeroes
    powers = {}
    for name in {name for letters in every for name in letters}:
        least, most = (pick(letters.get(name, 0) for letters in every) for pick in (min, max))
        powers[name] = least if least > 0 else min(most, 0)
    below = frozenset({(frozenset((name, -power) for name, power in powers.items()), 1.0 / shared)})
    common = frozenset((name, power) for name, power in powers.items() if power)
    return shared, common, frozenset(_multiplied(terms, below).items())


def _two_sums(terms: Terms) -> list[Terms] | None:
    """The sum as a product of two, of which one has two terms, where it is one."""
    for name in sorted({name for letters, _ in terms for name, _ in letters}, key=rank):
        having = _with(name, terms)
        if 1 < len(having) == len(terms) / 2:
            (factor, powers, rest), (other, beside, same) = _common(having), _common(terms - having)
            if rest == same:
                return [frozenset({(powers, factor), (beside, other)}), rest]
    return None


def _with(name: str, terms: Terms) -> Terms:
    return frozenset((letters, factor) for letters, factor in terms if dict(letters).get(name, 0) > 0)


def _sum(terms: Terms) -> str:
    """Terms that share the letter that most of them have stand together; in the order of letters, minuses last."""
    counts = Counter(name for letters, _ in terms for name, power in letters if power > 0)
    most = min(counts, key=lambda name: (-counts[name], rank(name)), default="")
    together: Terms = _with(most, terms) if counts[most] > 1 else frozenset()
    texts = [_formula(group) for group in (together, *(frozenset({term}) for term in terms - together)) if group]
    texts.sort(key=lambda text: (text.startswith("-"), rank(text)))
    return texts[0] + "".join(text if text.startswith("-") else f"+{text}" for text in texts[1:])


def rank(text: str) -> tuple[int, str]:
    """Order of a factor or a term: by its first letter."""
    return min((_ORDER.get(name, len(_ORDER)) for name in letters_of(text)), default=2 * len(_ORDER)), text


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < _MOST_DIGITS else f"{value:.12g}"


def letters_of(formula: str) -> list[str]:
    """The letters of a formula in order of appearance.

    >>> letters_of("2·N·D·ceil(V/tp)·D")
    ['N', 'D', 'V', 'tp']
    """
    return [name for name in dict.fromkeys(_LETTER.findall(formula)) if name not in _FUNCTIONS]


def substitute(formula: str, values: Mapping[str, float]) -> str:
    """The formula with numbers for its letters.

    >>> substitute("4·H·d·pairs", {"H": 32, "d": 128, "pairs": 21.0})
    '4·32·128·21'

    Raises KeyError for a letter without a value.
    """
    return _LETTER.sub(lambda hit: hit[0] if hit[0] in _FUNCTIONS else f"{values[hit[0]]:.6g}", formula)
