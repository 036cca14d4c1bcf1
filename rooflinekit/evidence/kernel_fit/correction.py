"""Fit a correction surface: what a time form misses, smoothed, bounded, and never against monotone physics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rooflinekit.evidence.kernel_fit.tables import OPERATIONS, Columns, Measured
from rooflinekit.model.graph.table import located
from rooflinekit.model.timing.calibrated import AXES, Axis, Surface
from rooflinekit.model.timing.forms import TimeForm
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.errors import needing
from rooflinekit.model.types.hardware import System
from rooflinekit.model.types.kernel import Kernel
from rooflinekit.model.types.numeric import Array
from rooflinekit.specs.files import table_of

if TYPE_CHECKING:
    from scipy.sparse import csr_array

SMOOTHNESS, RIDGE = 0.03, 0.1
"""Weight of a unit step between neighbouring nodes, and of a unit correction, against one measured row."""

LIMIT = 1.5
"""Largest correction [log]: a factor of 4.5, what an untuned expert kernel costs over a tuned one."""

_LIKE = {"encoder": "bf16"}
"""Variants whose form grows as another's: an encoder's as that of a causal prompt."""

_STEPS, _MARGIN = 4, 0.01
"""Pieces in which a form's growth between two nodes is looked at; growth that must remain from node to node [log]."""

_OUTLIER = 0.1
_ITERATIONS = 120


@dataclass(frozen=True)
class Lattice:
    """An entry of correction.yaml; `columns` turns nodes into columns of the table, for the form's time there."""

    operation: str
    nodes: Mapping[str, Sequence[float]]
    grows: Sequence[str]
    columns: Callable[[Columns], Columns]
    kinked: bool = False

    def kernel(self, points: Columns, dtype: Dtype, variant: str) -> Kernel:
        """Kernels at points given by shape."""
        return OPERATIONS[self.operation].kernel(self.columns(points), dtype, variant)


def make_axes(lattice: Lattice, rows: Measured) -> tuple[Axis, ...]:
    """The nodes that the data reach, and those where the correction has faded."""
    axes = []
    for name, nodes in lattice.nodes.items():
        places, data = np.log2(np.array(nodes, float)), np.log2(rows.each(AXES[name]))
        first = max(int(np.searchsorted(places, data.min(), side="right")) - 1, 0)
        last = min(int(np.searchsorted(places, data.max(), side="left")), len(places) - 1)
        axes.append(Axis.around(name, tuple(map(float, places[first : last + 1]))))
    return tuple(axes)


def _first_rows(points: Columns) -> Columns:
    """The first row of each step of 64: a correction changes there, before the rest of the step has grown."""
    m = points["m"]
    return {**points, "m": np.where(m <= 64.0, m, 64.0 * (np.ceil(m / 64.0) - 1.0) + 1.0)}


def _laid(columns: Mapping[str, Any], points: Columns) -> Columns:
    """Columns of the table at points: a shape by its name, a number, or two of them divided."""
    one: Array = np.ones_like(next(iter(points.values())))

    def value(told: Any) -> Array:
        if isinstance(told, list):
            return value(told[0]) / value(told[1])
        return points[told] if isinstance(told, str) else told * one

    return {name: value(told) for name, told in columns.items()}


def _moe(points: Columns) -> Columns:
    one: Array = np.ones_like(points["tokens"])
    experts = points["local"] * points["ranks"]
    routed = {"experts": experts, "ep": points["ranks"], "top_k": np.minimum(8.0, experts / 4.0 + 1.0)}
    width = {"ffn_matrices": 3.0 * one, "tp": one, "expert_intermediate": points["width"]}
    return {"tokens": points["tokens"], "hidden": points["hidden"], **routed, **width}


_COLUMNS: dict[str, Callable[[Columns], Columns]] = {"gemm": _first_rows, "moe": _moe}


def _lattice(family: str, columns: Mapping[str, Any] | None = None, **known: Any) -> Lattice:
    own = columns or {name: name for name in known["nodes"]}
    return Lattice(columns=_COLUMNS.get(family, partial(_laid, own)), **known)


LATTICES = {family: _lattice(family, **known) for family, known in table_of(__file__).items()}
"""Corrections by family."""


@dataclass(frozen=True)
class _Grid:
    axes: tuple[Axis, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(axis.nodes) for axis in self.axes)

    def inside(self, besides: int = -1) -> tuple[slice, ...]:
        """Nodes that may differ from no correction: all but the faded ones; every node along the axis `besides`."""
        inner = [slice(0 if axis.open_low else 1, -1) for axis in self.axes]
        return tuple(slice(None) if number == besides else one for number, one in enumerate(inner))

    def index(self) -> NDArray[np.intp]:
        """Flat number of each node."""
        return np.arange(int(np.prod(self.shape))).reshape(self.shape)

    def edges(self, number: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Flat indices of neighbouring nodes along one axis, inside the data in all others."""
        index = np.moveaxis(self.index()[self.inside(number)], number, 0)
        return index[:-1].ravel(), index[1:].ravel()


@dataclass(frozen=True)
class _Ground:
    """A form over the nodes of its lattice, for one number format on one accelerator."""

    grid: _Grid
    lattice: Lattice
    form: TimeForm
    system: System
    dtype: Dtype
    variant: str

    def growth(self) -> tuple[csr_array, Array]:
        """Differences along growing shapes as a sparse matrix, and how much the form grows there at least [log]."""
        from scipy.sparse import csr_array, vstack  # noqa: PLC0415

        size = int(np.prod(self.grid.shape))
        blocks, least = [csr_array((0, size))], [np.zeros(0)]
        for number, axis in enumerate(self.grid.axes):
            if axis.name not in self.lattice.grows:
                continue
            low, high = self.grid.edges(number)
            count = len(low)
            sign = np.concatenate([-np.ones(count), np.ones(count)])
            place = (np.tile(np.arange(count), 2), np.concatenate([low, high]))
            blocks.append(csr_array((sign, place), shape=(count, size)))
            least.append(np.minimum(self.least(number, warm=True), self.least(number, warm=False)))
        return csr_array(vstack(blocks)), np.concatenate(least)

    def least(self, number: int, warm: bool) -> Array:
        """Least growth of log time on each edge along one axis, were all of the edge as flat as its flattest piece."""
        from scipy.ndimage import minimum_filter  # noqa: PLC0415

        axes = self.grid.axes
        inside = self.grid.inside(number)
        positions = [np.array(axis.nodes[part]) for axis, part in zip(axes, inside, strict=True)]
        steps = np.diff(positions[number])
        fine = positions[number][:-1, None] + steps[:, None] * np.linspace(0.0, 1.0, _STEPS + 1)
        positions[number] = fine.ravel()
        mesh = [place.ravel() for place in np.meshgrid(*positions, indexing="ij")]
        logs = np.log(self.times({axis.name: np.exp2(place) for axis, place in zip(axes, mesh, strict=True)}, warm))
        ordered = np.moveaxis(logs.reshape([len(place) for place in positions]), number, 0)
        flattest = np.diff(ordered.reshape(len(steps), _STEPS + 1, -1), axis=1).min(axis=1) * _STEPS
        around = [3 if self.lattice.kinked else 1] * len(axes)  # cells on either side of an edge
        around[number] = 1
        shape = np.moveaxis(np.empty([len(place) for place in positions]), number, 0).shape[1:]
        laid = np.moveaxis(flattest.reshape((len(steps), *shape)), 0, number)
        least: Array = np.moveaxis(minimum_filter(laid, around, mode="nearest"), number, 0).ravel()
        return np.maximum(least, 0.0)

    def times(self, points: dict[str, Array], warm: bool) -> Array:
        """Time of the form at points given by shape [s]; a number of accelerators is one kernel each."""
        if "gpus" not in points:
            kernel = self.lattice.kernel(points, self.dtype, self.variant)
            return np.asarray(self.form.time(kernel, self.system, warm).total)
        boundless = replace(self.system, domain_size=2**30, max_gpus=2**30)
        times = np.zeros(len(points["gpus"]))
        for gpus in np.unique(points["gpus"]):
            some = points["gpus"] == gpus
            whole = np.full(int(some.sum()), max(round(float(gpus)), 2), float)
            kernel = self.lattice.kernel({"gpus": whole, "bytes": points["bytes"][some]}, self.dtype, self.variant)
            times[some] = self.form.time(kernel, boundless, warm).total
        return times


def fit_surface(rows: Measured, form: TimeForm, system: System, ratio: Array) -> Surface:
    """Ridge regression of log(ratio) on the multilinear basis of the family's lattice, robust to outliers.

    Neighbouring nodes are tied to each other and all to zero; nodes beyond the data are zero. Along shapes in which
    time cannot fall, the correction may fall no faster than the form grows (warm or cold).
    """
    lattice = LATTICES[rows.family]
    grid = _Grid(make_axes(lattice, rows))
    free = np.zeros(int(np.prod(grid.shape)), bool)
    free[grid.index()[grid.inside()]] = True
    basis = _basis(grid, rows)[:, free]
    penalty = _penalty(grid, free)
    first = rows.kernels[0]
    variant = "balanced" if rows.family == "moe" else _LIKE.get(first.variant, first.variant)
    ground = _Ground(grid, lattice, form, system, first.dtype, variant)
    slopes, growth = ground.growth()
    logs, weights = np.log(ratio), rows.counts
    values = np.zeros(int(free.sum()))
    for _ in range(3):
        gram = np.asarray((basis.T @ basis.multiply(weights[:, None])).todense()) + penalty
        values = _constrained(gram, basis.T @ (weights * logs), slopes[:, free], _MARGIN - growth)
        weights = rows.counts / np.sqrt(1.0 + ((logs - basis @ values) / _OUTLIER) ** 2)
    percent = np.zeros(len(free), int)
    percent[free] = np.rint(100.0 * np.clip(values, -LIMIT, LIMIT)).astype(int)
    percent = _raise(percent, free, slopes, growth)[free]
    lines = percent.reshape(-1, len(grid.axes[-1].nodes) - (1 if grid.axes[-1].open_low else 2))
    return Surface(grid.axes, "\n".join(" ".join(map(str, line)) for line in lines))


def _raise(percent: NDArray[np.int_], free: NDArray[np.bool_], slopes: csr_array, growth: Array) -> NDArray[np.int_]:
    """Lift nodes that rounding left too low for time to grow, as little as it takes."""
    edges = slopes.indices.reshape(-1, 2)
    signs = slopes.data.reshape(-1, 2)
    low, high = (np.where(signs[:, 0] == sign, edges[:, 0], edges[:, 1]) for sign in (-1.0, 1.0))
    fall = np.floor(100.0 * growth).astype(int)
    lifted = percent.copy()
    for _ in range(int(np.prod(lifted.shape))):
        least = lifted.copy()
        np.maximum.at(least, high, lifted[low] - fall)
        least = np.where(free, least, 0)
        if (least == lifted).all():
            break
        lifted = least
    return lifted


def _basis(grid: _Grid, rows: Measured) -> csr_array:
    with needing("fitting a calibration", "accuracy"):
        from scipy.sparse import csr_array  # noqa: PLC0415
    found = _corners([axis.nodes for axis in grid.axes], [np.log2(rows.each(AXES[axis.name])) for axis in grid.axes])
    count, size = len(rows.time), int(np.prod(grid.shape))
    weight = np.concatenate([np.broadcast_to(w, (count,)) for _, w in found])
    column = np.concatenate([np.broadcast_to(at, (count,)) for at, _ in found])
    return csr_array((weight, (np.tile(np.arange(count), len(found)), column)), shape=(count, size))


def _corners(axes: Sequence[Sequence[float]], places: Sequence[Array]) -> list[tuple[NDArray[np.intp], Array]]:
    """Flat indices of the nodes of a table around each position, and their weights (multilinear interpolation)."""
    found: list[tuple[NDArray[np.intp], Array]] = [(np.zeros(1, np.intp), np.ones(1))]
    for nodes, place in zip(axes, places, strict=True):
        index, share = located(nodes, place)
        size = len(nodes)
        near = [(at * size + index, weight * (1.0 - share)) for at, weight in found]
        found = near + ([(at * size + index + 1, weight * share) for at, weight in found] if size > 1 else [])
    return found


def _penalty(grid: _Grid, free: NDArray[np.bool_]) -> Array:
    place = np.cumsum(free) - 1
    penalty = RIDGE * np.eye(int(free.sum()))
    for number in range(len(grid.axes)):
        low, high = grid.edges(number)
        for first, second in ((low, high), (high, low)):
            kept = first[free[first]]
            np.add.at(penalty, (place[kept], place[kept]), SMOOTHNESS)
            both = free[first] & free[second]
            np.add.at(penalty, (place[first[both]], place[second[both]]), -SMOOTHNESS)
    return penalty


def _constrained(gram: Array, target: Array, slopes: csr_array, floor: Array) -> Array:
    """Minimise ½·cᵀGc − tᵀc subject to Dc ≥ floor (ADMM; Boyd et al. 2011, doi:10.1561/2200000016, section 5.2)."""
    from scipy.linalg import cho_factor, cho_solve  # noqa: PLC0415

    rho = float(np.median(np.diag(gram))) + 1.0
    factor = cho_factor(gram + rho * np.asarray((slopes.T @ slopes).todense()))
    split = dual = np.zeros(slopes.shape[0])
    values: Array = np.zeros(len(target))
    for _ in range(_ITERATIONS):
        values = cho_solve(factor, target + rho * (slopes.T @ (split - dual)))
        moved = slopes @ values + dual
        split = np.maximum(moved, floor)
        dual = moved - split
    return values
