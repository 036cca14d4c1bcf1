"""Published config.json files of classes, keys and formats that a reader once refused or misread (published.json).

Totals are those of the class of transformers on its meta device; bytes of the cache are by hand, in 16 bit unless the
checkpoint says otherwise.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from oracle import kv_elements_per_token, parameters

from rooflinekit.model.blocks import model_operations
from rooflinekit.model.cache import layer_cache, model_cache_law
from rooflinekit.model.kernels.attention import index_key_bytes
from rooflinekit.model.kernels.operation import Step
from rooflinekit.model.parameter_count import count_parameters
from rooflinekit.model.precision import Precision
from rooflinekit.model.step import check_deployment, make_plan
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.errors import ArchitectureError, DeploymentError, InputError, SpecError
from rooflinekit.model.types.hardware import System
from rooflinekit.model.types.model import CompressedAttention, DenseFFN
from rooflinekit.specs import load_accelerator, load_model, spec_dir
from rooflinekit.specs.calibration.load import load_calibration
from rooflinekit.specs.config import class_names, model_from_config
from rooflinekit.specs.config.family import family_of
from rooflinekit.specs.config.refusals import listed_keys, uncosted
from rooflinekit.specs.files import read_yaml

PUBLISHED = json.loads(Path(__file__).with_name("published.json").read_text(encoding="utf-8"))
WIDE = {"attention": "bf16", "lm_head": "bf16"}
#: Weights of the text decoder, elements of the cache a token (in all layers), bytes of the state a sequence (fp32, and
#: the last inputs of convolutions in 16 bit), formats.
EXPECTED = {
    "Qwen/Qwen3-Coder-480B-A35B-Instruct": (480_154_875_392, 62 * 2 * 8 * 128, 0, WIDE),
    # a state in seven layers of eight, keys and values in the eighth
    "MiniMaxAI/MiniMax-M1-80k": (456_089_655_296, 10 * 2 * 8 * 128, 70 * 64 * 128 * 128 * 4, WIDE),
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
    # less 8 embedding rows of image tokens, which belong to the image
    "meta-llama/Llama-3.2-90B-Vision-Instruct": (87_666_865_192, 80 * 2 * 8 * 128, 0, WIDE),
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
    "mistralai/Mamba-Codestral-7B-v0.1": (
        7_285_403_648,
        0,
        64 * (128 * 64 * 128 * 4 + (128 * 64 + 2 * 8 * 128) * 3 * 2),
        WIDE,
    ),
    "tiiuae/falcon-mamba-7b": (7_272_665_088, 0, 64 * (8192 * 16 * 4 + 8192 * 3 * 2), WIDE),
    # the class of transformers, and 256 balance corrections in each of the 40 layers that have them
    "deepseek-ai/DeepSeek-V4-Flash": (
        284_332_230_231 + 40 * 256,
        21 * (512 + 128) / 4 + 20 * 512 / 128,
        43 * 128 * 512 * 2,
        {"attention": "fp8_block", "shared_experts": "fp8_block", "experts": "mxfp4", "lm_head": "bf16", "kv": None},
    ),
    # the checkpoint's 427,040,140,160 values less its vision tower and projector (transformers, MiniMaxM3VL)
    "MiniMaxAI/MiniMax-M3": (427_040_140_160 - 865_567_232, 60 * 2 * 4 * 128 + 57 * 128, 0, WIDE),
    # the hub's 2,779,931,837,184 less tower and projector, and less the 32 of 128 decays a layer that no head reads
    "moonshotai/Kimi-K3": (
        2_779_931_837_184 - 401_214_464 - 46_144_512 - 69 * (128 - 96),
        24 * (512 + 64),
        69 * (96 * 128 * 128 * 4 + 3 * 96 * 128 * 3 * 2),
        {"attention": "bf16", "ffn": "bf16", "shared_experts": "bf16", "experts": "mxfp4", "lm_head": "bf16"},
    ),
    # the checkpoint's 7,849,978,192 less its towers, and less keys and values of the 15 layers that have none to load
    "google/gemma-3n-E4B-it": (
        7_849_978_192 - 983_281_504 - 15 * (2 * 2 * 256 * 2048 + 256),
        20 * 2 * 2 * 256,
        0,
        WIDE,
    ),
    # the class of transformers, and 288 balance corrections in each of the 42 layers that have them
    "stepfun-ai/Step-3.7-Flash": (196_956_118_272 + 42 * 288, 45 * 2 * 8 * 128, 0, WIDE),
    # of the 6 layers with attention, all have the weights of the first
    "Zyphra/Zamba2-1.2B": (
        1_215_064_704,
        6 * 2 * 32 * 128,
        38 * (64 * 64 * 128 * 4 + (64 * 64 + 2 * 128) * 3 * 2),
        WIDE,
    ),
    # the total of the paper (arXiv:2503.14456); of each sequence also the last input of two blocks
    "fla-hub/rwkv7-1.5B-world": (1_527_404_544, 0, 24 * (32 * 64 * 64 * 4 + 2 * 2048 * 2), WIDE),
    # keys and values of the prompt in the layers that attend to the encoder, of the answer in those beside them
    "google/flan-t5-xl": (2_849_757_184, 24 * 2 * 32 * 64, 0, WIDE),
    "openai/whisper-large-v3": (
        1_543_490_560,
        32 * 2 * 20 * 64,
        32 * 1500 * 2 * 20 * 64 * 2,
        {"attention": "fp16", "lm_head": "fp16"},
    ),
    "moonshotai/Kimi-Linear-48B-A3B-Instruct": (
        49_122_681_728,
        7 * (512 + 64),
        20 * (32 * 128 * 128 * 4 + 3 * 32 * 128 * 3 * 2),
        WIDE,
    ),
    "ibm-ai-platform/Bamba-9B-v2": (
        9_780_235_392,
        3 * 2 * 8 * 128,
        29 * (128 * 64 * 128 * 4 + (128 * 64 + 2 * 128) * 3 * 2),
        WIDE,
    ),
    "swiss-ai/Apertus-8B-Instruct-2509": (8_053_338_176, 32 * 2 * 8 * 128, 0, WIDE),
    "rednote-hilab/dots.llm1.inst": (142_774_373_888 + 61 * 128, 62 * 2 * 32 * 128, 0, WIDE),
    "baidu/ERNIE-4.5-21B-A3B-PT": (21_825_437_888, 28 * 2 * 4 * 128, 0, WIDE),
    "arcee-ai/AFM-4.5B": (4_619_184_640, 36 * 2 * 4 * 128, 0, WIDE),
    "CohereLabs/c4ai-command-a-03-2025": (111_057_580_032, 64 * 2 * 8 * 128, 0, WIDE),
    "zai-org/GLM-4.5V": (106_852_251_264, 46 * 2 * 8 * 128, 0, WIDE),
    # by hand: attention with a latent in 30 layers, one dense block, 29 x (72 experts of 1536, 2 shared, corrections)
    "deepseek-ai/deepseek-vl2": (
        2 * 129280 * 2560
        + 30 * (2560 * 32 * 192 + 2560 * 576 + 512 + 512 * 32 * 256 + 32 * 128 * 2560 + 2 * 2560)
        + 3 * 2560 * 12288
        + 29 * (74 * 3 * 2560 * 1536 + 2560 * 72 + 72)
        + 2560,
        30 * (512 + 64),
        0,
        WIDE,
    ),
    "llava-hf/llava-1.5-7b-hf": (6_738_939_904, 32 * 2 * 32 * 128, 0, {"attention": "fp16", "lm_head": "fp16"}),
    "mistral-community/pixtral-12b": (12_247_782_400, 40 * 2 * 8 * 128, 0, WIDE),
    # by hand: 32 layers of width 4096, blocks of 11008, biases of queries, keys and values
    "Qwen/Qwen2-Audio-7B-Instruct": (
        32 * (4 * 4096**2 + 3 * 4096 + 3 * 4096 * 11008 + 2 * 4096) + (2 * 156032 + 1) * 4096,
        32 * 2 * 32 * 128,
        0,
        WIDE,
    ),
    # by hand: 64 x (attention, 8 experts of 16384, a dense block of 32768, 4 norms)
    "xai-org/grok-2": (
        2 * 131072 * 8192
        + 64 * (2 * 8192 * 72 * 128 + 8 * 3 * 8192 * 16384 + 8192 * 8 + 3 * 8192 * 32768 + 4 * 8192)
        + 8192,
        64 * 2 * 8 * 128,
        0,
        WIDE,
    ),
    # by hand: 35 x (attention, 128 experts of 4864, a dense block of 7168, 3 norms)
    "Snowflake/snowflake-arctic-instruct": (
        2 * 32000 * 7168
        + 35 * (2 * 7168 * 64 * 128 + 128 * 3 * 7168 * 4864 + 7168 * 128 + 3 * 7168 * 7168 + 3 * 7168)
        + 7168,
        35 * 2 * 8 * 128,
        0,
        WIDE,
    ),
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
    indexers = [indexer for layer in model.layers if (indexer := getattr(layer.mixer, "indexer", None))]
    own = [indexer for indexer in indexers if not indexer.shared]
    ratio = 4 if isinstance(model.layers[-1].mixer, CompressedAttention) else 1  # tokens that an index key stands for
    keys = sum(index_key_bytes(each.head_dim, Dtype.BF16 if each.wide else Dtype.FP8) for each in own) / ratio
    elements = kv - sum(each.head_dim for each in own) / ratio
    assert sum(cache.token_bytes for cache in caches) == 2.0 * elements + keys
    assert sum(cache.state_bytes for cache in caches) == state
    for kind, dtype in formats.items():
        read = model.kv_dtype if kind == "kv" else getattr(model.formats, kind)
        assert (read and read.value) == dtype, kind


def precision_of(model):
    return Precision(model.dtype, model.dtype, model.formats)


def launches(model, batch):
    """The launches of a step, in 16 bit."""
    step, found = Step(batch, model.dtype, model.dtype), model_operations(model, Deployment(), precision_of(model))
    return [kernel for op, count in found.items() for kernel in op.kernels(step, count)]


def test_a_token_of_gemma_3n_reads_all_weights_but_the_table_of_its_layers_inputs():
    """By hand: of 262,144 rows of 35 x 256 it reads one; 15 layers neither project nor append keys and values."""
    kernels = launches(load("google/gemma-3n-E4B-it").value, Batch.decode(1.0, 8.0))
    assert sum(k.count * k.weight_bytes for k in kernels) == 2 * (6_835_235_568 - 262_144 * 35 * 256)
    assert sum(k.count * k.kv_write_bytes for k in kernels) == 2 * 20 * 2 * 2 * 256
    assert sum(k.count * k.kv_read_bytes for k in kernels) == 2 * 35 * 8 * 2 * 2 * 256
    assert sum(k.count for k in kernels if k.name == "altup_predict") == 35


def test_layers_that_share_keys_need_one_before_them_that_has_them():
    config = PUBLISHED["google/gemma-3n-E4B-it"]["config"]
    text = config["text_config"] | {"num_kv_shared_layers": 32}
    with pytest.raises(SpecError, match="the last 32 of 35 layers share keys that no layer before them has"):
        load("google/gemma-3n-E4B-it", text_config=text)


def test_queries_of_step_3_have_a_low_rank():
    """By hand: 7,168 x (2,048 + 2·256), a norm of 2,048, 2,048 x 16,384 and 16,384 x 7,168; one head of keys."""
    step, system = load_model("step-3").value, System.of(load_accelerator("h200-sxm").value)
    whole, split = (make_plan(step, Deployment(tp=tp), system, None).operations for tp in (1, 8))
    held = sum(n * w.count for op, n in whole.items() for w in op.weights if w.module == "attention")
    assert held == 61 * (7168 * (2048 + 512) + 2048 * 16384 + 16384 * 7168)
    assert [isinstance(layer.ffn, DenseFFN) for layer in step.layers].count(True) == 5
    widths = {op.name: op.n for op in split if getattr(op, "name", "") in ("qkv_proj", "q_b_proj")}
    assert widths == {"qkv_proj": 2560, "q_b_proj": 2048}  # the first is whole on every rank


def test_step_gates_each_head_and_its_sliding_layers_have_more_of_them():
    layers = load("stepfun-ai/Step-3.7-Flash").value.layers
    assert [(a.heads, a.window, a.head_gated) for a in (layer.mixer for layer in layers[:2])] == [
        (64, None, True),
        (96, 512, True),
    ]
    assert [isinstance(layer.ffn, DenseFFN) for layer in layers[:4]] == [True, True, True, False]
    text = PUBLISHED["stepfun-ai/Step-3.7-Flash"]["config"]["text_config"]
    for change, said in (
        ({"layer_types": ["full_attention"] * 9}, "layer_types has 9 entries for 45 layers"),
        ({"moe_layers_enum": "3,x"}, "moe_layers_enum = '3,x' is no list of layers"),
        ({"attention_other_setting": {"head_dim": 64}}, "head_dim = 64 differs from that of the other layers"),
    ):
        with pytest.raises(InputError, match=said):
            load("stepfun-ai/Step-3.7-Flash", text_config=text | change)


def work(model, batch, name):
    """FLOP of the launches of a name, and bytes of weights and of cache that they read."""
    kernels, parts = launches(model, batch), ("flops", "weight_bytes", "kv_read_bytes")
    return tuple(sum(k.count * getattr(k, part) for k in kernels if k.name == name) for part in parts)


def test_the_first_layer_of_a_block_of_kimi_k3_attends_to_the_earlier_sums_alone():
    """Equation 10 of its report (arXiv:2607.24653): b0 … bn-1, and from the second layer on the present sum too.

    93 layers in blocks of 12, two modules a layer; the last norm attends to all sums.
    """
    seen = sum(2 * (1 + layer // 12 + (layer % 12 > 0)) for layer in range(93)) + 1 + 93 // 12 + 1
    kernels = launches(load("moonshotai/Kimi-K3").value, Batch.decode(1.0, 8.0))
    moved = sum(k.count * k.activation_bytes for k in kernels if k.name == "residual_attention")
    assert moved == 2 * 7168 * (seen + 2 * 93 + 1)


def test_a_pass_that_nobody_measured_has_the_interval_of_a_format_that_was_not():
    """A norm over what experts return, sums of earlier layers and streams, against a norm of the usual kind."""
    calibration = load_calibration("h100-sxm--vllm")
    kimi = launches(load("moonshotai/Kimi-K3").value, Batch.decode(1.0, 8.0))
    kernel = {kernel.name: kernel for kernel in kimi}
    assert calibration.measured(kernel["residual_norm"])
    for name in ("residual_attention", "expert_norm"):
        assert not calibration.measured(kernel[name])
        fit = calibration.fit(kernel[name])
        plain = replace(kernel[name], variant="")
        assert calibration.factors(kernel[name], fit)[0] > calibration.factors(plain, fit)[0] > 1.0


def test_a_prompt_without_an_image_passes_by_the_layers_that_attend_to_one():
    """Llama-3.2-90B-Vision: 20 of 100 layers of width 8192, 8 KV heads of 128, blocks of 28672."""
    llama = load("meta-llama/Llama-3.2-90B-Vision-Instruct").value
    for batch in (Batch.prefill(1.0, 10.0), Batch.decode(1.0, 8.0)):
        assert work(llama, batch, "down_proj")[1] == 80 * 28672 * 8192 * 2
        assert work(llama, batch, "cross_kv_proj") == work(llama, batch, "q_proj") == (0, 0, 0)


def test_a_token_of_zamba_2_reads_the_block_that_layers_share_once_for_each():
    """By hand: queries, keys and values of 2 x 2048 inputs, 32 heads of 128, and a block of 8192, six times."""
    zamba, token = load("Zyphra/Zamba2-1.2B").value, Batch.decode(1.0, 8.0)
    assert work(zamba, token, "qkv_proj")[1] == 6 * 3 * 4096 * 4096 * 2
    assert work(zamba, token, "gate_up_proj")[1] == 6 * 2048 * 2 * 8192 * 2
    assert work(zamba, token, "q_adapter_up")[1] == 6 * 128 * 4096 * 2
    held = {
        w.shape: n for op, n in model_operations(zamba, Deployment(), precision_of(zamba)).items() for w in op.weights
    }
    assert held[12288, 4096] == 1
    assert held[2048, 2048] == 6
    with pytest.raises(DeploymentError, match=r"pp=2, but layers of Zyphra/Zamba2-1\.2B share weights"):
        check_deployment(zamba, Deployment(pp=2), System.of(load_accelerator("h100-sxm").value))


def test_rwkv_7_updates_its_state_with_two_outer_products():
    """By hand: for each of 24 x 32 heads of 64 x 64, decay 1, S a 2, its outer product 2, v kᵀ 2, read-out 2 = 9."""
    rwkv, prompt = load("fla-hub/rwkv7-1.5B-world").value, Batch.prefill(1.0, 100.0)
    assert work(rwkv, prompt, "wkv7")[0] == 9 * 100 * 24 * 32 * 64 * 64
    assert work(rwkv, Batch.decode(3.0, 8.0), "wkv7")[2] == 3 * 24 * 32 * 64 * 64 * 4
    assert [layer.mixer.value_rank for layer in rwkv.layers[:3]] == [0, 64, 64]
    with pytest.raises(InputError, match="31 heads of 64 are no 2048 hidden elements"):
        load("fla-hub/rwkv7-1.5B-world", num_heads=31)


def test_the_encoder_of_t5_reads_a_prompt_once_and_its_decoder_one_token_of_it():
    """Flan-T5-XL, 100 tokens in: 24 layers of width 2048, 32 heads of 64, blocks of 5120 with a gate."""
    t5, prompt, token = load("google/flan-t5-xl").value, Batch.prefill(1.0, 100.0), Batch.decode(1.0, 130.0)
    assert work(t5, prompt, "encoder_attention")[0] == 24 * 4 * 100**2 * 32 * 64
    assert work(t5, prompt, "cross_kv_proj")[0] == 24 * 2 * 100 * 2048 * 2 * 2048
    assert work(t5, prompt, "down_proj")[0] == 24 * 2 * (100 + 1) * 5120 * 2048
    assert work(t5, token, "encoder_attention") == work(t5, token, "cross_kv_proj") == (0, 0, 0)
    assert work(t5, token, "down_proj")[:2] == (24 * 2 * 5120 * 2048, 24 * 2 * 5120 * 2048)
    assert work(t5, token, "attention")[2] == 130 * 24 * 2 * 2048 * 2  # 100 keys of the encoder and 30 of its own
    halves = Batch.chunk(1.0, 50.0, 0.0, False), Batch.chunk(1.0, 50.0, 50.0, True)
    assert sum(work(t5, half, "encoder_attention")[0] for half in halves) == 24 * 4 * 100**2 * 32 * 64
    assert work(t5, halves[0], "q_proj")[0] == 0


def test_whisper_encodes_its_sound_once_and_every_token_sees_all_of_it():
    """Whisper-large-v3: 1,500 positions from 3,000 frames of 128 bands; 32 layers of width 1280, 20 heads of 64."""
    whisper, prompt = load("openai/whisper-large-v3").value, Batch.prefill(2.0, 4.0)
    assert work(whisper, prompt, "conv_1")[0] == 2 * 2 * 3000 * 3 * 128 * 1280
    assert work(whisper, prompt, "conv_2")[0] == 2 * 2 * 1500 * 3 * 1280 * 1280
    assert work(whisper, prompt, "encoder_attention")[0] == 2 * 32 * 4 * 1500**2 * 1280
    assert work(whisper, prompt, "cross_kv_proj")[0] == 2 * 32 * 2 * 1500 * 1280 * 2560
    assert work(whisper, prompt, "cross_attention")[0] == 2 * 32 * 4 * 4 * 1500 * 1280
    token = Batch.decode(2.0, 100.0)
    assert work(whisper, token, "encoder_attention") == work(whisper, token, "conv_1") == (0, 0, 0)
    assert work(whisper, token, "cross_attention")[2] == 2 * 32 * 1500 * 2 * 1280 * 2
    assert work(whisper, token, "attention")[2] == 2 * 32 * 100 * 2 * 1280 * 2


@pytest.mark.parametrize(("changes", "said"), [
    ({"num_heads": None}, "num_heads is missing"),
    ({"feed_forward_proj": "gated-swish"}, "feed_forward_proj = 'gated-swish' is not understood"),
    ({"architectures": ["T5EncoderModel"]}, "T5EncoderModel classifies or scores"),
    ({"cross_layers": 3}, "cross_layers = 3"),
])  # fmt: skip
def test_what_is_not_understood_of_an_encoder_decoder_is_refused(changes, said):
    with pytest.raises(InputError, match=said):
        load("google/flan-t5-xl", **changes)


@pytest.mark.parametrize(("name", "kv", "state"), [
    ("bloom-176b", 70 * 2 * 112 * 128, 0),
    ("minimax-m1", 10 * 2 * 8 * 128, 70 * 64 * 128 * 128 * 4),
    ("minimax-m2", 62 * 2 * 8 * 128, 0),
])  # fmt: skip
def test_models_of_the_library_that_were_refused_once_keep_this(name, kv, state):
    law = model_cache_law(load_model(name).value)
    assert (law.bytes_per_token, law.state_bytes) == (2 * kv, state)


def test_a_reward_model_has_one_score_in_place_of_logits():
    """Llama-3-8B, 8,030,261,248 weights, less its head, and a row for the score."""
    config = LLAMA | {"architectures": ["LlamaForSequenceClassification"], "num_labels": 1}
    model = model_from_config(config, name="reward", origin="config.json").value
    assert count_parameters(model).total == 8_030_261_248 - 128_256 * 4096 + 4096


def test_mixers_side_by_side_are_listed_as_two_layers_and_this_is_told():
    loaded = load("tiiuae/Falcon-H1-7B-Instruct")
    assert loaded.value.depth == 88
    assert "44 layers, each a state space beside attention, are listed as 88" in loaded.warnings


def test_command_r7b_states_its_blocks_by_name():
    """Sizes as the checkpoint prints its modules; the names of its blocks as exllamav3 reads them."""
    config = {
        "model_type": "cohere2", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 14336, "vocab_size": 256000,
        "max_position_embeddings": 8192, "sliding_window": 4096, "layer_switch": 4, "rotary_pct": 1.0,
        "order_of_interleaved_layers": "local_attn_first", "position_embedding_type": "rope_gptj",
        "use_parallel_block": True, "use_gated_activation": True, "use_embedding_sharing": True,
        "use_parallel_embedding": False, "use_qk_norm": False, "logit_scale": 0.25, "torch_dtype": "bfloat16",
    }  # fmt: skip
    model = model_from_config(config, name="r7b", origin="config.json").value
    layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 4096
    assert count_parameters(model).total == 256_000 * 4096 + 32 * layer + 4096 == 8_028_033_024
    token = 2 * 2 * 8 * 128  # keys and values of 8 heads in 2 bytes; beyond the window of a quarter of the layers
    assert model_cache_law(model).slopes == ((4096.0, 24 * token), (math.inf, 8 * token))
    assert [layer.mixer.window for layer in model.layers[:4]] == [4096, 4096, 4096, None]
    assert [layer.mixer.rotary for layer in model.layers[:4]] == [True, True, True, False]
    with pytest.raises(ArchitectureError, match="order_of_interleaved_layers = 'global_attn_first' is not understood"):
        model_from_config(
            config | {"order_of_interleaved_layers": "global_attn_first"}, name="r7b", origin="config.json"
        )


@pytest.mark.parametrize(("width", "layers", "heads", "total"), [
    (4096, 30, 32, 7_069_016_064), (14336, 70, 112, 176_247_271_424),
])  # fmt: skip
def test_bloomz_reads_and_has_the_weights_of_bloom(width, layers, heads, total):
    """Totals as the cards of bloom-7b1 and bloom say; bloomz-7b1 and bloomz are those, tuned, under these keys."""
    config = {
        "apply_residual_connection_post_layernorm": False, "architectures": ["BloomForCausalLM"],
        "attention_dropout": 0.0, "attention_softmax_in_fp32": True, "bias_dropout_fusion": True, "bos_token_id": 1,
        "eos_token_id": 2, "hidden_dropout": 0.0, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05,
        "masked_softmax_fusion": True, "model_type": "bloom", "n_embed": width, "n_inner": None, "n_layer": layers,
        "num_attention_heads": heads, "offset_alibi": 100, "pad_token_id": 3, "pretraining_tp": 4, "seq_length": 2048,
        "skip_bias_add": True, "skip_bias_add_qkv": False, "slow_but_exact": False, "unk_token_id": 0,
        "use_cache": True, "vocab_size": 250880,
    }  # fmt: skip
    model = model_from_config(config, name="bloomz", origin="config.json").value
    layer = 12 * width**2 + 13 * width  # four matrices and their shifts, two norms
    assert count_parameters(model).total == 250_880 * width + layers * layer + 4 * width == total
    assert model_cache_law(model).bytes_per_token == layers * 2 * width * 2


#: Text parts that leave out whatever their class has as its default, and their weights.
NESTED = {
    "llama": (
        {"vocab_size": 32064, "max_position_embeddings": 4096, "torch_dtype": "float16"},
        6_738_939_904,
    ),  # LLaVA-1.5
    "mistral": ({}, 7_241_732_096),
    "qwen2": (
        {"vocab_size": 156032},
        32 * (4 * 4096**2 + 3 * 4096 + 3 * 4096 * 22016 + 2 * 4096) + (2 * 156032 + 1) * 4096,
    ),
}


@pytest.mark.parametrize("kind", NESTED)
def test_the_text_part_of_a_multimodal_config_may_leave_out_the_sizes_of_its_class(kind):
    stated, total = NESTED[kind]
    text = {"model_type": kind, "architectures": None, **stated}
    loaded = model_from_config({"model_type": "llava", "text_config": text}, name="m", origin="config.json")
    assert count_parameters(loaded.value).total == total
    assert any("hidden_size is absent: the class default of 4096 is taken" in line for line in loaded.warnings)
    with pytest.raises(SpecError, match=r"hidden_size .* is missing"):
        model_from_config(text, name="m", origin="config.json")


def bases():
    """A config of each class that has one: published, of the library, or of the classes' own tests."""
    found = {}
    for entry in PUBLISHED.values():
        config = entry["config"].get("text_config") or entry["config"]
        found.setdefault(config["model_type"], config)
    for path in sorted(spec_dir("model").glob("*.yaml")):
        config = read_yaml(path)["config"]
        found.setdefault(config["model_type"], config)
    return found


def ignored():
    found = bases()
    return [(kind, key) for kind in class_names() if kind in found for key in family_of(kind).ignored]


@pytest.mark.parametrize(("kind", "key"), ignored())
def test_a_key_that_its_class_ignores_changes_nothing_and_stops_other_classes(kind, key):
    config = json.loads(json.dumps(bases()[kind]))
    outer, _, inner = key.rpartition(".")
    section = config.setdefault(outer, {}) if outer else config
    section.pop(inner, None)
    without = model_from_config(config, name="m", origin="config.json").value
    section[inner] = 3
    assert model_from_config(config, name="m", origin="config.json").value == without
    other = {
        "model_type": "gptj", "n_embd": 64, "n_layer": 1, "n_head": 2, "vocab_size": 9, "n_positions": 9, inner: [3, 4],
    }  # fmt: skip
    if inner not in listed_keys("harmless"):
        with pytest.raises(InputError, match=inner):
            model_from_config(other, name="m", origin="config.json")


LLAMA = read_yaml(spec_dir("model") / "llama-3-8b.yaml")["config"]


def compressed(weights, ignore=("lm_head",), **more):
    group = {"targets": ["Linear"], "weights": weights, **more.pop("group", {})}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": list(ignore), **more}


FP8 = {"num_bits": 8, "type": "float", "strategy": "channel"}


@pytest.mark.parametrize(("section", "said"), [
    (compressed(FP8, ignore=["re:.*self_attn.*", "re:.*mlp.*", "lm_head"]), "quantises no module of this model"),
    ({"quant_method": "mxfp4"}, "quantises no module of this model"),
])  # fmt: skip
def test_a_quantisation_in_vain_is_refused(section, said):
    with pytest.raises(InputError, match=said):
        model_from_config(LLAMA | {"quantization_config": section}, name="m", origin="config.json")


def test_a_checkpoint_that_leaves_its_heaviest_weights_wide_is_told():
    section = compressed(FP8, ignore=["re:.*mlp.*", "lm_head"])
    loaded = model_from_config(LLAMA | {"quantization_config": section}, name="m", origin="config.json")
    assert "the checkpoint leaves its ffn, most of its weights, in bf16" in loaded.warnings


def test_grok_2_has_a_dense_block_beside_its_experts():
    """The reduced config of the checkpoint's class in sgl-jax (test_grok.py): its `model_type` is a vision model's."""
    config = {
        "architectures": ["Grok1ForCausalLM"], "embedding_multiplier_scale": 90.5, "output_multiplier_scale": 0.5,
        "vocab_size": 131072, "hidden_size": 8192, "intermediate_size": 1024, "moe_intermediate_size": 2048,
        "max_position_embeddings": 131072, "num_experts_per_tok": 2, "num_local_experts": 8, "residual_moe": True,
        "num_attention_heads": 64, "num_key_value_heads": 8, "num_hidden_layers": 2, "head_dim": 128,
        "attn_temperature_len": 1024, "sliding_window_size": -1, "global_attn_every_n": 1, "model_type": "git",
        "torch_dtype": "bfloat16", "rope_type": "original", "original_max_position_embeddings": 8192,
        "scaling_factor": 16.0, "extrapolation_factor": 1.0, "attn_factor": 1.0, "beta_fast": 8, "beta_slow": 1,
    }  # fmt: skip
    attention = 2 * 8192 * 64 * 128 + 2 * 8192 * 8 * 128
    blocks = 8 * 3 * 8192 * 2048 + 8192 * 8 + 3 * 8192 * 1024
    model = model_from_config(config, name="grok-2", origin="config.json").value
    assert count_parameters(model).total == 2 * 131072 * 8192 + 2 * (attention + blocks + 4 * 8192) + 8192
    with pytest.raises(ArchitectureError, match=r"global_attn_every_n = 2 is not understood; known: 1"):
        model_from_config(config | {"global_attn_every_n": 2}, name="grok-2", origin="config.json")


def test_arctic_has_a_dense_block_as_wide_as_the_stream():
    """Keys as ArcticConfig names them."""
    config = {
        "model_type": "arctic", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8,
        "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 1000, "num_local_experts": 4,
        "num_experts_per_tok": 2, "moe_layer_frequency": 1, "parallel_attn_mlp_res": True, "use_residual": True,
        "moe_eval_capacity_factor": 1, "moe_min_capacity": 0, "moe_token_dropping": False,
    }  # fmt: skip
    attention = 2 * 256 * 256 + 2 * 256 * 2 * 32
    blocks = 4 * 3 * 256 * 128 + 256 * 4 + 3 * 256 * 256
    model = model_from_config(config, name="arctic", origin="config.json").value
    assert count_parameters(model).total == 2 * 1000 * 256 + 2 * (attention + blocks + 3 * 256) + 256


@pytest.mark.parametrize(("kind", "said"), [
    ("zamba", "serves many layers"), ("rwkv6", "time mixing"),
    ("marian", "the decoder also attends to what it gives"), ("wav2vec2", "an encoder runs once"),
])  # fmt: skip
def test_a_decoder_that_is_not_costed_is_refused_with_its_reason(kind, said):
    with pytest.raises(ArchitectureError, match=said):
        model_from_config({"model_type": kind, "hidden_size": 64}, name="m", origin="config.json")


def test_a_decoder_that_is_not_costed_names_the_nearest_that_is():
    for why in uncosted().values():
        assert set(why.rpartition(" nearest ")[2].split()) - {"is", "are", "and"} <= set(class_names()), why


def test_every_published_config_is_expected_and_says_where_it_was_read():
    assert PUBLISHED.keys() == EXPECTED.keys()
    assert all(entry["read"] for entry in PUBLISHED.values())
