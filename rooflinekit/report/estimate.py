"""One estimate: the answer first, then where the time goes, then the kernels."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rooflinekit.decision.sensitivity.moves import ADVISED, NONE_SUSTAINS, Advice, advice, signed_share
from rooflinekit.estimation import results
from rooflinekit.estimation.estimator import question_of
from rooflinekit.estimation.notes import fitting
from rooflinekit.model.types.answer import Json
from rooflinekit.model.types.units import format_bytes, format_count, format_time, percent
from rooflinekit.report import document as blocks
from rooflinekit.report.document import asked, ended, formats, headed, ms, three
from rooflinekit.report.request import LEAST, Request, Waterfall, counted, latencies, share_text, step_parts
from rooflinekit.specs import noun_of

_KERNEL_HEADER = ["kernel", "n", "FLOP", "bytes", "FLOP/B", "time", "bound", "share", "limit"]
_MEMORY_BAR = 16
_COMMAND = 74  # columns of a command
_ENDLESS = "no end"
_ADVISED = 3  # moves on the first screen
_HARDLY = 0.9  # of the logarithm of a width that one run leaves
_FOLDED = 0.01  # share of a step below which kernels stand in one line together
_MORE = "`rooflinekit levers` tries more; `-v` shows each kernel"


def document(estimate: results.Estimate, kernels: bool = False) -> blocks.Document:
    """The answer on one screen; with `kernels`, what else is known of both steps, and their kernels, below it."""
    e, i = estimate, estimate.inputs
    end, request = ended(e), Request.of(e)
    bars = Waterfall(f"a decode step takes {ms(e.decode.time_ms)}:", step_parts(e.decode))
    facts = blocks.Facts(*_memory(e, kernels))
    speeds = [("draft", _drafted(e.speculation))] if e.speculation else []
    speeds += _speeds(e)
    return [
        blocks.Section(headed(e), [blocks.Words(f"{asked(e)}; {formats(i)}"), *_answered(e, request)]),
        blocks.Section("", [_times(e), blocks.Facts(*_alone(e), *speeds, *_doubt(e))]),
        request.section() if request else blocks.Section("", [bars]),
        blocks.Section("", [facts, *(() if kernels else (*_next(e), *end.blocks))]),
        *((*_detail(e), end) if kernels else ()),
    ]


def others_words(
    inner: Mapping[str, Sequence[float]] | None, outer: Mapping[str, Sequence[float]] | None
) -> Iterator[str]:
    """A sentence on the times of 8 and 9 of 10 deployments of others, where there are intervals.

    >>> eight = {"ttft_ms": [80.0, 120.0], "tpot_ms": [19.0, 41.0]}
    >>> next(others_words(eight, {"ttft_ms": [70.0, 150.0], "tpot_ms": [17.0, 55.0]}))[:74]
    'In 8 of 10 deployments of others a token took 19.0 to 41.0 ms and the firs'
    """
    if inner is not None and outer is not None:
        (token, first), wide = ([between(each[f"{key}_ms"]) for key in ("tpot", "ttft")] for each in (inner, outer))
        eight = f"In 8 of 10 deployments of others a token took {token} and the first one {first}"
        yield f"{eight}; in 9 of 10 {' and '.join(wide)}."


def between(ends: Sequence[float]) -> str:
    """Two ends, with one unit where they share it.

    >>> between([19.0, 41.0]), between([800.0, 1200.0])
    ('19.0 to 41.0 ms', '800 ms to 1.20 s')
    """
    low, high = (ms(end, _ENDLESS) for end in ends)
    number, _, unit = low.partition(" ")
    return f"{number if unit and high.endswith(f' {unit}') else low} to {high}"


def _doubt(estimate: results.Estimate) -> Iterator[tuple[str, str]]:
    """The widest part of the intervals, and their ends after one run of one's own."""
    doubt = estimate.doubt
    if doubt is None:
        return
    first, token = doubt["ttft_ms"], doubt["tpot_ms"]
    same, engine = first.cause == token.cause, estimate.engine
    words = f"widest: {token.cause}" if same else f"widest in TPOT: {token.cause}; in TTFT: {first.cause}"
    unsaid = estimate.load is not None and estimate.inputs["engine_version"] is None
    yield "doubt", f"{words}; no version of {engine} is given" if unsaid else words
    if token.one_run is not None and first.one_run is not None and estimate.interval80 is not None:
        wide, left = (math.log(each[1] / each[0]) for each in (estimate.interval80["ttft_ms"], first.one_run))
        few = " (three over the range say more)" if left > _HARDLY * wide else ""
        yield "", f"after one run of your own: TPOT {between(token.one_run)}, TTFT {between(first.one_run)}{few}"


def _answered(estimate: results.Estimate, request: Request | None) -> Iterator[blocks.Words]:
    """The answer as a sentence, under load and where it does not fit."""
    e, load, memory = estimate, estimate.load, estimate.memory
    if not memory.fits:
        more = format_bytes(memory.needed_bytes - memory.available_bytes)
        little = f"{more} too little on each {noun_of(e.gpu)}"
        yield blocks.Words(f"DOES NOT FIT: {little}; the times are those it would have")
    elif load is not None and not load.stable:
        yield blocks.Words(f"OVERLOAD: {three(load.rate)}/s arrive, {three(load.knee_rate)}/s are served")
    elif request is not None:
        yield blocks.Words(request.answer, *others_words(e.interval80, e.interval))


def _alone(estimate: results.Estimate) -> Iterator[tuple[str, str]]:
    """Note on the TTFT of a static batch, beside that of one prompt alone."""
    batch, question = estimate.inputs["batch"], question_of(estimate)
    if estimate.load is None and batch > 1 and question is not None:
        alone = question.resolved.predictor.ttft(replace(question.work, batch=1.0)).expected
        yield "TTFT", f"all {batch:,} prompts at once; one alone {format_time(float(alone))}"


def _detail(estimate: results.Estimate) -> Iterator[blocks.Section]:
    """Limits of each step, times of its kernels, and tests of the intervals."""
    causes = ["limited by", "", *estimate.decode.shares, "FLOP/B", "MFU", "MBU"]
    rows = []
    for title, step in _steps(estimate):
        uses = (*(percent(share) for share in step.shares.values()), three(step.intensity))
        rows.append([title.partition(" (")[0], ms(step.time_ms), *uses, percent(step.mfu), percent(step.mbu)])
    facts = [("energy", _spent(estimate.energy, estimate.gpu))] if estimate.energy else []
    facts += [("intervals", estimate.interval_tested)] if estimate.interval_tested else []
    yield from blocks.apart(blocks.CellTable(causes, rows), blocks.Facts(*facts))
    for each in estimate.measure:
        yield blocks.Section(f"measured by {each['tool']}", [command(each["command"])])
    for title, step in _steps(estimate):
        table: blocks.Block = blocks.CellTable(_KERNEL_HEADER, _kernels(step))
        bars = [Waterfall("", step_parts(step))] if step is estimate.prefill else []
        yield blocks.Section(f"{title}: {ms(step.time_ms)}", bars or [table])
        yield from blocks.apart(table) if bars else ()


def command(words: str) -> blocks.FixedLines:
    """A command of a shell, over as many lines as it takes, each option beside its value."""
    lines = [""]
    for option in re.split(r" (?=-)", words):
        if lines[-1] and len(lines[-1]) + len(option) >= _COMMAND:
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += f" {option}" if lines[-1] else f"  {option}"
    return blocks.FixedLines(lines, "sh")


def _kernels(step: results.StepResult) -> list[list[str]]:
    """A row for each kernel that is worth one, and one for the others together."""
    shares = [kernel.time_us / 1e3 / step.time_ms for kernel in step.kernels]
    rows = [_row(kernel, step) for kernel, share in zip(step.kernels, shares, strict=True) if share >= _FOLDED]
    small = [kernel for kernel, share in zip(step.kernels, shares, strict=True) if share < _FOLDED]
    if len(small) < 2:
        return [_row(kernel, step) for kernel in step.kernels]
    names = ("flops", "bytes", "time_us", "bound_us")
    work = [sum(getattr(kernel, name) for kernel in small) for name in names]
    return [*rows, [f"{len(small)} others", "", *_numbers(work, "", step), ""]]


def _speeds(estimate: results.Estimate) -> list[tuple[str, str]]:
    """Rates of the deployment, of each GPU and of each user, and what a request takes; under load also the queue."""
    e = estimate
    each = f" ({three(e.output_tok_s_per_gpu)} per {noun_of(e.gpu)})" if e.inputs["gpus"] > 1 else ""
    words = [f"{three(e.output_tok_s)} tok/s{each}, {three(e.output_tok_s_per_user)} per user"]
    if e.load is None:
        words.append(f"{ms(e.e2e_ms)} a request")
    if e.energy:
        words.append(f"{three(e.energy.energy_per_output_token_j)} J a token (boards)")
    return [("output", "; ".join(words)), *(_load(e, e.load) if e.load else ())]


def _times(estimate: results.Estimate) -> blocks.CellTable:
    """Expected, intervals and bound of a static batch; under load mean, 80 % interval and percentiles of requests."""
    e = estimate
    spans = ["8 of 10"] if e.interval else []
    if e.load is None:
        rows = [
            [name, ms(value), *_span(e.interval80, key), *_span(e.interval, key), ms(e.bound[key])]
            for name, key, value in (("TTFT", "ttft_ms", e.ttft_ms), ("TPOT", "tpot_ms", e.tpot_ms))
        ]
        header = ["", "expected", *spans, "9 of 10", "datasheet bound"] if e.interval else ["", "datasheet bound"]
        return blocks.CellTable(header, rows if e.interval else [row[:2] for row in rows], gap=4)
    rows, marks = [], ("p50", "p90", "p95", "p99")
    for name, key in (("TTFT", "ttft_ms"), ("TPOT", "tpot_ms"), ("end to end", "e2e_ms")):
        errors, percentiles = (e.load.errors or {}).get(key, {}), e.load.percentiles[key]
        times = [getattr(e, key), *(percentiles.get(mark) for mark in marks)]
        rows += latencies(name, times, [errors.get(mark) for mark in ("mean", *marks)], _span(e.interval80, key))
    return blocks.CellTable(["", "mean", *spans, *(mark.upper() for mark in marks)], rows)


def _span(interval: Mapping[str, Sequence[float]] | None, key: str) -> list[str]:
    """An interval as a cell, where the answer has intervals."""
    if interval is None:
        return []
    ends = interval.get(key)
    return ["-" if ends is None else " – ".join(ms(end, _ENDLESS) for end in ends)]


def _load(estimate: results.Estimate, load: results.LoadResult) -> list[tuple[str, str]]:
    """Distance from saturation, played requests, and goodput."""
    knee = three(load.knee_rate)
    served = f" of at most {knee} (knee, approximate)" if load.stable else f", of which {knee} are served"
    served = served if estimate.inputs["rate"] else ""
    facts = [
        ("load", f"{three(load.rate)} requests/s{served}"),
        ("", f"{three(load.running)} of {load.slots:,} places taken; prompts {percent(load.prompt_share)} of the time"),
    ]
    if load.requests is not None:
        facts.append(("", counted(load.requests, load.warmup)))
    if load.encoders_busy is not None:
        waits = f"a request waits {ms(load.encoders_wait_ms or 0.0)} for them"
        facts.append(("", f"encoders work {percent(load.encoders_busy)} of the time; {waits}"))
    if load.goodput is not None:
        goals = " and ".join(f"{key[:4].upper()} {value:g} ms" for key, value in load.slo.items() if value)
        facts.append(("", f"{three(load.goodput)} requests/s meet {goals}"))
    return facts


def _memory(estimate: results.Estimate, detailed: bool) -> list[tuple[str, str]]:
    """Parts of the memory; under load sequences are counted at their mean length, halfway through their answers."""
    memory = estimate.memory
    length = "mean" if estimate.load else "longest"
    share = memory.total_bytes / memory.capacity_bytes
    longest = "unlimited" if memory.max_context is None else f"{memory.max_context} tokens"
    taken, whole = format_bytes(memory.total_bytes), format_bytes(memory.capacity_bytes)
    filled = min(round(share * _MEMORY_BAR), _MEMORY_BAR)
    room = "" if estimate.load else f", room for batch {memory.max_batch}"  # the load's own line counts its places
    bar = f"{'█' * filled}{'░' * (_MEMORY_BAR - filled)}  {'fits' if memory.fits else 'DOES NOT FIT'}"
    facts = [("memory", f"{bar}: {taken} of {whole} ({share_text(share)}){room}")]
    if not detailed:
        return facts
    blocks = f"{memory.kv_pool_tokens:,} tokens in {memory.kv_blocks:,} blocks"
    pool = f"KV pool {format_bytes(memory.kv_pool_bytes)}: {blocks}"
    each = f", on the busiest {noun_of(estimate.gpu)}" if estimate.inputs["gpus"] > 1 else ""
    names = {"weights": "weight", "KV": "kv", "activations": "activation", "engine": "overhead"}
    parts = (f"{name} {format_bytes(getattr(memory, f'{key}_bytes'))}" for name, key in names.items())
    return [
        *facts,
        ("", f"{' + '.join(parts)}{each}"),
        ("", f"{pool}, {int(memory.max_concurrency):,} sequences of the {length} length"),
        ("", f"at this batch a sequence has room for {longest}"),
    ]


def _spent(energy: results.EnergyResult, gpu: str) -> str:
    """The power of a board, and what the joules of a token are spent on."""
    whole = energy.energy_per_output_token_j
    parts = sorted(energy.parts_j.items(), key=lambda part: -part[1])
    named = ((_SPENT.get(name, name), joules / whole) for name, joules in parts)
    shares = ", ".join(f"{name} {percent(share)}" for name, share in named if share >= LEAST)
    low, high = energy.interval
    power = f"{energy.power_w_per_gpu:.0f} W a {noun_of(gpu)} ({low:.0f} – {high:.0f})"
    power = f"{power}, {energy.plug_w_per_gpu:.0f} W with its host"
    return f"{power}; {three(whole)} J of the boards an output token, prompts included: {shares}"


_SPENT = {"cache": "KV cache", "running": "chip running"}  # parts of the energy that have another name here


def _next(estimate: results.Estimate) -> list[blocks.Block]:
    """The best moves that were tried, each with what it changes and what it needs; or what would make it fit."""
    question = question_of(estimate)
    if not estimate.memory.fits and question is not None:
        found = fitting(question.resolved.predictor, question.work, estimate.memory.max_batch)
        return [blocks.Facts(("next", found))]
    best: dict[str, Advice] = {}
    for each in advice(estimate):
        best.setdefault(each.option, each)
    rows = [
        [option, *(signed_share((each.ratio[metric] or 1.0) - 1.0) for metric in ADVISED), ", ".join(each.needs)]
        for option, each in best.items()
    ]
    head = ["next", "TPOT", "cost", "TTFT", ""]
    why = "no change that was tried gains more than it costs"
    if estimate.load is not None and not estimate.load.stable:
        why = f"{NONE_SUSTAINS}; `rooflinekit plan` sizes a fleet"
    nothing = [] if rows else [blocks.Facts(("next", why))]
    return [blocks.CellTable(head, rows[:_ADVISED], left=(0, 4)), *nothing, blocks.Words(_MORE, indent="")]


def _drafted(drafted: results.SpeculationResult) -> str:
    rates = ", ".join(f"{rate:g}" for rate in drafted.acceptance)
    least, best = drafted.break_even_acceptance, drafted.best_draft_tokens
    gains = f"from acceptance {least:.2f} on" if least is not None else "never"
    return (
        f"{drafted.draft}, {tokens_of(drafted.draft_tokens)} at acceptance {rates}: "
        f"{drafted.tokens_per_pass:.2f} tokens a pass of {ms(drafted.verify_ms)} + {ms(drafted.draft_ms)} drafting. "
        f"{drafted.speedup:.2f} x as fast as without (gains {gains}; best with {tokens_of(best)})"
    )


def tokens_of(count: int) -> str:
    """A number of tokens in words."""
    return "1 token" if count == 1 else f"{count} tokens"


def _steps(estimate: results.Estimate) -> list[tuple[str, results.StepResult]]:
    i = estimate.inputs
    context = f"{i['context']:.1f}".removesuffix(".0")
    prompts, tokens = 1 if estimate.load else i["batch"], i["isl"] + i["image_tokens"] - i["cached"]
    return [
        (f"prefill ({prompts} x {tokens} tokens)", estimate.prefill),
        (f"decode (1 {'round' if estimate.speculation else 'step'} at context {context})", estimate.decode),
    ]


def _row(kernel: results.KernelResult, step: results.StepResult) -> list[str]:
    work = (kernel.flops, kernel.bytes, kernel.time_us, kernel.bound_us)
    return [kernel.name, str(kernel.count), *_numbers(work, three(kernel.intensity), step), kernel.bound]


def _numbers(work: Sequence[float], intensity: str, step: results.StepResult) -> list[str]:
    """Cells of FLOP, bytes, time and bound [µs] of kernels, and of their share of a step."""
    flops, moved, *times = work
    cells = [format_count(flops), format_count(moved), intensity, *(format_time(each / 1e6) for each in times)]
    return [*(text.replace(" ", "") for text in cells), share_text(times[0] / 1e3 / step.time_ms)]


def rows(estimate: results.Estimate) -> list[Json]:
    """Inputs and answers as one flat row; under load with what clients feel, by the names of `estimate_frame`."""
    load = estimate.load
    if load is None:
        return [estimate.to_row()]
    row: dict[str, Any] = {"running": load.running, "slots": load.slots, "request_rate": load.rate}
    row |= {key: getattr(load, key) for key in ("knee_rate", "prompt_share", "queue_ms", "goodput", "stable")}
    for metric, marks in load.percentiles.items():
        row |= {f"{metric.removesuffix('_ms')}_{mark}_ms": value for mark, value in marks.items()}
    for metric, parts in (("ttft", load.ttft_parts_ms), ("tpot", load.tpot_parts_ms)):
        row |= {f"{metric}_{part}_ms": value for part, value in (parts or {}).items()}
    return [estimate.to_row() | row | {"requests_played": load.requests, "makespan_s": load.makespan_s}]
