"""A trace: what comes, how much of it comes again, and what each memory saves."""

from __future__ import annotations

from rooflinekit.decision.economics.retention import Retained, TraceAnswer
from rooflinekit.model.types.units import format_count, format_time, percent, significant
from rooflinekit.report.document import Document, Section, Table, Words, footer, ms, three

_MOST = 10  # sizes of a cache in the table


def document(found: TraceAnswer) -> Document:
    """The whole answer."""
    rate = (
        "all at once"
        if found.rate is None
        else f"{significant(found.rate)} a second, gaps with cv {significant(found.gap_cv or 0.0)}"
    )
    asked = f"{found.requests:,} requests in {format_time(found.duration_s)}, {rate}"
    lengths = [[name, *(f"{value:,.0f}" for value in spread.values())]
               for name, spread in (("tokens in", found.isl), ("tokens out", found.osl))]  # fmt: skip
    sections = [
        Section(f"{found.trace}, {found.format}", [Words(asked)]),
        Section("", [Table(["", "mean", "p50", "p90", "p99", "max"], lengths)]),
    ]
    if found.hit_rate is not None:
        sections += _reused(found)
    return [*sections, footer("", found.warnings, found.version)]


def _reused(found: TraceAnswer) -> list[Section]:
    shared = f", of {found.replicas} replicas ({found.router})" if found.replicas > 1 else ""
    ages = ", ".join(f"{name} {format_time(value)}" for name, value in found.reuse_s.items())
    lines = [f"a prefix cache without end{shared} finds {percent(found.hit_rate or 0.0, 1)} of the prompt tokens"]
    lines += [f"time since the use before, of blocks of {found.block_tokens} that come back: {ages}"] if ages else []
    blocks = [Words(*lines, indent="")]
    if found.deployment is None:
        rows = [[format_count(tokens), percent(share, 1)] for tokens, share in found.curve[::-2][:_MOST][::-1]]
        return [Section("what comes again", [*blocks, Table(["cache of a replica", "found"], rows)])]
    name = f"{found.deployment['model']} on {found.replicas} x {found.deployment['gpus']} {found.deployment['gpu']}"
    head = ["memory", "tokens", "found", "TTFT", "knee /s", "$/Mtok", "keep for", "load from"]
    return [
        Section("what comes again", blocks),
        Section(f"what each memory adds: {name}", [Table(head, [_row(each) for each in found.memories], drop=(4,))]),
    ]


def _row(each: Retained) -> list[str]:
    keep = "-" if each.keep_s is None else format_time(each.keep_s)
    load = "-" if each.load_gb_s is None else f"{significant(each.load_gb_s)} GB/s"
    found, ttft = percent(each.hit_rate, 1), ms(each.ttft_ms, "piles up")
    return [each.memory, format_count(each.tokens), found, ttft, three(each.knee_rate), three(each.usd_per_million),
            keep, load]  # fmt: skip
