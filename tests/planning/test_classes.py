"""Classes of requests on one fleet or several: identities of the mix, brute force, the simulator, valleys, hosts."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import rooflinekit as rk
from rooflinekit.cli.app import app
from rooflinekit.decision.planning.classes import Valleys, partitions, plan_classes
from rooflinekit.decision.planning.confirm import play
from rooflinekit.decision.planning.cost import hosts_of
from rooflinekit.decision.planning.demand import read_demand
from rooflinekit.decision.planning.fleet import Ability, Option, Part, Replica, ability, lay_out, working_replicas
from rooflinekit.decision.planning.mix import Mix, Mixed, TrafficClass, read_classes
from rooflinekit.decision.planning.objective import Felt, missed, parse_objectives
from rooflinekit.decision.planning.plan import read_question
from rooflinekit.decision.planning.profile import Profile
from rooflinekit.decision.planning.search import search
from rooflinekit.load.lengths import Fixed, LogNormal, Uniform
from rooflinekit.model.types.errors import InfeasibleError, InputError, SpecError

MODEL, GPU = "llama-3-8b", "h100-sxm"
ONE: dict[str, Any] = {"prices": 3.0, "tp": [1], "token_budgets": [8192], "max_num_seqs": [256], "confirm": 0}
SCENARIO: dict[str, Any] = {"tp": 1, "engine": "vllm", "token_budget": 8192, "max_num_seqs": 256}
DAY = [10.0, 4.0, 2.0, 8.0]


def _class(name: str, rate: float, isl: int, osl: int, slo: str = "", **more: Any) -> TrafficClass:
    objectives = tuple(replace(each, of=name) for each in parse_objectives(slo)) if slo else ()
    return TrafficClass(name, rate, Fixed(isl), Fixed(osl), slo=objectives, **more)


CHAT = _class("chat", 30.0, 800, 200, "p95 ttft<1s, p95 tpot<20ms")
LONG = _class("long", 4.0, 6000, 100, "p95 ttft<3s, p95 tpot<50ms", priority=1)
CODE = _class("code", 12.0, 1500, 40, "p95 ttft<400ms")


def _replica(mix: Mix) -> Replica:
    return lay_out(MODEL, GPU, SCENARIO, mix, None)


def _felt(mix: Mix, load: float) -> Felt:
    return _replica(mix).feel(mix, load)


def _file(folder: Path, text: str, name: str = "classes.yaml") -> Path:
    (file := folder / name).write_text(text, encoding="utf-8")
    return file


class TestMix:
    def test_one_class_is_the_plain_traffic(self) -> None:
        mix = Mix.of([replace(CHAT, isl=LogNormal(800.0, 0.7), slo=())])
        plain = replace(read_demand({"rate": 30.0, "osl": 200}), isl=LogNormal(800.0, 0.7))
        alone = lay_out(MODEL, GPU, SCENARIO, plain, None).feel(plain, 8.0)
        mine = _felt(mix, 8.0).classes["chat"]
        for metric in ("ttft", "tpot", "e2el"):
            for share in (None, 0.5, 0.95):
                assert mine.value(metric, share) == pytest.approx(alone.value(metric, share), rel=1e-6)

    def test_a_class_cut_in_two_changes_nothing(self) -> None:
        whole = _felt(Mix.of([CHAT, LONG]), 8.0)
        cut = Mix.of([replace(CHAT, rate=10.0), replace(CHAT, name="more", rate=20.0, slo=()), LONG])
        parts = _felt(cut, 8.0)
        for one, other in (("chat", "chat"), ("chat", "more"), ("long", "long")):
            for metric in ("ttft", "tpot", "e2el"):
                assert parts.classes[other].value(metric, 0.95) == pytest.approx(
                    whole.classes[one].value(metric, 0.95), rel=1e-6
                )

    def test_the_mean_over_classes_is_that_of_all_requests(self) -> None:
        mix = Mix.of([CHAT, LONG, CODE])
        felt = _felt(mix, 12.0)
        for metric in ("ttft", "e2el"):
            mean = mix.mean([felt.classes[each.name].means[metric] for each in mix.classes])
            late = mean - felt.means[metric]  # the step under way, which is more often a long one
            assert 0.0 <= late < 0.2 * felt.means["ttft"]

    @pytest.mark.parametrize("load", [8.0, 14.0])
    def test_who_is_served_first_waits_less_and_the_work_that_waits_stays(self, load: float) -> None:
        first, last = Mix.of([CHAT, LONG]), Mix.of([CHAT, replace(LONG, priority=0)])
        ordered, plain = _felt(first, load), _felt(last, load)
        assert ordered.classes["chat"].means["ttft"] < plain.classes["chat"].means["ttft"]
        assert ordered.classes["long"].means["ttft"] > plain.classes["long"].means["ttft"]
        shared = [curve(8.0).share.expected for curve in _replica(first).times.classes]  # type: ignore[attr-defined]
        gained = sum(
            share * float(work) * (ordered.classes[each.name].means["ttft"] - plain.classes[each.name].means["ttft"])
            for share, work, each in zip(first.shares, shared, first.classes, strict=True)
        )
        waits = plain.classes["chat"].means["ttft"] * float(shared[0])
        assert abs(gained) < 0.02 * waits  # Kleinrock's conservation law

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
        mix = Mix.of([CHAT, LONG, replace(CODE, cached=0.5)])
        replica = _replica(mix)
        one = mix.at({each.name: share * load * replica.knee(mix)
                      for each, share in zip(mix.classes, mix.shares, strict=True)})  # fmt: skip
        question = replace(read_question(MODEL, GPU, "p95 ttft<1s", {"rate": 1.0}), demand=one, slo=one.slo)
        option = Option("aggregated", (Part("serve", replica, Ability(one.mean_load, ()), 1),))
        played, said = play(option, question), option.feels(one)(1.0)
        assert not played.diverges
        for name, seen in played.felt.classes.items():
            for metric, close in (("ttft", 0.2), ("tpot", 0.13), ("e2el", 0.13)):
                assert said.classes[name].means[metric] == pytest.approx(seen.means[metric], rel=close), (name, metric)


class TestFleets:
    @pytest.mark.parametrize(
        "classes",
        [
            (CHAT, LONG, CODE),
            (replace(CHAT, rate=5.0), replace(LONG, rate=1.0), replace(CODE, rate=3.0)),
            (replace(CHAT, slo=_class("chat", 1, 1, 2, "p95 tpot<9ms").slo), replace(LONG, rate=20.0)),
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
            replica = _replica(mix)
            for count in range(1, 200):
                feels = lambda factor, n=count: replica.feel(mix, mix.rate / n)  # noqa: E731
                if not missed(feels, mix.slo):
                    return count
            return math.inf

        named = {each.name: each for each in classes}
        brute = min(sum(fewest([named[name] for name in part]) for part in parts) for parts in partitions([*named]))
        assert answer.gpus == brute

    def test_the_simulation_agrees_and_says_why(self, tmp_path: Path) -> None:
        chat = "chat: {rate: 20, isl: 800, osl: 100, slo: 'p95 ttft<1s, p95 tpot<30ms'}"
        text = f"{chat}\nlong: {{rate: 2, isl: 4000, osl: 50}}\n"
        answer = plan_classes(_file(tmp_path, text), MODEL, GPU, "p95 ttft<2s", **(ONE | {"confirm": 1}))
        assert answer.groupings[0].simulated
        for each in answer.classes:
            for held in each.objectives:
                assert held.simulated_ms is not None
                assert held.within >= 0.95
                assert (held.probability or 0.0) >= 0.89
        assert "since" in answer.answer or "cost the same" in answer.answer

    def test_classes_that_cannot_be_met_are_named(self, tmp_path: Path) -> None:
        text = "chat: {rate: 5}\nhasty: {rate: 5, slo: 'p95 ttft<1ms'}\n"
        answer = plan_classes(_file(tmp_path, text), MODEL, GPU, **ONE)
        assert answer.unmet == ("hasty",)
        assert "hasty cannot be met: no deployment meets hasty p95 TTFT <= 1 ms" in answer.answer
        with pytest.raises(InfeasibleError, match="hasty: no deployment"):
            plan_classes(_file(tmp_path, "hasty: {rate: 5, slo: 'p95 ttft<1ms'}\n"), MODEL, GPU, **ONE)

    def test_a_class_beyond_the_context_is_named_and_the_others_are_planned(self, tmp_path: Path) -> None:
        file = _file(tmp_path, "chat:\n  rate: 4\n  isl: 500\nbooks:\n  rate: 1\n  isl: 20000\n")
        plan = plan_classes(file, MODEL, **ONE)
        assert plan.unmet == ("books",)
        assert "books cannot be met: the longest request has 20,256 tokens" in plan.answer
        assert plan.fleets[0].classes == ("chat",)

    @pytest.mark.parametrize("after", [1, 2, 3])
    def test_an_interrupt_keeps_what_was_simulated(
        self, after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Ctrl-C in the first, second or third simulation, with and without jobs in the valleys of a profile."""
        calls: list[int] = []

        def stopped(*given: Any, **more: Any) -> Any:
            calls.append(1)
            if len(calls) == after:
                raise KeyboardInterrupt
            return play(*given, **more)

        for module in ("confirm", "classes"):
            monkeypatch.setattr(f"rooflinekit.decision.planning.{module}.play", stopped)
        file = _file(tmp_path, "chat:\n  rate: 10\n  isl: 500\n  osl: 60\nbatch:\n  requests: 90000\n  deadline: 4h\n"
                               "  isl: 500\n  osl: 60\n")  # fmt: skip
        plan = plan_classes(file, MODEL, **ONE | {"confirm": 1, "profile": DAY})
        assert plan.interrupted
        assert len(calls) == after
        assert plan.gpus
        assert any("interrupted" in each for each in plan.warnings)

    def test_an_interrupt_of_the_search_keeps_the_classes_that_have_a_fleet(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Ctrl-C while the pooled fleet is looked for: the separate ones are an answer, earlier there is none."""
        file = _file(tmp_path, "chat:\n  rate: 10\n  isl: 500\ncode:\n  rate: 5\n  isl: 900\n")
        calls: list[int] = []
        after = 3

        def stopped(*given: Any) -> Any:
            calls.append(1)
            if len(calls) == after:
                raise KeyboardInterrupt
            return search(*given)

        monkeypatch.setattr("rooflinekit.decision.planning.classes.search", stopped)
        plan = plan_classes(file, MODEL, **ONE | {"confirm": 1})
        assert plan.interrupted
        assert [fleet.classes for fleet in plan.fleets] == [("chat",), ("code",)]
        assert plan.fleets[0].candidate.simulated is None
        after = len(calls) + 2
        with pytest.raises(KeyboardInterrupt):
            plan_classes(file, MODEL, **ONE)

    def test_several_models_share_hosts(self, tmp_path: Path) -> None:
        text = "small: {rate: 20}\nlarge: {rate: 1, model: llama-3.3-70b}\n"
        answer = plan_classes(_file(tmp_path, text), MODEL, GPU, confirm=0, prices=3.0)
        assert {each.model for each in answer.fleets} == {"llama-3-8b", "llama-3.3-70b"}
        (hosts,) = answer.hosts
        assert hosts.count * hosts.size == answer.gpus + hosts.spare
        assert hosts.count == -(-answer.gpus // hosts.size)

    @given(sizes=st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=30))
    @settings(max_examples=30, deadline=None)
    def test_replicas_of_powers_of_two_pack_without_loss(self, sizes: list[int]) -> None:
        replica = _replica(Mix.of([CHAT]))
        plan = replica.resolved.plan
        parts = []
        for size in sizes:
            own = replace(plan, deployment=replace(plan.deployment, tp=size))
            resolved = replace(replica.resolved, predictor=replace(replica.predictor, plan=own))
            parts.append((f"TP{size}", Part("serve", replace(replica, resolved=resolved), Ability(1.0, ()), 1)))
        (hosts,) = hosts_of(parts)
        assert hosts.count == -(-sum(sizes) // 8)
        assert hosts.spare == 8 * hosts.count - sum(sizes)


@pytest.fixture(scope="module")
def valleys() -> Valleys:
    """Chat by four hours of a day, and a job."""
    job = _class("job", 1.0, 2000, 100, requests=300_000.0, deadline_h=4.0, priority=2)
    peak = Mix.of([replace(CHAT, rate=6.0)], peak=10.0 / 6.0)
    question = replace(read_question(MODEL, GPU, "p95 ttft<1s", {"rate": 6.0}), demand=peak, slo=peak.slo)
    replica = _replica(peak)
    able = ability(replica, peak, peak.slo, question.deviations)
    part = Part("serve", replica, able, working_replicas(able, peak, question.reserve))
    return Valleys(question, part, Mix.of([replace(CHAT, rate=6.0), job]), Profile("day", tuple(DAY), (1.0,) * 4))


class TestValleys:
    def test_the_fewest_replicas_do_it_in_time(self, valleys: Valleys) -> None:
        count = valleys.replicas()
        assert count is not None
        assert valleys.in_time(count)
        assert count == valleys.part.working or not valleys.in_time(count - 1)
        hours, done = valleys.hours(count)
        assert sum(each.jobs.get("job", 0.0) * each.hours * 3600.0 for each in hours) == pytest.approx(300_000.0)
        assert done["job"] <= 4.0

    def test_objectives_hold_beside_the_job_and_fail_beside_more(self, valleys: Valleys) -> None:
        count = valleys.replicas() or 0
        for rate in (0.4, 0.7):
            chat = rate * valleys.part.ability.load
            for more, holds in ((0.97, True), (1.1, False)):
                mix = valleys.at(chat, "job", more * valleys.free("job", chat))
                replica = valleys.replica(mix)

                def feels(factor: float, mix: Mix = mix, replica: Replica = replica) -> Felt:
                    return replica.feel(mix, mix.mean_load * factor).stretched(factor)

                full = mix.mean_load > 0.95 * replica.knee(mix)
                assert (not full and not missed(feels, mix.slo, valleys.question.deviations)) == holds
        assert count >= valleys.part.working

    def test_a_quiet_night_takes_more_of_it_than_the_peak(self, valleys: Valleys) -> None:
        top = valleys.part.ability.load
        free = [valleys.free("job", share * top) for share in (0.0, 0.4, 0.7, 0.9)]
        assert free == sorted(free, reverse=True)

    def test_pooled_with_a_profile_it_costs_no_more_than_two_fleets(self, tmp_path: Path) -> None:
        text = (
            "chat: {rate: 25, isl: 800, osl: 200, slo: 'p95 ttft<1s, p95 tpot<20ms'}\n"
            "job: {requests: 300000, deadline: 4h, isl: 2000, osl: 100}\n"
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
        assert read_classes(yaml, "p95 ttft<1s") == read_classes(table, "p95 ttft<1s")

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
        file = _file(tmp_path, "a: {rate: 2}\nhasty: {rate: 5, slo: 'p95 ttft<1ms'}\n")
        words = ["plan", MODEL, "--classes", str(file), "--tp", "1", "--confirm", "0", "--token-budget", "8192"]
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
