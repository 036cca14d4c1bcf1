"""One kernel under a roofline and under a calibration made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rooflinekit.estimation.results import KernelResult, StepResult, regime
from rooflinekit.model.roofline import roofline_bound, time_kernel, time_step
from rooflinekit.model.timing.calibrated import Calibration, FamilyFit, Regimes
from rooflinekit.model.timing.forms import CollectiveTime, PlainTime
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.errors import DtypeError
from rooflinekit.model.types.hardware import Accelerator, System
from rooflinekit.model.types.kernel import CollectiveShape, Kernel

# 100 TFLOP/s, 1 TB/s, 10 MB of cache, eight joined at 100 GB/s, beyond that 25 GB/s
CHIP = Accelerator(
    "chip", "Chip", "", "", {Dtype.BF16: 100e12, Dtype.FP8: 200e12}, 16e9, 1e12, 10e6, 100, 100e9, 8, 25e9
)
SYSTEM = System.of(CHIP)


def fit(width=1.5, memory=0.8, form=None):
    # 5 us a launch, half of the peak, 80 % of the bandwidth
    form = form or PlainTime(launch=5e-6, compute=0.5, memory=memory)
    return FamilyFit(form, {}, (), None, Regimes("", (), (width,)), 1, 0.0, "by hand")


def calibration(widening=None, **families):
    # half of the link, 5 us a launch, 2 us a hop
    collective = fit(form=CollectiveTime(launch=5e-6, hop=2e-6, network=0.5, ramp=0.0))
    families = {"gemm": fit(), "collective": collective} | families
    return Calibration("hand", "0", "chip", "vllm", families, "by hand", widening=widening or {})


def gemm(**work):
    return Kernel("gemm", "gemm", work.pop("count", 1), work.pop("dtype", Dtype.BF16), **work)


def test_the_bound_is_the_larger_roof():
    # 2 TFLOP / 100 TFLOP/s = 20 ms; 5 GB / 1 TB/s = 5 ms
    assert roofline_bound(gemm(flops=2e12, weight_bytes=5e9), SYSTEM) == (0.02, 0.005, 0.0)
    assert time_kernel(gemm(flops=2e12, weight_bytes=5e9, count=3), SYSTEM, None).bound == pytest.approx(0.06)
    assert time_kernel(gemm(flops=2e11, weight_bytes=5e9), SYSTEM, None).bound == pytest.approx(0.005)
    # the two meet at the ridge: 100 FLOP/B
    compute, memory, _ = roofline_bound(gemm(flops=100e9, weight_bytes=1e9), SYSTEM)
    assert compute == memory
    assert CHIP.ridge(Dtype.BF16) == 100


def test_every_class_of_bytes_crosses_the_memory_once():
    kernel = gemm(weight_bytes=1e9, kv_read_bytes=2e9, kv_write_bytes=3e9, activation_bytes=4e9)
    assert kernel.bytes == 10e9
    # activations count beyond the 10 MB that may stay on the chip
    assert roofline_bound(kernel, SYSTEM)[1] == pytest.approx((6e9 + 4e9 - 10e6) / 1e12)
    assert roofline_bound(gemm(weight_bytes=1e9, activation_bytes=10e6), SYSTEM)[1] == pytest.approx(1e-3)


def test_a_narrow_format_has_its_own_peak():
    assert roofline_bound(gemm(flops=2e12, dtype=Dtype.FP8), SYSTEM)[0] == pytest.approx(0.01)
    assert roofline_bound(gemm(flops=2e12, dtype=Dtype.FP8_BLOCK), SYSTEM)[0] == pytest.approx(0.01)
    with pytest.raises(DtypeError, match="chip has no int8 arithmetic; it has: bf16, fp8"):
        roofline_bound(gemm(flops=1.0, dtype=Dtype.INT8), SYSTEM)


@pytest.mark.parametrize(("leaving", "seconds"), [
    (0.0, 1e9 / 100e9),  # inside one domain: the links alone
    (1e8, 0.9e9 / 100e9),  # a tenth leaves at 25 GB/s in 4 ms, while the links are busy for 9
    (5e8, 5e8 / 25e9),  # half leaves: 20 ms
])  # fmt: skip
def test_a_collective_takes_the_slower_of_its_two_tiers(leaving, seconds):
    kernel = Kernel("k", "collective", 1, Dtype.BF16, network_bytes=1e9, nic_bytes=leaving, gpus=16)
    assert roofline_bound(kernel, SYSTEM)[2] == pytest.approx(seconds)


def test_a_kernel_by_hand_under_a_calibration():
    kernel = gemm(flops=1e12, weight_bytes=8e9, activation_bytes=1e6, count=4)
    timed = time_kernel(kernel, SYSTEM, calibration())
    # per launch: compute 10 ms / 0.5 = 20 ms; memory (8 GB + 1 MB) / 1 TB/s / 0.8 = 10.00125 ms; launch 5 us
    assert timed.compute == pytest.approx(4 * 0.02)
    assert timed.memory == pytest.approx(4 * 0.01000125)
    assert timed.overhead == pytest.approx(4 * 5e-6)
    assert timed.expected == pytest.approx(4 * (0.02 + 5e-6))
    assert timed.bound == pytest.approx(4 * 0.01)
    assert (timed.low, timed.high) == pytest.approx((timed.expected / 1.5, timed.expected * 1.5))


def test_a_collective_by_hand_under_a_calibration():
    kernel = Kernel(
        "all_reduce", "collective", 2, Dtype.BF16, network_bytes=1e6, activation_bytes=1e6, gpus=4,
        shape=CollectiveShape(1e6),
    )  # fmt: skip
    timed = time_kernel(kernel, SYSTEM, calibration())
    # 1 MB / 100 GB/s / 0.5 = 20 us, and 0.3 / 3 of them for the own piece; 5 us launch and 3 hops of 2 us
    assert timed.network == pytest.approx(2 * 22e-6)
    assert timed.overhead == pytest.approx(2 * 11e-6)
    assert timed.expected == pytest.approx(2 * 33e-6)
    assert regime(timed) == "network"


@pytest.mark.parametrize(("kernel", "expected"), [
    (gemm(flops=1e12, weight_bytes=1e6), "compute"),
    (gemm(flops=1e9, weight_bytes=1e9), "memory"),
    (
        Kernel(
            "all_reduce", "collective", 1, Dtype.BF16, activation_bytes=1e9, network_bytes=1e9, gpus=4,
            shape=CollectiveShape(1e9),
        ),
        "network",
    ),
    (gemm(flops=1e6, weight_bytes=1e5), "overhead"),  # 0.125 us of memory under a launch of 5 us
])  # fmt: skip
def test_each_of_the_four_regimes_is_reached(kernel, expected):
    timed = time_kernel(kernel, SYSTEM, calibration())
    assert regime(timed) == expected
    assert KernelResult.of(timed).bound == expected
    assert StepResult.of(time_step([kernel], SYSTEM, calibration()), CHIP).bound == expected


def test_without_a_calibration_there_is_no_overhead_and_no_interval():
    timed = time_kernel(gemm(flops=1e6, weight_bytes=1e5), SYSTEM, None)
    assert timed.expected == timed.bound == timed.low == timed.high
    assert timed.overhead == 0
    assert regime(timed) == "memory"


def test_the_interval_is_wider_on_other_hardware_and_never_crosses_the_bound():
    kernel = gemm(flops=1e12, weight_bytes=8e9)
    home, away = (time_kernel(kernel, SYSTEM, calibration(widening=w)) for w in ({}, {"gemm": 2.0}))
    assert home.expected == away.expected
    # the factor 1.5 at home, twice as wide
    assert away.low == pytest.approx(max(away.expected / 3.0, away.bound))
    assert away.high == pytest.approx(3.0 * away.expected)
    low = time_kernel(kernel, SYSTEM, calibration(gemm=fit(width=100.0))).low
    assert low == time_kernel(kernel, SYSTEM, None).bound


def test_another_format_stands_in_with_a_wider_interval():
    chosen = calibration(**{"gemm/bf16": fit()})
    chosen = replace(chosen, defaults=frozenset({"gemm"}))
    own, borrowed = (time_kernel(gemm(weight_bytes=1e9, dtype=d), SYSTEM, chosen) for d in (Dtype.BF16, Dtype.FP8))
    assert (chosen.measured(own.kernel), chosen.measured(borrowed.kernel)) == (True, False)
    assert own.high == pytest.approx(1.5 * own.expected)
    assert borrowed.high == pytest.approx(1.5**2 * borrowed.expected)


def test_no_calibration_beats_the_datasheet():
    # A share of 1.05 is a legal entry of a calibration file; 8 GB would take 7.6 ms where the datasheet says 8.
    timed = time_kernel(gemm(weight_bytes=8e9), SYSTEM, calibration(gemm=fit(memory=1.05)))
    assert timed.expected >= timed.bound


def test_a_family_of_one_format_goes_before_the_family():
    chosen = calibration(**{"gemm/fp8": fit(memory=0.4)})
    wide, narrow = (time_kernel(gemm(weight_bytes=1e9, dtype=d), SYSTEM, chosen) for d in (Dtype.BF16, Dtype.FP8))
    assert narrow.memory == pytest.approx(2 * wide.memory)


def test_a_step_adds_its_kernels_up():
    kernels = [gemm(flops=1e12, weight_bytes=1e6), gemm(flops=1e9, weight_bytes=1e9, count=2)]
    step = time_step(kernels, SYSTEM, calibration())
    alone = [time_kernel(kernel, SYSTEM, calibration()) for kernel in kernels]
    for part in ("expected", "bound", "low", "high"):
        assert getattr(step, part) == pytest.approx(sum(getattr(timed, part) for timed in alone))
    result = StepResult.of(step, CHIP)
    # 1.002 TFLOP at 100 TFLOP/s, and 2.001 GB at 1 TB/s, of the time
    assert result.mfu == pytest.approx(1.002e12 / 100e12 / step.expected)
    assert result.mbu == pytest.approx(2.001e9 / 1e12 / step.expected)
    assert sum(result.shares.values()) == pytest.approx(1.0)
    assert result.flops == 1.002e12


def test_a_kernel_without_traffic_has_no_intensity():
    timed = time_kernel(gemm(flops=1e9), SYSTEM, None)
    assert KernelResult.of(timed).intensity is None


def test_the_shipped_calibration_reaches_all_four_regimes(plan_of):
    plan = plan_of("llama-3-70b", calibration="h100-sxm--vllm", tp=8)
    seen = {regime(t) for b in (Batch.prefill(8.0, 4096.0), Batch.decode(32.0, 4096.0)) for t in plan.time(b).kernels}
    assert seen == {"compute", "memory", "network", "overhead"}
