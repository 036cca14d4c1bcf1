"""Results of `vllm bench serve` (JSON) and of SGLang's `bench_serving` (JSON lines), which share most keys."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean, pstdev
from typing import Any

from rooflinekit.evidence.measured.measurement import Facts, Fields, Measurement, Spread

__all__ = ["is_sglang", "is_vllm", "read_sglang", "read_vllm"]

_ENGINES = {"vllm": "vllm", "sglang": "sglang", "trt": "trtllm", "tensorrt-llm": "trtllm"}
_ONE_STREAM = "no --max-concurrency and an infinite rate: all requests came at once"


def is_vllm(data: Mapping[str, Any]) -> bool:
    """Whether a JSON object is a result of `vllm bench serve` (vllm/benchmarks/serve.py)."""
    return "model_id" in data and "total_input_tokens" in data


def is_sglang(data: Mapping[str, Any]) -> bool:
    """Whether it is one of `python -m sglang.bench_serving` (its end-to-end latency has a name of its own)."""
    return "total_input_tokens" in data and ("median_e2e_latency_ms" in data or "mean_e2e_latency_ms" in data)


def read_vllm(source: str, data: Mapping[str, Any]) -> Measurement:
    """Map a result of `vllm bench serve`.

    Its TPOT is (latency − TTFT) / (tokens − 1) of a request, as ours. TTFT and E2EL start when the request is sent, so
    time in the client's own queue (finite rate with --max-concurrency) is not in them.
    """
    return _read(Fields(source, data), "vllm bench serve", "e2el_ms", data.get("model_id"))


def read_sglang(source: str, data: Mapping[str, Any]) -> Measurement:
    """Map a line of SGLang's `bench_serving`; the model stands only in `server_info` of newer versions."""
    fields = Fields(source, data)
    server = fields.inside("server_info")
    model = server.text("model_path") or fields.text("model", "model_id")
    return _read(fields, "sglang bench_serving", "e2e_latency_ms", model, server.count("tp_size"))


def _read(fields: Fields, tool: str, e2e: str, model: Any, tp: int | None = None) -> Measurement:
    done, facts, notes = fields.count("completed"), _facts(fields), []
    if facts["concurrency"] is None and facts["rate"] is None and done:
        facts["concurrency"] = done
        notes.append(_ONE_STREAM)
    if facts["concurrency"] is not None and facts["rate"] is not None:
        notes.append("the client offers a rate and caps what is in flight; predicted as an open loop at that rate")
        facts["concurrency"] = None
    return Measurement(
        source=fields.source,
        tool=tool,
        facts=Facts(model=model if isinstance(model, str) else None, tp=tp or fields.count("tp"), **facts),
        ttft=_lowest(fields, fields.spread("{}_ttft_ms")),
        tpot=fields.spread("{}_tpot_ms"),
        itl=fields.spread("{}_itl_ms"),
        e2e=fields.spread(f"{{}}_{e2e}"),
        output_tok_s=fields.number("output_throughput"),
        request_s=fields.number("request_throughput"),
        notes=tuple(notes),
    )


def _facts(fields: Fields) -> dict[str, Any]:
    done = fields.count("completed")
    tokens = {"isl": fields.number("total_input_tokens"), "osl": fields.number("total_output_tokens")}
    burstiness = fields.number("burstiness")
    backend = (fields.text("backend", "endpoint_type") or "").lower()
    return {
        "gpu": fields.text("gpu"),
        "engine": next((engine for word, engine in _ENGINES.items() if backend.startswith(word)), None),
        "concurrency": fields.count("max_concurrency"),
        "rate": _rate(fields),
        "cv": 1.0 / math.sqrt(burstiness) if burstiness else 1.0,  # its burstiness is the shape of the gamma law
        "requests": done,
        "osl_cv": _variation(fields),
        **{name: total / done if total and done else None for name, total in tokens.items()},
    }


def _rate(fields: Fields) -> float | None:
    """The offered rate; "inf" and Infinity mean none."""
    given = fields.data.get("request_rate")
    if given is None or given == math.inf or (isinstance(given, str) and given.strip().lower() == "inf"):
        return None
    return fields.number("request_rate") or None


def _variation(fields: Fields) -> float | None:
    """How output lengths vary: of every request where the file keeps them, else of the range that SGLang draws from.

    Uniform from r·L to L: (1 − r) / (√3·(1 + r)).
    """
    each = fields.data.get("output_lens")
    lengths = [float(n) for n in each if isinstance(n, int) and n > 0] if isinstance(each, list) else []
    if len(lengths) > 1:
        return pstdev(lengths) / fmean(lengths)
    if "random_output_len" not in fields.data or not (fields.text("dataset_name") or "").startswith("random"):
        return None
    ratio = fields.number("random_range_ratio")
    return None if ratio is None or ratio > 1 else (1.0 - ratio) / (math.sqrt(3.0) * (1.0 + ratio))


def _lowest(fields: Fields, found: Spread) -> Spread:
    """The smallest TTFT, where the file keeps every request (`--save-detailed`, `--output-details`) [s there]."""
    each = fields.data.get("ttfts")
    good = [value for value in each if isinstance(value, float) and value > 0] if isinstance(each, list) else []
    return Spread(found.mean, found.p50, found.p90, found.p99, 1e3 * min(good)) if good else found
