"""From a plan and prompts to the walk: the operations that `estimate` costs, in the order in which tensors pass."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any, TypeAlias

from rooflinekit.explanation.walk.attention import ATTENTION, attention_letters
from rooflinekit.explanation.walk.ends import ENTRY, EXIT, normed_behind
from rooflinekit.explanation.walk.exchange import hand_over
from rooflinekit.explanation.walk.experts import EXPERTS, expert_letters
from rooflinekit.explanation.walk.feedforward import DENSE, dense_letters
from rooflinekit.explanation.walk.formula import letters_of
from rooflinekit.explanation.walk.latent import LATENT, latent_letters
from rooflinekit.explanation.walk.parts import Addition, collective, norm
from rooflinekit.explanation.walk.prompts import PhaseName, Prompts
from rooflinekit.explanation.walk.recurrent import DELTA_NET, LIGHTNING, MAMBA, MAMBA2, recurrent_letters
from rooflinekit.explanation.walk.result import Phase, Section, Stop, Symbol, Work
from rooflinekit.explanation.walk.scene import Scene
from rooflinekit.model.kernels import Collective, Operation
from rooflinekit.model.layers import Shard, entry_operations, exit_operations, layer_operations, stage_operations
from rooflinekit.model.step import Plan
from rooflinekit.model.types.errors import RooflinekitError
from rooflinekit.model.types.model import (
    Attention,
    DenseFFN,
    GatedDeltaNet,
    LatentAttention,
    Layer,
    LightningAttention,
    Mamba,
    Mamba2,
    MixtureOfExperts,
)

__all__ = ["layer_parts", "walk_phase"]

Table: TypeAlias = Mapping[str, Callable[[Any, Scene, Any], Sequence[Stop]]]
Part: TypeAlias = "tuple[object, list[Operation]]"
_TABLES: dict[type, Table] = {
    Attention: ATTENTION,
    LatentAttention: LATENT,
    GatedDeltaNet: DELTA_NET,
    LightningAttention: LIGHTNING,
    Mamba: MAMBA,
    Mamba2: MAMBA2,
    DenseFFN: DENSE,
    MixtureOfExperts: EXPERTS,
}


def walk_phase(plan: Plan, prompts: Prompts, phase: PhaseName) -> Phase:
    """One engine step: what stands before the layers, each kind of layer, what stands behind them."""
    on, shard = Scene.of(plan, prompts, phase), plan.shard
    entry = _section(on, "tokens to the residual stream", _stops(on, ENTRY, None, entry_operations(plan.model, shard)))
    exit_ = _section(on, "logits and the next token", _stops(on, EXIT, None, exit_operations(plan.model, shard)))
    layers = [_layer(on, layer, shard) for layer in plan.model.layer_counts]
    sections = (entry, *layers, *_hand_overs(on), exit_)
    return Phase(phase, _title(prompts, phase), *prompts.cu_seqlens(phase), sections)


def _title(prompts: Prompts, phase: PhaseName) -> str:
    if phase == "decode":
        what = "one new token" if prompts.sequences == 1 else f"one new token of each of {prompts.sequences} sequences"
        return f"{what}, the sampled one, against the cache"
    if prompts.packed:
        return f"{sum(prompts.new):,} tokens of {prompts.sequences} prompts, packed without padding"
    each = f"{prompts.new[0]:,} token{'s' if prompts.new[0] > 1 else ''}"
    before = f" behind {prompts.cached:,} cached ones" if prompts.cached else ""
    return (f"{prompts.count} prompts of {each}" if prompts.count > 1 else each) + before + ", all at once"


def _section(on: Scene, title: str, stops: Iterable[Stop]) -> Section:
    stops = tuple(stops)
    return Section(title, "", 1, _used(on, stops), stops)


def _hand_overs(on: Scene) -> Iterator[Section]:
    """From stage to stage, once for each kind of link that lies between."""
    plan, split = on.plan, on.plan.shard.deployment
    held = (stage_operations(plan.model, split, plan.precision, stage, plan.system.domain_size)
            for stage in range(split.pp - 1))  # fmt: skip
    sends = Counter(op for stage in held for op in stage if isinstance(op, Collective) and op.kind == "send")
    for op, count in sends.items():
        stops = tuple(_stops(on, _SEND, None, [op]))
        yield Section(f"between the stages of layers {_stages(plan.model.depth, split.pp)}", "", count,
                      _used(on, stops), stops)  # fmt: skip


def _stages(depth: int, stages: int) -> str:
    """The layers of each stage, or of the first few.

    >>> _stages(32, 4)
    '0–7 | 8–15 | 16–23 | 24–31'
    """
    ends = [stage * depth // stages for stage in range(stages + 1)]
    texts = [_ranges(range(*pair)) for pair in pairwise(ends)]
    return " | ".join(texts if len(texts) <= 4 else [*texts[:3], "…", texts[-1]])


def _layer(on: Scene, layer: Layer, shard: Shard) -> Section:
    """One kind of layer; what it sees and its letters are its own."""
    stops: list[Stop] = []
    for block, operations in layer_parts(layer, shard):
        on = _knowing(on, block)
        stops += _stops(on, _AROUND if isinstance(block, Addition) else _TABLES[type(block)], block, operations)
    alike = [index for index, other in enumerate(on.plan.model.layers) if other == layer]
    return Section(_kind(layer, on.phase), _ranges(alike), len(alike), _used(on, stops), tuple(stops))


def layer_parts(layer: Layer, shard: Shard) -> Iterator[Part]:
    """The operations of a layer in the order of the forward pass, by block, or by where a norm's addition stands.

    `layer_operations` lists norms first and all-reduces last, since order costs nothing.
    """
    blocks = [block for block in (layer.mixer, layer.ffn) if block is not None]
    bare = replace(layer, mixer=None, ffn=None)
    joins = layer_operations(replace(bare, norms=0, parallel=True), shard)
    norms = layer_operations(replace(bare, parallel=False), shard)
    if layer.parallel:
        yield Addition.BEFORE, norms[:1]
        yield Addition.NONE, norms[1:]
        for block in blocks:
            yield block, _alone(layer, block, shard, len(joins))
        yield Addition.NONE, joins
        return
    behind = normed_behind(layer)
    for number, block in enumerate(blocks):
        rest = len(norms) if number == len(blocks) - 1 else (number + 1) * (1 + behind)
        before, *others = norms[number * (1 + behind) : rest]
        yield Addition.NONE if behind else Addition.BEFORE, [before]
        yield block, _alone(layer, block, shard, len(joins))
        yield Addition.NONE, [*joins, *others[:-1]]
        yield Addition.BEHIND, others[-1:]


def _alone(layer: Layer, block: object, shard: Shard, joins: int) -> list[Operation]:
    """The operations of one block, without its all-reduce."""
    mixer, ffn = (block, None) if block is layer.mixer else (None, block)
    operations = layer_operations(replace(layer, mixer=mixer, ffn=ffn, norms=0, parallel=False), shard)  # type: ignore[arg-type]
    return operations[: len(operations) - joins]


def _knowing(on: Scene, block: object) -> Scene:
    match block:
        case Attention():
            return on.seeing(block.window, block.chunk).knowing(*attention_letters(block))
        case LatentAttention():
            limit = block.indexer.top_k if block.indexer else None
            return on.seeing(top_k=limit).knowing(*latent_letters(block, on))
        case GatedDeltaNet() | LightningAttention() | Mamba() | Mamba2():
            return on.knowing(*recurrent_letters(block))
        case DenseFFN():
            return on.knowing(*dense_letters(block))
        case MixtureOfExperts():
            return on.knowing(*expert_letters(block, on))
    return on


def _norm(addition: Addition, on: Scene, op: Any) -> list[Stop]:
    return norm(on, op, "norm", addition)


def _join(addition: Addition, on: Scene, op: Collective) -> list[Stop]:
    return [collective(on, op, "D", "x", "each rank holds a part of the sum")]


def _send(block: None, on: Scene, op: Collective) -> list[Stop]:
    return hand_over(on, op)


_SEND: Table = {"pipeline_send": _send, "pipeline_send_nic": _send}
_AROUND: Table = {"residual_norm": _norm, "all_reduce": _join}


def _stops(on: Scene, table: Table, block: object, operations: Iterable[Operation]) -> Iterator[Stop]:
    """The stops of operations, those that the step gives nothing to do left out."""
    for op in operations:
        kernels = op.kernels(on.step, 1)
        if not kernels:
            continue
        name = getattr(op, "name", "")
        stops = table[name if name in table else type(op).__name__](block, on, op)
        counted = [getattr(kernel, field.name) for field in fields(Work) for kernel in kernels]
        _reconcile(op, stops, Work(*(float(each) for each in counted)))
        yield from stops


def _reconcile(op: Operation, stops: Sequence[Stop], counted: Work) -> None:
    """What is shown adds up to what `estimate` counts, or nothing is shown."""
    shown = Work.total([stop.work for stop in stops])
    for field in fields(Work):
        ours, theirs = getattr(shown, field.name), getattr(counted, field.name)
        if not math.isclose(ours, theirs, rel_tol=1e-9):
            name = stops[0].kernel or type(op).__name__
            raise RooflinekitError(
                f"the walk's {field.name} of {name} ({ours:.6g}) are not estimate's ({theirs:.6g}); please report"
            )


def _used(on: Scene, stops: Iterable[Stop]) -> tuple[Symbol, ...]:
    """The letters that stand in shapes and formulas."""
    found: set[str] = set()
    for stop in stops:
        axes = [axis for tensor in (*stop.outputs, *stop.weights) for axis in tensor.symbols]
        for text in (*axes, stop.flops_formula, stop.bytes_formula, stop.network_formula):
            found.update(letters_of(text))
    return tuple(symbol for symbol in on.symbols if symbol.name in found)


def _kind(layer: Layer, phase: PhaseName) -> str:
    """What kind of layer it is, in words."""
    mixer, ffn = layer.mixer, layer.ffn
    words = []
    if isinstance(mixer, Attention):
        reach = f", window of {mixer.window}" if mixer.window else f", chunks of {mixer.chunk}" if mixer.chunk else ""
        words.append(mixer.kind.upper() + reach)
    elif isinstance(mixer, LatentAttention):
        form = "absorbed" if phase == "decode" else "up-projected"
        words.append(f"MLA, {form}" + (", best keys only" if mixer.indexer else ""))
    elif mixer is not None:
        words.append(mixer.kind.replace("_", " "))
    if isinstance(ffn, DenseFFN):
        words.append("gated FFN" if ffn.gated else "FFN")
    elif ffn is not None:
        words.append(f"{ffn.experts} experts, {ffn.top_k} a token" + (", shared ones" if ffn.shared_width else ""))
    return "; ".join(words) + ("; side by side" if layer.parallel else "")


def _ranges(numbers: Sequence[int]) -> str:
    """Runs of layers, or the first few of them.

    >>> _ranges([0, 1, 2, 5]), _ranges([0, 2, 4, 6, 8, 10])
    ('0–2, 5', '0, 2, 4, … 10')
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    texts = ["–".join(map(str, run)) for run in runs]
    return ", ".join(texts) if len(texts) <= 4 else f"{', '.join(texts[:3])}, … {texts[-1]}"
