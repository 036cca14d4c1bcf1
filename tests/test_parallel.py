"""Splits: what is cut, what is copied, what is sent; identities for every model and hand numbers for single cases."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import rooflinekit as rk
from rooflinekit.estimation.estimator import estimate, read_deployment, resolve
from rooflinekit.model.kernels.collective import tiers
from rooflinekit.model.kernels.moe import Experts
from rooflinekit.model.kernels.operation import elements as width_of
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.step import Plan, check_deployment, make_plan
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.engine import EngineSettings
from rooflinekit.model.types.errors import DeploymentError, InputError
from rooflinekit.model.types.hardware import System
from rooflinekit.model.types.model import Attention, LatentAttention
from rooflinekit.model.types.workload import Workload
from rooflinekit.specs import load_accelerator, load_model, load_system, names
from rooflinekit.specs.calibration import load_calibration
from rooflinekit.specs.engines import load_engine

H100 = load_accelerator("h100-sxm").value
H200 = load_accelerator("h200-sxm").value
# On every rank of a layer, by operation; queries, keys and values are counted by part.
WHOLE = {
    "residual_norm", "final_norm", "router", "qkv_a_proj", "kv_a_proj", "latent_norm", "qk_norm", "embedding_norm",
    "expert_select", "q_norm", "token_proj", "token_input_norm", "index_k_proj", "index_q_proj", "index_scores",
    "expert_down_latent", "expert_up_latent", "altup_proj", "altup_unproj", "altup_predict", "altup_correct",
    "altup_proj_scale", "altup_unproj_scale", "bypass_down", "bypass_up", "bypass_norm", "token_gate",
    "token_gate_proj", "token_up_proj", "token_norm", "expert_norm", "shared_gate",
}  # fmt: skip
SUMMED = {"o_proj", "down_proj", "Experts"}  # over ranks, each of which adds the bias
ROWS = {"embedding", "lm_head"}  # cut, but rounded up to whole rows


def attends(name):
    return all(isinstance(layer.mixer, (Attention, LatentAttention)) for layer in load_model(name).value.layer_counts)


MODELS = [name for name in names("model") if attends(name)]


@st.composite
def splits(draw):
    return Deployment(
        tp=draw(st.sampled_from([1, 2, 4, 8, 16])),
        dp=draw(st.sampled_from([1, 2, 4])),
        cp=draw(st.sampled_from([1, 2])),
        pp=draw(st.sampled_from([1, 2, 3])),
        ep=draw(st.sampled_from([1, 2, 4, 8, 16])),
        sequence_parallel=draw(st.booleans()),
        activations=Dtype.BF16,
    )


def plan(name, deployment, gpu=H200, system="hgx-h200"):
    built = load_system(system, gpu).value if system else System.of(gpu)
    return make_plan(load_model(name).value, deployment, built, None)


def valid_plan(name, deployment):
    try:
        return plan(name, deployment)
    except DeploymentError:
        assume(False)


def held(built):
    """Weights of every operation on one rank of each stage, together."""
    found = Counter()
    for op, count in built.operations.items():
        weights = op.weights
        named = getattr(op, "core", op)  # an attention whose context is shared
        found[getattr(named, "name", type(named).__name__)] += count * sum(w.count for w in weights)
    return found


def key_value_share(built, op):
    return width_of(tuple(part for part in op.parts if part[0] in ("K", "V"))) / op.n


def qkv_copies(name, tp):
    """Copies of the fused projection over tp ranks: keys and values of a head are copied once there are more ranks."""
    for layer in load_model(name).value.layer_counts:
        mixer = layer.mixer
        if isinstance(mixer, Attention):
            q, kv = tp * mixer.q_rank or mixer.heads * mixer.head_dim, mixer.kv_heads * mixer.head_dim
            yield (q * (2 if mixer.gated else 1) + 2 * kv * max(1, tp // mixer.kv_heads)), q, kv


@given(name=st.sampled_from(MODELS), deployment=splits())
def test_weights_are_conserved_but_for_counted_copies(name, deployment):
    split, base = held(valid_plan(name, deployment)), held(plan(name, Deployment(activations=Dtype.BF16)))
    replicas = deployment.dp * deployment.cp
    positions = {"Embedding"} if load_model(name).value.position_rows else set()
    for op, elements in base.items():
        # cut in part: norms of heads that span them; the one key of an index beside its queries
        if not elements or op in {"qkv_proj", "qk_norm", "index_qk_proj"} | positions:
            continue
        over_ranks = split[op] * deployment.stage
        if op == "Experts":
            expected = elements
        elif op in WHOLE or op == "Parameters":
            expected = elements * deployment.stage
        else:
            expected = elements * replicas
        # biases of what is summed over ranks are on each of them; vocabularies are rounded up
        assert over_ranks == pytest.approx(expected, rel=2e-2 if op in ROWS | SUMMED else 2e-3), op
        assert over_ranks >= expected * (1 - 1e-9)


@given(name=st.sampled_from([n for n in MODELS if len(list(qkv_copies(n, 1))) == 1]), deployment=splits())
def test_keys_and_values_are_copied_once_there_are_more_ranks_than_heads(name, deployment):
    model = load_model(name).value
    assume(not any(layer.mixer.keys_are_values for layer in model.layer_counts))
    split, base = held(valid_plan(name, deployment)), held(plan(name, Deployment(activations=Dtype.BF16)))
    ((copied, _, _),), ((whole, _, _),) = qkv_copies(name, deployment.tp), qkv_copies(name, 1)
    expected = base["qkv_proj"] * copied / whole * deployment.dp * deployment.cp
    assert split["qkv_proj"] * deployment.stage == pytest.approx(expected, rel=1e-9)


@given(name=st.sampled_from(MODELS), deployment=splits(), decode=st.booleans())
def test_work_is_conserved_but_for_counted_copies(name, deployment, decode):
    built, base = valid_plan(name, deployment), plan(name, Deployment(activations=Dtype.BF16))
    dp, tp, cp = deployment.dp, deployment.tp, deployment.cp
    own = Batch.decode(16.0, 4096.0) if decode else Batch.prefill(16.0, 512.0)
    all_of_it = Batch.decode(16.0 * dp, 4096.0) if decode else Batch.prefill(16.0 * dp, 512.0)
    done, whole = flops(built, own), flops(base, all_of_it)
    for op, work in whole.items():
        if not work or op in ("qkv_proj", "rope", "qk_norm", "sampling", "embedding", "index_qk_proj"):
            continue
        copies = tp if op in WHOLE else cp if op == "kv_b_proj" else 1.0
        if op == "index_scores" and "index_qk_proj" in whole:  # heads of the index go with those of the layer
            mixers = (layer.mixer for layer in load_model(name).value.layer_counts)
            copies = max(1.0, tp / next(mixer.indexer.heads for mixer in mixers if getattr(mixer, "indexer", None)))
        passes = ("residual_norm", "final_norm", "embedding_norm", "altup_predict", "altup_correct")
        if op in passes and deployment.sequence_parallel:
            copies = 1.0
        if op == "lm_head" and not decode:
            copies = cp  # all last tokens are with one of the context ranks, which is the one shown
        assert done[op] * deployment.stage == pytest.approx(work * copies, rel=5e-3), op


def flops(built, batch):
    """FLOP by kernel, of the mean rank."""
    found = Counter()
    for op, count in built.operations.items():
        for kernel in op.kernels(step_of(built, batch), count):
            fuller = op.routing.imbalance(kernel.shape.tokens) if isinstance(op, Experts) else 1.0
            found[kernel.name] += kernel.count * kernel.flops / fuller
    return found


def step_of(built, batch):
    from rooflinekit.model.kernels.operation import Step

    split = built.deployment
    return Step(batch, built.precision.stream, built.precision.kv, split.dp * split.cp, split.cp)


@given(name=st.sampled_from(MODELS), pp=st.sampled_from([1, 2]), decode=st.booleans())
def test_one_rank_a_layer_sends_nothing_but_to_the_next_stage(name, pp, decode):
    built = plan(name, Deployment(pp=pp, activations=Dtype.BF16))
    kernels = built.kernels(Batch.decode(4.0, 100.0) if decode else Batch.prefill(4.0, 100.0))
    assert {kernel.name for kernel in kernels if kernel.network_bytes} == ({"pipeline_send"} if pp > 1 else set())


def kernels(built, batch):
    return {kernel.name: kernel for kernel in built.kernels(batch)}


# --- all-reduce ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("algorithm", "times"), [
    ("auto", 14 / 8), ("two_shot", 14 / 8), ("ring", 14 / 8),  # 2·7/8 of the payload
    ("one_shot", 7.0),  # all of it to each of the others
    ("in_switch", 9 / 8),  # up once, and its eighth of the sum
])  # fmt: skip
def test_bytes_of_an_all_reduce(algorithm, times):
    built = plan("llama-3-70b", Deployment(tp=8, all_reduce=algorithm))
    reduce = kernels(built, Batch.decode(32.0, 100.0))["all_reduce"]
    assert (reduce.count, reduce.network_bytes, reduce.nic_bytes) == (160, times * 32 * 8192 * 2, 0.0)
    assert built.system.transfer_time(reduce) == pytest.approx(times * 32 * 8192 * 2 / 450e9)


def test_sequence_parallelism_sends_as_much_and_norms_a_share():
    plain = plan("llama-3-70b", Deployment(tp=8))
    split = plan("llama-3-70b", Deployment(tp=8, sequence_parallel=True))
    batch = Batch.prefill(1.0, 4096.0)
    before, after = kernels(plain, batch), kernels(split, batch)
    halves = (after["sequence_gather"], after["sequence_scatter"])
    assert sum(half.network_bytes for half in halves) == before["all_reduce"].network_bytes
    # two a layer; the last gather stands before the LM head, and the first scatter behind the embedding
    assert [half.count for half in halves] == [161, 160]
    assert after["embedding_reduce"].network_bytes == before["embedding_reduce"].network_bytes / 2
    assert after["residual_norm"].activation_bytes == before["residual_norm"].activation_bytes / 8
    assert after["residual_norm"].weight_bytes == before["residual_norm"].weight_bytes


# --- two tiers ----------------------------------------------------------------------------------------------------


def test_a_hierarchical_all_reduce_by_hand():
    # 16 ranks in two nodes of 8: reduce-scatter and all-gather inside, 2·7/8; between nodes 2·1/2 of an eighth
    reduce = kernels(plan("llama-3-70b", Deployment(tp=16)), Batch.decode(32.0, 100.0))["all_reduce"]
    payload = 32 * 8192 * 2
    assert reduce.network_bytes - reduce.nic_bytes == pytest.approx(14 / 8 * payload)
    assert reduce.nic_bytes == pytest.approx(payload / 8)
    assert load_system("hgx-h200", H200).value.transfer_time(reduce) == pytest.approx(
        max(14 / 8 * payload / 450e9, payload / 8 / 50e9)
    )


@given(domains=st.integers(2, 16), kind=st.sampled_from(["all_reduce", "all_gather", "all_to_all"]))
def test_no_accelerator_sends_more_over_its_nic_than_flat(domains, kind):
    flat = tiers(kind, 8 * domains, 8 * domains, 1)  # every accelerator a node of its own
    both = tiers(kind, 8 * domains, 8 * domains, 8)
    assert both.nic <= flat.nic + 1e-12
    assert flat.links == 0.0


def test_a_wider_domain_keeps_traffic_inside():
    rack = load_accelerator("gb200").value
    split = Deployment(tp=1, dp=64, ep=64)
    inside = kernels(plan("deepseek-v3", split, rack, "gb200-nvl72"), Batch.decode(8.0, 100.0))
    outside = kernels(plan("deepseek-v3", split), Batch.decode(8.0, 100.0))
    assert inside["expert_dispatch"].nic_bytes == 0.0
    assert outside["expert_dispatch"].nic_bytes > 0.0


def test_a_box_without_nvlink_takes_pcie():
    card = load_accelerator("h100-pcie").value
    built = plan("llama-3-8b", Deployment(tp=4), card, "h100-pcie-box")
    reduce = kernels(built, Batch.prefill(1.0, 4096.0))["all_reduce"]
    assert built.system.transfer_time(reduce) == pytest.approx(2 * 3 / 4 * 4096 * 4096 * 2 / 63e9)


# --- experts ------------------------------------------------------------------------------------------------------


def test_dispatch_and_combine_by_hand():
    # Mixtral, 8 replicas with one expert each, 10 tokens: each goes to 2 of 8 ranks, 2·7/8 of them other ones
    sent = kernels(plan("mixtral-8x7b", Deployment(dp=8, ep=8)), Batch.decode(10.0, 100.0))
    assert sent["expert_dispatch"].network_bytes == pytest.approx(10 * 2 * 7 / 8 * 4096 * 2)
    assert sent["expert_combine"].network_bytes == pytest.approx(10 * 2 * 7 / 8 * 4096 * 2)


def test_fp8_dispatch_sends_a_byte_and_a_scale():
    sent = kernels(plan("deepseek-v3", Deployment(dp=8, ep=8, dispatch=Dtype.FP8)), Batch.decode(10.0, 100.0))
    wide = sent["expert_combine"].network_bytes
    assert sent["expert_dispatch"].network_bytes == pytest.approx(wide * (1 + 4 / 128) / 2)


def test_over_two_nodes_a_token_goes_once_to_the_other():
    # Mixtral, 16 ranks: each expert cut in two, one expert pair of ranks; each node has 4 of 8 experts, and a token
    # needs the other node unless both its experts are here: 1 - C(4, 2)/C(8, 2) = 11/14
    sent = kernels(plan("mixtral-8x7b", Deployment(dp=16, ep=8)), Batch.decode(10.0, 100.0))["expert_dispatch"]
    assert sent.nic_bytes == pytest.approx(10 * 11 / 14 * 4096 * 2)


def test_within_one_replica_the_all_reduce_combines():
    done = kernels(plan("deepseek-v3", Deployment(tp=8, ep=8)), Batch.decode(64.0, 100.0))
    assert not {"expert_dispatch", "expert_combine", "expert_gather"} & set(done)
    routed = done["experts"].shape.routed
    assert done["experts"].flops == pytest.approx(2 * routed * 3 * 7168 * 2048)
    assert routed > 64 * 8 / 8  # the fullest rank


def test_redundant_experts_take_memory_and_level_the_load():
    skewed = {"dp": 8, "ep": 8, "skew": 1.0}
    plain = plan("deepseek-v3", Deployment(**skewed))
    spread = plan("deepseek-v3", Deployment(**skewed, redundant_experts=32))
    batch = Batch.decode(64.0, 100.0)
    assert held(spread)["Experts"] == held(plain)["Experts"] * 288 / 256
    assert kernels(spread, batch)["experts"].flops < 0.8 * kernels(plain, batch)["experts"].flops


def test_attention_replicas_split_the_latent_cache_and_tensor_ranks_copy_it():
    tensor, data = (plan("deepseek-v3", Deployment(**{key: 8})) for key in ("tp", "dp"))
    read = [kernels(built, Batch.decode(own, 4096.0))["attention"].kv_read_bytes for built, own in
            ((tensor, 64.0), (data, 8.0))]  # fmt: skip
    assert read[0] == 8 * read[1] == 64 * 4096 * 576 * 2


# --- pipeline -----------------------------------------------------------------------------------------------------


def test_one_stage_has_no_bubble_and_sends_nothing():
    work = Workload(8.0, 512.0, 64.0)
    with pytest.raises(DeploymentError, match="microbatches=4 need stages"):
        plan("llama-3-8b", Deployment(microbatches=4))
    one = Predictor.of(plan("llama-3-8b", Deployment()))
    assert one.ttft(work).expected == one.plan.time(one.prefill_batch(work)).expected
    assert one.plan.busiest_share(one.prefill_batch(work)) == (1.0, 1.0)


def test_stages_keep_the_order_of_their_operations():
    built = plan("llama-3-70b", Deployment(pp=2))
    for stage, _ in built.stages:
        places = [list(built.operations).index(op) for op in stage.operations]
        assert places == sorted(places)


@pytest.mark.parametrize(("stages", "parts"), [(2, 2), (2, 8), (4, 4), (4, 16)])
def test_the_bubble_of_equal_stages(stages, parts):
    # 80 equal layers: m microbatches of one sequence take (m + p - 1)/p of what one takes through all stages
    built = Predictor.of(plan("llama-3-70b", Deployment(pp=stages, microbatches=parts)))
    work = Workload(float(parts), 2048.0, 64.0)
    through = built.plan.time(built.prefill_batch(work)).expected
    assert built.ttft(work).expected == pytest.approx(through * (parts + stages - 1) / stages, rel=0.02)


@given(batch=st.integers(1, 64), parts=st.sampled_from([1, 2, 4, 8]))
def test_a_token_goes_through_all_stages(batch, parts):
    built = Predictor.of(plan("llama-3-70b", Deployment(pp=4, microbatches=parts)))
    work = Workload(float(batch), 256.0, 32.0, context=300.0)
    through = built.plan.time(built.decode_batch(work, 300.0)).expected
    assert built.tpot(work).expected >= through * (1 - 1e-12)
    # no more microbatches are in flight than stages, so nobody waits but for the last stage, which has the LM head
    assert built.tpot(work).expected <= through * 1.15


def test_filled_stages_raise_the_rate():
    rates = []
    for parts in (1, 2, 4):
        built = Predictor.of(plan("llama-3-70b", Deployment(pp=4, microbatches=parts)))
        rates.append(1.0 / built.tpot(Workload(256.0, 512.0, 64.0, context=4096.0)).expected)
    assert rates == sorted(rates)


def test_a_stage_boundary_crosses_nodes_where_its_ranks_do():
    # stages of 4 ranks on nodes of 8: the first boundary is inside a node, the second between nodes
    built = plan("llama-3-70b", Deployment(tp=4, pp=4))
    sends = [k for k in built.kernels(Batch.decode(8.0, 100.0)) if "send" in k.name]
    assert {(k.name, k.count, k.network_bytes, k.nic_bytes) for k in sends} == {
        ("pipeline_send", 2, 8 * 8192 / 4 * 2, 0.0), ("pipeline_send_nic", 1, 8 * 8192 / 4 * 2, 8 * 8192 / 4 * 2)
    }  # fmt: skip


# --- context ------------------------------------------------------------------------------------------------------


def test_context_parallel_prefill_by_hand():
    batch = Batch.prefill(1.0, 8192.0)
    one, four = (kernels(plan("llama-3-8b", Deployment(cp=cp)), batch) for cp in (1, 4))
    assert four["qkv_proj"].flops == one["qkv_proj"].flops / 4
    assert four["attention"].flops == one["attention"].flops / 4  # opposite pieces: all ranks score as many pairs
    assert four["attention"].kv_read_bytes == one["attention"].kv_read_bytes
    assert four["kv_append"].kv_write_bytes == one["kv_append"].kv_write_bytes / 4
    # keys and values of everyone: 3/4 of 8192 x 2 x 8 x 128 x 2 B
    assert four["context_gather"].network_bytes == 3 / 4 * 8192 * 2 * 8 * 128 * 2


def test_context_parallel_decode_by_hand():
    batch = Batch.decode(8.0, 65536.0)
    one, four = (kernels(plan("llama-3-8b", Deployment(cp=cp)), batch) for cp in (1, 4))
    assert four["attention"].kv_read_bytes == one["attention"].kv_read_bytes / 4
    assert four["attention"].flops == one["attention"].flops / 4
    assert four["attention"].activation_bytes == one["attention"].activation_bytes
    assert four["qkv_proj"].shape.m == 2  # 8 sequences, two of them this rank's
    assert four["context_queries"].network_bytes == 3 / 4 * 8 * 32 * 128 * 2
    assert four["context_results"].network_bytes == 3 / 4 * 8 * (32 * 128 * 2 + 32 * 4)


def test_context_ranks_share_the_cache():
    needed = [estimate("llama-3-8b", "h200-sxm", cp=cp, isl=32768, osl=2, batch=2, allow_oom=True).memory.kv_bytes
              for cp in (1, 2, 4)]  # fmt: skip
    assert needed[0] == pytest.approx(2 * needed[1], rel=0.01) == pytest.approx(4 * needed[2], rel=0.01)


# --- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "system", "split", "said"), [
    ("llama-3-8b", "", {"tp": 16}, "exceeds the 8 accelerators that nvlink4 joins in a h200-sxm system; use tp = 1"),
    ("llama-3-8b", "hgx-h200", {"tp": 12}, "tp=12 fills no whole domains of 8; use tp = 1, 2, 4, 8, 16 or 32"),
    ("llama-3-8b", "", {"tp": 3}, "tp=3 does not divide llama-3-8b's 32 attention heads; use tp = 1, 2, 4 or 8"),
    ("llama-3-8b", "", {"pp": 33}, "use pp <= 32"),
    ("llama-3-8b", "", {"ep": 2}, "llama-3-8b has no experts; use ep=1"),
    ("llama-3-8b", "", {"skew": 1.0}, "llama-3-8b has no experts; leave skew out"),
    ("llama-3-8b", "", {"microbatches": 2}, "need stages; use pp > 1 or microbatches=1"),
    ("llama-3-8b", "", {"sequence_parallel": True}, "use tp > 1, or leave it out"),
    ("llama-3-8b", "", {"all_reduce": "ring"}, "tp=1 has none; use all_reduce=auto"),
    ("llama-3-8b", "", {"tp": 2, "all_reduce": "in_switch"}, "use auto, one_shot, two_shot, ring (or name a system"),
    ("llama-3-8b", "hgx-h200", {"tp": 16, "all_reduce": "one_shot"}, "use auto, two_shot, ring, in_switch"),
    ("jamba-v0.1", "", {"cp": 2}, "cp=2 cannot split the context of jamba-v0.1's mamba layers; use cp=1"),
    ("deepseek-v3.2", "", {"cp": 2}, "sparse attention; use cp=1"),
    ("mixtral-8x7b", "", {"tp": 4, "ep": 3}, "tp·cp·dp = 4 ranks; use ep = 1, 2 or 4"),
    ("mixtral-8x7b", "", {"redundant_experts": 2}, "with ep=1 every rank holds all experts; use ep > 1"),
    ("mixtral-8x7b", "", {"dp": 8, "ep": 8, "redundant_experts": 3}, "uneven over ep=8 ranks; use 8"),
    ("mixtral-8x7b", "", {"tp": 8, "ep": 8, "dispatch": Dtype.FP8}, "use ep > 1 with dp or cp > 1"),
])  # fmt: skip
def test_a_split_that_does_not_exist_is_refused_with_those_that_do(model, system, split, said):
    built = load_system(system, H200).value if system else System.of(H200)
    with pytest.raises(DeploymentError) as refused:
        check_deployment(load_model(model).value, Deployment(**split), built)
    assert said in str(refused.value)


@pytest.mark.parametrize(("keys", "said"), [
    ({"skew": -1}, "skew must be from 0"),
    ({"skew": "much"}, "skew must be from 0"),
    ({"cp": 0}, "cp must be a whole number of at least 1"),
    ({"redundant_experts": 1.5}, "redundant_experts must be a whole number"),
    ({"all_reduce": "one_shoot"}, "one_shot"),
    ({"sequence_parallel": "perhaps"}, "sequence_parallel must be True or False"),
])  # fmt: skip
def test_senseless_options_are_refused_by_name(keys, said):
    with pytest.raises(InputError, match=said):
        read_deployment(keys)


def test_an_estimate_names_the_split_it_is_for():
    answer = estimate("deepseek-v3", "h200-sxm", system="dgx-h200", dp=16, ep=16, dispatch="fp8", skew=0.5, batch=256)
    assert {key: answer.inputs[key] for key in ("dp", "ep", "gpus", "dispatch", "skew", "system")} == {
        "dp": 16, "ep": 16, "gpus": 16, "dispatch": "fp8", "skew": 0.5, "system": "dgx-h200"
    }  # fmt: skip


BOUND = {"isl": 512, "osl": 32, "calibration": "none", "allow_oom": True}


@pytest.mark.parametrize("gpu", ["a100-sxm-80gb", "h100-sxm", "b200-sxm"])
@pytest.mark.parametrize("name", ["llama-3-8b", "mixtral-8x7b", "gpt-oss-120b", "qwen3-next-80b-a3b", "nemotron-h-56b"])
@pytest.mark.parametrize("batch", [1, 256])
def test_more_ranks_over_nvlink_never_raise_the_bound(name, gpu, batch):
    few, many = (estimate(name, gpu, tp=tp, batch=batch, **BOUND).bound for tp in (1, 2))
    assert many["ttft_ms"] <= few["ttft_ms"]
    assert many["tpot_ms"] <= few["tpot_ms"]


@pytest.mark.parametrize("name", ["llama-3-70b", "mixtral-8x7b", "gpt-oss-120b"])
@pytest.mark.parametrize("split", [{}, {"tp": 8}, {"pp": 2, "microbatches": 2}])
def test_an_accelerator_that_is_faster_at_everything_never_raises_the_bound(name, split):
    found = [estimate(name, gpu, batch=32, **split, **BOUND).bound for gpu in ("a100-sxm-80gb", "h100-sxm", "h200-sxm")]
    for metric in ("ttft_ms", "tpot_ms"):
        times = [bound[metric] for bound in found]
        assert times == sorted(times, reverse=True)


@pytest.mark.parametrize(
    ("name", "gpu", "split"),
    [
        ("qwen3-next-80b-a3b", "h100-sxm", {"pp": 4, "microbatches": 2, "batch": 3, "engine": "vllm@0.8.5"}),
        ("gpt-oss-120b", "trainium2", {"pp": 5, "microbatches": 4, "batch": 8, "isl": 7}),
        ("deepseek-v3", "mi300x", {"tp": 8}),  # a stand-in of a stand-in
    ],
)
def test_intervals_hold_the_time_stay_above_the_bound_and_say_something(name, gpu, split):
    found = estimate(name, gpu, osl=16, allow_oom=True, **split)
    for metric in ("ttft_ms", "tpot_ms"):
        low, high = found.interval[metric]
        time, bound = getattr(found, metric), found.bound[metric]
        assert bound <= low <= time <= high <= 10.0 * time


@pytest.mark.parametrize(
    ("name", "split", "refuses"),
    [
        ("qwen3-235b-a22b", {"tp": 8}, True),  # 1,536/8 = 192 columns
        ("qwen3-235b-a22b", {"tp": 8, "ep": 8}, False),
        ("qwen3-235b-a22b", {"tp": 4}, False),
        ("qwen3-235b-a22b", {"tp": 8, "engine": "trtllm"}, False),
        ("qwen3-32b", {"tp": 8}, False),  # 25,600/8 = 25 · 128
    ],
)
def test_a_split_through_the_blocks_of_fp8_is_named(name, split, refuses):
    warnings = estimate(name, weights="fp8_block", allow_oom=True, **split).warnings
    assert any("refuses this split" in warning for warning in warnings) is refuses


@pytest.mark.parametrize(
    ("gpu", "tp", "told"), [("rtx-4090", 2, "the engine's own"), ("l40s", 4, "NCCL's ring"), ("h100-sxm", 2, "")]
)
def test_the_all_reduce_over_pcie_is_named(gpu, tp, told):
    notes = " ".join(rk.estimate("llama-3.1-8b", gpu, tp=tp).warnings)
    assert told in notes if told else "all-reduce over" not in notes


def test_many_accelerators_on_pcie_reduce_with_nccl():
    """vLLM and SGLang switch their custom all-reduce off for more than two accelerators without NVLink."""
    auto, ring = (rk.estimate("llama-3.1-8b", "l40s", tp=4, all_reduce=name) for name in ("auto", "ring"))
    assert auto.tpot_ms == ring.tpot_ms and auto.inputs["all_reduce"] == "auto"
    two = [rk.estimate("llama-3.1-8b", "l40s", tp=2, all_reduce=name).tpot_ms for name in ("auto", "ring")]
    assert two[0] != two[1]
    linked = [rk.estimate("llama-3.1-8b", "h100-sxm", tp=4, all_reduce=name).tpot_ms for name in ("auto", "ring")]
    assert linked[0] != linked[1]


def test_deepep_needs_replicas_and_whole_experts_on_every_rank():
    model = load_model("deepseek-v3").value
    for split in ({"tp": 8, "ep": 8}, {"dp": 8, "ep": 4}, {"dp": 8, "ep": 1}):
        with pytest.raises(DeploymentError, match="use dp or cp > 1 and ep = tp·cp·dp"):
            check_deployment(model, Deployment(all_to_all="deepep", **split), System.of(H200))
    check_deployment(model, Deployment(all_to_all="deepep", dp=8, ep=8), System.of(H200))


def test_deepep_sends_a_copy_for_each_expert_in_decode_and_for_each_rank_with_prompts():
    """8 of 256 experts over 8 ranks: 7 copies leave in decode, 4.63 in prefill; FP8 with scales there, bf16 back."""
    plan = make_plan(
        load_model("deepseek-v3").value, Deployment(all_to_all="deepep", dp=8, ep=8), System.of(H200), None
    )
    for batch, copies in ((Batch.decode(10.0, 100.0), 7.0), (Batch.prefill(1.0, 10.0), 4.63)):
        sent = {kernel.name: kernel for kernel in plan.kernels(batch) if kernel.family == "exchange"}
        assert sent["expert_dispatch"].network_bytes == pytest.approx(10 * copies * 7168 * 1.03125, rel=1e-3)
        assert sent["expert_combine"].network_bytes == pytest.approx(10 * copies * 7168 * 2.0, rel=1e-3)


class TestTwoBatches:
    """Halves of a step take turns: one computes while the other's tokens travel."""

    @staticmethod
    def plan(level: str | None = "h100-sxm--sglang", **changes: object) -> Plan:
        deployment = Deployment(all_to_all="deepep", dp=72, ep=72, redundant_experts=32, engine="sglang", **changes)
        calibration = load_calibration(level) if level else None
        return make_plan(
            load_model("deepseek-v3").value, deployment, System.of(H100), calibration, load_engine("sglang")
        )

    @given(tokens=st.integers(1, 4000), context=st.integers(1, 5000), prompts=st.booleans())
    def test_a_step_takes_no_less_than_either_alone_and_no_more_than_both_halves(
        self, tokens: int, context: int, prompts: bool
    ) -> None:
        batch = Batch.prefill(2.0, tokens + 0.0) if prompts else Batch.decode(tokens + 0.0, context + 0.0)
        together, apart = self.plan(two_batch=True), self.plan()
        step, halves, whole = together.time(batch), apart.time(batch.half), apart.time(batch)
        if batch.tokens <= (512.0 if prompts else 32.0):  # vLLM's thresholds
            assert step.total == whole.total
            return
        kernels = [timed for timed in halves.kernels if timed.kernel.family != "host"]
        moved = 2.0 * sum(timed.expected for timed in kernels if timed.kernel.family == "exchange")
        computed = 2.0 * sum(timed.expected for timed in kernels) - moved
        found = sum(timed.expected for timed in step.kernels if timed.kernel.family != "host")
        assert max(moved, computed) <= found * (1.0 + 1e-12)
        assert found <= (moved + computed) * (1.0 + 1e-12)
        assert step.total.low <= step.total.expected <= step.total.high
        assert all(timed.bound <= timed.expected for timed in step.kernels)

    @pytest.mark.parametrize("tokens", [64.0, 512.0, 4096.0])
    @pytest.mark.parametrize("gpu", ["h100-sxm", "h800-sxm"])
    def test_the_ends_are_no_less_than_the_wire_or_the_computing_alone(self, gpu: str, tokens: float) -> None:
        """gpt-oss-120b on 128 H800: the bound of a prompt was 29.9 ms, where the wire alone takes 44.4."""
        given = {"all_to_all": "deepep", "dp": 128, "ep": 128, "engine": "sglang"}
        told = [read_deployment({**given, "two_batch": two}) for two in (True, False)]
        plans = [resolve("gpt-oss-120b", gpu, deployment, None).plan for deployment in told]
        for batch in (Batch.decode(tokens, 2050.0), Batch.prefill(tokens / 64.0, 2048.0)):
            step, halves = plans[0].time(batch), plans[1].time(batch.half)
            for end in ("low", "bound"):
                kinds: dict[bool, float] = {True: 0.0, False: 0.0}
                for timed in halves.kernels:
                    if timed.kernel.family != "host":
                        kinds[timed.kernel.family == "exchange"] += 2.0 * getattr(timed, end)
                found = sum(getattr(timed, end) for timed in step.kernels if timed.kernel.family != "host")
                assert found >= max(kinds.values()) * (1.0 - 1e-12)
                assert found <= sum(timed.expected for timed in step.kernels) * (1.0 + 1e-12)

    def test_hidden_is_what_the_other_half_computes(self) -> None:
        """In decode no core moves data, and computing takes longer here: no exchange is seen."""
        batch = Batch.decode(256.0, 2050.0)
        together, apart = self.plan(two_batch=True).time(batch), self.plan().time(batch.half)
        for step, half in zip(together.kernels, apart.kernels, strict=True):
            if step.kernel.family not in ("exchange", "host"):
                assert step.expected == pytest.approx(2.0 * half.expected, rel=1e-12)
        assert sum(timed.expected for timed in together.kernels if timed.kernel.family == "exchange") == 0.0

    def test_published_throughput_of_nine_nodes_lies_inside(self) -> None:
        """SGLang on 96 H100 (lmsys.org, May 2025): 22,282 output tokens/s a node with 256 sequences a GPU, 2,000 in;
        52,300 input tokens/s a node on four others, 16,384 a step. Both ran two-batch overlap and redundant experts.
        """
        decode = self.plan(two_batch=True).time(Batch.decode(256.0, 2050.0)).total
        assert decode.low < 8 * 256 / 22_282 < decode.high
        deployment = Deployment(
            all_to_all="deepep", dp=32, ep=32, redundant_experts=32, engine="sglang", two_batch=True,
            settings=EngineSettings(token_budget=16_384),
        )  # fmt: skip
        calibration = load_calibration("h100-sxm--sglang")
        model, system = load_model("deepseek-v3").value, System.of(H100)
        plan = make_plan(model, deployment, system, calibration, load_engine("sglang"))
        assert plan.time(Batch.prefill(8.0, 2048.0)).total.expected == pytest.approx(8 * 16_384 / 52_300, rel=0.1)

    def test_nothing_overlaps_without_deepep(self) -> None:
        model = load_model("deepseek-v3").value
        with pytest.raises(DeploymentError, match="use all_to_all=deepep"):
            check_deployment(model, Deployment(two_batch=True, dp=8, ep=8), System.of(H200))


def test_deepep_brings_no_pair_of_others_experts() -> None:
    """Fused kernels that get all tokens move rows of others' experts; at 72 ranks that was five sixths of a step."""
    model, batch = load_model("deepseek-v3").value, Batch.decode(256.0, 2050.0)
    for kind in ("deepep", "auto"):
        plan = make_plan(model, Deployment(all_to_all=kind, dp=72, ep=72, redundant_experts=32), System.of(H100), None)
        shape = next(kernel.shape for kernel in plan.kernels(batch) if kernel.family == "moe")
        assert shape.slots == (shape.routed if kind == "deepep" else 72 * 256 * 8)
