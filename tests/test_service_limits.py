"""What callers may cost the service: work, time, connections, log; and how it ends."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from inspect import isclass
from pathlib import Path

import jsonschema
import pandas as pd
import pytest
from patience import until_busy
from test_door import ASKED
from test_service import LONG, STATIC, alive, descendants, refused
from typer.testing import CliRunner

import rooflinekit as rk
from rooflinekit.cli.app import app
from rooflinekit.estimation import scenario
from rooflinekit.estimation.options import options_of
from rooflinekit.model.types.errors import InputError, WorkloadError

pytest.importorskip("starlette", reason="needs rooflinekit[serve]")
pytest.importorskip("uvicorn", reason="needs rooflinekit[serve]")
from starlette.testclient import TestClient

from rooflinekit.ops import web
from rooflinekit.ops.log import Sparing
from rooflinekit.ops.openapi import openapi
from rooflinekit.ops.tools import TOOLS
from rooflinekit.ops.workers import TimeUpError, Workers
from rooflinekit.ops.workers import answer as answered

posix = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc and signals")
TABLES = [each for each in vars(scenario).values() if isclass(each) and each.__module__ == scenario.__name__]
LATE = 1.0  # seconds that a head may take in these tests
BEGIN = f"""
from rooflinekit.ops import connections
connections._HEADERS = {LATE}
from rooflinekit.cli import main
main()
"""
FOREVER = (
    sys.executable,
    "-c",
    """
from rooflinekit.ops import workers
def forever(*_):
    while True: pass
workers.answer = forever
workers.work()
""",
)  # a worker whose work never ends


@pytest.fixture(scope="module")
def client():
    with TestClient(web.app(), base_url="http://localhost", raise_server_exceptions=False) as made:
        yield made


def usual_signals():
    """In a process that begins: what whoever started the tests ignores, such as a shell in the background."""
    for each in (signal.SIGINT, signal.SIGHUP):
        signal.signal(each, signal.SIG_DFL)


@contextmanager
def server(*options, descriptors=None, environment=None):
    """A real server, its port, and what it has said when it has ended."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def limited():
        usual_signals()
        if descriptors:
            import resource

            resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))

    command = [sys.executable, "-c", BEGIN, "serve", "--port", str(port), *options]
    kept = {key: value for key, value in os.environ.items() if key != web.TOKEN} | (environment or {})
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=kept, preexec_fn=limited) as process:
        try:
            assert b"serving on" in process.stderr.readline()
            yield process, port
        finally:
            process.kill()
            process.wait(30)


def ask(port, tool, asked, timeout=60.0):
    """The status and the body of an answer."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/{tool}", json.dumps(asked).encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout) as found:
            return found.status, json.load(found)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def healthy(port, source="127.0.0.1"):
    """How long a new connection takes to be told that the service runs [s]."""
    begun = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), 20, source_address=(source, 0)) as one:
        one.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert one.recv(1000).startswith(b"HTTP/1.1 200")
    return time.monotonic() - begun


def begun_long(process, port, count=1):
    """Questions of many seconds under way in the workers of a server, which may fail when it ends."""
    callers = ThreadPoolExecutor(count)

    def tried():
        with suppress(OSError):
            ask(port, "simulate", LONG)

    for _ in range(count):
        callers.submit(tried)
    callers.shutdown(wait=False)
    until_busy(lambda: descendants(process.pid), 1.0)


def gone(helpers):
    """Nothing is left of some processes after a moment."""
    ends = time.monotonic() + 5.0
    while any(map(alive, helpers)) and time.monotonic() < ends:
        time.sleep(0.05)
    assert not any(map(alive, helpers))


class TestWork:
    @pytest.mark.parametrize("table", TABLES, ids=lambda table: table.__name__)
    def test_every_option_that_counts_has_an_upper_bound(self, table):
        for name, option in options_of(table).items():
            if option.kind in ("count", "counts", "loose count", "length") and option.most != scenario.STEP:
                assert option.most <= 10**10, name
                if option.kind != "loose count":
                    with pytest.raises(WorkloadError, match=rf"{name} must be at most [\d,]+, not"):
                        option.check(name, 10**11)

    @pytest.mark.parametrize(
        "asked",
        [{"redundant_experts": 1_000_000}, {"max_num_seqs": 10**8}, {"token_budget": 10**8}, {"images": 10**6},
         {"microbatches": 10**6},
         {"concurrency": 10**9}, {"concurrency": 8, "requests": 10**10}, {"lora_rank": 8, "lora_adapters": 10**9},
         {"draft": "ngram", "acceptance": 0.5, "draft_tokens": 10**6}],
    )  # fmt: skip
    def test_a_number_beyond_it_is_refused_by_python_a_frame_and_the_command_line(self, asked):
        name, value = next((name, value) for name, value in asked.items() if isinstance(value, int) and value > 100_000)
        said = rf"{name} must be at most [\d,]+, not"
        with pytest.raises(WorkloadError, match=said):
            rk.estimate("gpt-oss-20b", **asked)
        (error,) = rk.estimate_frame(pd.DataFrame([{"model": "gpt-oss-20b", "gpu": "h100-sxm"} | asked])).error
        assert re.search(said, error)
        words = [word for key, each in asked.items() for word in (f"--{key.replace('_', '-')}", str(each))]
        shown = CliRunner().invoke(app, ["estimate", "gpt-oss-20b", *words])
        assert shown.exit_code == 2 and re.search(said.replace("_", "[_-]"), shown.stderr), value

    def test_a_list_and_a_profile_have_a_longest_length(self):
        with pytest.raises(WorkloadError, match="tp lists 5,000 values; give at most 100"):
            rk.plan("llama-3-8b", rate=1, tp=[1] * 5000)
        with pytest.raises(WorkloadError, match="months must be at most 120"):
            rk.plan("llama-3-8b", rate=1, months=10**6)
        with pytest.raises(WorkloadError, match="8,784, hours of a year"):
            rk.plan("llama-3-8b", profile=[1.0] * 10_000)

    def test_a_limit_that_is_no_pair_is_refused(self):
        for limit in ("h100", ["h100"], 5):
            with pytest.raises(WorkloadError, match="h100-sxm=16"):
                rk.plan("llama-3-8b", rate=1, limit=limit)

    @pytest.mark.slow
    @pytest.mark.parametrize("option", [
        name for name, row in options_of(TOOLS["estimate"].table).items() if row.kind in ("count", "length", "number")
    ])  # fmt: skip
    def test_the_largest_number_is_answered_at_once(self, option):
        """A quick question has five seconds."""
        row = options_of(TOOLS["estimate"].table)[option]
        for model in ("llama-3-8b", "gpt-oss-20b"):
            asked = {"model": model, option: int(min(row.most, 10**9)), "allow_oom": True}
            begun = time.monotonic()
            with suppress(InputError):
                answered("estimate", json.dumps(asked).encode())
            assert time.monotonic() - begun < 4.0


@posix
class TestTime:
    def test_the_service_says_that_it_runs_whatever_it_works_on(self):
        with server("--workers", "1") as (process, port):
            begun_long(process, port, 3)
            assert sorted(healthy(port) for _ in range(50))[-2] < 0.5  # of a machine that does other work too
            assert ask(port, "estimate", STATIC)[0] == 200

    def test_a_static_question_has_a_limit_too(self, monkeypatch):
        monkeypatch.setattr("rooflinekit.ops.workers._COMMAND", FOREVER)
        monkeypatch.setattr("rooflinekit.ops.workers._QUICK", 1.0)

        async def asked():
            few = Workers(1)
            with pytest.raises(TimeUpError, match="more than 1 s"):
                await few.ask("estimate", b"{}", quick=True)
            await few.close()

        asyncio.run(asked())

    def test_a_worker_ends_at_its_limit_of_cpu_time(self):
        head = json.dumps({"name": "estimate", "seconds": 0.5, "bytes": 2}).encode()
        with subprocess.Popen(FOREVER, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
            worker.stdin.write(head + b"\n{}")
            worker.stdin.flush()
            assert worker.wait(60) == -signal.SIGXCPU

    def test_a_worker_ends_with_its_server_in_the_midst_of_a_question(self):
        with server() as (process, port):
            begun_long(process, port)
            helpers = descendants(process.pid)
            assert helpers
            process.kill()
            process.wait(10)
            gone(helpers)

    @pytest.mark.parametrize(("workers", "name"), [("1", "SIGTERM"), ("2", "SIGINT")])
    def test_a_signal_ends_it_in_seconds_whatever_it_works_on(self, name, workers):
        with server("--workers", workers) as (process, port):
            begun_long(process, port, 2)
            helpers = descendants(process.pid)
            process.send_signal(getattr(signal, name))
            assert process.wait(10) == 0
            assert not any(map(alive, helpers))
            assert b"Traceback" not in process.stderr.read()

    def test_a_signal_ends_assistants_too(self):
        pytest.importorskip("mcp", reason="needs rooflinekit[mcp]")
        command = [sys.executable, "-m", "rooflinekit", "mcp"]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=usual_signals
        ) as process:
            about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
            for message in (
                {"id": 1, "method": "initialize", "params": about},
                {"method": "notifications/initialized"},
                {"id": 2, "method": "tools/call", "params": {"name": "simulate", "arguments": LONG}},
            ):
                process.stdin.write(json.dumps({"jsonrpc": "2.0"} | message).encode() + b"\n")
                process.stdin.flush()
            assert process.stdout.readline()
            until_busy(lambda: descendants(process.pid), 1.0)
            helpers = descendants(process.pid)
            assert helpers
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) == 0
            gone(helpers)

    @pytest.mark.parametrize(
        ("name", "words"),
        [("SIGHUP", ["simulate", "llama3-8b", "--rate", "5", "--requests", "1000000"]),
         ("SIGTERM", ["simulate", "llama3-8b", "--rate", "50", "--requests", "1000000", "--cells", "4",
                      "--replicas", "8", "--workers", "2"]),
         ("SIGINT", ["plan", "deepseek-v3", "--rate", "50", "--gpu", "h200,b200"]),
         ("SIGTERM", ["watch", "{log}", "--follow", "--model", "llama3-8b", "--gpu", "h100"])],
        ids=["simulate", "cells", "plan", "watch"],
    )  # fmt: skip
    def test_a_signal_ends_a_long_command_as_ctrl_c_does(self, name, words, tmp_path):
        (tmp_path / "log").touch()
        command = [sys.executable, "-m", "rooflinekit", *(word.format(log=tmp_path / "log") for word in words)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=usual_signals
        ) as process:
            until_busy(lambda: {process.pid, *descendants(process.pid)}, 1.5)
            helpers = descendants(process.pid)
            process.send_signal(getattr(signal, name))
            try:
                _, said = process.communicate(timeout=20)
            finally:
                process.kill()
        assert process.returncode in (130, -signal.SIGINT)  # a shell says 130 of both; CPython ends so within `exec`
        assert said.decode().splitlines()[-1] == "rooflinekit: interrupted" and b"Traceback" not in said
        gone(helpers)

    def test_a_command_without_a_terminal_outlives_it(self):
        command = [
            "nohup",
            sys.executable,
            "-m",
            "rooflinekit",
            "simulate",
            "llama3-8b",
            "--rate",
            "5",
            "--requests",
            "3000",
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            until_busy(lambda: {process.pid}, 1.0)
            process.send_signal(signal.SIGHUP)
            assert process.wait(120) == 0
            assert b"TTFT" in process.stdout.read()


@posix
class TestConnections:
    def test_unfinished_requests_leave_room_for_others_and_end(self):
        """80 of them against 64 descriptors."""
        with server("--workers", "1", descriptors=64) as (process, port):
            begun = time.monotonic()
            halves = []
            for _ in range(80):
                halves.append(socket.create_connection(("127.0.0.1", port), 20))
                halves[-1].sendall(b"POST /v1/estimate HTTP/1.1\r\nHost: loc")
            assert healthy(port, "127.0.0.9") < 1.0  # another client
            first = Counter()
            for half in halves:
                half.settimeout(20)
                first[half.recv(500).split(b" ")[1]] += 1
                half.close()
            assert set(first) == {b"408", b"429"} and first[b"408"] < 30
            assert time.monotonic() - begun < 15.0
            assert healthy(port) < 1.0
            process.terminate()
            assert process.wait(5) == 0
            assert len(process.stderr.read()) < 5000

    def test_a_head_and_a_body_have_their_time_also_on_a_kept_connection(self):
        whole = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        post = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n{"
        with server("--workers", "1", "--seconds", "1.5") as (_, port):
            starts = (b"", b"GET /hea", whole + b"GET /hea", post % b"/v1/estimate", whole + post % b"/v1/gpus",
                      b"G" * 60_000, b"GET / HTTP/1.1\r\nHost: localhost\r\nA: ")  # fmt: skip
            opened = [socket.create_connection(("127.0.0.1", port), 20) for _ in starts]
            for begun, one in zip(starts, opened, strict=True):
                one.sendall(begun)
            for begun, one in zip(starts, opened, strict=True):
                with one:
                    found, ends = b"", time.monotonic() + 5.0
                    while time.monotonic() < ends and (part := one.recv(4000)):
                        found += part
                    assert re.search(rb"HTTP/1.1 4(08|00) ", found), begun
                    assert json.loads(found.rpartition(b"\r\n\r\n")[2])["error"]
            with socket.create_connection(("127.0.0.1", port), 20) as drip:  # a body that nobody waits for
                drip.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n")
                ends = time.monotonic() + 10.0
                with pytest.raises(OSError):
                    while time.monotonic() < ends:
                        drip.sendall(b"x")
                        time.sleep(0.1)

    def test_what_is_no_http_is_refused_in_json_and_little_is_logged(self):
        with server("--workers", "1") as (process, port):
            for number in range(300):
                with socket.create_connection(("127.0.0.1", port), 20) as one:
                    one.sendall(b"\x16\x03\x01 garbage %d\r\n\r\n" % number)
                    found = one.recv(1000)
                    assert found.startswith(b"HTTP/1.1 400") and b'"error"' in found
            process.terminate()
            assert process.wait(5) == 0
            assert process.stderr.read().count(b"\n") < 50

    def test_a_log_says_how_much_was_left_out(self, monkeypatch):
        clock = [0.0]
        monkeypatch.setattr("rooflinekit.ops.log.time.monotonic", lambda: clock[0])
        few = Sparing()
        records = [logging.LogRecord("x", logging.ERROR, "", 0, "no %s", ("file",), None) for _ in range(5001)]
        assert sum(few.filter(each) for each in records[:5000]) == 20
        clock[0] = 11.0
        assert few.filter(records[5000])
        assert records[5000].getMessage() == "no file (4,980 records before it are left out)"

    def test_remembered_answers_have_a_limit_of_memory(self):
        known = web.Remembered(1000)
        for number in range(100):
            known.put(("estimate", b"%d" % number), b"x" * 100)
        assert [known.get(("estimate", b"%d" % number)) is not None for number in (0, 50, 95, 99)] == [
            False, False, True, True,
        ]  # fmt: skip
        known.put(("estimate", b"huge"), b"x" * 5000)
        assert known.get(("estimate", b"huge")) is None


class TestManners:
    @pytest.mark.parametrize(
        ("method", "path", "status", "allowed"),
        [("GET", "/v1/estimate", 405, "POST"), ("PUT", "/v1/plan", 405, "POST"), ("FOO", "/v1/plan", 405, "POST"),
         ("POST", "/healthz", 405, "GET, HEAD"), ("DELETE", "/openapi.json", 405, "GET, HEAD"),
         ("POST", "/", 405, "GET, HEAD"), ("POST", "/v1/nothing", 404, None), ("GET", "/nothing", 404, None)],
    )  # fmt: skip
    def test_a_method_that_is_not_served_is_told_which_are(self, client, method, path, status, allowed):
        found = client.request(method, path)
        refused(found, status, "/openapi.json")
        listed = found.headers.get("allow")
        assert (listed and ", ".join(sorted(listed.split(", ")))) == allowed

    def test_a_refused_host_gets_json(self, client):
        for host in ("evil.example", "localhost.evil.example", "[::1", "", "127.0.0.1@evil.example:80"):
            refused(client.get("/healthz", headers={"host": host}), 400, "this service is localhost")
        for host in ("localhost:80", "LOCALHOST", "[::1]:8000", "127.0.0.1"):
            assert client.get("/healthz", headers={"host": host}).status_code == 200

    @pytest.mark.parametrize("token", [" ", "geheim-ü", "two words", "line\n", "tab\t"])
    def test_a_token_that_can_never_match_is_refused_at_the_start(self, token, monkeypatch):
        monkeypatch.setenv(web.TOKEN, token)
        for host in ("127.0.0.1", "0.0.0.0"):
            shown = CliRunner().invoke(app, ["serve", "--host", host, "--port", "8099"])
            assert shown.exit_code == 2 and f"{web.TOKEN} holds blanks or characters beyond ASCII" in shown.stderr

    def test_answers_follow_the_description(self, client):
        described = client.get("/openapi.json").json()
        assert described == json.loads(json.dumps(openapi()))

        def follows(found, path, method="post"):
            response = described["paths"][path][method]["responses"][str(found.status_code)]
            schema = response["content"]["application/json"]["schema"] | {"components": described["components"]}
            jsonschema.Draft202012Validator(schema).validate(found.json())

        for name, asked in ASKED.items():
            found = client.post(f"/v1/{name}", json=asked)
            assert found.status_code == 200, found.text
            follows(found, f"/v1/{name}")
            if name in ("estimate", "simulate", "plan", "compare"):
                assert all(found.json()["basis"].values()), name
                assert found.json()["basis"]["sources"][0].startswith("rooflinekit://")
        follows(client.post("/v1/explain", json=ASKED["explain"] | {"metric": "tpot"}), "/v1/explain")
        follows(client.post("/v1/estimate", json=STATIC | {"kernels": True}), "/v1/estimate")
        follows(client.post("/v1/estimate", json={"model": "no"}), "/v1/estimate")
        follows(client.post("/v1/estimate", content=b"{"), "/v1/estimate")
        follows(client.get("/healthz"), "/healthz", "get")
