"""Fit what each engine adds to its kernels (StepCosts) to published end-to-end times, and score it on unseen rows.

    python benchmarks/fit_engines.py TABLE... [--beside TABLE...] [--write rooflinekit/specs/profiles] [--out FILE.json]

TABLE is a serving table (docs/accuracy.md). Kernel times are fixed; predicted times are linear in the costs, so a fit
is a bounded, robust least squares on relative errors. An engine's costs are drawn towards the fit of all engines
together, which is also what an engine without rows gets. Rows of a group (source, model, accelerator, metric) weigh
1/√n each. Errors are of rows that the fit has not seen: once every model left out in turn, once every source.

Tables --beside are of accelerators whose 16-bit products nobody has measured apart. Their rows move no other engine's
costs, and have one more cost, a factor on the time of arithmetic (of memory under llama.cpp, whose rows have one
sequence), which is the best of a grid.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from cached_rows import cached, on_all_cores, table_parser
from scipy.optimize import lsq_linear

from rooflinekit.evidence.accuracy_serving import ServedGroup, predict_group, read_serving_table, served_groups
from rooflinekit.model.types.engine import StepCosts
from rooflinekit.specs.engines import step_range

# cost -> the step by which its effect is probed, its prior spread, its most; times in seconds
COSTS = {
    "step": (1e-3, 2e-3, 2e-2),
    "ranks": (1e-3, 1e-3, 1e-2),
    "sequence": (1e-5, 3e-5, 1e-3),
    "sequence_ranks": (1e-5, 2e-5, 1e-3),
    "layer": (1e-5, 1e-5, 1e-3),
    "collective": (1e-5, 1e-5, 1e-3),
    "hidden": (0.5, 0.5, 1.0),
    "grouped": (0.5, 0.5, 5.0),
}
_PLAIN = ("hidden", "grouped")  # shares and factors; the others are times
_FEW_GROUPS = 3
_FEW = 30  # rows below which an engine takes the interval of all engines
_SCALE = np.array([prior for _, prior, _ in COSTS.values()])
_MOST = np.array([most for _, _, most in COSTS.values()])
# A cost one prior spread away from the pooled fit weighs like one row that is off by this. Chosen among 0.05, 0.1, 0.2
# and 0.4 with models left out: weaker priors fail where an engine then has few rows, stronger ones cost static rows.
# Errors of static rows, others, TPOT and queues [%]: 6.8, 9.2, 10.7, 8.5; 6.5, 8.2, 9.3, 8.7; 7.3, 9.2, 9.9, 9.0; and
# 8.4, 13.3, 10.4, 8.3.
_PRIOR_ERROR = 0.1
_WEAK_PRIOR = 0.05  # for standard errors: what the rows themselves say, not what the prior lets them say
_ROBUST = 0.03  # errors below count squared, above by their size
# Programmatic dependent launch came to these engines' kernels later: nothing of a launch is hidden before.
_NO_OVERLAP = ("vllm@0.1", "trtllm@0.5", "sglang@0.1", "optimum-habana@", "llama.cpp@b1")
_SLOWER = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 20.0, 24.0)  # times of arithmetic that are tried
_SLOWED = {"llama.cpp": "memory"}  # what the factor slows; of other engines it is "compute"
NO_FRONT = ("llama.cpp",)  # engines whose rows have no front end, and whose launches the calibrations hold
_GROUP = ["source_key", "model", "gpu", "metric"]


@dataclass(frozen=True)
class Rows:
    """Measured times [any unit] with their prediction without costs and its change per cost."""

    table: pd.DataFrame
    time: np.ndarray
    bare: np.ndarray
    slopes: np.ndarray

    def where(self, keep: np.ndarray) -> Rows:
        return Rows(self.table[keep], self.time[keep], self.bare[keep], self.slopes[keep])

    def predict(self, costs: np.ndarray) -> np.ndarray:
        return self.bare + self.slopes @ costs


def read(paths: list[Path]) -> Rows:
    """Every row that a fit can use: static and saturated rows, and TPOT under a closed loop, of servers in order."""
    rows = _joined(on_all_cores(_probe, _groups(paths)))
    faulty = rows.table["faulty"].to_numpy(dtype=bool)
    answered = np.isfinite(rows.bare) & np.isfinite(rows.slopes).all(axis=1)  # the others have no room, or overload
    print(
        f"left out: {int((~answered).sum())} rows, which some costs do not answer, and {faulty.sum()} of faulty servers"
    )
    return rows.where(answered & ~faulty)


def _groups(paths: list[Path]) -> list[ServedGroup]:
    unanswered: Counter[str] = Counter()
    found: list[ServedGroup] = []
    for path in paths:
        table = read_serving_table(path)
        looped = (table["load"] == "concurrency") & (table["metric"] == "tpot_ms")
        usable = table[table["load"].isin(["static", "saturated"]) | looped]
        found += served_groups(usable, None, unanswered)
    print(f"not answered: {dict(unanswered)}" if unanswered else "all rows answered")
    return found


def _joined(found: list[Rows]) -> Rows:
    columns = [np.concatenate([getattr(rows, key) for rows in found]) for key in ("time", "bare", "slopes")]
    return Rows(pd.concat([rows.table for rows in found]), *columns)


def _probe(group: ServedGroup, slower: float = 1.0) -> Rows:
    plan = group.resolved.plan
    own = plan.engine.costs
    # with a front end: without one, users of a closed loop come back in the step in which they left
    slowed = _SLOWED.get(plan.deployment.engine, "compute")
    base = replace(own, **dict.fromkeys(COSTS, 0.0), **{slowed: slower}, spread={})
    table = group.table.assign(profile=engine_range(group), faulty=faulty(group))
    rate = table["metric"].str.contains("tok_s").to_numpy()

    def times(costs: StepCosts) -> np.ndarray:
        value = predict_group(group.under(replace(plan.engine, costs=costs)), ends=False).value
        return np.where(rate, 1.0 / value, value)

    bare = times(base)
    slopes = [
        (times(replace(base, **{cost: getattr(base, cost) + step})) - bare) / step
        for cost, (step, _, _) in COSTS.items()
    ]
    if table["profile"].iloc[0].partition(" ")[0] in _NO_OVERLAP:
        slopes[list(COSTS).index("hidden")][:] = 0.0
    measured = table["value"].to_numpy(dtype=float)
    return Rows(table, np.where(rate, 1.0 / measured, measured), bare, np.stack(slopes, axis=1))


def faulty(group: ServedGroup) -> np.ndarray:
    """Which rows met a fault of their server (validate/clients.yaml)."""
    return group.client.faulty(*(group.column(name) for name in ("isl", "osl", "concurrency")))


def engine_range(group: ServedGroup) -> str:
    """Engine, the version from which its step costs hold, and their accelerator: whose costs the group's are."""
    plan = group.resolved.plan
    engine, gpu = plan.deployment.engine, plan.system.accelerator.name
    since = step_range(engine, plan.deployment.engine_version)
    since = _FITTED_WITH.get(label(engine, since, ""), since)
    alone = any((since, gpu) == (first, only) for first, _, _, only in RANGES.get(engine, ()))
    return label(engine, since, gpu if alone else "")


def label(engine: str, since: str, gpu: str) -> str:
    """The name of a range of versions, and of its accelerator."""
    return f"{engine}@{since} {gpu}".strip()


def solve(rows: Rows, prior: np.ndarray, pull: float = _PRIOR_ERROR) -> np.ndarray:
    """Costs by iterated least squares on (predicted − measured)/measured, with the prior as further rows."""
    size = rows.table.groupby(_GROUP)["value"].transform("size").to_numpy()
    # a source's own wobble is shared by its rows: a large group counts as a few
    weight = 1.0 / np.sqrt(size)
    relative, target = rows.slopes / rows.time[:, None], 1.0 - rows.bare / rows.time
    ridge = np.diag(pull / _SCALE)
    robust = np.ones(len(target))
    for _ in range(12):
        w = np.sqrt(weight * robust)
        matrix = np.vstack([relative * w[:, None], ridge])
        costs = lsq_linear(matrix, np.concatenate([target * w, ridge @ prior]), bounds=(0.0, _MOST)).x
        robust = _ROBUST / np.maximum(np.abs(relative @ costs - target), _ROBUST)
    return costs


def fit(rows: Rows) -> dict[str, np.ndarray]:
    """Costs of every engine range; "" is the pooled fit."""
    pooled = solve(rows, np.zeros(len(COSTS)))
    profiles = rows.table["profile"].to_numpy()
    return {"": pooled} | {name: solve(rows.where(profiles == name), pooled) for name in np.unique(profiles)}


def predict(rows: Rows, fits: dict[str, np.ndarray]) -> np.ndarray:
    profiles = rows.table["profile"].to_numpy()
    costs = np.stack([costs_of(fits, name) for name in profiles])
    return rows.bare + (rows.slopes * costs).sum(axis=1)


def costs_of(fits: dict[str, np.ndarray], name: str) -> np.ndarray:
    """The costs of an engine range; those of all engines where the fit has not seen it."""
    costs = fits.get(name, fits[""]).copy()
    if name.partition(" ")[0] in _NO_OVERLAP:
        costs[list(COSTS).index("hidden")] = 0.0
    return costs


def held_out(rows: Rows, key: str) -> np.ndarray:
    """Predictions of every row from a fit that has not seen its model or source."""
    values = rows.table[key].to_numpy()
    out = np.full(len(values), np.nan)
    for name in np.unique(values):
        mine = values == name
        out[mine] = predict(rows.where(mine), fit(rows.where(~mine)))
    return out


def by_group(rows: Rows, predicted: np.ndarray, tier: str = "A", load: str = "static", only: str = "") -> pd.DataFrame:
    """Median error of each group; groups under 5 rows are merged by source and accelerator."""
    keep = ((rows.table["tier"] == tier) & (rows.table["load"] == load)).to_numpy()
    if only:
        keep = keep & (rows.table["metric"] == only).to_numpy()
    signed = (predicted / rows.time - 1.0)[keep]
    table = rows.table[keep].assign(error=np.abs(signed), signed=signed)
    size = table.groupby(_GROUP)["error"].transform("size")
    merged = table.where(size >= 5, other=table.assign(model="*", metric="*"))
    grouped = merged.groupby(_GROUP)
    return grouped.agg(n=("error", "size"), error=("error", "median"), bias=("signed", "median")).reset_index()


def spreads(rows: Rows, fits: dict[str, np.ndarray], draws: int = 20) -> dict[str, np.ndarray]:
    """One standard error of each cost: groups drawn with replacement; of all engines where one has too few groups."""
    rng, out = np.random.default_rng(0), {}
    profiles = rows.table["profile"].to_numpy()
    for name in fits:
        own = rows if not name else rows.where(profiles == name)
        labels, place = np.unique(own.table[_GROUP].astype(str).agg("|".join, axis=1).to_numpy(), return_inverse=True)
        if name and len(labels) < _FEW_GROUPS:
            out[name] = out[""]
            continue
        drawn = []
        for _ in range(draws):
            chosen = rng.integers(len(labels), size=len(labels))
            index = np.concatenate([np.flatnonzero(place == one) for one in chosen])
            part = Rows(own.table.iloc[index], own.time[index], own.bare[index], own.slopes[index])
            drawn.append(solve(part, fits[""], _WEAK_PRIOR))
        out[name] = np.std(drawn, axis=0)
    return out


def fit_beside(paths: list[Path], pooled: np.ndarray) -> dict[str, dict[str, Any]]:
    """Costs of ranges by their own rows, with a factor on the time of arithmetic, and errors with models left out."""
    found: dict[str, list[ServedGroup]] = {}
    for group in _groups(paths):
        found.setdefault(engine_range(group), []).append(group)
    report: dict[str, dict[str, Any]] = {}
    ranges = {label(engine, since, gpu) for engine in RANGES for since, _, _, gpu in RANGES[engine]
              if gpu or engine not in NO_FRONT}  # fmt: skip
    for name in sorted(found.keys() & ranges):
        tried = {slower: _joined([_probe(group, slower) for group in found[name]]) for slower in _SLOWER}
        slower, costs = _best(tried, pooled)
        rows, models = tried[slower], tried[slower].table["model"].to_numpy()
        unseen = np.empty(len(rows.time))
        for model in np.unique(models):
            own = models == model
            factor, others = _best({key: each.where(~own) for key, each in tried.items()}, pooled)
            unseen[own] = tried[factor].where(own).predict(others)
        far = np.abs(np.log(unseen / rows.time))
        held = sum(
            (far[models == model] <= np.quantile(far[models != model], 0.9)).sum() for model in np.unique(models)
        )
        spread = spreads(rows, {"": pooled, name: costs})[name]
        error = rows.table.assign(error=np.abs(unseen / rows.time - 1.0)).groupby("model")["error"].median()
        values = {cost: [float(v), float(s)] for cost, v, s in zip(COSTS, costs, spread, strict=True)}
        report[name] = {
            "rows": len(rows.time), "interval": _factor(rows, unseen, np.ones(len(unseen), bool)), **values,
            _SLOWED.get(name.partition("@")[0], "compute"): [slower, 0.0],
            "model left out": {str(model): float(each) for model, each in error.items()},
            "inside": float(held / len(far)),
            "of": "static batches" if (rows.table["load"] == "static").any() else "closed loops",
        }  # fmt: skip
        print(name, report[name])
    return report


def _best(tried: dict[float, Rows], prior: np.ndarray) -> tuple[float, np.ndarray]:
    """The factor whose costs leave least, and they."""
    fitted = {slower: solve(rows, prior, _WEAK_PRIOR) for slower, rows in tried.items()}
    left = {slower: float(np.mean(np.abs(tried[slower].predict(costs) / tried[slower].time - 1.0)))
            for slower, costs in fitted.items()}  # fmt: skip
    slower = min(left, key=lambda each: left[each])
    return slower, fitted[slower]


def main() -> None:
    parser = table_parser(__doc__)
    parser.add_argument("--beside", type=Path, nargs="*", default=[], help="tables of other accelerators")
    parser.add_argument("--out", type=Path, help="write costs and errors to this JSON file")
    parser.add_argument("--write", type=Path, help="write the costs into the step files of this folder")
    arguments = parser.parse_args()
    rows = cached(arguments.cache, lambda: read(arguments.tables))
    fits = fit(rows)
    spread = spreads(rows, fits)
    report: dict[str, Any] = {"costs": {}, "errors": {}}
    model_out = held_out(rows, "model")
    for name, costs in fits.items():
        mine = np.ones(len(rows.time), bool) if not name else (rows.table["profile"] == name).to_numpy()
        factor = _factor(rows, model_out, mine)
        values = {cost: [float(v), float(s)] for cost, v, s in zip(COSTS, costs, spread[name], strict=True)}
        report["costs"][name or "all"] = {"rows": int(mine.sum()), "interval": factor} | values
        print(f"{name or 'all':16} {mine.sum():5} rows, 90 % within x{factor:.2f}: "
              + ", ".join(f"{k} {_show(k, v)} ± {_show(k, s)}" for k, (v, s) in values.items()))  # fmt: skip
    report["costs"] |= fit_beside(arguments.beside, fits[""])
    if arguments.write:
        write(arguments.write, report)
    for left, predicted in {
        "no costs": rows.bare, "fitted": predict(rows, fits), "model left out": model_out,
        "source left out": held_out(rows, "source_key"),
    }.items():  # fmt: skip
        groups = by_group(rows, predicted)
        report["errors"][left] = groups.to_dict("records")
        worst = groups["error"].max()
        line = f"{left:16} static A: median over {len(groups)} groups {groups['error'].median():.1%}, worst {worst:.1%}"
        loop = by_group(rows, predicted, "B", "concurrency", "tpot_ms")
        if len(loop):
            line += f"; closed-loop TPOT: {loop['error'].median():.1%}, worst {loop['error'].max():.1%}"
        print(line)
        if left != "no costs":
            print(groups.sort_values("error").tail(8).to_string(index=False))
    if arguments.out:
        arguments.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def _factor(rows: Rows, predicted: np.ndarray, mine: np.ndarray) -> float:
    """90 % of the static rows of models that the fit has not seen lie within it; of all engines where one has few."""
    static = (rows.table["load"] == "static").to_numpy()
    chosen = mine & static if (mine & static).sum() >= _FEW else static if static.any() else mine
    return float(np.exp(np.quantile(np.abs(np.log(predicted[chosen] / rows.time[chosen])), 0.9)))


# Since, its month, what it is, and the one accelerator that its costs hold for.
RANGES = {
    "vllm": [("0.1", "2023-06", "V0", ""), ("0.1", "2023-06", "V0 under ROCm, seen with 0.6.1", "mi300x"),
             ("0.1", "2023-06", "V0 under ROCm, seen in 2024", "mi250x"), ("0.8", "2025-03", "V1", ""),
             ("0.14", "2026-01", "V1, asynchronous scheduling by default (config/vllm.py)", "")],
    "trtllm": [("0.5", "2023-10", "C++ and Python runtimes", ""), ("0.19", "2025-05", "PyTorch backend", "")],
    "sglang": [("0.1", "2024-01", "one loop", ""), ("0.4", "2024-12", "overlapped scheduler", ""),
               ("0.4", "2024-12", "under ROCm, seen with 0.5.6 to 0.5.8", "mi300x")],
    "gpt-fast": [("", "2023-11", "", "")],
    "optimum-habana": [("", "2023-05", "seen with 1.16", "")],
    "llama.cpp": [("b1", "2023-03", "kernels are in the calibrations (benchmarks/fit_llamacpp.py)", ""),
                  ("b1", "2023-03", "HIP, seen in 2024", "mi300x"), ("b1", "2023-03", "HIP, seen in 2024", "mi250x"),
                  ("b4405", "2025-01", "the first build of 2025; nothing is known of its host time", "")],
}  # fmt: skip
_FITTED_WITH = {"vllm@0.14": "0.8"}  # ranges that differ in how they work, and not in what is fitted
_SERIAL = ("vllm@0.8",)  # that prepare no step while one runs, unless told
_MEASURED_ON = {"optimum-habana": "gaudi2"}  # whose costs others take too
# Host time to launch what the model counts as one kernel, by hand: two rows cannot be fitted with the rest.
_LAUNCH = {
    "python": ("26 us", "2 us", "issue1008"),
    "c++": ("5 us", None, "assumed"),
}
_LAUNCHED_BY = {"trtllm@0.5": "c++", "gpt-fast@": "c++", "optimum-habana@": "c++"}
_PROMPTS = ("vllm@0.8", "sglang@0.4", "trtllm@0.19")  # whose prompt steps take 60 us a launch
# Kernels of what the model counts as one: experts (align, sort, two products, activation, sum), a product scaled by
# blocks (its inputs are quantised first), the attention of a prompt with latent keys (six copies and a norm before it).
_COUNTS = {"expert": 6, "block": 2, "latent": 8}
_UNBIASED = {
    "sglang": "value: 0, spread: 0.3, source: [marlin]",
    "vllm": "value: 1.2, spread: 0.3, source: [marlin]",
    "trtllm": "value: 2.2, spread: 0.7, source: [widened]",
}
_WATCHED = "vllm@0.8"  # whose graphs of prompts and front end were seen on a GPU of ours
_READING = {"request": ("1.5 ms", "0.5 ms"), "token": ("1.9 us", "1 us")}
_FRONT_ENDS = {
    "vllm": {**_READING, "chunk": ("35 us", "10 us"), "detokenised": ("17 us", "5 us")},
    "sglang": {"request": ("1 ms", "0.5 ms"), "token": ("3.3 us", "1 us"), "chunk": ("52 us", "10 us")},
}
"""Measured (reports/front-end-2026-11-29.md), and their spread. SGLang detokenises in a process of its own. Loads of
16,000 to 60,000 tokens/s of TensorRT-LLM show no wait for what is sent, so that it is taken to cost nothing there."""
_SOURCES = """sources:
  fit:
    title: "benchmarks/fit_engines.py on published end-to-end times ({rows} rows for this engine)"
    url: "reports/accuracy-serving.md"
    read: true
  issue1008:
    title: "SGLang issue 1008: Llama-3-8B on an H100 without CUDA graphs, 8.2 to 9.3 ms for 324 modelled kernels"
    url: "https://github.com/sgl-project/sglang/issues/1008"
    read: true
  front_end:
    title: "vLLM 0.19 and SGLang 0.5.6 before a stub, on a Xeon: 1.0 to 2.1 ms a request, 51 and 52 us a token"
    url: "reports/front-end-2026-11-29.md"
    read: true
  hop:
    title: "assumption: the scheduler, and two ways between processes; not measured"
    url: "docs/engines.md"
    read: true
  watched:
    title: "first tokens of vLLM 0.24 on our H200, 28 loads by token ids: 7.8, 5.4 and 7.6 % off with 2, 3 and 4 ms"
    url: "reports/served-h200-sxm-2026-11-28.md"
    read: true
  tokeniser:
    title: "the same, 32,000 entries: 1.9 us a token under vLLM (400 to 5,100), 2.1 and 3.3 under SGLang (420, 1,280)"
    url: "reports/front-end-2026-11-29.md"
    read: true
  front_end_of_vllm:
    title: "assumption: as vLLM 0.19's; that of this engine was not measured"
    url: "reports/front-end-2026-11-29.md"
    read: true
  overlap:
    title: "TensorRT-LLM, overlap scheduler; SGLang from 0.4 and vLLM by default from 0.14 (PR 27614) do the same"
    url: "https://nvidia.github.io/TensorRT-LLM/features/overlap-scheduler.html"
    read: true
  serial:
    title: "SGLang PR 38131, 5608, omni 1669; steps without overlap and with: 2.75, 2.01; 5.24, 4.63; 5.10, 3.62 ms"
    url: "https://github.com/sgl-project/sglang/pull/38131"
    read: true
  mechanisms:
    title: "published first tokens: 60 us for a launch in a prompt step, of four tried (26, 60, 75, 90 us)"
    url: "docs/engines.md"
    read: true
  launches:
    title: "kernels counted in SGLang's fused_moe.py, fp8_utils.py and deepseek_v2.py"
    url: "https://github.com/sgl-project/sglang/tree/main/python/sglang/srt"
    read: true
  widened:
    title: "queues of gpt-oss-20b say 2.35, all queues and output tokens of gpt-oss on Hopper 2.0"
    url: "docs/engines.md"
    read: true
  marlin:
    title: "SGLang PR 38884: Marlin's experts of DeepSeek-V4-Flash take 4.86 ms a layer of 16,384 tokens on four H100"
    url: "https://github.com/sgl-project/sglang/pull/38884"
    read: true
  triton_experts:
    title: "vLLM PR 27523, gpt-oss-120b on Hopper: Triton's experts take 90 us a layer more than Marlin's (batch 8)"
    url: "https://github.com/vllm-project/vllm/pull/27523"
    read: true
  captured:
    title: "vLLM 0.24.0, _set_cudagraph_sizes in config/vllm.py; reports/served-h200-sxm-2026-11-28.md"
    url: "https://docs.vllm.ai/en/latest/design/cuda_graphs/"
    read: true
  handed:
    title: "vLLM 0.24: AsyncLLM took requests of one instant 0.14 to 0.38 ms apart, the longer the prompt"
    url: "reports/served-h200-sxm-2026-11-28.md"
    read: true
  assumed:
    title: "assumption: launching a kernel from C++ or a compiled graph takes a few microseconds; nothing was measured"
    url: "docs/engines.md"
    read: true
"""


def write(folder: Path, report: dict[str, Any]) -> None:
    """One file an engine, oldest range first."""
    for engine, ranges in RANGES.items():
        names = [label(engine, _FITTED_WITH.get(f"{engine}@{since}", since), gpu) for since, _, _, gpu in ranges]
        found = [report["costs"].get(name, report["costs"]["all"]) for name in names]
        text = "# Written by benchmarks/fit_engines.py: what a step takes besides its kernels, by version.\n"
        rows = {name: costs["rows"] for name, costs, (_, _, _, gpu) in zip(names, found, ranges, strict=True)
                if gpu or engine not in NO_FRONT}  # fmt: skip
        counted = sum(rows.values())
        text += _SOURCES.format(rows=counted) + "steps:\n"
        for (since, released, what, gpu), costs in zip(ranges, found, strict=True):
            text += f'  - since: "{since}"{f"  # {what}" if what else ""}\n'
            text += f"    measured_on: {_MEASURED_ON[engine]}\n" if engine in _MEASURED_ON else ""
            text += f"    accelerator: {gpu}\n" if gpu else ""
            kind = "experts" if engine == "sglang" else "dense"  # models of the rows
            text += (
                f"    measured: {kind}\n" if gpu or engine in _MEASURED_ON else ""
            ) + f'    released: "{released}"\n    costs:\n'
            text += "".join(_yaml_costs(label(engine, since, gpu), costs))
        (folder / f"{engine}.yaml").write_text(text, encoding="utf-8")


def _yaml_costs(name: str, costs: dict[str, Any]) -> list[str]:
    serial = name in _SERIAL
    name = label(name.partition("@")[0], _FITTED_WITH[name], "") if name in _FITTED_WITH else name
    own = name.partition("@")[0] in NO_FRONT
    if own and " " not in name:
        return ["      graphs: true\n", "      mixes: true\n", "      vectors: true\n"]
    value, spread, source = _LAUNCH[_LAUNCHED_BY.get(name, "python")]
    lines = [f"      mixes: {'false' if name.startswith(('sglang', 'vllm@0.1')) else 'true'}\n"]
    if name.startswith("trtllm"):
        lines.append("      splits: false  # enable_chunked_prefill is off unless told\n")
    if name.startswith("vllm@0.1"):
        lines.append("      splits: false\n")
    launch = f"      launch: {{value: {value}, {f'spread: {spread}, ' if spread else ''}source: [{source}]}}\n"
    lines.append("      vectors: true\n" if own else launch)
    if name.partition(" ")[0] in _PROMPTS:  # of every accelerator
        lines.append("      prompt: {value: 2.3, spread: 0.7, source: [mechanisms]}\n")
        lines += [f"      {part}_launches: {{value: {count}, source: [launches]}}\n" for part, count in _COUNTS.items()]
        if name == _WATCHED:
            lines.append("      graph_tokens: {value: 512, source: [captured]}\n")
            lines.append("      tiles_apart: true  # flash_attn.py of 0.11: in FA2 packed GQA for max_query_len=1\n")
        lines.append("      dequantised: {value: 2.2, spread: 0.7, source: [widened]}\n")
        lines.append(f"      unbiased: {{{_UNBIASED[name.partition('@')[0]]}}}\n")
        if name.startswith("trtllm"):
            lines.append("      routed: {value: 60 us, spread: 25 us, source: [mechanisms, triton_experts]}\n")
            lines.append("      routed_launches: {value: 20, source: [mechanisms]}\n")
    said = f', note: "{100 * costs["inside"]:.0f} % of {costs["of"]} {INSIDE}"' if "inside" in costs else ""
    lines.append(f"      interval: {{value: {costs['interval']:.3g}, source: [fit]{said}}}\n")
    for cost in COSTS:
        best, doubt = costs[cost]
        if cost == "hidden" and name.partition(" ")[0] in _NO_OVERLAP:
            continue
        lines.append(f"      {cost}: {{value: {_text(cost, best)}, spread: {_text(cost, doubt)}, source: [fit]}}\n")
    lines += [f"      {slowed}: {{value: {costs[slowed][0]:g}, source: [fit]}}\n" for slowed in ("compute", "memory")
              if costs.get(slowed, [1.0])[0] != 1.0]  # fmt: skip
    if own:
        return lines
    kind = name.partition("@")[0].partition(" ")[0]
    known = kind == "sglang" or name == _WATCHED
    for cost, (value, spread) in _FRONT_ENDS.get(kind, _READING).items():
        source = ("tokeniser" if cost == "token" else "front_end") if known else "front_end_of_vllm"
        lines.append(f"      {cost}: {{value: {value}, spread: {spread}, source: [{source}]}}\n")
    hop, source = ("3 ms", "watched") if name == _WATCHED else ("2 ms", "hop")
    lines.append(f"      hop: {{value: {hop}, spread: 1 ms, source: [{source}]}}\n")
    if name == _WATCHED:
        lines.append("      hand_over: {value: 200 us, source: [handed]}\n      servers_by_replica: true\n")
        lines.append("      tokenises_beside: true  # AsyncMicrobatchTokenizer, before that make_async: one thread\n")
    if name.partition(" ")[0] in _PROMPTS:
        lines += ["      overlap: {value: 1, source: [overlap]}\n"] * (not serial)
        lines.append("      serial: {value: 740 us, spread: 470 us, source: [serial]}\n")
    return lines


def _text(cost: str, value: float) -> str:
    scaled = value if cost in _PLAIN else value * 1e6
    text = f"{scaled:.3g}" if scaled < 1000 else f"{scaled:.0f}"
    text = "0" if scaled < _LEAST else text
    return text if cost in _PLAIN else f"{text} us"


INSIDE = "lay inside with their model left out of the fit"
_LEAST = 1e-2  # below: a bound of the fit, reached but for rounding


def _show(cost: str, value: float) -> str:
    return f"{value:.2f}" if cost in _PLAIN else f"{value * 1e6:.0f} µs"


if __name__ == "__main__":
    main()
