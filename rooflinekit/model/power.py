"""Energy of kernels and steps: a board draws idle power, more while a kernel runs, and so much for every FLOP and byte.

    P = min(held·P_max, P_run + (e_f·F + e_m·bytes + e_c·bytes from the last cache + e_n·sent)/t)

Energies of operations add up (Horowitz, ISSCC 2014; Choi et al., IPDPS 2013: an energy roofline). Where they ask for
more than the limit, the board lowers its clock and voltage until it fits. Calibrated times come from bursts:
`sustained` makes them those of a busy board (reports/sustained.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import add, attrgetter

from rooflinekit.model.graph.symbol import Symbol, formula, named, quantity
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.frozen import dataclass, fields, replace
from rooflinekit.model.types.hardware import Accelerator, HostPower, PowerLaw
from rooflinekit.model.types.kernel import MATRIX_ROWS, ExpertsShape, Kernel
from rooflinekit.model.types.numeric import Numeric, maximum, minimum
from rooflinekit.model.types.time import KernelTime

_NOTHING = 1e-30
_ATTENTION = ("attention_prefill", "attention_decode", "mla_prefill", "mla_decode", "sparse_attention")
_PRODUCTS = ("gemm", "moe", *_ATTENTION)


@formula("E_F", "energy of the arithmetic", "J")
def arithmetic_energy(flops: Numeric, each: Numeric, padding: Numeric, filled: Numeric) -> Numeric:
    """e_f·F·(1 + z·(tile − 1)), tile the rows that a tile computes over those that count [J].

    >>> arithmetic_energy(2.0 * 4096**3, 1e-12, 0.4, 1.0)
    0.137
    """
    return each * flops * (1.0 + padding * (filled - 1.0))


@formula("E_B", "energy of moved bytes", "J")
def traffic_energy(moved: Numeric, each: Numeric) -> Numeric:
    """e_m·bytes [J].

    >>> traffic_energy(1e9, 50e-12)
    0.05
    """
    return moved * each


@formula("E_run", "energy of a board on which kernels run, besides their work", "J")
def running_energy(active: Numeric, idle: Numeric, time: Numeric, starting: Numeric) -> Numeric:
    """P_run·(t − t0) + P_idle·t0: leakage, clocks and schedulers; while launches start, few cores work [J].

    >>> running_energy(300.0, 100.0, 0.01, 0.001)
    2.8
    """
    return active * (time - starting) + idle * starting


@formula("E", "energy of all launches, at most the board's limit for as long", "J")
def limited_energy(asked: Numeric, held: Numeric, limit: Numeric, time: Numeric) -> Numeric:
    """min(E_run + E_F + E_B, held·P_max·t) [J].

    >>> limited_energy(10.0, 0.98, 700.0, 0.01)
    6.86
    """
    return minimum(asked, held * limit * time)


@formula("P_plug", "power of boards with their share of the machine, at the plug", "W")
def plug_power(boards: Numeric, host: HostPower) -> Numeric:
    """P·(1 + cpu + rest)/supply [W]; joules alike. Latif et al. (arXiv:2412.08602) saw 8.4 kW of a machine of 8 H100.

    >>> plug_power(8 * 700.0, HostPower(cpu=0.125, rest=0.3, supply=0.95))
    8400.0
    """
    return boards * ((1.0 + host.cpu + host.rest) / host.supply)


@dataclass(frozen=True)
class Energy:
    """Joules by what they are spent on; of one board unless told otherwise.

    running: the board while kernels run, besides their work; idle: while none does.
    """

    weights: Numeric = quantity("weights", "weights read", "J", default=0.0)
    cache: Numeric = quantity("cache", "keys and values read and written", "J", default=0.0)
    activations: Numeric = quantity("activations", "activations", "J", default=0.0)
    arithmetic: Numeric = quantity("arithmetic", "multiply-adds", "J", default=0.0)
    links: Numeric = quantity("links", "bytes sent to other boards", "J", default=0.0)
    running: Numeric = quantity("running", "the board, besides its work", "J", default=0.0)
    idle: Numeric = quantity("idle", "the board while no kernel runs", "J", default=0.0)

    @property
    def total(self) -> Numeric:
        """The sum of the parts [J]."""
        return sum(_parts(self), 0.0)

    @property
    def work(self) -> Numeric:
        """All but what the board takes besides [J]."""
        return sum(_parts(self)[:_BESIDES], 0.0)

    def __add__(self, other: Energy) -> Energy:
        return Energy(*map(add, _parts(self), _parts(other)))

    @classmethod
    def sum(cls, weighted: Iterable[tuple[Numeric, Energy]]) -> Energy:
        """Sum of energies, each so many times."""
        columns = zip(*([part * count for part in _parts(each)] for count, each in weighted), strict=True)
        return cls(*[sum(column, 0.0) for column in columns])

    def times(self, factor: Numeric) -> Energy:
        """Multiply the energy."""
        return Energy(*[part * factor for part in _parts(self)])

    def labelled(self, symbol: str, what: str) -> Energy:
        """Label each part while it is traced, as a line of explanations; without a symbol under its own name."""
        if Symbol not in map(type, _parts(self)):
            return self
        meanings = [f"{entry.metadata['quantity'].meaning}{what}" for entry in fields(self)]
        parts = zip(PARTS, _parts(self), meanings, strict=True)
        return Energy(*(named(energy, symbol or part, meaning, "J") for part, energy, meaning in parts))


PARTS = tuple(entry.name for entry in fields(Energy))
_parts = attrgetter(*PARTS)
_BESIDES = PARTS.index("running")


def kernel_energy(timed: KernelTime, accelerator: Accelerator, law: PowerLaw, warm: bool = False) -> Energy:
    """Energy of all launches of one kernel in the time that it takes [J].

    Weights and keys come from memory; activations from the last cache up to its size. `warm`: what fits into the last
    cache comes from there, as in a benchmark loop. No kernel runs in what an engine adds to a step.
    """
    known = vars(timed).get("_energy")  # a kernel and a step both ask
    if known is None or known[0] is not accelerator or known[1] is not law or known[2] is not warm:
        known = accelerator, law, warm, _kernel_energy(timed, accelerator, law, warm)
        vars(timed)["_energy"] = known
    energy: Energy = known[3]
    return energy


def _kernel_energy(timed: KernelTime, accelerator: Accelerator, law: PowerLaw, warm: bool) -> Energy:
    kernel, time = timed.kernel, timed.expected
    if kernel.family == "host" or kernel.on_host:
        return idle_energy(law, time)
    asked = _asked(timed, accelerator, law, _each(law.flop, kernel), warm)
    total = asked.total
    kept = limited_energy(total, law.held, law.limit, time) / maximum(total, _NOTHING)
    if kept.__class__ is float and kept == 1.0:
        return asked
    return asked.times(named(kept, "kept", "share of it that the board's limit leaves")).labelled(kernel.name, "")


def _each(known: Mapping[Dtype, float], kernel: Kernel) -> float:
    """J/FLOP of a kernel's number format, or of the wide one that stands in, as it does for all of attention."""
    own = Dtype.BF16 if kernel.family in _ATTENTION else kernel.dtype.unit
    for unit in (own, Dtype.BF16, Dtype.FP16):
        if unit in known:
            return known[unit]
    return next(iter(known.values()))


def _asked(timed: KernelTime, accelerator: Accelerator, law: PowerLaw, each: float, warm: bool = False) -> Energy:
    """Energy of all launches of a kernel in their time, without a limit; `each` is J/FLOP."""
    kernel, n = timed.kernel, timed.kernel.count
    stays = minimum(kernel.activation_bytes, accelerator.l2_bytes)
    near: Numeric = law.cache
    far: Numeric = law.memory
    if warm:
        squared = (kernel.bytes / accelerator.l2_bytes) ** 2.0
        near = far = law.memory + (law.cache - law.memory) / (1.0 + squared * squared)
    return Energy(
        weights=n * traffic_energy(kernel.weight_bytes, far),
        cache=n * traffic_energy(kernel.cache_bytes, far),
        activations=n * (traffic_energy(stays, near) + traffic_energy(kernel.activation_bytes - stays, far)),
        arithmetic=n * arithmetic_energy(kernel.flops, each, law.padding, _tile(kernel)),
        links=n * traffic_energy(kernel.network_bytes, law.link),
        running=running_energy(law.active, law.idle, timed.expected, minimum(timed.overhead, timed.expected)),
    )


@formula("slow", "time at the power limit over that of a burst", "", "reports/sustained.md")
def slowdown(asked: Numeric, limit: float, arithmetic: Numeric, launch: Numeric, settled: float) -> Numeric:
    """1 + a·(max(asked/P_max, 1)^(1/3) − 1)/(1 + t/t_h): the clock falls until the power fits, which is as its cube.

    Arithmetic slows with the clock, by its share a of what the work draws; memory does not. The burst that a time t was
    calibrated in holds the share t/(t + t_h) of that already.

    >>> slowdown(1200.0, 700.0, 0.95, 0.2e-3, 1.85e-3), slowdown(600.0, 700.0, 0.95, 0.2e-3, 1.85e-3)
    (1.169, 1.0)
    """
    clock = maximum(asked / limit, 1.0) ** (1.0 / 3.0)
    return 1.0 + arithmetic * (clock - 1.0) / (1.0 + launch / settled)


def sustained(timed: KernelTime, accelerator: Accelerator) -> KernelTime:
    """A kernel on a board that has been busy: longer where it asks for more than the rated power.

    The same where nobody measured what a FLOP asks for, and for kernels without products.
    """
    law, kernel = accelerator.power, timed.kernel
    if law is None or not law.ask or kernel.on_host or kernel.family not in _PRODUCTS:
        return timed
    each = _each(law.ask, kernel)
    burst = named(timed.expected, "burst", "time at the clock of a burst", "s")
    energy = _asked(timed if burst is timed.expected else replace(timed, expected=burst), accelerator, law, each)
    work = named(energy.work, "E_work", "energy of the work at the clock of a burst", "J")
    asked = named((work + energy.running) / maximum(burst, _NOTHING), *_ASKED)
    part = named(energy.arithmetic / maximum(work, _NOTHING), "a", "arithmetic's share of what the work draws")
    slower = slowdown(asked, accelerator.tdp_w, part, burst / kernel.count, law.settled)
    if slower.__class__ is float and slower == 1.0:
        return timed
    return timed.changed(lambda end: slower * end, compute=slower * timed.compute)


_ASKED = "asked", "power that the kernel would draw without a limit", "W"


def _tile(kernel: Kernel) -> Numeric:
    """Rows of a tile over those that count: experts with few tokens compute whole tiles; products stream weights."""
    shape = kernel.shape
    if isinstance(shape, ExpertsShape):
        return maximum(MATRIX_ROWS * shape.touched / maximum(shape.routed, 1.0), 1.0)
    return 1.0


def idle_energy(law: PowerLaw, seconds: Numeric, serving: bool = True) -> Energy:
    """Energy of a board that waits [J]; serving: between steps of a busy server, which keeps its clocks high."""
    return Energy(idle=(law.waiting if serving else law.idle) * maximum(seconds, 0.0))
