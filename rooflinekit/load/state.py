"""The arrays that the loop writes, made as lists for CPython or as NumPy arrays for numba."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar, cast

from rooflinekit.load.arrays import Clients, Rules, State, Table
from rooflinekit.load.loop import COUNTERS, FOREVER, HEAD, HELD_HEAD, MODULUS, NOBODY, TIMES, first_draw
from rooflinekit.model.types.late import np

Record = TypeVar("Record", Clients, Rules, Table, State)


@cache
def _slotted(name: str, fields: tuple[str, ...]) -> type:
    return type(f"Quick{name}", (), {"__slots__": fields})


def quick(record: Record) -> Record:
    """Copy the fields to an object with slots, for `play` on lists: CPython reads them faster than a named tuple's.

    >>> quick(Rules(*range(len(Rules._fields)))).budget
    7
    """
    made = _slotted(type(record).__name__, record._fields)()
    for name, value in zip(record._fields, record, strict=True):
        setattr(made, name, value)
    return cast(Record, made)


@dataclass(frozen=True)
class Makers:
    """Functions that make arrays of so many equal numbers or whole numbers, in rows or not."""

    numbers: Callable[[int, float], Any]
    counts: Callable[[int, int], Any]
    flags: Callable[[int], Any]
    rows: Callable[[int, int], Any]  #: of whole numbers, all 0
    number_rows: Callable[[int, int], Any]
    draws: Callable[[int, int], Any]  #: first random numbers of so many requests, by the seed of a load


LISTS = Makers(
    numbers=lambda n, value: [value] * n,
    counts=lambda n, value: [value] * n,
    flags=lambda n: [False] * n,
    rows=lambda n, length: [[0] * length for _ in range(n)],
    number_rows=lambda n, length: [[0.0] * length for _ in range(n)],
    draws=lambda seed, n: [first_draw(seed, number) for number in range(1, n + 1)],
)
"""Lists, on which CPython is three to four times as fast as on arrays."""


def numpy_arrays() -> Makers:
    """NumPy arrays, for numba."""
    return Makers(
        numbers=lambda n, value: np.full(n, value, float) if value else np.zeros(n),
        counts=lambda n, value: np.full(n, value, np.int64) if value else np.zeros(n, np.int64),
        flags=lambda n: np.zeros(n, np.bool_),
        rows=lambda n, length: np.zeros((n, length), np.int64),
        number_rows=lambda n, length: np.zeros((n, length)),
        draws=lambda seed, n: first_draw(seed % (MODULUS - 1), cast(int, np.arange(1, n + 1))),  # all below 2⁶³
    )


def new_state(  # noqa: PLR0913, PLR0917 - what there is to lay out
    rules: Rules, requests: int, seed: int = 0, encoders: int = 0, room: int = 0, make: Makers = LISTS
) -> State:
    """The state before anything has happened.

    Args:
        rules: the engine's.
        requests: how many are sent in all.
        seed: of the numbers that drafts are drawn with.
        encoders: accelerators that encode images.
        room: steps and gaps that are written down before `play` comes back; 0 writes down nothing.
        make: lists or arrays.
    """
    n, groups, most = requests, rules.replicas, rules.most
    replicas = groups * rules.lanes
    numbers, counts, flags, rows = make.numbers, make.counts, make.flags, make.rows
    per_step = most + 2
    log = room + 2 * per_step + 2 if room else 0
    counters = counts(COUNTERS, 0)
    for place in (HEAD, HELD_HEAD):
        counters[place] = NOBODY
    times = numbers(TIMES, 0.0)
    draw = make.draws(seed, n if rules.drafted else 0)
    growing = rows(replicas, rules.block)
    return State(
        requests=n, sent=numbers(n, 0.0), queued=numbers(n, 0.0), begun=numbers(n, 0.0), first=numbers(n, -1.0),
        end=numbers(n, -1.0), under_way=numbers(n, 0.0), place_wait=numbers(n, 0.0), delayed=numbers(n, 0.0),
        last=numbers(n, -1.0), refused=flags(n), home=counts(n, NOBODY), made=counts(n, 0), computed=counts(n, 0),
        target=counts(n, 0), joined=counts(n, 0), due=counts(n, NOBODY), held=counts(n, 0), offset=counts(n, 0),
        draw=draw, queue_after=counts(n, NOBODY), placed_before=counts(n, NOBODY),
        placed_after=counts(n, NOBODY), event_time=numbers(n, 0.0), event_kind=counts(n, 0),
        event_stamp=counts(n, 0), event_after=counts(n, NOBODY),
        until=numbers(replicas, FOREVER), stamp=counts(replicas, 0), touched=flags(replicas), order=counts(replicas, 0),
        queue_head=counts(groups, NOBODY), queue_tail=counts(groups, NOBODY), waiting=counts(groups, 0),
        placed_head=counts(groups, NOBODY), placed_tail=counts(groups, NOBODY), places=counts(groups, 0),
        free=counts(groups, rules.blocks), reserved=counts(groups, 0), width=counts(replicas, 0),
        keys=counts(replicas, 0), decoded=counts(replicas, 0), growing=growing,
        ends=rows(replicas, per_step), ending=counts(replicas, 0), partial=rows(replicas, per_step),
        cut_prompts=counts(replicas, 0), own_places=counts(replicas, 0), entry=numbers(groups, 0.0),
        exit=numbers(groups, 0.0), chunk_new=rows(replicas, per_step), chunk_past=rows(replicas, per_step),
        chunk_of=rows(replicas, per_step), chunks=counts(replicas, 0), firsts=counts(replicas, 0),
        ghosts=counts(replicas, 0), ghost_keys=counts(replicas, 0), began=numbers(replicas, 0.0),
        time=numbers(replicas, 0.0), slope=numbers(replicas, 0.0), steps=counts(replicas, 0),
        decodes=counts(replicas, 0), prompts_time=numbers(replicas, 0.0), blocked=flags(replicas),
        starts=make.number_rows(replicas, max(rules.overlap, 1)), last_pass=numbers(replicas, 0.0),
        passed=counts(replicas, 0),
        fresh=rows(replicas, 2 * per_step if room else 0), newcomers=counts(replicas, 0),
        seen=numbers(replicas, 0.0), looked=counts(replicas, 0), gathering=counts(replicas, NOBODY),
        steps_made=counts(replicas, 0), decode_steps=counts(replicas, 0), busy=numbers(replicas, 0.0),
        sequence_time=numbers(replicas, 0.0), block_time=numbers(replicas, 0.0), blocked_time=numbers(replicas, 0.0),
        delays=numbers(replicas, 0.0), tokens_out=counts(replicas, 0), prompt_tokens=counts(replicas, 0),
        counts=counters, times=times, reading=counts(groups * rules.front_ends, NOBODY),
        unread=counts(groups * rules.front_ends, NOBODY), read_since=numbers(groups * rules.front_ends, 0.0),
        behind=numbers(groups * rules.front_ends, 0.0),
        sent_before=counts(groups * rules.front_ends, 0), encoder_free=numbers(encoders, 0.0),
        most_new=counts(per_step, 0), most_past=counts(per_step, 0), logging=room > 0, room=room,
        log_replica=counts(log, 0), log_end=numbers(log, 0.0),
        log_time=numbers(log, 0.0), log_slope=numbers(log, 0.0), log_steps=counts(log, 0),
        log_decodes=counts(log, 0), log_prompts=counts(log, 0),
        log_waiting=counts(log, 0), log_free=counts(log, 0), gap=numbers(log, 0.0),
        gap_count=counts(log, 0),
    )  # fmt: skip
