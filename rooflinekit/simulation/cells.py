"""A fleet in cells: each request goes to one of them at random, and only that cell's router knows its replicas.

Large fleets are built so, behind a balancer without memory. Cells share nothing but their stream of requests: each is a
simulation of its own, of a seed of its own, and the whole does not depend on which machine has played which cell.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from itertools import islice
from os import PathLike
from pathlib import Path
from random import Random
from typing import TypeVar

from rooflinekit.model.types.errors import InputError, SpecError, WorkloadError
from rooflinekit.simulation.execute import execute
from rooflinekit.simulation.ledger import RequestObjective
from rooflinekit.simulation.outcome import Books
from rooflinekit.specs.files import json_lines, read_text
from rooflinekit.specs.writing import write_whole

T = TypeVar("T")


def share(total: int, number: int, cells: int, name: str) -> int:
    """Share of one cell of a total that is dealt out evenly.

    >>> [share(10, number, 3, "requests") for number in range(3)]
    [3, 3, 4]
    """
    if total < cells:
        raise WorkloadError(f"{name}={total:,} leaves some of {cells:,} cells without any; use fewer cells")
    return total * (number + 1) // cells - total * number // cells


def cell_seed(seed: int, number: int) -> int:
    """The seed of one cell: streams of different cells are independent."""
    from numpy.random import SeedSequence  # noqa: PLC0415 - a fleet without cells needs none

    return int(SeedSequence((seed, number)).generate_state(1)[0])


def dealt(items: Iterator[T], seed: int, number: int, cells: int) -> Iterator[T]:
    """The items of one cell, where each goes to a cell at random.

    >>> sorted(item for number in range(3) for item in dealt(iter(range(5)), 0, number, 3))
    [0, 1, 2, 3, 4]
    """
    draw = Random(seed)
    return (item for item in items if draw.randrange(cells) == number)


class KeptCells:
    """A file of finished cells, one line of JSON each, so that a run which was cut short can go on."""

    def __init__(self, path: str | PathLike[str], question: object, objective: RequestObjective) -> None:
        """Read what is there. Raises InputError if it belongs to another run, SpecError if it is damaged."""
        self._path, self.found = Path(path), dict[int, Books]()
        mark = json.dumps({"run": hashlib.sha256(repr(question).encode()).hexdigest()[:16]})
        lines = read_text(self._path).splitlines(keepends=True) if self._path.exists() else []
        whole = [line for line in lines if line.endswith("\n")]  # the last may have been cut short
        if whole and whole[0].strip() != mark:
            raise InputError(f"{path} holds cells of another run; remove it, or choose another --out")
        for number, entry in islice(json_lines(self._path, whole), 1, None):
            try:
                self.found[entry["cell"]] = Books.read(entry["books"], objective)
            except (KeyError, TypeError, ValueError, AttributeError):
                raise SpecError(f"{path}, line {number}: is not a finished cell; remove the file") from None
        write_whole(self._path, ("".join(whole) or f"{mark}\n").encode())

    def add(self, number: int, books: Books) -> None:
        """Keep a finished cell."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"cell": number, "books": books.plain()}) + "\n")


def played(  # noqa: PLR0913 - what is done, where, and who is told
    first: Books,
    play: Callable[[int], Books],
    cells: int,
    *,
    workers: int,
    scheduler: str | None,
    kept: KeptCells | None,
    progress: Callable[[int], None],
) -> Books:
    """The books of the whole fleet, of whose cells the first is there. An interrupt leaves the cells that have ended.

    Raises as `execute` does.
    """
    found = {number: kept.found[number] for number in range(1, cells) if kept and number in kept.found}
    missing = [number for number in range(1, cells) if number not in found and not first.interrupted]
    parts, interrupted = [first, *found.values()], first.interrupted
    for number in range(len(parts)):
        progress(number + 1)
    try:
        for number, books in zip(missing, execute(play, missing, workers, scheduler), strict=True):
            if interrupted := books.interrupted:
                break
            parts.append(books)
            progress(len(parts))
            if kept:
                kept.add(number, books)
    except KeyboardInterrupt:
        interrupted = True
    return Books.joined(parts, interrupted)
