"""Errors at the edge: one line on stderr and the exit code of the contract, never a traceback."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

from rooflinekit.cli.command import help_table
from rooflinekit.cli.interrupts import interrupted
from rooflinekit.cli.output import brief, emit, note
from rooflinekit.model.types.errors import RooflinekitError, nearest_of

INTERRUPTED = 130
_MOST = 2000  # characters of a message


def guarded(run: Callable[[], Any], commands: Iterable[str] = ()) -> tuple[object, int]:
    """Run a function and return its result, and its exit code: 0, 1, 2, 3, 4 or 130; a failure is said in one line."""
    for stream in (sys.stdout, sys.stderr):  # a terminal that cannot print µ or – gets a question mark
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        code = run()
    except RooflinekitError as error:
        return None, _say(str(error), error.exit_code)
    except KeyboardInterrupt:
        return None, _say("interrupted", INTERRUPTED)
    except OSError as error:
        return None, _say(f"{_place(error)}: {error.strerror or error}", 2)
    except MemoryError:
        return None, _say("the memory of this machine does not hold that", 2)
    except Exception as error:
        return None, _say("interrupted", INTERRUPTED) if interrupted(error) else _other(error, commands)
    if code == INTERRUPTED:
        return code, _say("interrupted", INTERRUPTED)
    return code, code if isinstance(code, int) else 0


def _place(error: OSError) -> str:
    """The file that could not be read or written; a standard output that has not taken a whole text is left."""
    try:
        if error.filename is None and sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return "the standard output"
    return str(error.filename or "file")


def _other(error: Exception, commands: Iterable[str]) -> int:
    """Usage errors of the command-line library (it is vendored, so they are known by their shape), and bugs."""
    kind = type(error).__name__
    if kind == "Abort":
        return _say("interrupted", INTERRUPTED)
    if kind == "NoArgsIsHelpError":
        emit(str(getattr(error, "message", "")))  # the help
        return 0
    if isinstance(error, ModuleNotFoundError) and (error.name or "").startswith("rooflinekit."):
        return _say(
            f"{error.name} is left out of this installation, and this command needs it; the whole package comes with "
            "pip install --force-reinstall rooflinekit",
            2,
        )
    if not hasattr(error, "format_message"):
        return _say(f"internal error, please report: {kind}: {error}", 1)
    message = error.format_message().replace("\n", " ").strip().rstrip(".")
    if message.startswith("No such command"):
        wrong = message.split("'")[1]
        message = f"unknown command {wrong!r}; nearest: {nearest_of(wrong, sorted(commands))}"
    elif message.startswith("No such option") and (ours := help_table()["elsewhere"].get(message.split()[3])):
        message = f"no such option: {message.split()[3]}; here it is {ours}"
    elif message.startswith("Missing argument") and (meaning := getattr(getattr(error, "param", None), "help", "")):
        message = f"{message}: {meaning[:1].lower()}{meaning[1:].rstrip('.')}"
    return _say(message[:1].lower() + message[1:], 2)


def _say(message: str, code: int) -> int:
    """Say it in one line."""
    line = brief(" ".join(message.split()))
    note(line if len(line) <= _MOST else f"{line[:_MOST].rpartition(' ')[0] or line[:_MOST]} …")
    return code
