"""Drafts that live on the target model: its multi-token-prediction layer, EAGLE's layer, Medusa's heads.

Embedding and LM head of an MTP or EAGLE layer are the target's own, so they cost time but no memory; EAGLE-3 has a
smaller LM head of its own.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from rooflinekit.model.kernels.elementwise import Elementwise, Sampling
from rooflinekit.model.kernels.gemm import Linear
from rooflinekit.model.kernels.operation import Operation
from rooflinekit.model.layers.build import stage_operations
from rooflinekit.model.layers.precision import Precision
from rooflinekit.model.layers.shard import Shard
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.errors import InputError
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

_SHARED = ("embedding", "lm_head")
_FEATURES = {"mtp": 2, "eagle": 2, "eagle3": 3}  # vectors of width D that are joined and projected to one
_INPUTS = ("qkv_proj", "qkv_a_proj", "q_proj", "kv_a_proj")


@dataclass(frozen=True)
class Head:
    """What a draft on the target runs in its first step and in each later one, and what it keeps [B]."""

    layers: tuple[Layer, ...]  #: those with a cache
    first: Counter[Operation]
    later: Counter[Operation]
    weight_bytes: float


def attached_head(method: str, model: Model, deployment: Deployment, precision: Precision, heads: int) -> Head:
    """Lay out the draft that `method` adds to `model`; `heads` counts Medusa's heads, one a drafted token.

    Raises InputError for a model without MTP layers, or without attention for an EAGLE layer.
    """
    alone = replace(deployment, pp=1)
    if method == "medusa":
        return _medusa(model, alone, _wide(precision, model), heads)
    if method == "mtp":
        if not model.mtp_layers:
            raise InputError(f"{model.name} has no multi-token-prediction layer; use --draft eagle, ngram or a model")
        return _layered(method, model, alone, precision)
    return _layered(method, model, alone, _wide(precision, model))


def _layered(method: str, model: Model, deployment: Deployment, precision: Precision) -> Head:
    """One layer of the target's shape over the joined embedding and hidden state, then the LM head."""
    layer = _layer(method, model)
    vocab = min(model.vocab, EAGLE3_VOCAB) if method == "eagle3" else model.vocab
    ops = stage_operations(replace(model, layers=(layer,), vocab=vocab, tied=False), deployment, precision, 0)
    shard = Shard(model.hidden, precision, deployment)
    fuse = _fuse(_FEATURES[method], shard)
    copies = model.mtp_layers if method == "mtp" else 1  # all are loaded, whether drafting goes that far or not
    if method == "eagle3":
        own = Counter({_widened(op): n for op, n in ops.items()})
        kept = [w.bytes * n for op, n in (fuse + own).items() for w in op.weights if w.module != "embedding"]
        return Head((layer,), fuse + own, own, sum(kept))
    both = fuse + ops
    kept = [w.bytes * n for op, n in both.items() for w in op.weights if w.module not in _SHARED]
    return Head((layer,) * copies, both, both, copies * sum(kept))


def _layer(method: str, model: Model) -> Layer:
    """The target's last layer with softmax attention; EAGLE's has a dense block as wide as what a token visits."""
    layers = [layer for layer in model.layers if isinstance(layer.mixer, (Attention, LatentAttention))]
    if not layers:
        raise InputError(f"{model.name} has no attention layer for {method} to copy; use --draft ngram or a model")
    last = layers[-1]
    if method == "mtp" or not isinstance(last.ffn, MixtureOfExperts):
        return last
    moe = last.ffn
    return replace(last, ffn=DenseFFN(moe.top_k * moe.width + moe.shared_width, moe.gated))


def _fuse(features: int, shard: Shard) -> Counter[Operation]:
    """Norms of what is joined, and the projection to the residual width, whole on every rank."""
    joined, other = features * shard.hidden, shard.other
    return Counter({
        Elementwise("fuse_norm", joined, joined, 4.0 * joined, joined, other): 1,
        Linear("fuse_proj", joined, (("hidden", shard.hidden),), other, shard.precision.compute(other), "other"): 1,
    })  # fmt: skip


def _widened(op: Operation) -> Operation:
    """EAGLE-3 feeds attention with the embedding beside the fused feature: twice the width."""
    return replace(op, k=2 * op.k) if isinstance(op, Linear) and op.name in _INPUTS else op


def _medusa(model: Model, deployment: Deployment, precision: Precision, heads: int) -> Head:
    """For each drafted token a residual block and an LM head of its own (Medusa, arXiv:2401.10774, section 2.1.1)."""
    width, columns, other = model.hidden, -(-model.vocab // deployment.tp), precision.formats.lm_head
    compute = precision.compute(other)
    ops: Counter[Operation] = Counter({
        Linear("medusa_block", width, (("hidden", width),), other, compute, "other", width): heads,
        Elementwise("medusa_silu", 2 * width, width, 5.0 * width): heads,
        Linear("medusa_head", width, (("logits", columns),), other, compute, "other", rows="sampled"): heads,
    })  # fmt: skip
    if deployment.tp > 1:
        shard = Shard(model.hidden, precision, deployment)
        ops[shard.joined("logits_gather", "all_gather", model.vocab, sampled=True)] = heads
    ops[Sampling(model.vocab)] = heads
    return Head((), ops, Counter(), sum(w.bytes * n for op, n in ops.items() for w in op.weights))


def _wide(precision: Precision, model: Model) -> Precision:
    """Published heads are in 16 bit, whatever the target's layers are stored in; the LM head stays the target's."""
    stream = precision.stream
    return replace(
        precision, formats=replace(WeightFormats.uniform(stream), lm_head=precision.formats.lm_head), inputs=None
    )
