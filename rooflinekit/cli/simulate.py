"""`rooflinekit simulate`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooflinekit.cli.command import check_pictures, command, write_pictures
from rooflinekit.cli.guard import INTERRUPTED
from rooflinekit.cli.output import emit, rendered, to_csv, to_json
from rooflinekit.cli.progress import counting
from rooflinekit.estimation.scenario import Accelerator, Pictures, Simulation, Traced, Written
from rooflinekit.specs.writing import check_target

if TYPE_CHECKING:
    from rooflinekit.simulation.event_loop import Watch
    from rooflinekit.simulation.replica import Replica

__all__ = ["simulate"]

_EVERY = 1000  # requests between two moves of the progress bar


@command(
    Accelerator, Simulation, Traced, Pictures, Written,
    examples=(
        "rooflinekit simulate llama3-8b --rate 12rps --isl lognormal:mean=1000,cv=0.8 --ttft 500ms --tpot 40ms",
        "rooflinekit simulate llama-3-70b --tp 8 --trace conversation.csv --prefix-cache --replicas 4",
    ),
)  # fmt: skip
def simulate(
    model: str, *, timeline: Path | None = None, chrome_trace: Path | None = None, plots: Path | None = None,
    format: str = "table", out: Path | None = None, force: bool = False, **scenario: Any,
) -> int:  # fmt: skip
    """Serve requests step by step, and say what users feel: percentiles of TTFT, TPOT and latency under load."""
    from rooflinekit.report.simulation import outcome_markdown, outcome_text
    from rooflinekit.simulation.simulate import simulate as run
    from rooflinekit.simulation.watch import TIMELINE, ChromeTrace, both

    for path in (out, timeline, chrome_trace):
        if path is not None:
            check_target(path, force)
    check_pictures(plots, "simulation", force)
    events = ChromeTrace() if chrome_trace else None
    with _progress(scenario.get("requests")) as progress:
        outcome = run(model, watch=both(progress, events), **scenario)
    if timeline is not None:
        emit(to_csv(outcome.timeline or [dict.fromkeys(TIMELINE)]), timeline, force)
    if chrome_trace is not None and events is not None:
        emit(to_json(events.to_dict()), chrome_trace, force)
    write_pictures(outcome, plots, force)
    emit(rendered(outcome, format, lambda: [outcome.to_row()], outcome_text, outcome_markdown), out, force)
    return INTERRUPTED if outcome.interrupted else 0


@contextmanager
def _progress(total: int | None) -> Iterator[Watch]:
    """Move a bar as requests end."""
    with counting("thousands of requests", total and -(-total // _EVERY)) as step:
        shown = 0

        def watch(index: int, replica: Replica, now: float) -> None:
            nonlocal shown
            while shown * _EVERY < replica.ledger.finished:
                step("")
                shown += 1

        yield watch
