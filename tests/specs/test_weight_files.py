"""GGUF and safetensors files by their headers: exact bytes, and a line for what cannot be trusted."""

from __future__ import annotations

import json
import os
import struct
import time

import pytest
from tiny_gguf import Sizes, write_llama

import rooflinekit as rk
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.errors import RooflinekitError
from rooflinekit.specs import load_model
from rooflinekit.specs.weight_files import read_gguf, safetensors_bytes

SIZES = Sizes(hidden=256, width=512, layers=2, heads=4, kv_heads=2, vocab=512, context=512)


@pytest.fixture(scope="module")
def gguf(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_llama(path, SIZES)
    return path


def elements(s):
    """Weights of a Llama, by hand."""
    keys = s.hidden // s.heads * s.kv_heads
    layer = 2 * s.hidden * s.hidden + 2 * s.hidden * keys + 3 * s.hidden * s.width
    return s.layers * layer + 2 * s.hidden * s.vocab, (2 * s.layers + 1) * s.hidden  # matrices, norms


def test_a_gguf_file_is_a_model_with_the_bytes_of_its_tensors(gguf):
    matrices, norms = elements(SIZES)
    assert read_gguf(gguf).bytes == 2 * matrices + 4 * norms
    loaded = load_model(gguf)
    assert loaded.warnings == ()
    found = rk.estimate(gguf, "rtx-4090", engine="llama.cpp", isl=64, osl=8)
    table = 2 * SIZES.hidden * SIZES.vocab  # embeddings stay with the host
    assert found.memory.weight_bytes == pytest.approx(2 * matrices + 4 * norms - table, rel=1e-12)
    assert (found.inputs["weights"], found.model) == ("fp16", "tiny-llama-random")


def test_layers_of_a_gguf_file_keep_formats_of_their_own(gguf, tmp_path):
    header, end = read_gguf(gguf), gguf.read_bytes()
    at = end.index(b"blk.1.ffn_down.weight") + len("blk.1.ffn_down.weight") + 4 + 2 * 8
    path = tmp_path / "mixed.gguf"
    path.write_bytes(end[:at] + struct.pack("<I", 8) + end[at + 4 :])  # q8_0: 34 bytes for 32 weights
    less = SIZES.hidden * SIZES.width * (2 - 34 / 32)
    assert read_gguf(path).bytes == header.bytes - less
    model = load_model(path).value
    assert [layer.down for layer in model.layer_formats] == [Dtype.FP16, Dtype.Q8_0]
    assert load_model(path).warnings == ()


def test_nothing_behind_the_header_is_read(gguf, tmp_path):
    """A sparse file of 2 TB with the same header loads at once."""
    path = tmp_path / "large.gguf"
    path.write_bytes(gguf.read_bytes()[:40_000])
    os.truncate(path, 2 * 10**12)
    assert load_model(path).value.depth == SIZES.layers


def text(of):
    return struct.pack("<Q", len(of)) + of.encode()


def part(path, header, facts, tensors):
    """One part of a split file: an empty header of facts, and the entries and bytes of some tensors."""
    kinds = {Dtype.FP16: 1, Dtype.FP32: 0}
    entries, at = b"", 0
    for tensor in tensors:
        entries += text(tensor.name) + struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
        entries += struct.pack("<IQ", kinds[tensor.dtype], at)
        at += -(-tensor.bytes // 32) * 32
    head = header + struct.pack("<QQ", len(tensors), facts[1]) + facts[0] + entries
    path.write_bytes(head + b"\0" * (-len(head) % 32 + at))


def test_the_parts_of_a_split_file_are_one_model(gguf, tmp_path):
    """As llama-gguf-split leaves them: facts in the first part, tensors in all."""
    whole, data = read_gguf(gguf), gguf.read_bytes()
    keys, first = struct.unpack("<Q", data[16:24])[0], data.index(text("token_embd.weight"))
    paths = [tmp_path / f"tiny-{number:05}-of-00002.gguf" for number in (1, 2)]
    for number, path in enumerate(paths):
        split = text("split.no") + struct.pack("<IH", 2, number) + text("split.count") + struct.pack("<IH", 2, 2)
        facts = (data[24:first] + split, keys + 2) if number == 0 else (split, 2)
        part(path, data[:8], facts, whole.tensors[:9] if number == 0 else whole.tensors[9:])
    assert load_model(paths[0]).value.layer_formats == load_model(gguf).value.layer_formats
    assert load_model(paths[0]).warnings == ()  # the bytes of both parts are those of the model
    with pytest.raises(RooflinekitError, match=r"is part 2 of 2; name the first, which ends in -00001-of-00002\.gguf"):
        load_model(paths[1])
    alone = tmp_path / "alone"
    alone.mkdir()
    paths[0].rename(alone / paths[0].name)
    with pytest.raises(RooflinekitError, match=r"has 2 parts, and tiny-00002-of-00002\.gguf is not beside it"):
        load_model(alone / paths[0].name)


def changed(data, what):
    """The file with one thing wrong, and what the message says."""
    kind = data.index(b"token_embd.weight") + len("token_embd.weight") + 4 + 2 * 8
    return {
        "magic": (b"GGML" + data[4:], "does not begin with GGUF"),
        "empty": (b"", "does not begin with GGUF"),
        "version": (data[:4] + struct.pack("<I", 9) + data[8:], "version 9; known: 2, 3"),
        "cut header": (data[:3000], "ends within its header"),
        "cut tensors": (data[: len(data) - 5000], "cut off: 5000 bytes"),
        "many keys": (data[:16] + struct.pack("<Q", 2**60) + data[24:], "are not believed"),
        "long text": (data[:24] + struct.pack("<Q", 2**50) + data[32:], "are not believed"),
        "tensor type": (data[:kind] + struct.pack("<I", 77) + data[kind + 4 :], "type 77, which is not known"),
        "list of lists": (data[:24] + text("a") + struct.pack("<IIQ", 9, 9, 1), "a list of lists"),
        "many texts": (data[:24] + text("a") + struct.pack("<IIQ", 9, 8, 2**28) + b"\0" * 64, "are not believed"),
        "long name": (data[:24] + struct.pack("<Q", 2**18) + b"\0" * 2**19, "bytes in a name; more than 65535"),
        "no tensors": (data[:8] + struct.pack("<Q", 0) + data[16:], "is no whole model"),
        "empty tensor": (data[: kind - 16] + struct.pack("<QQ", 0, 256) + data[kind:], "is empty"),
        "large tensor": (data[: kind - 16] + struct.pack("<QQ", 2**40, 2**40) + data[kind:], "share bytes"),
        "shared bytes": (data[: kind + 4] + struct.pack("<Q", 32) + data[kind + 12 :], "share bytes"),
        "same name": (data.replace(b"blk.1.attn_q.", b"blk.0.attn_q."), "more than once"),
        "same key": (data.replace(b"ggml.bos_token_id", b"ggml.eos_token_id"), "more than once"),
        "architecture": (
            data.replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0xlama", 1),
            "xlama.embedding_length is missing",
        ),
    }[what]


@pytest.mark.parametrize("what", [
    "magic", "empty", "version", "cut header", "cut tensors", "many keys", "long text", "tensor type", "architecture",
    "list of lists", "many texts", "long name", "no tensors", "empty tensor", "large tensor", "shared bytes",
    "same name", "same key",
])  # fmt: skip
def test_a_gguf_file_that_cannot_be_trusted_is_refused_in_a_line(gguf, tmp_path, what):
    path = tmp_path / "bad.gguf"
    data, said = changed(gguf.read_bytes(), what)
    path.write_bytes(data)
    with pytest.raises(RooflinekitError, match=said) as error:
        load_model(path)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)


def test_random_bytes_in_the_header_never_end_in_a_traceback(gguf, tmp_path):
    data, path = bytearray(gguf.read_bytes()), tmp_path / "random.gguf"
    for place in range(4, 9000, 61):
        old, data[place] = data[place], data[place] ^ 0x5A
        path.write_bytes(data)
        try:
            load_model(path)
        except RooflinekitError as error:
            assert "\n" not in str(error)
        data[place] = old


def safetensors(path, entries, size):
    head = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + b"\0" * size)
    return path


def test_safetensors_headers_give_exact_bytes(tmp_path):
    entries = {"__metadata__": {"format": "pt"}, "a": {"dtype": "BF16", "shape": [3, 5], "data_offsets": [0, 30]},
               "b": {"dtype": "F32", "shape": [2], "data_offsets": [30, 38]}}  # fmt: skip
    assert safetensors_bytes(safetensors(tmp_path / "a.safetensors", entries, 38)) == 38


@pytest.mark.parametrize(("entries", "size", "said"), [
    ({"a": {"dtype": "BF16", "shape": [3, 5], "data_offsets": [0, 30]}}, 10, "cut off: 20 bytes"),
    ({"a": {"dtype": "Q9", "shape": [3], "data_offsets": [0, 30]}}, 30, "type 'Q9', which is not known"),
    ({"a": {"dtype": "BF16", "shape": [3], "data_offsets": [0, 30]}}, 30, "has 30 bytes, not 6"),
    ({"a": {"dtype": "BF16"}}, 30, "lacks dtype, shape or data_offsets"),
    ({"a": {"dtype": "U8", "shape": [-4], "data_offsets": [4, 0]}}, 4, "in whole numbers"),
    ({"a": {"dtype": "U8", "shape": ["4"], "data_offsets": ["0", "4"]}}, 4, "in whole numbers"),
    ({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}, "b": {"dtype": "U8", "shape": [4],
      "data_offsets": [2, 6]}}, 6, "tensors 'a' and 'b' share bytes"),
    ({"__metadata__": {}}, 0, "holds no tensors"),
    ([1], 0, "no JSON object"),
])  # fmt: skip
def test_a_safetensors_file_that_cannot_be_trusted_is_refused_in_a_line(tmp_path, entries, size, said):
    with pytest.raises(RooflinekitError, match=said):
        safetensors_bytes(safetensors(tmp_path / "bad.safetensors", entries, size))


@pytest.mark.parametrize("shape", [[2**62] * 100_000, [1] * 100_000, [10**4000], [2**63]])
def test_a_shape_that_no_tensor_has_is_refused_at_once(tmp_path, shape):
    """Multiplied and printed, it took over a minute."""
    path = safetensors(tmp_path / "bad.safetensors", {"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, 4]}}, 4)
    begun = time.process_time()
    with pytest.raises(RooflinekitError, match=r"below 2\^63, of at most 64 dimensions"):
        safetensors_bytes(path)
    assert time.process_time() - begun < 1.0


def test_a_huge_or_cut_safetensors_header_is_refused(tmp_path):
    path = tmp_path / "bad.safetensors"
    for data, said in ((struct.pack("<Q", 2**40), "are not believed"), (struct.pack("<Q", 99), "ends within"),
                       (b"abc", "ends within"), (struct.pack("<Q", 3) + b"{a}", "no JSON"),
                       (struct.pack("<Q", 10**5) + b"[" * 10**5, "no JSON"),
                       (struct.pack("<Q", 15) + b'{"a":{},"a":{}}', "entry 'a' more than once")):  # fmt: skip
        path.write_bytes(data)
        with pytest.raises(RooflinekitError, match=said):
            safetensors_bytes(path)
    with pytest.raises(RooflinekitError, match=r"put its config\.json beside it"):
        load_model(path)


CONFIG = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
          "intermediate_size": 128, "vocab_size": 100, "torch_dtype": "bfloat16", "num_key_value_heads": 4,
          "max_position_embeddings": 64}  # fmt: skip


def test_a_folder_warns_where_its_files_are_lighter_than_its_config(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    entries = {"a": {"dtype": "U8", "shape": [30_000], "data_offsets": [0, 30_000]}}
    path = safetensors(tmp_path / "model.safetensors", entries, 30_000)
    assert any("model.safetensors says 0.0 GB: is it quantised?" in each for each in load_model(path).warnings)


def test_a_folder_without_a_file_of_its_index_is_refused(tmp_path):
    entries = {"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}
    safetensors(tmp_path / "model-00001-of-00002.safetensors", entries, 4)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(RooflinekitError, match=r"names model-00002-of-00002\.safetensors, which is not beside it"):
        load_model(tmp_path)
