"""Time forms: numbers worked by hand, growth with size, and the datasheet bound below."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflinekit.evidence.kernel_fit.tables import OPERATIONS
from rooflinekit.model.roofline import roofline_bound, time_kernel
from rooflinekit.model.timing.calibrated import Axis, Surface
from rooflinekit.model.timing.forms import (
    FORMS,
    CollectiveTime,
    DecodeTime,
    ExchangeTime,
    ExpertsTime,
    GemmTime,
    PlainTime,
    PrefillTime,
    SparseTime,
    parameters,
    partial_sums,
)
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.hardware import System
from rooflinekit.model.types.kernel import FAMILIES, CollectiveShape, GemmShape, Kernel, RowsShape, SparseShape
from rooflinekit.model.types.time import Time
from rooflinekit.specs import load_accelerator
from rooflinekit.specs.calibration import calibration_names, load_calibration

H100 = System.of(load_accelerator("h100-sxm").value)
SHIPPED = calibration_names()


def gemm(m: float, n: float, k: float, dtype: Dtype = Dtype.BF16) -> Kernel:
    return one("gemm", dtype, "", m=m, n=n, k=k)


def decode(batch: float, seq_len: float, heads: float = 32, kv_heads: float = 8, head_dim: float = 128) -> Kernel:
    return one(
        "attention_decode",
        Dtype.BF16,
        "bf16",
        batch=batch,
        seq_len=seq_len,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
    )


def prefill(batch: float, seq_len: float, heads: float = 32, kv_heads: float = 8, head_dim: float = 128) -> Kernel:
    return one(
        "attention_prefill",
        Dtype.BF16,
        "bf16",
        batch=batch,
        seq_len=seq_len,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
    )


def latent(operation: str, batch: float, seq_len: float, heads: float) -> Kernel:
    return one(operation, Dtype.BF16, "bf16", batch=batch, seq_len=seq_len, heads=heads)


def experts(tokens: float, hidden: float = 4096, width: float = 1536, count: float = 128, ep: float = 1) -> Kernel:
    return one(
        "moe",
        Dtype.BF16,
        "balanced",
        tokens=tokens,
        hidden=hidden,
        expert_intermediate=width,
        top_k=8,
        experts=count,
        tp=1,
        ep=ep,
        ffn_matrices=3,
    )


def one(operation: str, dtype: Dtype, variant: str, **columns: float) -> Kernel:
    """A kernel of scalars through the code that reads kernel tables."""
    arrays = {name: np.array([float(value)]) for name, value in columns.items()}
    return scalar(OPERATIONS[operation].kernel(arrays, dtype, variant))


def scalar(kernel: Kernel) -> Kernel:
    def plain(value: object) -> object:
        return float(np.asarray(value).ravel()[0]) if isinstance(value, np.ndarray) else value

    return kernel.mapped(plain)


def test_gemm_by_hand_memory_bound():
    """m=1, 4096 x 4096 bf16: 33.55 MB + 16 kB at 0.88 · 3.35 TB/s = 11.39 µs; k = 4096 costs 1.1 · 2; launch 2.3."""
    form = GemmTime(sharpness=4)
    memory = (2 * 4096 * 4096 + 2 * 8192) / (0.88 * 3.35e12)
    compute = 2 * 64 * 4096 * (4096 + 100) / (0.8 * 989.4e12)
    expected = 2.3e-6 + 1.1e-6 * 2 + (memory**4 + compute**4) ** 0.25
    assert form.time(gemm(1, 4096, 4096), H100).total == pytest.approx(expected, rel=1e-9)


def test_gemm_pays_for_quantising_only_in_narrow_formats():
    wide, narrow = (GemmTime().time(gemm(4096, 256, 4096, dtype), H100).total for dtype in (Dtype.BF16, Dtype.FP8))
    extra = 4096 * 4096 * 3 / (0.4 * 3.35e12)
    assert narrow > extra
    assert wide < narrow


def test_partial_sums_cost_products_of_few_tiles_and_never_shrink():
    """Products of one row of tiles are split along k on all cores; beyond a wave the sums are those of one wave."""
    few, many = partial_sums(128.0, 256.0, 8192.0, 256), partial_sums(8192.0, 8192.0, 8192.0, 256)
    assert few == pytest.approx(8 * 128 * 256 * 64 * 256 / (256 + 128), rel=1e-9)  # 128 pieces on 256 cores
    assert 0.9 < many / (8 * 256 * 128 * 128) < 1.0
    plain, split = GemmTime(), GemmTime(partial=1.0)
    work = [gemm(64.0 * 2**n, 2048.0, 4096.0) for n in range(9)]
    added = [split.time(each, H100).total - plain.time(each, H100).total for each in work]
    assert all(more > 0.0 for more in added)
    assert added == sorted(added)


def sparse(batch: float, new: float, keys: float, **work: float) -> Kernel:
    parts = {"core_flops": 0.0, "chosen": 0.0, "index_flops": 0.0, "scores": 0.0, "held": 0.0, "tiles": 0.0} | work
    shape = SparseShape(batch, new, keys, keys, new * keys, 16.0, 1.0, 128.0, **parts)
    return Kernel("index_scores", "sparse_attention", 1, Dtype.BF16, shape=shape)


def test_an_indexer_is_no_faster_than_one_tile_scans_its_keys():
    """SGLang on an H100: 262,144 keys take 5.7 ms for 1 and for 32 sequences, which have a tile each."""
    form, keys = SparseTime(launch=0.0, split=0.0, tile=0.0, scan=20e-6), 262144.0
    one, many, twice = (
        form.time(sparse(b, 1.0, t, index_flops=2.0 * b * t * 128, scanned=t), H100).total
        for b, t in ((1.0, keys), (32.0, keys), (1.0, 2 * keys))
    )
    assert one == pytest.approx(256 * 20e-6, rel=0.01)
    assert many == pytest.approx(one, rel=0.01)
    assert twice == pytest.approx(2 * one, rel=0.01)


def test_scores_for_keys_of_other_sequences_cost_what_they_move():
    work = sparse(8.0, 64.0, 4096.0, scores=1e6, foreign=7e6)
    alone, all_keys = SparseTime(passes=1.0), SparseTime(passes=1.0, foreign=1.0)
    more = all_keys.time(work, H100).total - alone.time(work, H100).total
    assert more == pytest.approx(7e6 / H100.accelerator.memory_bandwidth, rel=1e-6)


def test_a_floor_of_prompts_is_none_of_sequences_with_one_new_token():
    form = SparseTime(launch=40e-6, split=0.0, tile=0.0, single=1)
    assert form.time(sparse(4.0, 1.0, 1024.0), H100).launch == 0.0
    assert form.time(sparse(4.0, 16.0, 1024.0), H100).launch == pytest.approx(40e-6)


def test_decode_by_hand():
    """B=64, S=4096, 8 KV heads of 128, bf16: 1.074 GB of cache, 1.05 MB of q and o, at 0.92 of 3.35 TB/s."""
    form = DecodeTime(sharpness=1)
    memory = (64 * 4096 * 8 * 2 * 128 * 2 + 64 * 32 * 2 * 128 * 2) / (0.92 * 3.35e12)
    tiles = 64 * 8 * 3e-6 / 132 + 4 * 64 * 32 * 128 * 4096 / (0.4 * 989.4e12)
    assert form.time(decode(64, 4096), H100).total == pytest.approx(10e-6 + 0.9e-6 * math.log2(17) + memory + tiles)


def test_warm_cache_is_faster_and_large_caches_are_not():
    form = DecodeTime()
    small, large = decode(8, 512), decode(256, 8192)
    assert form.time(small, H100, warm=True).memory < 0.5 * form.time(small, H100).memory
    assert form.time(large, H100, warm=True).total == pytest.approx(form.time(large, H100).total, rel=1e-3)


def test_prefill_of_a_chunk_equals_the_difference_of_prefills_in_work():
    """New 1,024 after 3,072 has the pairs of 4,096 less those of 3,072, and costs less than the whole prompt."""
    whole = prefill(1, 4096)
    pairs = 4096 * 4097 / 2 - 3072 * 3073 / 2
    shape = replace(whole.shape, new=1024.0, pairs=pairs)
    work = whole.flops * pairs / whole.shape.pairs
    chunk = replace(whole, flops=work, activation_bytes=whole.activation_bytes / 4, shape=shape)
    fresh, late, full = (PrefillTime().time(kernel, H100).compute for kernel in (prefill(1, 1024), chunk, whole))
    assert fresh < late < full


def test_experts_by_hand_and_foreign_rows():
    """T=1, 8 of 128 experts: 8 · 3 · 4096 · 1536 · 2 B = 302 MB; expert parallelism moves others' rows too."""
    form = ExpertsTime(sharpness=1, foreign=0.0)
    parts = form.time(experts(1), H100)
    moved = 8 * 3 * 4096 * 1536 * 2 + 8 * (3 * 4096 + 3 * 1536) * 2
    assert parts.memory == pytest.approx(moved / (0.85 * 3.35e12))
    split = experts(4096, ep=8)
    assert ExpertsTime(foreign=1.0).time(split, H100).total > ExpertsTime(foreign=0.0).time(split, H100).total


def test_collective_by_hand():
    """All-reduce of 16 MB over 8: 28 MB sent at 0.8 · 450 GB/s = 77.8 µs, 4 + 7 · 0.5 µs of latency, 4·√28 µs.

    The own piece costs 0.3 of one of the seven that cross the links: 77.8 · 0.3 / 7 = 3.3 µs.
    """
    kernel = Kernel(
        "c", "collective", 1, Dtype.BF16, network_bytes=28e6, gpus=8, shape=CollectiveShape(16e6), variant="all_reduce"
    )
    assert CollectiveTime().time(kernel, H100).total == pytest.approx(
        4e-6 + 3.5e-6 + (1 + 0.3 / 7) * 28e6 / 360e9 + 4e-6 * math.sqrt(28)
    )


def exchange(variant: str, tokens: float, gpus: int = 8, nodes: int = 1, sms: float = 0.0) -> Kernel:
    """DeepSeek-V3's tokens: 7,168 elements, 8 of 256 experts."""
    sizes = {"gpus": gpus, "nodes": nodes, "sms": sms, "tokens_per_gpu": tokens}
    return one("deepep", Dtype.BF16, variant, hidden=7168, top_k=8, experts=256, **sizes)


def test_an_exchange_by_hand():
    """1,024 tokens of 7,392 B: 8 copies of which 7/8 leave, 53 MB at 0.5 of 450 GB/s = 235 µs beside 8 µs of cores."""
    kernel = exchange("low_latency_dispatch", 1024)
    assert kernel.network_bytes == pytest.approx(1024 * 7392 * 7)
    form = ExchangeTime(15e-6, 1e-8, 2e-6, 0.0, 0.5, 0.8, 20e9, 1e-6, 0.0)
    assert form.time(kernel, H100).total == pytest.approx((15 + 2.56 + 2 * 3 + 235.5) * 1e-6, rel=2e-3)


def test_a_copy_for_each_rank_is_less_than_one_for_each_expert():
    """8 of 256 experts lie on 5.3 of 8 ranks (hypergeometric): 4.63 copies leave instead of 7, back in 16 bit."""
    each, once = (exchange(mode, 1.0).network_bytes for mode in ("low_latency_combine", "normal_combine"))
    assert each == pytest.approx(7 * 7168 * 2)
    assert once == pytest.approx(4.63 * 7168 * 2, rel=1e-3)


def test_an_exchange_over_hosts_sends_over_network_cards_what_leaves_them():
    """Two hosts: half of the eight copies leave; of one copy for each host, almost one. 50 GB/s then bind."""
    form = ExchangeTime(0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 20e9, 0.0, 0.0)
    low, normal = (exchange(f"{mode}_dispatch", 4096, 16, 2) for mode in ("low_latency", "normal"))
    assert low.nic_bytes == pytest.approx(4096 * 7392 * 4)
    assert normal.nic_bytes == pytest.approx(4096 * 7392 * (1 - math.comb(128, 8) / math.comb(256, 8)))
    for kernel in (low, normal):
        assert form.time(kernel, H100).total == pytest.approx(kernel.nic_bytes / 50e9, rel=5e-2)  # links at once


def test_few_cores_bind_before_links_do():
    """Measured on H200: 34.7 ms with 4 cores, 18.1 with 8, 7.4 with 24, for 65,536 tokens."""
    fit = load_calibration("h200-sxm--sglang").families["exchange/bf16/normal_dispatch"]
    system = System.of(load_accelerator("h200-sxm").value)
    for sms, measured in ((4, 34.655e-3), (8, 18.055e-3), (24, 7.377e-3)):
        assert fit.time(exchange("normal_dispatch", 65536, sms=sms), system).total == pytest.approx(measured, rel=0.1)


def test_plain_roofline_by_hand():
    kernel = Kernel("n", "elementwise", 1, Dtype.BF16, 1e6, activation_bytes=3.35e6)
    assert PlainTime().time(kernel, H100).total == pytest.approx(2.5e-6 + 1e-6 / 0.8)


def test_a_row_costs_time_besides_its_bytes() -> None:
    """3.35 MB at 3.35 TB/s and 80 %, and 100 rows of 50 ns: 2.5 + 5 + 1.25 µs."""
    kernel = Kernel("a", "embedding", 1, Dtype.BF16, activation_bytes=3.35e6, shape=RowsShape(100.0))
    assert PlainTime(row=50e-9).time(kernel, H100).total == pytest.approx(2.5e-6 + 5e-6 + 1e-6 / 0.8)


def test_every_family_has_a_form_and_every_default_is_inside_its_bounds():
    assert set(FORMS) == set(FAMILIES)
    for kind in FORMS.values():
        for name, bound in parameters(kind).items():
            assert bound.meaning
            assert bound.low * bound.scale <= getattr(kind(), name) <= bound.high * bound.scale


def test_surface_fades_to_one_outside_and_interpolates_alike_for_scalars_and_arrays():
    axes = (Axis("n", (6.0, 10.0, 12.0, 16.0)), Axis("m", (0.0, 4.0, 8.0, 12.0)))
    surface = Surface(axes, "10 -20 30\n5 0 -40")
    for n, m in ((16.0, 4.0), (2.0**17, 1.0), (1024.0, 2.0**13)):
        assert surface.ratio(gemm(m, n, 1.0)) == pytest.approx(1.0)
    assert surface.ratio(gemm(16.0, 1024.0, 1.0)) == pytest.approx(math.exp(-0.2))
    points = np.array([1.0, 3.0, 17.0, 500.0])
    many = surface.ratio(Kernel("w", "gemm", 1, Dtype.BF16, shape=GemmShape(points, 1500.0, 1.0)))
    both = surface.ratio(Kernel("w", "gemm", 1, Dtype.BF16, shape=GemmShape(points, 1500.0 + 0 * points, 1.0)))
    each = [surface.ratio(gemm(point, 1500.0, 1.0)) for point in points]
    assert many == pytest.approx(each)
    assert both == pytest.approx(each)


sizes = st.integers(0, 56).map(lambda eighth: float(round(2 ** (eighth / 4))))
widths = st.integers(32, 62).map(lambda quarter: float(round(2 ** (quarter / 4))))
few = settings(max_examples=150, deadline=None)


def times(name: str, kernels: list[Kernel]) -> list[float]:
    calibration = load(name)
    system = System.of(load_accelerator(calibration.accelerator).value)
    return [float(time_kernel(kernel, system, calibration).expected) for kernel in kernels]


LOADED: dict[str, object] = {}


def load(name: str):
    return LOADED.setdefault(name, load_calibration(name))


@few
@given(st.sampled_from(SHIPPED), sizes, widths, widths, st.sampled_from("mnk"))
def test_gemm_never_gets_cheaper_when_it_grows(name, m, n, k, axis):
    grown = {"m": m, "n": n, "k": k}
    grown[axis] *= 1.5
    small, large = times(name, [gemm(m, n, k), gemm(**grown)])
    assert large >= small * (1 - 5e-3)


@few
@given(
    st.sampled_from(SHIPPED),
    sizes,
    sizes,
    st.sampled_from((1, 4, 8, 16)),
    st.sampled_from((decode, prefill)),
)
def test_attention_never_gets_cheaper_when_it_grows(name, batch, length, group, build):
    sizes = ((batch, length), (2 * batch, length), (batch, 1.5 * length))
    small, more, longer = times(name, [build(b, s, 8 * group) for b, s in sizes])
    assert min(more, longer) >= small * (1 - 5e-3)


@few
@given(
    st.sampled_from(SHIPPED),
    sizes,
    sizes,
    st.sampled_from((8.0, 16.0, 128.0)),
    st.sampled_from(("mla_decode", "mla_prefill")),
)
def test_latent_attention_never_gets_cheaper_when_it_grows(name, batch, length, heads, operation):
    small, more, longer = times(
        name, [latent(operation, b, s, heads) for b, s in ((batch, length), (2 * batch, length), (batch, 2 * length))]
    )
    assert min(more, longer) >= small * (1 - 5e-3)


@few
@given(st.sampled_from(SHIPPED), sizes, st.sampled_from((1, 2, 8)))
def test_experts_never_get_cheaper_with_more_tokens(name, tokens, ep):
    small, large = times(name, [experts(tokens, ep=ep), experts(2 * tokens, ep=ep)])
    assert large >= small * (1 - 5e-3)


@few
@given(
    name=st.sampled_from([f"{gpu}--sglang" for gpu in ("h100-sxm", "h200-sxm", "b200-sxm", "gb200")]),
    tokens=sizes,
    mode=st.sampled_from(["normal", "low_latency"]),
    way=st.sampled_from(["dispatch", "combine"]),
)
def test_an_exchange_never_gets_cheaper_with_more_tokens(name, tokens, mode, way):
    sms = 20.0 if mode == "normal" else 0.0
    less, more = times(name, [exchange(f"{mode}_{way}", count, sms=sms) for count in (tokens, tokens + 1.0)])
    assert less <= more


@few
@given(st.sampled_from(SHIPPED), sizes, widths, widths, sizes)
def test_no_kernel_beats_the_datasheet(name, m, n, k, length):
    calibration = load(name)
    system = System.of(load_accelerator(calibration.accelerator).value)
    for kernel in (gemm(m, n, k), decode(m, length), prefill(1, length), experts(m)):
        assert time_kernel(kernel, system, calibration).expected >= max(roofline_bound(kernel, system))


@settings(max_examples=200, deadline=None)
@given(st.floats(1e-9, 1e3), st.floats(0.0, 1e4))
def test_a_time_without_an_interval_waits_without_one(time, wait):
    waited = Time(time, 0.5 * time, time, time).later(wait)
    assert waited.low == waited.expected == waited.high
