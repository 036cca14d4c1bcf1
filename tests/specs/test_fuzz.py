"""Broken configs: whatever is dropped, renamed, retyped, huge, negative or nested, out comes a Model or one line."""

# ruff: noqa: E501 - the tables are dense

from __future__ import annotations

import copy
import json
import random
from pathlib import Path

import pytest
from oracle import kv_elements_per_token, parameters

from rooflinekit.model.types.errors import InputError
from rooflinekit.specs import spec_dir
from rooflinekit.specs.config import model_from_config
from rooflinekit.specs.files import read_yaml

BASES = (
    "gpt2", "opt-6.7b", "bloom-176b", "mpt-30b", "falcon-7b", "falcon-40b", "palm-62b", "starcoder-15b", "starcoder2-7b",
    "gpt-j-6b", "pythia-6.9b", "llama-3-8b", "llama-4-maverick", "mistral-7b", "ministral-8b", "mixtral-8x7b",
    "qwen2.5-7b", "qwen2-57b-a14b", "qwen3-30b-a3b", "qwen3-next-80b-a3b", "qwen3.5-27b", "gemma-2-9b", "gemma-3-27b",
    "phi-2", "phi-3-mini", "phi-3.5-moe", "deepseek-v2-lite", "deepseek-v3", "deepseek-v3.2", "glm-4.5", "minimax-m1",
    "minimax-m2", "gpt-oss-120b", "command-r-plus", "dbrx", "grok-1", "nemotron-4-340b", "nemotron-h-56b",
    "nemotron-3-nano-30b-a3b", "jamba-v0.1", "chatglm3-6b",
)  # fmt: skip
NAS = {"n_heads_in_group": 8, "no_op": False}, {"ffn_mult": 2.625, "no_op": False}
EXTRA = (
    {
        "model_type": "gemma4_text", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8,
        "num_key_value_heads": 4, "head_dim": 64, "global_head_dim": 128, "num_global_key_value_heads": 2,
        "attention_k_eq_v": True, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 128,
        "intermediate_size": 256, "enable_moe_block": True, "moe_intermediate_size": 64, "num_experts": 8,
        "top_k_experts": 2, "vocab_size": 1000,
    },
    {
        "model_type": "nemotron-nas", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8,
        "block_configs": [{"attention": NAS[0], "ffn": NAS[1]}, {"attention": {"no_op": True}, "ffn": NAS[1]}],
        "vocab_size": 1000,
    },
    {
        "model_type": "llava", "vision_config": {"depth": 2},
        "text_config": {
            "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8,
            "intermediate_size": 256, "vocab_size": 1000,
            "quantization_config": {
                "quant_method": "compressed-tensors", "ignore": ["lm_head", "re:.*self_attn.*", "model.layers.0*"],
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}, "targets": ["Linear"]}},
            },
        },
    },
)  # fmt: skip
ODD = (
    None, True, False, 0, -1, 1, 2, 3, 7, 10**6, 10**7, 10**9, 10**30, 10**400, -(10**400), 0.5, -0.0, 1e308,
    float("nan"), float("inf"), -float("inf"), "", "4096", "auto", "re:(", "bert", "llama", "fp8", "x" * 10_000, [], [[]],
    [None], [1, 2], ["a"], [float("nan")], {}, {"a": 1}, {"num_bits": 8}, {1: 2}, {"a": {"a": {"a": {}}}}, b"x", (1, 2),
)  # fmt: skip


def bases():
    return [read_yaml(spec_dir("model") / f"{name}.yaml")["config"] for name in BASES] + list(EXTRA)


def places(config):
    """Every object inside a config, itself first."""
    found = [config]
    for value in config.values():
        if isinstance(value, dict) and value:
            found += places(value)
    return found


def mutate(config, rng):
    target = rng.choice(places(config))
    key = rng.choice(list(target))
    match rng.randrange(7):
        case 0:
            del target[key]
        case 1:
            text = str(key)
            renamed = rng.choice(
                (
                    text[:-1],
                    text + "s",
                    text.upper(),
                    text.replace("_", "-"),
                    f"new_{text}",
                    f"layer\n{text}",
                    "layer" * 999,
                    7,
                )
            )
            target[renamed] = target.pop(key)
        case 2 | 3:
            target[key] = copy.deepcopy(rng.choice(ODD))
        case 4:
            target[key] = {key: target[key]}
        case 5 if isinstance(target[key], list) and target[key]:
            target[key][rng.randrange(len(target[key]))] = copy.deepcopy(rng.choice(ODD))
        case 5 | 6 if isinstance(target[key], int):
            target[key] = rng.choice(
                (target[key] * 2, target[key] + 1, -target[key], target[key] * 10**9, target[key] // 2)
            )
        case _:
            target[
                rng.choice(("layer_types", "num_experts", "sliding_window", "quantization_config", "text_config"))
            ] = copy.deepcopy(rng.choice(ODD))


def survives(config, quantised):
    try:
        model = model_from_config(config, name="fuzz", origin="config.json", quant_config=quantised).value
    except InputError as error:
        message = str(error)
        assert message and "\n" not in message and len(message) < 2000
        return False
    assert parameters(model) > 0
    assert parameters(model, active=True) > 0
    assert kv_elements_per_token(model) >= 0
    assert model.depth >= 1 and model.hidden >= 1 and model.vocab >= 1
    assert hash(model.layers)
    return True


def fuzz(count, seed):
    rng, known, valid = random.Random(seed), bases(), 0
    for number in range(count):
        config = copy.deepcopy(known[number % len(known)])
        for _ in range(rng.choice((1, 1, 1, 2, 3, 5))):
            if config:
                mutate(config, rng)
        companion = {"quantization": copy.deepcopy(rng.choice(ODD))} if rng.random() < 0.05 else None
        valid += survives(config, companion)
    return valid


def test_bases_are_valid_themselves():
    assert all(survives(config, None) for config in bases())


def test_two_thousand_broken_configs():
    valid = fuzz(2000, seed=1)
    assert 100 < valid < 1500, "the mutations are neither all harmless nor all fatal"


def test_broken_quantisations():
    """Blocks that exporters write, with a value or two that cannot be."""
    rng = random.Random(3)
    blocks = json.loads(Path(__file__).with_name("quantised.json").read_text(encoding="utf-8"))
    sizes = {"model_type": "qwen3", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8, "head_dim": 32,
             "intermediate_size": 512, "vocab_size": 1000, "max_position_embeddings": 400}  # fmt: skip
    for name in sorted(blocks) * 60:
        stated = {key: copy.deepcopy(value) for key, value in blocks[name].items() if key != "bytes"}
        for _ in range(rng.choice((1, 1, 2))):
            mutate(next(iter(stated.values())) or stated, rng)
        survives(sizes | stated, None)


@pytest.mark.long
def test_a_hundred_thousand_broken_configs():
    assert fuzz(100_000, seed=2) > 5000


@pytest.mark.parametrize("value", ODD, ids=lambda value: str(type(value).__name__))
def test_a_config_may_be_anything(value):
    with pytest.raises(InputError):
        model_from_config(value, name="fuzz", origin="config.json")
