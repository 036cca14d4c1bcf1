"""Kernel tables and measurement files, read and checked, as groups of rows of one kernel.

Of a measurement file (`rooflinekit validate`, one JSON object a line) the first line is the header, the last one says
how the run ended; a run that was killed has none, and perhaps half a line, which is left out. docs/validate.md explains
every field. Whole attention layers that were measured as one are the kernels of the model's own layer, added up.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from rooflinekit.evidence.kernel_fit.tables import OPERATIONS, Measured, measured_rows, number_formats
from rooflinekit.model.blocks import mixer_operations
from rooflinekit.model.kernels.operation import Step
from rooflinekit.model.precision import Precision
from rooflinekit.model.roofline import time_kernel
from rooflinekit.model.shard import Shard
from rooflinekit.model.timing.calibrated import Calibration
from rooflinekit.model.types.batch import Batch, Sequences
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.dtype import Dtype, parse_dtype
from rooflinekit.model.types.errors import DtypeError, SpecError
from rooflinekit.model.types.hardware import Accelerator, System
from rooflinekit.model.types.kernel import AttentionShape, Family, Kernel, SparseShape
from rooflinekit.model.types.model import Attention, CompressedAttention, Indexer, LatentAttention, Mixer, WeightFormats
from rooflinekit.model.types.numeric import Array, Numeric, ceil_div
from rooflinekit.specs import load_accelerator, load_model
from rooflinekit.specs.delimited import read_table
from rooflinekit.specs.files import json_lines, table_of
from rooflinekit.specs.foreign import MOST, number_or
from rooflinekit.specs.places import check_file

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray


_LATENT = "deepseek-v3"
"""Whose dimensions rows of latent attention have that name none."""
_DENSE = "dense"
"""In a kernel's name: the engine attends to all keys, up-projected, although the layer has an indexer."""
_BY = ("model_dims", "gemm_dtype", "indexer", "compress_ratio", "heads", "dense")


def layer_rows(table: pd.DataFrame, operation: str, system: System, calibration: Calibration | None) -> Measured:
    """Rows of one engine, kernel and cache: one kernel for each layer, which holds the time of what surrounds it.

    The layer is the one that the model of these dimensions has, with the stated heads; other kernels than attention and
    indexer take the time that the calibration gives each alone (its bound without one).
    """
    known = table.assign(dense=table["product"].str.contains(_DENSE), prefix=table.get("prefix", 0))
    known = known.assign(model_dims=_LATENT) if "model_dims" not in known else known
    columns = [name for name in _BY if name in known]
    kernels, order = [], []
    for values, rows in known.groupby(columns):
        stated = dict(zip(columns, values, strict=True))
        kernels.append(_layer(rows, stated, system, calibration))
        order.append(rows.index.to_numpy())
    group = known.groupby(OPERATIONS[operation].shape.split()).ngroup().to_numpy()
    time = known["latency_us"].to_numpy(float) * 1e-6
    one = _joined(kernels, order)
    return Measured("sparse_attention", (one,), (len(time),), time, np.asarray(group, np.intp))


def _joined(kernels: list[Kernel], places: list[NDArray[np.intp]]) -> Kernel:
    """Kernels of one format as one, each with its places among the rows."""
    order, sizes = np.argsort(np.concatenate(places)), [len(each) for each in places]

    def rows(parts: list[Numeric]) -> Array:
        return np.concatenate([np.broadcast_to(part, (n,)) for part, n in zip(parts, sizes, strict=True)])[order]

    def columns(parts: list[Any]) -> dict[str, Array]:
        sized = [entry.name for entry in fields(parts[0]) if "quantity" in entry.metadata]
        return {name: rows([getattr(part, name) for part in parts]) for name in sized}

    shape = replace(kernels[0].shape, **columns([kernel.shape for kernel in kernels]))  # type: ignore[arg-type]
    return replace(kernels[0], **columns(kernels), shape=shape)  # type: ignore[arg-type]


def _layer(rows: pd.DataFrame, stated: dict[str, Any], system: System, calibration: Calibration | None) -> Kernel:
    """The layer of these rows on one accelerator, over arrays of batches and lengths."""
    hidden, whole = _whole(str(stated["model_dims"]), stated)
    mixer = _local(whole, int(stated["heads"]))
    batch, length = rows["batch"].to_numpy(float), rows["seq_len"].to_numpy(float)
    past = rows["prefix"].to_numpy(float)
    prefill = bool((rows["phase"] == "prefill").all())
    phase = Sequences(batch, length, past) if prefill else Sequences(batch, np.ones(len(rows)), length - 1.0)
    cache, weight = parse_dtype(str(rows["kv_dtype"].iloc[0])), parse_dtype(str(stated["gemm_dtype"]))
    index = Dtype.FP8 if system.accelerator.supports(Dtype.FP8) else Dtype.BF16
    precision = Precision(Dtype.BF16, cache, WeightFormats.uniform(weight), index=index)
    step = Step(Batch(phase) if prefill else Batch(None, phase), Dtype.BF16, cache)
    operations = mixer_operations(mixer, Shard(hidden, precision, Deployment()))
    kernels = [kernel for op in operations for kernel in op.kernels(step, 1)]
    return added(kernels, parse_dtype(str(rows["dtype"].iloc[0])), phase, system, calibration)


def _whole(name: str, stated: dict[str, object]) -> tuple[int, Mixer]:
    """Residual width, and the layer of a model of these dimensions, as its indexer is used."""
    own = table_of(__file__).get(name)
    if own:
        hidden, mixer = own["hidden"], _own_layer(own, stated)
    else:
        model = load_model(name).value
        hidden, mixer = model.hidden, model.layers[-1].mixer  # the last one, since some models begin with others
    if not isinstance(mixer, Attention | LatentAttention | CompressedAttention):
        raise SpecError(f"the layers of {name} are no attention")
    if stated["dense"]:
        return hidden, replace(mixer, indexer=None)
    if stated.get("indexer") == 0:
        if not isinstance(mixer, LatentAttention) or mixer.indexer is None:
            raise SpecError(f"the layers of {name} have no indexer that others share")
        return hidden, replace(mixer, indexer=replace(mixer.indexer, shared=True))
    return hidden, mixer


def _own_layer(own: Mapping[str, Any], stated: Mapping[str, Any]) -> Any:
    indexer = Indexer(**own["indexer"])
    if "attention" in own:
        return Attention(**own["attention"], indexer=indexer)
    ratio = int(stated.get("compress_ratio", 0))
    return CompressedAttention(**own["compressed"], ratio=ratio, indexer=indexer if ratio == own["indexed"] else None)


def _local(mixer: Any, heads: int) -> Mixer:
    """The part of a layer that a rank with so many query heads holds; index heads of grouped-query heads are shared."""
    indexer = mixer.indexer
    if isinstance(mixer, Attention) and indexer is not None:
        mixer = replace(mixer, indexer=replace(indexer, heads=max(1, round(indexer.heads * heads / mixer.heads))))
    own = (name for name in ("kv_heads", "out_groups") if hasattr(mixer, name))
    shares = {name: max(1, round(getattr(mixer, name) * heads / mixer.heads)) for name in own}
    return replace(mixer, heads=heads, **shares)  # type: ignore[no-any-return]


def added(
    kernels: list[Kernel], dtype: Dtype, phase: Sequences, system: System, calibration: Calibration | None
) -> Kernel:
    """One kernel with the work of all; arithmetic counts as much as takes the same time in `dtype` at the peak."""
    gpu = system.accelerator
    (core,) = (kernel for kernel in kernels if kernel.name == "attention")
    index = [kernel for kernel in kernels if kernel.name == "index_scores"]
    others = [kernel for kernel in kernels if kernel is not core and kernel not in index]
    flops = [kernel.flops * (gpu.peak(dtype) / gpu.peak(kernel.dtype)) for kernel in (core, *index, *others)]
    work = core.shape if isinstance(core.shape, SparseShape) else _dense(core.shaped(AttentionShape), core, phase)
    scored = [kernel.shaped(SparseShape) for kernel in index]
    timed = (time_kernel(kernel, system, calibration, calibration is not None) for kernel in others)
    shape = replace(
        work,
        core_flops=flops[0],
        index_flops=_sum(flops[1 : 1 + len(index)]),
        scores=_sum(each.scores for each in scored),
        scanned=_sum(each.scanned for each in scored),
        foreign=_sum(each.foreign for each in scored),
        held=work.held + _sum(each.held for each in scored),
        besides=_sum(each.bound if calibration is None else each.expected for each in timed),
    )
    sizes = ("weight_bytes", "kv_read_bytes", "kv_write_bytes")
    weights, read, written = (_sum(getattr(kernel, name) for kernel in kernels) for name in sizes)
    moved = _sum(kernel.activation_bytes for kernel in (core, *index))
    return Kernel("layer", "sparse_attention", 1, dtype, _sum(flops), weights, read, written, moved, shape=shape)


def _sum(values: Iterable[Numeric]) -> Numeric:
    return sum(values, 0.0)


def _dense(shape: AttentionShape, core: Kernel, phase: Sequences) -> SparseShape:
    """Attention to all keys in the terms of chosen ones: each is chosen, and its cache read once."""
    sizes = {entry.name: getattr(shape, entry.name) for entry in fields(shape)}
    if core.family.endswith("decode"):
        tiles = phase.tokens * ceil_div(shape.heads, 64.0)
    else:
        tiles = shape.batch * shape.heads * ceil_div(phase.tokens / phase.sequences, 128.0)
    read = core.kv_read_bytes
    return SparseShape(**sizes, core_flops=core.flops, chosen=read, index_flops=0.0, scores=0.0, held=read, tiles=tiles)


SCHEMA = 1
"""Version of the format; a reader refuses others."""
SUFFIX = ".jsonl"
STATUSES = ("ok", "oom", "missing", "failed")
"""ok; not enough memory; a backend that this machine lacks; an error, which `detail` says."""

_HEADER = {"schema": int, "run": str, "started": str, "suite": str, "model": str, "engine": str,
           "engine_version": str, "dtype": str, "device": dict}  # fmt: skip
_ROW = {"op": str, "backend": str, "status": str, "detail": str}
_TIMES = ("latency_us", "p10_us", "p90_us")
VERSIONS = ("engine_version", "kernel_source")
"""Columns that say which build ran: two runs of one suite may differ in them."""
ENGINE_STEP = "serving_step"
"""Rows that hold whole steps of an engine, which adds its own costs to its kernels."""
STEPS = ("model", ENGINE_STEP)
"""Rows that hold whole steps, of a model or of an engine."""
_NOT_SHAPE = {"type", "run", "key", *_ROW, *_TIMES, "launch", "repeats", "outliers", "samples_us", "sure", "warm_us",
              "sustained_us", "power_w", "power_limit_w", "sm_mhz", "memory_mhz", "temperature_c", "readings",
              "throttled", *VERSIONS}  # fmt: skip

KEY = ("gpu", "engine", "dtype", "kv_dtype", "routing", "collective", "mode", "kind")
"""Columns that make a group of a kernel table, where the table has them."""

APART = ("layout", "clock", "product")
"""Columns that tell kernels of one group apart: how weights lie in memory, and "host" where the host took the time,
with the gaps between launches in it."""

_HOST_LAYER, _HOST_ENGINES = "cuda_event", ("flashinfer",)
"""Layers and libraries of rows that the host timed."""

_COLLECTIVES = {"custom_all_reduce": "all_reduce", "alltoall": "all_to_all"}
_COLLECTIVE_LIBRARIES = ("nccl", "oneccl")  # which have no other mode
_ANY_WORD = ("gpu", "engine", "dtype", "kv_dtype", "kind", "product", "model_dims", "gemm_dtype")
_WORDS: dict[str, tuple[str, ...]] = dict.fromkeys(_ANY_WORD, ()) | {
    "routing": ("balanced", "random", "power_law_1.2"),
    "collective": ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "custom_all_reduce"),
    "mode": ("eager", "graph"),
    "phase": ("decode", "prefill"),
}

_FROM_ZERO = ("prefix", "indexer", "sms")
_AT_MOST = (("kv_heads", "heads"), ("top_k", "experts"))
_PAIR = 2
_PLAIN = ("balanced", "random", "greedy", "plain")
"""Variants that go without saying."""


Row: TypeAlias = Mapping[str, Any]
"""A line of a measurement file; `read_measurements` has checked what all have."""


@dataclass(frozen=True)
class Measurements:
    """One run. `ending` is "complete", "budget" (time was up), "interrupted", or "" for a run that was killed."""

    path: Path
    header: Row
    rows: tuple[Row, ...]
    ending: str

    def of(self, op: str) -> tuple[Row, ...]:
        """The measured rows of one operation."""
        return tuple(row for row in self.rows if row["op"] == op and row["status"] == "ok")

    @property
    def counts(self) -> dict[str, int]:
        """Rows by status."""
        return dict(Counter(str(row["status"]) for row in self.rows))


def read_measurements(path: Path) -> Measurements:
    """Read one file, whole or cut off."""
    check_file(path)
    lines = list(_lines(path))
    if not lines or lines[0].get("type") != "header":
        raise SpecError(f"{path}: line 1 is not the header of a measurement file")
    header = lines[0]
    if header.get("schema") != SCHEMA:
        raise SpecError(f"{path}: schema {header.get('schema')!r}; this version reads {SCHEMA}")
    _check_types(f"{path}: line 1", header, _HEADER)
    if not isinstance(header["device"].get("name"), str):
        raise SpecError(f"{path}: line 1: device.name is missing")
    rows, ending = [], ""
    for number, line in enumerate(lines[1:], start=2):
        if line.get("run") != header["run"]:
            raise SpecError(f"{path}: line {number}: run {line.get('run')!r} in a file of run {header['run']!r}")
        if line.get("type") == "end":
            ending = str(line.get("status"))
            continue
        _check_row(f"{path}: line {number}", line)
        rows.append(line)
        ending = ""
    return Measurements(path, header, tuple(rows), ending)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    return (line for _, line in json_lines(path, takewhile(lambda line: line.endswith("\n"), lines)))


def _check_types(where: str, line: Mapping[str, object], known: Mapping[str, type]) -> None:
    for name, kind in known.items():
        if not isinstance(line.get(name), kind):
            raise SpecError(f"{where}: {name} = {line.get(name)!r} is not a {kind.__name__}")


def _check_row(where: str, row: Row) -> None:
    _check_types(where, row, _ROW)
    if row["status"] not in STATUSES:
        raise SpecError(f"{where}: status {row['status']!r} is not one of {', '.join(STATUSES)}")
    if row["status"] != "ok":
        return
    for name in _TIMES:
        value = row.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise SpecError(f"{where}: {name} = {value!r} is not a time above 0")
    if not row["p10_us"] <= row["latency_us"] <= row["p90_us"]:
        raise SpecError(f"{where}: latency_us is not between p10_us and p90_us")
    if row["op"] in STEPS:
        _check_step(where, row)


def _check_step(where: str, row: Mapping[str, object]) -> None:
    _check_types(where, row, {"model": str, "mode": str, "dtype": str, "phase": str})
    if row["phase"] not in ("prefill", "decode"):
        raise SpecError(f"{where}: phase {row['phase']!r} is not one of prefill, decode")
    counted = ("floor_us", "enqueue_us") if "kernels" in row else ()
    least = {"batch": 1, "context": 1 + (row["phase"] == "decode"), "layers": 1, "layers_run": 1}
    for name in (*least, "whole_us", *counted):
        value, kind = row.get(name), int if name in least else (int, float)
        if isinstance(value, bool) or not isinstance(value, kind) or not least.get(name, 0) <= value < math.inf:
            raise SpecError(f"{where}: {name} = {value!r} is not a number from {least.get(name, 0)} on")
    if not row["whole_us"]:
        raise SpecError(f"{where}: whole_us = 0 is not a time above 0")


def kernel_tables(found: Measurements) -> Iterator[tuple[str, pd.DataFrame]]:
    """The rows that calibrations are fitted to, as one kernel table an operation.

    Of several backends of one engine that ran a shape the fastest counts, as in an engine that picks its kernels. A row
    without an engine is of the header's, and one of "gpt-fast+vllm" of both.
    """
    import pandas as pd  # noqa: PLC0415

    header = {"engine_version": found.header["engine_version"]}
    named = {"gpu": found.header["device"]["name"], "residency": "cold"}
    for operation in OPERATIONS:
        best: dict[str, Row] = {}
        for whole in found.of(operation):
            for engine in str(whole.get("engine", found.header["engine"])).split("+"):
                row = {**header, **whole, "engine": engine}
                shape = json.dumps({name: row[name] for name in row if name not in _NOT_SHAPE}, sort_keys=True)
                if shape not in best or row["latency_us"] < best[shape]["latency_us"]:
                    best[shape] = row
        if best:
            plain = [{name: row[name] for name in row if name != "samples_us"} for row in best.values()]
            yield operation, pd.DataFrame(plain).assign(**named)


@dataclass(frozen=True)
class Group:
    """Rows of one kernel: the columns that tell it apart, and what a calibration calls it."""

    operation: str
    named: dict[str, str]
    table: pd.DataFrame

    @property
    def gpu(self) -> str:
        """Accelerator, as the table names it."""
        return self.named["gpu"]

    @property
    def engine(self) -> str:
        """Engine, as the table names it."""
        return self.named["engine"]

    @property
    def family(self) -> Family:
        """Kernel family of the operation."""
        return OPERATIONS[self.operation].family

    @property
    def key(self) -> str:
        """Key of the fit, as calibration files write it."""
        return fit_key(self.operation, self.named)

    @property
    def source(self) -> str:
        """Source of the rows, in words."""
        known = self.table["engine_version"].unique() if "engine_version" in self.table else ()
        releases = "/".join(sorted(map(str, known)))
        return f"{len(self.table)} {self.operation} rows of {self.gpu} with {self.engine} {releases}".rstrip()

    def joined(self, other: Group) -> Group:
        """The rows of both, under this group's name (two spellings of one number format, say)."""
        import pandas as pd  # noqa: PLC0415

        same = {name: self.named[name] for name in self.named if name in other.table}
        return replace(self, table=pd.concat([self.table, other.table.assign(**same)], ignore_index=True))

    def on(self, accelerator: Accelerator) -> Group:
        """The group as this accelerator runs it: FP8 weights without units for FP8 are computed in 16 bit."""
        if self.named.get("dtype") != "fp8" or accelerator.supports(Dtype.FP8) or self.operation == "comm":
            return self
        return replace(self, named=self.named | {"dtype": "fp8_a16"}, table=self.table.assign(dtype="fp8_a16"))

    def rows(self, calibration: Calibration | None = None) -> Measured:
        """The rows as kernels with their measured times; a calibration says what surrounds the attention of a layer."""
        if self.family == "sparse_attention":
            system = System.of(load_accelerator(self.gpu).value)
            return layer_rows(self.table, self.operation, system, calibration)
        return measured_rows(self.table, self.operation)


def fit_key(operation: str, named: dict[str, str]) -> str:
    """The key of the fit for a group, as calibration files write it.

    >>> fit_key("attention_decode", {"dtype": "bfloat16", "kv_dtype": "fp8"})
    'attention_decode/bf16/fp8'
    >>> fit_key("moe", {"dtype": "mxfp4_a8", "routing": "random"}), fit_key("gemm", {"dtype": "fp8", "clock": "host"})
    ('moe/fp8/mxfp4', 'gemm/fp8/eager')
    >>> fit_key("comm", {"collective": "custom_all_reduce", "mode": "graph", "engine": "vllm"})
    'collective/bf16/all_reduce'
    """
    table = OPERATIONS[operation]
    if operation == "comm":  # bytes are bytes, so number formats of a collective are one kernel
        kind = _COLLECTIVES.get(named["collective"], named["collective"])
        nccl = "nccl_" if named["collective"] == "all_reduce" else ""
        eager = "/eager" if named["mode"] == "eager" and named["engine"] not in _COLLECTIVE_LIBRARIES else ""
        return f"{table.family}/bf16/{nccl}{kind}{eager}"
    stored, dtype = number_formats(named["dtype"])
    parts = [table.family, dtype.value]
    variant = named.get(table.variant, "plain")
    if table.variant == "kv_dtype":
        parts.append(parse_dtype(variant).value)
    elif variant not in _PLAIN:
        parts.append(variant)
    weights = [stored.value] if stored is not dtype else []
    return "/".join(parts + weights + ["eager"] * (named.get("clock") == "host"))


def read_kernel_tables(path: Path, dropped: Counter[str] | None = None) -> Iterator[tuple[str, pd.DataFrame]]:
    """The operations of one file: named by the file, or by a column `op`.

    Rows with a value that no kernel has are left out and counted in `dropped` by reason; without it they are refused.
    """
    if path.suffix == SUFFIX:
        for name, measured in kernel_tables(read_measurements(path)):
            yield name, checked_table(path, name, measured, dropped).reset_index(drop=True)
        return
    table = read_table(path)
    known = OPERATIONS.get(path.stem)
    if known and known.variant == "product" and "product" not in table and not table.empty:
        table = _with_product(path.stem, table)
    if "op" not in table and known is None:
        raise SpecError(f"{path}: no column 'op', and the file name is not one of {', '.join(OPERATIONS)}")
    if table.empty:
        raise SpecError(f"{path}: the table has no rows")
    for operation, rows in table.groupby("op", dropna=False) if "op" in table else [(path.stem, table)]:
        kept = checked_table(path, str(operation), rows, dropped)
        if len(kept):
            yield str(operation), kept.assign(engine=kept["engine"].str.lower()).reset_index(drop=True)


def _with_product(name: str, table: pd.DataFrame) -> pd.DataFrame:
    """The table with the columns that tell kernels apart as one, `product`; 16 bit where it does not say."""
    first, whole, last = name.partition("_module")
    if whole:  # dsa_module, mla_module_decode: the name says what no column does
        absent = {"kind": first, "phase": last.removeprefix("_")}
        table = table.assign(**{column: word for column, word in absent.items() if column not in table})
    joined: Any = "encoder"
    for place, column in enumerate(column for column in OPERATIONS[name].product.split() if column in table):
        words = table[column].astype(str)
        words = words.map(_format_name) if column.endswith("dtype") else words
        joined = joined + "_" + words if place else words
    return table.drop(columns="op", errors="ignore").assign(product=joined, dtype=table.get("dtype", "bfloat16"))


@cache
def _format_name(text: str) -> str:
    """A number format as calibrations call it; what none is called stays, and is refused when it is read."""
    try:
        return parse_dtype(text).value
    except DtypeError:
        return text


_SPREADS = ("p10_us", "p90_us")


def checked_table(path: Path, operation: str, table: pd.DataFrame, dropped: Counter[str] | None) -> pd.DataFrame:
    """The rows that a kernel could have; the others refused by row and column, or counted."""
    if operation not in OPERATIONS:
        raise SpecError(f"{path}: op {operation!r} is not a kernel table; known: {', '.join(OPERATIONS)}")
    optional = ["prefix"] if operation == "attention_prefill" and "prefix" in table else []
    table = table.fillna(dict.fromkeys(optional, 0))
    needed = (*OPERATIONS[operation].needed.split(), *optional, "latency_us")
    missing = [name for name in ("gpu", "engine", *needed) if name not in table]
    if missing:
        raise SpecError(f"{path}: a {operation} table needs the column {', '.join(missing)}")
    good = table["gpu"].notna() & table["engine"].notna()
    for name, wrong, wanted in _flaws(operation, table, needed):
        rows = [row for row, bad in enumerate(wrong & good) if bad]
        if rows and dropped is None:
            raise SpecError(f"{path}: row {rows[0] + 1}: {name} = {table[name].iloc[rows[0]]} is not {wanted}")
        if rows and dropped is not None:
            dropped[f"{path.name}: {name} is not {wanted}"] += len(rows)
        good &= ~wrong
    spreads = [name for name in _SPREADS if name in table]
    kept = table[good].astype({name: float for name in (*needed, *spreads) if name not in _WORDS})
    if "layer" not in kept:
        return kept
    host = kept["layer"].astype(str).str.endswith(_HOST_LAYER) | kept["engine"].isin(_HOST_ENGINES)
    return kept.assign(clock=host.map({True: "host", False: "device"}))


def _flaws(operation: str, table: pd.DataFrame, needed: Sequence[str]) -> Iterator[tuple[str, pd.Series[Any], str]]:
    """Columns with the rows whose value cannot be, and what it should be."""
    values = {}
    for name in needed:
        if name in _WORDS:
            known = _WORDS[name]
            wrong = ~table[name].isin(known) if known else table[name].isna()
            yield name, wrong, f"one of {', '.join(known)}" if known else "a name"
            continue
        values[name] = _numbers(table[name])
        whole = name != "latency_us"
        least = 0 if name in _FROM_ZERO else 1
        wrong = ~(values[name] >= least if whole else values[name] > 0) | (whole & (values[name] % 1 != 0))
        wanted = "a whole number above 0" if least else "a whole number of at least 0"
        yield name, wrong, wanted if whole else "a time above 0"
    for name, limit in _AT_MOST:
        if name in values and limit in values:
            yield name, values[name] > values[limit], f"at most {limit}"
    for name in (each for each in _SPREADS if each in table):
        yield name, table[name].notna() & ~(_numbers(table[name]) > 0.0), "a time above 0"
    if operation == "moe":
        yield "ep", values["experts"] % values["ep"] != 0, "a divisor of experts"
    if operation == "comm":
        yield "gpus", values["gpus"] < _PAIR, "at least 2"


def _numbers(column: pd.Series[Any]) -> pd.Series[Any]:
    """The column as floats, NaN where a cell is no finite number."""
    if column.dtype.kind in "iuf":
        return column.where(column.abs() <= MOST)
    return column.map(lambda cell: number_or(cell, math.nan, -MOST))


def kernel_groups(operation: str, table: pd.DataFrame) -> Iterator[Group]:
    """One group for every combination of the key columns that the table has."""
    columns = [name for name in (*KEY, *APART) if name in table]
    for values, rows in table.groupby(columns, dropna=False):
        yield Group(operation, dict(zip(columns, map(str, values), strict=True)), rows.reset_index(drop=True))
