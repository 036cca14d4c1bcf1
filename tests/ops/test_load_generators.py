"""Load generators against the fake engine: what they report is what `simulate` says of the times at which they sent.

Each is skipped where its program is not in the path. Client and server run at real-time priority where the system lets
them, so that other work on the machine waits; elsewhere at a tenth of the pace, so that lateness counts a tenth.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from test_fake_engine import serving

import rooflinekit as rk

MODEL, GPU, TP = "llama-3-70b", "h100-sxm", 4
RATE, REQUESTS = 6.0, 300  # far enough from saturation that a millisecond of lateness moves no percentile by 5 %
REAL_TIME = ["chrt", "--rr", "2"]


class Sent(NamedTuple):
    """A request as its client reports it [s, played]."""

    at: float
    ttft: float
    tpot: float
    isl: int
    osl: int


class Asked(NamedTuple):
    """What a client is told: requests of words, each a token of the fake tokenizer and four bytes."""

    port: int
    folder: Path
    scale: float
    rows: list[tuple[float, str, int]]  # seconds of the wall, prompt, output tokens

    def lines(self, name: str, each: Callable[[float, str, int], dict[str, Any]]) -> Path:
        path = self.folder / name
        path.write_text("".join(json.dumps(each(*row)) + "\n" for row in self.rows))
        return path

    @property
    def tokenizer(self) -> Path:
        """A tokenizer of words, in a cache of the hub as "own/words"."""
        folder = self.folder / "hf/hub/models--own--words"
        own = folder / "snapshots" / ("0" * 40)
        if not own.exists():
            own.mkdir(parents=True)
            (folder / "refs").mkdir()
            (folder / "refs" / "main").write_text("0" * 40)
            words = {"<unk>": 0, "the": 1} | {f"{number:03d}": 2 + number for number in range(1000)}
            model = {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"}
            token = {"id": 0, "content": "<unk>", "special": True} | dict.fromkeys(
                ("single_word", "lstrip", "rstrip", "normalized"), False
            )
            made = {"version": "1.0", "added_tokens": [token], "pre_tokenizer": {"type": "WhitespaceSplit"},
                    "model": model}  # fmt: skip
            (own / "tokenizer.json").write_text(json.dumps(made))
            (own / "tokenizer_config.json").write_text(
                json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"})
            )
            (own / "config.json").write_text('{"model_type": "llama"}')
        return own


def aiperf(asked: Asked) -> tuple[list[str], Callable[[], Iterator[Sent]]]:
    trace = asked.lines("aiperf.jsonl", lambda s, text, osl: {
        "timestamp": round(1e3 * s, 3), "text_input": text, "output_length": osl,
    })  # fmt: skip
    out = asked.folder / "aiperf"
    words = f"""aiperf profile -m {MODEL} --url http://127.0.0.1:{asked.port} --endpoint-type completions --streaming
        --input-file {trace} --custom-dataset-type mooncake_trace --fixed-schedule --use-server-token-count
        --extra-inputs ignore_eos:true --use-legacy-max-tokens --tokenizer own/words --artifact-dir {out} --ui none
        --export-level records""".split()

    def sent() -> Iterator[Sent]:
        for line in (out / "profile_export.jsonl").read_text().splitlines():
            row = json.loads(line)
            value = {name: each["value"] for name, each in row["metrics"].items()}
            yield Sent(row["metadata"]["request_start_ns"] / 1e9, value["time_to_first_token"] / 1e3,
                       value["inter_token_latency"] / 1e3, int(value["input_sequence_length"]),
                       int(value["output_sequence_length"]))  # fmt: skip

    return words, sent


def guidellm(asked: Asked) -> tuple[list[str], Callable[[], Iterator[Sent]]]:
    data = asked.lines("guidellm.jsonl", lambda _, text, osl: {"prompt": text, "output_tokens_count": osl})
    out = asked.folder / "guidellm.json"
    words = f"""guidellm run --profile kind=poisson,rate={RATE * asked.scale} --constraint
        kind=max_requests,count={REQUESTS} --tokenizer kind=hf_auto,model={asked.tokenizer} --data
        kind=json_file,path={data} --output kind=json,path={out} --disable-console --backend
        kind=openai_http,target=http://127.0.0.1:{asked.port},model={MODEL},request_format=/v1/completions""".split()

    def sent() -> Iterator[Sent]:
        (run,) = json.loads(out.read_text())["benchmarks"]
        for row in run["requests"]["successful"]:
            yield Sent(row["request_start_time"], row["time_to_first_token_ms"] / 1e3,
                       row["inter_token_latency_ms"] / 1e3, row["prompt_tokens"], row["output_tokens"])  # fmt: skip

    return words, sent


def vllm(asked: Asked) -> tuple[list[str], Callable[[], Iterator[Sent]]]:
    trace = asked.lines("vllm.jsonl", lambda s, text, osl: {
        "timestamp": s, "input_length": (tokens := len(text.split())), "output_length": osl,
        "hash_ids": [*range(-(-tokens // 16))],
    })  # fmt: skip
    out = asked.folder / "vllm.json"
    words = f"""vllm bench serve --backend openai --base-url http://127.0.0.1:{asked.port} --endpoint /v1/completions
        --model {MODEL} --tokenizer {asked.tokenizer} --dataset-name timed_trace --self-timed --dataset-path {trace}
        --num-prompts {REQUESTS} --save-result --save-detailed --result-dir {out.parent} --result-filename
        {out.name} --disable-tqdm""".split()

    def sent() -> Iterator[Sent]:
        run = json.loads(out.read_text())
        rows = zip(*(run[name] for name in ("start_times", "ttfts", "itls", "input_lens", "output_lens")), strict=True)
        for at, ttft, gaps, isl, osl in rows:
            yield Sent(at, ttft, sum(gaps) / (osl - 1), isl, osl)

    return words, sent


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("client", [aiperf, guidellm, vllm])
def test_its_percentiles_are_those_of_simulate(client: Any, tmp_path: Path) -> None:
    if shutil.which(client.__name__) is None:
        pytest.skip(f"{client.__name__} is not installed")
    first = (
        REAL_TIME if shutil.which("chrt") and not subprocess.run([*REAL_TIME, "true"], check=False).returncode else []
    )
    scale, rows, at, draw = 1.0 if first else 0.1, [], 0.0, random.Random(5)
    for _ in range(REQUESTS):
        at += draw.expovariate(RATE * scale)
        text = " ".join(f"{draw.randrange(1000):03d}" for _ in range(draw.randint(500, 1500)))
        rows.append((at, text, draw.randint(20, 60)))
    with serving(f"{MODEL} --gpu {GPU} --tp {TP}", "--time", str(scale), first=first) as port:
        asked = Asked(port, tmp_path, scale, rows)
        assert asked.tokenizer.exists()
        words, sent = client(asked)
        offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
        done = subprocess.run([*first, *words], cwd=tmp_path, env=os.environ | offline, check=False, timeout=900,
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
        assert done.returncode == 0, done.stdout[-2000:]
    seen = sorted(Sent(each.at * scale, each.ttft * scale, each.tpot * scale, each.isl, each.osl) for each in sent())
    assert len(seen) == REQUESTS
    trace = tmp_path / "sent.csv"
    trace.write_text("time_s,isl,osl\n" + "".join(f"{a.at - seen[0].at!r},{a.isl},{a.osl}\n" for a in seen))
    whole = rk.simulate(MODEL, GPU, tp=TP, trace=str(trace), warmup=0)
    for name, stated in (("ttft", whole.ttft_ms), ("tpot", whole.tpot_ms)):
        felt_ms = sorted(1e3 * getattr(each, name) for each in seen)
        for share, own in ((50, stated.p50), (95, stated.p95)):
            said = felt_ms[-(-REQUESTS * share // 100) - 1]
            print(f"{client.__name__} {name} p{share}: {said:.2f} ms, {100 * (said / own - 1):+.1f} %")  # noqa: T201 - with -s
            assert said == pytest.approx(own, rel=0.05)
