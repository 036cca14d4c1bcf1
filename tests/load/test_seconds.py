"""Loads played by hand: every step takes one second, so each moment is a whole number."""

from __future__ import annotations

import pytest

from rooflinekit.load.arrays import Clients
from rooflinekit.load.played import Played, Sample, play
from rooflinekit.load.policies import Limits, rules_of
from rooflinekit.load.table import constant_table

SECOND = constant_table(1.0).arrays


def played(send: list[float], isl: list[int], osl: list[int], *, blocks: int = 1000, **limits) -> Played:
    zeros = [0] * len(send)
    clients = Clients(0, 0, send, isl, osl, zeros, zeros, [0.0] * len(send), [])
    return play(clients, rules_of(Limits(**({"max_num_seqs": 64} | limits)), blocks=blocks, block=4), SECOND)


def test_one_place_is_taken_in_turn():
    """Three come at once, each takes a prompt and one more token: the second waits 2 s for its place, the third 4 s."""
    found = played([0.0] * 3, [8] * 3, [2] * 3, max_num_seqs=1)
    assert found.begun.tolist() == [0.0, 2.0, 4.0]
    assert found.first.tolist() == [1.0, 3.0, 5.0]
    assert found.end.tolist() == [2.0, 4.0, 6.0]
    assert found.first_parts.place == pytest.approx(2.0)
    assert found.first_parts.prompt == pytest.approx(1.0)
    assert found.running == pytest.approx(1.0)


def test_a_preempted_request_goes_before_those_that_wait():
    """Six blocks of 4. Two requests of 8 tokens have 4 of them, from t = 1 on all, and the second is preempted at 5.

    It has 5 tokens by then and needs 4 blocks for 13, the third needs 3. At 9 the first ends and leaves 6: the second
    computes its prompt again until 10 and has its 9 tokens at 13. Then the third.
    """
    found = played([0.0, 0.0, 1.5], [8, 8, 12], [9, 9, 1], blocks=6)
    assert found.first.tolist() == [1.0, 1.0, 14.0]
    assert found.end.tolist() == [9.0, 13.0, 14.0]


def test_a_running_request_keeps_the_block_that_its_next_token_takes():
    """Three blocks: a prompt of 8 has two, and its next token takes the third, so that a prompt of 4 waits until 3."""
    found = played([0.0, 0.5], [8, 4], [3, 1], blocks=3)
    assert found.end.tolist() == [3.0, 4.0]
    roomy = played([0.0, 0.5], [8, 4], [3, 1], blocks=4)
    assert roomy.end.tolist() == [3.0, 2.0]


def test_percentiles_are_those_of_requests_that_vary():
    """Ten come at once to one place, and the n-th has its only token at n: half have it by 5, nine in ten by 9."""
    found = played([0.0] * 10, [8] * 10, [1] * 10, max_num_seqs=1)
    waits = Sample(found.ttft)
    assert (waits.mean, waits.quantile(0.5), waits.quantile(0.9), waits.quantile(0.99)) == (5.5, 5.0, 9.0, 10.0)
    spaced = played([2.0 * n for n in range(10)], [8] * 10, [1] * 10, max_num_seqs=1)
    assert spaced.ttft.tolist() == [1.0] * 10


@pytest.mark.parametrize(("interval", "begun"), [(1, [0.0, 2.0, 7.0]), (4, [0.0, 5.0, 10.0])])
def test_a_scheduler_that_looks_at_its_queue_every_fourth_decode_step_sees_requests_later(interval, begun):
    """The first has its prompt computed until 1 and then decodes on and on: after every step the queue is looked at, or
    after four, at 5. The next step computes a prompt too, and four more steps have passed at 10."""
    found = played([0.0, 1.5, 6.5], [8] * 3, [12, 2, 2], receive_interval=interval)
    assert found.begun.tolist() == begun
    assert found.first.tolist() == [at + 1.0 for at in begun]
