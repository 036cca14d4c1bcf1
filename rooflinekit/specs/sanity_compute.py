"""Checks on peak rates: sparse given as dense, binary prefixes, a format in another one's column."""

from __future__ import annotations

from collections.abc import Iterator

from rooflinekit.model.types.dtype import Dtype
from rooflinekit.specs.facts import Facts, Finding, finding

__all__ = ["columns", "core_limit", "core_shortfall", "doubling", "rate_limit", "ratios", "ridges"]

# Dense 16-bit tensor FLOP per clock and core, the most that the generation has. NVIDIA: the architecture whitepapers
# (V100, Turing, A100, GA102, Ada, H100, Blackwell); AMD: CDNA2, CDNA3 and CDNA4 whitepapers.
_TENSOR_RATE = {
    "7.0": 1024, "7.5": 1024, "8.0": 2048, "8.6": 1024, "8.9": 1024, "9.0": 4096, "10.0": 8192, "10.3": 8192,
    "12.0": 1024, "gfx90a": 1024, "gfx942": 2048, "gfx950": 4096,
}  # fmt: skip
_CLOCK_CEILING = 3.0e9  # assumed for tensor work where no clock is given: above every shipped accelerator [Hz]
_ROUNDING = 1.01  # datasheets round peaks by less than 1 %
_PREFIX_SLIP = 100  # no sparsity or narrow format gains that much
_POWER_CAP = 0.9  # datasheets state peaks at the boost clock; a cut or capped product has lower ones
_SIXTEEN_BIT = (Dtype.BF16, Dtype.FP16)


def core_limit(facts: Facts) -> Iterator[Finding]:
    """A dense peak is at most cores x FLOP per clock and core x clock."""
    chip = facts.accelerator
    clock = facts.tensor_clock_hz or chip.clock_hz or _CLOCK_CEILING
    for dtype, peak in chip.peaks.items():
        rate = _rate(facts, dtype)
        limit = chip.cores * rate * clock
        if rate and peak > limit * _ROUNDING:
            product = f"{chip.cores} cores x {rate:g} FLOP x {clock / 1e6:g} MHz = {_tera(limit)}"
            cause = f"is {peak / limit:.3g} x {product}; {_excess(peak / limit)}"
            yield finding(facts, f"compute.dense.{dtype}", _tera(peak), cause, peak > limit * 1.03)


def core_shortfall(facts: Facts) -> Iterator[Finding]:
    """A dense peak far below cores x FLOP per clock and core x clock: one of the four is wrong, or it is cut."""
    chip = facts.accelerator
    clock = facts.tensor_clock_hz or chip.clock_hz
    for dtype, peak in chip.peaks.items():
        rate = _rate(facts, dtype)
        limit = chip.cores * rate * clock
        reasoned = dtype in facts.unusual or (dtype in _SIXTEEN_BIT and {*_SIXTEEN_BIT} & {*facts.unusual})
        if limit and peak < limit * _POWER_CAP and not reasoned:
            problem = (
                f"is {peak / limit:.3g} x {chip.cores} cores x {rate:g} FLOP x {clock / 1e6:g} MHz = {_tera(limit)}; "
                f"check flops_per_clock_per_core, the core count and the clock, or say why: compute.unusual.{dtype}"
            )
            yield finding(facts, f"compute.dense.{dtype}", _tera(peak), problem)


def _rate(facts: Facts, dtype: Dtype) -> float:
    stated = facts.flops_per_clock.get(dtype, 0.0)
    if stated or dtype not in _SIXTEEN_BIT:
        return stated
    other = next((facts.flops_per_clock[kind] for kind in _SIXTEEN_BIT if kind in facts.flops_per_clock), 0.0)
    return other or float(_TENSOR_RATE.get(facts.accelerator.compute_capability, 0))


def _excess(ratio: float) -> str:
    if ratio > _PREFIX_SLIP:
        return "looks like a prefix too far: 1 PFLOP/s is 1000 TFLOP/s"
    if ratio > 1.6:
        return "looks like the sparse peak: give the dense one, usually half"
    if ratio < 1.03:
        return "looks like a factor 1.024: prefixes of FLOP/s are decimal"
    return "check the core count, the clock (cores.tensor_clock) and whether the peak is dense"


def rate_limit(facts: Facts) -> Iterator[Finding]:
    """No core of a known generation does more per clock than its whitepaper says."""
    ceiling = _TENSOR_RATE.get(facts.accelerator.compute_capability, 0)
    for dtype in _SIXTEEN_BIT:
        rate = facts.flops_per_clock.get(dtype, 0.0)
        if ceiling and rate > ceiling:
            problem = f"is above the {ceiling} dense FLOP per clock and core of {facts.accelerator.compute_capability}"
            yield finding(facts, f"compute.flops_per_clock_per_core.{dtype}", f"{rate:g} FLOP", problem, True)


# The most that a narrow format usually gains over 16 bit: half the bits, twice the rate, and 6 x fp4 on Blackwell Ultra
# (15 dense PFLOP/s at 2.5 in 16 bit, NVIDIA GB300 NVL72).
_GAIN = {Dtype.FP8: 2.1, Dtype.INT8: 2.1, Dtype.INT4: 4.1, Dtype.NVFP4: 6.1, Dtype.MXFP4: 6.1}
# The wider of two formats is never the faster one.
_ORDER = (
    (Dtype.FP32, Dtype.TF32), (Dtype.FP32, Dtype.BF16), (Dtype.TF32, Dtype.BF16), (Dtype.TF32, Dtype.FP16),
    (Dtype.BF16, Dtype.FP8), (Dtype.FP8, Dtype.NVFP4), (Dtype.FP8, Dtype.MXFP4), (Dtype.INT8, Dtype.INT4),
)  # fmt: skip


def ratios(facts: Facts) -> Iterator[Finding]:
    """Peaks of narrow formats stand in usual ratios to the 16-bit peak."""
    peaks = facts.accelerator.peaks
    base = max((peaks[kind] for kind in _SIXTEEN_BIT if kind in peaks), default=0.0)
    for dtype, gain in _GAIN.items():
        stated = dtype in facts.unusual or dtype in facts.flops_per_clock
        if base and not stated and peaks.get(dtype, 0.0) > gain * base:
            ratio = peaks[dtype] / base
            problem = (
                f"is {ratio:.3g} x the 16-bit peak, {gain - 0.1:g} x is the most expected; {_excess(ratio)}, "
                f"or say why under compute.unusual.{dtype}"
            )
            yield finding(facts, f"compute.dense.{dtype}", _tera(peaks[dtype]), problem)


# Generations whose 8-bit units are twice as fast as the 16-bit ones: the whitepapers named above. Blackwell Ultra
# (10.3) gave up INT8, and CDNA2 runs it at the 16-bit rate.
_DOUBLES = {
    Dtype.FP8: ("8.9", "9.0", "10.0", "10.3", "12.0", "gfx942", "gfx950"),
    Dtype.INT8: ("7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0", "gfx942", "gfx950"),
}


def doubling(facts: Facts) -> Iterator[Finding]:
    """An 8-bit peak that is not twice the 16-bit one where the generation doubles it."""
    chip = facts.accelerator
    base = max((chip.peaks[kind] for kind in _SIXTEEN_BIT if kind in chip.peaks), default=0.0)
    for dtype, generations in _DOUBLES.items():
        peak = chip.peaks.get(dtype, 0.0)
        stated = dtype in facts.unusual or dtype in facts.flops_per_clock
        if chip.compute_capability in generations and not stated and 0 < peak < 1.9 * base:
            problem = (
                f"is {peak / base:.3g} x the 16-bit peak, and {chip.compute_capability} doubles it; is it the 16-bit "
                f"number, or is that one sparse? Else say why: compute.unusual.{dtype}"
            )
            yield finding(facts, f"compute.dense.{dtype}", _tera(peak), problem)


def columns(facts: Facts) -> Iterator[Finding]:
    """A peak in the wrong column: a wide format faster than a narrow one, or two 16-bit formats that differ."""
    peaks, unusual = facts.accelerator.peaks, facts.unusual
    pairs = [(wide, narrow) for wide, narrow in _ORDER if wide in peaks and narrow in peaks]
    for wide, narrow in pairs:
        if peaks[wide] > peaks[narrow] * _ROUNDING and wide not in unusual and narrow not in unusual:
            problem = (
                f"is above that of {narrow}; are the two in each other's place? Else say why: compute.unusual.{wide}"
            )
            yield finding(facts, f"compute.dense.{wide}", _tera(peaks[wide]), problem)
    bf16, fp16 = peaks.get(Dtype.BF16), peaks.get(Dtype.FP16)
    if bf16 and fp16 and max(bf16, fp16) > min(bf16, fp16) * _ROUNDING and not {*_SIXTEEN_BIT} & {*unusual}:
        problem = f"differs from bf16 ({_tera(bf16)}); say why under compute.unusual.fp16"
        yield finding(facts, "compute.dense.fp16", _tera(fp16), problem)


def ridges(facts: Facts) -> Iterator[Finding]:
    """Peak over memory bandwidth lies between 1 and 2000 FLOP/B on every known accelerator."""
    chip = facts.accelerator
    for dtype in chip.peaks:
        ridge = float(chip.ridge(dtype))
        if not 1.0 <= ridge <= 2000.0:
            problem = (
                f"is {ridge:.3g} FLOP/B over memory.bandwidth, outside 1 to 2000; check the prefixes of both units"
            )
            refused = not 0.1 <= ridge <= 20000.0
            yield finding(facts, f"compute.dense.{dtype}", _tera(chip.peaks[dtype]), problem, refused)


def _tera(rate: float) -> str:
    return f"{rate / 1e12:.4g} TFLOP/s"
