"""`rk.estimate_frame`: every row is what `rk.estimate` says, and a bad row spoils nothing."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

import rooflinekit as rk
from rooflinekit.estimation.frames import RESULT_COLUMNS

SCENARIOS = [
    {"model": "llama-3-8b", "gpu": "h100-sxm", "batch": 32, "isl": 2048, "osl": 256},
    {"model": "llama-3-8b", "gpu": "l40s", "batch": 4, "isl": 512, "osl": 64},
    {"model": "llama-3-70b", "gpu": "h100-sxm", "batch": 64, "isl": 1000, "osl": 500, "tp": 8},
    {"model": "llama-3-70b", "gpu": "h100-sxm", "batch": 1, "isl": 1000, "osl": 500},  # does not fit
    {"model": "mixtral-8x7b", "gpu": "a100-sxm-80gb", "batch": 16, "isl": 300, "osl": 30, "tp": 2, "dp": 2, "ep": 2},
    {"model": "deepseek-v3", "gpu": "h200-sxm", "batch": 8, "isl": 4000, "osl": 100, "tp": 8},
    {"model": "gemma-2-9b", "gpu": "h100-sxm", "batch": 8, "isl": 4050, "osl": 100},
    {"model": "gpt-oss-120b", "gpu": "b200-sxm", "batch": 8, "isl": 900, "osl": 100, "kv": "fp8"},
    {"model": "llama-3-8b", "gpu": "h100-sxm", "batch": 32, "isl": 2048, "osl": 256, "context": 5000},
    {"model": "llama-3-8b", "gpu": "h100-sxm", "batch": 7, "isl": 2048, "osl": 1, "cached": 100, "engine": "ideal"},
    {"model": "llama-3-8b", "gpu": "h100-sxm", "batch": 7, "isl": 2048, "osl": 9, "weights": "int4", "pp": 2},
    {"model": "llama-3-8b", "gpu": "h100-sxm", "batch": 9, "isl": 77, "osl": 9, "calibration": "none"},
    {"model": "llama-3-8b", "gpu": "h100-sxm", "batch": 9, "isl": 8000, "osl": 300},  # beyond the model's maximum
    {"model": "llama-3-70b", "gpu": "h100-sxm", "isl": 9000, "osl": 1, "pp": 1, "context": 10_000},  # all warnings
]


def one(**row):
    return rk.estimate_frame(pd.DataFrame([{"model": "llama-3-8b"} | row])).iloc[0]


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def test_every_row_is_what_estimate_says():
    frame = rk.estimate_frame(pd.DataFrame(SCENARIOS).assign(allow_oom=True).sample(frac=1, random_state=1))
    for index, scenario in enumerate(SCENARIOS):
        got, expected = frame.loc[index], rk.estimate(**scenario, allow_oom=True).to_row()
        assert got["error"] == ""
        compared = {key: value for key, value in expected.items() if key in RESULT_COLUMNS and is_number(value)}
        assert len(compared) >= 17
        for key, value in compared.items():
            assert got[key] == pytest.approx(value, rel=1e-12), (index, key)
        assert got["warnings"] == "; ".join(rk.estimate(**scenario, allow_oom=True).warnings)
        assert (got["level"], got["evidence"]) == (expected["level"], expected["evidence"])
        assert got["fits"] == expected["fits"]
        assert got["gpus"] == expected["gpus"]
        assert got["level"] == "bound" or got["tpot_low_ms"] <= got["tpot_ms"] <= got["tpot_high_ms"]
        for end in ("ttft_low_ms", "ttft_high_ms", "tpot_low_ms", "tpot_high_ms"):
            assert pd.isna(got[end]) == (expected[end] is None), end


def test_rows_keep_index_columns_and_order():
    table = pd.DataFrame(
        {"team": ["a", "b", "c"], "batch": [4, 1, 2], "model": ["gpt2", "llama-3-8b", "gpt2"]},
        index=pd.Index([30, 10, 20], name="id"),
    )
    before = table.copy()
    got = rk.estimate_frame(table)
    assert got.index.equals(table.index)
    assert list(got.columns[:3]) == ["team", "batch", "model"]
    pd.testing.assert_frame_equal(got[["team", "batch", "model"]], before)
    pd.testing.assert_frame_equal(table, before)


@pytest.mark.parametrize("index", [
    [0, 0, 0], [("x", 1), ("x", 1), ("y", 2)], pd.date_range("2026-01-01", periods=3), ["b", "a", "b"],
], ids=["duplicate", "tuples", "dates", "labels"])  # fmt: skip
def test_any_index_will_do(index):
    table = pd.DataFrame({"model": "llama-3-8b", "batch": [1, 2, 3]}, index=index)
    got = rk.estimate_frame(table)
    assert got.index.equals(table.index)
    assert got["tpot_ms"].tolist() == [one(batch=b)["tpot_ms"] for b in (1, 2, 3)]


def test_a_bad_row_spoils_no_other():
    table = pd.DataFrame({
        "model": ["llama-3-8b", "lama-3-8b", "llama-3-8b", None, "llama-3-8b"],
        "tp": [1, 1, 3, 1, 2],
        "batch": [1, 1, 1, 1, -1],
    })  # fmt: skip
    got = rk.estimate_frame(table)
    said = [
        "",
        "unknown model 'lama-3-8b'; nearest: llama-3-8b",
        "tp=3 does not divide",
        "model is empty",
        "batch must be",
    ]
    for error, part in zip(got["error"], said, strict=True):
        assert error.startswith(part) if part else error == ""
    assert got["tpot_ms"].isna().tolist() == [False, True, True, True, True]
    assert got["fits"].isna().tolist() == [False, True, True, True, True]
    assert got["tpot_ms"][0] == one()["tpot_ms"]


def test_missing_cells_take_the_default():
    table = pd.DataFrame({
        "model": ["llama-3-8b"] * 3, "gpu": [None, "h100-sxm", np.nan], "batch": [np.nan, 1, 1], "tp": [1, np.nan, 1],
        "context": [np.nan] * 3, "kv": [None] * 3, "cached": [np.nan, 0, np.nan], "engine": [None, "vllm", None],
        "calibration": [None] * 3,
    })  # fmt: skip
    got = rk.estimate_frame(table)
    assert got["error"].tolist() == [""] * 3
    assert set(got["tpot_ms"]) == {one()["tpot_ms"]}


def test_a_row_with_a_fixed_context_beside_one_without():
    got = rk.estimate_frame(
        pd.DataFrame({"model": "llama-3-8b", "batch": 64, "context": [8000, np.nan], "allow_oom": True})
    )
    alone = rk.estimate("llama-3-8b", batch=64, context=8000, allow_oom=True).tpot_ms
    assert got["tpot_ms"][0] == pytest.approx(alone, rel=1e-12)
    assert got["tpot_ms"][1] == rk.estimate("llama-3-8b", batch=64).tpot_ms


@pytest.mark.parametrize(("column", "meant"), [
    ("Batch", "batch"), ("batch_size", "batch"), ("batchsize", "batch"), ("bs", "batch"), ("input_len", "isl"),
    ("input-length", "isl"), ("output_length", "osl"), ("GPU", "gpu"), ("tensor_parallel", "tp"), ("TP", "tp"),
    ("kv_dtype", "kv"), ("accelerator", "gpu"), ("Request rate", "rate"),
])  # fmt: skip
def test_a_misspelt_column_is_refused(column, meant):
    with pytest.raises(rk.InputError, match=f"column '{column}' is not read; rename it to '{meant}'"):
        rk.estimate_frame(pd.DataFrame({"model": ["llama-3-8b"], column: [4]}))


@pytest.mark.parametrize(("column", "meant"), [
    ("btch", "batch"), ("bacth", "batch"), ("contxt", "context"), ("cachd", "cached"), ("weigths", "weights"),
    ("activation", "activations"), ("calibraton", "calibration"), ("enigne", "engine"), ("sil", "isl"), ("gup", "gpu"),
])  # fmt: skip
def test_a_slip_in_a_column_is_refused(column, meant):
    with pytest.raises(rk.InputError, match=f"column '{column}' is not read; rename it to '{meant}'"):
        rk.estimate_frame(pd.DataFrame({"model": ["llama-3-8b"], column: [4]}))


@pytest.mark.parametrize("column", [
    "notes", "owner", "region", "team", "id", "name", "date", "slo", "sla", "cost", "mode", "kvs", "site", "match",
    "branch", "status", "model_family", "p", "", 7,
])  # fmt: skip
def test_a_column_of_the_planners_own_passes(column):
    assert rk.estimate_frame(pd.DataFrame({"model": ["llama-3-8b"], column: [4]}))["error"][0] == ""


@pytest.mark.parametrize("given", [[{"model": "llama-3-8b"}], {"model": ["llama-3-8b"]}, "rows.csv", None])
def test_what_is_no_table_is_refused_in_one_line(given):
    with pytest.raises(rk.InputError, match="must be a pandas DataFrame, not a") as caught:
        rk.estimate_frame(given)
    assert "\n" not in str(caught.value)


def test_warnings_are_those_of_each_row():
    got = rk.estimate_frame(pd.DataFrame({"model": "llama-3-8b", "isl": [100, 9000, 100], "osl": [8, 8, 1]}))
    assert got["warnings"].tolist() == [
        "",
        "9008 tokens exceed llama-3-8b's maximum context of 8192",
        "osl 1 has no second token: TPOT is the step that would follow",
    ]


@pytest.mark.parametrize("column", ["tpot_ms", "error", "fits", "max_batch", "warnings", "gpus"])
def test_a_column_named_like_a_result_is_refused(column):
    with pytest.raises(rk.InputError, match=f"column '{column}' would be overwritten"):
        rk.estimate_frame(pd.DataFrame({"model": ["llama-3-8b"], column: [4]}))


@pytest.mark.parametrize("columns", [[], ["name"], ["Model"]])
def test_a_table_without_models_is_refused(columns):
    with pytest.raises(rk.InputError, match="no column 'model'"):
        rk.estimate_frame(pd.DataFrame({column: ["llama-3-8b"] for column in columns}))


def test_an_empty_table_comes_back_with_its_columns():
    got = rk.estimate_frame(pd.DataFrame({"model": [], "batch": []}))
    assert len(got) == 0
    assert {"tpot_ms", "ttft_ms", "fits", "error"} <= set(got.columns)


def test_numbers_may_be_of_any_kind():
    table = pd.DataFrame(
        {
            "model": "llama-3-8b",
            "batch": [8, 8.0, np.int32(8), np.float32(8)],
            "tp": [2, 2.0, np.int64(2), np.float64(2)],
        },
        dtype=object,
    )
    got = rk.estimate_frame(table)
    assert got["error"].tolist() == [""] * 4
    assert got["tpot_ms"].tolist() == pytest.approx([rk.estimate("llama-3-8b", batch=8, tp=2).tpot_ms] * 4, rel=1e-12)
    nullable = pd.DataFrame({"model": "llama-3-8b", "batch": pd.array([8, None], dtype="Int64")})
    assert rk.estimate_frame(nullable)["tpot_ms"].tolist() == [one(batch=8)["tpot_ms"], one(batch=1)["tpot_ms"]]


def test_texts_may_be_categories():
    table = pd.DataFrame({"model": pd.Categorical(["gpt2", "llama-3-8b", "gpt2"]), "gpu": pd.Categorical(["l4"] * 3)})
    got = rk.estimate_frame(table)
    assert got["error"].tolist() == [""] * 3
    assert got["tpot_ms"][0] == got["tpot_ms"][2] != got["tpot_ms"][1]


def test_a_law_of_lengths_in_a_row_is_played_as_estimate_plays_it():
    laws = ["uniform:10-300", "lognormal:mean=60,cv=0.5", 80]
    got = rk.estimate_frame(pd.DataFrame({"model": "llama-3-8b", "rate": 3, "isl": 500, "osl": laws}))
    alone = [rk.estimate("llama-3-8b", rate=3, isl=500, osl=law) for law in laws]
    assert got["tpot_ms"].tolist() == [each.tpot_ms for each in alone]
    assert got["ttft_p99_ms"].tolist() == [each.load.percentiles["ttft_ms"]["p99"] for each in alone]


def test_a_law_of_lengths_without_a_load_or_a_number_is_an_error_in_its_row():
    table = pd.DataFrame({"model": "llama-3-8b", "rate": [None, 3.0], "osl": ["uniform:1-9", "uniform:9-1"]})
    got = rk.estimate_frame(table)["error"]
    assert got[0] == "osl=uniform:1-9 varies from request to request; add concurrency (a closed loop) or rate"
    assert "runs backwards" in got[1]


@pytest.mark.parametrize("column", ["batch", "isl", "osl", "context"])
@pytest.mark.parametrize("value", [0, -1, 2.5, float("inf"), "many"])
def test_a_senseless_count_is_an_error_in_its_row(column, value):
    table = pd.DataFrame({"model": "llama-3-8b", column: [value, 300]}, dtype=object)
    got = rk.estimate_frame(table)
    assert got["error"][0].startswith(f"{column} must be a whole number of at least 1, not {value}")
    assert got["error"][1] == ""
    assert math.isnan(got["tpot_ms"][0])


@pytest.mark.parametrize("value", [0, -1, 2.5, 1.5, float("inf")])
def test_a_senseless_degree_is_an_error_in_its_row(value):
    got = rk.estimate_frame(pd.DataFrame({"model": "llama-3-8b", "tp": [value, 2]}))
    assert got["error"][0].startswith("tp must be a whole number")
    assert got["error"][1] == ""


def test_a_cached_prefix_as_long_as_the_prompt_is_an_error_in_its_row():
    got = rk.estimate_frame(pd.DataFrame({"model": "llama-3-8b", "isl": 100, "cached": [0, 99, 100, 200, -1]}))
    assert (got["error"] == "").tolist() == [True, True, False, False, False]
    assert "cached=100 leaves nothing of isl=100" in got["error"][2]


@pytest.mark.parametrize("batch", [10**9, 10**15, 10**18])
def test_huge_counts_are_answered_and_do_not_fit(batch):
    got = one(batch=batch, allow_oom=True)
    assert got["error"] == ""
    assert not got["fits"]
    assert math.isfinite(got["tpot_ms"])
    assert got["tpot_ms"] == pytest.approx(rk.estimate("llama-3-8b", batch=batch, allow_oom=True).tpot_ms)


def test_a_row_that_does_not_fit_has_sizes_and_no_times():
    rows = [{"model": "llama-3-8b", "batch": 100_000}, {"model": "llama-3-8b", "batch": 4}]
    rows += [{**rows[0], "allow_oom": True}, {**rows[0], "allow_oom": "no"}, {**rows[0], "allow_oom": "maybe"}]
    got, shown = rk.estimate_frame(pd.DataFrame(rows)), rk.estimate(**rows[0], allow_oom=True)
    assert got["fits"].tolist()[:4] == [False, True, False, False]
    timed = [name for name in RESULT_COLUMNS if name.endswith("_ms") or name.startswith("output_tok_s")]
    assert len(timed) == 12
    assert got[timed].notna().all(axis=1).tolist() == [False, True, True, False, False]
    assert got[timed].isna().all(axis=1).tolist() == [True, False, False, True, True]
    for place in (0, 2, 3):
        assert got["total_bytes"][place] == shown.memory.total_bytes
        assert got["max_batch"][place] == shown.memory.max_batch
        assert "does not fit: needs" in got["warnings"][place]
    assert got["tpot_ms"][2] == shown.tpot_ms
    assert got["error"].tolist() == [""] * 4 + ["allow_oom must be True or False, not 'maybe'"]


@pytest.mark.parametrize("column", ["batch", "tp"])
def test_a_number_beyond_any_float_is_an_error_in_its_row(column):
    got = rk.estimate_frame(pd.DataFrame({"model": "llama-3-8b", column: pd.Series([10**400, 2], dtype=object)}))
    assert got["error"][0].startswith(column)
    assert got["error"][1] == ""


@pytest.mark.parametrize("row", [{"batch": 1e308}, {"isl": 1e200}])
def test_work_beyond_any_float_is_an_error_in_its_row(row):
    assert one(**row)["error"]


@pytest.mark.parametrize("cell", [{"calibration": 3.5}, {"model": ["llama-3-8b"]}])
def test_a_name_that_is_no_text_is_an_error_in_its_row(cell):
    table = pd.DataFrame([{"model": "llama-3-8b"} | cell, {"model": "llama-3-8b"}])
    got = rk.estimate_frame(table)
    assert got["error"][0]
    assert got["error"][1] == ""


@pytest.mark.parametrize("twice", ["model", "batch"])
def test_two_columns_of_one_name_are_refused(twice):
    table = pd.DataFrame([["llama-3-8b", 1, 2]], columns=["model", "batch", "isl"])
    table = pd.concat([table, table[[twice]]], axis=1)
    with pytest.raises(rk.InputError, match=twice):
        rk.estimate_frame(table)


def test_a_truth_value_is_no_count_but_text_that_is_a_number_is():
    # one bad cell of a CSV file makes its column text, so the other cells must still be read
    table = pd.DataFrame({"model": "llama-3-8b", "batch": pd.Series([True, "32", "many", 32], dtype=object)})
    got = rk.estimate_frame(table)
    assert got["error"][0].startswith("batch must be a whole number")
    assert got["error"][2].startswith("batch must be a whole number")
    assert got["tpot_ms"][1] == got["tpot_ms"][3]


def test_rows_of_several_chunks_are_as_if_alone():
    # 40,000 rows of one deployment are evaluated in pieces
    batch = np.arange(40_000) % 512 + 1
    got = rk.estimate_frame(pd.DataFrame({"model": "llama-3-8b", "batch": batch, "isl": 128}))
    assert (got["error"] == "").all()
    for row in (0, 16_383, 16_384, 39_999):
        assert got["tpot_ms"][row] == pytest.approx(one(batch=int(batch[row]), isl=128)["tpot_ms"], rel=1e-12)
