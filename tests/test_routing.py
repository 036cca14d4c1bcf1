"""Routing: popularity, distinct experts and the fullest rank, against enumeration and against simulated routers."""

from __future__ import annotations

import math
from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rooflinekit as rk
from rooflinekit.model.kernels.routing import Routing, counted_maximum, expected_maximum, popularity


def visited(rng, routing, tokens):
    """The k highest of log-weights with Gumbel noise: k draws without replacement."""
    scores = -routing.skew * np.log(np.arange(1, routing.experts + 1)) + rng.gumbel(size=(tokens, routing.experts))
    return np.argpartition(-scores, routing.top_k - 1, axis=1)[:, : routing.top_k]


def simulated(routing, tokens, runs, seed=1):
    """Mean pairs on the fullest rank, and distinct experts over all ranks; experts lie anywhere."""
    rng, full, distinct = np.random.default_rng(seed), 0.0, 0.0
    for _ in range(runs):
        counts = np.bincount(visited(rng, routing, tokens).ravel(), minlength=routing.experts)
        rank = rng.permutation(routing.experts) // routing.local
        full += np.bincount(rank, weights=counts).max() / runs
        distinct += (counts > 0).sum() / runs
    return full, distinct


def test_popularity_by_enumeration():
    # three experts of weights 1, 1/2, 1/3, two drawn: sum over the ordered pairs
    weights = [1.0, 1 / 2, 1 / 3]
    share = [0.0] * 3
    for first, second in permutations(range(3), 2):
        chance = weights[first] / sum(weights) * weights[second] / (sum(weights) - weights[first])
        share[first] += chance
        share[second] += chance
    assert popularity(3, 2, 1.0) == pytest.approx(share, rel=2e-3)


@given(experts=st.integers(1, 64), top_k=st.integers(1, 8), skew=st.floats(0.0, 3.0))
def test_shares_add_up_to_k_and_fall_with_rank(experts, top_k, skew):
    top_k = min(top_k, experts)
    shares = popularity(experts, top_k, skew)
    assert sum(shares) == pytest.approx(top_k, rel=2e-2)
    assert all(0.0 <= later <= earlier + 1e-9 <= 1.0 + 1e-6 for earlier, later in pairwise(shares))


@pytest.mark.parametrize(("routing", "tokens", "runs"), [
    (Routing(256, 8, 8, 0.0), 1, 6000),  # DeepSeek-V3 on 8 ranks, one token
    (Routing(256, 8, 8, 0.0), 5, 2000),
    (Routing(256, 8, 8, 0.0), 64, 1500),
    (Routing(256, 8, 64, 0.0), 2, 3000),  # four experts a rank, a quarter of a pair each
    (Routing(256, 8, 64, 0.0), 100, 1000),
    (Routing(256, 8, 256, 0.0), 4, 3000),  # one expert a rank
    (Routing(8, 2, 2, 0.0), 1, 8000),  # Mixtral on two ranks
    (Routing(8, 2, 8, 0.0), 6, 3000),
    (Routing(128, 4, 4, 0.0), 40, 2000),  # gpt-oss-120b
    (Routing(128, 1, 8, 0.0), 3, 4000),
    (Routing(256, 8, 8, 1.2), 1, 4000),
    (Routing(256, 8, 8, 1.2), 48, 3000),
    (Routing(256, 8, 64, 0.6), 64, 2000),
    (Routing(128, 4, 8, 1.0), 64, 4000),
    (Routing(8, 2, 2, 1.2), 64, 8000),
])  # fmt: skip
def test_the_fullest_rank_within_2_percent_of_simulation(routing, tokens, runs):
    full, distinct = simulated(routing, tokens, runs)
    assert routing.fullest(float(tokens))[0] == pytest.approx(full, rel=0.02)
    assert routing.distinct(float(tokens)) == pytest.approx(distinct, rel=0.02)


def test_one_token_on_two_ranks_by_enumeration():
    # 2 of 8 experts, 4 on each rank: both on one rank with 2·C(4, 2)/C(8, 2) = 12/28, so 1 + 12/28 pairs on the fullest
    assert Routing(8, 2, 2).fullest(1.0)[0] == pytest.approx(1 + 12 / 28)
    # each expert on its own rank: one pair, always
    assert Routing(8, 2, 8).fullest(1.0) == (pytest.approx(1.0), pytest.approx(1.0))


def test_the_fullest_of_many_is_the_extreme_value_of_a_normal():
    # 8 ranks, 32,768 pairs each, variance 1 - 7/255 of the mean; the mean largest of 8 normal numbers is 1.4236
    mean = 32768.0
    expected = mean + 1.4236 * math.sqrt(mean * (1 - 7 / 255))
    assert Routing(256, 8, 8).fullest(mean)[0] == pytest.approx(expected, rel=2e-4)


def test_exact_and_independent_counts_agree_where_they_meet():
    exact = counted_maximum([(3.0, 8 / 256)] * 8, 24)
    assert expected_maximum([(3.0, 7 / 255)] * 8) == pytest.approx(exact, rel=0.01)


@given(
    ranks=st.sampled_from([1, 2, 4, 8]), skew=st.sampled_from([0.0, 0.5, 1.2]), tokens=st.integers(1, 100_000)
)  # fmt: skip
def test_bounds_of_the_fullest_rank(ranks, skew, tokens):
    routing = Routing(64, 6, ranks, skew)
    pairs, touched = routing.fullest(float(tokens))
    mean = tokens * 6 / ranks
    assert mean * (1 - 1e-9) <= pairs <= tokens * min(6, routing.local) * (1 + 1e-9)
    assert 0.0 < touched <= min(pairs, routing.local) * (1 + 1e-9)


@given(tokens=st.lists(st.integers(1, 10**6), min_size=1, max_size=5), skew=st.sampled_from([0.0, 1.0]))
def test_many_scenarios_at_once_are_the_scenarios(tokens, skew):
    routing = Routing(128, 4, 8, skew)
    pairs, touched = routing.fullest(np.array(tokens, float))
    for index, count in enumerate(tokens):
        assert routing.fullest(float(count)) == pytest.approx((pairs[index], touched[index]))


def test_skew_fills_a_rank_and_touches_fewer_experts():
    loads = [Routing(256, 8, 16, skew).fullest(128.0) for skew in (0.0, 0.5, 1.0, 1.5)]
    assert [pairs for pairs, _ in loads] == sorted(pairs for pairs, _ in loads)
    assert [touched for _, touched in loads] == sorted((touched for _, touched in loads), reverse=True)


def test_redundant_experts_even_the_ranks():
    # DeepSeek-V3's 32 copies on 32 ranks: what is left is the noise of uniform routing
    plain, spread = Routing(256, 8, 32, 1.0), Routing(256, 8, 32, 1.0, copies=32)
    uniform = Routing(256, 8, 32)
    assert spread.local == 9
    assert plain.imbalance(4096.0) > 2.0
    assert spread.imbalance(4096.0) == pytest.approx(uniform.imbalance(4096.0), rel=0.05)


def test_copies_against_a_simulation():
    routing = Routing(64, 4, 8, 1.0, copies=8)
    shares, rng = popularity(64, 4, 1.0), np.random.default_rng(3)
    counts = [1] * 64
    for _ in range(8):
        counts[max(range(64), key=lambda expert: shares[expert] / counts[expert])] += 1
    held, where = [[] for _ in range(8)], [[] for _ in range(64)]
    copies = [(shares[e] / counts[e], e) for e in range(64) for _ in range(counts[e])]
    for share, expert in sorted(copies, reverse=True):
        rank = min((r for r in range(8) if len(held[r]) < 9), key=lambda r: sum(held[r]))
        held[rank].append(share)
        where[expert].append(rank)
    full = 0.0
    for _ in range(1500):
        load = np.zeros(8)
        for expert, count in enumerate(np.bincount(visited(rng, routing, 96).ravel(), minlength=64)):
            load += np.bincount(rng.choice(where[expert], count), minlength=8)
        full += load.max() / 1500
    assert routing.fullest(96.0)[0] == pytest.approx(full, rel=0.02)


def test_a_little_skew_changes_little():
    even, nearly = (rk.estimate("gpt-oss-120b", tp=4, ep=4, batch=32, skew=skew).tpot_ms for skew in (0.0, 0.05))
    assert nearly == pytest.approx(even, rel=0.03)


def test_a_step_reads_fewer_experts_where_some_are_popular():
    """Of DeepSeek's 256 experts 32 tokens touch 163 with even routing, and 124 with a skew of 0.8; one token 8."""
    for tokens, share in ((1, 1.0), (32, 124.2 / 163.3)):
        popular, even = (
            next(k for k in rk.estimate("deepseek-v3", "h200-sxm", tp=8, batch=tokens, skew=skew).decode.kernels
                 if k.name == "experts")
            for skew in (0.8, 0.0)
        )  # fmt: skip
        assert popular.flops == pytest.approx(even.flops)
        assert popular.weight_bytes / even.weight_bytes == pytest.approx(share, rel=1e-3)


def test_a_copy_more_on_each_rank_levels_them():
    """EPLB's copies: 32 ranks of 256 experts wait three times the mean without, a fifth more with 32."""
    alone, copied = (Routing(256, 8, 32, 0.8, copies).imbalance(512.0) for copies in (0, 32))
    assert alone > 3.0
    assert copied < 1.2
