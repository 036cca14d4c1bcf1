"""The notebooks of the docs run, and print what they show."""

from __future__ import annotations

import ast
import json
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from rooflinekit.model.types.answer import Answer

BOOKS = sorted((Path(__file__).parents[1] / "docs" / "notebooks").glob("*.ipynb"))


def run(source: str, names: dict[str, Any]) -> str:
    """What a cell prints, and its last value as text."""
    tree, shown = ast.parse(source), StringIO()
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) and not source.endswith(";") else None
    with redirect_stdout(shown):
        exec(compile(tree, "cell", "exec"), names)
        value = eval(compile(ast.Expression(last.value), "cell", "eval"), names) if last else None
    if value is None:
        return shown.getvalue()
    return shown.getvalue() + (str(value) if isinstance(value, Answer) else repr(value))


def kept(outputs: list[dict[str, Any]]) -> str:
    return "".join("".join(each["text"] if "text" in each else each["data"]["text/plain"]) for each in outputs)


@pytest.mark.slow
@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_what_its_cells_give(path: Path) -> None:
    names: dict[str, Any] = {}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            assert run("".join(cell["source"]), names).split() == kept(cell["outputs"]).split()


def test_there_are_five() -> None:
    assert [path.stem for path in BOOKS] == ["compare", "explain", "first-answer", "plan", "sweep"]
