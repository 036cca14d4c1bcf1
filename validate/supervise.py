"""Start the process that runs kernels, write what it measures, and go on with a new one where a kernel ended it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, Queue
from typing import IO, Any

from rooflinekit.model.types.errors import InputError
from rooflinekit.validate.device import Device
from rooflinekit.validate.record import Recorder

LIMIT = 300.0
"""Seconds after which a kernel or a step that has not ended is given up: compiling and timing the slowest takes two
minutes."""
ENGINE_LIMIT = 900.0
"""The same where an engine starts: it compiles a whole model and captures its graphs before the first step."""
GRACE = 20.0
"""Seconds by which a row that was begun may end after the time is up."""
_TRIES, _FAULTS, _IDLE = 2, 2, 3
"""Processes that a row may end; rows of one kernel that end processes before its other shapes are left out; processes
in a row that may end before they begin anything."""


@dataclass
class Supervisor:
    """Runs a suite in other processes. A kernel that ends two of them is a failed row, and the run goes on."""

    device: Device
    suite: str
    model: str
    recorder: Recorder
    deadline: float  #: on the clock of time.monotonic()
    say: Callable[..., None] = lambda *words: None
    limit: float = LIMIT
    worker: tuple[str, ...] = (sys.executable, "-m", "rooflinekit.validate.worker")
    eager: set[str] = field(default_factory=set)  #: kernels that no graph can hold
    wrong: dict[str, str] = field(default_factory=dict)  #: kernels that failed their check, and how
    tried: Counter[str] = field(default_factory=Counter)  #: processes that a key has ended
    faults: Counter[str] = field(default_factory=Counter)  #: rows of a kernel that ended processes

    def check(self) -> list[str]:
        """Check the kernels before they are timed; lines about those that are wrong and left out.

        A group of checks that ends its process is left out, and the others follow in a new one. Results stay in
        checks.json beside the rows, so that a run that goes on does not check again.
        """
        kept = self.recorder.path.with_name("checks.json")
        if self.recorder.done and kept.is_file():
            results = json.loads(kept.read_text(encoding="utf-8"))
        else:
            results = list(self._checked())
            if time.monotonic() < self.deadline:
                kept.write_text(json.dumps(results, indent=1), encoding="utf-8")
        wrong = [each for each in results if each["failed"]]
        self.wrong = {each["kernel"]: f"check: {each['detail']}" for each in wrong if each["kernel"]}
        return [f"{each['kernel'] or each['name']} failed its check: {each['detail']}" for each in wrong]

    def _checked(self) -> Iterator[dict[str, Any]]:
        """Results of all groups; one that ended its process is a failed result, and the next process skips it."""
        seen: list[str] = []
        before = -1
        while before < len(seen):
            before = len(seen)
            for kind, line in self._lines("check", skip=seen):
                if kind == "group":
                    seen.append(line)
                elif kind == "check":
                    yield line
                elif kind == "ending":
                    return
                else:
                    group = seen[-1] if seen else "no check"
                    yield {"name": group, "kernel": "", "failed": True, "detail": f"its process ended: {line}"}

    def run(self) -> str:
        """Measure what the file lacks; how it ended: "complete", or "budget" if the time was up before.

        Raises InputError where no process gets as far as its first kernel.
        """
        idle = 0
        while idle < _IDLE:
            before, current, began, reason = len(self.recorder.done), None, False, ""
            for kind, line in self._lines(self.suite):
                if kind == "ending":
                    return str(line)
                if kind == "begin":
                    current, began = line, True
                elif kind == "row":
                    current = None
                    self.recorder.row(line)
                else:  # how this process ended
                    reason = str(line)
                    if current is not None:
                        self._blame(current, reason, uncapturable=kind == "uncapturable")
            idle = 0 if began or len(self.recorder.done) > before else idle + 1
        raise InputError(f"no kernel could be run: {reason}")

    def _blame(self, row: Mapping[str, Any], reason: str, uncapturable: bool) -> None:
        """Count a process that this kernel ended; the second time its row has failed.

        A kernel that no graph can hold is timed without one from now on; if that does not help, it has failed as well.
        """
        key, kernel = str(row["key"]), f"{row['op']}, {row['backend']}"  # as `Case.kernel` says it
        if uncapturable:
            if kernel in self.eager:
                self.recorder.row({**row, "status": "failed", "detail": reason})
            self.eager.add(kernel)
            return
        self.tried[key] += 1
        if self.tried[key] == _TRIES:
            self.recorder.row({**row, "status": "failed", "detail": f"{reason} (twice)"})
            self.faults[kernel] += 1
            if self.faults[kernel] == _FAULTS:
                self.wrong[kernel] = f"left out after {_FAULTS} shapes that ended their processes: {reason}"

    def _lines(self, suite: str, skip: Sequence[str] = ()) -> Iterator[tuple[str, Any]]:
        """What a process says but {"say": ...}, until it ends; the last is ("ended", why) where it did not say so."""
        job = {
            "device": str(self.device.torch), "suite": suite, "model": self.model,
            "seconds": self.deadline - time.monotonic(), "done": sorted(self.recorder.done),
            "best": self.recorder.best, "eager": sorted(self.eager), "wrong": self.wrong, "skip": list(skip),
        }  # fmt: skip
        with self.recorder.path.with_name("worker.log").open("ab+") as errors, subprocess.Popen(
            self.worker, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        ) as process:  # fmt: skip
            try:
                yield from self._heard(process, json.dumps(job), errors)
            finally:
                process.kill()

    def _heard(self, process: subprocess.Popen[bytes], job: str, errors: IO[bytes]) -> Iterator[tuple[str, Any]]:
        begun = errors.seek(0, os.SEEK_END)
        assert process.stdin is not None
        assert process.stdout is not None
        lines: Queue[bytes] = Queue()
        threading.Thread(target=_read, args=(process.stdout, lines), daemon=True).start()
        try:
            process.stdin.write(job.encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            pass  # the process has ended; why is said below
        limit = max(self.limit, ENGINE_LIMIT) if self.suite == "engine" else self.limit
        while True:
            left = self.deadline + GRACE - time.monotonic()
            try:
                text = lines.get(timeout=max(min(limit, left), 0.0))
            except Empty:
                yield ("ending", "budget") if left < limit else ("ended", f"took more than {limit:g} s")
                return
            if not text:
                yield "ended", _why(process, errors, begun)
                return
            ((kind, line),) = json.loads(text).items()
            if kind == "say":
                self.say(*line)
            else:
                yield kind, line
            if kind in ("ending", "fault", "uncapturable"):
                return


def _read(stream: IO[bytes], lines: Queue[bytes]) -> None:
    """Pass lines on as they come; an empty one at the end, and nothing of a line that was cut off."""
    with suppress(ValueError):  # the stream is closed where the run ends first, on a full disk say
        for line in stream:
            if line.endswith(b"\n"):
                lines.put(line)
    lines.put(b"")


def _why(process: subprocess.Popen[bytes], errors: IO[bytes], begun: int) -> str:
    """How a process ended that said nothing: its signal, or the last line of what it printed, `begun` bytes down."""
    code = process.wait()
    if code < 0:
        return f"the process was ended by {signal.Signals(-code).name}"
    errors.seek(begun)
    printed = errors.read().decode(errors="replace").strip().splitlines()
    return f"the process ended with exit code {code}" + (f": {printed[-1][:200]}" if printed else "")
