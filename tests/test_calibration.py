"""Calibration files: what is refused, what is shipped, which one is chosen."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pandas as pd
import pytest
import yaml

import rooflinekit as rk
from rooflinekit.estimation.estimator import read_deployment, resolve
from rooflinekit.model.timing.calibrated import Regimes, _ends
from rooflinekit.model.timing.forms import FORMS, parameters
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.errors import InputError, SpecError, UnknownNameError
from rooflinekit.model.types.hardware import System
from rooflinekit.model.types.kernel import FAMILIES, AttentionShape, CollectiveShape, ExpertsShape, GemmShape, Kernel
from rooflinekit.specs import load_accelerator, spec_dir
from rooflinekit.specs.calibration import calibration_names, choose_calibration, load_calibration, stand_in
from rooflinekit.specs.calibration.choose import serving_engine, widening
from rooflinekit.specs.calibration.load import _divided, calibration_path, read_calibration
from rooflinekit.specs.calibration.write import entry


def family(name):
    """An entry with the usual value of every parameter of the family's form."""
    known = parameters(FORMS[name])
    values = {key: bound.usual if bound.choices else [bound.usual, 0.0] for key, bound in known.items()}
    interval = {"axis": "", "edges": [], "width": [1.5]}
    return {"parameters": values, "frozen": [], "interval": interval, "rows": 10, "error": 0.1, "source": "here"}


FILE = {
    "name": "mine",
    "accelerator": "h100-sxm",
    "engine": "vllm 1.0",
    "form": "physical-1",
    "source": "my measurements",
    "date": "2026-01-01",
    "version": "0.1.0",
    "defaults": {},
    "families": {name: family(name) for name in FAMILIES},
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
    got = read_calibration(written(tmp_path, "families", "gemm", "parameters", "launch", value=[3.5, 0.1]))
    gemm = got.families["gemm"]
    assert gemm.form.launch == pytest.approx(3.5e-6)
    assert gemm.spread["launch"] == pytest.approx(0.1e-6)
    assert (gemm.rows, gemm.error, gemm.regimes.width) == (10, 0.1, (1.5,))
    assert (got.name, got.accelerator) == ("mine", "h100-sxm")


def test_a_parameter_without_an_error_is_one_that_the_data_could_not_pin(tmp_path):
    fit = read_calibration(written(tmp_path, "families", "gemm", "parameters", "tail", value=0.25)).families["gemm"]
    assert (fit.form.tail, fit.spread["tail"], fit.frozen) == (0.25, 0.0, ("tail",))


def test_a_parameter_that_is_left_out_has_its_usual_value(tmp_path):
    fit = read_calibration(written(tmp_path, "families", "gemm", "parameters", "tile", drop=True)).families["gemm"]
    bound = parameters(fit.form)["tile"]
    assert (fit.form.tile, fit.frozen) == (pytest.approx(bound.usual * bound.scale), ("tile",))


def test_nodes_of_a_correction_fade_over_four_doublings(tmp_path):
    surfaces = []
    for told in ({"nodes": {"k": [64, 256]}}, {"axes": {"k": [4, 64, 256, 4096]}}):
        file = written(tmp_path, "families", "gemm", "correction", value=told | {"percent": "10 -20"})
        surfaces.append(read_calibration(file).families["gemm"].surface)
    assert surfaces[0] == surfaces[1]
    assert surfaces[0].axes[0].nodes == (2.0, 6.0, 8.0, 12.0)


def test_what_is_written_is_read_again(tmp_path):
    for name in ("h100-sxm--vllm", "rtx-4090--llama.cpp", "tpu-v6e--vllm"):
        shipped = {key: fit for key, fit in load_calibration(name).families.items() if "/" in key and fit.rows}
        text = "\n".join(line for key, fit in shipped.items() for line in entry(key, fit))
        head = yaml.safe_dump(FILE | {"families": {each: family(each) for each in FAMILIES}}, sort_keys=False)
        (tmp_path / "mine.yaml").write_text(head + text + "\n")
        again = read_calibration(tmp_path / "mine.yaml").families
        assert all("\n".join(entry(key, again[key])) == "\n".join(entry(key, fit)) for key, fit in shipped.items())


def test_rows_of_a_correction_may_be_parted_by_commas(tmp_path):
    axes = {"n": [16, 256, 512, 8192], "m": [1, 64, 1024]}  # 2 x 2 nodes that have not faded
    surfaces = []
    for text in ("1 2, 3 -4", "1 2\n3 -4\n"):
        file = written(tmp_path, "families", "gemm", "correction", value={"axes": axes, "percent": text})
        surfaces.append(read_calibration(file).families["gemm"].surface)
    assert surfaces[0] == surfaces[1]
    assert surfaces[0].table.values == pytest.approx([math.exp(x / 100) for x in (0, 0, 0, 1, 2, 0, 3, -4, 0, 0, 0, 0)])


def test_families_that_nobody_measured_take_launch_and_shares_of_the_bf16_products(tmp_path):
    own = family("gemm")
    own["parameters"] |= {"launch": [4.0, 0.1], "compute": [0.6, 0.01], "memory": [0.9, 0.01]}
    some = {name: family(name) for name in FAMILIES if name not in ("elementwise", "kv_append")}
    file = written(tmp_path, "families", value={**some, "gemm/bf16": own})
    got = read_calibration(file).families
    form, inside = got["elementwise"].form, got["kv_append"].form
    assert (form.launch, form.compute, form.memory) == (pytest.approx(4e-6), 0.6, 0.9)
    assert (inside.launch, inside.memory) == (0.0, 0.9)  # measured attention includes the write
    assert got["elementwise"].regimes.width == (2.0,)


def test_a_default_may_continue_the_name_that_it_serves(tmp_path):
    families = {name: family(name) for name in FAMILIES}
    families["moe/bf16"] = families.pop("moe") | {"rows": 77}
    data = FILE | {"families": families, "defaults": {"moe": "/bf16"}}
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(data, sort_keys=False))
    assert read_calibration(file).families["moe"].rows == 77


def test_the_hash_is_of_the_content_and_not_of_the_line_ends(tmp_path):
    file = written(tmp_path)
    first = read_calibration(file).hash
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    assert read_calibration(file).hash == first
    assert read_calibration(written(tmp_path, "families", "gemm", "rows", value=11)).hash != first


GEMM = ("families", "gemm")


@pytest.mark.parametrize(("path", "value", "said"), [
    (("nmae",), "x", "mine.yaml: nmae: unknown key; nearest: name"),
    (("families", "gem"), family("gemm"), "families: unknown family 'gem'; nearest: gemm"),
    (("form",), "physical-9", "form: 'physical-9' is not known; known: physical-1"),
    ((*GEMM, "parameters", "comptue"), [1, 0], "gemm.parameters.comptue: unknown key; nearest: compute"),
    ((*GEMM, "parameters", "compute"), [1.2, 0], "gemm.parameters.compute: 1.2 is outside [0.05, 1.05] share"),
    ((*GEMM, "parameters", "compute"), [0, 0], "gemm.parameters.compute: 0.0 is outside"),
    ((*GEMM, "parameters", "compute"), "0.8", "gemm.parameters.compute: '0.8' is not [value, spread] or a value"),
    ((*GEMM, "parameters", "compute"), [0.8], "gemm.parameters.compute: [0.8] is not [value, spread]"),
    ((*GEMM, "parameters", "compute"), [0.8, -1], "gemm.parameters.compute: -1 is not a number of at least 0"),
    ((*GEMM, "parameters", "launch"), [-3.5, 0], "gemm.parameters.launch: -3.5 is not a number of at least 0"),
    ((*GEMM, "parameters", "launch"), ["3.5 us", 0], "gemm.parameters.launch: '3.5 us' is not a number"),
    ((*GEMM, "parameters", "launch"), [True, 0], "gemm.parameters.launch: True is not a number"),
    ((*GEMM, "parameters", "memory"), [float("nan"), 0], "gemm.parameters.memory: nan is not a number"),
    ((*GEMM, "parameters", "sharpness"), 3, "gemm.parameters.sharpness: 3 is not one of (1, 2, 4)"),
    ((*GEMM, "interval", "width"), [0.9], "gemm.interval: needs one width of at least 1 more than edges"),
    ((*GEMM, "interval", "edges"), [64], "gemm.interval: needs one width of at least 1 more than edges"),
    ((*GEMM, "rows"), "many", "gemm.rows: 'many' is not a number"),
    (GEMM, 3, "mine.yaml: families.gemm: value 3 is not a section"),
    (("families", 3), family("gemm"), "unknown family '3'"),
    (("defaults", "gemm"), "gemm/fp4", "defaults.gemm: no fit 'gemm/fp4'"),
])  # fmt: skip
def test_a_file_that_cannot_be_trusted_is_refused(tmp_path, path, value, said):
    with pytest.raises(SpecError) as caught:
        read_calibration(written(tmp_path, *path, value=value))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", [("name",), ("families",), ("defaults",), ("form",), (*GEMM, "interval")])
def test_a_missing_key_is_named(tmp_path, path):
    with pytest.raises(SpecError, match=f"{path[-1]}: is missing"):
        read_calibration(written(tmp_path, *path, drop=True))


@pytest.mark.parametrize(("path", "value"), [
    (("families",), []),
    (("families",), None),
    (("defaults",), 5),
    ((*GEMM, "interval"), [0.9]),
    ((*GEMM, "interval", "width"), 1.0),
    ((*GEMM, "frozen"), 1),
    ((*GEMM, "correction"), {"axes": [], "percent": ""}),
])  # fmt: skip
def test_a_wrong_shape_is_refused_and_not_a_crash(tmp_path, path, value):
    with pytest.raises(SpecError, match=r"mine\.yaml"):
        read_calibration(written(tmp_path, *path, value=value))


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in ("sparse_attention", "exchange")])
def test_a_family_that_is_missing_is_named(tmp_path, name):
    with pytest.raises(SpecError, match=f"missing {name}"):
        read_calibration(written(tmp_path, "families", name, drop=True))


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


def test_a_shipped_calibration_covers_every_family():
    for name in calibration_names():
        shipped = load_calibration(name)
        for kind in FAMILIES:
            fit = shipped.fit(Kernel("k", kind, 1, Dtype.BF16))
            assert min(fit.regimes.width) >= 1
            assert fit.rows > 0 or fit.source.startswith("assumption"), kind
        assert (spec_dir("accelerator") / "calibrations" / f"{name}.yaml").is_file()


def test_the_nearest_stands_in_with_a_sentence_and_a_wider_interval():
    own, silence = choose_calibration(load_accelerator("h100-sxm").value, "vllm")
    assert (own.name, silence, dict(own.widening)) == ("h100-sxm--vllm", None, {})
    for gpu, donor, said in (
        ("h100-nvl", "h100-sxm--vllm", "the same architecture"),
        ("t4", "a100-sxm-80gb--vllm", "the nearest generation"),
        ("gaudi3", "h100-sxm--vllm", "an accelerator of another kind"),
    ):
        other, note = choose_calibration(load_accelerator(gpu).value, "vllm")
        assert other.name == donor
        assert f"no measurements of {gpu} with vllm" in note
        assert said in note
        assert all(factor >= 1 for factor in other.widening.values())
        assert "of the kernels of accelerators left out" in note


def test_the_nearest_stand_in_has_the_narrowest_interval():
    """Measured: one chip with another memory, another chip of its architecture, a chip of another kind."""
    gemm = [choose_calibration(load_accelerator(gpu).value, "vllm")[0].widening["gemm"]
            for gpu in ("gh200-96gb", "l4", "gaudi3")]  # fmt: skip
    assert gemm[0] < min(gemm[1:])


@pytest.mark.parametrize(
    ("gpu", "engine", "share"),
    [
        ("h100-pcie", "vllm", ((350 / 756) / (700 / 989)) ** (1 / 3)),  # half the watts, three quarters of the peak
        ("a100-pcie-80gb", "vllm", (300 / 400) ** (1 / 3)),
        ("t4", "vllm", 1.0),  # another architecture: a FLOP takes another energy
        ("gaudi3", "vllm", 1.0),
    ],
)
def test_a_stand_in_reaches_what_the_power_limit_sustains(gpu, engine, share):
    """P = C·V²·f: of two chips of one process, the clock of dense work goes with (limit / peak)^(1/3)."""
    chosen, _ = choose_calibration(load_accelerator(gpu).value, engine)
    home = load_calibration(chosen.name)
    for key in ("gemm/bf16", "attention_prefill/bf16/bf16"):
        assert chosen.families[key].form.compute == pytest.approx(share * home.families[key].form.compute, rel=2e-3)


def test_no_stand_in_reaches_more_than_the_whole_peak():
    """H20 has 3.8 times the watts for a FLOP of H100: 1.56 x 0.86 of the peak would be more than all of it."""
    h20 = load_accelerator("h20").value
    chosen, _ = stand_in(load_calibration("h100-sxm--vllm"), h20, "vllm")
    assert chosen.families["gemm/bf16"].form.compute == 1.0
    assert (
        chosen.families["gemm/bf16"].form.memory == load_calibration("h100-sxm--vllm").families["gemm/bf16"].form.memory
    )


def test_a_file_of_the_users_does_not_inherit_a_name(tmp_path):
    """A chip of one's own that is called like a known one is not that one."""
    file = tmp_path / "h100-sxm.yaml"
    file.write_text((spec_dir("accelerator") / "h100-sxm.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    chosen, note = choose_calibration(load_accelerator(file).value, "vllm")
    assert chosen.widening
    assert "the same architecture" in note


def test_a_calibration_asked_for_away_from_home_says_so(tmp_path):
    at_home = rk.estimate("llama-3-8b", "h100-sxm", calibration=str(written(tmp_path)))
    assert at_home.calibration["name"] == "mine"
    assert at_home.warnings == ()
    away = rk.estimate("llama-3-8b", "a100-sxm-80gb", calibration=str(written(tmp_path)))
    assert any("those of h100-sxm--vllm are used" in warning for warning in away.warnings)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_untuned_kernels_do_not_serve(engine):
    """The FP8 experts of Hopper were measured at 2.2 ms a layer; what serves is no slower than 16-bit experts."""
    narrow, wide = (rk.estimate("mixtral-8x7b", tp=2, batch=8, engine=engine, weights=w) for w in ("fp8", "bf16"))
    assert narrow.tpot_ms < wide.tpot_ms
    assert any("without tuned settings; those of fp8_block are used" in warning for warning in narrow.warnings)


@pytest.mark.parametrize(("engine", "least", "most"), [("vllm", 1.3, 1.9), ("sglang", 1.1, 1.9)])
def test_long_prompts_of_deepseek_attend_to_up_projected_heads(engine, least, most):
    """SGLang's table has absorbed heads, 3.4 times the work; servers run FlashAttention-3 over 192 + 128 columns."""
    found = rk.estimate("deepseek-v3", "h200-sxm", tp=8, batch=1, isl=32768, osl=16, engine=engine)
    assert least <= found.ttft_ms / 1e3 <= most


def test_a_narrow_cache_does_not_slow_vllm_down_on_hopper():
    """vLLM's layers with FlashMLA and an FP8 cache; SGLang's kernel, which converts the cache, is 7 times as slow."""
    work = {"tp": 8, "batch": 64, "isl": 4096, "osl": 16}
    narrow, wide = (rk.estimate("deepseek-v3", "h200-sxm", kv=kv, **work) for kv in ("fp8", "bf16"))
    assert narrow.tpot_ms < wide.tpot_ms


@pytest.mark.parametrize(("gpu", "tokens"), [("tpu-v7", 6557.0)])
def test_attention_on_a_tpu_is_no_gpus_cost_of_a_tile(gpu, tokens):
    """Qwen3-32B in FP8, 135 sequences of 1,024 in and out: 6,557 tok/s a chip (tpu-recipes @ c8cfe2f6), kept aside."""
    found = rk.estimate("qwen3-32b", gpu, batch=135, isl=1024, osl=1024, weights="fp8", kv="fp8", allow_oom=True)
    assert found.output_tok_s == pytest.approx(tokens, rel=0.35)


@pytest.mark.parametrize(("gpu", "donor"), [
    ("rtx-pro-6000-blackwell", "l40s"), ("rtx-5090", "l40s"), ("gb300", "b300-sxm"), ("a10", "a40"),
    ("a30", "a100-sxm-80gb"),
])  # fmt: skip
def test_memory_and_matrix_units_choose_a_donor_and_not_the_name(gpu, donor):
    """By a B200's fit an RTX PRO 6000 (GDDR7, 12.0) was 51 % off in prefill attention."""
    chosen, _ = choose_calibration(load_accelerator(gpu).value, "vllm")
    assert chosen.accelerator == donor


@pytest.mark.parametrize(("gpu", "lender"), [("a10", "l40s"), ("rtx-3090-ti", "l40s"), ("rtx-3090", "a40")])
def test_collectives_come_over_links_of_the_same_kind(gpu, lender):
    """Cards without NVLink take those of an L40S, and one with a bridge an A40's; kernels are an A40's for all."""
    card = load_accelerator(gpu).value
    chosen, _ = choose_calibration(card, "vllm")
    assert chosen.accelerator in ("a40", gpu)
    found, lent = (
        {key: fit.regimes for key, fit in each.families.items() if key.startswith("collective")}
        for each in (chosen, load_calibration(f"{lender}--vllm"))
    )
    assert found == lent


def test_latent_attention_with_a_number_of_heads_that_nobody_measured_is_wider_and_said():
    """GLM-4.7-Flash has 20 heads: under SGLang on B200 a token took 2.3 times what kernels of 16 or 32 take."""
    asked = {"gpu": "b200-sxm", "engine": "sglang", "batch": 16}
    odd, even = (rk.estimate(model, tp=tp, **asked) for model, tp in (("glm-4.7-flash", 1), ("deepseek-v3", 8)))
    assert [any("20 run padded" in note for note in each.warnings) for each in (odd, even)] == [True, False]
    spans = []
    for model, tp in (("glm-4.7-flash", 1), ("deepseek-v3", 8)):
        plan = resolve(model, "b200-sxm", read_deployment({"engine": "sglang", "tp": tp}), None).plan
        timed = plan.apart(Batch.decode(16.0, 1024.0), None)
        (spread,) = (float(each.high) / float(each.low) for each in timed if each.kernel.family == "mla_decode")
        spans.append(spread)
    assert spans[0] > 1.25 * spans[1]


@pytest.mark.parametrize(("gpu", "measured"), [("h200-sxm", True), ("mi300x", False)])
def test_an_exchange_that_nobody_measured_is_called_an_assumption(gpu, measured):
    found = rk.estimate("deepseek-v3", gpu, tp=1, dp=16, ep=16, batch=1024, all_to_all="deepep", allow_oom=True)
    assert measured != any("expert exchanges take usual times" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    ("engine", "kv", "slow"), [("sglang", "fp8", True), ("sglang", "bf16", False), ("trtllm", "fp8", False)]
)
def test_a_narrow_cache_that_is_read_slowly_is_said(engine, kv, slow):
    """SGLang's decode of latents in FP8 took several times that of 16-bit ones; its note gives the rows."""
    split = {"tp": 8, "batch": 64, "isl": 4096, "engine": engine}
    found = rk.estimate("deepseek-v3", "h200-sxm", kv=kv, **split)
    notes = [warning for warning in found.warnings if "as long as in bf16" in warning]
    assert len(notes) == slow
    assert all("mla_decode with a cache in fp8" in note and "rows of h200-sxm with sglang" in note for note in notes)


def fits_of(calibration):
    for fit in calibration.families.values():
        yield from kernels_of(fit)


def kernels_of(fit):
    yield fit
    if fit.beyond is not None:
        yield from kernels_of(fit.beyond.fit)


SIZED = {  # a kernel of each family whose size on the axis of its interval is this
    "m": lambda size: Kernel("w", "gemm", 1, Dtype.BF16, shape=GemmShape(size, 4096.0, 4096.0)),
    "cached": lambda size: Kernel(
        "a", "attention_decode", 1, Dtype.BF16, shape=AttentionShape(1.0, 1.0, size, size, size, 8.0, 1.0, 128.0)
    ),
    "queries": lambda size: Kernel(
        "a", "attention_prefill", 1, Dtype.BF16, shape=AttentionShape(1.0, size, size, size, size, 1.0, 1.0, 128.0)
    ),
    "tokens": lambda size: Kernel(
        "e", "moe", 1, Dtype.BF16, shape=ExpertsShape(size, size, size, 8.0, 8.0, 1.0, 4096.0, 1024.0)
    ),
    "bytes": lambda size: Kernel("c", "collective", 1, Dtype.BF16, shape=CollectiveShape(size)),
    "network": lambda size: Kernel("x", "exchange", 1, Dtype.BF16, network_bytes=size),
    "traffic": lambda size: Kernel("p", "elementwise", 1, Dtype.BF16, activation_bytes=size),
}


@pytest.mark.parametrize("name", calibration_names())
def test_no_interval_has_a_step_where_a_regime_begins(name):
    checked = 0
    for fit in fits_of(load_calibration(name)):
        for edge in fit.regimes.edges:
            below, above = (SIZED[fit.regimes.axis](edge * share) for share in (1.0 - 1e-9, 1.0 + 1e-9))
            for power in (1.0, 2.0):
                near = zip(fit.regimes.factors(below, power), fit.regimes.factors(above, power), strict=True)
                assert all(before == pytest.approx(after, rel=1e-6) for before, after in near), (fit.source, edge)
                checked += 1
    assert checked or name.endswith("--llama.cpp")  # fitted to whole steps: one regime


NEIGHBOURS = {
    "batch": [*range(1, 131), 255, 256, 257, 511, 512, 513],
    "isl": sorted(2**power + step for power in range(7, 15) for step in (-1, 0, 1)),
    "context": sorted(2**power + step for power in range(7, 16) for step in (-1, 0, 1)),
}


@pytest.mark.parametrize(("model", "gpu", "given"), [
    ("llama-3-8b", "h100-sxm", {}),
    ("llama-3-70b", "b200-sxm", {"tp": 2, "weights": "fp8"}),  # 103 ms at batch 16 and 58 at 17, once
    ("deepseek-v3", "h200-sxm", {"tp": 8}),
    ("gpt-oss-20b", "h100-sxm", {}),
    ("mixtral-8x7b", "h100-sxm", {"tp": 2}),
    ("llama-3-8b", "mi300x", {}),
    ("llama-3-8b", "l40s", {}),
])  # fmt: skip
@pytest.mark.parametrize("axis", NEIGHBOURS)
def test_ends_of_intervals_never_fall_with_batch_context_or_length(axis, model, gpu, given):
    fixed = {"batch": {"isl": 1024, "osl": 256}, "isl": {"batch": 4, "osl": 64}, "context": {"batch": 8, "osl": 2}}
    asked = {"model": model, "gpu": gpu, "allow_oom": True, **given, **fixed[axis]}
    answers = rk.estimate_frame(pd.DataFrame([{**asked, axis: at} for at in NEIGHBOURS[axis]]))
    neighbours = answers[axis].diff().to_numpy() == 1
    for figure in ("ttft", "tpot"):
        for end in ("low_ms", "high_ms"):
            ratio = (answers[f"{figure}_{end}"] / answers[f"{figure}_{end}"].shift()).to_numpy()[neighbours]
            still = answers[f"{figure}_ms"].diff().to_numpy()[neighbours] == 0.0
            # Where the time stands still, so do its ends; elsewhere corrections of the time fall by as much
            # (those of MLA prefill by 0.04 % from 1,024 to 1,025 tokens).
            assert np.all(ratio >= np.where(still, 1.0 - 1e-12, 1.0 - 5e-4)), (figure, end)


def borrowing(tmp_path, **entry):
    """The file above with its GEMM borrowed."""
    data = copy.deepcopy(FILE)
    data["families"]["gemm/bf16"] = entry
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(data, sort_keys=False))
    return read_calibration(tmp_path / "mine.yaml")


def test_a_borrowed_entry_is_the_lenders_fit_with_a_wider_interval(tmp_path):
    lender = load_calibration("h100-sxm--vllm").families["gemm/bf16"]
    reaches = {
        "engine": lender.surface,
        "sibling": lender.surface,
        "architecture": lender.surface,
        "maker": None,
        "generic": None,
    }
    for reach, surface in reaches.items():
        fit = borrowing(tmp_path, borrowed="h100-sxm--vllm", reach=reach).families["gemm/bf16"]
        assert (fit.form, fit.surface, fit.stepless) == (
            lender.form,
            surface,
            reach in ("architecture", "maker", "generic"),
        )
        assert fit.regimes.width == tuple(widening(reach)["gemm"] * width for width in lender.regimes.width)
        assert fit.source.startswith("borrowed")


@pytest.mark.parametrize(
    ("lender", "said"), [("h101-sxm--vllm", "nearest: h100-sxm--vllm"), ("mi300x--vllm", "has not measured gemm/bf16")]
)
def test_a_lender_must_be_there_and_have_measured_what_it_lends(tmp_path, lender, said):
    with pytest.raises(SpecError, match=said):
        borrowing(tmp_path, borrowed=lender, reach="generic")


@pytest.mark.parametrize("name", [name for name in calibration_names() if "rtx" in name or "mi3" in name])
def test_calibrations_of_few_tables_have_every_family(name):
    calibration = load_calibration(name)
    accelerator = load_accelerator(calibration.accelerator).value
    kept = [fit for fit in calibration.families.values() if not fit.source.startswith("borrowed") and fit.rows]
    assert kept
    assert choose_calibration(accelerator, calibration.engine.split()[0])[1] is None


def test_the_engine_that_runs_a_library_answers_for_its_kernels():
    assert (serving_engine("aiter"), serving_engine("deepgemm"), serving_engine("trtllm")) == (
        "vllm",
        "sglang",
        "trtllm",
    )
    with pytest.raises(UnknownNameError, match="vllm"):
        serving_engine("lmdeploy")


@pytest.mark.parametrize("gpu", ["h20", "l4", "gaudi3"])
def test_throughput_does_not_fall_with_a_tile_that_nobody_measured(gpu):
    """From 64 sequences to 65 a tile begins where the fit was made; nobody saw it on these chips."""
    low, high = (rk.estimate("llama-3.2-1b", gpu, batch=batch, isl=512, osl=64).output_tok_s for batch in (64, 65))
    assert high > low


@pytest.mark.parametrize("gpu", ["mi300x", "mi325x", "mi350x", "mi355x"])
@pytest.mark.parametrize("batch", [64, 128, 256])
def test_one_more_sequence_costs_little_where_no_step_was_measured(gpu: str, batch: int) -> None:
    """Products of 128 and 136 rows, 256 and 264, take the same time within 3 % on MI355X (ROCm/aiter @ e4048607).

    Tiles of 64 rows, four stacked, made a token take 27 % longer at 257 sequences than at 256. Now 16 rows more count.
    """
    asked = {"weights": "bf16", "isl": 512, "osl": 64}
    before, after = (rk.estimate("llama-3-8b", gpu, batch=count, **asked).tpot_ms for count in (batch, batch + 1))
    assert before <= after < 1.09 * before


def test_products_of_dequantised_weights_have_a_fit_of_their_own_or_a_wider_interval(tmp_path):
    """Fits of 16-bit weights stand in for INT4 ones, which `calibrate` calls gemm/bf16/int4."""

    def answer(*labels):
        families = FILE["families"] | {label: family("gemm") for label in labels}
        return rk.estimate("llama-3-8b", weights="int4", calibration=str(written(tmp_path, "families", value=families)))

    own, other = answer("gemm/bf16", "gemm/bf16/int4"), answer("gemm/bf16")
    told = "no measured gemm kernels in bf16 with weights in int4"
    assert [told in "".join(each.warnings) for each in (own, other)] == [False, True]
    assert own.tpot_ms == other.tpot_ms
    narrow, wide = (each.interval["tpot_ms"][1] / each.tpot_ms for each in (own, other))
    assert wide > 1.1 * narrow


@pytest.mark.parametrize("gpu", ["h100-sxm", "h200-sxm", "h800-sxm"])
def test_ten_rows_of_products_show_no_tile_steps(gpu):
    """INT4 on Hopper rests on ten rows, none of which stands beside the end of a tile: one more row costs little."""
    calibration, system = load_calibration(f"{gpu}--vllm"), System.of(load_accelerator(gpu).value)
    fit = calibration.families["gemm/bf16/int4"]
    assert fit.rows == 10

    def seconds(m):
        shape = GemmShape(m, 57344.0, 8192.0)
        kernel = Kernel(
            "k",
            "gemm",
            1,
            Dtype.BF16,
            flops=2.0 * m * shape.n * shape.k,
            shape=shape,
            variant="int4",
            weight_bytes=0.53 * shape.n * shape.k,
            activation_bytes=2.0 * m * (shape.n + shape.k),
        )
        return float(fit.time(kernel, system).total)

    for m in (64.0, 128.0, 256.0, 512.0):
        assert 1.0 <= seconds(m + 1.0) / seconds(m) < 1.05


@pytest.mark.parametrize("name", ["h100-sxm--vllm", "mi355x--vllm", "l40s--sglang"])
def test_a_shipped_file_read_fit_by_fit_is_the_one_that_is_read_whole(name):
    """Fits, those under two keys and those that are borrowed; nothing is read before somebody asks."""
    parts, whole = load_calibration(name).families, read_calibration(calibration_path(name)).families
    assert list(parts) == list(whole)
    assert dict(parts) == dict(whole)
    assert parts["gemm"] is parts["gemm/bf16"]
    assert pickle.loads(pickle.dumps(parts)) == whole


def test_a_shipped_file_whose_fits_cannot_be_told_apart_is_refused(tmp_path):
    path = tmp_path / "cut.yaml"
    path.write_text("name: a\nfamilies:\n  gemm:\n    rows: 1\n  - 3\n", encoding="utf-8")
    with pytest.raises(SpecError, match="families: not written as"):
        _divided(path)


def test_an_upper_end_falls_no_faster_than_a_product_grows():
    """Middles at 64, 256, 1,024 and 4,096 rows: t grows as m^0.15 up to 512 rows, as m^0.6 beyond.

    3 / 4^0.15 = 2.437, and 2.437 / 4^0.6 = 1.061.
    """
    upper, lower = _ends(Regimes("m", (128.0, 512.0, 2048.0), (3.0, 1.05, 1.05, 1.05)), 1.0, 1.0)
    assert upper.values == pytest.approx((3.0, 3.0 / 4.0**0.15, 3.0 / 4.0**0.75, 1.05))
    assert lower.values == pytest.approx((3.0, 1.05, 1.05, 1.05))
