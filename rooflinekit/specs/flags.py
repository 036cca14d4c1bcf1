"""Which settings an engine's server takes, by version: facts from its sources, looked up by concept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from rooflinekit.model.types.errors import InputError
from rooflinekit.model.types.frozen import dataclass


def version_key(version: str) -> tuple[int, ...]:
    """The numbers of a version, as far as they go, compared one by one; trailing zeros do not count.

    >>> version_key("0.8") == version_key("0.8.0") < version_key("0.8.5.post1") < version_key("0.10")
    True
    """
    numbers: list[int] = []
    for part in version.lower().lstrip("vb").split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        numbers += [int(digits)] if digits else []
        if digits != part:
            break
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


@dataclass(frozen=True, slots=True)
class Flag:
    """One setting: an option of the command line (it begins with `-`) or a key of the configuration file."""

    concept: str  #: what it is for, the same word in every engine's table
    spelling: str  #: `--max-num-seqs`, or `kv_cache_config.dtype`
    kind: str  #: integer, number, text, choice, json, switch (an option alone), flag (true or false), nothing (null)
    since: str  #: oldest version that was read and has it
    last: str = ""  #: newest version that was read and has it; "" if the newest of all has it
    default: str = ""  #: what the engine does without it, where its source says so
    values: Mapping[str, str] = field(default_factory=dict, hash=False)  #: our word -> the engine's
    source: str = ""

    @property
    def on_command_line(self) -> bool:
        """Whether it is an option of the command, not a key of a file."""
        return self.spelling.startswith("-")

    def known_at(self, version: str) -> bool:
        """Whether a version is one for which it was read, or lies between two such versions."""
        key = version_key(version)
        return version_key(self.since) <= key and (not self.last or key <= version_key(self.last))

    def shared(self, later: Flag) -> Flag | None:
        """What this and a later form of a setting have in common; None if it changed its name or kind."""
        if (self.spelling, self.kind) != (later.spelling, later.kind):
            return None
        values = {ours: theirs for ours, theirs in self.values.items() if later.values.get(ours) == theirs}
        return replace(self, values=values, default=self.default if self.default == later.default else "")


@dataclass(frozen=True, slots=True)
class FlagTable:
    """Everything that is known about the settings of one engine's server."""

    engine: str
    title: str
    program: tuple[str, ...]  #: the command that starts a server
    read: tuple[str, ...]  #: versions whose sources were read, oldest first
    flags: tuple[Flag, ...]
    notes: Mapping[str, str] = field(default_factory=dict)  #: how `replicas`, or those of a `split`, become a service

    def check(self, version: str) -> str:
        """The version to look up; the newest that was read if it is empty.

        Raises InputError for a version outside of what was read.
        """
        first, newest = self.read[0], self.read[-1]
        if not version:
            return newest
        key = version_key(version)
        if not version_key(first) <= key or (*key, 0)[:2] > (*version_key(newest), 0)[:2]:
            raise InputError(
                f"the settings of {self.engine} {version} are not known. Sources of {first} to {newest} were read: "
                f"take one of these, such as --engine {self.engine}@{newest}"
            )
        return version

    def values(self, concept: str) -> set[str]:
        """Every word that a version takes for a concept; empty where none has a setting for it."""
        return {word for flag in self.flags if flag.concept == concept for word in flag.values}

    def find(self, concept: str, version: str) -> Flag | None:
        """The setting for a concept at a version; None if none is known there.

        Between two versions that were read, a setting that both have is there too, with the values that both take.
        """
        flags, key = [flag for flag in self.flags if flag.concept == concept], version_key(version)
        for flag in flags:
            if flag.known_at(version):
                return flag
        before = [flag for flag in flags if flag.last and version_key(flag.last) < key]
        after = [flag for flag in flags if key < version_key(flag.since)]
        return before[-1].shared(after[0]) if before and after else None

    def known(self, spelling: str, version: str) -> bool:
        """Whether a spelling is one of the settings of a version."""
        concepts = {flag.concept for flag in self.flags if flag.spelling == spelling}
        found = (self.find(concept, version) for concept in concepts)
        return any(flag is not None and flag.spelling == spelling for flag in found)
