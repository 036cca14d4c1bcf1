"""Accelerator files: read strictly, checked against physics, each number with its source and its confidence."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.errors import SpecError
from rooflinekit.model.types.hardware import Accelerator, Price, Source
from rooflinekit.specs import sanity
from rooflinekit.specs.cited import Cited, read_sources
from rooflinekit.specs.locate import Loaded, read_yaml, resolve, scanned_aliases
from rooflinekit.specs.section import Section

__all__ = ["load_accelerator", "read_facts"]

_DTYPES = {dtype.value: dtype for dtype in Dtype if dtype.unit is dtype}
_DATE = re.compile(r"\d{4}(?:-\d{2}){0,2}")
_TOP = (
    ("title", "vendor", "architecture", "release_year", "compute", "memory", "cores", "links", "sources"),
    ("aliases", "ambiguous_aliases", "compute_capability", "power", "price", "notes"),
)
# section -> its required and its optional keys, besides confidence, source and assumed
_KEYS = {
    "compute": (("dense",), ("flops_per_clock_per_core", "unusual")),
    "memory": (("capacity", "label", "type", "bandwidth"), ()),
    "cores": (
        ("kind", "count"),
        ("max_clock", "base_clock", "tensor_clock", "shared_memory", "l2", "last_level_cache", "tile_rows"),
    ),
    "links": (("kind", "domain_size"), ("bandwidth", "nic", "pcie", "pcie_generation")),
    "power": ((), ("tdp",)),
    "price": (("usd_per_hour", "date"), ("low", "high", "basis")),
}


def load_accelerator(name: str | os.PathLike[str]) -> Loaded[Accelerator]:
    """The accelerator that a name, an alias or a path means, in SI units, with what the user should know about it.

    >>> load_accelerator("h100-sxm").value.memory_bandwidth
    3350000000000.0

    Raises UnknownNameError for an unknown name and SpecError for a file that cannot be trusted.
    """
    found = resolve("accelerator", name)
    facts = read_facts(found.path)
    findings = sanity.findings(facts)
    for finding in findings:
        if finding.refused:
            raise SpecError(str(finding))
    return Loaded(facts.accelerator, (*found.warnings, *map(str, findings)))


def read_facts(path: Path) -> sanity.Facts:
    """What an accelerator file states, not yet checked against physics.

    Raises SpecError for whatever is missing, unknown, unsourced, without a unit or not above 0.
    """
    root = Section(path, "", read_yaml(path))
    root.expect(*_TOP)
    sources = read_sources(root.section("sources"))
    cited = {
        name: Cited.of(root.section(name), sources, *keys)
        for name, keys in _KEYS.items()
        if root.has(name)
    }  # fmt: skip
    compute, memory = cited["compute"], cited["memory"]
    stated: dict[str, Any] = {
        "label_bytes": memory.quantity("label", "B"),
        "memory_type": memory.section.text("type"),
        "label_is_binary": memory.section.text("label").endswith("iB"),
        "flops_per_clock": _by_dtype(compute, "flops_per_clock_per_core", "FLOP"),
        "tensor_clock_hz": cited["cores"].optional("tensor_clock", "Hz"),
        "pcie_generation": _pcie_generation(cited["links"].section),
        "unusual": _unusual(compute.section.section("unusual")),
    }
    return sanity.Facts(_accelerator(root, cited, tuple(sources.values())), **stated)


def _accelerator(root: Section, cited: Mapping[str, Cited], sources: tuple[Source, ...]) -> Accelerator:
    numbers: dict[str, Any] = {
        "peaks": _peaks(cited["compute"]),
        "memory_bytes": cited["memory"].quantity("capacity", "B"),
        "memory_bandwidth": cited["memory"].quantity("bandwidth", "B/s"),
        **_cores(cited["cores"]),
        **_links(cited["links"]),
        "tdp_w": cited["power"].optional("tdp", "W") if "power" in cited else 0.0,
        "price": _price(cited["price"]) if "price" in cited else None,
    }
    return Accelerator(
        name=root.file.stem,
        title=root.text("title"),
        vendor=root.text("vendor"),
        architecture=root.text("architecture"),
        release_year=root.count("release_year"),
        compute_capability=root.text("compute_capability"),
        aliases=_aliases(root),
        notes=root.texts("notes"),
        provenance=tuple(entry for section in cited.values() for entry in section.provenance),
        sources=sources,
        origin=str(root.file),
        **numbers,
    )


def _aliases(root: Section) -> tuple[str, ...]:
    stated = root.texts("aliases")
    if stated != scanned_aliases(root.file):
        root.refuse("aliases", "cannot be searched; write them on one line near the top, like aliases: [a, b]")
    return stated


def _cores(cores: Cited) -> dict[str, Any]:
    sizes = {key: cores.optional(key, "B") for key in ("shared_memory", "l2", "last_level_cache")}
    clocks = {key: cores.optional(key, "Hz") for key in ("max_clock", "base_clock")}
    return {
        "l2_bytes": sizes["last_level_cache"] or sizes["l2"],
        "cores": cores.count("count"),
        **({"tile_rows": cores.count("tile_rows")} if cores.section.has("tile_rows") else {}),
        "clock_hz": clocks["max_clock"],
        "is_cpu": cores.section.text("kind") == "core",
    }


def _peaks(compute: Cited) -> dict[Dtype, float]:
    peaks = _by_dtype(compute, "dense", "FLOP/s")
    if not peaks:
        compute.section.refuse("dense", "is empty; give at least one dense peak, like bf16: 989.4 TFLOP/s")
    return peaks


def _by_dtype(compute: Cited, key: str, dimension: str) -> dict[Dtype, float]:
    _check_dtypes(compute.section.section(key))
    return {_DTYPES[name]: value for name, value in compute.quantities(key, dimension).items()}


def _check_dtypes(section: Section) -> None:
    section.expect((), tuple(_DTYPES))


def _unusual(section: Section) -> dict[Dtype, str]:
    _check_dtypes(section)
    return {_DTYPES[name]: section.text(name) for name in section.data}


def _links(links: Cited) -> dict[str, Any]:
    """Cards without links of their own talk over PCIe."""
    pcie = links.optional("pcie", "B/s")
    kind, domain = links.section.text("kind"), links.count("domain_size")
    bandwidth = links.optional("bandwidth", "B/s") or (pcie if kind == "pcie" else 0.0)
    if domain > 1 and not bandwidth:
        links.section.refuse("bandwidth", "is missing; give it, or set kind to pcie and give pcie, or domain_size to 1")
    return {
        "link_kind": kind,
        "link_bandwidth": bandwidth,
        "domain_size": domain,
        "nic_bandwidth": links.optional("nic", "B/s"),
        "pcie_bandwidth": pcie,
    }


def _pcie_generation(links: Section) -> int:
    return links.count("pcie_generation") if links.has("pcie_generation") else 0


def _price(price: Cited) -> Price:
    date = price.section.text("date")
    if not _DATE.fullmatch(date):
        price.section.refuse("date", f"value {date!r} is not a date; write it like '2026-05' or '2026-05-20'")
    return Price(
        usd_per_hour=price.quantity("usd_per_hour", "USD/h"),
        date=date,
        source=price.section.text("basis") or price.source,
        low=price.optional("low", "USD/h") or None,
        high=price.optional("high", "USD/h") or None,
    )
