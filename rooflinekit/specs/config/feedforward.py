"""The feed-forward block of every layer: dense, or routed experts with their shared and dense exceptions."""

from __future__ import annotations

from collections.abc import Sequence

from rooflinekit.model.types.errors import SpecError
from rooflinekit.model.types.model import DenseFFN, FeedForward, MixtureOfExperts
from rooflinekit.specs.config.family import FeedForwards, Flag, Reading

__all__ = [
    "dense_layers",
    "experts",
    "first_dense",
    "interleaved",
    "moe_everywhere",
    "periodic",
    "shared_by_count",
    "sparse_step",
]


def dense_layers(width: int | None = None) -> FeedForwards:
    """The same dense block in every layer; `width` times the hidden size when the config does not say."""

    def ffns(r: Reading) -> tuple[FeedForward, ...]:
        inner = r.keys.size("width", width * r.hidden if width else None)
        return (DenseFFN(inner, r.family.gated, r.is_set(r.family.mlp_bias)),) * r.depth

    return ffns


def experts(
    r: Reading, width: int, shared: int = 0, *, gate: bool = False, router_bias: bool = False
) -> MixtureOfExperts:
    """Routed experts of inner width `width`.

    Raises SpecError when their number or the number a token visits is missing or impossible.
    """
    count, top_k = r.keys.size("experts"), r.keys.size("top_k")
    if top_k > count:
        raise SpecError(f"{r.keys.origin}: a token visits {top_k} experts but there are only {count}")
    return MixtureOfExperts(
        experts=count,
        top_k=top_k,
        width=width,
        gated=r.family.gated,
        bias=r.is_set(r.family.mlp_bias),
        shared_width=shared,
        shared_gate=gate,
        router_bias=router_bias,
    )


def moe_everywhere(*, concept: str = "width", router_bias: Flag = False) -> FeedForwards:
    """Experts in every layer, whose width `concept` names (Mixtral, gpt-oss, MiniMax: `intermediate_size`)."""

    def ffns(r: Reading) -> tuple[FeedForward, ...]:
        shared = r.keys.size("shared_intermediate_size", 0, least=0)
        return (experts(r, r.keys.size(concept), shared, router_bias=r.is_set(router_bias)),) * r.depth

    return ffns


def sparse_step(*, shared: bool) -> FeedForwards:
    """Qwen: experts in every `decoder_sparse_step`-th layer but those in `mlp_only_layers`."""

    def ffns(r: Reading) -> tuple[FeedForward, ...]:
        keys = r.keys
        moe = experts(
            r,
            keys.size("expert_width"),
            keys.size("shared_width") if shared else 0,
            gate=shared,
        )
        step, only = keys.size("decoder_sparse_step", 1), keys.series("mlp_only_layers") or []
        dense_at = {keys.whole(f"mlp_only_layers[{n}]", layer, 0, r.depth - 1) for n, layer in enumerate(only)}
        sparse = [layer not in dense_at and (layer + 1) % step == 0 for layer in range(r.depth)]
        return _placed(r, moe, sparse)

    return ffns


def shared_by_count(r: Reading, width: int) -> int:
    """Inner width of the shared experts when the config counts them (DeepSeek)."""
    return width * r.keys.size("shared_experts", 0, least=0)


def first_dense(*, router_bias: bool | None = None) -> FeedForwards:
    """DeepSeek, GLM: `first_k_dense_replace` dense layers, then experts in every `moe_layer_freq`-th layer.

    With `router_bias` None the config's `topk_method` decides (noaux_tc learns a balance correction per expert).
    """

    def ffns(r: Reading) -> tuple[FeedForward, ...]:
        keys = r.keys
        method = keys.word("topk_method")
        width = keys.size("expert_width")
        corrected = method == "noaux_tc" if router_bias is None else router_bias
        moe = experts(r, width, shared_by_count(r, width), router_bias=corrected)
        return _placed(r, moe, _after_dense(r))

    return ffns


def _after_dense(r: Reading) -> list[bool]:
    first = r.keys.size("first_k_dense_replace", 0, least=0)
    types = r.keys.choices("mlp_layer_types", r.depth, ("dense", "sparse"))
    if isinstance(r.keys.config.get("moe_layer_freq"), list):
        return [bool(flag) for flag in r.keys.choices("moe_layer_freq", r.depth, (0, 1)) or []]
    every = r.keys.size("moe_layer_freq", 1)
    if types:
        return [kind == "sparse" for kind in types]
    return [layer >= first and layer % every == 0 for layer in range(r.depth)]


def periodic(*, period: str, offset: str) -> FeedForwards:
    """Jamba: experts in layers `offset` modulo `period`, all of the same width as the dense blocks."""

    def ffns(r: Reading) -> tuple[FeedForward, ...]:
        every, start = r.keys.size(period), r.keys.size(offset, least=0)
        moe = experts(r, r.keys.size("width"))
        return _placed(r, moe, [layer % every == start for layer in range(r.depth)])

    return ffns


def interleaved(r: Reading) -> tuple[FeedForward, ...]:
    """Llama-4: experts and one shared expert of the same width in every `interleave_moe_layer_step`-th layer."""
    width, step = r.keys.size("expert_width"), r.keys.size("interleave_moe_layer_step", 1)
    listed = r.keys.series("moe_layers")
    moe = experts(r, width, width)
    if listed:
        at = {r.keys.whole(f"moe_layers[{n}]", layer, 0, r.depth - 1) for n, layer in enumerate(listed)}
        return _placed(r, moe, [layer in at for layer in range(r.depth)])
    return _placed(r, moe, [(layer + 1) % step == 0 for layer in range(r.depth)])


def _placed(r: Reading, moe: MixtureOfExperts, sparse: Sequence[bool]) -> tuple[FeedForward, ...]:
    """Experts where `sparse` says so, dense blocks of the config's width elsewhere."""
    if not any(sparse):
        raise SpecError(f"{r.keys.origin}: no layer has experts, although the config describes {moe.experts}")
    if all(sparse):
        r.keys.find("width")  # stated by many, used by none of the layers
        return (moe,) * r.depth
    dense = DenseFFN(r.keys.size("width"), r.family.gated, r.is_set(r.family.mlp_bias))
    return tuple(moe if routed else dense for routed in sparse)
