"""Metrics of a step and of its kernels: time, bound, FLOP, bytes, intensity."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from rooflinekit.explanation.derivation.case import Case, decode_scenes, prefill_scenes, step_node
from rooflinekit.explanation.derivation.counting import step_intensity, step_work
from rooflinekit.explanation.derivation.kernels import bound_node, bytes_node, flops_node, intensity_node, time_node
from rooflinekit.explanation.derivation.node import Node, branch, given, joined
from rooflinekit.explanation.derivation.scene import Launched, Scene
from rooflinekit.model.types.batch import Batch

__all__ = ["STEPS", "Found", "kernel_scenes", "names_of_steps", "of_step"]

STEPS = ("prefill", "decode")
_KINDS = ("time", "flops", "bytes", "intensity", "bound")
_SUFFIXES = tuple(f".{kind}" for kind in _KINDS[1:])


@dataclass(frozen=True)
class Found:
    """A metric by its full name: unit shown, scale from SI, and its tree."""

    name: str
    unit: str
    scale: float
    root: Node


def kernel_scenes(case: Case, step: str) -> list[Scene]:
    """The steps whose kernels `estimate` lists under `prefill` or `decode`."""
    if step == "decode":
        return decode_scenes(case.predictor, case.work, float(case.work.decode_context))
    if case.load is not None:
        return [Scene(case.predictor.plan, Batch.prefill(1.0, case.work.isl))]
    return prefill_scenes(case.predictor, case.work)[:1]


def of_step(case: Case, step: str, rest: str) -> Found | None:
    """A step, or one kernel of it; None where no kernel has this name."""
    scenes = kernel_scenes(case, step)
    kernel, _, kind = rest.rpartition(".")
    if rest in _KINDS or not rest:
        kernel, kind = "", rest
    elif kind not in _KINDS:
        kernel, kind = rest, "time"
    found = [
        (scene, launched)
        for scene in scenes
        for launched in scene.launched
        if not kernel or scene.prefix + launched.kernel.name == kernel
    ]
    if not found:
        return None
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
    "time": time_node,
    "flops": flops_node,
    "bytes": bytes_node,
    "intensity": intensity_node,
    "bound": lambda scene, launched: _named(scene, bound_node(scene, launched)),
}


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


def names_of_steps(case: Case) -> list[str]:
    """All metrics of the two steps."""
    names = []
    for step in STEPS:
        kernels = [scene.prefix + one.kernel.name for scene in kernel_scenes(case, step) for one in scene.launched]
        names += [step, *(f"{step}.{kind}" for kind in _KINDS[1:])]
        names += dict.fromkeys(f"{step}.{kernel}{kind}" for kernel in kernels for kind in ("", *_SUFFIXES))
    return names
