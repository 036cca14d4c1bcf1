"""Pasted text: console blocks of benchmark clients, tables in Markdown or CSV, sentences with figures, job logs.

pasted.yaml has the labels. A label is understood where it names a quantity and, of a time, its unit.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from typing import Any

from rooflinekit.estimation.options import OwnKeywords
from rooflinekit.evidence.measurement import Fields, MeasuredRun, RunFacts
from rooflinekit.evidence.startup import formats_of, gguf_format, services
from rooflinekit.evidence.tools import LLAMA_COUNTS, How, llama_run, measurement_of
from rooflinekit.model.types.errors import SpecError
from rooflinekit.specs.delimited import delimiter_of
from rooflinekit.specs.files import table_of

_tables = partial(table_of, __file__)

Parser = Callable[[str, Mapping[str, Any]], Iterator[MeasuredRun]]
"""Reads the runs of one JSON document."""

_MS = {"ms": 1.0, "msec": 1.0, "milliseconds": 1.0, "s": 1e3, "sec": 1e3, "secs": 1e3, "seconds": 1e3, "us": 1e-3,
       "µs": 1e-3}  # fmt: skip
_UNIT = re.compile(r"(.*?)\s*[(\[]([^()\[\]]*)[)\]]|(.*)[_ ](ms|us|s)")
_MARKS = re.compile(r"[*`~≈<>↑↓#\\]|</?br ?/?>")
_NUMBER = re.compile(r"([\d,]*\.?\d+(?:e[+-]?\d+)?) ?(k\b)? *(?:(?:±|\+/-).*|([a-zµ/ ]+))?", re.IGNORECASE)
_LENGTHS = re.compile(r"(\d[\d,]*(?:\.\d+)?k?) ?[/:x] ?(\d[\d,]*(?:\.\d+)?k?)", re.IGNORECASE)
_OBJECT = re.compile(r'^[ \t]*\{"', re.MULTILINE)
_PAIR = re.compile(r"^[ \t]*([^\s:|][^:|\n]{1,60}?)\s*:[ \t]+(\S.*?)[ \t]*$", re.MULTILINE)
_RULE = re.compile(r"^={30,}\s*$", re.MULTILINE)
_TEXTS = ("model", "gpu", "engine", "version", "quantization", "kv")
_ROW = re.compile(r"^\s*[|┃│](.*?)[|┃│]?\s*$")
_DASHES = re.compile(r"[\s:|-]+")
_GRID = re.compile(r"\s*[+┏┡└├╭╰][-+=─-╿]*\s*")
_TEST = re.compile(r"(?:pp(\d+))?\+?(?:tg(\d+))?(?: @ d(\d+))?")  # of llama-bench
_HEADS = re.compile(r"^[ \t]*[|┃│].*(?:ttft|tpot|\bitl\b|t/s|tok(?:en)?s?/s|latency|first token)", re.I | re.MULTILINE)
_MEASURED = ("ttft.", "tpot.", "itl.", "e2e.", "output_tok_s", "request_s")
_STATISTIC = re.compile(r"mean|avg|average|median|p\d+|min|max|std|ttft|tpot|itl|e2el?")
_DOT = re.compile(r"^(ttft|tpot|e2e)_")
_MOST_RUNS = 1000
_TABLE = How("table")


def is_pasted(text: str) -> bool:
    """True if a text may hold figures that people paste, or results in JSON among other lines."""
    if _measures(text.lstrip().partition("\n")[0]):
        return True
    plain = "\n".join(services(text).values())
    sentences = (one for _, ones in _sentences() for one in ones)
    return any(each.search(plain) for each in (_HEADS, _OBJECT, *_patterns("begins").values(), *sentences))


def read_pasted(source: str, text: str, from_json: Parser) -> list[MeasuredRun]:
    """Every run in a text; JSON among its lines goes before blocks, which say the same."""
    found: list[MeasuredRun] = []
    parts = services(text)
    for name, part in parts.items():
        own = f"{source} ({name})" if len(parts) > 1 else source
        for read in (_documents, _rows, _blocks, _markdown, _figures):
            if runs := list(read(own, part, from_json)):
                found += runs
                break
    if len(found) > _MOST_RUNS:
        raise SpecError(f"{source}: holds {len(found):,} runs; at most {_MOST_RUNS:,} are read")
    if len(found) > 1:
        return [replace(run, source=f"{run.source}#{number}") for number, run in enumerate(found)]
    return found


@cache
def _patterns(kind: str) -> Mapping[str, re.Pattern[str]]:
    return {name: re.compile(words, re.MULTILINE) for name, words in _tables()[kind].items()}


@cache
def _sentences() -> Sequence[tuple[How, Sequence[re.Pattern[str]]]]:
    return [(How.of(row), [re.compile(each, re.MULTILINE) for each in row["patterns"]]) for row in _tables()["lines"]]


def quantity_of(label: str) -> tuple[str, str] | None:
    """The quantity that a label names, as tools.yaml calls it, and its unit; None for any other.

    >>> quantity_of("Mean TTFT (ms):"), quantity_of("P99 TPOT [s]"), quantity_of("Output token throughput (tok/s)")
    (('ttft.mean', 'ms'), ('tpot.p99', 's'), ('output_tok_s', 'tok/s'))
    """
    said, unit = " ".join(_MARKS.sub("", label).lower().rstrip(": ").split()), ""
    if hit := _UNIT.fullmatch(said):
        said, unit = hit[1] or hit[3] or "", hit[2] or hit[4] or ""
        more, _, last = unit.rpartition(",")  # (mean, ms); a statistic alone in brackets is no unit
        said, unit = (f"{said} {more}", last.strip()) if more else (said, unit)
        said, unit = (f"{said} {unit}", "") if _STATISTIC.fullmatch(unit) else (said, unit)
        unit = unit.partition("/")[0] if unit.partition("/")[0] in _MS else unit
    said = said.replace("_", " ")
    if name := next((name for name, words in _patterns("times").items() if words.search(said)), None):
        part = next((part for part, words in _patterns("parts").items() if words.search(said)), "mean")
        return (f"{name}.{part}", unit) if part and unit in ("", *_MS) else None
    for words in (f"{said} {unit}",) if unit else ():
        if found := next((name for name, each in _patterns("figures").items() if each.search(words)), None):
            return found, unit
    found = next((name for name, each in _patterns("figures").items() if each.search(said)), None)
    return (found, unit) if found else None


def _measures(header: str) -> bool:
    """True if columns of a CSV hold what a benchmark of requests measures, and something of its load."""
    cells = [cell.strip(' "') for cell in header.split(delimiter_of(header))]
    names = [found[0] for cell in cells if (found := quantity_of(cell))]
    served = [name for name in names if name.startswith(_MEASURED) and not name.startswith("e2e.")]
    return {"n_prompt", "avg_ts"} <= {*cells} or bool(served and any(not name.startswith(_MEASURED) for name in names))


def _record(source: str, pairs: Iterable[tuple[str, str]], strict: bool = True) -> dict[str, object]:
    """Quantities by name, of labels and cells; the first of a name counts, and times are in ms.

    strict: raise SpecError for a time whose unit nothing says, else leave it out.
    """
    record: dict[str, Any] = {}
    for label, cell in pairs:
        found, text = quantity_of(label), _MARKS.sub("", cell).strip().strip('"')
        if found is None or not text or found[0] in record:
            continue
        name, unit = found
        hit, lengths = _NUMBER.fullmatch(text), _LENGTHS.fullmatch(text)
        if name in _TEXTS:
            record[name] = text
        elif name == "rate" and text.lower() in ("inf", "infinity"):
            record[name] = "inf"
        elif name == "lengths" and lengths:
            record |= {"isl": _plain(lengths[1]), "osl": _plain(lengths[2])}
        elif hit and "." not in name:
            record[name] = _plain(hit[1] + (hit[2] or ""))
        elif hit:
            scale = _MS.get((hit[3] or "").strip().lower()) or _MS.get(unit)
            if scale is not None:
                record[name] = _plain(hit[1]) * scale
            elif strict:
                raise SpecError(f"{source}: {label.strip()!r} names no unit of time; write '{label.strip()} (ms)'")
    return record


def _plain(text: str) -> float:
    """A number of its text, with thousands and k.

    >>> _plain("1,024"), _plain("8k")
    (1024.0, 8192.0)
    """
    thousands = text[-1:] in "kK"
    return float(text.rstrip("kK").replace(",", "")) * (1024.0 if thousands else 1.0)


def _run(source: str, how: How, record: Mapping[str, object]) -> Iterator[MeasuredRun]:
    if any(name.startswith(_MEASURED) for name in record):
        yield measurement_of(Fields(source, record), how)


def _documents(source: str, text: str, from_json: Parser) -> Iterator[MeasuredRun]:
    for line in text.splitlines():
        if line.lstrip()[:2] == '{"':
            try:
                data = json.loads(line)
            except (ValueError, RecursionError):
                continue
            yield from from_json(source, data)


def _rows(source: str, text: str, from_json: Parser) -> Iterator[MeasuredRun]:
    """Rows of a CSV, whose columns are the keys of a tool's JSON (a sweep of vLLM writes them), or labels."""
    lines = text.strip().splitlines()
    if not lines or not _measures(lines[0]):
        return
    for row in csv.DictReader(lines, delimiter=delimiter_of(lines[0])):
        cells = {name.strip(): cell for name, cell in row.items() if name and isinstance(cell, str) and cell.strip()}
        runs = list(from_json(source, cells))
        yield from runs or _run(source, _TABLE, _record(source, cells.items()))


def _blocks(source: str, text: str, from_json: Parser) -> Iterator[MeasuredRun]:
    begins = _patterns("begins")
    for tool in ("serve", "trtllm-bench", "trtllm-bench part"):
        starts = [hit.start() for hit in begins[tool].finditer(text)][: 1 if tool.endswith("part") else None]
        done, found = 0, False
        for start, following in pairwise((*starts, len(text))):
            rule = _RULE.search(text, start + 1, following) if tool == "serve" else None
            end = rule.end() if rule else following
            before = dict[str, object]()
            for name, ones in _tables()["before"].items():
                for hits in (re.findall(one, text[done:start]) for one in ones):
                    before |= {name: hits[-1]} if hits else {}
            pairs = [pair for pair in _PAIR.findall(text[start:end]) if pair[0].lower() != "concurrency"]  # achieved
            record = before | _record(source, pairs, strict=False)
            how = How("console block") if tool == "serve" else How("trtllm-bench", "trtllm")
            for run in _run(source, how, record):
                found = True
                yield run
            done = end
        if found:
            return


def _markdown(source: str, text: str, from_json: Parser) -> Iterator[MeasuredRun]:
    """Tables of Markdown: a run a row, or a run a column where the labels stand in the first one."""
    hit = re.search(_tables()["device"], text)
    device = next(filter(None, hit.groups()), None) if hit else None
    for table in _tables_of(text):
        head, *rows = table
        named = [quantity_of(cell) for cell in head]
        columns = {cell.strip().lower(): place for place, cell in enumerate(head)}
        if {"test", "t/s"} <= columns.keys():
            yield from (_llama_row(source, dict(zip(columns, row, strict=False)), device) for row in rows)
        elif not any(named) and all(_STATISTIC.fullmatch(cell.lower()) for cell in head[1:]):  # as AIPerf prints a run
            pairs = []
            for first, *cells in rows:
                label = first.lower().replace("inter token latency", "tpot")
                for part, cell in zip(head[1:], cells, strict=False):
                    pairs.append((label if part.lower() in ("avg", "mean") else f"{part} {label}", cell))
            yield from _run(source, _TABLE, _record(source, pairs))
        elif any(each and each[0].startswith(_MEASURED) for each in named):
            for row in rows:
                yield from _run(source, _TABLE, _record(source, zip(head, row, strict=False)))
        elif any((found := quantity_of(row[0])) and found[0].startswith(_MEASURED) for row in rows if row):
            for place in range(1, len(head)):
                pairs = [(row[0], row[place]) for row in (head, *rows) if len(row) > place]
                if number := re.search(r"(\d+) ?users?|(?:conc\w*|c|users) ?=? ?(\d+)", head[place].lower()):
                    pairs.append(("concurrency", number[1] or number[2]))
                yield from _run(source, _TABLE, _record(source, pairs))


def _tables_of(text: str) -> Iterator[list[list[str]]]:
    """Lines with bars that follow each other, as cells, without the line of dashes."""
    table: list[list[str]] = []
    for line in (*text.splitlines(), ""):
        if hit := _ROW.match(line):
            cells = [cell.strip() for cell in re.split("[|┃│]", hit[1])]
            if table and "│" in line and cells[0] and not any(cells[1:]):  # a label that goes on
                table[-1][0] += f" {cells[0]}"
            elif not _DASHES.fullmatch(hit[1]):
                table.append(cells)
        elif table and not _GRID.fullmatch(line):
            if len(table) > 1:
                yield table
            table = []


def _llama_row(source: str, cells: Mapping[str, str], device: str | None) -> MeasuredRun:
    """A row of llama-bench's table, which names a family and a size, not the model."""
    test, rate = _TEST.fullmatch(cells["test"]), _NUMBER.fullmatch(cells["t/s"])
    if test is None or rate is None:
        raise SpecError(f"{source}: {cells['test']!r} with {cells['t/s']!r} t/s is no test of llama-bench")
    weights = gguf_format(cells.get("model", ""))
    deployment: OwnKeywords = {"weights": weights} if weights else {}
    deployment |= formats_of(None, cells.get("type_k"))
    counts = {option: cells.get(key, "") for key, option in LLAMA_COUNTS.items()}
    deployment |= {option: int(text) for option, text in counts.items() if text.isdigit() and int(text)}
    if (layers := cells.get("ngl", "")).isdigit():
        deployment["resident_layers"] = int(layers)
    tokens = int(test[1] or 0), int(test[2] or 0), int(test[3] or 0)
    run = llama_run(source, tokens, _plain(rate[1]), RunFacts(gpu=device), deployment)
    called = cells.get("model")
    return replace(run, notes=(*run.notes, f"llama-bench calls the model {called!r}")) if called else run


def _figures(source: str, text: str, from_json: Parser) -> Iterator[MeasuredRun]:
    for how, patterns in _sentences():
        found: dict[str, Any] = {}
        for hit in (each for one in patterns for each in one.finditer(text)):
            found |= {name: value for name, value in hit.groupdict().items() if value is not None}
        record: dict[str, Any] = {
            _DOT.sub(r"\1.", name): value if name in _TEXTS else float(value) for name, value in found.items()
        }
        made = record.get("osl", 0.0)
        if (whole := record.pop("decode_ms", None)) and made:
            record["tpot.mean"] = whole / made
        if rate := record.pop("decode_rate", None):
            record["tpot.mean"] = 1.0 / rate
        if "tpot.mean" in record and how.engine == "llama.cpp":
            record |= {"concurrency": 1.0, "tp": 1.0}
        if runs := list(_run(source, how, record)):
            yield from runs
            return
