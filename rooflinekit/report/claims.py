"""`docs/claims.md`: what tutorials state, computed again.

python -m rooflinekit.report.claims > docs/claims.md
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence

from rooflinekit.claims import Claim, Verdict
from rooflinekit.claims.audit import TOPICS
from rooflinekit.report.table import markdown
from rooflinekit.types.units import format_bytes, format_count, format_rate, format_time

__all__ = ["claims_markdown"]

_HEADER = ["statement", "stated", "computed", "verdict", "what decides", "shown by"]
_WHOLE, _MILLION, _BILLION = 999.5, 1e6, 1e9
_UNITS = {"FLOP/s": "FLOP/s", "B/s": "B/s"}


def claims_markdown() -> str:
    """The page: an overview, then a table for each topic."""
    every = [claim for claims in TOPICS.values() for claim in claims]
    found = Counter(claim.verdict for claim in every)
    lines = [
        "# Claims",
        "",
        "Generated from `rooflinekit/claims/` by `make docs`; do not edit.",
        "",
        f"{len(every)} numbers that are stated about LLM inference, computed again: {found[Verdict.holds]} hold,",
        f"{found[Verdict.conditional]} hold under a condition, {found[Verdict.fails]} do not. Verdicts follow from the",
        "numbers: a statement holds where the computed number is within its tolerance, and under a condition where",
        "that is so in one of two situations. Times are bounds at datasheet rates unless a row says otherwise. A link",
        "is the page on which the statement was read, in other words; what has none is a common rule of thumb. GB is",
        "1e9 bytes. `explain` shows where each number comes from ([how](explain.md)).",
    ]
    for topic, claims in TOPICS.items():
        lines += ["", f"## {topic}", "", *markdown(_HEADER, [_row(claim) for claim in claims], left=(0, 3, 4, 5))]
    return "\n".join(lines)


def _row(claim: Claim) -> Sequence[str]:
    source = f" ([source]({claim.where}))" if claim.where.startswith("http") else ""
    cases = [case for case in (claim.case, claim.other) if case is not None]
    computed = "; ".join(f"{_quantity(case.value, claim.unit)} ({case.when})" for case in cases)
    sign = {"=": "", "≥": "≥ ", "≤": "≤ "}[claim.relation]
    condition = f": {claim.condition}" if claim.condition else ""
    command = f"`rooflinekit {claim.command}`"
    return [
        claim.text + source,
        sign + _quantity(claim.said, claim.unit),
        computed,
        f"**{claim.verdict.value}**{condition}",
        claim.because,
        command,
    ]


def _quantity(value: float, unit: str) -> str:
    """Three significant digits, with the unit.

    >>> _quantity(131072.0, "B"), _quantity(295.3, "FLOP/B"), _quantity(46.7e9, ""), _quantity(0.03, "")
    ('131 kB', '295 FLOP/B', '46.7 billion', '0.03')
    """
    if unit == "s":
        return format_time(value)
    if unit == "B":
        return format_bytes(value)
    if unit in _UNITS:
        return format_rate(value, unit)
    if unit == "FLOP":
        return format_count(value, unit)
    if abs(value) >= _MILLION:
        return f"{value / 1e9:.3g} billion" if abs(value) >= _BILLION else f"{value / 1e6:.3g} million"
    return f"{value:,.0f} {unit}".rstrip() if abs(value) >= _WHOLE else f"{value:.3g} {unit}".rstrip()


if __name__ == "__main__":
    sys.stdout.write(claims_markdown() + "\n")
