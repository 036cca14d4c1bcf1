"""Names of columns: what is read, what is written, and what a header means."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from difflib import get_close_matches

import pandas as pd

from rooflinekit.estimation.scenario import DEPLOYMENT_KEYS, LOAD_KEYS, SPECULATION_KEYS, WORKLOAD_KEYS
from rooflinekit.load.played import PERCENTILES
from rooflinekit.model.capacity import Memory
from rooflinekit.model.serving.energy import LoadPower
from rooflinekit.model.types.errors import InputError
from rooflinekit.model.types.numeric import Numeric
from rooflinekit.model.types.time import Time

FIXED = ("model", "gpu", *DEPLOYMENT_KEYS, *SPECULATION_KEYS, "calibration", "allow_oom")
"""Columns that rows of one deployment share."""

INPUT_COLUMNS = (*FIXED, *WORKLOAD_KEYS, *LOAD_KEYS)
_TIMES = ("ttft", "tpot")
MEMORY = (
    "capacity_bytes", "weight_bytes", "kv_bytes", "activation_bytes", "overhead_bytes", "total_bytes",
    "kv_pool_bytes", "kv_pool_tokens", "kv_blocks", "max_concurrency", "needed_bytes", "available_bytes",
)  # fmt: skip
NUMBERS = (
    *(f"{time}_{part}" for time in _TIMES for part in ("ms", "low_ms", "high_ms", "bound_ms")),
    "e2e_ms",
    "output_tok_s",
    "output_tok_s_per_gpu",
    "output_tok_s_per_user",
    "power_w_per_gpu",
    "plug_w_per_gpu",
    "energy_per_output_token_j",
    *MEMORY,
    "max_batch",
    "max_context",
    "gpus",
)
ENDS = tuple(f"{time}_{end}_ms" for time in _TIMES for end in ("low", "high"))
"""Ends of intervals, which the datasheet's bound has not."""

TIMED = NUMBERS[: NUMBERS.index("capacity_bytes")]
"""Times and rates, which a row that does not fit lacks."""

LOAD_NUMBERS = (
    "running",
    "slots",
    "request_rate",
    "knee_rate",
    "prompt_share",
    "queue_ms",
    *(f"{time}_{part}_ms" for time in (*_TIMES, "e2e") for part in PERCENTILES),
    "goodput",
)
LOAD_COLUMNS = (*LOAD_NUMBERS, "stable")
"""Written beside the others where the table has a column `concurrency` or `rate`."""

RESULT_COLUMNS = (*NUMBERS, "fits", "level", "evidence", "calibration_hash", "warnings", "error", "version")

_SYNONYMS = {
    "batchsize": "batch", "bs": "batch", "inputlen": "isl", "inputlength": "isl", "promptlen": "isl",
    "outputlen": "osl", "outputlength": "osl", "accelerator": "gpu", "tensorparallel": "tp", "tensorparallelsize": "tp",
    "kvdtype": "kv", "weightdtype": "weights", "dtype": "weights", "modelname": "model",
    "requestrate": "rate",
}  # fmt: skip
_SLIP = 0.83  # likeness (difflib) of a name with one letter missing or too many


def power_columns(power: LoadPower | None) -> dict[str, Numeric]:
    """Columns of rows: power of a board, alone and with its host at the plug, and boards' energy over output tokens."""
    if power is None:
        return dict.fromkeys(("power_w_per_gpu", "plug_w_per_gpu", "energy_per_output_token_j"), math.nan)
    return {
        "power_w_per_gpu": power.watts,
        "plug_w_per_gpu": power.plug,
        "energy_per_output_token_j": power.joules_per_output_token,
    }


def numbers_of(times: Mapping[str, Time], e2e: Numeric, rate: Numeric, memory: Memory, gpus: int) -> dict[str, Numeric]:
    """Columns of rows: milliseconds, bytes and tokens a second; `times`, `e2e` in seconds, `rate` in output tokens."""
    values: dict[str, Numeric] = {"gpus": float(gpus)}
    for name, time in times.items():
        parts = {"": time.expected, "_low": time.low, "_high": time.high, "_bound": time.bound}
        values |= {f"{name}{part}_ms": seconds * 1e3 for part, seconds in parts.items()}
    values |= {"e2e_ms": e2e * 1e3, "output_tok_s": rate, "output_tok_s_per_gpu": rate / gpus}
    values["output_tok_s_per_user"] = 1.0 / times["tpot"].expected
    return values | {name: getattr(memory, name) for name in (*MEMORY, "max_batch", "max_context")}


def _folded(column: object) -> str:
    return str(column).strip().lower().replace("_", "").replace("-", "").replace(" ", "")


_FOLDED = {_folded(name): name for name in INPUT_COLUMNS}
_LONG = tuple(name for name in _FOLDED if len(name) > 3)


def input_names(headers: Iterable[object]) -> dict[object, str]:
    """The inputs that a planner's headers mean: case, spaces and the usual other names do not matter.

    >>> input_names(["Model", "Batch size", "Max num seqs", "Owner"])
    {'Model': 'model', 'Batch size': 'batch', 'Max num seqs': 'max_num_seqs'}
    """
    found: dict[object, str] = {}
    for header in headers:
        folded = _folded(header)
        if name := _FOLDED.get(folded) or _SYNONYMS.get(folded):
            if name in found.values():
                first = next(key for key, value in found.items() if value == name)
                raise InputError(f"columns {first!r} and {header!r} both mean {name!r}; keep one")
            found[header] = name
    return found


def is_loaded(scenarios: pd.DataFrame) -> bool:
    """True if the table asks about deployments under load."""
    return "concurrency" in scenarios or "rate" in scenarios


def check_columns(scenarios: pd.DataFrame) -> None:
    """Refuse a table whose columns cannot be what was meant."""
    if not isinstance(scenarios, pd.DataFrame):
        raise InputError(f"scenarios must be a pandas DataFrame, not a {type(scenarios).__name__}; use pd.DataFrame(…)")
    if "model" not in scenarios:
        raise InputError(f"the table has no column 'model'; it has: {', '.join(map(str, scenarios.columns)) or 'none'}")
    twice = scenarios.columns[scenarios.columns.duplicated()]
    if wrong := [str(column) for column in twice if column in INPUT_COLUMNS]:
        raise InputError(f"column {wrong[0]!r} is there twice; keep one")
    written = (*RESULT_COLUMNS, *LOAD_COLUMNS) if is_loaded(scenarios) else RESULT_COLUMNS
    for column in map(str, scenarios.columns):
        if column in written:
            raise InputError(f"column {column!r} would be overwritten by a result; rename it")
        folded = _folded(column)
        meant = _SYNONYMS.get(folded) or _like(folded)
        if column not in INPUT_COLUMNS and meant is not None and meant not in scenarios:
            raise InputError(f"column {column!r} is not read; rename it to {meant!r} if that is what it means")


def _like(folded: str) -> str | None:
    """The input column that this is, but for a slip; a table's own columns are like none of them.

    Two letters swapped are a slip in any name; a letter missing or too many only in a long one, because names of two
    or three letters (tp, isl) are near to everything.
    """
    if folded in _FOLDED:
        return _FOLDED[folded]
    swapped = [folded[:i] + folded[i + 1] + folded[i] + folded[i + 2 :] for i in range(len(folded) - 1)]
    slips = [name for name in _FOLDED if len(name) > 2 and name in swapped]
    hit = next(iter(slips or get_close_matches(folded, _LONG, 1, _SLIP)), None)
    return None if hit is None else _FOLDED[hit]
