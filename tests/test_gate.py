"""The gate over all calibrations: parts add up, engines agree, stand-ins stay near bounds, kernels are named."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from rooflinekit.evidence.kernel_fit.calibrate import predict
from rooflinekit.evidence.kernel_fit.groups import layer_rows
from rooflinekit.evidence.kernel_fit.tables import Measured, measured_rows
from rooflinekit.model.roofline import time_kernel
from rooflinekit.model.timing.calibrated import BORROWED, Calibration
from rooflinekit.model.types.errors import RooflinekitError
from rooflinekit.model.types.hardware import Accelerator, System
from rooflinekit.specs import load_accelerator
from rooflinekit.specs.calibration import calibration_names, choose_calibration, for_serving, load_calibration
from rooflinekit.specs.calibration.choose import donors
from rooflinekit.specs.calibration.load import SERVED, calibration_path, kernel_entry, transfer_rule
from rooflinekit.specs.locate import names
from rooflinekit.specs.places import spec_dir

pytestmark = pytest.mark.slow  # reads all files: 10 s

LENT = re.compile(r"(?m)^  (\S+): {borrowed: (\S+), reach: (\w+)")
KERNELS = yaml.safe_load((spec_dir("accelerator") / "calibrations/kernels.yaml").read_text(encoding="utf-8"))
UNMEASURED = ("elementwise", "embedding", "sampling", "kv_append", "linear_attention", "sparse_attention")
NAMES = calibration_names()


def rows(operation: str, *grids: Mapping[str, list[Any]]) -> tuple[str, Measured]:
    """Kernels of an operation at every combination of each grid."""
    tables = [pd.DataFrame(itertools.product(*grid.values()), columns=list(grid)) for grid in grids]
    table = pd.concat(tables, ignore_index=True).assign(latency_us=1.0, engine="vllm")
    return operation, measured_rows(table, operation)


def reference() -> Iterator[tuple[str, Measured]]:
    """Kernels of usual models, of few and of many tokens."""
    for dtype in ("bfloat16", "fp8", "fp8_block", "nvfp4", "mxfp4"):
        matrices = [(6144, 4096), (4096, 14336), (28672, 8192)]
        yield rows("gemm", *({"dtype": [dtype], "m": [1, 64, 1024, 8192], "n": [n], "k": [k]} for n, k in matrices))
        sizes = [(4096, 1536, 128, 1), (7168, 2048, 256, 8), (2048, 768, 128, 1)]
        usual = {"dtype": [dtype], "routing": ["balanced"], "ffn_matrices": [3], "tokens": [1, 64, 1024, 8192]}
        yield rows("moe", *(
            usual | {"hidden": [d], "expert_intermediate": [f], "top_k": [8], "experts": [e], "tp": [1], "ep": [ep]}
            for d, f, e, ep in sizes
        ))  # fmt: skip
    for cache in ("bfloat16", "fp8"):
        kind = {"dtype": ["bfloat16"], "kv_dtype": [cache]}
        steps = {"batch": [1, 16, 128], "seq_len": [1024, 16384]}
        prompts = {"batch": [1, 4], "seq_len": [1024, 8192, 32768]}
        grouped, latent = {"heads": [32], "kv_heads": [8], "head_dim": [128]}, {"heads": [16, 128]}
        yield rows("attention_decode", kind | steps | grouped)
        yield rows("attention_prefill", kind | prompts | grouped)
        yield rows("mla_decode", kind | steps | latent)
        yield rows("mla_prefill", kind | prompts | latent)
    sent = {"dtype": ["bfloat16"], "mode": ["graph"], "gpus": [2, 4], "bytes": [2**14, 2**20, 2**24]}
    for collective in ("custom_all_reduce", "all_gather", "reduce_scatter", "alltoall"):
        yield rows("comm", {"collective": [collective]} | sent)


REFERENCE = list(reference())


def ratio(measured: Measured, accelerator: Accelerator, calibration: Calibration) -> np.ndarray:
    """Time over bound of each kernel."""
    system = System.of(accelerator)
    return measured.each(lambda kernel: (timed := time_kernel(kernel, system, calibration)).expected / timed.bound)


def chips(calibration: str) -> tuple[str, str]:
    """Accelerator and engine."""
    chip, _, engine = calibration.partition("--")
    return chip, engine


@pytest.mark.parametrize("name", NAMES)
def test_each_measured_fit_names_its_kernel_and_whether_the_engine_picks_it(name: str) -> None:
    chip, engine = chips(name)
    families = load_calibration(name).families
    untuned = {each["fit"] for each in transfer_rule()["untuned"] if chip in each["accelerators"]}
    for key, fit in families.items():
        if not fit.rows or fit.source.startswith(BORROWED) or key.split("/")[0] in UNMEASURED or "/" not in key:
            continue
        found = kernel_entry(engine, chip, key)
        assert found is not None, f"kernels.yaml does not name the kernel of {key}"
        served = f"{key}{SERVED}" in families or any(key.startswith(fit) for fit in untuned)
        assert found["default"] or served, f"{key} is no kernel that {engine} picks, and nothing else is served"


def test_every_reach_of_a_lent_fit_is_the_one_of_the_rule() -> None:
    for name in NAMES:
        chip, engine = chips(name)
        places = dict(reversed([*donors(load_accelerator(chip).value, engine)]))
        for key, lender, reach in LENT.findall(calibration_path(name).read_text(encoding="utf-8")):
            assert places.get(lender, "generic") == reach, f"{name}: {key}"


@pytest.mark.parametrize("chip", sorted({chips(name)[0] for name in NAMES}))
def test_no_engine_is_twice_as_slow_as_the_fastest_without_a_reason(chip: str) -> None:
    accelerator = load_accelerator(chip).value
    own = {engine: for_serving(load_calibration(f"{chip}--{engine}")) for place, engine in map(chips, NAMES)
           if place == chip}  # fmt: skip
    for operation, measured in REFERENCE:
        kernel = measured.kernels[0]
        if operation != "comm" and not accelerator.supports(kernel.dtype):
            continue
        fits = {engine: calibration.fit(kernel) for engine, calibration in own.items() if calibration.measured(kernel)}
        times = {engine: ratio(measured, accelerator, own[engine]) for engine, fit in fits.items()
                 if fit.rows and not fit.source.startswith(BORROWED)}  # fmt: skip
        for engine, slow in times.items():
            share = float(np.mean(slow > 2.0 * np.minimum.reduce(list(times.values()))))
            key = max((key for key, fit in own[engine].families.items() if fit is fits[engine]), key=len)
            named = (kernel_entry(engine, chip, key) or {}).get("slow")
            assert share <= 0.1 or named, f"{engine}: {key} takes over twice the fastest in {share:.0%} of the shapes"


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_a_stand_in_is_no_further_from_its_bound_than_its_donor_is(engine: str) -> None:
    """No more than the largest of a donor's ratios of time to bound, times what other units and memory make of it."""
    for chip in names("accelerator"):
        accelerator = load_accelerator(chip).value
        calibration = for_serving(choose_calibration(accelerator, engine)[0])
        donor = load_accelerator(calibration.accelerator).value
        at_home = for_serving(load_calibration(f"{calibration.accelerator}--{calibration.engine.split()[0]}"))
        for operation, measured in REFERENCE:
            kernel = measured.kernels[0]
            if operation == "comm" or not (accelerator.supports(kernel.dtype) and donor.supports(kernel.dtype)):
                continue
            units = accelerator.peak(kernel.dtype) / donor.peak(kernel.dtype)
            memory = accelerator.memory_bandwidth / donor.memory_bandwidth
            faster = max(1.0, units, memory, units / memory, memory / units)
            here, there = ratio(measured, accelerator, calibration), ratio(measured, donor, at_home)
            assert here.max() <= 1.2 * faster * there.max(), f"{chip} with {engine}: {operation} {kernel.dtype}"


MODULES = [(name, weight) for name in NAMES if chips(name)[1] in ("vllm", "trtllm")
           for weight in ("bf16", "fp8_block")]  # fmt: skip
OTHERS = 1.12
"""Factor of the 90 % interval of a layer's other products: the median over regimes of `gemm/bf16` and `fp8_block`."""
DOUBTED = {("gb200--trtllm", "prefill", "bf16")}
"""Its layers with NVFP4 products add up. Those in other formats take half as long again, as on no other chip."""
WORDS = {"bf16": "bfloat16", "fp8_block": "fp8_block", "fp8": "fp8"}


@pytest.mark.parametrize(("name", "weight"), MODULES)
def test_a_whole_layer_is_the_sum_of_its_parts(name: str, weight: str) -> None:
    """DeepSeek's layers of 2 ms and more, in which launches weigh little: a fit of the whole, fits of the kernels."""
    chip, _ = chips(name)
    calibration, accelerator = load_calibration(name), load_accelerator(chip).value
    for phase, cache in itertools.product(("prefill", "decode"), ("bf16", "fp8")):
        label = f"sparse_attention/bf16/mla_{weight}_{phase}_{cache}"
        whole = calibration.families.get(label)
        if whole is None or not whole.rows:
            continue
        prompt = phase == "prefill"
        grid = {"batch": [1, 4] if prompt else [128, 512], "seq_len": [16384, 32768] if prompt else [8192, 16384],
                "heads": [16, 64, 128]}  # fmt: skip
        table = pd.DataFrame(itertools.product(*grid.values()), columns=list(grid)).assign(
            dtype="bfloat16", kv_dtype=WORDS[cache], gemm_dtype=WORDS[weight], phase=phase, product="mla",
            latency_us=1.0,
        )  # fmt: skip
        system = System.of(accelerator)
        layer = layer_rows(table, f"mla_module_{phase}", system, calibration).kernels[0]
        one = whole.time(layer, system).total
        core = measured_rows(table, f"mla_{phase}")
        fit = for_serving(calibration).fit(core.kernels[0])
        parts = predict(fit, replace(core, warm=False), system) + layer.shape.besides
        width = fit.regimes.factors(core.kernels[0])[0] * whole.regimes.factors(layer)[0]
        large = np.asarray(one) >= 2e-3
        apart, width = np.abs(np.log(parts / one))[large], np.broadcast_to(OTHERS * width, large.shape)[large]
        assert np.all(apart <= np.log(width)) or (name, phase, cache) in DOUBTED, f"{label}: {np.exp(apart).round(2)}"


def test_names_of_kernels_are_of_chips_and_fits_that_are_there() -> None:
    for engine, entries in KERNELS.items():
        for each in entries:
            calibrated = {chip for chip, runs in map(chips, NAMES) if runs == engine}
            assert set(each.get("chips", [])) <= calibrated, each
            places = each.get("chips", calibrated)
            keys = [key for chip in places for key in load_calibration(f"{chip}--{engine}").families]
            assert any(key.startswith(each["fit"]) for key in keys), each


def test_a_fit_of_no_chip_and_a_slow_one_without_a_reason_would_be_found() -> None:
    assert kernel_entry("vllm", "h100-sxm", "gemm/bf16")["kernel"].startswith("torch")
    assert kernel_entry("vllm", "tpu-v6e", "gemm/bf16")["kernel"] == "XLA"
    assert kernel_entry("sglang", "h100-sxm", "attention_made_up") is not None
    assert kernel_entry("trtllm", "h100-sxm", "made_up") is None
    with pytest.raises(RooflinekitError):
        load_calibration("h100-sxm--made-up")
