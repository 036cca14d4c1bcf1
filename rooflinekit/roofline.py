"""Time of a kernel: the datasheet roofline that nothing can beat, and the calibrated time to expect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rooflinekit.types.calibration import Calibration
from rooflinekit.types.hardware import System
from rooflinekit.types.kernel import Kernel, KernelTime
from rooflinekit.types.numeric import Numeric, maximum

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
    compute = kernel.flops / accelerator.peak(kernel.dtype)
    network: Numeric = 0.0 if kernel.gpus == 1 else system.transfer_time(kernel)
    return compute, streamed / accelerator.memory_bandwidth, network


def time_kernel(kernel: Kernel, system: System, calibration: Calibration | None) -> KernelTime:
    """Time of all launches of one kernel; without a calibration, the bound itself.

    With one: launch + max(FLOP/(e_c·peak), bytes/(e_m·bandwidth), sent/(e_n·link)), where all activation bytes count,
    and a collective's floor grows by one hop for each further accelerator.
    """
    compute, memory, network = roofline_bound(kernel, system)
    bound = kernel.count * maximum(maximum(compute, memory), network)
    if calibration is None:
        n = kernel.count
        return KernelTime(kernel, bound, n * compute, n * memory, n * network, 0.0, bound, bound, bound)
    fit = calibration.fit(kernel)
    compute = kernel.count * compute / fit.compute.value
    memory = kernel.count * (kernel.bytes / system.accelerator.memory_bandwidth) / fit.memory.value
    network = kernel.count * network / fit.network.value
    launch = kernel.count * (fit.launch.value + fit.hop.value * (kernel.gpus - 1))
    time = maximum(launch + maximum(maximum(compute, memory), network), bound)
    narrow, wide = calibration.transfer
    low = maximum(time * (fit.low * narrow), bound)
    return KernelTime(kernel, bound, compute, memory, network, launch, time, low, time * (fit.high * wide))


@dataclass(frozen=True)
class StepTime:
    """All kernels of a step with their times; sums are over kernels, intervals added as if errors went together."""

    kernels: tuple[KernelTime, ...]

    @property
    def time(self) -> Numeric:
        """Expected time [s]."""
        return sum((kernel.time for kernel in self.kernels), 0.0)

    @property
    def bound(self) -> Numeric:
        """Datasheet bound [s]."""
        return sum((kernel.bound for kernel in self.kernels), 0.0)

    @property
    def low(self) -> Numeric:
        """Lower end of the 90 % interval [s]."""
        return sum((kernel.low for kernel in self.kernels), 0.0)

    @property
    def high(self) -> Numeric:
        """Upper end of the 90 % interval [s]."""
        return sum((kernel.high for kernel in self.kernels), 0.0)


def time_step(kernels: Sequence[Kernel], system: System, calibration: Calibration | None) -> StepTime:
    """Time every kernel of a step, one after the other."""
    return StepTime(tuple(time_kernel(kernel, system, calibration) for kernel in kernels))
