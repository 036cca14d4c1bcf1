"""Accelerators that hold a model: each is what `estimate` says of it, and fewer of them do not hold it."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import rooflinekit as rk
from rooflinekit.cli.app import app
from rooflinekit.decision.fits import FitsOn, priced
from rooflinekit.report.fits import lines
from rooflinekit.specs import load_accelerator, names


@pytest.fixture(scope="module")
def found() -> FitsOn:
    return rk.fits_on("llama-3.3-70b", ["h100-sxm", "h200-sxm", "a100-sxm-80gb", "l4", "tpu-v5e", "t4"], batch=4)


def test_each_is_what_estimate_says(found: FitsOn) -> None:
    for each in found.fits:
        if each.tp is None:
            continue
        formats = {"weights": each.weights} if each.weights else {}
        there = rk.estimate("llama-3.3-70b", each.gpu, tp=each.tp, batch=4, **formats)
        assert there.memory.fits
        assert each.tpot_ms == pytest.approx(there.tpot_ms)
        assert each.evidence == there.evidence


def test_fewer_do_not_hold_it(found: FitsOn) -> None:
    """70.6 billion parameters in two bytes are 141 GB: two of 80 GB, not one."""
    two = next(each for each in found.fits if each.gpu == "h100-sxm")
    assert (two.holds, two.tp, two.weights) == ("fits", 2, "")
    with pytest.raises(rk.DoesNotFitError):
        rk.estimate("llama-3.3-70b", "h100-sxm", tp=1, batch=4)


def test_eight_small_ones_take_narrower_weights(found: FitsOn) -> None:
    """8 x 16 GB are less than 141 GB and more than 35."""
    small = next(each for each in found.fits if each.gpu == "tpu-v5e")
    assert (small.holds, small.weights) == ("narrower", "int4")
    assert small.option == f"--gpu tpu-v5e --tp {small.tp} --weights int4"


def test_the_cheapest_of_those_that_fit_comes_first(found: FitsOn) -> None:
    prices = [each.usd_per_million_output for each in found.of("fits") if each.usd_per_million_output is not None]
    assert prices == sorted(prices)
    hour = rk.load_accelerator("h100-sxm").value.price.usd_per_hour
    there = rk.estimate("llama-3.3-70b", "h100-sxm", tp=2, batch=4)
    two = next(each for each in found.fits if each.gpu == "h100-sxm")
    assert two.usd_per_million_output == pytest.approx(2 * hour / 3600 / there.output_tok_s * 1e6)


def test_what_does_not_fit_is_answered_with_those_that_do() -> None:
    result = CliRunner().invoke(app, ["estimate", "deepseek-v3", "--batch", "64"])
    assert result.exit_code == 3
    first, *rest = result.stderr.splitlines()
    assert "does not fit: needs 687.2 GB per accelerator" in first
    assert rest[0].startswith("fits       4 x mi300x (")
    assert any(line.startswith("narrower   8 x a100-sxm-80gb int4 (") for line in rest)
    assert any("8 x h100-sxm int4 (" in line for line in rest)
    assert rest[-1] == "`rooflinekit gpus --fits deepseek-v3` has all"
    assert all(len(line) <= 80 for line in rest)


def test_json_is_refused_in_one_line() -> None:
    result = CliRunner().invoke(app, ["estimate", "deepseek-v3", "--format", "json"])
    assert (result.exit_code, result.stderr.count("\n")) == (3, 1)


def test_the_command_lists_them() -> None:
    result = CliRunner().invoke(app, ["gpus", "--batch", "3"])
    assert (result.exit_code, result.stderr) == (2, "rooflinekit: --batch belongs to --fits MODEL; give both\n")
    assert "h100-sxm" in priced()
    assert lines(FitsOn("0", "m", {}, ())) == []


@pytest.mark.slow
def test_all_of_them() -> None:
    result = CliRunner().invoke(app, ["gpus", "--fits", "llama-3.3-70b", "--format", "json"])
    data = json.loads(result.stdout)
    assert sorted(each["gpu"] for each in data["fits"]) == sorted(names("accelerator"))
    table = CliRunner().invoke(app, ["gpus", "--fits", "llama-3.3-70b"]).stdout
    assert max(map(len, table.splitlines())) <= 80


def test_a_host_has_no_more_accelerators_than_its_links_join():
    """A GB10 and an Apple chip stand alone in their machines."""
    found = rk.fits_on("deepseek-v3")
    by = {each.gpu: each for each in found.fits}
    assert by["h200-sxm"].tp == 8
    assert by["gb10"].holds == "too small"
    assert by["apple-m3-ultra"].tp == 1
    for each in found.fits:
        assert (each.tp or 1) <= load_accelerator(each.gpu).value.domain_size
