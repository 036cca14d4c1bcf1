"""The log of the service: a few lines at a time, whatever callers do."""

from __future__ import annotations

import logging
import time

from typing_extensions import override

log = logging.getLogger("rooflinekit.ops")
_LINES, _WINDOW = 20, 10.0  # records that are written in so many seconds


class Sparing(logging.Filter):
    """The first records of each window; the next window says how many were left out."""

    def __init__(self) -> None:
        super().__init__()
        self._begun, self._count = -_WINDOW, 0

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        now = time.monotonic()
        if now - self._begun >= _WINDOW:
            if (more := self._count - _LINES) > 0:
                record.msg, record.args = f"{record.getMessage()} ({more:,} records before it are left out)", ()
            self._begun, self._count = now, 0
        self._count += 1
        return self._count <= _LINES


def log_sparingly() -> None:
    """Write warnings and errors of this process to its standard error, a few at a time."""
    written = logging.StreamHandler()
    written.addFilter(Sparing())
    logging.basicConfig(level=logging.WARNING, handlers=[written], format="%(levelname)s: %(message)s")
