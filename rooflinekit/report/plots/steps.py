"""The time of a step in its parts, its bytes, and the memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke

from rooflinekit.estimation.results import Estimate, KernelResult, StepResult
from rooflinekit.model.types.units import format_bytes, format_time
from rooflinekit.report.look import BYTES, HATCHES, QUANTITIES, STEP, quantity_of
from rooflinekit.report.plots.style import Picture, Theme, headed, label_ticks, legend, note, shortened

_MOST = 10  # kernels with a bar of their own
_INSIDE = 0.13  # share of a bar that holds a word
_LETTERS = 42  # of a bar over half a picture
_LONG = 2e3  # ms: longer steps are drawn in seconds


def time_spent(estimate: Estimate, theme: Theme) -> Picture:
    """Each step in its parts, and its kernels: the bound solid, the time above it pale."""
    frame = headed("Time breakdown", estimate, theme)
    figure = frame.sheet(7.2, 4.4)
    grid = GridSpec(3, 2, figure=figure, height_ratios=(0.01, 1, 8))
    head = figure.add_subplot(grid[0, :])
    head.set_title(shortened(frame.subject))
    head.set_axis_off()
    steps, parts = (("prefill", estimate.prefill), ("decode step", estimate.decode)), list[str]()
    for column, (name, step) in enumerate(steps):
        strip = figure.add_subplot(grid[1, column])
        _strip(strip, step, theme)
        strip.set_title(f"{name}: {format_time(step.time_ms / 1e3)}, bound {format_time(step.bound_ms / 1e3)}")
        _kernel_bars(figure.add_subplot(grid[2, column]), step, theme)
        largest = max(step.kernels, key=lambda kernel: kernel.time_us)
        shares = ", ".join(
            f"{STEP[part].name} {100 * time / step.time_ms:.0f} %"
            for part, time in step.time_parts_ms.items()
            if time >= 0.005 * step.time_ms
        )
        parts.append(f"{name}: {shares}; the largest kernel is {largest.name}.")
    _quantities_legend(figure, [step for _, step in steps], theme)
    words = f"Time of {estimate.model} on {estimate.gpu} in its parts. {' '.join(parts)}"
    return Picture("time", frame.title, words, figure, theme)


def _strip(axes: Axes, step: StepResult, theme: Theme) -> None:
    """The parts of a step in one bar, each with its name where there is room."""
    whole = sum(step.time_parts_ms.values())
    shares = {STEP[part]: time / whole for part, time in step.time_parts_ms.items()}
    for (part, share), end in zip(shares.items(), accumulate(shares.values()), strict=True):
        color = theme.tint(part.tint)
        axes.barh(0, share, left=end - share, color=color, edgecolor=theme.paper, lw=0.8, height=0.8, gid=part.tint)
        if share >= _INSIDE:
            number = f"{100 * share:.0f} %"
            words = f"{part.name} {number}" if len(f"{part.name} {number}") < _LETTERS * share else number
            axes.text(end - share / 2, 0, words, ha="center", va="center", fontsize=7, color=theme.on(color))
    axes.set(xlim=(0, 1), ylim=(-0.5, 0.5))
    axes.set_axis_off()


def _kernel_bars(axes: Axes, step: StepResult, theme: Theme) -> None:
    """The largest kernels, the largest on top, and all others together."""
    ranked = sorted(step.kernels, key=lambda kernel: -kernel.time_us)
    shown, rest = ranked[:_MOST], ranked[_MOST:]
    for place, kernel in enumerate(shown):
        _bar(axes, place, kernel, theme)
    names = [kernel.name for kernel in shown]
    if rest:
        total = sum(kernel.time_us for kernel in rest)
        axes.barh(len(shown), total / 1e3, color=theme.grid, gid="others")
        _time_label(axes, len(shown), total, theme)
        names.append(f"{len(rest)} others")
    label_ticks(axes.yaxis, names)
    axes.invert_yaxis()
    most = max(kernel.time_us for kernel in shown) / 1e3 * 1.22
    axes.set_xlim(0, most)
    axes.grid(False, axis="y")
    unit, size = ("s", 1e3) if most > _LONG else ("ms", 1.0)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / size:,g}")
    axes.set_xlabel(f"time of all launches in a step [{unit}]")
    axes.tick_params("y", labelsize=7)


def _quantities_legend(figure: Figure, steps: Sequence[StepResult], theme: Theme) -> None:
    """Hues and hatches, once for both phases."""
    kernels = [kernel for step in steps for kernel in step.kernels]
    shown = {STEP[part].tint for step in steps for part in step.time_parts_ms} | set(map(quantity_of, kernels))
    handles = [Patch(color=theme.tint(each), label=name) for each, name in QUANTITIES.items() if each in shown]
    limits = {each.bound for each in kernels}
    handles += [
        Patch(facecolor=theme.grid, edgecolor=theme.soft, hatch=2 * hatch, label=f"{limit}-bound", lw=0)
        for limit, hatch in HATCHES.items()
        if hatch and limit in limits
    ]
    narrow = {"handlelength": 1.0, "columnspacing": 1.0, "handletextpad": 0.3}
    figure.legend(handles=handles, loc="outside upper right", ncols=5, fontsize=6.5, **narrow)


def _bar(axes: Axes, place: int, kernel: KernelResult, theme: Theme) -> None:
    color, least = theme.tint(quantity_of(kernel)), min(kernel.bound_us, kernel.time_us)
    above, hatch = (kernel.time_us - least) / 1e3, HATCHES[kernel.bound]
    axes.barh(place, least / 1e3, color=color, gid=f"bound-{kernel.name}")
    axes.barh(
        place, kernel.time_us / 1e3, fc="none", ec=theme.paper, hatch=hatch, lw=0, zorder=3, gid=f"limit-{kernel.name}"
    )
    axes.barh(place, above, left=least / 1e3, color=color, alpha=0.4, lw=0, gid=f"above-{kernel.name}")
    _time_label(axes, place, kernel.time_us, theme)


def _time_label(axes: Axes, place: int, time_us: float, theme: Theme) -> None:
    note(axes, format_time(time_us / 1e6), (time_us / 1e3, place), (3, 0), va="center", color=theme.soft)


def bytes_by_class(step: StepResult) -> dict[str, float]:
    """Memory traffic and sent bytes of one step by class [B]."""
    return {
        "weights": sum(kernel.weight_bytes for kernel in step.kernels),
        "cache": sum(kernel.kv_read_bytes + kernel.kv_write_bytes for kernel in step.kernels),
        "activations": sum(kernel.activation_bytes for kernel in step.kernels),
        "network": sum(kernel.network_bytes for kernel in step.kernels),
    }


def bytes_read(estimate: Estimate, theme: Theme) -> Picture:
    """Bytes that cross the memory in a step: weights, keys and values, activations; and what is sent."""
    frame = headed("Bytes of one step on one GPU", estimate, theme)
    figure, axes = frame.panels(7.2, 3.2, 2, ncols=1)
    said, drawn = [], set[str]()
    for panel, (name, step) in zip(axes, (("prefill", estimate.prefill), ("decode", estimate.decode)), strict=True):
        parts = {kind: amount for kind, amount in bytes_by_class(step).items() if amount}
        drawn |= parts.keys()
        _stack(panel, parts, sum(parts.values()), theme)
        label_ticks(panel.yaxis, [name])
        panel.set_xlim(0, sum(parts.values()) / 1e9 * 1.02)
        said.append(
            f"{name}: " + ", ".join(f"{QUANTITIES[kind]} {format_bytes(amount)}" for kind, amount in parts.items())
        )
    axes[1].set_xlabel("bytes in a step [GB]")
    axes[0].set_title(f"{shortened(frame.subject)}\n\n{said[0]}", pad=18)
    axes[1].set_title(said[1])
    shown = [kind for kind in QUANTITIES if kind in drawn]
    legend(axes[0], handles=[Patch(color=theme.tint(kind), label=QUANTITIES[kind]) for kind in shown])
    words = f"Bytes of a step of {estimate.model} on {estimate.gpu}. {'; '.join(said)}."
    return Picture("bytes", frame.title, words, figure, theme)


def _stack(axes: Axes, parts: dict[str, float], across: float, theme: Theme) -> None:
    """One horizontal bar in GB, its parts named inside where there is room; `across` is what the axis spans [B]."""
    left = 0.0
    for kind, amount in parts.items():
        color = theme.tint(kind)
        axes.barh(0, amount / 1e9, left=left / 1e9, color=color, edgecolor=theme.paper, lw=0.8, height=0.7, gid=kind)
        if amount >= _INSIDE * across:
            words = f"{QUANTITIES[kind]}\n{format_bytes(amount)}"
            axes.text((left + amount / 2) / 1e9, 0, words, ha="center", va="center", fontsize=7, color=theme.on(color))
        left += amount
    axes.set_ylim(-0.5, 0.5)
    axes.grid(False, axis="y")


def memory(estimate: Estimate, theme: Theme) -> Picture:
    """Parts of one accelerator's memory, room for more sequences, and the capacity."""
    frame = headed("Memory of one GPU", estimate, theme)
    figure, (axes,) = frame.panels(7.2, 2.7)
    m = estimate.memory
    sizes = m.weight_bytes, m.kv_bytes, m.activation_bytes, m.overhead_bytes
    parts = dict(zip((*BYTES, "engine"), sizes, strict=True))
    end = max(m.capacity_bytes, m.total_bytes) / 1e9
    _stack(axes, parts, 1e9 * end, theme)
    free = max(m.capacity_bytes - m.total_bytes, 0.0)
    if m.fits and free:
        axes.barh(0, free / 1e9, left=m.total_bytes / 1e9, facecolor="none", edgecolor=theme.tint("cache"),
                  hatch="////", height=0.7, lw=0.5, gid="free")  # fmt: skip
        if free / 1e9 > _INSIDE * end:
            box = {"facecolor": theme.paper, "edgecolor": "none", "pad": 1.5}
            words = f"free\n{format_bytes(free)}"
            axes.text((m.total_bytes + free / 2) / 1e9, 0, words, ha="center", va="center", fontsize=7, bbox=box)
    halo = [withStroke(linewidth=3.4, foreground=theme.paper)]
    axes.axvline(m.capacity_bytes / 1e9, color=theme.ink, lw=1.4, gid="capacity", path_effects=halo)
    side = "right" if m.capacity_bytes / 1e9 > end / 2 else "left"
    axes.text(m.capacity_bytes / 1e9, 0.42, f" capacity {format_bytes(m.capacity_bytes)} ", ha=side, fontsize=7)
    axes.set(xlim=(0, end * 1.03), ylim=(-0.45, 0.62), xlabel="memory [GB]", yticks=[])
    told = {kind: f"{QUANTITIES[kind]} {format_bytes(size)}" for kind, size in parts.items()}
    legend(axes, handles=[Patch(color=theme.tint(kind), label=words) for kind, words in told.items()])
    length = "these lengths" if estimate.load else "this length"
    verdict = f"room for batch {m.max_batch:,} at {length}" if m.fits else "DOES NOT FIT"
    axes.set_title(f"{shortened(frame.subject)}\n{format_bytes(m.total_bytes)} taken: {verdict}", pad=18)
    words = f"{', '.join(told.values())}, of {format_bytes(m.capacity_bytes)}; {verdict}."
    return Picture("memory", frame.title, f"Memory of {estimate.model} on {estimate.gpu}: {words}", figure, theme)
