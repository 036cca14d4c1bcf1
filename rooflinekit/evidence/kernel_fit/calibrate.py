"""From measured kernels to a calibration: forms, corrections, error bars, a donor's fits where none was measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rooflinekit.evidence.board_power import carry_power
from rooflinekit.evidence.kernel_fit.correction import LATTICES, fit_surface
from rooflinekit.evidence.kernel_fit.groups import Group, kernel_groups, read_kernel_tables
from rooflinekit.evidence.kernel_fit.tables import Measured
from rooflinekit.model.timing.calibrated import AXES, BORROWED, WIDEST, Beyond, Calibration, FamilyFit, Regimes
from rooflinekit.model.timing.forms import FORMS, TimeForm, parameters
from rooflinekit.model.types.deployment import ENGINES
from rooflinekit.model.types.errors import RooflinekitError, SpecError, UnknownNameError, needing
from rooflinekit.model.types.hardware import Accelerator, System
from rooflinekit.model.types.kernel import Family, Kernel, SparseShape
from rooflinekit.model.types.numeric import Array, Numeric
from rooflinekit.model.types.time import SIGMAS
from rooflinekit.model.types.units import percent
from rooflinekit.specs import load_accelerator
from rooflinekit.specs.calibration.choose import choose_calibration, reach_of
from rooflinekit.specs.calibration.write import Heading, render
from rooflinekit.specs.files import table_of

_SCALE = 0.08
"""Log error beyond which a row counts linearly instead of squared: the usual misfit of the forms."""
_UNPINNED = 0.5
"""A parameter is frozen when its standard error exceeds this share of its allowed range, or of its value."""
_WORSE = 1.01
"""Largest factor on the misfit when a parameter is frozen."""
_BETTER = 0.999
"""Share of the misfit that another discrete parameter may leave, so that it is taken."""
_EVALUATIONS = 40


@dataclass(frozen=True)
class Prior:
    """Belief before measuring: the form of another accelerator, and how far parameters move [log].

    `distant`: an accelerator of another kind, whose discrete parameters (how its resources overlap) mean nothing here.
    """

    form: TimeForm
    spread: float = 0.3
    distant: bool = False


@dataclass(frozen=True)
class FormFit:
    """A fitted form; spread: one standard error of each parameter (SI); frozen: what the data could not pin."""

    form: TimeForm
    spread: dict[str, float]
    frozen: tuple[str, ...]
    cost: float


def form_time(form: TimeForm, rows: Measured, system: System) -> Array:
    """Time of each row by a form, as it was measured: cold or in a loop [s]."""
    return rows.each(lambda kernel: form.time(kernel, system, rows.warm).total)


def fit_form(rows: Measured, system: System, prior: Prior | None = None, start: TimeForm | None = None) -> FormFit:
    """Minimise Σ ρ(log(measured / form)) within the bounds of the parameters, ρ growing linearly for outliers.

    Discrete parameters are tried one by one (only those of `start`, or of a prior that is not distant, if given).
    Parameters that the data cannot pin are frozen at the prior (or at their usual value), the least certain first, and
    the rest is fitted again; one without which the rows fit worse stays free.
    """
    usual = prior.form if prior else type(start)() if start else FORMS[rows.family]()
    tried = {} if start or (prior and not prior.distant) else parameters(usual)
    if rows.family == "sparse_attention" and np.all(rows.each(lambda kernel: kernel.shaped(SparseShape).new) == 1.0):
        tried.pop("single", None)  # rows of decode do not tell their own launches from those of prompts
    free = [name for name, bound in parameters(usual).items() if not bound.choices]
    problem = _Problem(rows, system, prior, np.sqrt(rows.counts))
    best = problem.solve(start or usual, free)
    for name, bound in tried.items():
        others = [value for value in bound.choices if value != getattr(best.form, name)]
        fits = [problem.solve(replace(usual, **_chosen(best.form) | {name: value}), free) for value in others]  # type: ignore[type-var]
        best = min([best, *(fit for fit in fits if fit.cost < _BETTER * best.cost)], key=lambda fit: fit.cost)
    frozen: list[str] = []
    tested = set()
    while unpinned := [name for name in free if name not in tested and not _pinned(best, name)]:
        name = max(unpinned, key=lambda name: _uncertainty(best, name))
        tested.add(name)
        form = replace(best.form, **{name: getattr(usual, name)})  # type: ignore[type-var]
        held = problem.solve(form, [other for other in free if other not in (*frozen, name)])
        if held.cost <= _WORSE * best.cost:
            best = held
            frozen.append(name)
    return replace(best, frozen=tuple(frozen))


def _chosen(form: TimeForm) -> dict[str, object]:
    return {name: getattr(form, name) for name, bound in parameters(form).items() if bound.choices}


def _uncertainty(fit: FormFit, name: str) -> float:
    """Standard error over its value, or over its usual one, or over its range."""
    bound = parameters(fit.form)[name]
    value: float = getattr(fit.form, name)
    least = min(bound.high - bound.low, max(value / bound.scale, bound.usual))
    return fit.spread[name] / (least * bound.scale)


def _pinned(fit: FormFit, name: str) -> bool:
    bound = parameters(fit.form)[name]
    value: float = getattr(fit.form, name)
    if value <= (bound.low + 1e-6 * (bound.high - bound.low)) * bound.scale:
        return True  # at its floor: the term is absent
    return _uncertainty(fit, name) < _UNPINNED


@dataclass(frozen=True)
class _Problem:
    rows: Measured
    system: System
    prior: Prior | None
    weights: Array

    def solve(self, start: TimeForm, free: Sequence[str]) -> FormFit:
        """Fit the named parameters, all others as in `start`."""
        with needing("fitting a calibration", "accuracy"):
            from scipy.optimize import least_squares  # noqa: PLC0415
        bounds = parameters(start)
        scale = np.array([bounds[name].scale for name in free])
        low, high = (np.array([getattr(bounds[name], end) for name in free]) for end in ("low", "high"))
        margin = 1e-4 * (high - low)
        guess = np.clip([getattr(start, name) for name in free] / scale, low + margin, high - margin)
        typical = np.maximum(guess, 0.02 * np.minimum(high - low, 50.0))

        def residuals(theta: Array) -> Array:
            form = _with(start, free, theta * scale)
            logs = self.weights * np.log(self.rows.time / form_time(form, self.rows, self.system))
            return np.concatenate([logs, self._prior(theta * scale, free, typical * scale)])

        fit = least_squares(
            residuals, guess, bounds=(low, high), loss="soft_l1", f_scale=_SCALE, x_scale=typical, max_nfev=_EVALUATIONS
        )
        errors = _standard_errors(np.asarray(fit.jac, float), float(fit.cost))
        spread = dict(zip(free, (np.minimum(errors, high - low) * scale).tolist(), strict=True))
        return FormFit(_with(start, free, fit.x * scale), spread, (), float(fit.cost))

    def _prior(self, theta: Array, free: Sequence[str], typical: Array) -> Array:
        """Distance from the prior in units of its spread, on the scale of a typical row's error."""
        if self.prior is None:
            return np.zeros(0)
        centre = np.array([getattr(self.prior.form, name) for name in free])
        small = 0.1 * typical
        logs: Array = np.log((theta + small) / (centre + small))
        return logs * (_SCALE / self.prior.spread)


def _with(form: TimeForm, names: Sequence[str], values: Array) -> TimeForm:
    changes: dict[str, Any] = dict(zip(names, map(float, values), strict=True))
    return replace(form, **changes)  # type: ignore[type-var]


def _standard_errors(jacobian: Array, cost: float) -> Array:
    rows, count = jacobian.shape
    noise = 2.0 * cost / max(rows - count, 1)
    norms = np.linalg.norm(jacobian, axis=0)
    scaled = jacobian / np.where(norms > 0.0, norms, 1.0)
    covariance = np.linalg.pinv(scaled.T @ scaled, rcond=1e-10) * noise
    errors = np.sqrt(np.maximum(np.diag(covariance), 0.0)) / np.where(norms > 0.0, norms, np.inf)
    return np.where(norms > 0.0, errors, np.inf)


LEVEL = 0.9
_LEAST = 15
"""Rows that a regime needs for a quantile of its own; smaller ones take the pooled one."""

Edges = Mapping[Family, tuple[str, tuple[float, ...]]]


def _edges_of(kind: str) -> Edges:
    return {family: (axis, tuple(edges)) for family, (axis, edges) in table_of(__file__)[kind].items()}


REGIMES = _edges_of("regimes")
"""The shape that tells small from large, and where: launch bound, in between, bound by memory or compute."""

FOLDS = 4
_FEW, _KERNEL = 20, 100
"""Rows below which a correction would follow noise, and rows that a kernel of its own needs."""

_SWITCH = _edges_of("switch")
"""Places where an engine may change its kernel."""

_APART = 0.85
"""Share of the misfit that fits on either side of a switch may leave, so that they are two kernels."""

_UNKNOWN = Regimes("", (), (1.0,))
_ENOUGH = 8
"""Rows below which a family keeps its donor's fit: fewer than a form has parameters."""

_PER_PARAMETER = 8
"""Rows for each parameter of a form from which a fit of the rows alone may do without a donor."""
_LEAST_SPREAD = 0.05
"""Least prior spread of a carried parameter [log]: releases, clocks and boards of one accelerator differ by as much."""
_PIECES = 8
"""Folds of whole shape groups that decide whether a carried fit beats its donor; few rows allow no larger ones."""


def regime_of(rows: Measured) -> NDArray[np.intp]:
    """Number of the regime of each row."""
    axis, edges = REGIMES[rows.family]
    return np.searchsorted(np.array(edges), rows.each(AXES[axis]), side="left")


def fit_regimes(rows: Measured, ratio: Array) -> Regimes:
    """Widths from the ratios measured / predicted of rows that the predictions had not seen.

    Rows count as in the fit: a shape group of thousands of rows would set the width for all others.
    """
    (axis, edges), errors, regime = REGIMES[rows.family], np.abs(np.log(ratio)), regime_of(rows)
    own = [regime == number for number in range(len(edges) + 1)]
    sets = [each if each.sum() >= _LEAST else np.ones(len(errors), bool) for each in own]
    return Regimes(axis, edges, tuple(float(np.exp(_quantile(errors[each], rows.counts[each]))) for each in sets))


def _quantile(errors: Array, weight: Array) -> float:
    """The conformal quantile: LEVEL of the weight, with the correction (n + 1)/n for few rows."""
    order = np.argsort(errors)
    total = np.cumsum(weight[order])
    level = min(LEVEL * (1.0 + 1.0 / total[-1]), 1.0)
    return float(np.interp(level * total[-1], total, errors[order]))


def coverage(rows: Measured, ratio: Array, fold: NDArray[np.intp]) -> NDArray[np.bool_]:
    """True if each row lies in the interval that the other folds give (cross-conformal)."""
    inside = np.zeros(len(ratio), bool)
    for number in np.unique(fold):
        held = fold == number
        if held.all():
            continue
        regimes, unseen = fit_regimes(rows.subset(~held), ratio[~held]), rows.subset(held)
        upper, lower = (unseen.each(partial(_end, regimes, number)) for number in (0, 1))
        inside[held] = (ratio[held] <= upper) & (ratio[held] >= 1.0 / lower)
    return inside


def _end(regimes: Regimes, number: int, kernel: Kernel) -> Numeric:
    return regimes.factors(kernel)[number]


@dataclass(frozen=True)
class Fitted:
    """A fit, and the predictions for each row from folds that left its shape group out [s]."""

    fit: FamilyFit
    form_alone: Array
    corrected: Array
    inside: NDArray[np.bool_]
    fold: NDArray[np.intp]


def predict(fit: FamilyFit, rows: Measured, system: System, corrected: bool = True) -> Array:
    """Time of each row as it was measured, cold or in a loop [s]."""
    return rows.each(lambda kernel: fit.time(kernel, system, rows.warm, corrected).total)


def calibrate_family(
    rows: Measured, system: System, source: str, prior: Prior | None = None, folds: int = FOLDS
) -> Fitted:
    """Fit all rows, and again with each fold of whole shape groups left out (seeded).

    The interval and the stated error come from the left-out rows.
    """
    whole = _fit(rows, system, prior, None, _edges(rows, None))
    fold = _folds(rows.group, folds)
    alone, corrected = np.zeros(len(rows.time)), np.zeros(len(rows.time))
    for number in range(folds):
        held = fold == number
        if not held.any() or held.all():
            continue
        part = _fit(rows.subset(~held), system, prior, whole, _edges(rows, whole))
        unseen = rows.subset(held)
        alone[held] = predict(part, unseen, system, corrected=False)
        corrected[held] = predict(part, unseen, system)
    ratio = rows.time / corrected
    error = float(np.mean(np.abs(1.0 / ratio - 1.0)))
    fit = replace(whole, regimes=fit_regimes(rows, ratio), rows=len(rows.time), error=error, source=source)
    return Fitted(fit, alone, corrected, coverage(rows, ratio, fold), fold)


def _folds(group: NDArray[np.intp], folds: int) -> NDArray[np.intp]:
    """Whole shape groups dealt to folds; rows where there is only one group, which no fold could do without."""
    numbers, position = np.unique(group, return_inverse=True)
    if len(numbers) == 1:
        numbers = position = np.arange(len(group))
    return (np.random.default_rng(0).permutation(len(numbers)) % folds)[position]


def _fit(
    rows: Measured, system: System, prior: Prior | None, start: FamilyFit | None, edges: Sequence[float]
) -> FamilyFit:
    """Fit the form and its correction, apart on either side of an edge where they are other kernels, as in `start`."""
    if not edges:
        return _fit_one(rows, system, prior, start.form if start else None)
    (edge, *rest), axis = edges, _SWITCH[rows.family][0]
    far = rows.each(AXES[axis]) >= edge
    if min(far.sum(), (~far).sum()) < (1 if start else _KERNEL):
        only = start.beyond.fit if start and start.beyond and far.all() else start
        return _fit(rows, system, prior, only, rest)
    near = _fit_one(rows.subset(~far), system, prior, start.form if start else None)
    other = _fit(rows.subset(far), system, None, start.beyond.fit if start and start.beyond else None, rest)
    apart = replace(near, beyond=Beyond(axis, edge, other))
    if start:
        return apart
    together = _fit(rows, system, prior, None, rest)
    return apart if _loss(apart, rows, system) < _APART * _loss(together, rows, system) else together


def _edges(rows: Measured, start: FamilyFit | None) -> Sequence[float]:
    """Candidate edges of another kernel: where `start` has one, if given."""
    if start is None:
        return _SWITCH.get(rows.family, ("", ()))[1]
    return (start.beyond.start, *_edges(rows, start.beyond.fit)) if start.beyond else ()


def kernel_of(fit: FamilyFit, rows: Measured) -> FamilyFit:
    """The fit of the kernel that most of the rows run through."""
    while fit.beyond is not None and np.median(rows.each(AXES[fit.beyond.axis])) >= fit.beyond.start:
        fit = fit.beyond.fit
    return fit


def _loss(fit: FamilyFit, rows: Measured, system: System) -> float:
    """Σ ρ(log(measured / form)), as forms are fitted, without the corrections."""
    logs = np.log(rows.time / predict(fit, rows, system, corrected=False)) / _SCALE
    return float(np.sum(rows.counts * (np.sqrt(1.0 + logs**2) - 1.0)))


def _fit_one(rows: Measured, system: System, prior: Prior | None, start: TimeForm | None) -> FamilyFit:
    found = fit_form(rows, system, prior, start)
    surface = None
    if len(rows.time) >= _FEW and rows.family in LATTICES:
        ratio = rows.time / form_time(found.form, rows, system)
        surface = fit_surface(rows, found.form, system, ratio)
    return FamilyFit(found.form, found.spread, found.frozen, surface, _UNKNOWN, len(rows.time), 0.0, "")


@dataclass(frozen=True)
class Carried:
    """A donor's fit carried to own rows; `fit` is None where nothing beats the donor on shapes left out.

    donor, error: exp(mean |ln(measured / predicted)|) − 1 of the donor, and of the best fit on shape groups that it had
    not seen. A factor of two either way is 100 %.
    """

    fit: FamilyFit | None
    donor: float
    error: float


@dataclass(frozen=True)
class DonorReach:
    """Largest move of a donor's parameters [log]; `distant`: it is an accelerator of another kind.

    The spread is that of a transfer's error: 90 % of kernels lie within the factor by which its interval is widened.
    `stand_in`: the donor's kernel is that of another number format, so its correction tells little of these rows.
    """

    spread: float = _LEAST_SPREAD
    distant: bool = False
    stand_in: bool = False

    @classmethod
    def of(cls, donor: Calibration, fit: FamilyFit, key: str, distant: bool) -> DonorReach:
        """The reach of one fit of a donor as it stands in; of an assumed fit, which no row supports, its interval."""
        wide = donor.widening.get(key.partition("/")[0], 1.0) * (1.0 if fit.rows else fit.regimes.width[0])
        return cls(max(math.log(wide) / SIGMAS, _LEAST_SPREAD), distant, fit.rows > 0 and key not in donor.families)


def carry(donor: FamilyFit, rows: Measured, system: System, source: str, reach: DonorReach) -> Carried:
    """Move a donor's fit to own rows, and accept only what beats it on shape groups left out of the fit.

    The donor's correction and its discrete parameters stay; its continuous ones move within the spread, so that a few
    rows move what they show and no more. A fit of the rows alone is tried as well from eight rows a parameter on, where
    the donor has no correction that would be lost, where it is distant, and where it is of another number format.
    """
    tried = [_carried_and_held_out(donor, rows, system, reach.spread)]
    near = kernel_of(donor, rows)
    many = len(rows.time) >= _PER_PARAMETER * len(parameters(near.form))
    if reach.distant or reach.stand_in or near.surface is None or many:
        own = calibrate_family(rows, system, source, Prior(near.form, distant=reach.distant))
        tried.append((own.fit, own.corrected))
    fit, held_out = min(tried, key=lambda each: _misfit(rows, each[1]))
    known, error = _misfit(rows, predict(donor, rows, system)), _misfit(rows, held_out)
    if error >= known:
        return Carried(None, known, error)
    regimes, mean = fit_regimes(rows, rows.time / held_out), float(np.mean(np.abs(held_out / rows.time - 1.0)))
    return Carried(replace(fit, regimes=regimes, rows=len(rows.time), error=mean, source=source), known, error)


def _misfit(rows: Measured, times: Array) -> float:
    return float(np.expm1(np.mean(np.abs(np.log(rows.time / times)))))


def _carried_and_held_out(donor: FamilyFit, rows: Measured, system: System, spread: float) -> tuple[FamilyFit, Array]:
    fold, held_out = _folds(rows.group, _PIECES), predict(donor, rows, system)
    for number in range(_PIECES):
        held = fold == number
        if held.any() and not held.all():
            part = moved(donor, rows.subset(~held), system, spread)
            held_out[held] = predict(part, rows.subset(held), system)
    return moved(donor, rows, system, spread), held_out


def moved(donor: FamilyFit, rows: Measured, system: System, spread: float) -> FamilyFit:
    """The donor with its continuous parameters fitted to the rows; a kernel beyond a switch by its own rows."""
    if donor.beyond is not None:
        far = rows.each(AXES[donor.beyond.axis]) >= donor.beyond.start
        near, other = replace(donor, beyond=None), donor.beyond.fit
        near = near if far.all() else moved(near, rows.subset(~far), system, spread)
        other = moved(other, rows.subset(far), system, spread) if far.any() else other
        return replace(near, beyond=replace(donor.beyond, fit=other))
    ratio = rows.each(donor.surface.ratio) if donor.surface else np.ones(len(rows.time))
    problem = _Problem(replace(rows, time=rows.time / ratio), system, Prior(donor.form, spread), np.ones(len(ratio)))
    found = problem.solve(donor.form, [name for name, bound in parameters(donor.form).items() if not bound.choices])
    return replace(donor, form=found.form, spread=found.spread, frozen=())


@dataclass(frozen=True)
class Built:
    """The text of a new calibration file, what own rows made of each family, and what was left as the donor has it."""

    text: str
    carried: Mapping[str, Carried]
    borrowed: tuple[str, ...]
    notes: tuple[str, ...]


def build_calibration(
    files: Sequence[Path],
    accelerator: Accelerator,
    engine: str,
    date: str,
    progress: Callable[[str], None] = lambda _: None,
) -> Built:
    """Carry the nearest calibration to every group of rows that the tables hold for this accelerator and engine.

    A family keeps the donor's fit, with its interval widened by the measured error of such a transfer, where there are
    fewer than 8 rows or where nothing fitted to them is better on shapes left out (`carry`).
    """
    if engine not in ENGINES or engine == "ideal":
        raise UnknownNameError("engine", engine, [known for known in ENGINES if known != "ideal"])
    donor, note = choose_calibration(accelerator, engine)
    groups, seen = _own_groups(files, accelerator, engine)
    if not (groups or seen):
        raise SpecError(f"{', '.join(file.name for file in files)}: no measured kernels; `compare` takes whole steps")
    if not groups:
        held = ", ".join(sorted(seen))
        raise SpecError(f"no rows of {accelerator.name} with {engine} in the tables; they hold {held}")
    carried, notes = {}, [note] if note else []
    distant = reach_of(donor, accelerator, engine) in ("maker", "generic")
    for group in groups:
        key = group.key
        progress(key)
        if donor.within_attention(key, engine):
            notes.append(f"{key}: attention holds the write of the cache already; {len(group.table)} rows are left out")
            continue
        if len(group.table) < _ENOUGH:
            notes.append(f"{key}: {len(group.table)} rows are too few; the donor's fit is kept")
            continue
        near = donor.families.get(key) or donor.families[group.family]
        reach = DonorReach.of(donor, near, key, distant)
        carried[key] = found = carry(near, group.rows(donor), System.of(accelerator), group.source, reach)
        if found.fit is None:
            off, own = percent(found.donor, 1), f"{percent(found.error, 1)} when fitted to {len(group.table)} rows"
            notes.append(f"{key}: the donor's fit is kept. On shapes left out it is off by {off}, and by {own}")
    power, told = _power(groups, accelerator)
    notes += told
    fitted = {key: each.fit for key, each in carried.items() if each.fit is not None}
    families = {key: _borrowed(key, fit, donor) for key, fit in donor.families.items() if key not in donor.defaults}
    release = "/".join(sorted({str(v) for g in groups for v in g.table.get("engine_version", [])}))
    source = f"{sum(len(group.table) for group in groups)} rows of kernel tables"
    # Which fit serves a family's other formats: the one that does so for the donor.
    by_fit = {id(fit): key for key, fit in donor.families.items() if key not in donor.defaults}
    defaults = {family: by_fit[id(donor.families[family])] for family in sorted(donor.defaults)}
    heading = Heading(accelerator.name, engine, release, source, date, defaults, power)
    borrowed = tuple(sorted(families.keys() - fitted.keys()))
    return Built(render(heading, families | fitted), carried, borrowed, tuple(notes))


def _power(groups: Sequence[Group], accelerator: Accelerator) -> tuple[dict[str, float], list[str]]:
    """The law of power fitted to rows with power, where that is better on shapes left out, and a note of it."""
    read = []
    for group in (each for each in groups if "power_w" in each.table):
        table = group.table.dropna(subset=["power_w"]).reset_index(drop=True)
        read += [replace(group, table=table)] if len(table) else []
    found = carry_power(read, accelerator)
    if found is None:
        return {}, []
    law, fitted = percent(found.law, 1), percent(found.error, 1)
    off = f"power of {found.rows} kernels: the law is off by {law}, and by {fitted} with factors"
    if found.error >= found.law:
        return {}, [f"{off} of its own, on shapes left out: it is kept"]
    return asdict(found), [f"{off} {found.running:.2f} (running) and {found.work:.2f} (work), on shapes left out"]


def _own_groups(files: Sequence[Path], accelerator: Accelerator, engine: str) -> tuple[list[Group], set[str]]:
    """Groups of the tables, those that a calibration has one fit for together; and what else the tables hold."""
    own: dict[str, Group] = {}
    seen = set()
    for path in files:
        for operation, table in read_kernel_tables(path):
            for group in kernel_groups(operation, table):
                seen.add(f"{group.gpu} with {group.engine}")
                if not _is(group.gpu, accelerator) or group.engine != engine:
                    continue
                key = group.key
                own[key] = group.joined(own[key]) if key in own else group
    return list(own.values()), seen


def _is(name: str, accelerator: Accelerator) -> bool:
    """True if a table's name means this accelerator: its own, an alias, or one that the library resolves to it."""
    if name.lower() in {known.lower() for known in (accelerator.name, *accelerator.aliases)}:
        return True
    try:
        return load_accelerator(name).value.origin == accelerator.origin
    except RooflinekitError:
        return False


def _borrowed(key: str, fit: FamilyFit, donor: Calibration) -> FamilyFit:
    """A donor's fit as it may be used here: its interval wider where it is not at home."""
    wider = donor.widening.get(key.split("/", 1)[0], 1.0)
    if wider == 1.0:
        return fit
    widths = tuple(min(width * wider, WIDEST) for width in fit.regimes.width)
    return replace(fit, regimes=replace(fit.regimes, width=widths), source=f"{BORROWED}{fit.source}")
