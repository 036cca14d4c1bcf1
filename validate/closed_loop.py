"""Loads on a running engine, llama.cpp's server or vLLM, in the JSON lines of `vllm bench serve`.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any, NamedTuple, Protocol
from urllib.request import ProxyHandler, Request, build_opener

from rooflinekit.model.types.errors import InputError
from rooflinekit.version import __version__

FILE = "served.jsonl"
_READY = 600.0  # seconds until a server must have loaded its model
_LONGEST = 600.0  # seconds that one answer may take
_OPEN = build_opener(ProxyHandler({})).open  # a proxy would be measured as well
_WORDS = 3 + 256  # ids below are marks and bytes in the vocabularies of SentencePiece


@dataclass(frozen=True)
class ClosedLoad:
    """What is asked: users of each run, tokens of a prompt and mean of an answer, and how often all is run."""

    users: tuple[int, ...]
    isl: int = 128
    osl: int = 64
    rounds: int = 5
    requests: int = 8  #: that each user sends
    spread: float = 0.5  #: of answers around their mean, as a share of it; 0 for equal ones
    rate: float | None = None  #: of a Poisson process [1/s]; then each user sends one request, and begins with it

    @property
    def answers(self) -> list[int]:
        """Lengths of one user's answers."""
        even = [1.0 + self.spread * ((2 * place + 1) / self.requests - 1.0) for place in range(self.requests)]
        return [max(round(self.osl * length), 1) for length in even]


class Asking(NamedTuple):
    """A user: seconds until the first request, and prompts of token ids with the tokens of their answers."""

    begins: float
    requests: list[tuple[list[int], int]]


class Answered(NamedTuple):
    """A request: when it was sent, its first token came, and its last [s]; tokens of the answer."""

    sent: float
    first: float
    last: float
    tokens: int


class ServedEngine(Protocol):
    """An engine under load."""

    facts: Mapping[str, Any]  #: what it says of itself: columns of a row
    vocabulary: int  #: token ids are below

    def serve(self, users: Sequence[Asking]) -> list[Answered]:
        """Let all users begin, each send its next request when the last is answered, and wait for all answers."""

    def watched(self) -> AbstractContextManager[dict[str, Any]]:
        """Columns of what the board showed meanwhile, filled when the block ends; none without a board."""


@contextmanager
def serving(server: str, model: str, load: ClosedLoad, log: Path) -> Iterator[str]:
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


def measure(
    served: ServedEngine, load: ClosedLoad, said: dict[str, Any], progress: Callable[[str], None]
) -> list[dict[str, Any]]:
    """One row for each number of users: medians over the rounds of means over their requests.

    Raises InputError for a server that does not answer, or answers shorter.
    """
    head = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"), **served.facts, **said,
        "tool_version": f"rooflinekit {__version__}", "python": platform.python_version(),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "request_rate": load.rate or "inf", "requests_per_user": load.requests, "rounds": load.rounds,
    }  # fmt: skip
    draw = random.Random(0)
    runs: dict[int, list[_Run]] = {users: [] for users in load.users}
    first = replace(load, requests=1)
    served.serve(_users(1, first, served.vocabulary, draw))  # pages of the weights, and the first allocations
    for number in range(load.rounds):
        for users in load.users:
            progress(f"{users} users, round {number + 1} of {load.rounds}")
            asking = _users(users, load, served.vocabulary, draw)
            with served.watched() as board:
                answered = served.serve(asking)
            runs[users].append(_Run(answered, board))
    return [head | _row(users, found, load) for users, found in runs.items()]


def _users(count: int, load: ClosedLoad, vocabulary: int, draw: random.Random) -> list[Asking]:
    low, begins = min(_WORDS, vocabulary - 1), 0.0
    asking = []
    for _ in range(count):
        prompts = [[draw.randrange(low, vocabulary) for _ in range(load.isl)] for _ in range(load.requests)]
        asking.append(Asking(begins, list(zip(prompts, draw.sample(load.answers, load.requests), strict=True))))
        begins += draw.expovariate(load.rate) if load.rate else 0.0
    return asking


def processor() -> str:
    """The model name that the kernel shows."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8", errors="replace").splitlines() if info.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


class _Run(NamedTuple):
    answered: list[Answered]
    board: Mapping[str, Any]

    def summary(self) -> dict[str, float]:
        """Means and percentiles over the requests [ms], and rates [1/s]."""
        times = self.answered
        seconds = max(each.last for each in times) - min(each.sent for each in times)
        of = {
            "ttft": [1e3 * (each.first - each.sent) for each in times],
            "tpot": [1e3 * (each.last - each.first) / (each.tokens - 1) for each in times if each.tokens > 1],
            "e2el": [1e3 * (each.last - each.sent) for each in times],
        }
        found = {
            "duration": seconds, "request_throughput": len(times) / seconds,
            "output_throughput": sum(each.tokens for each in times) / seconds, "min_ttft_ms": min(of["ttft"]),
        }  # fmt: skip
        for name, values in of.items():
            if len(values) > 1:
                high = quantiles(values, n=100, method="inclusive")
                found |= {f"mean_{name}_ms": fmean(values), f"median_{name}_ms": median(values),
                          f"p90_{name}_ms": high[89], f"p99_{name}_ms": high[98]}  # fmt: skip
        return found

    def detail(self) -> list[list[float]]:
        """Of each request, as they were sent: when it was, time to its first token and to its last [s]; tokens."""
        begun = min(each.sent for each in self.answered)
        return [
            [round(sent - begun, 4), round(first - sent, 5), round(last - sent, 5), tokens]
            for sent, first, last, tokens in sorted(self.answered)
        ]


def _row(users: int, runs: Sequence[_Run], load: ClosedLoad) -> dict[str, Any]:
    found = [run.summary() for run in runs]
    middle = {name: median(each[name] for each in found) for name in found[0]}
    answers = load.answers * users
    means = [name for name in ("mean_ttft_ms", "mean_tpot_ms") if name in middle]
    kept = {name: [round(each[name], 4) for each in found] for name in means}
    return {
        **({} if load.rate else {"max_concurrency": users}), "completed": len(answers),
        "total_input_tokens": len(answers) * load.isl, "total_output_tokens": sum(answers), "output_lens": answers,
        **middle, "each_round": kept, "requests": [run.detail() for run in runs], **runs[-1].board,
    }  # fmt: skip


class LlamaCpp:
    """A running server of llama.cpp. Raises InputError for another one, and for one that does not answer."""

    def __init__(self, address: str) -> None:
        about, models = _get(address, "/props"), _get(address, "/v1/models")
        try:
            slots, self.vocabulary = int(about["total_slots"]), int(models["data"][0]["meta"]["n_vocab"])
        except (KeyError, IndexError, TypeError, ValueError):
            why = "it does not say its slots and its vocabulary"
            raise InputError(f"{address} is no llama.cpp server: {why}") from None
        self._address = address
        self.facts: Mapping[str, Any] = {
            "backend": "llama.cpp", "max_num_seqs": slots, "server_version": about.get("build_info"),
            "device": {"name": processor(), "cores": os.cpu_count(), "system": platform.platform()},
        }  # fmt: skip

    def watched(self) -> AbstractContextManager[dict[str, Any]]:
        """Nothing: no board is read."""
        return nullcontext({})

    def serve(self, users: Sequence[Asking]) -> list[Answered]:
        """One thread a user. Raises InputError for a server that does not answer, or answers shorter."""
        times: list[Answered] = []
        failed: list[Exception] = []
        start = threading.Barrier(len(users))

        def user(mine: Asking) -> None:
            start.wait()
            time.sleep(mine.begins)
            try:
                times.extend(_ask(self._address, prompt, count) for prompt, count in mine.requests)
            except (OSError, HTTPException, ValueError, InputError) as error:
                failed.append(error)

        threads = [threading.Thread(target=user, args=(mine,), daemon=True) for mine in users]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            raise InputError(f"{self._address}: {failed[0]}")
        return times


def _ask(address: str, prompt: list[int], count: int) -> Answered:
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
                return Answered(sent, first, now, count)
    raise InputError("ended without an answer")
