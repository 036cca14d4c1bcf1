"""The screenshots in docs/images show what pages and the terminal say now."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from docs.screenshots import IMAGES, PLAYED, SHOTS, of_reports, of_site, stale

from .browser import Browser


def test_pictures_of_pages_and_of_the_terminal_are_fresh(browser: Browser, tmp_path: Path) -> None:
    of_reports(browser, tmp_path)
    assert {path.stem for path in tmp_path.glob("*.png")} == {*(name for name, *_ in SHOTS), "terminal"}
    assert list(stale(tmp_path)) == []


@pytest.mark.long
def test_pictures_of_the_playground_and_the_docs_are_fresh(browser: Browser, tmp_path: Path) -> None:
    try:
        of_site(browser, tmp_path)
    except SystemExit as error:
        pytest.skip(str(error))
    assert {name for name, *_ in PLAYED} <= {path.stem for path in tmp_path.glob("*.png")}
    assert list(stale(tmp_path)) == []


def test_a_picture_without_its_words_is_stale(tmp_path: Path) -> None:
    (tmp_path / "terminal.png").write_bytes((IMAGES / "terminal.png").read_bytes())
    assert list(stale(tmp_path)) == []
    with Image.open(IMAGES / "terminal.png") as picture:
        picture.copy().save(tmp_path / "terminal.png", pnginfo=PngInfo())
    assert list(stale(tmp_path)) == ["terminal.png"]
