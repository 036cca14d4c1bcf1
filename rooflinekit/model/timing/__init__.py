"""How long a kernel takes: one form a family, few parameters, each with a meaning and a bound."""

from rooflinekit.model.timing.forms import (
    CollectiveTime,
    DecodeTime,
    ExpertsTime,
    GemmTime,
    LatentDecodeTime,
    LatentPrefillTime,
    PlainTime,
    PrefillTime,
)
from rooflinekit.model.timing.parameter import Bounds, Duration, TimeForm, parameters
from rooflinekit.model.timing.surface import AXES, Axis, Surface
from rooflinekit.model.types.kernel import FAMILIES, Family

__all__ = [
    "AXES",
    "FORMS",
    "Axis",
    "Bounds",
    "CollectiveTime",
    "DecodeTime",
    "Duration",
    "ExpertsTime",
    "GemmTime",
    "LatentDecodeTime",
    "LatentPrefillTime",
    "PlainTime",
    "PrefillTime",
    "Surface",
    "TimeForm",
    "parameters",
]

FORMS: dict[Family, type[TimeForm]] = dict.fromkeys(FAMILIES, PlainTime) | {
    "gemm": GemmTime,
    "attention_decode": DecodeTime,
    "attention_prefill": PrefillTime,
    "mla_decode": LatentDecodeTime,
    "mla_prefill": LatentPrefillTime,
    "moe": ExpertsTime,
    "collective": CollectiveTime,
}
"""The time form of every kernel family."""
