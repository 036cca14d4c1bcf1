"""`rooflinekit sweep`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rooflinekit.cli.command import Argument, command
from rooflinekit.cli.output import CommandOutput, counting, note
from rooflinekit.estimation.options import options_of
from rooflinekit.estimation.scenario import (
    AcceleratorOptions,
    Pictures,
    Pricing,
    Scenario,
    SimulationOptions,
    Sweeping,
    WrittenOptions,
)
from rooflinekit.model.types.errors import InputError, RooflinekitError

if TYPE_CHECKING:
    import pandas as pd

    from rooflinekit.decision.sweeping.sweep import Grid, SweepJob, Table
    from rooflinekit.decision.sweeping.tables import KeptPieces

_AXES = {name: row.axis() for table in (AcceleratorOptions, Scenario) for name, row in options_of(table).items()}
_FIRST = ("gpu", "batch", "isl", "osl", "context", "concurrency", "rate")
_ORDER = tuple(dict.fromkeys((*_FIRST, *_AXES)))
"""Order of columns and rows: pieces of one grid fit together in whichever order their options were written."""
_SOURCE = Argument("Models, or a file of scenarios: .csv, .parquet, .xlsx, or - for CSV.", complete="model")


@command(_AXES, Pricing, Sweeping, Pictures, WrittenOptions, arguments={"model": _SOURCE}, leave=("pue", "allow_oom"))
def sweep(
    model: str, *, to: CommandOutput, set: Sequence[str] = (), sheet: str | None = None, simulate: bool = False,
    price: Any = None, carbon: Any = None, pareto: str | None = None, baseline: str | None = None,
    workers: int = 1, scheduler: str | None = None, shard: str = "1/1", resume: bool = False, **axes: str,
) -> int:  # fmt: skip
    """Answer every combination of some values, or every row of a table, and keep the best.

    A LIST is 1,2,8; 1:4 is 1, 2, 3, 4; 0:100:25 has steps of 25; 4:64*2 doubles from 4 to 64. A law of lengths is one
    value: 512,lognormal:mean=900,cv=1. A semicolon divides values with commas of their own.
    """
    from rooflinekit.decision.economics.price import read_carbon
    from rooflinekit.decision.sweeping.pareto import Tally, parse_goals
    from rooflinekit.decision.sweeping.sweep import Means, SweepJob, SweepShard, check_price, front_of, run
    from rooflinekit.decision.sweeping.tables import KeptPieces
    from rooflinekit.model.types.batch import whole_number

    to.check("DataFrame")
    job = SweepJob(simulate, check_price(price), read_carbon(carbon))
    source, asked = _source(model, {key: axes[key] for key in _ORDER if key in axes}, set, sheet, job)
    goals = () if pareto is None else parse_goals(pareto)
    kept = None
    if resume:
        if to.out is None:
            raise InputError("--resume keeps finished pieces beside the output; add --out FILE")
        kept = KeptPieces.beside(to.out, [asked, str(job), shard])
    means = Means(whole_number(workers, "workers"), scheduler, SweepShard.parse(shard), kept)
    tally = Tally()
    drawn: list[pd.DataFrame] | None = None if to.plots is None else []
    seen: dict[str, None] = {}
    span = means.shard.span(source.rows) if sys.stderr.isatty() else (0, 0)
    pieces = -(-(span[1] - span[0]) // job.piece_rows(source.columns))
    answers = _watched(tally.counting(run(source, job, means)), pieces, seen, drawn)
    _deliver(front_of(answers, goals) if goals else answers, source, to, kept, bool(goals), baseline)
    if drawn is not None:
        _draw(drawn, to)
    for line in [*getattr(source, "notes", ()), *tally.words(), *_prices(seen, price)]:
        note(line)
    return 4 if tally.failed else 0


def _source(
    name: str, axes: dict[str, str], also: Sequence[str], sheet: str | None, job: SweepJob
) -> tuple[Grid | Table, object]:
    """The scenarios, and what tells them from others."""
    from rooflinekit.decision.sweeping.sweep import Grid, check_inputs, identity, is_table, open_table, parse_axis

    for pair in also:
        key, equals, text = pair.partition("=")
        if not equals or key.strip() in axes:
            raise InputError(f"--set takes NAME=LIST, each name once, such as kv_policy=full,window:4096, not {pair!r}")
        axes[key.strip().replace("-", "_")] = text
    if is_table(name):
        if axes:
            raise InputError(f"{next(iter(axes))} is for grids; {name} has its scenarios in columns: add one")
        table = open_table(name, sheet)
        return table, name if name == "-" else [identity(name), sheet]
    if sheet is not None:
        raise InputError("--sheet names a sheet of a workbook; give a file of scenarios instead of a model")
    check_inputs(axes, job.simulate)
    values = {"model": name} | axes
    known = options_of(SimulationOptions if job.simulate else Scenario)
    return Grid.of({key: parse_axis(text, key, known.get(key)) for key, text in values.items()}), values


def _prices(names: Iterable[str], price: object) -> tuple[str, ...]:
    """Notes on prices by name: those that are not used, and of unlike terms."""
    from rooflinekit.decision.economics.price import quotes_of
    from rooflinekit.specs import load_accelerator

    if price is None:
        return ()
    try:
        return quotes_of([load_accelerator(name).value for name in names], price).notes
    except RooflinekitError as error:
        return (str(error),)


def _watched(
    answers: Iterable[pd.DataFrame], pieces: int, seen: dict[str, None], kept: list[pd.DataFrame] | None
) -> Iterator[pd.DataFrame]:
    """Move a bar on a terminal as pieces end; remember the accelerators with a price, and what is to be drawn."""
    with counting("sweeping", pieces) as step:
        for part in answers:
            if "gpu" in part:
                seen |= dict.fromkeys(part.loc[part["usd_per_hour"].notna(), "gpu"].astype(str).unique())
            if kept is not None:
                kept.append(part)
            yield part
            step("")


def _draw(parts: list[pd.DataFrame], to: CommandOutput) -> None:
    import pandas as pd

    from rooflinekit.report.plots.sweeps import left_out

    table = pd.concat(parts, ignore_index=True)
    to.draw(table)
    for why in left_out(table):
        note(why)


def _deliver(
    answers: Iterable[pd.DataFrame],
    source: Grid | Table,
    to: CommandOutput,
    kept: KeptPieces | None,
    filtered: bool,
    baseline: str | None,
) -> None:
    """Write a table as it grows, or print all of it."""
    from functools import partial

    from rooflinekit.decision.sweeping.sweep import WORKBOOKS
    from rooflinekit.decision.sweeping.tables import SUFFIXES, check_suffix, write_table
    from rooflinekit.decision.sweeping.workbook import ScenarioSheet, write_beside

    out, format = to.out, to.format
    if out is not None and isinstance(source, ScenarioSheet) and out.suffix.lower() in WORKBOOKS:
        if filtered or out.suffix.lower() != source.path.suffix.lower():
            raise InputError(f"a workbook keeps all its rows and its kind; write {out.stem}.csv, or leave --pareto out")
        return write_table(answers, out, kept, partial(write_beside, source), to.force)
    headers = getattr(source, "headers", None)
    if out is not None and (format == "table" or out.suffix.lower() in SUFFIXES):
        if format in ("json", "md"):
            raise InputError(f"{out} and --format {format} say different things; name the file .{format}")
        check_suffix(out, source.rows)
        return write_table(map(headers.restored, answers) if headers else answers, out, kept, force=to.force)
    return _print(answers, source, to, baseline)


def _print(answers: Iterable[pd.DataFrame], source: Grid | Table, to: CommandOutput, baseline: str | None) -> None:
    import pandas as pd

    from rooflinekit.report.sweep import MOST, document, sweep_records
    from rooflinekit.specs.escaping import csv_table

    parts = list(answers)
    table = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=[*source.columns])
    headers = getattr(source, "headers", None)
    named = headers.restored(table) if headers else table
    if to.format == "csv":
        return to.emit(csv_table(named))
    shown = [name for name in source.columns if not headers or name in headers.inputs.values()]
    most = None if to.format == "md" else MOST
    return to.write(lambda: sweep_records(named), tuple, lambda: document(table, shown, most, baseline))
