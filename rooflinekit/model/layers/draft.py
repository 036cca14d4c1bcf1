"""Drafts that live on the target model: its multi-token-prediction layer, EAGLE's layer, Medusa's heads.

Embedding and LM head of an MTP or EAGLE layer are the target's own, so they cost time but no memory; EAGLE-3 has a
smaller LM head of its own.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TypeGuard

from rooflinekit.model.kernels.elementwise import Elementwise, Sampling
from rooflinekit.model.kernels.gemm import Linear
from rooflinekit.model.kernels.operation import Operation
from rooflinekit.model.layers.build import stage_operations
from rooflinekit.model.layers.precision import Precision
from rooflinekit.model.layers.shard import Shard
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.errors import InputError
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.model.types.model import (
    Attention,
    DenseFFN,
    LatentAttention,
    Layer,
    MixtureOfExperts,
    Model,
    WeightFormats,
)

EAGLE3_VOCAB = 32_000
"""Tokens that EAGLE-3's own LM head knows: `draft_vocab_size` of the published heads (arXiv:2503.01840)."""

_FEATURES = {"mtp": 2, "eagle": 2, "eagle3": 3}  # vectors of width D that are joined and projected to one


@dataclass(frozen=True)
class Head:
    """What a draft on the target runs in its first step and in each later one, and what it keeps [B]."""

    layers: tuple[Layer, ...]  #: those with a cache
    first: Counter[Operation]
    later: Counter[Operation]
    weight_bytes: float


def attached_head(method: str, model: Model, deployment: Deployment, precision: Precision, heads: int) -> Head:
    """Lay out the draft that `method` adds to `model`; `heads` counts Medusa's heads, one a drafted token.

    Published heads are in 16 bit, whatever the target's layers are stored in; the LM head stays the target's.

    Raises InputError for a model without MTP layers, or without attention for an EAGLE layer.
    """
    deployment = replace(deployment, pp=1)
    if method != "mtp":
        formats = replace(WeightFormats.uniform(precision.stream), lm_head=precision.formats.lm_head)
        precision = replace(precision, formats=formats, inputs=None)
    elif not model.mtp_layers:
        raise InputError(f"{model.name} has no multi-token-prediction layer; use --draft eagle, ngram or a model")
    shard = Shard(model.hidden, precision, deployment)
    return _medusa(model, shard, heads) if method == "medusa" else _layered(method, model, shard)


def _layered(method: str, model: Model, shard: Shard) -> Head:
    """One layer of the target's shape over the joined embedding and hidden state, then the LM head.

    What is joined is normed, and projected to the residual width, whole on every rank. EAGLE-3 feeds attention with the
    embedding beside the fused feature: twice the width.
    """
    layer, eagle3 = _layer(method, model), method == "eagle3"
    alone = replace(model, layers=(layer,), vocab=min(model.vocab, EAGLE3_VOCAB) if eagle3 else model.vocab, tied=False)
    later = stage_operations(alone, shard.deployment, shard.precision, 0)
    if eagle3:
        later = Counter({replace(op, k=2 * op.k) if _is_input(op) else op: n for op, n in later.items()})
    joined, other = _FEATURES[method] * shard.hidden, shard.other
    projection = (("hidden", shard.hidden),), other, shard.precision.compute(other), "other"
    fuse = Elementwise("fuse_norm", joined, joined, 4.0 * joined, joined, other)
    first = Counter[Operation]({fuse: 1, Linear("fuse_proj", joined, *projection): 1}) + later
    shared = ("embedding",) if eagle3 else ("embedding", "lm_head")
    kept = sum(w.bytes * n for op, n in first.items() for w in op.weights if w.module not in shared)
    copies = model.mtp_layers if method == "mtp" else 1  # all are loaded, whether drafting goes that far or not
    return Head((layer,) * copies, first, later if eagle3 else first, copies * kept)


def _is_input(op: Operation) -> TypeGuard[Linear]:
    return isinstance(op, Linear) and op.name in ("qkv_proj", "qkv_a_proj", "q_proj", "kv_a_proj")


def _layer(method: str, model: Model) -> Layer:
    """The target's last layer with softmax attention; EAGLE's has a dense block as wide as what a token visits."""
    layers = [layer for layer in model.layers if isinstance(layer.mixer, (Attention, LatentAttention))]
    if not layers:
        raise InputError(f"{model.name} has no attention layer for {method} to copy; use --draft ngram or a model")
    last = layers[-1]
    if method == "mtp" or not isinstance(moe := last.ffn, MixtureOfExperts):
        return last
    return replace(last, ffn=DenseFFN(moe.top_k * moe.width + moe.shared_width, moe.gated))


def _medusa(model: Model, shard: Shard, heads: int) -> Head:
    """For each drafted token a residual block and an LM head of its own (Medusa, arXiv:2401.10774, section 2.1.1)."""
    width, columns, other = model.hidden, -(-model.vocab // shard.tp), shard.precision.formats.lm_head
    compute = shard.precision.compute(other)
    ops: list[Operation] = [
        Linear("medusa_block", width, (("hidden", width),), other, compute, "other", width),
        Elementwise("medusa_silu", 2 * width, width, 5.0 * width),
        Linear("medusa_head", width, (("logits", columns),), other, compute, "other", rows="sampled"),
    ]
    if shard.tp > 1:
        ops.append(shard.joined("logits_gather", "all_gather", model.vocab, sampled=True))
    ops.append(Sampling(model.vocab))
    return Head(
        (), Counter(dict.fromkeys(ops, heads)), Counter(), heads * sum(w.bytes for op in ops for w in op.weights)
    )
