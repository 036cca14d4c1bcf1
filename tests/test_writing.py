"""Where files of reports go, and where they do not."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

import rooflinekit as rk
from rooflinekit.cli.app import app
from rooflinekit.decision.sweeping.tables import KeptPieces
from rooflinekit.simulation.cells import KeptCells
from rooflinekit.simulation.ledger import RequestObjective
from rooflinekit.specs.writing import check_target, put, whole, write_whole


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_is_no_file(tmp_path: Path, force: bool) -> None:
    more = ["--force"] if force else []
    told = CliRunner().invoke(app, ["report", "llama-3-8b", "--out", str(tmp_path), *more])
    assert (told.exit_code, "is a folder; name a file" in told.output) == (2, True)
    assert list(tmp_path.iterdir()) == []
    assert not tmp_path.with_name(f".{tmp_path.name}.partial").exists()


@pytest.mark.parametrize(("asked", "said"), [
    (["report", "llama-3-8b", "--out", "x.pdf"], "x.pdf: a page is HTML; name the file x.html"),
    (["workbook", "llama-3-8b", "--out", "x.csv"], "x.csv: a workbook is XLSX; name the file x.xlsx"),
])  # fmt: skip
def test_the_suffix_of_another_format_is_refused_before_anything_is_made(asked: list[str], said: str) -> None:
    told = CliRunner().invoke(app, asked)
    assert (told.exit_code, said in told.stderr) == (2, True)


def test_a_link_that_leads_nowhere_is_there(tmp_path: Path) -> None:
    link = tmp_path / "a.html"
    link.symlink_to(tmp_path / "other" / "target")
    with pytest.raises(rk.InputError, match="exists"):
        check_target(link, False)


def test_a_link_is_replaced_and_what_it_leads_to_stays(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "a.html"
    target.write_text("kept")
    link.symlink_to(target)
    check_target(link, True)
    write_whole(link, b"page")
    assert (target.read_text(), link.read_text(), link.is_symlink()) == ("kept", "page", False)


def test_a_trap_in_the_folder_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else made a link of the name under which half a file is written, just before it is opened."""
    victim, trap = tmp_path / "victim", tmp_path / "trap"
    victim.write_text("kept")
    trap.symlink_to(victim)
    monkeypatch.setattr("rooflinekit.specs.writing.partial_path", lambda path: trap)
    with pytest.raises(OSError, match="File exists"):
        write_whole(tmp_path / "a.html", b"page")
    assert victim.read_text() == "kept"


def test_a_failure_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, target: Path) -> Path:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(tmp_path / "a.html", b"page")
    assert list(tmp_path.iterdir()) == []


def test_a_device_is_no_place_for_a_file() -> None:
    """Moving a finished file there would take the device away."""
    with pytest.raises(rk.InputError, match="no ordinary file"):
        check_target(Path("/dev/null"), True)


def test_two_writers_of_one_file_keep_both_answers(tmp_path: Path) -> None:
    """Neither writes into the other's half file, and the one that ends later does not take the first one's place."""
    out = tmp_path / "a.csv"
    with (
        pytest.raises(
            rk.InputError, match=r"a\.csv was written by another process meanwhile; this answer is kept in .*a\.2\.csv"
        ),
        whole(out, force=False) as mine,
    ):
        mine.write_text("mine")
        with whole(out, force=False) as other:
            assert other != mine
            other.write_text("other")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a.csv": "other", "a.2.csv": "mine"}


@pytest.mark.parametrize("words", [
    ["workbook", "--model", "gpt2", "--tp", "1", "--gpu", "h100-sxm", "--weights", "own"],
    ["estimate", "gpt2"], ["sweep", "gpt2"], pytest.param(["report", "gpt2"], marks=pytest.mark.slow),
])  # fmt: skip
def test_what_another_process_wrote_meanwhile_is_kept_by_every_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    def late(partial: Path, path: Path, force: bool) -> None:
        path.write_text("other")
        put(partial, path, force)

    monkeypatch.setattr("rooflinekit.specs.writing.put", late)
    out, other = (tmp_path / (each + (".html" if "report" in words else ".xlsx")) for each in ("a", "a.2"))
    result = CliRunner().invoke(app, [*words, "--out", str(out)])
    assert (result.exit_code, out.read_text()) == (2, "other")
    assert "was written by another process meanwhile" in result.stderr
    assert other.stat().st_size > 100


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # XlsxWriter leaves files open
@pytest.mark.parametrize("table", ["sweep", "workbook"])
def test_a_full_disk_under_a_workbook_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str) -> None:
    """XlsxWriter has an error of its own for it; the line names the file that was asked for."""

    def full(*_: object, **__: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("xlsxwriter.workbook.ZipFile", full)
    out = tmp_path / "out.xlsx"
    few = ["--model", "gpt2", "--tp", "1", "--gpu", "h100-sxm", "--weights", "own"]
    asked = ["sweep", "gpt2", "--batch", "1,2"] if table == "sweep" else ["workbook", *few]
    result = CliRunner().invoke(app, [*asked, "--out", str(out)])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.strip().splitlines() == [f"rooflinekit: {out}: No space left on device"]
    assert list(tmp_path.iterdir()) == []
    del result  # its traceback holds the workbook
    gc.collect()  # whose files are found open here, not in a test that runs later


def test_a_folder_that_cannot_be_written_to_is_said_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(rk.InputError, match="cannot be written to"):
        check_target(Path("out.xlsx"), False)


@pytest.mark.parametrize(("words", "name"), [
    (["workbook", "--model", "gpt2", "--tp", "1"], "workbook.xlsx"), (["report", "gpt2"], "report.html"),
])  # fmt: skip
def test_the_usual_file_is_not_overwritten_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text("mine")
    result = CliRunner().invoke(app, words)
    assert (result.exit_code, (tmp_path / name).read_text()) == (2, "mine")
    assert f"{name} exists; add --force" in result.stderr


def test_finished_work_is_never_written_over_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed while it opens kept cells, or begins a sweep, leaves the old file or the new one."""
    cells, objective = tmp_path / "a.json.cells", RequestObjective(None, None)
    KeptCells(cells, "question", objective)
    before = cells.read_bytes()

    def killed(self: Path, target: Path) -> Path:
        raise OSError(5, os.strerror(5))

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(OSError, match="Input/output"):
        KeptCells(cells, "question", objective)
    assert cells.read_bytes() == before
    with pytest.raises(OSError, match="Input/output"):
        KeptPieces.beside(tmp_path / "b.csv", "question")
    assert not (tmp_path / "b.csv.pieces" / "question.txt").exists()
