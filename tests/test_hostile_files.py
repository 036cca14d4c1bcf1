"""Files that others wrote, damaged in every way, and what is no file: an answer, or one line and exit code 2.

A sample runs in `make test`, all in `make test-long`. A failure names its number, from which the same is drawn again.
"""

from __future__ import annotations

import json
import os
import random
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
from test_watch import AN_HOUR, FLAT, STARTS, after_minutes, recorded
from typer.testing import CliRunner

from rooflinekit.cli.app import app
from rooflinekit.specs import spec_dir

ONE = ("--gpu", "h100-sxm", "--tp", "1")
PLAN = ("plan", "llama-3-8b", *ONE, "--aggregated-only", "--confirm", "0")


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


def damaged(text: str, draw: random.Random) -> bytes:
    """The bytes of a file to which one thing happened, or two."""
    for _ in range(draw.choice((1, 1, 1, 2))):
        each = text.splitlines(keepends=True) or [""]
        at, line = draw.randrange(len(text) + 1), draw.randrange(len(each))
        match draw.randrange(10):
            case 0:
                text = text[:at]
            case 1:
                text = "".join(each[:line] + each[line + 1 :])
            case 2:
                text = "".join(each[: line + 1] + each[line:])
            case 3:
                draw.shuffle(each)
                text = "".join(each)
            case 4 | 5 | 6 | 7:  # a number, a word or a cell becomes something else
                words = [place for place, sign in enumerate(text) if sign.isalnum()]
                if words:
                    start = stop = draw.choice(words)
                    while start and (text[start - 1].isalnum() or text[start - 1] in ".-+"):
                        start -= 1
                    while stop < len(text) and (text[stop].isalnum() or text[stop] in ".-+"):
                        stop += 1
                    text = text[:start] + draw.choice(ODD) + text[stop:]
            case 8:
                text = text[:at] + draw.choice(ODD) + text[at:]
            case _:
                raw = bytearray(text.encode())
                for _ in range(draw.randrange(1, 4)):
                    if raw:
                        raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
                return bytes(raw)
    if draw.random() < 0.1:
        return text.encode(draw.choice(ENCODINGS), "replace")
    return text.encode() if draw.random() < 0.98 else b""


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
    for number in range(12):
        check_kind(kind, number, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_hundreds_of_damaged_files_are_answered_or_refused_in_a_line(kind: str, tmp_path: Path) -> None:
    for number in range(1000, 1300):
        check_kind(kind, number, tmp_path)
