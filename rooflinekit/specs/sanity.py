"""Slips that accelerator files are known to hold, found by arithmetic: sparse peaks, GiB for GB, both directions."""

from __future__ import annotations

from rooflinekit.specs import sanity_compute, sanity_memory
from rooflinekit.specs.facts import Facts, Finding

__all__ = ["Facts", "Finding", "findings"]

_CHECKS = (
    sanity_compute.core_limit,
    sanity_compute.rate_limit,
    sanity_compute.ratios,
    sanity_compute.columns,
    sanity_compute.ridges,
    sanity_memory.capacity,
    sanity_memory.bandwidth,
    sanity_memory.links,
    sanity_memory.host_and_network,
)


def findings(facts: Facts) -> list[Finding]:
    """Everything about an accelerator that is wrong or looks wrong, the refused first."""
    found = [finding for check in _CHECKS for finding in check(facts)]
    return sorted(found, key=lambda finding: not finding.refused)
