"""Parameter counts of a model, by module and by the conventions that publishers use."""

from __future__ import annotations

from rooflinekit.model.blocks import model_operations
from rooflinekit.model.kernels.moe import Experts
from rooflinekit.model.precision import Precision
from rooflinekit.model.types.answer import Answer
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.model.types.model import Model

MODULES = ("embedding", "attention", "ffn", "experts", "shared_experts", "lm_head", "other")
"""Kinds of modules that have weights."""


@dataclass(frozen=True, slots=True)
class ParameterCount(Answer):
    """Weights of the text decoder by module; multi-token-prediction layers and vision towers are not counted."""

    embedding: int
    attention: int  #: attention, linear-attention and state-space projections
    ffn: int  #: dense feed-forward blocks
    experts: int  #: routed experts
    shared_experts: int
    lm_head: int  #: 0 when tied to the embedding
    other: int  #: norms, router, small vectors
    inactive_experts: int  #: routed expert weights that one token does not visit
    tied: bool

    @property
    def total(self) -> int:
        """All weights, each stored once."""
        return sum(getattr(self, module) for module in MODULES)

    @property
    def active(self) -> int:
        """Weights that one token visits, embedding and head included (Mixtral, Qwen3, DBRX count so)."""
        return self.total - self.inactive_experts

    @property
    def active_without_embedding(self) -> int:
        """Active parameters without the input embedding, a lookup (gpt-oss, DeepSeek-V3 count so).

        A tied table is the head as well and stays.
        """
        return self.active - (0 if self.tied else self.embedding)

    @property
    def active_without_vocabulary(self) -> int:
        """Active parameters without embedding and head (GLM-4.5, MiniMax count so)."""
        return self.active - self.embedding - self.lm_head


def count_parameters(model: Model) -> ParameterCount:
    """Count every weight of the model, from the same operations that are costed.

    >>> from rooflinekit.specs import load_model
    >>> count_parameters(load_model("llama-3-8b").value).total
    8030261248
    """
    whole = Deployment()
    precision = Precision(model.dtype, model.dtype, model.formats)
    counts = dict.fromkeys(MODULES, 0)
    inactive = 0
    for op, times in model_operations(model, whole, precision).items():
        for weights in op.weights:
            counts[weights.module] += weights.count * times
            if isinstance(op, Experts):
                routed = op.routing
                inactive += times * weights.count * (routed.experts - routed.top_k) // routed.experts
    return ParameterCount(**counts, inactive_experts=inactive, tied=model.tied)


def stored_bytes(model: Model) -> float:
    """Bytes of all weights in the formats of the checkpoint [B].

    >>> from rooflinekit.specs import load_model
    >>> stored_bytes(load_model("llama-3-8b").value)
    16060522496.0
    """
    precision = Precision(model.dtype, model.dtype, model.formats, layers=model.layer_formats)
    counts = model_operations(model, Deployment(), precision)
    return sum(count * weights.bytes for op, count in counts.items() for weights in op.weights)
