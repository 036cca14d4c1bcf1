"""How a model is put on accelerators: parallel degrees, number formats, engine."""

from __future__ import annotations

from dataclasses import dataclass

from rooflinekit.types.dtype import Dtype

__all__ = ["ENGINES", "Deployment"]

ENGINES = ("vllm", "sglang", "trtllm", "gpt-fast", "ideal")


@dataclass(frozen=True, slots=True)
class Deployment:
    """Parallel degrees and precisions.

    `tp` shards every layer, `pp` splits the depth into stages, `dp` runs attention replicas on different sequences
    (experts are shared by all of them), `ep` places whole experts on different ranks of the tp x dp group.
    A format of None is the checkpoint's own.
    """

    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1
    weights: Dtype | None = None
    activations: Dtype | None = None
    kv: Dtype | None = None
    engine: str = "vllm"

    @property
    def gpus(self) -> int:
        """Accelerators in all."""
        return self.tp * self.pp * self.dp

    @property
    def expert_tp(self) -> int:
        """Ranks that shard one expert between them."""
        return self.tp * self.dp // self.ep
