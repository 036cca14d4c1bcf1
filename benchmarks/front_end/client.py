"""A closed loop of users over raw sockets: python client.py USERS WORDS OSL REQUESTS, words from a text file.

It times the first and the last chunk of each answer and reads no JSON, so that it is no bottleneck itself.
"""

import asyncio
import json
import random
import sys
import time
from pathlib import Path
from statistics import mean, median

import uvloop

WORDS = Path("docs/method.md").read_text(encoding="utf-8").split()
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"


def body(words, osl, seed):
    draw = random.Random(seed)
    prompt = " ".join(draw.choice(WORDS) for _ in range(words))
    told = {"model": "m", "prompt": prompt, "max_tokens": osl, "ignore_eos": True, "stream": True, "temperature": 0.0}
    return json.dumps(told).encode()


async def ask(payload):
    sent, first, last, chunks = time.perf_counter(), 0.0, 0.0, 0
    reader, writer = await asyncio.open_connection("127.0.0.1", 8123, limit=1 << 20)
    writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % len(payload) + payload)
    while data := await reader.read(1 << 16):
        if count := data.count(b"data: {"):
            chunks, last = chunks + count, time.perf_counter()
            first = first or last
    writer.close()
    return sent, first, last, chunks


async def user(jobs, found):
    while jobs:
        found.append(await ask(jobs.pop()))


async def main(users, words, osl, requests):
    jobs, found = [body(words, osl, seed) for seed in range(requests)], []
    began = time.perf_counter()
    await asyncio.gather(*(user(jobs, found) for _ in range(users)))
    ttft = [1e3 * (first - sent) for sent, first, _, _ in found]
    tpot = [1e3 * (last - first) / max(osl - 1, 1) for _, first, last, _ in found]
    print(json.dumps({
        "users": users, "words": words, "osl": osl, "requests": requests, "seconds": time.perf_counter() - began,
        "ttft_mean_ms": mean(ttft), "ttft_p50_ms": median(ttft), "ttft_max_ms": max(ttft), "tpot_ms": mean(tpot),
        "chunks": sum(chunks for *_, chunks in found),
    }))  # fmt: skip


uvloop.install()
asyncio.run(main(*map(int, sys.argv[1:])))
