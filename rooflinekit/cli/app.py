"""All commands of `rooflinekit`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from rooflinekit.cli.accuracy import accuracy
from rooflinekit.cli.calibrate import calibrate
from rooflinekit.cli.catalogue import gpus, models, show
from rooflinekit.cli.compare import compare
from rooflinekit.cli.cost import cost
from rooflinekit.cli.estimate import estimate
from rooflinekit.cli.explain import explain
from rooflinekit.cli.group import CommandGroup
from rooflinekit.cli.launch import launch
from rooflinekit.cli.levers import levers
from rooflinekit.cli.plan import plan
from rooflinekit.cli.report import report
from rooflinekit.cli.shapes import shapes
from rooflinekit.cli.simulate import simulate
from rooflinekit.cli.sweep import sweep
from rooflinekit.cli.validate import validate
from rooflinekit.cli.workbook import workbook
from rooflinekit.version import __version__

__all__ = ["app"]

app = typer.Typer(
    name="rooflinekit",
    cls=CommandGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
    help="How fast, and how expensive, an LLM will be on a GPU, from first principles.",
)
app.command()(estimate)
app.command()(explain)
app.command()(simulate)
app.command()(shapes)
app.command()(levers)
app.command()(cost)
app.command()(sweep)
app.command()(plan)
app.command()(models)
app.command()(gpus)
app.command()(show)
app.command()(validate)
app.command()(calibrate)
app.command()(compare)
app.command()(launch)
app.command()(workbook)
app.command()(report)
app.add_typer(accuracy, name="accuracy")


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"rooflinekit {__version__}\n")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass
