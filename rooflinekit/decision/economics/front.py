"""The front door of costs: names and keywords in, `Cost` out."""

from __future__ import annotations

from collections.abc import Iterator
from os import PathLike
from typing import Any, Unpack

from rooflinekit.decision.economics.asymmetry import token_work
from rooflinekit.decision.economics.price import read_price
from rooflinekit.decision.economics.question import CostQuestion, refuse_misfit
from rooflinekit.decision.economics.results import Cost, Reason
from rooflinekit.decision.economics.sections import (
    Served,
    context_cost,
    dialogue_cost,
    eviction_cost,
    price_result,
    recompute_cost,
    waste_cost,
)
from rooflinekit.decision.economics.token_prices import token_prices, token_times
from rooflinekit.decision.economics.words import why
from rooflinekit.estimation.estimator import Resolved, read_deployment, resolve
from rooflinekit.estimation.options import keywords, part_of, read
from rooflinekit.estimation.scenario import DEPLOYMENT_KEYS
from rooflinekit.estimation.scenario import Cost as CostOptions
from rooflinekit.model.traffic.mixing import InFlight, slots
from rooflinekit.model.types.hardware import Accelerator
from rooflinekit.version import __version__

__all__ = ["cost"]


@keywords(CostOptions)
def cost(model: str | PathLike[str], gpu: str | PathLike[str] = "h100-sxm", **scenario: Unpack[CostOptions]) -> Cost:
    """What tokens cost on a deployment, why output costs more than input, and what follows from it.

    Args:
        model: a name, a Hugging Face id, or a path, as `estimate` takes it.
        gpu: an accelerator's name or a path to its file.
        **scenario: the options of `Cost` in docs/cli.md: lengths, deployment, prices, dialogues; None is the default.

    Returns:
        `Cost`: USD a million cached, input and output tokens; conversations, agents and long contexts; decoding
        without a cache; memory that is wasted; swapping or recomputing.

    Raises:
        InputError: (and its kinds) for anything that makes no sense, and for an accelerator without a price;
        DoesNotFitError if not one such request fits.

    >>> c = cost("llama-3-8b", isl=2000, osl=300, concurrency=64, price=3.0, calibration="none")
    >>> p = c.prices
    >>> p.cached_usd_per_million < p.input_usd_per_million < p.output_usd_per_million
    True
    >>> round(p.output_usd_per_million, 3)  # (15.0 + 18.1) GB over 3.35 TB/s, 64 tokens, 3 USD an hour
    0.128
    """
    given = read(CostOptions, scenario)
    asked = CostQuestion.read(given)
    deployment = read_deployment(part_of(given, DEPLOYMENT_KEYS))
    resolved = resolve(model, gpu, deployment, given.get("calibration"))
    hour = read_price(resolved.plan.system.accelerator, _hourly(given))
    room = float(slots(resolved.predictor, asked.prompt, asked.output))
    if room < 1.0:
        name = resolved.plan.model.name
        lengths = {"isl": int(asked.prompt), "osl": int(asked.output)}
        refuse_misfit(model, gpu, given | lengths, f"{name}: not one request fits in memory")
    running = room if asked.concurrency is None else min(float(asked.concurrency), room)
    load = InFlight(running, asked.prompt, asked.output, float(asked.cached))
    times = token_times(resolved.predictor, load)
    prices = token_prices(times, hour, deployment.gpus, asked.utilisation)
    return _answer(resolved, asked, Served(resolved.predictor, asked, times, prices, room))


def _crowded(served: Served) -> Iterator[str]:
    """Say that fewer run than were asked for."""
    wanted = served.asked.concurrency
    if wanted is not None and wanted > served.room:
        yield f"{served.room:.0f} of {wanted} sequences fit at a time; prices are those of {served.room:.0f}"


def _hourly(given: dict[str, Any]) -> dict[str, Any]:
    """What is said about the price; a PUE alone is about energy."""
    return given if "purchase" in given else {key: value for key, value in given.items() if key != "pue"}


def _answer(resolved: Resolved, asked: CostQuestion, served: Served) -> Cost:
    plan = resolved.plan
    accelerator: Accelerator = plan.system.accelerator
    input_work, output_work = token_work(resolved.predictor, served.times)
    notes = list(_crowded(served))
    return Cost(
        version=__version__,
        model=plan.model.name,
        gpu=accelerator.name,
        engine=plan.deployment.engine,
        level="expected" if plan.calibration else "bound",
        calibration={"name": plan.calibration.name, "hash": plan.calibration.hash} if plan.calibration else None,
        inputs=served.inputs(),
        prices=price_result(served, notes),
        reason=Reason(
            input_work, output_work, why(served.times, input_work, output_work, "experts" in plan.model.matrices)
        ),
        conversation=dialogue_cost(served, asked.conversation, "conversation", notes),
        agent=dialogue_cost(served, asked.agent, "agent", notes),
        ordinary_context=context_cost(served, int(asked.prompt)),
        long_context=served.long_context(notes),
        recompute=recompute_cost(served),
        waste=waste_cost(served, notes),
        eviction=eviction_cost(served, notes),
        warnings=(*resolved.warnings, *notes),
    )
