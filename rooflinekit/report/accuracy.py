"""Accuracy: the summary, then every group, then what was not answered."""

from __future__ import annotations

from typing import Any

from rooflinekit.evidence.accuracy import Accuracy, Score
from rooflinekit.report.document import Document, Section, Table, Words, footer
from rooflinekit.version import __version__

_HEADER = ["", "n", "median", "mean", "p90", "bias", "in 90 %"]
_KEYS = {
    "op": ("op", "gpu", "engine", "dtype", "kv_dtype", "routing", "collective", "mode", "kind"),
    "quantity": ("engine", "quantity"),
    "metric": ("source_key", "model", "gpu", "metric"),
}


def rows(found: Accuracy) -> list[dict[str, Any]]:
    """One flat row a group, with what made it."""
    return [
        {key: group.key.get(key, "") for key in _KEYS[found.by]}
        | {"n": group.n, "answered": group.answered, "median_ape": group.median_ape, "mape": group.mape}
        | {"p90_ape": group.p90_ape, "bias": group.bias, "coverage90": group.coverage90}
        | {"calibration": group.calibration, "version": __version__}
        for group in found.groups
    ]


def document(found: Accuracy) -> Document:
    """The whole answer."""
    summary = [
        [
            op,
            str(sum(g.n for g in found.groups if g.key[found.by] == op)),
            *(_percent(value) for value in figures.values()),
        ]
        for op, figures in found.summary.items()
    ]
    counted = f"{found.answered} of {found.rows} rows answered; errors are |predicted − measured| / measured"
    used = ", ".join(f"{name} ({digest})" for name, digest in found.calibrations.items())
    return [
        Section(counted, []),
        Section("", [Table(["median over groups", *_HEADER[1:]], summary)]),
        Section("", [Table(["group", *_HEADER[1:]], [_cells(group, found.by) for group in found.groups])]),
        *(Section("", [Words(f"{n} rows not answered: {reason}")]) for reason, n in found.unanswered.items()),
        footer(f"calibration {used}" if used else "", ()),
    ]


def _cells(group: Score, by: str) -> list[str]:
    name = " ".join(group.key[key] for key in _KEYS[by] if key in group.key)
    figures = (group.median_ape, group.mape, group.p90_ape, group.bias, group.coverage90)
    return [name, str(group.n), *(_percent(value) for value in figures)]


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
