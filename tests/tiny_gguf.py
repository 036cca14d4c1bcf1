"""A small Llama with random weights as a GGUF file that llama.cpp loads: no download, no tokenizer but bytes."""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

_F32, _F16 = 0, 1  # type numbers of ggml.h
_U32, _FLOAT, _TEXT, _ARRAY, _I32 = 4, 6, 8, 9, 5  # of values
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6  # of tokens
_ALIGNED = 32
_MARKS = 3 + 256  # tokens that are no words


@dataclass(frozen=True)
class Sizes:
    """The sizes of a Llama; the first 259 tokens are three marks and all bytes."""

    hidden: int = 512
    width: int = 1536
    layers: int = 8
    heads: int = 8
    kv_heads: int = 4
    vocab: int = 4096
    context: int = 4096


def write_llama(path: Path, sizes: Sizes = Sizes(), seed: int = 0) -> None:
    """Write the model: matrices in fp16, norms in fp32."""
    _write(path, _facts(sizes), _tensors(sizes), random.Random(seed))


def _facts(s: Sizes) -> dict[str, tuple[int, object]]:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [_UNKNOWN, _CONTROL, _CONTROL, *[_BYTE] * 256]
    more = s.vocab - len(tokens)
    words = [f"\u2581w{number}" for number in range(more)]
    return {
        "general.architecture": (_TEXT, "llama"),
        "general.name": (_TEXT, "tiny-llama-random"),
        "llama.block_count": (_U32, s.layers),
        "llama.context_length": (_U32, s.context),
        "llama.embedding_length": (_U32, s.hidden),
        "llama.feed_forward_length": (_U32, s.width),
        "llama.attention.head_count": (_U32, s.heads),
        "llama.attention.head_count_kv": (_U32, s.kv_heads),
        "llama.attention.layer_norm_rms_epsilon": (_FLOAT, 1e-5),
        "llama.rope.dimension_count": (_U32, s.hidden // s.heads),
        "llama.vocab_size": (_U32, s.vocab),
        "tokenizer.ggml.model": (_TEXT, "llama"),
        "tokenizer.ggml.tokens": (_ARRAY, (_TEXT, tokens + words)),
        "tokenizer.ggml.scores": (_ARRAY, (_FLOAT, [0.0] * s.vocab)),
        "tokenizer.ggml.token_type": (_ARRAY, (_I32, kinds + [_NORMAL] * more)),
        "tokenizer.ggml.bos_token_id": (_U32, 1),
        "tokenizer.ggml.eos_token_id": (_U32, 2),
    }


def _tensors(s: Sizes) -> list[tuple[str, tuple[int, ...], int]]:
    """Names, sizes with the fastest first, and types."""
    keys = s.hidden // s.heads * s.kv_heads
    found: list[tuple[str, tuple[int, ...], int]] = [("token_embd.weight", (s.hidden, s.vocab), _F16)]
    for layer in range(s.layers):
        at = f"blk.{layer}."
        found += [
            (at + "attn_norm.weight", (s.hidden,), _F32), (at + "attn_q.weight", (s.hidden, s.hidden), _F16),
            (at + "attn_k.weight", (s.hidden, keys), _F16), (at + "attn_v.weight", (s.hidden, keys), _F16),
            (at + "attn_output.weight", (s.hidden, s.hidden), _F16), (at + "ffn_norm.weight", (s.hidden,), _F32),
            (at + "ffn_gate.weight", (s.hidden, s.width), _F16), (at + "ffn_up.weight", (s.hidden, s.width), _F16),
            (at + "ffn_down.weight", (s.width, s.hidden), _F16),
        ]  # fmt: skip
    return [*found, ("output_norm.weight", (s.hidden,), _F32), ("output.weight", (s.hidden, s.vocab), _F16)]


def _write(
    path: Path,
    facts: Mapping[str, tuple[int, object]],
    tensors: Sequence[tuple[str, tuple[int, ...], int]],
    draw: random.Random,
) -> None:
    head = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(facts))]
    head += [_text(key) + struct.pack("<I", kind) + _value(kind, value) for key, (kind, value) in facts.items()]
    offset = 0
    for name, shape, kind in tensors:
        head.append(_text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset))
        offset += _padded(prod(shape) * (4 if kind == _F32 else 2))
    header = b"".join(head)
    block = struct.pack("<4096e", *(draw.gauss(0.0, 0.02) for _ in range(4096)))
    with path.open("wb") as file:
        file.write(header.ljust(_padded(len(header)), b"\0"))
        for name, shape, kind in tensors:
            count = prod(shape)
            data = struct.pack("<f", 1.0) * count if kind == _F32 else (block * (count // 4096 + 1))[: 2 * count]
            if name == "output.weight":  # its first rows are zero, so that no answer is of bytes that are no text
                marks = 2 * shape[0] * _MARKS
                data = bytes(marks) + data[marks:]
            file.write(data.ljust(_padded(len(data)), b"\0"))


def _padded(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(kind: int, value: object) -> bytes:
    match kind, value:
        case _, str():
            return _text(value)
        case _, (int(of), list(items)):
            return struct.pack("<IQ", of, len(items)) + b"".join(_value(of, item) for item in items)
        case _:
            return struct.pack({_U32: "<I", _FLOAT: "<f", _I32: "<i"}[kind], value)
