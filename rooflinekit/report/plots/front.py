"""The front door of pictures: a result in, pictures out. matplotlib is loaded when something is drawn."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooflinekit.model.types.errors import InputError, MissingExtraError, UnknownNameError
from rooflinekit.specs.files import table_of

if TYPE_CHECKING:
    from rooflinekit.report.plots.style import Picture

FORMATS = ("svg", "png")
PICTURES: Mapping[str, Mapping[str, str]] = table_of(__file__)
"""By type of result, a tuple being several estimates: the pictures, which are named as their files, and who draws."""


def plot(result: Any, kind: str | None = None, theme: str = "light") -> Picture:
    """Draw a result.

    Args:
        result: an `Estimate` (roofline, time, bytes, memory, energy; of a load also request,
            lanes, over-load), a table of `sweep` or
            `estimate_frame` (batch, context, load, pareto, interactivity), an `Outcome` of `simulate` (percentiles,
            timeline,
            request), `Levers` (elasticities, moves), a `TraceAnswer` (hit-rate), a plan over time (hours), or a list of
            estimates of one model (intensity).
        kind: which picture; the first of those by default.
        theme: light or dark.

    Returns:
        A `Picture`: a notebook shows it, `save("roofline.svg")` writes it, `figure` is matplotlib's.

    Raises:
        InputError: what cannot be drawn, and a kind or theme that is none.

    >>> import rooflinekit as rk
    >>> picture = plot(rk.estimate("llama-3-8b", isl=2048, calibration="none"), "roofline")
    >>> picture.description.split(": ")[1].split(".")[0]
    'the ridge is at 295 FLOP per byte'
    """
    _check_installed()
    from rooflinekit.report.plots.style import THEMES, styled  # noqa: PLC0415 - matplotlib takes a while

    result = tuple(result) if isinstance(result, list) else result
    kinds = _kinds_of(result)
    chosen = drawable(result)[0] if kind is None else kind
    if chosen not in kinds:
        raise UnknownNameError("picture", str(chosen), kinds)
    if theme not in THEMES:
        raise UnknownNameError("theme", str(theme), THEMES)
    module, _, function = kinds[chosen].partition(".")
    with styled(THEMES[theme]):
        draw = getattr(import_module(f"rooflinekit.report.plots.{module}"), function)
        picture: Picture = draw(result, THEMES[theme])
        return picture


def drawable(result: Any) -> list[str]:
    """The pictures that a result has."""
    kinds = _kinds_of(result)
    if type(result).__name__ in ("Estimate", "Outcome"):
        from rooflinekit.report.request import Request  # noqa: PLC0415 - an answer is there, and so is its module

        lacking = set() if Request.of(result) else {"request", "lanes", "over-load"}
        if getattr(result, "energy", True) is None:  # a board whose power nobody knows
            lacking.add("energy")
        return [kind for kind in kinds if kind not in lacking]
    if type(result).__name__ != "DataFrame":
        return list(kinds)
    from rooflinekit.report.plots.sweeps import kinds_of  # noqa: PLC0415 - as above

    found = kinds_of(result)
    if not found:
        raise InputError("nothing to draw: the table needs answered rows that differ in batch, isl, context or load")
    return found


def _check_installed() -> None:
    """Raises MissingExtraError in an install without matplotlib, which nothing but pictures needs."""
    if find_spec("matplotlib") is None:
        raise MissingExtraError("drawing pictures", "plots")


def _kinds_of(result: Any) -> Mapping[str, str]:
    """Raises InputError for what is no result."""
    name = type(result).__name__
    several = name == "tuple" and not (result and all(type(each).__name__ == "Estimate" for each in result))
    if several or name not in PICTURES:
        known = "an Estimate or several, a table, an Outcome of simulate, Levers, a trace or a plan over time"
        raise InputError(f"cannot draw {'these' if several else f'a {name}'}; give {known}")
    return PICTURES[name]


def write_plots(results: object, folder: str | Path, force: bool = False, theme: str = "light") -> list[Path]:
    """Write every picture of some results as SVG and PNG.

    Args:
        results: a result as `plot` takes it, or a list of results of different types.
        folder: where; it is made if its parent exists. Nothing is written elsewhere.
        force: overwrite files that are there.
        theme: light or dark.

    Returns:
        The files, two a picture.

    Raises:
        InputError: what cannot be drawn, two results of one type, a folder that cannot be made, a file that is there;
    """
    folder, every = Path(folder), results if isinstance(results, list) else [results]
    pairs = [(result, kind) for result in every for kind in drawable(result)]
    names = [kind for _, kind in pairs]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"two results have a picture {twice[0]!r}; write them into two folders")
    check_plots(folder, names, force)
    drawn = [plot(result, kind, theme) for result, kind in pairs]
    folder.mkdir(exist_ok=True)
    return [picture.save(folder / f"{picture.name}.{suffix}", force) for picture in drawn for suffix in FORMATS]


def check_plots(folder: Path, names: Sequence[str], force: bool) -> None:
    """Refuse what would stop `write_plots`, before the work is done."""
    _check_installed()
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; name a folder for the pictures")
    if not folder.parent.is_dir():
        raise InputError(f"{folder.parent} is not a folder; make it first")
    for path in (folder / f"{name}.{suffix}" for name in names for suffix in FORMATS):
        if os.path.lexists(path) and not force:
            raise InputError(f"{path} exists; add --force to overwrite it")
