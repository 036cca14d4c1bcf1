"""What a page needs of a plan, checked: a plan may have been written by another version, or by hand."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Discriminator, Field, FiniteFloat, Tag, ValidationError, model_validator

from rooflinekit.model.types.errors import InputError
from rooflinekit.specs.files import read_json

__all__ = ["read_plan"]


_NotNegative = Annotated[FiniteFloat, Field(ge=0)]
_Positive = Annotated[FiniteFloat, Field(gt=0)]


class _Part(BaseModel):
    """A part of a plan; keys that no page reads may be there too."""

    model_config = ConfigDict(strict=True, defer_build=True)


class _Traffic(_Part):
    rate: _Positive | None
    users: _Positive | None
    isl_mean: _Positive
    osl_mean: _Positive
    isl_cv: _NotNegative = 0.0
    osl_cv: _NotNegative = 0.0
    arrival_cv: _NotNegative = 1.0
    peak: _Positive = 1.0

    @model_validator(mode="after")
    def _one_load(self) -> Self:
        if (self.rate is None) == (self.users is None):
            raise ValueError("must have a rate or users, one of the two")
        return self


class _Scenario(_Part):
    gpu: str


class _Fleet(_Part):
    role: str = ""
    scenario: _Scenario
    replicas: Annotated[int, Field(gt=0)]
    spare: Annotated[int, Field(ge=0)] = 0
    share: _Positive = 1.0
    load: _Positive


class _Million(_Part):
    all: _NotNegative | None


class _Spread(_Part):
    mean: _NotNegative
    p50: _NotNegative | None
    p90: _NotNegative | None
    p95: _NotNegative | None
    p99: _NotNegative | None


class _Latencies(_Part):
    ttft_ms: _Spread
    tpot_ms: _Spread
    e2el_ms: _Spread


class _Candidate(_Part):
    gpus: Annotated[int, Field(gt=0)]
    usd_per_hour: _NotNegative | None
    usd_per_million_tokens: _Million
    predicted: _Latencies
    simulated: _Latencies | None
    confirmed: bool | None
    lost: str | None


class _Aggregated(_Candidate, _Fleet):
    """All replicas alike."""


class _Mixed(_Candidate):
    fleet: Annotated[list[_Fleet], Field(min_length=1)]


class _Disaggregated(_Candidate):
    prefill: _Fleet
    decode: _Fleet


_Kind = Literal["aggregated", "disaggregated", "mixed"]


def _kind(candidate: object) -> object:
    return candidate.get("kind") if isinstance(candidate, Mapping) else None


class _Point(_Part):
    scenario: _Scenario
    tok_s_per_user: _Positive
    tok_s_per_gpu: _Positive
    e2el_ms: _Positive
    usd_per_million_tokens: _NotNegative | None
    on: list[str]


class _Refusal(_Part):
    what: str
    why: str


class _Plan(_Part):
    version: str
    model: str
    traffic: _Traffic
    slo: list[str]
    answer: str
    candidates: Annotated[
        list[
            Annotated[
                Annotated[_Aggregated, Tag("aggregated")]
                | Annotated[_Disaggregated, Tag("disaggregated")]
                | Annotated[_Mixed, Tag("mixed")],
                Discriminator(_kind),
            ]
        ],
        Field(min_length=1),
    ]
    pareto: list[_Point]
    refused: list[_Refusal] = []
    tried: Annotated[int, Field(ge=0)] = 0
    warnings: list[str]


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
        _Plan.model_validate(found)
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
