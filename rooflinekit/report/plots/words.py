"""What pictures say in words: what they are of, where the numbers come from, numbers on axes."""

from __future__ import annotations

import math
from typing import TypeAlias

from rooflinekit.decision.sensitivity.levers import Levers
from rooflinekit.estimation.results import Estimate
from rooflinekit.report.document import tokens_in
from rooflinekit.report.plots.style import Frame, Theme, shortened
from rooflinekit.simulation.outcome import Outcome

_PREFIXES = ("", "k", "M", "G", "T", "P", "E")
_NAME = 40  # characters of a model, which may be a path
_LONG, _LARGEST = 1e4, 1e21  # from here on with a prefix, from there on with an exponent

Answer: TypeAlias = Estimate | Outcome | Levers


def scale_text(value: float) -> str:
    """A number at a tick.

    >>> scale_text(0.1), scale_text(100.0), scale_text(1e4)
    ('0.1', '100', '10 k')
    """
    if not _LONG <= value < _LARGEST:
        return f"{value:g}"
    thousands = min(int(math.log10(value) // 3), len(_PREFIXES) - 1)
    return f"{value / 1000.0**thousands:g} {_PREFIXES[thousands]}"


def headed(title: str, answer: Answer, theme: Theme) -> Frame:
    """The words around a picture of one answer."""
    return Frame(title, subject_of(answer), source_of(answer), theme)


def subject_of(answer: Answer) -> str:
    """What runs where, and what is asked of it."""
    i = answer.inputs
    split = " ".join(f"{key}{i[key]}" for key in ("tp", "pp", "ep", "dp", "cp") if i.get(key, 1) > 1)
    where = f"{shortened(answer.model, _NAME)} on {answer.gpu}{f' ({split})' if split else ''}, {answer.engine}"
    if isinstance(answer, Outcome):
        return f"{where}; {answer.requests.arrived} requests"
    load = next((f"{key} {i[key]:g}" for key in ("concurrency", "rate") if i.get(key)), f"batch {i.get('batch')}")
    return f"{where}; {load}, {tokens_in(i)}, {i['osl']} out; weights {i['weights']}, kv {i['kv']}"


def source_of(answer: Answer) -> str:
    """Level, calibration and version."""
    used = answer.calibration
    level = f"expected: calibration {used['name']} ({used['hash']})" if used else "datasheet bound"
    return f"rooflinekit {answer.version}, {level}"
