"""Pages made and read back, from Python and from the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from html_pages import json_in
from typer.testing import CliRunner

import rooflinekit as rk
from rooflinekit.cli.app import app

FEW: dict[str, Any] = {"models": [], "gpus": [], "walk": False}


def page_of(tmp_path: Path, *arguments: Any, **more: Any) -> str:
    return rk.write_report(tmp_path / "page.html", *arguments, force=True, **more).path.read_text(encoding="utf-8")


def data_of(page: str) -> Any:
    return json_in(page, "data")


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["report", *arguments])


def table() -> pd.DataFrame:
    return rk.sweep(model="llama-3-8b", gpu=["h100-sxm", "l40s"], batch=[1, 64, 1024], isl=[512], osl=[64])
