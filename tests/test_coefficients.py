"""Exported coefficients against the plan that they were exported from, and numbers worked by hand."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import pytest
from deployments import CASES, predictor_of
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflinekit.estimation.estimator import read_deployment, resolve
from rooflinekit.model.coefficients import Linear, PlanCoefficients, State, plan_coefficients
from rooflinekit.model.coefficients.kernel import KernelSpan
from rooflinekit.model.coefficients.plan import decode_parts
from rooflinekit.model.kernels import Step, Weights
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.errors import InputError
from rooflinekit.model.types.kernel import Kernel
from rooflinekit.model.types.time import Time
from rooflinekit.model.types.workload import Workload

PLANS: dict[int, tuple[Predictor, PlanCoefficients]] = {}


def exported(case: int) -> tuple[Predictor, PlanCoefficients]:
    if case not in PLANS:
        predictor = predictor_of(case)
        PLANS[case] = predictor, plan_coefficients(predictor)
    return PLANS[case]


def assert_same(span: KernelSpan, interval: Time) -> None:
    for end in ("bound", "time", "low", "high"):
        assert getattr(span, end) == pytest.approx(
            float(getattr(interval, end.replace("time", "expected"))), rel=1e-12
        ), end


@settings(max_examples=120, deadline=None)
@given(
    st.integers(0, len(CASES) - 1),
    st.integers(1, 4096),
    st.one_of(st.sampled_from((1, 2, 127, 128, 129, 8192)), st.integers(1, 100_000)),
    st.one_of(st.sampled_from((1, 2, 3, 4)), st.integers(1, 5000)),
)
def test_they_answer_as_the_plan_does(case: int, batch: int, isl: int, osl: int) -> None:
    predictor, coefficients = exported(case)
    point = predictor.evaluate(Workload(float(batch), float(isl), float(osl)))
    assert_same(coefficients.ttft(batch, isl), point.ttft)
    assert_same(coefficients.tpot(batch, isl, osl), point.tpot)
    memory, found = point.memory, coefficients.memory.at(batch, isl + osl, isl)
    for name, value in (("kv", memory.kv_bytes), ("activations", memory.activation_bytes),
                        ("total", memory.total_bytes),
                        ("pool", memory.kv_pool_bytes), ("needed", memory.needed_bytes),
                        ("available", memory.available_bytes), ("max_batch", memory.max_batch)):  # fmt: skip
        assert getattr(found, name) == pytest.approx(float(value), rel=1e-12), name
    assert found.fits == bool(memory.fits)


def test_a_bound_by_hand() -> None:
    _, coefficients = exported(0)
    gate_up = next(kernel for kernel in coefficients.decode if kernel.name == "gate_up_proj")
    assert gate_up.flops == Linear(tokens=2.0 * 2 * 14336 * 4096)
    assert gate_up.streamed == Linear(constant=2 * 14336 * 4096 * 2.0)
    assert gate_up.bound(State.decode(1.0, 1000.0)) == pytest.approx(32 * 2 * 14336 * 4096 * 2 / 3.35e12, rel=1e-9)
    (attention,) = coefficients.growing  # 8 KV heads of 128, keys and values, 2 bytes, 32 layers
    cache = 4 * 1000 * 2 * 8 * 128 * 2.0
    assert attention.bound(State.decode(4.0, 1000.0)) == pytest.approx(32 * cache / 3.35e12, rel=1e-6)


def test_they_are_plain_numbers() -> None:
    for case in (0, 4):
        assert json.loads(json.dumps(exported(case)[1].to_dict(), allow_nan=False))["gpus"] == 1


@given(st.integers(1, 100_000), st.integers(1, 100_000))
def test_the_parts_of_an_output_are_all_of_it(isl: int, osl: int) -> None:
    parts = decode_parts(isl, osl)
    assert sum(weight for _, _, weight in parts) == pytest.approx(1.0)
    means = sum(weight * (first + (steps - 1.0) / 2.0) for first, steps, weight in parts)
    assert means == pytest.approx(Workload(1.0, isl, osl).decode_context)


@pytest.mark.parametrize(
    "keys", [{"pp": 2}, {"dp": 2}, {"tp": 2, "ep": 2}, {"kv_policy": "window:4096"}, {"max_model_len": 4096}]
)
def test_what_is_not_exported_is_refused(keys: dict[str, Any]) -> None:
    predictor = resolve("mixtral-8x7b", "h200-sxm", read_deployment(keys), None).predictor
    with pytest.raises(InputError, match="exported"):
        plan_coefficients(predictor)


@dataclass(frozen=True)
class Cubic:
    """An operation whose work is no sum over tokens."""

    grows = False
    weights: tuple[Weights, ...] = ()

    def kernels(self, step: Step, count: int) -> list[Kernel]:
        return [Kernel("cubic", "elementwise", count, Dtype.BF16, flops=step.tokens**3)]


def test_work_that_is_no_sum_is_refused_by_name() -> None:
    predictor, _ = exported(0)
    with pytest.raises(InputError, match="flops of cubic"):
        plan_coefficients(replace(predictor, plan=replace(predictor.plan, operations={Cubic(): 1})))


def test_costs_of_ones_own_files_that_slow_kernels_are_refused() -> None:
    predictor, _ = exported(0)
    costs = replace(predictor.plan.engine.costs, memory=1.1)
    slower = replace(predictor.plan, engine=replace(predictor.plan.engine, costs=costs))
    with pytest.raises(InputError, match="fit to benchmark files"):
        plan_coefficients(replace(predictor, plan=slower))
