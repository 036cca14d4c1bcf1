"""Speed and cost of an LLM on a GPU, from first principles.

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
    from rooflinekit.decision.economics.retention import TraceAnswer, trace
    from rooflinekit.decision.fits import fits_on
    from rooflinekit.decision.launching.launch import Launch, launch
    from rooflinekit.decision.planning.classes import ClassPlan, plan_classes
    from rooflinekit.decision.planning.inverse import break_even_prices, fewest_gpus, largest, required_bandwidth
    from rooflinekit.decision.planning.plan import PlanAnswer, plan
    from rooflinekit.decision.planning.rollout import RolloutPlan, plan_rollout
    from rooflinekit.decision.sensitivity.levers import levers
    from rooflinekit.decision.sensitivity.moves import advice
    from rooflinekit.decision.sweeping.pareto import interactivity
    from rooflinekit.decision.sweeping.sweep import sweep
    from rooflinekit.estimation.estimator import estimate
    from rooflinekit.estimation.facts import kv_cache_bytes, max_context, parameters, predict_step, step_table
    from rooflinekit.estimation.frames import estimate_frame
    from rooflinekit.estimation.results import Estimate
    from rooflinekit.evidence.compare import Comparison, compare
    from rooflinekit.evidence.guard import Guarded, guard
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
    from rooflinekit.simulation.simulate import simulate
    from rooflinekit.specs import load_accelerator, load_model

_BESIDE = os.path.dirname(os.path.dirname(__file__))  # noqa: PTH120 - pathlib would cost every start
if os.path.isfile(os.path.join(_BESIDE, "pyproject.toml")):  # noqa: PTH113, PTH118
    __path__.append(_BESIDE)  # a checkout holds validate/ and the spec folders beside the package, a wheel inside

_NAMES = {
    "decision.economics.cost": "cost",
    "decision.economics.retention": "TraceAnswer trace",
    "decision.launching.launch": "Launch launch",
    "decision.planning.classes": "ClassPlan plan_classes",
    "decision.planning.inverse": "break_even_prices fewest_gpus largest required_bandwidth",
    "decision.planning.plan": "PlanAnswer plan",
    "decision.planning.rollout": "RolloutPlan plan_rollout",
    "decision.fits": "fits_on",
    "decision.sensitivity.levers": "levers",
    "decision.sensitivity.moves": "advice",
    "decision.sweeping.pareto": "interactivity",
    "decision.sweeping.sweep": "sweep",
    "estimation.estimator": "estimate",
    "estimation.facts": "kv_cache_bytes max_context parameters predict_step step_table",
    "estimation.frames": "estimate_frame",
    "estimation.results": "Estimate",
    "evidence.compare": "Comparison compare",
    "evidence.guard": "Guarded guard",
    "explanation.front": "Derivation explain",
    "explanation.walk.front": "shapes",
    "model.parameter_count": "ParameterCount",
    "model.types.batch": "Batch",
    "model.types.deployment": "Deployment",
    "model.types.dtype": "Dtype",
    "model.types.errors": "DeploymentError DoesNotFitError DtypeError InfeasibleError "
    "InputError RooflinekitError SpecError UnknownNameError WorkloadError",
    "report.page.front": "Report write_report",
    "report.plots.front": "plot write_plots",
    "simulation.simulate": "simulate",
    "specs": "load_accelerator load_model",
}
_HOME = {name: f"rooflinekit.{module}" for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "Batch",
    "ClassPlan",
    "Comparison",
    "Deployment",
    "DeploymentError",
    "Derivation",
    "DoesNotFitError",
    "Dtype",
    "DtypeError",
    "Estimate",
    "Guarded",
    "InfeasibleError",
    "InputError",
    "Launch",
    "ParameterCount",
    "PlanAnswer",
    "Report",
    "RolloutPlan",
    "RooflinekitError",
    "SpecError",
    "TraceAnswer",
    "UnknownNameError",
    "WorkloadError",
    "advice",
    "break_even_prices",
    "compare",
    "cost",
    "estimate",
    "estimate_frame",
    "explain",
    "fewest_gpus",
    "fits_on",
    "guard",
    "interactivity",
    "kv_cache_bytes",
    "largest",
    "launch",
    "levers",
    "load_accelerator",
    "load_model",
    "max_context",
    "parameters",
    "plan",
    "plan_classes",
    "plan_rollout",
    "plot",
    "predict_step",
    "required_bandwidth",
    "shapes",
    "simulate",
    "step_table",
    "sweep",
    "trace",
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
    """HTML of an answer in a notebook; the report that writes it is imported only now."""
    return str(import_module("rooflinekit.report.answers").html_of(answer))


def _text_of(answer: object) -> str:
    """Text that `print` shows of an answer: the text of the command line."""
    return str(import_module("rooflinekit.report.answers").text_of(answer))


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
