"""One look: names, hues, hatches and shapes, for terminal, pages, pictures, notebooks and the docs.

Hues are those of Okabe and Ito (2008), in shades that stand out from the paper (3 : 1 at least, WCAG 2.1) and that
people with any kind of colour vision can tell apart within a chart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from rooflinekit.estimation.results import KernelResult
from rooflinekit.model.types.errors import RooflinekitError
from rooflinekit.model.types.hardware import Accelerator
from rooflinekit.specs import load_accelerator
from rooflinekit.specs.files import table_of

_TABLE = table_of(__file__)

PALETTES: Mapping[str, Mapping[str, str]] = _TABLE["hues"]
"""By theme, the hue of each thing."""

QUANTITIES: Mapping[str, str] = _TABLE["quantities"]
"""Names of quantities for people, by the name of their hue."""

BYTES = ("weights", "cache", "activations")
"""Quantities that the memory holds and moves."""

HATCHES: Mapping[str, str] = {limit: hatch for limit, (hatch, _) in _TABLE["limits"].items()}
"""By the limit of a kernel, the hatch of its bar."""

SHAPES: Mapping[str, tuple[str, str]] = {phase: tuple(shapes) for phase, shapes in _TABLE["phases"].items()}
"""By phase, the shape of a point, as matplotlib and pages write it."""

SERIES = ("orange", "violet", "cyan", "rose", "moss", "navy")
"""Hues of accelerators, and of lines of a table: never those of a quantity."""


class TimePart(NamedTuple):
    """A part of a time: its hue, its limit, and its name for people."""

    tint: str
    limit: str
    name: str


def _parts(table: Mapping[str, list[str]]) -> dict[str, TimePart]:
    return {key: TimePart(tint, limit, *name or [QUANTITIES[tint]]) for key, (tint, limit, *name) in table.items()}


STEP = _parts(_TABLE["step"])
"""Parts of the time of a step."""

FIRST = _parts(_TABLE["first"])
"""Parts of a first token under load."""

TOKEN = {"engine" if key == "host" else key: part for key, part in STEP.items()} | _parts({"prompts": _TABLE["others"]})
"""Parts of the time of a token under load."""

INKS = {limit: f"\x1b[{ink}m" for limit, (_, ink) in _TABLE["limits"].items()}
"""By the limit of a time, its colour in a terminal."""

ALARM, BOLD, PLAIN = "\x1b[1;31m", "\x1b[1m", "\x1b[0m"

TERMINAL = {part.name: INKS[part.limit] for table in (STEP, FIRST, TOKEN) for part in table.values()} | INKS
"""The colour of everything that has one in a terminal, by its name."""

RESOURCES: Mapping[str, str] = _TABLE["resources"]
"""Names of what an answer is sensitive to."""


def hues() -> str:
    """The hues as variables of a style sheet, by the theme of the reader; paper is light."""
    light, dark = ("; ".join(f"--{name}: {hue}" for name, hue in palette.items()) for palette in PALETTES.values())
    return f":root {{ {light}; }}\n@media (prefers-color-scheme: dark) {{ :root:not(.paper) {{ {dark}; }} }}\n"


def hue_of(accelerator: Accelerator) -> str:
    """The hue of its generation, or of its vendor.

    >>> from rooflinekit.specs import load_accelerator
    >>> [hue_of(load_accelerator(name).value) for name in ("h100-sxm", "h200-sxm", "mi300x", "tpu-v6e")]
    ['violet', 'violet', 'rose', 'moss']
    """
    makers = _TABLE["makers"]
    found = next(filter(makers.get, (accelerator.architecture.split(" ")[0], accelerator.vendor)), "other makers")
    return str(makers[found])


def hues_of(names: Iterable[str]) -> dict[str, str]:
    """The hues of known accelerators by their names."""
    found = {}
    for name in names:
        with suppress(RooflinekitError):
            found[name] = hue_of(load_accelerator(name).value)
    return found


def shades(hues: Sequence[str]) -> list[float]:
    """Shades of things with these hues: distance to the paper, so that those of one hue differ.

    >>> shades(["violet", "orange", "violet", "violet"])
    [0.0, 0.0, 0.3, 0.6]
    """
    return [_FAINTEST * hues[:place].count(hue) / max(hues.count(hue) - 1, 2) for place, hue in enumerate(hues)]


_FAINTEST = 0.6  # of the way to the paper: what is paler does not stand out from it


def quantity_of(kernel: KernelResult) -> str:
    """The quantity that most of a kernel's time is spent on: the largest of its bytes where memory is the limit.

    >>> import rooflinekit as rk
    >>> step = rk.estimate("llama-3-8b", batch=64, isl=4096).decode
    >>> {kernel.name: quantity_of(kernel) for kernel in step.kernels if kernel.name in ("attention", "down_proj")}
    {'attention': 'cache', 'down_proj': 'weights'}
    """
    if kernel.bound != "memory":
        return kernel.bound
    sizes = (kernel.weight_bytes, kernel.kv_read_bytes + kernel.kv_write_bytes, kernel.activation_bytes)
    return max(zip(sizes, BYTES, strict=True), key=lambda pair: pair[0])[1]
