"""Texts of others in CSV, Markdown and terminal cells: a program that shows them runs none of them."""

from __future__ import annotations

import csv
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from typer.testing import CliRunner

from rooflinekit.cli.app import app
from rooflinekit.report.document import (
    CellTable,
    Facts,
    FixedLines,
    Items,
    Section,
    Words,
    html_text,
    markdown_text,
    plain_text,
)
from rooflinekit.specs.escaping import STEERING, csv_cell, csv_table, csv_text, visible

HOSTILE = (
    "=cmd|' /C calc'!A0", "+1", "@SUM(A1:A9)", "-2+3+cmd|' /C calc'!A0", "\t=1", " =1", "\r=1", "＝1",
    "\x1b[2J\x1b]0;owned\x07", "\x9b31m", "\u202egnp.exe", "<script>alert(1)</script>", "<img src=x onerror=alert(1)>",
    "[click](javascript:alert(1))", "![x](javascript:alert(1))", "[x]: javascript:alert(1)", "<javascript:alert(1)>",
    "`` <script>`", "\\`<b>`", "a|b", "~~~", "```", "&lt;b&gt;", "**<b>**", "a\n\n<b>", "a\r\n# b",
    "█<script>", "__init__",
)  # fmt: skip
ANY = st.one_of(st.sampled_from(HOSTILE), st.text("<>`*_[]()!\\|&;~#=+-@ab1 \n\t\x1b\x85\u2028", max_size=20))
ALLOWED = {"h2", "h3", "p", "ul", "li", "table", "thead", "tbody", "tr", "th", "td", "code", "pre", "strong", "br"}


class Elements(HTMLParser):
    """The elements of a page and its words."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: list[tuple[str, str | None]] = []
        self.words = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [each for each in attrs if each[0] not in ("style", "class")]

    def handle_data(self, data: str) -> None:
        self.words += data


def page_of(markdown: str) -> Elements:
    """What a reader of Markdown makes of a text: CommonMark with tables, HTML let through."""
    return Elements(MarkdownIt("commonmark", {"html": True}).enable("table").render(markdown))


def letters(text: str) -> str:
    return re.sub(r"\s+", "", text)


@given(ANY)
@example("a\\")
@example("<a title='`'>`")
def test_markdown_shows_a_text_as_it_is(text: str) -> None:
    blocks = [Words(f"x {text}"), CellTable(["name", "n"], [[text, "1"]]), FixedLines([text], "sh")]
    page = page_of(
        markdown_text([Section(f"x {text}", blocks), Section("x", [Items(f"x {text}"), Facts(("x", text))])])
    )
    assert page.tags <= ALLOWED
    assert not page.links
    said = page_of(markdown_text([Section("", [Words(f"x {text}")])]))
    assert letters(said.words) == letters(visible(f"x {' '.join(text.splitlines())}"))


@given(ANY)
def test_a_notebook_shows_a_text_as_it_is(text: str) -> None:
    blocks = [
        Words(text),
        CellTable(["name", "n"], [[text, "█ 1"], [f"█{text}", "1"]]),
        Items(text),
        Facts(("x", text)),
    ]
    page = Elements(html_text([Section("x", blocks)], folded=False))
    assert page.tags <= {*ALLOWED, "h4", "b"}


@given(ANY)
def test_a_cell_of_a_terminal_has_one_line_and_steers_nothing(text: str) -> None:
    lines = CellTable(["name", "n"], [[text, "1"]], room=10_000).text(10_000)
    assert len(lines) == 2
    assert not STEERING.search("".join(lines))
    assert not STEERING.search(visible(plain_text([Section(text, [Words(text), Items(text), FixedLines([text])])])))


@given(ANY)
def test_a_cell_of_a_spreadsheet_is_no_formula(text: str) -> None:
    for written in (csv_text([{"a": text, text: 1.0}]), csv_table(pd.DataFrame({"a": [text], text: [1.0]}))):
        rows = [*csv.reader(io.StringIO(written, newline=""))]
        for cell in (rows[0][-1], rows[1][0]):
            begins = cell.strip()[:1]
            assert begins not in tuple("=+@＝＋－＠")
            assert begins != "-" or cell.strip() == "-" or float(cell) <= 0
            assert not STEERING.search(cell)


@pytest.mark.parametrize("cell", [-1.5, 3, None, True, "-1.5", "-", "-1e-3", "llama-3-8b", "", "a=b"])
def test_numbers_and_plain_texts_stay(cell: object) -> None:
    assert csv_cell(cell) == cell


def test_numbers_of_a_table_are_written_as_pandas_does() -> None:
    table = pd.DataFrame(
        {"n": [-1.5, None], "m": [1, -2], "t": ["a", None], "b": pd.array([True, None], dtype="boolean")}
    )
    assert csv_table(table) == table.to_csv(index=False, lineterminator="\n")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table of scenarios with notes of somebody else, and a benchmark that is named by somebody else."""
    notes = ["=cmd|' /C calc'!A0", "\x1b[2J", "<script>alert(1)</script>"]
    pd.DataFrame({"model": ["llama-3-8b", "=1+1", "<script>"], "note": notes, "=x": 1}).to_csv(
        tmp_path / "rows.csv", index=False
    )
    names = ["=1+1", "<script>alert(1)</script>", "[a](javascript:alert(1))", "a\x1b[2J"]
    for file, factor in (("main", 1.0), ("now", 2.0)):
        stats = {"median": factor, "stddev": 1e-4, "iqr": 1e-4, "rounds": 50}
        timed = [{"name": name, "fullname": name, "stats": stats} for name in names]
        (tmp_path / f"{file}.json").write_text(json.dumps({"machine_info": {}, "version": "5", "benchmarks": timed}))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("line", ["sweep rows.csv", "guard now.json --baseline main.json", "estimate <script>=1"])
@pytest.mark.parametrize("form", ["table", "csv", "md"])
def test_commands_pass_nothing_on(folder: Path, line: str, form: str) -> None:
    done = CliRunner().invoke(app, [*line.split(), "--format", form])
    assert done.exit_code in (2, 4)
    assert not STEERING.search(done.output)
    if form == "csv":
        cells = [cell for row in csv.reader(io.StringIO(done.stdout)) for cell in row]
        assert not [cell for cell in cells if cell[:1] in tuple("=+@")]
    if form == "md":
        page = page_of(done.stdout)
        assert page.tags <= ALLOWED
        assert not page.links


def test_a_sweep_into_a_file_passes_nothing_on(folder: Path) -> None:
    CliRunner().invoke(app, ["sweep", "rows.csv", "--out", "out.csv"])
    written = pd.read_csv(folder / "out.csv")
    assert written["note"].tolist() == ["'=cmd|' /C calc'!A0", "\\x1b[2J", "<script>alert(1)</script>"]
    assert "'=x" in written
