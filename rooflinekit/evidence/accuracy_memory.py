"""Predictions of memory against the memory table: weights, activation peak, pool, blocks, tokens."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from rooflinekit.evidence.accuracy import Accuracy, scored
from rooflinekit.model.capacity import Memory, make_memory_model
from rooflinekit.model.step import Plan, make_plan
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.dtype import Dtype, parse_dtype
from rooflinekit.model.types.engine import Engine, EngineSettings
from rooflinekit.model.types.errors import InputError, RooflinekitError, SpecError, UnknownNameError
from rooflinekit.model.types.hardware import Accelerator, System
from rooflinekit.model.types.model import Model, WeightFormats
from rooflinekit.model.types.units import GIB
from rooflinekit.specs import load_accelerator, load_model
from rooflinekit.specs.delimited import read_table
from rooflinekit.specs.engines import load_engine
from rooflinekit.specs.foreign import number_of

_OF_POOL = ("kv_pool_gib_per_gpu", "kv_pool_tokens", "kv_blocks", "max_concurrency")
QUANTITIES = ("weights_gib_per_gpu", "non_torch_gib", "activation_peak_gib", "cudagraph_gib", *_OF_POOL)
_COLUMNS = ("run_id", "engine", "model", "gpu", "tp", "quantity", "value")
_ENGINES = {"vllm-v0": "vllm", "tensorrt-llm": "trtllm"}
_V0 = "0.7"  # what a V0 run without a version is taken for
_NUMBER = re.compile(r"\d+(?:\.\d+)*")
_VERSION = re.compile(r"(?:^|[^\d.])[vb]?(\d{1,2}\.\d+(?:\.\d+)?|(?<=b)\d{3,5})(?=$|[^\d])")
_GGUF = re.compile(r"gguf (\w+)(?: - ([sml])\w+)? \(")  # as llama.cpp prints it: Q4_K - Medium (4.89 BPW)
_SUFFIX = re.compile(
    r"[-_. ](?:instruct|it|chat|base|sft|hf|fp8(?:-dynamic|-block)?|(?:fp8-)?dynamic|quantized|w\d+a\d+|awq|gptq"
    r"|int[48]|fp4|bnb|4bit|bf16|fp16|f16|gguf|int4-?wo|weight-only|mxfp4|nvfp4)$",
    re.IGNORECASE,
)
_DATE = re.compile(r"[-_]\d{4}$")
_REPLICAS = re.compile(r"\bDP(\d+)\b.*expert parallel (\d+)", re.IGNORECASE)
_BLOCK = re.compile(r"block-size (\d+)")
_STAND_IN = "h100-sxm"  # of an accelerator that nobody knows, whose memory the table gives
_LABEL, _VISIBLE = re.compile(r"(\d+) ?GB"), 0.985  # GiB that CUDA shows for one of the label
_DESCRIBED = {"64-layer GDN hybrid": "qwen3.5-27b", "7B MHA Llama-class": "llama-2-7b"}  # names that were held back

_WEIGHTS = {
    "fp8-block": Dtype.FP8_BLOCK,
    "fp8": Dtype.FP8,
    "int8": Dtype.INT8,
    "bnb-4bit": Dtype.INT4_G64,
    **dict.fromkeys(("awq", "gptq", "4-bit", "int4", "w4a16"), Dtype.INT4),
    "nvfp4": Dtype.NVFP4,
}

_ROOM = 1024  # accelerators that a system may join: what fits does not depend on its links


@dataclass(frozen=True)
class StartUpRun:
    """One start-up: the columns that its rows share, the value of each quantity, and rows whose value is none."""

    facts: Mapping[str, str]
    values: Mapping[str, float]
    unread: int = 0

    @property
    def engine(self) -> str:
        """The table's name of the engine."""
        return self.facts["engine"]


@dataclass(frozen=True)
class StartUpSetup:
    """A run in this library's terms."""

    model: Model
    accelerator: Accelerator
    deployment: Deployment
    memory_known: bool


def read_memory_tables(files: Sequence[Path]) -> list[StartUpRun]:
    """The runs of some tables."""
    found = []
    for path in files:
        table = read_table(path, _COLUMNS, "memory table", text=True)
        for place in np.flatnonzero(~table["quantity"].isin(QUANTITIES))[:1]:
            name = table["quantity"].iloc[place]
            raise SpecError(f"{path}: line {place + 2}: quantity {name!r} is not one of {', '.join(QUANTITIES)}")
        numbers = pd.to_numeric(table["value"], errors="coerce")
        known = np.isfinite(numbers) & (numbers != 0.0)  # a few logs print a graph's memory as below 0
        for _, rows in table.groupby("run_id", sort=False):
            facts = {str(name): str(cell).strip() for name, cell in rows.iloc[0].items()}
            good = known[rows.index]
            values = dict(zip(rows["quantity"][good], numbers[rows.index][good].astype(float), strict=True))
            found.append(StartUpRun(facts, values, int((~good).sum())))
    return found


def setup_of(run: StartUpRun) -> StartUpSetup:
    """Deployment of a start-up."""
    facts = run.facts
    engine = _ENGINES.get(run.engine, run.engine)
    told = facts.get("weight_dtype", "").lower()
    model, gguf = _formats(_model(facts["model"]), told), _GGUF.match(told)
    stored = "_".join(filter(None, gguf.groups())) if gguf else "fp32" if told == "fp32" else ""
    accelerator, known = _accelerator(facts)
    version = _VERSION.search(facts.get("engine_version", ""))
    notes = facts.get("notes", "")
    fraction, block = _NUMBER.search(facts.get("gpu_memory_utilization", "")), _BLOCK.search(notes)
    dp, ep = map(int, replicas.groups()) if (replicas := _REPLICAS.search(notes)) else (1, 1)
    deployment = Deployment(
        tp=_count(facts, "tp") or 1,
        pp=_count(facts, "pp") or 1,
        dp=dp,
        ep=ep,
        weights=parse_dtype(stored) if stored else None,
        kv=Dtype.FP8 if facts.get("kv_dtype", "").startswith("fp8") else None,
        engine=engine,
        engine_version=version[1] if version else _V0 if run.engine == "vllm-v0" else None,
        settings=EngineSettings(
            memory_fraction=float(fraction[0]) if fraction else None,
            token_budget=_count(facts, "max_num_batched_tokens"),
            max_num_seqs=_count(facts, "max_num_seqs"),
            max_model_len=_count(facts, "max_model_len"),
            block_size=int(block[1]) if block else None,
            eager="enforce_eager" in notes,
        ),
    )
    return StartUpSetup(model, accelerator, deployment, known)


def _count(facts: Mapping[str, str], key: str) -> int | None:
    text = facts.get(key, "")
    if not text:
        return None
    try:
        return int(number_of(text))
    except ValueError as error:
        raise InputError(f"{key} is {error}") from None


def _model(name: str) -> Model:
    """The model of a table's name, by its own name or without what tells how it was tuned and quantised."""
    described = [known for told, known in _DESCRIBED.items() if name.startswith(told)]
    text = described[0] if described else name.partition(" (")[0].strip()
    for candidate in _shorter(text):
        try:
            return load_model(candidate).value
        except UnknownNameError:
            continue
    raise UnknownNameError("model", name, ())


def _shorter(text: str) -> Iterable[str]:
    """The name, and what is left as suffixes are dropped; a number of four digits between them is a date."""
    yield text
    tail = text.rpartition("/")[2]
    yield tail
    while (cut := _SUFFIX.sub("", tail)) != tail or (cut := _DATE.sub("", tail)) != tail:
        tail = cut
        yield tail


def _accelerator(facts: Mapping[str, str]) -> tuple[Accelerator, bool]:
    """The accelerator with the memory that the table gives; another stands in for one nobody knows."""
    total = _NUMBER.match(facts.get("gpu_total_gib", ""))
    label = _LABEL.match(facts["gpu"])
    memory = float(total[0]) if total else float(label[1]) * _VISIBLE if label else None
    text = re.split(r" \(| x\d| class", facts["gpu"])[0].strip()
    try:
        found = load_accelerator(text).value if text else None
    except UnknownNameError:
        found = None
    accelerator = found or replace(load_accelerator(_STAND_IN).value, link_kind="pcie")
    if memory is not None:
        accelerator = replace(accelerator, memory_bytes=memory * GIB, reserved_bytes=0.0)
    return accelerator, found is not None or memory is not None


def _formats(model: Model, told: str) -> Model:
    """The model with the checkpoint's weight formats as the table names them.

    Attention stays wide where the recipe says so, and in weight-only MLA.
    """
    if dtype := next((dtype for pattern, dtype in _WEIGHTS.items() if pattern in told), None):
        latent = any(getattr(layer.mixer, "kind", "") == "mla" for layer in model.layers)
        attention = model.dtype if "ffn only" in told or (dtype.weight_only and latent) else dtype
        base = WeightFormats.uniform(model.dtype)
        formats = replace(base, attention=attention, ffn=dtype, experts=dtype, shared_experts=dtype)
        return replace(model, formats=formats)
    if told in ("bf16", "fp16") and model.formats.ffn.is_wide:
        return replace(model, dtype=Dtype(told), formats=WeightFormats.uniform(Dtype(told)))
    return model


def memory_accuracy(files: Sequence[Path], progress: Callable[[str], None] | None = None) -> Accuracy:
    """Score memory tables: one group for each engine and quantity.

    A row that cannot be answered (an unknown model, an accelerator whose memory nobody knows) is counted with its
    reason.
    """
    unanswered: Counter[str] = Counter()
    rows = []
    for run in read_memory_tables(files):
        if progress is not None:
            progress(f"{run.engine} {run.facts['model']}")
        if run.unread:
            unanswered["column 'value' is empty, 0 or no number"] += run.unread
        predicted = _answers(run, unanswered)
        rows += [(run.engine, name, value, predicted.get(name)) for name, value in run.values.items()]
    table = pd.DataFrame(rows, columns=["engine", "quantity", "value", "predicted"])
    return Accuracy.of(scored(table.assign(low=np.nan, high=np.nan, calibration=""), _KEY), unanswered, "quantity")


_KEY = ("engine", "quantity")


def _answers(run: StartUpRun, unanswered: Counter[str]) -> Mapping[str, float]:
    try:
        setup = setup_of(run)
        predicted = predict_run(setup, engine_of(setup))
    except RooflinekitError as error:
        unanswered[str(error)] += len(run.values)
        return {}
    if missing := sum(quantity not in predicted for quantity in run.values):
        unanswered[f"nothing tells the memory of {run.facts['gpu'] or 'the accelerator'}"] += missing
    return predicted


def engine_of(setup: StartUpSetup) -> Engine:
    """The profile of a run."""
    return load_engine(setup.deployment.engine, setup.deployment.engine_version)


def predict_run(setup: StartUpSetup, engine: Engine) -> dict[str, float]:
    """Every quantity that can be answered for a run, as the table names them.

    An engine without a memory fraction (llama.cpp) has a cache of the longest sequence in place of a pool; its weights
    and its cache may be those of different accelerators.
    """
    memory = memory_of(setup, engine)
    found = {
        "weights_gib_per_gpu": memory.weight_bytes / GIB,
        "non_torch_gib": (memory.non_torch_bytes + engine.memory.context_counts * memory.context_bytes) / GIB,
        "activation_peak_gib": memory.activation_bytes / GIB,
        "cudagraph_gib": memory.graph_bytes / GIB,
    }
    if engine.memory.budget == "none":
        stages, longest = make_memory_model(run_plan(setup, engine)).stages, float(_longest(setup))
        found["weights_gib_per_gpu"] = max(stage.weight_bytes for stage in stages) / GIB
        found["kv_pool_gib_per_gpu"] = max(float(stage.layout.law.bytes(longest)) for stage in stages) / GIB
        found["kv_pool_tokens"] = longest
    elif setup.memory_known:
        pool = (memory.kv_pool_bytes / GIB, memory.kv_pool_tokens, memory.kv_blocks, memory.max_concurrency)
        found |= dict(zip(_OF_POOL, pool, strict=True))
    return {name: float(value) for name, value in found.items()}


def memory_of(setup: StartUpSetup, engine: Engine) -> Memory:
    """The memory of a run, for one sequence of its longest length."""
    return make_memory_model(run_plan(setup, engine)).evaluate(float(setup.deployment.dp), float(_longest(setup)), 1.0)


def _longest(setup: StartUpSetup) -> int:
    return setup.deployment.settings.max_model_len or setup.model.max_context or 1


def run_plan(setup: StartUpSetup, engine: Engine) -> Plan:
    """The plan of a run on a system that is large enough."""
    system = replace(System.of(setup.accelerator), domain_size=_ROOM, max_gpus=_ROOM)
    return make_plan(setup.model, setup.deployment, system, None, engine)
