"""The sliders of the docs: their numbers are the library's, and a key moves each of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import rooflinekit as rk
from docs.generate.lessons import DATA, LESSONS, written

from .browser import Browser

LEARN = Path(__file__).parents[2] / "docs" / "learn"
_PATH = re.findall(r"^\d+\. \[[^]]+\]\(([a-z-]+)\.md\)", (LEARN / "index.md").read_text(encoding="utf-8"), re.M)
PAGES = {name: (LEARN / f"{name}.md").read_text(encoding="utf-8") for name in _PATH}
"""The lessons in the order in which the path lists them."""
SLIDERS = re.findall(r"<div data-lesson.*</div>", "".join(PAGES.values()))


def lessons(text: str) -> dict[str, Any]:
    return dict(json.loads(text.partition("const LESSONS = ")[2].partition(";\n")[0]))


def test_the_numbers_are_those_of_the_library() -> None:
    """Expected times may move by a tenth with a calibration before the sliders are written again."""
    kept, now = lessons(DATA.read_text(encoding="utf-8")), lessons(written())
    assert re.findall(r'data-lesson="([a-z-]+)"', "".join(SLIDERS)) == list(now)
    assert list(kept) == list(now)
    for name, lesson in now.items():
        assert [stop["at"] for stop in kept[name]["stops"]] == [stop["at"] for stop in lesson["stops"]]
        for old, new in zip(kept[name]["stops"], lesson["stops"], strict=True):
            for title, values in new["bars"].items():
                assert old["bars"][title] == pytest.approx(values, rel=0.1), (name, title)


def test_lessons_say_what_they_teach() -> None:
    """A token of a larger batch costs less; a smaller chunk holds others up for less, and its prompt for longer."""
    found = lessons(DATA.read_text(encoding="utf-8"))
    each = [sum(stop["bars"]["the same for each token"]) for stop in found["batch"]["stops"]]
    assert each == sorted(each, reverse=True)
    gaps, first = ([stop["bars"][name][0] for stop in found["chunked-prefill"]["stops"]]
                   for name in ("longest gap between tokens", "the prompt's first token"))  # fmt: skip
    assert gaps == sorted(gaps)
    assert first == sorted(first, reverse=True)

    fixed, lanes = ({name: values for name, values in found["continuous-batching"]["stops"][-1]["bars"].items()
                     if name.startswith(kind)} for kind in ("static", "continuous"))  # fmt: skip
    work, idle = ([sum(map(sum, (values[at::2] for values in lane.values()))) for lane in (fixed, lanes)]
                  for at in (0, 1))  # fmt: skip
    assert work[0] == work[1]  # the same answers
    assert idle[1] < idle[0] / 2.0
    gqa = [stop["bars"]["GQA, as it is"][0] * 1e9 for stop in found["attention"]["stops"]]
    contexts = [int(stop["at"].replace(",", "")) for stop in found["attention"]["stops"]]
    assert gqa == pytest.approx([rk.kv_cache_bytes("llama-3-70b", context) for context in contexts], rel=1e-3)


def test_every_lesson_asks_three_questions() -> None:
    """On one path of at most 30 minutes at 200 words a minute; the answers are folded."""
    assert len(PAGES) == 13
    for name, text in PAGES.items():
        assert text.count("<details><summary>") == text.count("</details>") == 3, name
    assert sum(len(text.split()) for text in PAGES.values()) < 30 * 200


def test_a_key_moves_every_lesson(browser: Browser, tmp_path: Path) -> None:
    boxes = "".join(SLIDERS)
    scripts = "".join(
        f'<script src="{(DATA.parent / name).as_uri()}"></script>' for name in ("lessons.js", "lesson.js")
    )
    page = tmp_path / "lessons.html"
    page.write_text(f"<!doctype html><body>{boxes}{scripts}", encoding="utf-8")
    browser.errors.clear()
    browser.open(page)
    for lesson in LESSONS:
        name = lesson.__name__.replace("_", "-")
        said = f"document.querySelector('[data-lesson={name}] p:last-child').textContent"
        before = browser.value(said)
        browser.value(f"document.getElementById('slide-{name}').focus()")
        browser.press("ArrowRight")
        assert browser.value(said) != before
    assert browser.errors == []
