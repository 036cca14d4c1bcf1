"""The measurements that would pay: what an error has left after a run, and what that saves."""

from __future__ import annotations

import math
import shlex
from dataclasses import replace
from typing import Any

import pytest

import rooflinekit as rk
from rooflinekit.decision.planning.plan import read_question
from rooflinekit.decision.planning.rank import MOST, NOISE, measurements, ranked
from rooflinekit.decision.planning.search import PlanQuestion, search
from rooflinekit.evidence.engine_fit.posterior import STEPS, WAITS

ASKED: dict[str, Any] = {
    "rate": 400, "isl": 1000, "osl": 200, "tp": [1], "token_budgets": [2048], "max_num_seqs": [256], "price": 3.0,
    "disaggregated": False,
}  # fmt: skip
SLO = "p95 tpot<20ms"


@pytest.fixture(scope="module")
def question() -> PlanQuestion:
    return read_question("llama-3-8b", "h100-sxm", SLO, ASKED)


def test_a_run_is_believed_as_calibrate_believes_it() -> None:
    assert {"tpot": STEPS.size, "ttft": WAITS.size} == NOISE


def test_what_a_measurement_is_worth(question: PlanQuestion) -> None:
    """The fleet after it is that of the place of the interval that has shrunk; its difference is what it saves."""
    order = ranked(question, search(question))
    (named,) = measurements(question, order)
    (part,) = order[0].option.parts
    felt = part.bearer.feel(part.seen(question.demand), part.load(question.demand), known=True)
    error = math.log(math.prod(felt.factors("tpot", question.deviations))) / question.deviations
    left = 1.0 / math.sqrt(1.0 / error**2 + 1.0 / STEPS.size**2)
    after = order[0].option.sized(question.demand, question.slo, question.reserve, question.deviations * left / error)
    assert order[0].expected.gpus <= named.gpus_after == after.gpus < order[0].option.gpus
    assert named.usd_per_month == pytest.approx((order[0].option.gpus - after.gpus) * 3.0 * 730.0)
    assert len(named.users) <= MOST
    assert named.users[0] > named.users[-1] >= 1
    start, *runs, fit, again = map(shlex.split, named.commands)
    assert [start[:2], fit[:2], again[:2]] == [["rooflinekit", each] for each in ("launch", "calibrate", "plan")]
    assert [run[run.index("--max-concurrency") + 1] for run in runs] == [str(users) for users in named.users]
    assert all(run[-1] in fit for run in runs)


def test_a_run_tells_of_all_pools_that_are_deployed_the_same() -> None:
    """Both pools are TP4 of one accelerator: one server, the loads of both, and what both save counts once."""
    (named,) = rk.plan("llama-3.3-70b", "h200-sxm", "p95 ttft<500ms, p95 tpot<25ms", tp=4, rate=30, isl=2000,
                       osl=300).measure  # fmt: skip
    assert named.users[-1] == 1  # of the prefill pool
    assert named.users[0] > 8  # of the decode pool
    names = {name for words in named.commands for name in words.split() if name.endswith(".json")}
    assert len(names) == len(named.users)


def test_at_expected_times_nothing_is_in_doubt(question: PlanQuestion) -> None:
    half = replace(question, confidence=0.5)
    assert not measurements(half, ranked(half, search(half)))


def test_the_answer_names_it() -> None:
    answer = rk.plan("llama-3-8b", "h100-sxm", SLO, **ASKED)
    assert any(str(answer.measure[0]) in each for each in answer.summary)
