"""How fast, and how expensive, an LLM will be on a GPU, from first principles.

>>> import rooflinekit as rk
>>> e = rk.estimate("llama3-8b", "h100-sxm", batch=32, isl=2048, osl=256)
>>> e.bound["tpot_ms"] < e.tpot_ms
True

Everything public is listed in `__all__` and imported when first used, so `import rooflinekit` costs nothing.
"""

from __future__ import annotations

import os
from importlib import import_module

from rooflinekit.version import __version__ as __version__

TYPE_CHECKING = False  # that of `typing`, which takes longer to load than all the rest of this file
if TYPE_CHECKING:
    from rooflinekit.decision.economics.cost import cost
    from rooflinekit.decision.launching.launch import Launch, launch
    from rooflinekit.decision.planning.inverse import break_even_prices, fewest_gpus, largest, required_bandwidth
    from rooflinekit.decision.planning.plan import PlanAnswer, plan
    from rooflinekit.decision.sensitivity.levers import levers
    from rooflinekit.decision.sweeping.sweep import sweep
    from rooflinekit.estimation.estimator import estimate
    from rooflinekit.estimation.facts import kv_cache_bytes, max_context, parameters
    from rooflinekit.estimation.frames import estimate_frame
    from rooflinekit.estimation.results import Estimate
    from rooflinekit.evidence.compare import Comparison, compare
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
    from rooflinekit.simulation.predict import predict_step
    from rooflinekit.simulation.simulate import simulate
    from rooflinekit.simulation.steps import step_table
    from rooflinekit.specs import load_accelerator, load_model

_BESIDE = os.path.dirname(os.path.dirname(__file__))  # noqa: PTH120 - pathlib would cost every start
if os.path.isfile(os.path.join(_BESIDE, "pyproject.toml")):  # noqa: PTH113, PTH118
    __path__.append(_BESIDE)  # a checkout holds validate/ and the spec folders beside the package, a wheel inside

_HOME = {
    "Comparison": "rooflinekit.evidence.compare",
    "compare": "rooflinekit.evidence.compare",
    "cost": "rooflinekit.decision.economics.cost",
    "Derivation": "rooflinekit.explanation.front",
    "explain": "rooflinekit.explanation.front",
    "estimate": "rooflinekit.estimation.estimator",
    "kv_cache_bytes": "rooflinekit.estimation.facts",
    "max_context": "rooflinekit.estimation.facts",
    "parameters": "rooflinekit.estimation.facts",
    "estimate_frame": "rooflinekit.estimation.frames",
    "launch": "rooflinekit.decision.launching.launch",
    "Launch": "rooflinekit.decision.launching.launch",
    "ParameterCount": "rooflinekit.model.parameter_count",
    "PlanAnswer": "rooflinekit.decision.planning.plan",
    "plan": "rooflinekit.decision.planning.plan",
    "largest": "rooflinekit.decision.planning.inverse",
    "break_even_prices": "rooflinekit.decision.planning.inverse",
    "fewest_gpus": "rooflinekit.decision.planning.inverse",
    "required_bandwidth": "rooflinekit.decision.planning.inverse",
    "plot": "rooflinekit.report.plots.front",
    "write_plots": "rooflinekit.report.plots.front",
    "Estimate": "rooflinekit.estimation.results",
    "levers": "rooflinekit.decision.sensitivity.levers",
    "predict_step": "rooflinekit.simulation.predict",
    "Report": "rooflinekit.report.page.front",
    "shapes": "rooflinekit.explanation.walk.front",
    "simulate": "rooflinekit.simulation.simulate",
    "step_table": "rooflinekit.simulation.steps",
    "load_accelerator": "rooflinekit.specs",
    "load_model": "rooflinekit.specs",
    "sweep": "rooflinekit.decision.sweeping.sweep",
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
    "Comparison",
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
    "compare",
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
    return str(import_module("rooflinekit.report.answers").html_of(answer))


def _text_of(answer: object) -> str:
    """What `print` shows of an answer: the text of the command line."""
    return str(import_module("rooflinekit.report.answers").text_of(answer))


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
