"""Default configs of transformers' classes: parameters and cache as transformers builds them on its meta device.

benchmarks/transformers_table.py wrote the facts (transformers 5.24.0) and says how; nothing of it is needed here.
Balance corrections of routers are weights of checkpoints, and buffers of most classes: they may be counted or not.
"""

from __future__ import annotations

import csv
import json
from contextlib import suppress
from pathlib import Path

import pytest
from oracle import parameters

from rooflinekit.model.cache import cache_law
from rooflinekit.model.parameter_count import count_parameters
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.errors import ArchitectureError, SpecError
from rooflinekit.model.types.model import MixtureOfExperts
from rooflinekit.specs import load_model
from rooflinekit.specs.config import model_from_config

FACTS = json.loads(Path(__file__).with_name("transformers_defaults.json").read_text(encoding="utf-8"))


def unpacked(value):
    if isinstance(value, dict):
        runs = value.get("*")
        return {k: unpacked(v) for k, v in value.items()} if runs is None else [v for v, n in runs for _ in range(n)]
    return value


@pytest.mark.parametrize("part", range(8))  # for several processes
def test_a_class_of_transformers_is_read_to_the_digit_by_default(part):
    assert len(FACTS) >= 230
    for name in list(FACTS)[part::8]:
        fact = FACTS[name]
        model = model_from_config(unpacked(fact["config"]), name=name, origin=name).value
        assert count_parameters(model).total == parameters(model), name
        assert count_parameters(model).total - fact["parameters"] in {0, fact["corrections"]}, name
        if fact["cache"] is not None:
            assert cache_law(model.layers, Dtype.BF16).bytes_per_token == 2 * fact["cache"], name


#: Keys whose absence means a version's own rule, not a value, and lists that a class makes of other keys.
DERIVED = {
    "tie_word_embeddings", "layer_types", "mlp_only_layers", "indexer_types", "cross_attention_layers", "attn_config",
}  # fmt: skip
#: Keys that benchmarks/transformers_table.py gives, for want of a default, and those that models without experts lack.
GIVEN = {
    ("dots1", "n_shared_experts"), ("granitemoehybrid", "num_local_experts"),
    ("nemotron", "num_key_value_heads"), ("nemotron_h", "moe_shared_expert_intermediate_size"),
    ("nemotron_h", "n_shared_experts"),
}  # fmt: skip


def test_a_key_that_is_absent_is_read_as_its_class_takes_it_or_refused():
    """A default config without one of its keys is the same network: transformers' own classes build it so.

    Of 3,245 keys, sizes that no class has a default for here are refused where they are absent.
    """
    taken = 0
    for name, fact in FACTS.items():
        config = unpacked(fact["config"])
        right = count_parameters(model_from_config(config, name=name, origin=name).value).total
        for key in config.keys() - DERIVED - {"model_type", "text_config"}:
            if (name, key) in GIVEN:
                continue
            less = {each: value for each, value in config.items() if each != key}
            with suppress(SpecError, ArchitectureError):
                found = count_parameters(model_from_config(less, name=name, origin=name).value).total
                assert found == right, (name, key)
                taken += 1
    assert taken >= 2_298, "keys are refused that were read; where more are read, raise the number"


FILES = Path(__file__).parents[2].parent / "shared" / "data" / "files"
#: Rows whose right value is another quantity, with ours and the reason.
OTHERWISE = {
    # transformers 5.24.0 gives the 256 experts that do nothing two of three matrices each; the checkpoint has none
    "dflt__longcat_flash": 741_053_585_408 - 28 * 256 * 2 * 2048 * 6144,
    # the row counts the encoder of sound and its projector too, whose names its filter does not know
    "dflt__granite_speech": 6_607_343_616,
    "dflt__hyperclovax_vision_v2": 6_622_289_920 - 4096 * (3584 + 1),  # as above: its projector
}


def test_configs_in_the_form_that_engines_and_exporters_write():
    if not (FILES / "expected.csv").is_file():
        pytest.skip("the collected files are not here")
    with (FILES / "expected.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["file"].startswith("configs/") and row["right"]]
    quantities = {"parameters_of_the_text_decoder", "kv_bytes_per_token_bf16"}
    for row in (row for row in rows if row["quantity"] in quantities):
        path, right = FILES / row["file"], int(row["right"])
        name = path.parent.name
        if name == "dflt__zaya":
            with pytest.raises(ArchitectureError, match="nearest is"):
                load_model(path)
            continue
        model = load_model(path).value
        if row["quantity"] == "kv_bytes_per_token_bf16":
            assert cache_law(model.layers, Dtype.BF16).bytes_per_token == right, name
            continue
        right = OTHERWISE.get(name, right)
        routed = (layer.ffn for layer in model.layers if isinstance(layer.ffn, MixtureOfExperts))
        corrections = sum(ffn.experts for ffn in routed if ffn.router_bias)
        idle = 28 * 256 if name == "dflt__longcat_flash" else 0
        assert count_parameters(model).total - right in {0, corrections + idle}, name


@pytest.mark.parametrize(("kind", "text", "parameters"), [
    ("glmasr", {}, 1472055296),
    ("glmasr", {"num_hidden_layers": 5}, 362567680),
    ("glmasr", {"num_key_value_heads": 2, "vocab_size": 1000}, 1323370496),
    ("voxtral", {"num_hidden_layers": 5}, 1340113920),
    ("voxtral", {"hidden_size": 1024, "num_attention_heads": 8}, 1149301760),
])  # fmt: skip
def test_a_text_part_takes_the_defaults_of_the_class_around_it(kind, text, parameters):
    """Counted by torch's meta device in transformers 5.24.0: the sizes of Llama that these two leave out are others."""
    tied = {"tie_word_embeddings": kind == "glmasr"}
    config = {"model_type": kind, "text_config": {"model_type": "llama", **text}, **tied}
    assert count_parameters(model_from_config(config, name=kind, origin=kind).value).total == parameters
