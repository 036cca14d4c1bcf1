"""Read a calibration file, and choose the one for an accelerator and engine."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any

from rooflinekit.specs.locate import read_text, read_yaml, spec_dir
from rooflinekit.types.calibration import Calibration, FamilyFit, Parameter
from rooflinekit.types.errors import SpecError, UnknownNameError, nearest
from rooflinekit.types.kernel import FAMILIES

__all__ = ["DEFAULT", "calibration_names", "choose_calibration", "load_calibration", "read_calibration"]

DEFAULT = "h100-sxm--vllm"
"""Used, with its interval widened by its measured transfer error, wherever there is no calibration of its own."""

_TOP = {"name", "accelerator", "engine", "form", "source", "date", "version", "transfer", "families"}
_TRANSFER = {"low", "high", "source"}
_FAMILY = {"launch_us", "compute", "memory", "network", "hop_us", "interval", "rows", "source"}


def calibration_names() -> list[str]:
    """Names of the calibrations that are shipped."""
    return sorted(path.stem for path in (spec_dir("accelerator") / "calibrations").glob("*.yaml"))


def load_calibration(name: str) -> Calibration:
    """Load a calibration by name or path.

    Raises UnknownNameError for a name nobody knows, SpecError for a file that cannot be trusted.
    """
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or path.is_file():
        return read_calibration(path)
    shipped = spec_dir("accelerator") / "calibrations" / f"{name}.yaml"
    if not shipped.is_file():
        raise UnknownNameError("calibration", name, [*calibration_names(), "none"])
    return read_calibration(shipped)


def choose_calibration(accelerator: str, engine: str) -> tuple[Calibration, str | None]:
    """The calibration shipped for this accelerator and engine, else the default one and a sentence that says so."""
    own = f"{accelerator}--{engine}"
    if own in calibration_names():
        return load_calibration(own), None
    chosen = load_calibration(DEFAULT)
    return chosen, (
        f"no calibration for {accelerator} with {engine}: efficiencies of {chosen.accelerator} with {chosen.engine} "
        f"are transferred, and the interval is widened by their transfer error"
    )


def read_calibration(path: Path) -> Calibration:
    """Read and check one file.

    Raises SpecError naming file, key and value: unknown or missing key, efficiency outside (0, 1.05], negative floor.
    """
    text = read_text(path)
    data = read_yaml(path)
    _check_keys(path, "", data, _TOP)
    if data["form"] != "roofline-3":
        raise SpecError(f"{path.name}: form: {data['form']!r} is not known; known: roofline-3")
    _check_keys(path, "families", data["families"], None)
    families = {key: _family(path, key, entry) for key, entry in data["families"].items()}
    if missing := [family for family in FAMILIES if family not in families]:
        raise SpecError(f"{path.name}: families: missing {', '.join(missing)}")
    transfer = data["transfer"]
    _check_keys(path, "transfer", transfer, _TRANSFER)
    return Calibration(
        name=str(data["name"]),
        hash=hashlib.sha256(text.replace("\r\n", "\n").encode()).hexdigest()[:12],
        accelerator=str(data["accelerator"]),
        engine=str(data["engine"]),
        families=families,
        source=str(data["source"]),
        date=str(data["date"]),
        transfer=_around_one(path, "transfer", [transfer["low"], transfer["high"]]),
    )


def _family(path: Path, key: str, entry: dict[str, Any]) -> FamilyFit:
    if str(key).split("/", 1)[0] not in FAMILIES:
        near = nearest(str(key), FAMILIES) or FAMILIES
        raise SpecError(f"{path.name}: families: unknown family {key!r}; nearest: {', '.join(near)}")
    _check_keys(path, key, entry, _FAMILY)
    low, high = _around_one(path, f"{key}.interval", entry["interval"])
    return FamilyFit(
        launch=_parameter(path, f"{key}.launch_us", entry["launch_us"], 1e-6),
        compute=_efficiency(path, f"{key}.compute", entry["compute"]),
        memory=_efficiency(path, f"{key}.memory", entry["memory"]),
        network=_efficiency(path, f"{key}.network", entry["network"]),
        hop=_parameter(path, f"{key}.hop_us", entry["hop_us"], 1e-6),
        low=low,
        high=high,
        rows=int(_number(path, f"{key}.rows", entry["rows"])),
        source=str(entry["source"]),
    )


def _check_keys(path: Path, where: str, data: object, known: set[str] | None) -> None:
    """Refuse what is not a mapping, and keys that are unknown or missing (any key goes where `known` is None)."""
    place = f"{path.name}: {where}: " if where else f"{path.name}: "
    if not isinstance(data, dict):
        raise SpecError(f"{place}expected keys with values, not {data!r}")
    if known is None:
        return
    for key in data:
        if key not in known:
            raise SpecError(f"{place}unknown key {key!r}; nearest: {', '.join(nearest(str(key), known)) or 'none'}")
    if missing := known - data.keys():
        raise SpecError(f"{place}missing key {', '.join(sorted(missing))}")


def _number(path: Path, where: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise SpecError(f"{path.name}: {where}: {value!r} is not a number of at least 0")
    return float(value)


def _parameter(path: Path, where: str, pair: object, scale: float = 1.0) -> Parameter:
    if not isinstance(pair, list) or len(pair) != 2:
        raise SpecError(f"{path.name}: {where}: {pair!r} is not a pair of numbers")
    value, spread = (_number(path, where, number) for number in pair)
    return Parameter(value * scale, spread * scale)


def _around_one(path: Path, where: str, pair: object) -> tuple[float, float]:
    """Factors below and above a predicted time."""
    ends = _parameter(path, where, pair)
    if not ends.value <= 1.0 <= ends.spread:
        raise SpecError(f"{path.name}: {where}: [{ends.value}, {ends.spread}] does not contain 1")
    return ends.value, ends.spread


def _efficiency(path: Path, where: str, pair: object) -> Parameter:
    parameter = _parameter(path, where, pair)
    if not 0 < parameter.value <= 1.05:
        raise SpecError(f"{path.name}: {where}: {parameter.value} is not a share of the datasheet rate, (0, 1.05]")
    return parameter
