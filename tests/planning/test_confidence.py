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
from rooflinekit.decision.planning import search
from rooflinekit.decision.planning.demand import read_demand
from rooflinekit.decision.planning.fleet import (
    Ability,
    Bearer,
    Option,
    Part,
    Reserve,
    ability,
    joined,
    lay_out,
    working_replicas,
)
from rooflinekit.decision.planning.objective import Ends, Felt, Objective, chance, missed, parse_objectives
from rooflinekit.decision.planning.plan import read_question
from rooflinekit.decision.planning.replay import replay
from rooflinekit.model.types.errors import InfeasibleError, InputError, SpecError
from rooflinekit.report.document import CellTable, Legend
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
    answer = rk.plan(MODEL, "h100-sxm", SLO, trace=path, tp=[1], disaggregated=False)
    rows = len(path.read_text().splitlines()) - 1
    assert answer.best.requests == rows
    assert f"the whole trace of {rows:,} requests, and the busiest" in answer.best.played
    assert "in the busiest" in answer.question


def test_a_queue_that_grows_is_never_agreed_with(tmp_path: Path) -> None:
    """A trace at 70 and 130 % of what its replica can serve; an objective that the short run would still meet."""
    for share, diverges in ((0.7, False), (1.3, True)):
        load = read_demand({"rate": 1.0, "isl": 1000, "osl": 150})
        replica = lay_out(MODEL, "h100-sxm", {"tp": 1, "engine": "vllm", "max_num_seqs": 16}, load, None)
        rate = share * ability(Bearer(replica), load, ()).load
        draw, time, path = random.Random(3), 0.0, tmp_path / f"{share}.csv"
        rows = [f"{(time := time + draw.expovariate(rate)):.4f},1000,150" for _ in range(4000)]
        path.write_text("\n".join(["time_s,isl,osl", *rows]) + "\n")
        asked = {key: value for key, value in QUICK.items() if key not in ("isl", "osl")}
        question = read_question(MODEL, "h100-sxm", "p50 tpot<1s", {**asked, "trace": path, "confidence": 0.5})
        played = replay(Option("aggregated", (Part(Bearer(replica), Ability(rate, ()), 1),)), question)
        assert played.diverges == diverges
        assert played.agrees != diverges


def test_fleets_serve_what_is_offered_over_twenty_thousand_requests() -> None:
    """Behind the same router: the fleet holds, and with one replica less it does not."""
    asked: dict[str, Any] = {"isl": 1024, "osl": 256}
    answer = rk.plan("llama-3.3-70b", "h100-sxm", "p95 ttft<2s, p95 tpot<40ms", rate=40, tp=[4], disaggregated=False,
                     confidence=0.5, **asked)  # fmt: skip
    (fleet,) = answer.best.fleets
    runs = [rk.simulate(**fleet.scenario, **asked, rate=40.0, requests=20_000, warmup=2000, replicas=count)
            for count in (fleet.replicas, fleet.replicas - 1)]  # fmt: skip
    assert (runs[0].tpot_ms.p95 or math.inf) < 40.0 * 1.02
    assert (runs[0].ttft_ms.p95 or math.inf) < 2000.0
    assert (runs[1].tpot_ms.p95 or math.inf) > 40.0 * 0.98


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_decode_pools_are_as_in_simulate(engine: str) -> None:
    """Prompts come computed: no step of theirs lengthens those that decode. One replica fewer has no room for all."""
    asked: dict[str, Any] = {"rate": 40.0, "isl": 2000, "osl": 400, "tp": 4, "engine": engine, "calibration": "none"}
    answer = rk.plan("llama-3.3-70b", "h100-sxm", "p95 ttft<2s, p95 tpot<30ms", **asked | {"tp": [4]})
    prefill, decode = next(each for each in answer.candidates if each.kind == "disaggregated").fleets
    fewer, as_many = (
        rk.simulate("llama-3.3-70b", "h100-sxm", **asked, max_model_len=2560, prefill_replicas=prefill.replicas,
                    replicas=count, requests=6000, warmup=1200) for count in (decode.replicas - 1, decode.replicas)
    )  # fmt: skip
    said = answer.best.predicted["tpot_ms"]["mean"]
    assert as_many.tpot_ms.mean == pytest.approx(said, rel=0.05)
    assert as_many.tpot_ms.p95 <= 30.0 < fewer.tpot_ms.p95


def test_the_probability_is_that_of_the_interval() -> None:
    """Where the limit stands at the upper end of a 90 % interval, 5 % lie above; at the expected value half do."""
    plain = Felt(lambda *_: 0.040, ends={"tpot": Ends((0.8, 1.25))})
    for limit, stated in ((0.032, 0.05), (0.040, 0.5), (0.050, 0.95)):
        assert chance(plain.stretched, Objective("tpot", None, limit)) == pytest.approx(stated, abs=2e-3)
    assert chance(Felt(lambda *_: 0.04).stretched, Objective("tpot", None, 1.0)) is None
    assert missed(plain.stretched, [Objective("tpot", None, 0.045)], 1.0)
    assert not missed(plain.stretched, [Objective("tpot", None, 0.050)], 1.645)


def test_within_an_interval_errors_have_the_quantiles_that_were_seen():
    """The median stands a quarter of the way to the high end; a probability's factor has that probability."""
    ends = Ends((0.8, 2.0), inner=(-0.6, -0.1, 0.25, 0.5, 0.8))
    plain = Felt(lambda *_: 0.1, ends={"ttft": ends})
    for deviations, stated in ((-1.645, 0.05), (-1.2816, 0.1), (0.0, 0.5), (0.6745, 0.75), (1.2816, 0.9)):
        limit = 0.1 * plain.factors("ttft", deviations)[0]
        assert chance(plain.stretched, Objective("ttft", None, limit)) == pytest.approx(stated, abs=2e-3)
    assert plain.factors("ttft", 0.0) == (pytest.approx(2.0**0.25), 1.0)
    assert plain.stretched(1.5).ends == {"ttft": ends}


def test_first_tokens_of_shipped_engines_are_later_than_predicted_in_the_median():
    """On the rows that the errors are fitted to; TPOT errs to both sides."""
    demand = read_demand({"rate": 4.0, "isl": 1000, "osl": 100})
    for engine in ("vllm", "sglang", "trtllm"):
        replica = lay_out(MODEL, "h100-sxm", {"tp": 1, "engine": engine}, demand, None)
        felt = Bearer(replica).feel(demand, 4.0, exact=True)
        assert 1.0 < math.prod(felt.factors("ttft", 0.0)) < felt.ends["ttft"].steps[1] * felt.ends["ttft"].further[1]
        assert math.prod(felt.factors("tpot", 0.0)) == pytest.approx(1.0, abs=0.05)


def test_a_pool_without_an_objective_of_its_own_bears_what_full_engines_do() -> None:
    demand = read_demand({"rate": 20.0, "isl": 1000, "osl": 150})
    pool = Bearer(lay_out(MODEL, "h100-sxm", {"tp": 1, "engine": "vllm"}, demand, None), "prefill")
    found = ability(pool, demand, parse_objectives("p95 tpot<60ms"))
    assert found.binds == ("knee",)
    assert 0.9 * pool.knee(demand) < found.load <= pool.knee(demand)


def test_more_confidence_never_takes_fewer_and_is_kept() -> None:
    answers = [rk.plan(MODEL, "h100-sxm", SLO, **QUICK, rate=60, confidence=c) for c in (0.5, 0.9, 0.99)]
    assert [a.best.gpus for a in answers] == sorted(a.best.gpus for a in answers)
    assert answers[0].best.gpus < answers[2].best.gpus
    for answer in answers:
        for value in answer.best.probability.values():
            assert value is not None
            assert value >= answer.confidence - 0.02  # the load itself is played, and its neighbours of the curve
        spans = answer.best.interval or {}
        low, high = spans["p95_ttft_ms"]
        assert (low or math.inf) < (answer.best.latency("p95 TTFT") or 0.0) < (high or math.inf)
        assert set(spans) == {"ttft_ms", "tpot_ms", "p95_ttft_ms", "p95_tpot_ms"}
        assert set(answer.best.errors) == set(answer.slo)
        for name, error in answer.best.errors.items():
            assert 0.0 < error < 0.25 * (answer.best.latency(name) or 0.0)
    assert answers[0].expected is None
    assert {answer.best.expected_gpus for answer in answers} == {answers[0].best.gpus}
    assert f"At expected times {answers[0].best.gpus} GPU" in (answers[2].expected or "")
    bound = rk.plan(MODEL, "h100-sxm", SLO, **QUICK, rate=60, calibration="none")
    assert (bound.best.evidence, set(bound.best.probability.values()), bound.expected) == ("datasheet", {None}, None)


@pytest.fixture(scope="module")
def across() -> list[rk.PlanAnswer]:
    """One question at three confidences."""
    asked: dict[str, Any] = {"rate": 30, "isl": 500, "osl": 60, "tp": [1], "disaggregated": False}
    return [rk.plan(MODEL, ["h100-sxm", "l40s"], SLO, **asked, confidence=each) for each in (0.5, 0.7, 0.9)]


@pytest.mark.slow
def test_the_fleet_at_expected_times_is_the_cheapest_at_one_half(across: list[rk.PlanAnswer]) -> None:
    """Asking for 50 % says so too, whichever deployment that is."""
    even, _, sure = across
    costs = [answer.best.cost.usd_per_hour or 0.0 for answer in across]
    assert costs == sorted(costs)
    said = sure.expected or sure.answer
    assert f"{even.best.gpus} GPU" in said
    assert min(each.expected_gpus for each in sure.candidates) <= even.best.gpus


def test_a_random_router_never_costs_less() -> None:
    """What other looser questions cost, test_reversals.py asks."""
    spread, turns = (
        rk.plan(MODEL, "h100-sxm", SLO, **QUICK, rate=30, router=each) for each in ("random", "round-robin")
    )
    assert (spread.best.cost.usd_per_hour or 0.0) >= (turns.best.cost.usd_per_hour or math.inf)


def test_no_hardware_is_bought_for_an_interval_that_is_too_wide() -> None:
    """An A10G's kernels under SGLang are those of another card: the fleet is that at expected times, and it is said."""
    wide, even = (
        rk.plan("llama-3-8b", "a10g", "p95 ttft<3s", rate=2, isl=1000, osl=150, tp=[1], engine="sglang",
                draft="none", disaggregated=False, confidence=share) for share in (0.9, 0.5)
    )  # fmt: skip
    assert not wide.best.known
    assert wide.best.gpus == wide.best.expected_gpus == even.best.gpus
    assert "not known well enough" in wide.answer


@pytest.fixture(scope="module")
def compared() -> rk.PlanAnswer:
    """An accelerator with measured kernels and a cheap one without."""
    return rk.plan(MODEL, list(PRICES), SLO, **QUICK, rate=40, prices=PRICES)


def test_the_cheapest_measured_fleet_stands_beside_a_cheaper_stand_in(compared: rk.PlanAnswer) -> None:
    costs = [each.cost.usd_per_hour or 0.0 for each in compared.candidates if each.known]
    assert costs == sorted(costs)
    levels = [each.evidence for each in compared.candidates]
    assert set(levels) == {"measured", "stand-in"}
    if levels[0] == "stand-in":
        assert "The cheapest with measured kernels is" in compared.answer
    alone = rk.plan(MODEL, list(PRICES), SLO, **QUICK, rate=40, prices=PRICES, measured_only=True)
    assert {each.gpu for each in alone.candidates} == {"h100-sxm"}
    assert any("kernels are not measured" in each.why for each in alone.refused)
    with pytest.raises(InfeasibleError, match="measured_only leaves no deployment of llama-3-8b; mi300x"):
        rk.plan(MODEL, "mi300x", SLO, **QUICK, rate=40, measured_only=True)
    frame = compared.to_frame()
    assert list(frame["evidence"]) == levels
    stable = {"probability", "probability p95 TTFT <= 1 s", "binding", "load", "knee", "low_p95_ttft_ms", "known"}
    assert stable <= set(frame.columns)


def test_a_dearer_stand_in_says_when_it_would_win() -> None:
    answer = rk.plan(MODEL, list(PRICES), SLO, **QUICK, rate=40, prices={"h100-sxm": 1.0, "mi300x": 1.5})
    assert answer.best.evidence == "measured"
    (sentence,) = answer.stand_ins
    assert "mi300x (stand-in)" in sentence


def test_an_accelerator_whose_kernels_are_measured_in_one_split_is_no_stand_in() -> None:
    """Collectives of L40S are not measured, so that larger splits stand apart; one GPU alone is."""
    slow = "p95 ttft<1s, p95 tpot<40ms"  # one L40S takes 31 ms
    answer = rk.plan(MODEL, ["h100-sxm", "l40s"], slow, **QUICK | {"tp": [1, 4]}, rate=20)
    assert "measured" in {each.evidence for each in answer.candidates if each.gpu == "l40s"}
    assert not any(each.startswith("l40s") for each in answer.stand_ins) or answer.best.gpu != "l40s"


def test_the_objective_at_risk_and_the_evidence_stay_at_80_columns() -> None:
    done = CliRunner().invoke(app, [
        "plan", MODEL, "--gpu", "h100-sxm,mi300x", "--rate", "400", "--isl", "1000", "--osl", "150",
        "--tp", "1", "--slo", "p95 ttft<1s", "--slo", "p95 tpot<30ms", "-v",
    ])  # fmt: skip
    (first, head) = [line for line in done.stdout.splitlines() if "evidence" in line and "gpu" in line]
    assert all(f" {column}" in first for column in ("$/month", "holds"))
    assert all(f" {column}" in head for column in ("at risk", "holds"))
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert done.stdout.splitlines()[1] == "p95 TTFT <= 1 s, p95 TPOT <= 30 ms"


def test_the_legend_of_a_column_goes_with_the_column() -> None:
    table = CellTable(["gpu", "load"], [["h100-sxm", "70%"]], drop=(1,))
    legend = Legend(table, "Below.", {1: "Load: of a replica."})
    assert legend.text(80) == ["Below. Load: of a replica."] == legend.markdown()
    assert legend.text(10) == ["Below."]


def test_objectives_add_up_and_one_thing_has_one_limit() -> None:
    both = parse_objectives(["p95 ttft<1s", "p95 tpot<30ms", "p95 ttft<1s"])
    assert list(map(str, both)) == ["p95 TTFT <= 1 s", "p95 TPOT <= 30 ms"]
    with pytest.raises(InputError, match="twice"):
        rk.plan(MODEL, "h100-sxm", ["p95 ttft<1s", "p95 ttft<2s"], rate=5)


@pytest.mark.slow
def test_an_absurd_fleet_is_refused() -> None:
    with pytest.raises(InfeasibleError, match=r"takes [\d,]+ h100-sxm, more than 10,000"):
        rk.plan(MODEL, "h100-sxm", SLO, **QUICK, rate=500_000)
    with pytest.raises(InfeasibleError, match=r"takes [\d,]+ h100-sxm, more than 10,000"):
        rk.plan(MODEL, "h100-sxm", SLO, rate=500_000, isl=1000, osl=150, tp=[1])
    with pytest.raises(
        InfeasibleError, match="tp4 vllm takes"
    ):  # the split that takes least, not the first that is tried
        rk.plan("llama-3.1-70b", "h100-sxm", "p95 ttft<2s, p95 tpot<50ms", rate=100_000, isl=2000, osl=300, tp=[2, 4],
                disaggregated=False)  # fmt: skip
    vast = rk.plan(MODEL, "h100-sxm", SLO, **QUICK, rate=500_000, limits={"h100-sxm": 100_000})
    assert vast.best.gpus > 10_000


def test_what_no_price_buys_names_the_best_there_is_and_what_binds() -> None:
    with pytest.raises(
        InfeasibleError, match=r"in the splits asked for; .*at best p95 TPOT reaches [\d.]+ ms on .* where \w+ takes"
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
    run = CliRunner().invoke(app, ["plan", MODEL, "--rate", "5", "--tp", "1", "--price", str(path)])
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
    real = search._aggregated
    seen = []

    def interrupted(question: search.PlanQuestion, base: Any, found: search.Found) -> Any:
        seen.append(base)
        if len(seen) > 1:
            raise KeyboardInterrupt
        return real(question, base, found)

    monkeypatch.setattr(search, "_aggregated", interrupted)
    done = CliRunner().invoke(app, ["plan", MODEL, "--rate", "5", "--gpu", "h100,l40s", "--tp", "1", "--isl", "1000"])
    assert done.exit_code == 130
    assert "interrupted: the search left out l40s" in " ".join(done.stdout.split())
    assert "h100-sxm" in done.stdout


def test_a_trace_of_one_request_is_no_rate(tmp_path: Path) -> None:
    path = tmp_path / "one.csv"
    path.write_text("time_s,isl,osl\n3,100,10\n")
    with pytest.raises(InputError, match=r"one\.csv: all requests come at one moment"):
        rk.plan(MODEL, "h100-sxm", SLO, trace=path)


def test_what_a_load_loses_to_rounding_takes_no_replica_more():
    rounded = Ability(5.0 * (1.0 - 3e-11), ())  # 50 a second over it are 10.0000000003 replicas
    assert working_replicas(rounded, read_demand({"rate": 50}), Reserve()) == 10


def test_an_overloaded_pool_takes_no_time_of_the_other_with_it() -> None:
    """Steps as slow as the doubt of tokens has them overload prompts: first tokens wait for ever, tokens do not."""
    prompts = Felt(lambda metric, share: 0.5, stable=False)
    tokens = Felt(lambda metric, share: {"tpot": 0.02, "e2el": 4.0}[metric])
    both = joined(prompts, tokens)
    assert (both.value("ttft", 0.95), both.value("tpot", 0.95), both.value("e2el", 0.95)) == (math.inf, 0.02, math.inf)
    assert Objective("tpot", 0.95, 0.045).met(both)
    assert not Objective("ttft", 0.95, 2.0).met(both)
    assert Objective("ttft", 0.95, 2.0).attained(both) == 0.0


@pytest.mark.parametrize("load", [{"rate": 20.0}, {"concurrency": 50}])
def test_an_objective_of_the_whole_request_is_planned(load: dict[str, float]) -> None:
    tight, loose = (rk.plan(MODEL, "h100-sxm", f"p95 e2e<{limit}s", **QUICK, **load) for limit in (5, 20))
    assert tight.best.gpus >= loose.best.gpus
    for answer in (tight, loose):
        assert all(share >= 0.9 for share in answer.best.probability.values())


def test_the_interval_of_a_whole_request_lies_between_those_of_its_parts() -> None:
    demand = read_demand({"rate": 20.0, "isl": 1000, "osl": 150}, parse_objectives("p95 e2e<8s"))
    replica = lay_out(MODEL, "h100-sxm", {"engine": "vllm"}, demand, None)
    first, token, whole = (replica.width(demand, metric) for metric in ("ttft", "tpot", "e2el"))
    assert min(first, token) <= whole <= max(first, token)
