"""The tools over HTTP: JSON in, JSON out, errors in one line, OpenAPI from the table of options."""

from __future__ import annotations

import gc
import hmac
import http.client
import json
import os
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import lru_cache, partial
from multiprocessing import parent_process
from pathlib import Path
from typing import Any

from rooflinekit.model.types.errors import InputError, needing
from rooflinekit.report.markup import strict_json
from rooflinekit.service.tools import TOOLS, Tool
from rooflinekit.service.workers import BusyError, TimeUpError, Workers, line_of
from rooflinekit.specs.files import reason
from rooflinekit.version import __version__

with needing("serving over HTTP", "serve"):
    import anyio
    import uvicorn
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import Response
    from starlette.routing import Route
    from starlette.types import ASGIApp

    from rooflinekit.service.pages import MODEL, Pages

TOKEN, SECONDS, SITE = "ROOFLINEKIT_TOKEN", "ROOFLINEKIT_SERVE_SECONDS", "ROOFLINEKIT_SERVE_SITE"
"""Variables of the environment: what callers have to show, how long an answer may take, and the folder of the site."""
LOCAL = ("localhost", "127.0.0.1", "::1")
_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
_LARGEST = 256 * 1024  # bytes of a question
_READ = 16 * 2**20  # bytes of a longer one that are read, so that its sender is there for the refusal
_REMEMBERED = 4096  # questions whose answers are kept
_KEPT_ALIVE = 75  # seconds that a connection may be idle, which is longer than clients and proxies reuse one
_RARELY = (20_000, 20, 20)  # allocations and rounds between collections: a full one takes tens of milliseconds
_PATIENCE, _PAUSE = 60.0, 0.05  # seconds that a start may take, and between two looks at it
_STATUS: dict[type, int] = {BusyError: 429, TimeUpError: 408}


def app(local: bool = True) -> ASGIApp:
    """The service as an ASGI application; `local` refuses requests that name another host.

    The token is read from the environment; without one, nobody is asked for it.
    """
    token, site = os.environ.get(TOKEN, ""), os.environ.get(SITE)
    pages = Pages(Path(site) if site else None)
    workers = Workers(max(os.cpu_count() or 1, 1), float(os.environ.get(SECONDS, "30")))
    paths = {f"/v1/{name}": partial(_answered, tool=tool, workers=workers, token=token) for name, tool in TOOLS.items()}
    routes = [Route(path, handler, methods=["POST"]) for path, handler in paths.items()]
    described = json.dumps(openapi()).encode()

    async def schema(request: Request) -> Response:
        return Response(described, media_type="application/json")

    async def health(request: Request) -> Response:
        return _json({"version": __version__})

    async def found(request: Request) -> Response:
        path = request.path_params["path"]
        if request.method not in ("GET", "HEAD") or request.url.path in paths:
            raise HTTPException(405 if request.url.path in paths else 404)
        if not path and pages.files:
            return Response(status_code=307, headers={"location": "/playground/"})
        try:
            page = await pages.page(path)
        except InputError as error:
            return _error(503, str(error))
        if page is None:
            raise HTTPException(404)
        return Response(page[0], media_type=page[1], headers={"x-content-type-options": "nosniff"})

    @asynccontextmanager
    async def served(made: Starlette) -> AsyncIterator[None]:
        _end_with_parent()
        _quick("estimate", json.dumps({"model": MODEL}))  # so that the first caller does not wait for what is read once
        usual = gc.get_threshold()
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_RARELY)
        yield
        gc.set_threshold(*usual)
        gc.unfreeze()
        workers.close()

    routes += [
        Route("/openapi.json", schema),
        Route("/healthz", health),
        Route("/{path:path}", found, methods=_METHODS),
    ]
    refused: Callable[[Request, Exception], Awaitable[Response]] = _refused
    made = Starlette(routes=routes, exception_handlers={HTTPException: refused}, lifespan=served)
    return TrustedHostMiddleware(made, [*LOCAL, "[::1]"], www_redirect=False) if local else made


def _end_with_parent() -> None:
    """End this one of several processes when the one that started it was killed: it would keep the port."""
    if (parent := parent_process()) is not None:

        def follow() -> None:
            parent.join()
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=follow, daemon=True).start()


async def _refused(request: Request, error: Exception) -> Response:
    """An unknown path, or another method."""
    status = error.status_code if isinstance(error, HTTPException) else 400
    return _error(status, f"{request.method} {request.url.path[:80]} is not served; /openapi.json says what is")


async def _answered(request: Request, tool: Tool, workers: Workers, token: str) -> Response:
    """One question."""
    scheme, _, shown = request.headers.get("authorization", "").partition(" ")  # whose case does not count: RFC 9110
    if token and not (scheme.lower() == "bearer" and hmac.compare_digest(shown.strip().encode(), token.encode())):
        return _error(401, "give the token of this service as 'Authorization: Bearer TOKEN'")
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        return _error(415, "send JSON, with Content-Type: application/json")
    try:
        with anyio.fail_after(workers.seconds):
            body = await _body(request)
    except TimeoutError:
        return _error(408, f"the question takes more than {workers.seconds:g} s to come")
    except ClientDisconnect:
        return _error(400, "the question ends early")
    if len(body) > _LARGEST:
        return _error(413, f"a question has at most {_LARGEST // 1024} KiB")
    try:
        arguments = json.loads(body or b"{}")
    except (ValueError, RecursionError) as error:
        return _error(400, f"the body is no JSON: {reason(error)}")
    if not isinstance(arguments, dict):
        return _error(400, "the body is no JSON object")
    try:
        asked = tool.checked(arguments)
        if tool.quickly(asked):
            return Response(_quick(tool.name, json.dumps(asked, sort_keys=True)), media_type="application/json")
        return _json(await anyio.to_thread.run_sync(workers.ask, tool.name, asked))
    except Exception as error:
        return _error(_STATUS.get(type(error), 422), line_of(error))


async def _body(request: Request) -> bytes:
    """What was sent, a little more than the largest question at most."""
    body, read = bytearray(), 0
    async for chunk in request.stream():
        read += len(chunk)
        if len(body) <= _LARGEST:
            body += chunk
        if read > _READ:
            break
    return bytes(body)


@lru_cache(_REMEMBERED)
def _quick(name: str, asked: str) -> bytes:
    """The answer to checked arguments; raises what the tool does."""
    return strict_json(TOOLS[name].answer(json.loads(asked))).encode()


def _json(data: Any, status: int = 200) -> Response:
    return Response(strict_json(data).encode(), status, media_type="application/json")


def _error(status: int, message: str) -> Response:
    answer = _json({"error": " ".join(message.split())[:2000]}, status)
    if status == 401:
        answer.headers["www-authenticate"] = "Bearer"
    return answer


def openapi() -> dict[str, Any]:
    """The service as OpenAPI 3.1, from the models of the tools."""
    shared: dict[str, Any] = {}
    paths = {}
    answers = {
        "200": {"description": "tool, answer, basis: level, 90 % interval, evidence and sources"},
        "4XX": {"description": "error: one line that says what is wrong, and the nearest that is right"},
    }
    for name, tool in TOOLS.items():
        schema = dict(tool.schema)
        shared.update(schema.pop("$defs", {}))
        body = {"required": True, "content": {"application/json": {"schema": schema}}}
        post = {"operationId": name, "summary": tool.help, "requestBody": body, "responses": answers}
        paths[f"/v1/{name}"] = {"post": post}
    parts = {"schemas": shared, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}}
    about = {"title": "rooflinekit", "version": __version__}
    return {"openapi": "3.1.0", "info": about, "paths": paths, "components": parts, "security": [{}, {"token": []}]}


def listen(host: str, port: int, site: Path | None = None) -> socket.socket:
    """A socket to which callers can connect; site: the folder that `make site` wrote.

    Raises InputError where another host than this one is bound without a token, for a folder without a playground, and
    for an address that is taken or not of this machine.
    """
    if host not in LOCAL and not os.environ.get(TOKEN):
        raise InputError(f"--host {host} lets others in; set {TOKEN} in the environment, or bind localhost")
    if site is not None:
        Pages(site)  # says what is wrong before anything is served
        os.environ[SITE] = str(site.resolve())
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise InputError(f"--host {host} --port {port}: {error.strerror or error}") from None
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else answers wait 40 ms for a delayed ACK
    return listening


def run(listening: socket.socket, workers: int, seconds: float, ready: Callable[[], None]) -> None:
    """Serve until a signal comes; seconds: the longest that an answer may take; `ready` is called once one came."""
    os.environ[SECONDS] = f"{seconds:g}"
    threading.Thread(target=_tell, args=(listening.getsockname()[:2], ready), daemon=True).start()
    place = f"rooflinekit.service.web:{'app' if listening.getsockname()[0] in LOCAL else 'open_app'}"
    uvicorn.run(place, factory=True, fd=listening.fileno(), workers=workers, log_level="warning", access_log=False,
                server_header=False, timeout_keep_alive=_KEPT_ALIVE)  # fmt: skip


def _tell(address: tuple[str, int], ready: Callable[[], None]) -> None:
    """Ask the service for its health until it answers, and say that it does."""
    while True:
        asked = http.client.HTTPConnection(*address, timeout=_PATIENCE)
        try:
            asked.request("GET", "/healthz")
            if asked.getresponse().status == 200:
                return ready()
        except (OSError, http.client.HTTPException):
            time.sleep(_PAUSE)
        finally:
            asked.close()


def open_app() -> ASGIApp:
    """The service under any name, for who has its token."""
    return app(local=False)
