"""Dialogues, decoding without a cache, memory that holds nothing, evictions: closed forms and independent routes."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflinekit.decision.economics.cost import (
    Dialogue,
    dialogue_time,
    eviction,
    memory_waste,
    naive_decoding,
    recompute_time,
    swap_time,
)
from rooflinekit.decision.economics.token_prices import token_times, token_work
from rooflinekit.estimation.estimator import read_deployment, resolve
from rooflinekit.load.lengths import Fixed, Uniform
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.serving.flight import InFlight, slots
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.errors import DoesNotFitError


def predictor(model: str = "llama-3-8b", gpu: str = "h100-sxm", calibration: str | None = None, **kw: Any) -> Predictor:
    return resolve(model, gpu, read_deployment(kw), calibration).predictor


PLAIN, BOUND = predictor(), predictor(calibration="none")


def linked(found: Predictor, link: float) -> Predictor:
    """The same with another host link [B/s]."""
    plan = found.plan
    gpu = replace(plan.system.accelerator, pcie_bandwidth=link)
    return found.on(replace(plan, system=replace(plan.system, accelerator=gpu)))


class TestDialogue:
    def test_without_a_cache_tokens_grow_with_the_square(self) -> None:
        """n·(p + q) + (q + a)·n(n − 1)/2: 30 · 600 + 400 · 435."""
        time = dialogue_time(PLAIN, Dialogue(30, 500, 100, 300), 8.0)
        assert time.sent_tokens == 30 * 600 + 400 * 435
        assert time.computed_tokens == 500 + 30 * 100

    def test_one_turn_is_one_request(self) -> None:
        time = dialogue_time(PLAIN, Dialogue(1, 500, 100, 300), 8.0)
        request = token_times(PLAIN, InFlight(8.0, 600.0, 300.0)).request
        assert float(time.cached[0]) == pytest.approx(float(request))
        assert time.saving == 0.0

    def test_turns_are_requests_with_their_history_cached(self) -> None:
        time = dialogue_time(PLAIN, Dialogue(5, 500, 100, 300), 8.0)
        for turn in range(1, 5):
            before = 500.0 + turn * 400.0
            request = token_times(PLAIN, InFlight(8.0, before + 100.0, 300.0, before)).request
            assert float(time.cached[turn]) == pytest.approx(float(request))

    def test_a_shared_system_prompt_is_not_computed(self) -> None:
        own, shared = (dialogue_time(PLAIN, Dialogue(3, 4000, 100, 100, both), 8.0) for both in (False, True))
        assert shared.cached[0] < own.cached[0]
        assert shared.computed_tokens == own.computed_tokens - 4000

    @settings(max_examples=20, deadline=None)
    @given(st.integers(1, 30), st.integers(0, 3000), st.integers(1, 1000), st.integers(1, 500), st.integers(1, 100))
    def test_a_cache_never_costs(self, turns: int, system: int, asked: int, answered: int, users: int) -> None:
        time = dialogue_time(PLAIN, Dialogue(turns, system, asked, answered), float(users))
        assert (time.cached <= time.recomputed * 1.02).all()  # a boundary of chunks may fall badly
        assert time.sent_tokens >= time.computed_tokens

    def test_what_does_not_fit_is_refused(self) -> None:
        with pytest.raises(DoesNotFitError, match="not one dialogue of"):
            dialogue_time(PLAIN, Dialogue(1000, 500, 1000, 1000), 8.0)


class TestRecompute:
    def test_flop_are_tokens(self) -> None:
        """Σ (S + i) tokens against S + N − 1, each about 2·P, at contexts where attention is small."""
        both = naive_decoding(BOUND, 64, 64)
        tokens = sum(64 + i for i in range(64)) / (64 + 63)
        assert both.flops_ratio == pytest.approx(tokens, rel=0.05)

    def test_it_is_the_sum_of_steps(self) -> None:
        both = naive_decoding(PLAIN, 100, 5)
        naive = sum(float(PLAIN.plan.time(Batch.prefill(1.0, 100.0 + i)).expected) for i in range(5))
        cached = float(PLAIN.plan.time(Batch.prefill(1.0, 100.0)).expected)
        cached += sum(float(PLAIN.plan.time(Batch.decode(1.0, 101.0 + i)).expected) for i in range(4))
        assert (both.naive_ms, both.cached_ms) == pytest.approx((naive * 1e3, cached * 1e3))

    def test_one_token_needs_no_cache(self) -> None:
        both = naive_decoding(PLAIN, 500, 1)
        assert (both.flops_ratio, both.time_ratio) == pytest.approx((1.0, 1.0), rel=1e-12)

    def test_a_long_output_is_taken_at_a_thousand_lengths(self) -> None:
        sampled = naive_decoding(BOUND, 10, 3000)
        naive = sum(float(BOUND.plan.time(Batch.prefill(1.0, 10.0 + i)).expected) for i in range(3000))
        assert sampled.naive_ms == pytest.approx(naive * 1e3, rel=1e-3)


class TestWaste:
    def test_of_sequences_that_come_and_go(self) -> None:
        """Tokens held, summed over every step of drawn sequences, against the closed form."""
        rng, held, steps, final = random.Random(1), 0.0, 0, 0.0
        for _ in range(20_000):
            prompt, output = rng.randint(100, 300), rng.randint(10, 500)
            held += output * prompt + output * (output + 1) / 2.0
            final += output * (prompt + output)
            steps += output
        waste = memory_waste(PLAIN, Uniform(100, 300), Uniform(10, 500), 8192)
        assert waste.held_tokens == pytest.approx(held / steps, rel=0.01)
        assert waste.final_tokens == pytest.approx(final / steps, rel=0.01)

    @settings(max_examples=30, deadline=None)
    @given(st.integers(1, 3000), st.integers(1, 3000))
    def test_blocks_waste_less_than_the_end_and_that_less_than_the_longest(self, isl: int, osl: int) -> None:
        waste = memory_waste(PLAIN, Fixed(isl), Fixed(osl), 8192)
        assert 0.0 < waste.reserved_used <= waste.final_used + 1e-12
        assert waste.final_used <= 1.0
        assert waste.paged_used >= isl / (isl + 7.5) - 1e-12
        assert waste.reserved_sequences <= waste.final_sequences <= waste.paged_sequences

    def test_a_window_holds_no_more_than_itself(self) -> None:
        waste = memory_waste(predictor("mistral-7b"), Fixed(5000), Fixed(100), 32_768)
        assert waste.reserved_used == 1.0


class TestEviction:
    def test_a_swap_is_a_line(self) -> None:
        assert swap_time(PLAIN, 4096.0) == pytest.approx(2.0 * swap_time(PLAIN, 2048.0))

    def test_each_accelerator_has_its_own_link(self) -> None:
        assert swap_time(predictor(tp=2), 1024.0) == pytest.approx(swap_time(PLAIN, 1024.0) / 2.0)

    def test_at_the_break_even_link_both_take_as_long(self) -> None:
        found = eviction(PLAIN, 2048, 8192)
        assert found is not None
        same = linked(PLAIN, found.break_even_link_gb_s * 1e9)
        assert swap_time(same, 2048.0) == pytest.approx(recompute_time(same, 2048.0))

    def test_a_slow_link_crosses_where_both_are_equal(self) -> None:
        slow = linked(PLAIN, 10e9)
        found = eviction(slow, 2048, 8192)
        assert found is not None
        assert found.crossings
        choices = [found.short_choice]
        for tokens in found.crossings:
            before, after = (swap_time(slow, n) > recompute_time(slow, n) for n in (tokens - 1.0, tokens))
            assert before != after
            choices.append("recompute" if after else "swap")
        assert choices == ["swap", "recompute"]

    def test_stairs_near_each_other_do_not_cross_again_and_again(self) -> None:
        found = eviction(linked(PLAIN, 12e9), 2048, 8192)
        assert found is not None
        assert len(found.crossings) <= 2

    def test_the_choice_follows_the_link(self) -> None:
        choices = []
        for link in (1e9, 1e12):
            found = eviction(linked(PLAIN, link), 4096, 8192)
            assert found is not None
            choices.append(found.choice)
        assert choices == ["recompute", "swap"]

    def test_no_link(self) -> None:
        assert eviction(linked(PLAIN, 0.0), 100, 200) is None


class TestWhy:
    def test_the_flop_are_those_of_the_parameters(self) -> None:
        """2 · 7.5e9 for the matrices besides the embedding, and attention: an input token has no logits of its own."""
        given, made = token_work(BOUND, token_times(BOUND, InFlight(8.0, 64.0, 2.0)))
        assert given.flops == pytest.approx(2 * 6.98e9, rel=0.02)
        assert made.flops == pytest.approx(2 * 7.50e9, rel=0.02)

    def test_weights_are_shared_by_the_batch(self) -> None:
        few, many = (token_work(BOUND, token_times(BOUND, InFlight(c, 500.0, 20.0)))[1] for c in (4.0, 64.0))
        assert few.weight_bytes == pytest.approx(16.0 * many.weight_bytes)
        assert few.kv_bytes == pytest.approx(many.kv_bytes)

    def test_attention_replicas_share_the_batch(self) -> None:
        both = predictor(dp=2, calibration="none")
        made = token_work(both, token_times(both, InFlight(64.0, 500.0, 20.0)))[1]
        assert made.shared_by == 32.0

    def test_more_sequences_make_output_cheaper_until_the_cache_takes_over(self) -> None:
        room = float(slots(BOUND, 2000.0, 300.0))
        costs = [float(token_times(BOUND, InFlight(c, 2000.0, 300.0)).output) for c in (1.0, 8.0, 64.0, room)]
        assert costs == sorted(costs, reverse=True)
        cache = 2150.0 * 131_072.0 / 3.35e12  # each token waits for its own sequence's cache, whatever the batch
        assert costs[-1] > cache
