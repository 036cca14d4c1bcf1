"""Mixers with a fixed state instead of a growing cache: linear attention and state-space layers."""

from __future__ import annotations

from dataclasses import dataclass

from rooflinekit.model.kernels.operation import Step, Weights
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.kernel import Kernel

__all__ = ["STATE_DTYPE", "ShortConvolution", "StateUpdate"]

STATE_DTYPE = Dtype.FP32
"""Recurrent states are kept in fp32 (Mamba-2 reference code, `ssm_state` dtype; Qwen3-Next `mamba_ssm_dtype`)."""


@dataclass(frozen=True, slots=True)
class ShortConvolution:
    """A depthwise causal convolution of `taps` tokens over `channels`; its last taps − 1 inputs are state."""

    channels: int
    taps: int
    bias: bool
    dtype: Dtype

    grows = False

    @property
    def weights(self) -> tuple[Weights, ...]:
        """Taps, and a bias a channel if there is one."""
        taps = Weights("attention", (self.channels, self.taps), self.dtype)
        return (taps, Weights("attention", (self.channels,), self.dtype)) if self.bias else (taps,)

    def kernels(self, step: Step, count: int) -> list[Kernel]:
        """One pass over the tokens; reads and writes the state of each sequence."""
        state = step.batch.sequences * self.channels * (self.taps - 1) * step.stream.bytes
        return [
            Kernel(
                "short_conv",
                "elementwise",
                count,
                step.stream,
                flops=2.0 * step.tokens * self.channels * self.taps,
                weight_bytes=self.channels * (self.taps + self.bias) * self.dtype.bytes,
                kv_read_bytes=state,
                kv_write_bytes=state,
                activation_bytes=2.0 * step.tokens * self.channels * step.stream.bytes,
            )
        ]


@dataclass(frozen=True, slots=True)
class StateUpdate:
    """One recurrence S <- decay(S) + v k^T, read out by o = S q, over `state` elements a sequence.

    flops_per_element: work on each state element for each token (2 update + 2 read-out, and what the variant adds).
    The chunked prefill form does the same work in blocks; its extra intra-chunk FLOPs are left out (a lower bound).
    """

    name: str
    state: int  #: elements of state of one sequence, on this accelerator
    stream_width: int  #: elements read and written per token
    flops_per_element: float
    parameters: int
    dtype: Dtype

    grows = False

    @property
    def weights(self) -> tuple[Weights, ...]:
        """Decay, skip and step-size parameters."""
        return (Weights("other", (self.parameters,), self.dtype),) if self.parameters else ()

    def kernels(self, step: Step, count: int) -> list[Kernel]:
        """One launch; the state of each sequence is read and written once a step."""
        state = step.batch.sequences * self.state * STATE_DTYPE.bytes
        return [
            Kernel(
                self.name,
                "linear_attention",
                count,
                step.stream,
                flops=step.tokens * self.state * self.flops_per_element,
                weight_bytes=self.parameters * self.dtype.bytes,
                kv_read_bytes=state,
                kv_write_bytes=state,
                activation_bytes=step.tokens * self.stream_width * step.stream.bytes,
            )
        ]
