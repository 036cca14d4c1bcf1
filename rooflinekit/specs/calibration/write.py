"""Write a calibration as readable YAML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import wrap
from types import MappingProxyType

from rooflinekit.model.timing.calibrated import Axis, FamilyFit, Regimes, Surface
from rooflinekit.model.timing.forms import parameters
from rooflinekit.specs.calibration.load import FORM, short_keys
from rooflinekit.version import __version__

_WIDTH = 120
_JOINED = "\N{NO-BREAK SPACE}"  # a blank at which no line ends


@dataclass(frozen=True)
class Heading:
    """Heading of a calibration file.

    defaults: family -> key of the fit for formats without one. power: factors of the law of power, and their evidence.
    """

    accelerator: str
    engine: str
    release: str
    source: str
    date: str
    defaults: Mapping[str, str]
    power: Mapping[str, float] = field(default_factory=dict)


Lent = Mapping[str, tuple[str, str]]
"""By key: the calibration whose fit serves, and what it reaches across."""


def render(heading: Heading, families: Mapping[str, FamilyFit], borrowed: Lent = MappingProxyType({})) -> str:
    """The text of a calibration file."""
    lines = [
        "# Time of a kernel = form(parameters) x correction. Section 4 of docs/method.md says what each key holds.",
        f"name: {heading.accelerator}--{heading.engine}",
        f"accelerator: {heading.accelerator}",
        f"engine: {heading.engine} {heading.release}",
        f"form: {FORM}",
        f'source: "{heading.source}"',
        f'date: "{heading.date}"',
        f'version: "{__version__}"',
        *defaults_lines(heading.defaults),
    ]
    if heading.power:
        lines.append(f"power: {{{', '.join(f'{name}: {_short(each)}' for name, each in heading.power.items())}}}")
    lines.append("families:")
    lines += [line for key, fit in families.items() for line in entry(key, fit)]
    lines += [f"  {key}: {{borrowed: {name}, reach: {reach}}}" for key, (name, reach) in borrowed.items()]
    return "\n".join(lines) + "\n"


def defaults_lines(defaults: Mapping[str, str]) -> list[str]:
    """The lines of the keys of fits that serve formats without one."""
    told = [f"  {name}: {key}" for name, key in short_keys(defaults).items()]
    return ["defaults:", *told] if told else ["defaults: {}"]


def entry(key: str, fit: FamilyFit) -> list[str]:
    """The lines of one family."""
    return [
        f"  {key}:",
        *_fit(fit, "    "),
        f"    interval: {{{_interval(fit.regimes)}}}",
        f"    rows: {fit.rows}",
        f"    error: {fit.error:.4f}",
        f'    source: "{fit.source}"',
        *_beyond(fit, "    "),
    ]


def _interval(regimes: Regimes) -> str:
    """Regimes of one width are one regime.

    >>> _interval(Regimes("m", (16.0,), (1.1, 1.2))), _interval(Regimes("m", (16.0,), (1.2, 1.2)))
    ('axis: m, edges: [16], width: [1.100, 1.200]', 'width: [1.200]')
    """
    width = [f"{each:.3f}" for each in regimes.width]
    if len(set(width)) == 1:
        return f"width: [{width[0]}]"
    edges = ", ".join(f"{edge:.0f}" for edge in regimes.edges)
    return f"axis: {regimes.axis}, edges: [{edges}], width: [{', '.join(width)}]"


def _beyond(fit: FamilyFit, indent: str) -> list[str]:
    if fit.beyond is None:
        return []
    other, inner = fit.beyond, indent + "  "
    place = [f"{indent}beyond:", f"{inner}axis: {other.axis}", f"{inner}start: {other.start:g}"]
    return [*place, *_fit(other.fit, inner), *_beyond(other.fit, inner)]


def _fit(fit: FamilyFit, indent: str) -> list[str]:
    told = []
    for name, bound in parameters(fit.form).items():
        value = getattr(fit.form, name)
        if value == bound.usual * bound.scale and not fit.spread.get(name):
            continue
        if bound.choices:
            told.append(f"{name}: {value}")
            continue
        kept = _short(min(max(value / bound.scale, bound.low), bound.high))
        error = _short(fit.spread.get(name, 0.0) / bound.scale, 2)
        told.append(f"{name}: {kept}" if name in fit.frozen else f"{name}: [{kept}, {error}]")
    lines = _flow("parameters", told, indent)
    return lines + ([] if fit.surface is None else _surface(fit.surface, indent))


def _flow(key: str, entries: Sequence[str], indent: str) -> list[str]:
    """A mapping on as few lines as hold it, broken between its entries."""
    return _wrapped(f"{key}: {{{', '.join(each.replace(' ', _JOINED) for each in entries)}}}", indent)


def _wrapped(text: str, indent: str, inner: str = "  ") -> list[str]:
    lines = wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=indent + inner, break_long_words=False,
                 break_on_hyphens=False)  # fmt: skip
    return [line.replace(_JOINED, " ") for line in lines]


def _short(value: float, digits: int = 4) -> str:
    """A number that YAML 1.1 reads as one: an exponent needs a decimal point before it.

    >>> _short(0.84213), _short(2000.0, 2), _short(0.0)
    ('0.8421', '2.0e+03', '0')
    """
    text = f"{value:.{digits}g}" if value >= 1e-6 else "0"
    return text if "." in text else text.replace("e", ".0e")


def _surface(surface: Surface, indent: str) -> list[str]:
    faded = all(_usual(axis) for axis in surface.axes)
    told = {axis.name: axis.inner if faded else axis.nodes for axis in surface.axes}
    nodes = [f"{name}: [{', '.join(map(_node, places))}]" for name, places in told.items()]
    last, *before = [len(axis.inner) for axis in reversed(surface.axes)]
    rows = [_JOINED.join(row) for row in _runs(surface.percent.split(), last)]
    lines = [", ".join(line) for line in _runs(rows, before[0] if before else 1)]
    text = [part for line in lines for part in _wrapped(line, f"{indent}    ", "")]
    head = [f"{indent}correction:", *_flow("nodes" if faded else "axes", nodes, f"{indent}  ")]
    return [*head, f"{indent}  percent: |", *text]


def _usual(axis: Axis) -> bool:
    """Whether the faded nodes of an axis follow from the others."""
    return [*map(_node, axis.nodes)] == [*map(_node, Axis.around(axis.name, axis.inner).nodes)]


def _node(place: float) -> str:
    return _short(2.0**place, 12)


def _runs(items: Sequence[str], size: int) -> list[Sequence[str]]:
    """Items in runs of a size."""
    return [items[start : start + size] for start in range(0, len(items), size)]
