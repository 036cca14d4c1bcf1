"""Correctness before speed: every kernel and model form against float64 or an independent formulation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from rooflinekit.validate.checks_kernels import KERNEL_CHECKS
from rooflinekit.validate.checks_model import MODEL_CHECKS
from rooflinekit.validate.quantised import QUANTISED_CHECKS
from rooflinekit.validate.tolerance import CheckResult, Trial, not_run

Check = Callable[[Trial], Iterator[CheckResult]]
CHECKS: tuple[Check, ...] = (*KERNEL_CHECKS, *MODEL_CHECKS, *QUANTISED_CHECKS)


def run_checks(
    device: str, progress: Callable[[str], None] | None = None, checks: Sequence[Check] | None = None
) -> list[CheckResult]:
    """Run every check on the device, or some; `progress` hears the name of each group of checks as it starts.

    The format of the fused kernels is bf16 on a GPU and fp32 on a CPU. A check that raises has failed, and its detail
    says why; a kernel that is not installed is missing.
    """
    place = torch.device(device)
    trial = Trial(place, torch.bfloat16 if place.type == "cuda" else torch.float32)
    results: list[CheckResult] = []
    with torch.inference_mode(), _as_checked():
        for check in CHECKS if checks is None else checks:
            if progress is not None:
                progress(check.__name__)
            results += _results(check, trial)
    return results


def _results(check: Check, trial: Trial) -> Iterator[CheckResult]:
    try:
        yield from check(trial)
    except Exception as error:
        yield not_run(check.__name__, error)


@contextmanager
def _as_checked() -> Iterator[None]:
    """One thread, as the tensors are tiny; no TF32, as tolerances are those of fp32 products."""
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
