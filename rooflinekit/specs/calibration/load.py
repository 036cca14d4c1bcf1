"""Read a calibration file, and choose the one for an accelerator and engine."""

from __future__ import annotations

import hashlib
import math
import re
from pathlib import Path
from typing import Any

from rooflinekit.model.timing import AXES, FORMS, Axis, PlainTime, Surface, TimeForm, parameters
from rooflinekit.model.timing.calibrated import Beyond, Calibration, FamilyFit, Regimes
from rooflinekit.model.types.errors import SpecError, UnknownNameError, nearest
from rooflinekit.model.types.kernel import FAMILIES
from rooflinekit.specs.calibration.served import KEY, read_served
from rooflinekit.specs.locate import read_text, read_yaml, spec_dir

__all__ = ["FORM", "calibration_names", "calibration_path", "load_calibration", "read_calibration"]

FORM = "physical-1"
"""Name of the set of time forms that a file's parameters belong to."""

_TOP = {"name", "accelerator", "engine", "form", "source", "date", "version", "defaults", "families"}
_BEYOND = {"axis", "start", "parameters", "frozen"}
_PERCENT = re.compile(r"[-\d\s]+")
_MAYBE = {"correction", "beyond"}
_ABSENT: dict[type[TimeForm], dict[str, Any]] = {PlainTime: {"row": [0, 0]}}
"""Terms that files of before they were known lack."""
_FAMILY = {"parameters", "frozen", "interval", "rows", "error", "source"}


def calibration_names() -> list[str]:
    """Names of the calibrations that are shipped."""
    return sorted(path.stem for path in (spec_dir("accelerator") / "calibrations").glob("*--*.yaml"))


def load_calibration(name: str) -> Calibration:
    """Load a calibration by name or path.

    Raises UnknownNameError for a name nobody knows, SpecError for a file that cannot be trusted.
    """
    return read_calibration(calibration_path(name))


def calibration_path(name: str) -> Path:
    """The file of a calibration, by name or path.

    Raises UnknownNameError for a name nobody knows.
    """
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or path.is_file():
        return path
    shipped = spec_dir("accelerator") / "calibrations" / f"{name}.yaml"
    if not shipped.is_file():
        raise UnknownNameError("calibration", name, [*calibration_names(), "none"])
    return shipped


def read_calibration(path: Path) -> Calibration:
    """Read and check one file.

    Raises SpecError naming file, key and value: unknown or missing key, parameter outside its physical bounds.
    """
    text, data = read_text(path), read_yaml(path)
    _check_keys(path, "", {key: value for key, value in data.items() if key != KEY} if KEY in data else data, _TOP)
    try:
        return _read(path, text, data)
    except SpecError:
        raise
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise SpecError(f"{path.name}: an entry has the wrong shape: {' '.join(str(error).split())[:120]}") from None


def _read(path: Path, text: str, data: dict[str, Any]) -> Calibration:
    if data["form"] != FORM:
        raise SpecError(f"{path.name}: form: {data['form']!r} is not known; known: {FORM}")
    for key in ("families", "defaults"):
        if not isinstance(data[key], dict):
            raise SpecError(f"{path.name}: {key}: expected keys with values, not {data[key]!r}")
    families = {key: _family(path, str(key), entry) for key, entry in data["families"].items()}
    for family, key in data["defaults"].items():
        if key not in families:
            raise SpecError(
                f"{path.name}: defaults.{family}: no fit {key!r}; nearest: {', '.join(nearest(key, families))}"
            )
        families[family] = families[key]
    if missing := set(FAMILIES) - families.keys():
        raise SpecError(f"{path.name}: defaults: missing {', '.join(sorted(missing))}")
    return Calibration(
        name=str(data["name"]),
        hash=hashlib.sha256(text.replace("\r\n", "\n").encode()).hexdigest()[:12],
        accelerator=str(data["accelerator"]),
        engine=str(data["engine"]),
        families=families,
        source=str(data["source"]),
        date=str(data["date"]),
        defaults=frozenset(data["defaults"]),
        served=read_served(path, data) if KEY in data else None,
    )


def _family(path: Path, key: str, entry: dict[str, Any]) -> FamilyFit:
    family = key.split("/", maxsplit=1)[0]
    if family not in FORMS:
        raise SpecError(f"{path.name}: families: unknown family {key!r}; nearest: {', '.join(nearest(key, FAMILIES))}")
    if not isinstance(entry, dict):
        raise SpecError(f"{path.name}: {key}: expected keys {', '.join(sorted(_FAMILY))}")
    _check_keys(path, key, {name: value for name, value in entry.items() if name not in _MAYBE}, _FAMILY)
    form, spread = _form(path, key, FORMS[family], entry["parameters"])
    interval = entry["interval"]
    if isinstance(interval, dict) and interval.get("axis") not in ("", *AXES):
        raise SpecError(f"{path.name}: {key}.interval.axis: unknown shape {interval.get('axis')!r}")
    _check_keys(path, f"{key}.interval", interval, {"axis", "edges", "width"})
    regimes = Regimes(str(interval["axis"]), tuple(map(float, interval["edges"])), tuple(map(float, interval["width"])))
    if len(regimes.width) != len(regimes.edges) + 1 or min(regimes.width) < 1.0:
        raise SpecError(f"{path.name}: {key}.interval: needs one width of at least 1 more than edges")
    surface = _surface(path, key, entry["correction"]) if "correction" in entry else None
    return FamilyFit(
        form, spread, tuple(entry["frozen"]), surface, regimes, int(_number(path, f"{key}.rows", entry["rows"])),
        _number(path, f"{key}.error", entry["error"]), str(entry["source"]), _beyond(path, key, entry),
    )  # fmt: skip


def _beyond(path: Path, key: str, entry: dict[str, Any]) -> Beyond | None:
    if "beyond" not in entry:
        return None
    other = entry["beyond"]
    _check_keys(path, f"{key}.beyond", {name: value for name, value in other.items() if name != "correction"}, _BEYOND)
    if other["axis"] not in AXES:
        raise SpecError(
            f"{path.name}: {key}.beyond.axis: unknown shape; nearest: {', '.join(nearest(other['axis'], AXES))}"
        )
    shared = {name: entry[name] for name in ("interval", "rows", "error", "source")}
    kept = {name: value for name, value in other.items() if name not in ("axis", "start")}
    return Beyond(
        str(other["axis"]), _number(path, f"{key}.beyond.start", other["start"]), _family(path, key, shared | kept)
    )


def _form(path: Path, key: str, kind: type[TimeForm], entry: dict[str, Any]) -> tuple[TimeForm, dict[str, float]]:
    known = parameters(kind)
    entry = _ABSENT.get(kind, {}) | entry
    _check_keys(path, f"{key}.parameters", entry, set(known))
    values, spread = {}, {}
    for name, bound in known.items():
        where = f"{key}.parameters.{name}"
        if bound.choices:
            values[name] = entry[name]
            if entry[name] not in bound.choices:
                raise SpecError(f"{path.name}: {where}: {entry[name]!r} is not one of {bound.choices}")
            continue
        if not isinstance(entry[name], list) or len(entry[name]) != 2:
            raise SpecError(f"{path.name}: {where}: {entry[name]!r} is not [value, spread]")
        value, error = (_number(path, where, number) for number in entry[name])
        if not bound.low <= value <= bound.high:
            raise SpecError(f"{path.name}: {where}: {value} is outside [{bound.low}, {bound.high}] {bound.unit}")
        values[name], spread[name] = value * bound.scale, error * bound.scale
    return kind(**values), spread


def _surface(path: Path, key: str, entry: dict[str, Any]) -> Surface:
    _check_keys(path, f"{key}.correction", entry, {"axes", "percent"})
    axes = []
    for name, nodes in entry["axes"].items():
        if name not in AXES:
            raise SpecError(
                f"{path.name}: {key}.correction: unknown shape {name!r}; nearest: {', '.join(nearest(name, AXES))}"
            )
        where = f"{key}.correction.axes.{name}"
        if not nodes:
            raise SpecError(f"{path.name}: {where}: needs at least one node")
        axes.append(Axis(name, tuple(math.log2(_number(path, where, node)) for node in nodes)))
    surface, text = Surface(tuple(axes), str(entry["percent"])), str(entry["percent"])
    expected = math.prod(len(axis.nodes) - (1 if axis.open_low else 2) for axis in axes)
    if not _PERCENT.fullmatch(text) or len(text.split()) != expected:
        raise SpecError(f"{path.name}: {key}.correction.percent: needs {expected} whole numbers for its axes")
    return surface


def _check_keys(path: Path, where: str, data: dict[str, Any], known: set[str]) -> None:
    place = f"{path.name}: {where}: " if where else f"{path.name}: "
    if not isinstance(data, dict):
        raise SpecError(f"{place}expected keys {', '.join(sorted(known))}")
    for key in data:
        if key not in known:
            raise SpecError(f"{place}unknown key {key!r}; nearest: {', '.join(nearest(str(key), known)) or 'none'}")
    if missing := known - data.keys():
        raise SpecError(f"{place}missing key {', '.join(sorted(missing))}")


def _number(path: Path, where: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise SpecError(f"{path.name}: {where}: {value!r} is not a number of at least 0")
    return float(value)
