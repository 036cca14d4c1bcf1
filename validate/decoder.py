"""A decoder-only transformer built from any `Model`, with random weights: what the predictions are about, made real.

Matrices are modules under the names that `estimate` gives their kernels (`layers.0.mixer.qkv_proj`,
`layers.0.ffn.down_proj`, `lm_head`), and `core` is the attention itself: forward hooks on them see every shape.

Letters: B sequences, S new tokens, T keys, D residual width, H query heads, K KV heads, d and e widths of keys and
values, V vocabulary; MLA: R latent, r rotary width, n width without positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F  # noqa: N812 - the customary name
from torch import Tensor, nn

from rooflinekit.model.types.errors import ArchitectureError
from rooflinekit.model.types.model import Attention, DenseFFN, LatentAttention, Layer, MixtureOfExperts, Model, Norm
from rooflinekit.validate.attend import attend
from rooflinekit.validate.cache import Cache, ContiguousCache, Room, Streams
from rooflinekit.validate.feedforward import DenseBlock, ExpertBlock
from rooflinekit.validate.positions import Pattern, alibi_slopes, positions, rotate

__all__ = ["Block", "Core", "Decoder", "LatentMixer", "Normalise", "SelfAttention", "build", "refuse_unsupported"]


class Normalise(nn.Module):
    """RMSNorm or LayerNorm over the last `size` elements."""

    def __init__(self, kind: Norm, size: int) -> None:
        super().__init__()
        self.kind, self.size = kind, size
        self.weight = None if kind == "none" else nn.Parameter(torch.empty(size))
        self.bias = nn.Parameter(torch.empty(size)) if kind == "layernorm" else None

    def forward(self, x: Tensor) -> Tensor:
        """Same shape."""
        if self.kind == "rmsnorm":
            return F.rms_norm(x, (self.size,), self.weight, 1e-6)
        return x if self.kind == "none" else F.layer_norm(x, (self.size,), self.weight, self.bias, 1e-6)


class Core(nn.Module):
    """softmax(Q K^T) V, a module so that a hook sees the queries, and the keys that the cache returned."""

    def __init__(self, spec: Attention | None = None, alibi: bool = False) -> None:
        super().__init__()
        self.window, self.chunk = (spec.window, spec.chunk) if spec is not None else (None, None)
        self.sinks = nn.Parameter(torch.empty(spec.heads)) if spec is not None and spec.sinks else None
        self.alibi = alibi

    def forward(self, q: Tensor, k: Tensor, v: Tensor, scale: float | None = None) -> Tensor:
        """Queries q [B, H, S, d], keys k [B, K, T, d], values v [B, K, T, e] -> [B, H, S, e]."""
        slopes = alibi_slopes(q.shape[1], q.device) if self.alibi else None
        return attend(q, k, v, Pattern(self.window, self.chunk, slopes, self.sinks), scale)


class SelfAttention(nn.Module):
    """MHA, GQA or MQA, with whatever of windows, norms, biases, sinks and gates the model has."""

    def __init__(self, spec: Attention, D: int, alibi: bool = False) -> None:
        super().__init__()
        H, K, d, e = spec.heads, spec.kv_heads, spec.head_dim, spec.v_head_dim
        self.spec = spec
        self.widths = [H * d, H * d if spec.gated else 0, K * d, 0 if spec.keys_are_values else K * e]
        self.qkv_proj = nn.Linear(D, sum(self.widths), bias=spec.qkv_bias)
        self.q_norm = Normalise("rmsnorm", spec.q_norm) if spec.q_norm else None
        self.k_norm = Normalise("rmsnorm", spec.k_norm) if spec.k_norm else None
        self.core = Core(spec, alibi)
        self.o_proj = nn.Linear(H * e, D, bias=spec.o_bias)

    @property
    def streams(self) -> Streams:
        """What a token leaves in the cache."""
        return (self.spec.kv_heads, self.spec.head_dim), (self.spec.kv_heads, self.spec.v_head_dim)

    def forward(self, x: Tensor, where: Tensor, cache: Cache | None, past: int) -> Tensor:
        """[B, S, D] -> [B, S, D] at positions `where` [S]."""
        H, K, e = self.spec.heads, self.spec.kv_heads, self.spec.v_head_dim
        q, gate, k, v = self.qkv_proj(x).split(self.widths, dim=-1)
        v = k if self.spec.keys_are_values else v
        q, k = self._split(q, H, self.q_norm), self._split(k, K, self.k_norm)  # [B, heads, S, d]
        v = v.unflatten(-1, (K, e)).transpose(1, 2)  # [B, K, S, e]
        if self.spec.rotary:
            q, k = rotate(q, where), rotate(k, where)
        if cache is not None:
            k, v = cache.append(past, k, v)
        out = self.core(q, k, v).transpose(1, 2).flatten(2)  # [B, S, H·e]
        mixed: Tensor = self.o_proj(out * gate.sigmoid() if self.spec.gated else out)
        return mixed

    def _split(self, x: Tensor, heads: int, norm: Normalise | None) -> Tensor:
        """Cut into heads [B, heads, S, d]; the norm has weights for one head, or for all of them in a row."""
        if norm is not None:
            x = norm(x.unflatten(-1, (-1, norm.size))).flatten(-2)
        split: Tensor = x.unflatten(-1, (heads, self.spec.head_dim))
        return split.transpose(1, 2)


class LatentMixer(nn.Module):
    """MLA (arXiv:2405.04434, section 2.1): keys and values are up-projected for a prompt, absorbed for one token."""

    def __init__(self, spec: LatentAttention, D: int) -> None:
        super().__init__()
        H, R, r = spec.heads, spec.kv_rank, spec.rope_dim
        self.spec = spec
        if spec.q_rank is None:
            self.q_proj = nn.Linear(D, H * spec.qk_dim, bias=False)
            self.kv_a_proj = nn.Linear(D, R + r, bias=False)
        else:
            self.qkv_a_proj = nn.Linear(D, spec.q_rank + R + r, bias=False)
            self.q_a_norm = Normalise("rmsnorm", spec.q_rank)
            self.q_b_proj = nn.Linear(spec.q_rank, H * spec.qk_dim, bias=False)
        self.kv_a_norm = Normalise("rmsnorm", R)
        self.kv_b_proj = nn.Linear(R, H * (spec.nope_dim + spec.v_dim), bias=False)
        self.core = Core()
        self.o_proj = nn.Linear(H * spec.v_dim, D, bias=False)

    @property
    def streams(self) -> Streams:
        """One latent for all heads."""
        return ((1, self.spec.latent_dim),)

    def forward(self, x: Tensor, where: Tensor, cache: Cache | None, past: int) -> Tensor:
        """[B, S, D] -> [B, S, D] at positions `where` [S]."""
        q, latent, k_rope = self._down(x)
        q = q.unflatten(-1, (self.spec.heads, self.spec.qk_dim)).transpose(1, 2)  # [B, H, S, n + r]
        q_nope, q_rope = q.split([self.spec.nope_dim, self.spec.rope_dim], dim=-1)
        q = torch.cat([q_nope, rotate(q_rope, where)], dim=-1)
        kept = torch.cat([self.kv_a_norm(latent), rotate(k_rope, where)], dim=-1)[:, None]  # [B, 1, S, R + r]
        if cache is not None:
            (kept,) = cache.append(past, kept)
        form = self.absorbed if x.shape[1] == 1 else self.unabsorbed
        mixed: Tensor = self.o_proj(form(q, kept).transpose(1, 2).flatten(2))
        return mixed

    def _down(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [B, S, H·(n + r)], latent [B, S, R] and rotary part of the keys [B, S, r]."""
        R, r = self.spec.kv_rank, self.spec.rope_dim
        if self.spec.q_rank is None:
            latent, k_rope = self.kv_a_proj(x).split([R, r], dim=-1)
            return self.q_proj(x), latent, k_rope
        q_low, latent, k_rope = self.qkv_a_proj(x).split([self.spec.q_rank, R, r], dim=-1)
        return self.q_b_proj(self.q_a_norm(q_low)), latent, k_rope

    def _up(self) -> tuple[Tensor, Tensor]:
        """The two halves of the up-projection, a matrix a head: keys [H, n, R] and values [H, e, R]."""
        n, e = self.spec.nope_dim, self.spec.v_dim
        to_k, to_v = self.kv_b_proj.weight.view(self.spec.heads, n + e, self.spec.kv_rank).split([n, e], dim=1)
        return to_k, to_v

    def unabsorbed(self, q: Tensor, kept: Tensor) -> Tensor:
        """Every key and value spelt out: q [B, H, S, n + r], kept [B, 1, T, R + r] -> [B, H, S, e]."""
        spec = self.spec
        latent, k_rope = kept.split([spec.kv_rank, spec.rope_dim], dim=-1)
        up = self.kv_b_proj(latent[:, 0]).unflatten(-1, (spec.heads, -1)).transpose(1, 2)  # [B, H, T, n + e]
        k_nope, v = up.split([spec.nope_dim, spec.v_dim], dim=-1)
        k = torch.cat([k_nope, k_rope.expand(-1, spec.heads, -1, -1)], dim=-1)
        out: Tensor = self.core(q, k, v)
        return out

    def absorbed(self, q: Tensor, kept: Tensor) -> Tensor:
        """The same in the latent space: the up-projection moves to the queries and to the output, cached keys stay."""
        to_k, to_v = self._up()
        q_nope, q_rope = q.split([self.spec.nope_dim, self.spec.rope_dim], dim=-1)
        q = torch.cat([q_nope @ to_k, q_rope], dim=-1)  # [B, H, S, R + r]
        out: Tensor = self.core(q, kept, kept[..., : self.spec.kv_rank], self.spec.qk_dim**-0.5)  # [B, H, S, R]
        return out @ to_v.mT


class Block(nn.Module):
    """One layer: norms, mixer and feed-forward block around the residual stream."""

    def __init__(self, layer: Layer, D: int, alibi: bool = False) -> None:
        super().__init__()
        self.layer = layer
        self.norms = nn.ModuleList(Normalise(layer.norm, D) for _ in range(layer.norms))
        self.mixer, self.ffn = _mixer(layer, D, alibi), _ffn(layer, D)

    @property
    def streams(self) -> Streams:
        """What a token leaves in this layer's cache."""
        return () if self.mixer is None else self.mixer.streams

    def forward(self, x: Tensor, where: Tensor, cache: Cache | None, past: int) -> Tensor:
        """[B, S, D] -> [B, S, D]; with four norms, the second and fourth follow what the first and third precede."""
        first, last = self.norms[0], self.norms[-1]
        mixed = None if self.mixer is None else self.mixer(first(x), where, cache, past)
        if self.layer.parallel and mixed is not None and self.ffn is not None:
            both: Tensor = x + mixed + self.ffn(last(x))
            return both
        around = len(self.norms) == 4
        if mixed is not None:
            x = x + (self.norms[1](mixed) if around else mixed)
        if self.ffn is not None:
            out = self.ffn(self.norms[2 if around else -1](x))
            x = x + (last(out) if around else out)
        return x


def _mixer(layer: Layer, D: int, alibi: bool) -> SelfAttention | LatentMixer | None:
    match layer.mixer:
        case Attention() as spec:
            return SelfAttention(spec, D, alibi)
        case LatentAttention() as spec:
            return LatentMixer(spec, D)
    return None


def _ffn(layer: Layer, D: int) -> DenseBlock | ExpertBlock | None:
    match layer.ffn:
        case DenseFFN() as spec:
            return DenseBlock(spec, D)
        case MixtureOfExperts() as spec:
            return ExpertBlock(spec, D)
    return None


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
        self.embedding_norm = Normalise(model.final_norm, D) if model.embedding_norm else None
        self.layers = nn.ModuleList(Block(layer, D, _alibi(model)) for layer in model.layers)
        self.final_norm = Normalise(model.final_norm, D)
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
        logits: Tensor = self.lm_head(x if self.head_proj is None else self.head_proj(x))
        return logits

    def caches(self, room: Room, kind: Callable[[Streams, Room], Cache] = ContiguousCache) -> list[Cache]:
        """An empty cache for every layer; a layer without attention leaves nothing in it."""
        return [kind(layer.streams, room) for layer in self.layers]


def refuse_unsupported(model: Model) -> None:
    """Raise ArchitectureError, by name, for a mixer that is costed but not built here."""
    for layer in model.layer_counts:
        if layer.mixer is not None and not isinstance(layer.mixer, (Attention, LatentAttention)):
            raise ArchitectureError(
                f"{model.name}: {layer.mixer.kind} layers are predicted but not run; softmax attention and MLA are"
            )
        if isinstance(layer.mixer, LatentAttention) and layer.mixer.indexer is not None:
            raise ArchitectureError(f"{model.name}: sparse attention with an indexer is predicted but not run")


def _alibi(model: Model) -> bool:
    """Whether nothing but ALiBi can tell the model where a token stands: no rotary layer and no table of positions."""
    mixers = {layer.mixer for layer in model.layers if layer.mixer is not None}
    return not model.position_rows and all(isinstance(mixer, Attention) and not mixer.rotary for mixer in mixers)


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
