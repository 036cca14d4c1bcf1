"""Mixers with a fixed state instead of a growing cache: linear attention and state-space layers."""

from __future__ import annotations

from math import prod

from rooflinekit.model.graph.symbol import about, formula, named
from rooflinekit.model.kernels.elementwise import own_bytes
from rooflinekit.model.kernels.operation import Operation, Output, Step, Weights, pass_kernel
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.frozen import dataclass, field
from rooflinekit.model.types.kernel import Kernel
from rooflinekit.model.types.numeric import Numeric

STATE_DTYPE = Dtype.FP32
"""Recurrent states are kept in fp32 (Mamba-2 reference code, `ssm_state` dtype; Qwen3-Next `mamba_ssm_dtype`)."""


@formula("F", "multiply-adds of a causal convolution", "FLOP")
def convolution_flops(tokens: Numeric, channels: Numeric, taps: Numeric) -> Numeric:
    """Each token of each channel meets its last taps: 2·m·C·taps [FLOP].

    >>> convolution_flops(32.0, 8192, 4)
    2097152.0
    """
    return 2.0 * tokens * channels * taps


@formula("F", "update and read-out of the state", "FLOP")
def recurrence_flops(tokens: Numeric, state: Numeric, each: float) -> Numeric:
    """S <- decay(S) + v k^T and o = S q for every token: m·state·f [FLOP]; f is 4 at the least.

    The chunked prefill form does the same work in blocks; its extra intra-chunk FLOPs are left out (a lower bound).

    >>> recurrence_flops(32.0, 32 * 128 * 128, 6.0) / 1e6  # a gated delta net of 32 heads
    100.7
    """
    return tokens * state * each


@formula("kr", "state of every sequence read, and written as well", "B")
def state_bytes(sequences: Numeric, elements: Numeric, element: float) -> Numeric:
    """The state of every sequence, once a step: B·state·b_s [B].

    >>> state_bytes(32.0, 32 * 128 * 128, STATE_DTYPE.bytes) / 1e6
    67.1
    """
    return sequences * elements * element


@dataclass(frozen=True, slots=True)
class ShortConvolution(Operation):
    """A depthwise causal convolution of `taps` tokens over `channels`; its last taps − 1 inputs are state."""

    channels: int = field(metadata=about("I", "channels here"))
    taps: int = field(metadata=about("taps", "tokens that a convolution sees"))
    bias: bool
    dtype: Dtype

    @property
    def weights(self) -> tuple[Weights, ...]:
        """Taps, and a bias a channel if there is one."""
        taps = Weights("attention", (self.channels, self.taps), self.dtype, "taps")
        return (taps, Weights("attention", (self.channels,), self.dtype, "bias")) if self.bias else (taps,)

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The result, and the last inputs of each sequence."""
        return Output("x", (self.channels,)), Output("state", (self.channels, self.taps - 1), "state")

    def kernels(self, step: Step, count: int) -> list[Kernel]:
        """One pass over the tokens; reads and writes the state of each sequence."""
        state = state_bytes(step.batch.sequences, self.channels * (self.taps - 1), step.stream.bytes)
        kernel = pass_kernel(
            step,
            "short_conv",
            "elementwise",
            count,
            step.tokens,
            2 * self.channels,
            flops=convolution_flops(step.tokens, self.channels, self.taps),
            kv_read_bytes=state,
            kv_write_bytes=state,
            weight_bytes=own_bytes(self.channels * (self.taps + self.bias), self.dtype.bytes),
        )
        return [kernel]


@dataclass(frozen=True, slots=True)
class StateUpdate(Operation):
    """One recurrence S <- decay(S) + v k^T, read out by o = S q, over a state of these axes for each sequence.

    The last axis is summed over in the read-out. flops_per_element: work on each state element for each token (2 update
    + 2 read-out, and what the variant adds). prompt_launches: kernels that engines launch for it in a step with
    prompts, which they compute by chunks, with the copies and casts around them (SGLang 0.5.7: models/qwen3_next.py,
    layers/attention/fla/chunk.py and solve_tril.py; 0.5.9: linear/lightning_attn.py, mamba/ops/ssd_*.py; vLLM has the
    same). Of a Kimi layer they count what is one kernel here: three convolutions, and six projections for two
    (models/kimi_linear.py, fla/kda.py).
    """

    name: str
    axes: tuple[int, ...]
    stream_width: int = field(metadata=about("e", "elements read and written of a token"))
    flops_per_element: float = field(metadata=about("f", "operations on an element of state"))
    parameters: int = field(metadata=about("p", "weights of its own"))
    dtype: Dtype
    prompt_launches: int = 1

    @property
    def weights(self) -> tuple[Weights, ...]:
        """Decay, skip and step-size parameters."""
        return (Weights("other", (self.parameters,), self.dtype, "parameters"),) if self.parameters else ()

    @property
    def state(self) -> int:
        """Elements of state of a sequence."""
        return named(prod(self.axes), "state", "elements of state of a sequence here")

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The state, and what is read out of it."""
        return Output("state", self.axes, "state", STATE_DTYPE), Output("x", self.axes[:-1])

    def kernels(self, step: Step, count: int) -> list[Kernel]:
        """The work of one pass; the state of each sequence is read and written once a step."""
        state = state_bytes(step.batch.sequences, self.state, STATE_DTYPE.bytes)
        kernel = pass_kernel(
            step,
            self.name,
            "linear_attention",
            count,
            step.tokens,
            self.stream_width,
            kv_read_bytes=state,
            kv_write_bytes=state,
            flops=recurrence_flops(step.tokens, self.state, self.flops_per_element),
            weight_bytes=own_bytes(self.parameters, self.dtype.bytes),
            launches=self.prompt_launches if step.batch.prefilling is not None else 1,
        )
        return [kernel]
