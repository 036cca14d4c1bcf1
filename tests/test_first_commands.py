"""First commands of a newcomer: on the default accelerator each ends in an answer, or names changes that do."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from rooflinekit.cli.app import app
from rooflinekit.cli.command import COMMANDS, MOST_SHOWN, find, first_options

MODELS = ("llama3-8b", "llama-3.3-70b", "llama-3.1-405b", "qwen3-8b", "qwen3-32b", "qwen3-235b-a22b", "deepseek-v3",
          "gpt-oss-120b", "mixtral-8x7b", "gemma-3-27b")  # fmt: skip
COMMON = ("estimate {}", "estimate {} --batch 64")
OTHERS = ("estimate {} --rate 2 --requests 60", "explain {}", "levers {} --gpus h200-sxm", "cost {}",
          "shapes {} --tokens 6",
          "simulate {} --rate 2 --requests 60", "launch {}", "sweep {} --batch 1,8")  # fmt: skip
PLANS = ("plan {} --rate 5",)


def run(line: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, line.split())
    return result.exit_code, result.stdout, result.stderr


def check(line: str) -> None:
    code, out, err = run(line)
    if code == 0:
        assert out
        return
    assert code in (3, 4), (line, code, err)
    told = re.split(r"\n(?:fits|narrower) ", f"{out}{err}")[0].replace("\n", " ")
    remedies = re.search(r"would fit: (.*?)(?: \(--allow-oom|; |$)", told)
    assert remedies, (line, out, err)
    for remedy in re.split(r", or ", remedies[1].strip()):
        again = run(f"{line} {remedy}")
        assert again[0] == 0, (line, remedy, again[2])


@pytest.mark.parametrize("model", MODELS)
def test_the_first_command_and_the_second(model: str) -> None:
    for line in COMMON:
        check(line.format(model))


@pytest.mark.slow
@pytest.mark.parametrize("model", [
    each if each in ("llama3-8b", "deepseek-v3", "gpt-oss-120b") else pytest.param(each, marks=pytest.mark.long)
    for each in MODELS
])  # fmt: skip
def test_the_next_eight_commands(model: str) -> None:
    for line in OTHERS:
        check(line.format(model))


@pytest.mark.long
@pytest.mark.parametrize("model", MODELS)
def test_a_plan_needs_a_rate_alone(model: str) -> None:
    for line in PLANS:
        check(line.format(model))


@pytest.mark.parametrize(
    ("line", "near"),
    [
        ("estimate lama3", "llama-3-8b, llama-3-70b"), ("estimate qwn3", "qwen3-0.6b"),
        ("estimate llama3-8b --gpu h300", "h100-sxm"), ("show h300", "h100-sxm"), ("estimate mixtrl", "mixtral-8x7b"),
    ],
)  # fmt: skip
def test_a_slip_gets_near_names(line: str, near: str) -> None:
    code, _, err = run(line)
    assert code == 2
    assert near in err.partition("nearest: ")[2]


def test_the_metric_of_explain_is_tpot_unless_told() -> None:
    assert run("explain llama3-8b")[1] == run("explain llama3-8b tpot")[1]


def test_a_load_without_numbers_gets_an_example() -> None:
    assert "such as --rate 10" in run("plan llama3-8b")[2]
    assert "such as --rate 2" in run("simulate llama3-8b")[2]


class TestHelp:
    @pytest.mark.parametrize("words", COMMANDS)
    def test_the_first_screen_has_few_options_and_says_where_the_others_are(self, words: str) -> None:
        options, shown = find(words).options, first_options(words)
        assert len(shown) <= MOST_SHOWN
        helped, whole = run(f"{words} --help")[1], run(f"{words} --help-all")[1]
        assert all(f"\n  --{name.replace('_', '-')}" in helped for name in shown)
        assert all(f"\n  --{name.replace('_', '-')}" in whole for name in options)
        more = len(options) - len(shown)
        assert (f"{more} more options: rooflinekit {words} --help-all" in helped) == (more > 0)

    @pytest.mark.parametrize("words", ["estimate", "plan", "simulate"])
    def test_an_example_stands_on_top(self, words: str) -> None:
        helped = run(f"{words} --help")[1]
        assert helped.index(f"  rooflinekit {words} llama") < helped.index("  MODEL ")
