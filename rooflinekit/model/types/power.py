"""The clock that is left under a power cap."""

from __future__ import annotations

from dataclasses import replace

from rooflinekit.model.types.errors import WorkloadError
from rooflinekit.model.types.hardware import Accelerator, Provenance

__all__ = ["capped", "clock_share"]

_LEAST = 0.4
"""Share of the rated power below which the cube law is not followed: idle and memory power no longer scale."""

_SOURCE = (
    "assumption: dynamic power grows with the cube of the clock (P = C·V²·f with V in proportion to f); measured under "
    "caps of 200 to 700 W in arXiv:2604.11391"
)


def clock_share(cap_w: float, tdp_w: float) -> float:
    """Core clock under a power cap, over the clock that dense work sustains at the rated power: (cap/TDP)^(1/3).

    What an accelerator sustains at its rated power is itself below the datasheet's clock; that part is in the
    calibrated share of the peak (`calibration.gemm.compute` in the provenance of an answer).

    >>> round(clock_share(350.0, 700.0), 3)
    0.794
    """
    return float((cap_w / tdp_w) ** (1.0 / 3.0))


def capped(accelerator: Accelerator, cap_w: float) -> tuple[Accelerator, str]:
    """The accelerator under a power cap, and a sentence that says what it does: peaks fall, memory and links do not.

    Raises WorkloadError where the rated power is unknown, or the cap is above it or below 40 % of it.
    """
    tdp = accelerator.tdp_w
    if not tdp:
        raise WorkloadError(f"power_cap {cap_w:g} W: {accelerator.name} has no rated power (power.tdp) to compare with")
    if not _LEAST * tdp <= cap_w <= tdp:
        raise WorkloadError(
            f"power_cap {cap_w:g} W is outside {_LEAST * tdp:.0f} to {tdp:.0f} W, where the clock of "
            f"{accelerator.name} is known to follow"
        )
    share = clock_share(cap_w, tdp)
    peaks = {dtype: peak * share for dtype, peak in accelerator.peaks.items()}
    fact = Provenance("power cap: clock over the clock at rated power", share, "share", _SOURCE, "C")
    note = f"power cap {cap_w:g} of {tdp:g} W: arithmetic at {share:.0%} of the clock, memory and links unchanged"
    return replace(accelerator, peaks=peaks, provenance=(*accelerator.provenance, fact)), note
