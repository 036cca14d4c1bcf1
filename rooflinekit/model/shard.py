"""One accelerator's share of a model."""

from __future__ import annotations

from rooflinekit.model.kernels.collective import Collective, CollectiveKind, Tiers, tiers
from rooflinekit.model.kernels.gemm import Linear
from rooflinekit.model.kernels.operation import Part, elements
from rooflinekit.model.precision import Precision
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.frozen import dataclass

EVERYWHERE = 1 << 30
"""A scale-up domain that no deployment leaves."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One accelerator's share: the residual width is whole, heads and inner widths are divided by tp."""

    hidden: int
    precision: Precision
    deployment: Deployment
    domain: int = EVERYWHERE  #: accelerators that the scale-up links join

    @property
    def tp(self) -> int:
        """Ranks that share each layer."""
        return self.deployment.tp

    @property
    def replicas(self) -> int:
        """Groups of ranks that hold tokens of their own and share the experts."""
        return self.deployment.dp * self.deployment.cp

    @property
    def other(self) -> Dtype:
        """Format of norms, router and other small weights."""
        return self.precision.formats.other

    def linear(  # noqa: PLR0913 - what a linear layer is made of
        self,
        name: str,
        k: int,
        parts: tuple[Part, ...],
        module: str = "attention",
        *,
        bias: bool = False,
        of: str = "",
    ) -> Linear:
        """A linear layer in the format of its kind of module, or of its part `of` where that has one of its own."""
        formats = self.precision.formats
        weight: Dtype = (getattr(formats, of) if of else None) or getattr(formats, module)
        width = elements(parts) if bias else 0
        return Linear(name, k, parts, weight, self.precision.compute(weight), module, width)

    def joined(self, name: str, kind: CollectiveKind, width: float, *, sampled: bool = False) -> Collective:
        """A collective over the ranks that share each layer."""
        algorithm = self.deployment.all_reduce if kind == "all_reduce" else "auto"
        sent = tiers(kind, self.tp, self.tp, self.domain, algorithm)
        return Collective(name, kind, self.tp, width, sent, sampled=sampled, algorithm=algorithm)

    def context_tiers(self, kind: CollectiveKind) -> Tiers:
        """Tiers of a collective over the ranks that share a context; they lie tp apart."""
        return tiers(kind, self.deployment.cp, self.deployment.cp * self.tp, self.domain)

    def kv_heads(self, heads: int) -> int:
        """KV heads held here; replicated once there are more ranks than heads.

        >>> from rooflinekit.model.types.model import WeightFormats
        >>> p = Precision(Dtype.BF16, Dtype.BF16, WeightFormats.uniform(Dtype.BF16))
        >>> Shard(4096, p, Deployment(tp=4)).kv_heads(8), Shard(4096, p, Deployment(tp=16)).kv_heads(8)
        (2, 1)
        """
        return max(heads // self.tp, 1)
