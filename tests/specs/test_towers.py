"""Vision and audio parts: their weights to the last, in memory and in what `show` says."""

# ruff: noqa: E501 - the table has one case a line

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rooflinekit as rk
from rooflinekit.model.types.errors import SpecError
from rooflinekit.report.catalogue import entry
from rooflinekit.specs import load_model
from rooflinekit.specs.config.towers import tower_weights
from rooflinekit.specs.config.vision import read_vision

PARTS = ("vision_config", "audio_config")


@pytest.mark.parametrize(("kind", "text", "config", "weights"), [
    ("aria", 4096, {"vision_config": {"model_type": "idefics3_vision"}}, 184816000),
    ("cohere2_vision", 8192, {"vision_config": {"model_type": "siglip_vision_model", "hidden_size": 1152, "num_hidden_layers": 27, "image_size": 512}}, 670168832),
    ("exaone4_5", 4096, {"vision_config": {"model_type": "exaone4_5_vision", "num_key_value_heads": 8}}, 2671868672),
    ("gemma3n", 2048, {"vision_config": {"model_type": "gemma3n_vision"}, "audio_config": {"model_type": "gemma3n_audio"}}, 983281504),
    ("deepseek_vl", 4096, {"vision_config": {"model_type": "siglip_vision_model"}}, 112815360),
    ("gemma4", 2304, {"vision_config": {"model_type": "gemma4_vision"}, "audio_config": {"model_type": "gemma4_audio"}}, 477497632),
    ("gemma4", 2816, {"vision_config": {"model_type": "gemma4_vision", "hidden_size": 1152, "intermediate_size": 4304, "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 72, "num_hidden_layers": 27}}, 572792112),
    ("llava_next_video", 4096, {"vision_config": {"model_type": "clip_vision_model", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "patch_size": 14, "image_size": 336}}, 324491264),
    ("video_llava", 4096, {"vision_config": {"model_type": "clip_vision_model", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "patch_size": 14, "image_size": 224}}, 627339264),
    ("ernie4_5_vl_moe", 2560, {"vision_config": {"model_type": "ernie4_5_vl_moe_vision"}, "moe_intermediate_size": [1536, 512], "num_hidden_layers": 28}, 7573856448),
    ("glmasr", 2048, {"audio_config": {"model_type": "glmasr_encoder"}}, 664415232),
    ("minicpmv4_6", 4096, {"vision_config": {"model_type": "minicpmv4_6_vision"}}, 157399552),
    ("ovis2", 4096, {"vision_config": {"model_type": "ovis2_vision"}}, 351168502),
    ("paddleocr_vl", 1024, {"vision_config": {"model_type": "paddleocr_vl_vision"}}, 438947440),
    ("phi4_multimodal", 3072, {"vision_config": {"model_type": "phi4_multimodal_vision"}, "audio_config": {"model_type": "phi4_multimodal_audio"}}, 907982272),
    ("video_llama_3", 4096, {"vision_config": {"model_type": "video_llama_3_vision"}}, 105577728),
    ("glm5_next", 4096, {"vision_config": {"model_type": "glm5_next_vision", "projection_intermediate_size": 10240}}, 460072448),
    ("glm_ocr", 1024, {"vision_config": {"model_type": "glm_ocr_vision"}}, 434120192),
    ("hyperclovax_vision_v2", 4096, {"vision_config": {"model_type": "qwen2_5_vl_vision"}}, 3097709312),
    ("idefics3", 4096, {"vision_config": {"model_type": "idefics3_vision"}}, 171270144),
    ("lfm2_vl", 2560, {"vision_config": {"model_type": "siglip2_vision_model"}}, 107359488),
    ("minimax_m3_vl", 6144, {"vision_config": {"model_type": "minimax_m3_vl_vision"}}, 865567232),
    ("paligemma", 2048, {"vision_config": {"model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4096, "num_hidden_layers": 27, "patch_size": 14, "vision_use_head": False}}, 401858816),
    ("smolvlm", 4096, {"vision_config": {"model_type": "smolvlm_vision"}}, 171270144),
    ("step3p7", 4096, {"vision_config": {"model_type": "step3p5_vision"}}, 1981014784),
    ("vipllava", 4096, {"vision_config": {"model_type": "clip_vision_model", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "patch_size": 14, "image_size": 336}}, 341274624),
    ("qwen2_audio", 4096, {"audio_config": {"model_type": "qwen2_audio_encoder"}}, 642215936),
    ("qwen3_asr", 2048, {"audio_config": {"model_type": "qwen3_asr_encoder"}}, 319051904),
    ("voxtral", 3072, {"audio_config": {"model_type": "voxtral_encoder"}}, 662134784),
])  # fmt: skip
def test_towers_have_the_weights_of_their_class(kind, text, config, weights):
    """Counted by torch's meta device on the default config of each class in transformers 5.24.0."""
    keys = [key for key in PARTS if key in config]
    assert tower_weights({"model_type": kind} | config, text, keys, "config.json") == (weights, keys)


TOWERS = json.loads(Path(__file__).with_name("towers.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("kind", "text", "config", "weights"), TOWERS)
def test_towers_have_the_weights_of_their_class_with_changed_sizes(kind, text, config, weights):
    """Counted by torch's meta device (2.13.0) beside the language model, in transformers 5.24.0.

    Each class is built by default and with the sizes that are stated here.
    """
    whole = {"model_type": kind} | config
    vision = read_vision(whole, text, "config.json")
    keys = [key for key in config if key.endswith(PARTS) and not (vision and key == "vision_config")]
    counted, _ = tower_weights(whole, text, keys, "config.json")
    assert (vision.parameters if vision else 0) + counted == weights


def test_sizes_of_a_tower_are_its_own():
    """A size that a tower leaves out is that of its class, whatever the language model has under the same name."""
    tower = {"vision_config": {"model_type": "qwen2_5_vl_vision"}}
    config = {"model_type": "hyperclovax_vision_v2", "text_config": {"num_key_value_heads": 2}, **tower}
    assert tower_weights(config, 4096, ["vision_config"], "config.json") == (3097709312, ["vision_config"])


TEXT = {
    "model_type": "lfm2", "hidden_size": 2048, "num_hidden_layers": 2, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 8192, "vocab_size": 65536, "max_position_embeddings": 1024, "full_attn_idxs": [1],
    "block_auto_adjust_ff_dim": False, "conv_L_cache": 3, "tie_word_embeddings": True,
}  # fmt: skip
SIGLIP = {"model_type": "siglip2_vision_model", "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27,
          "num_patches": 256, "patch_size": 16, "vision_use_head": False}  # fmt: skip
LFM = {"model_type": "lfm2_vl", "dtype": "bfloat16", "downsample_factor": 2, "projector_hidden_size": 2048,
       "projector_bias": True, "projector_use_layernorm": False, "vision_config": SIGLIP}  # fmt: skip


def written(folder, config):
    path = folder / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


def test_a_tower_takes_memory_and_is_shown(tmp_path):
    """LFM2.5-VL-1.6B's tower; torch's meta device counts 426,285,296 beside the text decoder."""
    path = written(tmp_path, LFM | {"text_config": TEXT})
    loaded = load_model(path)
    assert (loaded.value.tower, loaded.warnings) == (426285296, ())
    assert entry(loaded)["params_tower"] == 426285296
    text = tmp_path / "text"
    text.mkdir()
    alone = rk.estimate(written(text, TEXT | {"dtype": "bfloat16"}), "h100-sxm").memory
    whole = rk.estimate(path, "h100-sxm").memory
    assert whole.weight_bytes - alone.weight_bytes == pytest.approx(2 * 426285296, rel=2e-3)  # in pages of 2 MiB
    assert whole.total_bytes - alone.total_bytes > 2 * 426285296  # and a budget of image embeddings


def test_a_part_of_no_known_kind_is_told(tmp_path):
    unknown = LFM | {"text_config": TEXT, "audio_config": {"model_type": "brandnew", "hidden_size": 9}}
    loaded = load_model(written(tmp_path, unknown))
    assert loaded.warnings == ("multimodal: audio_config is not counted",)
    assert loaded.value.tower == 426285296


def test_a_size_that_cannot_be_is_refused(tmp_path):
    for size in (-1, "wide", 10**9):
        with pytest.raises(SpecError, match=r"vision_config\.hidden_size = .* is no size of a tower"):
            load_model(written(tmp_path, LFM | {"text_config": TEXT, "vision_config": SIGLIP | {"hidden_size": size}}))


def test_a_patch_of_no_size_is_refused():
    tower = {"model_type": "siglip_vision_model", "patch_size": 0}
    with pytest.raises(SpecError, match=r"config\.json: vision_config: a size that divides others is 0"):
        tower_weights({"model_type": "paligemma", "vision_config": tower}, 2048, ["vision_config"], "config.json")


@pytest.mark.parametrize("key", ["img_processor", "audio_processor", "mm_vision_tower", "visual"])
def test_a_tower_under_another_key_is_said(tmp_path, key):
    (said,) = (
        line for line in load_model(written(tmp_path, TEXT | {key: {"name": "clip"}})).warnings if "multimodal" in line
    )
    assert said == f"multimodal: only the text decoder is counted, not {key}"


def test_a_width_beside_a_tower_is_the_language_models():
    """Phi-4-multimodal states its text at the top: towers without sizes are those of their class, as by default."""
    towers = {f"{kind}_config": {"model_type": f"phi4_multimodal_{kind}"} for kind in ("vision", "audio")}
    text = {"hidden_size": 3072, "num_hidden_layers": 32, "intermediate_size": 8192, "num_attention_heads": 24}
    alone = tower_weights({"model_type": "phi4_multimodal"} | towers, 3072, [*towers], "config.json")
    assert tower_weights({"model_type": "phi4_multimodal"} | text | towers, 3072, [*towers], "config.json") == alone
    assert alone[0] == load_model("phi-4-multimodal").value.tower == 907_982_272
    assert load_model("voxtral-mini-3b").value.tower == 662_134_784
