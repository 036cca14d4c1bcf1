"""Looks of `rooflinekit watch` at servers and files; the command stands in `answers`, and loads this when it runs."""

from __future__ import annotations

import json
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from http.client import HTTPException
from operator import attrgetter
from pathlib import Path
from typing import BinaryIO, cast
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from rooflinekit.cli.output import CommandOutput, note
from rooflinekit.estimation.options import Value
from rooflinekit.evidence import exposition
from rooflinekit.evidence.benchmark_runs import Given
from rooflinekit.evidence.measured import read_intervals, read_start
from rooflinekit.evidence.measurement import StartUp
from rooflinekit.evidence.watching import LEARNT, Watched, Watcher, left_out
from rooflinekit.model.types.errors import InputError, SpecError
from rooflinekit.specs.places import admit
from rooflinekit.specs.writing import check_target, write_whole

TOKEN = "ROOFLINEKIT_WATCH_TOKEN"
"""Variable of the environment: what servers whose metrics are not open have to be shown."""
_REFUSED = (401, 403)
_LONGEST = 10.0  # seconds that a server may take to answer
_LARGEST = 8 << 20  # bytes of an exposition: an engine's are thousands of lines
_SET = 1.0  # seconds between two looks by which a clock that nobody sets is not off
_GZIP = 31  # how zlib calls the format
_BEGIN = 256  # bytes by which a file is known
_PART = 1 << 20  # bytes that are read at once
_LONGEST_LINE = 1 << 24  # bytes
_CLEAR = "\x1b[H\x1b[2J"


def watch(
    sources: list[str],
    to: CommandOutput,
    once: bool = False,
    follow: bool = False,
    every: float = 60.0,
    record: Path | None = None,
    update: Path | None = None,
    listen: int | None = None,
    **said: Value,
) -> int:
    """Watch until the sources end or somebody interrupts; returns the exit code."""
    live, files, logs = _told_apart(sources, follow, record is not None or (listen is not None and not follow))
    if record is not None:
        _check_recording(record)
    if follow and once:
        raise InputError("--follow goes on, and --once ends; give one of them")
    to.check()
    if update is not None and str(update) != str(said.get("calibration")):
        check_target(update, to.force)
    given = Given.of(**said)
    watcher = Watcher(given, logs=logs)
    ends = not live and not follow
    looks = _intervals(live, every, record) if live else _followed(files, every) if follow else _read(files)
    show = _exporter(listen) if listen is not None else lambda _: None
    try:
        for found in looks:
            hours = -len(watcher.seen) // LEARNT
            lost = watcher.see_all(found)
            for said_once in left_out(lost) if ends else [f"{error}; looking again" for error in lost]:
                note(said_once)
            answer = watcher.answer()
            show(answer)
            if -len(watcher.seen) // LEARNT < hours:
                _updated(watcher, update)
            if once or ends:
                break
            if to.out is None and to.format == "table":
                if sys.stdout is not None and sys.stdout.isatty():
                    to.emit(_CLEAR)
                to.show(answer)
    except KeyboardInterrupt:
        if ends or not watcher.seen:
            raise
    if once or ends or to.out is not None or to.format != "table":
        to.show(watcher.answer())
    return _updated(watcher, update)


def _told_apart(sources: Sequence[str], follow: bool, running: bool) -> tuple[list[str], list[Path], list[StartUp]]:
    """Addresses or files, and start-up logs; `follow` where only logs can be meant, `running` where only servers."""
    live = [source for source in sources if source.startswith(("http://", "https://"))]
    paths = [Path(source) for source in sources if source not in live]
    if twice := next((source for source in live if live.count(source) > 1), None):
        raise InputError(f"{twice} is given twice; each server counts once")
    if any("@" in source.split("/", 3)[2] for source in live):
        raise InputError(f"an address holds no user and no password; {TOKEN} in the environment is a bearer token")
    for path in paths:
        if ":" in str(path) and not path.exists():
            raise InputError(f"{path}: no such file; the address of a server begins with http:// or https://")
    empty = [path for path in paths if follow and path.is_file() and not path.stat().st_size]
    started = {path: None if path in empty else read_start(path) for path in paths}
    files = [path for path, log in started.items() if log is None]
    if live and files:
        raise InputError("give addresses of servers or files, not both")
    if not live and not files:
        raise InputError("start-up logs say how servers were started; give their addresses or a recording too")
    if follow and (live or any(map(_recorded, files))):
        raise InputError("--follow is for logs of requests; servers are watched until you end it")
    if not live and running:
        raise InputError("--record and --listen are for running servers, and these are files")
    return live, files, [log for log in started.values() if log is not None]


def _read(paths: Sequence[Path]) -> Iterator[list[exposition.MeasuredInterval]]:
    """Everything that files hold, at once."""
    yield sorted((each for path in paths for each in read_intervals(path)), key=attrgetter("end"))


def _check_recording(path: Path) -> None:
    """Refuse what a recording cannot go on in. Raises InputError."""
    check_target(path, force=True)
    if path.exists() and path.stat().st_size and not _recorded(path):
        raise InputError(f"{path} exists, and is no recording; name another file")


def _recorded(path: Path) -> bool:
    admit(path)
    with path.open(encoding="utf-8", errors="replace") as file:
        return exposition.is_recording(file.read(len(exposition.SCRAPED)))


def _updated(watcher: Watcher, update: Path | None) -> int:
    """Write the calibration, if it is wanted."""
    if update is not None:
        write_whole(update, watcher.fit(f"{datetime.now(UTC):%Y-%m-%d}").text.encode(), force=True)
        note(f"wrote {update}; use it with --calibration {update}")
    return 0


def _intervals(
    addresses: Sequence[str], every: float, record: Path | None
) -> Iterator[list[exposition.MeasuredInterval]]:
    """Intervals between looks at all servers.

    All must answer the first look. Later, one that gives no metrics is said, and the others go on.
    """
    before: dict[str, exposition.Scrape] = {}
    clock: float | None = None  # of the last look, less the time since this machine started
    token = os.environ.get(TOKEN, "").strip()
    if not (token.isascii() and (token.isprintable() or not token)):
        raise InputError(f"{TOKEN} holds characters that no header can")
    while True:
        begun, now = time.monotonic(), time.time()
        was_set, clock = clock is not None and abs(now - begun - clock) > _SET, now - begun
        texts, after = dict[str, str](), dict[str, exposition.Scrape]()
        with ThreadPoolExecutor(len(addresses)) as pool:  # one that hangs delays no look at the others
            looks = {address: pool.submit(_fetched, address, token) for address in addresses}
        for address, look in looks.items():
            try:
                text = look.result()
                after[address] = exposition.read_scrape(text, now, address)
                exposition.together(list(after.values()))
            except SpecError as error:
                if not before:
                    raise
                after.pop(address, None)
                note(f"{error}; looking again")
            else:
                texts[address] = text
                for said in after[address].notes:
                    note(said)
        if record is not None and texts:
            with record.open("a", encoding="utf-8") as file:
                file.write("".join(exposition.scrape_text(text, now, address) for address, text in texts.items()))
        if after:
            found = exposition.between(before, after, addresses[0]) if before and not was_set else None
            if before and was_set:
                note("the clock of this machine was set, or it slept; looking again")
            elif before and found is None:
                note("no request got its first token, or a server restarted; looking again")
            before = after
            if found is not None:
                yield [found]
        time.sleep(max(begun + every - time.monotonic(), 0.0))


def _fetched(address: str, token: str) -> str:
    """The text at an address; raises SpecError, which names it."""
    ends, body = time.monotonic() + _LONGEST, b""
    try:
        asked = Request(address)
        if token:
            asked.add_unredirected_header("Authorization", f"Bearer {token}")
        with urlopen(asked, timeout=_LONGEST) as answer:
            while (answer.length or 0) + len(body) <= _LARGEST and (part := answer.read1(_LARGEST)):
                body += part
                if time.monotonic() > ends:
                    raise TimeoutError(f"the answer takes more than {_LONGEST:g} s")
            size = (answer.length or 0) + len(body)
            if answer.length and size <= _LARGEST:
                raise ConnectionError("the answer ends early")
            if answer.headers.get("Content-Encoding") == "gzip" and size <= _LARGEST:
                body = zlib.decompressobj(_GZIP).decompress(body, _LARGEST + 1)
                size = len(body)
    except HTTPError as error:
        error.close()
        hint = f"; {TOKEN} in the environment is sent as its bearer token" if error.code in _REFUSED else ""
        raise SpecError(f"{address} answers {error.code} {error.reason}{hint}") from None
    except (OSError, ValueError, HTTPException, zlib.error) as error:
        raise SpecError(f"{address} does not answer: {getattr(error, 'reason', error)}") from None
    if size > _LARGEST:
        raise SpecError(f"{address}: has more than {_LARGEST >> 20} MB of metrics, which no engine has")
    return body.decode("utf-8", "replace")


class _Tail:
    """The lines of a file as they are written, also after it was moved away or cut and begun anew.

    A file that was moved away is read until it says nothing more between two looks, since its writer may go on with it.
    One that was cut is known by its size, or by what it begins with.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._rest, self._begin = path, b"", b""
        self._file: BinaryIO | None = None

    def lines(self) -> Iterator[str]:
        """Whole lines that came since the last call, and of a file that is over the last one too."""
        while self._file or self._opens():
            file = cast("BinaryIO", self._file)
            if self._cut(file):
                yield from self.close()
                continue
            more = False
            while part := file.read(_PART):
                more = True
                *whole, self._rest = (self._rest + part).split(b"\n")
                if len(self._rest) > _LONGEST_LINE:
                    whole, self._rest = [*whole, self._rest], b""
                yield from (line.strip(b"\0").decode("utf-8", "replace") for line in whole)
            if len(self._begin) < _BEGIN:
                self._begin = os.pread(file.fileno(), _BEGIN, 0)
            if more or self._named(file):
                return
            yield from self.close()

    def close(self) -> list[str]:
        """Leave nothing open; returns the last line if it was not ended."""
        if self._file:
            self._file.close()
        rest, self._file, self._rest, self._begin = self._rest, None, b"", b""
        return [rest.decode("utf-8", "replace")] if rest.strip(b"\0\r ") else []

    def _opens(self) -> bool:
        """True if there is a file, which is open then. What cannot be opened is said, and tried again."""
        if not self.path.exists():
            return False
        try:
            admit(self.path)
            self._file = self.path.open("rb")
        except (OSError, SpecError) as error:
            why = f"{self.path}: {error.strerror}" if isinstance(error, OSError) else error
            note(f"{why}; looking again")
        return self._file is not None

    def _named(self, file: BinaryIO) -> bool:
        """True if the file still has its name, or nothing else has it."""
        try:
            return os.path.samestat(os.fstat(file.fileno()), self.path.stat())
        except OSError:
            return False

    def _cut(self, file: BinaryIO) -> bool:
        """True if the file was cut since it was read."""
        begin = os.pread(file.fileno(), len(self._begin), 0)
        return begin != self._begin or os.fstat(file.fileno()).st_size < file.tell()


def _spans(path: Path, lines: Iterator[str]) -> Iterator[Mapping[str, object]]:
    """Spans in JSON lines; others are left out, and said."""
    lost = 0
    for line in filter(str.strip, lines):
        try:
            yield from exposition.spans(dict(json.loads(line)))
        except (ValueError, TypeError, RecursionError):
            lost += 1
    if lost:
        note(f"{path}: {lost} lines are no JSON objects, and are left out")


def _followed(paths: Sequence[Path], every: float) -> Iterator[list[exposition.MeasuredInterval]]:
    """The minutes of logs of requests that grow."""
    logs = [(_Tail(path), exposition.GrowingLog(path.name)) for path in paths]
    with ExitStack() as opened:
        for tail, _ in logs:
            opened.callback(tail.close)
        while True:
            begun, found = time.monotonic(), list[exposition.MeasuredInterval]()
            for tail, log in logs:
                if new := list(_spans(tail.path, tail.lines())):
                    try:
                        minutes, notes = log.add(new)
                    except SpecError as error:
                        note(f"{error}; {len(new)} lines are left out")
                    else:
                        found += minutes
                        for each in notes:
                            note(each)
            if found:
                yield sorted(found, key=attrgetter("end"))
            time.sleep(max(begun + every - time.monotonic(), 0.0))


def _exporter(port: int) -> Callable[[Watched], None]:
    """A function that takes a new answer, and serves it as metrics."""
    from rooflinekit.ops.operation import exporter

    return exporter(port)
