"""The documents are true: code runs, outputs are real, links resolve, every JSON key is explained.

`python tests/test_docs.py` pastes the present outputs into the console blocks.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.main import get_command
from typer.testing import CliRunner

import rooflinekit as rk
from rooflinekit.cli.app import app
from rooflinekit.cli.command import find
from rooflinekit.estimation.frames import INPUT_COLUMNS, RESULT_COLUMNS
from rooflinekit.report.schemas import SCHEMAS
from rooflinekit.specs import names

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
TEXTS = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in PAGES}

FIGURES = (ROOT / "docs" / "figures.py").read_text(encoding="utf-8")

BLOCK = re.compile(r"^```([\w{}-]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHOWN = re.compile(r"^```python\n([^`]*)^```\n\n```output\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)|^\[[^\]\n]+\]: (\S+)$", re.MULTILINE)
COMMAND = re.compile(r"^\$ (.+)$", re.MULTILINE)


def blocks(language: str) -> list[tuple[str, int, str]]:
    """Every block of a language: its page, its number there, its text."""
    return [
        (page, number, text)
        for page, content in TEXTS.items()
        for number, (kind, text) in enumerate(BLOCK.findall(content))
        if kind == language
    ]


def output_of(command: str) -> str:
    """What a `rooflinekit …` command prints, errors included."""
    words = command.split()
    assert words[0] == "rooflinekit"
    with contextlib.chdir(ROOT):
        run = CliRunner().invoke(app, words[1:], env={"COLUMNS": "80", "NO_COLOR": "1"})
    return run.stdout + run.stderr


def real(block: str) -> str:
    """A console block with its commands' present outputs."""
    return "".join(f"$ {command}\n{output_of(command)}" for command in COMMAND.findall(block))


@pytest.mark.parametrize("page", dict.fromkeys(page for page, *_ in blocks("python")))
def test_python_blocks_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a page run one after the other: a hidden one checks what a shown one has made."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for _, number, code in (block for block in blocks("python") if block[0] == page):
        exec(compile(code, f"{page}, block {number}", "exec"), names)


def printed(code: str) -> str:
    """What a Python block prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(code, "a page", "exec"), {"__name__": "__main__"})
    return out.getvalue()


@pytest.mark.parametrize(
    ("page", "code", "output"), [(page, *shown) for page, text in TEXTS.items() for shown in SHOWN.findall(text)]
)
def test_what_python_prints_is_real(page: str, code: str, output: str) -> None:
    assert output == printed(code), f"{page}: run `make docs`"


LONG = {("docs/plan.md", 16), ("docs/plan.md", 18)}  # plans of ten seconds


@pytest.mark.parametrize(("page", "number", "block"), [
    pytest.param(*each, marks=[pytest.mark.long] * (each[:2] in LONG)) for each in blocks("console")
])  # fmt: skip
def test_outputs_are_real(page: str, number: int, block: str) -> None:
    assert block == real(block), f"{page}, block {number}: run `make docs`"


@pytest.mark.parametrize("page", TEXTS)
def test_links_resolve(page: str) -> None:
    for inline, reference in LINK.findall(BLOCK.sub("", TEXTS[page])):
        target, _, anchor = (inline or reference).partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        path = (ROOT / page).parent / target if target else ROOT / page
        assert path.exists(), f"{page}: {target}"
        if anchor:
            assert anchor in anchors(path), f"{page}: {target}#{anchor}"


@pytest.mark.parametrize(("page", "number", "block"), blocks("sh"))
def test_commands_have_the_options_that_are_shown(page: str, number: int, block: str) -> None:
    for line in block.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] != ["rooflinekit"]:
            continue
        command: Any = get_command(app)
        while words[1:] and words[1] in getattr(command, "commands", {}):
            command = command.commands[words.pop(1)]
        known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)} | {"--help"}
        assert {word for word in words[1:] if word.startswith("--")} <= known | {"--version"}, f"{page}: {line}"


MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = {
    target: set(re.findall(r'test -n "\$\((\w+)\)"  *\|\|', recipe))
    for target, recipe in re.findall(r"^([a-z-]+):(.*?)(?=^[^\t\n]|\Z)", MAKEFILE, re.MULTILINE | re.DOTALL)
}
"""What the Makefile makes, and the variables that must be given."""


@pytest.mark.parametrize("page", TEXTS)
def test_make_has_the_targets_that_are_named(page: str) -> None:
    """Those of shell blocks with the variables that they ask for."""
    for target in re.findall(r"`make ([a-z-]+)", TEXTS[page]):
        assert target in TARGETS, f"{page}: make {target}"
    for block in (text for kind, text in BLOCK.findall(TEXTS[page]) if kind == "sh"):
        for target, given in re.findall(r"^make ([a-z-]+)([^#\n]*)", block, re.MULTILINE):
            assert {name for name in TARGETS[target] if f"{name}=" not in given} == set(), f"{page}: make {target}"


def test_every_page_is_in_a_table_of_contents() -> None:
    listed = {ROOT / "docs" / "index.md"}
    pages = {
        path for place in ("docs", "reports") for path in (ROOT / place).glob("**/*.md") if "_site" not in path.parts
    }
    for page in pages:
        for block in re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(encoding="utf-8"), re.S):
            entries = (line.strip() for line in block.splitlines() if line.strip() and not line.startswith(":"))
            listed |= {(page.parent / f"{entry}.md").resolve() for entry in entries}
    assert sorted(path.relative_to(ROOT).as_posix() for path in pages - listed) == []


def test_the_python_page_has_every_public_name() -> None:
    shown = re.findall(r"^\.\. auto\w+:: rooflinekit\.(\w+)$", TEXTS["docs/api.md"], re.MULTILINE)
    assert sorted(shown) == rk.__all__


def test_every_picture_is_shown_and_drawn() -> None:
    drawn = {f"{name.replace('_', '-')}.svg" for name in re.findall(r"^def (\w+)\(\) -> Any", FIGURES, re.MULTILINE)}
    shown = {name for text in TEXTS.values() for name in re.findall(r"\(\S*\bfigures/([\w-]+\.svg)\)", text)}
    assert drawn == shown == {path.name for path in (ROOT / "docs" / "figures").iterdir()}


def anchors(page: Path) -> set[str]:
    """The anchors that a Markdown page's headings get."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


EXPLAINED = {*find("estimate").options, *re.findall(r"`(\w+)`", TEXTS["docs/nomenclature.md"])}
"""Names in the nomenclature; inputs are options of `estimate`, which docs/cli.md explains."""
NOT_IN_JSON = {"free_gpus"}


def properties(schema: object) -> Iterator[str]:
    """The keys that a JSON Schema describes, at every level."""
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
        schema = list(schema.values())
    for inner in schema if isinstance(schema, list) else ():
        yield from properties(inner)


@pytest.mark.parametrize("command", SCHEMAS)
def test_every_key_of_a_published_schema_is_in_the_nomenclature(command: str) -> None:
    options = {name for each in ("cost", "plan", "simulate") for name in find(each).options}
    assert set(properties(SCHEMAS[command]())) - EXPLAINED - options == set()


def test_a_published_schema_has_every_key_of_the_nomenclature() -> None:
    """Those in the first columns of answers that have a schema; columns of CSV are no keys."""
    answers, _, rest = TEXTS["docs/nomenclature.md"].partition("## Columns of")
    sections = [("estimate", answers.partition("## The answer")[2])]
    for section in rest.split("\n## "):
        title = section.partition("\n")[0]
        command = re.search(r"`rooflinekit (\w+)(?: (--rollout) N)? --format json`", title)
        sections += [(f"{command[1]}{'-rollout' * bool(command[2])}", section)] if command else []
    checked = {command: section for command, section in sections if command in SCHEMAS}
    assert set(checked) == set(SCHEMAS)
    for command, section in checked.items():
        first = re.findall(r"^\| ([^|]+) \|", section, re.MULTILINE)
        names = {name for cell in first for name in re.findall(r"`(\w+)`", cell)}
        assert names - set(properties(SCHEMAS[command]())) <= NOT_IN_JSON, command


def test_every_column_is_in_the_nomenclature() -> None:
    assert {*INPUT_COLUMNS, *RESULT_COLUMNS} - EXPLAINED == set()


def test_the_readme_counts_what_the_library_holds() -> None:
    counts = f"{len(names('model'))} models, {len(names('accelerator'))} accelerators"
    assert counts in TEXTS["README.md"]


def test_the_accuracy_table_is_that_of_the_measured_errors() -> None:
    """Medians over groups of the first accelerators without L40S, from the CSV that the report is made of."""
    errors = pd.read_csv(ROOT / "reports" / "data" / "accuracy-kernels.csv")
    errors = errors[errors["gpu"].isin(("h100-sxm", "h200-sxm", "b200-sxm", "a100-sxm-80gb"))]
    skewed, wide = errors["key"].str.endswith("power_law_1.2"), errors["key"] == "gemm/bf16"
    rules = {
        "GEMM bf16": wide,
        "GEMM fp8, fp8_block, nvfp4": (errors["op"] == "gemm") & ~wide,
        "decode attention": errors["op"] == "attention_decode",
        "prefill attention": errors["op"] == "attention_prefill",
        "MLA prefill": errors["op"] == "mla_prefill",
        "MLA decode": errors["op"] == "mla_decode",
        "MoE, balanced routing": (errors["op"] == "moe") & ~skewed,
        "MoE, skewed routing": skewed,
        "collectives": errors["op"] == "comm",
    }
    block = TEXTS["docs/accuracy.md"].split("<!-- accuracy -->")[1].split("<!-- /accuracy -->")[0]
    stated = dict(re.findall(r"^\| (.+?) \| (.+? %) \| [\d.]+ % \|$", block, re.MULTILINE))
    medians = {name: errors[rule][["roofline", "form", "corrected"]].median() for name, rule in rules.items()}
    assert stated == {name: " | ".join(f"{100 * value:.1f} %" for value in values) for name, values in medians.items()}
    assert sum(map(int, rules_count(rules))) == len(errors)


def rules_count(rules: Mapping[str, Any]) -> list[int]:
    """How many groups each line of the table stands for."""
    return [rule.sum() for rule in rules.values()]


def _refresh() -> None:
    for page, text in TEXTS.items():
        fresh = BLOCK.sub(lambda hit: f"```console\n{real(hit[2])}```" if hit[1] == "console" else hit[0], text)
        fresh = SHOWN.sub(lambda hit: f"```python\n{hit[1]}```\n\n```output\n{printed(hit[1])}```", fresh)
        (ROOT / page).write_text(fresh, encoding="utf-8")


if __name__ == "__main__":
    _refresh()
