"""Inverse questions: exact against estimates on either side, and explained where there is no solution."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rooflinekit as rk
from rooflinekit.decision.planning.inverse import (
    Capacity,
    affordable,
    break_even_prices,
    largest,
    last_before_violation,
    required_bandwidth,
)
from rooflinekit.model.types.errors import DoesNotFitError, InfeasibleError, InputError, UnknownNameError


@given(st.sets(st.integers(1, 400), max_size=6), st.integers(1, 400))
def test_the_last_number_before_the_first_violation(bad: set[int], high: int) -> None:
    found, again = last_before_violation(lambda n: ~np.isin(n, list(bad)), 1, high)
    inside = sorted(number for number in bad if number <= high)
    expected = inside[0] - 1 if inside else high
    assert found == (expected or None)
    assert again is any(number not in bad for number in range((inside or [high + 1])[0], high + 1))


@given(st.integers(1, 10**9), st.integers(1, 10**9))
def test_a_threshold_is_found_exactly_in_any_range(threshold: int, high: int) -> None:
    found, again = last_before_violation(lambda n: n <= threshold, 1, high)
    assert (found, again) == (min(threshold, high), False)


@pytest.mark.parametrize("subject_to", ["tpot<30ms", "ttft<2s", "e2el<12s", "tpot<40ms, ttft<900ms"])
def test_the_largest_batch_is_the_last_that_estimate_allows(subject_to: str) -> None:
    where: dict[str, Any] = {"tp": 8, "isl": 2000, "osl": 300}
    most = largest("batch", "llama-3.3-70b", subject_to=subject_to, **where)
    here, beyond = (
        rk.estimate("llama-3.3-70b", batch=int(most.value) + more, allow_oom=True, **where) for more in (0, 1)
    )
    limits = {part.split("<")[0].strip(): part.split("<")[1] for part in subject_to.split(",")}
    times = {"ttft": "ttft_ms", "tpot": "tpot_ms", "e2el": "e2e_ms"}
    seconds = {name: float(text.rstrip("ms")) * (1.0 if text.endswith("ms") else 1e3) for name, text in limits.items()}
    assert all(getattr(here, times[name]) <= limit for name, limit in seconds.items())
    assert any(getattr(beyond, times[name]) > limit for name, limit in seconds.items())
    assert most.at["tpot_ms"] == pytest.approx(here.tpot_ms, rel=1e-9)


def test_without_objectives_memory_ends_the_batch() -> None:
    most = largest("batch", "llama-3-8b", isl=4000, osl=96)
    assert most.binds == ("memory",)
    assert most.value == rk.estimate("llama-3-8b", isl=4000, osl=96).memory.max_batch


@pytest.mark.parametrize(("batch", "subject_to"), [(1, "tpot<7.5ms"), (16, ""), (4, "ttft<3s")])
def test_the_largest_context_is_the_last_that_estimate_allows(batch: int, subject_to: str) -> None:
    most = largest("context", "llama-3.1-8b", subject_to=subject_to, batch=batch, osl=100)
    answers = [
        rk.estimate("llama-3.1-8b", batch=batch, isl=int(most.value) - 100 + more, osl=100, allow_oom=True)
        for more in (0, 1)
    ]
    good = [
        a.memory.fits and a.inputs["isl"] + 100 <= 131_072
        and (a.tpot_ms <= 7.5 or "tpot" not in subject_to) and ((a.ttft_ms or 0.0) <= 3000 or "ttft" not in subject_to)
        for a in answers
    ]  # fmt: skip
    assert good == [True, False]


def test_the_largest_rate_is_one_that_the_simulator_bears() -> None:
    """Up to a twentieth, between two rungs and two seeds; and no larger one is."""
    where: dict[str, Any] = {"tp": 4, "isl": 1000, "osl": 200}
    found = largest("rate", "llama-3.3-70b", subject_to="p95 ttft<1s, p95 tpot<35ms", **where)
    seen = [rk.simulate("llama-3.3-70b", **where, rate=share * found.value, requests=4000, warmup=400, seed=7)
            for share in (0.94, 1.06)]  # fmt: skip
    assert (seen[0].ttft_ms.p95 or 0.0) < 1000.0
    assert (seen[0].tpot_ms.p95 or 0.0) < 1.02 * 35.0  # whose standard error is 2 %
    assert max((seen[1].ttft_ms.p95 or 0.0) / 1000.0, (seen[1].tpot_ms.p95 or 0.0) / 35.0) > 1.0
    assert found.at["p95_ttft_ms"] <= 1000.0
    sure = largest("rate", "llama-3.3-70b", subject_to="p95 ttft<1s, p95 tpot<35ms", confidence=0.9, **where)
    assert sure.value < found.value
    assert "with a probability of at least 90 %" in sure.answer


def test_looser_objectives_never_give_less() -> None:
    found = [largest("batch", "llama-3-8b", subject_to=f"tpot<{ms}ms", isl=1000).value for ms in (8, 9, 11, 15, 30)]
    assert found == sorted(found)


def test_the_bandwidth_that_is_required_by_hand() -> None:
    """At the bound a decode step reads 15.01 GB of weights and 32 x 2048 x 131072 B of cache: 23.6 GB in 10 ms."""
    found = required_bandwidth(
        "llama-3-8b", subject_to="tpot<10ms", isl=2047, osl=2, batch=32, calibration="none", engine="ideal"
    )
    read = 7_504_924_672 * 2 + 32 * 2048 * 131_072  # all weights but the embedding's rows
    assert found.value == pytest.approx(read / 0.010, rel=2e-3)
    assert found.at["tpot_ms"] == pytest.approx(10.0, rel=1e-6)


def test_no_bandwidth_helps_against_arithmetic() -> None:
    with pytest.raises(InfeasibleError, match="a thousand times the bandwidth TTFT stays at"):
        required_bandwidth("llama-3-8b", subject_to="ttft<1ms", isl=4000)


@pytest.mark.slow
def test_at_its_break_even_price_an_accelerator_costs_as_much() -> None:
    told: dict[str, Any] = {"rate": 20, "tp": [1], "disaggregated": False}
    gpus, slo = ["h100-sxm", "l40s"], "p95 tpot<50ms"
    found = break_even_prices("llama-3-8b", gpus, slo, prices={"h100-sxm": 3.0, "l40s": 2.0}, **told)
    for row, other in zip(found.rows, reversed(found.rows), strict=True):
        prices = {row["gpu"]: row["break_even_usd"], other["gpu"]: other["usd_per_gpu_hour"]}
        plans = [rk.plan("llama-3-8b", [gpu], slo, prices={gpu: prices[gpu]}, **told) for gpu in gpus]
        costs = [plan.best.cost.million_tokens_usd for plan in plans]
        assert costs[0] == pytest.approx(costs[1])


@pytest.mark.parametrize(
    ("what", "asked", "error", "says"),
    [
        ("cake", {}, UnknownNameError, "nearest|cake"),
        ("batch", {"subject_to": "tpot<1ms"}, InfeasibleError, "datasheet bound .* so no engine can do it"),
        ("batch", {"subject_to": "tpot<6ms"}, InfeasibleError, "not out of reach of the hardware"),
        ("batch", {"subject_to": "p95 tpot<9ms"}, InputError, "a static batch has no percentiles"),
        ("batch", {"rte": 4}, InputError, "unknown option 'rte'"),
        ("rate", {"batch": 4}, InputError, "unknown option 'batch'"),
        ("rate", {"subject_to": "tpot<1ms"}, InfeasibleError, "even without waiting mean TPOT"),
        ("context", {"batch": 10_000}, DoesNotFitError, "no room for 10000 sequences"),
        ("batch", {"isl": 0}, InputError, "isl"),
        ("users", {"isl": 100_000}, DoesNotFitError, "no request"),
    ],
)
def test_no_solution_is_explained(what: str, asked: dict[str, Any], error: type[Exception], says: str) -> None:
    model = "llama-3-8b"
    with pytest.raises(error, match=says):
        largest(what, model, **({"gpu": "a10"} | asked if "isl" in asked and what == "users" else asked))


def test_a_model_that_does_not_fit_has_no_largest_batch() -> None:
    with pytest.raises(DoesNotFitError, match=r"no room for 1 sequence of .* \(weights take 141"):
        largest("batch", "llama-3.3-70b", isl=1000, osl=100)
    with pytest.raises(InputError, match="at least two gpus"):
        break_even_prices("llama-3-8b", "h100-sxm", rate=1)


def test_options_that_carry_less_are_asked_for_one_rate(monkeypatch):
    """A budget sizes few fleets: the digits that are printed of the best option, and one of each other."""
    sized = []
    fleet = Capacity.fleet
    monkeypatch.setattr(Capacity, "fleet", lambda self, rate: sized.append(rate) or fleet(self, rate))
    solved = affordable("llama-3-8b", "h100-sxm", "p95 tpot<50ms", 10 * 730 * 3.0, price=3.0, tp=[1, 2, 4])
    assert solved.scenario["gpus"] == 10
    assert len(sized) < 120
