"""The work of one kernel: its shape, its arithmetic and its bytes by class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias, TypeVar

from rooflinekit.model.graph.symbol import quantity
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.frozen import dataclass, fields, replace
from rooflinekit.model.types.numeric import Numeric, ceil_div, maximum, sqrt, where

Family: TypeAlias = Literal[
    "gemm",
    "attention_prefill",
    "attention_decode",
    "mla_prefill",
    "mla_decode",
    "sparse_attention",
    "linear_attention",
    "moe",
    "elementwise",
    "kv_append",
    "embedding",
    "sampling",
    "collective",
    "exchange",
    "host",
]
FAMILIES: tuple[Family, ...] = tuple(family for family in Family.__args__ if family != "host")  # type: ignore[attr-defined]
"""Families of kernels, each with a time form; "host" is what an engine adds between them."""

LORA, ASSUMED = "lora", "assumed"
"""Variants of launches that nobody measured: their interval is as wide as that of another number format."""

MATRIX_ROWS = 64
"""Rows of the smallest tile that tensor cores fill (wgmma m64); more rows come in multiples of it."""


@dataclass(frozen=True, slots=True)
class GemmShape:
    """A matrix product y[m, n] = x[m, k] W[n, k]; of several that run as one, n counts the columns of all."""

    m: Numeric = quantity("m", "rows: tokens of the step, or those that are sampled")
    n: Numeric = quantity("n", "output width here")
    k: Numeric = quantity("k", "input width here")

    @property
    def tiled_rows(self) -> Numeric:
        """Rows as a tiled kernel computes them: multiples of 64 above 64.

        >>> GemmShape(65.0, 1.0, 1.0).tiled_rows
        128.0
        """
        return where(self.m <= MATRIX_ROWS, self.m, MATRIX_ROWS * ceil_div(self.m, MATRIX_ROWS))

    def padded_rows(self, least: int, stacked: int = 1) -> Numeric:
        """Rows that are computed where an instruction takes `least`: whole instructions.

        More than two of them come in whole tiles, or clusters of tiles, of `stacked` instructions.

        >>> GemmShape(65.0, 1.0, 1.0).padded_rows(64), GemmShape(257.0, 1.0, 1.0).padded_rows(64, 4)
        (128.0, 512.0)
        """
        whole = ceil_div(self.m, least) * least
        if stacked == 1:
            return whole
        tile = stacked * least
        return where(self.m > 2.0 * least, ceil_div(self.m, tile) * tile, whole)


@dataclass(frozen=True, slots=True)
class SteplessGemmShape(GemmShape):
    """Shape of a product where nobody measured the edges of tiles: between whole tiles time is even.

    >>> shape = SteplessGemmShape(65.0, 1.0, 1.0)
    >>> shape.tiled_rows, shape.padded_rows(64), SteplessGemmShape(1.0, 1.0, 1.0).padded_rows(64)
    (65.0, 65.0, 64)
    """

    @property
    def tiled_rows(self) -> Numeric:
        """Rows, whole tiles or not."""
        return self.m

    def padded_rows(self, least: int, stacked: int = 1) -> Numeric:
        """At least one instruction."""
        return maximum(self.m, least)


VECTOR_ROWS = 8
"""Rows up to which llama.cpp multiplies row by row, without tiles (MMVQ_MAX_BATCH_SIZE of ggml-cuda)."""


@dataclass(frozen=True, slots=True)
class VectorGemmShape(SteplessGemmShape):
    """Shape of a product where few rows are multiplied one by one, as vectors.

    >>> VectorGemmShape(1.0, 1.0, 1.0).padded_rows(64), VectorGemmShape(9.0, 1.0, 1.0).padded_rows(64)
    (1.0, 64)
    """

    def padded_rows(self, least: int, stacked: int = 1) -> Numeric:
        """At least one instruction, beyond the rows that are vectors."""
        return where(self.m <= VECTOR_ROWS, self.m, maximum(self.m, least))


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Softmax attention of `batch` sequences; tokens, keys and pairs are those of one sequence, on average.

    Latent attention has one KV head in decode; its heads have the width of a query.
    """

    batch: Numeric = quantity("B", "sequences")
    new: Numeric = quantity("S", "new tokens of each")
    context: Numeric = quantity("Tmax", "longest context")
    keys: Numeric = quantity("T", "keys of each sequence that are read")
    pairs: Numeric = quantity("pairs", "query-key pairs of each sequence")
    heads: Numeric = quantity("H", "query heads here")
    kv_heads: Numeric = quantity("K", "KV heads here")
    head_dim: Numeric = quantity("d", "width of a query head")

    @property
    def queries(self) -> Numeric:
        """Query rows of one KV head in one sequence."""
        return self.heads / self.kv_heads * self.new

    @property
    def rows(self) -> Numeric:
        """Query rows of all heads and sequences."""
        return self.batch * self.heads * self.new

    @property
    def cached(self) -> Numeric:
        """Keys of all KV heads and sequences."""
        return self.batch * self.kv_heads * self.keys

    @property
    def causal_length(self) -> Numeric:
        """Length of the uncached causal prompt with as many query-key pairs.

        >>> AttentionShape(1.0, 4.0, 4.0, 4.0, 10.0, 8.0, 8.0, 128.0).causal_length
        4.0
        """
        return sqrt(2.0 * self.pairs + 0.25) - 0.5


@dataclass(frozen=True, slots=True)
class SparseShape(AttentionShape):
    """Attention to the keys that an indexer chose, its indexer, or a whole layer that was measured as one.

    `pairs` are those that are attended to. Scores of the indexer count in the format of the kernel.
    """

    core_flops: Numeric = quantity("F_c", "of the work, attention", "FLOP")
    chosen: Numeric = quantity("ch", "cache of the chosen keys, once a query", "B")
    index_flops: Numeric = quantity("F_i", "of the work, scores of the indexer", "FLOP")
    scores: Numeric = quantity("sc", "scores of the indexer, in fp32", "B")
    held: Numeric = quantity("h", "cache of all keys", "B")
    tiles: Numeric = quantity("n_tiles", "tiles of 64 query heads")
    floors: Numeric = quantity("n_t0", "floors: 1 for the attention, 0 for its indexer", default=1.0)
    scanned: Numeric = quantity("T_i", "keys that one tile of the indexer scans after each other", default=0.0)
    foreign: Numeric = quantity("fs", "places of scores for keys of other sequences, in fp32", "B", default=0.0)
    besides: Numeric = quantity("rest", "other kernels of a layer that was measured whole, alone", "s", default=0.0)


@dataclass(frozen=True, slots=True)
class ExpertsShape:
    """The routed experts of one layer on the fullest of `ranks` ranks."""

    tokens: Numeric = quantity("T", "tokens of all attention replicas")
    slots: Numeric = quantity("slots", "(token, expert) pairs that come here, also those of others' experts")
    routed: Numeric = quantity("A", "(token, expert) pairs here")
    touched: Numeric = quantity("act", "distinct experts that they touch here")
    local: Numeric = quantity("E_here", "experts held here")
    ranks: Numeric = quantity("g", "ranks over which whole experts are spread")
    hidden: Numeric = quantity("D", "width of a token")
    width: Numeric = quantity("F_e", "inner width of an expert here")
    matrices: Numeric = quantity("mats", "matrices of an expert: 3 gated, 2 plain", default=3.0)


@dataclass(frozen=True, slots=True)
class CollectiveShape:
    """A collective over `payload` bytes, in which every accelerator waits `phases` times for all others."""

    payload: Numeric = quantity("payload", "data that is summed, gathered or exchanged", "B")
    phases: Numeric = quantity("phases", "times that it waits for all others", default=1.0)


@dataclass(frozen=True, slots=True)
class ExchangeShape:
    """Tokens of one accelerator on their way to their experts, or results on their way back, by a library for this."""

    tokens: Numeric = quantity("T", "tokens of this accelerator")
    experts: Numeric = quantity("E", "experts of all ranks")
    movers: Numeric = quantity("SM_x", "cores that move the data; 0: all", default=0.0)


@dataclass(frozen=True, slots=True)
class RowsShape:
    """A pass over rows; 0 where none of them costs anything besides its bytes."""

    rows: Numeric = quantity("rows", "rows", default=0.0)


Shape: TypeAlias = GemmShape | AttentionShape | ExpertsShape | CollectiveShape | ExchangeShape | RowsShape
_GROWING = ("attention_decode", "mla_decode", "sparse_attention")
S = TypeVar("S", GemmShape, AttentionShape, SparseShape, ExpertsShape, CollectiveShape, ExchangeShape, RowsShape)
ROWLESS = RowsShape()


@dataclass(frozen=True)
class Kernel:
    """Work of one launch on one accelerator; the step runs `count` of them.

    Bytes are by class: weights streamed, KV cache and activations read and written, sent over the network.
    """

    name: str
    family: Family
    count: int
    dtype: Dtype  #: format of the arithmetic
    flops: Numeric = quantity("F", "work of one launch", "FLOP", default=0.0)
    weight_bytes: Numeric = quantity("w", "weights read", "B", default=0.0)
    kv_read_bytes: Numeric = quantity("kr", "cache or state read", "B", default=0.0)
    kv_write_bytes: Numeric = quantity("kw", "cache or state written", "B", default=0.0)
    activation_bytes: Numeric = quantity("a", "activations read and written", "B", default=0.0)
    network_bytes: Numeric = quantity("net", "sent to other accelerators", "B", default=0.0)
    gpus: int = 1  #: accelerators that a collective joins
    variant: str = ""  #: what else picks an engine's kernel: format of the cache, collective, routing of the experts
    nic_bytes: Numeric = quantity("nic", "sent beyond the scale-up domain", "B", default=0.0)
    shape: Shape = ROWLESS
    on_host: bool = False  #: its weights and cache lie in the host's memory
    dequantised: bool = False  #: weights are kept in a narrower format than the arithmetic's
    narrowed: bool = False  #: its activations come in the narrow format of the arithmetic: it quantises none
    launches: int = 1  #: kernels that an engine launches for it without a graph, where the engine's costs say nothing
    place: str = ""  #: group of accelerators that it runs on, or link between two; "": those that hold the cache

    @property
    def bytes(self) -> Numeric:
        """Memory traffic of one launch [B]."""
        return self.weight_bytes + self.kv_read_bytes + self.kv_write_bytes + self.activation_bytes

    @property
    def cache_bytes(self) -> Numeric:
        """Bytes of keys and values that are read and written [B]."""
        return self.kv_read_bytes + self.kv_write_bytes

    @property
    def intensity(self) -> Numeric:
        """FLOP per byte of memory traffic."""
        return self.flops / self.bytes

    @property
    def grows(self) -> bool:
        """True if the work of a decode step depends on the context here: in attention and nowhere else."""
        return self.family in _GROWING

    def shaped(self, kind: type[S]) -> S:
        """Return its shape, which must be of this kind."""
        if not isinstance(self.shape, kind):
            raise TypeError(f"kernel {self.name} ({self.family}) has a {type(self.shape).__name__}, no {kind.__name__}")
        return self.shape

    def tiled(self, kind: type[GemmShape]) -> Kernel:
        """The kernel with another kind of tiles, of a matrix product: without their steps, or few rows as vectors."""
        shape = self.shape
        return replace(self, shape=kind(shape.m, shape.n, shape.k)) if type(shape) is GemmShape else self

    def mapped(self, change: Callable[[object], object]) -> Kernel:
        """The kernel with `change` applied to every number of its work and shape."""
        work = {name: change(getattr(self, name)) for name in WORK}
        sizes = {entry.name: change(getattr(self.shape, entry.name)) for entry in fields(self.shape)}
        return replace(self, **work, shape=replace(self.shape, **sizes))


WORK = tuple(entry.name for entry in fields(Kernel) if "quantity" in entry.metadata)
"""Fields of a kernel that say how much work it is: arithmetic, and bytes by class."""
