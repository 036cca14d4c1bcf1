"""Loading a model: a library file, a config.json, a folder, or an entry of the local Hugging Face cache."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from rooflinekit.model.types.errors import InputError, MissingExtraError, SpecError, UnknownNameError, nearest
from rooflinekit.model.types.model import Model
from rooflinekit.specs.config.claims import claimed_name, differences
from rooflinekit.specs.config.importer import model_from_config
from rooflinekit.specs.config.keys import NAMES, shown
from rooflinekit.specs.locate import Loaded, read_json, read_yaml, resolve, spec_dir

__all__ = ["cached_config", "fetch_config", "load_model"]

_FIELDS = (
    "name",
    "aliases",
    "ambiguous_aliases",
    "source",
    "license",
    "notes",
    "expect",
    "rotary_tables",
    "tower",
    "config",
)
_COMPANION = "hf_quant_config.json"
_TOLD = 3  # differences that one warning names
_ID = re.compile(r"[\w.-]+/[\w.-]+")


def load_model(name: str | os.PathLike[str]) -> Loaded[Model]:
    """Load the model that a name, alias, Hugging Face id or path means.

    Library and user specs come first, then paths (a config.json, or a folder that holds one, with
    hf_quant_config.json beside it if quantised), then the local Hugging Face cache. Nothing is downloaded.

    Raises:
        UnknownNameError: nobody knows the name; the nearest are named.
        SpecError: a file, key or value that cannot be trusted.
        ArchitectureError: a network that is not a decoder, or has features that are not understood.
        DtypeError: an unknown number format or quantisation.
    """
    text = os.fspath(name)
    cached = cached_config(text)
    try:
        resolved = resolve("model", name)
    except UnknownNameError:
        if cached is None:
            raise
        return _from_config(cached, text)
    if cached is not None and resolved.warnings:  # only its last part is known: the very id lies in the cache
        return _from_config(cached, text)
    loaded = _from_path(resolved.path)
    return Loaded(loaded.value, (*resolved.warnings, *loaded.warnings))


def _from_path(path: Path) -> Loaded[Model]:
    if path.is_dir():
        return _from_config(path / "config.json", path.resolve().name)
    if path.suffix.lower() in (".yaml", ".yml"):
        return _from_library(path)
    return _from_config(path, path.resolve().parent.name if path.name == "config.json" else path.stem)


def _from_config(path: Path, name: str) -> Loaded[Model]:
    companion = path.parent / _COMPANION
    quant_config = read_json(companion) if companion.is_file() else None
    config = read_json(path)
    loaded = model_from_config(config, name=name, origin=str(path), quant_config=quant_config)
    return Loaded(loaded.value, (*loaded.warnings, *_contradicted(loaded.value, claimed_name(config, path))))


def _contradicted(model: Model, claim: str | None) -> list[str]:
    """The warning that a config says to be a model of the library, and has other sizes than that model."""
    if not claim:
        return []
    try:
        found = resolve("model", claim)
    except InputError:
        return []
    if found.warnings or found.path.parent != spec_dir("model"):  # a guess, or not the library's
        return []
    known = _from_library(found.path).value
    told = differences(model, known)
    if not told:
        return []
    owners = (f"the library's {known.name}", *["it"] * _TOLD)
    has = [f"{key} {ours} where {owner} has {its}" for (key, ours, its), owner in zip(told, owners, strict=False)]
    rest = [f"{len(told) - _TOLD} more differences"] if len(told) > _TOLD else []
    return [f"{Path(model.origin).name} says it is {claim}, but has {', '.join((*has[:_TOLD], *rest))}"]


def _from_library(path: Path) -> Loaded[Model]:
    """A spec file: Hugging Face field names under `config`, and what is known about the model around them."""
    spec = read_yaml(path)
    for key in spec:
        if key not in _FIELDS:
            raise SpecError(f"{path}: unknown key {shown(key)}{_near(str(key), _FIELDS)}")
    for key in _mapping(path, spec, "expect"):
        if key != "params_total":
            raise SpecError(f"{path}: unknown key expect.{shown(key)}; nearest: params_total")
    config = spec.get("config")
    if not isinstance(config, Mapping):
        raise SpecError(f"{path}: config = {shown(config)} is not an object of Hugging Face keys")
    name, source = _text(path, spec, "name"), _text(path, spec, "source")
    loaded = model_from_config(config, name=name, origin=str(path))
    _refuse_unread(path, config, loaded.value.read_keys)
    notes = (*_texts(path, spec, "notes"), *(f"licence: {text}" for text in _texts(path, spec, "license")))
    aliases = _texts(path, spec, "aliases")
    tables, tower = _count(path, spec, "rotary_tables", 1), _count(path, spec, "tower", 0)
    model = replace(loaded.value, aliases=aliases, source=source, notes=notes, rotary_tables=tables, tower=tower)
    return Loaded(model, loaded.warnings)


def _count(path: Path, spec: Mapping[str, Any], key: str, default: int) -> int:
    value = spec.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise SpecError(f"{path}: {key} = {shown(value)} is not a whole number")
    return value


def _mapping(path: Path, spec: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = spec.get(key) or {}
    if not isinstance(value, Mapping):
        raise SpecError(f"{path}: {key} = {shown(value)} is not an object")
    return value


def _near(key: str, known: Mapping[str, Any] | tuple[str, ...]) -> str:
    near = nearest(key, known, count=1)
    return f"; nearest: {near[0]}" if near else ""


def _refuse_unread(path: Path, config: Mapping[str, Any], read: Mapping[str, str]) -> None:
    """A library file holds only keys that give something."""
    known = tuple(read) + tuple(name for names in NAMES.values() for name in names)
    for key in config:
        if key not in read:
            raise SpecError(f"{path}: config.{key} is not used by this model{_near(key, known)}")


def _text(path: Path, spec: Mapping[str, Any], key: str) -> str:
    value = spec.get(key)
    if not isinstance(value, str) or not value.strip():
        raise SpecError(f"{path}: {key} = {shown(value)} is not a text" if key in spec else f"{path}: {key} is missing")
    return value.strip()


def _texts(path: Path, spec: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = spec.get(key)
    listed = value if isinstance(value, list) else [] if value is None else [value]
    for entry in listed:
        if not isinstance(entry, str):
            raise SpecError(f"{path}: {key} holds {shown(entry)}, not a text")
    return tuple(listed)


def cached_config(identifier: str) -> Path | None:
    """The config.json of `org/name` or `org/name@revision` in the local Hugging Face cache, or None."""
    identifier, _, revision = identifier.partition("@")
    if not _ID.fullmatch(identifier):
        return None
    entry = _hub_cache() / f"models--{identifier.replace('/', '--')}"
    pointer = entry / "refs" / (revision or "main")
    try:
        commit = pointer.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        commit = revision
    chosen = [entry / "snapshots" / commit / "config.json"] if commit else []
    found = [path for path in (*chosen, *([] if revision else _newest(entry / "snapshots"))) if path.is_file()]
    return found[0] if found else None


def _newest(snapshots: Path) -> list[Path]:
    try:
        folders = sorted(snapshots.iterdir(), key=lambda folder: folder.stat().st_mtime, reverse=True)
    except OSError:
        return []
    return [folder / "config.json" for folder in folders]


def _hub_cache() -> Path:
    """Where huggingface_hub keeps its files: $HF_HUB_CACHE, $HF_HOME/hub, else ~/.cache/huggingface/hub."""
    if chosen := os.environ.get("HF_HUB_CACHE"):
        return Path(chosen)
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(home).expanduser() / "hub"


def fetch_config(identifier: str, revision: str | None = None) -> Path:
    """Download config.json (and hf_quant_config.json, if there is one) from the Hugging Face hub into its cache.

    `identifier` is `org/name` or `org/name@revision`. This is the only function that touches the network.

    Raises:
        MissingExtraError: huggingface_hub is not installed.
        SpecError: the hub has no such model or revision, refuses access to it, or cannot be reached.
    """
    try:
        hub = import_module("huggingface_hub")
    except ImportError:
        raise MissingExtraError("a download from the Hugging Face hub", "hub") from None
    identifier, _, pinned = identifier.partition("@")
    pin = revision or pinned or None
    try:
        path = Path(hub.hf_hub_download(identifier, "config.json", revision=pin))
    except (OSError, ValueError) as error:  # the hub's own errors derive from these
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise SpecError(f"{identifier}: cannot be downloaded: {reason[0]}") from None
    with suppress(OSError, ValueError):
        hub.hf_hub_download(identifier, _COMPANION, revision=pin)
    return path
