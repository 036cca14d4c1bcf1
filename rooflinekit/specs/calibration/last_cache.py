"""Rate of the last cache: the rate of a roofline that no datasheet gives, and that measured kernels may tell."""

from __future__ import annotations

from collections.abc import Iterable

from rooflinekit.model.step import Plan
from rooflinekit.model.timing.calibrated import BORROWED, FamilyFit
from rooflinekit.model.timing.forms import parameters
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.model.types.hardware import Provenance
from rooflinekit.specs.calibration.choose import reach_of

_KERNELS = {
    "attention_decode": "decode attention",
    "mla_decode": "latent decode attention",
    "gemm": "matrix products",
}
"""Kernels that read data again from the last cache, in words."""

_QUANTITY = "calibration.last_cache, fitted to "
_RATIO = "cache_speed"
_CLEAR = 1.5  # a cache less far above the memory cannot be told from it: an assumption, as the next one
_SURE = 5.0  # standard errors that a ratio is away from nothing


@dataclass(frozen=True, slots=True)
class LastCache:
    """A rate [B/s] that the calibration found for data in the last cache, and the kernels that told it."""

    rate: float
    fitted_to: str
    source: str

    def entry(self) -> Provenance:
        """Entry as answers carry it."""
        return Provenance(f"{_QUANTITY}{self.fitted_to}", self.rate, "B/s", self.source)

    @classmethod
    def among(cls, entries: Iterable[Provenance]) -> LastCache | None:
        """The one that an answer carries, if it does: the inverse of `entry`.

        >>> LastCache.among([LastCache(11e12, "decode attention", "4235 rows").entry()]).rate
        11000000000000.0
        """
        known = {f"{_QUANTITY}{words}": words for words in _KERNELS.values()}
        return next((cls(e.value, known[e.quantity], e.source) for e in entries if e.quantity in known), None)


def last_cache(plan: Plan) -> LastCache | None:
    """The rate of the last cache, times the memory's: the highest that a fit of the plan's calibration tells.

    A cache is at least as fast as any kernel reads it, so that the rate is one of the accelerator, whatever formats are
    deployed; it is effective, no datasheet's. None without a calibration of this accelerator, where no fit tells it,
    and where it is less than 1.5 times the memory's.
    """
    accelerator, calibration = plan.system.accelerator, plan.calibration
    if calibration is None:
        return None
    if calibration.widening and reach_of(calibration, accelerator, plan.deployment.engine) != "engine":
        return None
    told = [
        (key, fit) for key, fit in calibration.families.items() if key.partition("/")[0] in _KERNELS and _tells(fit)
    ]
    key, fit = max(told, key=lambda item: _ratio(item[1]), default=("", None))
    if fit is None or _ratio(fit) < _CLEAR:
        return None
    source = f"calibration.{key}.{_RATIO} times memory.bandwidth: {fit.source}"
    rate = _ratio(fit) * float(accelerator.memory_bandwidth)
    return LastCache(rate, _KERNELS[key.partition("/")[0]], source)


def _ratio(fit: FamilyFit) -> float:
    return float(getattr(fit.form, _RATIO, 1.0))


def _tells(fit: FamilyFit) -> bool:
    """True if measurements on this accelerator pinned the ratio, away from the limits that the fit was given."""
    bounds = parameters(fit.form).get(_RATIO)
    if bounds is None or _RATIO in fit.frozen or fit.source.startswith(BORROWED):
        return False
    ratio, error = _ratio(fit), fit.spread.get(_RATIO, 0.0)
    return 0.0 < _SURE * error < ratio and bounds.low < ratio - error and ratio + error < bounds.high
