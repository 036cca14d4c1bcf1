"""The outcome of a check, and how far rounding alone may carry a right answer."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rooflinekit.validate.case import why_not

_LARGEST = 4.0  # the largest of some 10^4 normal numbers, in standard deviations
_RARE = 3.719  # normal quantile of 1 - 1e-4


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check: `error` may be at most `tolerance`; `detail` says what was compared, or what went wrong.

    A backend that is not installed is `missing`: it neither passed nor failed.
    """

    name: str
    passed: bool
    error: float
    tolerance: float
    detail: str
    missing: bool = False
    kernel: str = ""  #: the timed kernel that this is about, as `Case.kernel` says it

    @property
    def failed(self) -> bool:
        """Whether something that is here computes wrong numbers, or none."""
        return not (self.passed or self.missing)


@dataclass(frozen=True)
class Trial:
    """What checks run on: a device, the 16-bit or 32-bit format of its fused kernels, and the seed of the inputs."""

    device: torch.device
    dtype: torch.dtype
    seed: int = 0

    def generator(self, number: int = 0) -> torch.Generator:
        """Random numbers drawn on the CPU: the same on every device, and others for every number."""
        return torch.Generator().manual_seed(self.number(number))

    def number(self, number: int = 0) -> int:
        """The seed of one of the things that a check draws."""
        return 1000 * self.seed + number


def rounding(dtype: torch.dtype, *lengths: int, peak: float = _LARGEST) -> float:
    """Largest error to expect of products of these lengths, one after the other, relative to the result's RMS.

    A random walk: u·sqrt(n/2) of the result for n terms, with u half the machine epsilon; errors of successive products
    add as squares, and the largest is some four times the RMS (docs/correctness.md, after Higham & Mary 2019,
    doi:10.1137/18M1226312). 16-bit formats sum in fp32; there the inputs of the second product and the result are
    rounded too, each by at most half an epsilon of the largest result, which is `peak` times the RMS.

    >>> rounding(torch.float32, 128)
    7.6e-06
    """
    fp32 = _LARGEST**2 * torch.finfo(torch.float32).eps / 2 * math.sqrt(sum(lengths) / 2)
    if dtype == torch.float64:
        return fp32 * torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps
    return fp32 if dtype == torch.float32 else fp32 + peak * torch.finfo(dtype).eps


def peak(want: Tensor) -> float:
    """The largest result relative to the root mean square: four for normal numbers, more where rows differ in size.

    >>> peak(torch.tensor([1.0, -1.0, 1.0, 1.0]))
    4.0
    """
    return max(_LARGEST, float(want.abs().max() / want.double().square().mean().sqrt()))


def compare(name: str, got: Tensor, want: Tensor, tolerance: float, detail: str) -> CheckResult:
    """The largest difference, relative to the root mean square of what is wanted; not a number never passes."""
    want = want.double()
    error = float((got.double() - want).abs().max() / want.square().mean().sqrt())
    return CheckResult(name, error <= tolerance, error, tolerance, detail)


def not_run(name: str, error: Exception) -> CheckResult:
    """What a check says that raised: missing where the kernel is not here, failed for any other reason."""
    why = why_not(error)
    return CheckResult(name, False, math.nan, 0.0, f"did not run: {why['detail']}", missing=why["status"] == "missing")


def follows(name: str, drawn: Tensor, probability: Tensor) -> CheckResult:
    """Whether numbers drawn follow their probabilities [cells]: Pearson's chi-square, at one chance in 10,000.

    One number of probability 0 is wrong at once.
    """
    counts, share = torch.bincount(drawn, minlength=len(probability)).double().cpu(), probability.double().cpu()
    inside, expected = share > 0, share / share.sum() * len(drawn)
    found = float(((counts - expected)[inside].square() / expected[inside]).sum())
    found = found if counts[~inside].sum() == 0 else math.inf
    limit = critical_chi_square(int(inside.sum()) - 1)
    detail = f"chi-square of {len(drawn)} draws over {int(inside.sum())} cells"
    return CheckResult(name, found <= limit, found, limit, detail)


def critical_chi_square(freedom: int) -> float:
    """What chi-square exceeds once in 10,000 times (Wilson & Hilferty 1931, doi:10.1073/pnas.17.12.684).

    >>> round(critical_chi_square(10), 1)  # 35.6 in tables; the approximation is a little high
    36.0
    """
    share = 2.0 / (9.0 * freedom)
    return freedom * (1.0 - share + _RARE * math.sqrt(share)) ** 3
