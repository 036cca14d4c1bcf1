"""Steps of a real engine, with one that answers in known times in its place."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; `make test` installs it")

from rooflinekit.evidence.kernel_fit.groups import read_measurements  # noqa: E402
from rooflinekit.model.types.errors import ArchitectureError, InputError  # noqa: E402
from rooflinekit.specs import load_model  # noqa: E402
from rooflinekit.validate import engine_run, suite  # noqa: E402
from rooflinekit.validate.compare_model import compare_model  # noqa: E402
from rooflinekit.validate.device import open_device  # noqa: E402
from rooflinekit.validate.engine_run import EngineBench, config_folder, open_engine  # noqa: E402
from rooflinekit.validate.points import Point  # noqa: E402
from rooflinekit.validate.record import FILE, Recorder, header  # noqa: E402

PREFILL, STEP = 4e-3, 1e-3


class Engine:
    """Takes 4 ms for the first token and 1 ms for each other one, on a clock of its own."""

    now = 0.0

    def __init__(self, folder="", longest=0):
        self.folder, self.asked = folder, []

    def generate(self, prompts, count):
        self.asked.append((len(prompts), len(prompts[0]), count))
        Engine.now += PREFILL + (count - 1) * STEP


@pytest.fixture(autouse=True)
def its_clock(monkeypatch):
    monkeypatch.setattr(engine_run.time, "perf_counter", lambda: Engine.now)


def test_a_decode_step_is_what_more_tokens_take_beyond_the_first():
    here, engine = open_device("cpu"), Engine()
    bench = EngineBench("vllm", "0.24.0", "llama-3-8b", 32, engine)
    prefill = bench.measure(Point("prefill", 2, 64), here, profiled=False)
    decode = bench.measure(Point("decode", 4, 128), here, profiled=False)
    assert prefill["whole_us"] == pytest.approx(1e6 * PREFILL)
    assert decode["whole_us"] == pytest.approx(1e6 * STEP)
    assert (2, 64, 1) in engine.asked
    assert (4, 112, 33) in engine.asked  # 16 tokens before the middle of 32 steps


def test_prompts_of_a_batch_share_nothing():
    bench = EngineBench("vllm", "0.24.0", "llama-3-8b", 32, Engine())
    first, second = bench._prompts(Point("prefill", 2, 200))
    assert first != second
    assert min(first) >= 10


def test_the_rows_of_an_engine_are_compared_with_that_engine(tmp_path, monkeypatch):
    """Written as a run writes them, read as `calibrate` reads them; an engine that is not there is one row."""
    monkeypatch.setattr(engine_run, "present", lambda: {"vllm": "0.24.0"})
    monkeypatch.setattr(suite, "present", lambda: {"vllm": "0.24.0"})
    monkeypatch.setattr(suite, "engine_points", lambda: (Point("decode", 1, 128),))
    monkeypatch.setitem(engine_run._KINDS, "vllm", Engine)
    here = open_device("cpu")
    with Recorder(tmp_path, header(here, "engine", "llama-3-8b")) as recorder:
        run = suite.Run(here, "engine", "llama-3-8b", recorder, float("inf"))
        assert suite.run_suite(run) == "complete"
        assert suite.run_suite(run) == "complete"  # nothing is measured twice
    first, second = read_measurements(tmp_path / FILE).rows
    assert (first["op"], first["engine"], first["engine_version"], first["status"]) == (
        "serving_step", "vllm", "0.24.0", "ok",
    )  # fmt: skip
    assert (second["engine"], second["status"]) == ("sglang", "missing")
    (compared,) = compare_model([first], "h100-sxm")
    assert 1.0 < compared.predicted_ms / 5.0 < 3.0  # 16 GB of weights at 3.35 TB/s, and vLLM's host
    assert compared.measured_ms == pytest.approx(first["whole_us"] / 1e3)


def test_an_engine_starts_with_the_models_own_shape(tmp_path):
    folder = config_folder("llama-3-8b", tmp_path / "model")
    theirs, ours = load_model(str(folder)).value, load_model("llama-3-8b").value
    assert theirs.layers == ours.layers
    assert (theirs.hidden, theirs.vocab, theirs.tied) == (ours.hidden, ours.vocab, ours.tied)
    with pytest.raises(ArchitectureError, match=r"config\.json"):
        config_folder("deepseek-v3", tmp_path)


def test_an_engine_that_is_not_installed_is_named(tmp_path):
    with pytest.raises(InputError, match="sglang is not installed"):
        open_engine("sglang", "llama-3-8b", tmp_path)
