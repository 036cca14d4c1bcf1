"""Every GPU case of every suite, on tensors without data: shapes, formats and calls that PyTorch refuses show here.

Where this PyTorch is built for CUDA the fakes are on "cuda". A build for the CPU has no guard for such tensors, and
they are on "cpu", with everything else as on a GPU.
"""

import sys
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; `make test` installs it")

from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode  # noqa: E402
from vllm_signatures import CACHE, FWD, OWN  # noqa: E402

from rooflinekit.evidence.kernel_fit.groups import read_measurements  # noqa: E402
from rooflinekit.validate import (  # noqa: E402
    attention_kernels,
    ceilings,
    elementwise,
    matrix_kernels,
    model_run,
    suite,
    timing,
    vllm_ops,
)
from rooflinekit.validate.attribution import Event  # noqa: E402
from rooflinekit.validate.decoder import Decoder  # noqa: E402
from rooflinekit.validate.device import Device  # noqa: E402
from rooflinekit.validate.plan import EXTENTS, CeilingRates, kernel_cases  # noqa: E402
from rooflinekit.validate.points import GRID, MODES  # noqa: E402
from rooflinekit.validate.record import FILE, Recorder, header  # noqa: E402

RATES = CeilingRates(790e12, 4.0e12)
ON_CUDA = torch.version.cuda is not None


class Gpu(Device):
    """An H200, as cases see it."""

    is_cuda = True
    dtype = "bf16"
    free_bytes = 130 * 10**9

    def synchronize(self):
        pass


GPU = Gpu(torch.device("cuda:0" if ON_CUDA else "cpu"), "NVIDIA H200", 132, 141 * 10**9, 50 * 2**20, {})


class Wrapper:
    """FlashInfer's paged decode by its arguments (docs.flashinfer.ai, api/attention)."""

    def __init__(self, workspace, layout, use_tensor_cores):
        assert layout == "NHD"

    def plan(self, starts, table, last, H, K, d, page, q_data_type, kv_data_type):  # noqa: PLR0917
        self.shape = H, K, d, page
        assert starts.dtype == table.dtype == last.dtype == torch.int32
        assert len(starts) == len(last) + 1

    def run(self, q, pools):
        H, K, d, page = self.shape
        assert q.shape[1:] == (H, d)
        assert all(pool.shape[1:] == (page, K, d) for pool in pools)
        return torch.empty_like(q)


def fused_experts(x, inner, outer, share, chosen):
    (N, D), (E, twice, _) = x.shape, inner.shape
    assert inner.shape == (E, twice, D)
    assert outer.shape == (E, D, twice // 2)
    assert share.shape == chosen.shape == (N, chosen.shape[1])
    assert (share.dtype, chosen.dtype) == (torch.float32, torch.int32)
    return torch.empty_like(x)


class Sampler:
    """vLLM's, which gives tokens and the logits that are left."""

    def __call__(self, logits, generators, k, p):
        assert (logits.dtype, generators) == (torch.float32, {})
        return logits.argmax(dim=-1), None


def ordered(plain, a_type, number, s_type):
    """Machete takes weights whose columns lie in a row."""
    assert plain.stride() == (1, len(plain))
    return torch.empty_like(plain, memory_format=torch.contiguous_format)


RETURNED = {
    "machete_prepack_B": ordered, "machete_mm": lambda x, weight, *rest: x.new_empty(len(x), weight.shape[1]),
}  # fmt: skip


@pytest.fixture(scope="module")
def operators():
    """vLLM's operators by their signatures, which give tensors of the right shape."""
    libraries = [torch.library.Library(name, "FRAGMENT") for name in ("_vllm_fa3_C", "_C", "_C_cache_ops")]
    attention, own, cached = libraries
    if not vllm_ops._has(torch.ops._vllm_fa3_C):
        attention.define(FWD)
    attention.impl("fwd", lambda q, k, v, *rest: [q.new_empty(*q.shape[:-1], v.shape[-1])], "Meta")
    for library, signatures in ((own, OWN), (cached, (CACHE,))):
        for signature in signatures:
            name = signature.partition("(")[0]
            if not hasattr(getattr(torch.ops, library.ns), name):
                library.define(signature)
            library.impl(name, RETURNED.get(name, lambda *inputs: None), "Meta")
    vllm_ops.ops.cache_clear()
    yield
    for library in libraries:
        library._destroy()
    vllm_ops.ops.cache_clear()


@pytest.fixture
def gpu(monkeypatch, operators):
    """A GPU whose kernels take a microsecond and compute nothing."""
    for module in (elementwise, matrix_kernels):
        monkeypatch.setattr(module, "fused", lambda call, device: call)
    monkeypatch.setattr(attention_kernels, "sdpa_kernel", lambda backend: nullcontext())  # choosing one asks the driver
    monkeypatch.setattr(torch, "compile", lambda call, **options: call)
    for name, module in (
        ("flashinfer", SimpleNamespace(BatchDecodeWithPagedKVCacheWrapper=Wrapper)),
        ("vllm.model_executor.layers.fused_moe", SimpleNamespace(fused_experts=fused_experts)),
        ("vllm.v1.sample.ops.topk_topp_sampler", SimpleNamespace(TopKTopPSampler=Sampler)),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    event = SimpleNamespace(record=lambda: None, synchronize=lambda: None, elapsed_time=lambda end: 1e-3)
    stream = SimpleNamespace(wait_stream=lambda other: None)
    for name, stub in {
        "Event": lambda enable_timing: event, "Stream": lambda: stream, "stream": lambda one: nullcontext(),
        "current_stream": lambda: stream, "graph": lambda graph: nullcontext(), "_sleep": lambda cycles: None,
        "CUDAGraph": lambda: SimpleNamespace(replay=lambda: None), "synchronize": lambda device=None: None,
        "empty_cache": lambda: None,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, stub)
    monkeypatch.setattr(timing, "_REPEATS", (1, 1))
    monkeypatch.setattr(timing, "_MOST_CALLS", 2)
    monkeypatch.setattr(suite, "_SECONDS", {"quick": 0.0, "full": 0.0})
    monkeypatch.setattr(suite, "sustained", partial(timing.sustained, seconds=1e-6))
    monkeypatch.setattr(ceilings, "_LAUNCHES", 2)
    if not ON_CUDA:
        monkeypatch.setattr(FakeTensor, "is_cuda", True, raising=False)
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield GPU


def refused(cases):
    """What cases raise, by kernel and shape."""
    wrong = {}
    with torch.inference_mode():
        for case in cases:
            try:
                work = case.build()
                work.run(*work.hot, *work.cold())
            except Exception as error:
                wrong[case.key] = f"{type(error).__name__}: {error}"
    return wrong


def test_a_case_of_every_kernel_runs(gpu):
    cases = kernel_cases("llama-3-8b", gpu, RATES, EXTENTS["cuda", "quick"])
    assert refused({case.kernel: case for case in cases}.values()) == {}


@pytest.mark.long
@pytest.mark.parametrize("size", ["quick", "full"])
@pytest.mark.parametrize("model", ["llama-3-8b", "mixtral-8x7b"])
def test_every_case_of_a_suite_runs(gpu, model, size):
    cases = kernel_cases(model, gpu, RATES, EXTENTS["cuda", size])
    assert {case.engine for case in cases} == {"gpt-fast", "vllm", "gpt-fast+vllm"}
    assert refused(cases) == {}


def absent(*shape):
    raise ImportError("no vLLM")


def run(folder, name, monkeypatch, **rest):
    with Recorder(folder, header(GPU, name, "smollm2-135m"), resume=True) as recorder:
        ending = suite.run_suite(suite.SuiteRun(GPU, name, "smollm2-135m", recorder, float("inf"), **rest))
    return ending, read_measurements(folder / FILE)


def test_ceilings_and_kernels_become_rows(gpu, tmp_path, monkeypatch):
    """Graphs, events, the sentinel and the sustained pass included; FP8's ceiling is PyTorch's where vLLM is absent."""
    seldom = {}
    whole = kernel_cases("smollm2-135m", gpu, RATES, EXTENTS["cuda", "quick"])
    for case in whole:
        seldom.setdefault(case.kernel, case)
    monkeypatch.setattr(suite, "kernel_cases", lambda *plan: list(seldom.values()))
    monkeypatch.setattr(suite, "LONG", 0.0)
    monkeypatch.setattr(suite, "collective_rows", lambda device, quick: iter(()))
    monkeypatch.setattr(vllm_ops, "fp8_gemm", absent)
    ending, found = run(tmp_path, "kernels", monkeypatch)
    assert ending == "complete"
    assert [(row["key"], row["detail"]) for row in found.rows if row["status"] != "ok"] == []
    assert {row["dtype"] for row in found.of("ceiling") if row["kind"] == "gemm"} == {"fp32", "bf16", "fp8"}
    assert {row["launch"] for row in found.rows if "sustained_us" in row} == {"graph"}
    assert len(found.of("sentinel")) == 2


def decoder(model, device, dtype):
    """As `build` does, which swaps tensors that fakes cannot."""
    with torch.device(device):
        torch.set_default_dtype(dtype)
        try:
            return Decoder(model).requires_grad_(False).eval()
        finally:
            torch.set_default_dtype(torch.float32)


def test_steps_of_a_model_become_rows_in_every_mode(gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(model_run, "_SECONDS", 0.0)
    monkeypatch.setattr(model_run, "build", decoder)
    monkeypatch.setattr(model_run, "_depth_that_fits", lambda model, device: 2)
    monkeypatch.setitem(GRID, GPU.torch.type, GRID["cuda"][:4])
    for phase in ("prefill", "decode"):
        monkeypatch.setitem(MODES, (GPU.torch.type, phase), MODES["cuda", phase])
    monkeypatch.setattr(FakeTensor, "tolist", lambda x: [])  # fakes have no numbers
    monkeypatch.setattr(model_run, "_LEAST", 1)
    launched = [Event("launch", 0.0, 1.0, "launch", 1), Event("gemm", 2.0, 5.0, "kernel", 1)]
    monkeypatch.setattr(model_run, "profile_step", lambda step, device: (step() and launched) or launched)
    ending, found = run(tmp_path, "model", monkeypatch)
    assert ending == "complete"
    assert {row["detail"] for row in found.rows} == {""}
    assert found.counts == {"ok": sum(len(MODES["cuda", point.phase]) for point in GRID["cuda"][:4])}
    assert {row["kernels"] for row in found.rows} == {1}
