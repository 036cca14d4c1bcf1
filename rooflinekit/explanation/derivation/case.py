"""A question with its answer, and the steps that the answer is made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from rooflinekit.estimation.results import Estimate
from rooflinekit.explanation.derivation.kernels import time_node
from rooflinekit.explanation.derivation.node import Node, branch, given, joined
from rooflinekit.explanation.derivation.scene import Scene
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.speculation import SpeculativePredictor
from rooflinekit.model.traffic.question import LoadQuestion
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.workload import Workload

__all__ = ["Case", "decode_scenes", "growing_shares", "prefill_scenes", "step_node", "tpot_node", "ttft_node"]


@dataclass(frozen=True)
class Case:
    """What was asked, what `estimate` answered, and the predictor behind it."""

    predictor: Predictor
    work: Workload
    load: LoadQuestion | None
    answer: Estimate


def prefill_scenes(predictor: Predictor, work: Workload) -> list[Scene]:
    """The prompts in one step, and those of a draft that keeps a cache of its own."""
    batch = predictor.prefill_batch(work)
    scenes = [Scene(predictor.plan, batch)]
    if isinstance(predictor, SpeculativePredictor):
        draft = predictor.draft
        if draft.first is not None and (draft.cache.slopes or draft.cache.state_bytes):
            scenes.append(Scene(draft.first, batch, prefix="draft_"))
    return scenes


def decode_scenes(predictor: Predictor, work: Workload, context: float, grows: bool | None = None) -> list[Scene]:
    """One decode step at `context` keys, or one round of drafting and verification."""
    if not isinstance(predictor, SpeculativePredictor):
        return [Scene(predictor.plan, predictor.decode_batch(work, context), grows)]
    batch = predictor.verify_batch(work, context)
    local = batch.decoding.count if batch.decoding else 1.0
    drafted = predictor.draft.batches(local, context)
    scenes = [Scene(plan, each, grows, times, "draft_") for plan, each, times in drafted]
    return [*scenes, Scene(predictor.plan, batch, grows)]


def step_node(symbol: str, title: str, scenes: list[Scene]) -> Node:
    """The sum over the kernels of a step and what the engine adds [s]."""
    parts = [time_node(scene, launched) for scene in scenes for launched in scene.launched]
    if not parts:
        return given(symbol, "no kernel does this", 0.0, "s")
    return joined(symbol, title, sum(part.value for part in parts), "s", parts)


def ttft_node(predictor: Predictor, work: Workload, value: float) -> Node:
    """Prefill of all prompts and the first sample [s]."""
    first = step_node("prefill", "the prompts in one step, and the first sample", prefill_scenes(predictor, work)[:1])
    formula, parts = "prefill", [first]
    if predictor.plan.deployment.microbatches > 1:
        stretch = predictor.ttft(work).expected / predictor.plan.time(predictor.prefill_batch(work)).expected
        formula = "prefill*pipeline"
        parts.append(
            given(
                "pipeline",
                "microbatches follow each other through the stages",
                float(stretch),
                "",
                "GPipe, arXiv:1811.06965, 2.3",
            )
        )
    draft = prefill_scenes(predictor, work)[1:]
    if draft:
        formula += " + draft"
        parts.append(step_node("draft", "the draft's own pass over the prompts", draft))
    if formula == "prefill":
        return replace(first, symbol="TTFT", title="time to the first token: prefill and first sample", value=value)
    return branch("TTFT", "time to the first token", value, "s", (formula, parts))


def tpot_node(predictor: Predictor, work: Workload, value: float) -> Node:
    """Mean time of an output token after the first [s]: what depends on the context in three parts, the rest once."""
    mean = [] if work.context is not None else list(_growing(predictor, work))
    context, grows = float(work.decode_context), None if work.context is not None else False
    scenes = decode_scenes(predictor, work, context, grows)
    if work.context is not None:
        parts = [step_node("step", f"one step at {context:g} keys", scenes)]
    else:
        parts = [step_node("fixed", "kernels whose work does not depend on the context, and the engine", scenes)]
    formula = parts[0].symbol
    for share, node in mean:
        formula += f" + {share.symbol}*{node.symbol}"
        parts += [share, node]
    formula, parts = _per_token(predictor, work, formula, parts)
    formula, parts = _pipelined(predictor, work, formula, parts)
    return branch("TPOT", "mean time of an output token after the first", value, "s", (formula, parts))


def _parts(work: Workload) -> Iterator[tuple[float, float]]:
    """Thirds of the output: the first context of each, and its steps."""
    steps = float(work.decode_steps)
    outer = (steps + 1.0) // 3.0
    first = float(work.isl) + 1.0
    for length in (outer, steps - 2.0 * outer, outer):
        if length:
            yield first, length
        first += length


def growing_shares(predictor: Predictor, work: Workload) -> Iterator[tuple[float, list[Scene]]]:
    """What depends on the context, in parts of the output: the share of each, and its mean step."""
    for first, length in _parts(work):
        yield length / float(work.decode_steps), _part(predictor, work, first, length)


def _growing(predictor: Predictor, work: Workload) -> Iterator[tuple[Node, Node]]:
    steps = given("steps", "tokens after the first", float(work.decode_steps), "", "the question")
    for place, (first, length) in enumerate(_parts(work), 1):
        part = given("part", "tokens of this part", length, "", "the output in thirds")
        share = branch(f"w{place}", "share of the output", length / steps.value, "", ("part/steps", [part, steps]))
        title = f"attention, mean of {length:g} steps from {first:g} keys on"
        yield share, step_node(f"attention{place}", title, _part(predictor, work, first, length))


def _part(predictor: Predictor, work: Workload, first: float, length: float) -> list[Scene]:
    local = predictor.decode_batch(work, first).decoding
    count = local.count if local else 1.0
    if isinstance(predictor, SpeculativePredictor):
        return decode_scenes(predictor, work, first + (length - 1.0) / 2, grows=True)
    return [Scene(predictor.plan, Batch.mean_decode(count, first, length), grows=True)]


def _per_token(predictor: Predictor, work: Workload, formula: str, parts: list[Node]) -> tuple[str, list[Node]]:
    if not isinstance(predictor, SpeculativePredictor):
        return formula, parts
    each = (
        min(predictor.draft.choice.tokens_per_pass, float(work.decode_steps))
        if work.context is None
        else predictor.draft.choice.tokens_per_pass
    )
    source = "1 + α1 + α1·α2 + …, arXiv:2211.17192, equation 1"
    return f"({formula})/E", [*parts, given("E", "tokens that a round yields", each, "", source)]


def _pipelined(predictor: Predictor, work: Workload, formula: str, parts: list[Node]) -> tuple[str, list[Node]]:
    deployment = predictor.plan.deployment
    if deployment.microbatches == 1 or isinstance(predictor, SpeculativePredictor):
        return formula, parts
    alone = predictor.on(predictor.plan)
    share = float(alone.plan.busiest_share(alone.decode_batch(work, work.decode_context))[0])
    local = alone.decode_batch(work, 1.0).decoding
    own = -(-float(work.batch) // deployment.dp)
    count = -(-own // (float(local.count) if local else 1.0))
    title = "a token waits until the busiest stage has served the other microbatches: max(parts · share, 1)"
    return f"({formula})*pipeline", [
        *parts,
        given("pipeline", title, max(count * share, 1.0), "", "docs/parallelism.md"),
    ]
