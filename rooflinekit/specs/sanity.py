"""Slips that accelerator files are known to hold, found by arithmetic.

Sparse peaks given as dense, binary prefixes, a format in another one's column, GiB for GB, bits for bytes, both
directions given as one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from datetime import date
from functools import partial

from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.model.types.hardware import Accelerator
from rooflinekit.model.types.units import format_bytes, format_rate
from rooflinekit.specs.files import table_of


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


@dataclass(frozen=True)
class AcceleratorFacts:
    """An accelerator, and what its file says beyond it."""

    accelerator: Accelerator
    label_bytes: float  #: the marketing number [B]
    memory_type: str
    label_is_binary: bool = False  #: the marketing number is written in GiB
    flops_per_clock: Mapping[Dtype, float] = field(default_factory=dict)  #: dense, per core [FLOP]
    tensor_clock_hz: float = 0.0  #: the clock that the peaks are defined at [Hz]; 0: the maximum clock
    pcie_generation: int = 0
    unusual: Mapping[Dtype, str] = field(default_factory=dict)  #: why a ratio of peaks is right though odd

    def rate(self, dtype: Dtype) -> float:
        """Dense FLOP per clock and core: as the file states it, in 16 bit also as the generation has it; else 0."""
        stated = self.flops_per_clock.get(dtype, 0.0)
        if stated or dtype not in _SIXTEEN_BIT:
            return stated
        other = next((self.flops_per_clock[kind] for kind in _SIXTEEN_BIT if kind in self.flops_per_clock), 0.0)
        return other or float(_limits()["tensor_rate"].get(self.accelerator.compute_capability, 0))

    def finding(self, key: str, value: str, problem: str, refused: bool = False) -> Finding:
        """A finding about `key` of the file."""
        return Finding(self.accelerator.origin, key, value, problem, refused)

    def of_peak(self, dtype: Dtype, problem: str, refused: bool = False) -> Finding:
        """A finding about a dense peak."""
        return self.finding(f"compute.dense.{dtype}", _tera(self.accelerator.peaks[dtype]), problem, refused)

    def of_rate(self, key: str, rate: float, problem: str, refused: bool = False) -> Finding:
        """A finding about a rate of memory or links [B/s]."""
        return self.finding(key, format_rate(rate, "B/s"), problem, refused)


_limits = partial(table_of, __file__)
"""Limits of accelerators, and how their peaks compare, with sources."""


def findings(facts: AcceleratorFacts) -> list[Finding]:
    """Everything about an accelerator that is wrong or looks wrong, the refused first."""
    found = [finding for check in _CHECKS for finding in check(facts)]
    return sorted(found, key=lambda finding: not finding.refused)


_FIRST_YEAR = 2006  # the first accelerator that a program could use for anything but pictures
_LATEST_YEAR = 2027  # what has been announced


def _release_year(facts: AcceleratorFacts) -> Iterator[Finding]:
    year = facts.accelerator.release_year
    latest = max(_LATEST_YEAR, date.today().year + 1)
    if not _FIRST_YEAR <= year <= latest:
        yield facts.finding("release_year", str(year), f"lies outside {_FIRST_YEAR} to {latest}", refused=True)


_CLOCK_CEILING = 3.0e9  # assumed for tensor work where no clock is given: above every shipped accelerator [Hz]
_ROUNDING = 1.01  # datasheets round peaks by less than 1 %
_PREFIX_SLIP = 100  # no sparsity or narrow format gains that much
_POWER_CAP = 0.9  # datasheets state peaks at the boost clock; a cut or capped product has lower ones
_SIXTEEN_BIT = (Dtype.BF16, Dtype.FP16)


def _cores_times_rate(facts: AcceleratorFacts) -> Iterator[Finding]:
    """A dense peak is at most cores x FLOP per clock and core x clock, and far below it only for a reason."""
    chip = facts.accelerator
    known = facts.tensor_clock_hz or chip.clock_hz
    for dtype, peak in chip.peaks.items():
        clock, rate = known or _CLOCK_CEILING, facts.rate(dtype)
        limit = chip.cores * rate * clock
        ratio = peak / limit if limit else 1.0
        cause = f"is {ratio:.3g} x {chip.cores} cores x {rate:g} FLOP x {clock / 1e6:g} MHz = {_tera(limit)}; "
        reasoned = dtype in facts.unusual or (dtype in _SIXTEEN_BIT and {*_SIXTEEN_BIT} & {*facts.unusual})
        if ratio > _ROUNDING:
            yield facts.of_peak(dtype, cause + _excess(ratio), ratio > 1.03)
        elif known and ratio < _POWER_CAP and not reasoned:
            check = "check flops_per_clock_per_core, the core count and the clock, or say why: compute.unusual."
            yield facts.of_peak(dtype, f"{cause}{check}{dtype}")


def _excess(ratio: float) -> str:
    if ratio > _PREFIX_SLIP:
        return "looks like a prefix too far: 1 PFLOP/s is 1000 TFLOP/s"
    if ratio > 1.6:
        return "looks like the sparse peak: give the dense one, usually half"
    if ratio < 1.03:
        return "looks like a factor 1.024: prefixes of FLOP/s are decimal"
    return "check the core count, the clock (cores.tensor_clock) and whether the peak is dense"


def _rate_limit(facts: AcceleratorFacts) -> Iterator[Finding]:
    """No core of a known generation does more per clock than its whitepaper says."""
    ceiling = _limits()["tensor_rate"].get(facts.accelerator.compute_capability, 0)
    for dtype in _SIXTEEN_BIT:
        rate = facts.flops_per_clock.get(dtype, 0.0)
        if ceiling and rate > ceiling:
            problem = f"is above the {ceiling} dense FLOP per clock and core of {facts.accelerator.compute_capability}"
            yield facts.finding(f"compute.flops_per_clock_per_core.{dtype}", f"{rate:g} FLOP", problem, refused=True)


def _gains(facts: AcceleratorFacts) -> Iterator[Finding]:
    """Peaks of narrow formats stand in usual ratios to the 16-bit peak."""
    chip = facts.accelerator
    base = max(chip.peaks.get(dtype, 0.0) for dtype in _SIXTEEN_BIT)
    for dtype, most in ((Dtype(name), most) for name, most in _limits()["gain"].items()):
        reasoned = dtype in facts.unusual or dtype in facts.flops_per_clock
        gain = chip.peaks.get(dtype, 0.0) / base if base and not reasoned else 0.0
        if gain > most:
            most_expected = f"{most - 0.1:g} x is the most expected; {_excess(gain)}, or say why under"
            yield facts.of_peak(dtype, f"is {gain:.3g} x the 16-bit peak, {most_expected} compute.unusual.{dtype}")
        if chip.compute_capability in _limits()["doubles"].get(dtype.value, ()) and 0 < gain < 1.9:
            asked = "is it the 16-bit number, or is that one sparse? Else say why: compute.unusual."
            usual = f"is {gain:.3g} x the 16-bit peak, and {chip.compute_capability} doubles it; {asked}{dtype}"
            yield facts.of_peak(dtype, usual)


def _columns(facts: AcceleratorFacts) -> Iterator[Finding]:
    """A peak in the wrong column: a wide format faster than a narrow one, or two 16-bit formats that differ."""
    peaks, unusual = facts.accelerator.peaks, facts.unusual
    for wide, narrow in (map(Dtype, pair) for pair in _limits()["order"]):
        faster = wide in peaks and narrow in peaks and peaks[wide] > peaks[narrow] * _ROUNDING
        if faster and not {wide, narrow} & {*unusual}:
            swapped = "are the two in each other's place? Else say why: compute.unusual."
            yield facts.of_peak(wide, f"is above that of {narrow}; {swapped}{wide}")
    bf16, fp16 = peaks.get(Dtype.BF16), peaks.get(Dtype.FP16)
    if bf16 and fp16 and max(bf16, fp16) > min(bf16, fp16) * _ROUNDING and not {*_SIXTEEN_BIT} & {*unusual}:
        yield facts.of_peak(Dtype.FP16, f"differs from bf16 ({_tera(bf16)}); say why under compute.unusual.fp16")


def _ridges(facts: AcceleratorFacts) -> Iterator[Finding]:
    """Peak over memory bandwidth lies between 1 and 4000 FLOP/B on every known accelerator."""
    for dtype in facts.accelerator.peaks:
        ridge = float(facts.accelerator.ridge(dtype))
        if not 1.0 <= ridge <= 4000.0:
            problem = (
                f"is {ridge:.3g} FLOP/B over memory.bandwidth, outside 1 to 4000; check the prefixes of both units"
            )
            yield facts.of_peak(dtype, problem, refused=not 0.1 <= ridge <= 20000.0)


def _tera(rate: float) -> str:
    return f"{rate / 1e12:.4g} TFLOP/s"


_GIB_OVER_GB = 2**30 / 1e9
_CAPACITY_ROUNDING = 1.0005  # capacities are given to three digits


def _capacity(facts: AcceleratorFacts) -> Iterator[Finding]:
    """Check that the driver's size lies between 0.7 of the label in GB (Apple keeps a quarter) and the label in GiB.

    A label that is itself in GiB is the most that there can be.
    """
    seen = float(facts.accelerator.memory_bytes)
    ratio, value = seen / facts.label_bytes, format_bytes(seen)
    most = 1.0 if facts.label_is_binary else _GIB_OVER_GB
    if ratio > most * _CAPACITY_ROUNDING:
        problem = (
            f"is {ratio:.3g} x memory.label, more than GiB for GB can explain; is it a GB number written with GiB?"
            if most > 1
            else f"is {ratio:.4g} x memory.label; check both, the driver never shows more than there is"
        )
        yield facts.finding("memory.capacity", value, problem, refused=True)
    elif ratio < 0.7:
        problem = f"is {ratio:.3g} x memory.label; give what the driver shows (nvidia-smi: total, MiB)"
        yield facts.finding("memory.capacity", value, problem, refused=ratio < 0.2)
    elif abs(ratio - 1) < 5e-4 and not facts.label_is_binary:
        problem = "is the marketing number; give what the driver shows (nvidia-smi: total, MiB; GB is 1e9, GiB is 2^30)"
        yield facts.finding("memory.capacity", value, problem)
    visible = float(facts.accelerator.visible_bytes)
    if not 0.9 * seen <= visible <= seen:
        problem = f"is {visible / seen:.3g} x memory.capacity; programs see nine tenths of it at least, and never more"
        yield facts.finding("memory.visible", format_bytes(visible), problem, refused=True)


def _bandwidth(facts: AcceleratorFacts) -> Iterator[Finding]:
    """No memory type is faster than its fastest grade, nor so slow that its own capacity takes too long to read."""
    rate = float(facts.accelerator.memory_bandwidth)
    ceiling, sweeps = _limits()["memory"].get(facts.memory_type), _limits()["slowest_sweep"]
    if ceiling and rate > ceiling:
        problem = (
            f"is {rate / ceiling:.3g} x the most that {facts.memory_type} gives one device "
            f"({format_rate(ceiling, 'B/s')}). Is it in bits, for several devices, or a capacity?"
        )
        yield facts.of_rate("memory.bandwidth", rate, problem, refused=rate > 3 * ceiling)
    family = next((family for family in sweeps if facts.memory_type.upper().startswith(family)), "")
    sweep = float(facts.accelerator.memory_bytes) / rate
    if family and sweep > sweeps[family]:
        problem = (
            f"would need {sweep * 1e3:.3g} ms to read memory.capacity once. No {family} device needs more than "
            f"{sweeps[family] * 1e3:g}. Check the unit (b/s is bits)"
        )
        yield facts.of_rate("memory.bandwidth", rate, problem, refused=sweep > 1.0)


_NIC_CEILING = 150e9  # assumed: 1.2 Tb/s an accelerator; the fastest shipped is 800 Gb/s [B/s]
_BOTH_DIRECTIONS = "looks like both directions together: give one, half of it"


def _links(facts: AcceleratorFacts) -> Iterator[Finding]:
    """Links and PCIe are given in one direction: no more than the generation has. The network is sold in bits."""
    chip = facts.accelerator
    generation = chip.link_kind.lower().replace(" ", "").partition("-")[0]
    links, buses = _limits()["links"], _limits()["pcie"]
    ceiling = links.get(generation) or links.get(chip.compute_capability)
    rate, pcie, nic = float(chip.link_bandwidth), float(chip.pcie_bandwidth), float(chip.nic_bandwidth)
    if ceiling and rate > ceiling * 1.05:
        of = f"the {format_rate(ceiling, 'B/s')} of {chip.link_kind} in one direction"
        cause = _BOTH_DIRECTIONS if rate < 2.2 * ceiling else "check the unit"
        yield facts.of_rate("links.bandwidth", rate, f"is {rate / ceiling:.3g} x {of}; {cause}", refused=True)
    lanes = buses.get(facts.pcie_generation, max(buses.values()))
    if pcie > lanes * 1.05:
        of = f"the {format_rate(lanes, 'B/s')} of 16 lanes of this generation in one direction"
        yield facts.of_rate("links.pcie", pcie, f"is above {of}; {_BOTH_DIRECTIONS}", refused=True)
    if nic > _NIC_CEILING:
        most = "is more than any network card gives one accelerator; "
        yield facts.of_rate("links.nic", nic, most + "networks are sold in Gb/s, is it written as GB/s?")


_CHECKS = (
    _release_year,
    _cores_times_rate,
    _rate_limit,
    _gains,
    _columns,
    _ridges,
    _capacity,
    _bandwidth,
    _links,
)
