"""Ctrl-C during a run: it stops between two events, where every request is in one place."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["asking_to_stop"]


@contextmanager
def asking_to_stop(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on the first Ctrl-C; a second one raises KeyboardInterrupt wherever the program is.

    Only where Ctrl-C would have raised: not in another thread, and not where a program has its own handler.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return

    def asked(number: int, frame: Any) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        stop()

    signal.signal(signal.SIGINT, asked)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
