"""Other processes of tests: how long to wait for them, whether they work, and that they can be interrupted."""

import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

PATIENCE = 600.0
"""Seconds: long enough for a machine that is busy with other work."""


def interruptible() -> None:
    """For `preexec_fn`: Ctrl-C reaches the process, also where the tests run in the background of a shell."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def worked(pid: int) -> float:
    """The seconds of CPU that a process has used; none where it has ended."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def until_busy(processes: Callable[[], Iterable[int]], seconds: float, longest: float = 3.0) -> None:
    """Wait until one of some processes has used so many seconds of CPU, or for the longest time where none does."""
    ends = time.monotonic() + longest
    while time.monotonic() < ends and all(worked(pid) < seconds for pid in processes()):
        time.sleep(0.02)
