"""What tokens cost on a deployment: plain numbers with units in their names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rooflinekit.decision.economics.asymmetry import TokenWork
from rooflinekit.model.types.answer import Answer

if TYPE_CHECKING:
    import pandas as pd
from rooflinekit.decision.economics.waste import Waste

__all__ = [
    "ContextCost",
    "Cost",
    "DialogueCost",
    "EvictionCost",
    "PriceResult",
    "Reason",
    "RecomputeCost",
]


@dataclass(frozen=True, slots=True)
class PriceResult:
    """Prices of tokens, and the energy of one; energy is None where the rated power is not known.

    interval: [low, high] of input and output, as the times have it. holding: what a million tokens of cache take of
    the replica in an hour; break_even_hold_s: how long a cached token may wait for its next use before computing it
    again is cheaper, where the pool is full.
    """

    usd_per_gpu_hour: float
    source: str
    gpus: int
    replica_usd_per_hour: float
    utilisation: float
    running: float
    cached_usd_per_million: float
    input_usd_per_million: float
    output_usd_per_million: float
    request_usd: float
    asymmetry: float
    interval: dict[str, list[float]] | None
    watts: float | None
    joules_per_cached_token: float | None
    joules_per_input_token: float | None
    joules_per_output_token: float | None
    holding_usd_per_million_hours: float
    break_even_hold_s: float


@dataclass(frozen=True, slots=True)
class Reason:
    """Why output costs more than input: what one token of each takes."""

    input: TokenWork
    output: TokenWork
    sentence: str


@dataclass(frozen=True, slots=True)
class DialogueCost:
    """A conversation or an agent's run, with a prefix cache and without."""

    turns: int
    system_tokens: int
    asked_tokens: int
    answered_tokens: int
    sent_tokens: float
    computed_tokens: float
    usd: float
    usd_without_cache: float
    saving: float
    first_turn_usd: float
    last_turn_usd: float
    last_turn_usd_without_cache: float


@dataclass(frozen=True, slots=True)
class ContextCost:
    """One sequence at a context: the time and price of its first token, of each further one, and what it displaces.

    displaced: sequences of the ordinary length that would fit in its place; running: that decode together; step_ms:
    one decode step of them, without the prompts of others.
    """

    context: int
    ttft_ms: float
    prompt_usd: float
    token_usd: float
    output_usd_per_million: float
    step_ms: float
    running: float
    slots: int
    displaced: float
    kv_bytes: float


@dataclass(frozen=True, slots=True)
class RecomputeCost:
    """One sequence decoded with a cache, and by running everything again for each token."""

    cached_flops: float
    naive_flops: float
    flops_ratio: float
    cached_ms: float
    naive_ms: float
    time_ratio: float


@dataclass(frozen=True, slots=True)
class EvictionCost:
    """Evicting one sequence: copied to the host and back, or computed again."""

    length: int
    kv_bytes: float
    swap_ms: float
    recompute_ms: float
    choice: str
    short_choice: str
    crossings: tuple[float, ...]
    longest: int
    break_even_link_gb_s: float


@dataclass(frozen=True)
class Cost(Answer):
    """What tokens cost on a deployment, why, and what follows from it. A part is None where it cannot be answered."""

    version: str
    model: str
    gpu: str
    engine: str
    level: str
    calibration: dict[str, str] | None
    inputs: dict[str, Any]
    prices: PriceResult
    reason: Reason
    conversation: DialogueCost | None
    agent: DialogueCost | None
    ordinary_context: ContextCost
    long_context: ContextCost | None
    recompute: RecomputeCost
    waste: Waste
    eviction: EvictionCost | None
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain Python values, ready for JSON."""
        plain = asdict(self)
        plain["warnings"] = list(self.warnings)
        if self.eviction is not None:
            plain["eviction"]["crossings"] = list(self.eviction.crossings)
        return plain

    def to_rows(self) -> list[dict[str, Any]]:
        """One row a number: section, name, value."""
        plain = self.to_dict()
        sections = {key: value for key, value in plain.items() if isinstance(value, dict)}
        return [
            {"section": section, "name": name, "value": value}
            for section, values in sections.items()
            for name, value in _flat(values)
        ]

    def to_frame(self) -> pd.DataFrame:
        """The same as a table."""
        import pandas as pd  # noqa: PLC0415 - only where it is asked for

        return pd.DataFrame(self.to_rows())


def _flat(values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Nested names joined by a dot, lists by semicolons."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{inner}", deeper) for inner, deeper in _flat(value))
        else:
            yield name, ";".join(map(str, value)) if isinstance(value, list) else value
