"""Shared by all tests: how many examples a law is tried on, and plans built once a session."""

from __future__ import annotations

from functools import lru_cache

import pytest
from hypothesis import HealthCheck, settings

from rooflinekit.model.step import make_plan
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.hardware import System
from rooflinekit.specs import load_accelerator, load_model
from rooflinekit.specs.calibration.load import load_calibration

QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
settings.register_profile("test", max_examples=50, deadline=None, derandomize=True, suppress_health_check=QUIET)
settings.register_profile("long", max_examples=1000, deadline=None, suppress_health_check=QUIET)
settings.load_profile("test")


@pytest.fixture(scope="session")
def plan_of():
    """plan_of("llama-3-8b", tp=2): the plan of a shipped model at the datasheet bound, or under a named calibration."""

    @lru_cache(maxsize=64)
    def build(model, gpu="h100-sxm", calibration=None, **deployment):
        system = System.of(load_accelerator(gpu).value)
        chosen = load_calibration(calibration) if calibration else None
        return make_plan(load_model(model).value, Deployment(**deployment), system, chosen)

    return build
