"""Memory of whole deployments, added up by hand, and the constants that an engine adds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import rooflinekit as rk
from rooflinekit.model.cache import cache_law
from rooflinekit.model.capacity import make_memory_model
from rooflinekit.model.footprint import activation_peak, allocated_bytes
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.step import make_plan
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.engine import EngineSettings
from rooflinekit.model.types.hardware import System
from rooflinekit.model.types.model import Attention, DenseFFN, Layer, Mamba2, Model, WeightFormats
from rooflinekit.model.types.units import MIB
from rooflinekit.specs import load_accelerator, load_model
from rooflinekit.specs.engines import load_engine, split_version

GIB = 2**30


def memory_of(model, **scenario):
    return rk.estimate(model, **({"calibration": "none", "allow_oom": True} | scenario)).memory


LOG_GPU = 79.19 * GIB  # what PyTorch sees of an H100 80GB


def logged(model, gpus=1, engine="vllm@0.19.0", **settings):
    """Memory of a start-up as vLLM's log has it, on an H100 of which PyTorch sees LOG_GPU."""
    system = System.of(load_accelerator("h100-sxm").value)
    told = EngineSettings(**({"memory_fraction": 0.95, "max_model_len": 8192} | settings))
    deployment = Deployment(tp=gpus, settings=told)
    plan = make_plan(load_model(model).value, deployment, system, None, load_engine(engine))
    return make_memory_model(plan).evaluate(1.0, 8192.0, 1.0)


def test_a_start_up_of_vllm_adds_up_by_hand():
    # Qwen3-8B on one H100, vLLM 0.19, 0.95 of 79.19 GiB: 15.27 + 2.21 + 0.25 leave 57.50; 418,688 tokens, 51.11 x
    got = logged("qwen3-8b")
    D, V, S, T = 4096, 151_936, 1024, 8192
    weights = 2 * 8_190_735_360 + 40_960 * 128 * 2  # and the rotary table
    sampler = (T + S) * D * 2 + S * V * (2 + 3 * 4) + 132 * V * 4 + 0.043 * GIB
    assert got.weight_bytes == pytest.approx(weights, abs=2**21)
    assert got.activation_bytes == pytest.approx(sampler)
    assert got.kv_pool_bytes == pytest.approx(0.95 * LOG_GPU - got.weight_bytes - sampler - 0.25 * GIB, abs=1)
    assert got.weight_bytes / GIB == pytest.approx(15.27, abs=0.005)
    assert got.activation_bytes / GIB == pytest.approx(2.21, abs=0.01)
    assert got.kv_pool_bytes / GIB == pytest.approx(57.50, abs=0.01)
    assert got.kv_blocks == got.kv_pool_bytes // (16 * 36 * 2 * 8 * 128 * 2)
    assert got.kv_pool_tokens == 16 * got.kv_blocks == pytest.approx(418_688, rel=2e-4)
    assert got.max_concurrency == pytest.approx(51.11, abs=0.02)


@pytest.mark.parametrize("engine", ["vllm@0.11", "vllm@0.19", "vllm@0.5", "vllm", "trtllm", "sglang"])
def test_what_the_engine_reserves_is_the_sum_of_its_parts(engine):
    # to 0.001 GiB, whatever the budget is a share of
    memory = memory_of("llama-3-8b", engine=engine, batch=4)
    parts = memory.weight_bytes + memory.activation_bytes + memory.overhead_bytes + memory.kv_pool_bytes
    inside = {"vllm@0.11": 0.9, "vllm@0.19": 0.9, "vllm@0.5": 0.9, "vllm": 0.92}
    if engine in inside:
        outside = memory.context_bytes * (engine != "vllm@0.5") + memory.graph_bytes * (engine != "vllm")
        assert parts - outside == pytest.approx(inside[engine] * memory.capacity_bytes, abs=0.001 * GIB)
    elif engine == "trtllm":
        free = memory.capacity_bytes - (parts - memory.kv_pool_bytes)
        assert memory.kv_pool_bytes == pytest.approx(0.9 * free, abs=0.001 * GIB)
    else:
        free = memory.capacity_bytes - memory.context_bytes
        assert memory.weight_bytes + memory.kv_pool_bytes == pytest.approx(0.88 * free, abs=0.001 * GIB)


@pytest.mark.parametrize(
    ("model", "gpus", "parts", "tokens"),
    [
        ("gemma-2-9b", 1, (17.22, 3.65, 54.12), 168_880),  # two groups of 21 layers
        ("phi-4", 1, (27.39, 1.52, 46.08), 241_568),
        ("granite-3.3-8b", 1, (15.25, 0.85, 58.66), 384_432),  # bound by its layers, not by the sampler
        ("qwen2.5-7b", 2, (7.12, 2.21, 63.84), 2_390_592),
        ("mixtral-8x7b", 2, (43.51, 1.21, 28.44), 465_936),  # the experts' buffers stay
        ("gpt-oss-20b", 1, (13.64, 2.87, 58.47), 1_277_184),  # padded experts, windows in every second layer
    ],
)
def test_start_ups_of_vllm_0_19(model, gpus, parts, tokens):
    weights, peak, pool = parts
    got = logged(model, gpus)
    assert got.weight_bytes / GIB == pytest.approx(weights, abs=0.011)
    assert got.activation_bytes / GIB == pytest.approx(peak, abs=0.011)
    assert got.kv_pool_bytes / GIB == pytest.approx(pool, rel=0.005)
    assert got.kv_pool_tokens == pytest.approx(tokens, rel=0.005)


def test_a_tensor_takes_a_whole_segment_unless_more_than_a_mebibyte_is_left():
    # Qwen2.5-7B: qkv 31.5, gate and up 259, down 129.5 MiB lose 0.5, 1 and 0.5 MiB a layer; o_proj's 24.5 lose nothing
    lost = [allocated_bytes(size * MIB) - size * MIB for size in (31.5, 259.0, 129.5, 24.5)]
    assert lost == [MIB / 2, MIB, MIB / 2, 0]
    held = logged("qwen2.5-7b").weight_bytes
    plain = 2 * 7_615_616_512 + 32_768 * 128 * 2
    assert held - plain == pytest.approx(28 * 2 * MIB, rel=0.02)


def test_layers_of_different_kinds_share_the_pool_in_groups():
    # Gemma-3-27B: 10 global layers, 52 local ones in 6 groups of 10: 70 layers' worth
    got = logged("gemma-3-27b")
    token = 2 * 16 * 128 * 2
    assert got.kv_blocks == got.kv_pool_bytes // (16 * 10 * token)
    assert got.kv_pool_tokens == got.kv_blocks // 7 * 16
    # 8,192 tokens: 512 blocks for the global group; a window counts with the step beside it, and one block more
    assert got.max_concurrency == pytest.approx(got.kv_blocks / (512 + 6 * 513), rel=1e-3)


def test_an_engine_that_holds_no_longest_sequence_does_not_start():
    room = logged("phi-4").kv_pool_tokens
    assert logged("phi-4", max_model_len=int(room) // 16 * 16).fits
    refused = logged("phi-4", max_model_len=int(room) + 16)
    assert not refused.fits
    assert refused.max_batch == 0
    assert refused.needed_bytes - refused.available_bytes < 16 * 200 * 1024 + 2**22


def test_memory_outside_the_budget_has_to_be_there():
    # 0.99 of the memory and a CUDA context beside it are more than there is
    got = logged("phi-4", memory_fraction=0.995)
    assert not got.fits
    assert got.needed_bytes > got.available_bytes == pytest.approx(LOG_GPU)


def test_the_pool_of_a_consumer_card_is_what_vllm_logged():
    """vLLM 0.19.0 on an RTX 4090 reserved 2,588 blocks of 16 tokens: LLMServingSim 5daddb21, 24.0 GiB less 0.48."""
    got = memory_of("llama-3.1-8b", gpu="rtx-4090", engine="vllm@0.19.0", token_budget=2048, isl=100, osl=8)
    assert got.capacity_bytes == pytest.approx(25_250_627_584, rel=1e-3)
    assert got.kv_pool_tokens == pytest.approx(41_408, rel=0.07)  # 15 % too many where the driver's total is taken


@pytest.mark.parametrize(("model", "mib"), [("llama-3-8b", 258.5), ("llama-7b", 70.5)])
def test_the_compute_buffer_of_llama_cpp_is_what_it_logs(model, mib):
    """Its graph is reserved for 512 tokens and as many rows of logits, whatever the prompt is: as its log says."""
    for isl in (16, 1500):
        got = memory_of(model, gpu="rtx-4090", engine="llama.cpp", weights="q8_0", isl=isl, osl=8)
        assert got.activation_bytes == mib * 2**20


def test_a_dense_model_by_hand():
    got = memory_of("llama-3-8b", batch=32, isl=1024, osl=256, engine="vllm@0.19")
    assert got.capacity_bytes == pytest.approx(79.19 * GIB)  # what CUDA shows of 79.6 GiB
    assert got.weight_bytes == pytest.approx(2 * 8_030_261_248 + 8192 * 128 * 2, abs=2**18)
    assert got.kv_bytes == 32 * 1280 * 131_072
    # 51 graphs of mixed steps and 51 of decode steps of up to 512 tokens, whose attention has 32 results in fp32
    held = 512 * (2 * 4096 + 3 * 14336) * 2 + 32 * 512 * 4096 * 4
    assert got.graph_bytes == pytest.approx(0.033 * GIB + 102 * 32 * 0.19 * MIB + held)
    assert got.overhead_bytes == pytest.approx((0.51 + 0.25) * GIB + got.graph_bytes)
    parts = got.weight_bytes + got.kv_bytes + got.activation_bytes + got.overhead_bytes
    assert got.total_bytes == pytest.approx(parts)
    assert got.fits is True
    assert got.kv_bytes_per_token == 131_072
    assert got.max_batch == int(got.kv_pool_bytes // (1280 * 131_072))  # fewer than the engine is set up for
    assert got.max_context == 8192  # the model's own limit


def test_a_short_prompt_needs_a_small_activation_peak():
    # an engine that profiles nothing holds what the step needs: gate, up and product, residual and norm
    got = memory_of("llama-3-8b", batch=2, isl=100, osl=8, engine="ideal")
    assert got.activation_bytes == 200 * (2 * 4096 + 3 * 14336) * 2
    cached = memory_of("llama-3-8b", batch=2, isl=100, osl=8, cached=60, engine="ideal")
    assert cached.activation_bytes == 80 * (2 * 4096 + 3 * 14336) * 2
    assert cached.kv_bytes == got.kv_bytes
    # at one token a sequence the logits are the larger part
    one = memory_of("llama-3-8b", batch=64, isl=8, cached=7, osl=8, engine="ideal")
    assert one.activation_bytes == max(64 * (2 * 4096 + 3 * 14336) * 2, 64 * (4096 + 4096 + 128256) * 2)


def test_a_windowed_model_by_hand():
    # Gemma-2-9B: 42 layers, every second one sees 4,096 tokens; 8 KV heads of 256 in bf16
    got = memory_of("gemma-2-9b", batch=4, isl=6000, osl=192, engine="ideal")
    layer = 2 * 8 * 256 * 2
    assert got.kv_bytes == 4 * 21 * layer * (4096 + 6192)
    assert got.weight_bytes == 2 * 9_241_705_984
    assert got.kv_bytes_per_token == 42 * layer


def test_a_sliding_window_lets_the_context_grow_for_free():
    short, long = (memory_of("mistral-7b", batch=8, isl=isl, osl=1, engine="ideal") for isl in (5000, 30_000))
    assert short.kv_bytes == long.kv_bytes == 8 * 4096 * 131_072


def test_an_mla_model_with_experts_by_hand():
    got = memory_of("deepseek-v3", gpu="h200-sxm", tp=8, batch=16, isl=4000, osl=96, engine="ideal")
    D, tp = 7168, 8
    block, wide = 1 + 4 / 16384, 2.0  # fp8 with a scale per 128 x 128; bf16
    attention_cut = 1536 * 128 * 192 + 512 * 128 * 256 + 128 * 128 * D  # q_b, kv_b, o
    attention_whole = D * (1536 + 576)  # q_a and kv_a, on every rank
    dense, experts, shared = 3 * D * 18432, 256 * 3 * D * 2048, 3 * D * 2048
    quantised = 61 * (attention_cut / tp + attention_whole) + (3 * dense + 58 * (experts + shared)) / tp
    vocabulary = 2 * 129280 * D / tp
    norms = 61 * (2 * D + 1536 + 512) + D
    router = 58 * (256 * D + 256)  # and its balance correction
    assert got.weight_bytes == pytest.approx(quantised * block + wide * (vocabulary + norms + router), rel=1e-12)
    assert got.kv_bytes == 16 * 4096 * 70_272  # the latent is whole on each of the 8 ranks
    # residual, its norm and the shared expert's output; for each of 8 copies of a token the output of the down
    # projection, wider than gate and up (2 x 2048 / 8) in whose place it stands, and as much again for gate x up
    assert got.activation_bytes == 8192 * (3 * D + 8 * 2 * D) * 2
    assert got.overhead_bytes == 0


def test_index_keys_of_sparse_attention_are_fp8_whatever_the_cache():
    # 61 layers: 576 elements of latent, and an index key of 128 B with a scale of 4 B
    assert rk.kv_cache_bytes("deepseek-v3.2", 1, "bf16") == 61 * (576 * 2 + 132) == 78_324
    assert rk.kv_cache_bytes("deepseek-v3.2", 1, "fp8") == 61 * (576 + 132)
    got = memory_of("deepseek-v3.2", gpu="h200-sxm", tp=8, batch=4, isl=4000, osl=96, kv="bf16")
    assert got.kv_bytes_per_token == 78_324
    assert got.kv_bytes == 4 * 4096 * 78_324
    # without FP8 they are in the stream's format
    wide = memory_of("deepseek-v3.2", gpu="a100-sxm-80gb", tp=8, batch=4, isl=4000, osl=96, activations="bf16")
    assert wide.kv_bytes_per_token == 61 * (576 + 128) * 2


def widest_of(plan):
    """Elements of one token in the widest block, without residual and norm."""
    return activation_peak(plan, 8192.0).layer_token / 2 - 2 * plan.model.hidden


def test_what_experts_hold_by_hand(plan_of):
    # Mixtral on one GPU: 2 copies of a token, each with gate and up (2 x 14336, wider than 4096) and their product
    assert widest_of(plan_of("mixtral-8x7b")) == 2 * (2 * 14336 + 14336)
    # cut over 8 ranks the down projection's 4096 are wider than 2 x 1792
    assert widest_of(plan_of("mixtral-8x7b", tp=8)) == 2 * (4096 + 4096)
    # whole experts on 8 ranks of one replica: each rank has rows for all copies, those of others' experts too
    assert widest_of(plan_of("mixtral-8x7b", tp=8, ep=8)) == 2 * 3 * 14336
    # two replicas that gather all tokens, half of each expert: twice the tokens, and the gathered ones themselves
    assert widest_of(plan_of("mixtral-8x7b", dp=2)) == 2 * (2 * 3 * 14336 / 2 + 4096)
    # with ep 2, of the tokens of both replicas those that chose any of the 4 local experts: 1 - (4/8 x 3/7) = 11/14
    assert widest_of(plan_of("mixtral-8x7b", dp=2, ep=2)) == pytest.approx(2 * 11 / 14 * (2 * 3 * 14336 + 4096))
    # of the tokens of 4 full replicas, 32,768, the experts take 16,384 at once
    assert widest_of(plan_of("mixtral-8x7b", dp=4)) == 2 * 2 * (2 * 14336 / 4 + 4096) + 4 * 4096


@pytest.mark.parametrize(("name", "tp"), [("nemotron-h-56b", 8), ("jamba-v0.1", 4), ("qwen3-next-80b-a3b", 2)])
def test_recurrent_state_is_what_the_kernels_keep(plan_of, name, tp):
    # what one step of one sequence reads as state is what the cache holds
    plan = plan_of(name, "h200-sxm", tp=tp)
    kernels = plan.kernels(Batch.decode(1.0, 100.0))
    read = sum(k.count * k.kv_read_bytes for k in kernels if k.family in ("linear_attention", "elementwise"))
    assert read > 0
    assert cache_law(plan.model.layers, Dtype.BF16, tp).state_bytes == pytest.approx(read, rel=1e-12)


def test_more_ranks_than_groups_replicate_the_groups_of_mamba_2():
    # 16 heads of 64 in 2 groups with a state of 128, on 8 ranks: 2 heads and one whole group each
    layer = Layer(Mamba2(16, 64, 2, 128, 4), None)
    state, channels = 2 * 64 * 128, 2 * 64 + 2 * 128
    assert cache_law([layer], Dtype.BF16, 8).state_bytes == state * 4 + channels * 3 * 2


def test_an_ideal_engine_has_no_overhead():
    got = memory_of("llama-3-8b", engine="ideal", batch=1, isl=100, osl=8)
    assert got.overhead_bytes == 0
    assert got.weight_bytes == 2 * 8_030_261_248
    assert got.kv_pool_bytes == got.capacity_bytes - got.weight_bytes - got.activation_bytes


def test_a_narrower_cache_is_smaller():
    half = memory_of("llama-3-8b", batch=32, kv="fp8")
    assert half.kv_bytes == 32 * 1280 * 131_072 / 2
    assert half.kv_bytes_per_token == 65_536


def test_pipeline_stages_share_the_layers():
    # 80 layers over 4 stages of 20: the last holds the LM head and the final norm, the first the embedding.
    got = memory_of("llama-3-70b", pp=4, batch=8, isl=1000, osl=24, engine="ideal")
    layer = 2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28672 + 2 * 8192
    assert got.weight_bytes == 2 * (20 * layer + 128256 * 8192 + 8192)
    assert got.kv_bytes == 8 * 1024 * 327_680 / 4
    assert got.kv_bytes_per_token == 327_680


def test_uneven_stages_are_judged_by_the_busiest():
    # 32 layers over 3 stages: 10, 11, 11; the last one has the head as well.
    got = memory_of("llama-3-8b", pp=3, batch=1, isl=1000, osl=24, engine="ideal")
    layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096
    assert got.weight_bytes == 2 * (11 * layer + 128256 * 4096 + 4096)
    assert got.kv_bytes == 11 * 1024 * 4096


def two_stages():
    """Five layers in two stages: two wide ones with a full cache, three narrow ones with a window."""
    wide = Layer(Attention(32, 32, 128, 128), DenseFFN(16384))
    narrow = Layer(Attention(32, 32, 128, 128, window=16), DenseFFN(16384))
    return Model(
        "mixed", 4096, 1024, (wide, wide, narrow, narrow, narrow), Dtype.BF16, WeightFormats.uniform(Dtype.BF16), None
    )


def test_weights_and_cache_are_those_of_the_same_stage():
    system = System.of(load_accelerator("h100-sxm").value)
    plan = make_plan(two_stages(), Deployment(pp=2, engine="ideal"), system, None)
    got = Predictor.of(plan).memory.evaluate(10.0, 4000.0, 1.0)
    layer = 2 * (4 * 4096 * 4096 + 3 * 4096 * 16384 + 2 * 4096)
    token = 2 * 4096 * 2
    first = 2 * layer + 1024 * 4096 * 2 + 10 * 2 * 4000 * token
    last = 3 * layer + 1024 * 4096 * 2 + 4096 * 2 + 10 * 3 * 16 * token
    assert got.weight_bytes + got.kv_bytes == max(first, last)


def test_replicas_share_the_sequences_and_not_the_weights():
    one, two = (memory_of("llama-3-8b", dp=dp, batch=33) for dp in (1, 2))
    assert two.weight_bytes == one.weight_bytes
    assert two.kv_bytes == 17 * 1280 * 131_072  # the busier replica
    assert two.max_batch % 2 == 0
    assert two.max_batch > 1.9 * one.max_batch


def test_experts_are_spread_over_the_replicas():
    # Mixtral with dp 2: attention whole on each, half of each expert (or, with ep 2, half of the experts).
    alone = memory_of("mixtral-8x7b", engine="ideal").weight_bytes
    experts = 32 * 8 * 3 * 4096 * 14336 * 2
    for ep in (1, 2):
        assert memory_of("mixtral-8x7b", dp=2, ep=ep, engine="ideal").weight_bytes == alone - experts / 2


def test_a_tied_head_is_held_once_unless_the_stages_split_it():
    # GPT-2: 124,439,808 parameters, of which the table 50257 x 768 is head as well; a second stage needs its own copy.
    whole = memory_of("gpt2", batch=1, isl=10, osl=2, engine="ideal")
    assert whole.weight_bytes == 124_439_808 * Dtype(rk.estimate("gpt2").inputs["weights"]).bytes
    width = whole.weight_bytes / 124_439_808
    layer = 12 * 768 * 768 + 13 * 768  # 4 D^2 + 8 D^2; biases 3D + D + 4D + D and two LayerNorms, 4D
    last = 6 * layer + 50257 * 768 + 2 * 768
    first = 6 * layer + 50257 * 768 + 1024 * 768
    assert memory_of("gpt2", pp=2, batch=1, isl=10, osl=2, engine="ideal").weight_bytes == width * max(first, last)
    # Gemma-2-9B, 21 layers a stage: the last one has the table as its head, and the final norm
    layer = 3584 * (2 * 16 * 256 + 2 * 8 * 256) + 3 * 3584 * 14336 + 4 * 3584
    assert memory_of("gemma-2-9b", pp=2, engine="ideal").weight_bytes == 2 * (21 * layer + 256000 * 3584 + 3584)


def test_weight_formats_change_the_layers_and_nothing_else():
    # embedding, head and norms stay in bf16
    outside = 2 * 128256 * 4096 + 65 * 4096
    inside = 8_030_261_248 - outside
    for name, size in (("fp8", 1.0), ("int4", 0.5 + 2 / 128), ("nvfp4", 0.5 + 1 / 16)):
        gpu = "b200-sxm" if name == "nvfp4" else "h100-sxm"
        got = memory_of("llama-3-8b", gpu=gpu, weights=name, engine="ideal")
        assert got.weight_bytes == 2 * outside + size * inside


def test_what_does_not_fit_says_so_and_holds_nothing():
    got = memory_of("llama-3-70b", batch=1)
    assert got.fits is False
    assert got.max_batch == 0
    assert got.max_context == 0
    assert got.total_bytes > got.capacity_bytes


def test_max_batch_of_the_answer_is_the_last_that_fits():
    most = memory_of("llama-3-8b", batch=1, isl=2000, osl=100).max_batch
    assert memory_of("llama-3-8b", batch=most, isl=2000, osl=100).fits
    assert not memory_of("llama-3-8b", batch=most + 1, isl=2000, osl=100).fits


def test_max_context_of_the_answer_is_the_last_that_fits():
    # Llama-3.1 knows 131,072 tokens: at batch 64 the memory ends first.
    longest = memory_of("llama-3.1-8b", batch=64, isl=100, osl=8).max_context
    assert 100 < longest < 131_072
    assert memory_of("llama-3.1-8b", batch=64, isl=100, osl=8, context=longest).fits
    assert not memory_of("llama-3.1-8b", batch=64, isl=100, osl=8, context=longest + 1).fits


def test_longest_context_by_hand():
    # 64 sequences of Llama-3.1-8B share what the weights and one token's activations each leave
    peak = max(64 * (2 * 4096 + 3 * 14336) * 2, 64 * (4096 + 4096 + 128256) * 2)
    left = 79.19 * GIB - 2 * 8_030_261_248 - peak
    assert rk.max_context("llama-3.1-8b", batch=64, engine="ideal") == int(left // (64 * 131_072))


@given(
    engine=st.sampled_from(["vllm", "vllm@0.19", "vllm@0.11", "vllm@0.5", "sglang", "trtllm", "trtllm@0.13"]),
    batch=st.integers(1, 3000),
    context=st.integers(1, 200_000),
    fractions=st.tuples(st.floats(0.05, 1.0), st.floats(0.05, 1.0)),
)
def test_more_to_hold_needs_more_and_a_larger_share_holds_more(engine, batch, context, fractions):
    system = System.of(load_accelerator("h100-sxm").value)
    profile, model = load_engine(engine), load_model("gemma-2-9b").value
    rooms = []
    for fraction in sorted(fractions):
        told = Deployment(settings=EngineSettings(memory_fraction=fraction))
        rooms.append(make_memory_model(make_plan(model, told, system, None, profile)))
    small, large = (room.evaluate(float(batch), float(context), 100.0) for room in rooms)
    assert small.kv_pool_bytes <= large.kv_pool_bytes
    more = rooms[0].evaluate(batch + 1.0, float(context), 100.0)
    longer = rooms[0].evaluate(float(batch), context + 16.0, 100.0)
    assert more.kv_bytes > small.kv_bytes
    assert longer.kv_bytes >= small.kv_bytes
    assert more.activation_bytes >= small.activation_bytes
    assert more.fits <= small.fits
    assert longer.fits <= small.fits


def test_a_bigger_memory_never_fits_less(plan_of):
    base = Predictor.of(plan_of("llama-3-8b")).memory
    rooms = [replace(base, capacity_bytes=size * 1e9).evaluate(8.0, 4096.0, 1000.0) for size in (10, 18, 20, 40, 80)]
    assert [room.max_batch for room in rooms] == sorted(room.max_batch for room in rooms)
    assert [room.fits for room in rooms] == sorted(room.fits for room in rooms)


@pytest.mark.parametrize(("wrong", "error"), [({"block": 0}, "block"), ({"tp": 0}, "tp"), ({"context": 0}, "context")])
def test_a_senseless_cache_question_is_refused(wrong, error):
    with pytest.raises(rk.WorkloadError, match=error):
        rk.kv_cache_bytes(**({"model": "llama-3-8b", "context": 10} | wrong))


def test_pages_round_the_context_up():
    assert rk.kv_cache_bytes("llama-3-8b", 17, block=16) == 32 * 131_072
    assert rk.kv_cache_bytes("llama-3-8b", 32, block=16) == 32 * 131_072
    assert rk.kv_cache_bytes("llama-3-8b", 10, "fp8") == 10 * 65_536


class TestSmallAccelerators:
    @pytest.mark.parametrize(
        ("gpu", "model"), [("t4", "opt-125m"), ("v100-pcie-16gb", "opt-125m"), ("tpu-v5e", "qwen3-0.6b")]
    )
    @pytest.mark.parametrize("tp", [1, 2, 4])
    def test_a_small_model_fits_16_gb_with_the_defaults(self, gpu, model, tp):
        assert memory_of(model, gpu=gpu, tp=tp).fits

    def test_the_context_shrinks_with_the_cores_and_the_communicator_with_the_links(self):
        found = {name: memory_of("opt-125m", gpu=name, tp=2).context_bytes / GIB for name in ("t4", "l4", "h100-sxm")}
        one = {name: memory_of("opt-125m", gpu=name).context_bytes / GIB for name in found}
        assert found["h100-sxm"] == pytest.approx(1.53)  # as measured there
        assert one["h100-sxm"] == pytest.approx(0.51)
        assert one["l4"] == pytest.approx(22.05 - 21.76, abs=0.01)  # free memory of an L4 before it joins others
        assert found["l4"] - one["l4"] == pytest.approx(0.13)  # and behind
        assert one["t4"] < one["l4"] < one["h100-sxm"]

    def test_a_larger_accelerator_takes_what_was_measured(self):
        assert memory_of("opt-125m", gpu="b200-sxm", tp=2).context_bytes == pytest.approx(1.53 * GIB)


@pytest.mark.parametrize(("gpu", "fraction", "better"), [("l40s", 0.99, 0.98), ("h100-sxm", 0.2, 0.23)])
def test_a_refusal_offers_the_nearest_memory_fraction_that_fits(gpu, fraction, better):
    with pytest.raises(rk.DoesNotFitError, match=rf"would fit: --memory-fraction {better},? "):
        rk.estimate("llama-3-8b", gpu, memory_fraction=fraction)
    assert rk.estimate("llama-3-8b", gpu, memory_fraction=better).memory.fits


_ENGINES = ("vllm", "sglang", "trtllm", "gpt-fast", "ideal", "vllm@0.6", "vllm@0.8.1", "trtllm@0.12")
_CACHES = (
    "llama-3-8b",
    "gemma-3-27b",
    "deepseek-v3",
    "llama-4-scout",
    "falcon-mamba-7b",
    "gpt-oss-20b",
    "jamba-v0.1",
)


@pytest.mark.parametrize("engine", _ENGINES)
@given(st.data())
def test_the_largest_batch_fits_and_one_more_does_not(engine, data):
    choose = {"model": _CACHES, "gpu": ("h100-sxm", "a100-sxm-80gb", "b200-sxm", "l40s"), "tp": (1, 2, 4, 8),
              "dp": (1, 2), "fraction": (None, 0.6, 0.95), "budget": (None, 512, 16_384),
              "rows": (None, 16, 2000)}  # fmt: skip
    at = {name: data.draw(st.sampled_from(values), label=name) for name, values in choose.items()}
    told = EngineSettings(memory_fraction=at["fraction"], token_budget=at["budget"], max_num_seqs=at["rows"])
    system = System.of(load_accelerator(at["gpu"]).value)
    name, version = split_version(engine)
    deployment = Deployment(tp=at["tp"], dp=at["dp"], engine=name, engine_version=version, settings=told)
    try:
        plan = make_plan(load_model(at["model"]).value, deployment, system, None, load_engine(engine))
    except rk.InputError:
        assume(False)
    memory = make_memory_model(plan)
    new = float(data.draw(st.integers(1, 40_000), label="prompt"))
    context = new + data.draw(st.integers(1, 4_000), label="output")
    most = float(memory.evaluate(1.0, context, new).max_batch)
    assert most == 0 or memory.evaluate(most, context, new).fits
    assert not memory.evaluate(most + 1.0, context, new).fits


@pytest.mark.parametrize("model", ["deepseek-v3", "kimi-k2", "llama-3.1-405b"])
def test_what_needs_two_changes_is_named_and_works(model):
    """A newcomer's second command: the refusal names commands that answer."""
    with pytest.raises(rk.DoesNotFitError, match="would fit: ") as caught:
        rk.estimate(model, batch=8)
    advice = str(caught.value).partition("would fit: ")[2].partition(" (")[0]
    for words in advice.split(", or "):
        said = words.replace("--", "").split()
        given = {
            key: int(value) if value.isdigit() else value for key, value in zip(said[::2], said[1::2], strict=True)
        }
        assert rk.estimate(model, **{"batch": 8} | given).memory.fits


# --- what varies with the settings and the links ----------------------------------------------------------------------

PAIR = {"tp": 2, "weights": "fp8_block", "activations": "bf16", "memory_fraction": 0.92, "token_budget": 8192,
        "max_num_seqs": 2, "isl": 1000, "osl": 100}  # fmt: skip


@pytest.mark.parametrize(
    ("gpu", "more", "pools", "peak"),
    [
        # club-3090, pull request 1139 (with its MTP head), and talos-argocd-proxmox, 1995: 4.76 and 4.99 GiB, 1.66
        ("rtx-3090", {"kv": "fp8", "max_model_len": 131_072}, (4.76, 4.99), 1.66),
        ("rtx-5090", {"max_model_len": 262_144}, (12.26,), 1.59),  # club-3090, issue 1087; the peak with 0.13 of graphs
    ],
)
def test_pairs_of_consumer_cards_have_the_pool_that_vllm_logged(gpu, more, pools, peak):
    got = memory_of("qwen3.5-27b", gpu=gpu, **PAIR, **more)
    assert got.fits
    for pool in pools:
        assert got.kv_pool_bytes / GIB == pytest.approx(pool, rel=0.05)
    assert got.activation_bytes / GIB == pytest.approx(peak, rel=0.05)
    assert got.graph_bytes <= 0.25 * GIB
    assert got.non_torch_bytes < GIB  # an H100's NVLink has 2.11


def test_before_0_11_the_budget_of_vllm_pays_for_the_communicator():
    # Qwen3-Next-80B-A3B at TP2, vLLM 0.10.2: 74.28 GiB of weights, a peak of 5.58, 1.38 non-torch, a pool of 44.59
    old, new = (
        memory_of("qwen3-next-80b-a3b", gpu="h200-sxm", tp=2, max_model_len=262_144, isl=1000, osl=100, engine=engine)
        for engine in ("vllm@0.10.2", "vllm@0.11")
    )
    assert old.non_torch_bytes == pytest.approx(1.38 * GIB)
    assert old.activation_bytes / GIB == pytest.approx(5.58, rel=0.01)
    assert old.kv_pool_bytes / GIB == pytest.approx(44.59, rel=0.01)
    assert old.kv_pool_tokens == pytest.approx(973_760, rel=0.01)
    assert new.kv_pool_bytes - old.kv_pool_bytes == pytest.approx(old.non_torch_bytes - new.non_torch_bytes)


def test_a_hybrid_sequence_is_reckoned_with_two_blocks_a_state():
    # the 1995 log: 302,921 tokens, 2.31 x 131,072; 1,568 tokens a block, 84 blocks and 3 groups of 2 states
    got = memory_of("qwen3.5-27b", gpu="rtx-3090", kv="fp8", max_model_len=131_072, **PAIR)
    assert got.max_concurrency == pytest.approx(got.kv_blocks / (84 + 3 * 2))
    assert got.kv_pool_tokens == pytest.approx(302_921, rel=1e-3)


@pytest.mark.parametrize("engine", ["vllm@0.20.1", "vllm@0.21", "vllm"])
def test_a_hybrid_with_a_draft_keeps_its_states_at_every_drafted_token(engine):
    """Qwen3.6-27B on 2 x 3090 with 3 tokens of its MTP layer, FP8 cache, 262,144 tokens: club-3090 91, 294 and 642.

    17 attention layers make groups of 17; the convolution keeps 3 inputs more, so a block has 1,600 tokens. A sequence
    is 164 blocks of attention, and 3 groups of 2 states and those of 3 drafted tokens: 179. The logs have 619,479
    tokens (423 blocks), 622,408 (425) and 623,873 (426, "Available KV cache memory: 11.05 GiB").
    """
    asked = {"gpu": "rtx-3090", "kv": "fp8", "max_model_len": 262_144, "draft": "mtp", "draft_tokens": 3}
    got = memory_of("qwen3.6-27b", engine=engine, **PAIR, **asked)
    block = 17 * 1600 * 2 * 2 * 256
    assert got.kv_blocks == got.kv_pool_bytes // block
    assert got.max_concurrency == pytest.approx(got.kv_blocks / (164 + 3 * (2 + 3)))
    assert got.kv_pool_tokens == int(got.max_concurrency * 262_144)
    assert memory_of("qwen3.6-27b", engine="vllm@0.19", **PAIR, **asked).kv_pool_tokens < 262_144 / 2  # divided


@pytest.mark.parametrize(
    ("model", "blocks", "asked"),
    [
        # vllm-project/recipes 551: "exceeds available Mamba cache blocks (856)"
        ("qwen3.6-27b", 856, {"gpu": "h100-sxm", "memory_fraction": 0.95}),
        # vllm-project/recipes 810: 377,456 tokens are 491 of 341 blocks of 262,144
        ("qwen3.8-27b", 491, {"gpu": "rtx-5090", "tp": 2, "max_model_len": 262_144}),
    ],
)
def test_hybrids_have_the_blocks_that_vllm_counted(model, blocks, asked):
    got = memory_of(model, weights="fp8_block", isl=1000, osl=100, **asked)
    assert got.kv_blocks == pytest.approx(blocks, rel=0.01)


def test_a_state_has_its_blocks_without_graphs_and_one_less_without_a_prefix_cache():
    # vLLM 0.17.1 with --enforce-eager: 284 blocks of 2,096 tokens, 12.91 x 32,768 (16 blocks and 3 x 2)
    asked = {"gpu": "a100-sxm-80gb", "weights": "int4", "kv": "fp8", "max_model_len": 32_768, "engine": "vllm@0.17.1"}
    eager, plain = (memory_of("qwen3.5-35b-a3b", eager=True, prefix_caching=on, **asked) for on in ("on", "off"))
    assert eager.max_concurrency == pytest.approx(eager.kv_blocks / 22)
    assert plain.max_concurrency == pytest.approx(plain.kv_blocks / 19)


@pytest.mark.parametrize(("drafted", "gib"), [(0, 0.09), (3, 0.14)])
def test_graphs_of_few_sequences_are_those_of_few_sizes(drafted, gib):
    # club-3090: "PIECEWISE=3, FULL=2" 0.09 GiB (434), with 3 drafted tokens 0.14 (1139)
    more = {"draft": "mtp", "draft_tokens": drafted} if drafted else {}
    got = memory_of("qwen3.5-27b", gpu="rtx-3090", kv="fp8", max_model_len=131_072, **PAIR, **more)
    assert got.graph_bytes / GIB == pytest.approx(gib, rel=0.1)


def test_the_largest_video_that_is_profiled_is_taken_from_the_pool():
    # vLLM issue 51494: 2,558,976 tokens at 2.44 x 1,048,576; 768,000 patches x (2 x 6,144 + 1,280) x 2 B
    asked = {"gpu": "b200-sxm", "tp": 8, "weights": "nvfp4", "block_size": 128, "max_model_len": 1_048_576}
    got = memory_of("minimax-m3", **asked)
    assert got.activation_bytes == 768_000 * (2 * 6_144 + 1_280) * 2
    assert got.kv_pool_tokens == pytest.approx(2_558_976, rel=0.05)
    # one group: 60 layers with a head of keys and values, 57 of them with index keys, all in 16 bit
    assert got.kv_pool_bytes / got.kv_pool_tokens == pytest.approx(60 * 512 + 57 * 256, rel=1e-4)
    assert memory_of("minimax-m3", engine="sglang", **asked).activation_bytes < got.activation_bytes / 4  # none there


def test_larger_graphs_take_memory_by_their_sizes():
    # 96 more sizes from 512 to 2,048 tokens of mixed steps and 32 to 1,024 of decode steps, the most that are told
    usual, larger = (memory_of("llama-3.1-8b", gpu="a100-sxm-80gb", max_num_seqs=1024, graph_tokens=tokens)
                     for tokens in (None, 2048))  # fmt: skip
    held = (2048 - 512) * (2 * 4096 + 3 * 14336) * 2
    assert larger.graph_bytes - usual.graph_bytes == pytest.approx((96 + 32) * 32 * 0.19 * MIB + held)
    assert memory_of("llama-3.1-8b", graph_tokens=0).graph_bytes == memory_of("llama-3.1-8b").graph_bytes  # of decode


@pytest.mark.parametrize(("model", "sequences", "budget", "gib"), [
    ("qwen3.5-9b", 256, 8192, 0.65),  # vLLM 0.19.0: "PIECEWISE=51 (largest=512), FULL=35 (largest=256)"
    ("qwen2.5-7b", 128, 2048, 0.31),  # vLLM 0.22.0: "PIECEWISE=35 (largest=256), FULL=19 (largest=128)"
])  # fmt: skip
def test_graphs_are_what_logs_print_that_no_constant_was_fitted_to(model, sequences, budget, gib):
    got = memory_of(model, gpu="l40s", max_num_seqs=sequences, token_budget=budget, engine="vllm@0.19")
    assert got.graph_bytes / GIB == pytest.approx(gib, rel=0.12)


def test_a_hybrid_of_fewer_heads_holds_less_while_a_layer_runs():
    # a public vLLM 0.19.0 log of Qwen3.5-9B on an L40S: 17.66 GiB of weights, 20.27 of cache, 2.52 x 262,144 tokens
    told = {"token_budget": 8192, "max_num_seqs": 256, "max_model_len": 262_144, "memory_fraction": 0.9}
    got = memory_of("qwen3.5-9b", gpu="l40s", engine="vllm@0.19", isl=1000, osl=100, **told)
    assert got.weight_bytes / GIB == pytest.approx(17.66, rel=1e-3)
    assert got.kv_pool_bytes / GIB == pytest.approx(20.27, rel=0.02)
    assert got.max_concurrency == pytest.approx(2.52, rel=0.03)


def test_prompts_of_sparse_attention_gather_keys_for_the_longest_sequence():
    # 40 index keys of 128 + 4 B a token, or 5 latents of 576 in 16 bit, whichever is more; nothing of a plain model
    v3 = [memory_of("deepseek-v3.2", gpu="b200-sxm", tp=8, max_model_len=length) for length in (2**14, 2**17)]
    assert v3[1].activation_bytes - v3[0].activation_bytes == (2**17 - 2**14) * 5 * 576 * 2
    v4 = [memory_of("deepseek-v4-flash", gpu="b200-sxm", tp=8, max_model_len=length) for length in (2**14, 2**20)]
    assert v4[1].activation_bytes - v4[0].activation_bytes == (2**20 - 2**14) * 40 * 132
    plain = [memory_of("deepseek-v3", gpu="b200-sxm", tp=8, max_model_len=length) for length in (2**14, 2**17)]
    assert plain[0].activation_bytes == plain[1].activation_bytes


def test_two_deployments_of_v4_flash_admit_what_their_logs_say():
    # vLLM issue 51454: 20.43 sequences of 2^20 tokens with tp 8, 156.9 in eight replicas
    told = {"gpu": "b200-sxm", "ep": 8, "kv": "fp8", "memory_fraction": 0.95, "max_model_len": 2**20,
            "engine": "vllm@0.25", "token_budget": 8192, "max_num_seqs": 256, "block_size": 256}  # fmt: skip
    assert memory_of("deepseek-v4-flash", tp=8, **told).max_concurrency == pytest.approx(20.43, rel=0.05)
    assert 8 * memory_of("deepseek-v4-flash", dp=8, **told).max_concurrency == pytest.approx(156.9, rel=0.05)


@pytest.mark.parametrize("engine", ["vllm", "vllm@0.19", "vllm@0.9", "vllm@0.6.3"])
def test_memory_besides_never_grows_as_sequences_or_tokens_are_taken_away(engine):
    def besides(sequences, budget):
        got = memory_of("qwen3-32b", engine=engine, max_num_seqs=sequences, token_budget=budget, max_model_len=4096)
        return got.graph_bytes, got.activation_bytes

    for key in (0, 1):
        by_sequences = [besides(each, 8192)[key] for each in (1, 2, 8, 64, 256, 1024)]
        by_budget = [besides(64, each)[key] for each in (64, 512, 2048, 8192)]
        assert by_sequences == sorted(by_sequences)
        assert by_budget == sorted(by_budget)
    assert besides(2, 8192)[0] < besides(512, 8192)[0] == besides(1024, 8192)[0] or engine == "vllm@0.6.3"


def test_what_grows_outside_the_allocator_is_of_the_links():
    grown = {gpu: memory_of("llama-3-8b", gpu=gpu, tp=2).non_torch_bytes / GIB
             for gpu in ("h100-sxm", "rtx-3090", "rtx-4090", "l40s")}  # fmt: skip
    assert grown["h100-sxm"] == 2.11
    assert grown["rtx-3090"] == grown["rtx-4090"] == grown["l40s"] == 0.545
    assert memory_of("llama-3-8b", gpu="rtx-4090").non_torch_bytes == 0.25 * GIB


def test_a_default_of_sequences_is_never_more_than_a_step_has_tokens():
    few, told = (memory_of("llama-3-8b", token_budget=256, **more) for more in ({}, {"max_num_seqs": 256}))
    assert few.activation_bytes == told.activation_bytes


def test_sequences_that_keep_states_are_no_more_than_the_pool_has_blocks():
    scenario = {"gpu": "rtx-pro-6000-blackwell", "weights": "bf16", "memory_fraction": 0.95, "calibration": "none"}
    answer = rk.estimate("qwen3.5-27b", isl=16, osl=16, concurrency=1500, requests=1500, **scenario)
    blocks = int(memory_of("qwen3.5-27b", **scenario).kv_blocks)
    assert any(f"the pool has {blocks}" in note for note in answer.warnings)
    assert answer.load.running <= blocks // 4  # one of attention, three of states
    assert not any("the pool has" in note for note in rk.estimate("qwen3.5-27b", eager=True, **scenario).warnings)
