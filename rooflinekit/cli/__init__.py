"""The command line: parse, call, render."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Entry point of `rooflinekit`."""
    from rooflinekit.cli.run import main as run

    run()
