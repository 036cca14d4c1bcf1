"""What the simulator is built from: capacity, loads, sources, the public step."""

from __future__ import annotations

import gc
import math

import numpy as np
import pytest

import rooflinekit as rk
from rooflinekit.estimation.estimator import resolve
from rooflinekit.load.arrivals import Arrival
from rooflinekit.load.lengths import Fixed
from rooflinekit.load.policies import POLICIES
from rooflinekit.load.scene import Scheduler, kv_capacity_tokens
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.serving.flight import front_end
from rooflinekit.model.types.batch import Batch, Sequences
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.simulation.requests import Job
from rooflinekit.simulation.simulate import SentLoad, make_load, serve, simulate
from rooflinekit.specs.engines import load_engine


def test_the_cache_holds_as_many_tokens_as_the_memory_model_admits(plan_of):
    predictor = Predictor.of(plan_of("llama-3-8b"))
    for context in (100.0, 1000.0, 8000.0):
        fitting = float(predictor.memory.max_batch(context, context))
        tokens = kv_capacity_tokens(predictor, context, 10**6)
        assert fitting * context <= tokens <= (fitting + 1) * context


def test_windows_hold_more_of_long_sequences(plan_of):
    """Half of Gemma-2's layers keep 4,096 tokens at most."""
    predictor = Predictor.of(plan_of("gemma-2-9b"))
    assert kv_capacity_tokens(predictor, 8000.0, 10**6) > 1.1 * kv_capacity_tokens(predictor, 1000.0, 10**6)


def test_an_engine_that_reserves_whole_answers_holds_fewer_and_preempts_none():
    """8,192 tokens have room for four requests of 2,000 to their ends, and for the prompts of seven or eight."""
    work = {"isl": 1000, "osl": 1000, "concurrency": 16, "requests": 32, "kv_tokens": 8192}
    reserves, preempts = (rk.simulate("llama-3-8b", engine=engine, **work).to_dict() for engine in ("trtllm", "vllm"))
    assert reserves["requests"]["preemptions"] == 0
    assert reserves["steps"] == pytest.approx(32 // 4 * 1000, abs=4)  # the front end reads the first four in turn
    assert reserves["replicas"][0]["mean_batch"] == pytest.approx(4.0, rel=1e-3)
    assert preempts["requests"]["preemptions"] > 0


def test_what_has_no_room_says_so(plan_of):
    with pytest.raises(rk.DoesNotFitError, match="no room for one request"):
        kv_capacity_tokens(Predictor.of(plan_of("llama-3-70b")), 1000.0, 64)


def test_shared_prefixes_take_turns():
    given = {"rate": 1.0, "requests": 4, "isl": 40, "osl": 1, "shared_prefix": 33, "prefix_groups": 2}
    load, _ = make_load(given)
    assert load.hash_tokens == 16
    assert [arrival.hashes for arrival in load.sent] == [(0, 1), (2, 3), (0, 1), (2, 3)]


def test_a_closed_loop_counts_its_warmup_besides():
    load, _ = make_load({"concurrency": 3, "warmup": 5})
    assert (load.users, load.warmup, len(list(load.sent))) == (3, 5, 35)


def alive() -> int:
    """Requests that something in this process still refers to, other tests among them."""
    gc.collect()
    return sum(type(thing) is Job for thing in gc.get_objects())  # no isinstance: torch warns when asked


@pytest.mark.slow
def test_memory_does_not_grow_with_finished_requests():
    """Nothing refers to a request that has ended."""
    before = alive()
    outcome = simulate("llama-3-8b", rate=100.0, requests=3000, isl=16, osl=4, calibration="none")
    assert outcome.requests.finished == 3000
    assert alive() - before < 100
    assert len(outcome.timeline) < 5000


def test_a_long_timeline_thins_itself_out():
    outcome = simulate("llama-3-8b", rate=1.0, requests=1500, isl=16, osl=40, calibration="none")
    seen = [row["time_s"] for row in outcome.timeline]
    assert len(seen) <= 4096
    assert seen == sorted(seen)
    assert seen[-1] > 0.95 * outcome.duration_s


def test_more_load_waits_longer_and_makes_more_use():
    calm, busy = (simulate("llama-3-8b", rate=rate, requests=400, isl=1000, osl=100) for rate in (2.0, 12.0))
    assert calm.ttft_ms.mean < busy.ttft_ms.mean
    assert calm.tpot_ms.mean < busy.tpot_ms.mean
    assert calm.replicas[0].mean_batch < busy.replicas[0].mean_batch


def test_an_idle_server_answers_as_the_estimate_does():
    """One user at a time: TTFT is the front end and a prefill, TPOT the mean decode step, of the same step function."""
    outcome = simulate("llama-3-8b", concurrency=1, requests=3, isl=1000, osl=200)
    estimate = rk.estimate("llama-3-8b", isl=1000, osl=200)
    costs = load_engine("vllm").costs
    front_end_ms = 1e3 * (front_end(costs, 1000) + costs.hop)
    assert outcome.ttft_ms.mean == pytest.approx(front_end_ms + estimate.ttft_ms, rel=0.01)
    assert outcome.tpot_ms.mean == pytest.approx(estimate.tpot_ms, rel=0.01)
    assert outcome.queue_ms.max == 0


def test_every_policy_serves():
    for policy in POLICIES:
        outcome = simulate("llama-3-8b", rate=4.0, requests=50, policy=policy, calibration="none")
        assert outcome.requests.finished == 50
    with pytest.raises(rk.UnknownNameError, match="chunked"):
        simulate("llama-3-8b", rate=4.0, policy="chunkd")
    with pytest.raises(rk.InputError, match="round-robin"):
        simulate("llama-3-8b", rate=4.0, router="round-robbin")


@pytest.mark.parametrize("batch", [
    Batch.decode(32.0, 2048.0),
    Batch.decode(3.0, 1.0),
    Batch.prefill(1.0, 700.0),
    Batch.decode(32.0, 2048.0) | Batch.chunk(1.0, 512.0, 1024.0, True),
], ids=["decode", "short", "prefill", "mixed"])  # fmt: skip
def test_a_predicted_step_is_quick_and_close(batch):
    step = rk.predict_step("llama-3-8b", "h100-sxm", rk.Deployment(), batch)
    assert isinstance(step.time, float)
    assert step.time == pytest.approx(float(step.exact.expected), rel=0.005)
    assert step.bound <= step.time
    assert step.kernels == step.exact.kernels


@pytest.mark.parametrize("batch", [
    Batch.prefill(4.0, 700.0),
    Batch.decode(4.5, 700.0),
    Batch.decode(4.0, 700.0, 3.0),
    Batch.mean_decode(4.0, 700.0, 50.0),
    Batch.decode(10_000.0, 700.0),
    Batch.ragged([3, 500]),
    Batch(decoding=Sequences(np.array([1.0, 2.0]), 1.0, 99.0)),
], ids=["several", "fraction", "draft", "mean", "many", "ragged", "array"])  # fmt: skip
def test_what_the_table_does_not_hold_is_worked_out(batch):
    step = rk.predict_step("llama-3-8b", "h100-sxm", rk.Deployment(), batch)
    assert np.array_equal(step.time, step.exact.expected)


def test_a_name_that_is_none_is_refused():
    with pytest.raises(rk.InputError, match="model must be a name"):
        rk.predict_step(3, "h100-sxm", rk.Deployment(), Batch.decode(1.0, 1.0))
    with pytest.raises(rk.InputError, match="nearest"):
        rk.predict_step("lama-3-8b", "h100-sxm", rk.Deployment(), Batch.decode(1.0, 1.0))


def test_numbers_that_make_no_sense_are_refused():
    for wrong in ({"duration": math.nan}, {"host_gib": -1}, {"link_gb_s": "fast"}, {"replicas": 1.5}):
        with pytest.raises(rk.WorkloadError, match=next(iter(wrong))):
            simulate("llama-3-8b", rate=1.0, **wrong)


def test_each_replica_draws_the_power_of_its_own_board():
    """A busy L40S that computes prompts draws the same whether an L40S or an H100 waits behind it."""
    boards = {name: resolve("llama-3-8b", name, Deployment(), None) for name in ("h100-sxm", "l40s")}

    def power(first: str, then: str) -> float:
        load = SentLoad(Fixed(8000), Fixed(2), sent=[Arrival(0.01 * number, 8000, 2) for number in range(40)])
        found = serve(boards[then], load, Scheduler(prefill_replicas=1, link_gb_s=50.0), prefill=boards[first])
        assert found.power_w_per_gpu is not None
        return 2.0 * found.power_w_per_gpu

    idle = {name: each.plan.system.accelerator.power.idle for name, each in boards.items()}
    alone = power("l40s", "l40s") - idle["l40s"]
    assert power("l40s", "h100-sxm") == pytest.approx(alone + idle["h100-sxm"], rel=0.05)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_short_prompt_passes_a_long_one_in_the_front_end(engine):
    """60,000 tokens take the tokeniser 180 ms; a prompt that comes meanwhile goes to the other replica at once."""
    resolved = resolve("llama-3.1-8b", "h100-sxm", Deployment(engine=engine), None)
    long, short = Arrival(0.0, 60_000, 2), Arrival(0.001, 100, 2)
    alone, both = (
        serve(resolved, SentLoad(Fixed(30_000), Fixed(2), sent=each, most=60_002), Scheduler(replicas=2)).ttft_ms
        for each in ([short], [long, short])
    )
    assert 2 * both.mean - both.max == pytest.approx(alone.mean, rel=0.05)
