"""The front door of sweeps: values or a file of scenarios in, a table of every combination out."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

import numpy as np
import pandas as pd

from rooflinekit.decision.economics.price import (
    co2_per_million,
    priced_names,
    quoted_price,
    read_carbon,
    usd_per_million,
)
from rooflinekit.decision.sweeping.pareto import Goal, pareto_front, parse_goals
from rooflinekit.decision.sweeping.tables import FAULT, KeptPieces, ParquetTable, Rows, TextTable
from rooflinekit.decision.sweeping.workbook import ScenarioSheet, read_sheet
from rooflinekit.estimation.frames import INPUT_COLUMNS
from rooflinekit.estimation.frames.evaluate import Resolutions, answer_table
from rooflinekit.estimation.options import Keywords, OptionRow, Value, options_of, part_of
from rooflinekit.estimation.scenario import DEPLOYMENT_KEYS, WORKLOAD_KEYS, SimulationOptions
from rooflinekit.model.power import plug_power
from rooflinekit.model.types.batch import positive, whole_number
from rooflinekit.model.types.errors import InputError, RooflinekitError, nearest
from rooflinekit.model.types.numeric import Array
from rooflinekit.simulation.execute import execute
from rooflinekit.simulation.simulate import simulate
from rooflinekit.specs import load_accelerator
from rooflinekit.specs.places import check_file
from rooflinekit.version import __version__

CO2_COLUMN = "co2_kg_per_million_output_tokens"
COST_COLUMNS = ("usd_per_hour", "usd_per_million_output_tokens", "price_source")

_SPREADS = ("ttft", "tpot", "itl", "e2e", "queue")
_NUMBERS = (
    "gpus", "arrived", "finished", "rejected", "cut", "measured", "preemptions",
    *(f"{name}_{part}_ms" for name in _SPREADS for part in ("mean", "p50", "p90", "p95", "p99", "max")),
    "request_rate", "goodput_rate", "goodput", "output_tok_s", "output_tok_s_per_gpu", "duration_s",
)  # fmt: skip

SIMULATED_COLUMNS = (*_NUMBERS, "level", "evidence", "calibration_hash", "warnings", "error", "version")
"""Results of a simulated row; with the simulator, `goodput` is the share of requests that meet the objectives."""

_OPTIONS = options_of(SimulationOptions)
_STATIC, _LOADED, _SIMULATED = 65_536, 16, 1  # rows of a piece: about a second of work
_TEXTS = ("level", "evidence", "calibration_hash", "warnings", "error", "version", "price_source")


def check_price(price: object) -> float | Mapping[str, float] | None:
    """Read a price for one accelerator hour [USD/h], of all or by name; None leaves it to the accelerators' files."""
    named = priced_names(price)
    if isinstance(named, Mapping):
        return {name: positive(each, f"price of {name}", zero=True) for name, each in named.items()}
    return None if named is None else positive(named, "price", zero=True)


def with_costs(answers: pd.DataFrame, price: float | Mapping[str, float] | None) -> pd.DataFrame:
    """Add what a row costs: price · accelerators [USD/h], and that over its output tokens an hour.

    An idle accelerator is paid too; the price is the dated quote of the accelerator's file, or the one given. Rows
    whose accelerator has no price stay empty.

    >>> row = pd.DataFrame({"gpu": ["h100-sxm"], "gpus": [2.0], "output_tok_s": [1000.0]})
    >>> with_costs(row, 3.6)[list(COST_COLUMNS)].values.tolist()  # 7.2 USD/h over 3.6 million tokens
    [[7.2, 2.0, 'given']]
    """
    names = answers["gpu"] if "gpu" in answers else pd.Series("h100-sxm", index=answers.index)
    codes, distinct = pd.factorize(names.where(names.notna(), "h100-sxm").astype(str))
    quotes = [_hour(str(name), price) for name in distinct]
    each: Array = np.array([quote for _, quote in quotes], dtype=float)[codes]
    sources = pd.Series([source for source, _ in quotes], dtype="object").astype("str").array.take(codes)
    hourly = each * answers["gpus"].to_numpy(dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        million = usd_per_million(hourly, answers["output_tok_s"].to_numpy(dtype=float))
    added = dict(zip(COST_COLUMNS, (hourly, million, sources), strict=True))
    return pd.concat([answers, pd.DataFrame(added, index=answers.index)], axis=1)


def _hour(gpu: str, price: float | Mapping[str, float] | None) -> tuple[str, float]:
    """Origin of the price of an accelerator hour, and the price [USD/h]; NaN where the row will say why not."""
    with suppress(RooflinekitError):
        known = price.get(load_accelerator(gpu).value.name) if isinstance(price, Mapping) else price
        quote = None if known is not None else quoted_price(load_accelerator(gpu).value)
        if quote is not None:
            return quote.source, float(quote.usd_per_gpu_hour)
        return ("", float("nan")) if known is None else ("given", known)
    return "", float("nan")


def simulate_frame(scenarios: pd.DataFrame) -> pd.DataFrame:
    """Simulate every row of a table; columns are keywords of `simulate`, with objectives `ttft` and `tpot` in ms.

    Args:
        scenarios: one run a row; `model`, and a load (rate, concurrency, arrivals or trace). Other columns stay.

    Returns:
        The rows with `SIMULATED_COLUMNS`; `error` says what could not be run.

    Raises:
        InputError: no column `model`, or one named like a result.

    >>> import pandas as pd
    >>> one = {"model": "llama-3-8b", "rate": [4.0, -1.0], "requests": 20, "isl": 64, "osl": 8, "calibration": "none"}
    >>> simulate_frame(pd.DataFrame(one))["finished"].tolist()
    [20.0, nan]
    """
    if "model" not in scenarios:
        raise InputError(f"the table has no column 'model'; it has: {', '.join(map(str, scenarios.columns)) or 'none'}")
    for column in map(str, scenarios.columns):
        if column in SIMULATED_COLUMNS:
            raise InputError(f"column {column!r} would be overwritten by a result; rename it")
    rows = [_row(row) for row in scenarios.astype(object).to_dict("records")]
    results = pd.DataFrame(rows, columns=list(SIMULATED_COLUMNS), index=scenarios.index)
    kinds = dict.fromkeys(_NUMBERS, "float64") | dict.fromkeys(SIMULATED_COLUMNS[len(_NUMBERS) :], "str")
    return pd.concat([scenarios, results.astype(kinds)], axis=1)


def _row(scenario: Mapping[Hashable, object]) -> dict[str, object]:
    given = {str(key): plain for key, cell in scenario.items() if (plain := _told(str(key), cell)) is not None}
    known = part_of(given, _OPTIONS)
    empty: dict[str, object] = dict.fromkeys(_NUMBERS, np.nan) | dict.fromkeys(SIMULATED_COLUMNS[len(_NUMBERS) :], "")
    empty["version"] = __version__
    try:
        if "model" not in given:
            raise InputError("model is empty")
        outcome = simulate(str(given["model"]), str(given.get("gpu", "h100-sxm")), **known)
    except RooflinekitError as error:
        return empty | {"error": str(error)}
    if outcome.interrupted:  # the sweep is, with this row unanswered
        raise KeyboardInterrupt
    row: dict[str, object] = {"gpus": np.nan} | outcome.to_row()
    return empty | {name: np.nan if row[name] is None else row[name] for name in SIMULATED_COLUMNS if name != "error"}


def _told(key: str, cell: Any) -> object:
    """A cell as `simulate` takes it: empty ones None, NumPy's numbers Python's, texts that are numbers read."""
    if cell is None or (not isinstance(cell, (str, list, tuple)) and pd.isna(cell)):
        return None
    plain = cell.item() if isinstance(cell, np.generic) else cell
    return _OPTIONS[key].of_cell(plain) if key in _OPTIONS else plain


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of a sweep, and their place in it."""

    number: int
    rows: Rows


@dataclass(frozen=True)
class SweepJob:
    """Task for each row: estimated or simulated, at a price of its own or at those of the accelerators."""

    simulate: bool = False
    price: float | Mapping[str, float] | None = None
    carbon: tuple[float, str] | None = None  #: grams of CO2 a kWh, and who says so
    run: str = field(default_factory=lambda: uuid4().hex, repr=False, compare=False)  #: what is laid out once for all

    def __post_init__(self) -> None:
        if self.simulate and self.carbon is not None:
            raise InputError("carbon: simulated rows have no energy; leave one of carbon and simulate out")

    def piece_rows(self, columns: tuple[str, ...]) -> int:
        """Rows of a piece; the same however the sweep is run."""
        if self.simulate:
            return _SIMULATED
        return _LOADED if "concurrency" in columns or "rate" in columns else _STATIC


def answer(job: SweepJob, piece: Piece) -> pd.DataFrame:
    """The rows of a piece with their results and costs; what cannot be answered says so in its row."""
    scenarios = piece.rows()
    for column in scenarios.columns:
        if column in (*COST_COLUMNS, CO2_COLUMN):
            raise InputError(f"column {column!r} would be overwritten by a result; rename it")
    faults = scenarios.pop(FAULT) if FAULT in scenarios else None
    if faults is None or (faults == "").all():
        return _answered(job, scenarios)
    good = _answered(job, scenarios[faults == ""])
    rest = scenarios.drop(columns=[name for name in scenarios if name not in good])
    results = good[[name for name in good if name not in rest]].reindex(scenarios.index)
    texts = [name for name in _TEXTS if name in results]
    results[texts] = results[texts].fillna("")
    results["error"] = results["error"].where(faults == "", faults)
    return pd.concat([rest, results], axis=1)


def _answered(job: SweepJob, scenarios: pd.DataFrame) -> pd.DataFrame:
    answers = simulate_frame(scenarios) if job.simulate else answer_table(scenarios, _resolutions(job.run))
    answers = with_costs(answers, job.price)
    if job.carbon is not None and "energy_per_output_token_j" in answers:
        joules = answers["energy_per_output_token_j"].astype(float)
        gpus = answers.get("gpu", pd.Series("h100-sxm", answers.index)).where(joules.notna())
        plug = gpus.map({each: _plug(str(each)) for each in gpus.dropna().unique()}).astype(float)
        answers[CO2_COLUMN] = co2_per_million(np.asarray(joules * plug, float), job.carbon[0])
    return answers


def _plug(gpu: str) -> float:
    """Power at the plug over that of the board."""
    law = load_accelerator(gpu).value.power
    return math.nan if law is None else float(plug_power(1.0, law.host))


@lru_cache(maxsize=1)
def _resolutions(run: str) -> Resolutions:
    """Deployments that this process has laid out for a sweep; files may have changed before the next."""
    return Resolutions()


_COMMA = re.compile(r",(?!\s*[A-Za-z_]+\s*=)")  # between values, not within one such as lognormal:mean=900,cv=1
_MOST_VALUES = 1_000_000
_SLACK = 1e-9  # of a step: the end of a range is in it, whatever decimals lose

_MOST = 10**9


def parse_axis(text: str, name: str, option: OptionRow | None = None) -> list[object]:
    """Read the values of one input.

    `1,2,8` lists; `1:4` is 1, 2, 3, 4; `0:100:25` has steps of 25; `4:64*2` doubles. Both ends are in a range if its
    steps meet them. `default` leaves the input to its default. Numbers take the units of their option; what is none is
    text. What follows a comma as `name=` belongs to the value before it; a semicolon divides values with commas.

    >>> parse_axis("1,2,4:64*2", "batch")
    [1, 2, 4, 8, 16, 32, 64]
    >>> parse_axis("bf16,fp8", "kv"), parse_axis("0.5:1.5:0.5", "rate"), parse_axis("default,8000", "context")
    (['bf16', 'fp8'], [0.5, 1.0, 1.5], [None, 8000])
    >>> parse_axis("lognormal:mean=900,cv=1,512", "isl"), parse_axis("0.8,0.7; 0.9", "acceptance")
    (['lognormal:mean=900,cv=1', 512], ['0.8,0.7', 0.9])
    """
    values: list[Value] = []

    def read(word: str) -> Value:
        plain = _value(word)
        if not isinstance(plain, str) or option is None or option.kind not in ("count", "number", "length"):
            return plain
        try:
            return option.parse(word)
        except ValueError:
            return word

    for word in map(str.strip, text.split(";") if ";" in text else _COMMA.split(text)):
        if not word:
            raise InputError(f"{name} has an empty place in {text!r}; write values like 1,2,4:64*2")
        start, colon, _ = word.partition(":")  # a range begins with a number; others are names, such as window:4096
        is_range = colon and isinstance(read(start), (int, float))
        values += _range(word, name, read) if is_range else [read(word)]
    return values


def _value(word: str) -> object:
    if word.lower() == "default":
        return None
    for kind in (int, float):
        try:
            if math.isfinite(value := kind(word)):
                return value
        except (ValueError, OverflowError):  # no number, or one of four hundred digits
            continue
    return word


def _range(word: str, name: str, read: Callable[[str], Value]) -> list[int | float]:
    start_text, _, rest = word.partition(":")
    geometric = "*" in rest
    end_text, _, step_text = rest.partition("*" if geometric else ":")
    numbers = [read(part) for part in (start_text, end_text, step_text or "1")]
    if any(isinstance(number, str) or number is None for number in numbers) or (geometric and not step_text):
        raise InputError(f"{name}: {word!r} is no range; write 1:8, 1:9:2 (steps of 2) or 4:64*2 (doubling)")
    start, end, step = numbers
    if end < start:
        raise InputError(f"{name}: the range {word!r} ends before it starts")
    if geometric and (step <= 1 or start <= 0):
        raise InputError(f"{name}: {word!r} does not end; a factor is above 1 and the start above 0, as in 4:64*2")
    if not geometric and (step <= 0 or (end - start) / step >= _MOST_VALUES):
        raise InputError(f"{name}: {word!r} does not end or has more than {_MOST_VALUES:,} values")
    if geometric:
        count = math.floor(math.log(end / start) / math.log(step) + _SLACK) + 1
        return [_plain(start * step**place) for place in range(count)]
    return [_plain(start + place * step) for place in range(math.floor((end - start) / step + _SLACK) + 1)]


def _plain(value: float) -> int | float:
    """A whole number as one, and decimals without what binary adds to them."""
    rounded = float(f"{value:.12g}")
    return int(rounded) if rounded == int(rounded) and isinstance(value, int) else rounded


@dataclass(frozen=True)
class Grid:
    """The Cartesian product of named values; the last name varies fastest.

    >>> Grid.of({"model": "gpt2", "batch": [1, 2], "isl": (64, 128)}).frame(1, 3).to_dict("list")
    {'model': ['gpt2', 'gpt2'], 'batch': [1, 2], 'isl': [128, 64]}
    """

    axes: tuple[tuple[str, tuple[Value, ...]], ...]

    @classmethod
    def of(cls, given: Keywords) -> Grid:
        """Read keywords: a list, tuple, range, array or Series is an axis, anything else one value."""
        grid = cls(tuple((name, _values(name, value)) for name, value in given.items()))
        if grid.rows > _MOST:
            raise InputError(f"the grid has {grid.rows:,} combinations; at most {_MOST:,} are answered")
        return grid

    @property
    def rows(self) -> int:
        """Combinations in all."""
        return math.prod(len(values) for _, values in self.axes)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names."""
        return tuple(name for name, _ in self.axes)

    def frame(self, start: int, stop: int) -> pd.DataFrame:
        """Some of the combinations, by number."""
        place = np.arange(start, stop)
        columns: dict[str, Any] = {}
        for name, values in reversed(self.axes):
            place, index = np.divmod(place, len(values))
            columns[name] = _column(values).take(index)
        return pd.DataFrame({name: columns[name] for name in self.columns}, index=pd.RangeIndex(start, stop))

    def pieces(self, size: int, start: int, stop: int) -> Iterator[Rows]:
        """Rows start to stop in pieces; each is made where it is needed."""
        return (partial(self.frame, first, min(first + size, stop)) for first in range(start, stop, size))


def _values(name: str, given: Value) -> tuple[Value, ...]:
    several = isinstance(given, Iterable) and not isinstance(given, (str, bytes, PathLike, Mapping))
    values = tuple(given) if several else (given,)
    if not values:
        raise InputError(f"{name} has no values; give at least one")
    return tuple(_cell(value) for value in values)


def _cell(value: object) -> object:
    """A path as text; a list within a list (acceptance by place) as the text that tables have."""
    if isinstance(value, PathLike):
        return str(value)
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else value


def _column(values: tuple[object, ...]) -> Any:
    """Values of one kind; numbers beside texts become texts, which are read as numbers again."""
    mixed = len({isinstance(value, str) for value in values if value is not None}) > 1
    return pd.Series([None if value is None else str(value) for value in values] if mixed else list(values)).array


WORKBOOKS = (".xlsx", ".xlsm")
_TABLES = (".csv", ".parquet", *WORKBOOKS)


def is_table(name: str) -> bool:
    """True if an argument means a file of scenarios, or "-" standard input, and not a model.

    >>> is_table("plan.XLSX"), is_table("-"), is_table("llama-3-8b"), is_table("config.json")
    (True, True, False, False)
    """
    return name == "-" or Path(name).suffix.lower() in _TABLES


def open_table(name: str, sheet: str | None = None) -> Table:
    """The scenarios of a file, by its suffix."""
    path = Path(name)
    kind = path.suffix.lower()
    if name != "-":
        check_file(path)
    if sheet is not None and kind not in WORKBOOKS:
        raise InputError(f"--sheet names a sheet of a workbook; {name} has none")
    if kind in WORKBOOKS:
        return read_sheet(path, sheet)
    return ParquetTable(name) if kind == ".parquet" else TextTable(name)


def identity(name: str) -> list[object]:
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
        """Read i/n, from 1/n to n/n."""
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


def sweep(model: object, *, simulate: bool = False, pareto: str | None = None, **scenario: Value) -> pd.DataFrame:
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
    job = SweepJob(simulate, check_price(scenario.pop("price", None)), read_carbon(scenario.pop("carbon", None)))
    means = Means(whole_number(scenario.pop("workers", 1), "workers"), scenario.pop("scheduler", None))
    check_inputs(scenario, simulate)
    answers = run(Grid.of({"model": model} | scenario), job, means)
    return pd.concat(list(front_of(answers, goals) if goals else answers), ignore_index=True)


def check_inputs(names: Iterable[str], simulate: bool) -> None:
    """Refuse keywords that nobody reads."""
    known = [*options_of(SimulationOptions)] if simulate else [*INPUT_COLUMNS]
    for name in names:
        if name not in (*known, "model", "gpu"):
            near = nearest(name, [*known, "price", "pareto", "workers"]) or [*WORKLOAD_KEYS, *DEPLOYMENT_KEYS]
            raise InputError(f"unknown option {name!r}; nearest: {', '.join(near)}")


def run(source: Grid | Table, job: SweepJob, means: Means) -> Iterator[pd.DataFrame]:
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
