"""The simulator put together: a deployment, requests and a scheduler in, an `Outcome` out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from os import PathLike
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, Unpack

from typing_extensions import override

from rooflinekit.estimation.doubts import load_doubts
from rooflinekit.estimation.estimator import Resolved, bounds, ends, image_inputs, read_deployment, resolve
from rooflinekit.estimation.loaded import FEWER, version_notes
from rooflinekit.estimation.notes import room_for_one
from rooflinekit.estimation.options import Keywords, OwnKeywords, keywords, number_of, options_of, part_of, read
from rooflinekit.estimation.results import about
from rooflinekit.estimation.scenario import DEPLOYMENT_KEYS, SPECULATION_KEYS, WORKLOAD_KEYS, SimulationOptions
from rooflinekit.estimation.traffic import load_of
from rooflinekit.load.answer import FILLING, STEADY, Load, LoadPlay, scene_for
from rooflinekit.load.arrivals import Arrival, Burst, ClosedLoop, Drawn, Gamma, Requests, generate, parse_process
from rooflinekit.load.lengths import Empirical, Fixed, Length, lengths_of, spread_length
from rooflinekit.load.policies import ROUTERS as LOOPED
from rooflinekit.load.policies import Limits, policy_name
from rooflinekit.load.scene import (
    CacheTier,
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
from rooflinekit.simulation.requests import Source
from rooflinekit.simulation.sessions import BLOCK, SessionSource, parse_sessions, session_trace
from rooflinekit.simulation.tiers import Store, overrun, read_tiers
from rooflinekit.simulation.traces import load_trace
from rooflinekit.simulation.watch import Batches, Timeline, both
from rooflinekit.specs.engines import caches_prefixes
from rooflinekit.version import __version__

_LONGEST = 1 << 20  # tokens of the longest sequence of a session, where nothing says less

_AT_ONCE = 1_000_000  # requests that one machine holds in its memory
_IN_ARRAYS = 1_000_000  # requests that the loop plays; more are played by objects, in memory that does not grow
_LARGEST = 1_000_000_000  # requests of the largest run, where a duration ends it
_TOGETHER = 10_000  # replicas that one router knows
_IN_STEP = (
    "equal lengths keep users in step, so that prompts come together; with lengths that vary (osl=uniform:200-300) "
    "users drift apart"
)

_PREFIX_TOKENS = 16  # granularity of a synthetic shared prefix
_COUNTED = ("requests", "concurrency")  # options of which each cell has a share


@dataclass(frozen=True)
class SentLoad(Load):
    """A load whose requests are there, one by one.

    sent: in order of time; most: tokens of the longest, None: as the laws of lengths have it; drawn_by: the laws by
    which lengths were drawn, None: they are those of a trace; duration: the run ends then, whatever is left [s].
    """

    warmup: int | None = 0
    sent: Iterable[Arrival] = ()
    most: int | None = None
    drawn_by: tuple[Length, Length] | None = None
    duration: float = math.inf
    sessions: SessionSource | None = None  #: in place of what is sent
    before: Iterable[tuple[int, Sequence[int]]] = ()  #: blocks of former requests by conversation, the latest last
    hash_tokens: int = 0  #: prompt tokens that one hash of a request stands for; 0: no blocks are known

    @property
    @override
    def longest(self) -> int:
        return super().longest if self.most is None else self.most

    @property
    def objective(self) -> RequestObjective:
        """Objective of each request."""
        return RequestObjective(self.ttft, self.tpot)


class _Seen(NamedTuple):
    """Watchers of a run: its timeline, who sees every step, and who is told how many requests have ended."""

    timeline: Timeline | None = None
    watch: Watch | None = None
    ended: Callable[[int], None] | None = None


def serve(
    resolved: Resolved, load: SentLoad, scheduler: Scheduler | None = None, prefill: Resolved | None = None
) -> Outcome:
    """Serve a load on replicas of a deployment.

    Args:
        resolved: a deployment, as `rooflinekit.estimation.estimator.resolve` returns it.
        load: requests, and how long to go on.
        scheduler: queue, replicas, caches.
        prefill: the deployment of the prefill replicas, if it is another one; of the same model and cache format.

    Raises:
        InputError: (and its kinds) for settings that make no sense; DoesNotFitError if the cache holds no request.

    >>> from rooflinekit.estimation.estimator import resolve
    >>> from rooflinekit.model.types.deployment import Deployment
    >>> deployment = resolve("llama-3-8b", "h100-sxm", Deployment(), "none")
    >>> load = SentLoad(Fixed(1024), Fixed(128), users=16, sent=[Arrival(0.0, 1024, 128)] * 64)
    >>> outcome = serve(deployment, load)
    >>> outcome.requests.finished, outcome.requests.cut
    (64, 0)
    """
    timeline = Timeline()
    books, more = _served(resolved, load, scheduler or Scheduler(), _Seen(timeline), prefill or resolved)
    return _answered(books, more, timeline)


def watched(resolved: Resolved, load: SentLoad, setup: Scheduler, prefill: Resolved, batches: Batches) -> bool:
    """Serve for what `batches` see alone; whether the run ended by itself. Raises as `serve`."""
    return not _run(resolved, load, setup, None, prefill, batches).interrupted


def _answered(books: Books, more: dict[str, Any], timeline: Timeline) -> Outcome:
    return summarise(books, **more | {"warnings": (*more["warnings"], *_notes(books))}, timeline=timeline.rows())


def _run(  # noqa: PLR0913, PLR0917 - as `serve`
    resolved: Resolved, load: SentLoad, setup: Scheduler, watch: Watch | None, prefill: Resolved, batches: Batches
) -> Simulation:
    ledger = Ledger(load.objective)
    fleet = fleet_of(resolved.predictor, prefill.predictor, load, setup, ledger)
    source = load.sessions or Source(iter(load.sent), load.users, load.filling)
    for conversation, hashes in (*load.before, *(load.sessions.before() if load.sessions else ())):
        pool = fleet.all[conversation % len(fleet.prefills or fleet.replicas)].pool
        if isinstance(pool, PrefixPool):
            pool.seed(hashes)
    run = Simulation(fleet, source, ledger, load.duration, both(batches, watch))
    run.run()
    batches.end()
    return run


def _served(
    resolved: Resolved, load: SentLoad, setup: Scheduler, seen: _Seen, prefill: Resolved
) -> tuple[Books, dict[str, Any]]:
    """The books of a run, and the other fields of an `Outcome`."""
    timeline, watch, ended = seen
    if watch is None and prefill is resolved and _loop_plays(load, setup):
        load = replace(load, sent=list(load.sent))
        if all(each.samples == 1 for each in load.sent):
            return _by_loop(resolved, load, setup, Drawn.read(load.sent), seen)
    if ended is not None:
        watch = both(watch, lambda index, replica, now: ended(replica.ledger.finished))
    return _by_objects(resolved, load, setup, both(timeline, watch), prefill)


def _loop_plays(load: SentLoad, setup: Scheduler) -> bool:
    """True if the loop plays it: no blocks with content, no other memory, no pools, no end but that of the requests."""
    many = load.most is None and load.count > _IN_ARRAYS
    objects = many or load.sessions or load.before or load.duration < math.inf
    return not (objects or setup.swap or setup.prefix_cache or setup.prefill_replicas or setup.router not in LOOPED)


def _by_loop(
    resolved: Resolved, load: SentLoad, setup: Scheduler, drawn: Drawn, seen: _Seen
) -> tuple[Books, dict[str, Any]]:
    predictor = resolved.predictor
    isl, osl = load.drawn_by or _means(drawn)
    counted = len(drawn.isl) - (load.filling if load.users else 0)
    scene = scene_of(predictor, setup, load.typical, load.longest, isl.mean)
    asked = replace(load, isl=isl, osl=osl, most=None, rate=None, requests=counted, source=lambda *_: drawn)
    clients = scene.clients(drawn, load.users, load.filling, asked.cached / isl.mean, load.prompts)
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
    resolved: Resolved, load: SentLoad, setup: Scheduler, watch: Watch | None, prefill: Resolved
) -> tuple[Books, dict[str, Any]]:
    settings = resolved.plan.deployment.settings
    told = {"cached": load.cached, "seed_reuse": load.prompts}
    told |= {"scheduler_recv_interval": settings.scheduler_recv_interval > 1, "batch_wait": settings.batch_wait}
    if alone := next((name for name, value in told.items() if value), None):
        others = "pools, prefix blocks, cache tiers, samples, sessions or a duration"
        raise InputError(f"{alone} cannot be combined with {others}")
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
    resolved: Resolved, setup: Scheduler, limits: Limits, block: int, blocks: int, notes: tuple[str, ...]
) -> dict[str, Any]:
    """Fields of an `Outcome` besides its books."""
    warnings = (*resolved.warnings, *version_notes(resolved.plan), *notes)
    if setup.swap and not setup.host_gib:
        warnings += ("swap has no host memory: preempted requests were computed again; host_gib gives it some",)
    if resolved.plan.lanes > 1:
        warnings += ("stages are played one after the other; `estimate` has what microbatches bring",)
    inputs = _inputs(resolved.plan, setup, limits, block, blocks)
    if isinstance(resolved.predictor, SpeculativePredictor):
        choice = resolved.predictor.draft.choice
        inputs |= {key: getattr(choice, key) for key in ("draft", "draft_tokens")}
        inputs["acceptance"] = list(choice.acceptance)
    return {**about(resolved.plan), "inputs": inputs, "warnings": warnings}


def fleet_of(predictor: Predictor, first: Predictor, load: SentLoad, setup: Scheduler, ledger: Ledger) -> ReplicaFleet:
    """Lay out the replicas; those of one deployment share one step table. `first` is that of the prefill replicas."""
    predictor, first = served(predictor), served(first)
    limits = limits_of(predictor, setup, load.longest, load.isl.mean)
    draft = drafting_of(predictor, setup, limits.max_num_seqs, load.isl.mean, load.osl.mean)
    clock = drafted_steps(steps_of(predictor, limits, load.longest, draft.verified + 1), draft)
    alike = first.plan is predictor.plan and not draft.tokens
    prompts = clock if alike else steps_of(first, limits_of(first, setup, load.longest, load.isl.mean), load.longest)

    front = front_end_of(predictor, setup.replicas)
    if front.encoders and setup.prefill_replicas:
        raise WorkloadError("encoder_gpus beside prefill_replicas is not known; leave one of them out")
    shared: dict[str, Store] = {}

    def replica(number: int, own: Predictor, clock: Clock) -> ObjectReplica:
        limits = limits_of(own, setup, load.longest, load.isl.mean)
        tokens = setup.kv_tokens or kv_capacity_tokens(own, load.typical, limits.max_num_seqs)
        pool = _pool(own, setup, tokens, shared)
        decoding = Speculative(pool, draft, setup.seed) if draft.tokens else Lockstep(pool)
        return ObjectReplica(limits, clock, decoding, ledger, _host(own, setup))

    replicas = [replica(number, predictor, clock) for number in range(setup.replicas)]
    prefills = [replica(setup.replicas + number, first, prompts) for number in range(setup.prefill_replicas)]
    return ReplicaFleet(replicas, setup.router, prefills, _link(first, setup), front)


def _block(plan: Plan, setup: Scheduler) -> int:
    """Tokens of a block: as told, or the engine's, made smaller where hashes of prompts are finer."""
    own = int(plan.engine.memory.block)
    return plan.deployment.settings.block_size or (
        math.gcd(own, setup.hash_tokens) if setup.prefix_cache and setup.hash_tokens else own
    )


def _pool(predictor: Predictor, setup: Scheduler, tokens: int, shared: dict[str, Store]) -> BlockPool:
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


def _host(predictor: Predictor, setup: Scheduler) -> HostTier:
    """Host memory for preempted requests."""
    if not setup.host_gib:
        return HostTier()
    block = _block(predictor.plan, setup) * predictor.memory.kv_bytes_per_token
    return HostTier(int(_tier(setup) * GIB / block), block / pcie_bandwidth(predictor, "host_gib"))


def _tier(setup: Scheduler) -> float:
    """Host memory [GiB] for each of its uses: prefixes and preempted requests divide it."""
    return setup.host_gib / (2 if setup.prefix_cache and setup.swap else 1)


def _link(predictor: Predictor, setup: Scheduler) -> Link:
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


def _inputs(plan: Plan, setup: Scheduler, limits: Limits, block: int, blocks: int) -> dict[str, Any]:
    """Every input of the deployment, the scheduler and the fleet, as it was understood."""
    precision = plan.precision

    def told(*keys: str, of: object = setup) -> dict[str, Any]:
        return {key: getattr(of, key) for key in keys}

    return {
        **told("tp", "pp", "ep", "dp", "gpus", "encoder_gpus", of=plan.deployment),
        "weights": precision.weights_of(plan.model.matrices[-1]).value,
        "kv": precision.kv.value,
        "policy": policy_name(limits.policy),
        **told("token_budget", "max_num_seqs", "max_model_len", of=limits),
        **told("queue_limit", "by_class", "imports", "draft_tokens", "acceptance", "draft_ms", "replicas", "router"),
        "block_size": block,
        "kv_tokens": blocks * block,
        **told("seed", "swap", "prefix_cache", "hash_tokens", "host_gib", "prefill_replicas"),
        **told("link_gb_s", "link_ms", "staging"),
        "cells": 1,
        **image_inputs(plan),
        "cache_tier": ", ".join(f"{tier.name}={tier.capacity / GB:g}GB" for tier in setup.tiers) or None,
        "draft": None,
    }


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


def make_load(
    given: Keywords,
    most: int | None = None,
    images: int = 0,
    steady: Callable[[Load], Load] = lambda asked: asked,
) -> tuple[SentLoad, tuple[str, ...]]:
    """Requests that the options of `simulate` describe, and notes for the reader.

    Of rate, concurrency, arrivals and trace, one is given; a trace may have users.

    most: tokens of the longest sequence that the engine admits; images: tokens that come to each prompt's text; steady:
    the load with as many requests as an open loop needs, where nobody says how many.

    >>> load, _ = make_load({"rate": 2.0, "requests": 3, "isl": 64, "osl": 8})
    >>> [arrival.isl for arrival in load.sent]
    [64, 64, 64]
    """
    ways = [*part_of(given, ("arrivals", "trace") if "trace" in given else ("arrivals", "rate", "concurrency"))]
    if len(ways) != 1:
        what = f"not {' and '.join(ways)}" if ways else "give one, such as --rate 2"
        raise InputError(f"requests come by one of --rate, --concurrency, --arrivals and --trace; {what}")
    _refuse_cached(given)
    asked = load_of(given, images)
    if "sessions" in given:
        if images:
            raise InputError("images and sessions exclude each other: which turns show images is not known")
        return _sessions(given, asked, most)
    load, count, notes = (_traced if "trace" in given else _generated)(given, asked, images, steady)
    if load.users is None and load.filling >= count:
        raise WorkloadError(f"warmup={load.filling} leaves none of {count:,} requests to count; use fewer")
    return _dressed(load, given), notes


def _generated(
    given: Keywords, asked: Load, _: int, steady: Callable[[Load], Load]
) -> tuple[SentLoad, int, tuple[str, ...]]:
    """Requests of the laws of lengths that come by a process, how many they are, and notes."""
    if asked.requests is None and given.get("duration", math.inf) < math.inf:
        asked = replace(asked, requests=_LARGEST)  # the time ends the run, not their number
    process = parse_process(given["arrivals"], asked.requests) if "arrivals" in given else asked.process
    requests, warmup = asked.requests, asked.warmup or 0
    if isinstance(process, ClosedLoop):
        warmup = process.warmup or warmup
        asked = replace(asked, users=process.users, requests=process.prompts, warmup=warmup)
    elif isinstance(process, Gamma) and requests is None:
        asked = steady(replace(asked, rate=process.rate, burstiness=process.cv))
    else:
        if isinstance(process, Burst) and requests is None and asked.warmup is None:
            warmup = STEADY // FILLING  # while the engine fills
        if isinstance(process, Burst) and not process.period_s:
            requests = min(requests or process.size, process.size)
        asked = replace(asked, requests=requests or STEADY, warmup=warmup)
    at_once = min(process.size if isinstance(process, Burst) else asked.users or 1, asked.count)
    if at_once > _AT_ONCE:
        raise WorkloadError(f"{at_once:,} requests at once are too many to simulate; at most {_AT_ONCE:,}")
    shape = Requests(asked.isl, asked.osl, _shares(given), asked.prompts)
    sent = generate(process, shape, asked.count, asked.seed)
    load = SentLoad(**vars(asked) | {"warmup": asked.filling}, sent=sent, drawn_by=(asked.isl, asked.osl))
    return load, asked.count, tuple(_of_users(asked))


def _of_users(asked: Load) -> Iterator[str]:
    """Notes on a closed loop: users without a request, and users in step."""
    if asked.at_once < (asked.users or 0):
        yield FEWER.format(crowd=asked.at_once, users=asked.users)
    if asked.at_once > 1 and asked.osl.quantile(0.0) == asked.osl.quantile(1.0):
        yield _IN_STEP


def _refuse_cached(given: Keywords) -> None:
    """Raise InputError or WorkloadError where no prompt has so many tokens in the cache, or what it holds is known."""
    cached = given.get("cached", 0)
    for name in ("cached", "seed_reuse"):
        if given.get(name) and part_of(given, ("trace", "sessions")):
            raise InputError(f"{name} is about prompts of stated lengths; leave it out with sessions and traces")
    if cached >= (isl := lengths_of(given)[0].mean):
        raise WorkloadError(f"cached={cached} leaves nothing of isl={isl:g} to compute; use less")


def _traced(given: Keywords, asked: Load, images: int, _: object) -> tuple[SentLoad, int, tuple[str, ...]]:
    """Rows of a trace, at its times unless users wait for their answers, and of --isl and --osl where it has none."""
    trace = load_trace(Path(given["trace"]), given.get("clean", False))
    laws, users, rate = None if trace.sized else lengths_of(given), asked.users, asked.rate
    if laws is not None:
        drawn = [*generate(Burst(len(trace)), Requests(*laws), len(trace), asked.seed)]
        trace = replace(trace, isl=[each.isl for each in drawn], osl=[each.osl for each in drawn], sized=True)
    if users is not None and rate is not None:
        raise InputError("--concurrency is a closed loop and --rate an open one; give one of them")
    trace = trace if users else trace.coming(rate, asked.burstiness, asked.seed)
    trace = replace(trace, isl=[each + images for each in trace.isl]) if images else trace
    sent = trace.arrivals(given.get("speed", 1.0), asked.requests)
    if users is not None:
        sent = (arrival._replace(time=0.0) for arrival in sent)
    isl, osl = Empirical.of(trace.isl), Empirical.of(trace.osl)
    most = max(map(sum, zip(trace.isl, trace.osl, strict=True)))
    blocks = (trace.block_tokens or _PREFIX_TOKENS) if len(trace.blocks) else 0
    rows = {"isl": isl, "osl": osl, "warmup": asked.warmup or 0}
    load = SentLoad(**vars(asked) | rows, sent=sent, most=most, drawn_by=laws, hash_tokens=blocks)
    return load, min(len(trace), asked.requests or len(trace)), trace.notes


def _sessions(given: Keywords, asked: Load, most: int | None) -> tuple[SentLoad, tuple[str, ...]]:
    """Sessions at a rate of requests, or so many at a time; mean lengths are those of a thousand requests."""
    if part_of(given, ("arrivals", "trace")):
        raise InputError("sessions come at a --rate of requests, or --concurrency of them at a time")
    law, warmup = parse_sessions(given["sessions"]), asked.warmup or 0
    most = min(law.most or _LONGEST, most or _LONGEST)
    made = partial(SessionSource, law, asked.osl, most, seed=asked.seed)
    seen = session_trace(made(rate=asked.rate or 1.0))
    isl, osl = (Empirical.of(each[seen.former :]) for each in (seen.isl, seen.osl))
    sessions = made(rate=asked.rate, users=asked.users, requests=asked.counted + warmup, warmup=warmup)
    load = SentLoad(
        **vars(asked) | {"isl": isl, "osl": osl, "warmup": 0}, most=most, sessions=sessions, hash_tokens=BLOCK
    )
    return replace(load, duration=given.get("duration", math.inf)), law.cut(most, asked.osl.mean)


def _dressed(load: SentLoad, given: Keywords) -> SentLoad:
    """The load, whose requests have samples and a shared prefix."""
    sent, samples = load.sent, given.get("samples", 1)
    if samples > 1:
        sent = (arrival._replace(samples=samples) for arrival in sent)
    load = replace(load, sent=sent, duration=given.get("duration", math.inf))
    blocks, many = given.get("shared_prefix", 0) // _PREFIX_TOKENS, given.get("prefix_groups", 1)
    if not blocks:
        return load
    groups = [tuple(range(group * blocks, (group + 1) * blocks)) for group in range(many)]
    sent = (
        arrival._replace(hashes=groups[number % many][: arrival.isl // _PREFIX_TOKENS])
        for number, arrival in enumerate(sent)
    )
    return replace(load, sent=sent, hash_tokens=load.hash_tokens or _PREFIX_TOKENS)


_SCHEDULER = tuple(field.name for field in fields(Scheduler) if field.name != "max_num_seqs")  # the deployment has it
_PLACES = {"workers", "scheduler"}  # where cells are played, of which no number depends


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
    if "sessions" in given:
        given.setdefault("osl", parse_sessions(given["sessions"]).answer)
    asked, cells, timeline = _asked(given), given.get("cells", 1), Timeline()
    if cells == 1:
        books, more = _played(model, gpu, given, _Seen(timeline, watch, progress))
    elif watch is not None:
        raise InputError("cells run in several processes, so nobody can watch them; leave cells out")
    else:
        first, more = _played(model, gpu, given, _Seen())
        mark = (__version__, model, gpu, sorted((name, given[name]) for name in given.keys() - _PLACES))
        store = KeptCells(kept, mark, first.ledger.objective) if kept else None
        play, workers = partial(_cell, model, gpu, given), whole_number(given.get("workers", 1), "workers")
        deal = partial(played, workers=workers, scheduler=given.get("scheduler"))
        books = deal(first, play, cells, kept=store, progress=progress)
        more["inputs"] |= {name: given.get(name, 0) for name in ("prefill_replicas", "seed")}
        more["inputs"] |= {"replicas": given.get("replicas", 1), "cells": cells}
    more["inputs"] = asked | more["inputs"]
    more["warnings"] += tuple(_stream_note(given, books))
    return _answered(books, more, timeline)


def _stream_note(given: Keywords, books: Books) -> Iterator[str]:
    """Note where an open stream of sessions sent another number of requests than was asked for."""
    if not {"sessions", "rate"} <= given.keys() or given.get("duration", math.inf) < math.inf or books.interrupted:
        return
    asked = given.get("requests", STEADY) + given.get("warmup", 0)
    if books.ledger.arrived != asked:
        mean = f"the {asked / given['rate']:.4g} s in which {asked:,} come in the mean"
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
    cells, own = given.get("cells", 1), given
    resolved, setup = deployed(model, gpu, given)
    deployment = resolved.plan.deployment
    most = deployment.settings.max_model_len or resolved.plan.model.max_context
    if max(setup.replicas, setup.prefill_replicas) > _TOGETHER * cells:
        raise WorkloadError(f"one simulation has at most {_TOGETHER:,} replicas; --cells divides more of them")
    if cells > 1:
        own = _of_cell(given, setup, number)
        setup = replace(setup, **part_of(own, ("replicas", "prefill_replicas", "seed")))
    load, notes = make_load(own, most, resolved.plan.image_tokens, partial(_steady, resolved.predictor, setup))
    if cells > 1 and "trace" in given:
        load = replace(load, sent=dealt(iter(load.sent), given.get("seed", 0), number, cells))
    told = deployment.settings.prefix_caching
    if setup.prefix_cache and told == "off":
        raise InputError("prefix_cache and prefix_caching=off exclude each other; give one of them")
    usual = load.hash_tokens and told is None and not setup.prefix_cache
    caches = setup.prefix_cache or (load.hash_tokens > 0 and told == "on")
    if usual and caches_prefixes(deployment.engine, deployment.engine_version):
        caches, engine = True, deployment.engine
        notes += (f"the prefix cache is on, as {engine} has it by default; --prefix-caching off computes prompts anew",)
    hashed = setup.hash_tokens or load.hash_tokens or _PREFIX_TOKENS
    setup = replace(setup, prefix_cache=caches, hash_tokens=hashed)
    with room_for_one(resolved.predictor, load.typical - 1.0, 1.0):
        books, more = _served(resolved, load, setup, seen, resolved)
    return books, more | {"warnings": (*notes, *_idle(given, load, setup), *more["warnings"])}


def _of_cell(given: Keywords, setup: Scheduler, number: int) -> OwnKeywords:
    """The options of one cell: a part of a Poisson stream is one too; rows of a trace are dealt later."""
    cells, own = given["cells"], {**given, "seed": cell_seed(setup.seed, number)}
    for name, count in (("replicas", setup.replicas), ("prefill_replicas", setup.prefill_replicas)):
        if count % cells:
            raise WorkloadError(f"{name}={count:,} cannot be divided evenly among {cells:,} cells")
        own[name] = count // cells
    if any(tier.shared for tier in setup.tiers):
        raise WorkloadError("cells cannot share a cache tier; leave shared or cells out")
    if "arrivals" in given or (given.get("burstiness", 1.0) != 1.0 and "rate" in given):
        divided = "cells divide Poisson arrivals, users, sessions and traces"
        raise WorkloadError(f"{divided}; give --rate alone, or leave cells out")
    if "warmup" in given:
        own["warmup"] = given["warmup"] * (number + 1) // cells - given["warmup"] * number // cells
    if "trace" not in given:
        own |= {name: share(count, number, cells, name) for name, count in part_of(given, _COUNTED).items()}
        own |= {name: rate / cells for name, rate in part_of(given, ("rate",)).items()}
    return own


def _steady(predictor: Predictor, setup: Scheduler, asked: Load) -> Load:
    """The load with as many requests as an open loop needs on a deployment."""
    with room_for_one(predictor, asked.isl.mean, asked.osl.mean):
        return asked.on(scene_for(predictor, asked, setup))


def deployed(model: str | PathLike[str], gpu: str | PathLike[str], given: Keywords) -> tuple[Resolved, Scheduler]:
    """A deployment and its setup, of options that were read; raises as `simulate`."""
    draft = Speculation.read(part_of(given, SPECULATION_KEYS)) if _NAMED & given.keys() else None
    if draft is not None and "draft_ms" in given:
        raise InputError("draft and draft_ms exclude each other: the time of a named draft is known; leave one out")
    deployment = read_deployment(part_of(given, DEPLOYMENT_KEYS))
    resolved = resolve(model, gpu, deployment, given.get("calibration"), draft)
    chosen = part_of(given, _SCHEDULER) | {"tiers": read_tiers(given.get("cache_tier"))}
    if "order" in given:
        chosen["by_class"] = given["order"] == "priority"
    if draft is not None:  # of the predictor
        chosen = {key: value for key, value in chosen.items() if key not in SPECULATION_KEYS}
    elif "acceptance" in given:  # one of all drafted tokens
        chosen["acceptance"] = number_of("acceptance", given["acceptance"])
    return resolved, Scheduler(**chosen)


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


def _idle(given: Keywords, load: SentLoad, setup: Scheduler) -> Iterator[str]:
    """Warnings on options without effect: they go with another one, or another one decides."""
    known = options_of(SimulationOptions)
    told = [name for name, value in given.items() if value != known[name].default]
    told += ["prefix_cache"] if setup.prefix_cache and "prefix_cache" not in told else []
    for name in told:
        if name in _WITH and not set(_WITH[name]) & set(told):
            yield f"{name} has no part here: it goes with {' or '.join(_WITH[name])}, which was not given"
        alone = load.drawn_by and name.startswith(("isl", "osl")), given.get("rate") and name == "burstiness"
        if given.get("trace") and any(alone):
            continue  # of a trace that has times alone, or lengths
        for other in (each for each in _WITHOUT.get(name, ()) if given.get(each)):
            yield f"{name} has no part here: {other} decides it"


_ASKED: Keywords = {
    "rate": None, "burstiness": 1.0, "concurrency": None, "arrivals": None, "trace": None, "sessions": None,
    "speed": 1.0, "clean": False, "isl": None, "osl": None, "cached": 0, "requests": None, "warmup": None,
    "duration": None, "samples": 1, "classes": (), "shared_prefix": 0, "prefix_groups": 1, "ttft": None, "tpot": None,
}  # fmt: skip
_CALLED = {"burstiness": "cv", "ttft": "objective_ttft_ms", "tpot": "objective_tpot_ms"}  # in inputs


def _asked(given: Keywords) -> dict[str, Any]:
    """The load as plain values: a path as text, no end as None, objectives by names that are no result's."""
    asked = {name: given.get(name, usual) for name, usual in _ASKED.items()}
    asked |= {
        key: spread_length(key, given.get(key, WORKLOAD_KEYS[key]), given.get(f"{key}_cv")) for key in ("isl", "osl")
    }
    asked |= {"trace": asked["trace"] and str(Path(asked["trace"])), "classes": list(_shares(given))}
    asked["duration"] = None if asked["duration"] == math.inf else asked["duration"]
    return {_CALLED.get(name, name): value for name, value in asked.items()}


def _shares(given: Keywords) -> tuple[float, ...]:
    """Shares of priority classes. Raises InputError for a text that is none."""
    told = given.get("classes", ())
    try:
        return tuple(map(float, told.split(","))) if isinstance(told, str) and told else tuple(told)
    except ValueError:
        raise InputError(f"classes must be shares such as 0.2,0.8, not {told!r}") from None
