"""An accelerator file for the machine at hand, from what was measured on it: the roof of a roofline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from rooflinekit.evidence.kernel_fit.groups import Measurements
from rooflinekit.model.types.dtype import parse_dtype

SPEC_FILE = "this-cpu.yaml"
Row: TypeAlias = Mapping[str, Any]
_STREAM = 4
"""Sizes beyond this many last-level caches count as memory, not cache."""


def has_ceilings(found: Measurements) -> bool:
    """Whether a run got as far as a peak rate and a bandwidth."""
    return {"copy", "gemm"} <= {str(row["kind"]) for row in found.of("ceiling")}


def cpu_spec(found: Measurements) -> str:
    """The text of the file: peaks and bandwidth are the best that the run shows."""
    device, rows = found.header["device"], found.of("ceiling")
    peaks = _peaks(rows, found.of("gemm"))
    bandwidth = max(_memory_bandwidth(rows, int(device["cache_bytes"])), _weight_bandwidth(found.of("gemm")))
    day = str(found.header["started"])[:10]
    gib = int(device["memory_bytes"]) / 2**30
    unusual = [f'    {dtype}: "as measured"' for dtype in peaks]
    return "\n".join([
        "# The CPU that a run of rooflinekit validate ran on: rates are what it reached, on the threads it used.",
        f"title: \"{device['name']}, {device['cores']} threads\"",
        f"aliases: [\"{device['name']}\"]",
        "vendor: unknown",
        f"architecture: {device.get('instructions') or 'CPU'}",
        f"release_year: {str(found.header['started'])[:4]}                  # of the measurement",
        "", "compute:", "  dense:",
        *(f"    {dtype}: {rate / 1e9:.4g} GFLOP/s" for dtype, rate in peaks.items()),
        "  unusual:", *unusual, *_cited(),
        "", "memory:", f"  capacity: {gib:.2f} GiB", f"  label: {int(gib) + 1} GiB", "  type: main memory",
        f"  bandwidth: {bandwidth / 1e9:.4g} GB/s", *_cited(),
        "", "cores:", "  kind: core", f"  count: {device['cores']}", "  tile_rows: 1",
        f"  last_level_cache: {device['cache_bytes'] / 2**20:.4g} MiB", *_cited(),
        "", "links:", "  kind: none", "  domain_size: 1", *_cited(),
        "", "sources:", "  run:",
        f"    title: \"measured by rooflinekit validate, run {found.header['run']}, {day}\"",
        f"    url: {found.path.name}", "    read: true", "...", "",
    ])  # fmt: skip


def _cited() -> list[str]:
    return ["  confidence: C", "  source: [run]"]


def _peaks(ceilings: Sequence[Row], gemms: Sequence[Row]) -> dict[str, float]:
    """The best rate of each format in the ceilings or in any row, as a neighbour may slow the first [FLOP/s]."""
    rates = [(row["dtype"], float(row["value"])) for row in ceilings if row["kind"] == "gemm"]
    rates += [(row["dtype"], 2e6 * row["m"] * row["n"] * row["k"] / row["latency_us"]) for row in gemms]
    best: dict[str, float] = {}
    for dtype, rate in rates:
        best[dtype] = max(best.get(dtype, 0.0), rate)
    return best


def _weight_bandwidth(gemms: Sequence[Row]) -> float:
    """The best rate at which a product with one row streamed its weights, all of which came from memory [B/s]."""
    return max((1e6 * row["n"] * row["k"] * parse_dtype(row["dtype"]).bytes / row["latency_us"]
                for row in gemms if row["m"] == 1), default=0.0)  # fmt: skip


def _memory_bandwidth(rows: Sequence[Row], cache: int) -> float:
    """The best rate of sizes that no cache holds, or of the largest size if none is that large."""
    sized = [row for row in rows if row["kind"] in ("copy", "read")]
    far = [row for row in sized if row["bytes"] >= _STREAM * cache]
    largest = max((row["bytes"] for row in sized), default=0)
    return max((float(row["value"]) for row in far or [row for row in sized if row["bytes"] == largest]), default=0.0)
