"""Rows under load: the closed form for all rows of a deployment at once, in the words of `estimate`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rooflinekit.estimation.estimator import Resolved, refuse_static
from rooflinekit.estimation.frames.texts import Rows, Texts
from rooflinekit.estimation.frames.values import Times, values_of
from rooflinekit.estimation.frames.warn import warn_of_lengths
from rooflinekit.estimation.notes import unstable_note, waiting_note
from rooflinekit.estimation.options import options_of
from rooflinekit.estimation.scenario import LOAD_KEYS, WORKLOAD_KEYS, Load
from rooflinekit.model.traffic.closed_form import Traffic, largest_rate, no_room
from rooflinekit.model.traffic.mixing import slots
from rooflinekit.model.traffic.question import LoadQuestion, answer_load, read_load
from rooflinekit.model.types.errors import RooflinekitError
from rooflinekit.model.types.numeric import Array, Numeric

__all__ = ["LoadedRows", "answer_loads", "read_loads"]

_OPTIONS = options_of(Load)
_TRAFFIC = ("isl", "osl", "isl_cv", "osl_cv", "arrival_cv", "requests")
_ENDLESS = ("ttft_ms", "ttft_low_ms", "ttft_high_ms", "e2e_ms", "queue_ms", "ttft_p50_ms", "ttft_p90_ms",
            "ttft_p99_ms", "e2e_p50_ms", "e2e_p90_ms", "e2e_p99_ms")  # fmt: skip
"""Columns that are empty above the knee, where the queue grows without end."""


def read_loads(scenarios: pd.DataFrame) -> pd.DataFrame:
    """The columns that describe traffic, texts that are numbers read; empty cells are None."""
    given = {key: scenarios[key].tolist() for key in LOAD_KEYS if key in scenarios}
    read = {key: pd.Series([_cell(key, cell) for cell in cells], dtype=object) for key, cells in given.items()}
    return pd.DataFrame(read, index=pd.RangeIndex(len(scenarios)))


def _cell(key: str, cell: object) -> object:
    empty = cell is None or cell is pd.NA or (isinstance(cell, float) and math.isnan(cell))
    return None if empty else _OPTIONS[key].of_cell(cell)


@dataclass(frozen=True)
class LoadedRows:
    """Rows of one kind, closed, sustained or not, and their numbers by column."""

    rows: Rows
    values: dict[str, Numeric]


def answer_loads(
    resolved: Resolved, rows: Rows, work: dict[str, Array], loads: pd.DataFrame, texts: dict[str, Texts]
) -> Iterator[LoadedRows]:
    """Answer these rows of one deployment; `work` and `loads` are of the whole table, `texts` take what is said."""
    errors, warnings = texts["error"], texts["warnings"]
    questions = _read(rows, work, loads.iloc[rows], errors)
    there = errors.empty(rows)
    if not len(there):
        return
    asked = _Asked.of(there, [question for question in questions if question is not None])
    for part in _kinds(resolved, asked, errors):
        answer = _answer(resolved, part)
        _warn(warnings, resolved, part, answer.values)
        yield answer
    warn_of_lengths(warnings, errors.empty(there), resolved, work)


def _read(rows: Rows, work: dict[str, Array], loads: pd.DataFrame, errors: Texts) -> list[LoadQuestion | None]:
    """The question of every row; None where an error is said instead."""
    counts, cells = ({key: work[key][rows].tolist() for key in WORKLOAD_KEYS}, loads.to_dict("list"))
    questions: list[LoadQuestion | None] = []
    for place, row in enumerate(rows):
        load = {str(key): column[place] for key, column in cells.items()}
        static = {key: None if math.isnan(column[place]) else column[place] for key, column in counts.items()}
        try:
            load = {key: _OPTIONS[key].check(key, cell) for key, cell in load.items() if cell is not None}
            question = read_load(load, counts["isl"][place], counts["osl"][place])
            refuse_static(static)
        except RooflinekitError as error:
            errors.put(np.array([row]), str(error))
            question = None
        questions.append(question)
    return questions


@dataclass(frozen=True)
class _Asked:
    """Questions of rows, as arrays: NaN for a load of the other kind, infinite objectives where there are none."""

    rows: Rows
    users: Array
    rate: Array
    traffic: dict[str, Array]
    goals: tuple[Array, Array]

    @classmethod
    def of(cls, rows: Rows, questions: list[LoadQuestion]) -> _Asked:
        def column(cells: Iterable[Numeric | None], empty: float) -> Array:
            return np.array([empty if cell is None else cell for cell in cells], float)

        return cls(
            rows,
            column((question.users for question in questions), math.nan),
            column((question.rate for question in questions), math.nan),
            {name: column((getattr(q.traffic, name) for q in questions), math.nan) for name in _TRAFFIC},
            (column((q.ttft for q in questions), math.inf), column((q.tpot for q in questions), math.inf)),
        )

    def __getitem__(self, chosen: NDArray[np.bool_]) -> _Asked:
        traffic = {name: column[chosen] for name, column in self.traffic.items()}
        ttft, tpot = self.goals
        return _Asked(self.rows[chosen], self.users[chosen], self.rate[chosen], traffic, (ttft[chosen], tpot[chosen]))

    @property
    def closed(self) -> NDArray[np.bool_]:
        """Which rows are closed loops."""
        return ~np.isnan(self.users)

    @property
    def question(self) -> LoadQuestion:
        """All as one question: the rows are of one kind."""
        closed, goals = bool(self.closed[0]), (goal if np.isfinite(goal).any() else None for goal in self.goals)
        return LoadQuestion(
            self.users if closed else None, None if closed else self.rate, Traffic(**self.traffic), *goals
        )


def _kinds(resolved: Resolved, asked: _Asked, errors: Texts) -> Iterator[_Asked]:
    """Rows that fit, apart where they are closed loops, loads below the knee, and loads above it."""
    predictor, lengths = resolved.predictor, asked.traffic
    fits = np.asarray(slots(predictor, lengths["isl"], lengths["osl"]) >= 1.0)
    for row, isl, osl in zip(asked.rows[~fits], lengths["isl"][~fits], lengths["osl"][~fits], strict=True):
        errors.put(np.array([row]), str(no_room(predictor, Traffic(float(isl), float(osl)))))
    asked = asked[fits]
    opened = asked[~asked.closed]
    over = np.zeros(len(opened.rows), bool)
    if len(over):
        traffic = opened.question.traffic
        knee = largest_rate(predictor, traffic, slots(predictor, traffic.isl, traffic.osl))
        over = np.asarray(opened.rate >= knee)
    yield from (part for part in (asked[asked.closed], opened[~over], opened[over]) if len(part.rows))


def _answer(resolved: Resolved, asked: _Asked) -> LoadedRows:
    """What `estimate` says of one such row, of all of them."""
    predictor, question, osl = resolved.predictor, asked.question, asked.traffic["osl"]
    found = answer_load(predictor, question)
    loaded = found.loaded
    held = found.memory(predictor)
    times = Times(loaded.ttft, loaded.tpot, loaded.e2e, np.minimum(loaded.rate, loaded.knee) * osl)
    values = values_of(times, held, resolved.plan.deployment.gpus) | {"stable": loaded.stable}
    values |= {name: value for name, value in found.values(predictor).items() if value is not None}
    wanted = np.isfinite(asked.goals[0]) | np.isfinite(asked.goals[1])
    lasting = np.asarray(loaded.stable) == 1.0
    values["goodput"] = np.where(wanted, np.where(lasting, values.get("goodput", np.nan), 0.0), np.nan)
    values |= {name: np.where(lasting, values[name], np.nan) for name in _ENDLESS}
    return LoadedRows(asked.rows, values | {"slots": np.floor(values["slots"])})


def _warn(said: Texts, resolved: Resolved, asked: _Asked, values: dict[str, Numeric]) -> None:
    """What `estimate` says of the load, and then of the deployment."""
    room, rate, knee = (np.broadcast_to(values[n], len(asked.rows)) for n in ("slots", "request_rate", "knee_rate"))
    over = np.broadcast_to(values["stable"], len(asked.rows)) == 0.0
    said.append(asked.rows[over], [rate[over], knee[over]], unstable_note)
    late = asked.users > room
    said.append(asked.rows[late], [room[late], asked.users[late]], waiting_note)
    if resolved.warnings:
        said.append(asked.rows, [], lambda: "; ".join(resolved.warnings))
