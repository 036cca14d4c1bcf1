"""The paged cache of one replica: blocks that are counted, and shared prefixes that are known by their content.

A block of a sequence's own is only counted. A block that other prompts may share is known by its hash: while a running
sequence uses it, it is pinned; after that it stays until its place is needed, the least recently used first, and then
moves to the tiers behind, if there are any (Kwon et al. 2023, arXiv:2309.06180; vLLM's automatic prefix caching).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from rooflinekit.model.types.errors import WorkloadError
from rooflinekit.simulation.requests import Job
from rooflinekit.simulation.tiers import Store, demote

Loads = Mapping[Store, int]
"""Hashes that a prompt has in each tier."""

_NONE: Loads = MappingProxyType({})


class BlockPool:
    """Blocks of `size` tokens, of which `free` can be had."""

    def __init__(self, total: int, size: int) -> None:
        if total < 1 or size < 1:
            raise WorkloadError(f"a cache of {total} blocks of {size} tokens holds nothing")
        self.total, self.size, self.free = total, size, total
        self.per = 1  #: blocks that one hash of shared content stands for
        self.asked = self.found = 0  #: prompt tokens looked up in the prefix cache, and found there

    @property
    def used(self) -> int:
        """Blocks that running sequences hold, shared ones once."""
        return self.total - self.free

    def span(self, job: Job, keys: int) -> int:
        """Blocks of a request with `keys` tokens a sample: ⌈keys/size⌉; samples share the prompt's full blocks."""
        whole = -(-keys // self.size)
        if job.samples == 1:
            return whole
        shared = min(job.isl // self.size, whole)
        return shared + job.samples * (whole - shared)

    def place(self, job: Job, kept: int) -> Loads | None:
        """Take the blocks of a prefill if `kept` stay free, else None; returns what comes from tiers."""
        needed = self.span(job, job.isl + job.made)
        if needed > self.free - kept:
            return None
        job.computed = job.cached = 0
        job.blocks = needed
        self.take(needed)
        return _NONE

    def take(self, count: int) -> None:
        """Take blocks that are free."""
        self.free -= count

    def publish(self, job: Job) -> None:
        """Let others share the prompt's blocks, now that they are computed; nothing without a prefix cache."""

    def release(self, job: Job) -> None:
        """Give everything back that a request holds."""
        self.free += job.blocks
        job.blocks = 0

    def match(self, job: Job) -> int:
        """Prompt tokens that are in the cache."""
        return 0


class PrefixPool(BlockPool):
    """Pool with a prefix cache; a hash stands for `per` blocks. `tiers` take what leaves it, nearest first."""

    def __init__(self, total: int, size: int, per: int = 1, tiers: Sequence[Store] = ()) -> None:
        super().__init__(total, size)
        self.per, self.tiers = per, tiers
        self.pinned: dict[int, int] = {}
        self.idle: OrderedDict[int, None] = OrderedDict()

    def match(self, job: Job) -> int:
        """Leading prompt tokens that are in the cache on the accelerator; at least one token stays to be computed."""
        return self._hits(job)[0] * self.per * self.size

    def place(self, job: Job, kept: int) -> Loads | None:
        """Pin what is found and take the rest; what is found and not pinned must be free as well."""
        hits, loads = self._hits(job)
        loaded = sum(loads.values())
        span = self.span(job, job.isl + job.made)
        if span - sum(key in self.pinned for key in job.hashes[:hits]) * self.per > self.free - kept:
            return None
        for key in job.hashes[:hits]:
            if key not in self.pinned:
                del self.idle[key]
                self.free -= self.per
            self.pinned[key] = self.pinned.get(key, 0) + 1
        self.take(span - hits * self.per)
        for key in job.hashes[hits : hits + loaded]:
            self._raise(key)
            self.pinned[key] = 1
        job.held = job.hashes[: hits + loaded]
        job.blocks = span - len(job.held) * self.per
        job.computed = job.cached = len(job.held) * self.per * self.size
        self.asked += job.isl
        self.found += job.cached
        return loads

    def take(self, count: int) -> None:
        """Take blocks that are free, from unused prefixes where no others are left."""
        spare = self.free - len(self.idle) * self.per
        while spare < count:
            key, _ = self.idle.popitem(last=False)
            spare += self.per
            demote(key, self.tiers)
        self.free -= count

    def publish(self, job: Job) -> None:
        """Move the prompt's full blocks from the request to the cache, but for those that another brought first."""
        self._share(job, job.isl)

    def seed(self, hashes: Sequence[int]) -> None:
        """Put blocks of former requests into the cache, unused."""
        for key in reversed(hashes):
            if key not in self.idle:
                if self.free - len(self.idle) * self.per < self.per:
                    if not self.idle:
                        return
                    demote(self.idle.popitem(last=False)[0], self.tiers)
                self.idle[key] = None
            self.idle.move_to_end(key)

    def _share(self, job: Job, tokens: int) -> None:
        """Put the full blocks of its first tokens into the cache."""
        whole = job.hashes[: tokens // (self.per * self.size)]
        rest = dict.fromkeys(whole[len(job.held) :])
        fresh = [key for key in rest if key not in self.pinned and key not in self.idle]
        for key in fresh:
            self.pinned[key] = 1
            self._raise(key)
        job.held = (*job.held, *fresh)
        job.blocks -= len(fresh) * self.per

    def release(self, job: Job) -> None:
        """Unpin what it shared, the end first, so that beginnings stay longest; of sessions their answers too."""
        if job.session >= 0 and job.made:
            self._share(job, job.keys)
        super().release(job)
        for key in reversed(job.held):
            self.pinned[key] -= 1
            if not self.pinned[key]:
                del self.pinned[key]
                self.idle[key] = None
                self.free += self.per
        job.held = ()

    def _hits(self, job: Job) -> tuple[int, Loads]:
        """Leading hashes on the accelerator, and those that follow in the tiers."""
        usable = min(len(job.hashes), (job.isl - 1) // (self.per * self.size))
        found = 0
        while found < usable and (job.hashes[found] in self.pinned or job.hashes[found] in self.idle):
            found += 1
        loads: dict[Store, int] = {}
        for key in job.hashes[found:usable] if self.tiers else ():
            tier = next((tier for tier in self.tiers if key in tier.held), None)
            if tier is None or key in self.pinned or key in self.idle:
                break
            loads[tier] = loads.get(tier, 0) + 1
        return found, loads

    def _raise(self, key: int) -> None:
        """Take a hash that is on the accelerator from the tiers; one that all replicas share keeps it."""
        for tier in self.tiers:
            if key in tier.held:
                if tier.shared:
                    tier.held.move_to_end(key)
                else:
                    del tier.held[key]
