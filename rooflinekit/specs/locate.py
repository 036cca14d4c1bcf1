"""Finding a spec by name: the library's folders, the user's folder, aliases, paths.

A name is compared as its tokens, alternately letters and numbers: `llama3-8b` is `llama-3-8b`, and `qwen2-57b` is not
`qwen2.5-7b`. File names are compared first and open nothing; only when none matches are the files scanned for aliases.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Generic, TypeVar

from rooflinekit.model.types.errors import SpecError, UnknownNameError
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.specs.files import kept, once, read_yaml
from rooflinekit.specs.places import Kind, admit, admitted, catalogue_alone, spec_dir, user_dir

T = TypeVar("T")

_SUFFIXES = (".yaml", ".yml")
_WEIGHTS = (".gguf", ".safetensors")  # files of weights, which are models too
_LONGEST_NAME = 200  # characters; nothing longer is looked up in earnest
_LEAST = 3  # letters and digits that a name must have to be sought inside others
_ALIKE, _BEGINNING = 0.77, 0.74  # of two spellings, and of how names begin, as difflib counts
_MANY, _FEW = 6, 3  # suggestions that begin with the name; that are only like it
_HEAD = 8192  # aliases stand in this many characters at the top of a file
_BETWEEN_LETTERS = re.compile(r"(?<=[a-z])[^a-z\d/+]+(?=[a-z])")
_TOKEN = re.compile(r"\d+(?:\.\d+)?|[a-z]+|[/+]")
_ALIAS_LINE = re.compile(r"^(ambiguous_)?aliases:[ \t]*\[(.*)\]", re.MULTILINE)
_ITEM = re.compile(r"\"([^\"]*)\"|'([^']*)'|([^,\s][^,]*)")


@dataclass(frozen=True)
class Loaded(Generic[T]):
    """Content of a file, or the file that a name means, and notes for the user."""

    value: T
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Aliases:
    path: Path
    exact: tuple[str, ...]
    ambiguous: tuple[str, ...]

    @property
    def known(self) -> tuple[str, ...]:
        """The name, and what means this file alone."""
        return self.path.stem, *self.exact


@lru_cache(maxsize=16384)
def tokens(name: str) -> tuple[str, ...]:
    """Words and numbers by which a name is compared.

    >>> tokens("Tiny-Llama1.1b"), tokens("Llama3-8B") == tokens("llama-3-8b")
    (('tinyllama', '1.1', 'b'), True)
    """
    return tuple(_TOKEN.findall(_BETWEEN_LETTERS.sub("", name.lower())))


def names(kind: Kind) -> list[str]:
    """Every name that the library and the user's folder define, sorted; no file is opened."""
    return sorted(
        {path.stem for folder in _folders(kind) for paths in kept(_listing, folder).values() for path in paths}
    )


def aliases(kind: Kind) -> dict[str, tuple[str, ...]]:
    """The exact aliases of every spec, by its name."""
    return {entry.path.stem: entry.exact for entry in reversed(_scan(kind))}


def scanned_aliases(path: Path) -> tuple[str, ...]:
    """The exact aliases that a search finds in a file: those on one line near its top."""
    return _aliases_of(path).exact


def resolve(kind: Kind, name: str | os.PathLike[str]) -> Loaded[Path]:
    """The spec that a name, an alias or a path means; the user's own specs win over the library's, with a warning."""
    text = os.fspath(name)
    if isinstance(name, os.PathLike) or _looks_like_path(text):
        path = Path(text).expanduser()
        if not admitted(path):
            raise unknown_name(kind, text, _suggestions(text, _scan(kind)))
        if _usable(kind, path):
            return Loaded(path)
        lacks = " without a config.json" if kind == "model" else ", not a file"
        raise SpecError(f"{path}: is a folder{lacks}" if path.is_dir() else f"{path}: no such file")
    if "/" in text and kind == "model" and _usable(kind, Path(text, "config.json")):
        return Loaded(Path(text))
    found = _by_stem(kind, text) or _by_alias(text, scanned := _scan(kind))
    if found is not None:
        return found
    if _usable(kind, Path(text)):
        return Loaded(Path(text))
    if (found := _by_beginning(text, scanned)) is not None:
        return found
    raise unknown_name(kind, text, _suggestions(text, scanned))


def in_catalogue(kind: Kind, name: str) -> str:
    """The spec that a name or an alias means, never a path: no file of the caller's choice is opened.

    >>> in_catalogue("accelerator", "H100")
    'h100-sxm'
    """
    with catalogue_alone():
        return resolve(kind, name).value.stem


_LISTED = {
    "model": "`rooflinekit models` lists",
    "accelerator": "`rooflinekit gpus` lists",
    "model or accelerator": "`rooflinekit models` and `rooflinekit gpus` list",
}


def unknown_name(kind: str, name: str, suggestions: Sequence[str]) -> UnknownNameError:
    """The error for a name that nobody knows, with these suggestions as they stand, best first."""
    error = UnknownNameError(kind, name, ())
    error.suggestions = list(suggestions)
    if suggestions:
        error.args = (f"{error}; nearest: {', '.join(suggestions)}",)
    elif kind == "accelerator" and "," in name:
        error.args = (f"{error}; give one, `rooflinekit sweep` and `rooflinekit plan` take several",)
    elif kind in _LISTED:
        error.args = (f"{error}; {_LISTED[kind]} what is known",)
    return error


def _suggestions(name: str, scanned: Sequence[_Aliases]) -> list[str]:
    """The specs whose names begin with what was typed; else those that hold it; else those spelt much like it."""
    wanted = tokens(name.rpartition("/")[2]) or tokens(name)
    if not wanted or len(name) > _LONGEST_NAME:
        return []
    known = [  # an alias of a model counts less than its own name
        (rank, tokens(text.rpartition("/")[2]), entry.path.stem)
        for entry in scanned
        for rank, texts in enumerate(((entry.path.stem, *entry.ambiguous), entry.exact))
        for text in texts
    ]
    hits = [
        (rank, spelt[: len(wanted)] != wanted, _in_order(spelt), stem)
        for rank, spelt, stem in known
        if _begins_partly(wanted, spelt)
    ]
    if not hits and len("".join(wanted)) >= _LEAST:
        hits = [(rank, False, _in_order(spelt), stem) for rank, spelt, stem in known if _within(wanted, spelt)]
    if hits:
        return list(dict.fromkeys(stem for *_, stem in sorted(hits)))[:_MANY]
    from difflib import get_close_matches  # noqa: PLC0415 - only a slip pays for it

    spelt_out = {"".join(spelt): stem for _, spelt, stem in reversed(known)}
    typed = "".join(wanted)
    near = get_close_matches(typed, spelt_out, n=_MANY, cutoff=_ALIKE)
    if not near and len(typed) > _LEAST:
        return _alike_at_first(typed, known)
    return list(dict.fromkeys(spelt_out[text] for text in near))[:_FEW]


def _alike_at_first(typed: str, known: list[tuple[int, tuple[str, ...], str]]) -> list[str]:
    """The specs whose names begin nearly as what was typed, such as lama3 or h300: like ones in their order."""
    from difflib import SequenceMatcher  # noqa: PLC0415 - as above

    found = []
    for rank, spelt, stem in known:
        text = "".join(spelt)
        score = max(SequenceMatcher(None, typed, text[: len(typed) + more]).ratio() for more in (0, 1))
        if score >= _BEGINNING:
            found.append((-score, rank, _in_order(spelt), stem))
    return list(dict.fromkeys(stem for *_, stem in sorted(found)))[:_MANY]


def _begins_partly(few: tuple[str, ...], many: tuple[str, ...]) -> bool:
    """True if `many` begin with `few`, whose last token may be cut.

    >>> _begins_partly(tokens("h10"), tokens("h100-sxm")), _begins_partly(tokens("h1-sxm"), tokens("h100-sxm"))
    (True, False)
    """
    last = len(few) - 1
    return many[:last] == few[:last] and len(many) > last and many[last].startswith(few[last])


def _in_order(spelt: tuple[str, ...]) -> tuple[tuple[int, float, str], ...]:
    """Sorts numbers by size: 8b before 70b."""
    return tuple((0, float(token), "") if token[0].isdigit() else (1, 0.0, token) for token in spelt)


def kind_of_file(name: str) -> Kind | None:
    """Kind of a file, by its content: a model has `config`, an accelerator `compute` and `memory`.

    None for a name, and for a path to nothing, whose last part may be one.
    """
    path = Path(name).expanduser()
    if not _looks_like_path(name) or not path.exists():
        return None
    admit(path)
    if path.is_dir() or path.suffix.lower() in (".json", *_WEIGHTS):
        return "model"
    data = read_yaml(path)
    if "config" in data:
        return "model"
    if {"compute", "memory"} & set(data):
        return "accelerator"
    if path.suffix.lower() not in _SUFFIXES:  # a config.json by another name
        return "model"
    raise SpecError(
        f"{path}: is neither a model (it has no `config`) nor an accelerator (it has no `compute` and `memory`)"
    )


def _looks_like_path(text: str) -> bool:
    ended = text.lower().endswith((".json", *_WEIGHTS, *_SUFFIXES))
    return text.startswith((".", "/", "~")) or "\\" in text or ended


def _usable(kind: Kind, path: Path) -> bool:
    try:
        return admitted(path) and (path.is_file() or (kind == "model" and (path / "config.json").is_file()))
    except (OSError, ValueError):  # a name too long to be a path
        return False


def _folders(kind: Kind) -> tuple[Path, Path]:
    """The user's folder and the library's."""
    chosen = os.environ.get("ROOFLINEKIT_SPECS")
    if chosen and not Path(chosen).is_dir():
        raise SpecError(f"ROOFLINEKIT_SPECS = {chosen}: no such folder; create it, or unset the variable")
    return user_dir(kind), spec_dir(kind)


def _listing(folder: Path) -> dict[tuple[str, ...], list[Path]]:
    """The spec files of a folder by what their names are compared by."""
    try:
        entries = sorted(os.listdir(folder))  # noqa: PTH208 - strings are several times cheaper than Paths
    except OSError:
        return {}
    found: dict[tuple[str, ...], list[Path]] = {}
    for path in (folder / entry for entry in entries if entry.endswith(_SUFFIXES) and not entry.startswith(".")):
        found.setdefault(tokens(path.stem), []).append(path)
    return found


def _by_stem(kind: Kind, name: str) -> Loaded[Path] | None:
    wanted, (mine, library) = tokens(name), _folders(kind)
    own, shipped = (kept(_listing, folder).get(wanted, []) if wanted else [] for folder in (mine, library))
    if not own:
        return Loaded(shipped[0]) if shipped else None
    return Loaded(own[0], tuple(f"{own[0]} is used instead of the library's own {path.stem!r}" for path in shipped))


@once
def _by_alias(name: str, scanned: list[_Aliases]) -> Loaded[Path] | None:
    """A whole alias; else an ambiguous one; else the part after `org/`, if exactly one spec answers to it."""
    wanted = tokens(name)
    for entry in scanned:
        if any(tokens(alias) == wanted for alias in entry.exact):
            return Loaded(entry.path)
    for entry in scanned:
        if any(tokens(alias) == wanted for alias in entry.ambiguous):
            like = [other.path.stem for other in scanned if any(_within(wanted, tokens(t)) for t in other.known)]
            others = ", ".join(stem for stem in dict.fromkeys(like) if stem != entry.path.stem)
            also = f" (others: {others})" if others else ""
            return Loaded(entry.path, (f"{name!r} is ambiguous; took {entry.path.stem}{also}",))
    tail = tokens(name.rpartition("/")[2])
    hits = [entry.path for entry in scanned if tail and tail in {tokens(t.rpartition("/")[2]) for t in entry.known}]
    if len(hits) != 1:
        return None
    said = f"{name!r} is not a known id; took {hits[0].stem} by its last part"
    return Loaded(hits[0], (said,) if "/" in name else ())


def _by_beginning(name: str, scanned: Sequence[_Aliases]) -> Loaded[Path] | None:
    """The one spec whose name begins so, or the one that all others which do begin with; a name has a number in it."""
    begun = re.sub(r"[\s_]", "-", name.lower()).rpartition("/")[2] + "-"
    hits = {entry.path.stem: entry.path for entry in scanned if entry.path.stem.startswith(begun)}
    first, *others = sorted(hits, key=len) or [""]
    if not first or not re.search(r"\d", begun) or any(not stem.startswith(f"{first}-") for stem in others):
        return None
    also = f" (others: {', '.join(others)})" if others else ""
    return Loaded(hits[first], (f"{name!r} is not a known name; took {first}, which begins so{also}",))


def _within(few: tuple[str, ...], many: tuple[str, ...]) -> bool:
    """True if `few` occur in `many` in their order.

    >>> _within(tokens("a100-80gb"), tokens("a100-sxm-80gb")), _within(tokens("a10"), tokens("a100"))
    (True, False)
    """
    rest = iter(many)
    return all(token in rest for token in few)


def _scan(kind: Kind) -> list[_Aliases]:
    """The alias lines at the top of each file, by text: no YAML is parsed; the library's are read once."""
    mine, library = _folders(kind)
    own = [kept(_aliases_of, path) for paths in kept(_listing, mine).values() for path in paths]
    shipped = kept(_aliases_in, library)
    return [*own, *shipped] if own else shipped


def _aliases_in(folder: Path) -> list[_Aliases]:
    return [_aliases_of(path) for paths in _listing(folder).values() for path in paths]


def _aliases_of(path: Path) -> _Aliases:
    """The aliases that a file states at its top; an unreadable file has none."""
    try:
        admit(path)
        with path.open(encoding="utf-8", errors="replace") as file:
            head = file.read(_HEAD)
    except (OSError, SpecError):
        head = ""
    found: dict[bool, tuple[str, ...]] = {}
    for prefix, items in _ALIAS_LINE.findall(head):
        found[bool(prefix)] = tuple("".join(parts).strip() for parts in _ITEM.findall(items))
    return _Aliases(path, found.get(False, ()), found.get(True, ()))
