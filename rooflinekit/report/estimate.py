"""One estimate: the answer first, then where the time goes, then the kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any

from rooflinekit.estimation.results import (
    EnergyResult,
    Estimate,
    KernelResult,
    LoadResult,
    SpeculationResult,
    StepResult,
)
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.errors import RooflinekitError
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.model.types.units import format_bytes, format_count, format_time, percent
from rooflinekit.report.document import (
    WIDTH,
    Document,
    Facts,
    Section,
    Table,
    Words,
    asked,
    ended,
    formats,
    headed,
    ms,
    three,
)
from rooflinekit.specs import load_accelerator

_KERNEL_HEADER = ["kernel", "n", "FLOP", "bytes", "FLOP/B", "time", "bound", "share", "limit"]
_MOST = 1e3  # above this, a share is a factor
_BAR, _LEAST_BAR = 32, 16  # columns of a whole bar outside terminals, and of one at least
_MEMORY_BAR = 16
_ENDLESS = "no limit"
_LEAST = 0.005  # share of a step that is worth a line
_FOLDED = 0.01  # share of a step below which kernels stand in one line together
PARTS = {
    "weights": ("weights", "memory"), "kv_cache": ("KV cache", "memory"), "activations": ("activations", "memory"),
    "compute": ("arithmetic", "compute"), "network": ("network", "network"),
    "above_bound": ("above bound", "overhead"), "host": ("engine", "overhead"),
}  # fmt: skip
"""What the time of a step is made of: its name here, and what it waits for."""
_MOVES = {
    "weights": "weights take longest: {format}more users at once",
    "kv_cache": "the KV cache takes longest: {format}shorter contexts",
    "activations": "activations take longest: {format}a smaller batch",
    "compute": "arithmetic takes longest: {format}a smaller batch",
    "network": "the network takes longest: fewer GPUs a replica, or faster links",
    "host": "the engine takes longest: more users, or several tokens a step",
}  # fmt: skip
_MORE = "`rooflinekit levers` ranks what helps; `-v` shows each kernel"
_WIDE = ("fp32", "bf16", "fp16")  # formats that FP8 halves
_SMALL_KERNELS = "small kernels take longest: more users fill them, or fewer GPUs a replica"


def document(estimate: Estimate, kernels: bool = False) -> Document:
    """The answer on one screen; with `kernels`, what else is known of both steps, and their kernels, below it."""
    e, i = estimate, estimate.inputs
    end = ended(e)
    facts = Facts(*_memory(e, kernels), *([] if kernels else [("next", _next(e)), ("", _MORE)]))
    speeds = [("draft", _drafted(e.speculation))] if e.speculation else []
    speeds += _speeds(e)
    return [
        Section(headed(e), [Words(f"{asked(e)}; {formats(i)}")]),
        Section("", [_times(e), Facts(*speeds)]),
        Section("", [Waterfall(f"a decode step takes {ms(e.decode.time_ms)}:", _parts(e.decode))]),
        Section("", [facts, *(() if kernels else end.blocks)]),
        *((*_detail(e), end) if kernels else ()),
    ]


@dataclass(frozen=True)
class Waterfall:
    """What a time adds up from: a bar for each part, from where the one above it ends, as wide as there is room.

    parts: the name of each, its share, its time.
    """

    title: str
    parts: Sequence[tuple[str, float, str]]

    def _table(self, columns: int) -> Table:
        ends = [0.0, *accumulate(share for _, share, _ in self.parts)]
        rows = [
            [name, _bar(start, start + share, columns), time, _percent(share)]
            for start, (name, share, time) in zip(ends, self.parts, strict=False)
        ]
        return Table([self.title, "", "", ""], [row for row in rows if row[1]], left=(0, 1))

    def text(self, width: int = WIDTH) -> list[str]:
        """The title on a line of its own, and bars over the whole width."""
        beside = max((len(name) + len(time) for name, _, time in self.parts), default=0) + len("    100 %  ")
        table = self._table(max(width - beside, _LEAST_BAR))
        return [*filter(None, [self.title]), *Table((), table.rows, table.left).text(width)]

    def markdown(self) -> list[str]:
        """A table with bars."""
        return self._table(_BAR).markdown()

    def html(self) -> str:
        """A table with bars."""
        return self._table(_BAR).html()


def _parts(step: StepResult) -> list[tuple[str, float, str]]:
    """What the time of a step adds up from."""
    parts = ((name, step.time_parts_ms[part]) for part, (name, _) in PARTS.items())
    return [(name, time / step.time_ms, ms(time)) for name, time in parts]


def _detail(estimate: Estimate) -> Iterator[Section]:
    """What limits each step, what its kernels take, and what tests say of the intervals."""
    causes = ["limited by", "", *estimate.decode.shares, "FLOP/B", "MFU", "MBU"]
    rows = []
    for title, step in _steps(estimate):
        uses = (*(percent(share) for share in step.shares.values()), three(step.intensity))
        rows.append([title.partition(" (")[0], ms(step.time_ms), *uses, percent(step.mfu), percent(step.mbu)])
    yield Section("", [Table(causes, rows)])
    facts = [("energy", _spent(estimate.energy))] if estimate.energy else []
    facts += [("intervals", estimate.interval_tested)] if estimate.interval_tested else []
    yield Section("", [Facts(*facts)])
    for title, step in _steps(estimate):
        table = Table(_KERNEL_HEADER, _kernels(step))
        if step is estimate.prefill:
            yield Section(f"{title}: {ms(step.time_ms)}", [Waterfall("", _parts(step))])
            yield Section("", [table])
        else:
            yield Section(f"{title}: {ms(step.time_ms)}", [table])


def _kernels(step: StepResult) -> list[list[str]]:
    """A row for each kernel that is worth one, and one for the others together."""
    shares = [kernel.time_us / 1e3 / step.time_ms for kernel in step.kernels]
    rows = [_row(kernel, step) for kernel, share in zip(step.kernels, shares, strict=True) if share >= _FOLDED]
    small = [kernel for kernel, share in zip(step.kernels, shares, strict=True) if share < _FOLDED]
    if len(small) < 2:
        return [_row(kernel, step) for kernel in step.kernels]
    flops, moved, time, bound = (
        sum(getattr(kernel, name) for kernel in small) for name in ("flops", "bytes", "time_us", "bound_us")
    )
    numbers = (format_count(flops), format_count(moved), "", format_time(time / 1e6), format_time(bound / 1e6))
    share = _percent(time / 1e3 / step.time_ms)
    return [*rows, [f"{len(small)} others", "", *(text.replace(" ", "") for text in numbers), share, ""]]


def _speeds(estimate: Estimate) -> list[tuple[str, str]]:
    """Rates of the deployment, of each GPU and of each user, and what a request takes; under load also the queue."""
    e = estimate
    each = f" ({three(e.output_tok_s_per_gpu)} per GPU)" if e.inputs["gpus"] > 1 else ""
    words = [f"{three(e.output_tok_s)} tok/s{each}, {three(e.output_tok_s_per_user)} per user"]
    if e.load is None:
        words.append(f"{ms(e.e2e_ms, _ENDLESS)} a request")
    if e.energy:
        words.append(f"{three(e.energy.energy_per_output_token_j)} J a token")
    return [("output", "; ".join(words)), *(_load(e, e.load) if e.load else ())]


def _bar(start: float, end: float, columns: int) -> str:
    """A bar between two shares of the columns; the space before it survives where spaces collapse."""
    first, last = round(start * columns), round(end * columns)
    drawn = "█" * (last - first) or ("▏" if end - start >= _LEAST else "")
    return "\u00a0" * first + drawn if drawn else ""


def _times(estimate: Estimate) -> Table:
    """Expected, interval and bound; under load also percentiles, and the time of a request."""
    e = estimate
    header = ["", "expected", "90 % interval", "datasheet bound"] if e.interval else ["", "datasheet bound"]
    header += ["P50", "P90", "P99"] if e.load else []
    rows = []
    for name, key in (("TTFT", "ttft_ms"), ("TPOT", "tpot_ms"), ("request", "e2e_ms"))[: 3 if e.load else 2]:
        row = [name, ms(getattr(e, key), _ENDLESS)]
        if e.interval is not None:
            ends = e.interval.get(key)
            bound = e.bound.get(key)
            row += ["-" if ends is None else " – ".join(ms(end, _ENDLESS) for end in ends), ms(bound)]
        if e.load is not None:
            row += [ms(value, _ENDLESS) for value in e.load.percentiles[key].values()]
        rows.append(row)
    return Table(header, rows, gap=2 if e.load else 4)


_NO_WAIT = 1e-6  # ms


def _load(estimate: Estimate, load: LoadResult) -> list[tuple[str, str]]:
    """How near saturation is, what keeps users waiting, and what meets the objectives."""
    knee = f" of at most {three(load.knee_rate)} (knee)" if estimate.inputs["rate"] else ""
    waits = "the queue has no end"
    if (wait := load.queue_ms) is not None:
        waits = f"a request waits {ms(wait)}" if wait > _NO_WAIT else "no request waits"
    facts = [
        ("load", f"{three(load.rate)} requests/s{knee}; {three(load.running)} of {load.slots} slots running"),
        ("", f"prompts take {percent(load.prompt_share)} of the time; {waits}"),
    ]
    if load.encoders_busy is not None:
        waits = f"a request waits {ms(load.encoders_wait_ms or 0.0)} for them"
        facts.append(("", f"encoders work {percent(load.encoders_busy)} of the time; {waits}"))
    if load.goodput is not None:
        goals = " and ".join(f"{key[:4].upper()} {value:g} ms" for key, value in load.slo.items() if value)
        facts.append(("", f"{three(load.goodput)} requests/s meet {goals}"))
    return facts


def _memory(estimate: Estimate, detailed: bool) -> list[tuple[str, str]]:
    """What fills it; under load sequences are counted at their mean length, halfway through their answers."""
    memory = estimate.memory
    length = "mean" if estimate.load else "longest"
    share = memory.total_bytes / memory.capacity_bytes
    longest = "unlimited" if memory.max_context is None else f"{memory.max_context} tokens"
    taken, whole = format_bytes(memory.total_bytes), format_bytes(memory.capacity_bytes)
    filled = min(round(share * _MEMORY_BAR), _MEMORY_BAR)
    facts = [
        ("memory", f"{'█' * filled}{'░' * (_MEMORY_BAR - filled)}  {'fits' if memory.fits else 'DOES NOT FIT'}: "
                   f"{taken} of {whole} ({_percent(share)}), room for batch {memory.max_batch}"),
    ]  # fmt: skip
    if not detailed:
        return facts
    blocks = f"{memory.kv_pool_tokens:,} tokens in {memory.kv_blocks:,} blocks"
    pool = f"KV pool {format_bytes(memory.kv_pool_bytes)}: {blocks}"
    each = ", on the busiest GPU" if estimate.inputs["gpus"] > 1 else ""
    return [
        *facts,
        ("", f"weights {format_bytes(memory.weight_bytes)} + KV {format_bytes(memory.kv_bytes)} + "
             f"activations {format_bytes(memory.activation_bytes)} + "
             f"engine {format_bytes(memory.overhead_bytes)}{each}"),
        ("", f"{pool}, {three(memory.max_concurrency)} sequences of the {length} length"),
        ("", f"at this batch a sequence has room for {longest}"),
    ]  # fmt: skip


def _spent(energy: EnergyResult) -> str:
    """The power of a GPU, and what the joules of a token are spent on."""
    whole = energy.energy_per_output_token_j
    parts = sorted(energy.parts_j.items(), key=lambda part: -part[1])
    shares = ", ".join(
        f"{_SPENT.get(name, name)} {percent(joules / whole)}" for name, joules in parts if joules / whole >= _LEAST
    )
    low, high = energy.interval
    power = (
        f"{energy.power_w_per_gpu:.0f} W a GPU ({low:.0f} – {high:.0f}), {energy.plug_w_per_gpu:.0f} W with its host"
    )
    return f"{power}; {three(whole)} J an output token, prompts included: {shares}"


_SPENT = {"cache": "KV cache", "running": "chip running"}  # parts of the energy that have another name here


def _next(estimate: Estimate) -> str:
    """What helps with the largest part of a token's time."""
    parts, inputs = estimate.decode.time_parts_ms, estimate.inputs
    if parts["above_bound"] > sum(parts.values()) / 2.0:
        return _SMALL_KERNELS
    largest = max(_MOVES, key=parts.__getitem__)
    option = {"weights": "weights", "kv_cache": "kv"}.get(largest, "")
    wide = option and inputs[option] in _WIDE and _takes_fp8(estimate, option)
    return _MOVES[largest].format(format=f"try `--{option} fp8`, or " if wide else "narrower formats, or ")


def _takes_fp8(estimate: Estimate, option: str) -> bool:
    """Whether the deployment runs with FP8 there: weights need its arithmetic, and llama.cpp has formats of its own."""
    if estimate.engine == "llama.cpp" or option == "kv":
        return estimate.engine != "llama.cpp"
    with suppress(RooflinekitError):
        return load_accelerator(estimate.gpu).value.supports(Dtype.FP8)
    return False


def _drafted(drafted: SpeculationResult) -> str:
    rates = ", ".join(f"{rate:g}" for rate in drafted.acceptance)
    least, best = drafted.break_even_acceptance, drafted.best_draft_tokens
    gains = f"from acceptance {least:.2f} on" if least is not None else "never"
    return (
        f"{drafted.draft}, {_tokens(drafted.draft_tokens)} at acceptance {rates}: "
        f"{drafted.tokens_per_pass:.2f} tokens a pass of {ms(drafted.verify_ms)} + {ms(drafted.draft_ms)} drafting. "
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
        three(kernel.intensity),
        format_time(kernel.time_us / 1e6).replace(" ", ""),
        format_time(kernel.bound_us / 1e6).replace(" ", ""),
        _percent(kernel.time_us / 1e3 / step.time_ms),
        kernel.bound,
    ]


def _percent(share: float) -> str:
    if share > _MOST:
        return f"{three(share)} x"
    return "<1 %" if 0 < share < 0.01 else percent(share)


def rows(estimate: Estimate) -> list[dict[str, Any]]:
    """Inputs and answers as one flat row."""
    return [estimate.to_row()]
