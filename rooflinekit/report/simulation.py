"""A simulated run: what users felt first, then what the machines did."""

from __future__ import annotations

from collections.abc import Iterator

from rooflinekit.estimation.options import OwnKeywords
from rooflinekit.load.arrivals import open_arrivals
from rooflinekit.model.types.units import format_time, percent
from rooflinekit.report.document import CellTable, Document, Section, Words, apart, ended, machine, ms, three, tokens_in
from rooflinekit.report.estimate import others_words, tokens_of
from rooflinekit.report.request import Bars, Request, latencies
from rooflinekit.simulation.outcome import Outcome, ReplicaUse, Spread
from rooflinekit.specs import noun_of

_USE = ["replica", "role", "steps", "busy", "batch", "KV used", "prefix hits"]
_MOST = 32  # replicas with a row of their own
_MARKS = {"mean": "mean", "p50": "P50", "p90": "P90", "p95": "P95", "p99": "P99", "max": "max"}
_LATENCIES = {"TTFT": "ttft", "TPOT": "tpot", "ITL": "itl", "end to end": "e2e", "queue": "queue"}


def _draft(inputs: OwnKeywords) -> str:
    """The draft, where it has a name."""
    if inputs["draft"] is None:
        return ""
    rates = ", ".join(f"{rate:g}" for rate in inputs["acceptance"])
    return f"; draft {inputs['draft']}, {tokens_of(inputs['draft_tokens'])} at acceptance {rates}"


def document(outcome: Outcome) -> Document:
    """The whole answer."""
    o, i = outcome, outcome.inputs
    fleet = f"{i['replicas']:,} x " if i["replicas"] > 1 else ""
    if i["prefill_replicas"]:
        fleet = f"{i['prefill_replicas']:,} prefill and {i['replicas']:,} decode replicas of "
    if i["cells"] > 1:
        fleet = f"{i['cells']:,} cells, together {fleet}"
    asked = Words(
        f"{_load(i)}{i['policy']}, {i['token_budget']} tokens a step, at most {i['max_num_seqs']} sequences, "
        f"{i['kv_tokens']:,} tokens of cache{_draft(i)}",
        _counted(o),
    )
    rows = list[list[str]]()
    for name, key in _LATENCIES.items():
        spread: Spread = getattr(o, f"{key}_ms")
        times, errors = [getattr(spread, mark) for mark in _MARKS], [spread.errors.get(mark) for mark in _MARKS]
        rows += latencies(name, times, errors)
    request, noun = Request.of(o), noun_of(o.gpu)
    alone = o.output_tok_s_per_gpu == o.output_tok_s
    each_gpu = "" if alone else f"{three(o.output_tok_s_per_gpu)} tok/s a {noun}"
    rates = [["output", f"{three(o.output_tok_s)} tok/s", each_gpu], ["requests", f"{three(o.request_rate)} /s", ""]]
    if o.power_w_per_gpu is not None:
        joules = f"{three(o.energy_per_output_token_j)} J a token (boards)"
        rates.append(["power", f"{o.power_w_per_gpu:.0f} W a {noun}", joules])
    if o.goodput is not None:
        rates.append(["goodput", f"{three(o.goodput_rate)} /s", f"{percent(o.goodput, 1)} meet the objective"])
    shown = o.replicas if len(o.replicas) <= _MOST else ReplicaUse.means(o.replicas)
    use = []
    for number, each in enumerate(shown):
        who = [str(number) if each.replicas == 1 else f"{each.replicas:,}, mean", each.role, f"{each.steps:,}"]
        work = [percent(each.utilisation), f"{each.mean_batch:.1f}", percent(each.kv_use)]
        hits = "-" if each.prefix_hit_rate is None else percent(each.prefix_hit_rate, 1)
        use.append([*who, *work, hits, *(percent(share, 1) for share in each.tiers.values())])
    tiers = [f"from {name}" for name in o.replicas[0].tiers]
    stopped = "; INTERRUPTED, the results are of what was done" if o.interrupted else ""
    if request:
        several = o.tpot_ms.mean is not None  # else no answer has a second token
        asked = Words(*asked.lines, request.answer, *(others_words(o.interval80, o.interval) if several else ()))
    return [
        Section(f"{o.model} on {fleet}{machine(o.gpu, i['gpus'], i)}, {o.engine}", [asked]),
        Section("", [CellTable(["", *_MARKS.values()], rows)]),
        *([request.section()] if request else ()),
        *_histogram(o),
        *apart(CellTable((), rates, left=(0, 2)), CellTable([*_USE, *tiers], use, left=(0, 1))),
        ended(o, stopped),
    ]


def _histogram(outcome: Outcome) -> Iterator[Section]:
    """First tokens of the requests that count, where there are several."""
    bins = outcome.ttft_histogram
    if len(bins) < 2:
        return
    whole = sum(each.requests for each in bins)
    parts = [
        (f"{ms(each.above_ms)} – {ms(each.upto_ms)}", each.requests / whole, f"{each.requests:,}") for each in bins
    ]
    yield Section("", [Bars(f"first tokens of {whole:,} requests:", parts)])


def _counted(outcome: Outcome) -> str:
    """Counts of the requests by fate; what happened to none is left out."""
    counts = outcome.requests
    arrived = f"{counts.arrived:,} request{'' if counts.arrived == 1 else 's'}"
    parts = [f"{arrived} in {format_time(outcome.duration_s)}: {counts.finished:,} finished"]
    parts += [f"{number:,} {name}" for name in ("rejected", "cut") if (number := getattr(counts, name))]
    parts += [f"{counts.preemptions:,} preemptions"] if counts.preemptions else []
    parts += [f"statistics over {counts.measured:,}"] if counts.measured != counts.arrived else []
    return ", ".join(parts)


def _load(asked: OwnKeywords) -> str:
    """Arrivals and lengths of requests; empty where a program made them."""
    if "isl" not in asked:
        return ""
    if asked["trace"] is not None:
        speed = "" if asked["speed"] == 1.0 else f" {asked['speed']:g} times as fast"
        return f"trace {asked['trace']}{speed}; "
    if asked["sessions"] is not None:
        many = f"{asked['concurrency']} at a time" if asked["rate"] is None else f"{asked['rate']:g} requests/s"
        return f"sessions {asked['sessions']}, {many}, {asked['osl']} tokens out; "
    if asked["concurrency"] is not None:
        comes = f"closed loop of {asked['concurrency']} user{'s' if asked['concurrency'] > 1 else ''}"
    elif asked["arrivals"] is not None:
        comes = str(asked["arrivals"])
    else:
        comes = open_arrivals(asked["rate"], asked["cv"])
    return f"{comes}, {tokens_in(asked)}, {asked['osl']} out; "
