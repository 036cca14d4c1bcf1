"""JSON Schemas of the other commands, made from the types of their results."""

from __future__ import annotations

from rooflinekit.decision.economics.results import Cost
from rooflinekit.decision.planning.answer import Candidate, Fleet, PlanAnswer
from rooflinekit.decision.sensitivity.balance import Balance
from rooflinekit.decision.sensitivity.results import Levers
from rooflinekit.explanation.walk.result import Phase, Section, Stop, Symbol, Walk, Work
from rooflinekit.model.graph.tree import Node
from rooflinekit.report.schema_estimate import CALIBRATION, ENGINE, LEVEL, REGIMES, estimate_inputs
from rooflinekit.report.schema_types import (
    COUNT,
    DTYPE,
    NUMBER,
    TEXT,
    Schema,
    Types,
    array,
    mapping,
    numbers,
    object_,
    or_null,
)
from rooflinekit.simulation.outcome import Outcome

__all__ = ["cost_schema", "derivation_schema", "levers_schema", "outcome_schema", "plan_schema", "walk_schema"]

_EXPLAINED = "Every key is explained in docs/nomenclature.md."
_NOT_NEGATIVE: Schema = {"type": "number", "minimum": 0}
_MAYBE: Schema = or_null(_NOT_NEGATIVE)
_INPUTS: Schema = mapping({"type": ["string", "number", "boolean", "array", "null"]})
_ENDS: Schema = {"type": "array", "items": _NOT_NEGATIVE, "minItems": 2, "maxItems": 2}


def walk_schema() -> Schema:
    """JSON Schema of `Walk.to_dict()`.

    >>> walk_schema()["$defs"]["Section"]["properties"]["steps"]
    {'type': 'array', 'items': {'$ref': '#/$defs/Step'}}
    """
    types = Types({"Section": {"count": COUNT}, "Phase": {"name": {"enum": ["prefill", "decode"]}}})
    work = object_(types.fields_of(Work) | {"bytes": _NOT_NEGATIVE})
    total = types.define("Work", work)
    step = types.define("Step", object_(types.fields_of(Stop, "work") | work["properties"]))
    part = types.fields_of(Section, "symbols", "stops")
    inside = {"symbols": array(types.of(Symbol)), "total_once": total, "steps": array(step)}
    section = types.define("Section", object_(part | inside))
    whole = types.fields_of(Phase, "sections") | {"total": total, "sections": array(section)}
    phase = types.define("Phase", object_(whole))
    properties = types.fields_of(Walk, "phases") | {"inputs": _walk_inputs(), "phases": array(phase)}
    return types.document("shapes", "Work is of one accelerator. " + _EXPLAINED, object_(properties))


def _walk_inputs() -> Schema:
    counts = dict.fromkeys(("batch", "padded_tokens", "tp", "pp", "ep", "dp"), COUNT)
    formats = dict.fromkeys(("weights", "activations", "kv"), DTYPE)
    return object_({"tokens": array(COUNT), "cached": {"type": "integer", "minimum": 0}, **counts, **formats})


def derivation_schema() -> Schema:
    """JSON Schema of `Derivation.to_dict()`; a formula is over the symbols of the children, in + - * / ** and calls."""
    types = Types({"Node": {"formula": or_null(TEXT)}})
    node = types.of(Node)
    piece = object_({"what": TEXT, "value": NUMBER})
    rule = object_({"text": TEXT, "value": NUMBER, "derivation": node, "difference": array(piece)})
    head = {"version": TEXT, "model": TEXT, "gpu": TEXT, "engine": ENGINE, "level": LEVEL, "calibration": CALIBRATION}
    number = {"metric": TEXT, "value": NUMBER, "unit": TEXT, "interval": or_null(_ENDS), "bound": _MAYBE}
    tree = {"scale": NUMBER, "derivation": node, "rule": or_null(rule)}
    check = {"formulas": {"type": "integer", "minimum": 0}, "largest_gap": _NOT_NEGATIVE, "warnings": array(TEXT)}
    return types.document("explain", "Numbers of the tree are in SI. " + _EXPLAINED,
                          object_({**head, "inputs": estimate_inputs(), **number, **tree, **check}))  # fmt: skip


def levers_schema() -> Schema:
    """JSON Schema of `Levers.to_dict()`."""
    metrics = ("ttft", "tpot", "throughput", "cost")
    price = or_null(object_({"usd_per_gpu_hour": _NOT_NEGATIVE, "source": TEXT}))
    ratio = {"type": "object", "properties": dict.fromkeys(metrics, _MAYBE), "additionalProperties": False}
    types = Types({
        "Levers": {"engine": ENGINE, "level": LEVEL, "calibration": CALIBRATION, "inputs": _levers_inputs(),
                   "by": {"enum": list(metrics)}, "price": price},
        "Elasticity": dict.fromkeys(metrics, NUMBER),
        "MoveResult": {"ratio": ratio},
        "Balance": {"causes": numbers(*REGIMES)},
    })  # fmt: skip
    whole = types.fields_of(Levers)
    shares = {"lever": TEXT, "weight_share": _NOT_NEGATIVE, "kv_share": _NOT_NEGATIVE}
    types.define("Balance", object_(types.fields_of(Balance) | shares))
    return types.document("levers", _EXPLAINED, object_(whole))


def _levers_inputs() -> Schema:
    known = estimate_inputs()["properties"]
    names = ("isl", "osl", "cached", "context", "tp", "pp", "ep", "dp", "cp", "weights", "kv")
    asked = {"batch": or_null(COUNT), "concurrency": or_null(COUNT)}
    return object_({**asked, **{name: known[name] for name in names}})


def plan_schema() -> Schema:
    """JSON Schema of `PlanAnswer.to_dict()`."""
    types = Types({"Fleet": {"headroom": NUMBER}})
    price = object_({"usd_per_gpu_hour": _NOT_NEGATIVE, "source": TEXT, "low": _MAYBE, "high": _MAYBE})
    special = {"traffic": _traffic(), "slo": array(TEXT), "prices": mapping(or_null(price))}
    candidate = types.define("Candidate", _candidate(types))
    fields = types.fields_of(PlanAnswer, "question", "candidates")
    return types.document("plan", _EXPLAINED,
                          object_(fields | special | {"best": candidate, "candidates": array(candidate)}))  # fmt: skip


def _candidate(types: Types) -> Schema:
    """A candidate with its fleets in one of three shapes, by its kind."""
    alone = types.fields_of(Fleet) | {"gpus": COUNT}
    fleet = types.define("Fleet", object_(alone))
    money = dict.fromkeys(("usd_per_hour", "joules_per_output_token", "watts", "output_tok_s"), _MAYBE)
    million = object_(dict.fromkeys(("cached_input", "input", "output", "all"), _MAYBE))
    common = {"gpus": COUNT, "replicas": COUNT, **money, "usd_per_million_tokens": million}
    common |= types.fields_of(Candidate, "fleets", "cost")
    shapes = {
        "aggregated": alone, "disaggregated": {"prefill": fleet, "decode": fleet}, "mixed": {"fleet": array(fleet)},
    }  # fmt: skip
    return {"oneOf": [object_({**shape, **common, "kind": {"const": kind}}) for kind, shape in shapes.items()]}


def _traffic() -> Schema:
    lengths = dict.fromkeys(
        ("isl_mean", "isl_cv", "osl_mean", "osl_cv", "arrival_cv", "peak", "peak_load"), _NOT_NEGATIVE
    )
    return object_({"rate": _MAYBE, "users": _MAYBE, **lengths, "trace": or_null(TEXT)})


def outcome_schema() -> Schema:
    """JSON Schema of `Outcome.to_dict()`, a simulated run."""
    types = Types({"Outcome": {"engine": ENGINE, "level": LEVEL, "calibration": CALIBRATION, "inputs": _INPUTS}})
    return types.document("simulate", _EXPLAINED, object_(types.fields_of(Outcome, "timeline")))


def cost_schema() -> Schema:
    """JSON Schema of `Cost.to_dict()`."""
    types = Types({"Cost": {"engine": ENGINE, "level": LEVEL, "calibration": CALIBRATION, "inputs": _INPUTS}})
    return types.document("cost", _EXPLAINED, object_(types.fields_of(Cost)))
