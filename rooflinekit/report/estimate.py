"""One estimate: the answer first, then where the time goes, then the kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rooflinekit.estimation.results import Estimate, KernelResult, SpeculationResult, StepResult
from rooflinekit.model.traffic.question import LoadResult
from rooflinekit.model.types.units import format_bytes, format_count, format_time
from rooflinekit.report.document import Document, Facts, Section, Table, Words, footer, machine, origin, three

__all__ = ["document", "rows"]

_KERNEL_HEADER = ["kernel", "n", "FLOP", "bytes", "FLOP/B", "time", "bound", "share", "limit"]
_MOST, _LARGEST = 1e3, 1e9  # above these, a share is a factor and a number has an exponent


def document(estimate: Estimate) -> Document:
    """The whole answer."""
    e = estimate
    header = ["", "expected", "90 % interval", "datasheet bound"] if e.interval else ["", "datasheet bound"]
    whole = "of all requests" if e.load else "of the whole batch, its prefill included"
    speeds = [
        ["output", f"{three(e.output_tok_s)} tok/s", whole],
        ["per GPU", f"{three(e.output_tok_s_per_gpu)} tok/s", ""],
        ["per user", f"{three(e.output_tok_s_per_user)} tok/s", "while decoding (1 / TPOT)"],
        ["request", _ms(e.e2e_ms), f"end to end, {e.inputs['osl']} token{'s' if e.inputs['osl'] > 1 else ''}"],
    ]
    causes = ["time goes to", "", *e.decode.shares, "FLOP/B", "MFU", "MBU"]
    return [
        Section(f"{e.model} on {machine(e.gpu, e.inputs['gpus'], e.inputs)}, {e.engine}", [Words(_question(e))]),
        Section("", [Table(header, _times(e), gap=4)]),
        Section("", [Table((), speeds, left=(0, 2))]),
        Section("", [Facts(*_memory(e))]),
        *([Section("", [Facts(("draft", _drafted(e.speculation)))])] if e.speculation else []),
        *(_load(e, e.load) if e.load else ()),
        Section("", [Table(causes, [_causes(title, step) for title, step in _steps(e)])]),
        *(
            Section(f"{title}: {_ms(step.time_ms)}", [Table(_KERNEL_HEADER, [_row(k, step) for k in step.kernels])])
            for title, step in _steps(e)
        ),
        footer(origin(e.calibration, e.evidence), e.warnings, e.version),
    ]


def _question(estimate: Estimate) -> str:
    """What is asked, and in which formats."""
    i = estimate.inputs
    asked = estimate.load.arrivals if estimate.load else f"batch {i['batch']}"
    formats = f"weights {i['weights']}, activations {i['activations']}, kv {i['kv']}"
    formats += f" {i['kv_policy']}" if i["kv_policy"] != "full" else ""
    cached = f" ({i['cached']} cached)" if i["cached"] else ""
    return f"{asked}, {i['isl']} tokens in{cached}, {i['osl']} out; {formats}"


def _times(estimate: Estimate) -> list[list[str]]:
    rows = []
    for name, key in (("TTFT", "ttft_ms"), ("TPOT", "tpot_ms")):
        row = [name, _ms(getattr(estimate, key))]
        if estimate.interval is not None:
            ends = estimate.interval[key]
            row += ["-" if ends is None else " – ".join(_ms(end) for end in ends), _ms(estimate.bound[key])]
        rows.append(row)
    return rows


def _load(estimate: Estimate, load: LoadResult) -> Iterator[Section]:
    """What users feel under load: percentiles, the knee, and what keeps them waiting."""
    rows = [
        [name, *(_ms(value) for value in load.percentiles[key].values())]
        for name, key in (("TTFT", "ttft_ms"), ("TPOT", "tpot_ms"), ("request", "e2e_ms"))
    ]
    knee = f"knee {three(load.knee_rate)}" if estimate.inputs["rate"] else "closed loop"
    waits = "the queue has no end" if load.queue_ms is None else f"a request waits {_ms(load.queue_ms)}"
    facts = [
        ("load", f"{three(load.rate)} requests/s ({knee}), {three(load.running)} of {load.slots} slots running"),
        ("", f"prompts take {load.prompt_share:.0%} of the time; {waits}"),
    ]
    if load.goodput is not None:
        goals = " and ".join(f"{key[:4].upper()} {value:g} ms" for key, value in load.slo.items() if value)
        facts.append(("", f"{three(load.goodput)} requests/s meet {goals}"))
    yield Section("", [Facts(*facts)])
    yield Section("", [Table(["percentile", "P50", "P90", "P99"], rows)])
    if estimate.interval_tested:
        yield Section("", [Words(f"90 % intervals: {estimate.interval_tested}")])


def _memory(estimate: Estimate) -> list[tuple[str, str]]:
    """What fills it; under load sequences are counted at their mean length, halfway through their answers."""
    memory = estimate.memory
    length, here = ("mean", "the mean length") if estimate.load else ("longest", "this length")
    verdict = "fits" if memory.fits else "DOES NOT FIT"
    share = memory.total_bytes / memory.capacity_bytes
    each = " on the busiest GPU" if estimate.inputs["gpus"] > 1 else ""
    longest = "unlimited" if memory.max_context is None else f"{memory.max_context} tokens"
    taken, whole = format_bytes(memory.total_bytes), format_bytes(memory.capacity_bytes)
    return [
        ("memory", f"{verdict}: {taken} of {whole} ({_percent(share)}){each}"),
        ("", f"weights {format_bytes(memory.weight_bytes)} + KV {format_bytes(memory.kv_bytes)} + "
             f"activations {format_bytes(memory.activation_bytes)} + engine {format_bytes(memory.overhead_bytes)}"),
        ("", f"KV pool {format_bytes(memory.kv_pool_bytes)}: {memory.kv_pool_tokens} tokens in {memory.kv_blocks} "
             f"blocks, {three(memory.max_concurrency)} sequences of the {length} length"),
        ("", f"room for batch {memory.max_batch} at {here}, or {longest} at this batch"),
    ]  # fmt: skip


def _drafted(drafted: SpeculationResult) -> str:
    rates = ", ".join(f"{rate:g}" for rate in drafted.acceptance)
    least, best = drafted.break_even_acceptance, drafted.best_draft_tokens
    gains = f"from acceptance {least:.2f} on" if least is not None else "never"
    return (
        f"{drafted.draft}, {_tokens(drafted.draft_tokens)} at acceptance {rates}: "
        f"{drafted.tokens_per_pass:.2f} tokens a pass of {_ms(drafted.verify_ms)} + {_ms(drafted.draft_ms)} drafting; "
        f"{drafted.speedup:.2f} x as fast as without (gains {gains}; best with {_tokens(best)})"
    )


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count} tokens"


def _causes(title: str, step: StepResult) -> list[str]:
    """How much of a step goes to what, and how well the hardware is used."""
    shares = (f"{share:.0%}" for share in step.shares.values())
    uses = (_intensity(step.intensity), f"{step.mfu:.0%}", f"{step.mbu:.0%}")
    return [title.partition(" (")[0], _ms(step.time_ms), *shares, *uses]


def _steps(estimate: Estimate) -> list[tuple[str, StepResult]]:
    i = estimate.inputs
    context = f"{i['context']:.1f}".removesuffix(".0")
    return [
        (f"prefill ({1 if estimate.load else i['batch']} x {i['isl'] - i['cached']} tokens)", estimate.prefill),
        (f"decode (1 {'round' if estimate.speculation else 'step'} at context {context})", estimate.decode),
    ]


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


def _percent(share: float) -> str:
    if share > _MOST:
        return f"{three(share)} x"
    return "<1%" if 0 < share < 0.01 else f"{share:.0%}"


def _intensity(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3g}" if value < 1000 or value > _LARGEST else f"{value:.0f}"


def _ms(value: float | None) -> str:
    return "no limit" if value is None else format_time(value / 1e3)


def rows(estimate: Estimate) -> list[dict[str, Any]]:
    """Inputs and answers as one flat row."""
    return [estimate.to_row()]
