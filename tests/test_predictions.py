"""The gate on predictions: what counts as moved, and that the committed table is whole."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
import predictions  # noqa: E402 - a script beside the package

TABLE = ROOT / "tests" / "predictions.csv"


@pytest.fixture
def table():
    return pd.read_csv(TABLE, keep_default_na=False, na_values={name: [""] for name in predictions.FIGURES})


def test_the_table_has_every_deployment_at_both_levels(table):
    key = ["model", "gpu", "options"]
    assert len(table) == 2 * len(predictions.DEPLOYMENTS) == 200
    assert list(table[key].drop_duplicates().itertuples(index=False, name=None)) == predictions.DEPLOYMENTS
    assert (table["error"] == "").all()
    assert set(table.groupby(key)["level"].agg(frozenset)) == {frozenset({"expected", "bound"})}


@pytest.mark.parametrize("first", range(10))
def test_the_code_gives_the_table(table, first):
    """A tenth of the deployments, each of another kind; `make predictions` says how to write the table anew."""
    new = predictions.predicted(predictions.DEPLOYMENTS[first::10])
    key = ["model", "gpu", "options", "level"]
    assert len(new) == 20
    assert predictions.moved(table.merge(new[key], on=key), new) == []


def test_nothing_expected_is_faster_than_its_bound(table):
    key = ["model", "gpu", "options"]
    both = table[table["level"] == "expected"].merge(table[table["level"] == "bound"], on=key, suffixes=("", "_bound"))
    for figure in ("ttft_ms", "tpot_ms"):
        assert (both[figure] >= both[f"{figure}_bound"]).all()


def test_a_table_equals_itself(table):
    assert predictions.moved(table, table.copy()) == []


@pytest.mark.parametrize(
    ("factor", "count"), [(1.0 + 9e-10, 0), (1.0 - 9e-10, 0), (1.000001, 1), (0.5, 1), (0.0, 1), (np.nan, 1)]
)
def test_a_figure_that_moved_by_more_than_a_billionth_is_named(table, factor, count):
    new = table.copy()
    new.loc[7, "tpot_ms"] *= factor
    changes = predictions.moved(table, new)
    assert len(changes) == count
    assert all("tpot_ms" in text and table.loc[7, "model"] in text for text in changes)


def test_the_largest_shift_comes_first_and_lost_rows_before_it(table):
    new = table.drop(index=3)
    new.loc[10, "ttft_ms"] *= 1.01
    new.loc[11, "ttft_ms"] *= 2.0
    lost, large, small = predictions.moved(table, new)
    assert "only in the table" in lost
    assert table.loc[11, "options"] in large
    assert table.loc[10, "options"] in small


def test_an_answer_that_became_a_refusal_is_a_shift(table):
    new = table.copy()
    new.loc[0, "error"] = "tp=1 is not possible"
    (change,) = predictions.moved(table, new)
    assert "answered -> tp=1 is not possible" in change
