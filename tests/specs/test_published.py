"""Published config.json files of classes, keys and formats that a reader once refused or misread (published.json).

Totals are those of the class of transformers on its meta device; bytes of the cache are by hand, in 16 bit unless the
checkpoint says otherwise.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from oracle import kv_elements_per_token, parameters

from rooflinekit.model.memory.cache import layer_cache
from rooflinekit.model.parameter_count import count_parameters
from rooflinekit.specs.config import model_from_config

PUBLISHED = json.loads(Path(__file__).with_name("published.json").read_text(encoding="utf-8"))
WIDE = {"attention": "bf16", "lm_head": "bf16"}
#: Weights of the text decoder, elements of the cache a token (in all layers), bytes of the state a sequence (fp32, and
#: the last inputs of convolutions in 16 bit), formats.
EXPECTED = {
    "Qwen/Qwen3-Coder-480B-A35B-Instruct": (480_154_875_392, 62 * 2 * 8 * 128, 0, WIDE),
    "MiniMaxAI/MiniMax-M2.7": (
        228_689_764_864,
        62 * 2 * 8 * 128,
        0,
        {"attention": "fp8_block", "experts": "fp8_block", "lm_head": "bf16", "kv": None},
    ),
    "Qwen/Qwen3-32B-FP8-Static-PerTensor": (
        32_762_123_264,
        64 * 2 * 8 * 128,
        0,
        {"attention": "fp8", "ffn": "fp8", "lm_head": "bf16", "kv": "fp8"},
    ),
    "nvidia/GLM-5.2-NVFP4": (
        743_377_019_904,
        78 * (512 + 64) + 21 * 128,
        0,
        {"attention": "bf16", "experts": "nvfp4", "shared_experts": "bf16", "kv": "fp8"},
    ),
    "nvidia/Gemma-4-26B-A4B-NVFP4": (
        25_233_141_760,
        25 * 2 * 8 * 256 + 5 * 2 * 2 * 512,
        0,
        {"attention": "bf16", "experts": "nvfp4", "shared_experts": "bf16", "kv": "fp8"},
    ),
    "nvidia/Qwen3.6-27B-NVFP4": (
        26_895_998_464,
        16 * 2 * 4 * 256,
        48 * (48 * 128 * 128 * 4 + (2 * 16 * 128 + 48 * 128) * 3 * 2),
        {"attention": "fp8", "ffn": "nvfp4", "lm_head": "nvfp4", "kv": "fp8"},
    ),
    "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4": (
        31_577_940_288,
        6 * 2 * 2 * 128,
        23 * (64 * 64 * 128 * 4 + (64 * 64 + 2 * 8 * 128) * 3 * 2),
        {"attention": "fp8", "experts": "nvfp4", "shared_experts": "nvfp4", "lm_head": "nvfp4", "kv": "fp8"},
    ),
    "LGAI-EXAONE/EXAONE-4.0-32B": (32_003_216_384, 64 * 2 * 8 * 128, 0, WIDE),
    # less 8 embedding rows of image tokens and 2 gates a crossing layer, which belong to the image
    "meta-llama/Llama-3.2-90B-Vision-Instruct": (87_666_865_192 - 8 * 8192 - 2 * 20, 100 * 2 * 8 * 128, 0, WIDE),
    "ibm-granite/granite-4.0-h-tiny": (
        6_939_037_248,
        4 * 2 * 4 * 128,
        36 * (48 * 64 * 128 * 4 + (48 * 64 + 2 * 128) * 3 * 2),
        WIDE,
    ),
    "ibm-granite/granite-4.0-h-1b": (
        1_461_538_368,
        4 * 2 * 4 * 128,
        36 * (48 * 64 * 128 * 4 + (48 * 64 + 2 * 128) * 3 * 2),
        WIDE,
    ),
    "LiquidAI/LFM2-2.6B": (2_569_272_320, 8 * 2 * 8 * 64, 22 * 2048 * 2 * 2, WIDE),
    "tiiuae/Falcon-H1-7B-Instruct": (
        7_585_513_568,
        44 * 2 * 2 * 128,
        44 * (24 * 128 * 256 * 4 + (24 * 128 + 2 * 256) * 3 * 2),
        WIDE,
    ),
    "tiiuae/falcon-mamba-7b": (7_272_665_088, 0, 64 * (8192 * 16 * 4 + 8192 * 3 * 2), WIDE),
    "tencent/Hunyuan-7B-Instruct": (7_504_568_320, 32 * 2 * 8 * 128, 0, WIDE),
}


def load(name, **changes):
    entry = PUBLISHED[name]
    config = {**entry["config"], **changes}
    return model_from_config(config, name=name, origin="config.json", quant_config=entry.get("companion"))


@pytest.mark.parametrize("name", EXPECTED)
def test_a_published_config_has_its_weights_cache_and_formats(name):
    total, kv, state, formats = EXPECTED[name]
    model = load(name).value
    assert count_parameters(model).total == parameters(model) == total
    assert kv_elements_per_token(model) == kv
    caches = [layer_cache(layer.mixer) for layer in model.layers]
    assert sum(cache.elements for cache in caches) == kv - 128 * 21 * name.startswith("nvidia/GLM-5.2")  # index keys
    assert sum(cache.state_bytes for cache in caches) == state
    for kind, dtype in formats.items():
        read = model.kv_dtype if kind == "kv" else getattr(model.formats, kind)
        assert (read and read.value) == dtype, kind


def test_every_published_config_is_expected_and_says_where_it_was_read():
    assert PUBLISHED.keys() == EXPECTED.keys()
    assert all(entry["read"] for entry in PUBLISHED.values())
