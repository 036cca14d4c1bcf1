"""How one accelerator's share of a model is cut, and which cuts exist."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rooflinekit.kernels import Linear
from rooflinekit.layers.precision import Precision
from rooflinekit.types.deployment import Deployment
from rooflinekit.types.dtype import Dtype
from rooflinekit.types.errors import DeploymentError
from rooflinekit.types.hardware import System
from rooflinekit.types.model import (
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

__all__ = ["Shard", "check_deployment"]


@dataclass(frozen=True, slots=True)
class Shard:
    """One accelerator's share: the residual width is whole, heads and inner widths are divided by tp."""

    hidden: int
    precision: Precision
    deployment: Deployment

    @property
    def tp(self) -> int:
        """Ranks that share each layer."""
        return self.deployment.tp

    @property
    def other(self) -> Dtype:
        """Format of norms, router and other small weights."""
        return self.precision.formats.other

    def linear(
        self, name: str, k: int, parts: tuple[tuple[str, int], ...], module: str = "attention", *, bias: bool = False
    ) -> Linear:
        """A linear layer in the weight format of its kind of module."""
        weight: Dtype = getattr(self.precision.formats, module)
        width = sum(size for _, size in parts) if bias else 0
        return Linear(name, k, parts, weight, self.precision.compute(weight), module, width)

    def kv_heads(self, heads: int) -> int:
        """KV heads held here; replicated once there are more ranks than heads.

        >>> from rooflinekit.types.model import WeightFormats
        >>> p = Precision(Dtype.BF16, Dtype.BF16, WeightFormats.uniform(Dtype.BF16))
        >>> Shard(4096, p, Deployment(tp=4)).kv_heads(8), Shard(4096, p, Deployment(tp=16)).kv_heads(8)
        (2, 1)
        """
        return max(1, heads // self.tp)


def check_deployment(model: Model, deployment: Deployment, system: System) -> None:
    """Refuse a split that the model or the system does not allow, naming those it does.

    Raises DeploymentError.
    """
    name = system.accelerator.name
    if deployment.tp > system.domain_size:
        raise DeploymentError(
            f"tp={deployment.tp} exceeds the {system.domain_size} accelerators that "
            f"{system.accelerator.link_kind or 'a link'} joins in a {name} system; use {_tp_choices(model, system)}"
        )
    for what, size in _divided_by_tp(model):
        if not _splits(what, size, deployment.tp):
            raise DeploymentError(
                f"tp={deployment.tp} does not divide {model.name}'s {size} {what}; use {_tp_choices(model, system)}"
            )
    if deployment.pp > model.depth:
        raise DeploymentError(
            f"pp={deployment.pp} exceeds {model.name}'s {model.depth} layers; use pp <= {model.depth}"
        )
    if deployment.gpus > system.max_gpus:
        raise DeploymentError(
            f"tp·pp·dp = {deployment.gpus} accelerators, but a {name} system joins {system.max_gpus}; use fewer"
        )
    _check_experts(model, deployment)


def _check_experts(model: Model, deployment: Deployment) -> None:
    blocks = {layer.ffn for layer in model.layers if isinstance(layer.ffn, MixtureOfExperts)}
    group = deployment.tp * deployment.dp
    if deployment.ep > 1 and not blocks:
        raise DeploymentError(f"ep={deployment.ep}, but {model.name} has no experts; use ep=1")
    for block in blocks:
        valid = [ep for ep in _divisors(group) if block.experts % ep == 0 and block.width % (group // ep) == 0]
        if deployment.ep not in valid:
            raise DeploymentError(
                f"ep={deployment.ep} does not split {model.name}'s {block.experts} experts of width {block.width} over "
                f"tp·dp = {group} ranks; use " + (_choices("ep", valid) if valid else "another tp or dp")
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
    candidates = range(1, min(system.domain_size, 128) + 1)
    return _choices("tp", [tp for tp in candidates if all(_splits(what, size, tp) for what, size in sizes)])


def _choices(name: str, values: list[int]) -> str:
    return f"{name} = {', '.join(map(str, values[:-1]))} or {values[-1]}" if len(values) > 1 else f"{name}={values[0]}"


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]
