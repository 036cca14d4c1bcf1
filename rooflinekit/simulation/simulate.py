"""The simulator put together: a deployment, requests and a scheduler in, an `Outcome` out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from rooflinekit.estimation.estimator import Resolved
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.step import Plan
from rooflinekit.model.types.errors import WorkloadError
from rooflinekit.model.types.units import GB, GIB
from rooflinekit.simulation.capacity import kv_capacity_tokens
from rooflinekit.simulation.decoding import Lockstep, Speculative
from rooflinekit.simulation.event_loop import Fleet, Link, Simulation, Watch
from rooflinekit.simulation.kv_blocks import BlockPool, PrefixPool
from rooflinekit.simulation.ledger import Ledger, Objective
from rooflinekit.simulation.outcome import Outcome, summarise
from rooflinekit.simulation.policies import Limits, policy_named
from rooflinekit.simulation.replica import HostTier, Replica
from rooflinekit.simulation.request import Arrival
from rooflinekit.simulation.source import ClosedSource, OpenSource
from rooflinekit.simulation.steps import Clock
from rooflinekit.simulation.tabulate import build_table
from rooflinekit.simulation.watch import Timeline, both
from rooflinekit.version import __version__

__all__ = ["Load", "Scheduler", "Setup", "serve"]

_LONGEST = 1 << 20  # tokens up to which step times are tabulated; beyond, the last slope goes on


@dataclass(frozen=True)
class Scheduler:
    """How each replica forms its steps; None leaves a limit to the engine's default."""

    policy: str | None = None
    token_budget: int | None = None
    max_num_seqs: int | None = None
    max_model_len: int | None = None
    queue_limit: int | None = None
    by_class: bool = False
    swap: bool = False
    draft_tokens: int = 0
    acceptance: float = 0.0
    draft_ms: float = 0.0  #: time to draft one token [ms]


@dataclass(frozen=True)
class Setup:
    """Replicas, their caches and how requests reach them."""

    scheduler: Scheduler = Scheduler()
    replicas: int = 1
    router: str = "round-robin"
    block_size: int | None = None  #: tokens of a cache block; None: as the engine has it
    kv_tokens: int | None = None  #: tokens that the cache of one replica holds; None: as the memory model says
    prefix_cache: bool = False
    hash_tokens: int | None = None  #: prompt tokens that one hash of an arrival stands for; None: one block
    host_gib: float = 0.0  #: host memory for cache blocks, for each replica [GiB]
    prefill_replicas: int = 0
    link_gb_s: float | None = None  #: from a prefill to a decode replica [GB/s]; None: the accelerators' NICs
    link_ms: float = 0.0  #: latency of a transfer [ms]
    staging: int = 64  #: prompts that are computed or wait on one prefill replica at most
    seed: int = 0


@dataclass(frozen=True)
class Load:
    """What is sent: arrivals, and whether users wait for their answers.

    typical, longest: mean and largest isl + osl, for the size of tables and of the cache. duration: the run ends then
    whatever is left [s].
    """

    arrivals: Iterator[Arrival]
    typical: float
    longest: int
    users: int | None = None
    warmup: int = 0
    duration: float = math.inf
    objective: Objective = field(default_factory=Objective)


def serve(
    resolved: Resolved,
    load: Load,
    setup: Setup | None = None,
    watch: Watch | None = None,
    prefill: Resolved | None = None,
) -> Outcome:
    """Serve a load on replicas of a deployment.

    Args:
        resolved: a deployment, as `rooflinekit.estimation.estimator.resolve` returns it.
        load: requests, and how long to go on.
        setup: scheduler, replicas, caches.
        watch: sees every step, such as a `ChromeTrace`.
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
    setup = setup or Setup()
    timeline, ledger = Timeline(), Ledger(load.objective)
    fleet = _fleet(resolved.predictor, (prefill or resolved).predictor, load, setup, ledger)
    if load.users is None:
        source: OpenSource | ClosedSource = OpenSource(load.arrivals, load.warmup)
    else:
        source = ClosedSource(load.arrivals, load.users, load.warmup)
    run = Simulation(fleet, source, ledger, load.duration, both(timeline, watch))
    run.run()
    first = (prefill or resolved).plan.deployment.gpus
    gpus = resolved.plan.deployment.gpus * len(fleet.replicas) + first * len(fleet.prefills)
    return summarise(
        run,
        _about(resolved, setup, fleet),
        gpus,
        warnings=(*resolved.warnings, *_notes(run, setup)),
        timeline=timeline.rows(),
    )


def _fleet(predictor: Predictor, first: Predictor, load: Load, setup: Setup, ledger: Ledger) -> Fleet:
    """Lay out the replicas; those of one deployment share one step table. `first` is that of the prefill replicas."""
    if min(setup.replicas, setup.block_size or 1, setup.staging) < 1 or setup.prefill_replicas < 0:
        raise WorkloadError("replicas, block_size and staging must be at least 1, prefill_replicas at least 0")
    drafted = setup.scheduler.draft_tokens
    clock = _clock(predictor, load, setup, drafted + 1)
    prompts = clock if first is predictor and not drafted else _clock(first, load, setup, 1)

    def replica(number: int, own: Predictor, clock: Clock) -> Replica:
        limits = _limits(own, setup.scheduler)
        tokens = setup.kv_tokens or kv_capacity_tokens(own, load.typical, limits.max_num_seqs)
        pool = _pool(own, setup, tokens)
        decoding = Lockstep(pool)
        if drafted:
            decoding = Speculative(pool, drafted, setup.scheduler.acceptance, setup.seed + number)
        return Replica(limits, clock, decoding, ledger, _host(own, setup))

    replicas = [replica(number, predictor, clock) for number in range(setup.replicas)]
    prefills = [replica(setup.replicas + number, first, prompts) for number in range(setup.prefill_replicas)]
    return Fleet(replicas, setup.router, prefills, _link(first, setup), predictor.plan.costs.request)


def _clock(predictor: Predictor, load: Load, setup: Setup, width: int) -> Clock:
    """Step times of a deployment whose steps verify `width` tokens of each sequence."""
    limits, scheduler = _limits(predictor, setup.scheduler), setup.scheduler
    longest = min(load.longest, limits.max_model_len or _LONGEST, _LONGEST)
    clock = build_table(predictor.plan, limits.max_num_seqs // limits.engines, longest, width)
    if scheduler.draft_ms and width > 1:
        return _Drafting(clock, scheduler.draft_tokens * scheduler.draft_ms / 1e3, width)
    return clock


def _limits(predictor: Predictor, chosen: Scheduler) -> Limits:
    plan = predictor.plan
    budget = chosen.token_budget or plan.deployment.settings.token_budget
    sequences = chosen.max_num_seqs or plan.deployment.settings.max_num_seqs
    if not 0.0 <= chosen.acceptance <= 1.0 or chosen.draft_tokens < 0 or chosen.draft_ms < 0.0:
        raise WorkloadError(
            f"acceptance must lie in 0..1 and drafts must not be negative, not {chosen.acceptance}, "
            f"{chosen.draft_tokens} and {chosen.draft_ms}"
        )
    return Limits(
        policy=policy_named(chosen.policy or _usual(plan)),
        token_budget=budget or int(plan.token_budget),
        max_num_seqs=(sequences or int(predictor.memory.rows)) * plan.deployment.dp,
        max_model_len=chosen.max_model_len or plan.deployment.settings.max_model_len or plan.model.max_context,
        queue_limit=chosen.queue_limit,
        by_class=chosen.by_class,
        swap=chosen.swap,
        engines=plan.deployment.dp,
    )


def _usual(plan: Plan) -> str:
    """The policy that the engine is known for."""
    return "chunked" if plan.costs.mixes else "prefill-priority"


def _block(plan: Plan, setup: Setup) -> int:
    """Tokens of a block: as told, or the engine's, made smaller where hashes of prompts are finer."""
    told = setup.block_size or plan.deployment.settings.block_size
    own = int(plan.engine.memory.block)
    return told or (math.gcd(own, setup.hash_tokens) if setup.prefix_cache and setup.hash_tokens else own)


def _pool(predictor: Predictor, setup: Setup, tokens: int) -> BlockPool:
    size = _block(predictor.plan, setup)
    blocks = max(tokens // size, 1)
    if not setup.prefix_cache:
        return BlockPool(blocks, size)
    hashed = setup.hash_tokens or size
    if hashed % size:
        raise WorkloadError(f"a hash stands for {hashed} tokens, which is no multiple of block_size={size}")
    host = int(_tier(setup) * GIB / (hashed * predictor.memory.kv_bytes_per_token))
    return PrefixPool(blocks, size, hashed // size, host)


def _host(predictor: Predictor, setup: Setup) -> HostTier:
    """Host memory behind the accelerators' PCIe links, each of which carries its own share of the cache."""
    if not setup.host_gib:
        return HostTier()
    block = _block(predictor.plan, setup) * predictor.memory.kv_bytes_per_token
    bandwidth = float(predictor.plan.system.accelerator.pcie_bandwidth) * predictor.plan.deployment.gpus
    if not bandwidth:
        name = predictor.plan.system.accelerator.name
        raise WorkloadError(f"host_gib needs the PCIe bandwidth of {name}, which its file does not give")
    return HostTier(int(_tier(setup) * GIB / block), block / bandwidth)


def _tier(setup: Setup) -> float:
    """Host memory [GiB] for each of its uses: prefixes and preempted requests divide it."""
    return setup.host_gib / (2 if setup.prefix_cache and setup.scheduler.swap else 1)


def _link(predictor: Predictor, setup: Setup) -> Link:
    """Between replicas: a NIC for each accelerator, or its PCIe link where no NIC is known."""
    if not setup.prefill_replicas:
        return Link()
    accelerator, gpus = predictor.plan.system.accelerator, predictor.plan.deployment.gpus
    own = float(accelerator.nic_bandwidth or accelerator.pcie_bandwidth) * gpus
    bandwidth = own if setup.link_gb_s is None else setup.link_gb_s * GB
    if bandwidth <= 0:
        missing = f": the file of {accelerator.name} gives no bandwidth to take instead"
        raise WorkloadError(f"link_gb_s must be above 0{missing if setup.link_gb_s is None else ''}")
    return Link(setup.link_ms / 1e3, predictor.memory.kv_bytes_per_token / bandwidth, setup.staging)


@dataclass(frozen=True)
class _Drafting:
    """A clock whose decode steps draft first."""

    target: Clock
    seconds: float
    width: int

    def step(self, decodes: int, keys: int, chunks: Any, firsts: int) -> float:
        return self.target.step(decodes, keys, chunks, firsts) + (self.seconds if decodes else 0.0)

    def run(self, decodes: int, keys: int) -> tuple[float, float, int]:
        time, slope, steps = self.target.run(decodes, keys)
        return time + self.seconds, slope, steps


def _about(resolved: Resolved, setup: Setup, fleet: Fleet) -> dict[str, Any]:
    plan, limits = resolved.plan, fleet.replicas[0].limits
    inputs = {key: getattr(plan.deployment, key) for key in ("tp", "pp", "ep", "dp", "gpus")}
    precision = plan.precision
    inputs |= {"weights": getattr(precision.formats, plan.model.matrices[-1]).value, "kv": precision.kv.value}
    inputs |= asdict(setup.scheduler) | {key: value for key, value in asdict(setup).items() if key != "scheduler"}
    inputs |= {"token_budget": limits.token_budget, "max_num_seqs": limits.max_num_seqs}
    inputs |= {"max_model_len": limits.max_model_len, "policy": setup.scheduler.policy or _usual(plan)}
    pool = fleet.replicas[0].pool
    inputs |= {"block_size": pool.size, "kv_tokens": pool.total * pool.size}
    return {
        "version": __version__,
        "model": plan.model.name,
        "gpu": plan.system.accelerator.name,
        "engine": plan.deployment.engine,
        "level": "expected" if plan.calibration else "bound",
        "calibration": {"name": plan.calibration.name, "hash": plan.calibration.hash} if plan.calibration else None,
        "inputs": inputs,
    }


def _notes(run: Simulation, setup: Setup) -> Iterator[str]:
    ledger = run.ledger
    if setup.scheduler.swap and not setup.host_gib:
        yield "swap has no host memory: preempted requests were computed again; host_gib gives it some"
    if ledger.finished and not ledger.measured:
        yield f"all {ledger.finished} finished requests were of the warm-up; nothing was measured"
    if ledger.cut:
        reason = "an interrupt" if run.interrupted else "the end of the run"
        yield f"{ledger.cut} of {ledger.arrived} requests were cut by {reason} and are in no statistic of latency"
    for why, count in ledger.refusals.most_common():
        yield f"{count:,} request{'s were' if count > 1 else ' was'} rejected: {why}"
