"""Slips that tables of models are known to hold: KV heads of another model, a head counted twice, and their like.

Each is put into the config of a released model. Either the model comes out right all the same, or the user is told.
"""

# ruff: noqa: E501 - the table has one case a line

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rooflinekit.estimation.facts import kv_cache_bytes
from rooflinekit.model.parameter_count import count_parameters
from rooflinekit.model.types.errors import InputError
from rooflinekit.specs import load_model, spec_dir
from rooflinekit.specs.files import read_yaml
from rooflinekit.specs.locate import aliases
from rooflinekit.specs.models import claimed_name

COLLECTED = Path(__file__).parents[2].parent / "shared" / "data" / "specs" / "hf_configs"


@pytest.fixture(autouse=True)
def _no_user_folders(tmp_path, monkeypatch):
    (tmp_path / "user").mkdir()
    monkeypatch.setenv("ROOFLINEKIT_SPECS", str(tmp_path / "user"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.fixture
def imported(tmp_path):
    """imported("llama-3-8b", key=value): its config.json with these keys, which says that it is llama-3-8b."""

    def build(name, claim=None, drop=(), **changes):
        config = read_yaml(spec_dir("model") / f"{name}.yaml")["config"]
        config = {key: value for key, value in {**config, **changes}.items() if key not in drop}
        claim = aliases("model")[name][0] if claim is None else claim
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config | {"_name_or_path": claim}))
        return load_model(path)

    return build


def told(loaded):
    lines = [line for line in loaded.warnings if "says it is" in line]
    assert len(lines) <= 1
    assert all("\n" not in line for line in lines)
    return lines[0] if lines else ""


SLIDING = ["sliding_attention"] * 62

SLIPS = {
    "query heads for KV heads": ("llama-3-8b", {"num_key_value_heads": 32}, "num_key_value_heads 32 where the library's llama-3-8b has 8"),
    "KV heads left out, so one a query head": ("llama-2-70b", {"num_key_value_heads": None}, "num_key_value_heads 64 where the library's llama-2-70b has 8"),
    "KV heads of the smaller model": ("qwen2.5-72b", {"num_key_value_heads": 4}, "num_key_value_heads 4 where the library's qwen2.5-72b has 8"),
    "MQA without its flag": ("falcon-7b", {"multi_query": False}, "num_key_value_heads 71 where the library's falcon-7b has 1"),
    "Falcon-40B by its multi_query": ("falcon-40b", {"new_decoder_architecture": False}, "1 where the library's falcon-40b has 8"),
    "hidden / heads for head_dim, Qwen3": ("qwen3-4b", {"head_dim": 80}, "head_dim 80 where the library's qwen3-4b has 128"),
    "hidden / heads for head_dim, Gemma": ("gemma-7b", {"head_dim": 192}, "head_dim 192 where the library's gemma-7b has 256"),
    "hidden / heads for head_dim, Mistral-Nemo": ("mistral-nemo", {"head_dim": None}, "head_dim 160 where the library's mistral-nemo has 128"),
    "d_ff = 4 d": ("llama-3.1-70b", {"intermediate_size": 32768}, "intermediate_size 32768 where the library's llama-3.1-70b has 28672"),
    "expert width for dense width": ("llama-4-maverick", {"intermediate_size_mlp": 8192}, "intermediate_size_mlp 8192 where the library's llama-4-maverick has 16384"),
    "dense width for expert width": ("llama-4-scout", {"intermediate_size": 16384}, "intermediate_size 16384 where the library's llama-4-scout has 8192"),
    "every layer slides": ("gemma-3-27b", {"layer_types": SLIDING}, "sliding_window 1024 where the library's gemma-3-27b has 1024 (52 layers), none (10 layers)"),
    "no layer slides": ("gemma-3-27b", {"layer_types": ["full_attention"] * 62}, "sliding_window none where the library's gemma-3-27b has 1024 (52 layers), none (10 layers)"),
    "a tied head counted twice": ("gemma-2b", {"tie_word_embeddings": False}, "tie_word_embeddings false where the library's gemma-2b has true"),
    "an own head forgotten": ("llama-3-8b", {"tie_word_embeddings": True}, "tie_word_embeddings true where the library's llama-3-8b has false"),
    "layers of another size": ("llama-3.1-8b", {"num_hidden_layers": 80}, "num_hidden_layers 80 where the library's llama-3.1-8b has 32"),
    "the vocabulary of Llama 2": ("llama-3-8b", {"vocab_size": 32000}, "vocab_size 32000 where the library's llama-3-8b has 128256"),
    "every layer routed": ("deepseek-v3", {"first_k_dense_replace": 0}, "intermediate_size none where the library's deepseek-v3 has 18432"),
    "active experts": ("mixtral-8x7b", {"num_experts_per_tok": 8}, "num_experts_per_tok 8 where the library's mixtral-8x7b has 2"),
    "a sixth the latent": ("deepseek-v2-lite", {"kv_lora_rank": 128}, "kv_lora_rank 128 where the library's deepseek-v2-lite has 512"),
}  # fmt: skip


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_is_told(imported, slip):
    name, changes, said = SLIPS[slip]
    line = told(imported(name, **changes))
    assert line.startswith(f"config.json says it is {aliases('model')[name][0]}, but has ")
    assert said in line
    assert told(imported(name)) == "", "the right config says nothing"


def test_latent_attention_written_as_128_kv_heads_is_told(imported):
    latent = ("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    experts = ("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "n_shared_experts")
    routing = ("first_k_dense_replace", "moe_layer_freq", "num_nextn_predict_layers", "quantization_config")
    loaded = imported("deepseek-v3", drop=(*latent, *experts, *routing), model_type="llama", num_key_value_heads=128)
    assert "num_key_value_heads 128 where the library's deepseek-v3 has none" in told(loaded)


def test_latent_attention_does_not_cache_its_128_kv_heads(imported):
    for heads in (1, 128):
        loaded = imported("deepseek-v3", num_key_value_heads=heads)
        assert told(loaded) == ""
        assert kv_cache_bytes("deepseek-v3", 1, "bf16", block=1) == 61 * (512 + 64) * 2
        assert loaded.value.layers == load_model("deepseek-v3").value.layers


def test_falcon_saved_with_a_default_of_71_kv_heads_is_no_slip(imported):
    assert told(imported("falcon-7b", num_kv_heads=71)) == ""


#: What the class takes when the key is absent, as transformers does: the config of Gemma-3 really leaves these out.
ABSENT = [
    ("gemma-3-12b", ("head_dim", "vocab_size", "max_position_embeddings")),
    ("gemma-3-4b", ("head_dim", "vocab_size", "num_attention_heads", "num_key_value_heads", "max_position_embeddings")),
    ("gemma-2b", ("head_dim",)),
    ("qwen3-4b", ("head_dim",)),
    ("qwen3-next-80b-a3b", ("head_dim", "num_key_value_heads")),
    ("qwen1.5-moe-a2.7b", ("num_key_value_heads",)),
    ("mistral-7b", ("num_key_value_heads",)),
    ("mixtral-8x7b", ("num_key_value_heads",)),
    ("gpt-oss-120b", ("num_key_value_heads", "head_dim")),
    ("llama-4-scout", ("num_key_value_heads",)),
    ("deepseek-v3", ("q_lora_rank", "n_shared_experts", "first_k_dense_replace")),
]


@pytest.mark.parametrize(("name", "keys"), ABSENT)
def test_absent_keys_are_the_defaults_of_the_class(imported, name, keys):
    loaded, whole = imported(name, drop=keys), load_model(name).value
    assert told(loaded) == ""
    assert count_parameters(loaded.value) == count_parameters(whole)
    assert loaded.value.max_context == whole.max_context
    for key in keys:
        assert any(line.startswith(f"{key} is absent: the class default of ") for line in loaded.warnings)


def test_the_first_differences_are_named_and_the_rest_counted(imported):
    line = told(imported("llama-3-8b", claim="meta-llama/Llama-3.1-405B"))
    assert line.count(" where ") == 3
    assert line.endswith(" more differences")


def test_an_entry_of_the_hub_cache_says_whose_it_is(tmp_path):
    snapshot = tmp_path / "models--meta-llama--Meta-Llama-3-8B" / "snapshots" / "aaa"
    snapshot.mkdir(parents=True)
    config = read_yaml(spec_dir("model") / "llama-3-8b.yaml")["config"]
    (snapshot / "config.json").write_text(json.dumps(config | {"num_key_value_heads": 16}))
    expected = "config.json says it is meta-llama/Meta-Llama-3-8B, but has num_key_value_heads 16 where"
    assert told(load_model(snapshot)).startswith(expected)
    assert told(load_model("meta-llama/Meta-Llama-3-8B")) == "", "the id is the library's"


@pytest.mark.parametrize(("stated", "claim"), [
    ("meta-llama/Meta-Llama-3-8B", "meta-llama/Meta-Llama-3-8B"),
    ("/checkpoints/Llama-3.1-70B-Instruct/", "Llama-3.1-70B-Instruct"),
    ("./out/llama-3-8b", "llama-3-8b"),
    ("Phi-4-mini-instruct", "Phi-4-mini-instruct"),
    ("", None), (None, None), (7, None), ("~", None), ("..", None), ("x" * 10**6, None), ("a b\0c/", "c"),
])  # fmt: skip
def test_whose_config_it_says_it_is(stated, claim):
    assert claimed_name({"_name_or_path": stated}, Path("config.json")) == claim


@pytest.mark.parametrize("claim", ["nobody/knows-this-one", "tuned/llama-3-8b", "llama", "x.json", "", "a100"])
def test_a_claim_to_be_nothing_in_the_library_is_not_checked(imported, claim):
    assert told(imported("llama-3-8b", claim=claim, num_key_value_heads=32)) == ""


@pytest.mark.skipif(not COLLECTED.is_dir(), reason="the collected configs are not in this checkout")
def test_collected_configs_are_what_they_say(tmp_path):
    contradicted = []
    for source in sorted(COLLECTED.glob("*__*_config.json")):
        folder = tmp_path / f"models--{source.name.removesuffix('_config.json').replace('__', '--')}"
        folder.mkdir()
        (folder / "config.json").write_text(source.read_text())
        try:
            contradicted += [told(load_model(path)) for path in (folder, source)]
        except InputError:
            continue
    cut = [line for line in contradicted if line]
    assert len(contradicted) > 140
    assert len(cut) == 2
    assert "says it is dbrx-instruct, but has n_layers 1 where the library's dbrx has 40" in cut[0]
    assert "num_attention_heads 64 where the library's step-3.7-flash has 96" in cut[1]  # written without a setting
