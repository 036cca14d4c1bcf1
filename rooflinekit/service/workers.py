"""Processes that answer what takes longer than a moment: few at a time, each question with a limit of time.

A worker keeps what it has read, so that the next question of a model is fast. One that runs out of time is killed, and
another takes its place.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import sys
import threading
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

from rooflinekit.model.types.errors import RooflinekitError
from rooflinekit.service.tools import TOOLS

_PLACES_EACH = 8  # callers that may wait for each worker
_MEMORY = 4 * 2**30  # bytes of address space of a worker
_CONTEXT = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


class TimeUpError(RooflinekitError):
    """A question took longer than it may."""


class BusyError(RooflinekitError):
    """Too many questions are waiting."""


class _Worker:
    """One process, and the pipe to it."""

    def __init__(self) -> None:
        context: Any = multiprocessing.get_context(_CONTEXT)
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_work, args=(other,), daemon=True)
        self.process.start()
        other.close()

    def end(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


class Workers:
    """Up to `most` processes, started when they are needed; a question takes up to `seconds`, waiting included."""

    def __init__(self, most: int = 2, seconds: float = 10.0) -> None:
        self.seconds = seconds
        self._idle: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(most):
            self._idle.put(None)  # a place whose process is not started
        self._callers = threading.BoundedSemaphore(most * (1 + _PLACES_EACH))

    def ask(self, name: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        """What the tool answers to checked arguments.

        Raises RooflinekitError as the tool does, BusyError, and TimeUpError.
        """
        if not self._callers.acquire(blocking=False):
            raise BusyError("too many questions are waiting; ask again in a moment")
        try:
            return self._asked(name, asked)
        finally:
            self._callers.release()

    def _asked(self, name: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        try:
            worker = self._idle.get(timeout=self.seconds)
        except queue.Empty:
            raise BusyError(f"no worker was free for {self.seconds:g} s; ask again in a moment") from None
        kept: _Worker | None = None
        try:
            kept = worker or _Worker()
            kept.pipe.send((name, dict(asked)))
            if not kept.pipe.poll(self.seconds):
                raise TimeUpError(f"the answer takes longer than {self.seconds:g} s; ask for less")
            found, message = kept.pipe.recv()
        except (TimeUpError, EOFError, OSError) as error:
            if kept is not None:
                kept.end()
                kept = None
            if isinstance(error, TimeUpError):
                raise
            raise TimeUpError("the answer takes more memory than a question may; ask for less") from None
        finally:
            self._idle.put(kept)
        if message:
            raise RooflinekitError(message)
        return dict(found)

    def close(self) -> None:
        """End the processes that wait."""
        while not self._idle.empty():
            if (worker := self._idle.get()) is not None:
                worker.end()


def line_of(error: Exception) -> str:
    """What went wrong in one line; of a bug, the traceback goes to the standard error."""
    message = " ".join(str(error).split())
    if isinstance(error, RooflinekitError):
        return message
    sys.excepthook(type(error), error, error.__traceback__)
    return f"internal error, please report: {type(error).__name__}: {message[:200]}"


def _work(pipe: Connection) -> None:
    """Answer one question after the other until the other end goes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.name == "posix":
        import resource  # noqa: PLC0415 - not on Windows

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    while True:
        try:
            name, asked = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((TOOLS[name].answer(asked), ""))
        except Exception as error:
            pipe.send(({}, line_of(error)))
