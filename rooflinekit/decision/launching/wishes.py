"""Wishes of a deployment to each engine, concept by concept; the table of its flags has the spelling."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rooflinekit.decision.launching.target import Target, Wish
from rooflinekit.model.types.errors import DeploymentError

_GRAPHS = 512  # sequences: the largest batch for which vLLM captures graphs by default (config/vllm.py)
_PREFILL = 16_384  # tokens of SGLang's --max-prefill-tokens by default


def wishes(target: Target) -> list[Wish]:
    """Everything that the prediction rests on, in the order of the command."""
    return [wish for wish in _ENGINES[target.table.engine][0](target) if wish.when]


def engine_notes(target: Target) -> Iterator[str]:
    """Notes for a user who starts this server."""
    return _ENGINES[target.table.engine][1](target)


def _common(target: Target) -> list[Wish]:
    """Wishes that every engine takes alike: pipeline, context, memory, formats, blocks."""
    deployment, inputs, weights = target.plan.deployment, target.estimate.inputs, target.weights
    stream, kv = target.plan.precision.stream, target.plan.precision.kv
    dtype, online = weights.dtype and weights.dtype.value, weights.online and weights.online.value
    quantised = f"the server quantises the weights to {online} as it loads them"
    other_kv = kv is not (target.plan.model.kv_dtype or stream) or not kv.is_wide
    exchanged = f"experts are exchanged by {deployment.all_to_all}"
    length = f"longest sequence; requests are {inputs['isl']} + {inputs['osl']} tokens"
    settings = deployment.settings
    block, looks = settings.block_size, settings.scheduler_recv_interval
    return [
        Wish("pp", deployment.pp, f"{deployment.pp} pipeline stages", when=deployment.pp > 1),
        Wish("all_to_all", target.exchanged, exchanged, word=True, when=bool(target.exchanged)),
        Wish("two_batch", True, "halves of a step take turns", when=deployment.two_batch and target.has("two_batch")),
        Wish("revision", target.checkpoint.revision, "the revision that was named",
             when=bool(target.checkpoint.revision)),
        Wish("context", target.longest, length),
        Wish("memory", target.share.fraction, target.share.sum),
        Wish("dtype", dtype, f"weights and activations in {dtype}", word=True, when=dtype is not None),
        Wish("quantization", online, quantised, word=True, when=online is not None),
        Wish("kv", kv.value, f"KV cache in {kv}", word=True, when=other_kv),
        Wish("block", block, "tokens of one block of the cache", when=block is not None),
        Wish("api_servers", settings.api_servers, "processes that read requests and send answers",
             when=settings.api_servers is not None),
        Wish("stream_interval", settings.stream_interval, "tokens that are sent together",
             when=settings.stream_interval > 1),
        Wish("receive_interval", looks, "decode steps between two looks at new requests", when=looks > 1),
        Wish("batch_wait", settings.batch_wait, "steps for which prompts are gathered", when=settings.batch_wait > 0),
    ]  # fmt: skip


def _prefix_cache(target: Target) -> Wish:
    cached = target.estimate.inputs["cached"]
    return Wish("prefix_cache", True, f"{cached} prompt tokens come from the cache", when=float(cached) > 0)


def _vllm(target: Target) -> Iterator[Wish]:
    deployment, eager, role = target.plan.deployment, target.plan.deployment.settings.eager, target.role
    tp, dp, ep, copies = deployment.tp, deployment.dp, deployment.ep, deployment.redundant_experts
    if ep not in (1, deployment.stage):
        raise DeploymentError(
            f"ep={ep} cannot be exported: vllm spreads experts over all tp·dp ranks or none; "
            f"use ep=1 or ep={deployment.stage}"
        )
    spread = _dp_over_hosts(target)
    yield Wish("tp", tp, f"each layer over {tp} GPUs", when=tp > 1)
    yield Wish("dp", dp, f"{dp} attention replicas", when=dp > 1)
    yield Wish("dp_local", target.host_gpus // (deployment.gpus // dp), "of which this host has", when=spread)
    yield Wish("head", "HEAD-HOST", "address of the first host", when=spread)
    yield Wish("ep", True, f"experts over all {ep} ranks", when=ep > 1)
    yield Wish("redundant_experts_on", True, "copies of popular experts", when=copies > 0)
    flag = target.flag("redundant_experts")
    value: Any = {"num_redundant_experts": copies} if flag and flag.kind == "json" else copies
    yield Wish("redundant_experts", value, f"{copies} copies over all ranks", when=copies > 0)
    yield from _common(target)
    yield Wish("sequences", target.sequences, "sequences at once, of each attention replica")
    if target.tokens is not None:
        cuts = "the token budget cuts prompts, which this version does only when told"
        yield Wish("chunked", True, cuts, when=not target.plan.engine.memory.chunked)
        yield Wish("tokens", target.tokens, "tokens of one step at most")
    yield _prefix_cache(target)
    yield Wish("eager", True, "no CUDA graphs", when=eager)
    yield Wish("graph_batch", target.running, f"CUDA graphs for batches above {_GRAPHS}, as predicted",
               when=not eager and target.running > _GRAPHS and target.has("graph_batch"))  # fmt: skip
    yield from _vllm_draft(target)
    if role:
        flag = target.flag("transfer")
        because = f"the cache travels from prefill to decode ({role})"
        if flag is None or role not in flag.values:
            yield Wish("transfer", role, because, word=True)  # refused by name
        else:
            yield Wish("transfer", {"kv_connector": flag.values["nixl"], "kv_role": flag.values[role]}, because)
    yield Wish("executor", "ray", f"one replica spans {target.hosts} hosts", word=True,
               when=target.hosts > 1 and not spread)  # fmt: skip


def _dp_over_hosts(target: Target) -> bool:
    """True if attention replicas, each within one host, are spread over several."""
    deployment = target.plan.deployment
    return target.hosts > 1 and deployment.dp > 1 and target.host_gpus % (deployment.gpus // deployment.dp) == 0


def _vllm_draft(target: Target) -> Iterator[Wish]:
    choice, flag = target.draft, target.flag("speculative")
    if choice is None:
        return
    if flag is None or choice.method not in flag.values:
        yield Wish("speculative", choice.method, target.drafted, word=True)  # refused by name
        return
    value: dict[str, Any] = {"method": flag.values[choice.method], "num_speculative_tokens": choice.draft_tokens}
    if target.draft_model is not None:
        value["model"] = target.draft_model.argument
        if choice.method == "draft":
            value["draft_tensor_parallel_size"] = choice.tp or target.plan.deployment.tp
    yield Wish("speculative", value, target.drafted)


def _vllm_notes(target: Target) -> Iterator[str]:
    version = target.version
    if flag := target.flag("memory_bytes"):
        pool = round(target.share.pool)
        yield f"the same pool in bytes, whatever else lies in memory: {flag.spelling} {pool} (it replaces the fraction)"
    if (flag := target.flag("prefix_cache")) and not float(target.estimate.inputs["cached"]):
        state = f"is {flag.default}" if flag.default else "may be on"
        yield f"the prefix cache of vllm {version} {state} by default; the prediction counts no hits"
    if target.exchanged == "deepep" and not target.role:
        yield "one vllm server takes low-latency kernels for prompts too; the prediction has DeepEP's normal ones there"
    if target.running > _GRAPHS and not target.has("graph_batch"):
        yield f"decode batches above {_GRAPHS} run without CUDA graphs; the prediction has them with graphs"
    if _dp_over_hosts(target):
        yield (
            f"one replica needs {target.hosts} hosts: this is the command of the first (HEAD-HOST). Each other also "
            "takes --headless, and --data-parallel-start-rank with the number of its first attention replica"
        )
    elif target.hosts > 1:
        yield f"one replica needs {target.hosts} hosts: join them in one Ray cluster first"


def _sglang(target: Target) -> Iterator[Wish]:
    """Attention DP lies inside the tensor parallel group; without experts, DP is whole copies."""
    deployment, eager = target.plan.deployment, target.plan.deployment.settings.eager
    dp, ep, copies, hosts = deployment.dp, deployment.ep, deployment.redundant_experts, target.hosts
    attention = dp > 1 and target.experts
    tp = target.total_tp if attention else deployment.tp
    all_ranks = target.has("ep_all")
    if all_ranks and ep not in (1, tp):
        raise DeploymentError(
            f"ep={ep} cannot be exported: sglang {target.version} spreads experts over all {tp} ranks "
            f"or none; use ep=1 or ep={tp}"
        )
    among = f", of which {deployment.tp} share each attention replica" if attention else ""
    shared = dp if target.experts else 1  # limits of a server with attention DP are of all its ranks
    tokens = (target.tokens or 0) * shared
    yield Wish("model", target.checkpoint.argument, "the model")
    yield Wish("tp", tp, f"{tp} GPUs{among}", when=tp > 1)
    yield Wish("attention_dp", dp, f"{dp} attention replicas", when=attention)
    yield Wish("attention_dp_on", True, "they share the experts", when=attention and target.has("attention_dp_on"))
    yield Wish("dp", dp, f"{dp} copies", when=dp > 1 and not attention)
    yield Wish("ep_all", True, f"experts over all {tp} ranks", when=ep > 1 and all_ranks)
    yield Wish("ep", ep, f"experts over {ep} ranks", when=ep > 1 and not all_ranks)
    yield Wish("redundant_experts_on", True, "copies of popular experts", when=copies > 0)
    yield Wish("redundant_experts", copies, "copies over all ranks", when=copies > 0)
    yield from _common(target)
    yield Wish("nodes", hosts, "hosts of one replica", when=hosts > 1)
    yield Wish("node_rank", 0, "the first of them; count up on the others", when=hosts > 1)
    yield Wish("head", "HEAD-HOST:5000", "address of the first of them", when=hosts > 1)
    yield Wish("sequences", target.sequences * shared, "sequences at once")
    yield Wish("tokens", tokens, "tokens of one prefill step at most", when=tokens > 0)
    yield Wish("prefill_tokens", tokens, "room for such a step", when=tokens > _PREFILL)
    whole = target.has("eager")
    yield Wish("eager", True, "no CUDA graphs", when=eager and whole)
    yield Wish("eager_decode", "eager", "no CUDA graphs", word=True, when=eager and not whole)
    yield Wish("eager_prefill", "eager", "no CUDA graphs", word=True, when=eager and not whole)
    yield Wish("graph_batch", target.graph_batch, "CUDA graphs for decode batches up to this", when=not eager)
    if (choice := target.draft) is not None:
        count, one_by_one = choice.draft_tokens, choice.method != "ngram"
        verified = "tokens verified: those drafted, and the certain one" if one_by_one else target.drafted
        yield Wish("speculative", choice.method, target.drafted, word=True)
        if target.draft_model is not None:
            yield Wish("draft_model", target.draft_model.argument, "draft model")
        yield Wish("draft_steps", count, target.drafted, when=one_by_one)
        yield Wish("draft_topk", 1, "one candidate at each place", when=one_by_one)
        yield Wish("draft_tokens", count + one_by_one, verified)
    yield Wish("transfer_mode", target.role, "one part of a split deployment", word=True, when=bool(target.role))
    yield Wish("transfer_backend", "nixl", "how the cache travels", word=True, when=bool(target.role))


def _sglang_notes(target: Target) -> Iterator[str]:
    if not float(target.estimate.inputs["cached"]):
        flag = target.flag("prefix_cache_off")
        off = f" ({flag.spelling} turns it off)" if flag else ""
        yield f"the prefix cache is on by default; the prediction counts no hits{off}"
    if target.hosts > 1:
        yield (
            f"one replica needs {target.hosts} hosts: start this command on each, with --node-rank 0 to "
            f"{target.hosts - 1}. HEAD-HOST is the address of the first"
        )


def _trtllm(target: Target) -> Iterator[Wish]:
    """Attention DP makes every rank of the tensor parallel group a replica."""
    deployment, eager = target.plan.deployment, target.plan.deployment.settings.eager
    dp, ep, cached = deployment.dp, deployment.ep, _prefix_cache(target)
    if dp > 1 and (deployment.tp > 1 or not target.experts):
        raise DeploymentError(
            f"tp={deployment.tp} with dp={dp} cannot be exported: trtllm has dp for models with experts, "
            "one rank a replica. Use tp=1, or replicas instead of dp"
        )
    if deployment.redundant_experts:
        raise DeploymentError("redundant_experts cannot be exported: no setting of trtllm is known for it")
    each = " of each attention replica" if dp > 1 else ""
    shared = _common(target)
    yield Wish("backend", "pytorch", "the runtime that the prediction describes", word=True)
    yield Wish("tp", target.total_tp, f"{target.total_tp} GPUs", when=target.total_tp > 1)
    yield Wish("attention_dp_on", True, f"{dp} attention replicas, one a rank", when=dp > 1)
    yield Wish("ep", ep, f"experts over {ep} ranks", when=ep > 1)
    yield Wish("nodes", target.host_gpus, "GPUs of one host", when=target.hosts > 1)
    yield from shared
    yield Wish("sequences", target.sequences, f"sequences at once{each}")
    yield Wish("tokens", target.tokens, "tokens of one step at most")
    yield Wish("chunked", True, "the token budget cuts prompts, which it does only when told")
    yield Wish("eager", None, "no CUDA graphs", when=eager)
    yield Wish("graph_batch", target.graph_batch, "CUDA graphs for decode batches up to this", when=not eager)
    yield Wish("graph_padding", True, "batches between two captured sizes use the next larger", when=not eager)
    if (choice := target.draft) is not None:
        yield Wish("speculative", choice.method, target.drafted, word=True)
        yield Wish("draft_layers" if choice.method == "mtp" else "draft_tokens", choice.draft_tokens, target.drafted)
    yield Wish("transfer_backend", "default", "how the cache travels", word=True, when=bool(target.role))
    yield Wish("transfer_buffer", target.longest, "room for the longest prompt", when=bool(target.role))
    yield Wish("no_overlap", True, "prefill servers run without the overlap scheduler", when=target.role == "prefill")
    yield cached
    again = cached.when or any(wish.when and wish.concept in ("kv", "block") for wish in shared)
    yield Wish("fraction_again", target.share.fraction, "this section of the file replaces the option", when=again)


def _trtllm_notes(target: Target) -> Iterator[str]:
    if not float(target.estimate.inputs["cached"]):
        yield "block reuse (the prefix cache) is on by default; the prediction counts no hits"
    if target.hosts > 1:
        yield f"one replica needs {target.hosts} hosts: start it under mpirun or Slurm, one process a GPU"


_ENGINES: dict[str, tuple[Callable[[Target], Iterator[Wish]], Callable[[Target], Iterator[str]]]] = {
    "vllm": (_vllm, _vllm_notes), "sglang": (_sglang, _sglang_notes), "trtllm": (_trtllm, _trtllm_notes),
}  # fmt: skip
