"""What scripts of fits share: tables on the command line, and rows that took long kept in a pickle."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pandas as pd

T = TypeVar("T")


def table_parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser of tables and of the pickle that keeps their rows."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--cache", type=Path, help="keep the rows in this pickle, and use it if it is there")
    return parser


def cached(cache: Path | None, work: Callable[[], T]) -> T:
    """What the pickle holds, or else the result of `work`, which it holds from then on."""
    if cache and cache.exists():
        found: T = pd.read_pickle(cache)
        return found
    found = work()
    if cache:
        pd.to_pickle(found, cache)
    return found
