"""`rooflinekit simulate`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rooflinekit.cli.estimate import estimate
from rooflinekit.cli.group import INTERRUPTED
from rooflinekit.cli.options import Count, Plots, with_options_of
from rooflinekit.cli.output import Format, emit, to_csv, to_json
from rooflinekit.cli.pictures import check_pictures, write_pictures
from rooflinekit.cli.progress import counting
from rooflinekit.specs.writing import check_target

if TYPE_CHECKING:
    from rooflinekit.simulation.event_loop import Watch
    from rooflinekit.simulation.outcome import Outcome
    from rooflinekit.simulation.replica import Replica

__all__ = ["simulate"]

_WITHOUT = (
    "batch", "cached", "context", "burstiness", "isl_cv", "osl_cv", "draft", "draft_tree", "draft_tp", "allow_oom",
)  # fmt: skip
_EVERY = 1000  # requests between two moves of the progress bar


@with_options_of(estimate, *_WITHOUT)
def simulate(
    model: Annotated[str, typer.Argument(help="Name, Hugging Face id, or path to a config.json or its folder.")],
    rate: Annotated[float | None, typer.Option(help="Requests a second, in an open loop.")] = None,
    cv: Annotated[float, typer.Option(help="Variation of the gaps at --rate: 1 is Poisson, above it bursts.")] = 1.0,
    concurrency: Annotated[int | None, Count("Users who each wait for their answer: a closed loop.")] = None,
    arrivals: Annotated[str | None, typer.Option(help="An arrival process, such as gamma:rate=4,cv=2.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Replay a trace: Azure, Mooncake, BurstGPT, Bailian, CSV.")] = None,
    speed: Annotated[float, typer.Option(help="Replay the trace this many times as fast.")] = 1.0,
    clean: Annotated[bool, typer.Option("--clean", help="Drop rows of a trace that cannot be trusted.")] = False,
    isl: Annotated[str, typer.Option(help="Prompt length: 1024, uniform:100-200, lognormal:mean=900,cv=1.")] = "1024",
    osl: Annotated[str, typer.Option(help="Output length, likewise.")] = "256",
    requests: Annotated[int | None, Count("Requests in all (default: 1000, or 10 a user).")] = None,
    warmup: Annotated[int, Count("Requests before those that count.")] = 0,
    duration: Annotated[float, typer.Option(help="End after this many seconds of simulated time.")] = math.inf,
    samples: Annotated[int, Count("Outputs of each prompt.")] = 1,
    shared_prefix: Annotated[int, Count("Leading prompt tokens that requests have in common.")] = 0,
    prefix_groups: Annotated[int, Count("Different shared prefixes.")] = 1,
    classes: Annotated[str | None, typer.Option(help="Shares of priority classes, such as 0.2,0.8.")] = None,
    policy: Annotated[
        str | None,
        typer.Option(help="chunked, continuous, prefill-priority, decode-priority or static (default: the engine's)."),
    ] = None,
    token_budget: Annotated[int | None, Count("Tokens of one step (default: the engine's).")] = None,
    max_num_seqs: Annotated[int | None, Count("Sequences that run at once (default: the engine's).")] = None,
    max_model_len: Annotated[int | None, Count("Longest sequence admitted (default: the model's).")] = None,
    queue_limit: Annotated[int | None, Count("Waiting requests beyond which new ones are rejected.")] = None,
    order: Annotated[str, typer.Option(help="Order of the queue: fcfs or priority.")] = "fcfs",
    swap: Annotated[bool, typer.Option("--swap", help="Preempt to host memory instead of computing again.")] = False,
    block_size: Annotated[int | None, Count("Tokens of one block of the cache (default: the engine's).")] = None,
    kv_tokens: Annotated[int | None, Count("Tokens of cache (default: what memory leaves).")] = None,
    prefix_cache: Annotated[bool, typer.Option("--prefix-cache", help="Keep and share prompt prefixes.")] = False,
    host_gib: Annotated[float, typer.Option(help="Host memory for cache blocks, per replica, in GiB.")] = 0.0,
    draft_tokens: Annotated[int, Count("Tokens drafted in each step, for speculative decoding.")] = 0,
    acceptance: Annotated[float, typer.Option(help="Probability that a drafted token is accepted.")] = 0.0,
    draft_ms: Annotated[float, typer.Option(help="Time to draft one token, in ms.")] = 0.0,
    replicas: Annotated[int, Count("Replicas of the deployment (those that decode, if others prefill).")] = 1,
    router: Annotated[
        str, typer.Option(help="round-robin, random, least-loaded, prefix-affinity or shared.")
    ] = "round-robin",
    prefill_replicas: Annotated[int, Count("Replicas that only compute prompts: disaggregation.")] = 0,
    link_gb_s: Annotated[float | None, typer.Option(help="Prefill to decode, in GB/s (default: the NICs).")] = None,
    link_ms: Annotated[float, typer.Option(help="Latency of a transfer, in ms.")] = 0.0,
    staging: Annotated[int, Count("Prompts that a prefill replica may hold at once.")] = 64,
    ttft: Annotated[float | None, typer.Option(help="Objective: time to first token, in ms.")] = None,
    tpot: Annotated[float | None, typer.Option(help="Objective: time per output token, in ms.")] = None,
    seed: Annotated[int, Count("Seed of everything that is drawn.")] = 0,
    timeline: Annotated[Path | None, typer.Option(help="Write queue, batch and cache over time to this CSV.")] = None,
    chrome_trace: Annotated[Path | None, typer.Option(help="Write every step to this file for a trace viewer.")] = None,
    plots: Plots = None,
    format: Annotated[Format, typer.Option(help="Output format.")] = Format.table,
    out: Annotated[Path | None, typer.Option(help="Write to this file instead.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    **deployment: Any,
) -> int:
    """Serve requests step by step, and say what users feel: percentiles of TTFT, TPOT and latency under load."""
    from rooflinekit.simulation.simulate import simulate as run
    from rooflinekit.simulation.watch import TIMELINE, ChromeTrace, both

    for path in (out, timeline, chrome_trace):
        if path is not None:
            check_target(path, force)
    if plots is not None:
        check_pictures(plots, "simulation", force)
    events = ChromeTrace() if chrome_trace else None
    with _progress(requests) as progress:
        outcome = run(
            model, watch=both(progress, events), rate=rate, cv=cv, concurrency=concurrency, arrivals=arrivals,
            trace=trace, speed=speed, clean=clean, isl=isl, osl=osl, requests=requests, warmup=warmup,
            duration=duration, samples=samples, shared_prefix=shared_prefix, prefix_groups=prefix_groups,
            classes=_shares(classes), ttft_ms=ttft, tpot_ms=tpot, policy=policy, token_budget=token_budget,
            max_num_seqs=max_num_seqs, max_model_len=max_model_len, queue_limit=queue_limit,
            by_class=_by_class(order), swap=swap, block_size=block_size, kv_tokens=kv_tokens,
            prefix_cache=prefix_cache, host_gib=host_gib, draft_tokens=draft_tokens, acceptance=acceptance,
            draft_ms=draft_ms, replicas=replicas, router=router, prefill_replicas=prefill_replicas,
            link_gb_s=link_gb_s, link_ms=link_ms, staging=staging, seed=seed, **deployment,
        )  # fmt: skip
    if timeline is not None:
        emit(to_csv(outcome.timeline or [dict.fromkeys(TIMELINE)]), timeline, force)
    if chrome_trace is not None and events is not None:
        emit(to_json(events.to_dict()), chrome_trace, force)
    if plots is not None:
        write_pictures(outcome, plots, force)
    emit(_render(outcome, format), out, force)
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


def _shares(text: str | None) -> tuple[float, ...]:
    from rooflinekit.model.types.errors import InputError

    try:
        return tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise InputError(f"classes must be shares such as 0.2,0.8, not {text!r}") from None


def _by_class(order: str) -> bool:
    from rooflinekit.model.types.errors import UnknownNameError

    if order not in ("fcfs", "priority"):
        raise UnknownNameError("order", order, ("fcfs", "priority"))
    return order == "priority"


def _render(outcome: Outcome, format: Format) -> str:
    from rooflinekit.report.simulation import outcome_markdown, outcome_text

    match format:
        case Format.json:
            return to_json(outcome.to_dict())
        case Format.csv:
            return to_csv([outcome.to_row()])
        case Format.md:
            return outcome_markdown(outcome)
        case _:
            return outcome_text(outcome)
