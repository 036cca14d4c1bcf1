"""Errors at the edge: one line on stderr and the exit code of the contract, never a traceback."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from typer.core import TyperGroup

from rooflinekit.model.types.errors import RooflinekitError, nearest

__all__ = ["INTERRUPTED", "CommandGroup"]

INTERRUPTED = 130


class CommandGroup(TyperGroup):
    """A group of commands whose failures end as `rooflinekit: what, where, nearest valid`."""

    def main(
        self, args: Sequence[str] | None = None, prog_name: str | None = None, *rest: Any, **extra: Any
    ) -> NoReturn:
        """Run, and translate what went wrong into an exit code (0, 1, 2, 3, 130)."""
        extra["standalone_mode"] = False
        sys.exit(self._guarded(args, prog_name or "rooflinekit", extra))

    def _guarded(self, args: Sequence[str] | None, prog_name: str, extra: dict[str, Any]) -> int:
        for stream in (sys.stdout, sys.stderr):  # a terminal that cannot print µ or – gets a question mark
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")
        try:
            code = super().main(args, prog_name, **extra)
        except RooflinekitError as error:
            return _say(str(error), error.exit_code)
        except KeyboardInterrupt:
            return _say("interrupted", INTERRUPTED)
        except OSError as error:
            return _say(f"{error.filename or 'file'}: {error.strerror or error}", 2)
        except Exception as error:
            return self._other(error)
        if code == INTERRUPTED:
            return _say("interrupted", INTERRUPTED)
        return code if isinstance(code, int) else 0

    def _other(self, error: Exception) -> int:
        """Usage errors of the command-line library (it is vendored, so they are known by their shape), and bugs."""
        kind = type(error).__name__
        if kind == "Abort":
            return _say("interrupted", INTERRUPTED)
        if kind == "NoArgsIsHelpError":  # the help has been shown
            return 0
        if not hasattr(error, "format_message"):
            return _say(f"internal error, please report: {type(error).__name__}: {error}", 1)
        message = error.format_message().replace("\n", " ").strip().rstrip(".")
        if message.startswith("No such command"):
            wrong = message.split("'")[1]
            known = nearest(wrong, self.commands) or sorted(self.commands)
            message = f"unknown command {wrong!r}; nearest: {', '.join(known)}"
        return _say(message[:1].lower() + message[1:], 2)


def _say(message: str, code: int) -> int:
    print(f"rooflinekit: {' '.join(message.split())}", file=sys.stderr)  # noqa: T201 - this is the edge
    return code
