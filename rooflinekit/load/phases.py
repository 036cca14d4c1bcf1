"""Times of what runs on each phase of a step by itself (attention): of decodes, of one chunk and of several.

They are most of the work of a step table, and few settings of a deployment change them: those tables share one
`Phases` whose operations, formats, engine costs and accelerator are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from rooflinekit.model.kernels.attention import IndexScores
from rooflinekit.model.step import Plan
from rooflinekit.model.types.batch import Batch, Sequences
from rooflinekit.model.types.late import np

if TYPE_CHECKING:
    from rooflinekit.model.types.numeric import Array

Times = Callable[[Batch], "Array"]
Made = TypeVar("Made", "Phases", "Several")

_ABREAST = 64  # numbers of sequences that are worked out together
_KEPT = 64  # of which the arrays are kept
_LONG = 2048.0  # tokens of a chunk that fills the accelerator
EIGHT = [8.0, 64.0, 512.0, 8.0, 64.0, 512.0], [0.0, 0.0, 0.0, 512.0, 4096.0, 4096.0]
"""New and past tokens of eight equal chunks that show whether a launch for all of them saves more than launches."""
_MIXED = Batch(Sequences(1.0, 8.0, 8.0, 1.0), Sequences(2.0, 1.0, 8.0, 1.0))


class Several:
    """Seconds that several chunks in one launch save, worked out when they are first asked for.

    time: of a batch, as an array of its shape. grid: new and past tokens of the mean chunk.
    """

    def __init__(self, time: Times, grid: Sequence[float]) -> None:
        self._time, self.grid = time, grid
        self._saved: dict[float, Array] = {}
        self._stacked: dict[int, Array] = {}

    def saved(self, chunks: float) -> Array:
        """Seconds that each of so many equal chunks after the first saves, by new and by past tokens of the mean."""
        if chunks not in self._saved:
            points = np.array(self.grid)
            self._saved[chunks] = self._saved_at(chunks, points[:, None], points, self._one)
        return self._saved[chunks]

    @cached_property
    def _one(self) -> Array:
        points = np.array(self.grid)
        return self._chunks(1.0, points[:, None], points)

    def saved_by(self, chunks: Sequence[float]) -> Array:
        """The same of the first numbers of chunks; kept."""
        if len(chunks) not in self._stacked:
            self._stacked[len(chunks)] = np.stack([self.saved(count) for count in chunks])
        return self._stacked[len(chunks)]

    @cached_property
    def saved_by_eight(self) -> Array:
        """The same of eight chunks of `EIGHT`."""
        new, past = map(np.array, EIGHT)
        return self._saved_at(8.0, new, past, self._chunks(1.0, new, past))

    def _saved_at(self, chunks: float, new: Array, past: Array, one: Array) -> Array:
        saved: Array = (chunks * one - self._chunks(chunks, new, past)) / (chunks - 1.0)
        return saved

    def _chunks(self, count: float, new: Array, past: Array) -> Array:
        return self._time(Batch(prefilling=Sequences(count, np.maximum(new, 1.0), past)))


class Phases:
    """Attention's times [s] of one plan, worked out when they are first asked for.

    time: of a batch, as an array of its shape. width: tokens of a sequence in a decode step. grid: contexts, and new
    and past tokens of a chunk; several: what more chunks than one save.
    """

    def __init__(self, time: Times, width: int, grid: list[float], several: Several) -> None:
        self._time, self._width, self.grid, self.several = time, float(width), grid, several
        self._abreast: dict[int, Array] = {}
        self._upto: dict[int, Array] = {}

    def decode(self, number: int) -> dict[int, list[float]]:
        """Times of so many decoding sequences at the contexts of the grid, and of those beside them."""
        first = number - (number - 1) % _ABREAST
        return dict(zip(range(first, first + _ABREAST), self._decoded(first).tolist(), strict=True))

    def decodes(self, most: int) -> Array:
        """The same of 1 to `most` sequences, after a row of zeros; kept."""
        if most not in self._upto:
            none = np.zeros((1, len(self.grid)))
            rows = np.concatenate([none, *(self._decoded(first) for first in range(1, most + 1, _ABREAST))])
            self._upto[most] = rows[: most + 1]
        return self._upto[most]

    def _decoded(self, first: int) -> Array:
        if first not in self._abreast:
            counts, keys = np.arange(float(first), first + _ABREAST), np.maximum(np.array(self.grid), self._width)
            self._abreast[first] = self._time(Batch.decode(counts[:, None], keys, self._width))
        return self._abreast[first]

    def prefill(self, tokens: Sequence[float]) -> Array:
        """Times of one chunk by new and by past tokens."""
        past = np.array(tokens)
        return self._time(Batch(prefilling=Sequences(1.0, np.maximum(past, 1.0)[:, None], past, 1.0)))

    @cached_property
    def launch(self) -> float:
        """Time of a chunk without work."""
        return float(self.prefill([0.0])[0, 0])

    @cached_property
    def pair(self) -> float:
        """Time of one query and one key of a long chunk: of its further keys [s]."""
        low, high = self._time(Batch(prefilling=Sequences(1.0, _LONG, np.array([2.0 * _LONG, 4.0 * _LONG]), 1.0)))
        return float(high - low) / (2.0 * _LONG * _LONG)

    def cell(self, number: int) -> dict[int, list[list[float]]]:
        """The planes of one number of new tokens."""
        return {number: self.planes[number].tolist()}

    @cached_property
    def planes(self) -> Array:
        """Bilinear interpolation in every cell of new and past tokens: a, b, c, d of a + b·x + (c + d·x)·y."""
        times, points = self.prefill(self.grid), np.array(self.grid)
        x, y = points[:-1, None], points[None, :-1]
        dx, dy = np.diff(points)[:, None], np.diff(points)[None, :]
        base, right, up = times[:-1, :-1], times[1:, :-1], times[:-1, 1:]
        d = (times[1:, 1:] - right - up + base) / (dx * dy)
        b, c = (right - base) / dx - d * y, (up - base) / dy - d * x
        return np.stack([base - b * x - c * y - d * x * y, b, c, d], -1)


def kept_phases(plan: Plan, width: int, grids: tuple[list[float], list[float]], time: Times, halves: bool) -> Phases:
    """The times of a plan of such operations alone; of another that runs them alike, where one was made before.

    grids: contexts, and those of several chunks, whose savings do not depend on the width of decode steps. The
    interconnect and the host count where one of their kernels uses them, and the attention replicas where one works on
    the tokens of all.
    """
    kernels, deployment = plan.kernels(_MIXED), plan.deployment
    away = any(kernel.gpus > 1 or kernel.on_host for kernel in kernels)
    pooled = deployment.dp > 1 and kernels != plan.kernels(Batch(_MIXED.prefilling, _MIXED.decoding, filled=0.5))
    machine = plan.system if away else plan.system.accelerator
    limited = any(isinstance(operation, IndexScores) for operation in plan.operations)
    key = (
        frozenset(plan.operations.items()), plan.precision.stream, plan.precision.kv, plan.engine.costs, deployment.cp,
        deployment.settings.eager, deployment.dp if pooled else 0, plan.token_budget if limited else 0.0, halves,
        id(machine), id(plan.calibration),
    )  # fmt: skip
    grid, coarse = grids
    several = _kept((*key, *coarse), plan, lambda: Several(time, coarse))
    return _kept((*key, width, *grid), plan, lambda: Phases(time, width, grid, several))


def _kept(key: Hashable, plan: Plan, make: Callable[[], Made]) -> Made:
    known: Any = _latest.pop(key, None) or (plan, make())
    _latest[key] = known
    if len(_latest) > _KEPT:
        del _latest[next(iter(_latest))]
    made: Made = known[1]
    return made


_latest: dict[Hashable, tuple[Plan, Phases | Several]] = {}
"""By what the times depend on; the plan keeps the objects alive that the key names by their identity."""
