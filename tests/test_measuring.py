"""The benchmark commands that an estimate carries: real flags, its own numbers, and results that verify it."""

from __future__ import annotations

import json
import shlex
from html import unescape
from typing import Any

import pytest
from html_pages import unpacked
from typer.testing import CliRunner

import rooflinekit as rk
from rooflinekit.cli.app import app
from rooflinekit.evidence.why import Why

#: Flags of each client, as its sources have them (rooflinekit/estimation/measuring.py says where they were read).
FLAGS = {
    "vllm bench serve": {
        "--backend", "--base-url", "--model", "--dataset-name", "--random-input-len", "--random-output-len",
        "--random-prefix-len", "--random-range-ratio", "--ignore-eos", "--max-concurrency", "--request-rate",
        "--burstiness", "--num-prompts", "--num-warmups", "--percentile-metrics", "--save-result", "--result-filename",
    },
    "vllm bench latency": {
        "--model", "--input-len", "--output-len", "--batch-size", "--output-json", "--tensor-parallel-size",
        "--pipeline-parallel-size", "--enable-expert-parallel", "--kv-cache-dtype", "--dtype", "--quantization",
        "--max-model-len", "--gpu-memory-utilization", "--max-num-seqs", "--max-num-batched-tokens", "--block-size",
        "--enable-dbo", "--enforce-eager",
    },
    "sglang bench_serving": {
        "--backend", "--base-url", "--model", "--dataset-name", "--random-input-len", "--random-output-len",
        "--random-range-ratio", "--max-concurrency", "--request-rate", "--num-prompts", "--warmup-requests",
        "--output-file",
    },
    "sglang one_batch_server": {
        "--model", "--base-url", "--batch-size", "--input-len", "--output-len", "--result-filename",
    },
    "aiperf": {
        "--model", "--url", "--endpoint-type", "--streaming", "--synthetic-input-tokens-mean",
        "--synthetic-input-tokens-stddev", "--output-tokens-mean", "--output-tokens-stddev", "--num-prefix-prompts",
        "--prefix-prompt-length", "--extra-inputs", "--concurrency", "--request-rate", "--arrival-pattern",
        "--arrival-smoothness", "--request-count", "--warmup-request-count",
    },
    "llama-bench (prompt)": {"-m", "-p", "-n", "-d", "-o"},
    "llama-bench (tokens)": {"-m", "-p", "-n", "-d", "-o"},
}  # fmt: skip


def commands(**scenario: Any) -> dict[str, str]:
    """Commands of an estimate by their clients."""
    return {each["tool"]: each["command"] for each in rk.estimate("llama-3-8b", **scenario).measure}


def options(command: str) -> dict[str, str]:
    """The flags of a command with their values, "" for those without."""
    found: dict[str, str] = {}
    words = shlex.split(command)
    for number, word in enumerate(words):
        if word.startswith("-") and number and words[number - 1] != "python":
            after = words[number + 1 : number + 2]
            found[word] = after[0] if after and not after[0].startswith("-") else ""
    return found


@pytest.mark.parametrize(("scenario", "tools"), [
    ({"concurrency": 16, "requests": 32}, {"vllm bench serve", "aiperf"}),
    ({"rate": 4.0, "requests": 200, "burstiness": 2.0}, {"vllm bench serve", "aiperf"}),
    ({"rate": 4.0, "osl_cv": 0.3, "requests": 32}, {"aiperf"}),
    ({"batch": 8, "tp": 2, "kv": "fp8"}, {"vllm bench latency"}),
    ({"batch": 1, "cached": 512}, {"vllm bench serve", "aiperf"}),
    ({"concurrency": 16, "requests": 32, "engine": "sglang"}, {"sglang bench_serving", "aiperf"}),
    ({"batch": 8, "engine": "sglang"}, {"sglang one_batch_server"}),
    ({"concurrency": 16, "requests": 32, "engine": "trtllm"}, {"vllm bench serve", "aiperf"}),
    ({"engine": "llama.cpp", "gpu": "rtx-4090"}, {"llama-bench (prompt)", "llama-bench (tokens)", "aiperf"}),
    ({"batch": 1, "engine": "ideal"}, set()),
])  # fmt: skip
def test_each_command_has_flags_that_its_client_has(scenario, tools):
    found = commands(**scenario)
    assert set(found) == tools
    for tool, command in found.items():
        assert options(command).keys() <= FLAGS[tool], command


def test_the_numbers_are_those_of_the_estimate():
    closed = commands(concurrency=16, requests=48, isl=700, osl=90)
    vllm, aiperf = (options(closed[tool]) for tool in ("vllm bench serve", "aiperf"))
    assert [vllm[f"--random-{side}-len"] for side in ("input", "output")] == ["700", "90"]
    assert (vllm["--max-concurrency"], vllm["--num-prompts"]) == ("16", "48")
    assert (aiperf["--concurrency"], aiperf["--request-count"]) == ("16", "48")
    assert vllm["--model"] == "meta-llama/Meta-Llama-3-8B"
    opened = commands(rate=4.0, burstiness=2.0, requests=100, warmup=20)
    vllm, aiperf = (options(opened[tool]) for tool in ("vllm bench serve", "aiperf"))
    assert (vllm["--request-rate"], vllm["--burstiness"]) == ("4", "0.25")  # shape of a gamma law with cv 2: 1/4
    assert (aiperf["--arrival-pattern"], aiperf["--arrival-smoothness"]) == ("gamma", "0.25")
    assert vllm["--num-warmups"] == aiperf["--warmup-request-count"] == "20"
    shared = options(commands(cached=512)["vllm bench serve"])
    assert (shared["--random-prefix-len"], shared["--random-input-len"]) == ("512", "512")  # of 1,024


def test_without_a_server_the_engine_is_made_as_predicted():
    told = options(commands(
        batch=8, tp=2, pp=2, weights="fp8", kv="fp8", max_model_len=4096, memory_fraction=0.8, max_num_seqs=64,
        token_budget=4096, eager=True,
    )["vllm bench latency"])  # fmt: skip
    assert [told[f"--{name}"] for name in ("quantization", "kv-cache-dtype", "max-model-len", "max-num-seqs")] == [
        "fp8", "fp8", "4096", "64",
    ]  # fmt: skip
    assert (told["--gpu-memory-utilization"], told["--max-num-batched-tokens"]) == ("0.8", "4096")
    assert told["--enforce-eager"] == ""
    assert commands(batch=8, weights="int4") == {}  # no checkpoint of it is known
    assert commands(batch=8, dp=2) == {}


def test_what_it_prints_is_verified_with_its_command():
    command = commands(batch=16, isl=512, osl=64, tp=2)["vllm bench latency"]
    e2e = rk.estimate("llama-3-8b", batch=16, isl=512, osl=64, tp=2).to_dict()
    seconds = (e2e["ttft_ms"] + 63 * e2e["tpot_ms"]) / 1e3
    printed = f"$ {command}\nAvg latency: {seconds:.4f} seconds\n50% percentile latency: {seconds:.4f} seconds\n"
    found = CliRunner().invoke(app, ["verify", "-", "--gpu", "h100-sxm", "--format", "json"], input=printed)
    assert found.exit_code == 0, found.stderr
    (run,) = json.loads(found.stdout)["runs"]
    assert (run["isl"], run["osl"], run["tp"], run["concurrency"]) == (512, 64, 2, 16)
    assert all(abs(each["error"]) < 0.02 for each in run["metrics"] if each["metric"] == "e2e_ms")


@pytest.fixture
def checked(tmp_path):
    """checked(factor): `verify` with an estimate and a result in which tokens take so many times as long."""
    words = ["estimate", "llama-3-8b", "--concurrency", "4", "--requests", "12", "--isl", "256", "--osl", "32"]
    prediction, result = tmp_path / "prediction.json", tmp_path / "result.json"
    assert CliRunner().invoke(app, [*words, "--format", "json", "--out", str(prediction)]).exit_code == 0
    said = json.loads(prediction.read_text())

    def run(factor, *more):
        tpot, ttft, count = factor * said["tpot_ms"], said["ttft_ms"], said["load"]["requests"]
        e2e = ttft + 31 * tpot
        result.write_text(json.dumps({
            "backend": "vllm", "model_id": "whatever-it-is-called", "num_prompts": count, "completed": count,
            "request_rate": "inf", "max_concurrency": 4, "total_input_tokens": 256 * count,
            "total_output_tokens": 32 * count, "mean_ttft_ms": ttft, "mean_tpot_ms": tpot, "mean_e2el_ms": e2e,
            "output_throughput": said["output_tok_s"] * said["e2e_ms"] / e2e,
        }))  # fmt: skip
        return CliRunner().invoke(app, ["verify", str(prediction), str(result), "--format", "json", *more])

    return run


def test_a_result_that_the_prediction_holds_is_verified(checked):
    held = checked(1.0)
    assert held.exit_code == 0, held.stderr
    (run,) = json.loads(held.stdout)["runs"]
    assert all(each["verdict"] == "inside" for each in run["metrics"])
    assert run["why"] is None


def test_one_that_it_does_not_hold_is_explained(checked, monkeypatch):
    monkeypatch.setattr("rooflinekit.evidence.compare.explain", lambda *_: Why(9.0, (), 40))
    found = checked(3.0)
    assert found.exit_code == 4
    assert json.loads(found.stdout)["runs"][0]["why"] == {"misfit": 9.0, "reasons": [], "tried": 40}


def test_a_prediction_alone_is_not_verified_by_itself(checked, tmp_path):
    checked(1.0)
    alone = CliRunner().invoke(app, ["verify", str(tmp_path / "prediction.json")])
    assert (alone.exit_code, alone.stdout) == (2, "")
    assert "give the result of the benchmark that it names" in alone.stderr
    lost = CliRunner().invoke(app, ["verify", str(tmp_path / "prediction.json"), str(tmp_path / "lost.json")])
    assert lost.exit_code == 2
    assert "lost.json: no such file" in lost.stderr


@pytest.mark.slow
def test_a_page_has_the_commands(tmp_path):
    page = tmp_path / "page.html"
    assert CliRunner().invoke(app, ["report", "llama-3-8b", "--batch", "8", "--out", str(page)]).exit_code == 0
    told = unescape(unpacked(page.read_text()))
    assert all(command in told for command in commands(batch=8).values())


@pytest.mark.slow
def test_the_explanation_is_a_table(checked):
    found = checked(3.0, "--format", "table")
    assert "changes that explain it" in found.stdout
    assert "misfit as assumed" in found.stdout
    assert max(map(len, found.stdout.splitlines())) <= 80
