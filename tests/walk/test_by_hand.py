"""Walks worked out on paper: shapes, FLOP and bytes of known models, packed prompts, splits over ranks."""

from __future__ import annotations

import math

import pytest

import rooflinekit as rk
from rooflinekit.explanation.walk.front import walk
from rooflinekit.explanation.walk.prompts import Prompts
from rooflinekit.explanation.walk.result import Stop, WalkSection
from rooflinekit.model.step import make_plan
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.hardware import System
from rooflinekit.model.types.model import Attention, DenseFFN, Layer, Model, WeightFormats
from rooflinekit.specs import load_accelerator, load_model

FAST = System.of(load_accelerator("b200-sxm").value)


def stop_of(section: WalkSection, name: str) -> Stop:
    return next(stop for stop in section.stops if stop.name == name)


class TestByHand:
    def test_six_tokens_of_llama_3_8b(self) -> None:
        """D = 4096, 32 query and 8 KV heads of 128, FFN 14336: every number on paper."""
        prefill, decode = rk.shapes("llama-3-8b", prompt="The cat sat on the mat").phases
        layer = prefill.sections[1]
        assert layer.count == 32
        assert [tensor.shape for tensor in stop_of(layer, "split heads").outputs] == [(6, 32, 128), *[(6, 8, 128)] * 2]
        assert stop_of(layer, "QKV projection").work.flops == 2 * 6 * 4096 * 6144
        assert stop_of(layer, "scores").outputs[0].shape == (32, 6, 6)
        assert stop_of(layer, "scores").work.flops == 2 * 32 * 128 * (1 + 2 + 3 + 4 + 5 + 6)
        assert stop_of(layer, "weighted sum").work.kv_read_bytes == 6 * 8 * 128 * 2
        assert stop_of(layer, "append to the cache").work.kv_write_bytes * 32 == 6 * 131072
        assert stop_of(prefill.sections[2], "LM head").outputs[0].shape == (1, 128256)
        row = stop_of(decode.sections[1], "scores")
        assert (row.outputs[0].shape, row.work.flops) == ((32, 1, 7), 2 * 32 * 128 * 7)
        assert decode.work.kv_read_bytes == 7 * 131072
        assert decode.work.kv_write_bytes == 131072
        assert decode.work.weight_bytes == prefill.work.weight_bytes  # every weight once, for 6 tokens or for 1

    def test_the_toy_layer_of_tutorials(self) -> None:
        """12·D² weights at D = 256 (4·D² attention, 8·D² FFN): 2·6·786,432 = 9.4 MFLOP for six tokens."""
        layer = Layer(Attention(4, 4, 64, 64), DenseFFN(1024, gated=False))
        toy = Model("toy", 256, 1000, (layer,), Dtype.BF16, WeightFormats.uniform(Dtype.BF16), None)
        section = walk(make_plan(toy, Deployment(), FAST, None), Prompts((6,))).phases[0].sections[1]
        matrices = [stop for stop in section.stops if any(weight.name == "weight" for weight in stop.weights)]
        assert sum(stop.work.flops for stop in matrices) == 9_437_184
        assert stop_of(section, "scores").work.flops + stop_of(section, "weighted sum").work.flops == 4 * 256 * 21

    def test_a_window_is_a_band(self) -> None:
        """Mistral's window of 4,096 at 5,000 tokens: 4,096·4,097/2 + 904·4,096 pairs; decode reads 4,096 keys."""
        prefill, decode = rk.shapes("mistral-7b", tokens=5000).phases
        pairs = 4096 * 4097 // 2 + 904 * 4096
        assert stop_of(prefill.sections[1], "scores").work.flops == 2 * 32 * 128 * pairs
        told = next(symbol for symbol in prefill.sections[1].symbols if symbol.name == "pairs")
        assert (told.value, told.meaning.rpartition(": ")[2]) == (pairs, "4096·4097/2 + 904·4096")
        assert f"{pairs:,} of 25,000,000 cells" in stop_of(prefill.sections[1], "causal mask").note
        assert stop_of(decode.sections[1], "scores").outputs[0].shape == (32, 1, 4096)

    def test_mla_keeps_576_elements_and_decodes_against_them(self) -> None:
        prefill, decode = rk.shapes("deepseek-v3", "h200-sxm", tokens=6, tp=8).phases
        assert stop_of(prefill.sections[1], "append to the cache").outputs[0].shape == (6, 576)
        assert [tensor.shape for tensor in prefill.sections[1].stops[10].outputs] == [(6, 16, 128), (6, 16, 128)]
        assert stop_of(decode.sections[1], "join Q").outputs[0].shape == (1, 16, 576)
        assert stop_of(decode.sections[1], "scores").work.kv_read_bytes == 7 * 576 * 2
        assert not any(stop.kernel == "kv_b_proj" for stop in decode.sections[1].stops)
        assert [phase.sections[1].title for phase in (prefill, decode)] == [
            "MLA, up-projected; gated FFN", "MLA, absorbed; gated FFN",
        ]  # fmt: skip

    def test_experts_get_a_row_for_each_token_and_choice(self) -> None:
        """Mixtral, 6 tokens: 12 rows; 8·(1 - (6/8)^6) = 6.58 experts are touched, each of 3·4096·14336 weights."""
        layer = rk.shapes("mixtral-8x7b", tokens=6).phases[0].sections[1]
        touched = 8 * (1 - 0.75**6)
        rows = stop_of(layer, "expert gate and up"), stop_of(layer, "expert down")
        assert rows[0].outputs[0].shape == (12, 2 * 14336)
        assert sum(stop.work.weight_bytes for stop in rows) == pytest.approx(touched * 3 * 4096 * 14336 * 2)
        assert sum(stop.work.flops for stop in rows) == 2 * 12 * 3 * 4096 * 14336

    def test_the_order_is_that_of_the_forward_pass(self) -> None:
        """Each block reads a normalised copy of the stream and adds to it: x + f(norm(x))."""
        layer = rk.shapes("llama-3-8b", tokens=6).phases[0].sections[1]
        assert [stop.name for stop in layer.stops] == [
            "residual", "norm", "QKV projection", "split heads", "rotary positions", "append to the cache", "scores",
            "causal mask", "softmax", "weighted sum", "concatenate heads", "output projection",
            "residual", "norm", "gate and up", "activation", "down projection",
        ]  # fmt: skip
        add, norm = layer.stops[:2]
        assert (add.work.flops, add.work.bytes) == (6 * 4096, 3 * 6 * 4096 * 2)  # two read, one written
        assert (norm.work.flops, norm.work.bytes) == (4 * 6 * 4096, 6 * 4096 * 2 + 4096 * 2)

    def test_norms_behind_a_block_come_before_its_addition(self) -> None:
        """Gemma-2: x + norm(f(norm(x))); a parallel layer adds both blocks at once."""
        prefill = rk.shapes("gemma-2-2b", tokens=6).phases[0]
        names = [stop.name for stop in prefill.sections[1].stops]
        assert names[0] == "norm"
        assert names[-3:] == ["down projection", "norm", "residual"]
        assert names.count("residual") == 2
        assert prefill.sections[-1].stops[0].name == "final norm"
        for parallel in ("command-r", "falcon-40b"):
            names = [stop.name for stop in rk.shapes(parallel, tokens=6).phases[0].sections[1].stops]
            assert names.count("residual") == 1

    def test_experts_of_a_rank(self) -> None:
        """Mixtral with ep=2: 4 of 8 experts here, whole with tp=2, halves with tp=4; 6 of 12 rows in the mean."""
        whole, half = (rk.shapes("mixtral-8x7b", tokens=6, tp=tp, ep=2).phases[0].sections[1] for tp in (2, 4))
        assert stop_of(whole, "expert gate and up").weights[0].shape == (4, 2 * 14336, 4096)
        assert stop_of(half, "expert gate and up").weights[0].shape == (4, 14336, 4096)
        assert stop_of(whole, "router").outputs[0].shape == (6, 8)  # every rank sees all tokens and all scores
        rows = next(symbol.value for symbol in whole.symbols if symbol.name == "A")
        assert 6 < rows < 12  # of the fullest rank: more than the mean's
        assert stop_of(whole, "expert gate and up").outputs[0].shape == (math.ceil(rows), 2 * 14336)

    def test_tokens_travel_to_the_experts_of_other_replicas(self) -> None:
        """Two replicas of 6 tokens. ep=1 cuts each expert: all 12 are gathered. ep=2: 2 of 8 experts a token, of which
        one is on the other rank with 1 - C(4,2)/C(8,2) = 11/14.
        """
        gathered, sent = (rk.shapes("mixtral-8x7b", tokens=6, batch=2, dp=2, ep=ep).phases[0].sections[1]
                          for ep in (1, 2))  # fmt: skip
        gather, back = stop_of(gathered, "gather tokens"), stop_of(gathered, "return tokens")
        assert (gather.outputs[0].shape, back.outputs[0].shape) == ((12, 4096), (6, 4096))
        assert gather.work.network_bytes == 12 * 4096 * 2 / 2
        assert stop_of(gathered, "expert gate and up").outputs[0].shape == (24, 14336)
        assert stop_of(sent, "dispatch").work.network_bytes == pytest.approx(6 * 11 / 14 * 4096 * 2)
        assert stop_of(sent, "return tokens").work.network_bytes == pytest.approx(6 * 11 / 14 * 4096 * 2)
        assert stop_of(sent, "expert gate and up").weights[0].shape == (4, 2 * 14336, 4096)

    def test_ranks_share_a_context(self) -> None:
        """cp=2 of 8 tokens: a rank computes 4 and scores half of the 36 pairs, and in decode half of 9."""
        prefill, decode = rk.shapes("llama-3-8b", tokens=8, cp=2).phases
        layer, behind = prefill.sections[1], decode.sections[1]
        assert stop_of(layer, "split heads").outputs[0].shape == (4, 32, 128)
        assert stop_of(layer, "context gather").work.network_bytes == 8 * 2 * 8 * 128 * 2 / 2
        assert stop_of(layer, "scores").work.flops == 2 * 32 * 128 * 36 / 2
        assert stop_of(behind, "scores").work.flops == 2 * 32 * 128 * 9 / 2
        names = [stop.name for stop in behind.stops]
        assert names[names.index("context queries") :][:7] == [
            "context queries", "scores", "softmax", "weighted sum", "context results", "context merge",
            "concatenate heads",
        ]  # fmt: skip

    def test_sequence_parallel_norms_have_a_share_of_the_tokens(self) -> None:
        """An all-gather before each block and a reduce-scatter behind it, together as many bytes as an all-reduce."""
        layer = rk.shapes("llama-3-8b", tokens=8, tp=2, sequence_parallel=True).phases[0].sections[1]
        names = [stop.name for stop in layer.stops]
        assert names[:4] == ["residual", "norm", "sequence gather", "QKV projection"]
        assert names[-2:] == ["down projection", "sequence scatter"]
        assert stop_of(layer, "norm").work.flops == 4 * 8 * 4096 / 2
        assert stop_of(layer, "sequence scatter").outputs[0].shape == (8, 2048)
        assert stop_of(layer, "sequence gather").work.network_bytes == 8 * 4096 * 2 / 2

    def test_a_budget_of_keys_shortens_decode(self) -> None:
        """window:4 at 9 tokens: 4·5/2 + 5·4 pairs in the prefill, 4 of the decoding token's 10."""
        prefill, decode = rk.shapes("llama-3-8b", tokens=9, kv_policy="window:4").phases
        assert stop_of(prefill.sections[1], "scores").work.flops == 2 * 32 * 128 * 30
        assert stop_of(decode.sections[1], "scores").work.flops == 2 * 32 * 128 * 4

    def test_stages_hand_the_stream_on(self) -> None:
        """pp=4, tp=2: three times, each rank its half of the columns."""
        for phase, tokens in zip(rk.shapes("llama-3-8b", tokens=6, pp=4, tp=2).phases, (6, 1), strict=True):
            between = next(section for section in phase.sections if "stages" in section.title)
            assert between.title == "between the stages of layers 0–7 | 8–15 | 16–23 | 24–31"
            assert (between.count, between.stops[0].outputs[0].shape) == (3, (tokens, 2048))
            assert between.work.network_bytes == tokens * 2048 * 2

    def test_a_replica_has_its_share_of_the_prompts(self) -> None:
        """5 prompts over 2 replicas: the fuller one has 3."""
        prefill = rk.shapes("llama-3-8b", tokens=6, batch=5, dp=2).phases[0]
        assert stop_of(prefill.sections[1], "split heads").outputs[0].shape == (3, 6, 32, 128)
        assert prefill.cu_seqlens_q == (0, 6, 12, 18)

    def test_packed_prompts(self) -> None:
        """6, 3 and 9 tokens: 21 + 6 + 45 pairs in 36 + 9 + 81 cells; padded, 27 tokens instead of 18."""
        found = rk.shapes("llama-3-8b", tokens=[6, 3, 9])
        assert [(phase.cu_seqlens_q, phase.cu_seqlens_k) for phase in found.phases] == [
            ((0, 6, 9, 18), (0, 6, 9, 18)), ((0, 1, 2, 3), (0, 7, 11, 21)),
        ]  # fmt: skip
        assert found.inputs["padded_tokens"] == 27
        layer, behind = found.phases[0].sections[1], found.phases[1].sections[1]
        assert stop_of(layer, "split heads").outputs[0].shape == (18, 32, 128)
        assert stop_of(layer, "scores").outputs[0].shape == (32, 126)
        assert stop_of(layer, "scores").work.flops == 2 * 32 * 128 * 72
        assert stop_of(behind, "append to the cache").outputs[0].shape == (7 + 4 + 10, 8, 128)
        assert stop_of(behind, "scores").outputs[0].shape == (32, 21)

    def test_packed_is_the_sum_of_its_prompts(self) -> None:
        """Attention adds up over prompts; matrices are read once for all."""
        together = rk.shapes("llama-3-8b", tokens="6,3,9").phases[0].work
        apart = [rk.shapes("llama-3-8b", tokens=n).phases[0].work for n in (6, 3, 9)]
        assert together.flops == pytest.approx(sum(work.flops for work in apart))
        assert together.kv_read_bytes == sum(work.kv_read_bytes for work in apart)
        assert together.weight_bytes == apart[0].weight_bytes

    def test_a_cached_prefix_is_seen_and_not_computed(self) -> None:
        """4 new tokens behind 6: scores [H, 4, 10], 4·6 + 4·5/2 pairs."""
        layer = rk.shapes("llama-3-8b", tokens=10, cached=6).phases[0].sections[1]
        assert stop_of(layer, "scores").outputs[0].shape == (32, 4, 10)
        assert stop_of(layer, "scores").work.flops == 2 * 32 * 128 * (4 * 6 + 10)

    def test_a_rank_of_sixteen_holds_a_copy_of_a_kv_head(self) -> None:
        plan = make_plan(
            load_model("llama-3-70b").value, Deployment(tp=16), System.of(load_accelerator("gb200").value), None
        )
        split = stop_of(walk(plan, Prompts((6,))).phases[0].sections[1], "split heads")
        assert [tensor.symbols for tensor in split.outputs] == [("S", "H/tp", "d"), ("S", "1", "d"), ("S", "1", "d")]
        assert split.outputs[1].shape == (6, 1, 128)
