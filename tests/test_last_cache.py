"""The rate of the last cache: of the fit that tells it, the same on pages, in plots and in an answer's provenance."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import rooflinekit as rk
from rooflinekit.calibration.last_cache import LastCache, last_cache
from rooflinekit.estimator import read_deployment, resolve
from rooflinekit.report.page.offers import roofs
from rooflinekit.report.plots.roofline import Roofs
from rooflinekit.timing.calibrated import BORROWED
from rooflinekit.types.errors import RooflinekitError

CHARTS = Path(rk.__file__).parent / "report" / "page" / "charts.js"
OWN, OTHER, GEMM = "attention_decode/bf16/bf16", "attention_decode/bf16/fp8", "gemm/bf16"


def plan_of(gpu="h100-sxm", model="llama3-8b", **scenario):
    return resolve(model, gpu, read_deployment(scenario), None).plan


def told(**fits):
    """A plan on an H100 whose calibration has three fits alone: ratio, standard error and what else is said."""
    plan = plan_of()
    families = {}
    for key, (ratio, error, more) in zip((OWN, OTHER, GEMM), fits.values(), strict=True):
        fit = plan.calibration.families[key]
        spread = {**fit.spread, "cache_speed": error}
        families[key] = replace(fit, form=replace(fit.form, cache_speed=ratio), spread=spread, **{"frozen": ()} | more)
    return replace(plan, calibration=replace(plan.calibration, families=families))


SURE, FROZEN = (4.0, 0.5, {}), (3.0, 0.5, {"frozen": ("cache_speed",)})
UNSURE, LIMIT = (4.0, 1.4, {}), (10.0, 0.5, {})
NEAR_LIMIT, AT_ONE = (9.8, 0.5, {}), (1.0, 0.1, {})
AWAY = (4.0, 0.5, {"source": f"{BORROWED}4235 attention_decode rows of h200-sxm"})


@pytest.mark.parametrize("blind", [FROZEN, UNSURE, LIMIT, NEAR_LIMIT, AT_ONE, AWAY])
def test_a_fit_that_does_not_tell_the_rate_is_passed_over(blind):
    memory = plan_of().system.accelerator.memory_bandwidth
    first = last_cache(told(own=SURE, other=(3.0, 0.5, {}), gemm=(2.0, 0.5, {})))
    assert (first.rate, first.fitted_to) == (pytest.approx(4.0 * memory), "decode attention")
    assert OWN in first.source
    second = last_cache(told(own=blind, other=(3.0, 0.5, {}), gemm=(2.0, 0.5, {})))
    assert second.rate == pytest.approx(3.0 * memory)
    assert OTHER in second.source
    third = last_cache(told(own=blind, other=blind, gemm=(2.0, 0.5, {})))
    assert (third.rate, third.fitted_to) == (pytest.approx(2.0 * memory), "matrix products")
    assert last_cache(told(own=blind, other=blind, gemm=blind)) is None


def test_a_cache_that_is_hardly_faster_than_the_memory_has_no_roof():
    """A fit that tells so is believed: another kernel's ratio does not take its place."""
    assert last_cache(told(own=(1.5, 0.1, {}), other=SURE, gemm=SURE)) is not None
    assert last_cache(told(own=(1.49, 0.1, {}), other=SURE, gemm=SURE)) is None


def test_of_several_fits_the_one_with_most_rows_speaks():
    plan = plan_of(model="deepseek-v3", tp=8)
    families = {OWN: (4.0, 10), OTHER: (5.0, 20)}
    fits = {key: replace(plan.calibration.families[key], rows=rows, frozen=(), spread={"cache_speed": 0.5},
                         form=replace(plan.calibration.families[key].form, cache_speed=ratio))
            for key, (ratio, rows) in families.items()}  # fmt: skip
    found = last_cache(replace(plan, calibration=replace(plan.calibration, families=fits)))
    assert found.rate == pytest.approx(5.0 * plan.system.accelerator.memory_bandwidth)


def test_a_calibration_of_another_accelerator_tells_nothing_and_one_of_another_engine_does():
    assert last_cache(plan_of()) is not None
    assert last_cache(resolve("llama3-8b", "h200-sxm", read_deployment({}), "h100-sxm--vllm").plan) is None
    assert last_cache(resolve("llama3-8b", "h100-sxm", read_deployment({"engine": "sglang"}), "h100-sxm--vllm").plan)
    assert last_cache(resolve("llama3-8b", "h100-sxm", read_deployment({}), "none").plan) is None


@pytest.mark.parametrize("gpu", ["h100-sxm", "h200-sxm", "b200-sxm", "a100-sxm-80gb", "l40s", "mi300x"])
@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("formats", [{}, {"weights": "fp8", "kv": "fp8"}])
def test_pages_and_plots_have_the_same_roof(gpu, engine, formats):
    try:
        answer = rk.estimate("llama3-8b", gpu, engine=engine, **formats)
    except RooflinekitError:
        pytest.skip("the accelerator has no such format")
    drawn, plan = Roofs.of(answer).cache, plan_of(gpu, engine=engine, **formats)
    assert roofs(plan)["l2"] == (None if drawn is None else (drawn.rate, drawn.fitted_to))
    assert drawn is None or drawn.rate >= 1.5 * plan.system.accelerator.memory_bandwidth


def test_the_picture_names_what_the_roof_was_fitted_to():
    answer = rk.estimate("llama3-8b", batch=32)
    others = [entry for entry in answer.provenance if LastCache.among([entry]) is None]
    assert len(others) == len(answer.provenance) - (LastCache.among(answer.provenance) is not None)
    for kept in ([LastCache(2e13, "matrix products", "x").entry()], []):
        picture = rk.plot(replace(answer, provenance=(*others, *kept)), "roofline")
        words = [text.get_text() for text in picture.figure.axes[0].texts]
        assert [word for word in words if word.startswith("L2")] == (
            ["L2 20.0 TB/s, fitted to matrix products"] if kept else []
        )


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_page_draws_the_roof_of_the_formats_at_hand():
    """That of the plan under the sliders, and that of the accelerator where there is no such plan."""
    stubs = """
    const small = () => false, prefixed = (value, unit) => `${value / 1e12} T${unit}`;
    const planOf = (at) => (at.own ? { l2: at.own } : at.plan ? { l2: null } : null);
    const gpu = { bandwidth: 2e12, peaks: {}, link: 0, l2: [9e12, "matrix products"] }, part = { peak: 1e15 };
    const view = (at) => ({ prefill: [part], decode: [part], at: { speed: 1, ...at }, gpus: 1 });
    const names = (at) => roofLines(view(at), gpu, 0.1, 1e4)
      .map((line) => line.name).filter((name) => name.startsWith("L2"));
    const states = [{ own: [7e12, "decode attention"] }, { plan: true }, {}, { speed: 5 }];
    console.log(JSON.stringify(states.map(names)));
    """
    script = CHARTS.read_text(encoding="utf-8") + stubs
    done = subprocess.run(["node", "-e", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [
        ["L2 7 TB/s, fitted to decode attention"], [], ["L2 9 TB/s, fitted to matrix products"], []
    ]  # fmt: skip
