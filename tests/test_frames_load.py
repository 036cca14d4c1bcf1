"""Rows under load in `rk.estimate_frame`: each is what `rk.estimate` says."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

import rooflinekit as rk
from rooflinekit.estimation.frames import LOAD_COLUMNS

SCENARIOS = [
    {"concurrency": 8, "isl": 512, "osl": 64},
    {"concurrency": 32, "isl": 512, "osl": 64, "requests": 320, "isl_cv": 0.5, "osl_cv": 0.3, "ttft": 400.0},
    {"rate": 3.0, "isl": 512, "osl": 64, "burstiness": 2.0, "ttft": 200.0, "tpot": 15.0},
    {"rate": 1e4, "isl": 512, "osl": 64, "tpot": 15.0},  # above the knee
    {"rate": 2.0, "isl": 512, "osl": 64, "tp": 2, "calibration": "none"},
]


def loaded(**columns):
    return rk.estimate_frame(pd.DataFrame({"model": "llama-3-8b"} | columns))


def test_every_row_is_what_estimate_says():
    got = rk.estimate_frame(pd.DataFrame([{"model": "llama-3-8b"} | row for row in SCENARIOS]))
    for index, asked in enumerate(SCENARIOS):
        expected, row = rk.estimate("llama-3-8b", **asked), got.loc[index]
        load = expected.load
        assert row["error"] == ""
        assert row["stable"] == load.stable
        for name in ("ttft_ms", "tpot_ms", "e2e_ms", "output_tok_s"):
            value = getattr(expected, name)
            assert row[name] == pytest.approx(math.nan if value is None else value, rel=1e-12, nan_ok=True)
        for name in ("running", "slots", "knee_rate", "prompt_share", "queue_ms", "goodput"):
            value = getattr(load, name)
            assert row[name] == pytest.approx(math.nan if value is None else value, rel=1e-12, nan_ok=True), name
        assert row["request_rate"] == pytest.approx(load.rate, rel=1e-12)
        for time, values in load.percentiles.items():
            for name, value in values.items():
                column = f"{time.removesuffix('_ms')}_{name}_ms"
                assert row[column] == pytest.approx(math.nan if value is None else value, rel=1e-12, nan_ok=True)
        assert row["warnings"] == "; ".join(expected.warnings)
        assert row["gpus"] == asked.get("tp", 1)


def test_rows_with_and_without_a_load_stand_together():
    got = loaded(batch=[64, np.nan], concurrency=[np.nan, 8])
    assert got["error"].tolist() == ["", ""]
    alone = [rk.estimate("llama-3-8b", **load).tpot_ms for load in ({"batch": 64}, {"concurrency": 8})]
    assert got["tpot_ms"].tolist() == pytest.approx(alone, rel=1e-12)
    assert got["stable"].isna().tolist() == [True, False]
    assert got["knee_rate"].isna().tolist() == [True, False]


def test_a_table_without_a_load_has_none_of_its_columns():
    assert not set(LOAD_COLUMNS) & set(loaded(batch=[1]).columns)
    assert set(LOAD_COLUMNS) <= set(loaded(rate=[1.0]).columns)
    assert loaded(batch=[1], slots=["mine"])["slots"].tolist() == ["mine"]
    with pytest.raises(rk.InputError, match="'slots' would be overwritten"):
        loaded(rate=[1], slots=["mine"])


@pytest.mark.parametrize(("columns", "said"), [
    ({"concurrency": [0]}, "concurrency must be a whole number"),
    ({"concurrency": [2.5]}, "concurrency must be a whole number"),
    ({"concurrency": ["many"]}, "concurrency must be a whole number"),
    ({"rate": [-1.0]}, "rate must be"), ({"rate": ["x"]}, "rate must be"), ({"rate": [math.inf]}, "rate must be"),
    ({"rate": [1.0], "concurrency": [2]}, "exclude each other"),
    ({"rate": [1.0], "batch": [4]}, "excludes concurrency and rate"),
    ({"rate": [1.0], "context": [400]}, "excludes concurrency and rate"),
    ({"rate": [1.0], "requests": [9], "warmup": [9]}, "leaves none of 9 requests"),
    ({"concurrency": [9], "burstiness": [2.0]}, "burstiness belongs to a rate"),
    ({"concurrency": [10**8]}, "at most 10,000,000"),
    ({"rate": [np.nan], "ttft": [9.0]}, "ttft describes traffic"),
    ({"ttft": [9.0]}, "ttft describes traffic"),
    ({"concurrency": [4], "isl": [10**6]}, "no room for one request"),
    ({"concurrency": [4], "isl_cv": [-1.0]}, "isl_cv must be"),
])  # fmt: skip
def test_what_makes_no_sense_is_an_error_in_its_row(columns, said):
    table = {key: pd.Series([*values, None], dtype=object) for key, values in columns.items()}
    got = rk.estimate_frame(pd.DataFrame({"model": "llama-3-8b"} | table))
    assert said in got["error"][0]
    assert math.isnan(got["tpot_ms"][0])
    assert got["error"][1] == ""


def test_numbers_may_be_text():
    got = loaded(rate=pd.Series(["3", "many"], dtype=object), tp=["2", "2"], eager=["yes", "no"])
    assert got["error"].tolist()[0] == ""
    assert got["tpot_ms"][0] == rk.estimate("llama-3-8b", rate=3, tp=2, eager=True).tpot_ms
    assert got["error"][1].startswith("rate must be a number")


@pytest.mark.parametrize(("column", "cell", "value"), [
    ("memory_fraction", "0.8", 0.8), ("max_num_seqs", "64", 64), ("power_cap", "500", 500.0), ("skew", "0.5", 0.5),
    ("eager", "TRUE", True), ("sequence_parallel", "no", False),
])  # fmt: skip
def test_a_setting_in_a_column_of_text_is_read(column, cell, value):
    got = rk.estimate_frame(pd.DataFrame({"model": "mixtral-8x7b", "tp": 2, column: [cell, "bad"]}))
    expected = rk.estimate("mixtral-8x7b", tp=2, allow_oom=True, **{column: value})
    assert got["error"][0] == ""
    assert got["tpot_ms"][0] == pytest.approx(expected.tpot_ms, rel=1e-12)
    assert column in got["error"][1]
    assert "bad" in got["error"][1]


@pytest.fixture(scope="module")
def many():
    """Closed and open loops of all kinds, long and short, some above the knee."""
    draw, rows = np.random.default_rng(0), 24
    closed = draw.random(rows) < 0.5
    table = pd.DataFrame({
        "model": draw.choice(["llama-3-8b", "gpt-oss-120b"], rows),
        "isl": draw.integers(100, 4000, rows),
        "osl": draw.integers(2, 500, rows),
        "isl_cv": draw.choice([0.0, 0.7], rows),
        "osl_cv": draw.choice([0.0, 0.5], rows),
        "concurrency": np.where(closed, draw.integers(1, 60, rows), np.nan),
        "rate": np.where(closed, np.nan, np.exp(draw.uniform(-2.0, 4.5, rows))),
        "requests": np.where(draw.random(rows) < 0.5, 100.0, np.nan),
        "ttft": np.where(draw.random(rows) < 0.3, 300.0, np.nan),
    })  # fmt: skip
    return table, rk.estimate_frame(table)


def test_many_rows_at_once_are_what_estimate_says_of_each(many):
    table, got = many
    assert (got["error"] == "").all()
    assert got["stable"].value_counts().min() > 3
    for at in range(0, len(table), 3):
        asked = table.loc[at].dropna().to_dict()
        counts = {key: int(asked.pop(key)) for key in ("isl", "osl", "concurrency", "requests") if key in asked}
        told = rk.estimate(asked.pop("model"), allow_oom=True, **counts, **asked)
        for name in ("ttft_ms", "tpot_ms", "e2e_ms", "output_tok_s"):
            value = getattr(told, name)
            assert got[name][at] == pytest.approx(math.nan if value is None else value, rel=1e-12, nan_ok=True), name
        p99 = told.load.percentiles["e2e_ms"]["p99"]
        assert got["e2e_p99_ms"][at] == pytest.approx(math.nan if p99 is None else p99, rel=1e-12, nan_ok=True)
        good = told.load.goodput
        assert got["goodput"][at] == pytest.approx(math.nan if good is None else good, rel=1e-12, nan_ok=True)
        assert got["warnings"][at] == "; ".join(told.warnings)


def test_a_row_under_load_has_the_same_bits_alone(many):
    table, got = many
    for at in (0, 7, 21):
        pd.testing.assert_frame_equal(rk.estimate_frame(table.iloc[[at]]), got.iloc[[at]], check_exact=True)
