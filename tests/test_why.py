"""Wrong assumptions that were planted are found: each run was played with the truth, and read with something else."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import rooflinekit as rk
from rooflinekit.evidence.benchmark_runs import Given, pose
from rooflinekit.evidence.compare import compare
from rooflinekit.evidence.measurement import MeasuredRun, MeasuredSpread, RunFacts
from rooflinekit.evidence.why import _changes, _price, explain, told

DENSE = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "tp": 1, "isl": 1024, "osl": 128, "concurrency": 16}
MANY, SMALL = DENSE | {"concurrency": 64}, DENSE | {"model": "qwen3-0.6b", "concurrency": 4}
LARGE = {"model": "qwen2.5-72b", "gpu": "h100-sxm", "tp": 4, "isl": 1024, "osl": 128, "concurrency": 16}
OPEN = {name: value for name, value in DENSE.items() if name != "concurrency"} | {"rate": 4.0}
#: Name, what is so, what is assumed in its place (None: nobody says), and the option that is found.
PLANTED = [
    ("prompts twice as long", DENSE | {"isl": 2048}, {"isl": 1024}, "isl"),
    ("prompts a quarter as long", DENSE | {"isl": 256}, {"isl": 1024}, "isl"),
    ("answers twice as long", DENSE | {"osl": 256}, {"osl": 128}, "osl"),
    ("answers that end early", DENSE | {"osl": 45}, {"osl": 128}, "osl"),
    ("three quarters of each prompt cached", MANY | {"hits": 0.75}, {"hits": None}, "hits"),
    ("prompts repeated", DENSE | {"hits": 0.95}, {"hits": None}, "hits"),
    ("two GPUs", DENSE | {"tp": 2}, {"tp": None}, "tp"),
    ("four GPUs, not eight", LARGE, {"tp": 8}, "tp"),
    ("FP8 weights", DENSE | {"weights": "fp8"}, {"weights": None}, "weights"),
    ("4-bit weights", DENSE | {"weights": "int4"}, {"weights": None}, "weights"),
    ("FP8 cache", MANY | {"kv": "fp8", "isl": 8192, "osl": 256, "hits": 0.95}, {"kv": None}, "kv"),
    ("no CUDA graphs", SMALL | {"eager": True}, {"eager": None}, "eager"),
    ("another accelerator", DENSE | {"gpu": "h20"}, {"gpu": "h100-sxm"}, "gpu"),
    ("twice the users", DENSE | {"concurrency": 32}, {"concurrency": 16}, "concurrency"),
    ("eight run at a time", DENSE | {"max_num_seqs": 8}, {"max_num_seqs": None}, "max_num_seqs"),
    ("all at once", MANY | {"requests": 64}, {"requests": None}, "requests"),
    ("two replicas", MANY | {"replicas": 2}, {"replicas": None}, "replicas"),
    ("half the rate", OPEN | {"rate": 2.0}, {"rate": 4.0}, "rate"),
    ("answers of unequal lengths", DENSE | {"osl_cv": 0.5}, {"osl_cv": None}, "osl_cv"),
    ("half the users", DENSE | {"concurrency": 8}, {"concurrency": 16}, "concurrency"),
    ("clockwork arrivals", OPEN | {"rate": 16.0, "cv": 0.0}, {"cv": None}, "cv"),
    ("an old engine", SMALL | {"engine": "vllm@0.6.6"}, {"engine": None}, "engine"),
]  # fmt: skip
NOISE = {"ttft": 1.03, "tpot": 0.99, "e2e": 0.992, "output": 1.005}


def said(scenario):
    """A scenario as a run's facts and what a user says; users say all that is not of the file."""
    facts = {name: value for name, value in scenario.items() if name in RunFacts.__dataclass_fields__}
    of_file = {name: facts.pop(name) for name in ("hits", "requests", "cv") if name in facts}
    rest = {name: value for name, value in scenario.items() if name not in (*facts, *of_file, "replicas")}
    return RunFacts(**of_file), Given(RunFacts(**facts), rest, replicas=scenario.get("replicas"))


def run_of(scenario):
    """What a client would measure of it, but for some noise."""
    own, given = said(scenario)
    found = pose(MeasuredRun("run", "planted", own), given).predict()
    return MeasuredRun(
        "run", "planted", own, MeasuredSpread(NOISE["ttft"] * found.ttft_ms),
        MeasuredSpread(NOISE["tpot"] * found.tpot_ms),
        e2e=MeasuredSpread(NOISE["e2e"] * found.e2e_ms), output_tok_s=NOISE["output"] * found.output_tok_s,
    )  # fmt: skip


def explained(truth, wrong, tool="planted"):
    run = replace(run_of(truth), tool=tool)
    assumed = {name: value for name, value in (truth | wrong).items() if value is not None}
    own, given = said(assumed)
    return explain(replace(run, facts=own), given)


def missed(tool: str) -> dict[str, tuple[str, str]]:
    """Which mistakes are not the first explanation, with what is."""
    first = {name: found.reasons[0].changes[0].option if (found := explained(truth, wrong, tool)).reasons else ""
             for name, truth, wrong, _ in PLANTED}  # fmt: skip
    return {name: (option, first[name]) for name, _, _, option in PLANTED if option != first[name]}


@pytest.mark.slow
@pytest.mark.long
def test_mistakes_planted_in_results_are_found():
    """By the intervals of predictions: at least 18 of 22."""
    assert len(PLANTED) == 22
    assert len(found := missed("planted")) <= 4, found


@pytest.mark.long
def test_mistakes_planted_in_predictions_are_found():
    """Two predictions of one formula err alike, so that rounding alone stands between them."""
    assert len(found := missed("rooflinekit estimate")) <= 4, found


@pytest.mark.slow
def test_a_run_that_fits_needs_no_explanation_and_a_wrong_one_has_the_right_first():
    held = explained(DENSE | {"requests": 16}, {})
    assert held.misfit < 0.5
    assert held.reasons == ()
    name, truth, wrong, option = PLANTED[2]
    found = explained(truth | {"requests": 16}, wrong)
    (change,) = found.reasons[0].changes
    assert (change.option, change.was) == (option, 128), name
    assert change.value == pytest.approx(256, rel=0.03)  # of 3 % noise
    assert found.reasons[0].misfit < 1.0 < found.misfit


def test_what_the_file_says_and_the_prediction_takes_explains_nothing():
    """Of an open loop the number of requests is no assumption: the file states it and it is played."""
    own, given = said(OPEN | {"requests": 40})
    run = replace(run_of(OPEN), facts=own)
    assert {
        change.was for change in _changes(pose(run, given), given, told(run)) if change.option == "requests"
    } == set()


def test_what_the_file_says_is_dearer_than_what_nobody_does():
    """Equal misfits: the price alone decides, and a factor of two of a length costs a little more than none."""
    prices = [_price("tp", 1, 2, who) for who in ("nobody", "you", "the file")]
    assert prices == sorted(prices)
    assert _price("isl", 512, 1024, "you") == pytest.approx(_price("tp", 1, 2, "you") + 0.2)


def test_of_two_predictions_the_inputs_that_differ_explain_it(tmp_path):
    """Both changes together, since one alone makes first tokens slower and the other faster."""
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for file, more in zip(files, ({}, {"weights": "fp8", "isl": 1200}), strict=True):
        found = rk.estimate("llama-3-8b", batch=4, osl=16, **more)
        file.write_text(json.dumps(found.to_dict()), encoding="utf-8")
    (run,) = compare(files, why="all").runs
    best = run.why.reasons[0]
    assert {(change.option, str(change.value).removesuffix(".0")) for change in best.changes} == {
        ("weights", "fp8"), ("isl", "1200"),
    }  # fmt: skip
    assert best.misfit < 0.01
    again = compare([files[0]]).runs[0]  # alone it is a measurement, of what it predicts itself
    assert all(abs(metric.error) < 1e-6 for metric in again.metrics)
