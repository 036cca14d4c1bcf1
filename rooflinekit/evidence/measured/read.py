"""The door: a file, whatever wrote it, as measurements."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rooflinekit.evidence.measured.aiperf import is_aiperf, is_aiperf_csv, read_aiperf, read_aiperf_csv
from rooflinekit.evidence.measured.clients import is_sglang, is_vllm, read_sglang, read_vllm
from rooflinekit.evidence.measured.guidellm import is_guidellm, read_guidellm
from rooflinekit.evidence.measured.logs import StartUp, is_mlperf, is_startup, read_mlperf, read_startup
from rooflinekit.evidence.measured.measurement import Measurement
from rooflinekit.model.types.errors import SpecError

__all__ = ["is_benchmark", "read_measurements"]

TOOLS = (
    "vllm bench serve (JSON)",
    "sglang bench_serving (JSON lines)",
    "GuideLLM (JSON)",
    "AIPerf or GenAI-Perf (JSON, CSV)",
    "mlperf_log_summary.txt",
    "vLLM start-up log",
)


def read_measurements(path: Path) -> list[Measurement | StartUp]:
    """Read every run in a file; what wrote it is known by its contents.

    Raises SpecError for a file that cannot be read or that none of the known tools wrote.
    """
    text = _text(path)
    source = path.name
    if text.lstrip()[:1] in ("{", "["):
        found = [one for name, data in _objects(path, source, text) for one in _from_json(name, data)]
    elif is_aiperf_csv(text):
        found = [read_aiperf_csv(source, text)]
    elif is_mlperf(text):
        found = [read_mlperf(source, text)]
    elif is_startup(text):
        found = [read_startup(source, text)]
    else:
        found = []
    if not found:
        raise SpecError(f"{path}: nothing that is known wrote this; known: {', '.join(TOOLS)}")
    return found


def is_benchmark(path: Path) -> bool:
    """Whether a file is none of kernels: JSON that no harness of ours wrote, or text that a client or engine did.

    False for what cannot be read as text.
    """
    try:
        text = _text(path)
    except SpecError:
        return path.suffix in (".json", ".log", ".txt")
    if text.lstrip()[:1] in ("{", "["):
        return not _HEADER.match(text)
    return is_aiperf_csv(text) or is_mlperf(text) or is_startup(text) or path.suffix in (".json", ".log", ".txt")


_HEADER = re.compile(r'\s*\{"type": *"header"')


def _from_json(source: str, data: Mapping[str, Any]) -> Iterator[Measurement | StartUp]:
    if is_guidellm(data):
        yield from read_guidellm(source, data)
    elif is_sglang(data):
        yield read_sglang(source, data)
    elif is_vllm(data):
        yield read_vllm(source, data)
    elif is_aiperf(data):
        yield read_aiperf(source, data)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise SpecError(f"{path}: no such file") from None
    except UnicodeDecodeError:
        raise SpecError(f"{path}: is not UTF-8 text") from None
    except OSError as error:
        raise SpecError(f"{path}: cannot be read ({error.strerror or error})") from None


def _objects(path: Path, source: str, text: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """One JSON document, or one a line (appended results), each with a name."""
    try:
        documents = [json.loads(text)]
    except (ValueError, RecursionError):
        documents = list(_lines(path, text))
    entries = documents[0] if len(documents) == 1 and isinstance(documents[0], list) else documents
    several = len(entries) > 1
    for number, data in enumerate(entries):
        if isinstance(data, Mapping):
            yield f"{source}#{number}" if several else source, data


def _lines(path: Path, text: str) -> Iterator[Any]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            yield json.loads(line)
        except (ValueError, RecursionError) as error:
            what = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
            raise SpecError(f"{path}, line {number}: is not valid JSON ({what})") from None
