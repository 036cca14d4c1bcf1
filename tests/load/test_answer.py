"""Answers of played loads: what is conserved, what is bounded, and one answer for one question."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import numpy as np
import pytest

import rooflinekit as rk
from rooflinekit.estimation.estimator import read_deployment, resolve
from rooflinekit.estimation.loaded import load_result
from rooflinekit.load.answer import MOST, Load, play_load
from rooflinekit.load.arrays import Clients
from rooflinekit.load.law import full_engine, full_rate
from rooflinekit.load.lengths import Fixed, LogNormal, Uniform
from rooflinekit.load.played import Sample, play
from rooflinekit.load.policies import POLICIES, Limits, rules_of
from rooflinekit.load.scene import Scheduler, scene_of
from rooflinekit.load.table import constant_table
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.errors import WorkloadError
from rooflinekit.specs.engines import load_engine

DEPLOYMENTS = {
    "vllm": ("llama-3-8b", "h100-sxm", Deployment()),
    "sglang": ("llama-3-8b", "h100-sxm", Deployment(engine="sglang")),
    "trtllm": ("llama-3-70b", "h200-sxm", Deployment(tp=4, engine="trtllm")),
    "experts": ("gpt-oss-20b", "h100-sxm", Deployment()),
    "lanes": ("llama-3-70b", "h100-sxm", Deployment(tp=2, pp=4, microbatches=4)),
}


def predictor(name):
    return resolve(*DEPLOYMENTS[name], None).predictor


def some_load(seed):
    draw = Random(seed)
    isl = draw.choice((Fixed(draw.randint(1, 3000)), LogNormal(draw.randint(50, 1500), 0.8, 6000), Uniform(10, 900)))
    osl = draw.choice((Fixed(draw.randint(2, 300)), LogNormal(draw.randint(20, 300), 0.6, 2000)))
    if draw.random() < 0.5:
        return Load(isl, osl, users=draw.choice((1, 5, 40)), requests=draw.choice((60, 120)), seed=seed)
    return Load(isl, osl, rate=draw.choice((0.2, 2.0, 8.0)), requests=draw.choice((80, 150)), seed=seed)


@pytest.mark.parametrize("name", DEPLOYMENTS)
@pytest.mark.parametrize("seed", range(4))
def test_parts_add_up_and_requests_are_conserved(name, seed):
    found = play_load(predictor(name), some_load(seed))
    done, parts = found.played, found.played.first_parts
    assert sum(parts) == pytest.approx(float(done.ttft.mean()), rel=1e-9)
    assert min(parts) >= -1e-12
    assert found.tokens.step + found.tokens.prompts == pytest.approx(found.tpot)
    assert 0.0 <= found.tokens.prompts < found.tpot
    assert sum(load_result(found).tpot_parts_ms.values()) == pytest.approx(1e3 * found.tpot)
    assert done.arrived == int(done.finished.sum()) + int(done.refused.sum()) == found.asked.count
    assert int(done.replicas["tokens_out"].sum()) == int((done.osl - 1).sum())  # the first comes with the prompt
    assert int(done.replicas["prompt_tokens"].sum()) >= int(done.isl.sum())  # more where some are preempted
    assert (done.sent <= done.queued).all()
    assert (done.queued <= done.begun).all()
    assert (done.begun < done.first).all()
    assert (done.first <= done.end).all()


@pytest.mark.parametrize("seed", range(30))
def test_a_burst_is_finite_and_no_first_token_is_later_than_the_last_answer(seed):
    """The rate of a burst is endless: all requests come at once."""
    draw = Random(seed)
    users = draw.randint(1, 400)
    isl, osl = (
        LogNormal(draw.randint(20, 2000), draw.uniform(0.1, 2.0), 8000),
        LogNormal(draw.randint(2, 300), 1.0, 3000),
    )
    found = play_load(predictor(draw.choice(("vllm", "sglang"))), Load(isl, osl, users=users, requests=users))
    for metric in ("ttft", "tpot", "e2e"):
        marks = [found.quantile(metric, share) for share in (0.5, 0.9, 0.95, 0.99)]
        assert all(map(math.isfinite, marks))
        assert marks == sorted(marks)
    assert found.quantile("ttft", 0.99) <= found.played.makespan
    assert found.output_rate == pytest.approx(
        float(found.played.osl[found.played.counted].sum()) / found.played.makespan
    )


@pytest.mark.parametrize("asked", [
    {"rate": 4.0}, {"rate": 60.0}, {"concurrency": 24}, {"concurrency": 24, "requests": 100, "engine": "sglang"},
    {"rate": 3.0, "requests": 200, "burstiness": 2.0, "isl": "lognormal:mean=700,cv=1.2", "osl": "uniform:10-300"},
    {"concurrency": 9, "seed": 3, "isl_cv": 0.4, "osl_cv": 0.4},
])  # fmt: skip
def test_estimate_and_simulate_give_one_answer(asked):
    estimate, outcome = rk.estimate("llama-3-8b", **asked), rk.simulate("llama-3-8b", **asked)
    for metric in ("ttft_ms", "tpot_ms", "e2e_ms"):
        spread = getattr(outcome, metric)
        assert getattr(estimate, metric) == spread.mean
        for name, value in estimate.load.percentiles[metric].items():
            assert value == getattr(spread, name)
        assert estimate.load.errors[metric] == spread.errors
    assert estimate.output_tok_s == outcome.output_tok_s
    assert estimate.load.requests == outcome.requests.measured


@pytest.mark.parametrize("name", [name for name in DEPLOYMENTS if name != "experts"])
def test_the_law_of_a_full_engine_is_what_a_full_engine_does(name):
    """The middle half of many requests that are all there at once; the law's error has a sign and is bounded."""
    asked = Load(Uniform(500, 1500), Uniform(100, 300), users=6000, requests=6000)
    found = play_load(predictor(name), asked)
    ends = np.sort(found.played.end)
    middle = ends[1500:4500]
    rate = (len(middle) - 1) / float(middle[-1] - middle[0])
    low, high = (0.0, 0.8) if name == "lanes" else (-0.08, 0.12)  # idle stages of lanes are not in it
    assert low < found.knee / rate - 1.0 < high


@pytest.mark.parametrize(
    ("gpu", "deployment", "isl"),
    [
        ("m4-max", {"engine": "llama.cpp"}, 1024),
        ("h100-sxm", {"max_num_seqs": 8}, 1024),
        ("h100-sxm", {"max_num_seqs": 1}, 1024),
        ("l40s", {"max_num_seqs": 16}, 4000),
    ],
)
def test_the_law_of_few_places_counts_steps_with_a_whole_prompt(gpu, deployment, isl):
    """Between two prompts come many steps without one: the mean step is none of these."""
    places = resolve("llama-3-8b", gpu, read_deployment(deployment), None).predictor
    asked = Load(Fixed(isl), Uniform(205, 307), users=64, requests=192)
    found = play_load(places, asked)
    ends = np.sort(found.played.end)[64:128]
    assert found.knee == pytest.approx((len(ends) - 1) / float(ends[-1] - ends[0]), rel=0.06)


@pytest.mark.parametrize("engine", ["vllm", "llama.cpp"])
def test_an_overload_names_one_figure_of_what_is_served(engine):
    """The note, the knee and the simulator's words have what was played; it is what a closed loop gets."""
    gpu = "m4-max" if engine == "llama.cpp" else "l40s"
    asked = {"engine": engine, "osl": "uniform:200-312"}
    found = rk.estimate("llama-3-8b", gpu, rate=12.0, **asked)
    served = f"{found.load.knee_rate:.4g}"
    assert f"12 requests/s arrive, {served} are served" in found.warnings[0]
    said = rk.simulate("llama-3-8b", gpu, rate=12.0, **asked).warnings
    assert any(f"fewer requests are served than come ({served}/s)" in warning for warning in said)
    users = 2 * found.load.slots
    full = rk.estimate("llama-3-8b", gpu, concurrency=users, requests=10 * users, warmup=2 * users, **asked)
    assert found.load.knee_rate == pytest.approx(full.load.rate, rel=0.1)


def test_lanes_take_the_stages_one_after_the_other():
    """Four lanes of four stages, a step of 1 s, 0.25 s in each: a step starts a quarter behind the one before."""
    table, half = constant_table(1.0).arrays
    rules = rules_of(Limits(POLICIES["chunked"], max_num_seqs=4), blocks=100, block=16, lanes=4)
    clients = Clients.closed(4, isl=[8] * 4, osl=[3] * 4)
    played = play(clients, rules, (table._replace(decode_stage=0.25, prompt_stage=0.25), half))
    assert sorted(played.first.tolist()) == pytest.approx([1.0, 1.25, 1.5, 1.75])
    assert sorted(played.end.tolist()) == pytest.approx([3.0, 3.25, 3.5, 3.75])
    alone = play(clients, replace_lanes(rules), (table, half))
    assert alone.end.tolist() == [3.0] * 4  # all in one step


def replace_lanes(rules):
    return rules._replace(lanes=1)


def test_five_requests_of_a_closed_loop_by_hand():
    """Two users, steps of 1 s, prompts and answers of two tokens: each request takes a step for each token.

    Both start at 0 and end at 2; the next two start then and end at 4; the fifth ends at 6.
    """
    rules = rules_of(Limits(POLICIES["chunked"], max_num_seqs=8), blocks=100, block=16)
    played = play(Clients.closed(2, isl=[2] * 5, osl=[2] * 5), rules, constant_table(1.0).arrays)
    assert played.sent.tolist() == [0.0, 0.0, 2.0, 2.0, 4.0]
    assert played.first.tolist() == [1.0, 1.0, 3.0, 3.0, 5.0]
    assert played.end.tolist() == [2.0, 2.0, 4.0, 4.0, 6.0]
    assert played.makespan == 6.0


def test_a_prompt_that_waits_for_a_place_says_so():
    rules = rules_of(Limits(POLICIES["chunked"], max_num_seqs=1), blocks=100, block=16)
    played = play(Clients.closed(2, isl=[2, 2], osl=[3, 3]), rules, constant_table(1.0).arrays)
    assert played.first.tolist() == [1.0, 4.0]
    parts = played.first_parts
    assert parts.place == pytest.approx(1.5)  # three seconds of the second
    assert parts.prompt == pytest.approx(1.0)


@pytest.mark.slow
@pytest.mark.parametrize("rate", [6.0, 14.0])
def test_the_stated_error_is_that_of_repeated_plays(rate):
    asked = Load(Fixed(1024), Fixed(256), rate=rate)
    plays = [play_load(predictor("vllm"), replace(asked, seed=seed)) for seed in range(16)]
    means = [float(each.played.ttft.mean()) for each in plays]
    stated = float(np.mean([each.errors("ttft")["mean"] for each in plays]))
    assert 0.4 < stated / 1e3 / float(np.std(means, ddof=1)) < 2.0


def test_the_protocol_of_a_load():
    lengths = Fixed(100), Fixed(10)
    assert (Load(*lengths, users=8).count, Load(*lengths, users=8).filling) == (80, 0)
    assert (Load(*lengths, rate=1.0).count, Load(*lengths, rate=1.0).filling) == (2000, 400)
    assert Load(*lengths, rate=1.0, requests=300).filling == 0
    assert Load(*lengths, users=8, warmup=16).count == 96
    with pytest.raises(WorkloadError, match="at most"):
        play_load(predictor("vllm"), Load(*lengths, rate=1.0, requests=MOST + 1))


def test_a_crowded_open_loop_is_played_until_it_is_steady():
    asked = Load(Fixed(64), Fixed(1000), rate=20.0)
    found = play_load(predictor("experts"), asked)
    flying = found.asked.in_flight
    assert found.asked.filling == max(flying, found.asked.counted // 5)
    assert found.asked.counted >= 5 * flying > 2000
    mean = found.played.e2e.mean() * asked.rate  # Little's law of what was played
    assert flying == pytest.approx(mean, rel=0.15)
    assert replace(asked, requests=2000).on(found.scene).count == 2000  # what is told stands


def test_what_an_overload_serves_is_counted_while_requests_come():
    found = play_load(predictor("vllm"), Load(Fixed(1024), Fixed(1024), rate=40.0, requests=3000))
    done = found.played
    middle = (done.end > 20.0) & (done.end <= 60.0)
    assert not found.stable
    assert done.served == pytest.approx(middle.sum() / 40.0, rel=0.15)


def test_quantiles_are_of_the_sample():
    assert [Sample([4.0, 1.0, 3.0, 2.0]).quantile(share) for share in (0.25, 0.5, 0.51, 1.0)] == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("told", [{}, {"front_end": "token-ids"}, {"api_servers": 2}])
def test_no_more_requests_are_served_than_the_front_end_reads(told):
    """1,000 users of a small model, who could have 7,000 requests a second."""
    work = {"gpu": "b200-sxm", "isl": 16, "osl": 1} | told
    answer = rk.estimate("llama-3.2-1b", concurrency=1000, **work).load
    costs = load_engine("vllm").costs
    each = costs.hand_over if "front_end" in told else costs.request + 16 * costs.token
    most = told.get("api_servers", 1) / each
    assert 0.9 * most < answer.rate <= most * (1 + 1e-9)
    assert answer.knee_rate == rk.estimate("llama-3.2-1b", rate=1.0, **work).load.knee_rate == pytest.approx(most)


def test_the_rate_that_can_be_served_is_below_one_that_piles_up():
    """One process sends the tokens of 25,000 a second late, long before the engine is full: its requests pile up."""
    load = rk.estimate("llama-3.2-1b", isl=512, osl=256, rate=150, requests=3000).load
    assert not load.stable
    assert load.knee_rate < load.rate


def test_a_front_end_reads_in_the_time_that_is_left_beside_what_it_streams():
    """Four sequences decode in 10 ms, 1 ms a token to send: a request comes at 102 ms and takes 25 ms of work.

    Two tokens of 100 ms are still to be sent then, and those of 110, 120, 130 and 140 ms come before it is read.
    """
    rules = rules_of(Limits(), blocks=1000, block=16, stream=1e-3)
    osl = [100, 100, 100, 100, 10]
    clients = Clients(0, 0, [0.0] * 4 + [0.102], [8] * 5, osl, [0] * 5, [0] * 5, [0.0] * 4 + [25e-3], [])
    found = play(clients, rules, constant_table(0.01).arrays)
    assert found.queued[4] - found.sent[4] == pytest.approx(2e-3 + 25e-3 + 4 * 4e-3)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("requests", [1, 4, 100])
def test_a_user_alone_is_never_in_two_requests_at_once(engine, requests):
    """Its requests follow each other, front end included: the rate is one over the time of one (Little's law)."""
    answer = rk.estimate("llama-3-8b", isl=3672, osl=2, engine=engine, concurrency=1, requests=requests)
    assert answer.load.rate * answer.e2e_ms / 1e3 == pytest.approx(1.0, rel=0.001 + 0.03 / requests)


def test_a_user_alone_is_the_one_sequence_and_two_tokens_have_one_time_between_them():
    found = play_load(predictor("vllm"), Load(LogNormal(500, 1.0, 4000), Fixed(2), users=1, requests=60))
    assert found.held == 1
    assert found.sequences == 1.0
    assert 0.0 < found.errors("tpot")["mean"] < 1e3 * found.tpot


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_request_of_one_token_decodes_nothing(policy):
    """Its token comes with the prompt: a full engine of such requests has no decode steps in its turn."""
    rules = rules_of(Limits(POLICIES[policy], max_num_seqs=64), blocks=1000, block=16)
    assert full_engine(constant_table(0.5).arrays, rules, 100.0, 1.0).decode == 0.0


def test_more_places_never_lower_the_law():
    rates = [
        full_rate(found.tables, found.rules, 1000.0, 200.0)
        for most in (1, 4, 16, 64, 256)
        for found in [scene_of(predictor("vllm"), Scheduler(max_num_seqs=most), 1200.0, 1200)]
    ]
    assert rates == sorted(rates)
