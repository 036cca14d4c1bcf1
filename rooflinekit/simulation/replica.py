"""One engine: a queue, a batch, a cache of blocks, and a clock that says how long a step takes."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count

from rooflinekit.load.loop import span, steps_begun
from rooflinekit.load.policies import Limits
from rooflinekit.load.table import Chunk, Clock
from rooflinekit.simulation.decoding import Lockstep
from rooflinekit.simulation.kv_blocks import BlockPool, Loads
from rooflinekit.simulation.ledger import Ledger
from rooflinekit.simulation.requests import Job


class Queue:
    """Requests that wait for a place: by class, then by arrival; or as they came, who lost his place before all."""

    def __init__(self, by_class: bool) -> None:
        self.by_class, self._turns = by_class, count(1)
        self._jobs: list[tuple[int, int, Job]] = []

    def push(self, job: Job) -> None:
        """A new one."""
        heappush(self._jobs, (job.priority, job.number, job) if self.by_class else (0, next(self._turns), job))

    def put_back(self, job: Job) -> None:
        """One that had its place."""
        heappush(self._jobs, (job.priority, job.number, job) if self.by_class else (0, -next(self._turns), job))

    def first(self) -> Job:
        """Next job."""
        return self._jobs[0][2]

    def pop(self) -> Job:
        """Next job, removed from the queue."""
        return heappop(self._jobs)[2]

    def remove(self, job: Job) -> None:
        """One that is here leaves before its turn."""
        self._jobs = [each for each in self._jobs if each[2] is not job]
        heapify(self._jobs)

    def __contains__(self, job: Job) -> bool:
        return any(each is job for _, _, each in self._jobs)

    def __len__(self) -> int:
        return len(self._jobs)


FULL = "the queue was full"
"""Why a replica, or the queue in front of all, takes no request now."""


@dataclass
class HostTier:
    """Host memory for swapped sequences: `room` [blocks], and the time to copy one block [s]."""

    room: int = 0
    block_s: float = 0.0


@dataclass
class ReplicaWork:
    """Work of a replica: sums over its steps."""

    steps: int = 0
    decode_steps: int = 0
    busy: float = 0.0  #: [s]
    sequences: float = 0.0  #: ∫ running sequences dt [s]
    blocks: float = 0.0  #: ∫ used blocks dt [s]
    computed: int = 0  #: prompt tokens, those computed again after a preemption included
    made: int = 0  #: output tokens but the first ones, where the run has ended
    first_tokens: int = 0
    swapped: int = 0  #: requests moved to host memory


class ObjectReplica:
    """Steps of one engine. Between `begin` and `end` lies a step, or a run of decode steps in which nothing happens."""

    def __init__(
        self, limits: Limits, clock: Clock, decoding: Lockstep, ledger: Ledger, host: HostTier | None = None
    ) -> None:
        self.limits, self.clock, self.decoding, self.ledger = limits, clock, decoding, ledger
        self.pool: BlockPool = decoding.pool
        self.host, self.work = host or HostTier(), ReplicaWork()
        self.queue = Queue(limits.by_class)
        self.admitted: dict[Job, None] = {}  # who holds blocks here, in order of admission
        self.partial: list[Job] = []  # of them, prompts that are cut and not complete
        self.staged: dict[Job, tuple[int, tuple[int, ...]]] = {}  # prompts that wait for a decode replica to take them
        self.exports: Callable[[Job, float], None] | None = None  # takes finished prompts, on a prefill replica
        self.fetches: Callable[[Job, ObjectReplica, float], None] | None = None  # copies a prompt's blocks here
        self.loads: Callable[[Job, ObjectReplica, float], None] | None = None  # says when a prompt's blocks are here
        self.loading: dict[Job, None] = {}  # prompts whose cached blocks come from a tier
        self.staging = 1 << 30  #: most prompts that may be computed or staged here at once, on a prefill replica
        self.places = 0  #: sequences that hold blocks here
        self._reserved = 0  # blocks that those who are admitted have yet to take, where room is reserved
        self._width: int = getattr(clock, "width", 1)  # tokens that a sequence computes in a decode step
        self.until = -1.0  #: end of the step or run under way [s]; below 0 while idle
        self.last_pass, self.passed = 0.0, 0  # end of the latest decode step [s], and sequences that decoded in it
        self._landed: list[Job] = []  # prompts that came from other replicas during the step
        self._fresh: list[Job] = []  # who got a token since then
        self._ghosts = self._ghost_keys = 0  # places and keys of finished sequences that a static batch still pads
        self._stall = 0.0  # copies from and to host memory that the next step waits for [s]
        self.began, self._time, self._slope = 0.0, 0.0, 0.0  #: start of what is under way [s]
        self._starts: deque[float] = deque([0.0], maxlen=max(limits.overlap, 1))  # of the latest steps [s]
        self.steps = self.decodes = 0  #: steps that are under way, and sequences that decode in them
        self.shares: list[tuple[Job, int]] = []  #: prompts of this step, and how many tokens of each
        self._firsts = 0  # sequences of this step whose prompts end with it

    @property
    def load(self) -> int:
        """Requests here."""
        return len(self.queue) + len(self.admitted)

    def refusal(self, job: Job, queued: bool = True) -> str:
        """The reason why a request can never be served here, or finds the queue full that it would wait in.

        Empty if it is taken.
        """
        limits, longest = self.limits, job.isl + (1 if self.exports else job.osl)
        if limits.max_model_len is not None and longest > limits.max_model_len:
            return f"longer than the {limits.max_model_len:,} tokens of the longest sequence that is admitted"
        if self.pool.span(job, longest) > self.pool.total:
            return f"larger than the cache of {self.pool.total * self.pool.size:,} tokens"
        if job.samples > limits.max_num_seqs:
            return f"of more samples than the {limits.max_num_seqs:,} sequences that run at once"
        if queued and limits.queue_limit is not None and len(self.queue) >= limits.queue_limit:
            return FULL
        return ""

    def tokens_made(self, now: float) -> int:
        """Tokens that were decoded by now, those of the run under way included."""
        return self.decoding.tokens + self.steps_over(now) * self.decodes

    def unsent(self, now: float, stream: float) -> float:
        """Work of a front end for tokens of the latest step that it has not sent yet, at `stream` seconds each [s]."""
        over, ended, tokens = self.steps_over(now), self.last_pass, self.passed
        if over > 0:
            ended, tokens = self._step_end(over), self.decodes
        return max(0.0, tokens * stream - (now - ended))

    def has(self, job: Job) -> bool:
        """True if a request waits here or has its place here."""
        return job in self.admitted or job in self.queue

    def cut(self, now: float, always: bool = False) -> float:
        """Something has come in: end the run with the step under way; returns when that is [s].

        always: even where nothing could join the next step.
        """
        limits = self.limits
        blocked = len(self.queue) > 1 and not limits.by_class  # who was there before could not be placed either
        admits = limits.policy.joins and not blocked and self.decoding.width < limits.max_num_seqs
        if self.steps > 1 and (always or self._landed or self.partial or admits):
            self.steps = self._steps_until(now)
            self.until = self.began + self._span(self.steps)
        return self.until

    def halt(self, now: float) -> bool:
        """The run of the simulation ends: keep the steps under way that are over by `now`; False if none is."""
        if self.steps < 2 or self.until <= now:
            return False
        steps = self._steps_until(now)
        self.steps = steps if self._span(steps) <= now - self.began else steps - 1
        self.until = self.began + self._span(self.steps)
        return self.steps > 0

    def steps_over(self, now: float) -> int:
        """Decode steps of the run under way that are over by `now` and not yet booked."""
        if self.until < 0.0 or not self.decodes:
            return 0
        return bisect_right(range(1, self.steps + 1), now, key=self._step_end)

    def step_end(self, now: float) -> float:
        """End of the step under way, or the next one of a run [s]; inf while idle."""
        return self._step_end(min(self.steps_over(now) + 1, self.steps)) if self.until >= 0.0 else math.inf

    def _step_end(self, number: int) -> float:
        return self.began + (self._time if number == 1 else self._span(number))

    def drop(self, job: Job) -> bool:
        """Let a request go between two steps; False where its blocks are on their way, or it has left by itself."""
        if job in self.queue:
            if job.home is not None:
                return False
            self.queue.remove(job)
            self.host.room += job.swapped
            return True
        if job.due >= 0:
            self.decoding.leave(job)
        elif job in self.partial:
            self.partial.remove(job)
        else:
            return False
        self._exit(job)
        self.pool.release(job)
        return True

    def _span(self, steps: int) -> float:
        return span(self._time, self._slope, steps)

    def _steps_until(self, now: float) -> int:
        return steps_begun(self._time, self._slope, self.steps, now - self.began)

    def begin(self, now: float) -> bool:
        """Form the next step; False if there is nothing to do."""
        decoding, limits, short = self.decoding, self.limits, False
        while decoding.need() > self.pool.free:  # whoever came last makes room for the next token of the others
            self._preempt()
            short = True
        waiting = (self.partial or self.queue) and (limits.policy.joins or not decoding.width)
        chunks = self._prompts(now, short) if waiting else []
        decodes = self.decodes = decoding.width if limits.policy.mixes or not chunks else 0
        if not decodes and not chunks:
            self.until = -1.0
            return False
        padded = decodes + self._ghosts if decodes else 0
        keys = decoding.keys + self._ghost_keys
        steps = 1
        if chunks:
            time, slope = self.clock.step(padded, keys, chunks, self._firsts), 0.0
            time += decoding.drafting(padded) if padded else 0.0
        else:
            time, slope, most = self.clock.run(padded, keys)
            time += decoding.drafting(padded)
            if most > 1 and limits.longest_run > 1 and not (self._stall or short or self._made_up()):
                steps = decoding.longest_run(min(most, limits.longest_run))
        if self._stall:
            time, self._stall = time + self._stall, 0.0
        self.began, self._time, self._slope, self.steps = now, time, slope, steps
        self.until = now + (time if steps == 1 else self._span(steps))
        return True

    def end(self, now: float) -> list[Job]:
        """Book the step or run under way; returns the requests that end with it."""
        ended: list[Job] = []
        steps, decodes, took, work, pool = self.steps, self.decodes, now - self.began, self.work, self.pool
        if overlap := self.limits.overlap:
            self._starts.extend(self.began + self._span(step) for step in range(max(steps - overlap, 0), steps))
        work.steps += steps
        work.busy += took
        work.sequences += took * (decodes + len(self.shares))
        work.blocks += took * (pool.total - pool.free)
        if decodes:
            work.decode_steps += steps
            self._gaps()
            free = pool.free
            ended = self.decoding.advance(steps)
            if self.limits.reserves:
                self._reserved -= free - pool.free
            self._ghost_keys += self._ghosts * steps
            self.last_pass, self.passed = now, decodes
            for job in ended:
                self._finish(job)
        if self.shares:
            for job, take in self.shares:
                work.computed += take
                job.computed += take
                if job.computed == job.target and self._first_token(job, now):
                    ended.append(job)
            self.partial = [job for job in self.partial if job.computed < job.target]
            self.shares = []
        if self._landed:
            for job in self._landed:
                self._resume(job)
            self._landed = []
        if not self.decoding.width:
            self._ghosts = self._ghost_keys = 0
        return ended

    def deliver(self, job: Job) -> None:
        """A prompt that another replica computed has arrived: it decodes from the next step on."""
        job.home = None
        if self.until < 0.0:
            self._resume(job)
        else:
            self._landed.append(job)

    def loaded(self, job: Job) -> None:
        """The cached blocks of a prompt have come from their tiers: the next step computes the rest."""
        del self.loading[job]
        self.partial.append(job)

    def evict_all(self) -> list[Job]:
        """Everything that is here at the end of the run, brought up to date."""
        jobs = [*self.admitted, *self.staged]
        while len(self.queue):
            jobs.append(self.queue.pop())
        for job in jobs:
            if job.due >= 0:
                self.decoding.leave(job)
        return jobs

    def release_staged(self, job: Job) -> None:
        """The decode replica has copied a prompt: give its blocks back."""
        blocks, held = self.staged.pop(job)
        kept = job.blocks, job.held
        job.blocks, job.held = blocks, held
        self.pool.release(job)
        job.blocks, job.held = kept

    def _gaps(self) -> None:
        """Gaps between tokens: one for every sequence and step; the first since its own latest token."""
        first_end, itl = self.began + self._time, self.ledger.itl
        old = self.decodes
        if self._fresh:
            for job in self._fresh:
                if job.due >= 0 and job.last >= 0.0:
                    itl.add(first_end - job.last, job.samples)
                    old -= job.samples
                    job.last = -1.0
            self._fresh = []
        if old > 0:
            itl.add(first_end - self.last_pass, old)
        if self.steps > 1:
            itl.add_run(self._time + self._slope, self._slope, self.steps - 1, self.decodes)

    def _prompts(self, now: float, short: bool) -> list[Chunk]:
        """Choose the prompts of this step: those begun before, then new ones in order while there is room."""
        limits, policy = self.limits, self.limits.policy
        most = limits.token_budget  # of one engine, and so of one prompt
        budget = most * limits.engines - (self.decoding.width * self._width if policy.mixes else 0)
        chunks: list[Chunk] = []
        self._firsts = 0
        for job in self.partial:
            if (take := min(job.target - job.computed, budget, most)) <= 0:
                break
            budget -= self._take(job, take, chunks)
        while not short and len(self.queue) and (budget > 0 or not (chunks or policy.chunks)):
            job = self.queue.first()
            if self._made_up():
                break
            if not policy.chunks and chunks and self._tokens(job) - self.pool.match(job) > budget:
                break
            if not self._admit(job, now):
                break
            if job.target > job.computed and job not in self.loading:  # else its blocks came back, or are on their way
                take = min(job.target - job.computed, budget, most) if policy.chunks else job.target - job.computed
                if take < job.target - job.computed:
                    self.partial.append(job)
                budget -= self._take(job, take, chunks)
        return chunks

    def _made_up(self) -> bool:
        """True if this step was made up before the next of the queue came (overlapped scheduling)."""
        early = self.limits.overlap and self.decoding.width and len(self.queue)
        return bool(early) and self.queue.first().queued > self._starts[0]

    def _take(self, job: Job, take: int, chunks: list[Chunk]) -> int:
        chunks.append((take, job.computed))
        if job.computed + take == job.target:
            self._firsts += job.samples
        self.shares.append((job, take))
        return take

    def _tokens(self, job: Job) -> int:
        """Tokens to compute before the next one comes out: the prompt, and again what was lost with a preemption."""
        return job.isl + job.samples * job.made

    def _admit(self, job: Job, now: float) -> bool:
        """Give the next in the queue its place, if there is one."""
        decoding, pool = self.decoding, self.pool
        if self.places + job.samples > self.limits.max_num_seqs or len(self.staged) + self.places >= self.staging:
            return False
        further = self._further(job)
        kept = max(decoding.need() if decoding.width else 0, self._reserved) + further
        if job.swapped or job.home is not None:
            needed = job.swapped or pool.span(job, job.keys)
            if needed > pool.free - kept - (job.samples if job.swapped else 0):  # those may need new blocks at once
                return False
            job.blocks = needed
            pool.take(needed)
        elif (loads := pool.place(job, kept)) is None:
            return False
        else:
            job.target = self._tokens(job)
            if loads:
                self._load(job, loads, now)
            if job.first < 0.0 and job.measured:
                self.ledger.queued.add(now - job.queued)
        self.queue.pop()
        self.admitted[job] = None
        self.places += job.samples
        self._reserved += further
        if job.swapped:
            self._swap_in(job)
        elif job.home is not None and self.fetches:
            self.fetches(job, self, now)
        return True

    def _load(self, job: Job, loads: Loads, now: float) -> None:
        """Copy blocks from their tiers, from all at once; the request waits for them, or the whole next step does."""
        ready = now
        for tier, hashes in loads.items():
            if tier.waits or self.loads is None:
                self._stall += tier.latency + hashes * tier.hash_s
                tier.loaded += hashes
            else:
                ready = max(ready, tier.load(now, hashes))
        if ready > now and self.loads is not None:
            self.loading[job] = None
            self.loads(job, self, ready)

    def _further(self, job: Job) -> int:
        """Blocks that the rest of a request's answer takes here, where room is reserved for it."""
        if self.exports or not self.limits.reserves:
            return 0
        return self.pool.span(job, job.isl + job.osl - 1) - self.pool.span(job, job.keys)

    def _exit(self, job: Job) -> None:
        self._reserved -= self._further(job)
        del self.admitted[job]
        self.places -= job.samples

    def _first_token(self, job: Job, now: float) -> bool:
        """A prefill is complete: its token comes out. True if that was the last."""
        job.made += 1
        self.work.first_tokens += job.samples
        self.pool.publish(job)
        if job.first < 0.0:
            self.ledger.first_token(job, now)
        else:
            self.ledger.itl.add(now - job.last, job.samples)
        job.last = now
        if job.made == job.osl:
            self._finish(job)
            return True
        if self.exports:
            self._exit(job)
            self.staged[job] = job.blocks, job.held
            job.blocks, job.held, job.home = 0, (), self
            self.exports(job, now)
        else:
            self._resume(job)
        return False

    def _resume(self, job: Job) -> None:
        self.decoding.join(job)
        self._fresh.append(job)

    def _finish(self, job: Job) -> None:
        if self.limits.policy.pads:
            self._ghosts += job.samples
            self._ghost_keys += job.samples * job.keys
        self._exit(job)
        self.pool.release(job)

    def _preempt(self) -> None:
        candidates = [job for job in self.admitted if job.due >= 0 or job in self.partial]
        job = max(candidates, key=lambda job: (job.priority, job.number)) if self.limits.by_class else candidates[-1]
        self.ledger.preempted += 1
        if job.due >= 0:
            self.decoding.leave(job)
            if job.last < 0.0:
                job.last = self.last_pass
            if self.limits.swap and job.blocks <= self.host.room and not job.held:
                job.swapped = job.blocks
                self.host.room -= job.swapped
                self._stall += job.swapped * self.host.block_s
                self.work.swapped += 1
        else:
            self.partial.remove(job)
        self._exit(job)
        self.pool.release(job)
        self.queue.put_back(job)

    def _swap_in(self, job: Job) -> None:
        self.host.room += job.swapped
        self._stall += job.swapped * self.host.block_s
        job.swapped = 0
        job.computed = job.target
        self._resume(job)
