"""Every shape of the walk is the shape of a real tensor: the harness's decoder runs, and hooks look."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra `gpu` (torch)")

import torch
from torch import Tensor, nn

from rooflinekit.explanation.walk.front import walk
from rooflinekit.explanation.walk.prompts import Prompts
from rooflinekit.explanation.walk.result import Phase, Walk, WalkSection
from rooflinekit.model.step import make_plan
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.hardware import System
from rooflinekit.model.types.model import Attention, DenseFFN, LatentAttention, MixtureOfExperts, Model
from rooflinekit.specs import load_accelerator
from rooflinekit.validate import feedforward
from rooflinekit.validate.attention import Pattern, Room, attend
from rooflinekit.validate.attention_kernels import packed
from rooflinekit.validate.checks_model import TINY, tiny
from rooflinekit.validate.decoder import Decoder, DecoderBlock, LatentMixer, build

CPU = torch.device("cpu")
SYSTEM = System.of(load_accelerator("h100-sxm").value)
B, S, P = 2, 11, 4  # sequences, prompt, of which cached
GQA = Attention(8, 2, 16, 16)
MODELS = (
    *TINY,
    tiny("plain FFN", GQA, DenseFFN(96, gated=False, bias=True)),
    tiny("values narrower than keys", Attention(4, 2, 16, 8, o_bias=True)),
    tiny("keys are values", Attention(4, 2, 16, 16, keys_are_values=True)),
    tiny("MLA without a queries' latent", LatentAttention(4, None, 24, 16, 8, 12)),
    tiny("plain experts with biases", GQA, MixtureOfExperts(8, 3, 48, gated=False, bias=True, router_bias=True)),
    tiny("experts in a latent", GQA, MixtureOfExperts(8, 2, 48, latent=32, shared_width=32, shared_gate=True)),
    tiny("parallel, two norms", GQA, parallel=True),
    replace(tiny("narrow embedding", GQA), embedding_dim=32, embedding_norm=True, lm_head_bias=True),
)
Shapes = dict[tuple[str, str], list[tuple[int, ...]]]


@dataclass
class Seen:
    """What the hooks of one forward pass saw, by module."""

    inputs: dict[str, tuple[Tensor, ...]]
    outputs: dict[str, Tensor]
    grouped: list[tuple[Tensor, Tensor, Tensor]]  #: rows, weights and result of each grouped product


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def watched(decoder: Decoder, tokens: Tensor, patch: pytest.MonkeyPatch, **how: Any) -> Seen:
    """Run, and keep what goes into and comes out of every module."""
    seen, plain = Seen({}, {}, []), feedforward.grouped_matmul
    handles = []
    for name, module in decoder.named_modules():

        def look(module: nn.Module, inputs: Any, output: Any, name: str = name) -> None:
            seen.inputs[name], seen.outputs[name] = inputs, output

        handles.append(module.register_forward_hook(look))  # fmt: skip

    def grouped(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
        out = plain(x, weight, ends)
        seen.grouped.append((x, weight, out))
        return out

    with patch.context() as inner:
        inner.setattr(feedforward, "grouped_matmul", grouped)
        decoder(tokens, **how)
    for handle in handles:
        handle.remove()
    return seen


def by_token(x: Tensor) -> tuple[int, ...]:
    """[B, H, S, d] as the walk has it: [B, S, H, d]."""
    return tuple(x.transpose(1, 2).shape)


class Reality:
    """The shapes of a layer's tensors by the walk's names, each a list in the order of the forward pass."""

    def __init__(self, decoder: Decoder, seen: Seen, layer: int, cache: Any, keys: int) -> None:
        self.block, self.seen, self.at = decoder.layers[layer], seen, f"layers.{layer}"
        self.cache, self.keys, self.found = cache[layer], keys, {}
        assert isinstance(self.block, DecoderBlock)
        before = sum(isinstance(other.ffn, MixtureOfExperts) for other in decoder.model.layers[:layer])
        self.grouped = seen.grouped[2 * before : 2 * before + 2]

    def out(self, name: str) -> Tensor:
        return self.seen.outputs[f"{self.at}.{name}"]

    def into(self, name: str) -> tuple[Tensor, ...]:
        return self.seen.inputs[f"{self.at}.{name}"]

    def weights(self, name: str) -> list[tuple[int, ...]]:
        module = self.block.get_submodule(name)
        return [tuple(weight.shape) for weight in (module.weight, module.bias) if weight is not None]

    def attention(self) -> Shapes:
        spec, (q, k, v) = self.block.mixer.spec, self.into("mixer.core")
        decode = q.shape[2] == 1
        first = Pattern(spec.window, spec.chunk).first_key(k.shape[2] - 1) if decode else 0
        groups = q.shape[1] // k.shape[1]
        scores = q @ k[:, :, first:].repeat_interleave(groups, dim=1).mT
        heads, value = (by_token(q),), by_token(self.out("mixer.core"))
        new_k, new_v = ((*x.shape[:2], q.shape[2], x.shape[3]) for x in (k, v))
        new_k, new_v = ((b, t, h, w) for b, h, t, w in (new_k, new_v))
        shapes: Shapes = {
            ("QKV projection", "qkv"): [tuple(self.out("mixer.qkv_proj").shape)],
            ("split heads", "Q"): [*heads], ("split heads", "K"): [new_k], ("split heads", "V"): [new_v],
            ("norm of Q and K", "Q"): [*heads], ("norm of Q and K", "K"): [new_k],
            ("rotary positions", "Q"): [*heads], ("rotary positions", "K"): [new_k],
            ("append to the cache", "K cache"): [by_token(self.cache.buffers[0][:, :, : self.keys])],
            ("append to the cache", "V cache"): [by_token(self.cache.buffers[1][:, :, : self.keys])],
            ("scores", "scores"): [tuple(scores.shape)], ("causal mask", "scores"): [tuple(scores.shape)],
            ("softmax", "weights"): [tuple(scores.softmax(-1).shape)],
            ("weighted sum", "heads"): [value],
            ("concatenate heads", "x"): [(*value[:2], value[2] * value[3])],
            ("output gate", "x"): [tuple(self.into("mixer.o_proj")[0].shape)],
            ("output projection", "x"): [tuple(self.out("mixer.o_proj").shape)],
            ("QKV projection", "weight"): self.weights("mixer.qkv_proj"),
            ("output projection", "weight"): self.weights("mixer.o_proj"),
        }  # fmt: skip
        if spec.gated:
            shapes["split heads", "Q, gate"] = [(*heads[0][:-1], 2 * spec.head_dim)]
        return shapes

    def latent(self) -> Shapes:
        mixer, spec = self.block.mixer, self.block.mixer.spec
        assert isinstance(mixer, LatentMixer)
        q, k, v = self.into("mixer.core")[:3]
        query = self.out("mixer.q_b_proj" if spec.q_rank else "mixer.q_proj")
        down = self.out("mixer.qkv_a_proj" if spec.q_rank else "mixer.kv_a_proj")
        nope, rope = query.unflatten(-1, (spec.heads, -1)).split([spec.nope_dim, spec.rope_dim], dim=-1)
        key_rope = tuple(down[..., -spec.rope_dim :].shape)
        kept = self.cache.buffers[0][:, 0, : self.keys]
        scores = q @ k.expand(-1, q.shape[1], -1, -1).mT
        heads = by_token(self.out("mixer.core"))
        shapes: Shapes = {
            ("latent projection", "latents"): [tuple(down.shape)],
            ("latent projection", "weight"): self.weights("mixer.qkv_a_proj" if spec.q_rank else "mixer.kv_a_proj"),
            ("split latents", "c_kv"): [tuple(self.out("mixer.kv_a_norm").shape)],
            ("split latents", "k rope"): [key_rope],
            ("norm of latents", "c_kv"): [tuple(self.out("mixer.kv_a_norm").shape)],
            ("query projection", "q"): [tuple(query.shape)],
            ("query projection", "weight"): self.weights("mixer.q_b_proj" if spec.q_rank else "mixer.q_proj"),
            ("split heads", "Q nope"): [tuple(nope.shape)], ("split heads", "Q rope"): [tuple(rope.shape)],
            ("rotary positions", "Q rope"): [tuple(rope.shape)], ("rotary positions", "k rope"): [key_rope],
            ("append to the cache", "cache"): [tuple(kept.shape)],
            ("scores", "scores"): [tuple(scores.shape)], ("causal mask", "scores"): [tuple(scores.shape)],
            ("softmax", "weights"): [tuple(scores.softmax(-1).shape)], ("weighted sum", "heads"): [heads],
            ("concatenate heads", "x"): [tuple(self.into("mixer.o_proj")[0].shape)],
            ("output projection", "x"): [tuple(self.out("mixer.o_proj").shape)],
            ("output projection", "weight"): self.weights("mixer.o_proj"),
        }  # fmt: skip
        if spec.q_rank:
            shapes["split latents", "c_q"] = shapes["norm of latents", "c_q"] = [
                tuple(self.out("mixer.q_a_norm").shape)
            ]
        if q.shape[2] > 1:
            up = self.out("mixer.kv_b_proj")
            return shapes | {
                ("K, V up-projection", "kv"): [tuple(up.shape)],
                ("K, V up-projection", "weight"): self.weights("mixer.kv_b_proj"),
                ("split heads", "K nope"): [by_token(k[..., : spec.nope_dim])],
                ("split heads", "V"): [by_token(v)],
            }  # fmt: skip
        to_k, to_v = mixer._up()
        return shapes | {
            ("absorb into Q", "Q latent"): [by_token(q[..., : spec.kv_rank])],
            ("absorb into Q", "weight"): [tuple(to_k.mT.shape)],
            ("join Q", "Q"): [by_token(q)],
            ("absorb from V", "heads"): [tuple(self.into("mixer.o_proj")[0].unflatten(-1, (spec.heads, -1)).shape)],
            ("absorb from V", "weight"): [tuple(to_v.shape)],
        }

    def dense(self, at: str = "ffn", of: str = "", down: str = "down projection") -> Shapes:
        gated = self.block.get_submodule(at).gated
        first, module = ("gate and up", "gate_up_proj") if gated else ("up projection", "up_proj")
        tensors = {
            (of + first, "gate, up" if gated else "up"): self.out(f"{at}.{module}"),
            (f"{of}activation", "inner"): self.into(f"{at}.down_proj")[0],
            (down, "x"): self.out(f"{at}.down_proj"),
        }
        weights = {
            (of + first, "weight"): self.weights(f"{at}.{module}"),
            (down, "weight"): self.weights(f"{at}.down_proj"),
        }
        return {key: [tuple(x.shape)] for key, x in tensors.items()} | weights

    def experts(self) -> Shapes:
        spec = self.block.ffn.spec
        (rows, inner, gate_up), (active, outer, result) = self.grouped
        _, shares, chosen = self.into("ffn.experts")
        first = ("expert gate and up", "gate, up") if spec.gated else ("expert up", "up")
        biases = self.block.ffn.experts
        held = [[tuple(w.shape) for w in (matrix.mT, bias) if w is not None]
                for matrix, bias in ((inner, biases.inner_bias), (outer, biases.outer_bias))]  # fmt: skip
        shapes: Shapes = {
            ("router", "router scores"): [tuple(self.out("ffn.router").shape)],
            ("router", "weight"): self.weights("ffn.router"),
            ("pick experts", "shares"): [tuple(shares.shape)], ("pick experts", "chosen"): [tuple(chosen.shape)],
            ("sort by expert", "rows"): [tuple(rows.shape)], first: [tuple(gate_up.shape)],
            (first[0], "weight"): held[0],
            ("expert activation", "inner"): [tuple(active.shape)],
            ("expert down", "rows"): [tuple(result.shape)], ("expert down", "weight"): held[1],
            ("combine", "x"): [tuple(self.out("ffn.experts").shape)],
        }  # fmt: skip
        if spec.latent:
            for name, module in (("down to the experts", "down"), ("up from the experts", "up")):
                shapes[name, "x"] = [tuple(self.out(f"ffn.expert_{module}_latent").shape)]
                shapes[name, "weight"] = self.weights(f"ffn.expert_{module}_latent")
        if spec.shared_gate:
            gate = tuple(self.out("ffn.shared_gate").shape)
            shapes["shared gate", "share"] = [gate]
            shapes["shared gate", "weight"] = self.weights("ffn.shared_gate")
            shapes["shared gated", "x"] = [tuple(self.out("ffn.shared").shape)]
        return shapes | (self.dense("ffn.shared", "shared ", "shared down") if spec.shared_width else {})

    def shapes(self) -> Shapes:
        block = self.block
        mixer = self.latent() if isinstance(block.mixer, LatentMixer) else self.attention()
        ffn = self.experts() if isinstance(block.layer.ffn, MixtureOfExperts) else self.dense()
        norms = [tuple(self.out(f"norms.{number}").shape) for number in range(len(block.norms))]
        return {**mixer, **ffn, ("norm", "x"): norms, ("residual", "stream"): self.streams()}

    def streams(self) -> list[tuple[int, ...]]:
        """What the norms read; behind blocks whose result is normalised, what the next norm reads, and the layer."""
        count = len(self.block.norms)
        if count == 4:
            return [tuple(self.into("norms.2")[0].shape), tuple(self.seen.outputs[self.at].shape)]
        read = (0,) if self.block.layer.parallel else range(count)
        return [tuple(self.into(f"norms.{number}")[0].shape) for number in read]


def check(section: WalkSection, real: Shapes) -> int:
    """Compare every tensor of the section; return how many. Experts see tokens in one row: [B, S, E] is [N, E]."""
    met: dict[tuple[str, str], int] = {}
    for stop in section.stops:
        for tensor in stop.outputs:
            key = (stop.name, tensor.name)
            shape = real[key][met.get(key, 0)]
            flat = len(shape) == len(tensor.shape) - 1
            assert shape == ((math.prod(tensor.shape[:2]), *tensor.shape[2:]) if flat else tensor.shape), key
            met[key] = met.get(key, 0) + 1
        if (held := [weight.shape for weight in stop.weights if weight.name != "scale"]) and stop.kernel not in _NORMS:
            assert held == real[stop.name, "weight"], stop.name
    return sum(met.values())


_NORMS = ("residual_norm", "final_norm", "embedding_norm", "latent_norm", "qk_norm")


def ends(decoder: Decoder, whole: Seen, last: Seen) -> Shapes:
    """Before and behind the layers; logits of the last token come from a pass that computes no others."""
    out = whole.outputs
    x = [tuple(out["embedding"].shape)]
    shapes: Shapes = {
        ("embedding", "x"): x, ("embedding", "weight"): [tuple(decoder.embedding.weight.shape)],
        ("residual", "stream"): [tuple(whole.inputs["final_norm"][0].shape)],
        ("final norm", "x"): [tuple(out["final_norm"].shape)],
        ("last token", "x"): [tuple(last.outputs["final_norm"][:, 0].shape)],
        ("LM head", "logits"): [tuple(last.outputs["lm_head"][:, 0].shape)],
        ("sampling", "token"): [tuple(last.outputs["lm_head"][:, 0].argmax(-1).shape)],
    }  # fmt: skip
    modules = {"positions": "positions", "embedding_proj": "embedding projection", "embedding_norm": "embedding norm"}
    modules |= {"head_proj": "head projection", "lm_head": "LM head"}
    for module, name in modules.items():
        if module not in out:
            continue
        found = decoder.get_submodule(module)
        shapes[name, "weight"] = [tuple(w.shape) for w in (found.weight, getattr(found, "bias", None)) if w is not None]
        if module == "positions":  # [S, D], added to every sequence
            shapes[name, "x"] = [tuple((out["embedding"] + out[module]).shape)]
        elif module != "lm_head":
            source = last if module == "head_proj" else whole
            shape = tuple(source.outputs[module].shape)
            shapes[name, "x"] = [(shape[0], shape[-1])] if module == "head_proj" else [shape]
    return shapes


def walked(model: Model, tp: int = 1) -> Walk:
    return walk(make_plan(model, Deployment(tp=tp), SYSTEM, None), Prompts((S,), B, P))


def compare(model: Model, phase: Phase, patch: pytest.MonkeyPatch) -> int:
    """Run the real model through the phase, and compare all its tensors with the walk's."""
    decoder = build(model, CPU, torch.float32)
    cache = decoder.caches(Room(B, S + 1, torch.float32, CPU))
    random = torch.Generator().manual_seed(0)
    tokens = torch.randint(128, (B, S + 1), generator=random) % model.vocab
    decoder(tokens[:, :P], cache)
    start, end = (P, S) if phase.name == "prefill" else (S, S + 1)
    if phase.name == "decode":
        decoder(tokens[:, P:S], cache, P)
    whole, last = (
        watched(decoder, tokens[:, start:end], patch, cache=cache, past=start, last=final) for final in (False, True)
    )
    entry, *layers, exit_ = phase.sections
    shapes = ends(decoder, whole, last)
    count = check(entry, shapes) + check(exit_, shapes)
    for number, section in zip((0,) if len(layers) == 1 else range(len(layers)), layers, strict=True):
        count += check(section, Reality(decoder, whole, number, cache, end).shapes())
    return count


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("model", MODELS, ids=[model.name for model in MODELS])
def test_every_tensor_of_the_walk_is_real(model: Model, phase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """2 prompts of 11 tokens, 4 of them cached, then one token more: no tensor in the walk goes unseen."""
    found = next(step for step in walked(model).phases if step.name == phase)
    assert compare(model, found, monkeypatch) >= 18


def test_kinds_of_layers_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dense layer, then one with experts and a window of 8."""
    first, second = tiny("first", GQA).layers[0], TINY[8].layers[0]
    second = replace(second, mixer=replace(GQA, window=8))
    model = replace(tiny("both", GQA), layers=(first, second))
    for phase in walked(model).phases:
        assert [section.layers for section in phase.sections] == ["", "0", "1", ""]
        assert compare(model, phase, monkeypatch) > 40


def test_a_rank_of_two_has_the_shapes_of_half_a_model() -> None:
    """tp=2 cuts heads, FFN and experts; what a model with half of each computes is what one rank computes."""
    whole = tiny("whole", GQA, MixtureOfExperts(8, 2, 48, shared_width=32))
    half = tiny("half", Attention(4, 1, 16, 16), MixtureOfExperts(8, 2, 24, shared_width=16))
    for phase, alone in zip(walked(whole, tp=2).phases, walked(half).phases, strict=True):
        rank = [stop for stop in phase.sections[1].stops if stop.name != "all reduce"]
        for ours, theirs in zip(rank, alone.sections[1].stops, strict=True):
            assert [x.shape for x in (*ours.outputs, *ours.weights)] == [
                x.shape for x in (*theirs.outputs, *theirs.weights)
            ]


def test_a_group_of_experts_is_a_model_with_as_many() -> None:
    """ep=2 gives each rank half of the experts, whole ones; over tp=4 two ranks share each of them."""
    both = tiny("both", GQA, MixtureOfExperts(8, 2, 48, bias=True))
    for tp, width in ((2, 48), (4, 24)):
        half = build(tiny("half", GQA, MixtureOfExperts(4, 2, width, bias=True)), CPU, torch.float32)
        experts = half.layers[0].ffn.experts
        held = [tuple(weight.shape) for weight in (experts.inner.mT, experts.inner_bias,
                                                   experts.outer.mT, experts.outer_bias)]  # fmt: skip
        rank = walk(make_plan(both, Deployment(tp=tp, ep=2), SYSTEM, None), Prompts((S,)))
        stops = [
            stop for stop in rank.phases[0].sections[1].stops if stop.name in ("expert gate and up", "expert down")
        ]
        assert [weight.shape for stop in stops for weight in stop.weights] == held


def test_packed_shapes_are_those_of_varlen_attention() -> None:
    """Prompts of 6, 3 and 9 tokens in one tensor, with cu_seqlens: shapes as in the walk, results as one by one."""
    found = walk(make_plan(tiny("packed", GQA), Deployment(), SYSTEM, None), Prompts((6, 3, 9)))
    stops = {stop.name: stop for stop in found.phases[0].sections[1].stops}
    random = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(tensor.shape, generator=random) for tensor in stops["split heads"].outputs)
    offsets = found.phases[0].cu_seqlens_q
    out = packed(q, k, v, tuple(end - first for first, end in pairwise(offsets)))
    assert tuple(out.shape) == stops["weighted sum"].outputs[0].shape
    cells = 0
    for first, end in pairwise(offsets):
        one = [x[first:end].transpose(0, 1)[None] for x in (q, k, v)]
        assert torch.allclose(attend(*one)[0].transpose(0, 1), out[first:end], atol=1e-5)
        cells += (one[0] @ one[1].repeat_interleave(4, dim=1).mT)[0, 0].numel()
    assert stops["scores"].outputs[0].shape == (8, cells)


def test_a_wrong_shape_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: a walk of another model does not pass for this one's."""
    for other in (Attention(8, 4, 16, 16), Attention(4, 2, 16, 16), Attention(8, 2, 16, 16, window=4)):
        phases = walked(tiny("other", other)).phases
        with pytest.raises(AssertionError):
            for phase in phases:
                compare(tiny("this", GQA), phase, monkeypatch)
