"""Reports of GuideLLM (`benchmarks.json`): one measurement for each strategy that it ran."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rooflinekit.evidence.measured.measurement import NOTHING, Facts, Fields, Measurement, Spread
from rooflinekit.model.types.errors import SpecError

__all__ = ["is_guidellm", "read_guidellm"]

_ITL_NOTE = "TPOT is inter_token_latency_ms: time_per_output_token_ms counts the first token too"
_ALL_AT_ONCE = "throughput strategy: all requests came at once"


def is_guidellm(data: Mapping[str, Any]) -> bool:
    """Whether a JSON object is a report of GuideLLM."""
    first = data["benchmarks"][:1] if isinstance(data.get("benchmarks"), list) else []
    return bool(first) and isinstance(first[0], Mapping) and isinstance(first[0].get("metrics"), Mapping)


def read_guidellm(source: str, data: Mapping[str, Any]) -> Iterator[Measurement]:
    """Map every benchmark of a report.

    `inter_token_latency_ms` is (last − first token) / (tokens − 1) of a request; its mean weighs requests by their
    tokens. `request_latency` is in seconds. Only successful requests count.

    Raises SpecError for a benchmark without metrics.
    """
    report = Fields(source, data)
    for number, entry in enumerate(data["benchmarks"]):
        if not isinstance(entry, Mapping) or not isinstance(entry.get("metrics"), Mapping):
            raise SpecError(f"{source}: benchmark {number} has no metrics")
        run = Fields(f"{source}#{number}", entry)
        metrics = run.inside("metrics")
        facts, notes = _facts(run, report, metrics)
        yield Measurement(
            source=run.source,
            tool="guidellm",
            facts=facts,
            ttft=_spread(metrics, "time_to_first_token_ms"),
            tpot=_spread(metrics, "inter_token_latency_ms"),
            e2e=_spread(metrics, "request_latency", 1e3),
            output_tok_s=_mean(metrics, "output_tokens_per_second"),
            request_s=_mean(metrics, "requests_per_second"),
            notes=(_ITL_NOTE, *notes),
        )


def _facts(run: Fields, report: Fields, metrics: Fields) -> tuple[Facts, list[str]]:
    old, new = run.inside("args", "strategy"), run.inside("config", "strategy")
    strategy = new if new.data else old
    kind = strategy.text("type_", "kind") or ""
    rate = strategy.number("rate") if kind in ("constant", "poisson", "async") else None
    done = metrics.inside("request_totals").count("successful")
    streams = 1 if kind == "synchronous" else strategy.count("streams")
    notes = []
    if kind == "throughput":
        streams = strategy.count("max_concurrency") or done
        notes.append(_ALL_AT_ONCE)
    backends = (
        run.inside("config", "backend"),
        run.inside("worker"),
        report.inside("args"),
        report.inside("config", "backend"),
    )
    model = next(filter(None, (backend.text("model", "backend_model") for backend in backends)), None)
    facts = Facts(
        model=model,
        isl=_mean(metrics, "prompt_token_count"),
        osl=_mean(metrics, "output_token_count"),
        concurrency=streams,
        rate=rate,
        cv=0.0 if kind == "constant" else 1.0,
        requests=done,
        osl_cv=metrics.inside("output_token_count", "successful").variation("mean", "std_dev"),
    )
    return facts, notes


def _mean(metrics: Fields, name: str) -> float | None:
    return metrics.inside(name, "successful").number("mean") or None


def _spread(metrics: Fields, name: str, scale: float = 1.0) -> Spread:
    found = metrics.inside(name, "successful")
    shares = found.inside("percentiles") if "percentiles" in found.data else found
    mean = found.number("mean", scale=scale)
    if not mean:
        return NOTHING
    return Spread(
        mean,
        found.number("median", scale=scale),
        shares.number("p90", scale=scale),
        shares.number("p99", scale=scale),
        found.number("min", scale=scale),
    )
