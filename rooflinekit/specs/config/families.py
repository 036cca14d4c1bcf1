"""The model classes that are understood: one row each, keyed by `model_type`.

A row states what the class does that its config does not say. A new class of known parts is a new row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rooflinekit.model.types.errors import ArchitectureError, SpecError
from rooflinekit.model.types.model import Norm
from rooflinekit.specs.config.family import Family, Key, Reading
from rooflinekit.specs.config.feedforward import (
    dbrx_ffns,
    dense_layers,
    first_dense,
    gemma4_ffns,
    generic_ffns,
    interleaved,
    moe_everywhere,
    mpt_ffns,
    nas_ffns,
    nemotron_ffns,
    periodic,
    sparse_step,
)
from rooflinekit.specs.config.keys import Keys
from rooflinekit.specs.config.mixers import (
    alternating,
    chunked,
    delta_hybrid,
    everywhere,
    gemma4_mixers,
    jamba_mixers,
    latent_layers,
    lightning_hybrid,
    mimo_mixers,
    nas_mixers,
    nemotron_blocks,
    nemotron_mixers,
    on_request,
    softmax_layers,
)

__all__ = ["ARCHITECTURES", "FAMILIES", "NESTED"]

TIED = Key("tie_word_embeddings", default=True)
UNTIED = Key("tie_word_embeddings")
BIAS = Key("attention_bias")
EIGHT = {"kv_heads": 8}
TWO = {"kv_heads": 2, "head_dim": 128}


def _biased(attention: Key | bool, mlp: Key | bool | None = None) -> dict[str, Any]:
    """Biases of the projections in and out of the attention, and of the feed-forward block where one is given."""
    return {"qkv_bias": attention, "o_bias": attention} | ({} if mlp is None else {"mlp_bias": mlp})


def _when(key: str, kind: str) -> Callable[[Reading], str]:
    """A query-key norm of this kind if the config sets `key`."""
    return lambda r: kind if r.keys.flag(key, False) else ""


def _minimax_norm(r: Reading) -> str:
    """MiniMax-M2 names the kind: one norm over all heads, or one a head."""
    kind = r.keys.word("qk_norm_type", "per_layer", ("per_layer", "per_head"))
    return {"per_layer": "full", "per_head": "head"}[kind] if r.keys.flag("use_qk_norm", False) else ""


def _table(extra: int = 0) -> Callable[[Reading], int]:
    """A learned position table with a row for every token of the context, plus `extra`."""
    return lambda r: r.keys.size("context") + extra


def _bigcode_kv_heads(r: Reading, heads: int) -> int:
    r.keys.maybe("kv_heads")  # saved as a default by some versions; `multi_query` decides
    return 1 if r.keys.flag("multi_query", True) else heads


def _falcon_kv_heads(r: Reading, heads: int) -> int:
    """`new_decoder_architecture` overrides `multi_query`, which overrides a `num_kv_heads` saved as a default."""
    stated = r.keys.maybe("kv_heads")
    multi_query = r.keys.flag("multi_query", True)
    if r.keys.flag("new_decoder_architecture", False):
        return stated or heads
    return 1 if multi_query else stated or heads


def _falcon_norms(r: Reading) -> int:
    """One norm before a parallel block, or one for attention and one for the MLP in the 40B and 180B."""
    if not r.keys.flag("parallel_attn", True):
        return 2
    new = r.keys.flag("new_decoder_architecture", False)
    return r.keys.size("num_ln_in_parallel_attn", 2) if new else 1


def _chatglm_kv_heads(r: Reading, heads: int) -> int:
    return r.keys.size("multi_query_group_num") if r.keys.flag("multi_query_attention", False) else heads


def _opt_norm(r: Reading) -> Norm:
    """OPT's norm; the 350M variant (norm after the block, narrow embedding) is another architecture."""
    keys = r.keys
    post = not keys.flag("do_layer_norm_before", True) or keys.flag("_remove_final_layer_norm", False)
    if post or keys.size("word_embed_proj_dim", r.hidden) != r.hidden:
        raise ArchitectureError(f"{keys.origin}: OPT with post-norms or word_embed_proj_dim != hidden_size is refused")
    return "layernorm" if keys.flag("layer_norm_elementwise_affine", True) else "none"


def _mpt_kv_heads(r: Reading, heads: int) -> int:
    """MPT keeps its attention keys in `attn_config`."""
    inner = r.keys.child("attn_config")
    kinds = ("multihead_attention", "multiquery_attention", "grouped_query_attention")
    kind = inner.word("attn_type", kinds[0], kinds)
    if kind == "grouped_query_attention":
        return inner.size("kv_n_heads")
    return heads if kind == kinds[0] else 1


def _mpt_positions(r: Reading) -> int:
    """No position table with ALiBi, whatever `learned_pos_emb` says."""
    inner = r.keys.child("attn_config")
    learned = r.keys.flag("learned_pos_emb", True)
    return r.keys.size("context") if learned and not inner.flag("alibi", False) else 0


def _mpt_norm(r: Reading) -> Norm:
    kind = r.keys.word("norm_type", "low_precision_layernorm", ("low_precision_layernorm", "layernorm"))
    return "layernorm_nobias" if kind and r.keys.flag("no_bias", True) else "layernorm"


def _dbrx_kv_heads(r: Reading, heads: int) -> int:
    inner, stated = r.keys.child("attn_config"), r.keys.maybe("num_key_value_heads")
    nested = inner.maybe("kv_heads")
    if None not in (stated, nested) and stated != nested:
        raise SpecError(f"{inner.at('kv_n_heads')} = {nested} contradicts num_key_value_heads = {stated}")
    return nested or stated or heads


def _optional_table(r: Reading) -> int:
    kind = r.keys.word("position_embedding_type", "rope", ("rope", "learned", "alibi", "none"))
    return r.keys.size("context") if kind == "learned" else 0


def _generic_norm(r: Reading) -> Norm:
    known: tuple[Norm, ...] = ("rmsnorm", "layernorm", "layernorm_nobias", "none")
    stated = r.keys.word("norm_type", "rmsnorm", known)
    return next(norm for norm in known if norm == stated)


def _nemotron_depth(keys: Keys) -> int:
    """The number of blocks, which `num_hidden_layers` must match where it is stated."""
    blocks, depth = nemotron_blocks(keys), keys.maybe("depth")
    if depth not in (None, len(blocks)):
        raise SpecError(f"{keys.at('num_hidden_layers')} = {depth} but the pattern has {len(blocks)} blocks")
    return keys.whole("hybrid_override_pattern", len(blocks), 1, 10_000)


PLAIN = Family(
    softmax_layers,
    dense_layers(4),
    norm="layernorm",
    gated=False,
    tied=Key("tie_word_embeddings", default=True),
    **_biased(True, True),
)
GPT2 = replace(PLAIN, positions=_table(), rotary=False)
PHI = replace(PLAIN, norms=1, parallel=True, tied=UNTIED, lm_head_bias=True)

_CLASSIC: dict[str, Family] = {
    "gpt2": GPT2,
    "gpt_bigcode": replace(GPT2, kv_heads=_bigcode_kv_heads),
    "opt": replace(
        GPT2,
        ffns=dense_layers(),
        positions=_table(2),  # the table's first two rows belong to padding
        norm=_opt_norm,
        **_biased(Key("enable_bias", True), Key("enable_bias", True)),
    ),
    "bloom": replace(PLAIN, rotary=False, embedding_norm=True),
    "mpt": replace(
        GPT2,
        ffns=mpt_ffns,
        norm=_mpt_norm,
        kv_heads=_mpt_kv_heads,
        positions=_mpt_positions,
        **_biased(Key("no_bias", inverted=True), Key("no_bias", inverted=True)),
        ignored=("embedding_fraction", "attn_config.alibi_bias_max", "attn_config.attn_impl"),
    ),
    "falcon": replace(
        PLAIN,
        kv_heads=_falcon_kv_heads,
        norms=_falcon_norms,
        rotary=lambda r: not r.keys.flag("alibi", False),
        parallel=Key("parallel_attn", True),
        **_biased(Key("bias"), Key("bias")),
    ),
    "starcoder2": replace(
        PLAIN,
        ffns=dense_layers(),
        spans=everywhere(),
        defaults={"kv_heads": 2},
        **_biased(Key("use_bias", True), Key("use_bias", True)),
        needs={"mlp_type": "default", "norm_type": "layer_norm"},
    ),
    "gptj": replace(PHI, **_biased(False)),
    "gpt_neox": replace(
        PLAIN,
        ffns=dense_layers(),
        parallel=Key("use_parallel_residual", True),
        tied=UNTIED,
        **_biased(Key("attention_bias", True)),
    ),
    "phi": replace(PHI, defaults={"width": 8192}),
    "phi-msft": PHI,
    "stablelm": Family(
        softmax_layers,
        dense_layers(),
        norm="layernorm",
        norms=lambda r: 1 if r.keys.flag("use_parallel_residual", False) else 2,
        parallel=Key("use_parallel_residual"),
        qkv_bias=Key("use_qkv_bias"),
    ),
    "nemotron": replace(PLAIN, ffns=dense_layers(), tied=UNTIED, **_biased(BIAS, Key("mlp_bias"))),
    "chatglm": Family(
        softmax_layers,
        dense_layers(),
        kv_heads=_chatglm_kv_heads,
        qkv_bias=Key("add_qkv_bias"),
        o_bias=Key("add_bias_linear"),
        mlp_bias=Key("add_bias_linear"),
        names={"vocab": ("padded_vocab_size",), "context": ("seq_length",)},
        needs={"rmsnorm": True, "post_layer_norm": True},
    ),
    "dbrx": Family(softmax_layers, dbrx_ffns, norm="layernorm_nobias", kv_heads=_dbrx_kv_heads),
    "generic_decoder": Family(
        softmax_layers,
        generic_ffns,
        norm=_generic_norm,
        norms=lambda r: r.keys.size("norms_per_layer", 2),
        parallel=Key("parallel_block"),
        **_biased(BIAS, Key("mlp_bias")),
        positions=_optional_table,
        rotary=lambda r: r.keys.word("position_embedding_type", "rope") == "rope",
    ),
}

LLAMA = Family(softmax_layers, dense_layers(), **_biased(BIAS, Key("mlp_bias")))
MOE = replace(LLAMA, ffns=moe_everywhere(), mlp_bias=False)
GLM = Family(softmax_layers, dense_layers(), qkv_bias=Key("attention_bias", True), defaults=TWO)
QWEN2 = Family(softmax_layers, dense_layers(), spans=on_request, qkv_bias=True, defaults={"kv_heads": 32})
QWEN3 = replace(QWEN2, **_biased(BIAS), qk_norm="head", defaults={"kv_heads": 32, "head_dim": 128})
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
GEMMA = Family(softmax_layers, dense_layers(), tied=TIED, **_biased(BIAS), defaults={"kv_heads": 16, "head_dim": 256})
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

FAMILIES: dict[str, Family] = _CLASSIC | {
    "llama": LLAMA,
    "granite": LLAMA,
    "minicpm": replace(LLAMA, tied=TIED, ignored=("dim_model_base", "scale_emb", "scale_depth")),
    "ernie4_5": replace(LLAMA, tied=TIED, **_biased(Key("use_bias"), Key("use_bias")), defaults=TWO),
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
        # two each around attention and block; experts add three, and the router a scale over the residual width
        norms=lambda r: 8 if r.keys.flag("enable_moe_block", False) else 4,
        tied=TIED,
        **_biased(BIAS),
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
    "internlm2": Family(softmax_layers, dense_layers(), **_biased(Key("bias", True))),
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
        **_biased(Key("attention_bias", True), True),
        sinks=True,
        defaults=EIGHT | {"head_dim": 64},
    ),
    "llama4": Family(
        softmax_layers,
        interleaved,
        spans=chunked,
        **_biased(BIAS),
        defaults=EIGHT,
        names={"expert_width": ("intermediate_size",), "width": ("intermediate_size_mlp",)},
        ignored=("use_qk_norm", "for_llm_compressor"),  # Llama-4's query-key norm has no weights
    ),
    "grok-1": Family(softmax_layers, moe_everywhere(), norms=4, tied=TIED),
    "jamba": Family(
        jamba_mixers, periodic(period="expert_layer_period", offset="expert_layer_offset"), rotary=False, defaults=EIGHT
    ),
    "nemotron-nas": replace(LLAMA, mixers=nas_mixers, ffns=nas_ffns, norms=None),
    "nemotron_h": replace(
        LLAMA,
        mixers=nemotron_mixers,
        ffns=nemotron_ffns,
        depth=_nemotron_depth,
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
