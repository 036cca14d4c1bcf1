"""One deployment as its engine has to be told: the prediction, and every number that it rests on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rooflinekit.decision.launching.checkpoint import Checkpoint
from rooflinekit.decision.launching.settings import Wish
from rooflinekit.decision.launching.share import Share
from rooflinekit.estimation.results import Estimate
from rooflinekit.model.step import Plan
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.errors import DeploymentError
from rooflinekit.model.types.flags import FlagTable
from rooflinekit.model.types.model import MixtureOfExperts
from rooflinekit.model.types.speculation import Speculation

__all__ = ["Target", "Weights", "common", "refuse_what_no_server_does", "weights_of"]

_CAPTURED = 128  # sequences; TensorRT-LLM's own default, taken for all


@dataclass(frozen=True, slots=True)
class Weights:
    """How a server gets the weights' format: from the checkpoint, a cast (`dtype`), or by quantising (`online`)."""

    dtype: Dtype | None = None
    online: Dtype | None = None
    checkpoint: str | None = None  #: format of the checkpoint that is needed instead


@dataclass(frozen=True)
class Target:
    """What one kind of server is told; counts are of one attention replica."""

    estimate: Estimate
    plan: Plan
    table: FlagTable
    version: str
    checkpoint: Checkpoint
    weights: Weights
    share: Share
    sequences: int
    tokens: int | None  #: of one prefill step; None where this version takes whole prompts
    longest: int  #: tokens of the longest sequence
    draft: Speculation | None = None
    draft_model: Checkpoint | None = None
    running: int = 1  #: sequences that the prediction has in a step
    role: str = ""  #: prefill or decode of a split deployment
    host_gpus: int = 8

    @property
    def total_tp(self) -> int:
        """Ranks that engines with attention DP inside TP call the tensor parallel size."""
        return self.plan.deployment.tp * self.plan.deployment.dp

    @property
    def graph_batch(self) -> int:
        """Largest decode batch to capture graphs for: what is predicted, with room to grow."""
        return min(self.sequences, max(self.running, _CAPTURED))

    @property
    def experts(self) -> bool:
        """Whether the model has routed experts."""
        return any(isinstance(layer.ffn, MixtureOfExperts) for layer in self.plan.model.layer_counts)

    @property
    def hosts(self) -> int:
        """Machines that one replica needs."""
        return -(-self.plan.deployment.gpus // self.host_gpus)

    @property
    def kv(self) -> Wish | None:
        """The cache's format, where it is not what the checkpoint would get by itself."""
        precision, model = self.plan.precision, self.plan.model
        if precision.kv is (model.kv_dtype or precision.stream) and precision.kv.is_wide:
            return None
        return Wish("kv", precision.kv.value, f"KV cache in {precision.kv}", word=True)

    @property
    def chunks(self) -> bool:
        """Whether the engine cuts prompts by itself at this version."""
        return self.plan.engine.memory.chunked


def common(target: Target) -> Iterator[Wish]:
    """What every engine takes alike: pipeline, context, memory, formats, blocks."""
    deployment, settings = target.plan.deployment, target.plan.deployment.settings
    if deployment.pp > 1:
        yield Wish("pp", deployment.pp, f"{deployment.pp} pipeline stages")
    if target.checkpoint.revision:
        yield Wish("revision", target.checkpoint.revision, "the revision that was named")
    yield Wish("context", target.longest, f"longest sequence; requests are {_request(target)} tokens")
    yield Wish("memory", target.share.fraction, target.share.sum)
    if target.weights.dtype is not None:
        yield Wish("dtype", target.weights.dtype.value, f"weights and activations in {target.weights.dtype}", word=True)
    if target.weights.online is not None:
        because = f"the server quantises the weights to {target.weights.online} as it loads them"
        yield Wish("quantization", target.weights.online.value, because, word=True)
    if (kv := target.kv) is not None:
        yield kv
    if settings.block_size is not None:
        yield Wish("block", settings.block_size, "tokens of one block of the cache")


def _request(target: Target) -> str:
    inputs = target.estimate.inputs
    return f"{inputs['isl']} + {inputs['osl']}"


def weights_of(plan: Plan, online: tuple[Dtype, ...], cast: bool) -> Weights:
    """How an engine that quantises to `online` formats as it loads, and casts if `cast`, gets the plan's weights."""
    model, deployment, formats = plan.model, plan.deployment, plan.precision.formats
    stream = plan.precision.stream
    dtype = stream if cast and (stream is not model.dtype or stream is Dtype.FP32) else None  # fp32 becomes fp16 alone
    if formats == model.formats:
        return Weights(dtype=dtype)
    asked = deployment.weights
    apart = {deployment.attention_weights, deployment.lm_head} - {None, asked}
    wide = all(getattr(model.formats, kind).is_wide for kind in model.matrices)
    if asked is not None and asked in online and wide and not apart and deployment.lm_head is None:
        return Weights(dtype=dtype, online=asked)
    if asked is not None and asked.is_wide and wide and not apart and cast:
        return Weights(dtype=asked if asked is not model.dtype else None)
    needed = asked or deployment.attention_weights or deployment.lm_head
    return Weights(dtype=dtype, checkpoint=str(needed))


def refuse_what_no_server_does(plan: Plan, draft: Speculation | None) -> None:
    """Raise DeploymentError for what a prediction can assume and no flag of these servers turns on."""
    deployment = plan.deployment
    refused: dict[str, Any] = {
        f"cp={deployment.cp}": deployment.cp > 1,
        f"kv_policy {deployment.kv_policy}": str(deployment.kv_policy) != "full",
        f"draft_tree={draft.tree if draft else None}": draft is not None and draft.tree is not None,
        "sequence_parallel": deployment.sequence_parallel,
    }
    for what, there in refused.items():
        if there:
            raise DeploymentError(f"{what} cannot be exported: no setting of {deployment.engine} is known for it")
