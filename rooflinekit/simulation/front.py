"""The front door of the simulator: names and keywords in, `Outcome` out."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import Any

from rooflinekit.estimation.estimator import DEPLOYMENT_KEYS, read_deployment, resolve
from rooflinekit.model.types.batch import whole_number
from rooflinekit.model.types.errors import InputError, WorkloadError, nearest
from rooflinekit.simulation.event_loop import Watch
from rooflinekit.simulation.load import Question, make_load
from rooflinekit.simulation.outcome import Outcome
from rooflinekit.simulation.simulate import Scheduler, Setup, serve

__all__ = ["SIMULATION_KEYS", "simulate"]

_QUESTION, _SCHEDULER, _SETUP = (
    tuple(field.name for field in fields(kind) if field.name != "scheduler") for kind in (Question, Scheduler, Setup)
)
SIMULATION_KEYS = tuple(dict.fromkeys((*_QUESTION, *DEPLOYMENT_KEYS, "calibration", *_SCHEDULER, *_SETUP)))
"""Keywords of `simulate`."""

_COUNTS = dict.fromkeys(
    ("concurrency", "requests", "samples", "prefix_groups", "queue_limit", "replicas", "block_size", "kv_tokens",
     "hash_tokens", "staging"), 1,
) | dict.fromkeys(("warmup", "shared_prefix", "draft_tokens", "prefill_replicas", "seed"), 0)  # fmt: skip
_NUMBERS = ("duration", "ttft_ms", "tpot_ms", "acceptance", "draft_ms", "host_gib", "link_gb_s", "link_ms")


def simulate(
    model: str | PathLike[str], gpu: str | PathLike[str] = "h100-sxm", watch: Watch | None = None, **scenario: Any
) -> Outcome:
    """Serve requests step by step on replicas of a deployment.

    Args:
        model: a model's name or path.
        gpu: an accelerator's name or path.
        watch: sees every step as it ends, such as a `ChromeTrace`.
        **scenario: the load (`Question`: rate, concurrency, arrivals or trace, isl, osl, requests, …), the deployment
            as `estimate` takes it, the scheduler (`Scheduler`: policy, token_budget, …) and the fleet (`Setup`:
            replicas, router, prefix_cache, …). None means the default.

    Raises:
        InputError: (and its kinds) for anything that makes no sense; DoesNotFitError if the cache holds no request.

    >>> outcome = simulate("llama-3-8b", rate=4.0, requests=50, isl=512, osl="uniform:20-60", calibration="none")
    >>> outcome.requests.finished, outcome.level
    (50, 'bound')
    """
    for key in scenario:
        if key not in SIMULATION_KEYS:
            near = nearest(key, SIMULATION_KEYS) or SIMULATION_KEYS
            raise InputError(f"unknown option {key!r}; nearest: {', '.join(near)}")
    given = {key: _checked(key, value) for key, value in scenario.items() if value is not None}
    deployment = read_deployment({key: given[key] for key in DEPLOYMENT_KEYS if key in given})
    question = _question(given)
    load, hash_tokens, notes = make_load(question, given.get("seed", 0))
    scheduler = Scheduler(**{key: given[key] for key in _SCHEDULER if key in given})
    chosen = {"hash_tokens": hash_tokens} | {key: given[key] for key in _SETUP if key in given}
    resolved = resolve(model, gpu, deployment, given.get("calibration"))
    outcome = serve(resolved, load, Setup(scheduler, **chosen), watch)
    return replace(outcome, inputs=_asked(question) | outcome.inputs, warnings=(*notes, *outcome.warnings))


def _checked(key: str, value: Any) -> Any:
    """Refuse a count that is not whole or too small, and a number below 0 or infinite; a run alone may have no end."""
    if key in _COUNTS:
        return whole_number(value, key, _COUNTS[key])
    if key in _NUMBERS and (isinstance(value, bool) or not isinstance(value, Real) or not float(value) >= 0):
        raise WorkloadError(f"{key} must be a number of at least 0, not {value!r}")
    if key in _NUMBERS and key != "duration" and math.isinf(value):
        raise WorkloadError(f"{key} must be a finite number, not {value!r}")
    return value


def _asked(question: Question) -> dict[str, Any]:
    """The load as plain values: a path as text, no end as None, objectives by names that are no result's."""
    asked = {field.name: getattr(question, field.name) for field in fields(question)}
    asked["trace"] = None if question.trace is None else str(question.trace)
    asked["duration"] = None if math.isinf(question.duration) else question.duration
    asked["classes"] = list(question.classes)
    objective = {f"objective_{key}": asked.pop(key) for key in ("ttft_ms", "tpot_ms")}
    return asked | objective


def _question(given: dict[str, Any]) -> Question:
    asked = {key: given[key] for key in _QUESTION if key in given}
    asked |= {key: str(asked[key]) for key in ("isl", "osl") if key in asked}
    if "trace" in asked:
        asked["trace"] = Path(asked["trace"])
    return Question(**asked)
