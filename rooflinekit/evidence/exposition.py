"""Metrics and logs of running servers: scrapes of its `/metrics` and logs of its requests, as measured intervals.

A recording holds scrapes one after another, each below a line `# scraped 2026-11-22T14:00:00+00:00`, as
`rooflinekit watch URL --record FILE` writes them, with the server's address behind the time. Those of one time are of
servers that share a load.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from statistics import fmean, median
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from rooflinekit.evidence.measurement import Fields, MeasuredRun, MeasuredSpread, RunFacts
from rooflinekit.load.lengths import MOST_TOKENS
from rooflinekit.model.types.errors import InputError, SpecError
from rooflinekit.specs.files import Parsed, table_of
from rooflinekit.specs.foreign import Moment, moment_of, number_of, number_or, units_note

if TYPE_CHECKING:
    from prometheus_client.samples import Sample

T = TypeVar("T")

SCRAPED = "# scraped "
"""Beginning of the first line of each scrape of a recording; a time follows."""
WANTED = "input_tokens, output_tokens and ttft_s"
"""Quantities that make a JSON line a request, by the plainest of their names."""


_names = partial(table_of, __file__)
"""Names of servers' metrics by engine and quantity, newest first, and of the quantities of a request."""

_MOST_LINES = 50_000  # of an exposition
_NAME = re.compile(r"^(?:(vllm|sglang|trtllm|llamacpp)[:_]|nv_(?:trt_)?)(.+)$")
_NAMES = {"llamacpp": "llama.cpp", "triton": "trtllm"}  # of engines, where their metrics have another
_KINDS = ("request_type", "kv_cache_block_type")  # labels of Triton that tell quantities of one name apart
_UNITS = {"_ms_sum": 1e-3, "_us": 1e-6, "_us_total": 1e-6}  # seconds in the unit of a name
_ENDS = ("", "_sum", "_count", "_bucket")  # of a quantity's samples
_GAUGES = ("running", "waiting", "kv_use")
_STALL = 10.0  # mean gaps between tokens: one that is longer is no step, but a request that stood still


@dataclass(frozen=True)
class Scrape:
    """One look at the servers of a deployment: totals since they started, and gauges, over all their label sets.

    time: seconds of the Unix clock. values: by quantity; of a histogram `ttft.sum` [s], `ttft.count` and `ttft.le.0.5`,
    how many were at most 0.5 s; NaN where a sample of it is out of range. kv_tokens: what their caches hold together,
    where they say so. servers: how many. notes: on each quantity out of range.
    """

    time: float
    engine: str
    model: str | None
    values: Mapping[str, float]
    kv_tokens: int | None = None
    servers: int = 1
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class MeasuredInterval:
    """Measurements between two scrapes, or of the requests of one minute.

    run: the requests of it as a benchmark run; running, waiting: requests in the engine and before it; kv_use: share
    of the cache in use; preemptions: requests thrown out of it; hits: share of the prompt tokens that the prefix cache
    held; moving_ms: the mean gap between tokens of requests that nothing stalls. None where nothing says so.
    """

    start: float
    end: float
    run: MeasuredRun
    running: float | None = None
    waiting: float | None = None
    kv_use: float | None = None
    preemptions: float | None = None
    kv_tokens: int | None = None
    moving_ms: float | None = None


def _samples(text: str, source: str) -> list[tuple[re.Match[str], Sample]]:
    """Samples of engines, each with the match of its name; raises as `read_scrape`."""
    try:
        from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415 - an extra
    except ImportError:
        wanted = "prometheus-client: pip install 'rooflinekit[watch]'"
        raise InputError(f"reading a server's metrics needs {wanted}") from None
    if (lines := text.count("\n")) > _MOST_LINES:
        raise SpecError(f"{source}: has {lines:,} lines of metrics; an engine has thousands, at most {_MOST_LINES:,}")
    try:
        return [
            (hit, sample)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if (hit := _NAME.match(sample.name))
        ]
    except ValueError as error:
        raise SpecError(f"{source}: is no Prometheus text exposition ({str(error)[:80]})") from None


def read_scrape(text: str, time: float, source: str) -> Scrape:
    """One exposition (Prometheus text format 0.0.4).

    >>> read_scrape('vllm:num_requests_running{model_name="m"} 3.0', 0.0, "url").values
    {'running': 3.0}
    """
    values: dict[str, list[float]] = {}
    wrong: dict[str, str] = {}  # by the same names
    engine, model, blocks = "", None, list[float]()
    samples = _samples(text, source)
    llms = {sample.labels.get("model") for hit, sample in samples if hit[2].startswith("llm_")}
    if samples and not llms and not any(hit[1] for hit, _ in samples):
        models = sorted({sample.labels["model"] for _, sample in samples if "model" in sample.labels})
        lacks = "without TensorRT-LLM's metrics (nv_trt_llm_, nv_llm_); give the engine's own address"
        raise SpecError(f"{source}: is Triton with {', '.join(models) or 'no model'}, {lacks}")
    for hit, sample in samples:
        labels, name = sample.labels, hit[2]
        if name.startswith("inference_") and labels.get("model") not in llms:
            continue  # another step of Triton's ensemble, which counts the same requests
        engine, model = hit[1] or engine or "triton", model or labels.get("model_name")
        if name == "cache_config_info":
            blocks.append(number_or(labels.get("num_gpu_blocks"), 0.0) * number_or(labels.get("block_size"), 0.0))
        name += "".join(f".{value}" for key, value in labels.items() if key in _KINDS)
        if labels.get("is_streaming") == "false" and name.startswith("time_to_first_token"):
            name += ".unstreamed"  # SGLang hands out fifty tokens at once there, or all
        unit = next((size for end, size in _UNITS.items() if name.endswith(end)), 1.0)
        try:
            edge = f".le.{number_of(labels['le'], -math.inf, math.inf)}" if "le" in labels else ""
            value = number_of(sample.value) * unit
        except ValueError as error:
            edge, value = f".le.{labels['le']}" if "le" in labels else "", math.nan
            wrong[name + edge] = f"{sample.name} is {error}"
        values.setdefault(name + edge, []).append(value)
    if not engine:
        engines = ", ".join(_names()["engines"])
        raise SpecError(f"{source}: has no metric of {engines}; start the server with its metrics on")
    found: dict[str, float] = {}
    for quantity, names in _names()["engines"][engine].items():
        for key, end in ((quantity, ""), (f"{quantity}.sum", "_sum"), (f"{quantity}.count", "_count")):
            each = next((values[name + end] for name in names if name + end in values), None)
            if each:
                found[key] = sum(each) / (len(each) if quantity == "kv_use" else 1)
        for start in (f"{name}_bucket.le." for name in names):
            sums = {key.removeprefix(start): sum(each) for key, each in values.items() if key.startswith(start)}
            if sums:
                found |= {f"{quantity}.le.{edge}": count for edge, count in sums.items()}
                break
    size, count = (values.get(f"llm_kv_cache_block_metrics.{kind}", [0.0]) for kind in ("tokens_per", "max"))
    tokens = number_or(sum(blocks) or size[0] * sum(count), 0.0)
    known = {f"{name}{end}" for names in _names()["engines"][engine].values() for name in names for end in _ENDS}
    told = (said for name, said in wrong.items() if name.partition(".le.")[0] in known)
    notes = tuple(f"{source}: {said}; it is left out" for said in told)
    return Scrape(time, engine, model, found, int(tokens) or None, notes=notes)


def together(scrapes: Sequence[Scrape]) -> Scrape:
    """Servers that share a load as one: what they count adds up, and their caches are used as on average."""
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


def between(before: Mapping[str, Scrape], after: Mapping[str, Scrape], source: str) -> MeasuredInterval | None:
    """The interval between two looks at servers that share a load, by their names: those of which both looks tell.

    None where each of them started anew, or no request came to its first token. Raises what `together` does.
    """
    both = [name for name in after if name in before and not _began_anew(before[name], after[name])]
    if not both:
        return None
    old, new = (together([look[name] for name in both]) for look in (before, after))
    return interval(old, new, source)


def _began_anew(before: Scrape, after: Scrape) -> bool:
    return any(after.values.get(name, 0.0) < value for name, value in before.values.items() if name not in _GAUGES)


def interval(before: Scrape, after: Scrape, source: str) -> MeasuredInterval | None:
    """The interval between two scrapes; None where a server started anew, or no request came to its first token."""
    if _began_anew(before, after):
        return None
    seconds = after.time - before.time
    changes = {name: value - before.values.get(name, 0.0) for name, value in after.values.items()}
    grown = {name: change for name, change in changes.items() if not math.isnan(change)}

    def mean(quantity: str) -> float | None:
        count = grown.get(f"{quantity}.count", 0.0)
        return grown[f"{quantity}.sum"] / count if count > 0 and f"{quantity}.sum" in grown else None

    def spread(quantity: str) -> MeasuredSpread:
        middle = mean(quantity)
        return MeasuredSpread(mean=middle and 1e3 * middle, p50=None if middle else _median(grown, quantity))

    def ratio(above: str, below: str) -> float | None:
        return grown[above] / grown[below] if above in grown and grown.get(below, 0.0) > 0.0 else None

    begun = grown.get("ttft.count", 0.0) + grown.get("unstreamed", 0.0) or grown.get("e2e.count") or 0.0
    counted = "ttft.count" in after.values or "e2e.count" in after.values  # else tokens alone are
    if seconds <= 0.0 or not (begun or (grown.get("output_tokens") and not counted)):
        return None
    ended = grown.get("e2e.count") or begun
    e2e, ttft, osl = (mean(name) for name in ("e2e", "ttft", "osl"))
    beyond_first = (e2e - ttft) / (osl - 1.0) if e2e and ttft and e2e > ttft and osl and osl > 1.0 else None
    gap = mean("gap") or ratio("gap_seconds", "output_tokens") or beyond_first
    first, whole = spread("ttft"), spread("e2e")
    gaps = MeasuredSpread(mean=1e3 * gap) if gap else spread("gap")
    gauges = dict[str, float]()
    for name in _GAUGES:
        levels = [value for each in (before, after) if not math.isnan(value := each.values.get(name, math.nan))]
        gauges |= {name: fmean(levels)} if levels else {}
    facts = RunFacts(
        model=after.model,
        engine=_NAMES.get(after.engine, after.engine),
        isl=mean("isl") or (begun and grown.get("prompt_tokens", 0.0) / begun) or None,
        osl=osl or (ended and grown.get("output_tokens", 0.0) / ended) or None,
        rate=begun / seconds or None,
        hits=ratio("hits", "asked"),
    )
    rates = grown.get("output_tokens", 0.0) / seconds or None, ended / seconds or None
    unbegun = grown["prompt_seconds"] / seconds + gauges.get("waiting", 0.0) if "prompt_seconds" in grown else None
    spreads = first, gaps, MeasuredSpread(), whole
    run = MeasuredRun(source, f"{after.engine} metrics", facts, *spreads, *rates, unbegun, servers=after.servers)
    preemptions, moving = grown.get("preemptions"), _moving(grown)
    told = {"preemptions": preemptions, "moving_ms": moving and 1e3 * moving}
    return MeasuredInterval(before.time, after.time, run, **gauges, **told, kv_tokens=after.kv_tokens)


def read_page(source: str, text: str) -> MeasuredRun:
    """One look at a server, as what happened since it started; for how long is not known, so it has no rate."""
    look = read_scrape(text, math.inf, source)
    found = interval(replace(look, time=0.0, values={}), look, source)
    if found is None or not (found.run.ttft.middle[1] or found.run.tpot.middle[1] or found.run.e2e.middle[1]):
        two = "record two with `rooflinekit watch URL --record FILE`, or start the server with its request metrics on"
        raise SpecError(f"{source}: is one page of {look.engine} that times no request; {two}")
    note = "one page: all since the server started, warm-up and pauses too"
    if found.run.ttft.mean is None and found.run.ttft.p50:
        note += "; TTFT is the median of its buckets, since the page has no sum"
    return replace(found.run, notes=(*look.notes, note))


def _buckets(grown: Mapping[str, float], quantity: str) -> list[tuple[float, float]]:
    name = f"{quantity}.le."
    return sorted((float(key.removeprefix(name)), value) for key, value in grown.items() if key.startswith(name))


def _median(grown: Mapping[str, float], quantity: str) -> float | None:
    """The median of a histogram [ms], linear within a bucket as Prometheus's histogram_quantile has it.

    >>> _median({"ttft.le.0.02": 13.0, "ttft.le.0.04": 97.0, "ttft.le.0.1": 140.0}, "ttft")  # the 70th of 140
    33.57142857142857
    """
    counts = _buckets(grown, quantity)
    half = counts[-1][1] / 2.0 if counts else 0.0
    for (low, below), (high, upto) in pairwise([(0.0, 0.0), *counts]):
        if 0.0 < half <= upto:
            return 1e3 * (low + (high - low) * (half - below) / (upto - below)) if high < math.inf else 1e3 * low
    return None


def _moving(grown: Mapping[str, float]) -> float | None:
    """The mean gap between tokens without stalls [s]: those of a bucket are counted at its geometric middle.

    >>> buckets = {"gap.le.0.05": 990.0, "gap.le.1.0": 990.0, "gap.le.4.0": 1000.0, "gap.le.+Inf": 1000.0}
    >>> round(_moving({"gap.sum": 50.0, "gap.count": 1000.0} | buckets), 4)  # ten stalls of some 2 s
    0.0303
    """
    counts = _buckets(grown, "gap")
    seconds, tokens = grown.get("gap.sum", 0.0), grown.get("gap.count", 0.0)
    if not counts or tokens <= 0.0:
        return None
    longest = _STALL * seconds / tokens
    for (low, below), (high, upto) in pairwise(counts):
        if low >= longest:
            stalled = upto - below
            seconds -= stalled * (math.sqrt(low * high) if high < math.inf else low)
            tokens -= stalled
    return seconds / tokens if seconds > 0.0 and tokens > 0.0 else None


def is_recording(text: str) -> bool:
    """True if a text begins as a recording does."""
    return text.startswith(SCRAPED)


def scrape_text(text: str, time: float, address: str = "") -> str:
    """A scrape as a recording holds it."""
    stamp = datetime.fromtimestamp(time, UTC).isoformat(timespec="milliseconds")
    return f"{SCRAPED}{stamp} {address}".rstrip() + f"\n{text.rstrip()}\n"


def read_recording(source: str, text: str) -> list[MeasuredInterval]:
    """The intervals of a recording, in order of time.

    Scrapes that their writer did not finish are left out. So are, with a note, those that cannot be read, and one whose
    time does not lie between those of its neighbours. Where the clock was set back, the interval of that moment is.
    """
    looks: list[tuple[float, dict[str, Scrape]]] = []
    lost, units, samples = list[str](), set[str](), list[str]()
    _, *parts = text.split(SCRAPED)
    for left, part in zip(range(len(parts) - 1, -1, -1), parts, strict=True):
        head, _, body = part.partition("\n")
        if left and not body.endswith("\n"):
            continue
        stamp, _, name = head.strip().rpartition(" ") if "://" in head else (head.strip(), "", "")
        try:
            time, unit = _moment(stamp, f"{source}: {SCRAPED.strip()}")
            scrape = read_scrape(body, time, f"{source} at {stamp}")
        except SpecError as error:
            lost.append(str(error))
            continue
        if not looks or looks[-1][0] != time:
            looks.append((time, {}))
        beside = looks[-1][1]
        if (name := name or str(len(beside))) in beside:
            lost.append(f"{source}: {SCRAPED}{head.strip()} stands there twice")
            continue
        beside[name] = scrape
        units.add(unit)
        samples += scrape.notes
    looks, odd = _in_order(looks)
    lost += (f"{source}: the scrape of {_clock(time)} does not lie between its neighbours" for time in odd)
    if len(looks) < 2:
        raise SpecError(lost[0] if lost else f"{source}: holds one scrape; a measurement needs two")
    count = len(lost) + sum(len(each) for _, each in looks)
    wrong, absent = _counted(samples, "samples are out of range"), _counted(lost, f"of {count} scrapes are left out")
    said = tuple(filter(None, (units_note(units), wrong, absent)))
    found = (between(old, new, f"{source} at {_clock(time)}") for (_, old), (time, new) in pairwise(looks))
    return [replace(each, run=replace(each.run, notes=(*each.run.notes, *said))) for each in found if each is not None]


def _counted(messages: Sequence[str], what: str) -> str:
    """The number of items, and the first of them; nothing for none."""
    return f"{len(messages)} {what}: {messages[0]}" if messages else ""


def _in_order(timed: Sequence[tuple[float, T]], slack: float = 0.0) -> tuple[list[tuple[float, T]], list[float]]:
    """Entries in order between their neighbours in time, give or take `slack` [s], and the times of what does not.

    One time that is off is a bad time. A clock that was set goes on from there.

    >>> _in_order([(0.0, "a"), (9e9, "b"), (60.0, "c"), (120.0, "d")])
    ([(0.0, 'a'), (60.0, 'c'), (120.0, 'd')], [9000000000.0])
    """
    kept, odd = list(timed[:1]), list[float]()
    for place in range(1, len(timed)):
        time, before = timed[place][0], kept[-1][0]
        after = timed[place + 1][0] if place + 1 < len(timed) else math.inf
        if before - slack <= after and not before - slack <= time <= after + slack:
            odd.append(time)
        else:
            kept.append(timed[place])
    return kept, odd


_OF_REQUESTS = ("isl", "osl", "ttft")
_MINUTE = 60.0  # seconds by which the requests of a log are gathered
_LATE = 10.0  # seconds by which lines of a log come out of order
_SET_BACK = 300.0  # seconds before the last whole minute: of no late line, but of a clock that was set back
_HOUR = 3600.0
_DAY = 24 * _HOUR  # no request takes longer
_MOST = {"isl": MOST_TOKENS, "osl": MOST_TOKENS, "cached": MOST_TOKENS, "ttft": _DAY, "e2e": _DAY, "queue": _DAY}
_CLOSE = 1.01  # two clocks
_ORDERED = (("ttft", "e2e"), ("queue", "e2e"), ("cached", "isl"))  # the first is at most the second


def is_request_log(data: object) -> bool:
    """True if a JSON line is of one request: its lengths and its time to the first token."""
    return _named(_flat(data) if isinstance(data, Mapping) else {}) == len(_OF_REQUESTS)


def _named(flat: Mapping[str, object]) -> int:
    """Number of quantities that only requests of a language model have."""
    return sum(any(name in flat for name in _names()["requests"][part]) for part in _OF_REQUESTS)


def spans(data: Mapping[str, object]) -> list[Mapping[str, object]]:
    """The spans of a line as OpenTelemetry's collector writes it (OTLP's JSON); any other line itself.

    >>> spans({"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "a"}, {"name": "b"}]}]}]})
    [{'name': 'a'}, {'name': 'b'}]
    """
    found = [data]
    for key in ("resourceSpans", "scopeSpans", "spans") if "resourceSpans" in data else ():
        lists = [each.get(key) for each in found]
        found = [each for inner in lists if isinstance(inner, list) for each in inner if isinstance(each, Mapping)]
    return found


def _flat(data: Mapping[str, object]) -> dict[str, object]:
    """A span with its attributes beside its times, whether they are a mapping or OTLP's list of keys and values."""
    inner = data.get("attributes", {})
    if isinstance(inner, Sequence):
        pairs = (each for each in inner if isinstance(each, Mapping) and isinstance(each.get("value"), Mapping))
        inner = {each.get("key"): next(iter(each["value"].values()), None) for each in pairs}
    return {**data, **(inner if isinstance(inner, Mapping) else {})}


class LoggedRequests(NamedTuple):
    """Whole requests with start and end [s], their model, and notes."""

    requests: list[dict[str, float]]
    model: str | None
    notes: tuple[str, ...]


def read_request_log(
    source: str, lines: Sequence[Mapping[str, object]], errors: Sequence[str] = ()
) -> list[MeasuredInterval]:
    """Requests, one mapping each, by the minute in which they ended; errors: what is wrong with other lines."""
    read = read_requests(source, lines)
    damaged = (_counted(errors, "lines cannot be read"),) if errors else ()
    return by_minute(source, read._replace(notes=(*read.notes, *damaged)))


def read_requests(source: str, lines: Sequence[Mapping[str, object]]) -> LoggedRequests:
    """The requests that are whole.

    Requests that lack something, as those that failed do, are left out with a note. So are those with a value out of
    range, and one whose end is an hour away from that of both neighbours. Spans of something else are without a note.
    """
    model, lost, units, found = None, list[str](), set[str](), list[tuple[float, dict[str, float]]]()
    for number, line in enumerate(lines, 1):
        fields = Fields(f"{source}, request {number}", _flat(line))
        model = model or fields.text(*_names()["model"])
        if _named(fields.data) or len(lines) == 1:
            try:
                request, unit = _request(fields)
            except SpecError as error:
                lost.append(str(error))
            else:
                units.add(unit)
                found.append((request["end"], request))
    if not found:
        raise SpecError(lost[0] if lost else f"{source}: holds no request")
    found, odd = _in_order(found, _HOUR)
    lost += (f"{source}: a request that ended {_clock(end)}, and its neighbours did not" for end in odd)
    notes = units_note(units), _counted(lost, f"of {len(lost) + len(found)} requests are left out")
    return LoggedRequests([request for _, request in found], model, tuple(filter(None, notes)))


def by_minute(source: str, read: LoggedRequests, since: float | None = None) -> list[MeasuredInterval]:
    """Requests by the minute in which they ended.

    They begin with the first, or at `since`, and end with the last: of a minute that they do not fill the rest does not
    count, and less than half a minute beside others not at all.
    """
    requests = read.requests
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
            found.append(_minute(source, (start, end), own, came, read))
    return found


class GrowingLog:
    """A log of requests that is still written; a minute is told once requests of a later one have ended."""

    def __init__(self, source: str) -> None:
        self._source, self._over = source, -math.inf
        self._model: str | None = None
        self._requests: list[dict[str, float]] = []

    def add(self, lines: Sequence[Parsed]) -> tuple[list[MeasuredInterval], tuple[str, ...]]:
        """The minutes that are over with these requests, and notes on the requests.

        Where all of them ended long before those minutes, the clock was set back, and the log begins anew. Raises what
        `read_requests` does.
        """
        requests, model, notes = read_requests(self._source, lines)
        if max(each["end"] for each in requests) < self._over - _SET_BACK:
            self._over, self._requests = -math.inf, []
            notes += (f"{self._source}: the clock was set back to {_clock(requests[0]['end'])}; it is read anew",)
        self._model, over = self._model or model, self._over
        self._requests += (each for each in requests if each["end"] > over)
        until = (max((each["end"] for each in self._requests), default=0.0) - _LATE) // _MINUTE * _MINUTE
        if until <= over or not self._requests:
            return [], notes
        read = LoggedRequests(self._requests, self._model, notes)
        found = by_minute(self._source, read, None if over == -math.inf else over)
        self._over, self._requests = until, [each for each in self._requests if each["end"] > until]
        return [each for each in found if each.end <= until], notes


def _request(fields: Fields) -> tuple[dict[str, float], str]:
    """Lengths, times and start of one request, and the unit of its start. Raises SpecError for one that it lacks."""
    known, found = _names(), dict[str, float]()
    for part, names in (known["requests"] | known["optional"]).items():
        if (number := fields.number(*names, most=_MOST[part])) is not None:
            found[part] = number
    if missing := next((part for part in known["requests"] if part not in found), None):
        raise SpecError(f"{fields.source}: has no {missing}: none of {', '.join(known['requests'][missing])}")
    for a, b in _ORDERED:
        if a in found and found[a] > _CLOSE * found[b]:
            raise SpecError(f"{fields.source}: {a} {found[a]:g} is more than {b} {found[b]:g}")
    if empty := next((part for part in ("isl", "osl") if found[part] < 1.0), None):
        raise SpecError(f"{fields.source}: {empty} is {found[empty]:g}; a request has a token in and one out")
    name = next((name for name in known["start"] if fields.data.get(name) is not None), None)
    if name is None:
        raise SpecError(f"{fields.source}: has no start: none of {', '.join(known['start'])}")
    start, unit = _moment(fields.data[name], f"{fields.source}: {name} is", "ns" if name.endswith("Nano") else "")
    return found | {"start": start, "end": start + found["e2e"]}, "s" if name.endswith("Nano") else unit


def _minute(
    source: str, within: tuple[float, float], requests: Sequence[Mapping[str, float]], came: int, read: LoggedRequests
) -> MeasuredInterval:
    """The requests that ended within a minute or a part of it, at the rate at which as many came.

    Those under way and those that wait are Little's law: their seconds over those of the minute.
    """
    start, end = within
    seconds = max(end - start, 1e-3)
    rate = len(requests) / seconds
    stay, isl, osl = (fmean(each[part] for each in requests) for part in ("e2e", "isl", "osl"))
    gaps = [1e3 * max(each["e2e"] - each["ttft"], 0.0) / (each["osl"] - 1.0) for each in requests if each["osl"] > 1.0]
    first = [1e3 * each["ttft"] for each in requests]
    cached, waits = ([each for each in requests if part in each] for part in ("cached", "queue"))
    hits = sum(each["cached"] for each in cached) / max(sum(each["isl"] for each in cached), 1.0) if cached else None
    facts = RunFacts(model=read.model, isl=isl, osl=osl, rate=came / seconds, hits=hits)
    waiting = rate * fmean(each["queue"] for each in waits) if waits else None
    ttft, tpot = MeasuredSpread(mean=fmean(first), low=min(first)), MeasuredSpread(mean=fmean(gaps) if gaps else 0.0)
    spreads = ttft, tpot, MeasuredSpread(), MeasuredSpread(mean=1e3 * stay)
    name = f"{source} at {_clock(end)}"
    run = MeasuredRun(name, "request log", facts, *spreads, rate * osl, rate, notes=read.notes)
    running = rate * stay - (waiting or 0.0)
    return MeasuredInterval(start, end, run, running, waiting, moving_ms=median(gaps) if gaps else None)


def _moment(stamp: object, where: str, unit: str = "") -> Moment:
    """A time of a number or ISO 8601. Raises SpecError."""
    try:
        return moment_of(stamp, unit)
    except ValueError as error:
        raise SpecError(f"{where} {error}") from None


def _clock(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M")
