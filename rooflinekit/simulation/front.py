"""The front door of the simulator: names and keywords in, `Outcome` out."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from os import PathLike
from pathlib import Path
from typing import Any, Unpack

from rooflinekit.estimation.estimator import read_deployment, resolve
from rooflinekit.estimation.lengths import spread_length
from rooflinekit.estimation.options import keywords, number_of, part_of, read
from rooflinekit.estimation.scenario import DEPLOYMENT_KEYS, WORKLOAD_KEYS, Simulation
from rooflinekit.model.types.errors import InputError, UnknownNameError
from rooflinekit.simulation.event_loop import Watch
from rooflinekit.simulation.load import Question, make_load
from rooflinekit.simulation.outcome import Outcome
from rooflinekit.simulation.simulate import Scheduler, Setup, serve

__all__ = ["simulate"]

_QUESTION, _SCHEDULER, _SETUP = (
    tuple(field.name for field in fields(kind) if field.name != "scheduler") for kind in (Question, Scheduler, Setup)
)
_NAMES = {"burstiness": "cv", "ttft": "ttft_ms", "tpot": "tpot_ms"}  # of options in a `Question`


@keywords(Simulation)
def simulate(
    model: str | PathLike[str],
    gpu: str | PathLike[str] = "h100-sxm",
    watch: Watch | None = None,
    **scenario: Unpack[Simulation],
) -> Outcome:
    """Serve requests step by step on replicas of a deployment.

    Args:
        model: a model's name or path.
        gpu: an accelerator's name or path.
        watch: sees every step as it ends, such as a `ChromeTrace`.
        **scenario: the options of `Simulation`, which docs/cli.md lists; None leaves one to its default.

    Raises:
        InputError: (and its kinds) for anything that makes no sense; DoesNotFitError if the cache holds no request.

    >>> outcome = simulate("llama-3-8b", rate=4.0, requests=50, isl=512, osl="uniform:20-60", calibration="none")
    >>> outcome.requests.finished, outcome.level
    (50, 'bound')
    """
    given = read(Simulation, scenario)
    deployment = read_deployment(part_of(given, DEPLOYMENT_KEYS))
    question = _question(given)
    load, hash_tokens, notes = make_load(question, given.get("seed", 0))
    scheduler = Scheduler(**part_of(given, _SCHEDULER) | _ordered(given))
    chosen = {"hash_tokens": hash_tokens} | part_of(given, _SETUP)
    resolved = resolve(model, gpu, deployment, given.get("calibration"))
    outcome = serve(resolved, load, Setup(scheduler, **chosen), watch)
    return replace(outcome, inputs=_asked(question) | outcome.inputs, warnings=(*notes, *outcome.warnings))


def _ordered(given: dict[str, Any]) -> dict[str, Any]:
    """The order of the queue, and one acceptance of all drafted tokens."""
    order, chosen = given.get("order", "fcfs"), {}
    if order not in ("fcfs", "priority"):
        raise UnknownNameError("order", order, ("fcfs", "priority"))
    if "order" in given:
        chosen["by_class"] = order == "priority"
    if "acceptance" in given:
        chosen["acceptance"] = number_of("acceptance", given["acceptance"])
    return chosen


def _asked(question: Question) -> dict[str, Any]:
    """The load as plain values: a path as text, no end as None, objectives by names that are no result's."""
    asked = {field.name: getattr(question, field.name) for field in fields(question)}
    asked["trace"] = None if question.trace is None else str(question.trace)
    asked["duration"] = None if math.isinf(question.duration) else question.duration
    asked["classes"] = list(question.classes)
    objective = {f"objective_{key}": asked.pop(key) for key in ("ttft_ms", "tpot_ms")}
    return asked | objective


def _question(given: dict[str, Any]) -> Question:
    """What is sent; a mean and its variation are a log-normal length."""
    asked = {_NAMES.get(key, key): value for key, value in given.items() if _NAMES.get(key, key) in _QUESTION}
    for key, usual in WORKLOAD_KEYS.items():
        if key in ("isl", "osl"):
            asked[key] = spread_length(key, given.get(key, usual), given.get(f"{key}_cv"))
    if isinstance(asked.get("classes"), str):
        asked["classes"] = _shares(asked["classes"])
    if "trace" in asked:
        asked["trace"] = Path(asked["trace"])
    return Question(**asked)


def _shares(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise InputError(f"classes must be shares such as 0.2,0.8, not {text!r}") from None
