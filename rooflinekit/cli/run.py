"""Answer a line: at once where it is plain, by way of typer where it needs explaining."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence

from rooflinekit.cli.command import COMMANDS, find
from rooflinekit.cli.failures import guarded


def main(words: Sequence[str] | None = None) -> None:
    """Answer a command line, and end the process with its exit code."""
    gc.set_threshold(100_000, 20, 20)  # modules and specs stay: looking for rubbish among them takes a tenth of a start
    words = sys.argv[1:] if words is None else list(words)
    name = " ".join(words[: 2 if words[:1] == ["accuracy"] else 1])
    if name in COMMANDS and "_ROOFLINEKIT_COMPLETE" not in os.environ:
        rest = words[name.count(" ") + 1 :]
        done, code = guarded(lambda: find(name).answer(rest))
        if done is not None or code:
            sys.exit(code)
    from rooflinekit.cli.app import app  # half as long again to start: it explains options, slips and completions

    app(words)
