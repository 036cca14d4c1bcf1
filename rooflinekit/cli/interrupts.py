"""Interrupts, whatever became of them."""

from __future__ import annotations

import signal
from types import FrameType


def as_ctrl_c(number: int, frame: FrameType | None) -> None:
    """Do what Ctrl-C does at the moment, or raise KeyboardInterrupt where it does nothing, as in the background."""
    usual = signal.getsignal(signal.SIGINT)
    if callable(usual):
        usual(number, frame)
    else:
        raise KeyboardInterrupt


def interrupted(error: BaseException | None) -> bool:
    """True if it is an interrupt, or was one: within a class that is being made, Python 3.11 raises RuntimeError."""
    while error is not None and not isinstance(error, (KeyboardInterrupt, SystemExit)):
        error = error.__cause__ or error.__context__
    return isinstance(error, KeyboardInterrupt)
