"""A decoder-only transformer built from any `Model`, with random weights: what the predictions are about, made real.

Matrices are modules under the names that `estimate` gives their kernels (`layers.0.mixer.qkv_proj`,
`layers.0.ffn.down_proj`, `lm_head`), and `core` is the attention itself: forward hooks on them see every shape.

Letters: B sequences, S new tokens, T keys, D residual width, H query heads, K KV heads, d and e widths of keys and
values, V vocabulary; MLA: R latent, r rotary width, n width without positions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rooflinekit.model.types.errors import ArchitectureError
from rooflinekit.model.types.model import Attention, DenseFFN, LatentAttention, Layer, MixtureOfExperts, Model, Norm
from rooflinekit.validate.attention import FULL, Cache, Pattern, Room, Streams, attend, positions, rotate
from rooflinekit.validate.feedforward import DenseBlock, ExpertBlock
from rooflinekit.validate.timing import capture


def _normalise(kind: Norm, size: int) -> nn.Module:
    """RMSNorm or LayerNorm over the last `size` elements, or nothing."""
    if kind == "none":
        return nn.Identity()
    return nn.RMSNorm(size, eps=1e-6) if kind == "rmsnorm" else nn.LayerNorm(size, eps=1e-6, bias=kind == "layernorm")


class AttentionSoftmax(nn.Module):
    """softmax(Q K^T) V, a module so that a hook sees the queries, and the keys that the cache returned."""

    def __init__(self, pattern: Pattern = FULL) -> None:
        super().__init__()
        self.pattern = pattern

    def forward(self, q: Tensor, k: Tensor, v: Tensor, scale: float | None = None) -> Tensor:
        """Queries q [B, H, S, d], keys k [B, K, T, d], values v [B, K, T, e] -> [B, H, S, e]."""
        return attend(q, k, v, self.pattern, scale)


class SelfAttention(nn.Module):
    """MHA, GQA or MQA, with whatever of windows, norms, biases and gates the model has."""

    def __init__(self, spec: Attention, D: int) -> None:
        super().__init__()
        H, K, d, e = spec.heads, spec.kv_heads, spec.head_dim, spec.v_head_dim
        self.spec, self.streams = spec, ((K, d), (K, e))
        self.widths = [H * d, H * d if spec.gated else 0, K * d, 0 if spec.keys_are_values else K * e]
        self.qkv_proj = nn.Linear(D, sum(self.widths), bias=spec.qkv_bias)
        self.q_norm = _normalise("rmsnorm", spec.q_norm) if spec.q_norm else None
        self.k_norm = _normalise("rmsnorm", spec.k_norm) if spec.k_norm else None
        self.core = AttentionSoftmax(Pattern(spec.window, spec.chunk))
        self.o_proj = nn.Linear(H * e, D, bias=spec.o_bias)

    def forward(self, x: Tensor, where: Tensor, cache: Cache | None, past: int) -> Tensor:
        """[B, S, D] -> [B, S, D] at positions `where` [S]."""
        q, gate, k, v = self.qkv_proj(x).split(self.widths, dim=-1)
        v = k if self.spec.keys_are_values else v
        q, k = self._split(q, self.spec.heads, self.q_norm), self._split(k, self.spec.kv_heads, self.k_norm)
        v = self._split(v, self.spec.kv_heads)  # [B, K, S, e]
        if self.spec.rotary:
            q, k = rotate(q, where), rotate(k, where)
        if cache is not None:
            k, v = cache.append(past, k, v)
        out = self.core(q, k, v).transpose(1, 2).flatten(2)  # [B, S, H·e]
        return self.o_proj(out * gate.sigmoid() if self.spec.gated else out)

    def _split(self, x: Tensor, heads: int, norm: nn.Module | None = None) -> Tensor:
        """Cut into heads [B, heads, S, d]; the norm has weights for one head, or for all of them in a row."""
        if norm is not None:
            x = norm(x.unflatten(-1, (-1, *norm.normalized_shape))).flatten(-2)
        return x.unflatten(-1, (heads, -1)).transpose(1, 2)


class LatentMixer(nn.Module):
    """MLA (arXiv:2405.04434, section 2.1): keys and values are up-projected for a prompt, absorbed for one token."""

    def __init__(self, spec: LatentAttention, D: int) -> None:
        super().__init__()
        H, R, r = spec.heads, spec.kv_rank, spec.rope_dim
        linear = partial(nn.Linear, bias=False)
        self.spec, self.streams = spec, ((1, spec.latent_dim),)  # one latent for all heads
        if spec.q_rank is None:
            self.q_proj, self.kv_a_proj = linear(D, H * spec.qk_dim), linear(D, R + r)
        else:
            self.qkv_a_proj = linear(D, spec.q_rank + R + r)
            self.q_a_norm, self.q_b_proj = _normalise("rmsnorm", spec.q_rank), linear(spec.q_rank, H * spec.qk_dim)
        self.kv_a_norm = _normalise("rmsnorm", R)
        self.kv_b_proj = linear(R, H * (spec.nope_dim + spec.v_dim))
        self.core = AttentionSoftmax()
        self.o_proj = linear(H * spec.v_dim, D)

    def forward(self, x: Tensor, where: Tensor, cache: Cache | None, past: int) -> Tensor:
        """[B, S, D] -> [B, S, D] at positions `where` [S]."""
        spec = self.spec
        q, latent, k_rope = self._down(x)
        q_nope, q_rope = self._parts(q.unflatten(-1, (spec.heads, spec.qk_dim)).transpose(1, 2))  # [B, H, S, n or r]
        q = torch.cat([q_nope, rotate(q_rope, where)], dim=-1)
        kept = torch.cat([self.kv_a_norm(latent), rotate(k_rope, where)], dim=-1)[:, None]  # [B, 1, S, R + r]
        if cache is not None:
            (kept,) = cache.append(past, kept)
        form = self.absorbed if x.shape[1] == 1 else self.unabsorbed
        return self.o_proj(form(q, kept).transpose(1, 2).flatten(2))

    def _down(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [B, S, H·(n + r)], latent [B, S, R] and rotary part of the keys [B, S, r]."""
        widths = [self.spec.kv_rank, self.spec.rope_dim]
        if self.spec.q_rank is None:
            return (self.q_proj(x), *self.kv_a_proj(x).split(widths, dim=-1))
        q_low, latent, k_rope = self.qkv_a_proj(x).split([self.spec.q_rank, *widths], dim=-1)
        return self.q_b_proj(self.q_a_norm(q_low)), latent, k_rope

    def _parts(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """What of the queries carries no positions, and what does."""
        return q.split([self.spec.nope_dim, self.spec.rope_dim], dim=-1)

    def _up(self) -> tuple[Tensor, Tensor]:
        """The two halves of the up-projection, a matrix a head: keys [H, n, R] and values [H, e, R]."""
        n, e = self.spec.nope_dim, self.spec.v_dim
        return self.kv_b_proj.weight.view(self.spec.heads, n + e, self.spec.kv_rank).split([n, e], dim=1)

    def unabsorbed(self, q: Tensor, kept: Tensor) -> Tensor:
        """Every key and value spelt out: q [B, H, S, n + r], kept [B, 1, T, R + r] -> [B, H, S, e]."""
        spec = self.spec
        latent, k_rope = kept.split([spec.kv_rank, spec.rope_dim], dim=-1)
        up = self.kv_b_proj(latent[:, 0]).unflatten(-1, (spec.heads, -1)).transpose(1, 2)  # [B, H, T, n + e]
        k_nope, v = up.split([spec.nope_dim, spec.v_dim], dim=-1)
        return self.core(q, torch.cat([k_nope, k_rope.expand(-1, spec.heads, -1, -1)], dim=-1), v)

    def absorbed(self, q: Tensor, kept: Tensor) -> Tensor:
        """The same in the latent space: the up-projection moves to the queries and to the output, cached keys stay."""
        to_k, to_v = self._up()
        q_nope, q_rope = self._parts(q)
        q = torch.cat([q_nope @ to_k, q_rope], dim=-1)  # [B, H, S, R + r]
        out = self.core(q, kept, kept[..., : self.spec.kv_rank], self.spec.qk_dim**-0.5)  # [B, H, S, R]
        return out @ to_v.mT


class DecoderBlock(nn.Module):
    """One layer: norms, mixer and feed-forward block around the residual stream."""

    def __init__(self, layer: Layer, D: int) -> None:
        super().__init__()
        self.layer = layer
        self.norms = nn.ModuleList(_normalise(layer.norm, D) for _ in range(layer.norms))
        self.mixer, self.ffn = (None if of is None else _MODULES[type(of)](of, D) for of in (layer.mixer, layer.ffn))
        self.streams: Streams = () if self.mixer is None else self.mixer.streams

    def forward(self, x: Tensor, where: Tensor, cache: Cache | None, past: int) -> Tensor:
        """[B, S, D] -> [B, S, D]; with four norms, the second and fourth follow what the first and third precede."""
        first, last = self.norms[0], self.norms[-1]
        mixed = None if self.mixer is None else self.mixer(first(x), where, cache, past)
        if self.layer.parallel and mixed is not None and self.ffn is not None:
            return x + mixed + self.ffn(last(x))
        around = len(self.norms) == 4
        if mixed is not None:
            x = x + (self.norms[1](mixed) if around else mixed)
        if self.ffn is not None:
            out = self.ffn(self.norms[2 if around else -1](x))
            x = x + (last(out) if around else out)
        return x


_MODULES = {Attention: SelfAttention, LatentAttention: LatentMixer, DenseFFN: DenseBlock, MixtureOfExperts: ExpertBlock}


class Decoder(nn.Module):
    """Tokens to logits. `cache` holds one cache a layer; without it the whole sequence is computed anew."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        refuse_unsupported(model)
        D, W = model.hidden, model.embedding_dim or model.hidden
        self.model = model
        self.embedding = nn.Embedding(model.vocab, W)
        self.positions = nn.Embedding(model.position_rows, D) if model.position_rows else None
        self.embedding_proj = nn.Linear(W, D, bias=False) if W != D else None
        self.embedding_norm = _normalise(model.final_norm, D) if model.embedding_norm else None
        self.layers = nn.ModuleList(DecoderBlock(layer, D) for layer in model.layers)
        self.final_norm = _normalise(model.final_norm, D)
        self.head_proj = nn.Linear(D, W, bias=False) if W != D else None
        self.lm_head = nn.Linear(W, model.vocab, bias=model.lm_head_bias)
        if model.tied:
            self.lm_head.weight = self.embedding.weight

    def forward(
        self, tokens: Tensor, cache: Sequence[Cache] | None = None, past: int = 0, last: bool = False
    ) -> Tensor:
        """Logits [B, S, V] of tokens [B, S] that follow `past` cached ones; with `last`, of the last one: [B, 1, V]."""
        where = positions(past, tokens.shape[1], tokens.device)
        x = self.embedding(tokens)  # [B, S, W]
        x = x if self.embedding_proj is None else self.embedding_proj(x)
        x = x if self.positions is None else x + self.positions(where)
        x = x if self.embedding_norm is None else self.embedding_norm(x)
        for i, layer in enumerate(self.layers):
            x = layer(x, where, None if cache is None else cache[i], past)
        x = self.final_norm(x[:, -1:] if last else x)
        return self.lm_head(x if self.head_proj is None else self.head_proj(x))

    def caches(self, room: Room) -> list[Cache]:
        """An empty cache for every layer; a layer without attention leaves nothing in it."""
        return [Cache(layer.streams, room) for layer in self.layers]


# What the modules here read of each part of a layer; a part with anything else than the default elsewhere is refused.
_BUILT = {
    Layer: ("mixer", "ffn", "norm", "norms", "parallel"),
    Attention: (
        "heads", "kv_heads", "head_dim", "v_head_dim", "window", "chunk", "qkv_bias", "o_bias", "q_norm", "k_norm",
        "norm_over_heads", "gated", "keys_are_values", "rotary",
    ),
    LatentAttention: ("heads", "q_rank", "kv_rank", "nope_dim", "rope_dim", "v_dim"),
    DenseFFN: ("width", "gated", "bias"),
    MixtureOfExperts: (
        "experts", "top_k", "width", "gated", "bias", "shared_width", "shared_gate", "router_bias", "latent",
    ),
}  # fmt: skip
_UNBUILT = ("encoder", "token_rows", "extra_rows", "vectors", "outputs", "mean_streams")  # of a model


def refuse_unsupported(model: Model) -> None:
    """Raise ArchitectureError, by name, for what is costed but not built here."""
    for what in _unsupported(model):
        raise ArchitectureError(f"{model.name}: {what} predicted but not run")


def _unsupported(model: Model) -> Iterator[str]:
    """What modules here have no code for, the whole model's first."""
    yield from _beyond(model, (field.name for field in fields(model) if field.name not in _UNBUILT))
    layers = tuple(model.layer_counts)
    mixers = [layer.mixer for layer in layers if layer.mixer is not None]
    yield from (f"{mixer.kind} layers are" for mixer in mixers if type(mixer) not in _MODULES)
    if not model.position_rows and all(isinstance(mixer, Attention) and not mixer.rotary for mixer in mixers):
        yield "ALiBi is"  # else no token knew where it stands
    for layer in layers:
        yield from (
            text for part in (layer, layer.mixer, layer.ffn) if part for text in _beyond(part, _BUILT[type(part)])
        )
        if layer.norms not in {1, 2, 4}:
            yield f"Layer with norms={layer.norms} is"


def _beyond(part: Any, built: Iterable[str]) -> Iterator[str]:
    """Fields that are not among those built, and not at their defaults."""
    known = set(built)
    for field in fields(part):
        value = getattr(part, field.name)
        if field.name not in known and value != field.default:
            told = f"={value}" if isinstance(value, int) else ""
            yield f"{type(part).__name__} with {field.name}{told} is"


def build(
    model: Model, device: torch.device, dtype: torch.dtype, seed: int = 0, drawn_on: torch.device | None = None
) -> Decoder:
    """A decoder with random weights that keep activations near unit size at any depth.

    Numbers drawn on the CPU are the same for every device; those of large models are drawn where they stay.
    """
    with torch.device("meta"):
        decoder = Decoder(model).to(dtype)
    decoder.to_empty(device=device)
    generator = torch.Generator(drawn_on or device).manual_seed(seed)
    with torch.no_grad():
        for name, weight in decoder.named_parameters():
            _fill(name, weight, 2.0 * model.depth, generator)
    return decoder.requires_grad_(False).eval()


def _fill(name: str, weight: Tensor, branches: float, generator: torch.Generator) -> None:
    """Matrices N(0, 1/fan_in), of those that add to the stream 1/(fan_in·branches) (GPT-2, section 2.3).

    Norms are near 1 and biases near 0, but random, so that one left out or swapped shows.
    """
    drawn = torch.empty_like(weight, device=generator.device)
    if name.endswith("bias") or weight.dim() == 1:
        weight.copy_(drawn.normal_(0.0, 0.1, generator=generator))
        if name.endswith("norm.weight") or ".norms." in name:
            weight.add_(0.0 if name.endswith("bias") else 1.0)
        return
    adds = name.endswith(("o_proj.weight", "down_proj.weight", "experts.outer", "expert_up_latent.weight"))
    weight.copy_(drawn.normal_(0.0, (weight.shape[1] * (branches if adds else 1.0)) ** -0.5, generator=generator))


class GraphedStep:
    """The step that decodes one token a sequence behind `past` cached ones, as a CUDA graph; a replay is that step.

    Servers capture one graph a batch size and let kernels read the context from memory. Here the context is captured
    too, so attention reads exactly the keys there are. Raises UncapturableError.
    """

    def __init__(self, decoder: Decoder, tokens: Tensor, cache: Sequence[Cache], past: int) -> None:
        self.tokens = tokens.clone()  # [B, 1]; replays read from here

        def step(times: int = 1) -> None:
            for _ in range(times):
                self.logits = decoder(self.tokens, cache, past)  # [B, 1, V]

        self.graph = capture(step, partial(step, 3))  # libraries pick kernels and allocate workspaces in the first runs

    def replay(self) -> Tensor:
        """Run the step; the logits are overwritten by the next replay."""
        self.graph.replay()
        return self.logits
