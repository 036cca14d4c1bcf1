"""One request, to scale: how long it takes, what its first token waits for, and what a token's time is made of."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import accumulate
from typing import TYPE_CHECKING

from rooflinekit.estimation.results import Estimate, LoadResult, StepResult
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.model.types.units import format_time, percent
from rooflinekit.report.document import WIDTH, CellTable, Section, ms, three, wrapped
from rooflinekit.report.look import FIRST, PALETTES, STEP, TOKEN, TimePart

if TYPE_CHECKING:
    from rooflinekit.simulation.outcome import Outcome

_MOST = 1e3  # above this, a share is a factor
_BAR, _NARROWEST = 32, 8  # columns of a whole bar outside terminals, and of one at least
LEAST = 0.005  # share of a time that is worth a line
_SEMICOLON = "; "
_TICKS = 5  # of the axis, at most
_STATED = 0.01  # of a time: smaller standard errors are not written


@dataclass(frozen=True)
class Request:
    """The mean request of a load that was played; times in ms, parts by their names in FIRST and TOKEN."""

    ttft: float
    tpot: float
    e2e: float
    first: Mapping[str, float]
    token: Mapping[str, float]
    bound: float | None = None  #: of a token, by the datasheet
    interval: Sequence[float] | None = None  #: of a token, 80 %
    median: tuple[float | None, float | None] = (None, None)  #: first token and time per token of half of the requests
    others_spans: Sequence[Sequence[float]] = ()  #: shares of its tokens' time with prompts of others, begin and end

    @classmethod
    def of(cls, answer: Estimate | Outcome) -> Request | None:
        """The request of an answer; None where nothing was played, or no request ended."""
        if isinstance(answer, Estimate):
            if answer.load is None:
                return None
            played: LoadResult | Outcome = answer.load
            times: tuple[float | None, float, float | None] = answer.ttft_ms, answer.tpot_ms, answer.e2e_ms
            marks = answer.load.percentiles
            half = marks["ttft_ms"].get("p50"), marks["tpot_ms"].get("p50")
        else:
            played, times = answer, (answer.ttft_ms.mean, answer.tpot_ms.mean or 0.0, answer.e2e_ms.mean)
            half = answer.ttft_ms.p50, answer.tpot_ms.p50
        (ttft, tpot, e2e), first, token = times, played.ttft_parts_ms, played.tpot_parts_ms
        if first is None or token is None or ttft is None or e2e is None:
            return None
        bound = answer.bound["tpot_ms"] if answer.bound else None
        interval = answer.interval80["tpot_ms"] if answer.interval80 else None
        return cls(ttft, tpot, e2e, first, token, bound, interval, half, played.others_spans)

    @property
    def tokens(self) -> int:
        """Tokens after the first."""
        return round((self.e2e - self.ttft) / self.tpot) if self.tpot else 0

    @property
    def answer(self) -> str:
        """The median of the users.

        >>> Request(60.0, 10.0, 1000.0, {}, {}, median=(50.0, 12.5)).answer
        'Half of the users see the first token within 50.0 ms and then read 80.0 tokens/s.'
        """
        first, token = self.median
        if first is None:
            return ""
        read = f" and then read {three(1e3 / token)} tokens/s" if token else ""
        return f"Half of the users see the first token within {ms(first)}{read}."

    @property
    def said(self) -> str:
        """In words."""
        after = f", then {self.tokens:,} tokens of {ms(self.tpot)}" if self.tokens else ""
        return f"one request, {ms(self.e2e)}: {ms(self.ttft)} to the first token{after}"

    def section(self) -> Section:
        """The axis of time, and both bars enlarged."""
        bars = [Waterfall(f"time to first token, {ms(self.ttft)}:", _shares(self.first, FIRST, self.ttft))]
        if self.tokens:
            ends = " – ".join(ms(end, "no end") for end in self.interval or ())
            span = [f"8 of 10: {ends}"] if ends else []
            span += [] if self.bound is None else [f"datasheet bound {ms(self.bound)}"]
            title = f"time per token, {ms(self.tpot)}{f' ({_SEMICOLON.join(span)})' if span else ''}:"
            bars.append(Waterfall(title, _shares(self.token, TOKEN, self.tpot)))
        return Section("", [TimeAxis(self), *bars])


def _shares(parts: Mapping[str, float], names: Mapping[str, TimePart], whole: float) -> list[tuple[str, float, str]]:
    return [(name, parts[part] / whole, ms(parts[part])) for part, (*_, name) in names.items() if part in parts]


def step_parts(step: StepResult) -> list[tuple[str, float, str]]:
    """Parts of the time of a step, for a waterfall."""
    return _shares(step.time_parts_ms, STEP, step.time_ms)


_KEY = "█ to the first token   ░ tokens after it   ▓ steps with prompts of others"


class TimeAxis:
    """A request along the axis of time: the first token solid, the others pale, prompts of others between."""

    def __init__(self, request: Request) -> None:
        self.request = request

    def text(self, width: int = WIDTH) -> list[str]:
        """The words, the bar over the whole width, times below it, and a key where prompts of others are marked."""
        whole = self.request.e2e
        first = max(round(self.request.ttft / whole * width), 1)
        marks = [" "] * (width + 12)
        for tick in _ticks(whole):
            words, at = format_time(tick / 1e3) if tick else "0", round(tick / whole * width)
            if at + len(words) <= width:
                marks[at : at + len(words)] = words
        bar = "█" * first + "".join(self._tokens(width - first))
        key = wrapped(_KEY, "", width=width) if "▓" in bar else []
        return [*wrapped(self.request.said, width=width), bar, "".join(marks).rstrip(), *key]

    def _tokens(self, columns: int) -> Iterator[str]:
        """A column each: what a column leaves of a prompt counts in the next, so that as much is marked as there is."""
        owed = 0.0
        for column in range(columns):
            begin, end = column / columns, (column + 1) / columns
            parts = (min(until, end) - max(since, begin) for since, until in self.request.others_spans)
            owed += columns * sum(part for part in parts if part > 0.0)
            marked = owed >= 0.5
            owed -= marked
            yield "▓" if marked else "░"

    def markdown(self) -> list[str]:
        """The words alone."""
        return [f"{self.request.said}."]

    def html(self) -> str:
        """The words, and the request to scale: prompts in the hue of prefill, tokens in that of decode."""
        first, y = 700 * self.request.ttft / self.request.e2e, 'y="2" height="18"'
        rest, prefill = 700 - first, f'fill="{_LIGHT["prefill"]}"'
        bars = [
            f'<rect x="0" {y} width="{first:.1f}" {prefill}></rect>',
            f'<rect x="{first:.1f}" {y} width="{rest:.1f}" fill="{_LIGHT["decode"]}"></rect>',
        ]
        bars += [
            f'<rect x="{first + rest * since:.1f}" {y} width="{rest * (until - since):.1f}" {prefill}></rect>'
            for since, until in self.request.others_spans
        ]
        return f"<p>{escape(self.request.said)}.</p>{svg(22, bars, self.request.said)}"


_AT, _WIDE = 150, 420  # of a picture of 700: where bars begin, and the longest
_LIGHT = PALETTES["light"]


def _hue(name: str) -> str:
    """The hue of a part of a time by its name; of anything else that of prefill, whose prompts it counts."""
    tint = next(
        (part.tint for table in (STEP, FIRST, TOKEN) for part in table.values() if part.name == name), "prefill"
    )
    return _LIGHT[tint]


def svg(height: int, lines: Sequence[str], said: str) -> str:
    """A picture in the ink of what stands around it."""
    size = f'viewBox="0 0 700 {height}" width="700" height="{height}"'
    style = 'font-size="13" font-family="system-ui, sans-serif" fill="currentColor"'
    return f'<svg {size} {style} role="img" aria-label="{escape(said)}">{"".join(lines)}</svg>'


def _ticks(whole: float) -> list[float]:
    """Round times from 0 on.

    >>> _ticks(2460.0)
    [0.0, 500.0, 1000.0, 1500.0, 2000.0]
    """
    size = 10.0 ** math.floor(math.log10(whole / _TICKS))
    step = next(size * each for each in (1.0, 2.0, 5.0, 10.0) if whole / (size * each) <= _TICKS)
    return [step * number for number in range(int(whole / step) + 1)]


def latencies(
    name: str, cells: Sequence[float | None], errors: Sequence[float | None], left: Sequence[str] = ()
) -> list[list[str]]:
    """A row of times [ms], and one of their standard errors where one is 1 % or more; `left` comes behind the first."""
    times = ["-" if cell is None else ms(cell) if cell > 0 else "0" for cell in cells]
    shares = [
        percent(error / cell) if cell and error and error >= _STATED * cell else ""
        for cell, error in zip(cells, errors, strict=True)
    ]
    rows = [[name, times[0], *left, *times[1:]]]
    if any(shares):
        rows.append(["  ± error", shares[0], *[""] * len(left), *shares[1:]])
    return rows


def counted(requests: int, warmup: int | None) -> str:
    """The number of played requests, and which of them count; `requests` are those that do.

    >>> counted(1600, 400), counted(640, 0)
    ('2,000 requests played, the first fifth not counted', '640 requests played')
    """
    first = warmup or 0
    played = f"{requests + first:,} request{'' if requests + first == 1 else 's'} played"
    if not first:
        return played
    return f"{played}, the first {'fifth' if 4 * first == requests else f'{first:,}'} not counted"


@dataclass(frozen=True)
class Waterfall:
    """Parts of a time: a bar for each, from where the one above it ends, as wide as there is room.

    parts: the name of each, its share, its time.
    """

    title: str
    parts: Sequence[tuple[str, float, str]]
    _whole = False  # whether parts without a bar have a line

    def _starts(self) -> list[float]:
        """Beginnings of the bars."""
        return [0.0, *accumulate(share for _, share, _ in self.parts)]

    def _table(self, columns: int) -> CellTable:
        ends = self._starts()
        rows = [
            [name, _bar(start, start + share, columns), time, share_text(share)]
            for start, (name, share, time) in zip(ends, self.parts, strict=False)
        ]
        return CellTable([self.title, "", "", ""], [row for row in rows if row[1] or self._whole], left=(0, 1))

    def text(self, width: int = WIDTH) -> list[str]:
        """The title on a line of its own, and bars over the whole width."""
        beside = max((len(name) + len(time) for name, _, time in self.parts), default=0) + len("    100 %  ")
        table = self._table(max(width - beside, _NARROWEST))
        lines = CellTable((), table.rows, table.left).text(width)
        return [*wrapped(self.title, width=width), *(line.replace("\u00a0", " ") for line in lines)]

    def markdown(self) -> list[str]:
        """A table with bars."""
        return self._table(_BAR).markdown()

    def html(self) -> str:
        """A picture, in the hues of the parts."""
        parts = zip(self._starts(), self.parts, strict=False)
        places = [(start, *part) for start, part in parts if part[1] >= LEAST or self._whole]
        most, lines = max((start + share for start, _, share, _ in places), default=0.0) or 1.0, list[str]()
        for row, (start, name, share, time) in enumerate(places):
            y, left, width = 22 * row, _AT + _WIDE * start / most, _WIDE * share / most
            lines += [
                f'<text x="{_AT - 8}" y="{y + 14}" text-anchor="end">{escape(name)}</text>',
                f'<rect x="{left:.1f}" y="{y + 3}" width="{width:.1f}" height="15" fill="{_hue(name)}"></rect>',
                f'<text x="{left + width + 6:.1f}" y="{y + 14}">{escape(f"{time}  {share_text(share)}")}</text>',
            ]
        return f"<p>{escape(self.title)}</p>{svg(22 * len(places), lines, self.title)}"


class Bars(Waterfall):
    """Parts with all bars from the left, the longest over the whole width; shares are of the sum."""

    _whole = True

    def _starts(self) -> list[float]:
        return [0.0] * len(self.parts)

    def _table(self, columns: int) -> CellTable:
        most = max((share for _, share, _ in self.parts), default=1.0) or 1.0
        return super()._table(round(columns / most))


def _bar(start: float, end: float, columns: int) -> str:
    """A bar between two shares of the columns; the space before it survives where spaces collapse."""
    first, last = round(start * columns), round(end * columns)
    drawn = "█" * (last - first) or ("▏" if end - start >= LEAST else "")
    return "\u00a0" * first + drawn if drawn else ""


def share_text(share: float) -> str:
    """A share in percent; a factor where it is one.

    >>> share_text(0.004), share_text(0.5), share_text(2000.0)
    ('<1 %', '50 %', '2,000 x')
    """
    if share > _MOST:
        return f"{three(share)} x"
    return "<1 %" if 0 < share < 0.01 else percent(share)
