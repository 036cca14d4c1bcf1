"""One engine step, and the facts behind it, as the numbers that formulas are made of."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cached_property

from rooflinekit.explanation.derivation.node import Node, Reference, given
from rooflinekit.model.kernels import Operation, Step
from rooflinekit.model.step import Plan
from rooflinekit.model.timing.calibrated import FamilyFit
from rooflinekit.model.timing.parameter import parameters
from rooflinekit.model.types.batch import Batch, Sequences
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.hardware import Provenance
from rooflinekit.model.types.kernel import Kernel
from rooflinekit.model.types.time import KernelTime

__all__ = ["Launched", "Scene", "element"]


@dataclass(frozen=True)
class Launched:
    """A timed kernel and the operation that launches it; None where the engine adds time of its own."""

    op: Operation | None
    timed: KernelTime

    @property
    def kernel(self) -> Kernel:
        """Its work."""
        return self.timed.kernel


@dataclass(frozen=True)
class Scene:
    """A plan in one step of `batch`; `grows` as in `Plan.time`, `times` how often the step is repeated in a round."""

    plan: Plan
    batch: Batch
    grows: bool | None = None
    times: int = 1
    prefix: str = ""  #: of the names of its kernels: "draft_" for a draft's

    @classmethod
    def facts(cls, plan: Plan) -> Scene:
        """A plan whose facts are asked for, and no step."""
        return cls(plan, Batch())

    @property
    def step(self) -> Step:
        """The step as one accelerator sees it."""
        return self.plan.seen(self.batch)

    @cached_property
    def launched(self) -> tuple[Launched, ...]:
        """Every kernel of the step with its operation, then what the engine adds."""
        chosen = [(op, n) for op, n in self.plan.operations.items() if self.grows is None or op.grows is self.grows]
        made = [op for op, count in chosen for _ in op.kernels(self.step, count)]
        timed = self.plan.time(self.batch, self.grows).kernels
        return tuple(Launched(made[i] if i < len(made) else None, entry) for i, entry in enumerate(timed))

    def phase(self, kernel: Kernel) -> Sequences:
        """The sequences that an attention kernel works on."""
        found = self.batch.prefilling if kernel.family.endswith("prefill") else self.batch.decoding
        return found or self.batch.phases[0]

    # --- facts -------------------------------------------------------------------------------------------------------

    def model(self, symbol: str, title: str, value: float, unit: str = "") -> Node:
        """A shape of the model."""
        source = f"config of {self.plan.model.name}: {self.plan.model.source or self.plan.model.origin}"
        return given(symbol, title, value, unit, source)

    def asked(self, symbol: str, title: str, value: float, unit: str = "") -> Node:
        """Part of the question, or the deployment's share of it."""
        return given(symbol, title, value, unit, "the question")

    def peak(self, dtype: Dtype) -> Node:
        """Dense peak of the accelerator in a format."""
        gpu = self.plan.system.accelerator
        return self._datasheet(
            "P",
            f"dense {dtype.unit.value} peak of {gpu.name}",
            gpu.peak(dtype),
            "FLOP/s",
            f"compute.dense.{dtype.unit.value}",
        )

    @property
    def bandwidth(self) -> Node:
        """Of the memory."""
        gpu = self.plan.system.accelerator
        return self._datasheet(
            "W", f"memory bandwidth of {gpu.name}", float(gpu.memory_bandwidth), "B/s", "memory.bandwidth"
        )

    @property
    def last_cache(self) -> Node:
        """The last cache in front of the memory."""
        gpu = self.plan.system.accelerator
        return self._datasheet(
            "L2", "last cache: activations up to its size may stay on the chip", gpu.l2_bytes, "B", "cores.l2"
        )

    @property
    def cores(self) -> Node:
        """Cores of the accelerator."""
        gpu = self.plan.system.accelerator
        return self._datasheet("SM", "cores", gpu.cores, "", "cores.count")

    @property
    def links(self) -> Node:
        """To all peers of the scale-up domain together."""
        return self._datasheet(
            "N", "links to all peers, one direction", float(self.plan.system.link_bandwidth), "B/s", "links.bandwidth"
        )

    @property
    def nic(self) -> Node:
        """Network card to other domains."""
        return self._datasheet(
            "NIC", "network card, one direction", float(self.plan.system.nic_bandwidth), "B/s", "links.nic"
        )

    @property
    def capacity(self) -> Node:
        """Memory of the accelerator."""
        gpu = self.plan.system.accelerator
        return self._datasheet("capacity", "what the driver shows", float(gpu.memory_bytes), "B", "memory.capacity")

    def _datasheet(self, symbol: str, title: str, value: float, unit: str, quantity: str) -> Node:
        entries = (*self.plan.system.provenance, *self.plan.system.accelerator.provenance)
        return given(
            symbol, title, value, unit, _cited(entries, quantity, f"file of {self.plan.system.accelerator.name}")
        )

    def engine(self, symbol: str, title: str, value: float, quantity: str, unit: str = "s") -> Node:
        """What the engine costs or reserves."""
        found = _cited(self.plan.engine.provenance, f"engine.{quantity}", f"profile of {self.plan.engine.title}")
        spread = self.plan.engine.costs.spread.get(quantity)
        return given(symbol, title, value, unit, replace(found, std=spread))

    def fitted(self, symbol: str, fit: FamilyFit, name: str) -> Node:
        """A parameter of a time form, with its spread and the run it was fitted to."""
        bounds = parameters(fit.form)[name]
        calibration = self.plan.calibration
        run = f"{fit.source}; calibration {calibration.name if calibration else '-'}"
        held = "; held: the data could not pin it" if name in fit.frozen else ""
        unit = "s" if bounds.unit == "us" else ""
        return given(symbol, bounds.meaning, getattr(fit.form, name), unit, Reference(run + held, fit.spread.get(name)))

    # --- sizes of the step -------------------------------------------------------------------------------------------

    def tokens(self, symbol: str = "m") -> Node:
        """Tokens that this accelerator computes in the step."""
        value, title = float(self.step.tokens), "tokens of the step"
        if self.step.context_ranks > 1:
            return given(symbol, f"{title}, this rank's share", value, "", "docs/parallelism.md, context parallelism")
        marks = ("",) if len(self.batch.phases) == 1 else ("_1", "_2")
        parts = [
            node for mark, phase in zip(marks, self.batch.phases, strict=True) for node in self._sizes(phase, mark)
        ]
        return Node(symbol, title, value, "", " + ".join(f"B{mark}*S{mark}" for mark in marks), tuple(parts))

    def rows(self) -> Node:
        """Rows of logits: the last token of each prompt, every token of a decode step."""
        return given("m", "rows that are sampled", float(self.step.rows), "", "one a sequence that gets a token")

    def _sizes(self, phase: Sequences, mark: str = "") -> list[Node]:
        return [
            self.asked(f"B{mark}", "sequences of one replica in the step", float(phase.count)),
            self.asked(f"S{mark}", "new tokens of each", float(phase.new)),
        ]

    def pairs(self, kernel: Kernel, limited: bool) -> Node:
        """Query-key pairs that attention scores."""
        phase, dims = self.phase(kernel), asdict(kernel.shape)
        value = float(dims["pairs"]) * float(dims["batch"])
        title = "query-key pairs, causal"
        if limited or self._several(phase):
            return given(
                "pairs",
                f"{title}, within the window, chunk or chosen keys",
                value,
                "",
                "docs/method.md, query-key pairs",
            )
        return Node("pairs", title, value, "", "B*S*(past + (S + 1)/2)", tuple(self._context(phase)))

    def keys(self, kernel: Kernel, limited: bool) -> Node:
        """Cached tokens that are read, each once."""
        phase, dims = self.phase(kernel), asdict(kernel.shape)
        value = float(dims["keys"]) * float(dims["batch"])
        title = "cached tokens that are read"
        if limited or self._several(phase):
            return given(
                "keys",
                f"{title}, within the window, chunk or chosen keys",
                value,
                "",
                "docs/method.md, query-key pairs",
            )
        return Node("keys", title, value, "", "B*(past + S)", tuple(self._context(phase)))

    def _several(self, phase: Sequences) -> bool:
        """Whether the work is the mean over several contexts of more than one new token each (a draft's tree)."""
        return float(phase.span) != 1.0 and float(phase.new) != 1.0

    def _context(self, phase: Sequences) -> list[Node]:
        return [*self._sizes(phase), self.asked("past", "tokens each has in the cache already", float(phase.past))]


def element(symbol: str, dtype: Dtype, of: str) -> Node:
    """Bytes of an element, block scales included."""
    return given(
        symbol,
        f"bytes of an element of {of} ({dtype.value})",
        dtype.bytes,
        "B",
        "docs/architecture.md, precision rules",
    )


def _cited(entries: tuple[Provenance, ...], quantity: str, otherwise: str) -> Reference:
    for entry in entries:
        if entry.quantity.split(" ")[0] == quantity:
            mark = f" [{entry.confidence}]" if entry.confidence else ""
            return Reference(f"{entry.source}{mark}")
    return Reference(otherwise)
