"""The simulator against hand numbers, queueing formulas and itself."""

from __future__ import annotations

import math
import os
import signal
from functools import partial
from itertools import count
from random import Random
from statistics import median, stdev

import pytest

import rooflinekit as rk
from rooflinekit.load.arrivals import Arrival
from rooflinekit.load.policies import POLICIES, Limits
from rooflinekit.load.scene import CacheTier, Drafting, FrontEnd
from rooflinekit.model.types.errors import WorkloadError
from rooflinekit.simulation.decoding import Lockstep, Speculative
from rooflinekit.simulation.event_loop import Link, ReplicaFleet, Simulation
from rooflinekit.simulation.kv_blocks import BlockPool, PrefixPool
from rooflinekit.simulation.ledger import Ledger, RequestObjective, Sketch
from rooflinekit.simulation.replica import HostTier, ObjectReplica
from rooflinekit.simulation.requests import Source
from rooflinekit.simulation.tiers import Store


class Constant:
    """Every step takes the same time, and each prompt token some more."""

    def __init__(self, step=1.0, token=0.0):
        self.time, self.token = step, token

    def step(self, decodes, keys, chunks, firsts):
        return self.time + self.token * sum(new for new, _ in chunks)

    def run(self, decodes, keys):
        return self.time, 0.0, 1 << 30


class Exponential:
    """Steps of random length."""

    def __init__(self, mean, seed):
        self.mean, self.draw = mean, Random(seed)

    def step(self, decodes, keys, chunks, firsts):
        return self.draw.expovariate(1 / self.mean)

    def run(self, decodes, keys):
        return self.draw.expovariate(1 / self.mean), 0.0, 1


class Growing:
    """A decode step takes a base, and more for each key: straight, as a cell of the step table is."""

    def __init__(self, cell=37):
        self.cell = cell

    def step(self, decodes, keys, chunks, firsts):
        return 0.01 + 1e-6 * keys + 1e-5 * sum(new for new, _ in chunks)

    def run(self, decodes, keys):
        return 0.01 + 1e-6 * keys, 1e-6 * decodes, self.cell


def serve(arrivals, clock=None, *, users=None, warmup=0, blocks=1000, size=4, replicas=1, pool=None, **more):
    """Run arrivals through replicas; returns the simulation and what became of each request."""
    host, router = more.pop("host", None), more.pop("router", "round-robin")
    prefills, link, horizon = more.pop("prefills", 0), more.pop("link", None), more.pop("horizon", math.inf)
    draft = more.pop("draft", None)
    more["policy"] = POLICIES[more.get("policy", "chunked")]
    ends = {}

    def keep(job, now, how):
        assert job.number not in ends, "a request ends once"
        ends[job.number] = (job.first, now, how, job.made, job.cached)

    ledger, clock = Ledger(more.pop("objective", RequestObjective()), keep), clock or Constant()

    def replica():
        own = pool() if pool else BlockPool(blocks, size)
        decoding = Speculative(own, Drafting.even(*draft, 0.0, 64), 0) if draft else Lockstep(own)
        return ObjectReplica(Limits(**({"max_num_seqs": 64} | more)), clock, decoding, ledger, host and HostTier(*host))

    fleet = ReplicaFleet([replica() for _ in range(replicas)], router, [replica() for _ in range(prefills)], link)
    source = Source(iter(arrivals), users, warmup)
    run = Simulation(fleet, source, ledger, horizon)
    run.run()
    return run, ends


def times(ends):
    return [(first, end) for first, end, *_ in (ends[number] for number in sorted(ends))]


# --- by hand --------------------------------------------------------------------------------------------------------


def test_one_request_takes_a_prefill_and_a_step_for_each_further_token():
    run, ends = serve([Arrival(0.5, 10, 4)])
    assert times(ends) == [(1.5, 4.5)]
    assert run.ledger.tpot.mean == 1.0
    assert run.fleet.all[0].work.steps == 4


def test_chunks_fill_the_budget_beside_decoding():
    """Budget 8: the second prompt of 20 has 8, then 7 beside the first's token, then 5."""
    _, ends = serve([Arrival(0.0, 8, 3), Arrival(0.5, 20, 1)], token_budget=8, max_num_seqs=4)
    assert times(ends) == [(1.0, 3.0), (4.0, 4.0)]  # 7 + 7 + 6, the third step alone
    _, ends = serve([Arrival(0.0, 8, 9), Arrival(0.5, 20, 1)], token_budget=8, max_num_seqs=4)
    assert times(ends)[1] == (4.0, 4.0)


@pytest.mark.parametrize(("overlap", "first"), [(0, 3.0), (1, 4.0), (2, 5.0)])
def test_a_prompt_joins_after_the_steps_made_up_before_it_came(overlap, first):
    """It comes at 1.5, in the step from 1 to 2; an idle engine takes it at once."""
    _, ends = serve([Arrival(0.0, 8, 40), Arrival(1.5, 8, 2), Arrival(100.0, 8, 1)], token_budget=100, overlap=overlap)
    assert times(ends)[1:] == [(first, first + 1.0), (101.0, 101.0)]


@pytest.mark.parametrize(("policy", "expected"), [
    # the first has its prompt at 1; the second comes at 1.5
    ("static", [(1.0, 4.0), (5.0, 6.0)]),
    ("decode-priority", [(1.0, 4.0), (5.0, 6.0)]),
    ("prefill-priority", [(1.0, 5.0), (3.0, 4.0)]),  # a step of its own while the first waits
    ("chunked-prefill", [(1.0, 5.0), (3.0, 4.0)]),
    ("continuous", [(1.0, 4.0), (3.0, 4.0)]),
    ("chunked", [(1.0, 4.0), (3.0, 4.0)]),
])  # fmt: skip
def test_policies_differ_as_they_should(policy, expected):
    _, ends = serve([Arrival(0.0, 8, 4), Arrival(1.5, 8, 2)], policy=policy, token_budget=100)
    assert times(ends) == expected


@pytest.mark.parametrize(("policy", "expected"), [
    ("prefill-priority", [(1.0, 4.0), (2.0, 4.0), (3.0, 4.0)]),  # one whole prompt of 8 in a step of 12 tokens
    ("chunked-prefill", [(1.0, 3.0), (2.0, 3.0), (2.0, 3.0)]),  # 8 and 4, then 4 and 8
])  # fmt: skip
def test_sglang_cuts_the_last_prompt_of_a_step(policy, expected):
    _, ends = serve([Arrival(0.0, 8, 2)] * 3, policy=policy, token_budget=12)
    assert times(ends) == expected


def test_the_front_end_reads_one_prompt_after_the_other():
    """A token takes a tenth of a second to read. The first is read at 2.0, the second 0.4 later."""
    source, ends = Source(iter([Arrival(0.0, 20, 1), Arrival(0.5, 4, 1)])), {}
    ledger = Ledger(RequestObjective(), lambda job, now, how: ends.setdefault(job.number, job.queued))
    replica = ObjectReplica(Limits(max_num_seqs=64), Constant(), Lockstep(BlockPool(1000, 4)), ledger)
    Simulation(ReplicaFleet([replica], front_end=FrontEnd(lambda isl: 0.1 * isl)), source, ledger).run()
    assert ends == {1: 2.0, 2: 2.4}


def test_a_static_batch_pays_for_the_places_of_those_who_have_finished():
    class Width(Constant):
        def run(self, decodes, keys):
            seen.append(decodes)
            return super().run(decodes, keys)

    seen: list[int] = []
    serve([Arrival(0.0, 8, 2), Arrival(0.0, 8, 6)], Width(), policy="static")
    assert seen == [2, 2]  # a run to the end of the first, and one to the end of the second
    seen.clear()
    serve([Arrival(0.0, 8, 2), Arrival(0.0, 8, 6)], Width(), policy="decode-priority")
    assert seen == [2, 1]


def test_a_long_prompt_blocks_the_line_unless_it_is_cut():
    """Head-of-line blocking: gaps between a decoding sequence's tokens while 1,000 prompt tokens are computed."""
    arrivals = [Arrival(0.0, 10, 50), Arrival(5.0, 1000, 1)]
    worst = {}
    for policy in ("continuous", "chunked"):
        run, _ = serve(arrivals, Constant(0.1, 0.01), policy=policy, token_budget=100)
        worst[policy] = run.ledger.itl.largest
    assert worst["continuous"] == pytest.approx(10.1)
    assert worst["chunked"] == pytest.approx(0.1 + 0.99)  # 99 prompt tokens beside one decoding sequence


def test_blocks_run_out_and_the_last_one_is_computed_again():
    """Four blocks of 4: both prompts of 4 fit, and 5 tokens each; the first needs its third block at 9 tokens."""
    run, ends = serve([Arrival(0.0, 4, 8), Arrival(0.0, 4, 8)], blocks=4, size=4)
    assert run.ledger.preempted == 1
    assert [how for *_, how, _, _ in ends.values()] == ["finished", "finished"]
    assert times(ends)[0] == (1.0, 8.0)
    # at step 5 the second has 5 tokens and must go; it comes back after the first, with 4 + 5 tokens to compute
    assert times(ends)[1] == (1.0, 11.0)
    assert run.fleet.all[0].work.computed == 4 + 4 + 9


def test_swapping_costs_the_copies_and_no_second_prefill():
    run, ends = serve([Arrival(0.0, 4, 8), Arrival(0.0, 4, 8)], blocks=4, size=4, swap=True, host=(100, 0.25))
    replica = run.fleet.all[0]
    assert replica.work.swapped == run.ledger.preempted == 1
    assert replica.work.computed == 8
    assert replica.host.room == 100
    # two blocks out (0.5 s) with the step that follows, two back after the first has ended, then three steps
    assert times(ends)[0] == (1.0, 8.5)
    assert times(ends)[1][1] == pytest.approx(8.5 + 0.5 + 3)


def test_a_cached_prefix_is_not_computed_again():
    arrivals = [Arrival(0.0, 16, 1, (1, 2, 3, 4)), Arrival(5.0, 18, 1, (1, 2, 3, 9)), Arrival(9.0, 16, 1, (1, 2, 3, 4))]
    run, ends = serve(arrivals, pool=lambda: PrefixPool(100, 4))
    assert [cached for *_, cached in ends.values()] == [0, 12, 12]  # the last token is always computed
    assert run.fleet.all[0].work.computed == 16 + 6 + 4
    assert run.fleet.all[0].pool.found == 24


def test_the_least_recently_used_prefix_goes_first_and_host_memory_keeps_it():
    """Six blocks; the fourth request finds two free and takes one more: the end of the prefix used longest ago."""
    prefixes = [(1, 2), (3, 4), (1, 2), (5, 6), (1, 2), (3, 4)]
    arrivals = [Arrival(float(at), 9, 1, keys) for at, keys in enumerate(prefixes)]
    _, ends = serve(arrivals, pool=lambda: PrefixPool(6, 4))
    assert [cached for *_, cached in ends.values()] == [0, 0, 8, 0, 8, 4]
    for waits in (True, False):  # the step waits for the copy, or the request alone: nobody else is there
        host = store("host", blocks=10, waits=waits)
        _, ends = serve(arrivals, Constant(0.5), pool=partial(PrefixPool, 6, 4, 1, [host]))
        assert [cached for *_, cached in ends.values()] == [0, 0, 8, 0, 8, 8]
        first, _, *_ = ends[6]
        assert first == 5.0 + 0.5 + 0.125  # one block from the host
        assert host.loaded == 1


def store(name, blocks, latency=0.0, seconds=0.125, **more):
    """A tier of so many blocks, each of which takes some time to load."""
    return Store(CacheTier(name, float(blocks), latency=latency, **more), 1.0, 1.0 / seconds)


def test_what_leaves_a_tier_goes_to_the_next_and_a_load_takes_latency_and_bytes():
    """Of six other blocks two push the first prefix out of host memory; both its blocks are loaded from NVMe."""
    arrivals = [Arrival(float(at), 9, 1, keys) for at, keys in enumerate([(1, 2), (3, 4), (5, 6), (7, 8), (1, 2)])]
    host, nvme = store("host", 2), store("nvme", 100, latency=0.25, seconds=0.5)
    _, ends = serve(arrivals, Constant(0.5), pool=lambda: PrefixPool(3, 4, 1, [host, nvme]))
    assert [cached for *_, cached in ends.values()] == [0, 0, 0, 0, 8]
    assert ends[5][0] == 4.0 + 0.25 + 2 * 0.5 + 0.5
    assert (host.loaded, nvme.loaded) == (0, 2)


def test_a_load_delays_its_request_alone_and_one_load_follows_the_other():
    """Two prompts come from the tier while a third decodes: it gets a token a step, they wait for 2 and 4 blocks."""
    seen = [Arrival(0.0, 9, 1, (1, 2)), Arrival(1.0, 9, 1, (3, 4)), Arrival(2.0, 57, 1)]  # which takes all 15 blocks
    again = [Arrival(10.0, 2, 30), Arrival(10.0, 9, 1, (1, 2)), Arrival(10.0, 9, 1, (3, 4))]
    _, ends = serve(
        [*seen, *again], Constant(0.25), pool=lambda: PrefixPool(15, 4, 1, [store("host", 10, seconds=1.0)])
    )
    assert [ends[number][4] for number in (4, 5, 6)] == [0, 8, 8]
    assert [ends[number][1] for number in (4, 5, 6)] == [10.0 + 30 * 0.25, 12.25, 14.25]


def test_replicas_share_a_remote_tier():
    """What the first replica had to give up, the second loads; of two tiers of their own it would find nothing."""
    arrivals = [Arrival(float(at), 9, 1, keys) for at, keys in enumerate([(1, 2), (9, 9), (3, 4), (1, 2)])]

    def cached(tiers):
        pools = iter(PrefixPool(3, 4, 1, [each]) for each in tiers)
        _, ends = serve(arrivals, pool=lambda: next(pools), replicas=2)
        return ends[4][4]

    one = store("remote", 10, shared=True)
    assert cached([one, one]) == 8
    assert cached([store("own", 10), store("own", 10)]) == 0


def test_samples_share_the_prompt():
    """Prompt of 10 in blocks of 4: two full blocks shared, and three more a sample for 10 + 5 - 1 keys."""
    pool = BlockPool(100, 4)
    _, ends = serve([Arrival(0.0, 10, 5, (), 0, 3)], pool=lambda: pool)
    assert times(ends) == [(1.0, 5.0)]
    from rooflinekit.simulation.requests import Job

    job = Job(1, Arrival(0.0, 10, 5, (), 0, 3))
    assert pool.span(job, 10) == 2 + 3 * 1
    assert pool.span(job, 14) == 2 + 3 * 2


def test_classes_go_first():
    arrivals = [Arrival(0.0, 8, 4), Arrival(0.1, 8, 2, (), 1), Arrival(0.2, 8, 2, (), 0)]
    _, ends = serve(arrivals, max_num_seqs=1, by_class=True)
    assert times(ends)[2][1] < times(ends)[1][0]
    _, ends = serve(arrivals, max_num_seqs=1)
    assert times(ends)[1][1] < times(ends)[2][0]


def test_drafts_that_are_always_accepted_divide_the_steps():
    _, ends = serve([Arrival(0.0, 8, 13)], draft=(3, 1.0))
    assert times(ends) == [(1.0, 4.0)]  # 1 token with the prompt, then 4 a step
    _, ends = serve([Arrival(0.0, 8, 13)], draft=(3, 0.0))
    assert times(ends) == [(1.0, 13.0)]


def test_expected_tokens_of_a_draft():
    """(1 - a^(k+1))/(1 - a) tokens a step: 2.3056 for a = 0.6 and k = 4."""
    run, _ = serve([Arrival(0.0, 8, 2001)] * 20, draft=(4, 0.6), blocks=100_000)
    work = run.fleet.all[0].work
    rounds = sum((1.0 - 0.6**5) / 0.4 for _ in range(1))
    assert 2000 / rounds == pytest.approx(work.decode_steps, rel=0.08)  # the slowest of 20 sequences


def test_a_transferred_prompt_decodes_elsewhere():
    """Prompt at 1 s, copied in 0.5 + 8·0.25 s, then three steps on the other replica."""
    link = Link(0.5, 0.25, 4)
    run, ends = serve([Arrival(0.0, 8, 4)], prefills=1, link=link)
    assert times(ends) == [(1.0, 1.0 + 2.5 + 3)]
    assert [replica.pool.used for replica in run.fleet.all] == [0, 0]


def test_staging_stalls_the_prefill_replica():
    """One prompt may be staged: the second prefill waits until the first is copied."""
    _, ends = serve([Arrival(0.0, 8, 2)] * 2, prefills=1, link=Link(3.0, 0.0, 1))
    assert times(ends) == [(1.0, 5.0), (5.0, 9.0)]
    _, ends = serve([Arrival(0.0, 8, 2)] * 2, prefills=1, link=Link(3.0, 0.0, 9))
    assert times(ends)[1] == (1.0, 8.0)  # the link copies one after the other


def test_routers():
    arrivals = [Arrival(0.0, 8, 100), Arrival(0.1, 8, 1), Arrival(2.5, 8, 1)]
    _, ends = serve(arrivals, replicas=2, max_num_seqs=1, token_budget=64)
    assert times(ends)[2][0] > 100  # in turn, the third is behind the long one
    for router in ("least-loaded", "shared"):
        _, ends = serve(arrivals, replicas=2, max_num_seqs=1, token_budget=64, router=router)
        assert times(ends)[2][0] < 4
    same = [Arrival(float(at), 16, 1, (at % 3, 7 + at % 3, 11)) for at in range(30)]
    hits = {}
    for router in ("round-robin", "prefix-affinity"):
        run, _ = serve(same, pool=lambda: PrefixPool(12, 4), replicas=3, router=router)
        hits[router] = sum(replica.pool.found for replica in run.fleet.all)
    assert hits["prefix-affinity"] >= hits["round-robin"]


def test_closed_loop_keeps_the_users_in_flight_and_warms_up_first():
    run, ends = serve([Arrival(0.0, 8, 2)] * 12, users=2, warmup=4)
    assert run.ledger.measured == 8
    assert times(ends)[:4] == [(1.0, 2.0), (1.0, 2.0), (3.0, 4.0), (3.0, 4.0)]
    assert times(ends)[-1] == (11.0, 12.0)
    assert run.ledger.ttft.mean == 1.0
    assert run.ledger.measured_from == 4.0


def test_the_horizon_cuts_and_says_so():
    run, ends = serve([Arrival(0.0, 8, 100), Arrival(0.0, 8, 3)], horizon=10.5)
    assert run.now == 10.5
    assert (run.ledger.finished, run.ledger.cut) == (1, 1)
    assert ends[1][1:4] == (10.5, "cut", 10)  # steps of 1 s, the last of which ends at 10 s, in a run that would go on


def test_the_horizon_books_only_steps_that_are_over():
    run, _ = serve([Arrival(0.0, 8, 100)], Growing(), horizon=10.5)
    single, _ = serve([Arrival(0.0, 8, 100)], Growing(), horizon=10.5, longest_run=1)
    (together,), (alone,) = run.fleet.replicas, single.fleet.replicas
    assert together.work.steps == alone.work.steps > 2
    assert together.work.busy == pytest.approx(alone.work.busy)
    assert together.work.busy <= 10.5


def test_the_queue_in_front_of_all_replicas_has_the_limit_too():
    _, ends = serve([Arrival(0.0, 8, 2)] * 9, router="shared", replicas=2, max_num_seqs=1, queue_limit=3)
    assert [ends[number][2] for number in sorted(ends)] == ["finished"] * 5 + ["rejected"] * 4


@pytest.mark.skipif(os.name == "nt", reason="signals")
@pytest.mark.parametrize("after", [0.004, 0.011, 0.017, 0.023, 0.031])
def test_a_signal_loses_no_request(after):
    """Whatever the program does when Ctrl-C comes, it stops where each request is in one place."""
    before = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)  # runners in parallel have another
    signal.setitimer(signal.ITIMER_REAL, after)
    try:
        run, ends = serve((Arrival(0.01 * i, 8, 3) for i in count()), replicas=2, horizon=1e5)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
        left = signal.signal(signal.SIGINT, usual)
    assert run.interrupted
    assert left is signal.default_int_handler
    assert run.ledger.arrived == len(ends) == run.ledger.finished + run.ledger.cut
    assert run.ledger.present == 0
    stays = sum(now - 0.01 * (number - 1) for number, (_, now, *_) in ends.items())
    assert run.ledger.area == pytest.approx(stays)


def test_what_can_never_run_is_rejected():
    arrivals = [Arrival(0.0, 100, 10), Arrival(0.0, 8, 200), Arrival(0.0, 8, 2), Arrival(0.0, 8, 2, (), 0, 65)]
    _, ends = serve(arrivals, blocks=26, size=4)
    assert [ends[number][2] for number in sorted(ends)] == ["rejected", "rejected", "finished", "rejected"]
    _, ends = serve([Arrival(0.0, 8, 2)] * 5, max_num_seqs=1, queue_limit=2, token_budget=64)
    assert [how for *_, how, _, _ in ends.values()].count("rejected") == 3


def test_goodput_counts_those_who_meet_both_objectives():
    arrivals = [Arrival(0.0, 8, 3), Arrival(0.0, 8, 3), Arrival(0.0, 8, 3)]
    run, _ = serve(arrivals, max_num_seqs=1, token_budget=64, objective=RequestObjective(ttft=4.5, tpot=1.5))
    assert (run.ledger.finished, run.ledger.good) == (3, 2)


# --- formulas -------------------------------------------------------------------------------------------------------


def poisson(rate, count, seed=1):
    draw, clock = Random(seed), 0.0
    for _ in range(count):
        clock += draw.expovariate(rate)
        yield Arrival(clock, 8, 1)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_deterministic_service_waits_as_m_d_1(load):
    """Mean wait ρ·s/(2(1 − ρ)) (Pollaczek–Khinchine)."""
    run, _ = serve(poisson(load, 40_000), Constant(1.0), max_num_seqs=1, token_budget=64)
    assert run.ledger.queued.mean == pytest.approx(load / (2 * (1 - load)), rel=0.08)
    assert run.ledger.ttft.mean - run.ledger.queued.mean == pytest.approx(1.0)


@pytest.mark.parametrize(("servers", "load"), [(1, 0.5), (1, 0.75), (3, 0.7)])
def test_exponential_service_waits_as_m_m_c(servers, load):
    """Mean wait C(c, a)·s/(c(1 − ρ)), C the Erlang C formula."""
    rate, offered = load * servers, load * servers
    top = offered**servers / math.factorial(servers) / (1 - load)
    waits = top / (sum(offered**k / math.factorial(k) for k in range(servers)) + top)
    expected = waits / (servers * (1 - load))
    run, ends = serve(
        poisson(rate, 40_000), Exponential(1.0, 5), replicas=servers, router="shared", max_num_seqs=1, token_budget=64
    )
    assert run.ledger.ttft.mean - 1.0 == pytest.approx(expected, rel=0.1)
    assert len(ends) == 40_000


@pytest.mark.parametrize("cell", [1, 5, 37, 1 << 30])
def test_runs_of_steps_are_the_same_as_single_steps(cell):
    draw = Random(3)
    arrivals = sorted(Arrival(draw.uniform(0, 60), draw.randint(1, 60), draw.randint(1, 80)) for _ in range(300))
    answers = []
    for longest in (1, 1 << 30):
        run, ends = serve(arrivals, Growing(cell), blocks=60, longest_run=longest, max_num_seqs=8, token_budget=64)
        answers.append((run, ends))
    (single, one_by_one), (runs, together) = answers
    assert single.ledger.preempted == runs.ledger.preempted > 0
    assert single.fleet.all[0].work.steps == runs.fleet.all[0].work.steps
    for number, (first, end, how, made, _) in one_by_one.items():
        assert together[number][2:4] == (how, made)
        assert together[number][:2] == pytest.approx((first, end), rel=1e-9)
    assert runs.ledger.itl.count == single.ledger.itl.count
    assert runs.ledger.itl.mean == pytest.approx(single.ledger.itl.mean, rel=1e-9)
    for share in (0.5, 0.9, 0.99):
        assert runs.ledger.itl.quantile(share) == pytest.approx(single.ledger.itl.quantile(share), rel=0.01)


def test_a_gap_for_every_token_but_the_first():
    """Σ gaps of a request = its end − its first token, so their mean and TPOT agree."""
    draw = Random(9)
    arrivals = sorted(Arrival(draw.uniform(0, 30), draw.randint(1, 60), 21) for _ in range(100))
    for policy in POLICIES:
        run, _ = serve(arrivals, Growing(), policy=policy, blocks=100, max_num_seqs=8, token_budget=64)
        assert run.ledger.itl.count == 100 * 20
        assert run.ledger.itl.mean == pytest.approx(run.ledger.tpot.mean, rel=1e-9)


def test_the_same_seed_gives_the_same_run():
    arrivals = list(poisson(2.0, 200))
    runs = [serve([a._replace(osl=30) for a in arrivals], Growing(), draft=(3, 0.5), max_num_seqs=4) for _ in range(2)]
    assert runs[0][1] == runs[1][1]


def test_a_sketch_is_within_half_a_percent():
    draw = Random(0)
    values = sorted(draw.lognormvariate(0, 2) for _ in range(20_000))
    sketch = Sketch()
    for value in values:
        sketch.add(value)
    for share in (0.01, 0.5, 0.9, 0.99, 0.999):
        assert sketch.quantile(share) == pytest.approx(values[math.ceil(share * len(values)) - 1], rel=0.005)
    assert sketch.mean == pytest.approx(sum(values) / len(values), rel=1e-12)
    assert math.isnan(Sketch().quantile(0.5))


@pytest.mark.parametrize(("arrivals", "said"), [
    ([Arrival(1.0, 8, 2), Arrival(0.5, 8, 2)], "request 2 arrives at 0.5 s, after one at 1.0 s"),
    ([Arrival(-1.0, 8, 2)], "request 1"),
    ([Arrival(math.nan, 8, 2)], "request 1"),
    ([Arrival(math.inf, 8, 2)], "request 1"),
    ([Arrival(0.0, 8, 2), Arrival(0.0, 0, 2)], "request 2 has isl=0"),
    ([Arrival(0.0, 8, 0)], "osl=0"),
    ([Arrival(0.0, 8, 2, (), 0, 0)], "samples=0"),
])  # fmt: skip
def test_senseless_arrivals_are_refused_by_number(arrivals, said):
    with pytest.raises(WorkloadError, match=said.replace(".", r"\.")):
        serve(arrivals)


@pytest.mark.parametrize("wrong", [{"token_budget": 0}, {"max_num_seqs": 0}, {"token_budget": 63, "max_num_seqs": 64}])
def test_senseless_limits_are_refused(wrong):
    with pytest.raises(WorkloadError, match=next(iter(wrong))):
        Limits(**wrong)


@pytest.mark.parametrize(("share", "diverges"), [(0.6, False), (1.5, True), (4.0, True)])
def test_a_queue_that_grows_is_said(share: float, diverges: bool) -> None:
    """Above the knee those in the system grow as long as requests come; the end, when all have come, is no trend."""
    work = {"isl": 512, "osl": 64, "calibration": "none"}
    knee = rk.estimate("llama-3-8b", rate=1.0, **work).load.knee_rate
    outcome = rk.simulate("llama-3-8b", rate=share * knee, requests=3000, **work)
    assert outcome.diverges == diverges
    assert any(note.startswith("overload") for note in outcome.warnings) == diverges


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("share", [0.8, 0.9])
def test_a_batch_that_still_fills_is_no_overload(share: float, seed: int) -> None:
    """Below the knee a short run ends before the batch is full: that is said, and never called unstable."""
    work = {"isl": 1024, "osl": 256}
    knee = rk.estimate("llama-3-8b", rate=1.0, **work).load.knee_rate
    short, long = (
        rk.simulate("llama-3-8b", rate=share * knee, requests=requests, seed=seed, **work) for requests in (500, 3000)
    )
    assert not short.diverges
    assert short.settled != any(note.startswith("too short to judge") for note in short.warnings)
    assert not long.diverges


def test_a_run_that_ends_while_its_batch_fills_says_that_it_is_too_short() -> None:
    work = {"isl": 200, "osl": 800}
    knee = rk.estimate("llama-3-8b", rate=1.0, **work).load.knee_rate
    outcome = rk.simulate("llama-3-8b", rate=0.95 * knee, requests=500, **work)
    assert (outcome.diverges, outcome.settled) == (False, False)
    assert any(note.startswith("too short to judge: 500 requests") for note in outcome.warnings)


def test_standard_errors_are_the_spread_of_repeated_runs() -> None:
    """Batch means of one run against the deviation over seeds: within a factor of two."""
    work = {"isl": "lognormal:mean=512,cv=1", "osl": 64, "calibration": "none", "rate": 40.0, "requests": 2000}
    runs = [rk.simulate("llama-3-8b", seed=seed, **work) for seed in range(12)]
    for name in ("mean", "p90"):
        values = [getattr(run.ttft_ms, name) for run in runs]
        assert 0.5 < median(run.ttft_ms.errors[name] for run in runs) / stdev(values) < 2.0
