"""Typed access to the keys of one config.json: every value is checked, every key that was read is remembered."""

from __future__ import annotations

import math
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any, NoReturn

from rooflinekit.model.types.errors import InputError, SpecError
from rooflinekit.specs.files import Parsed, table_of

_LIMITS = {"depth": 10_000, "context": 10**10, "top_k": 100_000, "experts": 100_000}
_BY_LAYER = ("width", "expert_width", "shared_experts", "top_k", "experts")
"""Sizes that some configs list layer by layer; they are read where all layers have the same."""

_KEY = 60  # characters; no key of a config is longer
_ALIKE = 0.8  # of a misspelt key and the right one: one or two letters of a word
_LARGEST = 10**7  # no width, vocabulary or head count comes near


@cache
def usual_names() -> dict[str, tuple[str, ...]]:
    """Names of each size in configs: the usual name, and then the aliases in use."""
    return {concept: tuple(names) for concept, names in table_of(__file__).items()}


@cache
def usual_keys() -> frozenset[str]:
    """Every key among them."""
    return frozenset(name for names in usual_names().values() for name in names)


def shown(value: object) -> str:
    """A value as one short line for a message.

    >>> shown([1] * 100)
    '[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, ...'
    """
    if isinstance(value, int) and abs(value) >= 10**40:
        return "an integer of more than 40 digits"
    plain = isinstance(value, bool | int | float | str | list | tuple | None)
    try:
        text = repr(value) if plain else f"a {type(value).__name__}"
    except ValueError:  # Python prints no integer of thousands of digits
        return f"a {type(value).__name__} with an integer of thousands of digits"
    text = " ".join(text.split())
    return text if len(text) <= 60 else text[:40] + "..."


def named(key: object) -> str:
    """A key for a message: as it is where it is a plain word, else quoted and cut."""
    return key if isinstance(key, str) and len(key) <= 60 and key.isprintable() else shown(key)


def is_off(value: object) -> bool:
    """True if a value says that a feature is absent: null, false, 0, empty, or layers that all see everything."""
    plain = isinstance(value, list) and all(entry == "full_attention" for entry in value)
    return value is None or plain or (isinstance(value, bool | int | float | str | dict) and not value)


def _same(one: object, other: object) -> bool:
    """Equality, but that NaN equals NaN: what is wrong with it is said where its value is checked."""
    both_nan = all(isinstance(value, float) and math.isnan(value) for value in (one, other))
    return both_nan or one == other


class Keys:
    """The keys of a config object, read by what they mean.

    A *concept* such as "kv_heads" is looked up under each of its names; two names that disagree are refused. A key
    whose value is null counts as absent, as Hugging Face treats it. `read` maps each key that was used to what it gave.
    Whatever is wrong is a SpecError that names file, key and value.
    """

    def __init__(self, config: Parsed, origin: str, names: Mapping[str, tuple[str, ...]], prefix: str = "") -> None:
        for key in config:
            if not isinstance(key, str):
                raise SpecError(f"{origin}: {prefix}{shown(key)} is not a string, and so no key")
        self.config, self.origin, self.names, self.prefix = config, origin, names, prefix
        self.read: dict[str, str] = {}
        self._children: dict[str, Keys] = {}

    def at(self, key: str) -> str:
        """Place of a key for messages: file and full name."""
        return f"{self.origin}: {self.prefix}{named(key)}"

    def refuse(self, key: str, problem: str, kind: type[InputError] = SpecError) -> NoReturn:
        """Raise the error that names file, key and value."""
        raise kind(f"{self.at(key)} = {shown(self.config[key])} {problem}")

    def has(self, key: str) -> bool:
        """True if the key is there and not null; a null is remembered as read."""
        if key in self.config and self.config[key] is None:
            self.read[self.prefix + key] = "absent (null)"
        return self.config.get(key) is not None

    def note(self, key: str, meaning: str) -> None:
        """Remember what a key gave."""
        self.read[self.prefix + key] = meaning

    def find(self, concept: str) -> tuple[str, Any] | None:
        """The key that holds a concept, and its value; None when no name of it is there."""
        hits: list[tuple[str, Any]] = []
        for name in self.names.get(concept, (concept,)):
            inner, key = self._inside(name)
            if inner.has(key):
                value = inner.config[key]
                if concept in _BY_LAYER and isinstance(value, list):
                    same = value[:1] * (self.maybe("depth") or 0)
                    value = same[0] if same and value == same else value
                hits.append((name, value))
                inner.note(key, f"{concept} = {shown(value)}")
                if concept != "context" and not _same(value, hits[0][1]):
                    inner.refuse(key, f"contradicts {hits[0][0]} = {shown(hits[0][1])}")
        return hits[0] if hits else None

    def _inside(self, name: str) -> tuple[Keys, str]:
        """The object that holds `name`, which may be `object.key`, and the key in it."""
        outer, dot, key = name.partition(".")
        return (self.child(outer), key) if dot else (self, name)

    def maybe(self, concept: str, least: int = 1) -> int | None:
        """A whole number between `least` and the sane limit of the concept, or None when it is absent."""
        hit = self.find(concept)
        return None if hit is None else self.whole(hit[0], hit[1], least, _LIMITS.get(concept, _LARGEST))

    def size(self, concept: str, default: int | None = None, least: int = 1) -> int:
        """Read like `maybe`, but a concept without a default must be there."""
        value = self.maybe(concept, least)
        if value is not None:
            return value
        if default is not None:
            return default
        names = self.names.get(concept, (concept,))
        meant = {name for listed in self.names.values() for name in listed}
        inner = self._inside(names[0])[0]
        candidates = [key for key in inner.config if key not in self.read and key not in meant and len(key) <= _KEY]
        near = [hit for name in names for hit in get_close_matches(name, candidates, n=1, cutoff=_ALIKE)][:1]
        hint = f"; did you mean it by {near[0]!r}?" if near else ""
        others = f" (or {', '.join(names[1:])})" if len(names) > 1 else ""
        raise SpecError(f"{self.at(names[0])}{others} is missing{hint}")

    def whole(self, key: str, value: object, least: int = 1, most: int = _LARGEST) -> int:
        """Check that a value, which may stand inside the one of `key`, is a whole number in range."""
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if not whole or isinstance(value, bool):
            raise SpecError(f"{self.at(key)} = {shown(value)} is not a whole number")
        if not least <= value <= most:  # type: ignore[operator]
            raise SpecError(f"{self.at(key)} = {shown(value)} lies outside {least} .. {most}")
        return int(value)  # type: ignore[call-overload, no-any-return]

    def flag(self, name: str, default: bool) -> bool:
        """True or false (0 and 1 are accepted); the default when the key is absent."""
        keys, key = self._inside(name)
        if not keys.has(key):
            return default
        value = keys.config[key]
        if not isinstance(value, bool | int) or value not in (0, 1):
            keys.refuse(key, "is neither true nor false")
        keys.note(key, str(bool(value)).lower())
        return bool(value)

    def word(self, name: str, default: str = "", choices: tuple[str, ...] = ()) -> str:
        """A string, one of the choices if there are any; the default when absent."""
        keys, key = self._inside(name)
        if not keys.has(key):
            return default
        value = keys.config[key]
        if not isinstance(value, str):
            keys.refuse(key, "is not a string")
        if choices and value not in choices:
            keys.refuse(key, f"is not understood; known: {', '.join(choices)}")
        keys.note(key, value)
        return value

    def entries(
        self, key: str, length: int | None = None, allowed: tuple[Any, ...] = (), *, required: bool = False
    ) -> list[Any]:
        """A list, of one entry a layer when `length` is given, each one of `allowed`, if any are; empty when absent."""
        value = self.config[key] if self.has(key) else []
        if not isinstance(value, list | tuple):
            self.refuse(key, "is not a list")
        if self.has(key):
            self.note(key, f"{len(value)} entries")
        if required and not value:
            raise SpecError(f"{self.at(key)} is missing")
        if length is not None and value and len(value) != length:
            raise SpecError(f"{self.at(key)} has {len(value)} entries for {length} layers")
        for index, entry in enumerate(value):
            if allowed and (isinstance(entry, bool | list | dict) or entry not in allowed):
                known = ", ".join(map(str, allowed))
                raise SpecError(f"{self.at(key)}[{index}] = {shown(entry)} is not understood; known: {known}")
        return list(value)

    def child(self, key: str) -> Keys:
        """The object under a key, as Keys of its own (empty when absent)."""
        if key not in self._children:
            value = self.config.get(key)
            if value is not None and not isinstance(value, Mapping):
                self.refuse(key, "is not an object")
            if key in self.config:
                self.note(key, "read key by key")
            child = Keys(value or {}, self.origin, self.names, f"{self.prefix}{named(key)}.")
            child.read = self.read
            self._children[key] = child
        return self._children[key]

    def unread(self) -> dict[str, Any]:
        """Keys that nothing has looked at, with their values, nested objects included."""
        left = {self.prefix + key: value for key, value in self.config.items() if self.prefix + key not in self.read}
        for child in self._children.values():
            left |= child.unread()
        return left
