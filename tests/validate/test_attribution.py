"""Time by cause on timelines made by hand, where every gap is known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="needs the extra `gpu` (torch)")

from rooflinekit.model.roofline import StepTime
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.kernel import Kernel
from rooflinekit.model.types.time import KernelTime
from rooflinekit.validate.attribution import (
    Event,
    StepShares,
    attribute,
    causes,
    class_of,
    classes,
    read_trace,
)


def launched(name: str, told: float, start: float, end: float, number: int) -> list[Event]:
    """A kernel and the call that started it."""
    return [Event("cudaLaunchKernel", told, told + 2, "launch", number), Event(name, start, end, "kernel", number)]


NAMES = ["gemm", "ncclAllReduce", "flash", "add"]


class TestTimelines:
    def test_a_host_that_is_late(self) -> None:
        """Kernels 10 to 20 and 50 to 60; the second is launched at 45: 25 us of the host, then 5 of launch latency."""
        events = launched("gemm_a", 0, 10, 20, 1) + launched("silu", 45, 50, 60, 2)
        assert attribute(events) == StepShares({"matrix": 10.0, "elementwise": 10.0}, launch=15.0, host=25.0)

    def test_a_host_that_is_ahead(self) -> None:
        """All told before the first ends: what lies between kernels is the GPU's own latency."""
        events = (
            launched("gemm_a", 0, 10, 20, 1) + launched("gemm_b", 3, 22, 30, 2) + launched("flash_fwd", 6, 33, 40, 3)
        )
        assert attribute(events) == StepShares({"matrix": 18.0, "attention": 7.0}, launch=15.0, host=0.0)

    def test_a_graph_has_one_launch(self) -> None:
        kernels = [Event(f"gemm_{i}", 10 + 5 * i, 13 + 5 * i, "kernel", 1) for i in range(4)]
        spent = attribute([Event("cudaGraphLaunch", 0, 8, "launch", 1), *kernels])
        assert spent == StepShares({"matrix": 12.0}, launch=10.0 + 3 * 2.0, host=0.0)

    def test_a_collective_counts_where_nothing_hides_it(self) -> None:
        """All-reduce from 10 to 40, a GEMM from 20 to 30 on another stream: 20 us of network are exposed."""
        events = [Event("ncclDevKernel_AllReduce", 10, 40, "kernel"), Event("gemm", 20, 30, "kernel")]
        assert attribute(events) == StepShares({"network": 20.0, "matrix": 10.0}, launch=0.0, host=0.0)

    def test_two_streams_are_not_counted_twice(self) -> None:
        events = [Event("gemm", 0, 10, "kernel"), Event("flash", 5, 12, "kernel")]
        assert attribute(events) == StepShares({"matrix": 10.0, "attention": 2.0}, launch=0.0, host=0.0)

    def test_a_cpu_step_is_its_outermost_operators_and_the_host_between_them(self) -> None:
        events = [
            Event("aten::linear", 0, 10, "operator"), Event("aten::addmm", 1, 9, "operator"),
            Event("aten::silu", 14, 16, "operator"),
            Event("aten::scaled_dot_product_attention", 17, 30, "operator"),
            Event("aten::transpose", 18, 19, "operator"),
        ]  # fmt: skip
        assert attribute(events) == StepShares(
            {"matrix": 10.0, "elementwise": 2.0, "attention": 13.0}, launch=0.0, host=5.0
        )

    def test_operators_that_launch_kernels_are_not_counted_beside_them(self) -> None:
        events = [Event("aten::linear", 0, 100, "operator"), *launched("gemm", 5, 10, 20, 1)]
        assert attribute(events).busy == {"matrix": 10.0}
        assert attribute(events).total == 20.0

    def test_nothing_seen_is_nothing_spent(self) -> None:
        assert attribute([]).total == 0.0

    @given(
        st.lists(st.tuples(st.integers(0, 500), st.integers(1, 60), st.sampled_from(NAMES)), min_size=1, max_size=30)
    )
    def test_the_parts_add_up_to_the_wall_time(self, kernels: list[tuple[int, int, str]]) -> None:
        events = [Event(name, start, start + length, "kernel", i) for i, (start, length, name) in enumerate(kernels)]
        events += [Event("launch", max(0, start - 7), start, "launch", i) for i, (start, _, _) in enumerate(kernels)]
        wall = max(event.end for event in events) - min(event.start for event in events)
        spent = attribute(events)
        assert spent.total == pytest.approx(wall)
        assert min(spent.launch, spent.host, *spent.busy.values()) >= 0


class TestNames:
    @pytest.mark.parametrize(("name", "kind"), [
        ("nvjet_hsh_64x8_64x16_4x1_v_bz_TNT", "matrix"), ("sm90_xmma_gemm_bf16bf16_bf16f32", "matrix"),
        ("void gemvNSP_kernel<float>", "matrix"), ("aten::bmm", "matrix"), ("aten::mm", "matrix"),
        ("void pytorch_flash::flash_fwd_splitkv_kernel<Flash_fwd>", "attention"),
        ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80", "attention"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop", "attention"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "network"), ("c10d::allreduce_", "network"),
        ("void at::native::vectorized_elementwise_kernel<4, silu>", "elementwise"), ("aten::copy_", "elementwise"),
        ("Memcpy DtoD (Device -> Device)", "elementwise"),
    ])  # fmt: skip
    def test_kernels_of_libraries_are_recognised(self, name: str, kind: str) -> None:
        assert class_of(name) == kind


def timed(name: str, family: str, time: float, **needs: float) -> KernelTime:
    """A kernel of the prediction [us]."""
    parts = {"compute": 0.0, "memory": 0.0, "network": 0.0, "overhead": 0.0, **needs}
    parts = {cause: each * 1e-6 for cause, each in parts.items()}
    kernel = Kernel(name, family, 1, Dtype.BF16)  # type: ignore[arg-type]
    return KernelTime(time * 1e-6, 0.0, 0.0, 0.0, kernel, **parts)


class TestSideBySide:
    STEP = StepTime((
        timed("qkv_proj", "gemm", 30.0, compute=25.0, memory=10.0, overhead=5.0),
        timed("down_proj", "gemm", 10.0, compute=2.0, memory=8.0, overhead=2.0),
        timed("attention", "attention_decode", 20.0, memory=20.0),
        timed("rope", "elementwise", 4.0, memory=1.0, overhead=3.0),
        timed("host", "host", 6.0, overhead=6.0),
    ))  # fmt: skip
    SPENT = StepShares({"matrix": 44.0, "attention": 20.0, "elementwise": 10.0}, launch=7.0, host=30.0)

    def test_classes(self) -> None:
        found = {line.what: (line.measured_us, round(line.predicted_us, 9)) for line in classes(self.SPENT, self.STEP)}
        assert found == {"matrix": (44.0, 40.0), "attention": (20.0, 20.0), "elementwise": (10.0, 4.0),
                         "network": (0.0, 0.0), "launch": (7.0, 0.0), "host": (30.0, 6.0)}  # fmt: skip

    def test_causes_split_a_class_as_the_prediction_does(self) -> None:
        """30 of the 40 predicted microseconds of matrices are compute's: so are 33 of the 44 measured ones."""
        found = {line.what: (line.measured_us, round(line.predicted_us, 6)) for line in causes(self.SPENT, self.STEP)}
        assert found["compute"] == (33.0, 25.0)
        assert found["memory"] == (11.0 + 20.0 + 10.0, 8.0 + 20.0 + 1.0)
        assert found["launch"] == (7.0, 5.0 + 2.0 + 3.0)
        assert found["host"] == (30.0, 6.0)

    def test_both_sides_add_up(self) -> None:
        for lines in (classes(self.SPENT, self.STEP), causes(self.SPENT, self.STEP)):
            assert sum(line.measured_us for line in lines) == pytest.approx(self.SPENT.total)
            assert sum(line.predicted_us for line in lines) == pytest.approx(1e6 * float(self.STEP.expected))

    def test_a_real_plan_fills_every_class(self, plan_of) -> None:
        step = plan_of("mixtral-8x7b", tp=2, calibration="h100-sxm--vllm").time(Batch.decode(8.0, 2048.0))
        lines = {line.what: line.predicted_us for line in classes(StepShares({}, 0.0, 0.0), step)}
        assert all(lines[name] > 0 for name in ("matrix", "attention", "elementwise", "network"))
        assert sum(lines.values()) == pytest.approx(1e6 * float(step.expected))


class TestTrace:
    def test_events_of_a_chrome_trace(self, tmp_path: Path) -> None:
        """The categories that Kineto writes; annotations, waiting and instants are left out."""

        def event(cat: str, name: str, ts: float, dur: float, **args: int) -> dict[str, object]:
            return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": args}

        trace = {"traceEvents": [
            event("cpu_op", "aten::mm", 0, 9), event("cuda_runtime", "cudaLaunchKernel", 3, 2, correlation=7),
            event("kernel", "gemm", 12, 5, correlation=7), event("gpu_memcpy", "Memcpy DtoH", 18, 1, correlation=8),
            event("cuda_runtime", "cudaDeviceSynchronize", 10, 90, correlation=9),
            event("user_annotation", "step", 0, 100), {"ph": "i", "cat": "kernel", "name": "mark", "ts": 1},
        ]}  # fmt: skip
        path = tmp_path / "trace.json"
        path.write_text(json.dumps(trace), encoding="utf-8")
        assert list(read_trace(path)) == [
            Event("aten::mm", 0, 9, "operator"), Event("cudaLaunchKernel", 3, 5, "launch", 7),
            Event("gemm", 12, 17, "kernel", 7), Event("Memcpy DtoH", 18, 19, "kernel", 8),
        ]  # fmt: skip
