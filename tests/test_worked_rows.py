"""Rows worked by hand for mechanisms with several cases, each of which a careless change once passed."""

from __future__ import annotations

from dataclasses import replace
from math import comb

import pytest

from rooflinekit.decision.planning.demand import read_demand
from rooflinekit.estimation.estimator import resolve
from rooflinekit.model.cache import _state_bytes
from rooflinekit.model.kernels.collective import SCALED, exchange_tiers
from rooflinekit.model.kernels.moe import Experts
from rooflinekit.model.kernels.operation import Step
from rooflinekit.model.kernels.routing import Routing
from rooflinekit.model.step import changed
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.engine import LoadErrors, StepCosts
from rooflinekit.model.types.kernel import Kernel
from rooflinekit.model.types.model import GatedConvolution, GatedDeltaNet, LightningAttention, Mamba, Mamba2, Rwkv7
from rooflinekit.model.types.time import KernelTime


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
