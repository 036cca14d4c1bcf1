"""Feed-forward blocks, and encoders of images, on accelerators of their own."""

from __future__ import annotations

from math import comb
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rooflinekit as rk
from rooflinekit.estimation.estimator import read_deployment, resolve
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.step import Plan
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.errors import DeploymentError, InputError
from rooflinekit.model.types.workload import Workload

V3 = "deepseek-v3"


def laid_out(model: str, gpu: str = "h100-sxm", calibration: str | None = "none", **scenario: Any) -> Predictor:
    return resolve(model, gpu, read_deployment(scenario), calibration).predictor


def by_place(plan: Plan, batch: Batch, end: str = "expected") -> dict[str, float]:
    found: dict[str, float] = {}
    for timed in plan.time(batch).kernels:
        place = timed.kernel.place
        found[place] = found.get(place, 0.0) + getattr(timed, end)
    return found


def work_of(plan: Plan, batch: Batch, name: str) -> float:
    """Of all accelerators, routers and what is whole on every rank included."""
    boards = plan.deployment.boards
    return sum(k.count * getattr(k, name) * boards(k.place) for k in plan.kernels(batch))


class TestFeedForward:
    """Attention, the cache and the router on some accelerators, feed-forward blocks on others."""

    def test_bytes_between_the_groups_by_hand(self) -> None:
        """16 replicas of 64 sequences; a token goes to 16·(1 − C(240, 8)/C(256, 8)) of 16 groups of 16 experts."""
        plan = laid_out(V3, "h200-sxm", dp=16, ep=16, ffn_gpus=16, dispatch="fp8").plan
        copies = 16 * (1 - comb(240, 8) / comb(256, 8))
        sent = {(k.name, k.count): k for k in plan.kernels(Batch.decode(64.0, 4096.0))}
        there, back, dense = sent["ffn_send", 58], sent["ffn_return", 58], sent["ffn_send", 3]  # of 61 layers
        assert there.network_bytes == pytest.approx(64 * copies * 7168 * (1 + 4 / 128))
        assert back.network_bytes == pytest.approx(64 * copies * 7168 * 2)
        assert there.nic_bytes == there.network_bytes  # 32 GPUs are no domain of 8
        assert dense.network_bytes == 64 * 7168 * 2.0  # a dense block is one place to go to

    def test_the_smaller_group_is_the_busier_end_of_the_link(self) -> None:
        """24 replicas of 8 sequences send 192 tokens; each of 8 accelerators gets 24 of them, once."""
        plan = laid_out("mixtral-8x7b", "h100-sxm", dp=24, ffn_gpus=8).plan
        (sent,) = (k for k in plan.kernels(Batch.decode(8.0, 500.0)) if k.name == "ffn_send")
        assert sent.network_bytes == 24 * 4096 * 2.0

    @given(
        sequences=st.integers(1, 300), context=st.integers(1, 9000), parts=st.integers(1, 5),
        split=st.sampled_from([(2, 2, 1), (4, 2, 2), (2, 8, 1), (8, 4, 2)]),
    )  # fmt: skip
    def test_a_token_takes_as_long_as_the_busiest_group_or_its_own_way(
        self, sequences: int, context: int, parts: int, split: tuple[int, int, int]
    ) -> None:
        """max(m·busiest of attention, blocks and each way; their sum), of a microbatch (arXiv:2504.02263, 4.1)."""
        ffn, dp, ep = split
        predictor = laid_out("mixtral-8x7b", dp=dp, ep=ep, ffn_gpus=ffn, microbatches=parts)
        whole = float(parts * sequences * dp)
        places = by_place(predictor.plan, Batch.decode(float(sequences), float(context)))
        found = predictor.tpot(Workload(whole, 100.0, 2.0, context=float(context)))
        assert set(places) == {"", "ffn", "ffn_send", "ffn_return"}
        expected = max(parts * max(places.values()), sum(places.values()))
        assert found.expected == pytest.approx(expected, rel=1e-9)
        assert found.high == pytest.approx(parts * sum(places.values()), rel=1e-9)  # nothing overlaps

    @pytest.mark.parametrize("model", ["llama-3-8b", "mixtral-8x7b"])
    def test_no_arithmetic_and_no_weight_is_lost(self, model: str) -> None:
        """One accelerator of each group does and holds what one did and held before."""
        apart, whole = (laid_out(model, ffn_gpus=n) for n in (1, 0))
        for batch in (Batch.decode(32.0, 2000.0), Batch.prefill(2.0, 700.0)):
            for name in ("flops", "weight_bytes", "kv_read_bytes", "kv_write_bytes"):
                found = work_of(apart.plan, batch, name)
                assert found == pytest.approx(work_of(whole.plan, batch, name), rel=1e-12)
        attention, blocks = apart.memory.stages
        assert blocks.layout.law.slopes == ()  # no cache
        loading = apart.plan.engine.memory.loading
        assert attention.weight_bytes + blocks.weight_bytes - loading == pytest.approx(
            whole.memory.stages[0].weight_bytes, rel=1e-3
        )

    def test_experts_are_cut_over_their_own_accelerators(self) -> None:
        """Each of 32 holds 8 of DeepSeek-V3's experts, and one of four attention accelerators none."""
        predictor = laid_out(V3, "h200-sxm", dp=4, ep=32, ffn_gpus=32)
        attention, blocks = predictor.memory.stages
        experts = 58 * 8 * 3 * 7168 * 2048  # FP8: a byte each
        shared, dense = 58 * 3 * 7168 * 2048, 3 * 3 * 7168 * 18432
        loading = predictor.plan.engine.memory.loading
        assert blocks.weight_bytes - loading == pytest.approx(experts + shared + dense, rel=1e-3)
        assert attention.weight_bytes < 20e9

    def test_published_throughput_of_step_3_lies_inside(self) -> None:
        """Up to 4,039 tokens/s a GPU at 4K in FP8 within 50 ms (arXiv:2507.19427); its split was not found."""
        asked = {"dp": 24, "ffn_gpus": 16, "ep": 16, "microbatches": 3, "dispatch": "fp8", "engine": "sglang"}
        answer = rk.estimate("step-3", "h800-sxm", batch=192 * 40, context=4096, weights="fp8_block", kv="fp8", **asked)
        assert answer.interval["tpot_ms"][0] < 50.0
        assert 192 / answer.tpot_ms * 1e3 == pytest.approx(4039, rel=0.1)

    def test_a_group_that_is_too_small_is_what_does_not_fit(self) -> None:
        """The experts of DeepSeek-V3 on 4 GPUs of 80 GB: 165 GB each."""
        memory = laid_out(V3, "h100-sxm", dp=8, ep=4, ffn_gpus=4).memory.evaluate(8.0, 100.0, 100.0)
        assert not memory.fits
        assert memory.weight_bytes > 160e9
        assert memory.max_batch == 0.0

    def test_answers_are_per_gpu_of_both_groups(self) -> None:
        answer = rk.estimate("mixtral-8x7b", batch=64, dp=2, ffn_gpus=4, microbatches=2)
        assert answer.inputs["gpus"] == 6
        assert answer.output_tok_s_per_gpu == pytest.approx(answer.output_tok_s / 6)
        assert answer.evidence == "stand-in"
        assert any("4 of 6 GPUs hold the feed-forward blocks" in said for said in answer.warnings)
        low, high = answer.interval["tpot_ms"]
        assert low < answer.tpot_ms < high

    def test_boards_of_both_groups_draw_power(self) -> None:
        """No board less than it draws when idle, none more than its limit."""
        answer = rk.estimate("mixtral-8x7b", batch=64, dp=2, ffn_gpus=4, microbatches=2)
        law = laid_out("mixtral-8x7b").plan.system.accelerator.power
        assert law.idle < answer.energy.power_w_per_gpu < law.limit

    def test_more_microbatches_help_until_a_group_is_busy(self) -> None:
        """The second one fills what the first one leaves; many small ones read all weights again."""
        times = [rk.estimate(V3, "h200-sxm", batch=4096, context=4096, dp=16, ep=16, ffn_gpus=16, microbatches=m,
                             allow_oom=True).tpot_ms for m in (1, 2, 16)]  # fmt: skip
        assert times[1] < 0.75 * times[0]
        assert times[2] > times[1]

    @pytest.mark.parametrize(
        ("scenario", "told"),
        [
            ({"pp": 2}, "ffn_gpus=8 does not go with pp"),
            ({"cp": 2}, "does not go with cp"),
            ({"all_to_all": "deepep", "dp": 8, "ep": 8}, "does not go with all_to_all"),
            ({"lora_rank": 8}, "does not go with lora_rank"),
            ({"ep": 3}, "use ep = 1, 2, 4 or 8"),
        ],
    )
    def test_what_it_does_not_go_with_is_refused(self, scenario: dict[str, Any], told: str) -> None:
        with pytest.raises(DeploymentError, match=told):
            laid_out(V3, "h200-sxm", ffn_gpus=8, **scenario)

    def test_loads_drafts_and_odd_widths_are_refused(self) -> None:
        with pytest.raises(InputError, match="known of a static batch, not under load; leave ffn_gpus out"):
            rk.estimate("llama3-8b", ffn_gpus=1, rate=2.0)
        with pytest.raises(DeploymentError, match="a draft is not known beside ffn_gpus"):
            rk.estimate("llama3-8b", ffn_gpus=1, draft="ngram", draft_tokens=2, acceptance=0.5)
        with pytest.raises(DeploymentError, match="does not divide llama-3-8b's 14336 FFN columns"):
            rk.estimate("llama3-8b", ffn_gpus=5)
        with pytest.raises(InputError, match="unknown option 'ffn_gpus'"):
            rk.simulate("llama3-8b", ffn_gpus=1, rate=2.0)
        table = rk.estimate_frame(pd.DataFrame([{"model": "llama3-8b", "ffn_gpus": 1, "rate": 2.0}]))
        assert "not under load" in table["error"][0]


class TestEncoder:
    """The vision tower on accelerators of its own."""

    def test_whole_images_are_shared_evenly(self) -> None:
        """8 prompts of 4 images on 2 accelerators: half the work on each; one image is not cut."""
        for images, count, share in ((4, 8.0, 0.5), (1, 1.0, 1.0), (3, 1.0, 2 / 3)):
            apart, whole = (laid_out("qwen2.5-vl-7b", images=images, **kind).plan for kind in ({"encoder_gpus": 2}, {}))
            batch = Batch.prefill(count, 3000.0)
            found = sum(k.count * k.flops for k in apart.kernels(batch) if k.place == "encoder")
            alone = sum(k.count * k.flops for k in whole.kernels(batch) if k.name.startswith("vision_"))
            assert found == pytest.approx(share * alone, rel=1e-12)

    def test_the_first_token_is_encoder_then_link_then_prefill(self) -> None:
        """1,369 tokens of an image, 3,584 wide in 16 bit, over NVLink: 9.8 MB."""
        apart, whole = (laid_out("qwen2.5-vl-7b", images=1, **kind) for kind in ({"encoder_gpus": 1}, {}))
        work = Workload(1.0, 1369.0 + 200.0, 16.0)
        sent = 1369 * 3584 * 2 / 450e9
        assert apart.ttft(work).expected == pytest.approx(whole.ttft(work).expected + sent, rel=1e-9)
        assert apart.tpot(work) == whole.tpot(work)

    def test_what_layers_attend_to_beside_the_prompt_travels_too(self) -> None:
        """Llama-3.2-Vision puts no token of an image into the prompt: 4 tiles, 1,601 patches of each."""
        plan = laid_out("llama-3.2-11b-vision", images=1, encoder_gpus=1).plan
        sent = next(kernel for kernel in plan.kernels(Batch.prefill(1.0, 200.0)) if kernel.name == "image_send")
        assert sent.network_bytes == 4 * 1601 * 4096 * 2.0

    def test_the_tower_leaves_the_memory_of_the_model(self) -> None:
        apart, whole = (laid_out("qwen2.5-vl-7b", images=1, **kind) for kind in ({"encoder_gpus": 1}, {}))
        model, encoder = apart.memory.stages
        tower = whole.plan.model.tower * 2.0
        assert whole.memory.stages[0].weight_bytes - model.weight_bytes == pytest.approx(tower, rel=1e-9)
        assert encoder.weight_bytes - whole.plan.engine.memory.loading == pytest.approx(tower, rel=1e-9)

    def test_its_gpus_count(self) -> None:
        answer = rk.estimate("qwen2.5-vl-7b", images=2, encoder_gpus=2)
        assert answer.inputs["gpus"] == 3
        assert answer.output_tok_s_per_gpu == pytest.approx(answer.output_tok_s / 3)

    def test_it_needs_images_and_no_stages(self) -> None:
        with pytest.raises(DeploymentError, match="no images come; add images=N"):
            laid_out("qwen2.5-vl-7b", encoder_gpus=1)
        with pytest.raises(DeploymentError, match="encoder_gpus=1 does not go with pp"):
            laid_out("qwen2.5-vl-7b", encoder_gpus=1, images=1, pp=2)
