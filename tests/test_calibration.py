"""Calibrations: what is refused, what a fit recovers, which one is chosen."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import yaml

import rooflinekit as rk
from rooflinekit.calibration.fit import Measured, fit_family, predict
from rooflinekit.calibration.load import (
    DEFAULT,
    calibration_names,
    choose_calibration,
    load_calibration,
    read_calibration,
)
from rooflinekit.specs import spec_dir
from rooflinekit.types.dtype import Dtype
from rooflinekit.types.errors import InputError, SpecError, UnknownNameError
from rooflinekit.types.kernel import FAMILIES, Kernel

FAMILY = {
    "launch_us": [3.5, 0.1],
    "compute": [0.8, 0.01],
    "memory": [0.85, 0.01],
    "network": [1, 0],
    "hop_us": [0, 0],
    "interval": [0.9, 1.3],
    "rows": 10,
    "source": "here",
}
FILE = {
    "name": "mine",
    "accelerator": "h100-sxm",
    "engine": "vllm 1.0",
    "form": "roofline-3",
    "source": "my measurements",
    "date": "2026-01-01",
    "version": "0.1.0",
    "transfer": {"low": 0.8, "high": 1.8, "source": "there"},
    "families": dict.fromkeys(FAMILIES, FAMILY),
}


def written(tmp_path, *path, value=None, drop=False):
    """The file above with one entry changed or dropped."""
    data = copy.deepcopy(FILE)
    entry = data
    for key in path[:-1]:
        entry = entry[key]
    if drop:
        del entry[path[-1]]
    elif path:
        entry[path[-1]] = value
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(data, sort_keys=False))
    return file


def test_a_calibration_is_read_in_si(tmp_path):
    got = read_calibration(written(tmp_path))
    gemm = got.families["gemm"]
    assert (gemm.launch.value, gemm.launch.spread) == (3.5e-6, 0.1e-6)
    assert (gemm.compute.value, gemm.memory.value, gemm.low, gemm.high, gemm.rows) == (0.8, 0.85, 0.9, 1.3, 10)
    assert (got.name, got.accelerator, got.transfer) == ("mine", "h100-sxm", (0.8, 1.8))


def test_the_hash_is_of_the_content_and_not_of_the_line_ends(tmp_path):
    file = written(tmp_path)
    first = read_calibration(file).hash
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    assert read_calibration(file).hash == first
    assert read_calibration(written(tmp_path, "families", "gemm", "rows", value=11)).hash != first


@pytest.mark.parametrize(("path", "value", "said"), [
    (("nmae",), "x", "mine.yaml: unknown key 'nmae'; nearest: name"),
    (("families", "gemm", "comptue"), [1, 0], "mine.yaml: gemm: unknown key 'comptue'; nearest: compute"),
    (("families", "gem"), FAMILY, "families: unknown family 'gem'; nearest: gemm"),
    (("form",), "roofline-9", "form: 'roofline-9' is not known; known: roofline-3"),
    (("families", "gemm", "compute"), [1.2, 0], "gemm.compute: 1.2 is not a share of the datasheet rate"),
    (("families", "gemm", "compute"), [0, 0], "gemm.compute: 0.0 is not a share"),
    (("families", "gemm", "compute"), 0.8, "gemm.compute: 0.8 is not a pair of numbers"),
    (("families", "gemm", "compute"), [0.8], "gemm.compute: [0.8] is not a pair of numbers"),
    (("families", "gemm", "compute"), [0.8, -1], "gemm.compute: -1 is not a number of at least 0"),
    (("families", "gemm", "launch_us"), [-3.5, 0], "gemm.launch_us: -3.5 is not a number of at least 0"),
    (("families", "gemm", "launch_us"), ["3.5 us", 0], "gemm.launch_us: '3.5 us' is not a number"),
    (("families", "gemm", "launch_us"), [True, 0], "gemm.launch_us: True is not a number"),
    (("families", "gemm", "memory"), [float("nan"), 0], "gemm.memory: nan is not a number"),
    (("families", "gemm", "memory"), [float("inf"), 0], "gemm.memory: inf is not a number"),
    (("families", "gemm", "interval"), [1.1, 1.3], "gemm.interval: [1.1, 1.3] does not contain 1"),
    (("families", "gemm", "interval"), [0.5, 0.9], "gemm.interval: [0.5, 0.9] does not contain 1"),
    (("families", "gemm", "rows"), "many", "gemm.rows: 'many' is not a number"),
    (("families", "gemm"), 3, "mine.yaml: gemm: expected keys"),
    (("transfer", "low"), "x", "transfer: 'x' is not a number"),
])  # fmt: skip
def test_a_file_that_cannot_be_trusted_is_refused(tmp_path, path, value, said):
    with pytest.raises(SpecError) as caught:
        read_calibration(written(tmp_path, *path, value=value))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", [("name",), ("families",), ("transfer",), ("form",), ("families", "gemm", "hop_us")])
def test_a_missing_key_is_named(tmp_path, path):
    with pytest.raises(SpecError, match=f"missing key {path[-1]}"):
        read_calibration(written(tmp_path, *path, drop=True))


@pytest.mark.parametrize(("path", "value"), [
    (("families",), []),
    (("families",), None),
    (("families",), {"gemm": FAMILY}),
    (("transfer",), 5),
    (("transfer",), {"low": 0.8}),
    (("families", "gemm", "interval"), [0.9]),
    (("families", "gemm", "interval"), 1.0),
])  # fmt: skip
def test_a_wrong_shape_is_refused_and_not_a_crash(tmp_path, path, value):
    with pytest.raises(SpecError, match=r"mine\.yaml"):
        read_calibration(written(tmp_path, *path, value=value))


@pytest.mark.parametrize(("path", "value"), [
    (("families", 3), FAMILY),
    (("transfer", "low"), 2.0),  # narrows the interval until it no longer holds the time
    (("transfer", "high"), 0.5),
])  # fmt: skip
def test_a_wrong_value_is_refused_and_not_a_crash(tmp_path, path, value):
    with pytest.raises(SpecError, match=r"mine\.yaml"):
        read_calibration(written(tmp_path, *path, value=value))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_that_is_missing_is_named(tmp_path, family):
    with pytest.raises(SpecError, match=f"families: missing {family}"):
        read_calibration(written(tmp_path, "families", family, drop=True))


@pytest.mark.parametrize(("content", "said"), [
    (b"\xff\xfe\x00broken", "UTF-8"),
    (b"name: [unclosed", "mine.yaml"),
    (b"", "mine.yaml"),
    (b"- a\n- b\n", "mine.yaml"),
])  # fmt: skip
def test_a_file_that_is_not_yaml_is_refused(tmp_path, content, said):
    file = tmp_path / "mine.yaml"
    file.write_bytes(content)
    with pytest.raises(InputError, match=said):
        read_calibration(file)


def test_a_file_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises((InputError, OSError)):
        load_calibration(str(tmp_path / "absent.yaml"))


def test_a_calibration_nobody_knows_names_the_nearest():
    with pytest.raises(UnknownNameError, match="unknown calibration 'h100-sxm-vllm'; nearest: h100-sxm--vllm"):
        load_calibration("h100-sxm-vllm")


@pytest.mark.parametrize("name", calibration_names())
def test_a_shipped_calibration_covers_every_family(name):
    shipped = load_calibration(name)
    for family in FAMILIES:
        fit = shipped.fit(Kernel("k", family, 1, Dtype.BF16))
        assert 0 < fit.compute.value <= 1
        assert 0 < fit.memory.value <= 1
        assert 0 < fit.network.value <= 1
        assert fit.low <= 1 <= fit.high
        assert fit.rows > 0 or fit.source.startswith("assumption"), family
    assert (spec_dir("accelerator") / "calibrations" / f"{name}.yaml").is_file()


def test_the_default_stands_in_with_a_sentence_and_a_wider_interval():
    own, silence = choose_calibration("h100-sxm", "vllm")
    assert (own.name, silence) == (DEFAULT, None)
    other, said = choose_calibration("mi300x", "sglang")
    assert other.name == DEFAULT
    assert "no calibration for mi300x with sglang" in said
    home, away = rk.estimate("llama-3-8b", "h100-sxm"), rk.estimate("llama-3-8b", "h200-sxm")

    def width(estimate):
        low, high = estimate.interval["tpot_ms"]
        return high / low

    assert width(away) > width(home)
    assert any("no calibration for h200-sxm" in warning for warning in away.warnings)
    assert not any("calibration" in warning for warning in home.warnings)


def test_a_calibration_asked_for_away_from_home_says_so(tmp_path):
    at_home = rk.estimate("llama-3-8b", "h100-sxm", calibration=str(written(tmp_path)))
    assert at_home.calibration["name"] == "mine"
    assert at_home.warnings == ()
    away = rk.estimate("llama-3-8b", "a100-sxm-80gb", calibration=str(written(tmp_path)))
    assert any("calibration mine was fitted on h100-sxm" in warning for warning in away.warnings)


# --- fitting --------------------------------------------------------------------------------------------------------


def synthetic(seed, noise):
    """600 GEMM-like kernels of all sizes: 5 us a launch, 70 % of the peak, 90 % of the bandwidth; log-normal noise."""
    rng = np.random.default_rng(seed)
    compute, memory = 10 ** rng.uniform(-7, -2, 600), 10 ** rng.uniform(-7, -2, 600)
    time = (5e-6 + np.maximum(compute / 0.7, memory / 0.9)) * np.exp(rng.normal(0, noise, 600))
    return Measured(compute, memory, np.zeros(600), np.zeros(600), time, np.arange(600) % 20.0)


def collectives(seed, noise):
    """600 collectives over 2 to 8 GPUs: 4 us a launch, 0.5 us a hop, 70 % of the link."""
    rng = np.random.default_rng(seed)
    sent, hops = 10 ** rng.uniform(-7, -2, 600), rng.integers(1, 8, 600).astype(float)
    time = (4e-6 + 0.5e-6 * hops + sent / 0.7) * np.exp(rng.normal(0, noise, 600))
    return Measured(np.zeros(600), np.zeros(600), sent, hops, time, hops)


def within(parameter, truth, errors=4.0):
    """Four standard errors: a sound fit misses one in 16,000."""
    return abs(parameter.value - truth) <= errors * parameter.spread


@pytest.mark.parametrize("seed", range(5))
def test_a_fit_recovers_what_made_the_times_within_its_spread(seed):
    rows = synthetic(seed, noise=0.05)
    fit = fit_family(rows, "synthetic")
    assert within(fit.launch, 5e-6)
    assert within(fit.compute, 0.7)
    assert within(fit.memory, 0.9)
    # and the spread is a tight one: 600 rows at 5 % leave less than 2 % on any of the three
    for parameter in (fit.launch, fit.compute, fit.memory):
        assert 0 < parameter.spread < 0.02 * parameter.value
    assert fit.rows == 600
    # 5 % and 95 % quantiles of exp(N(0, 0.05)) are 0.921 and 1.086
    assert fit.low == pytest.approx(0.921, abs=0.02)
    assert fit.high == pytest.approx(1.086, abs=0.02)


def test_a_fit_of_exact_times_is_exact():
    rows = synthetic(1, noise=0.0)
    fit = fit_family(rows, "synthetic")
    assert (fit.launch.value, fit.compute.value, fit.memory.value) == pytest.approx((5e-6, 0.7, 0.9), rel=1e-4)
    assert predict(fit, rows) == pytest.approx(rows.time, rel=1e-4)


def test_a_resource_that_no_row_needs_keeps_share_one():
    rows = synthetic(2, noise=0.05)
    fit = fit_family(replace(rows, compute=np.zeros(600), time=5e-6 + rows.memory / 0.9), "synthetic")
    for untouched in (fit.compute, fit.network):
        assert (untouched.value, untouched.spread) == (1.0, 0.0)
    assert (fit.hop.value, fit.hop.spread) == (0.0, 0.0)
    assert fit.memory.value == pytest.approx(0.9, rel=1e-3)


def test_a_fit_of_collectives_finds_link_share_and_hops():
    rows = collectives(3, noise=0.03)
    fit = fit_family(rows, "synthetic")
    assert within(fit.launch, 4e-6)
    assert within(fit.network, 0.7)
    assert within(fit.hop, 0.5e-6)
    assert (fit.compute.value, fit.memory.value) == (1.0, 1.0)


def test_a_few_wild_rows_do_not_move_the_fit():
    rows = synthetic(4, noise=0.05)
    time = rows.time.copy()
    time[::40] *= 20  # 15 of 600 measured while something else ran
    fit = fit_family(replace(rows, time=time), "synthetic")
    assert fit.compute.value == pytest.approx(0.7, rel=0.05)
    assert fit.memory.value == pytest.approx(0.9, rel=0.05)


def test_a_fit_needs_its_extra(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(InputError, match=r"pip install 'rooflinekit\[accuracy\]'"):
        fit_family(synthetic(0, noise=0.05), "synthetic")
