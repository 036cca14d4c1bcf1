"""A running fleet beside its prediction: what servers say is read, gaps are divided, slow-downs are found."""

from __future__ import annotations

import gzip
import json
import math
import random
import re
import time
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from functools import cache
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path
from socket import socket
from statistics import fmean
from threading import Thread
from types import SimpleNamespace
from typing import Any, ClassVar
from urllib.request import urlopen

import pytest
from typer.testing import CliRunner

from rooflinekit.cli.app import app
from rooflinekit.cli.watch import _intervals, _Tail
from rooflinekit.evidence.benchmark_runs import Given, pose, resolve_facts
from rooflinekit.evidence.exposition import (
    GrowingLog,
    MeasuredInterval,
    interval,
    read_recording,
    read_request_log,
    read_scrape,
    scrape_text,
    together,
)
from rooflinekit.evidence.measured import read_intervals, read_measurements
from rooflinekit.evidence.measurement import MeasuredRun, MeasuredSpread, RunFacts
from rooflinekit.evidence.report import _left
from rooflinekit.evidence.startup import read_startup
from rooflinekit.evidence.watching import LEARNT, ChangeDetector, Watched, Watcher, headroom, set_beside, watch
from rooflinekit.load.answer import Load, LoadPlay, play_load
from rooflinekit.load.lengths import Fixed
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.types.errors import InputError, SpecError
from rooflinekit.specs.calibration.load import load_calibration

pytest.importorskip("prometheus_client")
SAID = {"model": "llama-3-8b", "gpu": "h100-sxm", "tp": 1}
NAMES = {
    "vllm": ("vllm:", "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "generation_tokens_total"),
    "sglang": ("sglang:", "num_running_reqs", "num_queue_reqs", "token_usage", "generation_tokens_total"),
    "trtllm": (
        "trtllm_",
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_utilization",
        "generation_tokens_total",
    ),
}


def exposition(
    totals: dict[str, float], engine: str = "vllm", label: str = 'model_name="meta-llama/Meta-Llama-3-8B"'
) -> str:
    """What an engine says after so many requests, tokens and seconds."""
    prefix, running, waiting, used, made = NAMES[engine]
    lines = [f"{prefix}{running}{{{label}}} {totals.get('running', 4.0)}", f"{prefix}{used}{{{label}}} 0.25"]
    lines += [f"{prefix}{waiting}{{{label}}} {totals.get('waiting', 0.0)}"]
    lines += [
        f"{prefix}{made}{{{label}}} {totals['output']}",
        f"{prefix}prompt_tokens_total{{{label}}} {totals['prompts']}",
    ]
    counts = {"time_to_first_token_seconds": ("ttft", "requests"), "e2e_request_latency_seconds": ("e2e", "requests"),
              "inter_token_latency_seconds": ("gap", "gaps")}  # fmt: skip
    for name, (total, count) in counts.items():
        kept = name if engine != "trtllm" else name.replace("inter_token_latency", "time_per_output_token")
        lines += [f"# TYPE {prefix}{kept} histogram", f'{prefix}{kept}_bucket{{{label},le="+Inf"}} {totals[count]}']
        lines += [f"{prefix}{kept}_sum{{{label}}} {totals[total]}", f"{prefix}{kept}_count{{{label}}} {totals[count]}"]
    if engine == "vllm":
        lines += [f"vllm:request_prompt_tokens_sum{{{label}}} {totals['prompts']}",
                  f"vllm:request_prompt_tokens_count{{{label}}} {totals['requests']}",
                  f"vllm:prefix_cache_queries_total{{{label}}} {totals['prompts']}",
                  f"vllm:prefix_cache_hits_total{{{label}}} {totals.get('hits', 0.0)}",
                  f"vllm:num_preemptions_total{{{label}}} {totals.get('preempted', 0.0)}",
                  f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="2000",{label}}} 1.0']  # fmt: skip
    return "\n".join(lines)


NOTHING = {"output": 0.0, "prompts": 0.0, "ttft": 0.0, "e2e": 0.0, "gap": 0.0, "requests": 0.0, "gaps": 0.0}
AN_HOUR = {"output": 12000.0, "prompts": 60000.0, "hits": 15000.0, "ttft": 6.0, "e2e": 126.0, "gap": 118.8,
           "requests": 60.0, "gaps": 11940.0, "preempted": 3.0}  # fmt: skip


def after_minutes(*each: dict[str, float]) -> list[str]:
    """What a server says at the start and after each of these minutes."""
    totals, said = dict(NOTHING), [exposition(NOTHING)]
    for minute in each:
        totals = {name: totals.get(name, 0.0) + minute.get(name, 0.0) for name in totals | minute}
        said.append(exposition(totals))
    return said


def recorded(*servers: list[str]) -> str:
    """Looks at servers, a minute apart, as `--record` writes them."""
    looks = enumerate(zip(*servers, strict=True))
    return "".join(scrape_text(text, 60.0 * number) for number, texts in looks for text in texts)


@pytest.mark.parametrize("engine", list(NAMES))
def test_two_scrapes_are_an_interval(engine: str) -> None:
    before, after = (
        read_scrape(exposition(each, engine), time, "url") for each, time in ((NOTHING, 0.0), (AN_HOUR, 60.0))
    )
    found = interval(before, after, "url")
    assert found is not None
    run = found.run
    assert (run.facts.rate, run.facts.engine) == (1.0, engine)
    assert run.ttft.mean == pytest.approx(100.0)
    assert run.tpot.mean == pytest.approx(1e3 * 118.8 / 11940)
    assert run.e2e.mean == pytest.approx(2100.0)
    assert found.kv_use == 0.25
    assert (run.facts.isl, run.facts.osl, run.output_tok_s) == (1000.0, 200.0, 200.0)
    if engine == "vllm":
        assert (run.facts.hits, found.preemptions, found.kv_tokens) == (0.25, 3.0, 32000)


def test_first_tokens_of_sglang_are_those_of_streamed_requests() -> None:
    """Forty streamed requests of 100 ms, and twenty whose first fifty tokens came together after 600 ms."""

    def said(each: dict[str, float], kind: str) -> str:
        lines = exposition(each, "sglang", f'model_name="m",is_streaming="{kind}"').splitlines()
        return "\n".join(line for line in lines if kind == "true" or ("seconds" in line and "# TYPE" not in line))

    streamed, whole = (AN_HOUR | {"requests": count, "ttft": ttft} for count, ttft in ((40.0, 4.0), (20.0, 12.0)))
    before, after = (
        read_scrape("\n".join([said(each[0], "true"), said(each[1], "false")]), time, "url")
        for each, time in (((NOTHING, NOTHING), 0.0), ((streamed, whole), 60.0))
    )
    found = interval(before, after, "url")
    assert found is not None
    assert (found.run.ttft.mean, found.run.facts.rate) == (pytest.approx(100.0), 1.0)


def test_stalls_are_told_from_steps_by_the_buckets_of_gaps() -> None:
    """990 gaps of 30 ms, and ten requests that stood for 2 s: buckets say 1 to 2.5 s, 1.6 s at the middle."""
    said = """vllm:inter_token_latency_seconds_bucket{le="0.05"} %d
vllm:inter_token_latency_seconds_bucket{le="1.0"} %d
vllm:inter_token_latency_seconds_bucket{le="2.5"} %d
vllm:inter_token_latency_seconds_bucket{le="+Inf"} %d
vllm:inter_token_latency_seconds_sum %f
vllm:inter_token_latency_seconds_count %d
vllm:generation_tokens_total %d"""
    rows = ((0, 0, 0, 0, 0.0, 0, 0), (990, 990, 1000, 1000, 49.7, 1000, 1000))
    found = interval(*(read_scrape(said % row, 60.0 * turn, "url") for turn, row in enumerate(rows)), "url")
    assert found is not None and found.run.tpot.mean == pytest.approx(49.7)
    assert found.moving_ms == pytest.approx(30.0, rel=0.15)


def test_llama_cpp_says_tokens_and_their_seconds() -> None:
    names = ("requests_processing", "requests_deferred", "prompt_tokens_total", "tokens_predicted_total",
             "tokens_predicted_seconds_total", "prompt_seconds_total")  # fmt: skip
    said = "\n".join(f"llamacpp:{name} {{}}" for name in names)
    rows = ((1, 0, 0, 0, 0, 0), (3, 1, 900, 300, 6, 3))
    found = interval(*(read_scrape(said.format(*row), 60.0 * turn, "url") for turn, row in enumerate(rows)), "url")
    assert found is not None
    assert (found.run.tpot.mean, found.run.output_tok_s, found.running) == (20.0, 5.0, 2.0)
    posed = pose(found.run, Given.of(**SAID, isl=180, osl=60))
    assert posed.load.rate == pytest.approx(5 / 60)  # 300 tokens, 60 a request
    # Prompts took 3 s of the minute, and half a request waited: (3/60 + 1/2) / (5/60) = 6.6 s before the first token.
    assert posed.run.ttft.mean == pytest.approx(6600.0)


def test_a_log_that_says_who_waited_and_what_was_cached_divides_the_gap_of_ttft() -> None:
    """20 requests of 3,000 tokens in 20 s waited 0.3 s each, so that 0.3 stand in the queue; 600 were cached."""
    waits = {**FLAT, "gen_ai.latency.time_in_queue": 0.3, "gen_ai.usage.cache_read.input_tokens": 600}
    longer = {"gen_ai.usage.output_tokens": 50, "gen_ai.server.request.duration": 1.0}
    (found,) = read_request_log("log", [{**waits, **longer, "start_time": 60.0 + turn} for turn in range(20)])
    assert (found.waiting, found.run.facts.hits) == (pytest.approx(0.3), pytest.approx(0.2))
    assert (found.running or 0.0) + (found.waiting or 0.0) == pytest.approx(1.0)
    now = watch([found], **SAID).now
    assert now.queue_ms == pytest.approx(300.0, abs=10.0)  # less the step under way, for which those played wait
    assert now.hits == pytest.approx(0.2)
    assert now.prompt_ms is not None and now.ttft.measured is not None
    assert now.queue_ms + now.prompt_ms == pytest.approx(now.ttft.measured - now.ttft.expected)


def test_triton_counts_in_its_own_units_and_every_step_of_an_ensemble() -> None:
    """60 requests of 2.1 s and 200 tokens whose first came after 100 ms: (2100 - 100) / 199 ms a token."""
    said = """# TYPE nv_inference_request_success counter
nv_inference_request_success{{model="ensemble",version="1"}} {0}
nv_inference_request_success{{model="tensorrt_llm",version="1"}} {0}
# TYPE nv_inference_request_duration_us counter
nv_inference_request_duration_us{{model="tensorrt_llm",version="1"}} {1}
# TYPE nv_inference_first_response_histogram_ms histogram
nv_inference_first_response_histogram_ms_count{{model="tensorrt_llm",version="1"}} {0}
nv_inference_first_response_histogram_ms_sum{{model="tensorrt_llm",version="1"}} {2}
nv_inference_first_response_histogram_ms_bucket{{model="tensorrt_llm",version="1",le="+Inf"}} {0}
nv_trt_llm_request_metrics{{model="tensorrt_llm",request_type="waiting",version="1"}} 1
nv_trt_llm_request_metrics{{model="tensorrt_llm",request_type="scheduled",version="1"}} 3
nv_trt_llm_kv_cache_block_metrics{{kv_cache_block_type="fraction",model="tensorrt_llm",version="1"}} 0.25
nv_trt_llm_kv_cache_block_metrics{{kv_cache_block_type="tokens_per",model="tensorrt_llm",version="1"}} 64
nv_trt_llm_kv_cache_block_metrics{{kv_cache_block_type="max",model="tensorrt_llm",version="1"}} 6239
nv_llm_input_token_len_count{{model="tensorrt_llm",response_metric_type="total_input_tokens",version="1"}} {0}
nv_llm_input_token_len_sum{{model="tensorrt_llm",response_metric_type="total_input_tokens",version="1"}} {3}
nv_llm_output_token_len_count{{model="tensorrt_llm",response_metric_type="total_output_tokens",version="1"}} {0}
nv_llm_output_token_len_sum{{model="tensorrt_llm",response_metric_type="total_output_tokens",version="1"}} {4}"""
    rows = ((0, 0, 0, 0, 0), (60, 126_000_000, 6_000, 60_000, 12_000))
    found = interval(*(read_scrape(said.format(*row), 60.0 * turn, "url") for turn, row in enumerate(rows)), "url")
    assert found is not None
    facts = RunFacts(engine="trtllm", isl=1000.0, osl=200.0, rate=1.0)
    assert (found.run.facts, found.running, found.waiting, found.kv_use) == (facts, 3.0, 1.0, 0.25)
    assert (found.kv_tokens, found.run.output_tok_s) == (64 * 6239, 200.0)
    times = found.run.ttft.mean, found.run.e2e.mean, found.run.tpot.mean
    assert times == pytest.approx((100.0, 2100.0, 2000.0 / 199))


def test_triton_without_an_engine_of_language_models_is_refused() -> None:
    said = 'nv_inference_request_success{model="resnet50",version="1"} 7\nnv_gpu_utilization{gpu_uuid="a"} 0.5'
    for lines in (said, said.partition("\n")[0]):
        with pytest.raises(SpecError, match="url: is Triton with resnet50, without TensorRT-LLM"):
            read_scrape(lines, 0.0, "url")
    served = read_scrape(
        f'{said}\nnv_trt_llm_request_metrics{{model="tensorrt_llm",request_type="waiting"}} 1', 0.0, "url"
    )
    assert served.engine == "triton" and served.values == {"waiting": 1.0}


STARTS = {  # lines as public logs have them, shortened; what they say; the cache of one accelerator
    "vllm": (
        """INFO [utils.py:263] non-default args: {'model': 'm', 'max_num_seqs': 64}
(EngineCore_DP0) INFO [core.py:97] Initializing a V1 LLM engine (v0.14.1) with config: model='/hub/models--meta-llama--\
Meta-Llama-3.1-8B', dtype=torch.bfloat16, max_seq_len=131072, tensor_parallel_size=2, pipeline_parallel_size=1, \
quantization=fp8, enforce_eager=False, kv_cache_dtype=fp8, device_config=cuda
GPU KV cache size: 889,600 tokens""".replace("\\\n", ""),
        RunFacts("meta-llama/Meta-Llama-3.1-8B", engine="vllm@0.14.1", tp=2, max_num_seqs=64),
        {"weights": "fp8", "activations": "fp8", "kv": "fp8", "max_model_len": 131_072}, 889_600,
    ),
    "sglang": (
        """server_args=ServerArgs(model_path='meta-llama/Llama-3.1-70B-Instruct', dtype='auto', quantization=None, \
kv_cache_dtype='auto', max_running_requests=None, tp_size=4, pp_size=2, stream_interval=1)
KV Cache is allocated. dtype: torch.bfloat16, #tokens: 159552, K size: 1.83 GB, V size: 1.83 GB
max_total_num_tokens=159552, chunked_prefill_size=8192, max_running_requests=2048, context_len=131072""".replace(
            "\\\n", ""
        ),
        RunFacts("meta-llama/Llama-3.1-70B-Instruct", engine="sglang", tp=4, max_num_seqs=2048),
        {"kv": "bf16", "pp": 2, "token_budget": 8192, "max_model_len": 131_072}, 159_552,
    ),
    "trtllm": (
        """[TensorRT-LLM][INFO] Engine version 0.15.0.dev2024101500 found in the config file
[TensorRT-LLM][INFO] MPI size: 2, MPI local size: 2, rank: 0
[TensorRT-LLM][INFO] TRTGptModel maxBatchSize: 64
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 26.91 GiB for max tokens in paged KV cache (220480).""",
        RunFacts(engine="trtllm@0.15.0", tp=2, max_num_seqs=64), {}, 220_480,
    ),
    "llama.cpp": (
        """0.00.006.734 I srv    load_model: loading model '/models/Meta-Llama-3-8B'
0.00.007.100 I print_info: file type   = Q4_K - Medium
0.00.131.823 I srv    load_model: initializing, n_slots = 4, n_ctx_slot = 512, kv_unified = 'false'""",
        RunFacts("Meta-Llama-3-8B", engine="llama.cpp", max_num_seqs=4), {"weights": "q4_k_m"}, 2048,
    ),
}  # fmt: skip


@pytest.mark.parametrize("engine", list(STARTS))
def test_what_an_engine_says_when_it_starts(engine: str) -> None:
    text, facts, deployment, tokens = STARTS[engine]
    found = read_startup("log", text)
    assert (found.facts, found.deployment, found.kv_tokens) == (facts, deployment, tokens)


def test_a_start_up_log_fills_in_what_nobody_says() -> None:
    log = read_startup("log", STARTS["vllm"][0])
    given = Given.of(gpu="h100-sxm").with_logs([log])
    assert (given.facts.model, given.facts.tp, given.deployment["kv"]) == (log.facts.model, 2, "fp8")
    own = Given.of(gpu="h100-sxm", tp=1, kv="bf16", model="llama-3-8b").with_logs([log])
    assert (own.facts.model, own.facts.tp, own.deployment["kv"]) == ("llama-3-8b", 1, "bf16")
    other = replace(log, facts=replace(log.facts, tp=4))
    assert Given.of().with_logs([log, other]).facts.tp is None  # they disagree


def test_replicas_share_what_their_caches_hold_together() -> None:
    minute = replace(served(USUAL, 8.0, 0.0, random.Random(0)), kv_tokens=5 * 1200)
    watcher = Watcher(Given.of(**SAID, replicas=2))
    assert watcher.see(minute).knee < Watcher(Given.of(**SAID)).see(minute).knee * 1.3  # two and a half requests each


def test_replicas_add_up_and_a_new_start_counts_for_nothing() -> None:
    one = read_scrape(exposition(AN_HOUR), 60.0, "url")
    both = together([one, one])
    assert both.values["ttft.count"] == 120.0 and both.values["kv_use"] == 0.25 and both.kv_tokens == 64000
    assert interval(one, read_scrape(exposition(NOTHING), 120.0, "url"), "url") is None
    assert interval(one, replace(one, time=120.0), "url") is None  # nothing happened


def test_a_recording_is_watched_compared_and_refused_in_a_line(tmp_path: Path) -> None:
    path = tmp_path / "day.prom"
    text = scrape_text(exposition(NOTHING), 0.0) + scrape_text(exposition(AN_HOUR), 60.0)
    path.write_text(text)
    (only,) = read_intervals(path)
    assert read_measurements(path) == [only.run]
    with pytest.raises(SpecError, match="holds one scrape"):
        read_recording("day", scrape_text(exposition(AN_HOUR), 60.0))
    with pytest.raises(SpecError, match="is no time"):
        read_recording("day", "# scraped yesterday\n")
    with pytest.raises(SpecError, match="has no metric of vllm, sglang"):
        read_scrape("node_load1 0.5", 0.0, "url")
    with pytest.raises(SpecError, match="no Prometheus text"):
        read_scrape("vllm:num_requests_running{ 3", 0.0, "url")


SPAN = {"name": "llm_request", "startTimeUnixNano": "60000000000", "attributes": [
    {"key": "gen_ai.usage.prompt_tokens", "value": {"intValue": "1000"}},
    {"key": "gen_ai.usage.completion_tokens", "value": {"intValue": "101"}},
    {"key": "gen_ai.latency.time_to_first_token", "value": {"doubleValue": 0.2}},
    {"key": "gen_ai.latency.e2e", "value": {"doubleValue": 1.2}},
    {"key": "gen_ai.response.model", "value": {"stringValue": "llama-3-8b"}},
]}  # fmt: skip
FLAT = {"start_time": "1970-01-01T00:01:30Z", "gen_ai.usage.input_tokens": 3000, "gen_ai.usage.output_tokens": 1,
        "gen_ai.server.time_to_first_token": 0.4, "gen_ai.server.request.duration": 0.4}  # fmt: skip


def test_a_minute_in_which_a_long_answer_goes_on_and_nobody_comes_ends_no_watch() -> None:
    tokens_alone = {"output": 3000.0, "gap": 30.0, "gaps": 3000.0}
    found = read_recording("day", recorded(after_minutes(AN_HOUR, tokens_alone, AN_HOUR)))
    assert [each.end for each in found] == [60.0, 180.0]
    assert len(watch(found, gpu="h100-sxm", tp=1).intervals) == 2


def test_a_recording_says_of_how_many_servers_it_is(tmp_path: Path) -> None:
    """Read as one server of twice the load, its prediction would be another one."""
    once = after_minutes(AN_HOUR)
    found = read_recording("day", recorded(once, once))
    alone = watch(read_recording("day", recorded(once)), gpu="h100-sxm", tp=1)
    both = watch(found, gpu="h100-sxm", tp=1)
    assert watch(found, gpu="h100-sxm", tp=1, replicas=2).now == both.now
    assert both.now.rate == pytest.approx(2.0 * alone.now.rate)
    assert both.now.tpot.expected == pytest.approx(alone.now.tpot.expected, rel=0.02)  # requests come in turn to each
    assert both.now.kv_expected == pytest.approx(alone.now.kv_expected, rel=0.05)
    path = tmp_path / "day.prom"
    path.write_text(recorded(once, once))
    shown = CliRunner().invoke(app, ["watch", str(path), "--gpu", "h100-sxm", "--tp", "1"])
    assert shown.stdout.startswith("llama-3-8b on 2 x h100-sxm, vllm\n"), shown.output


def test_one_of_two_servers_that_starts_anew_does_not_count_in_that_minute() -> None:
    """What both count together grows all the same."""
    steady = after_minutes(AN_HOUR, AN_HOUR, AN_HOUR)
    young = [*after_minutes({name: value / 10 for name, value in AN_HOUR.items()})]
    young += after_minutes({name: value / 20 for name, value in AN_HOUR.items()})[1:]
    young += after_minutes({name: value / 10 for name, value in AN_HOUR.items()})[1:]
    found = read_recording("day", recorded(steady, young))
    assert [each.run.servers for each in found] == [2, 1, 2]
    assert [each.run.facts.rate for each in found] == [pytest.approx(rate) for rate in (1.1, 1.0, 1.05)]
    with pytest.raises(SpecError, match="servers of sglang and vllm share no load"):
        together([read_scrape(exposition(NOTHING, engine), 0.0, "url") for engine in ("vllm", "sglang")])
    labels = ('model_name="a"', 'model_name="b"')
    with pytest.raises(SpecError, match="servers of a and b share no load"):
        together([read_scrape(exposition(NOTHING, label=label), 0.0, "url") for label in labels])


@pytest.mark.slow
def test_a_server_that_answers_from_some_minute_on_brings_its_load_and_no_growth() -> None:
    minutes = 2 * LEARNT
    looks = after_minutes(*[AN_HOUR] * minutes)
    text = "".join(
        scrape_text(look, 60.0 * minute, name)
        for minute, look in enumerate(looks)
        for name in ("http://a", "http://b")[: 1 if minute < minutes // 2 else 2]
    )
    found = watch(read_recording("day", text), gpu="h100-sxm", tp=1)
    assert [each.replicas for each in found.intervals[:: minutes - 1]] == [1, 2]
    assert found.headroom is not None and found.headroom.hours_left is None
    assert found.moved["rate"] == pytest.approx(1.0)
    gone = "".join(
        scrape_text(look, 60.0 * minute, name)
        for minute, look in enumerate(looks[:6])
        for name in ("http://a", "http://b")[: 2 if minute < 3 else 1]
    )
    fixed = watch(read_recording("day", gone), gpu="h100-sxm", tp=1, replicas=2)
    assert any("1 of 2 servers answered last" in note for note in fixed.notes)


@pytest.mark.parametrize("cut", [10, 500, 2000])
def test_a_scrape_whose_writer_was_killed_is_left_out(cut: int) -> None:
    """At the end of a recording, and where a new watch went on with it."""
    first, second, third, fourth = (scrape_text(text, 60.0 * number) for number, text in
                                    enumerate(after_minutes(AN_HOUR, AN_HOUR, AN_HOUR)))  # fmt: skip
    assert [each.end for each in read_recording("day", first + second + third[:-cut])] == [60.0]
    resumed = read_recording("day", first + second + third[:-cut] + fourth)
    assert [each.end for each in resumed] == [60.0, 180.0]
    assert resumed[1].run.facts.rate == pytest.approx(1.0)


def test_requests_are_gathered_by_the_minute_in_which_they_end(tmp_path: Path) -> None:
    late, last = {**FLAT, "start_time": 119.9}, {**FLAT, "start_time": 149.6}
    path = tmp_path / "requests.jsonl"
    path.write_text("\n".join(map(json.dumps, (SPAN, FLAT, late, last))))
    first, second = read_intervals(path)
    assert (first.start, first.end, second.start, second.end) == pytest.approx((60.0, 120.0, 120.0, 150.0))
    assert first.run.facts == RunFacts(model="llama-3-8b", isl=2000.0, osl=51.0, rate=3 / 60)  # three came in it
    assert (first.run.ttft.mean, first.run.ttft.low) == (pytest.approx(300.0), pytest.approx(200.0))
    assert first.run.tpot.mean == pytest.approx(10.0)  # of the one that has a second token
    assert first.running == pytest.approx(1.6 / 60)  # Little's law
    assert second.run.facts.rate == pytest.approx(2 / 30)  # two ended in the half minute that the log holds
    slow = {**FLAT, "gen_ai.usage.output_tokens": 51, "gen_ai.server.request.duration": 10.4}
    (minute,) = read_request_log("log", [SPAN, SPAN, slow])  # one of three stood for most of ten seconds
    assert (minute.moving_ms, minute.run.tpot.mean) == (pytest.approx(10.0), pytest.approx((10.0 + 10.0 + 200.0) / 3))
    with pytest.raises(SpecError, match="request 1: has no e2e"):
        read_request_log("log", [{key: value for key, value in FLAT.items() if "duration" not in key}])
    with pytest.raises(SpecError, match="request 1: has no start"):
        read_request_log("log", [{key: value for key, value in FLAT.items() if key != "start_time"}])


def steady(start: float, end: float, every: float = 0.5) -> list[dict[str, float]]:
    """Requests of one second each, at an even rate."""
    count = round((end - start) / every)
    return [{**FLAT, "start_time": start + every * turn, "gen_ai.usage.output_tokens": 50,
             "gen_ai.server.request.duration": 1.0} for turn in range(count)]  # fmt: skip


@pytest.mark.parametrize("ends", [183.0, 235.0])
def test_a_minute_that_a_log_holds_in_part_has_the_rate_of_that_part(ends: float) -> None:
    """A log that ends three seconds into a minute says little of it; one of which five seconds lack, nearly all."""
    found = read_request_log("log", steady(60.0 + 25.0, ends - 1.0))
    assert len(found) == (2 if ends == 183.0 else 3)
    for each in found:
        assert each.run.facts.rate == pytest.approx(2.0, rel=0.05)
        assert each.run.request_s == pytest.approx(2.0, rel=0.05)


def test_requests_that_failed_and_spans_of_something_else_do_not_end_a_log(tmp_path: Path) -> None:
    path, whole = tmp_path / "spans.jsonl", json.dumps(FLAT)
    failed = json.dumps({key: value for key, value in FLAT.items() if "duration" not in key})
    other = json.dumps({"name": "GET /health", "startTimeUnixNano": "5", "duration": 3})
    path.write_text("\n".join((other, whole, failed, whole, whole[:40])))  # the last line is still written
    (minute,) = read_intervals(path)
    assert minute.run.notes == ("1 of 3 requests are left out: spans.jsonl, request 3: has no e2e: none of "
                                "gen_ai.server.request.duration, gen_ai.latency.e2e, e2e_s, duration",)  # fmt: skip
    assumed = ("engine vllm is assumed; --engine says otherwise",)
    assert watch([minute], **SAID).notes == (*minute.run.notes, *assumed)
    collected = {"resourceSpans": [{"scopeSpans": [{"spans": [json.loads(other), SPAN]}, {"spans": [SPAN]}]}]}
    path.write_text(json.dumps(collected) + "\n" + json.dumps(collected))
    (minute,) = read_intervals(path)
    assert minute.run.facts.isl == 1000.0 and minute.run.facts.model == "llama-3-8b"


def test_what_is_no_log_says_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    for text, said in (('{"foo": 1}\n{"foo": 2}', "no line is a request with input_tokens, output_tokens and ttft_s"),
                       (exposition(AN_HOUR), "without the time of its scrape: `rooflinekit compare` reads it"),
                       ("a,b\n1,2", "neither a recording")):  # fmt: skip
        path.write_text(text)
        with pytest.raises(SpecError, match=said):
            read_intervals(path)


@pytest.mark.parametrize("rotate", ["renamed", "cut"])
def test_a_log_that_grows_is_followed_through_its_rotation(tmp_path: Path, rotate: str, monkeypatch: Any) -> None:
    path = tmp_path / "requests.jsonl"
    requests = steady(60.0, 420.0)
    parts = [requests[:200], requests[200:330], requests[330:350], requests[350:]]

    def look(seconds: float) -> None:
        if not parts:
            raise KeyboardInterrupt
        text = "".join(f"{json.dumps(each)}\n" for each in parts.pop(0)) + "no JSON\n"
        if len(parts) == 2:  # between two looks, the lines above were read
            if rotate == "renamed":
                path.rename(tmp_path / "requests.jsonl.1")
            else:
                path.write_text("")
        with path.open("a") as file:
            file.write(text)

    path.write_text("")
    monkeypatch.setattr("rooflinekit.cli.watch.time.sleep", look)
    options = ["--model", "llama-3-8b", "--gpu", "h100", "--tp", "1", "--format", "json"]
    shown = CliRunner().invoke(app, ["watch", str(path), "--follow", *options])
    assert shown.exit_code == 0, shown.output
    assert "1 lines are no JSON objects" in shown.stderr
    found = json.loads(shown.stdout)["intervals"]
    assert [each["end"] for each in found] == [120.0, 180.0, 240.0, 300.0, 360.0]  # that of 420 may go on
    assert all(each["rate"] == pytest.approx(2.0, rel=0.02) for each in found)
    refused = CliRunner().invoke(app, ["watch", str(path), "--follow", "--once", *options])
    assert refused.exit_code == 2 and "give one of them" in refused.stderr


HOUR = 30  # minutes that say what is usual, in these tests


Machine = tuple[tuple[str, float], ...]
"""Costs of its engine that differ from the usual ones."""
USUAL: Machine = ()


@cache
def machine(costs: Machine) -> Predictor:
    predictor = resolve_facts(RunFacts(**SAID), Given()).predictor
    engine = predictor.plan.engine
    return predictor.on(replace(predictor.plan, engine=replace(engine, costs=replace(engine.costs, **dict(costs)))))


@cache
def loaded_at(costs: Machine, rate: float, isl: float) -> LoadPlay:
    return play_load(machine(costs), Load(Fixed(int(isl)), Fixed(200), rate=rate))


def served(costs: Machine, rate: float, start: float, noise: random.Random, isl: float = 1000.0) -> MeasuredInterval:
    """A minute of an open loop on a machine, as its clients measure it."""
    loaded = loaded_at(costs, rate, isl)
    near = [math.exp(noise.gauss(0.0, 0.01)) for _ in range(2)]
    tpot, ttft = 1e3 * loaded.tpot * near[0], 1e3 * loaded.samples["ttft"].mean * near[1] ** 4
    run = MeasuredRun(
        "test", "test", RunFacts(engine="vllm", isl=isl, osl=200.0, rate=rate),
        MeasuredSpread(mean=ttft), MeasuredSpread(mean=tpot),
        e2e=MeasuredSpread(mean=ttft + 199.0 * tpot), output_tok_s=200.0 * rate, request_s=rate,
    )  # fmt: skip
    parts = loaded.played.first_parts
    return MeasuredInterval(start, start + 60.0, run, waiting=(parts.under_way + parts.behind + parts.place) * rate)


def see(watcher: Watcher, costs: Machine, minutes: range, noise: random.Random) -> Watcher:
    """Minutes of a rate that swings from 4 to 12."""
    for minute in minutes:
        rate = float(round(8.0 + 4.0 * math.sin(minute / 3.0)))
        watcher.see(served(costs, rate, 60.0 * minute, noise))
    return watcher


@pytest.fixture(scope="module")
def learnt() -> tuple[Watcher, random.Random]:
    """What has seen the usual."""
    noise = random.Random(0)
    return see(Watcher(Given.of(**SAID), learnt=HOUR), USUAL, range(HOUR), noise), noise


@pytest.fixture
def watched(learnt: tuple[Watcher, random.Random]) -> Callable[[Machine], Watched]:
    """watched(costs): the answer after ten minutes on such a machine behind the usual ones."""
    watcher, noise = deepcopy(learnt)
    return lambda costs: see(watcher, costs, range(HOUR, HOUR + 10), noise).answer()


def test_the_usual_gives_no_drift_and_a_gap_of_nothing(watched: Callable[[Machine], Watched]) -> None:
    answer = watched(USUAL)
    assert answer.drifts == ()
    now = answer.now
    assert now.tpot.measured == pytest.approx(now.tpot.expected, rel=0.05)
    assert now.batch_ms is not None and now.step_ms is not None and now.tpot.measured is not None
    assert now.batch_ms + now.step_ms == pytest.approx(now.tpot.measured - now.tpot.expected)
    assert answer.headroom is not None and 0.0 < answer.headroom.share < 1.0


@pytest.mark.parametrize(
    ("costs", "cause"),
    [({"memory": 1.1}, "kernels"), ({"memory": 1.2}, "kernels"), ({"step": 5e-4}, "host"), ({"grouped": 1.0}, "cache")],
)  # fmt: skip
def test_a_planted_slow_down_is_found_within_five_minutes_with_its_cause(
    watched: Callable[[Machine], Watched], costs: dict[str, float], cause: str
) -> None:
    plain = machine(USUAL).plan.costs
    planted = {name: value * plain.memory if name == "memory" else value + getattr(plain, name)
               for name, value in costs.items()}  # fmt: skip
    answer = watched(tuple(planted.items()))
    drift = next(each for each in answer.drifts if each.metric == "tpot")
    began = 60.0 * HOUR
    assert abs(drift.since - began) <= 300.0
    assert began < drift.found <= began + 300.0
    assert 0.02 < drift.change < 0.35
    assert drift.cause.startswith((cause, "steps take longer"))  # a few per cent of these loads may fit two causes
    assert drift.change < 0.12 or drift.cause.startswith(cause)


def test_a_slow_down_that_ends_is_no_drift_any_more() -> None:
    watcher, noise, slow, plain = Watcher(Given.of(**SAID), HOUR), random.Random(3), (("step", 4e-3),), USUAL
    for minute in range(HOUR + 15):
        watcher.see(served(slow if HOUR <= minute < HOUR + 10 else plain, 8.0, 60.0 * minute, noise))
    assert not [each for each in watcher.answer().drifts if each.metric == "tpot"]


def test_chance_alone_is_a_drift_less_than_once_a_week() -> None:
    """Normal noise, of which every fiftieth value varies three times as much in every other week."""
    noise, weeks, alarms = random.Random(0), 12, 0
    for week in range(weeks):
        change, was = ChangeDetector(0.05), False
        spread, outliers = (0.01, 0.02, 0.03)[week % 3], 0.02 * (week % 2)
        for place in range(7 * 24 * 60):
            change.see(noise.gauss(0.0, spread * (3.0 if noise.random() < outliers else 1.0)), place)
            alarms += change.since is not None and not was
            was = change.since is not None
    assert alarms <= weeks


def swinging(minute: int) -> tuple[float, float]:
    """Strain and logarithm of the predicted step, which is 6.5 to 12.5 ms over the day; the host takes 1 ms more."""
    predicted = 9.5 + 3.0 * math.sin(2.0 * math.pi * minute / (24 * 60))
    return math.log1p(1.0 / predicted), math.log(predicted)


def test_traffic_that_swings_is_no_drift_where_the_prediction_is_off_by_another_share_at_each_load() -> None:
    """1 ms is 14 % of a short step and 8 % of a long one, which is a swing of 6 % each day."""
    noise, alarms = random.Random(0), 0
    for _ in range(2):
        change, was = ChangeDetector(0.05), False
        for minute in range(7 * 24 * 60):
            strain, at = swinging(minute)
            change.see(strain + noise.gauss(0.0, 0.01), minute, at)
            alarms += change.since is not None and not was
            was = change.since is not None
    assert alarms == 0


@pytest.mark.parametrize("hour", [0, 6, 12, 18])
def test_a_step_that_is_5_percent_longer_is_found_at_every_hour_of_such_traffic(hour: int) -> None:
    noise, change, begun = random.Random(hour), ChangeDetector(0.05), 60 * (26 + hour)
    for minute in range(begun + 5):
        strain, at = swinging(minute)
        change.see(strain + noise.gauss(0.0, 0.01) + (0.05 if minute >= begun else 0.0), minute, at)
    assert change.since is not None and abs(change.since - begun) <= 2


@pytest.mark.slow
def test_what_was_seen_updates_the_costs_of_the_engine(tmp_path: Path) -> None:
    """A step is 1 ms longer than shipped: a later minute is predicted within 2 %, and the file knows what it saw."""
    costs, noise = (("step", machine(USUAL).plan.engine.costs.step + 1e-3),), random.Random(4)
    watcher = Watcher(Given.of(**SAID))
    for turn, rate in enumerate((4.0, 8.0, 12.0)):
        watcher.see(served(costs, rate, 60.0 * turn, noise))
    path = tmp_path / "mine.yaml"
    fit = watcher.fit("2026-11-23")
    path.write_text(fit.text)
    given = Given.of(**SAID, calibration=str(path))
    now = Watcher(given).see(served(costs, 10.0, 300.0, noise))
    assert now.tpot.measured == pytest.approx(now.tpot.expected, rel=0.02)
    before = watcher.seen[-1].tpot
    assert before.measured is not None and before.measured > 1.08 * before.expected
    posterior = load_calibration(str(path)).served
    prior = next(each.prior for each in fit.outcomes if each.prior.name == "step")
    assert posterior is not None and 0.0 < posterior.errors["step"] < 0.8 * prior.spread
    watcher.given = given
    with pytest.raises(InputError, match="has seen every one"):
        watcher.fit("2026-11-24")


def test_preemptions_are_named() -> None:
    watcher, noise, slow = Watcher(Given.of(**SAID), HOUR), random.Random(1), (("step", 4e-3),)
    for minute in range(HOUR + 5):
        each = served(slow if minute >= HOUR else USUAL, 8.0, 60.0 * minute, noise)
        watcher.see(replace(each, preemptions=40.0 if minute >= HOUR else 0.0))
    assert "preemptions: 40 an interval" in watcher.answer().drifts[0].cause


@pytest.mark.slow
def test_stalls_hide_no_slow_down_and_are_named_when_they_grow() -> None:
    """Stalls add 5 to 25 % to the mean of a minute at random: a step that is 5 % longer is found all the same."""
    chance, noise = random.Random(5), random.Random(1)

    def minute(place: int, slower: float, stalled: tuple[float, float], preempted: float) -> MeasuredInterval:
        each = served(USUAL, 8.0, 60.0 * place, noise)
        step = slower * (each.run.tpot.mean or 0.0)
        run = replace(each.run, tpot=MeasuredSpread(mean=step * (1.0 + chance.uniform(*stalled))))
        return replace(each, run=run, moving_ms=step, preemptions=preempted)

    usual = Watcher(Given.of(**SAID), HOUR)
    for place in range(HOUR):
        usual.see(minute(place, 1.0, (0.05, 0.25), 3.0))
    longer, thrown = deepcopy(usual), deepcopy(usual)
    for place in range(HOUR, HOUR + 5):
        longer.see(minute(place, 1.05, (0.05, 0.25), 3.0))
    for place in range(HOUR, HOUR + 10):
        thrown.see(minute(place, 1.0, (0.4, 0.6), 40.0))
    assert [each.metric for each in usual.answer().drifts] == []
    (drift,) = longer.answer().drifts
    assert drift.metric == "tpot" and drift.change == pytest.approx(0.05, abs=0.015)
    (drift,) = thrown.answer().drifts
    assert drift.metric == "stalls" and drift.cause == "preemptions: 40 an interval, 3 before"
    now = thrown.answer().now
    assert now.stall_ms is not None and now.tpot.measured is not None
    parts = (now.batch_ms or 0.0) + now.stall_ms + (now.step_ms or 0.0)
    assert parts == pytest.approx(now.tpot.measured - now.tpot.expected)


@pytest.mark.slow
def test_longer_prompts_are_what_moved_the_prediction() -> None:
    noise, plain = random.Random(2), USUAL
    minutes = [served(plain, 8.0, 60.0 * n, noise, 1000.0 if n < LEARNT else 3000.0) for n in range(LEARNT + 1)]
    moved = watch(minutes, **SAID).moved
    assert max(moved, key=lambda name: abs(moved[name] - 1.0)) == "isl" and moved["isl"] > 1.1
    assert moved["hits"] == 1.0


def test_a_growing_rate_meets_the_knee_when_its_line_does() -> None:
    noise, plain = random.Random(2), USUAL
    seen = [
        set_beside(each, pose(each.run, Given.of(**SAID)), 1)
        for each in (served(plain, 4.0 + minute / 6.0, 600.0 * minute, noise) for minute in range(12))
    ]
    left = headroom([replace(each, end=each.end + 600.0 * 12 * turn, rate=each.rate + 2.0 * turn)
                     for turn in range(6) for each in seen])  # fmt: skip
    assert left is not None and left.hours_left is not None
    assert left.hours_left == pytest.approx(left.knee - left.rate, rel=0.05)  # one request a second more each hour
    assert left.hours_between is not None and left.hours_between[0] <= left.hours_left <= left.hours_between[1]


def promised(growth: float, alike: float, draws: int = 300) -> tuple[float, float]:
    """Shares of six hours of minutes that promise an end of the headroom, and whose interval has the true one.

    Each minute is off by chance, and by a swing that a fifth of an hour (`alike` minutes) forgets.
    """
    noise, told, within, true = random.Random(4), 0, 0, 18.0 / growth if growth else math.inf
    for _ in range(draws):
        swing, seen = 0.0, []
        for minute in range(360):
            keeps = math.exp(-1.0 / alike) if alike else 0.0
            swing = keeps * swing + math.sqrt(1.0 - keeps**2) * noise.gauss(0.0, 1.0)
            rate = 10.0 + swing + growth * (minute - 359) / 60.0
            seen.append(SimpleNamespace(end=60.0 * minute, knee=28.0, rate=rate, replicas=1))
        left = headroom(seen)  # type: ignore[arg-type]
        if left is not None and left.hours_between is not None:
            told += 1
            within += left.hours_between[0] <= true <= left.hours_between[1]
    return told / draws, within / max(told, 1)


@pytest.mark.parametrize("alike", [0.0, 12.0])
def test_minutes_that_err_alike_promise_no_more_than_they_know(alike: float) -> None:
    """A chance of 0.5 % of a growth that is none; an interval that holds the true time nine times out of ten."""
    assert promised(0.0, alike)[0] < 0.03
    told, within = promised(2.0, alike)
    assert told > 0.95 and within == pytest.approx(0.9, abs=0.06)


def days(count: float, growth: float) -> list[Any]:
    """Minutes of a rate that swings between 5 and 15 each day and grows by a share of 10 a day; the knee is at 40."""
    noise = random.Random(1)
    return [
        SimpleNamespace(end=60.0 * minute, knee=40.0, replicas=1, rate=noise.gauss(0.0, 0.4) + 10.0 * (
            1.0 + growth * minute / 1440 + 0.5 * math.sin(2.0 * math.pi * minute / 1440)))
        for minute in range(int(1440 * count))
    ]  # fmt: skip


@pytest.mark.parametrize("count", [1.3, 1.7, 2.4, 3.0, 6.6])
def test_a_swing_of_each_day_is_no_growth(count: float) -> None:
    left = headroom(days(count, 0.0))
    assert left is not None and left.hours_left is None
    assert left.peak == (None if count < 2.0 else pytest.approx(15.0, abs=0.3))


@pytest.mark.parametrize(("count", "growth"), [(1.4, 0.0), (2.4, 0.1), (5.5, 0.1)])
def test_before_six_days_the_last_day_is_set_beside_the_same_hours_of_the_day_before(
    count: float, growth: float
) -> None:
    """A day grows by `growth` of 10 requests a second; the swing of the day does not hide it, nothing is promised."""
    seen = days(count, growth)
    left = headroom(seen)
    assert left is not None and left.hours_left is None and left.known_from is not None
    hours = min(24.0, math.floor(24.0 * (count - 1.0)))
    ends = [minute / 1440 for minute in range(int(1440 * count) - 1440 - 60 * int(hours), int(1440 * count) - 1440)]
    usual = fmean(1.0 + growth * at + 0.5 * math.sin(2.0 * math.pi * at) for at in ends)
    assert left.day_change == pytest.approx(growth / usual, abs=0.01)
    assert left.day_between is not None and left.day_between[0] < left.day_change < left.day_between[1]
    since = left.known_from - seen[0].end
    assert (headroom(days(since / 86_400 + 0.01, 0.1)) or left).hours_left is not None
    words = list(_left(SimpleNamespace(headroom=left)))  # type: ignore[arg-type]
    assert "against the same hours a day before" in words[0]
    assert ("if each day adds as much, none is left in" in words[0]) == (growth > 0.0)
    assert words[1] == "too early to tell a growth from the swing of a week: known from Tue 23:00"


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("count", [1.6, 2.4, 4.0, 5.5])
def test_before_six_days_the_time_left_holds_if_each_day_adds_as_much(count: float, alike: bool) -> None:
    """As many requests at each hour (`alike`), or as large a part of each hour; the knee is at 40, the peak near 15."""
    added, seen = 1.5, days(count, 0.15)
    if not alike:
        for each in seen:
            day = each.end / 86_400
            each.rate += 1.5 * day * 0.5 * math.sin(2.0 * math.pi * day)
        added = 2.25
    left = headroom(seen)
    assert left is not None and left.hours_left is None and left.hours_if_repeated is not None
    peak = max(fmean(each.rate for each in seen[-60 * hour - 60 : len(seen) - 60 * hour]) for hour in range(24))
    sooner, later = left.hours_if_repeated
    assert sooner < 24.0 * (40.0 - peak) / added < later
    assert later < 4.0 * sooner
    assert (headroom(days(count, 0.0)) or left).hours_if_repeated is None


def test_a_day_like_the_one_before_has_no_change_within_its_interval() -> None:
    """Of 300 pairs of days whose hours err by chance, nine in ten intervals hold zero."""
    noise, within = random.Random(6), 0
    for _ in range(300):
        left = headroom([SimpleNamespace(end=3600.0 * hour, knee=40.0, replicas=1, rate=10.0 + noise.gauss(0.0, 1.0))
                         for hour in range(61)])  # fmt: skip
        assert left is not None and left.day_between is not None
        within += left.day_between[0] <= 0.0 <= left.day_between[1]
    assert within / 300 == pytest.approx(0.9, abs=0.05)


def test_a_busier_week_end_or_a_busier_day_is_no_growth() -> None:
    """The hours of a day rise and fall together: days, not hours, say whether traffic grows."""
    noise = random.Random(5)
    for count in (7, 9, 15):
        promised = 0
        for _ in range(60):
            busy = [noise.gauss(0.0, 1.0) + (2.0 if day % 7 < 5 else 0.0) for day in range(count)]
            left = headroom([
                SimpleNamespace(end=3600.0 * hour, knee=28.0, replicas=1,
                                rate=10.0 + busy[hour // 24] + noise.gauss(0.0, 0.1))
                for hour in range(24 * count)
            ])  # fmt: skip
            promised += left is not None and left.hours_left is not None
        assert promised <= 3


@pytest.mark.parametrize("count", [6.3, 9.0, 15.0])
def test_a_peak_that_grows_from_day_to_day_meets_the_knee(count: float) -> None:
    """1 request a second more each day: the peak is 40 when it has grown by 40 less its last height."""
    left = headroom(days(count, 0.1))
    assert left is not None and left.peak is not None and left.hours_left is not None
    assert left.peak == pytest.approx(15.0 + math.floor(count - 0.27) + 0.25, abs=0.3)  # at six in the morning
    assert left.hours_left == pytest.approx(24.0 * (40.0 - left.peak), rel=0.1)


def test_the_cache_and_the_queue_are_predicted_too() -> None:
    """Little's law: requests that have a place times their mean length, over what the cache holds."""
    minute = replace(served(USUAL, 8.0, 0.0, random.Random(0)), kv_tokens=64_000, kv_use=0.3)
    seen, loaded = Watcher(Given.of(**SAID)).see(minute), loaded_at(USUAL, 8.0, 1000.0)
    assert seen.kv_expected == pytest.approx(loaded.played.running * 1108.0 / 64_000, rel=0.02)  # whole blocks of 16
    assert seen.waiting_expected == pytest.approx(minute.waiting)


def test_nothing_that_is_missing_is_guessed() -> None:
    minute = served(USUAL, 8.0, 0.0, random.Random(0))
    with pytest.raises(InputError, match="add --model, --gpu"):
        watch([minute])
    with pytest.raises(InputError, match="no request came"):
        watch([], **SAID)
    with pytest.raises(InputError, match="add --rate"):
        silent = replace(minute, run=replace(minute.run, facts=replace(minute.run.facts, rate=None)))
        watch([silent], **SAID, concurrency=4)


def test_a_server_that_counts_tokens_alone_asks_for_their_mean_and_no_rate() -> None:
    """The rate follows from the tokens; `watch` has no --concurrency either."""
    run = MeasuredRun("url", "llamacpp metrics", RunFacts(engine="llama.cpp"), output_tok_s=200.0)
    with pytest.raises(InputError, match=r"add --model, --gpu, --isl, --osl$"):
        watch([MeasuredInterval(0.0, 60.0, run)])
    posed = pose(run, Given.of(**SAID, isl=100, osl=50))
    assert posed.load.rate == pytest.approx(4.0)


def test_the_command_shows_a_log(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text("\n".join(json.dumps({**FLAT, "start_time": 60 + n, "gen_ai.usage.output_tokens": 50,
                                          "gen_ai.server.request.duration": 1.0}) for n in range(20)))  # fmt: skip
    options = ["--model", "llama-3-8b", "--gpu", "h100", "--tp", "1"]
    shown = CliRunner().invoke(app, ["watch", str(path), *options])
    assert shown.exit_code == 0, shown.output
    assert "1.00 requests/s, 3,000 tokens in, 50 out" in shown.stdout  # twenty in the twenty seconds of the log
    assert "headroom" in shown.stdout
    found = json.loads(CliRunner().invoke(app, ["watch", str(path), *options, "--format", "json"]).stdout)
    assert found["intervals"][0]["tpot"]["measured"] == pytest.approx(1e3 * 0.6 / 49)
    refused = CliRunner().invoke(app, ["watch", str(path), "http://localhost/metrics", *options])
    assert refused.exit_code == 2 and "not both" in refused.stderr


def _free() -> int:
    """A port that nobody listens at."""
    with socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_running_server_is_looked_at_and_recorded(tmp_path: Path) -> None:
    asked: list[int] = []

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(1)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(exposition({name: value * len(asked) for name, value in AN_HOUR.items()}).encode())

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Server) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address, recorded = f"http://127.0.0.1:{server.server_port}/metrics", tmp_path / "day.prom"
        options = [
            "--gpu",
            "h100",
            "--tp",
            "1",
            "--once",
            "--every",
            "1",
            "--record",
            str(recorded),
            "--listen",
            str(port := _free()),
            "--format",
            "json",
        ]
        shown = CliRunner().invoke(app, ["watch", address, *options])
        server.shutdown()
    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.stdout)
    assert found["model"] == "llama-3-8b" and found["intervals"][0]["hits"] == 0.25
    with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        own = answer.read().decode()
    assert 'rooflinekit_seconds{kind="measured",metric="ttft"} 0.1\n' in own
    assert 'rooflinekit_drift_ratio{metric="tpot"} 0.0\n' in own and "rooflinekit_headroom_ratio" in own
    assert read_intervals(recorded)[0].run.ttft.mean == pytest.approx(100.0)


class Closed(BaseHTTPRequestHandler):
    """Metrics for who has the key; elsewhere it must not come."""

    asked: ClassVar[dict[str, list[str | None]]] = {}

    def do_GET(self) -> None:
        shown = self.asked.setdefault(self.path, [])
        shown.append(self.headers["Authorization"])
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", f"http://localhost:{self.server.server_address[1]}/metrics")
            self.end_headers()
            return
        self.send_response(200 if shown[-1] == "Bearer key" else 401)
        self.end_headers()
        if shown[-1] == "Bearer key":
            self.wfile.write(exposition({name: value * len(shown) for name, value in AN_HOUR.items()}).encode())

    def log_message(self, *args: object) -> None:
        """Say nothing."""


def test_metrics_that_need_a_key_get_it_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["--gpu", "h100-sxm", "--tp", "1", "--once", "--every", "1"]
    with ThreadingHTTPServer(("127.0.0.1", 0), Closed) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.delenv("ROOFLINEKIT_WATCH_TOKEN", raising=False)
        without = CliRunner().invoke(app, ["watch", f"{address}/metrics", *options])
        assert without.exit_code == 2 and "answers 401 Unauthorized; ROOFLINEKIT_WATCH_TOKEN" in without.stderr
        monkeypatch.setenv("ROOFLINEKIT_WATCH_TOKEN", "key")
        shown = CliRunner().invoke(app, ["watch", f"{address}/metrics", *options])
        assert shown.exit_code == 0 and "headroom" in shown.stdout, shown.output
        moved = CliRunner().invoke(app, ["watch", f"{address}/moved", *options])
        assert moved.exit_code == 2
        assert Closed.asked["/moved"] == ["Bearer key"] and Closed.asked["/metrics"][-1] is None
        monkeypatch.setenv("ROOFLINEKIT_WATCH_TOKEN", "secret\nkey")
        torn = CliRunner().invoke(app, ["watch", f"{address}/metrics", *options])
        assert torn.exit_code == 2 and "no header can" in torn.stderr and "secret" not in torn.stderr
        server.shutdown()


def test_the_other_servers_are_watched_while_one_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They answer as a fleet of fewer; the one that comes back counts again from its second look on."""
    servers = {"http://a": after_minutes(*[AN_HOUR] * 4), "http://b": after_minutes(*[AN_HOUR] * 4)}
    looks = {name: iter(said) for name, said in servers.items()}
    clock = [0.0]

    def fetched(address: str, token: str) -> str:
        text = next(looks[address])
        if address == "http://b" and text == servers["http://b"][2]:
            raise SpecError(f"{address} does not answer")
        return text

    monkeypatch.setattr("rooflinekit.cli.watch._fetched", fetched)
    monkeypatch.setattr("rooflinekit.cli.watch.time", SimpleNamespace(
        monotonic=lambda: clock[-1], time=lambda: clock[-1], sleep=lambda _: clock.append(clock[-1] + 60.0),
    ))  # fmt: skip
    path = tmp_path / "day.prom"
    watcher, live = Watcher(Given.of(gpu="h100-sxm", tp=1)), _intervals([*servers], 60.0, path)
    for _ in range(4):
        watcher.see(*next(live))
    assert "http://b does not answer; looking again" in capsys.readouterr().err
    assert [each.rate for each in watcher.seen] == [pytest.approx(rate) for rate in (2.0, 1.0, 1.0, 2.0)]
    knees = [each.knee for each in watcher.seen]
    assert knees[0] == knees[3] == pytest.approx(2.0 * knees[1]) and knees[1] == knees[2]
    again = watch(read_intervals(path), gpu="h100-sxm", tp=1)
    assert again.intervals == tuple(watcher.seen) and again.gpus == watcher.answer().gpus == 2


class Strange(BaseHTTPRequestHandler):
    """Answers as its path says, at the second look; a server that is whole otherwise."""

    looks = 0

    def do_GET(self) -> None:
        Strange.looks += 1
        kind = self.path[1:] if Strange.looks == 2 or self.path == "/gzip" else ""
        body = exposition({name: value * Strange.looks for name, value in AN_HOUR.items()}).encode()
        length = len(body)
        if kind == "html":
            body = b"<html><body>502 \x1b[2J Bad gateway" + b"x" * 500
            length = len(body)
        if kind == "many":
            body += b"a 1\n" * 60_000
            length = len(body)
        if kind == "huge":
            length = 64 << 20  # of which nothing is read
        if kind == "short":
            body = body[: body.index(b"\n", length // 2)]
        if kind == "gzip":
            body = gzip.compress(body)
            length = len(body)
        if kind == "garbage":
            self.wfile.write(b"garbage\r\n\r\n")
            return
        self.send_response(503 if kind == "busy" else 200)
        self.send_header("Content-Length", str(length))
        if kind == "gzip":
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        with suppress(OSError):  # who asked has gone
            for turn in range(20 if kind == "slow" else 0):
                self.wfile.write(body[turn : turn + 1])
                time.sleep(0.05)
            self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.mark.parametrize(
    ("kind", "said"),
    [("html", "is no Prometheus text exposition"), ("short", "the answer ends early"), ("busy", "answers 503"),
     ("garbage", "does not answer"), ("slow", "takes more than 0.3 s"), ("gzip", ""),
     ("many", "lines of metrics"), ("huge", "more than 8 MB of metrics")],
)  # fmt: skip
def test_a_look_that_gives_no_metrics_is_said_and_taken_again(
    kind: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It neither ends the watch nor goes into the recording, nor does a page that is cut count as a new start."""
    monkeypatch.setattr(Strange, "looks", 0)
    monkeypatch.setattr("rooflinekit.cli.watch._LONGEST", 0.3)
    sleep = time.sleep
    monkeypatch.setattr("rooflinekit.cli.watch.time.sleep", lambda seconds: sleep(min(seconds, 0.2)))
    recorded = tmp_path / "day.prom"
    with ThreadingHTTPServer(("127.0.0.1", 0), Strange) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        options = ["--gpu", "h100", "--tp", "1", "--once", "--every", "1", "--record", str(recorded)]
        shown = CliRunner().invoke(app, ["watch", f"http://127.0.0.1:{server.server_port}/{kind}", *options])
        server.shutdown()
    assert shown.exit_code == 0, shown.output
    assert said in shown.stderr and len(shown.stderr) < 300
    (only,) = read_intervals(recorded)
    assert only.run.facts.rate is not None
    assert only.run.facts.rate * (only.end - only.start) == pytest.approx(AN_HOUR["requests"] * (1 + bool(said)))


def test_a_server_that_does_not_answer_is_named() -> None:
    refused = CliRunner().invoke(app, ["watch", "http://127.0.0.1:9/metrics", "--gpu", "h100", "--tp", "1"])
    assert refused.exit_code == 2
    assert "http://127.0.0.1:9/metrics does not answer" in refused.stderr


@pytest.mark.parametrize(
    ("sources", "said"),
    [(["localhost:8000/metrics"], "the address of a server begins with http:// or https://"),
     (["htp://localhost/metrics"], "the address of a server begins with http:// or https://"),
     (["http://localhost/a", "http://localhost/a"], "http://localhost/a is given twice"),
     (["http://me:secret@localhost/a"], "an address holds no user and no password")],
)  # fmt: skip
def test_addresses_that_are_none_are_refused_by_name(sources: list[str], said: str) -> None:
    refused = CliRunner().invoke(app, ["watch", *sources, "--gpu", "h100", "--tp", "1"])
    assert refused.exit_code == 2 and said in refused.stderr and "secret" not in refused.stderr


def test_a_recording_goes_on_in_a_recording_and_in_no_other_file(tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("mine\n")
    for place, said in ((other, "is no recording; name another file"), (tmp_path, "is a folder"),
                        (tmp_path / "none" / "day.prom", "is not a folder; make it first")):  # fmt: skip
        options = ["--gpu", "h100", "--tp", "1", "--once", "--record", str(place)]
        refused = CliRunner().invoke(app, ["watch", "http://127.0.0.1:9/metrics", *options])
        assert refused.exit_code == 2 and said in refused.stderr
    assert other.read_text() == "mine\n"


def test_an_interval_that_cannot_be_predicted_ends_no_watch() -> None:
    good, bad = read_recording("day", recorded(after_minutes(AN_HOUR, AN_HOUR)))
    bad = replace(bad, run=replace(bad.run, facts=replace(bad.run.facts, isl=None)))
    watcher = Watcher(Given.of(gpu="h100-sxm", tp=1))
    with pytest.raises(InputError, match="add --isl"):
        watcher.see_all([bad])  # the first one says what is missing
    (said,) = watcher.see_all([good, bad, good])
    assert len(watcher.seen) == 2 and "add --isl" in said
    answer = watch([bad, good, bad], gpu="h100-sxm", tp=1)
    assert len(answer.intervals) == 1 and answer.notes[-1].startswith("2 intervals are left out: ")


# --- values and times that cannot be ----------------------------------------------------------------------------------

EPOCH = 1_764_000_000.0


def log_of(stamps: list[object], **more: object) -> list[dict[str, object]]:
    """Requests of one second, one at each of these times."""
    return [{**FLAT, "start_time": stamp, "gen_ai.usage.output_tokens": 50, "gen_ai.server.request.duration": 1.0,
             **more} for stamp in stamps]  # fmt: skip


def answered(path: Path, *words: str) -> dict[str, Any]:
    shown = CliRunner().invoke(app, ["watch", str(path), "--model", "llama-3-8b", "--gpu", "h100", "--tp", "1",
                                     "--format", "json", *words])  # fmt: skip
    assert shown.exit_code == 0, shown.output
    found: dict[str, Any] = json.loads(shown.stdout)
    return found


@pytest.mark.parametrize(("unit", "factor"), [("s", 1), ("ms", 1e3), ("us", 1e6), ("ns", 1e9)])
@pytest.mark.parametrize("kind", [float, int, str])
def test_the_unit_of_times_is_recognised_and_said(
    unit: str, factor: float, kind: Callable[[object], object], tmp_path: Path
) -> None:
    path = tmp_path / "requests.jsonl"
    stamps = [kind(round((EPOCH + at) * factor)) for at in range(120)]
    path.write_text("".join(json.dumps(each) + "\n" for each in log_of(stamps)))
    found = answered(path)
    assert found["intervals"][0]["start"] == pytest.approx(EPOCH) and found["intervals"][0]["rate"] == 1.0
    assert [note for note in found["notes"] if "recognised" in note] == (
        [f"times in {unit} are recognised by their size"] if unit != "s" else []
    )


def test_spans_of_this_century_have_their_nanoseconds(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    named = [{key: value for key, value in each.items() if key != "start_time"} for each in log_of([0] * 60)]
    path.write_text("".join(
        json.dumps({**each, "startTimeUnixNano": str(round((EPOCH + at) * 1e9))}) + "\n"
        for at, each in enumerate(named)
    ))  # fmt: skip
    assert answered(path)["intervals"][0]["start"] == pytest.approx(EPOCH)


BAD_TIMES = (math.nan, math.inf, -1.0, 5e9, 1e400, 10**400, "1e99", "9" * 400, "yesterday", "0001-01-01T00:00:00+23:00",
             "9999-12-31T23:59:59", None, True, [1], {}, EPOCH - 9e8, EPOCH + 9e8)  # fmt: skip


@pytest.mark.parametrize("stamp", BAD_TIMES, ids=lambda stamp: str(stamp)[:20])
def test_one_bad_time_among_120_lines_costs_itself_and_a_line(stamp: object, tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    stamps: list[object] = [EPOCH + at for at in range(120)]
    path.write_text("".join(json.dumps(each) + "\n" for each in log_of([*stamps[:60], stamp, *stamps[60:]])))
    found = answered(path)
    assert sum(each["rate"] * (each["end"] - each["start"]) for each in found["intervals"]) == pytest.approx(120, abs=2)
    assert any(note.startswith("1 of 121 requests are left out: ") for note in found["notes"])


@pytest.mark.parametrize("value", [math.nan, math.inf, -1, 1e400, 10**400, "1e99", 1e12, 0, "x", [1]],
                         ids=lambda value: str(value)[:20])  # fmt: skip
@pytest.mark.parametrize("name", ["gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens",
                                  "gen_ai.server.time_to_first_token", "gen_ai.server.request.duration"])  # fmt: skip
def test_one_bad_value_among_120_lines_costs_itself(name: str, value: object, tmp_path: Path) -> None:
    if name.endswith("first_token") and value == 0:
        pytest.skip("a first token at once is none of these")
    lines = log_of([EPOCH + at for at in range(120)])
    lines[60] |= {name: value}
    path = tmp_path / "requests.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    found = answered(path)
    assert any(note.startswith("1 of 120 requests are left out: requests.jsonl, request 61") for note in found["notes"])
    assert found["intervals"][-1]["isl"] == 3000.0


def test_a_line_that_is_cut_within_a_log_costs_itself(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    lines = [json.dumps(each) for each in log_of([EPOCH + at for at in range(60)])]
    path.write_text("\n".join([*lines[:30], lines[30][:50], *lines[31:]]) + "\n")
    assert any("1 lines cannot be read" in note and "line 31" in note for note in answered(path)["notes"])


NUMBER = "generation_tokens_total", "time_to_first_token_seconds_sum", "time_to_first_token_seconds_count", "le"


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-1", "1e400", "9" * 400, "1e300"])
@pytest.mark.parametrize("name", [
    *NUMBER, "e2e_request_latency_seconds_sum", "inter_token_latency_seconds_count", "num_requests_running",
    "kv_cache_usage_perc", "num_gpu_blocks", "request_prompt_tokens_sum", "time_to_first_token_seconds_bucket",
])  # fmt: skip
def test_one_value_out_of_range_in_metrics_costs_that_quantity(name: str, value: str) -> None:
    """Neither the watch nor, as a total since the start, the next interval."""
    said = after_minutes(AN_HOUR, AN_HOUR, AN_HOUR)
    bad = re.sub(rf'({name}(?:="|\S*\}}? ))[^" \n]+', rf"\g<1>{value}", said[1], count=1)
    if (name, value) == ("le", "+Inf"):
        pytest.skip("it is the last bucket's")
    assert bad != said[1]
    found = read_recording("day", recorded([said[0], bad, *said[2:]]))
    assert found[-1].run.facts == read_recording("day", recorded(said))[-1].run.facts
    answer = watch(found, gpu="h100-sxm", tp=1)
    for each in answer.intervals:
        assert 0.0 < each.rate < 100.0
        assert each.tpot.measured is None or 0.0 < each.tpot.measured < 1e4
    if name not in ("le", "num_gpu_blocks"):
        assert any("samples are out of range: " in note for note in answer.notes)


@pytest.mark.parametrize("clock", [[0, 60, 9e8, 180, 240], [0, 60, 120, -3e3, -2940], [0, "x", 120, 180], [0, 60, 60]])
def test_a_clock_that_jumps_costs_that_interval(clock: list[Any]) -> None:
    said = after_minutes(*[AN_HOUR] * (len(clock) - 1))
    text = "".join(scrape_text(each, 0.0).replace("1970-01-01T00:00:00.000+00:00", str(EPOCH + time))
                   if time != "x" else "# scraped x\n" for each, time in zip(said, clock, strict=True))  # fmt: skip
    found = read_recording("day", text)
    assert found and all(each.run.facts.rate == pytest.approx(1.0, rel=0.01) for each in found)


def test_a_clock_of_this_machine_that_is_set_costs_that_interval(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks, machine = iter(after_minutes(*[AN_HOUR] * 4)), [0.0]
    monkeypatch.setattr("rooflinekit.cli.watch._fetched", lambda *_: next(looks))
    monkeypatch.setattr("rooflinekit.cli.watch.time", SimpleNamespace(
        monotonic=lambda: machine[-1], sleep=lambda _: machine.append(machine[-1] + 60.0),
        time=lambda: EPOCH + machine[-1] + (3600.0 if machine[-1] > 100.0 else 0.0),
    ))  # fmt: skip
    live = _intervals(["http://a"], 60.0, None)
    rates = [next(live)[0].run.facts.rate for _ in range(3)]
    assert rates == pytest.approx([1.0, 1.0, 1.0])  # without the minute that had an hour
    assert capsys.readouterr().err.count("the clock of this machine was set") == 1


def test_a_log_whose_clock_is_set_back_is_followed() -> None:
    log = GrowingLog("log")
    first, _ = log.add(log_of([EPOCH + at for at in range(200)]))
    again, notes = log.add(log_of([EPOCH - 7200.0 + at for at in range(200)]))
    assert len(first) == 3 and len(again) >= 2 and "the clock was set back" in notes[-1]
    log.add(log_of([EPOCH + 9e7]))  # one time that is off
    more, notes = log.add(log_of([EPOCH - 7000.0 + at for at in range(200)]))
    assert more and "the clock was set back" in notes[-1]


def test_a_file_that_is_rotated_loses_no_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.log"
    tail = _Tail(path)
    assert list(tail.lines()) == []
    path.write_text("1\n2")
    assert list(tail.lines()) == ["1"]
    with path.open("a") as writer:
        writer.write("2\n3\n")
        writer.flush()
        path.rename(tmp_path / "a.log.1")
        path.write_text("5\n")
        assert list(tail.lines()) == ["22", "3"]
        writer.write("4\nhalf")  # it goes on until it is told
    assert list(tail.lines()) == ["4"]
    assert list(tail.lines()) == ["half", "5"]
    path.write_text("6 and longer than what was there\n")  # cut, and longer again before it is looked at
    assert list(tail.lines()) == ["6 and longer than what was there"]
    path.write_bytes(b"\0" * 50 + b"7\n")  # cut below a writer that keeps its place
    assert list(tail.lines()) == ["7"]
    path.unlink()
    path.mkdir()
    assert list(tail.lines()) == [] and "looking again" in capsys.readouterr().err
    path.rmdir()
    path.write_text("8\n")
    assert list(tail.lines()) == ["8"]
    tail.close()
