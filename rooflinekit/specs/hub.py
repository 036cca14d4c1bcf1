"""Models by their id on the Hugging Face hub: what its cache on this machine holds, and what is fetched into it."""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from rooflinekit.model.types.errors import SpecError, needing
from rooflinekit.specs.files import Parsed, read_json
from rooflinekit.specs.places import admitted
from rooflinekit.specs.writing import write_whole

HUB = "hf:"
"""Begins the name of a model that is to be fetched."""

ID = r"[\w.-]+/[\w.-]+"
CACHED = r"models--([\w.-]+?)--([\w.-]+)"
_PATIENCE = 10.0  # seconds for a first answer
COMPANION, INDEX = "hf_quant_config.json", "model.safetensors.index.json"


def cached_config(identifier: str) -> Path | None:
    """The config.json of `org/name` or `org/name@revision` in the local Hugging Face cache, or None."""
    identifier, _, revision = identifier.partition("@")
    if not re.fullmatch(ID, identifier):
        return None
    entry = _folder("HF_HUB_CACHE", "hub") / f"models--{identifier.replace('/', '--')}"
    if not admitted(entry) or not entry.is_dir():
        return None
    commit, known = revision, []
    with suppress(OSError, ValueError):
        commit = (entry / "refs" / (revision or "main")).read_text(encoding="utf-8").strip()
    with suppress(OSError):
        known = sorted((entry / "snapshots").iterdir(), key=lambda each: each.stat().st_mtime, reverse=True)
    folders = [*([entry / "snapshots" / commit] if commit else []), *([] if revision else known)]
    return next((path for folder in folders if (path := folder / "config.json").is_file()), None)


def fetch(identifier: str) -> Path:
    """The config.json of `org/name` or `org/name@revision`, fetched with what says how its weights are stored.

    huggingface_hub puts files into its cache, and answers from there where there is no network. The sizes of the
    tensors, which safetensors headers state, are kept in its folder for other libraries.
    """
    if not admitted(_folder("HF_HUB_CACHE", "hub")):
        raise SpecError(f"{HUB}{identifier[:60]} is a download; only names of the catalogue are read here")
    with needing("a download from the Hugging Face hub", "hub"):
        hub = import_module("huggingface_hub")
    identifier, _, revision = identifier.partition("@")
    try:
        if cached_config(f"{identifier}@{revision}" if revision else identifier) is None:
            hub.HfApi().model_info(identifier, revision=revision or None, timeout=_PATIENCE)  # a download tries 25 s
        path = Path(hub.hf_hub_download(identifier, "config.json", revision=revision or None))
    except Exception as error:  # the hub's own, and those of the HTTP library that its version uses
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise SpecError(
            f"{HUB}{identifier}: cannot be downloaded: {reason[0]}; save its config.json and give the path"
        ) from None
    for name in (COMPANION, INDEX):
        with suppress(OSError, ValueError):  # few models have the first, and small ones lack the second
            hub.hf_hub_download(identifier, name, revision=revision or None)
    kept = _sizes_file(path)
    if kept is not None and not kept.is_file():
        with suppress(OSError, ValueError, hub.errors.NotASafetensorsRepoError, hub.errors.SafetensorsParsingError):
            read = hub.get_safetensors_metadata(identifier, revision=path.parent.name)
            sizes = {
                file: sum(stop - begin for each in found.tensors.values() for begin, stop in [each.data_offsets])
                for file, found in read.files_metadata.items()
            }
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_whole(kept, json.dumps(sizes).encode())
    return path


def fetched_bytes(config: Path) -> int:
    """Bytes of the tensors of a fetched model, by the headers of its files; 0 where they were not fetched."""
    kept = _sizes_file(config)
    sizes: Parsed = read_json(kept) if kept is not None and kept.is_file() else {}
    return sum(size for size in sizes.values() if type(size) is int and size > 0)


def _sizes_file(config: Path) -> Path | None:
    """File with the sizes of a model whose config.json lies in the cache."""
    entry, commit = config.parents[2:3] and config.parents[2].name, config.parent.name
    if not entry or config.parent.parent.name != "snapshots" or not re.fullmatch(CACHED, entry):
        return None
    return _folder("HF_ASSETS_CACHE", "assets") / "rooflinekit" / entry / f"{commit}.json"


def _folder(variable: str, name: str) -> Path:
    """A folder of huggingface_hub: $HF_HUB_CACHE or its like, $HF_HOME/hub, else ~/.cache/huggingface/hub."""
    if chosen := os.environ.get(variable):
        return Path(chosen)
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(home).expanduser() / name
