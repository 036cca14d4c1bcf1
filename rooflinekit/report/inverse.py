"""Inverse answers: the largest load of one deployment, and prices at which accelerators would be the cheapest."""

from __future__ import annotations

from rooflinekit.decision.planning.inverse import BreakEven, Solution
from rooflinekit.report.document import Document, Section, Table, Words, amount, notes


def document(found: Solution | BreakEven) -> Document:
    """The whole answer."""
    if isinstance(found, Solution):
        return [Section("", [Words(f"{found.model} on {found.gpu}: {found.answer}"), notes(found.warnings)])]
    head = ["gpu", "GPUs", "$/GPU-hour", "$/hour", "break-even $/GPU-hour"]
    keys = ("usd_per_gpu_hour", "usd_per_hour", "break_even_usd")
    cells = [[row["gpu"], amount(row["gpus"], 0), *(amount(row.get(key)) for key in keys)] for row in found.rows]
    failed = (f"{row['gpu']}: {row['why']}" for row in found.rows if row["why"])
    return [
        Section("", [Words(f"{found.model}: {found.answer}")]),
        Section("", [Table(head, cells)]),
        Section("", [notes((*failed, *found.warnings))]),
    ]


def rows(found: Solution | BreakEven) -> list[dict[str, object]]:
    """One flat row, or one for each accelerator."""
    if isinstance(found, BreakEven):
        return [*found.rows]
    keys = ("what", "value", "unit", "model", "gpu", "answer")
    joined = {"subject_to": "; ".join(found.subject_to), "binds": "; ".join(found.binds)}
    return [{key: getattr(found, key) for key in keys} | joined | found.at]
