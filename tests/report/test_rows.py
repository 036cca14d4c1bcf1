"""Rows of a sweep in a page: every kind of column, what is better, and what is left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import rooflinekit as rk
from rooflinekit.decision.sweeping.sweep import SIMULATED_COLUMNS
from rooflinekit.estimation.frames.columns import LOAD_NUMBERS, NUMBERS
from rooflinekit.report.page.render import LIMIT_BYTES
from rooflinekit.report.page.rows import MOST_BYTES, rows_data, title_of

from .making import data_of

ANSWERS: dict[str, Any] = {"gpu": ["a", "b", "a"], "output_tok_s_per_user": [3.0, 2.0, 1.0],
                           "output_tok_s_per_gpu": [1.0, 2.0, 3.0]}  # fmt: skip


def of(**columns: Any) -> dict[str, Any]:
    return rows_data(pd.DataFrame(ANSWERS | columns))


class TestColumns:
    def test_any_column_that_varies_is_there(self) -> None:
        found = of(team=["x", "y", "x"], score=[1.0, 2.0, 4.0], same=[7, 7, 7])["columns"]
        assert found["team"] == {"words": ["x", "y"], "codes": [0, 1, 0]}
        assert found["score"] == {"values": [1, 2, 4]}
        assert "same" not in found

    def test_answers_written_as_text_are_numbers(self) -> None:
        assert of(tpot_ms=["1.5", "", "x"])["columns"]["tpot_ms"] == {"values": [1.5, None, None]}
        with pytest.raises(rk.InputError, match="no row has an answer"):
            rows_data(pd.DataFrame({"tpot_ms": ["fast", "", None]}))

    def test_numbers_that_may_be_missing(self) -> None:
        batch = pd.array([1, None, 3], dtype="Int64")
        assert of(batch=batch)["columns"]["batch"] == {"values": [1, None, 3]}
        assert of(isl=[np.inf, np.nan, 5e-324])["columns"]["isl"]["values"] == [None, None, 5e-324]

    def test_missing_words_are_a_group_of_their_own(self) -> None:
        found = rows_data(pd.DataFrame(ANSWERS | {"gpu": ["a", None, np.nan]}))["columns"]["gpu"]
        assert found == {"words": ["a", ""], "codes": [0, 1, 1]}

    def test_a_header_that_comes_twice_is_read_once(self) -> None:
        table = pd.DataFrame([[1, 2, 3.0], [2, 3, 4.0]], columns=["batch", "batch", "tpot_ms"])
        assert rows_data(table)["columns"]["batch"] == {"values": [1, 2]}

    def test_fits_is_read_whatever_wrote_it(self) -> None:
        assert of(fits=["true", "FALSE", " False"])["columns"]["fits"]["words"] == ["True", "False"]
        assert of(fits=[True, False, True])["columns"]["fits"]["words"] == ["True", "False"]

    def test_what_is_better(self) -> None:
        found = of(tpot_ms=[1.0, 2.0, 3.0], batch=[1, 2, 3], usd_per_hour=[1.0, 2.0, 3.0], ttft_p99_ms=[1.0, 2.0, 3.0])
        more = {"output_tok_s_per_user": 1, "output_tok_s_per_gpu": 1}
        assert found["better"] == {"tpot_ms": -1, **more, "usd_per_hour": -1, "ttft_p99_ms": -1}

    def test_titles_are_of_known_columns_and_given_is_no_result(self) -> None:
        found = of(tpot_p99_ms=[1.0, 2.0, 3.0], rate=[1, 2, 3], team=["x", "y", "x"], goodput=[0.0, 1.0, 2.0])
        assert found["titles"]["tpot_p99_ms"] == "TPOT, P99 [ms]"
        assert found["titles"]["goodput"] == "goodput [requests/s]"
        assert "team" not in found["titles"]
        assert found["given"] == ["gpu", "rate", "team"]
        assert of(goodput=[0.1, 0.2, 0.3], goodput_rate=[1, 2, 3])["titles"]["goodput"] == "goodput, share of requests"

    def test_what_keeps_a_row_off_the_front(self) -> None:
        found = of(fits=["True", "false", "True"], stable=[True, None, False])["barred"]
        assert [found["words"][code] for code in found["codes"]] == ["", "does not fit", "overloaded"]

    def test_every_result_of_numbers_has_words(self) -> None:
        """A page would show the raw name of a column that is missing in the titles."""
        names = {*NUMBERS, *LOAD_NUMBERS} | {name for name in SIMULATED_COLUMNS if name.endswith("_ms")}
        assert {name for name in names if title_of(name) == name} == set()


class TestSize:
    def test_wide_tables_say_what_is_left_out(self, tmp_path: Path) -> None:
        table = pd.DataFrame({f"c{place}": range(100) for place in range(500)} | {"tpot_ms": np.arange(100) + 1.0})
        data = rows_data(table)
        assert len(data["columns"]) == 60
        assert len(data["left"]) == 441
        page = rk.write_report(tmp_path / "a.html", sweep=table).path.read_text(encoding="utf-8")
        assert "441 more columns do not fit into a page" in page

    def test_the_front_of_what_fits_stays(self) -> None:
        count = 90_000
        user, gpu = np.arange(count) % 700 + 1.0, np.arange(count) % 900 + 1.0
        fits = np.ones(count, dtype=bool)
        user[50_001:], gpu[50_001:], fits[50_001:] = 1e6, 1e6, False  # the best do not fit
        stable = np.ones(count, dtype=bool)
        stable[40_000:40_100], user[40_000:40_100], gpu[40_000:40_100] = False, 1e5, 1e5  # nor can these be sustained
        user[12_345], gpu[12_345] = 5e3, 5e3
        columns = {"output_tok_s_per_user": user, "output_tok_s_per_gpu": gpu, "fits": fits, "stable": stable}
        data = rows_data(pd.DataFrame(columns))
        assert data["rows"] < count
        assert 5000 in data["columns"]["output_tok_s_per_user"]["values"]

    def test_a_page_stays_small_whatever_the_numbers_are(self, tmp_path: Path) -> None:
        draw = np.random.default_rng(1)
        names = ("ttft_ms", "tpot_ms", "e2e_ms", "output_tok_s", "output_tok_s_per_user", "output_tok_s_per_gpu",
                 "usd_per_hour", "total_bytes", "rate", "isl", "osl", "batch")  # fmt: skip
        table = pd.DataFrame({name: -draw.lognormal(-20, 9, 60_000) for name in names})
        made = rk.write_report(tmp_path / "a.html", sweep=table)
        assert made.bytes < LIMIT_BYTES
        data = data_of(made.path.read_text(encoding="utf-8"))
        assert MOST_BYTES / 3 < len(json.dumps(data["table"]["columns"], separators=(",", ":"))) <= MOST_BYTES


def test_one_row_is_one(tmp_path: Path) -> None:
    assert rk.write_report(tmp_path / "a.html", sweep=pd.DataFrame({"tpot_ms": [3.0]})).title == "Sweep of 1 row"
