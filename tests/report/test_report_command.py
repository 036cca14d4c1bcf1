"""`rooflinekit report`: what it writes, what it refuses, and in which words."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from html_pages import unpacked

from .making import run, table


class TestCommand:
    def test_a_page_is_written_once(self, tmp_path: Path) -> None:
        out, small = tmp_path / "page.html", ("--models", "", "--gpus", "")
        told = run("llama-3-8b", "--batch", "4", "--rate", "3", "--out", str(out), *small)
        assert (told.exit_code, out.exists()) == (2, False)  # a batch and a rate
        load = ("--rate", "3", "--isl", "300", "--osl", "20", "--simulate", "40")
        told = run("llama-3-8b", *load, "--out", str(out), *small)
        assert told.exit_code == 0, told.output
        first = out.read_bytes()
        assert b"Simulated, request by request" in first
        again = run("llama-3-8b", "--out", str(out), *small)
        assert (again.exit_code, "add --force" in again.output) == (2, True)
        assert out.read_bytes() == first
        assert run("llama-3-8b", "--out", str(out), "--force", *small).exit_code == 0
        assert [path.name for path in tmp_path.iterdir()] == ["page.html"]

    def test_a_plan_and_a_sweep_from_files(self, tmp_path: Path, made_plan: dict[str, Any]) -> None:
        (tmp_path / "plan.json").write_text(json.dumps(made_plan), encoding="utf-8")
        table().to_csv(tmp_path / "rows.csv", index=False)
        for option, name in (("--plan", "plan.json"), ("--sweep", "rows.csv")):
            out = tmp_path / f"{name}.html"
            told = run(option, str(tmp_path / name), "--out", str(out), *(("--gpus", "") if option == "--plan" else ()))
            assert told.exit_code == 0, told.output
            assert out.read_text(encoding="utf-8").startswith("<!doctype html>")

    @pytest.mark.parametrize(("arguments", "what"), [
        ((), "MODEL, --plan FILE or --sweep FILE"), (("lama3-8",), "nearest: llama-3-8b"),
        (("llama-3-8b", "--gpu", "h1000"), "nearest"), (("llama-3-8b", "--against", "h1000"), "nearest"),
        (("llama-3-8b", "--against", "tp"), "tp"), (("llama-3-8b", "--against", "tp=4,x"), "no key=value"),
        (("llama-3-8b", "--against", "tpp=4"), "nearest: tp"),
        (("llama-3-8b", "--simulate", "5"), "--rate or --concurrency"),
        (("llama-3-8b", "--plan", "x.json"), "leave it out"), (("--plan", "x.json"), "no such file"),
        (("--plan", "x.json", "--sweep", "y.csv"), "plan and sweep"), (("--sweep", "y.csv"), "no such file"),
        (("--sweep", "pyproject.toml"), "neither .csv nor .parquet"),
        (("llama-3-8b", "--out", "/nowhere/x.html"), "not a folder"),
        (("llama-3-8b", "--models", "lama3-8"), "nearest"), (("llama-3-8b", "--batch", "0"), "batch"),
    ])  # fmt: skip
    def test_bad_input_is_one_line_and_exit_code_2(self, arguments: tuple[str, ...], what: str, tmp_path: Path) -> None:
        extra = () if "--out" in arguments else ("--out", str(tmp_path / "page.html"))
        told = run(*arguments, *extra)
        assert (told.exit_code, told.output.count("\n")) == (2, 1), told.output
        assert what in told.output
        assert list(tmp_path.iterdir()) == []

    def test_a_table_without_answers_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "rows.csv"
        for content in ("", "a,b\n1,2\n", "tpot_ms\n"):
            path.write_text(content, encoding="utf-8")
            told = run("--sweep", str(path), "--out", str(tmp_path / "page.html"))
            assert (told.exit_code, told.output.count("\n")) == (2, 1), told.output

    def test_a_full_disk_leaves_nothing_behind(self, tmp_path: Path) -> None:
        folder = tmp_path / "gone"
        folder.mkdir()
        shutil.rmtree(folder)
        assert run("llama-3-8b", "--out", str(folder / "x.html")).exit_code == 2


def test_pictures_are_written_beside_the_page(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures need the extra plots")
    page, folder = tmp_path / "report.html", tmp_path / "pictures"
    found = run("llama3-8b", "--batch", "8", "--models", "", "--plots", str(folder), "--out", str(page))
    assert found.exit_code == 0, found.stderr
    assert {path.stem for path in folder.iterdir()} == {"roofline", "time", "bytes", "memory", "energy"}


@pytest.mark.parametrize(
    "given", [("llama3-8b",), ("--tp", "4"), ("--against", "l40s"), ("--plots", "pictures"), ("--context", "9")]
)
@pytest.mark.parametrize("source", ["--plan", "--sweep"])
def test_a_plan_or_a_sweep_brings_its_own_deployments(source: str, given: tuple[str, ...], tmp_path: Path) -> None:
    found = run(source, "rows.csv", *given, "--out", str(tmp_path / "report.html"))
    assert found.exit_code == 2
    assert f"{'MODEL' if len(given) == 1 else given[0]} belongs to a report on a model" in found.stderr


def test_the_walk_is_of_the_deployment_itself(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    given = ("--tp", "2", "--kv-policy", "window:4096", "--sequence-parallel", "--models", "", "--gpus", "")
    assert run("mixtral-8x7b", *given, "--out", str(page)).exit_code == 0
    assert "sequence parallel; cache window:4096" in unpacked(page.read_text(encoding="utf-8"))
