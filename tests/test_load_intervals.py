"""Intervals under load: errors of the profiles, what they were tested on, and ends without jumps."""

from __future__ import annotations

import math
from dataclasses import replace

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rooflinekit as rk
from rooflinekit.estimation.estimator import read_deployment, resolve
from rooflinekit.load.answer import Load, play_load
from rooflinekit.load.lengths import Fixed
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.types.engine import ROOM, LoadErrors, OwnLoad, OwnLoads, Places
from rooflinekit.model.types.errors import SpecError
from rooflinekit.report.document import plain_text
from rooflinekit.report.estimate import document
from rooflinekit.specs.doubt import nearest_measured, own_loads, version_variances
from rooflinekit.specs.engines import engine_names, load_engine, read_facts, step_ranges
from rooflinekit.specs.section import FileSection


def predictor_with(errors: LoadErrors, **settings: float) -> Predictor:
    """Llama-3-8B on an H100 with these errors; the engine holds 64 sequences."""
    deployment = read_deployment({"max_num_seqs": 64} | settings)
    found = resolve("llama-3-8b", "h100-sxm", deployment, None).predictor
    return Predictor(replace(found.plan, engine=replace(found.plan.engine, loaded=errors)), found.memory)


SKEW: Places = (-1.0, -0.8, -0.4, 0.1, 0.6, 1.5, 2.0)


@pytest.mark.parametrize("load", [{"users": 8}, {"rate": 4.0}])
def test_variances_add_up_beside_those_of_the_steps(load):
    """Where everybody finds a place: s² of the steps plus 0.04, and 0.05 more for 8 users or fewer."""
    own = LoadErrors(tpot=(1.0, 0.04, 9.0, 0.05, 9.0), tpot_places=SKEW)
    first, second = (
        play_load(predictor_with(errors), Load(Fixed(1024), Fixed(256), requests=200, **load)).times()[:2]
        for errors in (LoadErrors(), own)
    )
    assert first[0] == second[0]
    plain, wide = first[1], second[1]
    assert plain.expected == wide.expected
    steps = math.log(plain.high / plain.low) / 3.29  # the bound is below
    scale = math.sqrt(steps**2 + 0.04 + 0.05)  # some eight run in the open loop too
    assert math.log(wide.high / wide.expected) == pytest.approx(2.0 * scale, rel=1e-3)
    assert wide.low == pytest.approx(max(wide.expected * math.exp(-scale), wide.bound), rel=1e-3)


def test_who_waits_for_a_place_errs_as_full_engines_do():
    """Of 600 users 64 run at a time: most of a request is waiting, so both ends are near those of full engines."""
    full = tuple(math.log(each) for each in (0.5, 0.6, 0.8, 1.0, 1.5, 3.0, 4.0))
    played = play_load(predictor_with(LoadErrors(full_places=full)), Load(Fixed(1024), Fixed(256), users=600))
    ttft, tpot, _ = played.times()
    for time in (ttft, tpot):
        assert 3.0 < time.high / time.expected <= 4.0
    assert played.reach("tpot", (0.9, 1.1)).inner[3] == pytest.approx(math.log(1.5) / math.log(4.0), abs=0.1)


def test_an_end_never_crosses_the_time_or_the_bound():
    slower = LoadErrors(ttft_places=(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7), tpot=(0.0, 100.0, 0.0, 0.0, 0.0))
    ttft, tpot, _ = play_load(predictor_with(slower), Load(Fixed(1024), Fixed(256), users=16)).times()
    assert ttft.low == ttft.expected < ttft.high
    assert tpot.low == tpot.bound


ENGINE = LoadErrors(tpot=(0.0, 0.04, 0.0, 0.0, 0.0))


def test_no_run_of_ones_own_goes_below_the_bound():
    answer = rk.estimate("llama-3-70b", "tpu-v5p", tp=4, rate=4.0, requests=200)
    for metric in ("ttft_ms", "tpot_ms"):
        assert answer.doubt[metric].one_run[0] >= answer.bound[metric]


def test_a_load_measured_narrows_loads_near_it_and_moves_them_by_its_error():
    """By hand: correlation 0.4 + 0.5·exp(−d²/2), d = ln 4 for four times the users; k² of the variance goes."""
    knows = replace(ENGINE, own=OwnLoads(tpot=(0.4, 0.5), loads=(OwnLoad(16.0, 1024.0, tpot=0.1),)))
    for users, correlation in ((16, 0.9), (64, 0.4 + 0.5 * math.exp(-(math.log(4.0) ** 2) / 2.0))):
        low, high = knows.reach("tpot", 0.0, users, False, 0.0, 1024.0).ends
        wide = 1.645 * 0.2 * math.sqrt(1.0 - correlation**2)
        assert (low, high) == pytest.approx((min(0.1 * correlation - wide, 0.0), 0.1 * correlation + wide))
    assert knows.reach("ttft", 0.0, 16, False, 0.0, 1024.0) == ENGINE.reach("ttft", 0.0, 16, False, 0.0)


@given(st.lists(st.tuples(st.floats(1.0, 1e3), st.floats(1.0, 1e5)), min_size=1, max_size=5))
def test_more_loads_never_widen(places):
    own, before = own_loads("sglang"), 1.0
    for count in range(1, len(places) + 1):
        known = replace(own, loads=tuple(OwnLoad(*place, ttft=0.2, tpot=0.2) for place in places[:count]))
        left = known.left("tpot", 32.0, 1024.0)[0]
        assert 0.01 <= left <= before + 1e-9
        before = left


def test_a_version_is_doubted_by_its_distance_from_measured_ones():
    assert version_variances("vllm", None) == version_variances("vllm", "0.18.0") == (0.0, 0.0)
    near, far = (version_variances("vllm", name) for name in ("0.26", "0.30"))
    assert 0.0 < near[0] < far[0] and 0.0 < near[1] < far[1]
    assert nearest_measured("vllm", "0.30").version == "0.24.0"
    old, new = (rk.estimate("llama-3-8b", concurrency=16, engine=f"vllm@{name}") for name in ("0.24.0", "0.40"))
    assert new.interval["tpot_ms"][1] > 1.2 * old.interval["tpot_ms"][1]
    assert "nearest measured is 0.24.0" in new.doubt["tpot_ms"].cause
    assert any("loads of vllm 0.40 were not measured" in note for note in new.warnings)


def test_where_few_percent_of_the_cache_decide_both_sides_count():
    """51 users of 52 places, of which two are lost with 5 % of the cache: the high end is of those who wait."""
    small = predictor_with(ENGINE, memory_fraction=0.3)
    clear, edge = (play_load(small, Load(Fixed(1024), Fixed(256), users)) for users in (44, 51))
    assert edge.places == 52
    near, far = clear.reaches["ttft"], edge.reaches["ttft"]
    assert ROOM in far.causes and ROOM not in near.causes
    assert far.ends[1] > near.ends[1]


@given(
    steps=st.floats(0.0, 5.0), users=st.floats(1.0, 1e4), stands_in=st.booleans(), waiting=st.floats(0.0, 1.0),
    more=st.floats(0.0, 1.0),
)  # fmt: skip
def test_doubt_only_adds(steps, users, stands_in, waiting, more):
    """Wider steps, and another variance, never make an interval narrower; the inner quantiles rise within the ends."""
    own = LoadErrors(tpot=(0.6, 0.01, 0.06, 0.01, 0.02), tpot_places=SKEW, full_places=SKEW)
    reach = own.reach("tpot", steps, users, stands_in, waiting)
    wider = own.reach("tpot", steps + more, users, True, waiting)
    assert wider.ends[0] <= reach.ends[0] <= 0.0 <= reach.ends[1] <= wider.ends[1]
    assert list(reach.inner) == sorted(reach.inner)
    assert -1.0 <= reach.inner[0] <= reach.inner[-1] <= 1.0


def test_a_rate_that_slower_steps_cannot_sustain_has_the_end_that_was_played():
    knee = rk.estimate("llama-3-8b", rate=1.0).load.knee_rate
    far, near = (rk.estimate("llama-3-8b", rate=share * knee) for share in (0.5, 0.9))
    assert (far.load.stable, near.load.stable) == (True, True)
    for found in (far, near):
        for time in ("ttft_ms", "tpot_ms"):
            low, high = found.interval[time]
            assert low < getattr(found, time) < high
    wide = [found.interval["ttft_ms"][1] / found.ttft_ms for found in (far, near)]
    assert wide[0] < wide[1]  # first tokens wait for a queue that slower steps make longer
    row = rk.estimate_frame(pd.DataFrame({"model": ["llama-3-8b"], "rate": [0.9 * knee]})).iloc[0]
    assert [row["ttft_high_ms"], row["tpot_high_ms"]] == [near.interval[time][1] for time in ("ttft_ms", "tpot_ms")]


@pytest.mark.parametrize(("model", "gpu"), [("llama-3-8b", "h100-sxm"), ("qwen3-30b-a3b", "mi300x")])
def test_ends_of_tpot_do_not_jump_where_the_queue_becomes_endless(model, gpu):
    knee = rk.estimate(model, gpu, rate=1.0).load.knee_rate
    below, above = (rk.estimate(model, gpu, rate=share * knee) for share in (1.0 - 1e-6, 1.0 + 1e-6))
    assert (below.load.stable, above.load.stable) == (True, False)
    assert above.interval["tpot_ms"] == pytest.approx(below.interval["tpot_ms"], rel=0.01)


def test_the_interval_of_a_percentile_holds_it_where_the_mean_is_far_above():
    """Lengths of which few are very long: half of the first tokens come before the bound of their mean."""
    lengths = {"isl": "lognormal:mean=12000,cv=6,max=120000", "osl": 200}
    best = rk.plan("llama-3.1-8b", "h100-sxm", "p50 ttft<5s, p95 tpot<100ms", rate=0.2, **lengths).best
    low, high = best.interval["p50_ttft_ms"]
    assert low < best.predicted["ttft_ms"]["p50"] < high < best.predicted["ttft_ms"]["mean"]


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
    assert 0.8 * bound.tpot_ms < expected.bound["tpot_ms"] <= bound.tpot_ms  # its first requests, into an empty engine
    assert 0.3 * bound.ttft_ms < expected.bound["ttft_ms"] <= bound.ttft_ms  # waits are not in the bound
    for time in ("ttft_ms", "tpot_ms"):
        assert expected.bound[time] <= expected.interval[time][0]


def test_above_the_knee_a_faster_engine_may_still_carry_the_rate():
    expected, bound = (rk.estimate("llama-3-8b", rate=26.0, calibration=of) for of in (None, "none"))
    assert (expected.load.stable, bound.load.stable) == (False, True)
    assert 0.7 * bound.tpot_ms < expected.bound["tpot_ms"] <= bound.tpot_ms


def test_the_bound_of_users_is_the_answer_at_the_datasheets_rates():
    expected, bound = (rk.estimate("llama-3-8b", concurrency=32, calibration=of) for of in (None, "none"))
    assert expected.bound["tpot_ms"] == bound.tpot_ms


def test_every_engine_has_tested_factors_and_answers_say_how_they_did():
    for engine in engine_names():
        for since, gpu in step_ranges(engine):
            profile = load_engine(engine, since or None, gpu)
            if engine == "llama.cpp":  # no rows of a server of several users
                assert not profile.tested
                continue
            assert profile.loaded != LoadErrors(), engine
            assert set(profile.tested) == {"static", "load"}
    loaded = rk.estimate("llama-3-8b", rate=4)
    assert "left out" in loaded.interval_tested
    assert loaded.interval_tested in " ".join(plain_text(document(loaded, kernels=True)).split())
    assert "left out" in rk.estimate("llama-3-8b").interval_tested
    assert rk.estimate("llama-3-8b", "rtx-4090", engine="llama.cpp", concurrency=4).interval_tested is None
    bound = rk.estimate("llama-3-8b", rate=4, calibration="none")
    assert (bound.interval, bound.interval_tested) == (None, None)


@pytest.mark.parametrize("value", [[1.0], [1.0, 0.0, 0.0, 0.0, -0.1], 1.0, [1.0, "a"], [[1, 2, 3, 4, 5]]])
def test_variances_that_are_none_are_refused(tmp_path, value):
    section = FileSection(tmp_path / "x.yaml", "", {"ttft": {"value": value, "source": []}})
    with pytest.raises(SpecError, match="ttft"):
        read_facts(section, LoadErrors, "loaded.")


@pytest.mark.parametrize("value", [[1.0] * 6, [0, 1, 2, 3, 4, 6, 5]])
def test_quantiles_that_are_none_are_refused(tmp_path, value):
    section = FileSection(tmp_path / "x.yaml", "", {"tpot_places": {"value": value, "source": []}})
    with pytest.raises(SpecError, match="tpot_places"):
        read_facts(section, LoadErrors, "loaded.")
