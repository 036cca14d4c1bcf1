"""What a page answers in JavaScript is what Python answers, for deployments of every kind."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rooflinekit as rk
from rooflinekit.decision.sensitivity.scaled import scaled
from rooflinekit.estimation.estimator import Question, ask
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.traffic.mixing import slots
from rooflinekit.model.traffic.question import LoadQuestion, answer_load
from rooflinekit.model.types.errors import RooflinekitError
from rooflinekit.model.types.workload import Workload
from rooflinekit.report.page import program
from rooflinekit.report.page.program import Program

NODE = shutil.which("node")
MODELS = ("llama-3.1-8b", "llama-3.3-70b", "qwen3-30b-a3b", "mixtral-8x7b", "gpt-oss-120b", "deepseek-v3", "deepseek-v3.2",
          "qwen3-next-80b-a3b", "gemma-3-27b", "llama-4-scout")  # fmt: skip
GPUS = ("h100-sxm", "h200-sxm", "b200-sxm", "a100-sxm-80gb", "l40s")
KINDS: tuple[dict[str, tuple[Any, ...]], ...] = (
    {"weights": ("fp8", "int4"), "kv": ("fp8", None)},
    {"tp": (1, 2, 4), "pp": (2, 4), "microbatches": (1, 2, 4)},
    {"tp": (1, 2), "dp": (2, 4), "ep": (2, 4, 8), "skew": (0.0, 1.2), "redundant_experts": (0, 8)},
    {"cp": (2, 4), "tp": (1, 2)},
    {"kv_policy": ("window:1024", "sink:4+508", "topk:2048", "evict:2048")},
    {"draft": ("ngram", "llama-3.2-1b", "eagle3", "medusa", "mtp"), "draft_tokens": (2, 4), "acceptance": (0.6, 0.8)},
    {"cached": (1, 100, 500), "tp": (1, 2)},
    {"context": (1, 700, 20_000)},
    {"rate": (0.05, 2.0, 30.0, 500.0), "burstiness": (0.5, 1.0), "isl_cv": (0.0, 0.7), "tp": (1, 2), "dp": (1, 2)},
    {"concurrency": (1, 40, 3000), "requests": (None, 6000), "osl_cv": (0.0, 0.5), "tp": (1, 2)},
    {"engine": ("gpt-fast", "sglang", "trtllm", "vllm@0.8.5", "ideal"), "token_budget": (None, 1024), "tp": (1, 4)},
    {"calibration": ("none",), "power_cap": (None, 400.0), "max_model_len": (None, 8192), "eager": (None, True)},
)


def random_questions(seed: int) -> Iterator[Question]:
    """Deployments of each kind in turn, of which some do not exist and are passed over."""
    draw, place = random.Random(seed), 0
    while True:
        kind, place = KINDS[place % len(KINDS)], place + 1
        for _ in range(50):
            keys = {name: value for name, values in kind.items() if (value := draw.choice(values)) is not None}
            try:
                question = ask(draw.choice(MODELS), draw.choice(GPUS), {"isl": 1000, "osl": 200, **keys})
                if question.load is not None:
                    answer_load(question.resolved.predictor, question.load)
            except RooflinekitError:
                continue
            yield question
            break


def random_state(draw: random.Random, fixed: bool) -> dict[str, float]:
    isl = int(2 ** draw.uniform(1, 15))
    return {"batch": int(2 ** draw.uniform(0, 10)), "isl": isl, "osl": int(2 ** draw.uniform(0, 12)),
            "cached": draw.choice((0, 0, draw.randrange(isl))), "context": int(2 ** draw.uniform(0, 15)) if fixed else 0,
            "speed": draw.choice((1.0, draw.uniform(0.3, 4.0))), "load": 2 ** draw.uniform(-4, 8)}  # fmt: skip


def static_answer(predictor: Predictor, at: dict[str, float], fixed: bool) -> list[Any]:
    """What the first function of a page returns, by the models themselves."""
    own = [float(at[name]) for name in ("batch", "isl", "osl", "cached")]
    work = Workload(*own, float(at["context"]) if fixed else None)
    point = predictor.evaluate(work)
    steps = predictor.plan.time(predictor.prefill_batch(work)), predictor.decode_step(work)
    rows = [
        [program._values(timed) for timed in step.kernels if timed.kernel.family != "host" or timed.time > 0.0]
        for step in steps
    ]
    spans = [[getattr(span, end) for end in program._ENDS] for span in (point.ttft, point.tpot)]
    memory = [getattr(point.memory, name) for name in program._MEMORY]
    return [*spans, memory, point.e2e(work.osl), point.output_rate(work.batch, work.osl), *rows]


def load_answer(predictor: Predictor, load: LoadQuestion, at: dict[str, float]) -> list[Any]:
    from dataclasses import replace

    isl, osl = float(at["isl"]), float(at["osl"])
    asked = {"rate": at["load"]} if load.users is None else {"users": max(round(at["load"]), 1.0)}
    found = answer_load(predictor, replace(load, traffic=replace(load.traffic, isl=isl, osl=osl), **asked)).loaded
    spans = [[getattr(span, end) for end in program._ENDS] for span in (found.ttft, found.tpot)]
    return [*spans, [*(getattr(found, name) for name in program._LOADED), slots(predictor, isl, osl)]]


def difference(found: Any, expected: Any) -> float:
    """The largest relative difference; equal infinities are equal."""
    if isinstance(expected, list):
        assert len(found) == len(expected)
        return max(map(difference, found, expected), default=0.0)
    found, expected = float(found), float(expected)
    return 0.0 if found == expected or abs(found - expected) < 1e-24 else abs(found - expected) / max(abs(found), abs(expected))


def compare(count: int, states: int, seed: int) -> float:
    """The largest difference over so many deployments, each at so many random states."""
    draw, page, calls, expected, kinds = random.Random(seed), Program(), [], [], []
    for _, question in zip(range(count), random_questions(seed), strict=False):
        predictor, load, fixed = question.resolved.predictor, question.load, question.work.context is not None
        written = page.write(predictor, load, fixed)
        for _ in range(states):
            at = random_state(draw, fixed)
            there = predictor if at["speed"] == 1.0 else scaled(predictor, "bandwidth", at["speed"])
            calls.append((written.static, [at[name] for name in program.INPUTS]))
            kinds.append(written)
            expected.append(static_answer(there, at, fixed))
            if load is not None and written.load is not None:
                users = load.users is not None
                try:
                    expected.append(load_answer(there, load, at))
                except RooflinekitError:  # not one request fits
                    continue
                sent = max(round(at["load"]), 1) if users else at["load"]
                calls.append((written.load, [sent, at["isl"], at["osl"], at["speed"]]))
                kinds.append(None)
    printed = page.printed()
    asked = {"source": printed.source, "data": printed.data,
             "calls": [(printed.places[function], inputs) for function, inputs in calls]}  # fmt: skip
    assert NODE is not None
    command = [NODE, str(Path(__file__).with_name("answers.cjs"))]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, check=True)
    answers = json.loads(done.stdout)
    steps, worst = list(page.steps), 0.0
    for found, right, written in zip(answers, expected, kinds, strict=True):
        if written is not None:
            found[-2:] = [real_parts(steps[place], rows) for place, rows in zip((written.prefill, written.decode), found[-2:])]
        worst = max(worst, difference(found, right))
    return worst


def real_parts(kinds: tuple[tuple[Any, ...], ...], rows: list[Any]) -> list[Any]:
    """Without what an engine adds that takes no time."""
    return [row for (_, family, *_), row in zip(kinds, rows, strict=True) if family != "host" or row[1] > 0.0]


needs_node = pytest.mark.skipif(NODE is None, reason="node is not installed")


@needs_node
def test_javascript_answers_as_python() -> None:
    assert compare(60, 2, seed=1) < 1e-12


@needs_node
@pytest.mark.long
def test_javascript_answers_as_python_for_many() -> None:
    assert compare(500, 3, seed=2) < 1e-12


def test_a_step_is_split_by_cause_as_the_estimate_is() -> None:
    """The page's split of a step's time by cause, on the numbers of `estimate`."""
    assert rk
