"""A rule of thumb beside an exact value, and the pieces between the two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rooflinekit.explanation.derivation.case import Case
from rooflinekit.explanation.derivation.node import Node, given
from rooflinekit.explanation.derivation.scene import Scene, element
from rooflinekit.model.parameter_count import count_parameters

__all__ = ["Rule", "ruled", "weights"]

_NOTHING = 1e-9  # relative: pieces smaller than this are rounding


@dataclass(frozen=True)
class Rule:
    """A rule of thumb, and the pieces that add up from it to the exact value (all in SI)."""

    text: str
    node: Node
    pieces: tuple[tuple[str, float], ...]

    @property
    def value(self) -> float:
        """What the rule says."""
        return self.node.value

    @property
    def exact(self) -> float:
        """What the pieces lead to."""
        return self.value + sum(amount for _, amount in self.pieces)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        pieces = [{"what": what, "value": amount} for what, amount in self.pieces]
        return {"text": self.text, "value": self.value, "derivation": self.node.to_dict(), "difference": pieces}


def ruled(text: str, node: Node, root: Node, pieces: list[tuple[str, float]], rest: str) -> Rule:
    """Close the sum with what is left over, and drop what is nothing."""
    left = root.value - node.value - sum(amount for _, amount in pieces)
    scale = _NOTHING * max(abs(root.value), abs(node.value))
    return Rule(text, node, tuple((what, amount) for what, amount in [*pieces, (rest, left)] if abs(amount) > scale))


def weights(case: Case) -> list[Node]:
    """Parameters, bytes of each, and how many ranks share them."""
    plan = case.predictor.plan
    main = getattr(plan.precision.formats, plan.model.matrices[-1])
    parameters = given("P", "parameters", count_parameters(plan.model).total, "", "explain MODEL params")
    return [
        parameters,
        element("b", main, "the layers' weights"),
        Scene.facts(plan).asked("tp", "ranks that share each layer", plan.deployment.tp),
    ]
