"""The loop against the object simulator: the same load, the same bits."""

from __future__ import annotations

import pytest
from random_loads import clients_of, outcome, played, random_load, rules_of, simulate, state_of, tables_of


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
