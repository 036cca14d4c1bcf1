"""NumPy, loaded when something first asks it: one static answer takes less time than its import."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__all__ = ["np"]

if TYPE_CHECKING:
    import numpy as np
else:

    class _Late:
        def __getattr__(self, name: str) -> object:
            found = getattr(import_module("numpy"), name)
            setattr(self, name, found)
            return found

    np = _Late()
