"""What scripts of fits share: tables on the command line, all cores, and rows that took long kept in a pickle."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from rooflinekit.load.answer import MOST
from rooflinekit.load.compiled import prepare

T = TypeVar("T")
S = TypeVar("S")
_WORK: list[tuple[Callable[[Any], Any], Sequence[Any]]] = []
"""What forked processes work at: they see the objects themselves."""


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


def on_all_cores(work: Callable[[S], T], items: Sequence[S]) -> list[T]:
    """What each item becomes, in order; loads are played by compiled code where that is sooner done."""
    prepare(MOST)
    _WORK.append((work, items))
    try:
        with get_context("fork").Pool() as pool:
            return pool.map(_nth, range(len(items)), chunksize=1)
    finally:
        _WORK.pop()


def _nth(place: int) -> Any:
    work, items = _WORK[-1]
    return work(items[place])
