"""One section of a spec file, read strictly into the type that describes it.

A dataclass says which keys a section has, and its annotations what each of them holds: `read` is the only reader. Every
refusal is a SpecError of one line: `file: key: value: what is wrong; the fix`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Mapping
from dataclasses import MISSING, field, fields, is_dataclass, replace
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.errors import SpecError, nearest_of
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.model.types.hardware import CitedSource
from rooflinekit.model.types.units import parse_quantity
from rooflinekit.specs.files import Parsed, once, read_yaml

T = TypeVar("T")
Count = Annotated[int, ""]
"""A whole number above 0; a plain `int` may be 0. A number with a unit is an `Annotated[float, "B/s"]`."""
Cites = Annotated[tuple[str, ...], "sources"]
"""Ids of documents that the file lists under `sources`."""

EMPTY: Mapping[Any, Any] = MappingProxyType({})
"""The default of a section that may be absent."""

_MOST = 10**9
_LARGEST = sys.float_info.max
_ARITHMETIC = {dtype.value: dtype for dtype in Dtype if dtype.unit is dtype}


class FileLayout:
    """Layout of a section of a file: its annotations say of which kind each key is, its attributes are the defaults.

    These are no dataclasses: making one takes half a millisecond, and every start would pay for thirty.
    """

    def __init__(self, **values: object) -> None:
        self.__dict__.update(values)


class _Document(FileLayout):
    title: str
    url: str
    read: bool


@dataclass(frozen=True)
class FileSection:
    """The keys under `key` in `file`, with the documents that the file cites; example: the command that prints one."""

    file: Path
    key: str
    data: Parsed
    sources: Mapping[str, CitedSource] = field(default_factory=dict)
    example: str = ""

    @classmethod
    def open(cls, path: Path, example: str = "") -> FileSection:
        """A whole YAML file, with the documents under `sources`."""
        return cls(path, "", read_yaml(path), {}, example).with_sources()

    def with_sources(self) -> FileSection:
        """The section and its parts, which may cite the documents under its `sources`."""
        listed = self.section("sources")
        read = {name: listed.section(name).read(_Document) for name in listed.data}
        return replace(self, sources={name: CitedSource(name, **vars(document)) for name, document in read.items()})

    def path(self, key: str) -> str:
        """The full name of `key`, such as `memory.bandwidth`."""
        return f"{self.key}.{key}" if self.key else key

    def refuse(self, key: str, problem: str) -> NoReturn:
        """Raise the SpecError that names file and key."""
        raise SpecError(f"{self.file}: {self.path(key)}: {problem}")

    def expect(self, required: Collection[str], optional: Collection[str] = ()) -> None:
        """Refuse an unknown key (with the nearest known one) and a missing one."""
        known = list(dict.fromkeys([*required, *optional]))
        for key in self.data:
            if key not in known:
                self.refuse(str(key), f"unknown key; nearest: {nearest_of(str(key), known)}")
        for key in required:
            if self.data.get(key) is None:
                self.refuse(key, "is missing; add it" + (f" ({self.example})" if self.example else ""))

    def has(self, key: str) -> bool:
        """True if `key` is there with a value."""
        return self.data.get(key) is not None

    def read(self, kind: type[T]) -> T:
        """The section as a `kind`: each key by its annotation."""
        required, hints = described(kind)
        self.expect(required, hints)
        values = {key: self.value(key, hint) for key, hint in hints.items() if self.has(key)}
        try:
            return kind(**values)
        except ValueError as error:  # values that are right one by one, and not together
            raise SpecError(f"{self.file}: {self.key}: {error}") from error

    def value(self, key: str, hint: Any) -> Any:
        """The value of a key that is there, as its annotation says."""
        origin, args = get_origin(hint), get_args(hint)
        if origin is Annotated:
            kind, unit = args
            if unit == "sources":
                return self.cites(key)
            return self.count(key) if kind is int else self.quantity(key, unit)
        if origin is Literal:
            if self.text(key) not in args:
                self.refuse(key, f"value {self.text(key)!r} is not one of {', '.join(args)}")
            return self.text(key)
        if origin in (Union, UnionType):  # `X | None`: what is there is an X; `str | X`: a text, else an X
            kinds = [kind for kind in args if kind is not NoneType]
            is_text = str in kinds and isinstance(self.data[key], str)
            return self.value(key, str if is_text else kinds[-1])
        if isinstance(hint, type) and (issubclass(hint, FileLayout) or is_dataclass(hint)):
            return self.section(key).read(hint)
        if origin is tuple:
            return self._tuple(key, args[0])
        if origin in (dict, Mapping):
            return self._mapping(key, *args)
        return _READERS[hint](self, key)

    def _tuple(self, key: str, item: Any) -> tuple[object, ...]:
        if item is str:
            return self.texts(key)
        if item is float:
            listed = self.data[key]
            if not isinstance(listed, list):
                self.refuse(key, f"value {listed!r} is not a list of numbers")
            return tuple(self.number_in(f"{key}[{at}]", value) for at, value in enumerate(listed))
        return tuple(entry.read(item) for entry in self.entries(key))

    def _mapping(self, key: str, names: object, item: object) -> dict[Any, Any]:
        """The keys of a section, each with a value of the same kind; number formats by their names."""
        inner = self.section(key)
        if names is Dtype:
            inner.expect((), _ARITHMETIC)
            return {_ARITHMETIC[name]: inner.value(name, item) for name in inner.data}
        return (
            dict(inner.data) if item in (Any, object) else {str(name): inner.value(name, item) for name in inner.data}
        )

    def section(self, key: str) -> FileSection:
        """The mapping under `key`, empty if there is none."""
        value = self.data.get(key)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            self.refuse(key, f"value {value!r} is not a section; put keys with values under it")
        return self._part(key, value)

    def _part(self, key: str, data: Mapping[str, object]) -> FileSection:
        return FileSection(self.file, self.path(key), data, self.sources, self.example)

    def entries(self, key: str) -> list[FileSection]:
        """The list of sections under `key`, empty if there is none."""
        listed = self.data.get(key) or []
        if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
            self.refuse(key, "is not a list of sections; begin each with '-' and put keys with values under it")
        return [self._part(f"{key}[{number}]", entry) for number, entry in enumerate(listed)]

    def text(self, key: str, default: str = "") -> str:
        """A text; a number that should be one is refused, because YAML has changed it already (9.0, 1e3)."""
        value = self.data.get(key, default)
        if not isinstance(value, str):
            self.refuse(key, f"value {value!r} is not a text; put it in quotes")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts, empty if there is none."""
        value = self.data.get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            self.refuse(key, f"value {value!r} is not a list of texts; write it like [a, b]")
        return tuple(value)

    def cites(self, key: str) -> tuple[str, ...]:
        """Ids of documents under `sources`, at least one."""
        ids = self.texts(key)
        if not ids:
            self.refuse(key, "is empty; name at least one id from `sources`")
        for unknown in (name for name in ids if name not in self.sources):
            near = nearest_of(unknown, self.sources) or "none is listed"
            self.refuse(key, f"value {unknown!r} is not under `sources`; nearest: {near}")
        return ids

    def titles(self, ids: Collection[str]) -> str:
        """The documents with these ids, for people: what was read first, and then what it quotes."""
        cited = [self.sources[name] for name in ids]
        read, quoted = ([source.title for source in cited if source.read is own] for own in (True, False))
        if not read:
            return "; ".join(f"{title} (not read)" for title in quoted)
        by = "it" if len(read) == 1 else "them"
        return "; ".join([*read, *([f"as quoted by {by}: {', '.join(quoted)}"] if quoted else [])])

    def flag(self, key: str) -> bool:
        """True or false, and nothing else."""
        value = self.data.get(key)
        if not isinstance(value, bool):
            self.refuse(key, f"value {value!r} is not true or false")
        return value

    def count(self, key: str, least: int = 1) -> int:
        """A whole number above 0 that a device may have of something, or any of at least `least`."""
        value = self.data.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            self.refuse(key, f"value {value!r} is not a whole number" + (" above 0" if least else ""))
        if least and value > _MOST:
            self.refuse(key, f"value is above {_MOST:,}, more than any device has of anything")
        return value

    def number_in(self, key: str, value: object, low: float = 0.0, high: float = math.inf) -> float:
        """A finite number without a unit, from `low` to `high`: the value of `key`, or one inside it."""
        plain = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not plain or not low <= value <= min(high, _LARGEST):  # type: ignore[operator]
            span = f"from {low:g} to {high:g}" if high < math.inf else f"of at least {low:g}"
            self.refuse(key, f"{value!r} is not a number {span}")
        return float(value)  # type: ignore[arg-type]

    def quantity(self, key: str, dimension: str) -> float:
        """A positive finite number in SI; the file must give its unit."""
        text = self.data.get(key)
        value = self.quantity_in(key, text, dimension)
        if not math.isfinite(value) or value <= 0:
            self.refuse(key, f"value {text!r} is not above 0 and finite; leave the key out if it is unknown")
        return value

    def quantity_in(self, key: str, text: object, dimension: str) -> float:
        """A number in SI inside the value of `key`, of any size."""
        try:
            return parse_quantity(text, dimension)
        except (ValueError, OverflowError) as error:
            self.refuse(key, str(error))


_READERS: Mapping[Any, Any] = {
    str: FileSection.text,
    bool: FileSection.flag,
    int: lambda section, key: section.count(key, 0),
    float: lambda section, key: section.number_in(key, section.data[key]),
    Any: lambda section, key: section.data[key],
    object: lambda section, key: section.data[key],
}


@once
def described(kind: Any) -> tuple[list[str], dict[str, Any]]:
    """The keys that must be there, and what every key holds."""
    hints = get_type_hints(kind, include_extras=True)
    if issubclass(kind, FileLayout):
        return [name for name in hints if not hasattr(kind, name)], hints
    required = [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]
    return required, {f.name: hints[f.name] for f in fields(kind)}
