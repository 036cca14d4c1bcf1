"""Levers as text and Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rooflinekit.decision.sensitivity.levers import Levers, MoveResult, Operating
from rooflinekit.model.types.units import format_bytes, format_time
from rooflinekit.report.table import aligned, bullets, markdown, sentences

__all__ = ["levers_text"]

_NAMES = {
    "bandwidth": "memory bandwidth",
    "flops": "FLOP/s",
    "network": "network bandwidth",
    "launch": "kernel latencies",
    "host": "host time",
    "batch": "batch",
    "context": "context",
}
_SMALL = 5e-3
_RATIOS = ("ttft", "tpot", "throughput", "cost")

Table = Callable[[Sequence[str], Sequence[Sequence[str]]], list[str]]


def levers_text(found: Levers, markdown_style: bool = False) -> str:
    """The whole answer: where it stands, what it is about, elasticities, moves ranked, and what cannot be done."""
    table: Table = markdown if markdown_style else aligned
    lines = [*_head(found, markdown_style), "", *sentences(_answer(found)), "", *sentences([found.sentence])]
    lines += ["", _title("elasticity: percent by which each changes for one percent more", markdown_style)]
    lines += [*_gap(markdown_style), *table(["of", "TTFT", "TPOT", "tok/s", "cost"], _slopes(found))]
    possible = [move for move in found.moves if move.possible]
    lines += ["", _title(f"moves, best for {found.by} first: each over what it is now", markdown_style)]
    header = ["move", "TTFT", "TPOT", "tok/s/GPU", "cost", "GPUs", "USD/Mtok"]
    lines += [*_gap(markdown_style), *table(header, [_row(move) for move in possible])]
    lines += ["", *bullets([*_impossible(found), *_notes(found)], markdown_style)]
    return "\n".join(lines)


def _title(text: str, heading: bool) -> str:
    return f"### {text[0].upper()}{text[1:]}" if heading else text


def _gap(heading: bool) -> list[str]:
    return [""] if heading else []


def _head(found: Levers, heading: bool) -> list[str]:
    i = found.inputs
    split = " ".join(f"{key}{i[key]}" for key in ("tp", "pp", "ep", "dp", "cp") if i[key] > 1)
    gpus = found.answer.gpus
    machine = f"{gpus} x {found.gpu} ({split})" if gpus > 1 else found.gpu
    load = f"batch {i['batch']}" if i["batch"] is not None else f"closed loop of {i['concurrency']} users"
    cached = f" ({i['cached']} cached)" if i["cached"] else ""
    first = f"levers of {found.model} on {machine}, {found.engine}"
    second = f"{load}, {i['isl']} tokens in{cached}, {i['osl']} out; weights {i['weights']}, kv {i['kv']}"
    return [f"## {first[0].upper()}{first[1:]}", "", second] if heading else sentences([first, second], "  ")


def _answer(found: Levers) -> list[str]:
    now: Operating = found.answer
    cost = now.usd_per_million_output
    priced = f"{now.gpu_seconds_per_token * 1e6:.3g} GPU seconds" if cost is None else f"{cost:.3g} USD"
    return [
        f"now: TTFT {format_time(now.ttft_ms / 1e3)}, TPOT {format_time(now.tpot_ms / 1e3)}, "
        f"{now.output_tok_s_per_gpu:,.0f} tok/s per GPU, {priced} for a million output tokens (prompts included), "
        f"{format_bytes(now.kv_bytes_per_token)} of cache a token"
    ]


def _slopes(found: Levers) -> list[list[str]]:
    return [
        [_named(entry.parameter, found), *(_slope(getattr(entry, name)) for name in _RATIOS)]
        for entry in found.elasticities
    ]


def _named(parameter: str, found: Levers) -> str:
    return "users" if parameter == "batch" and found.inputs["batch"] is None else _NAMES[parameter]


def _slope(value: float) -> str:
    return "0" if abs(value) < _SMALL else f"{value:+.2f}"


def _row(move: MoveResult) -> list[str]:
    now = move.answer
    if now is None:
        return [move.move, *["-"] * 6]
    usd = "-" if now.usd_per_million_output is None else f"{now.usd_per_million_output:.3g}"
    return [move.move, *(_ratio(move.ratio[name]) for name in _RATIOS), str(now.gpus), usd]


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"x {value:.2f}" if value < 10 else f"x {value:.0f}"


def _impossible(found: Levers) -> list[str]:
    return [f"not possible: {move.move}: {move.reason}" for move in found.moves if not move.possible]


def _grouped(kind: str, said: Sequence[tuple[MoveResult, str]]) -> list[str]:
    """Moves about which the same is said, in one line."""
    groups: dict[str, list[str]] = {}
    for move, text in said:
        groups.setdefault(text, []).append(move.move)
    return [f"{kind}: {', '.join(names)}: {text}" for text, names in groups.items()]


def _caches(found: Levers, possible: Sequence[MoveResult]) -> list[str]:
    """What a token keeps where it is not the same as now."""
    now = found.answer.kv_bytes_per_token
    kept = [(m.move, m.answer.kv_bytes_per_token) for m in possible if m.answer is not None]
    others = [f"{name} {format_bytes(size)}" for name, size in kept if size != now]
    return [f"cache of a token: {format_bytes(now)} now; {', '.join(others)}"] if others else []


def _notes(found: Levers) -> list[str]:
    """What each kind of move risks and keeps, once; and what is said about it and the deployment."""
    possible = [move for move in found.moves if move.possible]
    lines = _grouped("quality", [(move, move.caveat) for move in possible if not move.caveat.startswith("none")])
    lines += _grouped("note", [(move, warning) for move in possible for warning in move.warnings])
    lines += _caches(found, possible)
    level = (
        "level bound: datasheet roofline" if found.calibration is None else f"calibration {found.calibration['name']}"
    )
    return [*lines, f"{level}; rooflinekit {found.version}", *(f"note: {warning}" for warning in found.warnings)]
