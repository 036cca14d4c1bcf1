"""Pages made and read back, from Python and from the command line, and their answers without a browser."""

from __future__ import annotations

import base64
import gzip
import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from html_pages import json_in, unpacked
from typer.testing import CliRunner

import rooflinekit as rk
from rooflinekit.cli.app import app
from rooflinekit.report.page.loop import loop_source, ranking_source
from rooflinekit.report.page.offers import APART

FEW: dict[str, Any] = {"models": [], "gpus": [], "walk": False}
PAGE = Path(rk.__file__).parent / "report" / "page"
STATES = ("model", "gpu", "tp", "weights", "kv", "engine")


def page_of(tmp_path: Path, *arguments: Any, **more: Any) -> str:
    made = rk.write_report(tmp_path / "page.html", *arguments, force=True, **more)
    return unpacked(made.path.read_text(encoding="utf-8"))


def data_of(page: str) -> Any:
    return json_in(unpacked(page), "data")


def in_node(
    source: str, data: dict[str, Any], calls: Sequence[Any] = (), views: Sequence[Any] = (), states: Sequence[Any] = ()
) -> dict[str, Any]:
    """What functions return, views of plans, and advice on states, as JavaScript answers them."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    names = ("answers.js", "tables.js", "plays.js", "advice.js")
    parts = (loop_source(), ranking_source(), *((PAGE / name).read_text(encoding="utf-8") for name in names))
    asked = {"source": source, "scripts": "\n".join(parts), "data": data, "calls": calls, "views": views,
             "states": states}  # fmt: skip
    command = [node, str(Path(__file__).with_name("answers.cjs"))]
    done = subprocess.run(command, input=json.dumps(asked), stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout))


def view_of(page: str, **changes: Any) -> dict[str, Any]:
    """What a page shows first, or after a change of its state."""
    data = data_of(page)
    at = data["asked"] | changes
    plan = data["offers"]["plans"][APART.join(str(at[name]) for name in STATES)]
    return dict(in_node(functions_of(page), data, views=[(plan, at)])["views"][0])


def functions_of(page: str) -> str:
    """The script that Python printed."""
    text = scripts_of(page)
    return text[: text.index("const LOOP = ")]


def scripts_of(page: str) -> str:
    """What the page unpacks."""
    packed = re.search(r'id="app">(.*?)</script>', page)
    assert packed is not None
    return gzip.decompress(base64.b64decode(packed[1])).decode()


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["report", *arguments])


def table() -> pd.DataFrame:
    return rk.sweep(
        model="llama-3-8b", gpu=["h100-sxm", "l40s"], batch=[1, 64, 1024], isl=[512], osl=[64], allow_oom=True
    )
