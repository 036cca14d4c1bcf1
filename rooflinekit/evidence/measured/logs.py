"""Text logs: MLPerf's LoadGen summary, and what vLLM says of its memory when it starts."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rooflinekit.evidence.measured.measurement import Facts, Fields, Measurement, Spread
from rooflinekit.model.types.errors import SpecError
from rooflinekit.model.types.units import GB, GIB

__all__ = ["StartUp", "is_mlperf", "is_startup", "read_mlperf", "read_startup"]

_NS = 1e-6  # nanoseconds to milliseconds
_PAIR = re.compile(r"^[ \t]*([^:\n]+?)[ \t]*:[ \t]*(\S.*?)[ \t]*$", re.MULTILINE)
_SHARES = {"p50": "50.00 percentile", "p90": "90.00 percentile", "p99": "99.00 percentile"}
_TPOT = ("time to output token (ns)", "time per output token (ns)")  # LoadGen has written both

_SIZES = {"GiB": GIB, "GB": GB}
_KV_BYTES = re.compile(r"Available KV cache memory: (-?[\d.]+) (GiB|GB)")
_KV_TOKENS = re.compile(r"GPU KV cache size: ([\d,]+) tokens")
_BLOCKS = re.compile(r"# GPU blocks: (\d+)")
_WEIGHTS = re.compile(r"(?:Loading model weights took|Model loading took) ([\d.]+) (GiB|GB)")
_CONCURRENCY = re.compile(r"Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x")


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


@dataclass(frozen=True)
class StartUp:
    """Memory of one accelerator as the engine found it; None where the log does not say.

    kv_bytes: room for the cache [B]; kv_tokens: tokens that fit in it; weight_bytes [B]; max_len: longest request
    [tokens] and how many of that length fit.
    """

    source: str
    kv_bytes: float | None = None
    kv_tokens: int | None = None
    weight_bytes: float | None = None
    max_len: int | None = None
    concurrency: float | None = None


def is_startup(text: str) -> bool:
    """Whether a text is a log with any of the lines."""
    return any(pattern.search(text) for pattern in (_KV_BYTES, _KV_TOKENS, _BLOCKS, _CONCURRENCY))


def read_startup(source: str, text: str) -> StartUp:
    """Read the last of each line: an engine that restarts says them again.

    Versions before 0.7.3 give blocks and the longest request instead of tokens: tokens = concurrency · longest.

    >>> log = "GPU KV cache size: 178,880 tokens, Maximum concurrency for 40,960 tokens per request: 4.37x"
    >>> read_startup("log", log).kv_tokens
    178880

    Raises SpecError if the cache has no room.
    """
    kv, weights = (_last(pattern, text) for pattern in (_KV_BYTES, _WEIGHTS))
    tokens, most = _last(_KV_TOKENS, text), _last(_CONCURRENCY, text)
    longest = int(most[0].replace(",", "")) if most else None
    times = float(most[1]) if most else None
    room = int(tokens[0].replace(",", "")) if tokens else round(times * longest) if times and longest else None
    size = _bytes(kv)
    if (size is not None and size <= 0) or room == 0:
        raise SpecError(f"{source}: the engine found no room for its cache")
    return StartUp(source, size, room, _bytes(weights), longest, times)


def _last(pattern: re.Pattern[str], text: str) -> tuple[str, ...] | None:
    hits = list(pattern.finditer(text))
    return hits[-1].groups() if hits else None


def _bytes(found: tuple[str, ...] | None) -> float | None:
    return float(found[0]) * _SIZES[found[1]] if found else None
