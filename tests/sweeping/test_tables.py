"""CSV and Parquet in and out: nothing of a planner's table is lost, and a run that was stopped goes on."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pandas as pd
import pytest
from patience import PATIENCE, interruptible
from typer.testing import CliRunner

import rooflinekit as rk
from rooflinekit.cli.app import app
from rooflinekit.decision.sweeping.sweep import Grid, Means, SweepJob, run
from rooflinekit.decision.sweeping.tables import KeptPieces, TextTable, check_suffix, write_table

CSV = r'''Owner,Model,Batch size, ISL ,id,Note
ana,llama-3-8b,4,512,007,"a, ""b"""
bob,llama-3-8b, 8 ,,1e3,NA
cy,lama-3-8b,4,512,TRUE,
di,llama-3-8b,many,512,0.10,x
,,,,,
eve,gpt2,,99,-,=1+1
'''
GRID = Grid.of({"model": "llama-3-8b", "batch": [1, 2, 3], "tp": [1, 3], "kv": [None, "fp8"], "calibration": "none"})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.csv").write_text(CSV)
    return tmp_path


def sweep(*arguments: str, given: str | None = None):
    return CliRunner().invoke(app, ["sweep", *arguments], input=given)


def test_a_sheet_holds_two_to_the_twentieth_rows_with_its_header():
    check_suffix(Path("a.xlsx"), 2**20 - 1)
    check_suffix(Path("a.csv"), 2**20)
    with pytest.raises(rk.InputError, match="more than the 1,048,576 of a sheet"):
        check_suffix(Path("a.xlsx"), 2**20)


def test_a_csv_table_comes_back_with_every_cell(folder):
    answer = sweep("in.csv", "--out", "out.csv")
    assert answer.exit_code == 4
    assert "3 of 6 rows could not be answered" in answer.stderr
    before = pd.read_csv("in.csv", dtype=str, keep_default_na=False, skip_blank_lines=False)
    after = pd.read_csv("out.csv", dtype=str, keep_default_na=False, skip_blank_lines=False)
    own = ["Owner", "Model", "id", "Note"]
    before.loc[5, "Note"] = "'=1+1"  # which a spreadsheet would calculate
    pd.testing.assert_frame_equal(after[own], before[own])
    assert list(after.columns[:6]) == list(before.columns)
    assert [error[:20] for error in after["error"]] == [
        "", "", "unknown model 'lama-", "batch must be a whol", "model is empty", ""
    ]  # fmt: skip
    assert float(after["tpot_ms"][1]) == rk.estimate("llama-3-8b", batch=8).tpot_ms


def test_rows_and_columns_of_a_grid_are_in_one_order(folder):
    axes = {"--gpu": "h100,l40s", "--batch": "1,2", "--isl": "8,9", "--tp": "1,2", "--kv": "fp8"}
    for name, words in (("a", axes.items()), ("b", reversed(axes.items()))):
        assert sweep("llama-3-8b", *(word for pair in words for word in pair), "--out", f"{name}.csv").exit_code == 0
    assert (folder / "a.csv").read_text() == (folder / "b.csv").read_text()
    assert (folder / "a.csv").read_text().startswith("model,gpu,batch,isl,tp,kv,")


@pytest.mark.parametrize("suffix", ["csv", "parquet", "xlsx"])
def test_a_table_is_the_same_in_every_format(folder, suffix):
    read = {"csv": pd.read_csv, "parquet": pd.read_parquet, "xlsx": pd.read_excel}[suffix]
    assert sweep("in.csv", "--out", f"out.{suffix}").exit_code == 4
    got = read(f"out.{suffix}")
    expected = pd.concat([rk.estimate_frame(TextTable("in.csv").pieces(9, 0, 9).__next__()())])
    for name in ("tpot_ms", "ttft_low_ms", "total_bytes", "gpus"):
        assert got[name].tolist() == pytest.approx(expected[name].tolist(), rel=1e-15, nan_ok=True)
    assert got["fits"].notna().sum() == 3


def test_parquet_in_keeps_types(folder):
    table = pd.DataFrame({"model": ["gpt2"] * 3, "batch": pd.array([1, None, 4], "Int64"),
                          "when": pd.Timestamp("2027-01-01"),
                          "seats": pd.array([1, None, 2], "Int64"), "ok": [True, False, True]})  # fmt: skip
    table.to_parquet("in.parquet")
    assert sweep("in.parquet", "--out", "out.parquet").exit_code == 0
    got = pd.read_parquet("out.parquet")
    assert got["when"].tolist() == table["when"].tolist()
    assert got["seats"].tolist()[::2] == [1, 2]
    assert got["ok"].tolist() == [True, False, True]
    assert (got["error"] == "").all()


def test_pieces_of_a_table_begin_where_they_are_asked_to(folder):
    rows = 1000
    pd.DataFrame({"model": "gpt2", "batch": range(rows)}).to_csv("long.csv", index=False)
    table = TextTable("long.csv")
    assert table.rows == rows
    parts = [piece() for piece in table.pieces(128, 100, 900)]
    assert pd.concat(parts)["batch"].astype(int).tolist() == list(range(100, 900))
    assert [len(part) for part in parts[:-1]] == [128] * 6


def test_standard_input_to_standard_output(folder):
    answer = sweep("-", "--format", "csv", given=CSV)
    assert answer.exit_code == 4
    assert answer.stdout.startswith("Owner,Model,Batch size")
    assert len(answer.stdout.splitlines()) == 7
    rows = json.loads(sweep("-", "--format", "json", given=CSV).stdout)
    assert rows[3]["error"].startswith("batch must be a whole number")
    assert rows[3]["tpot_ms"] is None


@pytest.mark.parametrize(("text", "said"), [
    ("", "no CSV table"), ("batch\n1\n", "no column 'model'"), ("model,batch\na,1\nb,1,2,3\n", "no CSV table"),
    ("model,batch,Batch\na,1,2\n", "both mean 'batch'"), ("model,btch\na,1\n", "rename it to 'batch'"),
    ("model,tpot_ms\na,1\n", "overwritten by a result"), ("model,usd_per_hour\na,1\n", "overwritten by a result"),
])  # fmt: skip
def test_a_table_that_cannot_be_read_is_refused_in_one_line(folder, text, said):
    Path("bad.csv").write_text(text)
    answer = sweep("bad.csv", "--out", "out.csv")
    assert answer.exit_code == 2
    assert said in answer.stderr
    assert len(answer.stderr.splitlines()) == 1
    assert not list(folder.glob("*out*"))


@pytest.mark.parametrize(("name", "content"), [
    ("x.parquet", b"not parquet"), ("x.xlsx", b"not a zip"), ("x.csv", b"model\n\xff\xfe\x00\n"),
])  # fmt: skip
def test_a_file_of_another_kind_is_refused(folder, name, content):
    Path(name).write_bytes(content)
    answer = sweep(name)
    assert answer.exit_code == 2
    assert name in answer.stderr


@pytest.mark.parametrize("arguments", [
    ["in.csv", "--batch", "1"], ["in.csv", "--sheet", "a"], ["llama-3-8b", "--sheet", "a"], ["no.csv"],
    ["llama-3-8b", "--resume"], ["llama-3-8b", "--out", "x.txt"], ["llama-3-8b", "--out", "no/x.csv"],
    ["llama-3-8b", "--out", "in.csv"], ["llama-3-8b", "--set", "tp"], ["llama-3-8b", "--tp", "1", "--set", "tp=2"],
    ["llama-3-8b", "--format", "json", "--out", "x.csv"],
    ["llama-3-8b", "--batch", "1:2000000", "--out", "x.xlsx"], ["llama-3-8b", "--workers", "0"], ["-", "--resume"],
])  # fmt: skip
def test_options_that_do_not_go_together_are_refused(folder, arguments):
    answer = sweep(*arguments, given="model\ngpt2\n")
    assert answer.exit_code == 2
    assert len(answer.stderr.splitlines()) == 1


def test_a_finished_piece_is_not_done_again(tmp_path):
    class Counted(Grid):
        made = 0

        def frame(self, start, stop):
            Counted.made += 1
            return super().frame(start, stop)

    class SmallPieces(SweepJob):
        def piece_rows(self, columns):
            return 2

    grid, out = Counted(GRID.axes), tmp_path / "out.parquet"
    kept = KeptPieces.beside(out, "question")
    answers = run(grid, SmallPieces(), Means(kept=kept))
    next(answers), next(answers)
    assert kept.count == 2
    write_table(run(grid, SmallPieces(), Means(kept=KeptPieces.beside(out, "question"))), out, kept)
    assert Counted.made == 6
    assert not kept.folder.exists()
    direct = pd.concat(list(run(GRID, SweepJob(), Means())))
    write_table([direct], tmp_path / "direct.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet(out), pd.read_parquet(tmp_path / "direct.parquet"), check_exact=True)


def test_pieces_of_another_question_are_not_taken(tmp_path):
    KeptPieces.beside(tmp_path / "out.csv", "one")
    with pytest.raises(rk.InputError, match="pieces of another sweep"):
        KeptPieces.beside(tmp_path / "out.csv", "other")


@pytest.mark.long
def test_ctrl_c_keeps_what_is_done_and_the_same_command_goes_on(tmp_path):
    words = ["llama-3-8b", "--rate", "1:40", "--set", "requests=600", "--simulate", "--calibration", "none"]
    command = [sys.executable, "-m", "rooflinekit", "sweep", *words, "--resume", "--out", "out.csv"]
    started = subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, encoding="utf-8", preexec_fn=interruptible
    )
    while len(list(tmp_path.glob("out.csv.pieces/*.parquet"))) < 2:
        time.sleep(0.05)
    os.kill(started.pid, signal.SIGINT)
    said = started.communicate(timeout=PATIENCE)[1]
    assert started.returncode == 130
    assert "pieces are kept in out.csv.pieces" in said
    assert not (tmp_path / "out.csv").exists()
    subprocess.run(command, cwd=tmp_path, check=True)
    subprocess.run([*command[:-3], "--out", "direct.csv"], cwd=tmp_path, check=True)
    assert (tmp_path / "out.csv").read_text() == (tmp_path / "direct.csv").read_text()


def test_ctrl_c_without_resume_keeps_the_rows(tmp_path):
    def interrupted():
        yield GRID.frame(0, 4)
        raise KeyboardInterrupt

    with pytest.raises(rk.RooflinekitError, match=r"kept in .*out\.interrupted\.csv") as caught:
        write_table(interrupted(), tmp_path / "out.csv")
    assert caught.value.exit_code == 130
    assert [path.name for path in tmp_path.iterdir()] == ["out.interrupted.csv"]
    assert len(pd.read_csv(tmp_path / "out.interrupted.csv")) == 4


@pytest.mark.parametrize("text", [
    "model,batch,isl\ngpt2,1,99,\ngpt2,2,99,\n", "model;batch;isl\ngpt2;1;99\ngpt2;2;99\n",
    "model\tbatch\tisl\ngpt2\t1\t99\ngpt2\t2\t99\n", "model,batch,isl,\ngpt2,1,99,\ngpt2,2,99,\n",
])  # fmt: skip
@pytest.mark.parametrize("source", ["in.csv", "-"])
def test_tables_as_spreadsheets_write_them(folder, text, source):
    """A comma behind each row, semicolons where the comma is for decimals, tabs."""
    (folder / "in.csv").write_text(text)
    result = CliRunner().invoke(app, ["sweep", source, "--out", "out.csv"], input=text)
    assert (result.exit_code, result.stderr) == (0, "")
    answers = pd.read_csv("out.csv")
    assert answers[["model", "batch", "isl"]].to_numpy().tolist() == [["gpt2", 1, 99], ["gpt2", 2, 99]]
    assert answers["tpot_ms"].notna().all()
    assert not [name for name in answers if name.startswith("Unnamed")]


@pytest.mark.parametrize(("text", "said"), [
    ("model,batch,batch\ngpt2,1,2\n", "has the column 'batch' twice"),
    ("model,batch\ngpt2,1,7\n", "a row has more cells than the header"),
])  # fmt: skip
def test_a_table_that_does_not_say_what_is_meant(folder, text, said):
    (folder / "in.csv").write_text(text)
    result = CliRunner().invoke(app, ["sweep", "in.csv"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_piece_that_was_cut_is_answered_again(tmp_path):
    pytest.importorskip("pyarrow")
    kept, job = KeptPieces.beside(tmp_path / "out.csv", "q"), SweepJob()
    whole = list(run(GRID, job, Means(kept=kept)))
    for path in kept.folder.glob("*.parquet"):
        path.write_bytes(path.read_bytes()[:200])
    again = list(run(GRID, job, Means(kept=KeptPieces.beside(tmp_path / "out.csv", "q"))))
    pd.testing.assert_frame_equal(pd.concat(whole), pd.concat(again))


def test_a_scheduler_that_nobody_answers_is_said_without_asking_again(monkeypatch):
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr(distributed, "Client", lambda *_, **__: pytest.fail("dask would wait"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    result = CliRunner().invoke(app, ["sweep", "gpt2", "--batch", "1,2", "--scheduler", place])
    assert result.exit_code == 2
    assert f"no dask scheduler answers at {place}" in result.stderr


@pytest.mark.parametrize("greeting", [b"HTTP/1.1 400 Bad Request\r\n", b""])
def test_what_answers_and_is_no_scheduler_is_left_alone(greeting, monkeypatch):
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr(distributed, "Client", lambda *_, **__: pytest.fail("dask would wait"))
    monkeypatch.setattr("rooflinekit.simulation.execute._ANSWERS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = f"tcp://127.0.0.1:{server.getsockname()[1]}"

        def greet():
            with server.accept()[0] as met:
                met.sendall(greeting)
                with suppress(ConnectionError):
                    met.recv(1)  # until the other end goes

        thread = Thread(target=greet)
        thread.start()
        result = CliRunner().invoke(app, ["sweep", "gpt2", "--batch", "1,2", "--scheduler", place])
        thread.join()
    assert result.exit_code == 2
    assert f"no dask scheduler answers at {place}" in result.stderr
