"""Which commands there are, and how a line is answered: at once where it is plain, by way of typer where it is not."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import cache
from importlib import import_module

from rooflinekit.cli.command import Command
from rooflinekit.cli.guard import guarded

__all__ = ["COMMANDS", "find", "main"]

COMMANDS = {
    **{name: name for name in ("estimate", "explain", "simulate", "shapes", "levers", "cost", "sweep", "plan")},
    **dict.fromkeys(("models", "gpus", "show"), "catalogue"),
    **{name: name for name in ("validate", "calibrate", "compare", "launch", "workbook", "report")},
    **{f"accuracy {name}": "accuracy" for name in ("kernels", "memory", "serving")},
}
"""The words of each command, and the module that holds it; it is imported when it is asked for."""


@cache
def find(words: str) -> Command:
    """The command of these words."""
    found: Command = getattr(import_module(f"rooflinekit.cli.{COMMANDS[words]}"), words.rsplit(maxsplit=1)[-1]).command
    return found


def main(words: Sequence[str] | None = None) -> None:
    """Answer a command line, and end the process with its exit code."""
    words = sys.argv[1:] if words is None else list(words)
    name = " ".join(words[: 2 if words[:1] == ["accuracy"] else 1])
    if name in COMMANDS and "_ROOFLINEKIT_COMPLETE" not in os.environ:
        rest = words[name.count(" ") + 1 :]
        done, code = guarded(lambda: _answered(find(name), rest))
        if done is not None or code:
            sys.exit(code)
    from rooflinekit.cli.app import app  # half as long again to start: it explains options, slips and completions

    app(words)


def _answered(command: Command, words: Sequence[str]) -> int | None:
    texts = command.words(words)
    return None if texts is None else command.call(texts)
