"""Which pictures each kind of result has, and what draws them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import pandas as pd

from rooflinekit.decision.sensitivity.levers import Levers
from rooflinekit.estimation.results import Estimate
from rooflinekit.model.types.errors import InputError, UnknownNameError
from rooflinekit.report.plots import intensity, loads, roofline, sensitivities, served, steps, sweeps
from rooflinekit.report.plots.picture import Picture
from rooflinekit.report.plots.style import THEMES, Theme, styled
from rooflinekit.simulation.outcome import Outcome

__all__ = ["KINDS", "draw", "drawable"]

Drawn: TypeAlias = Callable[[Any, Theme], Picture]

KINDS: Mapping[type, Mapping[str, Drawn]] = {
    Estimate: {
        "roofline": roofline.roofline,
        "time": steps.time_spent,
        "bytes": steps.bytes_read,
        "memory": steps.memory,
    },
    pd.DataFrame: {
        "batch": sweeps.batch_sweep,
        "context": sweeps.context_sweep,
        "load": loads.load_sweep,
        "pareto": sweeps.pareto,
    },
    Outcome: {"percentiles": served.percentiles, "timeline": served.timeline},
    Levers: {"elasticities": sensitivities.elasticities, "moves": sensitivities.moves},
    tuple: {"intensity": intensity.intensity},
}
"""By type of result; a tuple is several estimates."""


def _kinds_of(result: Any) -> Mapping[str, Drawn]:
    """Raises InputError for what is no result."""
    drawn = next((kinds for kind, kinds in KINDS.items() if isinstance(result, kind)), None)
    empty = isinstance(result, tuple) and not (result and all(isinstance(each, Estimate) for each in result))
    if drawn is None or empty:
        known = "an Estimate or several, a table of them, an Outcome of simulate, or Levers"
        raise InputError(f"cannot draw {'these' if empty else f'a {type(result).__name__}'}; give {known}")
    return drawn


def drawable(result: Any) -> list[str]:
    """The pictures that a result has.

    Raises InputError for what is no result, or a table without anything to draw.
    """
    kinds = _kinds_of(result)
    if not isinstance(result, pd.DataFrame):
        return list(kinds)
    found = sweeps.kinds_of(result)
    if not found:
        raise InputError("nothing to draw: the table needs answered rows that differ in batch, isl, context or load")
    return found


def draw(result: Any, kind: str | None, theme: str) -> Picture:
    """One picture of a result, the first that it has if none is named.

    Raises InputError, and UnknownNameError for a kind or theme that is none.
    """
    kinds = _kinds_of(result)
    chosen = drawable(result)[0] if kind is None else kind
    if chosen not in kinds:
        raise UnknownNameError("picture", str(chosen), kinds)
    if theme not in THEMES:
        raise UnknownNameError("theme", str(theme), THEMES)
    with styled(THEMES[theme]):
        return kinds[chosen](result, THEMES[theme])
