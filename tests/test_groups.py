"""Feed-forward blocks, and encoders of images, on accelerators of their own."""

from __future__ import annotations

from itertools import pairwise
from math import comb
from random import Random
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rooflinekit as rk
from rooflinekit.estimation.estimator import read_deployment, resolve
from rooflinekit.load.scene import EncoderStation
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.serving.encoding import encoders_of, served
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
        assert (there.shape.experts, dense.shape.experts) == (256, 1)

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


GEMMA = {"images": 4, "isl": 100, "osl": "uniform:30-90"}  # 4,096 patches of an image become 256 tokens


class TestEncodersUnderLoad:
    """Requests queue for accelerators that encode images, before their prompts come to the model."""

    def test_parts_go_to_who_is_free_first(self) -> None:
        """Two accelerators, 2 s and 1 s of work a request, and half a second on the way."""
        station = EncoderStation(2, (2.0, 1.0), 0.5)
        assert [station.done(now) for now in (0.0, 0.0, 1.0, 9.0)] == [2.5, 3.5, 5.5, 11.5]
        assert (station.busy, station.encoded) == (12.0, 8)

    @pytest.mark.parametrize("load", [0.3, 0.8])
    def test_the_wait_is_that_of_a_queue_in_front_of_them(self, load: float) -> None:
        """Poisson arrivals and one time for all: M/D/1 waits half of rho/(1 - rho)."""
        draw, station, now, waited = Random(1), EncoderStation(1, (1.0,), 0.0), 0.0, 0.0
        for _ in range(count := 200_000):
            now += draw.expovariate(load)
            waited += station.done(now) - now - 1.0
        assert load / (1.0 - load) / 2.0 == pytest.approx(waited / count, rel=0.05)

    def test_one_accelerator_waits_half_a_service_at_half_load(self) -> None:
        """M/D/1: W = rho/(1 - rho) * s/2, and s is the knee's inverse where the encoder is the limit."""
        knee = rk.estimate("gemma-3-4b", rate=1.0, encoder_gpus=1, **GEMMA).load.knee_rate
        load = rk.estimate("gemma-3-4b", rate=knee / 2.0, encoder_gpus=1, **GEMMA).load
        assert load.encoders_busy == pytest.approx(0.5, rel=0.05)
        assert load.encoders_wait_ms == pytest.approx(1e3 / knee / 2.0, rel=0.15)  # of 2,000 requests

    def test_the_knee_is_the_lesser_of_both(self) -> None:
        """One accelerator takes twice as long as two with two of four images each; eight never are the limit."""
        knees = {n: rk.estimate("gemma-3-4b", rate=1.0, encoder_gpus=n, **GEMMA).load.knee_rate for n in (1, 2, 8)}
        text = rk.estimate("gemma-3-4b", rate=1.0, isl=100 + 4 * 256, osl=GEMMA["osl"]).load.knee_rate
        plan = served(laid_out("gemma-3-4b", calibration=None, images=4, encoder_gpus=1)).plan
        encoders = encoders_of(plan)
        assert encoders is not None
        assert knees[1] == pytest.approx(1.0 / encoders.parts[0][1].expected, rel=1e-6)
        assert 1.9 < knees[2] / knees[1] < 2.0
        assert knees[8] == pytest.approx(text, rel=1e-3)  # tokens of images are in tables of steps of their own

    def test_a_lone_user_meets_the_encoder_the_link_and_a_prompt_without_images(self) -> None:
        """Two images, so that kernels and not their launches take the time of the encoder."""
        apart = rk.estimate("qwen2.5-vl-7b", concurrency=1, images=2, encoder_gpus=1, isl=200, osl=16)
        text = rk.estimate("qwen2.5-vl-7b", concurrency=1, isl=200 + 2 * 1369, osl=16)
        plan = laid_out("qwen2.5-vl-7b", calibration=None, images=2, encoder_gpus=1).plan
        step = plan.time(Batch.prefill(1.0, 200.0 + 2 * 1369.0))
        before = [k for k in step.kernels if k.kernel.place == "encoder" or k.kernel.name == "image_send"]
        assert apart.ttft_ms - text.ttft_ms == pytest.approx(1e3 * sum(k.expected for k in before), rel=1e-6)
        assert apart.tpot_ms == pytest.approx(text.tpot_ms, rel=1e-9)
        assert apart.load.encoders_wait_ms < 1e-6

    @pytest.mark.parametrize(
        ("gpus", "load"), [(1, {"rate": 12.0}), (2, {"rate": 20.0}), (1, {"concurrency": 4}), (3, {"concurrency": 64})]
    )
    def test_estimate_and_simulate_say_the_same(self, gpus: int, load: dict[str, float]) -> None:
        asked = GEMMA | load | {"encoder_gpus": gpus, "requests": 400, "seed": 3}
        found, run = rk.estimate("gemma-3-4b", **asked), rk.simulate("gemma-3-4b", **asked)
        encode = next(use for use in run.replicas if use.role == "encode")
        assert found.ttft_ms == run.ttft_ms.mean
        assert found.load.encoders_busy == pytest.approx(encode.utilisation)
        assert found.energy.power_w_per_gpu == pytest.approx(run.power_w_per_gpu, rel=0.05)
        assert encode.replicas == gpus
        assert found.inputs["gpus"] == run.inputs["gpus"] == 1 + gpus

    @pytest.mark.parametrize("load", [{"rate": 12.0}, {"concurrency": 8}, {"concurrency": 48}])
    def test_more_accelerators_never_are_slower(self, load: dict[str, float]) -> None:
        """Up to the scale-up domain, beyond which embeddings travel over network cards."""
        found = [rk.estimate("gemma-3-4b", encoder_gpus=n, **load, **GEMMA | {"images": 3}) for n in range(1, 8)]
        waits = [each.load.encoders_wait_ms for each in found]
        assert all(later <= earlier for earlier, later in pairwise(waits))
        assert found[-1].ttft_ms < found[0].ttft_ms
        knees = [each.load.knee_rate for each in found]
        assert all(later >= earlier * (1 - 2e-3) for earlier, later in pairwise(knees))

    def test_bounds_lie_below_and_waits_are_in_no_bound(self) -> None:
        found = rk.estimate("gemma-3-4b", encoder_gpus=1, rate=15.0, **GEMMA)
        bound = rk.estimate("gemma-3-4b", encoder_gpus=1, rate=1e-3, calibration="none", **GEMMA)
        assert bound.ttft_ms * (1 - 1e-6) < found.bound["ttft_ms"] < found.ttft_ms
        assert found.interval is not None
        assert found.interval["ttft_ms"][0] < found.ttft_ms

    def test_users_who_begin_at_once_wait_for_half_of_the_others(self) -> None:
        """16 users send one request each: the first tokens are those of a queue that only empties."""
        found = rk.estimate("gemma-3-4b", encoder_gpus=1, concurrency=16, requests=16, **GEMMA)
        run = rk.simulate("gemma-3-4b", encoder_gpus=1, concurrency=16, requests=16, **GEMMA)
        assert found.ttft_ms == pytest.approx(run.ttft_ms.mean, rel=0.05)

    def test_full_encoders_leave_the_model_idle(self) -> None:
        """Above the knee of the encoder tokens take what they take at that knee, not on a full engine."""
        over, run = (
            predict("gemma-3-4b", encoder_gpus=1, rate=30.0, **more, **GEMMA)
            for predict, more in ((rk.estimate, {}), (rk.simulate, {"requests": 2000}))
        )
        assert not over.load.stable
        assert run.diverges
        assert over.tpot_ms == pytest.approx(run.tpot_ms.mean, rel=0.12)

    def test_tables_explanations_and_estimates_say_the_same(self) -> None:
        asked = {"images": 4, "encoder_gpus": 2, "isl": 100, "osl": 60}
        for load in ({"rate": 20.0}, {"concurrency": 20}):
            found = rk.estimate("gemma-3-4b", **asked, **load)
            row = rk.estimate_frame(pd.DataFrame([{"model": "gemma-3-4b", **asked, **load}])).iloc[0]
            assert row["error"] == ""
            assert row["ttft_ms"] == pytest.approx(found.ttft_ms, rel=1e-12)
            assert row["knee_rate"] == pytest.approx(found.load.knee_rate, rel=1e-12)
            assert rk.explain("gemma-3-4b", metric="ttft", **asked, **load).value == pytest.approx(found.ttft_ms)

    @pytest.mark.slow
    def test_a_plan_chooses_how_many(self) -> None:
        """Each number is a candidate whose accelerators are all counted and paid."""
        answer = rk.plan("gemma-3-4b", rate=20, images=4, isl=100, osl=60, slo="p95 ttft<400ms", tp=[1],
                         encoder_gpus=[0, 1, 2], disaggregated=False)  # fmt: skip
        seen = {}
        for candidate in answer.candidates:
            fleet = candidate.fleets[0]
            seen[own := fleet.scenario.get("encoder_gpus", 0)] = candidate.gpus
            assert candidate.gpus == fleet.replicas * (1 + own)
        assert seen.keys() == {0, 1, 2}
        assert "+ 2 for images" in str(answer)

    @pytest.mark.parametrize(
        ("predict", "asked", "told"),
        [
            (rk.simulate, {"rate": 1.0}, "no images come; add images=N"),
            (rk.simulate, {"rate": 1.0, "images": 1, "prefill_replicas": 1}, "beside prefill_replicas is not known"),
            (rk.plan, {"rate": 1.0}, "none come; add images=N, or leave encoder_gpus out"),
            (rk.plan, {"rate": 1.0, "images": 1, "autoscale": True}, "does not go with autoscale"),
            (rk.plan, {"rate": 1.0, "images": 1, "ffn_gpus": 1}, "unknown option 'ffn_gpus'"),
        ],
    )
    def test_what_they_do_not_go_with_is_refused(self, predict: Any, asked: dict[str, Any], told: str) -> None:
        with pytest.raises(InputError, match=told):
            predict("gemma-3-4b", encoder_gpus=1, **asked)
