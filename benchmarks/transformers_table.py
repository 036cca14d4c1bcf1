"""Transformers' own table of models that write text: what each class is by default, counted by it and read by us.

    python benchmarks/transformers_table.py [--write] [CLASS ...]

needs torch and transformers (5.24.0 wrote the committed facts), which nothing else here does. Each class is built on
the meta device from its default config, without memory; its parameters and the growth of its cache are counted, and
compared with what `model_from_config` reads. Classes are read exactly, listed with a reason, or not understood;
`--write` keeps config and counts of the first in tests/specs/transformers_defaults.json, which a quick test reads.
"""

# ruff: noqa: PLC0415 - torch and transformers are there only for who runs this

from __future__ import annotations

import argparse
import json
import math
import re
import signal
import warnings
from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import Any

from rooflinekit.model.cache import cache_law
from rooflinekit.model.parameter_count import count_parameters
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.errors import RooflinekitError
from rooflinekit.specs.config import model_from_config

FACTS = Path(__file__).parents[1] / "tests" / "specs" / "transformers_defaults.json"
MAPPINGS = ("CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM", "SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ")
#: What a default config lacks, without which its class builds nothing, or nothing that a token could pass.
COMPLETED: dict[str, dict[str, Any]] = {
    "aya_vision": {"vision_config": {"model_type": "siglip_vision_model", "num_attention_heads": 16}},
    "chameleon": {"vocabulary_map": {"<image>": 4}},
    "deepseek_ocr2": {"text_config": {"num_experts_per_tok": 6}},
    "deepseek_v2": {"num_experts_per_tok": 6},
    "dots1": {"n_routed_experts": 128, "n_shared_experts": 2, "num_experts_per_tok": 6},
    "emu3": {"vocabulary_map": {"<image>": 4}},
    "glm4_moe": {"head_dim": 128},
    "glm4v_moe": {"text_config": {"head_dim": 128}},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "hunyuan_vl": {"text_config": {"head_dim": 128}},
    "lfm2_moe": {"layer_types": ["conv", "conv", "conv", "full_attention"] * 8},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8, "head_dim": 128},
    "qwen3_omni_moe_thinker": {"text_config": {"head_dim": 128}},
}
#: Classes that are read otherwise than transformers builds them, and why.
OTHERWISE = {"longcat_flash": "its experts that do nothing have two of three matrices here, and none in a checkpoint"}
#: Modules beside the language model: towers, projectors, other models.
OUTSIDE = (
    r"vision|visual|image|audio|speech|(?<!lm_)encoder|projector|aligner|connector|vq|patch_embed|perceiver|qformer|"
    r"resampler|talker|token2wav|embed_tokens_extend|newline|view_sep|abstractor|gate_image"
)
INSIDE = r"(^|\.)(language_model|text_model|text_decoder|lm_head)(\.|$)"
SECONDS = 120  # for a class
SHORT = 6  # entries of a list that is kept as it is
CORRECTIONS = "correction|expert_bias"  # balance corrections of routers, which are buffers in some classes
NOT_COSTS = [
    "architectures",
    "bos_token_id",
    "chunk_size_feed_forward",
    "dtype",
    "eos_token_id",
    "id2label",
    "initializer_range",
    "label2id",
    "output_attentions",
    "output_hidden_states",
    "pad_token_id",
    "problem_type",
    "return_dict",
    "rms_norm_eps",
    "rope_parameters",
    "transformers_version",
    "use_cache",
]


def names() -> dict[str, list[Any]]:
    """Every class that writes text, with the mappings of transformers that hold it, those of whole models first."""
    from transformers.models.auto import modeling_auto as auto

    found: dict[str, list[Any]] = {}
    for mapping in MAPPINGS:
        for name in getattr(auto, f"MODEL_FOR_{mapping}_MAPPING_NAMES"):
            found.setdefault(name, []).append(getattr(auto, f"MODEL_FOR_{mapping}_MAPPING"))
    return found


def built(name: str, mappings: list[Any]) -> tuple[Any, dict[str, Any]]:
    """The class on the meta device, and its default config as it is written."""
    import torch
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    made = CONFIG_MAPPING[name](**COMPLETED.get(name, {}))
    config = json.loads(made.to_json_string(use_diff=False))
    whole = any(key.endswith("_config") and isinstance(value, dict) for key, value in config.items())
    ordered = mappings[::-1] if whole or config.get("is_encoder_decoder") else mappings
    chosen = next(mapping[type(made)] for mapping in ordered)
    with torch.device("meta"):
        model = (chosen[0] if isinstance(chosen, tuple) else chosen)(made)
    model.tie_weights()
    return model, config


def counted(model: Any, config: dict[str, Any]) -> tuple[int, int]:
    """Parameters of the language model, and balance corrections that are buffers of the class."""
    parts = [name for name, _ in model.named_parameters()]
    towers = any(isinstance(value, dict) and re.search(OUTSIDE, key) for key, value in config.items())
    marked = towers and any(re.search(INSIDE, name) and not name.startswith("lm_head") for name in parts)
    total = 0
    for name, tensor in model.named_parameters():
        beside = re.search(OUTSIDE, name) if towers or re.search("_extend|vision_", name) else None
        if marked and not re.search(INSIDE, name):
            beside = beside or re.match(".", name)
        if marked and re.search(INSIDE, name) and not re.search("vision|visual|audio", name):
            beside = None
        if name.startswith(("talker.", "token2wav.", "code2wav.")) or not beside:
            total += 0 if name.startswith(("talker.", "token2wav.", "code2wav.")) else tensor.numel()
    corrected = sum(tensor.numel() for name, tensor in model.named_buffers() if re.search(CORRECTIONS, name))
    return total, corrected


def grown(model: Any) -> int | None:
    """Elements of the cache that a token adds, None where the class does not say on the meta device."""
    import torch

    sizes = []
    for length in (8, 16):
        ids = torch.zeros((1, length), dtype=torch.long, device="meta")
        try:
            with torch.no_grad():
                layers = model(input_ids=ids, use_cache=True).past_key_values.layers
        except Exception:  # whatever a class does on a device without numbers
            return None
        kept = (getattr(layer, part, None) for layer in layers for part in ("keys", "values"))
        sizes.append(sum(tensor.numel() for tensor in kept if tensor is not None))
    return (sizes[1] - sizes[0]) // 8 or None


def packed(value: Any) -> Any:
    """A config with runs of equal entries of its lists, without towers and what else costs nothing."""
    if isinstance(value, dict):
        kept = {key: each for key, each in value.items() if key not in NOT_COSTS and each not in ({}, "")}
        return {
            key: packed(each) for key, each in kept.items() if not (isinstance(each, dict) and re.search(OUTSIDE, key))
        }
    if not isinstance(value, list) or len(value) < SHORT or any(isinstance(each, list | dict) for each in value):
        return value
    return {"*": [[each, len(list(run))] for each, run in groupby(value)]}


def judged(name: str, mappings: list[Any]) -> tuple[str, str, dict[str, Any]]:
    """How a class is read: exact, listed or not understood; why; and its facts."""
    signal.alarm(SECONDS)
    try:
        model, config = built(name, mappings)
        right, corrections = counted(model, config)
        cached = grown(model)
    except Exception as error:  # whatever a class does with its own default
        return "listed", f"transformers builds none by default ({type(error).__name__})", {}
    finally:
        signal.alarm(0)
    try:
        read = model_from_config(config, name=name, origin=name).value
    except RooflinekitError as error:
        return "not understood" if "not understood" in str(error) else "listed", str(error), {}
    ours = count_parameters(read).total
    if any(getattr(layer.mixer, "indexer", None) for layer in read.layers):
        cached = None  # index keys lie elsewhere in the class
    grows = cache_law(read.layers, Dtype.BF16).bytes_per_token / 2
    if ours in (right, right + corrections) and cached in (None, grows):
        facts = {"parameters": right, "corrections": corrections, "cache": cached, "config": packed(config)}
        return "exact", "", facts
    kind = "listed" if name in OTHERWISE else "not understood"
    return kind, OTHERWISE.get(name, f"{ours:,} read, {right:,} built; {grows}, {cached}"), {}


def late(_number: int, _frame: object) -> None:
    """End a class that takes longer than SECONDS."""
    raise TimeoutError


def main() -> None:
    """Walk the table and print the three numbers, with every class that is not read exactly."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("classes", nargs="*")
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    import torch
    import transformers

    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_default_dtype(torch.bfloat16)
    signal.signal(signal.SIGALRM, late)
    kinds: Counter[str] = Counter()
    found: dict[str, Any] = {}
    for name, mappings in sorted(names().items()):
        if asked.classes and name not in asked.classes:
            continue
        kind, told, found[name] = judged(name, mappings)
        kinds[kind] += 1
        print(f"{kind:15} {name:28} {told}", flush=True)
    print(", ".join(f"{kinds[kind]} {kind}" for kind in ("exact", "listed", "not understood")), f"of {len(found)}")
    if asked.write:
        kept = json.loads(FACTS.read_text(encoding="utf-8")) if FACTS.is_file() else {}
        facts = {name: row for name, row in sorted({**kept, **found}.items()) if row}
        rows = ",\n".join(
            f"{json.dumps(name)}: {json.dumps(row, separators=(',', ':'))}" for name, row in facts.items()
        )
        FACTS.write_text(f"{{\n{rows}\n}}\n", encoding="utf-8")
        print(f"{FACTS}: {math.ceil(FACTS.stat().st_size / 1024)} KiB")


if __name__ == "__main__":
    main()
