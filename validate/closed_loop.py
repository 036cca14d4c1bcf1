"""A closed loop of users against a running llama.cpp server, in the JSON lines of `vllm bench serve`.

`compare` and `calibrate` read those. Prompts are random token ids that no cache holds. Lengths of answers are even from
half of the mean to three halves, since users with equal answers turn in step, or do not, as chance has it.
"""

from __future__ import annotations

import json
import os
import platform
import random
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path
from statistics import fmean, median
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

from rooflinekit.model.types.errors import InputError
from rooflinekit.version import __version__

FILE = "served.jsonl"
_READY = 600.0  # seconds until a server must have loaded its model
_LONGEST = 600.0  # seconds that one answer may take
_OPEN = build_opener(ProxyHandler({})).open  # a proxy would be measured as well
_WORDS = 3 + 256  # ids below are marks and bytes in the vocabularies of SentencePiece


@dataclass(frozen=True)
class Load:
    """What is asked: users of each run, tokens of a prompt and mean of an answer, and how often all is run."""

    users: tuple[int, ...]
    isl: int = 128
    osl: int = 64
    rounds: int = 5
    requests: int = 8  #: that each user sends

    @property
    def answers(self) -> list[int]:
        """Lengths of one user's answers."""
        even = [self.osl * (0.5 + (place + 0.5) / self.requests) for place in range(self.requests)]
        return [max(round(length), 2) for length in even]


@contextmanager
def serving(server: str, model: str, load: Load, log: Path) -> Iterator[str]:
    """The address of a running server (http://…), or of one that this program starts and that is ended afterwards.

    Its slots share one cache: of slots with caches of their own, only neighbours share a step, and no prompt does.
    Raises InputError where it does not come up, or ends; its own words are in `log`.
    """
    if server.startswith("http://"):
        yield server.rstrip("/")
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    users, threads = max(load.users), os.environ.get("OMP_NUM_THREADS", "1")
    context = users * (load.isl + 2 * load.osl)
    said = {"model": model, "host": "127.0.0.1", "port": port, "parallel": users, "ctx-size": context,
            "threads": threads, "cache-ram": 0}  # fmt: skip
    numbers = (word for name, value in said.items() for word in (f"--{name}", str(value)))
    command = [*shlex.split(server), "--metrics", "--kv-unified", *numbers]
    with log.open("w", encoding="utf-8") as words:
        try:
            process = subprocess.Popen(command, stdout=words, stderr=words)
        except OSError as error:
            raise InputError(f"--server {server} does not start: {error.strerror}") from None
        try:
            _wait(process, f"http://127.0.0.1:{port}", log)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait()


def _wait(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    end = time.monotonic() + _READY
    while process.poll() is None and time.monotonic() < end:
        try:
            if _get(address, "/health").get("status") == "ok":
                return
        except InputError:
            time.sleep(0.1)
    raise InputError(f"the server does not answer; its last words are in {log}")


def _get(address: str, path: str) -> dict[str, Any]:
    try:
        with _OPEN(address + path, timeout=_LONGEST) as answer:
            found = json.loads(answer.read())
    except (OSError, HTTPException, ValueError) as error:
        raise InputError(f"{address} does not answer as llama.cpp's server: {error}") from None
    return found if isinstance(found, dict) else {}


def measure(address: str, load: Load, said: dict[str, Any], progress: Callable[[str], None]) -> list[dict[str, Any]]:
    """One row for each number of users: medians over the rounds of means over their requests.

    Raises InputError for a server that does not answer, or answers shorter.
    """
    about, models = _get(address, "/props"), _get(address, "/v1/models")
    try:
        slots, vocab = int(about["total_slots"]), int(models["data"][0]["meta"]["n_vocab"])
    except (KeyError, IndexError, TypeError, ValueError):
        raise InputError(f"{address} is no llama.cpp server: it does not say its slots and its vocabulary") from None
    head = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"), "backend": "llama.cpp", **said,
        "max_num_seqs": slots, "server_version": about.get("build_info"), "tool_version": f"rooflinekit {__version__}",
        "device": {"name": processor(), "cores": os.cpu_count(), "system": platform.platform()},
        "python": platform.python_version(), "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "request_rate": "inf", "requests_per_user": load.requests, "rounds": load.rounds,
    }  # fmt: skip
    draw = random.Random(0)
    runs: dict[int, list[dict[str, float]]] = {users: [] for users in load.users}
    _run(address, 1, load, vocab, draw)  # pages of the weights, and the first allocations
    for number in range(load.rounds):
        for users in load.users:
            progress(f"{users} users, round {number + 1} of {load.rounds}")
            runs[users].append(_run(address, users, load, vocab, draw))
    return [head | _row(users, found, load) for users, found in runs.items()]


def processor() -> str:
    """The model name that the kernel shows."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8", errors="replace").splitlines() if info.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _row(users: int, runs: Sequence[dict[str, float]], load: Load) -> dict[str, Any]:
    middle = {name: median(run[name] for run in runs) for name in runs[0]}
    answers = load.answers * users
    return {
        "max_concurrency": users, "completed": len(answers), "total_input_tokens": len(answers) * load.isl,
        "total_output_tokens": sum(answers), "output_lens": answers, **middle,
        "each_round": {name: [round(run[name], 4) for run in runs] for name in ("mean_ttft_ms", "mean_tpot_ms")},
    }  # fmt: skip


def _run(address: str, users: int, load: Load, vocab: int, draw: random.Random) -> dict[str, float]:
    """All users begin at once, and each sends its next request when the last is answered."""
    prompts = [[([draw.randrange(min(_WORDS, vocab - 1), vocab) for _ in range(load.isl)], count)
                for count in draw.sample(load.answers, load.requests)] for _ in range(users)]  # fmt: skip
    times: list[tuple[float, float, float, int]] = []
    failed: list[Exception] = []
    start = threading.Barrier(users + 1)

    def user(mine: Sequence[tuple[list[int], int]]) -> None:
        start.wait()
        try:
            times.extend((*_ask(address, prompt, count), count) for prompt, count in mine)
        except (OSError, HTTPException, ValueError, InputError) as error:
            failed.append(error)

    threads = [threading.Thread(target=user, args=(mine,), daemon=True) for mine in prompts]
    for thread in threads:
        thread.start()
    start.wait()
    begun = time.perf_counter()
    for thread in threads:
        thread.join()
    if failed:
        raise InputError(f"{address}: {failed[0]}")
    seconds = time.perf_counter() - begun
    first = [1e3 * (one - sent) for sent, one, _, _ in times]
    gaps = [1e3 * (last - one) / (count - 1) for _, one, last, count in times]
    whole = [1e3 * (last - sent) for sent, _, last, _ in times]
    return {
        "duration": seconds, "request_throughput": len(times) / seconds,
        "output_throughput": sum(count for *_, count in times) / seconds,
        "mean_ttft_ms": fmean(first), "median_ttft_ms": median(first), "min_ttft_ms": min(first),
        "mean_tpot_ms": fmean(gaps), "median_tpot_ms": median(gaps), "mean_e2el_ms": fmean(whole),
    }  # fmt: skip


def _ask(address: str, prompt: list[int], count: int) -> tuple[float, float, float]:
    """When a request was sent, its first token came, and its last."""
    asked = {"prompt": prompt, "n_predict": count, "temperature": 0, "ignore_eos": True, "cache_prompt": False,
             "stream": True}  # fmt: skip
    posted = Request(f"{address}/completion", json.dumps(asked).encode(), {"Content-Type": "application/json"})
    first, sent = 0.0, time.perf_counter()
    with _OPEN(posted, timeout=_LONGEST) as answer:
        for line in answer:
            if not line.startswith(b"data: "):
                continue
            now = time.perf_counter()
            first = first or now
            if b'"stop":true' in line or b'"error"' in line:
                end = json.loads(line[6:])
                if (got := end.get("tokens_predicted")) != count:
                    raise InputError(f"answered {got} of {count} tokens: {json.dumps(end)[:200]}")
                return sent, first, now
    raise InputError("ended without an answer")
