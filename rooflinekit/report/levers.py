"""Levers: the best moves first, where the deployment stands, elasticities, moves ranked, and what cannot be done."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rooflinekit.decision.sensitivity.levers import Levers
from rooflinekit.decision.sensitivity.moves import NO_CHANGE, MoveResult
from rooflinekit.model.types.units import format_bytes, significant
from rooflinekit.report import document as blocks
from rooflinekit.report.document import ended, formats, headed, ms, three, tokens_in
from rooflinekit.report.look import RESOURCES
from rooflinekit.specs import noun_of

_SMALL = 5e-3
_ROUNDED = "measure quality"  # what the caveat of every format of fewer bits says
_RATIOS = ("ttft", "tpot", "throughput", "cost")
_OF = ["of", "TTFT", "TPOT", "tok/s", "cost", "TPOT"]
_BAR = 24  # columns of a bar
_MOVE = ["move", "TTFT", "TPOT", "tok/s/GPU", "cost", "board J", "GPUs", "$/Mtok", "evidence"]


_MOVES = "moves, best for {} first: each over what it is now (board J: energy of the boards a token)"


def document(found: Levers) -> blocks.Document:
    """The whole answer."""
    i, now, noun = found.inputs, found.answer, noun_of(found.gpu)
    cost, seconds = now.usd_per_million_output, significant(now.gpu_seconds_per_token * 1e6)
    priced = f"{seconds} {noun} seconds" if cost is None else f"${significant(cost)}"
    if i["rate"] is not None:
        load = f"{i['rate']:g} requests/s"
    else:
        load = f"batch {i['batch']}" if i["batch"] is not None else f"closed loop of {i['concurrency']} users"
    possible = [move for move in found.moves if move.possible and move.reason != NO_CHANGE]
    idle = [move.move for move in found.moves if move.reason == NO_CHANGE]
    same = [f"{NO_CHANGE}: {', '.join(idle)}"] if idle else []
    strong = [move for move in possible if not found.weaker(move)]
    weak = [move for move in possible if found.weaker(move)]
    refused = (f"not possible: {move.move}: {move.reason}" for move in found.moves if not move.possible)
    asked = f"{load}, {tokens_in(i)}, {i['osl']} out; {formats(i, ('weights', 'kv'))}"
    answer = re.split(r" (?=Best for |Weights are )", found.sentence)
    speed = f"TTFT {ms(now.ttft_ms)}, TPOT {ms(now.tpot_ms)}, {now.output_tok_s_per_gpu:,.0f} tok/s per {noun}"
    kept = f"{format_bytes(now.kv_bytes_per_token)} of cache a token"
    told = f"now: {speed}; {priced} per million output tokens, prompts included; {kept}"
    tables = {
        "elasticity: percent by which each changes for one percent more": blocks.CellTable(
            _OF, _slopes(found), left=(0, 5)
        ),
        _MOVES.format(found.by): blocks.CellTable(_MOVE, [_row(move) for move in strong]),
        "on weaker evidence than now (--format json has the notes of each)" if weak else "": blocks.CellTable(
            _MOVE, [_row(move) for move in weak]
        ),
    }
    return [
        blocks.Section(f"levers of {headed(found, now.gpus)}", [blocks.Words(asked), blocks.Words(*answer)]),
        *blocks.apart(blocks.Words(told, indent="")),
        *(blocks.Section(title, [table]) for title, table in tables.items()),
        *blocks.apart(blocks.Items(*refused, *same, *_notes(found, possible))),
        ended(found),
    ]


def _slopes(found: Levers) -> list[list[str]]:
    most, rows = max(abs(entry.tpot) for entry in found.elasticities) or 1.0, []
    for entry in found.elasticities:
        slopes = ["0" if abs(slope := getattr(entry, name)) < _SMALL else f"{slope:+.2f}" for name in _RATIOS]
        if {*slopes} != {"0"}:
            rows.append([RESOURCES[entry.parameter], *slopes, "█" * round(abs(entry.tpot) / most * _BAR)])
    return rows


def _row(move: MoveResult) -> list[str]:
    now = move.answer
    if now is None:
        return [move.move, *["-"] * 8]
    ratios = (move.ratio[name] for name in (*_RATIOS, "energy"))
    told = ("-" if ratio is None else f"x {ratio:.2f}" if ratio < 10 else f"x {ratio:.0f}" for ratio in ratios)
    return [move.move, *told, str(now.gpus), three(now.usd_per_million_output), move.evidence or "-"]


def _grouped(said: Sequence[tuple[MoveResult, str]], kind: str = "") -> list[str]:
    """Moves about which the same is said, in one line; what begins with the name of its move does not repeat it."""
    groups: dict[str, list[str]] = {}
    for move, text in said:
        groups.setdefault(text, []).append(move.move)
    return [
        f"{kind}{text}" if text.startswith(names[0]) else f"{kind}{', '.join(names)}: {text}"
        for text, names in groups.items()
    ]


def _notes(found: Levers, possible: Sequence[MoveResult]) -> list[str]:
    """Notes on the risk of each kind of move, once; and what a token keeps where it is not the same as now."""
    rounded = [move.move for move in possible if _ROUNDED in move.caveat]
    lines = [f"{_ROUNDED} on your task: {', '.join(rounded)}"] if rounded else []
    risky = [move for move in possible if _ROUNDED not in move.caveat and not move.caveat.startswith("none")]
    lines += _grouped([(move, move.caveat) for move in risky])
    known = [move for move in possible if not found.weaker(move)]
    lines += _grouped([(move, warning) for move in known for warning in move.warnings], "note: ")
    now = found.answer.kv_bytes_per_token
    kept = [(m.move, m.answer.kv_bytes_per_token) for m in possible if m.answer is not None]
    others = [f"{name} {format_bytes(size)}" for name, size in kept if size != now]
    return [*lines, f"cache of a token: {format_bytes(now)} now; {', '.join(others)}"] if others else lines
