"""Connections of HTTP: how many there are, how long a request may take to come, how long an answer may lie unread."""

from __future__ import annotations

import asyncio
import json
import os

import h11
from typing_extensions import override
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST = 1024
"""Connections at once, where there are as many descriptors."""
_TAKEN = 128  # connections that are taken at once
_OWN = 16  # descriptors of the server itself
_OF_WORKER = 4  # and of each of its workers
_HEADERS = 10.0  # seconds that the head of a request may take to come

_REASONS = {400: "Bad Request", 408: "Request Timeout", 429: "Too Many Requests"}


class ConnectionLimits:
    """Numbers of connections that the descriptors of this process allow: in all, for one client, and waiting."""

    def __init__(self, workers: int, most: int = MOST, share: int = 2) -> None:
        """A client has half of `most` of them, so that another one is served whatever it does; or another `share`."""
        spare = max(_descriptors() - _OWN - _OF_WORKER * (workers + 1), 16)
        self.taken = min(spare // 8, _TAKEN)
        self.most = min(spare - 3 * self.taken, most)  # those that were taken to be refused have descriptors too
        self.most_each = max(self.most // share, 1)


def _descriptors() -> int:
    if os.name != "posix":
        return 512
    import resource  # noqa: PLC0415 - not on Windows

    return min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 4 * MOST)


def more_descriptors() -> None:
    """Let this process have as many as it may, for a server whose one client opens hundreds of connections."""
    if os.name == "posix":
        import resource  # noqa: PLC0415 - as above

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = 4 * MOST if hard == resource.RLIM_INFINITY else min(hard, 4 * MOST)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


class Connection(H11Protocol):
    """One connection, with a limit of time for everything that a client has to do."""

    bounds: ConnectionLimits
    seconds: float
    """Seconds in which the body of a request may come."""
    _clock: asyncio.TimerHandle | None = None
    _awaited = ""

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        alike = sum(isinstance(each, Connection) and each._host == self._host for each in self.connections)
        if len(self.connections) > self.bounds.most or alike > self.bounds.most_each:
            self._refuse(429, "too many connections; close some, or ask again in a moment")
        else:
            self._await("head")

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._await("")
        super().connection_lost(exc)

    @override
    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    @override
    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing():
            self._look()
        elif self.transport.get_write_buffer_size():  # it ends when the client has read all, or not in time
            self.loop.call_later(self.timeout_keep_alive, self.transport.abort)

    @override
    def timeout_keep_alive_handler(self) -> None:
        self.transport.abort()  # an answer that nobody reads would keep it open

    @override
    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "this is no request of HTTP/1.1")

    @property
    def _host(self) -> str:
        return self.client[0] if self.client else ""

    def _look(self) -> None:
        """Wait for what is missing of a request that has begun."""
        state = self.conn.their_state
        begun = state is h11.IDLE and bool(self.conn.trailing_data[0])
        self._await("head" if begun else "body" if state is h11.SEND_BODY else "")

    def _await(self, part: str) -> None:
        """Give the client its time for a part of a request; none for no part. The time is not given twice."""
        if part == self._awaited:
            return
        if self._clock is not None:
            self._clock.cancel()
        self._awaited, self._clock = part, None
        if part:
            self._clock = self.loop.call_later(_HEADERS if part == "head" else self.seconds, self._too_late)

    def _too_late(self) -> None:
        limit = _HEADERS if self._awaited == "head" else self.seconds
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._refuse(408, f"the request takes more than {limit:g} s to come")
        else:
            self.transport.abort()

    def _refuse(self, status: int, message: str) -> None:
        """Answer in one line, and end."""
        body = json.dumps({"error": message}).encode()
        head = f"HTTP/1.1 {status} {_REASONS[status]}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        self.transport.write(f"{head}\r\nconnection: close\r\n\r\n".encode() + body)
        self.transport.close()
