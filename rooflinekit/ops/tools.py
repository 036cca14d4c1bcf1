"""The tools of the service: what may be asked, with which options, and what an answer rests on.

HTTP and MCP offer the rows of this table. They are answered behind a closed door: no file is opened for a caller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypedDict

from rooflinekit.estimation import scenario
from rooflinekit.estimation.options import Keywords, OwnKeywords, model_of, options_of
from rooflinekit.model.types.answer import Json
from rooflinekit.model.types.errors import InputError, RooflinekitError, nearest_of
from rooflinekit.specs import Kind, in_catalogue
from rooflinekit.specs.places import catalogue_alone

if TYPE_CHECKING:
    from pydantic import BaseModel


def _on(table: type, gpus: type = scenario.AcceleratorOptions) -> type:
    made: Any = TypedDict
    found: type = made(table.__name__, {**gpus.__annotations__, **table.__annotations__}, total=False)
    return found


_ESTIMATE = _on(scenario.Scenario)  # of `estimate` and `explain`


@dataclass(frozen=True)
class Tool:
    """One question: its options, and bounds that keep the work small.

    own: arguments beside the table, `...` where a caller must give them; leave: rows that it does not take; quick:
    without a load it is answered in milliseconds; like: arguments and answer to the interval of one that has none.
    """

    name: str
    help: str
    function: Callable[[OwnKeywords], Json]
    table: type
    own: Mapping[str, tuple[object, object]] = field(default_factory=lambda: {"model": (str, ...)})
    leave: tuple[str, ...] = ()
    most: Mapping[str, int] = field(default_factory=dict)
    quick: bool = False
    like: Callable[[OwnKeywords, Json], object] = lambda _asked, _found: None

    @cached_property
    def model(self) -> type[BaseModel]:
        """The arguments as a model of pydantic's, made from the table of options."""
        return model_of(self.table, self.leave, **self.own)

    @cached_property
    def schema(self) -> Json:
        """The arguments as JSON Schema."""
        return self.model.model_json_schema() | {"title": self.name}

    def checked(self, arguments: object) -> OwnKeywords:
        """Arguments that may be answered: known, and in their bounds.

        Raises InputError (and its kinds) in one line.
        """
        from pydantic import ValidationError  # noqa: PLC0415

        try:
            asked = self.model.model_validate(arguments).model_dump(exclude_none=True)
        except ValidationError as error:
            raise InputError(self._said(error.errors(include_url=False, include_input=False)[0])) from None
        for name, value in asked.items():
            if isinstance(value, (int, float)) and value > self.most.get(name, value):
                raise InputError(f"{name} must be at most {self.most[name]:,} here, not {value:,}")
        return asked

    def _said(self, flaw: Mapping[str, Any]) -> str:
        where = ".".join(map(str, flaw["loc"][:2]))
        match flaw["type"]:
            case "missing":
                return f"{where} is missing"
            case "extra_forbidden":
                known = list(self.model.model_fields)
                near = f"nearest: {nearest_of(where, known)}" if known else "this takes none"
                return f"unknown option {where[:60]!r}; {near}"
            case "value_error":
                return str(flaw["ctx"]["error"])
            case _:
                return f"{where}: {flaw['msg']}"

    def quickly(self, asked: Keywords) -> bool:
        """True if these arguments, of whatever value, are answered at once."""
        return self.quick and not {"rate", "concurrency", "users", "draft", "draft_tokens"} & asked.keys()

    def answer(self, asked: OwnKeywords) -> Json:
        """The answer to checked arguments, and what it rests on.

        Raises RooflinekitError (one of its kinds) as the function of Python does.
        """
        with catalogue_alone():
            found = self.function(dict(asked))
            basis = _basis(found)
            if basis["interval"] is None and basis["level"] == "expected":
                basis["interval"] = self.like(asked, found)
        return {"tool": self.name, "answer": found, "basis": basis}


def _basis(found: Any) -> dict[str, object]:
    """Level, 90 % interval, evidence and sources of an answer; None for what it does not have."""
    data = found if isinstance(found, dict) else {}
    best = data.get("best") or next(iter(data.get("runs", ())), data)
    at = best.get("scenario", {})
    names = {kind: best.get(kind) or at.get(kind) or data.get(kind) for kind in ("gpu", "model")}
    sources = [f"rooflinekit://{kind}/{name}" for kind, name in names.items() if isinstance(name, str)]
    if made := best.get("calibration"):
        sources.append(f"calibration {made['name']} ({made['hash']})")
    rests = "best" in data or best.get("evidence")
    level = data.get("level") or ("expected" if made or best.get("interval") else "bound" if rests else None)
    return {"level": level, "interval": best.get("interval"), "evidence": best.get("evidence"), "sources": sources}


def _ask(where: str) -> Callable[[OwnKeywords], Json]:
    """A function of the package by its place, imported when it is asked."""

    def call(asked: OwnKeywords) -> Json:
        module, name = where.split(":")
        found: Json = getattr(import_module(f"rooflinekit.{module}"), name)(**asked).to_dict()
        return found

    return call


def _estimate(asked: OwnKeywords) -> Json:
    """Without the origin of every fact, which `explain` and the resources say; kernels if they are asked for."""
    from rooflinekit.estimation.estimator import estimate  # noqa: PLC0415

    kernels = asked.pop("kernels", False)
    found = replace(estimate(**asked), provenance=())
    if not kernels:
        found = replace(found, **{step: replace(getattr(found, step), kernels=()) for step in ("prefill", "decode")})
    data = found.to_dict()
    del data["provenance"]
    return data


def _interval(asked: OwnKeywords, _found: object = None) -> object:
    return _estimate({name: value for name, value in asked.items() if name == "model" or name in _LOADED})["interval"]


def _simulated(asked: OwnKeywords, found: Json) -> object:
    """The means of a simulation, with ends as far from them as those of an estimate of each replica's load.

    None where there is no such estimate: of conversations, stages on machines of their own, drafts and tiers. Nor where
    the run has not settled, or the load is more than a replica serves.
    """
    if {"sessions", "prefill_replicas", "draft_tokens", "cache_tier"} & asked.keys() or not found["settled"]:
        return None
    share = {name: asked[name] / asked.get("replicas", 1) for name in ("rate", "concurrency") if name in asked}
    alike = {name: value for name, value in asked.items() if name != "requests"} | share
    if "concurrency" in share:
        alike["concurrency"] = max(round(share["concurrency"]), 1)
    if not share:
        return None
    try:
        made = _estimate({name: value for name, value in alike.items() if name == "model" or name in _LOADED})
    except RooflinekitError:
        return None
    pairs = {name: (made["interval"] or {}).get(name) or () for name in ("ttft_ms", "tpot_ms")}
    known = all(pair and found[name] and found[name]["mean"] for name, pair in pairs.items())
    if not (known and made["load"]["stable"]):
        return None
    return {name: [end and end / made[name] * found[name]["mean"] for end in pair] for name, pair in pairs.items()}


def _explain(asked: OwnKeywords) -> dict[str, object]:
    """The tree down to a depth: a whole one is as long as a book, and its parts can be asked for by name."""
    from rooflinekit.explanation.front import explain  # noqa: PLC0415

    depth = asked.pop("depth")
    data = explain(**asked).to_dict()
    return data | {"derivation": _cut(data["derivation"], depth)}


def _cut(node: Json, depth: int) -> Json:
    """A tree of so many levels; what has more below says how many parts."""
    parts = node["children"]
    if depth > 0:
        return {**node, "children": [_cut(each, depth - 1) for each in parts]}
    return {**node, "children": []} | ({"parts": len(parts)} if parts else {})


def _plan(asked: OwnKeywords) -> dict[str, object]:
    from rooflinekit.decision.planning.plan import plan  # noqa: PLC0415

    named = {"model": in_catalogue("model", asked.pop("model")), "gpus": asked.pop("gpu", ["h100-sxm"])}
    return plan(**named, **asked).to_dict()


def _compare(asked: OwnKeywords) -> dict[str, object]:
    from rooflinekit.evidence.benchmark_runs import Given  # noqa: PLC0415
    from rooflinekit.evidence.compare import compare_runs  # noqa: PLC0415
    from rooflinekit.evidence.measured import from_json  # noqa: PLC0415
    from rooflinekit.evidence.tools import known_tools  # noqa: PLC0415

    entries = list(from_json("run", asked.pop("run")))
    if not entries:
        raise InputError(f"run: nothing that is known wrote this; known: {', '.join(known_tools())}")
    return compare_runs(entries, Given.of(**asked), {}).to_dict()


def _listed(kind: Kind) -> Callable[[OwnKeywords], Json]:
    def call(asked: OwnKeywords) -> Json:
        from rooflinekit import specs  # noqa: PLC0415
        from rooflinekit.report import catalogue  # noqa: PLC0415

        row, load = getattr(catalogue, f"{kind}_row"), getattr(specs, f"load_{kind}")
        return {f"{kind}s": [row(load(name).value) for name in specs.names(kind)]}

    return call


_WORK = {"requests": 5000, "warmup": 5000, "replicas": 64, "prefill_replicas": 64, "samples": 64}
_FILES = ("trace", "clean", "speed")
_MACHINES = ("cells", "workers", "scheduler")
_LOADED = options_of(_ESTIMATE)
TOOLS: Mapping[str, Tool] = {
    tool.name: tool
    for tool in (
        Tool("estimate", "Predict TTFT, TPOT, throughput, memory and power, of a static batch or under load.",
             _estimate, _ESTIMATE, {"model": (str, ...), "kernels": (bool, False)}, quick=True),
        Tool("plan", "Find the cheapest deployments that carry a traffic within objectives: 'p95 ttft<1s'.",
             _plan, _on(scenario.PlanOptions, scenario.Accelerators),
             {"model": (str, ...), "slo": (str | list[str] | None, None)}, (*_FILES, "classes")),
        Tool("levers", "Say what would help a deployment most, ranked by what it gains.",
             _ask("decision.sensitivity.levers:levers"), _on(scenario.LeversOptions), like=_interval),
        Tool("explain", "Derive a number of an estimate (tpot, ttft, memory, decode.attention ...) from its sources.",
             _explain, _ESTIMATE, {"model": (str, ...), "metric": (str, ...), "depth": (int, 2)}),
        Tool("simulate", "Serve up to 5,000 requests one by one, and give the percentiles that users feel.",
             _ask("simulation.simulate:simulate"), _on(scenario.SimulationOptions),
             leave=(*_FILES, *_MACHINES), most=_WORK, like=_simulated),
        Tool("compare", "Set a result of a benchmark client (its JSON as `run`) beside the prediction.",
             _compare, scenario.ServedOptions, {"run": (dict[str, Any], ...)}),
        Tool("models", "List the models that are known.", _listed("model"), scenario.AcceleratorOptions, {}, ("gpu",)),
        Tool("gpus", "List the accelerators that are known.", _listed("accelerator"), scenario.AcceleratorOptions, {},
             ("gpu",)),
    )
    if tool.name != "compare" or find_spec("rooflinekit.evidence")
}  # fmt: skip
"""By name; `compare` is offered where the package has the wing that answers it."""
