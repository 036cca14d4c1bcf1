"""The page of a plan: what it says is the plan's, and what is no plan is refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import rooflinekit as rk
from rooflinekit.model.types.errors import InputError
from rooflinekit.report.page.plan import chosen_replica, read_plan

from .making import data_of, page_of, run

KINDS = ("aggregated", "disaggregated", "users", "mixed", "bursts")


@pytest.fixture(scope="module")
def plans() -> dict[str, dict[str, Any]]:
    """One with a best candidate of each kind."""
    few: dict[str, Any] = {"isl": 2000, "osl": 300, "tp": [2]}
    slo = "p95 ttft<1s, p95 tpot<40ms"
    kinds = {
        "aggregated": rk.plan("llama-3-8b", ["h100-sxm"], slo, rate=20, disaggregated=False, **few),
        "disaggregated": rk.plan("llama-3.3-70b", ["b200-sxm"], slo, rate=50, **few),
        "users": rk.plan("llama-3-8b", ["h100-sxm"], "p95 tpot<40ms", users=300, isl=1000, osl=200, tp=[1]),
        "bursts": rk.plan("llama-3-8b", ["h100-sxm"], slo, rate=60, cv=3.0, isl="uniform:1000-3000",
                          osl="uniform:100-500", tp=[1], disaggregated=False),
        "mixed": rk.plan("llama-3-8b", ["h100-sxm", "l40s"], slo, rate=20, mixed=True, **few),
    }  # fmt: skip
    return {kind: answer.to_dict() for kind, answer in kinds.items()}


def test_a_candidate_of_too_little_known_has_times_without_end(plans: dict[str, dict[str, Any]]) -> None:
    plan = json.loads(json.dumps(plans["disaggregated"]))
    plan["candidates"][0]["predicted"]["tpot_ms"]["mean"] = None
    assert read_plan(plan) == plan
    with pytest.raises(InputError, match="has no end"):
        chosen_replica(plan)


@pytest.mark.parametrize("kind", KINDS)
def test_what_plan_writes_is_read(plans: dict[str, dict[str, Any]], kind: str) -> None:
    assert read_plan(json.loads(json.dumps(plans[kind]))) == plans[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_is_in_its_page(tmp_path: Path, plans: dict[str, dict[str, Any]], kind: str) -> None:
    made = plans[kind]
    page = page_of(tmp_path, plan=made, models=[], gpus=[])
    data = data_of(page)
    assert len(data["plan"]["candidates"]) == len(made["candidates"])
    assert data["plan"]["candidates"][0]["usd"] == made["best"]["usd_per_hour"]
    assert data["asked"]["isl"] == made["traffic"]["isl_mean"]
    assert made["answer"].split(". ")[0] in page
    assert all(str(price["source"]) in page for price in made["prices"].values() if price)
    for bad in ("overload: ", "This deployment does not fit", "never", "has no end"):
        assert bad not in page.split('<script type="application/json"')[0], bad


def test_the_hours_of_a_plan_over_time_are_drawn(tmp_path: Path) -> None:
    made = rk.plan("llama-3-8b", tp=[1], disaggregated=False, profile=[9.0, 80.0, 40.0], growth=0.1)
    page = page_of(tmp_path, plan=made, models=[], gpus=[])
    hours = data_of(page)["plan"]["hours"]
    assert made.over_time is not None
    first = [row.gpus for row in made.over_time.intervals[:3]]
    assert hours == {"time": [0.0, 1.0, 2.0, 3.0], "gpus": [*first, first[-1]], "rate": [9.0, 80.0, 40.0, 40.0]}
    assert made.over_time.answer.split(":")[0] in page


def test_a_decode_replica_runs_what_little_says(plans: dict[str, dict[str, Any]]) -> None:
    """16.7 requests/s for 299 steps of 23.7 ms: 118 at once, at the plan's TPOT but for the transfer."""
    best = plans["disaggregated"]["best"]
    assert best["kind"] == "disaggregated"
    chosen = chosen_replica(plans["disaggregated"])
    tpot = best["predicted"]["tpot_ms"]["mean"]
    assert chosen.scenario["batch"] == pytest.approx(best["decode"]["load"] * 299 * tpot / 1e3, abs=0.5)
    answer = rk.estimate(chosen.model, chosen.gpu, **chosen.scenario)
    assert answer.memory.fits
    assert 0.97 < answer.tpot_ms / tpot < 1.03  # its batch is that of a CUDA graph
    assert not {"rate", "concurrency"} & chosen.scenario.keys()


def test_other_replicas_stand_under_their_load(plans: dict[str, dict[str, Any]]) -> None:
    made = plans["aggregated"]
    assert chosen_replica(made).scenario["rate"] == made["best"]["load"]
    assert chosen_replica(plans["users"]).scenario["concurrency"] == plans["users"]["best"]["load"]


@pytest.mark.parametrize("kind", ["aggregated", "users", "bursts"])
def test_the_page_answers_about_what_the_plan_predicts(plans: dict[str, dict[str, Any]], kind: str) -> None:
    """With the engine's limits that the plan chose, bursts as one replica sees them, and lengths as they vary."""
    best, chosen = plans[kind]["best"], chosen_replica(plans[kind])
    answer = rk.estimate(chosen.model, chosen.gpu, **chosen.scenario)
    assert answer.tpot_ms == pytest.approx(best["predicted"]["tpot_ms"]["mean"], rel=0.25)  # the plan has a formula


def test_those_plans_are_the_hard_ones(plans: dict[str, dict[str, Any]]) -> None:
    assert plans["users"]["best"]["scenario"]["max_num_seqs"] < 300
    assert plans["bursts"]["best"]["replicas"] > 1
    assert chosen_replica(plans["bursts"]).scenario["burstiness"] < 3.0


@pytest.mark.parametrize("content", ["", "[]", "{}", "null", '{"model": 3}', "\x00\xff"])
def test_what_is_no_plan_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(content, encoding="latin-1")
    told = run("--plan", str(path), "--out", str(tmp_path / "page.html"))
    assert (told.exit_code, told.output.count("\n")) == (2, 1), told.output
    assert "plan" in told.output


@pytest.mark.parametrize(("where", "value", "what"), [
    (("candidates",), "x", "candidates must be a list"), (("candidates",), [], "candidates is empty"),
    (("candidates", 0), {}, "candidates.0.kind must be one of aggregated"),
    (("traffic",), [], "traffic must be an object"),
    (("candidates", 0, "decode"), None, "candidates.0.decode must be an object"),
    (("candidates", 0, "decode", "scenario"), {}, "candidates.0.decode.scenario.gpu is missing"),
    (("candidates", 0, "decode", "load"), 0.0, "decode.load must be greater than 0"),
    (("candidates", 0, "predicted", "tpot_ms"), {}, "predicted.tpot_ms.mean is missing"),
    (("traffic", "rate"), None, "traffic must have a rate or users"),
    (("traffic", "isl_mean"), True, "isl_mean must be"),
    (("traffic", "rate"), float("nan"), "traffic.rate must be a finite number"),
    (("answer",), None, "answer must be a string"), (("version",), None, "version must be a string"),
    (("pareto", 0, "on"), "speed", "pareto.0.on must be a list"), (("warnings",), [3], "warnings.0 must be a string"),
])  # fmt: skip
def test_a_damaged_plan_says_where(
    plans: dict[str, dict[str, Any]], where: tuple[str | int, ...], value: object, what: str, tmp_path: Path
) -> None:
    bad = json.loads(json.dumps(plans["disaggregated"]))
    part = bad
    for key in where[:-1]:
        part = part[key]
    part[where[-1]] = value
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(bad), encoding="utf-8")
    told = run("--plan", str(path), "--out", str(tmp_path / "page.html"))
    assert (told.exit_code, told.output.count("\n")) == (2, 1), told.output
    assert what in told.output
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("name", "what"), [("", "is a folder"), ("none.json", "no such file")])
def test_a_plan_that_is_no_file(name: str, what: str, tmp_path: Path) -> None:
    told = run("--plan", str(tmp_path / name), "--out", str(tmp_path / "page.html"))
    assert (told.exit_code, what in told.output) == (2, True), told.output


@pytest.mark.parametrize("plan", [3, ["plan"], None.__class__])
def test_what_cannot_be_a_plan(plan: object) -> None:
    with pytest.raises(rk.InputError, match=r"a plan is what rk\.plan returns"):
        read_plan(plan)


def test_an_answer_of_max_is_no_plan(tmp_path: Path) -> None:
    found = {"what": "users", "value": 183.0, "at": {}, "answer": "", "model": "llama-3-8b", "warnings": []}
    with pytest.raises(rk.InputError, match="this answers plan --max"):
        rk.write_report(tmp_path / "a.html", plan=found)


def test_a_plan_of_spares_alone_is_drawn_all_the_same(plans: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    odd = json.loads(json.dumps(plans["bursts"]))
    odd["candidates"][0]["spare"] = odd["candidates"][0]["replicas"]
    assert chosen_replica(odd).scenario["burstiness"] == odd["candidates"][0]["burstiness"]
    assert "One replica at its load" in page_of(tmp_path, plan=odd, models=[], gpus=[])


def test_the_page_of_a_plan_has_the_plans_prices_and_lengths(tmp_path: Path) -> None:
    """What the replica below costs is what the plan above was made with, and how lengths vary is said."""
    made = rk.plan("llama-3-8b", ["h100-sxm"], rate=20, isl="lognormal:mean=1500,cv=0.8", osl=200, tp=[1],
                   disaggregated=False, price={"h100-sxm": 2.25})  # fmt: skip
    page = page_of(tmp_path, plan=made.to_dict(), models=[], gpus=["h200-sxm"])
    prices = {gpu: found["price"][0] for gpu, found in data_of(page)["offers"]["gpus"].items()}
    assert prices["h100-sxm"] == 2.25
    quote = rk.load_accelerator("h200-sxm").value.price
    assert quote is not None
    assert prices["h200-sxm"] == quote.usd_per_hour
    assert "1,500 (cv 0.8) tokens in, 200 out" in page
