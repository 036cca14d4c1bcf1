"""Plans over time: fleets by the hour, their costs against brute force, terms, growth, budgets, and a day replayed."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace
from itertools import product, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import rooflinekit as rk
from rooflinekit.cli.app import app
from rooflinekit.decision.economics.commitments import Spot, held_levels, pay, rent_or_buy
from rooflinekit.decision.economics.price import HourlyPrice, Purchase, quotes_of
from rooflinekit.decision.planning.demand import read_growth, read_profile
from rooflinekit.decision.planning.fleet import Part
from rooflinekit.decision.planning.inverse import affordable
from rooflinekit.decision.planning.objective import missed
from rooflinekit.decision.planning.over_time import Capacity
from rooflinekit.decision.planning.plan import PlanAnswer, read_question
from rooflinekit.decision.planning.replay import run_varying
from rooflinekit.decision.planning.search import _aggregated as aggregated
from rooflinekit.decision.planning.search import search
from rooflinekit.estimation.estimator import read_deployment, resolve
from rooflinekit.load.arrivals import Arrival, Gamma, Requests, generate
from rooflinekit.load.lengths import Fixed
from rooflinekit.load.scene import Scheduler
from rooflinekit.model.power import plug_power
from rooflinekit.model.types.errors import InfeasibleError, InputError
from rooflinekit.simulation.event_loop import ReplicaFleet, Simulation
from rooflinekit.simulation.ledger import Ledger, RequestObjective
from rooflinekit.simulation.requests import Source
from rooflinekit.simulation.simulate import SentLoad, fleet_of, serve
from rooflinekit.specs import load_accelerator

MODEL, GPU, SLO = "llama-3-8b", "h100-sxm", "p95 ttft<1s, p95 tpot<30ms"
ONE: dict[str, Any] = {
    "isl": 500, "osl": 50, "prices": 3.0, "tp": [1], "token_budgets": [8192], "max_num_seqs": [256],
    "aggregated_only": True, "router": "random",
}  # fmt: skip
"""At random a replica sees the same process in a fleet of any size, so that one curve is played for all hours."""
TURNS = {"router": "round-robin"}
DAY = [round(200.0 + 175.0 * math.sin((hour - 9) / 12 * math.pi), 1) for hour in range(24)]


def _plan(**more: Any) -> PlanAnswer:
    return rk.plan(MODEL, GPU, SLO, **(ONE | {"profile": DAY} | more))


def _capacity(**more: Any) -> Capacity:
    """Of the only deployment, for the day."""
    question = read_question(MODEL, GPU, SLO, ONE | {"profile": DAY} | more)
    (option,) = search(question).options
    return Capacity(question, option)


@pytest.fixture(scope="module")
def day() -> PlanAnswer:
    """A day of requests that reach replicas at random."""
    return _plan()


@pytest.fixture(scope="module")
def in_turn() -> PlanAnswer:
    """The same in turn."""
    return _plan(**TURNS)


@pytest.fixture(scope="module", params=["random", "round-robin"])
def capacity(request: pytest.FixtureRequest) -> Capacity:
    """The deployment of that day, asked for any rate."""
    return _capacity(router=request.param, cv=1.5, confidence=0.5)


class TestHours:
    @pytest.mark.parametrize(
        ("rate", "more"),
        [
            (3.0, TURNS), (130.0, TURNS | {"cv": 3.0, "redundancy": 2}), (300.0, {"cv": 0.5, "headroom": 0.2}),
            (390.0, TURNS | {"spare": "1host"}),
        ],
    )  # fmt: skip
    def test_each_hour_is_the_flat_plan_at_its_rate(self, rate: float, more: dict[str, Any]) -> None:
        alone = rk.plan(MODEL, GPU, SLO, **(ONE | {"rate": rate} | more))
        over = _plan(profile=[rate, 400.0], **more).over_time
        assert over is not None
        assert over.intervals[0].gpus == alone.best.gpus

    @given(rate=st.floats(0.0, 900.0), more=st.floats(0.0, 300.0))
    def test_more_requests_never_take_fewer(self, capacity: Capacity, rate: float, more: float) -> None:
        """The edge of a load is found to 2 %: 246 requests/s may take one replica more than 247."""
        fleets = [capacity.fleet(each).gpus for each in (rate, 1.02 * (rate + more))]
        assert 1 <= fleets[0] <= fleets[1]

    @pytest.mark.parametrize("rate", [30.0, 95.0, 210.0, 375.0])
    def test_no_hour_has_one_more_than_it_takes(self, capacity: Capacity, rate: float) -> None:
        """Counted up from one replica, by what each feels behind its router; the edge of a load is found to 4 %."""
        question, (part,) = capacity.question, capacity.option.parts

        def least(rate: float) -> int:
            demand = capacity.demand(rate)
            return next(
                count for count in range(1, 100)
                if not missed(lambda _: part.bearer.feel(demand.seen(count), rate / count), question.slo)  # noqa: B023
            )  # fmt: skip

        assert least(rate / 1.04) <= capacity.fleet(rate).replicas <= least(1.04 * rate)

    def test_in_turn_it_takes_fewer_than_at_random(self, day: PlanAnswer, in_turn: PlanAnswer) -> None:
        assert day.over_time is not None
        assert in_turn.over_time is not None
        for one, other in zip(day.over_time.intervals, in_turn.over_time.intervals, strict=True):
            assert other.gpus <= one.gpus
        assert in_turn.over_time.gpu_hours < day.over_time.gpu_hours

    def test_the_hours_cost_no_more_than_the_peak_and_add_up(self, day: PlanAnswer) -> None:
        over = day.over_time
        assert over is not None
        assert max(row.gpus for row in over.intervals) == day.best.gpus
        assert over.peak_usd == pytest.approx(day.best.gpus * 3.0 * 730)
        assert over.usd == pytest.approx(sum(row.gpus for row in over.intervals) / 24 * 730 * 3.0)
        assert over.usd < over.peak_usd
        assert day.traffic["peak_load"] == max(DAY)
        assert len(over.to_frame()) == 24
        assert "less" not in over.answer  # one price, so nothing is saved by terms

    @pytest.mark.slow
    @pytest.mark.parametrize(("growth", "more"), [(0.0, 0.01), (0.05, 0.2), (-0.1, 0.1)])
    def test_more_growth_never_costs_less(self, growth: float, more: float) -> None:
        less, greater = (_plan(growth=each, months=6).over_time for each in (growth, growth + more))
        assert less is not None
        assert greater is not None
        assert less.usd <= greater.usd
        assert sum(count for _, count, _ in greater.buy) == max(row.gpus for row in greater.months)
        assert [total for *_, total in greater.buy] == sorted({row.gpus for row in greater.months})

    def test_the_cheapest_by_the_hour_is_the_answer(self) -> None:
        """Replicas of one accelerator follow a small load more closely than pairs."""
        both = _plan(tp=[1, 2], profile=[2.0] * 23 + [120.0]).over_time
        for degree in (1, 2):
            own = _plan(tp=[degree], profile=[2.0] * 23 + [120.0]).over_time
            assert both is not None
            assert own is not None
            assert both.usd <= own.usd

    def test_pools_have_hours_of_their_own(self) -> None:
        more = ONE | {"aggregated_only": False, "isl": 2000, "osl": 50, "profile": [20.0, 200.0]}
        over = rk.plan(MODEL, GPU, "p95 ttft<1s, p95 tpot<10ms", **more).over_time
        assert over is not None
        assert "prefill" in over.deployment
        assert over.intervals[0].gpus < over.intervals[1].gpus

    def test_growth_of_one_rate_has_no_hours_to_save(self) -> None:
        over = _plan(profile=None, rate=200, growth=0.1).over_time
        assert over is not None
        assert over.gpu_hours == over.peak_gpu_hours
        assert "below" not in over.answer
        assert "must grow" in over.answer

    def test_fleets_of_two_kinds_are_left_out(self) -> None:
        more = ONE | {"prices": {GPU: 3.0, "l40s": 1.0}, "profile": DAY, "mixed": True}
        answer = rk.plan(MODEL, [GPU, "l40s"], "p95 tpot<60ms", **more)
        assert "mixed" not in {each.kind for each in answer.candidates}
        assert answer.over_time is not None

    def test_an_interrupt_of_the_search_keeps_the_accelerators_that_were_searched(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def stopped(question: Any, replica: Any, found: Any) -> Any:
            if replica.gpu == "h200-sxm":
                raise KeyboardInterrupt
            return aggregated(question, replica, found)

        monkeypatch.setattr("rooflinekit.decision.planning.search._aggregated", stopped)
        answer = rk.plan(MODEL, [GPU, "h200"], SLO, **(ONE | {"prices": None, "rate": 40}))
        assert answer.interrupted
        assert {each.gpu for each in answer.candidates} == {GPU}
        assert "interrupted: the search left out h200-sxm" in answer.warnings
        with pytest.raises(KeyboardInterrupt):
            rk.plan(MODEL, ["h200"], SLO, **(ONE | {"prices": None, "rate": 40}))

    def test_an_interrupt_keeps_the_plan(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def stopped(*_: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("rooflinekit.decision.planning.plan.over_time", stopped)
        answer = _plan()
        assert answer.interrupted
        assert answer.over_time is None
        assert answer.best.gpus

    def test_shares_of_terms_are_of_what_is_paid(self, tmp_path: Path) -> None:
        """Spot machines with spares are more than the fleet, and yet no more than all that is paid, be it cents."""
        path = tmp_path / "prices.csv"
        path.write_text("name,term,commitment,interruptions,low,high,source\nh100-sxm,on demand,,,3e-5,3e-5,me\n"
                        "h100-sxm,spot,,900,1e-5,1e-5,me\n")  # fmt: skip
        over = _plan(prices=str(path)).over_time
        assert over is not None
        assert sum(each.gpu_hours for each in over.paid) > over.gpu_hours
        assert over.usd is not None and over.usd < 1.0
        assert all(each.usd_per_hour == pytest.approx(3e-5 * each.gpus) for each in over.intervals)
        assert "Paid as 100 % spot" in over.answer
        assert replace(over, usd=1.0, paid_usd=0.993).saved_usd == pytest.approx(0.007)
        assert replace(over, usd=1.0, paid_usd=0.996).saved_usd == 0.0  # less than half a cent

    def test_a_load_that_never_changes_saves_nothing(self) -> None:
        """Twenty-four equal hours: the sentence and the two totals are the same."""
        over = _plan(profile=[3.0] * 24).over_time
        assert over is not None
        assert over.gpu_hours == over.peak_gpu_hours
        assert "below" not in over.answer

    def test_an_accelerator_without_a_price_is_planned_by_its_hours(self) -> None:
        over = rk.plan(MODEL, "l40s", "p95 tpot<60ms", **(ONE | {"prices": None, "profile": DAY})).over_time
        assert over is not None
        assert over.usd is over.paid_usd is None
        assert over.gpu_hours < over.peak_gpu_hours


class TestTerms:
    YEAR, HALF = HourlyPrice(2.0, "", months=3.0), HourlyPrice(2.4, "", months=1.0)

    @settings(max_examples=40, deadline=None)
    @given(
        st.lists(st.integers(0, 730), min_size=1, max_size=5), st.floats(0.5, 4.0), st.floats(0.5, 4.0),
        st.integers(1, 4), st.integers(1, 3),
    )  # fmt: skip
    def test_no_choice_of_months_is_cheaper(
        self, used: list[int], first: float, second: float, long: int, short: int
    ) -> None:
        terms = [HourlyPrice(first, "", months=float(long)), HourlyPrice(second, "", months=float(short))]
        use = np.array(used, float)[:, None]
        held = held_levels(use, 730.0, 3.0, terms)[:, 0]
        ours = sum(hours * 3.0 if term < 0 else 730.0 * float(terms[term].usd_per_gpu_hour)
                   for hours, term in zip(used, held, strict=True))  # fmt: skip
        least = math.inf
        for starts in product((-1, 0, 1), repeat=len(used)):
            until, now, cost = 0, -1, 0.0
            for month, term in enumerate(starts):
                if month >= until:
                    now = term
                    until = month + (round(terms[term].months) if term >= 0 else 1)
                cost += used[month] * 3.0 if now < 0 else 730.0 * float(terms[now].usd_per_gpu_hour)
            least = min(least, cost)
        assert ours == pytest.approx(least)

    def test_a_level_is_committed_from_the_critical_ratio_on(self) -> None:
        """8 hours of 12, 8 of 8 and 8 of 4 accelerators at 2 of 3 USD: used 1, 2/3 and 1/3 of the time."""
        gpus, hours = np.array([[12.0, 8.0, 4.0]]), [730.0 / 3] * 3
        paid = pay(gpus, hours, HourlyPrice(3.0, ""), [HourlyPrice(1.99, "", term="year", months=12.0)], None)
        assert {each.term: each.gpus for each in paid} == {"year": 8.0, "on demand": 4.0}
        paid = pay(gpus, hours, HourlyPrice(3.0, ""), [HourlyPrice(2.01, "", term="year", months=12.0)], None)
        assert {each.term: each.gpus for each in paid} == {"year": 4.0, "on demand": 8.0}

    @settings(max_examples=20, deadline=None)
    @given(st.lists(st.integers(0, 6), min_size=2, max_size=5).filter(any), st.floats(0.3, 2.9))
    def test_no_committed_level_is_cheaper(self, counts: list[int], price: float) -> None:
        gpus, hours = np.array([counts], float), [730.0 / len(counts)] * len(counts)
        paid = pay(gpus, hours, HourlyPrice(3.0, ""), [HourlyPrice(price, "", months=1.0)], None)
        brute = min(
            sum(hour * (level * price + max(count - level, 0) * 3.0) for count, hour in zip(counts, hours, strict=True))
            for level in range(max(counts) + 1)
        )
        assert sum(each.usd for each in paid) == pytest.approx(brute)

    def test_spares_of_spot_keep_enough_machines(self) -> None:
        """Against the binomial distribution counted out."""
        spot = Spot(1.0, 200.0, 0.5, 1, 0.95)
        for replicas in (1, 5, 20):
            spares = spot.spares(replicas)

            def there(extra: int, replicas: int = replicas) -> float:
                whole = replicas + extra
                return sum(math.comb(whole, n) * spot.up**n * (1 - spot.up) ** (whole - n)
                           for n in range(replicas, whole + 1))  # fmt: skip

            assert there(spares) >= 0.95
            assert spares == 0 or there(spares - 1) < 0.95

    def test_spot_is_taken_where_its_spares_pay(self) -> None:
        gpus, hours = np.array([[40.0, 10.0]]), [365.0, 365.0]
        terms = [HourlyPrice(2.0, "", term="year", months=12.0)]
        cheap, dear = (pay(gpus, hours, HourlyPrice(3.0, ""), terms, Spot(price, often, 0.5, 1, 0.99))
                       for price, often in ((1.2, 20.0), (2.9, 200.0)))  # fmt: skip
        assert {each.term for each in cheap} == {"spot"}
        assert {each.term for each in dear} == {"year", "on demand"}
        assert sum(each.usd for each in cheap) < sum(each.usd for each in dear)

    def test_the_price_file_has_terms_beside_the_price_on_demand(self, tmp_path: Path) -> None:
        path = tmp_path / "prices.csv"
        head = "name,term,commitment,interruptions,low,high,source\n"
        rows = "h100-sxm,one year,1 year,,2,2,me\nh100-sxm,on demand,,,3,3,me\nh100-sxm,spot,,20,1.5,1.5,me\n"
        path.write_text(head + rows)
        found = quotes_of([load_accelerator("h100-sxm").value], path)
        hour = found.hourly["h100-sxm"]
        assert hour is not None
        assert hour.usd_per_gpu_hour == 3.0
        assert [(each.months, each.interruptions) for each in found.terms["h100-sxm"]] == [(12.0, None), (0.0, 20.0)]
        over = _plan(prices=str(path)).over_time
        assert over is not None
        assert over.paid_usd < over.usd
        path.write_text(head + "h100-sxm,one year,1 year,,2,2,me\n")
        with pytest.raises(InputError, match="no price on demand"):
            _plan(prices=str(path))
        path.write_text(head + "h100-sxm,one year,soon,,2,2,me\n")
        with pytest.raises(InputError, match="line 2: commitment must be whole months"):
            _plan(prices=str(path))
        path.write_text(head + "h100-sxm,one year,1 year,20,2,2,me\n")
        with pytest.raises(InputError, match="line 2: a price has a commitment or interruptions, not both"):
            _plan(prices=str(path))


class TestFiles:
    def test_hours_dates_and_units(self, tmp_path: Path) -> None:
        path = tmp_path / "load.csv"
        path.write_text("hour;rate\n0;120rpm\n6;5\n7;1\n")
        read = read_profile(path)
        assert read.rates == (2.0, 5.0, 1.0)
        assert read.hours == (6.0, 1.0, 1.0)
        path.write_text("time,rate\n2026-05-01T00:00,1\n2026-05-01T00:30,2\n")
        assert read_profile(path).hours == (0.5, 0.5)
        path.write_text("Time,RATE\n2026-05-01T02:00+02:00,1\n2026-05-01T01:00,2\n")  # without a zone it is UTC
        assert read_profile(path).hours == (1.0, 1.0)

    def test_gaps_and_cut_days_are_said(self, tmp_path: Path) -> None:
        """A row that is missing makes the one before it last longer; a day of 23 hours is none."""
        path = tmp_path / "load.csv"

        def notes(hours: list[int]) -> str:
            path.write_text("hour,rate\n" + "".join(f"{hour},5\n" for hour in hours))
            over = _plan(profile=str(path)).over_time
            assert over is not None
            return " ".join(over.warnings)

        assert "load.csv" not in notes([*range(24)])
        assert "last 1 to 2 h" in notes([*range(12), *range(13, 24)])
        assert "lasts 23 h" in notes([*range(23)])

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("hour,req\n0,1\n1,2\n", "rate is missing"),
            ("hr,rate\n0,1\n1,2\n", "hour is missing"),
            ("hour,rate\n0,1\n", "at least two rows"),
            ("hour,rate\n0,1\n0,2\n", "line 3"),
            ("hour,rate\n0,1\n1,-2\n", "line 3"),
            ("hour,rate\n0,1\n1,many\n", "line 3"),
            ("hour,rate\n0,1\n\n1,many\n", "line 4"),
            ("hour,rates\n0,1\n1,2\n", "nearest: rates$"),
            ("hour,rate\n0,0\n1,0\n", "no request"),
            ("time,rate\nnoon,1\n1,0\n", "line 2"),
            ("", "empty"),
        ],
    )
    def test_what_is_no_profile(self, tmp_path: Path, text: str, says: str) -> None:
        path = tmp_path / "load.csv"
        path.write_text(text)
        with pytest.raises(InputError, match=says):
            read_profile(path)

    @pytest.mark.parametrize(
        ("asked", "says"),
        [
            ({"peak": 2}, "peak and profile exclude"),
            ({"users": 5}, "users and profile exclude"),
            ({"profile": "trace", "rate": 5}, "that of a trace"),
            ({"profile": None, "users": 5, "growth": "8%/month"}, "requests a second"),
            ({"growth": "lots"}, "8%/month"),
            ({"growth": "8"}, "8% or 800%"),
            ({"months": 0}, "months"),
            ({"profile": [0.0, 0.0]}, "no request"),
        ],
    )
    def test_what_makes_no_sense(self, asked: dict[str, Any], says: str) -> None:
        with pytest.raises(InputError, match=says):
            _plan(**asked)

    def test_a_rate_beside_it_is_its_mean(self) -> None:
        question = read_question(MODEL, GPU, SLO, ONE | {"profile": DAY, "rate": 80})
        assert question.course is not None
        assert question.course.profile.mean == pytest.approx(80.0)
        assert question.demand.peak_load == pytest.approx(80.0 * max(DAY) / (sum(DAY) / 24))

    def test_growth_a_year_compounds(self) -> None:
        assert (1 + read_growth("100%/year")) ** 12 == pytest.approx(2.0)

    def test_the_busiest_hour_of_a_trace_is_its_peak(self, tmp_path: Path) -> None:
        path = tmp_path / "trace.csv"
        draw = np.random.default_rng(0)
        busy, calm = (np.sort(draw.uniform(low, low + 40, count)) for low, count in ((0, 3000), (40, 800)))
        rows = [f"{time:.6f},500,50" for time in (*busy, *calm)]
        path.write_text("time_s,isl,osl\n" + "\n".join(rows) + "\n")
        asked = {key: value for key, value in ONE.items() if key not in ("isl", "osl")}
        answer = rk.plan(MODEL, GPU, SLO, **asked, trace=str(path), profile="trace")
        over = answer.over_time
        assert over is not None
        assert max(row.rate for row in over.intervals) == pytest.approx(answer.traffic["peak_load"])
        assert max(row.gpus for row in over.intervals) == answer.best.gpus
        assert over.intervals[0].gpus > over.intervals[-1].gpus


class TestBudgets:
    @pytest.mark.parametrize("profile", [None, pytest.param(DAY, marks=pytest.mark.long)])
    def test_nothing_more_is_paid_for(self, profile: list[float] | None) -> None:
        budget = 20_000.0
        solved = affordable(MODEL, GPU, SLO, budget, **ONE, profile=profile)
        shape = [rate / (sum(DAY) / 24) for rate in profile] if profile else [1.0, 1.0]
        capacity = _capacity(profile=None, rate=solved.value)
        for factor, within in ((0.97, True), (1.03, False)):  # fleets are played: one replica is worth some 3 % here
            gpus = [capacity.fleet(solved.value * each * factor).gpus for each in shape]
            assert (sum(gpus) / len(gpus) * 730 * 3.0 <= budget) is within

    def test_a_budget_of_one_accelerator_says_one(self) -> None:
        assert "1 GPU as 1 x TP1 costs $2,190 of" in affordable(MODEL, GPU, SLO, 2_500.0, **ONE).answer

    def test_the_plan_of_its_rate_costs_no_more(self) -> None:
        solved = affordable(MODEL, GPU, SLO, 20_000.0, **(ONE | TURNS))
        for factor, within in ((0.97, True), (1.03, False)):
            cost = rk.plan(MODEL, GPU, SLO, **(ONE | TURNS), rate=factor * solved.value).best.cost
            assert ((cost.usd_per_hour or 0.0) * 730 <= 20_000.0) is within

    def test_less_than_one_replica(self) -> None:
        with pytest.raises(InfeasibleError, match="one replica"):
            affordable(MODEL, GPU, SLO, 100.0, **ONE)
        with pytest.raises(InputError, match="rate has no part"):
            affordable(MODEL, GPU, SLO, 100.0, **ONE, rate=3)

    def test_accelerators_may_be_fewer_than_the_budget(self) -> None:
        solved = affordable(MODEL, GPU, SLO, 1e6, **ONE, limit={"h100-sxm": 3})
        assert solved.binds == ("limit",)
        assert solved.scenario["gpus"] == 3


class TestCommand:
    ASK = ("plan", MODEL, "--isl", "500", "--osl", "50", "--tp", "1", "--aggregated-only", "--router", "random",
           "--token-budget", "8192", "--max-num-seqs", "256")  # fmt: skip

    def run(self, *args: str) -> tuple[int, str, str]:
        done = CliRunner().invoke(app, [*self.ASK, *args])
        return done.exit_code, done.stdout, done.stderr

    def test_table_csv_and_json_say_the_same(self, tmp_path: Path) -> None:
        path = tmp_path / "week.csv"
        path.write_text("hour,rate\n" + "".join(f"{hour},{DAY[hour % 24]}\n" for hour in range(168)))
        ask = ("--profile", str(path), "--growth", "5%/month", "--months", "4")
        code, out, _ = self.run(*ask)
        assert code == 0
        assert max(map(len, out.splitlines())) <= 80
        data = json.loads(self.run(*ask, "--format", "json")[1])["over_time"]
        rows = list(csv.DictReader(io.StringIO(self.run(*ask, "--format", "csv")[1])))
        assert len(rows) == len(data["intervals"]) == 4 * 168
        assert [int(row["gpus"]) for row in rows] == [row["gpus"] for row in data["intervals"]]
        assert f"{data['gpu_hours']:,.0f} GPU-hours" in " ".join(out.split())

    def test_a_budget(self) -> None:
        code, out, _ = self.run("--max", "rate", "--budget", "20k/month")
        assert code == 0
        assert "of the $20,000 a month" in " ".join(out.split())
        code, _, error = self.run("--budget", "20000")
        assert code == 2
        assert "--max rate" in error
        for ask in (("--budget", "20000"), ()):
            refused = CliRunner().invoke(app, ["plan", MODEL, "--max", "rate", *ask, "--autoscale"])
            assert refused.exit_code == 2
            assert "autoscale" in refused.stderr

    def test_it_is_drawn(self, day: PlanAnswer) -> None:
        picture = rk.plot(day)
        assert "GPU-hours" in picture.description
        with pytest.raises(InputError, match="one peak"):
            rk.plot(_plan(profile=None, rate=5))


def test_a_day_by_the_hour_meets_the_objectives_when_it_is_replayed(day: PlanAnswer) -> None:
    """For less than the fleet for the peak: what one replica sees, with each hour cut to some hundred requests' times.

    That is sized with 90 % confidence, so that at expected times fewer are late than may be.
    """
    over, best, seconds = day.over_time, day.best, 15.0
    assert over is not None
    assert over.usd < 0.85 * (over.peak_usd or 0.0)
    scenario = {key: value for key, value in best.fleets[0].scenario.items() if key not in ("model", "gpu")}
    resolved = resolve(MODEL, GPU, read_deployment(scenario), None)
    arrivals: list[Arrival] = []
    for hour, row in enumerate(over.intervals):
        comes = generate(Gamma(row.rate / row.replicas), Requests(Fixed(500), Fixed(50)), 1 << 30, hour)
        arrivals += [each._replace(time=each.time + hour * seconds)
                     for each in takewhile(lambda each: each.time < seconds, comes)]  # fmt: skip
    outcome = serve(resolved, SentLoad(Fixed(500), Fixed(50), sent=arrivals))
    assert outcome.requests.finished == len(arrivals)
    assert outcome.ttft_ms.p99 <= 1000.0
    assert outcome.tpot_ms.p95 <= 30.0


SLOW = {
    "isl": 4000, "osl": 100, "prices": 3.0, "tp": [1], "token_budgets": [8192], "max_num_seqs": [256],
    "aggregated_only": True, "router": "random", "confidence": 0.5, "autoscale": True, "cold_start": [2, 8],
    "profile": [round(5.0 + 4.0 * math.sin((h - 9) / 12 * math.pi), 3) for h in range(24)],
}  # fmt: skip
SCALED = "llama-3.1-8b", GPU, "p95 ttft<8s, p95 tpot<50ms"


@pytest.fixture(scope="module")
def scaled() -> PlanAnswer:
    """A day of long prompts, autoscaled."""
    return rk.plan(*SCALED, **SLOW)


@pytest.fixture(scope="module")
def part() -> Part:
    """A replica of some that are asked for 20 requests a second."""
    return search(read_question(MODEL, GPU, SLO, ONE | {"rate": 20.0})).options[0].parts[0]


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Policies are played, and Ctrl-C ends what follows before a single request is drawn."""

    def stopped(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rooflinekit.decision.planning.over_time.run_varying", stopped)


class TestAutoscaling:
    def test_it_costs_less_than_the_peak_with_each_cold_start(self, scaled: PlanAnswer) -> None:
        over = scaled.over_time
        assert over is not None
        assert over.autoscaling is not None
        best = over.autoscaling.best
        assert best is not None
        assert over.autoscaling.cold_start.seconds == pytest.approx(
            120 + scaled.best.fleets[0].cold_start_s + 64
        ) == best.cold_start_s  # fmt: skip
        for seconds in (120.0, 480.0, best.cold_start_s):
            good = [each for each in over.autoscaling.policies if each.cold_start_s == seconds and each.meets]
            assert min(each.usd_per_month or 0.0 for each in good) < over.peak_usd
            assert all(share >= 0.95 for each in good for share in each.attained.values())
        assert {each.policy for each in over.autoscaling.policies} == {"utilisation", "queue", "forecast"}
        assert "cold start of 187 s" in over.answer
        json.dumps(scaled.to_dict())

    def test_its_sentence_says_what_the_objectives_rest_on(self, scaled: PlanAnswer) -> None:
        over = scaled.over_time
        assert over is not None
        assert over.autoscaling is not None
        assert over.autoscaling.best is not None
        told = over.answer.partition("Autoscaled")[2]
        assert "at each look by the load of a replica" in told
        assert f"{over.autoscaling.best.requests:,} single requests" in told
        assert 0.0 <= over.autoscaling.best.busiest <= 1.0
        assert "around the busiest look" in told

    def test_the_cheapest_with_each_cold_start_agrees_with_a_simulation(self, scaled: PlanAnswer) -> None:
        over = scaled.over_time
        assert over is not None
        assert over.autoscaling is not None
        for start in {each.cold_start_s for each in over.autoscaling.policies}:
            good = [each for each in over.autoscaling.policies if each.cold_start_s == start and each.meets]
            least = min(good, key=lambda each: each.gpu_hours_per_month)
            assert least.requests > 1000
            assert all(share >= 0.95 for share in least.simulated.values())

    @pytest.mark.parametrize("load", [20.0, 45.0])
    def test_a_replica_whose_load_never_changes_is_simulated_as_it_is_played(self, part: Part, load: float) -> None:
        """At a constant rate the windows are a steady state, as of any other play of that rate.

        Of 4,000 requests means are known to 2 %, of a load of two thirds TTFT to 5 %, as it is mostly waiting.
        """
        demand = read_question(MODEL, GPU, SLO, ONE | {"rate": load}).demand
        run = run_varying(part, demand, np.full(960, load), 400, 400, 15.0, 4000, 1.0, 0)
        felt = part.bearer.feel(demand, load, exact=True)
        assert 3800 <= run.requests <= 1.05 * (4000 + 3 * 15 * load)  # windows end with a period
        assert run.felt.value("tpot", None) == pytest.approx(felt.value("tpot", None), rel=0.04)
        assert run.felt.value("ttft", None) == pytest.approx(felt.value("ttft", None), rel=0.1)
        assert run.felt.value("tpot", 0.95) == pytest.approx(felt.value("tpot", 0.95), rel=0.1)

    def test_a_replica_is_busy_when_its_requests_come(self, part: Part) -> None:
        """Rates of 4 and 50 in turns: around the middle of the busy ones it feels what 50 a second do."""
        demand = read_question(MODEL, GPU, SLO, ONE | {"rate": 20.0}).demand
        rates = np.repeat([4.0, 50.0, 4.0, 50.0], 240)

        def tpot(place: int) -> float:
            return float(run_varying(part, demand, rates, place, place, 15.0, 1200, 1.0, 0).felt.value("tpot", None))

        assert tpot(360) > 1.3 * tpot(120)
        assert tpot(360) == pytest.approx(part.bearer.feel(demand, 50.0, exact=True).value("tpot", None), rel=0.1)

    def test_what_waited_before_is_played_too(self, part: Part) -> None:
        """Two minutes beyond the knee: at their end a replica that is played from their start has requests waiting."""
        demand = read_question(MODEL, GPU, SLO, ONE | {"rate": 20.0}).demand
        rates = np.full(960, 10.0)
        rates[400:408] = 2.0 * part.bearer.knee(demand)
        late, fresh = (
            run_varying(part, demand, rates, 407, calm, 15.0, 300, 1.0, 0).felt.value("ttft", None)
            for calm in (399, 407)
        )
        assert late > 2.0 * fresh

    @pytest.mark.usefixtures("undrawn")
    def test_an_interrupt_keeps_the_policies(self) -> None:
        answer = _plan(profile=DAY[::4], autoscale=True, cold_start=[2])
        assert answer.interrupted
        assert answer.over_time is not None
        assert answer.over_time.autoscaling is not None
        assert answer.over_time.autoscaling.best is not None
        assert "no single requests are drawn" in answer.over_time.answer

    @pytest.mark.usefixtures("undrawn")
    def test_a_replica_whose_plays_diverge_below_the_knee(self) -> None:
        """Long answers fill the cache before the engine: a load that no play sustains meets nothing, and is finite."""
        more = SLOW | {"isl": 16_000, "osl": 1000, "profile": [0.1] * 12 + [1.1] * 12, "cold_start": [2]}
        over = rk.plan(*SCALED, **more).over_time
        assert over is not None
        assert over.autoscaling is not None
        for each in over.autoscaling.policies:
            assert 0.0 < each.gpu_hours_per_month < math.inf
            assert all(0.0 <= share <= 1.0 for share in each.attained.values())

    @pytest.mark.usefixtures("undrawn")
    def test_bounds_and_cooldown_are_kept(self) -> None:
        def scaled(**more: Any) -> Any:
            made = _plan(profile=DAY[::4], autoscale=True, cold_start=[2], **more).over_time
            assert made is not None
            assert made.autoscaling is not None
            return made.autoscaling.policies

        free = scaled()
        most = max(each.most for each in free)
        for each in scaled(min_replicas=3, max_replicas=most - 1):
            assert {count for _, count in each.steps} <= set(range(3, most))
            assert each.most <= most - 1
        slow = scaled(cooldown=7200)
        assert sum(each.changes_per_hour for each in slow) < sum(each.changes_per_hour for each in free)
        with pytest.raises(InputError, match="max_replicas must be at least min_replicas"):
            scaled(min_replicas=4, max_replicas=2)
        with pytest.raises(InputError, match="belongs to autoscaling"):
            _plan(cooldown=60)

    @pytest.mark.usefixtures("undrawn")
    def test_a_longer_cold_start_serves_no_better(self) -> None:
        """A load that grows tenfold within an hour, at the same setting."""
        over = rk.plan(*SCALED, **SLOW | {"profile": [2.4] * 12 + [24.0] * 12, "cold_start": [1, 30]}).over_time
        assert over is not None
        assert over.autoscaling is not None
        rows = {(each.cold_start_s, each.policy): each for each in over.autoscaling.policies}
        for policy in ("utilisation", "queue"):
            quick, late = rows[60.0, policy], rows[1800.0, policy]
            assert late.gpu_hours_per_month > quick.gpu_hours_per_month or not late.meets
        ahead = rows[1800.0, "forecast"]
        assert ahead.meets
        assert min(ahead.attained.values()) > min(rows[1800.0, "utilisation"].attained.values())

    @pytest.mark.usefixtures("undrawn")
    def test_the_path_of_the_weights_is_part_of_the_cold_start(self) -> None:
        seconds = {}
        for path in ("object-store", "nvme", "host-cache"):
            over = _plan(
                profile=[200.0, 300.0],
                autoscale=True,
                weights_from=path,
                provision=0.0,
                engine_start=0.0,
                cold_start=[2],
            ).over_time
            assert over is not None
            assert over.autoscaling is not None
            seconds[path] = over.autoscaling.cold_start.seconds
        assert seconds["object-store"] == pytest.approx(4 * seconds["nvme"])
        assert seconds["host-cache"] == pytest.approx(seconds["nvme"] * 5 / 63)

    @pytest.mark.parametrize(
        ("asked", "says"),
        [
            ({"cold_start": [2]}, "add autoscale"),
            ({"autoscale": True, "profile": None, "rate": 5}, "give profile"),
            ({"autoscale": True, "weights_from": "tape"}, "nvme"),
            ({"autoscale": True, "weights_from": "host-cache", "load_gbps": 2.0}, "give one"),
        ],
    )
    def test_what_makes_no_sense(self, asked: dict[str, Any], says: str) -> None:
        with pytest.raises(InputError, match=says):
            _plan(**asked)

    @pytest.mark.long
    def test_a_busy_morning_meets_the_objectives_request_by_request(self, scaled: PlanAnswer) -> None:
        """Three hours in which a replica comes: the replicas that each policy had, at what it costs."""
        over, best = scaled.over_time, scaled.best
        assert over is not None
        assert over.autoscaling is not None
        scenario = {key: value for key, value in best.fleets[0].scenario.items() if key not in ("model", "gpu")}
        resolved = resolve("llama-3.1-8b", GPU, read_deployment(scenario), None)
        clock, draw = np.arange(9 * 3600, 12 * 3600), np.random.default_rng(7)
        rates = np.interp((clock + 0.5) / 3600, np.arange(24) + 0.5, SLOW["profile"], period=24)
        came = draw.poisson(rates)
        times = np.sort(np.repeat(clock, came) + draw.uniform(size=came.sum())).tolist()
        for seconds in (120.0, 480.0):
            good = [each for each in over.autoscaling.policies if each.cold_start_s == seconds and each.meets]
            least = min(good, key=lambda each: each.usd_per_month or 0.0)
            assert (least.usd_per_month or 0.0) < over.peak_usd
            setup = Scheduler(replicas=max(count for _, count in least.steps), router="random")
            ledger = Ledger(RequestObjective(8.0, 0.05))
            load = SentLoad(Fixed(4000), Fixed(100))
            fleet = fleet_of(resolved.predictor, resolved.predictor, load, setup, ledger)
            run = Simulation(fleet, Source(Arrival(time, 4000, 100) for time in times), ledger)

            def resize(count: int, fleet: ReplicaFleet = fleet) -> None:
                """The router knows so many replicas from now on; the others end what they have."""
                fleet.replicas[:] = fleet.all[:count]

            for time, count in least.steps:
                run._push(time, resize, count)
            run.run()
            assert ledger.finished == len(times)
            goodput = ledger.good / ledger.measured
            assert goodput >= 0.95
            assert min(least.simulated.values()) == pytest.approx(goodput, abs=0.03)


class TestOwning:
    TEXT = (
        "purchase: 30000\nyears: 4\ninterest: 0.08\nresidual: 0.1\npower_price: 0.1\npue: 1.3\nrack: 150\nstaff: 1200\n"
    )

    def test_the_annuity_pays_the_purchase_back(self) -> None:
        """The present value of all its months and of the residual is the price."""
        owning = Purchase(30_000.0, 4.0, interest=0.08, residual=0.1)
        i = owning.month_interest
        months = sum(owning.capital / (1 + i) ** month for month in range(1, 49))
        assert months + 3_000.0 / 1.08**4 == pytest.approx(30_000.0)
        assert Purchase(30_000.0, 4.0).capital == pytest.approx(30_000.0 / 48)

    @given(
        rent=st.floats(100.0, 5000.0), running=st.floats(0.0, 3000.0), interest=st.floats(0.0, 0.3),
        gpus=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    )  # fmt: skip
    def test_the_break_even_is_the_first_month_that_pays(
        self, rent: float, running: float, interest: float, gpus: list[int]
    ) -> None:
        owning = Purchase(20_000.0, 3.0, interest=interest, staff=12 * running)
        rents = [rent * each for each in gpus]
        told = rent_or_buy(owning, gpus, rents, 0.0, 0.0)
        i = owning.month_interest

        def ahead(month: int) -> float:
            """Rents so far less purchases and running, at the end of a month, each counted out."""
            total, owned = 0.0, 0
            for each in range(1, month + 1):
                at = min(each, len(gpus)) - 1
                needed = max(gpus[at], owned)
                total += (rents[at] - needed * running) / (1 + i) ** each
                total -= (needed - owned) * 20_000.0 / (1 + i) ** (each - 1)
                owned = needed
            return total

        behind = [month for month in range(1, 37) if ahead(month) < -1e-6]
        assert told.break_even_month == (None if behind[-1:] == [36] else max(behind, default=0) + 1)

    def test_a_fleet_that_grows_late_breaks_even_late(self) -> None:
        """One accelerator has paid for itself by month 10; nine more in month 12 take until month 20."""
        told = rent_or_buy(Purchase(10_000.0, 3.0), [1] * 11 + [10], [1000.0] * 11 + [10_000.0], 0.0, 0.0)
        assert told.break_even_month == 20

    def test_a_sale_in_the_end_may_make_the_difference(self, tmp_path: Path) -> None:
        """Between the annuities of a purchase and the purchase itself: no month pays, and owning costs less."""
        path = tmp_path / "own.yaml"
        path.write_text(self.TEXT)
        over = _plan(tco=str(path), profile=[3.0] * 24, prices=1.40).over_time
        assert over is not None
        assert over.tco is not None
        assert over.tco.break_even_month is None
        assert over.tco.own_usd < over.tco.rent_usd
        assert "Buying is cheaper once it is sold" in over.answer

    def test_a_plan_says_when_buying_pays(self, tmp_path: Path) -> None:
        path = tmp_path / "own.yaml"
        path.write_text(self.TEXT)
        over = _plan(tco=str(path)).over_time
        assert over is not None
        assert over.tco is not None
        assert over.tco.capital_usd == pytest.approx(674.92, abs=0.01)
        law = load_accelerator(GPU).value.power
        assert law is not None
        rack = 150.0 * plug_power(law.limit, law.host) / 1e3
        board = (over.tco.running_usd - 100.0 - rack) / (1.3 * 0.73 * 0.1)
        assert plug_power(law.idle, law.host) < board < plug_power(law.limit, law.host)
        assert over.tco.rent_usd == pytest.approx(
            sum((over.usd or 0.0) / (1 + over.tco.inputs.month_interest) ** month for month in range(1, 49))
        )
        assert "cheaper from month" in over.answer
        dear = _plan(tco=str(path), prices=0.2).over_time
        assert dear is not None
        assert dear.tco is not None
        assert dear.tco.break_even_month is None
        assert "Renting stays cheaper" in dear.answer

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("purchase: 1\n", "years: is missing"),
            ("purchase: 1\nyears: 4\nintrest: 1\n", "nearest: interest"),
            ("purchase: -1\nyears: 4\n", "purchase must be"),
            ("purchase: 1\nyears: 4\nresidual: 2\n", "residual must be at most 1, not 2"),
            ("purchase: 1\nyears: 4\npue: 0.5\n", "pue"),
            ("purchase: 1\nyears: 0.01\n", "years must"),
            ("", "empty"),
        ],
    )
    def test_what_is_no_purchase(self, tmp_path: Path, text: str, says: str) -> None:
        path = tmp_path / "own.yaml"
        path.write_text(text)
        with pytest.raises(InputError, match=says):
            _plan(tco=str(path))
