"""Arrivals: order, seeds, moments of the gaps, and what is refused."""

from __future__ import annotations

import itertools
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflinekit.load.answer import Load
from rooflinekit.load.arrays import Clients
from rooflinekit.load.arrivals import Burst, ClosedLoop, Drawn, Gamma, Requests, generate, parse_process
from rooflinekit.load.lengths import Fixed, LogNormal, Uniform
from rooflinekit.load.played import play
from rooflinekit.load.policies import POLICIES, Limits, rules_of
from rooflinekit.load.table import constant_table
from rooflinekit.model.types.errors import InputError, WorkloadError

PLAIN = Requests(Fixed(8), Fixed(4))
rates = st.floats(1e-3, 1e4)
processes = st.one_of(
    st.builds(Gamma, rates),
    st.builds(Gamma, rates, st.just(0.0)),
    st.builds(Gamma, rates, st.floats(0.1, 5.0)),
    st.builds(Burst, st.integers(1, 40), st.floats(0.0, 100.0)),
    st.builds(ClosedLoop, st.integers(1, 40), st.integers(1, 400), st.integers(0, 40)),
)


def gaps(process, count, seed=3):
    times = [arrival.time for arrival in generate(process, PLAIN, count, seed)]
    return np.diff([0.0, *times])


@given(processes, st.integers(0, 200), st.integers(0, 2**31))
def test_arrivals_come_in_order_as_many_as_asked_and_repeat_with_their_seed(process, count, seed):
    requests = Requests(Uniform(1, 99), LogNormal(50.0, 1.0), (1.0, 2.0))
    arrivals = list(generate(process, requests, count, seed))
    assert arrivals == list(generate(process, requests, count, seed))
    assert len(arrivals) == count
    times = [arrival.time for arrival in arrivals]
    assert times == sorted(times)
    assert all(0.0 <= time < float("inf") for time in times)
    assert all(1 <= a.isl <= 99 and a.osl >= 1 and a.priority in (0, 1) for a in arrivals)


@pytest.mark.parametrize(("process", "cv"), [
    (Gamma(4.0), 1.0), (Gamma(4.0, 3.0), 3.0), (Gamma(4.0, 0.25), 0.25), (Gamma(4.0, 0.0), 0.0),
    (Gamma(4.0, 1e-200), 1e-200),
])  # fmt: skip
def test_gaps_have_the_rate_and_the_burstiness_asked_for(process, cv):
    found = gaps(process, 20_000)
    assert process.cv == cv
    assert found.mean() == pytest.approx(0.25, abs=4 * 0.25 * cv / 20_000**0.5 + 1e-9)  # four standard errors
    assert found.std() / found.mean() == pytest.approx(cv, rel=0.06, abs=1e-6)


def test_a_gamma_law_with_cv_1_is_the_exponential_one():
    """Share of gaps longer than the mean: 1/e."""
    for process in (Gamma(1.0), Gamma(1.0, 1.0 + 1e-9)):
        assert np.mean(gaps(process, 20_000) > 1.0) == pytest.approx(np.exp(-1.0), abs=0.015)


def test_a_burst_comes_at_once_and_again_after_its_period():
    times = [arrival.time for arrival in generate(Burst(3, 10.0), PLAIN, 7)]
    assert times == [0.0, 0.0, 0.0, 10.0, 10.0, 10.0, 20.0]
    assert set(gaps(Burst(3), 7)) == {0.0}


def test_a_closed_loop_has_no_clock():
    assert {arrival.time for arrival in generate(ClosedLoop(users=5, prompts=50), PLAIN, 50)} == {0.0}


def test_users_with_a_pace_send_no_sooner_than_their_clock_says():
    """Two users, one place, prompts of 0.5 s: sent at 0, 0.2, 0.6 (a user is free since 0.5) and 1.4 (since 1.0).

    The fifth has its time at 1.45, and waits for the answer of 1.5.
    """
    clients = Clients(2, 0, [0.0, 0.2, 0.6, 1.4, 1.45], [8] * 5, [1] * 5, [0] * 5, [0] * 5, [0.0] * 5, [])
    rules = rules_of(Limits(POLICIES["continuous"], max_num_seqs=1, token_budget=8), blocks=100, block=16)
    found = play(clients, rules, constant_table(0.5).arrays)
    assert [float(each) for each in found.sent] == [0.0, 0.2, 0.6, 1.4, 1.5]
    assert [float(each) for each in found.first] == [0.5, 1.0, 1.5, 2.0, 2.5]
    paced = gaps(ClosedLoop(users=5, prompts=20_000, pace=4.0), 20_000)
    assert np.mean(paced) == pytest.approx(0.25, rel=0.03)
    asked = Load(Fixed(8), Fixed(1), users=2, requests=5, pace=4.0)
    assert asked.arrivals == "closed loop of 2 users, 5 requests, 4 a second at most"
    assert not asked.equal  # users that come one by one are no batch


def test_another_law_for_one_thing_leaves_the_others_as_they_were():
    first = generate(Gamma(2.0), Requests(Uniform(1, 9), Uniform(1, 9)), 500, seed=7)
    second = generate(Gamma(2.0), Requests(Uniform(1, 9), Uniform(1, 99), (1.0, 1.0)), 500, seed=7)
    pairs = list(zip(first, second, strict=True))
    assert all((a.time, a.isl) == (b.time, b.isl) for a, b in pairs)
    assert any(a.osl != b.osl for a, b in pairs)


def test_the_first_requests_do_not_depend_on_how_many_follow():
    few, many = generate(Gamma(1.0), PLAIN, 10), generate(Gamma(1.0), PLAIN, 4096)
    assert list(few) == list(itertools.islice(many, 10))


def test_priority_classes_have_their_shares():
    classes = [a.priority for a in generate(Gamma(1.0), Requests(Fixed(1), Fixed(1), (1.0, 0.0, 3.0)), 20_000)]
    assert np.bincount(classes, minlength=3) / 20_000 == pytest.approx([0.25, 0.0, 0.75], abs=0.015)
    for shares in ((-1.0, 2.0), (0.0, 0.0), (float("nan"),), (float("inf"),)):
        with pytest.raises(WorkloadError, match="shares"):
            Requests(Fixed(1), Fixed(1), shares)


@pytest.mark.parametrize(("text", "process"), [
    ("poisson:rate=4", Gamma(4.0)),
    ("Gamma: rate=4, cv=2", Gamma(4.0, 2.0)),
    ("constant:rate=0.5", Gamma(0.5, 0.0)),
    ("burst:size=64", Burst(64)),
    ("burst:size=64,period=10", Burst(64, 10.0)),
    ("closed:users=32", ClosedLoop(32, 320)),
    ("closed:users=32,prompts=100,warmup=64", ClosedLoop(32, 100, 64)),
])  # fmt: skip
def test_texts_that_mean_a_process(text, process):
    assert parse_process(text) == process


@pytest.mark.parametrize(("text", "said"), [
    ("poison:rate=4", "nearest: poisson"), ("poisson", "lacks rate"),
    ("poisson:rate=0", "rate must be above 0"),
    ("poisson:rate=inf", "not 'inf'"), ("poisson:rate=-1", "above 0"), ("poisson:4", "'4' is no key=value"),
    ("gamma:rate=4", "lacks cv"), ("closed:users=0", "users must be a whole number of at least 1"),
    ("closed:users=2.5", "whole number"), ("closed:users=2,prompts=0", "prompts"), ("closed:user=2", "lacks users"),
    ("burst:size=4,period=-1", "period must be above 0"), ("burst:size=4,rate=1", "takes no 'rate'"),
    ("", "unknown arrival process"),
])  # fmt: skip
def test_texts_that_mean_nothing_are_refused_by_name(text, said):
    with pytest.raises(WorkloadError, match=said):
        parse_process(text)


@given(st.text(max_size=40))
def test_no_text_makes_a_traceback(text):
    with suppress(InputError):
        parse_process(text)


def test_a_load_ends_before_the_clock_stands_still():
    """Beyond 1e10 s a step of milliseconds is lost in a float of seconds: the loop would play for ever."""
    assert Drawn.of(Gamma(1e-9, 0.0), PLAIN, 10).time[-1] == pytest.approx(1e10)
    with pytest.raises(WorkloadError, match=r"request 11 arrives after 10,000,000,000 s"):
        Drawn.of(Gamma(1e-9, 0.0), PLAIN, 12)
