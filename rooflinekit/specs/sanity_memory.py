"""Checks on memory and links: GiB for GB, bits for bytes, both directions given as one."""

from __future__ import annotations

from collections.abc import Iterator

from rooflinekit.model.types.units import format_bytes, format_rate
from rooflinekit.specs.facts import Facts, Finding, finding

__all__ = ["bandwidth", "capacity", "host_and_network", "links"]

_GIB_OVER_GB = 2**30 / 1e9
_ROUNDING = 1.0005  # capacities are given to three digits


def capacity(facts: Facts) -> Iterator[Finding]:
    """What the driver shows lies between 0.7 of the label in GB (Apple keeps a quarter) and the label in GiB.

    A label that is itself in GiB is the most that there can be.
    """
    seen, label = float(facts.accelerator.memory_bytes), facts.label_bytes
    ratio, value = seen / label, format_bytes(seen)
    most = 1.0 if facts.label_is_binary else _GIB_OVER_GB
    if ratio > most * _ROUNDING:
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
