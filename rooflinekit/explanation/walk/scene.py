"""Where a stop takes place: the phase, the layout of the tokens, and what every letter is worth there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from rooflinekit.explanation.walk.formula import evaluate, substitute, tidy
from rooflinekit.explanation.walk.prompts import PhaseName, Prompts
from rooflinekit.explanation.walk.result import Stop, Symbol, Tensor, Work
from rooflinekit.model.kernels import Step
from rooflinekit.model.step import Plan
from rooflinekit.model.types.batch import Sequences
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.numeric import minimum

__all__ = ["Scene", "View"]

_CLASSES = ("weight", "kv_read", "kv_write", "activation")


@dataclass(frozen=True)
class Scene:
    """One phase of one walk; `symbols` are the letters known so far, later ones in place of earlier ones."""

    plan: Plan
    prompts: Prompts
    phase: PhaseName
    symbols: tuple[Symbol, ...] = ()

    @classmethod
    def of(cls, plan: Plan, prompts: Prompts, phase: PhaseName) -> Scene:
        """With the letters of the model and of the step."""
        bare = cls(plan, prompts, phase)
        return bare.knowing(*_of_step(bare), *_of_keys(bare), *_of_model(plan))

    def knowing(self, *symbols: Symbol) -> Scene:
        """The same with more letters."""
        names = {symbol.name for symbol in symbols}
        return replace(self, symbols=(*(s for s in self.symbols if s.name not in names), *symbols))

    def seeing(self, window: int | None = None, chunk: int | None = None, top_k: int | None = None) -> Scene:
        """The same for a layer whose tokens do not see all keys."""
        return self.knowing(*_of_keys(self, window or top_k, chunk, top_k is not None))

    @cached_property
    def values(self) -> Mapping[str, float]:
        """What every letter is worth; `b_fp8` and the like are bytes of an element."""
        sizes = {f"b_{dtype.value}": dtype.bytes for dtype in Dtype}
        return sizes | {symbol.name: symbol.value for symbol in self.symbols}

    @property
    def sequences(self) -> Sequences:
        """Those of this phase."""
        batch = self.prompts.batch(self.phase)
        (phase,) = batch.phases
        return phase

    @property
    def step(self) -> Step:
        """The engine step, as kernels take it."""
        return self.plan.seen(self.prompts.batch(self.phase))

    @property
    def tokens(self) -> tuple[str, ...]:
        """Axes of new tokens: S, B and S, or N packed."""
        return ("N",) if self.prompts.packed else ("S",) if self.prompts.count == 1 else ("B", "S")

    @property
    def cached(self) -> tuple[str, ...]:
        """Axes of tokens in the cache: T, B and T, or C packed."""
        return ("C",) if self.prompts.packed else ("T",) if self.prompts.count == 1 else ("B", "T")

    def scores(self, *heads: str) -> tuple[str, ...]:
        """Axes of a table of queries against keys; a packed one has a block for each sequence and nothing between."""
        if self.prompts.packed:
            return (*heads, "cells")
        return (*self.tokens[:-1], *heads, "S", "seen" if "seen" in self.values else "T")

    def cut(self, letter: str, ranks: str = "tp") -> str:
        """A rank's share of something that is divided over ranks, or that ranks hold copies of."""
        count, whole = int(self.values[ranks]), int(self.values[letter])
        if count == 1:
            return letter
        return f"{letter}/{ranks}" if whole % count == 0 else str(max(1, whole // count))

    def size(self, dtype: Dtype) -> str:
        """The letter for bytes of an element: b for the residual stream's format."""
        return "b" if dtype is self.plan.precision.stream else f"b_{dtype.value}"

    @property
    def cache_size(self) -> str:
        """Bytes of an element of the cache."""
        return self.size(self.plan.precision.kv)

    def tensor(self, name: str, axes: Sequence[str], dtype: Dtype | str | None = None) -> Tensor:
        """A tensor by its axes in letters; in the stream's format unless said otherwise."""
        shape = tuple(round(evaluate(axis, self.values)) for axis in axes)
        return Tensor(name, tuple(axes), shape, str(dtype or self.plan.precision.stream))

    def stop(self, view: View, weights: Sequence[Tensor] = (), **formulas: str) -> Stop:
        """A stop with the work that the formulas give: flops, weight, kv_read, kv_write, activation, network."""
        formulas = {key: tidy(formula) for key, formula in formulas.items()}
        amounts = {key: evaluate(formula, self.values) for key, formula in formulas.items()}
        work = Work(amounts.get("flops", 0.0), *(amounts.get(key, 0.0) for key in (*_CLASSES, "network")))
        moved = " + ".join(formulas[key] for key in _CLASSES if key in formulas)
        texts = {"flops": formulas.get("flops", ""), "bytes": moved, "network": formulas.get("network", "")}
        numbers = {key: substitute(text, self.values) for key, text in texts.items() if text}
        return Stop(view.name, view.kernel, view.does, view.outputs, tuple(weights), work,
                    texts["flops"], texts["bytes"], texts["network"], numbers, view.note)  # fmt: skip


@dataclass(frozen=True)
class View:
    """What is looked at: a stop without its work."""

    name: str
    kernel: str
    does: str
    outputs: tuple[Tensor, ...]
    note: str = ""


def _of_step(scene: Scene) -> list[Symbol]:
    """Letters of the batch."""
    prompts, phase = scene.prompts, scene.sequences
    decode, tokens = scene.phase == "decode", float(phase.tokens)
    everywhere = float(tokens * scene.step.replicas)
    symbols = [Symbol("B", prompts.sequences, "sequences"),
               Symbol("Na", everywhere, "new tokens of all dp replicas, which share the experts")]  # fmt: skip
    if prompts.packed:
        symbols.append(Symbol("N", tokens, "new tokens of all sequences, packed"))
        cached = float(phase.total(phase.past + phase.new))
        return [*symbols, Symbol("C", cached, "tokens in the cache, of all sequences")]
    new = float(phase.new)
    what = "new tokens of a sequence: one, just sampled" if decode else "new tokens of a sequence"
    symbols.append(Symbol("S", new, what))
    if prompts.cached and not decode:
        symbols.append(Symbol("P", prompts.cached, "tokens of a sequence that were in the cache before"))
    symbols.append(Symbol("T", float(phase.past) + new, "keys of a sequence, the new ones included"))
    return [*symbols, Symbol("N", tokens, "new tokens in all" + (": B·S" if prompts.count > 1 else ""))]


def _of_keys(scene: Scene, window: int | None = None, chunk: int | None = None, best: bool = False) -> list[Symbol]:
    """What the tokens of this phase see of each other; the counts are those that the kernels take."""
    phase, limited = scene.sequences, window is not None or chunk is not None
    pairs = phase.pairs(window, chunk)
    keys = phase.keys_read(None if best else window, chunk)
    if best and scene.phase == "decode":
        keys = minimum(keys, pairs)
    cells = phase.total(phase.new * (phase.past + phase.new))
    symbols = [
        Symbol(
            "pairs",
            float(pairs),
            "query-key pairs that attention scores" + (_limit(scene, window, chunk) or _causal(scene)),
        ),
        Symbol("keys", float(keys), "keys read, each once a step"),
    ]
    if scene.phase == "decode" and limited:
        seen = float(pairs) / float(phase.sequences)
        symbols += [] if scene.prompts.packed else [Symbol("seen", seen, "keys that the new token sees")]
        cells = pairs
    return [*symbols, Symbol("cells", float(cells), "cells of the score tables of all sequences, masked ones too")]


def _limit(scene: Scene, window: int | None, chunk: int | None) -> str:
    """What bounds the keys of a token besides its place; where the first tokens fill a window, how the pairs add up."""
    if chunk is not None:
        return f", within chunks of {chunk:,}"
    if window is None:
        return ""
    told, prompts = f", at most {window:,} keys a token", scene.prompts
    rest = prompts.lengths[0] - window
    if scene.phase == "decode" or prompts.packed or prompts.cached or rest <= 0:
        return told
    added = f"{window}·{window + 1}/2 + {rest}·{window}"
    return f"{told}: B·({added})" if prompts.count > 1 else f"{told}: {added}"


def _causal(scene: Scene) -> str:
    """How full attention counts its pairs."""
    times = "B·" if scene.prompts.count > 1 else ""
    if scene.phase == "decode":
        return "" if scene.prompts.packed else f": {times}T"
    if scene.prompts.packed:
        return ", causal in each prompt"
    each = "(S·P+S·(S+1)/2)" if scene.prompts.cached else "S·(S+1)/2"
    return f", causal: {times}{each}"


def _of_model(plan: Plan) -> list[Symbol]:
    """Letters of the whole model and of its split."""
    model, stream, split = plan.model, plan.precision.stream, plan.deployment
    symbols = [
        Symbol("L", model.depth, "layers"),
        Symbol("D", model.hidden, "residual width"),
        Symbol("V", model.vocab, "vocabulary"),
        Symbol("De", model.embedding_dim or model.hidden, "embedding width"),
        Symbol("positions", model.position_rows, "rows of the table of positions"),
        Symbol("tp", split.tp, "ranks that share each layer; this is one of them"),
        Symbol("dp", split.dp, "attention replicas, each with sequences of its own"),
        Symbol("ep", split.ep, "groups of ranks, each with experts of its own"),
        Symbol("te", split.expert_tp, "ranks that share each expert"),
        Symbol("b", stream.bytes, f"bytes of an element of the residual stream ({stream})"),
    ]
    return symbols + [
        Symbol(f"b_{dtype.value}", dtype.bytes, f"bytes of an element in {dtype}, scales included") for dtype in Dtype
    ]
