"""A deployment's page: what it says is the estimate's, and it is quick to make."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import rooflinekit as rk
from rooflinekit.estimation.estimator import read_deployment, resolve
from rooflinekit.model.coefficients import Known, plan_coefficients
from rooflinekit.report.page.deployment import Deployed, lead
from rooflinekit.report.page.sections import accuracy_card


@pytest.mark.parametrize("keys", [
    {"draft": "eagle3", "draft_tokens": 3, "acceptance": 0.7},
    {"draft": "llama-3.2-1b", "draft_tokens": 4, "acceptance": 0.7, "batch": 8},
])  # fmt: skip
def test_charts_of_a_draft_are_of_the_answer(keys: dict[str, object]) -> None:
    deployed, answer = Deployed.of("llama-3.1-8b", "h100-sxm", dict(keys)), rk.estimate("llama-3.1-8b", **keys)
    view = deployed.view
    assert view["tpot"]["time"] * 1e3 == pytest.approx(answer.tpot_ms)
    assert view["rateUser"] == pytest.approx(answer.output_tok_s_per_user)
    assert sum(part["time"] for part in view["decode"]) * 1e3 == pytest.approx(answer.decode.time_ms)
    assert deployed.sliders == "sliders know no drafts"


def test_kernels_that_plans_share_are_exported_alike() -> None:
    """Weights, caches and degrees in turn, through what was exported before and on their own."""
    known = Known()
    for keys in ({}, {"kv": "fp8"}, {"weights": "fp8"}, {"tp": 2}, {"tp": 2, "kv": "fp8"}, {}):
        for model in ("llama-3-8b", "llama-3.1-8b", "qwen3-30b-a3b"):
            predictor = resolve(model, "h100-sxm", read_deployment(dict(keys)), None).predictor
            assert plan_coefficients(predictor, known) == plan_coefficients(predictor)


def test_a_page_waits_for_no_tables(tmp_path: Path) -> None:
    """pandas and numpy take longer to load than a page to make."""
    script = (
        "import sys, rooflinekit as rk\n"
        f"rk.write_report({str(tmp_path / 'a.html')!r}, 'llama-3-8b', models=[], gpus=[])\n"
        "print([name for name in ('pandas', 'numpy', 'matplotlib', 'torch') if name in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"


def test_charts_below_a_load_are_of_a_batch_that_fits() -> None:
    """Under load sequences stand at different lengths; a static batch has them all at the full one."""
    few, many = (Deployed.of("llama-3-8b", "h100-sxm", {"rate": rate}) for rate in (5.0, 1000.0))
    assert few.at["batch"] == few.answer.inputs["batch"]
    assert many.at["batch"] < many.answer.inputs["batch"] == many.answer.memory.max_batch
    assert many.view["memory"]["fits"]
    assert many.view["memory"]["room"] == many.at["batch"]
    told = lead(many)
    assert f"no more fit at their full length of 1280 tokens (under load {many.answer.inputs['batch']} run" in told
    assert "never" not in told
    assert "no more fit" not in lead(few)


def test_no_interval_is_told_wider_than_it_is_used() -> None:
    """Borrowed widths multiply; what is predicted from them goes up to a factor of 10."""
    plan = Deployed.of("deepseek-v3", "h200-sxm", {"tp": 8}).asked.plan
    assert plan.calibration is not None
    assert max(max(fit.regimes.width) for fit in plan.calibration.families.values()) > 10.0
    told = [float(number) for number in re.findall(r">([\d.]+)\u00a0x<", accuracy_card(plan))]
    assert len(told) >= 8
    assert 1.0 < min(told) < max(told) == 10.0
