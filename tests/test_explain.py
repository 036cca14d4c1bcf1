"""Explanations: every formula gives the number beside it, and every root is what `estimate` says."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import rooflinekit as rk
from rooflinekit.cli.app import app
from rooflinekit.cli.command import find
from rooflinekit.cli.output import to_json
from rooflinekit.explanation.front import Derivation, derive, make_case
from rooflinekit.explanation.metrics import METRICS, Case
from rooflinekit.model.graph import Pool, Quantity, named
from rooflinekit.model.graph.tree import Node, evaluate, tree
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.types.errors import DoesNotFitError, InputError, UnknownNameError
from rooflinekit.report.derivation import document, quantity, rows, substituted
from rooflinekit.report.document import markdown_text, plain_text

EXACT = 1e-12
LOADED = [name for name, metric in METRICS.items() if metric.loaded]
STATIC = [name for name in METRICS if name not in LOADED]
STEPS = ["prefill", "decode", "prefill.flops", "decode.bytes", "decode.intensity", "decode.bound", "prefill.mfu",
         "decode.mbu"]  # fmt: skip
LETTERS = {"C": ("", "decode"), "D": ("", "width|elements of a"), "N": ("", "tokens"), "P": ("FLOP/s", "peak"),
           "W": ("B/s", "memory bandwidth")}  # fmt: skip
"""Unit and words of what each of these letters alone means (docs/nomenclature.md)."""
LONG: list[tuple[str, dict[str, Any]]] = [
    ("deepseek-v3.2", {"gpu": "h200-sxm", "tp": 8, "batch": 4, "isl": 8000, "draft": "mtp"}),
    ("deepseek-v3", {"gpu": "h200-sxm", "dp": 16, "ep": 16, "system": "hgx-h200", "all_to_all": "deepep"}),
]
DEPLOYMENTS: list[tuple[str, dict[str, Any]]] = [
    ("llama3-8b", {"batch": 7, "calibration": "none", "isl": 333, "osl": 77}),
    ("llama3-8b", {"weights": "fp8", "kv": "fp8", "engine": "trtllm", "cached": 512}),
    ("llama3-8b", {"context": 3000, "osl": 1, "engine": "gpt-fast", "eager": True}),
    ("llama3-8b", {"kv_policy": "topk:256", "osl": 2, "engine": "ideal"}),
    ("llama-3-70b", {"tp": 2, "pp": 2, "microbatches": 4, "batch": 18}),
    ("llama-3-70b", {"tp": 4, "draft": "llama-3-8b", "draft_tokens": 4, "acceptance": 0.8, "batch": 3}),
    ("deepseek-v3", {"gpu": "h200-sxm", "dp": 8, "ep": 8, "batch": 64, "skew": 0.8}),
    ("deepseek-v3", {"gpu": "h200-sxm", "dp": 8, "ep": 8, "all_to_all": "deepep", "two_batch": True, "batch": 600}),
    ("mixtral-8x7b", {"dp": 2, "ep": 2, "ffn_gpus": 4, "microbatches": 2, "batch": 64}),
    ("qwen2.5-vl-7b", {"tp": 2, "images": 3, "encoder_gpus": 2, "batch": 4}),
    ("llama-4-scout", {"tp": 4, "cp": 2, "isl": 9000}),
    ("qwen3-next-80b-a3b", {"tp": 4, "engine": "sglang"}),
    ("llama3-8b", {"rate": 14.0, "burstiness": 2.0, "isl_cv": 0.5, "osl_cv": 0.4}),
    ("llama3-8b", {"concurrency": 64, "requests": 640, "osl_cv": 0.3}),
    ("mixtral-8x7b", {"rate": 5.0, "tp": 2, "ep": 2, "engine": "sglang"}),
]


def make(model: str, scenario: dict[str, Any]) -> Case:
    options = dict(scenario)
    return make_case(model, options.pop("gpu", "h100-sxm"), options, True)


def checked(case: Case, metric: str) -> Derivation:
    """An explanation whose every formula was evaluated on its children."""
    found = derive(case, metric)
    for node in found.root.walk():
        assert node.gap <= EXACT, (metric, node.title, node.formula, node.value, node.recomputed())
        assert bool(node.formula) is bool(node.children)
        assert len({child.symbol for child in node.children}) == len(node.children), node.formula
        assert math.isfinite(node.value)
        assert node.formula or node.source, node.title
        assert node.symbol not in ("table", "solved"), "a routine without a name"
        unit, words = LETTERS.get(node.symbol, (node.unit, ""))
        assert node.unit == unit and re.search(words, node.title), (node.symbol, node.title)
        sums = node.formula.count(" + ") > 5
        assert len(node.formula) < 200 or sums, node.formula
    return found


def said(e: rk.Estimate, metric: str) -> float:
    """The same number by way of the answer of `estimate`."""
    sizes = {"memory": "total_bytes", "weights": "weight_bytes", "kv": "kv_bytes", "activations": "activation_bytes",
             "overhead": "overhead_bytes", "kv_pool": "kv_pool_bytes", "max_batch": "max_batch",
             "max_context": "max_context", "kv_per_token": "kv_bytes_per_token"}  # fmt: skip
    if metric in sizes:
        return getattr(e.memory, sizes[metric])
    if metric in ("energy_per_output_token_j", "power_w_per_gpu"):
        return getattr(e.energy, metric)
    if metric in LOADED:
        assert e.load is not None
        time, _, share = metric.partition("_p")
        if share and metric != "prompt_share":
            return e.load.percentiles[f"{time}_ms"][f"p{share}"] or 0.0
        return getattr(e.load, "queue_ms" if metric == "queue" else metric)
    step, _, kind = metric.partition(".")
    if step in ("prefill", "decode"):
        return getattr(getattr(e, step), {"": "time_ms", "bound": "bound_ms"}.get(kind, kind))
    return getattr(e, metric if metric.startswith("output") else f"{metric}_ms")


@pytest.mark.parametrize(
    ("model", "scenario"),
    [*DEPLOYMENTS[::2], *(pytest.param(*each, marks=pytest.mark.long) for each in (*DEPLOYMENTS[1::2], *LONG))],
    ids=lambda v: v if isinstance(v, str) else "-".join(v),
)  # fmt: skip
def test_every_formula_gives_its_number_and_every_root_is_the_estimate(model: str, scenario: dict[str, Any]) -> None:
    case = make(model, scenario)
    count = rk.parameters(model)
    for metric in [*STATIC, *STEPS, *(LOADED if case.played else ())]:
        found = checked(case, metric)
        if metric in ("params", "params_active"):
            assert found.value == (count.total if metric == "params" else count.active)
        elif metric not in ("ridge", "keep"):
            assert found.value == pytest.approx(said(case.answer, metric), rel=EXACT, abs=1e-15), metric
            if case.played is not None and metric in (*LOADED, "ttft", "tpot", "e2e", "output_tok_s"):
                assert found.value == said(case.answer, metric), metric
    for step in ("prefill", "decode"):
        wanted: dict[str, float] = {}
        for kernel in getattr(case.answer, step).kernels:
            wanted[kernel.name] = wanted.get(kernel.name, 0.0) + kernel.time_us
        for name, value in list(wanted.items())[::4]:
            assert checked(case, f"{step}.{name}").value == pytest.approx(value, rel=EXACT), name


MODELS = (
    "llama-3-8b",
    "mixtral-8x7b",
    "gpt-oss-20b",
    "deepseek-v2-lite",
    "gemma-3-27b",
    "qwen3-next-80b-a3b",
    "jamba-v0.1",
)
SPLITS: tuple[dict[str, Any], ...] = (
    {}, {"tp": 2}, {"pp": 2, "microbatches": 2}, {"dp": 2}, {"tp": 2, "ep": 2}, {"cp": 2}, {"draft": "ngram"},
)  # fmt: skip


@settings(max_examples=12, deadline=None)
@given(
    model=st.sampled_from(MODELS), gpu=st.sampled_from(("h100-sxm", "b200-sxm", "a100-sxm-80gb")),
    split=st.sampled_from(SPLITS), engine=st.sampled_from(("vllm", "sglang", "trtllm", "ideal")),
    batch=st.integers(1, 4096), isl=st.integers(1, 100_000), osl=st.integers(1, 5000),
    metric=st.sampled_from((*STATIC, *STEPS)),
)  # fmt: skip
def test_any_deployment_at_any_state(**drawn: Any) -> None:
    model, metric, split = drawn.pop("model"), drawn.pop("metric"), drawn.pop("split")
    try:
        case = make(model, {**drawn, **split})
    except InputError:
        return  # no such deployment
    try:
        found = checked(case, metric)
    except InputError as error:
        assert "nothing limits the context" in str(error)
        return
    if metric not in ("params", "params_active", "ridge", "keep"):
        assert found.value == pytest.approx(said(case.answer, metric), rel=EXACT)


def test_the_five_minute_rule_is_that_of_a_trace(tmp_path: Path) -> None:
    """Equal requests, so that the trace has the lengths of the question."""
    rows = "".join(f'{{"timestamp": {at * 1000}, "input_length": 2048, "output_length": 64, "hash_ids": [{at}]}}\n'
                   for at in range(4))  # fmt: skip
    (file := tmp_path / "equal.jsonl").write_text(rows)
    own, *_ = rk.trace(file, model="llama3-8b").memories
    found = rk.explain("llama3-8b", "five-minute-rule", isl=2048, osl=64)
    assert (found.metric, found.unit) == ("keep", "s")
    assert found.value == pytest.approx(own.keep_s, rel=1e-6)
    assert "doi:10.1145/38713.38755" in str(found.root.source)


@pytest.mark.parametrize(
    ("model", "metric", "scenario", "symbol", "value"),
    [
        ("llama3-8b", "kv", {}, "block", 16.0),  # vLLM's
        ("llama3-8b", "kv", {"block_size": 32}, "block", 32.0),
        ("gpt-oss-20b", "kv", {"isl": 3000}, "cap", 128.0),
        ("gpt-oss-20b", "decode", {"isl": 3000, "osl": 9}, "w", 128.0),
        ("llama3-8b", "prefill.attention", {"kv_policy": "window:512"}, "w", 512.0),
        ("llama-4-scout", "prefill.flops", {"tp": 8, "isl": 9000}, "u", 8192.0),
        ("llama3-8b", "prefill.host", {"isl": 20_000, "allow_oom": True}, "budget", 8192.0),
        ("mixtral-8x7b", "decode", {"tp": 2}, "missed", 0.75),
    ],
)
def test_sizes_that_someone_chose_have_lines_of_their_own(
    model: str, metric: str, scenario: dict[str, Any], symbol: str, value: float
) -> None:
    lines = [node for node in checked(make(model, scenario), metric).root.walk() if node.symbol == symbol]
    assert value in {line.value for line in lines}
    for line in (line for line in lines if line.value == value):
        assert line.source is not None and not line.formula
        assert line.source.text != "a constant here"


def test_a_line_has_one_title_and_what_adds_nothing_has_none() -> None:
    for model, scenario in DEPLOYMENTS:
        case = make(model, scenario)
        for metric in ("tpot", "prefill", "memory"):
            root = derive(case, metric).root
            titles = {node.title for node in root.walk()}
            for title in titles:  # as "a decode step of all that run: mean time of an output token"
                assert not [other for other in titles if other != title and f": {other}" in title], title
            for node in root.walk():
                added = node.formula.split(" + ") if "(" not in node.formula else []
                zero = {child.symbol for child in node.children if not child.value}
                assert len(added) == 1 or not zero & set(added), (node.formula, zero)


@pytest.mark.parametrize("model", ["llama3-8b", "deepseek-v2-lite"])
def test_kernels_that_a_deployment_slows_down(model: str) -> None:
    """Costs that come from a deployment's own benchmark files, and grouped heads that are read again."""
    case = make(model, {"batch": 9})
    plan = case.predictor.plan
    costs = replace(plan.engine.costs, memory=1.3, compute=1.1, grouped=0.2, hidden=0.4)
    slower = Predictor.of(replace(plan, engine=replace(plan.engine, costs=costs)))
    found = checked(replace(case, predictor=slower), "tpot")
    assert found.value / 1e3 == pytest.approx(float(slower.tpot(case.work).expected), rel=EXACT)
    assert found.value > 1.1 * case.answer.tpot_ms


class TestFormulas:
    """What people know by heart stands there in their own words."""

    @pytest.mark.parametrize(("metric", "symbol", "formula"), [
        ("decode.qkv_proj", "F", "2*m*n*k"),
        ("decode.qkv_proj", "n", "q + k + v"),
        ("decode.qkv_proj", "w", "n*k*b_bf16"),
        ("decode.qkv_proj", "t", "launch + pn(compute, memory, 4) + besides"),
        ("decode.qkv_proj", "compute", "F*m_r/m*(1 + k0/k)/(ec*P)"),
        ("decode.qkv_proj", "qkv_proj", "max(slow*max(max(n*t*r, bound) - hidden*n*launch, bound), bound)"),
        ("decode.qkv_proj", "bound", "n*max(F/P, s/W)"),
        ("decode.attention", "F", "2*H*(d_qk + d_v)*pairs"),
        ("decode.attention", "kr", "keys*K*(d_qk + d_v)*b_bf16"),
        ("decode.attention", "keys", "batch*(past + 1)"),
        ("tpot", "TPOT", "fixed + w1*attention1 + w2*attention2 + w3*attention3"),
        ("e2e", "E2E", "TTFT + (osl - 1)*TPOT"),
        ("ridge", "ridge", "P/W"),
        ("kv_per_token", "kv", "L*K*(d + e)*b_bf16"),
        ("memory", "total", "weights + kv + activations + engine"),
    ])  # fmt: skip
    def test_of_a_dense_model(self, metric: str, symbol: str, formula: str) -> None:
        root = rk.explain("llama3-8b", metric, batch=32).root
        assert next(node.formula for node in root.walk() if node.symbol == symbol and node.formula) == formula

    def test_under_load(self) -> None:
        """What was played adds up, then come the formulas of the decode step and of the own prompt."""
        tpot, ttft = (rk.explain("llama3-8b", metric, rate=8.0).root for metric in ("tpot", "ttft"))
        assert tpot.formula == "weights + kv_cache + compute + above_bound + engine + prompts"
        assert ttft.formula == "front_end + under_way + behind + prompt"
        assert {"F", "s", "keys", "batch"} <= {node.symbol for node in tpot.walk()}
        own = next(node for node in ttft.walk() if node.symbol == "own")
        assert own.value == pytest.approx(rk.estimate("llama3-8b", rate=8.0).prefill.time_ms / 1e3)
        assert "2,000 requests played, the first 400 not counted" in str(ttft.children[0].source)

    def test_the_rate_of_a_closed_loop_is_littles_law(self) -> None:
        root = rk.explain("llama3-8b", "rate", concurrency=16).root
        assert root.formula == "L/E2E"
        assert root.children[0].value == pytest.approx(16.0, rel=0.01)  # the last answers leave others alone

    def test_a_percentile_is_one_of_the_requests(self) -> None:
        found = rk.explain("llama3-8b", "ttft_p95", rate=8.0)
        assert found.root.title == "of 1,600 requests that count, the 1,520th by TTFT"
        assert "the law of a full engine" in str(rk.explain("llama3-8b", "knee_rate", rate=8.0))

    def test_a_wrong_formula_is_seen(self) -> None:
        parts = tuple(Node(symbol, "", value, "") for symbol, value in (("a", 2.0), ("b", 3.0)))
        assert Node("x", "", 6.0, "", "a + b", parts).gap == pytest.approx(1 / 6)

    def test_a_missing_symbol_is_an_error(self) -> None:
        with pytest.raises(NameError):
            evaluate("a*b", {"a": 1.0})

    def test_numbers_are_put_in_for_whole_symbols_only(self) -> None:
        assert substituted("k*k0 + max(k, 1)", {"k": "4096", "k0": "90"}) == "4096*90 + max(4096, 1)"

    def test_what_stands_in_a_formula_many_times_is_worked_out_once(self) -> None:
        """Written out, this one has 2^60 operators."""
        grown = Pool({"x": 0.5}).variable("x", Quantity("x", ""))
        for _ in range(60):
            grown = grown * (1.0 - grown)
        root = tree(named(grown, "z", "of a routine"))
        assert (root.formula, root.children) == ("", ())
        assert 0.0 < root.value < 0.02

    @given(x=st.floats(0.1, 10.0), y=st.floats(0.1, 10.0))
    @settings(max_examples=50, deadline=None)
    def test_text_reads_back_to_the_value(self, x: float, y: float) -> None:
        """Brackets, signs, powers, and what is left out: zeros, ones, and branches that were not taken."""
        pool = Pool({"x": x, "y": y})
        a, b = pool.variable("x", Quantity("x", "")), pool.variable("y", Quantity("y", ""))
        both = (a - (b - a)) / (a * (b / (a + b))) - -(a + b) * (b - a) ** 2.0 + 0.0 * a
        chosen = pool.apply("where", a < b, a - (1.0 / b), pool.apply("max", b, 0.0) // 0.5)
        overlap = pool.apply("sqrt", pool.apply("sqrt", (a * a) * (a * a) + (b * b) * (b * b)))
        root = tree(named(both * chosen / overlap + 1e-3, "z", "of everything"))
        assert abs(root.recomputed() - root.value) <= 1e-9 * max(abs(root.value), 1.0)
        assert "pn(x, y, 4)" in root.formula
        assert "where" not in root.formula


class TestAnswers:
    def test_the_kernel_shows_parameters_with_their_run_and_spread(self) -> None:
        found = rk.explain("llama3-8b", "decode.attention", batch=32)
        floor = next(node for node in found.root.walk() if node.symbol == "t0")
        assert floor.source
        assert floor.source.std
        assert "attention_decode rows of h100-sxm" in floor.source.text
        ratio = next(node for node in found.root.walk() if node.symbol == "r")
        assert ratio.title.startswith("correction: measured over form at head_dim 128, group 4")

    def test_hand_worked_bytes_of_the_cache(self) -> None:
        """Llama-3-8B, 32 sequences at 2,048 keys: 32 layers read 32·2048·8·256·2 B of keys and values each."""
        found = rk.explain("llama3-8b", "decode.attention.bytes", batch=32, context=2048)
        read = next(node for node in found.root.walk() if node.symbol == "kr")
        assert read.value == 32 * 2048 * 8 * 256 * 2
        assert found.value == 32 * (read.value + 32 * 32 * 256 * 2)

    def test_the_ridge_of_h100_is_295(self) -> None:
        assert rk.explain("llama3-8b", "ridge").value == pytest.approx(295.3, rel=1e-3)

    def test_memory_is_explained_even_where_it_does_not_fit(self) -> None:
        assert rk.explain("llama-3-70b", "memory").value > 140e9
        with pytest.raises(DoesNotFitError):
            rk.explain("llama-3-70b", "tpot")
        assert rk.explain("llama-3-70b", "tpot", allow_oom=True).value > 40

    def test_above_the_knee_waits_are_those_of_the_run(self) -> None:
        found = rk.explain("llama3-8b", "ttft", rate=1000)
        assert found.value == rk.estimate("llama3-8b", rate=1000).ttft_ms
        assert any(warning.startswith("overload") for warning in found.warnings)
        assert rk.explain("llama3-8b", "knee_rate", rate=1000).value < 1000

    @pytest.mark.parametrize("metric", [
        "tpto", "decode.atention", "decode.attention.size", "decode.attention.mfu", "", ".", "prefill.",
        "decode..flops", "x" * 300,
    ])  # fmt: skip
    def test_unknown_metrics(self, metric: str) -> None:
        with pytest.raises(UnknownNameError, match="unknown metric"):
            rk.explain("llama3-8b", metric)

    def test_a_time_may_be_called_time(self) -> None:
        for metric in ("decode", "decode.attention"):
            assert rk.explain("llama3-8b", f"{metric}.time").to_dict() == rk.explain("llama3-8b", metric).to_dict()

    def test_misspelt_numbers_of_kernels_have_a_nearest_name(self) -> None:
        with pytest.raises(UnknownNameError, match=r"nearest: decode\.attention\.bytes"):
            rk.explain("llama3-8b", "decode.attention.byts")
        with pytest.raises(UnknownNameError, match=r"nearest: (?!.*attention\.m[fb]u)"):
            rk.explain("llama3-8b", "decode.attention.mfu")

    def test_metrics_that_do_not_apply(self) -> None:
        for metric in ("queue", "rate", "knee", "tpot_p99"):
            with pytest.raises(InputError, match="under load"):
                rk.explain("llama3-8b", metric)
        with pytest.raises(InputError, match="metric must be a name"):
            rk.explain("llama3-8b", 3)  # type: ignore[arg-type]

    def test_what_was_asked_is_not_said_to_be_a_shape_of_the_model(self) -> None:
        case = make("deepseek-v3", {"gpu": "h200-sxm", "tp": 8})
        leaves = [node for metric in ("decode", "prefill") for node in derive(case, metric).root.walk() if node.source]
        asked = [node for node in leaves if node.symbol in ("batch", "isl", "osl")]
        assert asked
        assert all(node.source and node.source.text == "your input" for node in asked)
        shapes = [node for node in leaves if node.symbol in ("H", "R", "d_rope", "k", "mats")]
        assert shapes
        assert all(node.source and node.source.text.startswith("config of deepseek-v3") for node in shapes)


class TestReport:
    @pytest.mark.parametrize(("model", "scenario"), DEPLOYMENTS[:10:4], ids=lambda v: v if isinstance(v, str) else "")
    def test_text_fits_80_columns_and_json_is_strict(self, model: str, scenario: dict[str, Any]) -> None:
        for metric in ("tpot", "memory", "prefill.flops"):
            found = rk.explain(model, metric, **{"allow_oom": True, **scenario})
            for depth in (None, 1, 4, 99):
                wide = [line for line in plain_text(document(found, depth)).splitlines() if len(line) > 80]
                assert wide == [] or depth == 99, wide
            data = json.loads(to_json(found.to_dict()))
            assert data["value"] == pytest.approx(data["scale"] * data["derivation"]["value"], rel=1e-15)
            assert len(rows(found)) >= sum(1 for _ in found.root.walk())

    def test_json_alone_is_enough_to_check_the_tree(self) -> None:
        def recomputed(node: dict[str, Any]) -> float:
            values = {child["symbol"]: recomputed(child) for child in node["children"]}
            return evaluate(node["formula"], values) if node["formula"] else node["value"]

        data = rk.explain("deepseek-v3", "tpot", gpu="h200-sxm", tp=8).to_dict()
        assert data["scale"] * recomputed(data["derivation"]) == pytest.approx(data["value"], rel=1e-11)

    def test_markdown_is_a_nested_list(self) -> None:
        text = markdown_text(document(rk.explain("llama3-8b", "kv_per_token")))
        assert text.startswith("## kv_per_token of llama-3-8b")
        assert "\n- **kv** = 131 kB" in text
        assert "\n  - **K** = 8" in text

    def test_quantities(self) -> None:
        assert quantity(0.5, "") == "0.5"
        assert quantity(8030261248.0, "") == "8.03 G"
        assert quantity(989.4e12, "FLOP/s") == "989 TFLOP/s"

    def test_a_number_and_its_unit_stay_together(self) -> None:
        case = make("llama3-8b", {"tp": 8})
        for metric in ("tpot", "prefill.bound", "max_batch"):
            text = plain_text(document(derive(case, metric), 2))
            lines = [line.lstrip("│├└ ") for line in text.splitlines()]
            torn = [
                pair
                for pair in pairwise(lines)
                if re.search(r"\d$", pair[0]) and re.match(r"([kMGTµmn]?[Bs])\b", pair[1])
            ]
            assert torn == []
            assert "\u00a0" not in text

    def test_one_formula_is_not_many(self) -> None:
        case = make("llama3-8b", {})
        text = " ".join(plain_text(document(derive(case, "kv_per_token"))).split())
        assert "self-check passed: 1 formula, worked out again to" in text
        assert "a kernel, such as" not in plain_text(document(derive(case, "memory"), 1))
        assert "pn(x, y, p) = " in plain_text(document(derive(case, "decode.qkv_proj")))
        assert "pn(x, y, p) = " not in plain_text(document(derive(case, "memory")))

    @pytest.mark.parametrize(("metric", "noted", "calibrated"), [
        ("params", False, False), ("kv_per_token", False, False), ("max_batch", True, False), ("tpot", True, True),
    ])  # fmt: skip
    def test_remarks_are_about_the_number(self, metric: str, noted: bool, calibrated: bool) -> None:
        """Whether 70B fits says nothing of its parameters; no calibration counts bytes."""
        found = derive(make("llama-3-70b", {}), metric)
        text = plain_text(document(found))
        assert ("does not fit" in text, "calibration h100" in text) == (noted, calibrated)
        assert bool(found.to_dict()["warnings"]) == noted


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["explain", *arguments])


class TestCommand:
    def test_it_takes_the_options_of_estimate(self) -> None:
        own, shared = find("explain").options, find("estimate").options
        assert set(own) == set(shared) - {"plots", "kernels"} | {"depth"}
        assert all(row is shared[name] for name, row in own.items() if name in shared)

    def test_options_change_the_answer(self) -> None:
        plain, other = run("llama3-8b", "kv_per_token"), run("llama3-8b", "kv_per_token", "--kv", "fp8")
        assert "kv = 131 kB" in plain.stdout
        assert "kv = 65.5 kB" in other.stdout

    def test_the_terminal_has_80_columns_and_every_bracket_a_source(self) -> None:
        for metric in ("tpot", "memory", "max_batch", "decode.flops", "prefill.qkv_proj"):
            result = run("llama3-8b", metric, "--batch", "8")
            assert result.exit_code == 0, result.stderr
            lines = result.stdout.splitlines()
            assert max(map(len, lines)) <= 80
            assert lines[0] == f"{metric} of llama-3-8b on h100-sxm, vllm"
            listed = {line.split("]")[0] for line in lines if line.startswith("[")}
            words = (word for line in lines if not line.startswith("[") for word in line.split())
            used = {word.split("]")[0] for word in words if word[:1] == "["}
            assert {mark for mark in used if mark[1:].isdigit()} <= listed

    def test_a_number_that_many_formulas_share_is_looked_at_once(self) -> None:
        """Sixty squares one in the other have 2^60 paths: the answer is there at once, not in years."""
        node = Node("x", "a number", 1.0, "")
        for number in range(1, 61):
            node = Node("x", f"square {number}", 1.0, "", "x*x", (node, node))
        found = Derivation("tpot", 1e3, "ms", 1e3, node, rk.estimate("llama-3-8b"))
        assert "shows it, up to 60" in plain_text(document(found))
        for text in (plain_text(document(found, 60)), markdown_text(document(found, 60))):
            assert text.count("square 59") == 2  # once opened, once as what stands above
            assert text.count("a number") == 2

    def test_depth_opens_the_tree(self) -> None:
        sizes = [len(run("llama3-8b", "decode.attention", "--depth", str(depth)).stdout) for depth in (1, 2, 4)]
        assert sizes == sorted(set(sizes))

    def test_formats(self) -> None:
        data = json.loads(run("llama3-8b", "tpot", "--format", "json").stdout)
        assert data["metric"] == "tpot"
        assert data["derivation"]["children"]
        rows = list(csv.DictReader(io.StringIO(run("llama3-8b", "kv_per_token", "--format", "csv").stdout)))
        assert rows[0]["path"] == "kv"
        assert "kv.K" in {row["path"] for row in rows}
        assert run("llama3-8b", "ridge", "--format", "md").stdout.startswith("## ridge of llama-3-8b")

    def test_a_file_is_not_overwritten(self, tmp_path: Any) -> None:
        path = tmp_path / "tree.json"
        for options, code in (((), 0), ((), 2), (("--force",), 0)):
            assert run("llama3-8b", "ridge", "--format", "json", "--out", str(path), *options).exit_code == code

    @pytest.mark.parametrize(("arguments", "code", "words"), [
        (["llama3-8b", "tpto"], 2, "unknown metric 'tpto'; nearest: tpot"),
        (["llama3-8b", "zzzz"], 2, "nearest: tpot, ttft, memory"),
        (["llama3-8b", "queue"], 2, "add --concurrency or --rate"),
        (["llama3-8b", "tpot", "--depth", "0"], 2, "depth must be"),
        (["llama3-8b", "tpot", "--depth", "deep"], 2, "whole number"),
        (["llama-3-70b", "tpot"], 3, "does not fit"),
        (["lama3", "tpot"], 2, "unknown model"),
        (["llama3-8b", "tpot", "--batch", "0"], 2, "batch must be"),
    ])  # fmt: skip
    def test_refusals_are_one_line(self, arguments: list[str], code: int, words: str) -> None:
        result = run(*arguments)
        assert result.exit_code == code, result.output
        assert result.stdout == ""
        assert words in result.stderr
        assert result.stderr.split("\nfits ")[0].count("\n") <= 1  # behind it, which accelerators hold the model
