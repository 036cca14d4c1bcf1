"""What became of the rows of a sweep, counted as they pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pandas as pd

__all__ = ["Tally"]


@dataclass
class Tally:
    """Rows that were answered, that failed and why, and that do not fit in memory."""

    rows: int = 0
    misfits: int = 0
    errors: Counter[str] = field(default_factory=Counter)

    def counting(self, answers: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        """The same answers."""
        for part in answers:
            self.rows += len(part)
            failed = part["error"][part["error"] != ""]
            self.errors.update({str(error): count for error, count in failed.value_counts().items()})
            if "fits" in part:
                self.misfits += int((~part["fits"].fillna(value=True).astype(bool)).sum())
            yield part

    @property
    def failed(self) -> int:
        """Rows with an error."""
        return self.errors.total()

    def words(self) -> list[str]:
        """What a user should hear; nothing if every row was answered and fits."""
        lines = []
        if self.failed:
            most, count = self.errors.most_common(1)[0]
            others = f", and {len(self.errors) - 1} other reasons" if len(self.errors) > 1 else ""
            lines.append(f"{self.failed:,} of {self.rows:,} rows could not be answered: {most} ({count:,}){others}")
        if self.misfits:
            lines.append(f"{self.misfits:,} of {self.rows:,} rows do not fit in memory")
        return lines
