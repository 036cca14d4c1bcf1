"""One request, to scale: what `estimate` and `simulate` print of a load, in the same words."""

from __future__ import annotations

import re
from typing import Any

import pytest

import rooflinekit as rk
from rooflinekit.report.answers import document_of, rows_of, text_of
from rooflinekit.report.document import markdown_text
from rooflinekit.report.request import Request, TimeAxis, latencies
from rooflinekit.specs.escaping import csv_text

LOADS: list[dict[str, Any]] = [
    {"rate": 8.0},
    {"rate": 40.0},
    {"concurrency": 64, "engine": "sglang"},
    {"concurrency": 32, "isl": "lognormal:mean=900,cv=1", "osl": "uniform:20-300", "engine": "trtllm"},
    {"rate": 4.0, "requests": 300, "osl": 1},
    {"rate": 2.0, "requests": 200, "calibration": "none"},
]


@pytest.mark.parametrize("load", LOADS, ids=lambda load: "-".join(map(str, load.values())))
def test_estimate_and_simulate_draw_the_same_request(load: dict[str, Any]) -> None:
    estimate, outcome = rk.estimate("llama-3-8b", **load), rk.simulate("llama-3-8b", **load)
    assert estimate.load is not None
    assert (outcome.ttft_parts_ms, outcome.ttft_ms.mean) == (estimate.load.ttft_parts_ms, estimate.ttft_ms)
    assert outcome.tpot_parts_ms == estimate.load.tpot_parts_ms
    assert outcome.others_spans == estimate.load.others_spans
    assert (outcome.interval, outcome.interval80, outcome.doubt) == (
        estimate.interval, estimate.interval80, estimate.doubt)  # fmt: skip
    assert outcome.bound == pytest.approx(estimate.bound)
    for metric, marks in estimate.load.percentiles.items():
        spread = getattr(outcome, metric)
        assert not spread.n or marks == {mark: getattr(spread, mark) for mark in marks}
    texts = [text_of(answer).splitlines() for answer in (estimate, outcome)]
    assert max(map(len, (line for text in texts for line in text))) <= 80
    for told in ("one request,", "front end", "own prompt", "time per token", "weights"):
        own, other = ([line for line in text if line.startswith(told)][:1] for text in texts)
        assert own == other, told


def test_parts_add_up_and_bars_follow_each_other() -> None:
    found = Request.of(rk.estimate("llama-3-8b", rate=20.0))
    assert found is not None
    assert sum(found.first.values()) == pytest.approx(found.ttft)
    assert sum(found.token.values()) == pytest.approx(found.tpot)
    assert found.tokens == 255
    lines = found.section()[1][0].text(80)
    assert lines[1].count("█") == round(80 * found.ttft / found.e2e)
    assert len(lines[1]) == 80


def test_steps_with_prompts_of_others_are_marked_to_scale() -> None:
    """On the bar as long as they take of the request nearest to the mean; one request after the other meets none."""
    found = Request.of(rk.estimate("llama-3-8b", rate=20.0))
    assert found is not None
    ends = [end for span in found.others_spans for end in span]
    assert ends == sorted(ends)
    assert 0.0 <= ends[0] < ends[-1] <= 1.0
    share = sum(until - since for since, until in found.others_spans)
    bar = TimeAxis(found).text(80)[1]
    assert bar.count("▓") == pytest.approx(share * (80 - bar.count("█")), abs=1)
    first, rest = 700 * found.ttft / found.e2e, 700 * (1 - found.ttft / found.e2e)
    assert f'x="{first + rest * ends[0]:.1f}"' in TimeAxis(found).html()
    alone = Request.of(rk.estimate("llama-3-8b", concurrency=1))
    assert alone is not None
    assert not alone.others_spans
    assert not any("▓" in line for line in TimeAxis(alone).text(80))


def test_prompts_of_other_replicas_are_not_marked() -> None:
    """Two users on two replicas never meet."""
    found = Request.of(rk.simulate("llama-3-8b", concurrency=2, replicas=2, requests=20))
    assert found is not None
    assert not found.others_spans
    one = Request.of(rk.simulate("llama-3-8b", concurrency=2, requests=20, isl="uniform:500-1500"))
    assert one is not None
    assert one.others_spans


def test_what_nobody_played_has_no_request() -> None:
    assert Request.of(rk.estimate("llama-3-8b")) is None
    assert Request.of(rk.simulate("llama-3-8b", rate=2.0, requests=20, osl=8, prefix_cache=True)) is None


def test_errors_stand_below_the_numbers_where_they_are_a_hundredth() -> None:
    assert latencies("TTFT", [100.0, 200.0], [0.5, 1.0]) == [["TTFT", "100 ms", "200 ms"]]
    assert latencies("TTFT", [100.0, 200.0], [1.0, None], ["-"])[1] == ["  ± error", "1 %", "", ""]


def test_overload_says_what_arrives_and_what_can_be_served() -> None:
    text = text_of(rk.estimate("llama-3-8b", rate=40.0))
    assert re.search(r"OVERLOAD: 40.0/s arrive, 20\.\d/s are served", text)
    assert "note: overload: 40 requests/s arrive" in text


def test_csv_and_markdown_have_the_same_numbers() -> None:
    estimate = rk.estimate("llama-3-8b", rate=8.0, requests=400)
    (row,) = rows_of(estimate)
    assert estimate.load is not None
    assert row["ttft_p95_ms"] == estimate.load.percentiles["ttft_ms"]["p95"]
    assert row["tpot_prompts_ms"] == (estimate.load.tpot_parts_ms or {})["prompts"]
    assert len(csv_text([row]).splitlines()) == 2
    assert "| P95 |" in markdown_text(document_of(estimate))
    (simulated,) = rows_of(rk.simulate("llama-3-8b", rate=8.0, requests=400))
    for name in ("ttft_p95_ms", "ttft_behind_ms", "tpot_prompts_ms"):
        assert simulated[name] == row[name]
