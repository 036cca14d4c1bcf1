"""Write reports/validation-GPU-DATE.html and .md: predicted against measured kernels, models and engines of one day.

Run: python benchmarks/report_validation.py FILE... --gpu GPU [--calibration FILE] [--out FOLDER]

Kernels are predicted twice: by the shipped calibration, and by fits that have not
seen their half of the shape groups. Models and engines are predicted by the calibration that is given, by default the
shipped one; it has seen no model.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from half_split import Half, halves
from report_page import Block, markdown, percent, table, web

from rooflinekit.evidence.accuracy import kernel_accuracy
from rooflinekit.evidence.kernel_fit.groups import Measurements, read_measurements
from rooflinekit.evidence.kernel_fit.tables import OPERATIONS
from rooflinekit.evidence.steps import compare_model
from rooflinekit.specs import load_accelerator
from rooflinekit.validate.attribution import Line
from rooflinekit.validate.compare_model import explain
from rooflinekit.version import __version__

_SIDE = 200  # of a picture
_FACTS = ("driver_version", "cuda", "power.limit", "clocks.max.sm", "clocks.max.mem", "instructions", "python")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--gpu", required=True, help="the accelerator's name or file")
    parser.add_argument("--note", action="append", default=[], help="a sentence for the head of the report")
    parser.add_argument("--calibration", help="for the models; default: the one that `estimate` takes")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "reports")
    arguments = parser.parse_args()
    found, name = [read_measurements(file) for file in arguments.files], load_accelerator(arguments.gpu).value.name
    title = f"Predicted and measured on {found[0].header['device']['name']}"
    blocks = [
        Block("h1", title),
        *(Block("p", note) for note in arguments.note),
        *page(found, arguments.gpu, arguments.calibration),
    ]
    path = arguments.out / f"validation-{name}-{str(found[0].header['started'])[:10]}.html"
    path.write_text(web(blocks, title), encoding="utf-8")
    text = markdown([block for block in blocks if block.kind != "picture"])
    path.with_suffix(".md").write_text(text, encoding="utf-8")
    print(path)


def page(found: list[Measurements], gpu: str, calibration: str | None) -> list[Block]:
    tables = [one for one in found if any(one.of(operation) for operation in OPERATIONS)]
    held = [half for one in tables for half in halves(one.path, gpu)]
    return [
        *(block for one in found for block in machine(one)), *steps(found, gpu, calibration),
        *(shipped(tables, gpu) if tables else []), *(kernels(held) if held else []), *bursts(found),
        Block("h2", "Ceilings"), ceilings(found), Block("h2", "What did not run"), *absent(found),
    ]  # fmt: skip


def machine(found: Measurements) -> list[Block]:
    head, device = found.header, found.header["device"]
    facts = [f"{name.replace('_', ' ').replace('.', ' ')} {device[name]}" for name in _FACTS if device.get(name)]
    facts += [f"{name} {version}" for name, version in device.get("versions", {}).items() if version]
    counts = ", ".join(f"{count} {status}" for status, count in found.counts.items())
    said = (
        f"Run {head['run']} of {head['started']}, suite {head['suite']}, {head['engine_version']}, rooflinekit "
        f"{__version__}: {counts} rows; it ended as: {found.ending or 'killed'}."
    )
    cores = f"{device['cores']} cores or threads, {device['memory_bytes'] / 2**30:.0f} GiB"
    return [Block("p", said), Block("p", "; ".join([cores, *facts]) + ".")]


def kernels(held: list[Half]) -> list[Block]:
    rows = [
        [
            f"{half.key}, {half.engine}",
            str(len(half.measured)),
            percent(half.median),
            percent(half.mean),
            percent(half.p90),
        ]
        for half in held
    ]
    middle = pd.Series([half.median for half in held]).median()
    text = (
        "Each kernel is fitted to half of its shape groups (whole groups: a matrix at all batches, a layout of heads) "
        f"and predicts the other half, and the other way round. Median over kernels of the median error: "
        f"{percent(middle)}."
    )
    return [
        Block("h2", "Kernels, on shapes that the fit has not seen"), Block("p", text),
        table(["kernel", "rows", "median error", "mean", "90 % below"], rows), pictures(held),
    ]  # fmt: skip


def pictures(held: list[Half]) -> Block:
    """One cloud of points an operation."""
    points = pd.concat([half.points for half in held])
    drawn = "".join(scatter(str(op), own) for op, own in points.groupby("op", sort=False))
    return Block("picture", f'<div class="figures">{drawn}</div>')


def scatter(name: str, points: pd.DataFrame) -> str:
    """Predicted over measured time, both logarithmic, and the line on which they are equal."""
    logs = np.log10(points[["measured_us", "predicted_us"]].to_numpy())
    low, high = float(logs.min()), float(logs.max())
    places = _SIDE * (logs - low) / max(high - low, 1e-9)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{_SIDE - y:.1f}" r="2"/>' for x, y in places)
    ends = f"{10**low:.3g} to {10**high:.3g} µs"
    return (
        f'<figure role="img" aria-label="{name}: predicted over measured, {ends}">'
        f'<svg viewBox="-4 -4 {_SIDE + 8} {_SIDE + 8}" fill="#2a6fbb" fill-opacity=".6">'
        f'<path d="M0 {_SIDE}L{_SIDE} 0M0 0V{_SIDE}H{_SIDE}" fill="none" stroke="currentColor"/>{dots}</svg>'
        f"<figcaption>{name}: predicted (up) over measured, {ends}</figcaption></figure>"
    )


def shipped(found: list[Measurements], gpu: str) -> list[Block]:
    """Errors of the calibrations that `estimate` takes, on rows that they have not seen."""
    scores = kernel_accuracy([one.path for one in found], gpu=gpu)
    told = [group for group in scores.groups if group.answered]
    rows = [
        [" ".join(value for name, value in group.key.items() if name != "gpu"), str(group.answered),
         *(percent(value) for value in (group.median_ape, group.bias, group.coverage90) if value is not None)]
        for group in told
    ]  # fmt: skip
    text = (
        "The calibrations that `estimate` takes, on these rows; fits whose source names the day have seen theirs. Bias "
        "is the mean signed "
        "error. `power_w` is the board's power in a sustained pass, predicted in the measured time. gpt-fast stands "
        "for PyTorch's kernels; it has no calibration of its own here, so its rows show how far vLLM's is from them."
    )
    head = ["kernel", "rows", "median error", "bias", "in 90 % interval"]
    left = [Block("li", f"{count} rows not scored: {reason}.") for reason, count in scores.unanswered.items()]
    return [Block("h2", "Kernels, by the shipped calibrations"), Block("p", text), table(head, rows), *left]


def bursts(found: list[Measurements]) -> list[Block]:
    """Time of a call in a burst of some milliseconds, and in passes without a pause for over a second."""
    rows = [
        [f"{row['op']} {row.get('dtype', '')}, {row['backend']}", f"{row['latency_us']:.5g}",
         f"{row['sustained_us'] / row['latency_us']:.2f}", *(f"{row[name]:.0f}" if name in row else "–" for name in
         ("power_w", "sm_mhz", "temperature_c"))]
        for one in found for row in one.rows if "sustained_us" in row
    ]  # fmt: skip
    if not rows:
        return []
    text = (
        "A burst takes some milliseconds from a cool board; sustained passes follow each other for 1.2 s. Work that "
        "draws more than the power limit is slowed then. Power is the board's energy over the sustained pass."
    )
    head = ["kernel", "burst [µs]", "sustained / burst", "power [W]", "core clock [MHz]", "°C"]
    return [Block("h2", "Bursts and sustained passes"), Block("p", text), table(head, rows)]


def steps(found: list[Measurements], gpu: str, calibration: str | None) -> list[Block]:
    """Whole steps of models and engines beside their prediction, then where the time of the profiled ones went."""
    rows = [row for one in found for row in one.of("model") + one.of("serving_step")]
    blocks = [Block("h2", "Whole steps")]
    if not rows:
        return [*blocks, Block("p", "None ran.")]
    cells = [
        [f"{c.model} {c.point.phase} {c.point.batch} × {c.point.context}", str(row["backend"]), c.mode,
         f"{c.measured_ms:.4g}", f"{c.predicted_ms:.4g}", f"{c.low_ms:.4g} – {c.high_ms:.4g}",
         f"{100 * c.error:+.0f} %", "extrapolated" if c.extrapolated else "all"]
        for row, c in zip(rows, compare_model(rows, gpu, calibration), strict=True)
    ]  # fmt: skip
    head = ["step", "ran by", "mode", "measured [ms]", "predicted [ms]", "90 % interval", "error", "layers"]
    text = (
        "A prefill is a TTFT without queue or front end, a decode step a TPOT. The prediction is the sum of the fits "
        "of the kernels and of what the engine adds; no model was fitted."
    )
    return [*blocks, Block("p", text), table(head, cells), *spent(rows, gpu, calibration)]


def spent(rows: list[dict[str, Any]], gpu: str, calibration: str | None) -> list[Block]:
    """Time by cause and by class of work, measured / predicted, a line a step."""
    profiled = [row for row in rows if "busy_us" in row]
    if not profiled:
        return []
    blocks = [Block("h3", "Where the time went")]
    for number, what in enumerate(("cause", "class of work")):
        views = {
            f"{row['phase']} {row['batch']} × {row['context']} {row['mode']}": explain(row, gpu, calibration)[number]
            for row in profiled
        }
        causes = [line.what for line in next(iter(views.values()))]
        lines = [[step, *(cell(line) for line in view)] for step, view in views.items()]
        blocks += [Block("p", f"By {what}: measured / predicted [ms]."), table(["step", *causes], lines)]
    text = (
        "Measured under the profiler, which slows the host: its gaps are an upper limit. Events do not tell what a "
        "kernel waits for, so each class is split between compute and memory as the prediction splits it."
    )
    return [*blocks, Block("p", text)]


def cell(line: Line) -> str:
    if not (line.measured_us or line.predicted_us):
        return "–"
    return f"{line.measured_us / 1e3:.3g} / {line.predicted_us / 1e3:.3g}"


def ceilings(found: list[Measurements]) -> Block:
    """The best pass of each kind: the sizes are in the file."""
    best: dict[str, tuple[float, str]] = {}
    for row in (row for one in found for row in one.of("ceiling")):
        name = " ".join(str(row[part]) for part in ("kind", "dtype") if part in row)
        name += f" ({row['launch']})" if row["kind"] == "launch" else ""
        lead = min if row["kind"] == "launch" else max
        one = (float(row["value"]), str(row["unit"]))
        best[name] = lead(best.get(name, one), one)
    return table(["ceiling", "best", "unit"], [[name, f"{value:.4g}", unit] for name, (value, unit) in best.items()])


def absent(found: list[Measurements]) -> list[Block]:
    reasons = Counter(
        f"{row['op']}, {row['backend']}: {row['status']}: {row['detail']}"
        for one in found
        for row in one.rows
        if row["status"] != "ok"
    )
    return [Block("li", f"{count} × {reason}") for reason, count in reasons.items()] or [Block("p", "Everything ran.")]


if __name__ == "__main__":
    main()
