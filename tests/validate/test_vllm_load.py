"""vLLM under load, with a stand-in for its engine: what is asked of it, and what becomes of its answers."""

from __future__ import annotations

import asyncio
import json
import sys
from types import ModuleType, SimpleNamespace

import pytest

pytest.importorskip("torch")

from typer.testing import CliRunner

from rooflinekit.cli.app import app
from rooflinekit.evidence.measured import read_measurements
from rooflinekit.validate import vllm_load
from rooflinekit.validate.closed_loop import ClosedLoad, measure
from rooflinekit.validate.device import open_device

TOKEN = 0.002


class Engine:
    """Answers a token every two milliseconds, from two requests on two at a time; `missing` of them never."""

    missing = 0

    def __init__(self) -> None:
        limits = SimpleNamespace(max_num_batched_tokens=8192, max_num_seqs=1024)
        cache, model = SimpleNamespace(num_gpu_blocks=10, block_size=16), SimpleNamespace(get_vocab_size=lambda: 1000)
        self.vllm_config = SimpleNamespace(scheduler_config=limits, cache_config=cache, model_config=model)
        self.prompts: list[int] = []
        self.ended = False

    def shutdown(self) -> None:
        self.ended = True

    async def generate(self, prompt, asked, number):
        self.prompts.append(len(prompt["prompt_token_ids"]))
        left = asked.max_tokens - self.missing
        while left > 0:
            await asyncio.sleep(TOKEN)
            yield SimpleNamespace(outputs=[SimpleNamespace(token_ids=[1] * min(left, 2))])
            left -= 2


@pytest.fixture
def engine(monkeypatch):
    made = Engine()

    async def start(folder: str) -> Engine:
        assert json.loads((vllm_load.Path(folder) / "config.json").read_text())["model_type"] == "llama"
        return made

    vllm, sampling = ModuleType("vllm"), ModuleType("vllm.sampling_params")
    vllm.SamplingParams = SimpleNamespace
    sampling.RequestOutputKind = SimpleNamespace(DELTA=1)
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", sampling)
    monkeypatch.setattr(vllm_load, "_start", start)
    monkeypatch.setattr(vllm_load, "version_of", lambda package: "0.24.0")
    return made


def test_users_and_arrivals_become_rows_that_compare_reads(engine, tmp_path):
    rows = []
    with vllm_load.vllm_serving("llama-3-8b", open_device("cpu"), tmp_path / "model") as served:
        rows += measure(
            served, ClosedLoad((1, 3), 20, 10, rounds=1, requests=4), {"model_id": "llama-3-8b"}, lambda _: None
        )
        arrivals = ClosedLoad((30,), 20, 8, rounds=1, requests=1, spread=0.0, rate=200.0)
        rows += measure(served, arrivals, {"model_id": "llama-3-8b"}, lambda _: None)
    assert engine.ended and set(engine.prompts) == {20} and len(engine.prompts) == 1 + 4 + 12 + 1 + 30
    path = tmp_path / "served.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    one, three, open_loop = (run.facts for run in read_measurements(path))
    assert (one.engine, one.concurrency, three.concurrency, three.requests, three.isl, three.osl) == (
        "vllm", 1, 3, 12, 20, 10)  # fmt: skip
    assert open_loop.rate == 200.0 and open_loop.concurrency is None
    for row in rows:
        sent = [each[0] for each in row["requests"][0]]
        assert sent == sorted(sent) and len(sent) == row["completed"]
        assert all(TOKEN <= first <= last for _, first, last, _ in row["requests"][0])
    assert sum(each[3] for each in rows[1]["requests"][0]) == rows[1]["total_output_tokens"]


def test_a_shorter_answer_is_an_error_in_a_line(engine, tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "missing", 1)
    words = [
        "validate",
        "--engine",
        "vllm",
        "--model",
        "llama-3-8b",
        "--device",
        "cpu",
        "--out",
        str(tmp_path / "here"),
    ]
    refused = CliRunner().invoke(app, [*words, "--rounds", "1", "--isl", "4", "--osl", "6", "--concurrency", "1"])
    assert refused.exit_code == 2 and "vllm answered 5 of 6 tokens" in refused.stderr.replace("\n", " "), refused.output
    assert engine.ended
