"""`rooflinekit simulate` and `rk.simulate`: answers, files, refusals, interrupts."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
from itertools import pairwise

import pytest
from patience import PATIENCE, interruptible
from typer.testing import CliRunner

import rooflinekit as rk
from rooflinekit.cli.app import app
from rooflinekit.simulation.outcome import Outcome

SMALL = ["llama-3-8b", "--rate", "8", "--requests", "60", "--isl", "256", "--osl", "uniform:10-40"]


def run(*arguments):
    return CliRunner().invoke(app, ["simulate", *arguments])


def refused(*arguments):
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    return result.stderr


def test_the_table_fits_80_columns_and_says_what_users_feel():
    result = run(*SMALL, "--ttft", "200", "--tpot", "30", "--prefix-cache", "--shared-prefix", "128")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80, max(lines, key=len)
    assert [line.split("  ")[0] for line in lines if line.startswith(("TTFT", "TPOT", "ITL", "end to end", "queue"))]
    assert "goodput" in result.stdout
    assert "60 finished" in result.stdout


def test_one_request_is_one_request():
    result = run("llama-3-8b", "--rate", "8", "--requests", "1", "--osl", "4")
    assert "1 request in " in result.stdout


def test_json_is_strict_and_the_same_again():
    def refuse(constant):
        raise AssertionError(constant)

    first, second = (run(*SMALL, "--format", "json").stdout for _ in range(2))
    assert first == second
    data = json.loads(first, parse_constant=refuse)
    assert data["requests"]["finished"] == data["ttft_ms"]["n"] == 60
    marks = data["ttft_ms"]
    assert 0 < marks["p50"] <= marks["p90"] <= marks["p99"] <= marks["max"]
    assert data["goodput"] is None
    other = json.loads(run(*SMALL, "--format", "json", "--seed", "1").stdout)
    assert other["ttft_ms"] != data["ttft_ms"]


def test_csv_is_one_row_and_markdown_has_tables():
    rows = list(csv.DictReader(io.StringIO(run(*SMALL, "--format", "csv").stdout)))
    assert len(rows) == 1
    assert float(rows[0]["ttft_p99_ms"]) > float(rows[0]["ttft_p50_ms"])
    assert "| TTFT |" in run(*SMALL, "--format", "md").stdout


def test_timeline_and_trace_are_files(tmp_path):
    line, trace = tmp_path / "line.csv", tmp_path / "trace.json"
    result = run(*SMALL, "--timeline", str(line), "--chrome-trace", str(trace))
    assert result.exit_code == 0, result.stderr
    rows = list(csv.DictReader(io.StringIO(line.read_text())))
    assert rows[0].keys() == {"time_s", "replica", "queue", "batch", "prompts", "kv_use"}
    seen = [float(row["time_s"]) for row in rows]
    assert seen == sorted(seen)
    events = json.loads(trace.read_text())["traceEvents"]
    steps = [event for event in events if event["ph"] == "X"]
    assert steps
    for before, after in pairwise(steps):
        assert before["ts"] + before["dur"] <= after["ts"] * (1 + 1e-9)  # one replica does one thing at a time
    assert "add --force" in refused(*SMALL, "--timeline", str(line))


def test_a_closed_loop_keeps_its_users(tmp_path):
    data = json.loads(run("llama-3-8b", "--concurrency", "4", "--osl", "20", "--format", "json").stdout)
    assert data["requests"]["finished"] == 40
    assert data["replicas"][0]["mean_batch"] <= 4


def test_a_trace_is_replayed(tmp_path):
    file = tmp_path / "trace.csv"
    file.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,100,10\n0.5,200,20\n1.5,300,5\n")
    data = json.loads(run("llama-3-8b", "--trace", str(file), "--format", "json").stdout)
    assert data["requests"]["finished"] == 3
    assert data["replicas"][0]["prompt_tokens"] == 600
    fast = json.loads(run("llama-3-8b", "--trace", str(file), "--speed", "10", "--format", "json").stdout)
    assert fast["duration_s"] < data["duration_s"]


def test_tiers_are_in_the_table_and_a_link_that_is_overrun_is_named(tmp_path):
    """Four conversations take turns on a cache of two prompts: each comes back from the tier."""
    rows = [{"timestamp": 1000 * at, "input_length": 1537, "output_length": 2, "hash_ids": [4 * (at % 4) + n
             for n in range(4)]} for at in range(16)]  # fmt: skip
    file = tmp_path / "turns.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    words = [*SMALL[:1], "--trace", str(file), "--prefix-cache", "--kv-tokens", "4096", "--cache-tier"]
    data = json.loads(run(*words, "host=10GB", "--format", "json").stdout)
    (use,) = data["replicas"]
    assert use["tiers"] == {"host": pytest.approx(12 * 1536 / (16 * 1537))}
    assert "from host" in run(*words, "host=10GB").stdout
    slow = run(*words, "host=10GB,0.01GB/s").stdout
    assert "times as many blocks leave for it as its link carries" in " ".join(slow.split())


def test_disaggregation_and_replicas():
    data = json.loads(
        run(*SMALL, "--prefill-replicas", "1", "--replicas", "2", "--router", "least-loaded", "--format", "json").stdout
    )
    assert [replica["role"] for replica in data["replicas"]] == ["prefill", "decode", "decode"]
    assert data["replicas"][0]["decode_steps"] == data["replicas"][1]["prompt_tokens"] == 0


def test_what_is_cut_and_rejected_is_said():
    result = run("llama-3-8b", "--rate", "100", "--duration", "2", "--queue-limit", "50")
    assert "were cut by the end of the run" in " ".join(result.stdout.split())
    result = run("llama-3-8b", "--rate", "5", "--requests", "4", "--isl", "9000")
    assert result.exit_code == 0
    told = " ".join(result.stdout.split())
    assert "4 requests were rejected: longer than the 8,192 tokens of the longest sequence" in told
    result = run("llama-3-8b", "--rate", "5", "--requests", "4", "--samples", "9", "--max-num-seqs", "8")
    assert "4 requests were rejected: of more samples than the 8 sequences" in " ".join(result.stdout.split())
    result = run("llama-3-8b", "--rate", "5", "--requests", "4", "--kv-tokens", "512")
    assert "4 requests were rejected: larger than the cache of 512 tokens" in " ".join(result.stdout.split())
    result = run("llama-3-8b", "--rate", "1000", "--requests", "30", "--queue-limit", "5")
    assert "requests were rejected: the queue was full" in " ".join(result.stdout.split())


@pytest.mark.parametrize(("arguments", "said"), [
    (["llama-3-8b"], "--rate, --concurrency, --arrivals and --trace; give one"),
    (["llama-3-8b", "--rate", "1", "--concurrency", "2"], "not rate and concurrency"),
    (["llama-3-8b", "--rate", "-1"], "rate must be "),
    (["llama-3-8b", "--rate", "nan"], "rate must be "),
    (["llama-3-8b", "--rate", "1", "--policy", "chunky"], "unknown policy 'chunky'; nearest: chunked"),
    (["llama-3-8b", "--rate", "1", "--router", "robin"], "unknown router 'robin'; nearest: round-robin"),
    (["llama-3-8b", "--rate", "1", "--order", "lifo"], "unknown order 'lifo'; nearest: fcfs, priority"),
    (["llama-3-8b", "--rate", "1", "--isl", "long"], "length"),
    (["llama-3-8b", "--rate", "1", "--classes", "a,b"], "classes must be shares"),
    (["llama-3-8b", "--rate", "1", "--replicas", "0"], "replicas"),
    (["llama-3-8b", "--rate", "1", "--acceptance", "2"], "acceptance must be from 0 to 1, not 2.0"),
    (["llama-3-8b", "--rate", "1", "--duration", "0"], "duration"),
    (["llama-3-8b", "--rate", "1", "--swap", "--host-gib", "inf"], "host-gib must be a finite number"),
    (["llama-3-8b", "--rate", "1", "--prefill-replicas", "1", "--link-gb-s", "0"], "link-gb-s must be above 0"),
    (["llama-3-8b", "--rate", "1", "--token-budget", "100", "--max-num-seqs", "200"], "token_budget=100"),
    (["llama-3-8b", "--concurrency", "0"], "concurrency"),
    (["llama-3-8b", "--rate", "1", "--requests", "-3"], "requests"),
    (["llama-3-8b", "--trace", "./nowhere.csv"], "nowhere.csv"),
    (["llama-3-8b", "--rate", "1", "--prefix-cache", "--cache-tier", "host"], "'host' is no name=size"),
    (["llama-3-8b", "--rate", "1", "--prefix-cache", "--cache-tier", "host=2"], "'2' must be above 0, with its unit"),
    (["llama-3-8b", "--rate", "1", "--prefix-cache", "--cache-tier", "host=1GB,fast"], "'fast' is no size, rate"),
    (["llama-3-8b", "--rate", "1", "--prefix-cache", "--cache-tier", "a=1GB,2TB"], "two values of capacity"),
    (["llama-3-8b", "--rate", "1", "--prefix-cache", "--cache-tier", "a=1GB,-2$/GBh"], "'-2$/GBh' must be at least 0"),
    (["llama-3-8b", "--rate", "1", "--prefix-cache", "--cache-tier", "a=1GB,-5ms"], "'-5ms' must be at least 0"),
    (["llama-3-8b", "--rate", "1", "--prefix-cache", "--cache-tier", "a=1GB", "--cache-tier", "a=2GB"], "twice"),
    (["lama-3-8", "--rate", "1"], "unknown model"),
    ([*SMALL, "--warmup", "60"], "warmup=60 leaves none of 60 requests to count"),
    (["llama-3-8b", "--rate", "1e-12", "--requests", "3"], "request 1 arrives after 10,000,000,000 s"),
])  # fmt: skip
def test_bad_input_is_one_line_that_names_it(arguments, said):
    assert said in refused(*arguments)


def test_what_does_not_fit_ends_with_3():
    result = run("llama-3-70b", "--rate", "1")
    assert result.exit_code == 3
    assert "no room for one request" in result.stderr


def test_what_has_no_effect_is_said():
    assert "swap has no host memory" in " ".join(run(*SMALL, "--swap").stdout.split())


def test_python_takes_the_same_keywords():
    outcome = rk.simulate("llama-3-8b", rate=8.0, requests=60, isl=256, osl="uniform:10-40")
    assert isinstance(outcome, Outcome)
    assert outcome.to_dict() == rk.simulate("llama-3-8b", rate=8, requests=60, isl=256, osl="uniform:10-40").to_dict()
    assert outcome.to_row()["ttft_p50_ms"] == outcome.ttft_ms.p50
    assert outcome.to_frame().loc[0, "finished"] == 60
    assert outcome.timeline_frame()["time_s"].is_monotonic_increasing
    with pytest.raises(rk.InputError, match="nearest: concurrency"):
        rk.simulate("llama-3-8b", concurency=3)


TOLD = """
import sys
from rooflinekit.cli import main
from rooflinekit.simulation.event_loop import Simulation

leave = Simulation._leave

def told(self, job, how):
    leave(self, job, how)
    if self.ledger.finished == 1:
        print("one is done", file=sys.stderr, flush=True)

Simulation._leave = told
main()
"""


@pytest.mark.skipif(os.name == "nt", reason="signals")
@pytest.mark.parametrize("kept", [False, True])
def test_an_interrupt_keeps_what_is_done_and_names_it(tmp_path, kept):
    command = [sys.executable, "-c", TOLD, "simulate", "llama-3-8b", "--rate", "100", "--requests", "10000000"]
    path = tmp_path / "out.txt"
    command += ["--out", str(path)] if kept else []
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True, preexec_fn=interruptible) as process:
        try:
            said = process.stderr.readline()
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert said == "one is done\n"
    assert process.returncode == 130
    named = f"; what was served until then is in {path}" if kept else ""
    assert err.splitlines()[-1] == f"rooflinekit: interrupted{named}"
    out = path.read_text() if kept else out
    assert "INTERRUPTED" in out
    assert "cut by an interrupt" in " ".join(out.split())


def test_each_attention_replica_has_its_own_budget_and_sequences():
    """Eight prompts of a whole budget, 0.2 ms apart: eight replicas compute one, then seven; one has eight steps."""
    kwargs = {"isl": 8192, "osl": 2, "arrivals": "burst:size=8", "requests": 8, "token_budget": 8192}
    eight, one = (rk.simulate("llama-3.1-8b", dp=dp, **kwargs) for dp in (8, 1))
    assert eight.ttft_ms.max < 2.2 / 8 * one.ttft_ms.max
    assert eight.inputs["max_num_seqs"] == 8 * one.inputs["max_num_seqs"]


@pytest.mark.parametrize("budget", [8192, 2048])
def test_no_attention_replica_computes_more_than_its_budget_in_a_step(budget):
    """Prompts of 5,089 tokens on four replicas that share nothing: two were whole on one, so that four bore 2.9 times.

    The knee knows that all steps are full; its law is approximate.
    """
    asked = {"isl": 5089, "osl": 1, "token_budget": budget}
    four, one = (
        rk.simulate("llama-3-8b", dp=dp, arrivals="burst:size=400", requests=400, **asked).request_rate for dp in (4, 1)
    )
    assert 3.85 * one < four < 4.15 * one
    assert four == pytest.approx(rk.estimate("llama-3-8b", dp=4, rate=1, **asked).load.knee_rate, rel=0.05)


@pytest.mark.parametrize(
    ("osl", "users", "told"), [("20", "4", True), ("uniform:10-30", "4", False), ("20", "1", False)]
)
def test_answers_of_one_length_are_said_to_keep_users_in_step(osl: str, users: str, told: bool) -> None:
    result = run("llama-3-8b", "--concurrency", users, "--requests", "12", "--isl", "64", "--osl", osl)
    assert ("equal lengths keep users in step" in " ".join(result.stdout.split())) is told


@pytest.mark.parametrize(("words", "said"), [
    ("--rate 5 --clean", "clean has no part here: it goes with trace"),
    ("--rate 5 --speed 2", "speed has no part here: it goes with trace"),
    ("--rate 5 --prefix-groups 4", "prefix_groups has no part here: it goes with shared_prefix"),
    ("--rate 5 --link-gb-s 50", "link_gb_s has no part here: it goes with prefill_replicas"),
    ("--rate 5 --acceptance 0.5", "acceptance has no part here: it goes with draft_tokens"),
    ("--rate 5 --router least-loaded", "router has no part here: it goes with replicas or prefill_replicas"),
    ("--rate 5 --host-gib 4", "host_gib has no part here: it goes with prefix_cache or swap"),
    ("--rate 5 --order priority", "order has no part here: it goes with classes or trace"),
    ("--rate 5 --image-size 64x64", "image_size has no part here: it goes with images"),
    ("--concurrency 2 --cv 3", "burstiness has no part here: concurrency decides it"),
    ("--rate 2 --sessions chat:turns=2 --cv 3", "burstiness has no part here: sessions decides it"),
    ("--rate 2 --sessions chat:turns=2 --shared-prefix 9", "shared_prefix has no part here: sessions decides it"),
])  # fmt: skip
def test_options_without_effect_are_noted(words, said):
    result = run("gpt2", "--requests", "3", "--isl", "20", "--osl", "uniform:2-4", *words.split())
    assert result.exit_code == 0
    assert said in " ".join(result.stdout.split())


def test_lengths_beside_a_trace_are_noted_and_fitting_options_are_not(tmp_path):
    trace = tmp_path / "t.csv"
    trace.write_text("time_s,isl,osl\n0,20,3\n1,20,3\n")
    assert "isl has no part here: trace decides it" in run("gpt2", "--trace", str(trace), "--isl", "9").stdout
    assert "has no part here" not in run("gpt2", "--trace", str(trace), "--speed", "2", "--clean").stdout


@pytest.mark.parametrize(("words", "said"), [
    ("--concurrency 100000000", "at most 10,000,000"),
    ("--arrivals burst:size=100000000 --requests 100000000", "at most 1,000,000"),
    ("--rate 1 --replicas 100000000", "replicas must be at most 1,000,000, not 100,000,000"),
    ("--rate 1 --replicas 20000", "one simulation has at most 10,000 replicas; --cells divides more of them"),
])  # fmt: skip
def test_limits_name_themselves(words, said):
    result = run("gpt2", *words.split())
    assert result.exit_code == 2
    assert said in result.stderr
