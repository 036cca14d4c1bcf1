"""A smoke test of an installation: each command answers, and so does the Python API.

`make smoke` runs it in an environment that holds the lowest versions that pyproject.toml promises; `python
tests/smoke.py` in any other. It needs nothing but the package and its extras. `--only mcp serve` runs some cases,
`--without mcp validate` expects what is said of a missing extra.
"""

from __future__ import annotations

import argparse
import json
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.request import Request, urlopen

ROOFLINEKIT = (sys.executable, "-m", "rooflinekit")
LIMIT = 120.0  # seconds of a command on a busy machine

COMMANDS: dict[str, tuple[str, ...]] = {
    "estimate": ("estimate llama3-8b --batch 32 --format json", "estimate llama3-8b --rate 4 --format csv"),
    "explain": ("explain llama3-8b tpot",),
    "simulate": ("simulate llama3-8b --rate 4 --requests 50 --timeline timeline.csv --plots played",),
    "trace": ("trace trace.csv",),
    "shapes": ("shapes gpt2 --tokens 4",),
    "levers": ("levers llama3-8b --format md",),
    "cost": ("cost llama3-8b",),
    "sweep": (
        "sweep llama3-8b --concurrency 4,8 --format md",
        "sweep llama3-8b --batch 1,8 --resume --out grid.csv",
        "sweep rows.csv --workers 2 --out answers.parquet",
        "sweep rows.parquet --out answers.xlsx --plots swept",
        "sweep rows.xlsx --pareto tok_s_user:tok_s_gpu --format csv",
    ),
    "plan": ("plan llama3-8b --rate 4 --slo tpot<40ms --format json --out plan.json",),
    "models": ("models --format csv",),
    "gpus": ("gpus",),
    "show": ("show llama3-8b", "show h100 --format json"),
    "validate": ("validate --check --device cpu",),
    "calibrate": ("calibrate bench.json bench2.json bench3.json --gpu h100-sxm --tp 1 --out mine.yaml --force",),
    "compare": ("compare bench.json --gpu h100-sxm --tp 1",),
    "verify": ("verify bench.json --gpu h100-sxm --tp 1",),
    "guard": ("guard now.json --baseline main.json",),
    "watch": ("watch day.prom --gpu h100-sxm --tp 1",),
    "launch": ("launch llama3-8b --batch 32",),
    "workbook": ("workbook --model llama3-8b --gpu h100-sxm --tp 1 --out plan.xlsx",),
    "report": ("report llama3-8b --batch 32 --out page.html --plots pictures",),
    "accuracy energy": ("accuracy energy energy.csv",),
    "accuracy kernels": ("accuracy kernels gemm.csv",),
    "accuracy league": ("accuracy league serving.csv",),
    "accuracy memory": ("accuracy memory memory.csv",),
    "accuracy serving": ("accuracy serving serving.csv",),
}
"""Lines by command; what a line writes, a later one may read."""


def write_files(folder: Path) -> None:
    """Write what the commands read."""
    import pandas as pd

    scenarios = pd.DataFrame({"model": "llama3-8b", "batch": [1, 32]})
    scenarios.to_csv(folder / "rows.csv", index=False)
    scenarios.to_parquet(folder / "rows.parquet")
    scenarios.to_excel(folder / "rows.xlsx", index=False)
    bench = {
        "backend": "vllm", "model_id": "meta-llama/Meta-Llama-3-8B", "num_prompts": 100, "request_rate": "inf",
        "completed": 100, "total_input_tokens": 102400, "total_output_tokens": 12800, "burstiness": 1.0,
    }  # fmt: skip
    for name, users, tpot in (("bench", 32, 9.0), ("bench2", 8, 7.5), ("bench3", 16, 8.0)):
        seconds = 100 / users * (0.1 + 0.128 * tpot)
        times = {"mean_ttft_ms": 100.0, "median_ttft_ms": 100.0, "mean_tpot_ms": tpot, "median_tpot_ms": tpot}
        load = {"max_concurrency": users, "duration": seconds, "request_throughput": 100 / seconds}
        rate = {"output_throughput": 12800 / seconds, "total_token_throughput": 115200 / seconds}
        (folder / f"{name}.json").write_text(json.dumps(bench | times | load | rate))
    timed = [{"name": "gemm", "fullname": "bench.py::gemm", "stats": {"median": 2e-5, "mean": 2e-5, "stddev": 1e-7,
              "iqr": 1e-7, "rounds": 50}}]  # fmt: skip
    for name in ("main", "now"):
        (folder / f"{name}.json").write_text(json.dumps({"machine_info": {}, "version": "5.0.0", "benchmarks": timed}))
    rows = (f"{second}.0,{900 + second},200" for second in range(60))
    (folder / "trace.csv").write_text("\n".join(["arrived_at,num_prefill_tokens,num_decode_tokens", *rows]))
    (folder / "gemm.csv").write_text("gpu,engine,dtype,m,n,k,latency_us\nh100-sxm,vllm,bfloat16,16,4096,4096,16\n")
    (folder / "memory.csv").write_text(
        "run_id,engine,engine_version,model,gpu,gpu_total_gib,tp,pp,weight_dtype,kv_dtype,max_model_len,"
        "max_num_batched_tokens,max_num_seqs,gpu_memory_utilization,quantity,value,notes\n"
        "a,vllm,0.19.0,Qwen/Qwen3-8B,H100-80GB,79.19,1,1,bf16,bf16,8192,8192,1024,0.95,weights_gib_per_gpu,15.27,\n"
    )
    (folder / "serving.csv").write_text(
        "id,model,gpu,n_gpus,tp,pp,ep,dp,weight_dtype,kv_dtype,engine,engine_version,load,isl,osl,concurrency,metric,"
        "value,source_key\n"
        "a,gpt-j-6b,h200-sxm,1,1,1,1,1,fp8,fp8,trtllm,0.9.0,static,128,128,1024,output_tok_s_per_gpu,27304.0,trt09s\n"
    )
    (folder / "energy.csv").write_text(
        "source_key,model,gpu,engine,load,tp,isl_mean,osl_mean,mean_running,power_w_per_gpu,weight_dtype\n"
        "s,llama-2-7b,h100-sxm,vllm,static,1,1024,1024,16,495.0,fp16\n"
    )
    (folder / "day.prom").write_text("".join(_scrape(60 * minute) for minute in range(3)))


def _scrape(seconds: int) -> str:
    """What a server of vLLM says after so many seconds, as `watch --record` keeps it."""
    from rooflinekit.evidence.exposition import scrape_text

    label, requests = '{model_name="meta-llama/Meta-Llama-3-8B"}', 2 * seconds
    totals = {
        "generation_tokens_total": 200 * requests, "prompt_tokens_total": 1000 * requests,
        "request_prompt_tokens_sum": 1000 * requests, "request_prompt_tokens_count": requests,
        "time_to_first_token_seconds_sum": 0.1 * requests, "time_to_first_token_seconds_count": requests,
        "inter_token_latency_seconds_sum": 1.6 * requests, "inter_token_latency_seconds_count": 199 * requests,
        "e2e_request_latency_seconds_sum": 1.7 * requests, "e2e_request_latency_seconds_count": requests,
        "num_requests_running": 4, "num_requests_waiting": 0, "kv_cache_usage_perc": 0.2,
    }  # fmt: skip
    return scrape_text("\n".join(f"vllm:{name}{label} {value}" for name, value in totals.items()), float(seconds))


def run_lines(lines: tuple[str, ...], folder: Path) -> None:
    """Run lines one after the other; the first that is not answered ends the case."""
    for line in lines:
        done = subprocess.run(
            [*ROOFLINEKIT, *line.split()], cwd=folder, capture_output=True, text=True, timeout=LIMIT, check=False
        )
        missed = 4 if line.startswith("verify") else 0  # the invented run lies outside its interval
        if done.returncode not in (0, missed) or "Traceback" in done.stderr:
            raise AssertionError(f"rooflinekit {line}: exit code {done.returncode}\n{done.stderr[-3000:]}")


def call_python(folder: Path) -> None:
    """Call each function of the Python API that a user is shown first."""
    import pandas as pd

    import rooflinekit as rk

    one = rk.estimate("llama3-8b", "h100-sxm", batch=32)
    frame = rk.estimate_frame(pd.DataFrame({"model": "llama3-8b", "gpu": "h100-sxm", "batch": [1, 32, 0]}))
    assert abs(frame["tpot_ms"][1] / one.tpot_ms - 1) < 1e-9, frame["tpot_ms"]
    assert frame["error"].tolist()[:2] == ["", ""]
    assert "batch" in frame["error"][2]
    assert one.to_dict()["decode"]["kernels"]
    assert len(one.to_frame())
    table = rk.sweep(model="llama3-8b", gpu=["h100-sxm", "l40s"], batch=[1, 8], tp=[1, 2])
    assert len(table) == 8
    assert not table["error"].str.len().any(), table["error"]
    loads = rk.estimate_frame(
        pd.DataFrame({"model": "llama3-8b", "rate": [1.0, None, 9999.0], "batch": [None, 4, None]})
    )
    assert loads["tpot_ms"].notna()[:2].all(), loads
    assert rk.kv_cache_bytes("llama3-8b", 1024) == 131072 * 1024
    assert rk.max_context("llama3-8b") > 1000
    assert rk.parameters("llama3-8b").total > 8e9


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def call_server(folder: Path) -> None:
    """Ask a server as soon as it says that it serves: it does."""
    server = subprocess.Popen(
        [*ROOFLINEKIT, "serve", "--port", str(free_port())],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stderr is not None
        ready, _, _ = select.select([server.stderr], [], [], LIMIT)
        line = server.stderr.readline() if ready else ""
        if "serving on http://" not in line:
            server.kill()
            raise AssertionError(f"no server: {line}{server.stderr.read()[-3000:]}")
        address = line.split("serving on ")[1].split(";")[0]
        body = json.dumps({"model": "llama3-8b", "batch": 8}).encode()
        for tool in ("estimate", "levers"):
            asked = Request(f"{address}/v1/{tool}", body, {"content-type": "application/json"})
            with urlopen(asked, timeout=LIMIT) as answer:
                assert json.load(answer)["answer"], tool
        with urlopen(f"{address}/openapi.json", timeout=LIMIT) as answer:
            assert json.load(answer)["paths"]
    finally:
        server.terminate()
        with suppress(subprocess.TimeoutExpired):
            server.wait(20)
        server.kill()


def call_assistant(folder: Path) -> None:
    """Greet `mcp`, and ask it for its tools and an estimate."""
    about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "smoke", "version": "1"}}
    asked = {"name": "estimate", "arguments": {"model": "llama3-8b", "batch": 8}}
    said = [
        {"id": 1, "method": "initialize", "params": about}, {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/list", "params": {}}, {"id": 3, "method": "tools/call", "params": asked},
    ]  # fmt: skip
    with subprocess.Popen(
        [*ROOFLINEKIT, "mcp"], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as assistant:
        assert assistant.stdin is not None
        assert assistant.stdout is not None
        try:
            answers = []
            for message in said:
                assistant.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
                assistant.stdin.flush()
                if "id" in message:
                    ready, _, _ = select.select([assistant.stdout], [], [], LIMIT)
                    answers.append(json.loads(assistant.stdout.readline() if ready else "null"))
            assert answers[1]["result"]["tools"], answers
            assert not answers[2]["result"].get("isError"), answers[2]
        finally:
            assistant.kill()


CALLS: dict[str, Callable[[Path], None]] = {
    "python": call_python,
    "serve": call_server,
    "mcp": call_assistant,
}


def expect_missing(name: str, folder: Path) -> None:
    """A command whose extra is not installed says how to install it."""
    done = subprocess.run([*ROOFLINEKIT, name], cwd=folder, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 2, done.stderr
    assert "pip install" in done.stderr, done.stderr


def main() -> int:
    """Run the cases; the exit code says whether all passed."""
    from rooflinekit.cli.command import COMMANDS as KNOWN

    unknown = set(KNOWN) ^ (COMMANDS.keys() | CALLS.keys() - {"python"})
    if unknown:
        print(f"each command has a case in tests/smoke.py, and each case a command; these have not: {sorted(unknown)}")
        return 1
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[*COMMANDS, *CALLS], help="cases to run")
    parser.add_argument("--without", nargs="*", default=[], help="commands whose extra is not installed")
    asked, failed = parser.parse_args(), 0
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_files(folder)
        for case in asked.only:
            start = time.monotonic()
            try:
                if case in asked.without:
                    expect_missing(case, folder)
                elif case in CALLS:
                    CALLS[case](folder)
                else:
                    run_lines(COMMANDS[case], folder)
            except Exception as error:
                failed += 1
                print(f"FAILED {case}: {type(error).__name__}: {error}", flush=True)
            else:
                print(f"{case}: {time.monotonic() - start:.1f} s", flush=True)
    print(f"{len(asked.only) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
