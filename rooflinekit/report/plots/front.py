"""The front door of pictures: a result in, pictures out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from rooflinekit.report.plots import intensity, roofline, sensitivities, served, steps, sweeps
from rooflinekit.report.plots.picture import FORMATS, Picture
from rooflinekit.report.plots.style import THEMES, Theme, styled
from rooflinekit.results import Estimate
from rooflinekit.sensitivity.results import Levers
from rooflinekit.serving.outcome import Outcome
from rooflinekit.types.errors import InputError, UnknownNameError

__all__ = ["KINDS", "check_folder", "kinds_of", "plot", "write_plots"]

KINDS: dict[type, dict[str, Callable[[Any, Theme], Picture]]] = {
    Estimate: {"roofline": roofline.roofline, "time": steps.time_spent, "bytes": steps.bytes_read,
               "memory": steps.memory},
    pd.DataFrame: {"batch": sweeps.batch_sweep, "context": sweeps.context_sweep, "pareto": sweeps.pareto},
    Outcome: {"percentiles": served.percentiles, "timeline": served.timeline},
    Levers: {"elasticities": sensitivities.elasticities, "moves": sensitivities.moves},
    tuple: {"intensity": intensity.intensity},
}  # fmt: skip
"""Pictures of each kind of result; a tuple is several estimates."""


def kinds_of(result: Any) -> Mapping[str, Callable[[Any, Theme], Picture]]:
    """The pictures that a result has.

    Raises InputError for what is no result, or a table without anything to draw.
    """
    drawn = next((kinds for kind, kinds in KINDS.items() if isinstance(result, kind)), None)
    if drawn is None:
        known = "an Estimate, a table of estimates, an Outcome of simulate, or Levers"
        raise InputError(f"cannot draw a {type(result).__name__}; give {known}")
    if isinstance(result, pd.DataFrame):
        drawn = {name: drawn[name] for name in sweeps.kinds_of(result)}
        if not drawn:
            raise InputError("nothing to draw: the table needs answered rows that differ in batch, isl or context")
    return drawn


def plot(result: Any, kind: str | None = None, theme: str = "light") -> Picture:
    """Draw a result.

    Args:
        result: an `Estimate` (roofline, time, bytes, memory), a table of `sweep` or `estimate_frame` (batch, context,
            pareto), an `Outcome` of `simulate` (percentiles, timeline), `Levers` (elasticities, moves), or several
            estimates (intensity).
        kind: which picture; the first of those by default.
        theme: light or dark.

    Returns:
        A `Picture`: a notebook shows it, `save("roofline.svg")` writes it, `figure` is matplotlib's.

    Raises:
        InputError: what cannot be drawn; UnknownNameError: a kind or theme that is none.

    >>> import rooflinekit as rk
    >>> picture = plot(rk.estimate("llama-3-8b", isl=2048, calibration="none"), "roofline")
    >>> picture.description.split(": ")[1].split(".")[0]
    'the ridge is at 295 FLOP per byte'
    """
    result = tuple(result) if isinstance(result, list) else result
    kinds = kinds_of(result)
    chosen = next(iter(kinds)) if kind is None else kind
    if chosen not in kinds:
        raise UnknownNameError("picture", chosen, kinds)
    if theme not in THEMES:
        raise UnknownNameError("theme", theme, THEMES)
    with styled(THEMES[theme]):
        return kinds[chosen](result, THEMES[theme])


def write_plots(results: Any, folder: str | Path, force: bool = False, theme: str = "light") -> list[Path]:
    """Write every picture of some results as SVG and PNG.

    Args:
        results: a result as `plot` takes it, or a sequence of different kinds of them.
        folder: where; made if only its parent exists. Nothing is written elsewhere.
        force: overwrite files that are there.
        theme: light or dark.

    Returns:
        The files, two a picture.

    Raises:
        InputError: what cannot be drawn, two results of one kind, a folder that cannot be made, a file that is there.
    """
    folder, every = Path(folder), list(results) if isinstance(results, Sequence) else [results]
    names = [kind for result in every for kind in kinds_of(result)]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"two results have a picture {twice[0]!r}; write them into two folders")
    check_folder(folder, names, force)
    folder.mkdir(exist_ok=True)
    drawn = [plot(result, kind, theme) for result in every for kind in kinds_of(result)]
    return [picture.save(folder / f"{picture.name}.{suffix}", force) for picture in drawn for suffix in FORMATS]


def check_folder(folder: Path, names: Sequence[str], force: bool) -> None:
    """Refuse a folder that cannot be made, or that holds one of the files, before work is done.

    Raises InputError.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; name a folder for the pictures")
    if not folder.parent.is_dir():
        raise InputError(f"{folder.parent} is not a folder; make it first")
    for name in names:
        for suffix in FORMATS:
            if (path := folder / f"{name}.{suffix}").exists() and not force:
                raise InputError(f"{path} exists; add --force to overwrite it")
