"""The generated catalogue is what the spec files say."""

from pathlib import Path

from rooflinekit.report.catalogue_page import catalogue_markdown


def test_committed_catalogue_is_current():
    committed = Path(__file__).parent.parent / "docs" / "catalogue.md"
    assert committed.read_text(encoding="utf-8").rstrip("\n") == catalogue_markdown(), "run `make catalogue`"
