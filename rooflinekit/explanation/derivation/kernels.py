"""One kernel of a step: time, bound, FLOP, bytes and intensity of all its launches."""

from __future__ import annotations

from dataclasses import replace

from rooflinekit.explanation.derivation.forms import Form, launch_time
from rooflinekit.explanation.derivation.node import Node, branch, given, joined, reckoned
from rooflinekit.explanation.derivation.scene import Launched, Scene
from rooflinekit.explanation.derivation.work import work
from rooflinekit.model.timing import AXES, Surface
from rooflinekit.model.timing.calibrated import FamilyFit
from rooflinekit.model.types.engine import StepCosts
from rooflinekit.model.types.kernel import Kernel

__all__ = ["bound_node", "bytes_node", "flops_node", "intensity_node", "time_node"]

_TRAFFIC = ("w", "kr", "kw", "a")


def time_node(scene: Scene, launched: Launched) -> Node:
    """Time of all launches in the step, at the level of the answer [s]."""
    kernel, value = launched.kernel, float(launched.timed.time)
    name, title = scene.prefix + kernel.name, f"{kernel.family}, {kernel.dtype.value}"
    if launched.op is None:
        return _times(scene, _host(scene, launched, name))
    calibration = scene.plan.calibration
    if calibration is None:
        return _times(scene, replace(bound_node(scene, launched), symbol=name, title=title))
    fit = _chosen(calibration.fit(kernel), kernel)
    found = work(scene, launched)
    form = launch_time(Form(scene, kernel, fit, found, _traffic(found, float(kernel.bytes))))
    formula, parts = "n*t", [_count(kernel), form]
    if fit.surface is not None:
        formula, parts = "n*t*r", [*parts, _correction(fit, fit.surface, kernel)]
    parts += [bound_node(scene, launched), form.children[0]]
    by = _beside(scene, form, kernel, (f"max({formula}, bound)", parts))
    return _times(scene, branch(name, title, value, "s", _as_run(scene, kernel, *by)))


def _beside(scene: Scene, form: Node, kernel: Kernel, by: tuple[str, list[Node]]) -> tuple[str, list[Node]]:
    """Slower than alone, where benchmark files of a deployment showed that (docs/fit-back.md)."""
    costs, launches = scene.plan.costs, _count(kernel)
    if kernel.gpus > 1 or (costs.memory == 1.0 and costs.compute == 1.0):
        return by
    alone = reckoned("alone", "all launches as in a benchmark loop", "s", by)
    resources = {child.symbol: child for child in form.children if child.symbol in ("compute", "memory")}
    busy = sum(child.value for child in resources.values())
    share = given("share", "memory's part of the two times", 0.0)
    if busy:
        share = reckoned("share", share.title, "", ("memory/(memory + compute)", resources.values()))
    memory = scene.engine(
        "s_m", "how much slower a memory-bound kernel runs in this deployment", costs.memory, "memory", ""
    )
    compute = scene.engine("s_c", "how much slower a compute-bound one runs", costs.compute, "compute", "")
    slow = reckoned(
        "slow", "how much slower this kernel runs", "", ("s_m**share*s_c**(1 - share)", [memory, compute, share])
    )
    formula = "max(alone + (slow - 1)*max(alone - n*launch, 0), bound)"
    return formula, [alone, slow, launches, *by[1]]


def _as_run(scene: Scene, kernel: Kernel, formula: str, parts: list[Node]) -> tuple[str, list[Node]]:
    """Among its neighbours: never below the bound, its launch partly hidden, a collective later."""
    costs = scene.plan.costs
    grouped = costs.grouped and kernel.family == "attention_decode"
    late = costs.collective and kernel.gpus > 1
    if grouped:
        heads, kv = (
            given(s, f"{w} heads here", float(getattr(kernel.shape, d)))
            for s, w, d in (("H", "query", "heads"), ("K", "KV", "kv_heads"))
        )
        again = scene.engine("again", "keys read again for the query heads of a group", costs.grouped, "grouped", "")
        formula, parts = f"{formula}*(1 + again*(1 - K/H))", [*parts, again, heads, kv]
    if late:
        wait = scene.engine(
            "wait", "ranks wait for each other, in a step over a benchmark loop", costs.collective, "collective"
        )
        formula, parts = f"{formula} + n*wait", [*parts, wait]
    if costs.hidden:
        hidden = scene.engine("hidden", "share of the launch that neighbours hide", costs.hidden, "hidden", "")
        formula, parts = f"{formula} - hidden*n*launch", [*parts, hidden]
    return (f"max({formula}, bound)" if late or costs.hidden else formula), parts


def _times(scene: Scene, node: Node) -> Node:
    """All steps of a round, where a draft repeats it."""
    if scene.times == 1:
        return node
    steps = scene.asked("steps", "steps of the draft like this one", scene.times)
    return branch(
        node.symbol,
        f"{node.title}, every step",
        scene.times * node.value,
        "s",
        ("steps*one", [steps, replace(node, symbol="one")]),
    )


def _chosen(fit: FamilyFit, kernel: Kernel) -> FamilyFit:
    """The fit of the kernel that the engine runs for such a shape."""
    beyond = fit.beyond
    return beyond.fit if beyond is not None and float(AXES[beyond.axis](kernel)) >= beyond.start else fit


def _correction(fit: FamilyFit, surface: Surface, kernel: Kernel) -> Node:
    axes = ", ".join(f"{axis.name} {float(AXES[axis.name](kernel)):.5g}" for axis in surface.axes)
    title = f"correction: measured over form at {axes}; 1 where nothing was measured"
    return given("r", title, float(surface.ratio(kernel)), "", f"table over {fit.source}")


def _count(kernel: Kernel) -> Node:
    return given("n", "launches in the step", kernel.count, "", "layers that have it, over the stages")


def _traffic(found: dict[str, Node], value: float) -> Node:
    parts = [found[symbol] for symbol in _TRAFFIC if symbol in found]
    if not parts:
        return given("bytes", "memory traffic of one launch", value, "B")
    return joined("bytes", "memory traffic of one launch", value, "B", parts)


def bound_node(scene: Scene, launched: Launched) -> Node:
    """Datasheet roofline of all launches [s]; compute, memory and network that are zero are left out."""
    kernel, value = launched.kernel, float(launched.timed.bound)
    title = "datasheet roofline of all launches: nothing can be faster"
    if launched.op is None:
        return given("bound", "no kernel runs: nothing of it is in the bound", value, "s", "docs/method.md, section 2")
    found, parts = work(scene, launched), [_count(kernel), scene.bandwidth]
    terms = ["s/W"]
    streamed = [str(symbol) for symbol in ("w", "kr", "kw") if symbol in found]
    if "a" in found:
        streamed.append("max(a - L2, 0)")
    if streamed:
        size = float(kernel.weight_bytes + kernel.kv_read_bytes + kernel.kv_write_bytes)
        size += max(float(kernel.activation_bytes) - scene.plan.system.accelerator.l2_bytes, 0.0)
        below = [*found.values(), scene.last_cache]
        parts.append(branch("s", "bytes that must cross the memory", size, "B", (" + ".join(streamed), below)))
    else:
        parts.append(given("s", "bytes that must cross the memory", 0.0, "B"))
    if "F" in found:
        terms.insert(0, "F/P")
        parts += [found["F"], scene.peak(kernel.dtype)]
    network = _network(scene, kernel, found)
    if network:
        terms += network[0]
        parts += network[1]
    formula = f"n*max({', '.join(terms)})" if len(terms) > 1 else "n*s/W"
    return branch("bound", title, value, "s", (formula, parts))


def _network(scene: Scene, kernel: Kernel, found: dict[str, Node]) -> tuple[list[str], list[Node]] | None:
    if kernel.gpus == 1 or "net" not in found:
        return None
    out, terms = float(kernel.nic_bytes), []
    sent = [found["net"], given("out", "of that, to other domains", out, "B", "docs/method.md, collectives")]
    if scene.plan.system.domain_size > 1:
        terms.append("(net - out)/N" if out else "net/N")
    if out:
        terms.append("out/NIC")
    return terms, [*sent, scene.links, scene.nic]


def flops_node(scene: Scene, launched: Launched) -> Node:
    """FLOP of all launches."""
    return _whole(scene, launched, "FLOP", work(scene, launched).get("F"))


def bytes_node(scene: Scene, launched: Launched) -> Node:
    """Memory traffic of all launches [B]."""
    traffic = _traffic(work(scene, launched), float(launched.kernel.bytes)) if launched.op else None
    return _whole(scene, launched, "B", traffic)


def _whole(scene: Scene, launched: Launched, unit: str, one: Node | None) -> Node:
    """All launches of the step; `one` is a single launch."""
    kernel = launched.kernel
    name, what = scene.prefix + kernel.name, "work" if unit == "FLOP" else "traffic"
    each, count = float(kernel.flops if unit == "FLOP" else kernel.bytes), kernel.count * scene.times
    if one is None:
        return given(name, f"{kernel.name}: {what} of all launches", 0.0, unit, "nothing of this kind")
    launches = given("n", "launches in the step", count)
    by = f"n*{one.symbol}", [launches, one]
    return branch(name, f"{kernel.name}: {what} of all launches", count * each, unit, by)


def intensity_node(scene: Scene, launched: Launched) -> Node:
    """FLOP for each byte of memory traffic."""
    kernel = launched.kernel
    if not float(kernel.bytes):
        return given(kernel.name, "moves nothing", 0.0, "FLOP/B")
    flops = replace(flops_node(scene, launched), symbol="FLOP")
    moved = replace(bytes_node(scene, launched), symbol="bytes")
    value = float(kernel.flops) / float(kernel.bytes)
    return branch(kernel.name, f"intensity of {kernel.name}", value, "FLOP/B", ("FLOP/bytes", [flops, moved]))


def _host(scene: Scene, launched: Launched, name: str) -> Node:
    """What the engine adds to the step: host work, gaps, launches that the host cannot feed fast enough."""
    costs, iteration = scene.plan.costs, scene.plan.iteration(scene.batch)
    value, kernel = float(launched.timed.time), launched.kernel
    passes = given("passes", "engine steps: prompts beyond the token budget take several", float(iteration.passes))
    if kernel.name == "layer_gaps":
        layers = scene.model("L", "layers", iteration.layers)
        gap = scene.engine("gap", "gaps between the kernels of a layer", costs.layer, "layer")
        return branch(
            name, "gaps between the kernels of the layers", value, "s", ("passes*L*gap", [passes, layers, gap])
        )
    if kernel.name == "launch_gaps":
        launch = scene.engine("launch", "host time of one launch without a CUDA graph", costs.launch, "launch")
        busy = sum(float(each.timed.time) for each in replace(scene, grows=None).launched if each.op is not None)
        parts = [
            passes,
            given("n", "launches", kernel.count),
            launch,
            given("busy", "time of all kernels", busy, "s", "the kernels of this step"),
        ]
        return branch(name, "the accelerator waits for launches", value, "s", ("passes*n*launch - busy", parts))
    return _schedule(scene, name, value, passes, costs)


def _schedule(scene: Scene, name: str, value: float, passes: Node, costs: StepCosts) -> Node:
    iteration = scene.plan.iteration(scene.batch)
    step = scene.engine("step", "host work of a step: schedule, sample, detokenise", costs.step, "step")
    each = scene.engine("each", "host work for a sequence", costs.sequence, "sequence")
    B = scene.asked("B", "sequences in the step", float(iteration.sequences))
    formula, parts = "passes*step + B*each", [passes, step, B, each]
    if iteration.gpus > 1:
        ranks = scene.engine("ranks", "more of it with several accelerators", costs.ranks, "ranks")
        more = scene.engine(
            "more", "more for a sequence with several accelerators", costs.sequence_ranks, "sequence_ranks"
        )
        formula, parts = "passes*(step + ranks) + B*(each + more)", [*parts, ranks, more]
    return branch(name, "host work that the accelerator waits for", value, "s", (formula, parts))
