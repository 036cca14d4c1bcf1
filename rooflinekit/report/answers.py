"""Answers as documents and rows, and as HTML for notebooks, whatever they are of."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from rooflinekit.report.document import Document, html_text, plain_text

WRITTEN = {
    "BreakEven": "plan.inverse", "ClassPlan": "plan.classes", "Cost": "cost", "Derivation": "derivation",
    "Estimate": "estimate", "FitsOn": "fits",
    "Launch": "launch", "Levers": "levers", "Loaded": "catalogue",
    "Outcome": "simulation", "OverTime": "plan.over_time", "ParameterCount": "catalogue", "PlanAnswer": "plan",
    "RolloutPlan": "plan.rollout", "Solution": "plan.inverse", "TraceAnswer": "cost.trace", "Walk": "walk",
}  # fmt: skip
"""Types of answers, and the module with the `document` and `rows` of each; what follows the dot stands before both.

The answers of a wing stand in its own module `report`, in a table `WRITTEN` of what stands before both.
"""
_FOLDED = ("Estimate", "Walk")  # whose sections a notebook opens one by one
_SHOWN: dict[str, dict[str, object]] = {"Derivation": {"depth": 4}, "Estimate": {"kernels": True}}  # in a notebook


def _writer(answer: object, what: str) -> Any:
    """The function that makes this of an answer, its module imported now; None where there is none of its own."""
    name, room = type(answer).__name__, type(answer).__module__.split(".")[1]
    if name not in WRITTEN:
        wing = import_module(f"rooflinekit.{room}.report")
        return getattr(wing, f"{wing.WRITTEN[name]}_{what}", None)
    module, _, kind = WRITTEN[name].partition(".")
    return getattr(import_module(f"rooflinekit.report.{module}"), f"{kind}_{what}" if kind else what, None)


def document_of(answer: Any, **how: Any) -> Document:
    """Document of an answer."""
    made: Document = _writer(answer, "document")(answer, **how)
    return made


def rows_of(answer: Any) -> Sequence[dict[str, object]]:
    """Rows of an answer, flat."""
    own = _writer(answer, "rows")
    rows: Sequence[dict[str, Any]] = own(answer) if own else answer.to_rows()
    return rows


def text_of(answer: object) -> str:
    """An answer as the command line prints it.

    >>> import rooflinekit as rk
    >>> print(rk.parameters("llama-3-8b").__str__()[:10])
    Parameters
    """
    return plain_text(document_of(answer))


def html_of(answer: object) -> str:
    """An answer as a piece of HTML that stands by itself, every word escaped. Colours are those of the notebook.

    >>> import rooflinekit as rk
    >>> html_of(rk.parameters("llama-3-8b"))[:47]
    '<div class="rooflinekit"><h4>Parameters</h4><ta'
    """
    kind = type(answer).__name__
    made = document_of(answer, **_SHOWN.get(kind, {}))
    return f'<div class="rooflinekit">{html_text(made, kind in _FOLDED)}</div>'
