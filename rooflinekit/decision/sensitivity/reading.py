"""What a user says about levers, read and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from typing import Any

from rooflinekit.decision.economics.price import PRICE_KEYS, HourlyPrice, positive, quoted_price, read_price
from rooflinekit.decision.sensitivity.moves import Hints
from rooflinekit.decision.sensitivity.question import METRICS, Question
from rooflinekit.decision.sensitivity.setting import Setting
from rooflinekit.estimation.estimator import read_deployment, read_workload
from rooflinekit.estimation.options import part_of, read
from rooflinekit.estimation.scenario import DEPLOYMENT_KEYS, SPECULATION_KEYS, WORKLOAD_KEYS
from rooflinekit.estimation.scenario import Levers as LeverOptions
from rooflinekit.model.types.errors import InputError, UnknownNameError
from rooflinekit.model.types.hardware import Accelerator
from rooflinekit.model.types.speculation import Speculation
from rooflinekit.specs import load_accelerator, load_model

__all__ = ["checked", "read_price_or_say", "read_setting"]


def checked(scenario: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords that were given. Raises InputError for one nobody knows, or two that exclude each other."""
    given = read(LeverOptions, scenario)
    if given.get("by", "cost") not in METRICS:
        raise UnknownNameError("metric to rank by", str(given["by"]), METRICS)
    for key in ("batch", "context"):
        if "concurrency" in given and given.get(key) not in (None, WORKLOAD_KEYS[key]):
            raise InputError(f"{key} describes a static batch and excludes concurrency; leave it out")
    return given


def read_setting(model: str | PathLike[str], gpu: str | PathLike[str], given: dict[str, Any]) -> tuple[Setting, Hints]:
    """The deployment, what is asked of it, and what may be tried. Raises InputError and its kinds."""
    work, users = read_workload(given)[0], "concurrency" in given
    question = Question(replace(work, batch=float(given["concurrency"])) if users else work, users)
    deployment = read_deployment(part_of(given, DEPLOYMENT_KEYS))
    draft = Speculation.read(part_of(given, SPECULATION_KEYS))
    models = _listed(given.get("models"), "models")
    for name in models:
        load_model(name)
    hints = Hints(_accelerators(given.get("gpus")), given.get("prefix"), draft, models)
    calibration = None if "calibration" not in given else str(given["calibration"])
    return Setting(model, gpu, deployment, calibration, question), hints


def _accelerators(given: object) -> Mapping[str, float | None] | None:
    """Names, or names with their price an hour: a mapping, a list, or text such as `h200-sxm=3.5,l40s`."""
    if given is None:
        return None
    if isinstance(given, Mapping):
        pairs = [(str(name), price) for name, price in given.items()]
    else:
        parts = [entry.partition("=") for entry in _listed(given, "gpus")]
        pairs = [(name.strip(), price.strip() or None) for name, _, price in parts]
    found: dict[str, float | None] = {}
    for name, price in pairs:
        load_accelerator(name)
        found[name] = None if price is None else positive(_number(price), f"price of {name}")
    return found


def _number(price: object) -> object:
    try:
        return float(price) if isinstance(price, str) else price
    except ValueError:
        return price


def _listed(given: object, name: str) -> tuple[str, ...]:
    if given is None:
        return ()
    if isinstance(given, str):
        return tuple(entry.strip() for entry in given.split(",") if entry.strip())
    if isinstance(given, (list, tuple)):
        return tuple(str(entry) for entry in given)
    raise InputError(f"{name} must be names, such as 'a,b', not {given!r}")


def read_price_or_say(gpu: Accelerator, given: dict[str, Any]) -> tuple[HourlyPrice | None, list[str]]:
    """The price of an hour, or None and what to say about it."""
    if not any(key in given for key in PRICE_KEYS) and quoted_price(gpu) is None:
        return None, [
            f"{gpu.name} has no price in its file: costs are ratios of GPU hours; give price (USD per GPU hour)"
        ]
    hour = read_price(gpu, given)
    return hour, [f"price {float(hour.usd_per_gpu_hour):.2f} USD per GPU hour: {hour.source}"]
