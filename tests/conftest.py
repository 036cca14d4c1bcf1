"""Shared by all tests: how many examples a law is tried on, and plans built once a session."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from rooflinekit.model.step import make_plan
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.hardware import System
from rooflinekit.specs import load_accelerator, load_model
from rooflinekit.specs.calibration.load import load_calibration

SLOW = (
    "report", "validate", "planning/test_prefixes.py", "serving/test_simulator_command.py",
    "sweeping/test_sweep.py", "test_accuracy.py", "test_accuracy_serving.py", "test_calibration_fit.py",
    "test_capacity_workbook.py", "test_docs.py", "test_engine_fit.py", "test_explain.py", "test_hostile_files.py",
    "test_plots.py", "test_plots_look.py", "test_service.py", "test_service_limits.py", "test_shell_examples.py",
)  # fmt: skip
"""Tests that look at pages, pictures, sheets and documents, start servers, break files, fit calibrations, or run
PyTorch: `make test-slow`."""


def is_slow(path: Path) -> bool:
    """Whether all tests of a file are slow."""
    folder = Path(__file__).parent
    return folder in path.parents and path.relative_to(folder).as_posix().startswith(SLOW)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files of which the marks choose no test are not even imported: rewriting all their asserts takes a while."""
    if collection_path.suffix == ".py":
        match str(config.option.markexpr).split():
            case ["not", "slow", *_]:
                return is_slow(collection_path) or None
            case ["slow", *_]:
                return not (is_slow(collection_path) or "mark.slow" in collection_path.read_text("utf-8")) or None
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the slow ones, so that `make test` takes a few minutes on two cores."""
    for item in items:
        if is_slow(item.path):
            item.add_marker("slow")


QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
settings.register_profile("test", max_examples=25, deadline=None, derandomize=True, suppress_health_check=QUIET)
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
