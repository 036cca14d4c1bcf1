"""The calls of vLLM's operators against the signatures of the wheel of 0.24.0, with plain formulations behind them."""

import math
import sys
from functools import partial
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; `make test` installs it")

from vllm_signatures import CACHE, FWD, OWN  # noqa: E402

from rooflinekit.evidence.kernel_fit.groups import kernel_tables, read_measurements  # noqa: E402
from rooflinekit.validate import case, checks_kernels, elementwise, vllm_ops  # noqa: E402
from rooflinekit.validate.attention_kernels import Heads  # noqa: E402
from rooflinekit.validate.case import TimedCase, TimedWork, normal  # noqa: E402
from rooflinekit.validate.device import Device, open_device  # noqa: E402
from rooflinekit.validate.matrix_kernels import balanced  # noqa: E402
from rooflinekit.validate.record import FILE, Recorder, header  # noqa: E402
from rooflinekit.validate.tolerance import Trial  # noqa: E402

CPU = Device(torch.device("cpu"), "test", 1, 2**34, 2**20, {})


def forward(q, k, v, k_new, v_new, q_v, out, starts, *rest):  # noqa: PLR0917 - as the operator takes them
    """Attention sequence by sequence over its pages, in float64."""
    used, table, scale, causal = rest[3], rest[6], rest[15], rest[16]
    parts = []
    for b, (first, last) in enumerate(zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)):
        T = int(used[b])
        keys, values = (pool[table[b].long()].flatten(0, 1)[:T].double() for pool in (k, v))
        group = q.shape[1] // keys.shape[1]
        keys, values = (x.repeat_interleave(group, dim=1) for x in (keys, values))
        logits = torch.einsum("shd,thd->hst", q[first:last].double(), keys)
        if q_v is not None:
            logits = logits + torch.einsum("shd,thd->hst", q_v[first:last].double(), values)
        S = last - first
        place = torch.arange(T)
        hidden = place[None, :] > (place[T - S :])[:, None]
        logits = (logits * scale).masked_fill(hidden if causal else torch.zeros_like(hidden), -math.inf)
        parts.append(torch.einsum("hst,thd->shd", logits.softmax(-1), values).to(q.dtype))
    return [torch.cat(parts)]


def spread(scales, over):
    """Scales as large as what they scale: one for all of a row or column, or for a group of both."""
    for axis, size in enumerate(over.shape):
        scales = scales.repeat_interleave(size // scales.shape[axis], dim=axis)
    return scales


def mm(out, a, b, a_scales, b_scales, bias):  # noqa: PLR0917
    b_scales = b_scales.view(1, -1) if b_scales.numel() == b.shape[1] else b_scales
    out.copy_((a.float() * spread(a_scales, a)) @ (b.float() * spread(b_scales, b)))


def group_quant(x, result, scales, size, least, low, high, *layout):  # noqa: PLR0917
    assert (scales.stride(0), layout) == (1, (False, True, False))  # as CUTLASS reads them
    top = x.float().unflatten(1, (-1, size)).abs().amax(dim=2)
    scales.copy_(top.clamp_min(least) / high)
    result.copy_((x.float() / spread(scales, x)).clamp(low, high).to(torch.float8_e4m3fn))


def prepack(plain, a_type, number, s_type):
    """Any order of its own; the real one also wants columns that lie in a row."""
    assert (plain.stride(0), a_type, s_type) == (1, torch.bfloat16, torch.bfloat16)
    assert number == 1125899907892224  # scalar_types.uint4b8.id
    return plain.flip(0).contiguous()


def machete(a, packed, number, out_type, scales, zeros, size, *rest):  # noqa: PLR0917
    words = packed.flip(0).repeat_interleave(8, dim=0)
    weight = (words >> (torch.arange(len(words)) % 8 * 4)[:, None] & 15) - 8
    assert zeros is None
    assert rest == (None, None, None)
    return (a.float() @ (weight * scales.float().repeat_interleave(size, dim=0))).to(a.dtype)


def turn(where, q, k, d, table, neox):  # noqa: PLR0917
    assert neox
    cos, sin = (each.repeat(1, 2)[:, None] for each in table[where].chunk(2, dim=-1))
    for x in (q.view(len(where), -1, d), k.view(len(where), -1, d)):
        first, second = x.chunk(2, dim=-1)
        x.copy_(x * cos + torch.cat([-second, first], dim=-1) * sin)


def quant(result, x, scale, upper):
    scale.copy_(x.float().abs().amax(dim=1, keepdim=True) / 448.0)
    result.copy_((x.float() / scale).to(torch.float8_e4m3fn))


def add_norm(x, residual, weight, epsilon):
    residual.add_(x)
    x.copy_(torch.nn.functional.rms_norm(residual, weight.shape, weight, epsilon))


def silu(result, x):
    gate, up = x.chunk(2, dim=-1)
    result.copy_(torch.nn.functional.silu(gate) * up)


def write(key, value, keys, values, slots, kind, k_scale, v_scale):  # noqa: PLR0917
    for new, pool, scale in ((key, keys, k_scale), (value, values, v_scale)):
        stored = (new / scale).to(torch.float8_e4m3fn).view(torch.uint8) if kind == "fp8" else new
        pool.view(-1, *pool.shape[2:])[slots] = stored


@pytest.fixture(scope="module", autouse=True)
def operators():
    """Operators with vLLM's names and signatures on the CPU; nothing is called that the real ones would refuse."""
    libraries = [torch.library.Library(name, "FRAGMENT") for name in ("_vllm_fa3_C", "_C", "_C_cache_ops")]
    attention, own, cached = libraries
    attention.define(FWD)
    attention.impl("fwd", forward, "CPU")
    for signature, call in zip(OWN, (mm, quant, add_norm, silu, group_quant, prepack, machete, turn), strict=True):
        own.define(signature)
        own.impl(signature.partition("(")[0], call, "CPU")
    cached.define(CACHE)
    cached.impl("reshape_and_cache_flash", write, "CPU")
    vllm_ops.ops.cache_clear()
    yield libraries
    vllm_ops.ops.cache_clear()


def checked(op, shape, build, reference):
    """As `--check` runs a case."""
    case = TimedCase(op, "vllm", shape, 1.0, build, "vllm", "vllm")
    with torch.inference_mode():
        (result,) = checks_kernels._checked(Trial(CPU.torch, torch.float32), [case], reference)
    assert result.passed, result


HEADS = Heads(8, 2, 64)
SIZES = {"heads": 8, "kv_heads": 2, "head_dim": 64, "dtype": "fp32", "kv_dtype": "fp32"}


def test_decode_writes_the_new_token_and_reads_the_pages():
    checked("attention_decode", {**SIZES, "batch": 3, "seq_len": 37},
            lambda: vllm_ops.attention(HEADS, 3, 1, 37, "fp32", CPU), checks_kernels._attended)  # fmt: skip


def test_a_prompt_is_causal_and_alone():
    checked("attention_prefill", {**SIZES, "batch": 2, "seq_len": 21},
            lambda: vllm_ops.attention(HEADS, 2, 21, 21, "fp32", CPU), checks_kernels._attended)  # fmt: skip


def test_a_chunk_sees_what_the_cache_holds_before_it():
    checked("attention_prefill", {**SIZES, "batch": 2, "seq_len": 9, "prefix": 20},
            lambda: vllm_ops.attention(HEADS, 2, 9, 29, "fp32", CPU), checks_kernels._attended)  # fmt: skip


def test_latents_are_keys_in_two_parts():
    checked("mla_decode", {"dtype": "fp32", "kv_dtype": "fp32", "batch": 2, "seq_len": 70, "heads": 4},
            lambda: vllm_ops.latent_decode(4, 2, 70, "fp32", CPU), checks_kernels._latent)  # fmt: skip


def test_an_fp8_product_is_within_the_rounding_of_its_activations():
    checked("gemm", {"dtype": "fp8", "m": 5, "n": 64, "k": 128},
            lambda: vllm_ops.fp8_gemm(5, 64, 128, CPU), checks_kernels._product)  # fmt: skip


@pytest.mark.parametrize(("dtype", "build"), [("fp8_block", vllm_ops.block_gemm), ("int4_a16", vllm_ops.int4_gemm)])
def test_weights_are_scaled_tile_by_tile(dtype, build):
    """Each of the scales by its own tile: with one of them elsewhere the product is another one."""
    checked("gemm", {"dtype": dtype, "m": 5, "n": 256, "k": 384},
            lambda: build(5, 256, 384, CPU), checks_kernels._product)  # fmt: skip


def test_rotary_positions_are_those_of_the_other_backend():
    checked("elementwise", {"dtype": "fp32", "kind": "rope"},
            lambda: vllm_ops.rope(7, (4, 2, 16), "fp32", CPU), checks_kernels._turned)  # fmt: skip


@pytest.mark.parametrize("asked", [{"k": 5}, {"p": 0.9}])
def test_its_sampler_gets_what_it_asks_for_and_leaves_the_logits_alone(monkeypatch, asked):
    class Sampler:
        def __call__(self, logits, generators, k, p):
            assert (logits.dtype, generators) == (torch.float32, {})
            for given, name, dtype in ((k, "k", torch.int32), (p, "p", torch.float32)):
                assert (given is None) == (name not in asked)
                assert given is None or (given.shape, given.dtype) == ((3,), dtype)
            call = elementwise.top_p if k is None else partial(elementwise.top_k, k=int(k[0]))
            return call(logits.clone()), logits.zero_()

    monkeypatch.setitem(sys.modules, "vllm.v1.sample.ops.topk_topp_sampler", SimpleNamespace(TopKTopPSampler=Sampler))
    logits = torch.randn(3, 20)
    before = logits.clone()
    work = vllm_ops.sampler(logits, **asked)
    assert work.run(*work.hot).shape == (3,)
    assert torch.equal(logits, before)


@pytest.mark.parametrize("kind", ["norm", "activation"])
def test_what_lies_between_the_matrices(kind):
    call, sizes, want = {
        "norm": (vllm_ops.norm, ((5, 64), (5, 64), (64,)), checks_kernels._normed),
        "activation": (vllm_ops.swiglu, ((5, 128),), checks_kernels._gated),
    }[kind]
    drawn = partial(normal, dtype="fp32", device=CPU.torch)
    checked(
        "elementwise", {"dtype": "fp32", "kind": kind}, lambda: TimedWork(call, tuple(drawn(*n) for n in sizes)), want
    )


@pytest.mark.parametrize("kv", ["fp32", "fp8"])
def test_a_cache_holds_the_same_bytes_whoever_writes_it(kv):
    (case,) = elementwise.append_cases(5, 2, 64, kv, "fp32", CPU)
    work = case.build()
    pools = [work.cold()] * 2
    pools = [(*(pool.clone() for pool in both[:2]), both[2]) for both in pools]
    for call, (keys, values, slots) in zip((elementwise.append, vllm_ops.append), pools, strict=True):
        call(*work.hot, keys, values, slots, scale=torch.tensor(0.05))
    for ours, theirs in zip(*(both[:2] for both in pools), strict=True):
        assert torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8))


def test_without_vllm_its_kernels_are_missing_and_not_failed(monkeypatch):
    vllm_ops.ops.cache_clear()
    monkeypatch.setattr(vllm_ops, "_has", lambda found: False)
    monkeypatch.setattr(vllm_ops.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="_vllm_fa3_C"):
        vllm_ops.attention(HEADS, 1, 1, 16, "fp32", CPU)
    vllm_ops.ops.cache_clear()


def test_tokens_for_experts_are_those_of_the_other_backend():
    x, router = balanced(torch.randn(4, 64), 8, 2)
    with pytest.raises(ImportError, match="vllm"):
        vllm_ops.experts((x, router), (8, 64, 32), 2, "fp32", CPU)


def test_rows_of_an_engine_make_its_own_table(tmp_path):
    """A kernel that two engines run is in the table of both, and the fastest of each counts."""
    times = {"p10_us": 1.0, "p90_us": 9.0, "repeats": 1, "samples_us": [5.0]}
    shape = {"op": "gemm", "dtype": "bf16", "m": 1, "n": 64, "k": 64}
    with Recorder(tmp_path, header(open_device("cpu"), "kernels", "gpt2")) as recorder:
        for key, engine, us in (("a", "gpt-fast+vllm", 5.0), ("b", "vllm", 4.0), ("c", "vllm", 6.0)):
            recorder.row({**shape, "backend": key, "key": key, "engine": engine, "kernel_source": key, **times,
                          "latency_us": us, "warm_us": us / 2, "power_w": 100.0 * us})  # fmt: skip
    ((_, table),) = kernel_tables(read_measurements(tmp_path / FILE))
    assert dict(zip(table["engine"], table["latency_us"], strict=True)) == {"gpt-fast": 5.0, "vllm": 4.0}


def test_rows_of_its_kernels_are_of_its_release(monkeypatch):
    monkeypatch.setattr(case, "version_of", lambda package: "0.24.0")
    plain = TimedCase("gemm", "torch linear", {}, 1.0, TimedWork)
    assert "engine_version" not in plain.named
    assert plain.by_vllm("CUTLASS", "_C", TimedWork).named["engine_version"] == "0.24.0"
