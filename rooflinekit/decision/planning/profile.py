"""Load over time: requests a second by the hour or by the window of a trace, and how they grow by the month."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import accumulate, pairwise
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooflinekit.decision.economics.price import MONTH_HOURS, Purchase
from rooflinekit.estimation.options import OptionRow, quantity
from rooflinekit.model.types.errors import SpecError, WorkloadError, nearest_of
from rooflinekit.specs.delimited import text_rows

if TYPE_CHECKING:
    from rooflinekit.simulation.traces import Trace

_DAY = 24  # intervals of a trace that is shorter than a day, and hours of one
_CLOSE = 1e-6  # relative, of hours that are the same
_MOST_INTERVALS = 8784  # hours of a leap year
_HOUR = 3600.0
_TIMES = ("hour", "time")
_GROWTH = re.compile(r"([+-]?\d+(?:\.\d+)?)\s*(%?)\s*(?:(?:/|a |per )\s*(month|year))?", re.IGNORECASE)


@dataclass(frozen=True)
class Profile:
    """Requests a second in intervals that follow each other, and hours of each; the whole repeats.

    >>> day = Profile("day", (2.0, 6.0), (16.0, 8.0))
    >>> round(day.mean, 3), day.peak
    (3.333, 6.0)
    """

    name: str
    rates: tuple[float, ...]
    hours: tuple[float, ...]

    @property
    def span(self) -> float:
        """Hours until it repeats."""
        return sum(self.hours)

    @property
    def peak(self) -> float:
        """The largest rate [1/s]."""
        return max(self.rates)

    @property
    def mean(self) -> float:
        """The mean rate [1/s]."""
        return sum(rate * hours for rate, hours in zip(self.rates, self.hours, strict=True)) / self.span

    @property
    def uneven(self) -> str:
        """Note on intervals that are not alike, or do not make whole days; else empty."""
        ends = min(self.hours), max(self.hours)
        if ends[1] > ends[0] * (1.0 + _CLOSE):
            return (f"intervals of {self.name} last {ends[0]:g} to {ends[1]:g} h: each goes on until the next row, "
                    "the last as long as the one before it")  # fmt: skip
        days = self.span / _DAY
        if len(self.rates) > 1 and abs(days - round(days)) > _CLOSE * days:
            return f"{self.name} lasts {self.span:.3g} h and repeats, which is no whole number of days"
        return ""

    @property
    def starts(self) -> list[float]:
        """Beginning of each interval [h]."""
        return [0.0, *accumulate(self.hours[:-1])]

    def scaled(self, factor: float) -> Profile:
        """The profile with every rate multiplied."""
        return replace(self, rates=tuple(rate * factor for rate in self.rates))


def flat(rate: float) -> Profile:
    """One rate at all times."""
    return Profile("flat", (rate,), (1.0,))


def hourly(rates: Sequence[float]) -> Profile:
    """Requests a second in the hours of a day, or of as many days as there are.

    Raises WorkloadError for what is no rate, and where no request comes.
    """
    _refuse_long("profile", len(rates))
    read = [OptionRow("", kind="number").check("rate of a profile", rate) for rate in rates]
    if not any(read):
        raise WorkloadError("profile: no request comes at any time")
    return Profile(f"{len(read)} hours", tuple(read), (1.0,) * len(read))


def _refuse_long(name: str, intervals: int) -> None:
    """Refuse a profile that is longer than a year by the hour. Raises WorkloadError."""
    if intervals > _MOST_INTERVALS:
        raise WorkloadError(
            f"{name}: has {intervals:,} intervals; a profile has at most {_MOST_INTERVALS:,}, hours of a year"
        )


def read_profile(path: str | PathLike[str]) -> Profile:
    """Read a CSV with a column `hour` (hours from the start) or `time` (seconds, or dates), and one `rate`.

    An interval lasts until the next row, the last one as long as the one before it. Dates without a zone are UTC.

    Raises SpecError with file and line for what is no profile.
    """
    names, cells = text_rows(Path(path))
    _refuse_long(str(path), len(cells))
    column = next((name for name in _TIMES if name in names), None)
    for wanted, found in (("hour", column), ("rate", "rate" if "rate" in names else None)):
        if found is None:
            near = nearest_of(wanted, names)
            raise SpecError(f"{path}: needs the columns hour (or time) and rate; {wanted} is missing, nearest: {near}")
    times = [_time(path, line, row[column or ""], column == "hour") for line, row in cells]
    rates = [_rate(path, line, row["rate"]) for line, row in cells]
    if len(rates) < 2:
        raise SpecError(f"{path}: a profile needs at least two rows; for one rate give --rate")
    for (line, row), (before, after) in zip(cells[1:], pairwise(times), strict=True):
        if not before < after:
            raise SpecError(f"{path}, line {line}: {column} {row[column or '']} does not follow the one before")
    if not any(rates):
        raise SpecError(f"{path}: no request comes at any time")
    hours = [after - before for before, after in pairwise(times)]
    return Profile(Path(path).name, tuple(rates), (*hours, hours[-1]))


def _time(path: str | PathLike[str], line: int, cell: str, hours: bool) -> float:
    """Hours since whenever."""
    try:
        value = float(cell) if hours else float(cell) / _HOUR
    except ValueError:
        try:
            date = datetime.fromisoformat(cell.strip())
            value = math.nan if hours else (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() / _HOUR
        except ValueError:
            value = math.nan
    if not math.isfinite(value):
        like = "a number of hours such as 13" if hours else "seconds, or a date such as 2026-05-01T13:00"
        raise SpecError(f"{path}, line {line}: {cell!r} is not {like}")
    return value


def _rate(path: str | PathLike[str], line: int, cell: str) -> float:
    try:
        value = quantity(cell, "1/s")
    except ValueError as error:
        raise SpecError(f"{path}, line {line}: rate {error}") from None
    if not 0.0 <= value <= 1e7:
        raise SpecError(f"{path}, line {line}: rate must be from 0 to 10,000,000 requests/s, not {cell.strip()}")
    return value


def profile_of(trace: Trace, span: float, speed: float = 1.0) -> Profile:
    """The hours of a trace (a twenty-fourth each of one below a day): the busiest `span` seconds within each [1/s].

    `speed`: how many times as fast it is replayed; its hours stay as long.

    Raises WorkloadError for a trace that is no longer than the window that its users would notice.
    """
    import numpy as np  # noqa: PLC0415 - only a trace pays for it

    time = np.asarray(trace.time, float)
    if not span < time[-1]:
        raise WorkloadError(f"{trace.name} lasts {time[-1]:,.0f} s, one window of its objectives: it has no profile")
    length = max(_HOUR if time[-1] >= _DAY * _HOUR else float(time[-1]) / _DAY, span)
    count = max(round(float(time[-1]) / length), 1)
    inside = np.searchsorted(time, time + span, "right") - np.arange(len(time))
    rates = np.zeros(count)
    np.maximum.at(rates, np.minimum((time / length).astype(int), count - 1), inside / span)
    return Profile(trace.name, tuple((rates * speed).tolist()), (length / _HOUR,) * count)


def read_growth(text: str | float) -> float:
    """Growth a month from what a user says: a share, `8%/month`, or `100%/year`, compounded.

    >>> read_growth("8%/month"), read_growth(0.08), round(read_growth("100%/year"), 4)
    (0.08, 0.08, 0.0595)

    Raises WorkloadError for anything else.
    """
    said = f"{text:f}" if isinstance(text, float) else str(text).strip()
    hit = _GROWTH.fullmatch(said)
    if hit is not None and not hit[2] and float(hit[1]) >= 1.0:
        value = float(hit[1])
        raise WorkloadError(f"growth {value:g} may be {value:g}% or {100.0 * value:g}%; write the one that is meant")
    share = math.nan if hit is None else float(hit[1]) / (100.0 if hit[2] else 1.0)
    if hit is None or not -1.0 < share <= 10.0:
        raise WorkloadError(f"growth must be above -100% and at most 1000%, like 8%/month or 100%/year, not {text!r}")
    return (1.0 + share) ** (1.0 / 12.0) - 1.0 if (hit[3] or "").lower() == "year" else share


@dataclass(frozen=True)
class Course:
    """A profile, and how it grows from month to month."""

    profile: Profile
    growth: float = 0.0
    months: int = 1
    scaling: Mapping[str, Any] | None = None  #: what was said of autoscaling, None where it was not asked for
    owning: Purchase | None = None  #: what a purchase would cost

    @property
    def factors(self) -> list[float]:
        """Factor on the load of each month over that of the first.

        >>> Course(flat(1.0), 0.5, 3).factors
        [1.0, 1.5, 2.25]
        """
        return [(1.0 + self.growth) ** month for month in range(self.months)]

    @property
    def month_hours(self) -> list[float]:
        """Hours of a month that each interval takes."""
        return [hours * MONTH_HOURS / self.profile.span for hours in self.profile.hours]
