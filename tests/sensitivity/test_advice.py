"""Advice is what `estimate` says of the changed deployment: it improves its metric, and says its price."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

import rooflinekit as rk
from rooflinekit.decision.sensitivity.moves import (
    ADVISED,
    LEAST,
    Advice,
    MoveResult,
    Operating,
    advice,
    best,
    said_best,
)
from rooflinekit.report.document import plain_text
from rooflinekit.report.estimate import document
from rooflinekit.report.levers import document as levers_document

MODELS = ("llama-3-8b", "llama-3.1-8b", "qwen3-8b", "mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3", "llama-3-70b")
GPUS = ("h100-sxm", "h200-sxm", "a100-sxm-80gb", "b200-sxm", "l40s", "mi300x", "apple-m2-ultra", "tpu-v6e")


def scenarios(count: int, seed: int) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Random deployments, of which some are refused or do not fit; one in five is under load."""
    draw = random.Random(seed)
    for _ in range(count):
        asked: dict[str, Any] = {
            "tp": draw.choice((1, 1, 2, 4, 8)), "isl": draw.choice((64, 512, 1024, 4096, 16_000)),
            "osl": draw.choice((16, 128, 512)), "kv": draw.choice((None, None, "fp8", "bf16")),
            "weights": draw.choice((None, None, "fp8", "int4")), "engine": draw.choice(("vllm", "sglang", "trtllm")),
        }  # fmt: skip
        match draw.randrange(10):
            case 0:
                asked |= {"rate": draw.choice((0.5, 2.0, 8.0)), "requests": 60}
            case 1:
                asked |= {"concurrency": draw.choice((4, 16, 64)), "requests": 60}
            case _:
                asked["batch"] = draw.choice((1, 4, 16, 64, 256))
        yield draw.choice(MODELS), draw.choice(GPUS), asked


def metrics(answer: rk.Estimate) -> dict[str, float]:
    return {"tpot": answer.tpot_ms, "ttft": answer.ttft_ms, "cost": 1.0 / answer.output_tok_s_per_gpu}


def check(model: str, gpu: str, asked: dict[str, Any]) -> int:
    """How many advices were checked; 0 where the deployment itself is refused."""
    try:
        now = rk.estimate(model, gpu, **asked)
    except rk.RooflinekitError:
        return 0
    found = advice(now)
    for each in found:
        then = rk.estimate(model, gpu, **(asked | each.changes))
        ratio = {name: value / metrics(now)[name] for name, value in metrics(then).items()}
        assert ratio[each.metric] == pytest.approx(1.0 + each.change, rel=1e-9), (model, gpu, asked, each)
        assert ratio[each.metric] <= 1.0 - LEAST
        assert ratio[each.metric] * max(1.0, ratio["tpot"], ratio["cost"]) < 1.0  # it gains more than it costs
        assert then.memory.fits and (then.load is None or then.load.stable)
        worse = {name for name in ADVISED if ratio[name] >= 1.0 + LEAST}
        assert worse == {name for name in ADVISED if any(said.lower().startswith(name) for said in each.price)}
        told = any(f"{then.inputs['gpus']} {noun}" in " ".join(each.price) for noun in ("GPU", "accelerator"))
        assert told == (then.inputs["gpus"] != now.inputs["gpus"])
    return len(found)


def test_no_advice_worsens_its_metric() -> None:
    assert sum(check(*each) for each in scenarios(12, seed=1)) > 10


@pytest.mark.slow
@pytest.mark.parametrize("count", [40, pytest.param(500, marks=pytest.mark.long)])
def test_no_advice_worsens_its_metric_of_many(count: int) -> None:
    assert sum(check(*each) for each in scenarios(count, seed=2)) > count


def made(name: str, evidence: str = "measured", stable: bool = True, **ratio: float) -> MoveResult:
    """A move with these ratios, on one accelerator."""
    answer = Operating(10.0, 5.0, 200.0, 200.0, 1, 1.0, 131_072.0, 0.005, None, None, stable)
    return MoveResult(name, f"--{name}", "none", True, "", answer, {"throughput": 1.0, **ratio}, (), evidence, {})


class TestBest:
    def test_a_gain_has_to_be_worth_its_price(self) -> None:
        """Half the time of a token for three times the cost is no advice; for 1.5 times it is: 0.5 x 1.5 = 0.75."""
        dear = made("dear", tpot=0.5, cost=3.0, ttft=1.0)
        fair = made("fair", tpot=0.5, cost=1.5, ttft=1.0)
        found = best([dear, fair], "measured", 1, loaded=False)
        assert [(each.metric, each.move) for each in found] == [("tpot", "fair")]
        assert found[0].price == ("cost +50 %",)

    def test_first_tokens_count_under_load_alone(self) -> None:
        later = made("later", tpot=0.9, cost=1.0, ttft=2.0)
        assert [each.metric for each in best([later], "measured", 1, loaded=False)] == ["tpot"]
        assert not best([later], "measured", 1, loaded=True)

    def test_what_rests_on_less_or_is_overloaded_is_not_advised(self) -> None:
        guessed = made("guessed", evidence="stand-in", tpot=0.5, cost=0.5, ttft=0.5)
        over = made("over", stable=False, tpot=0.5, cost=0.5, ttft=0.5)
        assert not best([guessed, over], "measured", 1, loaded=False)
        assert best([guessed], "stand-in", 1, loaded=False)

    def test_nothing_to_advise_is_said(self) -> None:
        assert said_best(()) == "No move tried here gains more than it costs."

    def test_an_overload_that_no_move_ends_is_called_so(self) -> None:
        asked: dict[str, Any] = {"gpu": "l40s", "rate": 40.0, "requests": 100}
        here, there = rk.estimate("llama-3-8b", **asked), rk.levers("llama-3-8b", **asked, gpus=[])
        assert not advice(here)
        assert not there.advice
        for said in (" ".join(plain_text(document(here)).split()), there.sentence):
            assert "sustains the load" in said
            assert "gains more than it costs" not in said


class TestOneSource:
    def test_levers_and_the_first_screen_name_the_same_moves(self) -> None:
        now = rk.estimate("llama-3-8b", batch=16)
        here, there = advice(now), rk.levers("llama-3-8b", batch=16, gpus=[])
        assert [(each.metric, each.option) for each in here] == [(each.metric, each.option) for each in there.advice]
        assert [each.change for each in here] == pytest.approx([each.change for each in there.advice])
        shown = plain_text(document(now))
        assert all(each.option in shown for each in here[:1])
        assert there.sentence.startswith(f"Best for TPOT: {here[0].move}, ")
        assert plain_text(levers_document(there)).splitlines()[2].startswith(f"Best for TPOT: {here[0].move}, ")

    def test_an_m2_ultra_is_not_told_that_bandwidth_does_not_help(self) -> None:
        """It reads 15 GB of weights a token: 4-bit weights halve that."""
        first: Advice = advice(rk.estimate("llama-3-8b", "apple-m2-ultra"))[0]
        assert (first.metric, first.option) == ("tpot", "--weights int4")
        assert first.change < -0.4

    def test_a_narrow_cache_may_be_widened(self) -> None:
        found = rk.levers("llama-3-8b", kv="fp8", gpus=[])
        wide = next(each for each in found.moves if each.move == "bf16 cache")
        plain = rk.estimate("llama-3-8b", kv="bf16")
        assert wide.answer is not None
        assert wide.answer.tpot_ms == pytest.approx(plain.tpot_ms)
