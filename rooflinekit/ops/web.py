"""The tools over HTTP: JSON in, JSON out, errors in one line. Workers answer; this process never computes."""

from __future__ import annotations

import asyncio
import gc
import hmac
import json
import os
import re
import signal
import socket
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from typing_extensions import override

from rooflinekit.model.types.errors import InputError, RooflinekitError, needing
from rooflinekit.ops.log import log_sparingly
from rooflinekit.ops.tools import TOOLS, Tool
from rooflinekit.ops.workers import BusyError, TimeUpError, Workers
from rooflinekit.report.markup import strict_json
from rooflinekit.simulation.execute import processors
from rooflinekit.specs.files import reason
from rooflinekit.version import __version__

with needing("serving over HTTP", "serve"):
    import anyio
    import uvicorn
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import Response
    from starlette.routing import Route
    from starlette.types import ASGIApp, Receive, Scope, Send

    from rooflinekit.ops.connections import Connection, ConnectionLimits
    from rooflinekit.ops.pages import MODEL, Pages

TOKEN = "ROOFLINEKIT_TOKEN"
"""Variable of the environment: what callers have to show."""
LOCAL = ("localhost", "127.0.0.1", "::1")
_LARGEST = 256 * 1024  # bytes of a question
_READ = 16 * 2**20  # bytes of a longer one that are read, so that its sender is there for the refusal
_KEPT = 64 * 2**20  # bytes of answers that are remembered
_KEPT_ALIVE = 75  # seconds that a connection may be idle, which is longer than clients and proxies reuse one
_QUEUE = 512  # callers that wait to be connected
_GRACE = 1  # seconds that answers under way have when the service ends
_PAGE = 300.0  # seconds that the page on one model may take to be made
_STATUS: dict[type, int] = {BusyError: 429, TimeUpError: 408}
_READING = "GET, HEAD"


class Remembered:
    """Answers by their questions, the latest ones, of so many bytes together."""

    def __init__(self, most: int = _KEPT) -> None:
        self._most, self._bytes = most, 0
        self._kept: OrderedDict[tuple[str, bytes], bytes] = OrderedDict()

    def get(self, question: tuple[str, bytes]) -> bytes | None:
        """The answer to a question, if it was given lately."""
        if (found := self._kept.get(question)) is not None:
            self._kept.move_to_end(question)
        return found

    def put(self, question: tuple[str, bytes], answer: bytes) -> None:
        """Remember an answer, in place of the oldest ones."""
        if (before := self._kept.pop(question, None)) is not None:
            self._bytes -= len(before) + len(question[1])
        self._kept[question] = answer
        self._bytes += len(answer) + len(question[1])
        while self._bytes > self._most:
            (_, body), old = self._kept.popitem(last=False)
            self._bytes -= len(old) + len(body)


def app(
    local: bool = True,
    workers: Workers | None = None,
    site: Path | None = None,
    ready: Callable[[], None] = lambda: None,
) -> ASGIApp:
    """The service as an ASGI application; `local` refuses requests that name another host.

    The token is read from the environment; without one, nobody is asked for it. `ready` is called when the first
    worker has answered.

    Raises InputError for a token that no header can hold, and for a site without a playground.
    """
    token, pages = read_token(), Pages(site)
    answering = Workers(processors()) if workers is None else workers
    known, made = Remembered(), dict[str, bytes]()
    paths = {
        f"/v1/{name}": partial(_answered, tool=tool, workers=answering, token=token, known=known)
        for name, tool in TOOLS.items()
    }

    async def document(name: str, seconds: float) -> bytes:
        if name not in made:
            made[name] = await answering.ask(name, seconds=seconds)
        return made[name]

    async def schema(request: Request) -> Response:
        return Response(await document("openapi", answering.seconds), media_type="application/json")

    async def health(request: Request) -> Response:
        return _json({"version": __version__})

    async def page(request: Request) -> Response:
        path = request.path_params["path"]
        if request.url.path in paths:
            raise HTTPException(405, headers={"Allow": "POST"})
        if not path and pages.files:
            return Response(status_code=307, headers={"location": "/playground/"})
        if not path:
            try:
                return Response(await document("page", _PAGE), media_type="text/html")
            except BusyError as error:
                return _error(429, str(error))
            except RooflinekitError:
                return _error(503, "the page could not be made; the server's log says why")
        if (file := pages.file(path)) is None:
            raise HTTPException(404)
        try:
            content = await anyio.Path(file[0]).read_bytes()
        except OSError:  # it was there at the start
            raise HTTPException(404) from None
        return Response(content, media_type=file[1], headers={"x-content-type-options": "nosniff"})

    async def refused(request: Request, error: HTTPException) -> Response:
        """An unknown path, or another method."""
        path, status = request.url.path, error.status_code
        served = path in (*paths, "/", "/healthz", "/openapi.json") or pages.file(path[1:]) is not None
        status = 404 if status == 405 and not served else status
        found = _error(status, f"{request.method[:20]} {path[:80]} is not served; /openapi.json says what is")
        if status == 405:
            found.headers["allow"] = (error.headers or {}).get("Allow", _READING)
        return found

    async def failed(request: Request, error: RooflinekitError) -> Response:
        return _error(_STATUS.get(type(error), 422), str(error))

    @asynccontextmanager
    async def served(made: Starlette) -> AsyncIterator[None]:
        await answering.ask("estimate", json.dumps({"model": MODEL}).encode(), seconds=_PAGE)  # the first is not slow
        try:
            with settled(ready):
                yield
        finally:
            await answering.close()

    routes = [Route(path, handler, methods=["POST"]) for path, handler in paths.items()]
    routes += [Route("/openapi.json", schema), Route("/healthz", health), Route("/{path:path}", page)]
    handlers: dict[Any, Callable[[Request, Any], Awaitable[Response]]] = {
        HTTPException: refused,
        RooflinekitError: failed,
    }
    served_app = Starlette(routes=routes, exception_handlers=handlers, lifespan=served)
    return here_alone(served_app) if local else served_app


@contextmanager
def settled(ready: Callable[[], None]) -> Iterator[None]:
    """Say that a server is ready, and do not look again for garbage in what stays while it answers."""
    gc.collect()
    gc.freeze()
    ready()
    try:
        yield
    finally:
        gc.unfreeze()


def here_alone(served: ASGIApp) -> ASGIApp:
    """The application for requests that name this host alone: a page of elsewhere that a browser shows asks nothing."""

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            host = Request(scope).headers.get("host", "")
            try:
                name = urlsplit(f"//{host}").hostname
            except ValueError:
                name = None
            if name not in LOCAL:
                await _error(400, f"the request names the host {host[:80]!r}; this service is localhost")(
                    scope, receive, send
                )
                return
        await served(scope, receive, send)

    return checked


async def _answered(request: Request, tool: Tool, workers: Workers, token: str, known: Remembered) -> Response:
    if not shows(request, token):
        return _error(401, "give the token of this service as 'Authorization: Bearer TOKEN'")
    if not is_json(request):
        return _error(415, "send JSON, with Content-Type: application/json")
    try:
        body = await _body(request)
    except ClientDisconnect:
        return _error(400, "the question ends early")
    if len(body) > _LARGEST:
        return _error(413, f"a question has at most {_LARGEST // 1024} KiB")
    if (found := known.get((tool.name, body))) is None:
        try:
            asked = json.loads(body or b"{}")
        except (ValueError, RecursionError) as error:
            return _error(400, f"the body is no JSON: {reason(error)}")
        if not isinstance(asked, dict):
            return _error(400, "the body is no JSON object")
        quick = tool.quickly(asked)
        found = await workers.ask(tool.name, body or b"{}", quick)
        if quick:
            known.put((tool.name, body), found)
    return Response(found, media_type="application/json")


def shows(request: Request, token: str) -> bool:
    """True if a request shows the token, or nobody is asked for one."""
    scheme, _, shown = request.headers.get("authorization", "").partition(" ")  # whose case does not count: RFC 9110
    return not token or (scheme.lower() == "bearer" and hmac.compare_digest(shown.strip().encode(), token.encode()))


def is_json(request: Request) -> bool:
    """True if a request says that its body is JSON."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"


async def _body(request: Request) -> bytes:
    """Body of a request, a little more than the largest question at most."""
    body, read = bytearray(), 0
    async for chunk in request.stream():
        read += len(chunk)
        if len(body) <= _LARGEST:
            body += chunk
        if read > _READ:
            break
    return bytes(body)


def _json(data: object, status: int = 200) -> Response:
    return Response(strict_json(data).encode(), status, media_type="application/json")


def _error(status: int, message: str) -> Response:
    answer = _json({"error": " ".join(message.split())[:2000]}, status)
    if status == 401:
        answer.headers["www-authenticate"] = "Bearer"
    return answer


def read_token() -> str:
    """The token of the environment, "" where there is none.

    Raises InputError for one that no header can hold as it is: it would never match.
    """
    token = os.environ.get(TOKEN, "")
    if token and not re.fullmatch(r"[!-~]+", token):
        raise InputError(f"{TOKEN} holds blanks or characters beyond ASCII, which would never match; choose another")
    return token


class _Listening(socket.socket):
    """A socket whose callers may wait in a queue however few of them are taken from it at once."""

    @override
    def listen(self, _taken: int = 0, /) -> None:
        super().listen(_QUEUE)


def listen(host: str, port: int) -> socket.socket:
    """A socket to which callers can connect.

    Raises InputError where another host than this one is bound without a token, for a token that no header can hold,
    and for an address that is taken or not of this machine.
    """
    if not read_token() and host not in LOCAL:
        raise InputError(f"--host {host} lets others in; set {TOKEN} in the environment, or bind localhost")
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise InputError(f"--host {host} --port {port}: {error.strerror or error}") from None
    listening = _Listening(fileno=listening.detach())
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else answers wait 40 ms for a delayed ACK
    return listening


class _Server(uvicorn.Server):
    def __init__(self, workers: Workers, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._workers = workers

    @override
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().call_later(_GRACE, self._workers.end)
        await super().shutdown(sockets)


def run(
    listening: socket.socket,
    workers: int,
    seconds: float,
    site: Path | None = None,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve until a signal comes: SIGINT, SIGTERM or SIGHUP.

    Args:
        listening: the socket.
        workers: processes that answer.
        seconds: the longest that an answer may take.
        site: the folder that `make site` wrote.
        ready: called when the service answers.

    Raises InputError as `app` does, RooflinekitError where the service does not start.
    """
    log_sparingly()
    answering = Workers(workers, seconds)
    served = app(listening.getsockname()[0] in LOCAL, answering, site, ready)
    server = _Server(answering, configured(served, Connection, ConnectionLimits(workers), seconds, 2 * _GRACE))
    hup = getattr(signal, "SIGHUP", None)
    before = hup and signal.getsignal(hup)
    if hup and before != signal.SIG_IGN:  # nohup
        signal.signal(hup, lambda *_: setattr(server, "should_exit", True))
    try:
        until_signal(server, listening, "service")
    finally:
        if hup:
            signal.signal(hup, before)


def configured(
    served: ASGIApp, connection: type[Connection], bounds: ConnectionLimits, seconds: float, grace: int
) -> uvicorn.Config:
    """A server of bounded connections whose requests come in so many seconds, and end in `grace` when it does."""
    return uvicorn.Config(
        served,
        http=type("Bounded", (connection,), {"bounds": bounds, "seconds": seconds}),
        ws="none",
        backlog=bounds.taken,
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEPT_ALIVE,
        timeout_graceful_shutdown=grace,
    )


def until_signal(server: uvicorn.Server, listening: socket.socket, name: str) -> None:
    """Serve until a signal comes; raises RooflinekitError where the server does not start."""
    try:
        server.run([listening])
    except KeyboardInterrupt:  # how uvicorn passes on that it was told to end
        return
    if not server.started:
        raise RooflinekitError(f"the {name} did not start; its log says why")
