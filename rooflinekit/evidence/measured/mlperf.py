"""`mlperf_log_summary.txt` of MLPerf's LoadGen (mlcommons/inference, loadgen/results.cc); times in nanoseconds."""

from __future__ import annotations

import re

from rooflinekit.evidence.measured.fields import Fields
from rooflinekit.evidence.measured.measurement import Facts, Measurement, Spread
from rooflinekit.model.types.errors import SpecError

__all__ = ["is_mlperf", "read_mlperf"]

_NS = 1e-6  # nanoseconds to milliseconds
_PAIR = re.compile(r"^[ \t]*([^:\n]+?)[ \t]*:[ \t]*(\S.*?)[ \t]*$", re.MULTILINE)
_SHARES = {"p50": "50.00 percentile", "p90": "90.00 percentile", "p99": "99.00 percentile"}
_TPOT = ("time to output token (ns)", "time per output token (ns)")  # LoadGen has written both


def is_mlperf(text: str) -> bool:
    """Whether a text is LoadGen's summary."""
    return "MLPerf Results Summary" in text[:400]


def read_mlperf(source: str, text: str) -> Measurement:
    """Map a summary.

    The server scenario sends Poisson arrivals at its target rate; offline sends everything at once. Output length is
    tokens over samples; the prompts' is not in the file.

    Raises SpecError for a scenario without token latencies (SingleStream and MultiStream of other tasks).
    """
    fields = Fields(source, {key.lower(): value for key, value in reversed(_PAIR.findall(text))})
    scenario = fields.text("scenario") or ""
    samples = fields.number("completed samples per second", "samples per second")
    tokens = fields.number("completed tokens per second", "tokens per second")
    if not samples or not tokens or scenario not in ("Server", "Offline", "Interactive"):
        raise SpecError(f"{source}: scenario {scenario!r} has no token latencies; known: Server, Interactive, Offline")
    offline = scenario == "Offline"
    facts = Facts(
        osl=tokens / samples,
        rate=None if offline else fields.number("scheduled samples per second", "target_qps") or samples,
        concurrency=fields.count("samples_per_query", "min_query_count") if offline else None,
    )
    invalid = ("LoadGen calls the run INVALID",) if fields.text("result is") == "INVALID" else ()
    return Measurement(
        source=source,
        tool=f"mlperf {scenario.lower()}",
        facts=facts,
        ttft=_spread(fields, "first token latency (ns)"),
        tpot=_spread(fields, *_TPOT),
        e2e=_spread(fields, "latency (ns)") if not offline else Spread(),
        output_tok_s=tokens,
        request_s=samples,
        notes=invalid,
    )


def _spread(fields: Fields, *names: str) -> Spread:
    def figure(prefix: str) -> float | None:
        return fields.number(*(f"{prefix} {name}" for name in names), scale=_NS)

    return Spread(figure("mean"), low=figure("min"), **{part: figure(word) for part, word in _SHARES.items()})
