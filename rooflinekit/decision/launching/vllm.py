"""A deployment as `vllm serve` is told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rooflinekit.decision.launching.target import Target, Wish, common
from rooflinekit.model.types.errors import DeploymentError
from rooflinekit.model.types.speculation import Speculation

_GRAPHS = 512  # sequences: the largest batch for which graphs are captured by default (config/vllm.py)


def wishes(target: Target) -> Iterator[Wish]:
    """Everything that the prediction rests on, for the table to spell."""
    settings = target.plan.deployment.settings
    yield from _ranks(target)
    yield from _experts(target)
    yield from common(target)
    yield Wish("sequences", target.sequences, "sequences at once, of each attention replica")
    if target.tokens is not None:
        if not target.plan.engine.memory.chunked:
            yield Wish("chunked", True, "the token budget cuts prompts, which this version does only when told")
        yield Wish("tokens", target.tokens, "tokens of one step at most")
    if float(target.estimate.inputs["cached"]) > 0:
        yield Wish("prefix_cache", True, f"{target.estimate.inputs['cached']} prompt tokens come from the cache")
    if settings.eager:
        yield Wish("eager", True, "no CUDA graphs")
    elif target.running > _GRAPHS and target.table.find("graph_batch", target.version):
        yield Wish("graph_batch", target.running, f"CUDA graphs for batches above {_GRAPHS}, as predicted")
    if target.draft is not None:
        yield _draft(target, target.draft)
    if target.role:
        flag = target.table.find("transfer", target.version)
        because = f"the cache travels from prefill to decode ({target.role})"
        if flag is None or target.role not in flag.values:
            yield Wish("transfer", target.role, because, word=True)  # refused by name
        else:
            value = {"kv_connector": flag.values["nixl"], "kv_role": flag.values[target.role]}
            yield Wish("transfer", value, because)
    if target.hosts > 1 and not _dp_over_hosts(target):
        yield Wish("executor", "ray", f"one replica spans {target.hosts} hosts", word=True)


def _dp_over_hosts(target: Target) -> bool:
    """Whether attention replicas, each within one host, are spread over several."""
    deployment = target.plan.deployment
    return target.hosts > 1 and deployment.dp > 1 and target.host_gpus % (deployment.gpus // deployment.dp) == 0


def _ranks(target: Target) -> Iterator[Wish]:
    """How many accelerators share what."""
    deployment = target.plan.deployment
    if deployment.tp > 1:
        yield Wish("tp", deployment.tp, f"each layer over {deployment.tp} GPUs")
    if deployment.dp > 1:
        yield Wish("dp", deployment.dp, f"{deployment.dp} attention replicas")
    if _dp_over_hosts(target):
        yield Wish("dp_local", target.host_gpus // (deployment.gpus // deployment.dp), "of which this host has")
        yield Wish("head", "HEAD-HOST", "address of the first host")


def _experts(target: Target) -> Iterator[Wish]:
    """Expert parallelism spans all ranks of a stage here: on or off."""
    deployment = target.plan.deployment
    if deployment.ep > 1:
        if deployment.ep != deployment.stage:
            raise DeploymentError(
                f"ep={deployment.ep} cannot be exported: vllm spreads experts over all tp·dp ranks or none; "
                f"use ep=1 or ep={deployment.stage}"
            )
        yield Wish("ep", True, f"experts over all {deployment.ep} ranks")
    if deployment.redundant_experts:
        count = deployment.redundant_experts
        yield Wish("redundant_experts_on", True, "copies of popular experts")
        flag = target.table.find("redundant_experts", target.version)
        value: Any = {"num_redundant_experts": count} if flag and flag.kind == "json" else count
        yield Wish("redundant_experts", value, f"{count} copies over all ranks")


def _draft(target: Target, choice: Speculation) -> Wish:
    because = f"{choice.draft_tokens} tokens drafted in a row by {choice.draft}"
    flag = target.table.find("speculative", target.version)
    if flag is None or choice.method not in flag.values:
        return Wish("speculative", choice.method, because, word=True)  # refused by name
    value: dict[str, Any] = {"method": flag.values[choice.method], "num_speculative_tokens": choice.draft_tokens}
    if target.draft_model is not None:
        value["model"] = target.draft_model.argument
        if choice.method == "draft":
            value["draft_tensor_parallel_size"] = choice.tp or target.plan.deployment.tp
    return Wish("speculative", value, because)


def notes(target: Target) -> Iterator[str]:
    """What a user should know who starts this server."""
    pool, version = round(target.share.pool), target.version
    if flag := target.table.find("memory_bytes", version):
        yield f"the same pool in bytes, whatever else lies in memory: {flag.spelling} {pool} (it replaces the fraction)"
    flag = target.table.find("prefix_cache", version)
    if flag is not None and not float(target.estimate.inputs["cached"]):
        state = f"is {flag.default}" if flag.default else "may be on"
        yield f"the prefix cache of vllm {version} {state} by default; the prediction counts no hits"
    if target.exchanged == "deepep" and not target.role:
        yield "one vllm server takes low-latency kernels for prompts too; the prediction has DeepEP's normal ones there"
    if target.running > _GRAPHS and not target.table.find("graph_batch", version):
        yield f"decode batches above {_GRAPHS} run without CUDA graphs; the prediction has them with graphs"
    if _dp_over_hosts(target):
        yield (
            f"one replica needs {target.hosts} hosts: this is the command of the first (HEAD-HOST). Each other also "
            "takes --headless, and --data-parallel-start-rank with the number of its first attention replica"
        )
    elif target.hosts > 1:
        yield f"one replica needs {target.hosts} hosts: join them in one Ray cluster first"
