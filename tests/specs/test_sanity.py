"""Slips that other tools' tables hold: each is refused, or at least warned of, by name and likely cause."""

from __future__ import annotations

import re

import pytest

from rooflinekit.model.types.errors import SpecError
from rooflinekit.specs import load_accelerator, spec_dir
from rooflinekit.specs.hardware import read_facts
from rooflinekit.specs.sanity import findings

SHIPPED = sorted(spec_dir("accelerator").glob("*.yaml"))
SPARSE = "looks like the sparse peak"
BOTH = "looks like both directions together"


@pytest.fixture
def slipped(tmp_path):
    """Copy a shipped file with some of its lines replaced, and return what loading it says."""

    def result(name: str, *edits: tuple[str, str]) -> tuple[bool, str]:
        text = (spec_dir("accelerator") / f"{name}.yaml").read_text()
        for old, new in edits:
            assert re.search(old, text, re.M), f"{name} has no {old!r}"
            text = re.sub(old, new, text, count=1, flags=re.M)
        path = tmp_path / f"{name}.yaml"
        path.write_text(text)
        try:
            return False, " | ".join(load_accelerator(path).warnings)
        except SpecError as error:
            return True, str(error)

    return result


def test_no_shipped_file_has_a_finding():
    for path in SHIPPED:
        assert findings(read_facts(path)) == []


BF16, FP8, BANDWIDTH = r"^    bf16: .*OP/s$", r"^    fp8: .*$", r"^  bandwidth: .*$"
CAPACITY = r"^  capacity: .*\n  visible: .*$"
LINK = r"(?s)^links:.*?  bandwidth: [^\n]*$"
NO_RATE = (r"^  flops_per_clock_per_core:\n.*\n", "")


@pytest.mark.parametrize(
    ("name", "old", "new", "cause"),
    [
        ("h100-sxm", BF16, "    bf16: 1979 TFLOP/s", SPARSE),
        ("h200-sxm", BF16, "    bf16: 1979 TFLOP/s", SPARSE),
        ("gh200-96gb", BF16, "    bf16: 1979 TFLOP/s", SPARSE),
        ("h100-pcie", BF16, "    bf16: 1513 TFLOP/s", SPARSE),
        ("h100-nvl", BF16, "    bf16: 1671 TFLOP/s", SPARSE),
        ("l4", BF16, "    bf16: 242 TFLOP/s", SPARSE),
        ("l40s", BF16, "    bf16: 733 TFLOP/s", SPARSE),
        ("a10g", BF16, "    bf16: 140 TFLOP/s", SPARSE),
        ("mi300x", BF16, "    bf16: 2615 TFLOP/s", SPARSE),
        ("b200-sxm", BF16, "    bf16: 4500 TFLOP/s", SPARSE),
        ("b300-sxm", BF16, "    bf16: 4500 TFLOP/s", SPARSE),
        ("rtx-4090", BF16, "    bf16: 330.3 TFLOP/s", SPARSE),
        ("h100-sxm", LINK, "links:\n  kind: nvlink4\n  bandwidth: 900 GB/s", BOTH),
        ("b200-sxm", LINK, "links:\n  kind: nvlink5\n  bandwidth: 1800 GB/s", BOTH),
        ("mi300x", LINK, "links:\n  kind: infinity-fabric xGMI\n  bandwidth: 896 GB/s", BOTH),
        ("h100-sxm", r"^  pcie: .*$", "  pcie: 128 GB/s", BOTH),
        ("h100-sxm", CAPACITY, "  capacity: 85.5 GiB", "is it a GB number written with GiB"),
        ("h100-sxm", BANDWIDTH, "  bandwidth: 26.8 TB/s", "Is it in bits"),
        ("h100-sxm", BANDWIDTH, "  bandwidth: 3.35 GB/s", "check the"),
        ("h100-sxm", BF16, "    bf16: 989.4 PFLOP/s", "looks like a prefix too far: 1 PFLOP/s is 1000 TFLOP/s"),
        ("h100-sxm", FP8, "    fp8: 1978.9 PFLOP/s", "check the prefixes of both units"),
        ("h100-sxm", r"^  visible: .*$", "  visible: 79.7 GiB", "and never more"),
        ("h100-sxm", r"^  visible: .*$", "  visible: 71 GiB", "programs see nine tenths of it at least"),
        ("h100-sxm", CAPACITY, "  capacity: 80.5 GiB", "is it a GB number written with GiB"),
        (
            "h100-sxm",
            r"(?s)^  capacity: .*?  label: [^\n]*$",
            "  capacity: 81 GiB\n  label: 80 GiB",
            "never shows more",
        ),
        ("h100-sxm", r"^release_year: .*$", "release_year: 2222", "lies outside 2006 to"),
        ("h100-sxm", r"^release_year: .*$", "release_year: 20", "lies outside 2006 to"),
    ],
)
def test_a_contradiction_is_refused(slipped, name, old, new, cause):
    refused, message = slipped(name, (old, new))
    assert refused
    assert cause in message


@pytest.mark.parametrize(
    ("name", "old", "new", "cause"),
    [
        ("h100-sxm", BF16, "    bf16: 1013.1 TFLOP/s", "looks like a factor 1.024"),
        ("a100-sxm-80gb", BF16, "    bf16: 319.5 TFLOP/s", "looks like a factor 1.024"),
        ("l40s", FP8, "    fp8: 1466 TFLOP/s", SPARSE),
        ("h100-sxm", FP8, "    fp8: 3958 TFLOP/s", SPARSE),
        ("b200-sxm", r"^    nvfp4: .*$", "    nvfp4: 18000 TFLOP/s", SPARSE),
        ("mi300x", r"^    int8: .*$", "    int8: 5230 TOP/s", SPARSE),
        ("mi210", r"^    int8: .*$", "    int8: 766 TOP/s", SPARSE),
        ("gb200", BANDWIDTH, "  bandwidth: 13400 GB/s", "for several devices, or a capacity"),
        ("h100-sxm", BANDWIDTH, "  bandwidth: 419 GB/s", "b/s is bits"),
        ("l4", BANDWIDTH, "  bandwidth: 37.5 GB/s", "b/s is bits"),
        ("h100-sxm", CAPACITY, "  capacity: 80 GB", "is the marketing number"),
        ("h100-sxm", r"^  nic: .*$", "  nic: 400 GB/s", "is it written as GB/s"),
        ("h100-sxm", r"^    tf32: .*$", "    tf32: 1978.9 TFLOP/s", "in each other's place"),
        ("h100-sxm", r"^    fp16: .*$", "    fp16: 494.7 TFLOP/s", "differs from bf16"),
        ("h100-sxm", FP8, "    fp8: 989.4 TFLOP/s", "is 1 x the 16-bit peak, and 9.0 doubles it"),
        ("mi300x", FP8, "    fp8: 1307.4 TFLOP/s", "is 1 x the 16-bit peak, and gfx942 doubles it"),
        ("a100-sxm-80gb", r"^    int8: .*$", "    int8: 312 TOP/s", "is 1 x the 16-bit peak, and 8.0 doubles it"),
        ("tpu-v4", r"^    bf16: .* FLOP$", "    bf16: 262144 FLOP", "check flops_per_clock_per_core"),
        ("rtx-4090", r"^    bf16: 512 FLOP$", "    bf16: 1024 FLOP", "is 0.5 x 128 cores x 1024 FLOP x 2520 MHz"),
        ("h20", r"^  unusual:\n.*\n", "", "or say why: compute.unusual.bf16"),
    ],
)
def test_a_suspicion_is_a_warning_that_names_file_key_and_cause(slipped, name, old, new, cause):
    refused, message = slipped(name, (old, new))
    assert not refused
    assert cause in message
    assert f"/{name}.yaml: " in message.partition(" value ")[0]
    assert new.split(":")[0].strip() in message


@pytest.mark.parametrize(("name", "sparse"), [("h100-sxm", 1979), ("l4", 242), ("mi300x", 2615), ("b200-sxm", 4500)])
def test_the_generation_is_known_where_the_file_does_not_state_its_rate(slipped, name, sparse):
    refused, message = slipped(name, NO_RATE, (BF16, f"    bf16: {sparse} TFLOP/s"))
    assert refused
    assert SPARSE in message


def test_a_rate_above_the_generations_does_not_confirm_a_sparse_peak(slipped):
    refused, message = slipped(
        "h100-sxm", (BF16, "    bf16: 1979 TFLOP/s"), (r"^    bf16: 4096 FLOP", "    bf16: 8192 FLOP")
    )
    assert refused
    assert "compute.flops_per_clock_per_core.bf16: value 8192 FLOP is above the 4096" in message


def test_a_reason_silences_a_ratio(slipped):
    """GeForce and Trainium have odd ratios that are right; without their reasons they would be warned of."""
    for name in ("rtx-4090", "rtx-5090", "trainium3", "gaudi3", "h20"):
        refused, message = slipped(name, (r"^  unusual:\n(    .*\n)+", ""))
        assert (refused, message != "") == (False, True)


def test_the_message_gives_the_arithmetic(slipped):
    _, message = slipped("h100-sxm", (BF16, "    bf16: 1979 TFLOP/s"))
    assert message.endswith(
        "compute.dense.bf16: value 1979 TFLOP/s is 2 x 132 cores x 4096 FLOP x 1830 MHz = 989.4 TFLOP/s; "
        "looks like the sparse peak: give the dense one, usually half"
    )


def test_a_memory_in_kilobytes_is_refused(slipped):
    assert slipped("h100-sxm", (CAPACITY, "  capacity: 80 MB"))[0]
    assert slipped("h100-sxm", (BF16, "    bf16: 989.4 GFLOP/s"), (r"^    fp32: .*$", "    fp32: 66.9 GFLOP/s"))[0]
