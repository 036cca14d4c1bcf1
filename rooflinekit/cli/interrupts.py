"""Interrupts, whatever became of them."""

from __future__ import annotations


def interrupted(error: BaseException | None) -> bool:
    """Whether it is an interrupt, or was one: within a class that is being made, Python 3.11 raises RuntimeError."""
    while error is not None and not isinstance(error, (KeyboardInterrupt, SystemExit)):
        error = error.__cause__ or error.__context__
    return isinstance(error, KeyboardInterrupt)
