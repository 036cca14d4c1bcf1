"""Classes of requests on one fleet or several: identities of the mix, brute force, the simulator, valleys, hosts."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import rooflinekit as rk
from rooflinekit.cli.app import app
from rooflinekit.decision.planning.classes import Valleys, partitions, plan_classes
from rooflinekit.decision.planning.cost import hosts_of
from rooflinekit.decision.planning.demand import Demand, Mix, Mixed, Profile, TrafficClass, read_classes, read_demand
from rooflinekit.decision.planning.fleet import Ability, Bearer, Part, lay_out
from rooflinekit.decision.planning.objective import METRICS, Felt, missed, parse_objectives
from rooflinekit.decision.planning.plan import read_question
from rooflinekit.decision.planning.search import search
from rooflinekit.load.lengths import Fixed, Length, LogNormal, Uniform
from rooflinekit.load.scene import Scheduler
from rooflinekit.model.types.errors import InfeasibleError, InputError, SpecError
from rooflinekit.simulation.event_loop import Simulation
from rooflinekit.simulation.ledger import Ledger, RequestObjective
from rooflinekit.simulation.requests import Job, Source
from rooflinekit.simulation.simulate import SentLoad, fleet_of

MODEL, GPU = "llama-3-8b", "h100-sxm"
ONE: dict[str, Any] = {"prices": 3.0, "tp": [1], "token_budgets": [8192], "max_num_seqs": [256]}
SCENARIO: dict[str, Any] = {"tp": 1, "engine": "vllm", "token_budget": 8192, "max_num_seqs": 256}
DAY = [10.0, 4.0, 2.0, 8.0]


def _class(name: str, rate: float, isl: int, osl: int, slo: str = "", **more: Any) -> TrafficClass:
    objectives = tuple(replace(each, of=name) for each in parse_objectives(slo)) if slo else ()
    return TrafficClass(name, rate, Fixed(isl), Fixed(osl), slo=objectives, **more)


CHAT = _class("chat", 60.0, 400, 60, "p95 ttft<1s, p95 tpot<20ms")
LONG = _class("long", 8.0, 3000, 30, "p95 ttft<3s, p95 tpot<50ms", priority=1)
CODE = _class("code", 24.0, 800, 20, "p95 ttft<400ms")


def _bearer(mix: Demand, **more: Any) -> Bearer:
    return Bearer(lay_out(MODEL, GPU, SCENARIO | more, mix, None))


def _felt(mix: Demand, load: float, **more: Any) -> Felt:
    return _bearer(mix, **more).feel(mix, load, exact=True)


def _file(folder: Path, text: str, name: str = "classes.yaml") -> Path:
    (file := folder / name).write_text(text, encoding="utf-8")
    return file


class TestMix:
    @pytest.mark.parametrize(("isl", "close"), [(Fixed(400), (1e-9,) * 3), (LogNormal(400.0, 0.7), (0.08, 0.03, 0.02))])
    def test_one_class_is_the_plain_traffic(self, isl: Length, close: tuple[float, ...]) -> None:
        """Arrivals are the same, lengths are drawn anew: TTFT is noisier than TPOT, and this than whole requests."""
        mix = Mix.of([replace(CHAT, isl=isl, slo=())])
        plain = replace(read_demand({"rate": 60.0, "osl": 60}), isl=isl)
        alone, mine = _felt(plain, 30.0), _felt(mix, 30.0).classes["chat"]
        for metric, rel in zip(("ttft", "tpot", "e2el"), close, strict=True):
            for share in (None, 0.5, 0.95):
                assert mine.value(metric, share) == pytest.approx(alone.value(metric, share), rel=rel)

    def test_a_class_cut_in_two_changes_nothing(self) -> None:
        """A third of its requests is some hundred, whose p95 is known to 5 %."""
        whole = _felt(Mix.of([CHAT, LONG]), 20.0)
        cut = Mix.of([replace(CHAT, rate=20.0), replace(CHAT, name="more", rate=40.0, slo=()), LONG])
        parts = _felt(cut, 20.0)
        for one, other in (("chat", "chat"), ("chat", "more"), ("long", "long")):
            for metric in ("ttft", "tpot", "e2el"):
                for share in (None, 0.95):
                    assert parts.classes[other].value(metric, share) == pytest.approx(
                        whole.classes[one].value(metric, share), rel=0.06
                    )

    def test_the_mean_over_classes_is_that_of_all_requests(self) -> None:
        """But for how many of each are drawn."""
        mix = Mix.of([CHAT, LONG, CODE])
        felt = _felt(mix, 25.0)
        for metric in ("ttft", "tpot", "e2el"):
            parts = zip(mix.shares, mix.classes, strict=True)
            mean = sum(share * felt.classes[each.name].value(metric, None) for share, each in parts)
            assert mean == pytest.approx(felt.value(metric, None), rel=0.02)

    def test_a_load_that_is_too_much_is_too_much_for_each(self) -> None:
        mix = Mix.of([CHAT, LONG])
        bearer = _bearer(mix)
        beyond = bearer.feel(mix, 1.1 * bearer.knee(mix))
        assert not beyond.stable
        assert all(each.value(beyond) == math.inf and not each.attained(beyond) for each in mix.slo)

    @pytest.mark.parametrize("load", [0.5, 0.8])
    def test_who_is_served_first_waits_less_and_the_work_that_waits_stays(self, load: float) -> None:
        """Steps of 1,024 tokens break long prompts off, so that Kleinrock's conservation law holds to some percent."""
        first, last = Mix.of([CHAT, LONG]), Mix.of([CHAT, replace(LONG, priority=0)])
        rate = load * _bearer(first, token_budget=1024).knee(first)
        ordered, plain = (_felt(mix, rate, token_budget=1024) for mix in (first, last))
        assert ordered.classes["chat"].value("ttft", None) < 0.9 * plain.classes["chat"].value("ttft", None)
        assert ordered.classes["long"].value("ttft", None) > 1.05 * plain.classes["long"].value("ttft", None)
        waits = [
            sum(share * each.isl.mean * felt.classes[each.name].value("ttft", None)
                for share, each in zip(first.shares, first.classes, strict=True))
            for felt in (ordered, plain)
        ]  # fmt: skip
        assert waits[0] == pytest.approx(waits[1], rel=0.08)

    @given(rates=st.lists(st.floats(0.1, 50.0), min_size=2, max_size=4))
    @settings(max_examples=20, deadline=None)
    def test_lengths_of_a_mix_have_the_moments_of_its_parts(self, rates: list[float]) -> None:
        whole = sum(rates)
        mixed = Mixed(tuple((rate / whole, Uniform(10 * n, 20 * n)) for n, rate in enumerate(rates, 1)))
        drawn = [rate / whole * Uniform(10 * n, 20 * n).moment(2) for n, rate in enumerate(rates, 1)]
        assert mixed.second_moment == pytest.approx(sum(drawn))
        assert mixed.quantile(1.0) == 20 * len(rates)

    @pytest.mark.parametrize("load", [0.4, 0.7])
    def test_the_simulator_gives_each_class_the_same(self, load: float) -> None:
        """The same requests, one by one with objects of their own."""
        mix = Mix.of([CHAT, LONG, CODE])
        bearer = _bearer(mix)
        rate = load * bearer.knee(mix)
        said, asked = bearer.feel(mix, rate, exact=True), bearer.curve(mix).play(rate).asked
        rows: dict[str, list[tuple[float, ...]]] = {each.name: [] for each in mix.classes}

        def keep(job: Job, now: float, _: str) -> None:
            if job.measured:
                rest = now - job.first
                rows[mix.classes[job.kind].name].append(
                    (job.first - job.arrived, rest / (job.osl - 1), now - job.arrived)
                )

        requests = islice(mix.arrivals(rate, asked.seed), asked.count)
        sent, ledger = SentLoad(asked.isl, asked.osl, most=int(mix.longest)), Ledger(RequestObjective(), keep)
        fleet = fleet_of(bearer.replica.predictor, bearer.replica.predictor, sent, Scheduler(by_class=True), ledger)
        Simulation(fleet, Source(requests, warmup=asked.filling), ledger).run()
        for name, seen in rows.items():
            assert [said.classes[name].value(each, None) for each in METRICS] == pytest.approx(
                np.mean(seen, 0).tolist(), rel=1e-3
            )


class TestFleets:
    @pytest.mark.parametrize(
        "classes",
        [
            (CHAT, LONG, CODE),
            (replace(CHAT, slo=_class("chat", 1, 1, 2, "p95 tpot<8.2ms").slo), replace(LONG, rate=30.0)),
        ],
    )
    def test_no_partition_is_cheaper(self, classes: tuple[TrafficClass, ...], tmp_path: Path) -> None:
        rows = ["name,rate,isl,osl,priority,slo"]
        for each in classes:
            slo = ", ".join(f"{o.statistic} {o.metric}<{o.limit * 1e3:g}ms" for o in each.slo)
            rows.append(f'{each.name},{each.rate},{each.isl.mean:g},{each.osl.mean:g},{each.priority},"{slo}"')
        answer = plan_classes(_file(tmp_path, "\n".join(rows), "c.csv"), MODEL, GPU, confidence=0.5, **ONE)

        def fewest(own: list[TrafficClass]) -> float:
            mix = Mix.of(own)
            bearer = _bearer(mix)
            for count in range(1, 200):
                seen = mix.seen(count)
                if not missed(bearer.feels(seen, mix.rate / count), mix.slo):
                    return count
            return math.inf

        named = {each.name: each for each in classes}
        brute = min(sum(fewest([named[name] for name in part]) for part in parts) for parts in partitions([*named]))
        assert answer.gpus == brute

    def test_every_objective_holds_and_the_answer_says_why(self, tmp_path: Path) -> None:
        chat = "chat: {rate: 70, isl: 400, osl: 60, slo: 'p95 ttft<1s, p95 tpot<30ms'}"
        text = f"{chat}\nlong: {{rate: 6, isl: 3000, osl: 30}}\n"
        answer = plan_classes(_file(tmp_path, text), MODEL, GPU, "p95 ttft<2s", **ONE)
        for each in answer.classes:
            for held in each.objectives:
                assert held.predicted_ms is not None
                assert held.within >= 0.95
                assert (held.probability or 0.0) >= 0.9
        assert "since" in answer.answer or "cost the same" in answer.answer

    @pytest.mark.parametrize("rate", [38.0, 42.0, 46.0, 50.0])
    def test_a_full_replica_has_probabilities(self, rate: float, tmp_path: Path) -> None:
        """Near what one bears, the slow end of its interval is more than it sustains."""
        text = f"chat: {{rate: {rate}, isl: 400, osl: 60, slo: 'p95 ttft<1s, p95 tpot<20ms'}}\n"
        (each,) = plan_classes(_file(tmp_path, text), MODEL, GPU, **ONE).classes
        assert all(0.9 <= (held.probability or 0.0) <= 1.0 for held in each.objectives)

    def test_classes_that_cannot_be_met_are_named(self, tmp_path: Path) -> None:
        text = "chat: {rate: 5, isl: 300, osl: 30}\nhasty: {rate: 5, isl: 300, osl: 30, slo: 'p95 ttft<1ms'}\n"
        answer = plan_classes(_file(tmp_path, text), MODEL, GPU, **ONE)
        assert answer.unmet == ("hasty",)
        assert "hasty cannot be met: no deployment meets hasty p95 TTFT <= 1 ms" in answer.answer
        with pytest.raises(InfeasibleError, match="hasty: no deployment"):
            plan_classes(_file(tmp_path, "hasty: {rate: 5, slo: 'p95 ttft<1ms'}\n"), MODEL, GPU, **ONE)

    def test_a_class_beyond_the_context_is_named_and_the_others_are_planned(self, tmp_path: Path) -> None:
        file = _file(tmp_path, "chat:\n  rate: 4\n  isl: 500\n  osl: 30\nbooks:\n  rate: 1\n  isl: 20000\n")
        plan = plan_classes(file, MODEL, **ONE)
        assert plan.unmet == ("books",)
        assert "books cannot be met: the longest request has 20,256 tokens" in plan.answer
        assert plan.fleets[0].classes == ("chat",)

    def test_an_interrupt_of_the_search_keeps_the_classes_that_have_a_fleet(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Ctrl-C while the pooled fleet is looked for: the separate ones are an answer, earlier there is none."""
        file = _file(tmp_path, "chat: {rate: 10, isl: 500, osl: 30}\ncode: {rate: 5, isl: 900, osl: 30}\n")
        calls: list[int] = []
        after = 3

        def stopped(*given: Any) -> Any:
            calls.append(1)
            if len(calls) == after:
                raise KeyboardInterrupt
            return search(*given)

        monkeypatch.setattr("rooflinekit.decision.planning.classes.search", stopped)
        plan = plan_classes(file, MODEL, **ONE)
        assert plan.interrupted
        assert [fleet.classes for fleet in plan.fleets] == [("chat",), ("code",)]
        after = len(calls) + 2
        with pytest.raises(KeyboardInterrupt):
            plan_classes(file, MODEL, **ONE)

    def test_several_models_share_hosts(self, tmp_path: Path) -> None:
        same = "isl: 300, osl: 30"
        text = f"small: {{rate: 20, {same}}}\nlarge: {{rate: 1, {same}, model: llama-3.3-70b}}\n"
        answer = plan_classes(_file(tmp_path, text), MODEL, GPU, **ONE | {"tp": [1, 4]})
        assert {each.model for each in answer.fleets} == {"llama-3-8b", "llama-3.3-70b"}
        (hosts,) = answer.hosts
        assert hosts.count * hosts.size == answer.gpus + hosts.spare
        assert hosts.count == -(-answer.gpus // hosts.size)

    @given(sizes=st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=30))
    @settings(max_examples=30, deadline=None)
    def test_replicas_of_powers_of_two_pack_without_loss(self, sizes: list[int]) -> None:
        replica = _bearer(Mix.of([CHAT])).replica
        plan = replica.resolved.plan
        parts = []
        for size in sizes:
            own = replace(plan, deployment=replace(plan.deployment, tp=size))
            resolved = replace(replica.resolved, predictor=replace(replica.predictor, plan=own))
            parts.append((f"TP{size}", Part(Bearer(replace(replica, resolved=resolved)), Ability(1.0, ()), 1)))
        (hosts,) = hosts_of(parts)
        assert hosts.count == -(-sum(sizes) // 8)
        assert hosts.spare == 8 * hosts.count - sum(sizes)


@pytest.fixture(scope="module")
def valleys() -> Valleys:
    """Chat by four hours of a day, and a job."""
    job = _class("job", 1.0, 1000, 30, requests=500_000.0, deadline_h=4.0, priority=2)
    chat = replace(CHAT, rate=60.0)
    peak = Mix.of([chat], peak=10.0 / 6.0)
    question = replace(read_question(MODEL, GPU, "p95 ttft<1s", {"rate": 60.0}), demand=peak, slo=peak.slo)
    part = question.part(_bearer(peak).replica)
    day = Profile("day", tuple(10.0 * rate for rate in DAY), (1.0,) * 4)
    return Valleys(question, part, Mix.of([chat, job]), day)


class TestValleys:
    @pytest.mark.slow
    def test_the_fewest_replicas_do_it_in_time(self, valleys: Valleys) -> None:
        count = valleys.replicas()
        assert count is not None
        assert valleys.in_time(count)
        assert count == valleys.part.working or not valleys.in_time(count - 1)
        hours, done = valleys.hours(count)
        assert sum(each.jobs.get("job", 0.0) * 3600.0 for each in hours) == pytest.approx(500_000.0)  # of an hour each
        assert done["job"] <= 4.0

    def test_objectives_hold_beside_the_job_and_fail_beside_more(self, valleys: Valleys) -> None:
        """Each of both ends is a play of its own, with its own draws of who comes when."""
        for rate in (0.4, 0.7):
            chat = rate * valleys.part.ability.load
            for more, holds in ((0.9, True), (1.2, False)):
                mix = valleys.at(chat, "job", more * valleys.free("job", chat))
                bearer = _bearer(mix)
                feels = bearer.feels(mix, mix.mean_load, exact=True)
                full = mix.mean_load > 0.95 * bearer.knee(mix)
                assert (not full and not missed(feels, mix.slo, valleys.question.deviations)) == holds

    def test_a_quiet_night_takes_more_of_it_than_the_peak(self, valleys: Valleys) -> None:
        top = valleys.part.ability.load
        free = [valleys.free("job", share * top) for share in (0.0, 0.4, 0.7, 0.9)]
        assert free == sorted(free, reverse=True)

    @pytest.mark.slow
    def test_pooled_with_a_profile_it_costs_no_more_than_two_fleets(self, tmp_path: Path) -> None:
        text = (
            "chat: {rate: 75, isl: 400, osl: 60, slo: 'p95 ttft<1s, p95 tpot<20ms'}\n"
            "job: {requests: 500000, deadline: 4h, isl: 1000, osl: 30}\n"
        )
        answer = plan_classes(_file(tmp_path, text), MODEL, GPU, profile=DAY, **ONE)
        best, other = answer.groupings
        assert best.fleets == "chat + job"
        assert best.gpus < other.gpus
        (job,) = (each for each in answer.classes if each.name == "job")
        assert job.priority == 1
        assert job.done_h is not None
        assert job.done_h <= 4.0


class TestFiles:
    def test_yaml_and_csv_say_the_same(self, tmp_path: Path) -> None:
        yaml = _file(
            tmp_path, "a: {rate: 2rps, isl: 500, osl_cv: 0.5, cached: 30%}\nb: {requests: 100, deadline: 2h}\n"
        )
        table = _file(
            tmp_path, "name;rate;isl;osl_cv;cached;requests;deadline\na;2rps;500;0.5;30%;;\nb;;;;;100;2h\n", "c.csv"
        )
        chat, job = read_classes(yaml, "p95 ttft<1s")
        assert (chat, job) == read_classes(table, "p95 ttft<1s")
        assert (chat.rate, job.rate) == (2.0, 100 / 7200)
        assert (chat.priority, job.priority) == (0, 1)  # a job comes after all that wait for answers

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("a: {rate: 2, ils: 3}\n", "nearest: isl"),
            ("a: {isl: 3}\n", "give rate"),
            ("a: {rate: 2, requests: 5}\n", "deadline"),
            ("a: {rate: 2, requests: 5, deadline: 1h}\n", "give rate"),
            ("a: {requests: 5, deadline: 1h, slo: 'ttft<1s'}\n", "deadline in place of objectives"),
            ("a: {rate: -2}\n", "rate"),
            ("a: {rate: 2, cached: 1.5}\n", "cached"),
            ("a: {rate: 2, slo: 'ttft<1'}\n", "no unit"),
            ("a: {rate: 2, osl: 1, slo: 'tpot<1s'}\n", "no TPOT"),
            ("a: 5\n", "not keys"),
            ("a: {rate: 2, model: nosuch}\n", "nosuch"),
        ],
    )
    def test_slips_are_one_line(self, text: str, says: str, tmp_path: Path) -> None:
        with pytest.raises((SpecError, InputError), match=says) as error:
            plan_classes(_file(tmp_path, text), MODEL, GPU, **ONE)
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize("key", ["rate", "trace", "isl", "growth", "sessions", "images"])
    def test_a_load_beside_the_classes_is_refused(self, key: str, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=f"{key} and classes exclude"):
            plan_classes(_file(tmp_path, "a: {rate: 2}\n"), MODEL, GPU, **ONE, **{key: "1"})

    def test_the_command_prints_all_formats(self, tmp_path: Path) -> None:
        short = "isl: 300, osl: 30"
        file = _file(tmp_path, f"a: {{rate: 2, {short}}}\nhasty: {{rate: 5, {short}, slo: 'p95 ttft<1ms'}}\n")
        words = ["plan", MODEL, "--classes", str(file), "--tp", "1", "--token-budget", "8192", "--max-num-seqs", "256"]
        printed = {kind: CliRunner().invoke(app, [*words, "--format", kind]) for kind in ("table", "json", "csv", "md")}
        assert {each.exit_code for each in printed.values()} == {3}  # one is not met
        assert json.loads(printed["json"].stdout)["unmet"] == ["hasty"]
        rows = pd.read_csv(io.StringIO(printed["csv"].stdout))
        assert list(rows["name"]) == ["a", "a", "hasty"]
        assert "cannot be met" in printed["table"].stdout
        assert printed["md"].stdout.startswith("#")
        frame = rk.plan_classes(file, MODEL, GPU, **ONE).to_frame()
        assert list(frame["name"]) == list(rows["name"])
        refused = CliRunner().invoke(app, [*words, "--max", "rate"])
        assert refused.exit_code == 2
