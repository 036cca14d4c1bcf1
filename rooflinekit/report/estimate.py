"""One estimate: the answer first, then where the time goes, then the kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rooflinekit.estimation.results import EnergyResult, Estimate, KernelResult, SpeculationResult, StepResult
from rooflinekit.model.traffic.question import LoadResult
from rooflinekit.model.types.units import format_bytes, format_count, format_time
from rooflinekit.report.document import (
    Document,
    Facts,
    Section,
    Table,
    Words,
    asked,
    footer,
    machine,
    ms,
    origin,
    three,
)

_KERNEL_HEADER = ["kernel", "n", "FLOP", "bytes", "FLOP/B", "time", "bound", "share", "limit"]
_MOST, _LARGEST = 1e3, 1e9  # above these, a share is a factor and a number has an exponent
_BAR = 16  # columns of a whole bar
_ENDLESS = "no limit"
_LEAST = 0.005  # share of a step that is worth a line
PARTS = {
    "weights": ("weights", "memory"), "kv_cache": ("KV cache", "memory"), "activations": ("activations", "memory"),
    "compute": ("arithmetic", "compute"), "network": ("network", "network"),
    "above_bound": ("above bound", "overhead"), "host": ("engine", "overhead"),
}  # fmt: skip
"""What the time of a step is made of: its name here, and what it waits for."""
_MOVES = {
    "weights": "weights take longest: narrower formats, or more users who share them",
    "kv_cache": "the KV cache takes longest: a narrower format, or shorter contexts",
    "activations": "activations take longest: narrower formats, or a smaller batch",
    "compute": "arithmetic takes longest: narrower formats, or a smaller batch",
    "network": "the network takes longest: fewer GPUs a replica, or faster links",
    "host": "the engine takes longest: more users, or several tokens a step",
}  # fmt: skip
_MORE = "`--kernels` shows each kernel; `rooflinekit levers` ranks what helps"
_SMALL_KERNELS = "small kernels take longest: more users fill them, or fewer GPUs a replica"


def document(estimate: Estimate, kernels: bool = False) -> Document:
    """The answer on one screen; with `kernels`, every kernel of prefill and decode below it."""
    e, i = estimate, estimate.inputs
    formats = f"weights {i['weights']}, activations {i['activations']}, kv {i['kv']}"
    policy = f" {i['kv_policy']}" if i["kv_policy"] != "full" else ""
    header = ["", "expected", "90 % interval", "datasheet bound"] if e.interval else ["", "datasheet bound"]
    return [
        Section(f"{e.model} on {machine(e.gpu, i['gpus'], i)}, {e.engine}", [Words(f"{asked(e)}; {formats}{policy}")]),
        Section("", [Table(header, _times(e), gap=4), Facts(*_speeds(e))]),
        *([Section("", [Facts(("draft", _drafted(e.speculation)))])] if e.speculation else []),
        *(_load(e, e.load) if e.load else ()),
        Section("", [_waterfall(e)]),
        Section("", [Facts(*_memory(e, kernels), *([] if kernels else (("next", _next(e)), ("", _MORE))))]),
        *(_detail(e) if kernels else ()),
        footer(origin(e.calibration, e.evidence), e.warnings, e.version),
    ]


def _detail(estimate: Estimate) -> Iterator[Section]:
    """What limits each step, and its kernels."""
    causes = ["limited by", "", *estimate.decode.shares, "FLOP/B", "MFU", "MBU"]
    rows = []
    for title, step in _steps(estimate):
        uses = (*(f"{share:.0%}" for share in step.shares.values()), _intensity(step.intensity))
        rows.append([title.partition(" (")[0], ms(step.time_ms), *uses, f"{step.mfu:.0%}", f"{step.mbu:.0%}"])
    yield Section("", [Table(causes, rows)])
    if estimate.energy:
        yield Section("", [Facts(("energy", _spent(estimate.energy)))])
    for title, step in _steps(estimate):
        rows = [_row(kernel, step) for kernel in step.kernels]
        yield Section(f"{title}: {ms(step.time_ms)}", [Table(_KERNEL_HEADER, rows)])


def _speeds(estimate: Estimate) -> list[tuple[str, str]]:
    """Rates of the deployment, of each GPU and of each user, and the time of a request."""
    e, tokens = estimate, estimate.inputs["osl"]
    each = f", {three(e.output_tok_s_per_gpu)} per GPU" if e.inputs["gpus"] > 1 else ""
    power = ""
    if e.energy:
        low, high = e.energy.interval
        power = f"; {e.energy.power_w_per_gpu:.0f} W a GPU ({low:.0f} – {high:.0f})"
        power += f", {three(e.energy.energy_per_output_token_j)} J a token"
    user = f"{three(e.output_tok_s_per_user)} tok/s per user while decoding"
    return [
        ("output", f"{three(e.output_tok_s)} tok/s{each}; {user}"),
        ("request", ms(e.e2e_ms, _ENDLESS) + (f" for {_tokens(tokens)}" if e.e2e_ms is not None else "") + power),
    ]


def _waterfall(estimate: Estimate) -> Table:
    """What the times of both steps add up from, each bar from where the one above it ends."""
    steps = (estimate.prefill, estimate.decode)
    header = ["time goes to"]
    for (title, _), step in zip(_steps(estimate), steps, strict=True):
        header += [f"{title.partition(' (')[0]} {ms(step.time_ms)}", "", ""]
    rows, ends = [], [0.0, 0.0]
    for part, (name, _) in PARTS.items():
        shares = [step.time_parts_ms[part] / step.time_ms for step in steps]
        row = [name]
        for place, (share, step) in enumerate(zip(shares, steps, strict=True)):
            time = ms(step.time_parts_ms[part]) if share >= _LEAST else ""
            row += [_bar(ends[place], ends[place] + share), time, _percent(share) if time else ""]
            ends[place] += share
        if max(shares) >= _LEAST:
            rows.append(row)
    return Table(header, rows, left=(0, 1, 4))


def _bar(start: float, end: float) -> str:
    """A bar between two shares of the width; the space before it survives where spaces collapse."""
    first, last = round(start * _BAR), round(end * _BAR)
    drawn = "█" * (last - first) or ("▏" if end - start >= _LEAST else "")
    return "\u00a0" * first + drawn if drawn else ""


def _times(estimate: Estimate) -> list[list[str]]:
    rows = []
    for name, key in (("TTFT", "ttft_ms"), ("TPOT", "tpot_ms")):
        row = [name, ms(getattr(estimate, key), _ENDLESS)]
        if estimate.interval is not None:
            ends = estimate.interval[key]
            row += ["-" if ends is None else " – ".join(ms(end, _ENDLESS) for end in ends), ms(estimate.bound[key])]
        rows.append(row)
    return rows


def _load(estimate: Estimate, load: LoadResult) -> Iterator[Section]:
    """What users feel under load: percentiles, the knee, and what keeps them waiting."""
    rows = [
        [name, *(ms(value, _ENDLESS) for value in load.percentiles[key].values())]
        for name, key in (("TTFT", "ttft_ms"), ("TPOT", "tpot_ms"), ("request", "e2e_ms"))
    ]
    knee = f"knee {three(load.knee_rate)}" if estimate.inputs["rate"] else "closed loop"
    waits = "the queue has no end" if load.queue_ms is None else f"a request waits {ms(load.queue_ms)}"
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


def _memory(estimate: Estimate, pool: bool) -> list[tuple[str, str]]:
    """What fills it; under load sequences are counted at their mean length, halfway through their answers."""
    memory = estimate.memory
    length, here = ("mean", "these lengths") if estimate.load else ("longest", "this length")
    share = memory.total_bytes / memory.capacity_bytes
    each = " on the busiest GPU" if estimate.inputs["gpus"] > 1 else ""
    longest = "unlimited" if memory.max_context is None else f"{memory.max_context} tokens"
    taken, whole = format_bytes(memory.total_bytes), format_bytes(memory.capacity_bytes)
    filled = min(round(share * _BAR), _BAR)
    facts = [
        ("memory", f"{'█' * filled}{'░' * (_BAR - filled)}  {'fits' if memory.fits else 'DOES NOT FIT'}: "
                   f"{taken} of {whole} ({_percent(share)}){each}"),
        ("", f"weights {format_bytes(memory.weight_bytes)} + KV {format_bytes(memory.kv_bytes)} + "
             f"activations {format_bytes(memory.activation_bytes)} + engine {format_bytes(memory.overhead_bytes)}"),
        ("", f"room for batch {memory.max_batch} at {here}, or {longest} at this batch"),
    ]  # fmt: skip
    if pool:
        facts.append(
            ("", f"KV pool {format_bytes(memory.kv_pool_bytes)}: {memory.kv_pool_tokens} tokens in {memory.kv_blocks} "
                 f"blocks, {three(memory.max_concurrency)} sequences of the {length} length")
        )  # fmt: skip
    return facts


def _spent(energy: EnergyResult) -> str:
    """What the joules of a token are spent on."""
    whole = energy.energy_per_output_token_j
    parts = sorted(energy.parts_j.items(), key=lambda part: -part[1])
    shares = ", ".join(f"{_SPENT[name]} {joules / whole:.0%}" for name, joules in parts if joules / whole >= _LEAST)
    return f"{three(whole)} J an output token, prompts included: {shares}"


_SPENT = {
    "weights": "weights", "cache": "KV cache", "activations": "activations", "arithmetic": "arithmetic",
    "links": "links", "running": "chip running", "idle": "idle",
}  # fmt: skip


def _next(estimate: Estimate) -> str:
    """What helps with the largest part of a token's time."""
    parts = estimate.decode.time_parts_ms
    small = parts["above_bound"] > sum(parts.values()) / 2.0
    return _SMALL_KERNELS if small else _MOVES[max(_MOVES, key=parts.__getitem__)]


def _drafted(drafted: SpeculationResult) -> str:
    rates = ", ".join(f"{rate:g}" for rate in drafted.acceptance)
    least, best = drafted.break_even_acceptance, drafted.best_draft_tokens
    gains = f"from acceptance {least:.2f} on" if least is not None else "never"
    return (
        f"{drafted.draft}, {_tokens(drafted.draft_tokens)} at acceptance {rates}: "
        f"{drafted.tokens_per_pass:.2f} tokens a pass of {ms(drafted.verify_ms)} + {ms(drafted.draft_ms)} drafting; "
        f"{drafted.speedup:.2f} x as fast as without (gains {gains}; best with {_tokens(best)})"
    )


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count} tokens"


def _steps(estimate: Estimate) -> list[tuple[str, StepResult]]:
    i = estimate.inputs
    context = f"{i['context']:.1f}".removesuffix(".0")
    prompts, tokens = 1 if estimate.load else i["batch"], i["isl"] + i["image_tokens"] - i["cached"]
    return [
        (f"prefill ({prompts} x {tokens} tokens)", estimate.prefill),
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


def rows(estimate: Estimate) -> list[dict[str, Any]]:
    """Inputs and answers as one flat row."""
    return [estimate.to_row()]
