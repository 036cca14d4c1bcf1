"""Footprint of a deployment: weights as an engine stores them, and the activation peak of a step."""

from __future__ import annotations

from collections.abc import Iterator

from rooflinekit.model.apart import Elsewhere
from rooflinekit.model.blocks import stage_operations
from rooflinekit.model.graph.symbol import about
from rooflinekit.model.kernels.attention import LatentUpProjection
from rooflinekit.model.kernels.collective import group_share
from rooflinekit.model.kernels.elementwise import Embedding
from rooflinekit.model.kernels.gemm import Linear
from rooflinekit.model.kernels.moe import Experts
from rooflinekit.model.kernels.operation import Operation
from rooflinekit.model.step import Plan
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.engine import MemoryRule
from rooflinekit.model.types.frozen import dataclass, field
from rooflinekit.model.types.model import (
    Attention,
    CompressedAttention,
    DenseFFN,
    GatedDeltaNet,
    LatentAttention,
    Mixer,
    MixtureOfExperts,
    Model,
)
from rooflinekit.model.types.numeric import Numeric, maximum
from rooflinekit.model.types.units import MIB

_SEGMENT, _LARGE, _REMAINDER = 2 * MIB, 10 * MIB, MIB
_SCALE = 4.0  # bytes of one in fp32
_COPIES = 4  # of the inputs of a step, on several accelerators under llama.cpp
_BY_CHANNEL = (Dtype.FP8, Dtype.INT8)  # one fp32 scale an output channel


def allocated_bytes(size: float) -> float:
    """Bytes in PyTorch's caching allocator for one tensor [B] (c10/cuda/CUDACachingAllocator.cpp).

    A tensor of 10 MiB or more has a segment of whole 2 MiB; what is left of it becomes a block of its own only if it
    is more than 1 MiB, and counts as part of the tensor otherwise. Smaller tensors share segments, in steps of 512 B.

    >>> [allocated_bytes(size * MIB) / MIB for size in (31.5, 24.5, 259.0, 4.0)]
    [32.0, 24.5, 260.0, 4.0]
    """
    if size < _LARGE:
        return -(-size // 512) * 512
    segment = -(-size // _SEGMENT) * _SEGMENT
    return segment if segment - size <= _REMAINDER else size


def placed_operations(plan: Plan, stage: int, place: str = "") -> dict[Operation, int]:
    """The operations of one pipeline stage in one place, as they are there."""
    held = stage_operations(plan.model, plan.deployment, plan.precision, stage)
    split = [(op.place, op.held, n) if isinstance(op, Elsewhere) else ("", op, n) for op, n in held.items()]
    return {op: n for where, op, n in split if where == place}


def resident_bytes(plan: Plan, stage: int, place: str = "") -> float:
    """Weights of one pipeline stage on one of its accelerators, or on one of another group [B]."""
    rule, model, deployment = plan.engine.memory, plan.model, plan.deployment
    tensors = [(size, n) for op, n in placed_operations(plan, stage, place).items() for size in _tensors(op, plan)]
    if model.tower and stage == 0 and place == ("encoder" if deployment.encoder_gpus else ""):
        tensors.append((model.tower * plan.precision.stream.bytes / (1 if place else deployment.tp), 1))
    if place:
        return rule.loading + sum(size * count for size, count in tensors)
    if rule.rotary_table:
        tables = model.rotary_tables if rule.scaled_tables else 1
        tensors += [(tables * size, 1) for size in _rotary_tables(model, plan.precision.stream)]
    if rule.latent_absorbed:
        layers = model.stage_layers(stage, plan.deployment.pp)
        tensors += [(size, 1) for layer in layers for size in _absorbed(layer.mixer, plan)]
    size_of = allocated_bytes if rule.torch_allocator else float
    return rule.loading + sum(size_of(size) * count for size, count in tensors)


def _absorbed(mixer: Mixer | None, plan: Plan) -> Iterator[float]:
    """Query with key and value with output up-projections multiplied out (vLLM 0.7, W_Q_UK, W_QR and W_UV_O)."""
    if isinstance(mixer, LatentAttention):
        heads, hidden = mixer.heads / plan.deployment.tp, plan.model.hidden
        inputs = mixer.q_rank or hidden
        for inner, outer in ((inputs, mixer.kv_rank), (inputs, mixer.rope_dim), (mixer.kv_rank, hidden)):
            yield heads * inner * outer * plan.precision.stream.bytes


def _tensors(op: Operation, plan: Plan) -> Iterator[float]:
    """Sizes of the tensors of one operation [B]."""
    rule = plan.engine.memory
    match op:
        case Embedding(module="embedding") if rule.host_embedding and not plan.model.tied:
            return
        case Embedding(module="embedding"):
            yield _padded_vocabulary(plan, op.rows) * op.width * op.dtype.bytes
        case Linear(name="lm_head", resident=True):
            yield _padded_vocabulary(plan, op.n) * op.k * op.weight.bytes
        case Experts():
            yield from _expert_tensors(op, rule)
        case _:
            yield from (weights.bytes for weights in op.weights)
    if isinstance(op, Linear) and op.weight in _BY_CHANNEL and rule.torch_allocator:
        yield 4.0 * op.n
    if isinstance(op, LatentUpProjection) and rule.latent_copies:
        yield from (w.count * plan.precision.stream.bytes for w in op.weights if not w.dtype.is_wide)


def _padded_vocabulary(plan: Plan, rows: int) -> float:
    multiple, tp = plan.engine.memory.vocabulary_multiple, plan.deployment.tp
    return max(float(rows), -(-plan.model.vocab // multiple) * multiple / tp)


def _expert_tensors(op: Experts, rule: MemoryRule) -> Iterator[float]:
    """Gate and up of all local experts as one tensor, down as another; MXFP4 ones padded as their kernels need it."""
    fused = (op.matrices - 1) * op.width
    inputs, outputs = rule.mxfp4_multiple if op.weight is Dtype.MXFP4 else (1.0, 1.0)
    yield op.local * _up(op.hidden, inputs) * _up(fused, outputs) * op.weight.bytes
    yield op.local * _up(op.width, inputs) * op.hidden * (op.down or op.weight).bytes
    if op.bias:
        yield op.local * op.bias * Dtype.BF16.bytes


def _up(size: int, multiple: float) -> float:
    return -(-size // multiple) * multiple


def _rotary_tables(model: Model, stream: Dtype) -> Iterator[float]:
    """Cosine and sine of every position, in the stream's format, once for each rotary width (vLLM's get_rope)."""
    if model.max_context is None:
        return
    mixers = [layer.mixer for layer in model.layer_counts]
    widths = [m.head_dim for m in mixers if isinstance(m, Attention) and m.rotary]
    widths += [m.rope_dim for m in mixers if isinstance(m, LatentAttention) and m.rotary]
    widths += [m.rope_dim for m in mixers if isinstance(m, CompressedAttention)]
    for width in dict.fromkeys(widths):
        yield model.max_context * width * stream.bytes


MOE_CHUNK = 16_384
"""Tokens that vLLM's fused_moe works on at once at most (VLLM_FUSED_MOE_CHUNK_SIZE, its default)."""


@dataclass(frozen=True)
class Peak:
    """Activations at their peak as a function of tokens and of rows of logits [B].

    A layer holds its widest block for every token; the sampler holds the last hidden states and copies of the logits.
    They follow each other, so the larger one counts, and so does what encoders hold where that is more.
    """

    layer_token: float = field(metadata=about("token", "bytes of a token while a layer runs", "B"))
    layer_base: float = field(metadata=about("base", "held while a layer runs, whatever the step", "B"))
    sampler_token: float = field(metadata=about("kept", "bytes of a token while tokens are sampled", "B"))
    sampler_row: float = field(metadata=about("row", "bytes of a row of logits", "B"))
    sampler_base: float = field(metadata=about("base", "held while tokens are sampled, whatever the step", "B"))
    encoder: float = 0.0  #: held while the largest image or video is encoded

    def layer(self, tokens: Numeric) -> Numeric:
        """While a layer runs over `tokens`."""
        return self.layer_base + tokens * self.layer_token

    def sampler(self, tokens: Numeric, rows: Numeric) -> Numeric:
        """While `rows` sequences are sampled after a step of `tokens`."""
        return self.sampler_base + tokens * self.sampler_token + rows * self.sampler_row

    def bytes(self, tokens: Numeric, rows: Numeric) -> Numeric:
        """The largest of them.

        >>> Peak(10.0, 0.0, 1.0, 100.0, 0.0).bytes(20.0, 3.0), Peak(10.0, 0.0, 1.0, 100.0, 0.0, 999.0).bytes(20.0, 3.0)
        (320.0, 999.0)
        """
        found = maximum(self.layer(tokens), self.sampler(tokens, rows))
        return maximum(found, self.encoder) if self.encoder else found


def activation_peak(plan: Plan, token_budget: float) -> Peak:
    """The peak of a plan under its engine; `token_budget` is how many tokens a step has at most."""
    rule, model, stream = plan.engine.memory, plan.model, plan.precision.stream.bytes
    hidden = model.hidden * stream
    scratch = plan.system.accelerator.cores if rule.sampler_scratch else 0
    encoded = token_budget * hidden if model.tower else 0.0  # a full budget of image embeddings waits for the decoder
    blocks = [_block_elements(plan, layer.ffn, token_budget) for layer in model.layer_counts]
    columns = model.vocab if model.outputs is None else model.outputs
    logits = columns * 4.0
    kept = token_budget * _workspace_elements(plan, token_budget) * stream if rule.expert_workspace else 0.0
    heads = max(
        (layer.mixer.value_heads for layer in model.layer_counts if isinstance(layer.mixer, GatedDeltaNet)), default=0
    )
    gathered = _gathered_bytes(plan)
    around = (1.0 + max(layer.carried for layer in model.layer_counts)) * hidden  # hidden states and residual
    rows = _step_buffer(plan, token_budget, columns) if rule.step_buffer else 0.0
    between = around if plan.deployment.pp > 1 else 0.0  # those from the stage before
    return Peak(
        layer_token=around + max(blocks, default=0.0) * stream + between,
        layer_base=rule.layer_base + rule.state_base * heads / plan.deployment.tp + encoded + gathered,
        sampler_token=between if rows else hidden + between,
        sampler_row=0.0 if rows else hidden + columns * stream + rule.sampler_copies * logits,
        sampler_base=rule.sampler_base + scratch * logits + kept + encoded + gathered + rows,
        encoder=0.0 if plan.deployment.encoder_gpus or not rule.profiled else model.encoder_peak * stream,
    )


def _gathered_bytes(plan: Plan) -> float:
    """The buffer into which prompts of sparse attention gather what they look at, as long as the engine runs [B].

    vLLM: 40 index keys in FP8 with an fp32 scale for each token of the longest sequence, or 5 latents in 16 bit
    (v1/attention/backends/mla/indexer.py, get_max_prefill_buffer_size).
    """
    rule, model = plan.engine.memory, plan.model
    longest = plan.deployment.settings.max_model_len or model.max_context or 0
    widths = [0.0]
    for mixer in (layer.mixer for layer in model.layer_counts):
        if isinstance(mixer, LatentAttention | CompressedAttention) and mixer.indexer:
            widths.append(rule.index_rows * (mixer.indexer.head_dim + _SCALE))
            if isinstance(mixer, LatentAttention):
                widths.append(rule.latent_rows * (mixer.kv_rank + mixer.rope_dim) * Dtype.BF16.bytes)
    return longest * max(widths)


def _step_buffer(plan: Plan, tokens: float, columns: int) -> float:
    """The compute buffer of ggml for a step of so many tokens, in fp32 [B]: room for the widest of its parts.

    These are logits, a feed-forward block or, without flash attention, attention scores with their mask in fp32 and in
    fp16. Of several accelerators each has 4 copies of a step's inputs then (GGML_SCHED_MAX_COPIES).
    """
    model, deployment = plan.model, plan.deployment
    widths = [float(columns + model.hidden)]
    for layer in model.layer_counts:
        if isinstance(layer.ffn, DenseFFN | MixtureOfExperts):
            copies = layer.ffn.top_k if isinstance(layer.ffn, MixtureOfExperts) else 1
            widths.append(2 * layer.ffn.width * copies + 2 * model.hidden)
    shared = 0
    if plan.engine.memory.kept_scores:
        longest = deployment.settings.max_model_len or model.max_context or 0
        heads = (layer.mixer.heads for layer in model.layer_counts if isinstance(layer.mixer, Attention))
        widths.append(longest * (max(heads, default=0) + 1.5) + 3 * model.hidden)
        shared = (_COPIES - 1) * longest + _COPIES * model.hidden if deployment.pp > 1 else 0
    return Dtype.FP32.bytes * tokens * (max(widths) + shared)


def _block_elements(plan: Plan, ffn: DenseFFN | MixtureOfExperts | None, budget: float) -> float:
    """Elements a token of the feed-forward block: gate, up and their product, or what experts hold.

    Experts hold the buffers, the gathered tokens and the output of shared experts. These run first; their own block
    counts where it is the wider one.
    """
    deployment, hidden = plan.deployment, plan.model.hidden
    match ffn:
        case DenseFFN(width=width, gated=gated):
            return width / deployment.ffn_tp * (3 if gated else 2)
        case MixtureOfExperts(shared_width=shared, gated=gated):
            routed = _rows(ffn, hidden, deployment, budget)
            if deployment.dp * deployment.cp > 1:
                routed += _arrived(ffn, deployment) * (ffn.latent or hidden)
            return max(routed + hidden, shared / deployment.ffn_tp * (3 if gated else 2)) if shared else routed
        case _:
            return 0.0


def _workspace_elements(plan: Plan, budget: float) -> float:
    """Elements a token of the buffers of fused experts; MXFP4 kernels have none that stay."""
    if plan.precision.formats.experts is Dtype.MXFP4:
        return 0.0
    routed = [layer.ffn for layer in plan.model.layer_counts if isinstance(layer.ffn, MixtureOfExperts)]
    return max((_rows(block, plan.model.hidden, plan.deployment, budget) for block in routed), default=0.0)


def _rows(block: MixtureOfExperts, hidden: int, deployment: Deployment, budget: float) -> float:
    """Elements of the two buffers of vLLM's fused experts, for each token of one attention replica.

    One row for each of the top_k copies of a token, whether the rank holds that expert or not: of the output of gate
    and up or, in its place, of the down projection, and of their product, which is as wide as the input at the least
    (TritonExperts.workspace_shapes). With attention replicas the tokens of all of them arrive; of many, a full step
    takes a chunk at a time.
    """
    inner, wide = block.width / deployment.expert_tp, block.latent or hidden
    row = max((2 if block.gated else 1) * inner, wide) + max(inner, wide)
    return min(_arrived(block, deployment), MOE_CHUNK / budget) * block.top_k * row


def _arrived(block: MixtureOfExperts, deployment: Deployment) -> float:
    replicas = deployment.dp * deployment.cp
    if replicas == 1:
        return 1.0
    ep = deployment.ep
    return replicas * (group_share(block.experts, block.top_k, ep) if ep > 1 else 1.0)
