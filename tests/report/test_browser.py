"""Pages in headless Chromium: silent, self-contained, live, in reach of a keyboard, inside the window, printable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .browser import Browser

LIGHT, DARK = ([{"name": "prefers-color-scheme", "value": value}] for value in ("light", "dark"))


def opened(browser: Browser) -> None:
    """Open every table, but not the walk."""
    browser.value("document.querySelectorAll('main details:not(#walk)').forEach((each) => { each.open = true; })")
    browser.settle()


def of_charts(browser: Browser, expression: str) -> list[Any]:
    """An expression of `box` for each chart of the tab that is open, or of all on paper."""
    shown = "[...document.querySelectorAll('.chart')].filter((box) => box.clientWidth)"
    return list(browser.value(f"{shown}.map((box) => {expression})"))


TABS = ("decode", "prefill", "load", "memory", "cost", "energy")


KINDS = ("deployment", "against", "fixed", "sweep", "named")


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_silent_and_asks_for_nothing(browser: Browser, pages: dict[str, Path], kind: str) -> None:
    browser.errors.clear()
    browser.requests.clear()
    browser.size(1280, 20_000)  # everything is in the window, so everything is drawn
    browser.open(pages[kind])
    if kind == "deployment":
        browser.value("document.getElementById('walk').open = true")
        browser.settle()
    for tab in TABS if kind != "sweep" else ("",):
        browser.value(f"document.getElementById('tab-{tab}')?.click()")
        browser.settle()
        browser.settle()
        drawn = of_charts(browser, "box.querySelectorAll('svg, canvas').length")
        assert drawn
        assert min(drawn) >= 1, tab
    assert browser.errors == []
    own = pages[kind].as_uri()
    outside = [url for url in browser.requests if not url.startswith(("data:", "about:")) and url != own]
    assert outside == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_overflows(browser: Browser, pages: dict[str, Path], kind: str, width: int) -> None:
    browser.size(width, 20_000)
    browser.open(pages[kind])
    opened(browser)
    wide = browser.value(
        "[...document.querySelectorAll('body *')].filter((each) => !each.closest('.wide, svg, .skip') &&"
        f" each.getBoundingClientRect().right > {width} + 0.5).map((each) => each.outerHTML.slice(0, 80))"
    )
    assert wide == []
    assert browser.value("document.documentElement.scrollWidth") <= width
    cut = browser.value(
        "[...document.querySelectorAll('.chart svg text')].filter((each) => { const own = each.getBoundingClientRect(),"
        " box = each.closest('.chart').getBoundingClientRect();"
        " return own.left < box.left - 1 || own.right > box.right + 1; })"
        ".map((each) => `${each.closest('.chart').id}: ${each.textContent}`)"
    )
    assert cut == []


def test_the_walk_inside_a_page_is_stepped_silently(browser: Browser, pages: dict[str, Path]) -> None:
    """Its frame has no address of its own: a step must not try to write one."""
    browser.size(1280, 20_000)
    browser.open(pages["deployment"])
    browser.errors.clear()
    browser.value("document.getElementById('walk').open = true")
    browser.value("new Promise((done) => document.querySelector('iframe').addEventListener('load', done))")
    place = "document.getElementById('place').textContent.split(' ')[0]"
    assert browser.inside(place) == "1"
    browser.value("document.querySelector('iframe').focus()")
    browser.press("ArrowRight")
    browser.press("ArrowRight")
    assert browser.inside(place) == "3"
    assert browser.inside("location.href") == "about:srcdoc"
    assert browser.errors == []


def test_a_keyboard_reaches_everything(browser: Browser, pages: dict[str, Path]) -> None:
    browser.size(1280, 900)
    browser.open(pages["deployment"])
    browser.value("document.activeElement.blur()")
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


def test_pictures_have_words_and_tables(browser: Browser, pages: dict[str, Path]) -> None:
    browser.size(1280, 900)
    browser.open(pages["against"])
    browser.wait(
        "!curve && [...CHARTS.values()].every((chart) => !chart.option || !chart.stale || !chart.box.clientWidth)"
    )
    charts = of_charts(browser, "[box.getAttribute('role'), box.getAttribute('aria-label'), box.nextSibling.tagName]")
    assert charts
    assert all(role == "img" and words and table == "DETAILS" for role, words, table in charts)
    opened(browser)
    rows = of_charts(browser, "box.nextSibling.querySelectorAll('tbody tr').length")
    assert min(rows) >= 1
    assert browser.value("[...document.querySelectorAll('.wide')].every((each) => each.tabIndex === 0)")
    names = browser.value("[...document.querySelectorAll('.chart + details > summary')].map((each) => each.ariaLabel)")
    assert len(set(names)) == len(names)
    unnamed = browser.value("[...document.querySelectorAll('select, input')].filter((each) => !each.labels.length &&"
                            " !each.ariaLabel).map((each) => each.id)")  # fmt: skip
    assert unnamed == []


def test_a_waterfall_names_every_bar_and_ends_with_the_interval(browser: Browser, pages: dict[str, Path]) -> None:
    """A bar that ends where the axis does has its number too, however its parts round."""
    browser.size(1280, 900)
    browser.open(pages["deployment"])
    for batch in (1, 5, 16, 32, 50, 64):
        browser.value(f"change({{ batch: {batch} }})")
        browser.settle()
        bars = browser.value(
            "waterfallBars(stepTerms(answer(state), 'decode')).map((bar) => bar.words ?? asTime(bar.size))"
        )
        words = browser.value("[...document.querySelectorAll('#waterfall text')].map((each) => each.textContent)")
        assert all(any(word.startswith(bar) for word in words) for bar in bars), (batch, bars, words)
        low, high = browser.value("[answer(state).tpot.low, answer(state).tpot.high]")
        start, end = browser.value(
            "(({ start, size }) => [start, start + size])(waterfallBars(stepTerms(answer(state), 'decode')).pop())"
        )
        assert [start, end] == pytest.approx([low, high], rel=1e-3)  # a step is at the mean context, TPOT in thirds


def test_words_in_charts_are_opaque(browser: Browser, pages: dict[str, Path]) -> None:
    """Contrast is that of the colours: a label takes the opacity of its point if nobody says otherwise."""
    browser.size(1280, 20_000)
    browser.open(pages["against"])
    faint = browser.value(
        "[...document.querySelectorAll('.chart svg text')].filter((each) => ['fill-opacity', 'opacity'].some((name) =>"
        " Number(each.getAttribute(name) ?? 1) < 1 || Number(getComputedStyle(each)[name] || 1) < 1))"
        ".map((each) => `${each.closest('.chart').id}: ${each.textContent}`)"
    )
    assert faint == []


@pytest.mark.parametrize("kind", ["deployment", "against", "sweep"])
def test_paper_splits_no_chart(browser: Browser, pages: dict[str, Path], kind: str) -> None:
    """From a wide dark window: every chart is as wide as the paper, light, and on one page."""
    browser.send("Emulation.setEmulatedMedia", media="", features=DARK)
    browser.size(1600, 900)
    browser.open(pages[kind])
    browser.value("dispatchEvent(new Event('beforeprint'))")
    boxes = of_charts(browser, "[box.offsetWidth, box.offsetHeight, box.querySelectorAll('svg, canvas').length]")
    assert max(width for width, _, _ in boxes) <= 680
    assert max(height for _, height, _ in boxes) < 900
    assert min(drawn for _, _, drawn in boxes) >= 1
    inks = set(
        browser.value("[...document.querySelectorAll('.chart svg text')].map((each) => each.getAttribute('fill'))")
    )
    assert inks.isdisjoint({"#a9b2bb", "#e8eaed"}), "the greys of the dark theme"
    browser.send("Emulation.setEmulatedMedia", media="print", features=DARK)
    assert set(of_charts(browser, "getComputedStyle(box).breakInside")) == {"avoid"}
    assert browser.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    browser.send("Emulation.setEmulatedMedia", media="", features=DARK)
    browser.value("dispatchEvent(new Event('afterprint'))")
    paper = browser.send("Page.printToPDF", printBackground=True)
    assert len(paper["data"]) > 10_000
    browser.send("Emulation.setEmulatedMedia", media="", features=LIGHT)


def test_charts_out_of_sight_are_drawn_too(browser: Browser, pages: dict[str, Path]) -> None:
    """A picture of the whole page, and a search engine, see all of them without scrolling."""
    browser.size(1280, 900)
    browser.open(pages["deployment"])
    undrawn = "[...CHARTS.values()].filter((chart) => chart.option && chart.stale && chart.box.clientWidth).length"
    browser.value(f"new Promise((done) => {{ const look = () => {undrawn} ? setTimeout(look, 50) : done(); look(); }})")
    charts = ("[...CHARTS.values()].every((chart) => !chart.option || !chart.box.clientWidth ||"
              " chart.box.querySelector('svg, canvas, .scale'))")  # fmt: skip
    assert browser.value(f"CHARTS.size > 5 && {charts}")


def test_lines_and_labels_of_charts_can_be_read(browser: Browser, pages: dict[str, Path]) -> None:
    """A front holds what nothing beats; 13 doublings have room for each second label; $5 has no cents."""
    browser.size(1280, 900)
    browser.open(pages["deployment"])
    points = "[[1, 5], [2, 4], [1, 4], [3, 1]].map((value) => ({ line: 'a 1', group: 'a', tick: '8', value }))"
    fronts = f"({{ up }}) => frontsOption({points}, tintsOf(['a']), {{ x: {{}}, y: {{}}, least: 0, up }}).series"
    named = "filter(({ name }) => name === 'a')[0].data.map(({ value }) => value)"
    assert browser.value(f"({fronts})({{ up: 1 }}).{named}") == [[1, 5], [2, 4], [3, 1]]
    assert browser.value(f"({fronts})({{ up: -1 }}).{named}") == [[3, 1]]
    count = "doublings('', Array.from({ length: count }, (_, place) => 2 ** place)).interval"
    assert browser.value(f"[11, 13].map((count) => {count})") == [1, 2]
    assert browser.value("[5, 0.2, 100].map(asPrice)") == ["$5", "$0.20", "$100"]
    browser.value("document.getElementById('tab-energy').click()")
    browser.settle()
    told = "energyRoofOption(now).series.slice(1).map(({ data }) => data.filter(({ label }) => label).length)"
    assert browser.value(told.replace("now", "new View(OFFERS.plans[Object.keys(OFFERS.plans)[0]], state)")) == [1, 1]


@pytest.mark.parametrize(
    ("tab", "charts"), [("decode", ["batch"]), ("load", ["tpot", "ttft"]), ("memory", ["context"])]
)
def test_the_ends_of_logarithmic_axes_are_labelled(
    browser: Browser, pages: dict[str, Path], tab: str, charts: list[str]
) -> None:
    """An axis to 50 ends at 49.99999999999996 where it is computed from its logarithm."""
    browser.size(1280, 4000)
    browser.open(pages["deployment"])
    browser.value(f"byId('tab-{tab}').click()")
    browser.settle()
    for chart in charts:
        ticks = browser.value(f"C.{chart}.chart.getOption().yAxis[0].axisLabel.customValues.map(three)")
        words = browser.value(f"[...C.{chart}.box.querySelectorAll('text')].map((each) => each.textContent)")
        assert len(ticks) > 1
        assert set(ticks) <= set(words)


def test_a_table_without_rows_is_not_shown(browser: Browser, pages: dict[str, Path]) -> None:
    """A deployment without neighbours in its page has no moves."""
    browser.open(pages["fixed"])
    rows = "document.querySelectorAll('#moves td').length"
    assert browser.value(f"document.getElementById('moves').parentElement.hidden === ({rows} === 0)")
