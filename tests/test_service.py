"""The service: the answers of Python over HTTP and MCP, refusals in one line, no file of a caller, bounds on work."""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from test_compare import VLLM
from typer.testing import CliRunner

import rooflinekit as rk
from rooflinekit.cli.app import app
from rooflinekit.estimation.options import options_of
from rooflinekit.model.types.errors import InputError, RooflinekitError
from rooflinekit.ops import workers as pool
from rooflinekit.ops.tools import TOOLS
from rooflinekit.ops.workers import BusyError, TimeUpError, Workers

pytest.importorskip("starlette", reason="needs rooflinekit[serve]")
pytest.importorskip("uvicorn", reason="needs rooflinekit[serve]")
from starlette.testclient import TestClient

from rooflinekit.ops import pages, web

STATIC = {"model": "llama3-8b", "batch": 32, "isl": 2048}
LONG = {"model": "llama-3-70b", "tp": 4, "rate": 50, "requests": 5000, "osl": "uniform:3000-4000", "draft_tokens": 3,
        "acceptance": 0.5, "draft_ms": 1.0, "shared_prefix": 512, "prefix_cache": True}  # fmt: skip
"""A simulation of some twenty seconds: each token of a draft is drawn, and prompts have blocks."""


@pytest.fixture(scope="module")
def client():
    with TestClient(web.app(), base_url="http://localhost", raise_server_exceptions=False) as made:
        yield made


def refused(response, status, *said):
    """One line that says what is wrong."""
    assert response.status_code == status, response.text
    (line,) = response.json().values()
    assert "\n" not in line
    for word in said:
        assert word in line
    assert "internal error" not in line


class TestAnswers:
    def test_an_estimate_is_that_of_python_with_what_it_rests_on(self, client):
        body = client.post("/v1/estimate", json=STATIC).json()
        own = rk.estimate("llama3-8b", batch=32, isl=2048)
        assert body["answer"]["tpot_ms"] == own.tpot_ms
        assert body["basis"] == {
            "level": "expected", "evidence": "measured", "interval": own.to_dict()["interval"],
            "sources": ["rooflinekit://gpu/h100-sxm", "rooflinekit://model/llama-3-8b",
                        f"calibration {own.calibration['name']} ({own.calibration['hash']})"],
        }  # fmt: skip
        assert "kernels" not in json.dumps(body["answer"]["decode"]["kernels"])
        full = client.post("/v1/estimate", json=STATIC | {"kernels": True}).json()
        assert full["answer"]["decode"]["kernels"]

    @pytest.mark.parametrize(
        ("tool", "asked", "answer"),
        [
            ("levers", {"concurrency": 8, "osl": 20, "requests": 100}, "answer"),
            ("simulate", {"concurrency": 16, "requests": 200, "replicas": 2}, None),
        ],
    )
    def test_levers_and_simulations_have_the_interval_of_their_load(self, client, tool, asked, answer):
        body = client.post(f"/v1/{tool}", json={"model": "llama3-8b"} | asked).json()
        found = body["answer"][answer] if answer else {k: body["answer"][k]["mean"] for k in ("ttft_ms", "tpot_ms")}
        for name in ("ttft_ms", "tpot_ms"):
            low, high = body["basis"]["interval"][name]
            assert 0.5 * found[name] < low < found[name] < high < 3.0 * found[name]

    def test_a_simulation_at_the_bound_has_no_interval(self, client):
        asked = {"model": "llama3-8b", "requests": 100, "rate": 5, "calibration": "none"}
        body = client.post("/v1/simulate", json=asked).json()
        assert body["basis"]["interval"] is None

    def test_a_plan_rests_on_the_machine_and_the_level_of_its_best(self, client):
        asked = {"model": "llama3-8b", "rate": 1, "tp": [1], "aggregated_only": True}
        basis = client.post("/v1/plan", json=asked).json()["basis"]
        assert basis["level"] == "expected" and basis["interval"]
        assert basis["sources"] == ["rooflinekit://gpu/h100-sxm", "rooflinekit://model/llama-3-8b"]
        bare = client.post("/v1/plan", json=asked | {"calibration": "none"}).json()["basis"]
        assert (bare["level"], bare["interval"]) == ("bound", None)

    def test_a_comparison_rests_on_the_prediction_of_its_first_run(self, client):
        asked = {"run": VLLM, "gpu": "h100", "tp": 1}
        body = client.post("/v1/compare", json=asked).json()
        predicted = {row["metric"]: row["predicted"] for row in body["answer"]["runs"][0]["metrics"]}
        for name in ("ttft_ms", "tpot_ms"):
            low, high = body["basis"]["interval"][name]
            assert low < predicted[name] < high
        bare = client.post("/v1/compare", json=asked | {"calibration": "none"}).json()["basis"]
        assert (bare["level"], bare["interval"], bare["evidence"]) == ("bound", None, "datasheet")

    def test_a_derivation_is_cut_at_the_depth_that_is_asked_for(self, client):
        def height(node):
            return 1 + max(map(height, node["children"]), default=-1)

        asked = STATIC | {"metric": "ttft"}
        whole = rk.explain(**asked).to_dict()["derivation"]
        assert height(whole) > 4
        for depth, more in ((2, {}), (4, {"depth": 4})):
            response = client.post("/v1/explain", json=asked | more)
            found = response.json()["answer"]["derivation"]
            assert height(found) == depth and found["value"] == whole["value"]
            assert depth > 2 or len(response.content) < 30_000
        assert found["children"][0]["title"] == whole["children"][0]["title"]
        assert client.post("/v1/explain", json=asked | {"depth": 0}).json()["answer"]["derivation"]["parts"] == len(
            whole["children"]
        )

    def test_the_description_is_made_from_the_table_of_options(self, client):
        described = client.get("/openapi.json").json()
        assert described["openapi"] == "3.1.0"
        assert set(described["paths"]) == {"/healthz", *(f"/v1/{name}" for name in TOOLS)}
        schema = described["components"]["schemas"]["estimate.question"]
        for name, option in options_of(TOOLS["estimate"].table).items():
            if not option.hidden:
                assert schema["properties"][name]["description"] == option.help
        assert schema["required"] == ["model"]
        assert client.get("/healthz").json() == {"version": rk.__version__}


class TestRefusals:
    @pytest.mark.parametrize(
        ("asked", "said"),
        [
            ({}, "model is missing"),
            (STATIC | {"batch": 0}, "batch must be a whole number of at least 1, not 0"),
            (STATIC | {"bacht": 1}, "unknown option 'bacht'; nearest: batch"),
            (STATIC | {"model": "lama3-8b"}, "nearest: llama-3-8b"),
            (STATIC | {"gpu": "h1000"}, "nearest: h100-sxm"),
            (STATIC | {"weights": "fp9"}, "fp9"),
            ({"model": "llama-3-70b"}, "does not fit"),
            (STATIC | {"isl": "uniform:1-2000"}, "varies from request to request"),
        ],
    )
    def test_what_cannot_be_answered_says_why(self, client, asked, said):
        refused(client.post("/v1/estimate", json=asked), 422, said)

    def test_a_refusal_of_a_worker_reads_the_same(self, client):
        refused(client.post("/v1/explain", json=STATIC | {"metric": "tpott"}), 422, "nearest: tpot")
        refused(client.post("/v1/simulate", json={"model": "llama3-8b", "rate": 1, "requests": 9999}), 422, "5,000")
        refused(client.post("/v1/compare", json={"run": {"a": 1}}), 422, "nothing that is known wrote this")

    def test_paths_and_files_are_refused_by_name(self, client, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "config.json").write_text("{}")
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "config.json").write_text("{}")
        for text in ("mine", "config.json", str(tmp_path), "../x", "~/x", "hf:org/name", "C:\\x", "x.yaml", "x.csv"):
            for name in ("model", "gpu", "system", "calibration", "draft", "engine", "kv_policy", "isl", "weights"):
                response = client.post("/v1/estimate", json=STATIC | {name: text, "draft_tokens": 2})
                assert 400 <= response.status_code < 500, (name, text)
                assert "config" not in response.text.replace(text, "")
        refused(
            client.post("/v1/levers", json=STATIC | {"price": "/etc/passwd.csv"}), 422, "only names of the catalogue"
        )
        for name in ("profile", "tco", "price", "isl"):  # a plain word may be a file of the server's folder
            (tmp_path / "day").write_text("hour,rate\n0,1\n1,2\n")
            asked = {"model": "llama-3-8b", "rate": 1, name: "empirical:day" if name == "isl" else "day"}
            refused(client.post("/v1/plan", json=asked), 422)
        refused(client.post("/v1/plan", json={"model": "llama3-8b", "trace": "x.csv"}), 422, "unknown option 'trace'")
        refused(
            client.post("/v1/compare", json={"run": VLLM | {"model_id": str(tmp_path)}, "gpu": "h100", "tp": 1}),
            422,
            "unknown model",
        )

    def test_bodies_and_methods_that_are_none(self, client):
        json_type = {"content-type": "application/json"}
        refused(client.post("/v1/estimate", content=b"{", headers=json_type), 400, "no JSON")
        refused(client.post("/v1/estimate", content=b"\xff\xfe", headers=json_type), 400, "no JSON")
        refused(client.post("/v1/estimate", content=b"[" * 200_000, headers=json_type), 400)
        refused(client.post("/v1/estimate", content=b"[]", headers=json_type), 400, "no JSON object")
        refused(client.post("/v1/estimate", content=b"a" * 300_000, headers=json_type), 413, "256 KiB")
        refused(client.post("/v1/estimate", content=b"{}", headers={"content-type": "text/plain"}), 415)
        refused(client.get("/v1/estimate"), 405, "/openapi.json")
        refused(client.post("/v1/nothing", json={}), 404)
        assert client.post("/v1/gpus", json={}, headers={"host": "evil.example"}).status_code == 400

    def test_a_refusal_is_in_words_for_who_asks(self, client):
        json_type = {"content-type": "application/json"}
        refused(client.post("/v1/models", json={"x": 1}), 422, "unknown option 'x'; this takes none")
        digits = client.post("/v1/estimate", content=b'{"batch": ' + b"9" * 5000 + b"}", headers=json_type)
        refused(digits, 400, "an integer has thousands of digits")
        assert "set_int_max_str_digits" not in digits.text

    def test_a_token_is_asked_for_and_never_shown(self, monkeypatch):
        monkeypatch.setenv(web.TOKEN, "secret-of-the-test")
        with TestClient(web.app(local=False), base_url="http://any.example") as made:
            refused(made.post("/v1/estimate", json=STATIC), 401, "Authorization")
            wrong = made.post("/v1/estimate", json=STATIC, headers={"authorization": "Bearer secret"})
            refused(wrong, 401)
            assert "secret-of-the-test" not in wrong.text + made.get("/openapi.json").text
            assert wrong.headers["www-authenticate"] == "Bearer"
            for scheme in ("Bearer", "bearer"):
                shown = {"authorization": f"{scheme} secret-of-the-test"}
                assert made.post("/v1/estimate", json=STATIC, headers=shown).status_code == 200
            refused(made.post("/v1/estimate", json=STATIC, headers={"authorization": "secret-of-the-test"}), 401)

    def test_another_address_needs_a_token(self, monkeypatch):
        monkeypatch.delenv(web.TOKEN, raising=False)
        with pytest.raises(InputError, match=r"0\.0\.0\.0 lets others in; set ROOFLINEKIT_TOKEN"):
            web.listen("0.0.0.0", 8000)


NASTY = [
    None, True, False, 0, -1, 1, 2, 3, 7, 0.5, -0.5, 1e-300, 1e300, 10**30, float("nan"), float("inf"), 64, 1024, 1e12,
    "", " ", "0", "-1", "nan", "1e9", "x" * 3000, "../../etc/passwd", "/etc/passwd", "hf:a/b", "\x00", "\ud800",
    "\u202e", "a\nb", "lognormal:", "uniform:1-0", "lognormal:mean=1e308,cv=9", "window:0", "topk:-1", "sink:1+",
    "vllm@", "fp8", "bf16", "medusa", "mtp", "llama-3-70b", "h200-sxm", [], [[]], [1, 2], ["a"], {}, {"a": 1}, [None],
]  # fmt: skip


def malformed(draw: random.Random, tool: str) -> tuple[str, str, bytes, dict[str, str]]:
    """A request that somebody could send: method, path, body, headers."""
    names = list(TOOLS[tool].model.model_fields) or ["model"]
    asked: dict[str, object] = {"model": draw.choice(["llama3-8b", "mixtral-8x7b", "deepseek-v3"]), "metric": "tpot"}
    if tool != "explain":
        del asked["metric"]
    for _ in range(draw.randint(1, 4)):
        asked[draw.choice(names) if draw.random() < 0.95 else f"x{draw.random()}"] = draw.choice(NASTY)
    body = json.dumps(asked).encode()
    kind = draw.random()
    if kind < 0.1:
        body = body[: draw.randrange(len(body))]
    elif kind < 0.15:
        body = draw.randbytes(draw.randrange(200))
    elif kind < 0.18:
        body = json.dumps(draw.choice(NASTY)).encode()
    method = "POST" if draw.random() < 0.95 else draw.choice(["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
    path = (
        f"/v1/{tool}"
        if draw.random() < 0.95
        else draw.choice(["/v1", "/v1/", "/v1/..", "/%00", "/v1/estimate/x", "//"])
    )
    content = "application/json" if draw.random() < 0.97 else draw.choice(["", "text/html", "multipart/form-data"])
    return method, path, body, {"content-type": content}


class TestMalformed:
    @pytest.mark.parametrize("count", [400, pytest.param(10_000, marks=pytest.mark.long)])
    def test_every_request_ends_in_an_answer_or_in_one_line(self, client, monkeypatch, count):
        """What passes the checks of a slow tool is not worked out here, but for every hundredth."""
        draw = random.Random(count)
        ask = Workers.ask

        async def asked(self, name, body=b"{}", quick=False, seconds=None):
            if name not in TOOLS:
                return b"{}"
            if draw.random() < 0.01:
                return await ask(self, name, body, quick, seconds)
            if quick:
                return pool.answer(name, body)
            TOOLS[name].checked(json.loads(body))
            return b"{}"

        monkeypatch.setattr(Workers, "ask", asked)
        for number in range(count):
            tool = "estimate" if number % 2 else draw.choice(list(TOOLS))
            method, path, body, headers = malformed(draw, tool)
            response = client.request(method, path, content=body, headers=headers)
            assert response.status_code == 200 or 400 <= response.status_code < 500, (body, response.text)
            if response.status_code >= 400 and method != "HEAD":
                refused(response, response.status_code)


class TestBounds:
    def test_what_takes_too_long_is_ended_and_the_next_question_answered(self):
        async def asked():
            few = Workers(1)
            with pytest.raises(TimeUpError, match=r"more than 0\.01 s; ask for less"):
                await few.ask("gpus", seconds=0.01)  # no process starts as fast as that
            assert json.loads(await few.ask("gpus", seconds=60.0))["answer"]["accelerators"]
            await few.close()

        asyncio.run(asked())

    def test_a_worker_that_dies_is_replaced(self, monkeypatch):
        async def asked():
            few = Workers(1, seconds=60.0)
            monkeypatch.setattr(pool, "_COMMAND", (sys.executable, "-c", "import sys; sys.stdin.readline()"))
            with pytest.raises(TimeUpError, match="memory"):
                await few.ask("gpus")
            monkeypatch.undo()
            assert await few.ask("gpus")
            (worker,) = few._all
            worker.kill()
            await worker.wait()
            assert await few.ask("gpus")
            await few.close()

        asyncio.run(asked())

    def test_who_comes_when_all_places_are_taken_is_sent_away(self, monkeypatch):
        monkeypatch.setattr(pool, "_COMMAND", (sys.executable, "-c", "import time; time.sleep(60)"))

        async def asked():
            few = Workers(1, seconds=1.5)
            found = await asyncio.gather(*(few.ask("gpus") for _ in range(20)), return_exceptions=True)
            await few.close()
            return found

        errors = asyncio.run(asked())
        assert all(isinstance(error, (BusyError, TimeUpError)) for error in errors)
        assert sum("too many questions" in str(error) for error in errors) >= 11  # nine places

    def test_long_questions_leave_a_place_for_quick_ones(self):
        async def asked():
            few = Workers(1, seconds=12.0)
            await few.ask("estimate", b'{"model": "llama3-8b"}', quick=True)
            long = [asyncio.create_task(few.ask("simulate", json.dumps(LONG).encode())) for _ in range(3)]
            await asyncio.sleep(0.5)
            begun = time.monotonic()
            await few.ask("estimate", b'{"model": "llama3-8b", "batch": 3}', quick=True)
            taken = time.monotonic() - begun
            assert not any(each.done() for each in long)
            await few.close()  # those that work too
            await asyncio.gather(*long, return_exceptions=True)
            return taken

        assert asyncio.run(asked()) < 10.0  # a new process starts

    def test_concurrent_callers_get_their_own_answers(self, client):
        sizes = range(1, 41)
        with ThreadPoolExecutor(16) as callers:
            found = list(callers.map(lambda n: client.post("/v1/estimate", json=STATIC | {"batch": n}).json(), sizes))
        assert [body["answer"]["inputs"]["batch"] for body in found] == list(sizes)


@contextmanager
def serving(port, *options):
    """A real server in a process of its own, once it answers."""
    command = [sys.executable, "-m", "rooflinekit", "serve", "--port", str(port), *options]
    environment = {key: value for key, value in os.environ.items() if key != web.TOKEN}
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment) as server:
        try:
            for _ in range(600):
                try:
                    asked = urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=60)
                    assert json.load(asked)["version"] == rk.__version__
                    break
                except OSError:
                    assert server.poll() is None, server.stderr.read()
                    time.sleep(0.1)
            yield server
        finally:
            server.terminate()
            server.wait(30)


def ask(port, tool, asked):
    """The body of an answer."""
    url, headers = f"http://127.0.0.1:{port}/v1/{tool}", {"content-type": "application/json"}
    return json.load(
        urllib.request.urlopen(urllib.request.Request(url, json.dumps(asked).encode(), headers), timeout=60)
    )


def descendants(root):
    """Processes below one."""
    return {int(pid) for path in Path(f"/proc/{root}/task").glob("*/children") for pid in path.read_text().split()}


def alive(pid):
    """Whether a process runs: one that has ended and that nobody asked for has no command line."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


@pytest.fixture
def port():
    """A port that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_the_command_serves_until_it_is_ended(port):
    with serving(port) as server:
        assert ask(port, "estimate", STATIC)["answer"]["model"] == "llama-3-8b"
        assert f"serving on http://127.0.0.1:{port};" in server.stderr.readline().decode()
        server.terminate()
        assert server.stderr.read() == b""


def test_a_server_that_cannot_answer_does_not_say_that_it_serves(port):
    """The port is bound when the application turns out not to start."""
    script = f"""
import rooflinekit.ops.web as web
from rooflinekit.cli.run import main

def broken(*_):
    raise RuntimeError("no application")

web.app = broken
main(["serve", "--port", "{port}"])
"""
    line = [sys.executable, "-c", script]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode
    assert "no application" in done.stderr
    assert "serving on" not in done.stderr


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
@pytest.mark.parametrize("workers", [2])
def test_a_server_that_was_killed_starts_again_and_leaves_nothing_behind(port, workers):
    """Of several processes those that are left would keep the port, and answer."""
    several = "--workers", str(workers)
    with serving(port, *several) as server:
        before = [ask(port, "estimate", STATIC), ask(port, "gpus", {})]
        helpers = descendants(server.pid)
        assert helpers  # the process that listed the accelerators
        server.kill()
        server.wait(30)
    for _ in range(600):
        if not any(map(alive, helpers)):
            break
        time.sleep(0.1)
    assert not any(map(alive, helpers))
    with serving(port, *several):
        assert [ask(port, "estimate", STATIC), ask(port, "gpus", {})] == before


def test_callers_that_are_slow_or_go_or_send_too_much_are_told_and_leave_no_traceback(port):
    head = b"POST /v1/estimate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += b"Content-Length: 100\r\n\r\n{"
    with serving(port, "--seconds", "2") as server:
        with socket.create_connection(("127.0.0.1", port), 20) as gone:
            gone.sendall(head)
        with socket.create_connection(("127.0.0.1", port), 20) as slow:
            slow.sendall(head)
            assert b" 408 " in slow.recv(1000).splitlines()[0]
        with pytest.raises(urllib.error.HTTPError) as raised:  # the refusal, and no connection that was cut
            ask(port, "estimate", {"model": "x" * 10_000_000})
        assert raised.value.code == 413
        raised.value.close()
        assert ask(port, "estimate", STATIC)
        server.terminate()
        assert b"Traceback" not in server.stderr.read()


def test_a_taken_port_is_one_line(port):
    with socket.create_server(("127.0.0.1", port)):
        refused = CliRunner().invoke(app, ["serve", "--port", str(port)])
    assert refused.exit_code == 2 and f"--port {port}: Address already" in refused.stderr
    assert "serving on" not in refused.stderr


def test_small_answers_do_not_wait_for_an_acknowledgement(port):
    """Head and body are two segments: with Nagle's algorithm the second waits 40 ms for a delayed ACK of the first."""
    with web.listen("127.0.0.1", port) as listening:
        assert listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


class TestPages:
    """What a browser finds at `/`."""

    @pytest.fixture
    def site(self, tmp_path):
        for name in ("playground/index.html", "playground/models/m.gz", "docs/index.html"):
            path = tmp_path / "site" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"this is {name}")
        (tmp_path / "secret.html").write_text("not for callers")
        (tmp_path / "site" / "link.html").symlink_to(tmp_path / "secret.html")
        return tmp_path / "site"

    def test_the_site_is_served_and_nothing_beside_it(self, site, monkeypatch):
        with TestClient(web.app(site=site), base_url="http://localhost") as made:
            assert made.get("/").text == made.get("/playground/").text == "this is playground/index.html"
            assert made.get("/playground/models/m.gz").content == b"this is playground/models/m.gz"
            assert made.get("/docs/index.html").headers["content-type"].startswith("text/html")
            (site / "later.html").write_text("later")
            for path in ("/link.html", "/later.html", "/../secret.html", "/%2e%2e/secret.html", "//etc/passwd",
                         "/docs/..%2f..%2fsecret.html", "/playground", "/playground/../../secret.html"):  # fmt: skip
                answer = made.get(path)
                assert answer.status_code == 404 and "not for callers" not in answer.text, path

    def test_a_folder_without_a_playground_is_refused(self, tmp_path):
        with pytest.raises(InputError, match=r"holds no playground/index\.html"):
            web.app(site=tmp_path)

    def test_without_a_site_a_page_on_one_model_is_made_once(self, tmp_path, monkeypatch):
        monkeypatch.setattr(pages, "SITE", tmp_path)
        ask, made = Workers.ask, []

        async def asked(self, name, *given, **more):
            if name != "page":
                return await ask(self, name, *given, **more)
            made.append(name)
            if len(made) > 1:
                raise TimeUpError("too slow")
            return b"a page"

        monkeypatch.setattr(Workers, "ask", asked)
        with TestClient(web.app(), base_url="http://localhost") as client:
            assert client.get("/").text == client.get("/").text == "a page"
            assert client.get("/").headers["content-type"].startswith("text/html") and made == ["page"]
        with TestClient(web.app(), base_url="http://localhost") as client:
            refused(client.get("/"), 503, "could not be made")

    @pytest.mark.slow
    def test_the_page_on_one_model_is_a_report(self):
        made = pages.made_page().decode()
        assert made.startswith("<!doctype html>") and pages.MODEL in made


def test_other_commands_do_not_load_the_service():
    code = (
        "import sys; from rooflinekit.cli.run import main\n"
        "try: main(['gpus'])\nexcept SystemExit: pass\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('starlette', 'uvicorn', 'mcp', 'anyio')])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "[]"


class TestAssistants:
    @pytest.fixture(autouse=True)
    def needs_mcp(self):
        pytest.importorskip("mcp", reason="needs rooflinekit[mcp]")

    def talk(self, conversation):
        """Run a conversation of the SDK's own client with the server in this process."""
        import anyio
        from mcp import Client

        from rooflinekit.ops.assistants import server

        async def run():
            async with Client(server()) as made:
                return await conversation(made)

        return anyio.run(run)

    def test_each_tool_is_listed_with_its_schema_and_called(self):
        asked = {
            "estimate": STATIC, "levers": {"model": "llama3-8b", "gpus": []}, "models": {}, "gpus": {},
            "explain": STATIC | {"metric": "kv_per_token"}, "compare": {"run": VLLM, "gpu": "h100", "tp": 1},
            "simulate": {"model": "llama3-8b", "rate": 5, "requests": 50},
            "plan": {"model": "llama3-8b", "rate": 1, "tp": [1], "aggregated_only": True},
        }  # fmt: skip

        async def conversation(client):
            listed = await client.list_tools()
            return listed.tools, {
                tool.name: await client.call_tool(tool.name, asked[tool.name]) for tool in listed.tools
            }

        tools, answers = self.talk(conversation)
        assert {tool.name for tool in tools} == set(TOOLS) == set(answers)
        assert all(tool.input_schema == TOOLS[tool.name].schema for tool in tools)
        for name, found in answers.items():
            assert not found.is_error, (name, found.content)
            assert found.structured_content == json.loads(found.content[0].text)
            assert set(found.structured_content["basis"]) == {"level", "interval", "evidence", "sources"}
        own = rk.estimate("llama3-8b", batch=32, isl=2048)
        assert answers["estimate"].structured_content["answer"]["tpot_ms"] == own.tpot_ms

    def test_a_wrong_question_is_an_error_in_one_line(self):
        async def conversation(client):
            return [await client.call_tool("estimate", {"model": "lama3-8b"}), await client.call_tool("estmate", {})]

        for found, said in zip(self.talk(conversation), ("nearest: llama-3-8b", "unknown tool"), strict=True):
            assert found.is_error
            assert said in found.content[0].text
            assert "\n" not in found.content[0].text

    def test_sources_of_an_answer_can_be_read(self):
        async def conversation(client):
            answer = await client.call_tool("estimate", STATIC)
            sources = [s for s in answer.structured_content["basis"]["sources"] if "://" in s]
            uris = {str(each.uri) for each in (await client.list_resources()).resources}
            texts = [(await client.read_resource(uri)).contents[0].text for uri in (*sources, "rooflinekit://method")]
            return sources, uris, texts

        sources, uris, texts = self.talk(conversation)
        assert {*sources, "rooflinekit://method"} <= uris
        assert "source" in texts[0]
        assert "roofline" in texts[-1]

    def test_no_file_is_a_resource(self):
        from rooflinekit.ops import assistants

        for uri in ("rooflinekit://model//etc/passwd", "file:///etc/passwd", "rooflinekit://model/../x"):
            with pytest.raises(RooflinekitError):
                assistants._spec(uri)

    def test_a_resource_that_is_not_there_is_a_line(self, caplog):
        from mcp import MCPError

        async def conversation(client):
            with pytest.raises(MCPError, match="nearest: h100-sxm"):
                await client.read_resource("rooflinekit://gpu/h100-sxn")

        self.talk(conversation)
        assert "Traceback" not in caplog.text

    def test_over_standard_input_and_output(self):
        import anyio
        from mcp import Client, StdioServerParameters

        async def run():
            server = StdioServerParameters(command=sys.executable, args=["-m", "rooflinekit", "mcp"])
            async with Client(server) as made:
                return await made.call_tool("estimate", STATIC)

        assert anyio.run(run).structured_content["answer"]["model"] == "llama-3-8b"
