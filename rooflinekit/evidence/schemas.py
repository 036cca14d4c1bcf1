"""The JSON Schema of what `compare` answers."""

from __future__ import annotations

from typing import ClassVar, NotRequired, get_type_hints

from typing_extensions import TypedDict  # typing's own cannot be read back before Python 3.12

from rooflinekit.evidence.compare import ComparedMetric, ComparedRun, Comparison, Gap
from rooflinekit.evidence.measurement import RunFacts
from rooflinekit.report.schemas import Answers, CalibrationName, Ends, Schema, Signed, served


class OfRun(TypedDict):
    """Intervals of the figures of a run."""

    ttft_ms: NotRequired[Ends | None]
    tpot_ms: NotRequired[Ends | None]
    e2e_ms: NotRequired[Ends | None]
    output_tok_s: NotRequired[Ends | None]


class _Compared(Answers):
    special: ClassVar = {
        **Answers.special,
        ComparedRun: {
            **get_type_hints(RunFacts),
            "facts": None,
            "calibration": CalibrationName,
            "version": str,
            "interval": OfRun | None,
        },
        ComparedMetric: {"error": Signed | None, "verdict": str},
        Gap: {
            "notes": None,
            **dict.fromkeys(("step_ms", "interference_ms", "queue_ms", "protocol_ms", "e2e_ms"), Signed),
        },
    }


def comparison_served() -> Schema:
    """The JSON Schema of what the tool `compare` of the service answers."""
    return served("compare", Comparison, _Compared)
