"""Files that benchmark clients and engines write, read into one set of definitions.

A reader for each tool maps its names to ours. What wrote a file is known by its contents.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rooflinekit.estimation.options import OwnKeywords, options_of
from rooflinekit.estimation.scenario import Placed
from rooflinekit.evidence import exposition
from rooflinekit.evidence.exposition import MeasuredInterval, is_recording
from rooflinekit.evidence.measurement import PREDICTED, Fields, MeasuredRun, MeasuredSpread, RunFacts, StartUp
from rooflinekit.evidence.pasted import is_pasted, read_pasted
from rooflinekit.evidence.startup import is_startup, read_startup, read_startups
from rooflinekit.evidence.tools import How, from_tool, known_tools, mapped, measurement_of, refuse_text
from rooflinekit.model.types.errors import SpecError
from rooflinekit.specs.files import Parsed, json_lines, read_text

__all__ = [
    "MeasuredRun",
    "MeasuredSpread",
    "RunFacts",
    "StartUp",
    "from_json",
    "is_benchmark",
    "is_of_harness",
    "read_measurements",
]

_ELSEWHERE = ("engine", "engine_version", "tp", "max_num_seqs")  # of a prediction's inputs: facts, or read apart
_EXPOSITION = re.compile(r"^# (HELP|TYPE) |^(vllm|sglang|trtllm|llamacpp)[:_]\w+[ {]", re.MULTILINE)
_JSON = re.compile(r'\s*(?:\{(?!"log":)|\[\s*[\[{\]])')  # and no log, whose lines may begin with [
_HARNESS = re.compile(r'\s*\{"type": *"header"')  # the first line of a measurement file of ours


def read_measurements(path: Path) -> list[MeasuredRun | StartUp]:
    """Read every run in a file."""
    text, source = read_text(path), path.name
    found: list[MeasuredRun | StartUp] = [each.run for each in _intervals(path, text)]
    kind = _written(text)
    if kind in _TEXTS:
        found.append(_TEXTS[kind](source, text))
    elif kind == "text":
        runs, starts = read_pasted(source, text, from_json), read_startups(source, text) if is_startup(text) else []
        if not runs and not any(each.kv_bytes or each.kv_tokens or each.weight_bytes for each in starts):
            refuse_text(source, text)  # lm-eval's own line has a setting or two
        found += [*starts, *runs]
    elif not found and kind in ("json", "harness"):
        found += [one for name, data in _objects(path, text) for one in from_json(name, data)]
    if not found:
        refuse_text(source, text)
        raise SpecError(f"{path}: nothing that is known wrote this; known: {', '.join(known_tools())}")
    return found


def read_intervals(path: Path) -> list[MeasuredInterval]:
    """Intervals of a recording of scrapes or of a log of requests, in order of time."""
    text = read_text(path)
    if found := _intervals(path, text):
        return found
    why = "is neither a recording of `rooflinekit watch` nor a log of requests in JSON lines"
    if text.lstrip()[:1] == "{":
        why = f"no line is a request with {exposition.WANTED}; docs/watch.md has the other names"
    elif _EXPOSITION.search(text):
        why = "is one page without the time of its scrape: `rooflinekit compare` reads it; give an address here"
    raise SpecError(f"{path}: {why}")


def read_start(path: Path) -> StartUp | None:
    """The start-up log in a file; None for any other. Raises SpecError for a file that cannot be read."""
    text = read_text(path)
    return read_startup(path.name, text) if _written(text) == "text" and is_startup(text) else None


def _written(text: str) -> str:
    """Kind of a file: recording, JSON (harness: our own), aiperf, mlperf, exposition, text with runs; or nothing."""
    if is_recording(text):
        return "recording"
    if _JSON.match(text):
        return "harness" if _HARNESS.match(text) else "json"
    if text.startswith("Metric,avg,"):
        return "aiperf"
    if "MLPerf Results Summary" in text[:400]:
        return "mlperf"
    if _EXPOSITION.search(text):
        return "exposition"
    return "text" if is_startup(text) or is_pasted(text) else ""


def _intervals(path: Path, text: str) -> list[MeasuredInterval]:
    if is_recording(text):
        return exposition.read_recording(path.name, text)
    if not _JSON.match(text) or text.lstrip()[:1] != "{":
        return []
    lines, errors = _request_lines(path, text)
    if any(map(exposition.is_request_log, lines)):
        return exposition.read_request_log(path.name, lines, list(map(str, errors)))
    if errors:
        raise errors[0]
    return []


def _request_lines(path: Path, text: str) -> tuple[list[Mapping[str, object]], list[SpecError]]:
    """The objects of JSON lines, and what is wrong with others; the last one may still be written."""
    if (entries := _document(text)) is not None:
        return [span for data in entries if isinstance(data, Mapping) for span in exposition.spans(data)], []
    found, errors, lines = list[Mapping[str, Any]](), list[SpecError](), text.splitlines()
    for number, line in enumerate(lines, 1):
        try:
            found += (span for _, data in json_lines(path, [line], number) for span in exposition.spans(data))
        except SpecError as error:
            if number < len(lines) or text.endswith("\n"):
                errors.append(error)
    return found, errors


def _document(text: str) -> list[object] | None:
    """Entries of one JSON document; None for JSON lines."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, list) else [data]


def is_of_harness(path: Path) -> bool:
    """True if a file is a measurement file of `rooflinekit validate`. Raises SpecError for one that cannot be read."""
    return _written(read_text(path)) == "harness"


def is_benchmark(path: Path) -> bool:
    """True if a file is none of kernels: JSON that no harness of ours wrote, or text that a client or engine did.

    False for what cannot be read as text.
    """
    named = path.suffix in (".json", ".log", ".txt")
    try:
        kind = _written(read_text(path))
    except SpecError:
        return named
    return kind != "harness" and bool(kind or named)


def _objects(path: Path, text: str) -> Iterator[tuple[str, Mapping[str, object]]]:
    """One JSON document, or one a line (appended results), each with a name."""
    if (entries := _document(text)) is None:
        entries = [data for _, data in json_lines(path, text.splitlines())]
    for number, data in enumerate(entries):
        if isinstance(data, Mapping):
            yield f"{path.name}#{number}" if len(entries) > 1 else path.name, data


def from_json(source: str, data: Parsed) -> Iterator[MeasuredRun]:
    """The runs of one JSON document; none if no known tool wrote it. Raises SpecError for a value that cannot be."""
    benchmarks = data["benchmarks"][:1] if isinstance(data.get("benchmarks"), list) else []
    blocks = (data.get(name) for name in ("request_latency", "time_to_first_token", "request_throughput"))
    if benchmarks and isinstance(benchmarks[0], Mapping) and isinstance(benchmarks[0].get("metrics"), Mapping):
        yield from _guidellm(source, data)
    elif isinstance(data.get("inputs"), Mapping) and "level" in data and "tpot_ms" in data:
        yield _predicted(source, data)
    elif any(isinstance(block, Mapping) and "avg" in block for block in blocks):
        tool = "aiperf" if "aiperf_version" in data or "schema_version" in data else "genai-perf"
        yield _aiperf(source, tool, data)
    else:
        yield from from_tool(source, data)


# what `rooflinekit estimate --format json` wrote: a prediction in a measurement's place


def _predicted(source: str, data: Parsed) -> MeasuredRun:
    """A prediction, with all that it assumes and is not the default."""
    whole, inputs = Fields(source, data), Fields(source, data["inputs"])
    load, options = whole.inside("load"), options_of(Placed)
    static = inputs.count("concurrency") is None and inputs.number("rate") is None
    isl = inputs.number("isl")
    known = {name: value for name, value in inputs.data.items() if name in options and name not in _ELSEWHERE}
    said = {name: value for name, value in known.items() if value not in (None, False, options[name].default)}
    if said.get("attention_weights") == said.get("weights"):
        said.pop("attention_weights", None)
    if said.get("lm_head") in ("bf16", "fp16", "fp32"):
        said.pop("lm_head")
    engine = "@".join(filter(None, (whole.text("engine"), inputs.text("engine_version"))))
    users = inputs.count("batch") if static else inputs.count("concurrency")
    deployed = (whole.text("model"), whole.text("gpu"), engine, inputs.count("tp"))
    facts = RunFacts(*deployed, isl, inputs.number("osl"), users, inputs.number("rate"))
    facts = replace(
        facts,
        requests=users if static else load.count("requests"),
        max_num_seqs=inputs.count("max_num_seqs"),
        hits=(inputs.number("cached") or 0.0) / isl if isl else None,
        warmup=load.count("warmup") or None,
    )
    ttft, tpot, e2e = (MeasuredSpread(whole.number(f"{name}_ms")) for name in ("ttft", "tpot", "e2e"))
    spreads, rate, deployment = (ttft, tpot, MeasuredSpread(), e2e), whole.number("output_tok_s"), tuple(said.items())
    return MeasuredRun(source, PREDICTED, facts, *spreads, rate, static=static, deployment=deployment)


# GuideLLM (`benchmarks.json`): one measurement for each strategy that it ran


def _guidellm(source: str, data: Parsed) -> Iterator[MeasuredRun]:
    """Map every benchmark of a report. Only successful requests count.

    `inter_token_latency_ms` is (last − first token) / (tokens − 1) of a request; its mean weighs requests by their
    tokens.
    """
    for number, entry in enumerate(data["benchmarks"]):
        if not isinstance(entry, Mapping) or not isinstance(entry.get("metrics"), Mapping):
            raise SpecError(f"{source}: benchmark {number} has no metrics")
        run = Fields(f"{source}#{number}", entry)
        notes = ["TPOT is inter_token_latency_ms: time_per_output_token_ms counts the first token too"]
        new = run.inside("config", "strategy")
        strategy = new if new.data else run.inside("args", "strategy")
        kind = strategy.text("type_", "kind") or ""
        streams = 1 if kind == "synchronous" else strategy.count("streams")
        if kind == "throughput":
            done = run.inside("metrics", "request_totals").count("successful")
            streams = strategy.count("max_concurrency") or done
            notes.append("throughput strategy: all requests came at once")
        rate = strategy.number("rate") if kind in ("constant", "poisson", "async") else None
        told = {"report": data, "concurrency": streams, "rate": rate, "cv": 0.0 if kind == "constant" else None}
        yield measurement_of(mapped(run.source, "guidellm", entry, told), How("guidellm"), notes)


# AIPerf and GenAI-Perf: JSON (`profile_export_aiperf.json`, `…_genai_perf.json`) and CSV

_PER_MS = {"ms": 1.0, "s": 1e3, "sec": 1e3, "seconds": 1e3, "us": 1e-3, "µs": 1e-3, "ns": 1e-6}
_AIPERF = {
    "ttft": "time_to_first_token",
    "tpot": "inter_token_latency",
    "itl": "inter_chunk_latency",
    "e2e": "request_latency",
}


def _aiperf_csv(source: str, text: str) -> MeasuredRun:
    """Map a CSV export: a table of distributions, then one of single values. It does not say how it was run."""
    blocks: dict[str, dict[str, Any]] = {}
    header: list[str] = []
    try:
        for row in csv.reader(text.splitlines()):
            if row and row[0] == "Metric":
                header = ["avg" if name == "Value" else name for name in row]
            elif len(row) > 1 and header[:2] == ["Metric", "avg"]:
                name, _, unit = row[0].partition("(")
                figures = {key: cell.replace(",", "") for key, cell in zip(header[1:], row[1:], strict=False) if cell}
                key = name.strip().lower().replace(" ", "_")
                blocks.setdefault(key, {"unit": unit.rstrip(") "), **figures})
    except csv.Error as error:
        raise SpecError(f"{source}: is not the CSV it seems to be ({error})") from None
    return _aiperf(source, "aiperf", blocks)


def _aiperf(source: str, tool: str, data: Mapping[str, object]) -> MeasuredRun:
    """Map an export.

    Its `inter_token_latency` is (request latency − TTFT) / (output tokens − 1) of a request: our TPOT. Single gaps are
    `inter_chunk_latency`. The configuration inside has the load in three places, one a generation.
    """
    fields = Fields(source, data)
    config = fields.inside("input_config")
    phases = config.data.get("phases")
    entries = phases if isinstance(phases, list) else list(phases.values()) if isinstance(phases, Mapping) else []
    kept = (each for each in entries if isinstance(each, Mapping) and not each.get("exclude_from_results"))
    counted = [Fields(f"{config.source}.phases", entry) for entry in kept]
    loads = [config.inside("loadgen"), config.inside("perf_analyzer", "stimulus"), *counted, config]
    rate = next(filter(None, (load.number("request_rate", "rate") for load in loads)), None)
    concurrency = next(filter(None, (load.count("concurrency") for load in loads)), None)
    constant = any(load.text("arrival_pattern", "request_rate_mode", "type") == "constant" for load in loads)
    keys, parts = ("model_names", "model_name", "model"), (config.inside("endpoint"), config)
    models = (part.data.get(key) for part in parts for key in keys)
    named = (model[0] if isinstance(model, list) else model for model in models if model)
    told: OwnKeywords = {"rate": rate, "concurrency": None if rate else concurrency}
    told["cv"] = 0.0 if constant and rate else None
    told["model"] = next((model for model in named if isinstance(model, str)), None)
    for name, block in ((name, fields.inside(block)) for name, block in _AIPERF.items()):
        unit = (block.text("unit") or "ms").lower()
        if block.number("avg"):
            if unit not in _PER_MS:
                raise SpecError(f"{block.source}: unit {unit!r} is not a time; known: {', '.join(_PER_MS)}")
            words = {"mean": "avg", "p50": "p50", "p90": "p90", "p99": "p99", "low": "min"}
            told |= {f"{name}.{part}": block.number(word, scale=_PER_MS[unit]) for part, word in words.items()}
    return measurement_of(mapped(source, "aiperf", data, told), How(tool))


# MLPerf's LoadGen summary

_PAIR = re.compile(r"^[ \t]*([^:\n]+?)[ \t]*:[ \t]*(\S.*?)[ \t]*$", re.MULTILINE)


def _mlperf(source: str, text: str) -> MeasuredRun:
    """Map LoadGen's summary.

    The server scenario sends Poisson arrivals at its target rate; offline sends everything at once. Output length is
    tokens over samples; the prompts' is not in the file.
    """
    pairs = {key.lower(): value for key, value in reversed(_PAIR.findall(text))}
    fields = mapped(source, "mlperf", pairs, {})
    scenario, samples, tokens = fields.text("scenario") or "", fields.number("samples"), fields.number("tokens")
    if not samples or not tokens or scenario not in ("Server", "Offline", "Interactive"):
        raise SpecError(f"{source}: scenario {scenario!r} has no token latencies; known: Server, Interactive, Offline")
    told: OwnKeywords = {"osl": tokens / samples, "output_tok_s": tokens, "request_s": samples}
    if scenario == "Offline":  # whose latencies are those of the queue
        told |= {"concurrency": fields.count("burst"), "e2e.mean": None, "e2e.p50": None}
    else:
        told["rate"] = fields.number("scheduled") or samples
    notes = ("LoadGen calls the run INVALID",) if fields.text("result") == "INVALID" else ()
    return measurement_of(mapped(source, "mlperf", pairs, told), How(f"mlperf {scenario.lower()}", scale=1e-6), notes)


_TEXTS: dict[str, Callable[[str, str], MeasuredRun | StartUp]] = {
    "aiperf": _aiperf_csv,
    "mlperf": _mlperf,
    "exposition": exposition.read_page,
}
