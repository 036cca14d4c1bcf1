"""Power caps: the cube law, what it changes and what not, and what is refused."""

from itertools import pairwise

import pytest

import rooflinekit as rk
from rooflinekit.model.types.errors import WorkloadError


def test_half_the_power_is_four_fifths_of_the_clock():
    full = rk.estimate("llama-3-8b", calibration="none", batch=8, isl=4096)
    half = rk.estimate("llama-3-8b", calibration="none", batch=8, isl=4096, power_cap=350)
    # the prefill is bound by arithmetic: 0.5^(1/3) = 0.794
    gemm = [next(k for k in e.prefill.kernels if k.name == "gate_up_proj").bound_us for e in (full, half)]
    assert gemm[0] / gemm[1] == pytest.approx(0.7937, rel=1e-3)
    assert half.tpot_ms == pytest.approx(full.tpot_ms, rel=1e-5)  # decode streams weights and cache, but for sampling
    assert any("350 of 700 W" in warning for warning in half.warnings)
    assert any(entry.quantity.startswith("power cap") for entry in half.provenance)


def test_the_rated_power_is_no_cap():
    assert rk.estimate("llama-3-8b", power_cap=700).ttft_ms == pytest.approx(rk.estimate("llama-3-8b").ttft_ms)


def test_less_power_is_never_faster():
    times = [rk.estimate("llama-3-8b", power_cap=watts, isl=2048).ttft_ms for watts in (300, 400, 500, 600, 700)]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("cap", [0, -1, 100, 900, "much", True, float("nan")])
def test_senseless_caps_are_refused(cap):
    with pytest.raises(WorkloadError, match="power_cap"):
        rk.estimate("llama-3-8b", power_cap=cap)


@pytest.mark.parametrize("option", ["power_cap", "clock"])
@pytest.mark.parametrize("batch", [1, 64])
def test_lower_caps_and_clocks_never_draw_more(option, batch):
    values = {"power_cap": (300, 400, 500, 600, 700), "clock": (800, 1100, 1400, 1700, 1980)}[option]
    found = [rk.estimate("llama-3-8b", batch=batch, isl=2048, **{option: value}) for value in values]
    for low, high in pairwise(found):
        assert low.energy.power_w_per_gpu <= high.energy.power_w_per_gpu * (1 + 1e-12)
        assert low.energy.prefill_w <= high.energy.prefill_w * (1 + 1e-12)
        assert low.energy.decode_w <= high.energy.decode_w * (1 + 1e-12)
        assert low.ttft_ms >= high.ttft_ms
    if option == "power_cap":
        assert all(each.energy.decode_w <= value for each, value in zip(found, values, strict=True))


def test_a_memory_bound_step_saves_energy_at_a_lower_clock():
    full, slow = (rk.estimate("llama-3-8b", batch=8, clock=clock) for clock in (1980, 1300))
    assert slow.tpot_ms == pytest.approx(full.tpot_ms, rel=0.05)
    assert slow.energy.decode_j_per_token < 0.85 * full.energy.decode_j_per_token


@pytest.mark.parametrize("clock", [0, -1, 100, 3000, "fast", float("nan")])
def test_senseless_clocks_are_refused(clock):
    with pytest.raises(WorkloadError, match="clock"):
        rk.estimate("llama-3-8b", clock=clock)


@pytest.mark.parametrize("gpu", ["t4", "v100-sxm2-32gb"])
def test_a_board_without_bf16_draws_power_too(gpu):
    energy = rk.estimate("opt-125m", gpu, batch=4, isl=64, osl=8).to_dict()["energy"]
    assert energy["idle_w"] < energy["power_w_per_gpu"] < energy["limit_w"]


def test_levers_offer_the_cap_with_the_fewest_joules():
    found = rk.levers("llama-3-8b", batch=32, by="energy", gpus="l40s")
    cap = next(move for move in found.moves if move.move.startswith("power cap"))
    assert cap.ratio["energy"] < 1.0
    assert cap.ratio["ttft"] > 1.0
    ranked = (move for move in found.moves if move.possible and not move.reason and move.evidence == "measured")
    own = [move.ratio["energy"] for move in ranked]
    assert own == sorted(own)
