"""Nothing that axe finds serious, on pages, on the playground and on the front page of the docs, in both themes."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest

from docs.generate.playground import FIRST, write_playground

from .browser import Browser, served

AXE = "axe-core@4.10.3"
"""Deque's rules of WCAG 2.0 to 2.2, as its package on npm."""

SITE = Path(__file__).parents[2] / "build" / "site" / "docs"
FOUND = """axe.run(document, { resultTypes: ["violations"] }).then(({ violations }) => violations
  .filter(({ impact }) => impact === "serious" || impact === "critical")
  .map(({ id, nodes }) => `${id}: ${nodes.slice(0, 5).map(({ target }) => target.join(" ")).join(", ")}`))"""


@cache
def axe() -> str:
    """The script; skips where npm cannot fetch it."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    folder = mkdtemp(prefix="axe-")
    command = [npm, "install", "--prefix", folder, "--no-save", "--no-audit", "--no-fund", "--ignore-scripts", AXE]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        return (Path(folder) / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")
    except (subprocess.SubprocessError, OSError) as error:
        pytest.skip(f"npm could not fetch {AXE}: {error}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def serious(browser: Browser, theme: str) -> list[str]:
    browser.send("Emulation.setEmulatedMedia", media="", features=[{"name": "prefers-color-scheme", "value": theme}])
    browser.settle()
    browser.value(f"{axe()}; 0")
    found = list(browser.value(FOUND))
    browser.send("Emulation.setEmulatedMedia", media="", features=[{"name": "prefers-color-scheme", "value": "light"}])
    return found


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("playground")
    write_playground(folder / "site", [FIRST], ("h100-sxm", "l40s"), folder / "store")
    with served(folder / "site") as found:
        yield f"{found}/index.html"


@pytest.mark.parametrize(
    ("kind", "theme"), [("deployment", "light"), ("deployment", "dark"), ("against", "light"), ("sweep", "dark")]
)
def test_a_page_has_no_serious_barrier(browser: Browser, pages: dict[str, Path], kind: str, theme: str) -> None:
    browser.size(1280, 900)
    browser.open(pages[kind])
    assert serious(browser, theme) == []


@pytest.mark.parametrize("width", [1280, 390])
def test_the_playground_has_no_serious_barrier(browser: Browser, address: str, width: int) -> None:
    browser.size(width, 900)
    browser.visit(address, "!!document.querySelector('.tile')")
    browser.value("pick('attention')")
    assert [line for theme in ("light", "dark") for line in serious(browser, theme)] == []


@pytest.mark.parametrize("name", ["index", "learn/continuous-batching"])
def test_a_page_of_the_docs_has_no_serious_barrier(browser: Browser, name: str) -> None:
    page = SITE / f"{name}.html"
    if not page.exists():
        pytest.skip("make site has not been run")
    browser.size(1280, 900)
    browser.open(page)
    assert [line for theme in ("light", "dark") for line in serious(browser, theme)] == []


def test_a_key_plays_every_control_of_the_playground(browser: Browser, address: str) -> None:
    """Without a mouse: all is reached by Tab; arrows move sliders; Enter shows a kernel and applies a change."""
    browser.size(1280, 900)
    browser.visit(address, "!!document.querySelector('.tile')")
    browser.wait("[...CHARTS.values()].every((chart) => !chart.option || !chart.stale || !chart.box.clientWidth)")
    wanted = set(browser.value(
        "[...document.querySelectorAll('select, input, button:not(:disabled), summary, a[href]')]"
        ".filter((each) => each.tabIndex >= 0 && each.checkVisibility()).map((each, place) =>"
        " { each.dataset.place = place; return String(place); })"))  # fmt: skip
    reached = set()
    for _ in range(len(wanted) + 20):
        browser.press("Tab")
        reached.add(browser.value("document.activeElement.dataset.place ?? ''"))
    assert wanted <= reached
    browser.value("byId('tab-decode').focus()")
    for tab in ("prefill", "load", "memory", "cost", "energy", "decode"):
        browser.press("ArrowRight")
        browser.settle()
        assert browser.value("[document.activeElement.id, tab]") == [f"tab-{tab}", tab]
        assert (
            browser.value("[...document.querySelectorAll('[role=tabpanel]')].filter((each) => !each.hidden).length")
            == 1
        )
    browser.value("byId('in-batch').focus()")
    before = browser.value("state.batch")
    browser.press("ArrowRight")
    assert browser.value("state.batch") > before
    browser.settle()  # or the kernel that has the focus is drawn anew before the key comes
    browser.value("document.querySelector('[data-kernel=attention]').focus()")
    browser.press("Enter")
    assert "at 3.35\u00a0TB/s" in browser.value("byId('picked').textContent")
    if browser.value("!!document.querySelector('#chips button')"):  # a change that the page holds can be pressed
        browser.value("document.querySelector('#chips button').focus()")
        browser.press("Enter")
        browser.settle()
        assert browser.value("isAsked(state)") is False
