"""Processes that answer what takes longer than a moment: few at a time, each question with a limit of time.

A worker reads questions as JSON lines from its standard input and writes answers to its standard output. It keeps what
it has read, so that the next question of a model is fast. One that runs out of time is killed and replaced.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from rooflinekit.model.types.errors import RooflinekitError
from rooflinekit.report.markup import finite
from rooflinekit.service.tools import TOOLS

_PLACES_EACH = 8  # callers that may wait for each worker
_MEMORY = 4 * 2**30  # bytes of address space of a worker
_COMMAND = (sys.executable, "-c", "from rooflinekit.service.workers import work; work()")


class TimeUpError(RooflinekitError):
    """A question took longer than it may."""


class BusyError(RooflinekitError):
    """Too many questions are waiting."""


class Workers:
    """Up to `most` processes, started when they are needed; a question takes up to `seconds`, waiting apart."""

    def __init__(self, most: int = 2, seconds: float = 30.0) -> None:
        self.seconds = seconds
        self._idle: queue.LifoQueue[subprocess.Popen[bytes] | None] = queue.LifoQueue()
        for _ in range(most):
            self._idle.put(None)  # a place whose process is not started
        self._callers = threading.BoundedSemaphore(most * (1 + _PLACES_EACH))

    def ask(self, name: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        """What the tool answers to checked arguments; what is no finite number in it is None.

        Raises RooflinekitError as the tool does, BusyError, and TimeUpError.
        """
        if not self._callers.acquire(blocking=False):
            raise BusyError("too many questions are waiting; ask again in a moment")
        try:
            worker = self._idle.get(timeout=self.seconds)
        except queue.Empty:
            raise BusyError(f"no worker was free for {self.seconds:g} s; ask again in a moment") from None
        else:
            if worker is not None and worker.poll() is not None:
                _end(worker)
                worker = None
            if worker is None:
                worker = subprocess.Popen(_COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            try:
                return self._told(worker, json.dumps({"tool": name, "asked": asked}).encode())
            finally:
                self._idle.put(worker)
        finally:
            self._callers.release()

    def _told(self, worker: subprocess.Popen[bytes], question: bytes) -> dict[str, Any]:
        """One question to one worker, which is killed when time is up."""
        assert worker.stdin and worker.stdout
        clock = threading.Timer(self.seconds, worker.kill)
        clock.start()
        try:
            worker.stdin.write(question + b"\n")
            worker.stdin.flush()
            line = worker.stdout.readline()
        except OSError:
            line = b""
        finally:
            in_time = clock.is_alive()
            clock.cancel()
        if not line.endswith(b"\n"):
            _end(worker)
            much = "memory than a question may have" if in_time else f"than {self.seconds:g} s"
            raise TimeUpError(f"the answer takes more {much}; ask for less")
        found, message = json.loads(line)
        if message:
            raise RooflinekitError(message)
        return dict(found)

    def close(self) -> None:
        """End the processes that wait."""
        while not self._idle.empty():
            if (worker := self._idle.get()) is not None:
                _end(worker)


def _end(worker: subprocess.Popen[bytes]) -> None:
    """Kill a worker, and leave nothing of it open."""
    worker.kill()
    worker.wait()
    for stream in (worker.stdin, worker.stdout):
        with suppress(OSError):  # a question that was not read
            if stream:
                stream.close()


def line_of(error: Exception) -> str:
    """What went wrong in one line; of a bug, the traceback goes to the standard error."""
    message = " ".join(str(error).split())
    if isinstance(error, RooflinekitError):
        return message
    sys.excepthook(type(error), error, error.__traceback__)
    return f"internal error, please report: {type(error).__name__}: {message[:200]}"


def work() -> None:
    """Answer one question after the other until the other end goes."""
    answers, sys.stdout = sys.stdout, sys.stderr
    if os.name == "posix":
        import resource  # noqa: PLC0415 - not on Windows

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    try:
        for line in sys.stdin:
            question = json.loads(line)
            try:
                found, message = finite(TOOLS[question["tool"]].answer(question["asked"])), ""
            except Exception as error:
                found, message = {}, line_of(error)
            answers.write(f"{json.dumps([found, message])}\n")
            answers.flush()
    except KeyboardInterrupt:
        return
