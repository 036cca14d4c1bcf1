"""`rooflinekit serve` under many clients at once, hostile ones among them, on the loopback of this machine.

    python benchmarks/hostile_clients.py [--seconds 600] [--clients 200] [--workers 2]

Six in ten clients ask static estimates, one in ten all other tools. The rest sends what is no question, leaves requests
unfinished, never reads its answers, or asks for as much work as there may be. A process of its own asks /healthz ten
times a second. At the end it prints how often each status came, the latencies of /healthz, and the memory of server and
workers on the way.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import socket
import subprocess
import sys
import time
from collections import Counter
from statistics import quantiles

from bench_service import Connection, megabytes, mixed, question, request

SLOW = (
    ("simulate", {"model": "llama3-8b", "rate": 5, "requests": 200}),
    ("simulate", {"model": "llama-3-70b", "tp": 4, "rate": 50, "requests": 5000, "osl": "uniform:3000-4000"}),
    ("levers", {"model": "llama3-8b", "batch": 8}),
    ("explain", {"model": "llama3-8b", "metric": "tpot"}),
    ("plan", {"model": "llama3-8b", "rate": 1, "tp": [1], "aggregated_only": True}),
    ("plan", {"model": "deepseek-v3", "rate": 50, "gpu": ["h200-sxm", "b200"]}),
    ("estimate", {"model": "llama3-8b", "rate": 5}), ("models", {}), ("gpus", {}),
)  # fmt: skip
GREEDY = ({"redundant_experts": 4096, "model": "deepseek-v3", "gpu": "h200-sxm", "ep": 64, "tp": 8, "dp": 8},
          {"model": "gpt-oss-120b", "skew": 4.0, "batch": 1_000_000}, {"model": "x" * 200_000},
          {"model": "llama3-8b", "isl": "fixed:empirical:/dev/zero"})  # fmt: skip
HALVES = (b"POST /v1/estimate HTTP/1.1\r\nHost: loc", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nA: ",
          request(b"x" * 100)[:-50], b"")  # fmt: skip


async def ask(port: int, sent: bytes, kept: Connection | None = None) -> str:
    """The status of an answer, or how the connection ended."""
    one = kept or Connection(port)
    try:
        return str(await one.ask(sent))
    except (OSError, EOFError) as error:
        one.writer = None
        return type(error).__name__
    finally:
        if kept is None and one.writer is not None:
            one.writer.close()


async def unread(port: int, draw: random.Random) -> str:
    """Large answers that are asked for and never read."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.3", 0), limit=1024)
    with contextlib.suppress(OSError):
        for _ in range(20):
            writer.write(request(b"{}", "models"))
            await asyncio.sleep(0.5)
    writer.transport.abort()
    return "left"


async def half(port: int, draw: random.Random) -> str:
    """A request that never ends; the status with which it is sent away."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))
    try:
        writer.write(draw.choice(HALVES))
        return (await reader.read(100))[9:12].decode() or "closed"
    finally:
        writer.close()


async def client(number: int, port: int, ends: float, status: dict[str, Counter[str]]) -> None:
    """One client until the end; what it is follows from its number."""
    draw, kept, turn = random.Random(number), Connection(port), 0
    while time.monotonic() < ends:
        turn += 1
        kind = ("estimate",) * 6 + ("slow", "nonsense", "half", "greedy" if number % 20 < 10 else "unread")
        match name := kind[number % 10]:
            case "estimate":
                said = await ask(port, request(json.dumps(question(draw.randrange(20_000))).encode()), kept)
            case "slow":
                tool, asked = draw.choice(SLOW)
                said = await ask(port, request(json.dumps(asked).encode(), tool), kept)
            case "greedy":
                said = await ask(port, request(json.dumps(draw.choice(GREEDY)).encode()), kept)
            case "nonsense":
                said = await ask(port, mixed(draw.randrange(10**6)) if turn % 2 else draw.randbytes(200) + b"\r\n\r\n")
            case "half":
                said = await half(port, draw)
            case _:
                said = await unread(port, draw)
        status[name][said] += 1
        await asyncio.sleep(draw.uniform(0.2, 1.0))


async def attack(port: int, root: int, asked: argparse.Namespace) -> tuple[dict[str, Counter[str]], list[float]]:
    """All clients, and the memory every tenth of the time."""
    ends, status, held = time.monotonic() + asked.seconds, dict[str, Counter[str]](), list[float]()
    for name in ("estimate", "slow", "nonsense", "half", "greedy", "unread"):
        status[name] = Counter()

    async def weigh() -> None:
        for _ in range(10):
            await asyncio.sleep(asked.seconds / 10)
            held.append(round(await asyncio.to_thread(megabytes, root), 1))

    async with asyncio.timeout(asked.seconds + 120), asyncio.TaskGroup() as tasks:
        tasks.create_task(weigh())
        for number in range(asked.clients):
            tasks.create_task(client(number, port, ends, status))
    return status, held


def probe(port: int, seconds: float) -> None:
    """Print the latencies of /healthz, each on a new connection [ms]."""
    ends, found, failed = time.monotonic() + seconds, [], 0
    while time.monotonic() < ends:
        begun = time.monotonic()
        try:
            with socket.create_connection(("127.0.0.1", port), 20, source_address=("127.0.0.9", 0)) as one:
                one.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                failed += not one.recv(1000).startswith(b"HTTP/1.1 200")
        except OSError:
            failed += 1
        found.append(1e3 * (time.monotonic() - begun))
        time.sleep(max(begun + 0.1 - time.monotonic(), 0.0))
    shares = quantiles(found, n=1000)
    print(json.dumps({"asked": len(found), "failed": failed, **{
        f"p{share}_ms": round(shares[int(share * 10) - 1], 1) for share in (50, 90, 99, 99.9)}}))  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--probe", type=int)
    asked = parser.parse_args()
    if asked.probe:
        probe(asked.probe, asked.seconds)
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "rooflinekit", "serve", "--port", str(port), "--workers", str(asked.workers),
               "--seconds", "10"]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.PIPE) as server:
        assert server.stderr is not None
        try:
            print(server.stderr.readline().decode().strip(), flush=True)
            looking = [sys.executable, __file__, "--probe", str(port), "--seconds", str(asked.seconds)]
            with subprocess.Popen(looking, stdout=subprocess.PIPE) as health:
                status, held = asyncio.run(attack(port, server.pid, asked))
                told = health.communicate(timeout=60)[0].decode()
        finally:
            server.terminate()
            said = server.stderr.read()
            server.wait(30)
    print("healthz", told.strip())
    print("status", json.dumps({name: dict(found) for name, found in status.items()}))
    print("megabytes", held, "log", len(said), "bytes, exit code", server.returncode)
    print(said.decode("utf-8", "replace")[:2000])


if __name__ == "__main__":
    main()
