"""Parameter counts against transformers itself: the model is built without memory, on the meta device, and counted.

Needs torch and transformers, which nothing else here does; without them it is skipped. Vision towers and MTP layers are
left out on both sides, a tied head counts once.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rooflinekit.model.parameter_count import count_parameters
from rooflinekit.model.types.errors import InputError
from rooflinekit.specs import spec_dir
from rooflinekit.specs.config import model_from_config
from rooflinekit.specs.files import read_json, read_yaml

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs, not ours

COLLECTED = Path(__file__).parents[2].parent / "shared" / "data" / "specs" / "hf_configs"
LIBRARY = {path.stem: path for path in sorted(spec_dir("model").glob("*.yaml"))}
CONFIGS = {
    path.name.removesuffix("_config.json"): path
    for path in sorted(COLLECTED.glob("*_config.json"))
    if "hf_quant" not in path.name
}
PLAIN = {
    "hidden_size": 4096, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 16,
    "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 1000, "attention_bias": False, "tie_word_embeddings": False,
    "pad_token_id": 0,
}  # fmt: skip
#: Classes that no config here has.
BEYOND = {kind: PLAIN | {"model_type": kind} for kind in ("ernie4_5", "glm", "glm4", "olmo", "seed_oss", "smollm3")} | {
    "cohere2": PLAIN | {"model_type": "cohere2", "sliding_window": 64},
    "granitemoe": PLAIN | {"model_type": "granitemoe", "num_local_experts": 4, "num_experts_per_tok": 2},
    "olmoe": PLAIN | {"model_type": "olmoe", "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 256},
}
STATE_SPACE = {"mamba_n_heads": 128, "mamba_d_head": 64, "mamba_d_state": 32, "mamba_n_groups": 2, "mamba_d_conv": 4}
ROUTED = {"num_experts_per_tok": 2, "moe_intermediate_size": 128}
CONVOLUTIONS = {"layer_types": ["conv", "full_attention"]}
BEYOND |= {
    kind: PLAIN | {"model_type": kind} | more
    for kind, more in {
        "apertus": {"hidden_act": "xielu"},
        "arcee": {"mlp_bias": True},
        "bamba": STATE_SPACE | {"attn_layer_indices": [1]},
        "dots1": ROUTED | {"n_routed_experts": 4, "n_shared_experts": 2},
        "ernie4_5_moe": {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 128, "moe_layer_end_index": 1},
        "exaone4": {"sliding_window": 64, "sliding_window_pattern": 2},
        "exaone_moe": ROUTED | {"num_experts": 4, "num_shared_experts": 1, "sliding_window": 64},
        "gemma3n_text": {
            "hidden_size_per_layer_input": 32,
            "num_kv_shared_layers": 1,
            "vocab_size_per_layer_input": 900,
        }
        | {"num_hidden_layers": 4, "layer_types": ["full_attention"] * 4, "tie_word_embeddings": True},
        "falcon_h1": STATE_SPACE | {"mamba_d_ssm": 8192, "mamba_rms_norm": True},
        "falcon_mamba": {"state_size": 16, "time_step_rank": "auto"},
        "granitemoehybrid": STATE_SPACE
        | {"num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 256}
        | {"layer_types": ["mamba", "attention"]},
        "granitemoeshared": {"num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 256},
        "hunyuan_v1_dense": {},
        "hunyuan_v1_moe": {"num_experts": 4, "moe_topk": [2, 2]},
        "lfm2": CONVOLUTIONS,
        "lfm2_moe": CONVOLUTIONS | ROUTED | {"num_experts": 4, "num_dense_layers": 1},
        "mamba": {"state_size": 16, "intermediate_size": 8192, "time_step_rank": 256},
        "zamba2": {"layers_block_type": ["hybrid", "mamba", "hybrid", "hybrid"], "num_hidden_layers": 4}
        | {"num_mem_blocks": 2, "adapter_rank": 32, "use_shared_attention_adapter": True, "attention_head_dim": 512}
        | {"n_mamba_heads": 16, "num_key_value_heads": 16, "head_dim": None, "tie_word_embeddings": True},
        "mamba2": {"num_heads": 128, "state_size": 32, "conv_kernel": 4, "n_groups": 2},
    }.items()
}
NESTED = ("text_config", "llm_config", "language_config")
OUTSIDE = ("visual", "vision", "audio", "projector")
#: Classes that are another one under a name of their own; Kimi-K2's config says so in its `auto_map`.
SAME = {"kimi_k2": "deepseek_v3"}
#: Weights of a checkpoint that are no `parameters()` of the class, with the reason.
BUFFERS = {
    "expert_bias": "LFM2's balance correction, as DeepSeek's",
    "e_score_correction_bias": "DeepSeek's balance correction, one number an expert, moves by a rule without gradients",
}
#: Keys whose absence the class reads in another way than the importer, with the reason.
READ_OTHERWISE = {
    ("deepseek_v2", "n_shared_experts"): "2 in transformers, none in DeepSeek's own code: the config always states it",
    ("mimo_v2_flash", "head_dim"): "the class was written for the one released config, which states it",
    ("mimo_v2_flash", "num_key_value_heads"): "the class was written for the one released config, which states it",
    (
        "minimax_m2",
        "head_dim",
    ): "128 in transformers, hidden / heads in MiniMax's own code: the config always states it",
    ("nemotron_h", "n_shared_experts"): "1 in transformers; NVIDIA's own class of Nemotron-H had no experts",
}
KEYS = (
    "attention_bias", "first_k_dense_replace", "head_dim", "intermediate_size", "mlp_bias", "n_shared_experts",
    "num_key_value_heads", "q_lora_rank", "tie_word_embeddings",
)  # fmt: skip


def config_of(name):
    if name in BEYOND:
        return BEYOND[name]
    config = read_yaml(LIBRARY[name])["config"] if name in LIBRARY else read_json(CONFIGS[name])
    # the collected one is flat, and the class of transformers keeps its decoder apart
    return {"model_type": "step3p7", "text_config": config} if config.get("model_type") == "step3p7" else config


def text_decoder(config):
    """The keys of the decoder, and whether they stood in a config of something larger."""
    nested = next((key for key in NESTED if config.get(key)), None)
    inherited = {key: config[key] for key in ("tie_word_embeddings",) if nested and config.get(key) is not None}
    return ({"model_type": config["model_type"]} | config[nested] | inherited, True) if nested else (config, False)


def accepted(config):
    """The config as the class takes it: counts do not depend on what changes here."""
    left_out = ("model_type", "architectures", "auto_map", "quantization_config", "torch_dtype", "dtype")
    given = {key: value for key, value in config.items() if key not in left_out}
    if isinstance(given.get("attn_config"), dict):  # DBRX wants a base; MPT wants floats
        base = {"rope_theta": 1e4} if config["model_type"] == "dbrx" else {}
        clip = given["attn_config"].get("clip_qkv")
        given["attn_config"] = {**base, **given["attn_config"], "clip_qkv": clip and float(clip)}
    return given


def built(config):
    """The class of transformers on the meta device; None when it knows none."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING as CAUSAL
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING as MULTIMODAL

    inner, _ = text_decoder(config)
    for keys, classes in ((inner, CAUSAL), (config, MULTIMODAL)):
        kind = SAME.get(keys.get("model_type"), keys.get("model_type"))
        if kind not in CONFIG_MAPPING:
            continue
        made = transformers.AutoConfig.for_model(kind, **accepted(keys))
        if type(made) in classes:
            with torch.device("meta"):
                return classes[type(made)](made)
    return None


def counted(model):
    """Unique weights of the text decoder, and those of routed experts among them."""
    weights = [(name, weight.numel()) for name, weight in model.named_parameters()]
    stored = [(name, buffer.numel()) for name, buffer in model.named_buffers() if name.rpartition(".")[2] in BUFFERS]
    kept = [(name, size) for name, size in weights + stored if not any(part in name for part in OUTSIDE)]
    return sum(size for _, size in kept), sum(size for name, size in kept if ".experts." in name)


def load(config, name):
    return count_parameters(model_from_config(config, name=name, origin="config.json").value)


def unknown(config):
    return f"transformers {transformers.__version__} has no class for {config.get('model_type')}"


@pytest.mark.parametrize("name", [*LIBRARY, *CONFIGS, *BEYOND])
def test_parameters_equal_the_class_of_transformers(name):
    config = config_of(name)
    try:
        ours = load(config, name)
    except InputError as error:
        pytest.skip(f"refused: {error}")
    theirs = built(config)
    if theirs is None:
        pytest.skip(unknown(config))
    total, experts = counted(theirs)
    assert ours.total == total
    assert ours.experts == experts
    assert ours.tied == (theirs.get_input_embeddings().weight is theirs.get_output_embeddings().weight)


def test_most_of_the_library_is_compared():
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    compared = [name for name in LIBRARY if config_of(name)["model_type"] in CONFIG_MAPPING]
    assert len(compared) >= 30


def absences():
    """One config for each class, and each of the keys that it states."""
    first = {}
    for name in (*LIBRARY, *CONFIGS, *BEYOND):
        first.setdefault(config_of(name).get("model_type"), name)
    return [(name, key) for name in first.values() for key in KEYS if key in text_decoder(config_of(name))[0]]


@pytest.mark.parametrize(("name", "key"), absences())
def test_an_absent_key_means_what_it_means_to_the_class(name, key):
    config = json.loads(json.dumps(config_of(name)))
    for part in (config, *(config[nested] for nested in NESTED if config.get(nested))):
        part.pop(key, None)
    try:
        ours = load(config, name)
        theirs = built(config)
    except (InputError, TypeError):
        return  # refused, or the class itself cannot do without
    if theirs is None:
        pytest.skip(unknown(config))
    same = ours.total == counted(theirs)[0]
    assert same != ((config["model_type"], key) in READ_OTHERWISE)
