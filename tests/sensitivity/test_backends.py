"""Measured kernels of other engines, and those that an engine does not pick, as moves."""

from __future__ import annotations

import pytest

from rooflinekit.decision.sensitivity.levers import backends, levers
from rooflinekit.decision.sensitivity.moves import Setting
from rooflinekit.estimation.estimator import read_deployment, resolve
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.workload import Workload

WORK = Workload(32.0, 4096.0, 256.0)
LATENT = {"tp": 8, "engine": "sglang", "kv": "fp8"}


@pytest.fixture(scope="module")
def hopper():
    return resolve("deepseek-v3", "h200-sxm", read_deployment(LATENT), None).predictor


def test_latent_attention_on_h200_has_a_slow_kernel_that_is_picked_and_one_that_is_not(hopper):
    """fa3 converts an FP8 cache at each launch; absorbed prompts do 3.4 times the work of up-projected ones."""
    found, _ = backends(hopper, WORK)
    decode = next(each for each in found if each.role == "latent decode")
    assert (decode.engine, decode.faster, decode.served, decode.present) == ("trtllm", True, True, "fa3")
    assert decode.ratio < 0.3
    assert "converts the whole cache" in str(decode)
    prefill = next(each for each in found if each.role == "latent prefill")
    assert (prefill.engine, prefill.faster, prefill.served) == ("sglang", False, False)
    assert 2.0 < prefill.ratio < 3.4
    assert "absorbed" in prefill.kernel


def test_a_move_changes_the_time_of_that_kernel_alone(hopper):
    found, _ = backends(hopper, WORK)
    decode = next(each for each in found if each.role == "latent decode")
    setting = Setting("deepseek-v3", "h200-sxm", read_deployment(LATENT), None, None, kernel=(decode.key, decode.fit))
    changed, batch = setting.resolved()[0], Batch.decode(32.0, 4224.0)
    steps = [predictor.plan.time(batch) for predictor in (hopper, changed)]
    kernels = [{each.kernel.name: float(each.expected) for each in step.kernels} for step in steps]
    other = {name for name in kernels[0] if kernels[0][name] != kernels[1][name]}
    assert len(other) == 1
    saved = kernels[0][name := other.pop()] - kernels[1][name]
    assert float(steps[0].expected) - float(steps[1].expected) == pytest.approx(saved, rel=1e-6)


def test_they_are_ranked_among_the_moves_with_their_evidence():
    found = levers("deepseek-v3", "h200-sxm", batch=32, isl=4096, gpus="h200-sxm", by="tpot", **LATENT)
    move = next(each for each in found.moves if each.move == "trtllm's latent decode")
    assert (move.possible, move.evidence, move.option) == (True, "measured", "--decode-attention-backend")
    assert move.ratio["tpot"] < 0.8
    assert any(note.startswith("no measured kernel is clearly faster") for note in found.warnings)


@pytest.mark.parametrize(("gpu", "calibration"), [("h100-sxm", "none"), ("h100-pcie", None)])
def test_without_measurements_of_the_chip_there_are_none(gpu, calibration):
    predictor = resolve("llama-3-8b", gpu, read_deployment({}), calibration).predictor
    assert backends(predictor, WORK) == ([], [])


def test_the_kernels_of_one_engine_are_no_faster_than_themselves():
    """Where engines run the same library their times lie within the intervals, so none is offered."""
    predictor = resolve("llama-3.1-8b", "h100-sxm", read_deployment({}), None).predictor
    found, best = backends(predictor, WORK)
    assert found == []
    assert set(best) == {"matrix products", "prompt attention", "decode attention"}
