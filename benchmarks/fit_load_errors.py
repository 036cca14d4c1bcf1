"""Fit how far times under load lie from the predicted ones (LoadErrors), and test it on what is left out.

    python benchmarks/fit_load_errors.py TABLE... [--write rooflinekit/specs/profiles/steps] [--out intervals.csv]

TABLE is a serving table (docs/accuracy.md). Predictions are those of engine costs without the row's model, or without
its source (benchmarks/fit_engines.py). The error is y = log(measured / predicted time). Where requests find a place,
y = centre + z·s; the variances in s are fitted by the likelihood of Student's t with 4 degrees of freedom, and the
quantiles of z are read off. A group (source, model, accelerator, engine) weighs 1, whatever its rows: rows of a group
err together. An engine's quantiles are drawn towards those of all, and so is its median, by its number of groups; the
median goes into the quantiles and not into the prediction. Of offline queues the quantiles of y count.

Rows faster than the datasheet allows, and those of servers with a fault (validate/clients.yaml), are left out and
counted. Tested twice: without the model, and without the source.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import fit_engines
import numpy as np
import pandas as pd
from cached_rows import cached, table_parser
from scipy.optimize import minimize
from scipy.special import ndtr
from serving_errors import unseen_rows

from rooflinekit.model.types.engine import DEVIATIONS, FEW_USERS, MANY_USERS, NORMAL_PLACES, LoadErrors, Reach
from rooflinekit.model.types.time import SIGMAS

KINDS = {"ttft": "closed loop, TTFT", "tpot": "closed loop, TPOT", "full": "saturated"}
STATED = (0.5, 0.75, 0.8, 0.85, 0.9, 0.95)
_SHARES = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
_PULL = 8.0  # groups that the quantiles of all engines count as beside an engine's own (field study of intervals)
_CENTRES = 0.1  # spread of the engines' medians, as a logarithm (the same)
_FREEDOM = 4.0
_STANDS_IN = {"tpot": 0.06, "ttft": 0.33}
"""Variance of stand-ins where no row has one: of four groups, SGLang on MI300X, before its steps were fitted."""
_MOST = 0.35  # of stand-ins: few groups, all on one side, would have any (0.33 in the field study of intervals)
_GROUP = ["source_key", "model", "gpu", "engine"]


@dataclass(frozen=True)
class Errors:
    """Errors of rows of one kind, and what their scale is made of."""

    kind: str
    table: pd.DataFrame
    y: np.ndarray
    steps: np.ndarray  # log(high / low) at the ends of the steps' interval
    weight: np.ndarray  # 1 a group
    fits: np.ndarray  # whether a row is not faster than the datasheet allows, and its server had no fault

    @classmethod
    def of(cls, kind: str, rows: pd.DataFrame, way: str) -> Errors:
        """Of predictions with a model (`model_out`) or source left out; a rate is the inverse of a time."""
        value, expected, low, high, bound = (
            rows[name].to_numpy(dtype=float) for name in ("value", way, f"{way}_low", f"{way}_high", "at_bound")
        )
        sign = np.where(rows["metric"].str.contains("tok_s"), -1.0, 1.0)
        faster = sign * np.log(value / np.where(bound > 0.0, bound, value)) < 0.0
        fits = ~(faster | rows["faulty"].to_numpy(bool))
        weight = 1.0 / rows.groupby(_GROUP)["value"].transform("size").to_numpy(dtype=float)
        return cls(kind, rows, sign * np.log(value / expected), np.abs(np.log(high / low)), weight, fits)

    def where(self, keep: np.ndarray) -> Errors:
        columns = (self.table, self.y, self.steps, self.weight, self.fits)
        return Errors(self.kind, *(each[keep] for each in columns))

    @property
    def groups(self) -> np.ndarray:
        return self.table[_GROUP].agg("|".join, axis=1).to_numpy()

    @property
    def terms(self) -> np.ndarray:
        """What each variance is multiplied with: σ² of the steps, 1, stand-in, few users, many."""
        users = self.table["concurrency"].to_numpy(dtype=float)
        rows = [np.minimum(self.steps / 3.29, 1.0) ** 2, np.ones(len(self.y)), self.table["stands_in"].to_numpy(float),
                users <= FEW_USERS, users > MANY_USERS]  # fmt: skip
        return np.stack(rows, axis=1).astype(float)


@dataclass(frozen=True)
class Fit:
    """Errors of one kind: variances, and quantiles by engine; "" is of all."""

    variances: tuple[float, ...]
    places: dict[str, tuple[float, ...]]
    groups: dict[str, int]

    @classmethod
    def of(cls, errors: Errors) -> Fit:
        part = errors.where(errors.fits)
        variances = (0.0,) * 5 if part.kind == "full" else _variances(part)
        part = part.where(~part.table["stands_in"].to_numpy(bool)) if part.kind != "full" else part  # they have a term
        scale = np.ones(len(part.y)) if part.kind == "full" else np.sqrt(part.terms @ np.array(variances))
        engines, names = part.table["engine"].to_numpy(), part.groups
        centre = {name: _centre(part.y[engines == name], names[engines == name]) for name in np.unique(engines)}
        moved = part.y - np.array([centre[name] for name in engines])
        counts = {"": len(np.unique(names))}
        whole = [_quantile(moved / scale, part.weight, share, counts[""]) for share in _SHARES]
        places = {"": tuple(whole)}
        typical = float(np.exp(np.average(np.log(scale), weights=part.weight)))
        for name, middle in centre.items():
            own = engines == name
            count = counts[name] = len(np.unique(names[own]))
            found = [_quantile((moved / scale)[own], part.weight[own], share) for share in _SHARES]
            mixed = [(count * one + _PULL * other) / (count + _PULL) for one, other in zip(found, whole, strict=True)]
            places[name] = tuple(np.maximum.accumulate([each + middle / typical for each in mixed]))
        return cls(variances, places, counts)

    def reach(self, errors: Errors, engine: str) -> Iterator[Reach]:
        """What is stated of each row of an engine, as a prediction states it."""
        places = self.places.get(engine, self.places[""])
        if errors.kind == "full":
            said = LoadErrors(full_places=places)
            yield from (said.reach("ttft", 0.0, 1.0, False, 1.0) for _ in errors.y)
            return
        said = LoadErrors(**{errors.kind: self.variances, f"{errors.kind}_places": places})
        for steps, row in zip(errors.steps, errors.table.itertuples(), strict=True):
            yield said.reach(errors.kind, steps, row.concurrency, bool(row.stands_in), 0.0)


def _variances(part: Errors) -> tuple[float, ...]:
    """The variances that make the errors likeliest, each at least 0."""
    terms, weight = part.terms, part.weight / part.weight.sum()
    y = part.y - _weighted_median(part.y, part.weight)

    def unlikely(roots: np.ndarray) -> float:
        square = np.maximum(terms @ roots**2, 1e-6)
        return float(weight @ (0.5 * np.log(square) + (_FREEDOM + 1) / 2 * np.log1p(y**2 / (_FREEDOM * square))))

    starts = [np.full(5, 0.1), np.array([1.0, 0.05, 0.05, 0.05, 0.05]), np.array([0.3, 0.2, 0.2, 0.1, 0.2])]
    best = min((minimize(unlikely, start, method="Nelder-Mead", options={"maxiter": 4000, "fatol": 1e-9})
                for start in starts), key=lambda found: found.fun)  # fmt: skip
    own, alike, stand_in, few, many = (round(float(each), 5) for each in best.x**2)
    if not part.table["stands_in"].any():  # nothing says what it is: the search leaves it where it began
        stand_in = _STANDS_IN[part.kind]
    return own, alike, min(stand_in, _MOST), few, many


def _weighted_median(values: np.ndarray, weight: np.ndarray) -> float:
    return _quantile(values, weight, 0.5)


def _centre(y: np.ndarray, groups: np.ndarray) -> float:
    """The median of the groups' medians, drawn towards 0 by its standard error."""
    medians = pd.Series(y).groupby(groups).median().to_numpy()
    if len(medians) < 2:
        return 0.0
    error = 1.2533 * np.std(medians, ddof=1) / math.sqrt(len(medians))
    return float(np.median(medians) * _CENTRES**2 / (_CENTRES**2 + error**2))


def _quantile(values: np.ndarray, weight: np.ndarray, share: float, groups: int = 0) -> float:
    """Weighted, straight between the middles of the weights.

    groups: how many are equally likely to lie between any two of the next one and these (Weibull's positions), so that
    few of them reach further.
    """
    order = np.argsort(values)
    upto = (np.cumsum(weight[order]) - 0.5 * weight[order]) / weight.sum()
    share = 0.5 + (share - 0.5) * (1.0 + 1.0 / groups) if groups else share
    return float(np.interp(share, upto, values[order]))


def inside(errors: Errors, fit: Fit, engine: str) -> pd.Series:
    """Whether each row of an engine is covered."""
    own = errors.where((errors.table["engine"] == engine).to_numpy())
    ends = [reach.ends for reach in fit.reach(own, engine)]
    return pd.Series([low <= y <= high for y, (low, high) in zip(own.y, ends, strict=True)], own.table.index)


def width(errors: Errors, fit: Fit, engine: str) -> pd.Series:
    """High over low end of each row's interval."""
    own = errors.where((errors.table["engine"] == engine).to_numpy())
    return pd.Series(
        [math.exp(high - low) for low, high in (reach.ends for reach in fit.reach(own, engine))], own.table.index
    )


def stated(errors: Errors, fit: Fit, engine: str) -> pd.Series:
    """The probability that a prediction states for an objective which each row just meets.

    As in a plan (`decision.planning.objective.chance`).
    """
    own = errors.where((errors.table["engine"] == engine).to_numpy())
    found = []
    for y, reach in zip(own.y, fit.reach(own, engine), strict=True):
        low, high = reach.ends
        place = y / max(high, 1e-3) if y > 0.0 else y / max(-low, 1e-3)
        inside = np.interp(place, (-1.0, *reach.inner, 1.0), (-SIGMAS, *DEVIATIONS, SIGMAS))
        found.append(place * SIGMAS if abs(place) >= 1.0 else inside)
    return pd.Series(ndtr(found), own.table.index)


def left_out(errors: Errors, key: str, judge: Callable[[Errors, Fit, str], pd.Series] = inside) -> pd.Series:
    """Rows judged by what all others than their model's or source's say."""
    names, found = errors.table[key].to_numpy(), [pd.Series(dtype=float)]
    for name in np.unique(names):
        rest, own = errors.where(names != name), errors.where(names == name)
        if len(rest.y):
            fit = Fit.of(rest)
            found += [judge(own, fit, engine) for engine in own.table["engine"].unique()]
    return pd.concat(found)


def kind_rows(rows: pd.DataFrame, kind: str) -> pd.DataFrame:
    """Rows of a kind that fold costs predict; an accelerator with costs of its own is in no fold."""
    return rows[(rows["kind"] == KINDS[kind]) & rows["model_out_low"].notna() & ~rows["whole"].astype(bool)]


def covered(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with what covers them: `steps` (their intervals alone), `model_out`, `source_out` (NaN: no test).

    Of rows without fitted errors, steps' intervals count. `…_stated` is the probability of an objective at the row, and
    `width` that of the interval with the model left out.
    """
    value = rows["value"]
    ways = {"steps": "model_out", "model_out": "model_out", "source_out": "source_out"}
    found = {
        f"{name}_inside": ((value >= rows[f"{way}_low"]) & (value <= rows[f"{way}_high"])).astype(float)
        for name, way in ways.items()
    }
    found["width"] = rows["model_out_high"] / rows["model_out_low"]
    for kind in KINDS:
        own = kind_rows(rows, kind)
        for way, key in (("model_out", "model"), ("source_out", "source_key")):
            judged = left_out(Errors.of(kind, own, way), key).astype(float)
            found[f"{way}_inside"].loc[own.index] = judged.reindex(own.index)
        found["width"].loc[own.index] = left_out(Errors.of(kind, own, "model_out"), "model", width).reindex(own.index)
    for way, key in (("model_out", "model"), ("source_out", "source_key")):
        plain = rows[(rows["kind"] == "static") & rows[f"{way}_low"].notna()]
        parts = [_static_stated(plain, way)]
        parts += [left_out(Errors.of(kind, kind_rows(rows, kind), way), key, stated) for kind in KINDS]
        found[f"{way}_stated"] = pd.concat(parts).reindex(rows.index)
    return rows.assign(**{name: column.where(rows["model_out"].notna()) for name, column in found.items()})


def _static_stated(rows: pd.DataFrame, way: str) -> pd.Series:
    """The same of static batches, whose intervals are those of steps."""
    value, expected, low, high = (
        rows[name].to_numpy(dtype=float) for name in ("value", way, f"{way}_low", f"{way}_high")
    )
    sign = np.where(rows["metric"].str.contains("tok_s"), -1.0, 1.0)
    y, down, up = np.log(value / expected), np.log(expected / low), np.log(high / expected)
    place = sign * y / np.maximum(np.where(y > 0.0, up, down), 1e-3)
    return pd.Series(ndtr(place * -NORMAL_PLACES[0]), rows.index)


def reliability(rows: pd.DataFrame) -> pd.DataFrame:
    """Share of rows inside their intervals, and their median width, by kind of load and engine."""
    known = rows[rows["kind"].isin(KINDS.values())]
    both = pd.concat([known.assign(engine="all"), known])
    parts = [f"{name}_inside" for name in ("steps", "model_out", "source_out")]
    by = both.groupby(["kind", "engine"])
    groups = both.groupby(["kind", "engine", *_GROUP[:3]])["model_out_inside"].mean().groupby(["kind", "engine"])
    return (
        by[parts].mean().assign(rows=by.size(), width=by["width"].median(), groups=groups.size())
        .assign(groups_inside=groups.mean()).reset_index()
    )  # fmt: skip


def as_often(rows: pd.DataFrame) -> pd.DataFrame:
    """Share of rows that meet objectives set where the prediction states a probability, by kind of load and engine."""
    found = []
    for kind in ("static", *KINDS.values()):
        own = rows[rows["kind"] == kind]
        parts = {"all": own} | (dict(list(own.groupby("engine"))) if kind != "static" else {})
        for engine, part in parts.items():
            for way in ("model_out", "source_out"):
                said = part[f"{way}_stated"].dropna()
                met = {probability: float((said <= probability).mean()) for probability in STATED}
                left = way.removesuffix("_out")
                found.append({"kind": kind, "engine": engine, "left_out": left, "rows": len(said), **met})
    return pd.DataFrame(found)


def block(fits: dict[str, Fit], engine: str, tested: dict[str, str]) -> str:
    """The lines of a profile."""
    lines = ["    loaded:"]
    for kind, fit in fits.items():
        if kind != "full":
            told = ', note: "the third, of stand-ins, is an assumption"' * (fit.variances[2] == _STANDS_IN[kind])
            lines.append(f"      {kind}: {{value: [{_numbers(fit.variances)}], source: [errors]{told}}}")
        places, count = fit.places.get(engine, fit.places[""]), fit.groups.get(engine, 0)
        note = f'"{count} groups of its own, {fit.groups[""]} of all"'
        lines.append(f"      {kind}_places: {{value: [{_numbers(places)}], source: [errors], note: {note}}}")
    lines += ["    tested:", *(f'      {key}: "{words}"' for key, words in tested.items())]
    return "\n".join(lines) + "\n"


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{each:.3g}" for each in values)


def listed(parts: Sequence[str]) -> str:
    """Parts as one says them: a, b and c."""
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


def words(rows: pd.DataFrame, engine: str) -> dict[str, str]:
    """How much lay inside 90 % intervals, with the row's model left out and with its source left out.

    Of an engine's own loads, where it has ten groups of them.
    """
    loads = dict(zip(KINDS.values(), ("TTFT", "TPOT", "offline throughput"), strict=True))
    own = rows[(rows["engine"] == engine) & rows["kind"].isin(loads)]
    few = own.drop_duplicates(_GROUP).shape[0]
    said = {"static": _shares(rows, {"static": "static batches"}, "")}
    if few < _FEW:
        whole = _shares(rows, loads, "")
        return said | {
            "load": f"Few like it were measured: {few} deployments with this engine. Of all engines, {whole}"
        }
    return said | {"load": _shares(own, loads, f" of {few} deployments with this engine")}


_FEW = 10


def _shares(rows: pd.DataFrame, parts: dict[str, str], whose: str) -> str:
    known = {kind: name for kind, name in parts.items() if (rows["kind"] == kind).any()}
    shares = rows.groupby("kind")[["model_out_inside", "source_out_inside"]].mean().mul(100).loc[list(known)]
    models = [f"{model:.0f} % of {known[kind]}" for kind, model, _ in shares.itertuples()]
    sources = [f"{source:.0f}" for source in shares["source_out_inside"]]
    return (
        f"{listed(models)}{whose} lay inside with their model left out of the fit. "
        f"With their source left out it was {listed(sources)} %."
    )


def said(costs: str, fits: dict[str, Fit], engine: str, rows: pd.DataFrame) -> str:
    """The lines of a range of costs with its errors; costs that were fitted to their own rows say how those lay."""
    own = re.search(rf'note: "(.* {re.escape(fit_engines.INSIDE)})"', costs)
    return costs + block(fits, engine, words(rows, engine) | ({"static": own[1]} if own else {}))


_SOURCE = """  errors:
    title: "benchmarks/fit_load_errors.py on {rows} rows of published loads; {out} of faulty servers are left out"
    url: "reports/accuracy-serving.md"
    read: true
"""


def write(folder: Path, rows: pd.DataFrame) -> None:
    """Put the errors into the step files of the engines whose costs are fitted to the same tables."""
    parts = {kind: Errors.of(kind, kind_rows(rows, kind), "model_out") for kind in KINDS}
    fits = {kind: Fit.of(errors) for kind, errors in parts.items()}
    count, out = (sum(int(each(errors).sum()) for errors in parts.values())
                  for each in (lambda errors: errors.fits, lambda errors: ~errors.fits))  # fmt: skip
    for engine in (engine for engine in fit_engines.RANGES if engine not in fit_engines.NO_FRONT):
        path = folder / f"{engine}.yaml"
        text = re.sub(r"(?m)^    (?:loaded|tested):\n(?:      .*\n)+", "", path.read_text(encoding="utf-8"))
        text = re.sub(r"(?m)^  (?:ends|errors):\n(?:    .*\n)+", "", text)
        text = text.replace("\nsteps:\n", "\n" + _SOURCE.format(rows=count, out=out) + "steps:\n")
        costs = re.compile(r"(?m)^    costs:\n(?:      .*\n)+")
        path.write_text(
            costs.sub(lambda found, engine=engine: said(found[0], fits, engine, rows), text), encoding="utf-8"
        )


def main() -> None:
    parser = table_parser(__doc__)
    parser.add_argument("--write", type=Path, help="the folder of step costs")
    parser.add_argument("--out", type=Path, help="the table of reliability, as CSV")
    arguments = parser.parse_args()
    rows = cached(arguments.cache, lambda: unseen_rows(arguments.tables, fit_engines.read(arguments.tables))[0])
    rows = covered(rows)
    found = reliability(rows)
    print(found.round(3).to_string(index=False))
    for kind in KINDS:
        fit = Fit.of(Errors.of(kind, kind_rows(rows, kind), "model_out"))
        print(
            kind,
            [round(each, 4) for each in fit.variances],
            {name: [round(float(each), 2) for each in places] for name, places in fit.places.items()},
        )
    if arguments.out:
        found.to_csv(arguments.out, index=False, float_format="%.3f")
    if arguments.write:
        write(arguments.write, rows)


if __name__ == "__main__":
    main()
