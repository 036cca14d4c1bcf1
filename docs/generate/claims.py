"""`docs/claims.md`: numbers that tutorials on LLM inference state, computed again, with the verdict that follows.

python -m docs.generate.claims > docs/claims.md

The claims are data, `claims.yaml` beside this file.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

import yaml

from rooflinekit.estimation.estimator import estimate
from rooflinekit.explanation.front import explain
from rooflinekit.model.types.units import format_bytes, format_count, format_rate, format_time
from rooflinekit.report.catalogue import accelerator_entry, model_entry
from rooflinekit.report.document import Table
from rooflinekit.specs import load_accelerator, load_model
from rooflinekit.specs.escaping import Marked
from rooflinekit.specs.files import read_yaml
from rooflinekit.specs.locate import names

__all__ = ["Claim", "Verdict", "claims_markdown", "load_claims", "number_at"]


class Verdict(StrEnum):
    """What the numbers say."""

    holds = "holds"
    conditional = "holds under a condition"
    fails = "does not hold"


@dataclass(frozen=True)
class Claim:
    """A number that is stated, and one or two situations in which it is computed; `claims.yaml` says what each is.

    >>> Claim("a tonne is 1,000 kg", 1000.0, {"by definition": "1e3"}, {}, "").verdict
    <Verdict.holds: 'holds'>
    """

    claim: str
    stated: float
    cases: Mapping[str, str]
    commands: Mapping[str, str]
    because: str
    source: str = ""
    unit: str = ""
    relation: Literal["=", "≥", "≤"] = "="
    tolerance: float = 0.02

    @cached_property
    def values(self) -> dict[str, float]:
        """The number in each situation."""
        letters = {letter: _printed(command) for letter, command in self.commands.items()}
        return {case: float(eval(formula, {"__builtins__": {}}, letters)) for case, formula in self.cases.items()}

    def holds_in(self, case: str) -> bool:
        """Whether the statement is right there, within its tolerance."""
        value, slack = self.values[case], self.tolerance * abs(self.stated)
        if self.relation == "≥":
            return value >= self.stated - slack
        return value <= self.stated + slack if self.relation == "≤" else abs(value - self.stated) <= slack

    @property
    def verdict(self) -> Verdict:
        """Whether it is right in every situation, in one of two, or in none."""
        right = [self.holds_in(case) for case in self.cases]
        return Verdict.holds if all(right) else Verdict.conditional if any(right) else Verdict.fails


@cache
def load_claims() -> dict[str, tuple[Claim, ...]]:
    """All claims by topic, in the order of the page."""
    topics = read_yaml(Path(__file__).with_name("claims.yaml"))
    return {topic: tuple(Claim(**claim) for claim in claims) for topic, claims in topics.items()}


@cache
def _printed(command: str) -> float:
    """The number that a command prints, from the functions that it calls."""
    words, _, path = command.partition(" # ")
    verb, name, *rest = words.split()
    metric = rest.pop(0) if verb == "explain" else ""
    options = {key.replace("-", "_"): value for key, value in _options(rest) if key != "format"}
    if verb == "explain":
        return number_at(explain(name, metric, **options).to_dict(), "derivation.value")
    if verb == "estimate":
        return number_at(estimate(name, **options).to_dict(), path)
    found = model_entry(load_model(name).value) if name in names("model") else None
    return number_at(found or accelerator_entry(load_accelerator(name).value), path)


def _options(words: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Each `--option` with its value, true where none follows.

    >>> dict(_options(["--tp", "8", "--allow-oom", "--kv", "fp8"]))
    {'tp': 8, 'allow-oom': True, 'kv': 'fp8'}
    """
    for option in " ".join(words).split("--")[1:]:
        key, _, value = option.strip().partition(" ")
        yield key, yaml.safe_load(value) if value else True


def number_at(answer: Any, path: str) -> float:
    """The number under a path of keys; of a list, a key picks the entry of that name.

    >>> number_at({"kernels": [{"name": "rope", "flops": 3}]}, "kernels.rope.flops")
    3.0
    """
    for key in path.split("."):
        answer = (
            next(part for part in answer if part["name"] == key) if isinstance(answer, (list, tuple)) else answer[key]
        )
    return float(answer)


_LEAD = """\
# Claims

Generated from `docs/generate/claims.yaml` by `make docs`; do not edit.

{} numbers that are stated about LLM inference, computed again: {} hold, {} hold under a condition, {} do
not. Verdicts follow from the numbers. A statement holds (✓) where the computed number is within the
tolerance beside it. It holds under a condition where that is so in one of two situations. Times are
bounds at datasheet rates unless a row says otherwise. A link is the page that makes the statement, in
other words. A statement without a link is a common rule of thumb. GB is 1e9 bytes.

The last column ends with the commands that show the computed number of one situation. Where it takes two
commands, or a step of arithmetic, a and b are their outputs in bytes, FLOP and seconds. The last line is
then the formula. Behind a `#` stands the key of the JSON, or the name of a list's entry. A test runs all
commands and formulas; [`explain`](explain.md) shows in turn where its number comes from."""
_HEADER = ["statement", "stated", "computed", "verdict, and what decides"]
_MARKS = {True: "✓", False: "✗"}
_SIGNS = {"=": "", "≥": "≥ ", "≤": "≤ "}
_LETTER = re.compile(r"\b[a-z]\b")
_WHOLE, _MILLION, _BILLION = 999.5, 1e6, 1e9


def claims_markdown() -> str:
    """The page: an overview, then a table for each topic."""
    every = [claim for claims in load_claims().values() for claim in claims]
    verdicts = Counter(claim.verdict for claim in every)
    lines = [_LEAD.format(len(every), *(verdicts[verdict] for verdict in Verdict))]
    for topic, claims in load_claims().items():
        lines += [
            "",
            f"## {topic}",
            "",
            *Table(_HEADER, [[*map(Marked, _row(claim))] for claim in claims], left=(0, 1, 2, 3)).markdown(),
        ]
    return "\n".join(lines)


def _row(claim: Claim) -> Sequence[str]:
    source = f" ([source]({claim.source}))" if claim.source else ""
    about = f" ±\u00a0{100 * claim.tolerance:.2g}\u00a0%" if claim.relation == "=" else ""
    computed = [f"{_MARKS[claim.holds_in(case)]} {_quantity(value, claim.unit)}: {case}"
                for case, value in claim.values.items()]  # fmt: skip
    return [
        claim.claim + source,
        f"{_SIGNS[claim.relation]}{_quantity(claim.stated, claim.unit)}".replace(" ", "\u00a0") + about,
        "<br>".join(computed),
        "<br>".join([f"**{claim.verdict.value}**: {claim.because}", *_shown(claim)]),
    ]


def _shown(claim: Claim) -> list[str]:
    """The commands of one situation, and its formula if there is one."""
    formula = next(formula for formula in claim.cases.values() if set(_LETTER.findall(formula)) <= {"a", "b"})
    if formula == "a":
        return [f"`rooflinekit {claim.commands['a']}`"]
    lines = [f"{letter} = `rooflinekit {claim.commands[letter]}`" for letter in "ab" if letter in formula]
    formula = re.sub(r"(?<=[\w)])([-+*/])(?=[\w(])", r" \1 ", formula).replace("*", "·").replace("-", "−")
    formula = re.sub(r"\d{5,}", lambda hit: f"{int(hit[0]):,}", formula)
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
    if unit in ("FLOP/s", "B/s"):
        return format_rate(value, unit)
    if unit == "FLOP":
        return format_count(value, unit)
    if abs(value) >= _MILLION:
        return f"{value / 1e9:.3g} billion" if abs(value) >= _BILLION else f"{value / 1e6:.3g} million"
    return f"{value:,.0f} {unit}".rstrip() if abs(value) >= _WHOLE else f"{value:.3g} {unit}".rstrip()


if __name__ == "__main__":
    sys.stdout.write(claims_markdown() + "\n")
