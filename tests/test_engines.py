"""Engine profiles: names, versions, and that every number has its source."""

from __future__ import annotations

import math

import pandas as pd
import pytest

import rooflinekit as rk
from rooflinekit.estimation.estimator import deploy
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.deployment import ENGINES
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.errors import InputError, SpecError, UnknownNameError
from rooflinekit.specs import engines
from rooflinekit.specs.engines import engine_names, load_engine, split_version
from rooflinekit.specs.files import read_yaml

GIB = 2**30


def test_every_engine_of_the_command_line_has_a_profile():
    assert set(engine_names()) == set(ENGINES)


@pytest.mark.parametrize(
    ("asked", "since"),
    [
        ("vllm@0.8.5", "0.8"),
        ("vllm@0.8", "0.8"),
        ("vllm@0.7.3", "0.6.6"),
        ("vllm@0.10.1", "0.9"),
        ("vllm@0.19.0", "0.18"),
        ("vllm@0.6.5", "0.2.5"),
        ("vllm@1.0", "0.21"),
        ("vllm", "0.21"),
        ("VLLM@v0.11.0rc1", "0.11"),
        ("trtllm@0.13", "0.5"),
    ],
)
def test_a_version_falls_in_one_range(asked, since):
    assert load_engine(asked).since == since


def test_ranges_join_and_every_number_is_sourced():
    for name in ENGINES:
        newest = profile = load_engine(name)
        listed = [part.get("since") for part in read_yaml(engines._FOLDER / f"{name}.yaml")["versions"]]
        for since in listed:
            profile = load_engine(name, since)
            assert all(fact.source and fact.quantity.startswith("engine.") for fact in profile.provenance)
            assert 0 < profile.memory.fraction <= 1
            assert (profile.since or None) == since
        assert profile.memory == newest.memory
        assert newest.until == ""


@pytest.mark.parametrize(
    ("asked", "error", "words"),
    [("vlm", UnknownNameError, "nearest: vllm"), ("vllm@new", InputError, "not a version"),
     ("vllm@0.0.1", InputError, "the first is 0.1"), ("ideal@1.0", InputError, "has no versions"),
     ("vllm@", InputError, "not a version")],
)  # fmt: skip
def test_what_nobody_knows_is_refused(asked, error, words):
    with pytest.raises(error, match=words):
        load_engine(asked)


def test_name_and_version_come_apart():
    assert split_version(" vLLM@0.8.5.post1 ") == ("vllm", "0.8.5.post1")
    assert split_version("sglang") == ("sglang", None)


HEAD = "title: x\nsources: {log: {title: a log, url: u, read: true}}\nversions:\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEAD + "  - memory: {budget: half}\n", "not one of total, static, free, none"),
        (HEAD + "  - memory: {budget: total, fractoin: {value: 1, source: [log]}}\n", "nearest: fraction"),
        (HEAD + "  - memory: {budget: total, fraction: {value: 0.9}}\n", "source: is missing"),
        (HEAD + "  - memory: {budget: total, fraction: {value: 1, source: [lgo]}}\n", "under `sources`; nearest: log"),
        (HEAD + "  - memory: {budget: total, graphs: {value: 1, source: [log]}}\n", "no unit"),
        (HEAD + "  - memory: {budget: total, context: {value: [1 GiB, 2 GiB, 3 GiB], source: [log]}}\n", "length"),
        (HEAD + "  - memory: {budget: total, profiled: 1}\n", "not true or false"),
        (HEAD + '  - {until: "2", memory: {budget: none}}\n  - {since: "3", memory: {budget: none}}\n', "must join"),
        (HEAD + "  - {budget: none}\n", "nearest"),
        ("title: x\nversions: {memory: {budget: none}}\n", "not a list of sections"),
    ],
)  # fmt: skip
def test_a_wrong_profile_is_refused_by_file_and_key(tmp_path, monkeypatch, text, words):
    (tmp_path / "own.yaml").write_text(text)
    monkeypatch.setattr(engines, "_FOLDER", tmp_path)
    with pytest.raises(SpecError, match=words) as caught:
        load_engine("own")
    assert "own.yaml" in str(caught.value)


def test_settings_reach_the_engine_and_the_answer():
    told = {"memory_fraction": 0.8, "token_budget": 2048, "max_num_seqs": 64, "max_model_len": 4096, "eager": True}
    answer = rk.estimate("llama-3-8b", engine="vllm@0.19", calibration="none", **told)
    assert answer.inputs["engine_version"] == "0.19"
    assert {key: answer.inputs[key] for key in told} == told
    plain = rk.estimate("llama-3-8b", engine="vllm@0.19", calibration="none").memory
    assert answer.memory.graph_bytes == 0 < plain.graph_bytes
    assert answer.memory.activation_bytes < plain.activation_bytes
    assert answer.memory.available_bytes < plain.available_bytes


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"memory_fraction": 0}, "above 0"),
        ({"memory_fraction": 1.5}, "at most 1"),
        ({"memory_fraction": "most"}, "memory_fraction"),
        ({"token_budget": 0}, "token_budget"),
        ({"max_num_seqs": 1.5}, "max_num_seqs"),
        ({"eager": "yes"}, "eager"),
    ],
)
def test_senseless_settings_are_refused(wrong, words):
    with pytest.raises(rk.WorkloadError, match=words):
        rk.estimate("llama-3-8b", **wrong)


def test_more_than_the_engine_admits_is_said_alone_and_in_a_table():
    asked = {"model": "llama-3-8b", "batch": 64, "isl": 3000, "osl": 100, "max_num_seqs": 32, "max_model_len": 2048}
    alone = rk.estimate(**asked, allow_oom=True).warnings
    assert "3100 tokens exceed max_model_len 2048: the engine would refuse them" in alone
    assert "max_num_seqs 32 would run a batch of 64 in turns" in alone
    assert rk.estimate_frame(pd.DataFrame([asked]))["warnings"][0] == "; ".join(alone)


@pytest.mark.parametrize(("value", "words"), [
    ("[0.1, 0.2, 0.3]", "length"), ("[-1, -0.6, 0.2, 0.1, 0.4, 0.7, 1]", "does not rise"), ("0.1", "length"),
])  # fmt: skip
def test_quantiles_of_errors_are_seven_that_rise(tmp_path, monkeypatch, value, words):
    (tmp_path / "steps").mkdir()
    (tmp_path / "own.yaml").write_text(HEAD + "  - memory: {budget: none}\n")
    (tmp_path / "steps" / "own.yaml").write_text(
        "sources: {log: {title: a log, url: u, read: true}}\nsteps:\n  - costs: {}\n"
        f"    loaded: {{ttft_places: {{value: {value}, source: [log]}}}}\n"
    )
    monkeypatch.setattr(engines, "_FOLDER", tmp_path)
    with pytest.raises(SpecError, match=words) as caught:
        load_engine("own")
    assert "ttft_places" in str(caught.value)


@pytest.mark.parametrize(("model", "engine", "told", "more"), [
    ("qwen3-next-80b-a3b", "sglang@0.5.13", {}, 0.74), ("qwen3-next-80b-a3b", "sglang@0.5.14", {}, 0.0),
    ("qwen3-next-80b-a3b", "sglang@0.5.5", {}, 0.0), ("qwen3-next-80b-a3b", "sglang", {}, 0.0),
    ("qwen3-next-80b-a3b", "vllm", {}, 0.0),
    ("qwen3-next-80b-a3b", "sglang@0.5.13", {"prefix_caching": "off"}, 0.0), ("qwen3-32b", "sglang@0.5.13", {}, 0.0),
    ("qwen3-next-80b-a3b", "sglang@0.5.13", {"async_scheduling": "on"}, 0.0),
])  # fmt: skip
def test_recurrent_states_in_the_cache_turned_the_overlap_scheduler_off(model, engine, told, more):
    """SGLang 0.5.6 to 0.5.13 say so at start-up; a decode step then took 0.74 ms more (the median of three)."""
    found = rk.estimate(model, "b200-sxm", engine=engine, tp=2, batch=1, isl=610, osl=422, **told)
    newest = rk.estimate(model, "b200-sxm", engine=engine.partition("@")[0], tp=2, batch=1, isl=610, osl=422)
    assert found.tpot_ms - newest.tpot_ms == pytest.approx(more, abs=1e-6)
    assert ("prepares no step beside another" in " ".join(found.warnings)) is (more > 0.0)
    users = {"concurrency": 8, "requests": 40, "isl": 610, "osl": 100}
    loads = [
        rk.estimate(model, "b200-sxm", engine=each, tp=2, **users, **told)
        for each in (engine, engine.partition("@")[0])
    ]
    assert loads[0].tpot_ms - loads[1].tpot_ms == pytest.approx(more, abs=0.1)


@pytest.mark.parametrize(("engine", "told", "more"), [
    ("vllm@0.13.0", {}, 0.74), ("vllm@0.13.0", {"async_scheduling": "on"}, 0.0), ("vllm@0.14.0", {}, 0.0),
    ("vllm", {"async_scheduling": "off"}, 0.74), ("sglang", {"async_scheduling": "off"}, 0.74),
    ("trtllm", {"async_scheduling": "on"}, 0.0), ("trtllm", {"async_scheduling": "off"}, 0.74),
])  # fmt: skip
def test_a_host_that_prepares_no_step_while_one_runs_is_waited_for(engine, told, more):
    """vLLM prepares steps ahead by default from 0.14 (PR 27614); without that a step took 0.74 ms more in SGLang.

    A load counts it once a step, as a step alone does; the same engine's newest version is the other side.
    """
    name, model = engine.partition("@")[0], "llama-3.1-8b"
    for load in ({"batch": 8}, {"concurrency": 8, "requests": 40}):
        found = rk.estimate(model, "h200-sxm", engine=engine, isl=500, osl=200, **load, **told)
        ahead = rk.estimate(model, "h200-sxm", engine=name, isl=500, osl=200, **load)
        assert found.tpot_ms - ahead.tpot_ms == pytest.approx(more, abs=1e-6 if "batch" in load else 0.1)


@pytest.mark.parametrize("engine", ["llama.cpp", "ideal", "vllm@0.6.0", "gpt-fast"])
def test_an_engine_without_such_a_scheduler_refuses_to_be_told(engine: str) -> None:
    with pytest.raises(rk.DeploymentError, match="never prepares a step while one runs; leave async_scheduling out"):
        rk.estimate("llama-3-8b", "h100-sxm", engine=engine, async_scheduling="on", batch=1)


@pytest.mark.parametrize(("gpu", "engine"), [
    ("mi300x", "vllm@0.6.1"), ("mi250x", "vllm@0.6.1"), ("gaudi2", "optimum-habana"),
])  # fmt: skip
def test_steps_that_were_measured_whole_have_the_interval_of_their_fit(gpu, engine):
    """Nine of ten such steps lay within this factor with their model left out; kernels stand in for prompts alone."""
    model = "llama-3-8b"
    found = rk.estimate(model, gpu, engine=engine, batch=8, isl=1024, osl=256)
    factor = load_engine(engine, accelerator=gpu).costs.interval
    low, high = found.interval["tpot_ms"]
    assert (found.tpot_ms / low, high / found.tpot_ms) == pytest.approx((factor, factor), rel=1e-6)
    other = rk.estimate(model, gpu, engine="vllm", batch=8, isl=1024, osl=256)  # its newest, of which nobody measured
    assert other.interval["tpot_ms"][1] / other.tpot_ms > 1.4 * factor


def test_an_engine_of_one_vendor_is_named_elsewhere_and_not_advised() -> None:
    assert load_engine("trtllm").vendors == ("NVIDIA",)
    for gpu, engine, runs in (("mi300x", "trtllm", False), ("h100-sxm", "trtllm", True), ("mi300x", "sglang", True),
                              ("h100-sxm", "optimum-habana", False), ("gaudi2", "optimum-habana", True)):  # fmt: skip
        found = rk.estimate("llama-3-8b", gpu, engine=engine)
        assert any("runs on accelerators of" in note for note in found.warnings) is not runs
    tried = {each.move for each in rk.levers("llama-3-8b", "apple-m4-max", engine="llama.cpp").moves}
    assert "engine vllm" in tried
    assert "engine trtllm" not in tried
    assert "engine trtllm" in {each.move for each in rk.levers("llama-3-8b", "h100-sxm").moves}


@pytest.mark.parametrize(
    ("model", "told", "most"),
    [
        ("deepseek-v4-flash", {"tp": 8}, 256),
        ("deepseek-v4-flash", {"tp": 1, "dp": 8}, 32),  # 256 of all replicas
        ("deepseek-v4-flash", {"tp": 8, "draft": "mtp", "draft_tokens": 1}, 256),  # its own default comes first
        ("deepseek-v4-flash", {"tp": 8, "max_num_seqs": 512}, 512),
        ("deepseek-v4-flash", {"tp": 8, "engine": "vllm"}, 1024),
        ("deepseek-v3.2", {"tp": 8}, 2048),
        ("deepseek-v3.2", {"tp": 8, "draft": "mtp", "draft_tokens": 1}, 48),
        ("deepseek-v3.2", {"tp": 1, "dp": 8, "draft": "mtp", "draft_tokens": 1}, 6),
        ("deepseek-v3", {"tp": 8, "engine": "sglang@0.4.3", "draft": "mtp", "draft_tokens": 1}, 2048),
    ],
)
def test_sglang_runs_few_sequences_of_some_models_and_with_a_draft(model, told, most):
    """deepseek_v4_hook.py and speculative_hook.py of its wheels: 256 and 48, over the attention replicas."""
    given = {"engine": "sglang", "ep": 8 if "dp" in told else 1} | told
    assert deploy(model, "b200-sxm", given).plan.most_sequences == most


@pytest.mark.parametrize(
    ("gpu", "told", "tokens"),
    [
        ("l4", {}, 2048),
        ("h200-sxm", {}, 8192),
        ("b200-sxm", {}, 16384),
        ("mi300x", {}, 16384),
        ("b200-sxm", {"tp": 1, "dp": 4, "ep": 4}, 4096),
        ("h200-sxm", {"tp": 1, "dp": 8, "ep": 8}, 1024),
        ("h200-sxm", {"tp": 1, "dp": 8, "ep": 8, "token_budget": 4096}, 4096),
        ("b200-sxm", {"engine": "sglang@0.4.6"}, 8192),
        ("h200-sxm", {"engine": "sglang@0.4.6", "tp": 1, "dp": 4, "ep": 4}, 2048),
        ("h200-sxm", {"engine": "vllm", "tp": 1, "dp": 4, "ep": 4}, 8192),
    ],
)
def test_sglangs_chunks_are_larger_on_large_gpus_and_shared_by_attention_replicas(gpu, told, tokens):
    assert deploy("qwen3-30b-a3b", gpu, {"engine": "sglang", "tp": 2} | told).plan.token_budget == tokens


@pytest.mark.parametrize(
    ("model", "gpu", "told", "kv"),
    [
        ("deepseek-v3.2", "b200-sxm", {}, Dtype.FP8),
        ("deepseek-v3.2", "b200-sxm", {"kv": "bf16"}, Dtype.BF16),
        ("deepseek-v3.2", "h200-sxm", {}, Dtype.BF16),
        ("deepseek-v3.2", "mi300x", {}, Dtype.BF16),
        ("deepseek-v3", "b200-sxm", {}, Dtype.BF16),  # without an indexer
        ("deepseek-v3.2", "b200-sxm", {"engine": "vllm"}, Dtype.BF16),
    ],
)
def test_sglang_keeps_indexed_latents_in_fp8_on_blackwell(model, gpu, told, kv):
    assert deploy(model, gpu, {"engine": "sglang", "tp": 8} | told).plan.precision.kv is kv


@pytest.mark.parametrize(
    ("model", "engine", "gpu", "wider"),
    [
        ("deepseek-v4-flash", "sglang", "h100-sxm", 0.0),  # its calibrated experts in 16 bit take 5.4 ms a layer
        ("deepseek-v4-flash", "vllm", "h100-sxm", 1.2),  # and those of vLLM 2.8 ms
        ("deepseek-v4-flash", "trtllm", "h100-sxm", 2.2),  # nobody measured it
        ("gpt-oss-120b", "sglang", "h100-sxm", 2.2),
        ("gpt-oss-120b", "vllm", "h100-sxm", 2.2),
        ("deepseek-v4-flash", "vllm", "b200-sxm", 0.0),  # units of 4 bit
        ("gpt-oss-120b", "vllm", "a100-sxm-80gb", 0.0),
    ],
)
def test_experts_without_biases_are_unpacked_by_faster_kernels(model, engine, gpu, wider):
    """43 layers of 16,384 tokens and six experts, 1.237 TFLOP each on four H100: 4.86 ms with Marlin (nsys)."""
    given = {"engine": engine, "tp": 4}
    plan = deploy(model, gpu, given).plan
    assert plan.costs.dequantised == pytest.approx(wider, abs=0.01)
    if (model, gpu) == ("deepseek-v4-flash", "h100-sxm") and engine != "trtllm":
        timed = plan.apart(Batch.prefill(1.0, 16384.0), plan.costs)
        experts = sum(float(each.expected) for each in timed if each.kernel.family == "moe")
        assert experts == pytest.approx(43 * 4.86e-3, rel=0.15)


def test_windows_of_deepseek_v4_have_a_tenth_of_sglangs_pool():
    """A token: 43 windows of 512 bytes; 21 of them compressed by 4, with 2·2·(512 + 128) fp32 of 8 in 128 tokens.

    Its share of that is a tenth. Without windows it is a quarter of 512 and of an index key (132) in 21 layers, and a
    128th of 512 in 20. A prompt of 10,000 tokens keeps the 1,808 of its last chunk there, and one of 1,024 all of them.
    """
    given = {"engine": "sglang", "tp": 4}
    memory = deploy("deepseek-v4-flash", "h200-sxm", given).predictor.memory
    windows = 43 * 512 + 21 * 2 * 2 * (512 + 128) * 4 * 8 / 128
    token = 21 * (512 + 132) / 4 + 20 * 512 / 128 + 0.1 * windows
    assert memory.stages[0].layout.law.bytes(100_000.0) == pytest.approx(100_000 * token, rel=1e-2)
    room, _ = memory.window_tokens
    assert room == pytest.approx(0.1 * float(memory.evaluate(1.0, 1000.0, 1000.0).kv_pool_bytes) / token, rel=1e-3)
    for prompt, kept in ((1024.0, 1024), (8192.0, 8192), (10_000.0, 1808)):
        assert memory.window_places(prompt) == room // (kept + 256)
    whole = deploy("deepseek-v4-flash", "h200-sxm", given | {"prefix_caching": "off"}).predictor.memory
    assert whole.window_places(8192.0) == whole.window_tokens[0] // (128 + 256)
    assert deploy("deepseek-v4-flash", "h200-sxm", given | {"kv": "bf16"}).plan.precision.kv is Dtype.BF16
    other = deploy("deepseek-v4-flash", "h200-sxm", {"engine": "vllm", "tp": 4})
    assert other.predictor.memory.window_places(8192.0) == math.inf


def test_windows_limit_the_requests_of_a_played_load():
    """Of 16,000 tokens 7,808 stay; the pool of all others has room for far more."""
    given = {"engine": "sglang", "tp": 4, "isl": 16_000, "osl": 500, "concurrency": 400}
    scene = rk.estimate("deepseek-v4-flash", "h200-sxm", **given)
    memory = deploy("deepseek-v4-flash", "h200-sxm", {"engine": "sglang", "tp": 4}).predictor.memory
    assert scene.load is not None
    assert scene.load.running <= memory.window_places(16_000.0) < 256


def test_a_draft_keeps_the_overlap_scheduler():
    """SGLang turns the prefix cache of recurrent states off for it."""
    asked = {"tp": 2, "batch": 8, "draft": "mtp", "draft_tokens": 3, "acceptance": 0.8}
    old, new = (
        rk.estimate("qwen3-next-80b-a3b", "b200-sxm", engine=f"sglang@{each}", **asked) for each in ("0.5.13", "0.5.14")
    )
    assert old.tpot_ms == new.tpot_ms


@pytest.mark.parametrize(("model", "told", "whole"), [
    ("llama-3-8b", {}, True), ("llama-3-8b", {"weights": "fp8"}, False), ("mixtral-8x7b", {"tp": 2}, False),
])  # fmt: skip
def test_what_was_measured_whole_says_nothing_of_other_formats_and_kinds(model, told, whole):
    found = rk.estimate(model, "gaudi2", engine="optimum-habana", batch=8, **told)
    low, high = found.interval["tpot_ms"]
    assert (high / low < 1.6) is whole


def test_a_load_is_not_surer_than_its_steps():
    """SGLang's experts on MI300X: nine of ten steps lie within 1.86 times, and so do tokens under load at best."""
    found = rk.estimate("minimax-m2", "mi300x", engine="sglang@0.5.7", tp=4, concurrency=16, isl=500, osl=500)
    low, high = found.interval["tpot_ms"]
    assert high / low > 1.86**2 * 0.98


@pytest.mark.parametrize(("engine", "widened"), [("vllm@0.6.1", "intervals of prompts"), ("vllm", "used, intervals")])
def test_the_note_on_stand_ins_says_which_intervals_they_widen(engine, widened):
    assert f"{widened} widened" in " ".join(rk.estimate("llama-3-8b", "mi300x", engine=engine, batch=8).warnings)


def test_a_version_that_nobody_knows_is_named_beside_the_newest_one():
    """Of a static batch, under load and in a plan; a patch of the newest version read is known."""
    unknown = "vllm 9.9.9 is not known: memory and costs are those of 0.33.0, the newest version known"
    asked = {"engine": "vllm@9.9.9", "gpu": "h100-sxm"}
    load = asked | {"rate": 2.0, "requests": 40}
    answers = rk.estimate("llama-3-8b", **asked), rk.estimate("llama-3-8b", **load), rk.simulate("llama-3-8b", **load)
    assert all(unknown in each.warnings for each in answers)
    found = rk.plan("llama-3-8b", rate=2.0, tp=1, token_budget=8192, max_num_seqs=256, engine=asked["engine"])
    assert unknown in found.warnings and any("loads of vllm 9.9.9 were not measured" in each for each in found.warnings)
    assert not any("not known" in each for each in rk.estimate("llama-3-8b", engine="vllm@0.33.4").warnings)
