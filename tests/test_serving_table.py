"""The serving table: what is read from a row, and what is said about one that makes no sense."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pandas as pd
import pytest

from rooflinekit.evidence.accuracy_serving import (
    METRICS,
    predict_group,
    published_table,
    read_serving_table,
    served_groups,
)
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.errors import SpecError
from rooflinekit.specs.engines import engine_version_of
from rooflinekit.specs.places import shipped_path

ROW = {
    "model": "llama-3-8b", "gpu": "h100-sxm", "engine": "vllm", "load": "static", "isl": 1024, "osl": 256,
    "concurrency": 8, "metric": "tpot_ms", "value": 7.5,
}  # fmt: skip


def table_of(tmp_path, *rows):
    path = tmp_path / "rows.csv"
    pd.DataFrame([ROW | row for row in rows] or [ROW]).to_csv(path, index=False)
    return read_serving_table(path)


def groups_of(tmp_path, *rows):
    unanswered = Counter()
    return list(served_groups(table_of(tmp_path, *rows), "none", unanswered)), unanswered


def deployment_of(tmp_path, **row):
    (group,), unanswered = groups_of(tmp_path, row)
    assert not unanswered
    return group.resolved.plan.deployment


# --- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ROW)
def test_a_missing_column_is_named(tmp_path, missing):
    path = tmp_path / "rows.csv"
    pd.DataFrame([ROW]).drop(columns=missing).to_csv(path, index=False)
    with pytest.raises(SpecError, match=rf"rows\.csv: is no serving table: column '{missing}' is missing"):
        read_serving_table(path)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("rows.csv", "", "No columns"),
        ("rows.csv", "model,gpu\na,b\nc,d,e\n", "line 3"),
        ("rows.parquet", "no parquet", "rows.parquet"),
        ("rows.csv", b"\xff\xfe\x00model", "rows.csv"),
    ],
)
def test_a_file_that_is_no_table_is_refused_in_one_line(tmp_path, name, content, said):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(SpecError, match=said) as caught:
        read_serving_table(path)
    assert "\n" not in str(caught.value)
    assert name in str(caught.value)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(SpecError, match=r"nothing\.csv: no such file"):
        read_serving_table(tmp_path / "nothing.csv")


def test_optional_columns_take_their_defaults(tmp_path):
    (line,) = table_of(tmp_path).to_dict("records")
    assert {line[degree] for degree in ("tp", "pp", "ep", "dp")} == {1}
    assert {line[name] for name in ("kv_dtype", "engine_version", "source_key", "source", "tier")} == {""}


# --- deployments ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "text", "version"),
    [
        ("trtllm", "0.9.0", "0.9.0"),
        ("trtllm", "1.0 (pytorch backend)", "1.0"),
        ("trtllm", "vLLM ~0.4-0.6 / TRT-LLM ~0.9-0.11 (2024)", "0.9"),
        ("vllm", "vLLM ~0.4-0.6 / TRT-LLM ~0.9-0.11 (2024)", "0.4"),
        ("sglang", "0.5.6.post2", "0.5.6"),
        ("vllm", "main of today", None),
        ("gpt-fast", "2024-09", None),
    ],
)
def test_a_version_is_found_in_a_text(engine, text, version):
    assert engine_version_of(engine, text) == version


def test_a_date_means_what_was_released_by_then():
    old, new = engine_version_of("vllm", "2024-09"), engine_version_of("vllm", "2025-12")
    assert float(old) < float(new)


def test_a_source_with_a_date_tells_the_version_of_a_row_without_one(tmp_path):
    deployment = deployment_of(tmp_path, source="https://example.org/post (2024-09-01)")
    assert deployment.engine_version == engine_version_of("vllm", "2024-09")


@pytest.mark.parametrize(
    ("row", "weights", "kv"),
    [
        ({}, None, None),
        ({"weight_dtype": "bf16"}, None, None),
        ({"weight_dtype": "bfloat16", "kv_dtype": "fp8"}, None, Dtype.FP8),
        ({"weight_dtype": "fp8"}, Dtype.FP8, None),
        ({"weight_dtype": "fp16"}, Dtype.FP16, None),
        ({"weight_dtype": "int4-g32"}, Dtype.INT4_G32, None),
        ({"model": "deepseek-r1", "gpu": "h200-sxm", "tp": 8, "weight_dtype": "fp8"}, None, None),
        ({"model": "gpt-oss-120b", "weight_dtype": "mxfp4"}, None, None),
    ],
)
def test_formats_that_are_the_checkpoints_own_are_left_to_it(tmp_path, row, weights, kv):
    deployment = deployment_of(tmp_path, **row)
    assert (deployment.weights, deployment.kv) == (weights, kv)


def test_ranks_of_attention_inside_tp_are_not_counted_twice(tmp_path):
    row = {"model": "deepseek-r1", "gpu": "h200-sxm", "n_gpus": 8, "tp": 8, "ep": 8, "dp": 8}
    deployment = deployment_of(tmp_path, **row)
    assert (deployment.tp, deployment.dp, deployment.ep, deployment.gpus) == (1, 8, 8, 8)


def test_rows_of_one_deployment_are_one_group(tmp_path):
    groups, _ = groups_of(tmp_path, {}, {"osl": 512}, {"tp": 2}, {"isl": 64})
    assert sorted(len(group.table) for group in groups) == [1, 3]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"model": "lama-3-8b"}, "unknown model"),
        ({"model": np.nan}, "column 'model' is empty"),
        ({"gpu": "h9000"}, "unknown"),
        ({"gpu": np.nan}, "column 'gpu' is empty"),
        ({"engine": np.nan}, "column 'engine' is empty"),
        ({"model": np.nan, "source_key": "trt10"}, "column 'model' is empty"),
        ({"engine": "lmdeploy"}, "unknown engine 'lmdeploy'; nearest:"),
        ({"tp": 3}, "tp=3"),
        ({"tp": 0}, "tp must be a whole number"),
        ({"tp": "two"}, "tp must be a whole number, not 'two'"),
        ({"tp": 1.5}, "tp must be a whole number"),
        ({"n_gpus": 4, "tp": 2}, "n_gpus=4"),
        ({"weight_dtype": "fp7"}, "fp7"),
        ({"weight_dtype": "nvfp4", "gpu": "mi250x"}, "nvfp4"),
        ({"metric": "goodput"}, "metric 'goodput' under load 'static' is not known"),
        ({"metric": np.nan}, "metric nan"),
        ({"load": "bursts"}, "load 'bursts' is not known"),
    ],
)
def test_a_row_that_makes_no_sense_is_counted_with_its_reason(tmp_path, row, said):
    groups, unanswered = groups_of(tmp_path, {}, row)
    assert sum(len(group.table) for group in groups) == 1
    ((reason, count),) = unanswered.items()
    assert count == 1
    assert pd.Series([reason]).str.contains(said).all(), reason


@pytest.mark.parametrize(("source", "load"), [("trt10", "saturated"), ("infx", "concurrency")])
def test_a_length_without_end_is_said_of_its_row_where_limits_follow_from_it(tmp_path, source, load):
    row = {"model": "deepseek-r1", "gpu": "b200-sxm", "engine": "trtllm", "tp": 8, "load": load, "source_key": source}
    groups, _ = groups_of(tmp_path, row, row | {"isl": np.inf}, row | {"model": "llama-3.3-70b", "isl": np.inf})
    reasons = [reason for group in groups for reason in predict_group(group).reason]
    assert reasons.count("") == 1
    assert reasons.count("column 'isl' is empty or not above 0") == 2


def test_a_number_among_words_is_a_number(tmp_path):
    """One bad cell makes a whole column text; the others still count."""
    groups, unanswered = groups_of(tmp_path, {"tp": "2"}, {"tp": "two"})
    assert [group.resolved.plan.deployment.tp for group in groups] == [2]
    assert sum(unanswered.values()) == 1


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"isl": np.nan}, "isl"), ({"isl": 0}, "isl"), ({"value": np.nan}, "value"),
        ({"value": -1.0}, "value"), ({"value": "fast"}, "value"), ({"concurrency": np.nan}, "concurrency"),
        ({"concurrency": "many"}, "concurrency"),
    ],
)  # fmt: skip
def test_a_missing_number_is_said_of_its_row_alone(tmp_path, row, said):
    rows = pd.DataFrame([ROW, ROW | row]).astype(object)
    path = tmp_path / "rows.csv"
    rows.to_csv(path, index=False)
    (group,) = served_groups(read_serving_table(path), "none", Counter())
    answer = predict_group(group)
    assert np.isfinite(answer.value).tolist() == [True, False]
    assert answer.reason[0] == ""
    assert said in answer.reason[1]


# --- the shipped table ----------------------------------------------------------------------------------------------


def test_the_shipped_table_is_whole_and_every_figure_has_its_place():
    table = read_serving_table(published_table())
    assert 250 <= len(table) <= 300
    assert table["id"].is_unique
    assert table["metric"].isin(METRICS).all()
    assert table["source"].str.startswith("https://").all()
    assert (table["value"] > 0).all()
    assert (table["tier"] == "A").mean() > 0.6


def test_the_documents_count_the_shipped_figures():
    size, root = len(read_serving_table(published_table())), published_table().parents[1]
    assert f"{size} published figures" in (root / "docs" / "accuracy.md").read_text(encoding="utf-8")
    assert f"{size} figures" in (root / "docs" / "accuracy.md").read_text(encoding="utf-8")


def test_no_source_model_or_accelerator_has_it_all():
    table = read_serving_table(published_table())
    for name, share in (("source_key", 1 / 3), ("model", 1 / 3), ("gpu", 0.4), ("engine", 2 / 3)):
        assert table[name].value_counts(normalize=True).iloc[0] <= share, name


@pytest.mark.slow
def test_rows_that_no_fit_may_read_are_all_answered_and_none_of_them_is_fitted():
    """validate/held_out.csv: other models of the documents that the fits know by gpt-oss, Qwen3-30B and Llama-3.3."""
    held = read_serving_table(shipped_path("validate/held_out.csv"))
    fitted = read_serving_table(published_table())
    keys = ["source_key", "model", "gpu", "tp", "dp", "isl", "osl"]
    rows = [set(table[keys].astype(str).itertuples(index=False)) for table in (held, fitted)]
    assert len(rows[0]) == len(held) and not rows[0] & rows[1]
    assert held["source"].str.contains("https://").all()
    unanswered = Counter()
    groups = list(served_groups(held, "none", unanswered))
    assert not unanswered
    assert sum(len(group.table) for group in groups) == len(held)
    assert all(np.isfinite(predict_group(group).value).all() for group in groups[::3])
