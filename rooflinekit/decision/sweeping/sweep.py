"""The front door of sweeps: values or a file of scenarios in, a table of every combination out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd

from rooflinekit.decision.economics.price import read_carbon
from rooflinekit.decision.sweeping.answer import Job, Piece, answer, check_price
from rooflinekit.decision.sweeping.grid import Grid
from rooflinekit.decision.sweeping.output import KeptPieces
from rooflinekit.decision.sweeping.pareto import Goal, pareto_front, parse_goals
from rooflinekit.decision.sweeping.tables import ParquetTable, TextTable
from rooflinekit.decision.sweeping.workbook import ScenarioSheet, read_sheet
from rooflinekit.estimation.frames import INPUT_COLUMNS
from rooflinekit.estimation.options import options_of
from rooflinekit.estimation.scenario import DEPLOYMENT_KEYS, WORKLOAD_KEYS, Simulation
from rooflinekit.model.types.batch import whole_number
from rooflinekit.model.types.errors import InputError, nearest
from rooflinekit.simulation.execute import execute
from rooflinekit.specs.places import check_file

WORKBOOKS = (".xlsx", ".xlsm")
_TABLES = (".csv", ".parquet", *WORKBOOKS)


def is_table(name: str) -> bool:
    """True if an argument means a file of scenarios, or "-" standard input, and not a model.

    >>> is_table("plan.XLSX"), is_table("-"), is_table("llama-3-8b"), is_table("config.json")
    (True, True, False, False)
    """
    return name == "-" or Path(name).suffix.lower() in _TABLES


def open_table(name: str, sheet: str | None = None) -> Table:
    """The scenarios of a file, by its suffix.

    Raises InputError for a file that is not there, and a sheet of what has none.
    """
    path = Path(name)
    kind = path.suffix.lower()
    if name != "-":
        check_file(path)
    if sheet is not None and kind not in WORKBOOKS:
        raise InputError(f"--sheet names a sheet of a workbook; {name} has none")
    if kind in WORKBOOKS:
        return read_sheet(path, sheet)
    return ParquetTable(name) if kind == ".parquet" else TextTable(name)


def identity(name: str) -> list[Any]:
    """Identity of a file's content: its name, size and time."""
    if name == "-":
        raise InputError("--resume cannot go on with standard input; write the scenarios to a file")
    facts = Path(name).stat()
    return [str(Path(name).resolve()), facts.st_size, facts.st_mtime_ns]


Table: TypeAlias = TextTable | ParquetTable | ScenarioSheet


@dataclass(frozen=True)
class SweepShard:
    """Part `number` of `of`: consecutive rows, so that the parts of a sweep one after the other are the whole.

    >>> SweepShard.parse("2/3").span(10)
    (3, 6)
    """

    number: int = 1
    of: int = 1

    @classmethod
    def parse(cls, text: str) -> SweepShard:
        """Read i/n, from 1/n to n/n.

        Raises InputError.
        """
        first, _, second = text.partition("/")
        if not (first.isdecimal() and second.isdecimal() and 1 <= int(first) <= int(second)):
            raise InputError(f"shard must be i/n with i from 1 to n, such as 1/4, not {text!r}")
        return cls(int(first), int(second))

    def span(self, rows: int) -> tuple[int, int]:
        """The rows of this part."""
        return rows * (self.number - 1) // self.of, rows * self.number // self.of


@dataclass(frozen=True)
class Means:
    """Means of a sweep: processes, cluster, shard and files; answers do not depend on it.

    kept: where finished pieces are kept, and taken from if they are there.
    """

    workers: int = 1
    scheduler: str | None = None
    shard: SweepShard = SweepShard()
    kept: KeptPieces | None = None


def sweep(model: Any, *, simulate: bool = False, pareto: str | None = None, **scenario: Any) -> pd.DataFrame:
    """Answer every combination of the values given.

    Args:
        model: a model, or a list of them.
        simulate: run the request-level simulator on each row, and say more of it.
        pareto: keep only what nothing else beats in these columns, such as "tok_s_user:tok_s_gpu".
        **scenario: keywords of `estimate` (or of `simulate`), each a value or a list; `price` [USD per GPU-hour];
            `carbon` (g of CO2 a kWh, or a grid); `workers` (processes), `scheduler` (address of a dask cluster).

    Returns:
        A row for each combination, the last keyword fastest: the inputs, the columns of `estimate_frame` (or of the
        simulator), and costs where the accelerator has a price. A combination that cannot be says so in `error`.

    Raises:
        InputError: an unknown keyword, a list without values, a goal that is no column.

    >>> table = sweep("llama-3-8b", gpu=["h100-sxm", "h200-sxm"], batch=[1, 32], tp=[1, 3], calibration="none")
    >>> len(table), (table["error"] != "").sum()  # 32 heads cannot be split in 3
    (8, np.int64(4))
    """
    goals = () if pareto is None else parse_goals(pareto)
    job = Job(simulate, check_price(scenario.pop("price", None)), read_carbon(scenario.pop("carbon", None)))
    means = Means(whole_number(scenario.pop("workers", 1), "workers"), scenario.pop("scheduler", None))
    check_inputs(scenario, simulate)
    answers = run(Grid.of({"model": model} | scenario), job, means)
    return pd.concat(list(front_of(answers, goals) if goals else answers), ignore_index=True)


def check_inputs(names: Iterable[str], simulate: bool) -> None:
    """Refuse keywords that nobody reads.

    Raises InputError.
    """
    known = [*options_of(Simulation)] if simulate else [*INPUT_COLUMNS]
    for name in names:
        if name not in (*known, "model", "gpu"):
            near = nearest(name, [*known, "price", "pareto", "workers"]) or [*WORKLOAD_KEYS, *DEPLOYMENT_KEYS]
            raise InputError(f"unknown option {name!r}; nearest: {', '.join(near)}")


def run(source: Grid | Table, job: Job, means: Means) -> Iterator[pd.DataFrame]:
    """The answers in order, piece by piece."""
    size = job.piece_rows(source.columns)
    start, stop = means.shard.span(source.rows)
    pieces = (Piece(number, rows) for number, rows in enumerate(source.pieces(size, start, stop)))
    kept, work = means.kept, partial(answer, job)
    if kept is None:
        return execute(work, pieces, means.workers, means.scheduler)
    missing = (piece for piece in pieces if piece.number not in kept)
    return kept.completed(execute(work, missing, means.workers, means.scheduler), -(-(stop - start) // size))


def front_of(answers: Iterable[pd.DataFrame], goals: tuple[Goal, ...]) -> Iterator[pd.DataFrame]:
    """The front of all answers; what is beaten is dropped as soon as that is known."""
    best: pd.DataFrame | None = None
    for found in answers:
        own = pareto_front(found, goals)
        best = own if best is None else pareto_front(pd.concat([best, own]), goals)
    if best is not None:
        yield best
