"""Context parallelism: attention over a context that several accelerators share, and what they exchange for it.

Prefill: each of cp ranks computes its share of every prompt, two pieces that lie opposite, so that all score as many
pairs, and gathers everyone's keys and values. Decode: each rank keeps its share of every context, sees the queries of
all sequences, and the partial results are merged by their softmax weights (Yang et al. 2024, arXiv:2411.01783).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rooflinekit.model.kernels.attention import AttentionCore, LatentCore
from rooflinekit.model.kernels.collective import Tiers
from rooflinekit.model.kernels.operation import Step, Weights
from rooflinekit.model.types.batch import Sequences
from rooflinekit.model.types.kernel import Kernel
from rooflinekit.model.types.numeric import Numeric

__all__ = ["ContextExchange", "ContextShare"]

_PER_CONTEXT = ("context", "keys", "pairs")


def _query_width(core: AttentionCore | LatentCore) -> int:
    """Elements of a prompt token's queries and results in one kernel."""
    if isinstance(core, AttentionCore):
        return core.heads * (core.qk_dim + core.v_dim)
    return core.heads * (core.nope_dim + core.rope_dim + core.v_dim)


@dataclass(frozen=True, slots=True)
class ContextShare:
    """One rank's part of an attention over `ranks` of them."""

    core: AttentionCore | LatentCore
    ranks: int

    grows = True

    @property
    def weights(self) -> tuple[Weights, ...]:
        """Those of the attention, on every rank."""
        return self.core.weights

    def kernels(self, step: Step, count: int) -> list[Kernel]:
        """Prefill: a share of the queries against all keys. Decode: all queries against a share of the keys."""
        launches = []
        for kernel in self.core.kernels(step, count):
            share = self._prefill if kernel.family.endswith("prefill") else self._decode
            launches.append(share(kernel, step))
        return launches

    def _prefill(self, kernel: Kernel, step: Step) -> Kernel:
        phase = step.batch.prefilling
        others = (phase.tokens if phase else 0.0) * (1.0 - 1.0 / self.ranks)
        return replace(
            kernel,
            flops=kernel.flops / self.ranks,
            activation_bytes=kernel.activation_bytes - others * _query_width(self.core) * step.stream.bytes,
            dims={**kernel.dims, **{name: kernel.dims[name] / self.ranks for name in ("new", "pairs")}},
        )

    def _decode(self, kernel: Kernel, step: Step) -> Kernel:
        return replace(
            kernel,
            flops=kernel.flops / self.ranks,
            kv_read_bytes=kernel.kv_read_bytes / self.ranks,
            dims={**kernel.dims, **{name: kernel.dims[name] / self.ranks for name in _PER_CONTEXT}},
        )


@dataclass(frozen=True, slots=True)
class ContextExchange:
    """What `ranks` that share a context send each other for one attention; widths are elements of a token."""

    ranks: int
    cached: int  #: keys and values, or the latent, held by one rank
    queries: int
    results: int
    heads: int  #: each partial result comes with its softmax weight, in fp32
    gather: Tiers
    exchange: Tiers
    window: int | None = None
    chunk: int | None = None

    grows = False

    @property
    def weights(self) -> tuple[Weights, ...]:
        """None."""
        return ()

    def kernels(self, step: Step, count: int) -> list[Kernel]:
        """Prefill: all-gather of keys and values. Decode: all-gather of queries, exchange of results, their sum."""
        launches = []
        if (prompts := step.batch.prefilling) is not None:
            seen = prompts.keys_read(self.window, self.chunk) * self.cached * step.kv.bytes
            launches.append(self._collective("context_gather", "all_gather", seen, step, count))
        if (decoding := step.batch.decoding) is not None:
            launches += self._merge(decoding, step, count)
        return launches

    def _merge(self, phase: Sequences, step: Step, count: int) -> list[Kernel]:
        tokens, wide = phase.tokens, step.stream.bytes
        results = tokens * (self.results * wide + self.heads * 4.0)
        mine = step.own(phase) * self.results
        return [
            self._collective("context_queries", "all_gather", tokens * self.queries * wide, step, count),
            self._collective("context_results", "all_to_all", results, step, count),
            Kernel(
                "context_merge",
                "elementwise",
                count,
                step.stream,
                flops=2.0 * self.ranks * mine,
                activation_bytes=mine * (self.ranks + 1.0) * wide,
                variant="merge",
            ),
        ]

    def _collective(self, name: str, kind: str, payload: Numeric, step: Step, count: int) -> Kernel:
        sent = self.gather if kind == "all_gather" else self.exchange
        outside = payload * sent.nic if sent.nic else 0.0
        return Kernel(
            name,
            "collective",
            count,
            step.stream,
            activation_bytes=2.0 * payload,
            network_bytes=payload * sent.links + outside,
            nic_bytes=outside,
            gpus=self.ranks,
            dims={"bytes": payload},
            variant=kind,
        )
