"""What claims are computed from: parameters, caches, rates, and steps at the datasheet's bound."""

from __future__ import annotations

from functools import cache
from typing import Any

from rooflinekit.estimation.estimator import estimate
from rooflinekit.estimation.results import Estimate, KernelResult, StepResult
from rooflinekit.model.memory.cache import model_cache_law
from rooflinekit.model.parameter_count import ParameterCount, count_parameters
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.hardware import Accelerator
from rooflinekit.specs import load_accelerator, load_model

__all__ = ["bound", "cached", "count", "decode", "expected", "gpu", "kernel", "prefill", "tpot", "ttft"]


@cache
def count(model: str) -> ParameterCount:
    """Parameters of a model."""
    return count_parameters(load_model(model).value)


@cache
def gpu(name: str = "h100-sxm") -> Accelerator:
    """An accelerator of the library."""
    return load_accelerator(name).value


def cached(model: str, tokens: float = 1.0, dtype: Dtype | None = None, block: int = 1) -> float:
    """Cache of one sequence [B]."""
    return float(model_cache_law(load_model(model).value, dtype, 1, block).bytes(tokens))


@cache
def expected(model: str, name: str = "h100-sxm", **scenario: Any) -> Estimate:
    """An estimate with the default calibration, whether it fits or not."""
    return estimate(model, name, allow_oom=True, **scenario)


def bound(model: str, name: str = "h100-sxm", **scenario: Any) -> Estimate:
    """The same at datasheet rates."""
    return expected(model, name, calibration="none", **scenario)


def decode(model: str, **scenario: Any) -> StepResult:
    """A decode step at datasheet rates."""
    return bound(model, **scenario).decode


def prefill(model: str, **scenario: Any) -> StepResult:
    """A prefill at datasheet rates."""
    return bound(model, **scenario).prefill


def kernel(step: StepResult, name: str) -> KernelResult:
    """A kernel of a step, all launches."""
    return next(entry for entry in step.kernels if entry.name == name)


def tpot(model: str, name: str = "h100-sxm", **scenario: Any) -> float:
    """Datasheet bound of a token [s]."""
    return bound(model, name, **scenario).tpot_ms / 1e3


def ttft(model: str, name: str = "h100-sxm", **scenario: Any) -> float:
    """Datasheet bound of the first token [s]."""
    return float(bound(model, name, **scenario).ttft_ms or 0.0) / 1e3
