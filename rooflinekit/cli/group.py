"""Errors at the edge: one line on stderr and the exit code of the contract, never a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from typer.core import TyperGroup

from rooflinekit.types.errors import RooflinekitError, nearest

__all__ = ["CommandGroup"]


class CommandGroup(TyperGroup):
    """A group of commands whose failures end as `rooflinekit: what, where, nearest valid`."""

    def main(
        self, args: Sequence[str] | None = None, prog_name: str | None = None, *rest: Any, **extra: Any
    ) -> NoReturn:
        """Run, and translate what went wrong into an exit code (0, 1, 2, 3, 130)."""
        extra["standalone_mode"] = False
        sys.exit(self._guarded(args, prog_name or "rooflinekit", extra))

    def _guarded(self, args: Sequence[str] | None, prog_name: str, extra: dict[str, Any]) -> int:
        try:
            code = super().main(args, prog_name, **extra)
            sys.stdout.flush()
        except RooflinekitError as error:
            return _say(str(error), error.exit_code)
        except KeyboardInterrupt:
            return _say("interrupted", 130)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except OSError as error:
            return _say(f"{error.filename or 'file'}: {error.strerror or error}", 2)
        except Exception as error:
            return self._other(error)
        return code if isinstance(code, int) else 0

    def _other(self, error: Exception) -> int:
        """Usage errors of the command-line library (it is vendored, so they are known by their shape), and bugs."""
        if type(error).__name__ in ("Abort", "Exit"):
            return int(getattr(error, "exit_code", 130))
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
