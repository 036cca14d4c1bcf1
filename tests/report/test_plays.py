"""Loads that a page plays are those that `estimate` plays, for random deployments and loads."""

from __future__ import annotations

import ast
import json
import math
import random
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest

import rooflinekit as rk
from rooflinekit.estimation.estimator import Question, answer, ask
from rooflinekit.estimation.results import Estimate
from rooflinekit.model.graph.javascript import Instance
from rooflinekit.model.types.errors import RooflinekitError
from rooflinekit.report.page.deployment import DOUBTS
from rooflinekit.report.page.loop import loop_source, unnamed
from rooflinekit.report.page.plays import load_data
from rooflinekit.report.page.program import Program

from .making import in_node

MODELS = ("llama-3.1-8b", "llama-3.3-70b", "qwen3-30b-a3b", "mixtral-8x7b", "gpt-oss-120b", "deepseek-v3",
          "deepseek-v3.2", "qwen3-next-80b-a3b", "gemma-3-27b", "llama-4-scout")  # fmt: skip
GPUS = ("h100-sxm", "h200-sxm", "b200-sxm", "a100-sxm-80gb", "l40s", "mi300x")
KINDS: tuple[dict[str, tuple[Any, ...]], ...] = (
    {"tp": (1, 2, 4, 8), "weights": ("fp8", None), "kv": ("fp8", None)},
    {"engine": ("sglang", "trtllm", "gpt-fast", "vllm@0.8.5", "llama.cpp", "ideal"), "tp": (1, 2, 4)},
    {"tp": (1, 2), "dp": (2, 4, 8), "ep": (2, 4, 8), "all_to_all": ("auto", "deepep")},
    {"cp": (2, 4), "tp": (1, 2)},
    {"kv_policy": ("window:1024", "sink:4+508", "evict:2048"), "tp": (1, 2)},
    {"calibration": ("none",), "tp": (1, 2, 4)},
    {"token_budget": (512, 2048), "max_num_seqs": (16, 128), "max_model_len": (None, 32768), "tp": (2, 4)},
    {"eager": (True,), "tp": (1, 2), "pp": (1, 2)},
    {"dp": (4, 8), "ep": (8,), "all_to_all": ("deepep",), "two_batch": (True,)},
    {"draft": ("ngram", "eagle3"), "draft_tokens": (2, 4), "acceptance": (0.6,), "tp": (1, 2)},
)
LOADS: tuple[dict[str, tuple[Any, ...]], ...] = (
    {"rate": (0.1, 1.0, 4.0, 20.0, 200.0)},
    {"concurrency": (1, 7, 64, 300)},
    {"rate": (0.5, 5.0), "requests": (50, 700), "burstiness": (0.0, 0.5, 2.0)},
    {"concurrency": (8, 40), "requests": (100, 500), "warmup": (None, 20)},
    {"rate": (0.5, 5.0), "isl_cv": (0.3, 1.0), "osl_cv": (0.2, 0.7)},
    {"concurrency": (20,), "osl_cv": (0.5,)},
    {"concurrency": (70, 300), "requests": (5, 40)},
)


def random_questions(
    seed: int, kinds: tuple[dict[str, tuple[Any, ...]], ...] = KINDS
) -> Iterator[tuple[Question, Estimate]]:
    """Deployments under load of each kind in turn, with their answers; those that do not exist are passed over."""
    draw, place = random.Random(seed), 0
    while True:
        kind, load, place = kinds[place % len(kinds)], draw.choice(LOADS), place + 1
        for _ in range(50):
            keys = {
                name: value for name, values in {**kind, **load}.items() if (value := draw.choice(values)) is not None
            }
            keys |= {"isl": int(2 ** draw.uniform(3, 13)), "osl": draw.choice((1, 2, 30, 200, 600))}
            try:
                question = ask(draw.choice(MODELS), draw.choice(GPUS), keys)
                found = answer(question, allow_oom=True)
            except RooflinekitError:
                continue
            if found.load is not None and found.load.requests:
                yield question, found
                break


def told(found: Estimate) -> dict[str, float]:
    """What `estimate` says of a load, in seconds."""
    load = found.load
    assert load is not None
    numbers = {
        "running": load.running, "rate": load.rate, "knee": load.knee_rate, "slots": load.slots,
        "busy": load.prompt_share, "queue": (load.queue_ms or 0.0) / 1e3, "rateEach": found.output_tok_s_per_gpu,
        "stable": float(load.stable), "e2e": (found.e2e_ms or 0.0) / 1e3, "memory": found.memory.total_bytes,
        "batch": found.inputs["batch"], "joules": found.energy.energy_per_output_token_j if found.energy else 0.0,
        "watts": found.energy.power_w_per_gpu if found.energy else 0.0,
    }  # fmt: skip
    for name, expected in (("ttft", found.ttft_ms), ("tpot", found.tpot_ms)):
        low, high = (found.interval or {}).get(f"{name}_ms") or (expected, expected)
        near, far = (found.interval80 or {}).get(f"{name}_ms") or (expected, expected)
        ends = {
            "time": expected,
            "bound": found.bound[f"{name}_ms"],
            "low": low,
            "high": high,
            "near": near,
            "far": far,
        }
        numbers |= {f"{name} {end}": value / 1e3 for end, value in ends.items()}
    for name in ("ttft", "tpot", "e2e"):
        percentiles = load.percentiles[f"{name}_ms"]
        numbers |= {f"{name} {share}": (percentiles[share] or 0.0) / 1e3 for share in ("p50", "p90", "p95", "p99")}
    parts = [*load.ttft_parts_ms.values(), load.tpot_parts_ms["prompts"]]
    return numbers | {f"part {place}": part / 1e3 for place, part in enumerate(parts)}


def seen(view: dict[str, Any]) -> dict[str, float]:
    """The same of a view of a page."""
    load = view["load"]
    energy = load["energy"] or {"joules": 0.0, "watts": 0.0}
    numbers = {
        name: load[name] for name in ("running", "rate", "knee", "slots", "busy", "queue", "rateEach", "stable", "e2e")
    }
    numbers |= {"memory": load["memory"]["total"], "batch": max(round(load["sequences"]), 1)}
    numbers |= {name: energy[name] for name in ("joules", "watts")}
    for name in ("ttft", "tpot"):
        numbers |= {f"{name} {end}": load[name][end] for end in ("time", "bound", "low", "high")}
        numbers |= {f"{name} {end}": value for end, value in zip(("near", "far"), load[name]["near"], strict=True)}
    for name in ("ttft", "tpot", "e2e"):
        values = load["sorted"][name] or [load["tpot"]["time"]]
        shares = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
        numbers |= {
            f"{name} {key}": values[max(math.ceil(share * len(values) - 1e-9), 1) - 1] for key, share in shares.items()
        }
    parts = [load["parts"][name] for name in ("front", "late", "behind", "waits", "prompt", "others")]
    return numbers | {f"part {place}": part for place, part in enumerate(parts)}


def compare(count: int, seed: int, kinds: tuple[dict[str, tuple[Any, ...]], ...] = KINDS) -> None:
    """Play so many loads in JavaScript and in Python."""
    page, plans, expected = Program(), list[Any](), list[dict[str, float]]()
    causes, marked = list[dict[str, Any]](), list[list[list[float]]]()
    questions = [each for each, _ in zip(random_questions(seed, kinds), range(count), strict=False)]
    for question, found in questions:
        assert found.load is not None
        causes.append(found.doubt or {})
        marked.append(found.load.others_spans if found.load else [])
        predictor, load = question.resolved.predictor, question.asked
        assert load is not None
        written = page.write(predictor, ("rate" if load.users is None else "users",))
        assert written.plays is not None
        at = {
            "isl": int(float(question.work.isl)) - predictor.plan.image_tokens,
            "osl": int(float(question.work.osl)),
            "speed": 1,
        }
        at |= {"rate": load.rate} if load.users is None else {"users": load.users}
        plans.append((written, load_data(question.asked, found.load.requests + found.load.warmup), at))
        expected.append(told(found))
    printed = page.library.printed()

    def numbered(functions: dict[str, Instance]) -> dict[str, int]:
        return {name: printed.places[each] for name, each in functions.items()}

    scenes = [written.plays.scene for written, _, _ in plans if written.plays]
    views = [
        (
            {
                "static": printed.places[written.static], "gpus": written.gpus, "prefill": written.prefill,
                "decode": written.decode, "loads": written.loads, "load": load,
                "plays": {
                    "functions": numbered(written.plays.functions),
                    "tables": list(map(numbered, written.plays.tables)),
                    "scene": place,
                },
            },
            at,
        )
        for place, (written, load, at) in enumerate(plans)
    ]  # fmt: skip
    data = {"library": printed.data, "doubts": DOUBTS, "offers": {"steps": list(page.steps), "scenes": scenes}}
    answers = in_node(printed.source, json.loads(json.dumps(data)), views=views)["views"]
    for view, right, question, doubts, spans in zip(answers, expected, questions, causes, marked, strict=True):
        assert seen(view) == pytest.approx(right, rel=1e-6, abs=1e-9), question
        assert [*chain(*view["load"]["stripes"])] == pytest.approx([*chain(*spans)], abs=1e-6), question
        said = {f"{name}_ms": cause for name, cause in (view["doubts"] or {}).items()}
        assert said == {name: doubt.cause for name, doubt in doubts.items()}, question


def test_a_page_plays_what_estimate_plays() -> None:
    compare(7, seed=1)


@pytest.mark.long
def test_a_page_plays_what_estimate_plays_for_many() -> None:
    compare(300, seed=2)


def test_lanes_of_pipeline_stages_are_played(monkeypatch: pytest.MonkeyPatch) -> None:
    """With arrivals: in step, two lanes end at one instant, and rounding chooses which is first."""
    monkeypatch.setattr(f"{__name__}.LOADS", ({"rate": (0.5, 5.0), "isl_cv": (0.3,), "osl_cv": (0.2,)},))
    compare(3, 1, ({"pp": (2, 4), "microbatches": (2, 4), "tp": (1, 2)},))


def test_images_are_part_of_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    seeing = {"images": (1, 3), "image_size": ("640x480", None), "tp": (1, 2)}
    monkeypatch.setattr(f"{__name__}.MODELS", ("gemma-3-27b", "llama-4-scout", "qwen2.5-vl-7b"))
    compare(4, 1, (seeing,))


def test_windows_limit_the_places_of_a_page_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang's of DeepSeek-V4, by the prompt's last chunk."""
    monkeypatch.setattr(f"{__name__}.MODELS", ("deepseek-v4-flash",))
    monkeypatch.setattr(f"{__name__}.GPUS", ("h200-sxm",))
    monkeypatch.setattr(f"{__name__}.LOADS", ({"concurrency": (300, 400)}, {"rate": (20.0,)}))
    compare(4, 1, ({"engine": ("sglang",), "tp": (4,), "dp": (1, 2), "prefix_caching": (None, "off")},))


def test_the_loop_of_a_page_asks_for_the_entries_of_tables() -> None:
    """Place by place, also where the loop gives a row a name; a name whose meaning changes is refused."""
    source = loop_source()
    assert "t.decode(local, at)" in source
    assert "t.decode[" not in source
    changing = ast.parse("def f(t, n):\n    row = t.decode[n]\n    n = 3\n    return row[0]").body[0]
    assert isinstance(changing, ast.FunctionDef)
    with pytest.raises(ValueError, match="changes what row stands for"):
        unnamed(changing)


def test_pages_on_static_batches_draw_as_others_do() -> None:
    """Their draws stand in a file: those of a closed loop of 200 users, and of an open loop, from the first seed."""
    users, rate = (ask("llama-3-8b", "h100-sxm", load).asked for load in ({"concurrency": 200}, {"rate": 1.0}))
    assert load_data(None) == load_data(users) | {"gaps": load_data(rate)["gaps"]}


def test_what_nobody_has_room_for_is_no_load() -> None:
    with pytest.raises(rk.DoesNotFitError):
        rk.estimate("llama-3.3-70b", "l40s", rate=1.0)
