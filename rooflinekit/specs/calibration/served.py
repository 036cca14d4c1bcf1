"""The `serving` section of a calibration file: what benchmark files of one deployment say about its engine."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from rooflinekit.model.types.engine import OwnLoad, ServedCosts, StepCosts
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.specs.engines import UNITLESS, read_facts
from rooflinekit.specs.files import Parsed
from rooflinekit.specs.section import EMPTY, FileLayout, FileSection
from rooflinekit.version import __version__

KEY = "serving"
_TEXTS = ("accelerator", "engine", "since", "date", "version")
_MOST = 100.0  # no error of a share or a factor is larger
_OLD = r"(?m)^(?:# Engine costs of one deployment.*\n(?:#.*\n)*)?serving:\n(?:[ #].*\n|\n)*"
_NAME = r"(?m)^name: *(.*?)(?:--served)?$"
_COMMENT = (
    "# Engine costs of one deployment, fitted to benchmark files (docs/fit-back.md). files: mean error of each before",
    "# and after the fit, and unseen: by a fit without that file. costs: value, spread in intervals (never more than",
    "# before), what they were, and the share that the files have in the value. errors: one standard error of each, of",
    "# the logarithm for memory and compute. loads: measured over fitted times, by model, accelerators, users in the",
    "# system and tokens of a prompt.",
)


@dataclass(frozen=True)
class ServedFile:
    """A benchmark file that was used: mean absolute relative errors before and after, and of a fit without it."""

    name: str
    sha256: str
    tool: str
    rows: int
    before: float
    after: float
    unseen: float | None = None


@dataclass(frozen=True)
class ServedLoad:
    """A load of the files: mean TTFT and TPOT as measured over those of the fit; None where they were not measured."""

    model: str
    gpus: int
    users: float
    prompt: float
    ttft: float | None = None
    tpot: float | None = None


class _Served(FileLayout):
    """The keys of the section."""

    accelerator: str
    engine: str
    files: tuple[ServedFile, ...]
    costs: Parsed
    errors: Parsed
    sources: Parsed
    since: str = ""
    date: str = ""
    version: str = ""
    base: Parsed = EMPTY
    shipped: bool = False
    earlier: tuple[str, ...] = ()
    loads: tuple[ServedLoad, ...] = ()


@dataclass(frozen=True)
class ServingHeading:
    """Heading of a `serving` section.

    base: name and hash of the calibration that it was fitted on; earlier: hashes of the files which that one had seen.
    """

    accelerator: str
    engine: str
    since: str
    date: str
    base: tuple[str, str]
    shipped: bool
    earlier: tuple[str, ...] = ()


@dataclass(frozen=True)
class FittedCosts:
    """Costs, their standard errors, and what to say of each: what it was, and how much of its value is the files'."""

    costs: StepCosts
    errors: Mapping[str, float]
    notes: Mapping[str, str]
    loads: Sequence[ServedLoad] = ()


def read_served(path: Path, data: Mapping[str, object]) -> ServedCosts:
    """Read and check the section; raises SpecError by file, key and value."""
    section = FileSection(path, "", data).section(KEY).with_sources()
    file = section.read(_Served)
    costs, provenance = read_facts(section.section("costs"), StepCosts)
    errors = section.section("errors")
    errors.expect((), tuple(costs.spread))
    hashes = (*file.earlier, *(each.sha256 for each in file.files))
    return ServedCosts(
        file.accelerator,
        file.engine,
        file.since,
        costs,
        {key: _error(errors, key) for key in errors.data},
        provenance,
        file.shipped,
        hashes,
        _loads(section, file.loads),
    )


def _loads(section: FileSection, listed: Sequence[ServedLoad]) -> dict[tuple[str, int], tuple[OwnLoad, ...]]:
    """Loads by model and accelerators, with logarithms."""
    found: dict[tuple[str, int], tuple[OwnLoad, ...]] = {}
    for number, each in enumerate(listed):
        known = {name: time for name in ("ttft", "tpot") if (time := getattr(each, name)) is not None}
        for name, value in {"users": each.users, "prompt": each.prompt, **known}.items():
            if value <= 0.0:
                section.refuse(f"loads[{number}].{name}", f"{value!r} is not a number above 0")
        logs = {name: math.log(time) for name, time in known.items()}
        key = each.model, each.gpus
        found[key] = (*found.get(key, ()), OwnLoad(each.users, each.prompt, **logs))
    return found


def _error(errors: FileSection, key: str) -> float:
    """A standard error: a time with its unit, or a number above 0."""
    if key not in UNITLESS:
        return errors.quantity(key, "s")
    value = errors.number_in(key, errors.data[key], 0.0, _MOST)
    return value if value else errors.refuse(key, f"{value!r} is not a number above 0")


def with_serving(text: str, heading: ServingHeading, files: Sequence[ServedFile], fitted: FittedCosts) -> str:
    """The text of a calibration file with this `serving` section in place of any that it had."""
    whole = re.sub(_NAME, r"name: \1--served", re.sub(_OLD, "", text), count=1)
    lines = [*_COMMENT, f"{KEY}:", *(f'  {key}: "{getattr(heading, key)}"' for key in _TEXTS[:-1])]
    lines += [f'  version: "{__version__}"', f"  base: {{name: {_quoted(heading.base[0])}, hash: {heading.base[1]!r}}}"]
    lines += [f"  shipped: {str(heading.shipped).lower()}"]
    lines += [f"  earlier: [{', '.join(map(repr, heading.earlier))}]"] if heading.earlier else []
    title = (
        f"fitted to {sum(file.rows for file in files)} figures of {len(files)} benchmark files of this deployment, "
        f"{heading.date}"
    )
    lines += ["  files:", *map(_file_line, files)]
    lines += ["  sources:", f'    files: {{title: "{title}", url: "docs/fit-back.md", read: true}}', "  costs:"]
    for key, note in fitted.notes.items():
        value, spread = (_value(key, each) for each in (getattr(fitted.costs, key), fitted.costs.spread.get(key, 0.0)))
        lines += [f"    {key}: {{value: {value}, spread: {spread}, source: [files], note: {_quoted(note)}}}"]
    lines += [f"  errors: {{{', '.join(f'{key}: {_value(key, error)}' for key, error in fitted.errors.items())}}}"]
    lines += ["  loads:", *map(_load_line, fitted.loads)] if fitted.loads else []
    return whole.rstrip("\n") + "\n" + "\n".join(lines) + "\n"


def _load_line(load: ServedLoad) -> str:
    numbers = {name: getattr(load, name) for name in ("users", "prompt", "ttft", "tpot")}
    words = ", ".join(f"{name}: {plain(value)}" for name, value in numbers.items() if value is not None)
    return f"    - {{model: {_quoted(load.model)}, gpus: {load.gpus}, {words}}}"


def _file_line(file: ServedFile) -> str:
    unseen = "" if file.unseen is None else f", unseen: {file.unseen:.4f}"
    return (
        f"    - {{name: {_quoted(file.name)}, sha256: {file.sha256!r}, tool: {_quoted(file.tool)}, "
        f"rows: {file.rows}, before: {file.before:.4f}, after: {file.after:.4f}{unseen}}}"
    )


def _value(key: str, number: float) -> str:
    return plain(number) if key in UNITLESS else f"{plain(1e6 * number)} us"


def plain(number: float) -> str:
    """A number as YAML reads one back, without an exponent.

    >>> plain(26.0), plain(0.00012345)
    ('26', '0.00012345')
    """
    return f"{number:.9f}".rstrip("0").rstrip(".")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
