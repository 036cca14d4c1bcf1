"""One deployment's engine costs, from benchmark files of it and the shipped costs as prior."""

from __future__ import annotations

from rooflinekit.evidence.engine_fit.fit import fit_engine
from rooflinekit.evidence.engine_fit.outcome import EngineFit

__all__ = ["EngineFit", "fit_engine"]
