"""What a user says about costs, read and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any

from rooflinekit.decision.economics.dialogue import Dialogue
from rooflinekit.decision.economics.price import PRICE_KEYS, positive
from rooflinekit.estimation.estimator import DEPLOYMENT_KEYS, WORKLOAD_KEYS, estimate
from rooflinekit.model.types.batch import whole_number
from rooflinekit.model.types.errors import DoesNotFitError, InputError, WorkloadError, nearest
from rooflinekit.simulation.lengths import MOST_TOKENS, Length, parse_length

__all__ = ["COST_DEFAULTS", "CostQuestion", "checked_cost", "refuse_misfit"]

COST_DEFAULTS: dict[str, Any] = {
    "isl": "1024", "osl": "256", "cached": 0, "concurrency": None, "utilisation": 1.0,
    "turns": 10, "question": 100, "system_prompt": 500,
    "calls": 20, "agent_prompt": 4000, "tool_result": 800, "tool_call": 100, "shared_prompt": False,
    "long_context": None, "reserve": None,
}  # fmt: skip
"""Lengths of dialogues are examples, not measurements; they are printed with the answer."""

_KEYS = (*COST_DEFAULTS, *DEPLOYMENT_KEYS, *PRICE_KEYS, "calibration")
_MOST_TURNS = 100_000
_LONG = 131_072


@dataclass(frozen=True)
class CostQuestion:
    """Lengths of requests, what runs at once, and the dialogues to price; counts in tokens."""

    isl: Length
    osl: Length
    cached: int
    concurrency: int | None
    utilisation: float
    pue: float
    conversation: Dialogue
    agent: Dialogue
    long_context: int
    long_given: bool
    reserve: int | None

    @property
    def prompt(self) -> float:
        """Mean prompt, in whole tokens."""
        return float(max(round(self.isl.mean), 1))

    @property
    def output(self) -> float:
        """Mean output, in whole tokens."""
        return float(max(round(self.osl.mean), 1))

    @classmethod
    def read(cls, scenario: Mapping[str, Any]) -> CostQuestion:
        """Read keywords; those of the deployment and of prices are left alone.

        Raises WorkloadError for a number that makes no sense.
        """
        given = COST_DEFAULTS | {key: scenario[key] for key in COST_DEFAULTS if scenario.get(key) is not None}
        isl, osl = (parse_length(str(given[key])) for key in ("isl", "osl"))
        count = {key: _count(given, key) for key in ("question", "tool_result", "tool_call")}
        count |= {key: _count(given, key, 0) for key in ("cached", "system_prompt", "agent_prompt")}
        turns, calls = (_turns(given, key) for key in ("turns", "calls"))
        shared = bool(given["shared_prompt"])
        asked = cls(
            isl, osl, count["cached"],
            None if given["concurrency"] is None else whole_number(given["concurrency"], "concurrency"),
            positive(given["utilisation"], "utilisation"),
            positive(1.0 if scenario.get("pue") is None else scenario["pue"], "pue"),
            Dialogue(turns, count["system_prompt"], count["question"], max(round(osl.mean), 1), shared),
            Dialogue(calls, count["agent_prompt"], count["tool_result"], count["tool_call"], shared),
            _count({"long_context": _LONG} | {k: v for k, v in given.items() if v is not None}, "long_context", 2),
            given["long_context"] is not None,
            None if given["reserve"] is None else _count(given, "reserve"),
        )  # fmt: skip
        asked._check()
        return asked

    def _check(self) -> None:
        if self.utilisation > 1.0:
            raise WorkloadError(f"utilisation is a share of the time, above 0 and at most 1, not {self.utilisation:g}")
        if self.pue < 1.0:
            raise WorkloadError(
                f"pue is power of the building over power of the machines, at least 1, not {self.pue:g}"
            )
        if self.reserve is not None and self.reserve < self.prompt + self.output:
            raise WorkloadError(
                f"reserve={self.reserve} holds no mean request of {self.prompt + self.output:.0f} tokens"
            )
        if self.cached >= self.prompt:
            raise WorkloadError(f"cached={self.cached} leaves nothing of isl={self.prompt:.0f} to compute; use less")


def checked_cost(scenario: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords that were given. Raises InputError for one nobody knows."""
    for key in scenario:
        if key not in _KEYS:
            raise InputError(f"unknown option {key!r}; nearest: {', '.join(nearest(key, _KEYS)) or ', '.join(_KEYS)}")
    return {key: value for key, value in scenario.items() if value is not None}


def refuse_misfit(model: str | PathLike[str], gpu: str | PathLike[str], given: Mapping[str, Any], misfit: str) -> None:
    """Say what `estimate` says of such a batch, or else `misfit`. Raises DoesNotFitError."""
    asked = {key: given[key] for key in (*WORKLOAD_KEYS, *DEPLOYMENT_KEYS, "calibration") if key in given}
    try:
        estimate(model, gpu, **asked)
    except DoesNotFitError as error:
        raise DoesNotFitError(str(error).partition(" (--allow-oom")[0]) from None  # an option of estimate alone
    raise DoesNotFitError(misfit)


def _count(given: Mapping[str, Any], key: str, least: int = 1) -> int:
    value = whole_number(given[key], key, least)
    if value > MOST_TOKENS:
        raise WorkloadError(f"{key} must be at most {MOST_TOKENS:,} tokens, not {value}")
    return value


def _turns(given: Mapping[str, Any], key: str) -> int:
    value = whole_number(given[key], key)
    if value > _MOST_TURNS:
        raise WorkloadError(f"{key} must be at most {_MOST_TURNS:,}, not {value}")
    return value
