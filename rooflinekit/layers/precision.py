"""Which number format each part of a deployment uses, from the checkpoint's facts and the user's choices."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rooflinekit.types.deployment import Deployment
from rooflinekit.types.dtype import Dtype
from rooflinekit.types.errors import DtypeError
from rooflinekit.types.hardware import Accelerator
from rooflinekit.types.model import Model, WeightFormats

__all__ = ["Precision", "resolve_precision"]


@dataclass(frozen=True, slots=True)
class Precision:
    """Formats of one deployment.

    `stream` is what flows between kernels, `kv` the cache, `formats` the weights. `inputs` is what matrix inputs are
    quantised to when the user fixed it; None leaves it to the weights: 8-bit and NVFP4 weights compute in their own
    format, INT4 and MXFP4 are dequantised and compute in `stream`.
    """

    stream: Dtype
    kv: Dtype
    formats: WeightFormats
    inputs: Dtype | None = None

    def compute(self, weight: Dtype) -> Dtype:
        """Format in which a matrix with these weights is multiplied.

        >>> p = Precision(Dtype.BF16, Dtype.BF16, WeightFormats.uniform(Dtype.FP8_BLOCK))
        >>> p.compute(Dtype.FP8_BLOCK), p.compute(Dtype.MXFP4)
        (<Dtype.FP8_BLOCK: 'fp8_block'>, <Dtype.BF16: 'bf16'>)
        """
        if weight.is_wide:
            return self.stream
        if self.inputs is not None:
            return self.stream if self.inputs.is_wide else self.inputs
        return self.stream if weight.weight_only else weight


def resolve_precision(model: Model, deployment: Deployment, accelerator: Accelerator) -> Precision:
    """Combine checkpoint and deployment, and check that the accelerator can compute it.

    `weights` overrides the matrices of the layers; embedding, LM head, norms and router keep 16 bit when it is
    narrower. The cache follows `activations` when that is given, else the checkpoint's own cache format or stream.

    Raises DtypeError for a format that the accelerator has no units for, or for narrow activations over wide weights.
    """
    formats = _override(model.formats, deployment.weights)
    asked = deployment.activations
    stream = asked if asked is not None and asked.is_wide else model.dtype
    kv = deployment.kv or asked or model.kv_dtype or stream
    precision = Precision(stream, kv, formats, asked)
    output = formats.attention_output or formats.attention
    layered = (formats.attention, output, formats.ffn, formats.experts, formats.shared_experts)
    if asked is not None and not asked.is_wide and all(dtype.is_wide for dtype in layered):
        raise DtypeError(
            f"activations {asked} need quantised weights, and {model.name}'s are {formats.ffn}: add --weights {asked}"
        )
    for weight in {*layered, formats.lm_head}:
        _check(precision, weight, accelerator)
    return precision


def _override(formats: WeightFormats, weights: Dtype | None) -> WeightFormats:
    if weights is None:
        return formats
    if weights.is_wide:
        return WeightFormats.uniform(weights)
    return replace(
        formats, attention=weights, attention_output=weights, ffn=weights, experts=weights, shared_experts=weights
    )


def _check(precision: Precision, weight: Dtype, accelerator: Accelerator) -> None:
    compute = precision.compute(weight)
    if accelerator.supports(compute):
        return
    known = ", ".join(dtype.value for dtype in accelerator.peaks)
    wide = next((dtype.value for dtype in (Dtype.BF16, Dtype.FP16, Dtype.FP32) if accelerator.supports(dtype)), None)
    remedy = ""
    if wide is not None:
        remedy = f"; --activations {wide} " + (
            "runs it there" if weight.is_wide else "dequantises the weights and computes in 16 bit"
        )
    raise DtypeError(
        f"{accelerator.name} has no {compute.unit} arithmetic for {weight} weights; it has {known}{remedy}"
    )
