"""The table of options: one spelling everywhere, units that people write, help, completion, keywords, schema."""

from __future__ import annotations

import inspect
import io
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import jsonschema
import pandas as pd
import pydantic
import pytest
from typer.testing import CliRunner

import rooflinekit as rk
from docs.generate.tables import schema
from rooflinekit.cli.app import app
from rooflinekit.cli.command import COMMANDS, Command, examples_of, find
from rooflinekit.estimation import scenario
from rooflinekit.estimation.frames import INPUT_COLUMNS
from rooflinekit.estimation.options import OptionRow, model_of, number_of, options_of, quantity
from rooflinekit.estimation.scenario import GROUPS, Scenario, SimulationOptions
from rooflinekit.model.types.errors import InputError, WorkloadError

DEPLOYED = (
    "estimate",
    "explain",
    "simulate",
    "shapes",
    "levers",
    "cost",
    "sweep",
    "plan",
    "launch",
    "report",
    "workbook",
)


def run(*words):
    return CliRunner().invoke(app, list(words))


@pytest.mark.parametrize(("text", "unit", "number"), [
    ("2K", "", 2000), ("2,000", "", 2000), ("2Ki", "", 2048), ("1.5M", "", 1.5e6), ("-1", "", -1), (".5", "", 0.5),
    ("20rps", "1/s", 20), ("20 req/s", "1/s", 20), ("60rpm", "1/s", 1), ("7200/h", "1/s", 2), ("20qps", "1/s", 20),
    ("1.5s", "ms", 1500), ("40ms", "ms", 40), ("500us", "ms", 0.5), ("1h", "s", 3600), ("2min", "s", 120),
    ("1h", "min", 60), ("20%", "share", 0.2), ("0.2", "share", 0.2), ("0.5kW", "W", 500), ("$2.50", "USD", 2.5),
    ("2.5USD/h", "USD", 2.5), ("64", "GiB", 64), ("2TiB", "GiB", 2048), ("400Gb/s", "GB/s", 50),
    ("inf", "s", float("inf")),
])  # fmt: skip
def test_numbers_take_the_units_that_people_write(text, unit, number):
    assert quantity(text, unit) == pytest.approx(number, rel=1e-15)


@pytest.mark.parametrize(("text", "unit"), [
    ("", ""), ("x", ""), ("1,00", ""), ("1 2", ""), ("20 apples", "1/s"), ("5 km", "ms"), ("5ms", "W"),
    ("--", ""), ("K", ""),
])  # fmt: skip
def test_what_is_no_number_is_refused(text, unit):
    with pytest.raises(ValueError, match="is not a number"):
        quantity(text, unit)


@pytest.mark.parametrize(("text", "value"), [("1_000", 1000), ("1,000", 1000), ("1K", 1000), ("-1", -1)])
def test_a_count_is_read_as_people_write_it(text, value):
    assert OptionRow("", kind="count").parse(text) == value


LINES = [
    "estimate llama3-8b --batch 2K --isl=2,000 --eager --kv fp8 --plots=here",
    "estimate --rate 20rps llama3-8b --cv 2 --ttft 1.5s --allow-oom",
    "explain llama3-8b tpot --depth 3 --users 8",
    "simulate llama3-8b --rate 4 --burstiness 3 --duration 1h --host-gib 80GB",
    "plan llama3-8b --price h100=2.5 --price l40s=0.9 --tp 1,2 --limit h100=16 --one-kind",
    "sweep - --batch 1:64*2 --set skew=0,1 --set cp=1,2 --resume",
    "compare a.json b.log --gpu h100 --isl 1K",
    "calibrate a.jsonl --gpu h100 --out b.yaml",
    "workbook --model a,b --tp 1,2 --price 2.5",
    "accuracy serving", "accuracy kernels a.csv b.csv --gpu mine.yaml", "show", "show h100 --format md",
    "validate --check", "launch --plan p.json --candidate 2", "report llama3-8b --against h200 --models a,b",
]  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_plain_lines_are_read_as_typer_reads_them(line, monkeypatch):
    words, seen = line.split(), []
    monkeypatch.setattr(Command, "call", lambda self, texts: seen.append((self.help, texts)) or 0)
    assert run(*words).exit_code == 0
    name = " ".join(words[:2]) if words[0] == "accuracy" else words[0]
    plain = find(name).words(words[name.count(" ") + 1 :])
    ((help, texts),) = seen
    assert help == find(name).help
    assert {key: value for key, value in texts.items() if value not in (None, False, [])} == plain


@pytest.mark.parametrize("words", [
    ["--help"], ["llama3-8b", "--bacth", "2"], ["llama3-8b", "--batch"], [], ["a", "b"], ["llama3-8b", "-x"],
    ["llama3-8b", "--eager=1"], ["llama3-8b", "--max_num_seqs", "2"],
])  # fmt: skip
def test_a_line_with_a_surprise_is_left_to_typer(words):
    assert find("estimate").words(words) is None


@pytest.mark.parametrize(("one", "other"), [
    (["estimate", "--rate", "4", "--burstiness", "2"], ["estimate", "--rate", "4rps", "--cv", "2"]),
    (["estimate", "--concurrency", "8"], ["estimate", "--users", "8"]),
    (["estimate", "--rate", "4", "--isl", "900", "--isl-cv", "1"],
     ["estimate", "--rate", "4", "--isl", "lognormal:mean=900,cv=1"]),
    (["simulate", "--rate", "4", "--requests", "30", "--cv", "2"],
     ["simulate", "--rate", "4", "--requests", "30", "--burstiness", "2"]),
    (["simulate", "--rate", "4", "--requests", "30", "--isl", "900", "--isl-cv", "1.0"],
     ["simulate", "--rate", "4", "--requests", "30", "--isl", "lognormal:mean=900,cv=1.0"]),
    (["cost", "--price", "2.5"], ["cost", "--price", "h100-sxm=$2.5"]),
    (["levers", "--price", "2.5", "--gpus", "l40s=9"], ["levers", "--price", "h100=2.5,l40s=9", "--gpus", "l40s"]),
    (["sweep", "--batch", "1,2", "--price", "2.5"], ["sweep", "--batch", "1:2", "--price", "h100=2.5"]),
    (["sweep", "--batch", "1K,2000"], ["sweep", "--set", "batch=1000,2K"]),
])  # fmt: skip
def test_the_same_thing_has_one_meaning_in_every_spelling(one, other):
    said = [run(words[0], "llama-3-8b", *words[1:], "--format", "csv") for words in (one, other)]
    assert [each.exit_code for each in said] == [0, 0], said[0].stderr + said[1].stderr
    rows = [pd.read_csv(io.StringIO(each.stdout)) for each in said]
    pd.testing.assert_frame_equal(*rows, rtol=1e-6)


def test_a_plan_takes_one_price_for_all():
    words = ["plan", "llama-3-8b", "--rate", "5", "--tp", "1", "--aggregated-only", "--format", "csv"]
    one, each = run(*words, "--price", "2.5"), run(*words, "--price", "h100-sxm=2.5")
    assert one.stdout == each.stdout
    assert one.exit_code == 0


def test_two_spellings_at_once_are_refused():
    for words, said in (
        (["--isl", "lognormal:mean=900,cv=1", "--isl-cv", "2", "--rate", "1"], "isl and isl_cv both say"),
        (["--isl", "lognormal:mean=900,cv=1"], "varies from request to request"),
    ):
        result = run("estimate", "llama3-8b", *words)
        assert (result.exit_code, said in result.stderr) == (2, True), result.stderr
    with pytest.raises(rk.InputError, match="cv and burstiness say the same thing"):
        rk.estimate("llama3-8b", rate=1.0, burstiness=2.0, **{"cv": 2.0})


@pytest.mark.parametrize("words", [["--price", "nosuch=2"], ["--price", "h100=x"], ["--price", "h100=1,h100=2"]])
def test_a_price_that_makes_no_sense_is_one_line(words):
    result = run("cost", "llama3-8b", *words)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("name", DEPLOYED)
def test_help_has_groups_and_two_examples(name):
    shown = run(name, "--help-all").stdout
    command = find(name)
    titles = [title for title in GROUPS if f"\n{title}:\n" in shown]
    assert sorted(titles, key=lambda title: shown.index(f"\n{title}:\n")) == titles
    assert max(map(len, shown.splitlines())) <= 110
    options = shown.partition("\nAssumed ")[0]
    assert len(options.splitlines()) <= 1.95 * len(command.options) + 25  # examples come first
    assert all(f" --{name.replace('_', '-')}" in shown and option.help.split()[0] in shown
               for name, option in command.options.items())  # fmt: skip
    assert {option.group for option in command.options.values()} == set(titles)
    assert len(examples_of(name)) == 2
    assert all(example.split()[:2] == ["rooflinekit", name] for example in examples_of(name))


def test_estimate_has_the_groups_that_a_newcomer_looks_for():
    groups = list(dict.fromkeys(option.group for option in find("estimate").options.values()))
    assert set(groups) == {"Workload", "Hardware", "Parallelism", "Formats", "Engine", "Speculation", "Load", "Output"}


@pytest.mark.parametrize("line", [example for words in COMMANDS for example in examples_of(words)])
def test_examples_are_read(line):
    words = shlex.split(line)[1:]
    name = " ".join(words[:2]) if words[0] == "accuracy" else words[0]
    command = find(name)
    assert len(f"  {line}") <= 80  # a terminal
    texts = command.words(words[name.count(" ") + 1 :])
    assert texts is not None
    for key, text in texts.items():
        command.value(key, text)


@pytest.mark.parametrize(("line", "offered"), [
    ("rooflinekit est", "estimate"), ("rooflinekit estimate llama-3.3", "llama-3.3-70b"),
    ("rooflinekit estimate llama3-8b --gpu h200", "h200-sxm"), ("rooflinekit simulate llama3-8b --engine sg", "sglang"),
    ("rooflinekit launch llama3-8b --kv fp8", "fp8_block"),
    ("rooflinekit plan llama3-8b --gpu l40s,h200", "l40s,h200-sxm"),
    ("rooflinekit estimate llama3-8b --format j", "json"),
])  # fmt: skip
def test_the_shell_completes(line, offered):
    extra = {"_ROOFLINEKIT_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    code = "from rooflinekit.cli import main; main()"
    result = subprocess.run([sys.executable, "-c", f"import sys; sys.argv[0] = 'rooflinekit'; {code}"],
                            env=os.environ | extra, capture_output=True, text=True, check=False)  # fmt: skip
    assert offered in result.stdout.splitlines(), result.stdout + result.stderr


@pytest.mark.parametrize(("function", "table"), [
    (rk.estimate, Scenario), (rk.explain, Scenario), (rk.simulate, SimulationOptions), (rk.cost, scenario.CostOptions),
    (rk.levers, scenario.LeversOptions), (rk.plan, scenario.PlanOptions), (rk.shapes, scenario.Shapes),
])  # fmt: skip
def test_functions_show_their_keywords(function, table):
    shown = inspect.signature(function).parameters
    rows = {name: option for name, option in options_of(table).items() if not option.hidden}
    assert set(rows) <= set(shown)
    assert all(shown[name].default == option.default for name, option in rows.items())


def test_tables_have_the_columns_of_the_scenario():
    assert set(INPUT_COLUMNS) == {"model", "gpu", *options_of(Scenario)}


def test_a_bound_without_a_help_ends_with_the_value():
    with pytest.raises(WorkloadError, match=r"^acceptance must be from 0 to 1, not 1\.5$"):
        number_of("acceptance", 1.5)


def test_every_default_passes_its_own_check():
    for kind in vars(scenario).values():
        if hasattr(kind, "__total__"):
            for name, option in options_of(kind).items():
                if option.default is not None:
                    assert option.check(name, option.default) == option.default
                assert option.help.endswith((".", "model."))


def test_the_schema_of_inputs_says_what_estimate_takes():
    model = {"model": "llama3-8b"}
    validator = jsonschema.Draft202012Validator(json.loads(schema()))
    validator.check_schema(validator.schema)
    validator.validate(model | {"gpu": "l40s", "batch": 32, "kv": "fp8", "rate": 2.5, "isl": "uniform:1-9"})
    for wrong in ({"batch": 0}, {"bacth": 1}, {"skew": 5.0}, {"rate": 0}, {"eager": "perhaps"}):
        assert not validator.is_valid(model | wrong), wrong
        with pytest.raises(pydantic.ValidationError):
            model_of(Scenario)(**wrong)


def test_the_published_schema_is_the_present_one():
    assert (Path(__file__).parents[1] / "docs" / "scenario.schema.json").read_text(encoding="utf-8") == schema()


def test_lengths_that_vary_need_requests() -> None:
    with pytest.raises(rk.InputError, match="isl=uniform:100-200 varies from request to request; add concurrency"):
        rk.estimate("llama-3-8b", isl="uniform:100-200")


def test_what_shapes_a_load_or_a_step_is_an_option_of_all_who_play_one():
    load = {*options_of(scenario.RequestsOptions), *options_of(scenario.Protocol), "concurrency"}
    step = {*options_of(scenario.SpeculationOptions), *options_of(scenario.Steps), *options_of(scenario.Adapters)}
    for table in (Scenario, SimulationOptions, scenario.LeversOptions, scenario.CostOptions):
        assert load | step <= options_of(table).keys(), table
    for table in (scenario.PlanOptions, scenario.LoadCase, scenario.RolloutCase):
        assert {"isl_cv", "osl_cv"} <= options_of(table).keys(), table
    assert {"seed", "isl_cv", "osl_cv", "burstiness"} <= find("workbook").options.keys()


def test_every_reader_of_lengths_reads_their_variation_alike():
    said, law = {"isl_cv": 1.0, "osl_cv": 0.5}, {"isl": "lognormal:mean=1024,cv=1", "osl": "lognormal:mean=256,cv=0.5"}
    one = {"tp": 1, "token_budget": 8192, "max_num_seqs": 256, "draft": "none"}
    for ask in (
        lambda given: rk.plan("llama-3-8b", rate=2.0, **one, **given).to_dict()["best"],
        lambda given: rk.cost("llama-3-8b", rate=2.0, seed=3, **given).prices,
        lambda given: rk.levers("llama-3-8b", concurrency=8, seed=3, gpus=["l40s"], **given).answer.ttft_ms,
        lambda given: rk.simulate("llama-3-8b", rate=2.0, seed=3, **given).ttft_ms.mean,
    ):
        assert ask(said) == ask(law) != ask({})


def test_seeds_are_those_of_estimate():
    """Of the same requests: `levers` plays what `estimate` plays, and `cost` prices what runs at once in it."""
    asked = {"osl_cv": 0.7, "seed": 5}
    now = rk.levers("llama-3-8b", concurrency=8, gpus=["l40s"], **asked).answer
    assert now.ttft_ms == rk.estimate("llama-3-8b", concurrency=8, **asked).ttft_ms
    assert rk.cost("llama-3-8b", rate=2.0, **asked).prices != rk.cost("llama-3-8b", rate=2.0, osl_cv=0.7).prices
    with pytest.raises(InputError, match="seed is of a load that is played"):
        rk.cost("llama-3-8b", concurrency=8, seed=5)
