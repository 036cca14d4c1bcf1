"""Executors of pieces of work: here, in processes on this machine, or on a dask cluster. Answers come in order."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from multiprocessing import get_context
from typing import Any, TypeVar

from rooflinekit.model.types.errors import InputError, MissingExtraError, RooflinekitError

_AHEAD = 2  # pieces under way for each worker: one is answered, one waits
_DEATHS = 3  # workers that may die one after the other without an answer in between
_ADDRESS = re.compile(r"[a-z]+://\S+|\S+:\d+")  # of a scheduler: dask tries anything else for long
_ANSWERS = 1.5  # s: for a machine to answer at all, and again for its greeting
_FRAMES = 1000  # that a scheduler's greeting has at most; it speaks first, and begins with their number
_PATIENCE = "10s"  # for a scheduler to answer
_IDLE = 60.0  # s: for a cluster to get a worker

Piece = TypeVar("Piece")
Answer = TypeVar("Answer")


def execute(
    answer: Callable[[Piece], Answer], pieces: Iterable[Piece], workers: int = 1, scheduler: str | None = None
) -> Iterator[Answer]:
    """Answer the pieces in their order, with at most a few under way, so that memory does not grow with their number.

    Args:
        answer: what is done with each piece; other processes must be able to import it.
        pieces: made as they are needed.
        workers: processes on this machine; 1 answers in this one.
        scheduler: address of a dask scheduler, such as tcp://10.0.0.1:8786; its workers need rooflinekit.

    Raises:
        InputError: a scheduler that does not answer, a table that cannot be read; MissingExtraError without dask;
            RooflinekitError where workers die again and again.
    """
    if scheduler is not None:
        return _over_dask(answer, pieces, scheduler)
    return map(answer, pieces) if workers == 1 else _over_processes(answer, pieces, workers)


def processors() -> int:
    """Cores of this machine that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _over_processes(answer: Callable[[Piece], Answer], pieces: Iterable[Piece], workers: int) -> Iterator[Answer]:
    """A worker that dies takes its pool with it: the pool is made again, and what was under way is done again."""
    rest, waiting, pool, deaths, done = iter(pieces), deque[tuple[Piece, Future[Answer]]](), _processes(workers), 0, 0

    def submit(piece: Piece) -> Future[Answer]:
        return pool.submit(answer, piece)

    try:
        while True:
            try:
                _refill(waiting, rest, _AHEAD * workers, submit)
                if not waiting:
                    return
                found = waiting[0][1].result()
            except BrokenProcessPool:
                deaths += 1
                if deaths > _DEATHS:
                    raise RooflinekitError(
                        f"worker processes died {_DEATHS + 1} times in a row on piece {done + 1}: too little memory?"
                    ) from None
                pool = _processes(workers)
                waiting = deque((piece, each if _ended(each) else submit(piece)) for piece, each in waiting)
                continue
            waiting.popleft()
            deaths, done = 0, done + 1
            yield found
    finally:
        working = list(pool._processes.values()) if waiting else []
        pool.shutdown(wait=False, cancel_futures=True)
        for each in working:  # what they do is not waited for, and Python would wait for it at its end
            each.terminate()


def _processes(workers: int) -> ProcessPoolExecutor:
    """Workers that leave Ctrl-C to their parent, started afresh so that no lock or thread is inherited."""
    ignore = (signal.SIGINT, signal.SIG_IGN)
    return ProcessPoolExecutor(workers, get_context("spawn"), initializer=signal.signal, initargs=ignore)


def _ended(future: Future[Any]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


def _refill(waiting: deque[Any], rest: Iterator[Piece], most: int, submit: Callable[[Piece], Any]) -> None:
    while len(waiting) < most and (piece := next(rest, None)) is not None:
        waiting.append((piece, submit(piece)))


def _over_dask(answer: Callable[[Piece], Answer], pieces: Iterable[Piece], address: str) -> Iterator[Answer]:
    """Dask runs the pieces of a lost worker again by itself."""
    client = _client(address)
    from distributed import KilledWorker  # noqa: PLC0415 - optional

    rest, waiting, done = iter(pieces), deque[tuple[Piece, Any]](), 0
    try:
        while True:
            with _connected(address):
                threads = sum(client.nthreads().values())
            _refill(waiting, rest, _AHEAD * max(threads, 2), lambda piece: client.submit(answer, piece, pure=False))
            if not waiting:
                return
            future = waiting[0][1]
            with _connected(address, future):
                found = _gathered(client, future, address)
            waiting.popleft()
            done += 1
            yield found
    except KilledWorker:
        raise RooflinekitError(f"dask workers died again and again on piece {done + 1}: too little memory?") from None
    finally:
        with suppress(OSError):
            client.close()


@contextmanager
def _connected(address: str, future: Any = None) -> Iterator[None]:
    """Say of a lost connection whose it is; what a piece itself raises is left alone."""
    try:
        yield
    except (OSError, CancelledError):
        if future is not None and future.status == "error":
            raise
        raise RooflinekitError(f"the dask scheduler at {address} has gone") from None


def _gathered(client: Any, future: Any, address: str) -> Any:
    """The answer of a piece, as long as there are workers."""
    while True:
        try:
            return future.result(timeout=_IDLE)
        except TimeoutError:
            if future.done():  # of the piece itself
                raise
        if not client.nthreads():
            raise RooflinekitError(f"no dask worker at {address} for {_IDLE:.0f} s; start one, and run this again")


def _client(address: str) -> Any:
    if find_spec("distributed") is None:
        raise MissingExtraError("a dask scheduler", "cluster")
    if not _ADDRESS.fullmatch(address):
        raise InputError(f"--scheduler {address!r} is no address; write it like tcp://10.0.0.1:8786")
    scheme, _, place = address.rpartition("://")
    try:
        if scheme in ("", "tcp", "tls"):  # dask itself goes on asking for longer than people wait
            host, _, port = place.rpartition(":")
            with socket.create_connection((host.strip("[]"), int(port)), _ANSWERS) as line:
                if scheme != "tls" and not 0 < int.from_bytes(line.recv(8), "little") <= _FRAMES:
                    raise ValueError("what answers there is none")
        from distributed import Client  # noqa: PLC0415 - optional

        return Client(address, timeout=_PATIENCE, set_as_default=False)  # type: ignore[no-untyped-call,unused-ignore]
    except (OSError, ValueError, TimeoutError, MemoryError) as error:  # the last of what answers, and is no scheduler
        raise InputError(f"no dask scheduler answers at {address}: {str(error).splitlines()[0]}") from None
