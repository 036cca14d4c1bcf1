"""The measurement file: one JSON object a line, flushed row by row, of one run and no other."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Self

from rooflinekit.evidence.kernel_fit.groups import SCHEMA, read_measurements
from rooflinekit.model.types.errors import InputError
from rooflinekit.validate.device import Device, version_of

FILE = "measurements.jsonl"
ENGINE = "gpt-fast"
"""The engine whose kernels these are: PyTorch's own, without a server around them."""
_SAME = ("suite", "model", "dtype", "engine_version")
"""What a run must share with the one that it goes on with, besides the device's name."""


def header(device: Device, suite: str, model: str) -> dict[str, Any]:
    """The first line: what ran, where, with which versions. Nothing in it is from a datasheet."""
    facts = {name: getattr(device, name) for name in ("name", "cores", "memory_bytes", "cache_bytes")}
    return {
        "type": "header", "schema": SCHEMA, "run": uuid.uuid4().hex[:12], "started": _now(), "suite": suite,
        "model": model, "dtype": device.dtype, "engine": ENGINE, "engine_version": f"torch {version_of('torch')}",
        "device": {**facts, **device.facts},
    }  # fmt: skip


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"


class RowSink:
    """Where measured rows go: to the file, or to the process that writes it."""

    def __init__(self, dtype: str, done: Iterable[str] = (), best: Mapping[str, float] | None = None) -> None:
        self.dtype, self.done = dtype, set(done)  #: keys of rows that need not be measured again
        self.best = dict(best or {})  #: of each kind of ceiling so far, in the format that models run in

    def begin(self, row: Mapping[str, Any]) -> None:
        """Say what is measured next, so that what ends the process has a name."""

    def row(self, fields: Mapping[str, Any]) -> None:
        """Keep a measured row; of a ceiling in the models' format, its value where it is the best of its kind."""
        measured = fields["op"] == "ceiling" and fields.get("status", "ok") == "ok"
        if measured and fields.get("dtype", self.dtype) == self.dtype:
            self.best[fields["kind"]] = max(self.best.get(fields["kind"], 0.0), float(fields["value"]))


class Recorder(RowSink):
    """Writes rows to DIR/measurements.jsonl while it holds DIR's lock.

    A run that goes on leaves rows as they are; with `retry_failed` those that failed are measured once more. Raises
    InputError where a file is already there (unless it is to be continued or replaced), where the run to go on with is
    another one, where a second run is under way, and where the disk is full: complete rows are kept.
    """

    def __init__(
        self, folder: Path, head: Mapping[str, Any], *, resume: bool = False, force: bool = False,
        retry_failed: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(head["dtype"])
        self.path, self._lock = folder / FILE, folder / f".{FILE}.lock"
        self.counts = dict.fromkeys(("ok", "oom", "missing", "failed"), 0)
        self._locked = _take(self._lock)
        try:
            if resume and self.path.exists():
                self.run = self._continue(head, retry_failed)
                return
            if self.path.exists() and not force:
                raise InputError(f"{self.path} exists; add --resume to go on with it, or --force to replace it")
            self.path.write_bytes(b"")
            self.run = str(head["run"])
            self._write(head)
        except BaseException:
            self._release()
            raise

    def _continue(self, head: Mapping[str, Any], retry_failed: bool) -> str:
        """Go on with a run of the same device, suite, model and versions; half a line at its end is cut off."""
        found = read_measurements(self.path)
        for name in _SAME:
            if (theirs := found.header.get(name)) != head.get(name):
                raise InputError(f"{self.path} is of another run: {name} {theirs!r}, now {head.get(name)!r}")
        if found.header["device"]["name"] != head["device"]["name"]:
            raise InputError(f"{self.path} is of another device: {found.header['device']['name']}")
        os.truncate(self.path, self.path.read_bytes().rfind(b"\n") + 1)
        for row in found.rows:
            self._count(row)
            if retry_failed and row["status"] == "failed":
                self.done.discard(str(row.get("key")))
        return str(found.header["run"])

    def _count(self, row: Mapping[str, Any]) -> None:
        self.counts[str(row["status"])] += 1
        if "key" in row:
            self.done.add(str(row["key"]))
        super().row(row)

    def row(self, fields: Mapping[str, Any]) -> None:
        """Write one row, and have it on its way to the disk before this returns."""
        line = {"type": "row", "run": self.run, "status": "ok", "detail": "", **fields}
        self._write(line)
        self._count(line)

    def end(self, status: str) -> None:
        """Say how the run ended: complete, budget or interrupted."""
        self._write({"type": "end", "run": self.run, "status": status, "ended": _now()})

    def _write(self, line: Mapping[str, Any]) -> None:
        start = self.path.stat().st_size
        try:
            with self.path.open("ab") as file:
                _append(file, (json.dumps(line, allow_nan=False) + "\n").encode())
        except OSError as error:
            os.truncate(self.path, start)
            kept = f"its {sum(self.counts.values())} rows are kept, and --resume goes on with them"
            raise InputError(f"{self.path}: {error.strerror}; {kept}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self._release()

    def _release(self) -> None:
        self._lock.unlink(missing_ok=True)
        self._locked.close()  # closing lets go of the lock, as being killed does


def _append(file: IO[bytes], text: bytes) -> None:
    file.write(text)
    file.flush()


def _take(lock: Path) -> IO[str]:
    """Hold a folder's lock until the process ends, however it ends; where there are no such locks, do without."""
    file = lock.open("w", encoding="ascii")
    try:
        import fcntl  # noqa: PLC0415 - not on Windows

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:
        pass
    except OSError:
        file.close()
        raise InputError(f"{lock.parent}: another run is writing here; wait for it, or give another --out") from None
    return file
