"""Where names stand in the roofline: beside their points, not over others."""

from __future__ import annotations

from pathlib import Path

import pytest

from .browser import Browser

SHARED = """(() => {
  const names = new Set(STEPS.flatMap((step) => answer(state)[step].map((part) => part.name)));
  const texts = [...document.querySelectorAll('#roofline text')];
  const boxes = texts.filter((each) => names.has(each.textContent.split(' + ')[0]))
    .map((each) => [each.textContent, each.getBoundingClientRect()]);
  const apart = (a, b) => a.right <= b.left + 2 || b.right <= a.left + 2
    || a.bottom <= b.top + 4 || b.bottom <= a.top + 4;
  const touching = boxes.flatMap(([one, a], place) =>
    boxes.slice(place + 1).filter(([, b]) => !apart(a, b)).map(([other]) => `${one} / ${other}`));
  const frame = byId('roofline').getBoundingClientRect();
  const outside = boxes.filter(([, box]) => box.left < frame.left || box.right > frame.right).map(([name]) => name);
  const chart = C.roofline.chart, dots = chart.getOption().series.filter(({ type }) => type === 'scatter')
    .flatMap(({ data }) => data).map(({ value, symbolSize }) => [chart.convertToPixel('grid', value), symbolSize / 2]);
  const struck = boxes.filter(([, box]) => dots.some(([[x, y], radius]) =>
    x - radius / 2 < box.right - frame.left && x + radius / 2 > box.left - frame.left
    && y - radius / 2 < box.bottom - frame.top - 3 && y + radius / 2 > box.top - frame.top + 3)).map(([name]) => name);
  return [boxes.length, touching, outside, struck.length];
})()"""


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize(("kind", "state"), [
    ("deployment", "b=1"), ("deployment", "b=512&i=8192"), ("deployment", "m=qwen3-30b-a3b&b=64"), ("fixed", "tp=4"),
    ("deployment", "b=1&y=share"), ("deployment", "m=qwen3-30b-a3b&b=64&y=share"), ("fixed", "tp=4&t=prefill&y=share"),
])  # fmt: skip
def test_names_do_not_touch(browser: Browser, pages: dict[str, Path], kind: str, state: str, width: int) -> None:
    browser.size(width, 20_000)  # everything is in the window, so the roofline is drawn
    browser.open(pages[kind], f"#{state}")
    count, touching, outside, struck = browser.value(SHARED)
    assert count >= (2 if width > 390 else 1)
    assert touching == outside == []
    assert struck == 0


def test_a_name_goes_where_it_hides_nothing(browser: Browser, pages: dict[str, Path]) -> None:
    """Below by default; aside where a point is below; nowhere where it would be hidden on every side."""
    browser.open(pages["deployment"])

    def side(*others: tuple[int, int, int]) -> str | None:
        points = [{"x": 100, "y": 100, "radius": 5, "name": "abcdef"}]
        points += [{"x": x, "y": y, "radius": radius, "name": ""} for x, y, radius in others]
        return browser.value(f"sidesOf({points}, [], [0, 0, 200, 200])[0]")

    assert side() == "bottom"
    assert side((100, 110, 2)) == "right"  # a small dot is hidden as well as a large one
    assert side((100, 114, 6)) == "right"
    assert side((100, 114, 6), (130, 100, 8)) == "top"
    assert side((100, 114, 6), (130, 100, 8), (100, 86, 6)) == "left"
    assert side((100, 100, 60)) is None
    assert browser.value('sidesOf([{x: 195, y: 100, radius: 5, name: "abcdef"}], [], [0, 0, 200, 200])[0]') == "left"
