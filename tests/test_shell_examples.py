"""Every `rooflinekit` line of a shell block in the documents, and of the table in README.md, runs.

They run in a folder that holds the files that they name; the numbers in these files are invented. Lines of `validate`,
lines that read what it measured, and lines that ask running servers are not run here: test_docs.py checks their
options, tests/validate runs the same on small shapes, and test_watch.py asks a server of its own. Sheets of capacity
workbooks stay empty, since writing them takes most of a minute; test_capacity_workbook.py looks at them. Plans play a
tenth of the requests with one setting a split, and `accuracy serving` reads a few rows; tests/planning and
test_accuracy_serving.py do it all.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from test_compare import FILES, VLLM
from test_docs import ROOT, TEXTS, blocks
from test_guard import pytest_benchmark
from test_watch import AN_HOUR, NOTHING, SPAN, STARTS, exposition
from typer.testing import CliRunner

from rooflinekit.cli.app import app
from rooflinekit.decision.planning import demand
from rooflinekit.evidence import accuracy_serving
from rooflinekit.evidence.exposition import scrape_text
from rooflinekit.load import answer
from rooflinekit.report.workbook import write
from rooflinekit.specs import accelerator_template

MEASURED = ("here/", "measured/", "kernels.yaml")
"""Made by `rooflinekit validate`."""


def lines(block: str) -> list[list[str]]:
    """The words of its lines that are run."""
    split = [shlex.split(line, comments=True) for line in block.replace("\\\n", " ").splitlines()]
    return [
        words
        for words in split
        if words[:1] == ["rooflinekit"]
        and words[1] != "validate"
        and not any(word.startswith((*MEASURED, "http://", "--follow")) for word in words)  # a look that goes on
    ]


def spec_of(page: str) -> str:
    """The YAML example of a page."""
    return TEXTS[page].split("```yaml\n")[1].split("```")[0]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a plan and the answers of a sweep, as the commands write them."""
    folder = tmp_path_factory.mktemp("made")
    plan = "plan llama-3-8b --gpu h100,a100-sxm --rate 5 --aggregated-only --format json --out"
    for command in (f"{plan} {folder}/plan.json", f"sweep llama3-8b --batch 1,8 --out {folder}/results.csv"):
        result = CliRunner().invoke(app, shlex.split(command))
        assert result.exit_code == 0, result.stderr
    return folder


@pytest.fixture
def folder(tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of a reader: a model, a chip, benchmark files, a log, tables, a trace."""
    runs = {"bench": 32, "result": 32, "run1": 8, "run2": 16, "run3": 32, "run4": 24}
    files: dict[str, str] = {
        **{
            f"{name}.json": json.dumps(VLLM | {"max_concurrency": users, "output_throughput": 80.0 * users})
            for name, users in runs.items()
        },
        **{f"{name}.json": json.dumps(pytest_benchmark()) for name in ("main", "now")},
        "server.log": STARTS["vllm"][0],
        "requests.jsonl": json.dumps(SPAN),
        "day.prom": scrape_text(exposition(NOTHING), 0.0) + scrape_text(exposition(AN_HOUR), 60.0),
        "conversation.jsonl": "".join(
            f'{{"timestamp": {1000 * turn}, "input_length": {512 * turn}, "output_length": 50, '
            f'"hash_ids": {[*range(turn)]}}}\n'
            for turn in range(1, 60)
        ),
        "requests.csv": "arrived_at,num_prefill_tokens,num_decode_tokens\n"
        + "".join(f"{number}.0,{900 + number % 60},200\n" for number in range(3600)),
        **{
            f"{place}{name}": (ROOT / "docs" / name).read_text(encoding="utf-8")
            for name in ("day.csv", "prices.csv", "own.yaml", "classes.yaml")
            for place in ("", "docs/")
        },
        "mlperf_log_summary.txt": FILES["mlperf_log_summary.txt"],
        "my-chip.yaml": accelerator_template(),
        "my-model.yaml": spec_of("docs/spec-files.md").replace("my-model-7b", "my-model"),
        "conversation.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        + "".join(f"2024-05-10 00:00:{second:02}.0,{900 + second},200\n" for second in range(60)),
        "pasted.md": "| users | TTFT (ms) | TPOT (ms) | isl | osl |\n|-|-|-|-|-|\n| 8 | 90 | 7 | 1024 | 256 |\n",
        "mine.csv": "".join((ROOT / "validate" / "published.csv").read_text(encoding="utf-8").splitlines(True)[:6]),
        **{path.name: path.read_text(encoding="utf-8") for path in made.iterdir()},
    }
    (tmp_path / "my-model").mkdir()
    (tmp_path / "docs").mkdir()
    config: Any = yaml.safe_load(spec_of("docs/spec-files.md"))["config"]
    files["my-model/config.json"] = json.dumps(config)
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    scenarios = pd.DataFrame({"model": "llama-3-8b", "gpu": ["h100-sxm", "l40s"], "batch": 8})
    scenarios.to_csv(tmp_path / "scenarios.csv", index=False)
    scenarios.to_excel(tmp_path / "scenarios.xlsx", index=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(write, "_fill", lambda *_: None)
    monkeypatch.setattr(accuracy_serving, "published_table", lambda: tmp_path / "mine.csv")
    fewer = answer.STEADY // 10
    for module in (answer, demand):
        monkeypatch.setattr(module, "STEADY", fewer)
    return tmp_path


LONG = {  # plans and fits: ten seconds each
    "docs/cli.md-5", "docs/cli.md-18", "docs/fit-back.md-0", "docs/plan.md-5", "docs/plan.md-10",
}  # fmt: skip


@pytest.mark.parametrize(
    ("page", "block"),
    [
        pytest.param(page, block, id=f"{page}-{number}", marks=[pytest.mark.long] * (f"{page}-{number}" in LONG))
        for page, number, block in blocks("sh")
        if lines(block)
    ],
)
def test_shell_blocks_run(page: str, block: str, folder: Path) -> None:
    """Line after line; what an earlier one writes over is told to. A `>` takes what the command prints."""
    for line in lines(block):
        words, target = (line[: line.index(">")], line[-1]) if ">" in line else (line, "")
        if words[1] == "plan" and "--aggregated-only" not in words and "--classes" not in words:
            words.append("--aggregated-only")  # pools take as long again
        if words[1] == "plan" and not {"--max", "--find", "--classes", "--token-budget"} & {*words}:
            words += ["--token-budget", "8192", "--max-num-seqs", "256"]  # in place of each of eight settings
        for name in words[words.index("--out") + 1 :][:1] if "--out" in words else ():
            (folder / name).unlink(missing_ok=True)
        result = CliRunner().invoke(app, words[1:])
        assert result.exit_code == 0, f"{page}: {shlex.join(words)}: {result.stderr}"
        if target:
            (folder / target).write_text(result.stdout, encoding="utf-8")


@pytest.mark.parametrize(
    "line",
    [*filter(lines, re.findall(r"^\| \[.*?`(rooflinekit [^`]+)`", TEXTS["README.md"], re.MULTILINE))],
)
def test_commands_of_the_table_run(line: str, folder: Path) -> None:
    result = CliRunner().invoke(app, shlex.split(line)[1:])
    assert result.exit_code == 0, f"{line}: {result.stderr}"
