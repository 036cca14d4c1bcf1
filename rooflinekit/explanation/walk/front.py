"""The front door of the walk: the operations that `estimate` costs, in the order in which tensors pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from os import PathLike
from typing import Any, TypeAlias, Unpack

from rooflinekit.estimation.estimator import deploy, inputs
from rooflinekit.estimation.options import keywords, read
from rooflinekit.estimation.scenario import Shapes
from rooflinekit.explanation.walk.letters import letters_of, rank
from rooflinekit.explanation.walk.prompts import PhaseName, Prompts, read_prompts
from rooflinekit.explanation.walk.result import Phase, Walk, WalkSection
from rooflinekit.explanation.walk.scene import WalkScene
from rooflinekit.explanation.walk.stops import Addition, stops
from rooflinekit.model.blocks import entry_operations, exit_operations, layer_operations, stage_operations
from rooflinekit.model.kernels.collective import Collective
from rooflinekit.model.kernels.operation import Operation
from rooflinekit.model.shard import Shard
from rooflinekit.model.step import Plan
from rooflinekit.model.types.errors import ArchitectureError
from rooflinekit.model.types.model import Attention, DenseFFN, LatentAttention, Layer, MixtureOfExperts
from rooflinekit.model.types.workload import Workload
from rooflinekit.version import __version__

_WORD = 3  # letters of the shortest symbol that could be a word of its own
Part: TypeAlias = "tuple[Any, list[Operation]]"


def walk_phase(plan: Plan, prompts: Prompts, phase: PhaseName) -> Phase:
    """One engine step: what stands before the layers, each kind of layer, what stands behind them."""
    start, end = WalkScene(plan, prompts, phase), WalkScene(plan, prompts, phase)
    entry = entry_operations(start.lettered(plan.model), start.shard)
    exit_ = exit_operations(end.lettered(plan.model), end.shard)
    last = Addition.NONE if _normed_behind(plan.model.layers[-1]) else Addition.BEFORE
    sections = (
        _section(start, "tokens to the residual stream", [(Addition.NONE, entry)]),
        *(
            _layer_section(WalkScene(plan, prompts, phase), layer)
            for layer in plan.model.layer_counts
            if not plan.model.passes_by(layer)
        ),
        *_hand_overs(plan, prompts, phase),
        _section(end, "logits and the next token", [(last, exit_)]),
    )
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


def _section(
    on: WalkScene, title: str, parts: Iterable[Part], layers: Sequence[int] = (), count: int = 1
) -> WalkSection:
    """Stops with the letters that stand in them."""
    made = tuple(stop for block, operations in parts for op in operations for stop in stops(on, block, op))
    letters = {name for stop in made for text in stop.lettered for name in letters_of(text)}
    met = {name: symbol for name, symbol in on.symbols.items() if name in letters}
    told = {name for symbol in met.values() for name in letters_of(symbol.meaning) if len(name) < _WORD}
    met |= {name: on.symbols[name] for name in told & on.symbols.keys()}  # such as P in S·P+S·(S+1)/2
    symbols = tuple(met[name] for name in sorted(met, key=rank))
    return WalkSection(title, _ranges(layers) if layers else "", len(layers) or count, symbols, made)


def _hand_overs(plan: Plan, prompts: Prompts, phase: PhaseName) -> Iterator[WalkSection]:
    """From stage to stage, once for each kind of link that lies between."""
    stages, shard = plan.deployment.pp, plan.shard
    held = (
        stage_operations(plan.model, shard.deployment, plan.precision, stage, shard.domain)
        for stage in range(stages - 1)
    )
    sends = Counter(op for stage in held for op in stage if isinstance(op, Collective) and op.kind == "send")
    for op, count in sends.items():
        title = f"between the stages of layers {_stages(plan.model.depth, stages)}"
        on = WalkScene(plan, prompts, phase)
        yield _section(on, title, [(None, [replace(op, width=on.shard.hidden / on.shard.tp)])], count=count)


def _stages(depth: int, stages: int) -> str:
    """The layers of each stage, or of the first few.

    >>> _stages(32, 4)
    '0–7 | 8–15 | 16–23 | 24–31'
    """
    ends = [stage * depth // stages for stage in range(stages + 1)]
    texts = [_ranges(range(*pair)) for pair in pairwise(ends)]
    return " | ".join(texts if len(texts) <= 4 else [*texts[:3], "…", texts[-1]])


def _layer_section(on: WalkScene, layer: Layer) -> WalkSection:
    """One kind of layer; what it sees and its letters are its own."""
    blocks = {name: on.lettered(block) for name in ("mixer", "ffn") if (block := getattr(layer, name))}
    parts = layer_parts(replace(layer, **blocks), on.shard)
    alike = [index for index, other in enumerate(on.plan.model.layers) if other == layer]
    return _section(on, _kind(layer, on.phase), parts, alike)


def layer_parts(layer: Layer, shard: Shard) -> Iterator[Part]:
    """The operations of a layer in the order of the forward pass, by block, or by where a norm's addition stands.

    `layer_operations` lists norms first and collectives last, since order costs nothing.
    """
    if layer.vectors:
        alone = replace(layer, mixer=None, ffn=None, norms=0, parallel=True)
        yield Addition.NONE, layer_operations(alone, shard)[:1]
        layer = replace(layer, vectors=0)
    blocks = [block for block in (layer.mixer, layer.ffn) if block is not None]
    bare = replace(layer, mixer=None, ffn=None)
    collectives = layer_operations(replace(bare, norms=0, parallel=True), shard)
    before, joins = collectives[:-1], collectives[-1:]
    norms = layer_operations(replace(bare, parallel=False), shard)
    if layer.parallel:
        yield Addition.BEFORE, norms[:1]
        yield Addition.NONE, [*norms[1:], *before]
        for block in blocks:
            yield block, _alone(layer, block, shard, len(collectives))
        yield Addition.NONE, joins
        return
    behind = _normed_behind(layer)
    for number, block in enumerate(blocks):
        rest = len(norms) if number == len(blocks) - 1 else (number + 1) * (1 + behind)
        own = norms[number * (1 + behind) : rest]
        others = own[1:]
        yield Addition.NONE if behind else Addition.BEFORE, own[:1]  # none: it reads what another layer normalised
        yield Addition.NONE, before
        yield block, _alone(layer, block, shard, len(collectives))
        yield Addition.NONE, [*joins, *others[:-1]]
        yield Addition.BEHIND, others[-1:]


def _normed_behind(layer: Layer) -> bool:
    """True if what a block returns is normalised before it joins the stream (Gemma-2)."""
    blocks = (layer.mixer is not None) + (layer.ffn is not None)
    return not layer.parallel and layer.norms > blocks


def _alone(layer: Layer, block: Any, shard: Shard, joins: int) -> list[Operation]:
    """The operations of one block, without its collectives over the ranks of a layer."""
    mixer, ffn = (block, None) if block is layer.mixer else (None, block)
    operations = layer_operations(replace(layer, mixer=mixer, ffn=ffn, norms=0, parallel=False), shard)
    return operations[: len(operations) - joins]


def _kind(layer: Layer, phase: PhaseName) -> str:
    """Kind of layer, in words."""
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
    elif isinstance(ffn, MixtureOfExperts):
        words.append(f"{ffn.experts} experts, {ffn.top_k} a token" + (", shared ones" if ffn.shared_width else ""))
    elif ffn is not None:
        words.append(type(ffn).__name__)
    return "; ".join(words) + ("; side by side" if layer.parallel else "")


def _ranges(numbers: Sequence[int]) -> str:
    """Runs of layers, or the first few of them.

    >>> _ranges([0, 1, 2, 5]), _ranges([0, 2, 4, 6, 8, 10])
    ('0–2, 5', '0, 2, 4, … 10')
    """
    runs = ([number for _, number in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]))
    texts = ["–".join(dict.fromkeys((str(run[0]), str(run[-1])))) for run in runs]
    return ", ".join(texts) if len(texts) <= 4 else f"{', '.join(texts[:3])}, … {texts[-1]}"


@keywords(Shapes)
def shapes(model: str | PathLike[str], gpu: str | PathLike[str] = "h100-sxm", **scenario: Unpack[Shapes]) -> Walk:
    """Walk every tensor of a prefill, and of the decode step behind it, through a model.

    Args:
        model: a name, a Hugging Face id, or a path to a config.json or the folder that holds it.
        gpu: an accelerator's name or path: which number formats there are, and how many can share a layer.
        **scenario: the options of `Shapes` in docs/cli.md: tokens or a prompt, degrees, formats; None is the default.

    Returns:
        A `Walk`: for each step its tensors with shapes in letters and numbers, FLOP and bytes with their formulas. The
        work is that of `estimate`'s kernels, for one accelerator; attention is counted causal.

    Raises:
        InputError: (and its kinds) for anything that makes no sense.

    >>> walk = shapes("llama-3-8b", tokens=6)
    >>> scores = next(stop for stop in walk.phases[0].sections[1].stops if stop.name == "scores")
    >>> scores.outputs[0].letters, scores.outputs[0].numbers, scores.work.flops  # 2·32·128·21 of 36 pairs
    ('[H, S, T]', '[32, 6, 6]', 172032.0)
    """
    given = read(Shapes, scenario)
    prompts = read_prompts(given.get("tokens"), given.get("prompt"), given.get("batch", 1), given.get("cached", 0))
    resolved = deploy(model, gpu, {**given, "calibration": "none"})
    if resolved.plan.model.encoder is not None:
        name = resolved.plan.model.name
        raise ArchitectureError(f"{name}: an encoder is costed, but not walked; see `estimate --kernels`")
    return walk(resolved.plan, prompts, resolved.warnings)


def walk(plan: Plan, prompts: Prompts, warnings: tuple[str, ...] = ()) -> Walk:
    """The walk of prompts through a plan, both phases."""
    accelerator, mine = plan.system.accelerator, prompts.shared(plan.deployment.dp, plan.deployment.microbatches)
    sizes = {"tokens": list(prompts.lengths), "batch": prompts.sequences, "cached": prompts.cached}
    asked = inputs(plan, Workload())
    return Walk(
        version=__version__,
        model=plan.model.name,
        gpu=accelerator.name,
        inputs=sizes | {"padded_tokens": prompts.padded_tokens} | {key: asked[key] for key in _INPUTS},
        words=prompts.words,
        phases=(walk_phase(plan, mine, "prefill"), walk_phase(plan, mine, "decode")),
        ridge=float(accelerator.peak(plan.precision.stream)) / float(accelerator.memory_bandwidth),
        warnings=(*warnings, *_notes(plan, prompts)),
    )


_INPUTS = ("tp", "pp", "ep", "dp", "cp", "sequence_parallel", "skew", "redundant_experts", "kv_policy", "weights",
           "activations", "kv")  # fmt: skip


def _notes(plan: Plan, prompts: Prompts) -> list[str]:
    notes = []
    if prompts.words:
        notes.append(
            "words and marks of the prompt stand in for tokens. A tokenizer cuts long words, and often adds a token "
            "for the beginning"
        )
    longest, limit = max(prompts.lengths) + 1, plan.model.max_context
    if limit is not None and longest > limit:
        notes.append(f"{longest} tokens are more than the {limit} that {plan.model.name} was made for")
    return notes
