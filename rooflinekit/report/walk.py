"""A walk: attention mask, every step with its tensors and its work; and the same as one page to step through."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from rooflinekit.explanation.walk.result import Phase, Stop, Tensor, Walk, WalkSection, WalkSymbol, Work
from rooflinekit.model.types.units import format_bytes, format_count, percent
from rooflinekit.report import document as blocks
from rooflinekit.report.document import WIDTH, CellTable, Document, FixedLines, Words, wrapped
from rooflinekit.report.look import hues
from rooflinekit.report.markup import filled, script_hashes, script_json
from rooflinekit.specs.escaping import markdown_words

_NAME, _NUMBER = 21, 7  # columns of a step's name, and of its FLOP and bytes
_TENSOR = WIDTH - _NAME - 2 * _NUMBER - 2
_INDENT = "    "
_TOTALS = ["in all", "FLOP", "weights", "KV read", "KV write", "activations", "FLOP/B"]
_LARGEST = 1e12  # above this, a letter's value has an exponent
_PICTURE = 20  # tokens of the largest picture
_WORD = 16  # letters of a word in it
_NEXT = "decode"  # the row of the token behind the prompt
_FEW = 12  # offsets that are all listed
_COLUMNS = ("step", "tensor", "shape", "numbers", "FLOP", "bytes", "formulas")


def document(walk: Walk) -> Document:
    """The whole walk; on a terminal letters, formulas and notes are told once."""
    told, (title, *lead) = _Told(), headline(walk)
    sections = [blocks.Section(title, [Words(*lead)]), *blocks.apart(FixedLines(attention_picture(walk)))]
    for phase in walk.phases:
        offsets = f"cu_seqlens: queries {_few(phase.cu_seqlens_q)}, keys {_few(phase.cu_seqlens_k)}"
        packed = len(walk.inputs["tokens"]) > 1
        title = f"{phase.name.upper()}: {phase.title}"
        sections.append(blocks.Section(title, [Words(offsets)] if packed else []))
        sections += blocks.apart(*(LayerSteps(section, told) for section in phase.sections))
    end = blocks.footer("", walk.warnings, walk.version)
    totals = []
    for name, work in ((phase.name, phase.work) for phase in walk.phases):
        amounts = (work.flops, work.weight_bytes, work.kv_read_bytes, work.kv_write_bytes, work.activation_bytes)
        intensity = "-" if work.intensity is None else f"{work.intensity:.3g}"
        totals.append([name, *map(format_count, amounts), intensity])
    last = blocks.Section("", [Words(ridge_sentence(walk)), *end.blocks])
    return [*sections, *blocks.apart(CellTable(_TOTALS, totals)), last]


def ridge_sentence(walk: Walk) -> str:
    """Sentence that compares the work of a phase with the ridge."""
    return f"{walk.gpu} does {walk.ridge:.0f} FLOP in the time of one byte: below that, memory is the limit."


class _Told:
    """Facts that the reader has been told already."""

    def __init__(self) -> None:
        self.letters: dict[str, float] = {}
        self.texts: set[tuple[str, ...]] = set()

    def new_letters(self, section: WalkSection) -> list[WalkSymbol]:
        """Letters that are new, or worth something else than before."""
        fresh = [symbol for symbol in section.symbols if self.letters.get(symbol.name) != symbol.value]
        self.letters |= {symbol.name: symbol.value for symbol in fresh}
        return fresh

    def once(self, text: str, *about: str) -> str:
        """The text, the first time that it is said about this."""
        fresh = (text, *about) not in self.texts
        self.texts.add((text, *about))
        return text if fresh else ""


def headline(walk: Walk) -> list[str]:
    """Heading of a walk: model, formats, and how it is counted."""
    i = walk.inputs
    degrees = ", ".join(f"{key} {i[key]}" for key in ("tp", "pp", "ep", "dp", "cp") if i[key] > 1)
    ranks = i["tp"] * i["dp"] * i["cp"]
    split = f" on 1 of {ranks} ranks" if ranks > 1 else ""
    split += f" through {i['pp']} stages" if i["pp"] > 1 else ""
    split += f" ({degrees})" if degrees else ""
    formats = f"weights {i['weights']}, activations {i['activations']}, kv {i['kv']}"
    lines = [f"{walk.model}{split}: the tensors of a prefill and of the decode step behind it"]
    rules = [f"{key.replace('_', ' ')} {i[key]}" for key in ("skew", "redundant_experts") if i[key]]
    rules += ["sequence parallel"] * i["sequence_parallel"] + [f"cache {i['kv_policy']}"] * (i["kv_policy"] != "full")
    lines.append("; ".join([_asked(walk), formats, *rules]))
    lines.append("work as estimate counts it: attention causal, a launch's parts apart")
    if i["batch"] > 1 and len(i["tokens"]) > 1:
        packed = f"packed they are {walk.phases[0].cu_seqlens_q[-1]:,}"
        lines.append(f"padded to the longest they would be {i['padded_tokens']:,} tokens, {packed}")
    return lines


def _asked(walk: Walk) -> str:
    i = walk.inputs
    if walk.words:
        return f"{len(walk.words)} token{'s' if len(walk.words) > 1 else ''}, one for each word or mark of the prompt"
    if len(i["tokens"]) > 1:
        return f"prompts of {_few(tuple(i['tokens']))} tokens"
    each = f"{i['tokens'][0]:,} token{'s' if i['tokens'][0] > 1 else ''}"
    return f"{i['batch']} x {each}" if i["batch"] > 1 else each


def _few(numbers: tuple[int, ...]) -> str:
    if len(numbers) <= _FEW:
        return f"[{', '.join(map(str, numbers))}]"
    return f"[{', '.join(map(str, numbers[: _FEW - 2]))}, … {numbers[-1]}]"


def attention_picture(walk: Walk) -> list[str]:
    """Picture of full attention: rows and columns of tokens; nothing for more than a few tokens.

    Rows are the new tokens, columns the keys: a triangle for a prompt, blocks on the diagonal for packed ones. The
    token that decode computes behind a prompt sees all of it, and itself.
    """
    names, mask = attention_mask(walk)
    if not mask:
        return []
    if len(walk.inputs["tokens"]) == 1:
        names, mask = [*names, _NEXT], [*mask, "1" * (len(mask[0]) + 1)]
    wide = max(map(_columns, names))
    rows = [
        f"  {name}{' ' * (wide - _columns(name))}  {' '.join('■' if cell == '1' else '·' for cell in row)}"
        for name, row in zip(names, mask, strict=True)
    ]
    return ["attention mask: a row for each new token, a column for each key", *rows]


def _columns(text: str) -> int:
    """Columns of a terminal that it takes: ideographs take two, marks upon a letter none."""
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text) + wide - sum(unicodedata.combining(letter) > 0 for letter in text)


def attention_mask(walk: Walk) -> tuple[list[str], list[str]]:
    """Names of the new tokens, and for each a row of keys: 1 where it sees one; empty for more than a few tokens."""
    starts, cached = walk.phases[0].cu_seqlens_q, walk.inputs["cached"]
    keys = starts[-1] + cached
    if (walk.inputs["batch"] > 1 and (len(walk.inputs["tokens"]) == 1 or cached)) or keys > _PICTURE:
        return [], []
    names = [_short(word) for word in (walk.words or [str(number + 1) for number in range(keys)])[cached:]]
    first = [max(start for start in starts if start <= row) for row in range(starts[-1])]
    return names, [
        "".join("1" if first[row] <= key - cached <= row or key < cached else "0" for key in range(keys))
        for row in range(starts[-1])
    ]


def _short(word: str) -> str:
    """A word that keeps its place in the picture."""
    word = "".join(letter if letter.isprintable() else "?" for letter in word)
    return word if len(word) <= _WORD else f"{word[: _WORD - 1]}…"


class LayerSteps:
    """The steps of some layers: a terminal is told each letter, formula and note once; tables have all of them."""

    def __init__(self, section: WalkSection, told: _Told | None = None) -> None:
        self.section, self.told = section, told or _Told()
        self.letters = ", ".join(f"{s.name} = {letter_value(s.value)} ({s.meaning})" for s in section.symbols)
        rows = [row for stop in section.stops for row in _rows(stop)]
        self.table = CellTable(_COLUMNS, rows, left=(0, 1, 2, 3, 6))

    def text(self, width: int = WIDTH) -> list[str]:
        section, told = self.section, self.told
        lines, letters = wrapped(section_title(section)), told.new_letters(section)
        names = max((len(symbol.name) for symbol in letters), default=0)
        values = max((len(letter_value(symbol.value)) for symbol in letters), default=0)
        for symbol in letters:
            start = f"  {symbol.name:<{names}}  {letter_value(symbol.value):>{values}}  "
            lines += wrapped(symbol.meaning, " " * len(start), start)
        lines.append("")
        lines.append(f"{'step':<{_NAME}}{'tensor':<{_TENSOR}}{'FLOP':>{_NUMBER + 1}}{'bytes':>{_NUMBER + 1}}")
        lines += [*(line for stop in section.stops for line in _stop(stop, told)), _summed("together", section.work)]
        if section.count > 1:
            name = f"{section.count} {'layers' if section.layers else 'times'}"
            lines.append(_summed(name, section.work.times(section.count)))
        return lines

    def markdown(self) -> list[str]:
        title, letters = map(markdown_words, (section_title(self.section), self.letters))
        return [f"#### {title}", "", letters, "", *self.table.markdown()]

    def html(self) -> str:
        return f"<p><b>{escape(section_title(self.section))}</b></p><p>{escape(self.letters)}</p>{self.table.html()}"


def _rows(stop: Stop) -> Iterator[list[str]]:
    """A row for each tensor; the work beside the first."""
    work = [*(_counts(stop.work) if stop.kernel else ("-", "-")), _formulas(stop)]
    for number, tensor in enumerate(stop.outputs):
        beside = work if number == 0 else [""] * len(work)
        yield [stop.name if number == 0 else "", tensor.name, tensor.letters, tensor.numbers, *beside]


def section_title(section: WalkSection) -> str:
    """Title of the layers of a section."""
    if not section.layers:
        return section.title
    times = f"{section.count} alike; work of one" if section.count > 1 else "one"
    return f"layers {section.layers}: {section.title} ({times})"


def letter_value(value: float) -> str:
    """Value of a letter."""
    return f"{value:,.0f}" if value == int(value) and value < _LARGEST else f"{value:.6g}"


def _stop(stop: Stop, told: _Told) -> list[str]:
    """A line for each tensor, the work beside the first; behind them what is done, how it is counted, and notes."""
    tensors = [part for tensor in stop.outputs for part in _tensor(tensor)]
    counts = _counts(stop.work) if stop.kernel else ("-", "-")
    first = f"{stop.name:<{_NAME}}{tensors[0]:<{_TENSOR}}"
    lines = [f"{first} {counts[0]:>{_NUMBER}} {counts[1]:>{_NUMBER}}"]
    lines += [" " * _NAME + part for part in tensors[1:]]
    held = "; ".join(f"{weight.name} {weight.letters} = {weight.numbers}" for weight in stop.weights)
    details = f"{stop.does}; {held}" if held else stop.does, _formulas(stop)
    lines += [part for detail in details for part in _indented(told.once(detail, stop.name))]
    return lines + _indented(told.once(stop.note))


def _tensor(tensor: Tensor) -> list[str]:
    """Letters and numbers on one line, or on two where they are long."""
    whole = f"{tensor.name} {tensor.letters} = {tensor.numbers}"
    if len(whole) <= _TENSOR:
        return [whole]
    return [f"{tensor.name} {tensor.letters}", f"  = {tensor.numbers}"]


def _counts(work: Work) -> tuple[str, str]:
    flops, moved = (format_count(amount).replace(" ", "").replace("e+", "e") for amount in (work.flops, work.bytes))
    return flops, moved


def _formulas(stop: Stop) -> str:
    names = zip(("FLOP", "bytes", "sent"), stop.formulas.values(), strict=True)
    texts = [f"{name} {formula}" for name, formula in names if formula]
    if stop.network_formula:
        texts[-1] += f" = {format_count(stop.work.network_bytes, 'B')}"
    return "; ".join(texts)


def _indented(text: str) -> list[str]:
    return wrapped(text, _INDENT + "  ", _INDENT)


def _summed(name: str, work: Work) -> str:
    flops, moved = _counts(work)
    return f"{name:<{_NAME + _TENSOR}} {flops:>{_NUMBER}} {moved:>{_NUMBER}}"


_TEMPLATE = Path(__file__).with_name("walk.html")
_MASKED = ("causal mask", "softmax")
_LEAST = 0.001  # share that is told as a number


def walk_page(walk: Walk) -> str:
    """The whole page; it works without JavaScript too, as tables."""
    title, *lead = headline(walk)
    names, mask = attention_mask(walk)
    stops, foot, tables = [], [], []
    for phase in walk.phases:
        stops += [_slide(stop, section, phase, mask) for section in phase.sections for stop in section.stops]
        work, intensity = phase.work, phase.work.intensity or 0.0
        moved = f"{format_bytes(work.bytes)}, {format_bytes(work.weight_bytes)} of them weights"
        foot.append(f"{phase.name}: {format_count(work.flops, 'FLOP')}, {moved}: {intensity:.3g} FLOP/B")
        tables.append(f"<h2>{escape(phase.name)}: {escape(phase.title)}</h2>")
        for steps in map(LayerSteps, phase.sections):
            tables.append(f"<h3>{escape(section_title(steps.section))}</h3><p>{escape(steps.letters)}</p>")
            tables.append(f'<div class="wide">{steps.table.html(" class=n", "")}</div>')
    foot += [ridge_sentence(walk), f"rooflinekit {walk.version}", *(f"Note: {warning}" for warning in walk.warnings)]
    parts = {
        "hues": hues(),
        "title": escape(title),
        "lead": "".join(f"<p>{escape(line)}</p>" for line in lead),
        "foot": "".join(f"<p>{escape(line)}</p>" for line in foot),
        "tables": "".join(tables),
        "hashes": script_hashes(_TEMPLATE.read_text(encoding="utf-8")),
        "data": script_json({"names": names, "mask": mask, "stops": stops}),
    }
    return filled(_TEMPLATE, parts)


def _slide(stop: Stop, section: WalkSection, phase: Phase, mask: Sequence[str]) -> dict[str, object]:
    """One step with everything that is shown of it, as text."""
    told = {symbol.name: symbol.value for symbol in section.symbols}
    used = set(re.findall(r"\w+", " ".join(stop.lettered)))
    letters = [[s.name, letter_value(s.value), s.meaning] for s in section.symbols if s.name in used]
    pairs = sum(row.count("1") for row in mask)
    amounts = {of: _amount(stop, of, section, phase) for of in ("flops", "bytes", "network")}
    return {
        "phase": phase.name,
        "where": section_title(section),
        **{key: getattr(stop, key) for key in ("name", "does", "note")},
        "mask": stop.name in _MASKED and phase.name == "prefill" and pairs > 0 and told["pairs"] == pairs,
        "outputs": [_picture(tensor) for tensor in stop.outputs],
        "weights": [_picture(tensor, "weights") for tensor in stop.weights],
        **(amounts if stop.network_formula else amounts | {"network": None}),
        "letters": letters,
    }


def _picture(tensor: Tensor, kind: str = "") -> dict[str, object]:
    told = {key: getattr(tensor, key) for key in ("name", "symbols", "shape", "letters", "numbers", "dtype")}
    held = kind or ("cache" if "cache" in tensor.name or tensor.name == "state" else "activations")
    return told | {"kind": held, "table": not kind and tensor.name in ("scores", "weights")}


def _amount(stop: Stop, of: str, section: WalkSection, phase: Phase) -> dict[str, str]:
    """A number, its formula, the formula with numbers, and its share of the whole step of the engine."""
    key, unit = ("flops", "FLOP") if of == "flops" else (f"{of}_bytes" if of == "network" else of, "B")
    value, whole = getattr(stop.work, key), getattr(phase.work, key)
    share = section.count * value / whole if whole else 0.0
    told = f"{'<0.1 %' if share < _LEAST else percent(share, 1)} of the {phase.name}" + (
        f", all {section.count} {'layers' if section.layers else 'times'} together" if section.count > 1 else ""
    )
    return {
        "text": format_count(value, unit) if stop.kernel else "a view: none",
        "formula": stop.formulas[of],
        "numbers": stop.substituted.get(of, ""),
        "share": told if value else "",
        "width": f"{share:.2%}",
    }
