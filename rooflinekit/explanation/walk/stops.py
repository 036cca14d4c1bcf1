"""Effect of an operation on tensors: the stops of its launch, and the views that follow.

An operation says which tensors it makes (`outputs`), what they are cut into (`views`) and what it keeps (`weights`).
Words stand in `stops.yaml`, by its name; one that says nothing and has no words still gets a stop for each launch. Four
kinds part their launch: attention into scores and a weighted sum, experts into two matrices and a sum, a norm from the
addition that it is fused with. A part is the work of the same operation without the other parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

from rooflinekit.explanation.walk.letters import Lettered, written
from rooflinekit.explanation.walk.result import Stop, Tensor, Work
from rooflinekit.explanation.walk.scene import WalkScene
from rooflinekit.model.blocks import expert_operations
from rooflinekit.model.kernels.attention import AttentionCore, ContextExchange, ContextShare, IndexScores, LatentCore
from rooflinekit.model.kernels.collective import Collective, Tiers
from rooflinekit.model.kernels.elementwise import Elementwise
from rooflinekit.model.kernels.gemm import BatchedLinear
from rooflinekit.model.kernels.moe import Experts
from rooflinekit.model.kernels.operation import Operation, Output, Wrapped
from rooflinekit.model.types.kernel import Kernel
from rooflinekit.model.types.model import Attention
from rooflinekit.model.types.numeric import Numeric
from rooflinekit.specs.files import table_of

Stops: TypeAlias = "Iterator[Stop]"


class Addition(Enum):
    """Addition of a block's result to the stream: every norm is costed as one launch with such an addition."""

    BEFORE = "before the norm"
    BEHIND = "behind the norm"  #: a norm over what the block returned (Gemma-2)
    NONE = "elsewhere"


class Row(NamedTuple):
    """Words for an operation: its name, what a single tensor that comes out is called, what is done, and a note."""

    name: str
    out: str = ""
    does: str = ""
    note: str = ""


_ROWS = {name: Row(**row) for name, row in table_of(__file__)["stops"].items()}
_UNSAID = Tensor("unnamed", ("…",), (), "")  # of an operation that does not say what it makes
_NORMS = ("residual_norm", "embedding_norm", "final_norm")


def stops(on: WalkScene, block: Any, op: Operation) -> Stops:
    """The stops of an operation of a block, which for a norm is an `Addition`; none if it has nothing to do."""
    if not on.launches(op):
        return
    while isinstance(op, Wrapped):
        op = op.held
    match op:
        case Elementwise(name=name) if name in _NORMS:
            yield from _norm(on, block, op)
            if name == "final_norm":
                last = on.tensor("x", on.step.rows, on.shard.hidden)
                yield on.view("last token", "the last row of each sequence", last, note="only it says what comes next")
        case Collective():
            yield _collective(on, block, op)
        case AttentionCore() | LatentCore() | ContextShare():
            yield from _core(on, op)
        case ContextExchange():
            yield from _exchanged(on, op)
        case IndexScores():
            yield from _indexed(on, block, op)
        case Experts():
            yield from _experts(on, block, op)
        case _:
            yield from _said(on, block, op)


def _row(name: str, made: tuple[Output, ...] = ()) -> Row:
    """Words for an operation, by what it makes or by its name."""
    keys = (*(each.name for each in made[:1]), name)
    return next((_ROWS[key] for key in keys if key in _ROWS), Row(name.replace("_", " ")))


def _said(on: WalkScene, block: Any, op: Operation) -> Stops:
    """A stop of the tensors that an operation says it makes, and one of what they are cut into."""
    kernels, made, views = on.launches(op), op.outputs, [on.made(view) for view in op.views]
    row = _row(getattr(op, "name", kernels[0].name), made)
    shown = [on.made(replace(each, name=row.out or each.name) if len(made) == 1 else each) for each in made]
    note = ", ".join(filter(None, (row.note, _note(on, block, op))))
    yield on.stop(row.name, row.does or _does(op, kernels[0]), shown or [_UNSAID], op, note)
    if any(len(view.axes) > 1 for view in op.views):
        yield on.view("split heads", "cut the last axis into heads", *views, note="a view: nothing moves")
    elif views and row.out:  # parts without a joint name are listed already
        yield on.view(f"split {row.out}", "cut the last axis", *views)
    if isinstance(op, BatchedLinear) and op.name == "q_absorb":
        yield on.view("join Q", "latent and rotary part side by side", on.out("Q", op.batch, block.latent_dim))
    elif isinstance(op, BatchedLinear):
        yield on.view("concatenate heads", "heads side by side", on.out("x", op.batch * op.n))


def _does(op: object, kernel: Kernel) -> str:
    """Effect of a launch without words of its own, by its kind."""
    if kernel.family == "gemm":
        return "x·weightᵀ + bias" if getattr(op, "bias", False) else "x·weightᵀ"
    if isinstance(op, Elementwise):
        return "act(gate)·up" if op.read > op.written else "act(up)"
    return kernel.family.replace("_", " ")


def _note(on: WalkScene, block: Any, op: object) -> str:
    """Note on the model or its split."""
    sharded = on.plan.deployment.tp > 1
    match getattr(op, "name", ""):
        case "lm_head" if on.plan.model.tied:
            return "weight is the embedding table"
        case "kv_a_proj" | "qkv_a_proj" if sharded:
            return "every rank computes all of it"
        case "kv_append" if sharded and hasattr(block, "kv_rank"):
            return "one latent for all heads, on every rank: tp does not divide it"
        case "kv_append" if isinstance(block, Attention) and (block.window or block.chunk):
            return "an engine may drop keys that have left the window"
        case "shared_down_proj" if block.shared_gate:
            return "behind a learned gate"
    return ""


def _collective(on: WalkScene, block: object, op: Collective) -> Stop:
    """The payload is read and written once here, and sent as the algorithm needs."""
    row, split, width = _row(op.name), on.shard.deployment, op.width
    rows = (on.step.rows,) if op.sampled else on.tokens
    if op.name == "expert_gather":
        rows = (on.step.tokens * on.step.replicas,)
    elif op.kind == "reduce_scatter" and not op.replicas:
        width = width / split.tp
    elif op.kind == "all_to_all":
        width = getattr(block, "latent", None) or on.shard.hidden
        op, copies = _counted(on, block, op, width)
        rows = (on.step.tokens * copies,) if row.out == "sent" else rows
    ranks = f"{written(split.dp * split.cp)} replicas" if op.replicas else "tp ranks"
    does = row.does or f"{op.kind.replace('_', '-')} over {ranks}"
    return on.stop(row.name, does, [on.tensor(row.out or "x", *rows, width)], op, row.note)


def _counted(on: WalkScene, block: Any, op: Collective, wide: Numeric) -> tuple[Collective, float]:
    """An exchange between experts with a letter for the ranks that a token goes to; what stays is counted besides."""
    back: Any = next(op for op in expert_operations(block, on.shard) if getattr(op, "name", "") == "expert_combine")
    size = float(op.width) / float(back.width)  # tokens may travel in a narrower format
    group: Any = on.shard.deployment.stage
    sent = float(op.sent.links) + float(op.sent.nic)
    goes = float(op.width) * sent / (float(wide) * size)
    copies = on.letter("copies", goes, "ranks that a token is sent to from this one, expected, uniform routing")
    others = Lettered.of(f"({written(group - 1.0)})", float(group) - 1.0)
    shares = Tiers(*(float(share) / sent * others / group for share in (op.sent.links, op.sent.nic)))
    return replace(op, width=wide * size * copies * group / others, sent=shares), copies


def _norm(on: WalkScene, addition: Addition, op: Elementwise) -> Stops:
    """A norm over the residual width, and the addition to the stream that it is fused with: 4 + 1 operations."""
    name = "norm" if op.name == "residual_norm" else op.name.replace("_", " ")
    wide: Any = op.written / 2
    held = on.held(op)
    if op.parameters > on.plan.model.hidden:
        held = tuple(on.tensor(each, op.parameters / 2, dtype=op.dtype) for each in ("scale", "bias"))
    out = [on.out("x", wide)]
    if addition is Addition.NONE:
        yield on.stop(name, "normalised", out, op, "counted with an addition, as every norm is", weights=held)
        return
    alone = on.work(*on.launches(replace(op, read=0, written=wide, flops=op.flops * 0.8)))
    norm = on.stop(name, "normalised", out, op, work=alone, weights=held)
    note = "goes past the block, which reads a normalised copy; the first layer has nothing to add yet"
    residual = on.stop(
        "residual",
        "stream + what the block returned",
        [on.out("stream", wide)],
        op,
        note if addition is Addition.BEFORE else "",
        weights=(),
        work=on.work(*on.launches(op)) - alone,
    )
    yield from (residual, norm) if addition is Addition.BEFORE else (norm, residual)


def _core(on: WalkScene, op: Any) -> Stops:
    """One fused kernel, which never writes scores to memory; here in the order of the formula."""
    core, decode = getattr(op, "core", op), on.phase == "decode"
    value, absorbed = core.v_dim, decode and isinstance(core, LatentCore)
    if isinstance(core, AttentionCore):
        rest, scored, note = replace(core, qk_dim=0), "Q·Kᵀ/√d", _groups(core)
    elif absorbed:  # the sum is over the first part of what the scores read
        rest, scored, value = replace(core, rope_dim=-core.kv_rank), "Q·cacheᵀ/√(n+r)", core.kv_rank
        note = "all heads read one latent, once: its first R elements are the values too"
    else:
        rest, scored, note = replace(core, nope_dim=0, rope_dim=0), "Q·Kᵀ/√(n+r)", ""
    summed = on.work(*on.launches(rest if core is op else replace(op, core=rest)))
    work = on.work(*on.launches(op)) - summed
    scores, weights = (on.tensor(name, *on.scores(core.heads), dtype="fp32") for name in ("scores", "weights"))
    yield on.stop("scores", scored, [scores], op, note, work=work, weights=())
    if not decode:
        within = " and within reach" if getattr(core, "window", None) or getattr(core, "chunk", None) else ""
        own = ", of its own sequence" if on.prompts.packed else ""
        seen = f"{round(on.symbols['pairs'].value):,} of {round(on.cells):,} cells a head are seen"
        note = f"{seen}, and only those are computed and counted"
        yield on.stop(
            "causal mask", f"only keys up to the token{within}{own}", [scores], op, note, work=Work(), weights=()
        )
    sinks = on.held(core)
    note = "about 5 operations a pair, on other units; not counted (FlashAttention-2, section 4.1)"
    note += "; the sinks take their share" if sinks else ""
    yield on.stop("softmax", "each row adds up to 1", [weights], op, note, work=Work(), weights=())
    rows = (on.sequences.tokens,) if decode and core is not op else on.tokens  # all queries, a part of the keys
    does, heads = "weights·latent" if absorbed else "weights·V", on.tensor("heads", *rows, core.heads, value)
    yield on.stop("weighted sum", does, [heads], op, work=summed, weights=sinks)
    yield from on.later
    on.later.clear()
    if not absorbed:
        yield on.view("concatenate heads", "heads side by side", on.out("x", core.heads * value))


def _groups(core: AttentionCore) -> str:
    shared = int(core.heads / core.kv_heads)
    if shared == 1:
        return "each query head has keys and values of its own"
    return f"{shared} query heads read each KV head" if core.kv_heads > 1 else "all query heads read one KV head"


def _exchanged(on: WalkScene, op: ContextExchange) -> Stops:
    """Exchange of ranks that share a context for one attention."""
    every, keys = on.sequences.tokens, on.sequences.keys_read(op.window, op.chunk)
    axes = {
        "context_gather": (keys, op.cached),
        "context_queries": (every, op.queries),
        "context_results": (every, op.results),
        "context_merge": (*on.tokens, op.results),
    }
    for kernel in on.launches(op):
        row = _ROWS[kernel.name]
        out = on.tensor(row.out, *axes[kernel.name])
        stop = on.stop(row.name, row.does, [out], op, work=on.work(kernel))
        on.later.append(replace(stop, kernel=kernel.name))
    yield on.later.pop(0)


def _indexed(on: WalkScene, block: Any, op: IndexScores) -> Stops:
    """Every key against a few small heads, then the best of them."""
    packed, best = on.prompts.packed, block.indexer.top_k
    keys = on.cached[-1] if op.ratio == 1 else on.cached[-1] / op.ratio
    axes = (*on.tokens, keys)
    if packed:
        axes = on.scores() if on.phase == "prefill" else (on.sequences.pairs(),)
    index = on.tensor("index", *axes, dtype="fp32")
    yield on.stop("index scores", "weighted sum over index heads", [index], op)
    picked = on.out("picked", best if packed else min(best, keys), dtype="int32")
    yield on.view("pick keys", "the best of each row", picked)


def _experts(on: WalkScene, block: Any, op: Experts) -> Stops:
    """One grouped launch: rows sorted by expert, two matrices each, results weighted and added up."""
    split, first, local = on.plan.deployment, (op.matrices - 1) * op.width, op.local
    once, up, down = (
        on.work(*on.launches(replace(op, matrices=matrices, bias=bias if op.bias else 0, weight=weight, down=None)))
        for matrices, bias, weight in (
            (0, 0, op.weight),
            (op.matrices - 1, first, op.weight),
            (1, op.hidden, op.down or op.weight),
        )
    )
    once = once.times(1 / 3)  # a row is read, written back and combined, each time at the outer width
    every = on.step.tokens * on.step.replicas
    rows, touched = on.operation(op).routing.fullest(every)
    axes, does, note = on.tokens, "sum of k rows by their shares", ""
    if on.shard.replicas > 1:
        axes, does = (every if split.ep == 1 else rows,), "sum of rows by their shares"
        note = "at most so many rows: those of one token become one" if split.ep > 1 else ""
    elif split.ep > 1:
        note = "its experts' part; the all-reduce adds the others"
    kind, act, out = ("gate and up", "act(gate)·up", "gate, up") if block.gated else ("up", "act(up)", "up")
    routing = f"routing of skew {split.skew:g}" if split.skew else "uniform routing"
    here = f"{int(local)} experts{' here' if split.ep > 1 else ''} that are touched ({routing})"

    def weights(n: Numeric, k: Numeric) -> list[Tensor]:
        bias = [on.tensor("bias", local, n, dtype="bf16")] if op.bias else []
        return [on.tensor("weight", local, n, k, dtype=op.weight), *bias]

    yield on.view("sort by expert", "a row for each token and expert", on.tensor("rows", rows, op.hidden))
    product, said = "rows·weightᵀ of their expert", f"weights of the {touched:.4g} of {here}"
    yield on.stop(
        f"expert {kind}",
        product,
        [on.tensor(out, rows, first)],
        op,
        said,
        work=up - once.times(2),
        weights=weights(first, op.hidden),
    )
    yield on.stop(
        "expert activation",
        act,
        [on.tensor("inner", rows, op.width)],
        op,
        "inside the launch: nothing counted",
        work=Work(),
        weights=(),
    )
    yield on.stop(
        "expert down",
        product,
        [on.tensor("rows", rows, op.hidden)],
        op,
        work=down - once.times(2),
        weights=weights(op.hidden, op.width),
    )
    yield on.stop("combine", does, [on.tensor("x", *axes, op.hidden)], op, note, work=once, weights=())
