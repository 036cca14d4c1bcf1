"""What holds in every run, whatever is asked, whenever it stops: requests, blocks, tokens and time are conserved."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflinekit.load.arrivals import Arrival
from rooflinekit.load.policies import POLICIES, Limits
from rooflinekit.load.scene import CacheTier, Drafting, FrontEnd
from rooflinekit.simulation.decoding import Lockstep, Speculative
from rooflinekit.simulation.event_loop import Link, ReplicaFleet, Simulation
from rooflinekit.simulation.kv_blocks import BlockPool, PrefixPool
from rooflinekit.simulation.ledger import Ledger, RequestObjective
from rooflinekit.simulation.replica import HostTier, ObjectReplica
from rooflinekit.simulation.requests import Source
from rooflinekit.simulation.tiers import Store

SIZE = 4


class Clock:
    """Steps that grow with what they do; may be interrupted at a step."""

    width = 1

    def __init__(self, fails_at=math.inf):
        self.left = fails_at

    def step(self, decodes, keys, chunks, firsts):
        self.count()
        return 0.01 + 1e-4 * decodes + 1e-5 * keys + 1e-4 * sum(new for new, _ in chunks)

    def run(self, decodes, keys):
        self.count()
        return 0.01 + 1e-4 * decodes + 1e-5 * keys, 1e-5 * decodes, 23

    def count(self):
        self.left -= 1
        if self.left <= 0:
            self.left = math.inf
            raise KeyboardInterrupt


arrivals = st.lists(
    st.builds(
        Arrival,
        st.floats(0, 3),
        st.integers(1, 60),
        st.integers(1, 40),
        st.lists(st.integers(0, 5), max_size=4).map(lambda keys: tuple(dict.fromkeys(keys))),
        st.integers(0, 2),
        st.integers(1, 3),
    ),
    min_size=1,
    max_size=40,
).map(sorted)

settings_of_runs = st.fixed_dictionaries(
    {
        "policy": st.sampled_from(sorted(POLICIES)),
        "blocks": st.integers(6, 80),
        "max_num_seqs": st.integers(1, 8),
        "token_budget": st.sampled_from([9, 16, 64, 1000]),
        "by_class": st.booleans(),
        "swap": st.booleans(),
        "host_room": st.sampled_from([0, 7, 1000]),
        "prefix": st.booleans(),
        "tiers": st.sampled_from([(), ("host",), ("host", "nvme")]),
        "draft": st.one_of(st.none(), st.tuples(st.integers(1, 4), st.floats(0, 1))),
        "queue_limit": st.one_of(st.none(), st.integers(0, 3)),
        "replicas": st.integers(1, 3),
        "prefills": st.integers(0, 2),
        "staging": st.integers(1, 4),
        "router": st.sampled_from(["least-loaded", "prefix-affinity", "random", "round-robin", "shared"]),
        "users": st.one_of(st.none(), st.integers(1, 6)),
        "horizon": st.one_of(st.just(math.inf), st.floats(0.01, 4)),
        "fails_at": st.one_of(st.just(math.inf), st.integers(1, 60)),
        "longest_run": st.sampled_from([1, 7, 1 << 30]),
        "front_end": st.sampled_from([0.0, 0.013, 5.0]),
        "hand_over": st.sampled_from([0.0, 0.004]),
        "overlap": st.integers(0, 2),
    }
)


def own_blocks(replica, job):
    """Blocks of a request's own, now."""
    if job.due < 0 or isinstance(replica.decoding, Speculative):
        return job.blocks
    keys = job.keys + replica.decoding.steps - job.joined
    return replica.pool.span(job, keys) - len(job.held) * getattr(replica.pool, "per", 1)


def check(index, replica, now):
    """Nothing is negative, no block is lost or counted twice, no sequence is where it should not be."""
    pool, decoding = replica.pool, replica.decoding
    assert 0 <= pool.free <= pool.total
    assert 0 <= replica.places <= replica.limits.max_num_seqs
    own = sum(own_blocks(replica, job) for job in replica.admitted)
    own += sum(blocks for blocks, _ in replica.staged.values())
    pinned = idle = 0
    if isinstance(pool, PrefixPool):
        pinned, idle = len(pool.pinned) * pool.per, len(pool.idle) * pool.per
        assert not pool.pinned.keys() & pool.idle.keys()
        assert all(len(tier.held) <= tier.room for tier in pool.tiers)
    assert pool.used == own + pinned
    assert idle <= pool.free
    members = [job for job in replica.admitted if job.due >= 0]
    assert decoding.width == sum(job.samples for job in members)
    assert replica.host.room >= 0
    assert replica.until == now


def build(asked, ledger):
    """The fleet that a scenario asks for."""

    def replica(seed):
        stores = [Store(CacheTier(name, 5.0, None, 0.003), 1.0, 500.0) for name in asked["tiers"]]
        pool = PrefixPool(asked["blocks"], SIZE, 1, stores) if asked["prefix"] else BlockPool(asked["blocks"], SIZE)
        draft = Drafting.even(*asked["draft"], 0.0, 64) if asked["draft"] else None
        decoding = Speculative(pool, draft, seed) if draft else Lockstep(pool)
        limits = Limits(
            POLICIES[asked["policy"]],
            asked["token_budget"],
            asked["max_num_seqs"],
            queue_limit=asked["queue_limit"],
            by_class=asked["by_class"],
            swap=asked["swap"],
            longest_run=asked["longest_run"],
            overlap=asked["overlap"],
        )
        clock = Clock(asked["fails_at"] if seed == 0 else math.inf)
        return ObjectReplica(limits, clock, decoding, ledger, HostTier(asked["host_room"], 0.001))

    replicas = [replica(number) for number in range(asked["replicas"])]
    prefills = [replica(10 + number) for number in range(asked["prefills"])]
    return ReplicaFleet(
        replicas, asked["router"], prefills, Link(0.01, 0.001, asked["staging"]),
        FrontEnd(lambda isl: asked["front_end"], asked["hand_over"]),
    )  # fmt: skip


def simulate(requests, asked):
    """Run, and note how each request ended."""
    ends = {}

    def keep(job, now, how):
        assert job.number not in ends, "a request ends once"
        ends[job.number] = (job, now, how)

    ledger = Ledger(RequestObjective(), keep)
    fleet = build(asked, ledger)
    source = Source(iter(requests), asked["users"])
    run = Simulation(fleet, source, ledger, asked["horizon"], check)
    run.run()
    return run, ends


@given(arrivals, settings_of_runs)
def test_everything_is_conserved(requests, asked):
    run, ends = simulate(requests, asked)
    ledger = run.ledger
    assert ledger.arrived == len(ends) == ledger.finished + ledger.rejected + ledger.cut
    assert ledger.present == 0
    stays = sum(now - job.arrived for job, now, _ in ends.values())
    assert ledger.area == pytest.approx(stays, rel=1e-9, abs=1e-9), "Little's law: ∫N dt = Σ stays"
    stopped = run.interrupted or asked["horizon"] < math.inf
    if not stopped:
        assert ledger.arrived == len(requests)
        assert ledger.cut == 0
    made = sum(job.samples * job.made for job, _, _ in ends.values())
    assert made == sum(r.decoding.tokens + r.work.first_tokens for r in run.fleet.all)
    for job, now, how in ends.values():
        assert job.arrived <= now <= run.now
        assert how != "finished" or (job.made == job.osl and job.arrived <= job.first <= now)
        assert how != "rejected" or job.made == 0
    for replica in run.fleet.all:
        assert replica.work.busy <= run.now * (1 + 1e-9)
        assert len(replica.queue) == 0
        if ledger.cut == 0:
            assert replica.pool.free == replica.pool.total
            assert replica.decoding.width == replica.decoding.keys == replica.places == 0
            assert replica.host.room == asked["host_room"]


@given(arrivals, settings_of_runs)
def test_runs_of_steps_change_nothing(requests, asked):
    """Whether a run of decode steps is taken at once or one by one, every request ends the same."""
    asked |= {"fails_at": math.inf, "horizon": math.inf}
    answers = [simulate(requests, asked | {"longest_run": longest}) for longest in (1, 1 << 30)]
    (one, single), (many, together) = answers
    for number, (job, now, how) in single.items():
        other, then, said = together[number]
        assert (other.made, other.cached, said) == (job.made, job.cached, how)
        assert (other.first, then) == pytest.approx((job.first, now), rel=1e-9)
    assert one.ledger.preempted == many.ledger.preempted
    assert one.ledger.itl.count == many.ledger.itl.count
    assert one.ledger.itl.total == pytest.approx(many.ledger.itl.total, rel=1e-9, abs=1e-12)


@given(arrivals, settings_of_runs)
def test_nobody_is_overtaken_under_first_come_first_served(requests, asked):
    """First tokens of one replica come in the order of arrival: there is no starvation.

    Who waits for keys from a lower tier lets others pass.
    """
    asked |= {"by_class": False, "replicas": 1, "prefills": 0, "fails_at": math.inf, "horizon": math.inf, "tiers": ()}
    _, ends = simulate(requests, asked)
    firsts = [ends[number][0].first for number in sorted(ends) if ends[number][2] == "finished"]
    assert firsts == sorted(firsts)


@given(arrivals, settings_of_runs)
def test_gaps_add_up_to_the_time_after_the_first_token(requests, asked):
    asked |= {"fails_at": math.inf, "horizon": math.inf}
    run, ends = simulate(requests, asked)
    decoding = sum(job.samples * (now - job.first) for job, now, how in ends.values() if how == "finished")
    assert run.ledger.itl.total == pytest.approx(decoding, rel=1e-9, abs=1e-9)


@given(arrivals, settings_of_runs, st.integers(1, 40))
def test_an_interrupt_keeps_what_was_done(requests, asked, step):
    asked |= {"fails_at": step, "horizon": math.inf}
    run, ends = simulate(requests, asked)
    assert len(ends) == run.ledger.arrived
    if run.interrupted:
        assert run.ledger.cut == sum(1 for *_, how in ends.values() if how == "cut")
