"""Predictions of board power and joules a token against measured runs."""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from rooflinekit.estimation.estimator import read_deployment, resolve
from rooflinekit.estimation.options import OwnKeywords
from rooflinekit.evidence.accuracy import Accuracy, scored, signature
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.serving.energy import load_power, static_energy, token_energy
from rooflinekit.model.serving.flight import InFlight, static_run
from rooflinekit.model.types.deployment import ENGINES
from rooflinekit.model.types.dtype import Dtype, parse_dtype
from rooflinekit.model.types.errors import DtypeError, InputError, RooflinekitError, SpecError, UnknownNameError
from rooflinekit.model.types.model import Model
from rooflinekit.model.types.workload import Workload
from rooflinekit.specs import load_accelerator, load_model
from rooflinekit.specs.delimited import read_table
from rooflinekit.specs.engines import engine_names, engine_version_of
from rooflinekit.specs.foreign import MOST, number_or

METRICS = ("power_w_per_gpu", "energy_per_output_token_j")
_NEEDED = ("model", "gpu")
_KEY = ("source_key", "model", "gpu", "metric")
_NOT_BOARDS = re.compile(r"wall|outlet|psu|node|server|system|host|chassis|rack|ipmi|bmc|cpu")
"""Kinds of power that hold more than accelerators."""
_UNSAID = {"", "nan", "none", "null", "n/a", "na", "-", "auto", "default", "unknown"}
_NAMES = {"tensorrt-llm": "trtllm", "ollama": "llama.cpp", "llama-cpp": "llama.cpp", "llama-bench": "llama.cpp"}
_RELEASES = {
    "vllm": {"2023": "0.2", "2024": "0.6"},
    "trtllm": {"2023": "0.7", "2024": "0.16"},
    "sglang": {"2024": "0.4"},
}
"""The last release of a year, for rows that say no more."""
_OSL = 256.0
"""Tokens out where a row does not say: each then sees half as many keys more."""
_GGUF = re.compile(r"(?:ud[-_])?i?q(\d)")
_ONE_TOKEN = 1.0
_MOST = 1e7
"""No length, rate, time or count of a run is larger, in the units of its column; nor smaller than its inverse."""
_WORK = ("n_gpus", "tp", "pp", "ep", "dp", "mean_running", "max_num_seqs", "isl_mean", "osl_mean",
         "itl_steady_ms", "tpot_reported_ms", "output_tok_s_total", "prefill_tok_s", "power_limit_w")  # fmt: skip
"""Columns that a prediction is made of."""


def energy_accuracy(
    files: Sequence[Path], calibration: str | None = None, progress: Callable[[str], None] | None = None
) -> Accuracy:
    """Score runs: mean power of a board, and all energy over all output tokens.

    A measured throughput (`output_tok_s_total`, `prefill_tok_s`) or inter-token latency (`itl_steady_ms`) of a row sets
    the share of the time in which its boards work; without one the predicted times do. A row that cannot be answered
    counts with its reason. Power of whole computers (`power_kind` wall_peak, node_mean …) is not a board's and is left
    to no answer. Other columns than `model`, `gpu` and one of the two metrics may be absent.
    """
    unanswered: Counter[str] = Counter()
    rows = []
    for path in files:
        table = read_table(path, _NEEDED, "table of runs with energy", text=True)
        if not {*METRICS, "power_w_total", "energy_per_request_j"}.intersection(table):
            raise SpecError(f"{path}: is no table of runs with energy: it has no column {' or '.join(METRICS)}")
        for cells in table.to_numpy():
            run: dict[str, Any] = dict(zip(map(str, table), cells, strict=True))
            if progress is not None:
                progress(f"{run['model']} {run['gpu']}")
            rows += _scored_run(run, calibration, unanswered)
    if not rows:
        return Accuracy.of((), unanswered, "metric")
    return Accuracy.of(scored(pd.DataFrame(rows), _KEY), unanswered, "metric")


def _scored_run(
    run: Mapping[str, object], calibration: str | None, unanswered: Counter[str]
) -> list[dict[str, object]]:
    stated = {name: value for name, value in zip(METRICS, _measured(run), strict=True) if value is not None}
    if not stated:
        unanswered["the row states no board power"] += 1
        return []
    found: dict[str, tuple[float, float, float]] = {}
    name = ""
    try:
        found, name = predict_run(run, calibration)
    except RooflinekitError as error:
        unanswered[str(error)] += len(stated)
    shared = {"source_key": run.get("source_key") or "", "model": run["model"], "gpu": run["gpu"], "calibration": name}
    rows = []
    for metric, value in stated.items():
        predicted, low, high = found.get(metric, (math.nan,) * 3)
        rows.append({**shared, "metric": metric, "value": value, "predicted": predicted, "low": low, "high": high})
    return rows


def _measured(run: Mapping[str, object]) -> tuple[float | None, float | None]:
    """Power of a board [W] and joules of an output token; from those of all boards and of a request where need be."""
    total, request = _number(run, "power_w_total"), _number(run, "energy_per_request_j")
    gpus, osl = _number(run, "n_gpus"), _number(run, "osl_mean")
    return (
        _number(run, METRICS[0]) or (total / gpus if total and gpus else None),
        _number(run, METRICS[1]) or (request / osl if request and osl and osl >= _ONE_TOKEN else None),
    )


def predict_run(
    run: Mapping[str, object], calibration: str | None = None
) -> tuple[dict[str, tuple[float, float, float]], str]:
    """Predicted metrics of one run, each with the ends of its 90 % interval, and the calibration that was used."""
    for name in _WORK:
        value = number_or(run.get(name), math.nan, -math.inf, sys.float_info.max)
        if abs(value) > _MOST or 0.0 < abs(value) < 1.0 / _MOST:
            raise InputError(f"{name} of the row, {value:g}, belongs to no run")
    kind = str(run.get("power_kind") or "").lower()
    if _NOT_BOARDS.search(kind):
        whole = "computer at the wall" if kind.startswith("wall") else f"computer or more ({kind})"
        raise InputError(f"the power of a whole {whole} is not a board's")
    predictor, calibrated = _predictor(run, calibration)
    law = predictor.plan.system.accelerator.power
    if law is None:
        raise InputError(f"{predictor.plan.system.accelerator.name} has no rated power (power.tdp) in its file")
    copies = max((_number(run, "n_gpus") or 1.0) // predictor.plan.deployment.gpus, 1.0)
    made, between = _number(run, "output_tok_s_total"), _between(run)
    stated, prompts = _number(run, "osl_mean", least=0.0), _number(run, "prefill_tok_s")
    prefills = bool(prompts and not made and not between) if stated is None else stated < _ONE_TOKEN
    every = _running(run)
    rate = prompts if prefills else made or (1e3 * every / between if between else None)
    rate, running = None if rate is None else rate / copies, every / copies
    isl = max(_number(run, "isl_mean") or 1.0, 1.0)
    if prefills and isl == 1.0:
        raise InputError("the row states no isl_mean of its prompts")
    osl = _ONE_TOKEN if prefills else _OSL if stated is None else stated
    if str(run.get("load") or "").lower() == "static":
        waves = float(static_run(predictor, InFlight(running, isl, osl)).waves)
        tokens, lone = static_energy(predictor, Workload(max(running / waves, 1.0), isl, osl)), _ONE_TOKEN
    else:
        tokens, lone = token_energy(predictor, InFlight(max(running, 1.0), isl, osl)), 0.0
    if predictor.plan.deployment.engine == "llama.cpp":  # it leaves no gaps: a slower step has slower kernels
        tokens = replace(tokens, law=replace(law, idle=law.active, waiting=law.active))
    if prefills:  # a rate of prompt tokens: as many prompts
        rate = None if rate is None else rate / isl
    found = load_power(tokens, osl, rate, lone, serving=True)
    limit = _number(run, "power_limit_w") or math.inf
    watts, width = min(float(found.watts), limit), law.run_width
    each = float(found.joules_per_output_token) * watts / float(found.watts)
    ends = max(watts / width, law.idle), min(watts * width, law.limit)
    return dict(zip(METRICS, ((watts, *ends), (each, each / width, each * width)), strict=True)), calibrated


def _between(run: Mapping[str, object]) -> float | None:
    """Measured time between the tokens of an answer [ms]."""
    return _number(run, "itl_steady_ms") or _number(run, "tpot_reported_ms")


def _running(run: Mapping[str, object]) -> float:
    """Sequences in the steps of all boards: as stated, by Little's law, or as many as the server takes."""
    rate, between, most = _number(run, "output_tok_s_total"), _between(run), _number(run, "max_num_seqs")
    little = max(rate * between / 1e3, 1.0) if rate and between else None
    found = _number(run, "mean_running") or little or (most * (_number(run, "pp") or 1.0) if most else None)
    if found is None:
        raise InputError("the row states neither mean_running nor max_num_seqs")
    return found


def _predictor(run: Mapping[str, Any], calibration: str | None) -> tuple[Predictor, str]:
    """The deployment of a run; an engine that nobody knows is taken for vLLM, whose work is alike."""
    stated = str(run.get("engine") or "").strip().lower()
    engine = _NAMES.get(stated, stated)
    engine = engine if engine in ENGINES and engine in engine_names() else "vllm"
    split = {name: int(_number(run, name) or 1) for name in ("tp", "pp", "ep", "dp")}
    if _number(run, "tp") is None and split["dp"] == 1:
        split["tp"] = max(int(_number(run, "n_gpus") or 1) // split["pp"], 1)
    scenario: OwnKeywords = {**split, "microbatches": split["pp"], "engine": engine}
    version = str(run.get("engine_version") or "").strip()
    version = _RELEASES.get(engine, {}).get(version[:4], version)
    if engine == _NAMES.get(stated, stated) and re.match(r"v?\d+\.\d+(?!\d)", version):
        scenario["engine_version"] = engine_version_of(engine, version)
    name, model = _model(run)
    weights, own = _format(run.get("weight_dtype")), getattr(model.formats, model.matrices[-1])
    if weights is not None and weights.unit is not own.unit:
        scenario["weights"] = weights
    if (kv := _format(run.get("kv_dtype"))) is not None and kv is not Dtype.FP16:
        scenario["kv"] = kv
    try:
        resolved = resolve(name, run["gpu"], read_deployment(scenario), calibration)
    except DtypeError:  # servers widen weights that a chip cannot multiply
        wide = Dtype.BF16 if load_accelerator(run["gpu"]).value.supports(Dtype.BF16) else Dtype.FP16
        resolved = resolve(name, run["gpu"], read_deployment({**scenario, "activations": wide}), calibration)
    return resolved.predictor, signature(resolved.plan.calibration)


def _model(run: Mapping[str, Any]) -> tuple[str, Model]:
    try:
        return run["model"], load_model(run["model"]).value
    except UnknownNameError:
        if not (checkpoint := str(run.get("hf_model") or "")):
            raise
        try:
            return checkpoint, load_model(checkpoint).value
        except SpecError:
            return run["model"], load_model(run["model"]).value  # the error names what the table calls it


def _format(given: object) -> Dtype | None:
    """A number format; llama.cpp's own ones by their bits."""
    text = str(given or "").strip().lower()
    if text in _UNSAID:
        return None
    if found := _GGUF.match(text):
        return Dtype.INT4 if int(found[1]) <= Dtype.INT4.bytes * 8 + 1 else Dtype.INT8
    return parse_dtype(text)


def _number(run: Mapping[str, object], name: str, least: float = 1e-9) -> float | None:
    """A finite number of a cell; None where there is none of at least this much."""
    value = number_or(run.get(name), math.nan, -MOST)
    return value if math.isfinite(value) and value >= least else None
