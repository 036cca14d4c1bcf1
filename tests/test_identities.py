"""Numbers that must come out exactly, each with its hand calculation."""

from __future__ import annotations

import math

import pandas as pd
import pytest

import rooflinekit as rk
from rooflinekit.model.blocks import mixer_operations
from rooflinekit.model.cache import layer_cache
from rooflinekit.model.kernels.collective import group_share
from rooflinekit.model.kernels.gemm import Linear
from rooflinekit.model.kernels.operation import Step
from rooflinekit.model.kernels.routing import Routing
from rooflinekit.model.precision import Precision
from rooflinekit.model.shard import Shard
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.model import CompressedAttention, Indexer, WeightFormats
from rooflinekit.specs import load_accelerator, spec_dir

# Published totals: the checkpoints' own counts (safetensors metadata, or the papers). GPT-2 ties its head.
PARAMETERS = {
    "gpt2": 124_439_808,
    "llama-2-7b": 6_738_415_616,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "mistral-7b": 7_241_732_096,
    "gemma-2-9b": 9_241_705_984,
    "falcon-7b": 6_921_720_704,
    "qwen3-32b": 32_762_123_264,
    "mixtral-8x7b": 46_702_792_704,
    "gpt-oss-120b": 116_829_156_672,
    "deepseek-v3": 671_026_419_200,
    "bloom-176b": 176_247_271_424,
}
GIGA = 1e9


def kernels(plan, batch):
    return {kernel.name: kernel for kernel in plan.kernels(batch)}


def matrices(plan):
    """Elements of every fused part of the linear layers: {"q": 16777216, ...}."""
    linears = [op for op in plan.operations if isinstance(op, Linear)]
    return {part.lower(): math.prod(axes) * op.k for op in linears for part, *axes in op.parts}


def step_total(plan, batch, quantity):
    return sum(kernel.count * getattr(kernel, quantity) for kernel in plan.kernels(batch))


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_to_the_digit(name):
    assert rk.parameters(name).total == PARAMETERS[name]


def test_llama_3_8b_parameters_by_hand():
    D, F, V, L, kv = 4096, 14336, 128256, 32, 1024
    attention, ffn, norms = 2 * D * D + 2 * D * kv, 3 * D * F, 2 * D
    assert 2 * V * D + L * (attention + ffn + norms) + D == 8_030_261_248
    count = rk.parameters("llama-3-8b")
    assert (count.embedding, count.lm_head) == (V * D, V * D)
    assert (count.attention, count.ffn, count.other) == (L * attention, L * ffn, L * norms + D)


@pytest.mark.parametrize(("name", "active"), [
    # all experts but 2 of 8 idle: 46.70e9 - 32 x 6 x 3 x 4096 x 14336
    ("mixtral-8x7b", 46_702_792_704 - 32 * 6 * 3 * 4096 * 14336),
    # 58 expert layers, 248 of 256 idle
    ("deepseek-v3", 671_026_419_200 - 58 * 248 * 3 * 7168 * 2048),
    # 36 layers, 124 of 128 idle; each expert has gate, up and down of 2880 x 2880, and biases 2 x 2880 + 2880
    ("gpt-oss-120b", 116_829_156_672 - 36 * 124 * (3 * 2880 * 2880 + 3 * 2880)),
    ("llama-3-8b", 8_030_261_248),
])  # fmt: skip
def test_active_parameters_leave_the_idle_experts_out(name, active):
    assert rk.parameters(name).active == active


@pytest.mark.parametrize(("part", "megabytes"), [
    ("q", 33.6),  # 4096 x 4096 x 2
    ("k", 8.4),  # 4096 x 1024 x 2
    ("v", 8.4),
    ("o", 33.6),
    ("gate", 117.4),  # 4096 x 14336 x 2
    ("up", 117.4),
    ("down", 117.4),
])  # fmt: skip
def test_projection_weights_of_llama_3_8b_in_megabytes(plan_of, part, megabytes):
    assert matrices(plan_of("llama-3-8b"))[part] * 2 / 1e6 == pytest.approx(megabytes, abs=0.05)


@pytest.mark.parametrize(("part", "gigaflop"), [
    ("q", 68.7),  # 2 x 2048 x 4096 x 4096
    ("k", 17.2),  # 2 x 2048 x 4096 x 1024
    ("v", 17.2),
    ("o", 68.7),
    ("gate", 240.5),  # 2 x 2048 x 4096 x 14336
    ("up", 240.5),
    ("down", 240.5),
])  # fmt: skip
def test_projection_gflop_of_a_layer_at_2048_tokens(plan_of, part, gigaflop):
    plan = plan_of("llama-3-8b")
    assert 2 * 2048 * matrices(plan)[part] / GIGA == pytest.approx(gigaflop, abs=0.05)


def test_a_fused_launch_does_the_work_of_its_parts(plan_of):
    done = kernels(plan_of("llama-3-8b"), Batch.prefill(1.0, 2048.0))
    assert done["qkv_proj"].flops == 2 * 2048 * 4096 * (4096 + 1024 + 1024)
    assert done["o_proj"].flops == 2 * 2048 * 4096 * 4096
    assert done["gate_up_proj"].flops == 2 * 2048 * 4096 * 2 * 14336
    assert done["down_proj"].flops == 2 * 2048 * 14336 * 4096
    assert {done[name].count for name in ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")} == {32}


def test_a_matrix_multiplication_reads_its_input_and_writes_its_output(plan_of):
    # 2048 tokens, bf16: 4096 in and 6144 out; the weights once, however many tokens
    qkv = kernels(plan_of("llama-3-8b"), Batch.prefill(1.0, 2048.0))["qkv_proj"]
    assert qkv.activation_bytes == 2048 * (4096 + 6144) * 2
    assert qkv.weight_bytes == 4096 * 6144 * 2
    # fp8 weights: the input is quantised to one byte, the output is bf16
    narrow = kernels(plan_of("llama-3-8b", weights=Dtype.FP8), Batch.prefill(1.0, 2048.0))["qkv_proj"]
    assert narrow.activation_bytes == 2048 * (4096 * 1 + 6144 * 2)


def test_the_scores_of_a_layer_at_2048_tokens(plan_of):
    # QK^T without a mask: 2 x 2048^2 x 32 heads x 128 = 34.4 GFLOP; causal: 2048 x 2049 / 2 pairs, 17.2 GFLOP.
    assert pytest.approx(34.4, abs=0.05) == 2 * 2048**2 * 32 * 128 / GIGA
    causal = 2 * (2048 * 2049 / 2) * 32 * 128
    assert causal / GIGA == pytest.approx(17.2, abs=0.05)
    # One launch does QK^T and PV: twice that.
    assert kernels(plan_of("llama-3-8b"), Batch.prefill(1.0, 2048.0))["attention"].flops == 2 * causal
    # All 2,048 query rows against all 2,048 keys, nothing masked, is what 2,048 decode rows at T = 2048 do.
    rows = kernels(plan_of("llama-3-8b"), Batch.decode(2048.0, 2048.0))["attention"]
    assert rows.flops == 2 * (2 * 2048**2 * 32 * 128)


def test_a_decode_step_at_2048_is_16_1_gflop(plan_of):
    # weights: 2 x (8,030,261,248 - the embedding table - norms); attention: 32 layers x 4 x 32 x 128 x 2048
    batch, plan = Batch.decode(1.0, 2048.0), plan_of("llama-3-8b")
    gemms = sum(k.count * k.flops for k in plan.kernels(batch) if k.family == "gemm")
    attention = sum(k.count * k.flops for k in plan.kernels(batch) if k.family == "attention_decode")
    assert gemms == 2 * (8_030_261_248 - 128256 * 4096 - 65 * 4096)
    assert attention == 32 * 4 * 32 * 128 * 2048
    assert gemms / GIGA == pytest.approx(15.0, abs=0.05)
    assert attention / GIGA == pytest.approx(1.07, abs=0.005)
    assert step_total(plan, batch, "flops") / GIGA == pytest.approx(16.1, abs=0.05)


@pytest.mark.parametrize(("name", "bytes_per_token"), [
    ("llama-3-8b", 131_072),  # 32 layers x 2 x 8 heads x 128 x 2 B
    ("llama-3-70b", 327_680),  # 80 x 2 x 8 x 128 x 2
    ("mistral-7b", 131_072),  # 32 x 2 x 8 x 128 x 2
    ("deepseek-v3", 70_272),  # 61 x (512 + 64) x 2
    ("llama-2-7b", 524_288),  # 32 x 2 x 32 x 128 x 2
    ("falcon-7b", 8_192),  # 32 x 2 x 1 x 64 x 2
    ("qwen3-32b", 262_144),  # 64 x 2 x 8 x 128 x 2
])  # fmt: skip
def test_cache_of_one_token(name, bytes_per_token):
    assert rk.kv_cache_bytes(name, 1) == bytes_per_token


def test_cache_of_a_long_sequence():
    assert rk.kv_cache_bytes("llama-2-7b", 4096) == 4096 * 524_288
    assert rk.kv_cache_bytes("llama-2-7b", 4096) / GIGA == pytest.approx(2.147, abs=0.0005)
    # A sliding window of 4,096 stops growing there.
    assert rk.kv_cache_bytes("mistral-7b", 32_768) == 4096 * 131_072


def test_kv_heads_are_replicated_once_tp_exceeds_them():
    # Llama-3-70B has 8 KV heads: 8 ranks hold one each, 16 ranks hold each twice.
    assert rk.kv_cache_bytes("llama-3-70b", 1000, tp=8) == 1000 * 327_680
    assert rk.kv_cache_bytes("llama-3-70b", 1000, tp=16) == 2 * 1000 * 327_680
    # Falcon-7B has one KV head: every rank holds it.
    assert rk.kv_cache_bytes("falcon-7b", 1000, tp=4) == 4 * 1000 * 8_192


def test_the_latent_of_mla_is_replicated_on_every_rank(plan_of):
    assert rk.kv_cache_bytes("deepseek-v3", 1000, tp=8) == 8 * 1000 * 70_272
    # One layer of decode at 4,096 tokens reads 4096 x 576 x 2 B on each of the 8 ranks.
    read = kernels(plan_of("deepseek-v3", "h200-sxm", tp=8), Batch.decode(1.0, 4096.0))["attention"].kv_read_bytes
    assert read == 4096 * 576 * 2


def test_kv_reads_fall_only_until_each_rank_has_one_head(plan_of):
    # Qwen3-32B: 8 KV heads of 128; at tp 4 a rank reads 2 of them, at tp 8 one.
    for tp, heads in ((1, 8), (4, 2), (8, 1)):
        read = kernels(plan_of("qwen3-32b", tp=tp), Batch.decode(1.0, 1000.0))["attention"].kv_read_bytes
        assert read == 1000 * heads * 2 * 128 * 2


def test_ridge_of_the_h100():
    # 989.4e12 / 3.35e12
    assert load_accelerator("h100-sxm").value.ridge(Dtype.BF16) == pytest.approx(295.3, abs=0.1)


def test_weight_read_floor_of_llama_3_8b_on_the_h100(plan_of):
    # The embedding table is a lookup: 2 x (8,030,261,248 - 128,256 x 4,096) B / 3.35 TB/s = 4.48 ms;
    # if the table were streamed as well it would be 4.79 ms.
    streamed = step_total(plan_of("llama-3-8b"), Batch.decode(1.0, 1.0), "weight_bytes")
    assert streamed == 2 * (8_030_261_248 - 128256 * 4096)
    assert streamed / 3.35e12 * 1e3 == pytest.approx(4.48, abs=0.005)
    assert (streamed + 2 * 128256 * 4096) / 3.35e12 * 1e3 == pytest.approx(4.79, abs=0.005)
    bound = plan_of("llama-3-8b").time(Batch.decode(1.0, 1.0)).bound * 1e3
    assert 4.48 < bound < 4.49


def test_llama_3_70b_on_eight_gpus(plan_of):
    plan, batch = plan_of("llama-3-70b", tp=8), Batch.decode(32.0, 4096.0)
    assert step_total(plan, batch, "kv_read_bytes") == 32 * 4096 * 327_680 / 8  # 5.37 GB
    assert step_total(plan, batch, "kv_read_bytes") / GIGA == pytest.approx(5.37, abs=0.005)
    # 161 norms of 8,192 are on every rank, everything else is cut by 8; the embedding is resident and not streamed.
    norms, table = 161 * 8192, 128256 * 8192
    resident = 2 * ((70_553_706_496 - norms) / 8 + norms)
    held = sum(n * weights.bytes for op, n in plan.operations.items() for weights in op.weights)
    assert held == resident
    assert resident / GIGA == pytest.approx(17.6, abs=0.05)
    assert step_total(plan, batch, "weight_bytes") == resident - 2 * table / 8
    assert (resident - 2 * table / 8) / GIGA == pytest.approx(17.4, abs=0.05)


def test_bound_of_a_decode_step_of_llama_3_70b_on_eight_gpus(plan_of):
    # memory: (17.38 + 5.37) GB / 3.35 TB/s = 6.79 ms; 160 all-reduces of 32 x 8192 x 2 B, 2 x 7/8 of it sent at
    # 450 GB/s, are 0.326 ms, one more on the embedding 2 us, the logits 7/8 x 32 x 128256 x 2 B 16 us: 7.13 ms.
    step = plan_of("llama-3-70b", tp=8).time(Batch.decode(32.0, 4096.0))
    local = 1e3 * sum(timed.bound for timed in step.kernels if timed.kernel.family != "collective")
    assert local == pytest.approx(6.8, abs=0.05)
    reduce = 2 * 7 / 8 * 32 * 8192 * 2 / 450e9
    gather = 7 / 8 * 32 * 128256 * 2 / 450e9
    assert step.bound * 1e3 == pytest.approx(local + 1e3 * (161 * reduce + gather), rel=1e-9)
    assert step.bound * 1e3 == pytest.approx(7.1, abs=0.05)


def test_bound_of_a_decode_step_of_mixtral_on_two_gpus(plan_of):
    plan, batch = plan_of("mixtral-8x7b", tp=2), Batch.decode(32.0, 2048.0)
    touched = 8 * (1 - (1 - 2 / 8) ** 32)  # 7.9992 of 8
    cut = 32 * (4096 * (4096 + 1024 + 1024 + 4096) + touched * 3 * 4096 * 14336) + 32000 * 4096
    replicated = 32 * (8 * 4096 + 2 * 4096) + 4096  # router, norms
    streamed = step_total(plan, batch, "weight_bytes")
    assert streamed == pytest.approx(2 * (cut / 2 + replicated), rel=1e-12)
    assert streamed / 3.35e12 * 1e3 == pytest.approx(13.9, abs=0.05)
    # + KV 32 x 2048 x 131,072 / 2 B = 1.28 ms, + 65 all-reduces and the logits, 0.04 ms
    assert plan.time(batch).bound * 1e3 == pytest.approx(15.2, abs=0.05)


@pytest.mark.parametrize(("tokens", "experts", "top_k", "touched"), [
    (32, 256, 8, 163),  # 256 x (1 - (31/32)^32) = 163.3: neither 8 nor 256
    (1, 256, 8, 8),
    (1, 8, 2, 2),
    (100_000, 256, 8, 256),
    (64, 8, 8, 8),  # every token visits all of them
])  # fmt: skip
def test_distinct_experts(tokens, experts, top_k, touched):
    assert Routing(experts, top_k).distinct(tokens) == pytest.approx(touched, abs=0.35)


def test_distinct_experts_by_enumeration():
    # Two tokens, each picks 2 of 4 experts: of 36 equally likely pairs of pairs, 6 share both (2 distinct),
    # 24 share one (3), 6 share none (4): mean 3.
    assert Routing(4, 2).distinct(2) == pytest.approx((6 * 2 + 24 * 3 + 6 * 4) / 36)


def test_flops_of_mla_in_its_two_forms(plan_of):
    plan = plan_of("deepseek-v3", "h200-sxm", tp=8)
    b, H, S = 4, 128 // 8, 3000
    # prefill, up-projected: 192 wide scores and 128 wide values over S(S + 1)/2 pairs: 320 b H S^2 for long S
    prefill = kernels(plan, Batch.prefill(4.0, 3000.0))["attention"]
    assert prefill.flops == 2 * (192 + 128) * b * H * (S * (S + 1) / 2)
    assert prefill.flops == pytest.approx(320 * b * H * S**2, rel=1 / S)
    # decode, absorbed: 576 wide scores and 512 wide values: 2 x 1088 b H S
    assert kernels(plan, Batch.decode(4.0, 3000.0))["attention"].flops == 2 * b * H * S * 1088


def test_the_indexer_scores_in_fp8_as_published(plan_of):
    # 64 heads of 128 against every key: 2 x 64 x 128 FLOP a pair; a key is 128 B with a scale of 4 B
    plan = plan_of("deepseek-v3.2", "h200-sxm", tp=8, kv=Dtype.BF16)
    done = kernels(plan, Batch.decode(3.0, 5000.0))
    scores = done["index_scores"]
    assert (scores.dtype, scores.flops) == (Dtype.FP8, 2 * 64 * 128 * 3 * 5000)
    assert scores.kv_read_bytes == 3 * 5000 * 132
    assert scores.activation_bytes == 3 * 64 * 128 + 4 * 3 * 5000
    assert done["index_append"].kv_write_bytes == 3 * 132
    assert done["attention"].kv_read_bytes == 3 * 2048 * 576 * 2
    # without FP8 units: the stream's format, and no scales
    wide = kernels(plan_of("deepseek-v3.2", "a100-sxm-80gb", tp=8, activations=Dtype.BF16), Batch.decode(3.0, 5000.0))
    assert wide["index_scores"].dtype is Dtype.BF16
    assert wide["index_scores"].kv_read_bytes == 3 * 5000 * 256


def test_an_indexer_meets_the_keys_of_its_own_step_alone(plan_of):
    """A step holds 8,192 tokens: eight prompts of 1,024 meet each other; one longer than a step meets no other."""
    plan = plan_of("deepseek-v3.2", "h200-sxm", tp=8)
    assert plan.token_budget == 8192
    for prompts, length, beside in ((8, 1024, 7), (64, 1024, 7), (64, 4096, 1), (64, 32_768, 0)):
        shape = kernels(plan, Batch.prefill(float(prompts), float(length)))["index_scores"].shape
        assert shape.foreign == pytest.approx(4.0 * prompts * length * beside * length)


def test_prompts_of_sparse_attention_are_absorbed_over_the_chosen_keys(plan_of):
    """The first 2,048 queries see all keys, later ones 2,048 each; no key is projected up."""
    plan, b, H, S, best = plan_of("deepseek-v3.2", "h200-sxm", tp=8), 4, 128 // 8, 8192, 2048
    done = kernels(plan, Batch.prefill(4.0, 8192.0))
    pairs = best * (best + 1) / 2 + (S - best) * best
    assert done["attention"].flops == 2 * (576 + 512) * b * H * pairs
    assert done["attention"].kv_read_bytes == b * S * 576 * 2
    assert "kv_b_proj" not in done
    assert done["q_absorb"].flops == 2 * b * S * H * 128 * 512
    assert done["index_scores"].flops == 2 * 64 * 128 * b * S * (S + 1) / 2


def test_compressed_keys_stand_for_groups_of_tokens():
    """DeepSeek-V4-Flash at 65,536 keys: a window of 128, and 512 of the 16,384 compressed keys, or all 512 of them."""
    decoding, seen = Batch.decode(1.0, 65536.0), {}
    precision = Precision(Dtype.BF16, Dtype.BF16, WeightFormats.uniform(Dtype.BF16))
    for ratio, indexer in ((4, Indexer(64, 128, 512)), (128, None), (0, None)):
        block = CompressedAttention(64, 512, 1024, 64, 8, 1024, 128, ratio, indexer)
        ops = mixer_operations(block, Shard(4096, precision, Deployment()))
        found = [kernel for op in ops for kernel in op.kernels(Step(decoding, Dtype.BF16, Dtype.BF16), 1)]
        seen[ratio] = {kernel.name: kernel for kernel in found}
        assert layer_cache(block).token_bytes == (2.0 * 512 / ratio if ratio else 0.0) + (33.0 if indexer else 0.0)
    assert {ratio: done["attention"].flops / (4 * 64 * 512) for ratio, done in seen.items()} == {
        4: 640,
        128: 640,
        0: 128,
    }
    assert seen[4]["index_scores"].flops == 2 * 64 * 128 * 65536 / 4
    out = 64 * 512 // 8 * 8 * 1024
    assert all(done["o_a_proj"].weight_bytes == 2 * out for done in seen.values())


def test_no_accelerator_has_four_bit_floats_without_fp8():
    # what the choice of the indexer's format relies on
    chips = [load_accelerator(path.stem).value for path in spec_dir("accelerator").glob("*.yaml")]
    assert len(chips) > 20
    assert all(chip.supports(Dtype.FP8) for chip in chips if {Dtype.NVFP4, Dtype.MXFP4} & set(chip.peaks))


def test_a_token_goes_once_to_each_rank_that_holds_any_of_its_experts(plan_of):
    # 8 groups of 32 of 256 experts, 8 chosen: a group gets none with C(224, 8)/C(256, 8) = 0.338, so 4.63 of 7 others
    assert 7 * group_share(256, 8, 8) == pytest.approx(7 * (1 - math.prod((224 - i) / (256 - i) for i in range(8))))
    assert 7 * group_share(256, 8, 8) == pytest.approx(4.63, abs=0.005)
    assert group_share(256, 8, 256) == pytest.approx(8 / 256)  # one expert a rank: each choice is a rank
    assert group_share(256, 8, 1) == 1.0
    # DeepSeek-V3, each of 8 replicas with 10 tokens of 7168 in bf16
    sent = kernels(plan_of("deepseek-v3", "h200-sxm", dp=8, ep=8), Batch.decode(10.0, 100.0))
    for name in ("expert_dispatch", "expert_combine"):
        assert sent[name].network_bytes == pytest.approx(10 * 7 * group_share(256, 8, 8) * 7168 * 2)


def test_all_ranks_that_share_an_expert_get_its_tokens(plan_of):
    # Mixtral, 8 ranks in 2 groups of 4 that cut 4 experts each: a group is needed with 1 - (4/8)(3/7) = 11/14.
    batch = Batch.decode(10.0, 100.0)
    # 8 replicas: the 4 ranks of the other group, and the 3 others of the own group
    spread = kernels(plan_of("mixtral-8x7b", dp=8, ep=2), batch)["expert_dispatch"]
    assert spread.network_bytes == pytest.approx(10 * 11 / 14 * (4 + 3) * 4096 * 2)
    # 2 replicas of 4 ranks: the own group is the own replica, and each of its ranks sends a quarter
    close = kernels(plan_of("mixtral-8x7b", tp=4, dp=2, ep=2), batch)["expert_dispatch"]
    assert close.network_bytes == pytest.approx(10 * 11 / 14 * 4 * 4096 * 2 / 4)


@pytest.mark.parametrize(("model", "metric", "asked", "stated", "relative"), [
    ("llama-3-8b", "decode.flops", {"context": 1}, 2 * 8.03e9, 0.1),  # a forward pass takes 2·P FLOP a token
    ("llama-3-70b", "decode.flops", {"context": 1, "allow_oom": True}, 140e9, 0.02),
    ("llama-3-70b", "prefill.flops", {"isl": 1024, "allow_oom": True}, 142e12, 0.02),
    ("llama-3-8b", "prefill.attention.flops", {"isl": 6}, 2 * 9.4e6 * 21 / 36, 0.01),  # 9.4: scores alone, masked too
    ("llama-3-8b", "prefill.flops", {"isl": 2048}, 29.7e12, 0.01),  # 30.8 where masked pairs are computed too
])  # fmt: skip
def test_numbers_of_tutorials(model, metric, asked, stated, relative):
    """https://fergusfinn.com/talks/inference-arithmetic, https://zubnet.ai/wiki/en/FLOPs and others state them."""
    assert rk.explain(model, metric, calibration="none", **asked).value == pytest.approx(stated, rel=relative)


def test_mamba_sums_dt_b_and_c_over_the_ranks(plan_of):
    # Jamba: 28 of 32 layers; dt of 256 and twice a state of 16, in bf16; 2(n - 1)/n of it sent
    done = kernels(plan_of("jamba-v0.1", "h200-sxm", tp=4), Batch.decode(10.0, 100.0))["ssm_reduce"]
    assert (done.count, done.network_bytes) == (28, 10 * (256 + 2 * 16) * 2 * 2 * 3 / 4)
    assert "ssm_reduce" not in kernels(plan_of("jamba-v0.1", "h200-sxm"), Batch.decode(10.0, 100.0))


def test_head_dim_is_not_hidden_over_heads(plan_of):
    # Qwen3-32B: hidden 5120, 64 heads of 128 (not 80), 8 KV heads
    parts = matrices(plan_of("qwen3-32b"))
    assert (parts["q"], parts["k"], parts["o"]) == (5120 * 64 * 128, 5120 * 8 * 128, 64 * 128 * 5120)


def test_an_alibi_model_has_neither_rotary_kernel_nor_gate(plan_of):
    done = kernels(plan_of("bloom-176b", tp=8), Batch.decode(1.0, 100.0))
    assert "rope" not in done
    # plain GELU: 4 x hidden, one matrix up, one down
    assert done["up_proj"].flops == 2 * 14336 * 4 * 14336 / 8
    # LayerNorm has scale and bias, and both are read: 2 x 14336 x 2 B
    assert done["residual_norm"].weight_bytes == 2 * 14336 * 2


def test_half_of_gemma_2_attends_to_4096_tokens_only(plan_of):
    done = kernels(plan_of("gemma-2-9b"), Batch.decode(1.0, 8000.0))
    assert (done["attention"].count, done["window_attention"].count) == (21, 21)
    assert done["attention"].kv_read_bytes == 8000 * 8 * 2 * 256 * 2
    assert done["window_attention"].kv_read_bytes == 4096 * 8 * 2 * 256 * 2
    assert done["window_attention"].flops == 4 * 16 * 256 * 4096


def test_causal_prefill_with_a_cached_prefix(plan_of):
    # 300 new tokens after 700: 300 x 700 + 300 x 301 / 2 pairs
    done = kernels(plan_of("llama-3-8b"), Batch.prefill(1.0, 1000.0, cached=700.0))["attention"]
    assert done.flops == 4 * 32 * 128 * (300 * 700 + 300 * 301 / 2)
    assert done.kv_read_bytes == 1000 * 2 * 8 * 128 * 2


class TestChunkedAttention:
    """Llama-4's local layers see their own chunk of 8,192 tokens and nothing before it.

    So the first token of a chunk reads one key where the last one reads 8,192: a decode step at 8,193 tokens is shorter
    than one at 8,192, and this is how the model was trained (chunked causal mask of its reference code).
    """

    def test_the_first_token_of_a_chunk_reads_one_key(self, plan_of):
        plan = plan_of("llama-4-scout", "h100-sxm", tp=8)
        for context, keys in ((8192.0, 8192.0), (8193.0, 1.0), (16_384.0, 8192.0), (16_385.0, 1.0)):
            local = next(k for k in plan.kernels(Batch.decode(1.0, context)) if k.name == "chunk_attention")
            assert local.kv_read_bytes == keys * 2 * 128 * 2  # one KV head here, keys and values in 16 bit

    def test_the_mean_over_an_output_goes_over_the_end_of_a_chunk_without_a_step(self):
        rows = [{"model": "llama-4-scout", "gpu": "h100-sxm", "tp": 8, "batch": 32, "isl": isl, "osl": 257}
                for isl in range(7900, 8230)]  # fmt: skip
        steps = rk.estimate_frame(pd.DataFrame(rows))["tpot_ms"].diff().dropna()
        one, other = (
            rk.estimate("llama-4-scout", "h100-sxm", tp=8, batch=32, context=at).tpot_ms for at in (8192, 8193)
        )
        assert one > 1.1 * other
        assert steps.abs().max() < 3.0 * (one - other) / 256  # one of 256 steps changes sides with each token of prompt
