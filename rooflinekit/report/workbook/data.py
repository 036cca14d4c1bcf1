"""The sheets that formulas look numbers up in: accelerators, models, deployments, kernels, corrections."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

from rooflinekit.model.coefficients import KernelCoefficients, PlanCoefficients, SurfaceSlice
from rooflinekit.model.coefficients.memory import MOST_SLOPES
from rooflinekit.model.coefficients.plan import HostCoefficients
from rooflinekit.report.workbook.columns import COLUMNS, EMPTY, kernel_row
from rooflinekit.report.workbook.formula import Range
from rooflinekit.report.workbook.offers import Offer, Offers
from rooflinekit.report.workbook.sheet import Book, Sheet, column_letters

__all__ = ["DEPLOYMENT", "Data", "Table", "write_data"]

_HOST = tuple(field.name for field in fields(HostCoefficients))
_MEMORY = ("capacity", "weights", "outside", "slack", "allowance", "charge", "layer_token", "layer_base",
           "sampler_token", "sampler_row", "sampler_base", "tokens", "rows", "profiled", "state", "block")  # fmt: skip
_CAPS = tuple(f"{kind}_{number}" for kind in ("cap", "slope") for number in range(1, MOST_SLOPES + 1))
_LAUNCHES = ("prefill_launches", "decode_launches")
DEPLOYMENT = ("offered", "gpus", *_LAUNCHES, *(f"host_{name}" for name in _HOST), *_MEMORY, *_CAPS)
"""What one deployment has besides its kernels."""

_FAR = 1e15  # more tokens than any context, nodes beyond any size
_HEAD = 3  # row of the heads


@dataclass(frozen=True)
class Table:
    """A data sheet with one head row: its columns by name."""

    sheet: Sheet
    columns: dict[str, Range]

    def column(self, name: str) -> Range:
        """All cells of a column."""
        return self.columns[name]


@dataclass(frozen=True)
class Surfaces:
    """Corrections, one a row: numbers of nodes, nodes of both axes, ratios with the second axis fastest."""

    sheet: Sheet
    rows: int
    first: int  #: most nodes of the first axis
    second: int
    ratios: int  #: most ratios

    def block(self, start: int, width: int) -> str:
        """A block of columns over all rows, for INDEX."""
        left, right = column_letters(start), column_letters(start + width - 1)
        return f"{self.sheet.name}!${left}${_HEAD + 2}:${right}${_HEAD + 1 + self.rows}"


@dataclass(frozen=True)
class Data:
    """All of them."""

    models: Table
    gpus: Table
    deployments: Table
    kernels: Table
    surfaces: Surfaces
    slots: tuple[int, int, int]  #: most kernels of prefill, of decode, of decode with the context


def write_data(book: Book, offers: Offers) -> Data:
    """Write the sheets; equal kernels and corrections stand once."""
    kernels, surfaces = _Pool(), _Pool()
    surfaces.place(None)
    kernels.place(None)
    plans = [entry.exported for entry in offers.entries if entry.exported]
    groups = ("prefill", "decode", "growing")
    for plan in plans:
        for kernel in (kernel for group in groups for kernel in getattr(plan, group)):
            table = kernel.timing.ratio if kernel.timing else None
            surfaces.place(table if isinstance(table, SurfaceSlice) else None)
            kernels.place(kernel)
    slots = tuple(max(len(getattr(plan, group)) for plan in plans) for group in groups)
    return Data(
        _models(book, offers),
        _gpus(book, offers),
        _deployments(book, offers, kernels, slots),
        _kernels(book, kernels, surfaces),
        _surfaces(book, surfaces),
        (slots[0], slots[1], slots[2]),
    )


class _Pool:
    """Things in the order in which they first came, each once."""

    def __init__(self) -> None:
        self.places: dict[object, int] = {}

    def place(self, thing: object) -> int:
        """Its row, from 1."""
        return self.places.setdefault(thing, len(self.places) + 1)


def _titled(book: Book, name: str, title: str, note: str) -> Sheet:
    sheet = book.sheet(name)
    sheet.put(0, 0, title, "title")
    sheet.put(1, 0, note, "note")
    return sheet


def _filled(
    sheet: Sheet, columns: Sequence[str], rows: Sequence[dict[str, float | str]], style: str = "general"
) -> Table:
    """Write rows; zeros and empty texts are left out, which formulas read as 0."""
    sheet.heads(_HEAD, columns)
    for number, row in enumerate(rows, _HEAD + 1):
        for column, name in enumerate(columns):
            if value := row.get(name, 0.0):
                sheet.put(number, column, value, "text" if isinstance(value, str) else style)
    sheet.page.freeze_panes(_HEAD + 1, 1)
    last = _HEAD + len(rows)
    return Table(sheet, {name: sheet.down(column, _HEAD + 1, last) for column, name in enumerate(columns)})


def _models(book: Book, offers: Offers) -> Table:
    sheet = _titled(book, "Models", "Models", "Drop-down of Inputs; the longest context that the model was made for.")
    sheet.page.set_column(0, 0, 32)
    sheet.page.set_column(1, 1, 20)
    rows: list[dict[str, float | str]] = [
        {"model": name, "longest context [tokens]": float(offers.contexts.get(name) or 0)} for name in offers.models
    ]
    return _filled(sheet, ("model", "longest context [tokens]"), rows)


def _gpus(book: Book, offers: Offers) -> Table:
    note = (
        "Datasheet numbers as shipped with rooflinekit; prices are dated list or market quotes, and yours count more."
    )
    sheet = _titled(book, "GPUs", "Accelerators", note)
    sheet.page.set_column(0, 0, 22)
    sheet.page.set_column(1, 5, 15)
    sheet.page.set_column(6, 6, 70)
    columns = ("gpu", "memory [GB]", "bandwidth [GB/s]", "power [W]", "price [USD/h]", "price dated", "price source")
    rows: list[dict[str, float | str]] = []
    for gpu in offers.gpus:
        price = gpu.price
        rows.append({"gpu": gpu.name, "memory [GB]": float(gpu.memory_bytes) / 1e9,
                     "bandwidth [GB/s]": float(gpu.memory_bandwidth) / 1e9, "power [W]": gpu.tdp_w,
                     "price [USD/h]": price.usd_per_hour if price else 0.0, "price dated": price.date if price else "",
                     "price source": price.source if price else "none known: enter your own"})  # fmt: skip
    return _filled(sheet, columns, rows, "two")


def _deployments(book: Book, offers: Offers, kernels: _Pool, slots: Sequence[int]) -> Table:
    note = (
        "One row a combination of the drop-downs: why it cannot be run, host work, memory, and its rows of Kernel data."
    )
    sheet = _titled(book, "Deployments", "Deployments", note)
    sheet.page.set_column(0, 0, 48)
    sheet.page.set_column(1, 1, 40)
    names = [f"{kind}_{number}" for kind, most in zip("pdg", slots, strict=True) for number in range(1, most + 1)]
    rows = [_deployment(entry, kernels, slots) for entry in offers.entries]
    return _filled(sheet, ("key", "reason", *DEPLOYMENT, *names), rows)


def _deployment(entry: Offer, kernels: _Pool, slots: Sequence[int]) -> dict[str, float | str]:
    plan = entry.exported
    row: dict[str, float | str] = {"key": entry.key, "reason": entry.reason}
    row |= {f"{kind}_{number}": 1.0 for kind, most in zip("pdg", slots, strict=True) for number in range(1, most + 1)}
    if plan is None:
        return row | {"host_token_budget": 1.0, "host_factor": 1.0, "block": 1.0, "slope_1": 1.0, "gpus": 1.0}
    row |= {"offered": 1.0, "gpus": float(plan.gpus)}
    row |= dict(zip(_LAUNCHES, _launches(plan), strict=True))
    row |= {f"host_{name}": float(getattr(plan.host, name)) for name in _HOST}
    row |= {name: float(getattr(plan.memory, name)) for name in _MEMORY}
    for number, (cap, slope) in enumerate(zip(plan.memory.caps, plan.memory.slopes, strict=True), 1):
        row |= {f"cap_{number}": cap if cap < math.inf else _FAR, f"slope_{number}": slope}
    for kind, group in zip("pdg", (plan.prefill, plan.decode, plan.growing), strict=True):
        row |= {f"{kind}_{number}": float(kernels.place(kernel)) for number, kernel in enumerate(group, 1)}
    return row


def _launches(plan: PlanCoefficients) -> tuple[float, float]:
    decode = sum(kernel.count for kernel in (*plan.decode, *plan.growing))
    return float(sum(kernel.count for kernel in plan.prefill)), float(decode)


def _kernels(book: Book, kernels: _Pool, surfaces: _Pool) -> Table:
    note = "Coefficients of every kernel in SI units (docs/workbook.md); the first row stands for no kernel."
    sheet = _titled(book, "Kernel data", "Kernels", note)
    sheet.page.set_column(0, 1, 20)
    rows = [EMPTY]
    for kernel in kernels.places:
        if isinstance(kernel, KernelCoefficients):
            table = kernel.timing.ratio if kernel.timing else None
            rows.append(kernel_row(kernel, surfaces.place(table if isinstance(table, SurfaceSlice) else None)))
    return _filled(sheet, COLUMNS, rows)


def _surfaces(book: Book, pool: _Pool) -> Surfaces:
    note = "Ratio measured / formula at nodes (powers of 2 of two sizes), bilinear between; row 1 corrects nothing."
    sheet = _titled(book, "Surfaces", "Corrections", note)
    tables = [table for table in pool.places if isinstance(table, SurfaceSlice)]
    padded = [((0.0,), (0.0,), (1.0,))] + [
        ((0.0,) if len(table.nodes) == 1 else table.nodes[0], table.nodes[-1], table.ratios) for table in tables
    ]
    first, second, ratios = (max(len(row[part]) for row in padded) for part in range(3))
    sheet.heads(
        _HEAD,
        [
            "first",
            "second",
            *[f"node 1.{n}" for n in range(1, first + 1)],
            *[f"node 2.{n}" for n in range(1, second + 1)],
            *[f"ratio {n}" for n in range(1, ratios + 1)],
        ],
    )
    for number, (one, two, values) in enumerate(padded, _HEAD + 1):
        far = [*one, *[_FAR] * (first - len(one)), *two, *[_FAR] * (second - len(two))]
        for column, value in enumerate((float(len(one)), float(len(two)), *far, *values)):
            sheet.put(number, column, value, "general")
    sheet.page.freeze_panes(_HEAD + 1, 2)
    return Surfaces(sheet, len(padded), first, second, ratios)
