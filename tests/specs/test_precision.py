"""Which formats a deployment may ask for, and what they make of a checkpoint."""

# ruff: noqa: E501 - the table of refusals has one case a line

from __future__ import annotations

from dataclasses import replace

import pytest

import rooflinekit as rk
from rooflinekit.model.precision import resolve_precision
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.errors import DtypeError
from rooflinekit.model.types.model import WeightFormats
from rooflinekit.specs import load_accelerator, load_model

B200 = load_accelerator("b200-sxm").value
LLAMA = load_model("llama-3-8b").value
GPTQ8 = replace(LLAMA, formats=WeightFormats.uniform(Dtype.INT8), inputs=((Dtype.INT8, Dtype.BF16),))
BF16, FP32, FP8, INT8 = Dtype.BF16, Dtype.FP32, Dtype.FP8, Dtype.INT8


def resolve(model=LLAMA, **formats):
    named = {role: Dtype(name) for role, name in formats.items()}
    return resolve_precision(model, Deployment(**named), B200)


def refused(model=LLAMA, **formats):
    with pytest.raises(DtypeError) as caught:
        resolve(model, **formats)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_weight_only_checkpoint_computes_in_the_stream_unless_told():
    assert resolve(GPTQ8).compute(INT8) is BF16
    assert resolve(GPTQ8, activations="fp16").compute(INT8) is Dtype.FP16
    assert resolve(GPTQ8, activations="int8").compute(INT8) is INT8
    assert resolve(GPTQ8, weights="fp8").compute(FP8) is FP8
    assert resolve(replace(GPTQ8, inputs=())).compute(INT8) is INT8


@pytest.mark.parametrize(("formats", "said"), [
    ({"weights": "tf32"}, "weights cannot be tf32 (a format of arithmetic, not of storage); nearest: fp32; allowed: fp32, bf16"),
    ({"kv": "tf32"}, "kv cannot be tf32 (a format of arithmetic, not of storage); nearest: fp32"),
    ({"kv": "fp8_block"}, "kv cannot be fp8_block; nearest: fp8; allowed: fp32, bf16, fp16, fp8, int8, int4, nvfp4"),
    ({"kv": "mxfp4"}, "kv cannot be mxfp4; nearest: nvfp4"),
    ({"kv": "int4_g64"}, "kv cannot be int4_g64; nearest: int4"),
    ({"activations": "int4", "weights": "int4"}, "activations cannot be int4"),
    ({"activations": "fp8", "weights": "int8"}, "activations fp8 do not go with int8 weights; valid: fp32, bf16, fp16, int8"),
    ({"activations": "int8", "weights": "fp8_block"}, "do not go with fp8_block weights; valid: fp32, bf16, fp16, fp8"),
    ({"activations": "nvfp4", "weights": "mxfp4"}, "do not go with mxfp4 weights; valid: fp32, bf16, fp16, mxfp4, fp8"),
    ({"activations": "fp8", "weights": "nvfp4"}, "do not go with nvfp4 weights; valid: fp32, bf16, fp16, nvfp4"),
    ({"activations": "nvfp4", "weights": "int4_g64"}, "do not go with int4_g64 weights; valid: fp32, bf16, fp16, fp8, int8"),
    ({"activations": "fp8"}, "add --weights fp8"),
    ({"activations": "fp8", "weights": "bf16"}, "activations fp8 need quantised weights"),
])  # fmt: skip
def test_nonsense_is_refused_with_what_is_valid(formats, said):
    assert said in refused(**formats)


@pytest.mark.parametrize(("weights", "activations", "kv"), [
    ("fp8", "fp8", "fp8"), ("fp8_block", "fp8", "fp8"), ("int8", "int8", "int8"), ("int4", "fp8", "fp8"),
    ("int4_g32", "int8", "int8"), ("nvfp4", "nvfp4", "bf16"), ("mxfp4", "mxfp4", "bf16"), ("mxfp4", "fp8", "fp8"),
    ("fp8", "bf16", "bf16"), ("fp8", "fp16", "fp16"), ("bf16", "tf32", "fp32"),
])  # fmt: skip
def test_what_goes_together_and_which_cache_follows(weights, activations, kv):
    precision = resolve(weights=weights, activations=activations)
    assert precision.kv is Dtype(kv)
    asked = Dtype(activations)
    assert precision.compute(Dtype(weights)) is asked


def test_wide_weights_are_the_stream():
    precision = resolve(weights="fp32")
    assert (precision.stream, precision.compute(FP32), precision.kv) == (FP32, FP32, FP32)
    assert resolve(weights="fp32", activations="bf16").compute(FP32) is BF16
    assert resolve(weights="fp16").stream is Dtype.FP16
    assert resolve(weights="fp8").stream is BF16


def test_the_cache_of_the_checkpoint_stays_where_the_activations_are_no_cache_format():
    own = replace(LLAMA, kv_dtype=FP8)
    assert resolve(own, weights="nvfp4", activations="nvfp4").kv is FP8
    assert resolve(own, activations="bf16").kv is BF16
    assert resolve(own, kv="nvfp4").kv is Dtype.NVFP4


def test_attention_and_head_may_have_formats_of_their_own():
    apart = resolve(weights="fp8", attention_weights="bf16", lm_head="fp8").formats
    assert (apart.ffn, apart.attention, apart.lm_head, apart.embedding) == (FP8, BF16, FP8, BF16)
    whole = resolve(weights="fp8").formats
    assert (whole.attention, whole.lm_head) == (FP8, BF16)
    assert "lm_head cannot be tf32" in refused(lm_head="tf32")


def test_formats_apart_cost_their_bytes():
    """Llama-3-8B: 1.342 G weights of attention and 0.525 G of the head, at 3.35 TB/s."""
    times = [
        rk.estimate("llama-3-8b", batch=8, calibration="none", weights="fp8", **apart).decode.bound_ms
        for apart in ({}, {"attention_weights": "bf16"}, {"attention_weights": "bf16", "lm_head": "fp8"})
    ]
    assert times[1] - times[0] == pytest.approx(1.342e9 / 3.35e12 * 1e3, rel=1e-3)
    assert times[1] - times[2] == pytest.approx(128256 * 4096 / 3.35e12 * 1e3, rel=1e-3)


@pytest.mark.parametrize(("gpu", "activations", "computed"), [
    ("mi355x", None, Dtype.MXFP4), ("mi355x", BF16, BF16), ("b200-sxm", None, BF16), ("mi300x", None, BF16),
])  # fmt: skip
def test_mxfp4_weights_compute_in_four_bits_where_checkpoints_quantise_their_inputs(gpu, activations, computed):
    """AMD's Quark checkpoints for CDNA4 have inputs in MXFP4; MLPerf v6.0 has 11,978 tok/s, not half of it."""
    chosen = Deployment(weights=Dtype.MXFP4, activations=activations)
    assert resolve_precision(LLAMA, chosen, load_accelerator(gpu).value).compute(Dtype.MXFP4) is computed


def test_a_checkpoint_of_its_own_format_keeps_its_inputs_wide():
    precision = resolve_precision(load_model("gpt-oss-120b").value, Deployment(), load_accelerator("mi355x").value)
    assert precision.compute(Dtype.MXFP4) is BF16
