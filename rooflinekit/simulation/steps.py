"""The time of one engine step from a table: built once a deployment with arrays, read in a microsecond.

A step's kernels fall into three kinds. Some work on all tokens of the step together (projections, experts, norms,
collectives), some on the rows that are sampled (LM head, sampler), some on each phase by itself (attention). Their
times add up, so one table each is enough, and a mixed step needs no grid over all of its numbers. Rows of attention are
worked out when they are first read: a prefill replica decodes nothing.

    t = shared(tokens) + sampled(rows) + sequences(count) + decode(sequences, mean context) + Σ prefill(new, past)

and with a prompt in it, where no CUDA graph is replayed, at least the time that the host needs for its launches. The
first three and the batch of the fourth are tabulated at every whole number; contexts, and the new and past tokens of a
chunk, are on grids with linear interpolation. Of attention replicas the fullest counts, but experts and their exchange
work on the tokens of all: these stand in a table of their own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from os import PathLike
from typing import TYPE_CHECKING, Protocol, TypeVar

from rooflinekit.estimation.estimator import Resolved, resolve
from rooflinekit.model.kernels.operation import Operation
from rooflinekit.model.roofline import StepTime
from rooflinekit.model.step import Plan, host_times, launches_of
from rooflinekit.model.types.batch import Batch, Sequences
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.errors import WorkloadError
from rooflinekit.model.types.kernel import Kernel
from rooflinekit.model.types.time import KernelTime
from rooflinekit.model.vision import OfImages

if TYPE_CHECKING:
    from rooflinekit.model.types.numeric import Array, Numeric

Chunk = tuple[int, int]
"""New tokens of a prompt in this step, and the tokens before them that are in the cache."""

Row = TypeVar("Row")

Span = tuple[float, float, int]
"""Time of the first decode step of a run [s], what each later one takes more [s], and for how many that holds."""

STEP_INTERFACE = 1
"""Version of `predict_step` and `StepTable.__call__`: it changes when a call that worked means something else."""

_SIZE = _MOST, _LONGEST = 512, 131_072  # sequences and tokens in the table; larger batches are worked out
_DENSE = 16_384  # token counts up to here are tabulated one by one
_RATIO = 1.05  # of neighbouring contexts, and of chunk lengths
_ABREAST = 64  # numbers of sequences whose attention is worked out together
_FINE = 32  # contexts and chunk lengths up to here stand one by one


class Clock(Protocol):
    """How long an engine step takes. A `StepTable` is one; a test may bring its own."""

    def step(self, decodes: int, keys: int, chunks: Sequence[Chunk], firsts: int) -> float:
        """Time of a step [s].

        Args:
            decodes: sequences that decode.
            keys: tokens that these have in the cache, all together.
            chunks: pieces of prompts.
            firsts: prompts that end in this step, each of which samples a token.
        """
        ...

    def run(self, decodes: int, keys: int) -> Span:
        """Decode steps one after the other, in each of which every sequence gets a token."""
        ...


class Rows(dict[int, Row]):
    """Rows of a table by number; `worked_out` gives a row, and those beside it, when it is first read."""

    def __init__(self, worked_out: Callable[[int], Mapping[int, Row]]) -> None:
        super().__init__()
        self._worked_out = worked_out

    def __missing__(self, number: int) -> Row:
        """Work it out."""
        self.update(self._worked_out(number))
        return self[number]


@dataclass(frozen=True)
class TokenTimes:
    """Times by number of tokens [s]: `dense` from 0, and beyond it `times` at `counts`, straight lines between."""

    dense: list[float]
    counts: list[float]
    times: list[float]

    def __call__(self, tokens: int) -> float:
        """The time of this many tokens."""
        if tokens < len(self.dense):
            return self.dense[tokens]
        counts, times = self.counts, self.times
        at = bisect_right(counts, tokens, 1, len(counts) - 1)
        low, left = counts[at - 1], times[at - 1]
        return left + (times[at] - left) * (tokens - low) / (counts[at] - low)


@dataclass(frozen=True)
class StepTable:
    """Time of the steps of one deployment [s]. Build it with `rk.step_table`.

    shared: by tokens of the fullest attention replica; pooled: what attention replicas do together, by tokens of all;
    a step of decodes alone is padded, so that all replicas replay the same CUDA graph. sampled, sequences: by whole
    number, from 0. grid: numbers of tokens, from 0, and `cells` the place in it of every whole number. decode: by
    sequences and place in the grid. prefill: for each cell of new and past tokens, a, b, c and d of a + b·new +
    (c + d·new)·past. launch: what every chunk after the first saves, because one launch serves all. width: tokens a
    sequence computes in a decode step (more than one verifies a draft). replicas: attention replicas that share the
    sequences evenly. floor: least time of a step that is launched kernel by kernel, of prompts, mixed, or of decoding
    sequences, and `sequence_floor` more for each sequence; `graphs` spares the last kind that. graph_floor: the same of
    prompts and mixed, in steps of up to `graph_tokens` tokens.
    encoded: the vision tower by prompts that end, from 0, empty without images; `encoded_floor` its launches. budget:
    tokens of a step of one attention replica at most, 0 where it is not told.
    """

    shared: TokenTimes
    pooled: TokenTimes | None
    sampled: list[float]
    sequences: list[float]
    grid: list[float]
    cells: list[int]
    decode: Rows[list[float]]
    prefill: Rows[list[list[float]]]
    launch: float
    width: int = 1
    replicas: int = 1
    floor: tuple[float, float, float] = (0.0, 0.0, 0.0)
    graph_floor: tuple[float, float] = (0.0, 0.0)
    graph_tokens: float = 0.0
    sequence_floor: float = 0.0
    graphs: bool = True
    encoded: list[float] = field(default_factory=list)
    encoded_floor: float = 0.0
    budget: int = 0

    def __call__(self, batch: int, context: float, new: int = 0, past: int = 0) -> float:
        """Time of a step of `batch` decoding sequences at `context` keys and one chunk of `new` tokens [s].

        `context` includes the token that the step computes, as in `Batch.decode`; the chunk ends its prompt.
        """
        keys = batch * (context - self.width)
        return self.step(batch, keys, ((new, past),) if new else (), 1 if new else 0)

    def step(self, decodes: int, keys: float, chunks: Sequence[Chunk], firsts: int) -> float:
        """See `Clock`."""
        together = 0.0
        if self.replicas > 1:
            everywhere = decodes * self.width + sum(new for new, _ in chunks)
            decodes, keys, chunks, firsts = self._share(decodes, keys, chunks, firsts)
            if self.pooled is not None:
                together = self.pooled(everywhere if chunks else decodes * self.width * self.replicas)
        prompts, width, cells = len(chunks), self.width, self.cells
        tokens = decodes * width
        time = together + self.sequences[decodes + prompts] + self.sampled[tokens + firsts]
        if self.encoded:
            time += self.encoded[firsts]
        if decodes:
            row, context = self.decode[decodes], keys / decodes + width
            at = cells[int(context)] if context < len(cells) else cells[-1]
            low, left = self.grid[at], row[at]
            time += left + (row[at + 1] - left) * (context - low) / (self.grid[at + 1] - low)
        for new, past in chunks:
            tokens += new
            row_of = self.prefill[cells[new] if new < len(cells) else cells[-1]]
            a, b, c, d = row_of[cells[past] if past < len(cells) else cells[-1]]
            time += a + b * new + past * (c + d * new)
        time += self.shared(tokens)
        if prompts > 1:
            time -= self.launch * (prompts - 1)
        if prompts or not self.graphs:
            kind = 2 if not prompts else 1 if decodes else 0
            floor = self.graph_floor if prompts and tokens <= self.graph_tokens else self.floor
            least = floor[kind] + self.sequence_floor * (decodes + prompts)
            if firsts:
                least += self.encoded_floor
            return least if least > time else time
        return time

    def run(self, decodes: int, keys: float) -> Span:
        """See `Clock`; straight up to the next context of the grid."""
        width, cells, grid = self.width, self.cells, self.grid
        row, rest, least = self._decoding[decodes]
        context = keys / decodes + width
        at = cells[int(context)] if context < len(cells) else cells[-1]
        low, high, left = grid[at], grid[at + 1], row[at]
        slope = (row[at + 1] - left) / (high - low)
        time = rest + left + slope * (context - low)
        if time < least:
            return least, 0.0, 1
        return time, slope * width, int((high - context) / width) + 1 if high > context else 1 << 30

    @cached_property
    def _decoding(self) -> Rows[tuple[list[float], float, float]]:
        """Of so many sequences that decode alone: attention by context, all the rest, and the floor [s]."""
        return Rows(self._alone)

    def _alone(self, decodes: int) -> dict[int, tuple[list[float], float, float]]:
        local = -(-decodes // self.replicas)
        tokens = local * self.width
        rest = self.sequences[local] + self.sampled[tokens] + self.shared(tokens)
        rest += self.pooled(tokens * self.replicas) if self.pooled is not None else 0.0
        return {
            decodes: (self.decode[local], rest, 0.0 if self.graphs else self.floor[2] + self.sequence_floor * local)
        }

    def _share(
        self, decodes: int, keys: float, chunks: Sequence[Chunk], firsts: int
    ) -> tuple[int, float, Sequence[Chunk], int]:
        """What the fullest attention replica gets; a chunk is divided where it would be beyond the token budget."""
        local = -(-decodes // self.replicas)
        largest = sorted(chunks, reverse=True)[:: self.replicas]
        if self.budget and len(largest) > 1:
            beyond = sum(new for new, _ in largest) - max(self.budget - local * self.width, largest[0][0])
            while beyond > 0:
                new, past = largest.pop()
                if new > beyond:
                    largest.append((new - beyond, past))
                beyond -= new
        return local, keys / decodes * local if decodes else 0, largest, -(-firsts // self.replicas)


def step_table(
    model: str | PathLike[str],
    gpu: str | PathLike[str] = "h100-sxm",
    deployment: Deployment | None = None,
    calibration: str | None = None,
    size: tuple[int, int] = _SIZE,
) -> StepTable:
    """Tabulate the steps of a deployment, for simulators: a call of the result takes a microsecond or two.

    Args:
        model: a model's name or path.
        gpu: an accelerator's name or path.
        deployment: the split, formats and engine.
        calibration: a name, a path, or "none" for the datasheet bound; by default as `estimate` chooses.
        size: most sequences that decode in one step, and longest context or prompt [tokens].

    Raises:
        InputError: (and its kinds) as `estimate` does.

    >>> table = step_table("llama-3-8b", "h100-sxm", size=(64, 8192))
    >>> 0.007 < table(32, 2048) < 0.012  # seconds of a decode step: 32 sequences at 2,048 keys
    True
    """
    return _deployed(str(model), str(gpu), deployment or Deployment(), calibration, size)[1]


class PredictedStep:
    """Time of one engine step [s]: `time` at once, the rest of a `StepTime` on demand."""

    def __init__(self, resolved: Resolved, batch: Batch, table: StepTable) -> None:
        self._resolved, self._batch, self._table = resolved, batch, table

    @cached_property
    def time(self) -> Numeric:
        """Expected time [s]; from the table where the batch is plain numbers within it."""
        quick = _quick(self._batch, self._table)
        return self.exact.expected if quick is None else quick

    @cached_property
    def exact(self) -> StepTime:
        """The step worked out kernel by kernel."""
        return self._resolved.plan.time(self._batch)

    @property
    def bound(self) -> Numeric:
        """Datasheet bound [s]."""
        return self.exact.bound

    @property
    def low(self) -> Numeric:
        """Lower end of the 90 % interval [s]."""
        return self.exact.low

    @property
    def high(self) -> Numeric:
        """Upper end of the 90 % interval [s]."""
        return self.exact.high

    @property
    def kernels(self) -> tuple[KernelTime, ...]:
        """Every kernel with its time."""
        return self.exact.kernels


def predict_step(
    model: str | PathLike[str],
    gpu: str | PathLike[str],
    deployment: Deployment,
    batch: Batch,
    *,
    calibration: str | None = None,
) -> PredictedStep:
    """Time of one engine step by names, for simulators of others: version 1 of a stable interface.

    Model, accelerator and calibration are read once a process and deployment. `time` comes from the step table of the
    deployment, which is built once, so that a call costs tens of microseconds; who needs one or two takes the table
    itself (`step_table`).

    Args:
        model: a model's name or path.
        gpu: an accelerator's name or path.
        deployment: the split, formats and engine.
        batch: the sequences of one attention replica.
        calibration: a name, a path, or "none" for the datasheet bound; by default as `estimate` chooses.

    Returns:
        A step: `time`, `bound`, `low`, `high` [s] and the kernels.

    Raises:
        InputError: (and its kinds) as `estimate` does, and for a batch without sequences or with a number out of range.

    >>> step = predict_step("llama-3-8b", "h100-sxm", Deployment(), Batch.decode(32.0, 2048.0))
    >>> 0.007 < step.bound < step.time < 0.012
    True
    """
    if not isinstance(model, (str, PathLike)) or not isinstance(gpu, (str, PathLike)):
        resolve(model, gpu, deployment, calibration)  # says what is wrong
    resolved, table = _deployed(str(model), str(gpu), deployment, calibration, _SIZE)
    return PredictedStep(resolved, checked(batch), table)


_ABOVE_ZERO = 1e-9
_HIGHEST = 1e9  # no step has more sequences or tokens
_WITHIN = {"count": (_ABOVE_ZERO, _HIGHEST), "new": (_ABOVE_ZERO, _HIGHEST), "past": (0.0, _HIGHEST),
           "sampled": (0.0, _HIGHEST), "span": (1.0, _HIGHEST)}  # fmt: skip
_BESIDES = {"filled": (_ABOVE_ZERO, 1.0), "varying": (0.0, _HIGHEST), "padding": (0.0, _HIGHEST)}


def checked(batch: Batch) -> Batch:
    """A batch whose numbers an engine step can have, scalars or arrays.

    >>> checked(Batch.decode(1.0, 0.0))
    Traceback (most recent call last):
        ...
    rooflinekit.model.types.errors.WorkloadError: batch: past is -1.0, not from 0 to 1e+09

    Raises WorkloadError for any other, and for one without sequences.
    """
    if not isinstance(batch, Batch):
        raise WorkloadError(f"batch is {type(batch).__name__}, not a Batch; make one with Batch.decode(32, 2048)")
    if not batch.phases:
        raise WorkloadError("batch: has no sequences; make one with Batch.decode(32, 2048)")
    for part, limits in (*((phase, _WITHIN) for phase in batch.phases), (batch, _BESIDES)):
        for name, (low, high) in limits.items():
            value = getattr(part, name)
            if not (low <= value <= high if isinstance(value, (int, float)) else _all_within(value, low, high)):
                shown = "above 0" if low == _ABOVE_ZERO else f"from {low:g}"
                raise WorkloadError(f"batch: {name} is {str(value)[:40]}, not {shown} to {high:g}")
    return batch


def _all_within(value: object, low: float, high: float) -> bool:
    """Whether an array holds numbers from `low` to `high`, and some."""
    import numpy as np  # noqa: PLC0415 - only arrays pay for it

    if not isinstance(value, (np.ndarray, np.generic)) or value.dtype.kind not in "iuf" or not value.size:
        return False
    each = np.asarray(value, float)
    return bool(np.all((each >= low) & (each <= high)))


@lru_cache(maxsize=32)
def _deployed(
    model: str, gpu: str, deployment: Deployment, calibration: str | None, size: tuple[int, int]
) -> tuple[Resolved, StepTable]:
    resolved = resolve(model, gpu, deployment, calibration)
    return resolved, build_table(resolved.plan, *size)


def _quick(batch: Batch, table: StepTable) -> float | None:
    """From the table: whole numbers of sequences with one new token each, and at most one chunk."""
    decoding, chunk = batch.decoding, batch.prefilling
    count = context = new = past = firsts = 0
    if not isinstance(batch.filled, (int, float)) or batch.filled != 1.0:
        return None
    if decoding is not None:
        if not _plain(decoding) or decoding.new != 1 or decoding.sampled != 1 or not decoding.count <= _MOST:
            return None
        count, context = int(decoding.count), int(decoding.past)
    if chunk is not None:
        if not _plain(chunk) or chunk.count != 1 or chunk.sampled not in (0, 1):
            return None
        new, past, firsts = int(chunk.new), int(chunk.past), int(chunk.sampled)
    if max(context, new, past) >= _LONGEST:
        return None
    every = table.replicas  # all attention replicas hold the same
    return table.step(every * count, every * count * context, ((new, past),) * every if new else (), every * firsts)


def _plain(phase: Sequences) -> bool:
    numbers = (phase.count, phase.new, phase.past, phase.sampled, phase.span)
    if phase.ragged or not all(isinstance(number, (int, float)) for number in numbers):
        return False
    return phase.span == 1.0 and all(float(number).is_integer() for number in numbers)


def build_table(plan: Plan, max_batch: int, max_context: int, width: int = 1, budget: int = 0) -> StepTable:
    """Tabulate a plan for up to `max_batch` decoding sequences of `width` tokens and contexts up to `max_context`.

    `budget`: tokens of a step of one attention replica at most, where they are told.

    Raises WorkloadError for sizes below 1.
    """
    if min(max_batch, max_context, width) < 1:
        raise WorkloadError(f"a step table needs sizes of at least 1, not {max_batch}, {max_context} and {width}")
    grid = [0.0, *_grid(float(max_context + width))]
    parts = _Parts(plan, width, grid)
    tokens = max_batch * width + max(max_context, budget, int(plan.token_budget))
    shared = _by_tokens(parts.shared, tokens)
    floor, graph_floor, per_sequence = parts.floor()
    return StepTable(
        shared=shared,
        pooled=_by_tokens(parts.pooled, tokens * plan.deployment.dp) if parts.together else None,
        sampled=parts.sampled(2 * max_batch * width),
        sequences=parts.sequences(2 * max_batch, shared),
        grid=grid,
        cells=[at for at, (low, high) in enumerate(pairwise(grid)) for _ in range(int(high - low))],
        decode=Rows(parts.decode),
        prefill=Rows(parts.cells),
        launch=float(parts.prefill([0.0])[0, 0]),
        width=width,
        replicas=plan.deployment.dp,
        floor=floor,
        graph_floor=graph_floor,
        graph_tokens=plan.graph_tokens,
        sequence_floor=per_sequence,
        graphs=plan.costs.graphs and not plan.deployment.settings.eager,
        encoded=parts.encoded(2 * max_batch),
        encoded_floor=parts.encoded_floor(),
        budget=budget,
    )


class _Parts:
    """A plan in the parts whose times add up: by phase, by sampled rows, and all the rest with the engine's costs."""

    def __init__(self, plan: Plan, width: int, grid: list[float]) -> None:
        costs, self.grid = plan.costs, grid
        bare = replace(costs, step=0.0, ranks=0.0, sequence=0.0, sequence_ranks=0.0, layer=0.0, launch=0.0)
        self.seen: dict[Operation, int] = {
            op: count for op, count in plan.operations.items() if isinstance(op, OfImages)
        }
        plan = replace(plan, operations={op: n for op, n in plan.operations.items() if op not in self.seen})
        phased, sampling, self.together = _split(plan)
        self.plan, self.width = plan, width
        self.whole = replace(plan, engine=replace(plan.engine, costs=replace(costs, launch=0.0)))
        own = {op: count for op, count in plan.operations.items() if op not in self.together}
        self.calm = replace(self.whole, operations=own)
        self.by_phase = replace(plan, operations=phased, engine=replace(plan.engine, costs=bare))
        self.by_rows = replace(plan, operations=sampling, engine=replace(plan.engine, costs=bare))

    def shared(self, tokens: list[float]) -> list[float]:
        """Of these numbers of tokens, with one sequence."""
        one = Batch(prefilling=Sequences(1.0, _array(tokens), 0.0, 1.0))
        times: list[float] = self._rest(one).tolist()
        return times

    def pooled(self, tokens: list[float]) -> list[float]:
        """What attention replicas do together, for these numbers of tokens on all of them."""
        one = Batch(prefilling=Sequences(1.0, _array(tokens) / self.plan.deployment.dp, 0.0, 1.0))
        times: list[float] = (_time(self.whole, one) - _time(self.calm, one)).tolist()
        return times

    def sampled(self, most: int) -> list[float]:
        """Of 0, 1, … rows."""
        rows = _array([float(row) for row in range(1, most + 1)])
        return [0.0, *_time(self.by_rows, Batch.decode(rows, 1.0)).tolist()]

    def sequences(self, most: int, shared: TokenTimes) -> list[float]:
        """What 0, 1, … sequences take beyond that: state, and the engine's work for each."""
        counts = _array([float(count) for count in range(1, most + 1)])
        each = self._rest(Batch.decode(counts, 1024.0 + self.width, float(self.width)))
        known = [shared(count * self.width) for count in range(1, most + 1)]
        return [0.0, *(each - _array(known)).tolist()]

    def encoded(self, most: int) -> list[float]:
        """The images of 0, 1, … prompts; empty where there are none."""
        if not self.seen:
            return []
        counts = _array([float(count) for count in range(1, most + 1)])
        tower = replace(self.by_phase, operations=self.seen)
        return [0.0, *_time(tower, Batch.prefill(counts, 1.0)).tolist()]

    def encoded_floor(self) -> float:
        """Host time of the tower's launches in a step in which prompts end [s]."""
        kernels = replace(self.plan, operations=self.seen).kernels(Batch.prefill(1.0, 8.0))
        return sum(kernel.count for kernel in kernels) * self.plan.costs.launch * self.plan.costs.prompt

    def decode(self, number: int) -> dict[int, list[float]]:
        """Of so many decoding sequences at the contexts of the grid, and of those beside them."""
        counts = range(number - (number - 1) % _ABREAST, number - (number - 1) % _ABREAST + _ABREAST)
        keys = _array([max(context, float(self.width)) for context in self.grid])
        batch = Batch.decode(_array([float(count) for count in counts])[:, None], keys, float(self.width))
        return dict(zip(counts, _time(self.by_phase, batch).tolist(), strict=True))

    def prefill(self, tokens: list[float]) -> Array:
        """Of one chunk by new and by past tokens."""
        import numpy as np  # noqa: PLC0415 - as below

        new = np.maximum(_array(tokens), 1.0)[:, None]
        return _time(self.by_phase, Batch(prefilling=Sequences(1.0, new, _array(tokens), 1.0)))

    def cells(self, number: int) -> dict[int, list[list[float]]]:
        """The planes of one number of new tokens."""
        return {number: self._planes[number].tolist()}

    @cached_property
    def _planes(self) -> Array:
        """Bilinear interpolation in every cell of new and past tokens: a, b, c, d of a + b·x + (c + d·x)·y."""
        import numpy as np  # noqa: PLC0415 - as below

        times, points = self.prefill(self.grid), _array(self.grid)
        x, y = points[:-1, None], points[None, :-1]
        dx, dy = np.diff(points)[:, None], np.diff(points)[None, :]
        base, right, up = times[:-1, :-1], times[1:, :-1], times[:-1, 1:]
        d = (times[1:, 1:] - right - up + base) / (dx * dy)
        b, c = (right - base) / dx - d * y, (up - base) / dy - d * x
        return np.stack([base - b * x - c * y - d * x * y, b, c, d], -1)

    def floor(self) -> tuple[tuple[float, float, float], tuple[float, float], float]:
        """Host time of a step of prompts, mixed, and of decoding sequences; with graphs; and of each sequence [s]."""
        plan, costs = self.plan, self.plan.costs
        prompt, token = Batch.prefill(1.0, 8.0), Batch.decode(1.0, 8.0)
        one = plan.iteration(token)
        once, full = (float(sum(host_times(costs, replace(one, sequences=n)), 0.0)) for n in (0.0, 1.0))
        longer = costs.launch * costs.prompt
        kinds = ((prompt, longer), (prompt | token, longer), (token, costs.launch))
        alone, mixed, decode = (once + launches_of(plan.kernels(batch), costs) * each for batch, each in kinds)
        small, beside = (once + launches_of(plan.kernels(batch), costs, True) * each for batch, each in kinds[:2])
        return (alone, mixed, decode), (small, beside), full - once

    def _rest(self, batch: Batch) -> Array:
        return _time(self.calm, batch) - _time(self.by_phase, batch) - _time(self.by_rows, batch)


def _by_tokens(times: Callable[[list[float]], list[float]], most: int) -> TokenTimes:
    """Of 0, 1, … tokens one by one, and up to `most` on a grid."""
    dense = [float(tokens) for tokens in range(1, min(most, _DENSE) + 1)]
    counts = _grid(most + 1.0, dense[-1])
    found = times(dense + counts)
    return TokenTimes([0.0, *found[: len(dense)]], counts, found[len(dense) :])


def _array(values: list[float]) -> Array:
    import numpy as np  # noqa: PLC0415 - tables are arrays until they are read

    return np.array(values)


def _time(plan: Plan, batch: Batch) -> Array:
    """Time as an array of the batch's shape, also where no kernel is left."""
    import numpy as np  # noqa: PLC0415 - as above

    shape = np.broadcast_shapes(*(np.shape(n) for phase in batch.phases for n in (phase.count, phase.new, phase.past)))
    return np.broadcast_to(np.asarray(plan.time(batch).expected, float), shape)


def _grid(last: float, first: float = 1.0) -> list[float]:
    """Whole numbers from `first`, then numbers of equal ratio, up to and including the last one (at least two)."""
    points = [first]
    while points[-1] < last:
        points.append(float(int(max(points[-1] + 1.0, points[-1] * _RATIO if points[-1] > _FINE else 0.0))))
    points[-1] = max(last, points[-1])
    return points if len(points) > 1 else [first, first + 1.0]


def _split(plan: Plan) -> tuple[dict[Operation, int], dict[Operation, int], frozenset[Operation]]:
    """The operations that run by phase, those that work on sampled rows only, and those that see all replicas' tokens.

    Each as it shows in its launches; the last are none of the others.
    """
    prompt, token = Sequences(1.0, 8.0, 8.0, 1.0), Sequences(2.0, 1.0, 8.0, 1.0)

    def launches(op: Operation, batch: Batch) -> list[Kernel]:
        return replace(plan, operations={op: 1}).kernels(batch)

    def by_phase(op: Operation) -> bool:
        kinds = (Batch(prompt), Batch(None, token), Batch(prompt, token))
        return [len(launches(op, batch)) for batch in kinds] not in ([0, 0, 0], [1, 1, 1])

    def by_rows(op: Operation) -> bool:
        same = launches(op, Batch(prompt)) == launches(op, Batch(replace(prompt, new=16.0)))
        return same and launches(op, Batch(prompt)) != launches(op, Batch(replace(prompt, sampled=2.0)))

    def together(op: Operation) -> bool:
        return plan.deployment.dp > 1 and launches(op, Batch(prompt)) != launches(op, Batch(prompt, filled=0.5))

    phased = {op: count for op, count in plan.operations.items() if by_phase(op)}
    others = {op: count for op, count in plan.operations.items() if op not in phased}
    sampling = {op: count for op, count in others.items() if by_rows(op)}
    return phased, sampling, frozenset(op for op in others if op not in sampling and together(op))
