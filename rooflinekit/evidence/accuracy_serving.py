"""Predictions of whole requests against the serving table: errors, bias and coverage by group."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rooflinekit.estimation.estimator import Resolved, read_deployment, resolve
from rooflinekit.estimation.options import OwnKeywords, options_of
from rooflinekit.estimation.scenario import Placed
from rooflinekit.evidence.accuracy import Accuracy, scored, signature
from rooflinekit.evidence.benchmark_runs import Given
from rooflinekit.evidence.compare import compare_runs
from rooflinekit.evidence.measured import MeasuredRun, is_benchmark, read_measurements
from rooflinekit.load.answer import STEADY, Load, LoadPlay, play_load
from rooflinekit.load.arrivals import Drawn, Process
from rooflinekit.load.compiled import prepare
from rooflinekit.load.lengths import MOST_TOKENS, Fixed, Length, Uniform, parse_length, spread_length, stretched
from rooflinekit.load.played import PERCENTILES
from rooflinekit.load.scene import Scheduler, kv_capacity_tokens
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.serving.flight import InFlight, static_run
from rooflinekit.model.speculation import SpeculativePredictor
from rooflinekit.model.types.batch import whole_number
from rooflinekit.model.types.deployment import ENGINES, unknown_engine
from rooflinekit.model.types.dtype import Dtype, parse_dtype
from rooflinekit.model.types.engine import Engine
from rooflinekit.model.types.errors import DoesNotFitError, RooflinekitError, WorkloadError
from rooflinekit.model.types.model import Attention
from rooflinekit.model.types.numeric import Array, Numeric
from rooflinekit.model.types.speculation import Speculation, expected_tokens
from rooflinekit.model.types.time import ENDS, Time
from rooflinekit.model.types.workload import Workload
from rooflinekit.specs import load_accelerator, load_model
from rooflinekit.specs.clients import NO_RULE, USUAL, Client, ServerFlags, client_of
from rooflinekit.specs.delimited import read_table
from rooflinekit.specs.engines import engine_names, engine_version_of
from rooflinekit.specs.foreign import MOST
from rooflinekit.specs.places import shipped_path

_TUNED = {Dtype.BF16: 1.0, Dtype.FP16: 1.0, Dtype.FP8: 1.0, Dtype.FP8_BLOCK: 1.0, Dtype.NVFP4: 0.5}
"""Formats with rules, and bytes that it counts for one of the checkpoint: 4-bit weights, packed in pairs, for half."""

_UNTUNED = 2048, 8192  # of other formats, as TensorRT-LLM's BuildConfig says
_SHARE = 0.95  # of the memory that weights leave
_MOST_SEQUENCES, _MOST_TOKENS = 4096, 32768
_TOKEN_STEPS = (4096, 256), (8192, 512), (_MOST_TOKENS, 1024)
_BATCH_STEPS = (256, 32), (1024, 128), (_MOST_SEQUENCES, 256)


def bench_limits(predictor: Predictor, isl: float, osl: float) -> tuple[int, int] | None:
    """Sequences that one pipeline stage and attention replica runs at once, and tokens of a step, at the most.

    None for models whose cache is not keys and values of heads: it takes the width of a head from config.json, which
    has none for latent attention.
    """
    plan = predictor.plan
    model, deployment = plan.model, plan.deployment
    weights = plan.precision.weights_of(model.matrices[-1])
    mixers = [(layer.mixer, count) for layer, count in model.layer_counts.items() if layer.mixer is not None]
    heads = [(mixer, count) for mixer, count in mixers if isinstance(mixer, Attention)]
    if len(heads) < len(mixers):
        return None
    if weights not in _TUNED:
        batch, tokens = _UNTUNED
    else:
        ranks, each = deployment.tp * deployment.dp, plan.precision.kv.bytes
        token = sum(2 * count * max(ranks, mixer.kv_heads) * mixer.head_dim * each for mixer, count in heads)
        size = _TUNED[weights] * float(predictor.memory.evaluate(1.0, isl + osl, isl).weight_bytes)
        room = _SHARE * deployment.gpus * (float(plan.system.accelerator.memory_bytes) - size)
        sequences = min(room / (token * (isl + osl)), _MOST_SEQUENCES) / deployment.pp
        batch = max(_rounded_up(sequences, _BATCH_STEPS), 64)
        tokens = max(_rounded_up(min(sequences * (1.0 + isl / osl), _MOST_TOKENS), _TOKEN_STEPS), 2048)
    return batch, max(tokens, ceil(isl) + batch)


def _rounded_up(value: float, steps: tuple[tuple[int, int], ...]) -> int:
    """To a multiple of the step that holds for values of this size.

    >>> [_rounded_up(value, _BATCH_STEPS) for value in (190.0, 300.0, 1770.0)]
    [192, 384, 1792]
    """
    step = next(step for most, step in steps if value < most or most == steps[-1][0])
    return step * ceil(value / step)


TIMES = ("ttft", "tpot", "e2e")
QUANTILE_METRICS = {f"{time}_{name}_ms": (time, share) for time in TIMES for name, share in PERCENTILES.items()}
"""Percentiles of a load's requests: of which time, and which share."""
_RATES = ("output_tok_s_total", "output_tok_s_per_gpu", "output_tok_s_per_user", "prefill_tok_s")
METRICS = (*(f"{time}_ms" for time in TIMES), *_RATES, *QUANTILE_METRICS)
LOADS = ("static", "concurrency", "saturated", "poisson")
_NEEDED = ("model", "gpu", "engine", "load", "isl", "osl", "concurrency", "metric", "value")
_DEGREES = ("tp", "pp", "ep", "dp")
_COUNTS = (*_DEGREES, "replicas")
_SETUP = ("model", "gpu", "n_gpus", *_COUNTS, "weight_dtype", "kv_dtype", "engine", "engine_version")
_PLACED = options_of(Placed)
SETTINGS = tuple(name for name in _PLACED if name not in {*_SETUP, "kv", "weights", "calibration"})
"""Options of a deployment that may be columns besides, by their own names."""
CLIENT = ("isl_cv", "osl_cv", "requests", "warmup", "seed_reuse", "duration_s", "cached_requests")
"""Columns that describe a client: variation of the lengths, requests in all, requests before those that count,
different prompts that are sent again and again, how long it sends [s], and requests that come first and whose prompts
an earlier run left in the cache.
"""
_TEXTS = ("weight_dtype", "kv_dtype", "engine_version", "source_key", "source", "tier", "notes")
_OPTIONAL: dict[str, Any] = {
    **dict.fromkeys((*CLIENT, "rate"), math.nan),
    **dict.fromkeys(_COUNTS, 1),
    **dict.fromkeys(_TEXTS, ""),
    "n_gpus": None,
}

# More cards than a bridge joins were in a server without bridges.
_BOXES = {"a100-pcie-80gb": "a100-pcie-box", "a100-pcie-40gb": "a100-pcie-box", "h100-pcie": "h100-pcie-box"}

_MODELOPT = (Dtype.FP8, Dtype.NVFP4)
"""Formats of NVIDIA's own checkpoints (ModelOpt), whose hf_quant_config.json asks TensorRT-LLM for an FP8 cache."""

_OF_RUNS = {each: each for each in METRICS} | {"output_tok_s": "output_tok_s_total"}
_KEY = ("source_key", "model", "gpu", "metric")
_TOLD = "model", "gpu", "engine"  # that no row can lack
_USUAL_OSL = 128.0  # a row that names none: long enough that the first token hardly counts


@dataclass(frozen=True)
class ServedGroup:
    """Rows that one deployment produced under one client, as columns; `resolved` predicts them.

    replicas: servers that share each load evenly.
    """

    resolved: Resolved
    table: pd.DataFrame
    client: Client
    server: ServerFlags
    replicas: int = 1

    def column(self, name: str) -> Array:
        """A column of numbers."""
        return self.table[name].to_numpy(dtype=float)

    def under(self, engine: Engine) -> ServedGroup:
        """The group as rows of another engine."""
        old = self.resolved.predictor
        return replace(self, resolved=replace(self.resolved, predictor=old.on(replace(old.plan, engine=engine))))


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
    for name in (*_TOLD, *_TEXTS):
        table[name] = table[name].astype(object).fillna("").astype(str)  # an empty column is one of numbers
    for name in {*SETTINGS} & {*table}:
        table[name] = table[name].astype(object).where(table[name].notna(), "")
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
    columns = [*_SETUP, *(name for name in SETTINGS if name in table)]
    clients = table["source_key"].map(lambda name: client_of(name).source_key)[known]
    for key, rows in table[known].groupby([*columns, clients], sort=False, dropna=False):
        setup = dict(zip(columns, key[:-1], strict=True))
        try:
            client = _client(str(key[-1]), setup)
        except RooflinekitError as error:
            unanswered[str(error)] += len(rows)
            continue
        for server, part in _ruled(client, rows):
            try:
                resolved = _resolve(setup, client, server, str(rows["source"].iloc[0]), calibration)
            except RooflinekitError as error:
                unanswered[str(error)] += len(part)
                continue
            group = ServedGroup(resolved, part, client, server, whole_number(_degree(setup["replicas"]), "replicas"))
            yield from _told(group)


def _ruled(client: Client, rows: pd.DataFrame) -> Iterator[tuple[ServerFlags, pd.DataFrame]]:
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
    beside = max(beside, round(isl) + server.beside) if server.beside and isl > 0.0 else beside
    settings = deployment.settings
    return settings.max_num_seqs, settings.token_budget or max(server.token_budget, beside) or None


def _client(source_key: str, setup: dict[str, Any]) -> Client:
    """The client of a source, with the server rules for one deployment alone."""
    if client_of(source_key) is USUAL:
        return USUAL
    facts = {
        "engine": str(setup["engine"]).lower(),
        "model": load_model(setup["model"]).value.name,
        "weights": str(parse_dtype(setup["weight_dtype"])) if setup["weight_dtype"] else "",
        "version": str(setup["engine_version"]).removeprefix("v"),
        "gpu": load_accelerator(str(setup["gpu"])).value.name,
        "experts": "experts" in load_model(setup["model"]).value.matrices,
    } | {key: whole_number(_degree(setup[key]), key) for key in ("tp", "ep", "dp")}
    return client_of(source_key, facts).of(facts)


def _resolve(
    setup: dict[str, Any], client: Client, server: ServerFlags, source: str, calibration: str | None
) -> Resolved:
    engine = str(setup["engine"]).lower()
    if engine not in ENGINES or engine not in engine_names():
        raise unknown_engine(engine)
    degrees = {key: _degree(setup[key]) for key in _DEGREES}
    tp, pp, dp = (whole_number(degrees[key], key) for key in ("tp", "pp", "dp"))
    replicas = whole_number(_degree(setup["replicas"]), "replicas")
    if dp > 1 and tp % dp == 0 and _degree(setup["n_gpus"]) == tp * pp * replicas:
        degrees["tp"] = tp // dp  # some sources count attention-parallel ranks inside tp (TensorRT-LLM's attention DP)
    if server.tp:
        pp, tp = pp * tp // server.tp, server.tp
        degrees |= {"tp": tp, "pp": pp}
    if server.expert_parallel and whole_number(degrees["ep"], "ep") == 1:
        degrees["ep"] = tp
    if server.attention_dp and dp == 1:
        degrees |= {"tp": 1, "dp": tp}
    scenario = degrees | {"microbatches": pp} | server.settings
    scenario |= _formats(str(setup["model"]), setup["weight_dtype"], setup["kv_dtype"] or server.kv, engine)
    if client.skew and "experts" in load_model(setup["model"]).value.matrices:
        scenario["skew"] = client.skew
    if server.activations:
        scenario["activations"] = parse_dtype(server.activations)
    scenario |= {name: _setting(name, setup[name]) for name in SETTINGS if setup.get(name, "") != ""}
    dated = re.search(r"20\d\d(?:-\d\d)?", source)  # the year, or year and month, that a source names
    version = engine_version_of(engine, setup["engine_version"] or server.version or (dated[0] if dated else ""))
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


def _setting(name: str, cell: object) -> object:
    """A cell of a column that is an option of a deployment."""
    if name in ("async_scheduling", "prefix_caching"):
        return {"true": "on", "1": "on", "false": "off", "0": "off"}.get(str(cell).strip().lower(), cell)
    return _PLACED[name].of_cell(cell)


def _degree(cell: object) -> object:
    """A cell of a column that is text because another cell of it is, as a number where it is one."""
    return int(cell) if isinstance(cell, str) and cell.strip().isdecimal() else cell


def _formats(name: str, weights: str, kv: str, engine: str) -> OwnKeywords:
    """Formats of a row; weights that are the checkpoint's own keep its formats module by module."""
    chosen: OwnKeywords = {"kv": parse_dtype(kv)} if kv else {}
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
    """Predicted value of each row with its intervals, in the row's own unit; NaN where `reason` says why not.

    low, high: of the 90 % interval; low80, high80: of the 80 % one, NaN of static batches, whose errors are normal.
    """

    value: Array
    low: Array
    high: Array
    low80: Array
    high80: Array
    reason: NDArray[np.str_]


def serving_accuracy(
    files: Sequence[Path],
    calibration: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> Accuracy:
    """Score serving tables (none: the shipped one), and results of benchmark clients, whose figures are rows too.

    `calibration` is a name, a path, "none" for the datasheet bound, or None for the one that `estimate` would take.
    A row that cannot be answered is counted with its reason.
    """
    unanswered: Counter[str] = Counter()
    told, tables = progress or (lambda _: None), list[pd.DataFrame]()
    for path in files or [published_table()]:
        if is_benchmark(path):
            tables.append(_compared(path, calibration, unanswered))
        else:
            tables.append(_predicted(read_serving_table(path), calibration, unanswered, told))
    return Accuracy.of(scored(pd.concat(tables), _KEY), unanswered, "metric")


def _compared(path: Path, calibration: str | None, unanswered: Counter[str]) -> pd.DataFrame:
    """Figures of a benchmark client as rows with predictions; runs that lack facts are counted with what they lack."""
    given, rows = Given(calibration=calibration), list[tuple[object, ...]]()
    for entry in read_measurements(path):
        if not isinstance(entry, MeasuredRun):
            continue
        try:
            found = compare_runs([entry], given, {}).runs[0]
        except RooflinekitError as error:
            lacks = "; `rooflinekit compare` takes these options" if "; add --" in str(error) else ""
            unanswered[f"{error}{lacks}"] += 1
            continue
        used = "{name} {hash}".format(**found.calibration) if found.calibration else ""
        for each in found.metrics:
            key = (found.tool, found.facts.model, found.facts.gpu, _OF_RUNS[each.metric])
            ends = (np.nan if end is None else end for end in (each.low, each.high))
            rows.append((*key, each.measured, each.predicted, used, *ends))
    return pd.DataFrame(rows, columns=[*_KEY, "value", "predicted", "calibration", "low", "high"])


def _predicted(
    table: pd.DataFrame, calibration: str | None, unanswered: Counter[str], progress: Callable[[str], None]
) -> pd.DataFrame:
    """A table with its predictions; NaN where there is none."""
    columns = {"predicted": "value"} | {name: name for name in ("low", "high", "low80", "high80")}
    out = table.assign(**dict.fromkeys(columns, np.nan), calibration="")
    plays = int((table["load"] != "static").sum())
    prepare(STEADY * plays, lambda: progress("compile the loop that plays loads, once"))  # queues play more, users less
    for group in served_groups(table, calibration, unanswered):
        plan, rows = group.resolved.plan, group.table.index
        progress(f"{plan.model.name} {plan.system.accelerator.name} {plan.deployment.engine}")
        answer = predict_group(group)
        for name, field in columns.items():
            out.loc[rows, name] = getattr(answer, field)
        out.loc[rows, "calibration"] = signature(plan.calibration)
        unanswered.update(answer.reason[answer.reason != ""].tolist())
    return out


def predict_group(group: ServedGroup, ends: bool = True) -> ServedPrediction:
    """Predict every row of one deployment: static batches in one pass, loads played one by one, equal ones once.

    ends: whether intervals under load are asked for, which take three plays more; without, they have no width.
    """
    reason, loads = _reasons(group), group.table["load"].to_numpy()
    found = {end: np.full(len(group.table), np.nan) for end in ("expected", *_OTHER_END)}
    value = found["expected"]
    metrics = group.table["metric"].to_numpy()
    for static in (True, False):
        rows = np.flatnonzero(((loads == "static") == static) & (reason == ""))
        times = (_static(group, rows) if static else _played(group, rows, ends)) if len(rows) else {}
        for end, figures in times.items():
            for metric, values in figures.items():
                side = _OTHER_END.get(end, end) if metric in _RATES else end
                own = metrics[rows] == metric
                found[side][rows[own]] = np.where(np.isfinite(values[own]), values[own], np.nan)
    unknown = np.isnan(value) & (reason == "")
    reason[unknown] = np.where(loads[unknown] == "poisson", _OVERLOADED, _NO_ROOM)
    return ServedPrediction(value, **{end: found[end] for end in _OTHER_END}, reason=reason)


_OTHER_END = {"low": "high", "high": "low", "low80": "high80", "high80": "low80"}
"""Ends of an interval of times; a rate has the other end there."""


def _reasons(group: ServedGroup) -> NDArray[np.str_]:
    """The reason why a row cannot be answered whatever the model says; empty where it can."""
    reason = np.full(len(group.table), "", dtype=object)
    for name in ("isl", "value"):
        column = group.column(name)
        reason[~(np.isfinite(column) & (column > 0))] = f"column {name!r} is empty or not above 0"
    users, osl = group.column("concurrency"), group.column("osl")
    loads, metrics = group.table["load"].to_numpy(), group.table["metric"].to_numpy()
    percentile = np.isin(metrics, [*QUANTILE_METRICS]) & (loads == "static")
    reason[percentile] = "a static batch has no percentiles"
    several = np.isin(loads, ("static", "concurrency"))
    reason[several & ~(users > 0)] = "column 'concurrency' is empty or not above 0"
    reason[(loads == "poisson") & ~(group.column("rate") > 0)] = "column 'rate' is empty or not above 0"
    answers = ~np.isin(metrics, ("ttft_ms", "prefill_tok_s")) & (loads != "static")
    reason[answers & ~(osl > 0)] = "column 'osl' is empty"
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


class _Load(NamedTuple):
    """A load of a row; None where the row does not say. requests: as the row or its notes count them."""

    kind: str
    isl: float
    osl: float | None
    users: float | None
    rate: float | None
    isl_cv: float | None
    osl_cv: float | None
    requests: float | None
    warmup: float | None
    seed_reuse: float | None
    duration: float | None
    cached_requests: float | None


def _played(group: ServedGroup, rows: NDArray[np.intp], ends: bool) -> Ends:
    """Each load as its client made it, played; NaN above the rate that can be sustained, or where nothing fits."""
    table = group.table.iloc[rows]
    counts = table["notes"].str.extract(r"(\d[\d,]*) requests\b")[0].str.replace(",", "").astype(float)
    told = [group.column(name)[rows] for name in ("isl", "osl", "concurrency", "rate", *CLIENT)]
    place = _Load._fields.index("requests") - 1
    told[place] = np.where(np.isnan(told[place]), counts.to_numpy(), told[place])
    nominal = table["notes"].str.extract(r"nominal ([\d/]+)")[0]
    repeated = [group.client.cached(*run) for run in zip(nominal, told[place], strict=True)]
    told[-1] = np.where(np.isnan(told[-1]), np.array(repeated, float), told[-1])
    columns = [[None if math.isnan(cell) else float(cell) for cell in column] for column in told]
    loads = [_Load(*cells) for cells in zip(table["load"], *columns, strict=True)]
    found = {load: _told_apart(_play(group, load), ends) for load in dict.fromkeys(loads)}
    spans = [np.array([found[load].times[place] for load in loads]).T for place in (0, 1)]
    ttft, tpot = (Time(*span[: len(ENDS)]) for span in spans)
    near = [Time(*span[:2], *span[len(ENDS) :]) for span in spans]
    e2e, output, isl, osl = np.array([found[load].means for load in loads]).T
    quantiles = [found[load].quantiles for load in loads]
    shares = {name: np.array([each.get(name, math.nan) for each in quantiles]) for name in QUANTILE_METRICS}

    def rates(ttft: Array, tpot: Array, whole: Array) -> tuple[Array, Array]:
        rate = output / group.replicas * e2e / whole  # a slow end of the interval is a low rate
        return np.asarray(rate), np.asarray(rate * isl / osl)

    waves = e2e / (ttft.expected + (osl - 1.0) * tpot.expected)
    ended = _ends(group, (ttft, tpot), osl, waves, rates)
    nearer = _ends(group, (near[0], near[1]), osl, waves, rates)
    ended |= {f"{end}80": nearer[end] for end in ("low", "high")}
    for figures in ended.values():  # a percentile has the relative interval of its mean
        for name, (time, _) in QUANTILE_METRICS.items():
            figures[name] = 1e3 * shares[name] * figures[f"{time}_ms"] / ended["expected"][f"{time}_ms"]
    return ended


class _Found(NamedTuple):
    """Result of a play.

    times: both times by `ENDS`, and the ends of their 80 % interval [s]; means: whole requests [s], output tokens a
    second, mean tokens in and out; quantiles: percentiles by their metric [s].
    """

    times: tuple[tuple[float, ...], tuple[float, ...]]
    means: tuple[float, ...]
    quantiles: Mapping[str, float]


def _told_apart(found: LoadPlay | None, ends: bool) -> _Found:
    if found is None or not (found.stable or found.asked.requests):  # a run that is told ends, whatever it meets
        nothing = (math.nan,) * (len(ENDS) + 2)
        return _Found((nothing, nothing), (math.nan,) * 4, {})
    ttft, tpot, e2e = found.times() if ends else found.means()
    near = found.times(0.8)[:2] if ends else (ttft, tpot)
    first, later = (
        (*(float(getattr(time, end)) for end in ENDS), float(close.low), float(close.high))
        for time, close in zip((ttft, tpot), near, strict=True)
    )
    done = found.played
    isl, osl = (float(each[done.counted].mean()) for each in (done.isl, done.osl))
    quantiles = {name: found.quantile(time, share) for name, (time, share) in QUANTILE_METRICS.items()}
    return _Found((first, later), (e2e, found.output_rate, isl, osl), quantiles)


def _play(group: ServedGroup, load: _Load) -> LoadPlay | None:
    """A load by its client's protocol; None where not one request fits.

    An offline queue is a closed loop of as many users as requests; where notes do not count them, of ten for each
    place. A warm-up is played where it leaves prompts in the cache. Microbatches take turns on the stages of a
    pipeline: each is played as a replica with its share of the cache.
    """
    client, predictor = group.client, group.resolved.predictor
    deployment, lanes = predictor.plan.deployment, predictor.plan.deployment.pp
    engines, queue = group.replicas * deployment.dp, load.kind == "saturated"
    most = deployment.settings.max_num_seqs or int(predictor.memory.rows)
    users = round((load.requests or 10.0 * most * engines) if queue else load.users or 1.0)
    if load.kind != "poisson":  # no more run than there are
        most = min(most, max(-(-users // engines), 1))
    osl = load.osl or 1.0 / client.mean_length
    asked = Load(_drawn(client, load.isl, load.isl_cv), _drawn(client, osl, load.osl_cv), rate=load.rate)
    if load.kind == "poisson":
        asked = replace(asked, requests=round(load.requests) if load.requests else None)
    else:
        told = max(round(load.requests or client.requests * users), users)
        pace = 0.0 if queue else load.rate or 0.0
        asked = replace(asked, users=users, rate=None, requests=users if queue else told, pace=pace)
    try:
        tokens = kv_capacity_tokens(predictor, load.isl + osl, most * deployment.dp)
        prompts = round(load.seed_reuse or client.seed_reuse)
        if prompts and asked.users:
            warmup = client.warmup * users if load.warmup is None else round(load.warmup)
            asked = replace(asked, prompts=prompts, warmup=warmup)
        if client.mean_length == 1.0 and load.requests and load.isl_cv is None is load.osl_cv:
            asked = _with_told_means(asked)
        earlier, caching = load.cached_requests or 0.0, deployment.settings.prefix_caching != "off"
        if caching and 0.0 < earlier * load.isl <= tokens:
            asked = _after_earlier(asked, round(earlier))
        limits = _drafting(predictor, asked) | {"max_num_seqs": max(most // lanes, 1), "kv_tokens": tokens // lanes}
        scheduler = Scheduler(replicas=group.replicas * lanes, **limits)
        found = play_load(predictor, asked, scheduler)
        if load.duration and not queue:
            count = max(round(load.duration * found.rate), users)
            found = play_load(predictor, replace(asked, requests=count), scheduler)
    except (DoesNotFitError, WorkloadError):
        return None
    return found


def _after_earlier(asked: Load, count: int) -> Load:
    """The load of whose requests the first find their prompts in the cache, but for the last token."""

    def source(process: Process, number: int, seed: int) -> Drawn:
        drawn = asked.draw(process, number, seed)
        drawn.cached = [isl - 1 if place < count else 0 for place, isl in enumerate(drawn.isl)]
        return drawn

    return replace(asked, source=source)


def _with_told_means(asked: Load) -> Load:
    """The load whose requests have the mean lengths that a row tells of them: a few draws of a wide law miss these."""
    lengths = ((asked.isl, asked.drawn.isl), (asked.osl, asked.drawn.osl))
    isl, osl = (stretched(law, law.mean * len(drawn) / sum(drawn)) for law, drawn in lengths)
    return replace(asked, isl=isl, osl=osl)


def _drawn(client: Client, nominal: float, told: float | None) -> Length:
    """Lengths with the variation that a row tells, or as a client draws them around the nominal one."""
    if told is not None:
        return parse_length(spread_length("length", max(round(nominal), 1), told or None))
    low, high = (max(round(share * nominal), 1) for share in client.lengths)
    return Uniform(low, high) if low < high else Fixed(low)


def _drafting(predictor: Predictor, asked: Load) -> dict[str, Any]:
    """Fields of `Scheduler` for a draft: an acceptance that yields as many tokens a pass, and the time to draft one."""
    if not isinstance(predictor, SpeculativePredictor):
        return {}
    choice = predictor.draft.choice
    work = Workload(float(asked.users or 1), asked.isl.mean, max(asked.osl.mean, 2.0))
    _, draft = predictor.round(work, asked.isl.mean + asked.osl.mean / 2.0)
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2.0
        more = expected_tokens((middle,), choice.draft_tokens) < choice.tokens_per_pass
        low, high = (middle, high) if more else (low, middle)
    drafted = 1e3 * float(draft.expected) / choice.draft_tokens
    return {"draft_tokens": choice.draft_tokens, "acceptance": low, "draft_ms": drafted}


_NO_ROOM = "not one such request fits in memory, or a step has no room for prompts"
_OVERLOADED = f"the rate cannot be sustained, or {_NO_ROOM}"


def _ends(
    group: ServedGroup,
    times: tuple[Time, Time],
    osl: Array,
    waves: Numeric,
    rates: Callable[[Array, Array, Array], tuple[Array, Array]],
) -> Ends:
    """Metrics from TTFT and TPOT [s], and from the rates of output and of prompt tokens that they mean [1/s]."""
    found = {}
    for end in ("expected", "low", "high"):
        ttft, tpot = (np.broadcast_to(getattr(each, end), osl.shape) for each in times)
        whole = np.asarray((ttft + (osl - 1.0) * tpot) * waves)
        with np.errstate(invalid="ignore", divide="ignore"):
            output, prefill = rates(ttft, tpot, whole)
            found[end] = {
                "ttft_ms": 1e3 * ttft,
                "tpot_ms": 1e3 * tpot,
                "e2e_ms": 1e3 * whole,
                "output_tok_s_total": output * group.replicas,
                "output_tok_s_per_gpu": output / group.resolved.plan.deployment.gpus,
                "output_tok_s_per_user": 1.0 / tpot,
                "prefill_tok_s": prefill * group.replicas,
            }
    return found
