"""Which metric is explained by which tree, by the names that users type."""

from __future__ import annotations

from collections.abc import Callable

from rooflinekit.explanation.derivation.case import Case, tpot_node, ttft_node
from rooflinekit.explanation.derivation.counting import cache_per_token, parameters_node, ridge_node
from rooflinekit.explanation.derivation.load import LoadCase
from rooflinekit.explanation.derivation.load_answers import LOAD_METRICS
from rooflinekit.explanation.derivation.memory import MemoryCase
from rooflinekit.explanation.derivation.node import Node, branch, given
from rooflinekit.explanation.derivation.room import max_batch, max_context
from rooflinekit.explanation.derivation.step_metrics import STEPS, Found, names_of_steps, of_step
from rooflinekit.model.parameter_count import count_parameters
from rooflinekit.model.types.errors import InputError, UnknownNameError, nearest

__all__ = ["ALIASES", "METRICS", "find_metric", "full_name"]


def _static_ttft(case: Case) -> Node:
    return ttft_node(case.predictor, case.work, float(case.answer.ttft_ms or 0.0) / 1e3)


def _static_tpot(case: Case) -> Node:
    return tpot_node(case.predictor, case.work, case.answer.tpot_ms / 1e3)


def _e2e(case: Case) -> Node:
    N = given("N", "output tokens", float(case.work.osl), "", "the question")
    value = float(case.answer.e2e_ms or 0.0) / 1e3
    return branch(
        "E2E",
        "a request from end to end",
        value,
        "s",
        ("TTFT + (N - 1)*TPOT", [_static_ttft(case), N, _static_tpot(case)]),
    )


def _output(case: Case) -> Node:
    sizes = [
        given("B", "sequences", float(case.work.batch), "", "the question"),
        given("N", "output tokens", float(case.work.osl), "", "the question"),
    ]
    return branch(
        "output",
        "output tokens a second, prefill included",
        case.answer.output_tok_s,
        "token/s",
        ("B*N/E2E", [*sizes, _e2e(case)]),
    )


def _any(name: str) -> Callable[[Case], Node]:
    """A metric under load or of a static batch, whatever was asked."""
    static = {"ttft": _static_ttft, "tpot": _static_tpot, "e2e": _e2e, "output_tok_s": _output}

    def build(case: Case) -> Node:
        if case.load is not None:
            return LOAD_METRICS[name][2](LoadCase.of(case.predictor, case.load))
        if name not in static:
            raise InputError(f"{name} is a metric under load; add --concurrency or --rate")
        return static[name](case)

    return build


def _per_gpu(case: Case) -> Node:
    gpus = given("gpus", "accelerators", case.predictor.plan.deployment.gpus, "", "the question")
    return branch(
        "per_gpu",
        "output tokens a second and accelerator",
        case.answer.output_tok_s_per_gpu,
        "token/s",
        ("output/gpus", [_any("output_tok_s")(case), gpus]),
    )


def _per_user(case: Case) -> Node:
    return branch(
        "per_user",
        "output tokens a second of one user, while decoding",
        case.answer.output_tok_s_per_user,
        "token/s",
        ("1/TPOT", [_any("tpot")(case)]),
    )


def _memory(build: Callable[[MemoryCase], Node]) -> Callable[[Case], Node]:
    def made(case: Case) -> Node:
        work = case.work
        if case.load is None:
            return build(MemoryCase.of(case.predictor, work))
        return build(
            MemoryCase(case.predictor, float(work.batch), float(work.isl) + float(work.osl) / 2.0, float(work.isl))
        )

    return made


def _max_context(case: MemoryCase) -> Node:
    if case.model.limit is None and float(case.model.max_context(case.local.value, case.new)) == float("inf"):
        raise InputError(f"nothing limits the context of {case.predictor.plan.model.name}: its cache does not grow")
    return max_context(case)


def _parameters(case: Case) -> Node:
    return parameters_node(case.predictor.plan, count_parameters(case.predictor.plan.model))


def _active(case: Case) -> Node:
    count = count_parameters(case.predictor.plan.model)
    idle = given("idle", "weights of routed experts that one token does not visit", count.inactive_experts)
    return branch(
        "P_active", "parameters that one token visits", count.active, "", ("P - idle", [_parameters(case), idle])
    )


def _kv_per_token(case: Case) -> Node:
    return cache_per_token(case.predictor.plan, case.predictor.plan.model.layers)


METRICS: dict[str, tuple[str, float, Callable[[Case], Node]]] = {
    **{name: (unit, scale, _any(name)) for name, (unit, scale, _) in LOAD_METRICS.items()},
    "output_tok_s_per_gpu": ("token/s", 1.0, _per_gpu),
    "output_tok_s_per_user": ("token/s", 1.0, _per_user),
    "memory": ("B", 1.0, _memory(MemoryCase.total)),
    "weights": ("B", 1.0, _memory(MemoryCase.weights)),
    "kv": ("B", 1.0, _memory(MemoryCase.cache)),
    "activations": ("B", 1.0, _memory(MemoryCase.activations)),
    "overhead": ("B", 1.0, _memory(MemoryCase.overhead)),
    "kv_pool": ("B", 1.0, _memory(MemoryCase.pool)),
    "max_batch": ("sequences", 1.0, _memory(max_batch)),
    "max_context": ("tokens", 1.0, _memory(_max_context)),
    "kv_per_token": ("B", 1.0, _kv_per_token),
    "params": ("", 1.0, _parameters),
    "params_active": ("", 1.0, _active),
    "ridge": ("FLOP/B", 1.0, lambda case: ridge_node(case.predictor.plan)),
}
"""Metrics that do not name a step."""

ALIASES = {
    "ttft_ms": "ttft",
    "tpot_ms": "tpot",
    "e2e_ms": "e2e",
    "total_bytes": "memory",
    "weight_bytes": "weights",
    "kv_bytes": "kv",
    "activation_bytes": "activations",
    "overhead_bytes": "overhead",
    "kv_pool_bytes": "kv_pool",
    "kv_bytes_per_token": "kv_per_token",
    "parameters": "params",
    "params_total": "params",
    "queue_ms": "queue",
    "ridge_point": "ridge",
    "knee": "knee_rate",
    "total": "memory",
    "throughput": "output_tok_s",
    "flops": "decode.flops",
    "bytes": "decode.bytes",
    "intensity": "decode.intensity",
    "bound": "decode.bound",
}
"""Other names: those of the JSON, and short ones."""


def full_name(name: str) -> str:
    """A metric as METRICS calls it.

    >>> full_name("KV-bytes-per-token")
    'kv_per_token'
    """
    folded = name.strip().lower().replace("-", "_")
    return ALIASES.get(folded, folded)


def find_metric(case: Case, name: str) -> Found:
    """The tree of a metric: a name of METRICS, or `decode`, `decode.flops`, `decode.attention.bytes` and the like.

    Raises UnknownNameError with the nearest names.
    """
    folded = full_name(name)
    if folded in METRICS:
        unit, scale, build = METRICS[folded]
        return Found(folded, unit, scale, build(case))
    step, _, rest = folded.partition(".")
    if step not in STEPS or "" in folded.split("."):
        raise _unknown(case, name)
    found = of_step(case, step, rest)
    if found is None:
        raise _unknown(case, name)
    return found


_FIRST = ("tpot", "ttft", "memory", "max_batch", "kv_per_token", "params", "decode", "decode.attention")


def _unknown(case: Case, name: str) -> UnknownNameError:
    """The nearest names, or what most people ask for."""
    known = [*METRICS, *ALIASES, *names_of_steps(case)]
    return UnknownNameError("metric", name, known if nearest(name, known) else _FIRST)
