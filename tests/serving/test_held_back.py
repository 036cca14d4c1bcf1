"""Servers that hold prompts back: looks at the queue each so many decode steps, and prompts that are gathered.

Each step takes half a second. The first request comes at 0 and gives its first token at 0.5; it decodes for long.
"""

from __future__ import annotations

import pytest

from rooflinekit.load.arrays import Clients
from rooflinekit.load.played import Played, play
from rooflinekit.load.policies import POLICIES, Limits, rules_of
from rooflinekit.load.table import constant_table
from rooflinekit.model.types.errors import WorkloadError


def played(
    policy: str, sends: list[float], osl: list[int] | None = None, places: int = 8, budget: int = 64, **told: int
) -> Played:
    n = len(sends)
    clients = Clients(0, 0, sends, [8] * n, osl or [40] * n, [0] * n, [0] * n, [0.0] * n, [])
    limits = Limits(POLICIES[policy], max_num_seqs=places, token_budget=budget, **told)
    return play(clients, rules_of(limits, blocks=1000, block=16), constant_table(0.5).arrays)


def firsts(found: Played) -> list[float]:
    return [float(each) for each in found.first]


@pytest.mark.parametrize("policy", ["chunked", "chunked-prefill", "continuous"])
def test_looks_at_the_queue_are_so_many_decode_steps_apart(policy: str) -> None:
    """Looks after the prompt at 0.5, and after four decode steps at 2.5: who came at 0.6 and 2.4 begins then."""
    assert firsts(played(policy, [0.0, 0.6, 2.4])) == [0.5, 1.5, 3.0]
    assert firsts(played(policy, [0.0, 0.6, 2.4], receive_interval=4)) == [0.5, 3.0, 3.0]
    # Nobody came until then: looks at 2.5 and 4.5 too.
    assert firsts(played(policy, [0.0, 2.6], receive_interval=4)) == [0.5, 5.0]


def test_an_idle_engine_looks_at_once() -> None:
    """The answer of two tokens ends at 1.0."""
    assert firsts(played("chunked", [0.0, 1.2], osl=[2, 2], receive_interval=30)) == [0.5, 1.7]


@pytest.mark.parametrize("policy", ["chunked", "continuous"])
def test_prompts_are_gathered_for_so_many_decode_steps(policy: str) -> None:
    """The one that comes at 0.6 is there at 1.0, and waits four steps; two more come meanwhile, one comes too late."""
    sends = [0.0, 0.6, 1.2, 2.9, 3.1]
    assert firsts(played(policy, sends)) == [0.5, 1.5, 2.0, 3.5, 4.0]
    assert firsts(played(policy, sends, batch_wait=4)) == [0.5, 3.5, 3.5, 3.5, 6.0]


def test_prompts_that_fill_a_step_are_gathered_no_longer() -> None:
    """With the third that comes there are 25 tokens for 24: two prompts are computed at 2.0, the third waits anew."""
    found = played("continuous", [0.0, 0.6, 1.2, 1.7], budget=24, batch_wait=9)
    assert firsts(found) == [0.5, 2.5, 2.5, 7.5]


def test_nobody_is_gathered_without_a_place_nor_where_nobody_decodes() -> None:
    """One place: the second begins when the first ends at 1.5, which nothing decodes beside."""
    assert firsts(played("chunked", [0.0, 0.1], osl=[3, 3], places=1, batch_wait=9)) == [0.5, 2.0]
    found = played("chunked", [0.0, 0.1, 0.2], osl=[20, 3, 3], places=2, batch_wait=4)
    # The second waits from 0.5 to 2.5 and ends at 4.0; then the third waits for four more steps.
    assert firsts(found) == [0.5, 3.0, 6.5]


def test_prompts_without_a_place_do_not_fill_a_step():
    """Three wait, 25 tokens for 24, but one place is left: the next is held back for four steps, from 0.5 to 2.5."""
    found = played("chunked", [0.0, 0.1, 0.2, 0.3], osl=[20, 3, 3, 3], places=2, budget=24, batch_wait=4)
    assert firsts(found)[:2] == [0.5, 3.0]
    with_places = played("chunked", [0.0, 0.1, 0.2, 0.3], osl=[20, 3, 3, 3], places=8, budget=24, batch_wait=4)
    assert firsts(with_places)[:2] == [0.5, 1.0]


def test_a_look_at_no_step_is_refused() -> None:
    with pytest.raises(WorkloadError, match="receive_interval must be at least 1"):
        Limits(receive_interval=0)
