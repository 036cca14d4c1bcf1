"""Memory of whole deployments, added up by hand, and the constants that an engine adds."""

from __future__ import annotations

from dataclasses import replace

import pytest

import rooflinekit as rk
from rooflinekit.cache import cache_law
from rooflinekit.memory import CONTEXT_BYTES, GRAPH_BYTES, MOE_CHUNK, NON_TORCH_BYTES, SAMPLER_COPIES, TOKEN_BUDGET
from rooflinekit.operating_point import Predictor
from rooflinekit.specs import load_accelerator
from rooflinekit.step import make_plan
from rooflinekit.types.batch import Batch
from rooflinekit.types.deployment import Deployment
from rooflinekit.types.dtype import Dtype
from rooflinekit.types.hardware import System
from rooflinekit.types.model import Attention, DenseFFN, Layer, Mamba2, Model, WeightFormats

GIB = 2**30


def memory_of(model, **scenario):
    return rk.estimate(model, **({"calibration": "none", "allow_oom": True} | scenario)).memory


def test_the_overheads_are_the_measured_ones():
    # medians of engine start-up logs, one GPU and several
    assert CONTEXT_BYTES == {False: 0.51 * GIB, True: 1.53 * GIB}
    assert NON_TORCH_BYTES == {False: 0.25 * GIB, True: 2.105 * GIB}
    assert GRAPH_BYTES == 0.87 * GIB
    assert SAMPLER_COPIES == 3.72
    assert TOKEN_BUDGET == 8192
    assert MOE_CHUNK == 16_384


def test_a_dense_model_by_hand():
    got = memory_of("llama-3-8b", batch=32, isl=1024, osl=256)
    assert got.capacity_bytes == 79.6 * GIB
    assert got.weight_bytes == 2 * 8_030_261_248
    assert got.kv_bytes == 32 * 1280 * 131_072
    # 8,192 tokens at once, residual and its norm (2 x 4096) and gate, up, product (3 x 14336), 2 B each;
    # 3.72 fp32 copies of 32 rows of 128,256 logits
    assert got.activation_bytes == pytest.approx(8192 * (2 * 4096 + 3 * 14336) * 2 + 32 * 128256 * 4 * 3.72)
    assert got.overhead_bytes == pytest.approx((0.51 + 0.25 + 0.87) * GIB)
    parts = got.weight_bytes + got.kv_bytes + got.activation_bytes + got.overhead_bytes
    assert got.total_bytes == pytest.approx(parts)
    assert got.fits is True
    assert got.kv_bytes_per_token == 131_072
    # 1024 tokens a prompt: above 8 sequences the activation peak stays, so each further one takes KV and logits
    left = 79.6 * GIB - got.weight_bytes - got.overhead_bytes - 8192 * (2 * 4096 + 3 * 14336) * 2
    assert got.max_batch == int(left // (1280 * 131_072 + 128256 * 4 * 3.72))
    assert got.max_context == 8192  # the model's own limit


def test_a_short_prompt_needs_a_small_activation_peak():
    got = memory_of("llama-3-8b", batch=2, isl=100, osl=8)
    assert got.activation_bytes == pytest.approx(200 * (2 * 4096 + 3 * 14336) * 2 + 2 * 128256 * 4 * 3.72)
    cached = memory_of("llama-3-8b", batch=2, isl=100, osl=8, cached=60)
    assert cached.activation_bytes == pytest.approx(80 * (2 * 4096 + 3 * 14336) * 2 + 2 * 128256 * 4 * 3.72)
    assert cached.kv_bytes == got.kv_bytes


def test_a_windowed_model_by_hand():
    # Gemma-2-9B: 42 layers, every second one sees 4,096 tokens; 8 KV heads of 256 in bf16
    got = memory_of("gemma-2-9b", batch=4, isl=6000, osl=192)
    layer = 2 * 8 * 256 * 2
    assert got.kv_bytes == 4 * 21 * layer * (4096 + 6192)
    assert got.weight_bytes == 2 * 9_241_705_984
    assert got.kv_bytes_per_token == 42 * layer


def test_a_sliding_window_lets_the_context_grow_for_free():
    short, long = (memory_of("mistral-7b", batch=8, isl=isl, osl=1) for isl in (5000, 30_000))
    assert short.kv_bytes == long.kv_bytes == 8 * 4096 * 131_072


def test_an_mla_model_with_experts_by_hand():
    got = memory_of("deepseek-v3", gpu="h200-sxm", tp=8, batch=16, isl=4000, osl=96)
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
    # projection, wider than gate and up (2 x 2048 / 8) in whose place it stands, and gate x up (2048 / 8)
    per_token = (3 * D + 8 * (D + 2048 / 8)) * 2
    assert got.activation_bytes == pytest.approx(8192 * per_token + 16 * 129280 * 4 * 3.72)
    assert got.overhead_bytes == pytest.approx((1.53 + 2.105 + 0.87) * GIB)


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
    return Predictor.of(plan).memory.bytes_per_token / 2 - 2 * plan.model.hidden


def test_what_experts_hold_by_hand(plan_of):
    # Mixtral on one GPU: 2 copies of a token, each with gate and up (2 x 14336, wider than 4096) and their product
    assert widest_of(plan_of("mixtral-8x7b")) == 2 * (2 * 14336 + 14336)
    # cut over 8 ranks the down projection's 4096 are wider than 2 x 1792
    assert widest_of(plan_of("mixtral-8x7b", tp=8)) == 2 * (4096 + 14336 / 8)
    # whole experts on 8 ranks of one replica: each rank has rows for all copies, those of others' experts too
    assert widest_of(plan_of("mixtral-8x7b", tp=8, ep=8)) == 2 * 3 * 14336
    # two replicas that gather all tokens, half of each expert: twice the tokens, and the gathered ones themselves
    assert widest_of(plan_of("mixtral-8x7b", dp=2)) == 2 * (2 * 3 * 14336 / 2 + 4096)
    # with ep 2, of the tokens of both replicas those that chose any of the 4 local experts: 1 - (4/8 x 3/7) = 11/14
    assert widest_of(plan_of("mixtral-8x7b", dp=2, ep=2)) == pytest.approx(2 * 11 / 14 * (2 * 3 * 14336 + 4096))
    # of the tokens of 4 full replicas, 32,768, the experts take 16,384 at once
    assert widest_of(plan_of("mixtral-8x7b", dp=4)) == 2 * (2 * 3 * 14336 / 4) + 4 * 4096


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
    assert got.activation_bytes == 100 * (2 * 4096 + 3 * 14336) * 2 + 128256 * 4


def test_a_narrower_cache_is_smaller():
    half = memory_of("llama-3-8b", batch=32, kv="fp8")
    assert half.kv_bytes == 32 * 1280 * 131_072 / 2
    assert half.kv_bytes_per_token == 65_536


def test_pipeline_stages_share_the_layers():
    # 80 layers over 4 stages of 20: the last holds the LM head and the final norm, the first the embedding.
    got = memory_of("llama-3-70b", pp=4, batch=8, isl=1000, osl=24)
    layer = 2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28672 + 2 * 8192
    assert got.weight_bytes == 2 * (20 * layer + 128256 * 8192 + 8192)
    assert got.kv_bytes == 8 * 1024 * 327_680 / 4
    assert got.kv_bytes_per_token == 327_680


def test_uneven_stages_are_judged_by_the_busiest():
    # 32 layers over 3 stages: 10, 11, 11; the last one has the head as well.
    got = memory_of("llama-3-8b", pp=3, batch=1, isl=1000, osl=24)
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
    alone = memory_of("mixtral-8x7b").weight_bytes
    experts = 32 * 8 * 3 * 4096 * 14336 * 2
    for ep in (1, 2):
        assert memory_of("mixtral-8x7b", dp=2, ep=ep).weight_bytes == alone - experts / 2


def test_a_tied_head_is_held_once_unless_the_stages_split_it():
    # GPT-2: 124,439,808 parameters, of which the table 50257 x 768 is head as well; a second stage needs its own copy.
    whole = memory_of("gpt2", batch=1, isl=10, osl=2)
    assert whole.weight_bytes == 124_439_808 * Dtype(rk.estimate("gpt2").inputs["weights"]).bytes
    width = whole.weight_bytes / 124_439_808
    layer = 12 * 768 * 768 + 13 * 768  # 4 D^2 + 8 D^2; biases 3D + D + 4D + D and two LayerNorms, 4D
    last = 6 * layer + 50257 * 768 + 2 * 768
    first = 6 * layer + 50257 * 768 + 1024 * 768
    assert memory_of("gpt2", pp=2, batch=1, isl=10, osl=2).weight_bytes == width * max(first, last)
    # Gemma-2-9B, 21 layers a stage: the last one has the table as its head, and the final norm
    layer = 3584 * (2 * 16 * 256 + 2 * 8 * 256) + 3 * 3584 * 14336 + 4 * 3584
    assert memory_of("gemma-2-9b", pp=2).weight_bytes == 2 * (21 * layer + 256000 * 3584 + 3584)


def test_weight_formats_change_the_layers_and_nothing_else():
    # embedding, head and norms stay in bf16
    outside = 2 * 128256 * 4096 + 65 * 4096
    inside = 8_030_261_248 - outside
    for name, size in (("fp8", 1.0), ("int4", 0.5 + 2 / 128), ("nvfp4", 0.5 + 1 / 16)):
        gpu = "b200-sxm" if name == "nvfp4" else "h100-sxm"
        assert memory_of("llama-3-8b", gpu=gpu, weights=name).weight_bytes == 2 * outside + size * inside


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
    # one sequence of Llama-3.1-8B: what weights, overhead, one token of activations and a row of logits leave
    left = 79.6 * GIB - 2 * 8_030_261_248 - 1.63 * GIB - 64 * ((2 * 4096 + 3 * 14336) * 2 + 128256 * 4 * 3.72)
    assert rk.max_context("llama-3.1-8b", batch=64) == int(left // (64 * 131_072))


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
