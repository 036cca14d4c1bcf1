"""Plans that can be signed: probabilities, evidence, whole traces, diverging queues, prices like for like."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import rooflinekit as rk
from rooflinekit.cli.app import app
from rooflinekit.decision.economics.price import quotes_of
from rooflinekit.decision.planning import confirm
from rooflinekit.decision.planning.confirm import play
from rooflinekit.decision.planning.demand import read_demand
from rooflinekit.decision.planning.fleet import (
    Ability,
    Option,
    Part,
    PrefillPool,
    Reserve,
    ability,
    lay_out,
    working_replicas,
)
from rooflinekit.decision.planning.objective import Felt, Objective, chance, missed, parse_objectives
from rooflinekit.decision.planning.plan import read_question
from rooflinekit.decision.planning.search import PlanQuestion, search
from rooflinekit.model.traffic.percentiles import Spread
from rooflinekit.model.types.errors import InfeasibleError, InputError, SpecError
from rooflinekit.report.document import Legend, Table
from rooflinekit.specs import load_accelerator

MODEL, SLO = "llama-3-8b", "p95 ttft<1s, p95 tpot<30ms"
QUICK: dict[str, Any] = {"isl": 1000, "osl": 150, "tp": [1], "disaggregated": False, "mixed": False}
PRICES = {"h100-sxm": 3.0, "mi300x": 1.0}


def _trace(path: Path, turn: float = 0.0) -> Path:
    """Six hours of which one is ten times as busy as the others; `turn` seconds of it are moved to the end."""
    draw, time, rows = random.Random(3), 0.0, []
    while time < 21_600.0:
        time += draw.expovariate(2.0 if 3600.0 * 4 < time < 3600.0 * 4 + 600.0 else 0.2)
        rows.append(((time - turn) % 21_600.0, 800 + draw.randrange(400), 100 + draw.randrange(100)))
    lines = [f"{at:.3f},{isl},{osl}" for at, isl, osl in sorted(rows)]
    path.write_text("\n".join(["time_s,isl,osl", *lines]) + "\n")
    return path


def test_a_trace_is_sized_for_its_peak_wherever_the_peak_stands(tmp_path: Path) -> None:
    late, early = (read_demand({"trace": _trace(tmp_path / f"{turn}.csv", turn)}, parse_objectives(SLO))
                   for turn in (0.0, 12_000.0))  # fmt: skip
    assert late.peak_load == pytest.approx(early.peak_load, rel=1e-3)
    assert 1.8 < late.peak_load < 2.6  # two requests a second in the busy ten minutes
    assert late.mean_load == pytest.approx(0.25, rel=0.1)
    (window, *_) = late.windows()
    assert 3600.0 * 4 - late.span_s < window.start < 3600.0 * 4 + 600.0


def test_the_best_plan_is_played_on_the_whole_trace_and_its_busiest_windows(tmp_path: Path) -> None:
    path = _trace(tmp_path / "trace.csv")
    answer = rk.plan(MODEL, "h100-sxm", SLO, trace=path, tp=[1], disaggregated=False, confirm=1)
    rows = len(path.read_text().splitlines()) - 1
    assert answer.best.simulated_requests == rows
    assert f"the whole trace of {rows:,} requests, and the busiest" in answer.answer
    assert "in the busiest" in answer.question


def test_a_queue_that_grows_is_never_agreed_with() -> None:
    """A fleet at 105 % of what its replica can serve; objectives that the short run would still meet."""
    slo = "p50 tpot<1s"
    question = read_question(MODEL, "h100-sxm", slo, {**QUICK, "rate": 1.0, "confidence": 0.5})
    demand = question.demand
    replica = lay_out(MODEL, "h100-sxm", {"tp": 1, "engine": "vllm", "max_num_seqs": 16}, demand, None)
    able = ability(replica, demand, ())
    for share, diverges in ((0.7, False), (1.3, True)):
        seen = read_demand({"rate": share * able.load, "isl": 1000, "osl": 150})
        asked = read_question(MODEL, "h100-sxm", slo, {**QUICK, "rate": seen.rate, "confidence": 0.5})
        played = play(Option("aggregated", (Part("serve", replica, able, 1),)), asked)
        assert played.diverges == diverges
        assert played.agrees != diverges


def test_confirmed_fleets_serve_what_is_offered_over_twenty_thousand_requests() -> None:
    """At 16 accelerators the queue of this question grows without end, which 2,000 requests did not show."""
    answer = rk.plan("llama-3.3-70b", "h100-sxm", "p95 ttft<2s, p95 tpot<200ms", rate=40, isl=1024, osl=256, tp=[4],
                     disaggregated=False, confirm=1, confidence=0.5)  # fmt: skip
    (fleet,) = answer.best.fleets
    outcome = rk.simulate(**fleet.scenario, isl=1024, osl=256, rate=fleet.load, requests=20_000)
    assert outcome.request_rate == pytest.approx(fleet.load, rel=0.02)
    assert (outcome.ttft_ms.p90 or math.inf) < 2000.0


def test_the_probability_is_that_of_the_interval() -> None:
    """Where the limit stands at the upper end of a 90 % interval, 5 % lie above; at the expected value half do."""
    plain = Felt({"tpot": 0.040}, Spread(float, float, float), spans={"tpot": (0.8, 1.25)})
    for limit, stated in ((0.032, 0.05), (0.040, 0.5), (0.050, 0.95)):
        assert chance(plain.stretched, Objective("tpot", None, limit)) == pytest.approx(stated, abs=2e-3)
    assert chance(Felt({"tpot": 0.04}, Spread(float, float, float)).stretched, Objective("tpot", None, 1.0)) is None
    assert missed(plain.stretched, [Objective("tpot", None, 0.045)], 1.0)
    assert not missed(plain.stretched, [Objective("tpot", None, 0.050)], 1.645)


def test_within_an_interval_errors_have_the_quantiles_that_were_seen():
    """The median stands a quarter of the way to the high end; a probability's factor has that probability."""
    inner = {"ttft": (-0.6, -0.1, 0.25, 0.5, 0.8)}
    plain = Felt({"ttft": 0.1}, Spread(float, float, float), spans={"ttft": (0.8, 2.0)}, inner=inner)
    for deviations, stated in ((-1.645, 0.05), (-1.2816, 0.1), (0.0, 0.5), (0.6745, 0.75), (1.2816, 0.9)):
        limit = 0.1 * plain.factor("ttft", deviations)
        assert chance(plain.stretched, Objective("ttft", None, limit)) == pytest.approx(stated, abs=2e-3)
    assert plain.factor("ttft", 0.0) == pytest.approx(2.0**0.25)
    assert plain.stretched(1.5).inner == inner


def test_first_tokens_of_shipped_engines_are_later_than_predicted_in_the_median():
    """On the rows that the ends are fitted to; TPOT is normal around what is expected."""
    demand = read_demand({"rate": 4.0, "isl": 1000, "osl": 100})
    for engine in ("vllm", "sglang", "trtllm"):
        felt = lay_out(MODEL, "h100-sxm", {"tp": 1, "engine": engine}, demand, None).feel(demand, 4.0)
        assert 1.0 < felt.factor("ttft", 0.0) < felt.spans["ttft"][1]
        assert felt.factor("tpot", 0.0) == pytest.approx(1.0, abs=1e-3)


def test_a_queue_without_an_objective_of_its_own_is_stable_too_where_steps_take_longer() -> None:
    demand = read_demand({"rate": 20.0, "isl": 1000, "osl": 150})
    pool = PrefillPool.of(lay_out(MODEL, "h100-sxm", {"tp": 1, "engine": "vllm"}, demand, None), demand)
    expected, sure = (ability(pool, demand, parse_objectives("p95 tpot<60ms"), z) for z in (0.0, 1.28))
    assert (expected.binds, sure.binds) == (("knee",), ("knee",))
    assert sure.load == pytest.approx(expected.load / pool.feel(demand, 1.0).factor("ttft", 1.28), rel=1e-3)


def test_more_confidence_never_takes_fewer_and_is_kept() -> None:
    answers = [rk.plan(MODEL, "h100-sxm", SLO, **QUICK, rate=60, confirm=1, confidence=c) for c in (0.5, 0.9, 0.99)]
    assert [a.best.gpus for a in answers] == sorted(a.best.gpus for a in answers)
    assert answers[0].best.gpus < answers[2].best.gpus
    for answer in answers:
        assert answer.best.confirmed
        for value in answer.best.probability.values():
            assert value is not None
            assert value >= answer.confidence - 5e-3
        spans = answer.best.interval or {}
        low, high = spans["p95_ttft_ms"]
        assert (low or math.inf) < (answer.best.latency("p95 TTFT") or 0.0) < (high or math.inf)
        assert set(spans) == {"ttft_ms", "tpot_ms", "p95_ttft_ms", "p95_tpot_ms"}
        errors = answer.best.simulated_error
        assert set(errors) == set(answer.slo)
        for name, error in errors.items():
            assert 0.0 < error < 0.25 * (answer.best.latency(name) or 0.0)
    assert answers[0].median is None
    median = answers[1].median
    assert median is not None
    assert median.gpus == answers[0].best.gpus
    assert median.gpus + median.confidence_gpus == answers[1].best.gpus
    assert "At 50 % it would be" in answers[1].answer or "the same at 50 %" in answers[1].answer
    bound = rk.plan(MODEL, "h100-sxm", SLO, **QUICK, rate=60, confirm=0, calibration="none")
    assert (bound.best.evidence, set(bound.best.probability.values()), bound.median) == ("datasheet", {None}, None)


def test_the_fleet_at_one_half_is_the_cheapest_and_not_the_best_made_smaller() -> None:
    """At 90 % two pools are cheapest, at 50 % one whole replica: asking for 50 % says so too."""
    asked: Any = {"rate": 4, "isl": 1000, "osl": 100, "confirm": 1}
    sure, even = (rk.plan("llama-3.3-70b", "h100-sxm", "p95 ttft<1s, p95 tpot<30ms", **asked, confidence=c)
                  for c in (0.9, 0.5))  # fmt: skip
    assert sure.best.kind != even.best.kind
    assert sure.median is not None
    assert (sure.median.gpus, sure.median.usd_per_hour) == (even.best.gpus, even.best.cost.usd_per_hour)
    assert sure.median.plan == f"{even.best.name} on {even.best.gpu}"
    assert f"{even.best.gpus} GPUs ({sure.median.plan})" in sure.answer


@pytest.fixture(scope="module")
def compared() -> rk.PlanAnswer:
    """An accelerator with measured kernels and a cheap one without."""
    return rk.plan(MODEL, list(PRICES), SLO, **QUICK, rate=40, prices=PRICES, confirm=1)


def test_the_fleet_at_one_half_may_have_pools_of_other_splits() -> None:
    """Decode replicas of one GPU are enough at 50 %, and no pool of the plan for 90 %."""
    asked = {"rate": 60.0, "isl": 1000, "osl": 200, "tp": [1, 2], "ep": [1], "dp": [1], "confirm": 1}
    sure, half = (rk.plan("gpt-oss-20b", "h100-sxm", "p95 ttft<1s, p95 tpot<15ms", **asked, confidence=confidence)
                  for confidence in (0.9, 0.5))  # fmt: skip
    assert sure.best.gpus > half.best.gpus
    assert sure.median is not None
    assert sure.median.gpus == half.best.gpus


def test_what_is_not_measured_stands_apart_and_says_when_it_would_win(compared: rk.PlanAnswer) -> None:
    levels = [each.evidence for each in compared.candidates]
    assert levels == sorted(levels, key=("measured", "stand-in", "datasheet").index)
    assert (levels[0], levels[-1]) == ("measured", "stand-in")
    (sentence,) = compared.stand_ins
    assert "mi300x (stand-in) wins with" in sentence
    alone = rk.plan(MODEL, list(PRICES), SLO, **QUICK, rate=40, prices=PRICES, confirm=0, measured_only=True)
    assert {each.gpu for each in alone.candidates} == {"h100-sxm"}
    assert any("kernels are not measured" in each.why for each in alone.refused)
    with pytest.raises(InfeasibleError, match="measured_only leaves no deployment of llama-3-8b; mi300x"):
        rk.plan(MODEL, "mi300x", SLO, **QUICK, rate=40, confirm=0, measured_only=True)
    frame = compared.to_frame()
    assert list(frame["evidence"]) == levels
    assert {"probability", "probability p95 TTFT <= 1 s", "binding"} <= set(frame.columns)


def test_an_accelerator_whose_kernels_are_measured_in_one_split_is_no_stand_in() -> None:
    """Collectives of L40S are not measured, so that larger splits stand apart; one GPU alone is."""
    slow = "p95 ttft<1s, p95 tpot<40ms"  # one L40S takes 31 ms
    answer = rk.plan(MODEL, ["h100-sxm", "l40s"], slow, **QUICK | {"tp": [1, 4]}, rate=20, confirm=0)
    assert {each.evidence for each in answer.candidates if each.gpu == "l40s"} == {"measured", "stand-in"}
    assert answer.stand_ins == ()


def test_the_objective_at_risk_and_the_evidence_stay_at_80_columns() -> None:
    done = CliRunner().invoke(app, [
        "plan", MODEL, "--gpu", "h100-sxm,a100-sxm-80gb,mi300x", "--rate", "400", "--isl", "1000", "--osl", "150",
        "--tp", "1", "--confirm", "1", "--slo", "p95 ttft<1s", "--slo", "p95 tpot<30ms",
    ])  # fmt: skip
    (head,) = [line for line in done.stdout.splitlines() if "replicas" in line and "gpu" in line]
    assert all(f" {column}" in head for column in ("evidence", "at risk", "holds"))
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert done.stdout.splitlines()[1] == "p95 TTFT <= 1 s, p95 TPOT <= 30 ms"


def test_the_legend_of_a_column_goes_with_the_column() -> None:
    table = Table(["gpu", "load"], [["h100-sxm", "70%"]], drop=(1,))
    legend = Legend(table, "Below.", {1: "Load: of a replica."})
    assert legend.text(80) == ["Below. Load: of a replica."] == legend.markdown()
    assert legend.text(10) == ["Below."]


def test_a_large_step_to_what_agrees_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps from the formula's fleet by nine, of which the simulation wants six more: the answer is near it."""
    asked = {"rate": 40.0, "isl": 1000, "osl": 200, "tp": [1], "disaggregated": False, "confirm": 1}
    question = read_question("llama-3-8b", "h100-sxm", "p95 ttft<1s, p95 tpot<40ms", asked)
    found = search(question)
    needs, tried = found.options[0].replicas + 6, []

    def simulation(option: Option, _: PlanQuestion, whole: bool = False) -> confirm.Played:
        tried.append(option.replicas)
        return confirm.Played(Felt({}, confirm._NOTHING), 1, () if option.replicas >= needs else question.slo)

    monkeypatch.setattr(confirm, "play", simulation)
    monkeypatch.setattr(confirm, "stressed", lambda *_: False)
    monkeypatch.setattr(confirm, "enough", lambda option, *_: option.grown(9))
    best = confirm.ranked(question, found)[0]
    assert best.played is not None
    assert best.played.agrees
    assert max(tried) == needs + 3
    assert needs <= best.option.replicas < needs + 3
    assert best.formula_gpus == needs - 6


def test_of_fleets_at_one_cost_the_surer_stands_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is simulated with steps as long as the confidence asks for, as the plan that it is."""
    asked = {"rate": 60.0, "isl": 1000, "osl": 200, "tp": [1, 2, 4], "disaggregated": False, "confirm": 3}
    question = read_question("llama-3-8b", "h100-sxm", "p95 ttft<1s, p95 tpot<60ms", asked)
    found, strained = search(question), list[float]()
    most = math.lcm(*(option.parts[0].replica.gpus for option in found.options)) * 8
    found.options[:] = [each.grown((most - each.gpus) // each.parts[0].replica.gpus) for each in found.options]
    assert {option.gpus for option in found.options} == {most}
    sure = {option.parts[0].replica.gpus: 0.91 + 0.02 * place for place, option in enumerate(found.options)}
    assert len(sure) > 1

    def surety(option: Option) -> float:
        return sure[option.parts[0].replica.gpus]

    def simulation(option: Option, *_: Any, **__: Any) -> confirm.Played:
        chances = {question.slo[0]: surety(option), question.slo[1]: 0.99}
        return confirm.Played(Felt({}, confirm._NOTHING), 1, (), chances=chances)

    def seen(option: Option, *_: Any) -> bool:
        strained.append(surety(option))
        return False

    monkeypatch.setattr(confirm, "play", simulation)
    monkeypatch.setattr(confirm, "stressed", seen)
    told = [surety(entry.option) for entry in confirm.ranked(question, found) if entry.played]
    assert len(told) > 1
    assert told == sorted(told, reverse=True)
    assert told[0] in strained


def test_objectives_add_up_and_one_thing_has_one_limit() -> None:
    both = parse_objectives(["p95 ttft<1s", "p95 tpot<30ms", "p95 ttft<1s"])
    assert list(map(str, both)) == ["p95 TTFT <= 1 s", "p95 TPOT <= 30 ms"]
    with pytest.raises(InputError, match="twice"):
        rk.plan(MODEL, "h100-sxm", ["p95 ttft<1s", "p95 ttft<2s"], rate=5)


def test_an_absurd_fleet_is_refused() -> None:
    with pytest.raises(InfeasibleError, match=r"takes [\d,]+ h100-sxm, more than 10,000"):
        rk.plan(MODEL, "h100-sxm", SLO, **QUICK, rate=500_000, confirm=0)
    with pytest.raises(InfeasibleError, match=r"takes [\d,]+ h100-sxm, more than 10,000"):
        rk.plan(MODEL, "h100-sxm", SLO, rate=500_000, isl=1000, osl=150, tp=[1], confirm=0)
    with pytest.raises(
        InfeasibleError, match="tp4 vllm takes"
    ):  # the split that takes least, not the first that is tried
        rk.plan("llama-3.1-70b", "h100-sxm", "p95 ttft<2s, p95 tpot<50ms", rate=100_000, isl=2000, osl=300, tp=[2, 4],
                disaggregated=False, confirm=0)  # fmt: skip
    vast = rk.plan(MODEL, "h100-sxm", SLO, **QUICK, rate=500_000, confirm=0, limits={"h100-sxm": 100_000})
    assert vast.best.gpus > 10_000


def test_what_no_price_buys_names_the_best_there_is_and_what_binds() -> None:
    with pytest.raises(
        InfeasibleError, match=r"at any price; .*at best p95 TPOT reaches [\d.]+ ms on .* where \w+ takes"
    ):
        rk.plan(MODEL, "h100-sxm", "p95 tpot<1ms", **QUICK, rate=5)


def test_prices_are_like_for_like(tmp_path: Path) -> None:
    path = tmp_path / "prices.csv"
    head = "name,term,low,high,source\n"
    path.write_text(
        head + "h100,on demand,2,3,Acme\nh100,3 years,1.5,1.7,Acme\nmi300x,3 years,1,1.2,Acme\nl40s,spot,1,1,B\n"
    )
    gpus = [load_accelerator(name).value for name in ("h100-sxm", "mi300x")]
    quotes = quotes_of(gpus, str(path))
    hour = quotes.hourly["h100-sxm"]
    assert hour is not None
    assert (hour.usd_per_gpu_hour, hour.low, hour.high, hour.term, hour.source) == (1.6, 1.5, 1.7, "3 years", "Acme")
    assert quotes.notes == ("the price of l40s is not used", "prices of other terms are not used: h100-sxm on demand")
    both = quotes_of(gpus[:1], str(path))  # two terms, and nothing else to compare: that on demand
    assert (both.hourly["h100-sxm"] or hour).term == "on demand"
    assert "prices of other terms are not used: h100-sxm 3 years" in both.notes
    mixed = quotes_of(gpus, {"h100-sxm": 2.0})
    assert "not like for like, an hour: h100-sxm given $2, mi300x a catalogue quote $1.85" in mixed.notes[0]
    with pytest.raises(InputError, match=r"no one term is common.*say in a column commitment"):
        quotes_of([load_accelerator(name).value for name in ("h100-sxm", "l40s")], path)
    for text, says in (
        ("x,1\n", "needs the columns"),
        (head + "h100,a,3,2,B\n", "line 2: low 3 is above high 2"),
        (head + "h100,a,x,2,B\n", "line 2"),
        (head + "h100,,1,2,B\nh100,,1,2,B\n", "a price already"),
    ):
        path.write_text(text)
        with pytest.raises(SpecError, match=says):
            quotes_of(gpus, path)
    with pytest.raises(SpecError, match="no such file"):
        quotes_of(gpus, tmp_path / "none.csv")


def test_an_unused_price_is_a_note_and_a_file_prices_a_plan(tmp_path: Path) -> None:
    path = tmp_path / "prices.csv"
    path.write_text("name,term,low,high,source\nh100,1 year,2,3,Acme\nb200,1 year,4,5,Acme\n")
    run = CliRunner().invoke(app, ["plan", MODEL, "--rate", "5", "--tp", "1", "--confirm", "0", "--price", str(path)])
    assert run.exit_code == 0
    assert "h100-sxm: $2.5 a GPU-hour (1 year, Acme, quotes from $2 to $3)" in " ".join(run.stdout.split())
    assert "the price of b200-sxm is not used" in run.stdout
    other = CliRunner().invoke(app, ["cost", MODEL, "--price", "h200=2"])
    assert (other.exit_code, "the price of h200-sxm is not used" in other.stdout) == (0, True)


def test_a_price_file_works_in_every_command_that_prices(tmp_path: Path) -> None:
    path = tmp_path / "prices.csv"
    path.write_text("name,term,low,high,source\nh100,1 year,2,4,Acme\n")
    csv, bare = ["--price", str(path)], ["--price", "3"]
    for words in (["sweep", MODEL, "--batch", "1,2", "--format", "csv"],
                  ["levers", MODEL, "--gpus", "a10", "--format", "csv"]):  # fmt: skip
        ends = [CliRunner().invoke(app, [*words, *price]).stdout.splitlines() for price in (csv, bare)]
        assert [line.count(",") for line in ends[0]] == [line.count(",") for line in ends[1]]
        assert "usd" in ends[0][0]
        assert ends[0][1].split(",")[:12] == ends[1][1].split(",")[:12]
    costs = [CliRunner().invoke(app, ["cost", MODEL, *price]) for price in (csv, bare)]
    assert "$3.00 an hour: 1 x $3.00 (Acme)" in costs[0].stdout
    assert [each.exit_code for each in costs] == [0, 0]


def test_an_interrupt_keeps_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*told: Any, **more: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(confirm, "play", interrupted)
    done = CliRunner().invoke(app, ["plan", MODEL, "--rate", "5", "--tp", "1", "--isl", "1000"])
    assert done.exit_code == 130
    assert "interrupted: 0 candidates were simulated" in done.stdout
    assert "It was not simulated" in " ".join(done.stdout.split())


def test_a_trace_of_one_request_is_no_rate(tmp_path: Path) -> None:
    path = tmp_path / "one.csv"
    path.write_text("time_s,isl,osl\n3,100,10\n")
    with pytest.raises(InputError, match=r"one\.csv: all requests come at one moment"):
        rk.plan(MODEL, "h100-sxm", SLO, trace=path)


def test_what_a_load_loses_to_rounding_takes_no_replica_more():
    rounded = Ability(5.0 * (1.0 - 3e-11), ())  # 50 a second over it are 10.0000000003 replicas
    assert working_replicas(rounded, read_demand({"rate": 50}), Reserve()) == 10
