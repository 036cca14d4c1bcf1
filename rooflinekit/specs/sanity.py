"""Slips that accelerator files are known to hold, found by arithmetic: sparse peaks, GiB for GB, both directions."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

from rooflinekit.specs import sanity_compute, sanity_memory
from rooflinekit.specs.facts import Facts, Finding, finding

__all__ = ["Facts", "Finding", "findings"]

_FIRST_YEAR = 2006  # the first accelerator that a program could use for anything but pictures
_LATEST_YEAR = 2027  # what has been announced


def release_year(facts: Facts) -> Iterator[Finding]:
    """A year in which an accelerator was, or is announced to be, released."""
    year = facts.accelerator.release_year
    latest = max(_LATEST_YEAR, date.today().year + 1)
    if not _FIRST_YEAR <= year <= latest:
        yield finding(facts, "release_year", str(year), f"lies outside {_FIRST_YEAR} to {latest}", refused=True)


_CHECKS = (
    release_year,
    sanity_compute.core_limit,
    sanity_compute.core_shortfall,
    sanity_compute.rate_limit,
    sanity_compute.ratios,
    sanity_compute.doubling,
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
