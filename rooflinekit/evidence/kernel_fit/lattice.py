"""Where a correction has its nodes, and what a kernel looks like there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rooflinekit.evidence.kernel_fit.tables import OPERATIONS, Columns, Measured
from rooflinekit.model.timing import AXES, Axis
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.kernel import Family, Kernel
from rooflinekit.model.types.numeric import Array

__all__ = ["LATTICES", "Lattice", "make_axes"]

_FADE = 4.0
"""Doublings beyond the outermost node with data over which a correction fades to none."""


@dataclass(frozen=True)
class Lattice:
    """Nodes of a correction by shape; `grows`: shapes in which the corrected time may never fall.

    `kinked`: the form stops growing inside cells whose edges grow (experts are all touched), so that an edge has to
    respect its neighbours as well. `columns` turns nodes into columns of the kernel table, for the form's time there.
    """

    operation: str
    nodes: Mapping[str, Sequence[float]]
    grows: tuple[str, ...]
    columns: Callable[[Columns], Columns]
    kinked: bool = False

    def kernel(self, points: Columns, dtype: Dtype, variant: str) -> Kernel:
        """Kernels at points given by shape."""
        return OPERATIONS[self.operation][1](self.columns(points), dtype, variant)


def make_axes(lattice: Lattice, rows: Measured) -> tuple[Axis, ...]:
    """The nodes that the data reach, with one more on either side where the correction has faded.

    Nothing is added below a shape's least value: there is no batch below 1.
    """
    axes = []
    for name, nodes in lattice.nodes.items():
        places, data = np.log2(np.array(nodes, float)), np.log2(rows.each(AXES[name]))
        first = max(int(np.searchsorted(places, data.min(), side="right")) - 1, 0)
        last = min(int(np.searchsorted(places, data.max(), side="left")), len(places) - 1)
        inner = [float(place) for place in places[first : last + 1]]
        below = [] if inner[0] <= 0.0 else [inner[0] - _FADE]
        axes.append(Axis(name, (*below, *inner, inner[-1] + _FADE)))
    return tuple(axes)


def _as_is(points: Columns) -> Columns:
    return points


def _first_rows(points: Columns) -> Columns:
    """The first row of each step of 64: a correction changes there, before the rest of the step has grown."""
    m = points["m"]
    return {**points, "m": np.where(m <= 64.0, m, 64.0 * (np.ceil(m / 64.0) - 1.0) + 1.0)}


def _decode(points: Columns) -> Columns:
    one = np.ones_like(points["keys"])
    return {"batch": points["batch_kv_heads"], "seq_len": points["keys"], "heads": points["group"], "kv_heads": one,
            "head_dim": points["head_dim"]}  # fmt: skip


def _prefill(points: Columns) -> Columns:
    one = np.ones_like(points["length"])
    return {"batch": points["batch_heads"] / points["group"], "seq_len": points["length"], "heads": points["group"],
            "kv_heads": one, "head_dim": points["head_dim"]}  # fmt: skip


def _latent(length: str) -> Callable[[Columns], Columns]:
    return lambda points: {"batch": points["batch"], "seq_len": points[length], "heads": points["heads"]}


def _moe(points: Columns) -> Columns:
    one: Array = np.ones_like(points["tokens"])
    experts = points["local"] * points["ranks"]
    return {"tokens": points["tokens"], "hidden": points["hidden"], "top_k": np.minimum(8.0, experts / 4.0 + 1.0),
            "ffn_matrices": 3.0 * one, "experts": experts, "ep": points["ranks"], "tp": one,
            "expert_intermediate": points["width"]}  # fmt: skip


_GROUPS = (1, 4, 16, 32, 48, 128)
_SIZES = (256, 512, 1024, 2048, 4096, 8192, 16384, 65536)
_HEADS = (1, 2, 4, 8, 16, 32, 64, 128)

LATTICES: dict[Family, Lattice] = {
    "gemm": Lattice(
        "gemm",
        {"n": _SIZES, "k": _SIZES, "m": (1, 4, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 16384)},
        ("n", "k", "m"),
        _first_rows,
    ),
    "attention_decode": Lattice(
        "attention_decode",
        {"head_dim": (64, 128, 256), "group": _GROUPS, "batch_kv_heads": (1, 4, 16, 64, 128, 256, 1024, 16384),
         "keys": (1, 16, 128, 512, 1024, 2048, 8192, 131072)},
        ("batch_kv_heads", "keys"),
        _decode,
    ),
    "attention_prefill": Lattice(
        "attention_prefill",
        {"head_dim": (64, 128, 256), "group": (1, 2, 4, 8, 32, 96), "batch_heads": (1, 4, 16, 64, 256, 1024, 16384),
         "length": (1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 16384)},
        ("batch_heads", "length"),
        _prefill,
    ),
    "mla_decode": Lattice(
        "mla_decode",
        {"heads": (1, 4, 16, 32, 64, 128), "batch": (1, 4, 16, 64, 256, 1024),
         "keys": (1, 8, 64, 256, 1024, 4096, 16384, 131072)},
        ("batch", "keys"),
        _latent("keys"),
    ),
    "mla_prefill": Lattice(
        "mla_prefill",
        {"heads": (1, 4, 16, 32, 64, 128), "batch": (1, 4, 16, 64, 256),
         "length": (1, 16, 64, 256, 512, 1024, 2048, 4096, 32768)},
        ("batch", "length"),
        _latent("length"),
    ),
    "moe": Lattice(
        "moe",
        {"hidden": (2048, 4096, 7168), "width": (64, 512, 4096, 16384), "local": (1, 8, 64, 512),
         "ranks": (1, 2, 16), "tokens": (1, 8, 64, 256, 1024, 4096, 16384)},
        ("tokens",),
        _moe,
        kinked=True,
    ),
    "collective": Lattice(
        "comm", {"gpus": (2, 4, 8), "bytes": (256, 4096, 32768, 2**20, 2**24, 2**30)}, ("bytes",), _as_is
    ),
}  # fmt: skip
"""Corrections by family. Groups of 32 and 48 query heads a KV head have nodes of their own: TensorRT-LLM changes its
decode kernel between them."""
