"""What arrives at a server, and what it becomes while it is served."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Arrival", "Job"]


class Arrival(NamedTuple):
    """One request as a client sends it.

    time: when it is sent, from the start of the run [s]; isl, osl: tokens of the prompt and of each output.
    hashes: the prompt's leading blocks by content, one number a block, so that prompts that begin with the same numbers
    begin with the same text; how many tokens a block has is one number a run. priority: lower is served first, where
    the order of the queue is by class. samples: outputs drawn from the one prompt (`n`).
    """

    time: float
    isl: int
    osl: int
    hashes: tuple[int, ...] = ()
    priority: int = 0
    samples: int = 1


class Job:
    """A request in the system: how far it is, and what it holds. The one thing here that changes."""

    __slots__ = (
        "arrived", "blocks", "cached", "computed", "due", "first", "hashes", "held", "home", "isl", "joined", "last",
        "made", "measured", "number", "offset", "osl", "priority", "queued", "samples", "swapped", "target",
    )  # fmt: skip

    def __init__(self, number: int, arrival: Arrival, measured: bool = True) -> None:
        self.number = number  #: order of arrival
        self.arrived, self.isl, self.osl, self.hashes, self.priority, self.samples = arrival
        self.queued = self.arrived  #: when the front end handed it on [s]
        self.measured = measured  #: whether it counts in the statistics (not one of the warm-up)
        self.target = self.isl  #: tokens that a prefill must have in the cache before the next token comes out
        self.computed = 0  #: of them, how many are
        self.cached = 0  #: of them, how many were found in a cache
        self.made = 0  #: output tokens of each sample so far
        self.first = -1.0  #: when the first token came out [s]
        self.last = -1.0  #: when the latest did, where that is not the replica's latest decode step [s]
        self.blocks = 0  #: blocks of its own
        self.held: tuple[int, ...] = ()  #: blocks that it shares through the prefix cache
        self.joined = 0  #: decode steps that the replica had made when this one joined
        self.due = -1  #: decode step with which it ends; -1 while it does not decode
        self.offset = 0  #: class of the decode steps in which it needs a new block
        self.swapped = 0  #: blocks in host memory
        self.home: object = None  #: the prefill replica that still holds its blocks

    def __lt__(self, other: Job) -> bool:
        """In order of arrival, where a heap asks."""
        return self.number < other.number

    @property
    def keys(self) -> int:
        """Tokens of each sample that the cache holds once the prefill is done: the latest token is not yet computed."""
        return self.isl + max(self.made - 1, 0)
