"""Pictures of a load: lanes end where requests do, and the parts of a token add up to it."""

from __future__ import annotations

import numpy as np
import pytest

import rooflinekit as rk
from rooflinekit.estimation.estimator import play, question_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def answer() -> rk.Estimate:
    return rk.estimate("llama-3-8b", rate=8.0, requests=120, ttft=300.0)


def test_a_lane_is_a_request(answer: rk.Estimate) -> None:
    question = question_of(answer)
    assert question is not None
    done = play(question).played
    picture = rk.plot(answer, "lanes")
    lanes = picture.figure.axes[0]
    bars = {name: [each for each in lanes.patches if each.get_gid() == name] for name in ("waits", "prompt", "answer")}
    assert {len(each) for each in bars.values()} == {40}
    lengths = np.sum([[each.get_width() for each in some] for some in bars.values()], axis=0)
    middle = np.flatnonzero(done.counted)[int(done.counted.sum()) // 2 :][:40]
    assert lengths == pytest.approx(done.end[middle] - done.sent[middle])
    assert "P50" in picture.description


def test_the_parts_of_a_token_add_up_to_it(answer: rk.Estimate) -> None:
    picture = rk.plot(answer, "over-load")
    first, token, parts = picture.figure.axes
    top = max(float(area.get_paths()[0].vertices[:, 1].max()) for area in parts.collections)
    half = next(line for line in token.lines if line.get_gid() == "tpot P50")
    assert top == pytest.approx(float(half.get_ydata()[-1]), rel=0.2)  # a mean, and the middle of the same requests
    goal = next(line for line in first.lines if line.get_gid() == "objective ttft")
    assert float(goal.get_ydata()[0]) == 300.0


def test_a_static_batch_has_neither() -> None:
    with pytest.raises(rk.InputError, match="nothing to draw"):
        rk.plot(rk.estimate("llama-3-8b"), "lanes")
