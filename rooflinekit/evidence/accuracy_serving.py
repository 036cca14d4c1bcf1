"""Predictions of whole requests against the serving table: errors, bias and coverage by group."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rooflinekit.estimation.estimator import Resolved, read_deployment, resolve
from rooflinekit.evidence.accuracy import Accuracy, scored, signature
from rooflinekit.evidence.trtllm_bench import bench_limits
from rooflinekit.load.lengths import MOST_TOKENS
from rooflinekit.load.scene import kv_capacity_tokens
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.traffic.closed_form import Traffic, closed_loop, open_loop
from rooflinekit.model.traffic.mixing import InFlight, static_run
from rooflinekit.model.types.batch import whole_number
from rooflinekit.model.types.deployment import ENGINES
from rooflinekit.model.types.dtype import Dtype, parse_dtype
from rooflinekit.model.types.engine import Engine
from rooflinekit.model.types.errors import DoesNotFitError, RooflinekitError, UnknownNameError, WorkloadError
from rooflinekit.model.types.numeric import Array, Numeric
from rooflinekit.model.types.speculation import Speculation
from rooflinekit.model.types.time import Time
from rooflinekit.specs import load_accelerator, load_model
from rooflinekit.specs.clients import NO_RULE, Client, Server, client_of
from rooflinekit.specs.delimited import read_table
from rooflinekit.specs.engines import engine_names, engine_version_of
from rooflinekit.specs.foreign import MOST
from rooflinekit.specs.places import shipped_path

METRICS = (
    "ttft_ms", "tpot_ms", "e2e_ms", "output_tok_s_total", "output_tok_s_per_gpu", "output_tok_s_per_user",
    "prefill_tok_s",
)  # fmt: skip
LOADS = ("static", "concurrency", "saturated", "poisson")
_NEEDED = ("model", "gpu", "engine", "load", "isl", "osl", "concurrency", "metric", "value")
_DEGREES = ("tp", "pp", "ep", "dp")
_COUNTS = (*_DEGREES, "replicas")
_SETUP = ("model", "gpu", "n_gpus", *_COUNTS, "weight_dtype", "kv_dtype", "engine", "engine_version")
_OPTIONAL: dict[str, Any] = {
    **dict.fromkeys(_COUNTS, 1), "n_gpus": None, "rate": math.nan, "weight_dtype": "", "kv_dtype": "",
    "engine_version": "", "source_key": "", "source": "", "tier": "", "notes": "",
}  # fmt: skip

# More cards than a bridge joins were in a server without bridges.
_BOXES = {"a100-pcie-80gb": "a100-pcie-box", "a100-pcie-40gb": "a100-pcie-box", "h100-pcie": "h100-pcie-box"}

_MODELOPT = (Dtype.FP8, Dtype.NVFP4)
"""Formats of NVIDIA's own checkpoints (ModelOpt), whose hf_quant_config.json asks TensorRT-LLM for an FP8 cache."""

_KEY = ("source_key", "model", "gpu", "metric")
_PER_TIME = tuple(metric for metric in METRICS if "tok_s" in metric)
_TOLD = "model", "gpu", "engine"  # that no row can lack
_QUEUE = 1e6  # requests of a saturated run that does not count them: more than any deployment holds
_USUAL_OSL = 128.0  # a row that names none: long enough that the first token hardly counts


@dataclass(frozen=True)
class ServedGroup:
    """Rows that one deployment produced under one client, as columns; `resolved` predicts them.

    replicas: servers that share each load evenly.
    """

    resolved: Resolved
    table: pd.DataFrame
    client: Client
    server: Server
    replicas: int = 1

    def column(self, name: str) -> Array:
        """A column of numbers."""
        return self.table[name].to_numpy(dtype=float)

    def under(self, engine: Engine) -> ServedGroup:
        """The same rows of another engine."""
        predictor = self.resolved.predictor
        return replace(
            self, resolved=replace(self.resolved, predictor=predictor.on(replace(predictor.plan, engine=engine)))
        )


def published_table() -> Path:
    """The shipped table of published figures."""
    return shipped_path("validate/published.csv")


_MOST = dict.fromkeys(("isl", "osl", "concurrency", "rate"), MOST_TOKENS) | {"value": MOST}


def read_serving_table(path: Path) -> pd.DataFrame:
    """Read one file (CSV or Parquet); missing optional columns take their defaults.

    A number out of range is as good as none. Raises SpecError for a file that cannot be read or is no serving table.
    """
    table: pd.DataFrame = read_table(path, _NEEDED, "serving table")
    for name, default in _OPTIONAL.items():
        if name not in table:
            table[name] = default
    for name, most in _MOST.items():
        numbers = pd.to_numeric(table[name], errors="coerce")
        table[name] = numbers.where((numbers >= 0.0) & (numbers <= most))
    for name in _COUNTS:
        table[name] = table[name].astype(object).where(table[name].notna(), 1)
    for name in (*_TOLD, "weight_dtype", "kv_dtype", "engine_version", "source_key", "source", "tier", "notes"):
        table[name] = table[name].astype(object).fillna("").astype(str)  # an empty column is one of numbers
    return table


def served_groups(table: pd.DataFrame, calibration: str | None, unanswered: Counter[str]) -> Iterator[ServedGroup]:
    """The rows by deployment, each with its predictor; what cannot be predicted is counted with its reason."""
    known = table["metric"].isin(METRICS) & table["load"].isin(LOADS)
    for row in table[~known].itertuples():
        unanswered[f"metric {row.metric!r} under load {row.load!r} is not known"] += 1
    for name in _TOLD:
        empty = known & (table[name] == "")
        if empty.any():
            unanswered[f"column {name!r} is empty"] += int(empty.sum())
        known &= ~empty
    for key, rows in table[known].groupby(
        [*_SETUP, table["source_key"].map(lambda name: client_of(name).source_key)[known]], sort=False, dropna=False
    ):
        setup = dict(zip(_SETUP, key[:-1], strict=True))
        try:
            client = _client(str(key[-1]), setup)
        except RooflinekitError as error:
            unanswered[str(error)] += len(rows)
            continue
        for server, part in _ruled(client, rows):
            try:
                resolved = _resolve(setup, server, str(rows["source"].iloc[0]), calibration)
            except RooflinekitError as error:
                unanswered[str(error)] += len(part)
                continue
            group = ServedGroup(resolved, part, client, server, whole_number(_degree(setup["replicas"]), "replicas"))
            yield from _told(group)


def _ruled(client: Client, rows: pd.DataFrame) -> Iterator[tuple[Server, pd.DataFrame]]:
    """The rows by the server's rule that holds for them."""
    rule = client.rule(*(rows[name].to_numpy(dtype=float) for name in ("isl", "osl", "concurrency")))
    for place in np.unique(rule):
        yield (client.servers[int(place)] if place >= 0 else NO_RULE), rows[rule == place]


def _told(group: ServedGroup) -> Iterator[ServedGroup]:
    """The group as its benchmark told the server: limits of a step, which may follow from each load; CUDA graphs."""
    server, table = group.server, group.table
    loads = table[["isl", "osl", "concurrency"]].replace([math.inf, -math.inf], math.nan).to_numpy(dtype=float)
    kinds = np.unique(loads, axis=0, return_inverse=True)[1] if server.by_load else np.zeros(len(table), int)
    for kind in np.unique(kinds):
        plan = group.resolved.plan
        most, budget = _limits(group, *loads[kinds == kind][0])
        settings = replace(plan.deployment.settings, max_num_seqs=most, token_budget=budget)
        plan = replace(plan, deployment=replace(plan.deployment, settings=settings))
        if server.graph_sizes:
            batch = plan.most_sequences / plan.deployment.pp
            padded = (*(size for size in server.graph_sizes if size < batch), batch)
            plan = replace(plan, engine=replace(plan.engine, costs=replace(plan.engine.costs, padded=padded)))
        resolved = replace(group.resolved, predictor=group.resolved.predictor.on(plan))
        yield replace(group, resolved=resolved, table=table[kinds == kind])


def _limits(group: ServedGroup, isl: float, osl: float, users: float) -> tuple[int | None, int | None]:
    """Sequences that run at once, and tokens of a step, as a server was told for one load; None for the engine's."""
    server, deployment = group.server, group.resolved.plan.deployment
    if server.tuned and isl > 0.0 and osl > 0.0 and (limits := bench_limits(group.resolved.predictor, isl, osl)):
        return limits[0] * deployment.pp, limits[1]
    beside = 64 * math.ceil((users + isl + 64.0) / 64.0) if server.whole_prompt and users + isl > 0.0 else 0
    return deployment.settings.max_num_seqs, max(server.token_budget, beside) or deployment.settings.token_budget


def server_settings(server: Server, users: Array) -> dict[str, Any]:
    """What a server was told about waiting, as fields of `Traffic`."""
    told: dict[str, Any] = {"batch_wait": float(server.batch_wait), "receive_interval": float(server.receive_interval)}
    return told | {"most": np.maximum(users - server.fewer_places, 1.0) if server.fewer_places else np.inf}


def _client(source_key: str, setup: dict[str, Any]) -> Client:
    """The client of a source, with the server rules for one deployment alone."""
    client = client_of(source_key)
    if not client.servers:
        return client
    facts = {
        "engine": str(setup["engine"]).lower(), "model": load_model(setup["model"]).value.name,
        "weights": str(parse_dtype(setup["weight_dtype"])) if setup["weight_dtype"] else "",
        "version": str(setup["engine_version"]).removeprefix("v"),
        "gpu": load_accelerator(str(setup["gpu"])).value.name,
        "experts": "experts" in load_model(setup["model"]).value.matrices,
    } | {key: whole_number(_degree(setup[key]), key) for key in ("tp", "ep", "dp")}  # fmt: skip
    return replace(client, servers=tuple(server for server in client.servers if server.when.names(facts)))


def _resolve(setup: dict[str, Any], server: Server, source: str, calibration: str | None) -> Resolved:
    engine = str(setup["engine"]).lower()
    if engine not in ENGINES or engine not in engine_names():
        raise UnknownNameError("engine", engine, [name for name in ENGINES if name != "ideal"])
    degrees = {key: _degree(setup[key]) for key in _DEGREES}
    tp, pp, dp = (whole_number(degrees[key], key) for key in ("tp", "pp", "dp"))
    replicas = whole_number(_degree(setup["replicas"]), "replicas")
    if dp > 1 and tp % dp == 0 and _degree(setup["n_gpus"]) == tp * pp * replicas:
        degrees["tp"] = tp // dp  # some sources count attention-parallel ranks inside tp (TensorRT-LLM's attention DP)
    if server.tp:
        pp, tp = pp * tp // server.tp, server.tp
        degrees |= {"tp": tp, "pp": pp}
    if server.attention_dp and dp == 1:
        degrees |= {"tp": 1, "dp": tp}
    scenario = degrees | {"microbatches": pp} | ({"max_num_seqs": server.max_num_seqs} if server.max_num_seqs else {})
    scenario |= _formats(str(setup["model"]), setup["weight_dtype"], setup["kv_dtype"] or server.kv, engine)
    dated = re.search(r"20\d\d(?:-\d\d)?", source)  # the year, or year and month, that a source names
    version = engine_version_of(engine, setup["engine_version"] or (dated[0] if dated else ""))
    scenario |= {"engine": engine, "engine_version": version}
    deployment = read_deployment(scenario)
    gpus = _degree(setup["n_gpus"])
    if isinstance(gpus, Real) and not math.isnan(gpus) and gpus != deployment.gpus * replicas:
        several = "·replicas" if replicas > 1 else ""
        raise WorkloadError(f"n_gpus={gpus} is not tp·pp·dp{several} = {deployment.gpus * replicas}")
    accelerator = load_accelerator(str(setup["gpu"])).value
    if deployment.tp > accelerator.domain_size and accelerator.name in _BOXES:
        deployment = read_deployment(scenario | {"system": _BOXES[accelerator.name]})
    draft = {"draft": "mtp", "draft_tokens": server.draft_tokens} if server.draft_tokens else {}
    return resolve(setup["model"], setup["gpu"], deployment, calibration, Speculation.read(draft))


def _degree(cell: object) -> object:
    """A cell of a column that is text because another cell of it is, as a number where it is one."""
    return int(cell) if isinstance(cell, str) and cell.strip().isdecimal() else cell


def _formats(name: str, weights: str, kv: str, engine: str) -> dict[str, Any]:
    """Formats of a row; weights that are the checkpoint's own keep its formats module by module."""
    chosen: dict[str, Any] = {"kv": parse_dtype(kv)} if kv else {}
    if not weights:
        return chosen
    model, given = load_model(name).value, parse_dtype(weights)
    own: Dtype = getattr(model.formats, model.matrices[-1])
    if own.unit is not given.unit or (own.is_wide and own is not given):
        chosen["weights"] = given
        if not kv and engine == "trtllm" and given in _MODELOPT:
            chosen["kv"] = Dtype.FP8
    if engine == "gpt-fast" and not given.is_wide:  # its quantised weights are dequantised (README of gpt-fast)
        chosen["activations"] = Dtype.BF16
    return chosen


@dataclass(frozen=True)
class ServedPrediction:
    """Predicted value of each row with its 90 % interval, in the row's own unit; NaN where `reason` says why not."""

    value: Array
    low: Array
    high: Array
    reason: NDArray[np.str_]


def serving_accuracy(
    files: Sequence[Path],
    calibration: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> Accuracy:
    """Score serving tables (none: the shipped one); every figure of a row comes from the same step function.

    `calibration` is a name, a path, "none" for the datasheet bound, or None for the one that `estimate` would take.
    A row that cannot be answered is counted with its reason.

    Raises SpecError for a file that is no serving table.
    """
    unanswered: Counter[str] = Counter()
    told = progress or (lambda _: None)
    rows = pd.concat(
        [_predicted(read_serving_table(path), calibration, unanswered, told) for path in files or [published_table()]]
    )
    return Accuracy.of(scored(rows, _KEY), unanswered, "metric")


def _predicted(
    table: pd.DataFrame, calibration: str | None, unanswered: Counter[str], progress: Callable[[str], None]
) -> pd.DataFrame:
    """A table with its predictions; NaN where there is none."""
    out = table.assign(predicted=np.nan, low=np.nan, high=np.nan, calibration="")
    for group in served_groups(table, calibration, unanswered):
        plan, rows = group.resolved.plan, group.table.index
        progress(f"{plan.model.name} {plan.system.accelerator.name} {plan.deployment.engine}")
        answer = predict_group(group)
        for name, values in (("predicted", answer.value), ("low", answer.low), ("high", answer.high)):
            out.loc[rows, name] = values
        out.loc[rows, "calibration"] = signature(plan.calibration)
        unanswered.update(answer.reason[answer.reason != ""].tolist())
    return out


def predict_group(group: ServedGroup) -> ServedPrediction:
    """Predict every row of one deployment in one pass for each kind of load."""
    reason, loads = _reasons(group), group.table["load"].to_numpy()
    value, low, high = (np.full(len(group.table), np.nan) for _ in range(3))
    metrics = group.table["metric"].to_numpy()
    for load in LOADS:
        rows = np.flatnonzero((loads == load) & (reason == ""))
        times = _PREDICTED[load](group, rows) if len(rows) else {}
        for end, figures in times.items():
            for metric, values in figures.items():
                side = {"low": "high", "high": "low"}.get(end, end) if metric in _PER_TIME else end
                target = {"expected": value, "low": low, "high": high}[side]
                own = metrics[rows] == metric
                target[rows[own]] = np.where(np.isfinite(values[own]), values[own], np.nan)
    unknown = np.isnan(value) & (reason == "")
    reason[unknown] = np.where(loads[unknown] == "poisson", _OVERLOADED, "not one such request fits in memory")
    return ServedPrediction(value, low, high, reason)


def _reasons(group: ServedGroup) -> NDArray[np.str_]:
    """Why a row cannot be answered whatever the model says; empty where it can."""
    reason = np.full(len(group.table), "", dtype=object)
    for name in ("isl", "value"):
        column = group.column(name)
        reason[~(np.isfinite(column) & (column > 0))] = f"column {name!r} is empty or not above 0"
    users, osl = group.column("concurrency"), group.column("osl")
    loads, metrics = group.table["load"].to_numpy(), group.table["metric"].to_numpy()
    several = np.isin(loads, ("static", "concurrency"))
    reason[several & ~(users > 0)] = "column 'concurrency' is empty or not above 0"
    reason[(loads == "poisson") & ~(group.column("rate") > 0)] = "column 'rate' is empty or not above 0"
    reason[(metrics != "ttft_ms") & (metrics != "prefill_tok_s") & ~(osl > 0) & (loads != "static")] = (
        "column 'osl' is empty"
    )
    return reason


Ends = dict[str, dict[str, Array]]
"""Every metric of some rows, at the low end of their times, as expected, and at the high end."""


def _static(group: ServedGroup, rows: NDArray[np.intp]) -> Ends:
    """A static batch, of as many waves as fit at once."""
    isl, users = group.column("isl")[rows], group.column("concurrency")[rows] / group.replicas
    osl = np.nan_to_num(group.column("osl")[rows], nan=_USUAL_OSL)
    run = static_run(group.resolved.predictor, InFlight(users, isl, osl))

    def rates(ttft: Array, tpot: Array, whole: Array) -> tuple[Array, Array]:
        return users * osl / whole, users * isl / ttft

    return _ends(group, (run.ttft, run.tpot), osl, run.waves, rates)


def _closed_loop(group: ServedGroup, rows: NDArray[np.intp]) -> Ends:
    """Continuous batching under the client that each source used.

    An offline queue is a closed loop of as many users as requests, which notes count; each of them sends one.
    """
    users, client, table = group.column("concurrency")[rows], group.client, group.table.iloc[rows]
    if (table["load"] == "saturated").all():
        counts = table["notes"].str.extract(r"(\d[\d,]*) requests\b")[0].str.replace(",", "").astype(float)
        users, client = np.asarray(counts.fillna(_QUEUE), dtype=np.float64), replace(client, requests=1, warmup=0)
    users = users / group.replicas
    asked, answered = group.column("isl")[rows], group.column("osl")[rows]
    isl, osl = client.mean_length * asked, client.mean_length * answered
    osl = np.nan_to_num(osl, nan=client.mean_length)
    told = server_settings(group.server, users)
    traffic = Traffic(isl, osl, isl_cv=client.cv, osl_cv=client.cv, requests=client.requests, **told)
    loop = _Loop.of(group.resolved.predictor, users, traffic)
    if group.server.prefix_cache:
        loop = _prefixes_kept(group.resolved.predictor, users, traffic, client)

    def rates(ttft: Array, tpot: Array, whole: Array) -> tuple[Array, Array]:
        rate = loop.e2e / loop.gap / whole  # a slow end of the interval is a low rate
        return np.asarray(rate * osl), np.asarray(rate * isl)

    return _ends(group, (loop.ttft, loop.tpot), osl, 1.0, rates)


def _poisson(group: ServedGroup, rows: NDArray[np.intp]) -> Ends:
    """Requests that come at a rate, whether or not others have ended; NaN above what can be sustained."""
    client, rate = group.client, group.column("rate")[rows] / group.replicas
    isl, osl = (client.mean_length * group.column(name)[rows] for name in ("isl", "osl"))
    osl = np.nan_to_num(osl, nan=client.mean_length)
    try:
        loaded = open_loop(group.resolved.predictor, rate, Traffic(isl, osl, isl_cv=client.cv, osl_cv=client.cv))
    except DoesNotFitError:
        return {}

    def rates(ttft: Array, tpot: Array, whole: Array) -> tuple[Array, Array]:
        sustained = np.where(np.asarray(loaded.stable) > 0.0, rate, np.nan)
        return sustained * osl, sustained * isl

    return _ends(group, (loaded.ttft, loaded.tpot), osl, 1.0, rates)


_OVERLOADED = "the rate cannot be sustained, or not one such request fits in memory"
_PREDICTED: dict[str, Callable[[ServedGroup, NDArray[np.intp]], Ends]] = {
    "static": _static, "concurrency": _closed_loop, "saturated": _closed_loop, "poisson": _poisson,
}  # fmt: skip


def _prefixes_kept(predictor: Predictor, users: Array, traffic: Traffic, client: Client) -> _Loop:
    """First the turns in which prompts come that the server has not seen; then those whose prompts are in its cache.

    A cache without room for all prompts, beside the answers under way, drops each before it comes again.
    """
    isl, osl = np.asarray(traffic.isl), np.asarray(traffic.osl)
    tokens = client.prompts * isl + np.minimum(users, client.prompts) * osl / 2.0
    keeps = np.asarray(tokens <= [_tokens_kept(predictor, *each) for each in zip(isl + osl, users, strict=True)])
    block = predictor.plan.engine.memory.block
    cached = np.floor(np.maximum(isl - 1.0, 0.0) / block) * block  # the last block is computed
    unseen = np.where(keeps, client.unseen(users) / users, client.requests)
    turns = np.where(unseen > 0.0, np.maximum(unseen, 1.0), 0.0)  # of all users, who wait for each other
    first = replace(traffic, cached=cached * np.maximum(1.0 - unseen, 0.0), requests=np.maximum(turns, 1.0))
    later = replace(traffic, cached=cached, requests=np.where(turns > 0.0, np.inf, client.requests))
    return _Loop.of(predictor, users, later).mixed(_Loop.of(predictor, users, first), turns / client.requests)


def _tokens_kept(predictor: Predictor, context: float, users: float) -> float:
    """Tokens that the cache has room for; none where not one request fits."""
    try:
        return kv_capacity_tokens(predictor, context, int(users))
    except DoesNotFitError:
        return 0.0


@dataclass(frozen=True)
class _Loop:
    """What users of closed loops feel, and the mean time between two requests [s]."""

    ttft: Time
    tpot: Time
    e2e: Numeric
    gap: Numeric

    @classmethod
    def of(cls, predictor: Predictor, users: Array, traffic: Traffic) -> _Loop:
        loaded = closed_loop(predictor, users, traffic)
        return cls(loaded.ttft, loaded.tpot, loaded.e2e, 1.0 / loaded.rate)

    def mixed(self, other: _Loop, share: Array) -> _Loop:
        """One loop after the other, of which the other has a share of the requests."""
        ttft, tpot = (mine.plus(theirs.plus(mine, -1.0), share) for mine, theirs in
                      ((self.ttft, other.ttft), (self.tpot, other.tpot)))  # fmt: skip
        e2e, gap = (mine + share * (theirs - mine) for mine, theirs in ((self.e2e, other.e2e), (self.gap, other.gap)))
        return _Loop(ttft, tpot, e2e, gap)


def _ends(
    group: ServedGroup, times: tuple[Time, Time], osl: Array, waves: Numeric,
    rates: Callable[[Array, Array, Array], tuple[Array, Array]],
) -> Ends:  # fmt: skip
    """Metrics from TTFT and TPOT [s], and from the rates of output and of prompt tokens that they mean [1/s]."""
    found = {}
    for end in ("expected", "low", "high"):
        ttft, tpot = (np.broadcast_to(getattr(each, end), osl.shape) for each in times)
        whole = np.asarray((ttft + (osl - 1.0) * tpot) * waves)
        with np.errstate(invalid="ignore", divide="ignore"):
            output, prefill = rates(ttft, tpot, whole)
            found[end] = {
                "ttft_ms": 1e3 * ttft, "tpot_ms": 1e3 * tpot, "e2e_ms": 1e3 * whole,
                "output_tok_s_total": output * group.replicas,
                "output_tok_s_per_gpu": output / group.resolved.plan.deployment.gpus,
                "output_tok_s_per_user": 1.0 / tpot, "prefill_tok_s": prefill * group.replicas,
            }  # fmt: skip
    return found
