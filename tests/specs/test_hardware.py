"""Accelerator files: the shipped ones, and how strictly a user's own is read."""

# ruff: noqa: E501 - the table of refusals has one case a line

from __future__ import annotations

import csv
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.errors import DtypeError, SpecError
from rooflinekit.model.types.hardware import System
from rooflinekit.model.types.units import GIB
from rooflinekit.specs import accelerator_template, load_accelerator, names, spec_dir
from rooflinekit.specs.files import read_yaml
from rooflinekit.specs.hardware import read_facts

SHIPPED = sorted(path.stem for path in spec_dir("accelerator").glob("*.yaml"))
CSV = Path(__file__).parents[2].parent / "shared" / "data" / "specs" / "hardware.csv"


@pytest.fixture(autouse=True)
def _no_user_folder(tmp_path, monkeypatch):
    (tmp_path / "user").mkdir()
    monkeypatch.setenv("ROOFLINEKIT_SPECS", str(tmp_path / "user"))


@pytest.fixture
def chip(tmp_path):
    """Write the template with one text replaced, and return its path."""

    def edited(old: str = "", new: str = "") -> Path:
        text = accelerator_template()
        assert old in text
        path = tmp_path / "my-chip.yaml"
        path.write_text(text.replace(old, new, 1))
        return path

    return edited


def test_there_are_the_accelerators_that_people_use():
    assert {"h100-sxm", "h200-sxm", "a100-sxm-80gb", "b200-sxm", "gb200", "l4", "mi300x", "tpu-v5e"} <= set(SHIPPED)
    assert names("accelerator") == SHIPPED


def test_a_shipped_file_loads_without_a_warning():
    for name in SHIPPED:
        loaded = load_accelerator(name)
        assert loaded.warnings == ()
        assert loaded.value.name == name
        assert loaded.value.origin.endswith(f"{name}.yaml")


def test_every_number_has_a_source_and_a_confidence():
    for name in SHIPPED:
        chip = load_accelerator(name).value
        known = {entry.quantity: entry for entry in chip.provenance}
        assert len(known) == len(chip.provenance)
        for entry in chip.provenance:
            assert entry.source
            assert entry.confidence in ("A", "B", "C")
            assert entry.confidence == "C" or not entry.source.startswith("assumed")
        for dtype, peak in chip.peaks.items():
            assert known[f"compute.dense.{dtype}"].value == peak
        assert known["memory.capacity"].value == chip.memory_bytes
        assert known["memory.bandwidth"].value == chip.memory_bandwidth
        assert known["cores.count"].value == chip.cores
        assert known["links.domain_size"].value == chip.domain_size


def test_every_listed_source_is_cited_and_has_an_address():
    for name in SHIPPED:
        data = read_yaml(spec_dir("accelerator") / f"{name}.yaml")
        cited = {
            source for section in data.values() if isinstance(section, dict) for source in section.get("source", [])
        }
        assert cited == set(data["sources"])
        for source in load_accelerator(name).value.sources:
            assert source.url.startswith("https://")
            assert source.title


VENDORS = (
    "nvidia.com",
    "amd.com",
    "intel.com",
    "apple.com",
    "cloud.google.com",
    "awsdocs-neuron.readthedocs-hosted.com",
)


def test_confidence_a_needs_two_sources_a_vendor_document_or_the_arithmetic():
    """Only what was read counts; one secondary page is B at best, unless cores x rate x clock give the peaks."""
    for name in SHIPPED:
        path = spec_dir("accelerator") / f"{name}.yaml"
        data, facts = read_yaml(path), read_facts(path)
        for key, section in data.items():
            if not isinstance(section, dict) or section.get("confidence") != "A":
                continue
            read = [data["sources"][source] for source in section["source"] if data["sources"][source]["read"]]
            hosts = [urlsplit(source["url"]).hostname for source in read]
            vendor = any(host == known or host.endswith(f".{known}") for host in hosts for known in VENDORS)
            assert len(read) >= 2 or vendor or (key == "compute" and reproduced(facts)), f"{name}: {key}: A by {hosts}"


def reproduced(facts):
    """Whether the cores, the rate that the file states, and the clock give a peak."""
    chip = facts.accelerator
    clock = facts.tensor_clock_hz or chip.clock_hz
    products = {dtype: chip.cores * rate * clock for dtype, rate in facts.flops_per_clock.items()}
    return any(chip.peaks.get(dtype, 0.0) == pytest.approx(rate, rel=0.03) for dtype, rate in products.items())


def test_the_h100_by_its_datasheet():
    """NVIDIA H100 datasheet: 989.4 TFLOP/s BF16 and 1978.9 FP8 dense, 3.35 TB/s, NVLink 900 GB/s in both directions."""
    chip = load_accelerator("h100-sxm").value
    assert chip.peak(Dtype.BF16) == pytest.approx(989.4e12)
    assert chip.peak(Dtype.FP8_BLOCK) == pytest.approx(1978.9e12)
    assert (chip.memory_bandwidth, chip.link_bandwidth, chip.nic_bandwidth) == (3.35e12, 450e9, 50e9)
    assert (chip.memory_bytes, chip.l2_bytes) == (79.6 * GIB, 50 * 2**20)
    assert (chip.cores, chip.clock_hz, chip.tdp_w, chip.domain_size) == (132, 1.98e9, 700.0, 8)
    assert chip.compute_capability == "9.0"
    assert chip.price is not None
    assert (chip.price.usd_per_hour, chip.price.date) == (2.95, "2026-05")
    with pytest.raises(DtypeError, match="h100-sxm has no nvfp4 arithmetic"):
        chip.peak(Dtype.NVFP4)


def test_fp4_is_named_as_the_units_compute_it():
    for name in ("b200-sxm", "gb300", "rtx-5090"):
        chip = load_accelerator(name).value
        assert chip.peak(Dtype.NVFP4) == chip.peak(Dtype.MXFP4)
    for name in ("mi350x", "trainium3"):
        chip = load_accelerator(name).value
        assert chip.supports(Dtype.MXFP4)
        assert not chip.supports(Dtype.NVFP4)


def test_cards_without_links_talk_over_pcie_and_say_what_is_assumed():
    chip = load_accelerator("l40s").value
    assert chip.link_bandwidth == chip.pcie_bandwidth == 31.5e9
    assert chip.domain_size == System.of(chip).max_gpus == 8
    (domain,) = (entry for entry in chip.provenance if entry.quantity == "links.domain_size")
    assert (domain.source, domain.confidence) == ("assumed: 8 cards per host is the common server", "C")
    assert load_accelerator("apple-m4-max").value.domain_size == 1


def fact_table() -> list[dict[str, str]]:
    if not CSV.is_file():
        return []
    with CSV.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.skipif(not CSV.is_file(), reason="the fact table lies outside the repository and is not here")
@pytest.mark.parametrize("row", fact_table(), ids=lambda row: row["id"])
def test_specs_agree_with_the_fact_table(row):
    chip = load_accelerator(row["id"]).value
    columns = {
        Dtype.FP32: "vector_fp32_tflops", Dtype.TF32: "tf32", Dtype.BF16: "bf16", Dtype.FP16: "fp16", Dtype.FP8: "fp8",
        Dtype.INT8: "int8", Dtype.INT4: "int4", Dtype.MXFP4: "fp4",
    }  # fmt: skip
    expected = {dtype: float(row[name]) * 1e12 for dtype, name in columns.items() if row[name]}
    assert {dtype: rate for dtype, rate in chip.peaks.items() if dtype is not Dtype.NVFP4} == pytest.approx(expected)
    assert chip.memory_bytes == pytest.approx(float(row["mem_usable_gib"]) * GIB)
    assert chip.memory_bandwidth == pytest.approx(float(row["mem_bw_gbs"]) * 1e9)
    assert chip.cores == int(row["core_count"])
    assert chip.clock_hz == pytest.approx(float(row["boost_mhz"] or 0) * 1e6)
    assert chip.tdp_w == float(row["tdp_w"] or 0)
    assert chip.l2_bytes == float(row["llc_mib"] or row["l2_mib"] or 0) * 2**20
    assert chip.nic_bandwidth == pytest.approx(float(row["nic_gbps"] or 0) * 1e9 / 8)
    assert chip.pcie_bandwidth == pytest.approx(float(row["pcie_uni_gbs"] or 0) * 1e9)
    if row["ic_uni_gbs"]:
        assert chip.link_bandwidth == pytest.approx(float(row["ic_uni_gbs"]) * 1e9)
        assert chip.domain_size == int(row["ic_domain"])
    assert (chip.price.usd_per_hour if chip.price else None) == (float(row["price_typical"] or 0) or None)
    letters = {entry.quantity.partition(".")[0]: entry.confidence for entry in chip.provenance if entry.unit}
    assert letters["compute"] >= row["conf_compute"], "graded better than in the table"
    assert letters["memory"] >= row["conf_memory"], "graded better than in the table"


def test_the_template_loads_as_it_stands(chip):
    loaded = load_accelerator(chip())
    assert loaded.warnings == ()
    assert (loaded.value.name, loaded.value.cores, loaded.value.memory_bandwidth) == ("my-chip", 120, 4e12)


def test_the_template_loads_with_its_optional_lines_too(chip):
    text = re.sub(r"^  # ", "  ", accelerator_template(), flags=re.MULTILINE)
    loaded = load_accelerator(chip(accelerator_template(), text))
    assert loaded.warnings == ()
    assert loaded.value.l2_bytes == 256 * 2**20


REFUSED = [
    ("bandwidth: 4 TB/s", "bandwith: 4 TB/s", "memory.bandwith: unknown key; nearest: bandwidth"),
    ("title: Exa", "colour: red\ntitle: Exa", "colour: unknown key; nearest: cores, sources, compute"),
    ("title: Exa", "zzzzzz: 1\ntitle: Exa", "zzzzzz: unknown key; nearest: title, vendor, architecture, "
     "release_year, sources, compute, memory, cores, links, compute_capability"),
    ("    bf16: 800", "    bf61: 800", "compute.dense.bf61: unknown key; nearest: bf16"),
    ("  label: 96 GB  ", "  # ", "memory.label: is missing; add it"),
    ("title: Example Corp X1 96GB", "", "title: is missing; add it"),
    ("  bandwidth: 4 TB/s", "  bandwidth: 4", "memory.bandwidth: 4 has no unit or is not a quantity; write it like '3.35 TB/s'"),
    ("4 TB/s", "4 TB", "memory.bandwidth: '4 TB' is not in B/s; write it like '3.35 TB/s'"),
    ("4 TB/s", "-4 TB/s", "memory.bandwidth: value '-4 TB/s' is not above 0 and finite"),
    ("4 TB/s", "0 TB/s", "memory.bandwidth: value '0 TB/s' is not above 0 and finite"),
    ("4 TB/s", "nan TB/s", "memory.bandwidth: 'nan TB/s' has no unit or is not a quantity"),
    ("4 TB/s", "1e400 TB/s", "memory.bandwidth: value '1e400 TB/s' is not above 0 and finite"),
    ("bf16: 800 TFLOP/s", "bf16: 800 TFLOPS", "compute.dense.bf16: '800 TFLOPS' is not in FLOP/s; write it like '989.4 TFLOP/s'"),
    ("bf16: 800 TFLOP/s", "bf16: [800]", "compute.dense.bf16: [800] has no unit or is not a quantity"),
    ("95.6 GiB", "95.6 GB/s", "memory.capacity: '95.6 GB/s' is not in B; write it like '79.6 GiB'"),
    ("count: 120", "count: 120.5", "cores.count: value 120.5 is not a whole number above 0"),
    ("count: 120", "count: true", "cores.count: value True is not a whole number above 0"),
    ("count: 120", "count: 12000000000", "cores.count: value is above 1,000,000,000"),
    ("domain_size: 8 ", "domain_size: 0 ", "links.domain_size: value 0 is not a whole number above 0"),
    ("confidence: C", "confidence: D", "compute.confidence: value 'D' is not one of A, B, C"),
    ("  confidence: C\n", "", "compute.confidence: is missing; add it"),
    ("  source: [datasheet]\n", "", "compute.source: is missing; add it"),
    ("source: [datasheet]", "source: []", "compute.source: is empty; name at least one id from `sources`"),
    ("source: [datasheet]", "source: datasheet", "compute.source: value 'datasheet' is not a list of texts; write it like [a, b]"),
    ("source: [datasheet]", "source: [datashet]", "compute.source: value 'datashet' is not under `sources`; nearest: datasheet"),
    ("aliases: [x1, example-x1] ", "aliases:\n- x1\n", "aliases: cannot be searched; write them on one line near the top"),
    ('compute_capability: ""', "compute_capability: 9.0", "compute_capability: value 9.0 is not a text; put it in quotes"),
    ('date: "2026-01"', "date: 2026-01-05", "price.date: value datetime.date(2026, 1, 5) is not a text; put it in quotes"),
    ('date: "2026-01"', 'date: "May"', "price.date: value 'May' is not a date; write it like '2026-05' or '2026-05-20'"),
    ("    read: true", "    read: maybe", "sources.datasheet.read: value 'maybe' is not true or false"),
    ("    url: https://example.com/x1\n", "", "sources.datasheet.url: is missing; add it"),
    ("    domain_size: \"8", "    domainsize: \"8", "links.assumed.domainsize: unknown key; nearest: domain_size"),
    ("  bandwidth: 450 GB/s", "  # ", "links.bandwidth: is missing; give it, or set kind to pcie and give pcie"),
    ("power:                                # optional\n  tdp: 700 W\n  confidence: C\n  source: [datasheet]", "power: 700", "power: value 700 is not a section; put keys with values under it"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "message"), REFUSED)
def test_a_wrong_file_is_refused_in_one_line(chip, old, new, message):
    path = chip(old, new)
    with pytest.raises(SpecError) as error:
        load_accelerator(path)
    assert str(error.value).startswith(f"{path}: {message}")
    assert "\n" not in str(error.value)


def test_a_cut_file_is_refused(chip, tmp_path):
    """However a file is cut, the answer is a refusal of one line."""
    text = accelerator_template()
    path = tmp_path / "cut.yaml"
    ends = [at for at, letter in enumerate(text) if letter == "\n"][:-1]
    for end in (*range(0, len(text) - 5, 97), *ends):
        path.write_text(text[:end])
        with pytest.raises(SpecError) as error:
            load_accelerator(path)
        assert "\n" not in str(error.value)


def test_loading_one_accelerator_imports_nothing_heavy():
    code = (
        "import sys; from rooflinekit.specs.hardware import load_accelerator; load_accelerator('h100-sxm');"
        "print([name for name in ('pandas', 'torch', 'scipy', 'pydantic', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_sources_name_first_what_was_read() -> None:
    """A document that is known from quotations alone stands behind those that quote it, and never as the first."""
    for name in SHIPPED:
        file = load_accelerator(name).value
        unread = [source.title for source in file.sources if not source.read]
        read = [source.title for source in file.sources if source.read]
        for entry in file.provenance:
            if any(title in entry.source for title in read):
                assert not entry.source.startswith(tuple(unread)), (name, entry.source)
                assert "(not read)" not in entry.source
                assert ("as quoted by" in entry.source) == any(title in entry.source for title in unread)
