"""Fitting: parameters that are known come back, priors hold few rows together, files survive the round trip."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rooflinekit.evidence.kernel_fit.calibrate import (
    DonorReach,
    Prior,
    calibrate_family,
    carry,
    fit_form,
    fit_regimes,
    form_time,
    kernel_of,
    predict,
)
from rooflinekit.evidence.kernel_fit.correction import fit_surface
from rooflinekit.evidence.kernel_fit.groups import kernel_groups, read_kernel_tables
from rooflinekit.evidence.kernel_fit.tables import Measured, measured_rows, power_law_load
from rooflinekit.model.timing.calibrated import AXES, Beyond, FamilyFit, Regimes
from rooflinekit.model.timing.forms import DecodeTime, GemmTime, PrefillTime, parameters
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.errors import SpecError
from rooflinekit.model.types.hardware import System
from rooflinekit.model.types.kernel import ExpertsShape, GemmShape, Kernel
from rooflinekit.specs import load_accelerator
from rooflinekit.specs.calibration import calibration_names, choose_calibration, load_calibration
from rooflinekit.specs.calibration.choose import stand_in
from rooflinekit.specs.calibration.load import read_calibration
from rooflinekit.specs.calibration.write import Heading, render

H100 = System.of(load_accelerator("h100-sxm").value)
TRUTH = GemmTime(launch=3.1e-6, depth_root=1.4e-6, compute=0.71, memory=0.83, tile=120.0)


def table(truth=TRUTH, noise=0.03, seed=0, distort=None) -> pd.DataFrame:
    """GEMM rows whose times are a known form, with noise."""
    sizes = [
        (m, n, k)
        for m in (1, 16, 64, 256, 1024, 8192)
        for n in (512, 1024, 4096, 16384)
        for k in (512, 2048, 4096, 8192)
    ]
    rows = pd.DataFrame(sizes, columns=["m", "n", "k"]).assign(dtype="bfloat16", latency_us=1.0)
    exact = form_time(truth, measured_rows(rows, "gemm"), H100)
    exact = exact * (distort(rows) if distort else 1.0)
    return rows.assign(latency_us=1e6 * exact * np.exp(np.random.default_rng(seed).normal(0.0, noise, len(rows))))


def test_known_parameters_come_back_within_their_spread():
    fit = fit_form(measured_rows(table(), "gemm"), H100)
    for name in ("launch", "compute", "memory"):
        assert getattr(fit.form, name) == pytest.approx(
            getattr(TRUTH, name), abs=max(4 * fit.spread[name], 0.03 * getattr(TRUTH, name))
        )


def test_outliers_do_not_move_the_fit():
    rows = table()
    rows.loc[::20, "latency_us"] *= 5.0
    fit = fit_form(measured_rows(rows, "gemm"), H100)
    assert fit.form.compute == pytest.approx(TRUTH.compute, rel=0.05)
    assert fit.form.memory == pytest.approx(TRUTH.memory, rel=0.05)


def test_what_the_data_cannot_show_is_frozen_and_said():
    """Kernels of one row never meet the compute roof, and 16-bit ones quantise nothing."""
    rows = table()
    fit = fit_form(measured_rows(rows[rows["m"] == 1].reset_index(drop=True), "gemm"), H100)
    assert "quantise" in fit.frozen
    assert fit.form.quantise == GemmTime().quantise


def attention(forms, phase="decode", noise=0.02, seed=0) -> pd.DataFrame:
    """Rows whose times are those of a known form: one for each number of query heads a KV head from which it holds."""
    heads = [(32, 32), (16, 16), (32, 8), (64, 8), (40, 8), (16, 2), (64, 1), (48, 1), (96, 2), (128, 1)]
    sizes = [(b, s, h, k, d) for b in (1, 8, 64, 256) for s in (1, 64, 1024, 8192) for h, k in heads for d in (64, 128)]
    rows = pd.DataFrame(sizes, columns=["batch", "seq_len", "heads", "kv_heads", "head_dim"])
    rows = rows.assign(dtype="bfloat16", kv_dtype="bfloat16", latency_us=1.0)
    measured = measured_rows(rows, f"attention_{phase}")
    group, exact = measured.each(AXES["group"]), np.zeros(len(rows))
    for start, form in sorted(forms.items()):
        exact = np.where(group >= start, form_time(form, measured, H100), exact)
    return rows.assign(latency_us=1e6 * exact * np.exp(np.random.default_rng(seed).normal(0.0, noise, len(rows))))


@pytest.mark.parametrize("packed", [0, 1, 2])
def test_how_a_kernel_lays_heads_into_tiles_is_found(packed):
    truth = PrefillTime(packed=packed, tile=5e-6)
    fit = fit_form(measured_rows(attention({0: truth}, "prefill"), "attention_prefill"), H100)
    assert fit.form.packed == packed


@pytest.mark.parametrize("rows", [16, 64])
def test_how_many_heads_share_a_tile_is_found(rows):
    truth = DecodeTime(rows=rows, tile=10e-6)
    fit = fit_form(measured_rows(attention({0: truth}), "attention_decode"), H100)
    assert fit.form.rows == rows


def test_rows_of_a_tile_are_found_and_one_more_row_takes_another_tile():
    rows = pd.concat([table(), table().assign(m=lambda each: each["m"] + 1)], ignore_index=True)
    for stacked in (1, 4):
        times = form_time(truth := replace(TRUTH, stacked=stacked), measured_rows(rows, "gemm"), H100)
        fit = fit_form(measured_rows(rows.assign(latency_us=1e6 * times), "gemm"), H100)
        assert fit.form.stacked == stacked
        sizes = np.array([256.0, 257.0, 512.0])
        shape = GemmShape(sizes, 8192.0, 8192.0)
        one = Kernel("w", "gemm", 1, Dtype.BF16, 2.0 * sizes * 8192.0**2, 2.0 * 8192.0**2, shape=shape)
        below, above, whole = truth.time(one, H100).compute
        assert above / below == pytest.approx(1.25 if stacked == 1 else 2.0)
        assert (above == whole) == (stacked == 4)


def test_kernels_that_an_engine_changes_to_are_fitted_apart_and_kept(tmp_path):
    """Three kernels by query heads a KV head, as TensorRT-LLM has; one that serves all heads stays one."""
    slow = DecodeTime(launch=40e-6, compute=0.003, tile=50e-6, rows=16)
    truth = {0: DecodeTime(compute=0.01, tile=1e-6), 2: DecodeTime(launch=20e-6), 40: slow}
    rows = measured_rows(pd.concat([attention(truth, seed=seed) for seed in (0, 1)]), "attention_decode")
    fit = calibrate_family(rows, H100, "synthetic", folds=2).fit
    assert (fit.beyond.axis, fit.beyond.start, fit.beyond.fit.beyond.start) == ("group", 2.0, 40.0)
    assert fit.beyond.fit.beyond.fit.form.launch == pytest.approx(slow.launch, rel=0.1)
    assert off(fit, rows) < 0.03
    one = measured_rows(pd.concat([attention({0: slow}, seed=seed) for seed in (0, 1)]), "attention_decode")
    assert calibrate_family(one, H100, "synthetic", folds=2).fit.beyond is None
    heading, known = Heading("h100-sxm", "vllm", "test", "synthetic", "2026-11-23", {}), "attention_decode/bf16/bf16"
    path = tmp_path / "nested.yaml"
    donor = load_calibration("h100-sxm--vllm")
    families = {key: each for key, each in donor.families.items() if "/" not in key}
    path.write_text(render(heading, {**families, known: fit}))
    kept = read_calibration(path).families[known]
    assert predict(kept, rows, H100) == pytest.approx(predict(fit, rows, H100), rel=2e-3)
    elsewhere = kept.elsewhere(corrected=False)
    assert predict(elsewhere, rows, H100) == pytest.approx(predict(kept, rows, H100, corrected=False), rel=1e-12)


def test_rows_of_one_kernel_are_fitted_towards_that_kernel():
    """Of a donor with two kernels, rows of the far one leave the near one as it is, and few of them suffice."""
    near, far = DecodeTime(launch=10e-6), DecodeTime(launch=40e-6, compute=0.003, tile=50e-6, rows=16)
    known = FamilyFit(near, {}, (), None, Regimes("", (), (1.3,)), 500, 0.05, "donor")
    donor = replace(known, beyond=Beyond("group", 40.0, replace(known, form=far)))
    many = measured_rows(attention({0: replace(far, launch=44e-6)}), "attention_decode")
    rows = many.subset(many.each(AXES["group"]) >= 40.0)
    assert kernel_of(donor, rows).form == far
    assert kernel_of(donor, many).form == near  # six of ten shapes have fewer heads
    moved = carry(donor, rows, H100, "own", DonorReach(0.3)).fit
    assert moved.form == near
    assert moved.beyond.fit.form.launch == pytest.approx(44e-6, rel=0.05)


def test_a_prior_keeps_twelve_rows_sane():
    rows = measured_rows(table(noise=0.1).iloc[::8].reset_index(drop=True), "gemm")
    prior = replace(TRUTH, launch=2.5e-6, compute=0.8)
    fit = fit_form(rows, H100, Prior(prior))
    whole = measured_rows(table(noise=0.0), "gemm")
    error = np.abs(form_time(fit.form, whole, H100) / whole.time - 1.0)
    assert error.mean() < 0.06
    for name, bound in parameters(fit.form).items():
        assert bound.low * bound.scale <= getattr(fit.form, name) <= bound.high * bound.scale


def test_a_correction_learns_what_the_form_cannot_say_and_is_nothing_elsewhere():
    rows = measured_rows(table(noise=0.01, distort=lambda t: np.where(t["n"] >= 4096, 1.15, 1.0)), "gemm")
    surface = fit_surface(rows, TRUTH, H100, rows.time / form_time(TRUTH, rows, H100))
    ratio = rows.each(surface.ratio)
    wide = rows.each(AXES["n"]) >= 4096
    assert np.median(ratio[wide]) > 1.05
    assert np.median(ratio[~wide]) < 1.04
    far = replace(rows.kernels[0], shape=GemmShape(64.0, 2.0**21, 2048.0))
    assert surface.ratio(far) == pytest.approx(1.0)


def test_a_correction_never_makes_a_larger_kernel_faster():
    """Times that fall with m are not believed."""
    rows = measured_rows(table(noise=0.0, distort=lambda t: np.where(t["m"] == 16, 1.5, 1.0)), "gemm")
    surface = fit_surface(rows, TRUTH, H100, rows.time / form_time(TRUTH, rows, H100))
    m = np.exp2(np.linspace(0.0, 12.0, 200))
    kernel = measured_rows(
        pd.DataFrame({"m": m, "n": 1024.0, "k": 2048.0, "dtype": "bfloat16", "latency_us": 1.0}), "gemm"
    ).kernels[0]
    time = TRUTH.time(kernel, H100).total * surface.ratio(kernel)
    assert np.diff(np.log(time)).min() > -2e-3


def test_intervals_hold_on_unseen_groups():
    fitted = calibrate_family(measured_rows(table(noise=0.1), "gemm"), H100, "synthetic")
    assert 0.82 <= fitted.inside.mean() <= 0.97
    assert all(1.1 < width < 1.4 for width in fitted.fit.regimes.width)


def drawn(whole: Measured, size: int, seed: int) -> tuple[Measured, Measured]:
    """A few rows of a table, and the others."""
    some = np.zeros(len(whole.time), bool)
    some[np.random.default_rng(seed).permutation(len(some))[:size]] = True
    return whole.subset(some), whole.subset(~some)


def off(fit, rows: Measured) -> float:
    return float(np.mean(np.abs(np.log(rows.time / predict(fit, rows, H100)))))


@pytest.mark.parametrize("size", [8, 20])
@pytest.mark.parametrize(("change", "spread", "most"), [
    ({}, 0.05, 1.0),  # the donor is right: nothing is gained, and nothing may be lost
    ({"launch": 4.5e-6, "memory": 0.62}, 0.2, 0.8),  # another engine's kernels
])  # fmt: skip
def test_a_fit_carried_to_a_few_rows_is_no_worse_than_the_donor(size, change, spread, most):
    """The truth is the donor's form with other parameters, times its correction: a quarter of the shapes are slower."""
    distort = lambda rows: np.where(rows["n"] >= 4096, 1.25, 1.0)  # noqa: E731
    home = measured_rows(table(noise=0.0, distort=distort), "gemm")
    surface = fit_surface(home, TRUTH, H100, home.time / form_time(TRUTH, home, H100))
    donor = FamilyFit(TRUTH, {}, (), surface, Regimes("", (), (1.1,)), 96, 0.03, "donor")
    whole = measured_rows(table(replace(TRUTH, **change), noise=0.05, distort=distort), "gemm")
    ratios = []
    for seed in range(5):
        some, unseen = drawn(whole, size, seed)
        found = carry(donor, some, H100, "drawn", DonorReach(spread)).fit
        assert found is None or found.surface is surface
        ratios.append(off(found or donor, unseen) / off(donor, unseen))
    assert np.median(ratios) <= most


def test_rows_of_another_number_format_may_leave_the_donors_correction():
    """The donor is slow at wide matrices where these kernels are not: no move of its parameters can say so."""
    home = measured_rows(table(noise=0.0, distort=lambda rows: np.where(rows["n"] >= 4096, 1.6, 1.0)), "gemm")
    surface = fit_surface(home, TRUTH, H100, home.time / form_time(TRUTH, home, H100))
    donor = FamilyFit(TRUTH, {}, (), surface, Regimes("", (), (1.1,)), 96, 0.03, "donor")
    some, unseen = drawn(measured_rows(table(replace(TRUTH, memory=0.5), noise=0.03), "gemm"), 20, 0)
    moved, own = (carry(donor, some, H100, "drawn", DonorReach(0.2, stand_in=other)).fit for other in (False, True))
    assert own is not None
    assert off(own, unseen) < 0.6 * off(moved or donor, unseen)


def test_a_donor_that_is_right_is_kept_and_what_fitting_would_cost_is_said():
    whole = measured_rows(table(noise=0.0), "gemm")
    donor = FamilyFit(TRUTH, {}, (), None, Regimes("", (), (1.1,)), 96, 0.03, "donor")
    found = carry(donor, drawn(whole, 8, 0)[0], H100, "drawn", DonorReach())
    assert found.fit is None
    assert found.donor < 1e-9 < found.error


def test_a_shape_group_of_many_rows_does_not_set_the_width_of_all():
    """Ten matrices are 20 % off, at 30 batches each; one that was measured at 3,000 is exact."""
    sizes = pd.DataFrame({"n": [512.0] * 3000 + [1024.0 + 64.0 * (row // 30) for row in range(300)]})
    rows = measured_rows(sizes.assign(m=4.0, k=2048.0, dtype="bfloat16", latency_us=1.0), "gemm")
    ratio = np.where(sizes["n"] > 512.0, 1.2, 1.0)
    assert max(fit_regimes(rows, ratio).width) == pytest.approx(1.2)


TABLES = Path(__file__).parents[2] / "shared" / "data" / "kernels"


@pytest.mark.long
@pytest.mark.skipif(not TABLES.is_dir(), reason="the measured kernel tables are not here")
@pytest.mark.parametrize("donor, most", [("h200-sxm--vllm", 1.0), ("h200-sxm--sglang", 0.8), ("b200-sxm--vllm", 0.8)])
def test_a_fit_carried_to_measured_kernels_is_no_worse_than_the_donor(donor, most):
    """The donor's own kernels, another engine's and another generation's; benchmarks/carry.py has all families."""
    system = System.of(load_accelerator("h200-sxm").value)
    calibration, _ = stand_in(load_calibration(donor), system.accelerator, "vllm")
    ratios = []
    for operation, key in (("attention_prefill", "attention_prefill/bf16/bf16"), ("gemm", "gemm/bf16")):
        ((_, rows),) = read_kernel_tables(TABLES / f"{operation}.parquet")
        (group,) = [each for each in kernel_groups(operation, rows)
                    if (each.gpu, each.engine, each.key) == ("h200-sxm", "vllm", key)]  # fmt: skip
        fit, whole = calibration.families[key], group.rows()
        for seed in range(5):
            some, unseen = drawn(whole, 20, seed)
            found = carry(fit, some, system, "drawn", DonorReach.of(calibration, fit, group.family, distant=False)).fit
            error = [
                np.mean(np.abs(np.log(unseen.time / predict(each, unseen, system)))) for each in (found or fit, fit)
            ]
            ratios.append(error[0] / error[1])
    assert np.median(ratios) <= most


def test_a_file_survives_the_round_trip(tmp_path):
    rows = measured_rows(table(), "gemm")
    fit = calibrate_family(rows, H100, "synthetic").fit
    families = {"gemm/bf16": fit}
    defaults = dict.fromkeys(load_calibration(calibration_names()[0]).families, "gemm/bf16")
    defaults = {family: key for family, key in defaults.items() if "/" not in family}
    path = tmp_path / "x--y.yaml"
    path.write_text(render(Heading("x", "y", "1.0", "synthetic", "2026-01-01", defaults), families), encoding="utf-8")
    again = read_calibration(path).families["gemm/bf16"]
    assert predict(again, rows, H100) == pytest.approx(predict(fit, rows, H100), rel=2e-3)


def test_a_parameter_outside_its_bounds_is_refused(tmp_path):
    name = calibration_names()[0]
    text = (tmp_path / "a.yaml", load_path(name).read_text(encoding="utf-8"))
    broken = text[1].replace("      compute: [", "      compute: [7", 1)
    text[0].write_text(broken, encoding="utf-8")
    with pytest.raises(SpecError, match=r"compute.*outside"):
        read_calibration(text[0])


def load_path(name):
    from rooflinekit.specs import spec_dir

    return spec_dir("accelerator") / "calibrations" / f"{name}.yaml"


def test_the_busiest_rank_has_more_than_its_share_and_touches_fewer_experts_than_it_has():
    tokens = np.array([64.0, 4096.0])
    pairs, touched = power_law_load(tokens, np.full(2, 8.0), np.full(2, 256.0), np.full(2, 8.0))
    assert (pairs > tokens * 8 / 8).all()
    assert (touched <= 32).all()


def test_the_nearest_calibration_stands_in_and_says_so():
    chosen, note = choose_calibration(load_accelerator("h100-pcie").value, "vllm")
    assert chosen.accelerator == "h100-sxm"
    assert min(chosen.widening.values()) >= 1.0
    assert "h100-pcie" in note
    own, silent = choose_calibration(load_accelerator("h100-sxm").value, "vllm")
    assert silent is None
    assert not own.widening


def expert_rows(**columns: object) -> Measured:
    """One row of an expert table: 64 tokens over DeepSeek-V3's experts, or as told."""
    row = {"gpu": "h100-sxm", "engine": "vllm", "dtype": "fp8_block", "routing": "balanced", "ffn_matrices": 3.0,
           "tokens": 64.0, "hidden": 7168.0, "expert_intermediate": 2048.0, "top_k": 8.0, "experts": 256.0,
           "tp": 1.0, "ep": 1.0, "latency_us": 1000.0}  # fmt: skip
    return measured_rows(pd.DataFrame([row | columns]), "moe")


@pytest.mark.parametrize(
    ("columns", "touched"),
    [
        ({}, 128.0),  # four of eight groups, in each of which every token has one expert
        ({"tokens": 4.0}, 20.0),  # 4 x 4, and four of low score that all tokens share
        ({"engine": "trtllm"}, 256.0),  # its benchmark has no such router
        ({"ep": 2.0}, 128.0),
        ({"top_k": 6.0}, 256.0),  # another model's
    ],
)
def test_a_router_of_groups_leaves_half_of_the_experts_of_rows_that_are_called_balanced(columns, touched):
    (kernel,) = expert_rows(**columns).kernels
    assert float(kernel.shaped(ExpertsShape).touched[0]) == touched
    assert float(kernel.weight_bytes[0]) == pytest.approx(touched * 3 * 7168 * 2048 * 1.00024, rel=1e-4)


@pytest.mark.parametrize(("top_k", "matrices"), [(22.0, 2), (8.0, 3)])
def test_experts_of_nemotron_ultra_have_two_matrices_whatever_a_row_says(top_k, matrices):
    shape = {"hidden": 2048.0, "expert_intermediate": 5120.0, "experts": 512.0, "dtype": "bfloat16", "top_k": top_k}
    (kernel,) = expert_rows(**shape).kernels
    assert float(kernel.flops[0]) == 2 * 64 * top_k * matrices * 2048 * 5120
    assert float(kernel.shaped(ExpertsShape).matrices[0]) == matrices
