"""Text, YAML and JSON files: every failure is a SpecError of one line; what was read is kept until a file changes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar, cast

import yaml

from rooflinekit.model.types.errors import SpecError
from rooflinekit.specs.places import admit

if TYPE_CHECKING:
    from yaml import SafeLoader as _FastLoader
else:
    _FastLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

T = TypeVar("T")
P = ParamSpec("P")
_Stamp: TypeAlias = tuple[int, int, int] | None
Parsed: TypeAlias = Mapping[str, Any]
"""A mapping of a YAML or JSON file, of which nothing is checked yet."""

_KEPT: dict[tuple[object, ...], tuple[tuple[_Stamp, ...], Any]] = {}
_MOST_KEPT = 4096
_MOST_ONCE = 256
_TEXT, _LIST, _MAPPING = (f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map"))
_END = "..."
_YOUNG_NS = 2 * 10**9  # a file system may tell times apart no better than this


def kept(make: Callable[..., T], *paths: Path, also: tuple[Hashable, ...] = ()) -> T:
    """`make(*paths, *also)`, made again only after one of these files or folders has changed.

    A change shows in time, size or number of the file; whatever is younger than two seconds is made anew each time.
    """
    key = (make, *paths, *also)
    stamps = tuple(map(_stamp, paths))
    found = _KEPT.get(key)
    if found is not None and found[0] == stamps:
        return found[1]  # type: ignore[no-any-return]
    made = make(*paths, *also)
    latest = time.time_ns() - _YOUNG_NS
    if all(stamp is None or stamp[0] < latest for stamp in stamps):
        if len(_KEPT) >= _MOST_KEPT:
            _KEPT.clear()
        _KEPT[key] = (stamps, made)
    return made


def once(make: Callable[P, T]) -> Callable[P, T]:
    """Remember what a function made of texts, numbers and objects that never change, by which objects they are."""
    made: dict[tuple[object, ...], tuple[object, T]] = {}

    @wraps(make)
    def remembered(*args: P.args, **kwargs: P.kwargs) -> T:
        key = tuple(arg if isinstance(arg, str | float) else id(arg) for arg in (*args, *kwargs.values()))
        found = made.get(key)
        if found is None:
            if len(made) >= _MOST_ONCE:
                made.clear()
            found = made[key] = ((args, kwargs), make(*args, **kwargs))  # holds the objects, so that no id is reused
        return found[1]

    return remembered


def _stamp(path: Path) -> _Stamp:
    try:
        state = os.stat(path)  # noqa: PTH116 - twice as fast as Path.stat
    except (OSError, ValueError):
        return None
    return state.st_mtime_ns, state.st_size, state.st_ino


def read_text(path: Path) -> str:
    """The text of a UTF-8 file."""
    admit(path)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise SpecError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise SpecError(f"{path}: is a folder, not a file") from None
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror or error}") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: not UTF-8 text at byte {error.start}; save it as UTF-8") from None
    if not text.strip():
        raise SpecError(f"{path}: the file is empty")
    return text


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping that a YAML file holds."""
    return mapping_in(path, read_text(path))


def mapping_in(path: Path, text: str) -> dict[str, object]:
    """The mapping in a part of a YAML file; an error names lines of the part."""
    try:
        data = parse_yaml(text)
    except _RepeatedKeyError as error:
        raise SpecError(f"{path}: line {error.line}: key {error.key!r} appears twice; remove one") from None
    except yaml.MarkedYAMLError as error:
        where = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise SpecError(f"{path}: {where}not valid YAML (truncated?): {error.problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SpecError(f"{path}: not valid YAML: {reason(error)}") from None
    return _mapping(path, data)


@cache
def table_of(module: str) -> dict[str, Any]:
    """The YAML file that lies beside a module (its `__file__`) under its name; read once."""
    return read_yaml(Path(module).with_suffix(".yaml"))


def refuse_cut(path: Path) -> None:
    """Raise SpecError unless the last line is `...`, YAML's end of a document: what is left of a file may be valid."""
    if read_text(path).rstrip().rpartition("\n")[2] != _END:
        raise SpecError(f"{path}: is the file cut? its last line is not {_END}, which ends a spec file; add it if not")


def parse_yaml(text: str) -> Any:
    """Content of a YAML text; scalars and repeated keys as `read_yaml` takes them."""
    return yaml.load(text, Loader=_StrictLoader)


def read_json(path: Path) -> dict[str, object]:
    """The mapping that a JSON file holds; bare Infinity and NaN are accepted, as Hugging Face writes them."""
    text = read_text(path)
    try:
        data = json.loads(text, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise SpecError(f"{path}: {where}: not valid JSON (truncated?): {error.msg}") from None
    except KeyError as error:
        raise SpecError(f"{path}: key {error.args[0]!r} appears twice; remove one") from None
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{path}: not valid JSON: {reason(error)}") from None
    return _mapping(path, data)


def json_lines(path: Path, lines: Iterable[str], first: int = 1) -> Iterator[tuple[int, dict[str, Any]]]:
    """The JSON objects of lines of a file, with their numbers from `first` on; empty lines are passed over."""
    for number, line in enumerate(lines, first):
        if not line.strip():
            continue
        try:
            data = json.loads(line)
        except (ValueError, RecursionError) as error:
            what = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
            raise SpecError(f"{path}, line {number}: is not valid JSON ({what})") from None
        if not isinstance(data, dict):
            raise SpecError(f"{path}, line {number}: is not a JSON object")
        yield number, data


def reason(error: Exception) -> str:
    """Reason on one line; Python's own advice on long integers is for programmers."""
    text = " ".join(str(error).split())
    return "an integer has thousands of digits" if "set_int_max_str_digits" in text else text


def _mapping(path: Path, data: object) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise SpecError(f"{path}: holds a {type(data).__name__}, not keys with values")
    return data


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    seen: dict[str, Any] = {}
    for key, value in pairs:
        if key in seen:
            raise KeyError(key)
        seen[key] = value
    return seen


class _RepeatedKeyError(Exception):
    def __init__(self, key: object, line: int) -> None:
        self.key, self.line = key, line
        super().__init__(key, line)


class _StrictLoader(_FastLoader):
    """The safe loader, in C where it is built, that refuses a repeated key and makes each scalar and alias once."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._tags: dict[object, str] = {yaml.SequenceNode: _LIST, yaml.MappingNode: _MAPPING}

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        """The tag of a node without one; that of a plain scalar is found once for each text."""
        if kind is yaml.ScalarNode and not implicit[0]:
            return _TEXT  # in quotes
        key = value if kind is yaml.ScalarNode else kind
        if key not in self._tags:
            self._tags[key] = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
        return self._tags[key]

    def ascend_resolver(self) -> None:
        """No tag depends on where it stands."""

    def descend_resolver(self, parent: object, place: object) -> None:
        """Nothing to undo: no tag depends on where it stands."""

    def construct_document(self, node: yaml.Node) -> object:
        """The value of a file."""
        return self._value(node, {})

    def _value(self, node: yaml.Node, made: dict[object, object]) -> object:
        if node.tag == _TEXT:
            return node.value
        key = (node.tag, node.value) if isinstance(node, yaml.ScalarNode) else id(node)
        if key not in made:
            made[key] = self._make(node, made)
        return made[key]

    def _make(self, node: yaml.Node, made: dict[object, object]) -> object:
        if node.tag == _LIST:
            return [self._value(item, made) for item in node.value]
        if node.tag != _MAPPING:
            return self.construct_object(node, deep=True)
        seen = set()
        for key_node, _ in node.value:
            key = (key_node.tag, str(key_node.value))
            if key in seen:
                raise _RepeatedKeyError(key_node.value, key_node.start_mark.line + 1)
            seen.add(key)
        self.flatten_mapping(cast("yaml.MappingNode", node))  # what `<<` names comes first
        try:
            return {self._value(key_node, made): self._value(value, made) for key_node, value in node.value}
        except TypeError:
            raise yaml.constructor.ConstructorError(None, None, "found unhashable key", node.start_mark) from None

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """An integer that Python can also print; hexadecimal ones have no limit of their own."""
        value = int(super().construct_yaml_int(node))
        str(value)  # a ValueError for thousands of digits
        return value


_StrictLoader.add_constructor("tag:yaml.org,2002:int", _StrictLoader.construct_yaml_int)
