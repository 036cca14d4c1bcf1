"""Predictions of kernels against measured tables: errors, bias and coverage by group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rooflinekit.evidence.board_power import READINGS, power_of
from rooflinekit.evidence.kernel_fit.groups import KEY, Group, kernel_groups, read_kernel_tables
from rooflinekit.evidence.kernel_fit.tables import Measured
from rooflinekit.model.roofline import time_kernel
from rooflinekit.model.timing.calibrated import Calibration
from rooflinekit.model.types.answer import Json
from rooflinekit.model.types.errors import InputError, RooflinekitError, SpecError
from rooflinekit.model.types.hardware import Accelerator, System
from rooflinekit.model.types.numeric import Array
from rooflinekit.model.types.time import KernelTime
from rooflinekit.specs import load_accelerator
from rooflinekit.specs.calibration.choose import choose_calibration, serving_engine, stand_in
from rooflinekit.specs.calibration.load import load_calibration
from rooflinekit.version import __version__

FIGURES = ("median_ape", "mape", "p90_ape", "bias", "median_bias", "coverage90", "coverage80", "width", "width80",
            "interval_score")  # fmt: skip
POWER = "power_w"


@dataclass(frozen=True)
class Score:
    """Errors of one group as fractions of the measured value; `bias` is the mean signed error.

    median_bias: the median of predicted / measured, less 1. coverage90, coverage80: shares of the rows
    inside the intervals; width, width80: medians of their high over low ends; interval_score: of the 90 % interval, the
    mean of log(high / low) and 20 times the logarithm by which a row lies outside (Gneiting and Raftery 2007, Winkler's
    score); None at level bound. `calibration` names those that were used, with their hashes; empty at level bound.
    """

    key: dict[str, str]
    n: int
    answered: int
    median_ape: float | None
    mape: float | None
    p90_ape: float | None
    bias: float | None
    median_bias: float | None
    coverage90: float | None
    coverage80: float | None
    width: float | None
    width80: float | None
    interval_score: float | None
    calibration: str = ""


@dataclass(frozen=True)
class Accuracy:
    """All groups of some tables, and the median over groups for each operation."""

    rows: int
    answered: int
    unanswered: dict[str, int]
    groups: tuple[Score, ...]
    by: str = "op"  #: the key that the summary is by: op, metric or quantity

    @classmethod
    def of(cls, scores: Sequence[Score], unanswered: Mapping[str, int], by: str) -> Accuracy:
        """Groups with their answered rows, and the rows that nobody answers."""
        answered = sum(group.answered for group in scores)
        return cls(answered + sum(unanswered.values()), answered, dict(unanswered), tuple(scores), by)

    @property
    def kinds(self) -> dict[str, list[Score]]:
        """Groups by operation, metric or quantity; the power of an operation is a kind of its own."""
        found: dict[str, list[Score]] = {}
        for group in self.groups:
            power = f" {POWER}" if self.by == "op" and "metric" in group.key else ""
            found.setdefault(group.key[self.by] + power, []).append(group)
        return found

    @property
    def summary(self) -> dict[str, dict[str, float | None]]:
        """By kind: the median over its groups of each figure."""
        found: dict[str, dict[str, float | None]] = {}
        for kind, own in self.kinds.items():
            for figure in FIGURES:
                known = [value for group in own if (value := getattr(group, figure)) is not None]
                found.setdefault(kind, {})[figure] = float(np.median(known)) if known else None
        return found

    @property
    def calibrations(self) -> dict[str, str]:
        """Hash of every calibration that was used, by its name."""
        used = sorted({one for group in self.groups for one in group.calibration.split(", ") if one})
        return dict(one.rsplit(" ", 1) for one in used)

    def to_dict(self) -> Json:
        """The JSON of the contract, and what made it."""
        groups = [{key: cell for key, cell in asdict(group).items() if key != "calibration"} for group in self.groups]
        counts = {"rows": self.rows, "answered": self.answered, "unanswered": self.unanswered}
        made = {"version": __version__, "calibrations": self.calibrations}
        return counts | {"groups": groups, "summary": self.summary} | made


def scored(rows: pd.DataFrame, key: Sequence[str]) -> tuple[Score, ...]:
    """One score for each combination of the `key` columns.

    rows: `value`, `predicted` (NaN where there is none), `low`, `high` (equal, or NaN, at level bound), `calibration`,
    and `low80`, `high80` where errors are not normal on either side of the prediction.
    """
    found = []
    for names, own in rows.groupby([rows[name].astype(str) for name in key]):
        known = own[own["predicted"].notna()]
        value, predicted, low, high = known[_TIMES].to_numpy(dtype=float).T
        used = ", ".join(sorted(set(own["calibration"]) - {""}))
        figures: dict[str, float | None] = dict.fromkeys(FIGURES)
        if len(value):
            error = predicted / value - 1.0
            size = np.abs(error)
            middle = np.median(predicted / value) - 1.0
            each = np.median(size), np.mean(size), np.quantile(size, 0.9), np.mean(error), middle
            figures |= dict(zip(FIGURES, map(float, each), strict=False))
            if not ((low == high).all() or np.isnan(low).all()):
                figures |= _intervals(known, value, predicted, low, high)
        named = dict(zip(key, map(str, names), strict=True))
        found.append(Score(named, len(own), len(value), **figures, calibration=used))
    return tuple(found)


_TIMES = ["value", "predicted", "low", "high"]
_OF_NORMAL = 1.2816 / 1.645  # ends of 80 % over those of 90 %, as logarithms
_OUTSIDE = 2.0 / 0.1


def _intervals(rows: pd.DataFrame, value: Array, predicted: Array, low: Array, high: Array) -> dict[str, float | None]:
    near = [predicted * (end / predicted) ** _OF_NORMAL for end in (low, high)]
    if "low80" in rows:
        told = rows[["low80", "high80"]].to_numpy(dtype=float).T
        near = [np.where(np.isnan(end), usual, end) for end, usual in zip(told, near, strict=True)]
    with np.errstate(divide="ignore"):
        outside = np.maximum(np.log(low / value), 0.0) + np.maximum(np.log(value / high), 0.0)
        widths = [np.log(high / low), np.log(near[1] / near[0])]
    return {
        "coverage90": float(np.mean((value >= low) & (value <= high))),
        "coverage80": float(np.mean((value >= near[0]) & (value <= near[1]))),
        **{name: float(np.exp(np.median(width))) for name, width in zip(("width", "width80"), widths, strict=True)},
        "interval_score": float(np.mean(widths[0] + _OUTSIDE * outside)),
    }


def kernel_accuracy(
    files: Sequence[Path],
    calibration: str | None = None,
    progress: Callable[[str], None] | None = None,
    gpu: str | None = None,
) -> Accuracy:
    """Score kernel tables; rows are predicted warm, as they were measured.

    `calibration` is a name, a path, "none" for the datasheet bound, or None for the one that `estimate` would take.
    `gpu` is the file of an accelerator of one's own, for the rows that name it.
    A row that cannot be answered (an unknown accelerator, a format it lacks) is counted with its reason. A column
    `power_w` is scored too, each kernel in its measured time, where three readings or more stand behind it
    (`samples_min`).
    """
    unanswered: Counter[str] = Counter()
    given = calibration if calibration in (None, "none") else load_calibration(calibration)
    own = load_accelerator(gpu).value if gpu is not None else None
    scores: list[Score] = []
    for path in files:
        for operation, table in read_kernel_tables(path, unanswered):
            groups = list(kernel_groups(operation, table))
            timed = pd.concat([_timed(group, given, own, unanswered, progress) for group in groups])
            scores += scored(timed, ["op", *(name for name in KEY if name in groups[0].named)])  # layouts together
            for group in groups if POWER in table else ():
                read = group.table[group.table[POWER].notna()].reset_index(drop=True)
                if len(read):
                    powered = _powered(replace(group, table=read), given, own, unanswered)
                    scores += scored(powered, ["op", *group.named, "metric"])
    if not (scores or unanswered):
        raise SpecError(f"{', '.join(file.name for file in files)}: no measured kernels; `compare` takes whole steps")
    return Accuracy.of(scores, unanswered, "op")


def _rows(group: Group, columns: Sequence[Array | pd.Series[Any]], **more: str) -> pd.DataFrame:
    """Rows to be scored: the value, and where there is one the prediction with both ends of its interval."""
    found = dict(zip(_TIMES, columns, strict=False))
    missing = dict.fromkeys(_TIMES[len(columns) :], np.nan)
    return pd.DataFrame(found).assign(**missing, op=group.operation, **group.named, **more)


def _timed(
    group: Group,
    asked: Calibration | str | None,
    own: Accelerator | None,
    unanswered: Counter[str],
    progress: Callable[[str], None] | None,
) -> pd.DataFrame:
    """The measured times of a group [s], predicted where they can be."""
    if progress is not None:
        progress(f"{group.operation} {' '.join(value for name, value in group.named.items() if name in KEY)}")
    try:
        system, chosen = timed_with(group, asked, own)
        if chosen is not None and chosen.within_attention(group.key, serving_engine(group.engine)):
            raise InputError(f"the calibration of {group.engine} has the write of the cache within attention")
        rows, timed = timed_rows(group, system, chosen)
    except RooflinekitError as error:
        unanswered[str(error)] += len(group.table)
        return _rows(group, [group.table["latency_us"] * 1e-6], calibration="")
    ends = ([getattr(each, part) for each in timed] for part in ("expected", "low", "high"))
    return _rows(group, [rows.time, *map(rows.joined, ends)], calibration=signature(chosen))


def _powered(
    group: Group, asked: Calibration | str | None, own: Accelerator | None, unanswered: Counter[str]
) -> pd.DataFrame:
    """The measured power of a group's kernels [W], predicted where it can be."""
    marks, power = {"metric": POWER, "calibration": ""}, group.table[POWER]
    try:
        system, chosen = timed_with(group, asked, own)
        columns = power_of(group, system.accelerator, chosen)
    except RooflinekitError as error:
        unanswered[str(error)] += len(power)
        return _rows(group, [power], **marks)
    if few := len(power) - len(columns[0]):
        unanswered[f"{POWER} of fewer than {READINGS} readings shows the start of a run"] += few
    return pd.concat([_rows(group, columns, **marks), _rows(group, [power[:few]], **marks)])


def signature(calibration: Calibration | None) -> str:
    """Name and hash of a calibration; empty for none."""
    return f"{calibration.name} {calibration.hash}" if calibration else ""


def timed_with(
    group: Group, asked: Calibration | str | None, own: Accelerator | None
) -> tuple[System, Calibration | None]:
    """The accelerator that the rows name, and the calibration asked for, "none", or that of `estimate` for None."""
    known = own if own is not None and group.gpu in (own.name, *own.aliases) else load_accelerator(group.gpu).value
    system = System.of(known)
    engine = serving_engine(group.engine)
    if isinstance(asked, Calibration):
        return system, stand_in(asked, system.accelerator, engine)[0]
    return system, None if asked == "none" else choose_calibration(system.accelerator, engine)[0]


def timed_rows(
    group: Group, system: System, calibration: Calibration | None
) -> tuple[Measured, tuple[KernelTime, ...]]:
    """The rows as kernels, and the times of each kernel by the fit of the group's key."""
    rows = group.on(system.accelerator).rows(calibration)
    family, dtype, *variant = group.key.split("/")
    label = "/".join(variant)
    if calibration is not None and f"{family}/{dtype}/{label}" not in calibration.families:
        label = label.removesuffix("eager").removesuffix("/").removeprefix("nccl_")
    if calibration is not None and family == "sparse_attention":
        label = calibration.nearest_label(family, dtype, label)
    kernels = tuple(replace(kernel, variant=label) for kernel in rows.kernels)
    warm = rows.warm and calibration is not None
    return replace(rows, kernels=kernels), tuple(time_kernel(each, system, calibration, warm) for each in kernels)
