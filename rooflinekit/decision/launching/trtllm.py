"""A deployment as `trtllm-serve` is told: options, and a YAML file for the rest."""

from __future__ import annotations

from collections.abc import Iterator

from rooflinekit.decision.launching.target import Target, Wish, common
from rooflinekit.model.types.errors import DeploymentError
from rooflinekit.model.types.speculation import Speculation


def wishes(target: Target) -> Iterator[Wish]:
    """Everything that the prediction rests on, for the table to spell."""
    deployment, settings = target.plan.deployment, target.plan.deployment.settings
    yield Wish("backend", "pytorch", "the runtime that the prediction describes", word=True)
    yield from _ranks(target)
    shared = list(common(target))
    yield from shared
    yield Wish("sequences", target.sequences, "sequences at once" + " of each attention replica" * (deployment.dp > 1))
    yield Wish("tokens", target.tokens, "tokens of one step at most")
    yield Wish("chunked", True, "the token budget cuts prompts, which it does only when told")
    if settings.eager:
        yield Wish("eager", None, "no CUDA graphs")
    else:
        yield Wish("graph_batch", target.graph_batch, "CUDA graphs for decode batches up to this")
        yield Wish("graph_padding", True, "batches between two captured sizes use the next larger")
    if target.draft is not None:
        yield from _draft(target.draft)
    if target.role:
        yield Wish("transfer_backend", "default", "how the cache travels", word=True)
        yield Wish("transfer_buffer", target.longest, "room for the longest prompt")
    if target.role == "prefill":
        yield Wish("no_overlap", True, "prefill servers run without the overlap scheduler")
    cached = float(target.estimate.inputs["cached"]) > 0
    if cached:
        yield Wish("prefix_cache", True, f"{target.estimate.inputs['cached']} prompt tokens come from the cache")
    if cached or any(wish.concept in ("kv", "block") for wish in shared):
        yield Wish("fraction_again", target.share.fraction, "this section of the file replaces the option")


def _ranks(target: Target) -> Iterator[Wish]:
    """Attention DP makes every rank of the tensor parallel group a replica."""
    deployment = target.plan.deployment
    if deployment.dp > 1 and (deployment.tp > 1 or not target.experts):
        raise DeploymentError(
            f"tp={deployment.tp} with dp={deployment.dp} cannot be exported: trtllm has dp for models with experts, "
            "one rank a replica. Use tp=1, or replicas instead of dp"
        )
    if deployment.redundant_experts:
        raise DeploymentError("redundant_experts cannot be exported: no setting of trtllm is known for it")
    if target.total_tp > 1:
        yield Wish("tp", target.total_tp, f"{target.total_tp} GPUs")
    if deployment.dp > 1:
        yield Wish("attention_dp_on", True, f"{deployment.dp} attention replicas, one a rank")
    if deployment.ep > 1:
        yield Wish("ep", deployment.ep, f"experts over {deployment.ep} ranks")
    if target.hosts > 1:
        yield Wish("nodes", target.host_gpus, "GPUs of one host")


def _draft(choice: Speculation) -> Iterator[Wish]:
    because = f"{choice.draft_tokens} tokens drafted in a row by {choice.draft}"
    yield Wish("speculative", choice.method, because, word=True)
    yield Wish("draft_layers" if choice.method == "mtp" else "draft_tokens", choice.draft_tokens, because)


def notes(target: Target) -> Iterator[str]:
    """What a user should know who starts this server."""
    if not float(target.estimate.inputs["cached"]):
        yield "block reuse (the prefix cache) is on by default; the prediction counts no hits"
    if target.hosts > 1:
        yield f"one replica needs {target.hosts} hosts: start it under mpirun or Slurm, one process a GPU"
