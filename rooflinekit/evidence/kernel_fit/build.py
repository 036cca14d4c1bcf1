"""A calibration for one accelerator and engine from kernel tables, with a donor's fits where nothing was measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rooflinekit.evidence.kernel_fit.calibrate import calibrate_family
from rooflinekit.evidence.kernel_fit.fit import Prior
from rooflinekit.evidence.kernel_fit.groups import Group, fit_key, kernel_groups, read_kernel_tables
from rooflinekit.model.timing.calibrated import BORROWED, Calibration, FamilyFit
from rooflinekit.model.types.deployment import ENGINES
from rooflinekit.model.types.errors import RooflinekitError, SpecError, UnknownNameError
from rooflinekit.model.types.hardware import Accelerator, System
from rooflinekit.specs import load_accelerator
from rooflinekit.specs.calibration.choose import choose_calibration, reach_of
from rooflinekit.specs.calibration.write import Heading, render

__all__ = ["Built", "build_calibration"]

_ENOUGH = 8
"""Rows below which a family keeps its donor's fit: fewer than a form has parameters."""


@dataclass(frozen=True)
class Built:
    """The text of a new calibration file, what was fitted, and what was left as the donor has it."""

    text: str
    fitted: Mapping[str, FamilyFit]
    borrowed: tuple[str, ...]
    notes: tuple[str, ...]


def build_calibration(
    files: Sequence[Path],
    accelerator: Accelerator,
    engine: str,
    date: str,
    progress: Callable[[str], None] = lambda _: None,
) -> Built:
    """Fit every group of rows that the tables hold for this accelerator and engine.

    The nearest calibration is the prior, so 10 to 20 rows a family are enough; families without rows keep its fits,
    with intervals widened by the measured error of such a transfer.

    Raises SpecError when no row is of this accelerator and engine, naming those that the tables hold.
    """
    if engine not in ENGINES or engine == "ideal":
        raise UnknownNameError("engine", engine, [known for known in ENGINES if known != "ideal"])
    donor, note = choose_calibration(accelerator, engine)
    groups, seen = _own_groups(files, accelerator, engine)
    if not groups:
        held = ", ".join(sorted(seen)) or "nothing"
        raise SpecError(f"no rows of {accelerator.name} with {engine} in the tables; they hold {held}")
    fitted, notes = {}, [note] if note else []
    for group in groups:
        key = fit_key(group.operation, group.named)
        progress(key)
        if len(group.table) < _ENOUGH:
            notes.append(f"{key}: {len(group.table)} rows are too few; the donor's fit is kept")
            continue
        near = donor.families.get(key) or donor.families[group.family]
        prior = Prior(near.form, distant=reach_of(donor, accelerator, engine) == "generic")
        fitted[key] = calibrate_family(group.rows(), System.of(accelerator), group.source, prior).fit
    families = {key: _borrowed(key, fit, donor) for key, fit in donor.families.items() if key not in donor.defaults}
    release = "/".join(sorted({str(v) for g in groups for v in g.table.get("engine_version", [])}))
    heading = Heading(accelerator.name, engine, release, _source(groups), date, _defaults(donor))
    borrowed = tuple(sorted(families.keys() - fitted.keys()))
    return Built(render(heading, families | fitted), fitted, borrowed, tuple(notes))


def _own_groups(files: Sequence[Path], accelerator: Accelerator, engine: str) -> tuple[list[Group], set[str]]:
    """Its groups, those that a calibration has one fit for together; and what else the tables hold."""
    own: dict[str, Group] = {}
    seen = set()
    for path in files:
        for operation, table in read_kernel_tables(path):
            for group in kernel_groups(operation, table):
                seen.add(f"{group.gpu} with {group.engine}")
                if not _is(group.gpu, accelerator) or group.engine != engine:
                    continue
                key = fit_key(group.operation, group.named)
                own[key] = group.joined(own[key]) if key in own else group
    return list(own.values()), seen


def _is(name: str, accelerator: Accelerator) -> bool:
    """Whether a table's name means this accelerator: its own, an alias, or one that the library resolves to it."""
    if name.lower() in {known.lower() for known in (accelerator.name, *accelerator.aliases)}:
        return True
    try:
        return load_accelerator(name).value.origin == accelerator.origin
    except RooflinekitError:
        return False


def _borrowed(key: str, fit: FamilyFit, donor: Calibration) -> FamilyFit:
    """A donor's fit as it may be used here: its interval wider where it is not at home."""
    power = donor.widening.get(key.split("/", 1)[0], 1.0)
    if power == 1.0:
        return fit
    widths = tuple(width**power for width in fit.regimes.width)
    return replace(fit, regimes=replace(fit.regimes, width=widths), source=f"{BORROWED}{fit.source}")


def _source(groups: Sequence[Group]) -> str:
    return f"{sum(len(group.table) for group in groups)} rows of kernel tables"


def _defaults(donor: Calibration) -> dict[str, str]:
    """Which fit serves a family's other formats: the one that does so for the donor."""
    by_fit = {id(fit): key for key, fit in donor.families.items() if key not in donor.defaults}
    return {family: by_fit[id(donor.families[family])] for family in sorted(donor.defaults)}
