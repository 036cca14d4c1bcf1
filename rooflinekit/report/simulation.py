"""A simulated run as text: what users felt first, then what the machines did."""

from __future__ import annotations

import textwrap
from typing import Any

from rooflinekit.model.types.units import format_time
from rooflinekit.report.table import WIDTH, aligned, markdown
from rooflinekit.simulation.outcome import Outcome, Spread

__all__ = ["outcome_markdown", "outcome_text"]

_LATENCY = ["", "mean", "p50", "p90", "p99", "max"]
_USE = ["replica", "role", "steps", "busy", "batch", "KV used", "prefix hits"]


def outcome_text(outcome: Outcome) -> str:
    """The whole answer for a terminal, at most 80 columns wide."""
    blocks = [
        _wrapped([*_headline(outcome)]),
        aligned(_LATENCY, _latencies(outcome), gap=4),
        aligned(["", "", ""], _rates(outcome), left=(0, 2))[1:],
        aligned(_USE, _use(outcome), left=(0, 1)),
        _footer(outcome),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def outcome_markdown(outcome: Outcome) -> str:
    """The same as Markdown."""
    title, question, counts = _headline(outcome)
    lines = [f"## {title}", "", question, "", counts, ""]
    lines += [*markdown(_LATENCY, _latencies(outcome)), "", *markdown(["", "", ""], _rates(outcome), left=(0, 2)), ""]
    return "\n".join([*lines, *markdown(_USE, _use(outcome), left=(0, 1)), "", *_footer(outcome)])


def _wrapped(lines: list[str]) -> list[str]:
    return [part for line in lines for part in textwrap.wrap(line, WIDTH, subsequent_indent="  ")]


def _headline(outcome: Outcome) -> tuple[str, str, str]:
    """What runs where, how, and what became of the requests."""
    i, counts = outcome.inputs, outcome.requests
    split = " ".join(f"{key}{i[key]}" for key in ("tp", "pp", "ep", "dp") if i[key] > 1)
    machine = f"{i['gpus']} x {outcome.gpu} ({split})" if i["gpus"] > 1 else outcome.gpu
    fleet = f"{i['replicas']} x " if i["replicas"] > 1 else ""
    if i["prefill_replicas"]:
        fleet = f"{i['prefill_replicas']} prefill and {i['replicas']} decode replicas of "
    return (
        f"{outcome.model} on {fleet}{machine}, {outcome.engine}",
        f"{_load(i)}{i['policy']}, {i['token_budget']} tokens a step, at most {i['max_num_seqs']} sequences, "
        f"{i['kv_tokens']:,} tokens of cache",
        f"{counts.arrived} requests in {format_time(outcome.duration_s)}: {counts.finished} finished, "
        f"{counts.rejected} rejected, {counts.cut} cut; {counts.preemptions} preemptions; "
        f"statistics over {counts.measured}",
    )


def _load(asked: dict[str, Any]) -> str:
    """How requests come, and how long they are; empty where a program made them."""
    if "isl" not in asked:
        return ""
    if asked["trace"] is not None:
        speed = "" if asked["speed"] == 1.0 else f" {asked['speed']:g} times as fast"
        return f"trace {asked['trace']}{speed}; "
    if asked["concurrency"] is not None:
        comes = f"closed loop of {asked['concurrency']} user{'s' if asked['concurrency'] > 1 else ''}"
    elif asked["arrivals"] is not None:
        comes = str(asked["arrivals"])
    else:
        comes = f"{asked['rate']:g} requests/s, " + ("Poisson" if asked["cv"] == 1.0 else f"gamma, cv {asked['cv']:g}")
    return f"{comes}, {asked['isl']} tokens in, {asked['osl']} out; "


def _latencies(outcome: Outcome) -> list[list[str]]:
    names = {"TTFT": "ttft", "TPOT": "tpot", "ITL": "itl", "end to end": "e2e", "queue": "queue"}
    return [_latency(name, getattr(outcome, f"{key}_ms")) for name, key in names.items()]


def _latency(name: str, spread: Spread) -> list[str]:
    values = (spread.mean, spread.p50, spread.p90, spread.p99, spread.max)
    return [name, *("-" if value is None else format_time(value / 1e3) if value > 0 else "0" for value in values)]


def _rates(outcome: Outcome) -> list[list[str]]:
    rows = [
        ["output", f"{_three(outcome.output_tok_s)} tok/s", f"{_three(outcome.output_tok_s_per_gpu)} tok/s a GPU"],
        ["requests", f"{_three(outcome.request_rate)} /s", ""],
    ]
    if outcome.goodput is not None:
        rows.append(["goodput", f"{_three(outcome.goodput_rate)} /s", f"{outcome.goodput:.1%} meet the objective"])
    return rows


def _use(outcome: Outcome) -> list[list[str]]:
    return [
        [
            str(number),
            use.role,
            f"{use.steps:,}",
            f"{use.utilisation:.0%}",
            f"{use.mean_batch:.1f}",
            f"{use.kv_use:.0%}",
            "-" if use.prefix_hit_rate is None else f"{use.prefix_hit_rate:.1%}",
        ]
        for number, use in enumerate(outcome.replicas)
    ]


def _footer(outcome: Outcome) -> list[str]:
    used = outcome.calibration
    level = f"calibration {used['name']} ({used['hash']})" if used else "datasheet bound: nothing can be faster"
    interrupted = "; INTERRUPTED, the results are of what was done" if outcome.interrupted else ""
    lines = [f"{level}; rooflinekit {outcome.version}{interrupted}"]
    for warning in outcome.warnings:
        lines += textwrap.wrap(f"note: {warning}", WIDTH, subsequent_indent="      ")
    return lines


def _three(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
