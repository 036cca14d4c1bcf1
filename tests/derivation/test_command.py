"""`rooflinekit explain`: options, formats, exit codes."""

from __future__ import annotations

import csv
import io
import json

import pytest
from typer.testing import CliRunner

from rooflinekit.cli.app import app
from rooflinekit.cli.command import find


def run(*arguments):
    return CliRunner().invoke(app, ["explain", *arguments])


def test_it_takes_the_options_of_estimate():
    own, shared = find("explain").options, find("estimate").options
    assert set(own) == set(shared) - {"plots"} | {"depth"}
    assert all(row is shared[name] for name, row in own.items() if name in shared)


def test_options_change_the_answer():
    plain, other = run("llama3-8b", "kv_per_token"), run("llama3-8b", "kv_per_token", "--kv", "fp8")
    assert "kv = 131 kB" in plain.stdout
    assert "kv = 65.5 kB" in other.stdout


@pytest.mark.parametrize(
    "metric", ["tpot", "ttft", "memory", "max_batch", "decode.flops", "prefill.qkv_proj", "params"]
)
def test_the_terminal_has_80_columns_and_every_bracket_a_source(metric):
    result = run("llama3-8b", metric, "--batch", "8")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == f"{metric} of llama-3-8b on h100-sxm, vllm"
    listed = {line.split("]")[0] for line in lines if line.startswith("[")}
    used = {
        word.split("]")[0] for line in lines if not line.startswith("[") for word in line.split() if word[:1] == "["
    }
    assert {mark for mark in used if mark[1:].isdigit()} <= listed


def test_depth_opens_the_tree():
    sizes = [len(run("llama3-8b", "decode.attention", "--depth", str(depth)).stdout) for depth in (1, 2, 4)]
    assert sizes == sorted(set(sizes))


def test_formats():
    data = json.loads(run("llama3-8b", "tpot", "--format", "json").stdout)
    assert data["metric"] == "tpot"
    assert data["derivation"]["children"]
    rows = list(csv.DictReader(io.StringIO(run("llama3-8b", "kv_per_token", "--format", "csv").stdout)))
    assert rows[0]["path"] == "kv"
    assert "kv.K" in {row["path"] for row in rows}
    assert run("llama3-8b", "ridge", "--format", "md").stdout.startswith("## ridge of llama-3-8b")


def test_a_file_is_not_overwritten(tmp_path):
    path = tmp_path / "tree.json"
    assert run("llama3-8b", "ridge", "--format", "json", "--out", str(path)).exit_code == 0
    assert run("llama3-8b", "ridge", "--out", str(path)).exit_code == 2
    assert run("llama3-8b", "ridge", "--out", str(path), "--force").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["llama3-8b", "tpto"], 2, "unknown metric 'tpto'; nearest: tpot"),
        (["llama3-8b", "zzzz"], 2, "nearest: tpot, ttft, memory"),
        (["llama3-8b"], 2, "missing argument"),
        (["llama3-8b", "queue"], 2, "add --concurrency or --rate"),
        (["llama3-8b", "ttft", "--rate", "1000"], 2, "the knee is"),
        (["llama3-8b", "tpot", "--depth", "0"], 2, "depth must be"),
        (["llama3-8b", "tpot", "--depth", "deep"], 2, "whole number"),
        (["llama-3-70b", "tpot"], 3, "does not fit"),
        (["lama3", "tpot"], 2, "unknown model"),
        (["llama3-8b", "tpot", "--batch", "0"], 2, "batch must be"),
    ],
)
def test_refusals_are_one_line(arguments, code, words):
    result = run(*arguments)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
