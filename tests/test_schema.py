"""The published JSON Schemas are current, and real answers follow them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import rooflinekit as rk
from rooflinekit.decision.planning.rollout import plan_rollout
from rooflinekit.report.schemas import SCHEMAS

FOLDER = Path(__file__).parents[1] / "docs" / "schema"
ESTIMATES = {
    "dense": ("llama-3-8b", "h100-sxm", {"batch": 32}),
    "mixture of experts": ("gpt-oss-120b", "h100-sxm", {"tp": 2}),
    "latent attention, tp 8": ("deepseek-v3", "h200-sxm", {"tp": 8, "batch": 4}),
    "datasheet bound": ("llama-3-8b", "h100-sxm", {"calibration": "none"}),
    "tp 8, fixed context": ("llama-3-70b", "h100-sxm", {"tp": 8, "batch": 32, "context": 4096}),
    "pipeline": ("llama-3-70b", "h100-sxm", {"pp": 4, "weights": "fp8", "cached": 512}),
    "draft and key budget": (
        "llama-3-8b",
        "h100-sxm",
        {"draft": "eagle", "draft_tokens": 2, "acceptance": "0.8,0.6", "kv_policy": "sink:4+1020"},
    ),
    "recurrent": ("nemotron-h-56b", "h200-sxm", {"tp": 2}),
    "does not fit": ("llama-3-70b", "h100-sxm", {"allow_oom": True}),
    "ideal engine, no limit of context": ("bloom-176b", "h200-sxm", {"tp": 8, "engine": "ideal"}),
}
ANSWERS: dict[str, list[tuple[str, Callable[[], Any]]]] = {
    "estimate": [
        (case, lambda asked=asked: rk.estimate(asked[0], asked[1], **asked[2])) for case, asked in ESTIMATES.items()
    ],
    "shapes": [
        ("a prompt", lambda: rk.shapes("llama-3-8b")),
        ("packed", lambda: rk.shapes("gpt2", tokens="6,3,9")),
        ("latent attention, experts", lambda: rk.shapes("deepseek-v3", "h200-sxm", tokens=6, dp=8, ep=8, batch=16)),
        ("recurrent, stages", lambda: rk.shapes("jamba-v0.1", tokens=6, pp=2, tp=2)),
    ],
    "explain": [
        ("latency", lambda: rk.explain("llama-3-8b", "tpot", batch=8)),
        ("bound", lambda: rk.explain("llama-3-8b", "ttft", calibration="none")),
        ("under load", lambda: rk.explain("llama-3-8b", "queue", rate=4)),
        ("a kernel", lambda: rk.explain("mixtral-8x7b", "decode.experts.bytes", tp=2)),
        ("does not fit", lambda: rk.explain("llama-3-70b", "max_batch")),
        ("a count", lambda: rk.explain("deepseek-v3", "params_active")),
    ],
    "levers": [
        ("dense", lambda: rk.levers("llama-3-8b", batch=8)),
        ("experts, a price", lambda: rk.levers("gpt-oss-20b", "h100-sxm", batch=4, price=2.0, calibration="none")),
    ],
    "cost": [
        ("dense", lambda: rk.cost("llama-3-8b")),
        ("experts, bought", lambda: rk.cost("gpt-oss-120b", "h100-sxm", purchase=30_000.0, years=4.0, power_price=0.1)),
        ("latent attention", lambda: rk.cost("deepseek-v3", "h200-sxm", tp=8, isl="uniform:10-20")),
    ],
    "simulate": [
        ("users", lambda: rk.simulate("llama-3-8b", concurrency=4, requests=12, osl=8)),
        ("nothing finished", lambda: rk.simulate("llama-3-8b", rate=4, requests=3, isl=9000)),
        (
            "pools, an objective, a prefix",
            lambda: rk.simulate(
                "llama-3-8b",
                rate=4,
                requests=12,
                osl=8,
                prefill_replicas=1,
                ttft_ms=300,
                shared_prefix=64,
                prefix_cache=True,
            ),
        ),
    ],
    "plan": [
        ("a rate, two kinds", lambda: rk.plan("llama-3-8b", ["h100-sxm", "l40s"], rate=20, tp=[1])),
        (
            "by the hour, growing",
            lambda: rk.plan("llama-3-8b", tp=[1], disaggregated=False, profile=[9.0, 40.0], growth=-0.1),
        ),
        (
            "autoscaled, rent or buy",
            lambda: rk.plan(
                "llama-3-8b",
                tp=[1],
                profile=[9.0, 40.0],
                autoscale=True,
                cold_start=[2],
                tco=str(FOLDER.parent / "own.yaml"),
            ),
        ),
        ("users, no price", lambda: rk.plan("llama-3-8b", "h20", users=50, tp=[1], disaggregated=False)),
    ],
    "plan-rollout": [
        ("in turn", lambda: plan_rollout(16, "llama-3-8b", isl=100, osl=20, rollout_gpus=[1, 2])),
        ("apart, in flight", lambda: plan_rollout(16, "llama-3-8b", osl="uniform:8-20", in_flight=8, train_gpus=2)),
    ],
}
CASES = [(command, case) for command, cases in ANSWERS.items() for case, _ in cases]


def test_every_committed_schema_is_current() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {f"{command}.schema.json" for command in SCHEMAS}
    for command, made in SCHEMAS.items():
        text = (FOLDER / f"{command}.schema.json").read_text(encoding="utf-8")
        assert json.loads(text) == made(), "run `make docs`"


@pytest.mark.parametrize("command", SCHEMAS)
def test_a_schema_is_a_schema_without_loose_ends(command: str) -> None:
    schema = SCHEMAS[command]()
    jsonschema.Draft202012Validator.check_schema(schema)
    text = json.dumps(schema)
    for name, definition in schema["$defs"].items():
        assert f'"#/$defs/{name}"' in text, "nothing refers to it"
        assert definition


@pytest.mark.parametrize(("command", "case"), CASES)
def test_real_answers_validate(command: str, case: str) -> None:
    answer = json.loads(json.dumps(dict(ANSWERS[command])[case]().to_dict(), allow_nan=False))
    validator = jsonschema.Draft202012Validator(SCHEMAS[command]())
    validator.validate(answer)
    assert not validator.is_valid(answer | {"surprise": 1})
    assert not validator.is_valid({key: value for key, value in answer.items() if key != "version"})


def test_a_deep_key_is_required() -> None:
    """Of each answer some part far down."""
    estimate = rk.estimate("llama-3-8b").to_dict()
    del estimate["memory"]["fits"]
    walk = rk.shapes("gpt2").to_dict()
    del walk["phases"][0]["sections"][1]["steps"][3]["outputs"][0]["shape"]
    tree = rk.explain("llama-3-8b", "tpot").to_dict()
    tree["derivation"]["children"][0]["children"][0]["unit"] = None
    levers = rk.levers("llama-3-8b").to_dict()
    del levers["balance"]["weight_share"]
    for command, answer in (("estimate", estimate), ("shapes", walk), ("explain", tree), ("levers", levers)):
        assert not jsonschema.Draft202012Validator(SCHEMAS[command]()).is_valid(json.loads(json.dumps(answer))), command


def test_the_fleets_of_a_plan_have_the_shape_of_their_kind() -> None:
    answer = rk.plan("llama-3-8b", "h100-sxm", rate=20, tp=[1]).to_dict()
    assert {candidate["kind"] for candidate in answer["candidates"]} == {"aggregated", "disaggregated"}
    validator = jsonschema.Draft202012Validator(SCHEMAS["plan"]())
    assert validator.is_valid(json.loads(json.dumps(answer)))
    answer["best"]["kind"] = "mixed"
    assert not validator.is_valid(json.loads(json.dumps(answer)))
