"""What a timing says about its samples, and which shapes are chosen."""

import math
from itertools import pairwise

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; `make test` installs it")

from rooflinekit.validate.case import Work, normal  # noqa: E402
from rooflinekit.validate.device import Device, open_device  # noqa: E402
from rooflinekit.validate.plan import EXTENTS, kernel_cases  # noqa: E402
from rooflinekit.validate.prefill import Heads  # noqa: E402
from rooflinekit.validate.shapes import Extent, Rates, plan_shapes, stratified  # noqa: E402
from rooflinekit.validate.timing import summary, time_work  # noqa: E402

CPU = Device(torch.device("cpu"), "test", 1, 2**34, 2**20, {})
RATES = Rates(100e9, 20e9)


def test_the_median_is_not_moved_by_outliers_and_they_are_counted():
    row = summary(tuple([1e-5] * 4 + [1.1e-5] * 4 + [5e-3]))
    assert row["latency_us"] == pytest.approx(11.0)
    assert row["outliers"] == 1
    assert row["p10_us"] <= row["latency_us"] <= row["p90_us"]
    assert row["repeats"] == len(row["samples_us"]) == 9


def test_one_sample_has_no_spread():
    row = summary((2e-6,))
    assert row["p10_us"] == row["latency_us"] == row["p90_us"] == 2.0


def test_every_call_of_a_pass_gets_cold_inputs_of_its_own():
    """A loop over one weight would find it in a cache, as no serving step does."""
    seen = []
    work = Work(lambda x, w: seen.append(w.data_ptr()) or x @ w, (normal(4, 4, dtype="fp32", device=CPU.torch),),
                lambda: (normal(4, 4, dtype="fp32", device=CPU.torch),))  # fmt: skip
    timing = time_work(work, CPU, 0.0)
    calls = (len(seen) - 2) // (len(timing.samples) + 2)  # two calls to look, two passes to warm up
    assert calls > 1
    assert len(set(seen[2:])) == calls
    assert timing.launch == "eager"


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16", "fp8", "int8"])
def test_inputs_are_random_and_never_the_same(dtype):
    a, b = (normal(64, 64, dtype=dtype, device=CPU.torch).float() for _ in range(2))
    assert a.std() > 0.5
    assert not torch.equal(a, b)


def test_a_stratified_choice_is_even_in_the_logarithm_of_time():
    chosen = stratified(range(1, 100_000), lambda n: n * 1e-6, 3, (1e-6, 1e-1))
    strata = [int(math.log10(n) * 2) for n in chosen]
    assert sorted(strata) == strata
    assert all(strata.count(each) == 3 for each in set(strata) - {0})
    assert len(set(strata)) == 10


@pytest.mark.parametrize(("model", "gemm", "heads"), [
    ("llama-3-8b", {(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096)}, Heads(32, 8, 128)),
    ("gpt2", {(2304, 768), (768, 768), (3072, 768), (768, 3072), (50257, 768)}, Heads(12, 12, 64)),
])  # fmt: skip
def test_the_shapes_are_those_of_the_models_own_layers(model, gemm, heads):
    """Fused QKV, output, gate and up, down, and the LM head, by hand from the configs."""
    shapes = plan_shapes(model, "bf16", Rates(800e12, 3e12), EXTENTS["cuda", "quick"])
    assert gemm <= {(n, k) for _, n, k in shapes.gemm}
    assert heads in {h for h, _, _ in shapes.decode}
    assert {1, 4096} <= {m for m, n, k in shapes.gemm if (n, k) in gemm}


def test_every_shape_of_the_grid_is_within_the_span_of_roofline_time():
    extent = Extent((1, 64), (128, 1024), (1, 8), 2, (1e-5, 1e-3), 1024)
    shapes = plan_shapes("smollm2-135m", "fp32", RATES, extent)
    own = [(960, 576), (576, 576), (3072, 576), (576, 1536), (49152, 576)]
    grid = [s for s in shapes.gemm if s[1:] not in own]
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
