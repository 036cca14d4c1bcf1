"""Loads that are played, and requests in flight: limits, identities and directions."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rooflinekit as rk
from rooflinekit.estimation.estimator import read_deployment, resolve
from rooflinekit.load.answer import Load, LoadPlay, largest_rate, play_load, scene_for
from rooflinekit.load.arrivals import Gamma, Requests, generate
from rooflinekit.load.lengths import Fixed, parse_length
from rooflinekit.load.scene import Scheduler
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.serving.flight import InFlight, mixed_step, prefill_share, rotation, side_by_side
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.errors import DoesNotFitError, InputError, RooflinekitError, WorkloadError

PREDICTOR = resolve("llama-3-8b", "h100-sxm", read_deployment({}), None).predictor
BOUND = resolve("llama-3-8b", "h100-sxm", read_deployment({}), "none").predictor


ENGINES = {engine: resolve("llama-3-8b", "h100-sxm", read_deployment({"engine": engine}), None).predictor
           for engine in ("vllm", "sglang", "trtllm")}  # fmt: skip


def _played(predictor: Predictor, isl: int, osl: int, **load: float) -> LoadPlay:
    return play_load(predictor, Load(Fixed(isl), Fixed(osl), **load))


def _knee(predictor: Predictor, isl: int, osl: int) -> float:
    asked = Load(Fixed(isl), Fixed(osl), rate=1.0)
    return largest_rate(scene_for(predictor, asked, Scheduler()), asked)


def test_one_user_feels_the_bare_steps():
    static = rk.estimate("llama-3-8b", batch=1, isl=1024, osl=256)
    assert _played(PREDICTOR, 1024, 256, users=1).tpot * 1e3 == pytest.approx(static.tpot_ms, rel=2e-3)


@settings(deadline=None, max_examples=12)
@given(st.floats(0.05, 0.9), st.integers(16, 3000), st.integers(2, 200), st.sampled_from(["vllm", "trtllm"]))
def test_little_law_holds(share, isl, osl, engine):
    """Requests in a place are the rate times their time in it, over all of a run."""
    found = _played(ENGINES[engine], isl, osl, rate=share * _knee(ENGINES[engine], isl, osl), requests=400)
    done = found.played
    inside = float((done.end - done.begun).sum()) / done.now
    assert done.running <= found.places * (1 + 1e-9)
    assert done.running == pytest.approx(inside, rel=0.25, abs=0.3)  # a place is kept over steps of others


@settings(deadline=None, max_examples=12)
@given(share=st.floats(0.1, 0.9), isl=st.integers(16, 3000), osl=st.integers(2, 200))
def test_every_latency_grows_with_the_rate_up_to_the_knee(share, isl, osl):
    """With the same draws; where prompts are short, the step under way is met at other places of it."""
    knee = _knee(PREDICTOR, isl, osl)
    light, heavy = (_played(PREDICTOR, isl, osl, rate=each * share * knee, requests=500) for each in (0.5, 1.0))
    assert light.stable
    assert light.tpot <= heavy.tpot * (1 + 1e-2)
    assert light.samples["ttft"].mean <= heavy.samples["ttft"].mean * (1 + 3e-2)
    assert light.played.running <= heavy.played.running


def test_above_the_knee_nothing_is_steady():
    knee = _knee(PREDICTOR, 1024, 256)
    above, below = (_played(PREDICTOR, 1024, 256, rate=share * knee) for share in (1.3, 0.9))
    assert (above.stable, below.stable) == (False, True)
    assert above.samples["ttft"].quantile(0.99) > 5.0 * below.samples["ttft"].quantile(0.99)


@pytest.mark.parametrize(("engine", "isl", "osl"), [("vllm", 64, 64), ("trtllm", 1000, 64), ("sglang", 1000, 512)])
@pytest.mark.parametrize("stages", [2, 4])
def test_stages_that_work_at_the_same_time_serve_no_more_than_as_many_accelerators(engine, isl, osl, stages):
    """A pipeline that is full computes its microbatches side by side: faster than one, at most p times."""
    knees = []
    for pp in (1, stages):
        setup = read_deployment({"pp": pp, "microbatches": pp, "engine": engine, "weights": "fp8", "kv": "fp8",
                                 "max_num_seqs": 256 * pp, "api_servers": 64})  # fmt: skip
        knees.append(_knee(resolve("llama-3-8b", "h200-sxm", setup, None).predictor, isl, osl))
    assert 0.5 * stages * knees[0] < knees[1] < 1.05 * stages * knees[0]


def test_a_prompt_beside_decodes_adds_less_than_a_prompt_alone():
    load = InFlight(64.0, 1024.0, 256.0)
    alone = float(PREDICTOR.plan.time(Batch.prefill(1.0, 1024.0)).expected)
    assert 0.0 < float(prefill_share(PREDICTOR, load).expected) < alone


def test_full_steps_hold_what_their_budget_holds_and_no_token_more():
    """Prompts as long as the room of a step fill it to its budget; a token beyond would begin another tile."""
    predictor = resolve("llama-3-8b", "h100-sxm", read_deployment({"token_budget": 2048}), None).predictor
    added = np.asarray(prefill_share(predictor, InFlight(np.linspace(40.0, 60.0, 201), 2000.0, 300.0)).expected)
    assert np.abs(added[1:] / added[:-1] - 1.0).max() < 1e-3


def test_an_engine_that_cuts_no_prompt_computes_whole_ones():
    """Of 5,000 tokens TensorRT-LLM has one prompt in 8,192 tokens, of 3,000 two; vLLM has 1.6 and 2.7, in pieces."""
    fitting = {}
    for engine in ("trtllm", "vllm"):
        predictor = resolve("llama-3-8b", "h100-sxm", read_deployment({"engine": engine}), None).predictor
        budget = predictor.plan.token_budget
        assert budget == 8192
        fitting[engine] = [
            float(rotation(predictor, InFlight(8.0, isl, 512.0)).fitting) for isl in (5000.0, 3000.0, 9000.0)
        ]
    assert fitting["trtllm"][:2] == [1.0, 2.0]
    assert fitting["vllm"][:2] == pytest.approx([1.638, 2.731], abs=0.02)
    assert fitting["trtllm"][2] == fitting["vllm"][2]  # longer than a step: cut by any


def test_estimate_under_load_says_all_of_it():
    e = rk.estimate("llama-3-8b", rate=18, ttft=500, tpot=20, isl=1024, osl=256)
    assert e.load is not None and e.load.stable and e.inputs["rate"] == 18
    assert e.interval["ttft_ms"][0] <= e.ttft_ms <= e.interval["ttft_ms"][1]
    assert 0.0 < e.load.goodput <= 18.0 < e.load.knee_rate
    assert e.output_tok_s == pytest.approx(18 * 256, rel=0.1)  # 1,600 requests over their makespan
    assert rk.estimate("llama-3-8b", rate=20, ttft=1, tpot=20).load.goodput == 0.0


def test_an_overload_is_said_loudly():
    e = rk.estimate("llama-3-8b", rate=1000)
    assert not e.load.stable
    assert e.warnings[0].startswith("overload: 1000 requests/s arrive, ")
    waits = e.load.percentiles["ttft_ms"]  # of the requests that were played
    assert 0.0 < waits["p50"] < waits["p90"] < waits["p95"] < waits["p99"] < 1e3 * e.load.makespan_s
    assert e.output_tok_s <= 256 * e.load.knee_rate * (1.0 + 1e-12)


@pytest.mark.parametrize(
    ("scenario", "error", "words"),
    [
        ({"concurrency": 4, "rate": 2.0}, InputError, "exclude each other"),
        ({"concurrency": 4, "batch": 8}, InputError, "batch describes a static batch"),
        ({"ttft": 200.0}, InputError, "add concurrency"),
        ({"rate": 0.0}, WorkloadError, "rate must be above 0"),
        ({"rate": float("nan")}, WorkloadError, "rate must be a number"),
        ({"concurrency": 0}, WorkloadError, "concurrency must be a whole number"),
        ({"rate": 1.0, "requests": 10, "warmup": 10}, WorkloadError, "leaves none of 10 requests"),
        ({"concurrency": 600_000}, WorkloadError, "at most 1,000,000: give --requests"),
        ({"seed": 3}, InputError, "seed describes traffic"),
        ({"rate": 1.0, "max_model_len": 512}, WorkloadError, "all requests are refused"),
        ({"concurrency": 4, "burstiness": 2.0}, InputError, "burstiness belongs to a rate"),
        ({"rate": 1.0, "burstiness": -1}, WorkloadError, "burstiness"),
        ({"rate": 1.0, "isl": 10**6}, DoesNotFitError, "no room for one request"),
    ],
)
def test_senseless_traffic_is_refused(scenario, error, words):
    with pytest.raises(error, match=words):
        rk.estimate("llama-3-8b", **scenario)


# --- attention replicas ---------------------------------------------------------------------------------------------


def test_prompts_side_by_side_are_a_poisson_law_spread_evenly():
    rng = np.random.default_rng(1)
    for chunks, replicas in ((0.3, 8), (2.0, 2), (6.0, 4), (20.0, 8), (60.0, 8)):
        fullest = np.ceil(rng.poisson(chunks, 400_000) / replicas).mean()
        assert side_by_side(chunks, replicas) == pytest.approx(chunks / fullest, rel=0.01)
    both = side_by_side(np.array([0.3, 60.0]), 8)
    assert both == pytest.approx([side_by_side(0.3, 8), side_by_side(60.0, 8)])


@settings(deadline=None, max_examples=50)
@given(chunks=st.floats(1e-9, 1e6), replicas=st.integers(1, 64))
def test_at_least_one_prompt_and_at_most_one_a_replica_share_the_time(chunks, replicas):
    assert 1.0 <= side_by_side(chunks, replicas) <= replicas
    assert side_by_side(chunks, replicas) <= side_by_side(2.0 * chunks, replicas) * (1 + 1e-6)


def test_the_mean_step_of_attention_replicas_holds_each_sequence_once():
    found = resolve("deepseek-v3", "h200-sxm", read_deployment({"dp": 8, "ep": 8}), None).predictor
    load = InFlight(256.0, 1000.0, 100.0)
    together, step = mixed_step(found, load)
    own = float(step.decoding.count)
    assert own == -(-(1 + 2.55 * 99) // 8)
    tokens = 8 * float(step.filled) * float(step.tokens)  # of all replicas
    assert tokens == pytest.approx(8 * own + float(together) * 1000.0)
    assert together == pytest.approx(rotation(found, load).together)


# --- what no answer may break ---------------------------------------------------------------------------------------

SPLITS = [("llama-3-8b", "h100-sxm", {}), ("llama-3-70b", "h100-sxm", {"tp": 4}), ("llama-3-8b", "l40s", {}),
          ("mixtral-8x7b", "mi300x", {}), ("gpt-oss-120b", "h100-sxm", {}),
          ("llama-3-8b", "h100-sxm", {"engine": "sglang"}),
          ("deepseek-v3", "h200-sxm", {"dp": 8, "ep": 8})]  # fmt: skip
PREDICTORS = [
    resolve(model, gpu, read_deployment(split), level).predictor
    for model, gpu, split in SPLITS
    for level in (None, "none")
]


def test_who_waits_for_one_of_few_places_waits_no_longer_than_the_run():
    """1,199 users of 16 places, five requests each: the mean request was half as long again as all of its turns."""
    asked = {"engine": "ideal", "isl": 66, "osl": 1, "concurrency": 1199, "requests": 5995, "max_num_seqs": 16}
    formed = rk.estimate("qwen3-30b-a3b", calibration="none", **asked)
    played = rk.simulate("qwen3-30b-a3b", calibration="none", **asked)
    assert formed.load.rate == pytest.approx(played.request_rate, rel=0.02)
    assert formed.e2e_ms == pytest.approx(played.e2e_ms.mean, rel=0.15)


def test_memory_has_room_for_whole_answers_where_an_engine_reserves_them():
    asked = {"isl": 1024, "osl": 4096, "concurrency": 8}
    for engine, held in (("trtllm", 1024 + 4096), ("vllm", 1024 + 2048)):
        answer = rk.estimate("llama-3-8b", engine=engine, **asked)
        assert (
            answer.memory.max_batch == rk.estimate("llama-3-8b", engine=engine, isl=1024, context=held).memory.max_batch
        )
        assert answer.memory.max_batch == pytest.approx(answer.load.slots, abs=1)  # of whole blocks


TOGETHER = [
    ("deepseek-v3", "h200-sxm", {"engine": "trtllm", "tp": 8, "dp": 8, "ep": 8}, 256, 5, 1000, 300),
    ("deepseek-v3", "b200-sxm", {"engine": "trtllm", "tp": 8, "dp": 8, "ep": 8}, 22, 10, 1296, 4),
    ("llama-3.1-70b", "b200-sxm", {"engine": "trtllm", "weights": "fp8", "tp": 2}, 32, 10, 170, 3),
    ("llama-3-8b", "h100-sxm", {"engine": "sglang"}, 64, 10, 128, 2),
    ("llama-3-8b", "h100-sxm", {"engine": "sglang"}, 64, 10, 1000, 5),
]  # fmt: skip


@pytest.mark.parametrize(("users", "osl"), [(1, 2), (1, 50), (16, 3)])
def test_one_turn_takes_its_burst_once(users, osl):
    """Requests that are each alone: the rate is one over their time."""
    answer = rk.estimate("llama-3-8b", concurrency=users, requests=users, isl=1000, osl=osl)
    assert answer.output_tok_s * answer.e2e_ms / 1e3 / (users * osl) == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize(("isl", "osl", "highest"), [
    ("uniform:500-1500", "uniform:100-300", 300),
    ("lognormal:mean=1000,cv=0.5,max=2000", "lognormal:mean=200,cv=1,max=400", 400),
])  # fmt: skip
def test_percentiles_follow_the_law_of_the_lengths(isl, osl, highest):
    """No request of 300 tokens takes as long as one of 360. All lengths were taken as lognormal: P99 was 20 % late."""
    work = {"isl": isl, "osl": osl, "rate": 2.0}
    found = rk.estimate("llama-3-8b", **work)
    played = rk.simulate("llama-3-8b", requests=8000, **work).to_dict()["e2e_ms"]
    for name in ("p50", "p90", "p99"):
        assert found.load.percentiles["e2e_ms"][name] == pytest.approx(played[name], rel=0.06)
    assert found.load.percentiles["e2e_ms"]["p99"] < 1.1 * (found.ttft_ms + highest * found.tpot_ms)


@pytest.mark.parametrize("share", [0.5, 0.7, 0.8, 0.9])
def test_no_rounding_decides_which_tile_a_prompt_takes(share):
    """A rate that differs in its last digits has the same times: a prompt of 1,536 tokens was rounded to 1 more."""
    work = {"isl": 1024, "osl": 256, "images": 2}
    knee = rk.estimate("gemma-3-4b", rate=1.0, **work).load.knee_rate
    found = [rk.estimate("gemma-3-4b", rate=share * knee * (1.0 + n * 1e-13), **work).tpot_ms for n in range(8)]
    assert max(found) == pytest.approx(min(found), rel=1e-11)


def test_replicas_of_a_dense_model_bear_nearly_as_much_as_as_many_servers():
    """They share nothing but the clock of the step: between 0.75 and 1 of four servers' knee."""
    four = resolve("llama-3-8b", "h100-sxm", read_deployment({"dp": 4}), "none").predictor
    knees = [_knee(each, 1024, 256) for each in (four, BOUND)]
    assert 0.75 * 4 * knees[1] < knees[0] <= 4 * knees[1] * 1.002  # each holds whole sequences


def test_experts_see_the_tokens_that_there_are():
    """One prompt among eight attention replicas: the experts compute its tokens, not eight times as many."""
    plan = resolve("deepseek-v3", "h200-sxm", read_deployment({"dp": 8, "ep": 8}), "none").plan
    every = Batch.prefill(1.0, 1000.0)
    lone = replace(every, filled=1.0 / 8)
    tokens = {kernel.shape.tokens for kernel in plan.kernels(lone) if kernel.name == "experts"}
    assert tokens == {1000.0}
    assert float(plan.time(lone).expected) < float(plan.time(every).expected)


@pytest.mark.parametrize("load", [{"rate": 4.0}, {"concurrency": 16}])
def test_cached_tokens_mean_the_same_of_every_answer_to_a_load(load):
    """Of 2,000 prompt tokens 1,500 are not computed: as in plan's curves, in frames and in the simulator."""
    asked = {"isl": 2000, "osl": 50, "cached": 1500, "requests": 200, **load}
    found, run = rk.estimate("llama-3-8b", **asked), rk.simulate("llama-3-8b", **asked)
    row = rk.estimate_frame(pd.DataFrame([{"model": "llama-3-8b", **asked}])).iloc[0]
    assert found.ttft_ms == run.ttft_ms.mean == row.ttft_ms
    assert found.tpot_ms == run.tpot_ms.mean == row.tpot_ms
    assert run.replicas[0].prompt_tokens == 200 * 500
    assert found.ttft_ms < 0.6 * rk.estimate("llama-3-8b", **asked | {"cached": 0}).ttft_ms
    root = rk.explain("llama-3-8b", "ttft", **asked).root
    assert root.value == pytest.approx(found.ttft_ms / 1e3)


def test_cached_tokens_are_refused_where_prompts_say_themselves_what_is_cached():
    for more, words in (
        ({"prefix_cache": True}, "cached cannot be combined with"),
        ({"sessions": "chat"}, "leave it out with sessions"),
        ({"cached": 1024}, "leaves nothing of isl=1024"),
    ):
        with pytest.raises(RooflinekitError, match=words):
            rk.simulate("llama-3-8b", **{"rate": 1.0, "requests": 20, "cached": 100, **more})


def test_rows_of_a_trace_are_no_prompts_that_are_sent_again(tmp_path):
    """Row n would be taken for prompt n % N, and be free, whatever its length."""
    path = tmp_path / "trace.csv"
    path.write_text("timestamp,input_tokens,output_tokens\n0,1000,8\n1,200,8\n2,8000,8\n")
    with pytest.raises(InputError, match="seed_reuse is about prompts of stated lengths"):
        rk.simulate("llama-3-8b", trace=path, seed_reuse=2)


def test_prompts_that_are_sent_again_have_the_lengths_they_had():
    asked = {"isl": "uniform:100-3000", "osl": 50, "rate": 4.0, "requests": 5000, "seed_reuse": 7, "seed": 1}
    found, run = rk.estimate("llama-3-8b", **asked), rk.simulate("llama-3-8b", **asked)
    assert found.ttft_ms == run.ttft_ms.mean
    shape = Requests(parse_length("uniform:100-3000"), parse_length("50"), prompts=7)
    assert len({each.isl for each in generate(Gamma(4.0), shape, 5000)}) == 7


@pytest.mark.parametrize(
    ("told", "more"),
    [
        ({"rate": 100.0, "osl": 8}, 4200), ({"concurrency": 2}, 150), ({"arrivals": "closed:users=2"}, 150),
        ({"arrivals": "burst:size=90,period=1"}, 4000),
    ],
)  # fmt: skip
def test_a_duration_ends_the_run_and_no_usual_number_of_requests(told, more):
    run = rk.simulate("llama-3-8b", **{"isl": 128, "osl": 64, "duration": 45.0, **told})
    assert run.requests.arrived > more
    assert run.duration_s == pytest.approx(45.0, rel=0.02)


def test_a_closed_loop_in_words_has_the_requests_and_the_warmup_of_the_options():
    spelt, told = (
        rk.simulate("llama-3-8b", isl=128, osl=16, requests=30, warmup=4, **how)
        for how in ({"arrivals": "closed:users=3"}, {"concurrency": 3})
    )
    assert spelt.requests == told.requests
    assert spelt.ttft_ms == told.ttft_ms


@pytest.mark.parametrize("users", [70, 500])
def test_users_without_a_request_are_no_load(users):
    """N requests are at most N at once: the load, its doubt and `simulate` are those of N users."""
    few, many = (rk.estimate("llama-3-8b", concurrency=count, requests=12, osl_cv=0.4) for count in (12, users))
    for key in ("ttft_ms", "tpot_ms", "e2e_ms", "interval", "interval80", "doubt"):
        assert getattr(many, key) == getattr(few, key), key
    assert many.load.percentiles == few.load.percentiles
    played = rk.simulate("llama-3-8b", concurrency=users, requests=12, osl_cv=0.4)
    assert (played.ttft_ms.mean, played.interval) == (many.ttft_ms, many.interval)
    assert all(f"12 of {users} users have a request" in " ".join(each.warnings) for each in (many, played))
