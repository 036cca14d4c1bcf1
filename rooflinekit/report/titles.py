"""Columns of a sweep's table in words, with their units; names that nobody here gave stay as they are."""

from __future__ import annotations

import re
from collections.abc import Collection

_TIMES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "gap between tokens", "e2e": "end-to-end time", "queue": "queueing"}
_PARTS = {"mean": "mean", "p50": "median", "p90": "P90", "p99": "P99", "max": "largest", "low": "low end",
          "high": "high end", "bound": "datasheet bound"}  # fmt: skip
_TIME = re.compile(rf"({'|'.join(_TIMES)})(?:_({'|'.join(_PARTS)}))?_ms")
_TITLES = {
    "gpu": "GPU", "gpus": "GPUs", "tp": "tensor parallel", "pp": "pipeline parallel", "ep": "expert parallel",
    "dp": "attention data parallel", "cp": "context parallel", "weights": "weight format", "kv": "cache format",
    "activations": "activation format", "engine": "engine", "model": "model", "level": "level",
    "evidence": "evidence",    "calibration": "calibration", "calibration_hash": "hash of the calibration",
    "batch": "batch [sequences]", "concurrency": "users", "rate": "arrivals [requests/s]",
    "isl": "prompt [tokens]", "osl": "output length [tokens]", "cached": "cached prompt [tokens]",
    "context": "context [tokens]", "ttft": "objective: TTFT [ms]", "tpot": "objective: TPOT [ms]",
    "output_tok_s": "output [tokens/s]", "output_tok_s_per_gpu": "output of one GPU [tokens/s]",
    "output_tok_s_per_user": "output for one user [tokens/s]",
    "power_w_per_gpu": "power of a GPU [W]", "energy_per_output_token_j": "energy of an output token [J]",
    "usd_per_hour": "price [USD/h]", "usd_per_million_output_tokens": "cost of output [USD/million tokens]",
    "price_source": "source of the price", "capacity_bytes": "memory of a GPU [B]",
    "weight_bytes": "weights in memory [B]", "kv_bytes": "cache of the batch [B]",
    "activation_bytes": "activations in memory [B]", "overhead_bytes": "engine's overhead in memory [B]",
    "total_bytes": "memory in use [B]",
    "kv_pool_bytes": "pool for the cache [B]", "kv_pool_tokens": "pool for the cache [tokens]",
    "kv_blocks": "pool for the cache [blocks]", "needed_bytes": "memory needed [B]",
    "available_bytes": "memory available [B]", "max_batch": "largest batch [sequences]",
    "max_context": "longest context [tokens]", "max_concurrency": "longest sequences in the pool",
    "running": "sequences running", "slots": "room for sequences", "request_rate": "requests [1/s]",
    "knee_rate": "knee [requests/s]", "prompt_share": "share of the time on prompts", "duration_s": "duration [s]",
    "goodput": "goodput [requests/s]", "goodput_rate": "goodput [requests/s]", "fits": "fits in memory",
    "stable": "can be sustained",
}  # fmt: skip


def titles_of(names: Collection[str]) -> dict[str, str]:
    """Words for the known columns of a table.

    The goodput of simulated rows, which have `goodput_rate` besides, is a share.

    >>> titles_of(["tpot_p99_ms", "team", "goodput"])
    {'tpot_p99_ms': 'TPOT, P99 [ms]', 'goodput': 'goodput [requests/s]'}
    """
    known = {name: title for name in names if (title := title_of(name)) != name}
    return known | {"goodput": "goodput, share of requests"} if {"goodput", "goodput_rate"} <= set(names) else known


def title_of(name: str) -> str:
    """Words for a column, or its name.

    >>> title_of("output_tok_s_per_gpu"), title_of("ttft_ms"), title_of("my column")
    ('output of one GPU [tokens/s]', 'TTFT [ms]', 'my column')
    """
    if (found := _TIME.fullmatch(name)) is None:
        return _TITLES.get(name, name)
    time, part = _TIMES[found[1]], found[2]
    return f"{time}, {_PARTS[part]} [ms]" if part else f"{time} [ms]"
