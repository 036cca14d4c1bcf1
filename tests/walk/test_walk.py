"""The walk's numbers are those of `estimate` and add up; what it prints can be read and computed."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from functools import lru_cache
from pathlib import Path

import pytest

import rooflinekit as rk
from rooflinekit.cli.command import find
from rooflinekit.explanation.walk.front import layer_parts, walk
from rooflinekit.explanation.walk.prompts import Prompts
from rooflinekit.explanation.walk.result import Stop, Walk, Work
from rooflinekit.model.blocks import layer_operations
from rooflinekit.model.kernels.attention import LatentUpProjection
from rooflinekit.model.parameter_count import count_parameters
from rooflinekit.model.step import Plan, make_plan
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.errors import ArchitectureError, DeploymentError, DtypeError, InputError, WorkloadError
from rooflinekit.model.types.hardware import System
from rooflinekit.model.types.model import MixtureOfExperts, Model
from rooflinekit.report.answers import document_of
from rooflinekit.report.document import markdown_text, plain_text
from rooflinekit.report.walk import attention_picture
from rooflinekit.specs import load_accelerator, load_model, names

MODELS = [name for name in sorted(names("model")) if load_model(name).value.encoder is None]
FAST = System.of(load_accelerator("b200-sxm").value)
LAYOUTS = {"six": Prompts((6,)), "packed": Prompts((6, 3, 9)), "long": Prompts((9000,), 2, 100)}


PAGE = Path(__file__).parents[2] / "docs" / "nomenclature.md"
EXPLAINED = {*find("estimate").options, *re.findall(r"`(\w+)`", PAGE.read_text(encoding="utf-8"))}


def _keys(data: object) -> Iterator[str]:
    """Every key of nested objects; what is under `substituted` are names of formulas."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield key
            yield from _keys(value)
    elif isinstance(data, list):
        for value in data:
            yield from _keys(value)


def plan_for(model: Model, tp: int = 1) -> Plan:
    return make_plan(model, Deployment(tp=tp), FAST, None)


@lru_cache(maxsize=8)
def split_of(name: str, tp: int) -> Plan:
    """The plan, or one without a split where the model cannot be split so."""
    try:
        return plan_for(load_model(name).value, tp)
    except DeploymentError:
        return plan_for(load_model(name).value)


@lru_cache(maxsize=8)
def walked(name: str, layout: str, tp: int) -> Walk:
    return walk(split_of(name, tp), LAYOUTS[layout])


def stops_of(found: Walk) -> list[Stop]:
    return [stop for phase in found.phases for section in phase.sections for stop in section.stops]


def evaluate(formula: str, values: dict[str, float]) -> float:
    names = {"__builtins__": {}, "ceil": math.ceil, "floor": math.floor}
    return float(eval(formula.replace("·", "*"), names, dict(values)))


def check_formulas(found: Walk) -> None:
    """The formula, and the formula with numbers in it, give the work that stands beside them; axes give the shapes."""
    for section in (section for phase in found.phases for section in phase.sections):
        values = {symbol.name: symbol.value for symbol in section.symbols}
        for stop in section.stops:
            work = stop.work
            for kind, amount in (("flops", work.flops), ("bytes", work.bytes), ("network", work.network_bytes)):
                formula = getattr(stop, f"{kind}_formula")
                assert bool(formula) is bool(amount), (stop.name, kind)
                if formula:
                    assert evaluate(formula, values) == pytest.approx(amount), (stop.name, formula)
                    assert evaluate(stop.substituted[kind], {}) == pytest.approx(amount, rel=1e-4), (stop.name, formula)
            for tensor in (*stop.outputs, *stop.weights):
                assert tensor.shape == tuple(evaluate(axis, values) for axis in tensor.symbols), (stop.name, tensor)


class TestOneSourceOfTruth:
    @pytest.mark.parametrize("models", [MODELS[::8], pytest.param(MODELS, marks=pytest.mark.long)], ids=["some", "all"])
    def test_every_model_adds_up(self, models: list[str]) -> None:
        """Work is that of the kernels, in all layouts and on a rank of eight; no operation and no weight is missing."""
        for name in models:
            for layout, tp in (("six", 1), ("packed", 1), ("long", 8)):
                self.check_work(name, layout, tp)
            for tp in (1, 8):
                self.check_order(name, tp)
            self.check_weights(name)

    def check_work(self, name: str, layout: str, tp: int) -> None:
        plan, prompts = split_of(name, tp), LAYOUTS[layout]
        for phase in walked(name, layout, tp).phases:
            kernels = plan.kernels(prompts.batch(phase.name))
            for field in fields(Work):
                counted = sum(kernel.count * float(getattr(kernel, field.name)) for kernel in kernels)
                assert getattr(phase.work, field.name) == pytest.approx(counted, rel=1e-9), (name, layout, field.name)

    def check_order(self, name: str, tp: int) -> None:
        plan = split_of(name, tp)
        for layer in plan.model.layer_counts:
            walked = Counter(op for _, operations in layer_parts(layer, plan.shard) for op in operations)
            assert walked == Counter(layer_operations(layer, plan.shard)), name

    def check_weights(self, name: str) -> None:
        """Shapes of all matrices and scales, against the parameter count; some small ones are no kernel's."""
        plan = split_of(name, 1)
        prefill = walked(name, "six", 1).phases[0]
        shown = sum(section.count * math.prod(weight.shape) for section in prefill.sections for stop in section.stops
                    for weight in stop.weights)  # fmt: skip
        step = plan.seen(Prompts((6,)).batch("prefill"))
        without = sum(
            n * weights.count
            for op, n in plan.operations.items()
            if not op.kernels(step, 1) and not isinstance(op, LatentUpProjection)  # absorbed products show its matrix
            for weights in op.weights
        )
        tied = plan.model.vocab * (plan.model.embedding_dim or plan.model.hidden) if plan.model.tied else 0
        assert shown == count_parameters(plan.model).total - without + tied, name

    @pytest.mark.parametrize(("name", "options"), [
        ("llama-3-8b", {}), ("mixtral-8x7b", {"tp": 2}), ("deepseek-v3", {"gpu": "h200-sxm", "tp": 8}),
        ("qwen3-next-80b-a3b", {"gpu": "b200-sxm"}), ("llama-3-8b", {"weights": "fp8", "kv": "fp8"}),
        ("llama-3-8b", {"pp": 4, "tp": 2, "batch": 3}), ("llama-3-70b", {"gpu": "gb200", "tp": 8, "pp": 2, "dp": 2}),
        ("mixtral-8x7b", {"tp": 2, "ep": 2}), ("mixtral-8x7b", {"tp": 4, "ep": 2}),
        ("mixtral-8x7b", {"dp": 2, "batch": 5}), ("gpt-oss-120b", {"dp": 2, "ep": 2, "tp": 2, "batch": 4}),
        ("deepseek-v3", {"gpu": "gb200", "dp": 32, "ep": 32, "batch": 640}),
        ("deepseek-v3", {"gpu": "h200-sxm", "dp": 16, "ep": 16, "batch": 64, "system": "hgx-h200"}),
        ("llama-3-70b", {"tp": 16, "system": "hgx-h100"}),
        ("mixtral-8x7b", {"dp": 16, "batch": 16, "system": "hgx-h100"}),
        ("nemotron-3-nano-30b-a3b", {"dp": 4, "ep": 4, "batch": 64}),
        ("llama-3-8b", {"tp": 2, "sequence_parallel": True, "batch": 3}),
        ("command-r", {"tp": 2, "sequence_parallel": True}), ("llama-3-70b", {"tp": 8, "all_reduce": "one_shot"}),
        ("llama-3-70b", {"cp": 4, "tp": 2}),
        ("llama-3-70b", {"cp": 2, "tp": 2, "pp": 2, "batch": 3, "microbatches": 2}),
        ("deepseek-v3", {"gpu": "h200-sxm", "cp": 2, "tp": 4, "batch": 2}),
        ("mixtral-8x7b", {"ep": 4, "tp": 4, "skew": 0.8, "batch": 8}),
        ("mixtral-8x7b", {"ep": 2, "cp": 2, "dp": 2, "batch": 2}),
        ("deepseek-v3", {"gpu": "h200-sxm", "dp": 8, "ep": 8, "batch": 64, "redundant_experts": 32, "skew": 1.0}),
        ("deepseek-v3", {"gpu": "h200-sxm", "dp": 8, "ep": 8, "batch": 64, "dispatch": "fp8"}),
        ("llama-3-8b", {"kv_policy": "topk:2048"}), ("llama-3-8b", {"kv_policy": "sink:1+2"}),
        ("gemma-2-2b", {"kv_policy": "window:4", "batch": 2}), ("gemma-2-2b", {"kv_policy": "topk:4"}),
        ("deepseek-v3", {"gpu": "h200-sxm", "tp": 8, "kv_policy": "topk:4"}),
    ])  # fmt: skip
    def test_estimate_says_the_same(self, name: str, options: dict[str, object]) -> None:
        told = rk.estimate(name, isl=6, context=7, calibration="none", allow_oom=True, **options)
        found = rk.shapes(name, tokens=6, **options)
        for phase, step in zip(found.phases, (told.prefill, told.decode), strict=True):
            sent = sum(kernel.network_bytes for kernel in step.kernels)
            counted = (phase.work.flops, phase.work.bytes, phase.work.network_bytes)
            assert counted == pytest.approx((step.flops, step.bytes, sent))
        check_formulas(found)


class TestFormulas:
    @pytest.mark.parametrize(
        "name", ["llama-3-8b", "deepseek-v3.2", "jamba-v0.1", "qwen3-next-80b-a3b", "gpt-oss-20b", "llama-4-scout"]
    )
    def test_what_is_printed_can_be_computed(self, name: str) -> None:
        cases = [(split_of(name, tp), prompts) for tp, prompts in
                 ((1, Prompts((6,))), (2, Prompts((9000,), 2, 100)), (1, Prompts((6, 9000))))]  # fmt: skip
        ep = 2 if any(isinstance(layer.ffn, MixtureOfExperts) for layer in cases[0][0].model.layers) else 1
        split = Deployment(tp=2, pp=2, dp=2, ep=ep)
        for plan, prompts in (*cases, (make_plan(cases[0][0].model, split, FAST, None), Prompts((9,), 5))):
            check_formulas(walk(plan, prompts))

    def test_formulas_are_in_the_letters_of_the_model(self) -> None:
        """Numbers that lose their letters on the way through the kernels would still be right."""
        layer = rk.shapes("llama-3-8b", tokens=6, tp=2, weights="fp8").phases[0].sections[1]
        texts = {stop.name: (stop.flops_formula, stop.bytes_formula, stop.network_formula) for stop in layer.stops}
        expected = {
            "QKV projection": ("2·N·(H+2·K)·d·D/tp", "(H+2·K)·d·D·b_fp8/tp + N·((H+2·K)·d·b/tp+D·b_fp8)", ""),
            "append to the cache": ("", "2·N·K·d·b/tp + 2·N·K·d·b/tp", ""),
            "scores": ("2·H·d·pairs/tp", "keys·K·d·b/tp + N·H·d·b/tp", ""),
            "all reduce": ("", "2·N·D·b", "2·N·D·(1-1/tp)·b"),
            "down projection": ("2·N·F·D/tp", "F·D·b_fp8/tp + N·(F·b_fp8/tp+D·b)", ""),
        }
        assert {name: texts[name] for name in expected} == expected
        for name in ("deepseek-v3.2", "jamba-v0.1", "qwen3-next-80b-a3b", "nemotron-h-56b", "minimax-m1"):
            for stop in stops_of(walked(name, "six", 8)):
                for text in (stop.flops_formula, stop.bytes_formula, stop.network_formula):
                    assert not text or re.search("[A-Z]|keys|touched", text), (name, stop.name, text)
                    assert not re.search(r"(?<![\d.])\d{3}", text), (name, stop.name, text)  # where letters belong


class TestWords:
    def test_the_default_prompt_has_six_words_and_says_what_they_are(self) -> None:
        found = rk.shapes("gpt2")
        assert found.words == ("The", "cat", "sat", "on", "the", "mat")
        assert any("stand in for tokens" in warning and "for the beginning" in warning for warning in found.warnings)
        assert rk.shapes("gpt2", tokens=6).words == ()

    def test_the_picture_is_a_triangle_or_blocks(self) -> None:
        assert attention_picture(rk.shapes("gpt2", prompt="a bb 猫"))[1:] == [
            "  a       ■ · ·",
            "  bb      ■ ■ ·",
            "  猫      ■ ■ ■",  # two columns of a terminal
            "  decode  ■ ■ ■ ■",
        ]
        assert attention_picture(rk.shapes("gpt2", tokens="2,1"))[1:] == ["  1  ■ · ·", "  2  ■ ■ ·", "  3  · · ■"]
        assert [line.split() for line in attention_picture(rk.shapes("gpt2", tokens=3, cached=1))[1:]] == [
            ["2", "■", "■", "·"], ["3", "■", "■", "■"], ["decode", "■", "■", "■", "■"],
        ]  # fmt: skip
        assert attention_picture(rk.shapes("gpt2", tokens=1000)) == []

    @pytest.mark.parametrize("name", [*MODELS[::6], "deepseek-v3.2", "jamba-v0.1", "qwen3-next-80b-a3b"])
    def test_no_line_is_wider_than_a_terminal(self, name: str) -> None:
        for prompts in (Prompts((6,)), Prompts((6, 3, 900_000)), Prompts((10**18,))):
            lines = plain_text(document_of(walk(split_of(name, 8), prompts))).splitlines()
            assert max(map(len, lines)) <= 80

    def test_long_titles_are_wrapped(self) -> None:
        lines = plain_text(document_of(rk.shapes("gpt2", tokens=6, batch=100))).splitlines()
        assert max(map(len, lines)) <= 80

    @pytest.mark.parametrize(("prompt", "words"), [
        ("Don't sit, cat!", ("Don't", "sit", ",", "cat", "!")),
        ("猫が座る ok", ("猫", "が", "座", "る", "ok")),
        ("cafe\u0301 हिंदी", ("cafe\u0301", "हिंदी")),
        ("❤\ufe0f 3.14", ("❤\ufe0f", "3", ".", "14")),
    ])  # fmt: skip
    def test_a_prompt_is_parted_at_words_and_marks(self, prompt: str, words: tuple[str, ...]) -> None:
        assert rk.shapes("gpt2", prompt=prompt).words == words

    def test_letters_are_explained_before_they_are_used(self) -> None:
        text = plain_text(document_of(rk.shapes("deepseek-v3", "h200-sxm", tokens=6, tp=8)))
        assert text.index("\n  Rq ") < text.index("[S, Rq]")
        assert text.count("rank of the queries' latent") == 1

    def test_meanings_speak_of_letters_that_stand_there(self) -> None:
        """One prompt has no B in its first sections; several have."""
        for batch in (1, 4):
            first, layer, *_ = rk.shapes("llama-3-8b", tokens=6, batch=batch).phases[0].sections
            for section in (first, layer):
                told = any("B·" in symbol.meaning for symbol in section.symbols)
                assert told is (batch > 1)
            assert ("B" in {symbol.name for symbol in first.symbols}) is (batch > 1)

    def test_markdown_has_a_row_for_every_tensor(self) -> None:
        found = rk.shapes("mixtral-8x7b", tokens=6)
        rows = [
            line for line in markdown_text(document_of(found)).splitlines() if line.startswith("| ") and " [" in line
        ]
        assert len(rows) == sum(len(stop.outputs) for stop in stops_of(found)) == len(found.to_rows())

    def test_json_is_plain_and_adds_up(self) -> None:
        data = json.loads(json.dumps(rk.shapes("llama-3-8b", tokens="6,3,9").to_dict(), allow_nan=False))
        assert set(_keys(data)) - EXPLAINED == set()
        prefill = data["phases"][0]
        assert prefill["total"]["flops"] == pytest.approx(
            sum(part["count"] * step["flops"] for part in prefill["sections"] for step in part["steps"])
        )
        assert prefill["sections"][1]["steps"][2]["weights"][0]["shape"] == [6144, 4096]


class TestRefusals:
    @pytest.mark.parametrize(("options", "error", "what"), [
        ({"tokens": 0}, WorkloadError, "at least 1"),
        ({"tokens": "6,x"}, WorkloadError, "not 'x'"),
        ({"tokens": "6,"}, WorkloadError, "whole numbers"),
        ({"tokens": 2.5}, WorkloadError, "whole number"),
        ({"tokens": []}, WorkloadError, "at least one length"),
        ({"tokens": [1] * 10_001}, WorkloadError, "10001 sequences"),
        ({"tokens": 10**19}, WorkloadError, "at most"),
        ({"prompt": "  "}, WorkloadError, "at least one word"),
        ({"prompt": 6}, WorkloadError, "must be a text"),
        ({"tokens": 6, "prompt": "a"}, InputError, "give one of them"),
        ({"tokens": "6,3", "batch": 2}, WorkloadError, "leave batch out"),
        ({"tokens": "6,3", "cached": 3}, WorkloadError, "leaves nothing of 3"),
        ({"batch": 0}, WorkloadError, "batch"),
        ({"osl": 2}, InputError, "unknown option 'osl'; nearest: "),
        ({"cp": 2, "tokens": "6,3", "skew": 9}, WorkloadError, "skew"),
        ({"ep": 2}, DeploymentError, "no experts"),
        ({"pp": 64}, DeploymentError, "32 layers"),
        ({"tokens": "6,3", "dp": 2}, WorkloadError, "one length"),
        ({"tp": 3}, DeploymentError, "does not divide"),
        ({"kv": "fp7"}, DtypeError, "fp7"),
    ])  # fmt: skip
    def test_nonsense_is_refused_by_name(self, options: dict[str, object], error: type[Exception], what: str) -> None:
        with pytest.raises(error, match=what):
            rk.shapes("llama-3-8b", **options)

    def test_an_encoder_is_not_walked(self) -> None:
        with pytest.raises(ArchitectureError, match="whisper-large-v3: an encoder is costed, but not walked"):
            rk.shapes("whisper-large-v3", tokens=8)

    def test_lengths_beyond_the_models_are_noted(self) -> None:
        assert any("more than the 8192" in warning for warning in rk.shapes("llama-3-8b", tokens=8192).warnings)
        assert not any("more than" in warning for warning in rk.shapes("llama-3-8b", tokens=8191).warnings)
