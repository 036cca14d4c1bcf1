"""`rooflinekit serve` and `rooflinekit mcp`."""

from __future__ import annotations

from pathlib import Path

from rooflinekit.cli.command import command
from rooflinekit.cli.output import Output, note
from rooflinekit.estimation.scenario import Answering, Serving

_HOST, _PORT, _SECONDS = "127.0.0.1", 8000, 30.0


@command(Serving, arguments={})
def serve(
    *, to: Output, host: str = _HOST, port: int = _PORT, workers: int = 1, site: Path | None = None,
    seconds: float = _SECONDS,
) -> None:  # fmt: skip
    """Answer questions over HTTP: JSON in, JSON out, described at /openapi.json; charts for a browser at /."""
    from rooflinekit.service.web import listen, run

    name = f"[{host}]" if ":" in host else host
    with listen(host, port, site) as listening:
        note(f"serving on http://{name}:{port}; /openapi.json says what; ends with Ctrl-C")
        run(listening, workers, seconds)


@command(Answering, arguments={})
def mcp(*, to: Output, seconds: float = _SECONDS) -> None:
    """Answer an assistant over standard input and output, by the Model Context Protocol."""
    from rooflinekit.service.assistants import run

    run(seconds)
