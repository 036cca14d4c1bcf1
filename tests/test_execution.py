"""What an engine adds to its kernels: hand-worked sums, bounds and directions."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rooflinekit as rk
from rooflinekit.estimation.estimator import read_deployment, resolve
from rooflinekit.load.answer import Load, play_load
from rooflinekit.load.lengths import Fixed
from rooflinekit.model.serving.flight import front_end
from rooflinekit.model.step import launches_of
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.engine import StepCosts
from rooflinekit.specs.engines import engine_names, engine_version_of, load_engine, step_range

MICRO = 1e-6


def plan_with(costs: StepCosts, **scenario: object):
    plan = resolve("llama-3-8b", "h100-sxm", read_deployment(dict(scenario)), None).plan
    return replace(plan, engine=replace(plan.engine, costs=costs))


def decode_time(costs: StepCosts, batch: float = 32.0, **scenario: object) -> float:
    return float(plan_with(costs, **scenario).time(Batch.decode(batch, 2048.0)).expected)


def test_host_work_is_a_sum_by_hand():
    bare = decode_time(StepCosts())
    costs = StepCosts(step=300 * MICRO, sequence=10 * MICRO, layer=5 * MICRO)
    # 300 + 32 sequences x 10 + 32 layers x 5 = 780 us
    assert decode_time(costs) - bare == pytest.approx(780 * MICRO)


def test_ranks_and_collectives_cost_only_where_several_accelerators_take_part():
    costs = StepCosts(ranks=100 * MICRO, sequence_ranks=2 * MICRO, collective=3 * MICRO)
    assert decode_time(costs) == decode_time(StepCosts())
    # tp2: 100 + 32 x 2 + 3 us for each of 64 all-reduces, the embedding's and the logits' gather
    added = decode_time(costs, tp=2) - decode_time(StepCosts(), tp=2)
    assert added == pytest.approx((100 + 64 + 3 * 66) * MICRO)


def test_prompts_beyond_the_budget_turn_the_loop_several_times():
    costs = StepCosts(step=1e-3)
    for tokens, passes in ((2048.0, 1), (8192.0, 1), (8193.0, 2), (65536.0, 8)):
        batch = Batch.prefill(1.0, tokens)
        added = float(plan_with(costs).time(batch).expected) - float(plan_with(StepCosts()).time(batch).expected)
        assert added == pytest.approx(passes * 1e-3), tokens


def test_grouped_heads_read_again_lengthen_decode_attention_alone():
    def attention(costs: StepCosts) -> float:
        step = plan_with(costs).time(Batch.decode(32.0, 2048.0))
        return sum(float(t.expected) for t in step.kernels if t.kernel.family == "attention_decode")

    # Llama-3-8B: 8 KV heads for 32 query heads, so 1 + 0.4 x (1 - 1/4) = 1.3
    assert attention(StepCosts(grouped=0.4)) == pytest.approx(1.3 * attention(StepCosts()))
    added = attention(StepCosts(grouped=0.4)) - attention(StepCosts())
    assert decode_time(StepCosts(grouped=0.4)) - decode_time(StepCosts()) == pytest.approx(added)


def test_dequantised_experts_take_longer_arithmetic_where_no_tensor_core_reads_four_bits():
    prompt, few = Batch.prefill(1.0, 8192.0), Batch.decode(4.0, 1024.0)

    def experts(gpu: str, dequantised: float, batch: Batch) -> Any:
        plan = resolve("gpt-oss-120b", gpu, read_deployment({}), None).plan
        engine = replace(plan.engine, costs=StepCosts(dequantised=dequantised))
        rested = replace(plan.system.accelerator, power=None)  # no limit slows what takes longer
        step = replace(plan, engine=engine, system=replace(plan.system, accelerator=rested)).time(batch)
        return next(timed for timed in step.kernels if timed.kernel.family == "moe")

    plain, wider = (experts("h200-sxm", much, prompt) for much in (0.0, 2.0))
    assert wider.compute == pytest.approx(3.0 * plain.compute)
    assert wider.expected > plain.expected
    assert wider.expected == pytest.approx(plain.overhead + wider.compute)
    # a few sequences have hardly more than a row for each of their experts, and 16 are computed: on the same die alike
    once, same = (experts(gpu, 0.0, few) for gpu in ("h200-sxm", "h100-sxm"))
    assert once.compute > 12.0 * float(once.kernel.flops) / 989.4e12
    assert once.compute == pytest.approx(same.compute, rel=0.15)
    assert once.expected < experts("h200-sxm", 2.0, few).expected
    own = {gpu: resolve("gpt-oss-120b", gpu, read_deployment({}), None).plan.costs.dequantised
           for gpu in ("b200-sxm", "a100-sxm-80gb", "l40s", "h200-sxm")}  # fmt: skip
    assert [gpu for gpu, much in own.items() if much] == ["h200-sxm"]  # operands from registers: Ampere, Ada


@pytest.mark.parametrize(("isl", "osl", "requests", "seconds"), [(4000, 134, 500, 269.4), (2000, 98, 500, 123.9)])
def test_experts_of_4_bits_on_ampere_take_the_time_of_published_queues(isl, osl, requests, seconds):
    """gpt-oss-120b on an A100 under vLLM 0.11.0, all requests at once (GPUStack, performance lab): seconds in all."""
    told = read_deployment({"engine": "vllm@0.11.0", "max_model_len": 32768})
    predictor = resolve("gpt-oss-120b", "a100-sxm-80gb", told, None).predictor
    found = play_load(predictor, Load(Fixed(isl), Fixed(osl), users=requests, requests=requests))
    assert found.played.makespan == pytest.approx(seconds, rel=0.1)


def test_dequantised_experts_are_routed_by_kernels_of_their_own_under_trtllm():
    """36 layers of gpt-oss-120b x 60 us on an H200, whose board rests meanwhile; nothing on a B200."""
    for gpu, layers in (("h200-sxm", 36), ("b200-sxm", 0)):
        plan = resolve("gpt-oss-120b", gpu, read_deployment({"engine": "trtllm"}), None).plan
        free = replace(plan.engine, costs=replace(plan.costs, routed=0.0))
        batch = Batch.decode(8.0, 1024.0)
        added = plan.time(batch).expected - replace(plan, engine=free).time(batch).expected
        assert float(added) == pytest.approx(layers * 60 * MICRO, rel=0.02, abs=1e-12)
        launches = [launches_of(plan.kernels(batch), replace(plan.costs, routed_launches=each)) for each in (0, 20)]
        assert launches[1] - launches[0] == 20 * 36


def test_launches_of_experts_blocks_and_latent_keys_are_counted_where_the_host_waits_for_them():
    plan = resolve("deepseek-v3", "h200-sxm", read_deployment({"tp": 8}), None).plan

    def prompt(**launches: int) -> float:
        costs = StepCosts(launch=1e-3, **launches)  # every step waits for its launches
        return float(replace(plan, engine=replace(plan.engine, costs=costs)).time(Batch.prefill(1.0, 64.0)).expected)

    alone = prompt()
    assert prompt(expert_launches=6) - alone == pytest.approx(58 * 5e-3)  # of 61 layers three have no experts
    assert prompt(latent_launches=8) - alone == pytest.approx(61 * 7e-3)
    for model, layers in (("deepseek-v3.2", 61), ("minimax-m3", 57)):  # sparse attention, with its indexer
        kernels = resolve(model, "b200-sxm", read_deployment({"tp": 8, "weights": "nvfp4"}), None).plan.kernels
        batch, few, many = Batch.prefill(1.0, 8192.0), StepCosts(), StepCosts(latent_launches=8)
        assert launches_of(kernels(batch), many) - launches_of(kernels(batch), few) == layers * 2 * 3
        scaled = StepCosts(block_launches=2)  # inputs of NVFP4 are scaled by blocks too
        assert launches_of(kernels(batch), scaled) > launches_of(kernels(batch), few) + 4 * layers
    # qkv_a, q_b, kv_b, o in 61 layers; gate and up, down of 3 dense layers and of 58 shared experts, and of the routed
    assert prompt(block_launches=2) - alone == pytest.approx((4 * 61 + 2 * 61 + 2 * 58) * 1e-3)


def test_a_prompt_launches_the_chunks_of_a_recurrence_one_by_one():
    """36 delta rules of Qwen3-Next, 19 kernels each in a prompt, and 20 of Kimi-Linear, 25; one in a decode step."""
    for model, layers, each in (("qwen3-next-80b-a3b", 36, 19), ("kimi-linear-48b-a3b", 20, 25)):
        plan = resolve(model, "b200-sxm", read_deployment({"tp": 2}), None).plan
        for batch, launches in ((Batch.prefill(1.0, 64.0), each * layers), (Batch.decode(1.0, 64.0), layers)):
            rules = [kernel for kernel in plan.kernels(batch) if kernel.name == "delta_rule"]
            assert launches_of(rules, plan.costs) == launches


def test_experts_of_4_bits_are_two_calls_where_they_compute_in_them():
    """36 layers of gpt-oss-120b on a B200, whose experts are one call behind that which quantises their inputs."""

    def launches(gpu: str) -> int:
        plan = resolve("gpt-oss-120b", gpu, read_deployment({"engine": "sglang@0.5.6"}), None).plan
        experts = [kernel for kernel in plan.kernels(Batch.prefill(1.0, 64.0)) if kernel.family == "moe"]
        return launches_of(experts, plan.costs)

    assert (launches("b200-sxm"), launches("h200-sxm")) == (36 * 2, 36 * 6)


def test_the_gate_of_a_shared_expert_is_computed():
    """Qwen3-Next: a product of 2,048 weights a token and layer on every rank, and a pass over the shared expert's."""
    plan = resolve("qwen3-next-80b-a3b", "b200-sxm", read_deployment({"tp": 2}), None).plan
    kernels = {kernel.name: kernel for kernel in plan.kernels(Batch.decode(8.0, 64.0))}
    assert kernels["shared_gate"].count == kernels["shared_gated"].count == 48
    assert float(kernels["shared_gate"].flops) == 2 * 8 * 2048
    without = resolve("deepseek-r1", "b200-sxm", read_deployment({"tp": 8}), None).plan
    assert not any(kernel.name == "shared_gate" for kernel in without.kernels(Batch.decode(8.0, 64.0)))


def test_prompts_that_fit_into_a_graph_launch_their_attention_alone():
    """Two launches in each of 32 layers, attention and its cache write, up to twice the sequences that may run."""

    def prompt(tokens: float, **settings: int) -> float:
        plan = resolve("llama-3-8b", "h200-sxm", read_deployment({"engine": "vllm", **settings}), None).plan
        costs = StepCosts(launch=1e-3, graph_tokens=512.0)  # every step waits for its launches
        return float(replace(plan, engine=replace(plan.engine, costs=costs)).time(Batch.prefill(1.0, tokens)).expected)

    assert prompt(512.0) == pytest.approx(64e-3)
    assert prompt(513.0) > 200e-3
    assert prompt(128.0, max_num_seqs=64) == pytest.approx(64e-3)
    assert prompt(130.0, max_num_seqs=64) > 200e-3
    assert prompt(128.0, eager=True) > 200e-3
    assert prompt(1024.0, token_budget=256) == pytest.approx(4 * 64e-3)  # every step of it replays graphs


def test_a_decode_step_is_padded_to_the_size_of_its_graph():
    """300 sequences in a graph of 512: products have 512 rows, and attention the keys of 300. Prompts have no graph."""
    plain, padded = plan_with(StepCosts()), plan_with(StepCosts(padded=(256.0, 512.0)))
    batch = Batch.decode(300.0, 2048.0)
    own, larger = ({each.name: each for each in plan.kernels(batch)} for plan in (plain, padded))
    grown = {name for name in own if larger[name].flops > own[name].flops * 1.01}
    assert {"o_proj", "lm_head", "activation"} <= grown
    assert all(own[name] == larger[name] for name in own if own[name].family == "attention_decode")
    rows = larger["o_proj"].flops / own["o_proj"].flops
    assert rows == pytest.approx(512 / 300)
    for unpadded in (Batch.decode(512.0, 9.0), Batch.decode(513.0, 9.0), batch | Batch.prefill(1.0, 64.0)):
        assert padded.kernels(unpadded) == plain.kernels(unpadded)
    assert plan_with(StepCosts(padded=(512.0,)), eager=True).kernels(batch) == plain.kernels(batch)


def test_eager_execution_is_bound_by_its_launches():
    eager, graphs = StepCosts(launch=26 * MICRO, graphs=False), StepCosts(launch=26 * MICRO)
    launches = sum(k.count for k in plan_with(graphs).kernels(Batch.decode(1.0, 128.0)))
    assert decode_time(eager, 1.0) == pytest.approx(launches * 26 * MICRO)
    assert decode_time(graphs, 1.0) < decode_time(eager, 1.0)
    # a large batch keeps the accelerator busy for longer than the launches take
    assert decode_time(eager, 256.0) == pytest.approx(decode_time(graphs, 256.0))


def test_ranks_join_for_a_norm_over_all_heads():
    """MiniMax-M2 norms all 48 query heads at once, so each of 62 layers has a sum over ranks; Qwen3 norms each head."""

    def joined(model: str, tp: int) -> list[int]:
        kernels = resolve(model, "b200-sxm", read_deployment({"tp": tp}), None).plan.kernels(Batch.decode(4.0, 64.0))
        return [int(kernel.count) for kernel in kernels if kernel.name == "qk_norm_reduce"]

    assert joined("minimax-m2", 4) == [62]
    assert joined("minimax-m2", 1) == joined("qwen3-32b", 4) == joined("command-r-plus", 4) == []
    plan = resolve("minimax-m2", "b200-sxm", read_deployment({"tp": 4}), None).plan
    late, none = (
        replace(plan, engine=replace(plan.engine, costs=StepCosts(collective=wait))).time(Batch.decode(4.0, 64.0))
        for wait in (1e-3, 0.0)
    )
    assert float(late.expected) - float(none.expected) == pytest.approx((2 * 62 + 2) * 1e-3)  # not those of the norm


def test_an_eager_step_costs_what_its_host_takes():
    """Qwen3-14B AWQ on an A100, --enforce-eager: 20.6 ms a token (vLLM issue 20469); an H100's host launches faster.

    Whisper on an MI355X: 2.15 ms a token without graphs (vLLM PR 48664); nearly all of it is host work, whose costs are
    fitted on NVIDIA's machines, 12 % more.
    """
    asked = {"weights": "int4", "engine": "vllm@0.9.1", "isl": 16000, "osl": 200}
    graphs, eager, faster = (
        rk.estimate("qwen3-14b", "a100-sxm-80gb", **asked, **more).tpot_ms
        for more in ({}, {"eager": True}, {"eager": True, "host": "h100-server"})
    )
    assert eager == pytest.approx(20.6, rel=0.05)
    assert graphs <= faster < eager
    whisper = rk.estimate("whisper-large-v3-turbo", "mi355x", engine="vllm", isl=60, osl=2, eager=True)
    assert whisper.tpot_ms == pytest.approx(2.15, rel=0.12)
    with pytest.raises(rk.UnknownNameError, match="h100-server"):
        rk.estimate("qwen3-14b", host="h100")
    with pytest.raises(rk.InputError, match="makes no sense"):
        rk.estimate("qwen3-14b", host="0.1")


def test_prompts_wait_for_the_launches_of_the_usual_host():
    """Prompts of 64 tokens have nothing to do but to be launched: 44 us on an A100's host for 26 on an H100's."""
    asked = {"engine": "sglang@0.5.6", "isl": 64, "osl": 2}
    usual, faster = (
        rk.estimate("llama-3.1-70b", "a100-sxm-80gb", tp=8, **asked, **more).ttft_ms
        for more in ({}, {"host": "h100-server"})
    )
    assert usual - faster == pytest.approx(966 * 2.3 * 18e-3, rel=0.02)


def test_a_launch_of_a_prompt_step_takes_longer_by_its_factor():
    plain, longer = (plan_with(StepCosts(launch=26 * MICRO, graphs=False, prompt=prompt)) for prompt in (1.0, 2.3))
    prompt = Batch.prefill(1.0, 16.0)
    launches = sum(k.count for k in plain.kernels(prompt))
    assert longer.time(prompt).expected == pytest.approx(2.3 * launches * 26 * MICRO)
    assert plain.time(prompt).expected == pytest.approx(launches * 26 * MICRO)
    assert longer.time(Batch.decode(1.0, 128.0)).expected == plain.time(Batch.decode(1.0, 128.0)).expected


def test_no_front_end_is_longer_than_it_can_be():
    """HTTP, tokeniser and scheduler: one user and a short prompt wait some ten milliseconds for a small model."""
    for engine in ("vllm", "sglang", "trtllm"):
        costs = load_engine(engine).costs
        assert costs.request + costs.hop <= 0.01
        alone = rk.estimate("llama-3-8b", "h200-sxm", engine=engine, concurrency=1, isl=512, osl=64)
        static = rk.estimate("llama-3-8b", "h200-sxm", engine=engine, isl=512, osl=64)
        assert alone.ttft_ms == pytest.approx(static.ttft_ms + 1e3 * (front_end(costs, 512) + costs.hop), rel=0.02)
        assert 15.0 < alone.ttft_ms < 45.0  # servers answer in 20 to 40 ms


def test_flag_eager_reaches_the_step():
    slow = float(resolve("llama-3-8b", "h100-sxm", read_deployment({"eager": True}), None).plan
                 .time(Batch.decode(1.0, 128.0)).expected)  # fmt: skip
    fast = float(
        resolve("llama-3-8b", "h100-sxm", read_deployment({}), None).plan.time(Batch.decode(1.0, 128.0)).expected
    )
    assert slow > 1.2 * fast


COSTS = st.builds(
    StepCosts, step=st.floats(0, 5e-3), sequence=st.floats(0, 1e-4), layer=st.floats(0, 1e-4), hidden=st.floats(0, 1),
    grouped=st.floats(0, 3),
)  # fmt: skip


@given(costs=COSTS, batch=st.integers(1, 300))
def test_no_time_is_below_its_bound_and_every_cost_adds(costs, batch):
    for size in (Batch.decode(float(batch), 1000.0), Batch.prefill(float(batch), 300.0)):
        timed = PLAN_BARE.time(size)
        ran = replace(PLAN_BARE, engine=replace(PLAN_BARE.engine, costs=costs)).time(size)
        for before, after in zip(timed.kernels, ran.kernels[: len(timed.kernels)], strict=True):
            assert after.expected >= after.bound * (1 - 1e-12)
            assert after.low <= after.expected * (1 + 1e-12) and after.expected <= after.high * (1 + 1e-12)
            if before.kernel.family != "attention_decode":
                assert after.expected <= before.expected * (1 + 1e-12)  # hiding launches only helps
        assert ran.bound == timed.bound
        assert ran.low <= ran.expected <= ran.high


PLAN_BARE = plan_with(StepCosts())


def test_the_parts_of_a_mean_step_carry_the_engine_once():
    costs = StepCosts(step=1e-3, layer=1e-5, sequence=1e-5, launch=26 * MICRO, graphs=False)
    plan = plan_with(costs)
    batch = Batch.decode(4.0, 500.0)
    split = plan.time(batch, grows=True).expected + plan.time(batch, grows=False).expected
    assert split == pytest.approx(plan.time(batch).expected)


def test_the_bound_has_no_engine():
    bound = resolve("llama-3-8b", "h100-sxm", read_deployment({}), "none").plan
    ideal = resolve("llama-3-8b", "h100-sxm", read_deployment({"engine": "ideal"}), None).plan
    batch = Batch.decode(8.0, 512.0)
    assert bound.time(batch).expected == ideal.time(batch).expected == bound.time(batch).bound


@pytest.mark.parametrize("name", [name for name in engine_names() if name not in ("ideal", "llama.cpp")])
def test_every_cost_has_its_source_and_spread(name):
    engine = load_engine(name)
    named = {entry.quantity.split(" ")[0] for entry in engine.provenance}
    for cost in ("step", "layer", "collective"):
        assert f"engine.{cost}" in named
        assert engine.costs.spread[cost] >= 0.0


@pytest.mark.parametrize(
    ("engine", "text", "version"),
    [
        ("vllm", "0.12.0", "0.12.0"),
        ("trtllm", "1.2.0rc6.post2", "1.2.0"),
        ("trtllm", "vLLM ~0.4-0.6 / TRT-LLM ~0.9-0.11 (2024, not stated)", "0.9"),
        ("vllm", "vLLM ~0.4-0.6 / TRT-LLM ~0.9-0.11 (2024, not stated)", "0.4"),
        ("sglang", "0.2.x Aug 2024", "0.2"),
        ("sglang", "gpt-oss-dev", None),
        ("vllm", "", None),
        ("gpt-fast", "2024-09", None),
    ],
)
def test_versions_are_read_from_free_text(engine, text, version):
    assert engine_version_of(engine, text) == version


def test_a_date_means_what_was_released_by_then():
    assert step_range("vllm", engine_version_of("vllm", "2024")) == "0.1"
    assert step_range("vllm", engine_version_of("vllm", "2025-12")) == "0.8"
    assert step_range("vllm", engine_version_of("vllm", "2026-01")) == "0.14"
    assert step_range("trtllm", engine_version_of("trtllm", "main 2025 (commit abc)")) == "0.19"


def test_a_chunk_that_is_not_the_last_needs_no_logits():
    part, last = (PLAN_BARE.time(Batch.chunk(1.0, 512.0, 512.0, last)) for last in (False, True))
    names = {t.kernel.name for t in last.kernels} - {t.kernel.name for t in part.kernels}
    assert names == {"lm_head", "sampling"}
    assert 0.0 < float(part.expected) < float(last.expected)


def test_the_bound_and_a_cpu_keep_how_an_engine_works_and_not_what_it_costs():
    bound = resolve("llama-3-8b", "h100-sxm", read_deployment({"engine": "vllm@0.6"}), "none").plan.costs
    assert not bound.mixes and bound.request == bound.step == bound.launch == 0.0 and bound.interval == 1.0
    assert load_engine("vllm@0.6").costs.request > 0.0


def test_replicas_that_share_nothing_do_not_wait_for_each_other():
    costs = StepCosts(ranks=1e-3, sequence_ranks=1e-4)
    assert decode_time(costs, dp=2) == decode_time(StepCosts(), dp=2)
