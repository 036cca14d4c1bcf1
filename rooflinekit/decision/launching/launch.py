"""The front door: a deployment or a plan in, servers with commands, files and a shell script out."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from itertools import pairwise
from os import PathLike
from pathlib import Path
from textwrap import indent, wrap
from typing import Any, TypeGuard

import yaml

from rooflinekit.decision.launching.target import LaunchSetting, Target, Wish, aim, grant
from rooflinekit.estimation.estimator import usual_kv
from rooflinekit.estimation.options import Keywords, OwnKeywords, Value
from rooflinekit.model.types.answer import Answer, Json, plain
from rooflinekit.model.types.batch import whole_number
from rooflinekit.model.types.errors import DeploymentError, DoesNotFitError, InputError
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.model.types.units import GB, format_time
from rooflinekit.specs.files import read_json
from rooflinekit.version import __version__

HEAD = "HEAD-HOST"  #: address of the first of several hosts, for a user to replace
_GRAPHS = 512  # sequences: the largest batch for which vLLM captures graphs by default (config/vllm.py)
_PREFILL = 16_384  # tokens of SGLang's --max-prefill-tokens by default
_LOGICAL = 2_048  # tokens of llama.cpp's --batch-size by default
_PADDED = 256  # tokens to whose multiples llama.cpp rounds a slot up (n_ctx_seq in src/llama-context.cpp)


def wishes(target: Target) -> list[Wish]:
    """Everything that the prediction rests on, in the order of the command."""
    return [wish for wish in _ENGINES[target.table.engine][0](target) if wish.when]


def _common(target: Target) -> list[Wish]:
    """Wishes that every engine takes alike: pipeline, context, memory, formats, blocks."""
    deployment, inputs, weights = target.plan.deployment, target.estimate.inputs, target.weights
    stream, kv = target.plan.precision.stream, target.plan.precision.kv
    dtype, online = weights.dtype and weights.dtype.value, weights.online and weights.online.value
    quantised = f"the server quantises the weights to {online} as it loads them"
    usual = usual_kv(target.plan.engine, target.plan.model, target.plan.system.accelerator)
    other_kv = kv is not (target.plan.model.kv_dtype or stream) or not kv.is_wide or bool(usual)
    exchanged = f"experts are exchanged by {deployment.all_to_all}"
    length = f"longest sequence; requests are {inputs['isl']} + {inputs['osl']} tokens"
    settings = deployment.settings
    block, looks, told = settings.block_size, settings.scheduler_recv_interval, settings.async_scheduling
    vllm, overlaps = target.table.engine == "vllm", target.has("no_overlap")
    serial = told == "off" or (target.table.engine, target.role) == ("trtllm", "prefill")  # as its own examples do
    return [
        Wish("pp", deployment.pp, f"{deployment.pp} pipeline stages", when=deployment.pp > 1),
        Wish("all_to_all", target.exchanged, exchanged, word=True, when=bool(target.exchanged)),
        Wish("two_batch", True, "halves of a step take turns", when=deployment.two_batch and target.has("two_batch")),
        Wish(
            "revision", target.checkpoint.revision, "the revision that was named", when=bool(target.checkpoint.revision)
        ),
        Wish("context", target.longest, length),
        Wish("memory", target.share.fraction, target.share.sum),
        Wish("dtype", dtype, f"weights and activations in {dtype}", word=True, when=dtype is not None),
        Wish("quantization", online, quantised, word=True, when=online is not None),
        Wish("kv", kv.value, f"KV cache in {kv}", word=True, when=other_kv),
        Wish("block", block, "tokens of one block of the cache", when=block is not None),
        Wish(
            "api_servers",
            settings.api_servers,
            "processes that read requests and send answers",
            when=settings.api_servers is not None,
        ),
        Wish(
            "stream_interval",
            settings.stream_interval,
            "tokens that are sent together",
            when=settings.stream_interval > 1,
        ),
        Wish("async_scheduling", True, "the host prepares a step while one runs", when=vllm and told == "on"),
        Wish("no_overlap", True, "no step is prepared while one runs", when=serial and (not vllm or overlaps)),
        Wish("receive_interval", looks, "decode steps between two looks at new requests", when=looks > 1),
        Wish("batch_wait", settings.batch_wait, "steps for which prompts are gathered", when=settings.batch_wait > 0),
    ]


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
    yield Wish("head", HEAD, "address of the first host", when=spread)
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
    yield Wish(
        "graph_batch",
        target.running,
        f"CUDA graphs for batches above {_GRAPHS}, as predicted",
        when=not eager and target.running > _GRAPHS and target.has("graph_batch"),
    )
    yield from _vllm_draft(target)
    if role:
        flag = target.flag("transfer")
        because = f"the cache travels from prefill to decode ({role})"
        if flag is None or role not in flag.values:
            yield Wish("transfer", role, because, word=True)  # refused by name
        else:
            yield Wish("transfer", {"kv_connector": flag.values["nixl"], "kv_role": flag.values[role]}, because)
    yield Wish(
        "executor", "ray", f"one replica spans {target.hosts} hosts", word=True, when=target.hosts > 1 and not spread
    )


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
    if target.states_in_blocks:
        yield (
            "each sequence keeps its state in a block of the cache, and a first start, which compiles, may have fewer "
            "(vLLM issue 54122): start it again, or lower --max-num-seqs"
        )
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
    yield Wish("head", f"{HEAD}:5000", "address of the first of them", when=hosts > 1)
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
        own = choice.method == "mtp" and target.plan.model.compressed  # DeepSeek-V4's hook takes no other name
        method = "eagle" if own else choice.method
        yield Wish("speculative", method, target.drafted, word=True)
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
    yield cached
    again = cached.when or any(wish.when and wish.concept in ("kv", "block") for wish in shared)
    yield Wish("fraction_again", target.share.fraction, "this section of the file replaces the option", when=again)


def _trtllm_notes(target: Target) -> Iterator[str]:
    if not float(target.estimate.inputs["cached"]):
        yield "block reuse (the prefix cache) is on by default; the prediction counts no hits"
    if target.hosts > 1:
        yield f"one replica needs {target.hosts} hosts: start it under mpirun or Slurm, one process a GPU"


def _llamacpp(target: Target) -> Iterator[Wish]:
    """A slot for each sequence, of the longest length; devices share the layers."""
    deployment, draft = target.plan.deployment, target.draft
    for name in ("tp", "dp", "ep"):
        if (degree := getattr(deployment, name)) > 1:
            raise DeploymentError(
                f"{name}={degree} cannot be exported: llama.cpp gives each device some of the layers; use --pp"
            )
    slots, host, budget = target.sequences, deployment.offload_layers, target.tokens or 0
    kept, longest = len(target.plan.model.layers) + 1 - host, _of_a_slot(target)  # the LM head is the last of them
    yield Wish("model", target.checkpoint.argument, "the model")
    yield Wish("layers", str(kept) if host else "all", f"the host keeps {host or 'no'} layers")
    yield Wish("experts_on_host", True, "the host keeps the routed experts", when=deployment.offload_experts)
    first = deployment.n_cpu_moe
    yield Wish("expert_layers_on_host", first, f"the host keeps the routed experts of {first} layers", when=first > 0)
    yield Wish("pp", "layers", f"layers over {deployment.pp} devices", word=True, when=deployment.pp > 1)
    yield Wish("context", slots * longest, f"{slots} slots of {longest} tokens")
    yield Wish("sequences", slots, "sequences at once")
    yield Wish("batch", budget, "room for such a step", when=budget > _LOGICAL)
    yield Wish("tokens", budget, "tokens of one step at most")
    kv = target.plan.precision.kv
    wanted = not kv.is_wide or deployment.kv is not None
    for concept in ("kv", "kv_values"):
        yield Wish(concept, kv.value, f"KV cache in {kv}", word=True, when=wanted)
    if draft is not None:
        if draft.method != "draft" or target.draft_model is None:
            yield Wish("speculative", draft.method, target.drafted, word=True)  # refused by name
            return
        yield Wish("draft_model", target.draft_model.argument, "draft model")
        yield Wish("draft_tokens", draft.draft_tokens, target.drafted)


def _of_a_slot(target: Target) -> int:
    """Tokens of a slot: of the longest sequence where all slots have room for one, else what there is room for.

    The cache of every slot is there from the start.
    """
    inputs, slots = target.estimate.inputs, target.sequences
    pool, request = target.estimate.memory.kv_pool_tokens, int(inputs["isl"]) + int(inputs["osl"])
    room, request = pool // slots // _PADDED * _PADDED, math.ceil(request / _PADDED) * _PADDED
    if room < request:
        raise DoesNotFitError(
            f"{slots} slots of {request} tokens do not fit: there is room for {pool} tokens, and slots have whole "
            f"{_PADDED}s; use --max-num-seqs {max(pool // request, 1)} at most"
        )
    return min(target.longest, room)


def _llamacpp_notes(target: Target) -> Iterator[str]:
    if (slot := _of_a_slot(target)) < target.longest:
        yield f"a slot has {slot} tokens and not {target.longest}: {target.sequences} of those do not fit"
    if not float(target.estimate.inputs["cached"]):
        yield "prompts of a slot are kept by default; the prediction counts no hits (--no-cache-prompt turns it off)"
    if target.draft_model is not None:
        yield f"replace {target.draft_model.argument} by a GGUF file of the draft model"


_ENGINES: dict[str, tuple[Callable[[Target], Iterator[Wish]], Callable[[Target], Iterator[str]]]] = {
    "vllm": (_vllm, _vllm_notes),
    "sglang": (_sglang, _sglang_notes),
    "trtllm": (_trtllm, _trtllm_notes),
    "llama.cpp": (_llamacpp, _llamacpp_notes),
}


_WIDTH = 80
_PORTS = {"": 8000, "prefill": 8100, "decode": 8200}
_PART = 1000  # ports between the parts of a mixed fleet
_BOOTSTRAP = 8998  # where SGLang's prefill servers are found by default
_LENGTHS = {"isl": "isl_mean", "osl": "osl_mean"}  # keywords of estimate, and what a plan's traffic calls them
_SPREADS = ("isl_cv", "osl_cv")
_LOADS = ("batch", "rate", "concurrency")
_CHANNEL = 5600 - 8000  # vLLM's default side channel (docs/features/nixl_connector_usage.md), beside the port


@dataclass(frozen=True, slots=True)
class ServerPart:
    """Servers of one kind: their scenario, how many, and their place in a split or a fleet."""

    role: str  #: "", prefill or decode
    scenario: Keywords
    replicas: int
    number: int = 0  #: part of a mixed fleet, from 1; 0 if there is only one

    @property
    def name(self) -> str:
        """Name of its script and files."""
        return f"part-{self.number}-{self.role or 'serve'}" if self.number else self.role or "serve"


@dataclass(frozen=True, slots=True)
class Prediction:
    """The numbers that a server was exported with, from the estimate of its very settings."""

    model: str
    gpu: str
    gpus: int
    engine: str
    version: str
    level: str
    batch: int
    isl: int
    osl: int
    load: str | None  #: what arrives, in words; None for a static batch
    ttft_ms: float
    tpot_ms: float
    output_tok_s: float
    kv_pool_bytes: float
    kv_pool_tokens: int


@dataclass(frozen=True, slots=True)
class Server:
    """One kind of server, and how many of it."""

    role: str  #: serve, prefill or decode; part-1-… in a mixed fleet
    program: tuple[str, ...]
    positional: tuple[str, ...]
    settings: tuple[LaunchSetting, ...]
    front_end: str  #: file that the front end of a split reads, written with its prefill servers; "" if there is none
    config_flag: str  #: option that names the configuration file; "" if the engine has none
    ports: tuple[tuple[str, int], ...]  #: options that take a port, with that of the first replica on a host
    replicas: int
    host_gpus: int
    prediction: Prediction
    side_channel: int = 0  #: port at which vLLM's servers of a split deployment agree on transfers; 0 for others
    attention_replicas: int = 1
    rate: float | None = None  #: requests a second that one replica is planned for; None where nothing says so

    @property
    def port(self) -> int:
        """Port of the first replica on a host."""
        return self.ports[0][1]

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return self.prediction.gpus

    @property
    def per_host(self) -> int:
        """Replicas that one host has GPUs for, as many as there are."""
        return max(min(self.host_gpus // self.gpus, self.replicas), 1)

    @property
    def hosts(self) -> int:
        """Hosts for all replicas."""
        return -(-self.replicas // self.per_host) * -(-self.gpus // self.host_gpus)

    @property
    def config(self) -> Json:
        """The configuration file as nested keys; empty if everything is on the command line."""
        nested: dict[str, Any] = {}
        for setting in self.settings:
            if not setting.on_command_line:
                *path, last = setting.flag.split(".")
                place = nested
                for key in path:
                    place = place.setdefault(key, {})
                place[last] = setting.value
        return nested

    @property
    def config_name(self) -> str:
        """Name of the configuration file; "" if there is none."""
        return f"{self.role}.yaml" if self.config_flag and self.config else ""

    def options(self, number: int = 0) -> tuple[tuple[str, ...], ...]:
        """Options of one replica on its host, each with its value."""
        named = [setting.args for setting in self.settings if setting.on_command_line]
        file = [(self.config_flag, self.config_name)] if self.config_name else []
        return (*named, *file, *((flag, str(first + number)) for flag, first in self.ports))

    def args(self, number: int = 0) -> tuple[str, ...]:
        """The command of one replica on its host, as arguments that need no shell."""
        words = [word for option in self.options(number) for word in option]
        return (*self.program, *self.positional, *words)

    def env(self, number: int = 0) -> dict[str, str]:
        """Environment of one replica: its GPUs where several share a host."""
        found: dict[str, str] = {}
        if self.per_host > 1:
            first = number * self.gpus
            found["CUDA_VISIBLE_DEVICES"] = ",".join(str(gpu) for gpu in range(first, first + self.gpus))
        if self.side_channel:  # each attention replica takes one port
            found["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(self.side_channel + number * self.attention_replicas)
        return found

    def to_dict(self) -> Json:
        """Plain values for JSON."""
        settings = ("flag", "value", "because", "source")
        return {
            "role": self.role,
            "replicas": self.replicas,
            "replicas_per_host": self.per_host,
            "hosts": self.hosts,
            "gpus_per_replica": self.gpus,
            "port": self.port,
            "commands": [{"env": self.env(n), "args": list(self.args(n))} for n in range(self.per_host)],
            "settings": [{name: getattr(setting, name) for name in settings} for setting in self.settings],
            "prediction": asdict(self.prediction),
        }


@dataclass(frozen=True)
class Launch(Answer):
    """Every server of a deployment or plan; `files` and `commands` hold what to write and what to run."""

    servers: tuple[Server, ...]
    extra_files: Mapping[str, str]
    notes: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    @property
    def commands(self) -> tuple[tuple[str, ...], ...]:
        """One command a replica of a host, server by server, as argument lists."""
        return tuple(server.args(number) for server in self.servers for number in range(server.per_host))

    @property
    def files(self) -> dict[str, str]:
        """Names and texts of the configuration files."""
        own = {
            server.config_name: yaml.safe_dump(server.config, sort_keys=False, width=10**6)
            for server in self.servers
            if server.config_name
        }
        return own | dict(self.extra_files)

    def to_dict(self) -> Json:
        """Plain values for JSON."""
        return {key: plain(getattr(self, key)) for key in ("servers", "files", "notes", "warnings")}


def launch_script(launch: Launch, with_files: bool = True) -> str:
    """The script that starts one host's servers; several kinds are chosen by its first argument.

    `with_files`: it writes the configuration files too, into the folder where it runs; otherwise they lie beside it.
    """
    head = ["#!/usr/bin/env bash", *_comment(f"written by rooflinekit {__version__}")]
    for note in (*launch.warnings, *launch.notes):
        head += _comment(f"- {note}", "  ")
    if not with_files and launch.files:
        head.append('cd "$(dirname "$0")" || exit')
    if len(launch.servers) == 1:
        body = "\n".join(_server_script(launch, launch.servers[0], with_files))
    else:
        parts = ['case "${1:-}" in']
        for server in launch.servers:  # the lines of a file end at a mark in the first column, so that they stay
            script = "\n".join(_server_script(launch, server, with_files))
            parts += [f"{server.role})", indent(script, "  ", lambda line: not line.startswith("\t")), "  ;;"]
        names = "|".join(server.role for server in launch.servers)
        body = "\n".join((*parts, f'*) echo "usage: $0 {names}" >&2; false ;;', "esac"))
    return "\n".join((*head, "", body)) + "\n"


def _server_script(launch: Launch, server: Server, with_files: bool) -> Iterator[str]:
    made = server.prediction
    role = "" if server.role == "serve" else f"{server.role}: "
    yield from _comment(
        f"{role}{made.model} on {made.gpus} x {made.gpu}, flags checked for {made.engine} {made.version}"
    )
    yield from _comment(predicted(server))
    if server.replicas > 1:
        hosts = f"{server.hosts} host" + "s" * (server.hosts > 1)
        yield from _comment(f"{server.replicas} replicas on {hosts}, {server.per_host} on this one")
    for setting in server.settings:
        if " GB / " in setting.because:
            yield from _comment(f"{setting.flag} {setting.value} = {setting.because}", "  ")
    if with_files:
        # Its own configuration, and with the prefill servers of a split that of the front end; `<<-` takes tabs away.
        for name in filter(None, (server.config_name, server.front_end)):
            text = [f"\t{line}" for line in launch.files[name].rstrip("\n").splitlines()]
            yield "\n".join((f"cat > {shlex.quote(name)} <<-'END_OF_FILE' &&", *text, "\tEND_OF_FILE"))
    for number in range(server.per_host):
        yield _command(server, number) + (" &" if server.per_host > 1 else "")
    if server.per_host > 1:
        yield "wait"


def predicted(server: Server) -> str:
    """Prediction for a server, in a line."""
    made = server.prediction
    first, later = (
        f"{name} {format_time(each / 1e3)}" for name, each in (("TTFT", made.ttft_ms), ("TPOT", made.tpot_ms))
    )
    rate = f"{made.output_tok_s:,.0f} tok/s"
    times = {"prefill": (first,), "decode": (later,)}.get(server.role.rpartition("-")[2], (first, later, rate))
    load = f" ({made.load})" if made.load else ""
    return (
        f"predicted ({made.level}) at batch {made.batch}{load}, {made.isl} + {made.osl} tokens: {', '.join(times)}; "
        f"KV pool {made.kv_pool_bytes / GB:.1f} GB a GPU, {made.kv_pool_tokens} tokens"
    )


def _command(server: Server, number: int) -> str:
    """One command, an option a line."""
    words = [*server.program, *server.positional]
    first = " ".join(shlex.quote(word) for word in words)
    env = "".join(f"{name}={shlex.quote(value)} " for name, value in server.env(number).items())
    lines = [" ".join(shlex.quote(word) for word in option) for option in server.options(number)]
    return " \\\n  ".join((env + first, *lines))


def _comment(text: str, hanging: str = "") -> Iterable[str]:
    """Comment lines; whatever the text holds, no line of it is outside of the comment."""
    plain = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    lines = wrap(plain, _WIDTH - 2, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False)
    return (f"# {line}" for line in lines)


def launch(  # noqa: PLR0913 - the front door: keywords that each say one thing
    model: str | PathLike[str] | None = None,
    gpu: str | PathLike[str] = "h100-sxm",
    *,
    plan: str | PathLike[str] | Mapping[str, Any] | None = None,
    candidate: int | None = None,
    replicas: int = 1,
    host_gpus: int = 8,
    **scenario: Value,
) -> Launch:
    """Commands and configuration files that start what a prediction is about.

    Args:
        model: as in `estimate`; or leave it out and give a plan.
        gpu: an accelerator's name or a path to its file.
        plan: what `rooflinekit plan --format json` wrote: a path, or the mapping itself.
        candidate: which of the plan's candidates, counted from 1; default: its best.
        replicas: copies of the deployment (a plan has its own).
        host_gpus: accelerators of one machine, for ports and device numbers.
        **scenario: as in `estimate`; the engine's version is the newest whose settings were read if none is given.

    Returns:
        A `Launch`: servers with `args` and `env`, `commands` as argument lists, `files` by name, notes.

    Raises:
        DoesNotFitError: the deployment does not fit; nothing is exported.
        InputError: (and its kinds) for a setting that this version of the engine does not have, or that no engine has.

    >>> launch("llama-3-8b", tp=2, engine="vllm@0.8.5").commands[0][:5]
    ('vllm', 'serve', 'meta-llama/Meta-Llama-3-8B', '--tensor-parallel-size', '2')
    """
    hosts = whole_number(host_gpus, "host_gpus")
    said: str | None = None
    found: tuple[ServerPart, ...]
    if plan is None:
        if candidate is not None:
            raise InputError("candidate chooses among those of a plan; give the plan too")
        if model is None:
            raise InputError("nothing to launch: give a model, or a plan")
        found = (ServerPart("", {"model": model, "gpu": gpu, **scenario}, whole_number(replicas, "replicas")),)
    else:
        if model is not None or any(value is not None for value in scenario.values()):
            raise InputError("a plan has its own model and options; give a plan, or a model with options")
        if replicas != 1:
            raise InputError("a plan has its own number of replicas; leave replicas out")
        chosen, traffic = _candidate(plan, candidate)
        found, said = tuple(_parts(chosen, traffic)), _planned(chosen)
    targets = [aim(part.scenario, part.role, hosts) for part in found]
    _check_pairs(targets)
    servers = tuple(_server(target, part) for target, part in zip(targets, found, strict=True))
    warnings = dict.fromkeys(warning for target in targets for warning in target.estimate.warnings)
    each = [tuple(_notes(target)) for target in targets]
    notes = [said] if said else []
    for server, own in zip(servers, each, strict=True):  # with the name of the server where they are not those of all
        notes += [note if all(note in others for others in each) else f"{server.role}: {note}" for note in own]
    notes += _several(servers, targets)
    return Launch(servers, _front_ends(servers), tuple(dict.fromkeys(notes)), tuple(warnings))


def parts_of_plan(plan: str | PathLike[str] | Mapping[str, object], candidate: int | None = None) -> list[ServerPart]:
    """The kinds of server of a plan's best candidate, or of one by its number from 1."""
    return list(_parts(*_candidate(plan, candidate)))


def _candidate(
    plan: str | PathLike[str] | Mapping[str, Any], number: int | None
) -> tuple[Mapping[str, object], object]:
    """A candidate of what `rooflinekit plan --format json` wrote, the best or by its number from 1, and the traffic."""
    data: Any = plan if isinstance(plan, Mapping) else read_json(Path(plan))
    if not isinstance(data, Mapping) or not isinstance(data.get("candidates"), list):
        raise InputError("plan: no list of candidates in it; give what `rooflinekit plan --format json` writes")
    found, count = data["candidates"], len(data["candidates"])
    chosen = data.get("best") if number is None else None
    if number is not None:
        if whole_number(number, "candidate") > count:
            raise InputError(f"candidate {number} is not in the plan; it has {f'1 to {count}' if count else 'none'}")
        chosen = found[number - 1]
    if not isinstance(chosen, Mapping):
        if number is not None:
            raise InputError(f"plan: candidate {number} is {chosen!r}, not an object")
        raise InputError(
            "plan: it has no best candidate, since none meets the objectives"
            + (f"; choose one with candidate, 1 to {count}" if count else "")
        )
    return chosen, data.get("traffic")


def _planned(candidate: Mapping[str, object]) -> str | None:
    """Prediction of the plan for the candidate as a whole; None if it does not say."""
    table = candidate.get("predicted")
    times = [table.get(f"{name}_ms") if isinstance(table, Mapping) else None for name in ("ttft", "tpot")]
    found = [
        f"p95 {name} {p95:.1f} ms"
        for name, each in zip(("TTFT", "TPOT"), times, strict=True)
        if isinstance(each, Mapping) and _is_number(p95 := each.get("p95"))
    ]
    return f"the plan predicts {', '.join(found)} at its peak" if found else None


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _parts(candidate: Mapping[str, object], traffic: object = None) -> Iterator[ServerPart]:
    """The kinds of server of a candidate; lengths and load that their scenarios leave out are those of the traffic."""
    fleet = candidate.get("fleet")
    members = [candidate] if fleet is None else fleet
    if not isinstance(members, list) or not members:
        raise InputError(f"plan: fleet {fleet!r} is not a list of candidates")
    for number, member in enumerate(members, start=0 if fleet is None else 1):
        if number and (not isinstance(member, Mapping) or "fleet" in member):
            raise InputError(f"plan: fleet: part {number} is not a candidate")
        split = [role for role in ("prefill", "decode") if member.get(role) is not None]
        if len(split) == 1:
            raise InputError(f"plan: a candidate has {split[0]} and no {'decode' if 'prefill' in split else 'prefill'}")
        for role in split or [""]:
            entry = member[role] if role else member
            scenario = entry.get("scenario") if isinstance(entry, Mapping) else None
            if not isinstance(entry, Mapping) or not isinstance(scenario, Mapping):
                raise InputError(f"plan: {role or 'a candidate'} has no scenario (keywords of estimate)")
            replicas = entry.get("replicas")
            count = 1 if replicas is None else whole_number(replicas, "replicas")
            asked = _asked(traffic, entry, role, scenario) if isinstance(traffic, Mapping) else {}
            yield ServerPart(role, {**asked, **scenario}, count, number)


def _asked(
    traffic: Mapping[str, object], entry: Mapping[str, object], role: str, scenario: Mapping[str, object]
) -> dict[str, Any]:
    """Lengths, and the load of one replica for a server of both prefill and decode that has no prefix cached."""
    numbers = {key: value for key, value in traffic.items() if _is_number(value)}
    asked: OwnKeywords = {key: max(round(numbers[name]), 1) for key, name in _LENGTHS.items() if name in numbers}
    load = entry.get("load")
    if role or not _is_number(load) or any(key in scenario for key in (*_LOADS, "cached")):
        return asked
    asked |= {key: numbers[key] for key in _SPREADS if key in numbers}
    if "users" in numbers:
        return asked | {"concurrency": max(round(load), 1)}
    gaps = entry.get("burstiness", numbers.get("arrival_cv"))
    return asked | {"rate": load} | ({"burstiness": gaps} if _is_number(gaps) else {})


def _check_pairs(targets: list[Target]) -> None:
    """Raise DeploymentError where prefill and decode servers cannot exchange their cache."""
    for prefill, decode in pairwise(targets):
        if prefill.role == "prefill" and decode.role == "decode":
            ours, theirs = (
                (t.table.engine, t.version, t.checkpoint.argument, str(t.plan.precision.kv)) for t in (prefill, decode)
            )
            if ours != theirs:
                raise DeploymentError(
                    f"prefill has {' '.join(ours)}, decode {' '.join(theirs)}. The cache goes from one to the other, "
                    "so both need the same engine, version, checkpoint and cache format"
                )


def _server(target: Target, part: ServerPart) -> Server:
    granted = list(grant(target.table, target.version, wishes(target)))
    by_flag = target.has("model")
    file, engine = target.flag("config"), target.table.engine
    first = _PORTS[part.role] + _PART * part.number
    asked = {"port": first, "bootstrap": _BOOTSTRAP + _PART * part.number if part.role == "prefill" else None}
    ports = tuple((flag.spelling, at) for key, at in asked.items() if at is not None and (flag := target.flag(key)))
    front_end = f"{part.name.removesuffix('prefill')}disagg.yaml"
    answer, memory = target.estimate, target.estimate.memory
    prediction = Prediction(
        answer.model, answer.gpu, target.plan.deployment.gpus, answer.engine, target.version, answer.level,
        answer.inputs["batch"], answer.inputs["isl"], answer.inputs["osl"],
        answer.load.arrivals if answer.load else None, answer.ttft_ms, answer.tpot_ms,
        answer.output_tok_s, memory.kv_pool_bytes, memory.kv_pool_tokens,
    )  # fmt: skip
    return Server(
        part.name,
        target.table.program,
        () if by_flag else (target.checkpoint.argument,),
        tuple(granted),
        front_end if engine == "trtllm" and part.role == "prefill" else "",
        file.spelling if file else "",
        ports,
        part.replicas,
        target.host_gpus,
        prediction,
        first + _CHANNEL if part.role and engine == "vllm" else 0,
        target.plan.deployment.dp,
        part.scenario.get("rate"),
    )


def _notes(target: Target) -> Iterator[str]:
    """Notes on settings without a flag, and on work left to the user."""
    deployment, engine = target.plan.deployment, target.table.engine
    for checkpoint in (target.checkpoint, target.draft_model):
        if checkpoint is not None and checkpoint.note:
            yield checkpoint.note
    if deployment.microbatches > 1:
        yield f"microbatches={deployment.microbatches} has no flag: {engine} cuts batches over its stages by itself"
    for name, value, usual in (
        ("all_reduce", deployment.all_reduce, "auto"),
        ("all_to_all", "auto" if target.exchanged else deployment.all_to_all, "auto"),
        ("two_batch", deployment.two_batch and not target.has("two_batch"), False),
        ("dispatch", deployment.dispatch, None),
        ("activations", deployment.activations, None),
    ):
        if value != usual:
            yield f"{name}={value} has no flag that is known: see that {engine} chooses it"
    if deployment.power_cap is not None:
        yield f"set the power limit before the start: nvidia-smi --power-limit {deployment.power_cap:g}"
    if deployment.clock is not None:
        yield f"lock the clock before the start: nvidia-smi --lock-gpu-clocks {deployment.clock:g}"
    yield from _ENGINES[engine][1](target)


def _several(servers: tuple[Server, ...], targets: list[Target]) -> Iterator[str]:
    """Notes on joining several servers to one service."""
    for server, target in zip(servers, targets, strict=True):
        if server.replicas > server.per_host:
            left = server.replicas % server.per_host
            rest = f", of the last host only the first {left} commands" if left else ""
            yield (
                f"{server.role}: {server.replicas} replicas of {server.gpus} GPUs on {server.hosts} hosts of "
                f"{server.host_gpus} GPUs (--host-gpus): the same on each host{rest}"
            )
        if target.role == "prefill":
            yield target.table.notes["split"].format(file=server.front_end)
        elif not target.role and server.replicas > 1:
            yield target.table.notes["replicas"]
    if len(servers) > 1:
        yield "each kind of server is meant for hosts of its own: device numbers begin at 0 in each"


def _front_ends(servers: tuple[Server, ...]) -> dict[str, str]:
    """The files that TensorRT-LLM's front ends of split deployments read."""
    files = {}
    for prefill, decode in pairwise(servers):
        if prefill.front_end:
            config = {
                "hostname": "localhost",
                "port": prefill.port - _PORTS["prefill"] + _PORTS[""],
                "backend": "pytorch",
                "context_servers": _urls(prefill),
                "generation_servers": _urls(decode),
            }
            files[prefill.front_end] = yaml.safe_dump(config, sort_keys=False)
    return files


def _urls(server: Server) -> dict[str, object]:
    hosts = -(-server.replicas // server.per_host)
    names = ["localhost"] if hosts == 1 else [f"{server.role}-host-{number + 1}" for number in range(hosts)]
    urls = [f"{name}:{server.port + number}" for name in names for number in range(server.per_host)]
    return {"num_instances": server.replicas, "urls": urls[: server.replicas]}
