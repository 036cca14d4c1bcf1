"""The sequences that decode on one replica, moved forward by many steps at once.

Without drafts every sequence gets a token in every step. Then the step in which one ends is known when it joins, and so
are the steps in which it needs a new block: those of one class modulo the block size. A step costs a look at one
counter, and a run of steps costs no more, however many sequences there are.
"""

from __future__ import annotations

from heapq import heappop, heappush

from rooflinekit.load.loop import MODULUS, MULTIPLIER, first_draw
from rooflinekit.load.scene import Drafting
from rooflinekit.simulation.kv_blocks import BlockPool
from rooflinekit.simulation.requests import Job


class Lockstep:
    """Sequences that all get one token a step."""

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.width = 0  #: sequences
        self.keys = 0  #: tokens that they have in the cache
        self.steps = 0  #: decode steps made so far
        self.tokens = 0  #: output tokens made so far
        self._growing = [0] * pool.size  # sequences by the class of the steps in which they need a block
        self._ends: list[tuple[int, int, Job]] = []

    def join(self, job: Job) -> None:
        """Take in a request whose tokens so far are all in the cache but the latest."""
        keys, steps, samples = job.keys, self.steps, job.samples
        job.joined, job.offset = steps, (steps - keys) % self.pool.size
        job.due = steps + job.osl - job.made
        self.width += samples
        self.keys += samples * keys
        self._growing[job.offset] += samples
        heappush(self._ends, (job.due, job.number, job))

    def leave(self, job: Job) -> None:
        """Let one go, at its end or before; its tokens and blocks are brought up to date."""
        job.made += self.steps - job.joined
        job.due = -1
        keys, samples = job.keys, job.samples
        self.width -= samples
        self.keys -= samples * keys
        self._growing[job.offset] -= samples
        job.blocks = self.pool.span(job, keys) - len(job.held) * self.pool.per

    def drafting(self, sequences: int) -> float:
        """Time of drafting in a step of so many sequences [s]."""
        return 0.0

    def need(self, steps: int = 1) -> int:
        """Blocks that the next steps take."""
        size, growing = self.pool.size, self._growing
        if steps == 1:
            return growing[self.steps % size]
        cycles, rest = divmod(steps, size)
        return cycles * self.width + sum(growing[(self.steps + i) % size] for i in range(rest))

    def longest_run(self, most: int) -> int:
        """Steps until the next sequence ends or the blocks run out, at most `most`; at least one fits."""
        ends = self._ends
        while ends[0][0] != ends[0][2].due:  # it left before its end
            heappop(ends)
        steps = min(most, ends[0][0] - self.steps)
        free = self.pool.free
        if self.width * (steps // self.pool.size + 1) <= free or self.need(steps) <= free:
            return steps
        cycles = min(free // self.width, steps // self.pool.size)
        steps, left = cycles * self.pool.size, free - cycles * self.width
        while (more := self._growing[(self.steps + steps) % self.pool.size]) <= left:
            steps, left = steps + 1, left - more
        return max(steps, 1)

    def advance(self, steps: int) -> list[Job]:
        """Make the steps; returns the requests that end with the last of them (they have left)."""
        if blocks := self.need(steps):
            self.pool.take(blocks)
        self.steps = now = self.steps + steps
        made = steps * self.width
        self.tokens += made
        self.keys += made
        ended: list[Job] = []
        ends = self._ends
        while ends and ends[0][0] <= now:
            due, _, job = heappop(ends)
            if due == job.due:
                self.leave(job)
                ended.append(job)
        return ended


class Speculative(Lockstep):
    """Sequences that verify a draft in every step and get from 1 to k + 1 tokens, drawn one by one.

    A drafted token is accepted with its probability if all before it were: with the same of each a step yields
    (1 − α^(k+1))/(1 − α) tokens in the mean (Leviathan et al. 2023, arXiv:2211.17192). The samples of one request
    accept alike. Each request draws from its own numbers, so that what it accepts does not depend on who is beside it.
    """

    def __init__(self, pool: BlockPool, draft: Drafting, seed: int) -> None:
        super().__init__(pool)
        self.draft, self.seed, self.drafted = draft, seed, draft.tokens
        self.members: dict[Job, None] = {}

    def join(self, job: Job) -> None:
        """Join as in lockstep; the step of its end is not known."""
        job.joined, job.due = self.steps, 0
        self.width += job.samples
        self.keys += job.samples * job.keys
        self.members[job] = None

    def leave(self, job: Job) -> None:
        """Leave as in lockstep; tokens and blocks are up to date already."""
        job.due = -1
        self.width -= job.samples
        self.keys -= job.samples * job.keys
        self.members.pop(job, None)

    def need(self, steps: int = 1) -> int:
        """Blocks that the next step takes if every draft is accepted."""
        return sum(self._more(job, min(self.drafted + 1, job.osl - job.made)) for job in self.members)

    def drafting(self, sequences: int) -> float:
        """Time of drafting in a step of so many sequences [s]."""
        return self.draft.seconds[sequences]

    def longest_run(self, most: int) -> int:
        """One: what comes after is drawn."""
        return 1

    def advance(self, steps: int) -> list[Job]:
        """Make one step."""
        self.steps += 1
        ended = []
        for job in list(self.members):
            tokens = min(self._accepted(job) + 1, job.osl - job.made)
            blocks = self._more(job, tokens)
            self.pool.take(blocks)
            job.blocks += blocks
            job.made += tokens
            self.tokens += job.samples * tokens
            self.keys += job.samples * tokens
            if job.made == job.osl:
                self.leave(job)
                ended.append(job)
        return ended

    def _more(self, job: Job, tokens: int) -> int:
        return self.pool.span(job, job.keys + tokens) - len(job.held) * self.pool.per - job.blocks

    def _accepted(self, job: Job) -> int:
        draw = job.draw or first_draw(self.seed, job.number)
        accepted = 0
        while accepted < self.drafted:
            draw = draw * MULTIPLIER % MODULUS
            if draw / MODULUS >= self.draft.acceptance[accepted]:
                break
            accepted += 1
        job.draw = draw
        return accepted
