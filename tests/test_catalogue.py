"""The generated tables of the docs are what the spec files say."""

from pathlib import Path

import pytest

from docs.generate.tables import refreshed


@pytest.mark.parametrize("name", ["catalogue.md", "engines.md"])
def test_committed_tables_are_current(name):
    page = (Path(__file__).parent.parent / "docs" / name).read_text(encoding="utf-8")
    assert page.count("\n|") > 10
    assert refreshed(page) == page, "run `make catalogue`"
