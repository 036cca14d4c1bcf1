"""Context parallelism: attention over a context that several accelerators share, and what they exchange for it.

Prefill: each of cp ranks computes its share of every prompt, two pieces that lie opposite, so that all score as many
pairs, and gathers everyone's keys and values. Decode: each rank keeps its share of every context, sees the queries of
all sequences, and the partial results are merged by their softmax weights (Yang et al. 2024, arXiv:2411.01783).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rooflinekit.model.graph.symbol import formula
from rooflinekit.model.kernels.attention import AttentionCore, LatentCore
from rooflinekit.model.kernels.collective import Tiers, collective_kernel
from rooflinekit.model.kernels.elementwise import elementwise_flops
from rooflinekit.model.kernels.operation import Operation, Step, Weights, passed_bytes
from rooflinekit.model.types.batch import Sequences
from rooflinekit.model.types.kernel import AttentionShape, Kernel
from rooflinekit.model.types.numeric import Numeric

__all__ = ["ContextExchange", "ContextShare", "result_bytes"]


@formula("payload", "partial results, each with its softmax weight in fp32", "B")
def result_bytes(tokens: Numeric, results: Numeric, heads: Numeric, element: float) -> Numeric:
    """What a rank sends of its part of an attention: new·(results·b + 4·H) [B].

    >>> result_bytes(32.0, 32 * 128, 32, 2.0)
    266240.0
    """
    return tokens * (results * element + heads * 4.0)


@dataclass(frozen=True, slots=True)
class ContextShare(Operation):
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
            launches.append(share(kernel, kernel.shaped(AttentionShape), step))
        return launches

    def _prefill(self, kernel: Kernel, shape: AttentionShape, step: Step) -> Kernel:
        phase = step.batch.prefilling
        others = (phase.tokens if phase else 0.0) * (1.0 - 1.0 / self.ranks)
        return replace(
            kernel,
            flops=kernel.flops / self.ranks,
            activation_bytes=kernel.activation_bytes - others * self.core.query_width * step.stream.bytes,
            shape=replace(shape, new=shape.new / self.ranks, pairs=shape.pairs / self.ranks),
        )

    def _decode(self, kernel: Kernel, shape: AttentionShape, step: Step) -> Kernel:
        context, keys, pairs = (size / self.ranks for size in (shape.context, shape.keys, shape.pairs))
        return replace(
            kernel,
            flops=kernel.flops / self.ranks,
            kv_read_bytes=kernel.kv_read_bytes / self.ranks,
            shape=replace(shape, context=context, keys=keys, pairs=pairs),
        )


@dataclass(frozen=True, slots=True)
class ContextExchange(Operation):
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
        results = result_bytes(tokens, self.results, self.heads, wide)
        mine = step.own(phase) * self.results
        return [
            self._collective("context_queries", "all_gather", tokens * self.queries * wide, step, count),
            self._collective("context_results", "all_to_all", results, step, count),
            Kernel(
                "context_merge",
                "elementwise",
                count,
                step.stream,
                flops=elementwise_flops(mine, 2.0 * self.ranks),
                activation_bytes=passed_bytes(mine, self.ranks + 1.0, wide),
                variant="merge",
            ),
        ]

    def _collective(self, name: str, kind: str, payload: Numeric, step: Step, count: int) -> Kernel:
        sent = self.gather if kind == "all_gather" else self.exchange
        return collective_kernel(name, kind, self.ranks, sent, payload, step.stream, count)
