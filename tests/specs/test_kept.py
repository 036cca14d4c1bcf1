"""What was read is kept: a second answer opens no file, and a file that changes is read again."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

import rooflinekit as rk
from rooflinekit.estimation.estimator import read_deployment, resolve
from rooflinekit.specs import accelerator_template, load_model, spec_dir
from rooflinekit.specs.files import kept, once

OLD = time.time() - 3600.0


def write(path: Path, text: str, at: float = OLD) -> Path:
    path.write_text(text, encoding="utf-8")
    os.utime(path, (at, at))
    return path


def test_a_file_is_read_once_until_it_changes(tmp_path: Path) -> None:
    read = []

    def reader(path: Path) -> str:
        read.append(path)
        return path.read_text()

    path = write(tmp_path / "a", "one")
    assert (kept(reader, path), kept(reader, path), len(read)) == ("one", "one", 1)
    write(path, "two", OLD + 1)  # as long as before
    assert (kept(reader, path), kept(reader, path), len(read)) == ("two", "two", 2)
    write(path, "three", OLD + 1)  # at the same time
    assert (kept(reader, path), len(read)) == ("three", 3)
    (tmp_path / "b").write_text("four!")
    os.utime(tmp_path / "b", (OLD + 1, OLD + 1))
    (tmp_path / "b").replace(path)  # as long, at the same time, another file
    assert (kept(reader, path), len(read)) == ("four!", 4)


def test_a_young_file_is_read_each_time(tmp_path: Path) -> None:
    """Two writes within a tick of the file system's clock look alike."""
    path = tmp_path / "a"
    for text in ("one", "two", "six"):
        write(path, text, time.time())
        assert kept(Path.read_text, path) == text


def test_what_is_made_of_objects_is_made_once_for_the_same_ones() -> None:
    made = []
    make = once(lambda *parts: made.append(parts) or len(made))
    one, other = [1], [1]
    assert (make(one, "a"), make(one, "a"), make(other, "a"), make(one, "b"), make(one, None)) == (1, 1, 2, 3, 4)


@pytest.mark.parametrize("asked", [
    {},
    {"gpu": "h100", "tp": 2},
    {"model": "meta-llama/Meta-Llama-3-8B", "gpu": "l4", "engine": "sglang@0.4.5"},
    {"calibration": "h100-sxm--trtllm", "system": "dgx-h100", "power_cap": 500},
])  # fmt: skip
def test_one_more_answer_opens_no_file_and_lays_out_no_plan(asked: dict[str, object], monkeypatch) -> None:
    given = {"model": "llama-3-8b", "gpu": "h100-sxm"} | asked
    split = {key: given[key] for key in given if key not in ("model", "gpu", "calibration")}

    def answered() -> object:
        return resolve(given["model"], given["gpu"], read_deployment(split), given.get("calibration"))

    first = answered()
    for method in ("read_bytes", "read_text", "open", "glob"):
        monkeypatch.setattr(Path, method, lambda path, *args, **kwargs: pytest.fail(f"{path} was opened"))
    second = answered()
    assert second.warnings == first.warnings
    assert second.predictor is first.predictor


def test_a_users_files_may_change_between_two_answers(tmp_path: Path) -> None:
    chip = write(tmp_path / "my-chip.yaml", accelerator_template())
    model = (spec_dir("model") / "llama-3-8b.yaml").read_text(encoding="utf-8")
    network = write(tmp_path / "my-model.yaml", model)
    kernels = (spec_dir("accelerator") / "calibrations" / "h100-sxm--vllm.yaml").read_text(encoding="utf-8")
    calibration = write(tmp_path / "mine.yaml", kernels)

    def tpot(fit: str = "none") -> float:
        return rk.estimate(network, chip, calibration=fit).tpot_ms

    bound, expected = tpot(), tpot(str(calibration))
    assert tpot() == bound
    write(chip, accelerator_template().replace("bandwidth: 4 TB/s", "bandwidth: 2 TB/s"), OLD + 1)
    assert tpot() > 1.9 * bound
    write(chip, accelerator_template(), OLD + 2)
    write(network, model.replace("num_hidden_layers: 32", "num_hidden_layers: 16"), OLD + 1)
    assert tpot() < 0.7 * bound
    write(network, model, OLD + 2)
    assert tpot(str(calibration)) == expected
    write(calibration, re.sub(r"launch: \[.*?\]", "launch: [59, 0]", kernels), OLD + 1)
    assert tpot(str(calibration)) > 1.2 * expected


def test_a_model_that_is_added_or_taken_away_is_seen(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("ROOFLINEKIT_SPECS", str(tmp_path))
    text = (spec_dir("model") / "gpt2.yaml").read_text(encoding="utf-8")
    folder = tmp_path / "model_specs"
    folder.mkdir()
    os.utime(folder, (OLD, OLD))
    with pytest.raises(rk.UnknownNameError):
        load_model("my-own")
    write(folder / "my-own.yaml", text.replace("aliases: [", "aliases: [my-other, "))
    assert load_model("my-own").value.name == load_model("my-other").value.name == "gpt2"
    (folder / "my-own.yaml").unlink()
    with pytest.raises(rk.UnknownNameError):
        load_model("my-other")
