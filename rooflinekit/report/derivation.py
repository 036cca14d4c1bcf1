"""A derivation: the tree, and its sources."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import replace
from html import escape

from rooflinekit.explanation.front import TIMELESS, Derivation
from rooflinekit.model.graph.tree import FUNCTIONS, Node
from rooflinekit.model.types.answer import Json
from rooflinekit.model.types.units import format_bytes, format_count, format_rate, format_time
from rooflinekit.report import document as blocks
from rooflinekit.report.document import asked, footer, formats, headed, ms, origin
from rooflinekit.report.request import Request, Waterfall, step_parts

_LINES = 70  # nodes that are shown where no depth is asked for
_EXACT = 1e7  # counts below this are written out
_UNIT = re.compile(r"(\d) ((?:[kMGTPEmµn]?(?:B|FLOP|s)\b|1/s|token))")
_LONG = re.compile(r"\d+\.\d{6,}")  # digits that nobody reads
_NAME = re.compile(r"(?<![\w.])[^\W\d]\w*")
_OVERLAP = "pn(x, y, p) = (x^p + y^p)^(1/p): how well two resources overlap"


def quantity(value: float, unit: str) -> str:
    """A number of the tree as people read it.

    >>> quantity(0.00848, "s"), quantity(131072.0, "B"), quantity(32.0, ""), quantity(3.35e12, "B/s")
    ('8.48 ms', '131 kB', '32', '3.35 TB/s')
    """
    if unit == "s":
        return format_time(value)
    if unit in ("B", "FLOP") and float(value).is_integer() and abs(value) < 1e3:
        return f"{value:.0f} {unit}"
    if unit == "B":
        return format_bytes(value)
    if unit in ("B/s", "FLOP/s"):
        return format_rate(value, unit)
    if unit == "FLOP":
        return format_count(value, unit)
    text = f"{value:.0f}" if float(value).is_integer() and abs(value) < _EXACT else f"{value:.4g}"
    return f"{text} {unit}".rstrip() if abs(value) < _EXACT else format_count(value, unit)


def document(found: Derivation, depth: int | None = None) -> blocks.Document:
    """The whole answer, as deep as fits on a page or two if no depth is given."""
    deepest = _height(found.root)
    if depth is None:
        sizes = ((depth, _size(found.root, depth)) for depth in range(2, deepest + 1))
        depth = next((depth - 1 for depth, size in sizes if size > _LINES), deepest)
    tree, more = _Tree(found.root, depth), list[str]()
    if depth < deepest:
        kernel = "; or explain a kernel, such as decode.attention" if found.metric not in TIMELESS else ""
        more.append(f"… has a derivation of its own: --depth {depth + 1} shows it, up to {deepest}{kernel}")
    more += [_OVERLAP] if any("= " in line and "pn(" in line for line in tree.drawn) else []
    e, i = found.answer, found.answer.inputs
    facts = [f"{asked(e)}; {formats(i)}"]
    if found.interval:
        low, high = (ms(end, "no end") for end in found.interval)
        facts.append(f"90 % interval {low} – {high}; datasheet bound {format_time((found.bound or 0.0) / 1e3)}")
    gap = f"1e{math.ceil(math.log10(max(found.largest_gap, 1e-15)))}"
    rests = [
        f"self-check passed: {found.formulas} formula{'s' if found.formulas > 1 else ''}, worked out again to {gap}"
    ]
    rests = rests if found.metric in TIMELESS else [origin(e.calibration, e.evidence), *rests]
    return [
        blocks.Section(f"{found.metric} of {headed(e)}", [blocks.Words(*facts)]),
        *_spent(found),
        *blocks.apart(tree, blocks.Words(*more), tree.sources),
        footer("; ".join(rests), found.warnings, e.version),
    ]


def _spent(found: Derivation) -> Iterator[blocks.Section]:
    """Bars of the time, before the tree: parts of a request under load, of a step of a static batch."""
    if found.metric not in ("tpot", "ttft"):
        return
    answer = found.answer
    request = Request.of(answer)
    if request is not None:
        yield request.section()
        return
    step = answer.decode if found.metric == "tpot" else answer.prefill
    yield blocks.Section("", [Waterfall(f"the step takes {ms(step.time_ms)}:", step_parts(step))])


def rows(found: Derivation) -> list[Json]:
    """Every node as a flat row, its place in the tree as a path."""
    rows = list[Json]()
    for path, node, _ in found.root.places():
        own = {name: getattr(node, name) for name in ("symbol", "value", "unit", "formula", "title")}
        text, std = (node.source.text, node.source.std) if node.source else ("", None)
        rows.append({"path": path, **own, "source": text, "std": std})
    return rows


def ordered(node: Node) -> Node:
    """Order the terms of a sum from the largest on.

    >>> terms = (Node("a", "small", 1.0, "s"), Node("b", "large", 2.0, "s"))
    >>> ordered(Node("x", "whole", 3.0, "s", "a + b", terms)).formula
    'b + a'
    """
    known = {child.symbol: child for child in node.children}
    terms = node.formula.split(" + ")
    if len(terms) != len(node.children) or set(terms) != set(known):
        return node
    ranked = sorted(node.children, key=lambda child: -child.value)
    return replace(node, formula=" + ".join(child.symbol for child in ranked), children=tuple(ranked))


def _branches(
    node: Node, depth: int, sources: _Sources, width: int, ahead: tuple[str, str] = ("", "")
) -> Iterator[str]:
    """A node's lines behind their prefixes: what it is, its formula in symbols and in numbers, its children."""
    first, rest = ahead
    node = ordered(node)
    again = sources.met(node)
    open_ = bool(node.children) and depth > 0 and not again
    if open_:
        sources.show(node)
    bar = "│ " if open_ else "  "
    cut = "" if open_ or not node.children else " (above)" if again else " …"
    mark = f" [{sources.number(node.source.text)}]" if node.source else ""
    yield from _fit(f"{node.symbol} = {_value(node)}  {node.title}{mark}{cut}", width, first, rest + bar)
    if not open_:
        return
    texts = {child.symbol: quantity(child.value, child.unit) for child in node.children}
    for line in dict.fromkeys((_pretty(node.formula), _pretty(substituted(node.formula, texts)))):
        yield from _fit(f"= {line}", width, rest + bar, rest + bar + "  ")
    for child in node.children:
        last = child is node.children[-1]
        branch = (rest + ("└ " if last else "├ "), rest + ("  " if last else "│ "))
        yield from _branches(child, depth - 1, sources, width, branch)


def _value(node: Node) -> str:
    spread = f" ± {quantity(node.source.std, node.unit)}" if node.source and node.source.std else ""
    return f"{quantity(node.value, node.unit)}{spread}"


def substituted(formula: str, texts: Mapping[str, str]) -> str:
    """The formula with every symbol replaced by the text of its value.

    >>> substituted("max(F/P, s/W)", {"F": "1 TFLOP", "P": "989 TFLOP/s", "s": "2 GB", "W": "3.35 TB/s"})
    'max(1 TFLOP/(989 TFLOP/s), 2 GB/(3.35 TB/s))'
    """

    def replaced(hit: re.Match[str]) -> str:
        text = texts.get(hit[0], hit[0])
        return hit[0] if hit[0] in FUNCTIONS else f"({text})" if "/" in text else text

    return _NAME.sub(replaced, formula)


def _pretty(formula: str) -> str:
    short = _LONG.sub(lambda hit: f"{float(hit[0]):.5g}", formula)
    return short.replace("**", "^").replace("*", "·")


def _fit(text: str, width: int, first: str, rest: str) -> list[str]:
    """Wrapped, a number and its unit always on one line."""
    room = max(width, len(rest) + 24)
    wrap = textwrap.TextWrapper(room, initial_indent=first, subsequent_indent=rest, break_long_words=False)
    return [line.replace("\u00a0", " ") for line in wrap.wrap(_UNIT.sub("\\1\u00a0\\2", text))]


def folded(node: Node, depth: int, shown: set[int]) -> str:
    """A line to open, as HTML; what stands above already is not shown again."""
    node = ordered(node)
    head = f"<b>{escape(node.symbol)} = {escape(quantity(node.value, node.unit))}</b> {escape(node.title)}"
    source = f"<p>{escape(node.source.text)}</p>" if node.source else ""
    if not node.children or depth == 0:
        return f"<div class=leaf>{head}{source}</div>"
    if id(node.children) in shown:
        return f"<div class=leaf>{head} (above)</div>"
    shown.add(id(node.children))
    lines = f"<p><code>{escape(_pretty(node.formula))}</code></p>" if node.formula else ""
    inside = "".join(folded(child, depth - 1, shown) for child in node.children)
    return f"<details><summary>{head}</summary><div class=below>{lines}{source}{inside}</div></details>"


class _Tree(blocks.Items):
    """A derivation to some depth: drawn on a terminal, with formulas in numbers; folded in notebooks, else a list."""

    def __init__(self, root: Node, depth: int) -> None:
        super().__init__(*_items(root, depth, _Sources()))
        self.root, self.depth, self.sources = root, depth, _Sources()
        self.drawn = list(_branches(root, depth, self.sources, blocks.WIDTH))

    def text(self, width: int = blocks.WIDTH) -> list[str]:
        return self.drawn if width == blocks.WIDTH else list(_branches(self.root, self.depth, _Sources(), width))

    def html(self) -> str:
        style = "<style>.rooflinekit .below{border-left:2px solid #8888;padding-left:12px;margin-left:5px}</style>"
        return style + folded(self.root, self.depth, set())


class _Sources(blocks.FixedLines):
    """Sources in the order in which they are met, numbered; and which trees were shown. Lists name them in place."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers: dict[str, int] = {}
        self._shown: set[tuple[str, float, str]] = set()

    def met(self, node: Node) -> bool:
        """True if the same number with the same formula stands above."""
        return bool(node.formula) and self._key(node) in self._shown

    def show(self, node: Node) -> None:
        """Mark that its formula stands on the page now."""
        self._shown.add(self._key(node))

    @staticmethod
    def _key(node: Node) -> tuple[str, float, str]:
        return node.title, node.value, node.formula

    def number(self, text: str) -> int:
        return self._numbers.setdefault(text, len(self._numbers) + 1)

    def text(self, width: int = blocks.WIDTH) -> list[str]:
        wrap = textwrap.TextWrapper(width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
        return [line for text, number in self._numbers.items() for line in wrap.wrap(f"[{number}] {text}")]


def _height(node: Node, known: dict[int, int] | None = None) -> int:
    """Levels below a node; of what several formulas ask for, of which there may be millions of paths, once."""
    known = {} if known is None else known
    if id(node.children) not in known:
        known[id(node.children)] = 1 + max((_height(child, known) for child in node.children), default=-1)
    return known[id(node.children)]


def _size(node: Node, depth: int) -> int:
    return 1 + (sum(_size(child, depth - 1) for child in node.children) if depth else 0)


def _items(node: Node, depth: int, sources: _Sources, level: int = 0) -> Iterator[str]:
    """Nested list items; what stands above is not opened again."""
    node = ordered(node)
    formula = f": `{_pretty(node.formula)}`" if node.formula else ""
    source = f" ({node.source.text})" if node.source else ""
    again = sources.met(node) and node.children and depth > 0
    yield f"{'  ' * level}**{node.symbol}** = {_value(node)}, {node.title}{formula}{source}{' (above)' * bool(again)}"
    if depth > 0 and not again:
        sources.show(node)
        for child in node.children:
            yield from _items(child, depth - 1, sources, level + 1)
