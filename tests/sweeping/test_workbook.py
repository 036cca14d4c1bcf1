"""A planner's own workbook: each row answers for itself, and nothing else changes."""

from __future__ import annotations

import datetime
import re
import zipfile
from dataclasses import replace
from functools import partial

import pandas as pd
import pytest
from typer.testing import CliRunner

import rooflinekit as rk
from rooflinekit.cli.app import app
from rooflinekit.decision.sweeping.sweep import Means, SweepJob, run
from rooflinekit.decision.sweeping.tables import write_table
from rooflinekit.decision.sweeping.workbook import read_sheet, write_beside

openpyxl = pytest.importorskip("openpyxl", reason="needs the extra: excel")

HEADERS = ["Owner", "Model", "GPU", "Batch Size", "isl", "OSL", "TP", "Due", "Notes"]
ROWS = [
    ["ana", "llama-3-8b", "h100-sxm", 32, 1024, 256, 1, datetime.date(2027, 1, 1), "ok"],
    ["bob", None, "h100-sxm", 8, None, 256, 2, None, "model is merged with the cell above"],
    ["cy", "llama-3-8b", "h200-sxm", "many", 1024, 256, 1, None, "wrong type & <tag>"],
    ["di", "llama-3-8b", "h200-sxm", datetime.date(2027, 1, 1), 1024, 256, 1, None, "a date"],
    ["ed", "llama-3-8b", "h200-sxm", True, 1024, 256, 1, None, "a truth value"],
    ["fay", "llama-3-8b", "h100-sxm", "=4*8", 1000, 500, 8, None, "a formula without a value"],
    [None, "lama-3-8b", "h100-sxm", 1, 1000, 500, 8, None, "unknown name"],
    ["gus", None, None, 4, None, None, None, None, "no model"],
    ["hal", "llama-3-70b", "h100-sxm", 4, 1000, 500, 1, None, "does not fit"],
    [],
    ["ida", "llama-3-8b", "h100-sxm", "16", 1024.0, 256, "2", None, "numbers as text"],
    ["jo", "llama-3-8b", "h100-sxm", "#REF!", 1024, 256, 1, None, "a broken formula"],
    ["Total", None, None, None, None, None, None, None, "=COUNTA(A4:A15)"],
]
FIRST = 4  # row of the first scenario
ERRORS = {
    6: "batch must be a whole number of at least 1, not many",
    7: "batch must be a whole number of at least 1, not 2027-",
    8: "batch must be a whole number of at least 1, not True", 9: "cell D9 is a formula without a stored value",
    10: "unknown model 'lama-3-8b'", 11: "model is empty", 15: "batch must be a whole number of at least 1, not #REF!",
}  # fmt: skip


@pytest.fixture
def plan(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.title = "Plan 2027"
    sheet["A1"] = "Capacity plan"
    sheet.merge_cells("A1:D1")
    for place, row in enumerate([HEADERS, *ROWS], FIRST - 1):
        for column, cell in enumerate(row, 1):
            sheet.cell(place, column, cell)
    sheet.merge_cells("B4:B5")
    sheet.cell(FIRST, 9).font = openpyxl.styles.Font(bold=True)
    other = book.create_sheet("Other & more")
    other["A1"], other["A2"] = 1, "=A1*2"
    chart = openpyxl.chart.BarChart()
    chart.add_data(openpyxl.chart.Reference(other, min_col=1, min_row=1, max_row=2))
    other.add_chart(chart, "C3")
    book.save("plan.xlsx")
    return tmp_path


def sweep(*arguments: str):
    return CliRunner().invoke(app, ["sweep", *arguments])


def results(path="results.xlsx", sheet="Plan 2027"):
    """Result columns by row of the sheet."""
    cells = list(openpyxl.load_workbook(path)[sheet].iter_rows(values_only=True))
    names = cells[FIRST - 2]
    return {row: dict(zip(names, values, strict=True)) for row, values in enumerate(cells, 1) if row >= FIRST}


def test_each_row_answers_for_itself(plan):
    answer = sweep("plan.xlsx", "--out", "results.xlsx")
    assert answer.exit_code == 4
    assert "7 of 11 rows could not be answered" in answer.stderr
    assert "1 of 11 rows do not fit in memory" in answer.stderr
    assert "merged cells" in answer.stderr
    got = results()
    for row in range(FIRST, FIRST + len(ROWS)):
        said = got[row]["error"] or ""
        assert said.startswith(ERRORS[row]) if row in ERRORS else said == "", row
    assert got[12]["fits"] is False
    for row, asked in ((4, {"batch": 32}), (5, {"batch": 8, "tp": 2}), (14, {"batch": 16, "tp": 2})):
        expected = rk.estimate("llama-3-8b", isl=1024, osl=256, **asked).tpot_ms
        assert got[row]["tpot_ms"] == pytest.approx(expected, rel=1e-12)
    for row in (13, 16):  # an empty row and the totals are no scenarios
        assert {got[row][name] for name in ("tpot_ms", "error", "version")} == {None}


def test_nothing_else_changes(plan):
    sweep("plan.xlsx", "--out", "results.xlsx")
    with zipfile.ZipFile("plan.xlsx") as old, zipfile.ZipFile("results.xlsx") as new:
        assert old.namelist() == new.namelist()
        for name in old.namelist():
            if name != "xl/worksheets/sheet1.xml":
                assert new.read(name) == old.read(name)
        before, after = (book.read("xl/worksheets/sheet1.xml").decode() for book in (old, new))
    added = re.compile(r'<c r="(?:[J-Z]|[A-Z]{2})\d+".*?</c>')
    spans = re.compile(r' spans="[^"]*"|<dimension[^>]*/>')
    assert spans.sub("", added.sub("", after)) == spans.sub("", before)
    first, second = (openpyxl.load_workbook(name)["Plan 2027"] for name in ("plan.xlsx", "results.xlsx"))
    own = [[cell.value for cell in row[:9]] for row in second.iter_rows()]
    assert own == [[cell.value for cell in row[:9]] for row in first.iter_rows()]
    assert second.merged_cells.ranges == first.merged_cells.ranges
    assert second.cell(FIRST, 9).font.bold


def test_columns_that_were_there_come_first(plan):
    sweep("plan.xlsx", "--out", "results.xlsx")
    header = [cell.value for cell in openpyxl.load_workbook("results.xlsx")["Plan 2027"][FIRST - 1]]
    assert header[: len(HEADERS)] == HEADERS
    assert header[len(HEADERS)] == "ttft_ms"
    assert {"tpot_ms", "fits", "error", "usd_per_hour"} <= set(header)


def test_a_stored_value_of_a_formula_is_read(plan):
    xlsxwriter = pytest.importorskip("xlsxwriter", reason="needs the extra: excel")
    with xlsxwriter.Workbook("stored.xlsx") as book:
        sheet = book.add_worksheet("S")
        sheet.write_row(0, 0, ["model", "batch", "mine"])
        sheet.write_string(1, 0, "llama-3-8b")
        sheet.write_formula(1, 1, "=4*8", value=32)
        sheet.write_formula(1, 2, "=1+1", value=2)
    assert sweep("stored.xlsx", "--out", "results.xlsx").exit_code == 0
    stored = openpyxl.load_workbook("results.xlsx", data_only=True)["S"]
    assert [stored["B2"].value, stored["C2"].value] == [32, 2]
    assert openpyxl.load_workbook("results.xlsx")["S"]["B2"].value == "=4*8"
    assert stored["G2"].value is not None
    assert pd.read_excel("results.xlsx")["tpot_ms"][0] == rk.estimate("llama-3-8b", batch=32).tpot_ms


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_sheet_into_another_kind_of_table(plan, suffix):
    assert sweep("plan.xlsx", "--out", f"out.{suffix}").exit_code == 4
    table = pd.read_csv("out.csv") if suffix == "csv" else pd.read_parquet("out.parquet")
    assert list(table.columns[:9]) == HEADERS
    assert len(table) == 11
    assert table["Notes"].notna().all()
    assert table["Due"][0] == "2027-01-01"


def test_a_sheet_is_chosen_by_name(plan):
    assert sweep("plan.xlsx", "--sheet", "Plan 2027").exit_code == 4
    for sheet, said in (("Plan 2028", "nearest: Plan 2027"), ("Other & more", "no|has a header 'model'")):
        answer = sweep("plan.xlsx", "--sheet", sheet)
        assert answer.exit_code == 2
        assert re.search(said, answer.stderr)


@pytest.mark.parametrize(("headers", "said"), [
    (["model", "Batch", "batch"], "both mean 'batch'"), (["model", "batch", "batch"], "both mean 'batch'"),
    (["models", "x"], "header 'model'"), (["model", "error"], "overwritten"),
    (["model", "btch"], "rename it to 'batch'"),
])  # fmt: skip
def test_headers_that_cannot_be_meant_are_refused(plan, headers, said):
    book = openpyxl.Workbook()
    book.active.append(headers)
    book.active.append(["gpt2", 1, 1][: len(headers)])
    book.save("bad.xlsx")
    answer = sweep("bad.xlsx", "--out", "results.xlsx")
    assert answer.exit_code == 2
    assert said in answer.stderr
    assert not (plan / "results.xlsx").exists()


def test_headers_that_are_there_twice_but_not_read_are_kept(plan):
    book = openpyxl.Workbook()
    for row in (["model", "note", "note", None, 7], ["gpt2", "a", "b", "c", "d"]):
        book.active.append(row)
    book.save("twice.xlsx")
    assert sweep("twice.xlsx", "--out", "results.xlsx").exit_code == 0
    row = [cell.value for cell in openpyxl.load_workbook("results.xlsx").active[2]]
    assert row[:5] == ["gpt2", "a", "b", "c", "d"]


def test_a_front_cannot_be_written_into_a_sheet(plan):
    answer = sweep("plan.xlsx", "--out", "results.xlsx", "--pareto", "tok_s_user:tok_s_gpu")
    assert answer.exit_code == 2
    assert "keeps all its rows" in answer.stderr


def test_a_sheet_of_another_writer():
    """Prefixed names and rows without numbers are XML that the standard allows."""
    from rooflinekit.decision.sweeping.workbook import _OPEN, _end

    text = b'<x:row r="3" spans="1:2"><x:c r="A3"/></x:row><x:row r="4"/>'
    first = _OPEN.search(text)
    assert first is not None
    assert text[: _end(text, first)].endswith(b"</x:row>")
    second = _OPEN.search(text, _end(text, first))
    assert second is not None
    assert _end(text, second) == len(text)


def test_a_sheet_without_scenarios(plan):
    book = openpyxl.Workbook()
    book.active.append(["model", "batch"])
    book.save("empty.xlsx")
    assert read_sheet(plan / "empty.xlsx").rows == 0
    assert sweep("empty.xlsx").exit_code == 0
    assert sweep("empty.xlsx", "--out", "results.xlsx").exit_code == 0


def test_text_of_cells_cannot_become_xml_or_a_formula(plan):
    book = openpyxl.Workbook()
    for row in (["model", "batch"], ["</t></is></c>=cmd&\u0000"[:-1], 1], ["=x&<y>", "<b>"]):
        book.active.append(row)
    book.active["A3"].data_type = "s"
    book.save("odd.xlsx")
    assert sweep("odd.xlsx", "--out", "results.xlsx").exit_code == 4
    rows = list(openpyxl.load_workbook("results.xlsx").active.iter_rows(values_only=True))
    said = dict(zip(rows[0], rows[1], strict=True))["error"]
    assert "</t></is></c>=cmd&" in said


def test_an_interrupted_workbook_is_whole(plan):
    sheet = read_sheet(plan / "plan.xlsx")

    def interrupted():
        yield from run(replace(sheet, table=sheet.table.iloc[:2]), SweepJob(), Means())
        raise KeyboardInterrupt

    with pytest.raises(rk.RooflinekitError, match=r"kept in .*out\.interrupted\.xlsx"):
        write_table(interrupted(), plan / "out.xlsx", write=partial(write_beside, sheet))
    got = results("out.interrupted.xlsx")
    assert [got[row]["version"] is not None for row in (4, 5, 6, 7)] == [True, True, False, False]
    assert got[16]["Notes"] == "=COUNTA(A4:A15)"


@pytest.mark.long
def test_a_full_sheet(plan):
    xlsxwriter = pytest.importorskip("xlsxwriter", reason="needs the extra: excel")
    rows = 200_000
    with xlsxwriter.Workbook("full.xlsx", {"constant_memory": True}) as book:
        sheet = book.add_worksheet("S")
        sheet.write_row(0, 0, ["Model", "Batch", "ISL"])
        for row in range(1, rows + 1):
            sheet.write_row(row, 0, ["llama-3-8b", "x" if row % 1000 == 0 else row % 64 + 1, row % 3000 + 1])
    answer = sweep("full.xlsx", "--out", "results.xlsx")
    assert answer.exit_code == 4
    assert f"{rows // 1000} of {rows:,} rows could not be answered" in answer.stderr
    table = pd.read_excel("results.xlsx", usecols=["Batch", "tpot_ms", "error"])
    assert len(table) == rows
    assert table["tpot_ms"].isna().sum() == rows // 1000
