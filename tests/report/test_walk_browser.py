"""The step-through page in headless Chromium: arrow keys and clicks, light and dark, wide and narrow."""

from __future__ import annotations

from pathlib import Path

import pytest

import rooflinekit as rk
from rooflinekit.report.walk import walk_page

from .browser import CHROMIUM, Browser

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

_OUTSIDE = """(() => {
    const wide = document.documentElement.clientWidth;
    const out = [...document.querySelectorAll("body *")].filter((each) => !each.closest(".wide, nav")
        && each.getClientRects().length && each.getBoundingClientRect().right > wide + 1);
    return [document.documentElement.scrollWidth - wide, out.map((each) => each.textContent.slice(0, 40))];
})()"""


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (390, "dark")])
def test_every_step_is_reached_and_stays_inside(tmp_path: Path, width: int, theme: str) -> None:
    walk = rk.shapes("deepseek-v3", "h200-sxm", tokens=6, dp=8, ep=8, pp=2, batch=16)
    page = tmp_path / "walk.html"
    page.write_text(walk_page(walk), encoding="utf-8")
    stops = [stop.name for phase in walk.phases for section in phase.sections for stop in section.stops]
    with Browser(tmp_path / "profile") as browser:
        browser.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
        browser.size(width, 900)
        browser.open(page)
        for number, name in enumerate(stops):
            assert browser.value("document.querySelector('#stop h2').textContent") == name
            assert browser.value("location.hash") == f"#{number + 1}"
            assert browser.value(_OUTSIDE) == [0, []], name
            browser.press("ArrowRight")
        browser.press("ArrowLeft")
        assert browser.value("document.querySelector('#stop h2').textContent") == stops[-2]
        browser.value("document.querySelectorAll('nav button')[5].click()")
        assert browser.value("document.querySelector('#stop h2').textContent") == stops[5]
        browser.value("document.getElementById('back').click()")
        assert browser.value("document.getElementById('place').textContent") == f"5 of {len(stops)} · prefill"
        assert browser.errors == []
        assert all(url.startswith(("file:", "about:", "data:")) for url in browser.requests)
