"""Results as people have them in hand: console blocks, tables, JSON of more tools, whole logs behind others' prefixes.

The excerpts are in their writers' form; where one is public, its source stands beside it.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from rooflinekit.cli.app import app
from rooflinekit.evidence.compare import ComparedMetric, compare, doubts
from rooflinekit.evidence.guard import read_readings
from rooflinekit.evidence.measured import StartUp, is_benchmark, read_measurements
from rooflinekit.evidence.startup import read_startup, read_startups
from rooflinekit.model.types.errors import InputError, SpecError
from rooflinekit.model.types.units import GIB

# hotaisle's benchmarks of MI300X, vLLM 0.6 (a public page of 2024-12)
BLOCK = """============ Serving Benchmark Result ============
Successful requests:                     1024
Benchmark duration (s):                  63.81
Total input tokens:                      220902
Total generated tokens:                  191043
Request throughput (req/s):              16.05
Output token throughput (tok/s):         2993.85
Total Token throughput (tok/s):          6455.63
---------------Time to First Token----------------
Mean TTFT (ms):                          564.63
Median TTFT (ms):                        363.05
P99 TTFT (ms):                           2301.28
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          36.10
Median TPOT (ms):                        36.02
---------------Inter-token Latency----------------
Mean ITL (ms):                           35.30
==================================================
"""
# sgl-jax's documentation of Qwen3.8-Flash-Next
SGLANG_BLOCK = """============ Serving Benchmark Result ============
Backend:                                 sglang
Traffic request rate:                    inf
Max request concurrency:                 8
Successful requests:                     100
Total input tokens:                      51200
Total input text tokens:                 51200
Total generated tokens:                  12800
Total generated tokens (retokenized):    12595
Request throughput (req/s):              1.86
Input token throughput (tok/s):          951.58
Output token throughput (tok/s):         237.89
Peak concurrent requests:                16
Concurrency:                             7.73
----------------End-to-End Latency----------------
Mean E2E Latency (ms):                   4161.62
"""
# NVIDIA/TensorRT-LLM's report of trtllm-bench, tensorrt_llm/bench/dataclasses/reporting.py
TRTLLM = """===========================================================
= PYTORCH BACKEND
===========================================================
Model:			meta-llama/Llama-3.1-8B-Instruct
TensorRT LLM Version:	1.1.0
Dtype:			bfloat16
KV Cache Dtype:		FP8
Quantization:		FP8

===========================================================
= REQUEST DETAILS
===========================================================
Number of requests:             3000
Number of concurrent requests:  63.5000
Average Input Length (tokens):  1000.0000
Average Output Length (tokens): 500.0000
===========================================================
= WORLD + RUNTIME INFORMATION
===========================================================
TP Size:                2
PP Size:                1
EP Size:                None
Max Runtime Batch Size: 512
Max Runtime Tokens:     8192
===========================================================
= PERFORMANCE OVERVIEW
===========================================================
Request Throughput (req/sec):                     12.5000
Total Output Throughput (tokens/sec):             6250.0000
Total Token Throughput (tokens/sec):              18750.0000
Total Latency (ms):                               240000.0000
Average request latency (ms):                     5080.0000
Per User Output Throughput [w/ ctx] (tps/user):   98.4000
Average time-to-first-token [TTFT] (ms):          95.5000
Average time-per-output-token [TPOT] (ms):        9.9900
Per User Output Speed (tps/user):                 100.1000
"""
LLAMA_BENCH = {
    "build_number": 4568, "gpu_info": "NVIDIA GeForce RTX 4090", "model_filename": "models/llama-2-7b.Q4_0.gguf",
    "model_type": "llama 7B Q4_0", "n_ubatch": 512, "type_k": "f16", "n_gpu_layers": 99, "n_prompt": 512, "n_gen": 0,
    "n_depth": 0, "avg_ns": 36000000, "avg_ts": 14222.2,
}  # fmt: skip
LLAMA_TABLE = """  Device 0: NVIDIA GeForce RTX 4090, compute capability 8.9, VMM: yes
| model                          |      size |  params | backend | ngl | fa |           test |              t/s |
| ------------------------------ | --------: | ------: | ------- | --: | -: | -------------: | ---------------: |
| qwen3moe 30B.A3B Q4_K - Medium | 17.35 GiB | 30.53 B | CUDA    |  99 |  1 | pp2048 @ d4096 | 14222.20 ± 40.00 |
| qwen3moe 30B.A3B Q4_K - Medium | 17.35 GiB | 30.53 B | CUDA    |  99 |  1 |          tg128 |    188.20 ± 0.40 |

build: 3ab8b3a9 (4568)
"""
INFERENCEX = {
    "hw": "h200-nv", "conc": 64, "framework": "vllm", "model": "deepseek-ai/DeepSeek-R1-0528", "precision": "fp8",
    "tp": 8, "ep": 1, "dp_attention": "false", "isl": 1024, "osl": 1024, "tput_per_gpu": 700.2,
    "output_tput_per_gpu": 350.1, "mean_ttft": 0.55, "mean_tpot": 0.0219, "mean_e2el": 22.9,
}  # fmt: skip
LLMD = {
    "backend": "vllm", "model_id": "meta-llama/Llama-3.2-3B-Instruct", "gpu": "4xNVIDIA_L40S", "prefill_replicas": "0",
    "decode_replicas": "4", "burstiness": 1.0, "max_concurrency": None, "request_rate": 30.0, "duration": 40.57,
    "completed": 900, "total_input_tokens": 899100, "total_output_tokens": 239959, "request_throughput": 22.18,
    "output_throughput": 5914.3, "mean_ttft_ms": 73.2, "mean_tpot_ms": 23.6,
}  # fmt: skip
INFERENCE_PERF = {
    "load_summary": {"count": 480, "requested_rate": 5.0, "achieved_rate": 4.9},
    "successes": {
        "count": 480, "prompt_len": {"mean": 512.0}, "output_len": {"mean": 128.0},
        "latency": {
            "request_latency": {"mean": 3.31, "median": 2.11, "p90": 5.94},
            "time_to_first_token": {"mean": 0.80, "median": 0.20, "p90": 2.26},
            "time_per_output_token": {"mean": 0.0198},
        },
        "throughput": {"requests_per_sec": 4.8, "output_tokens_per_sec": 614.4},
    },
}  # fmt: skip


def written(folder: Path, name: str, text: Any) -> Path:
    path = folder / name
    path.write_text(text if isinstance(text, str) else json.dumps(text), encoding="utf-8")
    return path


def runs_of(folder: Path, text: Any, name: str = "x.txt") -> list[Any]:
    return read_measurements(written(folder, name, text))


def only(folder: Path, text: Any, name: str = "x.txt") -> Any:
    (run,) = runs_of(folder, text, name)
    return run


class TestBlocks:
    def test_a_block_is_read_as_the_client_s_own_json(self, tmp_path: Path) -> None:
        run = only(tmp_path, BLOCK)
        assert (run.ttft.mean, run.ttft.p50, run.tpot.mean, run.tpot.p50, run.itl.mean) == (
            564.63, 363.05, 36.10, 36.02, 35.30,
        )  # fmt: skip
        assert run.facts.isl == pytest.approx(220902 / 1024)
        assert run.facts.osl == pytest.approx(191043 / 1024)
        assert (run.output_tok_s, run.request_s, run.facts.requests) == (2993.85, 16.05, 1024)
        assert (run.facts.concurrency, run.facts.rate) == (None, None)  # nothing says how they came: it is asked for
        with pytest.raises(InputError, match="add --model, --gpu, --concurrency or --rate"):
            compare(written(tmp_path, "b.txt", BLOCK))

    def test_the_command_before_a_block_tells_the_rest(self, tmp_path: Path) -> None:
        command = "$ vllm bench serve --model meta-llama/Llama-3.1-70B-Instruct --max-concurrency 128 --backend vllm\n"
        server = "$ vllm serve -tp 8 meta-llama/Llama-3.1-70B-Instruct\n"
        run = only(tmp_path, server + command + BLOCK)
        assert (run.facts.model, run.facts.concurrency, run.facts.tp, run.facts.engine) == (
            "meta-llama/Llama-3.1-70B-Instruct", 128, 8, "vllm",
        )  # fmt: skip

    def test_sglang_s_mean_concurrency_is_not_its_limit(self, tmp_path: Path) -> None:
        run = only(tmp_path, SGLANG_BLOCK)
        assert (run.facts.concurrency, run.facts.engine, run.facts.isl) == (8, "sglang", 512.0)
        assert (run.output_tok_s, run.e2e.mean) == (237.89, 4161.62)
        unset = only(tmp_path, SGLANG_BLOCK.replace(" 8\n", " not set\n"))
        assert unset.facts.concurrency == 100  # an infinite rate without a limit: all at once

    @pytest.mark.parametrize("prefix", [
        "bench-1  | ", "[pod/bench-7d9/bench] ", "2026-07-22T04:18:43.123456Z ", "2026-07-22T04:18:43.1Z stdout F ",
        "Nov 29 11:10:00 gpu7 docker[123]: ", "\x1b[32m", "bench-7d9 main › ", "0: ", "2026-06-09 12:31:35.337 | ",
    ])  # fmt: skip
    def test_prefixes_of_others_are_taken_off(self, tmp_path: Path, prefix: str) -> None:
        run = only(tmp_path, "".join(f"{prefix}{line}\n" for line in BLOCK.splitlines()))
        assert (run.ttft.mean, run.output_tok_s) == (564.63, 2993.85)

    def test_several_blocks_are_several_runs(self, tmp_path: Path) -> None:
        text = f"--max-concurrency 8\n{BLOCK}\n--max-concurrency 16\n{BLOCK.replace('564.63', '99.00')}"
        assert [(run.facts.concurrency, run.ttft.mean) for run in runs_of(tmp_path, text)] == [(8, 564.63), (16, 99.0)]

    def test_json_in_a_job_s_log_goes_before_the_block_beside_it(self, tmp_path: Path) -> None:
        run = only(
            tmp_path, f"Traffic request rate: 30.0\n{BLOCK}<<<RESULT_START>>>\n{json.dumps(LLMD)}\ndone\n", "job.log"
        )
        assert (run.ttft.mean, run.facts.rate) == (73.2, 30.0)

    def test_trtllm_bench_prints_what_its_report_holds(self, tmp_path: Path) -> None:
        report = {
            "engine": {"model": "meta-llama/Llama-3.1-8B-Instruct", "version": "1.1.0", "quantization": "FP8",
                       "kv_cache_dtype": "FP8", "backend": "Pytorch"},
            "world_info": {"tp_size": 2, "pp_size": 1, "ep_size": None, "max_batch_size": 512, "max_num_tokens": 8192},
            "request_info": {"num_requests": 3000, "avg_num_concurrent_requests": 63.5, "avg_input_length": 1000.0,
                             "avg_output_length": 500.0},
            "performance": {"avg_request_latency_ms": 5080.0, "request_throughput_req_s": 12.5,
                            "system_output_throughput_tok_s": 6250.0, "total_latency_ms": 240000.0},
            "streaming_metrics": {"avg_ttft_ms": 95.5, "avg_tpot_ms": 9.99},
        }  # fmt: skip
        printed, read = only(tmp_path, TRTLLM), only(tmp_path, report, "r.json")
        for run in (printed, read):
            assert (run.ttft.mean, run.tpot.mean, run.e2e.mean, run.output_tok_s) == (95.5, 9.99, 5080.0, 6250.0)
            assert (run.facts.tp, run.facts.concurrency, run.facts.max_num_seqs) == (2, 64, 512)
            assert run.facts.engine == "trtllm@1.1.0"
            assert dict(run.deployment) == {"weights": "fp8", "activations": "fp8", "kv": "fp8", "token_budget": 8192}
        crowd = report | {"request_info": report["request_info"] | {"avg_num_concurrent_requests": 1968.0}}
        assert only(tmp_path, crowd, "c.json").facts.concurrency == 3000  # more than half: none had a second turn


class TestTables:
    def test_a_row_is_a_run(self, tmp_path: Path) -> None:
        table = ("| Concurrency | ISL/OSL | TTFT (ms) | P99 TTFT (ms) | TPOT (ms) | Output tok/s |\n"
                 "|---:|---|---:|---:|---:|---:|\n| 1 | 1k/128 | **41.1** | 60 | 30.9 | 32.4 |\n"
                 "| 8 | 1k/128 | 1,200 | 2,000 | 35.0 | 220 |\n")  # fmt: skip
        first, second = runs_of(tmp_path, table, "t.md")
        assert (first.facts.concurrency, first.facts.isl, first.facts.osl) == (1, 1024.0, 128.0)
        assert (first.ttft.mean, first.ttft.p99, first.tpot.mean, first.output_tok_s) == (41.1, 60.0, 30.9, 32.4)
        assert (second.facts.concurrency, second.ttft.mean) == (8, 1200.0)

    def test_a_table_on_its_side_is_a_run_a_column(self, tmp_path: Path) -> None:
        table = "| Metric | 8 users | 64 users |\n|---|---|---|\n| Mean TTFT | 0.2 s | 1.5 s |\n"
        table += "| Mean TPOT (ms) | 9 | 22 |\n"
        first, second = runs_of(tmp_path, table)
        assert (first.facts.concurrency, first.ttft.mean, first.tpot.mean) == (8, 200.0, 9.0)
        assert (second.facts.concurrency, second.ttft.mean, second.tpot.mean) == (64, 1500.0, 22.0)

    def test_a_time_without_a_unit_is_refused_with_the_remedy(self, tmp_path: Path) -> None:
        with pytest.raises(SpecError, match=r"'TTFT' names no unit of time; write 'TTFT \(ms\)'"):
            runs_of(tmp_path, "| Concurrency | TTFT |\n|---|---|\n| 8 | 41 |\n")

    def test_vllm_s_sweep_writes_the_keys_of_its_json_as_columns(self, tmp_path: Path) -> None:
        names = ("model_id", "backend", "max_concurrency", "request_rate", "completed", "total_input_tokens",
                 "total_output_tokens", "mean_ttft_ms", "mean_tpot_ms", "run_number")  # fmt: skip
        text = f",{','.join(names)}\n0,llama-3.1-8b,vllm,16,inf,160,163840,40960,80.5,9.5,0\n"
        run = only(tmp_path, text, "summary.csv")
        assert run.tool == "vllm bench serve"
        assert (run.facts.concurrency, run.facts.isl, run.ttft.mean, run.tpot.mean) == (16, 1024.0, 80.5, 9.5)
        summary = [{"run_number": 0, **LLMD}, {"run_number": 1, **LLMD}]
        assert len(runs_of(tmp_path, summary, "summary.json")) == 2

    def test_aiperf_prints_statistics_of_one_run_in_a_box(self, tmp_path: Path) -> None:
        text = """
┏━━━━━━━━━━━━━━━━━━━━━━━━━━┳━━━━━━━━━┳━━━━━━━┳━━━━━━━┳━━━━━━━┓
┃                   Metric ┃     avg ┃   min ┃   p99 ┃   std ┃
┡━━━━━━━━━━━━━━━━━━━━━━━━━━╇━━━━━━━━━╇━━━━━━━╇━━━━━━━╇━━━━━━━┩
│ Time to First Token (ms) │   45.10 │ 40.00 │ 79.00 │  5.00 │
│ Inter Token Latency (ms) │    9.10 │  8.00 │ 11.00 │  0.50 │
│    Input Sequence Length │ 1,024.0 │   900 │ 1,100 │    10 │
│                 (tokens) │         │       │       │       │
│  Output Token Throughput │  820.10 │   N/A │   N/A │   N/A │
│             (tokens/sec) │         │       │       │       │
└──────────────────────────┴─────────┴───────┴───────┴───────┘
"""
        run = only(tmp_path, text)
        assert (run.ttft.mean, run.ttft.p99, run.tpot.mean, run.itl.mean) == (45.1, 79.0, 9.1, None)
        assert (run.facts.isl, run.output_tok_s) == (1024, 820.1)
        grid = text.translate(str.maketrans("┃│━─┏┳┓┡╇┩└┴┘", "||--+++++++++"))
        assert only(tmp_path, grid.replace("Metric", "Statistic")).ttft == run.ttft  # as GenAI-Perf does

    def test_kernel_tables_and_reports_of_triton_stay_what_they_are(self, tmp_path: Path) -> None:
        kernels = written(
            tmp_path, "gemm.csv", "op,gpu,engine,dtype,m,n,k,latency_us\ngemm,h100,vllm,bf16,16,4096,4096,9.1\n"
        )
        assert not is_benchmark(kernels)
        assert not is_benchmark(written(tmp_path, "triton.csv", "N,latency (ms)\n128,0.5\n"))


class TestOtherTools:
    def test_llama_bench_is_a_prompt_or_a_token(self, tmp_path: Path) -> None:
        decode = LLAMA_BENCH | {"n_prompt": 0, "n_gen": 128, "avg_ts": 188.2}
        first, second = runs_of(tmp_path, [LLAMA_BENCH, decode], "b.json")
        assert first.ttft.mean == pytest.approx(1e3 * 512 / 14222.2)
        assert second.tpot.mean == pytest.approx(1e3 / 188.2)
        assert (first.facts.model, first.facts.engine, first.facts.tp) == ("llama-2-7b", "llama.cpp", 1)
        assert dict(first.deployment)["weights"] == "q4_0"
        found = compare(tmp_path / "b.json").runs  # nothing else has to be said
        assert [run.metrics[0].metric for run in found] == ["ttft_ms", "tpot_ms"]
        assert found[1].facts.gpu == "rtx-4090"
        assert abs(found[1].metrics[0].error) < 0.25  # the kernels of this accelerator and engine were measured
        as_csv = ",".join(LLAMA_BENCH) + "\n" + ",".join(f'"{value}"' for value in LLAMA_BENCH.values()) + "\n"
        assert only(tmp_path, as_csv, "b.csv").ttft.mean == pytest.approx(first.ttft.mean)

    def test_its_table_names_the_device_before_and_a_family_alone(self, tmp_path: Path) -> None:
        prompt, decode = runs_of(tmp_path, LLAMA_TABLE)
        assert prompt.facts.gpu == "NVIDIA GeForce RTX 4090"
        assert (prompt.facts.isl, prompt.facts.hits) == (6144, pytest.approx(4096 / 6144))
        assert dict(decode.deployment)["weights"] == "q4_k_m"
        with pytest.raises(InputError, match=r"add --model$"):
            compare(tmp_path / "x.txt")
        found = compare(tmp_path / "x.txt", model="qwen3-30b-a3b").runs
        assert found[0].facts.model == "qwen3-30b-a3b"

    def test_layers_that_stay_on_the_host_are_not_the_accelerator_s(self, tmp_path: Path) -> None:
        decode = LLAMA_BENCH | {"n_prompt": 0, "n_gen": 128, "avg_ts": 20.0}
        whole, part = (compare(written(tmp_path, f"{ngl}.json", [decode | {"n_gpu_layers": ngl}])).runs[0].metrics[0]
                       for ngl in (99, 16))  # fmt: skip
        assert part.predicted > 3.0 * whole.predicted  # half of the weights at a tenth of the bandwidth

    def test_a_batch_without_a_server_is_predicted_as_one(self, tmp_path: Path) -> None:
        row = {"run_name": "default", "batch_size": 16, "input_len": 1024, "output_len": 256, "prefill_latency": 0.41,
               "median_decode_latency": 0.0099, "total_latency": 2.95, "overall_throughput": 6942.0}  # fmt: skip
        run = compare(written(tmp_path, "o.jsonl", row), model="llama-3.1-8b", gpu="h100-sxm").runs[0]
        assert [(each.metric, each.measured) for each in run.metrics] == [
            ("ttft_ms", 410.0), ("tpot_ms", 9.9), ("e2e_ms", 2950.0),
        ]  # fmt: skip
        ttft, tpot, e2e = (each.predicted for each in run.metrics)
        assert e2e == pytest.approx(ttft + 255 * tpot)
        assert "one batch of 16 that begins together" in run.notes
        latency = {"avg_latency": 3.21, "latencies": [3.2, 3.22, 3.21], "percentiles": {"50": 3.21, "99": 3.22}}
        file = written(tmp_path, "l.json", latency)
        with pytest.raises(InputError, match="add --model, --gpu, --isl, --osl, --concurrency"):
            compare(file)
        said = {"model": "llama-3.1-70b", "gpu": "h100-sxm", "tp": 4, "isl": 32, "osl": 128, "concurrency": 8}
        assert compare(file, **said).runs[0].metrics[0].measured == 3210.0

    def test_a_throughput_run_knows_the_sum_and_the_user_one_part(self, tmp_path: Path) -> None:
        text = {"elapsed_time": 61.2, "num_requests": 1000, "total_num_tokens": 414000, "requests_per_second": 16.3,
                "tokens_per_second": 6764.7}  # fmt: skip
        file, said = written(tmp_path, "t.json", text), {"model": "llama-3.1-8b", "gpu": "h100-sxm"}
        run = compare(file, osl=200, **said).runs[0]
        assert (run.facts.isl, run.facts.osl, run.facts.concurrency) == (214, 200, 1000)
        assert run.metrics[0].measured == pytest.approx(16.3 * 200)
        with pytest.raises(InputError, match="414 tokens in and out; add --isl or --osl"):
            compare(file, **said)
        with pytest.raises(InputError, match="414 tokens in and out, not 400"):
            compare(file, isl=200, osl=200, **said)

    def test_inferencex_has_seconds_and_rates_a_gpu(self, tmp_path: Path) -> None:
        run = only(tmp_path, INFERENCEX, "i.json")
        assert (run.ttft.mean, run.tpot.mean, run.e2e.mean) == (550.0, pytest.approx(21.9), 22900.0)
        assert run.output_tok_s == pytest.approx(8 * 350.1)
        assert (run.facts.gpu, run.facts.tp, run.facts.concurrency) == ("h200", 8, 64)
        found = compare(tmp_path / "i.json").runs[0]  # fp8 is the checkpoint's own format, in other words
        assert found.facts.model == "deepseek-r1"
        assert not any("fp8 weights" in note for note in found.notes)
        attention = only(tmp_path, INFERENCEX | {"dp_attention": "true", "ep": 8}, "d.json")
        assert (attention.facts.tp, dict(attention.deployment)["dp"], attention.output_tok_s) == (1, 8, 8 * 350.1)
        four = only(tmp_path, INFERENCEX | {"hw": "mi355x", "precision": "fp4"}, "f.json")
        assert dict(four.deployment)["weights"] == "mxfp4"
        with pytest.raises(SpecError, match="pools apart"):
            only(tmp_path, INFERENCEX | {"disagg": True}, "p.json")

    def test_llm_d_counts_accelerators_and_servers(self, tmp_path: Path) -> None:
        run = only(tmp_path, LLMD, "l.json")
        assert (run.facts.gpu, run.facts.tp, run.servers) == ("NVIDIA_L40S", 1, 4)
        with pytest.raises(SpecError, match="2 servers computed prompts alone"):
            only(tmp_path, LLMD | {"prefill_replicas": "2"}, "p.json")

    def test_inference_perf_has_seconds_below_successes(self, tmp_path: Path) -> None:
        run = only(tmp_path, INFERENCE_PERF, "summary_lifecycle_metrics.json")
        assert (run.ttft.mean, run.ttft.p50, run.tpot.mean, run.e2e.mean) == (800.0, 200.0, 19.8, 3310.0)
        assert (run.facts.rate, run.facts.isl, run.facts.osl, run.facts.requests) == (5.0, 512.0, 128.0, 480)

    def test_sentences_of_tools_are_read(self, tmp_path: Path) -> None:
        throughput = ("Throughput: 16.33 requests/s, 6764.70 total tokens/s, 3382.35 output tokens/s\n"
                      "Total num prompt tokens:  207000\nTotal num output tokens:  207000\n")  # fmt: skip
        assert only(tmp_path, throughput).output_tok_s == 3382.35
        server = (
            "prompt eval time =     120.00 ms /   512 tokens (    0.23 ms per token,  4266.67 tokens per second)\n"
            "       eval time =    1280.00 ms /   128 tokens (   10.00 ms per token,   100.00 tokens per second)\n"
        )
        run = only(tmp_path, server)
        assert (run.ttft.mean, run.tpot.mean, run.facts.isl, run.facts.osl) == (120.0, 10.0, 512.0, 128.0)

    def test_a_score_of_answers_is_no_speed(self, tmp_path: Path) -> None:
        scores = {
            "results": {"gsm8k": {"exact_match": 0.78}},
            "config": {"model": "vllm", "model_args": "pretrained=m"},
        }
        with pytest.raises(SpecError, match="holds scores of lm-eval, and no times"):
            runs_of(tmp_path, scores, "e.json")

    def test_guard_and_the_other_commands_read_the_same(self, tmp_path: Path) -> None:
        readings = read_readings(written(tmp_path, "b.txt", BLOCK))
        assert [reading.metric for reading in readings] == ["ttft_ms", "tpot_ms", "output_tok_s"]
        scored = CliRunner().invoke(app, ["accuracy", "serving", str(written(tmp_path, "l.json", LLMD))])
        assert scored.exit_code == 0, scored.stderr
        assert "3 of 3 rows answered" in scored.stdout


def test_a_paste_is_compared_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(BLOCK.encode())))
    words = ["--model", "llama-3.1-70b", "--gpu", "h100-sxm", "--tp", "8", "--concurrency", "128", "--format", "json"]
    from rooflinekit.cli.answers import compare as command
    from rooflinekit.cli.output import CommandOutput

    assert command(["-"], to=CommandOutput(), model="llama-3.1-70b", gpu="h100-sxm", tp=8, concurrency=128) == 0
    ran = CliRunner().invoke(app, ["compare", "-", *words], input=BLOCK)
    assert ran.exit_code == 0, ran.stderr
    assert json.loads(ran.stdout)["runs"][0]["source"] == "standard-input.txt"
    empty = CliRunner().invoke(app, ["compare", "-", *words], input=" ")
    assert (empty.exit_code, "standard input is empty" in empty.stderr) == (2, True)


COMPOSE = """\
qwen3.5-35b  | (APIServer pid=1) INFO 03-20 10:11:00 [utils.py:233] non-default args: {'max_model_len': 32768, \
'enforce_eager': True, 'gpu_memory_utilization': 0.67, 'kv_cache_dtype': 'fp8', 'max_num_seqs': 3}
qwen3.5-35b  | (EngineCore pid=164) INFO [core.py:101] Initializing a V1 LLM engine (v0.17.1rc1.dev126) with \
config: model='/models/cyankiwi/Qwen3.5-35B-A3B', max_seq_len=32768, tensor_parallel_size=1, quantization=None
glm-ocr      | (APIServer pid=1) INFO:     127.0.0.1:55654 - "GET /v1/models HTTP/1.1" 200 OK
qwen3.5-35b  | (EngineCore pid=164) INFO 03-20 10:19:06 [gpu_model_runner.py:4584] Model loading took 22.05 GiB memory
qwen3.5-35b  | (EngineCore pid=164) INFO 03-20 10:20:32 [gpu_worker.py:452] Available KV cache memory: 5.69 GiB
qwen3.5-35b  | (EngineCore pid=164) INFO 03-20 10:20:32 [kv_cache_utils.py:1316] GPU KV cache size: 148,816 tokens
qwen3.5-35b  | (EngineCore pid=164) [kv_cache_utils.py:1321] Maximum concurrency for 32,768 tokens per request: 12.91x
"""  # a public compose log of 2026-03 (vLLM 0.17.1)
SGLANG_LOG = """\
[2026-08-15 03:00:00] server_args=ServerArgs(model_path='Qwen/Qwen3.5-27B', tp_size=1, mem_fraction_static=0.9, x=None)
[2026-08-15 03:00:30] Load weight end. type=Qwen3_5ForConditionalGeneration, avail mem=24.10 GB, mem usage=50.90 GB.
[2026-08-15 03:00:31] Mamba Cache is allocated. max_mamba_cache_size: 43, conv_state 0.12GB, ssm_state 3.09GB, \
intermediate_ssm_state_cache 2.11GB, conv_window 0.04GB
[2026-08-15 03:00:32] KV Cache is allocated. #tokens: 171008, K size: 5.22 GB, V size: 5.22 GB
[2026-08-15 03:00:40] max_total_num_tokens=171008, chunked_prefill_size=8192, max_running_requests=43, \
context_len=169000
"""


LM_EVAL = """vllm (pretrained=meta-llama/Llama-3.1-8B,tensor_parallel_size=1), limit: None, num_fewshot: 5
|Tasks|Version|     Filter     |n-shot|  Metric   |   |Value |   |Stderr|
|-----|------:|----------------|-----:|-----------|---|-----:|---|-----:|
|gsm8k|      3|flexible-extract|     5|exact_match|↑  |0.5100|±  |0.0138|
"""
OFFLOADED = """  Device 0: NVIDIA GeForce RTX 3090, compute capability 8.6, VMM: yes
| model                          | backend | ngl | n_cpu_moe | type_k | n_ubatch |   test |             t/s |
| ------------------------------ | ------- | --: | --------: | -----: | -------: | -----: | --------------: |
| qwen3moe 30B.A3B Q4_K - Medium | CUDA    |  99 |        10 |   q8_0 |     1024 |  tg128 |   145.44 ± 0.21 |
"""


def test_scores_of_lm_eval_as_it_prints_them_are_named(tmp_path: Path) -> None:
    for text in (LM_EVAL, LM_EVAL.partition("\n")[2]):
        with pytest.raises(SpecError, match="holds scores of lm-eval, and no times"):
            runs_of(tmp_path, text, "scores.txt")


def test_scores_below_a_start_up_log_leave_it_to_be_read(tmp_path: Path) -> None:
    (start,) = read_measurements(written(tmp_path, "lm_eval.log", SGLANG_LOG + LM_EVAL))
    assert start.kv_tokens == 171_008


def test_the_columns_of_llama_bench_are_options(tmp_path: Path) -> None:
    run = only(tmp_path, OFFLOADED, "b.md")
    said = {"weights": "q4_k_m", "kv": "q8_0", "resident_layers": 99, "token_budget": 1024, "n_cpu_moe": 10}
    assert (run.facts.gpu, dict(run.deployment)) == ("NVIDIA GeForce RTX 3090", said)


class TestLogs:
    def test_a_line_that_begins_with_a_bracket_is_no_json(self, tmp_path: Path) -> None:
        log = only(tmp_path, SGLANG_LOG, "s.log")
        assert isinstance(log, StartUp)
        assert (log.facts.model, log.kv_tokens, log.facts.max_num_seqs) == ("Qwen/Qwen3.5-27B", 171_008, 43)
        trt = "[TensorRT-LLM][INFO] Allocated 5.00 GiB for max tokens in paged KV cache (81920).\n"
        assert only(tmp_path, trt, "t.log").kv_tokens == 81_920

    def test_sglang_s_gigabytes_are_gibibytes(self) -> None:
        log = read_startup("s.log", SGLANG_LOG)
        assert log.weight_bytes == pytest.approx(50.90 * GIB)
        assert log.kv_bytes == pytest.approx(10.44 * GIB)
        assert log.state_bytes == pytest.approx(5.36 * GIB)
        assert log.kv_bytes / 171_008 == pytest.approx(16 * 2 * 4 * 256 * 2, rel=1e-3)  # 16 layers, 4 heads, 256 wide
        assert dict(log.deployment) == {"memory_fraction": 0.9, "token_budget": 8192, "max_model_len": 169_000}

    def test_front_ends_and_looks_at_the_queue_are_read(self) -> None:
        log = read_startup("s.log", SGLANG_LOG.replace("x=None", "stream_interval=30, scheduler_recv_interval=10"))
        assert (log.deployment["stream_interval"], log.deployment["scheduler_recv_interval"]) == (30, 10)
        usual = read_startup("s.log", SGLANG_LOG.replace("x=None", "stream_interval=1, tokenizer_worker_num=1"))
        assert "stream_interval" not in usual.deployment
        log = read_startup(
            "v.log",
            "non-default args: {'api_server_count': 4, 'stream_interval': 8, 'max_num_seqs': 512}\n"
            "GPU KV cache size: 178,880 tokens",
        )
        assert dict(log.deployment) == {"api_servers": 4, "stream_interval": 8}

    def test_vllm_s_gigabytes_are_gibibytes_too(self) -> None:
        log = read_startup(
            "v.log", "INFO 04-05 [gpu_model_runner.py:1186] Model loading took 15.1749 GB and 59.3 seconds"
        )
        assert log.weight_bytes == pytest.approx(16.29e9, rel=1e-3)

    def test_the_sum_that_vllm_makes_at_the_end_is_read(self) -> None:
        # two RTX 5090 (club-3090, issue 1087), and a server with adapters
        log = read_startup(
            "v.log",
            "INFO 08-22 [gpu_worker.py:789] Free memory on device (30.27/31.4 GiB) on startup. Desired GPU memory "
            "utilization is (0.92, 28.88 GiB). Actual usage is 15.03 GiB for consumed memory (weights + non-torch), "
            "1.59 GiB for peak activation, and 0.09 GiB for CUDAGraph memory. Current kv cache memory in use is 12.26 "
            "GiB.\nargs: Namespace(enable_lora=True, max_loras=2, max_lora_rank=16, max_cpu_loras=12)\n",
        )
        assert (log.activation_bytes, log.graph_bytes, log.kv_bytes) == (1.59 * GIB, 0.09 * GIB, 12.26 * GIB)
        assert dict(log.deployment) == {"memory_fraction": 0.92, "lora_rank": 16, "lora_adapters": 2}

    def test_tokens_of_a_hybrid_model_follow_from_pool_concurrency_and_length(self, tmp_path: Path) -> None:
        (log,) = read_startups("c.log", COMPOSE)
        assert log.printed_tokens == 148_816
        assert log.kv_tokens == pytest.approx(12.91 * 32_768, rel=1e-5)
        # 22 blocks of 10 layers x 2,096 tokens x 2 heads x 256 x 2: the truth of vLLM's own reckoning
        assert log.kv_bytes / log.concurrency == pytest.approx(22 * 10 * 2096 * 2 * 2 * 256, rel=0.005)
        assert dict(log.deployment) == {"kv": "fp8", "memory_fraction": 0.67, "max_model_len": 32_768, "eager": True}
        said = {"model": "qwen3.5-35b-a3b", "gpu": "rtx-pro-6000-blackwell", "weights": "int4"}
        found = compare(written(tmp_path, "c.log", COMPOSE), **said).runs[0]
        rows = {each.metric: each for each in found.metrics}
        assert abs(rows["kv_bytes_per_sequence_per_gpu"].error) < 0.15
        assert rows["kv_pool_bytes"].measured == 5.69 * GIB
        words = " ".join(found.notes)
        assert all(figure in words for figure in ("5.69 GiB", "12.91 sequences of 32,768 tokens", "148,816"))

    def test_weights_that_are_quantised_in_a_way_that_no_one_says_are_named_first(self, tmp_path: Path) -> None:
        log = COMPOSE.replace("quantization=None", "quantization=compressed-tensors")
        said = {"model": "qwen3.5-35b-a3b", "gpu": "rtx-pro-6000-blackwell"}
        found = compare(written(tmp_path, "c.log", log), **said).runs[0]
        assert found.notes[0].startswith("the log's weights are quantised (compressed-tensors), and the prediction has")
        for more in (log, COMPOSE):
            stored = said | ({"weights": "int4"} if more is log else {})
            assert not any(
                "quantised (" in note for note in compare(written(tmp_path, "c.log", more), **stored).runs[0].notes
            )

    def test_the_checkpoint_that_a_path_names_has_the_bytes_of_the_log(self, tmp_path: Path) -> None:
        log = COMPOSE.replace("cyankiwi/Qwen3.5-35B-A3B'", "cyankiwi/Qwen3.5-35B-A3B-AWQ-4bit'")
        rows = {each.metric: each for each in compare(written(tmp_path, "c.log", log), gpu="l40s").runs[0].metrics}
        assert abs(rows["weight_bytes"].error) < 0.02  # 24.04 GB, as files on disk have, for 23.68 GB in memory

    @pytest.mark.parametrize(("engine", "line", "kept"), [
        ("vllm", "enable_prefix_caching=False,", "off"), ("vllm", "'enable_prefix_caching': True,", "on"),
        ("sglang", "server_args=ServerArgs(model_path='x', disable_radix_cache=True)", "off"),
        ("sglang", "server_args=ServerArgs(model_path='x', disable_radix_cache=False)", "on"),
    ])  # fmt: skip
    def test_the_prefix_cache_is_as_the_log_says(self, engine: str, line: str, kept: str) -> None:
        text = {"vllm": "GPU KV cache size: 20,000 tokens\n", "sglang": "max_total_num_tokens=171008\n"}[engine]
        assert read_startup("log", f"{line}\n{text}").deployment["prefix_caching"] == kept
        assert "prefix_caching" not in read_startup("log", f"enable_prefix_caching=None\n{text}").deployment

    def test_a_first_start_is_said_where_the_cache_is_less_than_predicted(self, tmp_path: Path) -> None:
        # vLLM 0.19 on an H100, and as vLLM issue 54122 has a start without the results of an earlier compilation
        start = (
            "Initializing a V1 LLM engine (v0.19.0) with config: model='meta-llama/Meta-Llama-3-8B', max_seq_len=8192"
        )
        log = f"{start}\nAvailable KV cache memory: {{}} GiB\n"
        cold = "backends.py: Compiling a graph for compile range (1, 8192) takes 4.92 s\n"
        for text, said in (
            (log.format(54.3) + cold + log.format(40.0), False),  # the last start has the results of the first
            (log.format(40.0) + cold, True),
            (log.format(40.0), False),
            (log.format(54.3) + cold, False),
        ):
            notes = compare(written(tmp_path, "v.log", text), gpu="h100-sxm").runs[0].notes
            assert any("the engine compiled at this start" in note for note in notes) is said

    def test_sizes_of_a_draft_are_not_those_of_its_model(self) -> None:
        # sgl-project/sglang issue 24589: the draft of Gemma-4 is loaded after it
        drafted = """[2026-06-09 09:31:35] Load weight end. elapsed=17.93 s, type=Gemma4AssistantForCausalLM, \
avail mem=2.93 GB, mem usage=0.29 GB.
[2026-06-09 09:31:35] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 64, K size: 0.00 GB, V size: 0.00 GB
"""
        alone, both = read_startup("s.log", SGLANG_LOG), read_startup("s.log", SGLANG_LOG + drafted)
        assert (both.weight_bytes, both.kv_bytes) == (alone.weight_bytes, alone.kv_bytes)

    def test_sizes_are_of_the_last_start_as_tokens_are(self) -> None:
        start = "server_args=ServerArgs(model_path='x', mem_fraction_static={0})\nKV Cache is allocated. #tokens: {1}, "
        start += "K size: {2} GB, V size: {2} GB\nmax_total_num_tokens={1}\n"
        first, last = start.format(0.9, 442368, 27.0), start.format(0.6, 245760, 15.0)
        for text in (last, first + last):
            found = read_startup("s.log", text)
            assert (found.kv_bytes, found.kv_tokens) == (30.0 * GIB, 245_760)
        with pytest.raises(SpecError, match=r"s\.log: the engine says '1\.2\.3'"):
            read_startup("s.log", start.format(0.9, 1, "1.2.3"))

    def test_the_estimate_of_graphs_is_what_the_pool_pays_for(self) -> None:
        # LMCache issue 3430, vLLM 0.21
        log = "(EngineCore pid=4108) INFO [gpu_model_runner.py:6142] Estimated CUDA graph memory: 0.52 GiB total\n"
        taken = "Graph capturing finished in 9 secs, took 0.71 GiB\n"
        assert read_startup("v.log", log + taken).graph_bytes == pytest.approx(0.52 * GIB)

    def test_a_log_that_states_no_memory_is_said_to(self, tmp_path: Path) -> None:
        said = {"model": "llama-3.1-8b", "gpu": "h100-sxm"}
        log = written(tmp_path, "v.log", "Namespace(tensor_parallel_size=2)\n")
        with pytest.raises(InputError, match=r"v\.log: the log of vllm states no bytes and no tokens of a cache"):
            compare(log, **said)
        both = compare([log, written(tmp_path, "b.txt", BLOCK)], concurrency=64, **said)
        assert [(run.source, run.facts.tp) for run in both.runs] == [("b.txt", 2)]

    def test_two_services_in_one_log_are_two_engines(self, tmp_path: Path) -> None:
        other = "embed-2  | GPU KV cache size: 20,000 tokens\n"
        first, second = runs_of(tmp_path, COMPOSE + other, "c.log")
        assert (first.printed_tokens, second.kv_tokens) == (148_816, 20_000)
        assert second.source == "c.log (embed-2)"

    def test_a_log_and_its_benchmark_in_one_file_are_both_read(self, tmp_path: Path) -> None:
        log, run = runs_of(tmp_path, COMPOSE.replace("qwen3.5-35b  | ", "") + BLOCK, "job.log")
        assert isinstance(log, StartUp)
        assert run.ttft.mean == 564.63

    def test_more_bytes_than_the_card_has_are_said_first(self, tmp_path: Path) -> None:
        log = "Model loading took 33.00 GiB and 3 seconds\nGPU KV cache size: 148,816 tokens\n"
        run = compare(written(tmp_path, "m.log", log), model="qwen3-32b", gpu="rtx-4090", weights="fp8", tp=2).runs[0]
        assert run.notes[0].startswith("weights and cache of the log take 35.4 GB, more than the 2")
        assert "the accelerator or --tp is another" in run.notes[0]


def test_a_start_up_with_a_draft_is_compared_with_its_layers_and_states(tmp_path: Path) -> None:
    """Qwen3.6-27B on 2 x 3090 with 3 tokens of its MTP layer (club-3090 issue 642; the flags are those of 294)."""
    flags = "'tensor_parallel_size': 2, 'kv_cache_dtype': 'fp8_e5m2', 'max_num_batched_tokens': 8192, 'max_num_seqs': 2"
    log = (
        f"INFO [utils.py:278] non-default args: {{'model': 'Qwen/Qwen3.6-27B', 'max_model_len': 262144, {flags}, "
        "'speculative_config': {'method': 'DRAFT', 'num_speculative_tokens': 3}}\n"
        "INFO [gpu_worker.py:508] Available KV cache memory: 11.05 GiB\n"
        "INFO [kv_cache_utils.py:2146] GPU KV cache size: 623,873 tokens\n"
        "INFO [kv_cache_utils.py:2147] Maximum concurrency for 262,144 tokens per request: 2.38x\n"
    )
    given = {"model": "qwen3.6-27b", "gpu": "rtx-3090", "weights": "int4", "tp": 2}
    tokens = {}
    for draft in ("mtp", "dflash"):
        run = compare(written(tmp_path, f"{draft}.log", log.replace("DRAFT", draft)), **given).runs[0]
        room, said = (
            next(each for each in run.metrics if each.metric == name) for name in ("kv_pool_bytes", "kv_pool_tokens")
        )
        tokens[draft] = (said.measured / room.measured) / (said.predicted / room.predicted) - 1.0
        assert any("dflash" in note for note in run.notes) == (draft == "dflash")
    assert abs(tokens["mtp"]) < 0.01
    assert abs(tokens["dflash"]) > 0.05


class TestBounds:
    LONG = LLMD | {"gpu": "H100", "decode_replicas": None, "request_rate": "inf", "max_concurrency": 1, "completed": 4,
                   "total_input_tokens": 4 * 100_000, "total_output_tokens": 400, "mean_ttft_ms": 902.0,
                   "mean_tpot_ms": 12.0, "output_throughput": 40.0, "model_id": "llama-3.1-70b"}  # fmt: skip

    def test_what_the_datasheet_does_not_allow_is_said_before_anything_else(self, tmp_path: Path) -> None:
        run = compare(written(tmp_path, "l.json", self.LONG), gpu="h100-sxm", tp=4).runs[0]
        ttft = next(each for each in run.metrics if each.metric == "ttft_ms")
        floor = 2 * 70e9 * 1e5 / (4 * 989e12)  # FLOP of the matrices over the rate of four cards [s]
        assert ttft.bound > 1e3 * floor
        assert (ttft.impossible, ttft.verdict) == (True, "better than the datasheet allows")
        assert "prompts were cached, or the accelerator or the count is another" in run.notes[0]
        printed = (
            CliRunner().invoke(app, ["compare", str(tmp_path / "l.json"), "--gpu", "h100-sxm", "--tp", "4"]).stdout
        )
        assert printed.index("is better than") < printed.index("measured") < printed.index("calibration")
        assert printed.count("TTFT 902 ms") == 1

    def test_a_burst_of_prompts_cannot_begin_sooner_than_their_arithmetic(self, tmp_path: Path) -> None:
        crowd = LLMD | {"gpu": "H100", "decode_replicas": None, "request_rate": "inf", "completed": 1000,
                        "total_input_tokens": 2_000_000, "total_output_tokens": 100_000, "mean_ttft_ms": 900.0,
                        "mean_tpot_ms": 60.0, "model_id": "llama-3.1-70b"}  # fmt: skip
        run = compare(written(tmp_path, "c.json", crowd), gpu="h100-sxm", tp=4).runs[0]
        ttft = run.metrics[0]
        half = 0.5 * 2 * 70e9 * 2e6 / (4 * 989e12)  # the mean prompt waits for half of them
        assert 1.0 < ttft.bound / (1e3 * half) < 1.5  # attention and all-reduces beside the matrices
        assert ttft.impossible

    def test_a_sound_run_is_inside_and_early_tokens_are_suspected(self) -> None:
        early = ComparedMetric("ttft_ms", "mean", 10.0, 30.0, 20.0, 50.0, 5.0)
        assert early.verdict == "faster than 19 of 20 such runs"
        assert "were prompts repeated" in doubts([early])[0]
        assert doubts([early], served=False) == []
        rate = ComparedMetric("output_tok_s", "mean", 90.0, 100.0, 95.0, 110.0, 500.0)
        assert rate.verdict == "slower than 19 of 20 such runs"
        assert ComparedMetric("output_tok_s", "mean", 600.0, 100.0, 95.0, 110.0, 500.0).impossible
        assert ComparedMetric("tpot_ms", "mean", 10.0, 10.5).verdict == ""


def test_one_page_of_metrics_is_all_since_the_start(tmp_path: Path) -> None:
    label = 'model_name="meta-llama/Llama-3.1-8B-Instruct"'
    edges = {"0.02": 13, "0.04": 97, "0.06": 123, "0.1": 140}
    page = "# TYPE vllm:time_to_first_token_seconds histogram\n"
    page += "".join(
        f'vllm:time_to_first_token_seconds_bucket{{le="{edge}",{label}}} {n}\n' for edge, n in edges.items()
    )
    page += (
        f"vllm:time_to_first_token_seconds_count{{{label}}} 140.0\nvllm:generation_tokens_total{{{label}}} 27453.0\n"
    )
    run = only(tmp_path, page, "vllm.prom")
    assert run.ttft.p50 == pytest.approx(33.57, abs=0.01)  # the 70th of 140 lies at 57 of 84 between 20 and 40 ms
    assert run.facts.osl == pytest.approx(27453 / 140)
    assert run.facts.rate is None
    whole = page + f"vllm:time_to_first_token_seconds_sum{{{label}}} 5.6\nvllm:prompt_tokens_total{{{label}}} 70000.0\n"
    run = only(tmp_path, whole, "vllm.prom")
    assert (run.ttft.mean, run.facts.isl) == (pytest.approx(40.0), 500.0)
    found = compare(tmp_path / "vllm.prom", gpu="h100-sxm", rate=2.0).runs[0]
    assert any("since the server started" in note for note in found.notes)
    with pytest.raises(SpecError, match="times no request; record two with"):
        only(
            tmp_path,
            'sglang:prompt_tokens_total{model_name="m"} 4882260.0\nsglang:gen_throughput{model_name="m"} 35.1\n',
        )
