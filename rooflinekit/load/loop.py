"""One loop plays a load: requests come, replicas make one step after another, and tokens come out.

The loop is written in a plain subset of Python: numbers, arrays, `while`, `if` and calls of functions of this module.
CPython runs it on lists, numba compiles it for NumPy arrays (`rooflinekit.load.compiled`), and a printer makes the
JavaScript of pages from it (`rooflinekit.load.javascript`). All three give the same bits. The loop makes no arrays of
its own: `rooflinekit.load.state` makes them, as lists or as NumPy arrays.

An event is the sending of a request, its end in the front end or in an encoder, its coming to a queue, or the end of a
step. Events of one instant happen in the order in which they were foreseen, and all of them before any replica forms
its next step. Decode steps in which nothing can happen are taken at once: the i-th of a run takes t + slope·i.

Letters of the functions: `c` the clients, `k` the rules of the engine, `t` the step table, `h` that of steps whose
halves take turns, `s` the state, `r` a replica or, of pipeline stages with microbatches, a lane of one, `g` the
replica, `j` a request.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rooflinekit.load.arrays import Clients, Counts, Numbers, Parts, Rules, State, Table

NOBODY = -1
FOREVER = math.inf
FOREVER_STEPS = 1 << 30
LATEST = 1e300  # a time before forever, and after all others
# Share of a front end that reads requests while it has more tokens than it can send. Of SGLang before a stub, 256 users
# with long answers: first tokens played over measured are 1.7, 1.1, 0.9 and 0.7 with shares of 0.02, 0.05, 0.1 and 0.2
# (benchmarks/front_end/play_stub.py).
LEAST_LEFT = 0.05

# Park and Miller's numbers, x ← MULTIPLIER·x mod MODULUS (Communications of the ACM 31, 1988, p. 1192).
MULTIPLIER = 16807
MODULUS = 2147483647

# What happens to a request, in `State.event_kind`.
SENT, READY, PASSED, ENCODED = range(4)
# Places of counters in `State.counts`.
(
    NEXT, DONE, REJECTED, PREEMPTED, STAMP, ARRIVED, HEAD, TAIL, HELD_HEAD, HELD_TAIL, HELD_COUNT, ROUTED, TOUCHED,
    FLYING, COUNTING, WARMUP, ROWS, GAPS, COUNTERS,
) = range(19)  # fmt: skip
# Places of times in `State.times`.
NOW, ENCODING, ENCODER_WAIT, TIMES = range(4)
# Routers, in `Rules.router`.
ROUND_ROBIN, RANDOM, LEAST_LOADED, SHARED = range(4)

# --- step times -------------------------------------------------------------------------------------------------------


def tokens_time(tokens: int, dense: Numbers, counts: Numbers, times: Numbers) -> float:
    """Time of what works on all tokens of a step [s]: tabulated one by one, and on straight lines beyond.

    >>> tokens_time(3, [0.0, 1.0], [1.0, 5.0], [1.0, 9.0])
    5.0
    """
    if tokens < len(dense):
        return dense[tokens]
    low = 1
    high = len(counts) - 1
    while low < high:
        middle = (low + high) // 2
        if tokens < counts[middle]:
            high = middle
        else:
            low = middle + 1
    left = counts[low - 1]
    return times[low - 1] + (times[low] - times[low - 1]) * (tokens - left) / (counts[low] - left)


def share_chunks(t: Table, own: int, n: int, new: Counts, past: Counts, most_new: Counts, most_past: Counts) -> int:
    """Put the chunks of the fullest attention replica into `most_new` and `most_past`; returns how many there are.

    The longest chunks are dealt in turn, so that the first replica has every replicas-th of them; chunks beyond the
    token budget of a replica are shortened. own: tokens that it decodes.
    """
    for i in range(n):  # by length, then past, the largest first
        a = new[i]
        b = past[i]
        at = i
        while at > 0 and (most_new[at - 1] < a or (most_new[at - 1] == a and most_past[at - 1] < b)):
            most_new[at] = most_new[at - 1]
            most_past[at] = most_past[at - 1]
            at -= 1
        most_new[at] = a
        most_past[at] = b
    count = 0
    tokens = 0
    i = 0
    while i < n:
        most_new[count] = most_new[i]
        most_past[count] = most_past[i]
        tokens += most_new[count]
        count += 1
        i += t.replicas
    if t.budget and count > 1:
        room = t.budget - own
        room = max(room, most_new[0])
        beyond = tokens - room
        while beyond > 0:
            count -= 1
            last = most_new[count]
            if last > beyond:
                most_new[count] = last - beyond
                count += 1
            beyond -= last
    return count


def step_time(
    t: Table,
    h: Table,
    decodes: int,
    keys: float,
    n: int,
    new: Counts,
    past: Counts,
    firsts: int,
    most_new: Counts,
    most_past: Counts,
) -> float:
    """Time of a step of sequences that decode with `keys` in the cache, and of `n` chunks of prompts [s].

    h: the table of steps whose halves take turns; new, past: tokens of each chunk, and those before them in the cache;
    firsts: prompts that end; most_new, most_past: room for the chunks of one attention replica.
    """
    if decodes and n == 0 and len(t.alone):
        time, _, _ = run_time(t, h, decodes, keys)
        return time
    width = t.width
    local = decodes
    own_keys = keys
    everywhere = decodes * width
    if t.replicas > 1:
        for i in range(n):
            everywhere += new[i]
        local = (decodes + t.replicas - 1) // t.replicas
        own_keys = keys / decodes * local if decodes else 0.0
        firsts = (firsts + t.replicas - 1) // t.replicas
        if n:
            n = share_chunks(t, local * width, n, new, past, most_new, most_past)
            new = most_new
            past = most_past
        else:
            everywhere = local * width * t.replicas
    decoding = local * width
    tokens = decoding
    for i in range(n):
        tokens += new[i]
    if t.halved and tokens > t.undivided:
        t = h
    together = 0.0
    if len(t.pooled_dense):
        together = tokens_time(everywhere, t.pooled_dense, t.pooled_counts, t.pooled_times)
    time = together + t.sequences[local + n] + t.sampled[decoding + firsts]
    if len(t.encoded):
        time += t.encoded[firsts]
    cells = t.cells
    last = len(cells) - 1
    if local:
        row = t.decode[local]
        context = own_keys / local + width
        at = cells[int(context)] if context <= last else cells[last]
        low = t.grid[at]
        left = row[at]
        attention = left + (row[at + 1] - left) * (context - low) / (t.grid[at + 1] - low)
        if n:
            attention = max(attention, t.tiled * own_keys)
        time += attention
    for i in range(n):
        fresh = new[i]
        before = past[i]
        plane = t.prefill[cells[fresh] if fresh <= last else cells[last]][
            cells[before] if before <= last else cells[last]
        ]
        time += plane[0] + plane[1] * fresh + before * (plane[2] + plane[3] * fresh)
    dense = t.dense
    time += dense[tokens] if tokens < len(dense) else tokens_time(tokens, dense, t.counts, t.times)
    if n and not t.summed:
        time += besides(t, local, n, new, past, firsts, tokens)
    if n > 1:
        saved = t.launch
        if len(t.saved_counts):
            saved = saved_time(t, n, past, tokens - decoding)
        time -= saved * (n - 1)
    if n or not t.graphs:
        kind = 2
        if n:
            kind = 1 if local else 0
        graphed = n > 0 and tokens <= t.graph_tokens
        least = t.graph_floor[kind] if graphed else t.floor[kind]
        least += t.sequence_floor * (local + n)
        if firsts:
            least += t.encoded_floor
        elif local == 0 and not graphed:
            least -= t.unsampled
        if len(t.exchanged_dense):
            size = tokens if t.ranks == 1 else whole_tokens(t, local, tokens)
            moved = tokens_time(size, t.exchanged_dense, t.exchanged_counts, t.exchanged_times)
            moved += t.sequence_floor * (local + n)
            least = max(least, moved)
        time = least if least > time else time
    return time


def besides(t: Table, local: int, n: int, new: Counts, past: Counts, firsts: int, tokens: int) -> float:
    """Time of a step with prompts beyond the sum [s]: for the keys of all prompts, and for tokens of ranks."""
    time = 0.0
    if len(t.keyed_dense):
        seen = 0.0
        for i in range(n):
            seen += past[i] + t.seen * new[i]
        time += tokens_time(int(seen), t.keyed_dense, t.keyed_counts, t.keyed_times)
    if t.ranks > 1:
        own = local * t.width
        rows = whole_tokens(t, local, own) // t.ranks
        time += t.sampled[rows + firsts] - t.sampled[own + firsts]
        time += tokens_time(whole_tokens(t, local, tokens), t.dense, t.counts, t.times)
        time -= tokens_time(tokens, t.dense, t.counts, t.times)
    return time


def whole_tokens(t: Table, local: int, tokens: int) -> int:
    """Tokens, where each of the ranks that share a context has whole ones of either phase, in each part."""
    unit = t.ranks * t.parts
    prompts = tokens - local * t.width
    return unit * ((local + unit - 1) // unit * t.width + (prompts + unit - 1) // unit)


def saved_time(t: Table, n: int, past: Counts, tokens: int) -> float:
    """Time that each of several chunks after the first saves [s]; `tokens` are the new ones of all together."""
    before = 0
    for i in range(n):
        before += past[i]
    grid = t.saved_grid
    cells = t.saved_cells
    last = len(cells) - 1
    mean = tokens / n
    old = before / n
    row = cells[int(mean)] if mean <= last else cells[last]
    column = cells[int(old)] if old <= last else cells[last]
    x = (mean - grid[row]) / (grid[row + 1] - grid[row])
    x = min(x, 1.0)
    y = (old - grid[column]) / (grid[column + 1] - grid[column])
    y = min(y, 1.0)
    counts = t.saved_counts
    low = 1
    high = len(counts) - 1
    while low < high:
        middle = (low + high) // 2
        if n < counts[middle]:
            high = middle
        else:
            low = middle + 1
    fewer = (counts[low] - n) / (counts[low] - counts[low - 1])
    fewer = min(fewer, 1.0)
    fewer = max(fewer, 0.0)
    saved = fewer * between(t.saved_times[low - 1], row, column, x, y)
    return saved + (1.0 - fewer) * between(t.saved_times[low], row, column, x, y)


def between(plane: Parts[Numbers], row: int, column: int, x: float, y: float) -> float:
    """A number of a plane between four of its corners.

    >>> between([[1.0, 2.0], [3.0, 4.0]], 0, 0, 0.5, 0.5)
    2.5
    """
    less = plane[row]
    more = plane[row + 1]
    low = less[column] + (less[column + 1] - less[column]) * y
    return low + (more[column] + (more[column + 1] - more[column]) * y - low) * x


def run_time(t: Table, h: Table, decodes: int, keys: float) -> tuple[float, float, int]:
    """Time of a step in which all decode [s], what each later one takes more, and for how many steps that holds."""
    width = t.width
    local = (decodes + t.replicas - 1) // t.replicas
    tokens = local * width
    if t.halved and tokens > t.undivided_alone:
        t = h
    if len(t.alone):
        rest = t.alone[local]
        least = t.alone_floor[local]
    else:
        dense = t.dense
        alike = dense[tokens] if tokens < len(dense) else tokens_time(tokens, dense, t.counts, t.times)
        rest = t.sequences[local] + t.sampled[tokens] + alike
        if len(t.pooled_dense):
            rest += tokens_time(tokens * t.replicas, t.pooled_dense, t.pooled_counts, t.pooled_times)
        least = 0.0 if t.graphs else t.floor[2] + t.sequence_floor * local
    context = keys / decodes + width
    cells = t.cells
    last = len(cells) - 1
    at = cells[int(context)] if context <= last else cells[last]
    row = t.decode[local]
    low = t.grid[at]
    high = t.grid[at + 1]
    left = row[at]
    slope = (row[at + 1] - left) / (high - low)
    time = rest + left + slope * (context - low)
    if time < least:
        return least, 0.0, 1
    return time, slope * width, int((high - context) / width) + 1 if high > context else FOREVER_STEPS


def span(first: float, slope: float, steps: int) -> float:
    """Time of so many steps of a run [s]: n·t + slope·n(n − 1)/2.

    >>> span(1.0, 0.5, 3)  # 1.0 + 1.5 + 2.0
    4.5
    """
    return steps * first + slope * (steps * (steps - 1) / 2)


def steps_within(first: float, slope: float, most: int, seconds: float) -> int:
    """Steps of a run, of `most`, that about so many seconds hold: n ≈ seconds/(t + slope·n/2), but for a few.

    >>> steps_within(1.0, 0.0, 10, 2.5)
    2
    """
    return min(int(seconds / (first + slope * (seconds / first) / 2)), most)


def steps_begun(first: float, slope: float, most: int, seconds: float) -> int:
    """Steps of a run, of `most`, that have begun before so many seconds: the least n of which span(n) reaches them.

    >>> steps_begun(1.0, 0.0, 10, 2.5)
    3
    """
    n = steps_within(first, slope, most, seconds)
    while n < most and span(first, slope, n) < seconds:
        n += 1
    while n > 1 and span(first, slope, n - 1) >= seconds:
        n -= 1
    return max(n, 1)


# --- the queue of a replica, and who has a place in it ----------------------------------------------------------------


def enqueue(k: Rules, c: Clients, s: State, g: int, j: int, back: bool) -> None:
    """Put a request into the queue: at its back, at its front, or by class where the queue is ordered so."""
    before = NOBODY
    after = s.queue_head[g]
    if after != NOBODY and (sooner(c, s.queue_tail[g], j) if k.by_class else back):
        before = s.queue_tail[g]
        after = NOBODY
    while k.by_class and after != NOBODY and sooner(c, after, j):
        before = after
        after = s.queue_after[after]
    s.queue_after[j] = after
    if before == NOBODY:
        s.queue_head[g] = j
    else:
        s.queue_after[before] = j
    if after == NOBODY:
        s.queue_tail[g] = j
    s.waiting[g] += 1


def sooner(c: Clients, j: int, other: int) -> bool:
    """True if a request is more urgent than another, or as urgent and sent before it."""
    return c.priority[j] < c.priority[other] or (c.priority[j] == c.priority[other] and j < other)


def dequeue(s: State, g: int) -> None:
    """Take the first of the queue."""
    s.queue_head[g] = s.queue_after[s.queue_head[g]]
    s.waiting[g] -= 1


def give_place(s: State, g: int, j: int) -> None:
    """Give a request its place, the last of those that have one."""
    before = s.placed_tail[g]
    s.placed_before[j] = before
    s.placed_after[j] = NOBODY
    if before == NOBODY:
        s.placed_head[g] = j
    else:
        s.placed_after[before] = j
    s.placed_tail[g] = j
    s.places[g] += 1


def take_place(s: State, g: int, j: int) -> None:
    """Take a request's place from it."""
    before = s.placed_before[j]
    after = s.placed_after[j]
    if before == NOBODY:
        s.placed_head[g] = after
    else:
        s.placed_after[before] = after
    if after == NOBODY:
        s.placed_tail[g] = before
    else:
        s.placed_before[after] = before
    s.places[g] -= 1


def blocks_of(k: Rules, c: Clients, j: int, keys: int) -> int:
    """Blocks of its own that a request takes with `keys` tokens in the cache; whole cached ones are shared."""
    return (keys + k.block - 1) // k.block - c.cached[j] // k.block


def reserved_for(k: Rules, c: Clients, s: State, j: int) -> int:
    """Blocks that the rest of its answer takes, where an engine admits no request without room for all of it."""
    return blocks_of(k, c, j, c.isl[j] + c.osl[j] - 1) - blocks_of(k, c, j, keys_of(c, s, j))


def keys_of(c: Clients, s: State, j: int) -> int:
    """Tokens that the cache holds of a request once its prefill is done: the latest is not yet computed."""
    return c.isl[j] + s.made[j] - 1 if s.made[j] else c.isl[j]


# --- decoding ---------------------------------------------------------------------------------------------------------


def join(k: Rules, c: Clients, s: State, r: int, j: int) -> None:
    """Let a request decode from the next step on."""
    keys = keys_of(c, s, j)
    s.width[r] += 1
    s.keys[r] += keys
    s.joined[j] = s.decoded[r]
    if k.drafted:
        s.due[j] = 0
        return
    s.offset[j] = (s.decoded[r] - keys) % k.block
    s.due[j] = s.decoded[r] + c.osl[j] - s.made[j]
    s.growing[r][s.offset[j]] += 1
    s.ending[r] += 1
    settle(s.ends[r], s.ending[r], s.ending[r] - 1, s.due[j] * s.requests + j)


def leave(k: Rules, c: Clients, s: State, r: int, j: int) -> None:
    """Let a request decode no more; its tokens and blocks are brought up to date."""
    s.due[j] = NOBODY
    if not k.drafted:
        s.made[j] += s.decoded[r] - s.joined[j]
    keys = keys_of(c, s, j)
    if not k.drafted:
        s.growing[r][s.offset[j]] -= 1
        s.held[j] = blocks_of(k, c, j, keys)
    s.width[r] -= 1
    s.keys[r] -= keys


def settle(heap: Counts, n: int, at: int, key: int) -> None:
    """Put a key into a heap of n at a place, and move it up or down to where it belongs."""
    while at > 0 and heap[(at - 1) // 2] > key:
        heap[at] = heap[(at - 1) // 2]
        at = (at - 1) // 2
    down = 2 * at + 1
    while down < n:
        if down + 1 < n and heap[down + 1] < heap[down]:
            down += 1
        if heap[down] >= key:
            break
        heap[at] = heap[down]
        at = down
        down = 2 * at + 1
    heap[at] = key


def drop_end(s: State, r: int, at: int) -> None:
    """Take a place out of the heap of ends."""
    n = s.ending[r] - 1
    s.ending[r] = n
    if at < n:
        settle(s.ends[r], n, at, s.ends[r][n])


def blocks_needed(k: Rules, c: Clients, s: State, r: int) -> int:
    """Blocks that the next decode step takes; with drafts, if all of them are accepted."""
    if not k.drafted:
        return s.growing[r][s.decoded[r] % k.block]
    blocks = 0
    j = s.placed_head[r // k.lanes]
    while j != NOBODY:
        if s.due[j] >= 0 and s.home[j] == r:
            tokens = c.osl[j] - s.made[j]
            tokens = min(tokens, k.drafted + 1)
            blocks += blocks_of(k, c, j, keys_of(c, s, j) + tokens) - s.held[j]
        j = s.placed_after[j]
    return blocks


def blocks_of_run(k: Rules, s: State, r: int, steps: int) -> int:
    """Blocks that the next decode steps take."""
    growing = s.growing[r]
    size = k.block
    done = s.decoded[r]
    blocks = steps // size * s.width[r]
    for i in range(done, done + steps % size):
        blocks += growing[i % size]
    return blocks


def longest_run(k: Rules, s: State, r: int, most: int) -> int:
    """Decode steps, of `most`, until the next request ends or the blocks run out; at least one."""
    if k.drafted:
        return 1
    steps = min(s.ends[r][0] // s.requests - s.decoded[r], most)
    size = k.block
    free = s.free[r // k.lanes]
    width = s.width[r]
    if width * (steps // size + 1) <= free or blocks_of_run(k, s, r, steps) <= free:
        return steps
    cycles = free // width
    cycles = min(cycles, steps // size)
    steps = cycles * size
    left = free - cycles * width
    growing = s.growing[r]
    more = growing[(s.decoded[r] + steps) % size]
    while more <= left:
        steps += 1
        left -= more
        more = growing[(s.decoded[r] + steps) % size]
    return steps if steps > 1 else 1


def first_draw(seed: int, number: int) -> int:
    """Seed of the numbers of a request, from 1 to MODULUS − 1; requests are numbered from 1.

    >>> first_draw(0, 1)
    48273
    """
    return (1 + 48271 * number + 69621 * 48271 % MODULUS * seed) % (MODULUS - 1) + 1


def accepted(k: Rules, s: State, j: int) -> int:
    """Drafted tokens that are accepted, of which each needs all before it; each request draws from its own numbers.

    The numbers are those of Park and Miller's generator.
    """
    count = 0
    while count < k.drafted:
        s.draw[j] = s.draw[j] * MULTIPLIER % MODULUS
        if s.draw[j] / MODULUS >= k.acceptance[count]:
            break
        count += 1
    return count


def preempt(k: Rules, c: Clients, s: State, r: int) -> None:
    """Take the place of the newest request, or of the least urgent one, and put it back into the queue."""
    g = r // k.lanes
    j = s.placed_tail[g]
    while s.home[j] != r:
        j = s.placed_before[j]
    if k.by_class:
        other = j
        while other != NOBODY:
            if s.home[other] == r and sooner(c, j, other):
                j = other
            other = s.placed_before[other]
    s.counts[PREEMPTED] += 1
    if s.first[j] < 0.0:
        s.place_wait[j] = s.blocked_time[g * k.lanes] - s.place_wait[j]
    if s.due[j] >= 0:
        if not k.drafted:
            at = 0
            while s.ends[r][at] != s.due[j] * s.requests + j:
                at += 1
            drop_end(s, r, at)
        leave(k, c, s, r, j)
        if s.last[j] < 0.0:
            s.last[j] = s.last_pass[r]
    else:
        partial = s.partial[r]
        kept = 0
        for i in range(s.cut_prompts[r]):
            if partial[i] != j:
                partial[kept] = partial[i]
                kept += 1
        s.cut_prompts[r] = kept
    if k.reserves:
        s.reserved[g] -= reserved_for(k, c, s, j)
    take_place(s, g, j)
    s.own_places[r] -= 1
    s.free[g] += s.held[j]
    s.held[j] = 0
    enqueue(k, c, s, g, j, False)


# --- a step -----------------------------------------------------------------------------------------------------------


def made_up(k: Rules, s: State, r: int) -> bool:
    """True if this step was made up before the next of the queue came, where scheduling overlaps."""
    return s.width[r] > 0 and s.queued[s.queue_head[r // k.lanes]] > s.starts[r][0]


def has_place(r: int, c: Clients, k: Rules, s: State) -> bool:
    """True if there is a place for the next in the queue, and room in the cache."""
    g = r // k.lanes
    j = s.queue_head[g]
    if s.places[g] + 1 > k.most:
        return False
    kept = blocks_needed(k, c, s, r) if s.width[r] else 0
    if k.lanes > 1:  # requests are dealt evenly over the lanes
        running = min(s.places[g] + s.waiting[g], k.most)
        if s.own_places[r] >= (running + k.lanes - 1) // k.lanes:
            return False
        for lane in range(g * k.lanes, (g + 1) * k.lanes):
            if lane != r and s.width[lane]:
                kept += blocks_needed(k, c, s, lane)
    kept = s.reserved[g] if s.reserved[g] > kept else kept
    kept += 1 if k.imports else 0  # its next token may begin a block
    kept += reserved_for(k, c, s, j) if k.reserves else 0
    return blocks_of(k, c, j, c.isl[j] + s.made[j]) <= s.free[g] - kept


def unseen(k: Rules, s: State, r: int) -> bool:
    """True if the next of the queue came after the latest look at it, where looks are some steps apart."""
    return s.queued[s.queue_head[r // k.lanes]] > s.seen[r]


def held_back(r: int, c: Clients, k: Rules, s: State) -> int:
    """Decode steps until the next look at the queue, or until prompts have been held back for as long as they may."""
    if k.receive_interval > 1 and unseen(k, s, r):
        return k.receive_interval - (s.decode_steps[r] - s.looked[r]) % k.receive_interval
    if k.batch_wait == 0 or k.imports or not has_place(r, c, k, s):
        return 0
    tokens = s.width[r] * k.width
    j = s.queue_head[r]
    places = k.most - s.places[r]
    while j != NOBODY and places > 0 and tokens < k.budget * k.engines:
        tokens += c.isl[j] + s.made[j] - c.cached[j]
        j = s.queue_after[j]
        places -= 1
    if tokens >= k.budget * k.engines:  # they fill a step: there is nothing to wait for
        return 0
    if s.gathering[r] == NOBODY:
        s.gathering[r] = s.decode_steps[r]
    left = s.gathering[r] + k.batch_wait - s.decode_steps[r]
    return max(left, 0)


def admit(now: float, r: int, c: Clients, k: Rules, s: State) -> bool:
    """Give the next in the queue its place, if there is one."""
    if not has_place(r, c, k, s):
        return False
    g = r // k.lanes
    j = s.queue_head[g]
    needed = blocks_of(k, c, j, c.isl[j] + s.made[j])
    s.computed[j] = c.cached[j]
    s.target[j] = c.isl[j] + s.made[j]
    s.held[j] = needed
    s.free[g] -= needed
    if k.reserves:
        s.reserved[g] += reserved_for(k, c, s, j)
    if s.first[j] < 0.0:
        s.begun[j] = now
        s.place_wait[j] = s.blocked_time[g * k.lanes] - s.place_wait[j]
    s.home[j] = r
    s.own_places[r] += 1
    dequeue(s, g)
    give_place(s, g, j)
    return True


def choose_prompts(now: float, r: int, short: bool, c: Clients, k: Rules, s: State) -> int:
    """Choose the prompts of this step: those begun before, then new ones in order while there is room.

    Returns how many chunks there are; `s.firsts` says how many prompts end with them. Prompts that come computed decode
    in this step.
    """
    g = r // k.lanes
    new = s.chunk_new[r]
    past = s.chunk_past[r]
    who = s.chunk_of[r]
    budget = k.budget * k.engines
    if k.mixes:
        budget -= s.width[r] * k.width
    n = 0
    firsts = 0
    partial = s.partial[r]
    for i in range(s.cut_prompts[r]):
        j = partial[i]
        take = min(s.target[j] - s.computed[j], budget, k.budget)
        if take <= 0:
            break
        budget -= take
        new[n] = take
        past[n] = s.computed[j]
        who[n] = j
        n += 1
        if s.computed[j] + take == s.target[j]:
            firsts += 1
    while not short and s.waiting[g] > 0 and (budget > 0 or not (n > 0 or k.chunks)):
        j = s.queue_head[g]
        if (k.overlap and made_up(k, s, r)) or (k.receive_interval > 1 and unseen(k, s, r)):
            break
        if not k.chunks and n > 0 and c.isl[j] + s.made[j] - c.cached[j] > budget:
            break
        if not admit(now, r, c, k, s):
            s.blocked[r] = True
            break
        if k.imports and s.made[j] == 0:
            s.computed[j] = s.target[j]
            first_token(now, r, j, c, k, s)
            budget -= k.width if k.mixes else 0
            continue
        take = s.target[j] - s.computed[j]
        if k.chunks:
            take = min(take, budget, k.budget)
            if take < s.target[j] - s.computed[j]:
                partial[s.cut_prompts[r]] = j
                s.cut_prompts[r] += 1
        budget -= take
        new[n] = take
        past[n] = s.computed[j]
        who[n] = j
        n += 1
        if s.computed[j] + take == s.target[j]:
            firsts += 1
    s.firsts[r] = firsts
    return n


def begin(now: float, r: int, c: Clients, k: Rules, t: Table, h: Table, s: State) -> None:
    """Form the next step of a replica, or a run of decode steps in which nothing happens; none if nothing is to do."""
    g = r // k.lanes
    short = False
    width = s.width[r]
    while width and (k.drafted or width > s.free[g]) and blocks_needed(k, c, s, r) > s.free[g]:
        preempt(k, c, s, r)
        short = True
        width = s.width[r]
    n = 0
    held = 0
    if k.receive_interval > 1 and (width == 0 or (s.decode_steps[r] - s.looked[r]) % k.receive_interval == 0):
        s.seen[r] = now
    if (k.receive_interval > 1 or k.batch_wait) and width and s.waiting[g] > 0 and s.cut_prompts[r] == 0:
        held = held_back(r, c, k, s)
    s.blocked[r] = width > 0 and not k.joins and s.waiting[g] > 0
    late = s.waiting[g] > 0 and k.overlap > 0 and made_up(k, s, r)
    if held == 0 and (s.cut_prompts[r] > 0 or (s.waiting[g] > 0 and not late)) and (k.joins or width == 0):
        n = choose_prompts(now, r, short, c, k, s)
        if k.imports:  # prompts that come computed have joined
            width = s.width[r]
            late = s.waiting[g] > 0 and k.overlap > 0 and made_up(k, s, r)
    decodes = width if k.mixes or n == 0 else 0
    if decodes == 0 and n == 0:
        s.until[r] = FOREVER
        return
    steps = 1
    slope = 0.0
    prompts = 0.0
    padded = decodes
    keys = s.keys[r]
    if k.pads:
        padded += s.ghosts[r] if decodes else 0
        keys += s.ghost_keys[r]
    if n:
        time = step_time(t, h, padded, keys, n, s.chunk_new[r], s.chunk_past[r], s.firsts[r], s.most_new, s.most_past)
        prompts = time
        if decodes:
            if len(t.drafting):
                time += t.drafting[padded]
                prompts = time - t.drafting[padded]
            alone, slope, steps = run_time(t, h, padded, keys)
            slope = 0.0
            steps = 1
            prompts = prompts - alone if prompts > alone else 0.0
        if t.prompt_factor != 1.0 or t.decode_factor != 1.0:
            time = (time - prompts) * t.decode_factor + prompts * t.prompt_factor
            prompts *= t.prompt_factor
    else:
        time, slope, most = run_time(t, h, padded, keys)
        if len(t.drafting):
            time += t.drafting[padded]
        time *= t.decode_factor
        slope *= t.decode_factor
        if most > 1 and k.lanes == 1 and not short and not late:
            steps = longest_run(k, s, r, min(most, held) if held else most)
    s.began[r] = now
    s.time[r] = time
    s.slope[r] = slope
    s.steps[r] = steps
    s.decodes[r] = decodes
    s.chunks[r] = n
    s.prompts_time[r] = prompts
    s.until[r] = now + (time if steps == 1 else span(time, slope, steps))
    if k.lanes > 1:  # the stages take one step after the other, each of the busiest for its share
        stage = prompts * t.prompt_stage + (time - prompts) * t.decode_stage
        start = s.entry[g] if s.entry[g] > now else now
        s.until[r] = start + time
        s.until[r] = max(s.until[r], s.exit[g] + stage)
        s.entry[g] = start + stage
        s.exit[g] = s.until[r]
    stamp = s.counts[STAMP] + 1
    s.counts[STAMP] = stamp
    s.stamp[r] = stamp


def note_gaps(s: State, r: int) -> None:
    """Log the gaps between tokens that a step gives: one for every sequence, the first since its own latest token."""
    first_end = s.began[r] + s.time[r]
    old = s.decodes[r]
    fresh = s.fresh[r]
    for i in range(s.newcomers[r]):
        j = fresh[i]
        if s.due[j] >= 0 and s.last[j] >= 0.0:
            note_gap(s, first_end - s.last[j], 1)
            old -= 1
            s.last[j] = -1.0
    s.newcomers[r] = 0
    if old > 0:
        note_gap(s, first_end - s.last_pass[r], old)


def note_gap(s: State, gap: float, count: int) -> None:
    """Log a gap between tokens that `count` sequences had."""
    at = s.counts[GAPS]
    s.gap[at] = gap
    s.gap_count[at] = count
    s.counts[GAPS] = at + 1


def note_step(k: Rules, s: State, r: int) -> None:
    """Log a step, or a run of steps, as it ends."""
    at = s.counts[ROWS]
    s.log_replica[at] = r
    s.log_end[at] = s.until[r]
    s.log_time[at] = s.time[r]
    s.log_slope[at] = s.slope[r]
    s.log_steps[at] = s.steps[r]
    s.log_decodes[at] = s.decodes[r]
    s.log_prompts[at] = s.chunks[r]
    s.log_waiting[at] = s.waiting[r // k.lanes]
    s.log_free[at] = s.free[r // k.lanes]
    s.counts[ROWS] = at + 1


def first_token(now: float, r: int, j: int, c: Clients, k: Rules, s: State) -> bool:
    """A prefill is complete and its token comes out; whether that was the last."""
    s.made[j] += 1
    if s.first[j] < 0.0:
        s.first[j] = now
        s.delayed[j] = s.delays[r]
    elif s.logging:
        note_gap(s, now - s.last[j], 1)
    s.last[j] = now
    if s.made[j] == c.osl[j]:
        return True
    join(k, c, s, r, j)
    if s.logging:
        s.fresh[r][s.newcomers[r]] = j
        s.newcomers[r] += 1
    return False


def finish(now: float, r: int, j: int, c: Clients, k: Rules, s: State) -> None:
    """The last token of a request is out: it gives everything back."""
    g = r // k.lanes
    if k.reserves:
        s.reserved[g] -= reserved_for(k, c, s, j)
    if k.pads:
        s.ghosts[r] += 1
        s.ghost_keys[r] += keys_of(c, s, j)
    take_place(s, g, j)
    s.own_places[r] -= 1
    s.free[g] += s.held[j]
    s.held[j] = 0
    s.end[j] = now
    s.delayed[j] = s.delays[r] - s.delayed[j]
    s.counts[DONE] += 1


def advance(now: float, r: int, c: Clients, k: Rules, s: State) -> int:
    """Make the decode steps under way; returns how many requests end with them."""
    ended = 0
    g = r // k.lanes
    steps = s.steps[r]
    if k.pads:
        s.ghost_keys[r] += s.ghosts[r] * steps
    if k.drafted:
        s.decoded[r] += 1
        j = s.placed_head[g]
        while j != NOBODY:
            after = s.placed_after[j]
            if s.due[j] >= 0 and s.home[j] == r:
                tokens = accepted(k, s, j) + 1
                tokens = min(tokens, c.osl[j] - s.made[j])
                blocks = blocks_of(k, c, j, keys_of(c, s, j) + tokens) - s.held[j]
                s.free[g] -= blocks
                s.reserved[g] -= blocks if k.reserves else 0
                s.held[j] += blocks
                s.made[j] += tokens
                s.tokens_out[r] += tokens
                s.keys[r] += tokens
                if s.made[j] == c.osl[j]:
                    leave(k, c, s, r, j)
                    finish(now, r, j, c, k, s)
                    ended += 1
            j = after
        return ended
    blocks = blocks_of_run(k, s, r, steps) if steps > 1 else s.growing[r][s.decoded[r] % k.block]
    if blocks:
        s.free[g] -= blocks
        if k.reserves:
            s.reserved[g] -= blocks
    decoded = s.decoded[r] + steps
    s.decoded[r] = decoded
    made = steps * s.width[r]
    s.tokens_out[r] += made
    s.keys[r] += made
    heap = s.ends[r]
    beyond = (decoded + 1) * s.requests  # keys of the heap that are below end now
    while s.ending[r] > 0 and heap[0] < beyond:
        j = heap[0] % s.requests
        drop_end(s, r, 0)
        leave(k, c, s, r, j)
        finish(now, r, j, c, k, s)
        ended += 1
    return ended


def end(now: float, r: int, c: Clients, k: Rules, s: State) -> int:
    """Book the step or run under way as it ends; returns how many requests end with it."""
    steps = s.steps[r]
    decodes = s.decodes[r]
    n = s.chunks[r]
    took = now - s.began[r]
    if s.logging:
        note_step(k, s, r)
    if k.overlap:
        starts = s.starts[r]
        for m in range(k.overlap):
            i = steps - k.overlap + m
            if i > 0:
                starts[m] = s.began[r] + span(s.time[r], s.slope[r], i)
            else:
                starts[m] = s.began[r] if i == 0 else starts[m + steps]
    s.steps_made[r] += steps
    s.busy[r] += took
    s.sequence_time[r] += took * (decodes + n)
    s.block_time[r] += took * (k.blocks - s.free[r // k.lanes]) / k.lanes
    if s.blocked[r]:
        s.blocked_time[r] += took
    if n:
        s.delays[r] += s.prompts_time[r]
    ended = 0
    if decodes:
        s.decode_steps[r] += steps
        if s.logging:
            note_gaps(s, r)
        ended = advance(now, r, c, k, s)
        s.last_pass[r] = now
        s.passed[r] = decodes
    if n:
        s.looked[r] = s.decode_steps[r]
        s.gathering[r] = NOBODY
        who = s.chunk_of[r]
        new = s.chunk_new[r]
        for i in range(n):
            j = who[i]
            s.prompt_tokens[r] += new[i]
            s.computed[j] += new[i]
            if s.computed[j] == s.target[j] and first_token(now, r, j, c, k, s):
                finish(now, r, j, c, k, s)
                ended += 1
        partial = s.partial[r]
        kept = 0
        for i in range(s.cut_prompts[r]):
            j = partial[i]
            if s.computed[j] < s.target[j]:
                partial[kept] = j
                kept += 1
        s.cut_prompts[r] = kept
        s.chunks[r] = 0
    if k.pads and s.width[r] == 0:
        s.ghosts[r] = 0
        s.ghost_keys[r] = 0
    return ended


# --- the way of a request ---------------------------------------------------------------------------------------------


def post(time: float, kind: int, j: int, s: State) -> None:
    """Foresee what happens next to a request, behind all that happens no later."""
    counts = s.counts
    before = NOBODY
    after = counts[HEAD]
    if after != NOBODY and s.event_time[counts[TAIL]] <= time:
        before = counts[TAIL]
        after = NOBODY
    while after != NOBODY and s.event_time[after] <= time:
        before = after
        after = s.event_after[after]
    s.event_after[j] = after
    if before == NOBODY:
        counts[HEAD] = j
    else:
        s.event_after[before] = j
    if after == NOBODY:
        counts[TAIL] = j
    s.event_time[j] = time
    s.event_kind[j] = kind
    stamp = counts[STAMP] + 1
    counts[STAMP] = stamp
    s.event_stamp[j] = stamp


def send(now: float, j: int, c: Clients, k: Rules, s: State) -> None:
    """A client sends a request; a front end reads one after the other."""
    s.sent[j] = now
    if c.front[j] > 0.0:
        lane = j % len(s.reading)
        s.queue_after[j] = NOBODY
        if s.reading[lane] == NOBODY:
            s.reading[lane] = j
            read(now, j, c, k, s)
        else:
            s.queue_after[s.unread[lane]] = j
        s.unread[lane] = j
    else:
        pass_encoders(now, j, c, k, s)


def read(now: float, j: int, c: Clients, k: Rules, s: State) -> None:
    """A front end begins to read a request."""
    lane = j % len(s.reading)
    behind = 0.0
    if k.stream > 0.0:
        g = lane % k.replicas
        made = 0
        for r in range(g * k.lanes, (g + 1) * k.lanes):
            over = steps_over(now, r, s)
            behind += unsent(now, r, over, k, s)
            made += s.tokens_out[r] + over * s.decodes[r]
        s.sent_before[lane] = made
    s.read_since[lane] = now
    s.behind[lane] = behind
    post(now + c.front[j] + max(0.0, behind - c.isl[j] * k.tokeniser), READY, j, s)


def have_read(now: float, j: int, c: Clients, k: Rules, s: State) -> None:
    """A front end has read a request, and reads the next; before that it has sent the tokens made until now.

    It sends beside a tokeniser that has a thread of its own. With more tokens than it can send, the rest of a request
    takes it 1/LEAST_LEFT times its work at most.
    """
    lane = j % len(s.reading)
    if k.stream > 0.0:
        sent = tokens_made(now, lane % k.replicas, k, s) - s.sent_before[lane]
        elapsed = now - s.read_since[lane]
        beside = c.isl[j] * k.tokeniser
        left = c.front[j] + max(0.0, s.behind[lane] + sent * (k.stream / k.front_ends) - beside) - elapsed
        left = min(left, beside + (c.front[j] - beside) / LEAST_LEFT - elapsed)
        if left > k.stream:
            post(now + left, READY, j, s)
            return
    after = s.queue_after[j]
    s.reading[lane] = after
    if after != NOBODY:
        read(now, after, c, k, s)
    if k.hop > 0.0:
        post(now + k.hop, PASSED, j, s)
    else:
        pass_encoders(now, j, c, k, s)


def tokens_made(now: float, g: int, k: Rules, s: State) -> int:
    """Tokens that a replica has decoded by now, those of the run under way included."""
    made = 0
    for r in range(g * k.lanes, (g + 1) * k.lanes):
        made += s.tokens_out[r] + steps_over(now, r, s) * s.decodes[r]
    return made


def unsent(now: float, r: int, over: int, k: Rules, s: State) -> float:
    """Work of a front end for the tokens of the latest step that it has not sent yet [s].

    A front end that falls behind joins the tokens of a sequence, so no more than one step's wait.
    over: decode steps of the run under way that have ended by now.
    """
    ended = s.last_pass[r]
    tokens = s.passed[r]
    if over > 0:
        ended = s.began[r] + span(s.time[r], s.slope[r], over)
        tokens = s.decodes[r]
    return max(0.0, tokens * (k.stream / k.front_ends) - (now - ended))


def steps_over(now: float, r: int, s: State) -> int:
    """Decode steps of the run under way that have ended by now."""
    if s.until[r] == FOREVER or s.decodes[r] == 0:
        return 0
    first = s.time[r]
    began = s.began[r]
    steps = s.steps[r]
    if steps == 1:
        return 1 if began + first <= now else 0
    slope = s.slope[r]
    n = steps_within(first, slope, steps, now - began)
    while n < steps and began + span(first, slope, n + 1) <= now:
        n += 1
    while n > 0 and began + span(first, slope, n) > now:
        n -= 1
    return n


def pass_encoders(now: float, j: int, c: Clients, k: Rules, s: State) -> None:
    """Accelerators that encode images do so before a request is handed over; each part goes to who is free first."""
    free_at = s.encoder_free
    if len(free_at):
        last = now
        begun = FOREVER
        for each in range(len(k.encoder_parts)):
            part = k.encoder_parts[each]
            first = 0
            for i in range(1, len(free_at)):
                if free_at[i] < free_at[first]:
                    first = i
            begins = free_at[first] if free_at[first] > now else now
            begun = min(begun, begins)
            ends = begins + part
            free_at[first] = ends
            s.times[ENCODING] += part
            last = max(last, ends)
        s.times[ENCODER_WAIT] += begun - now
        post(last + k.encoder_send, ENCODED, j, s)
    else:
        come(now, j, c, k, s)


def least_loaded(k: Rules, s: State, free_places: bool) -> int:
    """The replica with the fewest requests; with `free_places` only of those that have one, else nobody."""
    best = NOBODY
    for g in range(k.replicas):
        load = s.waiting[g] + s.places[g]
        if (not free_places or load < k.most) and (best == NOBODY or load < s.waiting[best] + s.places[best]):
            best = g
    return best


def route(c: Clients, k: Rules, s: State) -> int:
    """Choose a replica for the next request; nobody leaves it in the queue in front of all."""
    turn = s.counts[ROUTED]
    if k.router == SHARED:
        return least_loaded(k, s, True)
    s.counts[ROUTED] = turn + 1
    if k.router == LEAST_LOADED:
        return least_loaded(k, s, False)
    if k.router == RANDOM:
        return c.drawn[turn]
    return turn % k.replicas


def come(now: float, j: int, c: Clients, k: Rules, s: State) -> None:
    """A request comes to the queue of a replica, or is refused."""
    s.queued[j] = now
    g = NOBODY if s.counts[HELD_HEAD] != NOBODY else route(c, k, s)
    longest = c.isl[j] + c.osl[j]
    refused = (k.longest > 0 and longest > k.longest) or blocks_of(k, c, j, longest) > k.blocks
    if k.queue_limit >= 0:
        waiting = s.counts[HELD_COUNT] if g == NOBODY else s.waiting[g]
        refused = refused or waiting >= k.queue_limit
    if refused:
        s.end[j] = now
        s.refused[j] = True
        s.counts[REJECTED] += 1
        s.counts[DONE] += 1
        follow(now, c, k, s)
    elif g == NOBODY:
        s.queue_after[j] = NOBODY
        if s.counts[HELD_HEAD] == NOBODY:
            s.counts[HELD_HEAD] = j
        else:
            s.queue_after[s.counts[HELD_TAIL]] = j
        s.counts[HELD_TAIL] = j
        s.counts[HELD_COUNT] += 1
    else:
        submit(now, g, j, c, k, s)


def submit(now: float, g: int, j: int, c: Clients, k: Rules, s: State) -> None:
    """Put a request into the queue of a replica: an idle one looks at it now, a busy one when its step ends."""
    enqueue(k, c, s, g, j, True)
    r = g * k.lanes
    s.place_wait[j] = s.blocked_time[r]
    s.under_way[j] = 0.0
    if k.lanes > 1:
        for lane in range(r, r + k.lanes):
            if s.until[lane] == FOREVER:
                touch(s, lane)
        return
    if s.until[r] == FOREVER:
        touch(s, r)
        return
    steps = s.steps[r]
    behind_others = s.waiting[r] > 1 and not k.by_class and s.gathering[r] == NOBODY  # those before have no place
    if steps > 1 and (s.cut_prompts[r] > 0 or (k.joins and not behind_others and s.width[r] < k.most)):
        steps = steps_begun(s.time[r], s.slope[r], steps, now - s.began[r])
        if steps != s.steps[r]:
            s.steps[r] = steps
            until = s.began[r] + span(s.time[r], s.slope[r], steps)
            if until != s.until[r]:
                s.until[r] = until
                s.counts[STAMP] += 1
                s.stamp[r] = s.counts[STAMP]
    s.under_way[j] = s.until[r] - now
    if s.blocked[r]:
        s.place_wait[j] += s.until[r] - s.began[r]


def touch(s: State, r: int) -> None:
    """Let a replica look for work at this instant."""
    if not s.touched[r]:
        count = s.counts[TOUCHED]
        s.touched[r] = True
        s.order[count] = r
        s.counts[TOUCHED] = count + 1


def follow(now: float, c: Clients, k: Rules, s: State) -> None:
    """Send the user's next request after the end of one; after the last warm-up, one of each user."""
    if c.users == 0:
        return
    s.counts[FLYING] -= 1
    if s.counts[COUNTING] or s.counts[WARMUP] > 0:
        send_some(now, 1, c, k, s)
    elif s.counts[FLYING] == 0:
        s.counts[COUNTING] = 1
        send_some(now, c.users, c, k, s)


def send_some(now: float, count: int, c: Clients, k: Rules, s: State) -> None:
    """Let so many users send, as long as there are requests; no more than the warm-up has while it goes on."""
    if not s.counts[COUNTING] and count > s.counts[WARMUP]:
        count = s.counts[WARMUP]
    for _ in range(count):
        j = s.counts[NEXT]
        if j < s.requests:
            s.counts[NEXT] = j + 1
            s.counts[FLYING] += 1
            if not s.counts[COUNTING]:
                s.counts[WARMUP] -= 1
            post(max(now, c.send[j]), SENT, j, s)


def end_step(now: float, r: int, c: Clients, k: Rules, s: State) -> None:
    """A step ends: its requests leave, their users send again, and the replica looks for work."""
    ended = end(now, r, c, k, s)
    for _ in range(ended):
        follow(now, c, k, s)
    s.until[r] = FOREVER
    touch(s, r)
    if k.lanes > 1 and ended:  # their places and blocks are free for the other lanes too
        first = r // k.lanes * k.lanes
        for lane in range(first, first + k.lanes):
            if s.until[lane] == FOREVER:
                touch(s, lane)
    while s.counts[HELD_HEAD] != NOBODY:
        other = route(c, k, s)
        if other == NOBODY:
            break
        j = s.counts[HELD_HEAD]
        s.counts[HELD_HEAD] = s.queue_after[j]
        s.counts[HELD_COUNT] -= 1
        submit(now, other, j, c, k, s)


def happen(now: float, c: Clients, k: Rules, s: State) -> None:
    """The first of what was foreseen happens to its request."""
    j = s.counts[HEAD]
    s.counts[HEAD] = s.event_after[j]
    kind = s.event_kind[j]
    if kind == SENT:
        send(now, j, c, k, s)
    elif kind == READY:
        have_read(now, j, c, k, s)
    elif kind == PASSED:
        pass_encoders(now, j, c, k, s)
    else:
        come(now, j, c, k, s)


def start(c: Clients, k: Rules, s: State) -> None:
    """Let the first users send; call it once, before `play`."""
    if c.users:
        s.counts[COUNTING] = 0 if c.warmup else 1
        s.counts[WARMUP] = c.warmup
        send_some(0.0, c.users, c, k, s)


def forget(s: State) -> None:
    """Make room for what is written down next."""
    s.counts[ROWS] = 0
    s.counts[GAPS] = 0


def next_end(s: State) -> int:
    """The replica whose step ends next: of several at once, the one whose end was foreseen first."""
    what = 0
    for r in range(1, len(s.until)):
        if s.until[r] < s.until[what] or (s.until[r] == s.until[what] and s.stamp[r] < s.stamp[what]):
            what = r
    return what


def play(c: Clients, k: Rules, t: Table, h: Table, s: State) -> bool:
    """Play on until all requests have ended or the horizon comes; False where the log is full and play goes on later.

    Call `start` before the first time. What has happened stands in `s`.
    """
    counts = s.counts
    until = s.until
    event_time = s.event_time
    engines = k.replicas * k.lanes
    sends = 0 if c.users else s.requests  # requests that come at times of their own
    sending = c.send[counts[NEXT]] if counts[NEXT] < sends else FOREVER
    horizon = min(k.horizon, LATEST)
    now = s.times[NOW]
    while True:
        what = next_end(s) if engines > 1 else 0  # a replica, or one of the two below
        time = until[what]
        stamp = s.stamp[what]
        j = counts[HEAD]
        if j != NOBODY and (event_time[j] < time or (event_time[j] == time and s.event_stamp[j] < stamp)):
            time = event_time[j]
            stamp = s.event_stamp[j]
            what = engines
        if sending < time or (sending == time and counts[ARRIVED] < stamp):
            time = sending
            what = engines + 1
        if counts[TOUCHED] and time > now:
            for i in range(counts[TOUCHED]):
                r = s.order[i]
                s.touched[r] = False
                if until[r] == FOREVER:
                    begin(now, r, c, k, t, h, s)
            counts[TOUCHED] = 0
            continue
        if time > horizon:
            break
        now = time
        if what < engines:
            end_step(now, what, c, k, s)
            if s.logging and (counts[ROWS] >= s.room or counts[GAPS] >= s.room):
                s.times[NOW] = now
                return False
        elif what == engines:
            happen(now, c, k, s)
        else:
            j = counts[NEXT]
            counts[NEXT] = j + 1
            counts[STAMP] += 1
            counts[ARRIVED] = counts[STAMP]  # the sending of the next is foreseen now
            sending = c.send[j + 1] if j + 1 < sends else FOREVER
            send(now, j, c, k, s)
    s.times[NOW] = now
    return True
