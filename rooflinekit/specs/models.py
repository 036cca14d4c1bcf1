"""Loading a model: a library file, a config.json, a folder, an entry of the local Hugging Face cache, or a download."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rooflinekit.model.parameter_count import stored_bytes
from rooflinekit.model.types.errors import InputError, SpecError, UnknownNameError, nearest
from rooflinekit.model.types.model import DenseFFN, MixtureOfExperts, Model, WeightFormats
from rooflinekit.specs.config.importer import model_from_config
from rooflinekit.specs.config.keys import usual_keys, usual_names
from rooflinekit.specs.config.vision import read_vision
from rooflinekit.specs.files import Parsed, kept, read_json, read_yaml, refuse_cut, table_of
from rooflinekit.specs.hub import CACHED, COMPANION, HUB, ID, INDEX, cached_config, fetch, fetched_bytes
from rooflinekit.specs.locate import Loaded, resolve
from rooflinekit.specs.places import spec_dir
from rooflinekit.specs.section import FileLayout, FileSection
from rooflinekit.specs.weight_files import model_from_gguf, safetensors_bytes

_EXAMPLE = Path(__file__).with_name("model_template.yaml")
_AS = "as:"
_GROUPED = "awq-4bit"  # groups of integers by compressed-tensors
_SEVERAL = "its safetensors headers"
_HEAVIER = 1.25  # than its files: towers and heads that are not counted make a checkpoint heavier, never lighter
_FORMAT_IN_NAME = r"(?i)(?<![a-z])(fp8|nvfp4|mxfp4|fp4|awq|gptq|int4|int8|w\da\d+|bnb)(?![a-z])"
_TOLD = 3  # differences that one warning names
_ENDING = r"(?:^[\w-][\w.-]*/)?[\w-][\w.-]*$"
_LONGEST_NAME = 200
_FILES = (".json", ".gguf", ".safetensors", ".yaml", ".yml")  # endings of paths that can be no name
_table = partial(table_of, __file__)
"""What the ends of names say of weights, and keys of configs."""


class _Expected(FileLayout):
    params_total: int = 0  #: what a test compares with


class _LibraryFile(FileLayout):
    """Hugging Face field names under `config`, and what is known about the model around them."""

    name: str
    source: str
    config: Parsed
    aliases: tuple[str, ...] = ()
    ambiguous_aliases: tuple[str, ...] = ()
    license: str | tuple[str, ...] = ()
    notes: str | tuple[str, ...] = ()
    expect: _Expected | None = None
    rotary_tables: int = 1
    tower: int = 0
    encoder_peak: int = 0
    vision: Parsed | None = None


def model_template() -> str:
    """A commented model file with example values; it loads as it stands.

    >>> model_template().splitlines()[0]
    '# A model for rooflinekit. Replace every value; delete optional lines that you do not need.'
    """
    return _EXAMPLE.read_text(encoding="utf-8")


def load_model(name: str | os.PathLike[str]) -> Loaded[Model]:
    """Load the model that a name, alias, Hugging Face id or path means.

    Library and user specs come first, then paths (a config.json, or a folder that holds one, with
    hf_quant_config.json beside it if quantised; a .gguf or .safetensors file, of which only the header is read), then
    the local Hugging Face cache. `hf:org/name` is downloaded into it from the Hugging Face hub; nothing else is ever
    downloaded. `as:CLASS:NAME` reads a config.json as one of another class. Of a known model with an ending such as
    -FP8 or -AWQ the weights are stored so.

    Raises:
        UnknownNameError: nobody knows the name; the nearest are named.
        SpecError: a file, key or value that cannot be trusted.
        ArchitectureError: a network that is not a decoder, or has features that are not understood.
        DtypeError: an unknown number format or quantisation.
        MissingExtraError: a download without huggingface_hub.
    """
    text, kind = os.fspath(name), ""
    if text.startswith(_AS):
        kind, _, text = text.removeprefix(_AS).partition(":")
        name = text
    if text.startswith(HUB):
        return _from_config(fetch(text.removeprefix(HUB)), text.removeprefix(HUB), kind)
    cached = cached_config(text)
    try:
        resolved = resolve("model", name)
    except UnknownNameError as error:
        if cached is None:
            return _stored(text, error)
        return _from_config(cached, text, kind)
    except SpecError as error:
        return _by_last_part(text, error)
    if cached is not None and resolved.warnings:  # only its last part is known: the very id lies in the cache
        return _from_config(cached, text, kind)
    loaded = _of_path(resolved.value, kind)
    return Loaded(loaded.value, (*resolved.warnings, *loaded.warnings))


def typed_model(name: str) -> str:
    """The name of a model that a person typed; an id of the hub that is not known here is fetched first.

    Typing it where huggingface_hub is installed is asking for it. Names that stand in files are never fetched so, nor
    those of Python and of the services.
    """
    if not re.fullmatch(rf"{ID}(?:@[\w.-]+)?", name) or Path(name).exists() or find_spec("huggingface_hub") is None:
        return name
    try:
        load_model(name)
    except UnknownNameError as unknown:
        try:
            fetch(name)
        except SpecError as error:
            near = f"; nearest known: {', '.join(unknown.suggestions)}" if unknown.suggestions else ""
            raise SpecError(f"unknown model {name!r}; {error}{near}") from None
    return name


def _of_path(path: Path, kind: str) -> Loaded[Model]:
    """Model in a file or folder of any sort; of a config.json, as one of class `kind` if any is given."""
    if path.suffix.lower() == ".safetensors":
        weights, path = path, path.parent
        if not (path / "config.json").is_file():
            raise SpecError(f"{weights}: says no sizes of layers or heads; put its config.json beside it")
    if kind and path.suffix.lower() in (".gguf", ".yaml", ".yml"):
        raise SpecError(f"{path}: is no config.json, which alone is read as {kind[:60]!r}")
    if path.suffix.lower() == ".gguf":
        return kept(model_from_gguf, path)
    if path.is_dir():
        return _from_config(path / "config.json", path.resolve().name, kind)
    if path.suffix.lower() in (".yaml", ".yml"):
        return kept(_from_library, path)
    return _from_config(path, path.resolve().parent.name if path.name == "config.json" else path.stem, kind)


def _by_last_part(text: str, error: SpecError) -> Loaded[Model]:
    """The model that the last part of a path to nothing names; raises what was raised for the path where none does."""
    path = Path(text)
    cached = next((found for part in reversed(path.parts) if (found := re.fullmatch(CACHED, part))), None)
    name = "/".join(cached.groups()) if cached else path.name
    if path.exists() or path.suffix.lower() in _FILES or len(path.parts) < 2:
        raise error
    with suppress(UnknownNameError):
        loaded = load_model(name)
        return Loaded(loaded.value, (f"{text}: no such file; taken as {name}", *loaded.warnings))
    raise error


def _stored(name: str, unknown: UnknownNameError) -> Loaded[Model]:
    """A model of the library, its weights stored as the end of the name says."""
    fetches = f"{HUB}{name} reads its own config.json (pip install 'rooflinekit[hub]')"
    for ending, section in _table()["stored"].items():
        found = re.fullmatch(rf"(?i)(.+?)[-_.]({ending})", name)
        if not found:
            continue
        with suppress(InputError):
            base = resolve("model", found[1])
            if base.value.suffix.lower() not in (".yaml", ".yml"):
                continue
            loaded = kept(_from_library, base.value, also=(ending,))
            word, warnings = found[2].upper(), (*base.warnings, *loaded.warnings)
            told = f"{name!r} is not in the catalogue: read as {loaded.value.name} with weights in the usual {word}"
            if section is None:
                told = (
                    f"{name!r} holds files of several formats: read as {loaded.value.name} in its own; "
                    "give the .gguf file, or --weights"
                )
            aliases = (name, *loaded.value.aliases) if re.fullmatch(ID, name) else loaded.value.aliases
            told += f"; {fetches}" if re.fullmatch(ID, name) else ""
            return Loaded(replace(loaded.value, aliases=aliases), (told, *warnings))
    if re.fullmatch(ID, name):
        unknown.args = (f"{unknown}; {fetches}",)
    elif not unknown.suggestions:
        unknown.args = (f"{unknown}; {HUB}org/name reads the config.json of any other",)
    raise unknown


def _from_config(path: Path, name: str, kind: str = "") -> Loaded[Model]:
    companions = path.with_name(COMPANION), path.with_name(INDEX)
    loaded, claim = kept(_read_config, path, *companions, also=(name, kind))
    return Loaded(loaded.value, (*loaded.warnings, *_contradicted(loaded.value, claim)))


def _read_config(path: Path, companion: Path, index: Path, name: str, kind: str) -> tuple[Loaded[Model], str | None]:
    quant_config = read_json(companion) if companion.is_file() else None
    config = read_json(path)
    loaded = model_from_config(config, name=name, origin=str(path), quant_config=quant_config, kind=kind)
    files = sorted(path.parent.glob("*.safetensors"))
    listed = read_json(index) if index.is_file() else {}
    held, named = {file.name for file in files}, listed.get("weight_map")
    absent = sorted({str(name) for name in named.values()} - held) if files and isinstance(named, Mapping) else ()
    if absent:
        raise SpecError(f"{index}: names {absent[0]}, which is not beside it ({len(absent)} such); download it again")
    metadata = listed.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, Mapping) else None
    indexed = float(total) if isinstance(total, int | float) and not isinstance(total, bool) else 0.0
    size = sum(map(safetensors_bytes, files)) if files else fetched_bytes(path)
    where = files[0].name if len(files) == 1 else _SEVERAL if size else INDEX
    model, in_vain = loaded.value, _unquantised(loaded.value, size or indexed, where)
    if size:
        told = f"{where}: {size:,} bytes of tensors; {stored_bytes(model):,.0f} are costed"
        model = replace(model, notes=(*model.notes, told))
    return Loaded(model, (*loaded.warnings, *in_vain)), claimed_name(config, path)


def _unquantised(model: Model, size: float, where: str) -> Iterator[str]:
    """Warnings that a checkpoint is costed wider than its name says, or heavier than its files are."""
    stated = re.search(_FORMAT_IN_NAME, model.name)
    if stated and model.formats == WeightFormats.uniform(model.dtype) and not (model.layer_formats or model.unpriced):
        yield f"{model.name} says {stated[1]}, but its config quantises nothing: it is costed in {model.dtype}"
    if size <= 0:
        return
    held = stored_bytes(model)
    if held > _HEAVIER * size:
        yield f"costed with {held / 1e9:.1f} GB of weights, but {where} says {size / 1e9:.1f} GB: is it quantised?"


def _from_library(path: Path, stored: str = "") -> Loaded[Model]:
    """A file of the library, its weights stored as an ending of models.yaml says in place of its own."""
    root = FileSection(path, "", read_yaml(path))
    file = root.read(_LibraryFile)
    for key, text in (("name", file.name), ("source", file.source)):
        if not text.strip():
            root.refuse(key, "is empty")
    section, hybrid = _table()["stored"].get(stored), _table()["kept"]
    if section and "linear_num_value_heads" in file.config:
        if section["quant_method"] in ("awq", "gptq"):
            section = {**section, "modules_to_not_convert": hybrid}
        elif stored == _GROUPED:
            section = {**section, "ignore": [*section["ignore"], *(f"re:.*{part}.*" for part in hybrid)]}
    config = {**file.config, "quantization_config": section} if section else file.config
    loaded = model_from_config(config, name=file.name.strip(), origin=str(path))
    used = loaded.value.read_keys
    for key in (key for key in file.config if key not in used):  # a library file holds only keys that give something
        near = nearest(key, (*used, *usual_keys()), count=1)
        root.refuse(f"config.{key}", "is not used by this model" + (f"; nearest: {near[0]}" if near else ""))
    refuse_cut(path)
    notes, licences = ((text,) if isinstance(text, str) else text for text in (file.notes, file.license))
    vision = None if file.vision is None else read_vision(file.vision, loaded.value.hidden, str(path))
    if vision is None and file.vision is not None:
        root.refuse("vision", "is of no known model")
    if vision is not None and file.tower not in (0, vision.parameters):
        root.refuse("vision", f"has {vision.parameters} parameters, but tower says {file.tower}")
    model = replace(
        loaded.value,
        aliases=file.aliases,
        source=file.source.strip(),
        notes=(*notes, *(f"licence: {text}" for text in licences)),
        rotary_tables=file.rotary_tables,
        tower=file.tower if vision is None else vision.parameters,
        vision=vision,
        encoder_peak=file.encoder_peak,
    )
    return Loaded(model, loaded.warnings)


def claimed_name(config: Mapping[str, object], path: Path) -> str | None:
    """Whose config it says to be: by its entry in the Hugging Face cache, else by `_name_or_path`.

    >>> claimed_name({"_name_or_path": "/home/me/Llama-3.1-70B/"}, Path("config.json"))
    'Llama-3.1-70B'
    """
    for part in path.parts:
        if cached := re.fullmatch(CACHED, part):
            return "/".join(cached.groups())
    stated = config.get("_name_or_path")
    if not isinstance(stated, str) or len(stated) > _LONGEST_NAME:
        return None
    ending = re.search(_ENDING, stated.rstrip("/"))
    return ending and ending.group()


def _contradicted(model: Model, claim: str | None) -> list[str]:
    """The warning that a config says to be a model of the library, and has other sizes than that model."""
    if not claim:
        return []
    try:
        found = resolve("model", claim)
    except InputError:
        return []
    if found.warnings or found.value.parent != spec_dir("model"):  # a guess, or not the library's
        return []
    known = kept(_from_library, found.value).value
    stated = {meaning.partition(" = ")[0]: key for key, meaning in model.read_keys.items()}
    mine, theirs = _facts(model), _facts(known)
    has: list[str] = []
    for fact in dict.fromkeys((*mine, *theirs)):
        ours, its = _told(mine.get(fact)), _told(theirs.get(fact))
        if ours != its and mine.get(fact) != theirs.get(fact):
            owner = "it" if has else f"the library's {known.name}"
            has.append(f"{stated.get(fact, usual_names().get(fact, (fact,))[0])} {ours} where {owner} has {its}")
    if len(has) > _TOLD:
        has[_TOLD:] = [f"{len(has) - _TOLD} more differences"]
    return [f"{Path(model.origin).name} says it is {claim}, but has {', '.join(has)}"] if has else []


def _facts(model: Model) -> dict[str, Counter[object]]:
    """Every size of a model under its concept, with the number of layers that have it."""
    sizes = {name: getattr(model, name) for name in ("depth", "hidden", "vocab", "position_rows", "lm_head_bias")}
    facts = {name: Counter([size]) for name, size in (sizes | {"tie_word_embeddings": model.tied}).items()}
    for layer, times in model.layer_counts.items():
        blocks: tuple[Any, ...] = (layer.mixer, layer.ffn)
        for block in filter(None, blocks):
            names = dict(_table()["keys"])
            if isinstance(block, DenseFFN | MixtureOfExperts):
                names |= {"gated": "mlp_gated", "bias": "mlp_bias"}
            if isinstance(block, MixtureOfExperts):
                names["width"] = "expert_width"
            for part in fields(block):
                facts.setdefault(names.get(part.name, part.name), Counter())[getattr(block, part.name)] += times
    return facts


def _told(values: Counter[object] | None) -> str:
    """One value as it is; several with the number of layers that have each."""
    named = [("none" if value is None else str(value).lower(), n) for value, n in (values or Counter()).most_common()]
    if len(named) < 2:
        return named[0][0] if named else "none"
    return ", ".join(f"{name} ({times} layers)" for name, times in named)
