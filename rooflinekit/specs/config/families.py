"""The model classes that are understood: one row each, keyed by `model_type`.

A row states what the class does that its config does not say. A new class of known parts is a new row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rooflinekit.specs.config.attention import (
    alternating,
    chunked,
    everywhere,
    latent_layers,
    on_request,
    softmax_layers,
)
from rooflinekit.specs.config.classic import CLASSIC
from rooflinekit.specs.config.family import Family, Key, Reading
from rooflinekit.specs.config.feedforward import (
    dense_layers,
    first_dense,
    interleaved,
    moe_everywhere,
    periodic,
    sparse_step,
)
from rooflinekit.specs.config.hybrid import (
    delta_hybrid,
    jamba_mixers,
    lightning_hybrid,
    nemotron_depth,
    nemotron_ffns,
    nemotron_mixers,
)
from rooflinekit.specs.config.uneven import (
    gemma4_ffns,
    gemma4_mixers,
    gemma4_norms,
    mimo_mixers,
    nas_ffns,
    nas_mixers,
)

__all__ = ["ARCHITECTURES", "FAMILIES", "NESTED"]

TIED = Key("tie_word_embeddings", default=True)
BIAS = Key("attention_bias")
EIGHT = {"kv_heads": 8}
TWO = {"kv_heads": 2, "head_dim": 128}
USE_BIAS = Key("use_bias")


def _when(key: str, kind: str) -> Callable[[Reading], str]:
    """A query-key norm of this kind if the config sets `key`."""
    return lambda r: kind if r.keys.flag(key, False) else ""


def _minimax_norm(r: Reading) -> str:
    """MiniMax-M2 names the kind: one norm over all heads, or one a head."""
    kind = r.keys.word("qk_norm_type", "per_layer", ("per_layer", "per_head"))
    return {"per_layer": "full", "per_head": "head"}[kind] if r.keys.flag("use_qk_norm", False) else ""


LLAMA = Family(softmax_layers, dense_layers(), qkv_bias=BIAS, o_bias=BIAS, mlp_bias=Key("mlp_bias"))
MOE = replace(LLAMA, ffns=moe_everywhere(), mlp_bias=False)
GLM = Family(softmax_layers, dense_layers(), qkv_bias=Key("attention_bias", True), defaults=TWO)
QWEN2 = Family(softmax_layers, dense_layers(), spans=on_request, qkv_bias=True, defaults={"kv_heads": 32})
QWEN3 = replace(QWEN2, qkv_bias=BIAS, o_bias=BIAS, qk_norm="head", defaults={"kv_heads": 32, "head_dim": 128})
QWEN3_MOE = replace(QWEN3, ffns=sparse_step(shared=False), defaults={"kv_heads": 4})
QWEN3_NEXT = replace(
    QWEN3,
    mixers=delta_hybrid,
    ffns=sparse_step(shared=True),
    attention_gate=True,
    defaults={"kv_heads": 2, "head_dim": 256},
    needs={"use_sliding_window": False},
)
QWEN3_5 = replace(
    QWEN3_NEXT,
    ffns=dense_layers(),
    attention_gate=Key("attn_output_gate", default=True),
    defaults={"kv_heads": 4, "head_dim": 256},
)
GEMMA = Family(
    softmax_layers,
    dense_layers(),
    tied=TIED,
    qkv_bias=BIAS,
    o_bias=BIAS,
    defaults={"kv_heads": 16, "head_dim": 256},
)
GEMMA2 = replace(GEMMA, norms=4, spans=alternating(2), defaults={"kv_heads": 4, "head_dim": 256})
#: The configs of Gemma-3 leave out whatever the class has as its default, even the vocabulary.
GEMMA3_DEFAULTS = {"heads": 8, "kv_heads": 4, "head_dim": 256, "vocab": 262208, "context": 131072}
COHERE = replace(
    GEMMA,
    defaults={},
    norm="layernorm_nobias",
    norms=1,
    parallel=True,
    qk_norm=_when("use_qk_norm", "full"),
    names={"context": ("model_max_length", "max_position_embeddings")},
)
OLMO2 = replace(LLAMA, mlp_bias=False, qk_norm="full")
DEEPSEEK = Family(latent_layers, first_dense(), defaults={"q_lora_rank": 1536}, needs={"attention_bias": False})
DEEPSEEK_V3 = replace(
    DEEPSEEK,
    ffns=first_dense(router_bias=True),
    defaults={"q_lora_rank": 1536, "shared_experts": 1, "first_k_dense_replace": 3},
)
INDEX_SHARING = ("index_share_for_mtp_iteration", "index_skip_topk_offset", "index_topk_freq", "moe_router_dtype")
MINIMAX_SCALES = tuple(
    f"layernorm_{kind}_{which}" for kind in ("full_attention", "linear_attention", "mlp") for which in ("alpha", "beta")
)
MINIMAX = replace(MOE, mixers=lightning_hybrid, ignored=MINIMAX_SCALES)

FAMILIES: dict[str, Family] = CLASSIC | {
    "llama": LLAMA,
    "granite": LLAMA,
    "minicpm": replace(LLAMA, tied=TIED, ignored=("dim_model_base", "scale_emb", "scale_depth")),
    "ernie4_5": replace(LLAMA, tied=TIED, qkv_bias=USE_BIAS, o_bias=USE_BIAS, mlp_bias=USE_BIAS, defaults=TWO),
    "seed_oss": replace(
        LLAMA,
        qkv_bias=Key("attention_bias", True),
        o_bias=Key("attention_out_bias"),
        defaults=EIGHT | {"head_dim": 128},
    ),
    "smollm3": replace(LLAMA, tied=TIED, spans=chunked, defaults={"kv_heads": 4}, needs={"use_sliding_window": False}),
    "glm": GLM,
    "glm4": replace(GLM, norms=4),
    "granitemoe": MOE,
    "mistral": Family(softmax_layers, dense_layers(), spans=everywhere(4096), defaults=EIGHT),
    "mixtral": Family(softmax_layers, moe_everywhere(), spans=everywhere(), defaults=EIGHT),
    "qwen2": QWEN2,
    "mimo": replace(QWEN2, qkv_bias=Key("attention_bias", True)),
    "mimo_v2_flash": Family(
        mimo_mixers, first_dense(), qkv_bias=BIAS, needs={"attention_bias": False}, ignored=("attention_chunk_size",)
    ),
    "qwen2_moe": replace(QWEN2, ffns=sparse_step(shared=True), defaults={"kv_heads": 16}),
    "qwen2_vl": replace(QWEN2, defaults=EIGHT),
    "qwen3": QWEN3,
    "qwen3_moe": QWEN3_MOE,
    "qwen3_vl_moe": replace(QWEN3_MOE, defaults={"kv_heads": 16}),
    "qwen3_next": QWEN3_NEXT,
    "qwen3_5": QWEN3_5,
    "qwen3_5_moe": replace(QWEN3_5, ffns=sparse_step(shared=True), defaults=QWEN3_NEXT.defaults),
    "gemma": GEMMA,
    "gemma2": GEMMA2,
    "gemma3": replace(GEMMA2, qk_norm="head", spans=alternating(6), defaults=GEMMA3_DEFAULTS),
    "gemma4": Family(
        gemma4_mixers,
        gemma4_ffns,
        norms=gemma4_norms,
        tied=TIED,
        qkv_bias=BIAS,
        o_bias=BIAS,
        qk_norm="head",
        defaults={"kv_heads": 4, "head_dim": 256, "global_head_dim": 512},
        needs={"use_bidirectional_attention": "vision"},
        ignored=("vocab_size_per_layer_input",),
    ),
    "cohere": COHERE,
    "cohere2": replace(COHERE, qk_norm="", spans=alternating(4, rotary_global=False)),
    "olmo": replace(LLAMA, mlp_bias=False, norm="none"),
    "olmoe": replace(MOE, qk_norm="full"),
    "olmo2": OLMO2,
    "olmo3": replace(OLMO2, spans=alternating(4)),
    "internlm2": Family(softmax_layers, dense_layers(), qkv_bias=Key("bias", True), o_bias=Key("bias", True)),
    "phi3": replace(
        LLAMA, spans=everywhere(), lm_head_bias=Key("lm_head_bias"), ignored=("full_attn_mod", "interpolate_factor")
    ),
    "phimoe": replace(MOE, spans=everywhere(), norm="layernorm", lm_head_bias=Key("lm_head_bias"), defaults=EIGHT),
    "deepseek": replace(LLAMA, ffns=first_dense(), mlp_bias=False),
    "deepseek_v2": DEEPSEEK,
    "deepseek_v3": DEEPSEEK_V3,
    "deepseek_v32": DEEPSEEK_V3,
    "kimi_k2": DEEPSEEK_V3,
    "glm_moe_dsa": replace(DEEPSEEK_V3, defaults=DEEPSEEK_V3.defaults | {"q_lora_rank": 2048}, ignored=INDEX_SHARING),
    "glm4_moe": Family(
        softmax_layers,
        first_dense(router_bias=True),
        qkv_bias=BIAS,
        qk_norm=_when("use_qk_norm", "head"),
        defaults=EIGHT | {"shared_experts": 1, "first_k_dense_replace": 1},
    ),
    "minimax_m1": MINIMAX,
    "minimax_text_01": MINIMAX,
    "minimax_m2": Family(
        softmax_layers,
        moe_everywhere(router_bias=Key("use_routing_bias")),
        qk_norm=_minimax_norm,
        defaults=EIGHT,
        names={"mtp": ("num_mtp_modules",)},
        ignored=("mtp_transformer_layers", "use_mtp"),
    ),
    "gpt_oss": Family(
        softmax_layers,
        moe_everywhere(router_bias=True),
        spans=alternating(2),
        qkv_bias=Key("attention_bias", True),
        o_bias=Key("attention_bias", True),
        mlp_bias=True,
        sinks=True,
        defaults=EIGHT | {"head_dim": 64},
    ),
    "llama4": Family(
        softmax_layers,
        interleaved,
        spans=chunked,
        qkv_bias=BIAS,
        o_bias=BIAS,
        defaults=EIGHT,
        names={"expert_width": ("intermediate_size",), "width": ("intermediate_size_mlp",)},
        ignored=("use_qk_norm", "for_llm_compressor"),  # Llama-4's query-key norm has no weights
    ),
    "grok-1": Family(softmax_layers, moe_everywhere(), norms=4, tied=TIED),
    "jamba": Family(
        jamba_mixers,
        periodic(period="expert_layer_period", offset="expert_layer_offset"),
        rotary=False,
        defaults=EIGHT,
    ),
    "nemotron-nas": replace(LLAMA, mixers=nas_mixers, ffns=nas_ffns, norms=None),
    "nemotron_h": replace(
        LLAMA,
        mixers=nemotron_mixers,
        ffns=nemotron_ffns,
        depth=nemotron_depth,
        norms=None,
        gated=False,
        rotary=False,
        defaults=EIGHT | {"head_dim": 128},
        names={"mamba_groups": ("n_groups", "mamba_n_groups"), "mamba_conv": ("conv_kernel", "mamba_d_conv")},
        needs={"use_bias": False},
        ignored=("chunk_size", "expand", "time_step_rank", "mtp_hybrid_override_pattern", "mtp_layers_block_type"),
    ),
}

#: Other `model_type`s of the same classes: text parts of multimodal models, and re-releases.
ALIASES = {
    "qwen2_vl_text": "qwen2_vl",
    "qwen2_5_vl": "qwen2_vl",
    "qwen2_5_vl_text": "qwen2_vl",
    "qwen3_vl": "qwen3",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_vl_moe",
    "qwen3_5_text": "qwen3_5",
    "qwen3_5_moe_text": "qwen3_5_moe",
    "gemma3_text": "gemma3",
    "gemma4_text": "gemma4",
    "llama4_text": "llama4",
}
FAMILIES |= {alias: FAMILIES[known] for alias, known in ALIASES.items()}

#: `architectures` of configs that have no `model_type`.
ARCHITECTURES = {"Grok1ModelForCausalLM": "grok-1"}

#: Where a multimodal config keeps its text decoder.
NESTED = ("text_config", "llm_config", "language_config")
