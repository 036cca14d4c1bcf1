"""The simulator put together: a deployment, requests and a scheduler in, an `Outcome` out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from os import PathLike
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, Unpack

from rooflinekit.estimation.doubts import load_doubts
from rooflinekit.estimation.estimator import Resolved, bounds, ends, image_inputs, read_deployment, resolve
from rooflinekit.estimation.loaded import FEWER, version_notes
from rooflinekit.estimation.notes import room_for_one
from rooflinekit.estimation.options import Keywords, OwnKeywords, keywords, number_of, options_of, part_of, read
from rooflinekit.estimation.results import about
from rooflinekit.estimation.scenario import DEPLOYMENT_KEYS, SPECULATION_KEYS, WORKLOAD_KEYS, SimulationOptions
from rooflinekit.load import arrivals as processes
from rooflinekit.load.answer import FILLING, STEADY, AskedLoad, LoadPlay, scene_for, usual_requests
from rooflinekit.load.arrivals import Arrival, Burst, ClosedLoop, Drawn, Gamma, Requests, generate
from rooflinekit.load.lengths import Fixed, Length, longer, parse_length, spread_length
from rooflinekit.load.policies import ROUTERS as LOOPED
from rooflinekit.load.policies import Limits, policy_name
from rooflinekit.load.scene import (
    Scheduler,
    drafted_steps,
    drafting_of,
    front_end_of,
    kv_capacity_tokens,
    limits_of,
    scene_of,
    steps_of,
)
from rooflinekit.load.table import Clock
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.serving.encoding import served
from rooflinekit.model.speculation import SpeculativePredictor
from rooflinekit.model.step import Plan
from rooflinekit.model.types.batch import whole_number
from rooflinekit.model.types.errors import InputError, WorkloadError
from rooflinekit.model.types.speculation import Speculation
from rooflinekit.model.types.units import GB, GIB
from rooflinekit.simulation.cells import KeptCells, cell_seed, dealt, played, share
from rooflinekit.simulation.decoding import Lockstep, Speculative
from rooflinekit.simulation.event_loop import Link, ReplicaFleet, Simulation, Watch
from rooflinekit.simulation.kv_blocks import BlockPool, PrefixPool
from rooflinekit.simulation.ledger import Ledger, RequestObjective
from rooflinekit.simulation.outcome import Books, Outcome, summarise
from rooflinekit.simulation.playing import ledger_of, parts_of, pieces_of, play_scene, samples_of, uses_of, works_of
from rooflinekit.simulation.replica import HostTier, ObjectReplica
from rooflinekit.simulation.requests import Job, Source
from rooflinekit.simulation.sessions import BLOCK, SessionSource, parse_sessions, session_trace
from rooflinekit.simulation.tiers import CacheTier, Store, overrun, read_tiers
from rooflinekit.simulation.traces import Trace, load_trace
from rooflinekit.simulation.watch import Batches, Timeline, both
from rooflinekit.specs.engines import caches_prefixes
from rooflinekit.version import __version__

_LONGEST = 1 << 20  # tokens of the longest sequence of a session, where nothing says less

_AT_ONCE = 1_000_000  # requests that one machine holds in its memory
_IN_ARRAYS = 1_000_000  # requests that the loop plays; more are played by objects, in memory that does not grow
_TOGETHER = 10_000  # replicas that one router knows
_IN_STEP = (
    "equal lengths keep users in step, so that prompts come together; with lengths that vary (osl=uniform:200-300) "
    "users drift apart"
)

_PREFIX_TOKENS = 16  # granularity of a synthetic shared prefix


@dataclass(frozen=True)
class Setup(Scheduler):
    """A scheduler with caches, pools and parts of a fleet."""

    swap: bool = False
    prefix_cache: bool = False
    hash_tokens: int | None = None  #: prompt tokens that one hash of an arrival stands for; None: one block
    host_gib: float = 0.0  #: host memory for cache blocks, for each replica [GiB]
    tiers: tuple[CacheTier, ...] = ()  #: memory behind the accelerators' for prefixes, nearest first
    prefill_replicas: int = 0
    link_gb_s: float | None = None  #: from a prefill to a decode replica [GB/s]; None: the accelerators' NICs
    link_ms: float = 0.0  #: latency of a transfer [ms]
    staging: int = 64  #: prompts that are computed or wait on one prefill replica at most
    cells: int = 1  #: parts of the fleet among which requests are dealt at random; the router knows one of them

    def of_cell(self, number: int) -> Setup:
        """The setup of one cell."""
        cells = self.cells
        for name, count in (("replicas", self.replicas), ("prefill_replicas", self.prefill_replicas)):
            if count % cells:
                raise WorkloadError(f"{name}={count:,} cannot be divided evenly among {cells:,} cells")
        if any(tier.shared for tier in self.tiers):
            raise WorkloadError("cells cannot share a cache tier; leave shared or cells out")
        replicas, prefills, seed = self.replicas // cells, self.prefill_replicas // cells, cell_seed(self.seed, number)
        return replace(self, replicas=replicas, prefill_replicas=prefills, seed=seed, cells=1)


@dataclass(frozen=True)
class Load:
    """Requests of a run: their arrivals, and whether users wait for their answers.

    typical, longest: mean and largest isl + osl, for the size of tables and of the cache; prompt: the mean isl, which a
    draft reads. duration: the run ends then
    whatever is left [s].
    """

    arrivals: Iterator[Arrival]
    typical: float
    longest: int
    users: int | None = None
    warmup: int = 0
    duration: float = math.inf
    objective: RequestObjective = field(default_factory=RequestObjective)
    sessions: SessionSource | None = None  #: in place of arrivals and users
    before: Iterable[tuple[int, Sequence[int]]] = ()  #: blocks of former requests by conversation, the latest last
    count: int = 0  #: of requests, where it is known
    prompts: int = 0  #: different ones, which are sent again and again (0: no two are equal)
    cached: float = 0.0  #: mean tokens of a prompt that are in the cache already, the same share of each
    lengths: tuple[Length, Length] | None = None  #: of prompts and answers; None: those of the arrivals
    prompt: float = 1.0
    blocks: bool = False  #: whether prompts are known by their blocks
    keep: Callable[[Job, float, str], None] | None = None  #: sees every request as it ends: when, and how


class _Seen(NamedTuple):
    """Watchers of a run: its timeline, who sees every step, and who is told how many requests have ended."""

    timeline: Timeline | None = None
    watch: Watch | None = None
    ended: Callable[[int], None] | None = None


def serve(resolved: Resolved, load: Load, setup: Setup | None = None, prefill: Resolved | None = None) -> Outcome:
    """Serve a load on replicas of a deployment.

    Args:
        resolved: a deployment, as `rooflinekit.estimation.estimator.resolve` returns it.
        load: requests, and how long to go on.
        setup: scheduler, replicas, caches.
        prefill: the deployment of the prefill replicas, if it is another one; of the same model and cache format.

    Raises:
        InputError: (and its kinds) for settings that make no sense; DoesNotFitError if the cache holds no request.

    >>> from rooflinekit.estimation.estimator import resolve
    >>> from rooflinekit.model.types.deployment import Deployment
    >>> deployment = resolve("llama-3-8b", "h100-sxm", Deployment(), "none")
    >>> load = Load(iter([Arrival(0.0, 1024, 128)] * 64), typical=1152, longest=1152, users=16)
    >>> outcome = serve(deployment, load)
    >>> outcome.requests.finished, outcome.requests.cut
    (64, 0)
    """
    timeline = Timeline()
    books, more = _served(resolved, load, setup or Setup(), _Seen(timeline), prefill or resolved)
    return _answered(books, more, timeline)


def watched(resolved: Resolved, load: Load, setup: Setup, prefill: Resolved, batches: Batches) -> bool:
    """Serve for what `batches` and the load's `keep` see alone; whether the run ended by itself. Raises as `serve`."""
    return not _run(resolved, load, setup, None, prefill, batches).interrupted


def _answered(books: Books, more: dict[str, Any], timeline: Timeline) -> Outcome:
    return summarise(books, **more | {"warnings": (*more["warnings"], *_notes(books))}, timeline=timeline.rows())


def _run(  # noqa: PLR0913, PLR0917 - as `serve`
    resolved: Resolved, load: Load, setup: Setup, watch: Watch | None, prefill: Resolved, batches: Batches
) -> Simulation:
    ledger = Ledger(load.objective, load.keep)
    fleet = fleet_of(resolved.predictor, prefill.predictor, load, setup, ledger)
    source = load.sessions or Source(load.arrivals, load.users, load.warmup)
    for conversation, hashes in (*load.before, *(load.sessions.before() if load.sessions else ())):
        pool = fleet.all[conversation % len(fleet.prefills or fleet.replicas)].pool
        if isinstance(pool, PrefixPool):
            pool.seed(hashes)
    run = Simulation(fleet, source, ledger, load.duration, both(batches, watch))
    run.run()
    batches.end()
    return run


def _served(
    resolved: Resolved, load: Load, setup: Setup, seen: _Seen, prefill: Resolved
) -> tuple[Books, dict[str, Any]]:
    """The books of a run, and the other fields of an `Outcome`."""
    timeline, watch, ended = seen
    if watch is None and prefill is resolved and _loop_plays(load, setup):
        drawn = list(load.arrivals)
        if all(each.samples == 1 for each in drawn):
            return _by_loop(resolved, load, setup, Drawn.read(drawn), seen)
        load = replace(load, arrivals=iter(drawn))
    if ended is not None:
        watch = both(watch, lambda index, replica, now: ended(replica.ledger.finished))
    return _by_objects(resolved, load, setup, both(timeline, watch), prefill)


def _loop_plays(load: Load, setup: Setup) -> bool:
    """True if the loop plays it: no blocks with content, no other memory, no pools, no end but that of the requests."""
    objects = load.sessions or load.keep or load.before or load.duration < math.inf or load.count > _IN_ARRAYS
    return not (objects or setup.swap or setup.prefix_cache or setup.prefill_replicas or setup.router not in LOOPED)


def _by_loop(resolved: Resolved, load: Load, setup: Setup, drawn: Drawn, seen: _Seen) -> tuple[Books, dict[str, Any]]:
    predictor = resolved.predictor
    lengths, counted = load.lengths or _means(drawn), len(drawn.isl) - (load.warmup if load.users else 0)
    asked = AskedLoad(*lengths, load.users, requests=counted, warmup=load.warmup, source=lambda *_: drawn)
    asked = replace(asked, prompts=load.prompts, cached=load.cached)
    scene = scene_of(predictor, setup, load.typical, load.longest, asked.isl.mean)
    clients = scene.clients(drawn, load.users, load.warmup, asked.cached / asked.isl.mean, load.prompts)
    played, gaps, interrupted = play_scene(scene, clients, seen.timeline, seen.ended)
    found = LoadPlay(predictor, asked, scene, played, math.nan, setup)
    works = works_of(played)
    ledger = ledger_of(played, gaps, load.objective)
    books = Books.of(
        ([predictor] * setup.replicas, works),
        ledger,
        played.now,
        played.growth,
        joules=None if found.power is None else float(found.power.joules_per_output_token * found.run.tokens),
        tokens=int(found.run.tokens),
        uses=uses_of(played, works, scene.front.encoders),
        pieces=pieces_of(played),
        interrupted=interrupted,
        served=played.served if played.counted.any() else None,
        exact=samples_of(played),
        parts=parts_of(found),
        others_spans=found.played.others_spans,
    )
    return books, _said(resolved, setup, scene.limits, scene.block, scene.blocks, ()) | _ends(found)


def _ends(found: LoadPlay) -> dict[str, Any]:
    """Bounds and ends of both means, as `estimate` has them; at the bound no ends."""
    if not found.played.counted.any():
        return {}
    wide, near = (found.times(within)[:2] for within in (0.9, 0.8))
    told: OwnKeywords = {"bound": bounds(wide)}
    if found.predictor.plan.calibration is None:
        return told
    return told | {"interval": ends(wide), "interval80": ends(near), "doubt": load_doubts(found, found.reaches)}


def _means(drawn: Drawn) -> tuple[Length, Length]:
    """Mean lengths in whole tokens."""
    return Fixed(max(round(fmean(drawn.isl)), 1)), Fixed(max(round(fmean(drawn.osl)), 1))


def _by_objects(
    resolved: Resolved, load: Load, setup: Setup, watch: Watch | None, prefill: Resolved
) -> tuple[Books, dict[str, Any]]:
    settings = resolved.plan.deployment.settings
    told = {"cached": load.cached, "seed_reuse": load.prompts}
    told |= {"scheduler_recv_interval": settings.scheduler_recv_interval > 1, "batch_wait": settings.batch_wait}
    if alone := next((name for name, value in told.items() if value), None):
        others = "pools, prefix blocks, cache tiers, samples, sessions or a duration"
        raise InputError(f"{alone} is not known with {others}")
    batches = Batches()
    run = _run(resolved, load, setup, watch, prefill, batches)
    fleet = run.fleet
    predictors = [prefill.predictor] * len(fleet.prefills) + [resolved.predictor] * setup.replicas
    books = Books.of_run(run, predictors, batches)
    stores = {id(store): store for replica in fleet.all for store in getattr(replica.pool, "tiers", ())}
    notes = dict.fromkeys(overrun(list(stores.values()), run.now))
    if load.sessions is not None and (left := load.sessions.gave_up):
        patience, turns = load.sessions.law.patience, load.sessions.unasked
        notes[f"a patience of {patience:g} s in the mean ended {left:,} sessions early, {turns:,} turns before"] = None
    pool = fleet.replicas[0].pool
    return books, _said(resolved, setup, fleet.replicas[0].limits, pool.size, pool.total, tuple(notes))


def _said(  # noqa: PLR0913, PLR0917 - the scheduler and the cache of a run
    resolved: Resolved, setup: Setup, limits: Limits, block: int, blocks: int, notes: tuple[str, ...]
) -> dict[str, Any]:
    """Fields of an `Outcome` besides its books."""
    warnings = (*resolved.warnings, *version_notes(resolved.plan), *notes)
    if setup.swap and not setup.host_gib:
        warnings += ("swap has no host memory: preempted requests were computed again; host_gib gives it some",)
    if resolved.plan.lanes > 1:
        warnings += ("stages are played one after the other; `estimate` has what microbatches bring",)
    inputs = _inputs(resolved.plan, setup, limits) | {"block_size": block, "kv_tokens": blocks * block, "draft": None}
    if isinstance(resolved.predictor, SpeculativePredictor):
        choice = resolved.predictor.draft.choice
        inputs |= {key: getattr(choice, key) for key in ("draft", "draft_tokens")}
        inputs["acceptance"] = list(choice.acceptance)
    return {**about(resolved.plan), "inputs": inputs, "warnings": warnings}


def fleet_of(predictor: Predictor, first: Predictor, load: Load, setup: Setup, ledger: Ledger) -> ReplicaFleet:
    """Lay out the replicas; those of one deployment share one step table. `first` is that of the prefill replicas."""
    predictor, first = served(predictor), served(first)
    limits = _limits(predictor, setup, load.longest)
    draft = drafting_of(predictor, setup, limits.max_num_seqs, load.prompt, load.typical - load.prompt)
    clock = drafted_steps(steps_of(predictor, limits, load.longest, draft.verified + 1), draft)
    alike = first.plan is predictor.plan and not draft.tokens
    prompts = clock if alike else steps_of(first, _limits(first, setup, load.longest), load.longest)

    front = front_end_of(predictor, setup.replicas)
    if front.encoders and setup.prefill_replicas:
        raise WorkloadError("encoder_gpus beside prefill_replicas is not known; leave one of them out")
    shared: dict[str, Store] = {}

    def replica(number: int, own: Predictor, clock: Clock) -> ObjectReplica:
        limits = _limits(own, setup, load.longest)
        tokens = setup.kv_tokens or kv_capacity_tokens(own, load.typical, limits.max_num_seqs)
        pool = _pool(own, setup, tokens, shared)
        decoding = Speculative(pool, draft, setup.seed) if draft.tokens else Lockstep(pool)
        return ObjectReplica(limits, clock, decoding, ledger, _host(own, setup))

    replicas = [replica(number, predictor, clock) for number in range(setup.replicas)]
    prefills = [replica(setup.replicas + number, first, prompts) for number in range(setup.prefill_replicas)]
    return ReplicaFleet(replicas, setup.router, prefills, _link(first, setup), front)


def _limits(predictor: Predictor, chosen: Setup, longest: float) -> Limits:
    return replace(limits_of(predictor, chosen, longest), swap=chosen.swap)


def _block(plan: Plan, setup: Setup) -> int:
    """Tokens of a block: as told, or the engine's, made smaller where hashes of prompts are finer."""
    told = setup.block_size or plan.deployment.settings.block_size
    own = int(plan.engine.memory.block)
    return told or (math.gcd(own, setup.hash_tokens) if setup.prefix_cache and setup.hash_tokens else own)


def _pool(predictor: Predictor, setup: Setup, tokens: int, shared: dict[str, Store]) -> BlockPool:
    size = _block(predictor.plan, setup)
    blocks = max(tokens // size, 1)
    if not setup.prefix_cache:
        return BlockPool(blocks, size)
    hashed = setup.hash_tokens or size
    if hashed % size:
        raise WorkloadError(f"a hash stands for {hashed} tokens, which is no multiple of block_size={size}")
    tiers = setup.tiers
    if setup.host_gib:
        tiers = (CacheTier("host", _tier(setup) * GIB, waits=True), *tiers)
    stores = [_store(predictor, tier, hashed, shared) for tier in tiers]
    return PrefixPool(blocks, size, hashed // size, stores)


def _store(predictor: Predictor, tier: CacheTier, hashed: int, shared: dict[str, Store]) -> Store:
    """A tier of one replica, or the one that all share."""
    known = shared.get(tier.name)
    if known is None:
        each = hashed * predictor.memory.kv_bytes_per_token
        known = Store(tier, each, tier.bandwidth or pcie_bandwidth(predictor, f"cache tier {tier.name} without a rate"))
        if tier.shared:
            shared[tier.name] = known
    return known


def pcie_bandwidth(predictor: Predictor, what: str) -> float:
    """The PCIe links of a replica's accelerators, each of which carries its own share of the cache [B/s]."""
    accelerator = predictor.plan.system.accelerator
    if not accelerator.pcie_bandwidth:
        raise WorkloadError(f"{what} needs the PCIe bandwidth of {accelerator.name}, which its file does not give")
    return float(accelerator.pcie_bandwidth) * predictor.plan.deployment.gpus


def _host(predictor: Predictor, setup: Setup) -> HostTier:
    """Host memory for preempted requests."""
    if not setup.host_gib:
        return HostTier()
    block = _block(predictor.plan, setup) * predictor.memory.kv_bytes_per_token
    return HostTier(int(_tier(setup) * GIB / block), block / pcie_bandwidth(predictor, "host_gib"))


def _tier(setup: Setup) -> float:
    """Host memory [GiB] for each of its uses: prefixes and preempted requests divide it."""
    return setup.host_gib / (2 if setup.prefix_cache and setup.swap else 1)


def _link(predictor: Predictor, setup: Setup) -> Link:
    """The link between replicas: a NIC for each accelerator, or its PCIe link where no NIC is known."""
    if not setup.prefill_replicas:
        return Link()
    accelerator, gpus = predictor.plan.system.accelerator, predictor.plan.deployment.gpus
    own = float(accelerator.nic_bandwidth or accelerator.pcie_bandwidth) * gpus
    bandwidth = own if setup.link_gb_s is None else setup.link_gb_s * GB
    if bandwidth <= 0:
        missing = f": the file of {accelerator.name} gives no bandwidth to take instead"
        raise WorkloadError(f"link_gb_s must be above 0{missing if setup.link_gb_s is None else ''}")
    return Link(setup.link_ms / 1e3, predictor.memory.kv_bytes_per_token / bandwidth, setup.staging)


def _inputs(plan: Plan, setup: Setup, limits: Limits) -> dict[str, Any]:
    """Every input of the deployment, the scheduler and the fleet, as it was understood."""
    inputs = {key: getattr(plan.deployment, key) for key in ("tp", "pp", "ep", "dp", "gpus", "encoder_gpus")}
    precision = plan.precision
    inputs |= {"weights": precision.weights_of(plan.model.matrices[-1]).value, "kv": precision.kv.value}
    inputs |= {key: value for key, value in asdict(setup).items() if key != "tiers"} | image_inputs(plan)
    inputs["cache_tier"] = ", ".join(f"{tier.name}={tier.capacity / GB:g}GB" for tier in setup.tiers) or None
    inputs |= {"token_budget": limits.token_budget, "max_num_seqs": limits.max_num_seqs}
    return inputs | {"max_model_len": limits.max_model_len, "policy": policy_name(limits.policy)}


def _notes(books: Books) -> Iterator[str]:
    ledger = books.ledger
    if ledger.finished and not ledger.measured:
        yield f"all {ledger.finished} finished requests were of the warm-up; nothing was measured"
    if ledger.cut:
        reason = "an interrupt" if books.interrupted else "the end of the run"
        yield f"{ledger.cut} of {ledger.arrived} requests were cut by {reason} and are in no statistic of latency"
    for why, count in ledger.refusals.most_common():
        yield f"{count:,} request{'s were' if count > 1 else ' was'} rejected: {why}"
    if books.diverging and not books.diverges:
        yield f"requests pile up in {books.diverging} of {books.runs} cells as long as they come"
    if books.diverges:
        served = "" if books.served is None else f" ({books.served:.4g}/s)"
        grows = f"the queue grows as long as they come ({ledger.arrived:,} here)"
        longer_run = "Waits are those of this run, and longer in a longer one"
        yield f"overload: fewer requests are served than come{served}, so {grows}. {longer_run}"
    elif not books.settled:
        came = f"{ledger.arrived:,} requests came, and the batch still filled"
        no_overload = "None waited longer to begin, so this is no overload yet"
        yield f"too short to judge: {came}. {no_overload}. A longer run (--requests) tells"


@dataclass(frozen=True)
class TrafficQuestion:
    """Requests as a user says them. Of rate, concurrency, arrivals and trace, one is given; a trace may have users.

    rate: Poisson arrivals [1/s], or with `cv` other than 1, gamma ones. arrivals: as `parse_process` reads it. trace:
    file, replayed `speed` times as fast; `clean` drops rows that cannot be trusted. shared_prefix: leading tokens that
    requests have in common, in `prefix_groups` groups. ttft_ms, tpot_ms: the objective.
    """

    rate: float | None = None
    cv: float = 1.0
    concurrency: int | None = None
    arrivals: str | None = None
    trace: Path | None = None
    sessions: str | None = None
    speed: float = 1.0
    clean: bool = False
    isl: str = "1024"
    osl: str = "256"
    cached: int = 0
    requests: int | None = None
    warmup: int | None = None
    duration: float = math.inf
    samples: int = 1
    classes: tuple[float, ...] = ()
    shared_prefix: int = 0
    prefix_groups: int = 1
    ttft_ms: float | None = None
    tpot_ms: float | None = None

    def of_cell(self, number: int, cells: int) -> TrafficQuestion:
        """The requests of one cell: a part of a Poisson stream is one too; rows of a trace are dealt by `dealt`."""
        if self.arrivals is not None or (self.cv != 1.0 and self.rate is not None):
            divided = "cells divide Poisson arrivals, users, sessions and traces"
            raise WorkloadError(f"{divided}; give --rate alone, or leave cells out")
        counts = dict[str, Any]()
        for name in ("requests", "concurrency") if self.trace is None else ():
            if (count := getattr(self, name)) is not None:
                counts[name] = share(count, number, cells, name)
        rate = None if self.rate is None else self.rate / (cells if self.trace is None else 1)  # rows are dealt later
        warmup = self.warmup and self.warmup * (number + 1) // cells - self.warmup * number // cells
        return replace(self, rate=rate, warmup=warmup, **counts)


def make_load(
    question: TrafficQuestion,
    seed: int = 0,
    most: int | None = None,
    images: int = 0,
    steady: Callable[[AskedLoad], AskedLoad] = lambda asked: asked,
) -> tuple[Load, int, tuple[str, ...]]:
    """Arrivals for `simulate`, the tokens that a hash stands for, and notes for the reader.

    most: tokens of the longest sequence that the engine admits; images: tokens that come to each prompt's text; steady:
    the load with as many requests as an open loop needs, where nobody says how many.

    >>> load, _, _ = make_load(TrafficQuestion(rate=2.0, requests=3, isl="64", osl="8"))
    >>> [arrival.isl for arrival in load.arrivals]
    [64, 64, 64]
    """
    given = [key for key in ("arrivals", "trace") if getattr(question, key) is not None]
    given += [key for key in ("rate", "concurrency") if getattr(question, key) is not None and question.trace is None]
    if len(given) != 1:
        what = f"not {' and '.join(given)}" if given else "give one, such as --rate 2"
        raise InputError(f"requests come by one of --rate, --concurrency, --arrivals and --trace; {what}")
    objective = _objective(question)
    users, warmup = question.concurrency, question.warmup or 0
    notes: tuple[str, ...] = ()
    count, lengths, blocks = 0, None, question.shared_prefix >= _PREFIX_TOKENS
    _refuse_cached(question)
    if question.sessions is not None:
        if images:
            raise InputError("images and sessions exclude each other: which turns show images is not known")
        return _sessions(question, seed, most, objective)
    if question.trace is not None:
        trace, lengths = _traced(question, seed)
        trace = replace(trace, isl=[each + images for each in trace.isl]) if images else trace
        arrivals = trace.arrivals(question.speed, question.requests)
        if users is not None:
            arrivals = (arrival._replace(time=0.0) for arrival in arrivals)
        prompt, typical = sum(trace.isl) / len(trace), (sum(trace.isl) + sum(trace.osl)) / len(trace)
        longest = max(isl + osl for isl, osl in zip(trace.isl, trace.osl, strict=True))
        notes, blocks = trace.notes, blocks or len(trace.blocks) > 0
        hash_tokens = trace.block_tokens or _PREFIX_TOKENS
    else:
        process, hash_tokens = _process(question), _PREFIX_TOKENS
        isl, osl = longer(parse_length(question.isl), images), parse_length(question.osl)
        count = question.requests or STEADY
        if isinstance(process, Gamma) and question.requests is None and math.isinf(question.duration):
            told: dict[str, Any] = {"warmup": question.warmup, "cached": float(question.cached)}
            asked = steady(AskedLoad(isl, osl, rate=process.rate, burstiness=process.cv, **told))
            count, warmup = asked.count, asked.filling
        elif question.warmup is None and question.requests is None and math.isinf(question.duration) and users is None:
            warmup = STEADY // FILLING  # of an open loop: while the engine fills
        if isinstance(process, ClosedLoop):
            users, warmup, count = process.users, process.warmup, process.prompts + process.warmup
        elif isinstance(process, Burst) and not process.period_s:
            count = min(question.requests or process.size, process.size)
        at_once = min(process.size if isinstance(process, Burst) else users or 1, count)
        if at_once > _AT_ONCE:
            raise WorkloadError(f"{at_once:,} requests at once are too many to simulate; at most {_AT_ONCE:,}")
        arrivals = generate(process, Requests(isl, osl, question.classes), count, seed)
        lengths = isl, osl
        prompt, typical, longest = isl.mean, isl.mean + osl.mean, int(isl.quantile(1.0) + osl.quantile(1.0))
        notes = tuple(_of_users(users or 0, count - warmup, osl))
    sent = count if question.trace is None else min(len(trace), question.requests or len(trace))
    if users is None and warmup >= sent:
        raise WorkloadError(f"warmup={warmup} leaves none of {sent:,} requests to count; use fewer")
    arrivals = _dressed(arrivals, question)
    load = Load(arrivals, typical, longest, users, warmup, question.duration, objective, count=count, lengths=lengths,
                prompt=prompt, blocks=blocks, cached=float(question.cached))  # fmt: skip
    return load, hash_tokens, notes


def _of_users(users: int, requests: int, osl: Length) -> Iterator[str]:
    """Notes on a closed loop: users without a request, and users in step."""
    crowd = min(users, requests)
    if crowd < users:
        yield FEWER.format(crowd=crowd, users=users)
    if crowd > 1 and osl.quantile(0.0) == osl.quantile(1.0):
        yield _IN_STEP


def _refuse_cached(question: TrafficQuestion) -> None:
    """Raise InputError or WorkloadError where no prompt has so many tokens in the cache."""
    if question.cached and (question.trace is not None or question.sessions is not None):
        raise InputError("cached is about prompts of stated lengths; leave it out with sessions and traces")
    if question.cached >= (isl := parse_length(question.isl).mean):
        raise WorkloadError(f"cached={question.cached} leaves nothing of isl={isl:g} to compute; use less")


def _traced(question: TrafficQuestion, seed: int) -> tuple[Trace, tuple[Length, Length] | None]:
    """The trace with times, unless users wait for their answers; and lengths of --isl and --osl, where it has none."""
    assert question.trace is not None
    trace, lengths = load_trace(question.trace, question.clean), None
    if not trace.sized:
        lengths = parse_length(question.isl), parse_length(question.osl)
        drawn = [*generate(Burst(len(trace)), Requests(*lengths), len(trace), seed)]
        trace = replace(trace, isl=[each.isl for each in drawn], osl=[each.osl for each in drawn], sized=True)
    if question.concurrency is not None and question.rate is not None:
        raise InputError("--concurrency is a closed loop and --rate an open one; give one of them")
    return (trace if question.concurrency else trace.coming(question.rate, question.cv, seed)), lengths


def _objective(question: TrafficQuestion) -> RequestObjective:
    return RequestObjective(*(None if ms is None else ms / 1e3 for ms in (question.ttft_ms, question.tpot_ms)))


def _sessions(
    question: TrafficQuestion, seed: int, most: int | None, objective: RequestObjective
) -> tuple[Load, int, tuple[str, ...]]:
    """Sessions at a rate of requests, or so many at a time; mean lengths are those of a thousand requests."""
    if question.arrivals is not None or question.trace is not None:
        raise InputError("sessions come at a --rate of requests, or --concurrency of them at a time")
    law, users, osl = parse_sessions(question.sessions or ""), question.concurrency, parse_length(question.osl)
    most = min(law.most or _LONGEST, most or _LONGEST)
    count = (question.requests or (usual_requests(users))) + (question.warmup or 0)
    made = partial(SessionSource, law, osl, most, seed=seed)
    seen = session_trace(made(rate=question.rate or 1.0))
    source = made(rate=question.rate, users=users, requests=count, warmup=question.warmup or 0)
    prompts, answers, came = sum(seen.isl[seen.former :]), sum(seen.osl[seen.former :]), len(seen) - seen.former
    load = Load(iter(()), (prompts + answers) / came, most, users, 0, question.duration, objective, source,
                prompt=prompts / came, blocks=True)  # fmt: skip
    return load, BLOCK, law.cut(most, osl.mean)


def _process(question: TrafficQuestion) -> processes.Process:
    if question.arrivals is not None:
        return processes.parse_process(question.arrivals)
    if question.concurrency is not None:
        return ClosedLoop(
            question.concurrency, question.requests or usual_requests(question.concurrency), question.warmup or 0
        )
    return Gamma(float(question.rate or 0.0), question.cv)


def _dressed(arrivals: Iterator[Arrival], question: TrafficQuestion) -> Iterator[Arrival]:
    """Give arrivals their samples and their shared prefix."""
    if question.samples > 1:
        arrivals = (arrival._replace(samples=question.samples) for arrival in arrivals)
    blocks = question.shared_prefix // _PREFIX_TOKENS
    if not blocks:
        return arrivals
    groups = [tuple(range(group * blocks, (group + 1) * blocks)) for group in range(question.prefix_groups)]
    return (
        arrival._replace(hashes=groups[number % question.prefix_groups][: arrival.isl // _PREFIX_TOKENS])
        for number, arrival in enumerate(arrivals)
    )


_QUESTION, _SETUP = (tuple(field.name for field in fields(kind)) for kind in (TrafficQuestion, Setup))
_PLACES = {"workers", "scheduler"}  # where cells are played, of which no number depends
_NAMES = {"burstiness": "cv", "ttft": "ttft_ms", "tpot": "tpot_ms"}  # of options in a `Question`


@keywords(SimulationOptions)
def simulate(
    model: str | PathLike[str],
    gpu: str | PathLike[str] = "h100-sxm",
    watch: Watch | None = None,
    kept: str | PathLike[str] | None = None,
    progress: Callable[[int], None] = lambda count: None,
    **scenario: Unpack[SimulationOptions],
) -> Outcome:
    """Serve requests step by step on replicas of a deployment.

    Args:
        model: a model's name or path.
        gpu: an accelerator's name or path.
        watch: sees every step as it ends, such as a `ChromeTrace`; not of cells.
        kept: a file in which finished cells are kept, and from which a run that was cut short goes on.
        progress: told how many requests have ended, now and then; of cells, how many cells.
        **scenario: the options of `Simulation`, which docs/cli.md lists; None leaves one to its default.

    Raises:
        InputError: (and its kinds) for anything that makes no sense; DoesNotFitError if the cache holds no request.

    >>> outcome = simulate("llama-3-8b", rate=4.0, requests=50, isl=512, osl="uniform:20-60", calibration="none")
    >>> outcome.requests.finished, outcome.level
    (50, 'bound')
    """
    given = read(SimulationOptions, scenario)
    cells, timeline = given.get("cells", 1), Timeline()
    if cells == 1:
        books, more = _played(model, gpu, given, _Seen(timeline, watch, progress))
    elif watch is not None:
        raise InputError("cells run in several processes, so nobody can watch them; leave cells out")
    else:
        first, more = _played(model, gpu, given, _Seen())
        mark = (__version__, model, gpu, sorted((name, given[name]) for name in given.keys() - _PLACES))
        store = KeptCells(kept, mark, _objective(_question(given))) if kept else None
        play, workers = partial(_cell, model, gpu, given), whole_number(given.get("workers", 1), "workers")
        deal = partial(played, workers=workers, scheduler=given.get("scheduler"))
        books = deal(first, play, cells, kept=store, progress=progress)
        more["inputs"] |= {name: given.get(name, 0) for name in ("prefill_replicas", "seed")}
        more["inputs"] |= {"replicas": given.get("replicas", 1), "cells": cells}
    question = _question(given)
    more["inputs"] = _asked(question) | more["inputs"]
    more["warnings"] += tuple(_stream_note(question, books))
    return _answered(books, more, timeline)


def _stream_note(question: TrafficQuestion, books: Books) -> Iterator[str]:
    """Note where an open stream of sessions sent another number of requests than was asked for."""
    if question.sessions is None or question.rate is None or question.duration < math.inf or books.interrupted:
        return
    asked = (question.requests or STEADY) + (question.warmup or 0)
    if books.ledger.arrived != asked:
        mean = f"the {asked / question.rate:.4g} s in which {asked:,} come in the mean"
        yield f"{books.ledger.arrived:,} requests came in {mean}: sessions send as their users think"


def _cell(model: str | PathLike[str], gpu: str | PathLike[str], given: OwnKeywords, number: int) -> Books:
    """The books of one cell, wherever it is played; all that this process plays are of one deployment."""
    return replace(_played(model, gpu, given, _Seen(), number)[0], pieces=())


def _played(
    model: str | PathLike[str], gpu: str | PathLike[str], given: OwnKeywords, seen: _Seen, number: int = 0
) -> tuple[Books, dict[str, Any]]:
    """The books of one cell, or of the whole run."""
    if given.get("draft_tokens") and not {"acceptance", "draft"} & given.keys():
        both_of = "--acceptance, the share of its tokens that is accepted, and --draft-ms, its time a token"
        raise InputError(f"draft_tokens needs a draft: give {both_of}; or name it: --draft")
    question, cells = _question(given), given.get("cells", 1)
    resolved, setup = deployed(model, gpu, given)
    most = resolved.plan.deployment.settings.max_model_len or resolved.plan.model.max_context
    if max(setup.replicas, setup.prefill_replicas) > _TOGETHER * cells:
        raise WorkloadError(f"one simulation has at most {_TOGETHER:,} replicas; --cells divides more of them")
    if cells > 1:
        setup, question = setup.of_cell(number), question.of_cell(number, cells)
    steady = partial(_steady, resolved.predictor, setup)
    load, hash_tokens, notes = make_load(question, setup.seed, most, resolved.plan.image_tokens, steady)
    if cells > 1 and question.trace is not None:
        load = replace(load, arrivals=dealt(load.arrivals, given.get("seed", 0), number, cells))
    load, deployment = replace(load, prompts=given.get("seed_reuse", 0)), resolved.plan.deployment
    told = deployment.settings.prefix_caching
    if setup.prefix_cache and told == "off":
        raise InputError("prefix_cache and prefix_caching=off exclude each other; give one of them")
    usual = load.blocks and told is None and not setup.prefix_cache
    setup = replace(setup, prefix_cache=setup.prefix_cache or (load.blocks and told == "on"))
    if usual and caches_prefixes(deployment.engine, deployment.engine_version):
        setup, own = replace(setup, prefix_cache=True), deployment.engine
        notes += (f"the prefix cache is on, as {own} has it by default; --prefix-caching off computes prompts anew",)
    setup = replace(setup, hash_tokens=setup.hash_tokens or hash_tokens)
    with room_for_one(resolved.predictor, load.typical - 1.0, 1.0):
        books, more = _served(resolved, load, setup, seen, resolved)
    return books, more | {"warnings": (*notes, *_idle(given, load, setup), *more["warnings"])}


def _steady(predictor: Predictor, setup: Setup, asked: AskedLoad) -> AskedLoad:
    """The load with as many requests as an open loop needs on a deployment."""
    with room_for_one(predictor, asked.isl.mean, asked.osl.mean):
        return asked.on(scene_for(predictor, asked, setup))


def deployed(model: str | PathLike[str], gpu: str | PathLike[str], given: Keywords) -> tuple[Resolved, Setup]:
    """A deployment and its setup, of options that were read; raises as `simulate`."""
    draft = Speculation.read(part_of(given, SPECULATION_KEYS)) if _NAMED & given.keys() else None
    if draft is not None and "draft_ms" in given:
        raise InputError("draft and draft_ms exclude each other: the time of a named draft is known; leave one out")
    deployment = read_deployment(part_of(given, DEPLOYMENT_KEYS))
    resolved = resolve(model, gpu, deployment, given.get("calibration"), draft)
    chosen = part_of(given, _SETUP) | {"tiers": read_tiers(given.get("cache_tier"))}
    if "order" in given:
        chosen["by_class"] = given["order"] == "priority"
    if draft is not None:  # of the predictor
        chosen = {key: value for key, value in chosen.items() if key not in SPECULATION_KEYS}
    elif "acceptance" in given:  # one of all drafted tokens
        chosen["acceptance"] = number_of("acceptance", given["acceptance"])
    return resolved, Setup(**chosen)


_NAMED = {"draft", "draft_tree", "draft_tp"}  # options of a draft whose time is known
_WITH = {"clean": ("trace",), "speed": ("trace",), "prefix_groups": ("shared_prefix",),
         "acceptance": ("draft_tokens", "draft"), "draft_ms": ("draft_tokens",),
         "cache_tier": ("prefix_cache",), "host_gib": ("prefix_cache", "swap"),
         "order": ("classes", "trace"), "router": ("replicas", "prefill_replicas"), "image_size": ("images",),
         **dict.fromkeys(("link_gb_s", "link_ms", "staging"), ("prefill_replicas",)),
         **dict.fromkeys(("workers", "scheduler"), ("cells",))}  # fmt: skip
_WITHOUT = {
    **dict.fromkeys(("isl", "isl_cv"), ("trace", "sessions")),
    **dict.fromkeys(("osl", "osl_cv"), ("trace",)),
    "burstiness": ("concurrency", "trace", "sessions"),
    "shared_prefix": ("sessions",),
}


def _idle(given: Keywords, load: Load, setup: Setup) -> Iterator[str]:
    """Warnings on options without effect: they go with another one, or another one decides."""
    known = options_of(SimulationOptions)
    told = [name for name, value in given.items() if value != known[name].default]
    told += ["prefix_cache"] if setup.prefix_cache and "prefix_cache" not in told else []
    for name in told:
        if name in _WITH and not set(_WITH[name]) & set(told):
            yield f"{name} has no part here: it goes with {' or '.join(_WITH[name])}, which was not given"
        alone = load.lengths and name.startswith(("isl", "osl")), given.get("rate") and name == "burstiness"
        if given.get("trace") and any(alone):
            continue  # of a trace that has times alone, or lengths
        for other in (each for each in _WITHOUT.get(name, ()) if given.get(each)):
            yield f"{name} has no part here: {other} decides it"


def _asked(question: TrafficQuestion) -> dict[str, Any]:
    """The load as plain values: a path as text, no end as None, objectives by names that are no result's."""
    asked = {field.name: getattr(question, field.name) for field in fields(question)}
    asked |= {"trace": question.trace and str(question.trace), "classes": list(question.classes)}
    asked["duration"] = None if math.isinf(question.duration) else question.duration
    objective = {f"objective_{key}": asked.pop(key) for key in ("ttft_ms", "tpot_ms")}
    return asked | objective


def _question(given: OwnKeywords) -> TrafficQuestion:
    """The requests that options describe; a mean and its variation are a log-normal length."""
    asked = {_NAMES.get(key, key): value for key, value in given.items() if _NAMES.get(key, key) in _QUESTION}
    for key, usual in WORKLOAD_KEYS.items():
        if key in ("isl", "osl"):
            asked[key] = spread_length(key, given.get(key, usual), given.get(f"{key}_cv"))
    if isinstance(asked.get("classes"), str):
        asked["classes"] = _shares(asked["classes"])
    if "trace" in asked:
        asked["trace"] = Path(asked["trace"])
    if "sessions" in asked and "osl" not in given:
        asked["osl"] = str(parse_sessions(asked["sessions"]).answer)
    return TrafficQuestion(**asked)


def _shares(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise InputError(f"classes must be shares such as 0.2,0.8, not {text!r}") from None
