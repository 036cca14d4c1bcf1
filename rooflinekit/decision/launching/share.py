"""The memory fraction of an engine from the bytes of a prediction, and back.

Three engines call three things a fraction: vLLM of all memory, SGLang of what is free before the weights,
TensorRT-LLM of what is free after them. The bytes of the pool are what they have in common.
"""

from __future__ import annotations

from dataclasses import dataclass

from rooflinekit.estimation.results import MemoryResult
from rooflinekit.model.types.engine import MemoryRule
from rooflinekit.model.types.errors import InputError
from rooflinekit.model.types.units import GB

__all__ = ["Share", "memory_share"]

_DIGITS = 4  # of a fraction: 8 MB of an 80 GB accelerator


@dataclass(frozen=True, slots=True)
class Share:
    """One memory fraction, what it is a share of, and what it pays for besides the pool for the cache [B]."""

    base: float
    base_name: str
    paid: tuple[tuple[str, float], ...]
    pool: float

    @property
    def fraction(self) -> float:
        """(what it pays for + pool) / base, to four digits."""
        return round((sum(size for _, size in self.paid) + self.pool) / self.base, _DIGITS)

    def pool_at(self, fraction: float) -> float:
        """The pool that the engine takes at a fraction [B]: fraction · base − what it pays for.

        >>> Share(80e9, "all memory", (("weights", 16e9),), 56e9).pool_at(0.9)
        56000000000.0
        """
        return fraction * self.base - sum(size for _, size in self.paid)

    @property
    def sum(self) -> str:
        """The arithmetic in words, as it stands beside the flag."""
        parts = [f"{name} {size / GB:.2f}" for name, size in (*self.paid, ("KV pool", self.pool))]
        return f"({' + '.join(parts)}) GB / {self.base / GB:.2f} GB {self.base_name}"


def memory_share(rule: MemoryRule, memory: MemoryResult) -> Share:
    """The fraction that gives an engine the pool of a prediction, by the engine's own rule.

    Raises InputError for an engine that takes no fraction.
    """
    graphs = ("CUDA graphs", memory.graph_bytes * rule.graphs_count)
    context = ("CUDA context", memory.context_bytes * rule.context_counts)
    outside = ("outside the allocator", memory.non_torch_bytes)
    weights, peak = ("weights", memory.weight_bytes), ("activations", memory.activation_bytes)
    pool = memory.kv_pool_bytes
    match rule.budget:
        case "total":
            return Share(memory.capacity_bytes, "of all memory", _there(weights, peak, outside, context, graphs), pool)
        case "static":
            free = memory.capacity_bytes - memory.context_bytes
            return Share(free, "free before the weights", _there(weights, outside), pool)
        case "free":
            taken = memory.weight_bytes + memory.context_bytes + memory.non_torch_bytes + graphs[1]
            free = memory.capacity_bytes - taken - memory.activation_bytes
            return Share(free, "free after weights and the profiled step", (), pool)
        case _:
            raise InputError("this engine takes no memory fraction")


def _there(*parts: tuple[str, float]) -> tuple[tuple[str, float], ...]:
    return tuple(part for part in parts if part[1] > 0.0)
