"""Lists and entries of the spec library."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rooflinekit.model.cache import model_cache_law
from rooflinekit.model.parameter_count import ParameterCount, count_parameters, stored_bytes
from rooflinekit.model.types import model as nets
from rooflinekit.model.types.answer import Json
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.hardware import Accelerator
from rooflinekit.model.types.units import GB, format_bytes, format_count, format_rate
from rooflinekit.report.document import CellTable, Document, Facts, Section, amount, apart
from rooflinekit.specs.files import table_of
from rooflinekit.specs.locate import Loaded

_MODULES = ("embedding", "attention", "ffn", "experts", "shared_experts", "lm_head", "other")


def listed(rows: Sequence[dict[str, Any]], everything: bool) -> Document:
    """Rows of models or of accelerators, with all of their columns or those that a terminal has room for."""
    headings = table_of(__file__)["headings"]
    names = [name for name in rows[0] if everything or name in headings]
    cells = [[_cell(name, row[name]) for name in names] for row in rows]
    if not everything:
        cells = [list(map(_short, names, row)) for row in cells]
    left = [column for column, name in enumerate(names) if isinstance(rows[0][name], str)]
    return apart(CellTable([headings.get(name, name) for name in names], cells, left))


def _cell(key: str, value: Any) -> str:
    if value is None:
        return "-"
    if key.startswith("params"):
        return format_count(value)
    if key == "kv_bytes_per_token":
        return format_bytes(value)
    if key == "usd_per_hour":
        return amount(value)
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


def _short(key: str, cell: str) -> str:
    """A cell as a terminal has room for it.

    >>> _short("mixers", "gated_convolution + gqa + gqa window 256")
    'conv+gqa+gqa w256'
    """
    if key == "mixers":
        for long, short in table_of(__file__)["short"].items():
            cell = cell.replace(long, short)
    return cell


def document(found: Loaded[nets.Model] | Loaded[Accelerator] | ParameterCount) -> Document:
    """One model or accelerator with its sources, or the parameters of a model by module."""
    if isinstance(found, ParameterCount):
        counts = [[name, f"{getattr(found, name):,}"] for name in (*_MODULES, "total", "active")]
        return [Section("Parameters", [CellTable(["module", "weights"], counts)])]
    item = found.value
    sections, sources = _model(item) if isinstance(item, nets.Model) else _accelerator(item)
    aliases = [("aliases", ", ".join(item.aliases))] if item.aliases else []
    notes = [("note", note) for note in (*item.notes, *found.warnings)]
    return [*sections, *apart(Facts(*sources, *aliases, *notes))]


def model_row(model: nets.Model) -> Json:
    """One model as a flat row."""
    count = count_parameters(model)
    return {
        "name": model.name,
        "params_total": count.total,
        "params_active": count.active,
        "layers": model.depth,
        "mixers": " + ".join(dict.fromkeys(kind_of(layer.mixer) for layer in model.layers if layer.mixer)),
        "weights": "/".join(dict.fromkeys(getattr(model.formats, kind).value for kind in model.matrices)),
        "kv_bytes_per_token": model_cache_law(model).bytes_per_token,
        "max_context": model.max_context,
    }


def kind_of(mixer: nets.Mixer | None) -> str:
    """Name of a mixer in tables.

    >>> kind_of(nets.Attention(32, 8, 128, 128, window=4096))
    'gqa window 4096'
    """
    if mixer is None:
        return "none"
    if indexer := getattr(mixer, "indexer", None):
        return f"{mixer.kind} top-{indexer.top_k}"
    if isinstance(mixer, nets.Attention):
        limit = f" window {mixer.window}" if mixer.window else f" chunk {mixer.chunk}" if mixer.chunk else ""
        return mixer.kind + limit
    return mixer.kind


def model_entry(model: nets.Model) -> Json:
    """Everything known about a model, with where it was read."""
    count, law = count_parameters(model), model_cache_law(model)
    return {
        "kind": "model",
        **model_row(model),
        "params_active_without_embedding": count.active_without_embedding,
        "params_active_without_vocabulary": count.active_without_vocabulary,
        "params_by_module": {name: getattr(count, name) for name in _MODULES},
        "params_tower": model.tower,
        "weight_bytes": None if model.unpriced else float(model.file_bytes) or stored_bytes(model),
        "hidden_size": model.hidden,
        "vocab_size": model.vocab,
        "tied_embeddings": model.tied,
        "layer_kinds": [{"count": n, "layer": kind} for kind, n in _kinds(model).items()],
        "dtype": model.dtype.value,
        "kv_dtype": (model.kv_dtype or model.dtype).value,
        "state_bytes": law.state_bytes,
        "mtp_layers": model.mtp_layers,
        "aliases": list(model.aliases),
        "source": model.source,
        "notes": list(model.notes),
        "file": model.origin,
        "read_keys": model.read_keys,
    }


def _kinds(model: nets.Model) -> Counter[str]:
    """Kinds of layers with their counts, those of an encoder first, however many earlier sums each attends to."""
    encoder = () if model.encoder is None else model.encoder.layers
    own = (_layer(replace(layer, sources=min(layer.sources, 1), opens=False)) for layer in model.layers)
    return Counter([*(f"encoder: {_layer(layer)}" for layer in encoder), *own])


def _layer(layer: nets.Layer) -> str:
    ffn = layer.ffn
    if isinstance(ffn, nets.MixtureOfExperts):
        shared = f", shared {ffn.shared_width}" if ffn.shared_width else ""
        block = f"{ffn.experts} experts of {ffn.width}, top {ffn.top_k}{shared}"
    elif isinstance(ffn, nets.DenseFFN):
        block = f"FFN {ffn.width}{' gated' if ffn.gated else ''}"
    else:
        block = "no FFN" if ffn is None else type(ffn).__name__
    heads = ""
    if isinstance(layer.mixer, nets.Attention):
        keys = "of an earlier layer" if layer.mixer.shared else f"{layer.mixer.kv_heads} KV"
        heads = f" {layer.mixer.heads} heads, {keys}, width {layer.mixer.head_dim}"
    elif isinstance(layer.mixer, nets.LatentAttention):
        heads = f" {layer.mixer.heads} heads, latent {layer.mixer.kv_rank}+{layer.mixer.rope_dim}"
    elif isinstance(layer.mixer, nets.CompressedAttention):
        keys = f", and a key of {layer.mixer.ratio} tokens" if layer.mixer.ratio else ""
        heads = f" {layer.mixer.heads} heads, width {layer.mixer.head_dim}, window {layer.mixer.window}{keys}"
    stream = f"; {layer.streams} streams" if layer.streams > 1 else "; attends to earlier sums" if layer.sources else ""
    stream += f"; token input of {layer.token_width}" if layer.token_width else ""
    return f"{kind_of(layer.mixer)}{heads}; {block}{stream}"


def entry(found: Loaded[nets.Model] | Loaded[Accelerator]) -> Json:
    """Everything known about one, for JSON."""
    item = found.value
    known = model_entry(item) if isinstance(item, nets.Model) else accelerator_entry(item)
    return known | {"warnings": list(found.warnings)}


def flat(found: Loaded[nets.Model] | Loaded[Accelerator]) -> Json:
    """Flatten an answer to one row, as far as it goes into one."""
    return {key: value for key, value in entry(found).items() if not isinstance(value, (dict, list))}


def _model(model: nets.Model) -> tuple[list[Section], list[tuple[str, str]]]:
    entry, count = model_entry(model), count_parameters(model)
    cache, context = entry["kv_bytes_per_token"], model.max_context
    rows = [
        ["parameters", format_count(count.total), f"{count.total:,}"],
        ["active per token", format_count(count.active), f"{count.active:,}, embedding and head included"],
        ["", format_count(count.active_without_embedding), "without the input embedding"],
        ["", format_count(count.active_without_vocabulary), "without embedding and head"],
        *[[f"  {name}", format_count(n), f"{n:,}"] for name, n in entry["params_by_module"].items() if n],
    ]
    if model.tower:
        rows.append(["vision and audio", format_count(model.tower), f"{model.tower:,}, beside those, in memory"])
    if size := entry["weight_bytes"]:
        rows.append(["stored", format_bytes(size), f"{size:,.0f} B of weights"])
    rows.append(["KV per token", format_bytes(cache), f"{cache:,.0f} B in {entry['kv_dtype']}"])
    if entry["state_bytes"]:
        rows.append(["state per sequence", format_bytes(entry["state_bytes"]), "whatever the context"])
    rows.append(["maximum context", "-" if context is None else f"{context:,}", "tokens"])
    shape = f"{model.depth} layers, width {model.hidden:,}, vocabulary {model.vocab:,}, weights {entry['weights']}"
    kinds = Facts(*((f"{kind['count']} x", kind["layer"]) for kind in entry["layer_kinds"]))
    sections = [Section(f"{model.name}: {shape}", []), *apart(CellTable((), rows, left=(0, 2)), kinds)]
    return sections, [("source", model.source), ("file", model.origin)]


def accelerator_row(gpu: Accelerator) -> dict[str, object]:
    """One accelerator as a flat row: dense peaks in TFLOP/s, GB = 1e9."""
    shown = (Dtype.BF16, Dtype.FP16, Dtype.FP8)
    return {
        "name": gpu.name,
        **{f"{d.value}_tflops": gpu.peaks[d] / 1e12 if d in gpu.peaks else None for d in shown},
        "memory_gb": float(gpu.memory_bytes) / GB,
        "bandwidth_gb_s": float(gpu.memory_bandwidth) / GB,
        "link_gb_s": float(gpu.link_bandwidth) / GB,
        "domain_size": gpu.domain_size,
        "usd_per_hour": gpu.price.usd_per_hour if gpu.price else None,
        "price_date": gpu.price.date if gpu.price else None,
    }


def accelerator_entry(gpu: Accelerator) -> dict[str, object]:
    """Everything known about an accelerator, every number with its source and confidence."""
    return {
        "kind": "accelerator",
        **accelerator_row(gpu),
        **{name: getattr(gpu, name) for name in ("title", "vendor", "architecture", "release_year")},
        "peaks_flop_s": {dtype.value: peak for dtype, peak in gpu.peaks.items()},
        "ridge_flop_per_byte": {dtype.value: float(gpu.ridge(dtype)) for dtype in gpu.peaks},
        "memory_bytes": float(gpu.memory_bytes),
        **{name: getattr(gpu, name) for name in ("l2_bytes", "cores", "link_kind", "tdp_w")},
        "aliases": list(gpu.aliases),
        "notes": list(gpu.notes),
        "file": gpu.origin,
        "facts": [{key: getattr(p, key) for key in _PROVENANCE} for p in gpu.provenance],
    }


_PROVENANCE = ("quantity", "value", "unit", "source", "confidence")


def _accelerator(gpu: Accelerator) -> tuple[list[Section], list[tuple[str, str]]]:
    peaks = [
        [d.value, format_rate(peak, "FLOP/s"), f"{float(gpu.ridge(d)):.0f} FLOP/B"] for d, peak in gpu.peaks.items()
    ]
    links = f"{gpu.link_kind}, one direction, {gpu.domain_size} joined"
    seen = f"; programs see {format_bytes(float(gpu.visible_bytes))}" if gpu.reserved_bytes else ""
    facts = [
        ["memory", format_bytes(float(gpu.memory_bytes)), f"as the driver shows it{seen}"],
        ["bandwidth", format_rate(float(gpu.memory_bandwidth), "B/s"), ""],
        ["L2", format_bytes(gpu.l2_bytes), ""],
        ["links", format_rate(float(gpu.link_bandwidth), "B/s"), links],
    ]
    price = gpu.price and f"${gpu.price.usd_per_hour:.2f} an hour in {gpu.price.date}, {gpu.price.source}"
    title = f"{gpu.name}: {gpu.title}, {gpu.architecture}, {gpu.cores} cores, {gpu.tdp_w:.0f} W"
    tables = [CellTable(["dense peak", "", "ridge"], peaks), CellTable((), facts, left=(0, 2))]
    titles = dict.fromkeys(title for p in gpu.provenance for title in p.source.split("; "))
    sources = [each for each in titles if not any(other != each and other.startswith(each) for other in titles)]
    sections = [Section(title, []), *apart(*tables)]
    priced = [("price", price)] if price else []
    return sections, [("file", gpu.origin), *priced, *(("source", source) for source in sources)]
