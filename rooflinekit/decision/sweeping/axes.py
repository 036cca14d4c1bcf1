"""How lists and ranges are spelled: `1,2,4:64*2`."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from rooflinekit.estimation.options import Option
from rooflinekit.model.types.errors import InputError

__all__ = ["parse_axis"]

_MOST = 1_000_000
_SLACK = 1e-9  # of a step: the end of a range is in it, whatever decimals lose


def parse_axis(text: str, name: str, option: Option | None = None) -> list[Any]:
    """Read the values of one input.

    `1,2,8` lists; `1:4` is 1, 2, 3, 4; `0:100:25` has steps of 25; `4:64*2` doubles. Both ends are in a range if its
    steps meet them. `default` leaves the input to its default. Numbers take the units of their option; what is none is
    text.

    >>> parse_axis("1,2,4:64*2", "batch")
    [1, 2, 4, 8, 16, 32, 64]
    >>> parse_axis("bf16,fp8", "kv"), parse_axis("0.5:1.5:0.5", "rate"), parse_axis("default,8000", "context")
    (['bf16', 'fp8'], [0.5, 1.0, 1.5], [None, 8000])

    Raises InputError for an empty place, and a range that does not end.
    """
    values: list[Any] = []
    read = _value if option is None or option.kind not in ("count", "number", "length") else partial(_read, option)
    for word in (part.strip() for part in text.split(",")):
        if not word:
            raise InputError(f"{name} has an empty place in {text!r}; write values like 1,2,4:64*2")
        values += _range(word, name, read) if _is_range(word, read) else [read(word)]
    return values


def _read(option: Option, word: str) -> Any:
    plain = _value(word)
    if not isinstance(plain, str):
        return plain
    try:
        return option.parse(word)
    except ValueError:
        return word


def _is_range(word: str, read: Callable[[str], Any]) -> bool:
    """A range begins with a number; other colons belong to names, such as window:4096."""
    start, colon, _ = word.partition(":")
    return bool(colon) and isinstance(read(start), (int, float))


def _value(word: str) -> Any:
    if word.lower() == "default":
        return None
    for kind in (int, float):
        try:
            value = kind(word)
        except ValueError:
            continue
        if math.isfinite(value):
            return value
    return word


def _range(word: str, name: str, read: Callable[[str], Any]) -> list[int | float]:
    start_text, _, rest = word.partition(":")
    geometric = "*" in rest
    end_text, _, step_text = rest.partition("*" if geometric else ":")
    numbers = [read(part) for part in (start_text, end_text, step_text or "1")]
    if any(isinstance(number, str) or number is None for number in numbers) or (geometric and not step_text):
        raise InputError(f"{name}: {word!r} is no range; write 1:8, 1:9:2 (steps of 2) or 4:64*2 (doubling)")
    start, end, step = numbers
    _check(word, name, (start, end, step), geometric)
    if geometric:
        count = math.floor(math.log(end / start) / math.log(step) + _SLACK) + 1
        return [_plain(start * step**place) for place in range(count)]
    return [_plain(start + place * step) for place in range(math.floor((end - start) / step + _SLACK) + 1)]


def _check(word: str, name: str, numbers: tuple[float, float, float], geometric: bool) -> None:
    start, end, step = numbers
    if end < start:
        raise InputError(f"{name}: the range {word!r} ends before it starts")
    if geometric and (step <= 1 or start <= 0):
        raise InputError(f"{name}: {word!r} does not end; a factor is above 1 and the start above 0, as in 4:64*2")
    if not geometric and (step <= 0 or (end - start) / step >= _MOST):
        raise InputError(f"{name}: {word!r} does not end or has more than {_MOST:,} values")


def _plain(value: float) -> int | float:
    """A whole number as one, and decimals without what binary adds to them."""
    rounded = float(f"{value:.12g}")
    return int(rounded) if rounded == int(rounded) and isinstance(value, int) else rounded
