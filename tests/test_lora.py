"""LoRA adapters: their weights to the last byte, their launches, and what cannot be."""

from __future__ import annotations

import math
from typing import Any

import pytest

import rooflinekit as rk
from rooflinekit.estimation.estimator import ask
from rooflinekit.load.table import build_table
from rooflinekit.model.kernels.gemm import distinct_adapters
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.errors import DeploymentError, InputError

RANK_16 = 32 * 16 * (2 * 8192 + 2 * 5120 + 3 * 18432)  # q and o; k and v; gate, up and down of Llama-3-8B


@pytest.mark.parametrize("adapters", [1, 8])
def test_bytes_of_adapters(adapters: int) -> None:
    assert RANK_16 == 41_943_040
    asked: dict[str, Any] = {"engine": "ideal"}
    bare = rk.estimate("llama-3-8b", **asked)
    found = rk.estimate("llama-3-8b", lora_rank=16, lora_adapters=adapters, **asked)
    assert found.memory.weight_bytes - bare.memory.weight_bytes == 2 * RANK_16 * adapters


def test_adapters_are_cut_with_their_products() -> None:
    """A of a product whose inputs are whole is on every rank, and so is B of one whose outputs are."""
    asked: dict[str, Any] = {"engine": "ideal", "tp": 2}
    bare, found = rk.estimate("llama-3-8b", **asked), rk.estimate("llama-3-8b", lora_rank=16, **asked)
    whole = 32 * 16 * (3 * 4096 + 4096 + 2 * 4096 + 4096)  # A of q, k, v, gate and up; B of o and down
    cut = RANK_16 - whole
    assert found.memory.weight_bytes - bare.memory.weight_bytes == 2 * (whole + cut // 2)


def test_work_of_a_decode_step_by_hand() -> None:
    """Of 32 sequences 4·(1 − 0.75^32) = 3.9996 different adapters of four: nearly all weights, once."""
    plan = ask("llama-3-8b", "h100-sxm", {"lora_rank": 16, "lora_adapters": 4}).resolved.plan
    kernels = [kernel for kernel in plan.kernels(Batch.decode(32.0, 1024.0)) if "_lora_" in kernel.name]
    assert {kernel.count for kernel in kernels} == {32} and len(kernels) == 8
    read = sum(kernel.count * kernel.weight_bytes for kernel in kernels)
    assert read == pytest.approx(2 * RANK_16 * 4 * (1 - 0.75**32), rel=1e-12)
    assert sum(kernel.count * kernel.flops for kernel in kernels) == pytest.approx(2 * 32 * RANK_16)


def test_different_adapters() -> None:
    assert distinct_adapters(1, 500.0) == 1.0
    assert distinct_adapters(8, 1.0) == pytest.approx(1.0)
    assert distinct_adapters(8, 1e6) == pytest.approx(8.0)


def test_adapters_cost_time_and_doubt() -> None:
    bare, found = (
        rk.estimate("llama-3-8b", batch=32),
        rk.estimate("llama-3-8b", batch=32, lora_rank=64, lora_adapters=16),
    )
    assert bare.interval is not None and found.interval is not None
    assert found.tpot_ms > bare.tpot_ms and found.bound["tpot_ms"] > bare.bound["tpot_ms"]
    above = [each.interval["tpot_ms"][1] - each.tpot_ms for each in (bare, found) if each.interval]
    assert above[1] > above[0]


def test_answers_say_what_nobody_measured() -> None:
    """Products in bf16 were measured on an H100; it is the adapters' own launches that were not."""
    said = " ".join(rk.estimate("llama-3-8b", lora_rank=16).warnings)
    assert "LoRA's launches take the time of plain products" in said
    assert "no measured gemm" not in said


def test_the_table_of_steps_knows_adapters() -> None:
    plan = ask("llama-3-8b", "h100-sxm", {"lora_rank": 16, "lora_adapters": 8}).resolved.plan
    table = build_table(plan, 32, 2048)
    assert table(16, 1024.0) == pytest.approx(plan.time(Batch.decode(16.0, 1024.0)).expected, rel=1e-3)


def test_a_rank_that_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match="lora_rank"):
        rk.estimate("llama-3-8b", lora_rank=-1)


def test_adapters_without_a_rank_are_refused() -> None:
    with pytest.raises(DeploymentError, match="lora_adapters=3, but lora_rank=0 loads none"):
        rk.estimate("llama-3-8b", lora_adapters=3)


def test_a_plan_counts_adapters() -> None:
    """64 adapters of rank 64 are 10.7 GB beside 16.1 of weights, and two products more for each launch."""
    asked = {"rate": 20, "isl": 1024, "osl": 256, "tp": 1, "aggregated_only": True}
    slo = "p95 ttft<2s, p95 tpot<60ms"
    plain, adapted = (
        rk.plan("llama-3-8b", "h100-sxm", slo, **asked, **lora).best
        for lora in ({}, {"lora_rank": 64, "lora_adapters": 64})
    )
    assert (plain.evidence, adapted.evidence) == ("measured", "stand-in")
    assert adapted.gpus >= plain.gpus
    assert (adapted.latency("p95 TPOT") or 0.0) > 1.2 * (plain.latency("p95 TPOT") or math.inf)
