"""Hardware: one accelerator with its board's power, and a system of them with its links. All in SI."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rooflinekit.model.graph.symbol import about, formula, quantity
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.errors import DtypeError, WorkloadError
from rooflinekit.model.types.frozen import dataclass, field, replace
from rooflinekit.model.types.kernel import Kernel
from rooflinekit.model.types.numeric import Numeric, is_zero, maximum
from rooflinekit.model.types.units import percent


@dataclass(frozen=True, slots=True)
class HostPower:
    """Draw of a machine beside its boards, over what they draw; and its power supplies' output over their input.

    cpu: CPUs; rest: memory, network cards, switches, drives and fans.
    """

    cpu: float = 0.0
    rest: float = 0.0
    supply: float = 1.0
    source: str = ""


@dataclass(frozen=True, slots=True)
class PowerLaw:
    """Power and energies of one accelerator's board, its memory included; watts and joules.

    flop: J/FLOP of matrix arithmetic by number format, of products and attention alike. padding: energy of a multiply
    that only fills a tile, over one that counts. limit: what the board may draw; held: the share of it that dense work
    draws in the end. widths: 90 % interval of a kernel's power, a factor either way, by its time between `edges` [s];
    run_width: of a whole run's.
    """

    idle: float = field(metadata=about("P_idle", "board power between kernels", "W"))
    active: float = field(metadata=about("P_run", "board power while a kernel runs, besides its work", "W"))
    limit: float = field(metadata=about("P_max", "power limit of the board", "W"))
    held: float = field(metadata=about("held", "share of the limit that dense work draws"))
    flop: Mapping[Dtype, float]
    padding: float = field(metadata=about("z", "energy of a multiply that fills a tile, over one that counts"))
    memory: float = field(metadata=about("e_m", "energy of a byte from memory", "J/B"))
    cache: float = field(metadata=about("e_c", "energy of a byte from the last cache", "J/B"))
    link: float = field(metadata=about("e_n", "energy of a byte sent over a link", "J/B"))
    edges: tuple[float, ...]
    widths: tuple[float, ...]
    run_width: float
    source: str
    measured: bool  #: fitted to this accelerator's own kernels
    host: HostPower = HostPower()  #: of the machine around it
    waiting: float = field(default=0.0, metadata=about("P_wait", "board power between steps of a busy server", "W"))
    ask: Mapping[Dtype, float] = field(default_factory=dict)
    """J/FLOP that arithmetic asks for at the clock of a burst, by number format; nothing where nobody measured it."""
    settled: float = field(default=math.inf, metadata=about("t_h", "time of a kernel whose burst is half slowed", "s"))

    def scaled(self, running: float, work: float, source: str) -> PowerLaw:
        """The law with so many times the running power above idle, and so many times the energy of work."""
        active = min(self.idle + (self.active - self.idle) * running, self.held * self.limit)
        return replace(
            self,
            active=active,
            memory=self.memory * work,
            cache=self.cache * work,
            flop={dtype: each * work for dtype, each in self.flop.items()},
            source=source,
            measured=True,
        )

    def at(self, clock: float) -> PowerLaw:
        """At a share of the clock, with the voltage that it needs: what the cores take falls with its square."""
        square = clock * clock
        return replace(
            self,
            active=self.idle + (self.active - self.idle) * square,
            cache=self.cache * square,
            waiting=self.idle + (self.waiting - self.idle) * square,
            flop={dtype: each * square for dtype, each in self.flop.items()},
            ask={dtype: each * square for dtype, each in self.ask.items()},
        )

    def under(self, cap: float, clock: float) -> PowerLaw:
        """Under a lower limit, whose clock the times hold: what arithmetic asks for is that of the full clock."""
        return replace(self, limit=cap, ask={dtype: each / clock for dtype, each in self.ask.items()})


@dataclass(frozen=True, slots=True)
class Provenance:
    """Origin of a number.

    `confidence`: A two independent sources, or one vendor document that was read, or reproduced by cores x rate x
    clock; B one secondary source, or vendor sources that disagree; C derived.
    """

    quantity: str
    value: float
    unit: str
    source: str
    confidence: str = ""


@dataclass(frozen=True, slots=True)
class CitedSource:
    """A document that numbers come from; `read` is false if it is named but was not opened."""

    id: str
    title: str
    url: str
    read: bool


@dataclass(frozen=True, slots=True)
class Price:
    """A dated quote for one accelerator hour [USD/h]."""

    usd_per_hour: float
    date: str
    source: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Accelerator:
    """One device: dense peak rates by format, memory, links. Any number may be an array for a sensitivity study."""

    name: str
    title: str
    vendor: str
    architecture: str
    peaks: Mapping[Dtype, float]  #: dense peak rate [FLOP/s]
    memory_bytes: Numeric = field(metadata=about("capacity", "memory that the driver shows, not the marketed one", "B"))
    memory_bandwidth: Numeric = field(metadata=about("W", "memory bandwidth of the datasheet", "B/s"))
    l2_bytes: float = field(metadata=about("L2", "last cache: activations up to its size may stay on the chip", "B"))
    cores: int = field(metadata=about("SM", "cores"))  #: SMs, CUs, tensor cores
    link_bandwidth: Numeric  #: to all peers of the scale-up domain together, one direction [B/s]
    domain_size: int  #: accelerators that the scale-up links join
    nic_bandwidth: Numeric = 0.0  #: scale-out network, one direction [B/s]; 0 if none is known
    pcie_bandwidth: Numeric = 0.0  #: to the host, one direction [B/s]
    clock_hz: float = 0.0  #: maximum core clock [Hz]
    tdp_w: float = 0.0
    power: PowerLaw | None = field(default=None, repr=False)  #: what the board draws; None without a rated power
    link_kind: str = ""
    release_year: int = 0
    compute_capability: str = ""
    memory_type: str = ""  #: HBM3e, GDDR7, LPDDR5X …
    price: Price | None = None
    tile_rows: int = quantity("r", "rows that a matrix instruction takes: 64 on tensor cores, 1 on a CPU", default=64)
    reserved_bytes: Numeric = quantity("kept", "memory that the driver keeps from programs", "B", default=0.0)
    is_cpu: bool = False  #: runs its kernels itself, in place of being told to
    noun: str = "GPU"  #: word for it in sentences: CPU, GPU, or accelerator
    aliases: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    provenance: tuple[Provenance, ...] = field(default=(), repr=False)
    sources: tuple[CitedSource, ...] = field(default=(), repr=False)
    origin: str = ""

    def peak(self, dtype: Dtype) -> float:
        """Dense peak rate for arithmetic in `dtype` [FLOP/s]."""
        try:
            return self.peaks[dtype.unit]
        except KeyError:
            known = ", ".join(kind.value for kind in self.peaks)
            raise DtypeError(f"{self.name} has no {dtype.value} arithmetic; it has: {known}") from None

    @property
    def visible_bytes(self) -> Numeric:
        """Memory that programs see: the capacity less what the driver keeps [B]."""
        return self.memory_bytes - self.reserved_bytes

    def supports(self, dtype: Dtype) -> bool:
        """True if it computes in `dtype` natively."""
        return dtype.unit in self.peaks

    @property
    def unpacks_first(self) -> bool:
        """True if weights of 4 bits are unpacked before its tensor cores, which wait for them.

        Some compute with them; those of compute capability 8 take operands from registers (mma.sync), while Hopper's
        wgmma reads its operands from shared memory.
        """
        return not self.supports(Dtype.NVFP4) and not self.compute_capability.startswith("8.")

    def ridge(self, dtype: Dtype) -> Numeric:
        """Intensity at which the compute roof meets the memory roof [FLOP/B] (Williams et al. 2009)."""
        return self.peak(dtype) / self.memory_bandwidth


@dataclass(frozen=True)
class Host:
    """The machine around an accelerator, where an engine keeps weights in its memory and computes with them.

    bandwidth: two channels of DDR5-5600. share and rate: what llama.cpp reached with a 7B model in Q4_0 on 24 cores and
    two channels of DDR5-6400 (18.3 tokens/s decoding; 55 tokens/s of a prompt). pcie_share: an assumption. rows: tokens
    of a step from which llama.cpp carries the weights to the accelerator and computes there. width: 90 % interval of
    what the host does, a factor either way: an assumption.
    """

    bandwidth: Numeric = quantity("W_host", "bandwidth of the host's memory", "B/s", default=89.6e9)
    share: float = quantity("e_host", "share of it that weights are read at", default=0.68)
    rate: float = quantity("P_host", "arithmetic of the host", "FLOP/s", default=0.77e12)
    pcie_share: float = quantity("e_pcie", "share of PCI Express that weights are carried at", default=0.8)
    rows: float = quantity("m_carry", "tokens from which weights are carried to the accelerator", default=32.0)
    budget: float = 512.0  #: tokens of a step: the weights are carried once for each
    width: float = 1.5
    given: bool = False  #: whether the user said the bandwidth

    @property
    def provenance(self) -> tuple[Provenance, ...]:
        """Origin of each number."""
        assumed = "option host_bandwidth" if self.given else "assumption: two channels of DDR5-5600; --host-bandwidth"
        return (
            Provenance("host.bandwidth", float(self.bandwidth), "B/s", assumed, "" if self.given else "C"),
            Provenance("host.share", self.share, "", _CPU_RUN, "C"),
            Provenance("host.rate", self.rate, "FLOP/s", _CPU_RUN, "C"),
            Provenance("host.pcie_share", self.pcie_share, "", "assumption: pinned copies of whole matrices", "C"),
            Provenance("host.rows", self.rows, "", "llama.cpp, ggml-cuda.cu: GGML_OP_OFFLOAD_MIN_BATCH", "B"),
        )


_CPU_RUN = "github.com/ggml-org/llama.cpp/issues/34: 7B Q4_0 on an i9-13900K with DDR5-6400"


@dataclass(frozen=True)
class System:
    """Accelerators and the links between them: scale-up domains joined by a scale-out network."""

    accelerator: Accelerator
    domain_size: int
    max_gpus: int  #: more than this cannot be joined, or nothing is known about how
    name: str = ""  #: of its file; "" for the usual system of an accelerator
    link_bandwidth: Numeric = quantity("link", "links to all peers of the domain, one direction", "B/s", default=0.0)
    nic_bandwidth: Numeric = quantity("NIC", "network card, one direction; 0 if there is no way", "B/s", default=0.0)
    in_switch: bool = False  #: the switch of the domain adds up what passes it (NVLink SHARP)
    host: Host = Host()
    boxes: tuple[str, ...] = ()  #: names of systems that join several domains of this accelerator, for who needs one
    provenance: tuple[Provenance, ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, accelerator: Accelerator) -> System:
        """The usual system of this accelerator: its scale-up domain, joined by NICs where it has them."""
        domain = accelerator.domain_size
        network = bool(accelerator.nic_bandwidth)
        return cls(
            accelerator,
            domain,
            1024 * domain if network else domain,
            link_bandwidth=accelerator.link_bandwidth,
            nic_bandwidth=accelerator.nic_bandwidth,
        )

    @property
    def title(self) -> str:
        """Title in messages."""
        return self.name or f"{self.accelerator.name} system"

    @property
    def over_pcie(self) -> bool:
        """True if PCI Express is all that joins the accelerators of a domain."""
        return 0.0 < float(self.link_bandwidth) <= float(self.accelerator.pcie_bandwidth)

    @property
    def spans(self) -> bool:
        """True if tp may reach over the network cards: between named nodes, and machines of one accelerator."""
        return bool(self.nic_bandwidth) and (bool(self.name) or self.domain_size == 1)

    def transfer_time(self, kernel: Kernel) -> Numeric:
        """Time to send a collective's bytes at datasheet rates [s]: the slower of scale-up links and NICs.

        Both tiers work at once, on different pieces of the data (a hierarchical collective in a pipeline).
        """
        beyond = kernel.nic_bytes
        links = sent_time(kernel.network_bytes - beyond, self.link_bandwidth) if self.domain_size > 1 else 0.0
        if is_zero(beyond):
            return links
        return maximum(links, sent_time(beyond, self.nic_bandwidth))


@formula("wire", "transfer at the datasheet rate", "s")
def sent_time(sent: Numeric, bandwidth: Numeric) -> Numeric:
    """net/N [s].

    >>> sent_time(458752.0, 450e9) * 1e6
    1.02
    """
    return sent / bandwidth


_LEAST = 0.4
"""Share of the rated power below which the cube law is not followed: idle and memory power no longer scale."""

_SOURCE = (
    "assumption: dynamic power grows with the cube of the clock (P = C·V²·f with V in proportion to f). "
    "arXiv:2604.11391 measured it under caps of 200 to 700 W"
)


def clock_share(cap_w: float, tdp_w: float) -> float:
    """Core clock under a power cap, over the clock that dense work sustains at the rated power: (cap/TDP)^(1/3).

    What an accelerator sustains at its rated power is itself below the datasheet's clock; that part is in the
    calibrated share of the peak (`calibration.gemm.compute` in the provenance of an answer), as far as bursts show it.

    >>> round(clock_share(350.0, 700.0), 3)
    0.794
    """
    return float((cap_w / tdp_w) ** (1.0 / 3.0))


def dense_clock(accelerator: Accelerator) -> float:
    """The core clock that dense work sustains, up to a constant of the process: (limit / peak)^(1/3) [(J/FLOP)^(1/3)].

    Of two chips of one process, the one with more watts for a FLOP runs at a higher clock when its power limit binds:
    P = C·V²·f with V in proportion to f, and C in proportion to the peak. 1 where the power limit is not known.

    >>> from rooflinekit.specs import load_accelerator
    >>> h20, h100 = (dense_clock(load_accelerator(name).value) for name in ("h20", "h100-sxm"))
    >>> round(h20 / h100, 2)  # (400 W / 148 TFLOP/s) / (700 W / 989 TFLOP/s) = 3.82
    1.56
    """
    peaks = [accelerator.peak(dtype) for dtype in (Dtype.BF16, Dtype.FP16) if accelerator.supports(dtype)]
    return (accelerator.tdp_w / max(peaks)) ** (1.0 / 3.0) if peaks and accelerator.tdp_w else 1.0


def capped(accelerator: Accelerator, cap_w: float) -> tuple[Accelerator, str]:
    """The accelerator under a power cap, and a sentence that says what it does: peaks fall, memory and links do not."""
    tdp = accelerator.tdp_w
    if not tdp:
        raise WorkloadError(f"power_cap {cap_w:g} W: {accelerator.name} has no rated power (power.tdp) to compare with")
    if not _LEAST * tdp <= cap_w <= tdp:
        raise WorkloadError(
            f"power_cap {cap_w:g} W is outside {_LEAST * tdp:.0f} to {tdp:.0f} W, where the clock of "
            f"{accelerator.name} is known to follow"
        )
    share = clock_share(cap_w, tdp)
    note = (
        f"arithmetic at {percent(share)} of the clock under a cap of {cap_w:g} of {tdp:g} W; memory and links unchanged"
    )
    law = accelerator.power and accelerator.power.under(cap_w, share)
    return _slowed(accelerator, share, "power cap: clock over the clock at rated power", law), note


def _slowed(accelerator: Accelerator, share: float, what: str, law: PowerLaw | None) -> Accelerator:
    """Slow the arithmetic to a share of the clock, under another law of the board's power."""
    peaks = {dtype: peak * share for dtype, peak in accelerator.peaks.items()}
    fact = Provenance(what, share, "share", _SOURCE, "C")
    return replace(accelerator, peaks=peaks, power=law, provenance=(*accelerator.provenance, fact))


def clocked(accelerator: Accelerator, clock_hz: float) -> tuple[Accelerator, str]:
    """The accelerator at a locked core clock, and a sentence that says what it does.

    Arithmetic slows with the clock; memory and links do not. Voltage follows the clock, so that a FLOP, and what the
    chip draws besides its work, take the square of its share (E = C·V²); a byte of memory takes as much as before.
    Without a law of the busy board, work that its limit slows already is slowed twice: an upper limit of its time.
    """
    most, low = accelerator.clock_hz, _LEAST * accelerator.clock_hz
    if not most:
        raise WorkloadError(f"clock: {accelerator.name} has no largest clock (cores.max_clock) to compare with")
    if not low <= clock_hz <= most:
        raise WorkloadError(
            f"clock {clock_hz / 1e6:g} MHz is outside {low / 1e6:.0f} to {most / 1e6:.0f} MHz of {accelerator.name}"
        )
    share = clock_hz / most
    note = f"clock {clock_hz / 1e6:g} of {most / 1e6:g} MHz: arithmetic at {percent(share)}, memory and links unchanged"
    law = accelerator.power and accelerator.power.at(share)
    return _slowed(accelerator, share, "clock: over the largest clock", law), note
