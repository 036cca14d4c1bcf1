"""Parameters and cached elements of a Model, counted from the papers' formulas: an independent check of the library."""

from __future__ import annotations

from dataclasses import replace

from rooflinekit.model.types.model import (
    Attention,
    CompressedAttention,
    CrossAttention,
    DenseFFN,
    GatedConvolution,
    GatedDeltaNet,
    LatentAttention,
    LightningAttention,
    Mamba,
    Mamba2,
    MixtureOfExperts,
    Model,
    Rwkv7,
)

NORM_VECTORS = {"rmsnorm": 1, "layernorm": 2, "layernorm_nobias": 1, "none": 0}


def mixer_weights(mixer, D):  # noqa: PLR0912, PLR0915 - one case for each kind of mixer
    match mixer:
        case Attention():
            H, K, d, dv = mixer.heads, mixer.kv_heads, mixer.head_dim, mixer.v_head_dim
            K = 0 if mixer.shared else K
            A, r = D * (1 + mixer.wide), mixer.adapters
            q, k, v, o = A * H * d, A * K * d, A * K * dv, H * dv * D + 3 * A * r + r * (H * d + K * d + K * dv)
            bias = mixer.qkv_bias * (H * d + K * d * (not mixer.unbiased_keys) + K * dv) + mixer.o_bias * D
            if mixer.keys_are_values:
                v, bias = 0, bias - mixer.qkv_bias * K * dv
            if R := mixer.q_rank:
                q = D * R + R + R * H * d
            i = mixer.indexer
            index = (D * (i.heads + 1) + 2) * i.head_dim if i else 0
            gates = q * mixer.gated + D * H * mixer.head_gated
            return q + k + v + o + gates + bias + mixer.q_norm + mixer.k_norm + mixer.sinks * H + index
        case CrossAttention():
            Q, K = mixer.heads * mixer.head_dim, mixer.kv_heads * mixer.head_dim
            return (
                2 * D * (Q + K)
                + mixer.qkv_bias * (Q + K * (2 - mixer.unbiased_keys))
                + mixer.o_bias * D
                + (2 * mixer.head_dim + 2) * mixer.normed  # two gates
            )
        case LatentAttention():
            H, c, r = mixer.heads, mixer.kv_rank, mixer.rope_dim
            qk = mixer.nope_dim + r
            q = D * H * qk if mixer.q_rank is None else mixer.q_rank * (D + 1 + H * qk)
            kv = D * (c + r) + c + c * H * (mixer.nope_dim + mixer.v_dim)
            total = q + kv + H * mixer.v_dim * D * (1 + mixer.gated) + D * H * mixer.head_gated
            if mixer.indexer and not mixer.indexer.shared:
                h, d = mixer.indexer.heads, mixer.indexer.head_dim
                total += mixer.q_rank * h * d + D * d + 2 * d + D * h
                total += (mixer.indexer.pool > 1) * (mixer.indexer.pool + D) * d
            return total
        case CompressedAttention():
            H, d, R = mixer.heads, mixer.head_dim, mixer.q_rank
            out = H * d * mixer.out_rank + mixer.out_groups * mixer.out_rank * D
            total = D * R + R + R * H * d + D * d + d + out + H
            width = 2 if mixer.indexer else 1
            i = mixer.indexer
            compressed = (d if mixer.ratio else 0) + (i.head_dim if i else 0)
            index = (R * i.head_dim + D) * i.heads if i else 0
            return total + index + ((2 * D + mixer.ratio) * width + 1) * compressed
        case GatedDeltaNet() if mixer.decay_rank:
            W, H, r = mixer.value_heads * mixer.value_dim, mixer.value_heads, mixer.decay_rank
            gate = (D + W) * mixer.gate_rank if mixer.gate_rank else D * W
            decay = D * W if mixer.whole_decay else r * (D + W)
            return 3 * D * W + 3 * W * mixer.conv_width + D * H + decay + H + W + gate + mixer.value_dim + W * D
        case GatedDeltaNet():
            keys, values = mixer.key_heads * mixer.key_dim, mixer.value_heads * mixer.value_dim
            project = D * (2 * keys + 2 * values + 2 * mixer.value_heads)
            return (
                project + mixer.conv_width * (2 * keys + values) + 2 * mixer.value_heads + mixer.value_dim + values * D
            )
        case Rwkv7():
            low = mixer.decay_rank + mixer.rate_rank + mixer.value_rank + mixer.gate_rank
            biases = 2 + (mixer.value_rank > 0)
            return 4 * D * D + 2 * D * low + biases * D + (6 + 2 + 1 + 2 + 1) * D
        case LightningAttention():
            inner = mixer.heads * mixer.head_dim
            return D * 3 * inner + D * inner + inner + inner * D
        case Mamba():
            E, N, R = mixer.inner, mixer.state, mixer.dt_rank
            conv = E * mixer.conv_width + mixer.conv_bias * E
            bias = mixer.proj_bias * (2 * E + D)
            norm = mixer.norm * (R + 2 * N)
            return D * 2 * E + conv + E * (R + 2 * N) + R * E + E + E * N + E + E * D + norm + bias
        case Mamba2():
            E, N, G, h = mixer.heads * mixer.head_dim, mixer.state, mixer.groups, mixer.heads
            channels = E + 2 * G * N
            conv = channels * (mixer.conv_width + mixer.conv_bias)
            bias = mixer.proj_bias * (E + channels + h + D)
            return D * (E + channels + h) + conv + 3 * h + mixer.norm * E + E * D + bias
        case GatedConvolution():
            C = mixer.channels
            return 4 * D * C + C * (mixer.conv_width + 4 * mixer.bias) + mixer.bias * D
        case None:
            return 0


def ffn_weights(ffn, D, active=False):
    match ffn:
        case DenseFFN():
            F = ffn.width
            bias = ffn.bias * ((1 + ffn.gated) * F + D)
            return (2 + ffn.gated) * D * F + bias + ffn.activation + ffn.adapters * (D + 2 * F)
        case MixtureOfExperts():
            E, F, S = ffn.experts, ffn.width, ffn.shared_width
            wide = ffn.latent or D
            one = (2 + ffn.gated) * wide * F + ffn.bias * ((1 + ffn.gated) * F + wide)
            around = D * E + ffn.router_bias * E + (2 * D * ffn.latent + ffn.latent_norm * wide if ffn.latent else 0)
            return (ffn.top_k if active else E) * one + around + (2 + ffn.gated) * D * S + ffn.shared_gate * D
        case None:
            return 0


def encoder_weights(encoder, D, vectors):
    """Convolutions with biases, positions, numbers for distances in encoder and decoder, and the last norm."""
    stem = sum((inputs + 1) * D for inputs, _ in encoder.stem) + encoder.positions * D
    return stem + 2 * encoder.buckets * encoder.layers[0].mixer.heads + vectors[encoder.layers[0].norm] * D


def parameters(model: Model, *, active=False):
    D, vectors = model.hidden, NORM_VECTORS
    total = model.extra_rows * D + model.vectors
    total += model.vocab * D * (1 if model.tied else 2) + model.position_rows * D + model.lm_head_bias * model.vocab
    encoder = model.encoder
    total += encoder_weights(encoder, D, vectors) if encoder else 0
    for layer in (*(encoder.layers if encoder else ()), *model.layers):
        total += (
            mixer_weights(layer.mixer, D) + ffn_weights(layer.ffn, D, active) + layer.norms * vectors[layer.norm] * D
        )
        if layer.repeated:  # all but small matrices of its own
            mixer, ffn = replace(layer.mixer, adapters=0), replace(layer.ffn, adapters=0)
            total -= mixer_weights(mixer, D) + ffn_weights(ffn, D) + layer.norms * vectors[layer.norm] * D
        total += layer.common * D * D + layer.vectors
        n, p, r = layer.streams, layer.token_width, layer.bypass
        total += 2 * D * p + D * (p > 0) + 2 * D * r + D * (r > 0) + layer.alternating * (n**3 + n**2 + (n + 2) * D)
        if layer.alternating:
            continue
        blocks = (layer.mixer is not None) + (layer.ffn is not None)
        mixed, scales = (2, 2) if layer.unmixed else (2 + n, 3)
        total += blocks * (mixed * n * (n * D + 1) + scales if n > 1 else 2 * D if layer.sources else 0)
    if layer.alternating:
        total += 2 * (n - 1) * D * D
    else:
        total += 0 if model.mean_streams else n * (n * D + 1) + 1 if n > 1 else 2 * D if layer.sources else 0
    total += (model.token_rows + D) * model.depth * p + p
    return total + (1 + model.embedding_norm) * vectors[model.final_norm] * D


def kv_elements_per_token(model: Model):
    total = 0
    for layer in model.layers:
        match layer.mixer:
            case Attention(shared=False) as a:
                total += a.kv_heads * (a.head_dim + a.v_head_dim) + (a.indexer.head_dim if a.indexer else 0)
            case CompressedAttention(ratio=ratio) as a if ratio:
                total += (a.head_dim + (a.indexer.head_dim if a.indexer else 0)) / ratio
            case LatentAttention() as a:
                index = a.indexer.head_dim / a.indexer.pool if a.indexer and not a.indexer.shared else 0
                total += a.kv_rank + a.rope_dim + index
    return total
