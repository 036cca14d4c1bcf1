"""`rooflinekit plan` on the command line."""

from __future__ import annotations

import csv
import html
import io
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rooflinekit.cli.app import app
from rooflinekit.report.plan import ASSUMPTIONS

QUICK = [
    "--isl",
    "1000",
    "--osl",
    "100",
    "--tp",
    "1",
    "--aggregated-only",
    "--token-budget",
    "8192",
    "--max-num-seqs",
    "256",
]
ASK = [
    "plan",
    "llama-3-8b",
    "--rate",
    "20",
    *QUICK,
    "--gpu",
    "h100,a100-sxm-80gb",
    "--slo",
    "p95 ttft<1s,p95 tpot<50ms",
]


def run(*args: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, list(args))
    return done.exit_code, done.stdout, done.stderr


def test_the_terminal_shows_the_answer_within_80_columns() -> None:
    code, out, _ = run(*ASK, "--headroom", "0.1", "--redundancy", "1", "--peak", "1.5")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert len(out.splitlines()) <= 24  # and the rest with -v
    assert "30 requests/s" not in out.splitlines()[1]
    assert "in the busiest hour" in out
    assert "$/month" in out
    assert "a GPU-hour (" in out  # the source of the price
    more = run(*ASK, "--headroom", "0.1", "--redundancy", "1", "--peak", "1.5", "-v")[1]
    assert max(map(len, more.splitlines())) <= 80
    assert all(said in more for said in ("GPUs = ", "more may fail", "why the others lost"))


def test_pools_with_many_options_stand_below_each_other() -> None:
    """So that neither the evidence nor the objective at risk leaves 80 columns."""
    words = ["--ep", "4", "--dp", "4", "--rate", "60", "--isl", "2000", "--osl", "200"]
    code, out, _ = run("plan", "gpt-oss-120b", "--gpu", "h100", "--tp", "1", *words, "-v")
    lines = out.splitlines()
    assert code == 0
    assert max(map(len, lines)) <= 80
    place = next(number for number, line in enumerate(lines) if "P TP1 DP4 EP4 two-batch" in line)
    assert lines[place + 1].strip().startswith("+ ")
    assert sum(" evidence" in line for line in lines) == 2


@pytest.mark.long
def test_the_table_counts_what_it_leaves_out() -> None:
    """A stand-in that is shown below the first eight is not counted as left out too."""
    words = ["plan", "llama-3-8b", "--rate", "20", "--gpu", "h100-sxm,a100-sxm-80gb,mi300x",
             "--weights", "bf16,fp8", "--kv", "bf16,fp8",
             "--token-budget", "8192", "--max-num-seqs", "256", "-v"]  # fmt: skip
    out, rows = run(*words)[1], list(csv.DictReader(io.StringIO(run(*words, "--format", "csv")[1])))
    lines = out.splitlines()
    first = next(place for place, line in enumerate(lines) if " replicas " in line and "$/h" in line)
    last = next(place for place, line in enumerate(lines) if line.startswith(("and ", "P, D")))
    left = len(rows) - sum(not line.strip().startswith("+ ") for line in lines[first + 1 : last])  # a pool takes two
    assert (f"and {left} more" in out) == (left > 0)


def test_users_who_all_find_room_are_not_called_a_full_replica() -> None:
    """What more it would bear is another question: no load of 100 %, no headroom of 0 %."""
    _, out, _ = run("plan", "llama-3-8b", "--concurrency", "20", "--tp", "1", "-v")
    assert "20 users; whether it serves more was not asked" in out
    assert not re.search(r"\b100 %|\b0 % headroom", out)


def test_what_every_plan_assumes_stands_in_the_help_and_in_json_alone() -> None:
    helped, shown = (" ".join(run(*words)[1].split()) for words in (["plan", "--help"], [*ASK, "-v"]))
    kept = json.loads(run(*ASK, "--format", "json")[1])["warnings"]
    assert {*ASSUMPTIONS} <= {*kept}
    assert all(note in helped and note not in shown for note in ASSUMPTIONS)
    assert "no price is known" not in helped


def test_json_csv_and_markdown_say_the_same(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    assert run(*ASK, "--format", "json", "--out", str(path))[0] == 0
    data = json.loads(path.read_text())
    rows = list(csv.DictReader(io.StringIO(run(*ASK, "--format", "csv")[1])))
    assert [int(row["gpus"]) for row in rows] == [candidate["gpus"] for candidate in data["candidates"]]
    assert data["answer"] in html.unescape(run(*ASK, "-v", "--format", "md")[1])
    code, _, error = run(*ASK, "--out", str(path))
    assert code == 2
    assert "--force" in error


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["--max", "batch", "--subject-to", "tpot<10ms", "--isl", "2048"], 0, "The largest batch is"),
        (["--max", "users", "--subject-to", "p95 tpot<20ms"], 0, "The largest number of users is"),
        (["--max", "rate", "--system", "hgx-h100", "--tp", "2"], 0, "The largest rate is"),
        (["--find", "bandwidth", "--subject-to", "tpot<5ms"], 0, "of memory bandwidth"),
        (["--find", "gpus", "--rate", "20", *QUICK], 0, "GPU"),
        (["--find", "price", "--rate", "9", *QUICK, "--gpu", "h100,l40s"], 0, "break-even"),
        (["--max", "batch", "--subject-to", "tpot<1ms"], 3, "no solution"),
        (["--rate", "5", "--slo", "p95 tpot<1ms", *QUICK], 3, "the nearest is h100-sxm"),
        ([], 2, "how much traffic"),
        (["--rate", "5", "--users", "5"], 2, "exclude each other"),
        (["--rate", "5", "--slo", "p95 tpot<1"], 2, "no unit"),
        (["--rate", "5", "--price", "EUR2.5"], 2, "or EUR2.5@1.1 at 1.1 dollars a euro"),
        (["--rate", "5", "--price", "h100=2.5EUR"], 2, "write 2.5, 1800/month or 15000/year, in US dollars"),
        (["--rate", "5", "--price", "h100"], 2, "has no number; write it like 2.5 or h100-sxm=2.5"),
        (["--rate", "5", "--price", "-1"], 2, "not -1"),
        (["--max", "batch", "--subject-to", "tpot<9ms", "--format", "json"], 0, '"engine": "vllm"'),
        (["--rate", "5", "--price", "h100=1", "--price", "h100=2"], 2, "is given twice"),
        (["--rate", "5", "--limit", "h100=1.5"], 2, "limit"),
        (["--rate", "5", "--tp", "two"], 2, "whole numbers"),
        (["--rate", "5", "--batch", "4"], 2, "--batch needs --max or --find"),
        (["--rate", "5", "--subject-to", "tpot<9ms"], 2, "--subject-to needs --max or --find"),
        (["--max", "cake"], 2, "unknown quantity"),
        (["--find", "cake", "--rate", "5"], 2, "unknown quantity 'cake'; nearest: gpus, bandwidth, price"),
        (["--max", "batch", "--find", "gpus"], 2, "exclude each other"),
        (["--max", "batch", "--tp", "1,2"], 2, "one deployment"),
        (["--max", "batch", "--gpu", "h100,l40s"], 2, "one deployment"),
        (["--max", "rate", "--rate", "5"], 2, "no part in --max"),
        (["--max", "batch", "--slo", "tpot<9ms", "--subject-to", "tpot<9ms"], 2, "give one"),
        (["--max", "batch", "--isl", "lognormal:mean=5,cv=1"], 2, "isl is one length here"),
        (["--max", "context", "--osl-cv", "1"], 2, "osl is one length here"),
        (["--gpu", "h1000", "--rate", "5"], 2, "h100"),
    ],
)
def test_questions_and_their_exit_codes(args: list[str], code: int, says: str) -> None:
    got, out, error = run("plan", "llama-3-8b", *args)
    assert (got, says in (out if code == 0 else error)) == (code, True), (out, error)
    if code:
        assert error.startswith("rooflinekit: ")
        assert len(error.strip().splitlines()) == 1


def test_inverse_answers_as_data() -> None:
    data = json.loads(run("plan", "llama-3-8b", "--max", "batch", "--subject-to", "tpot<10ms", "--format", "json")[1])
    assert data["what"] == "batch"
    assert data["at"]["tpot_ms"] <= 10.0
    assert data["binds"] == ["mean TPOT <= 10 ms"]
    (row,) = csv.DictReader(io.StringIO(run("plan", "llama-3-8b", "--max", "batch", "--format", "csv")[1]))
    assert row["binds"] == "memory"


def test_a_trace_is_planned_for_and_replayed(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    rows = [f"{i / 10 + i % 3 / 100:.3f},{200 + 37 * (i % 9)},{20 + 7 * (i % 5)}" for i in range(400)]
    path.write_text("\n".join(["time_s,isl,osl", *rows]) + "\n")
    data = json.loads(run("plan", "llama-3-8b", "--trace", str(path), "--tp", "1", "--format", "json")[1])
    assert data["traffic"]["trace"]
    assert data["best"]["requests"] == 400
