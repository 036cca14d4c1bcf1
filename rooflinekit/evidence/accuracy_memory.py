"""Predictions of memory against measured start-ups: weights, activation peak, pool, blocks, tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from rooflinekit.evidence.accuracy import Accuracy, score
from rooflinekit.evidence.gguf import gguf_memory
from rooflinekit.evidence.memory_table import Run, Setup, read_memory_tables, setup_of
from rooflinekit.model.memory.capacity import Memory, make_memory_model
from rooflinekit.model.step import Plan, make_plan
from rooflinekit.model.types.engine import Engine
from rooflinekit.model.types.errors import InputError, RooflinekitError
from rooflinekit.model.types.hardware import System
from rooflinekit.model.types.units import GIB
from rooflinekit.specs.engines import load_engine

__all__ = ["engine_of", "memory_accuracy", "memory_of", "predict_run", "run_plan"]

_OF_POOL = ("kv_pool_gib_per_gpu", "kv_pool_tokens", "kv_blocks", "max_concurrency")
_ROOM = 1024  # accelerators that a system may join: what fits does not depend on its links


def memory_accuracy(files: Sequence[Path], progress: Callable[[str], None] | None = None) -> Accuracy:
    """Score memory tables: one group for each engine and quantity.

    A row that cannot be answered (an unknown model, an accelerator whose memory nobody knows) is counted with its
    reason.

    Raises SpecError for a file that is no memory table.
    """
    unanswered: Counter[str] = Counter()
    groups: dict[tuple[str, str], list[tuple[float, float | None]]] = {}
    for run in read_memory_tables(files):
        if progress is not None:
            progress(f"{run.engine} {run.facts['model']}")
        if run.unread:
            unanswered["column 'value' is empty, 0 or no number"] += run.unread
        predicted = _answers(run, unanswered)
        for quantity, measured in run.values.items():
            groups.setdefault((run.engine, quantity), []).append((measured, predicted.get(quantity)))
    scores = []
    for (engine, quantity), pairs in groups.items():
        known = [(measured, value) for measured, value in pairs if value is not None]
        values, answers = (np.array(column, dtype=float) for column in (list(zip(*known, strict=True)) or [(), ()]))
        scores.append(score({"engine": engine, "quantity": quantity}, values, answers, None, len(pairs)))
    answered = sum(group.answered for group in scores)
    return Accuracy(answered + sum(unanswered.values()), answered, dict(unanswered), tuple(scores), "quantity")


def _answers(run: Run, unanswered: Counter[str]) -> Mapping[str, float]:
    try:
        setup = setup_of(run)
        predicted = predict_run(setup, engine_of(setup))
    except RooflinekitError as error:
        unanswered[str(error)] += len(run.values)
        return {}
    if missing := sum(quantity not in predicted for quantity in run.values):
        unanswered[f"nothing tells the memory of {run.facts['gpu'] or 'the accelerator'}"] += missing
    return predicted


def engine_of(setup: Setup) -> Engine | None:
    """The profile of a run; None under llama.cpp, which has none."""
    deployment = setup.deployment
    return None if setup.bits else load_engine(deployment.engine, deployment.engine_version)


def predict_run(setup: Setup, engine: Engine | None) -> dict[str, float]:
    """Every quantity that can be answered for a run, as the table names them.

    Raises InputError (and its kinds) for a deployment that makes no sense.
    """
    if engine is None:
        return _llamacpp(setup)
    memory = memory_of(setup, engine)
    found = {
        "weights_gib_per_gpu": memory.weight_bytes / GIB,
        "non_torch_gib": (memory.non_torch_bytes + engine.memory.context_counts * memory.context_bytes) / GIB,
        "activation_peak_gib": memory.activation_bytes / GIB,
        "cudagraph_gib": memory.graph_bytes / GIB,
    }
    if setup.memory_known:
        pool = (memory.kv_pool_bytes / GIB, memory.kv_pool_tokens, memory.kv_blocks, memory.max_concurrency)
        found |= dict(zip(_OF_POOL, pool, strict=True))
    return {name: float(value) for name, value in found.items()}


def memory_of(setup: Setup, engine: Engine) -> Memory:
    """The memory of a run, for one sequence of its longest length."""
    longest = setup.deployment.settings.max_model_len or setup.model.max_context or 1
    return make_memory_model(run_plan(setup, engine)).evaluate(float(setup.deployment.dp), float(longest), 1.0)


def run_plan(setup: Setup, engine: Engine) -> Plan:
    """The plan of a run on a system that is large enough."""
    system = replace(System.of(setup.accelerator), domain_size=_ROOM, max_gpus=_ROOM)
    return make_plan(setup.model, setup.deployment, system, None, engine)


def _llamacpp(setup: Setup) -> dict[str, float]:
    settings = setup.deployment.settings
    if setup.bits is None or settings.max_model_len is None:
        raise InputError("a llama.cpp run needs bits a weight and max_model_len")
    batch = settings.token_budget or 512
    held = gguf_memory(setup.model, setup.bits, settings.max_model_len, batch, setup.deployment.pp)
    return {
        "weights_gib_per_gpu": held.weight_bytes / GIB,
        "kv_pool_gib_per_gpu": held.kv_bytes / GIB,
        "kv_pool_tokens": float(settings.max_model_len),
        "activation_peak_gib": held.compute_bytes / GIB,
    }
