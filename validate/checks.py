"""Correctness before speed: every kernel and model form against float64 or an independent formulation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from rooflinekit.validate.checks_kernels import KERNEL_CHECKS
from rooflinekit.validate.checks_model import MODEL_CHECKS
from rooflinekit.validate.quantised import QUANTISED_CHECKS
from rooflinekit.validate.speculative import SPECULATIVE_CHECKS
from rooflinekit.validate.tolerance import CheckResult, Trial, not_run

__all__ = ["CHECKS", "CheckResult", "run_checks"]

Check = Callable[[Trial], Iterator[CheckResult]]
CHECKS: tuple[Check, ...] = (*KERNEL_CHECKS, *MODEL_CHECKS, *QUANTISED_CHECKS, *SPECULATIVE_CHECKS)


def run_checks(
    device: str, progress: Callable[[str], None] | None = None, *, dtype: torch.dtype | None = None, seed: int = 0,
    checks: Sequence[Check] | None = None,
) -> list[CheckResult]:  # fmt: skip
    """Run every check on the device, or some; `progress` hears the name of each group of checks as it starts.

    Inputs come from the seed and are drawn on the CPU. The format of the fused kernels is bf16 on a GPU and fp32 on a
    CPU, unless another is given: bf16 on a CPU shows beforehand how rounding on a GPU moves the results. A check that
    raises has failed, and its detail says why; a kernel that is not installed is missing.
    """
    place = torch.device(device)
    trial = Trial(place, dtype or (torch.bfloat16 if place.type == "cuda" else torch.float32), seed)
    results: list[CheckResult] = []
    with torch.inference_mode(), _single_thread(), _full_fp32():
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
def _single_thread() -> Iterator[None]:
    """The tensors are tiny: threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _full_fp32() -> Iterator[None]:
    """No TF32: the tolerances are those of fp32 products."""
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
