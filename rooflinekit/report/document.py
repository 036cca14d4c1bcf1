"""Documents of answers as sections of blocks: a terminal, Markdown and notebooks print the same ones.

A document is a list of sections, the first of which has its title. Each block knows how it looks in each place.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from rooflinekit.estimation.options import Keywords
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.model.types.units import format_time, significant
from rooflinekit.specs.escaping import markdown_cell, markdown_marked, markdown_words, marked_parts, terminal_cell
from rooflinekit.version import __version__

if TYPE_CHECKING:
    from rooflinekit.estimation.results import Estimate

WIDTH = 80


def wrapped(text: str, indent: str = "  ", start: str = "", whole: bool = False, width: int = WIDTH) -> list[str]:
    """Words as lines of a terminal's width, all but the first indented; a percent sign stays with its number.

    `whole` breaks no word, such as an address or a path.

    >>> wrapped("one", start="note: ")
    ['note: one']
    """
    wrap = textwrap.TextWrapper(width, start, indent, break_long_words=not whole, break_on_hyphens=not whole)
    return [line.replace("\u00a0", " ") for line in wrap.wrap(text.replace(" %", "\u00a0%"))]


_LABEL = 10  # columns of a label
_SIDE = "text-align:{};padding:.1em .6em;font-variant-numeric:tabular-nums"
_FENCE = re.compile("`{3,}")


class Block(Protocol):
    """A part of an answer that prints itself."""

    def text(self, width: int = WIDTH) -> list[str]:
        """Lines of a terminal of so many columns."""

    def markdown(self) -> list[str]:
        """Lines of Markdown."""

    def html(self) -> str:
        """Elements of a page."""


class Section(NamedTuple):
    """Blocks below a title; without one they belong to the section above."""

    title: str
    blocks: Sequence[Block]


Document = Sequence[Section]


def apart(*blocks: Block) -> list[Section]:
    """Each block in a section of its own, without a title."""
    return [Section("", [block]) for block in blocks]


class Words:
    """Sentences, each on a new line."""

    def __init__(self, *lines: str, indent: str = "  ") -> None:
        self.lines, self.indent = lines, indent

    def text(self, width: int = WIDTH) -> list[str]:
        return [part for line in self.lines for part in wrapped(line, self.indent, width=width)]

    def markdown(self) -> list[str]:
        return [*map(markdown_words, self.lines)]

    def html(self) -> str:
        return f"<p>{'<br>'.join(map(escape, self.lines))}</p>" if self.lines else ""


class Items(Words):
    """Sentences of which each stands by itself; two spaces before one put it below the one above.

    A terminal shows `most` of them. Names in stars and formulas in back quotes stand out on a page.
    """

    def __init__(self, *lines: str, indent: str = "  ", most: int | None = None) -> None:
        super().__init__(*lines, indent=indent)
        self.most = most

    def text(self, width: int = WIDTH) -> list[str]:
        return Words(*self.lines[: self.most], indent=self.indent).text(width)

    def markdown(self) -> list[str]:
        return [f"{' ' * depth}- {markdown_marked(' '.join(line.split()))}" for depth, line in self._levels()]

    def html(self) -> str:
        parts, above = [], -2
        for depth, line in self._levels():
            steps = (depth - above) // 2
            parts.append("<ul>" * steps + "</ul>" * -steps + f"<li>{_marked(line)}</li>")
            above = depth
        return "".join(parts) + "</ul>" * (above // 2 + 1)

    def _levels(self) -> Iterator[tuple[int, str]]:
        return ((len(line) - len(line.lstrip()), line.strip()) for line in self.lines)


class Facts(Items):
    """Facts under some labels, long words whole; a line without a label goes on with the one above."""

    def __init__(self, *facts: tuple[str, str]) -> None:
        joined: list[str] = []
        for label, line in facts:
            if label:
                joined.append(f"**{label}**: {line}")
            else:
                joined[-1] += f"; {line}"
        super().__init__(*joined)
        self.facts = facts

    def text(self, width: int = WIDTH) -> list[str]:
        facts = ((line, " " * _LABEL, f"{label:<{_LABEL}}") for label, line in self.facts)
        return [part for fact in facts for part in wrapped(*fact, whole=True, width=width)]


@dataclass(frozen=True)
class CellTable:
    r"""Rows of cells below a header, which may be empty; columns in `left` are flush left. Nothing without rows.

    A terminal without room closes the gaps to one space, and leaves columns out in the order of `drop`; first cells
    wider than `room` take several lines.

    >>> table = CellTable(["name", "n"], [["a|b", "1"], ["c", "20"]])
    >>> table.text(), table.markdown()[:3]
    (['name   n', 'a|b    1', 'c     20'], ['| name | n |', '|:--|--:|', '| a\\|b | 1 |'])
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: Collection[int] = (0,)
    gap: int = 2
    drop: Sequence[int] = ()
    room: int = WIDTH

    def _head(self) -> Sequence[str]:
        return self.header or [""] * max(map(len, self.rows), default=0)

    def text(self, width: int = WIDTH) -> list[str]:
        return self.fitted(width)[1]

    def fitted(self, width: int) -> tuple[list[int], list[str]]:
        """The columns that a terminal has room for, and their lines."""
        cells = ([terminal_cell(cell) for cell in row] for row in self.rows)
        table = [row for first, *more in cells for row in _broken(first, more, self.room)]
        head, kept, lines = [*map(terminal_cell, self._head())], list[int](), [""]
        for dropped in range(len(self.drop) + 1 if table else 0):
            kept = [column for column in range(len(head)) if column not in self.drop[:dropped]]
            wide = {column: max(len(row[column]) for row in (head, *table)) for column in kept}
            gap = self.gap if sum(wide.values()) + self.gap * (len(kept) - 1) <= width else 1
            lines = [
                (" " * gap).join(f"{row[n]:{'<' if n in self.left else '>'}{wide[n]}}" for n in kept).rstrip()
                for row in (head, *table)
            ]
            if max(map(len, lines)) <= width:
                break
        return kept, lines if self.header and table else lines[1:]

    def markdown(self) -> list[str]:
        head = self._head()
        marks = [":--" if column in self.left else "--:" for column in range(len(head))]
        lines = [f"| {' | '.join(map(markdown_cell, row))} |" for row in (head, *self.rows)]
        return [lines[0], f"|{'|'.join(marks)}|", *lines[1:]] if self.rows else []

    def html(
        self, right: str = f' style="{_SIDE.format("right")}"', left: str = f' style="{_SIDE.format("left")}"'
    ) -> str:
        if not self.rows:
            return ""
        sides = [left if column in self.left else right for column in range(len(self._head()))]

        def line(cells: Sequence[str], tag: str, more: str = "") -> str:
            made = (f"<{tag}{more}{how}>{shown(cell)}</{tag}>" for cell, how in zip(cells, sides, strict=True))
            return f"<tr>{''.join(made)}</tr>"

        def shown(cell: str) -> str:
            """Bars begin where the others end only if all letters are as wide."""
            return f"<code>{escape(cell)}</code>" if "█" in cell else escape(cell)

        head, body = line(self._head(), "th", ' scope="col"'), "".join(line(row, "td") for row in self.rows)
        return f"<table><thead>{head}</thead><tbody>{body}</tbody></table>"


class Legend(Words):
    """Words below a table; what is said of a column goes where a terminal has no room for that column."""

    def __init__(self, table: CellTable, words: str, columns: Mapping[int, str]) -> None:
        super().__init__(" ".join([words, *columns.values()]))
        self._table, self._words, self._columns = table, words, columns

    def text(self, width: int = WIDTH) -> list[str]:
        kept = self._table.fitted(width)[0]
        words = [text for column, text in self._columns.items() if column in kept]
        return Words(" ".join([self._words, *words])).text(width)


class FixedLines:
    """Lines that stay as they are, such as a drawing or a script of some language."""

    def __init__(self, lines: Sequence[str] = (), language: str = "") -> None:
        self.lines, self.language = lines, language

    def text(self, width: int = WIDTH) -> list[str]:
        return [*self.lines]

    def markdown(self) -> list[str]:
        fence = max(_FENCE.findall("\n".join(self.lines)), key=len, default="``") + "`"
        return [f"{fence}{self.language}", *self.lines, fence] if self.lines else []

    def html(self) -> str:
        return f"<pre>{escape(chr(10).join(self.lines))}</pre>" if self.lines else ""


def plain_text(document: Document, width: int = WIDTH) -> str:
    """For a terminal of so many columns: sections apart, their blocks below each other."""
    sections = (
        [*wrapped(title, width=width), *(line for block in blocks for line in block.text(width))]
        for title, blocks in document
    )
    return "\n\n".join("\n".join(lines) for lines in sections if lines)


def markdown_text(document: Document) -> str:
    """Return Markdown: the first title is that of the whole."""
    parts: list[str] = []
    for number, (title, blocks) in enumerate(document):
        if title:
            named = markdown_words(f"{title[0].upper()}{title[1:]}" if number else title)
            parts.append(f"{'###' if number else '##'} {named}")
        parts += ["\n".join(lines) for block in blocks if (lines := block.markdown())]
    return "\n\n".join(parts)


def html_text(document: Document, folded: bool) -> str:
    """Return a piece of HTML that stands by itself; `folded` closes the sections below the first."""
    parts, inside = [], False
    for number, (title, blocks) in enumerate(document):
        if title:
            parts.append("</details>" if inside else "")
            inside = number > 0
            opened = f"<details{'' if folded else ' open'}><summary><b>{escape(title)}</b></summary>"
            parts.append(opened if inside else f"<h4>{escape(title)}</h4>")
        parts += [block.html() for block in blocks]
    return "".join([*parts, "</details>" if inside else ""])


def _broken(first: str, others: list[str], room: int) -> list[list[str]]:
    """A row in as many as its first cell needs, the other cells beside its end."""
    *lines, last = textwrap.wrap(first, room, subsequent_indent="  ") if len(first) > room else [first]
    return [*([line, *[""] * len(others)] for line in lines), [last, *others]]


def _marked(text: str) -> str:
    parts = ((tag, escape(inner)) for tag, inner in marked_parts(text))
    return "".join(f"<{tag}>{inner}</{tag}>" if tag else inner for tag, inner in parts)


def tokens_in(inputs: Keywords) -> str:
    """Tokens of a prompt, for a line about a question.

    >>> tokens_in({"isl": 200, "cached": 0, "images": 1, "image_size": "1024x1024", "image_tokens": 1369})
    '200 tokens in and 1 image of 1024x1024 (1369 tokens)'
    >>> tokens_in({"isl": 1})
    '1 token in'
    """
    cached = f" ({inputs['cached']} cached)" if inputs.get("cached") else ""
    each = f"{inputs['image_tokens']} tokens" if inputs.get("image_tokens") else "beside the prompt"
    seen = f"{images_in(inputs)} ({each})" if inputs.get("images") else ""
    return f"{inputs['isl']} token{'' if str(inputs['isl']) == '1' else 's'} in{cached}{seen}"


def images_in(inputs: Keywords) -> str:
    """The images of a prompt; empty where there are none."""
    many = inputs.get("images") or 0
    return f" and {many} image{'s' if many > 1 else ''} of {inputs['image_size']}" if many else ""


def asked(answer: Estimate) -> str:
    """The load or the batch of an estimate, and what its requests are."""
    i = answer.inputs
    arrivals = answer.load.arrivals if answer.load else f"batch {i['batch']}"
    return f"{arrivals}, {tokens_in(i)}, {i['osl']} out"


def formats(inputs: Keywords, names: Sequence[str] = ("weights", "activations", "kv")) -> str:
    """The formats of matrices and cache, once where they are the same.

    >>> formats({"weights": "fp8", "activations": "fp8", "kv": "bf16", "kv_policy": "window:4096"})
    'weights fp8, activations fp8, KV bf16 window:4096'
    >>> formats({"weights": "bf16", "activations": "bf16", "kv": "bf16"})
    'all bf16'
    """
    kept = "" if inputs.get("kv_policy", "full") == "full" else f" {inputs['kv_policy']}"
    if len({inputs[name] for name in names}) == 1 and not kept:
        return f"all {inputs[names[0]]}"
    return ", ".join(f"{'KV' if name == 'kv' else name} {inputs[name]}" for name in names) + kept


def degrees(inputs: Keywords, names: Sequence[str] = ("tp", "pp", "ep", "dp", "cp")) -> list[str]:
    """The degrees of parallelism above 1.

    >>> degrees({"tp": 2, "pp": 1, "ep": 8})
    ['tp2', 'ep8']
    """
    return [f"{key}{inputs[key]}" for key in names if inputs.get(key, 1) > 1]


def machine(gpu: str, gpus: int, inputs: Keywords) -> str:
    """The accelerators that a deployment takes, and how it is split over them."""
    groups = ((inputs.get(f"{key}_gpus"), what) for key, what in _GROUPS)
    split = [*degrees(inputs), *(f"{many} for {what}" for many, what in groups if many)]
    return gpu if gpus == 1 else f"{gpus} x {gpu} ({' '.join(split)})" if split else f"{gpus} x {gpu}"


_GROUPS = (("ffn", "FFN"), ("encoder", "images"))


def calibrated(used: Mapping[str, str] | None) -> str:
    """The calibration of an answer; empty where it has none."""
    return f"calibration {used['name']} ({used['hash']})" if used else ""


def origin(calibration: Mapping[str, str] | None, evidence: str) -> str:
    """Evidence of the times of an answer."""
    if calibration:
        return f"{calibrated(calibration)}, {evidence}"
    return "level bound: datasheet roofline, nothing can be faster"


def footer(start: str, warnings: Sequence[str], version: str = __version__) -> Section:
    """Footer with the evidence of an answer, and its notes."""
    told = "; ".join(filter(None, (start, f"rooflinekit {version}")))
    return Section("", [Items(told, indent="      "), notes(warnings)])


def headed(answer: Any, gpus: int | None = None) -> str:
    """Heading of an answer: model, accelerators, engine."""
    inputs = answer.inputs
    return f"{answer.model} on {machine(answer.gpu, gpus or inputs['gpus'], inputs)}, {answer.engine}"


def ended(answer: Any, more: str = "") -> Section:
    """Footer of an answer on a deployment: evidence and notes."""
    return footer(f"{origin(answer.calibration, answer.evidence)}{more}", answer.warnings, answer.version)


def notes(warnings: Iterable[str]) -> Items:
    """Notes to an answer."""
    return Items(*(f"note: {warning}" for warning in warnings), indent="      ")


def ms(value: float | None, without: str = "-") -> str:
    """A time of so many milliseconds, in the unit that suits it.

    >>> ms(2.5), ms(None, "no end")
    ('2.50 ms', 'no end')
    """
    return without if value is None else format_time(value / 1e3)


def signed_ms(value: float) -> str:
    """A difference of times in milliseconds.

    >>> signed_ms(-2.5)
    '−2.50 ms'
    """
    return f"{'+' if value >= 0 else '−'}{ms(abs(value))}"


def amount(value: float | None, digits: int = 2) -> str:
    """A number with so many decimals, such as dollars.

    >>> amount(1234.5), amount(None)
    ('1,234.50', '-')
    """
    return "-" if value is None else f"{value:,.{digits}f}"


def three(value: float | None) -> str:
    """A number in three digits, or in whole ones; a dash where there is none.

    >>> three(2.5), three(12345.6), three(None)
    ('2.50', '12,346', '-')
    """
    return "-" if value is None else significant(value)
