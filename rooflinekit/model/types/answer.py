"""What every answer can do and says, whichever module makes it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rooflinekit.model.types.frozen import dataclass

if TYPE_CHECKING:
    import pandas as pd


class Answer:
    """A result that a user gets back; a notebook shows it as HTML."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """Ask the package, which knows the report; no module down here imports it."""
        return str(sys.modules["rooflinekit"]._html_of(self))

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """The text that IPython shows beside the HTML: that of `print`."""
        return {"text/plain": str(self)}

    def __str__(self) -> str:
        """What the command line prints."""
        return str(sys.modules["rooflinekit"]._text_of(self))


class Tabled(Answer):
    """An answer that is also a table."""

    __slots__ = ()

    def to_rows(self) -> list[dict[str, Any]]:
        """Rows of a table."""
        raise NotImplementedError

    def to_frame(self) -> pd.DataFrame:
        """The rows as a table."""
        import pandas as pd  # noqa: PLC0415 - only where it is asked for

        return pd.DataFrame(self.to_rows())


@dataclass(frozen=True)
class DeploymentAnswer(Tabled):
    """An answer about one deployment, and what it rests on.

    level: `expected` with a calibration (its name and hash), `bound` without; evidence: what its times rest on,
    `measured`, `stand-in` or `datasheet`; inputs: all as they were understood.
    """

    version: str
    model: str
    gpu: str
    engine: str
    level: str
    calibration: dict[str, str] | None
    evidence: str
    inputs: dict[str, Any]
