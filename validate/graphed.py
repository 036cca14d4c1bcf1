"""A decode step as one CUDA graph: what is left when the host no longer launches every kernel."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from rooflinekit.validate.cache import Cache
from rooflinekit.validate.decoder import Decoder
from rooflinekit.validate.timing import capture

__all__ = ["GraphedStep"]

_WARM_UP = 3  # runs before capture: libraries pick kernels and allocate workspaces in the first ones


class GraphedStep:
    """The step that decodes one token a sequence behind `past` cached ones; every replay is that same step.

    Servers capture one graph a batch size and let kernels read the context from memory. Here the context is captured
    too, so attention reads exactly the keys there are. Raises UncapturableError.
    """

    def __init__(self, decoder: Decoder, tokens: Tensor, cache: Sequence[Cache], past: int) -> None:
        self.tokens = tokens.clone()  # [B, 1]; replays read from here

        def step(times: int = 1) -> None:
            for _ in range(times):
                self.logits: Tensor = decoder(self.tokens, cache, past)  # [B, 1, V]

        self.graph = capture(step, partial(step, _WARM_UP))

    def replay(self) -> Tensor:
        """Run the step; the logits are overwritten by the next replay."""
        self.graph.replay()
        return self.logits
