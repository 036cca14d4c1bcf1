"""The same deployment has the same latencies, memory and prices whichever command is asked."""

from typing import Any

import pandas as pd
import pytest

import rooflinekit as rk

STATIC: dict[str, dict[str, Any]] = {
    "dense": {"model": "llama-3.1-8b", "gpu": "h100-sxm", "batch": 32},
    "dense tp4": {"model": "llama-3.3-70b", "gpu": "h100-sxm", "tp": 4, "batch": 16},
    "fp8": {"model": "llama-3.1-8b", "gpu": "h100-sxm", "weights": "fp8", "kv": "fp8", "batch": 32},
    "MoE tp2": {"model": "mixtral-8x7b", "gpu": "h100-sxm", "tp": 2, "batch": 8},
    "MLA tp8": {"model": "deepseek-v3", "gpu": "h200-sxm", "tp": 8, "batch": 16},
    "MLA dp8": {"model": "deepseek-v3", "gpu": "h200-sxm", "dp": 8, "ep": 8, "batch": 64},
    "sglang": {"model": "llama-3.1-8b", "gpu": "a100-sxm-80gb", "engine": "sglang", "batch": 4},
}
LOADED: dict[str, dict[str, Any]] = {
    "users": {"model": "llama-3.1-8b", "gpu": "h100-sxm", "concurrency": 48},
    "rate": {"model": "mixtral-8x7b", "gpu": "h100-sxm", "tp": 2, "rate": 3.0},
    "users dp8": {"model": "deepseek-v3", "gpu": "h200-sxm", "dp": 8, "ep": 8, "concurrency": 64},
}
LENGTHS = {"isl": 1500, "osl": 200}
MEMORY = ("weight_bytes", "kv_bytes", "activation_bytes", "overhead_bytes", "total_bytes", "kv_pool_bytes", "max_batch")
PRICE = 3.0
every = pytest.mark.parametrize("scenario", [*STATIC.values(), *LOADED.values()], ids=[*STATIC, *LOADED])
some = pytest.mark.parametrize("scenario", [STATIC["dense"], STATIC["MLA dp8"], LOADED["rate"] | {"requests": 300}],
                               ids=["dense", "MLA dp8", "rate"])  # fmt: skip
static = pytest.mark.parametrize("scenario", STATIC.values(), ids=STATIC)


def _times(entry: Any) -> list[float]:
    return [entry.ttft_ms, entry.tpot_ms, entry.output_tok_s]


@every
def test_frames_and_sweeps_say_what_estimate_says(scenario):
    one = rk.estimate(**scenario, **LENGTHS)
    row = rk.estimate_frame(pd.DataFrame([scenario | LENGTHS])).iloc[0]
    swept = rk.sweep(**scenario, **LENGTHS, price=PRICE).iloc[0]
    for found in (row, swept):
        assert _times(found) == pytest.approx(_times(one), rel=1e-9)
        for name in MEMORY:
            assert float(found[name]) == pytest.approx(float(getattr(one.memory, name)), rel=1e-12), name
        for metric in ("ttft", "tpot"):
            assert found[f"{metric}_bound_ms"] == pytest.approx(one.bound[f"{metric}_ms"], rel=1e-9)
            assert one.interval is not None
            ends = [found[f"{metric}_low_ms"], found[f"{metric}_high_ms"]]
            assert ends == pytest.approx(list(one.interval[f"{metric}_ms"]), rel=1e-9)


@some
def test_levers_start_from_what_estimate_says(scenario):
    one = rk.estimate(**scenario, **LENGTHS)
    now = rk.levers(**scenario, **LENGTHS, price=PRICE, gpus={}).answer
    assert _times(now) == pytest.approx(_times(one), rel=1e-9)
    swept = rk.sweep(**scenario, **LENGTHS, price=PRICE).iloc[0]
    assert now.usd_per_million_output == pytest.approx(swept["usd_per_million_output_tokens"], rel=1e-9)


@some
def test_launch_predicts_what_estimate_says(scenario):
    one = rk.estimate(**scenario, **LENGTHS)
    assert _times(rk.launch(**scenario, **LENGTHS).servers[0].prediction) == pytest.approx(_times(one), rel=1e-9)


@static
def test_costs_are_those_of_estimates_decode_step(scenario):
    deployment = {key: value for key, value in scenario.items() if key != "batch"}
    priced = rk.cost(**deployment, **LENGTHS, concurrency=scenario["batch"], price=PRICE).prices
    one = rk.estimate(**scenario, **LENGTHS)
    second = PRICE * one.inputs["gpus"] / 3600.0
    by_hand = one.tpot_ms / 1e3 / scenario["batch"] * second * 1e6
    assert priced.output_usd_per_million == pytest.approx(by_hand, rel=1e-9)


@pytest.mark.parametrize("scenario", [STATIC["fp8"], STATIC["MLA dp8"]], ids=["fp8", "MLA dp8"])
def test_a_request_at_the_knee_costs_one_over_the_largest_rate(scenario):
    deployment = {key: value for key, value in scenario.items() if key != "batch"}
    priced = rk.cost(**deployment, **LENGTHS, price=PRICE).prices
    one = rk.estimate(**deployment, **LENGTHS, rate=0.01)
    replica = PRICE * one.inputs["gpus"] / 3600.0
    # a price takes all sequences to decode at once; one in N steps of each is that of its prompt. Prompts of attention
    # replicas are priced by the one that has most of them, and the law of a full engine shares them evenly.
    assert (0.85 if scenario.get("dp") else 0.96) < replica / one.load.knee_rate / priced.request_usd < 1.01


def test_where_whole_answers_have_room_a_request_at_the_knee_costs_its_price():
    """TensorRT-LLM preempts nobody."""
    asked = {"model": "llama-3-8b", "gpu": "h100-sxm", "engine": "trtllm", **LENGTHS}
    knee = rk.estimate(**asked, rate=0.01).load.knee_rate
    assert rk.cost(**asked, price=PRICE).prices.request_usd == pytest.approx(PRICE / 3600.0 / knee, rel=1e-2)


@pytest.mark.parametrize("name", ["dense", "MoE tp2"])
def test_plans_predict_what_estimate_says_under_their_load(name):
    scenario = {key: value for key, value in STATIC[name].items() if key != "batch"}
    split = {"tp": [scenario.get("tp", 1)], "dp": [1], "ep": [1]}
    answer = rk.plan(
        scenario["model"], [scenario["gpu"]], "p95 ttft<3s, p95 tpot<60ms", rate=9.0, **LENGTHS, **split,
        disaggregated=False,
    )  # fmt: skip
    fleet = answer.best.fleets[0]
    one = rk.estimate(**fleet.scenario, **LENGTHS, rate=fleet.load, burstiness=fleet.burstiness)
    assert answer.best.predicted["ttft_ms"]["mean"] == one.ttft_ms
    assert answer.best.predicted["tpot_ms"]["mean"] == one.tpot_ms
    assert answer.best.predicted["e2el_ms"]["p99"] == one.load.percentiles["e2e_ms"]["p99"]
    assert fleet.knee == one.load.knee_rate
