"""What users write: objectives, traffic, spaces."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflinekit.decision.economics.price import HourlyPrice
from rooflinekit.decision.planning.cost import Tariff
from rooflinekit.decision.planning.demand import beside, read_demand
from rooflinekit.decision.planning.objective import METRICS, Felt, Objective, parse_objectives
from rooflinekit.decision.planning.over_time import TARGETS, Capacity
from rooflinekit.decision.planning.search import Space, splits
from rooflinekit.estimation.options import read
from rooflinekit.estimation.scenario import Traffic
from rooflinekit.model.types.errors import InputError, WorkloadError
from rooflinekit.model.types.hardware import System
from rooflinekit.specs import load_accelerator, load_model


@pytest.mark.parametrize(
    ("text", "metric", "share", "limit"),
    [
        ("p95 ttft<1s", "ttft", 0.95, 1.0),
        ("P99.9 TPOT <= 40 ms", "tpot", 0.999, 0.04),
        ("tpot<40ms", "tpot", None, 0.04),
        ("mean e2e ≤ 2min", "e2el", None, 120.0),
        ("p50 e2el<1500us", "e2el", 0.5, 0.0015),
    ],
)
def test_objectives_as_they_are_written(text: str, metric: str, share: float | None, limit: float) -> None:
    (objective,) = parse_objectives(text)
    assert (objective.metric, objective.share) == (metric, share)
    assert objective.limit == pytest.approx(limit, rel=1e-12)


def test_an_objective_of_a_class_looks_at_that_class() -> None:
    """All wait 0.5 s and the chat alone 0.1 s: a quantile q of uniform waits up to twice the mean is 2·q·mean."""
    chat = Felt(lambda _, share: 0.1 if share is None else 0.2 * share)
    felt = Felt(lambda _, share: 0.5 if share is None else share, classes={"chat": chat})
    for of, mean, share in (("", 0.5, 0.3), ("chat", 0.1, 0.9999)):
        each = Objective("ttft", None, 0.3, of)
        assert each.value(felt) == mean
        assert each.met(felt) == (mean <= 0.3)
        assert Objective("ttft", 0.9, 0.3, of).value(felt) == pytest.approx(2.0 * 0.9 * mean)
        assert Objective("ttft", 0.9, 0.3, of).attained(felt) == pytest.approx(share, abs=1e-3)


@given(st.sampled_from(METRICS), st.integers(50, 99), st.floats(0.001, 900.0))
def test_an_objective_reads_back_from_what_it_prints(metric: str, percent: int, limit_s: float) -> None:
    (objective,) = parse_objectives(f"p{percent} {metric}<{limit_s:.6f}s")
    (again,) = parse_objectives(str(objective).replace("<=", "<"))
    assert (again.metric, again.share) == (objective.metric, objective.share)
    assert again.limit == pytest.approx(objective.limit, rel=1e-5)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no objective"),
        ("ttft", "not an objective"),
        ("ttft>1s", "not an objective"),
        ("p95 ttft<1", "no unit"),
        ("p95 ttft<1h", "unknown unit 'h'"),
        ("p95 itl<1s", "unknown latency 'itl'"),
        ("p95 tpt<1s", "nearest: tpot"),
        ("p10 ttft<1s", "p50 to p99.9"),
        ("p100 ttft<1s", "p50 to p99.9"),
        ("ttft<0s", "above 0"),
        ("ttft<1s, mean ttft<2s", "twice"),
    ],
)
def test_bad_objectives_are_refused_by_name(text: str, says: str) -> None:
    with pytest.raises(WorkloadError, match=says):
        parse_objectives(text)


def test_the_peak_is_what_the_fleet_is_made_for() -> None:
    assert read_demand({"rate": 50, "peak": 1.5}).peak_load == 75.0
    assert read_demand({"users": 5, "peak": 1.5}).peak_load == 8.0  # whole users


@pytest.mark.parametrize(
    ("osl", "longest"), [("300", 300 + 52), ("lognormal:mean=300,cv=0.5,max=900", 900), ("2", 2)]
)  # evenly by a tenth: sqrt(3) of it to either side
def test_equal_answers_of_users_vary_by_a_tenth_and_others_are_as_asked(osl: str, longest: int) -> None:
    assert read_demand({"users": 5, "isl": 1000, "osl": osl}).longest_played == 1000 + longest


@given(st.floats(0.0, 20.0), st.integers(1, 1000))
def test_requests_drawn_at_random_come_ever_more_like_poisson(cv: float, replicas: int) -> None:
    seen = read_demand({"rate": 1.0, "cv": cv, "router": "random"}).seen(float(replicas))
    assert abs(seen.arrival_cv**2 - 1.0) == pytest.approx(abs(cv**2 - 1.0) / beside(replicas), abs=1e-9)


@given(st.floats(0.0, 20.0), st.integers(1, 1000))
def test_requests_in_turn_come_the_more_evenly_the_more_replicas_there_are(cv: float, replicas: int) -> None:
    """A replica waits for as many gaps as there are replicas; it is taken as one of no more than there are."""
    seen = read_demand({"rate": 1.0, "cv": cv}).seen(float(replicas)).arrival_cv
    assert cv / math.sqrt(replicas) <= seen * (1.0 + 1e-12)
    assert seen <= cv


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({}, "how much traffic"),
        ({"rate": 1, "users": 1}, "exclude each other"),
        ({"users": 2.5}, "users"),
        ({"rate": 1, "isl": "uniform:9-1"}, "backwards"),
        ({"rate": 1, "isl": None}, "isl must be tokens or a distribution of lengths, not None"),
    ],
)
def test_traffic_that_makes_no_sense(asked: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        read_demand(asked)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"rate": 0}, "rate must be above 0"),
        ({"rate": "5"}, "rate must be a number above 0"),
        ({"rate": math.nan}, "rate must be a number above 0"),
        ({"rate": 1e9}, "at most 10,000,000"),
        ({"rate": 1, "peak": 0.5}, "peak must be from 1 to 1,000"),
        ({"rate": 1, "cv": -1}, "burstiness must be from 0"),
    ],
)
def test_traffic_beyond_its_bounds(asked: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        read(Traffic, asked)


def test_a_trace_brings_its_rate_lengths_and_bursts(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("time_s,isl,osl\n0,100,10\n1,200,20\n4,300,30\n")
    demand = read_demand({"trace": path})
    assert (demand.rate, demand.isl.mean, demand.osl.mean, demand.arrival_cv) == (0.5, 200.0, 20.0, 0.5)
    assert read_demand({"trace": path, "rate": 7}).rate == 7.0
    with pytest.raises(InputError, match="isl and trace"):
        read_demand({"trace": path, "isl": 100})


def _splits(model: str, **space: Any) -> list[tuple[int, ...]]:
    system = System.of(load_accelerator("h100-sxm").value)
    found = splits(load_model(model).value, system, Space(("h100-sxm",), **space))
    return [(each["tp"], each["pp"], each["dp"], each["ep"]) for each in found]


def test_a_trace_of_lengths_alone_comes_at_the_rate_and_peak_that_are_told(tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text("isl,osl\n" + "100,10\n300,30\n" * 500)
    demand = read_demand({"trace": path, "rate": 5.0, "cv": 2.0, "peak": 1.5})
    assert demand.peak_load == pytest.approx(1.5 * 5.0, rel=0.2)
    assert demand.isl.mean == 200.0


def test_an_hour_is_sized_for_its_own_rate_and_not_for_the_peak() -> None:
    question = SimpleNamespace(demand=read_demand({"rate": 50, "peak": 1.5}))
    assert Capacity(question, None).demand(30.0).peak_load == 30.0  # type: ignore[arg-type]


def test_the_shares_of_what_a_replica_bears_that_are_tried_rise_from_half_to_all() -> None:
    assert TARGETS[0] == 0.5 and TARGETS[-1] == 1.0
    assert list(TARGETS) == sorted(set(TARGETS))


def test_the_cheapest_is_first_unless_the_fewest_accelerators_are_asked_for() -> None:
    """Eight at 2 $ an hour against four at 5 $."""
    prices = {name: HourlyPrice(usd, "given") for name, usd in (("old", 2.0), ("new", 5.0))}
    old, new = (
        SimpleNamespace(gpus=n, parts=[SimpleNamespace(gpus=n, replica=SimpleNamespace(gpu=gpu, kept=None))])
        for gpu, n in (("old", 8), ("new", 4))
    )
    usual, fewest = Tariff(prices), Tariff(prices, by_gpus=True)
    assert [usual.rank(each) for each in (old, new)] == [(16.0, 8), (20.0, 4)]  # type: ignore[arg-type]
    assert [fewest.rank(each) for each in (old, new)] == [(8, 16.0), (4, 20.0)]  # type: ignore[arg-type]


def test_a_dense_model_is_split_by_tensors_alone() -> None:
    assert _splits("llama-3-8b") == [(1, 1, 1, 1), (2, 1, 1, 1), (4, 1, 1, 1), (8, 1, 1, 1)]
    assert _splits("llama-3-8b", tp=(2,), pp=(1, 2)) == [(2, 1, 1, 1), (2, 2, 1, 1)]


def test_experts_are_also_split_whole_and_attention_replicated() -> None:
    found = _splits("mixtral-8x7b", max_gpus=8)
    assert {(8, 1, 1, 1), (8, 1, 1, 8), (4, 1, 2, 8), (1, 1, 8, 8)} <= set(found)
    assert all(tp * pp * dp <= 8 for tp, pp, dp, _ in found)
    assert len(found) == len(set(found))


def test_cached_prompts_are_said_in_words_and_in_json() -> None:
    demand = read_demand({"rate": 5.0, "isl": 1024, "cached": 512}, parse_objectives("p95 ttft<1s"))
    assert str(demand) == "5 requests/s, 1,024 tokens in (512 cached), 256 out"
    assert demand.to_dict()["cached"] == 512.0
    assert "cached" not in str(read_demand({"rate": 5.0}, parse_objectives("p95 ttft<1s")))
