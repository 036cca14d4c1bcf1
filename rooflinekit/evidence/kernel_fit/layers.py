"""Whole attention layers that were measured as one: the kernels of the model's own layer, added up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rooflinekit.evidence.kernel_fit.tables import OPERATIONS, Measured
from rooflinekit.model.kernels.operation import Step
from rooflinekit.model.layers.build import mixer_operations
from rooflinekit.model.layers.precision import Precision
from rooflinekit.model.layers.shard import Shard
from rooflinekit.model.roofline import time_kernel
from rooflinekit.model.timing.calibrated import Calibration
from rooflinekit.model.types.batch import Batch, Sequences
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.dtype import Dtype, parse_dtype
from rooflinekit.model.types.errors import SpecError
from rooflinekit.model.types.hardware import System
from rooflinekit.model.types.kernel import AttentionShape, Kernel, SparseShape
from rooflinekit.model.types.model import (
    Attention,
    CompressedAttention,
    Indexer,
    LatentAttention,
    Mixer,
    WeightFormats,
)
from rooflinekit.model.types.numeric import Array, Numeric, ceil_div
from rooflinekit.specs import load_model
from rooflinekit.specs.files import table_of

if TYPE_CHECKING:
    import pandas as pd

_LATENT = "deepseek-v3"
"""Whose dimensions rows of latent attention have that name none."""
_DENSE = "dense"
"""In a kernel's name: the engine attends to all keys, up-projected, although the layer has an indexer."""
_BY = ("model_dims", "gemm_dtype", "indexer", "compress_ratio", "heads", "dense")


def layer_rows(table: pd.DataFrame, operation: str, system: System, calibration: Calibration | None) -> Measured:
    """Rows of one engine, kernel and cache: one kernel for each layer, which holds the time of what surrounds it.

    The layer is the one that the model of these dimensions has, with the stated heads; other kernels than attention and
    indexer take the time that the calibration gives each alone (its bound without one).

    Raises UnknownNameError for dimensions of no known model, SpecError for one without such layers, DtypeError for a
    format that the accelerator lacks.
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


def _joined(kernels: list[Kernel], places: list[Any]) -> Kernel:
    """Kernels of one format as one, each with its places among the rows."""
    order, sizes = np.argsort(np.concatenate(places)), [len(each) for each in places]

    def rows(parts: list[Any]) -> Array:
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


def _whole(name: str, stated: dict[str, Any]) -> tuple[int, Mixer]:
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
    """The part of a layer that a rank with so many query heads holds."""
    shares = {name: max(1, round(getattr(mixer, name) * heads / mixer.heads))
              for name in ("kv_heads", "out_groups") if hasattr(mixer, name)}  # fmt: skip
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
        work, core_flops=flops[0], index_flops=_sum(flops[1 : 1 + len(index)]),
        scores=_sum(each.scores for each in scored), held=work.held + _sum(each.held for each in scored),
        besides=_sum(each.bound if calibration is None else each.expected for each in timed),
    )  # fmt: skip
    weights, read, written = (_sum(getattr(kernel, name) for kernel in kernels)
                              for name in ("weight_bytes", "kv_read_bytes", "kv_write_bytes"))  # fmt: skip
    moved = _sum(kernel.activation_bytes for kernel in (core, *index))
    return Kernel("layer", "sparse_attention", 1, dtype, _sum(flops), weights, read, written, moved, shape=shape)


def _sum(values: Iterable[Numeric]) -> Numeric:
    return sum(values, 0.0)


def _dense(shape: AttentionShape, core: Kernel, phase: Sequences) -> SparseShape:
    """Attention to all keys in the terms of chosen ones: each is chosen, and its cache read once."""
    sizes = {entry.name: getattr(shape, entry.name) for entry in fields(shape)}
    decode = core.family.endswith("decode")
    tiles = phase.tokens * ceil_div(shape.heads, 64.0) if decode else (
        shape.batch * shape.heads * ceil_div(phase.tokens / phase.sequences, 128.0))  # fmt: skip
    read = core.kv_read_bytes
    return SparseShape(**sizes, core_flops=core.flops, chosen=read, index_flops=0.0, scores=0.0, held=read, tiles=tiles)
