"""Content of a walk: tensors with their shapes in letters and numbers, and the work of each stop, ready for JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rooflinekit.model.types.answer import Answer, Json, Plain, plain_fields
from rooflinekit.model.types.frozen import dataclass, fields


@dataclass(frozen=True, slots=True)
class WalkSymbol:
    """A letter of the formulas, its value here, and what it stands for."""

    name: str
    value: float
    meaning: str


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor: its axes in letters and in numbers."""

    name: str
    symbols: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str

    @property
    def letters(self) -> str:
        """Letters of the axes as text.

        >>> Tensor("Q", ("S", "H", "d"), (6, 32, 128), "bf16").letters
        '[S, H, d]'
        """
        return f"[{', '.join(self.symbols)}]"

    @property
    def numbers(self) -> str:
        """Numbers of the axes as text.

        >>> Tensor("Q", ("S", "H", "d"), (6, 32, 128), "bf16").numbers
        '[6, 32, 128]'
        """
        return f"[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Work(Plain):
    """Work on one accelerator: FLOP, and bytes by class as `estimate` counts them."""

    flops: float = 0.0
    weight_bytes: float = 0.0
    kv_read_bytes: float = 0.0
    kv_write_bytes: float = 0.0
    activation_bytes: float = 0.0
    network_bytes: float = 0.0

    derived = ("bytes",)

    @property
    def bytes(self) -> float:
        """Memory traffic of all classes; the network is apart."""
        return self.weight_bytes + self.kv_read_bytes + self.kv_write_bytes + self.activation_bytes

    @property
    def intensity(self) -> float | None:
        """FLOP per byte of memory traffic; None without traffic."""
        return self.flops / self.bytes if self.bytes else None

    def __add__(self, other: Work) -> Work:
        return Work(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __sub__(self, other: Work) -> Work:
        return self + other.times(-1)

    def times(self, factor: float) -> Work:
        """A part of it, or several."""
        return Work(*(factor * getattr(self, f.name) for f in fields(self)))


@dataclass(frozen=True, slots=True)
class Stop(Plain):
    """One step of the walk: the tensors it makes, from which weights, at which cost.

    kernel: the launch that it is part of, as `estimate` names it; empty for a view, which moves nothing.
    """

    name: str
    kernel: str
    does: str  #: in a few words or as a formula
    outputs: tuple[Tensor, ...]
    weights: tuple[Tensor, ...]
    work: Work
    flops_formula: str
    bytes_formula: str
    network_formula: str
    substituted: dict[str, str]  #: the same formulas with numbers
    note: str

    @property
    def formulas(self) -> dict[str, str]:
        """By what each counts; empty where there is nothing."""
        return {"flops": self.flops_formula, "bytes": self.bytes_formula, "network": self.network_formula}

    @property
    def lettered(self) -> Iterator[str]:
        """Texts with letters: formulas and axes."""
        yield from self.formulas.values()
        for tensor in (*self.outputs, *self.weights):
            yield from tensor.symbols

    def to_dict(self) -> Json:
        """Return the stop as JSON: its work beside the rest."""
        data = plain_fields(self)
        work: dict[str, Any] = data.pop("work")
        return data | work


@dataclass(frozen=True, slots=True)
class WalkSection(Plain):
    """A part of the model: what stands before the layers, a kind of layer, what stands behind them."""

    title: str
    layers: str  #: which layers are alike, "0–31"; empty outside them
    count: int  #: times that the model runs it in a step
    symbols: tuple[WalkSymbol, ...]
    stops: tuple[Stop, ...]

    @property
    def work(self) -> Work:
        """Work of one time."""
        return sum((stop.work for stop in self.stops), Work())

    def to_dict(self) -> Json:
        """Return the section as JSON, with the work of one time."""
        data = plain_fields(self)
        return data | {"total_once": self.work.to_dict(), "steps": data.pop("stops")}


@dataclass(frozen=True, slots=True)
class Phase(Plain):
    """One engine step: the prefill, or the decode step behind it."""

    name: str
    title: str
    cu_seqlens_q: tuple[int, ...]  #: where each sequence starts among the new tokens, and where the last one ends
    cu_seqlens_k: tuple[int, ...]  #: the same among the keys
    sections: tuple[WalkSection, ...]

    @property
    def work(self) -> Work:
        """Work of the whole step, all layers."""
        return sum((section.work.times(section.count) for section in self.sections), Work())

    def to_dict(self) -> Json:
        """Return the phase as JSON, with the work of the whole step."""
        return plain_fields(self) | {"total": self.work.to_dict()}


@dataclass(frozen=True, slots=True)
class Walk(Answer):
    """The walk through a model. `to_dict()` is the JSON, `to_rows()` one row a tensor."""

    version: str
    model: str
    gpu: str
    inputs: dict[str, Any]
    words: tuple[str, ...]  #: of the prompt, which stand in for tokens; empty if lengths were given
    phases: tuple[Phase, ...]
    ridge: float  #: FLOP that the accelerator does in the time of one byte, in the stream's format
    warnings: tuple[str, ...]

    def to_rows(self) -> list[Json]:
        """One flat row for every tensor made; the work stands with the first tensor of its stop."""
        return [
            {"phase": phase.name, "section": section.title, "count": section.count, "step": stop.name,
             "kernel": stop.kernel, "tensor": tensor.name, "symbols": tensor.letters, "shape": tensor.numbers,
             "dtype": tensor.dtype, **(stop.work if first == 0 else Work()).to_dict()}
            for phase in self.phases for section in phase.sections for stop in section.stops
            for first, tensor in enumerate(stop.outputs)
        ]  # fmt: skip
