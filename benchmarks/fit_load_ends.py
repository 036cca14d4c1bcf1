"""Fit how far the 90 % interval of times under load reaches beyond that of the steps, and test it on what is left out.

    python benchmarks/fit_load_ends.py TABLE... [--write rooflinekit/specs/profiles/steps] [--out intervals.csv]

TABLE is a serving table (docs/accuracy.md). Waits err more than steps do, so the ends of intervals under load are moved
by factors: conformalised quantiles (Romano, Patterson and Candès 2019, arXiv:1905.03222) of measured / end, for TTFT
and TPOT in closed loops and for the throughput of an offline queue. Predictions are those of engine costs without the
row's model, or without its source (benchmarks/fit_engines.py). A group (source, model, accelerator, engine) weighs
1/√n a row, and rows of other engines 0.3 of the engine's own. That weight and the levels of the quantiles were chosen
with models left out.

Between the ends errors are not normal on either side of the prediction. Most first tokens are slower than predicted.
So the median of their errors is fitted, on the scale of each row's interval, with half a normal distribution on either
side. Most queues lie nearer to the prediction than normal ones would: of these 10, 25, 50, 75 and 90 % are fitted.
There each row weighs the same, as in the table that tests them. More quantiles of first tokens agree better with all
rows, and fail for one engine: of SGLang's rows 36 % met what was stated to hold in 75 %. Those of TPOT stay normal:
fitted ones were no better without the model, and worse without the source.

Tested twice: costs and factors without the model, and without the source, whose rows are then counted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import fit_engines
import numpy as np
import pandas as pd
from cached_rows import cached, table_parser
from scipy.special import ndtr
from serving_errors import unseen_rows

from rooflinekit.decision.planning.objective import deviations_of
from rooflinekit.model.types.engine import DEVIATIONS, NORMAL, Quantiles

KINDS = {"ttft": "closed loop, TTFT", "tpot": "closed loop, TPOT", "full": "saturated"}
# Of the quantiles, by engine and kind: rows of a model err together, so that 0.90 covers fewer of a model left out. The
# one of a grid that covers 87 to 93 % of the models left out, and most of the sources among those.
_LEVELS = {
    ("ttft", "sglang"): 0.92, ("ttft", "trtllm"): 0.93, ("ttft", "vllm"): 0.84, ("tpot", "sglang"): 0.99,
    ("tpot", "trtllm"): 0.91, ("tpot", "vllm"): 0.88,
}  # fmt: skip
_LEVEL = 0.94  # of the others
_OTHERS = 0.3  # weight of another engine's rows: chosen among 0.1, 0.3 and 1 with models left out
_FEW = 100  # rows of an engine, below which no end comes nearer than that of the steps
_DRAWS = 100
_NEAREST = 1e-3  # of an end to the prediction, in logarithms
_INNER, _WITHIN = ("ttft", "full"), 0.99  # kinds whose errors are not normal; an inner quantile stays within the ends
STATED = (0.5, 0.75, 0.8, 0.85, 0.9, 0.95)
_GROUP = ["source_key", "model", "gpu", "engine"]


@dataclass(frozen=True)
class Scores:
    """How far rows lie beyond the ends of their intervals, as logarithms: below the low one, above the high one."""

    kind: str
    table: pd.DataFrame
    slower: np.ndarray  # than predicted: the logarithm
    low: np.ndarray
    high: np.ndarray
    weight: np.ndarray
    count: np.ndarray | float = 1.0  # how often each row is drawn

    @classmethod
    def of(cls, kind: str, rows: pd.DataFrame, way: str) -> Scores:
        """Of predictions with a model (`model_out`) or source left out; a rate is the inverse of a time."""
        names = ("value", way, f"{way}_low", f"{way}_high")
        value, expected, low, high = (rows[name].to_numpy(dtype=float) for name in names)
        rate = rows["metric"].str.contains("tok_s").to_numpy()
        below, above = np.log(low / value), np.log(value / high)
        slower = np.log(value / expected) * np.where(rate, -1.0, 1.0)
        weight = 1.0 / np.sqrt(rows.groupby(_GROUP)["value"].transform("size").to_numpy(dtype=float))
        return cls(kind, rows, slower, np.where(rate, above, below), np.where(rate, below, above), weight)

    def where(self, keep: np.ndarray) -> Scores:
        columns = (self.table, self.slower, self.low, self.high, self.weight)
        return Scores(self.kind, *(each[keep] for each in columns))

    def ends(self, engine: str) -> tuple[float, float]:
        """Logarithms of the factors for an engine."""
        own = (self.table["engine"] == engine).to_numpy()
        weight = self.weight * np.where(own, 1.0, _OTHERS)
        level = _LEVELS.get((self.kind, engine), _LEVEL)
        least = 0.0 if own.sum() < _FEW else -np.inf
        low, high = (_quantile(each, weight, (1.0 + level) / 2.0) for each in (self.low, self.high))
        return max(low, least), max(high, least)

    def places(self, ends: tuple[float, float]) -> np.ndarray:
        """Where each row stands in its interval: -1 at the low end, 0 at the prediction, 1 at the high end."""
        reach = np.where(self.slower > 0.0, self.slower - self.high + ends[1], ends[0] - self.slower - self.low)
        return self.slower / np.maximum(reach, _NEAREST)

    def inner(self, engine: str, ends: tuple[float, float]) -> Quantiles:
        """10, 25, 50, 75 and 90 % of the places for an engine."""
        if self.kind not in _INNER:
            return NORMAL
        places, weight = self.places(ends), np.where(self.table["engine"] == engine, 1.0, _OTHERS) * self.count
        found = [float(np.clip(_quantile(places, weight, share), -_WITHIN, _WITHIN)) for share in ndtr(DEVIATIONS)]
        if self.kind == "ttft":
            found = [found[2] + each * (1.0 - math.copysign(found[2], each)) for each in NORMAL]
        return tuple(found)

    def inside(self, rest: Scores, engine: str) -> pd.Series:
        """Whether each row of an engine is covered with factors from the rest."""
        own, ends = (self.table["engine"] == engine).to_numpy(), rest.ends(engine)
        good = (self.low[own] <= ends[0] + 1e-12) & (self.high[own] <= ends[1] + 1e-12)
        return pd.Series(good, self.table.index[own])

    def stated(self, rest: Scores, engine: str) -> pd.Series:
        """The probability that a prediction states for an objective which each row of an engine just meets.

        With ends and inner quantiles from the rest, as in a plan (`decision.planning.objective.chance`).
        """
        own, ends = self.where((self.table["engine"] == engine).to_numpy()), rest.ends(engine)
        inner = rest.inner(engine, ends)
        return pd.Series(ndtr([deviations_of(place, inner) for place in own.places(ends)]), own.table.index)


@dataclass(frozen=True)
class Static(Scores):
    """Of static batches, whose intervals are those of steps."""

    def ends(self, engine: str) -> tuple[float, float]:
        return 0.0, 0.0


def _quantile(values: np.ndarray, weight: np.ndarray, share: float) -> float:
    order = np.argsort(values)
    total = np.cumsum(weight[order])
    return float(values[order][min(np.searchsorted(total, share * total[-1]), len(values) - 1)])


def left_out(scores: Scores, key: str, judge: Callable[[Scores, Scores, str], pd.Series] = Scores.inside) -> pd.Series:
    """Rows judged by what all others than their model's or source's say: whether these cover them."""
    names, found = scores.table[key].to_numpy(), [pd.Series(dtype=bool)]
    for name in np.unique(names):
        rest, own = scores.where(names != name), scores.where(names == name)
        if len(rest.low):
            found += [judge(own, rest, engine) for engine in own.table["engine"].unique()]
    return pd.concat(found)


def kind_rows(rows: pd.DataFrame, kind: str) -> pd.DataFrame:
    return rows[(rows["kind"] == KINDS[kind]) & rows["model_out_low"].notna()]


def covered(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with what covers them: `steps` (intervals without factors), `model_out`, `source_out` (NaN: no test).

    Of rows that no factor is for, steps' intervals count. `…_stated` is the probability of an objective at the row.
    """
    value = rows["value"]
    ways = {"steps": "model_out", "model_out": "model_out", "source_out": "source_out"}
    found = {
        f"{name}_inside": ((value >= rows[f"{way}_low"]) & (value <= rows[f"{way}_high"])).astype(float)
        for name, way in ways.items()
    }
    for kind in KINDS:
        own = kind_rows(rows, kind)
        for way, key in (("model_out", "model"), ("source_out", "source_key")):
            inside = left_out(Scores.of(kind, own, way), key).astype(float)
            found[f"{way}_inside"].loc[own.index] = inside.reindex(own.index)
    for way, key in (("model_out", "model"), ("source_out", "source_key")):
        plain = rows[(rows["kind"] == "static") & rows[f"{way}_low"].notna()]
        static = Static.of("static", plain, way)
        parts = [static.stated(static, engine) for engine in plain["engine"].unique()]
        parts += [left_out(Scores.of(kind, kind_rows(rows, kind), way), key, Scores.stated) for kind in KINDS]
        found[f"{way}_stated"] = pd.concat(parts).reindex(rows.index)
    return rows.assign(**{name: column.where(rows["model_out"].notna()) for name, column in found.items()})


def reliability(rows: pd.DataFrame) -> pd.DataFrame:
    """Share of rows inside their intervals, by kind of load and engine."""
    known = rows[rows["kind"].isin(KINDS.values())]
    both = pd.concat([known.assign(engine="all"), known])
    parts = [f"{name}_inside" for name in ("steps", "model_out", "source_out")]
    return (
        both.groupby(["kind", "engine"])[parts]
        .mean()
        .assign(rows=both.groupby(["kind", "engine"]).size())
        .reset_index()
    )


def as_often(rows: pd.DataFrame) -> pd.DataFrame:
    """Share of rows that meet objectives set where the prediction states a probability, by kind of load and engine."""
    found = []
    for kind in ("static", *KINDS.values()):
        own = rows[rows["kind"] == kind]
        parts = {"all": own} | (dict(list(own.groupby("engine"))) if kind != "static" else {})
        for engine, part in parts.items():
            for way in ("model_out", "source_out"):
                stated = part[f"{way}_stated"].dropna()
                met = {probability: float((stated <= probability).mean()) for probability in STATED}
                left = way.removesuffix("_out")
                found.append({"kind": kind, "engine": engine, "left_out": left, "rows": len(stated), **met})
    return pd.DataFrame(found)


Fitted = dict[str, tuple[tuple[float, ...], tuple[float, ...]]]
"""By name in a profile: numbers, and one standard error of each (of factors, of their logarithms)."""


def fitted(rows: pd.DataFrame, engines: Sequence[str]) -> dict[str, Fitted]:
    """By engine: the factors of the low and the high end of each kind, and inner quantiles if they are not normal."""
    found: dict[str, Fitted] = {engine: {} for engine in engines}
    rng = np.random.default_rng(0)
    for kind in KINDS:
        scores = Scores.of(kind, kind_rows(rows, kind), "model_out")
        label, place = np.unique(scores.table[_GROUP].agg("|".join, axis=1), return_inverse=True)
        drawn = [np.bincount(rng.integers(len(label), size=len(label)), minlength=len(label)) for _ in range(_DRAWS)]
        for engine in engines:
            ends = scores.ends(engine)
            again = [replace(scores, weight=scores.weight * draw[place], count=draw[place]) for draw in drawn]
            found[engine][kind] = tuple(np.exp(ends)), tuple(np.std([each.ends(engine) for each in again], axis=0))
            if kind in _INNER:
                spread = np.std([each.inner(engine, each.ends(engine)) for each in again], axis=0)
                found[engine][f"{kind}_inner"] = scores.inner(engine, ends), tuple(spread)
    return found


def block(ends: Fitted, tested: dict[str, str]) -> str:
    """The lines of a profile."""
    lines = ["    loaded:"]
    for kind, (numbers, spread) in ends.items():
        value, doubt = (", ".join(f"{each:.3g}" for each in several) for several in (numbers, spread))
        lines.append(f"      {kind}: {{value: [{value}], spread: [{doubt}], source: [ends]}}")
    lines += ["    tested:", *(f'      {key}: "{words}"' for key, words in tested.items())]
    return "\n".join(lines) + "\n"


def listed(parts: Sequence[str]) -> str:
    """Parts as one says them: a, b and c."""
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


def words(rows: pd.DataFrame) -> dict[str, str]:
    """How much lay inside 90 % intervals, with the row's model left out and with its source left out."""
    loads = dict(zip(KINDS.values(), ("TTFT", "TPOT", "offline throughput"), strict=True))
    kinds = {"static": {"static": "static batches"}, "load": loads}
    found = {}
    for key, parts in kinds.items():
        shares = rows.groupby("kind")[["model_out_inside", "source_out_inside"]].mean().mul(100).loc[list(parts)]
        said = [f"{model:.0f} % of {parts[kind]}" for kind, model, _ in shares.itertuples()]
        sources = [f"{source:.0f}" for source in shares["source_out_inside"]]
        found[key] = (
            f"{listed(said)} lay inside with their model left out of the fit. "
            f"With their source left out it was {listed(sources)} %."
        )
    return found


def said(costs: str, ends: Fitted, rows: pd.DataFrame) -> str:
    """The lines of a range of costs with its factors; costs that were fitted to their own rows say how those lay."""
    own = re.search(rf'note: "(.* {re.escape(fit_engines.INSIDE)})"', costs)
    return costs + block(ends, words(rows) | ({"static": own[1]} if own else {}))


_SOURCE = """  ends:
    title: "benchmarks/fit_load_ends.py on published loads ({rows} rows of all engines)"
    url: "reports/accuracy-serving.md"
    read: true
"""


def write(folder: Path, rows: pd.DataFrame) -> None:
    """Put the factors into the step files of the engines whose costs are fitted to the same tables."""
    engines = [engine for engine in fit_engines.RANGES if engine not in fit_engines.NO_FRONT]
    count = sum(len(kind_rows(rows, kind)) for kind in KINDS)
    for engine, ends in fitted(rows, engines).items():
        path = folder / f"{engine}.yaml"
        text = re.sub(r"(?m)^    (?:loaded|tested):\n(?:      .*\n)+", "", path.read_text(encoding="utf-8"))
        text = re.sub(r"(?m)^  ends:\n(?:    .*\n)+", "", text)
        text = text.replace("\nsteps:\n", "\n" + _SOURCE.format(rows=count) + "steps:\n")
        text = re.sub(r"(?m)^    costs:\n(?:      .*\n)+", lambda costs, ends=ends: said(costs[0], ends, rows), text)
        path.write_text(text, encoding="utf-8")


def main() -> None:
    parser = table_parser(__doc__)
    parser.add_argument("--write", type=Path, help="the folder of step costs")
    parser.add_argument("--out", type=Path, help="the table of reliability, as CSV")
    arguments = parser.parse_args()
    rows = cached(arguments.cache, lambda: unseen_rows(arguments.tables, fit_engines.read(arguments.tables))[0])
    rows = covered(rows)
    found = reliability(rows)
    print(found.round(3).to_string(index=False))
    if arguments.out:
        found.to_csv(arguments.out, index=False, float_format="%.3f")
    if arguments.write:
        write(arguments.write, rows)


if __name__ == "__main__":
    main()
