"""The front door: a deployment or a plan in, servers with commands and files out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from os import PathLike
from typing import Any

import yaml

from rooflinekit.decision.launching import sglang, trtllm, vllm
from rooflinekit.decision.launching.aim import aim
from rooflinekit.decision.launching.candidate import Part, choose, parts, planned, read_plan
from rooflinekit.decision.launching.result import Launch, Prediction, Server
from rooflinekit.decision.launching.settings import Wish, grant
from rooflinekit.decision.launching.target import Target
from rooflinekit.model.types.batch import whole_number
from rooflinekit.model.types.errors import DeploymentError, InputError

__all__ = ["launch"]

_WISHES: dict[str, Callable[[Target], Iterator[Wish]]] = {
    "vllm": vllm.vllm_wishes, "sglang": sglang.sglang_wishes, "trtllm": trtllm.trtllm_wishes,
}  # fmt: skip
_NOTES: dict[str, Callable[[Target], Iterator[str]]] = {
    "vllm": vllm.vllm_notes, "sglang": sglang.sglang_notes, "trtllm": trtllm.trtllm_notes,
}  # fmt: skip
_SEVERAL: dict[str, Mapping[str, str]] = {"vllm": vllm.NOTES, "sglang": sglang.NOTES, "trtllm": trtllm.NOTES}
_PORTS = {"": 8000, "prefill": 8100, "decode": 8200}
_PART = 1000  # ports between the parts of a mixed fleet
_BOOTSTRAP = 8998  # where SGLang's prefill servers are found by default
_CHANNEL = 5600 - 8000  # vLLM's default side channel (docs/features/nixl_connector_usage.md), beside the port


def launch(  # noqa: PLR0913 - the front door: keywords that each say one thing
    model: str | PathLike[str] | None = None,
    gpu: str | PathLike[str] = "h100-sxm",
    *,
    plan: str | PathLike[str] | Mapping[str, Any] | None = None,
    candidate: int | None = None,
    replicas: int = 1,
    host_gpus: int = 8,
    **scenario: Any,
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
    found, said = _parts(model, gpu, plan, (candidate, replicas), scenario)
    targets = [aim(part.scenario, part.role, hosts) for part in found]
    _check_pairs(targets)
    servers = tuple(_server(target, part) for target, part in zip(targets, found, strict=True))
    warnings = dict.fromkeys(warning for target in targets for warning in target.estimate.warnings)
    notes = dict.fromkeys((*([said] if said else []), *_told(servers, targets), *_several(servers, targets)))
    return Launch(servers, _front_ends(servers), tuple(notes), tuple(warnings))


def _parts(
    model: str | PathLike[str] | None,
    gpu: str | PathLike[str],
    plan: str | PathLike[str] | Mapping[str, Any] | None,
    which: tuple[int | None, int],
    scenario: dict[str, Any],
) -> tuple[tuple[Part, ...], str | None]:
    """The kinds of server of what was asked for, and what a plan says of them; raises InputError for two things."""
    candidate, replicas = which
    if plan is None:
        if candidate is not None:
            raise InputError("candidate chooses among those of a plan; give the plan too")
        if model is None:
            raise InputError("nothing to launch: give a model, or a plan")
        return (Part("", {"model": model, "gpu": gpu, **scenario}, whole_number(replicas, "replicas")),), None
    if model is not None or any(value is not None for value in scenario.values()):
        raise InputError("a plan has its own model and options; give a plan, or a model with options")
    if replicas != 1:
        raise InputError("a plan has its own number of replicas; leave replicas out")
    data = read_plan(plan)
    chosen = choose(data, candidate)
    return tuple(parts(chosen, data.get("traffic"))), planned(chosen)


def _check_pairs(targets: list[Target]) -> None:
    """Raise DeploymentError where prefill and decode servers cannot exchange their cache."""
    for prefill, decode in pairwise(targets):
        if prefill.role == "prefill" and decode.role == "decode":
            ours, theirs = (
                (t.table.engine, t.version, t.checkpoint.argument, str(t.plan.precision.kv)) for t in (prefill, decode)
            )
            if ours != theirs:
                raise DeploymentError(
                    f"prefill has {' '.join(ours)}, decode {' '.join(theirs)}: engine, version, checkpoint and cache "
                    "format have to be the same, since the cache travels between them"
                )


def _server(target: Target, part: Part) -> Server:
    granted = list(grant(target.table, target.version, _WISHES[target.table.engine](target)))
    by_flag = any(setting.flag == "--model-path" for setting in granted)
    file, engine = target.table.find("config", target.version), target.table.engine
    first = _PORTS[part.role] + _PART * part.number
    asked = {"port": first, "bootstrap": _BOOTSTRAP + _PART * part.number if part.role == "prefill" else None}
    flags = {concept: target.table.find(concept, target.version) for concept in asked}
    ports = tuple((flag.spelling, at) for c, at in asked.items() if (flag := flags[c]) is not None and at is not None)
    front_end = f"{part.name.removesuffix('prefill')}disagg.yaml"
    return Server(
        part.name, target.table.program, () if by_flag else (target.checkpoint.argument,), tuple(granted),
        front_end if engine == "trtllm" and part.role == "prefill" else "", file.spelling if file else "", ports,
        part.replicas, target.host_gpus, _prediction(target),
        first + _CHANNEL if part.role and engine == "vllm" else 0, target.plan.deployment.dp,
    )  # fmt: skip


def _prediction(target: Target) -> Prediction:
    answer, memory = target.estimate, target.estimate.memory
    return Prediction(
        answer.model, answer.gpu, target.plan.deployment.gpus, answer.engine, target.version, answer.level,
        answer.inputs["batch"], answer.inputs["isl"], answer.inputs["osl"],
        answer.load.arrivals if answer.load else None, answer.ttft_ms, answer.tpot_ms,
        answer.output_tok_s, memory.kv_pool_bytes, memory.kv_pool_tokens,
    )  # fmt: skip


def _told(servers: tuple[Server, ...], targets: list[Target]) -> Iterator[str]:
    """The notes of each kind of server, with its name where they are not those of all."""
    each = [tuple(_notes(target)) for target in targets]
    for server, notes in zip(servers, each, strict=True):
        for note in notes:
            yield note if all(note in others for others in each) else f"{server.role}: {note}"


def _notes(target: Target) -> Iterator[str]:
    """What has no flag, and what a user has to do or know."""
    deployment, engine = target.plan.deployment, target.table.engine
    for checkpoint in (target.checkpoint, target.draft_model):
        if checkpoint is not None and checkpoint.note:
            yield checkpoint.note
    if deployment.microbatches > 1:
        yield f"microbatches={deployment.microbatches} has no flag: {engine} cuts batches over its stages by itself"
    for name, value, usual in (
        ("all_reduce", deployment.all_reduce, "auto"),
        ("dispatch", deployment.dispatch, None),
        ("activations", deployment.activations, None),
    ):
        if value != usual:
            yield f"{name}={value} has no flag that is known: see that {engine} chooses it"
    if deployment.power_cap is not None:
        yield f"set the power limit before the start: nvidia-smi --power-limit {deployment.power_cap:g}"
    yield from _NOTES[engine](target)


def _several(servers: tuple[Server, ...], targets: list[Target]) -> Iterator[str]:
    """How more than one server become one service."""
    for server, target in zip(servers, targets, strict=True):
        if server.replicas > server.per_host:
            left = server.replicas % server.per_host
            rest = f", of the last host only the first {left} commands" if left else ""
            yield (
                f"{server.role}: {server.replicas} replicas of {server.gpus} GPUs on {server.hosts} hosts of "
                f"{server.host_gpus} GPUs (--host-gpus): the same on each host{rest}"
            )
        if target.role == "prefill":
            yield _SEVERAL[target.table.engine]["split"].format(file=server.front_end)
        elif not target.role and server.replicas > 1:
            yield _SEVERAL[target.table.engine]["replicas"]
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


def _urls(server: Server) -> dict[str, Any]:
    hosts = -(-server.replicas // server.per_host)
    names = ["localhost"] if hosts == 1 else [f"{server.role}-host-{number + 1}" for number in range(hosts)]
    urls = [f"{name}:{server.port + number}" for name in names for number in range(server.per_host)]
    return {"num_instances": server.replicas, "urls": urls[: server.replicas]}
