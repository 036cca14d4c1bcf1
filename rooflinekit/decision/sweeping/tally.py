"""What became of the rows of a sweep, counted as they pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pandas as pd

from rooflinekit.decision.sweeping.barred import LATE, MISFIT, OVERLOADED, why_not

__all__ = ["Tally"]

_WORDS = {
    MISFIT: "do not fit in memory",
    OVERLOADED: "are overloaded: requests arrive faster than they can be served",
    LATE: "miss the objectives: no request meets them",
}


@dataclass
class Tally:
    """Rows that were answered, that failed and why, and that are on no front for another reason."""

    rows: int = 0
    barred: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)

    def counting(self, answers: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        """The same answers."""
        for part in answers:
            self.rows += len(part)
            failed = part["error"][part["error"] != ""]
            self.errors.update({str(error): count for error, count in failed.value_counts().items()})
            self.barred.update(why_not(part).tolist())
            yield part

    @property
    def failed(self) -> int:
        """Rows with an error."""
        return self.errors.total()

    def words(self) -> list[str]:
        """What a user should hear; nothing if every row was answered, fits, and can be sustained."""
        lines = []
        if self.failed:
            most, count = self.errors.most_common(1)[0]
            others = f", and {len(self.errors) - 1} other reasons" if len(self.errors) > 1 else ""
            lines.append(f"{self.failed:,} of {self.rows:,} rows could not be answered: {most} ({count:,}){others}")
        told = ((word, words) for word, words in _WORDS.items() if self.barred[word])
        lines += [f"{self.barred[word]:,} of {self.rows:,} rows {words}" for word, words in told]
        return lines
