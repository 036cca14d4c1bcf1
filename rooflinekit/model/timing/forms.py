"""Time of one launch: the formulas, and the form that each family of kernels puts together from them.

Every form is launch + pn(compute, memory, p) + what nothing hides, pn(x, y, p) = (x^p + y^p)^(1/p). P is the peak rate
of the kernel's number format, W the memory bandwidth, SM the cores (docs/method.md, section 3).
"""

from __future__ import annotations

from typing import Any, Protocol

from rooflinekit.model.graph.symbol import Quantity, formula, named
from rooflinekit.model.types.frozen import dataclass, field, fields
from rooflinekit.model.types.hardware import System, sent_time
from rooflinekit.model.types.kernel import (
    FAMILIES,
    AttentionShape,
    CollectiveShape,
    ExchangeShape,
    ExpertsShape,
    Family,
    GemmShape,
    Kernel,
    RowsShape,
    SparseShape,
    SteplessGemmShape,
)
from rooflinekit.model.types.numeric import Numeric, ceil, ceil_div, log2, maximum, minimum, smooth_maximum, sqrt, where

_UNITS = {"us": ("s", 1e-6), "KB": ("B", 1e3), "GB/s": ("B/s", 1e9)}
"""Units of files, and what they are in SI; the others have none."""

EFFICIENCY = 1.05
"""Largest share of a datasheet rate that a fit may find: clocks above the one that the datasheet assumes."""


@dataclass(frozen=True, slots=True)
class ParameterRange:
    """One parameter of a form: meaning, unit (one of `_UNITS`, "share", "elements" …), range, usual value."""

    symbol: str
    meaning: str
    unit: str
    low: float
    high: float
    usual: float
    choices: tuple[int, ...] = ()

    @property
    def scale(self) -> float:
        """SI value of one unit, as files write it: microseconds become seconds."""
        return _UNITS.get(self.unit, ("", 1.0))[1]


def parameter(symbol: str, meaning: str, unit: str, low: float, high: float, usual: float) -> Any:
    """Declare a fitted number, in the unit of files; the attribute holds it in SI."""
    return _declared(ParameterRange(symbol, meaning, unit, low, high, usual))


def choice(meaning: str, usual: int, choices: tuple[int, ...] = (1, 2, 4), symbol: str = "") -> Any:
    """Declare a number that is one of a few: rows of a tile, or, without a symbol, what picks a formula (1, 2 or 4)."""
    return _declared(ParameterRange(symbol, meaning, "choice", min(choices), max(choices), usual, choices))


def _declared(bounds: ParameterRange) -> object:
    unit = _UNITS.get(bounds.unit, ("", 1.0))[0]
    named_so = {"quantity": Quantity(bounds.symbol, bounds.meaning, unit)} if bounds.symbol else {}
    metadata = {"bounds": bounds, **named_so}
    return field(default=bounds.usual if bounds.choices else bounds.usual * bounds.scale, metadata=metadata)


def parameters(form: type[Any] | object) -> dict[str, ParameterRange]:
    """The declared parameters of a time form, in order."""
    return {entry.name: entry.metadata["bounds"] for entry in fields(form)}  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Duration:
    """Time of one launch [s]: what each resource alone would take at realised rates, and `total`, their combination."""

    launch: Numeric
    compute: Numeric
    memory: Numeric
    network: Numeric
    total: Numeric


class TimeForm(Protocol):
    """Time of one kernel family from its work, the accelerator's rates and a few parameters."""

    def time(self, kernel: Kernel, system: System, warm: bool = False) -> Duration:
        """Time of one launch [s]; `warm` when the same data were used just before (a benchmark loop)."""
        ...


_SINGLE = 2  # `packed` of a prefill attention whose heads share tiles where there is one new token
TILE = 128
"""Rows and columns of the usual tile: of a matrix product (CUTLASS default 128 x 128), and of a prefill attention
(FlashAttention-2 and -3)."""

_PART = 256.0  # keys of a part of a split context
_LATENT_COLUMNS = 320  # of QK^T and PV of one up-projected head: 192 + 128 (DeepSeek-V3)
_DEEP = 1024.0  # depth at which the latency of a k loop is stated
_MEGABYTE = 1e6


@formula("streamed", "bytes that cost as much, with the last cache in between", "B")
def streamed(traffic: Numeric, capacity: Numeric, speed: Numeric) -> Numeric:
    """Bytes that cost as much as `traffic` bytes used again and again, with a cache of `capacity` bytes in between [B].

    bytes·(1 − h + h/speed), h = 1/(1 + (bytes/capacity)^4): below the capacity they come `speed` times faster than
    memory delivers. Serving uses cold data and does not call this.

    >>> streamed(1e6, 50e6, 3.0) / 1e6, streamed(1e9, 50e6, 3.0) / 1e9
    (0.333, 1.000)
    """
    if isinstance(capacity, float) and not capacity:
        return traffic
    squared = (traffic / capacity) * (traffic / capacity)
    hit = 1.0 / (1.0 + squared * squared)
    return traffic * (1.0 - hit * (1.0 - 1.0 / speed))


@formula("compute", "arithmetic at the realised rate", "s")
def compute_time(flops: Numeric, share: Numeric, peak: Numeric) -> Numeric:
    """F/(ec·P) [s] (Williams et al. 2009, doi:10.1145/1498765.1498785).

    >>> compute_time(2.0 * 4096**3, 0.8, 989.4e12) * 1e6
    173.6
    """
    return flops / (share * peak)


@formula("memory", "bytes at the realised bandwidth", "s")
def memory_time(moved: Numeric, share: Numeric, bandwidth: Numeric) -> Numeric:
    """bytes/(em·W) [s].

    >>> memory_time(33.6e6, 0.88, 3.35e12) * 1e6
    11.4
    """
    return moved / (share * bandwidth)


@formula("besides", "further passes over the cache, which nothing hides", "s")
def pass_time(cached: Numeric, passes: Numeric, bandwidth: Numeric) -> Numeric:
    """kr·cv/W: traffic of the cache that the attention of some engines moves besides (write, conversion) [s].

    >>> pass_time(151e6, 1.0, 3.35e12) * 1e6
    45.1
    """
    return cached * (passes / bandwidth)


@formula("own", "share of the keys that are written now")
def fresh_share(new: Numeric, keys: Numeric) -> Numeric:
    """least(1, S/T): prompts write and convert keys of new tokens; those before them are streamed under the products.

    vLLM's kernels on an H100 show it (validate/measurements): with the further passes over all keys, chunks of 1,024
    tokens behind 16,384 and 65,536 were 22 and 32 % too slow.

    >>> fresh_share(1024.0, 4096.0)
    0.25
    """
    return minimum(1.0, new / keys)


@formula("launch", "floor of one launch, and latency of the k loop", "s")
def gemm_launch(floor: Numeric, split: Numeric, whole: Numeric, k: Numeric) -> Numeric:
    """t0 + kl·√(k/1024) + ks·k/1024 [s]: a latency that no parallelism hides, √k where k is split, k where it is not.

    >>> gemm_launch(2.3e-6, 1.1e-6, 0.0, 4096.0) * 1e6
    4.5
    """
    return floor + split * sqrt(k / _DEEP) + whole * (k / _DEEP)


@formula("compute", "multiply-adds, rows and depth padded", "s")
def gemm_compute(
    flops: Numeric, m: Numeric, k: Numeric, padded: Numeric, depth: Numeric, share: Numeric, peak: Numeric
) -> Numeric:
    """F·m_r/m·(1 + k0/k)/(ec·P) [s].

    m_r are the rows as whole instructions compute them (64 on tensor cores, 1 on a CPU); each tile has a fixed cost
    worth k0 of its depth (prologue, epilogue).

    >>> gemm_compute(2.0 * 4096**3, 4096.0, 4096.0, 4096.0, 100.0, 0.8, 989.4e12) * 1e6
    177.9
    """
    return flops * (padded / m * ((1.0 + depth / k) / (share * peak)))


@formula("idle", "tiles that the last wave leaves idle")
def idle_tiles(m: Numeric, n: Numeric, cores: int) -> Numeric:
    """Tiles that the last wave leaves idle when 128 x 128 output tiles go round `cores` cores; 0 below one wave.

    Below one wave kernels split k instead (NVIDIA, Matrix Multiplication Background User's Guide, section 4).

    >>> idle_tiles(1024.0, 4096.0, 132), idle_tiles(64.0, 4096.0, 132)  # 256 tiles on 132 SMs: 2 waves of 132
    (8.0, 0.0)
    """
    waves = ceil_div(m, TILE) * ceil_div(n, TILE) / cores
    return where(waves >= 1.0, ceil(waves) - waves, 0.0 * waves) * cores


@formula("idle", "tiles that a last wave leaves idle on average")
def mean_idle_tiles(m: Numeric, n: Numeric, cores: int) -> Numeric:
    """Idle tiles where nobody measured the waves: half of one, and less below one wave.

    >>> mean_idle_tiles(4096.0, 4096.0, 132), mean_idle_tiles(64.0, 4096.0, 132)
    (66.0, 8.0)
    """
    return minimum(m * n / (TILE * TILE), cores) / 2.0


@formula("tail_time", "idle tiles of the last wave that are paid", "s")
def tail_time(idle: Numeric, k: Numeric, depth: Numeric, tail: Numeric, share: Numeric, peak: Numeric) -> Numeric:
    """idle·2·128²·(k + k0)·tail/(ec·P) [s].

    >>> tail_time(8.0, 4096.0, 100.0, 0.5, 0.8, 989.4e12) * 1e9
    694.8
    """
    return idle * (2.0 * TILE * TILE) * (k + depth) * (tail / (share * peak))


@formula("partial", "partial sums of a split depth, written and read in fp32", "B")
def partial_sums(m: Numeric, n: Numeric, k: Numeric, cores: int) -> Numeric:
    """8·(x·y)/(x + y), with x = m·n·k/128 in pieces of 128 and y = SM·128²·least(1, m/128), one tile a core [B].

    Products of few tiles are split along k until every core has a piece (split-K, stream-K: Osama et al. 2023,
    doi:10.1145/3572848.3577479); there are no more pieces than the depth has.

    >>> partial_sums(64.0, 256.0, 4096.0, 256) / 1e6
    3.36
    """
    pieces, everyone = m * n * (k / TILE), cores * TILE * minimum(m, TILE)
    return 8.0 * (pieces * everyone) / (pieces + everyone)


@formula("quantise", "activations from 16 bit to the narrow format", "s")
def quantise_time(m: Numeric, k: Numeric, element: float, share: Numeric, bandwidth: Numeric) -> Numeric:
    """m·k·(2 + b_n)/(eq·W): the kernel that quantises 16-bit activations for narrower arithmetic [s].

    >>> quantise_time(4096.0, 4096.0, 1.0, 0.4, 3.35e12) * 1e6
    37.6
    """
    return m * k * ((2.0 + element) / (share * bandwidth))


@formula("launch", "floor of one launch, and its growth with the keys", "s")
def attention_launch(floor: Numeric, doubling: Numeric, keys: Numeric, part: float) -> Numeric:
    """t0 + kl·log2(1 + T/part) [s].

    In decode the partial results of a split context are combined, part = 256 (FlashDecoding, Dao et al. 2023); in
    prefill tiles of 128 keys follow each other.

    >>> attention_launch(10e-6, 0.9e-6, 4096.0, 256.0) * 1e6
    13.7
    """
    return floor + doubling * log2(1.0 + keys / part)


@formula("tiles", "fixed cost of the tiles", "s")
def tile_time(tiles: Numeric, each: Numeric, cores: int) -> Numeric:
    """tiles·tc/SM: each tile costs tc on its core, however little it holds [s].

    >>> tile_time(512.0, 3e-6, 132) * 1e6
    11.6
    """
    return tiles * (each / cores)


@formula("n_tiles", "tiles of queries of one sequence and KV head")
def decode_tiles(batch: Numeric, kv_heads: Numeric, queries: Numeric, rows: int) -> Numeric:
    """B·K·⌈(H/K)·S/q⌉: the queries of one KV head share tiles of q rows.

    >>> decode_tiles(64.0, 8, 4.0, 64), decode_tiles(64.0, 1, 128.0, 64)  # Llama-3-8B; latent attention, 128 heads
    (512.0, 128.0)
    """
    return batch * kv_heads * ceil_div(queries, rows)


@formula("fill", "rows computed over rows asked for")
def row_fill(queries: Numeric, least: float) -> Numeric:
    """max(q, least)/q: tensor cores compute tiles of 16 rows.

    >>> row_fill(8.0, 16.0), row_fill(128.0, 16.0)
    (2.0, 1.0)
    """
    return maximum(queries, least) / queries


@formula("n_tiles", "tile rows of all heads")
def prefill_tiles(batch: Numeric, heads: Numeric, kv_heads: Numeric, new: Numeric, packed: int) -> Numeric:
    """B·H·⌈S/128⌉: each query head has tiles of its own; or B·K·⌈(H/K)·S/128⌉: those of one KV head share them.

    packed: 0 for apart, 1 for shared (FlashInfer, arXiv:2501.01005; FlashAttention-3's pack_gqa), 2 for shared where a
    sequence has one new token (FlashAttention-2 takes the heads as queries then).

    >>> [prefill_tiles(2.0, 32, 8, 1000.0, packed) for packed in (0, 1, 2)]
    [512.0, 512.0, 512.0]
    >>> [prefill_tiles(2.0, 32, 8, 1.0, packed) for packed in (0, 1, 2)]
    [64.0, 16.0, 16.0]
    """
    apart = batch * heads * ceil_div(new, TILE)
    if not packed:
        return apart
    shared = batch * kv_heads * ceil_div(heads / kv_heads * new, TILE)
    return where(new > 1.0, apart, shared) if packed == _SINGLE else shared


@formula("last", "keys that the last query sees")
def farthest(new: Numeric, pairs: Numeric, keys: Numeric) -> Numeric:
    """Keys that the last query of a sequence sees: mean keys a query + new/2, and no more than there are.

    >>> farthest(4.0, 18.0, 6.0), farthest(1.0, 9.0, 9.0)  # 4 new tokens after 2; decode at 9
    (6.0, 9.0)
    """
    return minimum(pairs / new + new / 2.0, keys)


@formula("pad", "tiles on the diagonal are computed whole")
def key_padding(new: Numeric, pairs: Numeric) -> Numeric:
    """Work of a causal tiled kernel over exact work: tiles on the diagonal are computed whole, 1 + (tile/2)/mean keys.

    >>> key_padding(1024.0, 1024 * 1025 / 2)
    1.12
    """
    return 1.0 + (TILE / 2.0) * new / pairs


@formula("longest", "the longest tile row, as if every core computed one", "FLOP")
def longest_row_flops(last: Numeric, columns: Numeric, cores: int) -> Numeric:
    """last·2·128·columns·SM: the tile row that sees the most keys runs alone on its core [FLOP].

    >>> longest_row_flops(4096.0, 256.0, 132) / 1e9
    35.4
    """
    return last * (2.0 * TILE * cores) * columns


@formula("rate", "realised rate for heads of this width", "FLOP/s")
def head_rate(share: Numeric, peak: Numeric, width: Numeric, half: Numeric) -> Numeric:
    """ec·P·d/(d + d0): short heads leave the softmax exposed [FLOP/s].

    >>> head_rate(0.75, 989.4e12, 128.0, 30.0) / 1e12
    601.2
    """
    return share * peak * (width / (width + half))


@formula("compute", "scored pairs in whole tiles, and the longest tile row alone", "s")
def prefill_compute(flops: Numeric, pad: Numeric, share: Numeric, longest: Numeric, rate: Numeric) -> Numeric:
    """(F·pad + ρ·longest)/rate [s].

    >>> prefill_compute(34.4e9, 1.06, 0.4, 17.7e9, 601e12) * 1e6
    72.5
    """
    return (flops * pad + share * longest) / rate


@formula("launch", "floor, each touched expert, and sorting", "s")
def experts_launch(floor: Numeric, expert: Numeric, touched: Numeric, sort: Numeric, routed: Numeric) -> Numeric:
    """t0 + ta·act + lt·log2(1 + A): the logarithm is sorting and gathering [s].

    >>> experts_launch(30e-6, 0.1e-6, 163.0, 1e-6, 255.0) * 1e6
    54.3
    """
    return floor + expert * touched + sort * log2(1.0 + routed)


@formula("compute", "work, each touched expert padded to a tile", "s")
def experts_compute(
    flops: Numeric, rows: Numeric, touched: Numeric, routed: Numeric, share: Numeric, peak: Numeric
) -> Numeric:
    """F·(1 + pad·act/A)/(ec·P) [s].

    >>> experts_compute(22.5e9, 16.0, 163.0, 256.0, 0.5, 989.4e12) * 1e6
    508.8
    """
    return flops * (1.0 + rows * (touched / routed)) / (share * peak)


@formula("moved", "weights of the touched experts, and passes over the tokens", "B")
def experts_traffic(
    weights: Numeric, activations: Numeric, passes: Numeric, foreign: Numeric, slots: Numeric, routed: Numeric
) -> Numeric:
    """W + a·(passes + foreign·(slots − A)/A) [B].

    Under expert parallelism vLLM's and SGLang's fused kernels also move the rows of pairs that belong to other
    accelerators, slots − A of them.

    >>> experts_traffic(7.18e9, 14.2e6, 1.0, 0.1, 256.0, 256.0) / 1e9
    7.19
    """
    return weights + activations * (passes + foreign * ((slots - routed) / routed))


@formula("launch", "floor of one launch, and a hop to each further accelerator", "s")
def collective_launch(floor: Numeric, hop: Numeric, gpus: int, phases: Numeric) -> Numeric:
    """t0 + hop·(g − 1)·phases [s].

    An all-reduce that is asked to take two steps waits for all others twice; as measured, it counts once.

    >>> collective_launch(4e-6, 0.5e-6, 8, 1.0) * 1e6
    7.5
    """
    return floor + hop * (gpus - 1) * phases


@formula("network", "transfer with the own piece, and the change of protocols", "s")
def collective_network(wire: Numeric, share: Numeric, own: Numeric, gpus: int, ramp: Numeric, sent: Numeric) -> Numeric:
    """wire·(1 + po/(g − 1))/en + ramp·√(sent/1 MB) [s]: latency, bandwidth, and protocols between.

    Hockney's model (latency + bytes/bandwidth, Parallel Computing 20, 1994) with a square root for the region in which
    the library trades protocols and channels. An accelerator handles g pieces, of which g − 1 cross its links: its own
    piece is copied or summed as well (NCCL, src/device/all_gather.h, `runRing`).

    >>> collective_network(1e6 / 450e9, 0.8, 0.0, 8, 4e-6, 1e6) * 1e6
    6.78
    >>> collective_network(1e6 / 450e9, 0.8, 0.7, 8, 4e-6, 1e6) * 1e6
    7.06
    """
    return wire * ((1.0 + own / (gpus - 1)) / share) + ramp * sqrt(sent / _MEGABYTE)


@formula("launch", "floor of one launch, its experts, and its ranks", "s")
def exchange_launch(floor: Numeric, expert: Numeric, experts: Numeric, doubled: Numeric, gpus: int) -> Numeric:
    """t0 + te·E + t2·log2(g) [s]: every expert has a counter, and ranks wait for each other.

    >>> exchange_launch(10e-6, 0.02e-6, 256.0, 2e-6, 8) * 1e6
    21.12
    """
    return floor + expert * experts + doubled * log2(1.0 * gpus)


@formula("network", "the slowest of links, network cards, cores and copies", "s")
def exchange_network(links: Numeric, nic: Numeric, moved: Numeric, copies: Numeric) -> Numeric:
    """p4(p4(links, NIC), p4(moved, copies)) [s], p4(x, y) = (x^4 + y^4)^(1/4).

    Times of the bytes over links and over network cards, of the cores that move them, and of one core's share of
    the tokens, where a kernel gives an expert to a core (DeepEP, internode_ll.cu). They run at once.

    >>> exchange_network(100e-6, 0.0, 20e-6, 5e-6) * 1e6
    100.0
    """
    return smooth_maximum(smooth_maximum(links, nic, 4), smooth_maximum(moved, copies, 4), 4)


@formula("queue", "tokens of a core, one after another", "s")
def exchange_queue(tokens: Numeric, experts: Numeric, cores: Numeric, each: Numeric) -> Numeric:
    """tc·T / (E / ⌈E/SM⌉) [s]: cores that have an expert share the tokens.

    >>> exchange_queue(1024.0, 8.0, 132.0, 2.5e-6) * 1e6  # eight of the cores work
    320.0
    """
    return each * tokens * ceil_div(experts, cores) / experts


@formula("launch", "floor of one launch, and each row", "s")
def rows_launch(floor: Numeric, each: Numeric, rows: Numeric) -> Numeric:
    """t0 + tr·rows [s]; tr is what a row costs besides its bytes, where rows are handled one by one (on a CPU).

    >>> rows_launch(2.5e-6, 1e-9, 1000.0) * 1e6
    3.5
    """
    return floor + each * rows


def _combined(launch: Numeric, compute: Numeric, memory: Numeric, sharpness: int, besides: Numeric = 0.0) -> Duration:
    """Launch, two resources that overlap, and traffic that nothing hides."""
    total = launch + smooth_maximum(compute, memory, sharpness) + besides
    return Duration(launch, compute, memory + besides, 0.0, total)


@dataclass(frozen=True)
class GemmTime:
    """A matrix product: `gemm_launch`, `gemm_compute`, `memory_time`; and `quantise_time` in narrow formats.

    Found on the tables of H100, H200, B200, A100 and L40S.

    >>> from rooflinekit.specs import load_accelerator
    >>> from rooflinekit.model.types.dtype import Dtype
    >>> system = System.of(load_accelerator("h100-sxm").value)
    >>> work = Kernel("w", "gemm", 1, Dtype.BF16, 2.0 * 4096**3, 2.0 * 4096**2, 0.0, 0.0, 4.0 * 4096**2,
    ...               shape=GemmShape(4096.0, 4096.0, 4096.0))
    >>> GemmTime().time(work, system).total * 1e6  # 2·4096³ / (0.8 · 989e12) s = 173.6 µs, + 2 % for k0, + 4.5 µs
    182.4
    """

    launch: float = parameter("t0", "floor of one launch", "us", 0.0, 60.0, 2.3)
    depth_root: float = parameter("kl", "latency of the k loop where k is split, at k = 1024", "us", 0.0, 10.0, 1.1)
    depth: float = parameter("ks", "latency of the k loop where it is not, at k = 1024", "us", 0.0, 5.0, 0.0)
    compute: float = parameter("ec", "realised share of the peak", "share", 0.05, EFFICIENCY, 0.8)
    memory: float = parameter("em", "realised share of the bandwidth", "share", 0.1, EFFICIENCY, 0.88)
    tile: float = parameter("k0", "fixed cost of a tile, as depth k0", "elements", 0.0, 2000.0, 100.0)
    tail: float = parameter("tail", "share of the last wave's idle tiles that is paid", "share", 0.0, 0.8, 0.0)
    quantise: float = parameter("eq", "realised bandwidth of quantising activations", "share", 0.03, EFFICIENCY, 0.4)
    cache_share: float = parameter("ch", "share of the L2 that a benchmark loop keeps", "share", 0.01, 1.5, 0.12)
    cache_speed: float = parameter("cx", "L2 rate over memory rate", "factor", 1.0, 10.0, 1.0)
    partial: float = parameter(
        "cp", "times that partial sums of a split depth cross the memory", "factor", 0.0, 10.0, 0.0
    )
    sharpness: int = choice("overlap of compute and memory", 4)
    stacked: int = choice("instructions that a tile, or a cluster, of more than 128 rows stacks", 1, symbol="i")

    def time(self, kernel: Kernel, system: System, warm: bool = False) -> Duration:
        """Time of one launch [s]."""
        gpu, shape = system.accelerator, kernel.shaped(GemmShape)
        m, n, k, peak, bandwidth = shape.m, shape.n, shape.k, gpu.peak(kernel.dtype), gpu.memory_bandwidth
        rows = shape.padded_rows(gpu.tile_rows, self.stacked)
        padded = named(rows, "m_r", "rows as whole instructions and tiles compute them")
        compute = gemm_compute(kernel.flops, m, k, padded, self.tile, self.compute, peak)
        if self.tail:
            stepless = isinstance(shape, SteplessGemmShape)
            idle = mean_idle_tiles(m, n, gpu.cores) if stepless else idle_tiles(padded, n, gpu.cores)
            compute = compute + tail_time(idle, k, self.tile, self.tail, self.compute, peak)
        moved = streamed(kernel.bytes, self.cache_share * gpu.l2_bytes, self.cache_speed) if warm else kernel.bytes
        besides: Numeric = 0.0
        if not (kernel.dtype.is_wide or kernel.narrowed):
            besides = quantise_time(m, k, kernel.dtype.bytes, self.quantise, bandwidth)
        if self.partial:
            besides = besides + pass_time(partial_sums(m, n, k, gpu.cores), self.partial, bandwidth)
        launch = gemm_launch(self.launch, self.depth_root, self.depth, k)
        memory = memory_time(moved, self.memory, bandwidth)
        total = launch + smooth_maximum(compute, memory, self.sharpness) + besides
        return Duration(launch, compute, memory, 0.0, total)


def _decoded(form: DecodeTime | LatentDecodeTime, kernel: Kernel, system: System, warm: bool = False) -> Duration:
    """Time of one launch of decode attention [s]; only latent heads fill tiles, and pass over the cache again."""
    gpu, shape, cached = system.accelerator, kernel.shaped(AttentionShape), kernel.kv_read_bytes
    tiles = decode_tiles(shape.batch, shape.kv_heads, shape.queries, form.rows)
    flops: Numeric = kernel.flops
    besides: Numeric = 0.0
    if isinstance(form, LatentDecodeTime):
        flops = flops * row_fill(shape.queries, form.least)
        besides = pass_time(cached, form.passes, gpu.memory_bandwidth)
    compute = compute_time(flops, form.compute, gpu.peak(kernel.dtype)) + tile_time(tiles, form.tile, gpu.cores)
    if warm:
        cached = streamed(cached, form.cache_share * gpu.l2_bytes, form.cache_speed)
    memory = memory_time(cached + kernel.activation_bytes, form.memory, gpu.memory_bandwidth)
    launch = attention_launch(form.launch, form.split, shape.keys, _PART)
    return _combined(launch, compute, memory, form.sharpness, besides)


@dataclass(frozen=True)
class DecodeTime:
    """Decode attention of grouped-query heads: `attention_launch`, `compute_time` and `tile_time`, `memory_time`.

    One query, or a few, of each sequence against its cache. FlashDecoding (Dao et al. 2023) splits the context over the
    cores, which is why only rates remain. Kernels that do not use tensor cores reach a small share of the peak.
    """

    launch: float = parameter("t0", "floor of one launch", "us", 0.0, 300.0, 10.0)
    split: float = parameter("kl", "combining the parts of a split context, per doubling", "us", 0.0, 20.0, 0.9)
    memory: float = parameter("em", "realised share of the bandwidth", "share", 0.1, EFFICIENCY, 0.92)
    tile: float = parameter("tc", "cost of one tile of queries on one core", "us", 0.0, 60.0, 3.0)
    compute: float = parameter("ec", "realised share of the peak", "share", 0.001, EFFICIENCY, 0.4)
    cache_share: float = parameter("ch", "share of the L2 that a benchmark loop keeps", "share", 0.1, 2.0, 0.8)
    cache_speed: float = parameter("cx", "L2 rate over memory rate", "factor", 1.0, 10.0, 3.0)
    sharpness: int = choice("overlap of tiles and memory", 2)
    rows: int = choice("query heads that a tile holds", 64, (16, 64), "q")

    time = _decoded


@dataclass(frozen=True)
class LatentDecodeTime:
    """Form of absorbed latent attention; `row_fill`, and `pass_time` over the cache besides.

    All heads share one latent, read once (DeepSeek-V2, arXiv:2405.04434, 2.1); fewer than 16 heads fill a tile of 16.
    Engines that convert a narrow cache to 16 bit before they use it pass over it again.
    """

    launch: float = parameter("t0", "floor of one launch", "us", 0.0, 60.0, 11.5)
    split: float = parameter("kl", "combining the parts of a split context, per doubling", "us", 0.0, 20.0, 1.5)
    memory: float = parameter("em", "realised share of the bandwidth", "share", 0.1, EFFICIENCY, 0.92)
    tile: float = parameter("tc", "cost of one sequence's tile of heads on one core", "us", 0.0, 100.0, 5.0)
    compute: float = parameter("ec", "realised share of the peak", "share", 0.02, EFFICIENCY, 0.7)
    cache_share: float = parameter("ch", "share of the L2 that a benchmark loop keeps", "share", 0.1, 2.0, 0.7)
    cache_speed: float = parameter("cx", "L2 rate over memory rate", "factor", 1.0, 10.0, 3.0)
    sharpness: int = choice("overlap of tiles and memory", 2)
    passes: float = parameter("cv", "further passes over the cache", "factor", 0.0, 50.0, 0.0)

    rows = 64  # query heads that a tile holds: assumed, not fitted
    least = 16  # rows of a tensor-core tile (mma m16), which is computed whole
    time = _decoded


def _prefilled(form: PrefillTime | LatentPrefillTime, kernel: Kernel, system: System, warm: bool = False) -> Duration:
    """Time of one launch of causal attention [s].

    Grouped-query heads stream queries, results and the cache, latent ones in its place up-projected keys and values.
    """
    gpu, shape, peak = system.accelerator, kernel.shaped(AttentionShape), system.accelerator.peak(kernel.dtype)
    columns: Numeric = 2.0 * shape.head_dim
    if isinstance(form, PrefillTime):
        rate, packed = head_rate(form.compute, peak, shape.head_dim, form.head), form.packed
        passes = form.cache * fresh_share(shape.new, shape.keys)
        streams = kernel.activation_bytes + kernel.kv_read_bytes
    else:
        columns, rate, packed, passes = _LATENT_COLUMNS, form.compute * peak, 0, form.passes
        streams = kernel.activation_bytes
    last = farthest(shape.new, shape.pairs, shape.keys)
    longest, pad = longest_row_flops(last, columns, gpu.cores), key_padding(shape.new, shape.pairs)
    compute = prefill_compute(kernel.flops, pad, form.longest, longest, rate)
    memory = memory_time(streams, form.memory, gpu.memory_bandwidth)
    besides = pass_time(kernel.kv_read_bytes, passes, gpu.memory_bandwidth)
    tiles = prefill_tiles(shape.batch, shape.heads, shape.kv_heads, shape.new, packed)
    launch = attention_launch(form.launch, form.length, shape.keys, TILE) + tile_time(tiles, form.tile, gpu.cores)
    return _combined(launch, compute, memory, form.sharpness, besides)


@dataclass(frozen=True)
class PrefillTime:
    """Prefill attention of grouped-query heads: `attention_launch`, `prefill_compute`, `memory_time`, `pass_time`."""

    launch: float = parameter("t0", "floor of one launch", "us", 0.0, 60.0, 12.0)
    length: float = parameter("kl", "latency per doubling of the keys", "us", 0.0, 20.0, 0.8)
    compute: float = parameter("ec", "realised share of the peak, long heads", "share", 0.03, EFFICIENCY, 0.75)
    head: float = parameter("d0", "head dimension at which that rate halves", "elements", 0.0, 500.0, 30.0)
    longest: float = parameter("rho", "share of the longest tile row that nothing hides", "share", 0.0, 3.0, 0.4)
    memory: float = parameter("em", "realised share of the bandwidth", "share", 0.05, EFFICIENCY, 0.7)
    cache: float = parameter("ew", "times the cache crosses the memory besides", "factor", 0.0, 20.0, 1.0)
    tile: float = parameter("tt", "cost of one tile row on one core", "us", 0.0, 20.0, 1.0)
    sharpness: int = choice("overlap of compute and memory", 1)
    packed: int = choice("0: a query head has its own tiles; 1: heads share them; 2: for one new token", 0, (0, 1, 2))

    time = _prefilled


@dataclass(frozen=True)
class LatentPrefillTime:
    """Form over the 192 + 128 columns of an up-projected head; the cache is the shared latent."""

    launch: float = parameter("t0", "floor of one launch", "us", 0.0, 90.0, 13.0)
    length: float = parameter("kl", "latency per doubling of the keys", "us", 0.0, 20.0, 1.0)
    compute: float = parameter("ec", "realised share of the peak", "share", 0.02, EFFICIENCY, 0.6)
    longest: float = parameter("rho", "share of the longest tile row that nothing hides", "share", 0.0, 3.0, 0.4)
    memory: float = parameter("em", "realised share of the bandwidth", "share", 0.03, EFFICIENCY, 0.6)
    passes: float = parameter("cv", "further passes over the cache", "factor", 0.0, 50.0, 2.0)
    tile: float = parameter("tt", "cost of one tile row on one core", "us", 0.0, 20.0, 2.0)
    sharpness: int = choice("overlap of compute and memory", 1)

    time = _prefilled


@formula("index", "scores of the indexer, no faster than one tile's scan", "s")
def index_time(scores: Numeric, keys: Numeric, scan: Numeric) -> Numeric:
    """p4(scores, ts·T/1024) [s]: a tile of queries passes over its keys alone, one block after another.

    SGLang's kernel for MiniMax-M3 does not split the keys: one to 32 sequences of 262,144 keys take 5.6 ms on an H100.

    >>> index_time(1e-3, 262144.0, 20e-6) * 1e3
    5.12
    """
    return smooth_maximum(scores, keys * (scan / _DEEP), 4)


@formula("besides", "top-k, the cache of all keys, queries and results", "s")
def selection_time(
    scores: Numeric, passes: Numeric, held: Numeric, crossed: Numeric, moved: Numeric, rows: Numeric, bandwidth: Numeric
) -> Numeric:
    """(cs·sc + cv·h + ca·a)/W: scores read and written by the top-k, all keys gathered or converted, activations [s].

    >>> selection_time(0.5e6, 4.0, 2.7e6, 1.2, 0.4e6, 20.0, 3.35e12) * 1e6
    3.95
    """
    return (passes * scores + crossed * held + rows * moved) / bandwidth


@formula("t_layer", "a layer that was measured whole", "s")
def layer_time(own: Numeric, besides: Numeric, share: Numeric, host: Numeric) -> Numeric:
    """pn(own + eb·rest, th, 4): its other kernels take a share of their time alone; the host launches all in th [s].

    >>> layer_time(90e-6, 60e-6, 0.9, 100e-6) * 1e6
    151.73
    """
    return smooth_maximum(own + share * besides, host, 4)


@dataclass(frozen=True)
class SparseTime:
    """Attention to chosen keys (DeepSeek-V3.2 and V4, MiniMax-M3): what it computes, gathers, scores and sorts, added.

    Scores are written for every key, also where a query may not see it, and by some engines for those of other
    sequences. The indexer and the attention are parts of one form, which is fitted to whole layers; `beside` and
    `host` are of those measurements alone.
    """

    launch: float = parameter("t0", "floor of its launches", "us", 0.0, 2000.0, 40.0)
    split: float = parameter("kl", "latency per doubling of the keys", "us", 0.0, 200.0, 3.0)
    compute: float = parameter("ec", "realised share of the peak", "share", 0.002, EFFICIENCY, 0.5)
    gather: float = parameter("eg", "times that the chosen keys cross the memory", "factor", 0.0, 50.0, 1.0)
    tile: float = parameter("tc", "cost of one query's tile of heads on one core", "us", 0.0, 500.0, 5.0)
    index: float = parameter("ei", "realised share of the peak, indexer", "share", 0.002, EFFICIENCY, 0.5)
    passes: float = parameter("cs", "times that the scores cross the memory", "factor", 0.0, 20000.0, 2.0)
    crossed: float = parameter("cv", "times that the cache of all keys does", "factor", 0.0, 1000.0, 1.0)
    rows: float = parameter("ca", "times that queries and results do", "factor", 0.0, 300.0, 10.0)
    beside: float = parameter("eb", "share of their time alone that the layer's others take", "share", 0.1, 3.0, 1.0)
    host: float = parameter("th", "time that the host takes to launch a layer", "us", 0.0, 10000.0, 20.0)
    scan: float = parameter("ts", "time of one tile of the indexer for 1,024 keys", "us", 0.0, 1000.0, 0.0)
    foreign: float = parameter("cf", "times that scores of other sequences' keys do", "factor", 0.0, 50.0, 0.0)
    graph: int = choice("sequences up to which a CUDA graph launches it", 0, (0, 256, 1 << 20), "g")
    pad: int = choice("heads of a tile, which is computed whole", 16, (1, 16, 64, 128), "h_r")
    single: int = choice("1: the floor is that of sequences with several new tokens", 0, (0, 1))

    def time(self, kernel: Kernel, system: System, warm: bool = False) -> Duration:
        """Time of one launch [s]."""
        gpu, shape = system.accelerator, kernel.shaped(SparseShape)
        peak, bandwidth = gpu.peak(kernel.dtype), gpu.memory_bandwidth
        launch = attention_launch(self.launch, self.split, shape.keys, _PART) * shape.floors
        if self.single:
            launch = where(shape.new > 1.0, launch, 0.0)
        core = shape.core_flops * (ceil_div(shape.heads, 1.0 * self.pad) * self.pad / shape.heads)
        index = compute_time(shape.index_flops, self.index, peak)
        if self.scan:
            index = index_time(index, shape.scanned, self.scan)
        compute = compute_time(core, self.compute, peak) + index
        compute = compute + tile_time(shape.tiles, self.tile, gpu.cores)
        memory = pass_time(shape.chosen, self.gather, bandwidth) + selection_time(
            shape.scores, self.passes, shape.held, self.crossed, kernel.activation_bytes, self.rows, bandwidth
        )
        if self.foreign:
            memory = memory + pass_time(shape.foreign, self.foreign, bandwidth)
        total = launch + compute + memory
        if not isinstance(shape.besides, (int, float)):
            host = where(shape.batch > self.graph, self.host, 0.0)
            total = layer_time(total, shape.besides, self.beside, host)
        return Duration(launch, compute, memory, 0.0, total)


_TILE = 16.0  # rows of a tensor core's tile (mma m16), and the least that vLLM, SGLang and Marlin give an expert


@dataclass(frozen=True)
class ExpertsTime:
    """The routed experts of one layer: `experts_launch`, `experts_compute`, `memory_time` of `experts_traffic`.

    Each touched expert pads its rows to a tile (`rows`), which a fit finds only where arithmetic takes the time. Where
    the engine dequantises weights it does, and a tile of tensor cores has 16 rows.
    """

    launch: float = parameter(
        "t0", "floor: routing, two grouped GEMMs, activation, combination", "us", 0.0, 300.0, 30.0
    )
    expert: float = parameter("ta", "cost of each expert that is touched", "us", 0.0, 10.0, 0.1)
    sort: float = parameter("lt", "sorting, per doubling of the pairs", "us", 0.0, 30.0, 1.0)
    compute: float = parameter("ec", "realised share of the peak", "share", 0.01, EFFICIENCY, 0.5)
    memory: float = parameter("em", "realised share of the bandwidth", "share", 0.05, EFFICIENCY, 0.85)
    rows: float = parameter("rows", "rows that each touched expert is padded by", "elements", 0.0, 256.0, 16.0)
    passes: float = parameter("passes", "times activations cross the memory, over the least", "factor", 0.0, 30.0, 1.0)
    foreign: float = parameter(
        "foreign", "share of the other accelerators' rows that is moved too", "share", 0.0, 4.0, 0.1
    )
    cache_share: float = parameter("ch", "share of the L2 that a benchmark loop keeps", "share", 0.01, 2.0, 0.3)
    cache_speed: float = parameter("cx", "L2 rate over memory rate", "factor", 1.0, 10.0, 1.0)
    sharpness: int = choice("overlap of compute and memory", 2)

    def time(self, kernel: Kernel, system: System, warm: bool = False) -> Duration:
        """Time of one launch [s]."""
        gpu, shape, weights = system.accelerator, kernel.shaped(ExpertsShape), kernel.weight_bytes
        routed, touched = shape.routed, shape.touched
        rows = maximum(self.rows, _TILE) if kernel.dequantised and gpu.unpacks_first else self.rows
        compute = experts_compute(kernel.flops, rows, touched, routed, self.compute, gpu.peak(kernel.dtype))
        if warm:
            weights = streamed(weights, self.cache_share * gpu.l2_bytes, self.cache_speed)
        moved = experts_traffic(weights, kernel.activation_bytes, self.passes, self.foreign, shape.slots, routed)
        memory = memory_time(moved, self.memory, gpu.memory_bandwidth)
        launch = experts_launch(self.launch, self.expert, touched, self.sort, routed)
        return _combined(launch, compute, memory, self.sharpness)


@dataclass(frozen=True)
class CollectiveTime:
    """A collective: `collective_launch`, then `collective_network`."""

    launch: float = parameter("t0", "floor of one launch", "us", 0.0, 100.0, 4.0)
    hop: float = parameter("hop", "latency that each further accelerator adds", "us", 0.0, 30.0, 0.5)
    network: float = parameter("en", "realised share of the link bandwidth", "share", 0.02, EFFICIENCY, 0.8)
    own: float = parameter(
        "po", "cost of the own piece, over that of one that crosses the links", "share", 0.0, 3.0, 0.3
    )
    ramp: float = parameter("ramp", "protocol change, at 1 MB", "us", 0.0, 100.0, 4.0)

    def time(self, kernel: Kernel, system: System, warm: bool = False) -> Duration:
        """Time of one launch [s]."""
        if kernel.gpus == 1:
            return Duration(0.0, 0.0, 0.0, 0.0, 0.0)
        sent, wire = kernel.network_bytes, system.transfer_time(kernel)
        network = collective_network(wire, self.network, self.own, kernel.gpus, self.ramp, sent)
        launch = collective_launch(self.launch, self.hop, kernel.gpus, kernel.shaped(CollectiveShape).phases)
        return Duration(launch, 0.0, 0.0, network, launch + network)


@dataclass(frozen=True)
class ExchangeTime:
    """Tokens to their experts and back: `exchange_launch`, `exchange_network`, and a change of protocols."""

    launch: float = parameter("t0", "floor of one launch", "us", 0.0, 200.0, 15.0)
    expert: float = parameter("te", "more of it for each expert", "us", 0.0, 1.0, 0.01)
    doubled: float = parameter("t2", "more of it for twice the ranks", "us", 0.0, 100.0, 2.0)
    header: float = parameter("hd", "bytes that move with each token besides its copies", "KB", 0.0, 100.0, 5.0)
    network: float = parameter("en", "realised share of the link bandwidth", "share", 0.02, EFFICIENCY, 0.7)
    nic: float = parameter("ek", "realised share of the network card", "share", 0.02, EFFICIENCY, 0.8)
    mover: float = parameter("rx", "rate at which one core moves bytes", "GB/s", 0.5, 500.0, 20.0)
    copy: float = parameter("tc", "time of one token on its core", "us", 0.0, 50.0, 1.0)
    ramp: float = parameter("ramp", "protocol change, at 1 MB", "us", 0.0, 100.0, 2.0)

    def time(self, kernel: Kernel, system: System, warm: bool = False) -> Duration:
        """Time of one launch [s]."""
        shape, beyond = kernel.shaped(ExchangeShape), kernel.nic_bytes
        besides = self.header * shape.tokens
        links = sent_time(kernel.network_bytes - beyond + besides, self.network * system.link_bandwidth)
        nic = sent_time(beyond, self.nic * maximum(system.nic_bandwidth, 1.0))
        everyone = shape.movers == 0.0
        moved = where(everyone, 0.0, (kernel.network_bytes + besides) / (maximum(shape.movers, 1.0) * self.mover))
        queue = exchange_queue(shape.tokens, shape.experts, system.accelerator.cores, self.copy)
        network = exchange_network(links, nic, moved, where(everyone, queue, 0.0))
        network = network + self.ramp * sqrt(kernel.network_bytes / _MEGABYTE)
        launch = exchange_launch(self.launch, self.expert, shape.experts, self.doubled, kernel.gpus)
        return Duration(launch, 0.0, 0.0, network, launch + network)


@dataclass(frozen=True)
class PlainTime:
    """A family without a form of its own: the roofline with a floor and two realised shares."""

    launch: float = parameter("t0", "floor of one launch, or of several in a row", "us", 0.0, 2000.0, 2.5)
    compute: float = parameter("ec", "realised share of the peak", "share", 0.01, EFFICIENCY, 0.7)
    memory: float = parameter("em", "realised share of the bandwidth", "share", 0.0005, EFFICIENCY, 0.8)
    row: float = parameter("tr", "cost of each row", "us", 0.0, 50.0, 0.0)

    def time(self, kernel: Kernel, system: System, warm: bool = False) -> Duration:
        """Time of one launch [s]."""
        gpu = system.accelerator
        compute = compute_time(kernel.flops, self.compute, gpu.peak(kernel.dtype))
        memory = memory_time(kernel.bytes, self.memory, gpu.memory_bandwidth)
        rows = kernel.shape.rows if isinstance(kernel.shape, RowsShape) else 0.0
        launch = rows_launch(self.launch, self.row, rows)
        return Duration(launch, compute, memory, 0.0, launch + maximum(compute, memory))


FORMS: dict[Family, type[TimeForm]] = dict.fromkeys(FAMILIES, PlainTime) | {
    "gemm": GemmTime,
    "attention_decode": DecodeTime,
    "attention_prefill": PrefillTime,
    "mla_decode": LatentDecodeTime,
    "mla_prefill": LatentPrefillTime,
    "sparse_attention": SparseTime,
    "moe": ExpertsTime,
    "collective": CollectiveTime,
    "exchange": ExchangeTime,
}
"""The time form of every kernel family."""
