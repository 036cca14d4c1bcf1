"""The audit of claims: verdicts follow from numbers, the page is current, every command runs."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

import rooflinekit as rk
from docs.generate.claims import Claim, Verdict, claims_markdown, load_claims, number_at
from rooflinekit.cli.app import app

PAGE = Path(__file__).parents[2] / "docs" / "claims.md"
CLAIMS = [claim for claims in load_claims().values() for claim in claims]
BY_TEXT = {claim.claim: claim for claim in CLAIMS}


def about(words):
    """The one claim whose text holds these words."""
    return next(claim for text, claim in BY_TEXT.items() if words in text)


def numbers(words):
    """The number of each situation, in order."""
    return list(about(words).values.values())


def test_there_are_enough_and_each_stands_once():
    assert len(CLAIMS) >= 60
    assert len(BY_TEXT) == len(CLAIMS)
    assert {claim.verdict for claim in CLAIMS} == set(Verdict)


def test_the_page_is_current():
    assert PAGE.read_text(encoding="utf-8") == claims_markdown() + "\n", "run `make docs`"


def test_verdicts_follow_from_the_numbers():
    """Worked out here by another route: the ratio of computed to stated, case by case."""
    for claim in CLAIMS:
        low = 1 - claim.tolerance if claim.relation != "≤" else float("-inf")
        high = 1 + claim.tolerance if claim.relation != "≥" else float("inf")
        right = [low - 1e-12 <= value / claim.stated <= high + 1e-12 for value in claim.values.values()]
        wanted = Verdict.holds if all(right) else Verdict.conditional if any(right) else Verdict.fails
        assert claim.verdict is wanted, claim.claim
        assert len(right) == 1 or claim.verdict is Verdict.conditional, f"{claim.claim}: leave the second case out"


@cache
def printed(command):
    """The number that a command prints: of `explain` the root of the derivation, else the key named behind the #."""
    words, _, path = command.partition(" # ")
    words = words.split() if "--format json" in words else [*words.split(), "--format", "json"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.stderr
    return number_at(json.loads(result.stdout), path or "derivation.value")


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.claim[:60])
def test_the_commands_print_the_number(claim):
    """What the command line prints makes the number of every situation, and every command is used."""
    letters = {letter: printed(command) for letter, command in claim.commands.items()}
    for case, formula in claim.cases.items():
        shown = eval(compile(formula, "formula", "eval"), {"__builtins__": {}}, letters)
        assert shown == pytest.approx(claim.values[case], rel=1e-9), case
    assert set(re.findall(r"\b[a-z]\b", " ".join(claim.cases.values()))) == set(letters)


def test_each_says_where_and_why():
    for claim in CLAIMS:
        assert not claim.source or claim.source.startswith("https://"), claim.claim
        assert claim.because, claim.claim
        assert {command.split()[0] for command in claim.commands.values()} <= {"estimate", "show", "explain"}


def test_a_range_of_verdicts():
    def verdict(stated, relation="=", *values):
        cases = {str(value): str(value) for value in values}
        return Claim("", stated, cases, {}, "", relation=relation).verdict

    assert verdict(10.1, "=", 10.0) is Verdict.holds
    assert verdict(11.0, "=", 10.0) is Verdict.fails
    assert verdict(2.0, "=", 10.0, 2.0) is Verdict.conditional
    assert verdict(5.0, "≥", 10.0) is Verdict.holds
    assert verdict(5.0, "≤", 10.0, 2.0) is Verdict.conditional


class TestKnownSlips:
    """Hand-worked numbers for the best-known ones."""

    def test_batch_32_is_not_compute_bound(self):
        assert about("Batch 32 is back").verdict is Verdict.fails
        assert numbers("Batch 32 is back") == [pytest.approx(25 / 295, rel=0.02)]

    def test_six_tokens_are_six_flop_a_byte(self):
        assert numbers("Six prompt tokens make") == [pytest.approx(6, rel=0.1)]

    def test_the_cache_of_eight_thousand_tokens_is_gigabytes(self):
        assert numbers("320 KB a token times 8K") == [327_680 * 8192]

    def test_reads_at_tp8(self):
        assert numbers("TP8 reads 6.7 GB") == [80 * 32 * 4096 * 2 * 128 * 2] == [pytest.approx(5.37e9, rel=1e-3)]

    def test_prefill_with_and_without_the_mask(self):
        assert [value / 1e12 for value in numbers("takes 31 TFLOP")] == pytest.approx([29.7, 30.8], rel=1e-3)

    def test_scores_of_six_tokens(self):
        assert numbers("9.4 MFLOP")[1] == 2 * 36 * 4096 * 32

    def test_distinct_experts(self):
        assert numbers("touch 8 of them") == [pytest.approx(163.3, abs=0.05)]

    def test_one_number_by_another_route(self):
        assert numbers("Llama-3-70B caches 320 KB") == [rk.kv_cache_bytes("llama-3-70b", 1)]
