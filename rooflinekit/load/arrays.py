"""The records that the loop reads and writes: named tuples of numbers and arrays."""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

Item = TypeVar("Item")
Part_co = TypeVar("Part_co", covariant=True)


class Array(Protocol[Item]):
    """A list, a NumPy array, or a typed array of JavaScript."""

    def __len__(self) -> int: ...
    def __getitem__(self, place: int, /) -> Item: ...
    def __setitem__(self, place: int, value: Item, /) -> None: ...


class Parts(Protocol[Part_co]):
    """Arrays in a row."""

    def __getitem__(self, place: int, /) -> Part_co: ...


Numbers: TypeAlias = "Array[float]"
Counts: TypeAlias = "Array[int]"
Flags: TypeAlias = "Array[bool]"

_NONE: Numbers = []


class Clients(NamedTuple):
    """Requests of clients: one entry a request, in the order in which they are sent.

    users: of a closed loop, 0 of an open one; warmup: requests of a closed loop that end before the counted ones begin;
    send: when an open loop sends [s]; isl, osl, cached: tokens in, out, and of the prompt already in the cache;
    priority: the lowest is first, where queues are ordered so; front: work of the front end [s]; drawn: replicas that a
    random router chooses, one after the other.
    """

    users: int
    warmup: int
    send: Numbers
    isl: Counts
    osl: Counts
    cached: Counts
    priority: Counts
    front: Numbers
    drawn: Counts

    @classmethod
    def closed(cls, users: int, isl: Counts, osl: Counts) -> Clients:
        """Users of a closed loop whose requests pass no front end."""
        n = len(isl)
        return cls(users, 0, [0.0] * n, isl, osl, [0] * n, [0] * n, [0.0] * n, [])


class Rules(NamedTuple):
    """Rules of the engine's scheduler; see `rooflinekit.load.policies` for the policy's four choices.

    budget: tokens of a step of one attention replica; most: sequences that run at once; engines: attention replicas;
    overlap: steps made up before the one under way has ended; longest: tokens of a sequence at most, 0 for any;
    queue_limit: waiting requests beyond which more are refused, -1 for none; blocks, block: of the cache of a replica,
    and tokens of each; width: tokens that a sequence computes in a decode step; drafted, acceptance: tokens of its
    draft in a row, and for each the chance that it is accepted if those before it were; lanes: parts of a replica's
    sequences that its pipeline stages compute at once; front_ends: of each replica; stream: what one of them does for
    each token that comes out, and a thread beside it for each token of a prompt [s]; hop: from there to the queue
    [s]; horizon: when the run ends [s]; receive_interval: decode steps from one look at the queue to the next;
    batch_wait: decode steps for which prompts are held back, so that several are computed together; imports: prompts
    come from prefill replicas, computed and with their first token.
    """

    mixes: bool
    chunks: bool
    joins: bool
    pads: bool
    by_class: bool
    reserves: bool
    imports: bool
    budget: int
    most: int
    engines: int
    overlap: int
    longest: int
    queue_limit: int
    receive_interval: int
    batch_wait: int
    blocks: int
    block: int
    width: int = 1
    drafted: int = 0
    acceptance: Numbers = _NONE
    replicas: int = 1
    lanes: int = 1
    router: int = 0
    front_ends: int = 1
    stream: float = 0.0
    tokeniser: float = 0.0
    hop: float = 0.0
    encoder_parts: Numbers = _NONE
    encoder_send: float = 0.0
    horizon: float = math.inf


class Table(NamedTuple):
    """A step table as the loop reads it; `rooflinekit.load.table.StepTable` says what each field is."""

    dense: Numbers
    counts: Numbers
    times: Numbers
    pooled_dense: Numbers
    pooled_counts: Numbers
    pooled_times: Numbers
    sampled: Numbers
    sequences: Numbers
    grid: Numbers
    cells: Counts
    decode: Parts[Numbers]
    prefill: Parts[Parts[Numbers]]
    launch: float
    width: int
    replicas: int
    floor: Numbers
    graph_floor: Numbers
    graph_tokens: float
    sequence_floor: float
    graphs: bool
    encoded: Numbers
    encoded_floor: float
    budget: int
    alone: Numbers
    alone_floor: Numbers
    exchanged_dense: Numbers
    exchanged_counts: Numbers
    exchanged_times: Numbers
    halved: bool
    undivided_alone: float
    undivided: float
    summed: bool
    keyed_dense: Numbers
    keyed_counts: Numbers
    keyed_times: Numbers
    seen: float
    unsampled: float
    tiled: float
    ranks: int
    parts: int
    saved_counts: Numbers
    saved_grid: Numbers
    saved_cells: Counts
    saved_times: Parts[Parts[Numbers]]
    drafting: Numbers
    decode_stage: float = 1.0  #: share of a decode step for which the busiest pipeline stage works on it
    prompt_stage: float = 1.0  #: the same of what prompts add
    decode_factor: float = 1.0  #: of decode steps, where all steps stand at an end of their interval
    prompt_factor: float = 1.0  #: of what prompts add to a step


class State(NamedTuple):
    """All that changes while a load is played.

    sent, queued, begun, first, end: when a request was sent, came to a queue, got its place, gave its first token and
    its last [s]; under_way: until the step under way as it came had ended; place_wait: its wait for a place;
    delayed: by prompts of others while it decoded [s]; refused: whether nobody took it; home: its replica.

    The rest is what the loop needs to go on: who waits, who has a place, blocks and tokens of each replica, and sums of
    what each has done. With `logging`, steps and gaps between tokens are written down until `room` is used.
    """

    requests: int
    sent: Numbers
    queued: Numbers
    begun: Numbers
    first: Numbers
    end: Numbers
    under_way: Numbers
    place_wait: Numbers
    delayed: Numbers
    last: Numbers
    refused: Flags
    home: Counts
    made: Counts
    computed: Counts
    target: Counts
    joined: Counts
    due: Counts
    held: Counts
    offset: Counts
    draw: Counts
    queue_after: Counts
    placed_before: Counts
    placed_after: Counts
    event_time: Numbers
    event_kind: Counts
    event_stamp: Counts
    event_after: Counts
    # of each replica
    until: Numbers
    stamp: Counts
    touched: Flags
    order: Counts
    queue_head: Counts
    queue_tail: Counts
    waiting: Counts
    placed_head: Counts
    placed_tail: Counts
    places: Counts
    free: Counts
    reserved: Counts
    width: Counts
    keys: Counts
    decoded: Counts
    growing: Parts[Counts]
    ends: Parts[Counts]
    ending: Counts
    partial: Parts[Counts]
    cut_prompts: Counts
    own_places: Counts
    entry: Numbers
    exit: Numbers
    chunk_new: Parts[Counts]
    chunk_past: Parts[Counts]
    chunk_of: Parts[Counts]
    chunks: Counts
    firsts: Counts
    ghosts: Counts
    ghost_keys: Counts
    began: Numbers
    time: Numbers
    slope: Numbers
    steps: Counts
    decodes: Counts
    prompts_time: Numbers
    blocked: Flags
    starts: Parts[Numbers]
    last_pass: Numbers
    passed: Counts
    fresh: Parts[Counts]
    newcomers: Counts
    seen: Numbers
    looked: Counts
    gathering: Counts
    # sums of each replica
    steps_made: Counts
    decode_steps: Counts
    busy: Numbers
    sequence_time: Numbers
    block_time: Numbers
    blocked_time: Numbers
    delays: Numbers
    tokens_out: Counts
    prompt_tokens: Counts
    # of all
    counts: Counts
    times: Numbers
    reading: Counts
    unread: Counts
    read_since: Numbers
    behind: Numbers
    sent_before: Counts
    encoder_free: Numbers
    most_new: Counts
    most_past: Counts
    # what is written down
    logging: bool
    room: int
    log_replica: Counts
    log_end: Numbers
    log_time: Numbers
    log_slope: Numbers
    log_steps: Counts
    log_decodes: Counts
    log_prompts: Counts
    log_waiting: Counts
    log_free: Counts
    gap: Numbers
    gap_count: Counts
