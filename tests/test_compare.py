"""Benchmark files against prediction: every format by its own keys, its definitions mapped, the gap divided.

The keys are those that the tools write; every number in these files is invented.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import rooflinekit as rk
from rooflinekit.cli.app import app
from rooflinekit.evidence.benchmark_runs import LoadPrediction, predict_load
from rooflinekit.evidence.compare import CAUSES, Given, attribute, compare
from rooflinekit.evidence.measured import MeasuredRun, MeasuredSpread, RunFacts, StartUp, read_measurements
from rooflinekit.load.answer import Load
from rooflinekit.load.lengths import Fixed
from rooflinekit.load.scene import Scheduler
from rooflinekit.model.capacity import make_memory_model
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.types.errors import DoesNotFitError, InputError, SpecError
from rooflinekit.model.types.workload import Workload
from rooflinekit.report.answers import document_of
from rooflinekit.report.document import plain_text

VLLM = {
    "date": "20260101-000000", "endpoint_type": "vllm", "backend": "vllm", "label": None,
    "model_id": "meta-llama/Llama-3.1-8B-Instruct", "tokenizer_id": "meta-llama/Llama-3.1-8B-Instruct",
    "num_prompts": 320, "request_rate": "inf", "burstiness": 4.0, "max_concurrency": 32, "duration": 100.0,
    "completed": 320, "failed": 0, "total_input_tokens": 327680, "total_output_tokens": 81920,
    "request_throughput": 10.0, "request_goodput": None, "output_throughput": 2560.0, "total_token_throughput": 12800.0,
    "mean_ttft_ms": 150.0, "median_ttft_ms": 120.0, "std_ttft_ms": 60.0, "p99_ttft_ms": 700.0,
    "mean_tpot_ms": 11.0, "median_tpot_ms": 10.9, "std_tpot_ms": 0.5, "p99_tpot_ms": 12.5,
    "mean_itl_ms": 11.0, "median_itl_ms": 8.5, "std_itl_ms": 9.0, "p99_itl_ms": 40.0,
    "mean_e2el_ms": 2960.0, "median_e2el_ms": 2950.0, "p99_e2el_ms": 3400.0,
}  # fmt: skip
SGLANG = {
    "backend": "sglang", "dataset_name": "random", "request_rate": float("inf"), "max_concurrency": 16,
    "sharegpt_output_len": None, "random_input_len": 1024, "random_output_len": 512, "random_range_ratio": 1.0,
    "duration": 60.0, "completed": 160, "total_input_tokens": 163840, "total_output_tokens": 81920,
    "total_output_tokens_retokenized": 81900, "request_throughput": 2.67, "input_throughput": 2730.7,
    "output_throughput": 1365.3, "mean_e2e_latency_ms": 5800.0, "median_e2e_latency_ms": 5790.0,
    "mean_ttft_ms": 130.0, "median_ttft_ms": 110.0, "p99_ttft_ms": 400.0, "mean_tpot_ms": 11.1, "median_tpot_ms": 11.0,
    "p99_tpot_ms": 12.0, "mean_itl_ms": 11.1, "median_itl_ms": 10.0, "p99_itl_ms": 41.0, "concurrency": 15.5,
    "accept_length": None, "ttfts": [0.13, 0.06, 0.2],
    "server_info": {"model_path": "meta-llama/Llama-3.1-8B-Instruct", "tp_size": 1},
}  # fmt: skip


def figures(mean, **rest):
    """One metric of GuideLLM."""
    return {"successful": {"mean": mean, "median": mean, "percentiles": {"p90": mean, "p99": 2 * mean}} | rest}


GUIDELLM = {
    "args": {"target": "http://localhost:8000", "model": "meta-llama/Llama-3.1-8B-Instruct"},
    "benchmarks": [
        {
            "config": {"strategy": {"type_": "concurrent", "streams": 8}, "backend": {}},
            "metrics": {
                "request_totals": {"successful": 80, "incomplete": 0, "errored": 0, "total": 80},
                "requests_per_second": figures(3.0), "request_latency": figures(2.6),
                "prompt_token_count": figures(1000.0), "output_token_count": figures(250.0),
                "time_to_first_token_ms": figures(90.0, min=40.0), "time_per_output_token_ms": figures(10.4),
                "inter_token_latency_ms": figures(10.08), "output_tokens_per_second": figures(750.0),
            },
        },
        {
            "config": {"strategy": {"type_": "poisson", "rate": 2.5}, "backend": {}},
            "metrics": {
                "request_totals": {"successful": 80}, "requests_per_second": figures(2.5),
                "prompt_token_count": figures(1000.0), "output_token_count": figures(250.0),
                "time_to_first_token_ms": figures(70.0), "inter_token_latency_ms": figures(9.5),
                "request_latency": figures(2.4), "output_tokens_per_second": figures(625.0),
            },
        },
    ],
}  # fmt: skip
AIPERF = {
    "schema_version": "1.5", "aiperf_version": "0.11.0",
    "input_config": {
        "endpoint": {"model_names": ["meta-llama/Llama-3.1-8B-Instruct"]},
        "phases": [{"type": "concurrency", "concurrency": 99, "exclude_from_results": True},
                   {"type": "concurrency", "concurrency": 24, "exclude_from_results": False}],
    },
    "time_to_first_token": {"unit": "ms", "avg": 80.0, "min": 31.0, "p50": 75.0, "p90": 120.0, "p99": 200.0},
    "inter_token_latency": {"unit": "ms", "avg": 10.5, "p50": 10.4},
    "inter_chunk_latency": {"unit": "ms", "avg": 10.5, "p50": 9.0},
    "request_latency": {"unit": "sec", "avg": 2.7},
    "input_sequence_length": {"unit": "tokens", "avg": 1024.0},
    "output_sequence_length": {"unit": "tokens", "avg": 250.0},
    "request_count": {"unit": "requests", "avg": 240.0}, "request_throughput": {"unit": "requests/sec", "avg": 8.0},
    "output_token_throughput": {"unit": "tokens/sec", "avg": 2000.0},
}  # fmt: skip
GENAI_PERF = {name: value for name, value in AIPERF.items() if name not in ("schema_version", "aiperf_version")} | {
    "input_config": {"model": ["llama-3.1-8b"], "perf_analyzer": {"stimulus": {"concurrency": 24}}}
}
AIPERF_CSV = """Metric,avg,min,max,p99,p95,p90,p75,p50,p25
Time To First Token (ms),"1,146.31",249.48,"3,485.23","3,457.97",3300,"3,215.06",1330,640.07,286.52
Request Latency (ms),"6,406.20",5371,9608,9436,9046,9028,6549,5690,5493
Inter Token Latency (ms),30.35,27.59,35.60,35.23,33.88,32.53,31.05,30.13,29.04
Output Sequence Length (tokens),174.45,164.00,187.00,186.22,183.10,180.10,177.00,174.00,171.75
Input Sequence Length (tokens),"3,000.05","2,999.00",3001,3001,3001,3001,3000,3000,3000

Metric,Value
Output Token Throughput (per sec),261.25
Request Throughput (per sec),1.50
Request Count (count),40.00
"""
MLPERF = """================================================
MLPerf Results Summary
================================================
SUT name : PySUT
Scenario : Server
Mode     : PerformanceOnly
Completed samples per second    : 10.00
Result is : VALID
  Performance constraints satisfied : Yes

================================================
Additional Stats
================================================
Scheduled samples per second : 10.20
Min latency (ns)                : 818130000
Mean latency (ns)               : 3000000000
50.00 percentile latency (ns)   : 2900000000
Completed tokens per second                 : 2900.00
Min First Token latency (ns)                : 40000000
Mean First Token latency (ns)               : 100000000
99.00 percentile first token latency (ns)   : 500000000
Mean Time to Output Token (ns)               : 10000000
99.00 percentile time to output token (ns)   : 12000000
================================================
Test Parameters Used
================================================
target_qps : 10.2
"""
LOG = """INFO 01-01 00:00:00 gpu_model_runner.py:1 Model loading took 14.99 GiB and 3.1 seconds
INFO 01-01 00:00:01 gpu_worker.py:2 Available KV cache memory: 54.30 GiB
INFO 01-01 00:00:02 kv_cache_utils.py:3 GPU KV cache size: 444,800 tokens
INFO 01-01 00:00:03 kv_cache_utils.py:4 Maximum concurrency for 8,192 tokens per request: 54.30x
"""
FILES = {
    "vllm.json": json.dumps(VLLM),
    "sglang.jsonl": f"{json.dumps(SGLANG)}\n{json.dumps(SGLANG | {'max_concurrency': 64})}\n",
    "guidellm.json": json.dumps(GUIDELLM),
    "aiperf.json": json.dumps(AIPERF),
    "genai_perf.json": json.dumps(GENAI_PERF),
    "aiperf.csv": AIPERF_CSV,
    "mlperf_log_summary.txt": MLPERF,
    "start-up.log": LOG,
}
EVERYTHING = Given(
    RunFacts(model="llama-3.1-8b", gpu="h100-sxm", tp=1, isl=1024, osl=256, concurrency=8), calibration="none"
)


@pytest.fixture
def file(tmp_path):
    """file("vllm.json"): one of the files above; file("x", text): any text."""

    def write(name, text=None):
        path = tmp_path / name
        path.write_text(FILES[name] if text is None else text, encoding="utf-8")
        return path

    return write


# --- reading --------------------------------------------------------------------------------------------------------


def only(path):
    (found,) = read_measurements(path)
    return found


def test_vllm_keys_are_mapped(file):
    run = only(file("vllm.json"))
    assert run.facts == RunFacts(
        model="meta-llama/Llama-3.1-8B-Instruct", engine="vllm", isl=1024.0, osl=256.0, concurrency=32, cv=0.5,
        requests=320,
    )  # fmt: skip
    assert (run.ttft.mean, run.tpot.mean, run.itl.p50, run.e2e.mean) == (150.0, 11.0, 8.5, 2960.0)
    assert (run.ttft.p99, run.output_tok_s, run.request_s) == (700.0, 2560.0, 10.0)


def test_sglang_lines_are_runs_of_their_own_with_their_smallest_ttft(file):
    first, second = read_measurements(file("sglang.jsonl"))
    assert (first.source, second.source) == ("sglang.jsonl#0", "sglang.jsonl#1")
    assert (first.facts.concurrency, second.facts.concurrency) == (16, 64)
    assert (first.facts.engine, first.facts.tp, first.facts.isl, first.facts.osl) == ("sglang", 1, 1024.0, 512.0)
    assert (first.ttft.low, first.e2e.mean) == (60.0, 5800.0)


def test_guidellm_tpot_is_its_inter_token_latency(file):
    """time_per_output_token_ms (10.4 here) counts the first token; request_latency is in seconds."""
    closed, opened = read_measurements(file("guidellm.json"))
    assert (closed.tpot.mean, closed.e2e.mean, closed.ttft.low) == (10.08, 2600.0, 40.0)
    assert closed.itl == MeasuredSpread()
    assert (closed.facts.concurrency, closed.facts.rate, closed.facts.requests) == (8, None, 80)
    assert (opened.facts.concurrency, opened.facts.rate, opened.facts.cv) == (None, 2.5, 1.0)
    assert closed.facts.model == "meta-llama/Llama-3.1-8B-Instruct"


@pytest.mark.parametrize("name", ["aiperf.json", "genai_perf.json"])
def test_aiperf_units_and_load_are_read(file, name):
    run = only(file(name))
    assert run.tool == name.removesuffix(".json").replace("_", "-")
    assert (run.ttft.mean, run.ttft.low, run.tpot.mean, run.itl.p50, run.e2e.mean) == (80.0, 31.0, 10.5, 9.0, 2700.0)
    assert (run.facts.concurrency, run.facts.isl, run.facts.osl, run.facts.requests) == (24, 1024.0, 250.0, 240)
    assert run.facts.model is not None


def test_the_csv_of_aiperf_has_thousands_and_no_load(file):
    run = only(file("aiperf.csv"))
    assert (run.ttft.mean, run.ttft.p50, run.tpot.mean, run.e2e.mean) == (1146.31, 640.07, 30.35, 6406.2)
    assert (run.output_tok_s, run.facts.isl, run.facts.requests) == (261.25, 3000.05, 40)
    assert (run.facts.concurrency, run.facts.rate, run.facts.model) == (None, None, None)


@pytest.mark.parametrize("spelling", ["Time to Output Token", "Time per Output Token"])
def test_mlperf_nanoseconds_in_both_spellings(file, spelling):
    run = only(file("mlperf_log_summary.txt", MLPERF.replace("Time to Output Token", spelling)))
    assert (run.ttft.mean, run.ttft.low, run.tpot.mean, run.e2e.mean) == (100.0, 40.0, 10.0, 3000.0)
    assert (run.output_tok_s, run.request_s, run.facts.rate, run.facts.osl) == (2900.0, 10.0, 10.2, 290.0)
    assert run.facts.isl is None
    invalid = only(file("b.txt", MLPERF.replace(": VALID", ": INVALID")))
    assert invalid.notes == ("LoadGen calls the run INVALID",)


def test_how_output_lengths_vary_is_read(file):
    """Two lengths of 100 and 300: 0.5. Uniform from half to all: (1 − 0.5)/(√3·1.5)."""
    assert only(file("vllm.json")).facts.osl_cv is None
    each = only(file("a.json", json.dumps(VLLM | {"output_lens": [100, 300]})))
    assert each.facts.osl_cv == pytest.approx(0.5)
    drawn = only(file("b.json", json.dumps(SGLANG | {"random_range_ratio": 0.5})))
    assert drawn.facts.osl_cv == pytest.approx(0.5 / (3**0.5 * 1.5))
    assert only(file("c.json", json.dumps(SGLANG | {"dataset_name": "sharegpt"}))).facts.osl_cv is None
    lengths = AIPERF["output_sequence_length"] | {"std": 25.0}
    assert only(file("d.json", json.dumps(AIPERF | {"output_sequence_length": lengths}))).facts.osl_cv == 0.1


def test_what_the_client_and_the_server_were_told_is_played(file):
    """Prompts that came again are computed once; a small token budget lets prompts wait; nothing is lost on the way."""
    path = file("one.json", json.dumps(SGLANG))

    def first(**said):
        (run,) = compare([path], Given.of(gpu="h100-sxm", tp=1, **said)).runs
        return run.metrics[0].predicted

    usual = first()
    assert first(seed_reuse=1) < 0.8 * usual
    assert first(seed_reuse=1, prefix_caching="off") == usual
    assert first(token_budget=300) > 1.02 * usual


def test_users_that_drift_apart_wait_less_and_equal_ones_are_said(file):
    path = file("one.json", json.dumps(SGLANG | {"dataset_name": "sharegpt"}))
    given = Given(RunFacts(gpu="h100-sxm", tp=1))
    (equal,), (varied,) = (compare([path], replace(given, facts=replace(given.facts, osl_cv=cv))).runs
                           for cv in (None, 0.2))  # fmt: skip
    ttft = [run.metrics[0].predicted for run in (equal, varied)]
    assert ttft[1] < 0.9 * ttft[0]
    assert any("--osl-cv" in note for note in equal.notes)
    assert not any("--osl-cv" in note for note in varied.notes)
    result = CliRunner().invoke(app, ["compare", str(path), "--gpu", "h100-sxm", "--tp", "1", "--osl-cv", "-1"])
    assert (result.exit_code, "osl-cv must be from 0" in result.stderr) == (2, True)


def test_the_start_up_log_of_old_and_new_versions(file):
    new = only(file("start-up.log"))
    assert new == StartUp("start-up.log", 54.3 * 2**30, 444_800, 14.99 * 2**30, 8192, 54.3, RunFacts(engine="vllm"))
    old = only(file("old.log", "# GPU blocks: 1381\nMaximum concurrency for 2048 tokens per request: 10.79x\n"))
    assert old.kv_tokens == pytest.approx(1381 * 16, rel=1e-3)  # blocks of 16 tokens


def test_the_start_up_log_of_llama_cpp_checks_weights_cache_and_activations(file):
    log = ("build: 6500 (abcdef) with cc\nprint_info: file type   = Q4_K - Medium\n"
           "load_tensors:        CUDA0 model buffer size =  4403.49 MiB\n"
           "load_tensors:   CPU_Mapped model buffer size =   281.81 MiB\nllama_context: n_ctx         = 8192\n"
           "llama_kv_cache:      CUDA0 KV buffer size =  1024.00 MiB\n"
           "llama_context:      CUDA0 compute buffer size =   258.50 MiB\n")  # fmt: skip
    options = "--model", "llama-3.1-8b", "--gpu", "rtx-4090", "--format", "json"
    (whole,) = json.loads(run(file("one.log", log), *options).stdout)["runs"]
    errors = {row["metric"]: row["error"] for row in whole["metrics"]}
    assert set(errors) == {"weight_bytes", "kv_bytes_per_token_per_gpu", "activation_bytes"}
    assert max(map(abs, errors.values())) < 1e-3
    split = log + "load_tensors:        CUDA1 model buffer size =  2104.00 MiB\n"  # the parts are not of one size
    assert only(file("two.log", split)).weight_bytes is None


def test_a_run_without_a_cap_or_a_rate_is_a_burst(file):
    run = only(file("v.json", json.dumps(VLLM | {"max_concurrency": None})))
    assert (run.facts.concurrency, run.facts.rate) == (320, None)
    assert "at once" in run.notes[0]
    rated = only(file("w.json", json.dumps(VLLM | {"request_rate": 4.0})))
    assert (rated.facts.concurrency, rated.facts.rate) == (None, 4.0)


@pytest.mark.parametrize(("text", "said"), [
    ("", "the file is empty"), ("hello", "nothing that is known"), ("[]", "nothing that is known"),
    ("{}", "nothing that is known"), ("{", "line 1: is not valid JSON"), ('{"a": ' * 5000, "not valid JSON"),
    (json.dumps(VLLM | {"mean_ttft_ms": -1}), "mean_ttft_ms is '-1'"),
    (json.dumps(VLLM | {"mean_tpot_ms": float("nan")}), "mean_tpot_ms is 'nan'"),
    (json.dumps(VLLM | {"output_throughput": "fast"}), "output_throughput is 'fast'"),
    (json.dumps(AIPERF | {"request_latency": {"unit": "furlongs", "avg": 2}}), "unit 'furlongs'"),
    (MLPERF.replace("Server", "MultiStream"), "scenario 'MultiStream'"),
    (LOG.replace("54.30 GiB", "-1.00 GiB"), "no room"),
])  # fmt: skip
def test_a_file_that_cannot_be_trusted_is_one_line(file, text, said):
    with pytest.raises(SpecError, match=said) as refused:
        read_measurements(file("x.json", text))
    assert "x.json" in str(refused.value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)


@given(st.data(), st.sampled_from([VLLM, SGLANG, GUIDELLM["benchmarks"][0], AIPERF]))
def test_no_value_in_a_known_file_makes_a_traceback(tmp_path_factory, data, known):
    broken = dict(known)
    for key in data.draw(st.lists(st.sampled_from(sorted(known)), min_size=1, max_size=4)):
        broken[key] = data.draw(json_values)
    whole = {"benchmarks": [broken]} if "config" in known else broken
    path = tmp_path_factory.mktemp("fuzz") / "run.json"
    path.write_text(json.dumps(whole), encoding="utf-8")
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("rooflinekit.evidence.benchmark_runs.predict_load", lambda *_: EXPECTED)
            found = compare([path], EVERYTHING)
    except InputError as error:
        assert "run.json" in str(error)
    else:
        assert plain_text(document_of(found))


def test_an_overloaded_run_is_played_as_it_was_and_says_so(tmp_path):
    """More come than can be served: the times are those of 320 requests, none longer than the run."""
    path = tmp_path / "run.json"
    path.write_text(json.dumps(VLLM | {"request_rate": 5000.0, "max_concurrency": None}), encoding="utf-8")
    words = ["compare", str(path), "--gpu", "h100-sxm", "--tp", "1", "--format"]
    ran = CliRunner().invoke(app, [*words, "json"])
    assert ran.exit_code == 0, ran.stderr
    (run,) = json.loads(ran.stdout, parse_constant=pytest.fail)["runs"]
    assert run["overloaded"]
    found = {each["metric"]: each["predicted"] for each in run["metrics"]}
    makespan = 320 * 256 / found["output_tok_s"]
    assert 0 < found["ttft_ms"] < found["e2e_ms"] < 1e3 * makespan
    assert "overload: 5000 requests/s arrive" in " ".join(CliRunner().invoke(app, [*words, "table"]).stdout.split())


# --- the gap --------------------------------------------------------------------------------------------------------

PARTS = {
    "step": 8.0, "prompts": 1.0, "front_end": 5.0, "under_way": 4.0, "behind": 36.0, "place": 20.0, "prompt": 35.0,
}  # fmt: skip
EXPECTED = LoadPrediction(100.0, 9.0, 100.0 + 255 * 9.0, 2700.0, PARTS, 32)
LOAD = Load(Fixed(1024), Fixed(256), 32)
RUN = MeasuredRun(
    "run",
    "t",
    RunFacts(),
    MeasuredSpread(150.0, low=45.0),
    MeasuredSpread(11.0),
    MeasuredSpread(11.0, p50=8.5),
    MeasuredSpread(2960.0),
    2560.0,
    10.0,
)


def test_a_gap_by_hand():
    """Step: 255 · (8.5 − 8) + (45 − 40); interference: 255 · (2.5 − 1); queue: 105 − 60; protocol: 2960 − 2955."""
    gap = attribute(RUN, EXPECTED, LOAD)
    assert (gap.step_ms, gap.interference_ms) == (132.5, 382.5)
    assert (gap.queue_ms, gap.protocol_ms) == (45.0, 5.0)
    assert gap.e2e_ms == 2960.0 - 2395.0
    assert gap.in_flight == pytest.approx(29.6)  # Little's law: 10 requests/s · 2.96 s
    assert gap.notes == ()


positive = st.floats(0.1, 1e5)


runs = st.builds(
    MeasuredRun, st.just("run"), st.just("t"), st.just(RunFacts()),
    ttft=st.builds(MeasuredSpread, positive, low=st.none() | positive), tpot=st.builds(MeasuredSpread, positive),
    itl=st.builds(MeasuredSpread, positive, p50=st.none() | positive),
    e2e=st.just(MeasuredSpread()) | st.builds(MeasuredSpread, positive),
)  # fmt: skip


@given(runs, st.integers(1, 400), st.integers(1, 5000))
def test_the_causes_always_add_up_to_the_gap(run, running, osl):
    total = EXPECTED.ttft_ms + (osl - 1) * EXPECTED.tpot_ms
    gap = attribute(run, replace(EXPECTED, running=running, e2e_ms=total), Load(Fixed(1024), Fixed(osl), 32))
    parts = sum(getattr(gap, f"{cause}_ms") for cause in CAUSES)
    assert parts == pytest.approx(gap.e2e_ms, rel=1e-9, abs=1e-6 * osl)


def test_what_a_file_cannot_tell_apart_is_said():
    blind = attribute(replace(RUN, itl=MeasuredSpread(), ttft=MeasuredSpread(150.0)), EXPECTED, LOAD)
    assert (blind.interference_ms, blind.step_ms) == (0.0, 255 * 2.0)
    assert blind.queue_ms == 50.0
    assert len(blind.notes) == 2
    crowded = attribute(RUN, EXPECTED, Load(Fixed(8192), Fixed(32), 32))  # four chunks each: every gap holds one
    assert crowded.interference_ms == 0.0
    alone = attribute(replace(RUN, ttft=MeasuredSpread(150.0)), replace(EXPECTED, running=1), LOAD)
    assert alone.queue_ms == 0.0
    assert attribute(replace(RUN, ttft=MeasuredSpread(p50=1.0)), EXPECTED, LOAD) is None


# --- the run that is played -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def predictor(plan_of):
    plan = plan_of("llama-3.1-8b", calibration="h100-sxm--vllm")
    return Predictor(plan, make_memory_model(plan))


@pytest.fixture(scope="module")
def loaded(predictor):
    """A function: Hypothesis prints the arguments of a test."""

    def predicted(isl, osl, users=None, rate=None, most=None, **more):
        asked = Load(Fixed(isl), Fixed(osl), users, rate, **more)
        return predict_load(predictor, asked, Scheduler(max_num_seqs=most))

    return predicted


def test_tpot_is_the_step_and_a_share_of_every_other_prefill(loaded, predictor):
    found = loaded(1024, 256, users=32, requests=320)
    step = predictor.evaluate(Workload(32.0, 1024.0, 256.0)).tpot.expected * 1e3
    prefill = predictor.evaluate(Workload(1.0, 1024.0, 256.0)).ttft.expected * 1e3
    # beside decodes a prompt costs less than by itself, and more than nothing
    assert 0.95 * step < found.tpot_ms < step + 31 * prefill / 256
    assert found.parts["step"] == pytest.approx(step, rel=0.1)  # the last turn ends with fewer
    assert sum(found.parts[name] for name in ("step", "prompts")) == pytest.approx(found.tpot_ms)
    first = ("front_end", "under_way", "behind", "place", "prompt")
    assert sum(found.parts[name] for name in first) == pytest.approx(found.ttft_ms)
    assert found.e2e_ms == pytest.approx(found.ttft_ms + 255 * found.tpot_ms)


def test_one_user_meets_neither_queue_nor_interference(loaded):
    found = loaded(1024, 256, users=1)
    assert [found.parts[name] for name in ("under_way", "behind", "place", "prompts")] == pytest.approx([0.0] * 4)
    assert found.output_tok_s == pytest.approx(256e3 / found.e2e_ms)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 100), st.integers(64, 2048), st.integers(16, 512))
def test_more_users_wait_longer_and_get_more_out_together(loaded, users, isl, osl):
    few, many = (loaded(isl, osl, users=n) for n in (users, 2 * users))
    assert many.tpot_ms >= few.tpot_ms * 0.99
    assert many.e2e_ms >= few.e2e_ms * 0.99
    assert many.output_tok_s >= few.output_tok_s * 0.97  # where steps are nearly all prompts, tiles decide


@pytest.mark.parametrize("rate", [0.1, 1.0, 5.0])
def test_an_open_loop_keeps_up_and_obeys_littles_law(loaded, rate):
    found = loaded(1024, 256, rate=rate)
    assert found.output_tok_s == pytest.approx(rate * 256, rel=0.06)  # of 1,600 gaps the mean is 2.5 % off
    waits = sum(found.parts[name] for name in ("front_end", "under_way", "behind", "place"))
    assert found.running == pytest.approx(rate * (found.e2e_ms - waits) / 1e3, rel=0.06)  # who waits has no place
    assert not found.overloaded


def test_a_run_that_is_told_is_that_run(loaded):
    """Of N requests: output tokens over the time from the first to the last."""
    found = loaded(1024, 256, rate=5.0, requests=100, burstiness=0.0)
    assert found.output_tok_s == pytest.approx(100 * 256 / (99 / 5.0 + found.e2e_ms / 1e3), rel=0.02)
    assert found.played == "played: 100 requests, at 5/s, from an empty engine"
    assert loaded(64, 8, users=4, requests=4).played == "played: 4 requests, all at once, from an empty engine"
    warm = loaded(64, 8, users=4, requests=8, warmup=4).played
    assert warm == "played: 8 requests, 4 in flight, after 4 of warm-up"


def test_above_the_knee_it_is_overloaded_and_says_the_rate_that_is_not(loaded):
    found = loaded(1024, 256, rate=1e4)
    assert (found.overloaded, found.notes[0][:34]) == (True, "overload: 1e+04 requests/s arrive,")
    most = float(found.notes[0].split()[4])
    assert not loaded(1024, 256, rate=0.9 * most).overloaded
    assert loaded(1024, 256, rate=1.02 * most).overloaded


def test_a_burst_waits_half_as_long_as_a_loop_that_goes_on(loaded):
    """Four waves of 16: who waits for a turn waits 1.5 of them on average, in a loop that goes on three."""
    once, loop = (loaded(1024, 256, users=64, requests=n, most=16) for n in (64, 2560))
    alone = loaded(1024, 256, users=16, requests=64)
    waits = [found.ttft_ms - alone.ttft_ms for found in (once, loop)]
    assert waits == pytest.approx([1.5 * alone.e2e_ms, 3.0 * alone.e2e_ms], rel=0.05)


def test_more_requests_than_fit_cap_the_batch_and_wait(loaded):
    free, capped = (loaded(1024, 256, users=64, most=most) for most in (None, 16))
    assert (capped.running, free.running) == pytest.approx((16, 64), rel=0.05)
    assert capped.tpot_ms < free.tpot_ms
    assert capped.ttft_ms > free.ttft_ms
    assert "16 of 64" in capped.notes[0]
    with pytest.raises(DoesNotFitError, match="no room for one"):
        loaded(10**6, 256, users=1)


def test_prompts_that_the_cache_holds_are_not_computed(loaded):
    """Of 1,024 tokens 1,008 are there: first tokens of one user come as those of a short prompt with that context."""
    cold, warm, short = (loaded(*lengths, users=1, cached=n) for lengths, n in
                         (((1024, 64), 0), ((1024, 64), 1008), ((16, 64), 0)))  # fmt: skip
    assert warm.ttft_ms < cold.ttft_ms
    assert warm.parts["prompt"] == pytest.approx(short.parts["prompt"], rel=0.05)
    assert warm.tpot_ms == pytest.approx(cold.tpot_ms, rel=1e-9)


# --- the command ----------------------------------------------------------------------------------------------------


def run(*arguments):
    return CliRunner().invoke(app, ["compare", *map(str, arguments)])


def test_missing_facts_are_asked_for_in_one_line(file):
    result = run(file("vllm.json"))
    assert result.exit_code == 2
    assert result.stderr == "rooflinekit: vllm.json does not say how it was run; add --gpu\n"
    wanted = run(file("aiperf.csv")).stderr
    assert "add --model, --gpu, --concurrency or --rate" in wanted
    assert "add --isl" in run(file("mlperf_log_summary.txt"), "--model", "gpt2", "--gpu", "l4", "--tp", "1").stderr


@pytest.mark.parametrize("name", [name for name in FILES if name != "start-up.log"])
def test_every_format_is_compared(file, name):
    options = ["--model", "llama-3.1-8b", "--gpu", "h100-sxm", "--tp", "1", "--isl", "1024", "--osl", "256"]
    options += ["--concurrency", "8"] if name == "aiperf.csv" else []
    result = run(file(name), *options, "--format", "json")
    assert result.exit_code == 0, result.stderr
    for entry in json.loads(result.stdout)["runs"]:
        metrics = {row["metric"]: row for row in entry["metrics"]}
        assert set(metrics) == {"ttft_ms", "tpot_ms", "e2e_ms", "output_tok_s"}
        for row in metrics.values():
            assert row["error"] == pytest.approx(row["predicted"] / row["measured"] - 1)
        assert sum(entry["gap"][f"{cause}_ms"] for cause in CAUSES) == pytest.approx(entry["gap"]["e2e_ms"])


@pytest.mark.parametrize("name", ["my-finetune", "/models/weights", "./served"])
def test_a_model_that_only_the_server_knows_is_asked_for(file, name):
    path = file("v.json", json.dumps(VLLM | {"model_id": name}))
    result = run(path, "--gpu", "h100-sxm", "--tp", "1")
    assert result.exit_code == 2
    assert f"calls its model '{name}'" in result.stderr
    assert "add --model" in result.stderr


def test_the_start_up_log_checks_memory_and_caps_the_batch(file):
    small = LOG.replace("444,800", "12,800").replace("54.30x", "1.56x")  # ten requests of 1,024 + 256 tokens
    result = run(file("vllm.json"), file("s.log", small), "--model", "llama-3.1-8b", "--gpu", "h100-sxm", "--tp", "1",
                 "--format", "json")  # fmt: skip
    assert result.exit_code == 0, result.stderr
    bench, log = json.loads(result.stdout)["runs"]
    assert any("of 32 requests run at a time; the others wait" in note for note in bench["notes"])
    assert "played: 320 requests, 32 in flight, from an empty engine" in bench["notes"]
    weights = next(row for row in log["metrics"] if row["metric"] == "weight_bytes")
    assert weights["predicted"] == pytest.approx(8_030_261_248 * 2, rel=0.01)  # bf16
    whole = json.loads(run(file("start-up.log"), "--model", "llama-3.1-8b", "--gpu", "h100-sxm", "--tp", "1",
                           "--format", "json").stdout)["runs"][0]  # fmt: skip
    cache = next(row for row in whole["metrics"] if row["metric"] == "kv_bytes_per_token_per_gpu")
    assert cache["predicted"] == 131_072.0
    assert cache["error"] == pytest.approx(0.0, abs=1e-3)  # 54.3 GiB / 444,800 = 131,080 B


def test_the_text_fits_a_terminal_and_every_format_holds_the_same(file):
    arguments = [file("vllm.json"), "--gpu", "h100-sxm", "--tp", "1"]
    text = run(*arguments).stdout
    assert max(map(len, text.splitlines())) <= 80
    for word in ("TTFT", "TPOT", "E2EL", "step", "interference", "queue", "protocol", "in flight"):
        assert word in text
    assert run(*arguments, "--format", "md").stdout.count("|") > 20
    rows = run(*arguments, "--format", "csv").stdout.splitlines()
    assert len(rows) == 5
    assert rows[0].startswith("source,tool,model,gpu,engine,tp,isl,osl,concurrency,rate,requests,metric")


@pytest.mark.slow
def test_a_cache_whose_format_nobody_says_has_both_sides(tmp_path):
    """34 users find a place in FP8 alone: a run of such a server is inside, and only that explains it."""
    served = {"isl": 1024, "osl": 256, "concurrency": 34, "requests": 340, "memory_fraction": 0.27}
    for kv, said in (("fp8", "only an FP8 cache explains this"), ("bf16", "nobody says the format of the cache")):
        made = rk.estimate("llama-3.1-8b", "h100-sxm", **served, kv=kv)
        path = tmp_path / f"{kv}.json"
        path.write_text(json.dumps({
            "backend": "vllm", "model_id": "llama-3.1-8b", "max_concurrency": 34, "completed": 340,
            "request_rate": "inf", "total_input_tokens": 340 * 1024, "total_output_tokens": 340 * 256,
            "mean_ttft_ms": made.ttft_ms, "mean_tpot_ms": made.tpot_ms,
        }))  # fmt: skip
        found = rk.compare(path, gpu="h100-sxm", tp=1, memory_fraction=0.27).runs[0]
        assert found.inside
        assert any(note.startswith(said) for note in found.notes)
    told = rk.compare(path, gpu="h100-sxm", tp=1, memory_fraction=0.27, kv="bf16").runs[0]
    assert not any("cache explains" in note or "format of the cache" in note for note in told.notes)


def test_what_cannot_be_compared_is_listed_and_the_rest_answered(file, tmp_path):
    result = run(file("vllm.json"), tmp_path / "nowhere.json", "--gpu", "h100-sxm", "--tp", "1")
    assert result.exit_code == 4
    assert "not compared" in result.stdout
    assert "nowhere.json: no such file" in " ".join(result.stdout.split())
    assert run(tmp_path / "nowhere.json").exit_code == 2


def test_replicas_share_the_load_and_add_up_their_output(file):
    """Four replicas with 32 users are each one replica with 8, whose requests find them in turn."""
    path, quarter = file("vllm.json"), file("q.json", json.dumps(VLLM | {"max_concurrency": 8, "completed": 80,
        "total_input_tokens": 81920, "total_output_tokens": 20480}))  # fmt: skip
    facts = RunFacts(gpu="h100-sxm", tp=1)
    (whole,), (single,) = (compare([f], Given(facts, calibration="none", replicas=n)).runs
                           for f, n in ((path, 4), (quarter, 1)))  # fmt: skip
    for one, other in zip(whole.metrics, single.metrics, strict=True):
        share = 4 if one.metric == "output_tok_s" else 1
        assert one.predicted == pytest.approx(other.predicted * share, rel=0.02)


@pytest.mark.parametrize(("options", "said"), [
    (["--gpu", "h100-smx", "--tp", "1"], "nearest: h100-sxm"), (["--tp", "0", "--gpu", "h100-sxm"], "tp must be"),
    (["--rate", "-1"], "rate must be above 0"), (["--rate", "1", "--concurrency", "2"], "give one of them"),
    (["--isl", "x"], "not a whole number"), (["--gpu", "l4", "--tp", "1", "--replicas", "0"], "replicas must be"),
    (["--gpu", "h100-sxm", "--tp", "1", "--model", "lama3-8"], "llama-3-8b"),
    (["--gpu", "h100-sxm", "--tp", "1", "--engine", "vlm"], "nearest: vllm"),
])  # fmt: skip
def test_options_that_make_no_sense_are_one_line(file, options, said):
    result = run(file("vllm.json"), *options)
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
