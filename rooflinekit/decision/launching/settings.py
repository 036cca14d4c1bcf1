"""What a deployment wants of an engine, and the flags of one version that say it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from rooflinekit.model.types.errors import DeploymentError
from rooflinekit.model.types.flags import Flag, FlagTable

__all__ = ["Setting", "Wish", "grant"]


@dataclass(frozen=True, slots=True)
class Wish:
    """A value for a concept, and why; `word`: the value is one of our words, which the table translates."""

    concept: str
    value: Any
    because: str
    word: bool = False


@dataclass(frozen=True, slots=True)
class Setting:
    """One flag or configuration key with its value, ready to be written.

    `value` is None for an option that stands alone, and for a key whose value is null.
    """

    flag: str
    value: str | int | float | bool | None
    because: str
    source: str
    on_command_line: bool

    @property
    def args(self) -> tuple[str, ...]:
        """Its words on a command line."""
        return (self.flag,) if self.value is None else (self.flag, _spelt(self.value))


def _spelt(value: str | float | bool) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def grant(table: FlagTable, version: str, wishes: Iterable[Wish]) -> Iterator[Setting]:
    """Every wish as a setting that the version has.

    Raises DeploymentError where the version has no setting for a concept, or not that value.
    """
    for wish in wishes:
        flag = table.find(wish.concept, version)
        if flag is None:
            missing = f"{_name(table, version)} has no setting that is known for this: {wish.because}"
            raise DeploymentError(missing + _when(table, wish))
        yield Setting(
            flag.spelling, _value(table, version, flag, wish), wish.because, flag.source, flag.on_command_line
        )


def _value(table: FlagTable, version: str, flag: Flag, wish: Wish) -> str | int | float | bool | None:
    if flag.kind in ("switch", "nothing"):
        return None
    if wish.word and wish.value not in flag.values:
        raise DeploymentError(
            f"{_name(table, version)} does not take {wish.value} for {flag.spelling}; it takes "
            f"{', '.join(flag.values)} ({wish.because})"
        )
    if flag.kind == "json":
        return json.dumps(wish.value, separators=(",", ":"))
    given: str | int | float | bool = flag.values[wish.value] if wish.word else wish.value
    return given


def _name(table: FlagTable, version: str) -> str:
    return f"{table.engine} {version}"


def _when(table: FlagTable, wish: Wish) -> str:
    """From when to when the concept had a setting, if it ever had one."""
    flags = [flag for flag in table.flags if flag.concept == wish.concept]
    return f"; versions {flags[0].since} to {flags[-1].last or table.read[-1]} have one" if flags else ""
