"""The advice of a page is that of `advice`: the same moves in the same order, with the same gains and words."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import rooflinekit as rk
from rooflinekit.decision.sensitivity.moves import Advice, advice, said_best
from rooflinekit.report.page.offers import APART

from .making import STATES, data_of, functions_of, in_node, page_of


def keywords(label: str) -> dict[str, Any]:
    """A state of a page as keywords of `estimate`."""
    at = dict(zip(STATES, label.split(APART), strict=True))
    split = at.pop("tp")
    degrees = {"tp": int(split)} if split.isdigit() else {word[:2]: int(word[2:]) for word in split.split()}
    return {name: value for name, value in at.items() if value != "own"} | degrees


def compare(page: str, count: int, seed: int, load: str = "") -> list[tuple[Advice, ...]]:
    """Advice on random states of a page, in JavaScript and in Python.

    Not of replicas with experts whole: twice their tensor parallelism is in no page.
    """
    data, draw = data_of(page), random.Random(seed)
    labels = [label for label in data["offers"]["plans"] if label.endswith(f"{APART}vllm") and "dp" not in label]
    states, found = [], []
    for label in draw.choices(labels, k=count):
        at: dict[str, Any] = dict(zip(STATES, label.split(APART), strict=True))
        numbers = {"isl": int(2 ** draw.uniform(4, 13)), "osl": draw.choice((16, 128, 512))}
        numbers |= {load: draw.choice((0.5, 2.0, 8.0) if load == "rate" else (4, 40))} if load else {
            "batch": int(2 ** draw.uniform(0, 9))}  # fmt: skip
        asked = {{"users": "concurrency"}.get(name, name): value for name, value in numbers.items()}
        try:
            found.append(rk.estimate(**keywords(label), **asked))
        except rk.DoesNotFitError:
            continue
        states.append(at | {"cached": 0, "speed": 1} | numbers)
    shown = in_node(functions_of(page), data, states=states)["states"]
    told = [advice(answer) for answer in found]
    for state, there, here, answer in zip(states, shown, told, found, strict=True):
        assert [tuple(move[:2]) for move in there["moves"]] == [(each.metric, each.move) for each in here], state
        near = 1e-3 if there["repeated"] else 1e-9  # more requests than a page has lengths for, which it says
        assert [move[2] for move in there["moves"]] == pytest.approx([each.change for each in here], rel=near), state
        assert there["said"] == said_best(here, answer.load is None or answer.load.stable), state
        assert not there["batch"]
    return told


@pytest.mark.slow
def test_a_page_advises_what_python_does(tmp_path: Path) -> None:
    page = page_of(tmp_path, "qwen3-30b-a3b", batch=16, models=[], gpus=["l40s"], engines=[], walk=False)
    told = compare(page, 60, seed=1)
    assert len(told) > 50
    assert sum(bool(each) for each in told) > 40


@pytest.mark.long
@pytest.mark.parametrize("load", ["rate", "users"])
def test_a_page_under_load_advises_what_python_does(tmp_path: Path, load: str) -> None:
    """Loads are played: the two moves that are best for a static batch of what runs."""
    asked = {"rate": 4.0} if load == "rate" else {"concurrency": 8}
    page = page_of(tmp_path, "mixtral-8x7b", tp=2, **asked, models=[], gpus=[], engines=[], walk=False)
    assert len(compare(page, 12, 2, load)) > 6
