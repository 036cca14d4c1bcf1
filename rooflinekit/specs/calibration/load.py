"""Reads a calibration file."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rooflinekit.model.timing.calibrated import AXES, Axis, Beyond, Calibration, FamilyFit, Fits, Regimes, Surface
from rooflinekit.model.timing.forms import (
    FORMS,
    ExchangeTime,
    GemmTime,
    PlainTime,
    SparseTime,
    TimeForm,
    parameters,
)
from rooflinekit.model.types.errors import SpecError, UnknownNameError, nearest_of
from rooflinekit.model.types.hardware import Accelerator, dense_clock
from rooflinekit.model.types.kernel import FAMILIES, Family
from rooflinekit.specs.calibration.served import KEY, read_served
from rooflinekit.specs.files import Parsed, kept, mapping_in, read_text, read_yaml
from rooflinekit.specs.hardware import load_accelerator
from rooflinekit.specs.places import admitted, spec_dir
from rooflinekit.specs.section import FileLayout, FileSection

FORM = "physical-1"
"""Name of the set of time forms that a file's parameters belong to."""

_MOST_DIGITS = 4  # of a logarithm in percent, with its sign: a factor of 22,000
_PERCENT = re.compile(r"[-\d\s,]+")
_LATER: dict[Family, TimeForm] = {"sparse_attention": SparseTime(), "exchange": ExchangeTime()}
"""Families that most files say nothing of, with usual parameters."""

_ASSUMED = ("elementwise", "embedding", "sampling", "linear_attention", "kv_append")
_ASSUMED_FROM = "gemm/bf16"
"""Families that nobody measured, in files that say nothing of them, and the fit that their launch and shares are of."""

_AS_GEMM = "assumption: launch floor and shares of the bf16 GEMM, within a factor of 2"
_INSIDE = "assumption: no launch of its own, since measured attention includes the write; shares of the bf16 GEMM"

_CONTINUED = ("/", "_")
"""Begins a default whose key continues the name that it serves."""

SERVED = "/served"
"""Ends the key of what a server runs instead of the kernel that was measured under the rest of it."""

_USUAL = "assumption: usual parameters of measured ones, within a factor of 3"


class _CalibrationFile(FileLayout):
    """The keys of a calibration file; what programs wrote without quotes is a text too."""

    name: Any
    accelerator: Any
    engine: Any
    form: str
    source: Any
    date: Any
    version: Any
    defaults: Mapping[str, str]
    families: Parsed
    serving: Any = None
    power: _PowerFactors | None = None


class _Correction(FileLayout):
    """Ratios at the nodes; `axes` have the faded ones too."""

    percent: object
    nodes: Mapping[str, tuple[float, ...]] = MappingProxyType({})
    axes: Mapping[str, tuple[float, ...]] = MappingProxyType({})


class _PowerFactors(FileLayout):
    """Factors of the accelerator's law, from so many kernels; errors on shapes left out of the law and of them."""

    running: float
    work: float
    rows: float
    law: float
    error: float


class _Interval(FileLayout):
    width: tuple[float, ...]
    axis: str = ""
    edges: tuple[float, ...] = ()


class _Form(FileLayout):
    parameters: Parsed
    frozen: tuple[str, ...] = ()
    correction: _Correction | None = None
    beyond: _Beyond | None = None


class _Beyond(_Form):
    """The fit of the kernel that runs beyond a shape."""

    axis: str
    start: float


class _Fit(_Form):
    interval: _Interval
    rows: float
    error: float
    source: Any


class _Borrowed(FileLayout):
    """A fit of another calibration, and what it reaches across; of this key there, where it is called otherwise."""

    borrowed: str
    reach: str
    key: str = ""


def transfer_rule() -> dict[str, Any]:
    """Rule about stand-ins in calibrations/transfer.yaml."""
    return kept(read_yaml, _folder() / "transfer.yaml")


def kernel_entry(engine: str, chip: str, key: str) -> Mapping[str, object] | None:
    """Entry of a fit in calibrations/kernels.yaml: the entry with the longest beginning of its key, this chip's first.

    >>> kernel_entry("vllm", "h200-sxm", "moe/bf16")["kernel"]
    'TritonExperts'
    """
    listed = kept(read_yaml, _folder() / "kernels.yaml").get(engine, ())
    fitting = [each for each in listed if key.startswith(each["fit"]) and chip in each.get("chips", [chip])]
    return max(fitting, key=lambda each: (len(each["fit"]), "chips" in each), default=None)


def dense_share(lender: str, here: Accelerator, reach: str) -> float:
    """Share of the peak that arithmetic reaches on a chip, over that on the one whose fit serves there.

    Within an architecture, where a FLOP takes about the same energy, the ratio of what their power limits sustain
    (`dense_clock`); beyond, and where a limit is unknown, 1.
    """
    if reach not in ("sibling", "architecture"):
        return 1.0
    there = load_accelerator(lender).value
    return dense_clock(here) / dense_clock(there) if here.tdp_w and there.tdp_w else 1.0


def carried(fit: FamilyFit, lender: str, here: Accelerator, reach: str) -> FamilyFit:
    """A chip's fit as it serves on another across a reach: what was not measured there is smoothed.

    Beyond an architecture a form alone is as near as with its correction (docs/method.md, section 4).
    """
    fit = fit.sustaining(dense_share(lender, here, reach))
    if reach == "generic":
        fit = fit.among(min(1.0, here.cores / load_accelerator(lender).value.cores))
    return fit if reach in ("engine", "sibling") else fit.elsewhere(corrected=reach == "architecture")


def calibration_names() -> list[str]:
    """Names of the calibrations that are shipped."""
    return [*kept(_names, _folder())]


@cache
def _folder() -> Path:
    return spec_dir("accelerator") / "calibrations"


def _names(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*--*.yaml"))


def load_calibration(name: str) -> Calibration:
    """Load a calibration by name or path."""
    path = calibration_path(name)
    return kept(_shipped if path.parent == _folder() else read_calibration, path)


def calibration_path(name: str) -> Path:
    """The file of a calibration, by name or path."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or (admitted(path) and path.is_file()):
        return path
    if name not in (known := calibration_names()):
        raise UnknownNameError("calibration", name, [*known, "none"])
    return _folder() / f"{name}.yaml"


def read_calibration(path: Path) -> Calibration:
    """Read and check one file."""
    root = FileSection(path, "", read_yaml(path))
    listed = root.section("families")
    read = _calibration(root, listed.data, partial(_family, listed))
    return replace(read, families={**read.families})


def _shipped(path: Path) -> Calibration:
    """A file of the library's, whose fits are read when they are first needed: tests read all of them."""
    head, fits = kept(_divided, path)
    return _calibration(
        FileSection(path, "", head), fits, lambda key, chip: _family(_lines(path, fits, key), key, chip)
    )


def _calibration(root: FileSection, keys: Iterable[str], read: Callable[[str, str], FamilyFit]) -> Calibration:
    """The calibration whose fits are read by key, for this accelerator."""
    file = root.read(_CalibrationFile)
    if file.form != FORM:
        root.refuse("form", f"{file.form!r} is not known; known: {FORM}")
    fits = {str(key): cache(partial(read, key, str(file.accelerator))) for key in keys}
    for family, key in whole_keys(file.defaults).items():
        if key not in fits:
            root.refuse(f"defaults.{family}", f"no fit {key!r}; nearest: {nearest_of(key, fits)}")
        fits[family] = fits[key]
    fits = {family: cache(partial(_usual, form)) for family, form in _LATER.items()} | fits
    if (gemm := fits.get(_ASSUMED_FROM)) is not None:
        fits = {family: cache(partial(_assumed, gemm, family)) for family in _ASSUMED} | fits
    if missing := set(FAMILIES) - fits.keys():
        root.refuse("defaults", f"missing {', '.join(sorted(missing))}")
    return Calibration(
        name=str(file.name),
        hash=hashlib.sha256(read_text(root.file).replace("\r\n", "\n").encode()).hexdigest()[:12],
        accelerator=str(file.accelerator),
        engine=str(file.engine),
        families=Fits(fits),
        source=str(file.source),
        date=str(file.date),
        defaults=frozenset(file.defaults),
        served=read_served(root.file, root.data) if KEY in root.data else None,
        power=(file.power.running, file.power.work) if file.power else None,
    )


def whole_keys(defaults: Mapping[str, str]) -> dict[str, str]:
    """The keys of fits that serve formats without one, as a file states them or after the name before.

    >>> whole_keys({"gemm": "/bf16", "moe": "exchange/bf16"})
    {'gemm': 'gemm/bf16', 'moe': 'exchange/bf16'}
    """
    return {name: name + key if key.startswith(_CONTINUED) else key for name, key in defaults.items()}


def short_keys(defaults: Mapping[str, str]) -> dict[str, str]:
    """The keys as a file states them: without the name before, where they continue it.

    >>> short_keys({"gemm": "gemm/bf16", "moe": "exchange/bf16"})
    {'gemm': '/bf16', 'moe': 'exchange/bf16'}
    """
    rest = {name: key.removeprefix(name) for name, key in defaults.items()}
    return {name: rest[name] if rest[name].startswith(_CONTINUED) else key for name, key in defaults.items()}


def _assumed(gemm: Callable[[], FamilyFit], family: str) -> FamilyFit:
    """A plain roofline with the launch and shares of the bf16 GEMM; the write of the cache has no launch of its own."""
    form, inside = gemm().form, family == "kv_append"
    assert isinstance(form, GemmTime)
    plain = PlainTime(0.0 if inside else form.launch, form.compute, form.memory)
    source = _INSIDE if inside else _AS_GEMM
    spread = dict.fromkeys(parameters(plain), 0.0)
    return FamilyFit(plain, spread, ("launch", "compute", "memory"), None, Regimes("", (), (2.0,)), 0, 0.0, source)


def _usual(form: TimeForm) -> FamilyFit:
    return FamilyFit(form, {}, tuple(parameters(form)), None, Regimes("", (), (3.0,)), 0, 0.0, _USUAL)


_ENTRIES = re.compile(r"^families:\n((?:  .*\n)+)", re.MULTILINE)
_ENTRY = re.compile(r"  ([\w./]+):.*\n(?:    .*\n)*")


def _divided(path: Path) -> tuple[dict[str, object], Mapping[str, str]]:
    """The keys of a shipped file, with the text of each fit by its key.

    Raises SpecError as `read_yaml`, and for fits that are not written line by line as all of them are.
    """
    text = read_text(path)
    block = _ENTRIES.search(text)
    entries = [*_ENTRY.finditer(block[1])] if block else []
    families = {entry[1]: entry[0] for entry in entries}
    if block is None or "".join(families.values()) != block[1]:
        raise SpecError(f"{path}: families: not written as `rooflinekit calibrate` writes them")
    return mapping_in(path, f"{text[: block.start()]}families: {{}}\n{text[block.end() :]}"), families


_STEPS_FROM = 40
"""Rows of a fit from which it may say where the next tile begins: fewer hold no neighbours on both sides of a step. The
number is an assumption."""


def _family(listed: FileSection, key: str, accelerator: str) -> FamilyFit:
    kind = next((form for family, form in FORMS.items() if family == str(key).split("/", maxsplit=1)[0]), None)
    if kind is None:
        near = nearest_of(str(key), FAMILIES)
        raise SpecError(f"{listed.file}: families: unknown family {str(key)!r}; nearest: {near}")
    section = listed.section(key)
    if "borrowed" in section.data:
        return _borrowed(section, str(key), accelerator)
    fit = section.read(_Fit)
    interval = fit.interval
    if interval.axis not in ("", *AXES):
        section.refuse("interval.axis", f"unknown shape {interval.axis!r}")
    if len(interval.width) != len(interval.edges) + 1 or min(interval.width) < 1.0:
        section.refuse("interval", "needs one width of at least 1 more than edges")
    if interval.edges and not interval.axis:
        section.refuse("interval", "edges need the `axis` along which they lie")
    about = FamilyFit(
        kind(),
        {},
        (),
        None,
        Regimes(interval.axis, interval.edges, interval.width),
        int(fit.rows),
        fit.error,
        str(fit.source),
        stepless=fit.correction is None and 0 < fit.rows < _STEPS_FROM,
    )
    return _formed(about, section, fit)


def _formed(about: FamilyFit, section: FileSection, fit: _Form) -> FamilyFit:
    """A fit with its form and correction, and with those of the kernels that run beyond a shape, and a larger one."""
    form, spread, alone = _form(section.section("parameters"), type(about.form))
    frozen = (*fit.frozen, *alone)
    near = replace(about, form=form, spread=spread, frozen=frozen, surface=_surface(section, fit.correction))
    if (other := fit.beyond) is None:
        return near
    beyond = section.section("beyond")
    if other.axis not in AXES:
        beyond.refuse("axis", f"unknown shape; nearest: {nearest_of(other.axis, AXES)}")
    return replace(near, beyond=Beyond(other.axis, other.start, _formed(about, beyond, other)))


def _borrowed(section: FileSection, key: str, accelerator: str) -> FamilyFit:
    """The fit of the same key in a shipped calibration, which has measured it, with wider intervals."""
    entry = section.read(_Borrowed)
    if entry.borrowed not in calibration_names():
        near = nearest_of(entry.borrowed, calibration_names())
        section.refuse("borrowed", f"no calibration {entry.borrowed!r}; nearest: {near}")
    path, key = calibration_path(entry.borrowed), entry.key or key
    lender = _lines(path, kept(_divided, path)[1], key)
    if key not in lender.data or "borrowed" in lender.section(key).data:
        section.refuse("borrowed", f"{entry.borrowed} has not measured {key}")
    rule = transfer_rule()["widening"]
    if entry.reach not in rule:
        section.refuse("reach", f"{entry.reach!r} is not one of {', '.join(rule)}")
    try:
        here = load_accelerator(accelerator).value
    except UnknownNameError as error:
        section.refuse("borrowed", f"across an architecture: {error}")
    fit = carried(_family(lender, key, accelerator), entry.borrowed.partition("--")[0], here, entry.reach)
    return fit.wider(float(rule[entry.reach][key.partition("/")[0]]))


def _lines(path: Path, fits: Mapping[str, str], key: str) -> FileSection:
    """One fit of a shipped file, whose lines are read without the thousands of others."""
    return FileSection(path, "families", mapping_in(path, fits[key]) if key in fits else {})


def _form(section: FileSection, kind: type[TimeForm]) -> tuple[TimeForm, dict[str, float], list[str]]:
    """A time form with its parameters and their standard errors, in SI, and which of them the data could not pin.

    A parameter that is left out has its usual value.
    """
    known = parameters(kind)
    values: dict[str, Any] = {}
    spread, alone = {}, []
    section.expect((), known)
    for name, bound in known.items():
        given = section.data.get(name, bound.usual)
        if bound.choices:
            values[name] = given
            if given not in bound.choices:
                section.refuse(name, f"{given!r} is not one of {bound.choices}")
            continue
        if isinstance(given, int | float):
            alone.append(name)
            given = [given, 0.0]
        if not isinstance(given, list) or len(given) != 2:
            section.refuse(name, f"{given!r} is not [value, spread] or a value")
        value, error = (section.number_in(name, number) for number in given)
        if not bound.low <= value <= bound.high:
            section.refuse(name, f"{value} is outside [{bound.low}, {bound.high}] {bound.unit}")
        values[name], spread[name] = value * bound.scale, error * bound.scale
    return kind(**values), spread, alone


def _surface(fit: FileSection, correction: _Correction | None) -> Surface | None:
    if correction is None:
        return None
    section, axes = fit.section("correction"), []
    if bool(correction.nodes) == bool(correction.axes):
        section.refuse("nodes", "give the nodes of each shape, or `axes` with the faded ones too, and not both")
    key, make = ("axes", Axis) if correction.axes else ("nodes", Axis.around)
    for name, nodes in (correction.axes or correction.nodes).items():
        if name not in AXES:
            section.refuse(key, f"unknown shape {name!r}; nearest: {nearest_of(name, AXES)}")
        if not nodes or min(nodes) <= 0:
            section.refuse(f"{key}.{name}", "needs at least one node, each above 0")
        axes.append(make(name, tuple(map(math.log2, nodes))))
    text = str(correction.percent)
    expected = math.prod(len(axis.inner) for axis in axes)
    words = text.replace(",", " ").split()
    if not _PERCENT.fullmatch(text) or len(words) != expected:
        section.refuse("percent", f"needs {expected} whole numbers for its axes")
    if wrong := next((word for word in words if len(word) > _MOST_DIGITS), None):
        section.refuse("percent", f"{wrong[:24]} is more than any kernel is off")
    return Surface(tuple(axes), " ".join(words))
