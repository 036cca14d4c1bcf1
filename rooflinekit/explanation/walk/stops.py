"""What an operation does to tensors: the stops of its launch, and the views that follow.

An operation that is no more than one stop is a row of a table. The others part their launch: attention into scores and
a weighted sum, experts into two matrices and a sum, a norm from the addition that it is fused with. A part is the work
of the same operation without the other parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

from rooflinekit.explanation.walk.letters import Lettered, written
from rooflinekit.explanation.walk.result import Stop, Tensor, Work
from rooflinekit.explanation.walk.scene import Scene
from rooflinekit.model.blocks import expert_operations
from rooflinekit.model.kernels.attention import (
    AttentionCore,
    ChosenCore,
    ContextExchange,
    ContextShare,
    IndexScores,
    KVAppend,
    LatentCore,
    LatentUpProjection,
)
from rooflinekit.model.kernels.collective import Collective, Exchange, Tiers
from rooflinekit.model.kernels.elementwise import Elementwise, Embedding, Sampling
from rooflinekit.model.kernels.gemm import BatchedLinear, Linear
from rooflinekit.model.kernels.moe import Experts
from rooflinekit.model.kernels.operation import OnHost, Operation, Repeated
from rooflinekit.model.kernels.recurrent import STATE_DTYPE, ShortConvolution, StateUpdate
from rooflinekit.model.types.model import (
    Attention,
    CompressedAttention,
    GatedConvolution,
    GatedDeltaNet,
    LatentAttention,
    LightningAttention,
    Mamba2,
)
from rooflinekit.specs.files import table_of

Stops: TypeAlias = "Iterator[Stop]"


class Addition(Enum):
    """Where the stream takes up what a block returned: every norm is costed as one launch with such an addition."""

    BEFORE = "before the norm"
    BEHIND = "behind the norm"  #: a norm over what the block returned (Gemma-2)
    NONE = "elsewhere"


class Row(NamedTuple):
    """A stop of one tensor: what it is called, what comes out, and what there is to say."""

    name: str
    out: str = "x"
    does: str = ""
    note: str = ""


_WORDS = table_of(__file__)
_ROWS = {name: Row(**row) for name, row in _WORDS["stops"].items()}
_STATES: Mapping[str, list[str]] = _WORDS["states"]


def stops(on: Scene, block: Any, op: Operation) -> Stops:
    """The stops of an operation of a block, which for a norm is an `Addition`; none if it has nothing to do."""
    if on.launches(op):
        op = op.held if isinstance(op, OnHost | Repeated) else op
        name = getattr(op, "name", "")
        made: Callable[..., Stops] = _norm if name in _NORMS else _KINDS[type(op)]
        yield from made(on, block, op)
        yield from _views(on, block, name)


def _row(on: Scene, block: Any, op: Any) -> Row:
    """The row of an operation, with what depends on its model."""
    row = _ROWS.get(op.name, Row(op.name.replace("_", " ")))
    if isinstance(block, GatedConvolution) and op.name == "in_proj":
        return row._replace(out="B, C, x")
    if isinstance(block, Mamba2) and op.name in ("in_proj", "gated_norm"):
        return row._replace(out="zxbcdt") if op.name == "in_proj" else row._replace(does="norm(x·act(gate))")
    if op.name == "lm_head" and on.plan.model.tied:
        return row._replace(note="W is the embedding table")
    if row.out == "latents" and on.plan.deployment.tp > 1:
        return row._replace(note="every rank computes all of it")
    if op.name == "shared_down_proj" and block.shared_gate:
        return row._replace(note=f"{row.note}, behind a learned gate")
    return row


def _linear(on: Scene, block: Any, op: Linear) -> Stops:
    """x·Wᵀ over all new tokens, or over the rows that are sampled."""
    row, rows = _row(on, block, op), (on.step.rows,) if op.rows == "sampled" else on.tokens
    does = "x·Wᵀ + bias" if op.bias else "x·Wᵀ"
    yield on.stop(row.name, does, [on.tensor(row.out, *rows, op.n)], op, row.note)


def _pass(on: Scene, block: Any, op: Elementwise) -> Stops:
    """A pass over the tokens; those over heads and latents make several tensors."""
    row = _row(on, block, op)
    does = row.does or ("act(gate)·up" if op.read > op.written else "act(up)")
    match op.name:
        case "rope" if isinstance(block, LatentAttention | CompressedAttention):
            made = [on.out("Q rope", block.heads // on.shard.tp, block.rope_dim), on.out("k rope", block.rope_dim)]
        case "rope" | "qk_norm":
            made = _heads(on, block)[:2]
        case "latent_norm":
            keys = block.kv_rank if isinstance(block, LatentAttention) else block.head_dim
            made = [on.out(name, wide) for name, wide in (("c_kv", keys), ("c_q", block.q_rank)) if wide]
        case "expert_select":
            does = f"the {int(block.top_k)} best of each token"
            made = [on.out("shares", block.top_k), on.out("chosen", block.top_k, dtype="int32")]
        case _:
            made = [on.out(row.out, op.written)]
    yield on.stop(row.name, does, made, op)


def _collective(on: Scene, block: Any, op: Collective) -> Stops:
    """The payload is read and written once here, and sent as the algorithm needs."""
    row, split, width = _row(on, block, op), on.shard.deployment, op.width
    rows = (on.step.rows,) if op.sampled else on.tokens
    if op.name == "expert_gather":
        rows = (on.step.tokens * on.step.replicas,)
    elif op.kind == "reduce_scatter" and not op.replicas:
        width = width / split.tp
    elif op.kind == "all_to_all":
        width = block.latent or on.shard.hidden
        op, copies = _counted(on, block, op, width)
        rows = (on.step.tokens * copies,) if row.out == "sent" else rows
    ranks = f"{written(split.dp * split.cp)} replicas" if op.replicas else "tp ranks"
    does = row.does or f"{op.kind.replace('_', '-')} over {ranks}"
    yield on.stop(row.name, does, [on.tensor(row.out, *rows, width)], op, row.note)


def _counted(on: Scene, block: Any, op: Collective, wide: Any) -> tuple[Collective, Any]:
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


def _copied(on: Scene, block: Any, op: Embedding | Exchange) -> Stops:
    """A row for each token: of a table, as learned positions are too; or a copy for an expert, a rank or a host."""
    table = isinstance(op, Embedding) and ("embedding" if op.module == "embedding" else "positions")
    row = _ROWS[table] if table else _row(on, block, op)
    yield on.stop(row.name, row.does, [on.out(row.out, op.width)], op, row.note)


def _sampling(on: Scene, block: None, op: Sampling) -> Stops:
    yield on.stop("sampling", "one token from each row", [on.tensor("token", on.step.rows, dtype="int64")], op)


def _norm(on: Scene, addition: Addition, op: Elementwise) -> Stops:
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
    residual = on.stop("residual", "stream + what the block returned", [on.out("stream", wide)], op,
                       note if addition is Addition.BEFORE else "", weights=(),
                       work=on.work(*on.launches(op)) - alone)  # fmt: skip
    yield from (residual, norm) if addition is Addition.BEFORE else (norm, residual)


def _heads(on: Scene, block: Any) -> list[Tensor]:
    """Queries, keys and values by head."""
    tp = on.shard.tp
    if isinstance(block, LightningAttention):
        return [on.out(name, block.heads // tp, block.head_dim) for name in ("Q", "K", "V")]
    if isinstance(block, GatedDeltaNet):
        keys, values = ((block.key_heads // tp, block.key_dim), (block.value_heads // tp, block.value_dim))
        return [on.out("Q", *keys), on.out("K", *keys), on.out("V", *values), on.out("gate", *values)]
    heads, shared, dim = block.heads // tp, on.shard.kv_heads(block.kv_heads), block.head_dim
    gate = [on.out("gate", heads * dim)] if block.gated else []
    if block.shared:
        return [on.out("Q", heads, dim)]
    return [on.out("Q", heads, dim), on.out("K", shared, dim), on.out("V", shared, block.v_head_dim), *gate]


def _append(on: Scene, block: Any, op: KVAppend) -> Stops:
    row, note, dtype = _ROWS["kv_append"], "", on.plan.precision.kv
    cache: list[tuple[Any, ...]]
    if op.name == "index_append":
        row, cache, dtype = _ROWS[op.name], [(op.elements,)], on.plan.precision.index
    elif isinstance(block, LatentAttention):
        row, cache = _ROWS["latent_append"], [(block.latent_dim,)]
        note = "one latent for all heads, on every rank: tp does not divide it" if on.plan.deployment.tp > 1 else ""
    elif isinstance(block, CompressedAttention):
        row, cache = _ROWS["compressed_append"], [(block.head_dim,)]
    else:
        shared = on.shard.kv_heads(block.kv_heads)
        cache = [(shared, block.head_dim), (shared, block.v_head_dim)]
        note = "an engine may drop keys that have left the window" if block.window or block.chunk else ""
    named = zip(row.out.split(", "), cache, strict=True)
    made = [on.tensor(out, *on.cached, *axes, dtype=dtype) for out, axes in named]
    yield on.stop(row.name, row.does, made, op, note or row.note)


def _core(on: Scene, block: Any, op: Any) -> Stops:
    """One fused kernel, which never writes scores to memory; here in the order of the formula."""
    core, decode = getattr(op, "core", op), on.phase == "decode"
    value, absorbed = core.v_dim, decode and isinstance(core, LatentCore)
    if isinstance(core, AttentionCore):
        rest, scored, note = replace(core, qk_dim=0), "Q·Kᵀ/√d", _groups(block)
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
        within = " and within reach" if isinstance(block, Attention) and (block.window or block.chunk) else ""
        own = ", of its own sequence" if on.prompts.packed else ""
        seen = f"{round(on.symbols['pairs'].value):,} of {round(on.cells):,} cells a head are seen"
        note = f"{seen}, and only those are computed and counted"
        yield on.stop(
            "causal mask", f"only keys up to the token{within}{own}", [scores], op, note, work=Work(), weights=()
        )
    sinks = on.held(core, "sinks")
    note = "about 5 operations a pair, on other units; not counted (FlashAttention-2, section 4.1)"
    note += "; the sinks take their share" if sinks else ""
    yield on.stop("softmax", "each row adds up to 1", [weights], op, note, work=Work(), weights=())
    rows = (on.sequences.tokens,) if decode and core is not op else on.tokens  # all queries, a part of the keys
    does, heads = "weights·latent" if absorbed else "weights·V", on.tensor("heads", *rows, core.heads, value)
    yield on.stop("weighted sum", does, [heads], op, work=summed, weights=sinks)
    yield from on.later
    on.later.clear()
    if not absorbed:
        yield _joined_heads(on, block)


def _groups(block: Attention) -> str:
    shared = int(block.heads / block.kv_heads)
    if shared == 1:
        return "each query head has keys and values of its own"
    return f"{shared} query heads read each KV head" if block.kv_heads > 1 else "all query heads read one KV head"


def _exchanged(on: Scene, block: Any, op: ContextExchange) -> Stops:
    """What ranks that share a context send each other for one attention."""
    every, keys = on.sequences.tokens, on.sequences.keys_read(op.window, op.chunk)
    axes = {
        "context_gather": (keys, op.cached), "context_queries": (every, op.queries),
        "context_results": (every, op.results), "context_merge": (*on.tokens, op.results),
    }  # fmt: skip
    for kernel in on.launches(op):
        row = _ROWS[kernel.name]
        out = on.tensor(row.out, *axes[kernel.name])
        stop = on.stop(row.name, row.does, [out], op, work=on.work(kernel))
        on.later.append(replace(stop, kernel=kernel.name))
    yield on.later.pop(0)


def _up_projected(on: Scene, block: LatentAttention, op: LatentUpProjection) -> Stops:
    """Prefill: keys and values of every head, spelt out from the cached latents."""
    *batch, part = on.cached
    keys = (*batch, part * on.step.context_ranks)
    spelt = on.tensor("kv", *keys, op.heads * (op.nope_dim + op.v_dim))
    yield on.stop("K, V up-projection", "latent·Wᵀ", [spelt], op, "of every key, cached ones too")
    heads = [on.tensor(name, *keys, op.heads, wide) for name, wide in (("K", block.qk_dim), ("V", op.v_dim))]
    yield on.view("split heads", "the rotary key joins every head", *heads)


def _absorbed(on: Scene, block: LatentAttention, op: BatchedLinear) -> Stops:
    """Decode: the halves of the up-projection move to the query and to the result; cached latents stay as they are."""
    row, inner = _ROWS[op.name], op.k if op.name == "q_absorb" else op.n
    weight = on.tensor("W", op.batch, inner, block.kv_rank, dtype=op.weight)
    yield on.stop(row.name, row.does, [on.out(row.out, op.batch, op.n)], op, row.note, weights=[weight])


def _indexed(on: Scene, block: Any, op: IndexScores) -> Stops:
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


def _chosen(on: Scene, block: Any, op: ChosenCore) -> Stops:
    """Scores, softmax and sum over the keys of each query, in one launch that is not parted."""
    what = "the best keys" if op.top_k else "every compressed key" if op.ratio else "the window alone"
    note = f"{what}{f' and a window of {op.window} tokens' if op.window and op.ratio else ''}; one fused launch"
    yield on.stop("attention", "softmax(Q·Kᵀ/√d)·V", [on.out("heads", op.heads, op.head_dim)], op, note)


def _experts(on: Scene, block: Any, op: Experts) -> Stops:
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

    def weights(n: Any, k: Any) -> list[Tensor]:
        bias = [on.tensor("bias", local, n, dtype="bf16")] if op.bias else []
        return [on.tensor("W", local, n, k, dtype=op.weight), *bias]

    yield on.view("sort by expert", "a row for each token and expert", on.tensor("rows", rows, op.hidden))
    product, said = "rows·Wᵀ of their expert", f"weights of the {touched:.4g} of {here}"
    yield on.stop(f"expert {kind}", product, [on.tensor(out, rows, first)], op, said,
                  work=up - once.times(2), weights=weights(first, op.hidden))  # fmt: skip
    yield on.stop("expert activation", act, [on.tensor("inner", rows, op.width)], op,
                  "inside the launch: nothing counted", work=Work(), weights=())  # fmt: skip
    yield on.stop("expert down", product, [on.tensor("rows", rows, op.hidden)], op,
                  work=down - once.times(2), weights=weights(op.hidden, op.width))  # fmt: skip
    yield on.stop("combine", does, [on.tensor("x", *axes, op.hidden)], op, note, work=once, weights=())


def _convolution(on: Scene, block: Any, op: ShortConvolution) -> Stops:
    """A depthwise causal convolution over t tokens."""
    state = on.tensor("state", on.sequences.sequences, op.channels, op.taps - 1)
    yield on.stop("short convolution", "t tokens of each channel", [on.out("x", op.channels), state], op,
                  "keeps the last t-1 inputs")  # fmt: skip


def _recurrence(on: Scene, block: Any, op: StateUpdate) -> Stops:
    """S <- decay(S) + v·kᵀ, o = S·q; the state is read and written once a step, however many tokens."""
    row, (heads, *axes) = _ROWS[op.name], (getattr(block, name) for name in _STATES[op.name])
    held = heads // on.shard.tp
    wide = {"delta_rule": axes[-1:], "selective_scan": []}.get(op.name, axes[:1])
    made = [on.tensor("state", on.sequences.sequences, held, *axes, dtype=STATE_DTYPE), on.out("x", held, *wide)]
    note = "a state of fixed size takes the place of the cache"
    yield on.stop(row.name, row.does, made, op, note)


def _views(on: Scene, block: Any, name: str) -> Stops:
    """What is seen in another shape behind an operation; nothing moves."""
    tp = on.shard.tp
    match name, block:
        case "qkv_proj", Attention() if block.q_rank:
            yield on.view("split queries", "cut the last axis", on.out("c_q", block.q_rank), *_heads(on, block)[1:])
        case "q_b_proj", Attention():
            yield on.view("split heads", "cut the last axis into heads", _heads(on, block)[0])
        case "qkv_proj", Attention():
            note = "one projection is both keys and values" if block.keys_are_values else "a view: nothing moves"
            yield on.view("split heads", "cut the last axis into heads", *_heads(on, block), note=note)
        case (("qkv_proj" | "linear_qkvz_proj"), _):
            yield on.view("split heads", "cut the last axis into heads", *_heads(on, block))
        case (("q_proj" | "q_b_proj"), LatentAttention()):
            rotary = on.out("Q rope", block.heads // tp, block.rope_dim)
            plain = on.out("Q nope", block.heads // tp, block.nope_dim)
            yield on.view("split heads", "cut into heads, each in two parts", plain, rotary)
        case "qkv_a_proj", CompressedAttention():
            yield on.view(
                "split latents", "cut the last axis", on.out("c_q", block.q_rank), on.out("k", block.head_dim)
            )
        case (("kv_a_proj" | "qkv_a_proj"), _):
            parts = (("c_q", block.q_rank), ("c_kv", block.kv_rank), ("k rope", block.rope_dim))
            yield on.view("split latents", "cut the last axis", *(on.out(part, wide) for part, wide in parts if wide))
        case "q_absorb", _:
            joined = on.out("Q", block.heads // tp, block.latent_dim)
            yield on.view("join Q", "latent and rotary part side by side", joined)
        case "v_absorb", _:
            yield _joined_heads(on, block)
        case "in_proj", Mamba2():
            inner, groups = block.heads // tp * block.head_dim, max(block.groups // tp, 1) * block.state
            wides = {"gate": inner, "x": inner, "B": groups, "C": groups, "dt": block.heads // tp}
            yield on.view("split", "cut the last axis", *(on.out(part, wide) for part, wide in wides.items()))
        case "final_norm", _:
            last = on.tensor("x", on.step.rows, on.shard.hidden)
            yield on.view("last token", "the last row of each sequence", last, note="only it says what comes next")


def _joined_heads(on: Scene, block: Any) -> Stop:
    wide = block.v_head_dim if isinstance(block, Attention) else block.v_dim
    return on.view("concatenate heads", "heads side by side", on.out("x", block.heads // on.shard.tp * wide))


_KINDS: Mapping[type, Callable[..., Stops]] = {
    AttentionCore: _core, BatchedLinear: _absorbed, ChosenCore: _chosen, Collective: _collective,
    ContextExchange: _exchanged, ContextShare: _core, Exchange: _copied,
    Elementwise: _pass, Embedding: _copied, Experts: _experts, IndexScores: _indexed,
    KVAppend: _append, LatentCore: _core, LatentUpProjection: _up_projected, Linear: _linear, Sampling: _sampling,
    ShortConvolution: _convolution, StateUpdate: _recurrence,
}  # fmt: skip
_NORMS = ("residual_norm", "embedding_norm", "final_norm")
