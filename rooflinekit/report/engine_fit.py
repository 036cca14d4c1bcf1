"""A fit to benchmark files: costs before and after, errors by file and metric, and what to doubt."""

from __future__ import annotations

from rooflinekit.evidence.engine_fit.fit import EngineFit, Outcome
from rooflinekit.model.types.units import format_time
from rooflinekit.report.document import Document, Items, Section, Table
from rooflinekit.specs.calibration.served import UNITLESS

_NAMES = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "output_tok_s": "output"}


def document(fit: EngineFit) -> Document:
    """The whole answer."""
    noise = ", ".join(f"{_NAMES[name]} {size:.1%}" for name, size in fit.noise.items())
    doubts = [f"what the costs do not explain, one standard deviation: {noise}"]
    if fit.alike:
        pairs = ", ".join(f"{first} and {second}" for first, second in fit.alike)
        doubts.append(f"note: the files tell these apart only by what was believed before: {pairs}")
    doubts += [f"note: {note}" for note in fit.notes]
    doubts += [f"not used: {name}: {why}" for name, why in fit.failed.items()]
    header = ["engine cost", "before", "after", "data", ""]
    return [
        Section("", [Table(header, [_outcome(each) for each in fit.outcomes], left=(0, 4))]),
        Section("", [_errors(fit)]),
        Section("", [Items(*doubts)]),
    ]


def _outcome(each: Outcome) -> list[str]:
    name, prior = each.prior.name, each.prior
    before, after = _number(name, prior.value, prior.spread), _number(name, each.value, each.spread)
    at = {"most": "at the most", "least": "at the least"}.get(each.at, "")
    return [name, before, after, f"{each.data:.0%}", at]


def _number(name: str, value: float, spread: float) -> str:
    if name in UNITLESS:
        return f"{value:.3f} ± {spread:.3f}"
    return f"{format_time(value)} ± {format_time(spread)}"


def _errors(fit: EngineFit) -> Table:
    def cells(name: str, rows: int, figures: tuple[float, float, float | None]) -> list[str]:
        return [name, str(rows), *("" if figure is None else f"{figure:.1%}" for figure in figures)]

    table = [cells(_short(file.name), file.rows, (file.before, file.after, file.unseen)) for file in fit.files]
    table += [
        cells(f"all, {_NAMES[name]}", error.rows, (error.before, error.after, error.unseen))
        for name, error in fit.errors.items()
    ]
    return Table(["mean error", "figures", "before", "after", "left out"], table)


def _short(name: str, most: int = 40) -> str:
    return name if len(name) <= most else f"…{name[1 - most :]}"
