"""The rate of the last cache: of the fit that tells it, the same on pages, in plots and in an answer's provenance."""

from __future__ import annotations

from dataclasses import replace

import pytest

import rooflinekit as rk
from rooflinekit.estimation.estimator import read_deployment, resolve
from rooflinekit.model.timing.calibrated import BORROWED
from rooflinekit.model.types.errors import RooflinekitError
from rooflinekit.report.plots.roofline import Roofs
from rooflinekit.specs.calibration.last_cache import LastCache, last_cache

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


SURE, FROZEN = (4.0, 0.5, {}), (4.0, 0.5, {"frozen": ("cache_speed",)})
UNSURE, LIMIT = (4.0, 0.9, {}), (10.0, 0.5, {})
NEAR_LIMIT, AT_ONE = (9.8, 0.5, {}), (1.0, 0.1, {})
AWAY = (4.0, 0.5, {"source": f"{BORROWED}4235 attention_decode rows of h200-sxm"})


@pytest.mark.parametrize("blind", [FROZEN, UNSURE, LIMIT, NEAR_LIMIT, AT_ONE, AWAY])
def test_a_fit_that_does_not_tell_the_rate_is_passed_over(blind):
    memory = plan_of().system.accelerator.memory_bandwidth
    first = last_cache(told(own=SURE, other=(3.0, 0.5, {}), gemm=(2.0, 0.3, {})))
    assert (first.rate, first.fitted_to) == (pytest.approx(4.0 * memory), "decode attention")
    assert OWN in first.source
    second = last_cache(told(own=blind, other=(3.0, 0.5, {}), gemm=(2.0, 0.3, {})))
    assert second.rate == pytest.approx(3.0 * memory)
    assert OTHER in second.source
    third = last_cache(told(own=blind, other=blind, gemm=(2.0, 0.3, {})))
    assert (third.rate, third.fitted_to) == (pytest.approx(2.0 * memory), "matrix products")
    assert last_cache(told(own=blind, other=blind, gemm=blind)) is None


def test_a_cache_that_is_hardly_faster_than_the_memory_has_no_roof():
    assert last_cache(told(own=(1.5, 0.1, {}), other=AT_ONE, gemm=AT_ONE)) is not None
    assert last_cache(told(own=(1.49, 0.1, {}), other=AT_ONE, gemm=AT_ONE)) is None


def test_the_fastest_kernel_speaks():
    """A cache is no slower than what any kernel was seen to read from it."""
    found = last_cache(told(own=(2.0, 0.1, {}), other=(3.0, 0.5, {}), gemm=SURE))
    assert found.fitted_to == "matrix products"
    assert GEMM in found.source


def test_it_is_one_of_the_accelerator_whatever_is_deployed():
    plain = last_cache(plan_of())
    assert plain == last_cache(plan_of(kv="fp8", weights="fp8")) == last_cache(plan_of(model="deepseek-v3", tp=8))


def test_a_calibration_of_another_accelerator_tells_nothing_and_one_of_another_engine_does():
    assert last_cache(plan_of()) is not None
    assert last_cache(resolve("llama3-8b", "h200-sxm", read_deployment({}), "h100-sxm--vllm").plan) is None
    assert last_cache(resolve("llama3-8b", "h100-sxm", read_deployment({"engine": "sglang"}), "h100-sxm--vllm").plan)
    assert last_cache(resolve("llama3-8b", "h100-sxm", read_deployment({}), "none").plan) is None


@pytest.mark.parametrize("gpu", ["h100-sxm", "h200-sxm", "b200-sxm", "a100-sxm-80gb", "l40s", "mi300x"])
@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("formats", [{}, {"weights": "fp8", "kv": "fp8"}])
def test_a_plan_and_its_plots_have_the_same_roof(gpu, engine, formats):
    try:
        answer = rk.estimate("llama3-8b", gpu, engine=engine, **formats)
    except RooflinekitError:
        pytest.skip("the accelerator has no such format")
    drawn, plan = Roofs.of(answer).cache, plan_of(gpu, engine=engine, **formats)
    found = last_cache(plan)  # an offer of a page has its rate and its words
    assert (found and (found.rate, found.fitted_to)) == (drawn and (drawn.rate, drawn.fitted_to))
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
