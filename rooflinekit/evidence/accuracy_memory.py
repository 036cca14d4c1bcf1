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
from rooflinekit.model.cache import cache_law
from rooflinekit.model.capacity import Memory, make_memory_model
from rooflinekit.model.parameter_count import count_parameters
from rooflinekit.model.precision import has_more_bits
from rooflinekit.model.step import Plan, make_plan
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.engine import Engine, EngineSettings
from rooflinekit.model.types.errors import ArchitectureError, InputError, RooflinekitError, SpecError, UnknownNameError
from rooflinekit.model.types.hardware import Accelerator, System
from rooflinekit.model.types.model import Attention, DenseFFN, Model, WeightFormats
from rooflinekit.model.types.units import GIB
from rooflinekit.specs import load_accelerator, load_model
from rooflinekit.specs.delimited import read_table
from rooflinekit.specs.engines import load_engine
from rooflinekit.specs.foreign import number_of

_WIDE_BITS = 16.0  # from here on every tensor has the same format
_HEAD_BITS, _EMBEDDING_BITS = 6.5625, 4.5  # Q6_K output and Q4_K embedding of the mixed K formats (llama-quant.cpp)
_MIXED = (4.5, 6.5)  # bits a weight
_PIPELINE_COPIES = 4  # of the inputs of a step, on several accelerators (GGML_SCHED_MAX_COPIES)


@dataclass(frozen=True)
class GGUFMemory:
    """The fullest accelerator [B]; layers are split evenly, so weights and cache may be those of different ones."""

    weight_bytes: float
    kv_bytes: float
    compute_bytes: float


def gguf_memory(model: Model, bits: float, context: int, batch: int, gpus: int = 1) -> GGUFMemory:
    """Memory of a GGUF model of `bits` a weight on the mean, its whole `context` cached in 16 bit.

    Formats between 4.5 and 6.5 bits are mixed: the outer eighths of the layers and every third one between them hold
    values and down projections in Q6_K (use_more_bits in llama-quant.cpp).

    The embedding stays on the host. The output counts as one layer more where the layers are split
    (llama-model.cpp: layer i goes to the accelerator in whose share i / (layers + 1) falls).

    Raises ArchitectureError for anything but dense attention layers.

    >>> from rooflinekit.specs import load_model
    >>> llama = gguf_memory(load_model("llama-7b").value, 16.0, 512, 512)
    >>> [round(size / 2**30, 4) for size in (llama.weight_bytes, llama.kv_bytes)]  # 12.3076 and 0.25 in the log
    [12.307, 0.25]
    """
    if not all(isinstance(layer.ffn, DenseFFN) and isinstance(layer.mixer, Attention) for layer in model.layers):
        raise ArchitectureError(f"{model.name}: only dense attention models are understood under llama.cpp")
    table = model.vocab * model.hidden
    table_bits = (bits, bits) if bits >= _WIDE_BITS else (_HEAD_BITS, _EMBEDDING_BITS)  # of output and embedding
    output, embedding = (table * part / 8 for part in table_bits)
    whole = count_parameters(model).total * bits / 8 - output - embedding
    parts = _split(model.depth, gpus)
    richer = [_richer_bytes(model, place) if _MIXED[0] < bits < _MIXED[1] else 0.0 for place in range(model.depth)]
    plain = (whole - sum(richer)) / model.depth
    held = [sum(plain + richer[place] for place in part if place < model.depth) for part in parts]
    held[-1] += output
    most = max(sum(place < model.depth for place in part) for part in parts)
    cache = cache_law(model.layers[:most], Dtype.FP16).bytes(float(context))
    return GGUFMemory(max(held), float(cache), _compute_bytes(model, context, batch, gpus))


def _split(depth: int, gpus: int) -> list[list[int]]:
    """Layers of each accelerator; `depth` stands for the output."""
    places = [index * gpus // (depth + 1) for index in range(depth + 1)]
    return [[index for index, place in enumerate(places) if place == part] for part in range(gpus)]


def _richer_bytes(model: Model, place: int) -> float:
    """What Q6_K instead of Q4_K adds to a layer [B]; nothing to the others."""
    layer = model.layers[place]
    if not has_more_bits(place, model.depth):
        return 0.0
    width = layer.ffn.width if isinstance(layer.ffn, DenseFFN) else 0
    values = layer.mixer.kv_heads * layer.mixer.v_head_dim if isinstance(layer.mixer, Attention) else 0
    return model.hidden * (width + values) * (_HEAD_BITS - _EMBEDDING_BITS) / 8


def _compute_bytes(model: Model, context: int, batch: int, gpus: int) -> float:
    """The largest of: logits, a feed-forward block, attention scores with their mask; all in fp32 (ggml graphs)."""
    hidden = model.hidden
    width = max(layer.ffn.width for layer in model.layer_counts if isinstance(layer.ffn, DenseFFN))
    heads = max(layer.mixer.heads for layer in model.layer_counts if isinstance(layer.mixer, Attention))
    logits, ffn = model.vocab + hidden, 2 * width + 2 * hidden
    attention = context * heads + 1.5 * context + 3 * hidden  # the mask in fp32 and in fp16
    copies = (_PIPELINE_COPIES - 1) * context + _PIPELINE_COPIES * hidden if gpus > 1 else 0
    return 4.0 * batch * (max(logits, ffn, attention) + copies)


QUANTITIES = (
    "weights_gib_per_gpu", "non_torch_gib", "activation_peak_gib", "cudagraph_gib", "kv_pool_gib_per_gpu",
    "kv_pool_tokens", "kv_blocks", "max_concurrency",
)  # fmt: skip
_COLUMNS = ("run_id", "engine", "model", "gpu", "tp", "quantity", "value")
_ENGINES = {"vllm-v0": "vllm", "tensorrt-llm": "trtllm", "llama.cpp": "llamacpp"}
_V0 = "0.7"  # what a V0 run without a version is taken for
_NUMBER = re.compile(r"\d+(?:\.\d+)*")
_VERSION = re.compile(r"(?:^|[^\d.])[vb]?(\d{1,2}\.\d+(?:\.\d+)?)(?=$|[^\d])")
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

_WEIGHTS: dict[str, Dtype] = {
    "fp8-block": Dtype.FP8_BLOCK, "fp8": Dtype.FP8, "int8": Dtype.INT8, "awq": Dtype.INT4, "gptq": Dtype.INT4,
    "bnb-4bit": Dtype.INT4_G64, "4-bit": Dtype.INT4, "int4": Dtype.INT4, "w4a16": Dtype.INT4, "nvfp4": Dtype.NVFP4,
}  # fmt: skip

_OF_POOL = ("kv_pool_gib_per_gpu", "kv_pool_tokens", "kv_blocks", "max_concurrency")
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
    """A run in this library's terms; `bits` a weight where llama.cpp's formats are not ours."""

    model: Model
    accelerator: Accelerator
    deployment: Deployment
    memory_known: bool
    bits: float | None = None


def read_memory_tables(files: Sequence[Path]) -> list[StartUpRun]:
    """The runs of some tables.

    Raises SpecError for a file that is no memory table, or a quantity that is not one.
    """
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
    """What was deployed where.

    Raises UnknownNameError for a model or engine that nobody knows, and InputError for settings that make no sense.
    """
    facts = run.facts
    engine = _ENGINES.get(run.engine, run.engine)
    model, bits = _formats(_model(facts["model"]), facts.get("weight_dtype", "").lower())
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
        weights=Dtype.FP32 if facts.get("weight_dtype") == "fp32" else None,
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
    return StartUpSetup(model, accelerator, deployment, known, bits)


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


def _formats(model: Model, told: str) -> tuple[Model, float | None]:
    """The checkpoint's weight formats as the table names them, and bits a weight of a GGUF file.

    Attention stays wide where the recipe says so, and in weight-only MLA.
    """
    if "bpw" in told:
        found = re.search(r"([\d.]+) bpw", told)
        return model, float(found[1]) if found else None
    if dtype := next((dtype for pattern, dtype in _WEIGHTS.items() if pattern in told), None):
        latent = any(getattr(layer.mixer, "kind", "") == "mla" for layer in model.layers)
        attention = model.dtype if "ffn only" in told or (dtype.weight_only and latent) else dtype
        base = WeightFormats.uniform(model.dtype)
        formats = replace(base, attention=attention, ffn=dtype, experts=dtype, shared_experts=dtype)
        return replace(model, formats=formats), None
    if told in ("bf16", "fp16") and model.formats.ffn.is_wide:
        return replace(model, dtype=Dtype(told), formats=WeightFormats.uniform(Dtype(told))), None
    return model, None


def memory_accuracy(files: Sequence[Path], progress: Callable[[str], None] | None = None) -> Accuracy:
    """Score memory tables: one group for each engine and quantity.

    A row that cannot be answered (an unknown model, an accelerator whose memory nobody knows) is counted with its
    reason.

    Raises SpecError for a file that is no memory table.
    """
    unanswered: Counter[str] = Counter()
    rows = []
    for run in read_memory_tables(files):
        if progress is not None:
            progress(f"{run.engine} {run.facts['model']}")
        if run.unread:
            unanswered["column 'value' is empty, 0 or no number"] += run.unread
        predicted = _answers(run, unanswered)
        rows += [{"engine": run.engine, "quantity": name, "value": value, "predicted": predicted.get(name)}
                 for name, value in run.values.items()]  # fmt: skip
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


def engine_of(setup: StartUpSetup) -> Engine | None:
    """The profile of a run; None under llama.cpp, which has none."""
    deployment = setup.deployment
    return None if setup.bits else load_engine(deployment.engine, deployment.engine_version)


def predict_run(setup: StartUpSetup, engine: Engine | None) -> dict[str, float]:
    """Every quantity that can be answered for a run, as the table names them.

    Raises InputError (and its kinds) for a deployment that makes no sense.
    """
    if engine is None:
        return _llamacpp(setup)
    memory = memory_of(setup, engine)
    found = {
        "weights_gib_per_gpu": memory.weight_bytes / GIB,
        "non_torch_gib": (memory.non_torch_bytes + engine.memory.context_counts * memory.context_bytes) / GIB,
        "activation_peak_gib": memory.activation_bytes / GIB,
        "cudagraph_gib": memory.graph_bytes / GIB,
    }
    if setup.memory_known:
        pool = (memory.kv_pool_bytes / GIB, memory.kv_pool_tokens, memory.kv_blocks, memory.max_concurrency)
        found |= dict(zip(_OF_POOL, pool, strict=True))
    return {name: float(value) for name, value in found.items()}


def memory_of(setup: StartUpSetup, engine: Engine) -> Memory:
    """The memory of a run, for one sequence of its longest length."""
    longest = setup.deployment.settings.max_model_len or setup.model.max_context or 1
    return make_memory_model(run_plan(setup, engine)).evaluate(float(setup.deployment.dp), float(longest), 1.0)


def run_plan(setup: StartUpSetup, engine: Engine) -> Plan:
    """The plan of a run on a system that is large enough."""
    system = replace(System.of(setup.accelerator), domain_size=_ROOM, max_gpus=_ROOM)
    return make_plan(setup.model, setup.deployment, system, None, engine)


def _llamacpp(setup: StartUpSetup) -> dict[str, float]:
    settings = setup.deployment.settings
    if setup.bits is None or settings.max_model_len is None:
        raise InputError("a llama.cpp run needs bits a weight and max_model_len")
    batch = settings.token_budget or 512
    held = gguf_memory(setup.model, setup.bits, settings.max_model_len, batch, setup.deployment.pp)
    return {
        "weights_gib_per_gpu": held.weight_bytes / GIB,
        "kv_pool_gib_per_gpu": held.kv_bytes / GIB,
        "kv_pool_tokens": float(settings.max_model_len),
        "activation_peak_gib": held.compute_bytes / GIB,
    }
