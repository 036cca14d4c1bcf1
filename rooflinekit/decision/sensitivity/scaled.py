"""The same deployment on hardware that is a little faster in one respect."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.timing.calibrated import Calibration, FamilyFit
from rooflinekit.model.timing.forms import parameters
from rooflinekit.model.types.engine import StepCosts
from rooflinekit.model.types.hardware import Accelerator, System

__all__ = ["RESOURCES", "scaled"]

RESOURCES = ("bandwidth", "flops", "network", "launch", "host")
"""Rates of memory, arithmetic and links; latencies of kernels; time of the engine's host."""

_HOST = ("step", "ranks", "sequence", "sequence_ranks", "layer", "launch", "request")


def scaled(predictor: Predictor, resource: str, factor: Any) -> Predictor:
    """The predictor on hardware with one resource multiplied: a rate (higher is faster) or a latency (lower is).

    factor: a number, or a symbol whose slope is asked for.

    bandwidth: of the memory; flops: every peak; network: links inside and between domains; launch: every latency that
    a calibration found (launches, tiles, hops, and a collective's wait); host: what the engine adds. Capacity stays.

    >>> from rooflinekit.estimation.estimator import read_deployment, resolve
    >>> from rooflinekit.model.types.workload import Workload
    >>> plain = resolve("llama-3-8b", "h100-sxm", read_deployment({}), "none").predictor
    >>> twice = scaled(plain, "bandwidth", 2.0)
    >>> one = Workload(1.0, 128.0, 2.0)
    >>> round(plain.tpot(one).expected / twice.tpot(one).expected, 6)  # one sequence: the memory and nothing else
    2.0

    Raises KeyError for another resource.
    """
    plan = predictor.plan
    if resource in ("bandwidth", "flops", "network"):
        return predictor.on(replace(plan, system=_system(plan.system, resource, factor)))
    names = {"launch": ("collective",), "host": _HOST}[resource]
    costs = _costs(plan.engine.costs, names, factor)
    calibration = plan.calibration
    if resource == "launch" and calibration is not None:
        calibration = _latencies(calibration, factor)
    return predictor.on(replace(plan, engine=replace(plan.engine, costs=costs), calibration=calibration))


def _system(system: System, resource: str, factor: Any) -> System:
    gpu = system.accelerator
    if resource == "bandwidth":
        return replace(system, accelerator=replace(gpu, memory_bandwidth=gpu.memory_bandwidth * factor))
    if resource == "flops":
        peaks = {dtype: peak * factor for dtype, peak in gpu.peaks.items()}
        return replace(system, accelerator=replace(gpu, peaks=peaks))
    links: dict[str, Any] = {
        "link_bandwidth": system.link_bandwidth * factor,
        "nic_bandwidth": system.nic_bandwidth * factor,
    }
    return replace(system, accelerator=_links(gpu, factor), **links)


def _links(gpu: Accelerator, factor: Any) -> Accelerator:
    rates = ("link_bandwidth", "nic_bandwidth", "pcie_bandwidth")
    return replace(gpu, **{name: getattr(gpu, name) * factor for name in rates})


def _costs(costs: StepCosts, names: tuple[str, ...], factor: Any) -> StepCosts:
    changes: dict[str, Any] = {name: getattr(costs, name) * factor for name in names}
    return replace(costs, **changes)


def _latencies(calibration: Calibration, factor: Any) -> Calibration:
    families = {name: _fit(fit, factor) for name, fit in calibration.families.items()}
    return replace(calibration, families=families)


def _fit(fit: FamilyFit, factor: Any) -> FamilyFit:
    """Every parameter in microseconds, multiplied."""
    times: Any = {
        name: getattr(fit.form, name) * factor for name, bounds in parameters(fit.form).items() if bounds.unit == "us"
    }
    form: Any = fit.form
    beyond = fit.beyond and replace(fit.beyond, fit=_fit(fit.beyond.fit, factor))
    return replace(fit, form=replace(form, **times), beyond=beyond)
