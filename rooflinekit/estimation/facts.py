"""Questions about a model that need no time: parameters, cache size, longest context."""

from __future__ import annotations

from os import PathLike
from typing import Any

from rooflinekit.estimation.estimator import read_deployment, resolve
from rooflinekit.model.cache import model_cache_law
from rooflinekit.model.parameter_count import ParameterCount, count_parameters
from rooflinekit.model.types.batch import whole_number
from rooflinekit.model.types.dtype import Dtype, parse_dtype
from rooflinekit.specs import load_model


def parameters(model: str | PathLike[str]) -> ParameterCount:
    """Weights of a model by module, and active ones by three conventions.

    Raises UnknownNameError, SpecError or ArchitectureError as `load_model` does.

    >>> parameters("llama-3-70b").total
    70553706496
    """
    return count_parameters(load_model(model).value)


def kv_cache_bytes(
    model: str | PathLike[str], context: int, dtype: str | Dtype | None = None, *, tp: int = 1, block: int = 1
) -> float:
    """Cache of one sequence at `context` tokens, on all `tp` accelerators together [B].

    Replicas count: KV heads are copied once tp exceeds them, and MLA's latent on every rank. Windows stop growing,
    recurrent layers add their fixed state. `block` rounds the context up to whole pages.

    Raises WorkloadError for a context, tp or block below 1, DtypeError for an unknown format.

    >>> kv_cache_bytes("llama-2-7b", 4096) / 1e9
    2.147
    >>> kv_cache_bytes("deepseek-v3", 1)
    70272.0
    """
    kv = None if dtype is None else parse_dtype(dtype)
    ranks = whole_number(tp, "tp")
    law = model_cache_law(load_model(model).value, kv, ranks, whole_number(block, "block"))
    return float(law.bytes(float(whole_number(context, "context")))) * ranks


def max_context(
    model: str | PathLike[str], gpu: str | PathLike[str] = "h100-sxm", batch: int = 1, **deployment: Any
) -> int | None:
    """Longest context at which `batch` sequences fit [tokens], at most the model's own maximum; None if unlimited.

    Raises what `estimate` raises for names and deployments.

    >>> max_context("llama-3-8b", "h100-sxm", batch=64) < max_context("llama-3-8b", "h100-sxm")
    True
    """
    predictor = resolve(model, gpu, read_deployment(deployment), "none").predictor
    longest = predictor.memory.evaluate(float(whole_number(batch, "batch")), 1.0, 1.0).max_context
    return None if longest == float("inf") else int(longest)
