"""Networks by the tensors of GGUF files: every architecture that gguf-py lists, its bytes to the tensor."""

# ruff: noqa: E501 - the tables have one case a line

from __future__ import annotations

import os
import random
import struct
from math import prod
from pathlib import Path

import pytest

from rooflinekit.model.parameter_count import stored_bytes
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.errors import ArchitectureError, RooflinekitError
from rooflinekit.specs import load_model
from rooflinekit.specs.weight_files import read_gguf

LISTED = {
    line.partition(": ")[0]: line.partition(": ")[2].split()
    for line in Path(__file__).with_name("gguf_architectures.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
}
H, F, HEADS, KV, D, V, E, FE, RANK = 256, 512, 8, 2, 32, 512, 8, 128, 64
INNER, STATE, TAPS, STEPS, GROUPS, ROPE, QRANK, LOW = 512, 16, 4, 32, 2, 16, 96, 32
F32, F16, Q8, Q4K, Q6K, IQ4NL, BF16, TQ1, NVFP4 = 0, 1, 8, 12, 14, 20, 30, 34, 40
BLOCKS = {
    F32: (1, 4),
    F16: (1, 2),
    Q8: (32, 34),
    Q4K: (256, 144),
    Q6K: (256, 210),
    IQ4NL: (32, 18),
    BF16: (1, 2),
    TQ1: (256, 54),
    NVFP4: (64, 36),
}  # GGML_QUANT_SIZES of gguf-py
FACTS = {
    "block_count": 4, "embedding_length": H, "context_length": 4096, "feed_forward_length": F,
    "attention.head_count": HEADS, "attention.head_count_kv": KV, "attention.key_length": D,
    "attention.value_length": D, "expert_count": E, "expert_used_count": 2, "expert_feed_forward_length": FE,
    "attention.kv_lora_rank": RANK, "rope.dimension_count": ROPE, "ssm.inner_size": INNER, "ssm.state_size": STATE,
    "ssm.conv_kernel": TAPS, "ssm.time_step_rank": STEPS, "ssm.group_count": GROUPS, "shortconv.l_cache": 3,
    "attention.indexer.head_count": 4, "attention.indexer.key_length": 32, "attention.indexer.top_k": 64,
    "kda.head_dim": D, "altup.num_inputs": 4, "embedding_length_per_layer_input": 32,
}  # fmt: skip
MIXED = INNER + 2 * GROUPS * STATE  # channels of Mamba-2's convolution
KEYS = GROUPS * STATE  # of the gated delta net
SHAPES = {  # rows and columns as PyTorch has them
    "attn_q": (HEADS * D, H), "attn_k": (KV * D, H), "attn_v": (KV * D, H), "attn_qkv": ((HEADS + 2 * KV) * D, H),
    "attn_output": (H, HEADS * D), "attn_q_norm": (D,), "attn_k_norm": (D,), "attn_sinks": (HEADS,),
    "attn_gate": (HEADS * D, H), "attn_q_a": (QRANK, H), "attn_q_b": (HEADS * D, QRANK), "attn_q_a_norm": (QRANK,),
    "attn_kv_a_mqa": (RANK + ROPE, H), "attn_kv_a_norm": (RANK,), "attn_kv_b": (HEADS * (2 * D - ROPE), RANK),
    "ffn_gate": (F, H), "ffn_up": (F, H), "ffn_down": (H, F), "ffn_gate_inp": (E, H), "exp_probs_b": (E,),
    "ffn_gate_exps": (E, FE, H), "ffn_up_exps": (E, FE, H), "ffn_down_exps": (E, H, FE),
    "ffn_gate_up_exps": (E, 2 * FE, H), "ffn_gate_shexp": (FE, H), "ffn_up_shexp": (FE, H), "ffn_down_shexp": (H, FE), "ffn_gate_inp_shexp": (H,),
    "ssm_in": (INNER + MIXED + STEPS, H), "ssm_conv1d": (MIXED, TAPS), "ssm_conv1d.bias": (MIXED,),
    "ssm_dt.bias": (STEPS,), "ssm_a": (STEPS, 1), "ssm_d": (STEPS, 1), "ssm_norm": (GROUPS, INNER // GROUPS),
    "ssm_out": (H, INNER), "shortconv.conv": (H, 3), "shortconv.in_proj": (3 * H, H), "shortconv.out_proj": (H, H),
    "indexer.attn_k": (32, H), "indexer.attn_q_b": (4 * 32, QRANK), "indexer.proj": (4, H), "indexer.k_norm": (32,),
    "indexer.k_norm.bias": (32,),
    "altup_correct_coef": (4, 4), "altup_correct_scale": (H,), "altup_predict_coef": (16, 4), "altup_router": (4, H),
    "altup_router_norm": (H,), "laurel_l": (LOW, H), "laurel_r": (H, LOW), "laurel_post_norm": (H,),
    "inp_gate": (32, H), "proj": (H, 32), "post_norm": (H,),
}  # fmt: skip
MAMBA = {
    "ssm_in": (2 * INNER, H), "ssm_conv1d": (INNER, TAPS), "ssm_conv1d.bias": (INNER,),
    "ssm_x": (STEPS + 2 * STATE, INNER), "ssm_dt": (INNER, STEPS), "ssm_dt.bias": (INNER,),
    "ssm_a": (INNER, STATE), "ssm_d": (INNER,), "ssm_dt_norm": (STEPS,), "ssm_b_norm": (STATE,), "ssm_c_norm": (STATE,),
    "ssm_out": (H, INNER),
}  # fmt: skip
DELTA = {
    "attn_qkv": (2 * KEYS + INNER, H), "attn_gate": (INNER, H), "ssm_conv1d": (2 * KEYS + INNER, TAPS),
    "ssm_dt.bias": (STEPS,), "ssm_a": (STEPS,), "ssm_norm": (INNER // STEPS,), "ssm_out": (H, INNER),
    "ssm_ba": (2 * STEPS, H), "ssm_beta": (STEPS, H), "ssm_alpha": (STEPS, H),
}  # fmt: skip
KDA = {
    "attn_q": (HEADS * D, H), "attn_k": (HEADS * D, H), "attn_v": (HEADS * D, H), "attn_output": (H, HEADS * D),
    **dict.fromkeys(("ssm_conv1d_q", "ssm_conv1d_k", "ssm_conv1d_v"), (HEADS * D, TAPS)),
    "ssm_f_a": (D, H), "ssm_f_b": (HEADS * D, D), "ssm_g_a": (D, H), "ssm_g_b": (HEADS * D, D), "ssm_beta": (HEADS, H),
    "ssm_a": (HEADS,), "ssm_dt.bias": (HEADS * D,), "ssm_norm": (D,),
}  # fmt: skip
LATENT = {"attn_q_a", "attn_q_b", "attn_q_a_norm", "attn_kv_a_mqa", "attn_kv_a_norm", "attn_kv_b", "attn_output"}
WIDE = {"ffn_gate_inp", "ssm_conv1d", "ssm_conv1d_q", "ssm_conv1d_k", "ssm_conv1d_v", "ssm_a", "ssm_d", "inp_gate", "proj",
        "laurel_l", "laurel_r", "altup_proj", "altup_unembd_proj", "per_layer_model_proj", "altup_correct_coef",
        "altup_predict_coef", "altup_router", "shortconv.conv", "ssm_norm"}  # fmt: skip


def text(of):
    return struct.pack("<Q", len(of)) + of.encode()


def value(of):
    if isinstance(of, str):
        return struct.pack("<I", 8) + text(of)
    if isinstance(of, list):
        kind, code = (7, "?") if isinstance(of[0], bool) else (5, "i")
        return struct.pack("<IIQ", 9, kind, len(of)) + struct.pack(f"<{len(of)}{code}", *of)
    return struct.pack("<If", 6, of) if isinstance(of, float) else struct.pack("<II", 4, of)


def write(path, arch, tensors, kinds=None, **changes):
    """A file of these facts and of tensors by name, rows first; matrices in Q8_0 unless `kinds` says otherwise."""
    facts = {f"{arch}.{key}": each for key, each in (FACTS | changes).items() if each is not None}
    facts = {"general.architecture": arch, "general.name": f"tiny {arch}"} | facts
    entries, at, total = b"", 0, 0
    for name, shape in tensors.items():
        part = name.removesuffix(".weight").rpartition("blk.")[2].partition(".")[2] or name.removesuffix(".weight")
        plain = len(shape) == 1 or part in WIDE or name.endswith(".bias")
        layer = int(name.split(".")[1]) if name.startswith("blk.") else 0
        kind = F32 if plain else kinds(part, layer) if callable(kinds) else (kinds or {}).get(part, Q8)
        size = prod(shape) // BLOCKS[kind][0] * BLOCKS[kind][1]
        entries += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), kind, at)
        at, total = at + -(-size // 32) * 32, total + size
    keys = b"".join(text(key) + value(each) for key, each in facts.items())
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(facts)) + keys + entries
    path.write_bytes(head)
    os.truncate(path, len(head) + -len(head) % 32 + at)  # sparse: no weight is written
    return total


STATES = {
    "ssm_f_a": KDA,
    "ssm_ba": DELTA,
    "ssm_beta": DELTA,
    "ssm_x": MAMBA,
    "shortconv.conv": SHAPES,
    "ssm_in": SHAPES,
}
BOTH = {"falcon-h1"}  # a state space beside attention in each layer


def mixer(arch, parts, number):
    """The parts of a layer's mixer: of a hybrid the recurrence in even layers; the first that gguf-py lists of several."""
    state = next((STATES[part] for part in STATES if part in parts), None)
    attends = bool({"attn_q", "attn_qkv"} & parts)
    if state is not None and (not number % 2 or not attends or arch in BOTH):
        recurrent = {part for part in parts if part.startswith(("ssm_", "shortconv"))}
        recurrent |= (set(state) - {"ssm_ba", "ssm_alpha", "ssm_beta"}) if state in (DELTA, KDA) else set()
        for part in sorted(recurrent):
            yield from ((name, state[name]) for name in (part, f"{part}.bias") if name in state)
        if arch not in BOTH:
            return
    if "attn_kv_a_mqa" in parts:
        latent = parts & LATENT if "attn_q_a" in parts else (parts & LATENT) | {"attn_q"}
        latent |= {part for part in parts if part.startswith("indexer.")}
        yield from ((part, SHAPES[part]) for part in sorted(latent))
        if "indexer.k_norm" in parts:
            yield "indexer.k_norm.bias", SHAPES["indexer.k_norm.bias"]
    elif attends:
        fused = "attn_qkv" in parts and ("attn_q" not in parts or state is MAMBA)
        own = ("attn_qkv",) if fused else ("attn_q", "attn_k", "attn_v")
        gate = {"attn_gate"} if state is not DELTA else set()
        for part in (*own, "attn_output", *sorted(parts & ({"attn_q_norm", "attn_k_norm", "attn_sinks"} | gate))):
            yield part, (2 * HEADS * D, H) if part == "attn_q" and state is DELTA else SHAPES[part]


def tensors_of(arch):
    listed = [name.removeprefix("*") for name in LISTED[arch] if name.startswith("*")]
    found = {"token_embd.weight": (V, H)}
    whole = {"output_norm": (H,), "output": (V, H), "token_embd_norm": (H,), "position_embd": (4096, H),
             "per_layer_token_embd": (V, 4 * 32), "per_layer_model_proj": (4 * 32, H), "per_layer_proj_norm": (32,),
             "altup_proj": (3, H, H), "altup_unembd_proj": (3, H, H)}  # fmt: skip
    found |= {f"{name}.weight": whole[name] for name in LISTED[arch] if name in whole}
    sparse, beside = "ffn_down_exps" in listed, arch in ("arctic", "gemma4")  # experts beside a dense block
    for number in range(4):
        dense = not sparse or number == 0
        parts = dict(mixer(arch, set(listed), number))
        for part in listed:
            routed = ("exps" in part or "shexp" in part or part == "ffn_gate_inp") and "norm" not in part
            taken = {"ffn_gate": dense or beside, "ffn_up": dense or beside, "ffn_down": dense or beside,
                     "ffn_gate_up_exps": not dense and "ffn_gate_exps" not in listed}  # fmt: skip
            own = part.startswith(("altup_", "laurel_")) or part in ("inp_gate", "proj", "post_norm")
            if taken.get(part, (routed or part == "exp_probs_b") and not dense) or own:
                parts[part] = SHAPES[part]
            elif "norm" in part and part not in SHAPES and not part.startswith(("ssm_", "nextn")):
                parts[part] = (H,)
        if "ffn_latent_down" in listed and not dense:
            parts |= {"ffn_latent_down": (64, H), "ffn_latent_up": (H, 64),
                      "ffn_up_exps": (E, FE, 64), "ffn_down_exps": (E, 64, FE)}  # fmt: skip
        for part, shape in parts.items():
            ending = "" if part.endswith(".bias") or part in ("ssm_a", "ssm_d") else ".weight"
            found[f"blk.{number}.{part}{'.bias' if part == 'exp_probs_b' else ending}"] = shape
    return found


REFUSED = {
    "clip", "wavtokenizer-dec", "bert", "modern-bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "jina-bert-v2",
    "jina-bert-v3", "eurobert", "gemma-embedding", "llama-embed", "t5", "t5encoder", "dream", "llada", "llada-moe", "rnd1",
    "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7", "cogvlm", "grovemoe",
}  # fmt: skip


@pytest.mark.parametrize("arch", [arch for arch in LISTED if arch not in REFUSED])
def test_every_architecture_of_gguf_py_has_the_bytes_of_its_file(arch, tmp_path):
    path = tmp_path / "tiny.gguf"
    total = write(path, arch, tensors_of(arch))
    assert read_gguf(path).bytes == total
    loaded = load_model(path)
    assert stored_bytes(loaded.value) == pytest.approx(total, rel=2e-3)
    assert loaded.warnings == ()


@pytest.mark.parametrize("arch", sorted(REFUSED))
def test_other_networks_are_refused_with_a_reason(arch, tmp_path):
    path = tmp_path / "tiny.gguf"
    write(path, arch, {"token_embd.weight": (V, H)})
    with pytest.raises(ArchitectureError, match=rf"architecture '{arch}' is not read from GGUF: \w+"):
        load_model(path)


def dense(h, width):
    return {"ffn_gate": (width, h), "ffn_up": (width, h), "ffn_down": (h, width)}


def sparse(h, experts, width, shared=0):
    parts = {"ffn_gate_inp": (experts, h), "ffn_gate_exps": (experts, width, h), "ffn_up_exps": (experts, width, h),
             "ffn_down_exps": (experts, h, width)}  # fmt: skip
    return parts | ({f"{name}_shexp": shape for name, shape in dense(h, shared).items()} if shared else {})


def attention(h, heads, kv, dim, queries=1):
    rows = {"attn_q": queries * heads * dim, "attn_k": kv * dim, "attn_v": kv * dim}
    return {part: (size, h) for part, size in rows.items()} | {"attn_output": (h, heads * dim)}


def deepseek_v3(layer):
    """As llama.cpp converts it since its latent attention is absorbed: one KV head of 576, split up-projections."""
    h, heads = 7168, 128
    return {"attn_q_a": (1536, h), "attn_q_a_norm": (1536,), "attn_q_b": (heads * 192, 1536), "attn_kv_a_mqa": (576, h),
            "attn_kv_a_norm": (512,), "attn_k_b": (heads, 512, 128), "attn_v_b": (heads, 128, 512),
            "attn_output": (h, heads * 128), "attn_norm": (h,), "ffn_norm": (h,),
            **(dense(h, 18432) if layer < 3 else sparse(h, 256, 2048, 2048) | {"exp_probs_b.bias": (256,)})}  # fmt: skip


def qwen3_next(layer):
    """Three layers of the delta rule, then one of gated attention."""
    h = 2048
    full = attention(h, 16, 2, 256, queries=2) | {"attn_q_norm": (256,), "attn_k_norm": (256,)}
    delta = {"attn_qkv": (8192, h), "attn_gate": (4096, h), "ssm_ba": (64, h), "ssm_conv1d": (8192, 4), "ssm_a": (32,),
             "ssm_dt.bias": (32,), "ssm_norm": (128,), "ssm_out": (h, 4096)}  # fmt: skip
    norms = {"attn_norm": (h,), "post_attention_norm": (h,), "ffn_gate_inp_shexp": (h,)}
    return (full if layer % 4 == 3 else delta) | norms | sparse(h, 512, 512, 512)


def glm_4_5_air(layer):
    """Its last block is for multi-token prediction, which llama.cpp skips."""
    h, names = 4096, ("attn_q", "attn_k", "attn_v")
    parts = attention(h, 96, 8, 128) | {"attn_norm": (h,), "post_attention_norm": (h,)}
    parts |= {f"{name}.bias": (parts[name][0],) for name in names}
    return parts | (dense(h, 10944) if layer < 1 else sparse(h, 128, 1408, 1408) | {"exp_probs_b.bias": (128,)})


def gemma_3(layer):
    h = 5376
    norms = dict.fromkeys(("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"), (h,))
    return attention(h, 32, 16, 128) | {"attn_q_norm": (128,), "attn_k_norm": (128,)} | norms | dense(h, 21504)


def scout(layer):
    h = 5120
    return attention(h, 40, 8, 128) | {"attn_norm": (h,), "ffn_norm": (h,)} | sparse(h, 16, 8192, 8192)


def heads(count, kv, dim, **more):
    return {"attention.head_count": count, "attention.head_count_kv": kv, "attention.key_length": dim} | more


CONVERTED = {
    "deepseek-v3": ("deepseek2", deepseek_v3, 61, heads(128, 1, 576, **{
        "attention.value_length": 512, "attention.key_length_mla": 192, "attention.value_length_mla": 128,
        "attention.kv_lora_rank": 512, "rope.dimension_count": 64, "expert_used_count": 8})),
    "qwen3-next-80b-a3b": ("qwen3next", qwen3_next, 48, heads(16, 2, 256, **{
        "ssm.inner_size": 4096, "ssm.state_size": 128, "ssm.group_count": 16, "ssm.time_step_rank": 32,
        "expert_used_count": 10})),
    "glm-4.5-air": ("glm4moe", glm_4_5_air, 47, heads(96, 8, 128, nextn_predict_layers=1, expert_used_count=8)),
    "gemma-3-27b": ("gemma3", gemma_3, 62, heads(32, 16, 128, **{"attention.sliding_window": 1024})),
    "llama-4-scout": ("llama4", scout, 48, heads(40, 8, 128, expert_used_count=1)),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVERTED)
def test_a_file_is_the_network_that_its_config_describes(name, tmp_path):
    arch, parts, blocks, facts = CONVERTED[name]
    known = load_model(name).value
    tensors = {"token_embd.weight": (known.vocab, known.hidden), "output_norm.weight": (known.hidden,)}
    if not known.tied:
        tensors["output.weight"] = (known.vocab, known.hidden)
    for layer in range(blocks):
        for part, shape in parts(layer).items():
            plain = part.endswith(".bias") or part == "ssm_a"
            tensors[f"blk.{layer}.{part}" + ("" if plain else ".weight")] = shape
    path = tmp_path / "whole.gguf"
    total = write(path, arch, tensors, embedding_length=known.hidden, block_count=blocks, **facts)
    loaded = load_model(path)
    beside = (blocks - known.depth) * total / blocks
    assert [layer for layer in loaded.value.layers if layer not in known.layers] == []
    assert loaded.value.layers == known.layers
    assert (loaded.value.vocab, loaded.value.tied, loaded.value.mtp_layers) == (
        known.vocab,
        known.tied,
        blocks - known.depth,
    )
    assert stored_bytes(loaded.value) == pytest.approx(total - beside, rel=3e-3 if beside else 1e-4)


def q4_k_m(depth):
    """llama.cpp's mix: values and down projections of half of the layers, and the head, in Q6_K."""

    def kind(part, layer):
        eighth = depth // 8
        more = layer < eighth or layer >= 7 * depth // 8 or (layer - eighth) % 3 == 2
        return Q6K if part == "output" or (part in ("attn_v", "ffn_down", "ffn_down_exps") and more) else Q4K

    return kind


def uniform(kind, table=None, head=None):
    return lambda part, _: {"token_embd": table or kind, "output": head or kind}.get(part, kind)


def qwen(layer, h=2048):
    return attention(h, 32, 4, 128) | dict.fromkeys(("attn_q_norm", "attn_k_norm"), (128,)) | sparse(h, 128, 768)


def llama(h, width, *, kv=8, bias=False, normed=False, heads=32):
    parts = attention(h, heads, kv, 128) | dense(h, width)
    parts |= {f"attn_{part}.bias": (parts[f"attn_{part}"][0],) for part in "qkv"} if bias else {}
    return parts | (dict.fromkeys(("attn_q_norm", "attn_k_norm"), (128,)) if normed else {})


def gemma(h, width, heads, kv, normed=True):
    norms = dict.fromkeys(("post_attention_norm", "post_ffw_norm"), (h,))
    norms |= dict.fromkeys(("attn_q_norm", "attn_k_norm"), (256,)) if normed else {}
    return attention(h, heads, kv, 256) | dense(h, width) | norms


FILES = [  # architecture, parts of a layer, layers, width, vocabulary, tied, KV heads, formats, bytes of all tensors
    ("llama", llama(4096, 14336), 32, 4096, 128256, False, (32, 8), q4_k_m(32), 4912898304 - 4 * 64),  # without rope_freqs
    ("llama", llama(4096, 14336), 32, 4096, 128256, False, (32, 8), uniform(IQ4NL, Q4K, Q6K), 4653375488),
    ("llama", llama(4096, 14336), 32, 4096, 128256, False, (32, 8), uniform(BF16), 16061054976),
    ("llama", llama(4096, 14336), 32, 4096, 128256, False, (32, 8), uniform(TQ1, Q4K, Q6K), 2199707648),
    ("qwen3moe", qwen(0), 48, 2048, 151936, False, (32, 4), q4_k_m(48), 18550716416),
    ("gemma3", gemma(2560, 10240, 8, 4), 34, 2560, 262144, True, (8, 4), q4_k_m(34), 2310203392),
    ("gemma2", gemma(3584, 14336, 16, 8, False), 42, 3584, 256000, True, (16, 8), q4_k_m(42), 5518456832),
    ("llama", llama(5120, 32768), 40, 5120, 131072, False, (32, 8), q4_k_m(40), 14326026240),
    ("qwen2", llama(3584, 18944, kv=4, bias=True, heads=28), 28, 3584, 152064, False, (28, 4), q4_k_m(28), 4677120000),
    ("qwen3", llama(4096, 12288, normed=True), 36, 4096, 151936, False, (32, 8), uniform(Q8), 8703561728),
    ("llama", attention(4096, 32, 8, 128) | sparse(4096, 8, 14336), 32, 4096, 32000, False, (32, 8), q4_k_m(32), 28263702528),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(FILES)))
def test_published_files_have_the_bytes_of_their_tensors(number, tmp_path):
    """The right bytes are sums over tensors by GGML_QUANT_SIZES of gguf-py, in the shapes of published models."""
    arch, parts, depth, h, vocab, tied, counts, kinds, right = FILES[number]
    tensors = {"token_embd.weight": (vocab, h), "output_norm.weight": (h,)} | (
        {} if tied else {"output.weight": (vocab, h)}
    )
    for layer in range(depth):
        own = parts | {"attn_norm": (h,), "ffn_norm": (h,)}
        tensors |= {f"blk.{layer}.{part}{'' if part.endswith('.bias') else '.weight'}": own[part] for part in own}
    path = tmp_path / "whole.gguf"
    facts = {"attention.head_count": counts[0], "attention.head_count_kv": counts[1], "expert_used_count": 2}
    assert write(path, arch, tensors, kinds, embedding_length=h, block_count=depth, **facts) == right
    assert stored_bytes(load_model(path).value) == pytest.approx(right, rel=1e-4)


def test_windows_follow_the_file_where_it_says_them(tmp_path):
    path = tmp_path / "tiny.gguf"
    said = {"attention.sliding_window": 512, "attention.sliding_window_pattern": [True, False, False, True]}
    write(path, "mimo2", tensors_of("mimo2"), **said)
    assert [layer.mixer.window for layer in load_model(path).value.layers] == [512, None, None, 512]
    write(path, "exaone4", tensors_of("exaone4"), **{"attention.sliding_window": 512})
    assert [layer.mixer.window for layer in load_model(path).value.layers] == [512, 512, 512, None]
    write(path, "dots1", tensors_of("dots1"), **{"attention.sliding_window": 512})
    loaded = load_model(path)
    assert {layer.mixer.window for layer in loaded.value.layers} == {None}
    assert loaded.warnings == ("which layers see a window of 512 tokens alone is not said: all see the whole context",)


def test_an_architecture_that_is_not_known_is_read_by_its_tensors(tmp_path):
    path = tmp_path / "tiny.gguf"
    tensors = tensors_of("qwen3moe")
    total = write(path, "brandnew", tensors)
    loaded = load_model(path)
    assert stored_bytes(loaded.value) == pytest.approx(total, rel=1e-6)
    assert loaded.warnings == ("architecture 'brandnew' is not known: read by its tensors",)
    write(path, "brandnew", tensors | {f"blk.{n}.memory_bank.weight": (4096, H) for n in range(4)})
    with pytest.raises(ArchitectureError, match=r"tensors memory_bank are not understood: .* give its config\.json"):
        load_model(path)


def test_formats_are_stored_layer_by_layer_in_their_own(tmp_path):
    path = tmp_path / "tiny.gguf"
    kinds = {"attn_v": F16, "ffn_down_exps": NVFP4, "ffn_gate_shexp": Q4K, "ffn_up_shexp": Q4K, "ffn_down_shexp": NVFP4}
    total = write(path, "dots1", tensors_of("dots1"), kinds)
    model = load_model(path).value
    assert stored_bytes(model) == pytest.approx(total, rel=1e-6)
    last = model.layer_formats[-1]
    assert (last.attention, last.value, last.down) == (Dtype.Q8_0, Dtype.FP16, Dtype.NVFP4)
    assert (last.experts, last.shared_experts, last.shared_down) == (Dtype.Q8_0, Dtype.Q4_K, Dtype.NVFP4)


@pytest.mark.parametrize(("changes", "said"), [
    ({"attention.head_count": 7}, "layer 0 of architecture 'llama' has attn_q of 256 rows for 7 heads"),
    ({"attention.head_count_kv": 3}, "attn_q of 256 rows for 8 heads of 21"),
    ({"block_count": 3}, "tensor 'blk.3.attn_q.weight' belongs to none of the 3 layers"),
    ({"embedding_length": 512}, "token_embd.weight is 256 wide, and llama.embedding_length 512"),
    ({"expert_used_count": 9}, "uses 9 of 8 experts"),
    ({"attention.head_count": "eight"}, "llama.attention.head_count 'eight' is no size"),
    ({"attention.head_count": None}, "llama.attention.head_count is missing"),
    ({"block_count": 2**31}, "llama.block_count 2147483648 of"),
])  # fmt: skip
def test_facts_that_contradict_the_tensors_are_refused_in_a_line(changes, said, tmp_path):
    path = tmp_path / "tiny.gguf"
    write(path, "llama", tensors_of("llama"), **changes)
    with pytest.raises(RooflinekitError, match=said) as error:
        load_model(path)
    assert "\n" not in str(error.value)


def test_broken_files_end_in_one_line(tmp_path):
    rng, path, read = random.Random(1), tmp_path / "tiny.gguf", 0
    known = [arch for arch in LISTED if arch not in REFUSED]
    odd = [0, 1, 3, 7, 2**31, None, [1, 2, 3, 4], [True, False], [0, 0, 0, 0], "x", 1.5]
    keys = [*FACTS, "attention.sliding_window", "attention.sliding_window_pattern", "nextn_predict_layers"]
    for _ in range(250):
        arch = rng.choice(known)
        tensors = tensors_of(arch)
        name = rng.choice(list(tensors))
        match rng.randrange(6):
            case 0:
                del tensors[name]
            case 1:
                tensors[name] = tuple(reversed(tensors[name]))
            case 2:
                tensors[name] = (32,)
        write(path, arch, tensors, **{rng.choice(keys): rng.choice(odd) for _ in range(rng.choice((0, 1, 2)))})
        try:
            read += stored_bytes(load_model(path).value) > 0
        except RooflinekitError as error:
            assert "\n" not in str(error)
    assert 100 < read < 230
