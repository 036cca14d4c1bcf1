"""The same deployment on hardware that is a little faster in one respect."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.timing.calibrated import FamilyFit
from rooflinekit.model.timing.forms import parameters
from rooflinekit.model.types.hardware import Accelerator, System

RESOURCES = ("bandwidth", "flops", "network", "power", "launch", "host")
"""Rates of memory, arithmetic and links; the board's power limit; latencies of kernels; time of the engine's host."""

_HOST = ("step", "ranks", "sequence", "sequence_ranks", "layer", "launch", "request", "token")


def scaled(predictor: Predictor, resource: str, factor: Any) -> Predictor:
    """The predictor on hardware with one resource multiplied: a rate (higher is faster) or a latency (lower is).

    factor: a number, or a symbol whose slope is asked for.

    bandwidth: of the memory; flops: every peak, at the same joules a FLOP; network: links inside and between domains;
    power: the board's limit, what it draws besides its work, and how fast it settles; launch: every latency that a
    calibration found (launches, tiles, hops, and a collective's wait); host: what the engine adds. Capacity stays.

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
    if resource in ("bandwidth", "flops", "network", "power"):
        return predictor.on(replace(plan, system=_system(plan.system, resource, factor)))
    costs, calibration = plan.engine.costs, plan.calibration
    names = {"launch": ("collective",), "host": _HOST}[resource]
    costs = replace(costs, **{name: getattr(costs, name) * factor for name in names})
    if resource == "launch" and calibration is not None:
        families = {name: _latencies(fit, factor) for name, fit in calibration.families.items()}
        calibration = replace(calibration, families=families)
    return predictor.on(replace(plan, engine=replace(plan.engine, costs=costs), calibration=calibration))


def _system(system: System, resource: str, factor: Any) -> System:
    gpu, links = system.accelerator, ("link_bandwidth", "nic_bandwidth")
    if resource == "bandwidth":
        return replace(system, accelerator=replace(gpu, memory_bandwidth=gpu.memory_bandwidth * factor))
    if resource == "flops":
        peaks = {dtype: peak * factor for dtype, peak in gpu.peaks.items()}
        return replace(system, accelerator=replace(gpu, peaks=peaks))
    if resource == "power":
        return replace(system, accelerator=_powered(gpu, factor))
    faster: Any = {name: getattr(gpu, name) * factor for name in (*links, "pcie_bandwidth")}
    rates: Any = {name: getattr(system, name) * factor for name in links}
    return replace(system, accelerator=replace(gpu, **faster), **rates)


def _powered(gpu: Accelerator, factor: Any) -> Accelerator:
    """With so many times the power limit; the same where no kernel is known to reach it."""
    law = gpu.power
    if law is None or not law.ask:
        return gpu
    drawn: Any = {"idle": law.idle * factor, "active": law.active * factor, "settled": law.settled / factor}
    return replace(gpu, tdp_w=gpu.tdp_w * factor, power=replace(law, **drawn))


def _latencies(fit: FamilyFit, factor: Any) -> FamilyFit:
    """Every parameter in microseconds, multiplied."""
    form: Any = fit.form
    times = {name: getattr(form, name) * factor for name, bounds in parameters(form).items() if bounds.unit == "us"}
    beyond = fit.beyond and replace(fit.beyond, fit=_latencies(fit.beyond.fit, factor))
    return replace(fit, form=replace(form, **times), beyond=beyond)
