"""What a page needs of a plan, checked: a plan may have been written by another version, or by hand."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, get_args

from pydantic import AfterValidator, ConfigDict, Discriminator, Field, FiniteFloat, Tag, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # typing's own cannot be read back before Python 3.12

from rooflinekit.model.types.errors import InputError
from rooflinekit.specs.files import read_json


def _object(**entries: Any) -> Any:
    """A part of a plan; keys that no page reads may be there too."""
    made: Any = TypedDict
    found = made("part", entries)
    found.__pydantic_config__ = ConfigDict(strict=True)
    return found


def _one_load(traffic: dict[str, Any]) -> dict[str, Any]:
    if (traffic["rate"] is None) == (traffic["users"] is None):
        raise ValueError("must have a rate or users, one of the two")
    return traffic


def _checks() -> TypeAdapter[Any]:
    """What a plan consists of."""
    size, positive = Annotated[FiniteFloat, Field(ge=0)], Annotated[FiniteFloat, Field(gt=0)]
    count, natural = Annotated[int, Field(gt=0)], Annotated[int, Field(ge=0)]
    spreads = dict.fromkeys(("isl_cv", "osl_cv", "arrival_cv"), NotRequired[size])
    traffic = _object(rate=positive | None, users=positive | None, isl_mean=positive, osl_mean=positive,
                      peak=NotRequired[positive], **spreads)  # fmt: skip
    scenario = _object(gpu=str)
    fleet = {"role": NotRequired[str], "scenario": scenario, "replicas": count, "spare": NotRequired[natural],
             "share": NotRequired[positive], "load": positive}  # fmt: skip
    time = _object(mean=size, **dict.fromkeys(("p50", "p90", "p95", "p99"), size | None))
    times = _object(ttft_ms=time, tpot_ms=time, e2el_ms=time)
    candidate = {"gpus": count, "usd_per_hour": size | None, "usd_per_million_tokens": _object(all=size | None),
                 "predicted": times, "simulated": times | None, "confirmed": bool | None,
                 "lost": str | None}  # fmt: skip
    kinds = {
        "aggregated": _object(**candidate, **fleet),
        "disaggregated": _object(**candidate, prefill=_object(**fleet), decode=_object(**fleet)),
        "mixed": _object(**candidate, fleet=Annotated[list[_object(**fleet)], Field(min_length=1)]),  # type: ignore[misc]
    }
    tagged: Any = reduce(or_, (Annotated[kind, Tag(name)] for name, kind in kinds.items()))
    one: Any = Annotated[tagged, Discriminator(_kind)]
    point = _object(scenario=scenario, tok_s_per_user=positive, tok_s_per_gpu=positive, e2el_ms=positive,
                    usd_per_million_tokens=size | None, on=list[str])  # fmt: skip
    interval = _object(month=count, hour=size, rate=size, gpus=count)
    price = _object(usd_per_gpu_hour=size, source=str, term=str, low=size | None, high=size | None)
    hours = _object(profile=str, answer=str, span_h=positive,
                    intervals=Annotated[list[interval], Field(min_length=1)])  # type: ignore[valid-type]  # fmt: skip
    return TypeAdapter(_object(
        version=str, model=str, traffic=Annotated[traffic, AfterValidator(_one_load)], slo=list[str], answer=str,
        candidates=Annotated[list[one], Field(min_length=1)], pareto=list[point],  # type: ignore[valid-type]
        refused=NotRequired[list[_object(what=str, why=str)]],  # type: ignore[misc]
        prices=NotRequired[dict[str, price | None]],  # type: ignore[valid-type]
        tried=NotRequired[natural], warnings=list[str], over_time=NotRequired[hours | None],
    ))  # fmt: skip


_Kind = Literal["aggregated", "disaggregated", "mixed"]


def _kind(candidate: object) -> object:
    return candidate.get("kind") if isinstance(candidate, Mapping) else None


def read_plan(plan: object) -> dict[str, Any]:
    """A plan from what `rk.plan` returned, from its JSON as a dict, or from a file of `rooflinekit plan --format json`.

    Raises InputError (SpecError for the file) where it is no plan, naming the first part of it that is wrong.
    """
    named = plan if isinstance(plan, (str, PathLike)) else "the plan"
    found = plan.to_dict() if hasattr(plan, "to_dict") else plan
    if isinstance(plan, (str, PathLike)):
        found = read_json(Path(plan))
    if not isinstance(found, Mapping):
        raise InputError(f"a plan is what rk.plan returns, its JSON as a dict, or a file, not a {type(plan).__name__}")
    if {"what", "value", "at"} <= found.keys():
        raise InputError(
            "this answers plan --max: one deployment, no candidates; report on it by its MODEL and options"
        )
    try:
        _checks().validate_python(found)
    except ValidationError as error:
        raise InputError(f"{named} is no plan of `rooflinekit plan --format json`: {_first(error)}") from None
    return dict(found)


def _first(error: ValidationError) -> str:
    """Where it first differs, and what is wanted there."""
    told = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in told["loc"] if part not in get_args(_Kind))
    if told["type"].startswith("union_tag"):
        return f"{where}.kind must be one of {', '.join(get_args(_Kind))}"
    wanted = {"missing": "is missing", "too_short": "is empty"}.get(told["type"])
    return f"{where} {wanted or _plain(told['msg'])}"


def _plain(message: str) -> str:
    """The checker's words in ours."""
    ours = {"Input should": "must", "valid ": "", "Value error, ": "", "a dictionary": "an object"}
    for theirs, own in ours.items():
        message = message.replace(theirs, own)
    return message.partition(" or instance")[0]
