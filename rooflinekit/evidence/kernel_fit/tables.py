"""Kernel tables: rows of measured shapes and latencies, as the kernels that ran."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rooflinekit.model.kernels import attention
from rooflinekit.model.kernels.attention import attention_activation_bytes, attention_flops
from rooflinekit.model.kernels.collective import SCALED, exchange_tiers, payload_bytes, sent_bytes
from rooflinekit.model.kernels.elementwise import elementwise_flops, gathered_bytes
from rooflinekit.model.kernels.gemm import gemm_activation_bytes, gemm_flops, gemm_weight_bytes
from rooflinekit.model.kernels.moe import expert_activation_bytes, expert_flops, expert_weight_bytes
from rooflinekit.model.kernels.operation import passed_bytes
from rooflinekit.model.kernels.recurrent import STATE_DTYPE, convolution_flops, recurrence_flops, state_bytes
from rooflinekit.model.types import kernel as shapes
from rooflinekit.model.types.dtype import Dtype, parse_dtype
from rooflinekit.model.types.errors import SpecError
from rooflinekit.model.types.kernel import AttentionShape, Family, GemmShape, Kernel, RowsShape
from rooflinekit.model.types.numeric import Array
from rooflinekit.specs.files import table_of

if TYPE_CHECKING:
    import pandas as pd

_SAMPLES = 32
_LOW, _SMALL, _HIGH = 1.0, (0.01, 2.0), 0.8
"""Bounds of the sampled counts: 1 to 0.8·tokens, or 0.01 to 2 when there are fewer pairs than experts."""

_LATENT, _RANK, _NOPE, _ROPE, _VALUES = 576, 512, 128, 64, 128
"""DeepSeek's latent with rotary part, without it, and the widths of an up-projected head: keys without positions, their
rotary part, values."""
_WIDE = 2.0  # bytes of an element in 16 bit
_COUNTED = 8.0 / 7168.0  # where a token's expert and weight travel and not its elements

_MOST_OF_A_GROUP = 64
"""Rows of one shape group that count in full; more count as this many together, since they repeat each other."""


Columns = Mapping[str, Array]


def balanced_load(tokens: Array, top_k: Array, experts: Array, ranks: Array) -> tuple[Array, Array]:
    """(token, expert) pairs and distinct experts on one rank when tokens spread evenly over all experts.

    >>> pairs, touched = balanced_load(np.array([4.0]), np.array([8.0]), np.array([256.0]), np.array([8.0]))
    >>> float(pairs[0]), float(touched[0])
    (4.0, 4.0)
    """
    pairs = np.maximum(tokens * top_k / ranks, 1.0)
    return pairs, np.minimum(experts / ranks, pairs)


def power_law_load(tokens: Array, top_k: Array, experts: Array, ranks: Array) -> tuple[Array, Array]:
    """The load of the busiest rank when counts per expert follow a power law of exponent 1.2.

    Counts are drawn by the inverse of the distribution function between 1 and 0.8·tokens and scaled to the number of
    pairs, as the benchmark behind the tables does (aiconfigurator, collector helper `power_law_logits`); the mean over
    seeded draws is returned.
    """
    cases = [tuple(int(value) for value in case) for case in zip(tokens, top_k, experts, ranks, strict=True)]
    found = {case: _busiest(*case) for case in set(cases)}
    return np.array([found[case][0] for case in cases]), np.array([found[case][1] for case in cases])


def drawn_load(tokens: Array, top_k: Array, experts: Array, ranks: Array) -> tuple[Array, Array]:
    """The load when each token draws its experts evenly: E·(1 - (1 - k/E)^T) distinct ones.

    >>> pairs, touched = drawn_load(np.array([4.0]), np.array([8.0]), np.array([256.0]), np.array([1.0]))
    >>> float(pairs[0]), round(float(touched[0]), 1)
    (32.0, 30.5)
    """
    pairs = np.maximum(tokens * top_k / ranks, 1.0)
    return pairs, np.minimum(experts / ranks * (1.0 - (1.0 - top_k / experts) ** tokens), pairs)


@cache
def _busiest(tokens: int, top_k: int, experts: int, ranks: int) -> tuple[float, float]:
    low, high = (_LOW, max(_HIGH * tokens, _LOW + 1.0)) if tokens * top_k > experts else _SMALL
    power = 1.0 - 1.2
    draws = np.random.default_rng(experts).random((_SAMPLES, experts))
    counts = (draws * (high**power - low**power) + low**power) ** (1.0 / power)
    counts = np.minimum(counts * (tokens * top_k / counts.sum(1, keepdims=True)), float(tokens))
    by_rank = counts.reshape(_SAMPLES, ranks, -1)
    busiest = by_rank[np.arange(_SAMPLES), by_rank.sum(2).argmax(1)]
    touched = np.minimum(busiest, 1.0).sum(1).mean()
    return max(float(busiest.sum(1).mean()), 1.0), max(float(touched), 1.0)


_LOADS = {"balanced": balanced_load, "random": drawn_load}

_UNGATED = {"hidden": 2048.0, "expert_intermediate": 5120.0, "top_k": 22.0, "experts": 512.0}
"""Experts of Nemotron-3-Ultra, which are squared ReLUs of two matrices (config.json, `mlp_hidden_act`).

Rows of vLLM and SGLang say three, which would stream 1.3 to 1.4 times what the memory does, on every accelerator; those
of TensorRT-LLM say two.
"""

_LIMITED = {"hidden": 7168.0, "expert_intermediate": 2048.0, "top_k": 8.0, "experts": 256.0, "ep": 1.0}
_LIMITED_BY, _LIMITED_IN = ("vllm", "sglang"), (Dtype.FP8_BLOCK, Dtype.NVFP4)
_GROUPS, _TAKEN = 8.0, 4.0
"""DeepSeek-V3's router, which vLLM and SGLang run in front of its experts: a token takes experts of 4 of 8 groups (its
config.json, `n_group`, `topk_group`)."""


def _where(columns: Columns | pd.DataFrame, shape: Mapping[str, float]) -> NDArray[np.bool_]:
    same: NDArray[np.bool_] = np.logical_and.reduce([columns[name] == value for name, value in shape.items()])
    return same


def limited_load(tokens: Array, top_k: Array, experts: Array) -> Array:
    """Distinct experts where a router takes half of the groups and the scores were made for all of them.

    The benchmark behind the tables gives a token one expert in each of 8 groups (`balanced_logits`, one every E/k). The
    router leaves those of 4 groups, and fills up with others of low score: few, and the same for all tokens. So rows of
    DeepSeek-V3's experts take half as long as balanced ones, from 32 tokens on.

    >>> limited_load(np.array([1.0, 4.0, 64.0]), np.array(8.0), np.array(256.0)).tolist()
    [8.0, 20.0, 128.0]
    """
    share = _TAKEN / _GROUPS
    return np.minimum(share * top_k * tokens + (1.0 - share) * top_k, share * experts)


def _limited(table: pd.DataFrame, dtype: Dtype) -> Array:
    """1 for rows whose tokens come to half of the experts, though they are called balanced."""
    if dtype not in _LIMITED_IN or "engine" not in table:
        return np.zeros(len(table))
    known = (table["engine"].isin(_LIMITED_BY) & (table["routing"] == "balanced")).to_numpy()
    return np.asarray(known & _where(table, _LIMITED), float)


_WEIGHT_ONLY = {"a16": Dtype.BF16, "a8": Dtype.FP8}
"""Arithmetic of formats that are named after weights and activations, mxfp4_a16 say."""


def number_formats(name: str) -> tuple[Dtype, Dtype]:
    """Formats of a kernel's weights and of its arithmetic.

    >>> [dtype.value for dtype in number_formats("mxfp4_a8")], [dtype.value for dtype in number_formats("fp8")]
    (['mxfp4', 'fp8'], ['fp8', 'fp8'])

    MXFP8 counts as FP8 in blocks: its scale for every 32 elements takes 3 % more bytes.
    """
    weights, _, activations = name.rpartition("_")
    stored = parse_dtype("fp8_block" if name == "mxfp8" else weights if activations in _WEIGHT_ONLY else name)
    return stored, _WEIGHT_ONLY.get(activations, stored)


@dataclass(frozen=True)
class Measured:
    """Kernels of one family and format that ran, and how long each took [s].

    `group` numbers the shape group of each row: error bars come from groups that a fit has not seen.
    """

    family: Family
    kernels: tuple[Kernel, ...]  #: arrays of rows; several only where the number of accelerators differs
    sizes: tuple[int, ...]
    time: Array
    group: NDArray[np.intp]
    warm: bool = True  #: whether each kernel found in the cache what the one before had used

    @property
    def counts(self) -> Array:
        """Weight of each row in a fit: 1, or less where its shape group has more than `_MOST_OF_A_GROUP`."""
        sizes = np.bincount(self.group)[self.group]
        return np.minimum(1.0, _MOST_OF_A_GROUP / sizes)

    def subset(self, rows: NDArray[np.bool_]) -> Measured:
        """Rows by a boolean mask."""
        parts = np.split(rows, np.cumsum(self.sizes)[:-1])
        kept = [(kernel, mask) for kernel, mask in zip(self.kernels, parts, strict=True) if mask.any()]
        kernels = tuple(kernel.mapped(partial(_cut, mask)) for kernel, mask in kept)
        sizes = tuple(int(mask.sum()) for _, mask in kept)
        return replace(self, kernels=kernels, sizes=sizes, time=self.time[rows], group=self.group[rows])

    def each(self, function: Callable[[Kernel], Any]) -> Array:
        """A number for every row."""
        return self.joined(map(function, self.kernels))

    def joined(self, pieces: Iterable[Any]) -> Array:
        """A number, or an array of rows, of each of the kernels as one column."""
        parts = [np.broadcast_to(piece, (size,)) for piece, size in zip(pieces, self.sizes, strict=True)]
        return np.concatenate(parts).astype(float)


def _cut(rows: NDArray[np.bool_], value: Any) -> Any:
    return value[rows] if isinstance(value, np.ndarray) else value


_BARE = ("aiter", "deepgemm")
"""Libraries whose products were measured alone, on activations that another kernel had quantised: DeepGEMM multiplies
32,768 rows of 65,536 by 128 columns in 0.71 ms on an H800, in which none reads 4 GB of 16-bit activations."""


def measured_rows(table: pd.DataFrame, operation: str) -> Measured:
    """Rows of one accelerator, engine, number format and variant as a fit needs them."""
    if operation not in OPERATIONS:
        raise SpecError(f"{operation!r} is not a kernel table; known: {', '.join(OPERATIONS)}")
    known = OPERATIONS[operation]
    stored, dtype = number_formats(str(table["dtype"].iloc[0]))
    variant = str(table[known.variant].iloc[0]) if known.variant in table else ""
    group = np.asarray(table.groupby(known.shape.split()).ngroup(), np.intp)
    parts = _parts(table, operation)
    order = np.concatenate(parts)
    names = table.select_dtypes("number").columns
    bare = "engine" in table and bool(table["engine"].isin(_BARE).all())
    if known.family == "moe":
        table = table.assign(limited=_limited(table, stored))
        names = table.select_dtypes("number").columns
    kernels, sizes = [], []
    for rows in parts:
        columns = {name: table[name].to_numpy(float)[rows] for name in names}
        kernel = known.kernel(columns, stored, variant)
        if bare:
            kernel = replace(kernel, narrowed=True)
        kernels.append(kernel if dtype is stored else replace(kernel, dtype=dtype))
        sizes.append(len(rows))
    time = table["latency_us"].to_numpy(float)[order] * 1e-6
    warm = "residency" not in table or not (table["residency"] == "cold").all()
    return Measured(known.family, tuple(kernels), tuple(sizes), time, group[order], warm)


def _parts(table: pd.DataFrame, operation: str) -> list[NDArray[np.intp]]:
    """Positions of the rows that make one kernel: all of them, or those with the same number of accelerators."""
    if OPERATIONS[operation].family not in ("collective", "exchange"):
        return [np.arange(len(table))]
    gpus = table["gpus"].to_numpy()
    return [np.flatnonzero(gpus == number) for number in np.unique(gpus)]


Make = Callable[..., Kernel]
"""Makes the kernel of an operation from its work: family, format and variant are known."""


def _gemm(make: Make, columns: Columns, dtype: Dtype, variant: str) -> Kernel:
    m, n, k = columns["m"], columns["n"], columns["k"]
    moved = gemm_activation_bytes(m, n, k, dtype.bytes, _WIDE)
    shape = GemmShape(m, n, k)
    return make(gemm_flops(m, n, k), gemm_weight_bytes(n, k, dtype.bytes), activation_bytes=moved, shape=shape)


def _attention(make: Make, columns: Columns, dtype: Dtype, variant: str, decode: bool) -> Kernel:
    batch, depth = columns["batch"], columns["head_dim"]
    heads, kv_heads = columns["heads"], columns["kv_heads"]
    past = columns.get("prefix", np.zeros_like(batch))
    length = columns["seq_len"] + past
    new = np.ones_like(length) if decode else columns["seq_len"]
    pairs = length if decode else new * past + new * (new + 1.0) / 2.0
    return make(
        attention_flops(batch * pairs, heads, depth, depth),
        kv_read_bytes=attention.cache_read_bytes(batch * length, kv_heads * 2.0 * depth * parse_dtype(variant).bytes),
        activation_bytes=attention_activation_bytes(batch * new, heads, depth, depth, _WIDE),
        shape=AttentionShape(batch, new, length, length, pairs, heads, kv_heads, depth),
    )


def _latent(make: Make, columns: Columns, dtype: Dtype, variant: str, decode: bool) -> Kernel:
    batch, length, heads = columns["batch"], columns["seq_len"], columns["heads"]
    new = np.ones_like(length) if decode else length
    pairs = length if decode else length * (length + 1.0) / 2.0
    queries, values = (_LATENT, _RANK) if decode else (_NOPE + _ROPE, _VALUES)
    moved = attention_activation_bytes(batch * new, heads, queries, values, _WIDE)
    if not decode:
        moved = moved + attention.up_projected_bytes(batch * length, heads, _NOPE + _ROPE, _VALUES, _WIDE)
    read = attention.cache_read_bytes(batch * length, _LATENT * parse_dtype(variant).bytes)
    shape = AttentionShape(batch, new, length, length, pairs, heads, 1.0, queries)
    flops = attention_flops(batch * pairs, heads, queries, values)
    return make(flops, kv_read_bytes=read, activation_bytes=moved, shape=shape)


def _moe(make: Make, columns: Columns, dtype: Dtype, variant: str) -> Kernel:
    tokens, hidden, top_k, matrices = (columns[name] for name in ("tokens", "hidden", "top_k", "ffn_matrices"))
    experts, ranks = columns["experts"], columns["ep"]
    width = columns["expert_intermediate"] / columns["tp"]
    routed, touched = _LOADS.get(variant, power_law_load)(tokens, top_k, experts, ranks)
    matrices = np.where(_where(columns, _UNGATED), 2.0, matrices)
    limited = columns.get("limited", np.zeros_like(tokens)) > 0.0
    touched = np.where(limited, limited_load(tokens, top_k, experts), touched)
    each, local, all_routed = matrices * hidden * width, experts / ranks, np.maximum(tokens * top_k, routed)
    return make(
        expert_flops(routed, each),
        expert_weight_bytes(touched, each, dtype.bytes),
        activation_bytes=expert_activation_bytes(routed, hidden, width, matrices, _WIDE),
        shape=shapes.ExpertsShape(tokens, all_routed, routed, touched, local, ranks, hidden, width, matrices),
    )


def _comm(make: Make, columns: Columns, dtype: Dtype, variant: str) -> Kernel:
    gpus, payload = int(columns["gpus"][0]), columns["bytes"]
    sent = sent_bytes("all_reduce" if variant.endswith("all_reduce") else "all_gather", payload, gpus)
    return make(network_bytes=sent, gpus=gpus, shape=shapes.CollectiveShape(payload))


def _exchange(make: Make, columns: Columns, dtype: Dtype, variant: str) -> Kernel:
    """A copy of a token has D elements: as they travel to the experts, in 16 bit on the way back."""
    gpus, tokens = int(columns["gpus"][0]), columns["tokens_per_gpu"]
    nodes = columns.get("nodes", np.ones_like(tokens))
    cases, each = zip(columns["experts"], columns["top_k"], nodes, strict=True), variant.startswith("low_latency")
    sent = np.array([astuple(exchange_tiers(int(e), int(k), gpus, int(n), each=each)) for e, k, n in cases])
    payload = payload_bytes(tokens, columns["hidden"], sent_element(variant, dtype))
    inside, outside = (payload * part for part in sent.T)
    shape = shapes.ExchangeShape(tokens, columns["experts"], columns.get("sms", np.zeros_like(tokens)))
    return make(network_bytes=inside + outside, nic_bytes=outside, gpus=gpus, shape=shape)


def sent_element(variant: str, dtype: Dtype) -> float:
    """Bytes of an element on its way: of DeepEP FP8 with scales to the experts, 16 bit back; else as named.

    >>> [sent_element(name, Dtype.BF16) for name in ("normal_dispatch", "low_latency_combine")]
    [1.03125, 2.0]
    """
    if variant.endswith("combine"):
        return _WIDE
    if variant.endswith("prepare"):
        return _COUNTED
    if variant.endswith("low_precision"):
        return 1.0
    return SCALED if variant.startswith(("normal", "low_latency")) else dtype.bytes


def _elementwise(make: Make, columns: Columns, dtype: Dtype, variant: str) -> Kernel:
    moved = passed_bytes(columns["tokens"], columns["read"] + columns["written"], dtype.bytes)
    return make(activation_bytes=moved, shape=RowsShape(columns["tokens"]))


def _kv_append(make: Make, columns: Columns, dtype: Dtype, variant: str) -> Kernel:
    tokens, elements = columns["tokens"], columns["elements"]
    written = attention.append_bytes(tokens, elements * parse_dtype(variant).bytes)
    moved = passed_bytes(tokens, elements, dtype.bytes)
    return make(kv_write_bytes=written, activation_bytes=moved, shape=RowsShape(tokens))


def _embedding(make: Make, columns: Columns, dtype: Dtype, variant: str) -> Kernel:
    moved = gathered_bytes(columns["tokens"], columns["width"], dtype.bytes, dtype.bytes)
    return make(activation_bytes=moved, shape=RowsShape(columns["tokens"]))


def _sampling(make: Make, columns: Columns, dtype: Dtype, variant: str) -> Kernel:
    rows, vocab = columns["rows"], columns["vocab"]
    return make(elementwise_flops(rows, vocab), activation_bytes=passed_bytes(rows, vocab, dtype.bytes))


def _encoder(make: Make, columns: Columns, dtype: Dtype, variant: str) -> Kernel:
    batch, length, heads, depth = (columns[name] for name in ("batch", "seq_len", "heads", "head_dim"))
    made = attention.encoder_kernel("attention", 1, dtype, batch, length, heads, depth, _WIDE)
    return replace(made, variant=variant)


def _linear(make: Make, columns: Columns, dtype: Dtype, variant: str) -> Kernel:
    """The convolution, or the recurrence over a state in fp32, of a gated delta net, KDA or Mamba-2."""
    batch, length, taps = columns["batch"], columns["seq_len"], columns["d_conv"]
    keys, values = columns["k_heads"] * columns["head_k_dim"], columns["v_heads"] * columns["head_v_dim"]
    tokens, channels = batch * length, 2.0 * keys + values
    if "_conv_" in variant:
        flops, state = convolution_flops(tokens, channels, taps), state_bytes(batch, channels * (taps - 1.0), _WIDE)
        moved = passed_bytes(tokens, 2.0 * channels, _WIDE)
    else:
        elements = values * columns["head_k_dim"]
        flops, state = recurrence_flops(tokens, elements, 6.0), state_bytes(batch, elements, STATE_DTYPE.bytes)
        moved = passed_bytes(tokens, channels + values, _WIDE)
    heads = (columns[name] for name in ("v_heads", "k_heads", "head_v_dim"))
    shape = AttentionShape(batch, length, length, length, length, *heads)
    return make(flops, kv_read_bytes=state, kv_write_bytes=state, activation_bytes=moved, shape=shape)


def _latent_product(make: Make, columns: Columns, dtype: Dtype, variant: str) -> Kernel:
    """One product a head: queries onto the latent (128 to 512 columns), or latents onto values (512 to 128)."""
    k, each = (_NOPE, _RANK) if variant == "mla_gen_pre" else (_RANK, _VALUES)
    tokens, heads = columns["tokens"], columns["heads"]
    moved, n = tokens * heads * (k * dtype.bytes + each * _WIDE), heads * each
    shape = GemmShape(tokens, n, np.full_like(tokens, k))
    return make(gemm_flops(tokens, n, k), gemm_weight_bytes(n, k, dtype.bytes), activation_bytes=moved, shape=shape)


def _quantise(make: Make, columns: Columns, dtype: Dtype, variant: str) -> Kernel:
    """16-bit activations read, the narrow ones written: m·k·(2 + b) bytes."""
    m, k = columns["m"], columns["k"]
    return make(activation_bytes=passed_bytes(m, k, _WIDE + dtype.bytes), shape=RowsShape(m))


def _whole_layer(make: Make, columns: Columns, dtype: Dtype, variant: str) -> Kernel:
    raise SpecError("rows of whole layers are read with their accelerator: layers.layer_rows")


class KernelTable(NamedTuple):
    """An entry of tables.yaml, which lists columns in one text."""

    made: Callable[[Make, Columns, Dtype, str], Kernel]
    family: Family
    needed: str
    shape: str
    variant: str = ""
    product: str = ""

    def kernel(self, columns: Columns, dtype: Dtype, variant: str) -> Kernel:
        """Kernels of arrays of columns."""
        make = partial(Kernel, self.family, self.family, 1, dtype, variant=variant)
        return self.made(make, columns, dtype, variant)


_KERNELS: dict[str, Callable[[Make, Columns, Dtype, str], Kernel]] = {
    "gemm": _gemm,
    "attention_decode": partial(_attention, decode=True),
    "attention_prefill": partial(_attention, decode=False),
    "mla_decode": partial(_latent, decode=True),
    "mla_prefill": partial(_latent, decode=False),
    "moe": _moe,
    "comm": _comm,
    "deepep": _exchange,
    "alltoall_nvlink": _exchange,
    "elementwise": _elementwise,
    "kv_append": _kv_append,
    "embedding": _embedding,
    "sampling": _sampling,
    "encoder_attention": _encoder,
    "mla_bmm": _latent_product,
    "quantize": _quantise,
    "linear_attention": _linear,
}
OPERATIONS = {
    name: KernelTable(_KERNELS.get(name, _whole_layer), **known) for name, known in table_of(__file__).items()
}
"""Kernel tables by the name of their operation."""
