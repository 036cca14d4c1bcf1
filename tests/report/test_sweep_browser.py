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
    assert "10,000 rows: output_tok_s_per_gpu against tpot_ms" in browser.value(
        "document.getElementById('sweep').ariaLabel"
    )


def pick(browser: Browser, **choice: str) -> str:
    """Choose what stands across and up; what the page says of it."""
    for name, value in choice.items():
        browser.value(f"{{ const box = document.getElementById('sweep-{name}'); box.value = '{value}';"
                      " box.dispatchEvent(new Event('change')); }")  # fmt: skip
    return str(browser.value("document.getElementById('sweep-said').textContent"))


def test_the_front_of_a_sweep_knows_what_is_better(browser: Browser, pages: dict[str, Path]) -> None:
    """Less time and more tokens: the front begins at the least TPOT, and no row of what fits beats one of it."""
    browser.open(pages["sweep"])
    assert "more output_tok_s_per_user, more output_tok_s_per_gpu" in pick(browser)
    assert "less tpot_ms, more output_tok_s_per_gpu" in pick(browser, x="tpot_ms")
    browser.value("document.querySelector('#sweep + details').open = true")
    browser.settle()
    lines = browser.value(
        "[...document.querySelectorAll('#sweep + details tr')].map((row) =>"
        " [...row.children].map((each) => each.textContent))"
    )
    place, gpu = lines[0].index("tpot_ms"), lines[0].index("output_tok_s_per_gpu")
    front = [(float(line[place].replace(",", "")), float(line[gpu].replace(",", ""))) for line in lines[1:]]
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
