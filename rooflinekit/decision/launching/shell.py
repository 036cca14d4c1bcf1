"""A launch as a shell script: every argument quoted, every comment on lines of its own."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from textwrap import indent, wrap

from rooflinekit.decision.launching.result import Launch, Server
from rooflinekit.model.types.units import GB
from rooflinekit.version import __version__

__all__ = ["launch_script"]

_WIDTH = 80


def launch_script(launch: Launch, with_files: bool = True) -> str:
    """The script that starts one host's servers; several kinds are chosen by its first argument.

    `with_files`: it writes the configuration files too, into the folder where it runs; otherwise they lie beside it.
    """
    head = ["#!/usr/bin/env bash", *_head(launch)]
    if not with_files and launch.files:
        head.append('cd "$(dirname "$0")" || exit')
    if len(launch.servers) == 1:
        body = "\n".join(_server(launch, launch.servers[0], with_files))
    else:
        body = "\n".join(_choice(launch, with_files))
    return "\n".join((*head, "", body)) + "\n"


def _head(launch: Launch) -> Iterator[str]:
    yield from _comment(f"written by rooflinekit {__version__}")
    for note in (*launch.warnings, *launch.notes):
        yield from _comment(f"- {note}", "  ")


def _choice(launch: Launch, with_files: bool) -> Iterator[str]:
    yield 'case "${1:-}" in'
    for server in launch.servers:
        yield f"{server.role})"
        yield indent("\n".join(_server(launch, server, with_files)), "  ", _indented)
        yield "  ;;"
    names = "|".join(server.role for server in launch.servers)
    yield f'*) echo "usage: $0 {names}" >&2; false ;;'
    yield "esac"


def _indented(line: str) -> bool:
    """Whether a line may be moved: those of a configuration file end at a mark in the first column."""
    return not line.startswith("\t")


def _server(launch: Launch, server: Server, with_files: bool) -> Iterator[str]:
    made = server.prediction
    role = "" if server.role == "serve" else f"{server.role}: "
    yield from _comment(
        f"{role}{made.model} on {made.gpus} x {made.gpu}, flags checked for {made.engine} {made.version}"
    )
    yield from _comment(_predicted(server))
    if server.replicas > 1:
        hosts = f"{server.hosts} host" + "s" * (server.hosts > 1)
        yield from _comment(f"{server.replicas} replicas on {hosts}, {server.per_host} on this one")
    for setting in server.settings:
        if " GB / " in setting.because:
            yield from _comment(f"{setting.flag} {setting.value} = {setting.because}", "  ")
    if with_files:
        yield from _files(launch, server)
    for number in range(server.per_host):
        yield _command(server, number) + (" &" if server.per_host > 1 else "")
    if server.per_host > 1:
        yield "wait"


def _predicted(server: Server) -> str:
    made = server.prediction
    first = f"TTFT {'without end (unstable)' if made.ttft_ms is None else f'{made.ttft_ms:.1f} ms'}"
    later, rate = f"TPOT {made.tpot_ms:.2f} ms", f"{made.output_tok_s:.0f} tok/s"
    times = {"prefill": (first,), "decode": (later,)}.get(server.role.rpartition("-")[2], (first, later, rate))
    load = f" ({made.load})" if made.load else ""
    return (
        f"predicted ({made.level}) at batch {made.batch}{load}, {made.isl} + {made.osl} tokens: {', '.join(times)}; "
        f"KV pool {made.kv_pool_bytes / GB:.1f} GB a GPU, {made.kv_pool_tokens} tokens"
    )


def _files(launch: Launch, server: Server) -> Iterator[str]:
    """Its own configuration, and with the prefill servers of a split that of the front end."""
    for name in filter(None, (server.config_name, server.front_end)):
        text = launch.files[name].rstrip("\n")
        yield "\n".join((f"cat > {shlex.quote(name)} <<-'END_OF_FILE' &&", *_tabbed(text), "\tEND_OF_FILE"))


def _tabbed(text: str) -> Iterator[str]:
    """The lines behind tabs, which `<<-` takes away, so that a script may indent them."""
    return (f"\t{line}" for line in text.splitlines())


def _command(server: Server, number: int) -> str:
    """One command, an option a line."""
    words = [*server.program, *server.positional]
    first = " ".join(shlex.quote(word) for word in words)
    env = "".join(f"{name}={shlex.quote(value)} " for name, value in server.env(number).items())
    lines = [" ".join(shlex.quote(word) for word in option) for option in server.options(number)]
    return " \\\n  ".join((env + first, *lines))


def _comment(text: str, hanging: str = "") -> Iterable[str]:
    """Comment lines; whatever the text holds, no line of it is outside of the comment."""
    plain = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    lines = wrap(plain, _WIDTH - 2, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False)
    return (f"# {line}" for line in lines)
