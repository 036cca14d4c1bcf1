"""The time of one engine step from a table: built once a deployment with arrays, read in a microsecond.

A step's kernels fall into three kinds. Some work on all tokens of the step together (projections, experts, norms,
collectives), some on the rows that are sampled (LM head, sampler), some on each phase by itself (attention). Their
times add up, so one table each is enough, and a mixed step needs no grid over all of its numbers. Rows of attention are
worked out when they are first read, and shared (`rooflinekit.load.phases`): a prefill replica decodes nothing.

    t = shared(tokens) + sampled(rows) + sequences(count) + decode(sequences, mean context) + Σ prefill(new, past)

and with a prompt in it, where no CUDA graph is replayed, at least the time that the host needs for its launches. The
first three and the batch of the fourth are tabulated at every whole number; contexts, and the new and past tokens of a
chunk, are on grids with linear interpolation. Of attention replicas the fullest counts, but experts and their exchange
work on the tokens of all: these stand in a table of their own.

Two things break the sum. Where prompts change kernels that serve all tokens (DeepEP's exchange), a step of decodes
alone has its own table of everything but attention, and the parts above are those of a step with prompts. Where halves
of a step take turns (two-batch overlap), steps of many tokens are read from a second table, whose parts are twice those
of a half without its exchanges; the exchanges are a floor under their sum, max(t_c + s·t_x, t_x), as launches are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from rooflinekit.load.arrays import Table
from rooflinekit.load.loop import run_time, step_time, tokens_time
from rooflinekit.load.phases import EIGHT, Phases, kept_phases
from rooflinekit.model.kernels.attention import IndexScores
from rooflinekit.model.kernels.collective import Exchange
from rooflinekit.model.kernels.operation import Operation
from rooflinekit.model.step import Plan, host_times, launches_of
from rooflinekit.model.timing.overlap import UNDIVIDED
from rooflinekit.model.types.batch import Batch, Sequences
from rooflinekit.model.types.engine import EngineSettings
from rooflinekit.model.types.errors import WorkloadError
from rooflinekit.model.types.kernel import ExchangeShape, Kernel
from rooflinekit.model.types.late import np
from rooflinekit.model.types.model import LatentAttention
from rooflinekit.model.vision import OfImages

if TYPE_CHECKING:
    from rooflinekit.model.types.numeric import Array, Numeric

Chunk = tuple[int, int]
"""New tokens of a prompt in this step, and the tokens before them that are in the cache."""

Row = TypeVar("Row")

Span = tuple[float, float, int]
"""Time of the first decode step of a run [s], what each later one takes more [s], and for how many that holds."""

ONE_PASS = 1 << 30
"""Tokens of a step, of which there are never more."""

_DENSE = 16_384  # token counts up to here are tabulated
_EACH, _TILE = 2048, 64  # up to here worked out one by one; rows of a tile, or of half of one
_RATIO = 1.045  # of neighbouring contexts, and of chunk lengths
_SHORT = 8  # tokens of the prompt beside which decoding sequences are worked out
_CHUNKS = [2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 96.0, 128.0, 192.0, 256.0]
_COARSE = 1.1  # of neighbouring mean lengths of several chunks
_SAME = 1e-3  # of a step, below which several chunks add up
_QUERIES, _TILED = 128, 1025  # queries of a tile, and up to where one more shows in the time
_FINE = 32  # contexts and chunk lengths up to here stand one by one


class Clock(Protocol):
    """A source of step times. A `StepTable` is one; a test may bring its own."""

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
    """Rows of a table by number; `worked_out` gives a row, and those beside it, when it is first read.

    numbers: those that whoever wants all of the table reads; together: works them all out as an array, where that is
    sooner done than row by row, with zeros for the rows below them.
    """

    def __init__(
        self,
        worked_out: Callable[[int], Mapping[int, Row]],
        numbers: range = range(0),
        together: Callable[[], Array] | None = None,
    ) -> None:
        super().__init__()
        self._worked_out, self.numbers, self._together = worked_out, numbers, together

    def __missing__(self, number: int) -> Row:
        """A row that is worked out on its first reading."""
        self.update(self._worked_out(number))
        return self[number]

    @cached_property
    def array(self) -> Array:
        """The rows of `numbers`, each in its place; zeros below the first."""
        if self._together:
            return self._together()
        rows = _array([self[number] for number in self.numbers])
        return np.concatenate([np.zeros((self.numbers.start, *rows.shape[1:])), rows]) if len(rows) else rows


@dataclass(frozen=True)
class TimesByTokens:
    """Times by number of tokens [s]: `dense` from 0, and beyond it `times` at `counts`, straight lines between."""

    dense: list[float]
    counts: list[float]
    times: list[float]

    def __call__(self, tokens: int) -> float:
        """The time of this many tokens."""
        return tokens_time(tokens, self.dense, self.counts, self.times)


@dataclass(frozen=True)
class Savings:
    """Seconds that each chunk after the first saves, because one launch serves all: by chunks and mean tokens.

    Rows of `times` stand by place in `counts`, the numbers of chunks; each is by new and by past tokens, both on
    `grid`, with straight lines between. `cells` is the place in the grid of every whole number.
    """

    counts: list[float]
    grid: list[float]
    cells: list[int]
    times: Rows[list[list[float]]]


_NO_TIMES = TimesByTokens([], [], [])
_NO_SAVINGS = Savings([], [], [], Rows(lambda place: {}))


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
    alone, alone_floor: all but attention of a step of decodes alone, and its least time, by sequences of the fullest
    replica, from 0; empty where the sum holds. exchanged: least time of a step with prompts by tokens, where all else
    hides exchanges. halves: the table of steps that are computed in two halves, those of more tokens on a replica than
    `undivided`, of decodes alone and with prompts; empty where none is.
    summed: whether steps with prompts need neither of the next two. keyed: what works on the keys of all prompts
    together (the up-projection of latent attention), by their number, of which new tokens are `seen` so many times.
    ranks: accelerators that share each context; each computes whole tokens of either phase in each of `parts`.
    unsampled: launches of sampling, which no chunk but the last of a prompt makes. tiled: attention of decoding
    sequences beside prompts, a key, where their heads share no tiles; 0: as without prompts. several: what each chunk
    after the first saves, where that is not `launch`.
    lanes: parts of the sequences that are in the pipeline stages at once. The table is that of one of them: built for
    ⌈sequences/lanes⌉ of an attention replica and a whole token budget. stages: bare kernels of each kind of stage, and
    how many `stage_counts` there are of it; empty for one lane.
    """

    shared: TimesByTokens
    pooled: TimesByTokens | None
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
    alone: list[float] = field(default_factory=list)
    alone_floor: list[float] = field(default_factory=list)
    exchanged: TimesByTokens | None = None
    halves: list[StepTable] = field(default_factory=list)
    undivided: tuple[float, float] = (0.0, 0.0)
    summed: bool = True
    keyed: TimesByTokens | None = None
    seen: float = 1.0
    unsampled: float = 0.0
    tiled: float = 0.0
    ranks: int = 1
    parts: int = 1
    several: Savings | None = None
    lanes: int = 1
    stages: list[StepTable] = field(default_factory=list)
    stage_counts: list[int] = field(default_factory=list)
    plan: Plan | None = None  #: whose steps these are
    size: tuple[int, int, int, int] = (0, 0, 1, 0)  #: sequences, context, width and tokens beside sequences, at least

    def __call__(self, batch: int, context: float, new: int = 0, past: int = 0) -> float:
        """Time of a step of `batch` decoding sequences at `context` keys and one chunk of `new` tokens [s].

        `context` includes the token that the step computes, as in `Batch.decode`; the chunk ends its prompt.
        """
        keys = batch * (context - self.width)
        return self.step(batch, keys, ((new, past),) if new else (), 1 if new else 0)

    def step(self, decodes: int, keys: float, chunks: Sequence[Chunk], firsts: int) -> float:
        """Time of a step [s], as `Clock` has it."""
        n = len(chunks)
        new, past = [new for new, _ in chunks], [past for _, past in chunks]
        return step_time(*self.arrays, decodes, keys, n, new, past, firsts, [0] * n, [0] * n)

    def covers(self, sequences: int, tokens: int) -> bool:
        """Whether steps of so many sequences, and of so many tokens beside them, are all in the table."""
        return sequences <= self.size[0] and tokens <= max(self.size[1], self.size[3])

    def stage_share(self, decodes: int, keys: float, chunks: Sequence[Chunk], firsts: int) -> float:
        """Share of the time of a step for which the busiest pipeline stage works on it; 1 where lanes are not played.

        What the engine adds to the kernels is shared as they are (`Plan.busiest_share`).
        """
        longest = whole = 0.0
        for stage, count in zip(self.stages, self.stage_counts, strict=True):
            time = stage.step(decodes, keys, chunks, firsts)
            longest = time if time > longest else longest
            whole += count * time
        return longest / whole if whole else 1.0

    def run(self, decodes: int, keys: float) -> Span:
        """Decode steps, as `Clock` has them; straight up to the next context of the grid."""
        return run_time(*self.arrays, decodes, keys)

    @cached_property
    def arrays(self) -> tuple[Table, Table]:
        """The arrays that the loop reads, and those of steps whose halves take turns (the same where none do).

        The busiest stage's share of a step is that of one middle step: it moves by some hundredths with the batch.
        """
        own = self._arrays()
        if self.stages:
            sequences, context, tokens = max(len(self.sequences) // 8, 1), 2048, max(self.budget, 512)
            decode = self.stage_share(sequences, sequences * context, (), 0)
            own = own._replace(decode_stage=decode, prompt_stage=self.stage_share(0, 0, ((tokens, 0),), 1))
        return own, self.halves[0]._arrays() if self.halves else own

    def _arrays(self) -> Table:
        pooled, exchanged, keyed = (each or _NO_TIMES for each in (self.pooled, self.exchanged, self.keyed))
        saved = self.several or _NO_SAVINGS
        alike = {name: getattr(self, name) for name in Table._fields if name in self.__dataclass_fields__}
        return Table(**alike | {
            "dense": self.shared.dense, "counts": self.shared.counts, "times": self.shared.times,
            "pooled_dense": pooled.dense, "pooled_counts": pooled.counts, "pooled_times": pooled.times,
            "floor": list(self.floor), "graph_floor": list(self.graph_floor),
            "exchanged_dense": exchanged.dense, "exchanged_counts": exchanged.counts,
            "exchanged_times": exchanged.times, "halved": bool(self.halves),
            "undivided_alone": self.undivided[0], "undivided": self.undivided[1],
            "keyed_dense": keyed.dense, "keyed_counts": keyed.counts, "keyed_times": keyed.times,
            "saved_counts": saved.counts, "saved_grid": saved.grid, "saved_cells": saved.cells,
            "saved_times": saved.times, "drafting": [],
        })  # fmt: skip


def build_table(plan: Plan, max_batch: int, max_context: int, width: int = 1, budget: int = 0) -> StepTable:
    """Tabulate a plan for up to `max_batch` decoding sequences of `width` tokens and contexts up to `max_context`.

    The sequences are those of one attention replica, and of one of its `Plan.lanes`.
    `budget`: tokens of a step of one attention replica at most, where they are told.

    Raises WorkloadError for sizes below 1.
    """
    if min(max_batch, max_context, width) < 1:
        raise WorkloadError(f"a step table needs sizes of at least 1, not {max_batch}, {max_context} and {width}")
    graph_tokens = plan.graph_tokens
    size = max_batch, max_context, width, max(budget, int(plan.token_budget))
    plan = one_step(plan)
    table = replace(_built(plan, *size), budget=budget, graph_tokens=graph_tokens, plan=plan)
    if plan.lanes == 1:
        return table
    costs = replace(plan.costs.free, padded=plan.costs.padded)
    bare = replace(plan, engine=replace(plan.engine, costs=costs)).stages
    stages = [replace(_built(stage, *size), budget=budget) for stage, _ in bare]
    return replace(table, lanes=plan.lanes, stages=stages, stage_counts=[count for _, count in bare])


def one_step(plan: Plan) -> Plan:
    """A plan whose settings are those that the time of a step depends on: it is one pass, whatever the engine allows.

    The scores of a sparse index alone depend on how many tokens a step has at most.
    """
    settings, indexed = plan.deployment.settings, any(isinstance(each, IndexScores) for each in plan.operations)
    kept = EngineSettings(eager=settings.eager, token_budget=int(plan.token_budget) if indexed else ONE_PASS)
    return replace(plan, deployment=replace(plan.deployment, settings=kept))


def with_halves(table: StepTable, plan: Plan) -> StepTable:
    """The table of undivided steps with that of steps whose halves take turns."""
    halves = _tabulated(_Halves(one_step(plan), table.width, table.grid), *table.size)
    return replace(table, halves=[halves], undivided=UNDIVIDED)


def _built(plan: Plan, *size: int) -> StepTable:
    _, max_context, width, _ = size
    whole = _tabulated(_Parts(plan, width, _contexts(plan, max_context + width)), *size)
    return with_halves(whole, plan) if plan.deployment.two_batch else whole


def context_edges(plan: Plan) -> list[tuple[int, int | None]]:
    """Lengths at whose multiples the time of attention has a step, and up to which length (None: to the last).

    Chunked attention starts anew; latent attention computes prompts in tiles of queries, the first few of which show.
    """
    latent = any(isinstance(layer.mixer, LatentAttention) for layer in plan.model.layer_counts)
    chunks = {size for layer in plan.model.layer_counts if (size := getattr(layer.mixer, "chunk", None))}
    return [*((size, None) for size in sorted(chunks)), *([(_QUERIES, _TILED)] if latent else [])]


def _contexts(plan: Plan, most: int, ratio: float = _RATIO, fine: float = _FINE) -> list[float]:
    """The grid of contexts; the last length before a step and the next one stand in it."""
    grid = {0.0, *_grid(float(most), ratio=ratio, fine=fine)}
    for size, last in context_edges(plan):
        grid.update(float(end + after) for end in range(size, min(last or most, most), size) for after in (0, 1))
    return sorted(grid)


def _tabulated(parts: _Parts, max_batch: int, max_context: int, width: int, budget: int) -> StepTable:
    plan, grid = parts.plan, parts.grid
    tokens = max_batch * width + max(max_context, budget)
    shared = _by_tokens(parts.shared, tokens)
    floor, graph_floor, per_sequence = parts.floor()
    phases = parts.phases(max_context)
    alone, alone_floor = parts.alone(2 * max_batch) if parts.switching else ([], [])
    return StepTable(
        shared=shared,
        pooled=_by_tokens(parts.pooled, tokens * plan.deployment.dp) if parts.joint.operations else None,
        sampled=parts.sampled(2 * max_batch * width),
        sequences=parts.sequences(2 * max_batch, shared),
        grid=grid,
        cells=_cells(grid),
        decode=Rows(phases.decode, range(1, max_batch + 1), partial(phases.decodes, max_batch)),
        prefill=Rows(phases.cell, range(len(grid) - 1), lambda: phases.planes),
        launch=phases.launch,
        width=width,
        size=(max_batch, max_context, width, budget),
        replicas=plan.deployment.dp,
        floor=floor,
        graph_floor=graph_floor,
        sequence_floor=per_sequence,
        graphs=plan.costs.graphs and not plan.deployment.settings.eager,
        encoded=parts.encoded(2 * max_batch),
        encoded_floor=parts.encoded_floor(),
        alone=alone,
        alone_floor=alone_floor,
        exchanged=parts.exchanged(tokens),
        summed=not parts.by_keys.operations and plan.deployment.cp == 1,
        keyed=_by_tokens(parts.keyed, max_batch * max_context) if parts.by_keys.operations else None,
        seen=parts.seen,
        unsampled=parts.unsampled(),
        tiled=plan.tile_rows * phases.pair if plan.tile_rows else 0.0,
        ranks=plan.deployment.cp,
        parts=int(parts.times),
        several=parts.several(max_batch, phases),
    )


class _Parts:
    """A plan in the parts whose times add up: by phase, by sampled rows, and all the rest with the engine's costs.

    times: how often every kernel runs, each time over as small a part of the step. seen: of a prompt's new tokens, the
    share that each time sees.
    """

    times, seen = 1.0, 1.0

    def __init__(self, plan: Plan, width: int, grid: list[float]) -> None:
        costs, self.grid = plan.costs, grid
        if plan.calibration is not None:
            plan = replace(plan, calibration=plan.calibration.without_intervals)
        if plan.deployment.two_batch:
            plan = replace(plan, deployment=replace(plan.deployment, two_batch=False))
        bare = replace(costs.hostless, layer=0.0, launch=0.0)
        self.images: dict[Operation, int] = {
            op: count for op, count in plan.operations.items() if isinstance(op, OfImages)
        }
        plan = replace(plan, operations={op: n for op, n in plan.operations.items() if op not in self.images})
        self.launched = plan
        kinds = _kinds(plan)
        keyed = {op: count for op, count in plan.operations.items() if kinds[op].keyed}
        plan = replace(plan, operations={op: n for op, n in plan.operations.items() if op not in keyed})
        phased = {op: count for op, count in plan.operations.items() if kinds[op].phased}
        sampling = {op: count for op, count in plan.operations.items() if kinds[op].sampled}
        self.plan, self.width = plan, width
        hosted, alone = (replace(plan.engine, costs=each) for each in (replace(costs, launch=0.0), bare))
        others = {op: count for op, count in plan.operations.items() if op not in phased}
        joint = {op: count for op, count in others.items() if kinds[op].joint}
        rest = {op: count for op, count in others.items() if op not in joint and op not in sampling}
        self.whole = replace(plan, engine=hosted)
        self.others = replace(self.whole, operations=others)
        self.rest = replace(self.whole, operations=rest)
        self.joint = replace(plan, operations=joint, engine=alone)
        self.by_phase = replace(plan, operations=phased, engine=alone)
        self.by_rows = replace(plan, operations=sampling, engine=alone)
        self.by_keys = replace(plan, operations=keyed, engine=alone)
        self.switching = plan.deployment.cp > 1 or any(kinds[op].switched for op in rest | sampling | phased)

    def time(self, plan: Plan, batch: Batch) -> Array:
        """Time of some of the operations, as an array of the batch's shape [s]."""
        return _shaped(plan.time(batch).expected, batch)

    def shared(self, tokens: list[float]) -> list[float]:
        """Times of these numbers of tokens, with one sequence."""
        one = Batch(prefilling=Sequences(1.0, _array(tokens), 0.0, 1.0))
        times: list[float] = self.time(self.rest, one).tolist()
        return times

    def pooled(self, tokens: list[float]) -> list[float]:
        """Times of joint work of attention replicas, for these numbers of tokens on all of them."""
        one = Batch(prefilling=Sequences(1.0, _array(tokens) / self.plan.deployment.dp, 0.0, 1.0))
        times: list[float] = self.time(self.joint, one).tolist()
        return times

    def keyed(self, keys: list[float]) -> list[float]:
        """Times of work on the keys of all prompts, for these numbers of keys."""
        one = Batch(prefilling=Sequences(1.0, _array(keys) / self.seen))
        times: list[float] = self.time(self.by_keys, one).tolist()
        return times

    def sampled(self, most: int) -> list[float]:
        """Times of 0, 1, … sampled rows."""
        rows = _array([float(row) for row in range(1, most + 1)])
        batch = Batch.prefill(rows, 1.0) if self.switching else Batch.decode(rows, 1.0)
        return [0.0, *self.time(self.by_rows, batch).tolist()]

    def sequences(self, most: int, shared: TimesByTokens) -> list[float]:
        """Times of 0, 1, … sequences beyond that: state, and the engine's work for each."""
        counts = _array([float(count) for count in range(1, most + 1)])
        decoding = Batch.decode(counts, 1024.0 + self.width, float(self.width))
        beside = _SHORT if self.switching else 0
        each = self.time(self.rest, decoding | Batch.prefill(1.0, float(beside)) if beside else decoding)
        unit = int(self.times) * self.plan.deployment.cp
        sizes = [unit * (-(-count // unit) * self.width + -(-beside // unit)) for count in range(1, most + 1)]
        known = [shared(size if unit > 1 and beside else n * self.width + beside) for n, size in enumerate(sizes, 1)]
        return [0.0, *([0.0] if beside else []), *(each - _array(known)).tolist()]

    def alone(self, most: int) -> tuple[list[float], list[float]]:
        """Times of all but attention of 0, 1, … sequences that decode alone, and the least time of such a step."""
        counts = _array([float(count) for count in range(1, most + 1)])
        batch = Batch.decode(counts, 1024.0 + self.width, float(self.width))
        return [0.0, *self.time(self.others, batch).tolist()], [0.0, *self.least(batch).tolist()]

    def least(self, decoding: Batch) -> Array:
        """Least time of steps of decodes alone [s]: without CUDA graphs, that of the launches."""
        (_, _, decode), _, each = self.floor()
        eager = not self.plan.costs.graphs or self.plan.deployment.settings.eager
        return _shaped(decode + each * decoding.sequences if eager else 0.0, decoding)

    def exchanged(self, most: int) -> TimesByTokens | None:
        """Least time of a step with prompts, by tokens, where exchanges hide."""
        return None

    def encoded(self, most: int) -> list[float]:
        """Times of the images of 0, 1, … prompts; empty where there are none."""
        if not self.images:
            return []
        counts = _array([float(count) for count in range(1, most + 1)])
        tower = replace(self.by_phase, operations=self.images)
        return [0.0, *self.time(tower, Batch.prefill(counts, 1.0)).tolist()]

    def encoded_floor(self) -> float:
        """Host time of the tower's launches in a step in which prompts end [s]."""
        kernels = replace(self.plan, operations=self.images).kernels(Batch.prefill(1.0, 8.0))
        return self.times * sum(kernel.count for kernel in kernels) * self.plan.costs.launch * self.plan.costs.prompt

    def phases(self, longest: int) -> Phases:
        """Times of what runs by phase, which tables share, for requests of up to so many tokens."""
        coarse = _contexts(self.plan, longest, _COARSE, _FINE / 2)
        time = partial(self.time, self.by_phase)
        return kept_phases(self.by_phase, self.width, (self.grid, coarse), time, self.times > 1.0)

    def several(self, most: int, phases: Phases) -> Savings | None:
        """Savings of several chunks, where they exceed the launch of a chunk without work."""
        new, past = map(_array, EIGHT)
        whole, several = self.time(self.whole, Batch(prefilling=Sequences(8.0, new, past))), phases.several
        if (abs(several.saved_by_eight - phases.launch) * 7.0 < _SAME * whole).all():
            return None
        counts, grid = _CHUNKS[: bisect_left(_CHUNKS, max(most, 4)) + 1], list(several.grid)

        def plane(place: int) -> dict[int, list[list[float]]]:
            return {place: several.saved(counts[place]).tolist()}

        return Savings(counts, grid, _cells(grid), Rows(plane, range(len(counts)), partial(several.saved_by, counts)))

    def floor(self) -> tuple[tuple[float, float, float], tuple[float, float], float]:
        """Host time of a step of prompts, mixed, and of decoding sequences; with graphs; and of each sequence [s]."""
        costs = self.plan.costs
        prompt, token = Batch.prefill(1.0, 8.0), Batch.decode(1.0, 8.0)
        once, full = (self._host(n) for n in (0.0, 1.0))
        longer, each = self.times * costs.launch * costs.prompt, self.times * costs.launch
        kinds = ((prompt, longer), (prompt | token, longer), (token, each))
        kernels = self.launched.kernels
        alone, mixed, decode = (once + launches_of(kernels(batch), costs) * each for batch, each in kinds)
        small, beside = (once + launches_of(kernels(batch), costs, True) * each for batch, each in kinds[:2])
        return (alone, mixed, decode), (small, beside), full - once

    def unsampled(self) -> float:
        """Host time of the launches that sample [s]; those between CUDA graphs are none of them."""
        longer = self.times * self.plan.costs.launch * self.plan.costs.prompt
        return launches_of(self.by_rows.kernels(Batch.prefill(1.0, 8.0)), self.plan.costs) * longer

    def _host(self, sequences: float) -> float:
        """Time that the engine adds to a step of so many sequences [s]."""
        one = replace(self.plan.iteration(Batch.decode(1.0, 8.0)), sequences=sequences)
        return float(sum(host_times(self.plan.costs, one), 0.0))


class _Halves(_Parts):
    """Parts of steps whose halves take turns: twice a half without its exchanges, which are a floor.

    While kernels that move data hold cores, the other half computes at what is left: t_c + s·t_x, and t_x at least
    (`rooflinekit.model.timing.overlap`).
    """

    times, seen = 2.0, 0.75  # the mean of both halves: the second sees the first

    def time(self, plan: Plan, batch: Batch) -> Array:
        """Time of some of the operations, and the share of their exchanges that slows others [s]."""
        computing, moving, movers = self._spent(plan, batch)
        host = sum(host_times(plan.costs, plan.iteration(batch)), 0.0)
        slowed = movers / float(plan.system.accelerator.cores) * moving
        return _shaped(self.times * (computing + slowed) + host, batch)

    def least(self, decoding: Batch) -> Array:
        """Least time of steps of decodes alone [s]: that of the exchanges too."""
        _, moving, _ = self._spent(self.whole, decoding)
        _, _, each = self.floor()
        moved = self._host(0.0) + each * decoding.sequences + self.times * moving
        return np.maximum(super().least(decoding), moved)

    def exchanged(self, most: int) -> TimesByTokens | None:
        """Least time of a step with prompts, by tokens, without what each sequence adds."""

        def moved(tokens: list[float]) -> list[float]:
            one = Batch(prefilling=Sequences(1.0, _array(tokens), 0.0, 1.0))
            times: list[float] = (self._host(0.0) + self.times * self._spent(self.whole, one)[1]).tolist()
            return times

        return _by_tokens(moved, most)

    def _spent(self, plan: Plan, batch: Batch) -> tuple[Array, Array, float]:
        """Times of a half [s]: all kernels but exchanges, and the exchanges; and the cores that these hold."""
        timed = plan.apart(batch.half, plan.costs)
        moving = [each for each in timed if each.kernel.family == "exchange"]
        movers = max((float(each.kernel.shaped(ExchangeShape).movers) for each in moving), default=0.0)
        others = [each for each in timed if each.kernel.family != "exchange"]
        computing, moved = (_shaped(sum((each.expected for each in part), 0.0), batch) for part in (others, moving))
        return computing, moved, movers


def _cells(grid: list[float]) -> list[int]:
    """The place in a grid of every whole number below its end."""
    return [at for at, (low, high) in enumerate(pairwise(grid)) for _ in range(int(high - low))]


def _by_tokens(times: Callable[[list[float]], list[float]], most: int) -> TimesByTokens:
    """Times of 0, 1, … tokens, and up to `most` on a grid.

    They are worked out one by one up to `_EACH`, and beyond where a product has one tile of rows more, on both sides.
    """
    last = min(most, _DENSE)
    beyond = {tokens for end in range(_EACH, last, _TILE) for tokens in (end, end + 1)}
    known = [float(tokens) for tokens in sorted({*range(1, min(last, _EACH) + 1), *beyond, last})]
    counts = _grid(most + 1.0, float(last))
    found = times(known + counts)
    dense = np.interp(np.arange(1.0, last + 1.0), known, found[: len(known)]).tolist()
    return TimesByTokens([0.0, *dense], counts, found[len(known) :])


def _array(values: list[Any]) -> Array:
    return np.array(values)


def _shaped(time: Numeric, batch: Batch) -> Array:
    """Time as an array of the batch's shape, also where no kernel is left."""
    shape = np.broadcast_shapes(*(np.shape(n) for phase in batch.phases for n in (phase.count, phase.new, phase.past)))
    return np.broadcast_to(np.asarray(time, float), shape)


def _grid(last: float, first: float = 1.0, ratio: float = _RATIO, fine: float = _FINE) -> list[float]:
    """Whole numbers from `first`, then numbers of equal ratio, up to and including the last one (at least two)."""
    points = [first]
    while points[-1] < last:
        points.append(float(int(max(points[-1] + 1.0, points[-1] * ratio if points[-1] > fine else 0.0))))
    points[-1] = max(last, points[-1])
    return points if len(points) > 1 else [first, first + 1.0]


class _Kind(NamedTuple):
    """How an operation shows in its launches.

    keyed: it works on the keys of all prompts together, new and old alike, and on nothing of other sequences. phased:
    it runs by phase; sampled: on sampled rows only; joint: on the tokens of all replicas; at most one of these four is
    true. switched: an exchange that prompts change, so that the same tokens take another launch without them.
    """

    keyed: bool = False
    phased: bool = False
    sampled: bool = False
    joint: bool = False
    switched: bool = False


def _kinds(plan: Plan) -> dict[Operation, _Kind]:
    """The kind of every operation; kept by what launches depend on but for the operation."""
    key = plan.deployment, plan.precision, plan.engine.costs, plan.token_budget
    known = _sorted.pop(key, {})
    _sorted[key] = known
    if len(_sorted) > _KEPT:
        del _sorted[next(iter(_sorted))]
    for op in plan.operations:
        if op not in known:
            known[op] = _kind(plan, op)
    return known


_sorted: dict[Hashable, dict[Operation, _Kind]] = {}
_KEPT = 64  # deployments


def _kind(plan: Plan, op: Operation) -> _Kind:
    launches = partial(_launches, plan, op)
    prompt, token, same = Sequences(1.0, 8.0, 8.0, 1.0), Sequences(2.0, 1.0, 8.0, 1.0), Sequences(8.0, 1.0, 8.0, 1.0)
    switched = isinstance(op, Exchange) and launches(Batch(same)) != launches(Batch(None, same))
    if _by_keys(launches):
        return _Kind(keyed=True, switched=switched)
    alone = launches(Batch(prompt))
    if len({len(alone), len(launches(Batch(None, token))), len(launches(Batch(prompt, token)))}) > 1:
        return _Kind(phased=True, switched=switched)
    if alone == launches(Batch(replace(prompt, new=16.0))) and alone != launches(Batch(replace(prompt, sampled=2.0))):
        return _Kind(sampled=True, switched=switched)
    joint = plan.deployment.dp > 1 and alone != launches(Batch(prompt, filled=0.5))
    return _Kind(joint=joint, switched=switched)


def _launches(plan: Plan, op: Operation, batch: Batch) -> list[Kernel]:
    return replace(plan, operations={op: 1}).kernels(batch)


def _by_keys(launches: Callable[[Batch], list[Kernel]]) -> bool:
    if launches(Batch(None, Sequences(1.0, 1.0, 8.0))):
        return False
    alike = Sequences(1.0, 8.0, 60_000.0), Sequences(1.0, 30_008.0, 30_000.0), Sequences(2.0, 4.0, 30_000.0)
    first, *others = (launches(Batch(prompts)) for prompts in alike)
    fewer = launches(Batch(Sequences(1.0, 8.0, 50_000.0)))
    return first != fewer and all(other == first for other in others)


def constant_table(seconds: float) -> StepTable:
    """A table of steps that all take the same time [s], for experiments and tests.

    >>> constant_table(0.5).step(3, 100, [(8, 0)], 1)
    0.5
    """
    flat, grid = [0.0] * 4096, [0.0, float(1 << 40)]
    return StepTable(
        shared=TimesByTokens([seconds], [1.0, 2.0], [seconds, seconds]),
        pooled=None,
        sampled=flat,
        sequences=flat,
        grid=grid,
        cells=[0],
        decode=Rows(lambda number: {number: [0.0, 0.0]}, range(1, 4096)),
        prefill=Rows(lambda number: {number: [[0.0] * 4]}, range(1)),
        launch=0.0,
    )
