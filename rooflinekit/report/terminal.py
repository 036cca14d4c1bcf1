"""One estimate as text: the answer first, then where the time goes, then the kernels."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from rooflinekit.estimation.results import Estimate, KernelResult, SpeculationResult, StepResult
from rooflinekit.model.types.units import format_bytes, format_count, format_time
from rooflinekit.report.table import WIDTH, aligned, markdown

__all__ = ["WIDTH", "estimate_markdown", "estimate_text"]

_KERNEL_HEADER = ["kernel", "n", "FLOP", "bytes", "FLOP/B", "time", "bound", "share", "limit"]
_INDENT = " " * 10
_MOST, _LARGEST = 1e3, 1e9  # above these, a share is a factor and a number has an exponent


def estimate_text(estimate: Estimate) -> str:
    """The whole answer for a terminal, at most 80 columns wide."""
    blocks = [
        _wrapped(_headline(estimate)),
        _answer(estimate),
        _memory(estimate),
        _speculation(estimate.speculation),
        _load(estimate),
        _causes(estimate),
        *(_kernels(title, step) for title, step in _steps(estimate)),
        _footer(estimate),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def estimate_markdown(estimate: Estimate) -> str:
    """The same as Markdown."""
    title, question = _headline(estimate)
    lines = [
        f"## {title}",
        "",
        question,
        "",
        *markdown(["", "expected", "90 %", "bound"], _times(estimate)),
        "",
    ]
    lines += ["```", *_answer(estimate)[4:], "", *_memory(estimate)]
    lines += [*_speculation(estimate.speculation), "```", ""]
    for title, step in _steps(estimate):
        lines += [f"### {title}", "", *markdown(_KERNEL_HEADER, [_row(k, step) for k in step.kernels]), ""]
    return "\n".join([*lines, *_footer(estimate)])


def _wrapped(lines: Iterable[str]) -> list[str]:
    return [part for line in lines for part in textwrap.wrap(line, WIDTH, subsequent_indent="  ")]


def _headline(estimate: Estimate) -> tuple[str, str]:
    """What runs where, and what is asked of it."""
    i = estimate.inputs
    split = " ".join(f"{key}{i[key]}" for key in ("tp", "pp", "ep", "dp") if i[key] > 1)
    machine = f"{i['gpus']} x {estimate.gpu} ({split})" if i["gpus"] > 1 else estimate.gpu
    formats = f"weights {i['weights']}, activations {i['activations']}, kv {i['kv']}"
    formats += f" {i['kv_policy']}" if i["kv_policy"] != "full" else ""
    cached = f" ({i['cached']} cached)" if i["cached"] else ""
    return (
        f"{estimate.model} on {machine}, {estimate.engine}",
        f"{_asked(estimate)}, {i['isl']} tokens in{cached}, {i['osl']} out; {formats}",
    )


def _asked(estimate: Estimate) -> str:
    if estimate.load is None:
        return f"batch {estimate.inputs['batch']}"
    return estimate.load.arrivals


def _times(estimate: Estimate) -> list[list[str]]:
    rows = []
    for name, key in (("TTFT", "ttft_ms"), ("TPOT", "tpot_ms")):
        row = [name, _ms(getattr(estimate, key))]
        if estimate.interval is not None:
            ends = estimate.interval[key]
            row += ["-" if ends is None else " – ".join(_ms(end) for end in ends), _ms(estimate.bound[key])]
        rows.append(row)
    return rows


def _load(estimate: Estimate) -> list[str]:
    """What users feel under load: percentiles, the knee, and what keeps them waiting."""
    load = estimate.load
    if load is None:
        return []
    rows = [
        [name, *(_ms(value) for value in load.percentiles[key].values())]
        for name, key in (("TTFT", "ttft_ms"), ("TPOT", "tpot_ms"), ("request", "e2e_ms"))
    ]
    knee = f"knee {_three(load.knee_rate)}" if estimate.inputs["rate"] else "closed loop"
    waits = "the queue has no end" if load.queue_ms is None else f"a request waits {_ms(load.queue_ms)}"
    facts = [
        f"load      {_three(load.rate)} requests/s ({knee}), {_three(load.running)} of {load.slots} slots running",
        f"          prompts take {load.prompt_share:.0%} of the time; {waits}",
    ]
    if load.goodput is not None:
        goals = " and ".join(f"{key[:4].upper()} {value:g} ms" for key, value in load.slo.items() if value)
        facts.append(f"          {_three(load.goodput)} requests/s meet {goals}")
    return [*facts, "", *aligned(["percentile", "P50", "P90", "P99"], rows)]


def _times_header(estimate: Estimate) -> list[str]:
    return ["", "expected", "90 % interval", "datasheet bound"] if estimate.interval else ["", "datasheet bound"]


def _answer(estimate: Estimate) -> list[str]:
    lines = aligned(_times_header(estimate), _times(estimate), gap=4)
    e = estimate
    whole = "of all requests" if e.load else "of the whole batch, its prefill included"
    speeds = [
        ["output", f"{_three(e.output_tok_s)} tok/s", whole],
        ["per GPU", f"{_three(e.output_tok_s_per_gpu)} tok/s", ""],
        ["per user", f"{_three(e.output_tok_s_per_user)} tok/s", "while decoding (1 / TPOT)"],
        ["request", _ms(e.e2e_ms), f"end to end, {e.inputs['osl']} token{'s' if e.inputs['osl'] > 1 else ''}"],
    ]
    return [*lines, "", *aligned(["", "", ""], speeds, left=(0, 2))[1:]]


def _memory(estimate: Estimate) -> list[str]:
    """What fills it; under load sequences are counted at their mean length, halfway through their answers."""
    memory = estimate.memory
    length, here = ("mean", "the mean length") if estimate.load else ("longest", "this length")
    verdict = "fits" if memory.fits else "DOES NOT FIT"
    share = memory.total_bytes / memory.capacity_bytes
    each = " on the busiest GPU" if estimate.inputs["gpus"] > 1 else ""
    parts = [
        f"weights {format_bytes(memory.weight_bytes)}",
        f"KV {format_bytes(memory.kv_bytes)}",
        f"activations {format_bytes(memory.activation_bytes)}",
        f"engine {format_bytes(memory.overhead_bytes)}",
    ]
    pool = (
        f"          KV pool {format_bytes(memory.kv_pool_bytes)}: {memory.kv_pool_tokens} tokens in "
        f"{memory.kv_blocks} blocks, {_three(memory.max_concurrency)} sequences of the {length} length"
    )
    longest = "unlimited" if memory.max_context is None else f"{memory.max_context} tokens"
    return [
        f"memory    {verdict}: {format_bytes(memory.total_bytes)} of {format_bytes(memory.capacity_bytes)} "
        f"({_percent(share)}){each}",
        *textwrap.wrap(" + ".join(parts), WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT),
        *textwrap.wrap(pool.strip(), WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT),
        f"          room for batch {memory.max_batch} at {here}, or {longest} at this batch",
    ]


def _speculation(drafted: SpeculationResult | None) -> list[str]:
    if drafted is None:
        return []
    rates = ", ".join(f"{rate:g}" for rate in drafted.acceptance)
    least, best = drafted.break_even_acceptance, drafted.best_draft_tokens
    gains = f"from acceptance {least:.2f} on" if least is not None else "never"
    text = (
        f"draft     {drafted.draft}, {_tokens(drafted.draft_tokens)} at acceptance {rates}: "
        f"{drafted.tokens_per_pass:.2f} tokens a pass of {_ms(drafted.verify_ms)} + {_ms(drafted.draft_ms)} drafting; "
        f"{drafted.speedup:.2f} x as fast as without (gains {gains}; best with {_tokens(best)})"
    )
    return textwrap.wrap(text, WIDTH, subsequent_indent=_INDENT)


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count} tokens"


def _causes(estimate: Estimate) -> list[str]:
    """How much of each step goes to what, and how well the hardware is used."""
    rows = []
    for title, step in _steps(estimate):
        row = [title.split(" (")[0], _ms(step.time_ms), *(f"{share:.0%}" for share in step.shares.values())]
        rows.append([*row, _intensity(step.intensity), f"{step.mfu:.0%}", f"{step.mbu:.0%}"])
    return aligned(["time goes to", "", *estimate.decode.shares, "FLOP/B", "MFU", "MBU"], rows)


def _steps(estimate: Estimate) -> list[tuple[str, StepResult]]:
    i = estimate.inputs
    context = f"{i['context']:.1f}".removesuffix(".0")
    return [
        (f"prefill ({1 if estimate.load else i['batch']} x {i['isl'] - i['cached']} tokens)", estimate.prefill),
        (f"decode (1 {'round' if estimate.speculation else 'step'} at context {context})", estimate.decode),
    ]


def _kernels(title: str, step: StepResult) -> list[str]:
    return [f"{title}: {_ms(step.time_ms)}", *aligned(_KERNEL_HEADER, [_row(k, step) for k in step.kernels])]


def _row(kernel: KernelResult, step: StepResult) -> list[str]:
    return [
        kernel.name,
        str(kernel.count),
        format_count(kernel.flops).replace(" ", ""),
        format_count(kernel.bytes).replace(" ", ""),
        _intensity(kernel.intensity),
        format_time(kernel.time_us / 1e6).replace(" ", ""),
        format_time(kernel.bound_us / 1e6).replace(" ", ""),
        _percent(kernel.time_us / 1e3 / step.time_ms),
        kernel.bound,
    ]


def _footer(estimate: Estimate) -> list[str]:
    if estimate.calibration:
        origin = f"calibration {estimate.calibration['name']} ({estimate.calibration['hash']})"
    else:
        origin = "level bound: datasheet roofline, nothing can be faster; no engine costs"
    lines = [f"{origin}; rooflinekit {estimate.version}"]
    for warning in estimate.warnings:
        lines += textwrap.wrap(f"note: {warning}", WIDTH, subsequent_indent="      ")
    return lines


def _percent(share: float) -> str:
    if share > _MOST:
        return f"{_three(share)} x"
    return "<1%" if 0 < share < 0.01 else f"{share:.0%}"


def _intensity(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3g}" if value < 1000 or value > _LARGEST else f"{value:.0f}"


def _ms(value: float | None) -> str:
    return "no limit" if value is None else format_time(value / 1e3)


def _three(value: float) -> str:
    return f"{value:,.0f}" if 100 <= value <= _LARGEST else f"{value:.3g}"
