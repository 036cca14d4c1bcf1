"""Time of a kernel: the datasheet roofline that nothing can beat, and the calibrated time to expect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

from rooflinekit.model.graph.symbol import formula, named
from rooflinekit.model.timing.calibrated import Calibration
from rooflinekit.model.timing.forms import memory_time
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.frozen import dataclass, replace
from rooflinekit.model.types.hardware import Accelerator, System
from rooflinekit.model.types.kernel import ExpertsShape, GemmShape, Kernel
from rooflinekit.model.types.numeric import Numeric, ceil_div, maximum, where
from rooflinekit.model.types.time import KernelTime, Time


class Rates(NamedTuple):
    """Demand of the parts of a step's time on an accelerator."""

    memory_bandwidth: Numeric
    l2_bytes: Numeric
    peak: Callable[[Dtype], Numeric]


@formula("s", "bytes that must cross the memory", "B")
def least_traffic(weights: Numeric, read: Numeric, written: Numeric, activations: Numeric, cache: Numeric) -> Numeric:
    """Traffic w + kr + kw + max(a − L2, 0): activations up to the last cache can stay on the chip between kernels [B].

    >>> least_traffic(33.6e6, 0.0, 0.0, 524288.0, 50e6) / 1e6
    33.6
    """
    return weights + read + written + maximum(activations - cache, 0.0)


def slowest(compute: Numeric, memory: Numeric, network: Numeric) -> Numeric:
    """max(FLOP/P, bytes/W, sent/N): the resource that takes longest at datasheet rates (Williams et al. 2009) [s].

    >>> slowest(138.9e-6, 10.0e-6, 0.0) * 1e6  # 4096 x 4096 x 4096 on H100
    138.9
    """
    return maximum(maximum(compute, memory), network)


def roofline_bound(kernel: Kernel, system: System) -> tuple[Numeric, Numeric, Numeric]:
    """Compute, memory and network time at datasheet rates [s]; the bound of the kernel is the largest.

    compute = FLOP / peak; memory = HBM bytes / bandwidth; network = sent bytes / link bandwidth (Williams et al. 2009,
    doi:10.1145/1498765.1498785). Weights and cache cross the memory once. Activations count only beyond the last-level
    cache: smaller ones can stay on the chip between kernels, and a bound must not charge for what may be free.
    Arithmetic is in the formats of the deployment, so a bound holds for that choice.
    """
    gpu = system.accelerator
    if kernel.on_host:
        return 0.0, host_bound(kernel, system) / kernel.count, 0.0
    streamed = least_traffic(
        kernel.weight_bytes, kernel.kv_read_bytes, kernel.kv_write_bytes, kernel.activation_bytes, gpu.l2_bytes
    )
    network: Numeric = 0.0 if kernel.gpus == 1 else system.transfer_time(kernel)
    return kernel.flops / gpu.peak(kernel.dtype), streamed / gpu.memory_bandwidth, network


def peak_time(kernel: Kernel, accelerator: Accelerator | Rates) -> Numeric:
    """Time of the arithmetic of all launches at the peak, n·F/P [s]; its share of the time is the MFU."""
    return 0.0 if kernel.on_host else kernel.count * kernel.flops / accelerator.peak(kernel.dtype)


def stream_time(kernel: Kernel, accelerator: Accelerator) -> Numeric:
    """Time of weights and cache of all launches at the bandwidth, n·(w + kr + kw)/W [s]; its share is the MBU."""
    if kernel.on_host:
        return 0.0
    return kernel.count * (kernel.weight_bytes + kernel.cache_bytes) / accelerator.memory_bandwidth


def time_kernel(kernel: Kernel, system: System, calibration: Calibration | None, warm: bool = False) -> KernelTime:
    """Time of all launches of one kernel; without a calibration, the bound itself.

    With one: the family's time form times its correction, and never below the bound; `warm` when the data were used
    just before, as in the benchmark loops that calibrations come from, where a cache can beat the bound.
    """
    if kernel.on_host:
        return _time_on_host(kernel, system, calibration)
    compute, memory, network = roofline_bound(kernel, system)
    n = kernel.count
    bound = n * slowest(compute, memory, network)
    if calibration is None:
        return KernelTime(bound, bound, bound, bound, kernel, n * compute, n * memory, n * network, 0.0)
    bound = named(bound, "bound", "datasheet roofline of all launches: nothing can be faster", "s")
    fit = calibration.fit(kernel)
    parts = fit.time(kernel, system, warm)
    least = 0.0 * bound if warm else bound
    time = maximum(n * parts.total, least)
    low = high = time
    if calibration.intervals:
        upper, lower = calibration.factors(kernel, fit)
        low, high = maximum(time / lower, least), time * upper
    return KernelTime(
        time, bound, low, high, kernel, n * parts.compute, n * parts.memory, n * parts.network, n * parts.launch
    )


@formula("at_host", "work that the host does from its own memory", "s")
def host_time(moved: Numeric, flops: Numeric, share: Numeric, bandwidth: Numeric, rate: Numeric) -> Numeric:
    """max(bytes/(e_host·W_host), F/P_host) [s].

    >>> host_time(4.7e9, 16e9, 0.68, 89.6e9, 0.77e12) * 1e3  # Llama-3-8B in Q4_K_M, one token
    77.1
    """
    return maximum(memory_time(moved, share, bandwidth), flops / rate)


def host_bound(kernel: Kernel, system: System) -> Numeric:
    """Least time of all launches whose weights lie on the host: read there, or carried over PCI Express [s]."""
    near = kernel.count * kernel.bytes / system.host.bandwidth
    rows = _carried_rows(kernel)
    if rows is None:
        return near
    far = kernel.count * kernel.weight_bytes / system.accelerator.pcie_bandwidth
    return where(rows < system.host.rows, near, far)


def _carried_rows(kernel: Kernel) -> Numeric | None:
    """Tokens that a matrix on the host meets; None for anything but matrices, which stays there."""
    match kernel.shape:
        case GemmShape(m=rows) | ExpertsShape(tokens=rows) if kernel.family in ("gemm", "moe"):
            return rows
        case _:
            return None


def _time_on_host(kernel: Kernel, system: System, calibration: Calibration | None) -> KernelTime:
    """Few tokens are multiplied by the host; for many the weights cross PCI Express, and the accelerator multiplies."""
    host, n, rows, bound = system.host, kernel.count, _carried_rows(kernel), host_bound(kernel, system)
    if calibration is None:
        return KernelTime(bound, bound, bound, bound, kernel, 0.0, bound, 0.0, 0.0)
    time = n * host_time(kernel.bytes, kernel.flops, host.share, host.bandwidth, host.rate)
    if rows is not None:
        here = time_kernel(replace(kernel, on_host=False), system, calibration).expected
        passes = ceil_div(rows, host.budget)
        carried = passes * memory_time(n * kernel.weight_bytes, host.pcie_share, system.accelerator.pcie_bandwidth)
        time = where(rows < host.rows, time, carried + here)
    ends = maximum(time / host.width, bound), time * host.width
    return KernelTime(time, bound, *ends, kernel, n * kernel.flops / host.rate, time, 0.0, 0.0)


@dataclass(frozen=True)
class StepTime:
    """All kernels of a step with their times, one after the other.

    factor: the interval of the whole step reaches at least this factor either way (but never below the bound).
    """

    kernels: tuple[KernelTime, ...]
    factor: float = 1.0

    @cached_property
    def sums(self) -> Time:
        """Sums over the kernels: of a part of a step, whose interval is widened with the whole."""
        return Time.sum(self.kernels)

    @cached_property
    def total(self) -> Time:
        """Time of the step."""
        return self.sums.widened(self.factor)

    @cached_property
    def expected(self) -> Numeric:
        """Expected time [s]."""
        return sum((kernel.expected for kernel in self.kernels), 0.0)

    @cached_property
    def bound(self) -> Numeric:
        """Datasheet bound [s]."""
        return sum((kernel.bound for kernel in self.kernels), 0.0)

    @property
    def low(self) -> Numeric:
        """Lower end of the 90 % interval [s]."""
        return self.total.low

    @property
    def high(self) -> Numeric:
        """Upper end of the 90 % interval [s]."""
        return self.total.high


def time_step(kernels: Sequence[Kernel], system: System, calibration: Calibration | None) -> StepTime:
    """Time every kernel of a step, one after the other."""
    return StepTime(tuple(time_kernel(kernel, system, calibration) for kernel in kernels))


TIME_PARTS = ("weights", "kv_cache", "activations", "compute", "network", "above_bound", "host")
_SAME = 1.0 + 1e-9  # of two times that differ by rounding alone


def time_parts(step: StepTime, accelerator: Accelerator | Rates) -> dict[str, Numeric]:
    """Parts of a step's time [s]: its datasheet bound by what binds, then what comes on top of it.

    A kernel's bound is its arithmetic at the peak, its bytes at the bandwidth or what it sends over links, whichever
    takes longest. Bytes are weights, cache, and activations that do not fit the last-level cache. `above_bound` is what
    kernels take beyond their bounds, `host` what the engine adds between them.
    """
    parts: dict[str, Numeric] = dict.fromkeys(TIME_PARTS, 0.0)
    for timed in step.kernels:
        kernel, bound = timed.kernel, timed.bound
        if kernel.on_host:
            parts["weights"] += bound
            parts["above_bound"] += timed.expected - bound
            continue
        computed = bound <= peak_time(kernel, accelerator) * _SAME
        moved = where(computed, 0.0, bound)
        parts["compute"] += where(computed, bound, 0.0)
        if kernel.gpus > 1:
            parts["network"] += moved
        else:
            spilled = maximum(kernel.activation_bytes - accelerator.l2_bytes, 0.0)
            sizes = {"weights": kernel.weight_bytes, "kv_cache": kernel.cache_bytes, "activations": spilled}
            for part, size in sizes.items():
                spent = where(computed, 0.0, kernel.count * size / accelerator.memory_bandwidth)
                parts[part] += named(spent, kernel.name, f"{part.replace('_', ' ')} of {kernel.name}", "s")
        parts["host" if kernel.family == "host" else "above_bound"] += timed.expected - bound
    return parts
