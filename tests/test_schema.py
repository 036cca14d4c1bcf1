"""The published JSON Schema is current, and real answers follow it."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

import rooflinekit as rk
from rooflinekit.report.schema import estimate_schema

SCHEMA = Path(__file__).parents[1] / "docs" / "schema" / "estimate.schema.json"
CASES = {
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


def test_the_committed_schema_is_current() -> None:
    assert json.loads(SCHEMA.read_text(encoding="utf-8")) == estimate_schema(), "run `make docs`"


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(estimate_schema())


@pytest.mark.parametrize("case", CASES)
def test_real_answers_validate(case: str) -> None:
    model, gpu, scenario = CASES[case]
    answer = rk.estimate(model, gpu, **scenario).to_dict()
    jsonschema.Draft202012Validator(estimate_schema()).validate(json.loads(json.dumps(answer, allow_nan=False)))


def test_an_unknown_or_missing_key_is_refused() -> None:
    validator = jsonschema.Draft202012Validator(estimate_schema())
    answer = rk.estimate("llama-3-8b").to_dict()
    assert not validator.is_valid(answer | {"surprise": 1})
    del answer["memory"]["fits"]
    assert not validator.is_valid(answer)
