"""A progress line on a terminal, and silence in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec


@contextmanager
def counting(verb: str, total: int | None = None) -> Iterator[Callable[..., None]]:
    """Yield a function to call with the name of each piece of work as it starts.

    Where the pieces are not known beforehand, each call also says which piece it is and of how many.
    """
    if not sys.stderr.isatty() or find_spec("rich") is None:  # hosts that only measure have no rich
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    done = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(
        *done, TextColumn("left"), TimeRemainingColumn(), console=Console(stderr=True), transient=True
    ) as bar:
        task = bar.add_task(verb, total=total)

        def step(name: str, number: int | None = None, of: int | None = total) -> None:
            description = f"{verb} {name}"[:60]
            if number is None:
                bar.update(task, advance=1, description=description)
            else:
                bar.update(task, completed=number, total=of, description=description)

        yield step
