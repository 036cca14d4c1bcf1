"""Steps of a real engine, with one that answers in known times in its place."""

import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; `make test` installs it")

from rooflinekit.evidence.kernel_fit.groups import read_measurements  # noqa: E402
from rooflinekit.evidence.steps import compare_model  # noqa: E402
from rooflinekit.model.types.errors import ArchitectureError, InputError  # noqa: E402
from rooflinekit.specs import load_model  # noqa: E402
from rooflinekit.validate import engine_run, suite  # noqa: E402
from rooflinekit.validate.attribution import Event  # noqa: E402
from rooflinekit.validate.device import open_device  # noqa: E402
from rooflinekit.validate.engine_run import EngineBench, config_folder, open_engine  # noqa: E402
from rooflinekit.validate.points import StepPoint  # noqa: E402
from rooflinekit.validate.record import FILE, Recorder, header  # noqa: E402

PREFILL, STEP = 4e-3, 1e-3


class Engine:
    """Takes 4 ms for the first token and 1 ms for each other one, on a clock of its own."""

    now = 0.0

    def __init__(self, folder="", longest=0):
        self.folder, self.asked = folder, []

    def __call__(self, prompts, counts):
        self.asked.append((len(prompts), len(prompts[0]), counts))
        return [self.until(prompts, count) for count in counts]

    def until(self, prompts, count):
        taken = PREFILL + (count - 1) * STEP
        Engine.now += taken
        return taken


@pytest.fixture(autouse=True)
def its_clock(monkeypatch):
    monkeypatch.setattr(engine_run.time, "perf_counter", lambda: Engine.now)


def test_a_decode_step_is_what_more_tokens_take_beyond_the_first():
    engine = Engine()
    bench = EngineBench("vllm", "0.24.0", "llama-3-8b", 32, engine, open_device("cpu"))
    prefill = bench.measure(StepPoint("prefill", 2, 64))
    decode = bench.measure(StepPoint("decode", 4, 128))
    assert prefill["whole_us"] == pytest.approx(1e6 * PREFILL)
    assert decode["whole_us"] == pytest.approx(1e6 * STEP)
    assert (2, 64, (1,)) in engine.asked
    assert (4, 96, (16, 48)) in engine.asked  # the middle of these 32 steps is at 128 keys


class Batched(Engine):
    """Takes two prompts a step of 4 ms, in which the others already decode; sequences then finish one by one."""

    def until(self, prompts, count):
        start, tokens, waiting = Engine.now, [], len(prompts)
        while waiting or any(tokens):
            tokens = [left - 1 for left in tokens if left > 1] + [count - 1] * min(2, waiting)
            Engine.now += PREFILL if waiting else 1e-4 * len(tokens)
            waiting -= min(2, waiting)
        return Engine.now - start


def test_prompts_that_take_several_steps_do_not_enter_the_time_of_a_decode_step():
    """Eight sequences decode in 0.8 ms together; at the ends of an answer there are fewer."""
    bench = EngineBench("vllm", "0.24.0", "llama-3-8b", 32, Batched(), open_device("cpu"))
    row = bench.measure(StepPoint("decode", 8, 128))
    assert row["whole_us"] == pytest.approx(800.0)


def test_a_profiled_decode_step_is_the_difference_of_two_answers(monkeypatch):
    """The prompt's kernel of 100 us is in both; a step's own takes 7 us."""

    def profiled(step, device):
        prompt = Event("prompt_gemm", 0.0, 100.0, "kernel")
        (count,) = step.args[1]
        return [prompt, *(Event("decode_attn", 100.0 + 7.0 * n, 107.0 + 7.0 * n, "kernel") for n in range(count - 1))]

    point = StepPoint("decode", 1, 128)
    monkeypatch.setattr(engine_run, "profile_step", profiled)
    monkeypatch.setattr(engine_run, "engine_points", lambda: (point,))
    bench = EngineBench("vllm", "0.24.0", "llama-3-8b", 32, Engine(), open_device("cpu"))
    row = bench.measure(point)
    assert row["busy_us"] == pytest.approx({"matrix": 0.0, "attention": 7.0})
    assert row["kernel_names"] == {"decode_attn": 7.0, "prompt_gemm": 0.0}


class Tokens:
    """An engine of vLLM's kind: a step of 1 s gives a token to all that it holds, and it takes one prompt a step."""

    def __init__(self, **said):
        self.said, self.waiting, self.held, self.most = said, [], {}, []
        self.llm_engine = self
        limits = {"max_num_batched_tokens": 16384, "max_num_seqs": 1024}
        cache = SimpleNamespace(num_gpu_blocks=25756, block_size=16)
        graphs = SimpleNamespace(cudagraph_capture_sizes=[1, 512])
        self.vllm_config = SimpleNamespace(
            scheduler_config=SimpleNamespace(**limits), cache_config=cache, compilation_config=graphs
        )

    def add_request(self, name, prompt, asked):
        self.waiting.append(name)
        self.most.append(asked.max_tokens)

    def step(self):
        if self.waiting:
            self.held[self.waiting.pop(0)] = 0
        self.held = {name: count + 1 for name, count in self.held.items() if count < self.most[-1]}
        Engine.now += 1.0
        return [
            SimpleNamespace(request_id=name, outputs=[SimpleNamespace(token_ids=[0] * count)])
            for name, count in self.held.items()
        ]

    def abort_request(self, names):
        self.held = {}

    def has_unfinished_requests(self):
        return bool(self.held)


def test_steps_of_vllm_are_timed_while_every_sequence_decodes(monkeypatch):
    """Three prompts take three steps; the last sequence has its nth token n - 1 steps after its first."""
    started = []
    stub = SimpleNamespace(
        LLM=lambda **said: started.append(Tokens(**said)) or started[-1],
        SamplingParams=SimpleNamespace,
    )
    monkeypatch.setitem(sys.modules, "vllm", stub)
    monkeypatch.setattr(engine_run.torch.cuda, "synchronize", lambda: None)
    served, limits = engine_run._vllm("folder")
    assert limits["kv_tokens"] == 412_096
    prompts = [[1, 2, 3]] * 3
    assert served(prompts, (1,)) == pytest.approx([3.0])
    assert started[0].most[-1] == 1  # no step goes on behind the first tokens
    assert served(prompts, (4, 10)) == pytest.approx([6.0, 12.0])
    assert started[0].most[-1] > 10  # the first sequences do not end before the last one has its ten
    assert not started[0].has_unfinished_requests()


def test_prompts_of_a_batch_share_nothing():
    bench = EngineBench("vllm", "0.24.0", "llama-3-8b", 32, Engine(), open_device("cpu"))
    first, second = bench._prompts(StepPoint("prefill", 2, 200))
    assert first != second
    assert min(first) >= 10


def test_the_rows_of_an_engine_are_compared_with_that_engine(tmp_path, monkeypatch):
    """Written as a run writes them, read as `calibrate` reads them; an engine that is not there is one row."""
    monkeypatch.setattr(engine_run, "version_of", lambda name: "0.24.0" if name == "vllm" else "")
    monkeypatch.setattr(suite, "engine_points", lambda: (StepPoint("decode", 1, 128),))
    monkeypatch.setitem(engine_run._KINDS, "vllm", lambda folder: (Engine(folder), {"kv_tokens": 400_000}))
    here = open_device("cpu")
    with Recorder(tmp_path, header(here, "engine", "llama-3-8b")) as recorder:
        run = suite.SuiteRun(here, "engine", "llama-3-8b", recorder, float("inf"))
        assert suite.run_suite(run) == "complete"
        assert suite.run_suite(run) == "complete"  # nothing is measured twice
    first, second = read_measurements(tmp_path / FILE).rows
    assert (first["op"], first["engine"], first["engine_version"], first["status"]) == (
        "serving_step", "vllm", "0.24.0", "ok",
    )  # fmt: skip
    assert first["kv_tokens"] == 400_000
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
        open_engine("sglang", "llama-3-8b", open_device("cpu"), tmp_path)
