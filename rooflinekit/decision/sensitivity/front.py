"""The front door of levers: names and keywords in, `Levers` out."""

from __future__ import annotations

from dataclasses import replace
from os import PathLike
from typing import Any, Unpack

from rooflinekit.decision.economics.question import refuse_misfit
from rooflinekit.decision.sensitivity.balance import balance
from rooflinekit.decision.sensitivity.elasticity import elasticities
from rooflinekit.decision.sensitivity.moves import moves
from rooflinekit.decision.sensitivity.question import Question
from rooflinekit.decision.sensitivity.reading import checked, read_price_or_say, read_setting
from rooflinekit.decision.sensitivity.results import Levers
from rooflinekit.decision.sensitivity.setting import Setting
from rooflinekit.decision.sensitivity.trial import Present, operate, rank, try_move
from rooflinekit.decision.sensitivity.words import in_words
from rooflinekit.estimation.options import keywords
from rooflinekit.estimation.scenario import Levers as LeverOptions
from rooflinekit.model.operating_point import Predictor
from rooflinekit.version import __version__

__all__ = ["levers"]


@keywords(LeverOptions)
def levers(
    model: str | PathLike[str], gpu: str | PathLike[str] = "h100-sxm", **scenario: Unpack[LeverOptions]
) -> Levers:
    """What would help a deployment most.

    Args:
        model: a name, a Hugging Face id, or a path, as `estimate` takes it.
        gpu: an accelerator's name or a path to its file.
        **scenario: the options of `Levers` in docs/cli.md: work, deployment, prices, what to try; None is the default.

    Returns:
        `Levers`: the answer now, elasticities of TTFT, TPOT, throughput and cost, what a decode step reads, and moves
        ranked by what they gain; those that are not possible say why.

    Raises:
        InputError: (and its kinds) for anything that makes no sense; DoesNotFitError if the deployment does not fit.

    >>> found = levers("llama-3-8b", batch=1, isl=128, osl=128, calibration="none", gpus=["h200-sxm"])
    >>> best = found.moves[0]
    >>> found.balance.lever, best.move, round(best.ratio["tpot"], 2)  # 4 bits and a scale for 16, but for the LM head
    ('weights', 'int4 weights', 0.31)
    """
    given = checked(scenario)
    setting, hints = read_setting(model, gpu, given)
    predictor, warnings = setting.resolved()
    if setting.question.misfit(predictor):
        _refuse(setting, given, predictor)
    plan, by = predictor.plan, given.get("by", "cost")
    hour, notes = read_price_or_say(plan.system.accelerator, given)
    setting = replace(setting, usd_per_gpu_hour=None if hour is None else float(hour.usd_per_gpu_hour))
    present = Present(setting, operate(setting, predictor), warnings)
    tried = [try_move(move, present) for move in moves(setting, plan, hints)]
    read = balance(predictor, setting.question.scaled(batch=present.answer.running).work)
    slopes = elasticities(predictor, setting.question)
    return Levers(
        version=__version__,
        model=plan.model.name,
        gpu=plan.system.accelerator.name,
        engine=plan.deployment.engine,
        level="expected" if plan.calibration else "bound",
        calibration={"name": plan.calibration.name, "hash": plan.calibration.hash} if plan.calibration else None,
        inputs=_inputs(setting.question, predictor),
        by=by,
        price=None if hour is None else {"usd_per_gpu_hour": float(hour.usd_per_gpu_hour), "source": hour.source},
        answer=present.answer,
        elasticities=slopes,
        balance=read,
        sentence=in_words(read, slopes, setting.question.users, plan.model.max_context),
        moves=tuple(sorted(tried, key=lambda move: rank(move, by))),
        warnings=(*warnings, *notes),
    )


def _refuse(setting: Setting, given: dict[str, Any], found: Predictor) -> None:
    """Say what `estimate` says of a deployment that does not fit. Raises DoesNotFitError."""
    asked = given | {"batch": 1} if setting.question.users else given
    misfit = f"{found.plan.model.name}: {setting.question.misfit(found)}"
    refuse_misfit(setting.model, setting.gpu, asked, misfit)


def _inputs(question: Question, predictor: Predictor) -> dict[str, Any]:
    """Every input as it was understood."""
    work, precision, deployment = question.work, predictor.plan.precision, predictor.plan.deployment
    parallel = {"batch": None, "concurrency": None, "concurrency" if question.users else "batch": int(work.batch)}
    counts = {"isl": int(work.isl), "osl": int(work.osl), "cached": int(work.cached)}
    context = {"context": float(work.decode_context)}
    degrees = {name: getattr(deployment, name) for name in ("tp", "pp", "ep", "dp", "cp")}
    weights = getattr(precision.formats, predictor.plan.model.matrices[-1]).value
    return {**parallel, **counts, **context, **degrees, "weights": weights, "kv": precision.kv.value}
