"""The front against its definition."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import rooflinekit as rk
from rooflinekit.decision.sweeping.pareto import (
    FAILED,
    LATE,
    MISFIT,
    OVERLOADED,
    Goal,
    on_front,
    pareto_front,
    parse_goals,
    why_not,
)
from rooflinekit.decision.sweeping.sweep import front_of

FEW = st.sampled_from([0.0, 1.0, 2.0, 3.0, -1.0, np.inf, -np.inf, np.nan])


def by_definition(losses):
    """A row is on the front if no other is at most as large everywhere and smaller somewhere."""
    known = ~np.isnan(losses).any(axis=1)
    return [
        bool(known[i]) and not any(
            known[j] and (losses[j] <= losses[i]).all() and (losses[j] < losses[i]).any() for j in range(len(losses))
        )
        for i in range(len(losses))
    ]  # fmt: skip


@settings(max_examples=300)
@given(arrays.arrays(float, st.tuples(st.integers(0, 14), st.integers(2, 4)), elements=FEW))
def test_with_ties_and_nan(losses):
    assert on_front(losses).tolist() == by_definition(losses)


@given(arrays.arrays(float, st.tuples(st.integers(1, 40), st.integers(2, 3)), elements=st.floats(-5, 5)))
def test_of_any_numbers(losses):
    assert on_front(losses).tolist() == by_definition(losses)


def test_over_several_blocks():
    losses = np.random.default_rng(1).random((9_000, 3))
    front = on_front(losses)
    points = losses[front]
    for row in losses[~front][::37]:  # whatever is beaten, is beaten by the front
        assert ((points <= row).all(axis=1) & (points < row).any(axis=1)).any()
    assert on_front(points).all()


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=30), st.integers(1, 7))
def test_piece_by_piece_is_the_same(points, size):
    table = pd.DataFrame(points, columns=["a", "b"]).astype(float)
    goals = (Goal("a", "min"), Goal("b", "max"))
    pieces = [table.iloc[start : start + size] for start in range(0, len(table), size)]
    pd.testing.assert_frame_equal(next(front_of(pieces, goals)), pareto_front(table, goals))


def test_rows_that_cannot_be_used_do_not_compete():
    table = pd.DataFrame({
        "tpot_ms": [1.0, 2.0, np.nan, 5.0], "gpus": [1.0, 1.0, 1.0, 1.0], "fits": pd.array([False, True, True, True]),
        "error": ["", "", "", ""],
    })  # fmt: skip
    assert pareto_front(table, parse_goals("tpot_ms:gpus")).index.tolist() == [1]
    table["error"] = ["", "no", "", ""]
    assert pareto_front(table, parse_goals("tpot_ms:gpus")).index.tolist() == [3]


def test_what_cannot_be_sustained_does_not_compete():
    """Above the knee a full deployment gives the most tokens, at a TTFT without end."""
    asked = {"gpu": ["h100-sxm", "h200-sxm"], "rate": [1, 10, 80], "isl": 1024, "osl": 256}
    front = rk.sweep("llama-3-8b", pareto="tok_s_user:tok_s_gpu", **asked)
    whole = rk.sweep("llama-3-8b", **asked)
    assert whole["stable"].tolist() == [True, True, False] * 2
    assert whole["output_tok_s_per_gpu"].idxmax() in whole.index[~whole["stable"]]
    assert front["stable"].all()
    assert set(front["rate"]) <= {1, 10}
    goals = parse_goals("tok_s_user:tok_s_gpu")
    assert len(front) == len(pareto_front(whole[whole["stable"]], goals)) > 0


@pytest.mark.parametrize("column", [
    [True, False, None], ["True", "false", ""], [1, 0, np.nan], ["yes", " No ", None], [1.0, 0.0, None],
    pd.array([True, False, None], dtype="boolean"),
])  # fmt: skip
@pytest.mark.parametrize(("name", "word"), [("fits", MISFIT), ("stable", OVERLOADED)])
def test_yes_and_no_are_read_whatever_wrote_them(name, word, column):
    assert why_not(pd.DataFrame({name: column})).tolist() == ["", word, ""]


def test_the_first_reason_is_told():
    rows = pd.DataFrame({"error": ["x", "", np.nan, None], "fits": [False, False, True, None],
                         "stable": [False, False, False, None], "goodput": [0, 0, 0, "0.0"]})  # fmt: skip
    assert why_not(rows).tolist() == [FAILED, MISFIT, OVERLOADED, LATE]
    assert why_not(rows[[]]).tolist() == [""] * 4
    assert why_not(rows.iloc[:0]).tolist() == []


def test_a_table_that_comes_back_from_a_file_has_the_same_front(tmp_path):
    table = rk.sweep("llama-3-8b", rate=[1, 10, 80], isl=512, osl=64, ttft=500, tpot=[1, 50])
    goals = parse_goals("ttft_ms:output_tok_s")
    own = pareto_front(table, goals)
    assert set(own["tpot"]) == {50}  # of 1 ms a token no request meets the objectives
    for suffix, write, read in (("csv", "to_csv", pd.read_csv), ("parquet", "to_parquet", pd.read_parquet)):
        path = tmp_path / f"a.{suffix}"
        getattr(table, write)(path, index=False)
        assert pareto_front(read(path), goals).index.tolist() == own.index.tolist()


@pytest.mark.parametrize(("text", "directions"), [
    ("tok_s_user:tok_s_gpu", ["max", "max"]), ("ttft_ms:usd_per_m", ["min", "min"]),
    ("tpot_ms=max:goodput=min", ["max", "min"]), ("knee_rate:gpus:tpot_p99_ms", ["max", "min", "min"]),
])  # fmt: skip
def test_goals_know_their_direction(text, directions):
    assert [goal.direction for goal in parse_goals(text)] == directions


@pytest.mark.parametrize("text", ["", "tpot_ms", "tpot_ms:tpot_ms", "tpot_ms:", "a=up:b", "tok_s:output_tok_s"])
def test_what_is_no_pair_of_goals_is_refused(text):
    with pytest.raises(rk.InputError, match="pareto"):
        parse_goals(text)


def test_the_front_of_a_sweep():
    asked = {"gpu": ["h100-sxm", "h200-sxm"], "batch": [1, 8, 64], "tp": [1, 2, 3], "calibration": "none"}
    front, whole = rk.sweep("llama-3-8b", pareto="tok_s_user:tok_s_gpu", **asked), rk.sweep("llama-3-8b", **asked)
    good = whole[(whole["error"] == "") & whole["fits"].fillna(value=False)]
    losses = -good[["output_tok_s_per_user", "output_tok_s_per_gpu"]].to_numpy()
    assert front["tpot_ms"].tolist() == good["tpot_ms"][by_definition(losses)].tolist()
    with pytest.raises(rk.InputError, match="no column 'tpot'; nearest: tpot_ms"):
        rk.sweep("llama-3-8b", pareto="tpot:ttft_ms")
