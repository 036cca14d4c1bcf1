"""Lengths of prompts and outputs: distributions of whole tokens, with moments and quantiles in closed form."""

from __future__ import annotations

import math
import re
import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING

from typing_extensions import override

from rooflinekit.load.phrases import read_phrase
from rooflinekit.model.types.batch import positive, whole_number
from rooflinekit.model.types.errors import InputError, SpecError, WorkloadError
from rooflinekit.specs.files import read_text

if TYPE_CHECKING:
    from numpy.random import Generator

MOST_TOKENS = 10_000_000
"""No prompt or output is longer: the longest context that any known model claims is 10 million tokens."""

_NORMAL = NormalDist()
_NAMES: Mapping[str, Mapping[str, float | None]] = {
    "lognormal": {"mean": None, "cv": None, "max": MOST_TOKENS},
    "fixed": {},
    "uniform": {},
    "empirical": {},
}
_RANGE = re.compile(r"uniform:\s*(\d+)\s*-\s*(\d+)\s*", re.IGNORECASE)


class Length:
    """A distribution of whole tokens: two moments, quantiles and samples."""

    def moment(self, order: int) -> float:
        """E[X^order] of order 1 or 2."""
        raise NotImplementedError

    def quantile(self, share: float) -> float:
        """Smallest length that `share` of the requests do not exceed [tokens]."""
        raise NotImplementedError

    def sample(self, rng: Generator, count: int) -> list[int]:
        """Draw lengths."""
        raise NotImplementedError

    @cached_property
    def mean(self) -> float:
        """First moment [tokens]."""
        return self.moment(1)

    @cached_property
    def second_moment(self) -> float:
        """E[X²] [tokens²]."""
        return self.moment(2)


@dataclass(frozen=True)
class Fixed(Length):
    """Every length the same."""

    tokens: int

    @override
    def moment(self, order: int) -> float:
        return float(self.tokens) ** order

    @override
    def quantile(self, share: float) -> float:
        return float(self.tokens)

    @override
    def sample(self, rng: Generator, count: int) -> list[int]:
        return [self.tokens] * count


@dataclass(frozen=True)
class Uniform(Length):
    """Whole numbers from `low` to `high`, both included, all equally likely (the range option of benchmark clients).

    The variance of n equally likely whole numbers in a row is (n² − 1)/12.

    >>> Uniform(1, 6).mean, Uniform(1, 6).second_moment  # a die: 91 / 6
    (3.5, 15.166666666666666)
    """

    low: int
    high: int

    @override
    def moment(self, order: int) -> float:
        mean = (self.low + self.high) / 2
        return mean if order == 1 else ((self.high - self.low + 1) ** 2 - 1) / 12 + mean**2

    @override
    def quantile(self, share: float) -> float:
        return float(self.low + max(math.ceil(share * (self.high - self.low + 1)), 1) - 1)

    @override
    def sample(self, rng: Generator, count: int) -> list[int]:
        drawn: list[int] = rng.integers(self.low, self.high + 1, count).tolist()
        return drawn


@dataclass(frozen=True)
class LogNormal(Length):
    """Log-normal with this mean and coefficient of variation before it is cut off at `most`.

    The moments are those of the continuous law, its tail heaped on `most`; samples are rounded to whole tokens, at
    least one. With σ² = ln(1 + cv²), µ = ln(mean) − σ²/2, d = (ln most − µ)/σ (Aitchison and Brown 1957):
    E[min(X, m)^k] = E[X^k]·Φ(d − kσ) + m^k·(1 − Φ(d)); the quantile is exp(µ + σ·z).

    >>> free = LogNormal(1000.0, 0.8)
    >>> round(free.mean), round(free.quantile(0.5)), round(free.quantile(0.99))  # median = mean / √(1 + cv²)
    (1000, 781, 4010)
    >>> round(LogNormal(1000.0, 0.8, most=2000).mean)
    918
    """

    given_mean: float
    given_cv: float
    most: int = MOST_TOKENS

    @cached_property
    def _shape(self) -> tuple[float, float, float]:
        sigma = max(math.sqrt(math.log1p(self.given_cv**2)), sys.float_info.epsilon)  # the square of a tiny cv is 0
        mu = math.log(self.given_mean) - sigma**2 / 2
        return mu, sigma, (math.log(self.most) - mu) / sigma

    @override
    def moment(self, order: int) -> float:
        mu, sigma, cut = self._shape
        whole = math.exp(order * mu + (order * sigma) ** 2 / 2)
        return whole * _NORMAL.cdf(cut - order * sigma) + float(self.most) ** order * _NORMAL.cdf(-cut)

    @override
    def quantile(self, share: float) -> float:
        mu, sigma, cut = self._shape
        if share <= 0.0:
            return 1.0
        z = cut if share >= 1.0 else min(_NORMAL.inv_cdf(share), cut)
        return max(math.exp(mu + sigma * z), 1.0)

    @override
    def sample(self, rng: Generator, count: int) -> list[int]:
        mu, sigma, _ = self._shape
        drawn: list[int] = (rng.lognormal(mu, sigma, count) + 0.5).clip(1, self.most).astype(int).tolist()
        return drawn


@dataclass(frozen=True)
class Empirical(Length):
    """Lengths that were seen, each as likely as it was frequent.

    >>> seen = Empirical.of([5, 1, 5, 9])
    >>> seen.mean, seen.second_moment, seen.quantile(0.5), seen.quantile(0.9)
    (5.0, 33.0, 5.0, 9.0)
    """

    tokens: tuple[int, ...]  #: ascending, each once
    upto: tuple[int, ...] = field(repr=False)  #: how many of the lengths seen are no longer than it

    @classmethod
    def of(cls, lengths: Iterable[int]) -> Empirical:
        """Count lengths.

        Raises WorkloadError if there are none.
        """
        counts = sorted(Counter(lengths).items())
        if not counts:
            raise WorkloadError("an empirical distribution needs at least one length")
        tokens, times = zip(*counts, strict=True)
        return cls(tokens, tuple(accumulate(times)))

    @override
    def moment(self, order: int) -> float:
        counts = (last - first for first, last in pairwise((0, *self.upto)))
        return sum(float(length) ** order * n for length, n in zip(self.tokens, counts, strict=True)) / self.upto[-1]

    @override
    def quantile(self, share: float) -> float:
        return float(self._ranked(min(max(math.ceil(share * self.upto[-1]), 1), self.upto[-1])))

    @override
    def sample(self, rng: Generator, count: int) -> list[int]:
        ranks: list[int] = rng.integers(1, self.upto[-1] + 1, count).tolist()
        return list(map(self._ranked, ranks))

    def _ranked(self, rank: int) -> int:
        return self.tokens[bisect_left(self.upto, rank)]


@dataclass(frozen=True)
class Longer(Length):
    """Another length and as many tokens more each time: what images add to a text.

    >>> Longer(Uniform(1, 6), 10).mean, Longer(Uniform(1, 6), 10).quantile(1.0)
    (13.5, 16.0)
    """

    text: Length
    more: int

    @override
    def moment(self, order: int) -> float:
        own = self.text.moment(order)
        return own + self.more if order == 1 else own + 2.0 * self.more * self.text.moment(1) + float(self.more) ** 2

    @override
    def quantile(self, share: float) -> float:
        return self.text.quantile(share) + self.more

    @override
    def sample(self, rng: Generator, count: int) -> list[int]:
        return [each + self.more for each in self.text.sample(rng, count)]


def longer(length: Length, more: int) -> Length:
    """A length, and so many tokens more."""
    return Longer(length, more) if more else length


def shorter(length: Length) -> Length:
    """The length that `longer` was given."""
    return length.text if isinstance(length, Longer) else length


def stretched(length: Length, factor: float) -> Length:
    """Each length so many times as long, at least one token; images, and where a law is cut off, stay as they are.

    >>> stretched(Fixed(100), 1.2), stretched(Uniform(10, 20), 0.5), stretched(Longer(Fixed(100), 7), 2.0)
    (Fixed(tokens=120), Uniform(low=5, high=10), Longer(text=Fixed(tokens=200), more=7))

    Raises WorkloadError for a law that nobody knows.
    """

    def longer_by(tokens: float) -> int:
        return max(round(factor * tokens), 1)

    match length:
        case Fixed(tokens):
            return Fixed(longer_by(tokens))
        case Uniform(low, high):
            return Uniform(longer_by(low), longer_by(high))
        case LogNormal(mean, variation, most):
            return LogNormal(factor * mean, variation, most)
        case Empirical(tokens, upto):
            whole = dict(zip(map(longer_by, tokens), upto, strict=True))  # of equal ones the last, which counts all
            return Empirical(tuple(whole), tuple(whole.values()))
        case Longer(text, more):
            return Longer(stretched(text, factor), more)
    raise WorkloadError(f"lengths by a {type(length).__name__} law cannot be made longer")


def cv(length: Length) -> float:
    """Standard deviation over mean.

    >>> cv(Fixed(100)), round(cv(LogNormal(1000.0, 0.8)), 6)
    (0.0, 0.8)
    """
    return math.sqrt(max(length.second_moment / length.mean**2 - 1.0, 0.0))


def parse_length(text: str) -> Length:
    """Read what a user types for a length.

    `1024`, `uniform:100-200`, `lognormal:mean=1000,cv=0.8` (and `,max=8192`), or `empirical:FILE` with one length a
    line.

    >>> parse_length("1024"), parse_length("uniform:100-200")
    (Fixed(tokens=1024), Uniform(low=100, high=200))

    Raises WorkloadError for anything else; SpecError for a file that is not a list of lengths.
    """
    word = re.sub(r"^\s*fixed\s*:", "", text, flags=re.IGNORECASE).strip()
    if word.lstrip("+-").replace(".", "", 1).isdecimal():
        return Fixed(_tokens(float(word), "a length"))
    if word.lower().startswith("empirical:"):
        return read_lengths(Path(word.partition(":")[2].strip()))
    if hit := _RANGE.fullmatch(word):
        low, high = (_tokens(float(bound), "an end of the range") for bound in hit.groups())
        if low > high:
            raise WorkloadError(f"{text!r} runs backwards; write uniform:{high}-{low}")
        return Uniform(low, high)
    if word.partition(":")[0].strip().lower() in _NAMES.keys() - {"lognormal"}:
        raise WorkloadError(f"{text!r} is not a length; write it like '1024' or 'uniform:100-200'")
    _, given = read_phrase(word, "length", _NAMES)
    mean, spread = given["mean"], positive(given["cv"], "cv")
    most = whole_number(given["max"], "max")
    if not 1 <= mean <= most <= MOST_TOKENS:
        raise WorkloadError(f"{text!r}: needs 1 <= mean <= max <= {MOST_TOKENS:,} tokens")
    return LogNormal(mean, spread, most)


def spread_length(name: str, value: object, variation: object) -> str:
    """A length and the variation that stands beside it, as `parse_length` reads it.

    >>> spread_length("isl", 900, 1.0), spread_length("isl", "uniform:1-9", None)
    ('lognormal:mean=900,cv=1.0', 'uniform:1-9')

    Raises InputError for two variations, WorkloadError for a value that is no length.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise WorkloadError(f"{name} must be tokens or a distribution of lengths, not {value!r}")
    if not variation:
        return str(value)
    if isinstance(parse_length(str(value)), Fixed):
        return f"lognormal:mean={value},cv={variation}"
    raise InputError(f"{name} and {name}_cv both say how lengths vary; give one")


def lengths_of(given: Mapping[str, object], isl: int | str = 1024, osl: int | str = 256) -> tuple[Length, Length]:
    """Lengths of prompts and answers that the keywords isl, osl, isl_cv and osl_cv say.

    isl, osl: where nobody says them.

    >>> [(each.mean, cv(each)) for each in lengths_of({"isl": 900, "isl_cv": 0.5})]
    [(900.0, 0.5), (256.0, 0.0)]
    """
    prompts, answers = (
        parse_length(spread_length(key, given.get(key, usual), given.get(f"{key}_cv")))
        for key, usual in (("isl", isl), ("osl", osl))
    )
    return prompts, answers


def read_lengths(path: Path) -> Empirical:
    """Read a file with one length a line.

    Raises SpecError as `read_text`, and naming the line that is no length.
    """
    lengths = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            lengths.append(_tokens(float(line), "a length"))
        except ValueError:  # and WorkloadError, which is one
            raise SpecError(f"{path}, line {number}: {line.strip()[:24]!r} is not a length in whole tokens") from None
    return Empirical.of(lengths)


def _tokens(value: float, name: str) -> int:
    count = whole_number(value, name)
    if count > MOST_TOKENS:
        raise WorkloadError(f"{name} must be at most {MOST_TOKENS:,} tokens, not {value:g}")
    return count
