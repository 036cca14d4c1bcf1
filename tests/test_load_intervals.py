"""Intervals under load: factors of the profiles, what they were tested on, and ends without jumps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import rooflinekit as rk
from rooflinekit.estimation.estimator import read_deployment, resolve
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.traffic.closed_form import Traffic, closed_loop, open_loop
from rooflinekit.model.types.engine import LoadEnds
from rooflinekit.model.types.errors import SpecError
from rooflinekit.report.document import plain_text
from rooflinekit.report.estimate import document
from rooflinekit.specs.engines import engine_names, load_engine, read_facts, step_ranges
from rooflinekit.specs.section import Section

TRAFFIC = Traffic(1024.0, 256.0)


def predictor_with(ends: LoadEnds) -> Predictor:
    """Llama-3-8B on an H100 with these factors; the engine holds 64 sequences."""
    found = resolve("llama-3-8b", "h100-sxm", read_deployment({"max_num_seqs": 64}), None).predictor
    return Predictor(replace(found.plan, engine=replace(found.plan.engine, loaded=ends)), found.memory)


def test_ends_move_by_their_factors_and_the_time_stays():
    bare, moved = (predictor_with(ends) for ends in (LoadEnds(), LoadEnds((1.5, 3.0), (1.25, 2.0), (4.0, 4.0))))
    for loop, load in ((closed_loop, 8.0), (open_loop, 4.0)):
        first, second = (loop(predictor, load, TRAFFIC) for predictor in (bare, moved))
        assert first.ttft.expected == second.ttft.expected
        assert first.tpot.expected == second.tpot.expected
        assert float(second.tpot.high) == pytest.approx(2.0 * float(first.tpot.high), rel=1e-3)
        assert float(second.ttft.high) == pytest.approx(3.0 * float(first.ttft.high), rel=1e-3)
        lowest = max(float(first.ttft.low) / 1.5, float(first.ttft.bound))
        assert float(second.ttft.low) == pytest.approx(lowest, rel=1e-3)


def test_an_offline_queue_has_the_factors_of_full_engines():
    bare, moved = (predictor_with(ends) for ends in (LoadEnds(), LoadEnds((1.5, 3.0), (1.25, 2.0), (1.0, 5.0))))
    first, second = (closed_loop(predictor, 1e6, TRAFFIC) for predictor in (bare, moved))
    assert float(second.tpot.high / first.tpot.high) == pytest.approx(5.0, rel=0.01)
    assert float(second.ttft.high / first.ttft.high) == pytest.approx(5.0, rel=0.01)


def test_ends_do_not_jump_where_requests_begin_to_wait_for_a_place():
    users = np.arange(48.0, 96.0, 0.05)
    found = closed_loop(predictor_with(LoadEnds((1.2, 3.0), (1.5, 1.1), (2.0, 6.0))), users, TRAFFIC)
    for time in (found.ttft, found.tpot):
        for end in (time.low, time.high):
            assert np.abs(np.diff(np.log(end / time.expected))).max() < 0.05


def test_an_end_never_crosses_the_time_or_the_bound():
    found = closed_loop(predictor_with(LoadEnds((0.01, 0.01), (1e9, 1.0))), 16.0, TRAFFIC)
    assert found.ttft.low == found.ttft.expected == found.ttft.high
    assert found.tpot.low == found.tpot.bound


@pytest.mark.parametrize(("model", "deployment", "rate"), [
    ("llama-3-8b", {}, 20.0),  # a full engine bears 25
    ("llama-3-8b", {"tp": 2, "engine": "trtllm"}, 9.0),
    ("llama-3-8b", {"engine": "sglang", "isl": 512, "osl": 16}, 3.0),
    ("mixtral-8x7b", {"tp": 2, "weights": "fp8"}, 4.0),
    ("qwen3-30b-a3b", {"gpu": "h200-sxm", "dp": 2, "ep": 2}, 12.0),
])  # fmt: skip
def test_the_bound_of_a_rate_is_that_of_an_engine_at_the_datasheets_rates(model, deployment, rate):
    """A faster engine carries a rate with fewer requests at once, so that its steps are shorter too."""
    expected, bound = (rk.estimate(model, rate=rate, calibration=of, **deployment) for of in (None, "none"))
    assert expected.bound["tpot_ms"] == pytest.approx(bound.tpot_ms, rel=2e-3)
    assert 0.3 * bound.ttft_ms < expected.bound["ttft_ms"] <= bound.ttft_ms  # waits are not in the bound
    for time in ("ttft_ms", "tpot_ms"):
        assert expected.bound[time] <= expected.interval[time][0]


def test_above_the_knee_a_faster_engine_may_still_carry_the_rate():
    expected, bound = (rk.estimate("llama-3-8b", rate=26.0, calibration=of) for of in (None, "none"))
    assert (expected.load.stable, bound.load.stable) == (False, True)
    assert expected.bound["tpot_ms"] == pytest.approx(bound.tpot_ms, rel=2e-3)


def test_every_engine_has_tested_factors_and_answers_say_how_they_did():
    for engine in engine_names():
        for since in step_ranges(engine):
            profile = load_engine(engine, since or None)
            if engine == "llama.cpp":  # no rows of a server of several users
                assert not profile.tested
                continue
            assert profile.loaded != LoadEnds(), engine
            assert set(profile.tested) == {"static", "load"}
    loaded = rk.estimate("llama-3-8b", rate=4)
    assert "left out" in loaded.interval_tested
    assert loaded.interval_tested in " ".join(plain_text(document(loaded)).split())
    assert "left out" in rk.estimate("llama-3-8b").interval_tested
    assert rk.estimate("llama-3-8b", "rtx-4090", engine="llama.cpp", concurrency=4).interval_tested is None
    bound = rk.estimate("llama-3-8b", rate=4, calibration="none")
    assert (bound.interval, bound.interval_tested) == (None, None)


@pytest.mark.parametrize("value", [[1.0], [1.0, 0.0], 1.0, [1.0, "a"], [1.0, -2.0]])
def test_factors_that_are_none_are_refused(tmp_path, value):
    section = Section(tmp_path / "x.yaml", "", {"ttft": {"value": value, "source": []}})
    with pytest.raises(SpecError, match="ttft"):
        read_facts(section, LoadEnds, "loaded.")
