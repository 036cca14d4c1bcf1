"""What holds for every model and every batch: laws over random valid ones.

Each law runs on a small sample in `make test`, and on a thousand examples as well in `make test-long`.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rooflinekit.model.cache import CacheLaw, cache_law
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.step import make_plan
from rooflinekit.model.types.batch import Batch, Sequences
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.hardware import System
from rooflinekit.model.types.model import (
    Attention,
    DenseFFN,
    LatentAttention,
    Layer,
    MixtureOfExperts,
    Model,
    WeightFormats,
)
from rooflinekit.model.types.workload import Workload
from rooflinekit.specs import load_accelerator
from rooflinekit.specs.calibration.load import load_calibration

H100 = System.of(load_accelerator("h100-sxm").value)
CALIBRATION = load_calibration("h100-sxm--vllm")
ATTENTION = ("attention_prefill", "attention_decode", "mla_prefill", "mla_decode")
SHARDED = {  # kernels whose work tensor parallelism divides; the others run whole on every rank
    "attention", "window_attention", "o_proj", "gate_up_proj", "up_proj", "down_proj", "experts", "q_b_proj", "q_proj",
    "kv_b_proj", "q_absorb", "v_absorb", "activation", "shared_activation", "lm_head", "shared_gate_up_proj",
    "shared_up_proj", "shared_down_proj",
}  # fmt: skip
LAWS = []


def law(**drawn):
    """A property over what the strategies draw; the long run repeats it on many more examples."""

    def register(check):
        many = settings(settings.get_profile("long"))(given(**drawn)(check))
        LAWS.append(pytest.param(many, id=check.__name__.removeprefix("test_")))
        return given(**drawn)(check)

    return register


@st.composite
def mixers(draw):
    if draw(st.integers(0, 3)) == 0:
        q_rank = draw(st.sampled_from([None, 256, 1536]))
        return LatentAttention(draw(st.sampled_from([8, 16, 128])), q_rank, 512, 128, 64, 128)
    kv_heads, group = draw(st.sampled_from([1, 2, 4, 8])), draw(st.sampled_from([1, 2, 4, 8]))
    heads, dim = max(8, kv_heads * group), draw(st.sampled_from([64, 128]))
    window = draw(st.sampled_from([None, None, 128, 1024]))
    return Attention(heads, kv_heads, dim, dim, window, qkv_bias=draw(st.booleans()), rotary=draw(st.booleans()))


@st.composite
def feed_forwards(draw):
    gated, width = draw(st.booleans()), 64 * draw(st.integers(1, 64))
    if draw(st.booleans()):
        return DenseFFN(width, gated, draw(st.booleans()))
    experts, shared = draw(st.sampled_from([8, 16, 64])), draw(st.sampled_from([0, 512]))
    return MixtureOfExperts(experts, draw(st.integers(1, 8)), width, gated, shared_width=shared)


@st.composite
def models(draw):
    """Decoders of a few layers: MHA, GQA, MQA, windows and MLA; dense and MoE; sequential and parallel blocks."""
    kinds = st.builds(
        Layer,
        mixers(),
        feed_forwards(),
        st.sampled_from(["rmsnorm", "layernorm"]),
        st.sampled_from([1, 2, 4]),
        st.booleans(),
    )
    layers = draw(st.lists(kinds, min_size=1, max_size=3)) * draw(st.integers(1, 6))
    weights = draw(st.sampled_from([Dtype.BF16, Dtype.FP8, Dtype.INT4]))
    formats = replace(WeightFormats.uniform(Dtype.BF16), attention=weights, ffn=weights, experts=weights)
    hidden, vocab = 64 * draw(st.integers(4, 96)), 512 * draw(st.integers(2, 256))
    limit = draw(st.sampled_from([None, 8192]))
    return Model("drawn", hidden, vocab, tuple(layers), Dtype.BF16, formats, limit, tied=draw(st.booleans()))


def plans(calibration=None):
    return st.builds(lambda model, tp: plan(model, calibration, tp=tp), models(), st.sampled_from([1, 2, 8]))


def plan(model, calibration=None, system=H100, **deployment):
    return make_plan(model, Deployment(**deployment), system, calibration)


batches = st.sampled_from([1.0, 2.0, 7.0, 64.0, 300.0])
lengths = st.integers(1, 20_000).map(float)


def total(kernels, quantity):
    return sum(kernel.count * getattr(kernel, quantity) for kernel in kernels)


def close(left, right, rel=1e-9):
    return math.isclose(left, right, rel_tol=rel, abs_tol=1e-15)


# --- the six invariants ----------------------------------------------------------------------------------------------


@law(model=models(), tp=st.sampled_from([1, 2, 8]), tokens=lengths)
def test_the_residual_width_never_changes(model, tp, tokens):
    for kernel in plan(model, tp=tp).kernels(Batch.prefill(1.0, tokens)):
        if kernel.name in ("qkv_proj", "gate_up_proj", "up_proj", "router", "lm_head", "kv_a_proj", "qkv_a_proj"):
            assert kernel.shape.k == model.hidden
        if kernel.name in ("o_proj", "down_proj", "shared_down_proj"):
            assert kernel.shape.n == model.hidden
        if kernel.name in ("residual_norm", "final_norm"):  # block output and residual in, their sum and its norm out
            assert kernel.activation_bytes == tokens * 4 * model.hidden * 2
        if kernel.name == "all_reduce":
            assert kernel.shape.payload == tokens * model.hidden * 2


@law(plan=plans(), new=st.integers(1, 500), past=st.integers(1, 20_000))
def test_keys_and_values_of_past_tokens_are_never_computed_again(plan, new, past):
    # Except MLA's kv_b in prefill, which expands the cached latents (DeepSeek-V2, 2.1.2); it is part of attention.
    fresh = plan.kernels(Batch.prefill(1.0, float(new)))
    later = plan.kernels(Batch.prefill(1.0, float(past + new), cached=float(past)))
    for first, second in zip(fresh, later, strict=True):
        if first.family not in ATTENTION and first.name != "kv_b_proj":
            assert first == second
    per_token = cache_law(plan.model.layers, Dtype.BF16, plan.deployment.tp).bytes_per_token
    assert close(total(later, "kv_write_bytes"), new * per_token)


@law(plan=plans(), batch=batches, short=lengths, long=lengths)
def test_only_attention_depends_on_context(plan, batch, short, long):
    assume(short < long)
    pairs = zip(plan.kernels(Batch.decode(batch, short)), plan.kernels(Batch.decode(batch, short + long)), strict=True)
    for near, far in pairs:
        if near.family not in ATTENTION:
            assert near == far
        elif near.name == "attention":  # not windowed: it must grow
            assert near.flops < far.flops
            assert near.kv_read_bytes < far.kv_read_bytes


@law(mixer=mixers(), batch=batches, context=lengths)
def test_decode_scores_are_one_row_per_head(mixer, batch, context):
    layer = Layer(mixer, DenseFFN(256))
    model = Model("one", 512, 1024, (layer,), Dtype.BF16, WeightFormats.uniform(Dtype.BF16), None)
    (scores,) = [k for k in plan(model).kernels(Batch.decode(batch, context)) if k.family in ATTENTION]
    if isinstance(mixer, LatentAttention):
        assert scores.flops == 2 * batch * mixer.heads * (2 * 512 + 64) * context
    else:
        keys = min(context, mixer.window or math.inf)
        assert scores.flops == 4 * batch * mixer.heads * mixer.head_dim * keys
        assert scores.kv_read_bytes == batch * keys * mixer.kv_heads * 2 * mixer.head_dim * 2


@law(plan=plans(), batch=batches, short=lengths, long=lengths)
def test_decode_work_outside_attention_is_constant_in_context(plan, batch, short, long):
    def outside(context):
        kernels = [k for k in plan.kernels(Batch.decode(batch, context)) if k.family not in ATTENTION]
        return [total(kernels, each) for each in ("flops", "weight_bytes", "activation_bytes", "kv_write_bytes")]

    assert outside(short) == outside(long)
    marked = plan.kernels(Batch.decode(batch, short), grows=True)
    assert all(kernel.family in ATTENTION for kernel in marked), "what is said to grow is attention"


@law(plan=plans(), few=st.integers(1, 4000), more=st.integers(1, 4000))
def test_prefill_intensity_grows_with_tokens_and_decode_intensity_with_batch(plan, few, more):
    def intensities(batch):
        return {k.name: k.intensity for k in plan.kernels(batch) if k.weight_bytes and k.name != "lm_head"}

    def step(batch):
        kernels = plan.kernels(batch)
        traffic = sum(total(kernels, each) for each in ("weight_bytes", "kv_read_bytes", "kv_write_bytes"))
        return total(kernels, "flops") / (traffic + total(kernels, "activation_bytes"))

    low, high = float(few), float(few + more)
    for make in (lambda n: Batch.prefill(1.0, n), lambda n: Batch.decode(n, 1000.0)):
        before, after = intensities(make(low)), intensities(make(high))
        assert all(before[name] < after[name] for name in before)
    assert step(Batch.decode(low, 1000.0)) < step(Batch.decode(high, 1000.0))


# --- roofs, and what more hardware or more work does ----------------------------------------------------------------


@law(plan=plans(CALIBRATION), batch=batches, new=lengths, context=lengths)
def test_time_is_never_below_either_roof_nor_the_bound(plan, batch, new, context):
    chip = plan.system.accelerator
    for step in (plan.time(Batch.prefill(batch, new)), plan.time(Batch.decode(batch, context))):
        for timed in step.kernels:
            kernel = timed.kernel
            streamed = kernel.weight_bytes + kernel.kv_read_bytes + kernel.kv_write_bytes
            compute_roof = kernel.count * kernel.flops / chip.peaks[kernel.dtype.unit]
            memory_roof = kernel.count * streamed / chip.memory_bandwidth
            assert timed.bound >= max(compute_roof, memory_roof) * (1 - 1e-12)
            assert timed.expected >= timed.bound > -1
            assert timed.low <= timed.expected <= timed.high
            assert timed.low >= timed.bound
        assert step.low <= step.expected <= step.high
        assert step.expected >= step.bound


@law(model=models(), batch=batches, context=lengths, more=st.integers(1, 1000))
def test_more_work_never_takes_less_time(model, batch, context, more):
    for calibration in (None, CALIBRATION):
        built = plan(model, calibration)

        # A correction is kept in whole percent, so a calibrated time may fall by half a percent where the form is flat;
        # the ends of the interval step with the regime of the shape and are not ordered.
        slack = 1e-12 if calibration is None else 5e-3

        def times(step, built=built):
            timed = built.time(step)
            return timed.bound, timed.expected

        for less, extra in (
            (Batch.decode(batch, context), Batch.decode(batch + more, context)),
            (Batch.decode(batch, context), Batch.decode(batch, context + more)),
            (Batch.prefill(batch, context), Batch.prefill(batch, context + more)),
            (Batch.prefill(batch, context), Batch.prefill(batch + more, context)),
        ):
            assert all(a <= b * (1 + slack) for a, b in zip(times(less), times(extra), strict=True))


@law(model=models(), batch=batches, context=lengths, factor=st.floats(1.0, 16.0))
def test_faster_hardware_is_never_slower(model, batch, context, factor):
    chip = H100.accelerator
    faster = (
        replace(chip, memory_bandwidth=chip.memory_bandwidth * factor),
        replace(chip, peaks={dtype: peak * factor for dtype, peak in chip.peaks.items()}),
        replace(chip, link_bandwidth=chip.link_bandwidth * factor),
    )
    for calibration in (None, CALIBRATION):
        for step in (Batch.prefill(batch, context), Batch.decode(batch, context)):
            base = plan(model, calibration, tp=2).time(step)
            for other in faster:
                better = plan(model, calibration, System.of(other), tp=2).time(step)
                assert better.expected <= base.expected * (1 + 1e-12)
                assert better.bound <= base.bound * (1 + 1e-12)


# --- conservation ---------------------------------------------------------------------------------------------------


@law(model=models(), tp=st.sampled_from([2, 4, 8]), batch=batches, tokens=lengths)
def test_work_over_ranks_is_conserved_except_for_counted_replicas(model, tp, batch, tokens):
    for step in (Batch.prefill(batch, tokens), Batch.decode(batch, tokens)):
        n = batch * tokens if step.prefilling else batch
        whole = total(plan(model).kernels(step), "flops")
        ranks = tp * total(plan(model, tp=tp).kernels(step), "flops")
        assert close(ranks, whole + (tp - 1) * replicated_flops(model, n, batch) + kv_replicas(model, tp, n))


def replicated_flops(model, tokens, rows):
    """What every rank repeats: norms, router and its selection, MLA's down projections and shared key, sampling."""
    each = 5.0 * model.hidden * (1 + sum(layer.norms for layer in model.layers))  # five operations an element
    for layer in model.layers:
        if isinstance(layer.ffn, MixtureOfExperts):
            each += 2.0 * model.hidden * layer.ffn.experts + 5.0 * layer.ffn.experts
        if isinstance(layer.mixer, LatentAttention):
            down = layer.mixer.q_rank or 0
            each += 2.0 * model.hidden * (down + 512 + 64) + 4.0 * (down + 512) + 3.0 * 64
    return tokens * each + rows * model.vocab


def kv_replicas(model, tp, tokens):
    """K and V projections (and the keys' rotation) of the KV heads that are held more than once."""
    each = 0.0
    for layer in model.layers:
        if isinstance(mixer := layer.mixer, Attention):
            copies = max(tp - mixer.kv_heads, 0)
            each += copies * mixer.head_dim * (2.0 * 2 * model.hidden + 3.0 * mixer.rotary)
    return tokens * each


@law(model=models(), tp=st.sampled_from([2, 4, 8]), context=lengths)
def test_sharded_kernels_split_their_weights_and_keys_evenly(model, tp, context):
    # What each rank streams of a sharded matrix is 1/tp of it; a bias added after the reduction is whole on each rank.
    step = Batch.decode(32.0, context)
    whole, cut = plan(model).kernels(step), plan(model, tp=tp).kernels(step)
    biased = sum(isinstance(layer.ffn, DenseFFN) and layer.ffn.bias for layer in model.layers)
    for name in {kernel.name for kernel in whole} & SHARDED:
        at_one, at_rank = ([k for k in kernels if k.name == name] for kernels in (whole, cut))
        bias = 2.0 * model.hidden * biased if name == "down_proj" else 0.0
        expected = total(at_one, "weight_bytes") + (tp - 1) * bias
        assert close(tp * total(at_rank, "weight_bytes"), expected)
        assert close(tp * total(at_rank, "flops"), total(at_one, "flops"))


@law(model=models(), ep=st.sampled_from([1, 2, 4]), batch=batches)
def test_expert_parallelism_moves_work_without_making_any(model, ep, batch):
    assume(any(isinstance(layer.ffn, MixtureOfExperts) for layer in model.layers))

    def experts(**deployment):
        return [k for k in plan(model, **deployment).kernels(Batch.decode(batch, 100.0)) if k.name == "experts"]

    one, split = experts(), experts(tp=4, ep=ep)
    mean = [replace(k, flops=k.flops * k.shape.slots / k.shape.ranks / k.shape.routed) for k in split]
    assert close(4 * total(mean, "flops"), total(one, "flops"))
    # the rank shown is the fullest one
    assert 4 * total(split, "flops") >= total(one, "flops") * (1 - 1e-9)
    assert 4 * total(split, "weight_bytes") >= total(one, "weight_bytes") * (1 - 1e-9)


@law(plan=plans(), parts=st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 3000)), min_size=1, max_size=6))
def test_a_ragged_batch_is_the_sum_over_its_sequences(plan, parts):
    new, past = zip(*parts, strict=True)
    together = plan.kernels(Batch.ragged(new, past))
    alone = [plan.kernels(Batch.prefill(1.0, float(n + p), cached=float(p))) for n, p in parts]
    for kernel, *singles in zip(together, *alone, strict=True):
        for each in ("flops", "kv_read_bytes", "kv_write_bytes", "activation_bytes", "network_bytes"):
            assert close(getattr(kernel, each), sum(getattr(single, each) for single in singles)), (kernel.name, each)
        if kernel.name != "experts":  # weights are streamed once for the whole batch, not once a sequence
            assert kernel.weight_bytes == singles[0].weight_bytes


@law(plan=plans(), sizes=st.lists(st.integers(1, 2000), min_size=1, max_size=6), window=st.sampled_from([None, 1, 100]))
def test_prefill_in_chunks_is_prefill_in_one_go(plan, sizes, window):
    whole, pairs, written, past = float(sum(sizes)), 0.0, 0.0, 0.0
    for size in sizes:
        piece = Sequences(1.0, float(size), past)
        pairs += piece.pairs(window)
        last = past + size == whole
        written += total(plan.kernels(Batch.chunk(1.0, float(size), past, last)), "kv_write_bytes")
        past += size
    assert close(pairs, Sequences(1.0, whole).pairs(window))
    assert close(written, total(plan.kernels(Batch.prefill(1.0, whole)), "kv_write_bytes"))


@law(new=st.integers(1, 60), past=st.integers(0, 60), window=st.sampled_from([None, 1, 5, 64]))
def test_pairs_and_keys_are_those_of_the_mask(new, past, window):
    visible = [
        [key for key in range(past + new) if key <= query and (window is None or query - key < window)]
        for query in range(past, past + new)
    ]
    piece = Sequences(3.0, float(new), float(past))
    assert piece.pairs(window) == 3 * sum(map(len, visible))
    assert piece.keys_read(window) == 3 * len({key for row in visible for key in row})


@law(new=st.integers(1, 40), past=st.integers(0, 60), chunk=st.sampled_from([1, 7, 32]))
def test_pairs_of_chunked_attention_are_those_of_the_mask(new, past, chunk):
    pairs = sum(key // chunk == query // chunk for query in range(past, past + new) for key in range(query + 1))
    assert Sequences(1.0, float(new), float(past)).pairs(chunk=chunk) == pairs


# --- one code path for scalars and arrays ---------------------------------------------------------------------------


@law(
    plan=plans(CALIBRATION),
    rows=st.lists(st.tuples(batches, lengths, st.integers(1, 3000), st.integers(0, 99)), min_size=1, max_size=5),
    fixed=st.booleans(),
)
def test_arrays_are_the_scalars_elementwise(plan, rows, fixed):
    predictor = Predictor.of(plan)
    batch, isl, osl, share = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    cached = np.floor(isl * share / 100)
    context = isl + 17 if fixed else None
    arrays = predictor.evaluate(Workload(batch, isl, osl, cached, context))
    for i in range(len(rows)):
        at = float(context[i]) if fixed else None
        one = predictor.evaluate(Workload(float(batch[i]), float(isl[i]), float(osl[i]), float(cached[i]), at))
        for many, single in ((arrays.ttft, one.ttft), (arrays.tpot, one.tpot)):
            for part in ("expected", "bound", "low", "high"):
                assert close(np.broadcast_to(getattr(many, part), len(rows))[i], getattr(single, part))
        for part in ("weight_bytes", "kv_bytes", "activation_bytes", "total_bytes", "max_batch", "max_context", "fits"):
            values = np.broadcast_to(getattr(arrays.memory, part), len(rows))
            assert values[i] == pytest.approx(getattr(one.memory, part), rel=1e-12)


# --- memory ---------------------------------------------------------------------------------------------------------


@st.composite
def tight_memory(draw):
    """A model on a GPU with room for a few to many sequences beside its weights."""
    tp, dp, pp = draw(st.sampled_from([(1, 1, 1), (2, 1, 1), (2, 2, 1), (1, 1, 2), (4, 2, 2)]))
    model = draw(models())
    assume(pp <= model.depth)
    blocks = [layer.ffn for layer in model.layers if isinstance(layer.ffn, MixtureOfExperts)]
    assume(all(block.experts % (tp * dp) == 0 for block in blocks))
    built = plan(model, tp=tp, dp=dp, pp=pp)
    fixed = Predictor.of(built).memory
    room = draw(st.floats(1e6, 5e10))
    capacity = max(stage.weight_bytes for stage in fixed.stages) + fixed.outside.total + room
    return replace(fixed, capacity_bytes=capacity)


@law(memory=tight_memory(), context=lengths, share=st.floats(0.01, 1.0))
def test_what_fits_is_what_max_batch_says(memory, context, share):
    new = max(1.0, math.floor(context * share))
    most = memory.evaluate(1.0, context, new).max_batch
    assert most == math.floor(most)
    assert most % memory.replicas == 0
    if most:
        assert memory.evaluate(most, context, new).fits
    assert not memory.evaluate(most + 1, context, new).fits


@law(memory=tight_memory(), batch=batches, new=st.integers(1, 4000))
def test_what_fits_is_what_max_context_says(memory, batch, new):
    longest = memory.evaluate(batch, 1.0, float(new)).max_context
    assert memory.limit is None or longest <= memory.limit
    if longest == math.inf:
        assert memory.evaluate(batch, 1e12, float(new)).fits
        return
    if longest:
        assert memory.evaluate(batch, longest, float(new)).fits
    if longest != memory.limit:
        assert not memory.evaluate(batch, longest + 1, float(new)).fits


@st.composite
def cache_laws(draw):
    caps = sorted(draw(st.sets(st.integers(1, 5000).map(float), max_size=3)))
    caps += [math.inf] if not caps or draw(st.booleans()) else []
    slopes = tuple((cap, float(draw(st.integers(1, 5_000_000)))) for cap in caps)
    return CacheLaw(slopes, float(draw(st.integers(0, 10_000_000))), draw(st.sampled_from([1, 16, 64])))


@law(law=cache_laws(), budget=st.integers(0, 10**11).map(float))
def test_the_longest_context_is_the_inverse_of_the_cache_size(law, budget):
    longest = law.longest(budget)
    if longest == math.inf:
        assert law.bytes(1e15) <= budget
        return
    if longest:
        assert law.bytes(longest) <= budget
    assert law.bytes(longest + 1) > budget


@law(law=cache_laws(), context=st.integers(1, 100_000).map(float))
def test_a_budget_of_exactly_one_sequence_holds_it(law, context):
    longest = law.longest(law.bytes(context))
    assert longest >= context
    assert longest == math.inf or law.bytes(longest) == law.bytes(context)


@given(law=cache_laws(), context=st.integers(1, 100_000).map(float))
def test_a_byte_less_than_one_sequence_does_not_hold_it(law, context):
    budget = law.bytes(context) - 1
    longest = law.longest(budget)
    assert longest == 0 or law.bytes(min(longest, 1e15)) <= budget


@pytest.mark.long
@pytest.mark.parametrize("many", LAWS)
def test_laws_on_many_examples(many):
    many()
