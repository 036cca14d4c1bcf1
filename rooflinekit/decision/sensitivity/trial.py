"""A move tried: the same question asked of the changed deployment, and each metric over what it was."""

from __future__ import annotations

from dataclasses import dataclass

from rooflinekit.decision.economics.price import usd_per_million
from rooflinekit.decision.sensitivity.moves import Move
from rooflinekit.decision.sensitivity.results import MoveResult, Operating
from rooflinekit.decision.sensitivity.setting import Setting
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.types.errors import RooflinekitError

__all__ = ["Present", "operate", "rank", "try_move"]


@dataclass(frozen=True)
class Present:
    """The deployment as it is: what it answers, and what is said about it."""

    setting: Setting
    answer: Operating
    warnings: tuple[str, ...]


def operate(setting: Setting, predictor: Predictor) -> Operating:
    """Ask the question, and price the answer where the price of an hour is known."""
    answer, gpus = setting.question.ask(predictor), predictor.plan.deployment.gpus
    hour = setting.usd_per_gpu_hour
    cost = None if hour is None else float(usd_per_million(hour, answer.tok_s_per_gpu))
    return Operating(
        answer.ttft * 1e3, answer.tpot * 1e3, answer.tok_s_per_gpu * gpus, answer.tok_s_per_gpu, gpus, answer.batch,
        predictor.memory.kv_bytes_per_token, answer.gpu_seconds, cost,
    )  # fmt: skip


def try_move(move: Move, present: Present) -> MoveResult:
    """Make the move; what is refused, or does not fit, says why."""
    if move.setting is None:
        return MoveResult(move.name, move.option, move.caveat, False, move.reason, None, {})
    reason = ""
    for attempt in (move.setting, *move.fallbacks):
        try:
            predictor, warnings = attempt.resolved()
            misfit = attempt.question.misfit(predictor)
            if not misfit:
                new = tuple(warning for warning in warnings if warning not in present.warnings)
                return _tried(move, Present(attempt, operate(attempt, predictor), new), present)
            reason = reason or misfit
        except RooflinekitError as error:
            reason = reason or str(error)
    return MoveResult(move.name, move.option, move.caveat, False, reason, None, {})


def _tried(move: Move, then: Present, now: Present) -> MoveResult:
    wider = "" if then.setting is move.setting else f" tp {then.setting.deployment.tp}"
    return MoveResult(
        move.name + wider,
        move.option + wider.replace(" tp", " --tp"),
        move.caveat,
        True,
        "",
        then.answer,
        {
            "ttft": then.answer.ttft_ms / now.answer.ttft_ms,
            "tpot": then.answer.tpot_ms / now.answer.tpot_ms,
            "throughput": then.answer.output_tok_s_per_gpu / now.answer.output_tok_s_per_gpu,
            "cost": _cost_ratio(then, now),
        },
        then.warnings,
    )


def _cost_ratio(then: Present, now: Present) -> float | None:
    """In accelerator seconds on the same accelerator; on another in USD, if both prices are known."""
    if then.setting.gpu == now.setting.gpu:
        return then.answer.gpu_seconds_per_token / now.answer.gpu_seconds_per_token
    if then.answer.usd_per_million_output is None or now.answer.usd_per_million_output is None:
        return None
    return then.answer.usd_per_million_output / now.answer.usd_per_million_output


def rank(move: MoveResult, by: str) -> tuple[int, float]:
    """Possible moves by their gain, those without a price after them, impossible ones last."""
    ratio = move.ratio.get(by)
    if ratio is None:
        return (1 if move.possible else 2), 0.0
    return 0, -ratio if by == "throughput" else ratio
