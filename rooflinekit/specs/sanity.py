"""Slips that accelerator files are known to hold, found by arithmetic.

Sparse peaks given as dense, binary prefixes, a format in another one's column, GiB for GB, bits for bytes, both
directions given as one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date

from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.hardware import Accelerator
from rooflinekit.model.types.units import format_bytes, format_rate

__all__ = ["Facts", "Finding", "findings"]


@dataclass(frozen=True)
class Facts:
    """An accelerator, and what its file says beyond it."""

    accelerator: Accelerator
    label_bytes: float  #: the marketing number [B]
    memory_type: str
    label_is_binary: bool = False  #: the marketing number is written in GiB
    flops_per_clock: Mapping[Dtype, float] = field(default_factory=dict)  #: dense, per core [FLOP]
    tensor_clock_hz: float = 0.0  #: the clock that the peaks are defined at [Hz]; 0: the maximum clock
    pcie_generation: int = 0
    unusual: Mapping[Dtype, str] = field(default_factory=dict)  #: why a ratio of peaks is right though odd


@dataclass(frozen=True)
class Finding:
    """One number that contradicts physics or a published limit (`refused`), or only looks wrong."""

    origin: str
    key: str
    value: str
    problem: str
    refused: bool = False

    def __str__(self) -> str:
        return f"{self.origin}: {self.key}: value {self.value} {self.problem}"


def finding(facts: Facts, key: str, value: str, problem: str, refused: bool = False) -> Finding:
    """A finding about `key` of the file that the facts come from."""
    return Finding(facts.accelerator.origin, key, value, problem, refused)


_FIRST_YEAR = 2006  # the first accelerator that a program could use for anything but pictures
_LATEST_YEAR = 2027  # what has been announced


def release_year(facts: Facts) -> Iterator[Finding]:
    """A year in which an accelerator was, or is announced to be, released."""
    year = facts.accelerator.release_year
    latest = max(_LATEST_YEAR, date.today().year + 1)
    if not _FIRST_YEAR <= year <= latest:
        yield finding(facts, "release_year", str(year), f"lies outside {_FIRST_YEAR} to {latest}", refused=True)


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


_GIB_OVER_GB = 2**30 / 1e9
_CAPACITY_ROUNDING = 1.0005  # capacities are given to three digits


def capacity(facts: Facts) -> Iterator[Finding]:
    """What the driver shows lies between 0.7 of the label in GB (Apple keeps a quarter) and the label in GiB.

    A label that is itself in GiB is the most that there can be.
    """
    seen, label = float(facts.accelerator.memory_bytes), facts.label_bytes
    ratio, value = seen / label, format_bytes(seen)
    most = 1.0 if facts.label_is_binary else _GIB_OVER_GB
    if ratio > most * _CAPACITY_ROUNDING:
        problem = (
            f"is {ratio:.3g} x memory.label, more than GiB for GB can explain; is it a GB number written with GiB?"
            if most > 1
            else f"is {ratio:.4g} x memory.label; check both, the driver never shows more than there is"
        )
        yield finding(facts, "memory.capacity", value, problem, refused=True)
    elif ratio < 0.7:
        problem = f"is {ratio:.3g} x memory.label; give what the driver shows (nvidia-smi: total, MiB)"
        yield finding(facts, "memory.capacity", value, problem, refused=ratio < 0.2)
    elif abs(ratio - 1) < 5e-4 and not facts.label_is_binary:
        problem = "is the marketing number; give what the driver shows (nvidia-smi: total, MiB; GB is 1e9, GiB is 2^30)"
        yield finding(facts, "memory.capacity", value, problem)


# Eight stacks, or a bus of 512 bit, at the type's fastest grade [B/s]: JEDEC JESD235 (HBM2, HBM2e), JESD238 (HBM3),
# vendors' HBM3e at 9.6 Gb/s, JESD270 (HBM4) with headroom; GDDR6 20, GDDR6X 23, GDDR7 32 Gb/s a pin.
_CEILING = {
    "HBM2": 8 * 307e9, "HBM2e": 8 * 461e9, "HBM3": 8 * 819e9, "HBM3e": 8 * 1.23e12, "HBM4": 8 * 2.8e12,
    "GDDR6": 1.28e12, "GDDR6X": 1.48e12, "GDDR7": 2.05e12,
}  # fmt: skip
# The longest that reading the whole memory takes on a shipped accelerator is 46 ms (MI325X) and 81 ms (L4) [s].
_SLOWEST_SWEEP = {"HBM": 0.06, "GDDR": 0.12}


def bandwidth(facts: Facts) -> Iterator[Finding]:
    """No memory type is faster than its fastest grade, nor so slow that its own capacity takes too long to read."""
    chip = facts.accelerator
    rate = float(chip.memory_bandwidth)
    ceiling = _CEILING.get(facts.memory_type)
    if ceiling and rate > ceiling:
        problem = (
            f"is {rate / ceiling:.3g} x the most that {facts.memory_type} gives one device "
            f"({format_rate(ceiling, 'B/s')}); is it in bits, for several devices, or a capacity?"
        )
        yield finding(facts, "memory.bandwidth", format_rate(rate, "B/s"), problem, refused=rate > 3 * ceiling)
    family = next((family for family in _SLOWEST_SWEEP if facts.memory_type.upper().startswith(family)), "")
    sweep = float(chip.memory_bytes) / rate
    if family and sweep > _SLOWEST_SWEEP[family]:
        problem = (
            f"would need {sweep * 1e3:.3g} ms to read memory.capacity once; no {family} device needs more than "
            f"{_SLOWEST_SWEEP[family] * 1e3:g}; check the unit (b/s is bits, B/s is bytes)"
        )
        yield finding(facts, "memory.bandwidth", format_rate(rate, "B/s"), problem, refused=sweep > 1.0)


# One direction, all links of a device together [B/s]. NVLink: 6, 12 or 18 x 25, 18 x 50 GB/s (NVIDIA V100, A100,
# H100 and Blackwell whitepapers); xGMI: 7 x 64 and 7 x 76.8 GB/s (AMD MI300X and MI355X data sheets), MI250X 8 x 50.
_LINK_CEILING = {
    "nvlink2": 150e9, "nvlink3": 300e9, "nvlink4": 450e9, "nvlink5": 900e9,
    "gfx90a": 400e9, "gfx942": 448e9, "gfx950": 537.6e9,
}  # fmt: skip


def links(facts: Facts) -> Iterator[Finding]:
    """Links are given in one direction: no more than the generation has."""
    chip = facts.accelerator
    generation = chip.link_kind.lower().replace(" ", "").partition("-")[0]
    ceiling = _LINK_CEILING.get(generation) or _LINK_CEILING.get(chip.compute_capability)
    rate = float(chip.link_bandwidth)
    if ceiling and rate > ceiling * 1.05:
        cause = (
            "looks like both directions together: give one, half of it" if rate < 2.2 * ceiling else "check the unit"
        )
        problem = (
            f"is {rate / ceiling:.3g} x the {format_rate(ceiling, 'B/s')} of {chip.link_kind} in one direction; {cause}"
        )
        yield finding(facts, "links.bandwidth", format_rate(rate, "B/s"), problem, refused=True)


_PCIE_X16 = {3: 15.75e9, 4: 31.5e9, 5: 63e9, 6: 121e9, 7: 242e9}  # 16 lanes, one direction [B/s] (PCI-SIG)
_NIC_CEILING = 150e9  # assumed: 1.2 Tb/s an accelerator; the fastest shipped is 800 Gb/s [B/s]


def host_and_network(facts: Facts) -> Iterator[Finding]:
    """PCIe in one direction; the network in bits, as it is sold."""
    chip = facts.accelerator
    ceiling = _PCIE_X16.get(facts.pcie_generation, max(_PCIE_X16.values()))
    pcie, nic = float(chip.pcie_bandwidth), float(chip.nic_bandwidth)
    if pcie > ceiling * 1.05:
        problem = (
            f"is above the {format_rate(ceiling, 'B/s')} of 16 lanes of this generation in one direction; "
            "looks like both directions together: give one, half of it"
        )
        yield finding(facts, "links.pcie", format_rate(pcie, "B/s"), problem, refused=True)
    if nic > _NIC_CEILING:
        problem = (
            "is more than any network card gives one accelerator; networks are sold in Gb/s, is it written as GB/s?"
        )
        yield finding(facts, "links.nic", format_rate(nic, "B/s"), problem)


_CHECKS = (
    release_year,
    core_limit,
    core_shortfall,
    rate_limit,
    ratios,
    doubling,
    columns,
    ridges,
    capacity,
    bandwidth,
    links,
    host_and_network,
)


def findings(facts: Facts) -> list[Finding]:
    """Everything about an accelerator that is wrong or looks wrong, the refused first."""
    found = [finding for check in _CHECKS for finding in check(facts)]
    return sorted(found, key=lambda finding: not finding.refused)
