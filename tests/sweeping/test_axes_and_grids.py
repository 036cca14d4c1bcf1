"""How lists are spelled, and every combination of them."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rooflinekit as rk
from rooflinekit.decision.sweeping.sweep import Grid, SweepShard, parse_axis


@pytest.mark.parametrize(("text", "values"), [
    ("1", [1]), ("1,2,8", [1, 2, 8]), ("1:4", [1, 2, 3, 4]), ("0:100:25", [0, 25, 50, 75, 100]), ("1:10:4", [1, 5, 9]),
    ("4:64*2", [4, 8, 16, 32, 64]), ("3:100*3", [3, 9, 27, 81]), ("1,2,4:16*2", [1, 2, 4, 8, 16]), ("5:5", [5]),
    ("0.1:0.5:0.1", [0.1, 0.2, 0.3, 0.4, 0.5]), ("0.5:4*2", [0.5, 1.0, 2.0, 4.0]), ("bf16, fp8", ["bf16", "fp8"]),
    ("default,8000", [None, 8000]), ("none", ["none"]), ("full,window:4096", ["full", "window:4096"]),
    ("1e3", [1000.0]),    ("1:1000*10", [1, 10, 100, 1000]), ("-1", [-1]), ("nan", ["nan"]),
    ("9" * 400, ["9" * 400]),
])  # fmt: skip
def test_a_list_is_what_it_says(text, values):
    got = parse_axis(text, "x")
    assert got == values
    assert list(map(type, got)) == list(map(type, values))


@pytest.mark.parametrize("text", [
    "", "1,", ",1", "8:1", "1:8*1", "1:8*0.5", "0:8*2", "1:8:0", "1:8:-1", "1:x", "1:8*x", "1:8*", "1:1e12", "1:2:3:4",
    "1::2",
])  # fmt: skip
def test_what_is_no_list_is_refused_in_one_line(text):
    with pytest.raises(rk.InputError) as caught:
        parse_axis(text, "batch")
    assert str(caught.value).startswith("batch")
    assert "\n" not in str(caught.value)


@given(st.integers(1, 50), st.integers(0, 200), st.integers(1, 9))
def test_a_range_is_that_of_python(start, length, step):
    assert parse_axis(f"{start}:{start + length}:{step}", "n") == list(range(start, start + length + 1, step))


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), min_size=1, max_size=4), st.integers(1, 7))
def test_a_grid_is_the_product_whatever_its_pieces(axes, size):
    grid = Grid.of({f"x{place}": values for place, values in enumerate(axes)})
    parts = [piece() for piece in grid.pieces(size, 0, grid.rows)]
    assert [tuple(row) for row in pd.concat(parts).itertuples(index=False)] == list(product(*axes))
    assert max(map(len, parts)) <= size


def test_values_of_any_kind():
    table = Grid.of({"model": Path("a") / "config.json", "kv": [None, "fp8"], "batch": [1, "many"],
                     "acceptance": [[0.8, 0.7]], "isl": range(2)}).frame(0, 8)  # fmt: skip
    assert table["model"].unique().tolist() == ["a/config.json"]
    assert table["kv"].isna().sum() == 4
    assert set(table["batch"]) == {"1", "many"}  # read as numbers where they are
    assert set(table["acceptance"]) == {"0.8,0.7"}


@pytest.mark.parametrize("given", [{"batch": []}, {"batch": range(10**5), "isl": range(10**5)}])
def test_nothing_and_too_much_are_refused(given):
    with pytest.raises(rk.InputError):
        Grid.of(given)


@given(st.integers(0, 1000), st.integers(1, 20))
def test_shards_are_a_partition(rows, of):
    spans = [SweepShard(number, of).span(rows) for number in range(1, of + 1)]
    assert [row for start, stop in spans for row in range(start, stop)] == list(range(rows))
    sizes = [stop - start for start, stop in spans]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "a/b", "1/0", "-1/2", ""])
def test_what_is_no_shard_is_refused(text):
    with pytest.raises(rk.InputError, match="shard must be i/n"):
        SweepShard.parse(text)
