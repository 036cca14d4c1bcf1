"""The page of a sweep in headless Chromium: quick, honest about what is better, its choice in the address."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import rooflinekit as rk

from .browser import Browser


def test_ten_thousand_rows_stay_quick_to_redraw(browser: Browser, pages: dict[str, Path]) -> None:
    """All rows are there, and another axis shows them all again."""
    browser.size(1280, 900)
    browser.open(pages["sweep"])
    assert browser.value("DATA.table.rows") == 10_000
    browser.value(
        "{ const box = document.getElementById('sweep-x'); box.value = 'tpot_ms';"
        " box.dispatchEvent(new Event('change')); }"
    )
    browser.settle()
    assert "10,000 rows: output of one GPU [tokens/s] against TPOT [ms]" in browser.value(
        "document.getElementById('sweep').ariaLabel"
    )


def pick(browser: Browser, **choice: str) -> str:
    """Choose what stands across and up; what the page says of it."""
    for name, value in choice.items():
        browser.value(f"{{ const box = document.getElementById('sweep-{name}'); box.value = '{value}';"
                      " box.dispatchEvent(new Event('change')); }")  # fmt: skip
    return str(browser.value("document.getElementById('sweep-said').textContent"))


def opened(browser: Browser) -> list[list[str]]:
    """The table of the chart."""
    browser.value("document.querySelector('#sweep + details').open = true")
    browser.settle()
    script = ("[...document.querySelectorAll('#sweep + details tr')].map((row) =>"
              " [...row.children].map((each) => each.textContent))")  # fmt: skip
    return list(browser.value(script))


def test_the_front_of_a_sweep_knows_what_is_better(browser: Browser, pages: dict[str, Path]) -> None:
    """Less time and more tokens: the front begins at the least TPOT, and no row of what fits beats one of it."""
    browser.open(pages["sweep"])
    assert "more output for one user, more output of one GPU" in pick(browser)
    assert "less TPOT, more output of one GPU" in pick(browser, x="tpot_ms")
    lines = opened(browser)
    place, gpu = lines[0].index("TPOT [ms]"), lines[0].index("output of one GPU [tokens/s]")
    told = [line for line in lines[1:] if line[0] == "on the line"]
    assert told == lines[1 : 1 + len(told)]
    assert "does not fit" in {line[0] for line in lines}
    front = [(float(line[place].replace(",", "")), float(line[gpu].replace(",", ""))) for line in told]
    assert front == sorted(front)
    assert [rate for _, rate in front] == sorted(rate for _, rate in front)
    assert front[0][0] == pytest.approx(1.0 + 1 / 7, rel=1e-2)  # row 1: row 0 does not fit
    assert front[-1][1] == 30 * 89
    assert "not both have a better end" in pick(browser, x="batch")


def test_the_choice_of_a_sweep_stands_in_the_address(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["sweep"])
    told = pick(browser, x="tpot_ms", by="")
    assert browser.value("location.hash") == "#x=tpot_ms&by="
    browser.open(pages["sweep"], "#x=tpot_ms&by=")
    assert browser.value("document.getElementById('sweep-said').textContent") == told
    browser.open(pages["sweep"], "#x=__proto__&y=%3Cimg%3E&by=1e9")
    assert browser.value("document.getElementById('sweep-x').value") == "output_tok_s_per_user"


def test_a_sweep_without_positive_numbers_says_so(browser: Browser, tmp_path: Path) -> None:
    browser.errors.clear()
    page = rk.write_report(tmp_path / "a.html", sweep=pd.DataFrame({"tpot_ms": [-1.0, 0.0], "batch": [1, 2]})).path
    browser.open(page)
    assert "No row has values above zero" in browser.value("document.getElementById('sweep-said').textContent")
    assert browser.errors == []


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep over the rate, through its knee, with an objective that some rows miss altogether."""
    folder = tmp_path_factory.mktemp("loaded")
    asked = {"gpu": ["h100-sxm", "h200-sxm"], "rate": [1, 10, 20, 80], "isl": 1024, "osl": 256, "tpot": 11}
    rk.sweep("llama-3-8b", **asked).to_csv(folder / "r.csv", index=False)
    return rk.write_report(folder / "r.html", sweep=folder / "r.csv").path


def test_what_is_overloaded_is_hollow_and_on_no_line(browser: Browser, loaded: Path) -> None:
    browser.errors.clear()
    browser.open(loaded)
    said = pick(browser)
    assert said.startswith("8 rows: output of one GPU [tokens/s] against TPOT [ms]; 2 rows overloaded")
    assert "1 row of which no request meets the objectives" in said
    keys = (
        "[...document.querySelectorAll('#sweep-key li')].map((each) => [each.textContent, each.firstChild.className])"
    )
    told = [["h100-sxm", "round"], ["h200-sxm", "round"], ["overloaded", "round hollow"],
            ["misses the objectives", "round hollow"]]  # fmt: skip
    assert sorted(browser.value(keys)) == sorted(told)
    head, *lines = opened(browser)
    assert len(lines) == 8
    rate, gpu = head.index("arrivals [requests/s]"), head.index("GPU")
    stands = {(line[gpu], line[rate]): line[0] for line in lines}
    assert {key for key, word in stands.items() if word == "overloaded"} == {("h100-sxm", "80"), ("h200-sxm", "80")}
    assert stands["h100-sxm", "20"] == "misses the objectives"
    assert {key[0] for key, word in stands.items() if word == "on the line"} == {"h200-sxm"}
    assert "2 rows overloaded (more requests arrive than can be served);" in pick(browser, x="ttft_ms")
    assert browser.errors == []


def test_known_columns_have_words_and_the_address_their_names(browser: Browser, loaded: Path) -> None:
    browser.open(loaded, "#x=ttft_p99_ms&by=rate")
    shown = [browser.value(f"document.getElementById('sweep-{name}').selectedOptions[0].textContent")
             for name in ("x", "y", "by")]  # fmt: skip
    assert shown == ["TTFT, P99 [ms]", "output of one GPU [tokens/s]", "arrivals [requests/s]"]
    keys = browser.value("[...document.querySelectorAll('#sweep-key li')].map((each) => each.textContent)")
    assert keys[:3] == ["1", "10", "20"]
    pick(browser, x="tpot_p90_ms")
    assert browser.value("location.hash") == "#x=tpot_p90_ms&by=rate"


@pytest.mark.parametrize("values", [[5.0], [5.0, 5.0], [5e-324, 1e-200, 1e200, 1.7e308], [1e300, 2.0], [1e-9, 1e9]])
def test_any_numbers_are_drawn_or_told(browser: Browser, tmp_path: Path, values: list[float]) -> None:
    browser.errors.clear()
    table = pd.DataFrame({"tpot_ms": values, "output_tok_s_per_gpu": values, "__proto__": values, "<b>": "x"})
    browser.open(rk.write_report(tmp_path / "a.html", sweep=table).path)
    browser.settle()
    said = pick(browser)
    shown = sum(1e-300 < value < 1e300 for value in values)
    assert said.startswith(f"{shown} row")
    assert browser.errors == []


def test_groups_may_be_named_like_anything(browser: Browser, tmp_path: Path) -> None:
    browser.errors.clear()
    teams = ["constructor", "overloaded", "__proto__", ""]
    table = pd.DataFrame({"team": teams, "tpot_ms": [1.0, 2.0, 3.0, 4.0], "stable": [True, True, True, False],
                          "output_tok_s": [1.0, 2.0, 3.0, 4.0]})  # fmt: skip
    browser.open(rk.write_report(tmp_path / "a.html", sweep=table).path)
    keys = browser.value("[...document.querySelectorAll('#sweep-key li')].map((each) =>"
                         " [each.textContent, each.firstChild.className])")  # fmt: skip
    assert keys == [*([team, "round"] for team in teams[:3]), ["overloaded", "round hollow"]]
    assert browser.errors == []


def test_rows_that_share_one_place_are_one_ring_above_many(browser: Browser, tmp_path: Path) -> None:
    """Beyond the knee all rows of a deployment say the same: among thousands of squares they stay in sight."""
    count = 4_000
    rates = range(1, count + 1)
    same = [min(rate, 2_000.5) for rate in rates]
    table = pd.DataFrame({"rate": rates, "tpot_ms": same, "output_tok_s_per_gpu": same,
                          "stable": [rate <= 2_000 for rate in rates]})  # fmt: skip
    browser.open(rk.write_report(tmp_path / "a.html", sweep=table).path)
    assert "4,000 rows" in pick(browser)
    assert "2,000 rows overloaded" in pick(browser)
    rings = browser.value("CHARTS.get('sweep').chart.getOption().series.filter((each) =>"
                          " each.itemStyle?.color === 'transparent').map((each) => each.data.length)")  # fmt: skip
    assert rings == [2]  # across and up of one point
    assert "round hollow" in browser.value("document.querySelector('#sweep-key li:last-child i').className")
    head = browser.value("document.querySelector('header').textContent")
    assert "4,000 rows of the table, 2,000 overloaded." in head
