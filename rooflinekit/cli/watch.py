"""`rooflinekit watch`."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from rooflinekit.cli.command import Argument, command
from rooflinekit.cli.output import Output, note
from rooflinekit.estimation.scenario import Served, Watching, Written
from rooflinekit.evidence.benchmark_runs import Given
from rooflinekit.evidence.exposition import Interval, Scrape, interval, read_scrape, scrape_text, together
from rooflinekit.evidence.measured import read_intervals, read_start
from rooflinekit.evidence.measurement import StartUp
from rooflinekit.evidence.watching import LEARNT, SMALLEST, Watched, Watcher
from rooflinekit.model.types.errors import InputError
from rooflinekit.specs.writing import check_target, write_whole

_LONGEST = 10.0  # seconds that a server may take to answer
_LARGEST = 64 << 20  # bytes of an exposition
_CLEAR = "\x1b[H\x1b[2J"


@command(
    Served, Watching, Written, leave=("concurrency",),
    arguments={"sources": Argument(
        "Addresses of servers' metrics, or recordings and request logs; start-up logs beside them.", many=True
    )},
)  # fmt: skip
def watch(
    sources: list[str], *, to: Output, once: bool = False, every: float = 60.0, record: Path | None = None,
    update: Path | None = None, listen: int | None = None, **said: Any,
) -> int:  # fmt: skip
    """Set a running fleet beside its prediction: gaps and their causes, drifts, headroom.

    Several addresses are replicas that share the load.
    """
    live, files, logs = _told_apart(sources, running=bool(record or listen is not None))
    to.check()
    if update is not None and str(update) != str(said.get("calibration")):
        check_target(update, to.force)
    given = Given.of(**({"replicas": len(live)} | said if live else said))
    watcher = Watcher(given, logs=logs)
    if not live:
        for each in sorted((each for path in files for each in read_intervals(path)), key=attrgetter("end")):
            watcher.see(each)
        to.show(watcher.answer())
        return _updated(watcher, update)
    show = _exporter(listen) if listen is not None else None
    try:
        for each in _intervals(live, every, record):
            watcher.see(each)
            answer = watcher.answer()
            if show:
                show(answer)
            if len(watcher.seen) % LEARNT == 1:
                _updated(watcher, update)
            if once:
                break
            if to.out is None and to.format == "table":
                if sys.stdout is not None and sys.stdout.isatty():
                    to.emit(_CLEAR)
                to.show(answer)
    except KeyboardInterrupt:
        if not watcher.seen:
            raise
    if once or to.out is not None or to.format != "table":
        to.show(watcher.answer())
    return _updated(watcher, update)


def _told_apart(sources: Sequence[str], running: bool) -> tuple[list[str], list[Path], list[StartUp]]:
    """Addresses or files, and start-up logs; `running` where only servers can be meant."""
    live = [source for source in sources if source.startswith(("http://", "https://"))]
    started = {Path(source): read_start(Path(source)) for source in sources if source not in live}
    files = [path for path, log in started.items() if log is None]
    if live and files:
        raise InputError("give addresses of servers or files, not both")
    if not live and not files:
        raise InputError("start-up logs say how servers were started; give their addresses or a recording too")
    if not live and running:
        raise InputError("--record and --listen are for running servers, and these are files")
    return live, files, [log for log in started.values() if log is not None]


def _updated(watcher: Watcher, update: Path | None) -> int:
    """Write the calibration, if it is wanted."""
    if update is not None:
        write_whole(update, watcher.fit(f"{datetime.now(UTC):%Y-%m-%d}").text.encode(), force=True)
        note(f"wrote {update}; use it with --calibration {update}")
    return 0


def _intervals(addresses: Sequence[str], every: float, record: Path | None) -> Iterator[Interval]:
    """What happens between looks at all servers; one that does not answer is said, and looked at again."""
    before: Scrape | None = None
    while True:
        begun = time.monotonic()
        try:
            texts = [_fetched(address) for address in addresses]
        except OSError as error:
            if before is None:
                raise InputError(f"{error}") from None
            note(f"{error}; looking again")
        else:
            now = time.time()
            if record is not None:
                with record.open("a", encoding="utf-8") as file:
                    file.write(scrape_text("\n".join(texts), now))
            after = together([read_scrape(text, now, where) for text, where in zip(texts, addresses, strict=True)])
            found = interval(before, after, addresses[0]) if before is not None else None
            if before is not None and found is None:
                note("no request got its first token, or a server restarted; looking again")
            before = after
            if found is not None:
                yield found
        time.sleep(max(begun + every - time.monotonic(), 0.0))


def _fetched(address: str) -> str:
    """The text at an address; raises OSError, which names it."""
    try:
        with urlopen(address, timeout=_LONGEST) as answer:
            return str(answer.read(_LARGEST).decode("utf-8", "replace"))
    except (URLError, OSError, ValueError) as error:
        raise OSError(f"{address} does not answer: {getattr(error, 'reason', error)}") from None


def _exporter(port: int) -> Callable[[Watched], None]:
    """Serve what is seen as metrics of our own at 127.0.0.1; returns what takes a new answer."""
    from prometheus_client import Gauge, start_http_server

    times = Gauge("rooflinekit_seconds", "Mean times of the last interval", ["metric", "kind"])
    drift = Gauge("rooflinekit_drift_ratio", "Lasting change against the usual, 0 for none", ["metric"])
    share = Gauge("rooflinekit_headroom_ratio", "Share of the knee that is left")
    cache = Gauge("rooflinekit_cache_ratio", "Share of the cache in use", ["kind"])
    waiting = Gauge("rooflinekit_waiting_requests", "Requests that wait", ["kind"])
    try:
        start_http_server(port, addr="127.0.0.1")
    except OSError as error:
        raise InputError(f"--listen {port}: {error.strerror}") from None

    def show(answer: Watched) -> None:
        now, found = answer.now, {each.metric: each.change for each in answer.drifts}
        for metric, figure in (("ttft", now.ttft), ("tpot", now.tpot)):
            for kind, value in asdict(figure).items():
                absent = math.inf if kind == "high" else math.nan
                times.labels(metric, kind).set(absent if value is None else value / 1e3)
        for gauge, measured, expected in ((cache, now.kv_use, now.kv_expected),
                                          (waiting, now.waiting, now.waiting_expected)):  # fmt: skip
            for kind, value in (("measured", measured), ("expected", expected)):
                gauge.labels(kind).set(math.nan if value is None else value)
        for metric in SMALLEST:
            drift.labels(metric).set(found.get(metric, 0.0))
        share.set(math.nan if answer.headroom is None else answer.headroom.share)

    return show
