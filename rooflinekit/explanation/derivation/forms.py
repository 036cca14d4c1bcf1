"""Time of one launch: the form of its family with the fitted parameters, part by part (docs/method.md, section 3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from rooflinekit.explanation.derivation.node import Node, branch, given
from rooflinekit.explanation.derivation.scene import Scene
from rooflinekit.model.timing import (
    CollectiveTime,
    DecodeTime,
    ExpertsTime,
    GemmTime,
    LatentDecodeTime,
    LatentPrefillTime,
    PlainTime,
    PrefillTime,
)
from rooflinekit.model.timing.calibrated import FamilyFit
from rooflinekit.model.timing.forms import farthest, idle_tiles, key_padding
from rooflinekit.model.types.kernel import ExpertsShape, Kernel

__all__ = ["Form", "launch_time"]

_ASKED = ("m", "batch", "new", "keys")  # dimensions that depend on the step


@dataclass(frozen=True)
class Form:
    """One kernel under one fit: what the parts of its time are made of."""

    scene: Scene
    kernel: Kernel
    fit: FamilyFit
    work: dict[str, Node]  #: classes of work by symbol
    bytes: Node

    def fitted(self, symbol: str, name: str) -> Node:
        """A parameter of the form."""
        return self.scene.fitted(symbol, self.fit, name)

    def dim(self, symbol: str, name: str, title: str) -> Node:
        """A shape of the kernel, from the question or from the model."""
        value = float(getattr(self.kernel.shape, name))
        return self.scene.asked(symbol, title, value) if name in _ASKED else self.scene.model(symbol, title, value)

    def counted(self, symbol: str, of: str) -> Node:
        """A number that the work `of` a launch was counted from."""
        return next(node for node in self.work[of].walk() if node.symbol == symbol)

    def parameter(self, name: str) -> float:
        """Its value in SI."""
        return float(getattr(self.fit.form, name))

    @property
    def flops(self) -> Node:
        """Work of the launch; a zero where it only moves data."""
        return self.work.get("F") or given("F", "work of one launch", 0.0, "FLOP")

    def moved(self, symbol: str) -> Node:
        """A class of traffic; a zero where there is none."""
        return self.work.get(symbol) or given(symbol, "none", 0.0, "B")


Parts = dict[str, tuple[str, str, list[Node]]]
"""By symbol: meaning, formula, children."""


def launch_time(form: Form) -> Node:
    """Form time of one launch, without correction: launch floor, compute, memory, and what is not hidden."""
    duration = form.fit.time(form.kernel, form.scene.plan.system, corrected=False)
    formula, parts = _PARTS[type(form.fit.form)](form)
    values = {
        "launch": duration.launch,
        "compute": duration.compute,
        "memory": duration.memory,
        "network": duration.network,
    }
    children = []
    for symbol, (title, text, below) in parts.items():
        part = branch(symbol, title, 0.0, "s", (text, below))
        children.append(replace(part, value=float(values[symbol]) if symbol in values else part.recomputed()))
    if "pn(" in formula:
        children.append(form.fitted("p", "sharpness"))
    return branch("t", "one launch by the form of its family", float(duration.total), "s", (formula, children))


def _floor(text: str, below: list[Node]) -> tuple[str, str, list[Node]]:
    return "floor and latency of one launch", text, below


def _rate(form: Form) -> list[Node]:
    return [form.fitted("ec", "compute"), form.scene.peak(form.kernel.dtype)]


def _stream(form: Form) -> list[Node]:
    return [form.fitted("em", "memory"), form.scene.bandwidth]


def _gemm(form: Form) -> tuple[str, Parts]:
    gpu, dims = form.scene.plan.system.accelerator, asdict(form.kernel.shape)
    m, k = (form.dim(name, name, f"{name} of the matrix product") for name in "mk")
    rows, depth = given("r", "rows that a matrix instruction takes", gpu.tile_rows), form.fitted("k0", "tile")
    compute, extra = "F*ceil(m/r)*r/m*(1 + k0/k)/(ec*P)", [form.flops, m, rows, depth, k, *_rate(form)]
    if form.parameter("tail"):
        idle = given("idle", "tiles that the last wave leaves idle", float(idle_tiles(dims["m"], dims["n"], gpu.cores)))
        compute += " + idle*2*128*128*(k + k0)*tail/(ec*P)"
        extra += [idle, form.fitted("tail", "tail")]
    launch = [form.fitted("t0", "launch"), form.fitted("kl", "depth_root"), k, form.fitted("ks", "depth")]
    parts: Parts = {
        "launch": _floor("t0 + kl*sqrt(k/1024) + ks*k/1024", launch),
        "compute": ("multiply-adds, rows and depth padded", compute, extra),
        "memory": ("weights and activations", "bytes/(em*W)", [form.bytes, *_stream(form)]),
    }
    if form.kernel.dtype.is_wide:
        return "launch + pn(compute, memory, p)", parts
    width = given(
        "b_n", "bytes of a narrow element", form.kernel.dtype.bytes, "B", "docs/architecture.md, precision rules"
    )
    below = [m, k, width, form.fitted("eq", "quantise"), form.scene.bandwidth]
    parts["quantise"] = ("activations from 16 bit to the narrow format", "m*k*(2 + b_n)/(eq*W)", below)
    return "launch + pn(compute, memory, p) + quantise", parts


def _decode(form: Form) -> tuple[str, Parts]:
    B, K, H = (
        form.dim("B", "batch", "sequences"),
        form.dim("K", "kv_heads", "KV heads here"),
        form.dim("H", "heads", "query heads here"),
    )
    new = form.dim("S", "new", "new tokens of each")
    tiles = [B, K, H, new, form.fitted("tc", "tile"), form.scene.cores]
    launch = [form.fitted("t0", "launch"), form.fitted("kl", "split"), form.dim("T", "keys", "keys of each sequence")]
    return "launch + pn(compute, memory, p)", {
        "launch": _floor("t0 + kl*log2(1 + T/256)", launch),
        "compute": (
            "tiles of (sequence, KV head), and arithmetic",
            "B*K*ceil(H/K*S/64)*tc/SM + F/(ec*P)",
            [*tiles, form.flops, *_rate(form)],
        ),
        "memory": (
            "keys, values, queries and results",
            "(kr + a)/(em*W)",
            [form.moved("kr"), form.moved("a"), *_stream(form)],
        ),
    }


def _prefill_parts(form: Form, width: tuple[str, list[Node]], rate: tuple[str, list[Node]]) -> Parts:
    """Floor and compute of the two prefill forms; `width` is FLOP of a tile row and key, `rate` the realised one."""
    dims = asdict(form.kernel.shape)
    B, H, S = (
        form.dim("B", "batch", "sequences"),
        form.dim("H", "heads", "heads here"),
        form.dim("S", "new", "new tokens of each"),
    )
    T = form.dim("T", "keys", "keys of each sequence")
    pad = given(
        "pad",
        "tiles on the diagonal are computed whole: 1 + 64·S/pairs",
        float(key_padding(dims["new"], dims["pairs"])),
    )
    last = given("last", "keys that the last query sees", float(farthest(dims["new"], dims["pairs"], dims["keys"])))
    launch = [
        form.fitted("t0", "launch"),
        form.fitted("kl", "length"),
        T,
        B,
        H,
        S,
        form.fitted("tt", "tile"),
        form.scene.cores,
    ]
    compute = f"(F*pad + rho*last*{width[0]}*SM)/({rate[0]})"
    below = [form.flops, pad, form.fitted("rho", "longest"), last, *width[1], form.scene.cores, *rate[1]]
    return {
        "launch": _floor("t0 + kl*log2(1 + T/128) + B*H*ceil(S/128)*tt/SM", launch),
        "compute": ("scored pairs in whole tiles, and the longest tile row alone", compute, below),
    }


def _prefill(form: Form) -> tuple[str, Parts]:
    depth = form.dim("d", "head_dim", "width of a head")
    rate = "ec*P*d/(d + d0)", [*_rate(form), depth, form.fitted("d0", "head")]
    kr, again = form.moved("kr"), form.fitted("ew", "cache")
    parts = _prefill_parts(form, ("4*128*d", []), rate)
    parts["memory"] = (
        "queries, results, keys and values; and further traffic of the cache",
        "(a + kr)/(em*W) + kr*ew/W",
        [form.moved("a"), kr, again, *_stream(form)],
    )
    parts["besides"] = (
        "further traffic of the cache, which nothing hides",
        "kr*ew/W",
        [kr, again, form.scene.bandwidth],
    )
    return "launch + pn(compute, memory - besides, p) + besides", parts


def _latent_prefill(form: Form) -> tuple[str, Parts]:
    kr, again = form.moved("kr"), form.fitted("cv", "passes")
    parts = _prefill_parts(form, ("2*128*320", []), ("ec*P", _rate(form)))
    below = [form.moved("a"), kr, again, *_stream(form)]
    parts["memory"] = ("queries, results, up-projected keys and values; further passes", "a/(em*W) + kr*cv/W", below)
    parts["besides"] = ("further passes over the cache", "kr*cv/W", [kr, again, form.scene.bandwidth])
    return "launch + pn(compute, memory - besides, p) + besides", parts


def _latent_decode(form: Form) -> tuple[str, Parts]:
    B, H, S = (
        form.dim("B", "batch", "sequences"),
        form.dim("H", "heads", "heads here"),
        form.dim("S", "new", "new tokens of each"),
    )
    launch = [form.fitted("t0", "launch"), form.fitted("kl", "split"), form.dim("T", "keys", "keys of each sequence")]
    compute = "F*max(H*S, 16)/(H*S)/(ec*P) + B*ceil(H*S/64)*tc/SM"
    kr, again = form.moved("kr"), form.fitted("cv", "passes")
    return "launch + pn(compute, memory - besides, p) + besides", {
        "launch": _floor("t0 + kl*log2(1 + T/256)", launch),
        "compute": (
            "arithmetic in tiles of 16 rows, and tiles of 64 heads",
            compute,
            [form.flops, H, S, *_rate(form), B, form.fitted("tc", "tile"), form.scene.cores],
        ),
        "memory": (
            "latents, queries and results; further passes",
            "(kr + a)/(em*W) + kr*cv/W",
            [kr, form.moved("a"), again, *_stream(form)],
        ),
        "besides": ("further passes over the cache", "kr*cv/W", [kr, again, form.scene.bandwidth]),
    }


def _experts(form: Form) -> tuple[str, Parts]:
    A, act = form.counted("A", "F"), form.counted("act", "w")
    slots = given("slots", "pairs of all accelerators", float(form.kernel.shaped(ExpertsShape).slots))
    launch = [form.fitted("t0", "launch"), form.fitted("ta", "expert"), act, form.fitted("lt", "sort"), A]
    moved = "(w + a*(passes + foreign*(slots - A)/A))/(em*W)"
    below = [
        form.moved("w"),
        form.moved("a"),
        form.fitted("passes", "passes"),
        form.fitted("foreign", "foreign"),
        slots,
        A,
    ]
    return "launch + pn(compute, memory, p)", {
        "launch": _floor("t0 + ta*act + lt*log2(1 + A)", launch),
        "compute": (
            "work, each touched expert padded to a tile",
            "F*(1 + rows*act/A)/(ec*P)",
            [form.flops, form.fitted("rows", "rows"), act, A, *_rate(form)],
        ),
        "memory": ("weights of the touched experts, and passes over the tokens", moved, [*below, *_stream(form)]),
    }


def _collective(form: Form) -> tuple[str, Parts]:
    sent, wire = form.moved("net"), form.scene.plan.system.transfer_time(form.kernel)
    rounds = float(getattr(form.kernel.shape, "phases", 1.0))
    phases = given("phases", "times that it waits for all others", rounds, "", "docs/method.md, collectives")
    ranks = form.scene.asked("g", "accelerators that it joins", form.kernel.gpus)
    at = given("wire", "bytes over links or network card at datasheet rates", float(wire), "s", "System.transfer_time")
    return "launch + network", {
        "launch": _floor(
            "t0 + hop*(g - 1)*phases", [form.fitted("t0", "launch"), form.fitted("hop", "hop"), ranks, phases]
        ),
        "network": (
            "transfer, and the change of protocols",
            "wire/en + ramp*sqrt(net/1000000)",
            [at, form.fitted("en", "network"), form.fitted("ramp", "ramp"), sent],
        ),
    }


def _plain(form: Form) -> tuple[str, Parts]:
    rows = form.scene.asked("rows", "rows", float(getattr(form.kernel.shape, "rows", 0.0)))
    return "launch + max(compute, memory)", {
        "launch": _floor("t0 + tr*rows", [form.fitted("t0", "launch"), form.fitted("tr", "row"), rows]),
        "compute": ("arithmetic", "F/(ec*P)", [form.flops, *_rate(form)]),
        "memory": ("bytes moved", "bytes/(em*W)", [form.bytes, *_stream(form)]),
    }


_PARTS: dict[type, Callable[[Form], tuple[str, Parts]]] = {
    GemmTime: _gemm,
    DecodeTime: _decode,
    PrefillTime: _prefill,
    LatentDecodeTime: _latent_decode,
    LatentPrefillTime: _latent_prefill,
    ExpertsTime: _experts,
    CollectiveTime: _collective,
    PlainTime: _plain,
}
