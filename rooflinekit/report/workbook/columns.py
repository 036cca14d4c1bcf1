"""A kernel's coefficients as the columns of a sheet."""

from __future__ import annotations

from dataclasses import fields

from rooflinekit.model.coefficients import KernelCoefficients, Linear, Position, Shape, SurfaceSlice, TimeCoefficients
from rooflinekit.model.coefficients.linear import Linear as _Linear
from rooflinekit.model.coefficients.state import FEATURES

__all__ = ["COLUMNS", "EMPTY", "TERMS", "WORK", "kernel_row", "span_of"]

TERMS = tuple(field.name for field in fields(_Linear))
WORK = ("flops", "streamed", "activations", "links", "nics")
_TIMES = ("launch", "compute", "memory", "beside")
_SHAPE = tuple(field.name for field in fields(Shape))
_ROOFS = ("peak", "bandwidth", "cache")
_SCALARS = ("log", "log_keys", "log_tokens", "tiles", "rows", "tail", "columns", "cores", "farthest", "root",
            "sharpness",
            "repeats", "late", "hidden")  # fmt: skip
_TABLE = ("ratio", "surface", "feature_1", "scale_1", "feature_2", "scale_2")
_WIDTHS = ("width_feature", "width_scale", "edge_1", "edge_2", "edge_3", "factor_1", "factor_2", "factor_3", "factor_4")
COLUMNS = (
    "name", "family", "count", *_SHAPE, *_ROOFS,
    *(f"{group}.{term}" for group in (*WORK, *_TIMES) for term in TERMS),
    *_SCALARS, *_TABLE, *_WIDTHS,
)  # fmt: skip
"""One row of the sheet "Kernel data": SI units; features by number, as `FEATURES` lists them from 1 (0: none)."""

_NEVER = 1e15  # an edge that no size reaches

EMPTY: dict[str, float | str] = {"name": "", "family": "", "missed": 1.0, "tile": 1.0, "peak": 1.0, "bandwidth": 1.0,
                                 "cores": 1.0, "ratio": 1.0, "surface": 1.0, "repeats": 1.0, "edge_1": _NEVER,
                                 "edge_2": _NEVER, "edge_3": _NEVER,
                                 **{f"factor_{number}": 1.0 for number in (1, 2, 3, 4)}}  # fmt: skip
"""The row of a place that no kernel takes: it costs nothing and divides by nothing."""


def span_of(group: str) -> tuple[int, int]:
    """First and last column of the five terms of a sum."""
    first = COLUMNS.index(f"{group}.{TERMS[0]}")
    return first, first + len(TERMS) - 1


def kernel_row(kernel: KernelCoefficients, surface: int) -> dict[str, float | str]:
    """A kernel in these columns; `surface` is the row of its correction."""
    timing = kernel.timing or TimeCoefficients()
    row: dict[str, float | str] = {"name": kernel.name, "family": kernel.family, "count": float(kernel.count)}
    row |= {name: float(getattr(kernel.shape, name)) for name in _SHAPE}
    row |= {name: getattr(kernel, name) for name in _ROOFS}
    for group in WORK:
        row |= _terms(group, getattr(kernel, group))
    for group in _TIMES:
        row |= _terms(group, getattr(timing, group))
    row |= {name: float(getattr(timing, name)) for name in _SCALARS}
    table = timing.ratio
    fixed = 1.0 if isinstance(table, SurfaceSlice) else table
    places = table.positions if isinstance(table, SurfaceSlice) else ()
    first, second = (None, None, *places)[-2:]
    row |= {"ratio": fixed, "surface": float(surface), **_position("1", first), **_position("2", second)}
    return row | _interval(timing)


def _terms(group: str, linear: Linear) -> dict[str, float | str]:
    return {f"{group}.{term}": value for term, value in zip(TERMS, linear.values, strict=True)}


def _position(number: str, position: Position | None) -> dict[str, float | str]:
    feature = 0.0 if position is None else FEATURES.index(position.feature) + 1.0
    return {f"feature_{number}": feature, f"scale_{number}": position.scale if position else 0.0}


def _interval(timing: TimeCoefficients) -> dict[str, float | str]:
    widths = timing.widths
    edges = (*widths.edges, _NEVER, _NEVER, _NEVER)[:3]
    factors = (*widths.factors, *widths.factors[-1:] * 3)[:4]
    row: dict[str, float | str] = {f"edge_{number}": edge for number, edge in enumerate(edges, 1)}
    row |= {f"factor_{number}": factor for number, factor in enumerate(factors, 1)}
    position = widths.position
    row["width_feature"] = 0.0 if position is None else FEATURES.index(position.feature) + 1.0
    return row | {"width_scale": position.scale if position else 0.0}
