"""Deployment of a model on accelerators: parallel degrees, number formats, engine."""

from __future__ import annotations

from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.engine import DEFAULTS, EngineSettings
from rooflinekit.model.types.errors import UnknownNameError
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.model.types.kv_policy import FULL, KVPolicy
from rooflinekit.model.types.vision import Images

ENGINES = ("vllm", "sglang", "trtllm", "llama.cpp", "gpt-fast", "optimum-habana", "ideal")
REFUSED = {
    "atom": "AMD's ATOM runs kernels of its own, which nobody timed alone. Its recipes of 2026 on MI355X are up to "
    "twice as fast as vLLM's kernels say",
}
"""Engines that no other stands in for, and why."""
ALL_REDUCE = ("auto", "one_shot", "two_shot", "ring", "in_switch")
"""Algorithms of an all-reduce; "auto" takes what the engine was measured with."""
ALL_TO_ALL = ("auto", "deepep")
"""Ways to bring tokens to their experts; "auto" is a collective."""


def unknown_engine(name: str) -> UnknownNameError:
    """The refusal of an engine without costs; of one that nothing stands in for with the reason."""
    return UnknownNameError("engine", name, ENGINES, f". {REFUSED[name]}" if name in REFUSED else "")


@dataclass(frozen=True, slots=True)
class Deployment:
    """Parallel degrees and precisions.

    `tp` shards every layer, `pp` splits the depth into stages, `dp` runs attention replicas on different sequences
    (experts are shared by all of them), `cp` splits the context of each sequence, `ep` places whole experts on
    different ranks of the tp x cp x dp group. A format of None is the checkpoint's own.
    """

    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1
    cp: int = 1
    sequence_parallel: bool = False  #: between blocks each of the tp ranks keeps its share of the tokens
    microbatches: int = 1  #: parts of a batch that follow each other through pipeline stages, or groups
    ffn_gpus: int = 0  #: accelerators of the feed-forward blocks, beside the tp x dp of attention; 0: the same
    encoder_gpus: int = 0  #: accelerators that encode images and nothing else; 0: those of the model
    system: str | None = None  #: name or path of what the accelerators are built into; None is the usual one
    all_reduce: str = "auto"  #: one of ALL_REDUCE
    all_to_all: str = "auto"  #: one of ALL_TO_ALL
    two_batch: bool = False  #: halves of a step take turns: one computes while the other's tokens travel
    dispatch: Dtype | None = None  #: format in which tokens travel to their experts; None is the residual stream's
    redundant_experts: int = 0  #: copies of experts beyond one each, over all ranks of a layer
    skew: float = 0.0  #: routing: the n-th most popular expert has weight n^-skew; 0 is uniform
    weights: Dtype | None = None
    attention_weights: Dtype | None = None  #: of the attention matrices; None is `weights`
    lm_head: Dtype | None = None  #: of the LM head; None is the checkpoint's
    activations: Dtype | None = None
    kv: Dtype | None = None
    engine: str = "vllm"
    engine_version: str | None = None  #: None is the newest that its profile describes
    settings: EngineSettings = DEFAULTS
    kv_policy: KVPolicy = FULL
    images: Images | None = None  #: that come with every prompt; None: text alone
    lora_rank: int = 0  #: of low-rank adapters beside the layers' products; 0: none
    lora_adapters: int = 1  #: adapters that are loaded; each sequence uses one of them
    power_cap: float | None = None  #: limit of each accelerator's power [W]; None is its rated power
    offload_layers: int = 0  #: layers, the first ones, that the host keeps and computes
    offload_experts: bool = False  #: the host keeps and computes the routed experts of all layers
    n_cpu_moe: int = 0  #: layers, the first ones, whose routed experts it does
    host_bandwidth: float | None = None  #: of the host's memory [GB/s]; None is the assumed one
    clock: float | None = None  #: locked core clock [MHz]; None lets the accelerator choose

    @property
    def gpus(self) -> int:
        """Accelerators in all."""
        return self.joined + self.encoder_gpus

    @property
    def joined(self) -> int:
        """Accelerators that take part in a token: all but those of an encoder."""
        return self.stage * self.pp + self.ffn_gpus

    @property
    def stage(self) -> int:
        """Accelerators of one pipeline stage, which hold its experts together: tp x cp x dp, neighbours within tp."""
        return self.tp * self.cp * self.dp

    @property
    def expert_tp(self) -> int:
        """Ranks that shard one expert between them."""
        return (self.ffn_gpus or self.stage) // self.ep

    @property
    def ffn_tp(self) -> int:
        """Ranks that shard one feed-forward block between them."""
        return self.ffn_gpus // self.ep if self.ffn_gpus else self.tp

    @property
    def in_flight(self) -> int:
        """Microbatches of decoding sequences at once.

        Of pipeline stages no more than there are, since each reads the weights again (vLLM: max_concurrent_batches is
        the pp size); between groups as many as are asked for.
        """
        return self.microbatches if self.ffn_gpus else min(self.microbatches, self.pp)

    def boards(self, place: str) -> int:
        """Accelerators that run the kernels of a place."""
        between, groups = min(self.stage, self.ffn_gpus), {"ffn": self.ffn_gpus, "encoder": self.encoder_gpus}
        return (groups | {"ffn_send": between, "ffn_return": between}).get(place, self.stage)
