"""An engine at played times: the numbers of `simulate` to the last bit, over HTTP too; OpenAI's interface; limits."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import rooflinekit as rk
from rooflinekit.cli.app import app
from rooflinekit.cli.writing import _options
from rooflinekit.evidence.benchmark_runs import Given
from rooflinekit.evidence.exposition import interval, read_scrape
from rooflinekit.evidence.watching import Watcher
from rooflinekit.load.arrivals import Arrival
from rooflinekit.model.types.errors import InputError
from rooflinekit.ops.engine import Deployed, PlayedEngine, RealClock
from rooflinekit.simulation.simulate import make_load

pytest.importorskip("starlette", reason="needs rooflinekit[serve]")
pytest.importorskip("uvicorn", reason="needs rooflinekit[serve]")
import httpx2
import uvicorn
from starlette.testclient import TestClient

from rooflinekit.ops import openai
from rooflinekit.ops.connections import Connection, ConnectionLimits

ASKED = {"rate": 20.0, "requests": 200, "isl": "uniform:500-1500", "osl": "uniform:20-100"}
SERVERS = {
    "one": {},
    "cache that is too small": {"kv_tokens": 12_000, "max_num_seqs": 64},
    "replicas": {"replicas": 3, "router": "least-loaded"},
    "queue that is full": {"queue_limit": 2, "max_num_seqs": 4},
    "drafts": {"draft_tokens": 2, "acceptance": 0.6, "draft_ms": 0.5},
    "pools": {"prefill_replicas": 1, "replicas": 2},
    "prefixes": {"prefix_cache": True},
}


def engine(**options: Any) -> PlayedEngine:
    return PlayedEngine(Deployed.read("llama-3-8b", "h100-sxm", **options))


def asked_of(**asked: Any) -> list[Arrival]:
    load, _ = make_load(asked)
    return list(load.sent)


class TestTimes:
    @pytest.mark.parametrize("options", SERVERS.values(), ids=SERVERS)
    def test_requests_that_come_one_by_one_are_played_as_all_at_once(self, options: dict[str, Any]) -> None:
        asked = ASKED | ({"shared_prefix": 400, "prefix_groups": 3} if "prefix_cache" in options else {})
        own = engine(**options)
        streams = []
        for arrival in asked_of(**asked):
            own.advance(arrival.time)  # so that what comes later is not known
            streams.append(own.send(arrival, lambda stream: None))
        own.advance(1e6)
        whole = rk.simulate("llama-3-8b", **asked, **options, warmup=0)
        assert {each.ended for each in streams} <= {"finished", "rejected"}
        for name in ("ttft_ms", "tpot_ms", "e2e_ms"):
            played = sorted(each.times_ms[name] for each in streams if each.ended == "finished")
            stated = getattr(whole, name)
            assert sum(played) / len(played) == pytest.approx(stated.mean, rel=1e-9)
            tolerance = 0.006 if {"prefix_cache", "prefill_replicas"} & {*options} else 1e-9  # a sketch's
            assert played[-(-len(played) // 2) - 1] == pytest.approx(stated.p50, rel=tolerance)
            assert played[-(-len(played) * 95 // 100) - 1] == pytest.approx(stated.p95, rel=tolerance)
        assert sum(each.ended == "rejected" for each in streams) == whole.requests.rejected == own.refused
        if "queue_limit" in options:
            assert own.refused > 10
        if "kv_tokens" in options:
            assert sum(each.ledger.preempted for each in own.replicas) == whole.requests.preemptions > 0
        assert all(each.pool.free == each.pool.total for each in own.replicas)

    def test_each_token_is_told_at_its_step(self) -> None:
        own, seen = engine(calibration="none"), list[tuple[float, int]]()
        own.send(Arrival(0.0, 1000, 40), lambda stream: seen.append((stream.last, stream.made)))
        own.advance(60.0)
        assert [made for _, made in seen] == [*range(1, 41)]
        gaps = [after[0] - before[0] for before, after in pairwise(seen)]
        assert gaps[-1] > gaps[0] > 0.0  # a token more in the cache each time

    def test_a_client_that_leaves_gives_its_place_and_blocks_back(self) -> None:
        own = engine(max_num_seqs=2, token_budget=512)
        first, second, third = (own.send(Arrival(0.0, 2000, 500), lambda stream: None) for _ in range(3))
        own.advance(0.5)
        assert first.made > 5
        assert third.made == 0
        own.abort(first)  # in the batch
        own.abort(own.send(Arrival(0.5, 100, 10), lambda stream: None))  # before it came
        own.advance(2.0)
        assert (first.ended, second.ended) == ("cut", "")
        assert third.made > 0
        waiting = own.send(Arrival(2.0, 100, 10), lambda stream: None)
        own.advance(2.5)
        own.abort(waiting)  # in the queue
        assert waiting.ended == "cut"
        assert 'finished_reason="abort"} 3' in own.exposition()
        own.advance(60.0)
        assert (second.ended, third.ended, own.running) == ("finished", "finished", 0)
        assert own.replicas[0].pool.free == own.replicas[0].pool.total

    def test_a_request_that_is_read_late_comes_when_it_came(self) -> None:
        """A machine that is busy reads it behind its time; it misses only what was played meanwhile."""
        own = engine(calibration="none")
        first = own.send(Arrival(0.0, 1000, 100), lambda stream: None)
        own.advance(0.1)
        began = first.last  # of the step under way
        late = own.send(Arrival(began + 1e-4, 1000, 10), lambda stream: None)
        own.advance(0.2)
        missed = own.send(Arrival(began + 2e-4, 1000, 10), lambda stream: None)
        own.advance(60.0)
        assert late.job.arrived == began + 1e-4
        assert late.job.first < missed.job.arrived < 0.2


def scrape(own: PlayedEngine) -> dict[str, float]:
    pytest.importorskip("prometheus_client", reason="needs rooflinekit[watch]")
    return dict(read_scrape(own.exposition(), own.run.now, "engine").values)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux says how long bytes lie")
def test_bytes_that_lie_unread_came_before() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as client,
    ):
        taken, _ = listening.accept()
        with taken:
            client.sendall(b"POST")
            time.sleep(0.1)
            assert 0.09 < openai._lain(taken) < 1.0


def test_a_clock_at_a_scale_counts_a_second_as_so_many_played_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rooflinekit.ops.engine.monotonic", iter([100.0, 104.0, 104.0, 300.0]).__next__)
    clock = RealClock(0.25)
    assert clock.now() == 1.0
    assert clock.seconds_until(2.0) == 4.0  # 1 s more of the load is 4 s of ours
    assert clock.seconds_until(2.0) == 0.0


class TestMetrics:
    def test_they_add_up_while_requests_run_and_after(self) -> None:
        own = engine(prefix_cache=True, kv_tokens=20_000)
        arrivals = asked_of(**ASKED, shared_prefix=400)
        for arrival in arrivals:
            own.send(arrival, lambda stream: None)
        own.advance(5.0)
        during = scrape(own)
        assert during["running"] == len(own.replicas[0].admitted) > 0
        assert 0.1 < during["kv_use"] <= 1.0
        own.advance(1e4)
        after = scrape(own)
        assert after["osl.sum"] == after["output_tokens"] == sum(each.osl for each in arrivals)
        assert after["isl.sum"] == after["prompt_tokens"] == sum(each.isl for each in arrivals)
        assert after["ttft.count"] == after["e2e.count"] == len(arrivals)
        assert after["hits"] == pytest.approx(400 * len(arrivals), rel=0.05)
        whole = rk.simulate("llama-3-8b", **ASKED, shared_prefix=400, prefix_cache=True, kv_tokens=20_000, warmup=0)
        assert 1e3 * after["ttft.sum"] / after["ttft.count"] == pytest.approx(whole.ttft_ms.mean, rel=1e-9)
        assert 1e3 * after["gap.sum"] / after["gap.count"] == pytest.approx(whole.itl_ms.mean, rel=1e-6)
        assert (after["running"], after["waiting"], after["kv_use"]) == (0.0, 0.0, 0.0)

    @pytest.mark.slow
    def test_watch_finds_the_gap_small_and_no_drift(self) -> None:
        own = engine(calibration=None)
        for arrival in asked_of(rate=0.5, requests=30 * 70, isl="uniform:500-1500", osl="uniform:10-30"):
            own.send(arrival, lambda stream: None)
        scrapes = []
        for minute in range(66):
            own.advance(60.0 * minute + 30.0)
            scrapes.append(read_scrape(own.exposition(), 60.0 * minute + 30.0, "engine"))
        watcher = Watcher(Given.of(gpu="h100-sxm", tp=1))
        found = [interval(before, after, "engine") for before, after in pairwise(scrapes)]
        assert watcher.see_all([each for each in found if each is not None]) == []
        answer = watcher.answer()
        assert answer.drifts == ()
        for figure in (answer.now.tpot, answer.now.ttft):
            assert figure.measured == pytest.approx(figure.expected, rel=0.1)


CHAT = {"messages": [{"role": "user", "content": "four bytes are a token"}], "max_tokens": 5, "ignore_eos": True}


@pytest.fixture(scope="module")
def client():
    own = engine(prefix_cache=True, osl="uniform:8-12", max_model_len=4096)
    with TestClient(openai.application(own, "jump", streams=4), base_url="http://localhost") as made:
        yield made


def events(text: str) -> list[Any]:
    """The events of a stream, without the last, which says that it ends."""
    told = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert told.pop() == "[DONE]"
    return [json.loads(each) for each in told]


class TestInterface:
    def test_a_chat_in_one_piece(self, client: TestClient) -> None:
        answer = client.post("/v1/chat/completions", json=CHAT | {"model": "llama-3-8b"}).json()
        assert answer["object"] == "chat.completion"
        (choice,) = answer["choices"]
        assert choice["message"] == {"role": "assistant", "content": " the" * 5}
        assert choice["finish_reason"] == "length"
        usage = answer["usage"]
        assert (usage["completion_tokens"], usage["total_tokens"]) == (5, usage["prompt_tokens"] + 5)
        (played,) = answer["rooflinekit"]["played"]
        own = rk.estimate("llama-3-8b", isl=usage["prompt_tokens"], osl=5, calibration=None)
        assert played["tpot_ms"] == pytest.approx(own.tpot_ms, rel=0.02)

    def test_a_model_is_also_called_as_on_the_hub(self, client: TestClient) -> None:
        asked = CHAT | {"model": "meta-llama/Meta-Llama-3-8B"}  # so do the clients' commands of `estimate -v`
        assert client.post("/v1/chat/completions", json=asked).status_code == 200

    def test_a_chat_as_a_stream(self, client: TestClient) -> None:
        asked = CHAT | {"stream": True, "stream_options": {"include_usage": True}, "n": 2}
        answer = client.post("/v1/chat/completions", json=asked)
        assert answer.headers["content-type"].startswith("text/event-stream")
        *pieces, last = events(answer.text)
        assert {each["object"] for each in pieces} == {"chat.completion.chunk"}
        for index in range(2):
            own = [each["choices"][0] for each in pieces if each["choices"][0]["index"] == index]
            assert own[0]["delta"] == {"role": "assistant", "content": " the"}
            assert [each["delta"]["content"] for each in own] == [" the"] * 5
            assert [each["finish_reason"] for each in own] == [None] * 4 + ["length"]
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] == 10

    def test_completions_of_texts_and_of_tokens(self, client: TestClient) -> None:
        answer = client.post("/v1/completions", json={"prompt": [[1, 2, 3], [4]], "max_tokens": 2}).json()
        assert [each["index"] for each in answer["choices"]] == [0, 1]
        assert answer["usage"] == {
            "prompt_tokens": 4, "completion_tokens": 4, "total_tokens": 8,
            "prompt_tokens_details": {"cached_tokens": 0},
        }  # fmt: skip
        own = client.post("/v1/completions", json={"prompt": "text", "max_tokens": 50}).json()
        assert 8 <= own["usage"]["completion_tokens"] <= 12  # as the server's lengths say
        assert own["choices"][0]["finish_reason"] == "stop"

    def test_a_conversation_finds_itself_and_its_answers_in_the_cache(self, client: TestClient) -> None:
        said = [{"role": "user", "content": "x" * 4000}]
        first = client.post("/v1/chat/completions", json={"messages": said, "max_tokens": 200, "ignore_eos": True})
        assert first.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        said += [first.json()["choices"][0]["message"], {"role": "user", "content": "and then?"}]
        usage = client.post("/v1/chat/completions", json={"messages": said, "max_tokens": 2}).json()["usage"]
        assert 1190 < usage["prompt_tokens_details"]["cached_tokens"] < usage["prompt_tokens"]

    def test_models_health_metrics_and_the_clock(self, client: TestClient) -> None:
        (model,) = client.get("/v1/models").json()["data"]
        assert (model["id"], model["max_model_len"]) == ("llama-3-8b", 4096)
        assert client.get("/health").status_code == 200
        assert 'vllm:cache_config_info{block_size="16"' in client.get("/metrics").text
        assert client.get("/clock").json()["clock"] == "jump"

    @pytest.mark.parametrize(
        ("status", "path", "body", "word"),
        [
            (404, "chat/completions", CHAT | {"model": "gpt-5"}, "gpt-5"),
            (400, "chat/completions", {"messages": []}, "messages"),
            (400, "chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "text"),
            (400, "completions", {}, "prompt"),
            (400, "completions", {"prompt": ["a", {}]}, "prompt"),
            (400, "completions", {"prompt": "a", "max_tokens": 0}, "max_tokens"),
            (400, "completions", {"prompt": "a", "max_tokens": "5"}, "whole number of at least 1, got '5'"),
            (400, "completions", {"prompt": "a", "max_tokens": 5000}, "4096 tokens"),
            (400, "completions", {"prompt": "a", "echo": True}, "echo"),
            (400, "completions", {"prompt": "a", "n": 1000}, "answers"),
            (429, "completions", {"prompt": "a", "n": 5}, "--streams"),
            (400, "completions", [], "object"),
        ],
    )
    def test_refusals_say_why(self, client: TestClient, status: int, path: str, body: Any, word: str) -> None:
        answer = client.post(f"/v1/{path}", json=body)
        assert answer.status_code == status
        error = answer.json()["error"]
        assert error["code"] == status
        assert word in error["message"]

    def test_other_hosts_types_paths_and_methods_are_refused(self, client: TestClient) -> None:
        assert client.post("/v1/completions", json=CHAT, headers={"host": "evil.example"}).status_code == 400
        assert client.post("/v1/completions", content=b"{}", headers={"content-type": "text/plain"}).status_code == 415
        assert client.get("/v1/embeddings").status_code == 404
        assert client.get("/v1/completions").status_code == 405
        assert client.post("/clock", json={"by_s": 1}).status_code == 400

    def test_a_bug_leaves_nobody_waiting(self) -> None:
        own = engine()
        own.step = lambda time: 1 / 0  # type: ignore[assignment,method-assign,return-value]
        with TestClient(openai.application(own, "jump"), base_url="http://localhost") as made:
            for _ in range(2):
                answer = made.post("/v1/completions", json={"prompt": "a"})
                assert (answer.status_code, "bug" in answer.text) == (503, True)

    def test_a_token_is_asked_for_where_one_is_set(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ROOFLINEKIT_TOKEN", "a-secret")
        with TestClient(openai.application(engine(), "jump"), base_url="http://localhost") as made:
            refused = made.post("/v1/chat/completions", json=CHAT)
            assert (refused.status_code, "a-secret" in refused.text) == (401, False)
            shown = {"authorization": "Bearer a-secret"}
            assert made.post("/v1/chat/completions", json=CHAT, headers=shown).status_code == 200


async def over_http(own: PlayedEngine, arrivals: list[Arrival]) -> list[Any]:
    """Send requests at times on a clock that stands, and then let it go."""
    transport = httpx2.ASGITransport(app=openai.application(own, "held"))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        asked = [
            client.post(
                "/v1/completions",
                json={"prompt": "x" * 4 * each.isl, "max_tokens": each.osl, "ignore_eos": True},
                headers={openai.TIME: repr(each.time)},
            )
            for each in arrivals
        ]
        sent = [asyncio.ensure_future(each) for each in asked]
        while own.running < len(arrivals):
            await asyncio.sleep(0)
        moved = (await client.post("/clock", json={"idle": True})).json()
        assert (moved["clock"], moved["running"]) == ("held", 0)
        return [each.json() for each in await asyncio.gather(*sent)]


class TestOverHttp:
    def test_percentiles_on_a_clock_that_is_held_are_those_of_simulate(self) -> None:
        arrivals = asked_of(**ASKED)
        answers = asyncio.run(over_http(engine(), arrivals))
        assert [each["usage"]["prompt_tokens"] for each in answers] == [each.isl for each in arrivals]
        whole = rk.simulate("llama-3-8b", **ASKED, warmup=0)
        for name in ("ttft_ms", "tpot_ms"):
            played = sorted(each["rooflinekit"]["played"][0][name] for each in answers)
            for share, stated in ((50, getattr(whole, name).p50), (95, getattr(whole, name).p95)):
                assert played[-(-len(played) * share // 100) - 1] == pytest.approx(stated, rel=1e-9)

    @pytest.mark.slow
    def test_five_hundred_streams_at_once(self) -> None:
        """Over sockets, of a server of its own, with a clock that waits for nobody."""
        with serving("llama-3-70b --tp 4", "--time", "jump", "--streams", "500") as port:
            answers = [text for text, _ in asyncio.run(burst(port, 500, 20))]
        assert len(answers) == 500
        for text in answers:
            *pieces, last = events(text)
            assert sum(each["choices"][0]["text"].count(" the") for each in pieces) == 20
            assert last["usage"]["completion_tokens"] == 20

    @pytest.mark.slow
    @pytest.mark.long
    def test_five_hundred_streams_keep_pace_on_two_cores(self, tmp_path: Path) -> None:
        """125,000 tokens in 13 played seconds, a minute here, of which 5 % are 3 s; clients are on the same machine.

        The server's own work would fit into the played time on one core.
        """
        import resource

        before, scale = resource.getrusage(resource.RUSAGE_CHILDREN), 0.25
        with serving("llama-3-70b --tp 4", "--time", str(scale)) as port:
            answers = asyncio.run(burst(port, 500, 250))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        sent_ms = sorted(events(text)[-1]["rooflinekit"]["played"][0]["sent_ms"] for text, _ in answers)
        trace = tmp_path / "sent.csv"
        trace.write_text("time_s,isl,osl\n" + "".join(f"{(ms - sent_ms[0]) / 1e3!r},50,250\n" for ms in sent_ms))
        whole = rk.simulate("llama-3-70b", "h100-sxm", tp=4, trace=str(trace), warmup=0)
        felt_ms = sorted(1e3 * scale * seconds for _, seconds in answers)
        assert felt_ms[249] == pytest.approx(whole.e2e_ms.p50, rel=0.05)
        assert felt_ms[474] == pytest.approx(whole.e2e_ms.p95, rel=0.05)
        assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < whole.e2e_ms.max / 1e3


@pytest.fixture(scope="module")
def own_client():
    package = pytest.importorskip("openai", reason="needs the package openai")
    with TestClient(openai.application(engine(), "jump", streams=3), base_url="http://localhost") as made:
        yield package.OpenAI(base_url="http://localhost/v1", api_key="none", http_client=made, max_retries=0)


class TestWithOpenAIsClient:
    """The client of the `openai` package, through which most gateways and agents ask."""

    def test_it_reads_streams_and_whole_answers(self, own_client: Any) -> None:
        client = own_client
        (model,) = client.models.list().data
        asked = {"model": model.id, "messages": CHAT["messages"], "max_tokens": 5, "extra_body": {"ignore_eos": True}}
        whole = client.chat.completions.create(**asked)
        *pieces, last = client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **asked)
        assert "".join(each.choices[0].delta.content for each in pieces) == " the" * 5
        assert whole.choices[0].message.content == " the" * 5
        assert last.usage.completion_tokens == whole.usage.completion_tokens == 5
        (streamed,), (alone,) = last.rooflinekit["played"], whole.rooflinekit["played"]
        assert streamed["tpot_ms"] == pytest.approx(alone["tpot_ms"], rel=1e-9)  # no other request runs
        assert streamed["ttft_ms"] == pytest.approx(alone["ttft_ms"], abs=0.06)  # or the token before is sent first

    def test_it_feels_what_simulate_says(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """Over a socket, on an event loop whose time goes on when nothing is left to do: so no machine is too busy."""
        asked = {"rate": 20.0, "requests": 60, "isl": "uniform:500-1500", "osl": "uniform:10-30"}
        with asyncio.Runner(loop_factory=PatientLoop) as runner:
            loop = runner.get_loop()
            for module in ("engine", "openai"):
                monkeypatch.setattr(f"rooflinekit.ops.{module}.monotonic", loop.time)
            seen = runner.run(felt_here(engine(), asked_of(**asked), loop, str(tmp_path / "socket")))
        whole = rk.simulate("llama-3-8b", **asked, warmup=0)
        for at, stated in ((1, whole.ttft_ms), (2, whole.tpot_ms)):
            felt_ms = sorted(each[at] for each in seen)
            assert felt_ms[29] == pytest.approx(stated.p50, rel=1e-6)
            assert felt_ms[56] == pytest.approx(stated.p95, rel=1e-6)

    @pytest.mark.slow
    @pytest.mark.long
    def test_it_feels_it_on_this_machine(self, tmp_path: Path) -> None:
        """At a tenth of the pace, so that a busy machine makes it less late; played at the times at which they came."""
        arrivals = asked_of(rate=10.0, requests=60, isl="uniform:500-1500", osl="uniform:40-60")
        with serving("llama-3-70b --gpu h100-sxm --tp 4", "--time", "0.1") as port:
            seen = asyncio.run(felt(f"http://127.0.0.1:{port}/v1", arrivals, 0.1, time.perf_counter))
        came = sorted((played["sent_ms"], arrival.isl, arrival.osl)
                      for (played, _, _), arrival in zip(seen, arrivals, strict=True))  # fmt: skip
        trace = tmp_path / "came.csv"
        trace.write_text("time_s,isl,osl\n" + "".join(f"{ms / 1e3!r},{isl},{osl}\n" for ms, isl, osl in came))
        whole = rk.simulate("llama-3-70b", "h100-sxm", tp=4, trace=str(trace), warmup=0)
        for at, stated in ((1, whole.ttft_ms), (2, whole.tpot_ms)):
            felt_ms = sorted(each[at] for each in seen)
            assert felt_ms[29] == pytest.approx(stated.p50, rel=0.05)
            assert felt_ms[56] == pytest.approx(stated.p95, rel=0.05)

    def test_it_raises_what_it_raises_for_an_engine(self, own_client: Any) -> None:
        package = pytest.importorskip("openai", reason="needs the package openai")
        for error, asked in (
            (package.NotFoundError, {"model": "gpt-5", "prompt": "a"}),
            (package.BadRequestError, {"model": "llama-3-8b", "prompt": "a", "max_tokens": 10**6}),
            (package.RateLimitError, {"model": "llama-3-8b", "prompt": ["a"] * 4}),
        ):
            with pytest.raises(error):
                own_client.completions.create(**asked)


@contextmanager
def serving(told: str, *more: str, first: Sequence[str] = ()):
    """A server in a process of its own, started through words that come first; gives its port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [*first, sys.executable, "-m", "rooflinekit", "serve", "--engine-of", told, "--port", str(port), *more]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if "ends with Ctrl-C" in line:
                break
        yield port
    finally:
        process.terminate()
        process.wait(20)
        if process.stderr is not None:
            process.stderr.close()


async def streamed(port: int, isl: int, osl: int) -> tuple[str, float]:
    """The events of one request, read from a socket, and how long they took [s]."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    asked = {"prompt": "x" * 4 * isl, "max_tokens": osl, "ignore_eos": True, "stream": True,
             "stream_options": {"include_usage": True}}  # fmt: skip
    body = json.dumps(asked).encode()
    head = "POST /v1/completions HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
    sent = time.perf_counter()
    writer.write(f"{head}{len(body)}\r\n\r\n".encode() + body)
    text = b""
    while part := await reader.read(65536):
        text += part
    took = time.perf_counter() - sent
    writer.close()
    header, _, rest = text.decode().partition("\r\n\r\n")
    assert " 200 " in header.partition("\r\n")[0], text[:300]
    return rest, took


async def burst(port: int, count: int, osl: int) -> list[tuple[str, float]]:
    return await asyncio.gather(*(streamed(port, 50, osl) for _ in range(count)))


class PatientLoop(asyncio.SelectorEventLoop):
    """An event loop whose time stands while anything is left to do, and then goes to the next timer."""

    _now = 1.0
    _least = 1e-9  # seconds by which it goes on, so that no rounding of a difference keeps it

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled and not self._selector.select(0):
            self._now = max(self._now + self._least, self._scheduled[0]._when)
        super()._run_once()


async def felt_here(own: PlayedEngine, arrivals: list[Arrival], loop: PatientLoop, path: str) -> list[Any]:
    """The same of a server on this loop, over a socket of the system, through which bytes take no time."""
    server = uvicorn.Server(uvicorn.Config(
        openai.application(own, "real"), loop="none", log_config=None,
        http=type("Bounded", (Connection,), {"bounds": ConnectionLimits(0, 512, share=1), "seconds": 60.0}),
    ))  # fmt: skip
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        serves = asyncio.create_task(server._serve([listening]))
        while not server.started:
            await asyncio.sleep(0.001)
        try:
            async with httpx2.AsyncClient(transport=httpx2.AsyncHTTPTransport(uds=path)) as client:
                return await felt("http://localhost/v1", arrivals, 1.0, loop.time, client)
        finally:
            server.should_exit = True
            await serves


async def felt(
    address: str, arrivals: list[Arrival], scale: float, now: Callable[[], float], through: Any = None
) -> list[tuple[dict[str, float], float, float]]:
    """What OpenAI's client feels of requests that are sent at their times, beside what was played [played ms].

    scale: played seconds in a second.
    """
    package = pytest.importorskip("openai", reason="needs the package openai")
    client = package.AsyncOpenAI(base_url=address, api_key="none", max_retries=0, http_client=through)
    (model,) = (await client.models.list()).data
    begun = now() + 0.1

    async def one(arrival: Arrival) -> tuple[dict[str, float], float, float]:
        await asyncio.sleep(max(begun + arrival.time / scale - now(), 0.0))
        sent, seen, last = now(), list[float](), None
        async for event in await client.completions.create(
            model=model.id, prompt="x" * 4 * arrival.isl, max_tokens=arrival.osl, stream=True,
            stream_options={"include_usage": True}, extra_body={"ignore_eos": True},
        ):  # fmt: skip
            seen.append(now())
            last = event
        *tokens, _ = seen  # the last has the usage
        (played,) = last.rooflinekit["played"]
        made = 1e3 * scale
        return played, (tokens[0] - sent) * made, (tokens[-1] - tokens[0]) * made / (arrival.osl - 1)

    async with client:
        return list(await asyncio.gather(*map(one, arrivals)))


PLAN = {
    "router": "least-loaded",
    "traffic": {"rate": 30.0, "isl_mean": 900.0, "osl_mean": 100.0, "arrival_cv": 1.0},
    "candidates": [],
    "best": {
        "replicas": 2, "load": 15.0,
        "scenario": {"model": "llama-3-8b", "gpu": "h100-sxm", "tp": 1, "engine": "vllm", "max_num_seqs": 128},
    },
}  # fmt: skip
"""What `rooflinekit plan --format json` writes, cut short."""


class TestDeployments:
    def test_a_plan_is_served_as_it_was_made(self) -> None:
        own = PlayedEngine(Deployed.planned(PLAN))
        assert len(own.replicas) == 2
        assert own.replicas[0].limits.max_num_seqs == 128
        assert (own.what.setup.router, own.what.osl.mean) == ("least-loaded", 100.0)

    def test_a_split_has_both_pools(self) -> None:
        each = {"replicas": 1, "scenario": PLAN["best"]["scenario"]}  # type: ignore[index]
        own = PlayedEngine(Deployed.planned(PLAN | {"best": {"prefill": each, "decode": each | {"replicas": 2}}}))
        assert (len(own.run.fleet.prefills), len(own.run.fleet.replicas)) == (1, 2)

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["--engine-of", "llama-3-8b --rate 5"], "clients decide"),
            (["--engine-of", "llama-3-8b --tpp 2"], "nearest: tp"),
            (["--engine-of", "no-such-model"], "unknown model"),
            (["--engine-of", str(Path(__file__).parent)], "is a folder without a config.json; give a plan's JSON file"),
            (["--engine-of", "--tp 2"], "MODEL"),
            (["--engine-of", "llama-3-8b", "--workers", "2"], "--workers"),
            (["--engine-of", "llama-3-8b", "--host", "0.0.0.0"], "ROOFLINEKIT_TOKEN"),
            (["--time", "jump"], "--engine-of"),
            (["--engine-of", "llama-3-8b", "--time", "0"], "0.001 to 1000"),
            (["--engine-of", "llama-3-8b", "--time", "fast"], "real, jump, held"),
        ],
    )
    def test_what_cannot_be_served_is_refused_in_a_line(self, words: list[str], said: str) -> None:
        result = CliRunner().invoke(app, ["serve", *words], env={"ROOFLINEKIT_TOKEN": ""})
        assert result.exit_code == 2
        assert said in result.stderr
        assert "Traceback" not in result.stderr

    def test_what_the_page_shows_is_served(self) -> None:
        page = (Path(__file__).parents[2] / "docs" / "fake-engine.md").read_text()
        shown = re.findall(r'--engine-of "([^"]+)"', page)
        assert len(shown) > 1
        for told in shown:
            assert PlayedEngine(Deployed.read(**_options(told))).replicas

    def test_what_clients_decide_is_named(self) -> None:
        with pytest.raises(InputError, match="concurrency"):
            Deployed.read("llama-3-8b", concurrency=4)
