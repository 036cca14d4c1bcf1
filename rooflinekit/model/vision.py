"""The vision tower as operations: each prompt's images are encoded in the step that ends the prompt.

An engine encodes images before the piece of a prompt that holds them; most prompts are one piece, and of others it is
the last one here, so that each prompt pays for its images once. They are new: nothing is found in a cache of encodings.
"""

from __future__ import annotations

from rooflinekit.model.graph.symbol import named
from rooflinekit.model.kernels.attention import encoder_kernel
from rooflinekit.model.kernels.elementwise import Elementwise
from rooflinekit.model.kernels.gemm import Linear
from rooflinekit.model.kernels.operation import Operation, Step, Weights, Wrapped
from rooflinekit.model.shard import Shard
from rooflinekit.model.types.batch import Batch, Sequences
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.model.types.kernel import Kernel
from rooflinekit.model.types.numeric import is_zero
from rooflinekit.model.types.vision import Images, Vision, Whole


@dataclass(frozen=True, slots=True)
class BidirectionalAttention(Operation):
    """softmax(Q K^T) V in which every patch of a sequence sees every other: 4·b·s²·h·d FLOP, one fused kernel."""

    name: str
    heads: int
    head_dim: int

    def kernels(self, step: Step, count: int) -> list[Kernel]:
        """One launch over all sequences; queries, keys and values are read, results written."""
        seen = step.batch.prefilling
        if seen is None:
            return []
        sizes = seen.count, seen.new, self.heads, self.head_dim
        return [encoder_kernel(self.name, count, step.stream, *sizes, step.stream.bytes, seen.past)]


@dataclass(frozen=True, slots=True)
class OfImages(Wrapped):
    """An operation over the patches of the images of every prompt that ends in a step: its own sequences, not tokens.

    Its weights are among those of the tower (`Model.tower`), or, of an encoder of sound, `counted` with the others.
    """

    sequences: float  #: of each prompt
    length: int
    counted: bool = False

    @property
    def weights(self) -> tuple[Weights, ...]:
        """Weights of the operation, where nobody else counts them."""
        return self.held.weights if self.counted else ()

    def kernels(self, step: Step, count: int) -> list[Kernel]:
        """Kernels of the operation, where a prompt ends."""
        prompts = step.batch.prefilling
        ended = 0.0 if prompts is None else prompts.sampled_rows
        if is_zero(ended):
            return []
        sequences = named(ended * self.sequences, "pictures", "sequences of patches: images of the prompts that end")
        seen = Batch(prefilling=Sequences(sequences, float(self.length)))
        return self.held.kernels(Step(seen, step.stream, step.kv), count)


def vision_operations(vision: Vision, images: Images, shard: Shard) -> list[tuple[list[Operation], int]]:
    """Patch embedding, layers and projector for the images of each prompt, with counts; in the stream's 16-bit format.

    Heads and inner widths are cut over the ranks where they can be; the projector is on every rank.
    """
    cut, hidden = vision.cut(images), vision.hidden
    sequences = images.count * cut.sequences
    embed = _linear("patch_embed", vision.inputs, hidden, shard)
    windowed = vision.layers - vision.full if vision.window else 0
    runs: list[tuple[list[Operation], int]] = [([OfImages(embed, sequences, cut.patches)], 1)]
    for times, window in ((vision.layers - windowed, 0), (windowed, vision.window)):
        if times:
            runs.append((_layer(vision, (sequences, cut.patches), window, shard), times))
    projector: list[Operation] = [
        OfImages(_linear(f"projector_{at}", before, after, shard), sequences, cut.merged)
        for at, (before, after) in enumerate(vision.projector, 1)
    ]
    return [*runs, (projector, 1)]


def _layer(vision: Vision, patches: tuple[int, int], window: int, shard: Shard) -> list[Operation]:
    """One layer of the tower; with a window, attention is within windows of so many patches."""
    hidden, (count, length) = vision.hidden, patches
    ranks = shard.tp if vision.heads % shard.tp == 0 == vision.width % shard.tp else 1
    own, width = vision.attended // ranks, vision.width // ranks
    name = "vision_window_attention" if window else "vision_attention"
    attention = BidirectionalAttention(name, vision.heads // ranks, vision.attended // vision.heads)
    norm = Elementwise("vision_norm", 2 * hidden, 2 * hidden, 5.0 * hidden, hidden, shard.other)
    rope = [Elementwise("vision_rope", 2 * own, 2 * own, 6.0 * own)] if isinstance(vision.rule, Whole) else []
    join = [shard.joined("vision_reduce", "all_reduce", hidden)] if ranks > 1 else []
    inner: list[Operation] = [norm, _linear("qkv_proj", hidden, 3 * own, shard), *rope]
    outer: list[Operation] = [
        _linear("o_proj", own, hidden, shard),
        *join,
        norm,
        _linear("up_proj", hidden, width * (2 if vision.gated else 1), shard),
        Elementwise("vision_activation", width * (2 if vision.gated else 1), width, 5.0 * width),
        _linear("down_proj", width, hidden, shard),
        *join,
    ]
    seen = OfImages(attention, count * length / window, window) if window else OfImages(attention, count, length)
    ops = [OfImages(op, count, length) for op in inner]
    return [*ops, seen, *(OfImages(op, count, length) for op in outer)]


def _linear(name: str, inputs: int, outputs: int, shard: Shard) -> Linear:
    stream = shard.precision.stream
    return Linear(f"vision_{name}", inputs, ((name, outputs),), stream, stream, "other")
