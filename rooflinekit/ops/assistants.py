"""The tools for assistants: a server of the Model Context Protocol over standard input and output.

Resources are the spec files of the catalogue, each fact with its source, and the method in the words of the code.
"""

from __future__ import annotations

import inspect
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from rooflinekit.model.types.errors import InputError, RooflinekitError, needing
from rooflinekit.ops.log import log_sparingly
from rooflinekit.ops.tools import TOOLS
from rooflinekit.ops.workers import Workers, line_of
from rooflinekit.specs import Kind, in_catalogue, names, read_text, resolve
from rooflinekit.version import __version__

with needing("serving assistants", "mcp"):
    import anyio
    import mcp_types as types
    from mcp import MCPError
    from mcp.server import Server
    from mcp.server.stdio import stdio_server

_SPECS: dict[str, Kind] = {"model": "model", "gpu": "accelerator"}
_METHOD = "rooflinekit://method"
_METHOD_OF = {
    "model.roofline": ("roofline_bound", "time_kernel"),
    "model.step": (),
    "model.operating_point": (),
    "model.capacity": (),
    "load.loop": ("play",),
    "load.law": ("full_rate",),
    "model.power": (),
}
"""Modules and functions whose first words are the method."""


def server(seconds: float = 60.0) -> Server[Any]:
    """The tools and resources as a server of the SDK; an answer takes up to so many seconds."""
    workers = Workers(1, seconds)

    async def list_tools(context: object, asked: object) -> types.ListToolsResult:
        tools = [types.Tool(name=name, description=tool.help, input_schema=tool.schema) for name, tool in TOOLS.items()]
        return types.ListToolsResult(tools=tools)

    async def call_tool(context: object, asked: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            arguments = asked.arguments or {}
            if (tool := TOOLS.get(asked.name)) is None:
                raise InputError(f"unknown tool {asked.name[:60]!r}; known: {', '.join(TOOLS)}")
            found = await workers.ask(tool.name, json.dumps(arguments).encode(), tool.quickly(arguments))
        except Exception as error:
            return types.CallToolResult(content=[types.TextContent(text=line_of(error))], is_error=True)
        return types.CallToolResult(
            content=[types.TextContent(text=found.decode())], structured_content=json.loads(found)
        )

    async def list_resources(context: object, asked: object) -> types.ListResourcesResult:
        specs = [
            types.Resource(uri=f"rooflinekit://{word}/{name}", name=name, mime_type="application/yaml")
            for word, kind in _SPECS.items()
            for name in names(kind)
        ]
        method = types.Resource(uri=_METHOD, name="method", mime_type="text/plain")
        return types.ListResourcesResult(resources=[method, *specs])

    async def read_resource(context: object, asked: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        try:
            text = method_text() if str(asked.uri) == _METHOD else _spec(str(asked.uri))
        except RooflinekitError as error:
            raise MCPError(types.INVALID_PARAMS, line_of(error)) from None
        return types.ReadResourceResult(contents=[types.TextResourceContents(uri=asked.uri, text=text)])

    @asynccontextmanager
    async def served(made: Server[Any]) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await workers.close()

    return Server(
        "rooflinekit",
        version=__version__,
        instructions="Predictions of LLM inference from first principles. Every answer has a basis: level, 90 % "
        "interval, evidence, sources; say them beside the numbers.",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_read_resource=read_resource,
        lifespan=served,
    )


def _spec(uri: str) -> str:
    word, _, name = uri.removeprefix("rooflinekit://").partition("/")
    if word not in _SPECS:
        raise InputError(f"unknown resource {uri[:80]!r}; known: {_METHOD}, rooflinekit://model/…, rooflinekit://gpu/…")
    return read_text(resolve(_SPECS[word], in_catalogue(_SPECS[word], name)).value)


def method_text() -> str:
    """Text of the method, in the words of its modules.

    >>> "datasheet roofline" in method_text()
    True
    """
    parts = []
    for place, functions in _METHOD_OF.items():
        module = import_module(f"rooflinekit.{place}")
        parts += [f"# {place}", inspect.getdoc(module) or ""]
        parts += [f"## {name}\n\n{inspect.getdoc(getattr(module, name))}" for name in functions]
    return "\n\n".join(parts) + "\n"


def run(seconds: float) -> None:
    """Serve the client at the other end of standard input and output until it goes, or a signal comes."""
    log_sparingly()
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda *_: os._exit(0))  # a thread waits for a line that may never come

    async def served() -> None:
        made = server(seconds)
        async with stdio_server() as (read, write):
            await made.run(read, write, made.create_initialization_options())

    anyio.run(served)
