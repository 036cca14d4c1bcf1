"""Which metric is explained by which tree, by the names that users type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from rooflinekit.derivation.case import Case, decode_scenes, prefill_scenes, step_node, tpot_node, ttft_node
from rooflinekit.derivation.counting import cache_per_token, parameters_node, ridge_node, step_intensity, step_work
from rooflinekit.derivation.kernels import bound_node, bytes_node, flops_node, intensity_node, time_node
from rooflinekit.derivation.load import LOAD_METRICS, LoadCase
from rooflinekit.derivation.memory import MemoryCase
from rooflinekit.derivation.node import Node, branch, given, joined
from rooflinekit.derivation.scene import Launched, Scene
from rooflinekit.parameter_count import count_parameters
from rooflinekit.types.batch import Batch
from rooflinekit.types.errors import InputError, UnknownNameError

__all__ = ["ALIASES", "METRICS", "Found", "find_metric", "full_name", "kernel_scenes"]

_STEPS = ("prefill", "decode")
_KINDS = ("time", "flops", "bytes", "intensity", "bound")


@dataclass(frozen=True)
class Found:
    """A metric by its full name: unit shown, scale from SI, and its tree."""

    name: str
    unit: str
    scale: float
    root: Node


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
    return branch("per_gpu", "output tokens a second and accelerator", case.answer.output_tok_s_per_gpu, "token/s",
                  ("output/gpus", [_any("output_tok_s")(case), gpus]))  # fmt: skip


def _per_user(case: Case) -> Node:
    return branch("per_user", "output tokens a second of one user, while decoding", case.answer.output_tok_s_per_user, "token/s",
                  ("1/TPOT", [_any("tpot")(case)]))  # fmt: skip


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
    return case.max_context()


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
    "max_batch": ("sequences", 1.0, _memory(MemoryCase.max_batch)),
    "max_context": ("tokens", 1.0, _memory(_max_context)),
    "kv_per_token": ("B", 1.0, _kv_per_token),
    "params": ("", 1.0, _parameters),
    "params_active": ("", 1.0, _active),
    "ridge": ("FLOP/B", 1.0, lambda case: ridge_node(case.predictor.plan)),
}
"""Metrics that do not name a step."""

ALIASES = {
    "ttft_ms": "ttft", "tpot_ms": "tpot", "e2e_ms": "e2e", "total_bytes": "memory", "weight_bytes": "weights",
    "kv_bytes": "kv", "activation_bytes": "activations", "overhead_bytes": "overhead", "kv_pool_bytes": "kv_pool",
    "kv_bytes_per_token": "kv_per_token", "parameters": "params", "params_total": "params", "queue_ms": "queue",
    "ridge_point": "ridge", "knee": "knee_rate", "total": "memory", "throughput": "output_tok_s",
    "flops": "decode.flops", "bytes": "decode.bytes", "intensity": "decode.intensity", "bound": "decode.bound",
}  # fmt: skip
"""Other names: those of the JSON, and short ones."""


def kernel_scenes(case: Case, step: str) -> list[Scene]:
    """The steps whose kernels `estimate` lists under `prefill` or `decode`."""
    if step == "decode":
        return decode_scenes(case.predictor, case.work, float(case.work.decode_context))
    if case.load is not None:
        return [Scene(case.predictor.plan, Batch.prefill(1.0, case.work.isl))]
    return prefill_scenes(case.predictor, case.work)[:1]


def full_name(name: str) -> str:
    """A metric as METRICS calls it.

    >>> full_name("KV-bytes-per-token")
    'kv_per_token'
    """
    folded = name.strip().lower().replace("-", "_")
    return ALIASES.get(folded, folded)


def find_metric(case: Case, name: str) -> Found:
    """The tree of a metric: a name of METRICS, or `decode`, `prefill`, `decode.flops`, `decode.attention.bytes` …

    Raises UnknownNameError with the nearest names.
    """
    folded = full_name(name)
    if folded in METRICS:
        unit, scale, build = METRICS[folded]
        return Found(folded, unit, scale, build(case))
    step, _, rest = folded.partition(".")
    if step not in _STEPS or "" in folded.split("."):
        raise UnknownNameError("metric", name, _known(case))
    return _of_step(case, name, step, rest)


def _of_step(case: Case, asked: str, step: str, rest: str) -> Found:
    scenes = kernel_scenes(case, step)
    kernel, _, kind = rest.rpartition(".")
    if rest in _KINDS or not rest:
        kernel, kind = "", rest
    elif kind not in _KINDS:
        kernel, kind = rest, "time"
    found = [(scene, launched) for scene in scenes for launched in scene.launched
             if not kernel or scene.prefix + launched.kernel.name == kernel]  # fmt: skip
    if not found:
        raise UnknownNameError("metric", asked, _known(case))
    kind = kind or "time"
    unit, scale = {"time": ("ms", 1e3), "bound": ("ms", 1e3), "flops": ("FLOP", 1.0), "bytes": ("B", 1.0)}.get(
        kind, ("FLOP/B", 1.0)
    )
    if kernel and unit == "ms":
        unit, scale = "µs", 1e6
    root = _kernels(f"{step}.{kernel}", kind, found) if kernel else _whole(step, kind, scenes)
    name = ".".join(part for part in (step, kernel, "" if kind == "time" else kind) if part)
    return Found(name, unit, scale, root)


def _whole(step: str, kind: str, scenes: list[Scene]) -> Node:
    if kind == "time":
        return step_node(step, f"one {step} step", scenes)
    if kind == "intensity":
        return step_intensity(f"FLOP for each byte of a {step} step", scenes)
    if kind == "bound":
        parts = [_named(s, bound_node(s, one)) for s in scenes for one in s.launched if one.op is not None]
        parts = [replace(part, symbol=s) for part, s in zip(parts, _names(scenes), strict=True)]
        return joined(step, f"datasheet bound of one {step} step", sum(p.value for p in parts), "s", parts)
    return step_work(step, f"{kind} of one {step} step", scenes, "FLOP" if kind == "flops" else "bytes")


def _names(scenes: list[Scene]) -> list[str]:
    return [scene.prefix + one.kernel.name for scene in scenes for one in scene.launched if one.op is not None]


def _named(scene: Scene, node: Node) -> Node:
    """The bound of all steps of a round, where a draft repeats it."""
    if scene.times == 1:
        return node
    steps = given("steps", "steps of the draft like this one", scene.times)
    return branch(
        node.symbol, node.title, scene.times * node.value, "s", ("steps*one", [steps, replace(node, symbol="one")])
    )


_BUILDERS: dict[str, Callable[[Scene, Launched], Node]] = {
    "time": time_node, "flops": flops_node, "bytes": bytes_node, "intensity": intensity_node,
    "bound": lambda scene, launched: _named(scene, bound_node(scene, launched)),
}  # fmt: skip


def _kernels(name: str, kind: str, found: list[tuple[Scene, Launched]]) -> Node:
    """One kernel, or the sum over those of one name (layers of different kinds)."""
    nodes = [_BUILDERS[kind](scene, launched) for scene, launched in found]
    if len(nodes) == 1:
        return nodes[0]
    if kind == "intensity":
        return nodes[0] if len({node.value for node in nodes}) == 1 else _mixed(found)
    return joined(
        name.replace(".", "_"), f"all kernels named {name}", sum(n.value for n in nodes), nodes[0].unit, nodes
    )


def _mixed(found: list[tuple[Scene, Launched]]) -> Node:
    flops = [flops_node(*one) for one in found]
    moved = [bytes_node(*one) for one in found]
    F = joined("FLOP", "work of all kernels of this name", sum(n.value for n in flops), "FLOP", flops)
    size = joined("bytes", "their traffic", sum(n.value for n in moved), "B", moved)
    return branch(
        "intensity",
        "FLOP for each byte, all kernels of this name",
        F.value / size.value,
        "FLOP/B",
        ("FLOP/bytes", [F, size]),
    )


def _known(case: Case) -> list[str]:
    names = [*METRICS, *ALIASES]
    for step in _STEPS:
        scenes = kernel_scenes(case, step)
        names += [step, *(f"{step}.{kind}" for kind in _KINDS[1:])]
        names += dict.fromkeys(f"{step}.{scene.prefix}{one.kernel.name}" for scene in scenes for one in scene.launched)
    return names
