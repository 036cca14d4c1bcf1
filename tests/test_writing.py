"""Where files of reports go, and where they do not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

import rooflinekit as rk
from rooflinekit.cli.app import app
from rooflinekit.specs.writing import check_target, write_whole


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_is_no_file(tmp_path: Path, force: bool) -> None:
    more = ["--force"] if force else []
    told = CliRunner().invoke(app, ["report", "llama-3-8b", "--out", str(tmp_path), *more])
    assert (told.exit_code, "is a folder; name a file" in told.output) == (2, True)
    assert list(tmp_path.iterdir()) == []
    assert not tmp_path.with_name(f".{tmp_path.name}.partial").exists()


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


def test_a_trap_in_the_folder_is_not_followed(tmp_path: Path) -> None:
    """Somebody else made a link of the name under which half a file is written."""
    victim = tmp_path / "victim"
    victim.write_text("kept")
    (tmp_path / ".a.html.partial").symlink_to(victim)
    write_whole(tmp_path / "a.html", b"page")
    assert victim.read_text() == "kept"
    assert {path.name for path in tmp_path.iterdir()} == {"a.html", "victim"}


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
