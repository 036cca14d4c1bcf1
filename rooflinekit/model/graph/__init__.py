"""A formula written once as a graph, from which every reader is printed: Python, JavaScript, cells, explanations."""

from rooflinekit.model.graph.symbol import BranchError, Pool, Quantity, Symbol, fact, formula, named, quantity
from rooflinekit.model.graph.trace import Graph, trace

__all__ = ["BranchError", "Graph", "Pool", "Quantity", "Symbol", "fact", "formula", "named", "quantity", "trace"]
