"""config.json -> Model: every trap that real files hold, and every file that was collected."""

# ruff: noqa: E501 - the tables have one case a line

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from oracle import kv_elements_per_token, parameters

from rooflinekit.model.parameter_count import count_parameters
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.errors import ArchitectureError, DtypeError, InputError, SpecError
from rooflinekit.model.types.model import Attention, DenseFFN, GatedDeltaNet, LatentAttention, Mamba2, MixtureOfExperts
from rooflinekit.specs import spec_dir
from rooflinekit.specs.config import class_names, model_from_config, refusals
from rooflinekit.specs.files import read_yaml

REFUSALS = Path(refusals.__file__).with_suffix(".yaml")
COLLECTED = Path(__file__).parents[2].parent / "shared" / "data" / "specs" / "hf_configs"

LLAMA = {
    "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2,
    "intermediate_size": 512, "vocab_size": 1000, "max_position_embeddings": 4096, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}  # fmt: skip
MOE = LLAMA | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
DEEPSEEK = LLAMA | {
    "model_type": "deepseek_v3", "num_key_value_heads": 8, "kv_lora_rank": 64, "q_lora_rank": 96, "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16, "v_head_dim": 32, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
    "n_shared_experts": 1, "first_k_dense_replace": 1,
}  # fmt: skip
FALCON = {
    "model_type": "falcon", "hidden_size": 4544, "num_hidden_layers": 2, "num_attention_heads": 71, "vocab_size": 100,
    "multi_query": True, "new_decoder_architecture": False, "parallel_attn": True, "bias": False,
}  # fmt: skip
LLAMA4 = LLAMA | {
    "model_type": "llama4_text", "intermediate_size": 128, "intermediate_size_mlp": 512, "num_local_experts": 4,
    "num_experts_per_tok": 1, "interleave_moe_layer_step": 2, "attention_chunk_size": 64,
}  # fmt: skip
NEMOTRON = {key: value for key, value in LLAMA.items() if key != "num_hidden_layers"} | {
    "model_type": "nemotron_h", "attention_head_dim": 64, "layers_block_type": ["mamba", "mlp", "attention", "moe"],
    "mamba_num_heads": 8, "mamba_head_dim": 32, "n_groups": 2, "ssm_state_size": 16, "conv_kernel": 4,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1,
    "moe_shared_expert_intermediate_size": 64,
}  # fmt: skip


def load(config, **changes):
    return model_from_config({**config, **changes}, name="m", origin="config.json")


def model(config, **changes):
    return load(config, **changes).value


def without(config, *keys):
    return {key: value for key, value in config.items() if key not in keys}


def first(config, **changes):
    return model(config, **changes).layers[0]


def refused(config, error=InputError, **changes):
    with pytest.raises(error) as caught:
        load(config, **changes)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("config.json")
    return str(caught.value)


def test_falcon_saved_again_with_a_default_of_71_heads_has_one():
    assert first(FALCON, num_kv_heads=71).mixer.kv_heads == 1
    assert first(FALCON).mixer.kv_heads == 1
    assert model(FALCON).tied, "tied by class default"


def test_falcon_new_architecture_overrides_multi_query():
    layer = first(FALCON, hidden_size=4096, num_attention_heads=64, num_kv_heads=8, new_decoder_architecture=True)
    assert (layer.mixer.kv_heads, layer.norms, layer.parallel) == (8, 2, True)
    assert first(FALCON).norms == 1


def test_bloom_embed_has_a_second_e():
    bloom = {"model_type": "bloom", "n_embed": 64, "n_layer": 2, "num_attention_heads": 4, "vocab_size": 100}
    read = model(bloom)
    assert (read.hidden, read.depth, read.layers[0].ffn.width, read.embedding_norm) == (64, 2, 256, True)
    assert read.layers[0].mixer.rotary is False
    assert read.max_context is None


def test_gpt2_inner_is_null_and_context_is_the_position_table():
    gpt2 = {
        "model_type": "gpt2",
        "n_embd": 64,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 128,
        "n_inner": None,
        "vocab_size": 100,
    }
    read = model(gpt2)
    assert read.layers[0].ffn == DenseFFN(256, gated=False, bias=True)
    assert (read.position_rows, read.tied, read.max_context) == (128, True, 128)


@pytest.mark.parametrize("kind", ["gemma", "cohere", "gpt_bigcode", "bloom", "falcon", "opt"])
def test_classes_that_tie_without_the_key(kind):
    assert model(without(LLAMA, "tie_word_embeddings"), model_type=kind, num_key_value_heads=8).tied


def test_classes_that_do_not_tie_without_the_key():
    assert not model(without(LLAMA, "tie_word_embeddings")).tied


def test_gemma_gelu_is_gated_and_nemotron_relu2_is_not():
    assert first(LLAMA, model_type="gemma", hidden_act="gelu").ffn.gated
    assert not first(LLAMA, model_type="nemotron", hidden_act="relu2").ffn.gated


def test_head_dim_need_not_be_hidden_over_heads():
    assert first(LLAMA, model_type="qwen3", head_dim=128).mixer.head_dim == 128
    assert first(LLAMA, head_dim=None).mixer.head_dim == 32


def test_llama4_widths_are_named_the_other_way_round():
    dense, routed = model(LLAMA4).layers[:2]
    assert dense.ffn == DenseFFN(512)
    assert (routed.ffn.width, routed.ffn.shared_width) == (128, 128)


def test_llama4_chunks_three_layers_of_four():
    assert [layer.mixer.chunk for layer in model(LLAMA4).layers] == [64, 64, 64, None]
    assert [layer.mixer.rotary for layer in model(LLAMA4, no_rope_layers=[]).layers] == [True, True, True, False]


def test_minimax_intermediate_is_the_experts():
    assert first(MOE, model_type="minimax_m2", use_qk_norm=True).ffn.width == 512
    assert first(MOE, model_type="minimax_m2", use_qk_norm=True, head_dim=32).mixer.q_norm == 256


def test_qwen2_window_counts_only_if_used():
    assert first(LLAMA, model_type="qwen2", sliding_window=512, use_sliding_window=False).mixer.window is None
    used = model(LLAMA, model_type="qwen2", sliding_window=512, use_sliding_window=True, max_window_layers=3)
    assert [layer.mixer.window for layer in used.layers] == [None, None, None, 512]


def test_mistral_window_null_is_none_absent_is_the_class_default():
    assert first(LLAMA, model_type="mistral", sliding_window=None).mixer.window is None
    loaded = load(LLAMA, model_type="mistral", max_position_embeddings=32768)
    assert loaded.value.layers[0].mixer.window == 4096
    assert "class default" in loaded.warnings[0]


def test_a_window_beyond_the_context_is_off():
    assert first(LLAMA, model_type="phi3", sliding_window=262144).mixer.window is None


def test_nested_text_config_is_taken_and_the_tower_named():
    loaded = load(
        {
            "model_type": "qwen3_vl",
            "text_config": without(LLAMA, "model_type", "tie_word_embeddings") | {"model_type": "qwen3_vl_text"},
            "vision_config": {"depth": 27},
            "audio_config": {"depth": 3},
            "tie_word_embeddings": True,
        }
    )
    assert loaded.value.tied, "tying is stated outside"
    assert loaded.warnings[0] == "multimodal: audio_config is not counted"
    other = load(LLAMA | {"vision_config": {"depth": 27}})
    assert "not vision_config" in other.warnings[0] and not other.value.tower


@pytest.mark.parametrize("key", ["num_experts_per_tok", "num_experts_per_token", "experts_per_token"])
def test_experts_per_token_has_several_names(key):
    assert first(without(MOE, "num_experts_per_tok"), **{key: 3}).ffn.top_k == 3


def test_two_names_that_disagree_are_refused():
    assert "experts_per_token = 3 contradicts num_experts_per_tok = 2" in refused(MOE, SpecError, experts_per_token=3)


def test_bare_infinity_in_json():
    text = json.dumps(LLAMA)[:-1] + ', "time_step_limit": [0.0, Infinity]}'
    assert model(json.loads(text)).depth == 4


def test_nemotron_h_without_num_hidden_layers_and_its_own_head_dim_key():
    read = model(NEMOTRON)
    assert [type(layer.mixer) for layer in read.layers] == [Mamba2, type(None), Attention, type(None)]
    assert [type(layer.ffn) for layer in read.layers] == [type(None), DenseFFN, type(None), MixtureOfExperts]
    assert {layer.norms for layer in read.layers} == {1}
    assert read.layers[2].mixer.head_dim == 64
    assert "pattern has 4 blocks" in refused(NEMOTRON, SpecError, num_hidden_layers=5)


def test_without_model_type_the_architecture_decides():
    config = without(MOE, "model_type") | {"architectures": ["Grok1ModelForCausalLM"]}
    assert first(config).norms == 4
    assert first(without(LLAMA, "model_type") | {"architectures": ["LlamaForCausalLM"]}) == first(LLAMA)
    assert "NobodyForCausalLM" in refused(without(LLAMA, "model_type"), architectures=["NobodyForCausalLM"])
    assert "--as CLASS" in refused(without(LLAMA, "model_type"))


def test_dbrx_keeps_its_blocks_nested():
    dbrx = {
        "model_type": "dbrx",
        "d_model": 256,
        "n_layers": 2,
        "n_heads": 8,
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8},
        "ffn_config": {"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2, "moe_loss_weight": 0.05},
        "vocab_size": 100,
        "max_seq_len": 64,
    }
    layer = first(dbrx)
    assert (layer.mixer.kv_heads, layer.ffn.experts, layer.ffn.top_k, layer.ffn.width) == (2, 4, 2, 64)
    assert "attn_config.secret_heads" in refused(
        dbrx, ArchitectureError, attn_config={"kv_n_heads": 2, "secret_heads": 3}
    )


def test_mpt_learned_positions_count_for_nothing_with_alibi():
    mpt = {
        "model_type": "mpt",
        "d_model": 64,
        "n_layers": 2,
        "n_heads": 4,
        "expansion_ratio": 4,
        "vocab_size": 100,
        "max_seq_len": 32,
        "no_bias": True,
        "learned_pos_emb": True,
    }
    assert model(mpt, attn_config={"alibi": True}).position_rows == 0
    assert model(mpt, attn_config={"alibi": False}).position_rows == 32
    assert first(mpt, attn_config={"alibi": True}).norm == "layernorm_nobias"


def test_a_native_deepseek_config_is_no_hugging_face_config():
    native = {"vocab_size": 102400, "dim": 5120, "inter_dim": 12288, "n_layers": 60, "n_heads": 128}
    assert "not a Hugging Face config" in refused(native, ArchitectureError)
    assert "inter_dim" in refused(native)


def test_deepseek_v4_has_no_latent_and_needs_the_sizes_of_its_compressed_attention():
    message = refused(LLAMA, SpecError, model_type="deepseek_v4", head_dim=64, compress_ratios=[0, 4])
    assert "q_lora_rank is missing" in message


def test_deepseek_latent_ignores_its_key_value_heads():
    read = model(DEEPSEEK)
    assert isinstance(read.layers[0].mixer, LatentAttention)
    assert kv_elements_per_token(read) == 4 * (64 + 16)
    assert [type(layer.ffn) for layer in read.layers] == [DenseFFN] + [MixtureOfExperts] * 3
    assert model(DEEPSEEK, q_lora_rank=None).layers[0].mixer.q_rank is None
    assert model(DEEPSEEK, num_nextn_predict_layers=1).mtp_layers == 1


def test_deepseek_vl2_keeps_its_decoder_under_language_config_and_may_have_no_latent():
    inner = without(DEEPSEEK, "model_type", "torch_dtype") | {
        "model_type": "deepseek_v2",
        "lm_head": True,
        "rm_head": False,
    }
    outer = {"model_type": "deepseek_vl_v2", "vision_config": {"model_type": "vision"}, "torch_dtype": "bfloat16"}
    assert isinstance(model(outer | {"language_config": inner}).layers[0].mixer, LatentAttention)
    tiny = inner | {
        "use_mla": False, "q_lora_rank": None, "kv_lora_rank": None, "qk_nope_head_dim": 0, "qk_rope_head_dim": 0,
        "v_head_dim": 0,
    }  # fmt: skip
    mixer = model(outer | {"language_config": tiny}).layers[0].mixer
    assert isinstance(mixer, Attention)
    assert (mixer.heads, mixer.kv_heads, mixer.head_dim, mixer.v_head_dim) == (8, 8, 32, 32)


def test_a_size_that_is_listed_layer_by_layer_is_read_where_all_layers_have_the_same():
    """As Hunyuan-A13B writes its experts."""
    hunyuan = LLAMA | {
        "model_type": "hunyuan_v1_moe", "num_experts": 8, "moe_topk": [2] * 4, "moe_intermediate_size": [64] * 4,
        "num_shared_expert": [1] * 4, "intermediate_size": 64, "use_mixed_mlp_moe": True, "use_cla": False,
    }  # fmt: skip
    assert first(hunyuan).ffn == MixtureOfExperts(experts=8, top_k=2, width=64, shared_width=64)
    assert "moe_topk = [1, 2, 2, 2] is not a whole number" in refused(hunyuan, SpecError, moe_topk=[1, 2, 2, 2])
    assert "moe_topk = [2, 2, 2] is not a whole number" in refused(hunyuan, SpecError, moe_topk=[2] * 3)
    assert "use_cla = True is not understood; known: False" in refused(hunyuan, ArchitectureError, use_cla=True)


def test_exaone_spells_its_windows_in_letters():
    exaone = without(LLAMA, "tie_word_embeddings") | {"model_type": "exaone4", "sliding_window": 64}
    assert [layer.mixer.window for layer in model(exaone, sliding_window_pattern="LG").layers] == [64, None, 64, None]
    assert [layer.mixer.rotary for layer in model(exaone, sliding_window_pattern="LLLG").layers] == [True] * 3 + [False]
    plain = model(exaone, sliding_window=None, sliding_window_pattern=None)
    assert {(layer.mixer.window, layer.mixer.rotary) for layer in plain.layers} == {(None, True)}


def test_shared_indexers_have_no_keys_of_their_own():
    sparse = DEEPSEEK | {"model_type": "glm_moe_dsa", "index_topk": 16, "index_n_heads": 4, "index_head_dim": 32}
    assert kv_elements_per_token(model(sparse)) == 4 * (64 + 16 + 32)
    shared = model(sparse, indexer_types=["full", "full", "shared", "shared"], index_topk_freq=3)
    assert kv_elements_per_token(shared) == 4 * (64 + 16) + 2 * 32
    assert parameters(model(sparse)) > parameters(shared)
    assert "indexer_types" in refused(sparse, SpecError, index_topk_freq=4)


def test_qwen3_next_has_attention_in_every_fourth_layer():
    linear = {
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
    }
    read = model(LLAMA, model_type="qwen3_5_text", full_attention_interval=4, **linear)
    assert [type(layer.mixer) for layer in read.layers] == [GatedDeltaNet] * 3 + [Attention]
    assert read.layers[3].mixer.gated
    assert not model(LLAMA, model_type="qwen3_5_text", attn_output_gate=False, **linear).layers[3].mixer.gated


def test_alternating_windows_and_sinks():
    config = MOE | {"model_type": "gpt_oss", "sliding_window": 128}
    assert [layer.mixer.window for layer in model(config).layers] == [128, None, 128, None]
    assert first(config).mixer.sinks and first(config).ffn.router_bias
    stated = model(config, layer_types=["full_attention"] * 3 + ["sliding_attention"])
    assert [layer.mixer.window for layer in stated.layers] == [None, None, None, 128]
    assert "sliding_window" in refused(without(config, "sliding_window"), SpecError)


@pytest.mark.parametrize(("changes", "said"), [
    ({"num_local_experts": None}, "num_experts (or num_local_experts, n_routed_experts"),
    ({"num_experts_per_tok": None}, "num_experts_per_tok (or"),
    ({"num_experts_per_tok": 9}, "a token visits 9 experts but there are only 8"),
    ({"intermediate_size": None}, "intermediate_size"),
])  # fmt: skip
def test_a_mixture_is_never_taken_as_dense(changes, said):
    assert said in refused(MOE, SpecError, **changes)


def test_a_dense_class_with_experts_is_refused_by_key():
    assert "num_local_experts = 8" in refused(LLAMA, ArchitectureError, num_local_experts=8)


def test_a_structural_feature_that_nobody_knows_is_refused_by_key():
    message = refused(LLAMA, ArchitectureError, cross_layer_sharing=[1, 2], ssm_branches=4)
    assert "cross_layer_sharing" in message and "ssm_branches" in message
    for off in (None, False, 0, [], {}, ""):
        assert model(LLAMA, cross_layer_sharing=off).depth == 4
    assert model(LLAMA, rope_theta=1e6, eos_token_id=[1, 2], initializer_range=0.02, attention_dropout=0.1).depth == 4


@pytest.mark.parametrize(("changes", "said"), [
    ({"hidden_size": "256"}, "hidden_size = '256' is not a whole number"),
    ({"hidden_size": True}, "hidden_size = True is not a whole number"),
    ({"hidden_size": 256.5}, "hidden_size = 256.5"),
    ({"hidden_size": float("nan")}, "hidden_size = nan"),
    ({"vocab_size": float("inf")}, "vocab_size = inf"),
    ({"vocab_size": -1}, "vocab_size = -1 lies outside 1 .. 10000000"),
    ({"num_hidden_layers": 0}, "num_hidden_layers = 0 lies outside"),
    ({"num_hidden_layers": 10_001}, "num_hidden_layers = 10001 lies outside"),
    ({"intermediate_size": 10**5000}, "an integer of more than 40 digits"),
    ({"num_key_value_heads": 3}, "8 attention heads are no multiple of 3 key-value heads"),
    ({"num_attention_heads": 6, "num_key_value_heads": 6}, "do not divide the hidden size 256"),
    ({"tie_word_embeddings": "yes"}, "tie_word_embeddings = 'yes' is neither true nor false"),
    ({"torch_dtype": "complex64"}, "torch_dtype = 'complex64' is no known dtype"),
    ({"torch_dtype": "int8"}, "torch_dtype = 'int8' is no format that activations can have"),
    ({"model_type": "lama", "head_pattern": "AB"}, "nearest known model_type: llama"),
    ({"model_type": 7}, "architecture 7 is not understood"),
    ({"text_config": 3}, "text_config = 3 is not an object"),
])  # fmt: skip
def test_bad_values_are_refused_by_key_and_value(changes, said):
    assert said in refused(LLAMA, **changes)


def test_a_misspelt_key_is_named():
    assert "did you mean it by 'num_hidden_layer'" in refused(without(LLAMA, "num_hidden_layers"), num_hidden_layer=4)


def test_a_missing_key_is_not_guessed_from_others():
    said = refused(without(MOE, "num_local_experts"), rms_norm_eps=1e-5)
    assert "num_local_experts" in said
    assert "did you mean" not in said


def test_nan_is_no_size_under_one_name_or_two():
    nan = float("nan")
    assert "hidden_size = nan is not a whole number" in refused(LLAMA, hidden_size=nan)
    assert "hidden_size = nan is not a whole number" in refused(LLAMA, hidden_size=nan, n_embd=nan)
    assert "n_embd = nan contradicts hidden_size = 256" in refused(LLAMA, n_embd=nan)


@pytest.mark.parametrize("name", ["MistralModel", "LlamaModel", "Qwen3Model", "Qwen2Model"])
def test_a_trunk_without_a_head_embeds_text_and_says_so(name):
    loaded, whole = load(LLAMA, architectures=[name]), parameters(model(LLAMA))
    assert loaded.value.outputs == 0
    assert count_parameters(loaded.value).total == whole - 256 * 1000
    assert any(f"{name} embeds text and generates none" in line for line in loaded.warnings)


def test_e5_mistral_has_the_weights_of_mistral_without_its_head():
    """The decoder of Mistral-7B, whose published total is 7,241,732,096, less a table of 32,000 x 4,096."""
    mistral = read_yaml(spec_dir("model") / "mistral-7b.yaml")["config"]
    e5 = model(mistral, architectures=["MistralModel"])
    assert count_parameters(e5).total == 7_241_732_096 - 32_000 * 4096 == 7_110_660_096


def test_a_classifier_has_a_score_for_each_label():
    name = "LlamaForSequenceClassification"
    loaded = load(LLAMA, architectures=[name], id2label={"0": "good", "1": "bad", "2": "neither"})
    assert count_parameters(loaded.value).total == parameters(model(LLAMA)) - 256 * 1000 + 3 * 256
    assert any(f"{name} scores text and generates none" in line for line in loaded.warnings)
    assert model(LLAMA, architectures=[name]).outputs == 2, "the class default"


@pytest.mark.parametrize("name", [
    "NVEmbedModel", "LlamaBidirectionalModel", "Qwen3ForTokenClassification", "Qwen2ForRewardModel", "LlamaRewardModel",
    "LlamaForRewardModelWithGating", "MistralForQuestionAnswering", "Qwen2ForProcessRewardModel",
])  # fmt: skip
def test_a_trunk_with_another_head_is_refused_by_name(name):
    assert f"{name} classifies or scores" in refused(LLAMA, ArchitectureError, architectures=[name])


@pytest.mark.parametrize("listed", [
    None, [], ["LlamaForCausalLM"], ["GPT2LMHeadModel"], ["ChatGLMModel"], ["LlamaModel", "LlamaForCausalLM"], "LlamaModel",
])  # fmt: skip
def test_a_model_with_a_head_or_without_classes_loads(listed):
    assert model(LLAMA, architectures=listed) == model(LLAMA)


def test_the_text_part_of_a_multimodal_model_may_be_a_trunk():
    outer = {"model_type": "llava", "architectures": ["LlavaForConditionalGeneration"]}
    text = LLAMA | {"architectures": ["LlamaModel"]}
    assert model(outer, text_config=text, vision_config={"a": 1}).depth == 4
    assert model(outer, text_config=text, vision_config={"a": 1}).outputs is None
    assert model(outer, architectures=["LlavaForSequenceClassification"], text_config=text).outputs == 2


@pytest.mark.parametrize("key", ["beta_layers", "alphabet_layers", "alpha_heads", "expert_beta_blocks"])
def test_no_part_of_a_word_excuses_a_structural_key(key):
    assert f"{key} = 3" in refused(LLAMA, ArchitectureError, **{key: 3})
    assert model(LLAMA, lora_alpha=16, residual_norm_beta=0.5) == model(LLAMA)


def test_the_lists_of_refusals_have_no_slips():
    """Every listed kind is one word, known under one kind; every excused key is one that would be refused."""
    listed = [name for names in read_yaml(REFUSALS)["kinds"].values() for name in names.split()]
    assert len(listed) == len(set(listed))
    assert all(re.fullmatch(r"[a-z0-9]+([_-][a-z0-9]+)*", name) for name in listed), listed
    for pattern in (refusals._pattern("harmless"), refusals._pattern("structural")):
        parts = pattern.split("|")
        assert len(parts) == len(set(parts))
    for key in refusals.listed_keys("harmless"):
        assert re.search(refusals._pattern("structural"), key) and not re.search(refusals._pattern("harmless"), key), (
            key
        )


@pytest.mark.parametrize("key", read_yaml(REFUSALS)["plain"].split())
def test_a_key_that_changes_no_cost_is_accepted_without_a_note(key):
    assert not re.search(refusals._pattern("structural"), key) and not re.search(refusals._pattern("harmless"), key)
    found = model_from_config(LLAMA | {key: LLAMA.get(key, "gelu" if "activation" in key else 1)}, name="m", origin="m")
    assert found.value.layers == model(LLAMA).layers and not found.warnings


MPT = {"model_type": "mpt", "d_model": 64, "n_heads": 2, "n_layers": 2, "vocab_size": 9, "max_seq_len": 9}


@pytest.mark.parametrize("key", read_yaml(REFUSALS)["harmless"].split())
def test_a_key_that_only_looks_structural_changes_nothing(key):
    """In a class that reads nothing of it, beside its sections."""
    outer, _, inner = key.rpartition(".")
    config = MPT if outer else {
        "model_type": "gptj", "n_embd": 64, "n_layer": 1, "n_head": 2, "vocab_size": 9, "n_positions": 9,
    }  # fmt: skip
    without = model_from_config(config, name="m", origin="m")
    with_it = model_from_config(config | ({outer: {inner: 3}} if outer else {inner: 3}), name="m", origin="m")
    assert (with_it.value, with_it.warnings) == (without.value, without.warnings)


@pytest.mark.parametrize("key", ["id2label", "return_dict", "torchscript"])
def test_a_plain_key_is_plain_in_a_section_too(key):
    """As transformers writes sections that are configs of their own."""
    found = model_from_config(MPT | {"attn_config": {key: {"0": "a"}}}, name="m", origin="m")
    assert found.value == model_from_config(MPT, name="m", origin="m").value
    assert not any(key in note for note in found.warnings)


def test_a_key_that_nobody_knows_is_said():
    found = model_from_config(LLAMA | {"use_foo": True, "max_lenght": 20, "use_bar": False}, name="m", origin="m")
    assert found.value.layers == model(LLAMA).layers
    (note,) = found.warnings
    assert "use_foo = True" in note and "max_lenght = 20" in note and "use_bar" not in note


def test_whole_floats_are_sizes():
    assert model(LLAMA, hidden_size=256.0).hidden == 256


@pytest.mark.parametrize(("config", "said"), [
    ({"model_type": "bert", "hidden_size": 768}, "bert is an encoder"),
    ({"model_type": "roberta"}, "roberta is an encoder"),
    ({"model_type": "xlm-roberta"}, "xlm-roberta is an encoder"),
    ({"model_type": "nomic_bert"}, "nomic_bert is an encoder"),
    ({"model_type": "modernbert"}, "modernbert is an encoder"),
    ({"model_type": "marian"}, "marian is an encoder-decoder"),
    ({"model_type": "prophetnet"}, "prophetnet is an encoder-decoder"),
    ({"model_type": "moonshine"}, "moonshine is a speech model"),
    ({"model_type": "clip", "text_config": {"hidden_size": 512}}, "clip is a vision model"),
    ({"model_type": "siglip"}, "siglip is a vision model"),
    ({"_class_name": "UNet2DConditionModel"}, "'UNet2DConditionModel' is a diffusion model"),
    ({"model_type": "odd", "is_encoder_decoder": True}, "'odd' is an encoder-decoder"),
    (LLAMA | {"architectures": ["LlamaForTokenClassification"]}, "classifies or scores"),
])  # fmt: skip
def test_other_networks_are_refused_by_name(config, said):
    message = refused(config, ArchitectureError)
    assert said in message
    assert "rooflinekit costs decoders, T5 and Whisper" in message


def test_the_decoder_of_an_encoder_decoder_is_not_costed_as_both():
    config = {"model_type": "bart", "d_model": 64, "vocab_size": 9, "is_encoder_decoder": False}
    assert "is_encoder_decoder = False leaves the decoder alone" in refused(config, ArchitectureError)


def test_the_companion_file_is_no_config():
    assert "companion" in refused({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}})


def test_a_float32_checkpoint_is_costed_in_bf16_and_says_so():
    loaded = load(LLAMA, torch_dtype="float32")
    assert loaded.value.dtype is Dtype.BF16
    assert "float32" in loaded.warnings[0]
    assert "no torch_dtype" in load(without(LLAMA, "torch_dtype")).warnings[0]
    assert model(without(LLAMA, "torch_dtype"), dtype="float16").dtype is Dtype.FP16


def test_what_was_read_from_where():
    read = model(LLAMA).read_keys
    assert read["num_hidden_layers"] == "depth = 4"
    assert read["num_key_value_heads"] == "kv_heads = 2"
    assert set(LLAMA) <= set(read)


def test_gpt_bigcode_and_chatglm_key_names():
    assert (
        first(
            {"model_type": "gpt_bigcode", "n_embd": 64, "n_head": 4, "n_layer": 1, "n_positions": 8, "vocab_size": 9}
        ).mixer.kv_heads
        == 1
    )
    glm = {
        "model_type": "chatglm",
        "hidden_size": 64,
        "num_layers": 2,
        "num_attention_heads": 4,
        "kv_channels": 16,
        "multi_query_attention": True,
        "multi_query_group_num": 2,
        "ffn_hidden_size": 128,
        "padded_vocab_size": 100,
        "add_qkv_bias": True,
        "seq_length": 64,
    }
    assert first(glm).mixer.kv_heads == 2
    assert first(glm).mixer.qkv_bias and not first(glm).mixer.o_bias
    assert "rmsnorm = False" in refused(glm, ArchitectureError, rmsnorm=False)


def test_opt_has_two_more_rows_and_its_350m_a_narrow_embedding_and_no_last_norm():
    opt = {
        "model_type": "opt", "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "ffn_dim": 4096,
        "vocab_size": 50272, "max_position_embeddings": 2048,
    }  # fmt: skip
    assert model(opt).position_rows == 2050
    assert (model(opt).embedding_dim, model(opt).final_norm) == (0, "layernorm")
    small = model(opt, word_embed_proj_dim=512, do_layer_norm_before=False)
    assert (small.embedding_dim, small.final_norm) == (512, "none")
    embedded, layer = 50272 * 512 + 2050 * 1024 + 2 * 512 * 1024, 12 * 1024**2 + (4 + 4 + 1 + 4) * 1024
    assert count_parameters(small).total == embedded + 24 * layer == 331_196_416


def test_gemma4_global_layers_have_their_own_heads():
    config = LLAMA | {
        "model_type": "gemma4_text", "num_hidden_layers": 2, "head_dim": 32, "global_head_dim": 64, "sliding_window": 16,
        "num_global_key_value_heads": 1, "attention_k_eq_v": True, "layer_types": ["sliding_attention", "full_attention"],
    }  # fmt: skip
    local, wide = (layer.mixer for layer in model(config).layers)
    assert (local.kv_heads, local.head_dim, local.window, local.keys_are_values) == (2, 32, 16, False)
    assert (wide.kv_heads, wide.head_dim, wide.window, wide.keys_are_values, wide.k_norm) == (1, 64, None, True, 64)
    routed = first(config, enable_moe_block=True, num_experts=4, top_k_experts=2, moe_intermediate_size=32)
    assert (routed.ffn.shared_width, routed.ffn.width, routed.norms) == (512, 32, 8)
    embedded = model(config | {"hidden_size_per_layer_input": 64, "vocab_size_per_layer_input": 500})
    assert (embedded.token_rows, embedded.layers[0].token_width) == (500, 64)
    assert "share keys that no layer before them has" in refused(config, num_kv_shared_layers=1)


def test_pruned_blocks_may_lack_attention():
    block = {
        "attention": {"n_heads_in_group": 4, "no_op": False, "sparsify": None},
        "ffn": {"ffn_mult": 2.625, "no_op": False},
    }
    idle = {"attention": {"n_heads_in_group": None, "no_op": True}, "ffn": {"ffn_mult": 0.5, "no_op": False}}
    config = LLAMA | {
        "model_type": "nemotron-nas",
        "num_key_value_heads": None,
        "intermediate_size": None,
        "num_hidden_layers": 2,
    }
    full, pruned = model(config, block_configs=[block, idle]).layers
    assert (full.mixer.kv_heads, full.ffn.width, full.norms) == (2, 512, 2)  # int(2 x 2.625 x 256 / 3) = 448, up to 512
    assert (pruned.mixer, pruned.ffn.width, pruned.norms) == (None, 256, 1)
    linear = {"attention": {"replace_with_linear": True}, "ffn": {"no_op": True}}
    assert "block_configs[1].attention.replace_with_linear" in refused(
        config, ArchitectureError, block_configs=[block, linear]
    )


def test_mimo_v2_sliding_layers_have_their_own_heads_and_sinks():
    config = without(DEEPSEEK, "kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim") | {
        "model_type": "mimo_v2_flash", "head_dim": 48, "hybrid_layer_pattern": [0, 1, 1, 0], "sliding_window": 16,
        "swa_num_key_value_heads": 4, "num_key_value_heads": 2, "add_swa_attention_sink_bias": True,
        "moe_layer_freq": [0, 1, 1, 1], "topk_method": "noaux_tc", "n_shared_experts": None,
    }  # fmt: skip
    mixers = [layer.mixer for layer in model(config).layers]
    assert [(m.kv_heads, m.window, m.sinks, m.head_dim, m.v_head_dim) for m in mixers[:2]] == [
        (2, None, False, 48, 32),
        (4, 16, True, 48, 32),
    ]
    assert isinstance(first(config).ffn, DenseFFN)


def test_command_r_context_is_the_stated_maximum():
    assert (
        model(LLAMA, model_type="cohere", max_position_embeddings=8192, model_max_length=131072).max_context == 131072
    )


#: Classes beyond the library: a released model's sizes, and the number of weights its repository states.
RELEASED = {
    "olmo": ({"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "intermediate_size": 11008, "vocab_size": 50304}, 6_888_095_744),
    "smollm3": ({"hidden_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 4, "intermediate_size": 11008, "vocab_size": 128256}, 3_075_098_624),
    "glm": ({"hidden_size": 4096, "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 2, "intermediate_size": 13696, "vocab_size": 151552, "attention_bias": True}, 9_399_951_360),
    "glm4": ({"hidden_size": 4096, "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 2, "intermediate_size": 13696, "vocab_size": 151552, "attention_bias": True}, 9_400_279_040),
    "granitemoe": ({"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 8, "intermediate_size": 512, "vocab_size": 49155, "num_local_experts": 32, "num_experts_per_tok": 8, "tie_word_embeddings": True}, 1_334_628_352),
    "olmoe": ({"hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 16, "intermediate_size": 1024, "vocab_size": 50304, "num_experts": 64, "num_experts_per_tok": 8}, 6_919_161_856),
    "seed_oss": ({"hidden_size": 5120, "num_hidden_layers": 64, "num_attention_heads": 80, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 27648, "vocab_size": 155136}, 36_151_104_512),
    "ernie4_5": ({"hidden_size": 1024, "num_hidden_layers": 18, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 128, "intermediate_size": 3072, "vocab_size": 103424}, 360_748_032),
    "minicpm": ({"hidden_size": 2304, "num_hidden_layers": 40, "num_attention_heads": 36, "intermediate_size": 5760, "vocab_size": 122753, "dim_model_base": 256, "scale_emb": 12}, 2_724_880_896),
}  # fmt: skip


@pytest.mark.parametrize("kind", RELEASED)
def test_classes_beyond_the_library_have_the_released_size(kind):
    config, total = RELEASED[kind]
    assert parameters(model(config, model_type=kind)) == total


REFUSED = {
    "deepseek-ai__DeepSeek-V2_native_236B": "not a Hugging Face config",
}
#: Sizes in billions, from the names or reports of collected models that are not in the library.
ROUNDED = {
    "nvidia__Llama-3_3-Nemotron-Super-49B-v1": 49,
    "nvidia__NVIDIA-Nemotron-3-Super-120B-A12B-FP8": 120,
    "nvidia__NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16": 550,
    "nvidia__Gemma-4-31B-IT-NVFP4": 31,
    "allenai__Olmo-3.1-32B-Instruct": 32.233522176,
    "XiaomiMiMo__MiMo-V2-Flash": 309,
    "zai-org__GLM-5.2": 744,
}


def collected():
    names = sorted(path.name.removesuffix("_config.json") for path in COLLECTED.glob("*_config.json"))
    return [name for name in names if not name.endswith("hf_quant")]


def read_collected(name):
    path = COLLECTED / f"{name}_config.json"
    companion = COLLECTED / f"{name}_hf_quant_config.json"
    quant = json.loads(companion.read_text()) if companion.exists() else None
    return model_from_config(json.loads(path.read_text()), name=name, origin="config.json", quant_config=quant)


@pytest.mark.skipif(not COLLECTED.is_dir(), reason="the collected configs are not in this checkout")
def test_every_collected_config_imports_or_is_refused_for_its_reason():
    names = collected()
    assert len(names) == 83
    for name in names:
        if name in REFUSED:
            with pytest.raises(ArchitectureError, match=REFUSED[name]):
                read_collected(name)
        else:
            assert parameters(read_collected(name).value) > 1e6, name


@pytest.mark.skipif(not COLLECTED.is_dir(), reason="the collected configs are not in this checkout")
@pytest.mark.parametrize("name", ROUNDED)
def test_collected_configs_beyond_the_library_have_their_stated_size(name):
    assert parameters(read_collected(name).value) / 1e9 == pytest.approx(ROUNDED[name], rel=2e-2)


def test_every_class_has_a_row_that_is_reached():
    assert len(class_names()) >= 50
    assert "generic_decoder" in class_names()


def test_dtype_errors_are_input_errors():
    assert issubclass(DtypeError, InputError)


def test_layers_may_be_named_as_transformers_5_names_them():
    """`linear_attention` for a state space and `full_attention` for attention; lists of layers beside their types."""
    words = ["mamba", "mlp", "attention", "moe"]
    other = ["linear_attention", "mlp", "full_attention", "moe"]
    old, new = (model(NEMOTRON, layers_block_type=each) for each in (words, other))
    assert old == new
    lfm2 = LLAMA | {"model_type": "lfm2", "conv_L_cache": 3, "block_auto_adjust_ff_dim": False}
    types = ["conv", "full_attention", "conv", "full_attention"]
    assert model(lfm2, layer_types=types, full_attn_idxs=[1, 3]) == model(lfm2, full_attn_idxs=[1, 3])
    assert "name other layers" in refused(lfm2, layer_types=types, full_attn_idxs=[0, 3])


def test_a_config_says_whether_qwen2_moe_has_biases():
    moe = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "decoder_sparse_step": 1,
           "shared_expert_intermediate_size": 64, "model_type": "qwen2_moe"}  # fmt: skip
    assert model(LLAMA, **moe) == model(LLAMA, **moe, qkv_bias=True)
    assert model(LLAMA, **moe) != model(LLAMA, **moe, qkv_bias=False)


def test_gemma4_makes_its_layers_where_none_are_listed():
    config = LLAMA | {"model_type": "gemma4_text", "num_hidden_layers": 8, "head_dim": 32, "sliding_window": 16}
    loaded = load(config)
    assert [layer.mixer.window is None for layer in loaded.value.layers] == [False] * 5 + [True, False, True]
    assert [layer.mixer.head_dim for layer in loaded.value.layers][5:] == [512, 32, 512]
    assert any("layer_types is absent" in line for line in loaded.warnings)


def test_layers_may_have_keys_of_their_own():
    config = LLAMA | {"model_type": "gemma4_text", "head_dim": 32, "global_head_dim": 32, "sliding_window": 16,
                      "layer_types": ["sliding_attention", "full_attention"] * 2}  # fmt: skip
    own = model(
        config | {"per_layer_config": {"01": {"head_dim": 64}, "03": {"head_dim": 64, "intermediate_size": 96}}}
    )
    assert [layer.mixer.head_dim for layer in own.layers] == [32, 32, 32, 32]  # the class has a key for global ones
    assert [layer.ffn.width for layer in own.layers] == [512, 512, 512, 96]
    wide = model(config | {"global_head_dim": None, "per_layer_config": {"01": {"head_dim": 64}}}).layers
    assert [layer.mixer.head_dim for layer in wide] == [32, 64, 32, 32]
    for place, other in (("01", {"head_shape": 3}), ("9", {"head_dim": 64}), ("one", {"head_dim": 64})):
        assert "per_layer_config" in refused(config, per_layer_config={place: other})


def test_layers_that_share_keys_may_be_twice_as_wide():
    config = LLAMA | {"model_type": "gemma4_text", "num_kv_shared_layers": 2, "use_double_wide_mlp": True,
                      "sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"] * 2}  # fmt: skip
    layers = model(config).layers
    assert [layer.ffn.width for layer in layers] == [512, 512, 1024, 1024]
    assert [layer.mixer.shared for layer in layers] == [False, False, True, True]


def test_a_hybrid_may_slide_and_gate_its_heads():
    config = LLAMA | {"model_type": "lfm3", "sliding_window": 8,
                      "layer_types": ["conv", "sliding_attention", "full_attention", "conv"]}  # fmt: skip
    conv, local, wide, _ = model(config).layers
    assert (conv.norms, local.mixer.window, wide.mixer.window, wide.mixer.head_gated) == (4, 8, None, True)
    plain = model(config | {"use_sandwich_norm": False, "use_attention_gate": False}).layers[2]
    assert (plain.norms, plain.mixer.head_gated) == (2, False)


def test_experts_that_do_nothing_are_no_work():
    config = without(LLAMA, "intermediate_size", "num_hidden_layers") | {
        "model_type": "longcat_flash", "num_layers": 2, "ffn_hidden_size": 512, "expert_ffn_hidden_size": 64,
        "n_routed_experts": 8, "zero_expert_num": 4, "moe_topk": 3, "q_lora_rank": 64, "kv_lora_rank": 32,
        "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16,
    }  # fmt: skip
    layers = model(config).layers
    assert [layer.mixer is None for layer in layers] == [False, False, True] * 2
    assert (layers[2].ffn.experts, layers[2].ffn.top_k, layers[2].norms) == (8, 2, 0)  # 3 of 12 picks, 2 of 8 that work
    assert layers[2].vectors == 4 * 256 + 4  # rows of the router and corrections


def test_heads_may_differ_layer_by_layer():
    config = LLAMA | {"model_type": "laguna", "head_dim": 32, "num_attention_heads_per_layer": [8, 16, 8, 16],
                      "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}  # fmt: skip
    assert [layer.mixer.heads for layer in model(config).layers] == [8, 16, 8, 16]
    assert "no multiple of 2 key-value heads" in refused(config, num_attention_heads_per_layer=[8, 9, 8, 8])
