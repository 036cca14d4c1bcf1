"""`docs/claims.md`: what tutorials state, computed again.

python -m rooflinekit.report.claims > docs/claims.md
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Sequence

from rooflinekit.explanation.claims import Claim, Verdict
from rooflinekit.explanation.claims.audit import TOPICS
from rooflinekit.model.types.units import format_bytes, format_count, format_rate, format_time
from rooflinekit.report.table import markdown

__all__ = ["claims_markdown"]

_HEADER = ["statement", "stated", "computed", "verdict, and what decides"]
_MARKS = {True: "✓", False: "✗"}
_SIGNS = {"=": "", "≥": "≥ ", "≤": "≤ "}
_WHOLE, _MILLION, _BILLION = 999.5, 1e6, 1e9
_UNITS = {"FLOP/s": "FLOP/s", "B/s": "B/s"}


def claims_markdown() -> str:
    """The page: an overview, then a table for each topic."""
    every = [claim for claims in TOPICS.values() for claim in claims]
    found = Counter(claim.verdict for claim in every)
    lines = [
        "# Claims",
        "",
        "Generated from `rooflinekit/explanation/claims/` by `make docs`; do not edit.",
        "",
        f"{len(every)} numbers that are stated about LLM inference, computed again: {found[Verdict.holds]} hold,",
        f"{found[Verdict.conditional]} hold under a condition, {found[Verdict.fails]} do not. Verdicts follow from the",
        "numbers: a statement holds (✓) where the computed number is within the tolerance that stands with it, and",
        "under a condition where that is so in one of two situations. Times are bounds at datasheet rates unless a row",
        "says otherwise. A link is the page on which the statement was read, in other words; what has none is a common",
        "rule of thumb. GB is 1e9 bytes.",
        "",
        "The last column ends with the commands that show the computed number of one situation. Where it takes two",
        "commands, or a step of arithmetic, a and b are what they print, in bytes, FLOP and seconds, and the last line",
        "is the formula. What stands behind a `#` is the key of the JSON to look at. A test runs all commands and",
        "formulas; [`explain`](explain.md) shows in turn where its number comes from.",
    ]
    for topic, claims in TOPICS.items():
        lines += ["", f"## {topic}", "", *markdown(_HEADER, [_row(claim) for claim in claims], left=(0, 1, 2, 3))]
    return "\n".join(lines)


def _row(claim: Claim) -> Sequence[str]:
    source = f" ([source]({claim.where}))" if claim.where.startswith("http") else ""
    about = f" ±\u00a0{100 * claim.tolerance:.2g}\u00a0%" if claim.relation == "=" else ""
    computed = [
        f"{_MARKS[claim.holds_in(case)]} {_quantity(case.value, claim.unit)}: {case.when}" for case in claim.cases
    ]
    return [
        claim.text + source,
        f"{_SIGNS[claim.relation]}{_quantity(claim.said, claim.unit)}".replace(" ", "\u00a0") + about,
        "<br>".join(computed),
        "<br>".join([f"**{claim.verdict.value}**: {claim.because}", *_shown(claim)]),
    ]


def _shown(claim: Claim) -> list[str]:
    """The commands, and the formula if there is one."""
    if claim.reading == "a":
        return [f"`rooflinekit {claim.command}`"]
    formula = re.sub(r"(?<=[\w)])([-+*/])(?=[\w(])", r" \1 ", claim.reading).replace("*", "·").replace("-", "−")
    formula = re.sub(r"\d{5,}", lambda hit: f"{int(hit[0]):,}", formula)
    lines = [f"{letter} = `rooflinekit {command}`" for letter, command in zip("ab", claim.commands, strict=False)]
    return [*lines, formula.replace("1e9", "10⁹")]


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
