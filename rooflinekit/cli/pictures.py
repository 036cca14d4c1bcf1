"""The option `--plots DIR` of commands whose answers can be drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

__all__ = ["check_pictures", "write_pictures"]


def check_pictures(folder: Path, of: str, force: bool) -> None:
    """Refuse before the work is done. Raises InputError, MissingExtraError without matplotlib."""
    from rooflinekit.report.plots import PICTURES, check_plots

    check_plots(folder, PICTURES[of], force)


def write_pictures(result: Any, folder: Path, force: bool) -> None:
    """Write them, and say on the standard error which there are."""
    from rooflinekit.report.plots import write_plots

    names = ", ".join(path.name for path in write_plots(result, folder, force) if path.suffix == ".svg")
    typer.echo(f"rooflinekit: {names} in {folder}, and each as PNG", err=True)
