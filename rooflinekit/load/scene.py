"""A deployment as a load meets it: step table, scheduler, cache, front end, replicas and their router."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from heapq import heappop, heappush
from random import Random
from typing import Any

from rooflinekit.load.arrays import Clients, Rules, Table
from rooflinekit.load.arrivals import Drawn
from rooflinekit.load.policies import POLICIES, ROUTERS, Limits, rules_of
from rooflinekit.load.table import StepTable, build_table, one_step, with_halves
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.serving.encoding import encoders_of, served
from rooflinekit.model.serving.flight import front_end
from rooflinekit.model.speculation import SpeculativePredictor
from rooflinekit.model.step import Plan
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.errors import DoesNotFitError
from rooflinekit.model.types.late import np
from rooflinekit.model.types.speculation import expected_tokens
from rooflinekit.model.types.workload import Workload
from rooflinekit.specs.engines import caches_prefixes
from rooflinekit.specs.files import once

_LONGEST = 1 << 20  # tokens up to which step times are tabulated; beyond, the last slope goes on
_SHORTEST = 1 << 12  # tokens up to which step times are tabulated at least
_FOLLOWED = 1 << 26  # tokens beyond which a cache that does not grow is not followed


@dataclass(frozen=True)
class CacheTier:
    """One kind of memory that holds cache blocks which have left the one before.

    capacity: of each replica, or of all where it is `shared` [B]; bandwidth: of reads, for each replica (None: the
    PCIe links of its accelerators) [B/s]; latency: of a load [s]; usd_gb_hour: what a GB costs in an hour; waits: the
    next step waits for a load, else only the request does.
    """

    name: str
    capacity: float
    bandwidth: float | None = None
    latency: float = 0.0
    usd_gb_hour: float | None = None
    waits: bool = False
    shared: bool = False


@dataclass(frozen=True)
class Scheduler:
    """Queue and caches of each replica, number of replicas, their router, and pools.

    The forming of steps, and sizes that an engine is told, are `EngineSettings` of the deployment.
    """

    max_num_seqs: int | None = None  #: in place of the deployment's
    queue_limit: int | None = None
    by_class: bool = False
    imports: bool = False  #: decode replicas, to which prefill replicas hand prompts over
    draft_tokens: int = 0
    acceptance: float = 0.0
    draft_ms: float = 0.0  #: time to draft one token [ms]
    replicas: int = 1
    router: str = "round-robin"
    kv_tokens: int | None = None  #: tokens that the cache of one replica holds; None: as the memory model says
    seed: int = 0
    swap: bool = False
    prefix_cache: bool = False
    hash_tokens: int | None = None  #: prompt tokens that one hash of an arrival stands for; None: one block
    host_gib: float = 0.0  #: host memory for cache blocks, for each replica [GiB]
    tiers: tuple[CacheTier, ...] = ()  #: memory behind the accelerators' for prefixes, nearest first
    prefill_replicas: int = 0
    link_gb_s: float | None = None  #: from a prefill to a decode replica [GB/s]; None: the accelerators' NICs
    link_ms: float = 0.0  #: latency of a transfer [ms]
    staging: int = 64  #: prompts that are computed or wait on one prefill replica at most


class EncoderStation:
    """Accelerators that encode images before a request comes to a queue: all replicas' are one pool, first come first.

    parts: seconds of each accelerator that shares the images of a request; send: the way of the embeddings [s].
    """

    def __init__(self, gpus: int, parts: Sequence[float], send: float) -> None:
        self.parts, self.send, self.gpus = parts, send, gpus
        self.busy, self.encoded = 0.0, 0  #: of all accelerators [s]; parts of requests
        self._free_at = [0.0] * gpus

    def done(self, now: float) -> float:
        """Time at which the embeddings of a request are there; each part goes to the encoder that is free first."""
        last = now
        for part in self.parts:
            ends = max(now, heappop(self._free_at)) + part
            heappush(self._free_at, ends)
            self.busy += part
            self.encoded += 1
            last = max(last, ends)
        return last + self.send


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """Front end before the queue of a replica."""

    time: Callable[[Any], Any] = lambda isl: 0.0  #: its work for prompts of so many tokens, a number or an array [s]
    stream: float = 0.0  #: and for each token that it sends on [s]
    tokeniser: float = 0.0  #: the part of its work for a token of the prompt that it does beside what it sends [s]
    servers: int = 1  #: processes that share the requests of a replica
    hop: float = 0.0  #: from there to the queue, or to encoders [s]
    encoders: EncoderStation | None = None  #: before that, where images have accelerators of their own

    def rate(self, isl: float) -> float:
        """Requests a second that the front ends of a replica read at most."""
        work = self.time(round(isl))
        return self.servers / work if work else math.inf

    @property
    def most(self) -> float:
        """Requests a second that encoders pass on at most."""
        return self.encoders.gpus / sum(self.encoders.parts) if self.encoders else math.inf


@dataclass(frozen=True)
class Drafting:
    """Drafting in the steps of a replica; nothing by default.

    tokens: drafted in a row; verified: candidates that a step computes of each sequence; acceptance: of each token in a
    row, if those before it were accepted; seconds: by sequences that decode, from 0; prompt: its own pass over a prompt
    of mean length, where it keeps a cache [s].
    """

    tokens: int = 0
    verified: int = 0
    acceptance: tuple[float, ...] = ()
    seconds: tuple[float, ...] = ()
    prompt: float = 0.0

    @classmethod
    def even(cls, tokens: int, acceptance: float, seconds: float, most: int) -> Drafting:
        """Drafting of so many tokens, accepted alike, that takes as long for any number of up to `most` sequences."""
        return cls(tokens, tokens, (acceptance,) * tokens, (seconds,) * (most + 1))

    @property
    def yielded(self) -> float:
        """Mean tokens that a step gives to a sequence."""
        return expected_tokens(self.acceptance, self.tokens)


@dataclass(frozen=True)
class Scene:
    """Scene of a play: step table, draft, limits, blocks of the cache, front end, replicas and their router.

    shared: step times that scenes with other limits may share; graph_tokens: of the largest step with prompts that
    replays CUDA graphs.
    """

    shared: StepTable
    graph_tokens: float
    drafting: Drafting
    limits: Limits
    blocks: int
    block: int
    front: FrontEnd
    replicas: int
    router: str
    seed: int

    @cached_property
    def rules(self) -> Rules:
        """Rules in the form of the loop."""
        encoders = self.front.encoders
        return rules_of(
            self.limits,
            self.blocks,
            self.block,
            width=self.shared.width,
            drafted=self.drafting.tokens,
            acceptance=list(self.drafting.acceptance),
            replicas=self.replicas,
            lanes=self.shared.lanes,
            router=ROUTERS[self.router],
            front_ends=self.front.servers,
            stream=self.front.stream,
            tokeniser=self.front.tokeniser,
            hop=self.front.hop,
            encoder_parts=encoders.parts if encoders else [],
            encoder_send=encoders.send if encoders else 0.0,
        )

    @cached_property
    def tables(self) -> tuple[Table, Table]:
        """Step times as the loop has them, those of the draft included."""
        own, half = self.shared.arrays
        own = own._replace(budget=self.limits.token_budget, graph_tokens=self.graph_tokens)
        if self.drafting.tokens and self.drafting.prompt:
            own, half = (each._replace(encoded=_encoded(each, self.drafting.prompt)) for each in (own, half))
        if self.drafting.tokens:
            own = own._replace(drafting=list(self.drafting.seconds))
        return own, half if own.halved else own

    @cached_property
    def full_rates(self) -> dict[tuple[float, float, float], float]:
        """Rates of a full engine that are known, by mean tokens of prompts, of answers, and in the cache [1/s]."""
        return {}

    def clients(self, drawn: Drawn, users: int | None, warmup: int, cached: float = 0.0, prompts: int = 0) -> Clients:
        """Clients in the form of the loop; this share of each prompt is in the cache already, but never its last token.

        prompts: different ones that are sent again and again; they stay in the cache where it has room for all of them
        beside the answers under way, else it drops each before it returns.
        """
        n = len(drawn.isl)
        chosen = [0] * n
        if self.router == "random":
            draw = Random(0)
            chosen = [draw.choice(range(self.replicas)) for _ in range(n)]
        front = np.broadcast_to(self.front.time(np.array(drawn.isl)), n).tolist()
        known = [min(round(cached * each), each - 1) for each in drawn.isl] if cached else [0] * n
        known = known if drawn.cached is None else drawn.cached
        if prompts and self._keeps(prompts, drawn, users or 1):
            known[prompts:] = [(each - 1) // self.block * self.block for each in drawn.isl[prompts:]]
        return Clients(users or 0, warmup, drawn.time, drawn.isl, drawn.osl, known, drawn.priority, front, chosen)

    def _keeps(self, prompts: int, drawn: Drawn, users: int) -> bool:
        """True if so many prompts stay in the cache of a replica."""
        isl, osl = (sum(each) / len(each) for each in (drawn.isl, drawn.osl))
        kept = prompts * isl + min(users, prompts) * osl / 2.0 <= self.blocks * self.block
        return self.limits.prefix_caching and kept


def drafted_steps(table: StepTable, drafting: Drafting) -> StepTable:
    """Step times where the draft reads each prompt too, at its end."""
    if not drafting.prompt:
        return table
    halves = [drafted_steps(each, drafting) for each in table.halves]
    return replace(table, encoded=_encoded(table, drafting.prompt), halves=halves)


def _encoded(table: Table | StepTable, seconds: float) -> list[float]:
    """What prompts that end add, where each takes so much longer [s]."""
    before = [table.encoded[n] if len(table.encoded) else 0.0 for n in range(len(table.sequences))]
    return [each + n * seconds for n, each in enumerate(before)]


def kv_capacity_tokens(predictor: Predictor, context: float, sequences: int) -> int:
    """Tokens that the cache of a replica holds, for sequences of about `context` tokens.

    The number that fits at this length times the longest length at which it still does; where layers stop growing
    with the context (windows, recurrent states), that is more than for longer sequences.

    Raises DoesNotFitError if not even one such sequence fits.
    """
    memory = predictor.memory
    fitting = float(memory.max_batch(context, context))
    if fitting < 1:
        raise DoesNotFitError(
            f"{predictor.plan.model.name} on {predictor.plan.system.accelerator.name} has no room for one request of "
            f"{context:.0f} tokens"
        )
    low, high = int(context), 2 * int(context) + 2
    while high < _FOLLOWED and memory.max_batch(float(high), context) >= fitting:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if memory.max_batch(float(middle), context) >= fitting else (low, middle)
    return low * int(min(fitting, sequences) if high >= _FOLLOWED else fitting)


def usual_policy(plan: Plan, longer: bool) -> str:
    """The name of the policy that the engine is known for; where prompts are longer than a step, it has to cut them."""
    if plan.costs.mixes:
        return "chunked" if plan.costs.splits or longer else "continuous"
    return "chunked-prefill" if plan.costs.splits else "prefill-priority"


def kept_table(plan: Plan, sequences: int, longest: int, width: int = 1, budget: int = 0) -> StepTable:
    """A step table of at least this size; those of the latest few plans are kept, and others while one plays on them.

    Plans whose steps take the same times share one: front ends, token budgets and limits of sequences may differ. So
    its `budget` is none of theirs, and its `graph_tokens` are those of whoever came first; it reaches further than is
    asked for. Steps whose halves take turns are, as long as they are short, those of the plan that does not divide
    them.
    """
    usual, size = one_step(plan), (sequences, longest, width, budget)
    own = (sequences, budget) if plan.lanes > 1 else ()  # the busiest stage is that of one size
    key = longest, width, own, id(plan.model), *_steps_key(plan)
    known = _known[key][1]() if key in _known else None
    if known is None or not known.covers(sequences, max(longest, budget)):
        if plan.deployment.two_batch and plan.lanes == 1:
            undivided = replace(plan, deployment=replace(plan.deployment, two_batch=False))
            known = replace(with_halves(kept_table(undivided, *size), plan), plan=usual)
        else:
            if not own:
                sequences = max(1 << (sequences - 1).bit_length(), _SEQUENCES // plan.deployment.dp)
                budget = max(budget, _TOKENS)
            known = build_table(plan, sequences, longest, width, budget)
        _known[key] = plan, weakref.ref(known)
    _latest.pop(key, None)
    _latest[key] = known
    if len(_latest) > _KEPT:
        del _latest[next(iter(_latest))]
    if len(_known) > _WATCHED:
        for gone in [key for key, (_, table) in _known.items() if table() is None]:
            del _known[gone]
    return known


_known: dict[Hashable, tuple[Plan, weakref.ref[StepTable]]] = {}
"""By what the times depend on; the plan keeps the objects alive that the key names by their identity."""
_latest: dict[Hashable, StepTable] = {}
_KEPT, _WATCHED = 16, 1024
_ROUNDS = 1024  # sequences of an attention replica for which rounds of a draft are worked out at least
_SEQUENCES, _TOKENS = 512, 16_384  # of all attention replicas, and of a step of one, for which a table is made at least


def _steps_key(plan: Plan) -> tuple[Hashable, ...]:
    """What the times of steps depend on but for their tokens; some objects by identity, which the plan keeps alive."""
    parts = one_step(plan).deployment, frozenset(plan.operations.items()), plan.engine.costs, plan.precision
    return *parts, plan.model.depth, id(plan.system), id(plan.calibration)


def usual_rounds(predictor: Predictor) -> SpeculativePredictor:
    """The first predictor whose rounds of decoding take the same times: limits of its engine may differ."""
    assert isinstance(predictor, SpeculativePredictor)  # asked only where there is a draft
    draft = predictor.draft
    plans = [_steps_key(each) for each in (predictor.plan, draft.first, draft.later) if each is not None]
    key = *plans, draft.first is None, draft.choice.draft_tokens, draft.choice.verified, draft.catch_up
    known = _rounds.pop(key, predictor)
    _rounds[key] = known
    if len(_rounds) > _KEPT:
        del _rounds[next(iter(_rounds))]
    return known


_rounds: dict[Hashable, SpeculativePredictor] = {}


def counts_upto(most: int) -> str:
    """The number up to which rounds are worked out, so that deployments with other limits share them."""
    return str(max(1 << (most - 1).bit_length(), _ROUNDS))


@once
def _draft_seconds(predictor: SpeculativePredictor, isl: float, context: float, most: str) -> list[float]:
    """Times that drafting adds to rounds of 1, 2, … sequences of each attention replica [s]."""
    counts = np.arange(1.0, int(most) + 1.0) * predictor.plan.deployment.dp
    each = predictor.draft_time(Workload(counts, isl, 2.0), context)
    seconds: list[float] = np.broadcast_to(np.asarray(each, float), int(most)).tolist()
    return seconds


def limits_of(predictor: Predictor, chosen: Scheduler, longest: float, isl: float) -> Limits:
    """Limits of a replica's scheduler where requests are up to `longest` tokens long, and prompts `isl` in the mean."""
    plan, memory = predictor.plan, predictor.memory
    settings, dp = plan.deployment.settings, plan.deployment.dp
    caching = settings.prefix_caching == "on"
    if settings.prefix_caching is None:
        caching = caches_prefixes(plan.deployment.engine, plan.deployment.engine_version)
    budget = settings.token_budget or int(plan.token_budget)
    sequences = chosen.max_num_seqs or settings.max_num_seqs or int(memory.rows)
    policy = POLICIES[settings.policy or usual_policy(plan, longest > budget)]
    if policy.chunks and policy.mixes and not (chosen.max_num_seqs or settings.max_num_seqs):
        sequences = min(sequences, budget)
    return Limits(
        policy=policy,
        token_budget=budget,
        max_num_seqs=int(max(min(sequences, memory.state_blocks[1], memory.window_places(isl)), 1.0)) * dp,
        max_model_len=settings.max_model_len or plan.model.max_context,
        queue_limit=chosen.queue_limit,
        by_class=chosen.by_class,
        swap=chosen.swap,
        receive_interval=settings.scheduler_recv_interval,
        batch_wait=settings.batch_wait,
        prefix_caching=caching,
        engines=dp,
        overlap=int(plan.costs.overlap),
        reserves=plan.engine.memory.reserves,
        imports=chosen.imports,
    )


def steps_of(predictor: Predictor, limits: Limits, longest: int, width: int = 1, lanes: int = 1) -> StepTable:
    """Step times of a deployment whose steps verify `width` tokens of each sequence, of one of its `lanes`."""
    shared = _shared_steps(predictor, limits, longest, width, lanes)
    return replace(shared, budget=limits.token_budget, graph_tokens=predictor.plan.graph_tokens)


def _shared_steps(predictor: Predictor, limits: Limits, longest: int, width: int, lanes: int) -> StepTable:
    """The same, but for the token budget and the size of the graphs.

    Requests up to a power of two of tokens share a table, so that a deployment has few of them.
    """
    shared = 1 << max(longest - 1, _SHORTEST - 1).bit_length()
    most = min(shared, limits.max_model_len or _LONGEST, _LONGEST)
    sequences = -(-limits.max_num_seqs // (limits.engines * lanes))
    return kept_table(predictor.plan, sequences, most, width, limits.token_budget)


def drafting_of(predictor: Predictor, chosen: Scheduler, most: int, isl: float, osl: float) -> Drafting:
    """Drafting in steps of up to `most` sequences: as a scheduler says, or else by the predictor's own draft.

    The predictor's takes the time of steps at the mean context.
    """
    if k := chosen.draft_tokens:
        return Drafting.even(k, chosen.acceptance, k * chosen.draft_ms / 1e3, most)
    if not isinstance(predictor, SpeculativePredictor):
        return Drafting()
    choice = predictor.draft.choice
    dp = predictor.plan.deployment.dp
    each = _draft_seconds(usual_rounds(predictor), isl, isl + osl / 2.0, counts_upto(-(-most // dp)))
    seconds = [each[-(-count // dp) - 1] for count in range(1, most + 1)]
    rates = tuple(choice.acceptance[min(place, len(choice.acceptance) - 1)] for place in range(choice.draft_tokens))
    prompt = float(predictor.draft.prefill(Batch.prefill(1.0, max(isl, 1.0))).expected)
    return Drafting(choice.draft_tokens, choice.verified, rates, (0.0, *seconds), prompt)


def front_end_of(predictor: Predictor, replicas: int = 1) -> FrontEnd:
    """Front end before the queue of a replica; encoders of all replicas are together."""
    costs, deployment = predictor.plan.costs, predictor.plan.deployment
    settings, encoders = deployment.settings, _encoders(predictor.plan, replicas)
    if settings.front_end == "token-ids":
        return FrontEnd(lambda isl: costs.hand_over, costs.detokenised, hop=costs.hop, encoders=encoders)
    servers = settings.api_servers or (deployment.dp if costs.servers_by_replica else 1)
    stream = costs.detokenised + costs.chunk / settings.stream_interval
    beside = costs.token if costs.tokenises_beside else 0.0
    return FrontEnd(partial(front_end, costs), stream, beside, servers, costs.hop, encoders)


def _encoders(plan: Plan, replicas: int) -> EncoderStation | None:
    """Encoders of all replicas together, where images have accelerators of their own."""
    found = encoders_of(plan)
    if found is None:
        return None
    parts = [float(part.expected) for count, part in found.parts for _ in range(count)]
    return EncoderStation(found.gpus * replicas, parts, float(found.send.expected))


def scene_of(predictor: Predictor, chosen: Scheduler, typical: float, longest: int, isl: float = 1.0) -> Scene:
    """The scene of a deployment.

    Args:
        predictor: the deployment.
        chosen: its scheduler, replicas and router.
        typical: mean tokens of a request, prompt and answer; the cache holds so many of them.
        longest: tokens of the longest request.
        isl: mean tokens of a prompt, which the predictor's draft reads.

    Raises:
        DoesNotFitError: the cache holds not one request.
    """
    predictor = served(predictor)
    limits = limits_of(predictor, chosen, longest, isl)
    tokens = chosen.kv_tokens or kv_capacity_tokens(predictor, typical, limits.max_num_seqs)
    drafting = drafting_of(predictor, chosen, limits.max_num_seqs, isl, typical - isl)
    settings = predictor.plan.deployment.settings
    block = settings.block_size or int(predictor.plan.engine.memory.block)
    return Scene(
        shared=_shared_steps(predictor, limits, longest, drafting.verified + 1, predictor.plan.lanes),
        graph_tokens=predictor.plan.graph_tokens,
        drafting=drafting,
        limits=limits,
        blocks=max(tokens // block, 1),
        block=block,
        front=front_end_of(predictor, chosen.replicas),
        replicas=chosen.replicas,
        router=chosen.router,
        seed=chosen.seed,
    )
