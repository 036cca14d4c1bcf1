"""Every kernel that is timed runs on the CPU and computes what it says; a broken one is noticed."""

import math

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; `make test` installs it")

from rooflinekit.validate import elementwise, experts, gemm, latent, prefill, sampling  # noqa: E402
from rooflinekit.validate.case import cases_of, normal  # noqa: E402
from rooflinekit.validate.decode import PAGE, decode_cases, gathered  # noqa: E402
from rooflinekit.validate.device import Device  # noqa: E402
from rooflinekit.validate.elementwise import append_cases, embedding_cases  # noqa: E402
from rooflinekit.validate.plan import kernel_cases  # noqa: E402
from rooflinekit.validate.prefill import Heads  # noqa: E402
from rooflinekit.validate.shapes import Extent, Rates  # noqa: E402

CPU = Device(torch.device("cpu"), "test", 1, 2**34, 2**20, {})
TINY = Extent((1, 3), (8, 16), (1, 2), 1, (1e-9, 1e-4), 256)
FORMATS = ("fp32", "bf16", "fp8")


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def tensors(result):
    return result if isinstance(result, tuple) else (result,)


def test_every_case_of_a_run_runs_and_gives_finite_numbers():
    cases = [case for case in kernel_cases("smollm2-135m", CPU, Rates(1e11, 2e10), TINY) if case.bytes < 8e7]
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
    (case,) = gemm.gemm_cases([(5, 32, 64)], dtype, CPU)
    work = case.build()
    (weight,) = work.cold()
    x = work.hot[0]
    exact = x.double() @ weight.double().T
    error = (work.run(*work.hot, weight).double() - exact).abs().max() / exact.abs().max()
    # half a unit of the narrowest format on the way, over a sum of 64: fp8 has 3 bits of mantissa
    assert error < {"fp32": 1e-6, "bf16": 2**-8, "fp8": 2**-4}[dtype]


def test_a_quantised_number_saturates_and_does_not_become_nan():
    out = gemm.quantise(torch.tensor([1e4, -1e4, 448.0]), torch.ones(()))
    assert out.float().tolist() == [448.0, -448.0, 448.0]


def test_a_gemm_with_a_forgotten_scale_is_noticed():
    x, weight = (normal(4, 64, dtype=dtype, device=CPU.torch) for dtype in ("bf16", "fp8"))
    right = gemm.fp8_linear(x, torch.tensor(0.01), weight).float()
    wrong = torch._scaled_mm(gemm.quantise(x, torch.tensor(0.01)), weight.t(), scale_a=torch.tensor(1.0),
                             scale_b=torch.tensor(1.0), out_dtype=torch.bfloat16).float()  # fmt: skip
    exact = x.float() @ weight.float().T
    assert (right - exact).abs().max() / exact.abs().max() < 2**-4
    assert (wrong - exact).abs().max() / exact.abs().max() > 1.0


def dense(q, k, v, seen):
    """softmax(q k^T / sqrt(d)) v in float64 where `seen` [S, T]; q [B, H, S, d], k and v [B, K, T, d]."""
    groups = q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(groups, dim=1) for x in (k, v))
    logits = (q.double() @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~seen, -math.inf)
    return logits.softmax(-1) @ v


def causal(S, window=10**6):
    place = torch.arange(S)
    distance = place[:, None] - place[None, :]
    return (distance >= 0) & (distance < window)


@pytest.mark.parametrize("heads", [Heads(4, 4, 16), Heads(8, 2, 16), Heads(8, 1, 32)], ids=["mha", "gqa", "mqa"])
def test_prefill_attention_is_causal_attention(heads):
    q, k, v = (normal(2, n, 24, heads.d, dtype="fp32", device=CPU.torch) for n in (heads.H, heads.K, heads.K))
    exact = dense(q, k, v, causal(24))
    assert (prefill.sdpa(q, k, v) - exact).abs().max() < 1e-5
    without_mask = dense(q, k, v, torch.ones(24, 24, dtype=torch.bool))
    assert (prefill.sdpa(q, k, v) - without_mask).abs().max() > 0.1  # a missing mask would be seen


def test_packed_prompts_do_not_see_each_other():
    q, k, v = (normal(17, n, 16, dtype="fp32", device=CPU.torch) for n in (4, 2, 2))
    out = prefill.packed(q, k, v, (5, 12))
    for start, end in ((0, 5), (5, 17)):
        one = (x[start:end].transpose(0, 1)[None] for x in (q, k, v))
        assert (out[start:end].transpose(0, 1)[None] - dense(*one, causal(end - start))).abs().max() < 1e-5
    whole = dense(*(x.transpose(0, 1)[None] for x in (q, k, v)), causal(17))[0].transpose(0, 1)
    assert (out - whole).abs().max() > 0.1


@pytest.mark.parametrize("T", [PAGE, PAGE + 5])
def test_decode_over_pages_is_decode_over_what_they_hold(T):
    cases = {case.backend: case for case in decode_cases([(Heads(8, 2, 16), 3, T)], "fp32", CPU)}
    work = cases["torch sdpa, gathered pages"].build()
    (q,), (keys, values, table) = work.hot, work.cold()
    order = torch.tensor([[int(table[b, t // PAGE]) * PAGE + t % PAGE for t in range(T)] for b in range(3)])
    k, v = (pool.flatten(0, 1)[order].transpose(1, 2) for pool in (keys, values))
    seen = torch.ones(1, T, dtype=torch.bool)
    assert (work.run(q, keys, values, table) - dense(q, k, v, seen)).abs().max() < 1e-5
    stale = gathered(q, keys, values, table.flip(0), T)  # another sequence's pages
    assert (stale - dense(q, k, v, seen)).abs().max() > 0.1


def test_absorbed_decode_is_attention_over_the_latents():
    q, cache = normal(2, 4, 576, dtype="fp32", device=CPU.torch), normal(2, 9, 576, dtype="fp32", device=CPU.torch)
    weights = (q.double() @ cache.double().mT / math.sqrt(192)).softmax(-1)
    assert (latent.absorbed(q, cache) - weights @ cache.double()[..., :512]).abs().max() < 1e-5


def test_padded_values_change_nothing():
    q, k, v = (normal(1, 3, 12, width, dtype="fp32", device=CPU.torch) for width in (192, 192, 128))
    assert (latent.up_projected(q, k, v) - dense(q, k, v, causal(12))).abs().max() < 1e-5


def test_a_mixture_is_the_weighted_sum_of_its_experts():
    x, router = normal(6, 16, dtype="fp32", device=CPU.torch), normal(16, 5, dtype="fp32", device=CPU.torch)
    inner, outer = (normal(*size, dtype="fp32", device=CPU.torch) for size in ((5, 16, 24), (5, 12, 16)))
    exact = torch.zeros(6, 16, dtype=torch.float64)
    for n, scores in enumerate((x @ router).double().softmax(-1)):
        best = scores.topk(2)
        for share, e in zip(best.values / best.values.sum(), best.indices, strict=True):
            gate, up = (x[n].double() @ inner[e].double()).chunk(2)
            exact[n] += share * (torch.nn.functional.silu(gate) * up @ outer[e].double())
    assert (experts.mixture(x, router, inner, outer, k=2) - exact).abs().max() < 1e-4


@pytest.mark.parametrize("call", [elementwise.rms_norm, elementwise.layer_norm])
def test_a_norm_adds_the_residual_first(call):
    x, residual, weight = (normal(*size, dtype="fp32", device=CPU.torch) for size in ((3, 64), (3, 64), (64,)))
    stream, out = call(x, residual, weight)
    exact = x.double() + residual.double()
    centred = exact - exact.mean(-1, keepdim=True) if call is elementwise.layer_norm else exact
    assert torch.equal(stream, x + residual)
    assert (out - centred / centred.square().mean(-1, keepdim=True).sqrt() * weight).abs().max() < 1e-4


def test_rotation_keeps_lengths_and_depends_on_the_distance_alone():
    q, k = (normal(1, 1, 1, 32, dtype="fp32", device=CPU.torch) for _ in range(2))
    dots = []
    for shift in (0, 100):
        (a, _), (_, b) = (elementwise.rope(q, k, torch.tensor([place + shift])) for place in (7, 3))
        dots.append(float((a * b).sum()))
    assert dots[0] == pytest.approx(dots[1], abs=1e-4)
    assert float(a.norm()) == pytest.approx(float(q.norm()), rel=1e-5)


@pytest.mark.parametrize(("kv", "error"), [("fp32", 0.0), ("bf16", 2**-8), ("fp8", 2**-4)])
def test_a_cache_has_each_token_in_its_slot_and_the_rest_untouched(kv, error):
    (case,) = append_cases([(5, 2, 8, kv)], "fp32" if kv == "fp32" else "bf16", CPU)
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
    (case,) = embedding_cases([(4, 8, 50)], "fp32", CPU)
    work = case.build()
    (tokens,) = work.cold()
    first, again = work.run(tokens), work.run(tokens.flip(0))
    assert torch.equal(first, again.flip(0))


def test_greedy_takes_the_largest_and_every_method_one_of_its_own():
    logits = torch.full((64, 20), -30.0)
    logits[:, :4] = torch.tensor([2.0, 1.9, 1.8, -4.0])
    assert sampling.greedy(logits).tolist() == [0] * 64
    for call in (lambda x: sampling.top_k(x, 3), sampling.top_p, sampling.min_p):
        drawn = set(call(logits).tolist())
        assert drawn == {0, 1, 2}


def test_drawing_follows_the_probabilities():
    p = torch.tensor([0.5, 0.3, 0.2]).expand(4000, 3)
    counts = torch.bincount(sampling.draw(p), minlength=3).double()
    chi_square = float(((counts - 4000 * p[0]) ** 2 / (4000 * p[0])).sum())
    assert chi_square < 13.8  # 0.1 % level with two degrees of freedom


def test_cases_without_repetitions():
    cases = [*embedding_cases([(4, 8, 50), (4, 8, 50), (5, 8, 50)], "fp32", CPU)]
    assert [case.shape["tokens"] for case in cases_of(iter(cases))] == [4, 5]
