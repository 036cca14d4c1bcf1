"""Does it fit: `rooflinekit.model.coefficients.memory` as formulas."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rooflinekit.model.coefficients.memory import MOST_SLOPES
from rooflinekit.report.workbook.formula import Formula, all_of, ceil, floor, maximum, minimum, when
from rooflinekit.report.workbook.selected import Selected

__all__ = ["memory_cells"]

Add = Callable[[str, Formula], Formula]


def memory_cells(add: Add, dep: Selected, size: Mapping[str, Formula]) -> None:
    """Cells of one operating point: sizes on one GPU, whether they fit, the largest batch."""
    batch, new = size["batch"], size["isl"]
    profiled = dep["profiled"] >= 1.0
    held = ceil((size["isl"] + size["osl"]) / dep["block"]) * dep["block"]
    each = dep["state"]
    for number in range(1, MOST_SLOPES + 1):
        each = each + dep[f"slope_{number}"] * minimum(held, dep[f"cap_{number}"])
    each = add("sequence_bytes", maximum(each, 1.0))
    kv = add("kv_bytes", batch * each)
    peak = add("activation_bytes", _activations(dep, profiled, batch, new))
    add("total_bytes", dep["weights"] + kv + peak + dep["outside"])
    pool = add("pool", dep["allowance"] - dep["charge"] * peak)
    add("pool_bytes", maximum(pool, 0.0))
    needed, available = _need(dep, (kv, peak, pool))
    needed, available = add("needed_bytes", needed), add("available_bytes", available)
    add("fits", when(all_of(dep["offered"] >= 1.0, needed <= available), 1.0, 0.0))
    empty = add("idle_bytes", _activations(dep, profiled, Formula("0", 0.0), new))
    starts = _need(dep, (Formula("0", 0.0), empty, dep["allowance"] - dep["charge"] * empty))
    most = [_most(dep, profiled, parts, (each, new)) for parts in _peaks(dep)]
    largest = maximum(floor(minimum(*most) + 1e-9), 0.0)
    add("max_batch", when(all_of(dep["offered"] >= 1.0, starts[0] <= starts[1]), largest, 0.0))


def _activations(dep: Selected, profiled: Formula, batch: Formula, new: Formula) -> Formula:
    tokens = when(profiled, dep["tokens"], minimum(batch * new, dep["tokens"]))
    rows = when(profiled, maximum(batch, dep["rows"]), batch)
    layer = dep["layer_base"] + tokens * dep["layer_token"]
    return maximum(layer, dep["sampler_base"] + tokens * dep["sampler_token"] + rows * dep["sampler_row"])


def _need(dep: Selected, sizes: tuple[Formula, Formula, Formula]) -> tuple[Formula, Formula]:
    """What is needed, and what of it there is."""
    kv, peak, pool = sizes
    fixed = dep["weights"] + peak + dep["outside"]
    reserved = fixed + maximum(pool, 0.0) + dep["slack"]
    there = dep["capacity"] * (1.0 + 1e-12)
    by_pool = when(kv > pool, 1.0, when(reserved <= there, 1.0, 0.0)) > 0.0
    return when(by_pool, fixed + kv, reserved), when(by_pool, fixed + pool, there)


def _peaks(dep: Selected) -> tuple[tuple[Formula, Formula, Formula], ...]:
    """Allowance without the base of the peak, and what a token and a row take of it: for a layer, for the sampler."""
    charge = dep["charge"]
    layer = (dep["allowance"] - charge * dep["layer_base"], charge * dep["layer_token"], Formula("0", 0.0))
    sampler = (
        dep["allowance"] - charge * dep["sampler_base"],
        charge * dep["sampler_token"],
        charge * dep["sampler_row"],
    )
    return layer, sampler


def _most(
    dep: Selected, profiled: Formula, parts: tuple[Formula, Formula, Formula], sequence: tuple[Formula, Formula]
) -> Formula:
    allowance, token, row = parts
    each, new = sequence
    left = allowance - token * dep["tokens"]
    measured = minimum((left - row * dep["rows"]) / each, left / (each + row))
    above = left / (each + row)
    below = minimum(allowance / (each + row + new * token), dep["tokens"] / new)
    return when(profiled, measured, when(above * new >= dep["tokens"], above, below))
