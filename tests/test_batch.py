"""Batches: phases, ragged batches, and the counts a user may type."""

from __future__ import annotations

import numpy as np
import pytest

from rooflinekit.model.types.batch import Batch, Sequences, cumulative_keys, whole_number
from rooflinekit.model.types.errors import WorkloadError
from rooflinekit.model.types.workload import Workload


@pytest.mark.parametrize(
    ("value", "least"), [(1, 1), (32.0, 1), (np.int64(7), 1), (np.float64(7), 1), (0, 0), (10**15, 1)]
)
def test_whole_numbers_are_read(value, least):
    assert whole_number(value, "batch", least) == int(value)
    assert type(whole_number(value, "batch", least)) is int


@pytest.mark.parametrize("value", [
    0, -1, 2.5, float("nan"), float("inf"), -float("inf"), True, False, "32", None, [3], 1 + 0j,
])  # fmt: skip
def test_what_is_no_whole_number_is_refused(value):
    with pytest.raises(WorkloadError, match="batch must be a whole number") as caught:
        whole_number(value, "batch")
    assert str(value) in str(caught.value)


@pytest.mark.parametrize("digits", [309, 400])
def test_a_number_beyond_any_float_is_refused(digits):
    with pytest.raises(WorkloadError, match="batch"):
        whole_number(10**digits, "batch")


def test_prefill_counts_only_what_is_not_cached():
    batch = Batch.prefill(3.0, 1000.0, cached=900.0)
    assert (batch.tokens, batch.sequences, batch.sampled_rows) == (300.0, 3.0, 3.0)
    assert batch.prefilling.longest == 1000.0
    # 100 tokens see 900 each, and each other causally: 100 x 900 + 100 x 101 / 2
    assert batch.prefilling.pairs() == 3 * (100 * 900 + 5050)


def test_only_the_last_chunk_samples():
    assert Batch.chunk(2.0, 512.0, 0.0, last=False).sampled_rows == 0.0
    assert Batch.chunk(2.0, 512.0, 512.0, last=True).sampled_rows == 2.0


def test_a_decode_step_ends_at_its_context():
    batch = Batch.decode(4.0, 100.0)
    assert (batch.tokens, batch.sampled_rows) == (4.0, 4.0)
    assert batch.decoding.pairs() == 4 * 100  # the new token sees itself and 99 before it
    assert batch.decoding.keys_read() == 4 * 100


def test_verifying_drafted_tokens_is_a_wider_decode_step():
    # 5 tokens that end at context 100 see 96, 97, 98, 99 and 100 keys; the keys are read once.
    batch = Batch.decode(1.0, 100.0, new=5.0)
    assert batch.decoding.pairs() == 96 + 97 + 98 + 99 + 100
    assert batch.decoding.keys_read() == 100
    assert batch.sampled_rows == 5.0


def test_a_window_of_one_sees_only_itself():
    assert Sequences(1.0, 10.0, 50.0).pairs(window=1) == 10
    assert Sequences(1.0, 10.0, 50.0).keys_read(window=1) == 10


@pytest.mark.parametrize("tokens", [0.0, 1.0, 5.0, 6.0, 7.0, 12.0, 100.0])
def test_cumulative_keys_are_a_running_sum(tokens):
    places = range(1, int(tokens) + 1)
    assert cumulative_keys(tokens) == sum(places)
    assert cumulative_keys(tokens, window=6) == sum(min(place, 6) for place in places)
    assert cumulative_keys(tokens, chunk=6) == sum((place - 1) % 6 + 1 for place in places)


@pytest.mark.parametrize("kind", [{}, {"window": 6}, {"chunk": 6}], ids=str)
@pytest.mark.parametrize(("first", "steps"), [(1, 1), (4, 9), (6, 6), (13, 40)])
def test_the_mean_decode_step_has_the_mean_work(kind, first, steps):
    mean = Batch.mean_decode(3.0, float(first), float(steps)).decoding
    singles = [Batch.decode(3.0, float(context)).decoding for context in range(first, first + steps)]
    assert mean.pairs(**kind) == pytest.approx(np.mean([single.pairs(**kind) for single in singles]), rel=1e-14)
    assert mean.keys_read(**kind) == pytest.approx(np.mean([single.keys_read(**kind) for single in singles]), rel=1e-14)
    assert (mean.tokens, mean.sampled_rows) == (3.0, 3.0)
    assert mean.longest == first + (steps - 1) / 2
    arrays = Batch.mean_decode(3.0, np.array([first, 2.0]), np.array([steps, 1.0])).decoding
    assert arrays.pairs(**kind).tolist() == [mean.pairs(**kind), 6.0]


def test_pairs_of_a_huge_context_are_not_lost_to_rounding():
    assert Batch.decode(1.0, 1e18).decoding.pairs() == 1e18
    assert Batch.mean_decode(1.0, 1e18, 9.0).decoding.keys_read(window=4096) >= 1.0


def test_a_mixed_step_is_both_phases():
    mixed = Batch.prefill(1.0, 512.0) | Batch.decode(8.0, 100.0)
    assert (mixed.tokens, mixed.sequences, mixed.sampled_rows) == (520.0, 9.0, 9.0)
    assert len(mixed.phases) == 2
    assert (Batch.decode(8.0, 100.0) | Batch.prefill(1.0, 512.0)) == mixed


@pytest.mark.parametrize("make", [lambda: Batch.prefill(1.0, 10.0), lambda: Batch.decode(1.0, 10.0)])
def test_two_of_the_same_phase_do_not_mix(make):
    with pytest.raises(WorkloadError, match="one prefill with one decode"):
        make() | make()


def test_a_mixed_step_costs_its_gemms_once_and_its_attention_apart(plan_of):
    prefill, decode = Batch.prefill(1.0, 512.0), Batch.decode(8.0, 100.0)
    plan = plan_of("llama-3-8b")
    mixed = plan.kernels(prefill | decode)
    qkv = next(kernel for kernel in mixed if kernel.name == "qkv_proj")
    assert qkv.flops == 2 * 520 * 4096 * 6144
    assert qkv.weight_bytes == 4096 * 6144 * 2  # streamed once for both
    cores = {kernel.family: kernel for kernel in mixed if kernel.name == "attention"}
    assert cores["attention_prefill"].flops == 4 * 32 * 128 * 512 * 513 / 2
    assert cores["attention_decode"].flops == 4 * 32 * 128 * 8 * 100


def test_ragged_lengths_are_counted_without_padding():
    batch = Batch.ragged([10, 20, 30], past=[0, 5, 0])
    assert (batch.tokens, batch.sequences, batch.sampled_rows) == (60.0, 3.0, 3.0)
    assert batch.prefilling.longest == 30.0


def test_cumulative_offsets_are_the_same_batch():
    one, other = Batch.from_cu_seqlens([0, 10, 30, 60]), Batch.ragged([10, 20, 30])
    assert one.prefilling.new.tolist() == other.prefilling.new.tolist()
    assert one.prefilling.pairs() == other.prefilling.pairs() == 55 + 210 + 465


@pytest.mark.parametrize(("lengths", "past", "said"), [
    ([], None, "at least one length"),
    ([0, 3], None, "length must be a whole number of at least 1, not 0"),
    ([3, -1], None, "length must be a whole number"),
    ([2.5], None, "length must be a whole number"),
    ([3, 4], [1], "2 lengths but 1 past lengths"),
    ([3], [-1], "past must be a whole number of at least 0, not -1"),
])  # fmt: skip
def test_a_senseless_ragged_batch_is_refused(lengths, past, said):
    with pytest.raises(WorkloadError, match=said):
        Batch.ragged(lengths, past)


@pytest.mark.parametrize("offsets", [[], [0], [1, 3]])
def test_offsets_start_at_zero(offsets):
    with pytest.raises(WorkloadError, match="cu_seqlens"):
        Batch.from_cu_seqlens(offsets)


def test_offsets_that_fall_are_refused():
    with pytest.raises(WorkloadError, match="length"):
        Batch.from_cu_seqlens([0, 5, 3])


def test_the_mean_context_of_the_decode_steps():
    # Tokens 2 .. 256 are computed at 1025 .. 1279 keys.
    work = Workload.checked(1, 1024, 256)
    assert work.decode_context == sum(range(1025, 1280)) / 255
    assert work.decode_steps == 255
    assert work.longest_context == 1280
    assert Workload.checked(1, 1024, 2).decode_context == 1025
    assert Workload.checked(1, 1024, 256, context=5000).decode_context == 5000


@pytest.mark.parametrize(("wrong", "said"), [
    ({"batch": 0}, "batch"),
    ({"isl": 0}, "isl"),
    ({"osl": 0}, "osl"),
    ({"osl": 1.5}, "osl"),
    ({"cached": -1}, "cached must be a whole number of at least 0"),
    ({"cached": 1024}, "cached=1024 leaves nothing of isl=1024"),
    ({"context": 0}, "context"),
])  # fmt: skip
def test_a_senseless_workload_is_refused(wrong, said):
    with pytest.raises(WorkloadError, match=said):
        Workload.checked(**({"batch": 1, "isl": 1024, "osl": 256} | wrong))
