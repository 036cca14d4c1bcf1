"""Splits of a model over a system; every other is refused with those that exist."""

from __future__ import annotations

from collections.abc import Iterator

from rooflinekit.model.types.deployment import ALL_REDUCE, ALL_TO_ALL, Deployment
from rooflinekit.model.types.errors import DeploymentError
from rooflinekit.model.types.hardware import System
from rooflinekit.model.types.model import Attention, LatentAttention, MixtureOfExperts, Model


def check_deployment(model: Model, deployment: Deployment, system: System) -> None:
    """Refuse a split that the model or the system does not allow, naming those it does.

    Raises DeploymentError.
    """
    if deployment.images:
        model.seeing(deployment.images)
    for message in _refusals(model, deployment, system):
        raise DeploymentError(message)


def _refusals(model: Model, deployment: Deployment, system: System) -> Iterator[str]:
    """Refusals of a split, the plainest first."""
    tp, domain, pp = deployment.tp, system.domain_size, deployment.pp
    if tp > domain and not system.spans:
        link = system.accelerator.link_kind or "a link"
        named = " or ".join(f"--system {name}" for name in system.boxes)
        hint = "" if system.name else f", or {named}" if named else "; no system of several nodes is known of it"
        joined = f"the {domain} accelerators that {link} joins in a {system.title}"
        yield f"tp={tp} exceeds {joined}; use {_tp_choices(model, system)}{hint}"
    if tp > domain and tp % domain:
        yield f"tp={tp} fills no whole domains of {domain}; use {_tp_choices(model, system)}"
    for what, size in _divided_by_tp(model):
        if not _splits(what, size, tp):
            yield f"tp={tp} does not divide {model.name}'s {size} {what}; use {_tp_choices(model, system)}"
    if deployment.sequence_parallel and tp == 1:
        yield "sequence_parallel splits tokens over the ranks of tp; use tp > 1, or leave it out"
    if pp > model.depth:
        yield f"pp={pp} exceeds {model.name}'s {model.depth} layers; use pp <= {model.depth}"
    yield from _of_kind(model, deployment)
    if deployment.lora_adapters > 1 and not deployment.lora_rank:
        yield f"lora_adapters={deployment.lora_adapters}, but lora_rank=0 loads none; give lora_rank, or leave it out"
    if deployment.microbatches > 1 and pp == 1 and not deployment.ffn_gpus:
        yield f"microbatches={deployment.microbatches} need stages; use pp > 1 or microbatches=1"
    for layer in model.layer_counts if deployment.cp > 1 else ():  # a recurrent state cannot be split, and which keys
        sparse = getattr(layer.mixer, "indexer", None) is not None  # are picked is not known
        if sparse or not isinstance(layer.mixer, (Attention, LatentAttention, type(None))):
            what = "sparse attention" if sparse else f"{getattr(layer.mixer, 'kind', '')} layers"
            yield f"cp={deployment.cp} cannot split the context of {model.name}'s {what}; use cp=1"
    yield from _offload_refusals(model, deployment, system)
    yield from _of_groups(model, deployment)
    if deployment.gpus > system.max_gpus:
        beside = " + ffn_gpus + encoder_gpus" if deployment.ffn_gpus or deployment.encoder_gpus else ""
        whole = f"tp·pp·dp·cp{beside} = {deployment.gpus} accelerators"
        yield f"{whole}, but a {system.title} joins {system.max_gpus}; use fewer"
    if deployment.all_reduce != "auto":
        yield from _of_all_reduce(deployment, system)
    yield from _of_experts(model, deployment)


def _of_kind(model: Model, deployment: Deployment) -> Iterator[str]:
    """Refusals for encoder-decoders, and for layers that share weights."""
    if model.encoder is not None:
        asked = {"lora_rank": deployment.lora_rank, "offload_layers": deployment.offload_layers}
        yield from (f"{k}={v}, but {model.name} is an encoder-decoder; leave {k} out" for k, v in asked.items() if v)
    if deployment.pp > 1 and any(layer.repeated for layer in model.layer_counts):
        yield f"pp={deployment.pp}, but layers of {model.name} share weights, which stages cannot; use pp=1"


def _of_all_reduce(deployment: Deployment, system: System) -> Iterator[str]:
    asked = deployment.all_reduce
    if deployment.tp == 1 or deployment.sequence_parallel:
        why = "sequence_parallel replaces it" if deployment.sequence_parallel else "tp=1 has none"
        yield f"all_reduce={asked}, but {why}; use all_reduce=auto"
    valid = [name for name in ALL_REDUCE if name != "in_switch" or system.in_switch]
    if deployment.tp > system.domain_size:
        valid.remove("one_shot")
    if asked not in valid:
        hint = "" if system.name else " (or name a system whose switch adds up, such as --system hgx-h100)"
        yield f"all_reduce={asked} does not exist in a {system.title}; use {', '.join(valid)}{hint}"


def _of_all_to_all(deployment: Deployment) -> Iterator[str]:
    asked, group = deployment.all_to_all, deployment.stage
    if asked not in ALL_TO_ALL:
        yield f"all_to_all={asked} is not known; use {' or '.join(ALL_TO_ALL)}"
    elif deployment.two_batch and asked != "deepep":
        yield "two_batch overlaps what DeepEP's kernels send with computing; use all_to_all=deepep"
    elif asked != "auto" and (deployment.ep != group or group == deployment.tp):
        yield f"all_to_all={asked} needs replicas, and whole experts on every rank; use dp or cp > 1 and ep = tp·cp·dp"


def _of_experts(model: Model, deployment: Deployment) -> Iterator[str]:
    blocks = {layer.ffn for layer in model.layers if isinstance(layer.ffn, MixtureOfExperts)}
    group, copies, ep = deployment.ffn_gpus or deployment.stage, deployment.redundant_experts, deployment.ep
    ranks = "ffn_gpus" if deployment.ffn_gpus else "tp·cp·dp"
    if not blocks:
        if ep > 1:
            yield f"ep={ep}, but {model.name} has no experts; use ep=1"
        asked = {"skew": deployment.skew, "redundant_experts": copies, "dispatch": deployment.dispatch}
        yield from (f"{k}={v}, but {model.name} has no experts; leave {k} out" for k, v in asked.items() if v)
    if copies and ep == 1:
        yield f"redundant_experts={copies}, but with ep=1 every rank holds all experts; use ep > 1"
    if deployment.dispatch and not deployment.ffn_gpus and (ep == 1 or group == deployment.tp):
        yield f"dispatch={deployment.dispatch}, but no token travels to its experts; use ep > 1 with dp or cp > 1"
    yield from _of_all_to_all(deployment)
    for block in blocks:
        held = block.experts + copies
        possible = [n for n in range(1, group + 1) if group % n == 0 and block.width % (group // n) == 0]
        if copies and ep in possible and held % ep:
            uneven = f"redundant_experts={copies} leaves {model.name}'s {held} experts uneven over ep={ep} ranks"
            yield f"{uneven}; use {-held % ep + copies}"
        valid = [n for n in possible if held % n == 0]
        if ep not in valid:
            experts = f"{model.name}'s {block.experts} experts of width {block.width} over {ranks} = {group} ranks"
            more = f"redundant_experts={-held % ep + copies}" if ep in possible and held % ep and not copies else ""
            chosen = " or ".join(filter(None, (more, _choices("ep", valid) or "another tp, cp or dp")))
            yield f"ep={ep} does not split {experts}; use {chosen}"


def _of_groups(model: Model, deployment: Deployment) -> Iterator[str]:
    """Refusals for feed-forward blocks, or an encoder, on accelerators of their own."""
    ffn, encoder, tp = deployment.ffn_gpus, deployment.encoder_gpus, deployment.ffn_tp
    beside = {"pp": deployment.pp > 1}
    if ffn:
        whole = ("sequence_parallel", "lora_rank", "offload_layers", "offload_experts", "n_cpu_moe")
        beside |= {"cp": deployment.cp > 1, "all_to_all": deployment.all_to_all != "auto"}
        beside |= {key: bool(getattr(deployment, key)) for key in whole}
    for name, number in (("ffn_gpus", ffn), ("encoder_gpus", encoder)):
        given = [key for key, there in beside.items() if there and number]
        yield from (f"{name}={number} does not go with {key}; leave one of them out" for key in given)
    if encoder and not deployment.images:
        yield f"encoder_gpus={encoder}, but no images come; add images=N, or leave encoder_gpus out"
    if not ffn:
        return
    if model.encoder is not None or any(layer.repeated for layer in model.layer_counts):
        kind = "is an encoder-decoder" if model.encoder is not None else "has layers that share weights"
        yield f"ffn_gpus={ffn}, but {model.name} {kind}; leave ffn_gpus out"
    for layer in model.layer_counts:
        widths = [getattr(layer.ffn, field) for field, _ in layer.ffn.cut] if layer.ffn else []
        if ffn % deployment.ep == 0 and any(width % tp for width in widths):
            yield f"ffn_gpus={ffn} over ep={deployment.ep} does not divide {model.name}'s {widths[0]} FFN columns"


def _divided_by_tp(model: Model) -> Iterator[tuple[str, int]]:
    """Every size that tensor parallelism divides, with its name."""
    encoder = () if model.encoder is None else model.encoder.layers[:1]
    for layer in (*encoder, *model.layer_counts):
        for block in (layer.mixer, layer.ffn):
            for field, what in block.cut if block else ():
                if size := getattr(block, field):
                    yield what, size


def _splits(what: str, size: int, tp: int) -> bool:
    return size % tp == 0 or (what == "KV heads" and tp % size == 0)


def _tp_choices(model: Model, system: System) -> str:
    sizes = set(_divided_by_tp(model))
    domain = system.domain_size
    several = [domain * nodes for nodes in range(2, 128 // domain + 1)] if system.spans else []
    candidates = [*range(1, min(domain, 128) + 1), *several]
    return _choices("tp", [tp for tp in candidates if all(_splits(what, size, tp) for what, size in sizes)])


def _choices(name: str, values: list[int]) -> str:
    if len(values) > 1:
        return f"{name} = {', '.join(map(str, values[:-1]))} or {values[-1]}"
    return f"{name}={values[0]}" if values else ""


def _offload_refusals(model: Model, deployment: Deployment, system: System) -> Iterator[str]:
    """Refusals of offloading: layers that the host cannot keep, or need not."""
    layers, experts = deployment.offload_layers, deployment.offload_experts or deployment.n_cpu_moe
    if not layers and not experts:
        if deployment.host_bandwidth is not None:
            yield "host_bandwidth needs weights on the host; add offload_layers=N, offload_experts=cpu or n_cpu_moe=N"
        return
    if deployment.engine not in _OFFLOADING:
        yield f"weights on the host are known of {' and '.join(_OFFLOADING)}, not of {deployment.engine}"
    if deployment.gpus > 1:
        yield f"weights on the host are known beside one accelerator, not {deployment.gpus}; use tp=1, pp=1, dp=1, cp=1"
    if not system.accelerator.pcie_bandwidth:
        yield f"{system.accelerator.name} shares its memory with the host, or its PCI Express is unknown"
    if layers > model.depth:
        yield f"offload_layers={layers} exceeds {model.name}'s {model.depth} layers; use at most {model.depth}"
    if deployment.n_cpu_moe > model.depth:
        yield f"n_cpu_moe={deployment.n_cpu_moe} exceeds {model.name}'s {model.depth} layers; use offload_experts=cpu"
    if experts and not any(isinstance(layer.ffn, MixtureOfExperts) for layer in model.layer_counts):
        asked = "offload_experts" if deployment.offload_experts else "n_cpu_moe"
        yield f"{asked}: {model.name} has no experts; use offload_layers=N"


_OFFLOADING = ("llama.cpp", "ideal")
