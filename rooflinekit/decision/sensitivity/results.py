"""What the levers of a deployment are: plain numbers with units in their names."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rooflinekit.decision.sensitivity.balance import Balance
from rooflinekit.decision.sensitivity.elasticity import Elasticity
from rooflinekit.model.types.answer import Answer

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Levers", "MoveResult", "Operating"]


@dataclass(frozen=True, slots=True)
class Operating:
    """What a deployment answers; USD are None where nobody knows a price."""

    ttft_ms: float
    tpot_ms: float
    output_tok_s: float
    output_tok_s_per_gpu: float
    gpus: int
    running: float  #: sequences that decode together
    kv_bytes_per_token: float
    gpu_seconds_per_token: float  #: of an output token, its share of the prompts included
    usd_per_million_output: float | None


@dataclass(frozen=True, slots=True)
class MoveResult:
    """One change and what it gives; `ratio` is each metric over that of the present deployment."""

    move: str
    option: str
    caveat: str
    possible: bool
    reason: str  #: why it is not possible
    answer: Operating | None
    ratio: dict[str, float | None]  #: ttft, tpot, throughput (of one accelerator), cost
    warnings: tuple[str, ...] = ()  #: what a user should hear about it that is not true of the present deployment

    def to_row(self) -> dict[str, Any]:
        """One flat row; empty cells where it is not possible."""
        head = {"move": self.move, "option": self.option, "possible": self.possible}
        ratios = {f"{name}_ratio": self.ratio.get(name) for name in ("ttft", "tpot", "throughput", "cost")}
        fields = Operating.__slots__
        numbers = {name: None if self.answer is None else getattr(self.answer, name) for name in fields}
        words = {"caveat": self.caveat, "reason": self.reason, "warnings": "; ".join(self.warnings)}
        return {**head, **ratios, **numbers, **words}


@dataclass(frozen=True)
class Levers(Answer):
    """Elasticities of a deployment's answers, what its decode steps read, and moves ranked by gain."""

    version: str
    model: str
    gpu: str
    engine: str
    level: str
    calibration: dict[str, str] | None
    inputs: dict[str, Any]
    by: str  #: metric that ranks the moves
    price: dict[str, Any] | None
    answer: Operating
    elasticities: tuple[Elasticity, ...]
    balance: Balance
    sentence: str
    moves: tuple[MoveResult, ...]  #: possible ones, best first, and then the others
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain Python values, ready for JSON."""
        plain = asdict(self)
        shares = {"lever": self.balance.lever, "weight_share": self.balance.weight_share}
        plain["balance"] |= shares | {"kv_share": self.balance.kv_share}
        for name in ("elasticities", "moves", "warnings"):
            plain[name] = list(plain[name])
        plain["moves"] = [entry | {"warnings": list(entry["warnings"])} for entry in plain["moves"]]
        return plain

    def to_rows(self) -> list[dict[str, Any]]:
        """The moves, one flat row each."""
        return [move.to_row() for move in self.moves]

    def to_frame(self) -> pd.DataFrame:
        """The moves as a table."""
        import pandas as pd  # noqa: PLC0415 - only where it is asked for

        return pd.DataFrame(self.to_rows())
