"""What every answer can do, whichever module makes it."""

from __future__ import annotations

from importlib import import_module

__all__ = ["Answer"]


class Answer:
    """A result that a user gets back; a notebook shows it as HTML."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """Ask the package, which knows the report; no module down here imports it."""
        return str(import_module("rooflinekit")._html_of(self))
