"""`rooflinekit sweep`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from rooflinekit.cli.options import Count, Plots
from rooflinekit.cli.output import Format, emit, to_json
from rooflinekit.cli.pictures import check_pictures, write_pictures
from rooflinekit.cli.progress import counting
from rooflinekit.model.types.errors import InputError
from rooflinekit.specs.writing import check_target

if TYPE_CHECKING:
    import pandas as pd

    from rooflinekit.decision.sweeping.answer import Job
    from rooflinekit.decision.sweeping.grid import Grid
    from rooflinekit.decision.sweeping.output import Kept
    from rooflinekit.decision.sweeping.sweep import Means
    from rooflinekit.decision.sweeping.tables import ParquetTable, TextTable
    from rooflinekit.decision.sweeping.workbook import Sheet

    Table: TypeAlias = TextTable | ParquetTable | Sheet

__all__ = ["sweep"]


def _axis(help: str) -> Any:
    return typer.Option(help=help, metavar="LIST")


def sweep(
    model: Annotated[str, typer.Argument(help="Models, or a file of scenarios: .csv, .parquet, .xlsx, or - for CSV.")],
    gpu: Annotated[str | None, _axis("Accelerators.")] = None,
    batch: Annotated[str | None, _axis("Sequences in the batch, such as 1,2,4:64*2.")] = None,
    isl: Annotated[str | None, _axis("Prompt lengths in tokens.")] = None,
    osl: Annotated[str | None, _axis("Output lengths in tokens.")] = None,
    context: Annotated[str | None, _axis("Contexts of the decode step.")] = None,
    concurrency: Annotated[str | None, _axis("Users in a closed loop; excludes --batch.")] = None,
    rate: Annotated[str | None, _axis("Requests a second that arrive; excludes --batch.")] = None,
    ttft: Annotated[str | None, _axis("Objectives under load, in ms.")] = None,
    tpot: Annotated[str | None, _axis("Objectives under load, in ms.")] = None,
    tp: Annotated[str | None, _axis("Tensor parallel degrees.")] = None,
    pp: Annotated[str | None, _axis("Pipeline parallel degrees.")] = None,
    ep: Annotated[str | None, _axis("Expert parallel degrees.")] = None,
    dp: Annotated[str | None, _axis("Attention data parallel degrees.")] = None,
    weights: Annotated[str | None, _axis("Weight formats.")] = None,
    kv: Annotated[str | None, _axis("KV cache formats.")] = None,
    engine: Annotated[str | None, _axis("Engines.")] = None,
    calibration: Annotated[str | None, _axis("Calibrations; none is the datasheet bound.")] = None,
    also: Annotated[
        list[str] | None, typer.Option("--set", help="Any other keyword of estimate or simulate.", metavar="NAME=LIST")
    ] = None,
    sheet: Annotated[str | None, typer.Option(help="Sheet of a workbook (default: the first with scenarios).")] = None,
    simulate: Annotated[bool, typer.Option("--simulate", help="Simulate each row, request by request.")] = False,
    price: Annotated[float | None, typer.Option(help="USD per GPU-hour (default: of the accelerator's file).")] = None,
    pareto: Annotated[str | None, typer.Option(help="Keep the front, such as tok_s_user:tok_s_gpu.")] = None,
    workers: Annotated[int, Count("Processes on this machine.")] = 1,
    scheduler: Annotated[str | None, typer.Option(help="A dask cluster, such as tcp://10.0.0.1:8786.")] = None,
    shard: Annotated[str, typer.Option(help="Answer only part i of n: i/n.")] = "1/1",
    resume: Annotated[bool, typer.Option("--resume", help="Keep finished pieces beside --out, and use them.")] = False,
    plots: Plots = None,
    format: Annotated[Format, typer.Option(help="Output format.")] = Format.table,
    out: Annotated[Path | None, typer.Option(help="Write a table here: .csv, .parquet or .xlsx.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> int:
    """Answer every combination of some values, or every row of a table, and keep the best."""
    from rooflinekit.decision.sweeping.answer import Job, check_price
    from rooflinekit.decision.sweeping.pareto import Tally, parse_goals
    from rooflinekit.decision.sweeping.sweep import Means, Shard, run
    from rooflinekit.model.types.batch import whole_number

    axes = {"gpu": gpu, "batch": batch, "isl": isl, "osl": osl, "context": context, "concurrency": concurrency,
            "rate": rate, "ttft": ttft, "tpot": tpot, "tp": tp, "pp": pp, "ep": ep, "dp": dp, "weights": weights,
            "kv": kv, "engine": engine, "calibration": calibration}  # fmt: skip
    if out is not None:
        check_target(out, force)
    if plots is not None:
        check_pictures(plots, "table", force)
    job = Job(simulate, check_price(price))
    source, asked = _source(model, {key: text for key, text in axes.items() if text is not None}, also, sheet, job)
    goals = () if pareto is None else parse_goals(pareto)
    kept = _kept(resume, out, [asked, str(job), shard]) if resume else None
    means = Means(whole_number(workers, "workers"), scheduler, Shard.parse(shard), kept)
    tally = Tally()
    answers = _watched(tally.counting(run(source, job, means)), source, job, means)
    drawn: list[pd.DataFrame] = []
    answers = answers if plots is None else _collected(answers, drawn)
    _deliver(_best(answers, goals), source, format, (out, kept, bool(goals)))
    if plots is not None:
        _draw(drawn, plots, force)
    for line in [*getattr(source, "notes", ()), *tally.words()]:
        print(f"rooflinekit: {line}", file=sys.stderr)  # noqa: T201 - this is the edge
    return 4 if tally.failed else 0


def _source(
    name: str, axes: dict[str, str], also: list[str] | None, sheet: str | None, job: Job
) -> tuple[Grid | Table, Any]:
    """The scenarios, and what tells them from others."""
    from rooflinekit.decision.sweeping.grid import Grid, parse_axis
    from rooflinekit.decision.sweeping.sweep import check_inputs, identity, is_table, open_table

    for pair in also or ():
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
    return Grid.of({key: parse_axis(text, key) for key, text in values.items()}), values


def _kept(resume: bool, out: Path | None, asked: Any) -> Kept:
    from rooflinekit.decision.sweeping.output import Kept

    if out is None:
        raise InputError("--resume keeps finished pieces beside the output; add --out FILE")
    return Kept.beside(out, asked)


def _watched(answers: Iterable[pd.DataFrame], source: Grid | Table, job: Job, means: Means) -> Iterator[pd.DataFrame]:
    """Move a bar on a terminal as pieces end."""
    start, stop = means.shard.span(source.rows) if sys.stderr.isatty() else (0, 0)
    with counting("sweeping", -(-(stop - start) // job.piece_rows(source.columns))) as step:
        for part in answers:
            yield part
            step("")


def _collected(answers: Iterable[pd.DataFrame], drawn: list[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Keep what passes."""
    for part in answers:
        drawn.append(part)
        yield part


def _draw(parts: list[pd.DataFrame], folder: Path, force: bool) -> None:
    import pandas as pd

    from rooflinekit.report.plots.sweeps import left_out

    table = pd.concat(parts, ignore_index=True)
    write_pictures(table, folder, force)
    for why in left_out(table):
        typer.echo(f"rooflinekit: {why}", err=True)


def _best(answers: Iterable[pd.DataFrame], goals: Any) -> Iterable[pd.DataFrame]:
    from rooflinekit.decision.sweeping.sweep import front_of

    return front_of(answers, goals) if goals else answers


def _deliver(
    answers: Iterable[pd.DataFrame], source: Grid | Table, format: Format, target: tuple[Path | None, Kept | None, bool]
) -> None:
    """Write a table as it grows, or print all of it."""
    from functools import partial

    from rooflinekit.decision.sweeping.output import SUFFIXES, check_suffix, write_table
    from rooflinekit.decision.sweeping.sweep import WORKBOOKS
    from rooflinekit.decision.sweeping.workbook import Sheet
    from rooflinekit.decision.sweeping.workbook_out import write_beside

    out, kept, filtered = target
    if out is not None and isinstance(source, Sheet) and out.suffix.lower() in WORKBOOKS:
        if filtered or out.suffix.lower() != source.path.suffix.lower():
            raise InputError(f"a workbook keeps all its rows and its kind; write {out.stem}.csv, or leave --pareto out")
        return write_table(answers, out, kept, partial(write_beside, source))
    headers = getattr(source, "headers", None)
    if out is not None and (format is Format.table or out.suffix.lower() in SUFFIXES):
        if format in (Format.json, Format.md):
            raise InputError(f"{out} and --format {format.value} say different things; name the file .{format.value}")
        check_suffix(out, source.rows)
        return write_table(map(headers.restored, answers) if headers else answers, out, kept)
    return _print(answers, source, format, out)


def _print(answers: Iterable[pd.DataFrame], source: Grid | Table, format: Format, out: Path | None) -> None:
    import pandas as pd

    from rooflinekit.report.sweep import sweep_records, sweep_text

    parts = list(answers)
    table = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=[*source.columns])
    headers = getattr(source, "headers", None)
    named = headers.restored(table) if headers else table
    match format:
        case Format.json:
            emit(to_json(sweep_records(named)), out, force=True)
        case Format.csv:
            emit(named.to_csv(index=False, lineterminator="\n"), out, force=True)
        case _:
            shown = [name for name in source.columns if not headers or name in headers.inputs.values()]
            emit(sweep_text(table, shown, format is Format.md), out, force=True)
