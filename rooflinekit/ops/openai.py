"""An OpenAI-compatible server whose tokens come at played times: chat, completions, streams, metrics, and its clock.

Nothing is computed but times. Four bytes of text are a token, and an answer repeats one word; prompts may be lists of
tokens. Nothing of a request is logged or kept.
"""

from __future__ import annotations

import asyncio
import json
import math
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import partial
from hashlib import blake2b
from itertools import count
from time import monotonic, time
from typing import Any, NamedTuple
from uuid import uuid4

from typing_extensions import override

from rooflinekit.estimation.options import OwnKeywords
from rooflinekit.load.arrivals import Arrival
from rooflinekit.model.types.errors import InputError, needing
from rooflinekit.model.types.late import np
from rooflinekit.ops.engine import PlayedEngine, RealClock, SetClock, Stream
from rooflinekit.ops.log import log, log_sparingly
from rooflinekit.version import __version__

with needing("serving over HTTP", "serve"):
    import uvicorn
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import Response
    from starlette.routing import Route
    from starlette.types import ASGIApp, Receive, Scope, Send

    from rooflinekit.ops.connections import Connection, ConnectionLimits, more_descriptors
    from rooflinekit.ops.web import (
        LOCAL,
        configured,
        here_alone,
        is_json,
        read_token,
        settled,
        shows,
        until_signal,
    )

CLOCKS = ("real", "jump", "held")
"""real: seconds pass; a number instead says how many played ones pass in each. jump: the clock goes to the next token
at once. held: `POST /clock` moves it."""
_SCALES = (1e-3, 1e3)  # played seconds in a second: the least and the most
STREAMS = 1024
"""Answers that are under way at once, where nobody says another number."""
TIME = "x-rooflinekit-time"
"""Header of a request: when it is sent [s], on a clock that is not real."""
_WORD, _BYTES = " the", 4  # a token of an answer, and bytes of one of a prompt
_LARGEST = 16 * 2**20  # bytes of a request
_SHORT = 16  # output tokens of a completion that says no number, as OpenAI's interface has it
_MOST_ANSWERS = 128  # of one request
_SLOWER = {
    "best_of": (None, 1),
    "use_beam_search": (None, False),
    "echo": (None, False),
    "suffix": (None, ""),
    "prompt_logprobs": (None, 0),
}
"""Parameters that would change how long a request takes, with the values that change nothing."""
_STOPPED = "the engine stopped by a bug; the server's log says which"
_OTHERS = 64  # connections beside those of answers: scrapes, looks at the models
_PATIENCE = 0.1  # seconds that a clock which is not real waits for streams to take their tokens
_TURNS = 5  # of the event loop, from a connection that waits to its request: taken, made, watched, read, handled
_GRACE = 2  # seconds that answers under way have when the server ends


class RefusedError(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param = status, param


class Prompt(NamedTuple):
    """Tokens of a prompt, and what tells its blocks apart: bytes, so many a token."""

    tokens: int
    content: bytes
    width: int

    @classmethod
    def of(cls, told: object) -> Prompt:
        """Text, or the numbers of its tokens; raises RefusedError for anything else.

        >>> Prompt.of("four words are here").tokens, Prompt.of([7, 8, 9]).tokens
        (5, 3)
        """
        if isinstance(told, str):
            content = told.encode("utf-8", "surrogatepass")
            return cls(max(-(-len(content) // _BYTES), 1), content, _BYTES)
        if not isinstance(told, list) or not all(isinstance(each, int) and 0 <= each < 2**32 for each in told):
            raise RefusedError(400, "a prompt is a text, a list of token numbers, or a list of such", "prompt")
        return cls(max(len(told), 1), b"".join(each.to_bytes(4, "little") for each in told), 4)

    def hashes(self, block: int, answer: int) -> tuple[int, ...]:
        """A number for each full block of it and of an answer of so many tokens; each says all before it."""
        content = self.content + _WORD.encode() * answer
        found, before, size = list[int](), b"", block * self.width
        for at in range(0, len(content) // size * size, size):
            before = blake2b(before + content[at : at + size], digest_size=8).digest()
            found.append(int.from_bytes(before, "little"))
        return tuple(found)


def conversation(messages: Any) -> str:
    r"""Messages as one text, so that a longer conversation begins with a shorter one and its answer.

    >>> conversation([{"role": "user", "content": "hi"}])
    'user\nhi\nassistant\n'
    """
    if not isinstance(messages, list) or not messages:
        raise RefusedError(400, "messages is a list of at least one message", "messages")
    parts = []
    for each in messages:
        if not isinstance(each, dict) or not isinstance(each.get("role"), str):
            raise RefusedError(400, "a message is an object with a role and a content", "messages")
        content = each.get("content") or ""
        if isinstance(content, list):
            if any(not isinstance(part, dict) or part.get("type") != "text" for part in content):
                raise RefusedError(400, "a part of a content is a text; the time of others is not played", "messages")
            content = "".join(str(part.get("text", "")) for part in content)
        calls = json.dumps(each["tool_calls"], sort_keys=True) if each.get("tool_calls") else ""
        parts.append(f"{each['role']}\n{content}{calls}\n")
    return "".join((*parts, "assistant\n"))


class CompletionRequest:
    """A request that was read: its prompts, how long its answers are, and how they are sent."""

    def __init__(self, body: Mapping[str, Any], chat: bool, engine: PlayedEngine, number: int) -> None:
        for name, usual in _SLOWER.items():
            if body.get(name) not in usual:
                raise RefusedError(400, f"{name} would change the time of a request, and is not played", name)
        self.chat, self.stream = chat, body.get("stream") is True
        options = body.get("stream_options") or {}
        if not isinstance(options, dict):
            raise RefusedError(400, "stream_options is an object", "stream_options")
        self.counted, self.counting = bool(options.get("include_usage")), bool(options.get("continuous_usage_stats"))
        told = body.get("prompt")
        texts: list[object] = [conversation(body.get("messages"))] if chat else [told]
        if not chat and isinstance(told, list) and told and not isinstance(told[0], int):
            texts = told
        self.prompts = [Prompt.of(each) for each in texts]
        self.samples = self._count(body, "n", 1)
        if len(self.prompts) * self.samples > _MOST_ANSWERS:
            raise RefusedError(400, f"one request has at most {_MOST_ANSWERS} answers", "n")
        self.id = f"{'chatcmpl' if chat else 'cmpl'}-{uuid4().hex}"
        self.created, self.model = int(time()), engine.what.name
        most = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
        asked = self._count(body, most, None)
        self.lengths = [self._length(each, asked, body, engine, number + i) for i, each in enumerate(self.prompts)]
        self.most = asked
        self.priority = body.get("priority", 0)
        if not isinstance(self.priority, int):
            raise RefusedError(400, "priority is a whole number", "priority")

    @staticmethod
    def _count(body: Mapping[str, object], name: str, usual: object) -> Any:
        value = body.get(name)
        if value is None:
            return usual
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise RefusedError(400, f"{name} must be a whole number of at least 1, got {repr(value)[:40]}", name)
        return value

    def _length(
        self, prompt: Prompt, asked: int | None, body: Mapping[str, Any], engine: PlayedEngine, number: int
    ) -> tuple[int, bool]:
        """Tokens of the answer, and whether its limit ends it: else it ends as the lengths of the server say."""
        room = engine.longest - prompt.tokens
        most = (min(room, _SHORT) if not self.chat else room) if asked is None else asked
        if most > room or room < 1:
            raise RefusedError(
                400,
                f"This model's maximum context length is {engine.longest} tokens. However, you requested "
                f"{prompt.tokens + max(asked or 1, 1)} tokens ({prompt.tokens} in the prompt, {asked or 1} in the "
                "completion). Please reduce the length of the prompt or completion.",
                "max_tokens",
            )
        least = body.get("min_tokens") or 0
        if body.get("ignore_eos") is True:
            return most, True
        own = engine.what.osl.sample(np.random.default_rng((engine.what.setup.seed, number)), 1)[0]
        own = max(own, least if isinstance(least, int) else 0, 1)
        return (most, True) if own >= most else (own, False)

    # --- what is sent ------------------------------------------------------------------------------------------------

    def usage(self, streams: Sequence[Stream]) -> dict[str, object]:
        """What was counted, of all answers together."""
        prompts = sum(each.job.isl for each in streams)
        made = sum(each.made * each.job.samples for each in streams)
        found = {"prompt_tokens": prompts, "completion_tokens": made, "total_tokens": prompts + made}
        cached = sum(each.job.cached for each in streams)
        return found | {"prompt_tokens_details": {"cached_tokens": cached}}

    @property
    def _head(self) -> dict[str, object]:
        kind = ("chat.completion" if self.chat else "text_completion") + (".chunk" if self.stream and self.chat else "")
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def whole(self, streams: Sequence[Stream]) -> dict[str, object]:
        """The answer in one piece."""
        choices = []
        for index, stream in self._choices(streams):
            text, reason = _WORD * stream.made, "length" if stream.limited else "stop"
            said = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
            choices.append({"index": index, **said, "logprobs": None, "finish_reason": reason})
        played = [each.times_ms for each in streams]
        return self._head | {"choices": choices, "usage": self.usage(streams), "rooflinekit": {"played": played}}

    def _choices(self, streams: Sequence[Stream]) -> Iterator[tuple[int, Stream]]:
        for place, stream in enumerate(streams):
            for sample in range(self.samples):
                yield place * self.samples + sample, stream

    def pieces(self, streams: Sequence[Stream]) -> Callable[[], tuple[bytes, bool]]:
        """What gives the events that are due, and whether they are the last."""
        head = json.dumps(self._head)[:-1]
        sent = [0] * len(streams)

        def event(index: int, first: bool, count: int, reason: str | None) -> str:
            text = json.dumps(_WORD * count)
            role = '"role":"assistant",' if first else ""
            said = f'"delta":{{{role}"content":{text}}}' if self.chat else f'"text":{text}'
            usage = f',"usage":{json.dumps(self.usage(streams))}' if self.counting else ""
            return (
                f'data: {head},"choices":[{{"index":{index},{said},"logprobs":null,'
                f'"finish_reason":{json.dumps(reason)}}}]{usage}}}\n\n'
            )

        def due() -> tuple[bytes, bool]:
            found = []
            for place, stream in enumerate(streams):
                new = stream.made - sent[place]
                if not new:
                    continue
                over = stream.ended == "finished" and stream.made == stream.job.osl
                reason = ("length" if stream.limited else "stop") if over else None
                found += [
                    event(place * self.samples + each, not sent[place], new, reason) for each in range(self.samples)
                ]
                sent[place] = stream.made
            ended = all(stream.ended for stream in streams)
            if ended:
                if self.counted:
                    played = json.dumps({"played": [each.times_ms for each in streams]})
                    usage = json.dumps(self.usage(streams))
                    found.append(f'data: {head},"choices":[],"usage":{usage},"rooflinekit":{played}}}\n\n')
                found.append("data: [DONE]\n\n")
            return "".join(found).encode(), ended

        return due


def _scale(clock: str) -> float:
    """Played seconds in a second of a clock that is real; raises InputError for one that is none."""
    try:
        scale = 1.0 if clock == "real" else float(clock)
    except ValueError:
        scale = math.nan
    if not _SCALES[0] <= scale <= _SCALES[1]:
        least, most = _SCALES
        raise InputError(f"time {clock!r} is not one of {', '.join(CLOCKS)} or a number from {least:g} to {most:g}")
    return scale


class Player:
    """Moves an engine on as its clock goes."""

    def __init__(self, engine: PlayedEngine, clock: str) -> None:
        self.engine, self.kind = engine, clock
        self.clock = SetClock() if clock in ("jump", "held") else RealClock(_scale(clock))
        self.woken, self._playing = asyncio.Event(), asyncio.Lock()
        self.unread = set[object]()  # answers with tokens that their streams have not sent
        self.failed = False  #: whether it ended by a bug

    async def play(self) -> None:
        """Go on until the server ends."""
        while True:
            self.woken.clear()
            if self.kind == "jump":
                await self.until(math.inf)
            elif isinstance(self.clock, RealClock):
                for _ in range(_TURNS):
                    await asyncio.sleep(0)
                self.engine.advance(self.clock.now())
                if (coming := self.engine.coming()) < math.inf:
                    wait = self.clock.seconds_until(coming)
                    timer = asyncio.get_running_loop().call_later(wait, self.woken.set)
                    await self.woken.wait()
                    timer.cancel()
                    continue
            await self.woken.wait()

    def over(self, playing: asyncio.Task[None]) -> None:
        """It has ended, which only the server's end should do: nobody waits for what does not come."""
        if playing.cancelled() or (error := playing.exception()) is None:
            return
        log.error("the engine stopped by a bug; please report it", exc_info=error)
        self.failed = True
        for stream in self.engine.streams.values():
            stream.ended, stream.why = "rejected", _STOPPED
            stream.told(stream)

    async def until(self, last: float) -> None:
        """Play on to a time, or until nothing is left; readers take each token before the next."""
        assert isinstance(self.clock, SetClock)
        async with self._playing:
            while (coming := self.engine.coming()) <= last and coming < math.inf:
                self.engine.step(coming)
                self.clock.time = coming
                await asyncio.sleep(0)
                ends = monotonic() + _PATIENCE
                while self.unread and monotonic() < ends:
                    await asyncio.sleep(0)
            if last < math.inf:
                self.engine.advance(last)
                self.clock.time = max(self.clock.time, last)


class _Answer:
    def __init__(self, player: Player, asked: CompletionRequest) -> None:
        self.player, self.asked, self.told = player, asked, asyncio.Event()
        self.streams: list[Stream] = []

    def tell(self, stream: Stream) -> None:
        """Something has come out."""
        self.told.set()
        if self.asked.stream:
            self.player.unread.add(self)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        leaving = asyncio.ensure_future(self._leaves(receive))
        try:
            if self.asked.stream:
                await self._stream(scope, receive, send, leaving)
            else:
                await self._whole(scope, receive, send, leaving)
        finally:
            leaving.cancel()
            for stream in self.streams:
                self.player.engine.abort(stream)
            self.player.unread.discard(self)
            self.player.woken.set()

    async def _leaves(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.told.set()

    def _refusal(self) -> str | None:
        return next((each.why for each in self.streams if each.ended == "rejected"), None)

    async def _whole(self, scope: Scope, receive: Receive, send: Send, leaving: asyncio.Future[None]) -> None:
        while not all(each.ended for each in self.streams):
            await self.told.wait()
            self.told.clear()
            if leaving.done():
                return
        if (why := self._refusal()) is not None:
            await _error(503, f"refused: {why}")(scope, receive, send)
            return
        await Response(json.dumps(self.asked.whole(self.streams)), media_type="application/json")(scope, receive, send)

    async def _stream(self, scope: Scope, receive: Receive, send: Send, leaving: asyncio.Future[None]) -> None:
        due, begun = self.asked.pieces(self.streams), False
        while not leaving.done():
            await self.told.wait()
            self.told.clear()
            if (why := self._refusal()) is not None and not begun:
                await _error(503, f"refused: {why}")(scope, receive, send)
                return
            body, ended = due()
            self.player.unread.discard(self)
            if not body:
                continue
            if not begun:
                begun = True
                await send({"type": "http.response.start", "status": 200, "headers": _EVENTS})
            await send({"type": "http.response.body", "body": body, "more_body": not ended})
            if ended:
                return


_EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


def _error(status: int, message: str, param: str | None = None) -> Response:
    kinds = {400: "BadRequestError", 401: "AuthenticationError", 404: "NotFoundError", 429: "RateLimitError"}
    error = {"message": message, "type": kinds.get(status, "ServiceUnavailableError"), "param": param, "code": status}
    return Response(json.dumps({"error": error}), status, media_type="application/json")


def _json(data: object) -> Response:
    return Response(json.dumps(data), media_type="application/json")


async def _read(request: Request) -> OwnKeywords:
    if not is_json(request):
        raise RefusedError(415, "send JSON, with Content-Type: application/json")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > _LARGEST:
            raise RefusedError(413, f"a request has at most {_LARGEST >> 20} MiB")
    try:
        found = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        raise RefusedError(400, "the body is no JSON") from None
    if not isinstance(found, dict):
        raise RefusedError(400, "the body is no JSON object")
    return found


def _seconds(text: object, what: str) -> float:
    try:
        value = float(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        value = math.nan
    if not 0.0 <= value < math.inf:
        raise RefusedError(400, f"{what} is a number of seconds of at least 0, not {str(text)[:40]!r}")
    return value


_came: ContextVar[float] = ContextVar("came")  # when the bytes of a request came, by `time.monotonic` [s]


def _lain(sock: socket.socket) -> float:
    """How long the latest bytes have lain unread [s]: Linux says it, in ticks of 1 to 4 ms; 0 elsewhere."""
    if sys.platform != "linux":
        return 0.0
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 56)
    return int.from_bytes(info[52:], sys.byteorder) * 1e-3  # tcpi_last_data_recv


class _Timed(Connection):
    """A connection whose requests come when their bytes do, also where this process gets no core in time."""

    @override
    def data_received(self, data: bytes) -> None:
        _came.set(monotonic() - _lain(self.transport.get_extra_info("socket")))
        super().data_received(data)


class _EngineServer:
    def __init__(self, engine: PlayedEngine, clock: str, streams: int) -> None:
        self.engine, self.streams, self.token = engine, streams, read_token()
        self.player = Player(engine, clock)
        model = engine.what.resolved.plan.model
        self.names = {engine.what.name, model.name, *model.aliases}  # clients and `launch` have it from the hub
        self.numbers = count(1)

    @property
    def routes(self) -> list[Route]:
        """What is served."""
        post = ["POST"]
        return [
            Route("/v1/chat/completions", partial(self.answered, chat=True), methods=post),
            Route("/v1/completions", partial(self.answered, chat=False), methods=post),
            Route("/v1/models", self.models),
            Route("/metrics", self.metrics),
            Route("/health", self.health),
            Route("/version", self.version),
            Route("/clock", self.clock, methods=["GET", *post]),
        ]

    def sent(self, request: Request) -> float:
        """When a request is sent: now, or as its header says."""
        told, clock = request.headers.get(TIME), self.player.clock
        if told is None:
            return clock.at(_came.get(monotonic())) if isinstance(clock, RealClock) else clock.now()
        if clock.moves:
            raise RefusedError(400, f"{TIME} is for a clock that is not real (--time jump or held)")
        return _seconds(told, TIME)

    def admit(self, request: Request) -> None:
        """Refuse who does not show the token."""
        if not shows(request, self.token):
            raise RefusedError(401, "give the token of this server as 'Authorization: Bearer TOKEN'")

    async def answered(self, request: Request, chat: bool) -> Any:
        """A chat or a completion: its requests are sent to the engine."""
        came, engine = self.sent(request), self.engine
        self.admit(request)
        if self.player.failed:
            raise RefusedError(503, _STOPPED)
        body = await _read(request)
        if (model := body.get("model", engine.what.name)) not in self.names:
            said = f"The model `{str(model)[:80]}` does not exist; this is {engine.what.name}"
            raise RefusedError(404, said, "model")
        asked = CompletionRequest(body, chat, engine, next(self.numbers))
        if engine.running + len(asked.prompts) * asked.samples > self.streams:
            raise RefusedError(429, f"{engine.running} answers are under way, of {self.streams} at most (--streams)")
        answer, block = _Answer(self.player, asked), engine.block
        for prompt, (length, limited) in zip(asked.prompts, asked.lengths, strict=True):
            hashes = prompt.hashes(block, length if asked.samples == 1 else 0) if block else ()
            session = next(self.numbers) if block and asked.samples == 1 else -1
            arrival = Arrival(came, prompt.tokens, length, hashes, asked.priority, asked.samples, session)
            answer.streams.append(engine.send(arrival, answer.tell, limited))
            if asked.most:
                answer.streams[-1].metrics.see("request_params_max_tokens", asked.most)
        self.player.woken.set()
        return answer

    async def models(self, request: Request) -> Response:
        """The one that is here."""
        self.admit(request)
        what = self.engine.what
        one = {
            "id": what.name,
            "object": "model",
            "created": int(time()),
            "owned_by": "rooflinekit",
            "root": what.resolved.plan.model.name,
            "parent": None,
            "max_model_len": self.engine.longest,
        }
        return _json({"object": "list", "data": [one]})

    async def metrics(self, request: Request) -> Response:
        """As of now."""
        if self.player.clock.moves:
            self.engine.advance(self.player.clock.now())
        return Response(self.engine.exposition(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def health(self, request: Request) -> Response:
        """It is here."""
        return Response()

    async def version(self, request: Request) -> Response:
        """Of this package."""
        return _json({"version": f"rooflinekit {__version__}"})

    async def clock(self, request: Request) -> Response:
        """The time; or, of one that is held, play on to a later one."""
        player = self.player
        if request.method == "POST":
            self.admit(request)
            body = await _read(request)
            if player.kind != "held":
                raise RefusedError(400, f"the clock is {player.kind}; --time held is moved by this")
            if len(body) != 1 or body.keys() - {"until_s", "by_s", "idle"}:
                raise RefusedError(400, 'say one of {"until_s": 60}, {"by_s": 5} and {"idle": true}')
            ((name, value),) = body.items()
            start = player.clock.now() if name == "by_s" else 0.0
            await player.until(math.inf if name == "idle" else start + _seconds(value, name))
        return _json({"clock": player.kind, "time_s": player.clock.now(), "running": self.engine.running})


def application(
    engine: PlayedEngine,
    clock: str = "real",
    streams: int = STREAMS,
    local: bool = True,
    ready: Callable[[], None] = lambda: None,
) -> ASGIApp:
    """The server as an ASGI application.

    Args:
        engine: what plays.
        clock: one of CLOCKS, or played seconds in a second.
        streams: answers that are under way at once; more are refused with 429.
        local: whether requests that name another host are refused.
        ready: called when it answers.

    Raises InputError for a clock that is none, and for a token that no header can hold.
    """
    server = _EngineServer(engine, clock, streams)

    @asynccontextmanager
    async def played(made: Starlette) -> AsyncIterator[None]:
        playing = asyncio.create_task(server.player.play())
        playing.add_done_callback(server.player.over)
        try:
            with settled(ready):
                yield
        finally:
            playing.cancel()

    handlers: dict[Any, Any] = {RefusedError: _refused, HTTPException: _unknown, ClientDisconnect: _left}
    served = Starlette(routes=server.routes, exception_handlers=handlers, lifespan=played)
    return here_alone(served) if local else served


async def _refused(request: Request, error: RefusedError) -> Response:
    found = _error(error.status, str(error), error.param)
    if error.status == 401:
        found.headers["www-authenticate"] = "Bearer"
    return found


async def _unknown(request: Request, error: HTTPException) -> Response:
    return _error(error.status_code, f"{request.method[:20]} {request.url.path[:80]} is not served")


async def _left(request: Request, error: ClientDisconnect) -> Response:
    return _error(400, "the request ends early")


def run(listening: Any, engine: PlayedEngine, clock: str, streams: int, ready: Callable[[], None]) -> None:
    """Serve until a signal comes.

    Args:
        listening: the socket.
        engine: what plays.
        clock: as `application` takes it.
        streams: answers that are under way at once.
        ready: called when the server answers.

    Raises InputError as `application` does, RooflinekitError where the server does not start.
    """
    log_sparingly()
    more_descriptors()
    bounds = ConnectionLimits(0, streams + _OTHERS, share=1)
    served = application(engine, clock, streams, listening.getsockname()[0] in LOCAL, ready)
    until_signal(uvicorn.Server(configured(served, _Timed, bounds, 60.0, _GRACE)), listening, "server")
