"""Scoring of memory tables, and how their rows are read."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from rooflinekit.cli.app import app
from rooflinekit.evidence.accuracy_memory import (
    engine_of,
    memory_accuracy,
    memory_of,
    predict_run,
    read_memory_tables,
    setup_of,
)
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.errors import SpecError

GIB = 2**30
TABLE = Path(__file__).parents[2] / "shared" / "data" / "memory" / "measured.csv"
COLUMNS = (
    "run_id,engine,engine_version,model,gpu,gpu_total_gib,tp,pp,weight_dtype,kv_dtype,max_model_len,"
    "max_num_batched_tokens,max_num_seqs,gpu_memory_utilization,quantity,value,notes"
)
# one start-up of vLLM 0.19, one of llama.cpp, and a model that nobody knows
ROWS = (
    "a,vllm,0.19.0,Qwen/Qwen3-8B,H100-80GB,79.19,1,1,bf16,bf16,8192,8192,1024,0.95,weights_gib_per_gpu,15.27,",
    "a,vllm,0.19.0,Qwen/Qwen3-8B,H100-80GB,79.19,1,1,bf16,bf16,8192,8192,1024,0.95,kv_pool_gib_per_gpu,57.5,",
    "a,vllm,0.19.0,Qwen/Qwen3-8B,H100-80GB,79.19,1,1,bf16,bf16,8192,8192,1024,0.95,kv_pool_tokens,418688,",
    "b,llama.cpp,b1691,LLaMA-7B,3090,,1,,gguf F16 (16.00 BPW),f16,512,512,,,weights_gib_per_gpu,12.3076,",
    "c,vllm,0.19.0,nobody/knows-this-9b,H100-80GB,79.19,1,1,bf16,bf16,8192,8192,1024,0.95,kv_blocks,100,",
)


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "memory.csv"
    path.write_text("\n".join((COLUMNS, *ROWS)) + "\n")
    return path


def setup(tmp_path, **facts):
    names = COLUMNS.split(",")
    base = dict(zip(names, ROWS[0].split(","), strict=True)) | facts
    path = tmp_path / "one.csv"
    path.write_text(",".join(names) + "\n" + ",".join(f'"{base[name]}"' for name in names) + "\n")
    return setup_of(read_memory_tables([path])[0])


def test_groups_are_engines_and_quantities(table):
    found = memory_accuracy([table])
    assert (found.rows, found.answered) == (5, 4)
    keys = [group.key for group in found.groups]
    assert {"engine": "vllm", "quantity": "kv_pool_tokens"} in keys
    assert {"engine": "llama.cpp", "quantity": "weights_gib_per_gpu"} in keys
    errors = {(g.key["engine"], g.key["quantity"]): g.median_ape for g in found.groups if g.answered}
    assert all(error < 0.001 for error in errors.values())
    assert [reason for reason in found.unanswered if "knows-this-9b" in reason]


def test_the_command_writes_the_json_of_the_contract(table):
    ran = CliRunner().invoke(app, ["accuracy", "memory", str(table), "--format", "json"])
    assert ran.exit_code == 4  # one row is not answered
    found = json.loads(ran.stdout)
    assert set(found) >= {"rows", "answered", "unanswered", "groups", "summary"}
    assert set(found["summary"]) == {"weights_gib_per_gpu", "kv_pool_gib_per_gpu", "kv_pool_tokens", "kv_blocks"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2\n", "column 'run_id' is missing"),
        (COLUMNS + "\n" + ROWS[0].replace("weights_gib_per_gpu", "weights") + "\n", "line 2: quantity 'weights'"),
    ],
)
def test_what_is_no_memory_table_is_refused(tmp_path, text, words):
    path = tmp_path / "memory.csv"
    path.write_text(text)
    with pytest.raises(SpecError, match=words):
        memory_accuracy([path])


def test_parquet_is_read_as_csv_is(table):
    pd.read_csv(table).to_parquet(table.with_suffix(".parquet"))
    assert memory_accuracy([table.with_suffix(".parquet")]) == memory_accuracy([table])


@pytest.mark.parametrize("value", ["many", "", "nan", "inf", "0"])
def test_a_row_without_a_value_is_counted_and_spoils_no_other(tmp_path, value):
    path = tmp_path / "memory.csv"
    path.write_text("\n".join((COLUMNS, ROWS[0].replace("15.27", value), *ROWS[1:4])) + "\n")
    found = memory_accuracy([path])
    assert (found.rows, found.answered) == (4, 3)
    assert list(found.unanswered.values()) == [1]


@pytest.mark.parametrize(
    ("told", "model"),
    [
        ("RedHatAI/Llama-3.3-70B-Instruct-quantized.w8a8", "llama-3.3-70b"),
        ("RedHatAI/Llama-3.3-70B-Instruct-fp8-dynamic", "llama-3.3-70b"),
        ("RedHatAI/Mistral-Small-3.1-24B-Instruct-2503-quantized.w8a8", "mistral-small-3.1-24b"),
        ("Qwen/Qwen3-4B-Instruct-2507-FP8", "qwen3-4b-2507"),
        ("TheBloke/CodeLlama-13B-Instruct-fp16", "codellama-13b"),
        ("microsoft/phi-4 bnb-4bit", "phi-4"),
    ],
)
def test_models_are_found_behind_their_tuning_and_format(tmp_path, told, model):
    assert setup(tmp_path, model=told).model.name == model


def test_formats_versions_and_settings_are_read(tmp_path):
    notes = "DP8 + expert parallel 8 (attention replicated); block-size 128; enforce_eager"
    told = setup(tmp_path, model="Qwen/Qwen3-30B-A3B", weight_dtype="fp8-block", kv_dtype="fp8", notes=notes)
    deployment = told.deployment
    assert told.model.formats.experts is Dtype.FP8_BLOCK
    assert told.model.formats.lm_head is Dtype.BF16
    assert (deployment.dp, deployment.ep, deployment.kv) == (8, 8, Dtype.FP8)
    assert (deployment.settings.block_size, deployment.settings.eager) == (128, True)
    for engine, text, since in (
        ("vllm", "0.11.0 (image named in the doc)", "0.11"),
        ("vllm", "2026 (>=0.26)", "0.21"),
        ("vllm-v0", "", "0.6.6"),
        ("vllm", "2026 (not printed)", "0.21"),
    ):
        assert engine_of(setup(tmp_path, engine=engine, engine_version=text)).since == since


def test_an_accelerator_nobody_knows_has_the_memory_that_is_told(tmp_path):
    told = setup(tmp_path, gpu="RTX PRO 4500 Blackwell", gpu_total_gib="31.38")
    assert told.accelerator.memory_bytes == pytest.approx(31.38 * GIB)
    unknown = setup(tmp_path, gpu="Strix Halo gfx1151", gpu_total_gib="")
    predicted = predict_run(unknown, engine_of(unknown))
    assert "weights_gib_per_gpu" in predicted
    assert "kv_pool_gib_per_gpu" not in predicted


@pytest.mark.parametrize(("gpus", "weights", "cache", "buffer"), [
    (1, 4.3003, 1.0, 0.5469), (2, 2.2365, 0.5312, 0.625), (4, 1.2769, 0.2812, 0.625), (8, 0.7895, 0.1562, 0.625),
])  # fmt: skip
def test_llama_cpp_splits_its_layers_with_the_output_as_one_more(tmp_path, gpus, weights, cache, buffer):
    # logs of Llama-3-8B in Q4_K_M at 8,192 tokens: 33 places, of 4 GPUs 9 layers on the first, 7 and the output last
    told = setup(
        tmp_path, engine="llama.cpp", engine_version="b2824", model="Llama-3-8B", gpu="3090", pp=str(gpus),
        weight_dtype="gguf Q4_K - Medium (4.89 BPW)", gpu_total_gib="", max_num_batched_tokens="512", max_num_seqs="",
        gpu_memory_utilization="",
    )  # fmt: skip
    got = predict_run(told, engine_of(told))
    assert got["weights_gib_per_gpu"] == pytest.approx(weights, rel=1e-4)
    assert got["kv_pool_gib_per_gpu"] == pytest.approx(cache, rel=1e-3)
    assert got["activation_peak_gib"] == pytest.approx(buffer, rel=1e-3)
    assert engine_of(told).until == "b6325"


@pytest.mark.skipif(not TABLE.exists(), reason="the table of measured start-ups is not here")
def test_measured_start_ups():
    found = memory_accuracy([TABLE])
    assert found.answered >= 0.98 * found.rows
    groups = {(group.key["engine"], group.key["quantity"]): group for group in found.groups}
    assert groups["vllm", "weights_gib_per_gpu"].median_ape <= 0.01
    assert groups["vllm", "weights_gib_per_gpu"].p90_ape <= 0.05
    assert groups["vllm", "kv_pool_gib_per_gpu"].median_ape <= 0.01
    assert groups["vllm", "kv_pool_tokens"].median_ape <= 0.015
    assert groups["vllm", "activation_peak_gib"].median_ape <= 0.05
    for quantity, side in (("weights_gib_per_gpu", 0.005), ("kv_pool_gib_per_gpu", 0.005), ("kv_pool_tokens", 0.01),
                           ("activation_peak_gib", 0.02)):  # fmt: skip
        assert abs(groups["vllm", quantity].median_bias) <= side, quantity
    failed = [
        run for run in read_memory_tables([TABLE]) if "refused" in run.facts["notes"] or "failed" in run.facts["notes"]
    ]
    assert failed
    for run in failed:
        told = setup_of(run)
        assert not memory_of(told, engine_of(told)).fits
