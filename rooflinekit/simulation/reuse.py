"""Hits of a prefix cache on a trace with block ids, for every size of the cache in one pass.

A block is known with all blocks before it. A cache that drops the least recently used block, ends of prompts before
beginnings, holds the top of one stack, whatever its size (Mattson et al. 1970, doi:10.1147/sj.92.0078). So a block is
found by all caches that hold at least as many blocks as were used since: its depth. With t the place of a use among
all, and p that of the use before,

    depth = t − p − #{uses between whose own use before also lies between}

and the uses are counted for all blocks at once, bit by bit of their places: n·log n for n blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rooflinekit.model.types.errors import WorkloadError
from rooflinekit.model.types.late import np
from rooflinekit.simulation.traces import Trace

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Whole = NDArray[np.int64]

_ROUNDING = 1e-9
_COMMON, _FORK = 0.01, 3  # share of the requests, and number, of ways on from which a block is everybody's


@dataclass(frozen=True)
class Reuse:
    """Hits on the prompts by size of the cache.

    depths: blocks that a cache must hold to find a block, ascending; found: prompt tokens that caches of so many
    blocks find in all; tokens: of all prompts; block_tokens: of one block; ages: seconds since the use before, by
    depth; request: whose prompt a block is part of, by depth; prompts: tokens of each.
    """

    depths: Whole
    found: Whole
    tokens: int
    block_tokens: int
    ages: NDArray[np.float64]
    request: Whole
    prompts: Whole

    @property
    def most(self) -> float:
        """Share of the prompt tokens that a cache without end saves."""
        return float(self.found[-1]) / self.tokens if len(self.found) else 0.0

    def share(self, tokens: float) -> float:
        """Share of the prompt tokens that a cache of so many tokens saves."""
        held = int(np.searchsorted(self.depths, tokens // self.block_tokens, "right"))
        return float(self.found[held - 1]) / self.tokens if held else 0.0

    def found_of(self, share: float) -> tuple[int, ...]:
        """Tokens of each prompt that a cache finds which saves this share of all tokens.

        >>> trace = Trace("t", "mooncake", [0.0, 1.0, 2.0], [8, 4, 8], [1] * 3, (), [1, 2, 3, 1, 2], [2, 3, 5], 4)
        >>> reuse_of(trace).found_of(0.2)  # of 8, 4 and 8 tokens
        (0, 0, 4)
        """
        held = int(np.searchsorted(self.found, share * self.tokens * (1.0 + _ROUNDING), "right"))
        saved = np.bincount(self.request[:held], np.diff(self.found[:held], prepend=0), len(self.prompts))
        return tuple(saved.astype(int).tolist())

    def size(self, share: float) -> float:
        """Tokens of the smallest cache that saves this share of what one without end saves."""
        if not len(self.found):
            return 0.0
        at = int(np.searchsorted(self.found, share * float(self.found[-1])))
        return float(self.depths[min(at, len(self.depths) - 1)]) * self.block_tokens

    def ages_at(self, shares: Mapping[str, float]) -> dict[str, float]:
        """Seconds since the use before, at some shares of the blocks that come back; empty where none does."""
        return {name: float(np.quantile(self.ages, share)) for name, share in shares.items()} if len(self.ages) else {}


def reuse_of(trace: Trace, replicas: int = 1, router: str = "prefix-affinity") -> Reuse:
    """Look at every prompt block of a trace whose requests are shared out over some replicas with caches of their own.

    >>> trace = Trace("t", "mooncake", [0.0, 1.0, 2.0], [8, 4, 8], [1] * 3, (), [1, 2, 3, 1, 2], [2, 3, 5], 4)
    >>> reuse = reuse_of(trace)  # of 20 tokens the last prompt's 8 come back: 1, then 3 and 2 were used since
    >>> reuse.most, reuse.share(8), reuse.share(12)
    (0.4, 0.2, 0.4)

    router: prefix-affinity (a replica that has served its conversation before), or random.
    """
    if not trace.block_tokens or not len(trace.blocks):
        raise WorkloadError(f"{trace.name} has no block ids (hash_ids), so nobody can say which prompts share a prefix")
    nodes = _nodes(trace)
    request = np.repeat(np.arange(len(trace)), np.diff(trace.ends, prepend=0))
    ends = np.asarray(trace.ends)
    place = np.arange(len(nodes)) - (ends - np.bincount(request, minlength=len(trace)))[request]  # of a prompt's blocks
    size = trace.block_tokens
    content = np.clip(np.asarray(trace.isl)[request] - place * size, 0, size)
    where = 0 * ends
    if replicas > 1:
        where = np.random.default_rng(0).integers(0, replicas, len(trace))
        if router != "random":  # a conversation stays with the replica that is drawn with its first request
            where = where[np.asarray(conversations(trace, nodes, request))]
    where = where[request]
    last_first = np.lexsort((-place, request, where))  # ends of prompts before beginnings
    nodes, request, where = nodes[last_first], request[last_first], where[last_first]
    before = _before(nodes + (int(nodes.max()) + 1) * where)
    places = np.arange(len(nodes))
    opens = np.r_[0, np.flatnonzero(np.diff(request) | np.diff(where)) + 1]
    own = places - opens[np.searchsorted(opens, places, "right") - 1]  # blocks of the same prompt that came just now
    known = (before >= 0) & (request >= trace.former)
    depth = (places - before - _later(before) - own)[known]
    order = np.argsort(depth, kind="stable")
    time = np.asarray(trace.time)
    ages = (time[request] - time[request[before]])[known][order]
    found, prompts = np.cumsum(content[last_first][known][order]), np.asarray(trace.isl[trace.former :])
    return Reuse(depth[order], found, int(prompts.sum()), size, ages, (request[known] - trace.former)[order], prompts)


def _nodes(trace: Trace) -> Whole:
    """A number for each block with all that stands before it."""
    tree: dict[tuple[int, int], int] = {}
    found, start = [], 0
    for end in trace.ends:
        node = -1
        for block in trace.blocks[start:end]:
            node = tree.setdefault((node, block), len(tree))
            found.append(node)
        start = end
    return np.array(found)


def _before(nodes: Whole) -> Whole:
    """The place of the use before of each block; -1 for the first."""
    order = np.argsort(nodes, kind="stable")
    same = np.r_[False, nodes[order][1:] == nodes[order][:-1]]
    before = np.full(len(nodes), -1)
    before[order[same]] = order[np.flatnonzero(same) - 1]
    return before


def _later(before: Whole) -> Whole:
    """For each use: how many earlier ones have their own use before after its."""
    count = len(before)
    order = np.argsort(-before, kind="stable")
    found = np.zeros(count, int)
    for bit in reversed(range(max(count - 1, 1).bit_length())):  # halves of ever shorter stretches of places
        width = 1 << bit
        right = (order >> bit) & 1 == 1
        start = order >> (bit + 1) << (bit + 1)
        lefts = np.cumsum(~right)
        lefts -= np.where(start, lefts[start - 1], 0)  # in the same stretch, with a greater use before
        found[order[right]] += lefts[right]
        moved = np.empty_like(order)
        inside = np.arange(count) - start
        moved[np.where(right, start + width + inside - lefts, start + lefts - 1)] = order
        order = moved
    return found


def conversations(trace: Trace, nodes: Whole | None = None, request: Whole | None = None) -> Sequence[int]:
    """For each request the first one of its conversation: with the same block after those that everybody shares.

    Everybody shares what stands before a block that goes on in many ways, as a system prompt does.

    >>> ids = [1, 2, 1, 3, 1, 2, 1, 4, 1, 5]
    >>> conversations(Trace("t", "mooncake", [0.0] * 5, [8] * 5, [1] * 5, (), ids, [2, 4, 6, 8, 10], 4))
    [0, 1, 0, 3, 4]
    """
    nodes = _nodes(trace) if nodes is None else nodes
    if request is None:
        request = np.repeat(np.arange(len(trace)), np.diff(trace.ends, prepend=0))
    known, places = np.unique(nodes, return_index=True)
    inner = places[(places > 0) & (request[places] == request[places - 1])]
    ways = np.bincount(nodes[inner - 1], minlength=len(known))
    forks = ways[nodes] >= max(_COMMON * len(trace), _FORK)
    after = np.zeros(len(trace), int)  # place of the first block of a request's own
    starts = np.r_[0, np.asarray(trace.ends)[:-1]]
    np.maximum.at(after, request[forks], np.flatnonzero(forks) + 1)
    own = np.maximum(after, starts).tolist()
    opened: dict[int, int] = {}
    return [
        opened.setdefault(int(nodes[at]), number) if at < end else number
        for number, (at, end) in enumerate(zip(own, trace.ends, strict=True))
    ]
