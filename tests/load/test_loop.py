"""The loop against the object simulator: the same load, the same bits."""

from __future__ import annotations

import pytest
from random_loads import clients_of, outcome, played, random_load, rules_of, simulate, state_of, tables_of

from rooflinekit.load.arrays import Clients
from rooflinekit.load.played import play as play_clients
from rooflinekit.load.policies import POLICIES, Limits
from rooflinekit.load.policies import rules_of as loop_rules
from rooflinekit.load.table import constant_table


def play(load):
    return outcome(load, played(clients_of(load), rules_of(load), *tables_of(load), state_of(load)))


@pytest.mark.parametrize("seed", [*range(60), 456])  # 456: a queue in front of all replicas that is full
def test_a_random_load_is_what_the_object_simulator_makes_of_it(seed):
    load = random_load(seed)
    assert play(load) == simulate(load)


@pytest.mark.long
def test_a_thousand_random_loads_are_what_the_object_simulator_makes_of_them():
    loads = {seed: random_load(seed) for seed in range(60, 1060)}
    assert [seed for seed, load in loads.items() if play(load) != simulate(load)] == []


def test_random_loads_have_all_that_an_engine_may_do():
    loads = [random_load(seed) for seed in range(60)]
    assert {load.plan for load in loads} == {"vllm", "sglang", "trtllm", "dp8", "halves"}
    assert len({load.limits.policy for load in loads}) == 6
    assert {load.router for load in loads if load.replicas > 1} == {"round-robin", "random", "least-loaded", "shared"}
    assert any(load.drafted for load in loads)
    assert any(load.encoders[0] for load in loads)
    assert any(simulate(load)[2] > 0 for load in loads if load.blocks * load.block == 4000)  # preempted


def imported(sends, osl, blocks, **limits):
    """Requests of a decode replica whose steps take 10 ms; prompts of 16 tokens fill a block."""
    n = len(sends)
    clients = Clients(0, 0, sends, [16] * n, osl, [0] * n, [0] * n, [0.0] * n, [])
    rules = loop_rules(Limits(imports=True, overlap=0, **limits), blocks, 16)
    return play_clients(clients, rules, constant_table(0.01).arrays)


@pytest.mark.parametrize("policy", ["chunked", "chunked-prefill", "prefill-priority"])
def test_prompts_that_come_computed_decode_in_the_next_step_and_take_none_of_their_own(policy):
    done = imported([0.0, 0.015], [5, 3], 100, policy=POLICIES[policy])
    assert list(done.first) == pytest.approx([0.0, 0.02])  # the first token comes with the prompt
    assert list(done.end) == pytest.approx([0.04, 0.04])  # four steps of the one, the last two with the other
    assert done.replicas["prompt_tokens"].sum() == 0
    assert done.replicas["steps_made"].sum() == 4


def test_prompts_that_come_computed_wait_for_blocks_of_their_own():
    done = imported([0.0, 0.0], [5, 5], 3)  # 16 tokens of the prompt and four more: two blocks each
    assert list(done.end) == pytest.approx([0.04, 0.08])


def test_a_computed_prompt_that_lost_its_place_is_computed_again():
    done = imported([0.0, 0.0], [17, 17], 4, token_budget=512)  # both fit at first, and one of them to its end
    assert done.preempted == 0
    crowded = imported([0.0, 0.0], [40, 40], 5, token_budget=512)
    assert crowded.preempted == 1
    assert crowded.replicas["prompt_tokens"].sum() > 16
