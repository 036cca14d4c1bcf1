"""The decoder has the model's weights and shapes, and what it cannot run it refuses by name."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra `gpu` (torch)")

import torch

from rooflinekit.evidence.kernel_fit.groups import read_measurements
from rooflinekit.evidence.steps import as_launched, compare_model
from rooflinekit.model.parameter_count import count_parameters
from rooflinekit.model.types.errors import ArchitectureError
from rooflinekit.specs import load_model
from rooflinekit.validate import model_run, suite
from rooflinekit.validate.attention import Pattern, Room
from rooflinekit.validate.attribution import profile_step
from rooflinekit.validate.checks_model import TINY
from rooflinekit.validate.compare_model import breakdown_table, comparison_table, explain, model_report
from rooflinekit.validate.decoder import Decoder, build, refuse_unsupported
from rooflinekit.validate.device import open_device
from rooflinekit.validate.model_run import compiled, open_bench, thinned
from rooflinekit.validate.points import GRID, StepPoint, remaining, spread_layers
from rooflinekit.validate.record import FILE, Recorder, header

CPU = torch.device("cpu")
MODELS = sorted(path.stem for path in (Path(__file__).parents[2] / "model_specs").glob("*.yaml"))
BY_NAME = {model.name: model for model in TINY}
REFUSED = {
    "a.x-k1": "Layer with vectors=7168 is", "apertus-8b": "DenseFFN with activation=2 is",
    "arctic": "Layer with norms=3 is", "bloom-7b1": "ALiBi is", "deepseek-v3.2": "LatentAttention with indexer is",
    "gemma-3n-e4b": "Model with token_rows=262144 is", "gemma-4-26b-a4b": "Layer with norms=8 is",
    "gpt-oss-20b": "Attention with sinks=True is", "jamba-v0.1": "mamba layers are",
    "laguna-xs.2": "Attention with head_gated=True is", "llama-3.2-11b-vision": "Model with extra_rows=8 is",
    "longcat-flash": "Layer with vectors=1573120 is", "whisper-large-v3": "Model with encoder is",
}  # fmt: skip
RUN = {"command-r-08-2024", "dbrx", "deepseek-r1", "deepseek-v2-lite", "falcon-7b", "gemma-3-27b", "gpt2-xl", "grok-1",
       "llama-3-8b", "llama-4-scout", "mixtral-8x7b", "phi-3.5-moe", "qwen3-30b-a3b"}  # fmt: skip


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def one_of_each(name: str) -> Any:
    """A shipped model with one layer of each kind."""
    model = load_model(name).value
    return replace(model, layers=tuple(model.layer_counts))


class TestWeights:
    @pytest.mark.parametrize("name", MODELS)
    def test_every_shipped_model_has_its_weights_or_is_refused(self, name: str) -> None:
        """Modules made by hand here, and operations that are costed there, hold the same number of weights."""
        model = one_of_each(name)
        with torch.device("meta"):
            try:
                decoder = Decoder(model)
            except ArchitectureError as error:
                assert name not in RUN
                assert re.fullmatch(f"{name}: .{{5,80}} predicted but not run", str(error))
                return
        assert sum(weight.numel() for weight in decoder.parameters()) == count_parameters(model).total

    @pytest.mark.parametrize("name", REFUSED)
    def test_what_is_refused_is_named(self, name: str) -> None:
        with pytest.raises(ArchitectureError, match=f"^{name}: {REFUSED[name]} predicted but not run$"):
            refuse_unsupported(load_model(name).value)

    def test_models_that_run_are_shipped(self) -> None:
        assert set(MODELS) >= RUN

    def test_seeds_differ_and_repeat(self) -> None:
        one, same, other = (build(TINY[0], CPU, torch.float32, seed) for seed in (0, 0, 1))
        weight = "layers.1.ffn.down_proj.weight"
        assert torch.equal(one.get_parameter(weight), same.get_parameter(weight))
        assert not torch.equal(one.get_parameter(weight), other.get_parameter(weight))

    @pytest.mark.parametrize("model", TINY, ids=BY_NAME)
    def test_activations_stay_near_unit_size_at_any_depth(self, model: Any) -> None:
        """Logits of a deep random model are as large as those of a shallow one, and all distinct."""
        tokens = torch.arange(24)[None]
        for depth in (1, 24):
            logits = build(replace(model, layers=model.layers[:1] * depth), CPU, torch.float32)(tokens)
            assert 0.3 < float(logits.std()) < 3.0
            assert float((logits[0, 1:] - logits[0, :-1]).std()) > 0.3


class TestShapes:
    def test_hooks_see_the_shapes_of_every_matrix_and_of_attention(self) -> None:
        """GQA: B=2, S=5 new tokens after 7, T=12 keys, D=64, 8 query and 2 KV heads of 16, FFN 96, vocabulary 128."""
        decoder = build(BY_NAME["GQA, rotary"], CPU, torch.float32)
        seen: dict[str, Any] = {}
        for name, module in decoder.named_modules():
            module.register_forward_hook(
                lambda module, inputs, output, name=name: seen.update({name: [tuple(x.shape) for x in (*inputs, output)
                                              if isinstance(x, torch.Tensor)]})
            )  # fmt: skip
        cache = decoder.caches(Room(2, 12, torch.float32, CPU))
        decoder(torch.ones(2, 7, dtype=torch.long), cache)
        decoder(torch.ones(2, 5, dtype=torch.long), cache, 7)
        assert seen["layers.0.mixer.qkv_proj"] == [(2, 5, 64), (2, 5, 8 * 16 + 2 * 2 * 16)]
        assert seen["layers.1.mixer.core"] == [(2, 8, 5, 16), (2, 2, 12, 16), (2, 2, 12, 16), (2, 8, 5, 16)]
        assert seen["layers.1.mixer.o_proj"] == [(2, 5, 128), (2, 5, 64)]
        assert seen["layers.0.ffn.gate_up_proj"] == [(2, 5, 64), (2, 5, 192)]
        assert seen["layers.0.ffn.down_proj"] == [(2, 5, 96), (2, 5, 64)]
        assert seen["lm_head"] == [(2, 5, 64), (2, 5, 128)]

    def test_mla_decodes_in_the_latent_space(self) -> None:
        """One token: queries and the shared key are R + r = 32 wide; a prompt: heads of n + r = 24."""
        decoder = build(BY_NAME["MLA"], CPU, torch.float32)
        seen = []
        core = decoder.get_submodule("layers.0.mixer.core")
        core.register_forward_hook(lambda module, inputs, output: seen.append(tuple(inputs[1].shape)))
        cache = decoder.caches(Room(1, 9, torch.float32, CPU))
        decoder(torch.ones(1, 8, dtype=torch.long), cache)
        decoder(torch.ones(1, 1, dtype=torch.long), cache, 8)
        assert seen == [(1, 4, 8, 24), (1, 1, 9, 32)]

    def test_a_cache_takes_the_bytes_that_are_predicted(self) -> None:
        """Llama-3-8B: 131,072 B a token in 16 bit, here with 2 of 32 layers."""
        model = spread_layers(load_model("llama-3-8b").value, 2)
        with torch.device("meta"):
            decoder = Decoder(model)
        caches = decoder.caches(Room(3, 64, torch.bfloat16, torch.device("meta")))
        assert sum(tensor.nbytes for cache in caches for tensor in cache.buffers) == 3 * 64 * 131072 * 2 // 32

    def test_only_the_last_token_gets_logits_where_that_suffices(self) -> None:
        decoder = build(TINY[1], CPU, torch.float32)
        tokens = torch.arange(6)[None]
        assert torch.allclose(decoder(tokens, last=True), decoder(tokens)[:, -1:], atol=1e-5)

    @pytest.mark.parametrize(("pattern", "last", "first"), [
        (Pattern(), 99, 0), (Pattern(window=8), 99, 92), (Pattern(window=8), 3, 0), (Pattern(chunk=8), 99, 96),
        (Pattern(chunk=8), 95, 88), (Pattern(window=1), 5, 5),
    ])  # fmt: skip
    def test_a_decode_step_reads_only_keys_in_reach(self, pattern: Pattern, last: int, first: int) -> None:
        assert pattern.first_key(last) == first


class TestDepth:
    def test_layers_are_left_out_in_proportion(self) -> None:
        """Gemma-3 has five layers with a window for one without; half of the model has so, too."""
        model = load_model("gemma-3-27b").value
        half = spread_layers(model, model.depth // 2)
        shares = [sum(layer.mixer.window is None for layer in each.layers) / each.depth for each in (model, half)]
        assert half.depth == model.depth // 2
        assert shares[1] == pytest.approx(shares[0], abs=0.05)
        assert spread_layers(model, model.depth) == model

    def test_thinning_shares_weights_and_leaves_the_decoder_alone(self) -> None:
        decoder = build(replace(TINY[0], layers=TINY[0].layers * 3), CPU, torch.float32)
        fewer = thinned(decoder, 2)
        assert (len(decoder.layers), len(fewer.layers)) == (6, 2)
        assert fewer.layers[1] is decoder.layers[3]
        assert fewer.embedding is decoder.embedding

    def test_equal_layers_share_one_compilation(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Traced, not compiled, for speed: one graph a phase for six layers, no break, the same logits."""
        eager = torch.compile
        monkeypatch.setattr(torch, "compile", lambda layer, **options: eager(layer, backend="eager", **options))
        decoder = build(replace(TINY[1], layers=TINY[1].layers * 3), CPU, torch.float32)
        room = Room(1, 9, torch.float32, CPU)
        tokens = torch.arange(9)[None]
        with torch.inference_mode():
            fused, caches = compiled(decoder), [decoder.caches(room), decoder.caches(room)]
            torch._dynamo.utils.counters.clear()
            for first, last in ((0, 8), (8, 9)):
                want, got = (
                    each(tokens[:, first:last], cache, first)
                    for each, cache in zip((decoder, fused), caches, strict=True)
                )
                assert torch.equal(want, got)
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2
        assert not torch._dynamo.utils.counters["graph_break"]


CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 6,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 256,
    "max_position_embeddings": 512, "torch_dtype": "float32", "tie_word_embeddings": True, "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
}  # fmt: skip


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model of six small layers, as the config.json of a checkpoint."""
    path = tmp_path_factory.mktemp("small") / "config.json"
    path.write_text(json.dumps(CONFIG), encoding="utf-8")
    return str(path)


def row_of(bench: model_run.Bench, point: StepPoint) -> dict[str, Any]:
    """One row as a run writes it."""
    with torch.inference_mode():
        return {**bench.label(point, "eager"), **bench.measure(point, "eager")}


@pytest.fixture(scope="module")
def rows(small: str) -> list[dict[str, Any]]:
    """Measured on one thread, so that nothing waits for a core that is busy elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setattr(model_run, "_SECONDS", 0.0)
        bench = open_bench(small, open_device("cpu"))
        return [row_of(bench, point) for point in (StepPoint("prefill", 1, 16), StepPoint("decode", 2, 16))]


def run_model(folder: Path, model: str, deadline: float) -> list[Any]:
    """The rows of a model suite, gone on with where there is one."""
    here = open_device("cpu")
    with Recorder(folder, header(here, "model", model), resume=True) as recorder:
        suite.run_suite(suite.SuiteRun(here, "model", model, recorder, deadline))
    return list(read_measurements(folder / FILE).rows)


class TestModelRun:
    def test_every_point_is_a_row_with_its_spread_and_where_the_time_went(self, rows: list[dict[str, Any]]) -> None:
        assert [(row["phase"], row["batch"], row["context"]) for row in rows] == [("prefill", 1, 16), ("decode", 2, 16)]
        for row in rows:
            assert row["op"] == "model"
            assert 0 < row["p10_us"] <= row["latency_us"] <= row["p90_us"]
            assert row["layers_run"] == row["layers"] == 6
            assert row["whole_us"] == row["latency_us"]
            assert row["busy_us"]["matrix"] > 0
            assert row["busy_us"]["attention"] > 0
            assert row["host_us"] > 0
            assert row["launch_us"] == 0

    def test_rows_are_compared_with_the_estimate_for_the_same_question(self, rows: list[dict[str, Any]]) -> None:
        first, second = compare_model(rows, "cpu-xeon-8480-2s", "none")
        assert (first.point.phase, second.point.phase) == ("prefill", "decode")
        for compared, row in ((first, rows[0]), (second, rows[1])):
            assert compared.measured_ms == row["latency_us"] / 1e3
            assert 0 < compared.predicted_ms < compared.measured_ms  # a bound of 112 cores, measured on far fewer
            assert compared.error == pytest.approx(compared.predicted_ms / compared.measured_ms - 1)
            assert not compared.extrapolated

    def test_both_are_shown_side_by_side(self, rows: list[dict[str, Any]]) -> None:
        lines = comparison_table(list(compare_model(rows, "cpu-xeon-8480-2s", "none")))
        assert lines[0].split()[:5] == ["model", "phase", "batch", "tokens", "mode"]
        assert lines[1].split()[1:5] == ["prefill", "1", "16", "eager"]
        assert len(lines) == 3

    def test_the_report_shows_both_phases_and_what_was_missed_most(self, rows: list[dict[str, Any]]) -> None:
        text = "\n".join(model_report(rows, "cpu-xeon-8480-2s", "none"))
        assert "prefill 1 x 16, eager, under the profiler; missed most: " in text
        assert "decode 2 x 16, eager, under the profiler; missed most: " in text

    def test_a_step_is_explained_by_cause_and_by_class(self, rows: list[dict[str, Any]]) -> None:
        """Both views add up to the profiled step on one side, and to the predicted one on the other."""
        for row in rows:
            views = explain(row, "cpu-xeon-8480-2s", "none")
            measured = sum(row["busy_us"].values()) + row["host_us"]
            assert [sum(line.measured_us for line in view) for view in views] == pytest.approx([measured] * 2)
            first, second = ([line.predicted_us for line in view] for view in views)
            assert sum(first) == pytest.approx(sum(second))
            assert {line.what: line.missed_us for line in views[0]}["host"] == pytest.approx(row["host_us"])
            assert breakdown_table(views[0])[1].split()[0] == "compute"

    @pytest.mark.parametrize(("kernels", "enqueue_us", "ms"), [
        (300, 0.0, 10.0),  # compiled: as many kernels as are predicted
        (1300, 0.0, 11.5),  # a graph of a thousand more, at 1.5 us each
        (1300, 10.0, 13.0),  # launched one by one: the host is slower
    ])  # fmt: skip
    def test_every_mode_has_a_prediction_of_its_own(self, kernels: int, enqueue_us: float, ms: float) -> None:
        row = {"kernels": kernels, "floor_us": 1.5, "enqueue_us": enqueue_us, "layers": 8, "layers_run": 8}
        assert as_launched(row, 10.0, 300) == pytest.approx(ms)
        assert as_launched({}, 10.0, 300) == 10.0

    def test_a_model_that_cannot_run_is_a_row_that_says_so(self, tmp_path: Path) -> None:
        rows = run_model(tmp_path, "jamba-v0.1", float("inf"))
        assert [(row["op"], row["status"]) for row in rows] == [("model", "missing")]
        assert "mamba layers are predicted but not run" in rows[0]["detail"]
        assert run_model(tmp_path, "jamba-v0.1", float("inf")) == rows  # not once more

    def test_nothing_is_measured_after_the_deadline(self, small: str, tmp_path: Path) -> None:
        assert run_model(tmp_path, small, 0.0) == []

    def test_a_run_that_goes_on_measures_what_it_lacks(
        self, small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(model_run, "_SECONDS", 0.0)
        monkeypatch.setitem(GRID, "cpu", (StepPoint("decode", 1, 8),))
        first = run_model(tmp_path, small, float("inf"))
        monkeypatch.setitem(GRID, "cpu", (StepPoint("decode", 1, 8), StepPoint("decode", 2, 8)))
        both = run_model(tmp_path, small, float("inf"))
        assert [row["batch"] for row in both] == [1, 2]
        assert both[0] == first[0]
        monkeypatch.setattr(suite, "open_bench", None)  # nothing is left, so no model is built
        assert run_model(tmp_path, small, float("inf")) == both

    def test_every_mode_of_a_point_is_a_row_of_its_own(self, small: str) -> None:
        point = GRID["cuda"][0]
        modes = ("compiled", "graph", "eager")
        keys = [f"model {small} {mode} {point.phase} {point.batch} {point.context}" for mode in modes]
        wanted = remaining(small, "cuda", ())
        assert wanted[:3] == [(point, mode) for mode in modes]
        assert remaining(small, "cuda", keys[:2]) == wanted[2:]
        assert remaining(small, "cuda", keys, 1) == []

    def test_missing_depth_is_extrapolated_by_the_slope(self, small: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """With a time of 10 ms + 2 ms a layer, 4 of 6 layers must say 22 ms."""
        monkeypatch.setattr(model_run, "_depth_that_fits", lambda model, device: 4)
        monkeypatch.setattr(model_run.Bench, "_step", lambda self, decoder, point, mode: decoder)
        monkeypatch.setattr(model_run.Bench, "_spent", lambda *_: {})
        monkeypatch.setattr(
            model_run.Bench, "_samples", lambda self, decoder: (0.010 + 0.002 * len(decoder.layers),) * 5
        )
        found = [row_of(open_bench(small, open_device("cpu")), StepPoint("decode", 1, 8))]
        assert found[0]["layers_run"] == 4
        assert found[0]["whole_us"] == pytest.approx(22_000)
        assert next(iter(compare_model(found, "cpu-xeon-8480-2s", "none"))).extrapolated


class TestProfile:
    def test_operators_of_a_real_step_are_seen(self) -> None:
        decoder = build(TINY[1], CPU, torch.float32)
        tokens = torch.arange(64)[None]
        events = profile_step(lambda: decoder(tokens), CPU)
        names = {event.name for event in events}
        assert {"aten::linear", "aten::scaled_dot_product_attention", "aten::embedding"} <= names
        assert {event.kind for event in events} == {"operator"}
        assert sum(event.name == "aten::linear" for event in events) == 4 * 2 + 1
