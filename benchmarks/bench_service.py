"""Requests a second and latency of `rooflinekit serve`, on this machine.

    python benchmarks/bench_service.py [--rate 500] [--seconds 10] [--workers 2] [--different 200]

A server of its own takes static estimates at a steady rate from a client that opens connections as it needs them.
Latency counts from the moment at which a request was due; CPU time is that of the server and its processes, which says
on a busy machine what a quiet one would carry. `--different` is how many questions there are: each is worked out once a
worker, and then remembered.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import time
from pathlib import Path
from statistics import quantiles

import anyio
import httpx2 as httpx


def question(number: int) -> dict[str, object]:
    """One static estimate."""
    draw = random.Random(number)
    return {"model": draw.choice(["llama3-8b", "llama-3.1-8b", "mistral-7b"]), "batch": 1 + number % 512,
            "isl": 128 + number // 512}  # fmt: skip


def cpu_seconds(root: int) -> float:
    """CPU time of a process and all below it, from /proc [s]."""
    parents, spent = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            parents[int(folder.name)], spent[int(folder.name)] = int(fields[1]), int(fields[11]) + int(fields[12])
    tree = {root}
    while more := {pid for pid, parent in parents.items() if parent in tree} - tree:
        tree |= more
    ticks = sum(spent[pid] for pid in tree if pid in spent)
    return ticks / os.sysconf("SC_CLK_TCK")


async def load(url: str, rate: float, seconds: float, different: int) -> tuple[list[float], int]:
    """Latencies [s] of requests that were due at a steady rate, and how many failed."""
    latencies: list[float] = []
    failed = 0
    start = time.perf_counter()
    limits = httpx.Limits(max_connections=200, max_keepalive_connections=200)
    async with httpx.AsyncClient(base_url=url, timeout=30, limits=limits) as client, anyio.create_task_group() as tasks:

        async def ask(due: float, number: int) -> None:
            nonlocal failed
            response = await client.post("/v1/estimate", json=question(number))
            failed += response.status_code != 200
            latencies.append(time.perf_counter() - due)

        for number in range(int(rate * seconds)):
            due = start + number / rate
            await anyio.sleep(max(due - time.perf_counter(), 0))
            tasks.start_soon(ask, due, number % different)
    return latencies, failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=500.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--different", type=int, default=200)
    asked = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "rooflinekit", "serve", "--port", str(port), "--workers", str(asked.workers)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as server:
        try:
            url = f"http://127.0.0.1:{port}"
            for _ in range(600):
                try:
                    httpx.get(f"{url}/healthz")
                    break
                except httpx.HTTPError:
                    time.sleep(0.1)
            anyio.run(load, url, 50.0, 2.0, 40)  # models and calibrations are read
            before = cpu_seconds(server.pid)
            latencies, failed = anyio.run(load, url, asked.rate, asked.seconds, asked.different)
            cpu = (cpu_seconds(server.pid) - before) / len(latencies)
            spent = len(latencies) / (asked.seconds + max(latencies[-1], 0.0))
            middle, last = quantiles(latencies, n=100)[49], quantiles(latencies, n=100)[98]
            print(json.dumps({
                "offered_per_s": asked.rate, "answered_per_s": round(spent, 1), "failed": failed,
                "server_cpu_ms_a_request": round(1e3 * cpu, 2),
                "p50_ms": round(1e3 * middle, 2), "p99_ms": round(1e3 * last, 2), "different": asked.different,
                "workers": asked.workers, "load_average": round(os.getloadavg()[0], 1),
            }))  # fmt: skip
        finally:
            server.terminate()
            server.wait(30)


if __name__ == "__main__":
    main()
