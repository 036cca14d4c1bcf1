"""The number format of each kind of module, from quantization_config and hf_quant_config.json."""

# ruff: noqa: E501 - the tables have one case a line

from __future__ import annotations

import pytest

from rooflinekit.model.precision import resolve_precision
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.errors import DtypeError, InputError, SpecError
from rooflinekit.model.types.model import WeightFormats
from rooflinekit.specs import load_accelerator
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
BLOCKED = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def load(quantization=None, companion=None, **changes):
    config = BASE | changes | ({"quantization_config": quantization} if quantization is not None else {})
    return model_from_config(config, name="m", origin="config.json", quant_config=companion)


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
    ({"quant_method": "awq", "bits": 4, "group_size": 128}, (INT4, INT4, INT4, INT4, WIDE)),
    ({"quant_method": "gptq", "bits": 8, "group_size": 128, "lm_head": True}, (INT8, INT8, INT8, INT8, INT8)),
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


def test_layers_that_differ_are_told():
    loaded = load(BLOCKED | {"modules_to_not_convert": ["model.layers.0.self_attn"]})
    assert loaded.value.formats.attention is BLOCK
    assert any("mixes formats in attention" in warning for warning in loaded.warnings)


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
    ({"quant_method": "exl3"}, "quant_method = 'exl3' is not known"),
    ({"bits": 4}, "quant_method = None is not known"),
    ({"quant_method": "awq"}, "bits is missing"),
    ({"quant_method": "gptq", "bits": 3}, "bits = 3 is not known; known: 4, 8"),
    ({"quant_method": "fp8", "weight_block_size": ["a", 1]}, "weight_block_size[0] = 'a'"),
    ({"quant_method": "fp8", "modules_to_not_convert": [3]}, "modules_to_not_convert holds 3"),
    ({"quant_method": "fp8", "modules_to_not_convert": ["re:("]}, "no regular expression"),
    ({"quant_method": "fp8", "modules_to_not_convert": ["re:" + "a" * 301]}, "more than 300 characters"),
    ({"quant_method": "fp8", "modules_to_not_convert": ["re:" + ".*" * 30 + "x"]}, "more than 6 repetitions"),
    ({"quant_method": "fp8", "modules_to_not_convert": ["*a*b*c*d*e*f*g*"]}, "more than 6 repetitions"),
    ({"quant_method": "fp8", "modules_to_not_convert": ["re:(.*)*x"]}, "one inside another"),
    ({"quant_method": "bitsandbytes"}, "load_in_4bit or load_in_8bit"),
    ({"quant_method": "modelopt", "quant_algo": "INT1"}, "quant_algo = 'INT1' is not known"),
    ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP3"}, "kv_cache_quant_algo = 'FP3'"),
    (compressed(group(3, "int")), "num_bits = 3 of type int"),
    (compressed(group(8, "complex")), "type = 'complex' is not understood"),
    (compressed(7), "config_groups.group_0 = 7 is not an object"),
    ("fp8", "quantization_config = 'fp8' is not an object"),
])  # fmt: skip
def test_what_is_not_known_is_refused_by_name(quantization, said):
    with pytest.raises(InputError) as caught:
        load(quantization)
    assert said in str(caught.value)
    assert isinstance(caught.value, DtypeError | SpecError)


def test_granularity_that_is_not_costed_exactly_is_told():
    assert "64 x 64" in load({"quant_method": "fp8", "weight_block_size": [64, 64]}).warnings[0]
    assert "one per 256" in load({"quant_method": "gptq", "bits": 4, "group_size": 256}).warnings[0]
    assert "one per channel" in load({"quant_method": "gptq", "bits": 4, "group_size": -1}).warnings[0]


def test_patterns_match_whole_parts_of_names():
    skipped = Patterns(["gate", "language_model.model.layers.2.self_attn", "model.layers.*.mlp.up_proj"], "config.json")
    assert not skipped.hit("mlp.gate_proj")
    assert skipped.hit("mlp.gate")
    assert skipped.hit("self_attn.q_proj", 2) and not skipped.hit("self_attn.q_proj", 1)
    assert skipped.hit("mlp.up_proj", 7) and not skipped.hit("mlp.down_proj", 7)


@pytest.mark.parametrize(("size", "expected"), [(128, INT4), (64, Dtype.INT4_G64), (32, Dtype.INT4_G32)])
def test_groups_of_weights_have_their_own_formats(size, expected):
    for method in ("gptq", "awq"):
        loaded = load({"quant_method": method, "bits": 4, "group_size": size})
        assert (loaded.value.formats.ffn, loaded.warnings) == (expected, ())
    loaded = load(compressed(group(4, "int", strategy="group", group_size=size)))
    assert (loaded.value.formats.ffn, loaded.warnings) == (expected, ())


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
    (compressed(group(8, "int") | ACTIVATIONS), False),
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
    assert model.weight_only is weight_only
    precision = resolve_precision(model, Deployment(), B200)
    wanted = WIDE if weight_only else model.formats.ffn
    assert precision.compute(model.formats.ffn) is wanted


def test_groups_that_differ_in_their_activations_are_told():
    attention = {"weights": {"num_bits": 8, "type": "float"}, "targets": ["re:.*self_attn.*"]}
    loaded = load(compressed(attention | ACTIVATIONS, group(8, "int")))
    assert not loaded.value.weight_only
    assert "quantises the activations of some groups only. Those in int8 without" in loaded.warnings[0]
    loaded = load(compressed(attention | ACTIVATIONS, group(4, "int", group_size=128)))
    assert (loaded.value.weight_only, loaded.warnings) == (False, ()), "INT4 is dequantised anyway"


def test_the_mixed_products_of_bitsandbytes_are_told():
    assert "16-bit arithmetic" in load({"quant_method": "bitsandbytes", "load_in_8bit": True}).warnings[0]


def test_a_cache_has_no_groups_and_no_blocks():
    scheme = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 64}
    assert load(compressed(group(8, "float"), kv_cache_scheme=scheme)).value.kv_dtype is INT4
    with pytest.raises(DtypeError, match="mxfp4 is no cache format; known: fp8, int8, int4, nvfp4"):
        load(compressed(group(8, "float"), kv_cache_scheme={"num_bits": 4, "type": "float", "group_size": 32}))
