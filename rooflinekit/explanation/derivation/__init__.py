"""Where a number of an estimate comes from: a tree of formulas down to datasheets, configs and fitted parameters."""

from rooflinekit.explanation.derivation.formula import evaluate
from rooflinekit.explanation.derivation.node import Node, Reference

__all__ = ["Node", "Reference", "evaluate"]
