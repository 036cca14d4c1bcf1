"""Options that several commands share."""

from __future__ import annotations

from typing import Any

import typer

__all__ = ["Count"]


def Count(help: str) -> Any:
    """An option that takes a whole number, and says so in words when it gets something else."""
    return typer.Option(help=help, parser=_whole, metavar="N")


def _whole(text: str | int) -> int:
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a whole number") from None
