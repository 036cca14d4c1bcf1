"""Accelerators that hold a model: a table of all, or three lines of the best."""

from __future__ import annotations

from collections.abc import Sequence

from rooflinekit.decision.fits import HOLDS, Fit, FitsOn
from rooflinekit.report import document as blocks
from rooflinekit.report.document import amount, footer, ms, three, tokens_in, wrapped

_HEAD = ["accelerator", "GPUs", "weights", "TPOT", "$/Mtok out", "evidence"]
_TITLES = {"fits": "fits as published", "narrower": "fits with narrower weights (measure quality)"}
_LABEL = 11  # columns of a label


def document(found: FitsOn) -> blocks.Document:
    """Document of the accelerators that hold the model, as a table, by price and time; the others by name."""
    i = found.inputs
    said = blocks.Words(f"batch {i['batch']}, {tokens_in(i)}, {i['osl']} out; one host, least tensor parallelism")
    tables = []
    for holds in (holds for holds in HOLDS[:2] if found.of(holds)):
        rows = [[each.gpu, str(each.tp), each.weights or "as published", ms(each.tpot_ms),
                 amount(each.usd_per_million_output), each.evidence or "-"] for each in found.of(holds)]  # fmt: skip
        tables.append(blocks.Section(_TITLES[holds], [blocks.CellTable(_HEAD, rows, left=(0, 2, 5))]))
    small = ", ".join(each.gpu for each in found.of(HOLDS[2]))
    rest = [blocks.Section("too small on one host", [blocks.Words(small, indent="")])] if small else []
    return [
        blocks.Section(f"accelerators that hold {found.model}", [said]),
        *tables,
        *rest,
        footer("", (), found.version),
    ]


def lines(found: FitsOn, width: int = blocks.WIDTH) -> list[str]:
    """A line for each kind, at most two of a terminal's width."""
    shown = []
    for holds in HOLDS:
        words = [_told(each) for each in found.of(holds)]
        if words:
            shown += _first(words, f"{holds:<{_LABEL}}", width)
    return shown


def _told(each: Fit) -> str:
    if each.tp is None:
        return each.gpu
    price = "" if each.usd_per_million_output is None else f", ${three(each.usd_per_million_output)}/M"
    narrow = f" {each.weights}" if each.weights else ""
    return f"{each.tp} x {each.gpu}{narrow} ({ms(each.tpot_ms)}{price})"


def _first(words: Sequence[str], label: str, width: int) -> list[str]:
    """Take as many of the first words as two lines hold."""
    for count in range(len(words), 0, -1):
        made = wrapped("; ".join(words[:count]), " " * _LABEL, label, whole=True, width=width)
        if len(made) <= 2:
            return made
    return made
