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

from rooflinekit.version import __version__ as __version__

if TYPE_CHECKING:
    from rooflinekit.decision.economics.front import cost
    from rooflinekit.decision.launching.front import launch
    from rooflinekit.decision.launching.result import Launch
    from rooflinekit.decision.planning.answer import PlanAnswer
    from rooflinekit.decision.planning.front import plan
    from rooflinekit.decision.planning.inverse import largest
    from rooflinekit.decision.planning.required import break_even_prices, fewest_gpus, required_bandwidth
    from rooflinekit.decision.sensitivity.front import levers
    from rooflinekit.decision.sweeping.front import sweep
    from rooflinekit.estimation.estimator import estimate
    from rooflinekit.estimation.facts import kv_cache_bytes, max_context, parameters
    from rooflinekit.estimation.frames import estimate_frame
    from rooflinekit.estimation.results import Estimate
    from rooflinekit.explanation.front import Derivation, explain
    from rooflinekit.explanation.walk.front import shapes
    from rooflinekit.model.parameter_count import ParameterCount
    from rooflinekit.model.types.batch import Batch
    from rooflinekit.model.types.deployment import Deployment
    from rooflinekit.model.types.dtype import Dtype
    from rooflinekit.model.types.errors import (
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
    from rooflinekit.report.page.front import Report, write_report
    from rooflinekit.report.plots.front import plot, write_plots
    from rooflinekit.simulation.front import simulate
    from rooflinekit.simulation.predict import predict_step
    from rooflinekit.simulation.tabulate import step_table
    from rooflinekit.specs import load_accelerator, load_model

_HOME = {
    "cost": "rooflinekit.decision.economics.front",
    "Derivation": "rooflinekit.explanation.front",
    "explain": "rooflinekit.explanation.front",
    "estimate": "rooflinekit.estimation.estimator",
    "kv_cache_bytes": "rooflinekit.estimation.facts",
    "max_context": "rooflinekit.estimation.facts",
    "parameters": "rooflinekit.estimation.facts",
    "estimate_frame": "rooflinekit.estimation.frames",
    "launch": "rooflinekit.decision.launching.front",
    "Launch": "rooflinekit.decision.launching.result",
    "ParameterCount": "rooflinekit.model.parameter_count",
    "PlanAnswer": "rooflinekit.decision.planning.answer",
    "plan": "rooflinekit.decision.planning.front",
    "largest": "rooflinekit.decision.planning.inverse",
    "break_even_prices": "rooflinekit.decision.planning.required",
    "fewest_gpus": "rooflinekit.decision.planning.required",
    "required_bandwidth": "rooflinekit.decision.planning.required",
    "plot": "rooflinekit.report.plots.front",
    "write_plots": "rooflinekit.report.plots.front",
    "Estimate": "rooflinekit.estimation.results",
    "levers": "rooflinekit.decision.sensitivity.front",
    "predict_step": "rooflinekit.simulation.predict",
    "Report": "rooflinekit.report.page.front",
    "shapes": "rooflinekit.explanation.walk.front",
    "simulate": "rooflinekit.simulation.front",
    "step_table": "rooflinekit.simulation.tabulate",
    "load_accelerator": "rooflinekit.specs",
    "load_model": "rooflinekit.specs",
    "sweep": "rooflinekit.decision.sweeping.front",
    "write_report": "rooflinekit.report.page.front",
    "Batch": "rooflinekit.model.types.batch",
    "Deployment": "rooflinekit.model.types.deployment",
    "Dtype": "rooflinekit.model.types.dtype",
    "DeploymentError": "rooflinekit.model.types.errors",
    "DoesNotFitError": "rooflinekit.model.types.errors",
    "DtypeError": "rooflinekit.model.types.errors",
    "InfeasibleError": "rooflinekit.model.types.errors",
    "InputError": "rooflinekit.model.types.errors",
    "RooflinekitError": "rooflinekit.model.types.errors",
    "SpecError": "rooflinekit.model.types.errors",
    "UnknownNameError": "rooflinekit.model.types.errors",
    "WorkloadError": "rooflinekit.model.types.errors",
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


def _html_of(answer: object) -> str:
    """What a notebook shows of an answer; the report that writes it is imported only now."""
    return str(import_module("rooflinekit.report.notebook").html_of(answer))


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
