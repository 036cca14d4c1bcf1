"""System files: built of known accelerators, consistent with them, every number with its source."""

from __future__ import annotations

import pytest

import rooflinekit as rk
from rooflinekit.model.types.errors import DeploymentError, SpecError, UnknownNameError
from rooflinekit.model.types.hardware import System
from rooflinekit.specs import load_accelerator, load_system, names, spec_dir
from rooflinekit.specs.files import read_yaml

FILES = {path.stem: read_yaml(path) for path in sorted(spec_dir("system").glob("*.yaml"))}
CARDS = ["rtx-3090", "rtx-4090", "rtx-a6000", "a40", "l40s"]
BUILT = [(name, gpu) for name, data in FILES.items()
         for chip in data["accelerators"] for gpu in (CARDS if chip == "cards" else [chip])]  # fmt: skip


def test_a_system_agrees_with_its_accelerators():
    for name, gpu in BUILT:
        chip = load_accelerator(gpu).value
        system = load_system(name, chip).value
        assert system.name == name
        if name == "pcie-box-staged":  # copies through the host are slower than the slot
            assert system.link_bandwidth < chip.pcie_bandwidth
        elif chip.link_kind == FILES[name]["domain"]["kind"]:
            usual = System.of(chip)
            assert (system.domain_size, system.link_bandwidth) == (usual.domain_size, usual.link_bandwidth)
            assert system.nic_bandwidth in (0.0, usual.nic_bandwidth)
        else:  # a box without the links that the card could have
            assert (FILES[name]["domain"]["kind"], system.link_bandwidth) == ("pcie", chip.pcie_bandwidth)
        assert (system.max_gpus == system.domain_size) is (system.nic_bandwidth == 0.0)


def test_every_number_has_a_source_that_was_read():
    for name, gpu in BUILT:
        chip = load_accelerator(gpu).value
        known = load_system(name, chip).value.provenance
        rate = "domain.bandwidth" if "bandwidth" in FILES[name]["domain"] else "links.pcie"
        assert {"domain.size", rate} <= {entry.quantity for entry in (*known, *chip.provenance)}
        assert all(entry.source and entry.confidence for entry in known)
        assert all(source["read"] for source in FILES[name]["sources"].values())


def test_only_switches_of_nvlink_4_and_later_add_up():
    kinds = {data["domain"]["kind"] for data in FILES.values() if data["domain"]["in_switch"]}
    assert kinds == {"nvlink4", "nvlink4-capped", "nvlink5"}


def test_hand_numbers():
    system = load_system("DGX-H100", load_accelerator("h100-sxm").value).value
    assert (system.domain_size, system.link_bandwidth, system.nic_bandwidth, system.in_switch) == (8, 450e9, 50e9, True)
    rack = load_system("gb200-nvl72", load_accelerator("gb200").value).value
    assert (rack.domain_size, rack.link_bandwidth) == (72, 900e9)


def test_the_wrong_accelerator_is_refused_with_the_right_ones():
    with pytest.raises(DeploymentError, match=r"hgx-b200 is built of b200-sxm, not h100-sxm; use --gpu b200-sxm"):
        load_system("hgx-b200", load_accelerator("h100-sxm").value)


def test_an_unknown_system_is_refused_with_the_nearest():
    with pytest.raises(UnknownNameError, match="hgx-h100"):
        load_system("hgx-h10", load_accelerator("h100-sxm").value)


@pytest.mark.parametrize(("old", "new", "said"), [
    ("size: 8", "size: 0", "domain.size: value 0 is not a whole number above 0"),
    ("size: 8", "sise: 8", "domain.sise: unknown key; nearest: size"),
    ("in_switch: true", "in_switch: maybe", "domain.in_switch: value 'maybe' is not true or false"),
    ("nic: 400 Gb/s", "nic: 400", "network.nic"),
    ("[dgx-basepod, ml-engineering]", "[nobody]", "network.source: value 'nobody' is not under `sources`"),
    ("accelerators:", "accelerator:", "accelerator: unknown key; nearest: accelerators"),
])  # fmt: skip
def test_a_file_that_cannot_be_trusted_is_refused(tmp_path, old, new, said):
    text = (spec_dir("system") / "hgx-h100.yaml").read_text(encoding="utf-8")
    assert old in text
    mine = tmp_path / "mine.yaml"
    mine.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(SpecError) as refused:
        load_system(str(mine), load_accelerator("h100-sxm").value)
    assert said in str(refused.value)


def test_all_systems_are_listed():
    assert names("system") == sorted(FILES)


@pytest.mark.parametrize("gpu", CARDS)
@pytest.mark.parametrize("tp", [2, 4, 8])
def test_cards_without_nvlink_split_a_model_over_pci_express(gpu, tp):
    with_peers, staged = (
        rk.estimate("llama-3-8b", gpu, tp=tp, system=system) for system in ("pcie-box", "pcie-box-staged")
    )
    assert staged.ttft_ms > with_peers.ttft_ms
    usual = rk.estimate("llama-3-8b", gpu, tp=tp)
    bridged = load_accelerator(gpu).value.link_kind.endswith("bridge")
    assert any("PCI Express, 31.5 GB/s each way" in note for note in usual.warnings) is (bridged and tp > 2)
    assert any("a bridge joins the cards" in note for note in usual.warnings) is (bridged and tp == 2)
    assert not any("a bridge joins" in note for note in with_peers.warnings)
    if tp > 2:
        assert usual.ttft_ms == with_peers.ttft_ms


def test_stages_on_four_bridged_cards_need_no_system():
    assert rk.estimate("llama-3-8b", "rtx-3090", pp=4).inputs["gpus"] == 4


def test_machines_of_one_accelerator_are_joined_by_their_network_cards():
    one, two = (rk.estimate("llama-3-70b", "gb10", tp=tp, weights="int4", calibration="none") for tp in (1, 2))
    assert one.tpot_ms / 2 < two.tpot_ms < one.tpot_ms
    assert any("network cards, 25.0 GB/s each way" in note for note in two.warnings)
    # 160 all-reduces of 1,024 tokens x 8,192 x 2 B, 2 (n - 1) / n = 1 of them sent: 2.68 GB at 25 GB/s
    assert sum(k.network_bytes for k in two.prefill.kernels if k.name == "all_reduce") == 160 * 1024 * 8192 * 2


@pytest.mark.parametrize(("gpu", "box"), [("h100-sxm", "--system hgx-h100"), ("mi300x", "--system mi300x-8")])
def test_a_split_beyond_the_links_is_refused_with_the_boxes_that_hold_it(gpu, box):
    with pytest.raises(DeploymentError, match=box):
        rk.estimate("deepseek-v3", gpu, tp=16)
    with pytest.raises(DeploymentError, match="no system of several nodes is known"):
        rk.estimate("llama-3-8b", "rtx-4090", tp=16)
