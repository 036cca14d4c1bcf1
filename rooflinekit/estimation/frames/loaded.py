"""Rows under load: the closed form for all rows of a deployment at once, in the words of `estimate`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from rooflinekit.estimation.estimator import Resolved, refuse_static
from rooflinekit.estimation.frames.columns import numbers_of, power_columns
from rooflinekit.estimation.frames.texts import Rows, Texts
from rooflinekit.estimation.notes import load_remarks
from rooflinekit.estimation.options import options_of, read
from rooflinekit.estimation.scenario import LOAD_KEYS, WORKLOAD_KEYS, Load
from rooflinekit.model.traffic.closed_form import Traffic, largest_rate, no_room
from rooflinekit.model.traffic.energy import load_power, served_energy
from rooflinekit.model.traffic.mixing import slots
from rooflinekit.model.traffic.question import LoadQuestion, answer_load, read_load
from rooflinekit.model.types.errors import RooflinekitError
from rooflinekit.model.types.numeric import Array, Numeric

_OPTIONS = options_of(Load)
_TRAFFIC = ("isl", "osl", "isl_cv", "osl_cv", "arrival_cv", "requests")
_GOALS = ("ttft", "tpot")
_ASKED = ("users", "rate", *_GOALS)
_ENDLESS = ("ttft_ms", "ttft_low_ms", "ttft_high_ms", "e2e_ms", "queue_ms", "ttft_p50_ms", "ttft_p90_ms",
            "ttft_p99_ms", "e2e_p50_ms", "e2e_p90_ms", "e2e_p99_ms")  # fmt: skip
"""Columns that are empty above the knee, where the queue grows without end."""


def read_loads(scenarios: pd.DataFrame) -> pd.DataFrame:
    """The columns that describe traffic, texts that are numbers read; empty cells are None."""
    given = {key: scenarios[key] for key in LOAD_KEYS if key in scenarios}
    cells = {
        key: pd.Series(
            [None if pd.isna(cell) else _OPTIONS[key].of_cell(cell) for cell in column.tolist()], dtype=object
        )
        for key, column in given.items()
    }
    return pd.DataFrame(cells, index=pd.RangeIndex(len(scenarios)))


def answer_loads(
    resolved: Resolved, rows: Rows, work: Mapping[str, Array], loads: pd.DataFrame, texts: dict[str, Texts]
) -> Iterator[tuple[Rows, dict[str, Numeric]]]:
    """Rows of one deployment with their numbers by column; `work` and `loads` are of the whole table."""
    asked = _asked(rows, work, loads.iloc[rows], texts["error"])
    for part in _kinds(resolved, asked, texts["error"]):
        values, where = _answer(resolved, part), part.index.to_numpy()
        stable, rate, knee, room = (values[name] for name in ("stable", "request_rate", "knee_rate", "slots"))
        users = part["users"].to_numpy() if _closed(part) else None
        texts["warnings"].append(where, load_remarks(stable, rate, knee, users, room))
        yield where, values


def _asked(rows: Rows, work: Mapping[str, Array], loads: pd.DataFrame, errors: Texts) -> pd.DataFrame:
    """What rows ask, as numbers: NaN for a load of the other kind and for absent objectives; errors are said."""
    counts = {key: work[key][rows].tolist() for key in WORKLOAD_KEYS}
    found: dict[int, dict[str, Any]] = {}
    for place, (row, load) in enumerate(zip(rows.tolist(), loads.to_dict("records"), strict=True)):
        try:
            given = read(Load, {str(key): cell for key, cell in load.items()})
            question = read_load(given, counts["isl"][place], counts["osl"][place])
            refuse_static({key: None if math.isnan(column[place]) else column[place] for key, column in counts.items()})
        except RooflinekitError as error:
            errors.put(row, str(error))
            continue
        if question is not None:
            asked = {name: getattr(question, name) for name in _ASKED}
            found[row] = asked | {name: getattr(question.traffic, name) for name in _TRAFFIC}
    return pd.DataFrame.from_dict(found, orient="index", dtype=float)


def _closed(asked: pd.DataFrame) -> bool:
    return bool(asked["users"].notna().iloc[0])


def _question(asked: pd.DataFrame) -> LoadQuestion:
    """All rows as one question: they are of one kind."""
    users, rate, *goals = (asked[name].to_numpy() for name in _ASKED)
    objectives = (None if np.isnan(goal).all() else np.where(np.isnan(goal), math.inf, goal) for goal in goals)
    traffic = Traffic(**{name: asked[name].to_numpy() for name in _TRAFFIC})
    closed = _closed(asked)
    return LoadQuestion(users if closed else None, None if closed else rate, traffic, *objectives)


def _kinds(resolved: Resolved, asked: pd.DataFrame, errors: Texts) -> Iterator[pd.DataFrame]:
    """Rows that fit, apart where they are closed loops, loads below the knee, and loads above it."""
    if asked.empty:
        return
    predictor = resolved.predictor
    fits = np.asarray(slots(predictor, asked["isl"].to_numpy(), asked["osl"].to_numpy()) >= 1.0)
    for row, isl, osl in asked.loc[~fits, ["isl", "osl"]].itertuples():
        errors.put(row, str(no_room(predictor, Traffic(isl, osl))))
    asked = asked[fits]
    closed, opened = asked[asked["users"].notna()], asked[asked["users"].isna()]
    over = np.zeros(len(opened), bool)
    if len(opened):
        traffic = _question(opened).traffic
        knee = largest_rate(predictor, traffic, slots(predictor, traffic.isl, traffic.osl))
        over = np.asarray(opened["rate"].to_numpy() >= knee)
    yield from (part for part in (closed, opened[~over], opened[over]) if len(part))


def _answer(resolved: Resolved, asked: pd.DataFrame) -> dict[str, Numeric]:
    """What `estimate` says of one such row, of all of them."""
    predictor, question = resolved.predictor, _question(asked)
    found = answer_load(predictor, question)
    loaded = found.loaded
    rate = np.minimum(loaded.rate, loaded.knee) * question.traffic.osl
    times, gpus = {"ttft": loaded.ttft, "tpot": loaded.tpot}, resolved.plan.deployment.gpus
    served = served_energy(predictor, question.traffic, loaded)
    values = numbers_of(times, loaded.e2e, rate, found.memory(predictor), gpus)
    values |= power_columns(None if served is None else load_power(served, question.traffic.osl, rate))
    values |= {name: value for name, value in found.values(predictor).items() if value is not None}
    lasting, wanted = np.asarray(loaded.stable) == 1.0, asked[list(_GOALS)].notna().any(axis=1).to_numpy()
    values["goodput"] = np.where(wanted, np.where(lasting, values.get("goodput", np.nan), 0.0), np.nan)
    values |= {name: np.where(lasting, values[name], np.nan) for name in _ENDLESS}
    return values | {"slots": np.floor(values["slots"]), "stable": loaded.stable}
