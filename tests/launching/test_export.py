"""Deployments as commands: every flag known to the version, the same pool of memory, nothing that does not fit."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from test_flags import declared
from tiny_gguf import write_llama

import rooflinekit as rk
from rooflinekit.decision.launching.launch import Launch, Server
from rooflinekit.decision.launching.target import memory_share
from rooflinekit.specs.engines import load_engine, load_flags

VERSIONS = [f"{engine}@{version}" for engine in ("vllm", "sglang", "trtllm") for version in load_flags(engine).read]


def options(server: Server) -> dict[str, str | None]:
    """The options of a server's command, parsed as an argument parser would."""
    args = server.args()
    words = args[len(server.program) + len(server.positional) :]
    found: dict[str, str | None] = {}
    for word, after in pairwise((*words, "-")):
        if word.startswith("-") and not word.lstrip("-")[:1].isdigit():
            assert word not in found, f"{word} appears twice"
            found[word] = None if after.startswith("-") else after
    return found


def keys(config: dict[str, Any], prefix: str = "") -> set[str]:
    """The dotted names of the leaves of a configuration file."""
    leaves: set[str] = set()
    for key, value in config.items():
        leaves |= keys(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}"}
    return leaves


def check(made: Launch) -> None:
    """Every option and key is one of the table at that version, and every option one of the engine's sources."""
    for server in made.servers:
        engine, version = server.prediction.engine, server.prediction.version
        table = load_flags(engine)
        named = set(options(server))
        assert {flag for flag in named if not table.known(flag, version)} == set()
        if version in table.read and engine != "trtllm":
            assert {flag for flag in named if not declared(engine, flag, version)} == set()
        if server.config_name:
            config = yaml.safe_load(made.files[server.config_name])
            assert {key for key in keys(config) if not table.known(key, version)} == set()


SCENARIOS = st.fixed_dictionaries(
    {
        "engine": st.sampled_from(VERSIONS),
        "model": st.sampled_from(["llama-3-8b", "qwen3-30b-a3b", "deepseek-v2-lite", "gpt-oss-20b", "gemma-2-9b"]),
        "gpu": st.sampled_from(["h100-sxm", "b200-sxm", "l40s"]),
        "calibration": st.just("none"),
    },
    optional={
        "tp": st.sampled_from([2, 4]),
        "pp": st.sampled_from([2]),
        "dp": st.sampled_from([2, 8]),
        "ep": st.sampled_from([2, 4, 8]),
        "batch": st.sampled_from([4, 700, 3000]),
        "isl": st.sampled_from([64, 3000]),
        "cached": st.just(32),
        "kv": st.sampled_from(["fp8", "int8", "nvfp4", "bf16", "fp16"]),
        "weights": st.sampled_from(["fp8", "fp8_block", "int4", "bf16", "fp16", "nvfp4"]),
        "token_budget": st.sampled_from([512, 20_000]),
        "max_num_seqs": st.sampled_from([8, 600]),
        "max_model_len": st.sampled_from([2048, 8192]),
        "memory_fraction": st.sampled_from([0.5, 0.87]),
        "block_size": st.sampled_from([16, 64]),
        "eager": st.just(True),
        "redundant_experts": st.sampled_from([2, 8]),
        "draft": st.sampled_from(["ngram", "eagle", "eagle3", "medusa", "mtp"]),
        "role": st.sampled_from(["prefill"]),
    },
)


def export(scenario: dict[str, Any]) -> Launch:
    """A scenario, alone or as both halves of a split."""
    role = scenario.pop("role", None)
    if scenario.get("draft"):
        scenario |= {"draft_tokens": 2, "acceptance": 0.7}
    if role is None:
        return rk.launch(**scenario)
    half = {"scenario": scenario, "replicas": 2}
    return rk.launch(plan={"best": {"prefill": half, "decode": half}, "candidates": []})


@settings(max_examples=40, deadline=None)
@given(SCENARIOS)
def test_every_exported_flag_is_one_of_the_version(scenario: dict[str, Any]) -> None:
    try:
        made = export(scenario)
    except (rk.InputError, rk.DoesNotFitError):
        return
    check(made)


@pytest.mark.parametrize("engine", [*VERSIONS, "vllm@0.7.3"])
def test_the_plain_deployment_exports_at_every_version(engine: str) -> None:
    check(rk.launch("llama-3-8b", engine=engine))
    check(rk.launch("llama-3-8b", engine=engine, eager=True, tp=2))


@pytest.mark.parametrize("fraction", [0.55, 0.83, None])
@pytest.mark.parametrize("engine", ["vllm@0.9.2", "vllm@0.19", "vllm@0.33.0", "sglang@0.5.9", "trtllm@1.2.1"])
@pytest.mark.parametrize("scenario", [{}, {"tp": 2, "pp": 2}, {"draft": "ngram", "draft_tokens": 3, "acceptance": 0.6}])
def test_the_fraction_gives_back_the_pool(engine: str, fraction: float | None, scenario: dict[str, Any]) -> None:
    """Fraction -> bytes by the engine's rule (the memory model) -> the pool that was exported."""
    made = rk.launch("llama-3-8b", engine=engine, memory_fraction=fraction, batch=16, **scenario)
    (server,) = made.servers
    written = {setting.flag: setting.value for setting in server.settings}
    flag = load_flags(server.prediction.engine).find("memory", server.prediction.version)
    assert flag is not None
    share = written[flag.spelling]
    told = {key: server_value(server, key) for key in ("context", "sequences", "tokens")}
    again = rk.estimate(
        "llama-3-8b", engine=engine, memory_fraction=share, batch=16, max_model_len=told["context"],
        max_num_seqs=told["sequences"], token_budget=told["tokens"], **scenario,
    )  # fmt: skip
    rounding = 1e-4 * again.memory.capacity_bytes
    assert again.memory.kv_pool_bytes == pytest.approx(server.prediction.kv_pool_bytes, abs=rounding)
    assert share == pytest.approx(fraction or load_engine(engine).memory.fraction, abs=1e-4)


def server_value(server: Server, concept: str) -> int | None:
    """What a server was told for a concept."""
    flag = load_flags(server.prediction.engine).find(concept, server.prediction.version)
    values = {setting.flag: setting.value for setting in server.settings}
    value = values.get(flag.spelling) if flag else None
    return None if value is None else int(value)


def test_the_three_rules_by_hand() -> None:
    """80 GB, 16 of weights, 2 of activations, 1 outside, 0.5 of context, 0.5 of graphs: a pool of 40 GB."""
    memory = rk.estimate("llama-3-8b").memory
    parts = {"capacity_bytes": 80e9, "weight_bytes": 16e9, "activation_bytes": 2e9, "non_torch_bytes": 1e9,
             "context_bytes": 0.5e9, "graph_bytes": 0.5e9, "kv_pool_bytes": 40e9}  # fmt: skip
    memory = type(memory)(**{name: parts.get(name, getattr(memory, name)) for name in memory.__dataclass_fields__})
    newest = load_engine("vllm").memory  # pays for graphs, not for the context
    assert memory_share(newest, memory).fraction == pytest.approx((16 + 2 + 1 + 0.5 + 40) / 80, abs=1e-4)
    assert memory_share(load_engine("vllm", "0.8.5").memory, memory).fraction == pytest.approx(59.5 / 80, abs=1e-4)
    assert memory_share(load_engine("sglang").memory, memory).fraction == pytest.approx(57 / 79.5, abs=1e-4)
    assert memory_share(load_engine("trtllm").memory, memory).fraction == pytest.approx(40 / 60, abs=1e-4)


class TestFit:
    def test_what_does_not_fit_is_never_exported(self) -> None:
        with pytest.raises(rk.DoesNotFitError, match="nothing is exported"):
            rk.launch("llama-3-70b")
        with pytest.raises(rk.InputError, match="never exported"):
            rk.launch("llama-3-70b", allow_oom=True)

    def test_nor_is_one_part_of_a_plan(self) -> None:
        fits, does_not = {"scenario": {"model": "llama-3-8b"}}, {"scenario": {"model": "llama-3-70b"}}
        with pytest.raises(rk.DoesNotFitError):
            rk.launch(plan={"best": {"fleet": [fits, does_not]}, "candidates": []})

    def test_the_longest_sequence_is_the_models_if_the_pool_holds_one(self) -> None:
        (small,) = rk.launch("llama-3-8b").servers
        assert server_value(small, "context") == 8192
        (long,) = rk.launch("llama-3.1-8b", "l4", isl=4000, osl=500).servers
        assert server_value(long, "context") == 4500  # one of 131072 tokens needs 16 GiB more
        with pytest.raises(rk.DoesNotFitError):
            rk.launch("llama-3.1-8b", "l4", max_model_len=131_072)

    @pytest.mark.parametrize(
        ("scenario", "message"),
        [
            ({"isl": 9000}, "exceeds llama-3-8b's maximum context of 8192"),
            ({"max_model_len": 9000}, "exceeds llama-3-8b's maximum context of 8192"),
            ({"max_model_len": 1000}, "exceeds max_model_len 1000"),
            ({"max_num_seqs": 300, "token_budget": 256}, "token budget of at least as many"),
            ({"cp": 2}, "cp=2 cannot be exported"),
            ({"kv_policy": "window:512"}, "kv_policy window:512 cannot be exported"),
            ({"engine": "ideal"}, "no server settings of ideal"),
            ({"engine": "vllm@9.0"}, "not known"),
            ({"engine": "trtllm@0.17"}, "not known"),
            ({"kv": "int8", "engine": "sglang"}, "does not take int8"),
            ({"nonsense": 1}, "unknown option 'nonsense'"),
            ({"dp": 2, "engine": "trtllm"}, "Use tp=1, or replicas"),
        ],
    )
    def test_what_an_engine_would_refuse_is_refused(self, scenario: dict[str, Any], message: str) -> None:
        with pytest.raises(rk.InputError, match=message):
            rk.launch("llama-3-8b", **scenario)

    @pytest.mark.parametrize(
        ("engine", "value"),
        [("vllm", "deepep_low_latency"), ("sglang", "deepep"), ("vllm@0.11.0", None), ("trtllm", None)],
    )
    def test_an_exchange_has_a_flag_or_a_note(self, engine: str, value: str | None) -> None:
        answer = rk.launch("deepseek-v3", "h200-sxm", dp=8, ep=8, all_to_all="deepep", engine=engine)
        given = options(answer.servers[0])
        told = given.get("--all2all-backend") or given.get("--moe-a2a-backend")
        name = engine.partition("@")[0]
        assert told == value
        unknown = f"all_to_all=deepep has no flag that is known: see that {name} chooses it"
        assert (unknown in answer.notes) is (value is None)
        assert any("low-latency kernels for prompts" in note for note in answer.notes) is (engine == "vllm")

    def test_servers_of_prompts_exchange_with_deepeps_normal_kernels(self) -> None:
        scenario = {"model": "deepseek-v3", "gpu": "h200-sxm", "dp": 8, "ep": 8, "all_to_all": "deepep"}
        answer = export(scenario | {"role": "prefill"})
        kinds = {server.role: options(server)["--all2all-backend"] for server in answer.servers}
        assert kinds == {"prefill": "deepep_high_throughput", "decode": "deepep_low_latency"}


class TestFlags:
    def test_the_checkpoints_format_needs_no_flag(self) -> None:
        assert "--quantization" not in options(rk.launch("deepseek-v3", "h200-sxm", tp=8).servers[0])
        assert "--quantization" not in options(rk.launch("gpt-oss-20b").servers[0])

    def test_a_server_quantises_what_it_can(self) -> None:
        assert options(rk.launch("llama-3-8b", weights="fp8").servers[0])["--quantization"] == "fp8"
        made = rk.launch("llama-3-8b", weights="int4")
        assert made.servers[0].positional == ("/path/to/llama-3-8b-int4",)
        assert any("/path/to/llama-3-8b-int4" in note for note in made.notes)
        made = rk.launch("llama-3-8b", weights="fp8", engine="trtllm")
        assert made.servers[0].positional == ("/path/to/llama-3-8b-fp8",)

    def test_a_cast_is_said(self) -> None:
        assert options(rk.launch("llama-3-8b", weights="fp16").servers[0])["--dtype"] == "float16"

    @pytest.mark.parametrize(
        ("engine", "spelling"), [("vllm", ("--kv-cache-dtype", "fp8")), ("sglang", ("--kv-cache-dtype", "fp8_e4m3"))]
    )
    def test_the_cache_format_in_the_engines_word(self, engine: str, spelling: tuple[str, str]) -> None:
        assert options(rk.launch("llama-3-8b", kv="fp8", engine=engine).servers[0])[spelling[0]] == spelling[1]

    def test_a_section_of_the_file_repeats_the_fraction_that_it_would_reset(self) -> None:
        made = rk.launch("llama-3-8b", kv="fp8", engine="trtllm", memory_fraction=0.7)
        assert made.servers[0].config["kv_cache_config"] == {"dtype": "fp8", "free_gpu_memory_fraction": 0.7}

    def test_expert_parallelism_spans_all_ranks_in_vllm(self) -> None:
        found = options(rk.launch("qwen3-30b-a3b", tp=2, dp=2, ep=4).servers[0])
        assert "--enable-expert-parallel" in found
        with pytest.raises(rk.DeploymentError, match="use ep=1 or ep=4"):
            rk.launch("qwen3-30b-a3b", tp=2, dp=2, ep=2)

    def test_attention_dp_lies_inside_tp_in_sglang(self) -> None:
        found = options(rk.launch("qwen3-30b-a3b", tp=2, dp=4, ep=8, engine="sglang", max_num_seqs=50).servers[0])
        assert (found["--tp-size"], found["--attn-dp-size"], found["--ep-size"]) == ("8", "4", "8")
        assert found["--max-running-requests"] == "200"  # of all ranks together
        older = options(rk.launch("qwen3-30b-a3b", dp=4, engine="sglang@0.5.9").servers[0])
        assert (older["--tp-size"], older["--dp-size"]) == ("4", "4")
        assert "--enable-dp-attention" in older
        dense = options(rk.launch("llama-3-8b", dp=4, engine="sglang").servers[0])
        assert (dense.get("--tp-size"), dense["--dp-size"]) == (None, "4")  # whole copies

    def test_speculation(self) -> None:
        drafted = {"draft_tokens": 3, "acceptance": 0.7}
        found = options(rk.launch("llama-3-70b", tp=4, draft="ngram", **drafted).servers[0])
        assert found["--speculative-config"] == '{"method":"ngram","num_speculative_tokens":3}'
        found = options(rk.launch("llama-3-70b", tp=4, draft="llama-3-8b", engine="sglang", **drafted).servers[0])
        assert found["--speculative-num-draft-tokens"] == "4"
        assert found["--speculative-draft-model-path"] == "meta-llama/Meta-Llama-3-8B"
        with pytest.raises(rk.DeploymentError, match="does not take medusa"):
            rk.launch("llama-3-70b", tp=4, draft="medusa", **drafted)

    def test_prompts_are_cut_only_when_an_old_version_is_told(self) -> None:
        assert "--max-num-batched-tokens" not in options(rk.launch("llama-3-8b", engine="vllm@0.6.6").servers[0])
        told = options(rk.launch("llama-3-8b", engine="vllm@0.6.6", token_budget=1024).servers[0])
        assert told["--max-num-batched-tokens"] == "1024"
        assert "--enable-chunked-prefill" in told


@pytest.mark.parametrize("weights", ["fp8_block", "nvfp4", "bf16"])
def test_a_hybrid_is_never_told_of_more_sequences_than_it_has_blocks_for_their_states(weights):
    # vllm-project/recipes 831: "max_num_seqs (1024) exceeds available Mamba cache blocks (939)" (1011, and 556 at 0.95)
    measured = {"fp8_block": 939, "nvfp4": 1011, "bf16": 556}[weights]
    scenario = {"model": "qwen3.5-27b", "gpu": "rtx-pro-6000-blackwell", "weights": weights, "isl": 1000, "osl": 100}
    made = rk.launch(**scenario | ({"memory_fraction": 0.95} if weights == "bf16" else {}))
    told = int(options(made.servers[0])["--max-num-seqs"] or 0)
    assert 0 < told <= rk.estimate(**scenario).memory.kv_blocks
    assert told < measured
    assert any("a first start, which compiles, may have fewer" in note for note in made.notes)
    assert not any("a first start" in note for note in rk.launch("llama-3-8b").notes)
    with pytest.raises(rk.DoesNotFitError, match=r"max_num_seqs 5000: .* use at most \d+"):
        rk.launch(**scenario | {"max_num_seqs": 5000, "token_budget": 8192})


@pytest.mark.parametrize(
    ("engine", "told", "flags"),
    [
        (
            "vllm@0.14.1",
            {"api_servers": 4, "stream_interval": 8},
            {"--api-server-count": "4", "--stream-interval": "8"},
        ),
        (
            "sglang@0.5.9",
            {"api_servers": 2, "stream_interval": 30, "scheduler_recv_interval": 10},
            {"--tokenizer-worker-num": "2", "--stream-interval": "30", "--scheduler-recv-interval": "10"},
        ),
        ("vllm@0.14.1", {}, {}),
    ],
)
def test_the_front_end_and_the_looks_at_the_queue_are_told(engine, told, flags):
    (server,) = rk.launch("llama-3-8b", concurrency=64, engine=engine, **told).servers
    fronts = ("--api-server-count", "--tokenizer-worker-num", "--stream-interval", "--scheduler-recv-interval")
    assert {name: value for name, value in options(server).items() if name in fronts} == flags


def test_gathered_prompts_are_a_key_of_trtllm_and_nothing_elsewhere():
    told = {"concurrency": 64, "batch_wait": 40}
    made = rk.launch("llama-3-8b", engine="trtllm@1.2.1", **told)
    assert yaml.safe_load(next(iter(made.files.values())))["batch_wait_timeout_iters"] == 40
    with pytest.raises(rk.DeploymentError, match="no setting that is known for this: steps for which prompts are gath"):
        rk.launch("llama-3-8b", engine="vllm@0.14.1", **told)


class TestLlamaServer:
    def test_every_option_is_one_of_the_version_and_slots_share_the_context(self) -> None:
        made = rk.launch("llama-3-8b", "rtx-4090", engine="llama.cpp", weights="q4_k_m", kv="q8_0")
        check(made)
        found = options(made.servers[0])
        assert made.commands[0][:3] == ("llama-server", "--model", "/path/to/llama-3-8b-q4_k_m.gguf")
        assert (found["--ctx-size"], found["--parallel"]) == (str(4 * 8192), "4")
        assert (found["--cache-type-k"], found["--cache-type-v"]) == ("q8_0", "q8_0")
        assert any("by a GGUF file of llama-3-8b in q4_k_m" in note for note in made.notes)

    def test_a_gguf_file_is_its_own_checkpoint(self, tmp_path: Path) -> None:
        write_llama(path := tmp_path / "tiny.gguf")
        assert rk.launch(path, "rtx-4090", engine="llama.cpp").commands[0][:3] == ("llama-server", "--model", str(path))

    def test_a_slot_is_as_long_as_all_have_room_for(self) -> None:
        asked: dict[str, Any] = {"engine": "llama.cpp", "weights": "q4_k_m", "isl": 1024, "osl": 256}
        made = rk.launch("llama-3-8b", "rtx-4090", max_num_seqs=100, **asked)
        context, room = int(options(made.servers[0])["--ctx-size"] or 0), made.servers[0].prediction.kv_pool_tokens
        assert 100 * 1280 <= context <= room < 100 * 8192
        assert any("a slot has" in note for note in made.notes)
        with pytest.raises(rk.DoesNotFitError, match=r"200 slots of 1280 tokens do not fit: .*--max-num-seqs 118"):
            rk.launch("llama-3-8b", "rtx-4090", max_num_seqs=200, **asked)

    def test_what_the_server_allocates_fits(self) -> None:
        """llama.cpp rounds the tokens of each slot up to 256s (n_ctx_seq in src/llama-context.cpp)."""
        asked: dict[str, Any] = {"engine": "llama.cpp", "kv": "q8_0", "max_num_seqs": 50, "osl": 256}
        server = rk.launch("llama-3-8b", "rtx-4090", isl=1024, **asked).servers[0]
        a_slot = int(options(server)["--ctx-size"] or 0) / 50
        assert 50 * math.ceil(a_slot / 256) * 256 <= server.prediction.kv_pool_tokens < 50 * 11 * 256
        with pytest.raises(rk.DoesNotFitError, match=r"50 slots of 2816 tokens do not fit: .*--max-num-seqs 48"):
            rk.launch("llama-3-8b", "rtx-4090", isl=2400, **asked)  # 2656, for which there would be room

    def test_what_the_host_keeps_is_said(self) -> None:
        asked: dict[str, Any] = {"engine": "llama.cpp", "weights": "q4_k_m"}
        half = options(rk.launch("llama-3-8b", "rtx-4090", offload_layers=10, **asked).servers[0])
        assert half["--n-gpu-layers"] == str(32 + 1 - 10)  # docs/home.md: the LM head counts as the last layer
        experts = options(rk.launch("gpt-oss-20b", "rtx-4090", engine="llama.cpp", n_cpu_moe=4).servers[0])
        assert (experts["--n-gpu-layers"], experts["--n-cpu-moe"]) == ("all", "4")
        two = options(rk.launch("llama-3-8b", "rtx-4090", pp=2, token_budget=4096, **asked).servers[0])
        assert (two["--split-mode"], two["--batch-size"], two["--ubatch-size"]) == ("layer", "4096", "4096")

    @pytest.mark.parametrize(("asked", "said"), [
        ({"tp": 2}, "gives each device some of the layers; use --pp"), ({"kv": "fp8"}, "does not take fp8"),
        ({"draft": "ngram", "draft_tokens": 3, "acceptance": 0.7}, "no setting that is known for this"),
        ({"engine": "llama.cpp@b6400"}, "settings of llama.cpp b6400 are not known"),
    ])  # fmt: skip
    def test_what_it_would_refuse_is_refused(self, asked: dict[str, Any], said: str) -> None:
        given = {"engine": "llama.cpp", "weights": "q4_k_m"} | asked
        with pytest.raises(rk.InputError, match=said):
            rk.launch("llama-3-8b", "rtx-4090", **given)


@pytest.mark.parametrize(("draft", "sequences", "method"), [({}, "2048", None), ({"draft": "mtp"}, "48", "NEXTN")])
def test_a_draft_has_the_places_that_were_predicted(draft: dict[str, Any], sequences: str, method: str | None) -> None:
    told = {"tp": 8, "engine": "sglang", "concurrency": 100, "requests": 200} | draft
    (server,) = rk.launch("deepseek-v3.2", "b200-sxm", **told).servers
    found = options(server)
    assert found["--max-running-requests"] == sequences
    assert found.get("--speculative-algorithm") == method


def test_a_cache_that_is_not_the_servers_own_is_said() -> None:
    """SGLang keeps DeepSeek-V4 in FP8 unless told, and takes no algorithm but EAGLE for its draft."""
    told = {"tp": 4, "engine": "sglang", "batch": 8, "draft": "mtp"}
    for kv, word in (({}, "fp8_e4m3"), ({"kv": "bf16"}, "bfloat16")):
        (server,) = rk.launch("deepseek-v4-flash", "h200-sxm", **told, **kv).servers
        found = options(server)
        assert (found["--kv-cache-dtype"], found["--speculative-algorithm"]) == (word, "EAGLE")
