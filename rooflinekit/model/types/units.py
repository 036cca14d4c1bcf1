"""Units at the border: SI floats inside, "3.35 TB/s" on the way in, "4.79 ms" on the way out.

GB is 1e9 bytes and GiB is 2^30 bytes, always.
"""

from __future__ import annotations

import re

GB = 1e9
MIB = float(2**20)
GIB = float(2**30)

_SHORTEST_S = 1e-12
_LARGEST = 1e22 - 0.5e18

_LARGEST_PLAIN, _SMALLEST_PLAIN = 1e9, 1e-6  # beyond, a number without a unit has an exponent

_PREFIX = {"": 1.0, "K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
# dimension -> the unit's spelling after its prefix, and what one of it is in SI
_UNITS = {
    "FLOP/s": {"FLOP/s": 1.0, "OP/s": 1.0},
    "B/s": {"B/s": 1.0, "b/s": 0.125},
    "B": {"B": 1.0},
    "Hz": {"Hz": 1.0},
    "W": {"W": 1.0},
    "s": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9},
    "USD/h": {"USD/h": 1.0},
    "FLOP": {"FLOP": 1.0},
}
_NUMBER = re.compile(r"^\s*([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*(\S.*?)\s*$")


def parse_quantity(text: object, dimension: str) -> float:
    """Read "number unit" as an SI float; the unit is required and must have the right dimension.

    >>> parse_quantity("3.35 TB/s", "B/s")
    3350000000000.0
    >>> parse_quantity("80 GiB", "B")
    85899345920.0
    """
    example = {"FLOP/s": "989.4 TFLOP/s", "B/s": "3.35 TB/s", "B": "79.6 GiB", "Hz": "1.98 GHz"}.get(
        dimension, f"1 {dimension}"
    )
    match = _NUMBER.match(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"{text!r} has no unit or is not a quantity; write it like {example!r}")
    value, unit = float(match[1]), match[2]
    prefixes = {**_PREFIX, **_BINARY} if dimension in ("B", "B/s") else _PREFIX
    units = _UNITS[dimension].items()
    scales = {prefix + unit: scale * factor for unit, factor in units for prefix, scale in prefixes.items()}
    if unit not in scales:
        raise ValueError(f"{text!r} is not in {dimension}; write it like {example!r}")
    return value * scales[unit]


def format_time(seconds: float) -> str:
    """Three significant digits, in the unit that reads best; whole seconds from 1,000 s, an exponent from 1e9 s.

    >>> format_time(0.00479), format_time(12.5e-6), format_time(1.234), format_time(0.745e-9), format_time(1.2e15)
    ('4.79 ms', '12.5 µs', '1.23 s', '0.745 ns', '1.20e+15 s')
    >>> format_time(12e3), format_time(2e-16)
    ('12,000 s', '2.00e-16 s')
    """
    if abs(seconds) >= _LARGEST_PLAIN or 0 < abs(seconds) < _SHORTEST_S:
        return f"{seconds:.2e} s"
    if abs(seconds) >= 999.5:
        return f"{seconds:,.0f} s"
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if abs(seconds) >= scale * 0.9995 or (seconds == 0 and unit == "µs"):
            return f"{_three(seconds / scale)} {unit}"
    return f"{_three(seconds / 1e-9)} ns"


def format_bytes(count: float) -> str:
    """Decimal bytes, three significant digits.

    >>> format_bytes(131072), format_bytes(5.369e9), format_bytes(1.31e41)
    ('131 kB', '5.37 GB', '1.31e+41 B')
    """
    return f"{_prefixed(count)}B"


def format_rate(per_second: float, unit: str) -> str:
    """A rate with its prefix.

    >>> format_rate(3.35e12, "B/s"), format_rate(989.4e12, "FLOP/s")
    ('3.35 TB/s', '989 TFLOP/s')
    """
    return f"{_prefixed(per_second)}{unit}"


def format_count(count: float, unit: str = "") -> str:
    """A count with its prefix.

    >>> format_count(8030261248), format_count(16.1e9, "FLOP")
    ('8.03 G', '16.1 GFLOP')
    """
    return f"{_prefixed(count)}{unit}".rstrip()


def percent(share: float, digits: int = 0, signed: bool = False) -> str:
    """A share, or a change, in percent.

    >>> percent(0.45), percent(0.0123, 1), percent(0.05, signed=True)
    ('45 %', '1.2 %', '+5 %')
    """
    return f"{100.0 * share:{'+' if signed else ''}.{digits}f} %"


def significant(value: float) -> str:
    """Three significant digits, zeros at the end included; thousands apart; an exponent beyond 1e9 and below 1e-6.

    >>> significant(2.0), significant(0.13), significant(12345.6), significant(4.8e-05), significant(3e10)
    ('2.00', '0.130', '12,346', '0.0000480', '3.00e+10')
    """
    if abs(value) >= _LARGEST_PLAIN or 0 < abs(value) < _SMALLEST_PLAIN:
        return f"{value:.2e}"
    return f"{value:,.0f}" if abs(value) >= 999.5 else _three(value)


def _prefixed(value: float) -> str:
    if abs(value) >= _LARGEST:
        return f"{value:.2e} "
    for prefix, scale in (("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= scale * 0.9995:
            return f"{_three(value / scale)} {prefix}"
    return f"{_three(value)} "


def _three(value: float) -> str:
    """Three significant digits without an exponent.

    >>> _three(0.0), _three(999.7), _three(12345.0), _three(0.01234)
    ('0', '1000', '12345', '0.0123')
    """
    if value == 0:
        return "0"
    if abs(value) >= 99.95:
        return f"{value:.0f}"
    digits = 2
    while abs(value) < 10 ** (1 - digits) * 9.995 and digits < 12:
        digits += 1
    return f"{value:.{digits if abs(value) < 9.995 else 1}f}"
