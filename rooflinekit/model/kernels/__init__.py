"""The work of every kernel of a forward pass, each with its formula and source."""

from rooflinekit.model.kernels.attention import (
    AttentionCore,
    IndexScores,
    KVAppend,
    LatentCore,
    LatentUpProjection,
    attention_flops,
    kv_cache_bytes_per_token,
)
from rooflinekit.model.kernels.collective import Collective, CollectiveKind, Tiers, all_reduce_bytes, sent_bytes, tiers
from rooflinekit.model.kernels.context import ContextExchange, ContextShare
from rooflinekit.model.kernels.elementwise import Elementwise, Embedding, Parameters, Sampling
from rooflinekit.model.kernels.gemm import BatchedLinear, Linear, gemm_activation_bytes, gemm_flops
from rooflinekit.model.kernels.moe import Experts, distinct_experts
from rooflinekit.model.kernels.operation import Operation, Step, Weights
from rooflinekit.model.kernels.recurrent import STATE_DTYPE, ShortConvolution, StateUpdate
from rooflinekit.model.kernels.routing import Routing

__all__ = [
    "STATE_DTYPE",
    "AttentionCore",
    "BatchedLinear",
    "Collective",
    "CollectiveKind",
    "ContextExchange",
    "ContextShare",
    "Elementwise",
    "Embedding",
    "Experts",
    "IndexScores",
    "KVAppend",
    "LatentCore",
    "LatentUpProjection",
    "Linear",
    "Operation",
    "Parameters",
    "Routing",
    "Sampling",
    "ShortConvolution",
    "StateUpdate",
    "Step",
    "Tiers",
    "Weights",
    "all_reduce_bytes",
    "attention_flops",
    "distinct_experts",
    "gemm_activation_bytes",
    "gemm_flops",
    "kv_cache_bytes_per_token",
    "sent_bytes",
    "tiers",
]
