"""Images of a prompt: tokens by each model's preprocessor, the tower's weights and time, the same in every reader."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

import rooflinekit as rk
from rooflinekit.estimation.estimator import ask
from rooflinekit.load.lengths import Longer, Uniform
from rooflinekit.load.table import build_table
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.errors import DeploymentError, InputError, SpecError
from rooflinekit.model.types.vision import Images, Vision
from rooflinekit.specs import load_model
from rooflinekit.specs.config.importer import model_from_config
from rooflinekit.specs.config.vision import read_vision

SIGLIP = {"model_type": "siglip_vision_model"}
STATED: tuple[tuple[str, int, dict[str, Any], dict[str, Any], int], ...] = (
    # model, width of its text, vision_config, keys around it, weights of tower and projector by transformers 5.23
    ("qwen2_vl", 3584, {}, {}, 675_759_104),
    ("qwen2_5_vl", 3584, {}, {}, 676_550_144),
    ("qwen2_5_vl", 8192, {"intermediate_size": 3456}, {}, 704_573_696),
    ("qwen3_vl", 4096, {"deepstack_visual_indexes": [8, 16, 24]}, {}, 576_388_336),
    ("internvl", 3584, {"image_size": [448, 448], "patch_size": [14, 14]}, {}, 331_479_040),
    ("llava", 4096, {"model_type": "clip_vision_model"}, {}, 324_487_168),
    ("llava", 5120, {"model_type": "pixtral"}, {"vision_feature_layer": -1}, 434_957_312),
    ("llava_next", 4096, {"model_type": "clip_vision_model"}, {}, 324_491_264),
    ("llava_onevision", 3584, {**SIGLIP, "num_hidden_layers": 26}, {}, 414_732_320),
    ("mistral3", 5120, {"model_type": "pixtral"}, {}, 438_958_080),
    ("gemma3", 2560, SIGLIP, {}, 419_816_304),
    ("llama4", 5120, {}, {}, 871_932_416),
    ("glm4v_moe", 4096, {}, {}, 858_681_856),
    ("mllama", 4096, {"image_size": 560}, {}, 895_028_755),  # by hand; the index has them and no others beside the text
)


def vision(kind: str, text: int = 4096, tower: dict[str, Any] | None = None, **around: Any) -> Vision:
    found = read_vision({"model_type": kind, "vision_config": tower or {}, **around}, text, "config.json")
    assert found is not None
    return found


@pytest.mark.parametrize(("kind", "text", "tower", "around", "weights"), STATED)
def test_towers_are_exact_to_the_last_weight(
    kind: str, text: int, tower: dict[str, Any], around: dict[str, Any], weights: int
) -> None:
    assert vision(kind, text, tower, **around).parameters == weights


@pytest.mark.parametrize(
    "name", ["qwen2.5-vl-7b", "gemma-3-12b", "llama-3.2-11b-vision", "llama-4-scout", "mistral-small-3.1-24b"]
)
def test_towers_of_the_library_are_what_its_safetensors_indices_leave(name: str) -> None:
    """`tower` is what the index has beside the text; a file whose `vision` has other weights is refused."""
    model = load_model(name).value
    assert model.vision is not None and model.vision.parameters == model.tower > 0


@pytest.mark.parametrize(
    ("kind", "size", "tokens"),
    [
        ("qwen2_5_vl", (1024, 1024), 37 * 37),  # 1024/28 = 36.57, to the nearest
        ("qwen2_5_vl", (28, 28), 4),  # 784 pixels are scaled up to 56 x 56
        ("qwen2_5_vl", (8000, 8000), 128 * 128),  # √12,845,056 = 3584 = 128 x 28
        ("qwen3_vl", (1024, 1024), 32 * 32),
        ("glm4v", (1024, 1024), 37 * 37),
        ("glm4v", (8000, 8000), 78 * 78),  # √4,816,896 = 2194.7, 78.4 units
        ("llava", (1024, 1024), 576), ("llava", (30, 500), 576),  # 24 x 24, whatever comes
        ("llava_next", (672, 672), 576 + 48 * 49),  # the whole image, and 48 rows of 48 and a mark
        ("llava_next", (1000, 500), 576 + 24 * 49),  # 672 x 336: nothing to unpad
        ("mistral3", (1024, 1024), 37 * 38),  # rows of ⌈1024/28⌉ and a mark
        ("mistral3", (3080, 1540), 28 * 56),  # the long side to 1540: 55 x 28, and marks
        ("gemma3", (640, 480), 256),
        ("internvl", (448, 448), 256), ("internvl", (896, 448), 3 * 256),  # two tiles and the whole
        ("internvl", (1024, 1024), 10 * 256),  # 3 x 3: larger than half of nine tiles
        ("llama4", (336, 336), 145), ("llama4", (672, 336), 2 * 145 + 145),
        ("kimi_vl", (1792, 1792), 32 * 32),  # 128² patches are four times the limit
        ("kimi_k25", (1792, 1792), 64 * 64),  # and are K2.5's limit itself
        ("kimi_k3", (3584, 3584), 128 * 128),  # 256² patches are K3's limit
        ("kimi_k25", (1920, 1080), 69 * 39), ("kimi_k25", (30_000, 200), 256 * 2),  # 512 patches a side at most
        ("deepseek_vl_v2", (768, 384), 14 * 15 + 1 + 14 * 29),
    ],
)  # fmt: skip
def test_tokens_by_hand(kind: str, size: tuple[int, int], tokens: int) -> None:
    around = {"vision_config": {"model_type": "pixtral"}} if kind == "mistral3" else {}
    found = read_vision({"model_type": kind, "vision_config": {}, **around}, 4096, "config.json")
    assert found is not None and found.tokens(Images(1, *size)) == tokens


def test_heads_may_be_wider_than_the_stream() -> None:
    """Kimi-K3's tower of 401 million: 12 heads of 128 over a width of 1024, no biases, a norm behind the projector."""
    hidden, attended, width = 1024, 12 * 128, 4096
    layer = 4 * hidden * attended + 2 * hidden * width + 2 * hidden
    tower = 3 * 14**2 * hidden + 64 * 64 * hidden + 27 * layer + hidden
    model = load_model("kimi-k3").value
    assert model.tower == tower + 4096 * 4096 + 4096 * 7168 + 7168
    assert tower == pytest.approx(401e6, rel=1e-3)
    question = ask("kimi-k3", "b300-sxm", {"tp": 8, "images": 1, "image_size": "896x896", "calibration": "none"})
    kernels = question.resolved.plan.kernels(Batch.prefill(1.0, question.work.isl))
    attention = next(kernel for kernel in kernels if kernel.name == "vision_attention")
    assert attention.flops == 4 * (64 * 64) ** 2 * attended  # 8 ranks do not divide 12 heads: each does all


def test_more_images_than_it_cuts_stay_whole() -> None:
    """DeepSeek-VL2 cuts at most two images into tiles."""
    tower = vision("deepseek_vl_v2")
    each = 14 * 15 + 1 + 14 * 15
    assert tower.tokens(Images(3, 768, 384)) == 3 * each < tower.tokens(Images(2, 768, 384)) * 1.5


def test_the_encoder_by_hand() -> None:
    """Qwen2.5-VL-7B on 1024 x 1024: 74 x 74 patches of 1280 through 32 layers, four of which attend to all of them."""
    patches, hidden, width = 74 * 74, 1280, 3420
    question = ask("qwen2.5-vl-7b", "h100-sxm", {"images": 1, "isl": 100, "calibration": "none"})
    assert question.work.isl == 100 + patches / 4
    kernels = question.resolved.plan.kernels(Batch.prefill(1.0, question.work.isl))
    seen = {kernel.name: kernel for kernel in kernels if kernel.name.startswith("vision")}
    flops = sum(kernel.count * kernel.flops for kernel in seen.values() if kernel.family == "gemm")
    layer = 2 * patches * (4 * hidden**2 + 3 * hidden * width)
    rest = 2 * patches * 3 * 2 * 14**2 * hidden + 2 * patches / 4 * (5120 * 5120 + 5120 * 3584)
    assert flops == pytest.approx(32 * layer + rest)
    full, windows = seen["vision_attention"], seen["vision_window_attention"]
    assert (full.count, windows.count) == (4, 28)
    assert full.flops == 4 * patches**2 * hidden
    assert windows.flops == 4 * patches * 64 * hidden  # windows of 8 x 8 patches
    assert all(kernel.variant == "encoder" for kernel in (full, windows))


@pytest.mark.parametrize(
    ("size", "tiles"), [((560, 560), 1), ((1120, 560), 2), ((400, 1600), 3), ((300, 1700), 4), ((1024, 1024), 4)]
)
def test_images_beside_the_prompt_by_hand(size: tuple[int, int], tiles: int) -> None:
    """Llama-3.2-Vision keeps 1,601 positions a tile of 560 pixels; its tower reads four tiles of 1,608, padded."""
    tower = load_model("llama-3.2-11b-vision").value.vision
    assert tower is not None
    assert (tower.positions(Images(2, *size)), tower.tokens(Images(2, *size))) == (2 * tiles * 1601, 0)
    assert (tower.cut(Images(1, *size)).patches, tower.layers) == (4 * 1608, 40)


def test_layers_that_attend_to_images_by_hand() -> None:
    """8 of 40 layers: keys and values of 6,404 positions, made once, then read by every sequence in every step."""
    seen, text = ({"images": count, "isl": 100, "calibration": "none"} for count in (1, 0))
    plan = ask("llama-3.2-11b-vision", "h100-sxm", seen).resolved.plan
    assert plan.prompt(100.0) == 100.0
    positions, keys = 6404, 8 * 2 * 8 * 128  # of eight layers
    prefill = {kernel.name: kernel for kernel in plan.kernels(Batch.prefill(3.0, 100.0))}
    decode = {kernel.name: kernel for kernel in plan.kernels(Batch.decode(3.0, 100.0))}
    assert decode["q_norm"].weight_bytes == (128 + 2) * 2  # a scale for each element of a head, and two gates
    made = prefill["cross_kv_proj"]
    assert made.count * made.flops == 2 * 3 * positions * 4096 * keys
    assert "cross_kv_proj" not in decode
    for kernels, tokens in ((prefill, 100), (decode, 1)):
        across = kernels["cross_attention"]
        assert across.count * across.flops == 8 * 4 * 3 * tokens * positions * 4096
        assert across.count * across.kv_read_bytes == 3 * positions * keys * 2
    with_image, without = rk.estimate("llama-3.2-11b-vision", **seen), rk.estimate("llama-3.2-11b-vision", **text)
    assert with_image.memory.kv_bytes - without.memory.kv_bytes == positions * keys * 2
    assert with_image.memory.weight_bytes == without.memory.weight_bytes
    assert with_image.memory.max_batch < without.memory.max_batch
    assert "cross_attention" not in {kernel.name for kernel in without.decode.kernels}
    assert any("6,404 positions" in warning for warning in with_image.warnings)


@pytest.mark.parametrize(("model", "asked"), [("llama-3.2-11b-vision", {"images": 1}), ("whisper-large-v3", {})])
def test_a_token_waits_for_attention_to_an_encoder(model: str, asked: dict[str, Any]) -> None:
    """The mean step over two tokens is the step itself, alone and as a row of a table."""
    asked = {"isl": 20, "osl": 2, **asked}
    answer = rk.estimate(model, calibration="none", **asked)
    assert answer.tpot_ms == pytest.approx(answer.decode.time_ms, rel=1e-6)
    row = rk.estimate_frame(pd.DataFrame([{"model": model, "calibration": "none", **asked}]))
    assert row["tpot_ms"].tolist() == pytest.approx([answer.tpot_ms], rel=1e-12)


@pytest.mark.parametrize("kv", [None, "fp8"])
@pytest.mark.parametrize(("model", "asked"), [("llama-3.2-11b-vision", {"images": 1}), ("whisper-large-v3", {})])
def test_memory_holds_the_keys_of_an_encoder_as_steps_read_them(model: str, asked: dict[str, Any], kv: str) -> None:
    found = rk.estimate(model, isl=64, osl=1, context=64, batch=3, kv=kv, engine="ideal", **asked)
    kernels = [kernel for kernel in found.decode.kernels if kernel.name == "cross_attention"]
    own = found.memory.kv_bytes_per_token * (64 + 1)
    assert found.memory.kv_bytes == pytest.approx(sum(k.kv_read_bytes for k in kernels) + 3 * own, rel=1e-3)


def test_images_take_time_and_cache_and_no_weights() -> None:
    bare, text = rk.estimate("qwen2.5-vl-7b", isl=1469), rk.estimate("qwen2.5-vl-7b", isl=100)
    seen = rk.estimate("qwen2.5-vl-7b", isl=100, images=1)
    assert seen.inputs["isl"] == 100 and seen.inputs["image_tokens"] == 1369
    assert seen.ttft_ms > bare.ttft_ms > text.ttft_ms
    assert seen.tpot_ms == pytest.approx(bare.tpot_ms)
    assert seen.memory.kv_bytes == bare.memory.kv_bytes
    assert seen.memory.weight_bytes == text.memory.weight_bytes
    two = rk.estimate("qwen2.5-vl-7b", isl=100, images=2)
    assert two.ttft_ms - seen.ttft_ms > 0.5 * (seen.ttft_ms - text.ttft_ms)


def test_the_tower_of_a_config_takes_memory() -> None:
    """Engines load it with the rest; it was left out of every config.json."""
    text = {
        "model_type": "qwen3_vl_text", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 8,
        "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 1000, "max_position_embeddings": 4096,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    }  # fmt: skip
    whole = {"model_type": "qwen3_vl", "text_config": text, "vision_config": {"depth": 27, "out_hidden_size": 64}}
    loaded = model_from_config(whole, name="seen", origin="config.json")
    assert loaded.value.vision is not None and loaded.value.tower == loaded.value.vision.parameters > 0
    assert not any("multimodal" in warning for warning in loaded.warnings)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"model": "llama-3-8b", "images": 1}, "reads text alone"),
        ({"model": "granite-vision-3.3-2b", "images": 1}, "not described"),
        ({"model": "gemma-3-4b", "images": 1, "image_size": "big"}, "write width x height"),
        ({"model": "gemma-3-4b", "images": 1, "image_size": "1x999"}, "at most 200 times"),
        ({"model": "gemma-3-4b", "images": -1}, "at least 0"),
    ],
)
def test_what_makes_no_sense_is_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        rk.estimate(**keys)


def test_a_tower_that_cannot_be_is_refused() -> None:
    with pytest.raises(SpecError, match="hidden_size = -3"):
        vision("qwen3_vl", 4096, {"hidden_size": -3})
    with pytest.raises(SpecError, match="heads do not divide"):
        vision("qwen3_vl", 4096, {"num_heads": 7})
    with pytest.raises(SpecError, match="image_grid_pinpoints"):
        vision("llava_next", 4096, {}, image_grid_pinpoints=[[1, 2]])


def test_under_load_the_encoder_takes_its_share() -> None:
    """Prompts of 1,569 tokens at a third of the knee, encoder and all."""
    asked: dict[str, Any] = {"isl": 200, "osl": 64, "images": 1, "rate": 5.0}
    found = rk.estimate("qwen2.5-vl-7b", requests=600, **asked)
    played = rk.simulate("qwen2.5-vl-7b", requests=600, **asked)
    assert played.inputs["image_tokens"] == 1369
    assert (found.ttft_ms, found.tpot_ms) == (played.ttft_ms.mean, played.tpot_ms.mean)
    without = rk.estimate("qwen2.5-vl-7b", **asked | {"images": 0, "isl": 1569})
    assert found.load is not None and without.load is not None
    assert found.load.knee_rate < 0.9 * without.load.knee_rate


def test_a_table_of_steps_charges_each_prompt_once() -> None:
    """A prompt in one step or in two pieces: its images are encoded once, with the last."""
    plan = ask("qwen2.5-vl-7b", "h100-sxm", {"images": 1}).resolved.plan
    table = build_table(plan, 8, 4096)
    assert table(0, 0, 1569) == pytest.approx(plan.time(Batch.prefill(1.0, 1569.0)).expected, rel=1e-4)
    first, last = table.step(0, 0, ((800, 0),), 0), table.step(0, 0, ((769, 800),), 1)
    pieces = plan.time(Batch.chunk(1.0, 800.0, 0.0, False)), plan.time(Batch.chunk(1.0, 769.0, 800.0, True))
    assert [first, last] == pytest.approx([piece.expected for piece in pieces], rel=0.02)
    assert len(table.encoded) > 2 and table.encoded[2] < 2.0 * table.encoded[1] < 1.2 * table.encoded[2]


def test_a_plan_carries_images() -> None:
    asked: dict[str, Any] = {"rate": 10, "isl": 200, "osl": 64, "tp": [1], "disaggregated": False}
    bare, seen = rk.plan("gemma-3-4b", **asked), rk.plan("gemma-3-4b", images=4, **asked)
    assert seen.traffic["isl_mean"] == bare.traffic["isl_mean"] == 200
    assert seen.best.fleets[0].scenario["images"] == 4
    assert seen.best.fleets[0].capacity < 0.7 * bare.best.fleets[0].capacity
    with pytest.raises(DeploymentError, match="reads text alone"):
        rk.plan("llama-3-8b", images=1, **asked)


def test_a_length_and_its_images() -> None:
    length = Longer(Uniform(1, 6), 10)  # a die and ten
    assert length.mean == 13.5 and length.quantile(0.5) == 13.0
    assert length.second_moment - length.mean**2 == pytest.approx(35 / 12)


def test_rows_of_a_table_have_their_own_images() -> None:
    rows = pd.DataFrame({"model": "gemma-3-4b", "isl": 100, "images": [0, 1, 2]})
    found = rk.estimate_frame(rows)
    single = [rk.estimate("gemma-3-4b", isl=100, images=count).ttft_ms for count in (0, 1, 2)]
    assert found["ttft_ms"].tolist() == pytest.approx(single, rel=1e-12)


def test_an_explanation_adds_up() -> None:
    found = rk.explain("gemma-3-4b", "ttft", isl=100, images=1)
    text = str(found)
    assert all(f"├ {name} = " in text for name in ("vision_patch_embed", "vision_attention", "vision_projector_1"))
    assert found.largest_gap < 1e-12
