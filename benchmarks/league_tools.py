"""Answers of other tools to the rows of serving tables, as they are; benchmarks/league.py scores them.

    python benchmarks/league.py inputs TABLE... --out inputs.csv        # in the project's environment
    python benchmarks/league_tools.py TOOL inputs.csv answers.csv.gz    # in an environment where the tool is

TOOL is aiconfigurator or aiconfigurator-hybrid (pip install aiconfigurator==0.12.0), genz (genz-llm==0.0.16),
llm-analysis (llm-analysis==0.2.2), or one of two whose formulas stand here: bentoml and llm-viewer. Each gets the same
inputs: mean lengths of the client's requests, formats of weights and cache, degrees, users. What a tool raises is its
reason for no answer. Rows of the file that another tool wrote are kept.
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
import math
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the module needs nothing but the standard library
from rooflinekit.evidence.rivals import NO_FORMAT, NO_GPU, NO_MODEL, NoAnswerError, aiconfigurator, asked, figures

NO_BATCH, NO_SPLIT, NO_ROOM = "the load names no batch", "no such split over GPUs", "too little memory, as it counts"
Times = tuple[float, float]
"""First token [ms], and each later one [ms], of the row's batch."""


def aiconfigurator_hybrid(row: Any) -> dict[str, float]:
    """Where its tables have no data, its empirical estimates in their place."""
    try:
        return aiconfigurator(row)
    except NoAnswerError:
        raise
    except Exception:  # whatever the tool raises
        return aiconfigurator(row, "HYBRID")


def _simple(row: Any, prefill: Callable[[float], float], decode: Callable[[float], float]) -> dict[str, float]:
    """For tools without queues: a prompt takes the time of one alone, or a static batch that of all [ms]."""
    if row.load == "saturated":
        raise NoAnswerError(NO_BATCH)
    return figures(row, prefill(row.users if row.load == "static" else 1.0), decode(row.users))


def _dense(row: Any, formats: tuple[str, ...]) -> None:
    if not row.llama:
        raise NoAnswerError(NO_MODEL)
    if row.weights not in formats:
        raise NoAnswerError(NO_FORMAT)


def _context(row: Any) -> float:
    return float(row.isl + row.osl / 2.0)


_GENZ = {"h100-sxm": "H100_GPU", "a100-sxm-80gb": "A100_80GB_GPU", "a100-sxm-40gb": "A100_40GB_GPU"}
_GENZ_BITS = {"fp16": "bf16", "bf16": "bf16", "fp8": "fp8", "fp8_block": "fp8", "int8": "int8", "int4_g32": "int4",
              "nvfp4": "fp4"}  # fmt: skip


@functools.cache
def _genz(stage: str, batch: int, tokens: int, split: tuple[Any, ...], shape: tuple[int, ...]) -> float:
    import GenZ  # noqa: PLC0415
    from GenZ.Models.default_models import ModelConfig  # noqa: PLC0415

    tp, pp, system, bits = split
    hidden, layers, heads, kv_heads, ffn, vocab, experts, top_k = shape
    model = ModelConfig(
        model="row", hidden_size=hidden, num_decoder_layers=layers, num_attention_heads=heads,
        num_key_value_heads=kv_heads, intermediate_size=ffn, vocab_size=vocab, num_ffi=2, hidden_act="silu",
        num_experts=max(experts, 1), expert_top_k=max(top_k, 1),
    )  # fmt: skip
    given: dict[str, Any] = {
        "model": model, "batch_size": batch, "input_tokens": tokens, "bits": bits, "tensor_parallel": tp,
        "pipeline_parallel": pp, "parallelism_heirarchy": f"TP{{{tp}}}_EP{{1}}_PP{{{pp}}}",
        "system_name": json.loads(system) if system.startswith("{") else system,
    }  # fmt: skip
    if stage == "decode":
        return float(GenZ.decode_moddeling(**given, Bb=1, output_tokens=0)["Latency"])
    return float(GenZ.prefill_moddeling(**given)["Latency"])


def genz(row: Any) -> dict[str, float]:
    """Its own system where it has the chip, else one with the numbers of the datasheet."""
    if not row.llama and row.model != "mixtral-8x7b":
        raise NoAnswerError(NO_MODEL)
    if row.weights not in _GENZ_BITS:
        raise NoAnswerError(NO_FORMAT)
    own = {"Flops": row.peak16 / 1e12, "Memory_size": row.memory / 1e9, "Memory_BW": row.bandwidth / 1e9,
           "ICN": row.link / 1e9, "real_values": True}  # fmt: skip
    system = _GENZ.get(row.gpu) or json.dumps(own)
    shape = (row.hidden, row.layers, row.heads, row.kv_heads, row.ffn, row.vocab, row.experts, row.top_k)
    rest = (row.tp, row.pp, system, _GENZ_BITS[row.weights]), tuple(map(int, shape))
    return _simple(row, lambda batch: _genz("prefill", round(batch), round(row.isl), *rest),
                   lambda batch: _genz("decode", round(batch), round(_context(row)), *rest))  # fmt: skip


_BITS = {"fp16": (16, 16), "bf16": (16, 16), "fp8": (8, 8), "fp8_block": (8, 8), "int8": (8, 16), "int4_g32": (4, 16),
         "nvfp4": (4, 4)}  # fmt: skip
"""Bits of weights and of activations."""
_ANALYSIS = {"h100-sxm": "h100-sxm-80gb", "a100-pcie-80gb": "a100-pcie-80gb", "a100-sxm-80gb": "a100-sxm-80gb",
             "a100-sxm-40gb": "a100-sxm-40gb"}  # fmt: skip


def llm_analysis(row: Any) -> dict[str, float]:
    """Its efficiencies as they come (1); its own chip where it has one, else the numbers of the datasheet."""
    from llm_analysis import analysis, config  # noqa: PLC0415

    logging.disable(logging.CRITICAL)
    if not row.llama and row.model != "mixtral-8x7b":
        raise NoAnswerError(NO_MODEL)
    if row.weights not in _BITS:
        raise NoAnswerError(NO_FORMAT)
    model = config.ModelConfig(
        name="row", num_layers=row.layers, n_head=row.heads, hidden_dim=row.hidden, vocab_size=row.vocab,
        num_key_value_heads=row.kv_heads, ffn_embed_dim=row.ffn, expansion_ratio=row.ffn / row.hidden,
        model_type="llama", moe_num_experts=max(row.experts, 1), moe_top_k=max(row.top_k, 1),
    )  # fmt: skip
    chip = config.GPUConfig("row", row.memory / 1e9, row.bandwidth / 1e9, row.link / 1e9, 8e-6, row.peak16 / 1e12)
    if row.gpu in _ANALYSIS:
        chip = config.get_gpu_config_by_name(_ANALYSIS[row.gpu])
    bits = config.DtypeConfig("row", *_BITS[row.weights], 16)
    split = config.ParallelismConfig(tp_size=row.tp, pp_size=row.pp)
    tool = analysis.LLMAnalysis(model, chip, bits, split)

    def time(batch: float, stage: str) -> float:
        cache = {"fp8": 1, "int8": 1}.get(row.kv, 2)
        found = tool.inference(round(batch), round(row.isl), max(round(row.osl), 1), kv_cache_dtype_bytes=cache)
        return 1e3 * float(found[f"{stage}_latency"])

    return _simple(row, lambda batch: time(batch, "prefill"), lambda batch: time(batch, "decode"))


_BENTO = {  # 16-bit and 8-bit rate [FLOP/s], bandwidth [B/s], memory [B]: src/llm_optimizer/predefined/gpus.py
    "h100-sxm": (989.5e12, 1979e12, 3350e9, 80e9), "h200-sxm": (1979e12, 3958e12, 4800e9, 141e9),
    "a100-sxm-80gb": (312e12, 0.0, 2039e9, 80e9), "a100-sxm-40gb": (312e12, 0.0, 1555e9, 40e9),
    "b200-sxm": (2250e12, 4500e12, 8000e9, 192e9),
}  # fmt: skip


def bentoml(row: Any) -> dict[str, float]:
    """The formula of bentoml's llm-optimizer, estimate_llm_performance in src/llm_optimizer/performance.py.

    Read in a fork, https://github.com/jlonge4/llm-optimizer (0395625); its package on PyPI has another owner.
    """
    _dense(row, ("fp16", "bf16", "fp8"))
    if row.gpu not in _BENTO:
        raise NoAnswerError(NO_GPU)
    narrow = row.weights == "fp8"
    peak, bandwidth, memory = _BENTO[row.gpu][narrow], *_BENTO[row.gpu][2:]
    if not peak:
        raise NoAnswerError(NO_FORMAT)
    size, D, L, H, K, F, V = 1 if narrow else 2, row.hidden, row.layers, row.heads, row.kv_heads, row.ffn, row.vocab
    head, gpus = D // H, row.gpus
    parameters = L * (2 * D * D + 2 * D * K * head + 3 * D * F) + 2 * V * D
    block = 2 * D * D + 2 * D * K * head + 2 * D * 4 * D  # a feed-forward layer of 4·D is assumed

    def step(users: float, new: float, keys: float, seen: float, share: float) -> float:
        """Seconds: `new` tokens that see `keys` keys each; bytes are those of `seen` tokens."""
        flop = users * L * (2 * new * block + (4 * H * head + 3 * H) * keys)
        moved = size * (L * block + users * (2 * L * K * head * seen + seen * D + H * seen * seen))
        bound = flop / moved < peak / bandwidth
        return moved / (gpus * bandwidth) if bound else flop / (gpus * peak * share)

    def times(users: float) -> Times:
        cache = users * 2 * L * K * head * (row.isl + row.osl)
        if size * (parameters + cache) > 0.9 * gpus * memory:
            return math.nan, math.nan
        now = row.isl + 1
        return 1e3 * step(users, row.isl, row.isl**2, row.isl, 0.45), 1e3 * step(users, 1, 1 + now, now, 0.30)

    if row.load == "saturated":
        rates = [1e3 * users / times(users)[1] for users in (2.0**power for power in range(11))]
        best = max((rate for rate in rates if rate > 0), default=math.nan)
        if math.isnan(best):
            raise NoAnswerError(NO_ROOM)
        return {"output_tok_s_total": best, "output_tok_s_per_gpu": best / gpus}
    ttft, tpot = times(row.users)
    if math.isnan(ttft):
        raise NoAnswerError(NO_ROOM)
    return figures(row, ttft, tpot)


_VIEWER = {  # bandwidth [B/s], 16-bit and 8-bit rate [FLOP/s]: hardwares/hardware_params.py
    "h100-sxm": (3072e9, 1979e12 / 2, 3958e12 / 2), "a100-sxm-80gb": (2039e9, 312e12, 624e12),
    "a100-sxm-40gb": (1555e9, 312e12, 624e12),
}  # fmt: skip


def llm_viewer(row: Any) -> dict[str, float]:
    """The formula of model_analyzer.py in https://github.com/hahnyuan/LLM-Viewer (01b269d), for one GPU."""
    _dense(row, tuple(_BITS))
    if row.gpu not in _VIEWER:
        raise NoAnswerError(NO_GPU)
    if row.gpus > 1:
        raise NoAnswerError(NO_SPLIT)
    weight, activation = (bits / 8 for bits in _BITS[row.weights])
    cached = {"fp8": 1, "int8": 1}.get(row.kv, 2)
    bandwidth, wide, narrow = _VIEWER[row.gpu]
    peak = narrow if max(weight, activation, cached) <= 1 else wide
    D, H, K = row.hidden, row.heads, row.kv_heads
    shapes = [(D, D, activation)] * 2 + [(D, D * K / H, cached)] * 2
    shapes += [(D, row.ffn, activation)] * 2 + [(row.ffn, D, activation)]

    def pieces(users: float, new: float, keys: float) -> list[tuple[float, float]]:
        """FLOP and bytes of each piece of a layer."""
        n, scores, head = users * new, users * H * new * keys, D / H
        out = [(2 * n * k * m, weight * k * m + activation * n * k + kept * n * m) for k, m, kept in shapes]
        prompt = new > 1  # a prompt reads two times the keys for its scores, and no queries
        cache = users * keys * K * head * cached
        query = activation * n * D
        out += [(2 * scores * head, activation * scores + (2 * cache if prompt else cache + query))]
        out += [(2 * scores * head, activation * scores + query + cache), (5 * scores, 2 * activation * scores)]
        return out + [(7 * n * D, 2 * query)] * 2 + [(n * D, 2 * query)] * 2 + [(2 * n * D, 3 * query)]

    def time(users: float, new: float, keys: float) -> float:
        layer = sum(max(flop / peak, moved / bandwidth) for flop, moved in pieces(users, new, keys))
        last = weight * D * row.vocab + activation * (D + row.vocab)
        return 1e3 * (row.layers * layer + max(users * D * row.vocab / peak, last / bandwidth))

    return _simple(row, lambda users: time(users, row.isl, row.isl), lambda users: time(users, 1, _context(row)))


def infersim(row: Any) -> dict[str, float]:
    """Of https://github.com/alibaba/InferSim: hardware/gpu.py has H20, H800 and GB200; decoding takes a batch."""
    raise NoAnswerError(NO_BATCH if row.gpu == "gb200" and row.load == "saturated" else NO_GPU)


TOOLS: dict[str, Callable[[Any], dict[str, float]]] = {
    "aiconfigurator": aiconfigurator,
    "aiconfigurator-hybrid": aiconfigurator_hybrid,
    "genz": genz, "llm-analysis": llm_analysis, "bentoml": bentoml, "llm-viewer": llm_viewer, "infersim": infersim,
}  # fmt: skip


def answered(tool: str, row: Any) -> tuple[float, str]:
    """The tool's figure for a row in the row's own unit, or why it has none."""
    found = asked(TOOLS[tool], row._replace(id="", metric=""))
    if isinstance(found, str):
        return math.nan, found
    value = found.get(row.metric, math.nan)
    return (value, "") if math.isfinite(value) and value > 0 else (math.nan, "no figure above 0")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool", choices=TOOLS)
    parser.add_argument("inputs", type=Path)
    parser.add_argument("answers", type=Path)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    rows = pd.read_csv(arguments.inputs, keep_default_na=False, na_values={"osl": [""], "users": [""]})
    rows = rows.fillna({"osl": 1.0, "users": 0.0})
    each = [answered(arguments.tool, row) for row in rows.itertuples(index=False)]
    found = pd.DataFrame(each, columns=["value", "reason"])
    found = found.assign(id=rows["id"], tool=arguments.tool)[["id", "tool", "value", "reason"]]
    if arguments.answers.exists():
        kept = pd.read_csv(arguments.answers, keep_default_na=False, na_values={"value": [""]})
        found = pd.concat([kept[kept["tool"] != arguments.tool], found])
    found.sort_values(["id", "tool"]).to_csv(arguments.answers, index=False, float_format="%.4g")


if __name__ == "__main__":
    main()
