"""Scoring and fitting kernel tables end to end, and what every shipped calibration promises."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import rooflinekit as rk
from rooflinekit.cli.app import app
from rooflinekit.evidence.accuracy import kernel_accuracy
from rooflinekit.evidence.kernel_fit.calibrate import build_calibration, predict
from rooflinekit.evidence.kernel_fit.groups import fit_key, kernel_groups, read_kernel_tables
from rooflinekit.evidence.kernel_fit.tables import OPERATIONS, measured_rows
from rooflinekit.model.roofline import time_kernel
from rooflinekit.model.step import make_plan
from rooflinekit.model.timing.forms import parameters
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.dtype import Dtype, parse_dtype
from rooflinekit.model.types.errors import SpecError
from rooflinekit.model.types.hardware import System
from rooflinekit.specs import load_accelerator, load_model, spec_dir
from rooflinekit.specs.calibration import calibration_names, load_calibration
from rooflinekit.specs.calibration.load import read_calibration

TABLES = Path(__file__).parents[2] / "shared" / "data" / "kernels"
H100 = System.of(load_accelerator("h100-sxm").value)
SHAPES = {
    "gemm": {"m": [1, 16, 256, 8192], "n": [1024, 4096, 16384], "k": [512, 2048, 8192]},
    "attention_decode": {"batch": [1, 8, 64], "seq_len": [128, 2048, 32768], "heads": [8, 32], "kv_heads": [1, 8],
                         "head_dim": [64, 128], "kv_dtype": ["bfloat16"]},
    "attention_prefill": {"batch": [1, 8], "seq_len": [16, 1024, 16384], "heads": [8, 32], "kv_heads": [1, 8],
                          "head_dim": [64, 128], "kv_dtype": ["bfloat16"]},
    "mla_decode": {"batch": [1, 32], "seq_len": [128, 4096, 32768], "heads": [16, 128], "kv_dtype": ["bfloat16"]},
    "mla_prefill": {"batch": [1, 4], "seq_len": [128, 4096], "heads": [16, 128], "kv_dtype": ["bfloat16"]},
    "moe": {"routing": ["balanced"], "ffn_matrices": [3], "tokens": [1, 32, 1024, 16384], "hidden": [2048, 7168],
            "expert_intermediate": [768, 2048], "top_k": [8], "experts": [128], "tp": [1], "ep": [1, 8]},
    "comm": {"collective": ["custom_all_reduce"], "mode": ["graph"], "gpus": [2, 4, 8],
             "bytes": [256, 65536, 2**20, 2**28]},
    "deepep": {"product": ["normal_dispatch"], "nodes": [1], "gpus": [8], "sms": [0, 20], "hidden": [2048, 7168],
               "tokens_per_gpu": [1, 64, 4096], "top_k": [8], "experts": [128, 256]},
    "alltoall_nvlink": {"product": ["NVLinkOneSided_dispatch"], "gpus": [8], "tokens_per_gpu": [1, 64, 4096],
                        "hidden": [2048, 7168], "top_k": [8], "experts": [128, 256]},
    "elementwise": {"kind": ["norm"], "tokens": [1, 64, 4096], "read": [2048, 8192], "written": [2048, 8192]},
    "kv_append": {"kv_dtype": ["bfloat16"], "tokens": [1, 64, 4096], "elements": [256, 2048]},
    "embedding": {"tokens": [1, 64, 4096], "width": [1024, 8192]},
    "sampling": {"kind": ["greedy"], "rows": [1, 64], "vocab": [32000, 128256]},
    "encoder_attention": {"product": ["encoder"], "batch": [1, 8], "seq_len": [256, 4096], "heads": [16],
                          "head_dim": [72]},
    "mla_bmm": {"product": ["mla_gen_pre"], "tokens": [1, 16, 64, 256, 1024], "heads": [16, 128]},
    "quantize": {"product": ["quantize_static"], "m": [1, 256, 8192], "k": [4096, 16384]},
    "linear_attention": {"product": ["gdn_scan_decode_kernel"], "batch": [1, 64], "seq_len": [1, 16, 256],
                         "k_heads": [16], "v_heads": [16, 32], "head_k_dim": [128], "head_v_dim": [128],
                         "d_conv": [4]},
    **{name: {**stated, "phase": ["decode"], "batch": [1, 64], "seq_len": [2, 4097, 65537], "heads": [16, 64],
              "prefix": [0], "kv_dtype": ["bf16"], "gemm_dtype": ["bf16"]}
       for name, stated in {
           "dsa_module": {"model_dims": ["deepseek-v3.2", "glm-5"], "indexer": [0, 1],
                          "product": ["dsa_bf16_decode_bf16_FLASHMLA_SPARSE"]},
           "dsv4_module": {"model_dims": ["deepseek-v4-flash"], "compress_ratio": [4],
                           "product": ["csa_bf16_decode_bf16"]},
           "msa_module": {"model_dims": ["minimax-m3"], "product": ["msa_bf16_decode_bf16"]},
           "mla_module_decode": {"product": ["mla_bf16_decode_bf16_FLASH_ATTN_MLA"]},
           "mla_module_prefill": {"product": ["mla_bf16_decode_bf16_FLASH_ATTN_MLA"]},
       }.items()},
}  # fmt: skip


def grid(operation: str, gpu="h100-sxm", engine="vllm", dtype="bfloat16") -> pd.DataFrame:
    """Shapes of a kernel table, all latencies 1 µs."""
    names = SHAPES[operation]
    rows = pd.DataFrame(list(product(*names.values())), columns=list(names))
    return rows.assign(gpu=gpu, engine=engine, engine_version="1.0", dtype=dtype, latency_us=1.0)


def as_predicted(operation: str, noise=0.0, factor=1.0, **place) -> pd.DataFrame:
    """A table as the shipped calibration of H100 with vLLM would measure it."""
    rows = grid(operation, **place)
    (group,) = kernel_groups(operation, rows)
    families = load_calibration("h100-sxm--vllm").families
    fit = families.get(fit_key(operation, group.named)) or families[group.family]
    measured = group.rows(load_calibration("h100-sxm--vllm"))
    time = factor * measured.each(lambda kernel: fit.time(kernel, H100, warm=True).total)
    assert len(measured.sizes) == 1
    return rows.assign(latency_us=1e6 * time * np.exp(np.random.default_rng(0).normal(0.0, noise, len(rows))))


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refused(result) -> str:
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("rooflinekit: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


# --- rooflinekit accuracy kernels ----------------------------------------------------------------------------------


def test_errors_are_those_that_were_put_in(tmp_path):
    as_predicted("gemm", factor=1.25).to_csv(tmp_path / "gemm.csv", index=False)
    result = run("accuracy", "kernels", tmp_path / "gemm.csv", "--format", "json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert list(found) == ["rows", "answered", "unanswered", "groups", "summary", "version", "calibrations"]
    assert found["calibrations"] == {"h100-sxm--vllm": load_calibration("h100-sxm--vllm").hash}
    (group,) = found["groups"]
    assert list(group) == [
        "key",
        "n",
        "answered",
        "median_ape",
        "mape",
        "p90_ape",
        "bias",
        "median_bias",
        "coverage90",
        "coverage80",
        "width",
        "width80",
        "interval_score",
    ]
    assert group["key"] == {"op": "gemm", "gpu": "h100-sxm", "engine": "vllm", "dtype": "bfloat16"}
    assert group["n"] == group["answered"] == found["rows"] == 36
    assert group["mape"] == pytest.approx(0.2, abs=1e-3)
    assert group["bias"] == pytest.approx(-0.2, abs=1e-3)
    assert found["summary"]["gemm"]["mape"] == group["mape"]


def test_a_write_that_attention_holds_already_is_not_scored(tmp_path):
    """vLLM's attention was measured with the write of the cache, so there is no time of the write alone."""
    path = tmp_path / "kv_append.csv"
    grid("kv_append").to_csv(path, index=False)
    found = kernel_accuracy([path])
    assert found.answered == 0
    (reason,) = found.unanswered
    assert "the write of the cache within attention" in reason
    assert not load_calibration("h100-sxm--vllm").within_attention("kv_append/bf16/bf16", "gpt-fast")


@pytest.mark.parametrize("operation", [name for name in OPERATIONS if name not in ("comm", "kv_append")])
def test_a_calibration_finds_its_own_predictions(operation, tmp_path):
    path = tmp_path / f"{operation}.csv"
    as_predicted(operation, noise=0.01, engine="vllm").to_csv(path, index=False)
    (group,) = kernel_accuracy([path]).groups
    assert group.mape == pytest.approx(0.008, abs=0.006)
    assert group.coverage90 == 1.0


def test_several_operations_in_one_file_are_told_apart_by_op(tmp_path):
    both = pd.concat([as_predicted(op).assign(op=op) for op in ("gemm", "attention_decode")])
    both.to_csv(tmp_path / "mine.csv", index=False)
    assert [group.key["op"] for group in kernel_accuracy([tmp_path / "mine.csv"]).groups] == [
        "attention_decode",
        "gemm",
    ]


def test_rows_that_cannot_be_answered_are_counted_with_their_reason(tmp_path):
    unknown = as_predicted("gemm").assign(gpu="h100-sxn")
    narrow = grid("gemm", gpu="a100-sxm-80gb", dtype="nvfp4")
    pd.concat([as_predicted("gemm"), unknown, narrow]).to_csv(tmp_path / "gemm.csv", index=False)
    result = run("accuracy", "kernels", tmp_path / "gemm.csv", "--format", "json")
    assert result.exit_code == 4
    found = json.loads(result.stdout)
    assert (found["rows"], found["answered"]) == (108, 36)
    assert list(found["unanswered"].values()) == [36, 36]
    assert any("h100-sxm" in reason for reason in found["unanswered"])
    assert sum(group["mape"] is None for group in found["groups"]) == 2


def test_the_bound_has_no_interval(tmp_path):
    as_predicted("gemm").to_csv(tmp_path / "gemm.csv", index=False)
    (group,) = kernel_accuracy([tmp_path / "gemm.csv"], "none").groups
    assert group.coverage90 is None
    assert group.bias < 0.0


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("gemm.csv", "gpu,engine,dtype,m,n,latency_us\nh100-sxm,vllm,bf16,1,1,1\n", "column k"),
        ("mine.csv", "gpu,engine,m,n,k,latency_us\nh100-sxm,vllm,1,1,1,1\n", "no column 'op'"),
        ("mine.csv", "op,gpu,engine,latency_us\nfft,h100-sxm,vllm,1\n", "'fft'"),
        ("gemm.csv", "", "is no table that can be read"),
        ("gemm.parquet", "no parquet", "is no table that can be read"),
    ],
)
@pytest.mark.parametrize("command", ["accuracy", "calibrate"])
def test_a_file_that_is_no_kernel_table_is_refused_in_one_line(command, name, content, said, tmp_path):
    (tmp_path / name).write_text(content)
    out = tmp_path / "out.yaml"
    rest = ["--gpu", "h100-sxm", "--out", out] if command == "calibrate" else []
    first = ["accuracy", "kernels"] if command == "accuracy" else ["calibrate"]
    assert said in refused(run(*first, tmp_path / name, *rest))
    assert not out.exists()


# --- rooflinekit calibrate -----------------------------------------------------------------------------------------


def test_a_fit_recovers_the_parameters_that_made_the_table(tmp_path):
    """The donor's correction stays, and its rates move to those of the rows."""
    donor = load_calibration("h100-sxm--vllm").families["gemm/bf16"]
    truth = replace(donor.form, compute=0.6, memory=0.7)
    rows = grid("gemm")
    exact = predict(replace(donor, form=truth), measured_rows(rows, "gemm"), H100)
    noise = np.exp(np.random.default_rng(1).normal(0.0, 0.02, len(rows)))
    rows.assign(latency_us=1e6 * exact * noise).to_csv(tmp_path / "gemm.csv", index=False)
    out = tmp_path / "mine.yaml"
    result = run("calibrate", tmp_path / "gemm.csv", "--gpu", "h100-sxm", "--engine", "vllm", "--out", out)
    assert result.exit_code == 0, result.output
    fit = read_calibration(out).families["gemm/bf16"]
    assert fit.rows == len(rows)
    assert fit.form.compute == pytest.approx(truth.compute, rel=0.08)
    assert fit.form.memory == pytest.approx(truth.memory, rel=0.08)
    (group,) = kernel_accuracy([tmp_path / "gemm.csv"], str(out)).groups
    assert group.mape < 0.04


def test_twenty_rows_and_the_prior_give_a_sane_calibration(tmp_path):
    """A slower variant of the known GPU: the rest of its shapes are predicted too."""
    whole = as_predicted("gemm", noise=0.03, factor=1.3)
    whole.sample(20, random_state=0).to_csv(tmp_path / "gemm.csv", index=False)
    out = tmp_path / "mine.yaml"
    assert run("calibrate", tmp_path / "gemm.csv", "--gpu", "h100-sxm", "--out", out).exit_code == 0
    whole.to_csv(tmp_path / "gemm.csv", index=False)
    (before,) = kernel_accuracy([tmp_path / "gemm.csv"]).groups
    (after,) = kernel_accuracy([tmp_path / "gemm.csv"], str(out)).groups
    assert before.mape == pytest.approx(0.23, abs=0.02)
    assert after.mape < 0.1
    kept = read_calibration(out).families
    assert kept.keys() == load_calibration("h100-sxm--vllm").families.keys()


def test_a_file_is_never_overwritten_unasked_nor_left_half_done(tmp_path):
    as_predicted("gemm").head(20).to_csv(tmp_path / "gemm.csv", index=False)
    out = tmp_path / "mine.yaml"
    out.write_text("kept")
    refused(run("calibrate", tmp_path / "gemm.csv", "--gpu", "h100-sxm", "--out", out))
    assert "h100-sxm with vllm" in refused(
        run("calibrate", tmp_path / "gemm.csv", "--gpu", "l40s", "--out", out, "--force")
    )
    assert out.read_text() == "kept"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gemm.csv", "mine.yaml"]


# --- shipped calibrations ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", calibration_names())
def test_every_parameter_is_within_its_bounds(name):
    for fit in load_calibration(name).families.values():
        for each in (fit, fit.beyond.fit) if fit.beyond else (fit,):
            for parameter, bound in parameters(each.form).items():
                value = getattr(each.form, parameter) / bound.scale
                assert bound.low * (1 - 1e-12) <= value <= bound.high * (1 + 1e-12), parameter


@pytest.mark.parametrize("name", calibration_names())
def test_cold_kernels_take_at_least_the_bound_and_lie_in_their_interval(name):
    calibration = load_calibration(name)
    system = System.of(load_accelerator(calibration.accelerator).value)
    keys = [key for key in calibration.families if "/" in key]
    assert keys
    alone = {name: known for name, known in OPERATIONS.items() if known.family != "sparse_attention"}
    for operation, known in alone.items():
        for dtype in {parse_dtype(key.split("/")[1]) for key in keys if key.startswith(known.family + "/")}:
            rows = measured_rows(grid(operation, dtype=dtype.value), operation)
            for kernel in rows.kernels:
                timed = time_kernel(kernel, system, calibration)
                assert np.all(timed.expected >= timed.bound)
                assert np.all((timed.low <= timed.expected) & (timed.expected <= timed.high))
                assert np.all(timed.low >= timed.bound)
                assert np.all(np.isfinite(timed.high))


@pytest.mark.parametrize("name", calibration_names())
def test_libraries_and_eager_launches_have_fits_of_their_own(name):
    calibration = load_calibration(name)
    families = calibration.families
    if name.endswith("--llama.cpp"):  # fitted to whole steps of one machine: nothing is exchanged
        assert not any(key.startswith("collective/") for key in families)
        return
    for collective in ("all_reduce", "nccl_all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        assert f"collective/bf16/{collective}" in families
    eager = families.get("collective/bf16/all_reduce/eager")
    assert eager is None or calibration.accelerator in eager.source


@pytest.mark.skipif(not TABLES.is_dir(), reason="the measured kernel tables are not beside the checkout")
@pytest.mark.parametrize(
    ("operation", "target"),
    [("gemm", 9.0), ("attention_decode", 8.0), ("attention_prefill", 7.0), ("mla_decode", 9.0), ("mla_prefill", 9.0),
     ("comm", 8.0)],
)  # fmt: skip
def test_shipped_calibrations_meet_the_targets_on_the_rows_they_were_fitted_to(operation, target):
    """In sample, so a calibration that does not belong to its tables is noticed; held-out errors are in reports/."""
    found = kernel_accuracy([TABLES / f"{operation}.parquet"])
    scores = [group.mape for group in found.groups if group.mape is not None and group.key["gpu"] != "l40s"]
    assert 100.0 * np.median(scores) <= target
    each = [group for group in found.groups if group.median_bias is not None and group.key["gpu"] != "l40s"]
    sides = [group.median_bias for group in each]
    assert abs(np.median(sides)) < 0.015  # a fit in logarithms errs to both sides alike
    assert np.max(np.abs(sides)) < 0.05
    lacking = sum(group.n for group in found.groups if not group.answered)
    assert found.rows - found.answered == lacking
    assert all("fp8" in reason or "nvfp4" in reason for reason in found.unanswered)


GEMM_ROW = {"gpu": "h100-sxm", "engine": "vllm", "dtype": "bfloat16", "m": 64, "n": 4096, "k": 4096, "latency_us": 15.0}


@pytest.mark.parametrize(("column", "value"), [
    ("m", float("nan")), ("n", 0), ("k", 1.5), ("m", "many"), ("latency_us", -1.0), ("latency_us", float("inf")),
])  # fmt: skip
def test_a_value_that_no_kernel_has_is_counted_or_refused_by_row(tmp_path, column, value):
    rows = pd.DataFrame([GEMM_ROW] * 12).astype({column: object})
    rows.loc[3, column] = value
    file = tmp_path / "gemm.csv"
    rows.to_csv(file, index=False)
    found = kernel_accuracy([file])
    assert (found.rows, found.answered) == (12, 11)
    assert f"gemm.csv: {column} is not" in next(iter(found.unanswered))
    with pytest.raises(SpecError, match=rf"gemm\.csv: row 4: {column} = "):
        build_calibration([file], load_accelerator("h100-sxm").value, "vllm", "2026-01-01")


def test_a_calibration_of_ones_own_chip_is_at_home(tmp_path):
    """No stand-in note, no widened interval, and its rows can be scored."""
    chip = tmp_path / "mine.yaml"
    chip.write_text((spec_dir("accelerator") / "h100-sxm.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    table, own = tmp_path / "gemm.csv", tmp_path / "cal.yaml"
    shapes = [(m, n, k) for m in (1, 64, 1024) for n in (1024, 8192) for k in (1024, 4096)]
    times = [6 + 2 * m * n * k / 8e8 / 1e3 + 2 * n * k / 3e6 for m, n, k in shapes]
    rows = [GEMM_ROW | {"gpu": "mine", "m": m, "n": n, "k": k, "latency_us": t}
            for (m, n, k), t in zip(shapes, times, strict=True)]  # fmt: skip
    pd.DataFrame(rows).to_csv(table, index=False)
    own.write_text(
        build_calibration([table], load_accelerator(chip).value, "vllm", "2026-01-01").text, encoding="utf-8"
    )
    assert not any("stands in (" in note for note in rk.estimate("llama-3-8b", chip, calibration=str(own)).warnings)
    assert kernel_accuracy([table], str(own), gpu=str(chip)).answered == len(shapes)


def test_an_engine_nobody_knows_is_not_scored_as_another(tmp_path):
    file = tmp_path / "gemm.csv"
    pd.DataFrame([GEMM_ROW | {"engine": "lmdeploy"}]).to_csv(file, index=False)
    assert kernel_accuracy([file]).unanswered == {
        "unknown engine 'lmdeploy'; nearest: vllm, sglang, trtllm, llama.cpp, gpt-fast, optimum-habana": 1
    }


def test_two_spellings_of_a_name_and_format_are_one_kernel(tmp_path):
    file = tmp_path / "gemm.csv"
    spellings = (("H100", "bf16"), ("h100-sxm", "bfloat16"))
    rows = [GEMM_ROW | {"m": m, "gpu": gpu, "dtype": dtype} for m in range(1, 13) for gpu, dtype in spellings]
    pd.DataFrame(rows).to_csv(file, index=False)
    built = build_calibration([file], load_accelerator("h100-sxm").value, "vllm", "2026-01-01")
    assert set(built.carried) == {"gemm/bf16"}


def test_layouts_and_ways_of_timing_of_one_format_are_scored_as_one(tmp_path):
    """They have fits of their own, and a report by the columns that everybody knows."""
    rows = grid("gemm").assign(layer="qkv/cuda_event")
    both = pd.concat([rows, rows.assign(layer="qkv/record_function"), rows.assign(layout="bpreshuffle")])
    both.assign(layout=both["layout"].fillna("plain")).to_csv(tmp_path / "gemm.csv", index=False)
    (group,) = kernel_accuracy([tmp_path / "gemm.csv"]).groups
    assert group.n == group.answered == 3 * len(rows)
    assert set(group.key) == {"op", "gpu", "engine", "dtype"}


def test_a_chunk_of_a_prompt_is_the_kernel_that_a_plan_has_of_it(tmp_path):
    row = {"dtype": "bf16", "kv_dtype": "bf16", "batch": 2, "seq_len": 1000, "heads": 32, "kv_heads": 8,
           "head_dim": 128, "latency_us": 100.0, "gpu": "h100-sxm", "engine": "vllm"}  # fmt: skip
    path = tmp_path / "attention_prefill.csv"
    pd.DataFrame([row | {"prefix": 2000}, row]).to_csv(path, index=False)  # an empty cell: nothing was cached
    ((operation, table),) = read_kernel_tables(path)
    (kernel,) = measured_rows(table, operation).kernels
    plan = make_plan(load_model("llama-3-8b").value, Deployment(), H100, None)
    for place, cached in enumerate((2000.0, 0.0)):
        batch = Batch.prefill(2.0, 1000.0 + cached, cached=cached)
        (own,) = (each for each in plan.kernels(batch) if each.family == "attention_prefill")
        for name in ("flops", "kv_read_bytes", "activation_bytes"):
            assert getattr(kernel, name)[place] == getattr(own, name), name
    pd.DataFrame([row | {"prefix": -1}]).to_csv(path, index=False)
    with pytest.raises(SpecError, match="prefix = -1 is not a whole number of at least 0"):
        list(read_kernel_tables(path))


def test_weights_named_with_their_activations_are_read_as_stored_and_computed(tmp_path):
    row = {"dtype": "mxfp4_a16", "routing": "random", "ffn_matrices": 3, "tokens": 64, "hidden": 4096, "tp": 1, "ep": 1,
           "expert_intermediate": 1536, "top_k": 8, "experts": 128, "latency_us": 100.0}  # fmt: skip
    (kernel,) = measured_rows(pd.DataFrame([row]), "moe").kernels
    touched = 128 * (1 - (1 - 8 / 128) ** 64)  # 126 of 128 experts
    assert kernel.dtype is Dtype.BF16
    assert kernel.weight_bytes[0] == pytest.approx(touched * 3 * 4096 * 1536 * Dtype.MXFP4.bytes)


def test_fp8_weights_without_fp8_units_are_computed_in_16_bit(tmp_path):
    grid("gemm", gpu="a100-sxm-80gb", dtype="fp8").to_csv(tmp_path / "gemm.csv", index=False)
    (group,) = kernel_accuracy([tmp_path / "gemm.csv"]).groups
    assert group.answered == group.n
    assert group.key["dtype"] == "fp8"


FAMILIES = {
    "encoder_attention": {"batch": [1, 8], "seq_len": [256, 4096], "heads": [16], "head_dim": [72]},
    "mla_bmm": {"op": ["mla_gen_pre", "mla_gen_post"], "tokens": [1, 64, 1024], "heads": [16, 128]},
    "quantize": {"op": ["quantize_static"], "m": [1, 256, 8192], "k": [4096, 16384]},
    "linear_attention": {"family": ["gdn"], "part": ["scan"], "phase": ["decode"], "batch": [1, 64], "seq_len": [1],
                         "kernel": ["fused_recurrent_gated_delta_rule_packed_decode"], "k_heads": [16],
                         "v_heads": [32], "head_k_dim": [128], "head_v_dim": [128], "d_conv": [4]},
}  # fmt: skip


@pytest.mark.parametrize("operation", FAMILIES)
def test_kernels_of_further_families_have_fits_of_their_own(tmp_path, operation):
    shapes = FAMILIES[operation]
    rows = pd.DataFrame(list(product(*shapes.values())), columns=list(shapes))
    dtype = "fp8" if operation == "quantize" else "bfloat16"
    file = tmp_path / f"{operation}.csv"
    rows.assign(gpu="h100-sxm", engine="vllm", dtype=dtype, latency_us=10.0).to_csv(file, index=False)
    (group,) = kernel_accuracy([file]).groups
    assert group.answered == len(rows)
    (name, table), *_ = read_kernel_tables(file)
    families = load_calibration("h100-sxm--vllm").families
    assert all(fit_key(name, each.named) in families for each in kernel_groups(name, table))


def test_a_whole_layer_is_its_models_layer_and_what_surrounds_it(tmp_path):
    """DeepSeek-V3.2 at 65,537 keys: 2,048 of them for all heads here, and the indexer over all."""
    row = {"gpu": "h200-sxm", "engine": "vllm", "model_dims": "deepseek-v3.2", "indexer": 1, "phase": "decode",
           "kernel": "FLASHMLA_SPARSE", "dtype": "bfloat16", "kv_dtype": "bfloat16", "gemm_dtype": "fp8_block",
           "batch": 4, "seq_len": 65537, "prefix": 0, "latency_us": 300.0}  # fmt: skip
    path = tmp_path / "dsa_module.csv"
    pd.DataFrame([row | {"heads": heads} for heads in (128, 16)]).to_csv(path, index=False)
    ((name, table),) = read_kernel_tables(path)
    (group,) = kernel_groups(name, table)
    assert group.key == "sparse_attention/bf16/dsa_fp8_block_decode_bf16_FLASHMLA_SPARSE"
    (kernel,) = group.rows(load_calibration("h200-sxm--vllm")).kernels
    assert kernel.shape.core_flops.tolist() == [2 * (576 + 512) * heads * 4 * 2048 for heads in (128, 16)]
    assert kernel.shape.index_flops.tolist() == pytest.approx(
        [2 * 64 * 128 * 4 * 65537 / 2] * 2, rel=1e-3
    )  # fp8: twice the rate
    assert 20e-6 < kernel.shape.besides[1] < kernel.shape.besides[0] < 200e-6
    assert kernel_accuracy([path]).answered == 2


def test_index_heads_of_grouped_query_heads_are_shared_out_with_their_kv_heads(tmp_path):
    """MiniMax-M3: one index head a KV head, so a quarter of the heads scores a quarter; 4 B for each query and key."""
    row = {"gpu": "h100-sxm", "engine": "vllm", "model_dims": "minimax-m3", "phase": "prefill", "kernel": "Triton",
           "dtype": "bfloat16", "kv_dtype": "bfloat16", "gemm_dtype": "bfloat16", "batch": 4, "seq_len": 256,
           "prefix": 1024, "tp": 1, "latency_us": 300.0}  # fmt: skip
    path = tmp_path / "msa_module.csv"
    pd.DataFrame([row | {"heads": heads} for heads in (64, 16)]).to_csv(path, index=False)
    ((name, table),) = read_kernel_tables(path)
    (group,) = kernel_groups(name, table)
    (kernel,) = group.rows(load_calibration("h100-sxm--vllm")).kernels
    whole, quarter = kernel.shape.index_flops
    assert whole == pytest.approx(4 * quarter)
    assert kernel.shape.scores.tolist() == [4.0 * 4 * 256 * 1280] * 2
    assert kernel.shape.foreign.tolist() == [3 * 4.0 * 4 * 256 * 1280] * 2
    assert kernel.shape.scanned.tolist() == [1280.0] * 2


@pytest.mark.parametrize(("model", "said"), [("jamba-v0.1", "no attention"), ("llama-3-8b", "no indexer"), ("x", "x")])
def test_a_layer_that_a_model_does_not_have_is_counted_with_its_reason(tmp_path, model, said):
    rows = grid("dsa_module").assign(model_dims=model, indexer=0).drop(columns="product")
    rows.to_csv(tmp_path / "dsa_module.csv", index=False)
    found = kernel_accuracy([tmp_path / "dsa_module.csv"])
    assert not found.answered
    assert all(said in reason for reason in found.unanswered)


def test_the_state_of_a_recurrence_is_read_and_written_once_a_step():
    """Qwen3-Next: 32 value heads of 128 x 128 in fp32, 2.1 MB a sequence, and as much written."""
    row = dict.fromkeys(("head_k_dim", "head_v_dim"), 128) | {"batch": 8, "seq_len": 1, "k_heads": 16, "v_heads": 32}
    row |= {"product": "gdn_scan_decode_kernel", "dtype": "bfloat16", "d_conv": 4, "latency_us": 1.0}
    (kernel,) = measured_rows(pd.DataFrame([row]), "linear_attention").kernels
    assert kernel.kv_read_bytes[0] == kernel.kv_write_bytes[0] == 8 * 32 * 128 * 128 * 4
    assert kernel.flops[0] == 6 * 8 * 32 * 128 * 128
