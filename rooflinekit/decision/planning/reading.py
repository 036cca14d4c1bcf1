"""What a plan is asked, read from keywords."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any

from rooflinekit.decision.planning.cost import Tariff, read_tariff
from rooflinekit.decision.planning.demand import read_demand
from rooflinekit.decision.planning.objective import parse_objectives, refuse_undecoded
from rooflinekit.decision.planning.option import Reserve
from rooflinekit.decision.planning.search import Question
from rooflinekit.decision.planning.space import Space
from rooflinekit.estimation.options import read
from rooflinekit.estimation.scenario import Plan
from rooflinekit.model.types.batch import whole_number
from rooflinekit.model.types.dtype import parse_dtype
from rooflinekit.model.types.errors import InputError, WorkloadError
from rooflinekit.specs import load_accelerator, load_model

__all__ = ["read_question"]

_SPACE_LISTS = ("engines", "weights", "kv", "tp", "pp", "ep", "dp", "token_budgets", "max_num_seqs")
_SPACE_SINGLE = ("max_gpus", "memory_fraction", "activations", "disaggregated", "mixed")
_NAMES = {
    "engine": "engines", "token_budget": "token_budgets", "concurrency": "users", "burstiness": "cv", "price": "prices",
    "limit": "limits",
}  # fmt: skip
"""Options whose parts have names of their own here: there may be several."""


def read_question(
    model: str | PathLike[str], gpus: str | Sequence[str], slo: str, scenario: Mapping[str, Any]
) -> Question:
    """Read what a plan is asked.

    Raises InputError (and its kinds) for anything that makes no sense.
    """
    given = {_NAMES.get(key, key): value for key, value in read(Plan, scenario).items()}
    if given.pop("aggregated_only", False):
        given["disaggregated"] = False
    if given.pop("one_kind", False):
        given["mixed"] = False
    names = tuple(dict.fromkeys(_gpu_names((gpus,) if isinstance(gpus, str) else tuple(gpus))))
    load_model(model)
    demand, objectives = read_demand(given), parse_objectives(slo)
    refuse_undecoded(objectives, demand.osl.mean)
    return Question(
        model=str(model),
        demand=demand,
        slo=objectives,
        space=_space(names, given),
        reserve=_reserve(names, given),
        tariff=_tariff(names, given),
        calibration=given.get("calibration"),
        confirm=given.get("confirm", 3),
        seed=given.get("seed", 0),
    )


def _tariff(gpus: tuple[str, ...], given: dict[str, Any]) -> Tariff:
    by = given.get("by", "cost")
    if by not in ("cost", "gpus"):
        raise InputError(f"by must be cost or gpus, not {by!r}")
    tariff = read_tariff(gpus, given.get("prices", {}), given.get("pue", 1.0), given.get("load_gbps"))
    return replace(tariff, by_gpus=by == "gpus")


def _gpu_names(gpus: tuple[str, ...]) -> list[str]:
    """Names as given; those of one accelerator twice are refused."""
    seen: dict[str, str] = {}
    for gpu in gpus:
        name = load_accelerator(gpu).value.name
        if name in seen:
            raise InputError(f"{gpu} and {seen[name]} are the same accelerator; name it once")
        seen[name] = gpu
    return list(gpus)


def _space(gpus: tuple[str, ...], given: dict[str, Any]) -> Space:
    lists: dict[str, Any] = {key: _listed(key, given[key]) for key in _SPACE_LISTS if key in given}
    single: dict[str, Any] = {key: given[key] for key in _SPACE_SINGLE if key in given}
    return Space(gpus, **lists, **single)


def _listed(key: str, value: Any) -> tuple[Any, ...]:
    """One or several; counts are checked."""
    several = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    if not several:
        raise WorkloadError(f"{key} is an empty list; leave it out to search all")
    if key in ("weights", "kv"):
        for each in several:
            parse_dtype(each)  # a format that nobody knows is no candidate's fault
    counted = key not in ("engines", "weights", "kv")
    return tuple(dict.fromkeys(whole_number(each, key) if counted else str(each) for each in several))


def _reserve(gpus: tuple[str, ...], given: dict[str, Any]) -> Reserve:
    limits = []
    for name, most in dict(given.get("limits", {})).items():
        accelerator = load_accelerator(name).value.name
        if accelerator not in {load_accelerator(gpu).value.name for gpu in gpus}:
            raise InputError(f"a limit is given for {accelerator}, which is not among the gpus: {', '.join(gpus)}")
        limits.append((accelerator, whole_number(most, f"limit of {name}", 0)))
    headroom = given.get("headroom", 0.0)
    if isinstance(headroom, (bool, str)):
        raise WorkloadError(f"headroom is a share from 0 to below 1, not {headroom!r}")
    return Reserve(float(headroom), given.get("redundancy", 0), tuple(limits))
