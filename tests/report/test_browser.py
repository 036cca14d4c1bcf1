"""Pages in headless Chromium: silent, self-contained, live, in reach of a keyboard, inside the window, printable."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

import rooflinekit as rk
from rooflinekit.coefficients import plan_coefficients
from rooflinekit.coefficients.breakdown import with_bandwidth
from rooflinekit.estimator import read_deployment, resolve

from .browser import Browser

LIGHT, DARK = ([{"name": "prefers-color-scheme", "value": value}] for value in ("light", "dark"))


def opened(browser: Browser) -> None:
    """Open every table, but not the walk."""
    browser.value("document.querySelectorAll('main details:not(#walk)').forEach((each) => { each.open = true; })")
    browser.settle()


def of_charts(browser: Browser, expression: str) -> list[Any]:
    """An expression of `box` for each chart."""
    return list(browser.value(f"[...document.querySelectorAll('.chart')].map((box) => {expression})"))


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
    drawn = of_charts(browser, "box.querySelectorAll('svg, canvas').length")
    assert drawn
    assert min(drawn) >= 1
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


def random_states(count: int) -> list[dict[str, Any]]:
    draw = random.Random(4)
    return [{"model": draw.choice(("llama-3-8b", "qwen3-30b-a3b")), "gpu": draw.choice(("h100-sxm", "h200-sxm")),
             "tp": draw.choice((1, 2, 4)), "kv": draw.choice(("own", "fp8")), "weights": draw.choice(("own", "fp8")),
             "batch": draw.randint(1, 600), "isl": int(2 ** draw.uniform(0, 13)), "osl": int(2 ** draw.uniform(0, 11)),
             "speed": draw.choice((1, 1, 1.5))} for _ in range(count)]  # fmt: skip


def hash_of(state: dict[str, Any]) -> str:
    short = {"model": "m", "gpu": "g", "tp": "tp", "weights": "w", "kv": "kv", "batch": "b", "isl": "i", "osl": "o",
             "speed": "bw"}  # fmt: skip
    return "#" + "&".join(f"{short[name]}={value}" for name, value in state.items())


def expected(state: dict[str, Any]) -> list[float]:
    """TTFT, TPOT [s], tokens/s of a GPU and memory by `estimate`, and through coefficients on another bandwidth."""
    formats = {name: state[name] for name in ("weights", "kv") if state[name] != "own"}
    keys = {"tp": state["tp"], **formats}
    work = {name: state[name] for name in ("batch", "isl", "osl")}
    if state["speed"] == 1:
        told = rk.estimate(state["model"], state["gpu"], allow_oom=True, **work, **keys)
        return [told.ttft_ms / 1e3, told.tpot_ms / 1e3, told.output_tok_s_per_gpu, told.memory.total_bytes]
    plain = plan_coefficients(resolve(state["model"], state["gpu"], read_deployment(dict(keys)), None).predictor)
    plan = with_bandwidth(plain, state["speed"])
    ttft, tpot = plan.ttft(work["batch"], work["isl"]).time, plan.tpot(*work.values()).time
    rate = work["batch"] * work["osl"] / (ttft + (work["osl"] - 1) * tpot) / state["tp"]
    return [ttft, tpot, rate, plan.memory.at(work["batch"], work["isl"] + work["osl"], work["isl"]).total]


def test_the_address_is_the_state_and_numbers_are_pythons(browser: Browser, pages: dict[str, Path]) -> None:
    browser.size(1280, 900)
    browser.open(pages["deployment"])
    states = [state for state in random_states(420) if state["model"] == "llama-3-8b" or state["weights"] == "own"]
    script = """(hashes) => hashes.map((hash) => { state = read(hash); update();
      const view = answer(state); return view && [view.ttft.time, view.tpot.time, view.rateEach, view.memory.total,
        document.getElementById("tiles").textContent.includes(asTime(view.tpot.time)) ? 1 : 0]; })"""
    answers = browser.value(f"({script})({json.dumps([hash_of(state) for state in states])})")
    found = 0
    for state, told in zip(states, answers, strict=True):
        if told is not None:
            found += 1
            assert told == pytest.approx([*expected(state), 1], rel=1e-9), state
    assert found >= 200


def test_a_slider_changes_the_numbers_and_the_address(browser: Browser, pages: dict[str, Path]) -> None:
    browser.size(1280, 900)
    browser.open(pages["deployment"])
    before = browser.value("document.getElementById('tiles').textContent")
    browser.value("{ const slider = document.getElementById('in-batch'); slider.focus(); slider.value = 300;"
                  " slider.dispatchEvent(new Event('input', { bubbles: true })); }")  # fmt: skip
    browser.settle()
    after, batch = browser.value("document.getElementById('tiles').textContent"), browser.value("state.batch")
    assert batch == 512
    assert after != before
    assert browser.value("location.hash") == "#b=512"
    browser.value("document.getElementById('pin').click()")
    browser.value(
        "{ const box = document.getElementById('in-tp'); box.value = '2'; box.dispatchEvent(new Event('change')); }"
    )
    browser.settle()
    assert "Against the other" in browser.value("document.getElementById('compared').textContent")
    again = browser.value("location.hash")
    told = browser.value("document.getElementById('compared').textContent")
    browser.open(pages["deployment"], again)
    assert browser.value("document.getElementById('compared').textContent") == told
    browser.value("document.getElementById('reset').click()")
    browser.settle()
    assert browser.value("document.getElementById('tiles').textContent") == before
    assert browser.value("document.activeElement.id") == "pin", "a keyboard goes on where it was"


BROKEN = (
    "#vs=b%3D1e300%26m%3D__proto__",
    "#vs=%00%00&tp=3.5&kv=constructor",
    "#b=NaN&i=Infinity&bw=-1",
    "#b=0",
    "#b=-3&i=1e99",
    "#m=nothing&tp=x",
    "#vs=a|b",
    "#b=%3Cimg%20src=x%3E&w=",
    "#g=__proto__",
)


@pytest.mark.parametrize("state", BROKEN)
def test_a_broken_address_is_mended(browser: Browser, pages: dict[str, Path], state: str) -> None:
    browser.errors.clear()
    browser.open(pages["deployment"], state)
    assert browser.value("document.getElementById('tiles').children.length") == 5
    assert browser.errors == []


def test_any_name_may_stand_in_an_address(browser: Browser, pages: dict[str, Path]) -> None:
    browser.size(1280, 900)
    browser.open(pages["named"])
    assert browser.value("document.getElementById('in-model').value") == "a|b&c=<i>{{data}}"
    browser.value("change({ tp: 2 }); document.getElementById('pin').click(); change({ batch: 7 })")
    browser.settle()
    told, again = browser.value("document.getElementById('compared').textContent"), browser.value("location.hash")
    assert "on 2 × h100-sxm" in told
    browser.open(pages["named"], again)
    assert browser.value("document.getElementById('compared').textContent") == told


def test_what_is_compared_stays_within_the_limits(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["deployment"], "#vs=b%3D123456789%26i%3D0.2")
    assert browser.value("[pinned.batch, pinned.isl]") == [4096, 1]


def test_what_is_not_in_the_page_says_so(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["fixed"])
    assert browser.value("document.getElementById('tiles').children.length") == 5
    browser.open(pages["deployment"], "#m=qwen3-30b-a3b&w=fp8")
    assert browser.value("document.getElementById('charts').hidden") is False
    browser.open(pages["fixed"], "#tp=8&w=fp8&m=nothing&b=4096&i=1000000")
    assert "does not fit" in browser.value("document.getElementById('tiles').textContent")


def test_choices_say_why_they_are_none(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["fixed"], "#tp=8")
    titles = "[...document.getElementById('in-tp').options].map((each) => each.textContent)"
    assert browser.value(titles) == ["1 GPU (does not fit)", "2 GPUs", "4 GPUs", "8 GPUs"]
    browser.value("change({ tp: 1, batch: 1 })")
    browser.settle()
    assert "does not fit" in browser.value("document.getElementById('said').textContent")
    assert browser.value("document.getElementById('out-batch').textContent") == "1 sequence"


def test_what_is_compared_goes_with_the_answer(browser: Browser, pages: dict[str, Path]) -> None:
    """A state that is not in the page has no numbers: those of the state before must not stay."""
    browser.open(pages["against"])
    assert "here / there" in browser.value("document.getElementById('compared').textContent")
    browser.value("Object.assign(state, { tp: 64 }); update()")
    assert "64 × h100-sxm" in browser.value("document.getElementById('said').textContent")
    assert browser.value("[...document.querySelectorAll('#tiles *, #compared *')].length") == 0
    browser.value("Object.assign(state, { tp: 1 }); update()")
    assert "here / there" in browser.value("document.getElementById('compared').textContent")


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
    wanted = set(browser.value(
        "[...document.querySelectorAll('select, input, button:not(:disabled), summary, a[href]')]"
        ".filter((each) => each.checkVisibility()).map((each, place) =>"
        " { each.dataset.place = place; return String(place); })"))  # fmt: skip
    reached = set()
    for _ in range(len(wanted) + 20):
        browser.press("Tab")
        reached.add(browser.value("document.activeElement.dataset.place ?? ''"))
    assert wanted <= reached


def test_pictures_have_words_and_tables(browser: Browser, pages: dict[str, Path]) -> None:
    browser.size(1280, 900)
    browser.open(pages["against"])
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
    undrawn = "[...CHARTS.values()].filter((chart) => chart.option && chart.stale).length"
    browser.value(f"new Promise((done) => {{ const look = () => {undrawn} ? setTimeout(look, 50) : done(); look(); }})")
    charts = "[...CHARTS.values()].every((chart) => !chart.option || chart.box.querySelector('svg, canvas'))"
    assert browser.value(f"CHARTS.size > 5 && {charts}")


def test_a_table_without_rows_is_not_shown(browser: Browser, pages: dict[str, Path]) -> None:
    """A deployment that the sliders cannot express has no moves until one of them is touched."""
    browser.open(pages["fixed"])
    rows = "document.querySelectorAll('#moves td').length"
    assert browser.value(f"document.getElementById('moves').parentElement.hidden === ({rows} === 0)")
