"""The command line: answers, formats, exit codes, and one line for everything that goes wrong."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import smoke
from patience import PATIENCE
from typer.testing import CliRunner

import rooflinekit as rk
from rooflinekit.cli import output
from rooflinekit.cli.app import app
from rooflinekit.cli.command import COMMANDS, find, help_table
from rooflinekit.report.answers import document_of
from rooflinekit.report.document import CellTable, plain_text, wrapped
from rooflinekit.report.estimate import document
from rooflinekit.report.request import Waterfall

WIDE = [
    ["llama3-8b", "--batch", "32"],
    ["llama-3-70b", "--tp", "8"],
    ["deepseek-v3", "--gpu", "h200-sxm", "--tp", "8"],
    ["gpt-oss-120b"],
    ["mixtral-8x7b", "--tp", "2"],
    ["gemma-2-9b"],
    ["bloom-176b", "--tp", "8"],
]


def run(*arguments):
    return CliRunner().invoke(app, list(arguments))


def shell(*arguments, **options):
    """The same in a process of its own, as a user's shell starts it."""
    command = [sys.executable, "-m", "rooflinekit", *arguments]
    return subprocess.run(command, capture_output=True, encoding="utf-8", check=False, timeout=PATIENCE, **options)


def refused(result, code=2):
    """The one line on stderr of a failure."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("rooflinekit: ")
    assert result.stderr.endswith("\n")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr
    return result.stderr


# --- answers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", WIDE, ids=lambda a: a[0])
def test_the_table_fits_80_columns_and_answers_first(arguments):
    result = run("estimate", *arguments, "--kernels")
    assert result.exit_code == 0
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80, max(lines, key=len)
    head = lines[:6]
    assert any(line.startswith("TTFT") for line in head)
    assert any(line.startswith("TPOT") for line in head)
    assert re.search(r"^TTFT +[\d.,]+ (ms|s|µs)", "\n".join(head), re.MULTILINE)
    first_kernel = next(i for i, line in enumerate(lines) if line.startswith("kernel"))
    for word in ("tok/s", "fits"):
        assert next(i for i, line in enumerate(lines) if word in line) < first_kernel
    assert "\x1b" not in result.stdout


@pytest.mark.parametrize("arguments", [
    ["--batch", "1000000", "--isl", "100000", "--cached", "99999", "--weights", "fp8_block", "--kv", "fp8"],
    ["--batch", str(10**18), "--isl", str(10**18), "--osl", str(10**18)],
    ["--isl", "1500000", "--osl", "1000"],
], ids=["formats", "huge", "long"])  # fmt: skip
def test_absurd_questions_fit_80_columns_too(arguments):
    result = run("estimate", "llama-3-8b", "--allow-oom", *arguments)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80, max(lines, key=len)


def test_a_context_is_a_number_of_tokens():
    asked = ("estimate", "llama-3-8b", "--kernels")
    assert "context 1500500)" in run(*asked, "--allow-oom", "--isl", "1500000", "--osl", "1000").stdout
    assert "context 1024.5)" not in run(*asked, "--osl", "2").stdout
    assert "context 1025.5)" in run(*asked, "--osl", "3").stdout


def test_the_answer_is_plain_text_when_piped():
    result = shell("estimate", "llama3-8b", env=os.environ | {"FORCE_COLOR": "", "TERM": "xterm-256color"})
    assert result.returncode == 0
    assert "\x1b" not in result.stdout
    assert result.stderr == ""


def test_json_is_strict_and_says_what_the_table_says():
    def refuse(constant):
        raise AssertionError(constant)

    result = run("estimate", "llama3-8b", "--batch", "32", "--format", "json")
    data = json.loads(result.stdout, parse_constant=refuse)
    assert data["inputs"]["batch"] == 32
    shown = run("estimate", "llama3-8b", "--batch", "32").stdout
    assert f"{data['tpot_ms']:#.3g} ms" in shown


def test_csv_is_a_header_and_one_row():
    rows = list(csv.reader(io.StringIO(run("estimate", "llama3-8b", "--format", "csv").stdout)))
    assert len(rows) == 2
    row = dict(zip(*rows, strict=True))
    data = json.loads(run("estimate", "llama3-8b", "--format", "json").stdout)
    assert float(row["ttft_ms"]) == data["ttft_ms"]
    assert row["model"] == "llama-3-8b"
    assert row["batch"] == "1"


def test_markdown_has_tables():
    lines = run("estimate", "llama3-8b", "--format", "md").stdout.splitlines()
    assert any(re.fullmatch(r"\|(:?-+:?\|)+", line) for line in lines)
    assert any(line.startswith("| TTFT |") for line in lines)
    assert lines[:3] == ["## llama-3-8b on h100-sxm, vllm", "", lines[2]]
    assert lines[2].startswith("batch 1, 1024 tokens in")
    tables = [line.count("|") for line in lines if line.startswith("| ")]
    assert set(tables) == {5, 6}, "four columns of times and of what a decode step adds up from, five of advice"


def test_markdown_says_what_the_terminal_says():
    """Under load too: percentiles, the knee, memory."""
    said = run("estimate", "llama3-8b", "--rate", "5", "--format", "md").stdout
    shown = run("estimate", "llama3-8b", "--rate", "5").stdout
    for words in ("P95", "(knee, approximate)", "places taken", "prompts of others", "rooflinekit 0"):
        assert words in said
        assert words in shown


def test_an_estimate_is_one_screen_and_kernels_stand_below_it():
    short = run("estimate", "llama3-8b", "--batch", "32").stdout
    long = run("estimate", "llama3-8b", "--batch", "32", "--kernels").stdout
    assert len(short.splitlines()) <= 23  # of a terminal of 24
    assert max(map(len, short.splitlines())) <= 80
    assert "gate_up_proj" not in short
    assert "gate_up_proj" in long
    assert short.partition("memory ")[0] == long.partition("memory ")[0]
    assert run("estimate", "llama3-8b", "-v", "--batch", "32").stdout == long


def test_small_kernels_stand_in_one_line_with_their_sum():
    said = run("estimate", "deepseek-v3", "--gpu", "h200", "--tp", "8", "--batch", "64", "--kernels").stdout
    data = json.loads(
        run("estimate", "deepseek-v3", "--gpu", "h200", "--tp", "8", "--batch", "64", "--format", "json").stdout
    )
    step = data["decode"]
    small = [each for each in step["kernels"] if each["time_us"] < 10.0 * step["time_ms"]]
    (line,) = re.findall(r"^(\d+) others .* (\S+)ms +\S+ +(\d+) %$", said.partition("decode (")[2], re.MULTILINE)
    time_us = sum(each["time_us"] for each in small)
    assert (int(line[0]), line[1]) == (len(small), f"{time_us / 1e3:#.3g}")
    assert line[2] == f"{time_us / 10 / step['time_ms']:.0f}"
    shown = {*re.findall(r"^([a-z]\w+) +\d+ ", said.partition("decode (")[2], re.MULTILINE)}
    assert shown == {each["name"] for each in step["kernels"]} - {each["name"] for each in small}


def test_a_wide_terminal_gets_wider_bars_and_a_pipe_those_of_80_columns(monkeypatch):
    piped = run("estimate", "llama3-8b").stdout
    assert max(map(len, piped.splitlines())) <= 80
    monkeypatch.setenv("COLUMNS", "100")
    assert run("estimate", "llama3-8b").stdout == piped
    monkeypatch.setattr("sys.stdout", type("Terminal", (io.StringIO,), {"isatty": lambda _: True})())
    assert output.columns_of(sys.stdout, 80) == 100
    for columns, taken in ((40, 40), (30, 40), (200, 110)):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert output.columns_of(sys.stdout, 80) == taken
    wide = plain_text(document(rk.estimate("llama-3-8b")), 100).splitlines()
    (line,) = (line for line in wide if line.startswith("weights "))
    assert 96 <= len(line) <= 100
    assert max(map(len, wide)) <= 100


@pytest.mark.parametrize("command", ["estimate llama-3-8b --rate 3 --requests 40", "cost llama-3-8b --concurrency 8"])
def test_words_fit_a_terminal_of_40_columns_and_tables_one_of_80(command):
    function = {"estimate": rk.estimate, "cost": rk.cost}[command.split()[0]]
    answer = function("llama-3-8b", **({"rate": 3.0, "requests": 40} if "rate" in command else {"concurrency": 8}))
    for title, blocks in document_of(answer):
        assert max(map(len, wrapped(title, width=40)), default=0) <= 40
        for block in blocks:
            most = 80 if isinstance(block, CellTable) else 44 if isinstance(block, Waterfall) else 40
            assert max(map(len, block.text(40)), default=0) <= most, block.text(40)


def test_colours_are_for_terminals_that_want_them(monkeypatch):
    """Standard output is a terminal, and neither NO_COLOR nor TERM=dumb says otherwise (no-color.org)."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b" not in run("estimate", "llama3-8b").stdout
    monkeypatch.setattr("sys.stdout", type("Terminal", (io.StringIO,), {"isatty": lambda _: True})())
    assert output._in_colour()
    monkeypatch.setenv("NO_COLOR", "1")
    assert not output._in_colour()


def test_the_bound_has_no_interval():
    result = run("estimate", "llama3-8b", "--calibration", "none")
    assert "interval" not in result.stdout
    assert "datasheet" in result.stdout


@pytest.mark.parametrize("command", ["models", "gpus"])
def test_the_lists_are_lists(command):
    data = json.loads(run(command, "--format", "json").stdout)
    assert len(data) > 10
    assert all(row["name"] for row in data)
    table = run(command).stdout.splitlines()
    assert len(table) == len(data) + 1
    assert max(map(len, table)) <= 80
    assert len(run(command, "--format", "csv").stdout.splitlines()) == len(data) + 1


def test_show_has_the_keys_of_the_contract():
    data = json.loads(run("show", "llama3-8b", "--format", "json").stdout)
    facts = (data["params_total"], data["params_active"], data["kv_bytes_per_token"])
    assert facts == (8_030_261_248, 8_030_261_248, 131_072)
    assert "8,030,261,248" in run("show", "llama3-8b").stdout
    gpu = json.loads(run("show", "h100-sxm", "--format", "json").stdout)
    assert gpu["memory_bytes"] == 79.6 * 2**30
    assert all(fact["source"] for fact in gpu["facts"])


def test_the_template_of_a_gpu_is_a_gpu(tmp_path):
    file = tmp_path / "mine.yaml"
    assert run("show", "--template", "gpu", "--out", str(file)).exit_code == 0
    result = run("estimate", "llama3-8b", "--gpu", str(file))
    assert result.exit_code == 0, result.stderr


def test_the_template_of_a_model_is_a_model_and_so_are_its_options(tmp_path):
    """As it stands it has the shape of Llama-3-8B; with the lines that it leaves out, one of Mixtral's."""
    file = tmp_path / "mine.yaml"
    text = run("show", "--template", "model").stdout
    file.write_text(text, encoding="utf-8")
    assert json.loads(run("show", str(file), "--format", "json").stdout)["params_total"] == 8_030_261_248
    more = text.replace("model_type: llama ", "model_type: mixtral ").replace("  # num_", "  num_")
    file.write_text(more.replace("  # head_dim", "  head_dim"), encoding="utf-8")
    shown = json.loads(run("show", str(file), "--format", "json").stdout)
    assert shown["params_total"] - shown["params_active"] == 6 * 32 * 3 * 4096 * 14_336  # two of eight experts compute


def test_help_and_version():
    for arguments in (["--help"], ["estimate", "--help"], ["show", "--help"]):
        result = run(*arguments)
        assert result.exit_code == 0
        assert "Usage" in result.stdout
        assert result.stderr == ""
    assert re.fullmatch(r"rooflinekit \d+\.\d+\.\d+\n", run("--version").stdout)


def test_without_a_command_the_help_is_shown():
    result = run()
    assert "Usage" in result.stdout + result.stderr
    assert result.stderr.strip() != "rooflinekit:"


def test_a_sweep_takes_lists_of_words_and_names_the_wrong_one():
    result = run("sweep", "llama3-8b", "--gpu", "h100-sxm", "--tp", "2", "--all-reduce", "auto,ring", "--format", "csv")
    assert result.exit_code == 0, result.output
    assert [row["all_reduce"] for row in csv.DictReader(result.stdout.splitlines())] == ["auto", "ring"]
    result = run("sweep", "llama3-8b", "--gpu", "h100-sxm", "--tp", "2", "--all-reduce", "auto,rings")
    assert result.exit_code == 4
    assert "1 of 2 rows could not be answered: unknown all_reduce 'rings'; nearest: ring" in result.stderr


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("arguments", "said"), [
    (["lama3-8b"], "unknown model 'lama3-8b'; nearest: llama-3-8b"),
    (["llama3-8b", "--gpu", "h100-smx"], "unknown accelerator 'h100-smx'; nearest: h100-sxm"),
    (["llama3-8b", "--batch", "0"], "batch must be a whole number of at least 1, not 0"),
    (["llama3-8b", "--batch", "-1"], "batch must be a whole number of at least 1, not -1"),
    (["llama3-8b", "--isl", "0"], "isl must be a whole number of at least 1, not 0"),
    (["llama3-8b", "--osl", "0"], "osl must be a whole number of at least 1, not 0"),
    (["llama3-8b", "--cached", "-1"], "cached must be a whole number of at least 0, not -1"),
    (["llama3-8b", "--cached", "1024"], "cached=1024 leaves nothing of isl=1024"),
    (["llama3-8b", "--context", "0"], "context must be a whole number of at least 1"),
    (["llama3-8b", "--tp", "3"], "tp=3 does not divide llama-3-8b's 32 attention heads; use tp = 1, 2, 4 or 8"),
    (["llama3-8b", "--tp", "16"], "tp=16 exceeds the 8 accelerators that nvlink4 joins in a h100-sxm system"),
    (["llama3-8b", "--gpu", "rtx-4090", "--dp", "16"], "16 accelerators, but a rtx-4090 system joins 8"),
    (["llama3-8b", "--ep", "2"], "llama-3-8b has no experts; use ep=1"),
    (["llama3-8b", "--pp", "33"], "pp=33 exceeds llama-3-8b's 32 layers"),
    (["llama3-8b", "--weights", "fp7"], "unknown dtype 'fp7'; nearest: fp8"),
    (["llama3-8b", "--engine", "vlm"], "unknown engine 'vlm'; nearest: vllm"),
    (["llama3-8b", "--calibration", "h100"], "unknown calibration 'h100'"),
    (["llama3-8b", "--activations", "fp8"], "activations fp8 need quantised weights"),
    (["llama3-8b", "--gpu", "mi250x", "--weights", "fp8"], "mi250x has no fp8 arithmetic"),
    (["deepseek-v3", "--gpu", "mi250x", "--tp", "8"], "--activations bf16 dequantises the weights"),
    (["./nowhere.json"], "nowhere.json: no such file"),
    (["llama3-8b", "--gpu", "./nowhere.yaml"], "nowhere.yaml: no such file"),
    (["llama3-8b", "--calibration", "./nowhere.yaml"], "nowhere.yaml: no such file"),
])  # fmt: skip
def test_bad_input_is_one_line_that_names_it(arguments, said):
    assert said in refused(run("estimate", *arguments))


@pytest.mark.parametrize(("value", "option"), [
    ("2.5", "--batch"), ("many", "--batch"), ("", "--isl"), ("1.5e0", "--osl"), ("xml", "--format"), ("nan", "--tp"),
])  # fmt: skip
def test_a_value_of_the_wrong_kind_names_its_option(value, option):
    line = refused(run("estimate", "llama3-8b", option, value))
    assert option in line or f"rooflinekit: {option.removeprefix('--')} " in line
    assert "whole number" in line or "integer" in line or "'table', 'json', 'csv'" in line


def test_a_count_may_be_written_with_an_exponent():
    assert "1000 out" in run("estimate", "llama3-8b", "--osl", "1e3").stdout
    assert "must be at most 1,000,000,000, not 1,000,000,000,000" in refused(
        run("estimate", "llama3-8b", "--rate", "10", "--requests", "1e12")
    )


def test_a_fractional_batch_is_quoted_back():
    assert "2.5" in refused(run("estimate", "llama3-8b", "--batch", "2.5"))


@pytest.mark.parametrize(("command", "option"), [("cost", "rack"), ("cost", "carbon"), ("estimate", "power-cap")])
def test_a_number_that_is_too_large_is_told_the_largest(command, option):
    result = CliRunner().invoke(app, [command, "llama-3-8b", f"--{option}", "1e300"])
    assert result.exit_code == 2
    assert result.stderr == f"rooflinekit: {option} must be at most 1e+12, not 1e+300\n"


def test_a_long_name_in_a_table_is_cut_as_elsewhere(tmp_path):
    table = tmp_path / "rows.csv"
    table.write_text("model,gpu\n" + "x" * 5000 + ",h100-sxm\n", encoding="utf-8")
    result = CliRunner().invoke(app, ["sweep", str(table)])
    assert result.exit_code == 4
    assert len(result.stderr) < 400
    assert "x" * 200 not in result.stderr


def test_a_number_beyond_any_float_is_bad_input():
    assert "batch" in refused(run("estimate", "llama3-8b", "--batch", "1" + 400 * "0"))


@pytest.mark.parametrize(("arguments", "said"), [
    (["estimte", "llama3-8b"], "unknown command 'estimte'; nearest: estimate"),
    (["zzzz"], "unknown command 'zzzz'; nearest: "),
    (["estimate", "llama3-8b", "--gpu", "h100,h200"], "'h100,h200'; give one, `rooflinekit sweep`"),
    (["accuracy", "kernel"], "unknown command 'kernel'; nearest: kernels"),
    (["estimate", "llama3-8b", "--batchs", "2"], "--batch"),
    (["estimate"], "model"),
    (["estimate", "llama3-8b", "extra"], "extra"),
    (["estimate", "llama3-8b", "--batch"], "--batch"),
    (["plan", "llama3-8b", "--by", "foo"], "unknown quantity 'foo'; nearest: cost, gpus, energy"),
    (["plan", "llama3-8b", "--find", "foo"], "unknown quantity 'foo'; nearest: gpus, bandwidth, price"),
    (["validate", "--engine", "sglang"], "unknown engine to measure 'sglang'; nearest: llama.cpp, vllm"),
    (["estimate", "llama3-8b", "--offload-experts", "gpu"], "offload-experts 'gpu'; nearest: cpu, or leave it out"),
    (["compare", "x.json", "--osl-cv", "99"], "osl-cv must be from 0 to 10"),
    (["show"], "show needs the NAME"),
    (["show", "--template", "cpu"], "unknown template 'cpu'; nearest: gpu"),
    (["show", "h100-smx"], "unknown model or accelerator 'h100-smx'; nearest: h100-sxm"),
])  # fmt: skip
def test_a_command_line_that_makes_no_sense(arguments, said):
    assert said in refused(run(*arguments))


LLAMA = {
    "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 512, "vocab_size": 1000,
}  # fmt: skip
BERT = {
    "model_type": "bert", "architectures": ["BertModel"], "hidden_size": 768, "num_hidden_layers": 12,
    "num_attention_heads": 12, "intermediate_size": 3072, "vocab_size": 30522,
}  # fmt: skip
MIXTRAL = {**LLAMA, "model_type": "mixtral", "num_key_value_heads": 2}
TEXT = json.dumps(LLAMA)


@pytest.mark.parametrize(("content", "said"), [
    (json.dumps(BERT), "bert is an encoder"),
    (json.dumps(BERT | {"model_type": "xlm-roberta"}), "xlm-roberta is an encoder"),
    (json.dumps(BERT | {"model_type": "bart"}), "bart is an encoder-decoder"),
    (json.dumps(LLAMA | {"architectures": ["LlamaForTokenClassification"]}), "generates no text"),
    (json.dumps(MIXTRAL), "num_local_experts"),
    (json.dumps(MIXTRAL | {"num_local_experts": 8}), "num_experts_per_tok"),
    (json.dumps(LLAMA | {"num_local_experts": 8}), "num_local_experts"),  # never taken as dense
    (TEXT.replace("hidden_size", "hiden_size"), "hidden_size"),
    (TEXT[:40], "not valid JSON"),
    (TEXT[:-1], "not valid JSON"),
    ("", "empty"),
    ("[]", "list"),
    (b"\xff\xfe" + TEXT.encode("utf-16-le"), "not UTF-8"),
    (b'{"model_type": "ll\xe9ma"}', "not UTF-8"),
])  # fmt: skip
def test_a_model_file_that_cannot_be_trusted_is_refused_by_name(tmp_path, content, said):
    file = tmp_path / "config.json"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    for name in (str(file), str(tmp_path)):
        line = refused(run("estimate", name))
        assert said in line
        assert "config.json" in line


def test_a_model_file_of_ones_own_is_answered(tmp_path):
    (tmp_path / "config.json").write_text(TEXT)
    result = run("estimate", str(tmp_path), "--format", "json")
    assert json.loads(result.stdout)["model"] == tmp_path.name


@pytest.mark.parametrize(("old", "new", "said"), [
    ("bandwidth: 4 TB/s", "bandwith: 4 TB/s", "memory.bandwith: unknown key; nearest: bandwidth"),
    ("bandwidth: 4 TB/s", "bandwidth: 4", "memory.bandwidth"),
    ("bandwidth: 4 TB/s", "bandwidth: 4 TB", "memory.bandwidth"),
    ("  capacity: 95.6 GiB", "  # no capacity", "memory.capacity: is missing"),
])  # fmt: skip
def test_a_gpu_file_with_a_slip_is_refused_by_key(tmp_path, old, new, said):
    from rooflinekit.specs import accelerator_template

    text = accelerator_template()
    assert old in text
    file = tmp_path / "mine.yaml"
    file.write_text(text.replace(old, new))
    line = refused(run("estimate", "llama3-8b", "--gpu", str(file)))
    assert said in line
    assert "mine.yaml" in line


# --- memory ---------------------------------------------------------------------------------------------------------


def test_what_does_not_fit_ends_with_3_and_says_what_would():
    # 146.8 GB are needed (141.1 of weights, 2.2 of activations), and vLLM uses 0.92 of 85.0 GB and a CUDA context
    result = run("estimate", "llama-3-70b")
    assert (result.exit_code, result.stdout) == (3, "")
    line, *others = result.stderr.splitlines()
    assert others[0].startswith("fits ") and others[-1] == "`rooflinekit gpus --fits llama-3-70b` has all"
    for part in ("does not fit", "146.8 GB", "78.8 GB", "68.0 GB too little", "--tp 2", "--weights fp8", "--allow-oom"):
        assert part in line


def test_what_times_rest_on_is_said_beside_them():
    own, other = (run("estimate", "llama3-8b", "--gpu", gpu).stdout for gpu in ("h100", "mi300x"))
    assert "), measured;" in own
    assert "), stand-in;" in other
    table = run("sweep", "llama3-8b", "--gpu", "h100,mi300x,v100x", "--batch", "8").stdout
    assert [line.split("  ")[0] for line in table.splitlines() if "stand-in" in line] == ["mi300x"]
    assert sum("measured" in line for line in table.splitlines()) == 1
    assert "evidence measured" in run("sweep", "llama3-8b", "--batch", "1,8").stdout


def test_a_sweep_says_which_prices_it_leaves_and_which_are_unlike(tmp_path: Path) -> None:
    prices = tmp_path / "prices.csv"
    prices.write_text("name,term,low,high,source\nh100-sxm,on-demand,2,3,mine\nl40s,on-demand,1,2,mine\n")
    told = " ".join(run("sweep", "llama3-8b", "--gpu", "h100-sxm,h200-sxm", "--price", str(prices)).stderr.split())
    assert "the price of l40s is not used" in told
    assert "not like for like, an hour: h100-sxm on-demand $2.5, h200-sxm a catalogue quote $4.54" in told
    assert "not like for like" not in run("sweep", "llama3-8b", "--gpu", "h100-sxm,h200-sxm", "--price", "2").stderr


def test_a_sweep_whose_rows_all_fail_says_so():
    result = run("sweep", "llama3-8b", "--batch", "x")
    assert result.exit_code == 4
    assert result.stdout == "model llama3-8b, batch x\n\nno row has an answer\n"


def test_allow_oom_answers_and_marks_it():
    result = run("estimate", "llama-3-70b", "--allow-oom")
    assert result.exit_code == 0
    assert "DOES NOT FIT" in result.stdout
    data = json.loads(run("estimate", "llama-3-70b", "--allow-oom", "--format", "json").stdout)
    assert data["memory"]["fits"] is False
    assert any("does not fit" in warning for warning in data["warnings"])


def test_a_context_beyond_the_maximum_is_a_note():
    result = run("estimate", "llama3-8b", "--isl", "9000")
    assert result.exit_code == 0
    assert "exceed llama-3-8b's maximum context of 8192" in " ".join(result.stdout.split())


# --- files ----------------------------------------------------------------------------------------------------------


def test_out_writes_what_would_be_printed_and_never_overwrites(tmp_path):
    file = tmp_path / "answer.json"
    result = run("estimate", "llama3-8b", "--format", "json", "--out", str(file))
    assert (result.exit_code, result.stdout) == (0, "")
    written = file.read_text(encoding="utf-8")
    assert written == run("estimate", "llama3-8b", "--format", "json").stdout
    line = refused(run("estimate", "gpt2", "--out", str(file)))
    assert "answer.json exists; add --force" in line
    assert file.read_text(encoding="utf-8") == written
    assert run("estimate", "gpt2", "--out", str(file), "--force").exit_code == 0
    assert file.read_text(encoding="utf-8") != written


@pytest.mark.parametrize("target", ["no-such-folder/answer.json", "."])
def test_out_that_cannot_be_written_is_one_line(tmp_path, target):
    refused(run("estimate", "llama3-8b", "--out", str(tmp_path / target)))
    refused(run("estimate", "llama3-8b", "--out", str(tmp_path), "--force"))


# --- the process ----------------------------------------------------------------------------------------------------

PROBE = """
import sys
sys.argv = ["rooflinekit", "estimate", "llama3-8b", "--batch", "32"]
from rooflinekit.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code
heavy = {"pandas", "matplotlib", "torch", "numpy", "scipy", "pyarrow"} & {name.split(".")[0] for name in sys.modules}
sys.exit(f"imported: {heavy}" if heavy else 0)
"""


def test_one_estimate_imports_nothing_heavy():
    result = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert result.returncode == 0, result.stderr


INTERRUPTED = """
import sys
import rooflinekit.model.operating_point as point
def interrupt(*_):
    raise KeyboardInterrupt
point.Predictor.evaluate = interrupt
sys.argv = ["rooflinekit", "estimate", "llama3-8b"]
from rooflinekit.cli import main
main()
"""


def interrupted():
    return subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False, timeout=PATIENCE
    )


def test_an_interrupt_ends_with_130_and_no_traceback():
    result = interrupted()
    assert result.returncode == 130
    assert result.stdout == ""
    assert "Traceback" not in result.stderr


def test_an_interrupt_is_said():
    assert interrupted().stderr == "rooflinekit: interrupted\n"


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
def test_a_signal_while_it_works_leaves_no_traceback_of_ours():
    process = subprocess.Popen(
        [sys.executable, "-m", "rooflinekit", "models"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    time.sleep(0.15)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode in (130, -signal.SIGINT, 0, 1)
    if process.returncode == 130:
        assert "Traceback" not in errors


def piped_into_nothing():
    command = [sys.executable, "-m", "rooflinekit", "gpus", "--format", "json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    return process.wait(timeout=PATIENCE), errors


@pytest.mark.skipif(sys.platform == "win32", reason="pipes break differently")
def test_a_reader_that_goes_away_is_met_with_silence():
    _, errors = piped_into_nothing()
    assert errors == ""


@pytest.mark.skipif(sys.platform == "win32", reason="pipes break differently")
def test_a_reader_that_goes_away_is_no_internal_error():
    code, _ = piped_into_nothing()
    assert code == 0


def test_an_internal_error_is_one_line_with_1(monkeypatch):
    from rooflinekit.model.operating_point import Predictor

    def bug(*_):
        raise RuntimeError("a\nbug")

    monkeypatch.setattr(Predictor, "evaluate", bug)
    assert "please report: RuntimeError: a bug" in refused(run("estimate", "llama3-8b"), code=1)


def test_it_runs_from_any_folder_and_as_a_module(tmp_path):
    result = shell("estimate", "llama3-8b", "--format", "json", cwd=tmp_path)
    assert result.returncode == 0
    assert json.loads(result.stdout)["model"] == "llama-3-8b"


@pytest.mark.parametrize("encoding", [
    "utf-8",
    "cp1252",  # a pipe on Windows
    "ascii",
])  # fmt: skip
def test_the_output_survives_any_encoding_of_the_terminal(tmp_path, encoding):
    plain = os.environ | {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    command = [sys.executable, "-m", "rooflinekit", "estimate", "llama3-8b"]
    result = subprocess.run(command, capture_output=True, check=False, env=plain, cwd=tmp_path, timeout=PATIENCE)
    assert result.returncode == 0, result.stderr
    assert b"TTFT" in result.stdout


@pytest.mark.parametrize("words", [
    ("estimate", "llama3-8b", "--plots"), ("simulate", "llama3-8b", "--rate", "1", "--plots"),
    ("report", "llama3-8b", "--out", "x.html", "--plots"), ("launch", "llama3-8b", "--out"), ("validate", "--out"),
])  # fmt: skip
def test_a_folder_without_a_name_is_not_the_current_one(words, tmp_path, monkeypatch):
    """An unset variable in a script must not fill the folder that it runs in."""
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, [*words, ""])
    assert result.exit_code == 2
    assert "the name is empty" in result.output
    assert list(tmp_path.iterdir()) == []


def process(*words, stdout=subprocess.PIPE, **more):
    """A command as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "rooflinekit", *words], stdout=stdout, stderr=subprocess.PIPE, text=True, check=False,
        timeout=PATIENCE, **more,
    )  # fmt: skip


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full device here")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_output_that_is_full_is_an_error(unbuffered):
    with Path("/dev/full").open("w") as full:
        ended = process("estimate", "gpt2", "--format", "json", stdout=full,
                        env=os.environ | {"PYTHONUNBUFFERED": unbuffered})  # fmt: skip
    assert (ended.returncode, ended.stderr) == (2, "rooflinekit: the standard output: No space left on device\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full device here")
def test_a_help_that_has_no_room_is_an_error_of_one_line():
    """Python said at the end that it could not flush, and ended with 120."""
    with Path("/dev/full").open("w") as full:
        ended = process("--help", stdout=full, env=os.environ | {"PYTHONUNBUFFERED": ""})
    assert ended.returncode == 2
    assert ended.stderr.splitlines() == [ended.stderr.rstrip()]
    assert ended.stderr.endswith(": No space left on device\n")


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on files")
def test_an_unbuffered_output_is_whole_or_an_error(tmp_path):
    """A disk that takes a part of the answer: the kernel writes less than it was given, and says how much."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))"
    code = f"import signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); {limit}\n"
    code += "sys.argv = ['rooflinekit', 'estimate', 'gpt2', '--format', 'json']\n"
    code += "from rooflinekit.cli import main; main()"
    with (tmp_path / "out.json").open("w") as file:
        ended = subprocess.run([sys.executable, "-u", "-c", code], stdout=file, stderr=subprocess.PIPE, text=True,
                               check=False, timeout=PATIENCE)  # fmt: skip
    assert ended.returncode == 2
    assert "the standard output: File too large" in ended.stderr


@pytest.mark.parametrize("words", [["estimate", "gpt2"], ["--version"]])
def test_a_closed_output_is_an_error(words):
    code = "import os, sys; os.close(1); "
    code += f"os.execv(sys.executable, [sys.executable, '-m', 'rooflinekit', *{words}])"
    ended = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, check=False,
                           timeout=PATIENCE)  # fmt: skip
    assert (ended.returncode, ended.stderr) == (2, "rooflinekit: the standard output is closed; give --out FILE\n")


@pytest.mark.parametrize("words", [["--version"], ["--help"]])
def test_a_reader_that_goes_away_from_a_help_is_no_error(words):
    reading, writing = os.pipe()
    os.close(reading)
    ended = process(*words, stdout=writing)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (0, "")


EARLY = """
import builtins, sys
found = builtins.__import__
def interrupted(name, *rest, **more):
    if name.startswith("rooflinekit.cli.run"):
        raise KeyboardInterrupt
    return found(name, *rest, **more)
from rooflinekit.cli import main
builtins.__import__ = interrupted
main()
"""


@pytest.mark.parametrize("early", [
    EARLY,
    EARLY.replace("cli.run", "cli.output"),  # by way of another module
    EARLY.replace("raise KeyboardInterrupt", "raise RuntimeError from KeyboardInterrupt()"),  # within a class
    INTERRUPTED.replace("raise KeyboardInterrupt", "raise RuntimeError from KeyboardInterrupt()"),
])  # fmt: skip
def test_an_interrupt_while_modules_are_loaded_is_one_line(early):
    ended = subprocess.run([sys.executable, "-c", early], capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert (ended.returncode, ended.stderr) == (130, "rooflinekit: interrupted\n")


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGTERM")
def test_a_terminated_command_ends_as_an_interrupted_one():
    code = INTERRUPTED.replace(
        "    raise KeyboardInterrupt", "    import os, signal; os.kill(os.getpid(), signal.SIGTERM)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "rooflinekit: interrupted\n")


def test_names_cannot_steer_the_terminal(tmp_path):
    """Escape sequences of a path are shown, in the answer and in messages; JSON stays JSON."""
    folder = tmp_path / "a\x1b[2Jb\u202e\x9b"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({
        "model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2,
        "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1000, "torch_dtype": "bfloat16",
        "max_position_embeddings": 2048, "architectures": ["LlamaForCausalLM"],
    }))  # fmt: skip
    steering = ("\x1b", "\u202e", "\x9b")
    for style in ("table", "md", "json"):
        result = run("estimate", str(folder), "--isl", "16", "--format", style)
        assert result.exit_code == 0
        assert not any(letter in result.stdout for letter in steering)
        assert "[2Jb" in result.stdout
    assert json.loads(result.stdout)["model"].startswith("a\x1b[2Jb")
    assert not any(letter in run("estimate", "x\x1b[2J", "--batch", "\x9b1").stderr for letter in steering)


def test_a_very_long_value_does_not_fill_the_screen():
    line = refused(run("estimate", "x" * 100_000))
    assert len(line) < 300
    assert line.startswith("rooflinekit: unknown model 'xxx")


def test_the_help_groups_every_command() -> None:
    lines = CliRunner().invoke(app, ["--help"]).output.splitlines()
    heads = [line.removesuffix(":") for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert heads == [*help_table()["panels"], "Options"]
    assert "  --version                Print the version." in lines  # no kind of value beside what takes none
    panels = help_table()["panels"].values()
    assert {words.split()[0] for words in COMMANDS} == {name for names in panels for name in names}


@pytest.mark.parametrize(("words", "said"), [
    (["estimate", "llama3-8b", "--tensor-parallel-size", "2"], "--tensor-parallel-size; here it is --tp"),
    (["estimate", "llama3-8b", "--dtype=fp8"], "--dtype; here it is --weights, --activations and --kv"),
    (["estimate", "gpt-4"], "unknown model 'gpt-4'; nearest: gpt2"),
])  # fmt: skip
def test_what_other_tools_call_it_is_translated(words: list[str], said: str) -> None:
    told = CliRunner().invoke(app, words)
    assert told.exit_code == 2 and said in told.output and len(told.output.splitlines()) == 1


# --- notes ----------------------------------------------------------------------------------------------------------

NOTED = [
    "estimate gpt-oss-20b --weights int4", "estimate awq", "estimate h100.json --weights 2bpw",
    "show gemma-3-27b", "show h100", "show h100.json", "shapes gpt2 --tokens 4", "explain gpt-oss-20b tpot",
    "simulate gpt-oss-20b --rate 4 --requests 20", "cost gpt-oss-20b", "sweep gpt-oss-20b --batch 1,8",
    "compare bench.json --gpu h100-sxm --tp 1", "guard bench.json --gpu h100-sxm --tp 1",
    "launch gpt-oss-20b --batch 32", "models", "trace few.csv",
    "compare start.log --gpu l40s --tp 1",
    "accuracy kernels gemm.csv", "accuracy serving serving.csv",
    "accuracy memory memory.csv", "accuracy energy energy.csv", "accuracy league serving.csv",
    pytest.param("estimate llama3-8b --rate 4", marks=pytest.mark.slow),
    pytest.param("gpus --fits awq", marks=pytest.mark.slow),
    pytest.param("verify bench.json --gpu h100-sxm --tp 1", marks=pytest.mark.slow),
    pytest.param("watch day.prom --gpu h100-sxm --tp 1", marks=pytest.mark.slow),
    pytest.param("levers gpt-oss-20b", marks=pytest.mark.slow),
    pytest.param("plan gpt-oss-20b --rate 4 --slo tpot<40ms", marks=pytest.mark.slow),
]  # fmt: skip


def fragments(printed):
    """What the notes of an answer say, in parts: some are put together from several facts; hints are no notes."""
    for noted in re.findall(r"^note:? +(.*)$", printed, re.M):
        for part in re.split(r": | \(|\)|; ", noted):
            if len(part) > 20 and not re.search(r"`|-v shows|--help|settings were tried|\$\d", part):
                yield part


def texts(value):
    if isinstance(value, str):
        yield " ".join(value.split())
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from texts(each)


def test_every_command_that_answers_in_json_is_asked_for_its_notes():
    lines = [line if isinstance(line, str) else line.values[0] for line in NOTED]
    answers = {words for words in COMMANDS if "format" in find(words).options}
    assert {words for words in answers if not any(f"{line} ".startswith(f"{words} ") for line in lines)} == set()


@pytest.mark.parametrize("line", NOTED)
def test_json_carries_every_note_that_the_table_prints(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(output, "columns_of", lambda *_: 10_000)
    sizes = {
        "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 2, "num_attention_heads": 32,
        "intermediate_size": 8192, "vocab_size": 32000, "max_position_embeddings": 4096, "torch_dtype": "bfloat16",
        "vision_config": {"model_type": "brandnew"},
    }  # fmt: skip
    for name, method in (
        ("awq", {"quant_method": "awq", "bits": 4, "painted": 1}),
        ("h100.json", {"quant_method": "aqlm"}),
    ):
        path = tmp_path / name if name.endswith(".json") else tmp_path / name / "config.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(sizes | {"quantization_config": method}), encoding="utf-8")
    bench = {
        "backend": "vllm", "model_id": "meta-llama/Meta-Llama-3-8B", "num_prompts": 100, "request_rate": "inf",
        "completed": 100, "total_input_tokens": 102400, "total_output_tokens": 12800, "burstiness": 1.0,
        "mean_ttft_ms": 100.0, "median_ttft_ms": 100.0, "mean_tpot_ms": 9.0, "median_tpot_ms": 9.0,
        "max_concurrency": 32, "duration": 3.9, "request_throughput": 25.6, "output_throughput": 3282.0,
        "total_token_throughput": 29500.0,
    }  # fmt: skip
    smoke.write_files(tmp_path)
    (tmp_path / "bench.json").write_text(json.dumps(bench), encoding="utf-8")
    (tmp_path / "few.csv").write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,900,200\n1.0,900,200\n")
    (tmp_path / "start.log").write_text(
        "Initializing a V1 LLM engine (v0.19.0) with config: model='meta-llama/Meta-Llama-3-8B', max_seq_len=8192, "
        "quantization=fbgemm_fp8\nCompiling a graph for compile range\nModel loading took 50.0 GiB memory\n"
        "GPU KV cache size: 148,816 tokens\nMaximum concurrency for 8,192 tokens per request: 99x\n"
    )
    table, document = run(*line.split()), run(*line.split(), "--format", "json")
    assert table.stdout and document.stdout, table.stderr + document.stderr
    carried = "\n".join(texts(json.loads(document.stdout)))
    assert [part for part in fragments(table.stdout) if " ".join(part.split()) not in carried] == []
