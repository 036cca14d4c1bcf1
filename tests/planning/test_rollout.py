"""Rollouts: generation is a played burst, training and weights are worked by hand, published steps are near."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from typer.testing import CliRunner

import rooflinekit as rk
from rooflinekit.cli.app import app
from rooflinekit.decision.planning.rollout import forward_flops
from rooflinekit.estimation.estimator import read_deployment, resolve
from rooflinekit.model.types.errors import InputError

LENGTHS: dict[str, Any] = {"isl": 100, "osl": "lognormal:mean=300,cv=1,max=2000"}


def step(answers: int = 64, gpus: int = 1, **asked: Any) -> rk.RolloutPlan:
    return rk.plan_rollout(answers, "llama-3-8b", rollout_gpus=[gpus], **LENGTHS | asked)


class TestParts:
    def test_generation_is_the_burst_that_estimate_plays(self) -> None:
        load = rk.estimate("llama-3-8b", concurrency=64, requests=64, **LENGTHS).load
        assert load is not None
        assert step().best.generation_s == pytest.approx(load.makespan_s, rel=1e-9)

    def test_a_step_is_a_sum_in_turn_and_a_maximum_apart(self) -> None:
        own = step(gpus=2).best
        assert own.step_s == pytest.approx(own.generation_s + own.training_s + own.sync_s)
        assert own.gpu_hours == pytest.approx(2 * own.step_s / 3600.0)
        apart = step(gpus=2, train_gpus=6).best
        assert apart.training_s == pytest.approx(own.training_s / 3.0)  # on 6 in place of 2
        assert apart.step_s == pytest.approx(max(apart.generation_s, apart.training_s) + apart.sync_s)
        assert apart.gpu_hours == pytest.approx(8 * apart.step_s / 3600.0)

    def test_training_is_five_passes_of_two_flops_a_weight(self) -> None:
        found = step(isl=1000, osl=1000, train_mfu=0.5)
        matrices = rk.parameters("llama-3-8b").active_without_embedding  # the head among them
        attention = 32 * 4 * 4096 * 2000 / 2.0  # layers, two products of width 4096 with half the 2,000 tokens
        each = 5.0 * 2000 * (2.0 * matrices + attention)
        assert found.train_flops == pytest.approx(64 * each, rel=2e-3)
        assert found.best.training_s == pytest.approx(64 * each / (989.4e12 * 0.5), rel=2e-3)
        assert found.tokens == 64 * 2000
        assert step(isl=1000, osl=1000).best.training_s == pytest.approx(2.0 * found.best.training_s)  # 25 % is usual

    @pytest.mark.parametrize("degrees", [{"tp": 4}, {"tp": 2, "pp": 2}, {"dp": 4, "ep": 4}, {}], ids=str)
    def test_flops_do_not_depend_on_who_shares_them(self, degrees: dict[str, int]) -> None:
        def flops(**degrees: int) -> float:
            plan = resolve("qwen3-30b-a3b", "h200", read_deployment(degrees), "none").predictor.plan
            return forward_flops(plan, [500, 1500])

        assert flops(**degrees) == pytest.approx(flops(), rel=0.02)  # of narrow heads, and routers that each has

    def test_weights_come_at_a_rate_to_all_replicas_at_once(self) -> None:
        found = step(gpus=4, load_gbps=8.0)
        assert found.weight_bytes == pytest.approx(8.03e9 * 2, rel=1e-3)
        assert found.best.sync_s == pytest.approx(16.06 / 8.0, rel=1e-3)

    def test_samples_of_a_prompt_share_its_tokens(self) -> None:
        long: dict[str, Any] = {"isl": 4000, "osl": 20}
        assert step(samples=16, **long).best.generation_s < 0.3 * step(**long).best.generation_s


class TestStragglers:
    def test_more_accelerators_do_not_shorten_the_longest_answer(self) -> None:
        found = step(answers=256).steps[0], step(answers=256, gpus=8).steps[0], step(answers=256, gpus=128).steps[0]
        assert [each.generation_s for each in found] == sorted((each.generation_s for each in found), reverse=True)
        assert found[-1].generation_s > 0.5 * found[0].generation_s  # 128 times as many
        assert found[-1].tail_s > 0.3 * found[-1].generation_s

    def test_equal_answers_have_none(self) -> None:
        found = step(osl=300).best
        assert found.tail_s < 0.05 * found.generation_s

    def test_answers_in_flight_wait_for_no_straggler(self) -> None:
        barrier, partial = step(answers=128).best, step(answers=128, in_flight=128).best
        assert partial.tail_s == 0.0
        assert partial.generation_s < 0.7 * barrier.generation_s
        load = rk.estimate("llama-3-8b", concurrency=128, requests=4000, **LENGTHS).load
        assert load is not None
        assert partial.generation_s - partial.recompute_s == pytest.approx(128 / load.rate, rel=0.1)

    def test_caches_of_those_in_flight_are_computed_again(self) -> None:
        again = step(isl=900, osl=200, in_flight=64).best.recompute_s
        prompts = rk.estimate("llama-3-8b", batch=8, isl=1000, osl=1).ttft_ms / 1e3  # 900 and half of 200
        assert again == pytest.approx(8 * prompts, rel=0.1)


PUBLISHED = {"0.4": 241.0, "0.6": 231.0}
"""Seconds of a step of Qwen3-235B-A22B with NeMo RL one step behind, 256 H100, half of them for each
(docs/about/performance-summary.md, 06beed91 and 7ea279ab): 512 answers, 5,691 to 5,721 tokens with the prompt in the
mean, 8,192 at most; TP8. Training waits for generation there (pull request 3278)."""


@pytest.mark.parametrize("release", PUBLISHED)
def test_a_published_step_is_near(release: str) -> None:
    """Assumed: prompts of 150 tokens, answers that vary by half, weights that come in no time."""
    found = rk.plan_rollout(
        512, "qwen3-235b-a22b", isl=150, osl="lognormal:mean=6150,cv=0.5,max=8042", samples=16, tp=8, rollout_gpus=128,
        train_gpus=128, train_mfu=0.1, load_gbps=1000,
    )  # fmt: skip
    assert found.tokens / 512 == pytest.approx(5700, rel=0.01)
    assert found.best.generation_s > found.best.training_s
    assert 0.8 < found.best.step_s / PUBLISHED[release] < 1.05


class TestCommand:
    def test_it_prints_what_the_library_answers(self) -> None:
        words = ["plan", "llama-3-8b", "--rollout", "64", "--isl", "100", "--osl", "300", "--rollout-gpus", "1,2"]
        said = json.loads(CliRunner().invoke(app, [*words, "--format", "json"]).stdout)
        own = rk.plan_rollout(64, "llama-3-8b", isl=100, osl=300, rollout_gpus=[1, 2])
        assert said == json.loads(json.dumps(replace(own).to_dict()))
        text = CliRunner().invoke(app, words).stdout
        assert "64 answers a step" in text
        assert "25 % of the 16-bit peak" in text
        assert "The fewest GPU-hours: 1 GPU, " in text
        assert "on 1 GPU generation takes" in text
        assert max(map(len, text.splitlines())) <= 80

    def test_its_table_fits_eighty_columns(self) -> None:
        words = ["plan", "llama-3-8b", "--rollout", "512", "--samples", "8", "--osl", "lognormal:mean=900,cv=0.7"]
        said = CliRunner().invoke(app, [*words, "--rollout-gpus", "1,8,128"]).stdout
        assert max(map(len, said.splitlines())) <= 80

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["--rollout", "64", "--rate", "3"], "--rate has no part"),
            (["--rollout", "64", "--tp", "1,2"], "give tp once"),
            (["--rollout", "64", "--tp", "2", "--rollout-gpus", "3"], "a replica takes 2"),
            (["--rollout", "64", "--max", "batch"], "leave --max"),
            (["--samples", "4"], "goes with --rollout"),
        ],
    )
    def test_refusals_are_one_line(self, words: list[str], said: str) -> None:
        result = CliRunner().invoke(app, ["plan", "llama-3-8b", *words])
        assert result.exit_code == 2
        assert said in result.stderr

    @pytest.mark.parametrize("answers", [0, 2.5, "many"])
    def test_answers_are_a_whole_number(self, answers: Any) -> None:
        with pytest.raises(InputError, match="answers"):
            rk.plan_rollout(answers, "llama-3-8b")
