"""Configs that are refused: other kinds of networks, other formats, and keys whose meaning is not known."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from rooflinekit.model.types.errors import ArchitectureError, nearest
from rooflinekit.specs.config.keys import NAMES, is_off, named, shown

__all__ = ["refuse_headless", "refuse_other_networks", "refuse_unknown_keys", "unidentified"]

_KINDS = {
    "an encoder": (
        "albert bert big_bird bge bert-generation camembert canine convbert deberta deberta-v2 distilbert electra "
        "ernie esm eurobert flaubert funnel gte ibert jina_bert jina_embeddings_v3 layoutlm layoutlmv2 layoutlmv3 "
        "longformer luke megatron-bert mobilebert modernbert mpnet new nezha nomic_bert nystromformer rembert roberta "
        "roberta-prelayernorm roformer splinter squeezebert xlm xlm-roberta xlm-roberta-xl xmod yoso"
    ),
    "an encoder-decoder": (
        "bart bigbird_pegasus blenderbot blenderbot-small byt5 encoder-decoder fsmt led longt5 m2m_100 marian mbart "
        "mt5 mvp nllb-moe pegasus pegasus_x plbart prophetnet switch_transformers t5 t5gemma trocr udop umt5 "
        "vision-encoder-decoder"
    ),
    "a speech model": (
        "audio-spectrogram-transformer bark clap data2vec-audio encodec hubert moonshine musicgen parakeet_ctc "
        "seamless_m4t seamless_m4t_v2 sew speech_to_text speecht5 unispeech univnet vits wav2vec2 wav2vec2-bert wavlm "
        "whisper"
    ),
    "a vision model": (
        "align altclip beit blip blip-2 chinese_clip clip clip_vision_model clipseg convnext convnextv2 "
        "deformable_detr deit depth_anything detr dinov2 dinov3_vit dpt efficientnet flava focalnet groupvit "
        "layoutxlm mask2former mobilenet_v2 mobilevit owlv2 owlvit poolformer pvt regnet resnet rt_detr sam sam2 "
        "segformer siglip siglip2 siglip_vision_model swin swinv2 table-transformer timm_wrapper videomae vit vit_mae "
        "vitdet vivit x_clip yolos"
    ),
}
_KIND_OF = {name: kind for kind, listed in _KINDS.items() for name in listed.split()}
# Patterns stay texts, which `re` compiles when it first needs them: most models need none.
#: Classes with a decoder's body and another head than a language model's.
_OTHER_HEAD = (
    r"For(?:SequenceClassification|TokenClassification|QuestionAnswering|MultipleChoice|MaskedLM|Score|Embedding)$|"
    r"RewardModel|EmbeddingModel$"
)
#: Classes without any head; some that generate are called `...Model` as well.
_TRUNK = r"(?<!LMHead)(?<!Chat)(?<!ChatGLM)Model$"

#: A key that looks like it changes the shape of the network.
_STRUCTURAL = (
    r"layer|head|expert|moe|window|rank|intermediate|hidden|ssm|mamba|conv|index|sparse|block|pattern|embed|dim\b|dim_|"
    r"inner|ffn|mlp|kv|n_group|attn|attention|chunk|share|width|expan|state|norm|bias|altup|laurel|compress|hash|latent|"
    r"mtp|d_model|recurren|memory|lora|depth|multi|parallel|tie|size|vocab|position"
)
#: Keys that look structural but name training, decoding, precision or scaling options, which change no cost.
_HARMLESS = (
    r"dropout|pdrop|layerdrop|eps$|epsilon|_init|^init|_token_id|_token_index|token_ids|_loss|_coef$|_std$|_scale$|"
    r"_(?:alpha|beta)$|rope|rotary|softcap|multiplier|jitter|noise|^output_|^summary_|^_attn|_implementation$|auto_map|"
    r"softmax_in_fp32|quantiz|processor|projector|image|vision|video|audio"
)
#: Keys that match the pattern above by accident, one by one.
_HARMLESS_NAMES = (
    "apply_query_key_layer_scaling apply_residual_connection_post_layernorm attention_sink_size "
    "attn_config.attn_impl attn_config.attn_uses_sequence_id attn_config.clip_qkv attn_impl attn_uses_sequence_id "
    "chunk_size_feed_forward clip_qkv context_window_size encoder_no_repeat_ngram_size ep_size flash_attn "
    "head_dtype hidden_act hidden_activation mamba_hidden_act mamba_ssm_cache_dtype mamba_ssm_dtype "
    "max_attn_value max_batch_size max_window_layers mlp_hidden_act moe_renormalize n_group no_repeat_ngram_size "
    "norm_topk_prob num_expert_group original_max_position_embeddings pre_allocate_kv_cache prefill_chunk_size "
    "query_pre_attn_scalar reorder_and_upcast_attn rescale_prenorm_residual scale_attn_by_inverse_layer_idx "
    "scale_attn_weights use_gemma_norm use_mamba_kernels"
)
_IGNORED = frozenset(_HARMLESS_NAMES.split())
_USUAL = frozenset(name for names in NAMES.values() for name in names)


def refuse_other_networks(config: Mapping[str, Any], origin: str) -> None:
    """Refuse encoders, encoder-decoders, speech, vision and diffusion models by name.

    Raises ArchitectureError.
    """
    model_type = config.get("model_type")
    kind = _KIND_OF.get(model_type) if isinstance(model_type, str) else None
    name = model_type
    if kind is None and config.get("_class_name") is not None:
        kind, name = "a diffusion model", shown(config["_class_name"])
    if kind is None and config.get("is_encoder_decoder") is True:
        kind, name = "an encoder-decoder", shown(model_type)
    if kind is not None:
        raise ArchitectureError(
            f"{origin}: {name} is {kind} (no KV cache, no decode); rooflinekit costs decoder-only models"
        )


def refuse_headless(config: Mapping[str, Any], origin: str, *, whole: bool = True) -> None:
    """Refuse a classifier, reward or embedding model: it has a decoder's body but generates nothing.

    The text part of a multimodal model (`whole` False) may be a bare trunk: the head is outside it.

    Raises ArchitectureError.
    """
    listed = config.get("architectures")
    classes = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    for name in classes:
        if re.search(_OTHER_HEAD, name):
            raise ArchitectureError(
                f"{origin}: {named(name)} classifies or scores and generates no text; "
                "rooflinekit costs decoder-only models"
            )
    if whole and classes and all(re.search(_TRUNK, name) for name in classes):
        raise ArchitectureError(
            f"{origin}: {named(classes[0])} has no LM head: it embeds text and generates none; "
            "rooflinekit costs decoder-only models"
        )


def unidentified(config: Mapping[str, Any], origin: str, known: Iterable[str]) -> ArchitectureError:
    """The error for a config whose class is absent or unknown."""
    seen = ", ".join(map(named, list(config)[:8])) + (", ..." if len(config) > 8 else "")
    if "producer" in config and "quantization" in config:
        return ArchitectureError(
            f"{origin}: this is hf_quant_config.json, the companion of a config.json; give that one"
        )
    model_type, architectures = config.get("model_type"), config.get("architectures")
    if model_type is None and not architectures:
        native = {"dim", "n_layers", "n_heads"} <= set(config)
        why = "looks like a native inference config" if native else "has neither model_type nor architectures"
        return ArchitectureError(f"{origin}: not a Hugging Face config: it {why}; keys seen: {seen}")
    what = model_type if model_type is not None else architectures
    near = nearest(what, known) if isinstance(what, str) and len(what) <= 60 else []
    hint = f"; nearest known model_type: {', '.join(near)}" if near else ""
    structural = [key for key, value in config.items() if key not in _USUAL and _structural(key, value)]
    keys = f"; structural keys not understood: {', '.join(map(named, structural[:12]))}" if structural else ""
    return ArchitectureError(f"{origin}: architecture {shown(what)} is not understood{hint}{keys}")


def refuse_unknown_keys(unread: Mapping[str, Any], ignored: Iterable[str], origin: str, model_type: str) -> None:
    """Refuse keys that look structural, say something, and were read by nobody.

    Raises ArchitectureError naming them.
    """
    excused = set(ignored)
    strange = [key for key, value in unread.items() if key not in excused and _structural(key, value)]
    if strange:
        told = ", ".join(f"{named(key)} = {shown(unread[key])}{_meant(key)}" for key in strange[:6])
        raise ArchitectureError(f"{origin}: {model_type} has structural keys that are not understood: {told}")


def _meant(key: str) -> str:
    near = get_close_matches(key[:60], _USUAL, n=1, cutoff=0.85)
    return f" (nearest: {near[0]})" if near and near[0] != key else ""


def _structural(key: str, value: object) -> bool:
    if is_off(value) or key in _IGNORED:
        return False
    lowered = key.lower()
    return bool(re.search(_STRUCTURAL, lowered)) and not re.search(_HARMLESS, lowered)
