"""The command line: parse, call, render."""

from __future__ import annotations

import os
import sys

__all__ = ["main"]


def main() -> None:
    """Entry point of `rooflinekit`. SIGTERM ends a command as SIGINT does: what is finished is kept and named."""
    try:
        import gc  # inside, as all that follows: an interrupt at any moment is told in one line
        import signal

        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            from rooflinekit.cli.run import main as run

            run()
        finally:
            signal.signal(signal.SIGTERM, before)
            gc.freeze()  # the process ends, which frees all at once: it looks for no cycles
    except BaseException as error:
        from rooflinekit.cli.interrupts import interrupted

        if not interrupted(error):
            raise
        os.write(2, b"rooflinekit: interrupted\n")
        sys.exit(130)
