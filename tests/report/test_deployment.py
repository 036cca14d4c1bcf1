"""A deployment's page: what it says is the estimate's, and it is quick to make."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import rooflinekit as rk
from rooflinekit.report.page.deployment import PageDeployment, accuracy_card, lead
from rooflinekit.report.page.offers import APART
from rooflinekit.specs import load_accelerator

from .making import data_of, page_of


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
    few, many = (
        PageDeployment.of("llama-3-8b", "h100-sxm", {"rate": rate, "osl": osl})
        for rate, osl in ((5.0, 256), (1000.0, 4096))
    )
    assert few.work.batch == few.answer.inputs["batch"]
    assert many.work.batch < many.answer.inputs["batch"] <= many.answer.memory.max_batch
    told = lead(many)
    assert f"no more fit at their full length of 5120 tokens (under load {many.answer.inputs['batch']} run" in told
    assert "never" not in told
    assert "no more fit" not in lead(few)


def test_no_interval_is_told_wider_than_it_is_used() -> None:
    """Intervals six times as wide as shipped are told up to the factor of 10 that is predicted from."""
    plan = PageDeployment.of("deepseek-v3", "h200-sxm", {"tp": 8}).asked.plan
    assert plan.calibration is not None
    families = {key: fit.wider(6.0) for key, fit in plan.calibration.families.items()}
    plan = replace(plan, calibration=replace(plan.calibration, families=families))
    told = [float(number) for number in re.findall(r">([\d.]+)\u00a0x<", accuracy_card(plan))]
    assert len(told) >= 8
    assert 1.0 < min(told) < max(told) == 10.0


def test_each_deployment_of_a_page_has_the_notes_of_estimate(tmp_path: Path) -> None:
    """Borrowed kernels and stand-ins of other GPUs and formats too, not of the first deployment alone."""
    data = data_of(page_of(tmp_path, "llama-3.1-8b", batch=16, models=[], gpus=["b200-sxm", "mi300x"], walk=False))
    offers, several = data["offers"], set()
    for label, plan in offers["plans"].items():
        model, gpu, tp, *formats, engine = label.split(APART)
        keys = {name: value for name, value in zip(("weights", "kv"), formats, strict=True) if value != "own"}
        told = rk.estimate(model, gpu, batch=16, tp=int(tp), engine=engine, **keys)
        notes = [offers["notes"][place] for place in plan["notes"]]
        assert notes == list(told.warnings), label
        assert plan["evidence"] == told.evidence, label
        assert plan["formats"] == [told.inputs[name] for name in ("weights", "activations", "kv")]
        several.update(notes)
    assert any("are used" in note or "is used" in note for note in several)
    assert len(several) > len(rk.estimate("llama-3.1-8b", batch=16).warnings)


def test_notes_of_another_deployment_say_whose_they_are() -> None:
    """A page shows them beside its own, below no heading: DeepSeek-V3 on H200 has none, on B200 one."""
    own, other = (PageDeployment.of("deepseek-v3", gpu, {"tp": 8, "batch": 64}) for gpu in ("h200-sxm", "b200-sxm"))
    assert own.answer.warnings == ()
    assert len(other.answer.warnings) == 1
    assert "<li>the measured fp8_block gemm kernels" in lead(other)
    assert "<li>b200-sxm: the measured fp8_block gemm kernels" in lead(other, told_of="b200-sxm: ")


def test_a_page_has_the_prices_that_are_given(tmp_path: Path) -> None:
    """Of a file as `plan` takes it; what is not used, or not like for like, is said."""
    prices = tmp_path / "prices.csv"
    prices.write_text("name,term,low,high,source\nh100-sxm,on demand,2,3,mine\nl40s,on demand,1,1,mine\n")
    page = page_of(tmp_path, "llama-3-8b", batch=8, models=[], gpus=["h200-sxm"], walk=False, price=prices)
    gpus = data_of(page)["offers"]["gpus"]
    assert gpus["h100-sxm"]["price"] == [2.5, "on demand", "mine"]
    assert gpus["h200-sxm"]["price"][0] == pytest.approx(load_accelerator("h200-sxm").value.price.usd_per_hour)
    assert "the price of l40s is not used" in page
    assert "not like for like" in page


@pytest.mark.parametrize("told", [{"cached": 512}, {"seed_reuse": 4}])
def test_a_load_that_the_page_would_play_otherwise_is_refused(told: dict[str, int]) -> None:
    """Its loop computes prompts whole, and `estimate` does not."""
    with pytest.raises(rk.InputError, match=f"leave {next(iter(told))} out"):
        PageDeployment.of("llama-3-8b", "h100-sxm", {"concurrency": 8, **told})
