"""What a fit to benchmark files says: every cost before and after, every file before and after, what to doubt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rooflinekit.evidence.engine_fit.parameters import Parameter
from rooflinekit.model.types.engine import StepCosts
from rooflinekit.specs.calibration.served import ServedFile

__all__ = ["EngineFit", "Error", "Outcome"]


@dataclass(frozen=True)
class Outcome:
    """One parameter after the fit.

    spread: one standard error (of the logarithm for a factor); data: 1 − (spread / prior spread)², the share that the
    files have in the value; at: the bound where it stands ("least", "most", or ""); moved: by how many prior spreads.
    """

    prior: Parameter
    value: float
    spread: float
    data: float
    at: str = ""
    moved: float = 0.0


@dataclass(frozen=True)
class Error:
    """Mean |predicted / measured − 1| of one metric; unseen: of fits without the file in question, if there are 3."""

    rows: int
    before: float
    after: float
    unseen: float | None


@dataclass(frozen=True)
class EngineFit:
    """A fit, and the text of the calibration file that holds it.

    alike: pairs of costs that the files do not tell apart; noise: one standard deviation of the logarithm by metric.
    """

    text: str
    costs: StepCosts
    outcomes: tuple[Outcome, ...]
    files: tuple[ServedFile, ...]
    errors: Mapping[str, Error]
    alike: tuple[tuple[str, str], ...]
    noise: Mapping[str, float]
    notes: tuple[str, ...]
    failed: Mapping[str, str]
