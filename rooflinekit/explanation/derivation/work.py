"""FLOP and bytes of one launch, formula by formula, for every kind of operation.

The formulas are those of docs/method.md, section 1, written out over the shapes; the numbers beside them are the
kernel's own, so that a difference would show.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from rooflinekit.explanation.derivation.attention_work import (
    append_work,
    attention_work,
    index_work,
    latent_work,
    up_projection_work,
)
from rooflinekit.explanation.derivation.node import Node, branch, given, joined, reckoned
from rooflinekit.explanation.derivation.scene import Launched, Scene, element
from rooflinekit.model.kernels import (
    STATE_DTYPE,
    AttentionCore,
    BatchedLinear,
    Collective,
    Elementwise,
    Embedding,
    Experts,
    IndexScores,
    KVAppend,
    LatentCore,
    LatentUpProjection,
    Linear,
    Sampling,
    ShortConvolution,
    StateUpdate,
)
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.kernel import CollectiveShape, GemmShape, Kernel
from rooflinekit.model.types.model import MixtureOfExperts

__all__ = ["CLASSES", "work"]

CLASSES = {
    "F": ("flops", "FLOP", "work of one launch"),
    "w": ("weight_bytes", "B", "weights read"),
    "kr": ("kv_read_bytes", "B", "cache or state read"),
    "kw": ("kv_write_bytes", "B", "cache or state written"),
    "a": ("activation_bytes", "B", "activations read and written"),
    "net": ("network_bytes", "B", "sent to other accelerators"),
}
"""Symbol of each class of work: the kernel's field, unit, meaning."""

Formulas = dict[str, tuple[str, list[Node]]]


def work(scene: Scene, launched: Launched) -> dict[str, Node]:
    """Every class of work of one launch that is not zero; without a formula where a routine counts it."""
    kernel, op = launched.kernel, launched.op
    formulas = _FORMULAS[type(op)](scene, op, kernel) if type(op) in _FORMULAS else {}
    found = {}
    for symbol, (attribute, unit, title) in CLASSES.items():
        value = float(getattr(kernel, attribute))
        if value:
            by = formulas.get(symbol)
            found[symbol] = (
                branch(symbol, title, value, unit, by) if by else given(symbol, title, value, unit, _source(op))
            )
    return found


def _source(op: object) -> str:
    return f"rooflinekit.model.kernels.{type(op).__name__}; docs/method.md, section 1"


def _linear(scene: Scene, op: Linear, kernel: Kernel) -> Formulas:
    m = scene.tokens() if op.rows == "tokens" else scene.rows()
    parts = [scene.model(name, f"width of {name} here", width) for name, width in op.parts]
    n = joined("n", "output width here", op.n, "", parts)
    k, stream = scene.model("k", "input width here", op.k), scene.plan.precision.stream
    read = stream if op.compute.is_wide else op.compute
    weights: tuple[str, list[Node]] = ("n*k*b_w", [n, k, element("b_w", op.weight, "the weights")])
    if op.bias:
        wide = op.weight if op.weight.is_wide else Dtype.BF16
        extra = [scene.model("bias", "bias elements", op.bias), element("b_b", wide, "the bias")]
        weights = ("n*k*b_w + bias*b_b", [*weights[1], *extra])
    moved = [m, n, k, element("b_x", read, "the input"), element("b_y", stream, "the output")]
    return {"F": ("2*m*n*k", [m, n, k]), "w": weights, "a": ("m*(k*b_x + n*b_y)", moved)}


def _batched(scene: Scene, op: BatchedLinear, kernel: Kernel) -> Formulas:
    """One small matrix a head."""
    m = given("m", "decoding tokens here", float(kernel.shaped(GemmShape).m), "", "the question")
    shape = [
        scene.model("H", "heads here", op.batch),
        m,
        scene.model("n", "output width", op.n),
        scene.model("k", "input width", op.k),
    ]
    heads, _, n, k = shape
    return {
        "F": ("2*H*m*n*k", shape),
        "w": ("H*n*k*b_w", [heads, n, k, element("b_w", op.weight, "the weights")]),
        "a": ("H*m*(k + n)*b", [*shape, element("b", scene.plan.precision.stream, "activations")]),
    }


def _experts(scene: Scene, op: Experts, kernel: Kernel) -> Formulas:
    pairs, touched = _routed(scene, op, kernel)
    hidden, width = (
        scene.model("D", "width of a token", op.hidden),
        scene.model("F_e", "inner width of an expert here", op.width),
    )
    count = scene.model("mats", "matrices of an expert (3 gated, 2 plain)", op.matrices)
    shape, stream = [count, hidden, width], element("b", scene.plan.precision.stream, "activations")
    weights: tuple[str, list[Node]] = (
        "act*mats*D*F_e*b_w",
        [touched, *shape, element("b_w", op.weight, "the experts")],
    )
    if op.bias:
        extra = [
            scene.model("bias", "bias elements of an expert here", op.bias),
            element("b_b", Dtype.BF16, "the bias"),
        ]
        weights = ("act*(mats*D*F_e*b_w + bias*b_b)", [*weights[1], *extra])
    return {
        "F": ("2*A*mats*D*F_e", [pairs, *shape]),
        "w": weights,
        "a": ("A*(3*D + mats*F_e)*b", [pairs, *shape, stream]),
    }


def _routed(scene: Scene, op: Experts, kernel: Kernel) -> tuple[Node, Node]:
    """(token, expert) pairs that come here, and the distinct experts that they touch."""
    routing, dims = op.routing, asdict(kernel.shape)
    tokens = scene.tokens("T")
    chosen, experts = (
        scene.model("top", "experts a token visits", routing.top_k),
        scene.model("E", "experts", routing.experts),
    )
    if routing.ranks > 1 or routing.skew:
        where = "rooflinekit.model.kernels.Routing.fullest: the fullest rank, for which the step waits"
        return (
            given("A", "(token, expert) pairs on the fullest rank", float(dims["routed"]), "", where),
            given("act", "distinct experts touched there", float(dims["touched"]), "", where),
        )
    if scene.step.replicas != 1:
        groups = scene.asked("groups", "attention replicas, whose tokens all come", float(scene.step.replicas))
        tokens = reckoned("T", "tokens of all replicas", "", ("one*groups", [replace(tokens, symbol="one"), groups]))
    return (
        branch("A", "(token, expert) pairs", float(dims["routed"]), "", ("T*top", [tokens, chosen])),
        branch(
            "act",
            "distinct experts touched, uniform routing",
            float(dims["touched"]),
            "",
            ("E*(1 - (1 - top/E)**T)", [experts, chosen, tokens]),
        ),
    )


def _elementwise(scene: Scene, op: Elementwise, kernel: Kernel) -> Formulas:
    m, stream = scene.tokens(), element("b", scene.plan.precision.stream, "activations")
    each = given("f", "FLOP a token", op.flops, "FLOP", _source(op))
    moved = [
        m,
        scene.model("read", "elements read a token", op.read),
        scene.model("written", "elements written a token", op.written),
        stream,
    ]
    return {
        "F": ("m*f", [m, each]),
        "w": ("p*b_w", [scene.model("p", "its own weights", op.parameters), element("b_w", op.dtype, "its weights")]),
        "a": ("m*(read + written)*b", moved),
    }


def _embedding(scene: Scene, op: Embedding, kernel: Kernel) -> Formulas:
    table, stream = element("b_w", op.dtype, "the table"), element("b", scene.plan.precision.stream, "activations")
    return {"a": ("m*D*(b_w + b)", [scene.tokens(), scene.model("D", "width of a row", op.width), table, stream])}


def _sampling(scene: Scene, op: Sampling, kernel: Kernel) -> Formulas:
    m, vocabulary = scene.rows(), scene.model("V", "vocabulary", op.vocab)
    return {
        "F": ("m*V", [m, vocabulary]),
        "a": ("m*V*b", [m, vocabulary, element("b", scene.plan.precision.stream, "the logits")]),
    }


def _collective(scene: Scene, op: Collective, kernel: Kernel) -> Formulas:
    m = scene.rows() if op.sampled else scene.tokens()
    width = _exchanged(scene, op) if op.kind == "all_to_all" else scene.model("D", "elements a row", op.width)
    stream = element("b", scene.plan.precision.stream, "activations")
    groups = scene.asked(
        "groups", "attention replicas whose rows it joins", float(scene.step.replicas) if op.replicas else 1
    )
    payload = branch(
        "payload",
        "what is summed or gathered",
        float(kernel.shaped(CollectiveShape).payload),
        "B",
        ("m*groups*D*b", [m, groups, width, stream]),
    )
    title = f"bytes sent a byte of payload, {op.kind} over {op.gpus}"
    sent = given("sent", title, op.sent.links + op.sent.nic, "", "docs/method.md, collectives")
    return {"a": ("2*payload", [payload]), "net": ("payload*sent", [payload, sent])}


def _exchanged(scene: Scene, op: Collective) -> Node:
    """Elements that a token brings to an exchange with the ranks of its experts, the share that stays included."""
    blocks = [layer.ffn for layer in scene.plan.model.layer_counts if isinstance(layer.ffn, MixtureOfExperts)]
    wide = scene.model("D_e", "width at which experts work", blocks[0].latent or scene.plan.model.hidden)
    ranks = scene.asked("g", "ranks that hold the experts", op.gpus)
    sent = op.width * (op.gpus - 1) / op.gpus / wide.value
    what = "ranks that a token is sent to, expected under uniform routing"
    if scene.plan.deployment.dispatch and op.name == "expert_dispatch":
        what += ", times bytes of the dispatched format over the stream's"
    copies = given("copies", what, sent, "", "rooflinekit.model.layers.feedforward: group_share of the other groups")
    return branch("D", "elements a row", op.width, "", ("D_e*copies*g/(g - 1)", [wide, copies, ranks]))


def _convolution(scene: Scene, op: ShortConvolution, kernel: Kernel) -> Formulas:
    m, B = scene.tokens(), scene.asked("B", "sequences", float(scene.batch.sequences))
    channels, taps = scene.model("C", "channels here", op.channels), scene.model("taps", "tokens it looks at", op.taps)
    stream = element("b", scene.plan.precision.stream, "activations")
    state = ("B*C*(taps - 1)*b", [B, channels, taps, stream])
    bias = given("bias", "1 with a bias", int(op.bias))
    return {
        "F": ("2*m*C*taps", [m, channels, taps]),
        "w": ("C*(taps + bias)*b_w", [channels, taps, bias, element("b_w", op.dtype, "the taps")]),
        "kr": state,
        "kw": state,
        "a": ("2*m*C*b", [m, channels, stream]),
    }


def _state(scene: Scene, op: StateUpdate, kernel: Kernel) -> Formulas:
    m, B = scene.tokens(), scene.asked("B", "sequences", float(scene.batch.sequences))
    size, stream = scene.model("state", "elements of state of a sequence here", op.state), scene.plan.precision.stream
    moved = ("B*state*b_s", [B, size, element("b_s", STATE_DTYPE, "the state")])
    return {
        "F": (
            "m*state*f",
            [m, size, given("f", "FLOP an element and token", op.flops_per_element, "FLOP", _source(op))],
        ),
        "w": ("p*b_w", [scene.model("p", "its own weights", op.parameters), element("b_w", op.dtype, "its weights")]),
        "kr": moved,
        "kw": moved,
        "a": (
            "m*width*b",
            [m, scene.model("width", "elements moved a token", op.stream_width), element("b", stream, "activations")],
        ),
    }


_FORMULAS: dict[type, Callable[[Scene, Any, Kernel], Formulas]] = {
    Linear: _linear,
    BatchedLinear: _batched,
    AttentionCore: attention_work,
    LatentCore: latent_work,
    LatentUpProjection: up_projection_work,
    KVAppend: append_work,
    IndexScores: index_work,
    Experts: _experts,
    Elementwise: _elementwise,
    Embedding: _embedding,
    Sampling: _sampling,
    Collective: _collective,
    ShortConvolution: _convolution,
    StateUpdate: _state,
}
"""The formulas of every kind of operation; those of context parallelism are counted (docs/parallelism.md)."""
