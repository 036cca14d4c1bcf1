"""One deployment's engine costs, from benchmark files of it and the shipped costs as prior."""

from __future__ import annotations

from rooflinekit.evidence.engine_fit.fit import EngineFit, fit_engine

__all__ = ["EngineFit", "fit_engine"]
