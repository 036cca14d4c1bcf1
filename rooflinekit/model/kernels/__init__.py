"""The work of every kernel of a forward pass, each with its formula and source."""

from rooflinekit.model.kernels.attention import (
    AttentionCore,
    IndexScores,
    KVAppend,
    LatentCore,
    LatentUpProjection,
    append_bytes,
    attention_activation_bytes,
    attention_flops,
    cache_read_bytes,
    kv_cache_bytes_per_token,
    up_projected_bytes,
)
from rooflinekit.model.kernels.collective import (
    Collective,
    CollectiveKind,
    Tiers,
    all_reduce_bytes,
    sent_bytes,
    tiers,
)
from rooflinekit.model.kernels.context import (
    ContextExchange,
    ContextShare,
)
from rooflinekit.model.kernels.elementwise import (
    Elementwise,
    Embedding,
    Parameters,
    Sampling,
    elementwise_flops,
    gathered_bytes,
)
from rooflinekit.model.kernels.gemm import (
    BatchedLinear,
    Linear,
    gemm_activation_bytes,
    gemm_flops,
    gemm_weight_bytes,
)
from rooflinekit.model.kernels.moe import (
    Experts,
    distinct_experts,
    expert_activation_bytes,
    expert_flops,
    expert_weight_bytes,
)
from rooflinekit.model.kernels.operation import (
    Operation,
    Step,
    Weights,
    passed_bytes,
)
from rooflinekit.model.kernels.recurrent import (
    STATE_DTYPE,
    ShortConvolution,
    StateUpdate,
)
from rooflinekit.model.kernels.routing import (
    Routing,
)

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
    "append_bytes",
    "attention_activation_bytes",
    "attention_flops",
    "cache_read_bytes",
    "distinct_experts",
    "elementwise_flops",
    "expert_activation_bytes",
    "expert_flops",
    "expert_weight_bytes",
    "gathered_bytes",
    "gemm_activation_bytes",
    "gemm_flops",
    "gemm_weight_bytes",
    "kv_cache_bytes_per_token",
    "passed_bytes",
    "sent_bytes",
    "tiers",
    "up_projected_bytes",
]
