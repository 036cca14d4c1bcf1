"""System files: built of known accelerators, consistent with them, every number with its source."""

from __future__ import annotations

import pytest

from rooflinekit.model.types.errors import DeploymentError, SpecError, UnknownNameError
from rooflinekit.model.types.hardware import System
from rooflinekit.specs import load_accelerator, load_system, names, spec_dir
from rooflinekit.specs.files import read_yaml

FILES = {path.stem: read_yaml(path) for path in sorted(spec_dir("system").glob("*.yaml"))}
BUILT = [(name, gpu) for name, data in FILES.items() for gpu in data["accelerators"]]


def test_a_system_agrees_with_its_accelerators():
    for name, gpu in BUILT:
        chip = load_accelerator(gpu).value
        system = load_system(name, chip).value
        assert system.name == name
        if chip.link_kind == FILES[name]["domain"]["kind"]:
            usual = System.of(chip)
            assert (system.domain_size, system.link_bandwidth) == (usual.domain_size, usual.link_bandwidth)
            assert system.nic_bandwidth in (0.0, usual.nic_bandwidth)
        else:  # a box without the links that the card could have
            assert (FILES[name]["domain"]["kind"], system.link_bandwidth) == ("pcie", chip.pcie_bandwidth)
        assert (system.max_gpus == system.domain_size) is (system.nic_bandwidth == 0.0)


def test_every_number_has_a_source_that_was_read():
    for name, gpu in BUILT:
        known = load_system(name, load_accelerator(gpu).value).value.provenance
        assert {"domain.size", "domain.bandwidth"} <= {entry.quantity for entry in known}
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
    assert names("system") == list(FILES)
