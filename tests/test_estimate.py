"""`rk.estimate`: the published keys, sums that must agree, levels, and what each option does."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest

import rooflinekit as rk
from rooflinekit.estimation.estimator import read_deployment, resolve
from rooflinekit.model.types.deployment import ENGINES
from rooflinekit.model.types.workload import Workload

TOP = {
    "version": str, "model": str, "gpu": str, "engine": str, "level": str, "calibration": dict, "evidence": str,
    "interval_tested": str, "inputs": dict, "ttft_ms": float, "tpot_ms": float, "e2e_ms": float, "output_tok_s": float,
    "output_tok_s_per_gpu": float, "output_tok_s_per_user": float, "interval": dict, "interval80": dict, "doubt": dict,
    "bound": dict, "memory": dict, "prefill": dict, "decode": dict, "provenance": list, "warnings": list,
    "measure": list,
}  # fmt: skip
MEMORY = {
    "fits": bool, "capacity_bytes": float, "weight_bytes": float, "kv_bytes": float, "activation_bytes": float,
    "overhead_bytes": float, "total_bytes": float, "max_batch": int, "max_context": int, "kv_bytes_per_token": float,
    "context_bytes": float, "non_torch_bytes": float, "graph_bytes": float, "kv_pool_bytes": float,
    "kv_pool_tokens": int, "kv_blocks": int, "max_concurrency": float, "needed_bytes": float, "available_bytes": float,
}  # fmt: skip
STEP = {
    "time_ms": float, "bound_ms": float, "flops": float, "bytes": float, "intensity": float, "bound": str, "mfu": float,
    "mbu": float, "kernels": list,
}  # fmt: skip
KERNEL = {
    "name": str, "family": str, "count": int, "flops": float, "weight_bytes": float, "kv_read_bytes": float,
    "kv_write_bytes": float, "activation_bytes": float, "network_bytes": float, "time_us": float, "bound_us": float,
    "bound": str, "energy_uj": float,
}  # fmt: skip
REGIMES = {"compute", "memory", "network", "overhead"}
CASES = [
    {"model": "llama-3-8b", "batch": 32},
    {"model": "llama-3-70b", "tp": 8, "batch": 16, "isl": 4000},
    {"model": "deepseek-v3", "gpu": "h200-sxm", "tp": 8, "batch": 8},
    {"model": "gpt-oss-120b", "gpu": "h200-sxm", "batch": 4},
    {"model": "mixtral-8x7b", "tp": 2, "dp": 2, "ep": 2, "batch": 10},
    {"model": "gemma-2-9b", "isl": 6000, "cached": 2000},
    {"model": "bloom-176b", "tp": 8, "isl": 500},
    {"model": "llama-3-70b", "pp": 4, "osl": 1},
    {"model": "llama-3-8b", "calibration": "none"},
]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(map(str, case.values())))
def answer(request):
    return rk.estimate(**request.param)


def hold(entry, types):
    for key, kind in types.items():
        assert key in entry, key
        assert isinstance(entry[key], kind), (key, entry[key])
        if kind is float:
            assert math.isfinite(entry[key])
            assert entry[key] >= 0


def test_the_json_has_every_key_of_the_contract(answer):
    data = json.loads(json.dumps(answer.to_dict(), allow_nan=False))
    optional = {"calibration", "interval", "interval80", "doubt"} if answer.level == "bound" else set()
    optional |= set() if answer.evidence == "measured" else {"interval_tested"}  # of fits of others nobody tested it
    assert set(data) == {*TOP, "speculation", "load", "energy"}
    assert data["speculation"] is None and data["load"] is None
    hold(data, {key: kind for key, kind in TOP.items() if key not in optional})
    assert all(data[key] is None for key in optional)
    hold(data["memory"], MEMORY)
    assert set(data["memory"]) == set(MEMORY)
    for step in (data["prefill"], data["decode"]):
        hold(step, STEP)
        assert step["bound"] in REGIMES
        for kernel in step["kernels"]:
            hold(kernel, KERNEL)
            assert kernel["bound"] in REGIMES
            assert kernel["count"] >= 1


def test_the_inputs_are_the_resolved_ones(answer):
    names = {
        "batch",
        "isl",
        "osl",
        "cached",
        "context",
        "tp",
        "pp",
        "ep",
        "dp",
        "weights",
        "activations",
        "kv",
        "engine",
    }
    assert names <= set(answer.inputs)
    assert answer.inputs["gpus"] == answer.inputs["tp"] * answer.inputs["pp"] * answer.inputs["dp"]


def test_times_and_rates_agree(answer):
    i = answer.inputs
    assert answer.e2e_ms == pytest.approx(answer.ttft_ms + (i["osl"] - 1) * answer.tpot_ms)
    assert answer.output_tok_s_per_user == pytest.approx(1e3 / answer.tpot_ms)
    assert answer.output_tok_s == pytest.approx(i["batch"] * i["osl"] / (answer.e2e_ms / 1e3))
    assert answer.output_tok_s_per_gpu == pytest.approx(answer.output_tok_s / i["gpus"])


def test_a_step_is_the_sum_of_its_kernels(answer):
    for step in (answer.prefill, answer.decode):
        assert step.time_ms == pytest.approx(sum(k.time_us for k in step.kernels) / 1e3)
        assert step.bound_ms == pytest.approx(sum(k.bound_us for k in step.kernels) / 1e3)
        assert step.flops == pytest.approx(sum(k.flops for k in step.kernels))
        classes = ("weight_bytes", "kv_read_bytes", "kv_write_bytes", "activation_bytes")
        assert step.bytes == pytest.approx(sum(getattr(k, each) for k in step.kernels for each in classes))
        assert step.intensity == pytest.approx(step.flops / step.bytes)
        assert 0 < step.mfu <= 1
        assert 0 < step.mbu <= 1
        assert sum(step.shares.values()) == pytest.approx(1)
        above = step.time_parts_ms["above_bound"] + step.time_parts_ms["host"]
        assert min(step.time_parts_ms.values()) >= 0.0
        assert sum(step.time_parts_ms.values()) == pytest.approx(step.time_ms)
        assert sum(step.time_parts_ms.values()) - above == pytest.approx(step.bound_ms)


def test_ttft_is_the_prefill_step(answer):
    # prefill and first sample are one step
    assert answer.ttft_ms == pytest.approx(answer.prefill.time_ms)
    assert any(k.family == "sampling" for k in answer.prefill.kernels)


def test_levels_and_intervals(answer):
    if answer.level == "bound":
        assert answer.interval is None
        assert answer.calibration is None
        assert answer.bound == {"ttft_ms": answer.ttft_ms, "tpot_ms": answer.tpot_ms}
        return
    assert set(answer.calibration) == {"name", "hash"}
    for key in ("ttft_ms", "tpot_ms"):
        low, high = answer.interval[key]
        near, far = answer.interval80[key]
        assert answer.bound[key] <= low <= near <= getattr(answer, key) <= far <= high


@pytest.mark.parametrize(
    ("evidence", "scenario"),
    [
        ("measured", {"model": "llama-3-8b"}),
        ("measured", {"model": "llama-3-8b", "gpu": "b200-sxm", "engine": "trtllm", "weights": "nvfp4"}),
        ("measured", {"model": "llama-3-70b", "gpu": "h100-sxm", "tp": 4, "pp": 2}),  # transfers between stages: < 1 %
        ("stand-in", {"model": "llama-3-8b", "gpu": "mi300x"}),  # kernels of an H100
        ("stand-in", {"model": "llama-3-8b", "gpu": "h100-sxm", "engine": "gpt-fast"}),
        ("stand-in", {"model": "llama-3-8b", "gpu": "h100-sxm", "calibration": "h200-sxm--vllm"}),
        ("stand-in", {"model": "deepseek-v2-lite", "gpu": "a100-sxm-80gb"}),  # latent attention of an H100
        ("stand-in", {"model": "nemotron-h-56b", "gpu": "h100-sxm", "tp": 4}),  # nobody measured its states
        ("measured", {"model": "llama-3-8b", "gpu": "h100-sxm", "weights": "int4"}),  # Machete, by our own harness
        ("stand-in", {"model": "llama-3-8b", "gpu": "a100-sxm-80gb", "weights": "int4"}),  # only 16-bit products
        ("datasheet", {"model": "llama-3-8b", "calibration": "none"}),
        ("datasheet", {"model": "llama-3-8b", "engine": "ideal"}),
    ],
)
def test_every_answer_says_what_its_times_rest_on(evidence, scenario):
    answer = rk.estimate(**scenario)
    row = rk.estimate_frame(pd.DataFrame([scenario])).iloc[0]
    assert answer.evidence == answer.to_dict()["evidence"] == answer.to_row()["evidence"] == row["evidence"] == evidence
    assert rk.explain(metric="tpot", **scenario).to_dict()["evidence"] == evidence


def test_every_answer_says_where_its_numbers_come_from(answer):
    quantities = {entry.quantity for entry in answer.provenance}
    assert "memory.bandwidth" in quantities
    assert "model architecture" in quantities
    assert all(entry.source for entry in answer.provenance)
    assert any(quantity.startswith("calibration") for quantity in quantities) == (answer.level == "expected")


def test_kernels_as_a_table(answer):
    frame = answer.to_frame()
    assert len(frame) == len(answer.prefill.kernels) + len(answer.decode.kernels)
    decode = frame[frame["step"] == "decode"]
    assert decode["time_us"].sum() / 1e3 == pytest.approx(answer.decode.time_ms)


# --- levels ---------------------------------------------------------------------------------------------------------


def test_the_ideal_engine_is_the_bound():
    ideal, bare = rk.estimate("llama-3-8b", engine="ideal"), rk.estimate("llama-3-8b", calibration="none")
    assert (ideal.level, ideal.tpot_ms, ideal.ttft_ms) == ("bound", bare.tpot_ms, bare.ttft_ms)
    assert ideal.memory.overhead_bytes == 0 < bare.memory.overhead_bytes


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_answers_above_the_bound(engine):
    got = rk.estimate("llama-3-8b", engine=engine.upper())
    assert got.engine == engine
    assert got.tpot_ms >= got.bound["tpot_ms"]


# --- TPOT over the growing context ----------------------------------------------------------------------------------


LENGTHS = [
    ("llama-4-scout", {"tp": 8}, 1000, 30_000),  # 36 of 48 layers see chunks of 8,192
    ("llama-4-scout", {"tp": 8}, 8000, 4000),
    ("mistral-7b", {}, 100, 8000),  # a window of 4,096
    ("gemma-2-9b", {}, 3000, 4000),  # every second layer one of 4,096
    ("gpt-oss-120b", {"tp": 2}, 10, 5000),  # every second layer one of 128
    ("llama-3-8b", {}, 2048, 256),
    ("deepseek-v3", {"gpu": "h200-sxm", "tp": 8}, 500, 3000),
    ("deepseek-v3.2", {"gpu": "h200-sxm", "tp": 8}, 1000, 3000),  # every query chooses 2,048 keys
    ("mixtral-8x7b", {"tp": 2}, 300, 7),
]


@pytest.mark.parametrize("batch", [1.0, 64.0])
@pytest.mark.parametrize(("model", "split", "isl", "osl"), LENGTHS)
def test_tpot_is_the_mean_of_the_single_steps(model, split, isl, osl, batch):
    # by brute force: tokens 2 .. n are computed at isl + 1 .. isl + osl - 1 keys
    deployment = read_deployment({key: value for key, value in split.items() if key != "gpu"})
    contexts = np.arange(isl + 1.0, isl + osl)
    for calibration, exact in (("none", 1e-9), (None, 0.003)):
        predictor = resolve(model, split.get("gpu", "h100-sxm"), deployment, calibration).predictor
        got = predictor.evaluate(Workload(batch, float(isl), float(osl))).tpot
        steps = predictor.evaluate(Workload(batch, float(isl), float(osl), 0.0, contexts)).tpot
        for part in ("bound", "expected", "low", "high"):
            # an end is that of the kernels or of the engine, whichever is wider: of the mean step, or of each
            rel = 1e-9 if part == "bound" else 4 * exact if part in ("low", "high") else exact
            assert getattr(got, part) == pytest.approx(float(np.mean(getattr(steps, part))), rel=rel), part


@pytest.mark.parametrize("osl", [2, 3])
def test_one_or_two_steps_are_taken_as_they_are(osl):
    scenario = {"model": "mixtral-8x7b", "tp": 2, "isl": 300}
    steps = [rk.estimate(context=context, **scenario).tpot_ms for context in range(301, 300 + osl)]
    assert rk.estimate(osl=osl, **scenario).tpot_ms == pytest.approx(float(np.mean(steps)), rel=1e-12)


def test_a_fixed_context_is_one_step():
    at = rk.estimate("llama-3-8b", batch=32, context=2048, calibration="none")
    assert at.inputs["context"] == 2048
    assert at.tpot_ms == pytest.approx(at.decode.time_ms)
    # 15.01 GB of weights, 65 norms, and 32 x 2048 x 131,072 B of KV read, 32 x 131,072 B written
    streamed = 2 * (8_030_261_248 - 128256 * 4096) + 32 * 2049 * 131_072
    assert at.tpot_ms == pytest.approx(streamed / 3.35e12 * 1e3, rel=1e-3)
    assert at.decode.kernels != rk.estimate("llama-3-8b", batch=32, context=4096, calibration="none").decode.kernels


def test_one_output_token_has_no_second_and_says_so():
    one = rk.estimate("llama-3-8b", osl=1)
    assert one.e2e_ms == one.ttft_ms
    assert any("osl 1" in warning for warning in one.warnings)


# --- options --------------------------------------------------------------------------------------------------------


def kernel(step, name):
    return next(k for k in step.kernels if k.name == name)


def test_a_cached_prefix_is_read_and_not_computed():
    whole, part = (rk.estimate("llama-3-8b", isl=4000, cached=cached, calibration="none") for cached in (0, 3000))
    assert part.ttft_ms < 0.4 * whole.ttft_ms
    assert part.tpot_ms == whole.tpot_ms
    assert part.memory.kv_bytes == whole.memory.kv_bytes
    attention = kernel(part.prefill, "attention")
    assert attention.flops == 32 * 4 * 32 * 128 * (1000 * 3000 + 1000 * 1001 / 2)
    assert attention.kv_read_bytes == 4000 * 131_072
    assert kernel(part.prefill, "kv_append").kv_write_bytes == 1000 * 131_072


def test_attention_replicas_divide_the_batch():
    # 33 sequences on two replicas: the busier one has 17
    two, one = rk.estimate("llama-3-8b", dp=2, batch=33), rk.estimate("llama-3-8b", batch=17)
    assert (two.tpot_ms, two.ttft_ms) == (one.tpot_ms, one.ttft_ms)
    assert two.output_tok_s == pytest.approx(33 * 256 / (two.e2e_ms / 1e3))
    assert two.output_tok_s_per_gpu == pytest.approx(two.output_tok_s / 2)


def test_replicas_share_the_experts():
    # dp 2, ep 2: each rank holds 4 of 8 experts and gets the tokens of both replicas
    both = kernel(rk.estimate("mixtral-8x7b", dp=2, ep=2, batch=32, calibration="none").decode, "experts")
    one = kernel(rk.estimate("mixtral-8x7b", tp=2, batch=32, calibration="none").decode, "experts")
    # the fuller of the two ranks: a little more than half of the work, and of the experts
    assert one.flops < both.flops < 1.15 * one.flops
    assert one.weight_bytes * (1 - 1e-9) <= both.weight_bytes < 1.05 * one.weight_bytes
    names = {k.name for k in rk.estimate("mixtral-8x7b", dp=2, ep=2, batch=32).decode.kernels}
    assert {"expert_dispatch", "expert_combine"} <= names


def test_pipeline_stages_take_turns():
    # a token passes the same layers, and one hop of 1 x 8192 x 2 B at 450 GB/s more for each further stage
    four, one = (rk.estimate("llama-3-70b", "h200-sxm", pp=pp, calibration="none", allow_oom=True) for pp in (4, 1))
    send = kernel(four.decode, "pipeline_send")
    assert (send.count, send.network_bytes) == (3, 3 * 8192 * 2)
    assert four.decode.time_ms - one.decode.time_ms == pytest.approx(3 * 8192 * 2 / 450e9 * 1e3, rel=1e-3)
    assert any("pp=4" in warning for warning in four.warnings)


def test_tensor_parallelism_adds_two_all_reduces_a_layer():
    four = rk.estimate("llama-3-8b", tp=4, batch=8)
    reduce = kernel(four.decode, "all_reduce")
    assert reduce.count == 64
    assert reduce.network_bytes == 64 * 2 * 3 / 4 * 8 * 4096 * 2
    # a parallel block (Falcon-40B, 60 layers) needs one: attention and FFN are added before they are reduced
    assert kernel(rk.estimate("falcon-40b", tp=8).decode, "all_reduce").count == 60
    assert not any(k.family == "collective" for k in rk.estimate("falcon-7b").decode.kernels)


def test_an_fp8_checkpoint_on_a_gpu_without_fp8_is_unpacked_where_kernels_do_and_refused_elsewhere():
    """Marlin kernels run FP8 and NVFP4 checkpoints on Ampere; nothing does on CDNA2."""
    got = rk.estimate("deepseek-v3", "a100-sxm-80gb", tp=8, allow_oom=True)
    experts = kernel(got.decode, "experts")
    assert experts.dtype == "bf16"
    assert got.inputs["weights"] == "fp8_block"
    assert any("dequantised and multiplied in bf16" in warning for warning in got.warnings)
    asked = rk.estimate("deepseek-v3", "a100-sxm-80gb", tp=8, activations="bf16", allow_oom=True)
    assert (got.ttft_ms, got.tpot_ms) == (asked.ttft_ms, asked.tpot_ms)
    with pytest.raises(rk.DtypeError, match="mi250x has no fp8 arithmetic") as caught:
        rk.estimate("deepseek-v3", "mi250x", tp=8)
    assert "--activations bf16" in str(caught.value)


def test_weight_only_formats_stream_narrow_and_compute_wide():
    got, wide = rk.estimate("llama-3-8b", weights="int4"), rk.estimate("llama-3-8b")
    down, reference = kernel(got.decode, "down_proj"), kernel(wide.decode, "down_proj")
    assert down.dtype == "bf16"
    assert down.weight_bytes == 32 * 4096 * 14336 * (0.5 + 2 / 128)
    assert down.flops == reference.flops
    assert kernel(got.decode, "lm_head").weight_bytes == 128256 * 4096 * 2
    assert got.inputs["kv"] == "bf16"
    assert any("int4 weights are dequantised" in warning for warning in got.warnings)
    # prefill is not faster for it: the arithmetic is the same
    assert got.bound["ttft_ms"] == pytest.approx(wide.bound["ttft_ms"], rel=1e-6)


def test_eight_bit_weights_use_eight_bit_units():
    got, wide = (rk.estimate("llama-3-8b", isl=8000, weights=w, calibration="none") for w in ("fp8", "bf16"))
    assert kernel(got.prefill, "down_proj").dtype == "fp8"
    # 1,978.9 TFLOP/s against 989.4
    ratio = kernel(wide.prefill, "down_proj").bound_us / kernel(got.prefill, "down_proj").bound_us
    assert ratio == pytest.approx(1978.9 / 989.4)
    assert kernel(got.prefill, "lm_head").dtype == "bf16"


def test_the_cache_follows_the_activations_unless_told():
    narrow = rk.estimate("llama-3-8b", weights="fp8", activations="fp8")
    assert narrow.inputs["kv"] == "fp8" and any("--kv bf16" in warning for warning in narrow.warnings)
    assert rk.estimate("llama-3-8b", weights="fp8", activations="fp8", kv="bf16").inputs["kv"] == "bf16"
    assert rk.estimate("llama-3-8b", kv="fp8").inputs == rk.estimate("llama-3-8b").inputs | {"kv": "fp8"}
    assert rk.estimate("llama-3-8b", activations="fp16").inputs["kv"] == "fp16"


def test_narrow_activations_need_narrow_weights():
    with pytest.raises(rk.DtypeError, match="add --weights fp8"):
        rk.estimate("llama-3-8b", activations="fp8")


@pytest.mark.parametrize(("scenario", "said"), [
    ({"batchs": 2}, "unknown option 'batchs'; nearest: batch"),
    ({"tp": 3}, "tp=3 does not divide llama-3-8b's 32 attention heads; use tp = 1, 2, 4 or 8"),
    ({"tp": 16}, "tp=16 exceeds the 8 accelerators"),
    ({"tp": 0}, "tp must be a whole number of at least 1, not 0"),
    ({"pp": 33}, "pp=33 exceeds llama-3-8b's 32 layers"),
    ({"ep": 2}, "llama-3-8b has no experts"),
    ({"dp": 10_000}, "10000 accelerators"),
    ({"engine": "vlm"}, "unknown engine 'vlm'; nearest: vllm"),
    ({"kv": "fp9"}, "unknown dtype 'fp9'; nearest: fp8"),
    ({"batch": "32"}, "batch must be a whole number, not '32'"),
    ({"gpu": "h100-smx"}, "unknown accelerator 'h100-smx'; nearest: h100-sxm"),
    ({"calibration": "nothing"}, "unknown calibration 'nothing'"),
])  # fmt: skip
def test_senseless_questions_are_refused_in_one_line(scenario, said):
    with pytest.raises(rk.InputError) as caught:
        rk.estimate("llama-3-8b", **scenario)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_answer_in_place_of_a_model_is_refused_in_few_words(answer):
    with pytest.raises(rk.InputError, match="model must be a name or a path, not Estimate") as caught:
        rk.explain(answer, "tpot")
    assert len(str(caught.value)) < 100


def test_experts_that_do_not_split_are_refused_with_those_that_do():
    with pytest.raises(rk.DeploymentError, match="use ep = 1, 2, 4 or 8"):
        rk.estimate("mixtral-8x7b", tp=8, ep=3)


def test_what_does_not_fit_says_by_how_much_and_what_would():
    with pytest.raises(rk.DoesNotFitError) as caught:
        rk.estimate("llama-3-70b")
    message = str(caught.value)
    # 141.1 GB of weights, 0.4 of KV, 2.2 of activations, 2.5 of engine; vLLM uses 0.92 of 85.0 and a CUDA context
    for part in ("146.8 GB", "78.8 GB", "68.0 GB too little", "--tp 2", "--weights fp8"):
        assert part in message
    shown = rk.estimate("llama-3-70b", allow_oom=True)
    assert not shown.memory.fits
    assert any("does not fit" in warning for warning in shown.warnings)
    for remedy in ({"tp": 2}, {"weights": "fp8"}):
        assert rk.estimate("llama-3-70b", **remedy).memory.fits
    fits = rk.estimate("llama-3-8b", batch=10, isl=8000, osl=8)
    with pytest.raises(rk.DoesNotFitError, match=f"--batch {fits.memory.max_batch}"):
        rk.estimate("llama-3-8b", batch=1000, isl=8000, osl=8)


def test_a_context_beyond_the_models_maximum_is_a_warning():
    assert any("exceed llama-3-8b's maximum context of 8192" in w for w in rk.estimate("llama-3-8b", isl=9000).warnings)
    assert not rk.estimate("llama-3-8b", isl=7936, osl=256).warnings


def test_an_ambiguous_name_says_what_it_took():
    got = rk.estimate("llama-3-8b", "h100")
    assert got.gpu == "h100-sxm"
    assert any("ambiguous" in warning for warning in got.warnings)


def test_work_beyond_any_float_is_refused():
    with pytest.raises(rk.WorkloadError):
        rk.estimate("llama-3-8b", isl=10**200, allow_oom=True)


@pytest.mark.parametrize(
    "gpu", ["a100-sxm-80gb", "b200-sxm", "l40s", "l4", "rtx-4090", "mi300x", "tpu-v5e", "h100-pcie"]
)
def test_every_accelerator_of_the_first_slice_answers(gpu):
    got = rk.estimate("llama-3-8b", gpu, allow_oom=True)  # a 16 GB chip cannot hold it
    # weights once over the memory: 15.01 GB / bandwidth is the least a token takes
    floor_ms = 2 * (8_030_261_248 - 128256 * 4096) / rk.load_accelerator(gpu).value.memory_bandwidth * 1e3
    assert floor_ms < got.bound["tpot_ms"] < got.tpot_ms
    assert got.bound["tpot_ms"] == pytest.approx(floor_ms, rel=0.03)


def test_one_step_for_simulators(plan_of):
    batch = rk.Batch.decode(32.0, 2048.0)
    step = rk.predict_step("llama-3-8b", "h100-sxm", rk.Deployment(), batch)
    assert step.bound == plan_of("llama-3-8b").time(batch).bound
    assert step.low <= step.time <= step.high
    mixed = rk.predict_step("llama-3-8b", "h100-sxm", rk.Deployment(), batch | rk.Batch.chunk(1.0, 512.0, 0.0, False))
    assert mixed.time > step.time


def test_the_same_question_has_the_same_answer():
    assert rk.estimate("mixtral-8x7b", tp=2).to_dict() == rk.estimate("MIXTRAL-8x7B", "H100-SXM", tp=2.0).to_dict()


def test_the_weights_named_are_those_of_modules_that_the_model_has(tmp_path):
    """A dense FP8 checkpoint has no experts, so their 16-bit default is not what it is stored in."""
    config = {
        "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 2, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 8192,
        "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"},
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert rk.estimate(tmp_path).inputs["weights"] == "fp8"
    assert rk.estimate("gpt-oss-120b").inputs["weights"] == "mxfp4"
    assert rk.estimate("llama-3-8b", weights="int4").inputs["weights"] == "int4"


def test_the_parts_of_a_token_by_hand():
    """Llama-3-8B on H100 at batch 32: weights without the embedding table, and 1,152 tokens of cache, at 3.35 TB/s."""
    parts = rk.estimate("llama3-8b", "h100-sxm", batch=32, isl=1024, osl=256).decode.time_parts_ms
    weights = 2 * (8.030261248e9 - 128256 * 4096)
    cache = 32 * 1152 * 131_072 + 32 * 131_072
    assert parts["weights"] == pytest.approx(weights / 3.35e9, rel=1e-3)
    assert parts["kv_cache"] == pytest.approx(cache / 3.35e9, rel=1e-3)
    assert parts["network"] == 0.0


def test_activations_that_fit_the_cache_take_no_time():
    """Not the rounding of their kernel's bound either: 19 tokens of DeepSeek-V3 fit into the L2 cache of an H100."""
    step = rk.estimate("deepseek-v3", "h100-sxm", batch=19, isl=4, osl=121, allow_oom=True).decode
    assert step.time_parts_ms["activations"] == 0.0


def test_what_does_not_fit_is_refused_in_words_where_another_accelerator_has_no_links():
    """Changes that would fit are checked by memory alone: a GH200 has no link over which experts could be exchanged."""
    with pytest.raises(rk.DoesNotFitError, match="has no room for one request"):
        rk.estimate("deepseek-v3", "h100-sxm", dp=2, ep=2, all_to_all="deepep", concurrency=8)
