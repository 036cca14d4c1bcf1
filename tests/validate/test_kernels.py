"""Every kernel that is timed runs on the CPU; those that no check covers compute what they say."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; `make test` installs it")

from rooflinekit.validate import elementwise, matrix_kernels  # noqa: E402
from rooflinekit.validate.case import normal  # noqa: E402
from rooflinekit.validate.device import Device  # noqa: E402
from rooflinekit.validate.plan import CeilingRates, Extent, kernel_cases  # noqa: E402

CPU = Device(torch.device("cpu"), "test", 1, 2**34, 2**20, {})
TINY = Extent((1, 3), (8, 16), (1, 2), 1, (1e-9, 1e-4), 256)
FORMATS = ("fp32", "bf16", "fp8")


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def tensors(result):
    return result if isinstance(result, tuple) else (result,)


def test_every_case_of_a_run_runs_and_gives_finite_numbers():
    cases = [case for case in kernel_cases("smollm2-135m", CPU, CeilingRates(1e11, 2e10), TINY) if case.bytes < 8e7]
    assert {case.op for case in cases} == {
        "gemm", "attention_prefill", "attention_decode", "attention_varlen", "mla_prefill",
        "mla_decode", "moe", "elementwise", "embedding", "kv_append", "sampling",
    }  # fmt: skip
    for case in cases:
        work = case.build()
        for out in tensors(work.run(*work.hot, *work.cold())):
            assert out is None or torch.isfinite(out.float()).all(), case.key


@pytest.mark.parametrize("dtype", FORMATS)
def test_a_gemm_is_within_the_rounding_of_its_format(dtype):
    (case,) = matrix_kernels.gemm_cases(5, 32, 64, dtype, CPU)
    work = case.build()
    (weight,) = work.cold()
    x = work.hot[0]
    exact = x.double() @ weight.double().T
    error = (work.run(*work.hot, weight).double() - exact).abs().max() / exact.abs().max()
    # half a unit of the narrowest format on the way, over a sum of 64: fp8 has 3 bits of mantissa
    assert error < {"fp32": 1e-6, "bf16": 2**-8, "fp8": 2**-4}[dtype]


def test_a_quantised_number_saturates_and_does_not_become_nan():
    out = matrix_kernels.quantise(torch.tensor([1e4, -1e4, 448.0]), torch.ones(()))
    assert out.float().tolist() == [448.0, -448.0, 448.0]


def test_a_gemm_with_a_forgotten_scale_is_noticed():
    x, weight = (normal(4, 64, dtype=dtype, device=CPU.torch) for dtype in ("bf16", "fp8"))
    right = matrix_kernels.fp8_linear(x, torch.tensor(0.01), weight).float()
    wrong = torch._scaled_mm(matrix_kernels.quantise(x, torch.tensor(0.01)), weight.t(), scale_a=torch.tensor(1.0),
                             scale_b=torch.tensor(1.0), out_dtype=torch.bfloat16).float()  # fmt: skip
    exact = x.float() @ weight.float().T
    assert (right - exact).abs().max() / exact.abs().max() < 2**-4
    assert (wrong - exact).abs().max() / exact.abs().max() > 1.0


@pytest.mark.parametrize(("kv", "error"), [("fp32", 0.0), ("bf16", 2**-8), ("fp8", 2**-4)])
def test_a_cache_has_each_token_in_its_slot_and_the_rest_untouched(kv, error):
    (case,) = elementwise.append_cases(5, 2, 8, kv, "fp32" if kv == "fp32" else "bf16", CPU)
    work = case.build()
    (new,), (keys, values, slots) = work.hot, work.cold()
    before = keys.clone()
    work.run(new, keys, values, slots)
    scale = 0.05 if kv == "fp8" else 1.0
    for x, pool in zip(new, (keys, values), strict=True):
        assert (pool[slots].float() * scale - x.float()).abs().max() <= error * x.float().abs().max()
    others = [slot for slot in range(len(keys)) if slot not in slots.tolist()]
    assert torch.equal(keys.view(torch.uint8)[others], before.view(torch.uint8)[others])


def test_an_embedding_is_the_rows_of_its_tokens():
    (case,) = elementwise.embedding_cases(4, 8, 50, "fp32", CPU)
    work = case.build()
    (tokens,) = work.cold()
    first, again = work.run(tokens), work.run(tokens.flip(0))
    assert torch.equal(first, again.flip(0))


def test_greedy_takes_the_largest_and_every_method_one_of_its_own():
    logits = torch.full((64, 20), -30.0)
    logits[:, :4] = torch.tensor([2.0, 1.9, 1.8, -4.0])
    assert elementwise.greedy(logits).tolist() == [0] * 64
    for call in (lambda x: elementwise.top_k(x, 3), elementwise.top_p, elementwise.min_p):
        drawn = set(call(logits).tolist())
        assert drawn == {0, 1, 2}
