"""Files that others wrote, damaged in every way, and what is no file: an answer, or one line and exit code 2.

A sample runs in `make test`, all in `make test-long`. A failure names its number, from which the same is drawn again.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest
from patience import PATIENCE
from test_accuracy_memory import COLUMNS, ROWS
from test_compare import AIPERF_CSV, GUIDELLM, MLPERF, SGLANG, VLLM
from test_pasted import BLOCK, COMPOSE, LLAMA_TABLE, TRTLLM
from test_watch import AN_HOUR, FLAT, STARTS, after_minutes, recorded
from typer.testing import CliRunner

from rooflinekit.cli.app import app
from rooflinekit.specs import spec_dir

ONE = ("--gpu", "h100-sxm", "--tp", "1")
PLAN = ("plan", "llama-3-8b", *ONE, "--aggregated-only")

SERVEGEN = "0,1.3,8.6,Weibull,0.375,0.397\n600,0,0,,0,0\n1200,0.27,6.0,Gamma,0.0604,103.65\n"


class Kind(NamedTuple):
    """A file: its name, what a good one holds, and the command line that reads it."""

    name: str
    text: Callable[[], str]
    words: tuple[str, ...]


def shipped(name: str) -> Callable[[], str]:
    return lambda: (spec_dir("accelerator") / "calibrations" / f"{name}.yaml").read_text(encoding="utf-8")


def lines(*each: str) -> Callable[[], str]:
    return lambda: "\n".join(each) + "\n"


def requests() -> str:
    """A minute of requests, with times as servers write them."""
    return "".join(json.dumps({**FLAT, "start_time": 1764000000.0 + at, "gen_ai.usage.output_tokens": 50,
                               "gen_ai.server.request.duration": 1.0}) + "\n" for at in range(60))  # fmt: skip


def bench() -> str:
    each = [{"fullname": f"b.py::t[{at}]", "stats": {"median": 1e-3 * at, "iqr": 1e-5, "rounds": 9}} for at in (1, 2)]
    return json.dumps({"benchmarks": each}, indent=1)


KINDS = {
    "profile": Kind("day.csv", lines("hour,rate", *(f"{at},{2 + at % 5}" for at in range(24))),
                    (*PLAN, "--profile", "FILE")),
    "profile of dates": Kind("day.csv", lines("time,rate", *(f"2026-05-01T{at:02}:00,{at}" for at in range(24))),
                             (*PLAN, "--profile", "FILE")),
    "classes": Kind("classes.yaml", lines("chat: {rate: 2, isl: 1000, osl: 200, slo: ttft<1s}",
                                          "code: {rate: 1, isl: 'uniform:100-900', osl: 100, priority: 1}",
                                          "night: {requests: 5000, deadline: 8h, isl: 500, osl: 50}"),
                    (*PLAN, "--classes", "FILE")),
    "classes as a table": Kind("classes.csv", lines("name,rate,isl,osl,isl_cv,cached,slo,priority",
                                                    "chat,2,1000,200,0.5,0.1,ttft<1s,0", "code,1,3000,100,,,,1"),
                               (*PLAN, "--classes", "FILE")),
    "price": Kind("prices.csv", lines("name,term,low,high,source", "h100-sxm,on-demand,2,3,mine", "l40s,spot,1,2,mine"),
                  (*PLAN, "--rate", "2", "--price", "FILE")),
    "purchase": Kind("own.yaml", lines("purchase: 30000", "years: 4", "power_price: 0.1", "pue: 1.3", "rack: 150",
                                       "staff: 1200", "interest: 0.05", "residual: 0.1"),
                     (*PLAN, "--rate", "2", "--tco", "FILE")),
    "lengths": Kind("lengths.txt", lines(*map(str, range(100, 160))),
                    ("estimate", "llama-3-8b", *ONE, "--rate", "2", "--isl", "empirical:FILE")),
    "trace": Kind("trace.csv", lines("time_s,isl,osl", *(f"{at / 4},{100 + at},{10 + at}" for at in range(30))),
                  ("simulate", "llama-3-8b", *ONE, "--trace", "FILE")),
    "energy": Kind("energy.csv", lines("model,gpu,max_num_seqs,isl_mean,osl_mean,power_w_per_gpu,n_gpus,itl_steady_ms",
                                       "llama-2-7b,h100-sxm,16,500,200,495,1,12", "llama-3-8b,a100,8,100,50,300,1,"),
                   ("accuracy", "energy", "FILE")),
    "memory": Kind("memory.csv", lines(COLUMNS, *ROWS), ("accuracy", "memory", "FILE")),
    "serving": Kind("serving.csv", lines("model,gpu,tp,engine,load,isl,osl,concurrency,source_key,metric,value",
                                         "llama-3-8b,h100-sxm,2,vllm,static,1024,256,8,mine,tpot_ms,8.5",
                                         "llama-3-8b,h100-sxm,2,vllm,concurrency,1024,256,8,mine,ttft_ms,85"),
                    ("accuracy", "serving", "FILE")),
    "kernels": Kind("gemm.csv", lines("gpu,engine,dtype,m,n,k,latency_us", "h100-sxm,vllm,bf16,16,4096,4096,12.5",
                                      "h100-sxm,vllm,bf16,4096,4096,4096,230"), ("accuracy", "kernels", "FILE")),
    "calibration": Kind("mine.yaml", shipped("l40s--vllm"),
                        ("estimate", "llama-3-8b", "--gpu", "l40s", "--calibration", "FILE")),
    "calibration of a server": Kind("mine.yaml", shipped("h100-sxm--vllm"),
                                    ("estimate", "llama-3-8b", *ONE, "--rate", "2", "--calibration", "FILE")),
    "requests": Kind("requests.jsonl", requests, ("watch", "FILE", "--model", "llama-3-8b", *ONE)),
    "recording": Kind("day.prom", lambda: recorded(after_minutes(*[AN_HOUR] * 3)), ("watch", "FILE", *ONE)),
    "start-up": Kind("server.log", lambda: STARTS["vllm"][0], ("compare", "FILE", *ONE)),
    "vllm": Kind("vllm.json", lambda: json.dumps(VLLM, indent=1), ("compare", "FILE", *ONE, "--model", "llama-3-8b")),
    "sglang": Kind("sglang.jsonl", lambda: json.dumps(SGLANG), ("compare", "FILE", *ONE, "--model", "llama-3-8b")),
    "guidellm": Kind("guidellm.json", lambda: json.dumps(GUIDELLM, indent=1),
                     ("compare", "FILE", *ONE, "--model", "llama-3-8b")),
    "aiperf": Kind("aiperf.csv", lambda: AIPERF_CSV,
                   ("compare", "FILE", *ONE, "--model", "llama-3-8b", "--concurrency", "8")),
    "mlperf": Kind("mlperf_log_summary.txt", lambda: MLPERF,
                   ("compare", "FILE", *ONE, "--model", "llama-3-8b", "--isl", "500")),
    "block": Kind("block.txt", lambda: BLOCK,
                  ("compare", "FILE", *ONE, "--model", "llama-3-8b", "--concurrency", "8")),
    "table": Kind("table.md", lambda: LLAMA_TABLE, ("compare", "FILE", "--model", "llama-3-8b")),
    "report": Kind("report.txt", lambda: TRTLLM, ("compare", "FILE", "--gpu", "h100-sxm")),
    "log behind prefixes": Kind("c.log", lambda: COMPOSE,
                                ("compare", "FILE", "--gpu", "h100-sxm", "--model", "qwen3.5-35b-a3b")),
    "rates alone": Kind("chunk.csv", lambda: SERVEGEN, ("simulate", "llama-3-8b", *ONE, "--trace", "FILE",
                                                        "--requests", "9")),
    "guarded kernels": Kind("gemm.csv", lines("gpu,engine,dtype,m,n,k,latency_us,p10_us,p90_us",
                                              "h100-sxm,vllm,bf16,16,4096,4096,12.5,12,13",
                                              "h100-sxm,vllm,bf16,4096,4096,4096,230,229,240"), ("guard", "FILE")),
    "guarded report": Kind("report.csv", lines("N,Triton (ms),Torch (ms)", "256.0,1.5,2", "512.0,,3", "1024,4,5"),
                           ("guard", "FILE", "--baseline", "GOOD")),
    "guarded benchmarks": Kind("bench.json", bench, ("guard", "FILE", "--baseline", "GOOD")),
}  # fmt: skip

ODD = ("nan", "NaN", "inf", "-inf", "1e400", "-1", "-0.0", "1e308", "1e-320", "9" * 400, "9" * 5000, "0", "", "1e15",
       "true", "null", "[]", "{}", "\"x\"", "é", "\x1b[31m", "0x10", "1_000", "1,5", "2026-13-45", "1764000000000",
       "[" * 5000, "{\"a\":" * 2000, "a: {" * 500, "&a [*a]", "!!python/object:os.system x", "=cmd|x", "\u2028", "\0",
       )  # fmt: skip
ENCODINGS = ("utf-8-sig", "utf-16", "utf-16-le", "utf-32", "latin-1", "cp037")


def replaced(text: str, draw: random.Random) -> str:
    """A number, a word or a cell becomes something else."""
    words = [hit.span() for hit in re.finditer(r"[\w.+-]+", text)]
    if not words:
        return text
    start, stop = draw.choice(words)
    return text[:start] + draw.choice(ODD) + text[stop:]


def flipped(text: str, draw: random.Random) -> bytes:
    """Some bits of it are others."""
    raw = bytearray(text.encode())
    for _ in range(draw.randrange(1, 4) if raw else 0):
        raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
    return bytes(raw)


def damaged(text: str, draw: random.Random) -> bytes:
    """The bytes of a file to which one thing happened, or two."""
    for _ in range(draw.choice((1, 1, 1, 2))):
        each = text.splitlines(keepends=True) or [""]
        at, line = draw.randrange(len(text) + 1), draw.randrange(len(each))
        match draw.randrange(9):
            case 0:
                text = text[:at]
            case 1:
                text = "".join(each[:line] + each[line + 1 :])
            case 2:
                text = "".join(each[: line + 1] + each[line:])
            case 3:
                draw.shuffle(each)
                text = "".join(each)
            case 4:
                text = text[:at] + draw.choice(ODD) + text[at:]
            case _:
                text = replaced(text, draw)
    match draw.randrange(20):
        case 0 | 1 | 2:
            return flipped(text, draw)
        case 3 | 4:
            return text.encode(draw.choice(ENCODINGS), "replace")
        case 5:
            return b""
        case _:
            return text.encode()


def check(words: list[str], told: str) -> int:
    """Run a command line: an answer, or a refusal of one line."""
    result = CliRunner().invoke(app, words)
    told = f"{told}: {' '.join(words)} gives {result.exit_code}: {result.output[-600:]}"
    assert result.exit_code in {0, 2, 3, 4}, told
    assert "Traceback" not in result.output, told
    if result.exit_code == 2:
        assert len(result.stderr.splitlines()) <= 3, told  # notes, and the refusal
        assert len(result.stderr) < 3000, told
    return result.exit_code


def check_kind(kind: str, number: int, folder: Path) -> int:
    name, text, words = KINDS[kind]
    path, good = folder / name, folder / "good" / name
    good.parent.mkdir(exist_ok=True)
    good.write_text(text(), encoding="utf-8")
    path.write_bytes(damaged(text(), random.Random(f"{kind} {number}")))
    placed = [word.replace("FILE", str(path)).replace("GOOD", str(good)) for word in words]
    return check(placed, f"{kind} {number}")


@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_file_is_answered(kind: str, tmp_path: Path) -> None:
    """Otherwise its damage would show nothing."""
    name, text, words = KINDS[kind]
    path = tmp_path / name
    path.write_text(text(), encoding="utf-8")
    assert check([word.replace("FILE", str(path)).replace("GOOD", str(path)) for word in words], kind) in (0, 4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file_is_answered_or_refused_in_a_line(kind: str, tmp_path: Path) -> None:
    for number in range(5):
        check_kind(kind, number, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_hundreds_of_damaged_files_are_answered_or_refused_in_a_line(kind: str, tmp_path: Path) -> None:
    for number in range(1000, 1300):
        check_kind(kind, number, tmp_path)


# --- what is no file --------------------------------------------------------------------------------------------------

READERS = [
    ["estimate", "llama-3-8b", "--gpu", "FILE.yaml"], ["estimate", "FILE.json"], ["estimate", "FILE.gguf"],
    ["estimate", "FILE.safetensors"],
    ["estimate", "llama-3-8b", "--calibration", "FILE.yaml"], ["estimate", "llama-3-8b", "--system", "FILE.yaml"],
    ["estimate", "llama-3-8b", "--price", "FILE.csv", "--rate", "1"],
    ["estimate", "llama-3-8b", "--rate", "1", "--isl", "empirical:FILE"],
    ["simulate", "llama-3-8b", "--trace", "FILE"], ["trace", "FILE.jsonl"],
    [*PLAN, "--rate", "1", "--profile", "FILE.csv"], [*PLAN, "--classes", "FILE.yaml"],
    [*PLAN, "--rate", "1", "--price", "FILE.csv"], [*PLAN, "--rate", "1", "--tco", "FILE.yaml"],
    ["sweep", "FILE.csv"], ["sweep", "FILE.xlsx"], ["sweep", "FILE.parquet"],
    ["compare", "FILE.json"], ["guard", "FILE.json"], ["guard", "FILE.csv"],
    ["guard", "FILE.csv", "--baseline", "FILE"],
    ["calibrate", "FILE.jsonl"], ["watch", "FILE", *ONE], ["watch", "FILE", *ONE, "--follow"],
    ["launch", "--plan", "FILE"], ["report", "--plan", "FILE"], ["report", "--sweep", "FILE.csv"],
    *(["accuracy", what, "FILE.csv"] for what in ("energy", "kernels", "memory", "serving")),
]  # fmt: skip


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with names")
def test_what_is_no_file_is_refused_in_a_line_by_every_reader(tmp_path: Path) -> None:
    """A pipe into which nobody writes made them wait for ever."""
    script = tmp_path / "run.py"
    script.write_text(
        "import json, resource, signal, sys\n"
        "from typer.testing import CliRunner\n"
        "from rooflinekit.cli.app import app\n"
        "resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))\n"
        "for words in json.load(sys.stdin):\n"
        "    signal.alarm(60)\n"
        "    told = CliRunner().invoke(app, words)\n"
        "    print(json.dumps([words, told.exit_code, told.stderr]), flush=True)\n"
    )
    asked = []
    made = {"pipe": os.mkfifo, "folder": Path.mkdir, "device": lambda place: place.symlink_to("/dev/zero")}
    for kind, words in product(made, READERS):
        for name in {word.rpartition(":")[2] for word in words if "FILE" in word}:
            place = tmp_path / name.replace("FILE", kind)
            if not os.path.lexists(place):
                made[kind](place)
        asked.append([word.replace("FILE", str(tmp_path / kind)) for word in words])
    told = subprocess.run([sys.executable, str(script)], input=json.dumps(asked), capture_output=True, text=True,
                          timeout=PATIENCE, check=False)  # fmt: skip
    answers = [json.loads(line) for line in told.stdout.splitlines()]
    assert len(answers) == len(asked), f"{asked[len(answers)]} does not end: {told.stderr[-300:]}"
    for words, code, said in answers:
        assert code == 2, f"{words} gives {code}: {said[-300:]}"
        assert "Traceback" not in said and len(said.splitlines()) == 1, f"{words}: {said[-300:]}"


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs a device without end")
def test_a_standard_input_without_end_is_refused() -> None:
    with Path("/dev/zero").open("rb") as endless:
        told = subprocess.run([sys.executable, "-m", "rooflinekit", "sweep", "-"], stdin=endless, capture_output=True,
                              text=True, timeout=PATIENCE, check=False)  # fmt: skip
    assert (told.returncode, told.stderr) == (2, "rooflinekit: the standard input: is a device, not a file\n")


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="needs the pipes of a shell")
def test_the_pipe_of_a_shell_is_read_to_its_end(tmp_path: Path) -> None:
    """It has no name where it could wait for a writer."""
    table = tmp_path / "day.csv"
    table.write_text(KINDS["lengths"].text(), encoding="utf-8")
    line = f"exec {sys.executable} -m rooflinekit estimate llama-3-8b --rate 2 --isl empirical:<(cat {table})"
    told = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert told.returncode == 0, told.stderr
