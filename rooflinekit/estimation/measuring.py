"""The commands of benchmark clients that measure what an estimate predicts.

Flags as in vLLM main (benchmarks/serve.py, latency.py, datasets/random.py at 237145ea; 0.33.0 has them), SGLang 0.5.23
(benchmark/serving.py, one_batch_server.py), AIPerf 0.13.0 and llama.cpp (tools/llama-bench/README.md at 08d0baac).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rooflinekit.model.step import Plan
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.workload import Workload

if TYPE_CHECKING:  # a static batch needs no load
    from rooflinekit.load.answer import Load

_PORTS = {"vllm": 8000, "sglang": 30000, "trtllm": 8000, "llama.cpp": 8080}  # where each serves unless told otherwise
_FILE = "result.json"
_ONLINE = {"fp8": "fp8", "fp8_block": "fp8_per_block"}  # what vLLM quantises a checkpoint to as it loads it
_DTYPES = {Dtype.BF16: "bfloat16", Dtype.FP16: "float16", Dtype.FP32: "float32"}


def benchmark_commands(plan: Plan, work: Workload, asked: Load | None = None) -> list[dict[str, str]]:
    """The `command` of each client, with its name as `tool`.

    None for an engine without a server, nor for prompts with images.

    asked: the load that was played; None for a static batch, which but a batch of one needs a client without a server.
    """
    engine, batch = plan.deployment.engine, int(work.batch)
    if engine not in _PORTS or plan.deployment.images:
        return []
    found = dict(_static(plan, work)) if asked is None else {}
    if asked is not None or batch == 1:
        found |= dict(_served(plan, work, asked))
    each = ((tool, [word for option in words for word in option.split(" ", 1)]) for tool, words in found.items())
    return [{"tool": tool, "command": shlex.join(words)} for tool, words in each]


def _model(plan: Plan) -> str:
    """Model id on the Hugging Face hub, else the name."""
    return next((alias for alias in plan.model.aliases if alias.count("/") == 1), plan.model.name)


def _static(plan: Plan, work: Workload) -> Iterator[tuple[str, list[str]]]:
    """A batch that begins together, without requests."""
    deployment, isl, osl, batch = plan.deployment, int(work.isl), int(work.osl), int(work.batch)
    if work.cached:
        return
    if deployment.engine == "vllm" and (told := _engine_words(plan)) is not None:
        yield "vllm bench latency", [
            "vllm bench", "latency", f"--model {_model(plan)}", f"--input-len {isl}", f"--output-len {osl}",
            f"--batch-size {batch}", *told, f"--output-json {_FILE}",
        ]  # fmt: skip
    if deployment.engine == "sglang":
        yield (
            "sglang one_batch_server",
            [
                "python -m",
                "sglang.benchmark.one_batch_server",
                "--model None",
                f"--base-url http://127.0.0.1:{_PORTS['sglang']}",
                f"--batch-size {batch}",
                f"--input-len {isl}",
                f"--output-len {osl}",
                "--result-filename result.jsonl",
            ],
        )
    if deployment.engine == "llama.cpp" and batch == 1:
        for test, words in (("prompt", [f"-p {isl}", "-n 0"]), ("tokens", ["-p 0", f"-n {osl}", f"-d {isl}"])):
            yield f"llama-bench ({test})", ["llama-bench", "-m model.gguf", *words, "-o json"]


def _engine_words(plan: Plan) -> list[str] | None:
    """Arguments of vLLM's engine that make it this deployment, None where they cannot.

    They cannot for attention replicas, and for weights that it does not make of the checkpoint as it loads.
    """
    deployment, model, formats = plan.deployment, plan.model, plan.precision.formats
    told, online = deployment.settings, None
    if formats != model.formats:
        wide = all(getattr(model.formats, kind).is_wide for kind in model.matrices)
        apart = {deployment.attention_weights, deployment.lm_head} - {None}
        online = _ONLINE.get(str(deployment.weights)) if wide and not apart else None
        if online is None:
            return None
    if deployment.dp > 1 or deployment.cp > 1 or deployment.ffn_gpus:
        return None
    stream, kv = plan.precision.stream, deployment.kv
    values = {
        "tensor-parallel-size": deployment.tp if deployment.tp > 1 else None,
        "pipeline-parallel-size": deployment.pp if deployment.pp > 1 else None,
        "dtype": _DTYPES.get(stream) if stream is not model.dtype else None,
        "quantization": online,
        "kv-cache-dtype": "fp8" if kv == Dtype.FP8 else None,
        "max-model-len": told.max_model_len,
        "gpu-memory-utilization": told.memory_fraction,
        "max-num-seqs": told.max_num_seqs,
        "max-num-batched-tokens": told.token_budget,
        "block-size": told.block_size,
    }
    switches = {
        "enable-expert-parallel": deployment.ep > 1,
        "enable-dbo": deployment.two_batch,
        "enforce-eager": told.eager,
    }
    return [
        *(f"--{name} {value}" for name, value in values.items() if value is not None),
        *(f"--{name}" for name, there in switches.items() if there),
    ]


def _served(plan: Plan, work: Workload, asked: Load | None) -> Iterator[tuple[str, list[str]]]:
    """A server with the requests of the load; of a batch of one a user who asks ten times."""
    engine, model, cached = plan.deployment.engine, _model(plan), int(work.cached)
    isl, osl, users, count, warm, rate, gaps, spreads = int(work.isl), int(work.osl), 1, 10, 0, 0.0, 1.0, (0.0, 0.0)
    if asked is not None:
        lengths = asked.isl, asked.osl
        isl, osl = (round(each.mean) for each in lengths)
        spreads = tuple(max(each.second_moment / each.mean**2 - 1.0, 0.0) ** 0.5 for each in lengths)
        users, count, warm, rate = asked.users or 0, asked.counted, asked.filling, asked.rate or 0.0
        gaps, cached = asked.burstiness, int(asked.cached)
    flow = [f"--max-concurrency {users}"] if users else [f"--request-rate {rate:g}"]
    url, equal = f"http://127.0.0.1:{_PORTS[engine]}", not any(spreads)
    if equal and engine in ("vllm", "trtllm") and gaps > 0.0:
        backend = "vllm" if engine == "vllm" else "openai"
        yield "vllm bench serve", [
            "vllm bench", "serve", f"--backend {backend}", f"--base-url {url}", f"--model {model}",
            "--dataset-name random", f"--random-input-len {isl - cached}", f"--random-output-len {osl}",
            *([f"--random-prefix-len {cached}"] if cached else ()), "--ignore-eos", *flow,
            *([f"--burstiness {gaps**-2:g}"] if rate and gaps != 1.0 else ()), f"--num-prompts {count}",
            *([f"--num-warmups {warm}"] if warm else ()), "--percentile-metrics ttft,tpot,itl,e2el",
            "--save-result", f"--result-filename {_FILE}",
        ]  # fmt: skip
    if equal and engine == "sglang" and gaps == 1.0 and not cached:
        yield "sglang bench_serving", [
            "python -m", "sglang.benchmark.serving", "--backend sglang", f"--base-url {url}", f"--model {model}",
            "--dataset-name random-ids", f"--random-input-len {isl}", f"--random-output-len {osl}",
            "--random-range-ratio 1", *flow, f"--num-prompts {count}", *([f"--warmup-requests {warm}"] if warm else ()),
            "--output-file result.jsonl",
        ]  # fmt: skip
    pattern = ["--arrival-pattern poisson"] if gaps == 1.0 else ["--arrival-pattern constant"]
    pattern = ["--arrival-pattern gamma", f"--arrival-smoothness {gaps**-2:g}"] if gaps not in (0.0, 1.0) else pattern
    yield "aiperf", [
        "aiperf", "profile", f"--model {model}", f"--url {url}", "--endpoint-type completions", "--streaming",
        f"--synthetic-input-tokens-mean {isl - cached}", f"--synthetic-input-tokens-stddev {spreads[0] * isl:.0f}",
        f"--output-tokens-mean {osl}", f"--output-tokens-stddev {spreads[1] * osl:.0f}",
        *(["--num-prefix-prompts 1", f"--prefix-prompt-length {cached}"] if cached else ()),
        "--extra-inputs ignore_eos:true", *([f"--concurrency {users}"] if users else [*flow, *pattern]),
        f"--request-count {count}", *([f"--warmup-request-count {warm}"] if warm else ()),
    ]  # fmt: skip
