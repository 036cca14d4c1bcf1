"""Budgets of keys: what is read, computed and kept, by hand; and the parts that a split context is cut into."""

from __future__ import annotations

from functools import lru_cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rooflinekit as rk
from rooflinekit.model.cache import cache_law
from rooflinekit.model.step import Plan, make_plan
from rooflinekit.model.types.batch import Batch, Sequences
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.hardware import System
from rooflinekit.model.types.kernel import Kernel
from rooflinekit.model.types.kv_policy import parse_kv_policy
from rooflinekit.specs import load_accelerator, load_model

LLAMA = 131_072.0  # bytes of cache a token of Llama-3-8B: 32 layers x 8 heads x 256 elements x 2 bytes
MLA = 61 * 576 * 2.0  # of DeepSeek-V3
POLICIES = ("window:2048", "sink:4+2044", "topk:2048", "evict:2048")
KINDS = st.sampled_from(("window:{}", "sink:1+{}", "topk:{}", "evict:{}"))


@lru_cache
def plan(model: str, policy: str = "full") -> Plan:
    deployment = Deployment(engine="ideal", kv_policy=parse_kv_policy(policy))
    return make_plan(load_model(model).value, deployment, System.of(load_accelerator("h200-sxm").value), None)


def attention(model: str, policy: str, batch: Batch) -> list[Kernel]:
    return [k for k in plan(model, policy).kernels(batch) if "attention" in k.name]


def read(model: str, policy: str, batch: Batch) -> float:
    return sum(float(k.kv_read_bytes) * k.count for k in attention(model, policy, batch))


def work(model: str, policy: str, batch: Batch) -> float:
    return sum(float(k.flops) * k.count for k in attention(model, policy, batch))


def kept(model: str, policy: str, context: float) -> float:
    law = cache_law(load_model(model).value.layers, Dtype.BF16, policy=parse_kv_policy(policy))
    return float(law.bytes(context))


DECODE = Batch.decode(1.0, 32_768.0)
PREFILL = Batch.prefill(1.0, 32_768.0)


class TestByHand:
    @pytest.mark.parametrize(
        ("policy", "keys", "stored"),
        [
            ("full", 32_768, 32_768),
            ("window:2048", 2048, 2048),
            ("sink:4+2044", 2048, 2048),
            ("topk:2048", 2048 + 32_768 / 16, 32_768 * 17 / 16),  # and two keys for each page of 16
            ("topk:2048/32", 2048 + 32_768 / 32, 32_768 * 33 / 32),
            ("evict:2048", 2048, 2048),
        ],
    )
    def test_grouped_heads(self, policy: str, keys: float, stored: float) -> None:
        assert read("llama-3-8b", policy, DECODE) == pytest.approx(LLAMA * keys)
        assert work("llama-3-8b", policy, DECODE) == pytest.approx(32 * 4 * 32 * 128 * keys)
        assert kept("llama-3-8b", policy, 32_768.0) == pytest.approx(LLAMA * stored)

    @pytest.mark.parametrize(
        ("policy", "keys", "stored"),
        [
            ("window:2048", 2048, 2048),
            ("topk:2048", 2048 + 2 * 32_768 / 16, 32_768 * 18 / 16),  # a page's two latents count twice a token's one
            ("evict:2048", 2048, 2048),
        ],
    )
    def test_latents(self, policy: str, keys: float, stored: float) -> None:
        assert read("deepseek-v3", policy, DECODE) == pytest.approx(MLA * keys)
        assert kept("deepseek-v3", policy, 32_768.0) == pytest.approx(MLA * stored)

    def test_a_window_shortens_the_prompt_pass_and_the_others_do_not(self) -> None:
        """Llama-3-8B: 2,048·2,049/2 + 30,720·2,048 pairs of 32,768·32,769/2."""
        pairs = 2048 * 2049 / 2 + 30_720 * 2048
        for policy in ("window:2048", "sink:4+2044"):
            assert work("llama-3-8b", policy, PREFILL) == pytest.approx(32 * 4 * 32 * 128 * pairs)
        for policy in ("topk:2048", "evict:2048"):
            assert work("llama-3-8b", policy, PREFILL) == work("llama-3-8b", "full", PREFILL)

    def test_verified_tokens_choose_their_own_keys(self) -> None:
        """Four queries read at most 4 x 2,048 chosen keys, but share what was evicted."""
        batch = Batch.decode(1.0, 32_768.0, new=4.0)
        summaries = sum(range(32_765, 32_769)) / 16 * 4 * 32 * 128 * 32
        assert read("llama-3-8b", "topk:2048", batch) == pytest.approx(LLAMA * (4 * 2048 + 2048))
        assert read("llama-3-8b", "evict:2048", batch) == pytest.approx(LLAMA * (2047 + 4))
        full_choice = 4 * 2048 * 4 * 32 * 128 * 32
        assert work("llama-3-8b", "topk:2048", batch) == pytest.approx(full_choice + summaries)


class TestOwnWindows:
    @pytest.mark.parametrize("policy", POLICIES)
    def test_a_smaller_window_stays(self, policy: str) -> None:
        """Half of gpt-oss's layers see 128 tokens, far fewer than the budget."""
        windowed = [[k for k in attention("gpt-oss-20b", p, DECODE) if "window" in k.name] for p in ("full", policy)]
        assert windowed[0]
        assert [k.kv_read_bytes for k in windowed[0]] == [k.kv_read_bytes for k in windowed[1]]
        assert read("gpt-oss-20b", policy, DECODE) < read("gpt-oss-20b", "full", DECODE)

    def test_a_smaller_budget_cuts_the_window_too(self) -> None:
        assert read("gpt-oss-20b", "evict:64", DECODE) == pytest.approx(24 * 64 * 8 * 128 * 2)

    def test_chunked_layers_keep_their_chunk(self) -> None:
        kernels = [attention("llama-4-scout", p, DECODE) for p in ("full", "evict:64")]
        chunked = [[k for k in found if "chunk" in k.name] for found in kernels]
        assert chunked[0]
        assert [k.flops for k in chunked[0]] == [k.flops for k in chunked[1]]


class TestLaws:
    @given(KINDS, st.integers(1, 4096), st.integers(1, 4096), st.integers(1, 4096))
    def test_a_smaller_budget_never_reads_or_keeps_more(self, kind: str, a: int, b: int, context: int) -> None:
        small, large = (parse_kv_policy(kind.format(n)) for n in sorted((a, b)))
        phase = Sequences(1.0, 1.0, context - 1.0)
        assert all(x <= y for x, y in zip(small.seen(phase, None), large.seen(phase, None), strict=True))
        assert (small.stored(None) or context) <= (large.stored(None) or context)

    @given(st.sampled_from(("window:{}", "evict:{}")), st.integers(1, 4096), st.integers(0, 100))
    def test_a_budget_as_long_as_the_context_changes_nothing(self, kind: str, context: int, more: int) -> None:
        phase, full = Sequences(1.0, 1.0, context - 1.0), parse_kv_policy("full")
        assert parse_kv_policy(kind.format(context + more)).seen(phase, None) == full.seen(phase, None)

    @given(st.sampled_from((*POLICIES, "topk:9/4", "sink:1+1", "full")))
    def test_a_policy_is_read_as_it_is_written(self, text: str) -> None:
        assert str(parse_kv_policy(text)) == text

    @pytest.mark.parametrize("text", ["window", "window:0", "sink:4", "topk:-1", "evict:2k", "h2o:2048", ""])
    def test_anything_else_is_refused_with_what_would_do(self, text: str) -> None:
        with pytest.raises(rk.InputError, match=r"unknown kv_policy .* use full, window:4096"):
            parse_kv_policy(text)


class TestAnswer:
    @pytest.mark.parametrize("policy", POLICIES)
    def test_quality_is_said_not_to_be_modelled(self, policy: str) -> None:
        answer = rk.estimate("llama-3-8b", isl=6000, calibration="none", kv_policy=policy)
        full = rk.estimate("llama-3-8b", isl=6000, calibration="none")
        assert answer.tpot_ms < full.tpot_ms
        assert answer.inputs["kv_policy"] == policy
        assert any("effect on quality is not modelled" in note for note in answer.warnings)
        assert not any("quality" in note for note in full.warnings)

    def test_what_is_not_kept_makes_room(self) -> None:
        rooms = [
            rk.estimate("llama-3-8b", isl=8000, batch=8, calibration="none", kv_policy=p).memory.max_batch
            for p in ("full", "topk:2048", "evict:2048")
        ]
        assert rooms[1] < rooms[0] < rooms[2] / 3
