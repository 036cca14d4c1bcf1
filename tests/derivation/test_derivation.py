"""Derivations: every formula gives the number beside it, and every root is what `estimate` says."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rooflinekit as rk
from rooflinekit.cli.output import to_json
from rooflinekit.explanation.derivation.case import tpot_node
from rooflinekit.explanation.derivation.formula import evaluate, substituted, symbols
from rooflinekit.explanation.derivation.front import derive, make_case
from rooflinekit.explanation.derivation.metrics import METRICS
from rooflinekit.explanation.derivation.node import Node, joined
from rooflinekit.explanation.derivation.node import given as leaf
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.types.errors import DoesNotFitError, InputError, UnknownNameError, WorkloadError
from rooflinekit.report.derivation import derivation_markdown, derivation_rows, derivation_text, quantity
from rooflinekit.specs import names

EXACT = 1e-12
STATIC = [name for name in METRICS if name not in ("queue", "knee_rate", "rate")]
STEPS = ["prefill", "decode", "prefill.flops", "decode.bytes", "decode.intensity", "decode.bound", "prefill.bound"]
TP8 = {"gpu": "h200-sxm", "tp": 8}
DEPLOYMENTS = [
    ("llama3-8b", {"batch": 32}),
    ("llama3-8b", {"batch": 7, "calibration": "none", "isl": 333, "osl": 77}),
    ("llama3-8b", {"weights": "fp8", "kv": "fp8", "engine": "trtllm", "cached": 512}),
    ("llama3-8b", {"context": 3000, "osl": 1, "engine": "gpt-fast", "eager": True}),
    ("llama3-8b", {"kv_policy": "topk:256", "osl": 2, "engine": "ideal"}),
    ("llama-3-70b", {"tp": 2, "pp": 2, "microbatches": 4, "batch": 18}),
    ("llama-3-70b", {"tp": 4, "draft": "llama-3-8b", "draft_tokens": 4, "acceptance": 0.8, "batch": 3}),
    pytest.param("llama-3-70b", {"tp": 4, "sequence_parallel": True, "engine": "sglang"}, marks=pytest.mark.long),
    ("mixtral-8x7b", {"tp": 2, "batch": 16}),
    ("deepseek-v3", {**TP8, "batch": 32}),
    ("deepseek-v3", {"gpu": "h200-sxm", "dp": 8, "ep": 8, "batch": 64, "skew": 0.8}),
    pytest.param("deepseek-v3", {**TP8, "draft": "mtp", "batch": 4}, marks=pytest.mark.long),
    pytest.param("deepseek-v3.2", {**TP8, "batch": 4, "isl": 8000}, marks=pytest.mark.long),
    ("gpt-oss-120b", {"batch": 64, "tp": 2}),
    ("gemma-3-27b", {"batch": 4, "isl": 6000}),
    pytest.param("llama-4-scout", {"tp": 4, "cp": 2, "isl": 9000}, marks=pytest.mark.long),
    ("qwen3-next-80b-a3b", {"tp": 4}),
    pytest.param("jamba-v0.1", {"tp": 2}, marks=pytest.mark.long),
]
LOADS = [
    {"rate": 10.0},
    {"rate": 14.0, "burstiness": 2.0, "isl_cv": 0.5, "osl_cv": 0.4},
    {"concurrency": 64},
    {"concurrency": 64, "requests": 640, "osl_cv": 0.3},
    pytest.param({"concurrency": 5000}, marks=pytest.mark.long),
    {"rate": 8.0, "engine": "sglang"},
    {"rate": 0.5, "calibration": "none", "isl": 20_000},
    pytest.param({"rate": 3.0, "tp": 2, "pp": 2}, marks=pytest.mark.long),
]


def checked(case, metric):
    """A derivation whose every formula was evaluated on its children."""
    found = derive(case, metric)
    for node in found.root.walk():
        assert node.gap <= EXACT, (metric, node.title, node.formula, node.value, node.recomputed())
        assert symbols(node.formula) <= {child.symbol for child in node.children} if node.formula else not node.children
        assert len({child.symbol for child in node.children}) == len(node.children), node.formula
        assert math.isfinite(node.value)
        assert node.formula or node.source, node.title
    if found.rule:
        assert found.rule.exact == pytest.approx(found.root.value, rel=1e-7)
    return found


def said(e, metric):
    """The same number by way of the answer of `estimate`."""
    sizes = {"memory": "total_bytes", "weights": "weight_bytes", "kv": "kv_bytes", "activations": "activation_bytes",
             "overhead": "overhead_bytes", "kv_pool": "kv_pool_bytes", "max_batch": "max_batch",
             "max_context": "max_context", "kv_per_token": "kv_bytes_per_token"}  # fmt: skip
    if metric in sizes:
        return getattr(e.memory, sizes[metric])
    if metric in ("queue", "knee_rate", "rate"):
        return getattr(e.load, "queue_ms" if metric == "queue" else metric)
    step, _, kind = metric.partition(".")
    if step in ("prefill", "decode"):
        return getattr(getattr(e, step), {"": "time_ms", "bound": "bound_ms"}.get(kind, kind))
    return getattr(e, metric if metric.startswith("output") else f"{metric}_ms")


@pytest.mark.parametrize(("model", "scenario"), DEPLOYMENTS, ids=lambda v: v if isinstance(v, str) else "-".join(v))
def test_every_formula_gives_its_number_and_every_root_is_the_estimate(model, scenario):
    case = make_case(model, scenario.get("gpu", "h100-sxm"), {k: v for k, v in scenario.items() if k != "gpu"}, True)
    e = rk.estimate(model, **{"allow_oom": True, **scenario})
    for metric in [*STATIC, *STEPS]:
        found = checked(case, metric)
        if metric in ("params", "params_active"):
            count = rk.parameters(model)
            assert found.value == (count.total if metric == "params" else count.active)
        elif metric != "ridge":
            assert found.value == pytest.approx(said(e, metric), rel=EXACT), metric
    for step in ("prefill", "decode"):
        wanted = {}
        for kernel in getattr(e, step).kernels:
            for kind, value in (("", kernel.time_us), (".bytes", kernel.bytes)):
                wanted[f"{kernel.name}{kind}"] = wanted.get(f"{kernel.name}{kind}", 0.0) + value
        for name, value in wanted.items():
            assert checked(case, f"{step}.{name}").value == pytest.approx(value, rel=EXACT), name


@pytest.mark.parametrize("scenario", LOADS, ids=lambda v: "-".join(map(str, v)))
def test_under_load_the_closed_form_is_the_tree(scenario):
    case = make_case("llama3-8b", "h100-sxm", dict(scenario))
    e = rk.estimate("llama3-8b", **scenario)
    static = ("output_tok_s_per_gpu", "memory", "max_batch", "prefill", "decode", "decode.flops")
    for metric in ("ttft", "tpot", "e2e", "output_tok_s", "queue", "knee_rate", "rate", *static):
        assert checked(case, metric).value == pytest.approx(said(e, metric), rel=EXACT, abs=1e-15), metric


@pytest.mark.parametrize("model", ["llama3-8b", "deepseek-v2-lite"])
def test_kernels_that_a_deployment_slows_down(model):
    """Costs that come from a deployment's own benchmark files, and grouped heads that are read again."""
    case = make_case(model, "h100-sxm", {"batch": 9})
    plan = case.predictor.plan
    costs = replace(plan.engine.costs, memory=1.3, compute=1.1, grouped=0.2, hidden=0.4)
    predictor = Predictor.of(replace(plan, engine=replace(plan.engine, costs=costs)))
    tpot = float(predictor.tpot(case.work).expected)
    assert tpot > 1.1 * case.answer.tpot_ms / 1e3
    root = tpot_node(predictor, case.work, tpot)
    assert max(node.gap for node in root.walk()) <= EXACT


@pytest.mark.parametrize("model", names("model")[::13])
def test_one_model_in_thirteen_of_the_library(model):
    _model(model)


@pytest.mark.long
@pytest.mark.parametrize("model", names("model"))
def test_every_model_of_the_library(model):
    _model(model)


def _model(model):
    for calibration in (None, "none"):
        case = make_case(model, "h200-sxm", {"batch": 4, "calibration": calibration}, True)
        metrics = [*STATIC, "decode.bytes", "prefill.flops"]
        if case.answer.memory.max_context is None:
            metrics.remove("max_context")
        for metric in metrics:
            checked(case, metric)


@settings(max_examples=8, deadline=None)
@given(batch=st.integers(1, 4096), isl=st.integers(1, 100_000), osl=st.integers(1, 5000))
def test_any_operating_point(batch, isl, osl):
    case = make_case("gpt-oss-20b", "h100-sxm", {"batch": batch, "isl": isl, "osl": osl}, True)
    for metric in ("ttft", "tpot", "max_batch", "max_context", "memory"):
        checked(case, metric)


class TestFormulas:
    def test_a_wrong_formula_is_seen(self):
        wrong = Node("x", "", 6.0, "", "a + b", (leaf("a", "", 2.0), leaf("b", "", 3.0)))
        assert wrong.gap == pytest.approx(1 / 6)

    def test_only_arithmetic_is_evaluated(self):
        for bad in ("__import__('os')", "a.real", "[1][0]", "a if a else 1", "'x'"):
            with pytest.raises((ValueError, KeyError)):
                evaluate(bad, {"a": 1.0})

    def test_a_missing_symbol_is_an_error(self):
        with pytest.raises(KeyError):
            evaluate("a*b", {"a": 1.0})

    def test_numbers_are_put_in_for_whole_symbols_only(self):
        assert substituted("k*k0 + max(k, 1)", {"k": "4096", "k0": "90"}) == "4096*90 + max(4096, 1)"

    def test_a_sum_of_one_is_that_one(self):
        assert joined("t", "sum", 2.0, "s", [leaf("a", "part", 2.0)]).formula == ""


class TestAnswers:
    def test_the_kernel_shows_parameters_with_their_run_and_spread(self):
        found = rk.explain("llama3-8b", "decode.attention", batch=32)
        floor = next(node for node in found.root.walk() if node.symbol == "t0")
        assert floor.source.std > 0
        assert "attention_decode rows of h100-sxm" in floor.source.text
        ratio = next(node for node in found.root.walk() if node.symbol == "r")
        assert ratio.title.startswith("correction: measured over form")

    def test_hand_worked_bytes_of_the_cache(self):
        """Llama-3-8B, 32 sequences at 2,048 keys: 32 layers read 32·2048·8·256·2 B of keys and values each."""
        found = rk.explain("llama3-8b", "decode.attention.bytes", batch=32, context=2048)
        read = next(node for node in found.root.walk() if node.symbol == "kr")
        assert read.value == 32 * 2048 * 8 * 256 * 2
        assert found.value == 32 * (read.value + 32 * 32 * 256 * 2)

    def test_the_ridge_of_h100_is_295(self):
        assert rk.explain("llama3-8b", "ridge").value == pytest.approx(295.3, rel=1e-3)

    def test_the_rule_and_its_pieces(self):
        rule = rk.explain("llama3-8b", "tpot", batch=1).rule
        assert rule.value == pytest.approx(2 * rk.parameters("llama3-8b").total / 3.35e12)
        assert next(amount for what, amount in rule.pieces if what.startswith("weights")) < 0
        assert rk.explain("llama-2-7b", "kv_per_token").rule.pieces == ()
        assert rk.explain("deepseek-v3", "kv_per_token").rule.pieces[0][1] < 0

    def test_memory_is_explained_even_where_it_does_not_fit(self):
        assert rk.explain("llama-3-70b", "memory").value > 140e9
        with pytest.raises(DoesNotFitError):
            rk.explain("llama-3-70b", "tpot")
        assert rk.explain("llama-3-70b", "tpot", allow_oom=True).value > 40

    def test_above_the_knee_a_wait_has_no_value(self):
        with pytest.raises(WorkloadError, match="knee"):
            rk.explain("llama3-8b", "ttft", rate=1000)
        assert rk.explain("llama3-8b", "knee_rate", rate=1000).value < 1000

    @pytest.mark.parametrize(
        "metric", ["tpto", "decode.atention", "decode.attention.size", "", ".", "prefill.", "decode..flops", "x" * 300]
    )
    def test_unknown_metrics(self, metric):
        with pytest.raises(UnknownNameError, match="unknown metric"):
            rk.explain("llama3-8b", metric)

    def test_metrics_that_do_not_apply(self):
        for metric in ("queue", "rate", "knee"):
            with pytest.raises(InputError, match="under load"):
                rk.explain("llama3-8b", metric)
        with pytest.raises(InputError, match="metric must be a name"):
            rk.explain("llama3-8b", 3)


class TestReport:
    @pytest.mark.parametrize(("model", "scenario"), DEPLOYMENTS[:10:3], ids=lambda v: v if isinstance(v, str) else "")
    def test_text_fits_80_columns_and_json_is_strict(self, model, scenario):
        for metric in ("tpot", "memory", "decode", "prefill.flops"):
            found = rk.explain(model, metric, **{"allow_oom": True, **scenario})
            for depth in (None, 1, 4, 99):
                wide = [line for line in derivation_text(found, depth).splitlines() if len(line) > 80]
                assert wide == []
            data = json.loads(to_json(found.to_dict()))
            assert data["value"] == pytest.approx(data["scale"] * data["derivation"]["value"], rel=1e-15)
            assert len(derivation_rows(found)) == sum(1 for _ in found.root.walk())

    def test_json_alone_is_enough_to_check_the_tree(self):
        def recomputed(node):
            values = {child["symbol"]: recomputed(child) for child in node["children"]}
            return evaluate(node["formula"], values) if node["formula"] else node["value"]

        data = rk.explain("deepseek-v3", "tpot", **TP8).to_dict()
        assert data["scale"] * recomputed(data["derivation"]) == pytest.approx(data["value"], rel=1e-11)

    def test_markdown_is_a_nested_list(self):
        text = derivation_markdown(rk.explain("llama3-8b", "kv_per_token"))
        assert text.startswith("## kv_per_token of llama-3-8b")
        assert "\n- **kv** = 131 kB" in text
        assert "\n  - **K** = 8" in text

    def test_quantities(self):
        assert quantity(0.5, "") == "0.5"
        assert quantity(8030261248.0, "") == "8.03 G"
        assert quantity(989.4e12, "FLOP/s") == "989 TFLOP/s"


class TestSources:
    def test_rows_of_an_all_to_all_are_counted_not_read_from_a_config(self):
        """DeepSeek-V3 on 8 ranks: 7,168 elements to 7·(1 - C(224, 8)/C(256, 8)) = 4.63 other ranks, and 1/8 stays."""
        options = {"dp": 8, "ep": 8, "batch": 64, "gpu": "h200-sxm", "calibration": "none"}
        found = checked(make_case("deepseek-v3", options.pop("gpu"), options), "decode.expert_dispatch.bytes")
        width = next(node for node in found.root.walk() if node.symbol == "D")
        wide, copies, ranks = (next(n.value for n in width.children if n.symbol == s) for s in ("D_e", "copies", "g"))
        others = 7 * (1 - math.comb(224, 8) / math.comb(256, 8))
        assert (wide, ranks, copies) == (7168, 8, pytest.approx(others))
        assert width.value == pytest.approx(7168 * others * 8 / 7)

    def test_numbers_of_routing_name_it(self):
        """What comes to the fullest rank is an expectation; without groups of experts it is counted."""
        for options, told in (({"tp": 2, "ep": 2}, False), ({"dp": 2}, True)):
            found = checked(make_case("mixtral-8x7b", "h100-sxm", {"batch": 16, **options}), "decode.experts")
            for node in found.root.walk():
                if node.symbol in ("A", "act"):
                    assert bool(node.formula) is told
                    assert told or "Routing.fullest" in node.source.text
            pairs = next(node.value for node in found.root.walk() if node.symbol == "A")
            assert pairs == 32 if told else 16 < pairs < 32

    @pytest.mark.parametrize(("model", "options"), [
        ("llama3-8b", {"batch": 3}), ("deepseek-v3", {"gpu": "h200-sxm", "tp": 8}), ("mixtral-8x7b", {"tp": 2}),
    ])  # fmt: skip
    def test_what_was_asked_is_not_said_to_be_a_shape_of_the_model(self, model, options):
        """Sequences, new tokens, keys and rows come from the question wherever they stand."""
        asked = dict(options)
        case = make_case(model, asked.pop("gpu", "h100-sxm"), asked, True)
        found = [node for metric in ("decode", "prefill") for node in checked(case, metric).root.walk()]
        steps = [node for node in found if node.symbol in ("B", "S", "T", "m", "rows") and not node.formula]
        assert len(steps) > 20
        others = ("rows that are sampled", "rows that each touched expert is padded by")  # with sources of their own
        assert all(node.source.text == "the question" for node in steps if node.title not in others)
        heads = [node for node in found if node.symbol in ("H", "K", "d", "k", "n") and "head" in node.title]
        assert heads
        assert all("config" in node.source.text for node in heads)

    def test_a_number_and_its_unit_stay_together(self):
        for metric in ("tpot", "decode", "prefill.bound", "max_batch"):
            text = derivation_text(derive(make_case("llama3-8b", "h100-sxm", {"tp": 8}), metric), 2)
            lines = [line.lstrip("│├└ ") for line in text.splitlines()]
            torn = [
                pair
                for pair in pairwise(lines)
                if re.search(r"\d$", pair[0]) and re.match(r"([kMGTµmn]?[Bs])\b", pair[1])
            ]
            assert torn == []
            assert "\u00a0" not in text

    def test_one_formula_is_not_many(self):
        case = make_case("llama3-8b", "h100-sxm", {})
        assert "the formula gives the number beside it to" in " ".join(
            derivation_text(derive(case, "kv_per_token")).split()
        )
        assert "a kernel, such as" not in derivation_text(derive(case, "memory"), 1)
        assert "pn(x, y, p) = " in derivation_text(derive(case, "decode.qkv_proj"))
        assert "pn(x, y, p) = " not in derivation_text(derive(case, "memory"))

    @pytest.mark.parametrize(("metric", "noted", "calibrated"), [
        ("params", False, False), ("kv_per_token", False, False), ("ridge", False, False), ("max_batch", True, False),
        ("tpot", True, True),
    ])  # fmt: skip
    def test_remarks_are_about_the_number(self, metric, noted, calibrated):
        """Whether 70B fits says nothing of its parameters; no calibration counts bytes."""
        found = derive(make_case("llama-3-70b", "h100-sxm", {}, anyway=True), metric)
        text = derivation_text(found)
        assert ("does not fit" in text, "calibration h100" in text) == (noted, calibrated)
        assert bool(found.to_dict()["warnings"]) == noted

    def test_misspelt_numbers_of_kernels_have_a_nearest_name(self):
        with pytest.raises(UnknownNameError, match=r"nearest: decode\.attention\.bytes"):
            rk.explain("llama3-8b", "decode.attention.byts")
