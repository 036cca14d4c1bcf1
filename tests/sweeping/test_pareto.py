"""The front against its definition."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import rooflinekit as rk
from rooflinekit.sweeping.front import front_of
from rooflinekit.sweeping.pareto import Goal, on_front, pareto_front, parse_goals

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
