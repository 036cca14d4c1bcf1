"""The front door: a metric of an estimate, explained."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Unpack

from rooflinekit.estimation.estimator import answer, ask, play, played
from rooflinekit.estimation.options import keywords
from rooflinekit.estimation.results import Estimate
from rooflinekit.estimation.scenario import Scenario
from rooflinekit.explanation.metrics import COUNTED, TIMELESS, Case, find_metric, full_name
from rooflinekit.model.graph.tree import Node, tree
from rooflinekit.model.types.answer import Answer, DeploymentAnswer, Json
from rooflinekit.model.types.errors import InputError
from rooflinekit.model.types.frozen import dataclass, field, fields, replace

__all__ = ["TIMELESS", "Derivation", "derive", "explain", "make_case"]


@dataclass(frozen=True)
class Derivation(Answer):
    """One metric with its tree: `value` in `unit` is what `estimate` says; the tree is in SI units.

    largest_gap: the largest error of a formula, read back from its text, as a share of its number.
    """

    metric: str
    value: float
    unit: str
    scale: float  #: of the root: value = scale · root.value
    root: Node = field(repr=False)
    answer: Estimate = field(repr=False)

    @property
    def level(self) -> str:
        """Level of the number: "expected" (calibrated) or "bound" (datasheet)."""
        return self.answer.level

    @property
    def interval(self) -> list[float] | None:
        """The 90 % interval of TTFT and TPOT, in the unit of the value."""
        return (self.answer.interval or {}).get(f"{self.metric}_ms")

    @property
    def bound(self) -> float | None:
        """The datasheet bound of TTFT and TPOT, in the unit of the value."""
        return self.answer.bound.get(f"{self.metric}_ms")

    @property
    def warnings(self) -> tuple[str, ...]:
        """Remarks of `estimate`, where the number is one of the deployment."""
        return () if self.metric in COUNTED else self.answer.warnings

    @property
    def formulas(self) -> int:
        """Formulas in the tree."""
        return sum(1 for node in self.root.walk() if node.formula)

    @property
    def largest_gap(self) -> float:
        """Largest relative difference of a formula from its number."""
        return max(node.gap for node in self.root.walk())

    def to_dict(self) -> Json:
        """Plain values, ready for JSON."""
        asked = {each.name: getattr(self.answer, each.name) for each in fields(DeploymentAnswer)}
        answered = {name: getattr(self, name) for name in ("metric", "value", "unit", "interval", "bound", "scale")}
        derived = {"derivation": self.root.to_dict(), "formulas": self.formulas}
        return asked | answered | derived | {"largest_gap": self.largest_gap, "warnings": list(self.warnings)}


@keywords(Scenario)
def explain(
    model: str | PathLike[str],
    metric: str = "tpot",
    gpu: str | PathLike[str] = "h100-sxm",
    **scenario: Unpack[Scenario],
) -> Derivation:
    """Derive one metric of `estimate(model, gpu, **scenario)`: formulas, numbers and sources, down to the datasheet.

    Args:
        model: as in `estimate`.
        metric: `tpot`, `ttft`, `e2e`, `output_tok_s`, `memory`, `weights`, `kv`, `max_batch`, `max_context`,
            `kv_per_token`, `params`, `ridge`, `keep` (the five-minute rule), `decode` or `prefill` (a step),
            `decode.flops`, `decode.bytes`, `decode.intensity`, `decode.bound`, `decode.mfu`, `decode.mbu`, a kernel
            (`decode.attention`, `decode.attention.bytes`); under load also `queue`, `knee_rate`, `rate`, `running`
            and percentiles (`ttft_p95`).
        gpu: as in `estimate`.
        **scenario: as in `estimate`.

    Returns:
        A `Derivation`, whose root is the estimate's number and whose every formula gives the number beside it.

    Raises:
        UnknownNameError: for a metric that does not exist, with the nearest; what `estimate` raises for the rest.

    >>> d = explain("llama-3-8b", "kv_per_token")
    >>> d.value, d.root.formula
    (131072.0, 'L*K*(d + e)*b_bf16')
    >>> d = explain("llama-3-8b", "decode.attention.bytes", batch=32, context=2048)
    >>> d.value / 1e9, d.largest_gap < 1e-12
    (8.61, True)
    """
    if not isinstance(metric, str):
        raise InputError(f"metric must be a name such as tpot or decode.attention, not {metric!r}")
    return derive(make_case(model, gpu, scenario, full_name(metric) in TIMELESS), metric)


def make_case(
    model: str | PathLike[str], gpu: str | PathLike[str], scenario: Mapping[str, object], anyway: bool = False
) -> Case:
    """Ask and answer; `anyway`: even if it does not fit in memory. Raises what `estimate` raises."""
    allow_oom = bool(scenario.get("allow_oom")) or anyway
    question = ask(model, gpu, scenario)
    resolved, work = question.resolved, question.work
    if question.asked is None:
        return Case(resolved.predictor, work, answer(question, allow_oom))
    found = play(question)
    said = played(question, found)
    return Case(resolved.predictor, replace(work, batch=float(said.inputs["batch"])), said, found)


def derive(case: Case, metric: str) -> Derivation:
    """The derivation of one metric of an answered question."""
    found = find_metric(case, metric)
    root = tree(found.output)
    return Derivation(found.name, found.scale * root.value, found.unit, found.scale, root, case.answer)
