"""Which splits of a model over a system exist; every other is refused with those that do."""

from __future__ import annotations

from collections.abc import Iterator

from rooflinekit.model.types.deployment import ALL_REDUCE, Deployment
from rooflinekit.model.types.errors import DeploymentError
from rooflinekit.model.types.hardware import System
from rooflinekit.model.types.model import (
    Attention,
    DenseFFN,
    GatedDeltaNet,
    LatentAttention,
    LightningAttention,
    Mamba,
    Mamba2,
    MixtureOfExperts,
    Model,
)


def check_deployment(model: Model, deployment: Deployment, system: System) -> None:
    """Refuse a split that the model or the system does not allow, naming those it does.

    Raises DeploymentError.
    """
    _check_tp(model, deployment, system)
    if deployment.pp > model.depth:
        raise DeploymentError(
            f"pp={deployment.pp} exceeds {model.name}'s {model.depth} layers; use pp <= {model.depth}"
        )
    if deployment.microbatches > 1 and deployment.pp == 1:
        raise DeploymentError(f"microbatches={deployment.microbatches} need stages; use pp > 1 or microbatches=1")
    _check_context(model, deployment)
    if deployment.gpus > system.max_gpus:
        raise DeploymentError(
            f"tp·pp·dp·cp = {deployment.gpus} accelerators, but a {system.title} joins {system.max_gpus}; use fewer"
        )
    _check_all_reduce(deployment, system)
    _check_experts(model, deployment)


def _check_tp(model: Model, deployment: Deployment, system: System) -> None:
    tp, domain = deployment.tp, system.domain_size
    if tp > domain and not (system.name and system.nic_bandwidth):
        gpu = system.accelerator
        raise DeploymentError(
            f"tp={tp} exceeds the {domain} accelerators that {gpu.link_kind or 'a link'} joins in a {system.title}; "
            f"use {_tp_choices(model, system)}" + (", or name a system of several nodes" if not system.name else "")
        )
    if tp > domain and tp % domain:
        raise DeploymentError(f"tp={tp} fills no whole domains of {domain}; use {_tp_choices(model, system)}")
    for what, size in _divided_by_tp(model):
        if not _splits(what, size, tp):
            raise DeploymentError(
                f"tp={tp} does not divide {model.name}'s {size} {what}; use {_tp_choices(model, system)}"
            )
    if deployment.sequence_parallel and tp == 1:
        raise DeploymentError("sequence_parallel splits tokens over the ranks of tp; use tp > 1, or leave it out")


def _check_context(model: Model, deployment: Deployment) -> None:
    """A recurrent state cannot be split along the context, and which keys an indexer picks is not known."""
    if deployment.cp == 1:
        return
    for layer in model.layer_counts:
        sparse = isinstance(layer.mixer, LatentAttention) and layer.mixer.indexer is not None
        if sparse or not isinstance(layer.mixer, (Attention, LatentAttention, type(None))):
            what = "sparse attention" if sparse else f"{getattr(layer.mixer, 'kind', '')} layers"
            raise DeploymentError(f"cp={deployment.cp} cannot split the context of {model.name}'s {what}; use cp=1")


def _check_all_reduce(deployment: Deployment, system: System) -> None:
    asked = deployment.all_reduce
    if asked == "auto":
        return
    if deployment.tp == 1 or deployment.sequence_parallel:
        why = "sequence_parallel replaces it" if deployment.sequence_parallel else "tp=1 has none"
        raise DeploymentError(f"all_reduce={asked}, but {why}; use all_reduce=auto")
    valid = [name for name in ALL_REDUCE if name != "in_switch" or system.in_switch]
    if deployment.tp > system.domain_size:
        valid.remove("one_shot")
    if asked not in valid:
        hint = "" if system.name else " (or name a system whose switch adds up, such as --system hgx-h100)"
        raise DeploymentError(f"all_reduce={asked} does not exist in a {system.title}; use {', '.join(valid)}{hint}")


def _check_experts(model: Model, deployment: Deployment) -> None:
    blocks = {layer.ffn for layer in model.layers if isinstance(layer.ffn, MixtureOfExperts)}
    group, copies = deployment.stage, deployment.redundant_experts
    asked = {"skew": deployment.skew, "redundant_experts": copies, "dispatch": deployment.dispatch}
    if not blocks:
        if deployment.ep > 1:
            raise DeploymentError(f"ep={deployment.ep}, but {model.name} has no experts; use ep=1")
        for name, value in asked.items():
            if value:
                raise DeploymentError(f"{name}={value}, but {model.name} has no experts; leave {name} out")
    if copies and deployment.ep == 1:
        raise DeploymentError(f"redundant_experts={copies}, but with ep=1 every rank holds all experts; use ep > 1")
    if deployment.dispatch and (deployment.ep == 1 or group == deployment.tp):
        raise DeploymentError(
            f"dispatch={deployment.dispatch}, but no token travels to its experts; use ep > 1 with dp or cp > 1"
        )
    for block in blocks:
        _check_ep(model, block, deployment)


def _check_ep(model: Model, block: MixtureOfExperts, deployment: Deployment) -> None:
    group, copies = deployment.stage, deployment.redundant_experts
    possible = [ep for ep in _divisors(group) if block.width % (group // ep) == 0]
    if copies and deployment.ep in possible and (block.experts + copies) % deployment.ep:
        least = -(block.experts + copies) % deployment.ep + copies
        raise DeploymentError(
            f"redundant_experts={copies} leaves {model.name}'s {block.experts + copies} experts uneven over "
            f"ep={deployment.ep} ranks; use {least}"
        )
    valid = [ep for ep in possible if (block.experts + copies) % ep == 0]
    if deployment.ep not in valid:
        raise DeploymentError(
            f"ep={deployment.ep} does not split {model.name}'s {block.experts} experts of width {block.width} over "
            f"tp·cp·dp = {group} ranks; use " + (_choices("ep", valid) if valid else "another tp, cp or dp")
        )


def _divided_by_tp(model: Model) -> Iterator[tuple[str, int]]:
    """Every size that tensor parallelism divides, with its name."""
    for layer in model.layer_counts:
        match layer.mixer:
            case Attention(heads=heads, kv_heads=kv_heads):
                yield "attention heads", heads
                yield "KV heads", kv_heads
            case LatentAttention(heads=heads) | LightningAttention(heads=heads):
                yield "attention heads", heads
            case GatedDeltaNet(key_heads=heads):
                yield "linear-attention heads", heads
            case Mamba2(heads=heads):
                yield "state-space heads", heads
            case Mamba(inner=inner):
                yield "state-space channels", inner
            case None:
                pass
        match layer.ffn:
            case DenseFFN(width=width):
                yield "FFN columns", width
            case MixtureOfExperts(shared_width=width) if width:
                yield "shared-expert columns", width


def _splits(what: str, size: int, tp: int) -> bool:
    return size % tp == 0 or (what == "KV heads" and tp % size == 0)


def _tp_choices(model: Model, system: System) -> str:
    sizes = set(_divided_by_tp(model))
    domain = system.domain_size
    several = [domain * nodes for nodes in range(2, 128 // domain + 1)] if system.name and system.nic_bandwidth else []
    candidates = [*range(1, min(domain, 128) + 1), *several]
    return _choices("tp", [tp for tp in candidates if all(_splits(what, size, tp) for what, size in sizes)])


def _choices(name: str, values: list[int]) -> str:
    return f"{name} = {', '.join(map(str, values[:-1]))} or {values[-1]}" if len(values) > 1 else f"{name}={values[0]}"


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]
