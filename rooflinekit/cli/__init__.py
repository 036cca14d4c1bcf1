"""The command line: parse, call, render."""

from __future__ import annotations

import os
import sys

__all__ = ["main"]


def main() -> None:
    """Entry point of `rooflinekit`. SIGTERM and SIGHUP end a command as SIGINT does: what is finished is kept."""
    try:
        import gc  # inside, as all that follows: an interrupt at any moment is told in one line
        import signal

        from rooflinekit.cli.interrupts import as_ctrl_c

        ends = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
        before = {each: signal.signal(each, as_ctrl_c) for each in ends if signal.getsignal(each) != signal.SIG_IGN}
        try:
            from rooflinekit.cli.run import main as run

            run()
        finally:
            for each, usual in before.items():
                signal.signal(each, usual)
            gc.freeze()  # the process ends, which frees all at once: it looks for no cycles
    except BaseException as error:
        from rooflinekit.cli.interrupts import interrupted

        if not interrupted(error):
            raise
        os.write(2, b"rooflinekit: interrupted\n")
        sys.exit(130)
