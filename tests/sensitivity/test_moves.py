"""Moves: each is what `estimate` says of the changed deployment; impossible ones say why; nothing is assumed."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from typer.testing import CliRunner

import rooflinekit as rk
from rooflinekit.cli.app import app
from rooflinekit.decision.sensitivity.levers import Levers
from rooflinekit.decision.sensitivity.moves import NO_CHANGE, MoveResult

BATCH: dict[str, Any] = {"batch": 16, "isl": 1000, "osl": 100}
USERS: dict[str, Any] = {"concurrency": 32, "isl": 1000, "osl": 50, "requests": 300}


def one(found: Levers, start: str) -> MoveResult:
    return next(move for move in found.moves if move.move.startswith(start))


@pytest.fixture(scope="module")
def static() -> Levers:
    return rk.levers("llama-3-8b", gpus="h200-sxm,l40s=0.9", prefix=0.5, **BATCH)


class TestMoves:
    @pytest.mark.parametrize(
        ("start", "change"),
        [
            ("fp8 weights", {"weights": "fp8"}),
            ("int4 weights", {"weights": "int4"}),
            ("fp8 cache", {"kv": "fp8"}),
            ("tp 2", {"tp": 2}),
            ("batch 32", {"batch": 32}),
            ("engine sglang", {"engine": "sglang"}),
            ("gpu h200-sxm", {"gpu": "h200-sxm"}),
            ("prefix cache", {"cached": 500}),
        ],
    )
    def test_each_is_what_estimate_says(self, static: Levers, start: str, change: dict[str, Any]) -> None:
        then = rk.estimate("llama-3-8b", **(BATCH | change))
        now = rk.estimate("llama-3-8b", **BATCH)
        move = one(static, start)
        assert move.answer is not None
        assert move.answer.tpot_ms == pytest.approx(then.tpot_ms)
        assert move.ratio["ttft"] == pytest.approx((then.ttft_ms or 0) / (now.ttft_ms or 1))
        assert move.ratio["throughput"] == pytest.approx(then.output_tok_s_per_gpu / now.output_tok_s_per_gpu)

    @pytest.mark.slow
    def test_at_a_rate_as_well(self) -> None:
        asked = {"rate": 6.0, "isl": 1000, "osl": 50, "isl_cv": 0.5, "requests": 300}
        found = rk.levers("llama-3-8b", gpus=[], by="tpot", prefix=0.5, **asked)
        now, then = rk.estimate("llama-3-8b", **asked), rk.estimate("llama-3-8b", **asked, weights="fp8")
        assert (found.answer.ttft_ms, found.answer.tpot_ms) == (now.ttft_ms, now.tpot_ms)
        assert found.answer.joules_per_output_token == now.energy.energy_per_output_token_j
        assert (found.inputs["rate"], found.inputs["concurrency"], found.inputs["batch"]) == (6.0, None, None)
        fewer = one(found, "fp8 weights").answer
        assert fewer is not None
        assert fewer.tpot_ms == then.tpot_ms
        cached = one(found, "prefix cache")
        assert cached.ratio["ttft"] < 0.9
        more = one(found, "rate 12")
        assert more.ratio["throughput"] == pytest.approx(2.0, rel=0.05)
        over = rk.levers("llama-3-8b", gpus=[], rate=60.0, osl=50, requests=300)
        assert not over.answer.stable
        assert over.warnings[0].startswith("overload")

    def test_under_load_as_well(self) -> None:
        found = rk.levers("llama-3-8b", gpus=[], **USERS)
        then = rk.estimate("llama-3-8b", **(USERS | {"weights": "fp8"}))
        move = one(found, "fp8 weights")
        assert move.answer is not None
        assert move.answer.tpot_ms == pytest.approx(then.tpot_ms)
        assert move.answer.ttft_ms == pytest.approx(then.ttft_ms)
        assert move.answer.output_tok_s == pytest.approx(then.output_tok_s)

    def test_an_engine_that_could_prepare_steps_ahead_is_told_to(self) -> None:
        """vLLM before 0.14 does where it is told: 0.74 ms of the host are then hidden. Later ones do anyway."""
        move = one(rk.levers("llama-3-8b", engine="vllm@0.11.0", **BATCH), "async scheduling")
        told = rk.estimate("llama-3-8b", engine="vllm@0.11.0", async_scheduling="on", **BATCH)
        silent = rk.estimate("llama-3-8b", engine="vllm@0.11.0", **BATCH)
        assert move.answer is not None
        assert move.answer.tpot_ms == pytest.approx(told.tpot_ms)
        assert silent.tpot_ms - told.tpot_ms > 0.5
        assert "async scheduling" not in [each.move for each in rk.levers("llama-3-8b", **BATCH).moves]

    @pytest.mark.slow
    def test_a_prefix_cache_helps_under_load(self) -> None:
        found = rk.levers("llama-3-8b", gpus=[], prefix=0.8, **USERS)
        ratio = one(found, "prefix cache").ratio
        assert ratio["ttft"] is not None
        assert ratio["ttft"] < 1.0
        assert (ratio["tpot"] or 2.0) < 1.0

    @pytest.mark.parametrize(("by", "sign"), [("cost", 1), ("tpot", 1), ("ttft", 1), ("throughput", -1)])
    def test_ranked(self, by: str, sign: int) -> None:
        found = rk.levers("llama-3-8b", by=by, gpus="l40s", price=3.0, calibration="none", **BATCH).moves
        moves = [move for move in found if move.reason != NO_CHANGE]
        gains = [sign * gain for move in moves if (gain := move.ratio.get(by)) is not None]
        assert gains == sorted(gains)
        assert [move.possible for move in moves] == sorted((move.possible for move in moves), reverse=True)

    def test_what_changes_nothing_is_not_ranked(self) -> None:
        """A chunk of twice the budget holds the same prompts of 1,000 tokens at batch 1."""
        found = rk.levers("llama-3-8b", gpus=[], batch=1, isl=1000, osl=100)
        idle = one(found, "chunks of 16384")
        assert (idle.possible, idle.reason) == (True, NO_CHANGE)
        ranked = [move for move in found.moves if move.possible and move.reason != NO_CHANGE]
        assert found.moves.index(idle) >= len(ranked)
        assert all(any(abs((value or 2.0) - 1.0) >= 5e-3 for value in move.ratio.values()) for move in ranked)

    def test_weaker_evidence_stands_apart(self) -> None:
        found = rk.levers("llama-3-8b", gpus={"mi300x": 0.1, "h200-sxm": 3.5}, **BATCH)
        levels = [move.evidence for move in found.moves if move.possible and not move.reason]
        assert found.evidence == "measured"
        assert one(found, "gpu mi300x").evidence == "stand-in"
        assert levels == sorted(levels, key=("measured", "stand-in").index)

    def test_prices_are_those_given_for_every_accelerator(self) -> None:
        """A bare number is that of the present one; the others stay with the catalogue, which is said."""
        hours = {"h100-sxm": 2.0, "h200-sxm": 9.0}
        found = rk.levers("llama-3-8b", gpus="h200-sxm", price=hours, calibration="none", **BATCH)
        there = one(found, "gpu h200-sxm").answer
        assert there is not None
        assert there.usd_per_million_output == pytest.approx(9.0 / 3600.0 / there.output_tok_s * 1e6)
        bare = rk.levers("llama-3-8b", gpus="h200-sxm", price=2.0, calibration="none", **BATCH)
        assert any("not like for like" in warning for warning in bare.warnings)
        unknown = rk.levers("llama-3-8b", gpus="l40s", calibration="none", **BATCH)
        assert any("no price is known for l40s" in warning for warning in unknown.warnings)

    def test_cost_is_the_price_over_the_rate(self, static: Levers) -> None:
        """2.95 USD an hour over 3600 s and the tokens of a second."""
        now = static.answer
        assert now.usd_per_million_output == pytest.approx(2.95 / 3600.0 / now.output_tok_s * 1e6)
        l40s = one(static, "gpu l40s").answer
        assert l40s is not None
        assert l40s.usd_per_million_output == pytest.approx(0.9 / 3600.0 / l40s.output_tok_s * 1e6)

    def test_cost_is_that_of_all_accelerators(self) -> None:
        now = rk.levers("llama-3-8b", tp=2, gpus=[], price=1.8, calibration="none", **BATCH).answer
        assert now.usd_per_million_output == pytest.approx(2 * 1.8 / 3600.0 / now.output_tok_s * 1e6)
        assert now.gpu_seconds_per_token == pytest.approx(2.0 / now.output_tok_s)

    def test_latent_attention_keeps_576_elements(self, static: Levers) -> None:
        move = one(static, "MLA model").answer
        assert move is not None
        assert move.kv_bytes_per_token == 32 * 576 * 2
        assert static.answer.kv_bytes_per_token == 32 * 2 * 8 * 128 * 2

    def test_an_accelerator_that_is_too_small_is_tried_with_more(self) -> None:
        found = rk.levers("llama-3-70b", "h200-sxm", tp=2, gpus="h100-sxm", isl=100, osl=10, weights="bf16")
        assert one(found, "gpu h100-sxm").move == "gpu h100-sxm"
        found = rk.levers("llama-3-70b", "h200-sxm", tp=2, gpus="l40s=1", isl=100, osl=10)
        assert one(found, "gpu l40s").move == "gpu l40s tp 4"


class TestImpossible:
    def test_nothing_is_assumed(self) -> None:
        found = rk.levers("llama-3-8b", gpus=[], **BATCH)
        assert "give --prefix" in one(found, "prefix cache").reason
        assert "none is assumed" in one(found, "speculation").reason

    def test_a_format_without_units(self) -> None:
        found = rk.levers("llama-3-8b", "mi250x", gpus=[], **BATCH)
        assert "mi250x has no fp8 arithmetic" in one(found, "fp8 weights").reason

    def test_what_is_there_already(self) -> None:
        found = rk.levers("deepseek-v3", "h200-sxm", tp=8, gpus=[], kv="fp8", **BATCH)
        assert one(found, "fp8 weights").reason == "the weights are fp8_block already"
        assert one(found, "fp8 cache").reason == "the cache is fp8 already"
        assert "latent attention already" in one(found, "MLA model").reason

    def test_a_split_that_does_not_divide_or_exist(self) -> None:
        found = rk.levers("llama-3-8b", tp=8, gpus=[], **BATCH)
        assert not one(found, "tp 16").possible
        assert one(found, "tp 16").reason

    def test_a_batch_that_does_not_fit(self) -> None:
        found = rk.levers("llama-3-8b", gpus=[], batch=200, isl=2000, osl=200)
        assert "does not fit" in one(found, "batch 400").reason

    def test_the_present_accelerator(self) -> None:
        assert one(rk.levers("llama-3-8b", gpus="h100-sxm", **BATCH), "gpu h100").reason == "it is the present one"

    def test_no_price_no_dollars(self) -> None:
        found = rk.levers("llama-3-8b", "l40s", gpus="h100-sxm", **BATCH)
        assert found.price is None
        assert found.answer.usd_per_million_output is None
        assert one(found, "gpu h100-sxm").ratio["cost"] is None
        assert one(found, "fp8 cache").ratio["cost"] is not None
        assert any("l40s has no price" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    ("scenario", "message"),
    [
        ({"by": "speed"}, "unknown metric 'speed'"),
        ({"batch": 2, "concurrency": 4}, "excludes concurrency"),
        ({"prefix": 1.5}, "from 0 to 1"),
        ({"gpus": "h1000"}, "unknown accelerator"),
        ({"gpus": "h200-sxm=cheap"}, "price of h200-sxm"),
        ({"gpus": 7}, "gpus must be names"),
        ({"models": "lama"}, "unknown model"),
        ({"draft": "eagle"}, "needs draft_tokens"),
        ({"bach": 2}, "unknown option 'bach'; nearest: batch"),
        ({"years": 3}, "years belongs to a purchase"),
        ({"purchase": 3}, "purchase needs years"),
        ({"batch": 1.5}, "batch must be a whole number"),
    ],
)
def test_bad_input_is_one_line(scenario: dict[str, Any], message: str) -> None:
    with pytest.raises(rk.InputError, match=message) as error:
        rk.levers("llama-3-8b", **scenario)
    assert "\n" not in str(error.value)


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["levers", "llama-3-8b", "--calibration", "none", "--gpus", "h200-sxm", *words])


class TestCommand:
    def test_the_table_fits_a_terminal(self) -> None:
        result = CliRunner().invoke(app, ["levers", "llama-3-8b", "--batch", "64", "--prefix", "0.5"])
        assert result.exit_code == 0
        assert max(map(len, result.stdout.splitlines())) <= 80
        assert result.stdout.count("measure quality on your task") == 1
        assert "network bandwidth" not in result.stdout  # of one GPU: it changes nothing

    def test_json_is_strict_and_csv_is_a_row_a_move(self) -> None:
        data = json.loads(run("--format", "json").stdout)
        rows = list(csv.DictReader(io.StringIO(run("--format", "csv").stdout)))
        assert [row["move"] for row in rows] == [move["move"] for move in data["moves"]]
        assert data["advice"][0]["option"] == "--weights int4"

    @pytest.mark.parametrize(("load", "row"), [("--rate", "rate"), ("--concurrency", "users")])
    def test_a_load_is_named(self, load: str, row: str) -> None:
        said = run(load, "4", "--isl", "500", "--osl", "20", "--requests", "100").stdout
        assert any(line.startswith(f"{row} ") for line in said.splitlines())

    def test_markdown(self) -> None:
        assert run("--format", "md").stdout.count("|:--|--:|") == 2

    def test_it_does_not_fit(self) -> None:
        result = CliRunner().invoke(app, ["levers", "llama-3-70b"])
        assert result.exit_code == 3
        with pytest.raises(rk.DoesNotFitError, match=r"would fit: --tp 2, or --weights fp8$"):
            rk.levers("llama-3-70b")


def test_experts_on_two_a_prompt_that_is_all_cached_and_the_carbon_of_a_token():
    found = rk.levers("gpt-oss-20b", isl=1000, tp=2, prefix=1.0, carbon=380, calibration="none")
    moves = {each.move: each for each in found.moves}
    assert moves["dp 2 ep 2"].changes == {"tp": 1, "dp": 2, "ep": 2}
    assert moves["prefix cache 100 %"].changes == {
        "cached": 999
    }  # the last token is computed for the first of the answer
    assert any(note.startswith("CO2: ") for note in found.warnings)
