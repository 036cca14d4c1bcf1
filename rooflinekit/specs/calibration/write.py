"""Write a calibration as readable YAML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from rooflinekit.model.timing.calibrated import FamilyFit, Surface
from rooflinekit.model.timing.forms import parameters
from rooflinekit.specs.calibration.load import FORM
from rooflinekit.version import __version__


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
        "# Time of a kernel = form(parameters) x correction; the forms stand in docs/method.md and model/timing/.",
        "# parameters: [value, one standard error], times in us; frozen: the data could not pin them. correction:",
        "# log(measured / form) in percent at the nodes, last axis along the line, faded nodes left out. interval:",
        "# factor either way that holds 90 % of the kernels of shape groups that the fit had not seen; error: their",
        "# mean |error|.",
        f"name: {heading.accelerator}--{heading.engine}",
        f"accelerator: {heading.accelerator}",
        f"engine: {heading.engine} {heading.release}",
        f"form: {FORM}",
        f'source: "{heading.source}"',
        f'date: "{heading.date}"',
        f'version: "{__version__}"',
        f"defaults: {{{', '.join(f'{family}: {key}' for family, key in heading.defaults.items())}}}",
    ]
    if heading.power:
        lines.append(f"power: {{{', '.join(f'{name}: {_short(each)}' for name, each in heading.power.items())}}}")
    lines.append("families:")
    lines += [line for key, fit in families.items() for line in entry(key, fit)]
    lines += [f"  {key}: {{borrowed: {name}, reach: {reach}}}" for key, (name, reach) in borrowed.items()]
    return "\n".join(lines) + "\n"


def entry(key: str, fit: FamilyFit) -> list[str]:
    """The lines of one family."""
    edges = ", ".join(f"{edge:.0f}" for edge in fit.regimes.edges)
    width = ", ".join(f"{each:.3f}" for each in fit.regimes.width)
    return [
        f"  {key}:",
        *_fit(fit, "    "),
        f'    interval: {{axis: "{fit.regimes.axis}", edges: [{edges}], width: [{width}]}}',
        f"    rows: {fit.rows}",
        f"    error: {fit.error:.4f}",
        f'    source: "{fit.source}"',
        *_beyond(fit, "    "),
    ]


def _beyond(fit: FamilyFit, indent: str) -> list[str]:
    if fit.beyond is None:
        return []
    other, inner = fit.beyond, indent + "  "
    place = [f"{indent}beyond:", f"{inner}axis: {other.axis}", f"{inner}start: {other.start:g}"]
    return [*place, *_fit(other.fit, inner), *_beyond(other.fit, inner)]


def _fit(fit: FamilyFit, indent: str) -> list[str]:
    lines = [f"{indent}parameters:"]
    for name, bound in parameters(fit.form).items():
        value = getattr(fit.form, name)
        if bound.choices:
            lines.append(f"{indent}  {name}: {value}")
            continue
        error = 0.0 if name in fit.frozen else fit.spread.get(name, 0.0) / bound.scale
        kept = min(max(value / bound.scale, bound.low), bound.high)
        lines.append(f"{indent}  {name}: [{_short(kept)}, {_short(error, 2)}]")
    lines.append(f"{indent}frozen: [{', '.join(fit.frozen)}]")
    return lines + ([] if fit.surface is None else _surface(fit.surface, indent))


def _short(value: float, digits: int = 4) -> str:
    """A number that YAML 1.1 reads as one: an exponent needs a decimal point before it.

    >>> _short(0.84213), _short(2000.0, 2), _short(0.0)
    ('0.8421', '2.0e+03', '0')
    """
    text = f"{value:.{digits}g}" if value >= 1e-6 else "0"
    return text if "." in text else text.replace("e", ".0e")


def _surface(surface: Surface, indent: str) -> list[str]:
    lines = [f"{indent}correction:", f"{indent}  axes:"]
    for axis in surface.axes:
        nodes = ", ".join(_short(2.0**place, 12) for place in axis.nodes)
        lines += [f"{indent}    {axis.name}: [{nodes}]"]
    return [*lines, f"{indent}  percent: |", *(f"{indent}    {line}" for line in surface.percent.splitlines())]
