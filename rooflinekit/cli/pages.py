"""What the docs take from the table of options: the tables of a page, and the JSON Schema of a scenario.

python -m rooflinekit.cli.pages docs/cli.md docs/scenario.schema.json
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from rooflinekit.cli.command import find, grouped
from rooflinekit.estimation.options import Option, model_of, options_of
from rooflinekit.estimation.scenario import GROUPS, Accelerator, Scenario, Written

__all__ = ["refreshed", "schema"]

_TABLE = re.compile(r"<!-- options of ([a-z ]+) -->\n.*?<!-- /options -->", re.DOTALL)


def refreshed(page: str) -> str:
    """The page with the present tables between its marks."""
    return _TABLE.sub(lambda hit: f"<!-- options of {hit[1]} -->\n{_tables(hit[1])}\n<!-- /options -->", page)


def schema() -> str:
    """The keywords of `estimate`, and the columns of `estimate_frame`, as a JSON Schema."""
    gpu = options_of(Accelerator)["gpu"]
    made = model_of(Scenario, model=(str, ...), gpu=(str | None, gpu.default)).model_json_schema()
    made |= {"$schema": "https://json-schema.org/draft/2020-12/schema", "description": "A scenario of rooflinekit."}
    return json.dumps(made, indent=2, ensure_ascii=False) + "\n"


def _tables(words: str) -> str:
    command, known = find(words), find("estimate").options
    above = options_of(Written) if "format" in command.options else {}
    options = {name: row for name, row in command.options.items() if above.get(name) is not row}
    same = {} if words == "estimate" else {name: row for name, row in options.items() if known.get(name) is row}
    own = {name: row for name, row in options.items() if name not in same}
    if len(same) < 5:
        own, same = options, {}
    parts = ["\n".join(_rows(own))] if own else []
    if same:
        names = ", ".join(f"`{_flag(name)}`" for name in same)
        parts.append(f"and as in `estimate`: {names}.")
    return "\n\n".join(parts)


def _rows(options: dict[str, Option]) -> Iterator[str]:
    yield "| option | default | meaning |"
    yield "|---|---|---|"
    for group, rows in grouped(options, tuple(GROUPS)):
        if len(options) > len(rows):
            yield f"| **{group}** | | |"
        for name, row in rows.items():
            yield f"| `{_flag(name)}` | {_default(row)} | {_meaning(row)} |"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _default(row: Option) -> str:
    if row.default is None or row.default is False:
        return row.usual
    return f"`{row.default}`" if isinstance(row.default, str) else str(row.default)


def _meaning(row: Option) -> str:
    unit = f" [{row.unit}]" if row.unit in ("ms", "tokens", "1/s") else ""
    also = "".join(f"; also `{_flag(old)}`" for old in row.also)
    text = row.help.rstrip(".").replace("|", "\\|").replace("<", "\\<")
    marked = re.sub(r"(--[a-z][a-z-]+)", r"`\1`", text)
    return f"{marked}{unit}{also}"


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        text = schema() if path.suffix == ".json" else refreshed(path.read_text(encoding="utf-8"))
        path.write_text(text, encoding="utf-8")
