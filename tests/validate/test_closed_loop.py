"""A server under a closed loop of users: measured, fitted, compared and watched; a real llama.cpp where one is here."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Event, Thread
from typing import ClassVar

import pytest
from tiny_gguf import Sizes, write_llama
from typer.testing import CliRunner

from rooflinekit.cli.app import app
from rooflinekit.evidence.measured import MeasuredRun, read_measurements
from rooflinekit.evidence.measurement import StartUp
from rooflinekit.model.types.errors import InputError
from rooflinekit.validate.closed_loop import ClosedLoad, LlamaCpp, measure, serving

ROOT = Path(__file__).parents[2]
MEASURED = ROOT / "reports" / "data" / "llamacpp-epyc"
SIZES = Sizes(hidden=256, width=512, layers=2, heads=4, kv_heads=2, vocab=512, context=512)


class Words(BaseHTTPRequestHandler):
    """Answers as llama.cpp's server does, one token after another; `missing` of them are never said."""

    missing = 0
    prompts: ClassVar[list[int]] = []
    said: ClassVar[dict[str, object]] = {
        "/props": {"total_slots": 2, "build_info": "b1"}, "/v1/models": {"data": [{"meta": {"n_vocab": 512}}]},
    }  # fmt: skip

    def do_GET(self) -> None:
        self._say(json.dumps(self.said[self.path]).encode())

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.prompts.append(len(asked["prompt"]))
        count = asked["n_predict"] - self.missing
        self._say(b"".join(b'data: {"content":"w","stop":false}\n\n' for _ in range(count))
                  + b'data: {"stop":true,"tokens_predicted":%d}\n\n' % count)  # fmt: skip

    def _say(self, text: bytes) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def address() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Words) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_rows_are_runs_that_compare_and_calibrate_read(address, tmp_path):
    Words.prompts.clear()
    load = ClosedLoad((1, 3), isl=20, osl=10, rounds=2)
    rows = measure(LlamaCpp(address), load, {"model_id": "m"}, lambda _: None)
    assert len(Words.prompts) == 1 + 8 * 2 * (1 + 3) and set(Words.prompts) == {20}
    assert sum(load.answers) == 80 and (min(load.answers), max(load.answers)) == (6, 14)
    path = tmp_path / "served.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    one, three = read_measurements(path)
    assert isinstance(one, MeasuredRun) and isinstance(three, MeasuredRun)
    facts = three.facts
    assert (facts.engine, facts.concurrency, facts.requests, facts.isl, facts.osl, facts.max_num_seqs) == (
        "llama.cpp", 3, 24, 20, 10, 2)  # fmt: skip
    assert facts.osl_cv == pytest.approx(0.28, abs=0.02)  # even from half to three halves: 1/√12
    assert one.tpot.mean is not None and one.ttft.mean is not None


def test_a_shorter_answer_and_another_server_are_errors(address, monkeypatch):
    monkeypatch.setattr(Words, "missing", 1)
    with pytest.raises(InputError, match="answered 5 of 6 tokens"):
        measure(LlamaCpp(address), ClosedLoad((1,), isl=4, osl=6, rounds=1, requests=1), {}, lambda _: None)
    monkeypatch.setattr(Words, "said", {"/props": {}, "/v1/models": []})
    with pytest.raises(InputError, match=r"is no llama\.cpp server"):
        measure(LlamaCpp(address), ClosedLoad((1,)), {}, lambda _: None)


@pytest.mark.parametrize(("words", "said"), [
    (["--engine", "vllm", "--model", "llama-3-8b", "--out", "{}", "--gpu", "h200-sx"], "nearest: h200-sxm"),
    (["--engine", "vlm"], "unknown engine to measure 'vlm'; nearest: vllm"),
    (["--engine", "vllm", "--server", "x", "--model", "llama-3-8b", "--out", "{}"], "takes no --server"),
    (["--engine", "vllm", "--model", "llama-3-8b", "--out", "{}", "--device", "cpu"], "vllm is not installed beside"),
    (["--engine", "vllm", "--model", "llama-3-8b", "--out", "{}", "--isl", "9000"], "so lower --isl"),
    (["--engine", "llama.cpp"], "needs --model FILE.gguf and --out DIR"),
    (["--engine", "llama.cpp", "--resume"], "are of kernels"),
    (["--rounds", "3"], "--rounds is of a server under load; add --engine llama.cpp or vllm"),
    (["--engine", "llama.cpp", "--model", "m", "--out", "{}", "--server", "/nowhere/llama"], "does not start"),
    (["--engine", "llama.cpp", "--model", "m", "--out", "{}", "--server", "false"], "its last words are in"),
    (["--engine", "llama.cpp", "--model", "m", "--out", "{}", "--server", "http://127.0.0.1:9"], "does not answer"),
])  # fmt: skip
def test_what_cannot_be_measured_is_said_in_a_line(words, said, tmp_path):
    refused = CliRunner().invoke(app, ["validate", *(word.format(tmp_path) for word in words)])
    assert refused.exit_code == 2 and said in refused.stderr, refused.stderr
    assert "Traceback" not in refused.output


@pytest.mark.parametrize("seen", [(2, 4, 8), (1, 2, 4, 8)])
def test_unseen_numbers_of_users_of_a_measured_server_are_predicted_within_15_percent(monkeypatch, seen):
    """The other numbers of users of a real server up to eight, after a fit to some."""
    pytest.importorskip("scipy")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import served_errors

    fit, found = served_errors.errors(MEASURED, seen)
    assert all(error < 0.15 for error in served_errors.worst(found, seen).values())
    assert all(error.after < error.before / 3.0 for error in fit.errors.values())
    before = [abs(row["tpot"][1] / row["tpot"][0] - 1.0) for users, row in found.items() if users > 1]
    assert min(before) > 0.3  # the stand-in alone is far off


def test_a_started_server_has_one_cache_for_all_slots(tmp_path):
    """With a cache for each, llama.cpp runs slots that are no neighbours, and prompts, in steps of their own."""
    say = shlex.join([sys.executable, "-c", "import sys; print(sys.argv[1:])"])
    with pytest.raises(InputError), serving(say, "tiny.gguf", ClosedLoad((3,)), tmp_path / "log"):
        pass
    words = (tmp_path / "log").read_text()
    assert "'--kv-unified'" in words and "'--parallel', '3'" in words


def server() -> str:
    """How to start llama.cpp's server here; skips where there is none."""
    if found := shutil.which("llama-server"):
        return shlex.quote(found)
    if find_spec("xllamacpp") is None:
        pytest.skip("neither llama-server nor xllamacpp is installed")
    return shlex.join([sys.executable, str(ROOT / "tests" / "llama_server.py")])


def test_a_real_server_is_measured_fitted_compared_and_watched(tmp_path):
    pytest.importorskip("scipy")
    started, model, out = server(), tmp_path / "tiny.gguf", tmp_path / "here"
    write_llama(model, SIZES)
    here = ["--gpu", str(MEASURED / "this-cpu.yaml"), "--tp", "1", "--activations", "fp32", "--kv", "fp16"]

    def say(*words: str) -> str:
        done = CliRunner().invoke(app, list(words))
        assert done.exit_code == 0, done.output
        return done.stdout

    lengths = ["--isl", "32", "--osl", "16"]
    say("validate", "--engine", "llama.cpp", "--server", started, "--model", str(model), "--concurrency", "1,2",
        "--rounds", "1", *lengths, "--out", str(out))  # fmt: skip
    runs = read_measurements(out / "served.jsonl")
    assert [None if isinstance(run, StartUp) else run.facts.concurrency for run in runs] == [1, 2]
    made = str(out / "served.yaml")
    assert "data" in say("calibrate", str(out / "served.jsonl"), *here, "--out", made)
    assert "interference" in say("compare", str(out / "served.jsonl"), *here, "--calibration", made)

    load, ended = ClosedLoad((2,), 32, 16, rounds=1), Event()
    with serving(started, str(model), load, out / "watched.log") as address:

        def serve() -> None:
            while not ended.is_set():
                measure(LlamaCpp(address), load, {}, lambda _: None)

        users = Thread(target=serve)
        users.start()
        try:
            told = json.loads(say("watch", f"{address}/metrics", "--model", str(model), *here, "--calibration", made,
                                  *lengths, "--once", "--every", "2", "--format", "json"))  # fmt: skip
        finally:
            ended.set()
            users.join()
    (seen,) = told["intervals"]
    assert told["engine"] == "llama.cpp" and seen["rate"] > 0.0
    assert seen["tpot"]["measured"] > 0.0 and seen["tpot"]["expected"] > 0.0
