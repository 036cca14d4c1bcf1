"""What a timing says about its samples, and which shapes are chosen."""

import math
import time
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; `make test` installs it")

from rooflinekit.validate import device, timing  # noqa: E402
from rooflinekit.validate.attention_kernels import Heads  # noqa: E402
from rooflinekit.validate.case import TimedWork, normal  # noqa: E402
from rooflinekit.validate.device import Device, open_device  # noqa: E402
from rooflinekit.validate.plan import EXTENTS, CeilingRates, Extent, kernel_cases, plan_shapes, stratified  # noqa: E402
from rooflinekit.validate.timing import summary, time_work  # noqa: E402

CPU = Device(torch.device("cpu"), "test", 1, 2**34, 2**20, {})
RATES = CeilingRates(100e9, 20e9)


def test_the_median_is_not_moved_by_outliers_and_they_are_counted():
    row = summary(tuple([1e-5] * 4 + [1.1e-5] * 4 + [5e-3]))
    assert row["latency_us"] == pytest.approx(11.0)
    assert row["outliers"] == 1
    assert row["p10_us"] <= row["latency_us"] <= row["p90_us"]
    assert row["repeats"] == len(row["samples_us"]) == 9


def test_a_sure_median_needs_no_more_passes():
    """Samples of one value are sure after eight; those that scatter by half go on until the passes are used up."""
    scatter = iter(np.random.default_rng(0).uniform(0.5, 1.5, 1000))
    assert len(timing._sample(lambda: 1.0, 100.0)) == 8
    assert len(timing._sample(lambda: next(scatter), 100.0)) == 200


def test_the_interval_of_the_median_holds_it_in_nineteen_of_twenty_sets():
    rng, inside = np.random.default_rng(1), 0
    for _ in range(400):
        samples = rng.lognormal(0.0, 0.1, 25)
        ordered, reach = np.sort(samples), math.ceil(0.98 * 5)
        assert timing.unsure(samples) == pytest.approx(
            (ordered[12 + reach] - ordered[12 - reach]) / 2.0 / np.median(samples)
        )
        inside += ordered[12 - reach] <= 1.0 <= ordered[12 + reach]
    assert 0.93 < inside / 400 < 0.99


class Library:
    """NVML of a GPU at its power limit: readings lag at 690 W, and 1400 J are spent in two seconds."""

    seconds = 0.0

    def __getattr__(self, name):
        values = {
            "nvmlDeviceGetPowerUsage": lambda: 690_000, "nvmlDeviceGetEnforcedPowerLimit": lambda: 700_000,
            "nvmlDeviceGetClockInfo": lambda: 1755, "nvmlDeviceGetCurrentClocksThrottleReasons": lambda: 0x4 | 0x1,
            "nvmlDeviceGetTotalEnergyConsumption": lambda: round(700_000 * self.seconds),
        }  # fmt: skip

        def read(handle, *rest):
            if name not in values:
                return 3  # not supported
            rest[-1]._obj.value = values[name]()
            return 0

        return read


def test_a_board_at_its_power_limit_is_marked(monkeypatch):
    nvml = Library()
    monkeypatch.setattr(device.time, "perf_counter", lambda: nvml.seconds)
    with replace(CPU, board=partial(device.readings, nvml, None)).watched() as columns:
        nvml.seconds = 2.0
    assert columns["power_w"] == 700.0  # by its energy, not by readings that lag behind
    assert columns["power_limit_w"] == 700.0
    assert columns["sm_mhz"] == 1755
    assert columns["throttled"] == ["power"]
    assert columns["readings"] >= 1
    assert "temperature_c" not in columns  # the driver has none


def test_without_a_board_rows_have_no_such_columns():
    assert device.open_board("GPU-none") is None
    with CPU.watched() as columns:
        assert columns == {}


def test_a_sustained_pass_makes_one_pass_at_least():
    """A machine that is held up between two looks at its clock has not measured nothing."""
    calls = []
    row = timing.sustained(timing.Timing((1e-3,), "eager", again=lambda: calls.append(1)), CPU, 0.0)
    assert len(calls) == 1
    assert row["sustained_us"] > 0.0


def test_a_sustained_pass_is_the_time_of_one_call_of_many():
    calls = []
    again = lambda: (calls.append(1), time.sleep(0.002))  # noqa: E731
    row = timing.sustained(timing.Timing((1e-3,), "eager", again=again, calls=2), CPU, 0.05)
    assert row["sustained_us"] * 2 * len(calls) >= 50_000
    assert row["sustained_us"] >= 1000.0


def test_one_sample_has_no_spread():
    row = summary((2e-6,))
    assert row["p10_us"] == row["latency_us"] == row["p90_us"] == 2.0


def test_every_call_of_a_pass_gets_cold_inputs_of_its_own():
    """A loop over one weight would find it in a cache, as no serving step does."""
    seen = []
    work = TimedWork(lambda x, w: seen.append(w.data_ptr()) or x @ w, (normal(4, 4, dtype="fp32", device=CPU.torch),),
                lambda: (normal(4, 4, dtype="fp32", device=CPU.torch),))  # fmt: skip
    found = time_work(work, CPU, 0.0)
    calls = len(set(seen))
    assert calls > 1
    assert len(set(seen[2 : 2 + calls])) == calls  # two calls look at the time, then passes over all inputs
    assert seen[2 : 2 + calls] == seen[2 + calls : 2 + 2 * calls]
    assert set(seen[2 + calls * (len(found.samples) + 2) :]) == {seen[2]}  # the warm time is of one and the same
    assert found.launch == "eager"


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp8"])
def test_inputs_are_random_and_never_the_same(dtype):
    a, b = (normal(64, 64, dtype=dtype, device=CPU.torch).float() for _ in range(2))
    assert a.std() > 0.5
    assert not torch.equal(a, b)


def test_a_stratified_choice_is_even_in_the_logarithm_of_time():
    chosen = stratified(((n,) for n in range(1, 100_000)), lambda n: n * 1e-6, 3, (1e-6, 1e-1))
    strata = [int(math.log10(n) * 2) for (n,) in chosen]
    assert sorted(strata) == strata
    assert all(strata.count(each) == 3 for each in set(strata) - {0})
    assert len(set(strata)) == 10


@pytest.mark.parametrize(("model", "gemm", "heads"), [
    ("llama-3-8b", {(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096)}, Heads(32, 8, 128)),
    ("gpt2", {(2304, 768), (768, 768), (3072, 768), (768, 3072), (50257, 768)}, Heads(12, 12, 64)),
])  # fmt: skip
def test_the_shapes_are_those_of_the_models_own_layers(model, gemm, heads):
    """Fused QKV, output, gate and up, down, and the LM head, by hand from the configs."""
    shapes = plan_shapes(model, "bf16", CeilingRates(800e12, 3e12), EXTENTS["cuda", "quick"])
    assert gemm <= {(n, k) for _, n, k in shapes["gemm"]}
    assert heads in {h for h, _, _ in shapes["decode"]}
    assert {1, 4096} <= {m for m, n, k in shapes["gemm"] if (n, k) in gemm}


def test_every_shape_of_the_grid_is_within_the_span_of_roofline_time():
    extent = Extent((1, 64), (128, 1024), (1, 8), 2, (1e-5, 1e-3), 1024)
    shapes = plan_shapes("smollm2-135m", "fp32", RATES, extent)
    own = [(960, 576), (576, 576), (3072, 576), (576, 1536), (49152, 576)]
    grid = [s for s in shapes["gemm"] if s[1:] not in own]
    times = [RATES.seconds(2.0 * m * n * k, 4.0 * (m * n + m * k + n * k)) for m, n, k in grid]
    assert times
    assert all(1e-5 <= time < 1e-3 for time in times)


def test_a_run_that_is_cut_short_has_something_of_every_family():
    cases = kernel_cases("smollm2-135m", CPU, RATES, EXTENTS["cpu", "quick"])
    assert {case.op for case in cases[: len(cases) // 4]} == {case.op for case in cases}
    assert len({case.key for case in cases}) == len(cases)


def test_more_bytes_or_more_work_never_take_less_roofline_time():
    times = [RATES.seconds(flops, 1e6) for flops in (1e3, 1e6, 1e9, 1e12)]
    assert all(a <= b for a, b in pairwise(times))


def test_an_unknown_device_is_refused_by_name():
    from rooflinekit.model.types.errors import InputError

    with pytest.raises(InputError, match=r"no device 'tpu:0' here; PyTorch .* sees: .*cpu"):
        open_device("tpu:0")
