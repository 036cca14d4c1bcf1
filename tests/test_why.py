"""Wrong assumptions that were planted are found: each run was played with the truth, and read with something else."""

from __future__ import annotations

from dataclasses import replace

from rooflinekit.evidence.benchmark_runs import Given, pose
from rooflinekit.evidence.measurement import Facts, Measurement, Spread
from rooflinekit.evidence.why import explain

DENSE = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "tp": 1, "isl": 1024, "osl": 128, "concurrency": 16}
MANY, SMALL = DENSE | {"concurrency": 64}, DENSE | {"model": "qwen3-0.6b", "concurrency": 4}
LARGE = {"model": "qwen2.5-72b", "gpu": "h100-sxm", "tp": 4, "isl": 1024, "osl": 128, "concurrency": 16}
EXPERTS = {"model": "qwen3-30b-a3b", "gpu": "h100-sxm", "isl": 1024, "osl": 128, "concurrency": 64}
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
    ("data parallel attention", EXPERTS | {"tp": 1, "dp": 4, "ep": 4}, {"dp": None}, "dp"),
    ("clockwork arrivals", OPEN | {"rate": 16.0, "cv": 0.0}, {"cv": None}, "cv"),
    ("an old engine", SMALL | {"engine": "vllm@0.6.6"}, {"engine": None}, "engine"),
]  # fmt: skip
NOISE = {"ttft": 1.03, "tpot": 0.99, "e2e": 0.992, "output": 1.005}


def said(scenario):
    """A scenario as a run's facts and what a user says; users say all that is not of the file."""
    facts = {name: value for name, value in scenario.items() if name in Facts.__dataclass_fields__}
    of_file = {name: facts.pop(name) for name in ("hits", "requests", "cv") if name in facts}
    rest = {name: value for name, value in scenario.items() if name not in (*facts, *of_file, "replicas")}
    return Facts(**of_file), Given(Facts(**facts), rest, replicas=scenario.get("replicas"))


def run_of(scenario):
    """What a client would measure of it, but for some noise."""
    own, given = said(scenario)
    found = pose(Measurement("run", "planted", own), given).predict()
    return Measurement(
        "run", "planted", own, Spread(NOISE["ttft"] * found.ttft_ms), Spread(NOISE["tpot"] * found.tpot_ms),
        e2e=Spread(NOISE["e2e"] * found.e2e_ms), output_tok_s=NOISE["output"] * found.output_tok_s,
    )  # fmt: skip


def explained(truth, wrong, tool="planted"):
    run = replace(run_of(truth), tool=tool)
    assumed = {name: value for name, value in (truth | wrong).items() if value is not None}
    own, given = said(assumed)
    return explain(replace(run, facts=own), given)


def test_planted_mistakes_are_found():
    first = {name: found.reasons[0].changes[0].option if (found := explained(truth, wrong)).reasons else ""
             for name, truth, wrong, _ in PLANTED}  # fmt: skip
    missed = {name: (option, first[name]) for name, _, _, option in PLANTED if option != first[name]}
    assert len(PLANTED) >= 20
    assert len(missed) <= len(PLANTED) - 20 + 4, missed
