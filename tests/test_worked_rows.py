"""Rows worked by hand for mechanisms with several cases, each of which a careless change once passed."""

from __future__ import annotations

from dataclasses import replace
from math import comb, exp, expm1

import pytest

from rooflinekit.decision.planning.demand import read_demand
from rooflinekit.decision.planning.fleet import _spans
from rooflinekit.estimation.estimator import resolve
from rooflinekit.load.answer import Load, play_load, scene_for
from rooflinekit.load.lengths import Fixed
from rooflinekit.load.scene import Scheduler, _encoded
from rooflinekit.load.table import constant_table
from rooflinekit.model.cache import _state_bytes
from rooflinekit.model.footprint import _step_buffer
from rooflinekit.model.kernels.attention import ChosenCore
from rooflinekit.model.kernels.collective import SCALED, exchange_tiers
from rooflinekit.model.kernels.gemm import BatchedLinear
from rooflinekit.model.kernels.moe import Experts
from rooflinekit.model.kernels.operation import Step
from rooflinekit.model.kernels.routing import Routing
from rooflinekit.model.serving.flight import InFlight, _steps_of_prompts, _whole, any_of, rotation, side_by_side, slots
from rooflinekit.model.step import changed
from rooflinekit.model.timing.calibrated import Regimes
from rooflinekit.model.timing.forms import ExchangeTime
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.deployment import Deployment, EngineSettings
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.engine import LoadErrors, StepCosts
from rooflinekit.model.types.hardware import System
from rooflinekit.model.types.kernel import ExchangeShape, GemmShape, Kernel
from rooflinekit.model.types.model import GatedConvolution, GatedDeltaNet, LightningAttention, Mamba, Mamba2, Rwkv7
from rooflinekit.model.types.time import KernelTime
from rooflinekit.specs import load_accelerator


@pytest.mark.parametrize(("dtype", "block", "scale"), [
    (Dtype.FP8_BLOCK, 128 * 128, 4), (Dtype.MXFP4, 32, 1), (Dtype.NVFP4, 16, 1), (Dtype.INT4, 128, 4 / 2),
])  # fmt: skip
def test_a_block_of_elements_has_one_scale(dtype, block, scale):
    element = 1.0 if dtype is Dtype.FP8_BLOCK else 0.5
    assert dtype.bytes * block == pytest.approx(element * block + scale, rel=1e-12)


def test_tokens_travel_with_a_scale_of_four_bytes_for_128_elements():
    assert SCALED * 128 == 128 + 4


def test_a_token_crosses_to_another_host_once():
    """256 experts on 16 ranks of 2 hosts, 8 a token. A rank of 16 experts is missed by comb(240, 8)/comb(256, 8) of
    tokens, a host of 128 by comb(128, 8)/comb(256, 8). 7 of the 15 other ranks are on each host; links carry copies on
    both hosts, a network card one copy to the other host."""
    rank = 1 - comb(240, 8) / comb(256, 8)
    host = 1 - comb(128, 8) / comb(256, 8)
    found = exchange_tiers(256, 8, 16, 2, each=False)
    assert found.links == pytest.approx(rank * 15 * 14 / 15, rel=1e-12)
    assert found.nic == pytest.approx(host, rel=1e-12)
    assert exchange_tiers(256, 8, 32, 4, each=False).nic == pytest.approx(
        3 * (1 - comb(192, 8) / comb(256, 8)), rel=1e-12
    )


@pytest.mark.parametrize(("matrices", "each"), [(3, (2 * 0.53125 + 2.0) / 3), (2, (0.53125 + 2.0) / 2)])
def test_down_projections_have_a_format_of_their_own(matrices, each):
    """MXFP4 takes 0.53125 bytes an element, BF16 two: gate and up in one, down in the other. One expert of 8 x 4."""
    op = Experts(Routing(1, 1), 8, 4, matrices, 0, Dtype.MXFP4, Dtype.BF16, down=Dtype.BF16)
    assert op.element == pytest.approx(each, rel=1e-12)
    assert sum(weights.bytes for weights in op.weights) == pytest.approx(matrices * 8 * 4 * each, rel=1e-12)
    (kernel,) = op.kernels(Step(Batch.decode(1.0, 8.0), Dtype.BF16, Dtype.BF16), 1)
    assert kernel.weight_bytes == pytest.approx(matrices * 8 * 4 * each, rel=1e-12)
    plain = replace(op, down=None)
    assert sum(weights.bytes for weights in plain.weights) == pytest.approx(matrices * 8 * 4 * 0.53125, rel=1e-12)


@pytest.mark.parametrize(("gpu", "calibration", "fitted"), [
    ("h100-sxm", None, True), ("h100-sxm", "none", False), ("cpu-xeon-8480-2s", None, False),
])  # fmt: skip
def test_errors_under_load_are_those_of_a_fit_to_gpus(gpu, calibration, fitted):
    plan = resolve("llama-3-8b", gpu, Deployment(), calibration).plan
    assert plan.load_errors == (plan.engine.loaded if fitted else LoadErrors())
    assert plan.engine.loaded != LoadErrors()


@pytest.mark.parametrize(("model", "taken", "hidden"), [("gemma-4-e2b", 1, 1536), ("gemma-3n-e2b", 3, 2048)])
def test_a_tokens_own_row_joins_all_streams_but_one(plan_of, model, taken, hidden):
    """The projected row and each stream are read, each stream is written: (1 + 2·taken)·D elements a token."""
    step = plan_of(model).kernels(Batch.decode(4.0, 100.0))
    (kernel,) = (kernel for kernel in step if kernel.name == "token_norm")
    assert kernel.activation_bytes == 4 * (1 + 2 * taken) * hidden * 2


def test_neighbours_hide_a_share_of_a_launch():
    """Of a launch of 5 us in 20 us, 0.4 are hidden: 18 us, of which 3 are launch; a collective comes 7 us later."""
    kernel = Kernel("norm", "elementwise", 1, Dtype.BF16)
    times = {"expected": 20e-6, "bound": 1e-6, "low": 15e-6, "high": 30e-6}
    timed = KernelTime(kernel=kernel, **times, compute=0.0, memory=15e-6, network=0.0, overhead=5e-6)
    costs = StepCosts(hidden=0.4, collective=7e-6)
    found = changed(timed, costs)
    assert (found.expected, found.overhead) == pytest.approx((18e-6, 3e-6))
    assert (found.low, found.high) == pytest.approx((13e-6, 28e-6))
    later = changed(replace(timed, kernel=replace(kernel, gpus=2, count=3)), costs)
    assert (later.expected, later.overhead) == pytest.approx((39e-6, 24e-6))


@pytest.mark.parametrize(("mixer", "tp", "held"), [
    # a state of 4 B an element, and inputs of the convolution before the last, 2 B each; channels x (taps - 1)
    (GatedDeltaNet(16, 32, 128, 128, 4), 1, 32 * 128 * 128 * 4 + (2 * 16 * 128 + 32 * 128) * 3 * 2),
    (GatedDeltaNet(16, 32, 128, 128, 4), 4, (32 * 128 * 128 * 4 + (2 * 16 * 128 + 32 * 128) * 3 * 2) / 4),
    (LightningAttention(64, 128), 4, 64 * 128 * 128 * 4 / 4),
    # 32 heads of 64; the last input of two blocks of 2,048 is whole on every rank
    (Rwkv7(32, 64, 64, 64, 128, 32), 2, 32 * 64 * 64 * 4 / 2 + 2 * 2048 * 2),
    (GatedConvolution(2048, 3), 2, 2048 / 2 * 2 * 2),
    (Mamba(8192, 16, 4, 256), 2, 8192 * 16 * 4 / 2 + 8192 / 2 * 3 * 2),
    # 128 heads of 64 are 8,192 channels; 8 groups on 16 ranks: each rank has one, with B and C of 128
    (Mamba2(128, 64, 8, 128, 4), 16, 8192 * 128 * 4 / 16 + (8192 / 16 + 2 * 128) * 3 * 2),
    (Mamba2(128, 64, 8, 128, 4), 2, 8192 * 128 * 4 / 2 + (8192 / 2 + 2 * 4 * 128) * 3 * 2),
], ids=lambda value: type(value).__name__ if hasattr(value, "kind") else str(value))  # fmt: skip
def test_a_recurrent_state_by_hand(mixer, tp, held):
    assert _state_bytes(mixer, tp) == pytest.approx(held, rel=1e-12)


def test_prompts_of_sessions_end_at_the_context_that_is_asked_for():
    """First prompts of 100,000 tokens are cut to a context of 8,192, and whole where nobody says one."""
    asked = {"rate": 1.0, "sessions": "chat:turns=3,first=100000"}
    assert read_demand(asked | {"max_context": 8192}).isl.quantile(1.0) <= 8192
    assert 100_000 <= read_demand(asked).isl.quantile(1.0) <= 131_072


def test_the_chance_of_any_loses_no_digits_where_few_come():
    """1 - exp(-x), of which the difference keeps four digits of sixteen at x = 1e-12, and the series all."""
    for count in (1e-12, 9.9e-4, 1e-3, 0.7):
        assert any_of(count) == pytest.approx(-expm1(-count), rel=1e-9)


def test_no_end_of_an_interval_falls_where_the_time_does_not_grow():
    """Edges at 16 and 256 rows lie between regimes around 4, 64 and 1024. Weights are streamed up to 64 rows, and from
    there to 1024 the time grows with the power 0.6 at the least: by 2**2.4, so that a factor of 6 becomes 1.14 at 64,
    less than its own 1.2. At 4 rows the lower end is no lower than at 64."""
    regimes = Regimes("m", (16.0, 256.0), (1.1, 1.2, 6.0))

    def ends(rows):
        return regimes.factors(Kernel("w", "gemm", 1, Dtype.BF16, shape=GemmShape(rows, 8, 8)))

    assert ends(4.0) == pytest.approx((1.1, 1.2))
    assert ends(64.0) == pytest.approx((1.2, 1.2))
    assert ends(1024.0) == pytest.approx((6.0, 6.0))
    assert Regimes("m", (16.0, 256.0), (1.1, 1.2, 9.0)).factors(
        Kernel("w", "gemm", 1, Dtype.BF16, shape=GemmShape(64.0, 8, 8))
    ) == pytest.approx((1.2, 9.0 / 2**2.4))  # fmt: skip


def test_an_interval_is_that_of_its_first_regime_down_to_one_row():
    """Edges at 2 and 8 lie between regimes around 1, 4 and 16: one byte is the middle of the first."""
    regimes = Regimes("traffic", (2.0, 8.0), (1.4, 1.2, 1.1))
    assert regimes.factors(Kernel("w", "elementwise", 1, Dtype.BF16, activation_bytes=1.0)) == (1.4, 1.4)


def test_a_prompt_as_long_as_the_largest_graph_replays_it():
    plan = resolve("llama-3-8b", "h100-sxm", Deployment(), None).plan
    most = plan.graph_tokens
    assert most == 512.0
    decoding = Batch.decode(8.0, 100.0)
    assert [plan.iteration(Batch.prefill(1.0, tokens)).graphed for tokens in (most, most + 1.0)] == [1.0, 0.0]
    mixed = [plan.iteration(Batch.prefill(1.0, tokens) | decoding).graphed for tokens in (most - 7.0, most - 6.0)]
    assert mixed == [1.0, 0.0]  # the sequence of the prompt is one of the eight that decode: 7 beside its own tokens


def test_the_last_streams_are_weighed_together(plan_of):
    """Four streams of D: each of four weights is a product with all 4·D numbers, and the sum is one more pass, in
    multiplications and additions; 4·4·D weights, a bias of each and a scale."""
    plan = plan_of("deepseek-v4-flash", gpu="h200-sxm", tp=8)
    hidden = plan.model.hidden
    (head,) = (kernel for kernel in plan.kernels(Batch.decode(1.0, 100.0)) if kernel.name == "hyper_head")
    assert head.flops == 2.0 * 4 * hidden * 5


@pytest.mark.parametrize("chosen", [False, True])
def test_pairs_of_a_rank_are_all_that_come_or_those_of_its_experts(chosen):
    """One of two ranks: DeepEP sends it the pairs of its own experts, an all-gather those of both."""
    op = Experts(Routing(8, 2, 2), 8, 4, 3, 0, Dtype.BF16, Dtype.BF16, chosen=chosen)
    (kernel,) = op.kernels(Step(Batch.decode(64.0, 8.0), Dtype.BF16, Dtype.BF16), 1)
    assert kernel.shape.slots == (kernel.shape.routed if chosen else 64 * 2)
    assert kernel.shape.routed < 64 * 2


def test_absorbed_products_are_those_of_the_tokens_that_decode():
    """8 sequences decode beside a prompt of 100 tokens, which takes the other form of attention."""
    op = BatchedLinear("absorb", 16, 512, 128, Dtype.BF16, Dtype.BF16)
    both = Step(Batch.prefill(1.0, 100.0) | Batch.decode(8.0, 50.0), Dtype.BF16, Dtype.BF16)
    assert op.kernels(both, 1)[0].flops == 2 * 8 * 16 * 512 * 128
    assert replace(op, prompts=True).kernels(both, 1)[0].flops == 2 * 108 * 16 * 512 * 128


@pytest.mark.parametrize(("megabytes", "more"), [(1.0, 2e-6), (4.0, 4e-6)])
def test_an_exchange_pays_for_its_protocol_by_the_root_of_its_bytes(megabytes, more):
    """2 µs at 1 MB, and the root of four times as much at 4 MB."""
    system, form = System.of(load_accelerator("h100-sxm").value), ExchangeTime()
    kernel = Kernel(
        "dispatch", "all_to_all", 1, Dtype.BF16, network_bytes=megabytes * 1e6, gpus=8, shape=ExchangeShape(64.0, 256.0)
    )
    without = replace(form, ramp=0.0).time(kernel, system)
    assert form.time(kernel, system).total - without.total == pytest.approx(more, rel=1e-9)


def test_compressed_keys_are_read_once_where_each_stands_for_four_tokens():
    """Two sequences of 4,000 tokens keep 1,000 keys each, of 512 elements in two bytes."""
    op = ChosenCore(heads=8, kv_heads=1, head_dim=512, cached=512, layer="compressed", ratio=4)
    step = Step(Batch.decode(2.0, 4000.0), Dtype.BF16, Dtype.BF16)
    kernel = op.launch(step, step.batch.decoding, 1)
    assert kernel.shape.held == pytest.approx(2 * 1000 * 512 * 2, rel=1e-3)


def test_a_token_is_mixed_with_the_one_before_it_in_six_ways(plan_of):
    """RWKV-7: a weight for each element of each mixture, and three FLOP."""
    (kernel,) = (each for each in plan_of("rwkv7-1.5b").kernels(Batch.decode(1.0, 100.0)) if each.name == "token_shift")
    assert (kernel.flops, kernel.weight_bytes) == (18 * 2048, 6 * 2048 * 2)


@pytest.mark.parametrize(("arriving", "ratio"), [(0.01, 3.0), (0.4, 2.0), (2.0, 0.5)])
def test_steps_of_prompts_are_those_that_their_own_length_makes(arriving, ratio):
    """x prompts a decode step are followed by n = (1 - exp(-x))·exp(r·x) steps of prompts, in which r·n·x more come."""
    steps = -expm1(-arriving) * exp(ratio * arriving)
    assert _steps_of_prompts(arriving * (1.0 + ratio * steps), ratio) == pytest.approx(steps, rel=1e-3)


def test_prompts_that_are_not_cut_take_whole_steps():
    """Of 10 tokens a step has room for two prompts of 4; a prompt of 25 in steps of 10 takes three, or 1.2 of 2.5."""
    costs = replace(resolve("llama-3-8b", "h100-sxm", Deployment(), None).plan.costs, splits=False)
    assert _whole(costs, 10.0, 4.0, 0.4, 0.9) == (0.5, 1.0)
    assert _whole(costs, 10.0, 25.0, 2.5, 3.0) == (2.5, 3.0)
    predictor = resolve("llama-3-8b", "h100-sxm", Deployment(engine="sglang"), None).predictor
    load = InFlight(8.0, 2.5 * predictor.plan.token_budget, 100.0)
    assert rotation(predictor, load).fitting == pytest.approx(3 / 2.5)


def test_one_request_that_fits_is_one_that_runs():
    """A cache of 458,000 tokens holds one request of 300,000, and none of 500,000."""
    predictor = resolve("llama-3-8b", "h100-sxm", Deployment(), None).predictor
    assert [float(slots(predictor, isl, 1000.0)) for isl in (300_000.0, 500_000.0)] == [1.0, 0.0]


def test_prompts_that_take_longer_take_so_much_each():
    plain = constant_table(1.0).arrays[0]
    assert len(plain.encoded) == 0
    assert _encoded(plain, 0.5) == [0.5 * n for n in range(len(plain.sequences))]


@pytest.mark.parametrize("told", ["on", "off"])
def test_prompts_are_kept_where_that_is_told(told):
    plan = Deployment(settings=EngineSettings(prefix_caching=told))
    asked = Load(Fixed(100), Fixed(10), users=1)
    scene = scene_for(resolve("llama-3-8b", "h100-sxm", plan, None).predictor, asked, Scheduler())
    assert scene.limits.prefix_caching is (told == "on")


def test_an_end_of_a_mean_lies_between_those_of_the_steps_that_it_is_made_of():
    """Of TPOT, which steps of decodes and of prompts make up, without the front end."""
    found = play_load(resolve("llama-3-8b", "h100-sxm", Deployment(), None).predictor, Load(
        Fixed(4000), Fixed(50), rate=4.0, requests=60))  # fmt: skip
    assert found.tokens.prompts > 0.2 * found.tpot
    for place, end in enumerate(("low", "high")):
        ends = sorted(getattr(step, end) / step.expected for step in (found.decode, found.prompt))
        assert ends[0] <= _spans(found)["tpot"][place] <= ends[1]


def test_the_fullest_of_eight_replicas_has_half_a_chunk_more_than_an_eighth():
    """In turn they get whole chunks: of any number equally likely, the fullest has 7/16 more than the mean."""
    assert side_by_side(1000.0, 8) == pytest.approx(1000.0 / (1000.0 / 8 + 7 / 16), rel=1e-9)


def test_attention_scores_of_llama_cpp_are_the_widest_part_of_a_step():
    """Without flash attention, a token has 8,192 scores of each of 32 heads, a mask in fp32 and in fp16, and thrice
    its 4,096 elements, each in four bytes; on one accelerator no more."""
    plan = resolve("llama-3-8b", "h100-sxm", Deployment(engine="llama.cpp@b4000"), None).plan
    assert plan.engine.memory.kept_scores
    assert _step_buffer(plan, 512.0, 128_256) == 4 * 512 * (8192 * 33.5 + 3 * 4096)
