"""The closed form against simulations of the same step times, below the knee."""

import random
from itertools import pairwise
from statistics import median

import pytest

import rooflinekit as rk
from rooflinekit.specs.engines import load_engine

DEPLOYMENTS = (("llama-3-8b", 1), ("llama-3-70b", 4), ("mixtral-8x7b", 2), ("gpt-oss-120b", 1))
CONTEXT = 8192  # tokens that all of them take
FRONT_END_MS = 1e3 * load_engine("vllm").costs.request  # the same constant in both: errors are of the rest


def scenario(draw: random.Random) -> dict[str, float]:
    """Errors of the closed form in one random scenario."""
    model, tp = draw.choice(DEPLOYMENTS)
    isl, osl = int(2 ** draw.uniform(6, 13)), int(2 ** draw.uniform(4, 9))
    work = {"tp": tp, "isl": min(isl, CONTEXT - osl), "osl": osl}
    knee = rk.estimate(model, rate=1e-3, **work).load.knee_rate
    rate = knee * draw.uniform(0.05, 0.85)
    formula = rk.estimate(model, rate=rate, **work)
    long_enough = int(max(500, 20 * formula.load.running))  # the start and the end are no steady state
    played = rk.simulate(model, rate=rate, requests=long_enough, seed=draw.randrange(10**6), **work).to_dict()
    p99 = formula.load.percentiles
    return {
        "tpot": formula.tpot_ms / played["tpot_ms"]["mean"] - 1.0,
        "ttft": (formula.ttft_ms - FRONT_END_MS) / (played["ttft_ms"]["mean"] - FRONT_END_MS) - 1.0,
        "tpot p99": p99["tpot_ms"]["p99"] / played["tpot_ms"]["p99"] - 1.0,
        "ttft p99": (p99["ttft_ms"]["p99"] - FRONT_END_MS) / (played["ttft_ms"]["p99"] - FRONT_END_MS) - 1.0,
    }


def typical(count: int) -> dict[str, float]:
    draw = random.Random(1)
    errors = [scenario(draw) for _ in range(count)]
    return {name: median(abs(error[name]) for error in errors) for name in errors[0]}


def closed(draw: random.Random) -> dict[str, float]:
    """The same for a closed loop, short answers under many users included."""
    model, tp = draw.choice(DEPLOYMENTS)
    isl, osl, users = int(2 ** draw.uniform(6, 12)), int(2 ** draw.uniform(2, 8)), int(2 ** draw.uniform(0, 8))
    half = osl // 2
    work = {"tp": tp, "isl": isl, "calibration": draw.choice([None, "none"]), "concurrency": users}
    requests = max(14 * users, 300)
    spread = ((2 * half + 1) ** 2 / 12) ** 0.5 / osl
    formula = rk.estimate(model, osl=osl, osl_cv=spread, requests=requests, **work)
    lengths = f"uniform:{osl - half}-{osl + half}"
    played = rk.simulate(model, osl=lengths, requests=requests, seed=draw.randrange(10**6), **work).to_dict()
    return {name: getattr(formula, f"{name}_ms") / played[f"{name}_ms"]["mean"] - 1.0 for name in ("tpot", "e2e")}


def test_closed_loops_are_those_of_the_simulator():
    draw = random.Random(3)
    errors = [closed(draw) for _ in range(24)]
    for name in errors[0]:
        assert median(abs(error[name]) for error in errors) < 0.03
        assert sum(abs(error[name]) < 0.05 for error in errors) >= 18  # of 24


# Medians over scenarios; the formula has no simulation in it, so these are limits of its approximations.
LIMITS = {"tpot": 0.05, "ttft": 0.15, "tpot p99": 0.25, "ttft p99": 0.35}


def test_a_sample_of_scenarios():
    found = typical(24)
    assert found == {name: pytest.approx(0.0, abs=limit) for name, limit in LIMITS.items()}


@pytest.mark.long
def test_five_hundred_scenarios():
    found = typical(500)
    assert found == {name: pytest.approx(0.0, abs=limit) for name, limit in LIMITS.items()}


def test_long_answers_are_met_for_longer_than_short_ones():
    """What a step reads is the mean over what is under way, in which answers count by their length."""
    work = {"isl": 128, "rate": 8.0}
    played = rk.simulate("llama-3-8b", osl="lognormal:mean=1024,cv=0.6,max=7000", requests=3000, **work).to_dict()
    formula = rk.estimate("llama-3-8b", osl=1024, osl_cv=0.6, **work)
    assert formula.tpot_ms == pytest.approx(played["tpot_ms"]["mean"], rel=0.03)
    assert formula.tpot_ms > 1.06 * rk.estimate("llama-3-8b", osl=1024, **work).tpot_ms


def test_a_full_memory_preempts_and_the_knee_pays_for_it():
    """Answers longer than their prompts: the newest sequences are computed again and again."""
    work = {"isl": 256, "tp": 4}
    knee = rk.estimate("llama-3.3-70b", osl=1024, osl_cv=0.3, rate=1e-3, **work).load.knee_rate
    played = rk.simulate(
        "llama-3.3-70b", osl="lognormal:mean=1024,cv=0.3,max=7000", rate=1.5 * knee, requests=4000, **work
    ).to_dict()
    repeated = played["replicas"][0]["prompt_tokens"] / (4000 * 256) - 1.0
    assert repeated > 1.0  # more than one prompt a request, of which the formula knows
    assert knee == pytest.approx(played["request_rate"], rel=0.08)  # beginning and end included


FILLED = [  # loads of closed loops that fill the cache, and how their answers vary
    ("llama-3-8b", {"isl": 256, "osl": 1024}, 0.3), ("llama-3-8b", {"isl": 256, "osl": 1024}, 0.0),
    ("llama-3-8b", {"isl": 2048, "osl": 1024}, 0.0), ("llama-3-70b", {"isl": 256, "osl": 1024, "tp": 2}, 0.3),
]  # fmt: skip


@pytest.mark.parametrize(("model", "work", "spread"), FILLED)
def test_a_cache_that_fills_is_that_of_the_simulator_at_every_number_of_users(model, work, spread):
    """From users who hardly ever fill the cache to twice as many as it holds."""
    slots = rk.estimate(model, concurrency=5000, osl_cv=spread, **work).load.slots
    lengths = f"lognormal:mean=1024,cv={spread},max=7000" if spread else 1024
    for share in (0.8, 1.0, 1.06, 2.0):
        users = round(slots * share)
        count = users * max(20, 4000 // users)
        formula = rk.estimate(model, concurrency=users, requests=count, osl_cv=spread, **work)
        played = rk.simulate(model, concurrency=users, requests=count, **work | {"osl": lengths}).to_dict()
        assert formula.e2e_ms == pytest.approx(played["e2e_ms"]["mean"], rel=0.05)


@pytest.mark.parametrize(("work", "users", "spread"), [
    ({"isl": 64, "osl": 1024, "memory_fraction": 0.3}, 140, 0.6),  # 59 fit, and half of all have given a place back
    ({"isl": 256, "osl": 1024, "memory_fraction": 0.4}, 300, 0.3),
    ({"isl": 1024, "osl": 512, "memory_fraction": 0.4}, 130, 0.6),
])  # fmt: skip
def test_who_gave_a_place_back_waits_for_a_token_and_not_for_the_first(work, users, spread):
    lengths = f"lognormal:mean={work['osl']},cv={spread},max=7000"
    formula = rk.estimate("llama-3-8b", concurrency=users, requests=20 * users, osl_cv=spread, **work)
    played = rk.simulate("llama-3-8b", concurrency=users, requests=20 * users, **work | {"osl": lengths}).to_dict()
    assert formula.tpot_ms == pytest.approx(played["tpot_ms"]["mean"], rel=0.12)
    assert formula.ttft_ms == pytest.approx(played["ttft_ms"]["mean"], rel=0.2)


@pytest.mark.parametrize(("isl", "osl", "users", "spread"), [
    (61, 25, 512, 0.6), (2772, 6, 146, 0.6), (2772, 6, 146, 0.0), (26, 300, 176, 0.0), (620, 31, 600, 0.0),
])  # fmt: skip
def test_prompts_in_steps_of_their_own_come_back_in_groups(isl, osl, users, spread):
    """Who ended in one decode step; equal answers all at once, whose tokens wait for no prompt but the first ones."""
    work = {"isl": isl, "engine": "sglang", "concurrency": users, "requests": 12 * users}
    lengths = f"lognormal:mean={osl},cv={spread},max=4000" if spread else osl
    formula = rk.estimate("llama-3-8b", osl=osl, osl_cv=spread, **work)
    played = rk.simulate("llama-3-8b", osl=lengths, **work).to_dict()
    for name in ("ttft_ms", "tpot_ms", "e2e_ms"):
        assert getattr(formula, name) == pytest.approx(played[name]["mean"], rel=0.12)


@pytest.mark.parametrize(("osl", "users", "within"), [
    (2, 1, 0.002), (2, 4, 0.002), (2, 8, 0.06), (100, 2, 0.002), (100, 4, 0.002), (100, 5, 0.08), (100, 8, 0.006),
])  # fmt: skip
def test_equal_answers_after_prompts_of_their_own_begin_all_at_once(osl, users, within):
    """Nobody's tokens wait for prompts of the same step, nor does the throughput forget the front end.

    A step holds 4.3 of these prompts, the last one cut. The formula takes the rest of a second step in proportion.
    """
    work = {"isl": 1892, "osl": osl, "tp": 2, "engine": "sglang", "concurrency": users, "requests": 100 * users}
    formula = rk.estimate("mixtral-8x7b", **work)
    played = rk.simulate("mixtral-8x7b", **work).to_dict()
    for name, share in (("ttft_ms", within), ("tpot_ms", 0.3 * within), ("e2e_ms", within)):
        assert getattr(formula, name) == pytest.approx(played[name]["mean"], rel=max(share, 0.002))
    assert formula.load.rate == pytest.approx(played["request_rate"], rel=max(0.3 * within, 0.003))


@pytest.mark.parametrize(
    ("isl", "osl", "users", "within"), [(3200, 16, 34, 0.1), (3700, 43, 64, 0.1), (1290, 9, 30, 0.1)]
)
def test_users_send_when_steps_have_ended(isl, osl, users, within):
    """Where prompts fill nine tenths of the time, but half of the steps, none waits as behind a queue of that load.

    First tokens were up to twice as late as the simulator's, and output tokens up to 15 % too fast.
    """
    work = {"tp": 2, "gpu": "b200-sxm", "weights": "fp8", "concurrency": users, "requests": 10 * users}
    isls, osls = (f"uniform:{n // 2}-{n + n // 2}" for n in (isl, osl))
    formula = rk.estimate("llama-3.1-70b", isl=isls, osl=osls, **work)
    played = rk.simulate("llama-3.1-70b", isl=isls, osl=osls, **work).to_dict()
    assert formula.ttft_ms == pytest.approx(played["ttft_ms"]["mean"], rel=1.5 * within)
    assert formula.tpot_ms == pytest.approx(played["tpot_ms"]["mean"], rel=within)


@pytest.mark.parametrize("users", [2, 3, 4])
def test_prompts_of_one_token_answers_follow_one_another(users):
    """The next step is that of the others, who came while the own prompt was computed: it takes what is left of it."""
    work = {"isl": 68, "osl": 1, "concurrency": users}
    formula = rk.estimate("llama-3-8b", osl_cv=0.06, isl_cv=0.06, **work)
    played = rk.simulate("llama-3-8b", isl="lognormal:mean=68,cv=0.06", osl=1, concurrency=users, requests=100 * users)
    assert formula.ttft_ms == pytest.approx(played.to_dict()["ttft_ms"]["mean"], rel=0.07)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_a_tenth_of_first_tokens_are_those_of_the_first_burst(engine):
    """The quantile of the mixture: P99 is late in the burst, P50 one of the later turns. P99 was up to a third late."""
    work = {"isl": "uniform:900-1100", "osl": "uniform:150-250", "engine": engine, "concurrency": 96, "requests": 960}
    formula = rk.estimate("llama-3-8b", **work).load.percentiles["ttft_ms"]
    played = rk.simulate("llama-3-8b", **work).to_dict()["ttft_ms"]
    assert formula["p50"] == pytest.approx(played["p50"], rel=0.15)
    assert formula["p99"] == pytest.approx(played["p99"], rel=0.1)


@pytest.mark.parametrize("requests", [1, 4, 100])
@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_a_user_alone_is_never_in_two_requests_at_once(engine, requests):
    """Its requests follow each other, front end included: the rate is one over the time of one (Little's law)."""
    answer = rk.estimate("llama-3-8b", isl=3672, osl=2, engine=engine, concurrency=1, requests=requests)
    assert answer.load.rate * answer.e2e_ms / 1e3 == pytest.approx(1.0, rel=0.001 + 0.03 / requests)


@pytest.mark.parametrize(("isl", "osl", "users"), [(596, 68, 138), (458, 40, 118), (1284, 120, 183)])
def test_who_came_at_once_is_delayed_by_the_prompts_behind_alone(isl, osl, users):
    work = {"isl": isl, "osl": osl, "tp": 4, "engine": "trtllm", "concurrency": users, "requests": users}
    formula, played = rk.estimate("llama-3-70b", **work), rk.simulate("llama-3-70b", **work).to_dict()
    assert formula.e2e_ms == pytest.approx(played["e2e_ms"]["mean"], rel=0.02)


@pytest.mark.parametrize(("isl", "users"), [(1358, 5), (917, 6)])
def test_short_answers_after_prompts_of_their_own_are_delayed_by_each_prompt_once(isl, users):
    """A turn is at most the prompts of all, the own decode steps, and one under way."""
    work = {"isl": isl, "osl": 2, "engine": "sglang", "tp": 2}
    answer = rk.estimate("mixtral-8x7b", osl_cv=0.4, concurrency=users, **work)
    alone, step = (rk.estimate("mixtral-8x7b", batch=n, **work) for n in (1, users))
    assert answer.e2e_ms < 1.05 * (users * alone.ttft_ms + 3.0 * step.tpot_ms)


FALLS = [  # where a cache is full, and with answers of one token: how lengths vary, and users
    ("llama-3-8b", {"isl": 868, "osl": 998}, 0.3, (256, 512)),
    ("llama-3-8b", {"isl": 284, "osl": 1, "engine": "ideal"}, 0.0, (2, 64)),
]  # fmt: skip


@pytest.mark.parametrize(("model", "work", "spread", "users"), FALLS)
def test_throughput_falls_with_users_where_that_of_the_simulator_falls(model, work, spread, users):
    lengths = f"lognormal:mean={work['osl']},cv={spread},max=7000" if spread else work["osl"]
    told, found = [], []
    for count in users:
        ran = {"concurrency": count, "requests": max(16 * count, 600)}
        told.append(rk.estimate(model, osl_cv=spread, **work, **ran).load.rate)
        found.append(rk.simulate(model, **work | {"osl": lengths}, **ran).to_dict()["request_rate"])
    assert found[1] < 0.97 * found[0]
    assert told[1] / told[0] == pytest.approx(found[1] / found[0], abs=0.03)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_no_user_more_costs_throughput_at_once(engine):
    """It falls by what is computed again, or by the padding of one more CUDA graph (3 %)."""
    work = {"isl": 64, "osl": 1024, "memory_fraction": 0.4, "engine": engine}
    slots = rk.estimate("llama-3-8b", concurrency=5000, **work).load.slots
    served = [rk.estimate("llama-3-8b", concurrency=slots + n, **work).output_tok_s for n in range(-30, 31)]
    assert all(more > 0.96 * fewer for fewer, more in pairwise(served))


def queued(draw: random.Random) -> float:
    """The error of the throughput where all requests are there at once, and each place takes some in turn."""
    model, tp = draw.choice(DEPLOYMENTS)
    count = int(2 ** draw.uniform(6, 11))
    work = {"tp": tp, "isl": int(2 ** draw.uniform(6, 12)), "osl": int(2 ** draw.uniform(5, 9)), "engine": "trtllm"}
    work |= {"concurrency": count, "requests": count}
    return rk.estimate(model, **work).output_tok_s / rk.simulate(model, **work).to_dict()["output_tok_s"] - 1.0


def test_offline_queues_take_as_long_as_in_the_simulator():
    draw = random.Random(4)
    errors = [abs(queued(draw)) for _ in range(12)]
    assert median(errors) < 0.04
    assert max(errors) < 0.12


def test_the_last_turn_of_an_offline_queue_leaves_places_empty():
    work = {"isl": 512, "osl": 256, "engine": "trtllm", "max_num_seqs": 64}
    full, just_more = (rk.estimate("llama-3-8b", concurrency=n, requests=n, **work).output_tok_s for n in (640, 65))
    endless = rk.estimate("llama-3-8b", concurrency=640, **work).output_tok_s
    assert just_more < 0.7 * endless  # two turns for the work of one
    assert 0.9 * endless < full < 1.01 * endless  # prompts of the first turn fill their steps


GROUPS = [  # short prompts of all users fit in one step: engine, isl, osl, users
    ({"engine": "trtllm"}, 18, 1, 22), ({"engine": "trtllm"}, 102, 1, 28), ({"engine": "trtllm"}, 209, 4, 6),
    ({"engine": "sglang"}, 29, 5, 10), ({"engine": "trtllm", "dp": 2}, 43, 7, 19),
    ({"engine": "trtllm"}, 300, 200, 6), ({"engine": "vllm"}, 300, 3, 1),
]  # fmt: skip


@pytest.mark.parametrize(("told", "isl", "osl", "users"), GROUPS)
def test_equal_answers_to_prompts_of_one_step_are_one_group(told, isl, osl, users):
    """The engine rests while all are in the front end; nobody waits for a step. Throughput was up to 60 % too low."""
    work = told | {"isl": isl, "osl": osl, "concurrency": users, "requests": 10 * users}
    formula, played = rk.estimate("qwen3-30b-a3b", **work), rk.simulate("qwen3-30b-a3b", **work).to_dict()
    assert formula.load.rate == pytest.approx(played["request_rate"], rel=0.035)
    for name in ("ttft_ms", "e2e_ms") if osl == 1 else ("ttft_ms", "tpot_ms", "e2e_ms"):
        assert getattr(formula, name) == pytest.approx(played[name]["mean"], rel=0.035)
        quantiles = formula.load.percentiles[name]
        assert quantiles["p99"] == pytest.approx(quantiles["p50"], rel=1e-9)  # all feel the same


def test_a_group_lasts_until_answers_differ_by_a_step():
    """From one group to users who come at any time, without a jump."""
    work = {"isl": 64, "osl": 16, "concurrency": 12, "requests": 120, "engine": "trtllm"}
    steps = (0.0, 0.001, 0.003, 0.006, 0.01, 0.02)  # mean deviation of an answer: up to a third of a token
    found = [rk.estimate("llama-3-8b", osl_cv=cv, **work).e2e_ms for cv in steps]
    assert found == sorted(found)
    assert found[-1] > 1.1 * found[0]
    assert found[1] < found[0] + 0.3 * (found[-1] - found[0])


@pytest.mark.parametrize(("told", "isl", "users"), [
    ({"engine": "trtllm"}, 140, 72), ({"engine": "vllm"}, 77, 128), ({"engine": "trtllm", "dp": 2}, 141, 187),
])  # fmt: skip
def test_where_nobody_decodes_a_turn_is_the_prompts_of_all(told, isl, users):
    """A user has one prompt at the engine, so that nobody waits behind more than one of each of the others."""
    work = told | {"isl": isl, "osl": 1, "concurrency": users, "requests": 10 * users}
    formula, played = rk.estimate("llama-3-8b", **work), rk.simulate("llama-3-8b", **work).to_dict()
    assert formula.load.rate == pytest.approx(played["request_rate"], rel=0.06)
    assert formula.ttft_ms == pytest.approx(played["ttft_ms"]["mean"], rel=0.08)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm", "ideal"])
def test_no_user_more_makes_a_first_token_of_a_short_answer_sooner(engine):
    """TTFT of answers of a few tokens fell by up to 4 % where a user more came."""
    for isl, osl in ((140, 1), (60, 2), (40, 3), (100, 4), (700, 3), (20, 16)):
        users = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)
        work = {"isl": isl, "osl": osl, "engine": engine}
        found = [rk.estimate("llama-3-8b", concurrency=n, requests=10 * n, **work).ttft_ms for n in users]
        assert all(more > 0.98 * fewer for fewer, more in pairwise(found))


@pytest.mark.parametrize(("model", "told", "isl", "osl", "users"), [
    ("llama-3-8b", {}, 3584, 41, 2), ("llama-3-8b", {}, 149, 3, 4), ("gpt-oss-120b", {"tp": 4}, 105, 9, 7),
    ("llama-3-70b", {"tp": 4}, 41, 16, 2), ("qwen3-30b-a3b", {}, 358, 37, 5), ("llama-3-8b", {}, 61, 18, 9),
])  # fmt: skip
def test_the_first_of_a_group_is_handed_over_alone(model, told, isl, osl, users):
    """Its prompt has a step to itself, and it ends before the others, in each turn. TTFT was up to 34 % off."""
    work = told | {"isl": isl, "osl": osl, "concurrency": users, "requests": 10 * users}
    formula, played = rk.estimate(model, **work), rk.simulate(model, **work).to_dict()
    assert formula.load.rate == pytest.approx(played["request_rate"], rel=0.035)
    for name, within in (("ttft_ms", 0.05), ("tpot_ms", 0.01), ("e2e_ms", 0.03)):
        assert getattr(formula, name) == pytest.approx(played[name]["mean"], rel=within)


def test_groups_whose_prompts_fill_a_step_each_follow_one_another():
    """Each waits for the step of the group before, and for the one made up. TTFT was 35 % too low."""
    work = {"isl": 187, "osl": 285, "concurrency": 279, "requests": 2790}
    formula, played = rk.estimate("llama-3-8b", **work), rk.simulate("llama-3-8b", **work).to_dict()
    assert formula.ttft_ms == pytest.approx(played["ttft_ms"]["mean"], rel=0.08)
    assert formula.e2e_ms == pytest.approx(played["e2e_ms"]["mean"], rel=0.03)


def test_steps_about_the_largest_graph_are_a_mix_of_both_kinds():
    """Of three prompts on average a step is within 512 tokens or not; the mean step was neither. TPOT: +46 % before."""
    work = {"tp": 4, "isl": 148, "concurrency": 87, "requests": 870}
    formula = rk.estimate("gpt-oss-120b", osl=26, osl_cv=0.29, isl_cv=0.29, **work)
    played = rk.simulate("gpt-oss-120b", **work | {"isl": "uniform:74-222", "osl": "uniform:13-39"}).to_dict()
    assert formula.tpot_ms == pytest.approx(played["tpot_ms"]["mean"], rel=0.13)
    assert formula.e2e_ms == pytest.approx(played["e2e_ms"]["mean"], rel=0.13)


def test_no_more_requests_are_served_than_the_front_end_hands_over():
    """1,000 users of a small model: the formula had 26,000 requests a second, where one front end hands over 5,000."""
    work = {"gpu": "b200-sxm", "isl": 16, "osl": 1, "concurrency": 1000, "requests": 10_000}
    formula, played = rk.estimate("llama-3.2-1b", **work), rk.simulate("llama-3.2-1b", **work).to_dict()
    most = 1.0 / load_engine("vllm").costs.hand_over
    assert formula.load.rate == pytest.approx(played["request_rate"], rel=0.02)
    assert formula.ttft_ms == pytest.approx(played["ttft_ms"]["mean"], rel=0.02)
    assert rk.estimate("llama-3.2-1b", gpu="b200-sxm", isl=16, osl=1, rate=1.0).load.knee_rate <= most * (1 + 1e-9)


@pytest.mark.parametrize("requests", [100, 101, 150, 201])
def test_a_turn_that_few_begin_is_no_whole_turn(requests):
    """One request after those of all: twice as many as there are came all at once, and P99 was 0 ms."""
    work = {"isl": 100, "osl": 2, "osl_cv": 0.1, "isl_cv": 0.1, "concurrency": 100, "requests": requests}
    found = rk.estimate("llama-3-8b", engine="sglang", **work)
    assert found.ttft_ms > found.load.queue_ms
    for name in ("ttft_ms", "e2e_ms"):
        shares = list(found.load.percentiles[name].values())
        assert 0.0 < shares[0] < shares[1] < shares[2]
