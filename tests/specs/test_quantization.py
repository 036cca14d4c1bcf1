"""The number format of each kind of module, from quantization_config and hf_quant_config.json."""

# ruff: noqa: E501 - the tables have one case a line

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rooflinekit.model.parameter_count import stored_bytes
from rooflinekit.model.precision import resolve_precision
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.errors import DtypeError, InputError, SpecError
from rooflinekit.model.types.model import WeightFormats
from rooflinekit.specs import load_accelerator, load_model
from rooflinekit.specs.config import model_from_config
from rooflinekit.specs.config.quantization import Patterns

B200 = load_accelerator("b200-sxm").value
BASE = {
    "model_type": "deepseek_v3", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8,
    "intermediate_size": 512, "vocab_size": 1000, "kv_lora_rank": 64, "q_lora_rank": 96, "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16, "v_head_dim": 32, "n_routed_experts": 8, "num_experts_per_tok": 2,
    "moe_intermediate_size": 64, "n_shared_experts": 1, "first_k_dense_replace": 1, "torch_dtype": "bfloat16",
}  # fmt: skip
WIDE, FP8, BLOCK, NVFP4, MXFP4, INT4, INT8 = (
    Dtype.BF16,
    Dtype.FP8,
    Dtype.FP8_BLOCK,
    Dtype.NVFP4,
    Dtype.MXFP4,
    Dtype.INT4,
    Dtype.INT8,
)
GPTQ4, GPTQ8 = Dtype.of_bits(4 + 20 / 128), Dtype.of_bits(8 + 24 / 128)  # scale in 16 bit, zero point as a weight
BLOCKED = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def load(quantization_config=None, companion=None, **changes):
    quantization = quantization_config
    config = BASE | changes | ({"quantization_config": quantization} if quantization is not None else {})
    return model_from_config(config, name="m", origin="config.json", quant_config=companion)


def computes(model, dtype):
    return resolve_precision(model, Deployment(), B200).compute(dtype)


def kinds(formats):
    return (formats.attention, formats.ffn, formats.experts, formats.shared_experts, formats.lm_head)


def group(bits, kind, **more):
    return {"weights": {"num_bits": bits, "type": kind, "strategy": "channel", **more}, "targets": ["Linear"]}


def compressed(*groups, ignore=("lm_head",), **more):
    named = {f"group_{n}": one for n, one in enumerate(groups)}
    return {"quant_method": "compressed-tensors", "config_groups": named, "ignore": list(ignore), **more}


@pytest.mark.parametrize(("quantization", "expected"), [
    (BLOCKED, (BLOCK, BLOCK, BLOCK, BLOCK, WIDE)),
    ({"quant_method": "fp8"}, (FP8, FP8, FP8, FP8, WIDE)),
    ({"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["self_attn", "mlp.shared_experts"]}, (WIDE, FP8, FP8, WIDE, WIDE)),
    (BLOCKED | {"modules_to_not_convert": ["gate", "lm_head"]}, (BLOCK, BLOCK, BLOCK, BLOCK, WIDE)),
    ({"quant_method": "awq", "bits": 4, "group_size": 128}, (GPTQ4, GPTQ4, GPTQ4, GPTQ4, WIDE)),
    ({"quant_method": "gptq", "bits": 8, "group_size": 128, "lm_head": True}, (GPTQ8, GPTQ8, GPTQ8, GPTQ8, GPTQ8)),
    ({"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}, (WIDE, WIDE, MXFP4, WIDE, WIDE)),
    ({"quant_method": "bitsandbytes", "load_in_8bit": True}, (INT8, INT8, INT8, INT8, WIDE)),
    (compressed(group(8, "float")), (FP8, FP8, FP8, FP8, WIDE)),
    (compressed(group(8, "float"), ignore=()), (FP8, FP8, FP8, FP8, FP8)),
    (compressed(group(8, "float", strategy="block", block_structure=[128, 128])), (BLOCK, BLOCK, BLOCK, BLOCK, WIDE)),
    (compressed(group(4, "float", group_size=16)), (NVFP4, NVFP4, NVFP4, NVFP4, WIDE)),
    (compressed(group(4, "float", group_size=32), ignore=["re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|down)_proj.*", "re:.*lm_head.*"]), (WIDE, WIDE, MXFP4, WIDE, WIDE)),
    (compressed(group(4, "int", group_size=128)), (INT4, INT4, INT4, INT4, WIDE)),
    (compressed(group(8, "int")), (INT8, INT8, INT8, INT8, WIDE)),
    (compressed({"weights": {"num_bits": 8, "type": "float"}, "targets": ["re:.*self_attn.*"]}, group(4, "float", group_size=16)), (FP8, NVFP4, NVFP4, NVFP4, WIDE)),
    (compressed({"weights": None, "targets": ["Linear"]}), (WIDE, WIDE, WIDE, WIDE, WIDE)),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "model.layers.0.self_attn*", "model.layers.1.self_attn*", "model.layers.2.self_attn*", "model.layers.3.self_attn*"]}, (WIDE, NVFP4, NVFP4, NVFP4, WIDE)),
    ({"quant_method": "modelopt", "quant_algo": "FP8"}, (FP8, FP8, FP8, FP8, FP8)),
])  # fmt: skip
def test_format_of_each_kind(quantization, expected):
    formats = load(quantization).value.formats
    assert kinds(formats) == expected
    assert formats.embedding is formats.other is WIDE


def test_unquantised_is_uniform():
    assert load().value.formats == WeightFormats.uniform(WIDE)
    assert load(torch_dtype="float16").value.formats == WeightFormats.uniform(Dtype.FP16)


def test_the_output_projection_may_differ():
    parts = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj")
    listed = [f"model.layers.{n}.self_attn.{part}" for n in range(4) for part in parts]
    companion = {
        "quantization": {
            "quant_algo": "NVFP4",
            "kv_cache_quant_algo": "FP8",
            "exclude_modules": ["lm_head", "model.layers.4*", *listed],
        }
    }
    model = load(companion=companion).value
    assert (model.formats.attention, model.formats.attention_output, model.kv_dtype) == (WIDE, NVFP4, FP8)
    assert load(BLOCKED).value.formats.attention_output is None


def test_layers_keep_formats_of_their_own():
    loaded = load(BLOCKED | {"modules_to_not_convert": ["model.layers.0.self_attn", "re:.*layers.2.mlp.experts.*"]})
    assert [each.attention for each in loaded.value.layer_formats] == [WIDE, BLOCK, BLOCK, BLOCK]
    assert [each.experts for each in loaded.value.layer_formats] == [BLOCK, BLOCK, WIDE, BLOCK]
    assert (loaded.value.formats.attention, loaded.warnings) == (BLOCK, ())
    loaded = load(BLOCKED | {"modules_to_not_convert": ["model.layers.0.self_attn.q_a_proj"]})
    assert "layers mix formats in their attention (75% fp8_block, 25% bf16)" in loaded.warnings[0]


def test_mixed_precision_by_layer():
    layers = {
        f"model.layers.{n}.mlp.experts.0.{part}": {"quant_algo": "NVFP4", "group_size": 16}
        for n in range(1, 4)
        for part in ("gate_proj", "up_proj", "down_proj")
    }
    attention = {f"model.layers.{n}.self_attn": {"quant_algo": "FP8"} for n in range(4)}
    companion = {"quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers | attention}}
    assert kinds(load(companion=companion).value.formats) == (FP8, WIDE, NVFP4, WIDE, WIDE)


def test_the_own_section_wins_over_the_companion():
    assert load(BLOCKED, companion={"quantization": {"quant_algo": "NVFP4"}}).value.formats.ffn is BLOCK


@pytest.mark.parametrize(("quantization", "expected"), [
    (compressed(group(8, "float"), kv_cache_scheme={"num_bits": 8, "type": "float"}), FP8),
    (compressed(group(8, "float"), kv_cache_scheme=None), None),
    ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "NVFP4"}, NVFP4),
    ({"quant_method": "modelopt", "quant_algo": None, "kv_cache_quant_algo": "FP8"}, FP8),
])  # fmt: skip
def test_cache_format(quantization, expected):
    assert load(quantization).value.kv_dtype is expected


@pytest.mark.parametrize(("quantization", "said"), [
    ({"quant_method": "aqlm"}, "quant_method = aqlm is not costed: its codebooks add bytes"),
    ({"quant_method": "gptqq"}, "quant_method = 'gptqq' is not known; nearest: gptq"),
    ({"bits": 4}, "quant_method = None is not known"),
    ({"quant_method": "awq"}, "bits is missing"),
    ({"quant_method": "modelopt", "quant_algo": "INT1"}, "quant_algo = 'INT1' is not known"),
    (compressed(group(3, "float")), "num_bits = 3 of type float"),
    (compressed(group(4, "int"), sparsity_config={"sparsity_structure": "2:4"}), "2:4 sparse"),
    ({"quant_method": "gptq", "bits": 4, "ranks": {"self_attn": 32}}, "keys that are not understood: quantization_config.ranks"),
    ({"quant_method": "gptq", "bits": 4, "lora_rank": 32}, "quantization_config.lora_rank = 32"),
    ({"quant_method": "torchao", "quant_type": "autoquant"}, "quant_type = 'autoquant' is not known"),
    ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp5"}}}, "dtype = 'fp5' of group None is not known"),
])  # fmt: skip
def test_formats_that_are_not_known_take_weights_that_are_given(quantization, said):
    loaded = load(quantization)
    with pytest.raises(DtypeError, match=r"it takes --weights FORMAT, or bits with their scales") as caught:
        resolve_precision(loaded.value, Deployment(), B200)
    assert said in str(caught.value) and "\n" not in str(caught.value)
    assert str(caught.value) in loaded.warnings
    given = resolve_precision(loaded.value, Deployment(weights=Dtype("2.3bpw")), B200)
    assert (given.formats.ffn.bytes, given.formats.lm_head) == (2.3 / 8, WIDE)


@pytest.mark.parametrize(("quantization", "said"), [
    ({"quant_method": "fp8", "weight_block_size": ["a", 1]}, "weight_block_size[0] = 'a'"),
    ({"quant_method": "fp8", "modules_to_not_convert": [3]}, "modules_to_not_convert holds 3"),
    ({"quant_method": "fp8", "modules_to_not_convert": ["re:("]}, "no regular expression"),
    ({"quant_method": "fp8", "modules_to_not_convert": ["re:" + "a" * 301]}, "more than 300 characters"),
    ({"quant_method": "fp8", "modules_to_not_convert": ["re:" + ".*" * 30 + "x"]}, "more than 6 repetitions"),
    ({"quant_method": "fp8", "modules_to_not_convert": ["*a*b*c*d*e*f*g*"]}, "more than 6 repetitions"),
    ({"quant_method": "fp8", "modules_to_not_convert": ["re:(.*)*x"]}, "one inside another"),
    ({"quant_method": "bitsandbytes"}, "load_in_4bit or load_in_8bit"),
    ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP3"}, "kv_cache_quant_algo = 'FP3'"),
    (compressed(group(8, "complex")), "type = 'complex' is not understood"),
    (compressed(7), "config_groups.group_0 = 7 is not an object"),
    ({"quant_method": "gptq", "bits": "four"}, "bits = 'four' is no number of bits or weights"),
    ({"quant_method": "gptq", "bits": 4, "dynamic": {"+:.*": 3}}, "dynamic.+:.* = 3 is not an object"),
    ("fp8", "quantization_config = 'fp8' is not an object"),
])  # fmt: skip
def test_what_cannot_be_is_refused_by_name(quantization, said):
    with pytest.raises(InputError) as caught:
        load(quantization)
    assert said in str(caught.value)
    assert isinstance(caught.value, DtypeError | SpecError)


def test_small_blocks_count_in_their_bits():
    assert "64 x 64" in load({"quant_method": "fp8", "weight_block_size": [64, 64]}).warnings[0]
    small = load({"quant_method": "fp8", "weight_block_size": [1, 32], "scale_fmt": "ue8m0"}).value
    assert (8 * small.formats.ffn.bytes, computes(small, small.formats.ffn)) == (8.25, FP8)


def test_keys_that_may_not_change_bytes_are_noted():
    loaded = load({"quant_method": "gptq", "bits": 4, "desc_act": True, "painted": "blue"})
    assert loaded.warnings == (
        "keys of the quantisation that are not known are taken to change no cost: quantization_config.painted = 'blue'",
    )


def test_patterns_match_whole_parts_of_names():
    skipped = Patterns(["gate", "language_model.model.layers.2.self_attn", "model.layers.*.mlp.up_proj"], "config.json")
    assert not skipped.hit("mlp.gate_proj")
    assert skipped.hit("mlp.gate")
    assert skipped.hit("self_attn.q_proj", 2) and not skipped.hit("self_attn.q_proj", 1)
    assert skipped.hit("mlp.up_proj", 7) and not skipped.hit("mlp.down_proj", 7)


@pytest.mark.parametrize(("size", "expected"), [(128, INT4), (64, Dtype.INT4_G64), (32, Dtype.INT4_G32)])
def test_groups_of_weights_have_their_own_formats(size, expected):
    for method in ("gptq", "awq", "auto-round", "intel/auto-round", "gptq_marlin"):  # a zero point of 4 bits a group
        loaded = load({"quant_method": method, "bits": 4, "group_size": size})
        assert (8 * loaded.value.formats.ffn.bytes, loaded.warnings) == (pytest.approx(4 + 20 / size), ())
    loaded = load(compressed(group(4, "int", strategy="group", group_size=size)))
    assert (loaded.value.formats.ffn, loaded.warnings) == (expected, ())
    loaded = load(compressed(group(4, "int", strategy="group", group_size=size, symmetric=False)))
    assert loaded.value.formats.ffn.bytes * 8 == pytest.approx(4 + 20 / size)
    channel = load({"quant_method": "gptq", "bits": 4, "group_size": -1}).value
    assert channel.formats.ffn.bytes * 8 == 4


QUARK_FP4 = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}
QUARK_FP8 = {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}
HQQ = {"axis": 1, "group_size": 64, "nbits": 4}


def torchao(name, **data):
    return {"quant_method": "torchao", "quant_type": {"default": {"_type": name, "_version": 1, "_data": data}}}


def quark(weight, inputs=None, **more):
    described = {"weight": weight, "input_tensors": inputs, "output_tensors": None, "bias": None}
    return {"quant_method": "quark", "global_quant_config": described, "exclude": ["lm_head"], **more}


def hqq(**more):
    return {"quant_method": "hqq", "quant_config": {"weight_quant_params": HQQ, **more}, "skip_modules": ["lm_head"]}


@pytest.mark.parametrize(("quantization", "bits", "head", "computing"), [
    ({"quant_method": "gptq", "bits": 3, "group_size": 128}, 3 + 19 / 128, 16, WIDE),
    ({"quant_method": "gptq", "bits": 2, "group_size": 64}, 2 + 18 / 64, 16, WIDE),
    ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "version": "GEMM"}, 4 + 20 / 64, 16, WIDE),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4.5, 16, WIDE),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True}, 4.127, 16, WIDE),
    ({"group_size": 64, "bits": 4}, 4.5, 4.5, WIDE),
    ({"group_size": 32, "bits": 3, "mode": "affine"}, 4.0, 4.0, WIDE),
    ({"group_size": 32, "bits": 4, "mode": "mxfp4"}, 4.25, 4.25, WIDE),
    ({"quant_method": "exl2", "bits": 4.65, "head_bits": 8, "calibration": {"rows": 115}}, 4.65, 8, WIDE),
    ({"quant_method": "exl3", "bits": 3.0, "head_bits": 6}, 3.0, 6, WIDE),
    ({"quant_method": "eetq", "weights": "int8"}, 8, 16, WIDE),
    ({"quant_method": "w8a8_int8"}, 8, 16, INT8),
    ({"quant_method": "w8a8_fp8"}, 8, 16, FP8),
    ({"quant_method": "bitnet", "linear_class": "autobitlinear"}, 2, 16, WIDE),
    (hqq(), 4.5, 16, WIDE),
    (hqq(scale_quant_params={"nbits": 8}, zero_quant_params={"nbits": 8}), 4.25, 16, WIDE),
    ({"quant_method": "quanto", "weights": "int4", "activations": None}, 4.25, 16, WIDE),
    ({"quant_method": "quanto", "weights": "int8"}, 8, 16, WIDE),
    ({"quant_method": "quanto", "weights": "float8"}, 8, 16, WIDE),
    ({"quant_method": "auto-round", "bits": 4, "group_size": 32, "data_type": "mx_fp", "act_bits": 4, "act_data_type": "mx_fp_rceil"}, 4.25, 16, MXFP4),
    ({"quant_method": "auto-round", "bits": 4, "group_size": 16, "data_type": "nv_fp4", "act_bits": 16}, 4.5, 16, WIDE),
    (torchao("Int4WeightOnlyConfig", group_size=128), 4.25, 16, WIDE),
    (torchao("Int8WeightOnlyConfig"), 8, 16, WIDE),
    (torchao("Int8DynamicActivationInt8WeightConfig"), 8, 16, INT8),
    (torchao("Float8WeightOnlyConfig"), 8, 16, WIDE),
    (torchao("Float8DynamicActivationInt4WeightConfig"), 4.125, 16, FP8),
    (torchao("IntxWeightOnlyConfig", weight_dtype={"_type": "torch.dtype", "_data": "int3"},
             granularity={"_type": "PerGroup", "_version": 1, "_data": {"group_size": 32}}), 3.5, 16, WIDE),
    (torchao("NVFP4DynamicActivationNVFP4WeightConfig"), 4.5, 16, NVFP4),
    ({"quant_method": "torchao", "quant_type": "int4_weight_only", "quant_type_kwargs": {"group_size": 64}}, 4.5, 16, WIDE),
    (quark(QUARK_FP4, QUARK_FP4), 4.25, 16, MXFP4),
    (quark(QUARK_FP4, QUARK_FP8), 4.25, 16, FP8),
    (quark(QUARK_FP4), 4.25, 16, WIDE),
    (quark(QUARK_FP4 | {"dtype": "fp6_e2m3"}, QUARK_FP4 | {"dtype": "fp6_e2m3"}), 6.25, 16, WIDE),
    (quark(QUARK_FP8, QUARK_FP8), 8, 16, FP8),
    (quark([QUARK_FP8, {"dtype": "int4", "qscheme": "per_channel"}], QUARK_FP8), 4, 16, FP8),
    (quark({"dtype": "uint4", "qscheme": "per_group", "group_size": 128}), 4 + 20 / 128, 16, WIDE),
    ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ", "group_size": 128, "ignore": ["lm_head"]}, 4.125, 16, FP8),
    ({"quant_method": "modelopt", "quant_algo": "W4A8_MXFP4_FP8", "ignore": ["lm_head"]}, 4.25, 16, FP8),
    ({"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4", "ignore": ["lm_head"]}, 4.5, 16, WIDE),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 4.5, 4.5, NVFP4),
    (compressed(group(2, "int", group_size=64)), 2.25, 16, WIDE),
    (compressed(group(8, "float", group_size=32)), 8.25, 16, WIDE),
])  # fmt: skip
def test_bits_and_arithmetic_are_those_of_the_exporter(quantization, bits, head, computing):
    section = "quantization" if "mode" in quantization else "quantization_config"
    loaded = load(**{section: quantization})
    model = loaded.value
    assert (model.unpriced, loaded.warnings) == ("", ())
    assert 8 * model.formats.ffn.bytes == pytest.approx(bits, abs=1e-4)
    assert 8 * model.formats.lm_head.bytes == pytest.approx(head, abs=1e-4)
    assert computes(model, model.formats.ffn) is computing
    assert model.formats.embedding is (
        model.formats.lm_head
        if "quant_method" not in quantization and head < 16 and "quant_algo" not in quantization
        else WIDE
    )


@pytest.mark.parametrize("quantization", [
    {"quant_method": "gptq", "bits": 4, "dynamic": {"-:.*self_attn.*": {}, r"+:.*\.[23]\.mlp.*": {"bits": 8}}},
    {"quant_method": "auto-round", "bits": 4, "extra_config": {".*self_attn.*": {"bits": 16, "data_type": "fp"},
     "model.layers.2.mlp": {"bits": 8}, "model.layers.3.mlp": {"bits": 8}}},
])  # fmt: skip
def test_modules_with_bits_of_their_own(quantization):
    model = load(quantization).value
    assert [8 * layer.experts.bytes for layer in model.layer_formats[1:]] == [4 + 20 / 128, *[8 + 24 / 128] * 2]
    assert {layer.attention for layer in model.layer_formats} == {WIDE}


def test_hqq_quantises_the_modules_that_it_lists():
    # transformers, HqqConfig(dynamic_config=...)
    own = {"mlp.shared_experts": HQQ, "mlp.experts": HQQ | {"nbits": 8}}
    model = load(
        {"quant_method": "hqq", "quant_config": {name: {"weight_quant_params": v} for name, v in own.items()}}
    ).value
    assert [8 * each.bytes for each in (model.formats.shared_experts, model.formats.experts)] == [4.5, 8.5]
    assert model.formats.attention is model.formats.lm_head is WIDE


def test_other_modules_of_mlx_quark_and_torchao():
    mlx = {"group_size": 64, "bits": 4, "model.embed_tokens": {"group_size": 32, "bits": 8}, "lm_head": False}
    model = load(mlx).value
    assert [8 * each.bytes for each in (model.formats.ffn, model.formats.embedding)] == [4.5, 9.0]
    assert model.formats.lm_head is WIDE
    described = {"weight": QUARK_FP8, "input_tensors": QUARK_FP8}
    cache = {"output_tensors": QUARK_FP8}
    config = quark(
        QUARK_FP4, QUARK_FP4, layer_quant_config={"*self_attn*": described}, kv_cache_quant_config={"*k_proj": cache}
    )
    model = load(config).value
    assert (model.formats.attention, model.formats.ffn, model.kv_dtype) == (FP8, MXFP4, FP8)
    listed = {"_default": {"_type": "Int8WeightOnlyConfig", "_data": {}}, "re:.*self_attn.*": None}
    model = load(torchao("ModuleFqnToConfig", module_fqn_to_config=listed)).value
    assert (model.formats.attention, model.formats.ffn) == (WIDE, INT8)


def test_inputs_that_a_chip_lacks_stay_wide_where_kernels_unpack_the_weights():
    model = load(quark(QUARK_FP4, QUARK_FP4)).value
    h100 = load_accelerator("h100-sxm").value
    assert resolve_precision(model, Deployment(), h100).compute(MXFP4) is WIDE
    found = resolve_precision(model, Deployment(), B200)
    assert (found.compute(MXFP4), found.activations_of("ffn")) == (MXFP4, MXFP4)
    assert resolve_precision(model, Deployment(), h100).activations_of("ffn") is WIDE
    assert resolve_precision(model, Deployment(activations=WIDE), B200).compute(MXFP4) is WIDE


ACTIVATIONS = {"input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}}


@pytest.mark.parametrize(("quantization", "weight_only"), [
    ({"quant_method": "gptq", "bits": 8, "group_size": 128}, True),
    ({"quant_method": "awq", "bits": 4, "group_size": 128}, True),
    ({"quant_method": "bitsandbytes", "load_in_8bit": True}, True),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, True),
    (compressed(group(8, "int")), True),
    (compressed(group(8, "int") | {"input_activations": None}), True),
    (compressed(group(8, "float") | {"input_activations": None}), True),
    (compressed(group(4, "float", group_size=16) | {"input_activations": None}), True),
    (compressed(group(8, "float") | ACTIVATIONS), False),
    (compressed(group(8, "int") | {"input_activations": {"num_bits": 8, "type": "int"}}), False),
    (compressed({"weights": None, "targets": ["Linear"]}), False),
    ({"quant_method": "fp8", "activation_scheme": "dynamic"}, False),
    (BLOCKED, False),
    ({"quant_method": "modelopt", "quant_algo": "FP8"}, False),
    ({"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}, True),
    ({"quant_method": "modelopt", "quant_algo": "W8A16"}, True),
    (None, False),
])  # fmt: skip
def test_a_checkpoint_without_quantised_activations_computes_in_16_bit(quantization, weight_only):
    model = load(quantization).value
    assert computes(model, model.formats.ffn) is (WIDE if weight_only else model.formats.ffn)


def test_groups_differ_in_their_activations():
    attention = {"weights": {"num_bits": 8, "type": "float"}, "targets": ["re:.*self_attn.*"]}
    loaded = load(compressed(attention | ACTIVATIONS, group(8, "int")))
    assert (computes(loaded.value, FP8), computes(loaded.value, INT8), loaded.warnings) == (FP8, WIDE, ())
    loaded = load(compressed(group(4, "int", group_size=128) | ACTIVATIONS))
    assert (computes(loaded.value, INT4), loaded.warnings) == (FP8, ())  # W4A8


def test_the_mixed_products_of_bitsandbytes_are_told():
    assert "16-bit arithmetic" in load({"quant_method": "bitsandbytes", "load_in_8bit": True}).warnings[0]


def test_a_cache_has_no_groups_and_no_blocks():
    scheme = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 64}
    assert load(compressed(group(8, "float"), kv_cache_scheme=scheme)).value.kv_dtype is INT4
    with pytest.raises(DtypeError, match="mxfp4 is no cache format; known: fp8, int8, int4, nvfp4"):
        load(compressed(group(8, "float"), kv_cache_scheme={"num_bits": 4, "type": "float", "group_size": 32}))


EXPORTED = json.loads(Path(__file__).with_name("quantised.json").read_text(encoding="utf-8"))
"""`quantization_config` as exporters write it, and the bytes of a Qwen3-8B so stored: parameters times stored bits."""


@pytest.mark.parametrize("name", EXPORTED)
def test_checkpoints_have_the_bytes_that_their_exporter_writes(name):
    row = EXPORTED[name]
    sizes = {
        "model_type": "qwen3", "hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32, "head_dim": 128,
        "num_key_value_heads": 8, "intermediate_size": 12288, "vocab_size": 151936, "max_position_embeddings": 40960,
        "torch_dtype": "bfloat16", "tie_word_embeddings": False,
    }  # fmt: skip
    stated = {key: value for key, value in row.items() if key != "bytes"}
    loaded = model_from_config(sizes | stated, name=name, origin="config.json")
    if loaded.value.unpriced:
        assert name == "aqlm_1x16" and "--weights" in loaded.value.unpriced
        return
    assert stored_bytes(loaded.value) == pytest.approx(row["bytes"], rel=2e-5)
    assert loaded.warnings == ()


def test_weights_that_are_quantised_in_each_step_are_stored_wide():
    online = {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "online"}
    loaded = load(online)
    assert loaded.value.formats == WeightFormats.uniform(WIDE)
    assert "quantization_mode = online: weights are stored as they were" in loaded.warnings[0]


def test_matrices_of_one_kind_in_two_formats_have_their_mean_bits():
    # the gate in 16 bit, up in 4 with groups of 64: half of each
    mixed = {"quant_method": "awq", "bits": 4, "group_size": 64, "modules_to_not_convert": ["mlp.gate_proj"]}
    config = {"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8,
              "intermediate_size": 1024, "vocab_size": 64, "max_position_embeddings": 64, "torch_dtype": "bfloat16"}  # fmt: skip
    found = model_from_config(config | {"quantization_config": mixed}, name="m", origin="config.json")
    assert found.value.formats.ffn.bytes == pytest.approx((16 + 4 + 20 / 64) / 2 / 8)
    assert found.value.formats.down.bytes == pytest.approx((4 + 20 / 64) / 8)
    assert "50% bf16" in found.warnings[0]


def test_bits_that_are_asked_for_are_the_bytes_of_the_matrices():
    llama = load_model("llama-3-8b").value
    asked = resolve_precision(llama, Deployment(weights=Dtype("3.5bpw")), B200)
    assert {getattr(asked.formats, kind).bytes for kind in ("attention", "ffn")} == {3.5 / 8}
    assert (asked.compute(asked.formats.ffn), asked.formats.embedding) == (WIDE, WIDE)
