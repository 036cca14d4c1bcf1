"""Elasticities: Euler's theorem at every level and load, signs, and the crossing of weights and cache."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflinekit.decision.sensitivity.levers import (
    RESOURCES,
    Elasticity,
    balance,
    elasticities,
    in_words,
    levers,
    scaled,
)
from rooflinekit.decision.sensitivity.moves import MoveQuestion
from rooflinekit.estimation.estimator import read_deployment, resolve
from rooflinekit.load.answer import Load
from rooflinekit.load.lengths import Fixed
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.types.speculation import Speculation
from rooflinekit.model.types.workload import Workload

SIGNS = {"bandwidth": 1.0, "flops": 1.0, "network": 1.0, "power": 1.0, "launch": -1.0, "host": -1.0}
DEPLOYMENTS = [
    ("llama-3-8b", "h100-sxm", {}),
    ("llama-3-70b", "h100-sxm", {"tp": 8}),
    ("mixtral-8x7b", "h200-sxm", {"tp": 2, "ep": 2, "weights": "fp8"}),
    ("deepseek-v3", "h200-sxm", {"tp": 8}),
    ("llama-3-8b", "a100-sxm-80gb", {"tp": 2, "pp": 2, "microbatches": 2}),
    ("llama-3-8b", "l40s", {"tp": 4}),
    ("qwen3-next-80b-a3b", "h100-sxm", {"tp": 4}),
    ("falcon-7b", "h100-sxm", {"engine": "trtllm"}),  # 71 heads to a key: another kernel's own fit
    ("llama-3-8b", "h100-sxm", {"engine": "sglang", "dp": 2}),
]


@cache
def predictor(model: str, gpu: str, calibration: str | None, items: tuple[tuple[str, Any], ...] = ()) -> Predictor:
    return resolve(model, gpu, read_deployment(dict(items)), calibration).predictor


def slopes(found: Predictor, question: MoveQuestion) -> dict[str, Elasticity]:
    return {entry.parameter: entry for entry in elasticities(found, question)}


def loaded(batch: float, isl: float, osl: float, **load: Any) -> MoveQuestion:
    return MoveQuestion(Workload(batch, isl, osl), Load(Fixed(int(isl)), Fixed(int(osl)), **load))


def euler(entries: dict[str, Elasticity], metric: str) -> float:
    return sum(sign * getattr(entries[name], metric) for name, sign in SIGNS.items())


class TestEuler:
    """Times are homogeneous: if every rate doubles and every latency halves, everything is twice as fast."""

    @pytest.mark.parametrize(("model", "gpu", "split"), DEPLOYMENTS)
    @pytest.mark.parametrize("calibration", ["none", None])
    def test_resources_sum_to_minus_one(
        self, model: str, gpu: str, split: dict[str, Any], calibration: str | None
    ) -> None:
        found = predictor(model, gpu, calibration, tuple(split.items()))
        entries = slopes(found, MoveQuestion(Workload(16.0, 1500.0, 200.0)))
        for metric in ("ttft", "tpot"):
            assert euler(entries, metric) == pytest.approx(-1.0, abs=1e-6)
        assert euler(entries, "throughput") == pytest.approx(1.0, abs=1e-6)

    @pytest.mark.parametrize(
        ("model", "gpu", "split"), [DEPLOYMENTS[0], pytest.param(*DEPLOYMENTS[3], marks=pytest.mark.slow)]
    )
    def test_resources_of_users_sum_to_minus_one(self, model: str, gpu: str, split: dict[str, Any]) -> None:
        """Up to the noise of 2,000 requests: prompts meet other steps."""
        found = predictor(model, gpu, None, tuple(split.items()))
        entries = slopes(found, loaded(16.0, 1500.0, 200.0, users=16))
        assert euler(entries, "ttft") == pytest.approx(-1.0, abs=0.25)
        assert euler(entries, "tpot") == pytest.approx(-1.0, abs=0.05)
        assert euler(entries, "throughput") == pytest.approx(1.0, abs=0.05)

    def test_at_a_rate_the_rate_belongs_to_the_sum(self) -> None:
        """An engine that is twice as fast is the same one on another clock: at half the rate."""
        entries = slopes(predictor("llama-3-8b", "h100-sxm", None), loaded(1.0, 1500.0, 200.0, rate=5.0))
        assert euler(entries, "tpot") == pytest.approx(-1.0 - entries["rate"].tpot, abs=0.03)
        assert euler(entries, "ttft") == pytest.approx(-1.0 - entries["rate"].ttft, abs=0.15)
        assert entries["rate"].throughput == pytest.approx(1.0, abs=0.03)
        assert entries["bandwidth"].throughput == pytest.approx(0.0, abs=0.03)

    def test_of_a_draft_too(self) -> None:
        choice = Speculation.read({"draft": "llama-3.2-1b", "draft_tokens": 3, "acceptance": 0.7})
        found = resolve("llama-3-8b", "h100-sxm", read_deployment({}), None, choice).predictor
        assert euler(slopes(found, MoveQuestion(Workload(4.0, 500.0, 100.0))), "tpot") == pytest.approx(-1.0, abs=1e-6)

    def test_at_the_bound_only_rates_count(self) -> None:
        entries = slopes(predictor("llama-3-70b", "h100-sxm", "none", (("tp", 8),)), MoveQuestion(Workload(8.0)))
        assert [entries[name].tpot for name in ("launch", "host")] == [0.0, 0.0]

    @settings(max_examples=15, deadline=None)
    @given(st.integers(1, 300), st.integers(2, 6000), st.integers(2, 500))
    def test_for_any_workload(self, batch: int, isl: int, osl: int) -> None:
        found = predictor("llama-3-8b", "h100-sxm", None)
        entries = slopes(found, MoveQuestion(Workload(float(batch), float(isl), float(osl))))
        assert euler(entries, "tpot") == pytest.approx(-1.0, abs=1e-5)
        assert all(entries[name].tpot * SIGNS[name] <= 1e-9 for name in RESOURCES)
        assert all(entry.throughput == pytest.approx(-entry.cost) for entry in entries.values())


class TestSigns:
    def test_one_sequence_is_bandwidth_and_its_context(self) -> None:
        """W + κ·T bytes: 15.01 GB and 131 kB · 1024 are 0.9 % cache, so the context's elasticity is 0.009."""
        found = predictor("llama-3-8b", "h100-sxm", "none")
        entries = slopes(found, MoveQuestion(Workload(1.0, 900.0, 200.0, context=1024.0)))
        kept, weights = 131_072.0 * 1024.0, 15.01e9
        assert entries["bandwidth"].tpot == pytest.approx(-1.0, abs=1e-6)
        assert entries["context"].tpot == pytest.approx(kept / (kept + weights), rel=0.02)

    def test_a_long_prompt_is_arithmetic(self) -> None:
        entries = slopes(predictor("llama-3-8b", "h100-sxm", "none"), MoveQuestion(Workload(1.0, 8000.0, 2.0)))
        assert entries["flops"].ttft < -0.9
        assert 1.0 < entries["context"].ttft < 2.0  # between FLOP of the matrices and of attention

    def test_one_accelerator_has_no_network(self) -> None:
        assert slopes(predictor("llama-3-8b", "h100-sxm", None), MoveQuestion(Workload(8.0)))["network"].tpot == 0.0
        many = slopes(predictor("llama-3-70b", "h100-sxm", None, (("tp", 8),)), MoveQuestion(Workload(64.0)))
        assert many["network"].tpot < -0.001

    @pytest.mark.slow
    def test_more_users_than_slots_only_wait(self) -> None:
        found = predictor("llama-3-8b", "h100-sxm", None, (("max_num_seqs", 32),))
        entries = slopes(found, loaded(256.0, 2000.0, 200.0, users=256))
        assert entries["users"].throughput == pytest.approx(0.0, abs=0.05)
        assert entries["users"].ttft == pytest.approx(1.0, abs=0.15)

    @pytest.mark.parametrize("resource", RESOURCES)
    def test_a_factor_of_one_changes_nothing(self, resource: str) -> None:
        found, work = predictor("llama-3-70b", "h100-sxm", None, (("tp", 4),)), Workload(32.0)
        same = scaled(found, resource, 1.0)
        assert float(same.tpot(work).expected) == float(found.tpot(work).expected)
        assert float(same.ttft(work).expected) == float(found.ttft(work).expected)


class TestBalance:
    def test_at_the_crossing_both_have_the_same_bytes(self) -> None:
        found = predictor("mixtral-8x7b", "h200-sxm", "none", (("tp", 2),))
        work = Workload(8.0, 4000.0, 200.0)
        here = balance(found, work)
        assert here.crossing_batch is not None
        there = balance(found, replace(work, batch=here.crossing_batch))
        assert there.weight_bytes == pytest.approx(there.kv_bytes, rel=1e-6)
        assert here.crossing_context is not None
        far = balance(found, replace(work, context=here.crossing_context))
        assert far.weight_bytes == pytest.approx(far.kv_bytes, rel=1e-6)

    def test_a_state_that_does_not_grow_never_crosses_along_the_context(self) -> None:
        found = balance(predictor("smollm2-135m", "h100-sxm", "none"), Workload(1.0, 100.0, 20.0))
        window = balance(predictor("mistral-7b", "h100-sxm", "none"), Workload(1.0, 100.0, 20.0))
        assert found.crossing_context is not None
        assert window.crossing_context is None  # 4096 tokens of window hold 0.5 GB, the weights are 14 GB
        words = in_words(window, [Elasticity("flops", 0.0, -1.0, 1.0, -1.0)], "")
        assert "Cache and weights are equal at batch 977 (at this context). Beyond" in words

    def test_prefill_like_batches_are_arithmetic(self) -> None:
        found = balance(predictor("llama-3-8b", "h100-sxm", "none"), Workload(4000.0, 8.0, 2.0))
        assert max(found.causes, key=found.causes.__getitem__) == "compute"
        assert math.isclose(sum(found.causes.values()), 1.0)


def test_the_shortest_context_is_compared_with_the_next():
    """A token that sees one key against one that sees two: time cannot fall, and hardly grows beside the weights."""
    found = levers("llama-3-8b", context=1, calibration="none")
    (each,) = (each for each in found.elasticities if each.parameter == "context")
    assert 0.0 <= each.tpot < 1e-3
