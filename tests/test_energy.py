"""Energy of kernels and steps: bounds of power, sums, growth with work, and laws of chips without measured power."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rooflinekit as rk
from rooflinekit.estimation.estimator import resolve
from rooflinekit.evidence.accuracy import kernel_accuracy
from rooflinekit.evidence.accuracy_energy import energy_accuracy
from rooflinekit.evidence.board_power import PoweredRows, as_read, metered
from rooflinekit.evidence.kernel_fit.calibrate import build_calibration
from rooflinekit.model.power import PARTS, Energy, kernel_energy
from rooflinekit.model.roofline import time_kernel
from rooflinekit.model.serving.energy import Run, TokenEnergy, run_power
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.errors import SpecError
from rooflinekit.model.types.hardware import System
from rooflinekit.model.types.kernel import GemmShape, Kernel
from rooflinekit.model.types.time import KernelTime
from rooflinekit.report.answers import document_of
from rooflinekit.report.document import plain_text
from rooflinekit.specs import load_accelerator, names
from rooflinekit.specs.calibration.load import load_calibration
from rooflinekit.specs.places import spec_dir
from rooflinekit.specs.power import PowerBench

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
    apart = [kernel_energy(each, gpu, gpu.power) for each in (one, other)]
    both = sum(apart, Energy())
    assert both.total == pytest.approx(sum(each.total for each in apart))
    assert both.total == pytest.approx(sum(getattr(both, part) for part in PARTS))


def test_a_large_matrix_product_draws_the_limit_and_a_board_that_waits_for_the_host_a_floor():
    gpu = load_accelerator("h200-sxm").value
    flops = 2.0 * 8192**3
    drawn = watts(gpu, flops=flops, seconds=flops / (0.7 * gpu.peak(Dtype.BF16)))
    assert drawn == pytest.approx(gpu.power.held * 700.0)
    host = replace(timed(), kernel=Kernel("host", "host", 1, Dtype.BF16))
    assert kernel_energy(host, gpu, gpu.power).total == pytest.approx(gpu.power.waiting * 1e-3)
    assert gpu.power.idle < gpu.power.waiting < gpu.power.active
    assert load_accelerator("h100-sxm").value.power.waiting == pytest.approx(160.0, abs=1.0)  # reports/sustained.md


def test_bytes_cost_what_the_law_says():
    gpu = load_accelerator("h200-sxm").value
    law = gpu.power
    found = kernel_energy(timed(weight_bytes=1e9, kv_read_bytes=5e8, activation_bytes=1e6), gpu, law)
    assert found.weights == pytest.approx(1e9 * law.memory)
    assert found.cache == pytest.approx(5e8 * law.memory)
    assert found.activations == pytest.approx(1e6 * law.cache)  # stays in the last cache
    assert found.running == pytest.approx(1e-3 * law.active)


@pytest.mark.parametrize(("caches", "near"), [(1e-3, 1.0), (1.0, 1 / 2), (2.0, 1 / 17)])
def test_of_a_warm_cache_comes_the_less_the_more_is_moved(caches, near):
    """1/(1 + (bytes/L2)^4): all of a thousandth of what it holds, half of what it holds, a 17th of twice as much."""
    gpu = load_accelerator("h200-sxm").value
    moved = caches * gpu.l2_bytes
    found = kernel_energy(timed(weight_bytes=moved), gpu, gpu.power, warm=True).weights
    assert found == pytest.approx(moved * (near * gpu.power.cache + (1.0 - near) * gpu.power.memory))


@given(st.sampled_from(CHIPS), SIZES)
def test_a_flop_of_attention_costs_what_one_of_a_product_does(chip, flops):
    gpu = load_accelerator(chip).value
    each = timed(flops=flops)
    asked = [
        kernel_energy(replace(each, kernel=replace(each.kernel, family=family)), gpu, gpu.power).arithmetic
        for family in ("gemm", "attention_prefill", "attention_decode", "mla_prefill")
    ]
    assert asked == pytest.approx([asked[0]] * 4)


@pytest.mark.parametrize("context", [128, 4096])
def test_a_lone_user_never_shares_a_step(context):
    """A closed loop of one is a static batch of one, but for the front end between two requests."""
    load = {"isl": context, "osl": 256}
    alone, looped = (rk.estimate("llama-3-8b", "h200-sxm", **load, **each) for each in ({}, {"concurrency": 1}))
    assert looped.energy.power_w_per_gpu == pytest.approx(alone.energy.power_w_per_gpu, rel=0.03)
    assert 0.95 < looped.energy.busy <= 1.0


@pytest.mark.parametrize("users", [1, 2])
def test_a_plan_of_few_users_draws_what_estimate_says(users):
    """A plan's users have sent two requests each before any counts, and their equal answers vary by a tenth."""
    load = {"isl": 1000, "osl": 200, "concurrency": users}
    plug = rk.estimate(
        "llama-3-8b", "h200-sxm", **load | {"osl": "uniform:165-235"}, warmup=2 * users
    ).energy.plug_w_per_gpu
    alone = {"tp": [1], "disaggregated": False}
    (chosen, *_) = rk.plan("llama-3-8b", "h200-sxm", slo="p95 tpot<60ms", **alone, **load).candidates
    assert chosen.gpus == 1
    assert chosen.cost.watts == pytest.approx(plug, rel=1e-9)


def test_every_chip_with_a_rated_power_has_a_law_and_only_measured_ones_say_so():
    own = {name for name in names("accelerator") if (p := load_accelerator(name).value.power) and p.measured}
    assert own == {"h200-sxm", "b200-sxm", "gb200"}
    for name in names("accelerator"):
        gpu = load_accelerator(name).value
        assert (gpu.power is None) == (not gpu.tdp_w)
        if gpu.power:
            assert 0.0 < gpu.power.idle < gpu.power.active < gpu.power.held * gpu.power.limit
            assert set(gpu.power.flop) == set(gpu.peaks)


def test_the_cores_of_a_package_draw_beside_its_gpu():
    # 18.0 W beside the share of 120 W that an H200 takes of 700 W; cores beside no GPU that works draw nothing more
    chip, near = (load_accelerator(name).value for name in ("ryzen-ai-max-395", "h200-sxm"))
    assert chip.power.active == pytest.approx(near.power.active / 700.0 * 120.0 + 18.0, abs=0.01)
    assert chip.power.idle == pytest.approx(126.43 / 700.0 * 120.0, abs=0.01)
    assert "CPU cores of the package" in chip.power.source


def test_every_chip_with_a_law_answers():
    """Chips without 16-bit brain floats, or with integers alone, have joules for what they compute in."""
    for name in names("accelerator"):
        law = load_accelerator(name).value.power
        if law is None:
            continue
        formats = {} if Dtype.BF16 in law.flop else {"weights": "fp16", "activations": "fp16"}
        found = rk.estimate("qwen2.5-0.5b", name, calibration="none", allow_oom=True, **formats)
        assert law.idle <= found.energy.power_w_per_gpu <= law.limit, name


def test_a_runs_interval_is_that_of_measured_runs_for_every_chip():
    """Width of whole runs is conformal over runs on stand-in laws, so that a stand-in is no wider than that."""
    widths = {load_accelerator(name).value.power.run_width for name in ("h200-sxm", "h100-sxm", "a100-sxm-40gb")}
    assert len(widths) == 1
    energy = rk.estimate("llama-3-8b", "a100-sxm-40gb", batch=32).energy
    low, high = energy.interval
    assert energy.power_w_per_gpu / low == pytest.approx(widths.pop())
    assert high <= energy.limit_w


def test_a_stand_in_is_wider_and_a_users_file_of_the_same_name_has_no_measured_law(tmp_path):
    own, other = (load_accelerator(name).value.power for name in ("h200-sxm", "h100-sxm"))
    assert all(far > near for far, near in zip(other.widths, own.widths, strict=True))
    copy = tmp_path / "h200-sxm.yaml"
    copy.write_text((spec_dir("accelerator") / "h200-sxm.yaml").read_text())
    assert not load_accelerator(copy).value.power.measured


def test_arrays_and_numbers_give_the_same_energy(plan_of):
    plan = plan_of("mixtral-8x7b", "h200-sxm", "h200-sxm--vllm", tp=2)
    sizes = np.array([1.0, 16.0, 256.0])

    def spent(batch):
        return sum((plan.energy(each) for each in plan.time(Batch.decode(batch, 1024.0)).kernels), Energy()).total

    many, each = spent(sizes), [spent(size) for size in sizes]
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
    assert power.median_ape < 0.06
    assert {"gemm", "gemm power_w"} == set(found.summary)
    assert sum("readings" in reason for reason in found.unanswered) == 1


SIX = PowerBench(launches=6.0)  # in one replay


def read_by_a_meter(microseconds, bench=SIX):
    """What the meter shows of 500 W on a board that idles at 100 W."""
    time = np.array(microseconds) * 1e-6
    kernel = Kernel("g", "gemm", 1, Dtype.BF16, 1e9, 1e8)
    timed = KernelTime(time, time, time, time, kernel, 0.0, 0.0, 0.0, 0.0)
    rows = PoweredRows("gemm", "gemm/bf16", pd.DataFrame(), timed, time, np.zeros(len(time), int))
    return as_read(np.full(len(time), 500.0), 100.0, rows, bench)


def test_the_mean_of_fewer_readings_shows_less_of_a_cold_board():
    """One reading is of the pause before; of ten the mean has the decimals of five in two cases of five."""
    time, cold = np.full(3, 2e-3), PowerBench(pause=1e9)
    timed = KernelTime(time, time, time, time, Kernel("g", "gemm", 1, Dtype.BF16, 1e9, 1e8), 0.0, 0.0, 0.0, 0.0)
    table = pd.DataFrame({"samples_min": [11, 5, 4]})
    found = as_read(np.full(3, 500.0), 100.0, PoweredRows("gemm", "", table, timed, time, np.zeros(3, int)), cold)
    shares = [sum(range(last)) / 9.0 / (last + 1.0) for last in (10, 9, 11)]
    shares[2] = (sum(range(10)) / 9.0 + 1.0) / 12.0  # the twelfth reading is whole: a second and more has run
    assert found == pytest.approx([100.0 + 400.0 * share for share in shares], rel=1e-3)


def test_a_meter_shows_less_of_short_series_and_after_pauses():
    """Windows of 18 ms, 0.18 s and a second; readings of the first second show the time before."""
    assert read_by_a_meter([1.0, 10.0, 100.0]) == pytest.approx(500.0)  # no pause: the board never cools
    found = read_by_a_meter([1.0, 10.0, 100.0], SIX._replace(pause=0.1))
    assert found[0] == pytest.approx(100.0 + 400.0 * 0.018 / 0.118)
    assert 100.0 < found[0] < found[1] < found[2] < 500.0
    assert (read_by_a_meter([1.0, 10.0, 100.0], SIX._replace(pause=0.1, pause_per_byte=1e-9)) < found).all()


def test_keys_and_pages_are_made_before_a_kernel_and_activations_are_not():
    """Weights and keys take a pause by their bytes, sequences one by their tokens; what a kernel moves besides none."""
    time, cold = np.full(2, 2e-4), PowerBench(pause_per_byte=1e-8, pause_per_token=1e-6)

    def read(table, **work):
        kernel = Kernel("g", "attention_prefill", 1, Dtype.BF16, 1e9, **work)
        rows = KernelTime(time, time, time, time, kernel, 0.0, 0.0, 0.0, 0.0)
        rows = PoweredRows("attention_prefill", "", pd.DataFrame(table), rows, time, np.zeros(2, int))
        return as_read(np.full(2, 500.0), 100.0, rows, cold)

    assert read({}, activation_bytes=1e9) == pytest.approx(500.0)
    assert (read({}, kv_read_bytes=1e9) < 450.0).all()
    few, many = read({"batch": [1, 64], "seq_len": [16, 8192]})
    assert many < 450.0 < few


def test_replays_that_the_host_launches_slowly_end_early():
    """A second holds 1,000 calls of 1 ms: of a kernel of 0.2 ms the board runs 0.2 s, of one of 2 ms the second."""
    time = np.array([2e-4, 2e-3])
    window, last = metered(time, PowerBench(call=1e-3))
    assert window == pytest.approx([0.2, 1.0])
    assert last.tolist() == [2.0, 10.0]
    assert (metered(time, PowerBench())[0] >= window).all()
    cold = PowerBench(pause=10.0)
    assert read_by_a_meter([200.0], cold._replace(call=1e-3)) < read_by_a_meter([200.0], cold)
    # a mean of a second that begins cold: eleven readings show none to nine tenths of what runs
    assert read_by_a_meter([2000.0], PowerBench(pause=1e9)) == pytest.approx(100.0 + 400.0 * 5.0 / 11.0, rel=1e-3)


FILE = "measurements.jsonl"


def powered_file(folder, running, work):
    """Kernels below the limit whose power is that of the shipped law with other factors."""
    gpu = load_accelerator("h200-sxm").value
    law = gpu.power.scaled(running, work, "")
    rows = []
    slower = {4096: 1.5, 8192: 3.0, 16384: 10.0}
    for m, n, k in itertools.product((1, 8, 32), slower, (4096, 8192, 16384)):
        shape = GemmShape(float(m), float(n), float(k))
        kernel = Kernel("g", "gemm", 1, Dtype.BF16, 2.0 * m * n * k, 2.0 * n * k, shape=shape)
        kernel = replace(kernel, activation_bytes=2.0 * m * (n + k))
        seconds = slower[n] * time_kernel(kernel, System.of(gpu), None).expected
        each = KernelTime(seconds, seconds, seconds, seconds, kernel, 0.0, 0.0, 0.0, 0.0)
        drawn = kernel_energy(each, gpu, law).total / seconds
        rows.append((m, n, k, {"latency_us": 1e6 * seconds, "sustained_us": 1e6 * seconds, "power_w": drawn}))
    return measurement_file(folder, "vllm", rows)


def measurement_file(folder, engine, rows):
    """A file of `rooflinekit validate` on an H200 with matrix products."""
    header = {"type": "header", "schema": 1, "run": "a", "started": "2026-11-23T00:00:00Z", "suite": "kernels",
              "model": "llama-3-8b", "engine": engine, "engine_version": "torch 2.11.0", "dtype": "bf16",
              "device": {"name": "NVIDIA H200"}}  # fmt: skip
    lines = [header] + [
        {"type": "row", "run": "a", "op": "gemm", "backend": "torch", "status": "ok", "detail": "", "dtype": "bf16",
         "m": m, "n": n, "k": k, **dict.fromkeys(("p10_us", "p90_us"), cells["latency_us"]), **cells}
        for m, n, k, cells in rows
    ]  # fmt: skip
    path = folder / FILE
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def steady_file(folder, engine, shapes):
    """Short kernels have no power, long ones that of two seconds at a lower clock."""
    gpu = load_accelerator("h200-sxm").value
    kernels = [Kernel("g", "gemm", 1, Dtype.BF16, 2 * m * 8192.0**2, 8192.0**2 * 2) for m in shapes]
    bursts = [1e6 * time_kernel(each, System.of(gpu), None).expected / 0.7 for each in kernels]
    rows = [
        (m, 8192, 8192, {"latency_us": us, **({"sustained_us": 1.2 * us, "power_w": 690.0} if us > 100.0 else {})})
        for m, us in zip(shapes, bursts, strict=True)
    ]
    return measurement_file(folder, engine, rows)


def test_steady_power_is_scored_in_the_time_of_its_own_pass(tmp_path):
    found = kernel_accuracy([steady_file(tmp_path, "gpt-fast", (4096, 8192, 16))])
    power = next(group for group in found.groups if group.key.get("metric") == "power_w")
    assert (power.n, power.answered) == (2, 2)
    assert power.median_ape < 0.1
    assert not found.unanswered


@pytest.mark.parametrize(("running", "work"), [(1.2, 0.7), (0.6, 1.5)])
def test_a_calibration_carries_the_law_of_power_to_measured_kernels(tmp_path, running, work):
    gpu = load_accelerator("h200-sxm").value
    built = build_calibration([powered_file(tmp_path, running, work)], gpu, "vllm", "2026-11-23")
    (told,) = [note for note in built.notes if "power" in note]
    path = tmp_path / "own.yaml"
    path.write_text(built.text)
    found = load_calibration(str(path)).power
    assert found == pytest.approx((running, work), rel=0.15), told
    entries = rk.estimate("llama-3-8b", "h200-sxm", calibration=str(path)).provenance
    law = {each.quantity: each.value for each in entries}
    assert law["power.active"] == pytest.approx(gpu.power.idle + found[0] * (gpu.power.active - gpu.power.idle))
    assert law["power.memory"] == pytest.approx(found[1] * gpu.power.memory)
    error = {}
    for name in (str(path), "h200-sxm--vllm"):
        error[name] = kernel_accuracy([tmp_path / FILE], name).summary["gemm power_w"]["median_ape"]
    assert error[str(path)] < 0.03 < error["h200-sxm--vllm"]


def test_a_law_that_its_kernels_confirm_is_kept(tmp_path):
    built = build_calibration([powered_file(tmp_path, 1.0, 1.0)], load_accelerator("h200-sxm").value, "vllm", "today")
    assert "power:" not in built.text
    assert any("it is kept" in note for note in built.notes)


def test_a_calibration_of_another_chip_leaves_the_law_alone(tmp_path):
    path = tmp_path / "own.yaml"
    built = build_calibration(
        [powered_file(tmp_path, 1.2, 0.7)], load_accelerator("h200-sxm").value, "vllm", "2026-11-23"
    )
    path.write_text(built.text)
    drawn = [rk.estimate("llama-3-8b", "h100-sxm", calibration=each).provenance for each in (str(path), None)]
    laws = [[each for each in one if each.quantity.startswith("power.")] for one in drawn]
    assert laws[0] == laws[1]


def run_table(tmp_path, **cells):
    row = {
        "source_key": "s", "model": "llama-2-7b", "gpu": "h100-sxm", "engine": "vllm", "load": "static", "tp": 1,
        "isl_mean": 1024, "osl_mean": 1024, "mean_running": 16, "power_w_per_gpu": 495.0, "weight_dtype": "fp16",
        "energy_per_output_token_j": 0.4, "output_tok_s_total": "", **cells,
    }  # fmt: skip
    path = tmp_path / "runs.csv"
    pd.DataFrame([row]).to_csv(path, index=False)
    return energy_accuracy([path])


def test_a_measured_throughput_sets_the_share_of_waiting(tmp_path):
    """A board that makes a tenth of the tokens that it could draws little more than idle power."""
    gpu = load_accelerator("h100-sxm").value
    bias = [run_table(tmp_path, output_tok_s_total=rate).groups[1].bias for rate in (150.0, 700.0, 1400.0)]
    drawn = [495.0 * (1.0 + each) for each in bias]
    assert gpu.power.idle < drawn[0] < drawn[1] < drawn[2]
    assert drawn[0] < gpu.power.idle + 0.2 * (gpu.power.limit - gpu.power.idle)


def test_inter_token_latency_is_a_throughput_too(tmp_path):
    by_rate = run_table(tmp_path, load="saturated", output_tok_s_total=1000.0)
    by_latency = run_table(tmp_path, load="saturated", itl_steady_ms=16.0)
    assert by_rate.groups == by_latency.groups


@pytest.mark.parametrize(
    ("cells", "same"),
    [
        ({"model": "a name of its own", "hf_model": "meta-llama/Llama-2-7b-hf"}, {}),
        ({"tp": "", "n_gpus": 2}, {"tp": 2}),
        ({"kv_dtype": "auto"}, {}),
        ({"kv_dtype": "n/a", "weight_dtype": "unknown"}, {"weight_dtype": ""}),
        ({"engine": "TensorRT-LLM"}, {"engine": "trtllm"}),
        ({"engine_version": "2024, not stated"}, {"engine_version": "0.6"}),
        (
            {"load": "poisson", "mean_running": "", "output_tok_s_total": 800, "itl_steady_ms": 20},
            {"load": "poisson", "mean_running": 16, "output_tok_s_total": 800},
        ),
        ({"mean_running": "", "max_num_seqs": 16}, {}),
        ({"n_gpus": 4, "mean_running": 64, "output_tok_s_total": 4000}, {"output_tok_s_total": 1000}),
        ({"itl_steady_ms": "", "tpot_reported_ms": 20}, {"itl_steady_ms": 20}),
        ({"power_w_per_gpu": "", "power_w_total": 990, "n_gpus": 2, "tp": 2}, {"tp": 2}),
        ({"energy_per_output_token_j": "", "energy_per_request_j": 0.4 * 1024}, {}),
    ],
)
def test_runs_say_what_they_ran_in_more_than_one_way(tmp_path, cells, same):
    found, other = ([group.bias for group in run_table(tmp_path, **each).groups] for each in (cells, same))
    assert found == other


def test_weights_that_a_chip_cannot_multiply_are_widened(tmp_path):
    """An A100 has no FP8 units: a token reads half the bytes, and its arithmetic is in 16 bit."""
    narrow, wide = (run_table(tmp_path, gpu="a100-sxm-80gb", weight_dtype=each).groups[0] for each in ("fp8", "bf16"))
    assert narrow.answered == 1
    assert narrow.bias < wide.bias


def test_a_board_of_a_pipeline_with_few_requests_waits(tmp_path):
    """Two nodes whose stages serve eight requests at a twentieth of their speed draw little more than idle power."""
    row = {"model": "llama-3.1-70b", "load": "saturated", "tp": 4, "pp": 2, "weight_dtype": "bf16",
           "mean_running": 8, "power_w_per_gpu": 100.0}  # fmt: skip
    full, slow = (
        100.0 * (1.0 + run_table(tmp_path, **row, output_tok_s_total=rate).groups[1].bias) for rate in ("", 20)
    )
    idle = load_accelerator("h100-sxm").value.power.waiting  # of a server whose steps are slow
    assert idle < slow < idle + 0.2 * (full - idle)


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"gpu": "h100-smx"}, "h100-sxm"),
        ({"power_kind": "wall_peak"}, "at the wall"),
        ({"power_kind": "node_mean"}, "node_mean"),
        ({"mean_running": ""}, "neither mean_running nor max_num_seqs"),
        ({"model": "no-such-model", "hf_model": "no-such-file.gguf"}, "unknown model 'no-such-model'"),
        ({"isl_mean": 1e300, "mean_running": 1e300}, "mean_running of the row, 1e+300, belongs to no run"),
        ({"output_tok_s_total": 1e-30}, "output_tok_s_total of the row, 1e-30, belongs to no run"),
        ({"power_w_per_gpu": "", "energy_per_output_token_j": ""}, "no board power"),
        ({"gpu": "tpu-v5e", "weight_dtype": "bf16"}, "no rated power"),
    ],
)
def test_runs_without_an_answer_count_with_their_reason(tmp_path, cells, reason):
    found = run_table(tmp_path, **cells)
    assert found.answered == 0
    assert any(reason in said for said in found.unanswered)


def test_a_slip_of_the_model_is_no_reason_of_a_row(tmp_path, monkeypatch):
    """A division by zero in the physics is an error, not a row with odd numbers."""

    def slip(*_given, **_options):
        return 1.0 / 0.0

    monkeypatch.setattr("rooflinekit.evidence.accuracy_energy.load_power", slip)
    with pytest.raises(ZeroDivisionError):
        run_table(tmp_path)


@pytest.mark.parametrize("seed", range(4))
def test_random_numbers_within_bounds_are_answered_or_refused_by_name(tmp_path, seed):
    """No number that passes the bounds ends in an error of arithmetic."""
    draw = np.random.default_rng(seed)
    names = ("mean_running", "isl_mean", "osl_mean", "output_tok_s_total", "itl_steady_ms", "power_limit_w")
    for _ in range(5):
        cells = {name: 10.0 ** draw.uniform(-7.0, 7.0) for name in names}
        found = run_table(tmp_path, **cells, load=str(draw.choice(["static", "saturated"])))
        assert found.rows == found.answered + sum(found.unanswered.values())


def test_a_table_without_power_is_refused(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("model,gpu\na,b\n")
    with pytest.raises(SpecError, match="power_w_per_gpu"):
        energy_accuracy([path])


def test_a_row_needs_no_more_than_its_model_its_board_and_its_measured_power(tmp_path):
    """An answer of unknown length decodes: it draws what decodes of 256 tokens do, not what a prompt does."""
    path = tmp_path / "runs.csv"
    path.write_text("model,gpu,max_num_seqs,power_w_per_gpu\nllama-2-7b,h100-sxm,16,495\n")
    found = energy_accuracy([path])
    assert found.answered == found.rows == 1
    stated = run_table(tmp_path, load="", osl_mean=256, isl_mean="", engine="vllm")
    assert found.groups[0].bias == pytest.approx(stated.groups[1].bias)
    prompts = {"load": "", "osl_mean": "", "energy_per_output_token_j": ""}
    slow, fast = (run_table(tmp_path, **prompts, prefill_tok_s=rate).groups[0].bias for rate in (200, 20000))
    idle = load_accelerator("h100-sxm").value.power.waiting  # of a server whose steps are slow
    assert idle < 495.0 * (1.0 + slow) < 1.05 * idle < 495.0 * (1.0 + fast)
    unknown = run_table(tmp_path, **prompts, isl_mean="", prefill_tok_s=200)
    assert list(unknown.unanswered) == ["the row states no isl_mean of its prompts"]


def test_parts_of_an_estimate_add_up_and_waiting_lowers_power():
    batch = rk.estimate("llama-3-8b", batch=32).energy
    assert sum(batch.parts_j.values()) == pytest.approx(batch.energy_per_output_token_j)
    assert batch.request_j == pytest.approx(256 * batch.energy_per_output_token_j)
    loads = [rk.estimate("llama-3-8b", rate=rate).energy for rate in (0.05, 0.5, 5.0)]
    assert loads[0].idle_w < loads[0].power_w_per_gpu < loads[1].power_w_per_gpu < loads[2].power_w_per_gpu
    assert loads[0].busy < loads[1].busy < loads[2].busy <= 1.0
    joules = [load.energy_per_output_token_j for load in loads]
    assert joules == sorted(joules, reverse=True)


def test_two_boards_that_wait_for_links_take_more_energy_and_a_pipeline_idles():
    alone, two = (rk.estimate("llama-3-8b", batch=8, tp=tp).energy for tp in (1, 2))
    assert two.energy_per_output_token_j > alone.energy_per_output_token_j
    assert two.parts_j["links"] > 0.0
    assert alone.parts_j["links"] == 0.0
    staged = rk.estimate("llama-3-8b", batch=8, pp=2).energy
    assert staged.parts_j["idle"] > 0.3 * staged.parts_j["running"]  # each of two stages waits half of the time
    assert staged.power_w_per_gpu < alone.power_w_per_gpu


def test_frames_and_estimates_draw_the_same_power():
    cases = pd.DataFrame({"model": "llama-3-8b", "gpu": "h200-sxm", "batch": [1, 64], "tp": [1, 2]})
    rows = rk.estimate_frame(cases)
    for row in rows.itertuples():
        answer = rk.estimate("llama-3-8b", "h200-sxm", batch=row.batch, tp=row.tp).energy
        assert row.power_w_per_gpu == pytest.approx(answer.power_w_per_gpu)
        assert row.energy_per_output_token_j == pytest.approx(answer.energy_per_output_token_j)


@pytest.mark.parametrize(
    "scenario",
    [
        {"batch": 32}, {"batch": 64, "tp": 2, "weights": "fp8"}, {"rate": 1.0, "gpu": "h200-sxm"},
        {"batch": 8, "pp": 2, "microbatches": 2}, {"batch": 4, "draft": "ngram", "draft_tokens": 3, "acceptance": 0.6},
    ],
)  # fmt: skip
def test_joules_and_watts_are_explained_down_to_their_sources(scenario):
    """Every formula, as it is printed, gives its number; the root is the estimate's."""
    asked = {key: value for key, value in scenario.items() if key != "gpu"}
    gpu = scenario.get("gpu", "h100-sxm")
    energy = rk.estimate("llama-3-8b", gpu, **asked).energy
    for metric, value in (("joules-per-token", energy.energy_per_output_token_j), ("watts", energy.power_w_per_gpu)):
        root = rk.explain("llama-3-8b", metric, gpu, **asked).root
        assert root.value == pytest.approx(value, rel=1e-9)
        assert all(node.gap < 1e-9 for node in root.walk())
        assert any("scaled" in node.source.text or "power readings" in node.source.text
                   for node in root.walk() if node.source)  # fmt: skip


@pytest.mark.parametrize(
    "load",
    [
        {"rate": 0.3},
        {"rate": 8.0, "isl_cv": 0.4},
        {"concurrency": 32},
        {"concurrency": 4, "osl": 1},
        {"concurrency": 6, "tp": 2, "pp": 2},
    ],
)
def test_estimate_simulate_and_frames_draw_the_same_of_one_load(load):
    played = rk.simulate("llama-3-8b", requests=320, **load)
    said = rk.estimate("llama-3-8b", requests=320, **load).energy
    row = rk.estimate_frame(pd.DataFrame([{"model": "llama-3-8b", "requests": 320, **load}])).iloc[0]
    for name in ("power_w_per_gpu", "energy_per_output_token_j"):
        assert getattr(played, name) == pytest.approx(getattr(said, name), rel=1e-12)
        assert row[name] == pytest.approx(getattr(said, name), rel=1e-12)


def test_replicas_of_the_object_simulator_draw_what_those_of_the_loop_do():
    asked = {"concurrency": 12, "isl": 600, "osl": 80, "requests": 240}
    loop, objects = (rk.simulate("llama-3-8b", **asked, **more) for more in ({}, {"prefix_cache": True}))
    assert objects.ttft_ms.mean == pytest.approx(loop.ttft_ms.mean)
    assert objects.power_w_per_gpu == pytest.approx(loop.power_w_per_gpu, rel=1e-6)
    assert objects.energy_per_output_token_j == pytest.approx(loop.energy_per_output_token_j, rel=1e-6)


def test_a_run_takes_its_work_and_the_board_for_as_long_as_it_was_played():
    """Ten prompts of 3 J and 0.1 s, ninety tokens of 1 J and 0.01 s: 1.9 s of steps, which were played in 3.8 s."""
    law = replace(resolve("llama-3-8b", "h100-sxm", Deployment(), "none").plan.system.accelerator.power, idle=50.0)
    tokens = TokenEnergy(Energy(weights=1.0, running=2.0), 0.1, Energy(weights=0.5, running=0.5), 0.01, 1, law)
    found = run_power(tokens, Run(prompts=10.0, decoded=90.0, tokens=100.0, busy=3.8, seconds=10.0))
    joules = 10.0 * 1.0 + 90.0 * 0.5 + 2.0 * (10.0 * 2.0 + 90.0 * 0.5) + 50.0 * 6.2
    assert found.joules_per_output_token == pytest.approx(joules / 100.0)
    assert (found.watts, found.busy) == (pytest.approx(joules / 10.0), pytest.approx(0.38))
    assert sum(getattr(found.energy, part) for part in PARTS) == pytest.approx(joules / 100.0)


def test_every_text_says_whether_joules_are_of_the_boards_or_at_the_meter():
    """`cost` counts hosts, supplies and PUE, `estimate` and `simulate` the boards alone; no label serves for both."""
    load = {"concurrency": 4, "requests": 40}
    answers = rk.estimate("llama-3-8b", batch=4), rk.estimate("llama-3-8b", **load), rk.simulate("llama-3-8b", **load)
    for answer in answers:
        assert " J a token (boards)" in plain_text(document_of(answer))
    priced = rk.cost("llama-3-8b", concurrency=4, price=2.0, pue=1.5)
    assert "J/token at the meter" in plain_text(document_of(priced))
    assert priced.prices.watts == pytest.approx(1.5 * priced.prices.node_watts / priced.prices.node_gpus)
