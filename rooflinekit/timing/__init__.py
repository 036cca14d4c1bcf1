"""How long a kernel takes: one form a family, few parameters, each with a meaning and a bound."""

from rooflinekit.timing.attention import DecodeTime, PrefillTime
from rooflinekit.timing.collective import CollectiveTime
from rooflinekit.timing.gemm import GemmTime
from rooflinekit.timing.latent import LatentDecodeTime, LatentPrefillTime
from rooflinekit.timing.moe import ExpertsTime
from rooflinekit.timing.parameter import Bounds, Duration, TimeForm, parameters
from rooflinekit.timing.plain import PlainTime
from rooflinekit.timing.surface import AXES, Axis, Surface
from rooflinekit.types.kernel import FAMILIES, Family

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
