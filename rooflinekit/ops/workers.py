"""Processes that answer every question: few at a time, each with a limit of time, of CPU time and of memory.

A worker reads questions from its standard input and writes answers to its standard output: a line that says how many
bytes follow, and these. It keeps what it has read, so that the next question of a model is fast. One that runs out of
time is killed and replaced; one whose server is gone ends, whatever it does.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import sys
import threading
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from math import ceil

from rooflinekit.model.types.errors import RooflinekitError
from rooflinekit.ops.log import log, log_sparingly
from rooflinekit.ops.openapi import described
from rooflinekit.ops.pages import made_page
from rooflinekit.ops.tools import TOOLS
from rooflinekit.report.markup import strict_json

_PLACES_EACH = 8  # callers that may wait for each worker
_PLACES_QUICK = 256  # callers that may wait with a quick question
_QUICK = 5.0  # seconds of a quick question: it takes milliseconds, unless it is meant to harm
_MEMORY = 4 * 2**30  # bytes of address space of a worker
_NICE = 5  # so that the server answers while its workers work
_COMMAND = (sys.executable, "-c", "from rooflinekit.ops.workers import work; work()")
_ONE_CORE = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_DOCUMENTS: Mapping[str, Callable[[], bytes]] = {"page": made_page, "openapi": described}


class TimeUpError(RooflinekitError):
    """A question took longer than it may."""


class BusyError(RooflinekitError):
    """Too many questions are waiting."""


class Workers:
    """Up to `most` processes, and one more for quick questions alone; they start when they are needed.

    A question takes up to `seconds`, waiting apart.
    """

    def __init__(self, most: int = 2, seconds: float = 30.0) -> None:
        self.seconds = seconds
        self._places, self._long = asyncio.Semaphore(most + 1), asyncio.Semaphore(most)
        self._callers, self._room = {True: 0, False: 0}, {True: _PLACES_QUICK, False: most * (1 + _PLACES_EACH)}
        self._idle: list[Process] = []
        self._all: set[Process] = set()
        self._killed: set[Process] = set()
        self._ended = False

    async def ask(self, name: str, body: bytes = b"{}", quick: bool = False, seconds: float | None = None) -> bytes:
        """The JSON with which a tool answers arguments in JSON, or a document by its name.

        Raises RooflinekitError as the tool does, BusyError, and TimeUpError.
        """
        if self._ended:
            raise BusyError("the service ends")
        seconds = min(self.seconds, _QUICK) if quick else self.seconds if seconds is None else seconds
        if self._callers[quick] >= self._room[quick]:
            raise BusyError("too many questions are waiting; ask again in a moment")
        self._callers[quick] += 1
        try:
            async with AsyncExitStack() as places:
                try:
                    async with asyncio.timeout(self.seconds):
                        for each in (() if quick else (self._long,)) + (self._places,):
                            await places.enter_async_context(each)
                except TimeoutError:
                    raise BusyError(f"no worker was free for {self.seconds:g} s; ask again in a moment") from None
                return await self._answer(name, body, seconds)
        except asyncio.CancelledError:  # by a server that waits no longer, or for a caller who has gone
            raise BusyError("the service ends") from None
        finally:
            self._callers[quick] -= 1

    async def _answer(self, name: str, body: bytes, seconds: float) -> bytes:
        """One question to a worker, which is killed when time is up."""
        if self._ended:  # while it waited for a place
            raise BusyError("the service ends")
        head = json.dumps({"name": name, "seconds": seconds, "bytes": len(body)}).encode()
        worker, found = None, b""
        try:
            async with asyncio.timeout(seconds):
                worker = await self._worker()
                assert worker.stdin and worker.stdout
                worker.stdin.write(head + b"\n" + body)
                await worker.stdin.drain()
                kind, _, length = (await worker.stdout.readline()).partition(b" ")
                found = await worker.stdout.readexactly(int(length or 0))
        except TimeoutError:
            raise TimeUpError(f"the answer takes more than {seconds:g} s; ask for less") from None
        except (OSError, asyncio.IncompleteReadError):
            kind = b""
        finally:
            if worker is not None and found:
                self._idle.append(worker)
            elif worker is not None:
                self._kill(worker)
        if kind == b"answer":
            return found
        if kind == b"refused":
            raise RooflinekitError(found.decode())
        if self._ended:
            raise BusyError("the service ends")
        out_of_time = worker is not None and await worker.wait() == -getattr(signal, "SIGXCPU", signal.SIGTERM)
        much = f"than {seconds:g} s" if out_of_time else "memory than a question may have"
        raise TimeUpError(f"the answer takes more {much}; ask for less")

    async def _worker(self) -> Process:
        while self._idle:
            if (worker := self._idle.pop()).returncode is None:
                return worker
        self._all, self._killed = (
            {each for each in some if each.returncode is None} for some in (self._all, self._killed)
        )
        worker = await asyncio.create_subprocess_exec(
            *_COMMAND, stdin=PIPE, stdout=PIPE, env={**os.environ, **_ONE_CORE}
        )
        self._all.add(worker)
        return worker

    def _kill(self, worker: Process) -> None:
        """Kill a worker once: a second time could meet another process of its number."""
        if worker in self._all:
            self._all.discard(worker)
            self._killed.add(worker)
            with suppress(ProcessLookupError):
                worker.kill()

    def end(self) -> None:
        """End all processes, those that work too; what is asked is refused from now on."""
        self._ended = True
        for worker in [*self._all]:
            self._kill(worker)

    async def close(self) -> None:
        """Close the workers, and wait until they are gone."""
        self.end()
        for worker in self._killed:
            await worker.wait()


def line_of(error: Exception) -> str:
    """Error in one line; of a bug, the traceback goes to the log."""
    message = " ".join(str(error).split())
    if isinstance(error, RooflinekitError):
        return message
    log.error("a bug", exc_info=error)
    return f"internal error, please report: {type(error).__name__}: {message[:200]}"


def answer(name: str, body: bytes) -> bytes:
    """The answer of a tool to arguments in JSON, or a document.

    Raises RooflinekitError (one of its kinds) as the tool does.
    """
    if name in _DOCUMENTS:
        return _DOCUMENTS[name]()
    tool = TOOLS[name]
    return strict_json(tool.answer(tool.checked(json.loads(body)))).encode()


def work() -> None:
    """Answer one question after the other until the other end goes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server hears Ctrl-C, and ends its workers
    log_sparingly()
    if hasattr(os, "nice"):
        os.nice(_NICE)
        threading.Thread(target=_end_with_server, daemon=True).start()
    _limit("RLIMIT_AS", _MEMORY)
    _limit("RLIMIT_CORE", 0)
    questions, answers, sys.stdout = sys.stdin.buffer, sys.stdout.buffer, sys.stderr
    for line in questions:
        head = json.loads(line)
        body = questions.read(head["bytes"])
        _limit("RLIMIT_CPU", ceil(sum(os.times()[:2]) + head["seconds"]) + 1)
        kind, found = "answer", b""
        try:
            found = answer(head["name"], body)
        except MemoryError:
            return  # what it holds is lost with it
        except Exception as error:
            kind, found = "refused", line_of(error).encode("utf-8", "replace")
        answers.write(f"{kind} {len(found)}\n".encode() + found)
        answers.flush()


def _end_with_server() -> None:
    """End this process when the other end of its standard input is gone, also in the midst of a question."""
    watched = select.poll()
    watched.register(sys.stdin.fileno(), 0)  # no event but the end
    watched.poll()
    os._exit(0)


def _limit(name: str, most: int) -> None:
    if os.name == "posix":
        import resource  # noqa: PLC0415 - not on Windows

        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
