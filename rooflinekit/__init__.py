"""How fast, and how expensive, an LLM will be on a GPU, from first principles.

>>> import rooflinekit as rk
>>> e = rk.estimate("llama3-8b", "h100-sxm", batch=32, isl=2048, osl=256)
>>> e.bound["tpot_ms"] < e.tpot_ms
True

Everything public is listed in `__all__` and imported when first used, so `import rooflinekit` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from rooflinekit.derivation.front import Derivation, explain
    from rooflinekit.economics.front import cost
    from rooflinekit.estimator import estimate
    from rooflinekit.facts import kv_cache_bytes, max_context, parameters
    from rooflinekit.frames import estimate_frame
    from rooflinekit.launching.front import launch
    from rooflinekit.launching.result import Launch
    from rooflinekit.parameter_count import ParameterCount
    from rooflinekit.planning.answer import PlanAnswer
    from rooflinekit.planning.front import plan
    from rooflinekit.planning.inverse import largest
    from rooflinekit.planning.required import break_even_prices, fewest_gpus, required_bandwidth
    from rooflinekit.report.page.front import Report, write_report
    from rooflinekit.report.plots.front import plot, write_plots
    from rooflinekit.results import Estimate
    from rooflinekit.sensitivity.front import levers
    from rooflinekit.serving.front import simulate
    from rooflinekit.serving.predict import predict_step
    from rooflinekit.serving.tabulate import step_table
    from rooflinekit.specs import load_accelerator, load_model
    from rooflinekit.sweeping.front import sweep
    from rooflinekit.types.batch import Batch
    from rooflinekit.types.deployment import Deployment
    from rooflinekit.types.dtype import Dtype
    from rooflinekit.types.errors import (
        DeploymentError,
        DoesNotFitError,
        DtypeError,
        InfeasibleError,
        InputError,
        RooflinekitError,
        SpecError,
        UnknownNameError,
        WorkloadError,
    )
    from rooflinekit.walk.front import shapes

_HOME = {
    "cost": "rooflinekit.economics.front",
    "Derivation": "rooflinekit.derivation.front",
    "explain": "rooflinekit.derivation.front",
    "estimate": "rooflinekit.estimator",
    "kv_cache_bytes": "rooflinekit.facts",
    "max_context": "rooflinekit.facts",
    "parameters": "rooflinekit.facts",
    "estimate_frame": "rooflinekit.frames",
    "launch": "rooflinekit.launching.front",
    "Launch": "rooflinekit.launching.result",
    "ParameterCount": "rooflinekit.parameter_count",
    "PlanAnswer": "rooflinekit.planning.answer",
    "plan": "rooflinekit.planning.front",
    "largest": "rooflinekit.planning.inverse",
    "break_even_prices": "rooflinekit.planning.required",
    "fewest_gpus": "rooflinekit.planning.required",
    "required_bandwidth": "rooflinekit.planning.required",
    "plot": "rooflinekit.report.plots.front",
    "write_plots": "rooflinekit.report.plots.front",
    "Estimate": "rooflinekit.results",
    "levers": "rooflinekit.sensitivity.front",
    "predict_step": "rooflinekit.serving.predict",
    "Report": "rooflinekit.report.page.front",
    "shapes": "rooflinekit.walk.front",
    "simulate": "rooflinekit.serving.front",
    "step_table": "rooflinekit.serving.tabulate",
    "load_accelerator": "rooflinekit.specs",
    "load_model": "rooflinekit.specs",
    "sweep": "rooflinekit.sweeping.front",
    "write_report": "rooflinekit.report.page.front",
    "Batch": "rooflinekit.types.batch",
    "Deployment": "rooflinekit.types.deployment",
    "Dtype": "rooflinekit.types.dtype",
    "DeploymentError": "rooflinekit.types.errors",
    "DoesNotFitError": "rooflinekit.types.errors",
    "DtypeError": "rooflinekit.types.errors",
    "InfeasibleError": "rooflinekit.types.errors",
    "InputError": "rooflinekit.types.errors",
    "RooflinekitError": "rooflinekit.types.errors",
    "SpecError": "rooflinekit.types.errors",
    "UnknownNameError": "rooflinekit.types.errors",
    "WorkloadError": "rooflinekit.types.errors",
}

__all__ = [
    "Batch",
    "Deployment",
    "DeploymentError",
    "Derivation",
    "DoesNotFitError",
    "Dtype",
    "DtypeError",
    "Estimate",
    "InfeasibleError",
    "InputError",
    "Launch",
    "ParameterCount",
    "PlanAnswer",
    "Report",
    "RooflinekitError",
    "SpecError",
    "UnknownNameError",
    "WorkloadError",
    "break_even_prices",
    "cost",
    "estimate",
    "estimate_frame",
    "explain",
    "fewest_gpus",
    "kv_cache_bytes",
    "largest",
    "launch",
    "levers",
    "load_accelerator",
    "load_model",
    "max_context",
    "parameters",
    "plan",
    "plot",
    "predict_step",
    "required_bandwidth",
    "shapes",
    "simulate",
    "step_table",
    "sweep",
    "write_plots",
    "write_report",
]


def __getattr__(name: str) -> object:
    """Import a public name on first use."""
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'rooflinekit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
