"""Exports of AIPerf and GenAI-Perf: JSON (`profile_export_aiperf.json`, `…_genai_perf.json`) and CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from typing import Any

from rooflinekit.evidence.measured.measurement import NOTHING, Facts, Fields, Measurement, Spread
from rooflinekit.model.types.errors import SpecError

__all__ = ["is_aiperf", "is_aiperf_csv", "read_aiperf", "read_aiperf_csv"]

_PER_MS = {"ms": 1.0, "s": 1e3, "sec": 1e3, "seconds": 1e3, "us": 1e-3, "µs": 1e-3, "ns": 1e-6}


def is_aiperf(data: Mapping[str, Any]) -> bool:
    """Whether a JSON object is an export: metrics as objects with a unit and an average."""
    blocks = (data.get(name) for name in ("request_latency", "time_to_first_token", "request_throughput"))
    return any(isinstance(block, Mapping) and "avg" in block for block in blocks)


def is_aiperf_csv(text: str) -> bool:
    """Whether a text is the CSV export."""
    return text.lstrip("\ufeff").startswith("Metric,avg,")


def read_aiperf(source: str, data: Mapping[str, Any]) -> Measurement:
    """Map a JSON export.

    Its `inter_token_latency` is (request latency − TTFT) / (output tokens − 1) of a request: our TPOT. Single gaps are
    `inter_chunk_latency`.
    """
    tool = "aiperf" if "aiperf_version" in data or "schema_version" in data else "genai-perf"
    return _measurement(source, tool, data, _config(Fields(source, data)))


def read_aiperf_csv(source: str, text: str) -> Measurement:
    """Map a CSV export: a table of distributions, then one of single values. It does not say how it was run.

    Raises SpecError for a row that is not as wide as its header.
    """
    blocks: dict[str, dict[str, Any]] = {}
    header: list[str] = []
    try:
        for row in csv.reader(text.lstrip("\ufeff").splitlines()):
            if row and row[0] == "Metric":
                header = ["avg" if name == "Value" else name for name in row]
            elif len(row) > 1 and header[:2] == ["Metric", "avg"]:
                name, _, unit = row[0].partition("(")
                figures = {key: cell.replace(",", "") for key, cell in zip(header[1:], row[1:], strict=False) if cell}
                key = name.strip().lower().replace(" ", "_")
                blocks.setdefault(key, {"unit": unit.rstrip(") "), **figures})
    except csv.Error as error:
        raise SpecError(f"{source}: is not the CSV it seems to be ({error})") from None
    return _measurement(source, "aiperf", blocks, {})


def _measurement(source: str, tool: str, data: Mapping[str, Any], config: Mapping[str, Any]) -> Measurement:
    fields = Fields(source, data)
    facts = Facts(
        isl=_average(fields, "input_sequence_length"),
        osl=_average(fields, "output_sequence_length"),
        osl_cv=fields.inside("output_sequence_length").variation("avg", "std"),
        requests=int(_average(fields, "request_count") or 0) or None,
        **config,
    )
    return Measurement(
        source=source,
        tool=tool,
        facts=facts,
        ttft=_spread(fields, "time_to_first_token"),
        tpot=_spread(fields, "inter_token_latency"),
        itl=_spread(fields, "inter_chunk_latency"),
        e2e=_spread(fields, "request_latency"),
        output_tok_s=_average(fields, "output_token_throughput"),
        request_s=_average(fields, "request_throughput"),
    )


def _average(fields: Fields, name: str) -> float | None:
    return fields.inside(name).number("avg") or None


def _spread(fields: Fields, name: str) -> Spread:
    block = fields.inside(name)
    unit = (block.text("unit") or "ms").lower()
    if not block.number("avg"):
        return NOTHING
    if unit not in _PER_MS:
        raise SpecError(f"{block.source}: unit {unit!r} is not a time; known: {', '.join(_PER_MS)}")
    return block.spread("{}", _PER_MS[unit], mean="avg", p50="p50")


def _config(export: Fields) -> dict[str, Any]:
    """How it was run, from the configuration inside: three generations of it put the load in three places."""
    config = export.inside("input_config")
    loads = [config.inside("loadgen"), config.inside("perf_analyzer", "stimulus"), *_phases(config), config]
    concurrency = next(filter(None, (load.count("concurrency") for load in loads)), None)
    rate = next(filter(None, (load.number("request_rate", "rate") for load in loads)), None)
    model = next(filter(None, (_name(part) for part in (config.inside("endpoint"), config))), None)
    constant = any(load.text("arrival_pattern", "request_rate_mode", "type") == "constant" for load in loads)
    return {
        "model": model,
        "concurrency": None if rate else concurrency,
        "rate": rate,
        "cv": 0.0 if constant and rate else 1.0,
    }


def _phases(config: Fields) -> Iterator[Fields]:
    phases = config.data.get("phases")
    entries = phases if isinstance(phases, list) else list(phases.values()) if isinstance(phases, Mapping) else []
    for entry in entries:
        if isinstance(entry, Mapping) and not entry.get("exclude_from_results"):
            yield Fields(f"{config.source}.phases", entry)


def _name(part: Fields) -> str | None:
    found = next((part.data[key] for key in ("model_names", "model_name", "model") if part.data.get(key)), None)
    found = found[0] if isinstance(found, list) else found
    return found if isinstance(found, str) else None
