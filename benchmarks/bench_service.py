"""Requests a second, latency and memory of `rooflinekit serve`, on this machine.

    python benchmarks/bench_service.py [--rate 500] [--seconds 10] [--workers 2] [--different 200] [--callers 200]
    python benchmarks/bench_service.py --soak 86400

A server of its own takes static estimates at a steady rate over kept connections. Latency counts from the moment at
which a request was due; CPU time is that of the server and its processes, which says on a busy machine what a quiet one
would carry. `--different` is how many questions there are: each is worked out once a worker, and then remembered. A
soak sends as many requests as fast as they are answered, of every kind, malformed ones among them, and says what memory
the server's processes hold on the way: 86,400 are one a second for a day.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import quantiles

TOOLS = ("models", "gpus", "levers", "explain", "simulate")


def question(number: int) -> dict[str, object]:
    """One static estimate."""
    draw = random.Random(number)
    return {"model": draw.choice(["llama3-8b", "llama-3.1-8b", "mistral-7b"]), "batch": 1 + number % 512,
            "isl": 128 + number // 512}  # fmt: skip


def request(body: bytes, tool: str = "estimate") -> bytes:
    """One question as HTTP/1.1 sends it."""
    head = f"POST /v1/{tool} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def mixed(number: int) -> bytes:
    """A request of a soak: most are estimates that were not asked lately, some slow, some malformed."""
    draw = random.Random(number)
    match draw.random():
        case share if share < 0.01:
            tool = draw.choice(TOOLS)
            asked = {"model": "llama3-8b"} if tool not in ("models", "gpus") else {}
            asked |= {"explain": {"metric": "tpot"}, "simulate": {"rate": 2, "requests": 50}}.get(tool, {})
            return request(json.dumps(asked).encode(), tool)
        case share if share < 0.05:
            body = draw.choice([b"{", b"[]", b'{"model": "no"}', b'{"batch": -1}', draw.randbytes(100)])
            return request(body, draw.choice(["estimate", "plan", "compare", *TOOLS]))
        case _:
            return request(json.dumps(question(draw.randrange(20_000))).encode())


def tree_of(root: int) -> set[int]:
    """A process and all below it."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    tree = {root}
    while more := {pid for pid, parent in parents.items() if parent in tree} - tree:
        tree |= more
    return tree


def cpu_seconds(root: int) -> float:
    """CPU time of a process and all below it, from /proc [s]."""
    ticks = 0
    for pid in tree_of(root):
        with contextlib.suppress(OSError):
            ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def megabytes(root: int) -> float:
    """Memory that a process and all below it hold [MB]."""
    pages = 0
    for pid in tree_of(root):
        with contextlib.suppress(OSError):
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


class Connection:
    """A kept connection that sends one request after the other."""

    def __init__(self, port: int) -> None:
        self.port, self.reader, self.writer = port, None, None

    async def ask(self, sent: bytes) -> int:
        """The status of the answer."""
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writer.write(sent)
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        await self.reader.readexactly(length)
        return int(head[9:12])


async def load(port: int, asked: argparse.Namespace, rate: float, seconds: float) -> tuple[list[float], Counter[int]]:
    """Latencies [s] of requests that were due at a steady rate, and how often each status came."""
    requests = [request(json.dumps(question(number)).encode()) for number in range(asked.different)]
    idle = asyncio.LifoQueue[Connection]()
    for _ in range(asked.callers):
        idle.put_nowait(Connection(port))
    latencies, status = [], Counter[int]()
    start = time.perf_counter() + 0.1

    async def ask(due: float, number: int) -> None:
        connection = await idle.get()
        status[await connection.ask(requests[number % asked.different])] += 1
        latencies.append(time.perf_counter() - due)
        idle.put_nowait(connection)

    async with asyncio.TaskGroup() as tasks:
        for number in range(int(rate * seconds)):
            due = start + number / rate
            if (wait := due - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            tasks.create_task(ask(due, number))
    return latencies, status


async def closed(port: int, callers: int, sent: Iterator[bytes]) -> tuple[list[float], Counter[int]]:
    """The same of so many callers, each of whom asks again when it has an answer."""
    latencies, status = [], Counter[int]()

    async def call() -> None:
        connection = Connection(port)
        for each in sent:
            begun = time.perf_counter()
            status[await connection.ask(each)] += 1
            latencies.append(time.perf_counter() - begun)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(callers):
            tasks.create_task(call())
    return latencies, status


def soak(port: int, root: int, count: int, callers: int) -> None:
    """Ten rounds, and the memory after each."""
    status = Counter[int]()
    for turn in range(10):
        numbers = range(turn * count // 10, (turn + 1) * count // 10)
        status += asyncio.run(closed(port, callers, iter([mixed(number) for number in numbers])))[1]
        print(json.dumps({"requests": numbers.stop, "megabytes": round(megabytes(root), 1), "status": dict(status)}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=500.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--different", type=int, default=200)
    parser.add_argument("--callers", type=int, default=200)
    parser.add_argument("--soak", type=int, default=0)
    asked = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "rooflinekit", "serve", "--port", str(port), "--workers", str(asked.workers)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as server:
        try:
            for _ in range(600):
                try:
                    asyncio.run(Connection(port).ask(request(b"{}")))
                    break
                except (OSError, EOFError):
                    time.sleep(0.1)
            if asked.soak:
                soak(port, server.pid, asked.soak, 16)
                return
            every = [request(json.dumps(question(number)).encode()) for number in range(asked.different)]
            asyncio.run(closed(port, 20, iter(every * 4)))  # each worker has answered most of them
            before = cpu_seconds(server.pid)
            latencies, status = asyncio.run(load(port, asked, asked.rate, asked.seconds))
            cpu = (cpu_seconds(server.pid) - before) / len(latencies)
            shares = quantiles(latencies, n=100)
            many, ended = asyncio.run(closed(port, asked.callers, iter(every * 20)))
            print(json.dumps({
                "offered_per_s": asked.rate, "status": dict(status), "server_cpu_ms_a_request": round(1e3 * cpu, 2),
                "p50_ms": round(1e3 * shares[49], 2), "p99_ms": round(1e3 * shares[98], 2),
                "different": asked.different, "workers": asked.workers, "callers": asked.callers,
                "closed_status": dict(ended), "closed_per_s": round(len(many) * asked.callers / sum(many), 1),
                "closed_p99_ms": round(1e3 * quantiles(many, n=100)[98], 1), "load_average": os.getloadavg()[0],
            }))  # fmt: skip
        finally:
            server.terminate()
            server.wait(30)


if __name__ == "__main__":
    main()
