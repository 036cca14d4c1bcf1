"""What is known about published benchmarks: the file is read strictly, and its rules reach the rows they are about."""

from __future__ import annotations

from collections import Counter

import pandas as pd
import pytest

import rooflinekit as rk
from rooflinekit.evidence.accuracy_serving import predict_group, read_serving_table, served_groups
from rooflinekit.model.speculation import SpeculativePredictor
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.errors import SpecError
from rooflinekit.specs.clients import client_of, read_clients

ROW = {
    "model": "llama-3.1-70b", "gpu": "h200-sxm", "engine": "trtllm", "load": "concurrency", "isl": 1024, "osl": 1024,
    "concurrency": 8, "metric": "ttft_ms", "value": 300.0, "tp": 4, "weight_dtype": "fp8", "source_key": "infx",
}  # fmt: skip
FILE = """sources: {scripts: {title: a, url: "https://b", read: true}}
clients:
  - source_key: one
    lengths: [0.5, 1.5]
    requests: 4
    source: [scripts]
    servers:
      - {when: {engine: vllm}, kv: fp8, source: [scripts]}
"""


def groups_of(tmp_path, *rows):
    path = tmp_path / "rows.csv"
    pd.DataFrame([ROW | row for row in rows or ({},)]).to_csv(path, index=False)
    unanswered = Counter()
    found = list(served_groups(read_serving_table(path), "none", unanswered))
    assert not unanswered
    return found


def waits(groups):
    """Decode steps between two looks at new requests, and those for which prompts are held back, of each row."""
    return {
        (row.tp, row.isl, row.osl, row.concurrency): (told.scheduler_recv_interval, told.batch_wait)
        for group in groups
        for told in [group.resolved.plan.deployment.settings]
        for row in group.table.itertuples()
    }


def test_a_source_without_an_entry_is_the_usual_benchmark():
    assert client_of("somebody").servers == ()
    assert client_of("").requests == 10


def test_lengths_give_mean_and_variation():
    client = client_of("infx")
    assert client.mean_length == pytest.approx(0.9)
    assert client.cv == pytest.approx(0.2 / 12**0.5 / 0.9)


def test_a_rule_holds_for_the_lengths_and_degrees_it_names(tmp_path):
    """TensorRT-LLM gathered prompts for 20 steps at 1,024 in and out on fewer than eight accelerators."""
    found = waits(groups_of(tmp_path, {}, {"osl": 8192}, {"isl": 8192}, {"tp": 8}))
    assert found == {
        (4, 1024, 1024, 8): (1, 20), (4, 1024, 8192, 8): (1, 0), (4, 8192, 1024, 8): (1, 0), (8, 1024, 1024, 8): (1, 0),
    }  # fmt: skip


def test_a_rule_may_depend_on_the_users(tmp_path):
    row = {"model": "deepseek-r1", "gpu": "b200-sxm", "engine": "sglang", "tp": 8, "weight_dtype": "fp8_block"}
    found = waits(groups_of(tmp_path, row | {"concurrency": 8}, row | {"concurrency": 16}))
    assert found == {(8, 1024, 1024, 8): (10, 0), (8, 1024, 1024, 16): (30, 0)}


def settings_of(tmp_path, *rows):
    """Sequences and tokens of a step at the most, as each server was told."""
    plans = [group.resolved.plan for group in groups_of(tmp_path, *rows)]
    return [(plan.most_sequences, plan.token_budget) for plan in plans]


def test_the_tokens_of_a_step_are_those_of_the_script(tmp_path):
    """One prompt fits beside all users, in later scripts 8,192 tokens; gpt-oss has 20,000, SGLang 16,384 and 32,768."""
    trt = {"model": "deepseek-r1", "gpu": "h200-sxm", "tp": 8, "weight_dtype": "fp8_block", "concurrency": 100}
    trt |= {"engine_version": "1.1.0rc2.post2"}
    b200 = trt | {"gpu": "b200-sxm", "engine_version": "1.2.0rc6.post2"}
    assert [budget for _, budget in settings_of(tmp_path, trt, trt | {"isl": 8192}, b200)] == [1216, 8384, 8192]
    oss = {"model": "gpt-oss-120b", "gpu": "b200-sxm", "weight_dtype": "mxfp4"}
    assert [budget for _, budget in settings_of(tmp_path, oss)] == [20000]
    sglang = trt | {"engine": "sglang", "gpu": "b200-sxm", "engine_version": "0.5.9"}
    rows = sglang, sglang | {"weight_dtype": "nvfp4"}, sglang | {"tp": 4}
    assert {budget for _, budget in settings_of(tmp_path, *rows)} == {32768, 16384, 8192}


def test_trtllm_bench_sets_sequences_and_tokens_by_memory_and_lengths(tmp_path):
    """Llama-3.3-70B in FP8 on an H200: 151 GB less 72 of weights, 95 % of it, at 163,840 B a token.

    2,000 tokens each: 229 sequences, rounded up to 256, and 2,048 tokens of a step. 2,176 tokens each: 210 sequences,
    224, with 17 times as many tokens, 3,584 by steps of 256. gpt-oss is of a format that it has no rule for.
    """
    row = {"model": "llama-3.3-70b", "load": "saturated", "metric": "output_tok_s_total", "tp": 1, "kv_dtype": "fp8"}
    row |= {"source_key": "trt10", "isl": 1000, "osl": 1000}
    one, other = settings_of(tmp_path, row, row | {"isl": 2048, "osl": 128})
    assert one == (256, 2048)
    assert other == (224, 3584)
    oss = row | {"model": "gpt-oss-120b", "weight_dtype": "mxfp4", "kv_dtype": "", "isl": 8192}
    assert settings_of(tmp_path, oss) == [(2048, 8192 + 2048)]


def test_limits_of_loads_that_are_not_known_are_the_engines(tmp_path):
    row = {"model": "deepseek-r1", "gpu": "h200-sxm", "tp": 8, "weight_dtype": "fp8_block", "concurrency": None}
    queue = {"model": "llama-3.3-70b", "load": "saturated", "tp": 1, "source_key": "trt10", "isl": 0, "osl": None}
    assert {budget for _, budget in settings_of(tmp_path, row, queue)} == {8192}


def test_graphs_are_captured_up_to_the_sequences_of_a_step(tmp_path):
    row = {"model": "llama-3.3-70b", "load": "saturated", "metric": "output_tok_s_total", "tp": 1}
    (group,) = groups_of(tmp_path, row | {"source_key": "trt10", "isl": 1000, "osl": 1000, "kv_dtype": "fp8"})
    assert group.resolved.plan.engine.costs.padded == (1, 2, 4, 8, 16, 32, 64, 128, 256)


def test_accelerators_of_a_row_are_split_as_the_document_says(tmp_path):
    """TensorRT-LLM 1.0 on RTX PRO 6000: a dense model has stages; experts have attention replicas."""
    row = {"load": "saturated", "metric": "output_tok_s_total", "tp": 4, "gpu": "rtx-pro-6000-blackwell"}
    row |= {"source_key": "trt10", "weight_dtype": "nvfp4"}
    dense, experts = (
        groups_of(tmp_path, row | {"model": model})[0].resolved.plan.deployment
        for model in ("llama-3.3-70b", "qwen3-30b-a3b")
    )
    assert (dense.tp, dense.pp, dense.dp, dense.microbatches) == (1, 4, 1, 4)
    assert (experts.tp, experts.pp, experts.dp) == (1, 1, 4)


def test_rows_without_a_version_are_of_the_scripts_that_chose_degrees_by_users(tmp_path):
    """DeepSeek-R1 in NVFP4, TensorRT-LLM, eight B200: whole experts from 16 users on, attention replicas at 256.

    There prompts wait until every rank has one, 60 steps at the most (`timeout_iters`). A row with a version counts
    its own degrees.
    """
    row = {"model": "deepseek-r1", "gpu": "b200-sxm", "tp": 8, "weight_dtype": "nvfp4"}
    rows = [row | {"concurrency": users} for users in (8, 16, 256)] + [row | {"isl": 8192, "concurrency": 64}]
    found = {}
    for group in groups_of(tmp_path, *rows, row | {"concurrency": 16, "engine_version": "1.1.0rc2.post2"}):
        plan = group.resolved.plan.deployment
        for each in group.table.itertuples():
            found[each.isl, each.concurrency, each.engine_version] = plan.tp, plan.dp, plan.ep, plan.settings.batch_wait
        assert plan.engine_version == "1.1.0"
    assert found == {
        (1024, 8, ""): (8, 1, 1, 0),
        (1024, 16, ""): (8, 1, 8, 0),
        (1024, 256, ""): (1, 8, 8, 60),
        (8192, 64, ""): (1, 8, 8, 60),
        (1024, 16, "1.1.0rc2.post2"): (8, 1, 1, 0),
    }


def test_prompts_of_llama_under_tensorrt_llm_share_a_step_of_16384_tokens(tmp_path):
    assert settings_of(tmp_path, {}, {"isl": 8192}) == [(2048, 16384)] * 2


def test_the_cache_has_the_format_that_the_server_was_given(tmp_path):
    formats = {}
    for gpu in ("b200-sxm", "h200-sxm"):
        row = {"model": "gpt-oss-120b", "gpu": gpu, "weight_dtype": "mxfp4", "tp": 1}
        (group,) = groups_of(tmp_path, row)
        formats[gpu] = group.resolved.plan.precision.kv
    assert formats == {"b200-sxm": Dtype.FP8, "h200-sxm": Dtype.BF16}


def test_a_stated_format_of_the_cache_counts_more(tmp_path):
    (group,) = groups_of(tmp_path, {"kv_dtype": "bf16"})
    assert group.resolved.plan.precision.kv is Dtype.BF16


def test_rows_of_different_clients_are_different_groups(tmp_path):
    one, other = groups_of(tmp_path, {}, {"source_key": "somebody"})
    assert {one.client.source_key, other.client.source_key} == {"infx", ""}


def test_runs_with_drafts_are_known_by_version_degrees_and_users(tmp_path):
    """One image ran with MTP; of another, the cells that were run with it alone."""
    row = {"model": "deepseek-r1", "gpu": "b200-sxm", "tp": 4, "weight_dtype": "nvfp4", "metric": "tpot_ms"}
    older = {"engine_version": "1.1.0rc2.post2", "ep": 4}
    groups = groups_of(
        tmp_path, row | {"engine_version": "1.2.0rc6.post2"}, row | {"engine_version": "1.2.0rc6.post3"},
        row | older | {"concurrency": 32}, row | older | {"concurrency": 64}, row | older | {"isl": 8192},
    )  # fmt: skip
    drafted = {
        (row.engine_version, row.isl, row.concurrency): isinstance(group.resolved.predictor, SpeculativePredictor)
        for group in groups
        for row in group.table.itertuples()
    }
    assert drafted == {
        ("1.2.0rc6.post2", 1024, 8): False, ("1.2.0rc6.post3", 1024, 8): True, ("1.1.0rc2.post2", 1024, 32): True,
        ("1.1.0rc2.post2", 1024, 64): False, ("1.1.0rc2.post2", 8192, 8): False,
    }  # fmt: skip
    plain, quick = (predict_group(group).value[0] for group in groups[:2])
    assert quick < plain


def test_prompts_that_come_again_are_in_the_cache_of_a_server_that_keeps_them(tmp_path):
    """100 prompts, the first of each user before the measurement: with 1 user all 10 are new, with 200 none is."""
    row = {"model": "llama-3.1-8b", "engine": "vllm", "engine_version": "0.12.0", "osl": 100, "isl": 4000, "tp": 1}
    users = [{"concurrency": number, "source_key": "aicgap"} for number in (1, 200)]
    again, anew = ([predict_group(groups_of(tmp_path, row | each | known)[0]).value[0] for each in users]
                   for known in ({}, {"prefix_caching": False}))  # fmt: skip
    assert again[0] == pytest.approx(anew[0], rel=1e-6)
    assert again[1] < anew[1] / 5


def test_facts_of_a_row_count_more_than_what_is_known_of_its_source(tmp_path):
    """Each column is the option of `estimate` with its name; an empty cell leaves it to the source."""
    row = {"model": "deepseek-r1", "gpu": "b200-sxm", "engine": "sglang", "tp": 8, "weight_dtype": "fp8_block"}
    told = {"token_budget": 4096, "max_num_seqs": 100, "scheduler_recv_interval": 3, "policy": "chunked",
            "eager": True, "activations": "fp8_block"}  # fmt: skip
    plain, other = groups_of(tmp_path, row | dict.fromkeys(told), row | told)
    assert (plain.resolved.plan.token_budget, plain.resolved.plan.deployment.settings.scheduler_recv_interval) == (
        32768,
        10,
    )
    deployment = other.resolved.plan.deployment
    settings = deployment.settings
    assert (settings.token_budget, settings.max_num_seqs, settings.scheduler_recv_interval) == (4096, 100, 3)
    assert (settings.policy, settings.eager, str(deployment.activations)) == ("chunked", True, "fp8_block")


def test_what_a_client_did_is_played(tmp_path):
    """A row says how lengths vary, how many requests there were, and which prompts came again, as `estimate` does."""
    row = {"model": "llama-3.1-8b", "engine": "vllm", "tp": 1, "concurrency": 16, "source_key": "", "weight_dtype": ""}
    told = {"isl_cv": 0.5, "osl_cv": 1.0, "requests": 300, "seed_reuse": 20}
    (group,) = groups_of(tmp_path, row | told)
    same = rk.estimate("llama-3.1-8b", "h200-sxm", calibration="none", concurrency=16, isl=1024, osl=1024, **told)
    assert predict_group(group).value[0] == pytest.approx(same.ttft_ms, rel=0.02)  # of 16 places, 16 are taken
    for less in told:
        (other,) = groups_of(tmp_path, row | told | {less: None})
        assert predict_group(other).value[0] != pytest.approx(same.ttft_ms, rel=1e-4), less


def test_percentiles_are_those_that_are_played(tmp_path):
    row = {"model": "llama-3.1-8b", "engine": "vllm", "tp": 1, "concurrency": 64, "source_key": "", "weight_dtype": ""}
    rows = [row | {"metric": metric} for metric in ("ttft_ms", "ttft_p50_ms", "ttft_p99_ms", "e2e_p90_ms")]
    (group,) = groups_of(tmp_path, *rows)
    mean, half, most, whole = predict_group(group).value
    assert half < mean < most < whole


COOKBOOK = {
    "model": "llama-3.1-70b", "gpu": "a100-sxm-80gb", "engine": "sglang", "engine_version": "0.5.6", "tp": 8,
    "weight_dtype": "", "isl": 3980, "osl": 531, "concurrency": 64, "source_key": "sglcook",
}  # fmt: skip


def test_a_run_finds_the_prompts_of_the_run_before_it(tmp_path):
    """SGLang's benchmark draws the same prompts at each start (seed 1): of 320 requests 80 came before, all first ones.

    The 64 that are sent at once then wait for no prompt of others: 633 ms were measured, without it one expects 2.6 s.
    """
    noted = COOKBOOK | {"notes": "320 requests; nominal 8000/1000; means"}
    (group,) = groups_of(tmp_path, noted, COOKBOOK | {"requests": 320, "cached_requests": 80},
                         COOKBOOK | {"requests": 320})  # fmt: skip
    known, column, fresh = predict_group(group).value
    assert known == column
    assert known < 0.4 * fresh
    (off,) = groups_of(tmp_path, noted | {"prefix_caching": "off"})
    assert predict_group(off).value[0] == pytest.approx(fresh, rel=1e-9)


def test_requests_of_a_run_have_the_mean_lengths_that_its_row_tells(tmp_path):
    """Ten draws between 1 and 8,000 tokens have a mean of their own; the mean of a row is theirs."""
    rows = [COOKBOOK | {"concurrency": 1, "isl": isl, "requests": 10, "metric": "ttft_ms"} for isl in (2000, 4000)]
    (group,) = groups_of(tmp_path, *rows)
    short, long = predict_group(group).value
    alone = [
        rk.estimate("llama-3.1-70b", "a100-sxm-80gb", calibration="none", engine="sglang@0.5.6", tp=8, isl=isl, osl=531,
                    concurrency=1).ttft_ms
        for isl in (2000, 4000)
    ]  # fmt: skip
    assert [short, long] == pytest.approx(alone, rel=0.03)  # attention grows with the square


def test_atom_computes_prompts_first_and_equal_lengths_stay_in_step(tmp_path):
    row = COOKBOOK | {"model": "qwen3-235b-a22b-2507", "gpu": "mi355x", "engine": "vllm", "engine_version": "",
                      "isl": 4000, "osl": 1000, "source_key": "atom", "notes": "256 requests"}  # fmt: skip
    (group,) = groups_of(tmp_path, row)
    assert group.resolved.plan.deployment.settings.policy == "prefill-priority"
    assert group.resolved.plan.token_budget == 20_000
    (other,) = groups_of(tmp_path, row | {"model": "deepseek-r1"})
    assert (other.client.lengths, other.client.requests) == ((0.8, 1.0), 10)
    assert other.resolved.plan.deployment.settings.policy == "chunked-prefill"


@pytest.mark.parametrize(("row", "faulty"), [
    ({"gpu": "b300-sxm", "isl": 8192}, True), ({"gpu": "b300-sxm", "isl": 1024}, False),
    ({"gpu": "b200-sxm", "isl": 8192}, False), ({"gpu": "b300-sxm", "isl": 8192, "source_key": ""}, False),
])  # fmt: skip
def test_rows_of_a_faulty_server_are_known(tmp_path, row, faulty):
    """1.2 s more for 8,192 tokens than for 1,024 on four B300: 4 PFLOP of attention at 40 TFLOP/s a GPU."""
    (group,) = groups_of(tmp_path, {"model": "deepseek-r1", "engine": "sglang", "weight_dtype": "nvfp4"} | row)
    assert list(group.client.faulty(*(group.column(name) for name in ("isl", "osl", "concurrency")))) == [faulty]


def test_a_cache_without_room_for_all_prompts_keeps_none(tmp_path):
    """100 prompts of 32,000 tokens are 420 GB of keys and values: each is dropped before it comes again."""
    row = {"model": "llama-3.1-8b", "engine": "vllm", "isl": 32000, "osl": 100, "tp": 1, "concurrency": 32}
    (kept,), (plain,) = (
        groups_of(tmp_path, row | {"source_key": "aicgap", "prefix_caching": on}) for on in (True, False)
    )
    assert predict_group(kept).value[0] == pytest.approx(predict_group(plain).value[0], rel=1e-3)


def test_a_rule_holds_where_the_row_lacks_what_it_does_not_ask_for(tmp_path):
    row = {"model": "deepseek-r1", "gpu": "b200-sxm", "tp": 8, "weight_dtype": "fp8_block", "osl": None}
    (group,) = groups_of(tmp_path, row | {"engine_version": "v1.2.0rc6.post3"})
    assert isinstance(group.resolved.predictor, SpeculativePredictor)


def test_a_file_of_ones_own(tmp_path):
    path = tmp_path / "clients.yaml"
    path.write_text(FILE)
    (client,) = read_clients(path)
    assert (client.mean_length, client.requests, client.servers[0].kv) == (1.0, 4.0, "fp8")


@pytest.mark.parametrize(
    ("good", "bad", "said"),
    [
        ("requests: 4", "request: 4", "nearest: requests"),
        ("requests: 4", "requests: 0", "not a whole number above 0"),
        ("[0.5, 1.5]", "[1.5, 0.5]", "not a pair of shares"),
        ("[0.5, 1.5]", "[a, b]", "'a' is not a number"),
        ("{engine: vllm}", "{engines: vllm}", "nearest: engine"),
        ("{engine: vllm}", "{version: '0.9', unversioned: true}", "clients.yaml: clients.*exclude each other"),
        ("kv: fp8, source: [scripts]", "kv: fp8, source: [nobody]", "'nobody' is not under `sources`"),
        ("clients:\n  - ", "clients:\n  a: ", "not"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, good, bad, said):
    assert good in FILE
    path = tmp_path / "clients.yaml"
    path.write_text(FILE.replace(good, bad, 1))
    with pytest.raises(SpecError, match=said):
        read_clients(path)


def test_random_tokens_have_popular_experts(tmp_path):
    """InferenceX sends random tokens: experts of its rows are chosen by a power law, and a dense model has none."""
    (dense,) = groups_of(tmp_path)
    (experts,) = groups_of(tmp_path, {"model": "gpt-oss-120b", "weight_dtype": "mxfp4"})
    assert (dense.resolved.plan.deployment.skew, experts.resolved.plan.deployment.skew) == (0.0, 0.8)


def test_cells_of_high_throughput_hold_prompts_until_every_rank_can_take_one(tmp_path):
    """DeepSeek-V4-Pro on eight B200 has --enable-prefill-delayer, 30 passes at the most; V4-Flash has not."""
    row = {"source_key": "rep-sglv4-x", "engine": "sglang", "gpu": "b200-sxm", "weight_dtype": "mxfp4"}
    row |= {"tp": 8, "dp": 8, "ep": 8, "engine_version": "0.5.15"}
    pro, flash = (
        groups_of(tmp_path, row | {"model": f"deepseek-v4-{name}"})[0].resolved.plan for name in ("pro", "flash")
    )
    assert (pro.deployment.settings.batch_wait, flash.deployment.settings.batch_wait) == (30, 0)
    assert pro.most_sequences == flash.most_sequences == 32


def test_users_that_are_offered_at_a_rate_come_no_sooner(tmp_path):
    """Eight users, 16 requests, 1/s offered: alone most of the time, so first tokens are those of one user."""
    row = {"model": "llama-3.1-8b", "source_key": "x", "engine": "vllm", "engine_version": "0.11.0", "isl": 4096,
           "osl": 8, "metric": "ttft_ms", "requests": 16}  # fmt: skip
    first = {
        (users, rate): float(predict_group(group, ends=False).value[0])
        for users, rate in ((8, ""), (8, 1.0), (1, ""))
        for group in groups_of(tmp_path, row | {"concurrency": users, "rate": rate})
    }
    assert first[8, 1.0] == pytest.approx(first[1, ""], rel=0.3)
    assert first[8, ""] > 2.0 * first[8, 1.0]
