"""Time of a kernel: the datasheet roofline that nothing can beat, and the calibrated time to expect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from rooflinekit.model.graph import named
from rooflinekit.model.timing.calibrated import Calibration
from rooflinekit.model.types.hardware import System
from rooflinekit.model.types.kernel import Kernel, KernelTime
from rooflinekit.model.types.numeric import Numeric, maximum, minimum

__all__ = ["StepTime", "roofline_bound", "time_kernel", "time_step"]


def roofline_bound(kernel: Kernel, system: System) -> tuple[Numeric, Numeric, Numeric]:
    """Compute, memory and network time at datasheet rates [s]; the bound of the kernel is the largest.

    compute = FLOP / peak; memory = HBM bytes / bandwidth; network = sent bytes / link bandwidth (Williams et al. 2009,
    doi:10.1145/1498765.1498785). Weights and cache cross the memory once. Activations count only beyond the last-level
    cache: smaller ones can stay on the chip between kernels, and a bound must not charge for what may be free.
    Arithmetic is in the formats of the deployment, so a bound holds for that choice.
    """
    accelerator = system.accelerator
    streamed = kernel.weight_bytes + kernel.kv_read_bytes + kernel.kv_write_bytes
    streamed = streamed + maximum(kernel.activation_bytes - accelerator.l2_bytes, 0.0)
    streamed = named(streamed, "s", "bytes that must cross the memory", "B")
    compute = kernel.flops / accelerator.peak(kernel.dtype)
    network: Numeric = 0.0 if kernel.gpus == 1 else system.transfer_time(kernel)
    return compute, streamed / accelerator.memory_bandwidth, network


def time_kernel(kernel: Kernel, system: System, calibration: Calibration | None, warm: bool = False) -> KernelTime:
    """Time of all launches of one kernel; without a calibration, the bound itself.

    With one: the family's time form times its correction, and never below the bound; `warm` when the data were used
    just before, as in the benchmark loops that calibrations come from, where a cache can beat the bound.
    """
    compute, memory, network = roofline_bound(kernel, system)
    n = kernel.count
    bound = n * maximum(maximum(compute, memory), network)
    if calibration is None:
        whole = KernelTime(kernel, bound, n * compute, n * memory, n * network, 0.0, bound, bound, bound)
        return whole.named()
    bound = named(bound, "bound", "datasheet roofline of all launches: nothing can be faster", "s")
    fit = calibration.fit(kernel)
    parts = fit.time(kernel, system, warm)
    least = 0.0 * bound if warm else bound
    time = maximum(n * parts.total, least)
    factor = calibration.factor(kernel, fit)
    low = maximum(time / factor, least)
    return KernelTime(
        kernel,
        bound,
        n * parts.compute,
        n * parts.memory,
        n * parts.network,
        n * parts.launch,
        time,
        low,
        time * factor,
    )


@dataclass(frozen=True)
class StepTime:
    """All kernels of a step with their times; sums are over kernels, intervals added as if errors went together.

    factor: the interval of the whole step reaches at least this factor either way (but never below the bound).
    """

    kernels: tuple[KernelTime, ...]
    factor: float = 1.0

    @cached_property
    def time(self) -> Numeric:
        """Expected time [s]."""
        return sum((kernel.time for kernel in self.kernels), 0.0)

    @cached_property
    def bound(self) -> Numeric:
        """Datasheet bound [s]."""
        return sum((kernel.bound for kernel in self.kernels), 0.0)

    @property
    def low(self) -> Numeric:
        """Lower end of the 90 % interval [s]."""
        low = sum((kernel.low for kernel in self.kernels), 0.0)
        return low if self.factor == 1.0 else maximum(minimum(low, self.time / self.factor), self.bound)

    @property
    def high(self) -> Numeric:
        """Upper end of the 90 % interval [s]."""
        high = sum((kernel.high for kernel in self.kernels), 0.0)
        return high if self.factor == 1.0 else maximum(high, self.time * self.factor)


def time_step(kernels: Sequence[Kernel], system: System, calibration: Calibration | None) -> StepTime:
    """Time every kernel of a step, one after the other."""
    return StepTime(tuple(time_kernel(kernel, system, calibration) for kernel in kernels))
