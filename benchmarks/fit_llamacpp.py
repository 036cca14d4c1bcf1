"""Fit what llama.cpp reaches on machines at home from published llama-bench and llama-batched-bench rows.

    python benchmarks/fit_llamacpp.py [TABLE...] [--write hardware_specs/calibrations]

benchmarks/llamacpp.csv holds public rows; TABLE is a serving table (docs/accuracy.md) whose rows of llama.cpp join
them. A step is the sum of its kernels, so whole steps pin only a few parameters: the latency of a launch, the shares of
bandwidth and peak of matrices, experts and attention. A machine of few rows starts from the fit of a like one. Groups
of rows (one model in one format) weigh alike. Each group is also predicted from the others of its accelerator; those
errors are printed and make the interval.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from rooflinekit.model.kernels.gemm import IN_BLOCKS
from rooflinekit.model.step import Plan, make_plan
from rooflinekit.model.timing.calibrated import Calibration, FamilyFit, Regimes
from rooflinekit.model.timing.forms import FORMS, ExpertsTime, parameters
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.dtype import parse_dtype
from rooflinekit.model.types.errors import RooflinekitError
from rooflinekit.model.types.hardware import System
from rooflinekit.model.types.kernel import FAMILIES
from rooflinekit.specs import load_accelerator, load_model
from rooflinekit.specs.calibration.write import Heading, render
from rooflinekit.specs.engines import load_engine

ROWS = Path(__file__).with_name("llamacpp.csv")
ENGINE = "llama.cpp"
_FEWEST = 2  # models and formats from which an accelerator is fitted
_WITH = {"h100-sxm": "h100-pcie"}
"""Boards whose rows join those of another with the same chip, which reaches the same shares of its rates."""
_MANY = 20  # rows of a machine that stands by itself; one of fewer starts from the nearest of these: both are choices
_NEAR = 0.3  # one standard error of a logarithm there, an assumption


@dataclass(frozen=True)
class Parameter:
    """One number that is fitted: where it starts, and which parameters of which forms it sets."""

    start: float
    low: float
    high: float
    places: Mapping[str, str]
    stiff: float = 0.7  #: one standard error of the start value's logarithm: an assumption


_PLAIN = ("elementwise", "embedding", "sampling", "kv_append")
_LAUNCHED = tuple(family for family in FAMILIES if family not in ("kv_append", "collective"))
PARAMETERS = {
    "launch": Parameter(4.0, 0.2, 60.0, dict.fromkeys((*_LAUNCHED, IN_BLOCKS), "launch")),
    "memory": Parameter(0.85, 0.3, 1.05, dict.fromkeys(("gemm", *_PLAIN), "memory"), stiff=0.08),
    "compute": Parameter(0.5, 0.05, 1.05, {"gemm": "compute"}),
    "block_memory": Parameter(0.75, 0.3, 1.05, {IN_BLOCKS: "memory"}),
    "block_compute": Parameter(0.4, 0.05, 1.05, {IN_BLOCKS: "compute"}),
    "decode": Parameter(0.5, 0.1, 1.05, {"attention_decode": "memory", "mla_decode": "memory"}),
    "tile": Parameter(3.0, 0.01, 60.0, {"attention_decode": "tile"}),
    "prefill": Parameter(0.2, 0.03, 1.05, {"attention_prefill": "compute", "mla_prefill": "compute"}),
    "expert_memory": Parameter(0.6, 0.05, 1.05, {"moe": "memory"}),
    "expert_compute": Parameter(0.2, 0.01, 1.05, {"moe": "compute"}),
}
_ZERO = (
    "depth_root", "depth", "split", "length", "longest", "sort", "expert", "row", "passes", "foreign", "rows", "tile",
)  # fmt: skip
_KEPT = {(ExpertsTime, "passes"): 1.0}


@dataclass(frozen=True)
class Row:
    """One measured rate as the time of a step or a prompt [s]."""

    gpu: str
    model: str
    weights: str
    batch: Batch
    seconds: float

    @property
    def group(self) -> tuple[str, str]:
        return self.model, self.weights


def read(tables: Sequence[Path]) -> list[Row]:
    """The rows of all tables; of formats whose recipe is not public, none."""
    rows = [_row(row) for row in pd.read_csv(ROWS).itertuples()]
    for table in tables:
        found = pd.read_csv(table, dtype={"engine_version": str})
        found = found[(found["tier"] != "C") & found["source_key"].str.match(r"spark|strix")]
        fresh = found[(found["metric"] == "tpot_ms") | ~found["notes"].str.contains("already in the cache")]
        known = fresh[~fresh["weight_dtype"].str.startswith("ud-")]
        names = {"weight_dtype": "weights", "concurrency": "batch", "isl": "context"}
        rows += [_row(row) for row in known.rename(columns=names).astype({"batch": int}).itertuples()]
    return rows


def _row(row: Any) -> Row:
    batch, context, value = float(row.batch), float(row.context), float(row.value)
    if row.metric in ("pp_tok_s", "prefill_tok_s"):
        return Row(row.gpu, row.model, row.weights, Batch.prefill(batch, context), batch * context / value)
    seconds = value / 1e3 if row.metric == "tpot_ms" else batch / value
    return Row(row.gpu, row.model, row.weights, Batch.decode(batch, context + row.osl / 2.0), seconds)


@cache
def plan(gpu: str, model: str, weights: str) -> Plan:
    """The plan of a model in one format, without a calibration."""
    deployment = Deployment(weights=parse_dtype(weights) if weights != "mxfp4" else None, engine=ENGINE)
    system = System.of(load_accelerator(gpu).value)
    return make_plan(load_model(model).value, deployment, system, None, load_engine(ENGINE))


@dataclass(frozen=True)
class Evidence:
    """What a fit rests on: rows, families that they hold, mean error and 90 % factor of rows left out, errors of the
    parameters' logarithms."""

    rows: int = 0
    families: frozenset[str] = frozenset()
    error: float = 0.0
    width: float = 2.0
    spread: Mapping[str, float] = field(default_factory=dict)


def calibration(gpu: str, values: Mapping[str, float], seen: Evidence = Evidence()) -> Calibration:
    """A calibration in which each family has its usual form, with what was fitted put in its place."""
    families = {}
    for family in (*FAMILIES, IN_BLOCKS):
        kind = FORMS["gemm" if family == IN_BLOCKS else family]
        known = parameters(kind)
        chosen = {name: 0.0 if name in _ZERO else bound.usual * bound.scale for name, bound in known.items()}
        chosen |= {name: bound.usual for name, bound in known.items() if bound.choices}
        chosen |= {name: value for (form, name), value in _KEPT.items() if form is kind}
        if family == "kv_append":
            chosen["launch"] = 0.0  # part of the attention
        own = {}
        for name, parameter in PARAMETERS.items():
            if place := parameter.places.get(family):
                bound = known[place]
                chosen[place] = min(max(values[name], bound.low), bound.high) * bound.scale
                own[place] = seen.spread.get(name, 0.0) * chosen[place]
        frozen = tuple(name for name, bound in known.items() if name not in own and not bound.choices)
        measured = family in seen.families
        told = f"{seen.rows} whole steps and prompts" if measured else "assumption: launch and shares of the matrices"
        regimes = Regimes("", (), (seen.width if measured else max(seen.width, 2.0),))
        about = (seen.rows, seen.error) if measured else (0, 0.0)
        fit_of = FamilyFit(kind(**chosen), own, frozen, None, regimes, *about, told)
        for key in [f"gemm/{dtype}/{IN_BLOCKS}" for dtype in ("bf16", "fp16")] if family == IN_BLOCKS else [family]:
            families[key] = fit_of
    return Calibration(f"{gpu}--{ENGINE}", "", gpu, ENGINE, families, "")


def predict(rows: Sequence[Row], values: Mapping[str, float]) -> np.ndarray:
    """Time of each row [s]."""
    if not rows:
        return np.empty(0)
    made = calibration(rows[0].gpu, values)
    return np.array([float(replace(plan(*_key(row)), calibration=made).time(row.batch).expected) for row in rows])


def _key(row: Row) -> tuple[str, str, str]:
    return row.gpu, row.model, row.weights


def fit(rows: Sequence[Row], near: Mapping[str, float] | None = None) -> tuple[dict[str, float], dict[str, float]]:
    """Parameters, and one standard error of the logarithm of each; `near`: those of a like machine with more rows."""
    sizes: dict[tuple[str, str], int] = defaultdict(int)
    for row in rows:
        sizes[row.group] += 1
    weight = np.array([1.0 / math.sqrt(sizes[row.group]) for row in rows])
    measured, names = np.array([row.seconds for row in rows]), list(PARAMETERS)
    start = np.log([near[name] if near else PARAMETERS[name].start for name in names])
    stiff = np.array([_NEAR if near else PARAMETERS[name].stiff for name in names])

    def residuals(point: np.ndarray) -> np.ndarray:
        error = np.log(predict(rows, dict(zip(names, np.exp(point), strict=True))) / measured) * weight / 0.1
        return np.concatenate([error, (point - start) / stiff])

    bounds = np.log([[getattr(PARAMETERS[name], end) for name in names] for end in ("low", "high")])
    found = least_squares(residuals, start, bounds=bounds, loss="soft_l1", diff_step=1e-3, max_nfev=40)
    covariance = np.linalg.inv(found.jac.T @ found.jac)
    values = dict(zip(names, np.exp(found.x), strict=True))
    return values, dict(zip(names, np.sqrt(np.diag(covariance)), strict=True))


def measured_families(rows: Sequence[Row]) -> frozenset[str]:
    """Families of kernels that take a part of these rows, as far as they have parameters."""
    found = {"gemm", "attention_decode"}
    found |= {IN_BLOCKS for row in rows if row.weights != "fp16"}
    found |= {"attention_prefill" for row in rows if row.batch.prefilling is not None}
    found |= {"moe" for row in rows if any(kernel.family == "moe" for kernel in plan(*_key(row)).kernels(row.batch))}
    return frozenset(found)


def nearest(gpu: str, known: Iterable[str]) -> str:
    """The machine of the same maker, of the same architecture if there is one; empty if the maker has none."""
    own = load_accelerator(gpu).value
    others = [each for each in (load_accelerator(name).value for name in known) if each.vendor == own.vendor]
    alike = [each for each in others if each.architecture.split()[0] == own.architecture.split()[0]]
    return next((each.name for each in alike + others), "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", type=Path)
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    by_gpu: dict[str, list[Row]] = defaultdict(list)
    for row in read(given.tables):
        try:
            plan(*_key(row))
        except RooflinekitError as error:
            print(f"left out: {row.gpu} {row.model} {row.weights}: {error}")
            continue
        by_gpu[_WITH.get(row.gpu, row.gpu)].append(row)
    fits: dict[str, dict[str, float]] = {}
    widths: dict[str, float] = {}
    for gpu, rows in sorted(by_gpu.items(), key=lambda each: len(each[1]) < _MANY):
        like = nearest(gpu, fits) if len(rows) < _MANY else ""
        near = fits.get(like)
        groups = list(dict.fromkeys(row.group for row in rows))
        if len(groups) < _FEWEST:
            continue
        unseen: dict[tuple[str, str], np.ndarray] = {}
        for group in groups:
            left = [row for row in rows if row.group == group]
            values, _ = fit([row for row in rows if row.group != group], near)
            unseen[group] = np.log(predict(left, values) / np.array([row.seconds for row in left]))
            steps = [error for error, row in zip(unseen[group], left, strict=True) if row.batch.prefilling is None]
            one = np.array([abs(math.expm1(error)) for error, row in zip(unseen[group], left, strict=True)
                            if row.batch.prefilling is None and float(row.batch.sequences) == 1.0])  # fmt: skip
            told = f"one sequence {one.mean():.0%}, " if len(one) else ""
            print(f"  {gpu} without {' '.join(group)}: {told}decode {np.abs(np.expm1(steps)).mean():.0%}, "
                  f"all {np.abs(np.expm1(unseen[group])).mean():.0%} of {len(left)}")  # fmt: skip
        values, spread = fit(rows, near)
        if len(rows) >= _MANY:
            fits[gpu] = values
        errors = np.log(predict(rows, values) / np.array([row.seconds for row in rows]))
        kept = np.concatenate(list(unseen.values()))
        width, error = math.exp(np.quantile(np.abs(kept), 0.9)), float(np.mean(np.abs(np.expm1(kept))))
        width = widths[gpu] = max(width, widths.get(like, 1.0))  # a few rows of one build do not show the variety
        seen = np.abs(np.expm1(errors)).mean()
        print(f"{gpu}: {len(rows)} rows, seen {seen:.1%}, unseen {error:.1%}, width {width:.2f}")
        print("  " + ", ".join(f"{name} {value:.3g}" for name, value in values.items()))
        if given.write:
            made = calibration(gpu, values, Evidence(len(rows), measured_families(rows), error, width, spread))
            heading = Heading(gpu, ENGINE, "2023-11 to 2025-11", _SOURCE, "2026-11-28", {})
            (given.write / f"{gpu}--{ENGINE}.yaml").write_text(render(heading, made.families), encoding="utf-8")


_SOURCE = "llama-bench: benchmarks/llamacpp.csv, llama.cpp's DGX Spark page, strix-halo-testing"


if __name__ == "__main__":
    main()
