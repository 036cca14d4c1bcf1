"""Lists and entries of the spec library as rows and text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from textwrap import wrap
from typing import Any

from rooflinekit.model.memory.cache import model_cache_law
from rooflinekit.model.parameter_count import count_parameters
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.hardware import Accelerator
from rooflinekit.model.types.model import Attention, LatentAttention, Layer, Mixer, MixtureOfExperts, Model
from rooflinekit.model.types.units import GB, format_bytes, format_count, format_rate
from rooflinekit.report.table import aligned

__all__ = [
    "accelerator_entry", "accelerator_row", "accelerator_text", "fitted", "model_entry", "model_row", "model_text",
]  # fmt: skip

_COLUMNS = 80
_MARGIN = 44  # columns in which a line's last column begins


def model_row(model: Model) -> dict[str, Any]:
    """One model as a flat row."""
    count = count_parameters(model)
    return {
        "name": model.name,
        "params_total": count.total,
        "params_active": count.active,
        "layers": model.depth,
        "mixers": " + ".join(dict.fromkeys(kind_of(layer.mixer) for layer in model.layers if layer.mixer)),
        "weights": _formats(model),
        "kv_bytes_per_token": model_cache_law(model).bytes_per_token,
        "max_context": model.max_context,
    }


def kind_of(mixer: Mixer | None) -> str:
    """How a mixer is called in tables.

    >>> kind_of(Attention(32, 8, 128, 128, window=4096))
    'gqa window 4096'
    """
    if mixer is None:
        return "none"
    if isinstance(mixer, Attention):
        limit = f" window {mixer.window}" if mixer.window else f" chunk {mixer.chunk}" if mixer.chunk else ""
        return mixer.kind + limit
    if isinstance(mixer, LatentAttention) and mixer.indexer:
        return f"mla top-{mixer.indexer.top_k}"
    return mixer.kind


def _formats(model: Model) -> str:
    return "/".join(dict.fromkeys(getattr(model.formats, kind).value for kind in model.matrices))


def model_entry(model: Model) -> dict[str, Any]:
    """Everything known about a model, with where it was read."""
    count, law = count_parameters(model), model_cache_law(model)
    modules = ("embedding", "attention", "ffn", "experts", "shared_experts", "lm_head", "other")
    return {
        "kind": "model",
        **model_row(model),
        "params_active_without_embedding": count.active_without_embedding,
        "params_active_without_vocabulary": count.active_without_vocabulary,
        "params_by_module": {name: getattr(count, name) for name in modules},
        "hidden_size": model.hidden,
        "vocab_size": model.vocab,
        "tied_embeddings": model.tied,
        "layer_kinds": [{"count": n, "layer": _layer(layer)} for layer, n in model.layer_counts.items()],
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


def _layer(layer: Layer) -> str:
    ffn = layer.ffn
    if isinstance(ffn, MixtureOfExperts):
        shared = f", shared {ffn.shared_width}" if ffn.shared_width else ""
        block = f"{ffn.experts} experts of {ffn.width}, top {ffn.top_k}{shared}"
    else:
        block = "no FFN" if ffn is None else f"FFN {ffn.width}{' gated' if ffn.gated else ''}"
    heads = ""
    if isinstance(layer.mixer, Attention):
        heads = f" {layer.mixer.heads} heads, {layer.mixer.kv_heads} KV, width {layer.mixer.head_dim}"
    elif isinstance(layer.mixer, LatentAttention):
        heads = f" {layer.mixer.heads} heads, latent {layer.mixer.kv_rank}+{layer.mixer.rope_dim}"
    return f"{kind_of(layer.mixer)}{heads}; {block}"


def model_text(model: Model) -> str:
    """One model for a terminal."""
    entry, count = model_entry(model), count_parameters(model)
    rows = [
        ["parameters", format_count(count.total), f"{count.total:,}"],
        ["active per token", format_count(count.active), f"{count.active:,}, embedding and head included"],
        ["", format_count(count.active_without_embedding), "without the input embedding"],
        ["", format_count(count.active_without_vocabulary), "without embedding and head"],
        *[[f"  {name}", format_count(n), f"{n:,}"] for name, n in entry["params_by_module"].items() if n],
        [
            "KV per token",
            format_bytes(entry["kv_bytes_per_token"]),
            f"{entry['kv_bytes_per_token']:,.0f} B in {entry['kv_dtype']}",
        ],
        ["state per sequence", format_bytes(entry["state_bytes"]), "whatever the context"],
        ["maximum context", "-" if model.max_context is None else f"{model.max_context:,}", "tokens"],
    ]
    if not entry["state_bytes"]:
        rows = [row for row in rows if row[0] != "state per sequence"]
    lines = [
        f"{model.name}: {model.depth} layers, width {model.hidden:,}, vocabulary {model.vocab:,}, "
        f"weights {entry['weights']}"
    ]
    lines += ["", *aligned(["", "", ""], rows, left=(0, 2))[1:], ""]
    lines += [f"{kind['count']:>4} x {kind['layer']}" for kind in entry["layer_kinds"]]
    lines += ["", f"source   {model.source}", f"file     {model.origin}"]
    lines += [f"aliases  {', '.join(model.aliases)}"] if model.aliases else []
    return _text(lines + [f"note     {note}" for note in model.notes])


def fitted(line: str) -> list[str]:
    """A line in as many as it needs, the rest under its last column; an address or a path is never broken.

    >>> fitted("aliases  " + ", ".join(["llama-3-8b-instruct"] * 4))[1]
    '         llama-3-8b-instruct'
    """
    if len(line) <= _COLUMNS:
        return [line]
    indent = max((gap.end() for gap in re.finditer(r" {2,}", line[:_MARGIN])), default=4)
    return wrap(line, _COLUMNS, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)


def _text(lines: Iterable[str]) -> str:
    return "\n".join(part for line in lines for part in fitted(line))


def accelerator_row(gpu: Accelerator) -> dict[str, Any]:
    """One accelerator as a flat row: dense peaks in TFLOP/s, GB = 1e9."""
    peaks = {
        f"{d.value}_tflops": gpu.peaks[d] / 1e12 if d in gpu.peaks else None
        for d in (Dtype.BF16, Dtype.FP16, Dtype.FP8)
    }
    return {
        "name": gpu.name,
        **peaks,
        "memory_gb": float(gpu.memory_bytes) / GB,
        "bandwidth_gb_s": float(gpu.memory_bandwidth) / GB,
        "link_gb_s": float(gpu.link_bandwidth) / GB,
        "domain_size": gpu.domain_size,
        "usd_per_hour": gpu.price.usd_per_hour if gpu.price else None,
        "price_date": gpu.price.date if gpu.price else None,
    }


def accelerator_entry(gpu: Accelerator) -> dict[str, Any]:
    """Everything known about an accelerator, every number with its source and confidence."""
    return {
        "kind": "accelerator",
        **accelerator_row(gpu),
        "title": gpu.title,
        "vendor": gpu.vendor,
        "architecture": gpu.architecture,
        "release_year": gpu.release_year,
        "peaks_flop_s": {dtype.value: peak for dtype, peak in gpu.peaks.items()},
        "ridge_flop_per_byte": {dtype.value: float(gpu.ridge(dtype)) for dtype in gpu.peaks},
        "memory_bytes": float(gpu.memory_bytes),
        "l2_bytes": gpu.l2_bytes,
        "cores": gpu.cores,
        "link_kind": gpu.link_kind,
        "tdp_w": gpu.tdp_w,
        "aliases": list(gpu.aliases),
        "notes": list(gpu.notes),
        "file": gpu.origin,
        "facts": [
            {"quantity": p.quantity, "value": p.value, "unit": p.unit, "source": p.source, "confidence": p.confidence}
            for p in gpu.provenance
        ],
    }


def accelerator_text(gpu: Accelerator) -> str:
    """One accelerator for a terminal."""
    peaks = [
        [d.value, format_rate(peak, "FLOP/s"), f"{float(gpu.ridge(d)):.0f} FLOP/B"] for d, peak in gpu.peaks.items()
    ]
    facts = [
        ["memory", format_bytes(float(gpu.memory_bytes)), "as the driver shows it"],
        ["bandwidth", format_rate(float(gpu.memory_bandwidth), "B/s"), ""],
        ["L2", format_bytes(gpu.l2_bytes), ""],
        [
            "links",
            format_rate(float(gpu.link_bandwidth), "B/s"),
            f"{gpu.link_kind}, one direction, {gpu.domain_size} joined",
        ],
    ]
    if gpu.price:
        facts.append(["price", f"{gpu.price.usd_per_hour:.2f} USD/h", f"{gpu.price.date}, {gpu.price.source}"])
    sources = list(dict.fromkeys(p.source for p in gpu.provenance))
    lines = [f"{gpu.name}: {gpu.title}, {gpu.architecture}, {gpu.cores} cores, {gpu.tdp_w:.0f} W", ""]
    lines += [*aligned(["dense peak", "", "ridge"], peaks), "", *aligned(["", "", ""], facts, left=(0, 2))[1:], ""]
    lines += [f"file     {gpu.origin}", *(f"source   {source}" for source in sources)]
    lines += [f"aliases  {', '.join(gpu.aliases)}"] if gpu.aliases else []
    return _text(lines + [f"note     {note}" for note in gpu.notes])
