"""A deployment as SGLang's `launch_server` is told."""

from __future__ import annotations

from collections.abc import Iterator

from rooflinekit.decision.launching.target import Target, Wish, common
from rooflinekit.model.types.errors import DeploymentError
from rooflinekit.model.types.speculation import Speculation

_PREFILL = 16_384  # tokens of --max-prefill-tokens by default


def wishes(target: Target) -> Iterator[Wish]:
    """Everything that the prediction rests on, for the table to spell."""
    deployment, settings = target.plan.deployment, target.plan.deployment.settings
    yield Wish("model", target.checkpoint.argument, "the model")
    yield from _ranks(target)
    yield from common(target)
    if target.hosts > 1:
        yield Wish("nodes", target.hosts, "hosts of one replica")
        yield Wish("node_rank", 0, "the first of them; count up on the others")
        yield Wish("head", "HEAD-HOST:5000", "address of the first of them")
    shared = deployment.dp if target.experts else 1  # limits of a server with attention DP are of all its ranks
    yield Wish("sequences", target.sequences * shared, "sequences at once")
    tokens = (target.tokens or 0) * shared
    if tokens:
        yield Wish("tokens", tokens, "tokens of one prefill step at most")
    if tokens > _PREFILL:
        yield Wish("prefill_tokens", tokens, "room for such a step")
    if settings.eager:
        if target.table.find("eager", target.version):
            yield Wish("eager", True, "no CUDA graphs")
        else:
            yield Wish("eager_decode", "eager", "no CUDA graphs", word=True)
            yield Wish("eager_prefill", "eager", "no CUDA graphs", word=True)
    else:
        yield Wish("graph_batch", target.graph_batch, "CUDA graphs for decode batches up to this")
    if target.draft is not None:
        yield from _draft(target, target.draft)
    if target.role:
        yield Wish("transfer_mode", target.role, "one part of a split deployment", word=True)
        yield Wish("transfer_backend", "nixl", "how the cache travels", word=True)


def _ranks(target: Target) -> Iterator[Wish]:
    """Attention DP lies inside the tensor parallel group; without experts, DP is whole copies."""
    deployment = target.plan.deployment
    attention = deployment.dp > 1 and target.experts
    tp = target.total_tp if attention else deployment.tp
    if tp > 1:
        yield Wish("tp", tp, f"{tp} GPUs" + (f", of which {deployment.tp} share each attention replica" * attention))
    if attention:
        yield Wish("attention_dp", deployment.dp, f"{deployment.dp} attention replicas")
        if target.table.find("attention_dp_on", target.version):
            yield Wish("attention_dp_on", True, "they share the experts")
    elif deployment.dp > 1:
        yield Wish("dp", deployment.dp, f"{deployment.dp} copies")
    if deployment.ep > 1 and target.table.find("ep_all", target.version):
        if deployment.ep != tp:
            raise DeploymentError(
                f"ep={deployment.ep} cannot be exported: sglang {target.version} spreads experts over all {tp} ranks "
                f"or none; use ep=1 or ep={tp}"
            )
        yield Wish("ep_all", True, f"experts over all {tp} ranks")
    elif deployment.ep > 1:
        yield Wish("ep", deployment.ep, f"experts over {deployment.ep} ranks")
    if deployment.redundant_experts:
        yield Wish("redundant_experts_on", True, "copies of popular experts")
        yield Wish("redundant_experts", deployment.redundant_experts, "copies over all ranks")


def _draft(target: Target, choice: Speculation) -> Iterator[Wish]:
    because = f"{choice.draft_tokens} tokens drafted in a row by {choice.draft}"
    yield Wish("speculative", choice.method, because, word=True)
    if target.draft_model is not None:
        yield Wish("draft_model", target.draft_model.argument, "what drafts")
    if choice.method != "ngram":
        yield Wish("draft_steps", choice.draft_tokens, because)
        yield Wish("draft_topk", 1, "one candidate at each place")
        yield Wish("draft_tokens", choice.draft_tokens + 1, "tokens verified: those drafted, and the certain one")
    else:
        yield Wish("draft_tokens", choice.draft_tokens, because)


def notes(target: Target) -> Iterator[str]:
    """What a user should know who starts this server."""
    if not float(target.estimate.inputs["cached"]):
        flag = target.table.find("prefix_cache_off", target.version)
        off = f" ({flag.spelling} turns it off)" if flag else ""
        yield f"the prefix cache is on by default; the prediction counts no hits{off}"
    if target.hosts > 1:
        yield (
            f"one replica needs {target.hosts} hosts: start this command on each, with --node-rank 0 to "
            f"{target.hosts - 1}. HEAD-HOST is the address of the first"
        )
