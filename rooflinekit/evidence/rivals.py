"""Other predictors of whole requests, asked by the programs that they install: `python rivals.py TOOL < questions`.

The file imports nothing but the standard library and, for AIConfigurator, the tool itself. So the Python of the
environment where a tool is can run it. `rooflinekit.evidence.league` and benchmarks/league_tools.py ask.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple


class NoAnswerError(Exception):
    """A question that a tool has no answer to, and why."""


NO_GPU, NO_MODEL, NO_FORMAT = "no such accelerator", "no such model", "no such format of weights"
NO_ENGINE = "no such engine"
_SECONDS = 600.0  # for one answer of a program: an assumption


class RivalQuestion(NamedTuple):
    """A load on a deployment, as every tool is told it.

    load: static, concurrency, saturated, poisson; isl, osl: mean tokens; users: of the batch or in flight; rate: of an
    open loop [1/s]; requests: in all, 0 where nobody says; weights, kv: formats; llama: whether the layers are those of
    Llama; drafts: tokens that are drafted, and `accepted` of them in the mean.
    """

    model: str
    gpu: str
    engine: str
    load: str
    isl: float
    osl: float
    users: float
    rate: float = 0.0
    requests: int = 0
    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1
    gpus: int = 1
    weights: str = "bf16"
    kv: str = "bf16"
    drafts: int = 0
    accepted: float = 0.0
    experts: int = 0
    top_k: int = 0
    hidden: int = 0
    layers: int = 0
    vocab: int = 0
    ffn: int = 0
    heads: int = 0
    kv_heads: int = 0
    llama: int = 0


def figures(row: RivalQuestion, ttft: float, tpot: float) -> dict[str, float]:
    """Every metric of a batch of `users` requests that start together, from both times [ms].

    >>> row = RivalQuestion("m", "g", "vllm", "static", 100.0, 11.0, 2.0)
    >>> figures(row, 50.0, 10.0)["output_tok_s_total"]  # 2 requests of 11 tokens in 150 ms
    146.66666666666666
    """
    whole = ttft + (row.osl - 1.0) * tpot
    return _every(row, (ttft, tpot, whole), 1e3 * row.users * row.osl / whole, 1e3 * row.users * row.isl / ttft)


def _every(row: RivalQuestion, times: tuple[float, float, float], total: float, prefill: float) -> dict[str, float]:
    """Every metric of a load, from its times [ms] and its rates of output and of prompt tokens [1/s]."""
    ttft, tpot, whole = times
    rates = {"output_tok_s_total": total, "output_tok_s_per_gpu": total / row.gpus}
    rates |= {"output_tok_s_per_user": 1e3 / tpot, "prefill_tok_s": prefill}
    return {"ttft_ms": ttft, "tpot_ms": tpot, "e2e_ms": whole, **rates}


_ALIKE = ("h100-sxm", "h200-sxm", "b200-sxm", "b300-sxm", "gb200", "l40s")
_SYSTEMS = {
    **{name: name.replace("-", "_") for name in _ALIKE},
    "a100-sxm-80gb": "a100_sxm",
    "a100-pcie-80gb": "a100_pcie",
    "rtx-pro-6000-blackwell": "rtx_pro_6000_server",
}
_PATHS = {
    "llama-3.1-405b": "meta-llama/Meta-Llama-3.1-405B",
    "mixtral-8x7b": "mistralai/Mixtral-8x7B-v0.1",
    "deepseek-r1": "deepseek-ai/DeepSeek-R1",
    "gpt-oss-120b": "openai/gpt-oss-120b",
    "gpt-oss-20b": "openai/gpt-oss-20b",
    "qwen3-30b-a3b": "Qwen/Qwen3-30B-A3B",
}
_OWN_FORMAT = {"deepseek-r1": "fp8_block", "gpt-oss-120b": "mxfp4", "gpt-oss-20b": "mxfp4"}  # of those checkpoints
_WIDE = {"fp16": "bfloat16", "bf16": "bfloat16"}
_QUANT = {"fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4", "int8": "int8_wo", "int4_g32": "int4_wo"} | _WIDE
_CACHE = {"fp8": "fp8", "int8": "int8"} | _WIDE
_SCHEDULE = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 448, 512, 768, 1024, 1536, 2048)
_ENGINES = ("vllm", "trtllm", "sglang")


@functools.cache
def _llama(*shape: int) -> str:
    """A folder with the config.json of a dense model with Llama's layers."""
    hidden, layers, heads, kv_heads, ffn, vocab = shape
    folder = Path(tempfile.mkdtemp())
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "intermediate_size": ffn, "vocab_size": vocab,
        "max_position_embeddings": 131072, "head_dim": hidden // heads, "torch_dtype": "bfloat16",
        "tie_word_embeddings": False, "hidden_act": "silu", "rms_norm_eps": 1e-5,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(folder)


def _placed(row: RivalQuestion) -> tuple[str, str]:
    """The model and the accelerator of a question by the names that NVIDIA's tools know."""
    if row.engine not in _ENGINES:
        raise NoAnswerError(NO_ENGINE)
    if row.gpu not in _SYSTEMS:
        raise NoAnswerError(NO_GPU)
    if row.model not in _PATHS and not row.llama:
        raise NoAnswerError(NO_MODEL)
    shape = (row.hidden, row.layers, row.heads, row.kv_heads, row.ffn, row.vocab)
    return _PATHS.get(row.model) or _llama(*map(int, shape)), _SYSTEMS[row.gpu]


@functools.cache
def _estimate() -> Callable[..., Any]:
    """AIConfigurator's public call, which no longer reads all its YAML files each time."""
    database = import_module("aiconfigurator_core.sdk.perf_database")
    for name in ("get_latest_database_version", "get_supported_databases"):
        setattr(database, name, functools.cache(getattr(database, name)))
    call: Callable[..., Any] = import_module("aiconfigurator.cli.api").cli_estimate
    logging.disable(logging.CRITICAL)
    return call


def aiconfigurator(row: RivalQuestion, mode: str = "SILICON") -> dict[str, float]:
    """Continuous batching (`agg`) of all users, a static batch, or the best batch of a queue; measured tables alone."""
    path, system = _placed(row)
    if row.load == "poisson":
        raise NoAnswerError("it has no open loop")
    given: dict[str, Any] = {"model_path": path, "system_name": system, "backend_name": row.engine}
    given |= {"database_mode": mode, "isl": round(row.isl), "osl": max(round(row.osl), 2)}
    given |= {"tp_size": row.tp, "pp_size": row.pp, "attention_dp_size": row.dp, "kvcache_quant_mode": _CACHE[row.kv]}
    if row.weights in _QUANT:  # MXFP4 is the checkpoint's own, which it knows by itself
        given |= {"gemm_quant_mode": _QUANT[row.weights], "moe_quant_mode": _QUANT[row.weights]}
    elif row.engine == "trtllm" and row.gpu in ("b200-sxm", "b300-sxm", "gb200"):
        given["moe_quant_mode"] = "w4a8_mxfp4_mxfp8"  # the kernels of TensorRT-LLM there; it would take 16-bit ones
    if row.experts:
        given |= {"moe_ep_size": row.ep, "moe_tp_size": row.tp * row.dp // row.ep}
    if row.drafts:
        given |= {"nextn": row.drafts, "nextn_accepted": row.accepted}
    if row.load == "static":
        found = _estimate()(**given, mode="static", batch_size=round(row.users))
        return figures(row, float(found.ttft), float(found.tpot))
    if row.load == "concurrency":
        found = _estimate()(**given, batch_size=max(round(row.users / row.dp), 1))
        total = float(found.tokens_per_second_per_gpu) * row.gpus
        times = float(found.ttft), float(found.tpot), float(found.request_latency)
        return _every(row, times, total, total * row.isl / row.osl)
    best = _best_of_queue(given)
    return {"output_tok_s_total": best * row.gpus, "output_tok_s_per_gpu": best}


def _best_of_queue(given: dict[str, Any]) -> float:
    """Most tokens per second and GPU over batches that its memory holds, and over prompts that share a step."""
    best, isl = 0.0, given["isl"]
    for batch in _SCHEDULE:
        for prompts in {1, max(min(8192 // isl, batch - 1), 1)}:
            try:
                found = _estimate()(**given, batch_size=batch, ctx_tokens=isl * prompts)
            except RuntimeError as error:
                if "OOM" in str(error) and best:
                    return best
                raise
            if found.kv_cache_warning:
                return best or float(found.tokens_per_second_per_gpu)
            best = max(best, float(found.tokens_per_second_per_gpu))
    return best


def aisimulate(row: RivalQuestion) -> dict[str, float]:
    """`aisimulate predict` on the built-in engine stack, which plays a closed or an open loop.

    Its configuration and its report are those of its documentation (docs/cli/design.md and
    docs/cli/understand-your-prediction.md of github.com/ai-dynamo/aisimulate). A static batch and a queue are loops in
    which all requests come at once.
    """
    path, system = _placed(row)
    if row.weights not in ("fp16", "bf16") and _OWN_FORMAT.get(row.model) != row.weights:
        raise NoAnswerError(NO_FORMAT)
    burst = row.load in ("static", "saturated")
    users = max(round(row.users or row.requests), 1)
    load: dict[str, object] = {"type": "concurrency", "concurrency": users}
    if row.load == "poisson":
        load = {"type": "poisson", "requests_per_second": row.rate}
    split = {"replicas": 1, "tensor": row.tp, "pipeline": row.pp, "attention_data": row.dp}
    if row.experts:
        split |= {"moe_expert": row.ep, "moe_tensor": row.tp * row.dp // row.ep}
    source = {"type": "synthetic", "input_tokens": round(row.isl), "output_tokens": max(round(row.osl), 1)}
    stop = {"requests": round(row.requests) or (users if burst else 10 * users)}
    workers = {"workers": {"aggregated": {"parallelism": split}}}
    engine = {"mode": "aggregated", "model": path, "hardware": system, "backend": row.engine, **workers}
    found = _reported({"traffic": {"source": source, "load": load, "stop": stop}, "engine": engine})
    ttft, tpot = (float(found[f"mean_{name}_ms"]) for name in ("ttft", "tpot"))
    total = float(found["output_throughput_tok_s"])
    return _every(row, (ttft, tpot, ttft + (row.osl - 1.0) * tpot), total, total * row.isl / row.osl)


def _reported(config: dict[str, Any]) -> dict[str, Any]:
    """The report of `aisimulate predict`; JSON is YAML, which it reads."""
    with tempfile.TemporaryDirectory() as folder:
        given, out = Path(folder, "prediction.yaml"), Path(folder, "out")
        given.write_text(json.dumps(config), encoding="utf-8")
        words = [str(program("aisimulate")), "predict", "--config", str(given), "--output-dir", str(out)]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=_SECONDS)
        if done.returncode:
            raise NoAnswerError((done.stderr.strip().splitlines() or ["it failed without a word"])[-1][:120])
        report: dict[str, Any] = json.loads((out / "prediction.json").read_text(encoding="utf-8"))
        return report


Tool = Callable[[RivalQuestion], dict[str, float]]
TOOLS: dict[str, Tool] = {"aiconfigurator": aiconfigurator, "aisimulate": aisimulate}
TITLES = {"aiconfigurator": "AIConfigurator", "aisimulate": "AISimulate"}


def program(tool: str) -> str | None:
    """The command of a tool: beside this Python, else on the path; None where it is not installed."""
    return shutil.which(tool, path=os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", ""))))


def interpreter(tool: str) -> str | None:
    """The Python of the environment that a tool is installed in; None where it is not installed."""
    if find_spec(tool) is not None:
        return sys.executable
    command = program(tool)
    if command is None:
        return None
    beside = Path(command).resolve().parent / "python"
    return str(beside) if beside.exists() else sys.executable


@functools.cache
def asked(tool: Tool, row: RivalQuestion) -> dict[str, float] | str:
    """Answer of a tool, or the reason why there is none."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return tool(row)
    except NoAnswerError as error:
        return str(error)
    except Exception as error:  # whatever the tool raises is its answer
        words = re.split(r"[{\[('\"]|(?<!\w)\d", " ".join(str(error).split()))[0].strip(" :,")
        return f"{type(error).__name__}: {words[:60]}"


def main() -> None:
    """Answer the questions of a JSON list on standard input; the answers go out as a JSON list."""
    tool, questions = sys.argv[1], json.load(sys.stdin)
    answers = [asked(TOOLS[tool], RivalQuestion(**each)) for each in questions]
    sys.stdout.write(json.dumps(answers))


if __name__ == "__main__":
    main()
