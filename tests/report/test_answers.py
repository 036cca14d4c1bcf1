"""What a page answers in JavaScript is what Python answers, for deployments of every kind."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import rooflinekit as rk
from rooflinekit.decision.sensitivity.levers import scaled
from rooflinekit.estimation.estimator import Question, ask
from rooflinekit.estimation.results import EnergyResult
from rooflinekit.model.graph.javascript import Printed
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.power import PARTS
from rooflinekit.model.roofline import time_parts
from rooflinekit.model.serving.energy import TokenEnergy, load_power, static_energy
from rooflinekit.model.types.errors import RooflinekitError
from rooflinekit.model.types.time import ENDS, Time
from rooflinekit.model.types.workload import Workload
from rooflinekit.report.page.program import INPUTS, MEMORY, Program, Written, values

from .making import FEW, in_node, page_of, view_of

MODELS = ("llama-3.1-8b", "llama-3.3-70b", "qwen3-30b-a3b", "mixtral-8x7b", "gpt-oss-120b", "deepseek-v3",
          "deepseek-v3.2", "qwen3-next-80b-a3b", "gemma-3-27b", "llama-4-scout")  # fmt: skip
CASES: tuple[tuple[str, str, dict[str, Any], str | None], ...] = (
    ("llama-3.1-8b", "h100-sxm", {}, None),  # dense
    ("llama-3.1-8b", "h100-sxm", {"engine": "gpt-fast"}, None),  # decode without graphs
    ("llama-3.3-70b", "b200-sxm", {"tp": 8, "weights": "fp8", "kv": "fp8", "engine": "trtllm"}, None),  # quantised
    ("qwen3-30b-a3b", "h200-sxm", {"tp": 2, "engine": "sglang"}, None),  # experts
    ("gpt-oss-120b", "h100-sxm", {}, None),  # windows, MXFP4
    ("deepseek-v3.2", "h200-sxm", {"tp": 8}, None),  # latent and sparse attention
    ("qwen3-next-80b-a3b", "h100-sxm", {"tp": 2}, None),  # recurrent layers
    ("mixtral-8x7b", "a100-sxm-80gb", {"tp": 2}, "none"),  # the bare bound
    ("llama-3.1-8b", "l40s", {"tp": 4}, None),  # over PCI Express
    ("qwen2.5-vl-7b", "h100-sxm", {"tp": 2, "images": 2, "image_size": "640x480"}, None),  # images
    ("deepseek-v3", "h200-sxm", {"dp": 8, "ep": 8, "all_to_all": "deepep", "engine": "sglang"}, None),  # exchanges
    ("deepseek-v3", "h200-sxm", {"dp": 8, "ep": 8, "all_to_all": "deepep", "two_batch": True}, None),  # that hide
)
GPUS = ("h100-sxm", "h200-sxm", "b200-sxm", "a100-sxm-80gb", "l40s")
KINDS: tuple[dict[str, tuple[Any, ...]], ...] = (
    {"weights": ("fp8", "int4"), "kv": ("fp8", None)},
    {"tp": (1, 2, 4), "pp": (2, 4), "microbatches": (1, 2, 4)},
    {
        "tp": (1, 2),
        "dp": (2, 4),
        "ep": (2, 4, 8),
        "skew": (0.0, 1.2),
        "redundant_experts": (0, 8),
        "all_to_all": ("auto", "deepep"),
    },
    {"cp": (2, 4), "tp": (1, 2)},
    {"kv_policy": ("window:1024", "sink:4+508", "topk:2048", "evict:2048")},
    {"draft": ("ngram", "llama-3.2-1b", "eagle3", "medusa", "mtp"), "draft_tokens": (2, 4), "acceptance": (0.6, 0.8)},
    {"cached": (1, 100, 500), "tp": (1, 2)},
    {"context": (1, 700, 20_000)},
    {"engine": ("gpt-fast", "sglang", "trtllm", "vllm@0.8.5", "ideal"), "token_budget": (None, 1024), "tp": (1, 4)},
    {"slow": (1.1,), "grouped": (0.0, 0.4), "tp": (1, 2), "dp": (1, 2)},
    {"calibration": ("none",), "power_cap": (None, 400.0), "max_model_len": (None, 8192), "eager": (None, True)},
)


def random_questions(seed: int) -> Iterator[Question]:
    """Deployments of each kind in turn, of which some do not exist and are passed over."""
    draw, place = random.Random(seed), 0
    while True:
        kind, place = KINDS[place % len(KINDS)], place + 1
        for _ in range(50):
            keys = {name: value for name, values in kind.items() if (value := draw.choice(values)) is not None}
            costs = {"memory": keys.pop("slow", 1.0), "grouped": keys.pop("grouped", 0.0)}
            try:
                question = ask(draw.choice(MODELS), draw.choice(GPUS), {"isl": 1000, "osl": 200, **keys})
                if costs["memory"] != 1.0:
                    question = slower(question, costs)
            except RooflinekitError:
                continue
            yield question
            break


def slower(question: Question, costs: dict[str, float]) -> Question:
    """The same on an engine whose costs are fitted to benchmark files."""
    predictor = question.resolved.predictor
    engine = predictor.plan.engine
    fitted = replace(engine, costs=replace(engine.costs, **costs))
    other = predictor.on(replace(predictor.plan, engine=fitted))
    return replace(question, resolved=replace(question.resolved, predictor=other))


def random_state(draw: random.Random, fixed: bool) -> dict[str, float]:
    isl = int(2 ** draw.uniform(1, 15))
    return {
        "batch": int(2 ** draw.uniform(0, 10)),
        "isl": isl,
        "osl": int(2 ** draw.uniform(0, 12)),
        "cached": draw.choice((0, 0, draw.randrange(isl))),
        "context": int(2 ** draw.uniform(0, 15)) if fixed else 0,
        "speed": draw.choice((1.0, draw.uniform(0.3, 4.0))),
    }


def static_answer(predictor: Predictor, at: dict[str, float], fixed: bool) -> list[Any]:
    """What the first function of a page returns, by the models themselves."""
    own = [float(at[name]) for name in ("batch", "isl", "osl", "cached")]
    own[1] = predictor.plan.prompt(own[1])
    work = Workload(*own, float(at["context"]) if fixed else None)
    point = predictor.evaluate(work)
    rows = [
        [
            values(timed, predictor.plan.energy(timed))
            for timed in step.kernels
            if timed.kernel.family != "host" or timed.expected > 0.0
        ]
        for step in (point.prefill, point.decode)
    ]
    spans = [[getattr(span, end) for end in ENDS] for span in (point.ttft, point.tpot)]
    memory = [getattr(point.memory, name) for name in MEMORY]
    rate = point.output_rate(work.batch, work.osl)
    gpu = predictor.plan.system.accelerator
    parts = [list(time_parts(step, gpu).values()) for step in (point.prefill, point.decode)]
    spent = energies(static_energy(predictor, work, point), work) if gpu.power else 0.0
    return [*spans, memory, point.e2e(work.osl), rates(predictor, rate, point.tpot), spent, *rows, parts]


def energies(tokens: TokenEnergy, work: Workload) -> list[Any]:
    """Power, share of busy time and joules, as the command line has them."""
    found = EnergyResult.of(tokens, work, load_power(tokens, work.osl, lone=1.0))
    parts = [list(found.parts_j.values())]
    parts += [[float(getattr(each, part)) for part in PARTS] for each in (tokens.step, tokens.prompt)]
    prompt = [joules / float(work.isl - work.cached) for joules in parts[2]]
    return [[found.power_w_per_gpu, found.busy, found.energy_per_output_token_j], *parts[:2], prompt]


def rates(predictor: Predictor, rate: Any, tpot: Time) -> list[Any]:
    return [rate, rate / predictor.plan.deployment.gpus, 1.0 / tpot.expected]


def difference(found: Any, expected: Any) -> float:
    """The largest relative difference; equal infinities are equal."""
    if isinstance(expected, list):
        assert len(found) == len(expected)
        return max(map(difference, found, expected), default=0.0)
    found, expected = float(found), float(expected)
    if found == expected or abs(found - expected) < (1e-15 if 0.0 in (found, expected) else 1e-24):
        return 0.0  # seconds or joules that nothing takes, but for rounding
    return abs(found - expected) / max(abs(found), abs(expected))


def compare(count: int, states: int, seed: int) -> float:
    """The largest difference over so many deployments, each at so many random states."""
    draw, page = random.Random(seed), Program()
    calls: list[tuple[Written, list[float]]] = []
    expected: list[Any] = []
    for _, question in zip(range(count), random_questions(seed), strict=False):
        predictor, fixed = question.resolved.predictor, question.work.context is not None
        written = page.write(predictor, (), fixed)
        for _ in range(states):
            at = random_state(draw, fixed)
            there = predictor if at["speed"] == 1.0 else scaled(predictor, "bandwidth", at["speed"])
            calls.append((written, [at[name] for name in INPUTS]))
            expected.append(static_answer(there, at, fixed))
    printed, steps = page.library.printed(), list(page.steps)
    data = {"library": printed.data, "offers": {"steps": steps}}
    asked = [(printed.places[written.static], inputs) for written, inputs in calls]
    largest = 0.0
    for found, right, (written, _) in zip(in_node(printed.source, data, asked)["calls"], expected, calls, strict=True):
        places = written.prefill, written.decode
        found[-3:-1] = [timed_parts(steps[place], rows) for place, rows in zip(places, found[-3:-1], strict=True)]
        largest = max(largest, difference(found, right))
    return largest


def timed_parts(kinds: tuple[tuple[Any, ...], ...], rows: list[Any]) -> list[Any]:
    """Without what an engine adds that takes no time."""
    return [row for (_, family, *_), row in zip(kinds, rows, strict=True) if family != "host" or row[0] > 0.0]


def test_javascript_answers_as_python() -> None:
    assert compare(30, 2, seed=1) < 1e-12


def test_javascript_answers_as_python_of_images(monkeypatch: pytest.MonkeyPatch) -> None:
    seeing = {"images": (1, 3), "image_size": ("640x480", None), "tp": (1, 2)}
    monkeypatch.setattr(f"{__name__}.KINDS", (seeing,))
    monkeypatch.setattr(f"{__name__}.MODELS", ("gemma-3-27b", "llama-4-scout", "qwen2.5-vl-7b"))
    assert compare(5, 2, seed=1) < 1e-12


def test_what_deployments_share_is_what_each_would_have_been_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions that were traced for the first accelerator, with the kernels and numbers of others in place of its."""

    def library() -> Printed:
        page = Program()
        for gpu, tp, engine in product((*GPUS, "mi350x", "rtx-6000-ada"), (1, 2), ("vllm", "llama.cpp")):
            page.write(*written(gpu, tp, engine))
        return page.library.printed()

    def written(gpu: str, tp: int, engine: str) -> tuple[Predictor, tuple[str, ...]]:
        question = ask("llama-3.1-8b", gpu, {"tp": tp, "engine": engine, "concurrency": 8})
        return question.resolved.predictor, ("rate", "users")

    shared = library()
    monkeypatch.setattr(Program, "_shared", lambda *_: None)
    alone = library()
    assert shared.source == alone.source
    assert shared.data == alone.data


@pytest.mark.long
def test_javascript_answers_as_python_for_many() -> None:
    assert compare(500, 3, seed=2) < 1e-12


USUAL, OTHERS = CASES[::2] + CASES[11:], CASES[1:11:2]


@pytest.mark.parametrize(
    ("model", "gpu", "keys", "calibration"), [*USUAL, *(pytest.param(*case, marks=pytest.mark.long) for case in OTHERS)]
)
def test_a_page_shows_the_estimate(
    tmp_path: Path, model: str, gpu: str, keys: dict[str, Any], calibration: str | None
) -> None:
    """Kernel by kernel and cause by cause."""
    work = {"batch": 24, "isl": 777, "osl": 99, "calibration": calibration, **keys}
    answer, view = (
        rk.estimate(model, gpu, allow_oom=True, **work),
        view_of(page_of(tmp_path, model, gpu, **work, **FEW)),
    )
    for name, step in (("prefill", answer.prefill), ("decode", answer.decode)):
        kernels = sorted(step.kernels, key=lambda kernel: (kernel.name, kernel.time_us))
        parts = sorted(view[name], key=lambda part: (part["name"], part["time"]))
        assert [part["name"] for part in parts] == [kernel.name for kernel in kernels]
        for part, kernel in zip(parts, kernels, strict=True):
            assert part["time"] * 1e6 == pytest.approx(kernel.time_us, rel=1e-12)
            assert (part["flops"], part["weights"]) == pytest.approx((kernel.flops, kernel.weight_bytes), rel=1e-12)
            assert part["cache"] == pytest.approx(kernel.kv_read_bytes + kernel.kv_write_bytes, rel=1e-12)
        seconds = view["causesFirst" if name == "prefill" else "causes"]
        whole = sum(part["time"] for part in parts)
        assert {cause: time / whole for cause, time in seconds.items()} == pytest.approx(step.shares, abs=1e-12)
        adds_up = [1e3 * time for time in view["parts"][name]]
        assert adds_up == pytest.approx(list(step.time_parts_ms.values()), rel=1e-9, abs=1e-12 * step.time_ms)


@pytest.mark.parametrize("keys", [
    {"tp": 2, "ep": 2, "cached": 500}, {"tp": 2, "context": 3000, "kv_policy": "window:512"},
    {"tp": 1, "pp": 2, "microbatches": 4}, {"tp": 2, "cp": 2, "max_model_len": 4096}, {"dp": 4, "ep": 4},
    {"tp": 2, "draft": "llama-3.2-1b", "draft_tokens": 4, "acceptance": 0.7},
    {"tp": 2, "draft": "ngram", "draft_tokens": 2, "acceptance": 0.4}, {"tp": 2, "skew": 1.2, "engine": "sglang"},
])  # fmt: skip
def test_every_deployment_has_sliders(tmp_path: Path, keys: dict[str, Any]) -> None:
    work = {"batch": 8, **keys}
    page, answer = page_of(tmp_path, "mixtral-8x7b", **work, **FEW), rk.estimate("mixtral-8x7b", **work, allow_oom=True)
    view, more = view_of(page), view_of(page, batch=64, osl=100)
    assert view["ttft"]["time"] * 1e3 == pytest.approx(answer.ttft_ms, rel=1e-12)
    assert view["tpot"]["time"] * 1e3 == pytest.approx(answer.tpot_ms, rel=1e-12)
    assert view["rateEach"] == pytest.approx(answer.output_tok_s_per_gpu, rel=1e-12)
    assert view["memory"]["total"] == pytest.approx(answer.memory.total_bytes, rel=1e-12)
    assert sum(part["time"] for part in view["decode"]) * 1e3 == pytest.approx(answer.decode.time_ms, rel=1e-12)
    other = rk.estimate("mixtral-8x7b", **(work | {"batch": 64, "osl": 100}), allow_oom=True)
    assert more["tpot"]["time"] * 1e3 == pytest.approx(other.tpot_ms, rel=1e-12)


@pytest.mark.parametrize("load", [
    {"rate": 5.0}, {"rate": 1000.0}, {"rate": 36.0, "isl": 64, "osl": 1000, "gpu": "b200-sxm"},
    {"concurrency": 64, "requests": 640}, {"concurrency": 64, "calibration": "none"},
])  # fmt: skip
def test_a_load_has_sliders(tmp_path: Path, load: dict[str, Any]) -> None:
    page, answer = page_of(tmp_path, "llama-3-8b", **load, **FEW), rk.estimate("llama-3-8b", **load)
    view = view_of(page)
    assert view["load"]["knee"] == pytest.approx(answer.load.knee_rate, rel=1e-9)
    assert view["load"]["tpot"]["time"] * 1e3 == pytest.approx(answer.tpot_ms, rel=1e-12)
    assert bool(view["load"]["stable"]) == answer.load.stable
    assert view["load"]["ttft"]["time"] * 1e3 == pytest.approx(answer.ttft_ms, rel=1e-12)
    assert view["load"]["rateEach"] == pytest.approx(answer.output_tok_s_per_gpu, rel=1e-12)
    assert view["memory"]["kv"] == pytest.approx(answer.memory.kv_bytes, rel=1e-12)
    assert view["memory"]["fits"]
