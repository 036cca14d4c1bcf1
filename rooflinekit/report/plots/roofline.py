"""The roofline (Williams et al. 2009): kernels below what the accelerator can do, and decode steps over the batch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from rooflinekit.estimation.results import Estimate, StepResult
from rooflinekit.model.power import arithmetic_energy, limited_energy, running_energy, traffic_energy
from rooflinekit.model.types.dtype import parse_dtype
from rooflinekit.model.types.errors import InputError
from rooflinekit.model.types.numeric import Array
from rooflinekit.model.types.units import format_rate
from rooflinekit.report.look import BYTES, QUANTITIES, SHAPES, quantity_of
from rooflinekit.report.plots import style
from rooflinekit.report.plots.labels import Label, along, end_labels, place
from rooflinekit.report.plots.style import Frame, Picture, Theme, decades, headed, note, scale_text
from rooflinekit.specs.calibration.last_cache import LastCache

_SMALL = 0.005  # of a step's time: less is not drawn
_NAMED = 0.03
_NEAR = 0.14  # decades within which points share a label


@dataclass(frozen=True)
class KernelPoint:
    """A kernel: FLOP per byte, FLOP per second, share of its step's time, and the quantity that takes most of it."""

    step: str
    name: str
    intensity: float
    rate: float
    share: float
    quantity: str


@dataclass(frozen=True)
class Roofs:
    """Rates of the accelerator as the answer's provenance has them [FLOP/s, B/s]."""

    peaks: dict[str, float]
    memory: float
    cache: LastCache | None  #: where the calibration tells it
    links: float | None

    @classmethod
    def of(cls, estimate: Estimate) -> Roofs:
        """Read them. Peaks are those under the power cap, if there is one."""
        known = {entry.quantity: entry.value for entry in estimate.provenance}
        clock = known.get("power cap: clock over the clock at rated power", 1.0)
        dense = "compute.dense."
        peaks = {key.removeprefix(dense): clock * value for key, value in known.items() if key.startswith(dense)}
        cache = LastCache.among(estimate.provenance)
        memory = known["memory.bandwidth"]
        return cls(peaks, memory, cache, known.get("links.bandwidth"))

    def peak(self, dtype: str) -> float:
        """Peak of the units that compute in a format [FLOP/s]."""
        return self.peaks[parse_dtype(dtype).unit.value]


def points(estimate: Estimate) -> list[KernelPoint]:
    """Kernels that do arithmetic and take at least half a percent of their step's time, largest first."""
    found = []
    for name, step in _steps(estimate):
        for each in step.kernels:
            share = each.time_us / 1e3 / step.time_ms
            if each.intensity and share > _SMALL:
                rate = each.flops / each.time_us * 1e6
                found.append(KernelPoint(name, each.name, each.intensity, rate, share, quantity_of(each)))
    return sorted(found, key=lambda point: -point.share)


def _steps(estimate: Estimate) -> tuple[tuple[str, StepResult], ...]:
    return ("prefill", estimate.prefill), ("decode", estimate.decode)


def roofline(estimate: Estimate, theme: Theme) -> Picture:
    """FLOP/s over FLOP/B, log-log; area is share of the step's time, hue the quantity that takes most of it."""
    frame = headed("Roofline: rate of each kernel", estimate, theme)
    figure, (axes,) = frame.panels(7.2, 4.6)
    roofs, marks = Roofs.of(estimate), points(estimate)
    used = {kernel.dtype for _, step in _steps(estimate) for kernel in step.kernels if kernel.flops}
    peaks = {roofs.peak(name) for name in used}
    ridge = max(peaks) / roofs.memory
    _axes(axes, marks, roofs, max(peaks))
    for mark in marks:
        _scatter(axes, mark, mark.rate, theme)
    whole = _whole_steps(axes, estimate, theme)
    _legend(axes, {mark.quantity for mark in marks}, theme)
    _draw_roofs(axes, roofs, peaks, theme)
    place(axes, [*_names(marks, theme), *whole])
    return Picture("roofline", frame.title, _description(estimate, ridge), figure, theme)


def _scatter(axes: Axes, mark: KernelPoint, y: float, theme: Theme) -> None:
    axes.scatter(mark.intensity, y, s=12 + 300 * mark.share, marker=SHAPES[mark.step][0], edgecolors=theme.ink,
                 color=theme.tint(mark.quantity), linewidths=0.6, zorder=3, gid=f"{mark.step}-{mark.name}")  # fmt: skip


def _axes(axes: Axes, marks: Sequence[KernelPoint], roofs: Roofs, peak: float) -> None:
    ridge = peak / roofs.memory
    low, high = min([m.intensity for m in marks] + [0.5]), max([m.intensity for m in marks] + [10 * ridge])
    left, right = 10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high) + 0.05)
    bottom = 10 ** math.floor(math.log10(min([m.rate for m in marks] + [left * roofs.memory])) - 0.1)
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(bottom, 4 * max(roofs.peaks.values())))
    decades(axes.xaxis, scale_text)
    decades(axes.yaxis, scale_text)
    axes.set_xlabel("arithmetic per byte of memory traffic [FLOP/B]")
    axes.set_ylabel("rate of arithmetic [FLOP/s]")


def _draw_roofs(axes: Axes, roofs: Roofs, used: set[float], theme: Theme) -> None:
    """Roofs at datasheet rates; those that no kernel here works under are thin. That of the links where steps send."""
    right = axes.get_xlim()[1]
    ink, soft, top = theme.ink, theme.soft, max(used)
    for rate in sorted(set(roofs.peaks.values())):
        names = "/".join(name for name, peak in roofs.peaks.items() if peak == rate)
        strong, start = rate in used, rate / roofs.memory
        axes.plot([start, right], [rate, rate], color=ink if strong else soft, lw=1.4 if strong else 0.5, gid="peak")
        if strong or rate > top or not used & {rate}:
            words, tint = f"{names} {format_rate(rate, 'FLOP/s')}", ink if strong else soft
            note(axes, words, (right, rate), (3, 0), va="center", color=tint, annotation_clip=False)
    highest = max(roofs.peaks.values())
    _slope(axes, "HBM", roofs.memory, top, color=ink, lw=1.4)
    if highest > top:
        axes.plot([top / roofs.memory, highest / roofs.memory], [top, highest], color=soft, lw=0.5)
    if roofs.cache:
        _slope(axes, "L2", roofs.cache.rate, top, f", fitted to {roofs.cache.fitted_to}", color=soft, lw=0.5)
    if roofs.links and _sent(axes):
        _slope(axes, "per byte sent: links", roofs.links, highest, color=theme.tint("network"), lw=1.0)
    ridge = top / roofs.memory
    axes.plot([ridge, ridge], [axes.get_ylim()[0], top], color=soft, lw=0.8, ls=(0, (4, 3)), gid="ridge")
    axes.text(ridge / 1.1, axes.get_ylim()[0] * 1.3, f"ridge {ridge:.0f} FLOP/B", fontsize=7, color=soft, ha="right")


def _slope(axes: Axes, name: str, rate: float, top: float, more: str = "", **line: Any) -> None:
    """A roof of so many bytes a second up to the rate `top`, with its name along it."""
    left = axes.get_xlim()[0]
    axes.plot([left, top / rate], [left * rate, top], gid=f"slope {name}", **line)
    start = 1.25 * max(left, axes.get_ylim()[0] / rate)
    words = f"{name} {format_rate(rate, 'B/s')}{more}"
    along(axes, Label(words, start, start * rate, axes.xaxis.label.get_color(), 6.5), (10 * start, 10 * start * rate))


def _whole_steps(axes: Axes, estimate: Estimate, theme: Theme) -> list[Label]:
    """Each step as one point; with a network, also over the bytes it sends."""
    named = []
    for name, step in _steps(estimate):
        rate = step.flops / step.time_ms * 1e3
        axes.plot(step.intensity, rate, marker="*", ms=10, mfc=theme.paper, mec=theme.ink, mew=0.9, ls="", zorder=4,
                  gid=f"{name}-step")  # fmt: skip
        named.append(Label(f"{name} step", step.intensity, rate, theme.ink, 7.5))
        sent = sum(kernel.network_bytes for kernel in step.kernels)
        if sent and axes.get_xlim()[0] < step.flops / sent < axes.get_xlim()[1]:
            axes.plot(step.flops / sent, rate, marker="D", ms=5, mfc=theme.tint("network"), mec=theme.ink, mew=0.6,
                      ls="", zorder=4, gid=f"{name}-sent")  # fmt: skip
    return named


def _sent(axes: Axes) -> bool:
    """True if a step stands over the bytes that it sends."""
    return any(str(line.get_gid()).endswith("-sent") for line in axes.lines)


def _names(marks: Sequence[KernelPoint], theme: Theme) -> Iterator[Label]:
    """One label for kernels that lie together; the largest speaks for them."""
    left = [mark for mark in marks if mark.share >= _NAMED]
    while left:
        first = left[0]
        near = [
            mark
            for mark in left
            if mark.step == first.step
            and max(abs(math.log10(mark.intensity / first.intensity)), abs(math.log10(mark.rate / first.rate))) < _NEAR
        ]
        left = [mark for mark in left if mark not in near]
        others = f" and {len(near) - 2} more" if len(near) > 2 else ""
        words = ", ".join(mark.name for mark in near[:2]) + others
        yield Label(words, first.intensity, first.rate, theme.ink, 6.5)


def _legend(axes: Axes, quantities: set[str], theme: Theme, whole: bool = True) -> None:
    def mark(shape: str, fill: str, words: str, size: float = 6) -> Line2D:
        return Line2D([], [], ls="", marker=shape, ms=size, mfc=fill, mec=theme.ink, mew=0.6, label=words)

    entries = [mark(shape, theme.paper, f"{phase} kernel") for phase, (shape, _) in SHAPES.items()]
    entries += [mark("*", theme.paper, "whole step", 9)] if whole else []
    if _sent(axes):
        entries += [mark("D", theme.tint("network"), "whole step, per byte sent", 5)]
    entries += [
        mark("o", theme.tint(each), f"reads {name}" if each in BYTES else name)
        for each, name in QUANTITIES.items()
        if each in quantities
    ]
    axes.legend(handles=entries, loc="lower left", bbox_to_anchor=(1.0, 0.0), fontsize=6.5, handletextpad=0.2,
                title="area: share of the step", title_fontsize=6.5, labelspacing=0.35, alignment="left")  # fmt: skip


def _description(estimate: Estimate, ridge: float) -> str:
    steps = " ".join(
        f"The {name} step does {step.intensity:.3g} FLOP per byte and is limited by {step.bound}."
        for name, step in _steps(estimate)
    )
    return f"Roofline of {estimate.model} on {estimate.gpu}: the ridge is at {ridge:.0f} FLOP per byte. {steps}"


def energy_roofline(estimate: Estimate, theme: Theme) -> Picture:
    """Joules of a FLOP over FLOP/B of each kernel, above what its board takes at datasheet rates (Choi et al. 2013)."""
    if estimate.energy is None:
        raise InputError(f"{estimate.gpu} has no rated power in its file: its energy cannot be drawn")
    frame = headed("Energy roofline: joules of a FLOP", estimate, theme)
    figure, (axes,) = frame.panels(7.2, 4.6)
    marks = [
        (point, kernel.energy_uj / 1e6 / kernel.flops)
        for name, step in _steps(estimate)
        for kernel in step.kernels
        for point in points(estimate)
        if (point.step, point.name) == (name, kernel.name) and kernel.energy_uj
    ]
    used = {kernel.dtype for _, step in _steps(estimate) for kernel in step.kernels if kernel.flops}
    intensities = np.geomspace(0.1, 1e4, 101)
    lines = {name: energy_line(estimate, name, intensities) for name in sorted(used)}
    for name, line in lines.items():
        axes.plot(intensities, line, color=theme.ink, lw=1.2, gid=f"arch {name}")
        note(axes, name, (intensities[-1], line[-1]), (-3, -9), ha="right")
    for mark, joules in marks:
        _scatter(axes, mark, joules, theme)
    axes.set(xscale="log", yscale="log", xlim=(0.1, 1e4))
    axes.set_xlabel("arithmetic per byte of memory traffic [FLOP/B]")
    axes.set_ylabel("energy of a FLOP, the board included [J]")
    decades(axes.xaxis, scale_text)
    decades(axes.yaxis, lambda joules: f"{joules * 1e12:g} pJ")
    _legend(axes, {mark.quantity for mark, _ in marks}, theme, whole=False)
    place(axes, [replace(label, y=joules) for mark, joules in marks for label in _names([mark], theme)])
    least = min(float(line[-1]) for line in lines.values())
    words = f"Energy roofline of {estimate.model} on {estimate.gpu}: a FLOP takes {least * 1e12:.2g} pJ at the least."
    return Picture("energy", frame.title, words, figure, theme)


def energy_line(estimate: Estimate, dtype: str, intensity: Array) -> Array:
    """Least energy of a FLOP at datasheet rates: arithmetic, bytes, and the board for as long [J]."""
    known = {entry.quantity.removeprefix("power."): entry.value for entry in estimate.provenance}
    roofs, unit = Roofs.of(estimate), parse_dtype(dtype).unit.value
    each = next(known[name] for name in (f"flop.{unit}", "flop.bf16", "flop.fp16", "flop.fp32") if name in known)
    time = np.maximum(1.0 / roofs.peak(dtype), 1.0 / (intensity * roofs.memory))
    asked = (
        arithmetic_energy(1.0, each, 0.0, 1.0)
        + traffic_energy(1.0 / intensity, known["memory"])
        + running_energy(known["active"], known["idle"], time, 0.0)
    )
    limit = estimate.energy.limit_w if estimate.energy else math.inf
    return np.asarray(limited_energy(asked, known["held"], limit, time))


def intensity(estimates: Sequence[Estimate], theme: Theme) -> Picture:
    """FLOP per byte of whole decode steps, one line a context, and of their matrices, below the ridge."""
    if len({(each.model, each.gpu, each.inputs["weights"]) for each in estimates}) != 1:
        raise InputError("intensity takes estimates of one model on one accelerator, in one format")
    first, estimates = estimates[0], sorted(estimates, key=lambda each: each.inputs["batch"])
    contexts = sorted({each.inputs["context"] for each in estimates})
    roofs = Roofs.of(first)
    ridge = max(roofs.peak(kernel.dtype) for kernel in first.decode.kernels if kernel.flops) / roofs.memory
    subject = f"{first.model} on {first.gpu}, weights {first.inputs['weights']}, kv {first.inputs['kv']}"
    rings = "" if all(each.memory.fits for each in estimates) else "rings: more than the memory holds; "
    frame = Frame("Decode: arithmetic per byte over the batch", subject, f"{rings}{style.source_of(first)}", theme)
    figure, (axes,) = frame.panels(7.2, 4.2)
    ends = []
    lines = [
        (f"context {context:,.0f}", [e for e in estimates if e.inputs["context"] == context]) for context in contexts
    ]
    for (label, own), color in zip(lines, theme.series, strict=False):
        ends.append(_line(axes, [(e.inputs["batch"], e.decode.intensity, e.memory.fits) for e in own], label, color))
    alone = []
    for each in lines[0][1]:
        held = [one for one in each.decode.kernels if one.weight_bytes and one.family in ("gemm", "moe")]
        flops, moved = (sum(getattr(one, name) for one in held) for name in ("flops", "bytes"))
        alone.append((each.inputs["batch"], flops / moved, True))
    ends.append(_line(axes, alone, "matrices alone", theme.tint("weights")))
    axes.axhline(ridge, color=theme.ink, lw=1.2, ls=(0, (4, 3)), gid="ridge")
    axes.set(xscale="log", yscale="log", xlabel="sequences in the batch", ylabel="decode step [FLOP/B]")
    style.powers_of_two(axes.xaxis, sorted({float(e.inputs["batch"]) for e in estimates}))
    decades(axes.yaxis, scale_text)
    axes.text(1, ridge * 1.06, f"ridge {ridge:.0f} FLOP/B: above, arithmetic is the limit", fontsize=7, va="bottom")
    end_labels(axes, ends)
    largest = ", ".join(f"{label.text} {label.y:.3g}" for label in ends)
    words = f"FLOP per byte at the largest batch: {largest}; the ridge of {first.gpu} is at {ridge:.0f}."
    return Picture("intensity", frame.title, words, figure, theme)


def _line(axes: Axes, points: Sequence[tuple[int, float, bool]], label: str, color: str) -> Label:
    """A line; rings where the batch does not fit in memory."""
    batches, values = [float(batch) for batch, _, _ in points], [value for _, value, _ in points]
    axes.plot(batches, values, color=color, gid=f"line {label}")
    for batch, value, fits in points:
        axes.plot(batch, value, ls="", marker="o", ms=4, mec=color, mfc=color if fits else axes.get_facecolor())
    return Label(label, batches[-1], values[-1], axes.xaxis.label.get_color(), lead=color)
