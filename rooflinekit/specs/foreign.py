"""Numbers and times of files that others wrote: form and range are checked here, and the unit of a time is recognised.

A clock counts seconds, milliseconds, microseconds or nanoseconds since 1970. Its sizes from 2001 to 2096 do not
overlap, so that the size says the unit. A smaller number is seconds from some start.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from datetime import UTC, datetime
from numbers import Real
from typing import NamedTuple

MOST = 1e15
"""No latency in ms, count or rate is larger."""
LONGEST_S = 10 * 365 * 86400.0
"""Ten years: a longer time from a start is a clock, or in another unit."""
EPOCH_S = (1e9, 4e9)
"""Seconds since 1970 that are a clock: from 2001 to 2096."""
_CLOCKS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}  # a second in the unit
_SHOWN = 24  # characters of a value in a message


class Moment(NamedTuple):
    """A time [s], since 1970 or since some start, and the unit in which it was written."""

    seconds: float
    unit: str


def number_of(value: object, low: float = 0.0, high: float = MOST) -> float:
    """A number from `low` to `high`, of a number or its text.

    >>> number_of("2.5"), number_of(7)
    (2.5, 7.0)
    """
    number = math.nan
    if isinstance(value, (Real, str)) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:  # an integer of hundreds of digits
            number = math.inf
        except ValueError:
            pass
    if not number >= low:
        raise ValueError(f"{_short(value)}, not a number of at least {low:g}")
    if number > high:
        raise ValueError(f"{_short(value)}, not a number of at most {high:g}")
    return number


def number_or(value: object, other: float, low: float = 0.0, high: float = MOST) -> float:
    """A number from `low` to `high`, or else another one."""
    try:
        return number_of(value, low, high)
    except ValueError:
        return other


def moment_of(stamp: object, unit: str = "") -> Moment:
    """A time of a number in `unit`, or in the unit that its size says, or of a date in ISO 8601 (UTC without a zone).

    >>> moment_of(1764000000), moment_of("1764000000000"), moment_of("2025-11-24T16:00:00Z").seconds
    (Moment(seconds=1764000000.0, unit='s'), Moment(seconds=1764000000.0, unit='ms'), 1764000000.0)
    """
    try:
        number = float(stamp) if isinstance(stamp, (Real, str)) and not isinstance(stamp, bool) else None
    except ValueError:
        number = None
    except OverflowError:
        number = math.inf
    if number is None:
        return Moment(_date(stamp), "s")
    for name in (unit,) if unit else _CLOCKS:
        seconds = number / _CLOCKS[name]
        if EPOCH_S[0] <= seconds <= EPOCH_S[1] or (0.0 <= seconds <= LONGEST_S and name in (unit, "s")):
            return Moment(seconds, name)
    known = unit or ", ".join(_CLOCKS)
    raise ValueError(f"{_short(stamp)}, which is no time from 2001 to 2096 in {known}, and no seconds from a start")


def units_note(units: Collection[str]) -> str:
    """Note on recognised units; nothing where all are seconds.

    >>> units_note(["s", "ms", "ms"])
    'times in ms are recognised by their size'
    """
    found = [name for name in _CLOCKS if name in units and name != "s"]
    return f"times in {' and '.join(found)} are recognised by their size" if found else ""


def _date(stamp: object) -> float:
    """Seconds since 1970 of a date."""
    try:
        date = stamp if isinstance(stamp, datetime) else datetime.fromisoformat(str(stamp).strip())
        seconds = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise ValueError(f"{_short(stamp)}, which is no time; write 2026-11-22T14:00:00+00:00") from None
    if not 0.0 <= seconds <= EPOCH_S[1]:
        raise ValueError(f"{_short(stamp)}, which is no time from 1970 to 2096")
    return seconds


def _short(value: object) -> str:
    try:
        text = repr(str(value))
    except ValueError:  # an integer too long to print
        return "a number of thousands of digits"
    return text if len(text) <= _SHOWN + 2 else f"{text[: _SHOWN + 1]}…'"
