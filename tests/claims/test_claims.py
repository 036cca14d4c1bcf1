"""The audit of claims: verdicts follow from numbers, the page is current, every command runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import rooflinekit as rk
from rooflinekit.cli.app import app
from rooflinekit.explanation.claims import Case, Claim, Verdict
from rooflinekit.explanation.claims.audit import TOPICS
from rooflinekit.report.claims import claims_markdown

PAGE = Path(__file__).parents[2] / "docs" / "claims.md"
CLAIMS = [claim for claims in TOPICS.values() for claim in claims]
BY_TEXT = {claim.text: claim for claim in CLAIMS}


def about(words):
    """The one claim whose text holds these words."""
    return next(claim for text, claim in BY_TEXT.items() if words in text)


def test_there_are_enough_and_each_stands_once():
    assert len(CLAIMS) >= 60
    assert len(BY_TEXT) == len(CLAIMS)
    assert {claim.verdict for claim in CLAIMS} == set(Verdict)


def test_the_page_is_current():
    assert PAGE.read_text(encoding="utf-8") == claims_markdown() + "\n", "run `make docs`"


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.text[:60])
def test_the_verdict_follows_from_the_numbers(claim):
    """Worked out here by another route: the ratio of computed to stated, case by case."""
    right = []
    for case in claim.cases:
        ratio = case.value / claim.said
        low = 1 - claim.tolerance if claim.relation != "≤" else float("-inf")
        high = 1 + claim.tolerance if claim.relation != "≥" else float("inf")
        right.append(low - 1e-12 <= ratio <= high + 1e-12)
    wanted = Verdict.holds if all(right) else Verdict.conditional if any(right) else Verdict.fails
    assert claim.verdict is wanted


@pytest.mark.parametrize("claim", [claim for claim in CLAIMS if claim.other], ids=lambda claim: claim.text[:60])
def test_a_second_case_decides_something(claim):
    assert claim.verdict is Verdict.conditional, "leave `other` out"


def printed(command):
    """The number that a command prints: of `explain` the root of the derivation, else the key named behind the #."""
    words, _, path = command.partition(" # ")
    words = words.split() if "--format json" in words else [*words.split(), "--format", "json"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    for key in (path or "derivation.value").split("."):
        found = found[key]
    return float(found)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.text[:60])
def test_the_commands_show_the_number(claim):
    """What the commands print makes the computed number of a case, to the digits that the page shows."""
    numbers = dict(zip("ab", map(printed, claim.commands), strict=False))
    shown = eval(compile(claim.reading, "reading", "eval"), {"__builtins__": {}}, numbers)
    assert set(re.findall(r"\b[a-z]\b", claim.reading)) == set(numbers)
    assert any(shown == pytest.approx(case.value, rel=5e-3) for case in claim.cases)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.text[:60])
def test_each_says_where_and_why(claim):
    assert claim.where.startswith("https://") or claim.where == "common rule of thumb"
    assert claim.because
    assert claim.command.split()[0] in ("estimate", "models", "show", "simulate", "explain")


class TestClaim:
    def test_a_range_of_verdicts(self):
        ten, two = Case("ten", lambda: 10.0), Case("two", lambda: 2.0)
        assert Claim("", 10.1, "", ten, "", "", tolerance=0.02).verdict is Verdict.holds
        assert Claim("", 11.0, "", ten, "", "", tolerance=0.02).verdict is Verdict.fails
        either = Claim("", 2.0, "", ten, "", "", other=two)
        assert either.verdict is Verdict.conditional and either.holds_in(two) and not either.holds_in(ten)
        assert Claim("", 5.0, "", ten, "", "", relation="≥").verdict is Verdict.holds
        most = Claim("", 5.0, "", ten, "", "", relation="≤", other=two)
        assert most.verdict is Verdict.conditional and most.holds_in(two)


class TestKnownSlips:
    """Hand-worked numbers for the best-known ones."""

    def test_batch_32_is_not_compute_bound(self):
        claim = about("Batch 32 is back")
        assert claim.verdict is Verdict.fails
        assert claim.case.value == pytest.approx(25 / 295, rel=0.02)

    def test_six_tokens_are_six_flop_a_byte(self):
        assert about("Six prompt tokens make").case.value == pytest.approx(6, rel=0.1)

    def test_the_cache_of_eight_thousand_tokens_is_gigabytes(self):
        assert about("320 KB a token times 8K").case.value == 327_680 * 8192

    def test_reads_at_tp8(self):
        assert about("TP8 reads 6.7 GB").case.value == 80 * 32 * 4096 * 2 * 128 * 2 == pytest.approx(5.37e9, rel=1e-3)

    def test_prefill_with_and_without_the_mask(self):
        claim = about("takes 31 TFLOP")
        assert (claim.case.value / 1e12, claim.other.value / 1e12) == pytest.approx((29.7, 30.8), rel=1e-3)

    def test_scores_of_six_tokens(self):
        assert about("9.4 MFLOP").other.value == 2 * 36 * 4096 * 32

    def test_distinct_experts(self):
        assert about("touch 8 of them").case.value == pytest.approx(163.3, abs=0.05)

    def test_one_number_by_another_route(self):
        claim = about("Llama-3-70B caches 320 KB")
        assert claim.case.value == rk.kv_cache_bytes("llama-3-70b", 1)
