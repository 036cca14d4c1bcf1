"""One section of a walk: what its letters are worth, and its operations with letters for numbers.

The layers are built and the kernels run as for any estimate, but heads, widths, ranks, tokens and bytes of an element
are numbers that carry a letter. So the work of a kernel comes with its formula, and the walk has none of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import is_dataclass
from functools import cached_property
from typing import Any, cast

from rooflinekit.explanation.walk.letters import Lettered, ceiling, substitute, written
from rooflinekit.explanation.walk.prompts import PhaseName, Prompts
from rooflinekit.explanation.walk.result import Stop, Tensor, WalkSymbol, Work
from rooflinekit.model.kernels.attention import IndexScores
from rooflinekit.model.kernels.gemm import BatchedLinear, Linear
from rooflinekit.model.kernels.operation import Output, Step
from rooflinekit.model.kernels.routing import Routing
from rooflinekit.model.shard import Shard
from rooflinekit.model.step import Plan
from rooflinekit.model.types.batch import Batch, Sequences
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.frozen import dataclass, fields, replace
from rooflinekit.model.types.kernel import Kernel
from rooflinekit.model.types.model import Attention, DenseFFN, MixtureOfExperts, Model
from rooflinekit.model.types.numeric import Numeric

_DEGREES = {
    "tp": "ranks that share each layer; this is one of them",
    "dp": "attention replicas, each with sequences of its own",
    "cp": "ranks that share each context",
    "ep": "groups of ranks, each with experts of its own",
}
_KINDS = {"mha": "one for each query head", "mqa": "one for all query heads", "gqa": "shared by groups"}
_SAME = {"v_head_dim": "head_dim", "embedding_dim": "hidden"}  # equal in most models, and then one letter


@dataclasses.dataclass
class WalkScene:
    """One section of one phase; `symbols` are the letters that were met in it."""

    plan: Plan
    prompts: Prompts
    phase: PhaseName
    symbols: dict[str, WalkSymbol] = dataclasses.field(default_factory=dict)
    limited: bool = False  #: whether tokens of this layer do not see all keys
    later: list[Stop] = dataclasses.field(default_factory=list)  #: stops of an operation that lie behind the next one's

    def letter(self, name: str, value: Numeric, meaning: str) -> float:
        """A number with a letter; one that is worth something else already gets another name."""
        number = float(value)
        while name in self.symbols and self.symbols[name].value != number:
            name = f"own{name}"
        self.symbols[name] = WalkSymbol(name, number, meaning)
        return Lettered.of(name, number)

    def lettered(self, part: Any) -> Any:
        """A model or a block with letters for its sizes, as its type declares them."""
        letters: dict[str, Any] = {}
        for each in fields(part):
            size, same = getattr(part, each.name), getattr(part, _SAME.get(each.name, ""), None)
            if size and "quantity" in each.metadata:
                quantity = each.metadata["quantity"]
                meaning = quantity.meaning + (
                    f", {_KINDS[part.kind]}" if quantity.symbol == "K" and part.kind in _KINDS else ""
                )
                letters[each.name] = (
                    letters[_SAME[each.name]] if size == same else self.letter(quantity.symbol, size, meaning)
                )
        if not isinstance(part, Model | DenseFFN | MixtureOfExperts):
            policy, indexed = self.plan.deployment.kv_policy, getattr(part, "indexer", None)
            budget = policy.in_prefill(None) if self.phase == "prefill" else policy.in_decode(None)
            self.limited = bool(budget or indexed or getattr(part, "window", None) or getattr(part, "chunk", None))
            letters |= {"indexer": self.lettered(indexed)} if indexed else {}
        if isinstance(part, Attention):  # norms of queries and keys have a weight for each element of a head, or of all
            for name, heads in (("q_norm", "heads"), ("k_norm", "kv_heads")):
                sizes = (letters["head_dim"], letters[heads] * letters["head_dim"])
                letters[name] = next((size for size in sizes if size == getattr(part, name)), getattr(part, name))
        return replace(part, **letters)

    @cached_property
    def shard(self) -> Shard:
        """Shard of the model, with letters for the degrees above 1."""
        shard, degrees = self.plan.shard, {}
        for name, meaning in _DEGREES.items():
            if (degree := getattr(shard.deployment, name)) > 1:
                degrees[name] = self.letter(name, degree, meaning)
        hidden = self.letter("D", shard.hidden, "residual width")
        return replace(shard, hidden=hidden, deployment=replace(shard.deployment, **degrees))

    def format(self, dtype: Dtype) -> Dtype:
        """A number format whose bytes of an element are a letter."""
        stream = dtype is self.plan.precision.stream
        meaning = f"of the residual stream ({dtype})" if stream else f"in {dtype}, scales included"
        name = "b" if stream else dtype.symbol
        lettered: Any = _Other(dtype, bytes=self.letter(name, dtype.bytes, f"bytes of an element {meaning}"))
        lettered.widened = lettered if dtype.is_wide else self.format(dtype.widened)
        return cast("Dtype", lettered)

    @cached_property
    def step(self) -> _RankStep:
        """The engine step, as kernels take it."""
        step, split = self.plan.seen(self.prompts.batch(self.phase)), self.shard.deployment
        (phase,) = step.batch.phases
        sequences = _Sequences(**_values(phase), scene=self)
        batch = Batch(sequences) if step.batch.prefilling else Batch(None, sequences)
        return _RankStep(
            batch,
            self.format(step.stream),
            self.format(step.kv),
            split.dp * split.cp * step.batch.filled,
            split.cp,
            step.token_budget,
            scene=self,
        )

    @property
    def sequences(self) -> _Sequences:
        """Sequences of this phase."""
        return cast("_Sequences", self.step.batch.phases[0])

    def operation(self, op: Any) -> Any:
        """The operation with letters for the formats that it stores, and for what routing comes to."""
        if isinstance(op, IndexScores):  # compares its format with others
            return op
        changes: dict[str, object] = {}
        for name, value in _values(op).items():
            if isinstance(value, Dtype):
                changes[name] = self.format(value)
            elif isinstance(value, Routing):
                changes[name] = _Other(value, fullest=lambda tokens, routing=value: self._fullest(routing, tokens))
            elif is_dataclass(value) and hasattr(value, "kernels"):
                changes[name] = self.operation(value)
        return replace(op, **changes)

    def _fullest(self, routing: Routing, tokens: Numeric) -> tuple[Numeric, float]:
        """Rows that come to the fullest rank, and experts that they touch."""
        plain = replace(routing, **{name: int(getattr(routing, name)) for name in ("experts", "top_k", "ranks")})
        rows, touched = plain.fullest(float(tokens))
        where = "those of the fullest rank"
        if plain.ranks == 1 and not plain.skew:
            every = written(tokens)
            where = f"E·(1-(1-k/E)^{every if every.isalpha() else f'({every})'})"
        known = self.letter("touched", touched, f"experts that any token visits, expected: {where}")
        if plain.ranks == 1:
            return tokens * routing.top_k, known
        mean = float(tokens) * plain.top_k / plain.ranks
        meaning = f"rows that come to the fullest rank, expected; to the mean rank {mean:.6g}"
        return self.letter("A", rows, meaning), known

    def launches(self, op: Any) -> list[Kernel]:
        """The kernels of one operation; none if the step gives it nothing to do."""
        kernels: list[Kernel] = self.operation(op).kernels(self.step, 1)
        return kernels

    def work(self, *kernels: Kernel) -> Work:
        """The work of launches, in letters."""
        return Work(*(sum(getattr(kernel, each.name) for kernel in kernels) for each in fields(Work)))

    @property
    def tokens(self) -> tuple[Numeric, ...]:
        """Axes of new tokens: S, B and S, or N where they are packed or shared."""
        if self.prompts.packed:
            return (self.step.tokens,)
        sampled = ": one, just sampled" if self.phase == "decode" else ""
        new = self.letter("S", self.sequences.new, f"new tokens of a sequence{sampled}")
        return self._batched(new) if self.step.context_ranks == 1 else (self.step.tokens,)

    @property
    def cached(self) -> tuple[Numeric, ...]:
        """Axes of tokens in the cache: T, B and T, or C packed; ranks that share a context hold a part each."""
        phase, ranks = self.sequences, self.step.context_ranks
        if self.prompts.packed:
            every = self.letter("cached", phase.total(phase.past + phase.new), "tokens in the cache, of all sequences")
            return (every / ranks,)
        if phase.past and self.phase == "prefill":
            self.letter("past", phase.past, "tokens of a sequence that were in the cache before")
        keys = self.letter("T", phase.past + phase.new, "keys of a sequence, the new ones included")
        return self._batched(keys / ranks)

    def _batched(self, tokens: Numeric) -> tuple[Numeric, ...]:
        return (tokens,) if self.prompts.count == 1 else (self.sequences.sequences, tokens)

    def scores(self, *heads: Numeric) -> tuple[Numeric, ...]:
        """Axes of a table of queries against keys; a packed one has a block for each sequence and nothing between."""
        few = self.phase == "decode" and self.limited
        if self.prompts.packed or self.step.context_ranks > 1:
            number = self.symbols["pairs"].value if few else self.cells
            cells = self.letter("cells", number, "cells of the score tables of all sequences, masked ones too")
            return (*heads, cells / self.step.context_ranks)
        *batch, new = self.tokens
        if not few:
            return (*batch, *heads, new, self.cached[-1])
        seen = self.symbols["pairs"].value / float(self.sequences.sequences)
        return (*batch, *heads, new, self.letter("seen", seen, "keys that the new token sees"))

    @property
    def cells(self) -> float:
        """Cells of the score tables of all sequences."""
        phase = self.sequences
        return float(phase.total(phase.new * (phase.past + phase.new)))

    def tensor(self, name: str, *axes: Numeric, dtype: Dtype | str | None = None) -> Tensor:
        """A tensor by its axes; in the stream's format unless said otherwise."""
        axes = tuple(map(ceiling, axes))
        return Tensor(name, tuple(map(written, axes)), tuple(map(int, axes)), str(dtype or self.plan.precision.stream))

    def out(self, name: str, *axes: Numeric, dtype: Dtype | str | None = None) -> Tensor:
        """A tensor of the new tokens."""
        return self.tensor(name, *self.tokens, *axes, dtype=dtype)

    def made(self, output: Output) -> Tensor:
        """A tensor that an operation says it makes: its role says which axes stand before its own."""
        name, axes, dtype = output.name, output.axes, output.dtype
        match output.role:
            case "cache":
                return self.tensor(name, *self.cached, *axes, dtype=dtype or self.plan.precision.kv)
            case "state":
                return self.tensor(name, self.sequences.sequences, *axes, dtype=dtype)
            case "sampled":
                return self.tensor(name, self.step.rows, *axes, dtype=dtype)
            case "keys":
                *batch, part = self.cached
                return self.tensor(name, *batch, part * self.step.context_ranks, *axes, dtype=dtype)
        return self.out(name, *axes, dtype=dtype)

    def held(self, op: Any) -> tuple[Tensor, ...]:
        """The weights of an operation, also where another operation counts them."""
        if isinstance(op, BatchedLinear):
            return (self.tensor("weight", op.batch, op.n, op.k, dtype=op.weight),)
        weights = replace(op, resident=True).weights if isinstance(op, Linear) else op.weights
        return tuple(self.tensor(each.name, *each.shape, dtype=each.dtype) for each in weights)

    def view(self, name: str, does: str, *outputs: Tensor, note: str = "") -> Stop:
        """Another view of what is there: nothing moves."""
        return Stop(name, "", does, outputs, (), Work(), "", "", "", {}, note)

    def stop(  # noqa: PLR0913 - the words, the tensors, the operation, and what is a part of it
        self,
        name: str,
        does: str,
        outputs: Sequence[Tensor],
        op: Any,
        note: str = "",
        *,
        work: Work | None = None,
        weights: Sequence[Tensor] | None = None,
    ) -> Stop:
        """A stop of an operation, or of a part of its work; formulas are read off the work."""
        kernels = self.launches(op)
        work = self.work(*kernels) if work is None else work
        classes = (work.weight_bytes, work.kv_read_bytes, work.kv_write_bytes, work.activation_bytes)
        flops, network = (written(part) if part else "" for part in (work.flops, work.network_bytes))
        moved = " + ".join(written(part) for part in classes if part)
        values = {symbol.name: symbol.value for symbol in self.symbols.values()}
        texts = {"flops": flops, "bytes": moved, "network": network}
        plain = Work(*(float(getattr(work, each.name)) for each in fields(Work)))
        numbers = {key: substitute(text, values) for key, text in texts.items() if text}
        return Stop(name, kernels[0].name, does, tuple(outputs), tuple(self.held(op) if weights is None else weights),
                    plain, flops, moved, network, numbers, note)  # fmt: skip


def _values(value: Any) -> dict[str, Any]:
    return {each.name: getattr(value, each.name) for each in fields(value)}


class _Other:
    """Something, but for some of what it says."""

    def __init__(self, of: object, **other: object) -> None:
        self.of, self.__dict__ = of, {**self.__dict__, "of": of, **other}

    def __getattr__(self, name: str) -> object:
        return getattr(self.of, name)


@dataclass(frozen=True)
class _RankStep(Step):
    """A step whose own tokens and rows are letters where ranks share a context."""

    scene: WalkScene = dataclasses.field(kw_only=True)

    def own(self, phase: Sequences) -> Numeric:
        own = super().own(phase)
        return own if self.context_ranks == 1 else self.scene.letter("N", own, "new tokens that this rank computes")

    @cached_property
    def rows(self) -> Numeric:
        rows = super().rows
        return rows if self.context_ranks == 1 else self.scene.letter("Br", rows, "rows of logits on this rank")


@dataclass(frozen=True)
class _Sequences(Sequences):
    """Sequences whose counts are letters."""

    scene: WalkScene = dataclasses.field(kw_only=True)

    @property
    def sequences(self) -> float:
        return self.scene.letter("B", super().sequences, "sequences")

    @property
    def sampled_rows(self) -> float:
        return self.sequences

    @property
    def tokens(self) -> float:
        prompts = self.scene.prompts
        if self.scene.shard.deployment.cp > 1:
            return self.scene.letter("Nc", super().tokens, "new tokens of the ranks that share a context")
        how = " of all sequences, packed" if prompts.packed else " in all" + (": B·S" if prompts.count > 1 else "")
        return self.scene.letter("N", super().tokens, f"new tokens{how}")

    def pairs(self, window: int | None = None, chunk: int | None = None) -> float:
        how, limited = self.scene.prompts.seen(self.scene.phase, window, chunk), window or chunk
        name, what = (
            ("allpairs", "of the whole context")
            if self.scene.limited and not limited
            else ("pairs", "that attention scores")
        )
        return self.scene.letter(name, super().pairs(window, chunk), f"query-key pairs {what}{how}")

    def keys_read(self, window: int | None = None, chunk: int | None = None) -> float:
        name, what = (
            ("allkeys", "keys of the whole context")
            if self.scene.limited and not (window or chunk)
            else ("keys", "keys")
        )
        return self.scene.letter(name, super().keys_read(window, chunk), f"{what} read, each once a step")
