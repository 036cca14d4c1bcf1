"""What a running server says of itself: scrapes of its `/metrics` and logs of its requests, as measured intervals.

A recording holds scrapes one after another, each below a line `# scraped 2026-11-22T14:00:00+00:00`, as
`rooflinekit watch URL --record FILE` writes them, with the server's address behind the time. Those of one time are of
servers that share a load.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

from rooflinekit.evidence.measurement import Facts, Fields, Measurement, Spread
from rooflinekit.model.types.errors import InputError, SpecError
from rooflinekit.specs.files import table_of

SCRAPED = "# scraped "
"""What the first line of each scrape of a recording begins with; a time follows."""
WANTED = "input_tokens, output_tokens and ttft_s"
"""What makes a JSON line one of a request, by the plainest of their names."""


_names = partial(table_of, __file__)
"""Names of servers' metrics by engine and quantity, newest first, and of the quantities of a request."""

_MOST_LINES = 50_000  # of an exposition
_NAME = re.compile(r"^(?:(vllm|sglang|trtllm|llamacpp)[:_]|nv_(?:trt_)?)(.+)$")
_NAMES = {"llamacpp": "llama.cpp", "triton": "trtllm"}  # of engines, where their metrics have another
_KINDS = ("request_type", "kv_cache_block_type")  # labels of Triton that tell quantities of one name apart
_UNITS = {"_ms_sum": 1e-3, "_us": 1e-6, "_us_total": 1e-6}  # seconds in the unit of a name
_GAUGES = ("running", "waiting", "kv_use")
_STALL = 10.0  # mean gaps between tokens: one that is longer is no step, but a request that stood still


@dataclass(frozen=True)
class Scrape:
    """One look at the servers of a deployment: totals since they started, and gauges, over all their label sets.

    time: seconds of the Unix clock. values: by quantity; of a histogram `ttft.sum` [s], `ttft.count` and `ttft.le.0.5`,
    how many were at most 0.5 s. kv_tokens: what their caches hold together, where they say so. servers: how many.
    """

    time: float
    engine: str
    model: str | None
    values: Mapping[str, float]
    kv_tokens: int | None = None
    servers: int = 1


@dataclass(frozen=True)
class Interval:
    """What was measured between two scrapes, or of the requests of one minute.

    run: the requests of it as a benchmark run; running, waiting: requests in the engine and before it; kv_use: share
    of the cache in use; preemptions: requests thrown out of it; hits: share of the prompt tokens that the prefix cache
    held; moving_ms: the mean gap between tokens of requests that nothing stalls. None where nothing says so.
    """

    start: float
    end: float
    run: Measurement
    running: float | None = None
    waiting: float | None = None
    kv_use: float | None = None
    preemptions: float | None = None
    kv_tokens: int | None = None
    moving_ms: float | None = None


def read_scrape(text: str, time: float, source: str) -> Scrape:
    """One exposition (Prometheus text format 0.0.4).

    >>> read_scrape('vllm:num_requests_running{model_name="m"} 3.0', 0.0, "url").values
    {'running': 3.0}

    Raises InputError without the package that reads it, SpecError for what is no exposition of a known engine.
    """
    try:
        from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415 - an extra
    except ImportError:
        raise InputError(
            "reading a server's metrics needs prometheus-client: pip install 'rooflinekit[watch]'"
        ) from None
    if (lines := text.count("\n")) > _MOST_LINES:
        raise SpecError(f"{source}: has {lines:,} lines of metrics; an engine has thousands, at most {_MOST_LINES:,}")
    values: dict[str, list[float]] = {}
    engine, model, blocks = "", None, 0.0
    try:
        samples = [(hit, sample) for family in text_string_to_metric_families(text) for sample in family.samples
                   if (hit := _NAME.match(sample.name))]  # fmt: skip
    except ValueError as error:
        raise SpecError(f"{source}: is no Prometheus text exposition ({str(error)[:80]})") from None
    llms = {sample.labels.get("model") for hit, sample in samples if hit[2].startswith("llm_")}
    if samples and not llms and not any(hit[1] for hit, _ in samples):
        models = sorted({sample.labels["model"] for _, sample in samples if "model" in sample.labels})
        raise SpecError(f"{source}: is Triton with {', '.join(models) or 'no model'}, without TensorRT-LLM's metrics "
                        "(nv_trt_llm_, nv_llm_); give the engine's own address")  # fmt: skip
    for hit, sample in samples:
        labels, name = sample.labels, hit[2]
        if name.startswith("inference_") and labels.get("model") not in llms:
            continue  # another step of Triton's ensemble, which counts the same requests
        engine, model = hit[1] or engine or "triton", model or labels.get("model_name")
        if name == "cache_config_info":
            blocks += _room(labels)
        name += "".join(f".{value}" for key, value in labels.items() if key in _KINDS)
        if labels.get("is_streaming") == "false" and name.startswith("time_to_first_token"):
            name += ".unstreamed"  # SGLang hands out fifty tokens at once there, or all
        name += f".le.{labels['le']}" if "le" in labels else ""
        unit = next((size for end, size in _UNITS.items() if name.endswith(end)), 1.0)
        values.setdefault(name, []).append(float(sample.value) * unit)
    if not engine:
        raise SpecError(
            f"{source}: has no metric of {', '.join(_names()['engines'])}; start the server with its metrics on"
        )
    found: dict[str, float] = {}
    for quantity, names in _names()["engines"][engine].items():
        for key, end in ((quantity, ""), (f"{quantity}.sum", "_sum"), (f"{quantity}.count", "_count")):
            each = next((values[name + end] for name in names if name + end in values), None)
            if each:
                found[key] = sum(each) / (len(each) if quantity == "kv_use" else 1)
        buckets = next((f"{name}_bucket.le." for name in names if f"{name}_bucket.le.+Inf" in values), "none")
        sums = {name.removeprefix(buckets): sum(each) for name, each in values.items() if name.startswith(buckets)}
        found |= {f"{quantity}.le.{edge}": count for edge, count in sums.items()}
    size, count = (values.get(f"llm_kv_cache_block_metrics.{kind}", [0.0]) for kind in ("tokens_per", "max"))
    return Scrape(time, engine, model, found, int(blocks or size[0] * sum(count)) or None)


def _room(labels: Mapping[str, str]) -> float:
    """Tokens of one server's cache, as vLLM's info says."""
    try:
        return float(labels["num_gpu_blocks"]) * float(labels["block_size"])
    except (KeyError, ValueError):
        return 0.0


def together(scrapes: Sequence[Scrape]) -> Scrape:
    """Servers that share a load as one: what they count adds up, and their caches are used as on average.

    Raises SpecError for servers of several engines or models.
    """
    first = scrapes[0]
    for several in ({each.engine for each in scrapes}, {each.model for each in scrapes if each.model}):
        if len(several) > 1:
            raise SpecError(f"servers of {' and '.join(sorted(several))} share no load; watch each by itself")
    names = dict.fromkeys(name for each in scrapes for name in each.values)
    values = {name: sum(each.values.get(name, 0.0) for each in scrapes) for name in names}
    if "kv_use" in values:
        values["kv_use"] /= len(scrapes)
    tokens = sum(each.kv_tokens or 0 for each in scrapes) or None
    return replace(first, values=values, kv_tokens=tokens, servers=len(scrapes))


def between(before: Mapping[str, Scrape], after: Mapping[str, Scrape], source: str) -> Interval | None:
    """What happened between two looks at servers that share a load, by their names: those of which both looks tell.

    None where each of them started anew, or no request came to its first token. Raises what `together` does.
    """
    both = [name for name in after if name in before and not _began_anew(before[name], after[name])]
    if not both:
        return None
    old, new = (together([look[name] for name in both]) for look in (before, after))
    return interval(old, new, source)


def _began_anew(before: Scrape, after: Scrape) -> bool:
    """Whether a total is smaller than it was."""
    return any(after.values.get(name, 0.0) < value for name, value in before.values.items() if name not in _GAUGES)


def interval(before: Scrape, after: Scrape, source: str) -> Interval | None:
    """What happened between two scrapes; None where a server started anew, or no request came to its first token."""
    if _began_anew(before, after):
        return None
    seconds = after.time - before.time
    grown = {name: value - before.values.get(name, 0.0) for name, value in after.values.items()}

    def mean(quantity: str) -> float | None:
        count = grown.get(f"{quantity}.count", 0.0)
        return grown[f"{quantity}.sum"] / count if count > 0 else None

    def ratio(above: str, below: str) -> float | None:
        return grown[above] / grown[below] if above in grown and grown.get(below, 0.0) > 0.0 else None

    begun = grown.get("ttft.count", 0.0) + grown.get("unstreamed", 0.0) or grown.get("e2e.count") or 0.0
    counted = "ttft.count" in grown or "e2e.count" in grown  # else tokens alone are
    if seconds <= 0.0 or not (begun or (grown.get("output_tokens") and not counted)):
        return None
    ended = grown.get("e2e.count") or begun
    e2e, ttft, osl = (mean(name) for name in ("e2e", "ttft", "osl"))
    beyond_first = (e2e - ttft) / (osl - 1.0) if e2e and ttft and osl and osl > 1.0 else None
    gap = mean("gap") or ratio("gap_seconds", "output_tokens") or beyond_first
    first, gaps, whole = (Spread(mean=each and 1e3 * each) for each in (ttft, gap, e2e))
    gauges = {name: (before.values[name] + after.values[name]) / 2 if name in before.values else after.values[name]
              for name in _GAUGES if name in after.values}  # fmt: skip
    facts = Facts(
        model=after.model, engine=_NAMES.get(after.engine, after.engine),
        isl=mean("isl") or (begun and grown.get("prompt_tokens", 0.0) / begun) or None,
        osl=osl or (ended and grown.get("output_tokens", 0.0) / ended) or None,
        rate=begun / seconds or None, hits=ratio("hits", "asked"),
    )  # fmt: skip
    run = Measurement(
        source, f"{after.engine} metrics", facts, first, gaps, e2e=whole,
        output_tok_s=grown.get("output_tokens", 0.0) / seconds or None, request_s=ended / seconds or None,
        unbegun=grown["prompt_seconds"] / seconds + gauges.get("waiting", 0.0) if "prompt_seconds" in grown else None,
        servers=after.servers,
    )  # fmt: skip
    preemptions, moving = grown.get("preemptions"), _moving(grown)
    return Interval(
        before.time, after.time, run, **gauges, preemptions=preemptions, kv_tokens=after.kv_tokens,
        moving_ms=moving and 1e3 * moving,
    )  # fmt: skip


def _moving(grown: Mapping[str, float]) -> float | None:
    """The mean gap between tokens without stalls [s]: those of a bucket are counted at its geometric middle.

    >>> buckets = {"gap.le.0.05": 990.0, "gap.le.1.0": 990.0, "gap.le.4.0": 1000.0, "gap.le.+Inf": 1000.0}
    >>> round(_moving({"gap.sum": 50.0, "gap.count": 1000.0} | buckets), 4)  # ten stalls of some 2 s
    0.0303
    """
    name = "gap.le."
    counts = {float(key.removeprefix(name)): value for key, value in grown.items() if key.startswith(name)}
    seconds, tokens = grown.get("gap.sum", 0.0), grown.get("gap.count", 0.0)
    if not counts or tokens <= 0.0:
        return None
    longest = _STALL * seconds / tokens
    for low, high in pairwise(sorted(counts)):
        if low >= longest:
            stalled = counts[high] - counts[low]
            seconds -= stalled * (math.sqrt(low * high) if high < math.inf else low)
            tokens -= stalled
    return seconds / tokens if seconds > 0.0 and tokens > 0.0 else None


def is_recording(text: str) -> bool:
    """Whether a text begins as a recording does."""
    return text.startswith(SCRAPED)


def scrape_text(text: str, time: float, address: str = "") -> str:
    """A scrape as a recording holds it."""
    stamp = datetime.fromtimestamp(time, UTC).isoformat(timespec="milliseconds")
    return f"{SCRAPED}{stamp} {address}".rstrip() + f"\n{text.rstrip()}\n"


def read_recording(source: str, text: str) -> list[Interval]:
    """The intervals of a recording, in order of time; scrapes that their writer did not finish are left out.

    Raises SpecError for a time that cannot be read, one that does not grow, fewer than two scrapes, or servers that
    share no load.
    """
    looks: list[tuple[float, dict[str, Scrape]]] = []
    last = -math.inf
    _, *parts = text.split(SCRAPED)
    for left, part in zip(range(len(parts) - 1, -1, -1), parts, strict=True):
        head, _, body = part.partition("\n")
        if left and not body.endswith("\n"):
            continue
        stamp, _, name = head.strip().rpartition(" ") if "://" in head else (head.strip(), "", "")
        time = _seconds(stamp, f"{source}: {SCRAPED.strip()}")
        beside = looks[-1][1] if time == last else {}
        name = name or str(len(beside))
        if time < last or name in beside:
            raise SpecError(f"{source}: {SCRAPED}{head.strip()} does not come after the scrape above it")
        try:
            scrape = read_scrape(body, time, f"{source} at {stamp}")
        except SpecError:
            if body.endswith("\n"):
                raise
            continue
        if time > last:
            looks.append((time, beside))
        beside[name], last = scrape, time
    if len(looks) < 2:
        raise SpecError(f"{source}: holds one scrape; a measurement needs two")
    found = (between(old, new, f"{source} at {_clock(time)}") for (_, old), (time, new) in pairwise(looks))
    return [each for each in found if each is not None]


_OF_REQUESTS = ("isl", "osl", "ttft")
_MINUTE = 60.0  # seconds by which the requests of a log are gathered
_LATE = 10.0  # seconds by which lines of a log come out of order


def is_request_log(data: Any) -> bool:
    """Whether a JSON line is of one request: its lengths and its time to the first token."""
    return _named(_flat(data) if isinstance(data, Mapping) else {}) == len(_OF_REQUESTS)


def _named(flat: Mapping[str, Any]) -> int:
    """How many of the quantities that only requests of a language model have are there."""
    return sum(any(name in flat for name in _names()["requests"][part]) for part in _OF_REQUESTS)


def spans(data: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The spans of a line as OpenTelemetry's collector writes it (OTLP's JSON); any other line itself.

    >>> spans({"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "a"}, {"name": "b"}]}]}]})
    [{'name': 'a'}, {'name': 'b'}]
    """
    found = [data]
    for key in ("resourceSpans", "scopeSpans", "spans") if "resourceSpans" in data else ():
        lists = [each.get(key) for each in found]
        found = [each for inner in lists if isinstance(inner, list) for each in inner if isinstance(each, Mapping)]
    return found


def _flat(data: Mapping[str, Any]) -> dict[str, Any]:
    """A span with its attributes beside its times, whether they are a mapping or OTLP's list of keys and values."""
    inner = data.get("attributes", {})
    if isinstance(inner, Sequence):
        pairs = (each for each in inner if isinstance(each, Mapping) and isinstance(each.get("value"), Mapping))
        inner = {each.get("key"): next(iter(each["value"].values()), None) for each in pairs}
    return {**data, **(inner if isinstance(inner, Mapping) else {})}


def read_request_log(source: str, lines: Sequence[Mapping[str, Any]]) -> list[Interval]:
    """Requests, one mapping each, by the minute in which they ended. Raises what `read_requests` does."""
    return by_minute(source, *read_requests(source, lines))


def read_requests(source: str, lines: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, float]], str | None, str]:
    """Whole requests with start and end [s], their model, and a note.

    Requests that lack something, as those that failed do, are left out with a note; spans of something else without
    one. Raises SpecError if no request is whole, for what the first one lacks.
    """
    model, lost, requests = None, [], []
    for number, line in enumerate(lines, 1):
        fields = Fields(f"{source}, request {number}", _flat(line))
        model = model or fields.text(*_names()["model"])
        if _named(fields.data) or len(lines) == 1:
            try:
                requests.append(_request(fields))
            except SpecError as error:
                lost.append(str(error))
    if not requests:
        raise SpecError(lost[0] if lost else f"{source}: holds no request")
    note = f"{len(lost)} of {len(lost) + len(requests)} requests are left out: {lost[0]}" if lost else ""
    return requests, model, note


def by_minute(
    source: str, requests: Sequence[Mapping[str, float]], model: str | None, note: str, since: float | None = None
) -> list[Interval]:
    """Requests by the minute in which they ended.

    They begin with the first, or at `since`, and end with the last: of a minute that they do not fill the rest does not
    count, and less than half a minute beside others not at all.
    """
    first = min(each["start"] for each in requests) if since is None else since
    last, longest = max(each["end"] for each in requests), max(each["e2e"] for each in requests)
    arrived = Counter(math.floor(each["start"] / _MINUTE) for each in requests)
    minutes: dict[int, list[Mapping[str, float]]] = {}
    for each in requests:
        minutes.setdefault(math.floor(each["end"] / _MINUTE), []).append(each)
    found = []
    for number, own in sorted(minutes.items()):
        start, end = max(number * _MINUTE, first), min((number + 1) * _MINUTE, last)
        came = max(arrived[number], len(own)) if end + longest > last else arrived[number] or len(own)
        if end - start >= _MINUTE / 2 or len(minutes) == 1:
            found.append(_minute(source, (start, end), own, came, (model, note)))
    return found


class GrowingLog:
    """A log of requests that is still written; a minute is told once requests of a later one have ended."""

    def __init__(self, source: str) -> None:
        self._source, self._over = source, -math.inf
        self._model: str | None = None
        self._requests: list[dict[str, float]] = []

    def add(self, lines: Sequence[Mapping[str, Any]]) -> list[Interval]:
        """The minutes that are over with these requests. Raises what `read_requests` does."""
        requests, model, note = read_requests(self._source, lines)
        self._model, over = self._model or model, self._over
        self._requests += (each for each in requests if each["end"] > over)
        until = (max((each["end"] for each in self._requests), default=0.0) - _LATE) // _MINUTE * _MINUTE
        if until <= over or not self._requests:
            return []
        found = by_minute(self._source, self._requests, self._model, note, None if over == -math.inf else over)
        self._over, self._requests = until, [each for each in self._requests if each["end"] > until]
        return [each for each in found if each.end <= until]


def _request(fields: Fields) -> dict[str, float]:
    """Lengths, times and start of one request. Raises SpecError for one that it lacks."""
    known = _names()
    request = {part: fields.number(*names) for part, names in known["requests"].items()}
    nanoseconds = fields.number("startTimeUnixNano", scale=1e-9)
    stamp = next((fields.data[name] for name in known["start"] if name in fields.data), None)
    if missing := next((part for part, value in request.items() if value is None), None):
        raise SpecError(f"{fields.source}: has no {missing}: none of {', '.join(known['requests'][missing])}")
    if nanoseconds is None and stamp is None:
        raise SpecError(f"{fields.source}: has no start: none of startTimeUnixNano, {', '.join(known['start'])}")
    start = _seconds(stamp, fields.source) if nanoseconds is None else nanoseconds
    request |= {part: fields.number(*names) for part, names in known["optional"].items()} | {"start": start}
    found = {part: float(value) for part, value in request.items() if value is not None}
    return found | {"end": start + found["e2e"]}


def _minute(
    source: str, within: tuple[float, float], requests: Sequence[Mapping[str, float]], came: int,
    said: tuple[str | None, str],
) -> Interval:  # fmt: skip
    """The requests that ended within a minute or a part of it, at the rate at which as many came.

    Those under way and those that wait are Little's law: their seconds over those of the minute.
    """

    def mean(values: Iterator[float]) -> float:
        found = list(values)
        return math.fsum(found) / len(found) if found else 0.0

    (start, end), (model, note) = within, said
    seconds = max(end - start, 1e-3)
    rate = len(requests) / seconds
    stay = mean(each["e2e"] for each in requests)
    gaps = [1e3 * (each["e2e"] - each["ttft"]) / (each["osl"] - 1.0) for each in requests if each["osl"] > 1.0]
    isl, osl = (mean(each[part] for each in requests) for part in ("isl", "osl"))
    first = [1e3 * each["ttft"] for each in requests]
    cached, waits = ([each for each in requests if part in each] for part in ("cached", "queue"))
    hits = sum(each["cached"] for each in cached) / max(sum(each["isl"] for each in cached), 1.0) if cached else None
    facts = Facts(model=model, isl=isl, osl=osl, rate=came / seconds, hits=hits)
    waiting = rate * mean(each["queue"] for each in waits) if waits else None
    run = Measurement(
        f"{source} at {_clock(end)}", "request log", facts,
        Spread(mean=mean(iter(first)), low=min(first)), Spread(mean=mean(iter(gaps))), e2e=Spread(mean=1e3 * stay),
        output_tok_s=rate * osl, request_s=rate, notes=(note,) if note else (),
    )  # fmt: skip
    running = rate * stay - (waiting or 0.0)
    return Interval(start, end, run, running, waiting, moving_ms=median(gaps) if gaps else None)


def _seconds(stamp: Any, where: str) -> float:
    """A time as seconds of the Unix clock, from a number or ISO 8601."""
    try:
        return float(stamp)
    except (TypeError, ValueError):
        pass
    try:
        time = datetime.fromisoformat(str(stamp).strip())
    except ValueError:
        raise SpecError(f"{where} {str(stamp)[:40]!r} is no time; write 2026-11-22T14:00:00+00:00") from None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def _clock(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M")
