"""Random loads, and what the object simulator and the loop over lists make of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache, partial
from random import Random

from rooflinekit.estimation.estimator import resolve
from rooflinekit.load import loop, policies
from rooflinekit.load.arrays import Clients, Rules, State, Table
from rooflinekit.load.arrivals import Arrival
from rooflinekit.load.loop import GAPS, PREEMPTED, ROWS
from rooflinekit.load.policies import POLICIES, Limits
from rooflinekit.load.scene import Drafting, EncoderStation, FrontEnd
from rooflinekit.load.state import LISTS, Makers, new_state
from rooflinekit.load.table import StepTable, build_table
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.simulation.decoding import Lockstep, Speculative
from rooflinekit.simulation.event_loop import ReplicaFleet, Simulation
from rooflinekit.simulation.kv_blocks import BlockPool
from rooflinekit.simulation.ledger import Ledger, RequestObjective
from rooflinekit.simulation.replica import ObjectReplica
from rooflinekit.simulation.requests import Source

PLANS = {
    "vllm": ("llama-3-8b", "h100-sxm", Deployment()),
    "sglang": ("llama-3-8b", "h100-sxm", Deployment(engine="sglang")),
    "trtllm": ("gpt-oss-20b", "h100-sxm", Deployment(engine="trtllm")),
    "dp8": ("deepseek-v3", "h200-sxm", Deployment(tp=1, dp=8, ep=8)),
    "halves": ("deepseek-v3", "h200-sxm", Deployment(tp=1, dp=16, ep=16, all_to_all="deepep", two_batch=True)),
}
ROUTERS = ("round-robin", "random", "least-loaded", "shared")
DRAFTED = 2


@dataclass(frozen=True)
class Load:
    """All that a play depends on."""

    plan: str
    arrivals: tuple[Arrival, ...]
    users: int
    warmup: int
    limits: Limits
    blocks: int
    block: int
    front: tuple[float, float]  # seconds of a prompt, and of each of its tokens
    stream: float
    beside: bool  # a thread of its own tokenises prompts
    front_ends: int
    hop: float
    replicas: int
    router: str
    drafted: int = 0
    acceptance: float = 0.0
    draft_s: float = 0.0
    encoders: tuple[int, tuple[float, ...], float] = (0, (), 0.0)
    seed: int = 0
    room: int = 0  # steps that are written down at once


@cache
def step_table(plan: str, width: int = 1) -> StepTable:
    return build_table(resolve(*PLANS[plan], None).plan, 256, 20_000, width, 8192)


def random_load(seed: int) -> Load:
    draw = Random(seed)
    plan, policy, n = draw.choice(list(PLANS)), draw.choice(list(POLICIES)), draw.choice((5, 30, 150))
    engines = PLANS[plan][2].dp
    budget, most = draw.choice((256, 512, 2048, 8192)), draw.choice((1, 4, 16, 64)) * engines
    drafted = DRAFTED if plan != "sglang" and draw.random() < 0.25 else 0
    if budget * engines <= most * (drafted + 1):
        budget = 512
    chunks, alike = POLICIES[policy].chunks, draw.random() < 0.3
    users, rate = draw.choice((0, 0, 1, 3, 17, 64)), draw.choice((1.0, 10.0, 100.0, math.inf))
    arrivals, time, isl, osl = [], 0.0, draw.randint(1, 3000), draw.randint(1, 200)
    for _ in range(n):
        time += 0.0 if rate == math.inf else draw.expovariate(rate)
        if not alike:
            isl, osl = draw.choice((draw.randint(1, 3000), draw.randint(1, 100))), draw.randint(1, 200)
        prompt = isl if chunks else min(isl, budget)
        arrivals.append(Arrival(0.0 if users else time, prompt, osl, (), draw.choice((0, 0, 1, 2))))
    block = draw.choice((1, 16, 64))
    limits = Limits(
        POLICIES[policy], budget, most, draw.choice((None, None, 2500)), draw.choice((None, None, 5)),
        by_class=draw.random() < 0.3, engines=engines, overlap=draw.choice((0, 0, 1, 2)), reserves=draw.random() < 0.3,
    )  # fmt: skip
    load = Load(
        plan, tuple(arrivals), users, draw.choice((0, 0, 7)), limits,
        max(draw.choice((4000, 30_000, 1_000_000)) // block, 1), block,
        draw.choice(((0.0, 0.0), (2e-4, 0.0), (3e-3, 2e-6))), draw.choice((0.0, 6e-5)),
        draw.choice((False, True)), draw.choice((1, 1, 3)),
        draw.choice((0.0, 2e-3)),
        draw.choice((1, 1, 2, 5)),
        draw.choice(ROUTERS), drafted, seed=draw.randint(0, 9), room=draw.choice((0, 0, 40)),
    )  # fmt: skip
    if drafted:
        load = replace(load, acceptance=draw.choice((0.0, 0.6, 0.9, 1.0)), draft_s=draw.choice((0.0, 1e-3)))
    if draw.random() < 0.2:
        load = replace(load, encoders=(draw.choice((1, 3)), draw.choice(((0.02,), (0.01, 0.03))), 1e-3))
    return load


# --- the object simulator ---------------------------------------------------------------------------------------------


def simulate(load: Load):
    """What became of each request (sent, queued, first, end; -2 where it was refused), and sums of the replicas."""
    ends = {}

    def keep(job, now, how):
        end = -2.0 if how == "rejected" else now
        ends[job.number - 1] = (job.arrived, job.queued, -1.0 if end < 0.0 else job.first, end)

    clock = step_table(load.plan, load.drafted + 1)
    ledger = Ledger(RequestObjective(), keep)

    def replica():
        pool = BlockPool(load.blocks, load.block)
        draft = Drafting.even(load.drafted, load.acceptance, load.draft_s, load.limits.max_num_seqs)
        decoding = Speculative(pool, draft, load.seed) if load.drafted else Lockstep(pool)
        return ObjectReplica(load.limits, clock, decoding, ledger)

    gpus, parts, send = load.encoders
    each, token = load.front
    encoders = EncoderStation(gpus, parts, send) if gpus else None
    front = FrontEnd(
        lambda isl: each + isl * token, load.stream, token * load.beside, load.front_ends, load.hop, encoders
    )
    fleet = ReplicaFleet([replica() for _ in range(load.replicas)], load.router, None, None, front)
    run = Simulation(fleet, Source(iter(load.arrivals), load.users or None, load.warmup), ledger)
    run.run()
    works = [each.work for each in fleet.replicas]
    sums = [(w.steps, w.decode_steps, w.busy, w.sequences, w.blocks, w.computed) for w in works]
    return [ends[j] for j in range(len(load.arrivals))], sums, ledger.preempted


# --- the loop ---------------------------------------------------------------------------------------------------------


def tables_of(load: Load) -> tuple[Table, Table]:
    own, half = step_table(load.plan, load.drafted + 1).arrays
    drafting = [load.draft_s] * (load.limits.max_num_seqs + 1) if load.draft_s else []
    return own._replace(drafting=drafting), half


def clients_of(load: Load) -> Clients:
    n, draw, (each, token) = len(load.arrivals), Random(0), load.front
    return Clients(
        load.users, load.warmup, [a.time for a in load.arrivals], [a.isl for a in load.arrivals],
        [a.osl for a in load.arrivals], [0] * n, [a.priority for a in load.arrivals],
        [each + a.isl * token for a in load.arrivals], [draw.choice(range(load.replicas)) for _ in range(n)],
    )  # fmt: skip


def rules_of(load: Load) -> Rules:
    _, parts, send = load.encoders
    return policies.rules_of(
        load.limits, load.blocks, load.block, width=load.drafted + 1, drafted=load.drafted,
        acceptance=[load.acceptance] * load.drafted,
        replicas=load.replicas, router=ROUTERS.index(load.router), front_ends=load.front_ends,
        stream=load.stream, tokeniser=load.front[1] * load.beside, hop=load.hop,
        encoder_parts=list(parts), encoder_send=send,
    )  # fmt: skip


def state_of(load: Load, make: Makers = LISTS) -> State:
    return new_state(rules_of(load), len(load.arrivals), load.seed, load.encoders[0], load.room, make)


def begun(c, k, t, h, s):
    """Start a load; what plays it on."""
    loop.start(c, k, s)
    return partial(loop.play, c, k, t, h, s)


def played(c, k, t, h, s, begin=begun) -> State:  # noqa: PLR0917
    """Play to the end; where the log is full it is emptied."""
    play_on = begin(c, k, t, h, s)
    while not play_on():
        s.counts[ROWS] = s.counts[GAPS] = 0
    return s


def outcome(load: Load, s: State):
    """As `simulate` gives it."""
    ends = [
        (s.sent[j], s.queued[j], -1.0 if s.refused[j] else s.first[j], -2.0 if s.refused[j] else s.end[j])
        for j in range(len(load.arrivals))
    ]
    sums = zip(s.steps_made, s.decode_steps, s.busy, s.sequence_time, s.block_time, s.prompt_tokens, strict=True)
    return ends, list(sums), s.counts[PREEMPTED]


def lists(value):
    """A state, or part of it, as lists: what two ways of playing must share to the last bit."""
    if isinstance(value, State):
        return {name: lists(each) for name, each in zip(value._fields, value, strict=True)}
    if hasattr(value, "tolist"):
        return value.tolist()
    return [lists(each) for each in value] if isinstance(value, list) else value
