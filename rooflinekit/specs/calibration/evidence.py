"""Evidence of a deployment's times: measured kernels, fits from elsewhere, or datasheets alone."""

from __future__ import annotations

from rooflinekit.model.roofline import time_step
from rooflinekit.model.step import Plan
from rooflinekit.model.timing.calibrated import BORROWED, Calibration
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.kernel import Kernel
from rooflinekit.specs.files import once

EVIDENCE = ("measured", "stand-in", "datasheet")
"""Levels of evidence, the strongest first."""

_STEPS = (Batch.prefill(1.0, 1024.0), Batch.decode(64.0, 4096.0))  # at which kernels are weighed by their time
_MOST = 0.9  # share of each step that measured kernels take at least: an assumption
_PASSES = ("elementwise", "embedding", "sampling", "kv_append")  # small, and in no table of measurements


@once
def evidence(plan: Plan) -> str:
    """Evidence of a plan's times, one of `EVIDENCE`.

    `measured`: kernels of nine tenths of the time were measured on this accelerator, with this engine and in their
    number formats; `stand-in`: fits of another accelerator, engine or format stand in, or feed-forward blocks are on
    accelerators of their own, which nobody measured; `datasheet`: there is no calibration. Norms, activations, cache
    writes and samplers do not count, since no calibration measures them.
    """
    calibration = plan.calibration
    if calibration is None:
        return "datasheet"
    whole = not (calibration.widening or plan.deployment.ffn_gpus) and all(
        _share(plan, calibration, batch) >= _MOST for batch in _STEPS
    )
    return "measured" if whole else "stand-in"


def _share(plan: Plan, calibration: Calibration, batch: Batch) -> float:
    """Share of a step's kernels, by time, that were measured."""
    kernels = [kernel for kernel in plan.kernels(batch) if kernel.family not in _PASSES]
    here = [kernel for kernel in kernels if measured_here(calibration, kernel)]
    if len(here) in (0, len(kernels)):
        return float(bool(here))
    measured, whole = (float(time_step(some, plan.system, calibration).expected) for some in (here, kernels))
    return measured / whole


def measured_here(calibration: Calibration, kernel: Kernel) -> bool:
    """True if the kernel's fit rests on measurements of its own accelerator, engine and format."""
    fit = calibration.fit(kernel)
    return fit.rows > 0 and not fit.source.startswith(BORROWED) and calibration.measured(kernel)
