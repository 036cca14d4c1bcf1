"""Measurement files without a machine: what was put into one comes back from a calibration fitted to it."""

import json
import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import rooflinekit as rk
from rooflinekit.cli.app import app
from rooflinekit.evidence.accuracy import kernel_accuracy
from rooflinekit.evidence.kernel_fit.calibrate import form_time
from rooflinekit.evidence.kernel_fit.groups import read_measurements
from rooflinekit.evidence.kernel_fit.tables import measured_rows
from rooflinekit.evidence.steps import compare_model
from rooflinekit.model.step import make_plan
from rooflinekit.model.timing.forms import GemmTime, PlainTime
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.hardware import System
from rooflinekit.specs import load_accelerator, load_model
from rooflinekit.specs.calibration.load import load_calibration, read_calibration
from rooflinekit.specs.engines import load_engine

H100 = System.of(load_accelerator("h100-sxm").value)
MEASURED = Path(__file__).parents[1] / "validate" / "measurements" / "h100-sxm-2026-11-27"
LOADS = MEASURED.parent / "h200-sxm-2026-11-28"
HEADER = {
    "type": "header", "schema": 1, "run": "r", "started": "2026-01-01T00:00:00Z", "suite": "full", "model": "gpt2",
    "dtype": "bf16", "engine": "gpt-fast", "engine_version": "torch 2",
    "device": {"name": "NVIDIA H100 80GB HBM3", "cores": 132, "memory_bytes": 80 * 2**30},
}  # fmt: skip
TRUTH = {
    "gemm": GemmTime(launch=3.1e-6, depth_root=1.4e-6, compute=0.71, memory=0.83, tile=120.0),
    "elementwise": PlainTime(launch=4e-6, compute=0.7, memory=0.65, row=2e-9),
}
SHAPES = {
    "gemm": ("m", "n", "k"),
    "elementwise": ("tokens", "read", "written"),
}
SIZES = {
    "gemm": product((1, 4, 16, 64, 256, 1024, 8192), (512, 1024, 4096, 16384), (512, 2048, 4096, 8192)),
    "elementwise": [(n, 2 * d, 2 * d) for n in (1, 16, 256, 4096, 16384) for d in (1024, 2048, 4096, 8192)],
}
TABLES = {op: pd.DataFrame(list(sizes), columns=list(SHAPES[op])).assign(dtype="bf16") for op, sizes in SIZES.items()}
TABLES["elementwise"]["kind"] = "norm"


def write(path: Path, *rows) -> Path:
    lines = [HEADER, *({"type": "row", "run": "r", "status": "ok", "detail": "", **row} for row in rows)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def timed(us: float) -> dict[str, float]:
    return {"latency_us": us, "p10_us": us, "p90_us": us}


def cold_rows(op: str, noise=0.03):
    """Rows whose times are a known form without its warm-loop term, with noise."""
    table = TABLES[op].assign(latency_us=1.0, residency="cold")
    exact = form_time(TRUTH[op], measured_rows(table, op), H100)
    times = 1e6 * exact * np.exp(np.random.default_rng(0).normal(0.0, noise, len(table)))
    for shape, us in zip(TABLES[op].to_dict("records"), times, strict=True):
        yield {"op": op, "backend": "x", **shape, **timed(float(us))}


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    path = write(folder / "a.jsonl", *(row for op in TRUTH for row in cold_rows(op)))
    out = folder / "calibration.yaml"
    result = run("calibrate", path, "--gpu", "h100-sxm", "--engine", "gpt-fast", "--out", out)
    assert result.exit_code == 0, result.output
    return path, read_calibration(out)


@pytest.mark.parametrize(("op", "key", "names"), [
    ("gemm", "gemm/bf16", ("launch", "compute", "memory")),
    ("elementwise", "elementwise/bf16/norm", ("launch", "memory", "row")),
])  # fmt: skip
def test_known_parameters_come_back_within_their_spread(fitted, op, key, names):
    fit = fitted[1].families[key]
    for name in names:
        true = getattr(TRUTH[op], name)
        assert getattr(fit.form, name) == pytest.approx(true, abs=max(4 * fit.spread[name], 0.03 * true))


def test_the_fit_predicts_its_own_file_cold(fitted):
    path, _ = fitted
    scores = kernel_accuracy([path], str(path.with_name("calibration.yaml")))
    assert {group.key["op"] for group in scores.groups} == {"gemm", "elementwise"}
    assert all(group.median_ape < 0.04 for group in scores.groups)
    assert all(abs(group.median_bias) < 0.02 for group in scores.groups)


def test_cold_rows_are_not_taken_for_a_warm_loop():
    """A small matrix read from memory takes longer than one that the last call left in the cache."""
    one = pd.DataFrame({"m": [1.0], "n": [2048.0], "k": [1024.0], "dtype": "bf16", "latency_us": 1.0})
    form = GemmTime(cache_share=1.0, cache_speed=5.0)
    warm, cold = (form_time(form, measured_rows(rows, "gemm"), H100)[0] for rows in (one, one.assign(residency="cold")))
    assert cold > 1.2 * warm


def test_libraries_measured_alone_quantise_no_activations():
    """DeepGEMM on an H800: 32,768 rows of 65,536 by 128 columns in 0.71 ms; reading them in 16 bit takes 1.3 ms."""
    one = pd.DataFrame({"m": [32768.0], "n": [128.0], "k": [65536.0], "dtype": "fp8_block", "latency_us": 713.85})
    form = GemmTime(compute=1.0, memory=1.0, quantise=1.0)
    alone, served = (
        form_time(form, measured_rows(one.assign(engine=engine), "gemm"), H100)[0] for engine in ("deepgemm", "sglang")
    )
    reading = 3.0 * 32768 * 65536 / H100.accelerator.memory_bandwidth
    assert served - alone == pytest.approx(reading, rel=1e-3)
    assert alone == pytest.approx(713.85e-6, rel=0.1) and reading > 1.5e-3


def model_rows(times):
    """Rows of a model of which all steps take as long as `times` says, by phase, batch and context [s]."""
    return [
        {"op": "model", "backend": "x", "model": "gpt2", "mode": "graph", "dtype": "bf16", "phase": phase,
         "batch": batch, "context": context, "layers_run": 12, "layers": 12, "whole_us": 1e6 * seconds,
         "busy_us": {"matrix": 7e5 * seconds}, "launch_us": 1e5 * seconds, "host_us": 2e5 * seconds, **timed(1.0)}
        for (phase, batch, context), seconds in times.items()
    ]  # fmt: skip


def test_steps_of_models_are_compared_with_what_estimate_says(tmp_path):
    calibration = load_calibration("h100-sxm--vllm")
    bf16, engine = Dtype.BF16, load_engine("gpt-fast")
    deployment = Deployment(weights=bf16, activations=bf16, kv=bf16, engine="gpt-fast")
    plan = make_plan(load_model("gpt2").value, deployment, H100, calibration, engine)
    work = {("prefill", 4, 128): Batch.prefill(4.0, 128.0), ("decode", 8, 100): Batch.decode(8.0, 100.0)}
    rows = model_rows({point: 2.0 * float(plan.time(batch).expected) for point, batch in work.items()})
    found = list(compare_model(rows, "h100-sxm", "h100-sxm--vllm"))
    assert [step.point.phase for step in found] == ["prefill", "decode"]
    assert all(step.error == pytest.approx(-0.5, abs=0.005) for step in found)
    assert all(step.low_ms <= step.predicted_ms <= step.high_ms for step in found)


def test_compare_reads_the_steps_of_a_measurement_file(tmp_path):
    """A step has no load: it is a static batch, on the accelerator that the file names."""
    path = write(tmp_path / "a.jsonl", *model_rows({("prefill", 4, 128): 0.01, ("decode", 8, 100): 0.002}))
    result = run("compare", path, "--format", "json")
    assert result.exit_code == 0, result.output
    prefill, decode = json.loads(result.stdout)["runs"]
    expected = rk.estimate("gpt2", "h100-sxm", engine="gpt-fast", batch=8, isl=99, osl=2, context=100)
    (metric,) = decode["metrics"]
    assert (metric["metric"], metric["measured"]) == ("tpot_ms", 2.0)
    assert metric["predicted"] == pytest.approx(expected.tpot_ms)
    assert (decode["gpu"], decode["engine"], decode["concurrency"]) == ("h100-sxm", "gpt-fast", 8)
    assert [each["metric"] for each in prefill["metrics"]] == ["ttft_ms"]


@pytest.mark.parametrize(("column", "value"), [
    ("whole_us", 0), ("whole_us", float("nan")), ("whole_us", "abc"), ("phase", "both"), ("context", 1), ("batch", 1.5),
    ("layers_run", 0), ("model", None), ("kernels", 300),
])  # fmt: skip
def test_a_step_that_cannot_be_is_told_by_its_line(tmp_path, column, value):
    """Without floor_us and enqueue_us a count of kernels says nothing."""
    (row,) = model_rows({("decode", 8, 100): 0.002})
    found = run("compare", write(tmp_path / "a.jsonl", row | {column: value}))
    assert found.exit_code == 2
    assert "a.jsonl: line 2: " in found.stderr
    assert found.stderr.count("\n") == 1


def test_steps_and_a_start_up_log_are_compared_in_one_call(tmp_path):
    """What is given for the log is not of the steps, which say themselves how they ran."""
    steps = write(tmp_path / "a.jsonl", *model_rows({("decode", 8, 100): 0.002}))
    given = "non-default args: {'max_model_len': 8192, 'gpu_memory_utilization': 0.85}\n"  # by validate/engine_run.py
    log = tmp_path / "vllm.log"
    log.write_text(given + (MEASURED / "vllm-llama-3-8b.log").read_text(encoding="utf-8"), encoding="utf-8")
    both = run("compare", steps, log, "--gpu", "h100-sxm", "--model", "llama-3-8b", "--tp", "1", "--format", "json")
    assert both.exit_code == 0, both.output
    step, start = json.loads(both.stdout)["runs"]
    assert step["model"] == "gpt2"
    errors = {each["metric"]: each["error"] for each in start["metrics"]}
    assert errors.pop("graph_bytes") > 1.0  # the run captured a few sizes; by default there are 51
    assert errors == {
        "weight_bytes": pytest.approx(0.0, abs=0.01),
        "kv_bytes_per_token_per_gpu": pytest.approx(0.0, abs=0.01),
        "kv_pool_bytes": pytest.approx(0.0, abs=0.03),  # which pays for the graphs
        "kv_pool_tokens": pytest.approx(0.0, abs=0.03),
    }


def test_steps_for_another_accelerator_say_so(tmp_path):
    path = write(tmp_path / "a.jsonl", *model_rows({("decode", 8, 100): 0.002}))
    assert (
        "measured on h100-sxm and predicted for a100-sxm-80gb" in run("compare", path, "--gpu", "a100-sxm-80gb").stdout
    )


@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_steps_of_a_real_vllm_lie_inside_their_intervals(phase):
    """Llama-3-8B on an H100, which no fit has seen; decode steps within 6 %, prompts too fast by 20 % at the most.

    Costs are those of vLLM 0.8 to 0.18; the host of 0.24 takes less.
    """
    rows = [row for row in read_measurements(MEASURED / "engine.jsonl").of("serving_step") if row["phase"] == phase]
    found = list(compare_model(rows, "h100-sxm"))
    assert len(found) >= 4
    assert all(step.low_ms <= step.measured_ms <= step.high_ms for step in found)
    assert all(abs(step.error) < (0.06 if phase == "decode" else 0.2) for step in found)
    low, high = (-0.03, 0.04) if phase == "decode" else (-0.1, 0.0)
    assert low < sum(step.error for step in found) / len(found) < high


def loads(model, wanted):
    """Rows of a real vLLM under load that are wanted, with tokens in and out."""
    for line in (LOADS / f"load-{model}.jsonl").read_text().splitlines():
        row = json.loads(line)
        each = [row[f"total_{way}_tokens"] / row["completed"] for way in ("input", "output")]
        if wanted(row, *each):
            yield row, *each


@pytest.mark.parametrize("model", ["llama-3-8b", "qwen3-30b-a3b"])
def test_short_prompts_of_a_lone_user_replay_graphs(model):
    """128 to 512 tokens on an H200, up to 2 ms too early. Launched one by one they take 1.4 times as long."""
    found = list(loads(model, lambda row, isl, osl: isl <= 512 and osl == 1 and row.get("max_concurrency") == 1))
    assert len(found) >= 2
    for row, isl, _ in found:
        asked = {
            "isl": int(isl),
            "osl": 1,
            "concurrency": 1,
            "token_budget": row["token_budget"],
            "front_end": "token-ids",
        }
        graphed = rk.estimate(model, "h200-sxm", engine="vllm", **asked)
        assert graphed.ttft_ms == pytest.approx(row["mean_ttft_ms"], rel=0.15)
        assert rk.estimate(model, "h200-sxm", engine="vllm", eager=True, **asked).ttft_ms > 1.4 * row["mean_ttft_ms"]


@pytest.mark.parametrize("model", ["llama-3-8b", "qwen3-30b-a3b"])
def test_users_of_a_real_vllm_wait_as_predicted(model):
    """Closed loops of an H200 with 32 users and more, which no fit has seen: requests take as long within 12 %.

    Prompts of experts that nothing follows, 64 to a step, are predicted 14 % too fast.
    """
    found = list(loads(model, lambda row, isl, osl: row.get("max_concurrency", 0) >= 32))
    assert len(found) >= 5
    for row, isl, osl in found:
        asked = {"concurrency": row["max_concurrency"], "requests": row["completed"], "isl": isl, "osl": round(osl)}
        answer = rk.estimate(
            model, "h200-sxm", engine="vllm", token_budget=row["token_budget"], front_end="token-ids", **asked
        )
        off = 0.12 if osl > 1 else 0.15
        assert answer.e2e_ms == pytest.approx(row["mean_e2el_ms"], rel=off)


def test_compare_says_what_a_measurement_file_lacks_and_what_it_says_itself(tmp_path):
    steps = write(tmp_path / "a.jsonl", *model_rows({("decode", 8, 100): 0.002}))
    kernels = write(tmp_path / "b.jsonl", *cold_rows("elementwise"))
    assert "leave --tp out" in run("compare", steps, "--tp", "2").stderr
    assert "holds no whole steps; `accuracy kernels`" in run("compare", kernels).stderr
    assert "holds no whole steps\n" in run("compare", write(tmp_path / "c.jsonl")).stderr
    assert "no measured kernels" in run("accuracy", "kernels", steps).stderr
    assert "leave --replicas out" in run("compare", steps, "--replicas", "2").stderr


def test_the_steps_of_an_engine_tell_what_it_adds_to_its_kernels(tmp_path):
    """Eight decode steps that take a millisecond more than predicted: the host's part of a step grows by that much."""
    points = [("decode", batch, context) for batch in (1, 8, 32, 128) for context in (512, 2048)]
    kept = []
    for row, step in zip(model_rows(dict.fromkeys(points, 1.0)), points, strict=True):
        asked = rk.estimate("llama-3-8b", "h100-sxm", batch=step[1], isl=step[2] - 1, osl=2, context=step[2])
        own = {"op": "serving_step", "model": "llama-3-8b", "engine": "vllm", "engine_version": "0.24.0"}
        kept.append(row | own | {"whole_us": 1e3 * (asked.tpot_ms + 1.0)})
    path, out = write(tmp_path / "a.jsonl", *kept), tmp_path / "c.yaml"
    result = run("calibrate", path, "--out", out)
    assert result.exit_code == 0, result.output
    assert "leave --tp out" in run("calibrate", path, "--tp", "2", "--out", tmp_path / "d.yaml").stderr
    own_models = write(tmp_path / "b.jsonl", *model_rows({("decode", 8, 100): 0.002}))  # no engine's: nothing to fit
    alone = run("calibrate", own_models, "--gpu", "h100-sxm", "--out", tmp_path / "d.yaml")
    assert (alone.exit_code, "no measured kernels" in alone.stderr) == (2, True)
    served = read_calibration(out).served
    assert served is not None
    assert served.costs.step - load_engine("vllm").costs.step == pytest.approx(1e-3, rel=0.25)
    again = rk.estimate("llama-3-8b", "h100-sxm", calibration=str(out), batch=8, isl=511, osl=2, context=512)
    assert 1e3 * again.tpot_ms == pytest.approx(kept[2]["whole_us"], rel=0.05)


def test_models_are_compared_without_pytorch():
    code = "import sys, rooflinekit.validate.compare_model; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_engines_add_on_gpus_is_left_out_on_a_cpu():
    cpu = System.of(load_accelerator("cpu-xeon-8480-2s").value)
    deployment, engine = Deployment(engine="gpt-fast"), load_engine("gpt-fast")
    for system, added in ((H100, True), (cpu, False)):
        plan = make_plan(load_model("gpt2").value, deployment, system, load_calibration("h100-sxm--vllm"), engine)
        step = plan.time(Batch.decode(1.0, 100.0))
        assert any(timed.kernel.family == "host" for timed in step.kernels) is added


def test_the_report_of_a_file_has_kernels_models_and_causes(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    import report_validation

    rows = [*cold_rows("elementwise"), *model_rows({("prefill", 4, 128): 0.01, ("decode", 8, 100): 0.002})]
    failed = {"op": "gemm", "backend": "x", "status": "missing", "detail": "no such kernel", "dtype": "fp8"}
    path = write(tmp_path / "a.jsonl", *rows, failed)
    monkeypatch.setattr("sys.argv", ["", str(path), "--gpu", "h100-sxm", "--out", str(tmp_path)])
    report_validation.main()
    text = (tmp_path / "validation-h100-sxm-2026-01-01.html").read_text(encoding="utf-8")
    assert "elementwise/bf16/norm" in text
    assert "gpt2 decode 8 × 100" in text
    assert "missing: no such kernel" in text
    assert text.count("<circle") == len(TABLES["elementwise"])
    assert "1.4 / " in text  # 0.7 of the 2 ms of a decode step are matrices


def test_rows_that_no_calibration_reads_are_left_alone(tmp_path):
    ceiling = {"op": "ceiling", "backend": "x", "kind": "copy", "bytes": 1024, "value": 1e9, **timed(1.0)}
    failed = {"op": "gemm", "backend": "x", "status": "failed", "detail": "no", "dtype": "bf16", "m": 1, "n": 1, "k": 1}
    path = write(tmp_path / "a.jsonl", ceiling, failed)
    result = run("calibrate", path, "--gpu", "h100-sxm", "--engine", "gpt-fast", "--out", tmp_path / "c.yaml")
    assert result.exit_code == 2
    assert "a.jsonl: no measured kernels" in result.stderr
