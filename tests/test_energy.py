"""Energy of kernels and steps: bounds of power, sums, growth with work, and laws of chips without measured power."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflinekit.evidence.accuracy import kernel_accuracy
from rooflinekit.model.power import PARTS, kernel_energy, step_energy
from rooflinekit.model.roofline import time_kernel
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.hardware import System
from rooflinekit.model.types.kernel import GemmShape, Kernel
from rooflinekit.model.types.time import KernelTime
from rooflinekit.specs import load_accelerator, names
from rooflinekit.specs.locate import spec_dir

CHIPS = ("h200-sxm", "b200-sxm", "gb200", "h100-sxm", "a100-sxm-80gb", "mi300x", "rtx-4090", "l4")
SIZES = st.floats(1.0, 1e12)


def timed(seconds=1e-3, overhead=0.0, **work):
    kernel = Kernel("k", "gemm", 1, Dtype.BF16, shape=GemmShape(4096.0, 4096.0, 4096.0), **work)
    return KernelTime(seconds, 0.0, seconds, seconds, kernel, 0.0, 0.0, 0.0, overhead)


def watts(accelerator, **work):
    each = timed(**work)
    return kernel_energy(each, accelerator, accelerator.power).total / each.expected


@given(st.sampled_from(CHIPS), SIZES, SIZES, st.floats(1e-6, 1.0), st.floats(0.0, 1e-5))
def test_power_lies_between_idle_and_the_limit(chip, flops, weights, seconds, overhead):
    gpu = load_accelerator(chip).value
    drawn = watts(gpu, seconds=seconds, overhead=overhead, flops=flops, weight_bytes=weights, kv_read_bytes=flops / 7)
    assert gpu.power.idle * (1 - 1e-12) <= drawn <= gpu.power.limit


@given(st.sampled_from(CHIPS), SIZES, st.floats(1.0, 100.0))
def test_more_work_in_the_same_time_never_takes_less(chip, size, factor):
    gpu = load_accelerator(chip).value
    for work in ("flops", "weight_bytes", "kv_read_bytes", "activation_bytes", "network_bytes"):
        assert watts(gpu, **{work: size * factor}) >= watts(gpu, **{work: size}) * (1 - 1e-12)


@given(st.sampled_from(CHIPS), SIZES, SIZES)
def test_energy_adds_up_over_kernels_and_parts(chip, flops, weights):
    gpu = load_accelerator(chip).value
    one, other = timed(flops=flops), timed(weight_bytes=weights, seconds=2e-3)
    both = step_energy((one, other), gpu, gpu.power)
    apart = [kernel_energy(each, gpu, gpu.power) for each in (one, other)]
    assert both.total == pytest.approx(sum(each.total for each in apart))
    assert both.total == pytest.approx(sum(getattr(both, part) for part in PARTS))


def test_a_large_matrix_product_draws_the_limit_and_a_waiting_host_idle_power():
    gpu = load_accelerator("h200-sxm").value
    flops = 2.0 * 8192**3
    drawn = watts(gpu, flops=flops, seconds=flops / (0.7 * gpu.peak(Dtype.BF16)))
    assert drawn == pytest.approx(gpu.power.held * 700.0)
    host = replace(timed(), kernel=Kernel("host", "host", 1, Dtype.BF16))
    assert kernel_energy(host, gpu, gpu.power).total == pytest.approx(gpu.power.idle * 1e-3)


def test_bytes_cost_what_the_law_says():
    gpu = load_accelerator("h200-sxm").value
    law = gpu.power
    found = kernel_energy(timed(weight_bytes=1e9, kv_read_bytes=5e8, activation_bytes=1e6), gpu, law)
    assert found.weights == pytest.approx(1e9 * law.memory)
    assert found.cache == pytest.approx(5e8 * law.memory)
    assert found.activations == pytest.approx(1e6 * law.cache)  # stays in the last cache
    assert found.running == pytest.approx(1e-3 * law.active)


def test_every_chip_with_a_rated_power_has_a_law_and_only_measured_ones_say_so():
    own = {name for name in names("accelerator") if (p := load_accelerator(name).value.power) and p.measured}
    assert own == {"h200-sxm", "b200-sxm", "gb200"}
    for name in names("accelerator"):
        gpu = load_accelerator(name).value
        assert (gpu.power is None) == (not gpu.tdp_w)
        if gpu.power:
            assert 0.0 < gpu.power.idle < gpu.power.active < gpu.power.held * gpu.power.limit
            assert set(gpu.power.flop) == set(gpu.peaks)


def test_a_stand_in_is_wider_and_a_users_file_of_the_same_name_has_no_measured_law(tmp_path):
    own, other = (load_accelerator(name).value.power for name in ("h200-sxm", "h100-sxm"))
    assert other.run_width > own.run_width
    assert all(far > near for far, near in zip(other.widths, own.widths, strict=True))
    copy = tmp_path / "h200-sxm.yaml"
    copy.write_text((spec_dir("accelerator") / "h200-sxm.yaml").read_text())
    assert not load_accelerator(copy).value.power.measured


def test_arrays_and_numbers_give_the_same_energy(plan_of):
    plan = plan_of("mixtral-8x7b", "h200-sxm", "h200-sxm--vllm", tp=2)
    gpu = plan.system.accelerator
    sizes = np.array([1.0, 16.0, 256.0])
    many = step_energy(plan.time(Batch.decode(sizes, 1024.0)).kernels, gpu, gpu.power).total
    each = [step_energy(plan.time(Batch.decode(size, 1024.0)).kernels, gpu, gpu.power).total for size in sizes]
    assert many == pytest.approx(each, rel=1e-12)


def test_measured_power_of_kernels_is_scored_beside_their_time(tmp_path):
    gpu = load_accelerator("h200-sxm").value
    table = pd.DataFrame({"m": [4096.0, 8192.0, 16.0], "n": 8192.0, "k": 8192.0})
    kernel = [Kernel("g", "gemm", 1, Dtype.BF16, 2 * m * 8192.0**2, 8192.0**2 * 2) for m in table["m"]]
    time = [1e6 * time_kernel(each, System.of(gpu), None).expected / 0.7 for each in kernel]
    table = table.assign(op="gemm", gpu="h200-sxm", engine="vllm", dtype="bfloat16", latency_us=time)
    path = tmp_path / "gemm.csv"
    table.assign(power_w=[690.0, 690.0, 150.0], power_limit_w=700.0, samples_min=[9, 4, 1]).to_csv(path, index=False)
    found = kernel_accuracy([path])
    power = next(group for group in found.groups if group.key.get("metric") == "power_w")
    assert (power.n, power.answered) == (3, 2)
    assert power.median_ape < 0.02
    assert {"gemm", "gemm power_w"} == set(found.summary)
    assert sum("readings" in reason for reason in found.unanswered) == 1
