"""Simulations that the loop of `rooflinekit.load` plays, with the books that the object simulator keeps.

It plays all that has no blocks with content, no memory behind the accelerators and no pools. There the two agree to the
last bit, and the loop is faster.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any

from rooflinekit.estimation.loaded import token_parts
from rooflinekit.load.answer import LoadPlay
from rooflinekit.load.arrays import Clients, Rules, State
from rooflinekit.load.loop import DONE, GAPS, ROWS
from rooflinekit.load.played import Played, Sample, play
from rooflinekit.load.scene import EncoderStation, Scene
from rooflinekit.model.types.late import np
from rooflinekit.simulation.event_loop import asking_to_stop
from rooflinekit.simulation.ledger import RESOLUTION, Ledger, RequestObjective, Sketch
from rooflinekit.simulation.outcome import ReplicaUse
from rooflinekit.simulation.replica import FULL, ReplicaWork
from rooflinekit.simulation.watch import Timeline

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ROOM = 8192  # steps that are written down at once


def play_scene(
    scene: Scene, clients: Clients, timeline: Timeline | None = None, ended: Callable[[int], None] | None = None
) -> tuple[Played, Sketch, bool]:
    """Play requests on a scene; returns what happened, the gaps between tokens, and whether Ctrl-C ended it early.

    ended: told, as the run goes on, how many requests have ended.
    """
    gaps, rules, stopped = Sketch(), scene.rules, Event()

    def drained(state: State) -> None:
        _add_gaps(state, gaps)
        if ended is not None:
            ended(state.counts[DONE])
        if timeline is not None:
            _add_rows(state, timeline, rules)

    encoders = scene.front.encoders.gpus if scene.front.encoders else 0
    run = partial(play, seed=scene.seed, encoders=encoders, warmup=clients.warmup, room=_ROOM)
    with asking_to_stop(stopped.set):
        played = run(clients, rules, scene.tables, drained=drained, stopped=stopped.is_set)
    return played, gaps, stopped.is_set()


def _add_gaps(state: State, gaps: Sketch) -> None:
    """Add what is written down of gaps between tokens: single ones, and those within runs of decode steps."""
    count, rows = state.counts[GAPS], state.counts[ROWS]
    gaps.add_many(np.array(state.gap[:count]), np.array(state.gap_count[:count]))  # type: ignore[index]
    logs = (state.log_time, state.log_slope, state.log_steps, state.log_decodes)
    first, slope, steps, decodes = (np.array(each[:rows]) for each in logs)  # type: ignore[index]
    runs = (steps > 1) & (decodes > 0)
    first, slope, steps, decodes = (each[runs] for each in (first, slope, steps, decodes))
    even = np.abs(slope) * (steps - 2) <= RESOLUTION * first
    gaps.add_many((first + slope * steps / 2.0)[even], ((steps - 1) * decodes)[even])
    for t, more, n, width in zip(*(each[~even].tolist() for each in (first, slope, steps, decodes)), strict=True):
        gaps.add_run(t + more, more, n - 1, width)


def _add_rows(state: State, timeline: Timeline, rules: Rules) -> None:
    """Add what is written down of steps to a timeline."""
    for at in range(state.counts[ROWS]):
        now, replica = float(state.log_end[at]), int(state.log_replica[at])
        if timeline.due(now, replica):
            used = float((rules.blocks - state.log_free[at]) / rules.blocks)
            counts = (int(each[at]) for each in (state.log_waiting, state.log_decodes, state.log_prompts))
            timeline.see(now, replica, *counts, used)


def samples_of(played: Played) -> dict[str, Sample]:
    """Latencies of the requests that count, exact, by their names in a `Ledger`."""
    queued = (played.begun - played.queued)[played.counted]
    found = {"ttft": played.ttft, "tpot": played.tpot, "e2el": played.e2e, "queued": queued}
    return {name: Sample(values) for name, values in found.items()}


def ledger_of(played: Played, gaps: Sketch, objective: RequestObjective) -> Ledger:
    """The books of a load that was played."""
    ledger, finished, counted = Ledger(objective), played.finished, played.counted
    for name, sample in samples_of(played).items():
        setattr(ledger, name, Sketch.made(sample.values))
    ledger.itl = gaps
    ledger.arrived, ledger.finished = played.arrived, int(finished.sum())
    ledger.rejected = int(played.refused.sum())
    ledger.cut = ledger.arrived - ledger.finished - ledger.rejected
    ledger.good = played.good(objective.ttft, objective.tpot)
    ledger.preempted, ledger.measured = played.preempted, int(counted.sum())
    ledger.measured_tokens = int(played.osl[counted].sum())
    ledger.last_end = float(played.end[finished].max()) if finished.any() else 0.0
    ledger.measured_from = float(played.sent[counted].min()) if counted.any() else math.inf
    ledger.refusals = _refusals(played)
    return ledger


def _refusals(played: Played) -> Counter[str]:
    """Reasons of refusals, with counts."""
    rules, whole = played.rules, played.isl + played.osl
    long = (whole > rules.longest) if rules.longest else played.refused & False
    large = -(-whole // rules.block) > rules.blocks
    reasons = (
        (long, f"longer than the {rules.longest:,} tokens of the longest sequence that is admitted"),
        (large & ~long, f"larger than the cache of {rules.blocks * rules.block:,} tokens"),
        (~large & ~long, FULL),
    )
    counts = ((why, int((played.refused & which).sum())) for which, why in reasons)
    return Counter({why: count for why, count in counts if count})


def works_of(played: Played) -> list[ReplicaWork]:
    """Work of each replica."""
    times = ("busy", "sequence_time", "block_time")
    names = ("steps_made", "decode_steps", *times, "prompt_tokens", "tokens_out")
    columns = (played.replicas[name].astype(float if name in times else int).tolist() for name in names)
    return [ReplicaWork(*row) for row in zip(*columns, strict=True)]


def uses_of(played: Played, works: Iterable[ReplicaWork], encoders: EncoderStation | None) -> tuple[ReplicaUse, ...]:
    """Use of each replica over the run, and the accelerators that encode images."""
    uses = [ReplicaUse.of("serve", work, played.rules.blocks, played.now, None, {}) for work in works]
    if encoders:
        parts = len(encoders.parts) * len(played.sent)
        uses.append(ReplicaUse.encoders(encoders.gpus, played.encoding, parts, played.now))
    return tuple(uses)


def parts_of(found: LoadPlay) -> tuple[dict[str, float], dict[str, float]] | None:
    """Parts of the means of TTFT and TPOT [ms]; None where no request counts."""
    if not found.played.counted.any():
        return None
    return {name: 1e3 * part for name, part in found.played.first_parts._asdict().items()}, token_parts(found)


def pieces_of(played: Played) -> Sequence[tuple[object, ...]]:
    """Latencies by parts of the run, for standard errors."""
    counted = played.counted
    several: NDArray[Any] = counted & (played.osl > 1)
    firsts, wholes = (played.pieces(each, counted) for each in (played.ttft, played.e2e))
    tokens = played.pieces(played.tpot, several)
    if len(tokens) < len(firsts):
        tokens += [Sample(np.array([]))] * (len(firsts) - len(tokens))
    return tuple(zip(firsts, tokens, wholes, strict=True))
