"""Model classes with LayerNorm, plain (two-matrix) blocks or unusual key names: GPT-2 to Nemotron-4, MPT, Falcon."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rooflinekit.model.types.errors import ArchitectureError, SpecError
from rooflinekit.model.types.model import DenseFFN, FeedForward, Norm
from rooflinekit.specs.config.attention import everywhere, softmax_layers
from rooflinekit.specs.config.family import Family, Key, Reading
from rooflinekit.specs.config.feedforward import dense_layers, experts

__all__ = ["CLASSIC"]

UNTIED = Key("tie_word_embeddings")
BIAS = Key("attention_bias")


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


def _falcon_rotary(r: Reading) -> bool:
    return not r.keys.flag("alibi", False)


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


def _mpt_ffns(r: Reading) -> tuple[FeedForward, ...]:
    width = r.keys.size("expansion_ratio", 4) * r.hidden
    return (DenseFFN(width, r.family.gated, r.is_set(r.family.mlp_bias)),) * r.depth


def _dbrx_kv_heads(r: Reading, heads: int) -> int:
    inner, stated = r.keys.child("attn_config"), r.keys.maybe("num_key_value_heads")
    nested = inner.maybe("kv_heads")
    if None not in (stated, nested) and stated != nested:
        raise SpecError(f"{inner.at('kv_n_heads')} = {nested} contradicts num_key_value_heads = {stated}")
    return nested or stated or heads


def _dbrx_ffns(r: Reading) -> tuple[FeedForward, ...]:
    """DBRX keeps its experts in `ffn_config`."""
    inner = replace(r, keys=r.keys.child("ffn_config"))
    inner.keys.child("ffn_act_fn")
    return (experts(inner, inner.keys.size("width")),) * r.depth


def _optional_table(r: Reading) -> int:
    kind = r.keys.word("position_embedding_type", "rope", ("rope", "learned", "alibi", "none"))
    return r.keys.size("context") if kind == "learned" else 0


def _generic_rotary(r: Reading) -> bool:
    return r.keys.word("position_embedding_type", "rope") == "rope"


def _generic_norm(r: Reading) -> Norm:
    known: tuple[Norm, ...] = ("rmsnorm", "layernorm", "layernorm_nobias", "none")
    stated = r.keys.word("norm_type", "rmsnorm", known)
    return next(norm for norm in known if norm == stated)


def _generic_ffns(r: Reading) -> tuple[FeedForward, ...]:
    return (DenseFFN(r.keys.size("width"), r.keys.flag("mlp_gated", True), r.is_set(r.family.mlp_bias)),) * r.depth


def _stablelm_norms(r: Reading) -> int:
    return 1 if r.keys.flag("use_parallel_residual", False) else 2


PLAIN = Family(
    softmax_layers,
    dense_layers(4),
    norm="layernorm",
    gated=False,
    tied=Key("tie_word_embeddings", default=True),
    qkv_bias=True,
    o_bias=True,
    mlp_bias=True,
)
GPT2 = replace(PLAIN, positions=_table(), rotary=False)
PHI = replace(PLAIN, norms=1, parallel=True, tied=UNTIED, lm_head_bias=True)

CLASSIC: dict[str, Family] = {
    "gpt2": GPT2,
    "gpt_bigcode": replace(GPT2, kv_heads=_bigcode_kv_heads),
    "opt": replace(
        GPT2,
        ffns=dense_layers(),
        positions=_table(2),  # the table's first two rows belong to padding
        norm=_opt_norm,
        qkv_bias=Key("enable_bias", True),
        o_bias=Key("enable_bias", True),
        mlp_bias=Key("enable_bias", True),
    ),
    "bloom": replace(PLAIN, rotary=False, embedding_norm=True),
    "mpt": replace(
        GPT2,
        ffns=_mpt_ffns,
        norm=_mpt_norm,
        kv_heads=_mpt_kv_heads,
        positions=_mpt_positions,
        qkv_bias=Key("no_bias", inverted=True),
        o_bias=Key("no_bias", inverted=True),
        mlp_bias=Key("no_bias", inverted=True),
        ignored=("embedding_fraction", "attn_config.alibi_bias_max", "attn_config.attn_impl"),
    ),
    "falcon": replace(
        PLAIN,
        kv_heads=_falcon_kv_heads,
        norms=_falcon_norms,
        rotary=_falcon_rotary,
        parallel=Key("parallel_attn", True),
        qkv_bias=Key("bias"),
        o_bias=Key("bias"),
        mlp_bias=Key("bias"),
    ),
    "starcoder2": replace(
        PLAIN,
        ffns=dense_layers(),
        spans=everywhere(),
        defaults={"kv_heads": 2},
        qkv_bias=Key("use_bias", True),
        o_bias=Key("use_bias", True),
        mlp_bias=Key("use_bias", True),
        needs={"mlp_type": "default", "norm_type": "layer_norm"},
    ),
    "gptj": replace(PHI, qkv_bias=False, o_bias=False),
    "gpt_neox": replace(
        PLAIN,
        ffns=dense_layers(),
        parallel=Key("use_parallel_residual", True),
        tied=UNTIED,
        qkv_bias=Key("attention_bias", True),
        o_bias=Key("attention_bias", True),
    ),
    "phi": replace(PHI, defaults={"width": 8192}),
    "phi-msft": PHI,
    "stablelm": Family(
        softmax_layers,
        dense_layers(),
        norm="layernorm",
        norms=_stablelm_norms,
        parallel=Key("use_parallel_residual"),
        qkv_bias=Key("use_qkv_bias"),
    ),
    "nemotron": replace(PLAIN, ffns=dense_layers(), tied=UNTIED, qkv_bias=BIAS, o_bias=BIAS, mlp_bias=Key("mlp_bias")),
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
    "dbrx": Family(softmax_layers, _dbrx_ffns, norm="layernorm_nobias", kv_heads=_dbrx_kv_heads),
    "generic_decoder": Family(
        softmax_layers,
        _generic_ffns,
        norm=_generic_norm,
        norms=lambda r: r.keys.size("norms_per_layer", 2),
        parallel=Key("parallel_block"),
        qkv_bias=BIAS,
        o_bias=BIAS,
        mlp_bias=Key("mlp_bias"),
        positions=_optional_table,
        rotary=_generic_rotary,
    ),
}
