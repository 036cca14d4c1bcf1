"""The step table against the step function that it was made from, for every option, and the public way in."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rooflinekit as rk
from rooflinekit.estimation.estimator import read_deployment, resolve
from rooflinekit.load.scene import kept_table
from rooflinekit.load.table import build_table
from rooflinekit.model.types.batch import Batch, Sequences
from rooflinekit.model.types.engine import StepCosts
from rooflinekit.model.types.errors import WorkloadError

PLANS = [
    ("llama-3-8b", {}),
    ("llama-3-70b", {"tp": 8}),
    ("gemma-2-9b", {}),  # windows
    ("gpt-oss-120b", {}),  # experts and windows
    ("deepseek-v3", {"gpu": "h200-sxm", "tp": 8}),  # latent attention
]
MOST, LONGEST = 256, 32_768


@pytest.fixture(scope="module", params=PLANS, ids=lambda p: p[0])
def tabulated(request, plan_of):
    name, split = request.param
    gpu = split.get("gpu", "h100-sxm")
    plan = plan_of(name, calibration=f"{gpu}--vllm", **split)
    return plan, build_table(plan, MOST, LONGEST)


def drawn(seed, n=400):
    """Batches and contexts, chunks and what came before them; log-uniform, as loads are."""
    draw = np.random.default_rng(seed)
    batch = draw.integers(1, MOST + 1, n).astype(float)
    context, new = (np.exp(draw.uniform(0, np.log(top), n)).astype(int) + 1.0 for top in (30_000, 8000))
    past = np.floor(np.exp(draw.uniform(0, np.log(24_000), n))) * draw.integers(0, 2, n)
    return batch, context, new, past


def test_decode_steps_are_those_of_the_step_function(tabulated):
    plan, table = tabulated
    batch, context, _, _ = drawn(0)
    exact = plan.time(Batch.decode(batch, context)).expected
    found = [table(int(b), float(c)) for b, c in zip(batch, context, strict=True)]
    assert found == pytest.approx(exact, rel=0.005)


def test_mixed_steps_too(tabulated):
    plan, table = tabulated
    batch, context, new, past = drawn(1)
    mixed = Batch(prefilling=Sequences(1.0, new, past), decoding=Sequences(batch, 1.0, context - 1.0))
    found = [table(int(b), float(c), int(n), int(p)) for b, c, n, p in zip(batch, context, new, past, strict=True)]
    assert found == pytest.approx(plan.time(mixed).expected, rel=0.01)


COSTS = {
    "all": StepCosts(2e-3, 1e-3, 1e-5, 5e-6, 3e-6, 4e-6, 0.3, 0.2, 6e-6),
    "eager": StepCosts(1e-3, launch=20e-6, graphs=False),
}


@pytest.mark.parametrize("costs", COSTS.values(), ids=COSTS.keys())
def test_what_an_engine_adds_is_in_the_table(plan_of, costs):
    """Host work, gaps, collectives that wait, and a floor of launches where no graph is replayed."""
    plan = plan_of("llama-3-70b", calibration="h100-sxm--vllm", tp=8)
    plan = replace(plan, engine=replace(plan.engine, costs=costs))
    table = build_table(plan, MOST, LONGEST)
    batch, context, new, past = drawn(3)
    new = np.minimum(new, 2000.0)
    decode = [table(int(b), float(c)) for b, c in zip(batch, context, strict=True)]
    assert decode == pytest.approx(plan.time(Batch.decode(batch, context)).expected, rel=0.005)
    mixed = Batch(prefilling=Sequences(1.0, new, past), decoding=Sequences(batch, 1.0, context - 1.0))
    found = [table(int(b), float(c), int(n), int(p)) for b, c, n, p in zip(batch, context, new, past, strict=True)]
    assert found == pytest.approx(plan.time(mixed).expected, rel=0.01)
    alone = [table(0, 0, int(n), int(p)) for n, p in zip(new, past, strict=True)]
    assert alone == pytest.approx(plan.time(Batch(prefilling=Sequences(1.0, new, past))).expected, rel=0.01)


def test_several_prompts_in_a_step(tabulated):
    """One launch serves them all; table and step function average over chunks of several lengths, each its own way."""
    plan, table = tabulated
    draw = np.random.default_rng(2)
    errors = []
    for _ in range(60):
        count = int(draw.integers(2, 9))
        new, past = draw.integers(1, 2048, count), draw.integers(0, 4000, count) * draw.integers(0, 2, count)
        ragged = Sequences(np.ones(count), new.astype(float), past.astype(float), ragged=True)
        exact = float(plan.time(Batch(prefilling=ragged)).expected)
        errors.append(abs(table.step(0, 0, list(zip(new.tolist(), past.tolist(), strict=True)), count) / exact - 1))
    assert np.median(errors) < 0.003
    assert max(errors) < 0.025  # one of 60 of Gemma's windows; of the others 0.015


def test_a_run_of_steps_is_their_sum(tabulated):
    """Straight within a cell of the grid: time + slope·i is the i-th step for as many steps as it says."""
    _, table = tabulated
    for batch, context in ((1, 1), (7, 33), (64, 1000), (200, 20_000)):
        keys = batch * context
        time, slope, steps = table.run(batch, keys)
        assert steps >= 1
        for ahead in {0, steps // 2, steps - 1}:
            one = table.step(batch, keys + batch * ahead, (), 0)
            assert one == pytest.approx(time + slope * ahead, rel=1e-9)


@given(st.integers(1, MOST), st.integers(1, LONGEST), st.integers(0, 4096), st.integers(0, 8192))
def test_more_work_never_takes_less_time(plan_of, batch, context, new, past):
    table = more_work_table(plan_of)
    time = table(batch, context, new, past)
    assert time > 0
    assert table(batch, context + 500, new, past) >= time * (1 - 1e-9)
    if new:
        assert table(batch, context, new, past + 500) >= time * (1 - 1e-9)


TABLES: dict[str, object] = {}


def more_work_table(plan_of):
    """At the datasheet bound, where more work takes longer by construction."""
    if "bound" not in TABLES:
        TABLES["bound"] = build_table(plan_of("llama-3-8b"), MOST, LONGEST)
    return TABLES["bound"]


def test_drafts_verify_several_tokens_in_a_step(plan_of):
    plan = plan_of("llama-3-8b", calibration="h100-sxm--vllm")
    table = build_table(plan, 64, 8192, width=4)
    exact = float(plan.time(Batch.decode(32.0, 2048.0, 4.0)).expected)
    assert table(32, 2048) == pytest.approx(exact, rel=0.005)


def test_attention_replicas_share_the_sequences(plan_of):
    plan = plan_of("deepseek-v3", "h200-sxm", "h200-sxm--vllm", tp=1, dp=8, ep=8)
    table = build_table(plan, 128, 8192)
    exact = float(plan.time(Batch.decode(8.0, 2048.0)).expected)
    assert table(64, 2048) == pytest.approx(exact, rel=0.005)
    assert table(57, 2048) == pytest.approx(exact, rel=0.005)  # the fullest has 8 too


@pytest.mark.parametrize("decodes", [3, 57, 64])
@pytest.mark.parametrize("new", [100, 2000])
def test_replicas_that_have_no_prompt_leave_the_experts_less_to_do(plan_of, decodes, new):
    """The fullest replica computes the prompt and its decodes; experts see the tokens that there are."""
    plan = plan_of("deepseek-v3", "h200-sxm", "h200-sxm--vllm", tp=1, dp=8, ep=8)
    table = build_table(plan, 128, 8192)
    own = -(-decodes // 8)
    filled = (decodes + new) / (8 * (own + new))
    batch = Batch(Sequences(1.0, float(new), 0.0), Sequences(float(own), 1.0, 2047.0), filled)
    exact = float(plan.time(batch).expected)
    assert table(decodes, 2048, new) == pytest.approx(exact, rel=0.01)
    full = float(plan.time(replace(batch, filled=1.0)).expected)
    assert full > 1.02 * exact  # what the test tells apart


H200 = {"gpu": "h200-sxm"}
DP8 = H200 | {"dp": 8, "ep": 8}
DEEPEP = DP8 | {"all_to_all": "deepep"}
TWO = DEEPEP | {"two_batch": True}
TWO_NODES = H200 | {"dp": 16, "ep": 16, "all_to_all": "deepep", "system": "hgx-h200"}
OPTIONS = {
    "bound": ("llama-3-8b", {"calibration": "none"}),
    "vllm": ("llama-3-8b", {}),
    "sglang": ("llama-3-8b", {"engine": "sglang"}),
    "trtllm": ("llama-3-8b", {"engine": "trtllm"}),
    "eager": ("llama-3-8b", {"eager": True}),
    "fp8": ("llama-3-8b", {"weights": "fp8", "kv": "fp8"}),
    "fp8-block": ("deepseek-v3", H200 | {"tp": 8, "weights": "fp8_block"}),
    "nvfp4": ("llama-3-8b", {"gpu": "b200-sxm", "weights": "nvfp4"}),
    "mxfp4": ("gpt-oss-120b", {"gpu": "b200-sxm", "weights": "mxfp4"}),
    "lora": ("llama-3-8b", {"lora_rank": 16, "lora_adapters": 8}),
    "dp": ("llama-3-8b", {"dp": 2}),
    "cp": ("llama-3-8b", {"cp": 2}),
    "cp8": ("llama-3-8b", {"cp": 8}),
    "offload-layers": ("llama-3-8b", {"engine": "llama.cpp", "offload_layers": 8}),
    "offload-experts": ("mixtral-8x7b", {"engine": "llama.cpp", "offload_experts": "cpu"}),
    "tp": ("llama-3-70b", {"tp": 8}),
    "sequence-parallel": ("llama-3-70b", {"tp": 8, "sequence_parallel": True}),
    "pp": ("llama-3-70b", {"tp": 2, "pp": 4, "microbatches": 4}),
    "windows": ("gpt-oss-120b", {}),
    "windows-gemma": ("gemma-2-9b", {}),
    "experts-tp-ep": ("gpt-oss-120b", {"tp": 4, "ep": 4}),
    "experts-sglang": ("gpt-oss-120b", {"tp": 2, "engine": "sglang"}),
    "skew": ("mixtral-8x7b", {"tp": 2, "ep": 2, "skew": 0.8}),
    "experts-dp": ("mixtral-8x7b", {"dp": 2, "ep": 2}),
    "latent": ("deepseek-v3", H200 | {"tp": 8}),
    "latent-pp": ("deepseek-v3", H200 | {"tp": 4, "pp": 2, "microbatches": 2}),
    "latent-cp": ("deepseek-v3", H200 | {"tp": 4, "cp": 2}),
    "latent-cp8": ("deepseek-v3", H200 | {"cp": 8}),
    "latent-dp": ("deepseek-v3", DP8),
    "latent-tp-dp": ("deepseek-v3", H200 | {"tp": 2, "dp": 4, "ep": 8}),
    "latent-sglang": ("deepseek-v3", DP8 | {"engine": "sglang"}),
    "latent-trtllm": ("deepseek-v3", DP8 | {"engine": "trtllm"}),
    "redundant": ("deepseek-v3", DP8 | {"redundant_experts": 32, "skew": 0.5}),
    "chosen-keys": ("deepseek-v3.2", H200 | {"tp": 8}),
    "deepep": ("deepseek-v3", DEEPEP),
    "deepep-nodes": ("deepseek-v3", TWO_NODES),
    "deepep-sglang": ("deepseek-v3", DEEPEP | {"engine": "sglang"}),
    "deepep-trtllm": ("deepseek-v3", DEEPEP | {"engine": "trtllm"}),
    "deepep-eager": ("deepseek-v3", DEEPEP | {"eager": True}),
    "deepep-tp": ("deepseek-v3", H200 | {"tp": 2, "dp": 4, "ep": 8, "all_to_all": "deepep"}),
    "deepep-cp": ("deepseek-v3", H200 | {"cp": 8, "ep": 8, "all_to_all": "deepep"}),
    "two-batch": ("deepseek-v3", TWO),
    "two-batch-bound": ("deepseek-v3", TWO | {"calibration": "none"}),
    "two-batch-eager": ("deepseek-v3", TWO | {"eager": True}),
    "two-batch-cp": ("deepseek-v3", H200 | {"cp": 8, "ep": 8, "all_to_all": "deepep", "two_batch": True}),
    "two-batch-nodes": ("deepseek-v3", TWO_NODES | {"two_batch": True}),
    "two-batch-sglang": ("deepseek-v3", TWO | {"engine": "sglang", "redundant_experts": 32}),
    "two-batch-windows": ("gpt-oss-120b", H200 | {"dp": 4, "ep": 4, "all_to_all": "deepep", "two_batch": True}),
    "two-batch-hybrid": ("qwen3-next-80b-a3b", H200 | {"dp": 4, "ep": 4, "all_to_all": "deepep", "two_batch": True}),
    "hybrid": ("qwen3-next-80b-a3b", {"tp": 4}),
    "mamba": ("jamba-v0.1", {"tp": 2}),
    "images": ("qwen2.5-vl-7b", {"images": 1}),
    "images-apart": ("qwen2.5-vl-7b", {"images": 2, "encoder_gpus": 1}),
    "drafts": ("llama-3-8b", {"width": 4}),
    "drafts-two-batch": ("deepseek-v3", TWO | {"width": 3}),
}
"""Every option that changes a step; `ffn_gpus` is refused under load."""

KINDS = ("decode", "prompt", "chunk", "prompts", "mixed", "mixed chunks", "beside idle replicas")


def planned(model, given):
    given = dict(given)
    calibration, gpu, width = given.pop("calibration", None), given.pop("gpu", "h100-sxm"), given.pop("width", 1)
    return resolve(model, gpu, read_deployment(given), calibration).plan.under_load, width


def steps_of(kind, plan, width, number):
    """Random steps of one kind, log-uniform: sequences and contexts, chunks, their new and past tokens, and who ends.

    All fit the token budget of the engine.
    """
    draw = np.random.default_rng(KINDS.index(kind))
    budget, longest = int(plan.token_budget), min(32_768, int(plan.model.max_context)) - 8

    def sizes(least, most):
        return np.floor(np.exp(draw.uniform(np.log(least), np.log(most), number)))

    zeros, ones = np.zeros(number), np.ones(number)
    decodes = sizes(1, min(256, budget / width / 2)) if kind in ("decode", *KINDS[4:]) else zeros
    context = np.maximum(sizes(8, longest), width)
    chunks = {"decode": zeros, "prompts": sizes(2, 65), "mixed chunks": sizes(2, 65)}.get(kind, ones)
    new = sizes(ones, np.maximum(np.minimum((budget - decodes * width) / np.maximum(chunks, 1.0), longest), 1.0))
    past = np.floor(sizes(1, longest / 2) * draw.integers(0, 2, number))
    return decodes, context, chunks, new, past, 0.0 if kind == "chunk" else 1.0


def worst_errors(plan, width, number):
    """Largest error of the table by kind of step, over the step function's time."""
    table, dp = build_table(plan, 256, 32_768, width, int(plan.token_budget)), plan.deployment.dp
    worst = {}
    for kind in KINDS if dp > 1 else KINDS[:-1]:
        decodes, context, chunks, new, past, ended = steps_of(kind, plan, width, number)
        prompts = Sequences(chunks if chunks.max() > 1 else 1.0, new, past, ended) if kind != "decode" else None
        decoding = Sequences(decodes, float(width), context - width, float(width)) if decodes.any() else None
        filled, everywhere = 1.0, dp
        if kind == "beside idle replicas":
            own = decodes * width
            filled, everywhere = (own + new / dp) / (own + new), 1
        exact = plan.time(Batch(prompts, decoding, filled)).expected
        columns = (decodes, context, chunks, new, past)
        rows = zip(*([int(number) for number in column] for column in columns), exact, strict=True)
        errors = []
        for count, keys, pieces, size, before, time in rows:
            every = [(size, before)] * (pieces * everywhere)
            found = table.step(count * dp, count * dp * (keys - width), every, len(every) if ended else 0)
            errors.append(found / time - 1.0)
        worst[kind] = max(errors, key=abs)
    return worst


SAMPLE = [
    "vllm", "trtllm", "nvfp4", "lora", "cp8", "offload-layers", "latent-dp", "chosen-keys", "deepep", "deepep-tp",
    "two-batch", "two-batch-cp", "hybrid", "images", "drafts-two-batch",
]  # fmt: skip


@pytest.mark.parametrize("option", SAMPLE)
def test_the_table_is_the_step_for_an_option_of_every_kind(option):
    worst = worst_errors(*planned(*OPTIONS[option]), 12)
    assert all(abs(error) < 0.005 for error in worst.values()), worst


@pytest.mark.slow
@pytest.mark.parametrize("option", OPTIONS)
def test_the_table_is_the_step_for_every_option(option):
    worst = worst_errors(*planned(*OPTIONS[option]), 60)
    assert all(abs(error) < 0.005 for error in worst.values()), worst


def test_the_table_starts_anew_where_chunked_attention_does():
    """Several prompts that end just before a chunk does are up to 10 % off: they are interpolated across its end."""
    worst = worst_errors(*planned("llama-4-scout", {"tp": 4}), 60)
    assert all(abs(worst[kind]) < 0.005 for kind in ("decode", "prompt", "chunk", "mixed")), worst


STAGED = {
    "70b-pp4": ("llama-3-70b", {"tp": 2, "pp": 4, "microbatches": 4}),
    "70b-pp2": ("llama-3-70b", {"tp": 4, "pp": 2, "microbatches": 2}),
    "70b-pp3": ("llama-3-70b", {"tp": 2, "pp": 3, "microbatches": 3}),  # stages of 27, 27 and 26 layers
    "8b-pp2": ("llama-3-8b", {"pp": 2, "microbatches": 2, "eager": True}),
    "fp8": ("llama-3-70b", {"pp": 2, "microbatches": 2, "weights": "fp8"}),
    "sglang": ("llama-3-70b", {"tp": 2, "pp": 2, "microbatches": 2, "engine": "sglang"}),
    "latent": ("deepseek-v3", H200 | {"tp": 4, "pp": 2, "microbatches": 2}),  # dense layers in the first stage
    "hybrid": ("qwen3-next-80b-a3b", {"tp": 2, "pp": 2, "microbatches": 2}),
    "windows": ("gpt-oss-120b", {"pp": 2, "microbatches": 2}),
}


@pytest.mark.parametrize("name", STAGED)
def test_the_share_of_the_busiest_stage_is_that_of_the_step_function(name):
    """Step time times share is how long that stage works; the shares of all stages are 1 together."""
    plan, width = planned(*STAGED[name])
    table = build_table(plan, 256, 32_768, width, int(plan.token_budget))
    assert sum(table.stage_counts) == plan.deployment.pp == table.lanes == plan.lanes
    for kind in KINDS[:-1]:
        decodes, context, chunks, new, past, ended = steps_of(kind, plan, width, 12)
        prompts = Sequences(chunks if chunks.max() > 1 else 1.0, new, past, ended) if kind != "decode" else None
        decoding = Sequences(decodes, 1.0, context - 1.0) if decodes.any() else None
        exact = np.broadcast_to(plan.busiest_share(Batch(prompts, decoding))[0], decodes.shape)
        for count, keys, pieces, size, before, share in zip(decodes, context, chunks, new, past, exact, strict=True):
            every = [(int(size), int(before))] * int(pieces)
            step = int(count), int(count * (keys - 1.0)), every, len(every) if ended else 0
            assert table.stage_share(*step) == pytest.approx(share, rel=0.005)
            assert 1.0 / plan.deployment.pp - 1e-9 <= table.stage_share(*step) < 1.0


@pytest.mark.parametrize("split", [{}, {"tp": 2}, {"pp": 2}])
def test_without_microbatches_there_is_no_lane_and_no_share(plan_of, split):
    table = build_table(plan_of("llama-3-8b", calibration="h100-sxm--vllm", **split), 32, 4096)
    assert table.lanes == 1 and not table.stages
    assert table.stage_share(8, 800, ((100, 0),), 1) == 1.0


def test_senseless_sizes_are_refused(plan_of):
    with pytest.raises(WorkloadError, match="at least 1"):
        build_table(plan_of("llama-3-8b"), 0, 100)


def test_a_table_by_name_is_made_once():
    import rooflinekit as rk

    table = rk.step_table("llama3-8b", "h100-sxm", size=(32, 4096))
    assert rk.step_table("llama3-8b", "h100-sxm", size=(32, 4096)) is table
    step = rk.predict_step("llama3-8b", "h100-sxm", rk.Deployment(), Batch.decode(16.0, 1000.0))
    assert table(16, 1000) == pytest.approx(float(step.time), rel=0.005)


def test_simulations_of_one_plan_share_a_table_and_those_of_another_do_not(plan_of):
    plan = plan_of("opt-125m")
    first = kept_table(plan, 8, 256, 1, 0)
    assert kept_table(plan, 8, 256, 1, 0) is first
    assert kept_table(plan, 513, 256, 1, 0) is not first  # it has room for 512
    first = kept_table(plan, 8, 256, 1, 0)
    settings = plan.deployment.settings
    others = (
        ({}, True),
        ({"api_servers": 4}, True),
        ({"token_budget": 512, "max_num_seqs": 4}, True),
        ({"eager": True}, False),
    )
    for changed, shared in others:
        other = replace(plan, deployment=replace(plan.deployment, settings=replace(settings, **changed)))
        assert (kept_table(other, 8, 256, 1, 0) is first) is shared, changed
    for rows in range(20):  # the latest few are kept, and those that somebody still has
        kept_table(plan, 32 + rows, 64, 1, 0)
    assert kept_table(plan, 8, 256, 1, 0) is first


@pytest.mark.parametrize(("changed", "shared"), [
    ({"all_to_all": "deepep"}, True), ({"redundant_experts": 16}, True), ({"dp": 16, "ep": 16}, True),
    ({"gpu": "h200-sxm"}, False), ({"tp": 2, "dp": 4}, False), ({"kv": "fp8"}, False), ({"eager": True}, False),
], ids=str)  # fmt: skip
def test_deployments_that_run_attention_alike_share_its_times(monkeypatch, changed, shared):
    """The same bits as of a table made for it alone."""
    base = {"engine": "sglang", "dp": 8, "ep": 8}
    plans = [planned("deepseek-r1", base | each)[0] for each in ({}, changed)]
    monkeypatch.setattr("rooflinekit.load.phases._latest", {})
    first, second = (build_table(plan, 8, 4096).prefill.array for plan in plans)
    assert (first is second) is shared
    monkeypatch.setattr("rooflinekit.load.phases._latest", {})
    np.testing.assert_array_equal(build_table(plans[1], 8, 4096).prefill.array, second)


ODD = (0, -1, -0.5, math.nan, math.inf, 1e12, 10**400, None, "3", [1], np.array([]), np.array([1.0, -1.0]))


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: str(odd)[:12])
@pytest.mark.parametrize("name", ["count", "new", "past", "sampled", "span"])
def test_a_step_that_no_engine_has_is_refused_by_name(name: str, odd: object) -> None:
    """Each was a crash, a time of infinity or one below its bound."""
    if name in ("past", "sampled") and isinstance(odd, int) and odd == 0:
        pytest.skip("none is fine")
    for phases in ({"decoding": Sequences(4.0, 1.0, 100.0)}, {"prefilling": Sequences(1.0, 100.0)}):
        batch = Batch(**{phase: replace(each, **{name: odd}) for phase, each in phases.items()})
        with pytest.raises(WorkloadError, match=f"^batch: {name} is "):
            rk.predict_step("llama3-8b", "h100-sxm", rk.Deployment(), batch)


@pytest.mark.parametrize(("batch", "said"), [
    (None, "batch is NoneType, not a Batch"), ("decode", "batch is str"), (Batch(), "has no sequences"),
    (Batch.decode(4.0, 0.0), "past is -1.0"), (Batch.prefill(1.0, 10.0, 10.0), "new is 0.0"),
    (Batch(Sequences(1.0, 8.0), filled=0.0), "filled is 0.0, not above 0 to 1"),
    (Batch(Sequences(1.0, 8.0), varying=-1.0), "varying is -1.0"),
    (Batch(Sequences(1.0, 8.0), padding=math.inf), "padding is inf"),
])  # fmt: skip
def test_a_batch_that_is_none_is_refused(batch: Batch, said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        rk.predict_step("llama3-8b", "h100-sxm", rk.Deployment(), batch)


@pytest.mark.parametrize("size", [1e-6, 1, 511.5, 513, 131_071, 131_073, 1e6, 1e9])
def test_extreme_steps_have_finite_times_above_their_bounds(size: float) -> None:
    for batch in (Batch.decode(size, 100.0), Batch.decode(1.0, size + 1.0), Batch.prefill(1.0, size),
                  Batch.chunk(1.0, 16.0, size, False) | Batch.decode(8.0, 1000.0)):  # fmt: skip
        step = rk.predict_step("llama3-8b", "h100-sxm", rk.Deployment(), batch)
        assert 0.0 < step.bound <= step.time * 1.02 < math.inf  # the table has straight lines
        assert step.low <= step.time * 1.02 and step.time <= step.high * 1.02 < math.inf


@pytest.mark.parametrize("offsets", [[], [0], [1, 3], [0, 3, 1], [0, math.nan], [0, math.inf], [0, 2.5], [0, "3"]])
def test_offsets_that_are_none_are_refused(offsets: list[Any]) -> None:
    with pytest.raises(WorkloadError):
        Batch.from_cu_seqlens(offsets)


@pytest.mark.parametrize("option", ["vllm", "latent-dp", "windows", "chosen-keys", "two-batch"])
def test_a_table_of_more_sequences_and_tokens_gives_the_bits_of_a_smaller_one(option):
    """So tables are shared: what one deployment answers does not depend on what was asked before it."""
    plan, width = planned(*OPTIONS[option])
    few, many = (build_table(plan, most, 8192, width, budget) for most, budget in ((48, 8192), (300, 20_000)))
    draw = np.random.default_rng(0)
    for _ in range(60):
        decodes, count = (int(each) for each in draw.integers(0, 49, 2))
        chunks = [(int(draw.integers(1, 8192 // (count + 1))), 64)] * count
        step = decodes, decodes * 700, chunks, len(chunks)
        if decodes or chunks:
            assert few.step(*step) == replace(many, budget=8192).step(*step), step


@pytest.mark.parametrize("option", ["latent-dp", "two-batch", "vllm"])
@pytest.mark.parametrize("chunks", [1, 8])
def test_prompts_of_whole_tiles_are_read_as_they_are_timed(option, chunks):
    """One token more takes one tile of queries more: 256 tokens were read 1.5 % too slow, and 257 too fast."""
    plan, width = planned(*OPTIONS[option])
    table, dp = build_table(plan, 64, 4096, width, 8192), plan.deployment.dp
    new = np.array([128.0, 129.0, 256.0, 257.0, 512.0, 513.0, 1024.0])
    exact = plan.time(Batch(Sequences(float(chunks), new, 0.0, 1.0))).expected
    found = [table.step(0, 0, [(int(size), 0)] * chunks * dp, chunks * dp) for size in new]
    assert found == pytest.approx(exact, rel=0.005)


@pytest.mark.parametrize(
    ("model", "told", "rows"),
    [
        ("llama-3-8b", {}, 64),
        ("llama-3-8b", {"gpu": "l40s"}, 64),
        ("llama-3-8b", {"gpu": "h100-sxm"}, 0),  # FlashAttention 3 shares tiles (pack_gqa)
        ("llama-3-8b", {"engine": "sglang"}, 0),  # prompts have steps of their own
        ("llama-3-8b", {"engine_version": "0.6.3"}, 0),  # V0
        ("llama-3-8b", {"kv": "fp8"}, 0),
        ("gpt-oss-20b", {}, 0),  # sinks: Triton's kernel
        ("deepseek-v2-lite", {}, 0),  # latent attention
    ],
)
def test_heads_that_decode_beside_prompts_have_tiles_of_their_own_under_flashattention_2(model, told, rows):
    """64 rows for each of 32 heads, 4·128 FLOP a row and key, 32 layers: 0.1076 us a key at 312 TFLOP/s.

    64 sequences of 4,096 keys take 28.2 ms beside a prompt, and 16.9 ms alone: 34.4 GB at 2.039 TB/s.
    """
    given = {"gpu": "a100-sxm-80gb", "engine": "vllm", "engine_version": "0.11.0"} | told
    gpu = given.pop("gpu")
    plan = resolve(model, gpu, read_deployment(given), "none").predictor.plan
    assert plan.tile_rows == rows
    if (model, gpu) == ("llama-3-8b", "a100-sxm-80gb") and rows:
        table = build_table(plan, 64, 8192)
        assert table.tiled == pytest.approx(64 * 32 * 4 * 128 * 32 / 312e12, rel=1e-3)
        keys = 64 * 4096
        more = table.step(64, keys, [(512, 0)], 1) - replace(table, tiled=0.0).step(64, keys, [(512, 0)], 1)
        assert more == pytest.approx(28.2e-3 - 16.9e-3, rel=0.02)
        assert table.step(64, keys, [], 0) == replace(table, tiled=0.0).step(64, keys, [], 0)
