"""Random questions: a looser one never costs more, and the fleet that is bought is the least that holds as played."""

from __future__ import annotations

import random
from typing import Any

import pytest

import rooflinekit as rk
from rooflinekit.model.types.errors import InfeasibleError

GPUS = ("h100-sxm", "l40s", "b200-sxm", "h200-sxm")
KINDS = ("ttft", "tpot", "confidence", "rate", "price", "gpus", "seed")
FEW, SOME, ALL = 3, 20, 200
_ERROR = 0.02  # of a fleet over seeds, or one replica


def drawn(number: int) -> tuple[dict[str, Any], dict[str, Any], str]:
    """A question, the same with one part looser, and which part that is."""
    draw, kind = random.Random(number), KINDS[number % len(KINDS)]
    gpus = draw.sample(GPUS, 1 if number < FEW and kind != "gpus" else 2)
    asked: dict[str, Any] = {
        "gpus": gpus, "ttft": draw.uniform(0.3, 3.0), "tpot": draw.uniform(15.0, 80.0), "seed": draw.randrange(5),
        "confidence": draw.choice((0.5, 0.7, 0.9)), "rate": draw.uniform(5.0, 200.0), "isl": draw.choice((500, 2000)),
        "osl": draw.choice((100, 300)), "prices": {gpu: draw.uniform(1.0, 5.0) for gpu in GPUS},
        "pools": number >= FEW and draw.random() < 0.3, "tp": [1] if number < FEW else [1, 2],
    }  # fmt: skip
    looser = {
        "ttft": {"ttft": asked["ttft"] * draw.uniform(1.05, 2.0)},
        "tpot": {"tpot": asked["tpot"] * draw.uniform(1.05, 2.0)},
        "confidence": {"confidence": draw.uniform(0.5, asked["confidence"])},
        "rate": {"rate": asked["rate"] * draw.uniform(0.5, 0.95)},
        "price": {"prices": asked["prices"] | {gpus[0]: asked["prices"][gpus[0]] * draw.uniform(0.5, 0.95)}},
        "gpus": {"gpus": [*gpus, next(gpu for gpu in GPUS if gpu not in gpus)]},
        "seed": {"seed": asked["seed"] + 1},
    }[kind]  # fmt: skip
    return asked, asked | looser, kind


def objectives(asked: dict[str, Any]) -> str:
    """Of a question."""
    return f"p95 ttft<{asked['ttft']}s, p95 tpot<{asked['tpot']}ms"


def cost(asked: dict[str, Any]) -> tuple[float, int]:
    """USD an hour, and what one more replica would take; infinite where no fleet holds."""
    told = {key: asked[key] for key in ("confidence", "rate", "isl", "osl", "seed", "tp")}
    prices = {gpu: asked["prices"][gpu] for gpu in asked["gpus"]}
    try:
        answer = rk.plan("llama-3-8b", asked["gpus"], objectives(asked), aggregated_only=not asked["pools"],
                         prices=prices, **told)  # fmt: skip
    except InfeasibleError:
        return float("inf"), 0
    sure = asked["confidence"] * (1.0 - 1e-9)
    for each in answer.candidates:
        assert not each.known or min(each.probability.values(), default=1.0) >= sure, (each.name, asked)
    best = answer.best
    assert best.cost.usd_per_hour is not None
    return best.cost.usd_per_hour, max(fleet.gpus_per_replica * prices[best.gpu] for fleet in best.fleets)


def assert_no_reversal(number: int) -> None:
    """What is looser costs no more; another seed as much, but for its error."""
    asked, looser, kind = drawn(number)
    (before, replica), (after, _) = cost(asked), cost(looser)
    if kind == "seed":
        most = max(_ERROR * before, replica) * (1.0 + 1e-9)
        assert abs(after - before) <= most or before == after, (number, before, after)
    else:
        assert after <= before * (1.0 + 1e-9), (number, kind, before, after)


@pytest.mark.parametrize("number", range(FEW))
def test_a_looser_question_costs_no_more(number: int) -> None:
    assert_no_reversal(number)


@pytest.mark.long
@pytest.mark.parametrize("number", range(FEW, ALL))
def test_no_question_of_200_reverses(number: int) -> None:
    assert_no_reversal(number)


def simulated(asked: dict[str, Any], scenario: dict[str, Any], replicas: int) -> bool:
    """Whether both objectives hold where `simulate` plays so many replicas behind the router of a plan."""
    deployment = {key: each for key, each in scenario.items() if key not in ("model", "gpu")}
    told = {key: asked[key] for key in ("rate", "isl", "osl", "seed")}
    seen = rk.simulate(scenario["model"], scenario["gpu"], replicas=replicas, router="round-robin", calibration="none",
                       requests=2000 * replicas, warmup=400 * replicas, **told, **deployment)  # fmt: skip
    within = seen.ttft_ms.p95 <= 1e3 * asked["ttft"] and seen.tpot_ms.p95 <= asked["tpot"]
    return within and not seen.diverges


@pytest.mark.parametrize(
    "number", [3, *(pytest.param(each, marks=pytest.mark.long) for each in range(SOME) if each != 3)]
)
def test_the_fleet_holds_in_simulate_and_one_replica_less_does_not(number: int) -> None:
    """At the datasheet's times, so that both play the same steps; beyond 97 % of a full engine no plan goes."""
    asked, _, _ = drawn(number)
    told = {key: asked[key] for key in ("rate", "isl", "osl", "seed", "tp")}
    fleet = rk.plan("llama-3-8b", asked["gpus"][0], objectives(asked), aggregated_only=True, calibration="none",
                    **told).best.fleets[0]  # fmt: skip
    assert simulated(asked, fleet.scenario, fleet.replicas)
    fewer = fleet.replicas - 1
    if fewer and fleet.knee is not None and asked["rate"] / fewer < 0.97 * fleet.knee:
        assert not simulated(asked, fleet.scenario, fewer)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "slo", "asked"),
    [
        ("mixtral-8x7b", "p95 tpot<25ms", {"rate": 2000, "isl": 50, "osl": 20, "ep": [1], "dp": [1]}),
        ("llama-3.1-8b", "p95 tpot<50ms", {"rate": 200, "isl": "lognormal:mean=3000,cv=1", "osl": 16}),
    ],
)
def test_no_split_asked_for_alone_is_cheaper_than_the_fleet_of_all(model: str, slo: str, asked: dict[str, Any]) -> None:
    """Splits that are left out unsized would have lost."""
    splits = [2, 4, 8] if model.startswith("mixtral") else [1, 2, 4]
    all_splits, *alone = (
        rk.plan(model, "h100-sxm", slo, disaggregated=False, tp=tp, **asked).best.gpus
        for tp in (splits, *([each] for each in splits))
    )
    assert all_splits <= min(alone)
