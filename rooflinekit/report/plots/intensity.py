"""Arithmetic per byte of a decode step over the batch: where a larger batch stops helping."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from rooflinekit.estimation.results import Estimate
from rooflinekit.model.types.errors import InputError
from rooflinekit.report.plots.labels import Label, end_labels
from rooflinekit.report.plots.picture import Picture
from rooflinekit.report.plots.roofline import Roofs
from rooflinekit.report.plots.style import Frame, Theme, decades, powers_of_two
from rooflinekit.report.plots.words import scale_text, source_of


def matrices(estimate: Estimate) -> float:
    """FLOP per byte of a decode step's matrices alone."""
    held = [kernel for kernel in estimate.decode.kernels if kernel.weight_bytes and kernel.family in ("gemm", "moe")]
    return sum(kernel.flops for kernel in held) / sum(kernel.bytes for kernel in held)


def intensity(estimates: Sequence[Estimate], theme: Theme) -> Picture:
    """FLOP per byte of whole decode steps, one line a context, and of their matrices, below the ridge.

    Raises InputError unless the estimates are of one model on one accelerator.
    """
    if len({(each.model, each.gpu, each.inputs["weights"]) for each in estimates}) != 1:
        raise InputError("intensity takes estimates of one model on one accelerator, in one format")
    first, estimates = estimates[0], sorted(estimates, key=lambda each: each.inputs["batch"])
    contexts = sorted({each.inputs["context"] for each in estimates})
    roofs = Roofs.of(first)
    ridge = max(roofs.peak(kernel.dtype) for kernel in first.decode.kernels if kernel.flops) / roofs.memory
    subject = f"{first.model} on {first.gpu}, weights {first.inputs['weights']}, kv {first.inputs['kv']}"
    rings = "" if all(each.memory.fits for each in estimates) else "rings: more than the memory holds; "
    frame = Frame("Decode: arithmetic per byte over the batch", subject, f"{rings}{source_of(first)}", theme)
    figure, (axes,) = frame.panels(7.2, 4.2)
    ends = []
    lines = [
        (f"context {context:,.0f}", [e for e in estimates if e.inputs["context"] == context]) for context in contexts
    ]
    for (label, own), color in zip(lines, theme.series, strict=False):
        ends.append(_line(axes, [(e.inputs["batch"], e.decode.intensity, e.memory.fits) for e in own], label, color))
    alone = [(e.inputs["batch"], matrices(e), True) for e in lines[0][1]]
    ends.append(_line(axes, alone, "matrices alone", theme.tint("weights")))
    axes.axhline(ridge, color=theme.ink, lw=1.2, ls=(0, (4, 3)), gid="ridge")
    axes.set(xscale="log", yscale="log", xlabel="sequences in the batch", ylabel="decode step [FLOP/B]")
    _finish(axes, sorted({float(e.inputs["batch"]) for e in estimates}))
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


def _finish(axes: Axes, batches: Sequence[float]) -> None:
    powers_of_two(axes.xaxis, batches)
    decades(axes.yaxis, scale_text)
