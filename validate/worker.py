"""The process that runs kernels: it takes one job from its input and says line by line what it begins and measures.

A kernel that faults, hangs or is killed takes this process with it; `supervise` writes the file, and starts another.
Lines are JSON objects: {"say": [name, number, of]}, {"begin": row}, {"row": row}, {"group": name}, {"check": result},
and at the end {"ending": "complete" or "budget"}, {"fault": why} or {"uncapturable": why}.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import IO, Any

from rooflinekit.validate.checks import CHECKS, run_checks
from rooflinekit.validate.device import Device, open_device
from rooflinekit.validate.record import RowSink
from rooflinekit.validate.suite import DeviceFaultError, SuiteRun, run_suite
from rooflinekit.validate.timing import UncapturableError


class Outbox(RowSink):
    """Rows on their way to the process that writes them."""

    def __init__(self, out: IO[str], job: Mapping[str, Any], dtype: str) -> None:
        super().__init__(dtype, job["done"], job["best"])
        self._out = out

    def begin(self, row: Mapping[str, Any]) -> None:
        """Say what is measured next."""
        self.send(begin=row)

    def row(self, fields: Mapping[str, Any]) -> None:
        """Send a measured row."""
        super().row(fields)
        self.send(row=fields)

    def send(self, **line: Any) -> None:
        """Write one line."""
        print(json.dumps(line), file=self._out, flush=True)


def main() -> int:
    """Run the job of the input; what libraries print goes to the error output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started this says when it ends
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    job = json.loads(sys.stdin.readline())
    device = open_device(job["device"])
    outbox = Outbox(out, job, device.dtype)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    run = SuiteRun(
        device, job["suite"], job["model"], outbox, time.monotonic() + job["seconds"],
        say=lambda *words: outbox.send(say=words), eager=frozenset(job["eager"]), wrong=job["wrong"],
    )  # fmt: skip
    try:
        outbox.send(ending=_check(device, outbox, job["skip"]) if job["suite"] == "check" else run_suite(run))
    except DeviceFaultError as error:
        outbox.send(fault=str(error))
    except UncapturableError as error:
        outbox.send(uncapturable=str(error))
    return 0


def _check(device: Device, outbox: Outbox, skip: Sequence[str]) -> str:
    """Every group of checks that no process has begun yet; what leaves the GPU without an answer ends this one."""
    for check in CHECKS:
        if check.__name__ in skip:
            continue
        outbox.send(group=check.__name__)
        for result in run_checks(str(device.torch), checks=(check,)):
            outbox.send(check={**asdict(result), "failed": result.failed})
        try:
            device.synchronize()
        except RuntimeError as error:
            raise DeviceFaultError(str(error)) from None
    return "complete"


def _end_with(parent: int) -> None:
    """End this process when the one that started it is killed: a kernel that hangs would keep the GPU."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
