"""The parts of a cost, each from the same step function and the same price of a second."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rooflinekit.decision.economics.dialogue import Dialogue, dialogue_time
from rooflinekit.decision.economics.energy import POWER_ASSUMPTION, deployment_watts, joules_per_token
from rooflinekit.decision.economics.eviction import eviction
from rooflinekit.decision.economics.question import CostQuestion
from rooflinekit.decision.economics.recompute import naive_decoding
from rooflinekit.decision.economics.results import (
    ContextCost,
    DialogueCost,
    EvictionCost,
    PriceResult,
    RecomputeCost,
)
from rooflinekit.decision.economics.token_prices import MILLION, TokenPrices, TokenTimes, token_times
from rooflinekit.decision.economics.waste import Waste, memory_waste
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.traffic.mixing import InFlight, slots
from rooflinekit.model.types.errors import DoesNotFitError
from rooflinekit.model.types.time import Time
from rooflinekit.model.types.workload import Workload

__all__ = [
    "Served",
    "context_cost",
    "dialogue_cost",
    "eviction_cost",
    "price_result",
    "recompute_cost",
    "waste_cost",
]

_HOUR = 3600.0


@dataclass(frozen=True)
class Served:
    """A deployment, what is asked of it, and what its tokens take and cost; `room`: such sequences that fit."""

    predictor: Predictor
    asked: CostQuestion
    times: TokenTimes
    prices: TokenPrices
    room: float

    @property
    def usd_per_second(self) -> float:
        """Of a replica, idle time included."""
        return float(self.prices.replica_usd_per_hour) / _HOUR / self.asked.utilisation

    @property
    def running(self) -> float:
        """Sequences at once."""
        return float(self.times.load.users)

    def inputs(self) -> dict[str, Any]:
        """Every input as it was understood."""
        plan, asked = self.predictor.plan, self.asked
        degrees = {name: getattr(plan.deployment, name) for name in ("tp", "pp", "ep", "dp", "cp")}
        formats = getattr(plan.precision.formats, plan.model.matrices[-1]).value
        lengths = {"isl": int(asked.prompt), "osl": int(asked.output), "cached": asked.cached}
        return {**lengths, "concurrency": asked.concurrency, **degrees, "weights": formats,
                "kv": plan.precision.kv.value, "pue": asked.pue}  # fmt: skip

    def long_context(self, notes: list[str]) -> ContextCost | None:
        """The long context, or as much of it as the model has; None, and a note, where it does not fit."""
        tokens, model = self.asked.long_context, self.predictor.plan.model
        if model.max_context is not None and tokens > model.max_context:
            if not self.asked.long_given:
                tokens = model.max_context
            notes.append(f"long context: {model.name}'s own maximum is {model.max_context} tokens")
        prompt = float(tokens) - min(self.asked.output, float(tokens) - 1.0)
        if float(slots(self.predictor, prompt, float(tokens) - prompt)) < 1.0:
            notes.append(f"long context: not one sequence of {tokens} tokens fits in memory")
            return None
        return context_cost(self, int(prompt), tokens)


def price_result(served: Served, notes: list[str]) -> PriceResult:
    """Prices with their interval, energy, and the price of holding a token."""
    prices, times, plan = served.prices, served.times, served.predictor.plan
    watts = _watts(served, notes)
    cached, fresh, made = (
        None if watts is None else float(joules_per_token(watts, float(each)))
        for each in (times.cached, times.input, times.output)
    )
    work = Workload(1.0, times.load.isl, times.load.osl)
    pool = served.predictor.memory.evaluate(1.0, work.longest_context, work.isl).kv_pool_tokens
    holding = float(prices.replica_usd_per_hour) / served.asked.utilisation / float(pool * plan.deployment.dp) * MILLION
    saved = float(prices.input_usd_per_million - prices.cached_usd_per_million)
    interval = None
    if plan.calibration:
        interval = {
            "input_usd_per_million": _span(float(prices.input_usd_per_million), times.prompt),
            "output_usd_per_million": _span(float(prices.output_usd_per_million), times.step),
        }
    return PriceResult(
        float(prices.hour.usd_per_gpu_hour), prices.hour.source, plan.deployment.gpus,
        float(prices.replica_usd_per_hour), served.asked.utilisation, served.running,
        float(prices.cached_usd_per_million), float(prices.input_usd_per_million),
        float(prices.output_usd_per_million), float(prices.request_usd), float(times.asymmetry), interval,
        watts, cached, fresh, made, holding, saved / holding * _HOUR,
    )  # fmt: skip


def _span(price: float, time: Time) -> list[float]:
    return [price * float(time.low / time.expected), price * float(time.high / time.expected)]


def _watts(served: Served, notes: list[str]) -> float | None:
    plan = served.predictor.plan
    if not plan.system.accelerator.tdp_w:
        notes.append(f"energy: {plan.system.accelerator.name} has no rated power in its file")
        return None
    notes.append(f"{POWER_ASSUMPTION}; PUE {served.asked.pue:g}")
    deployment = plan.deployment
    return float(deployment_watts(plan.system.accelerator, deployment.gpus, served.asked.pue, deployment.power_cap))


def dialogue_cost(served: Served, dialogue: Dialogue, name: str, notes: list[str]) -> DialogueCost | None:
    """Price the turns; None, and a note, where the last one does not fit."""
    try:
        time = dialogue_time(served.predictor, dialogue, served.running)
    except DoesNotFitError as error:
        notes.append(f"{name}: {error}")
        return None
    second = served.usd_per_second
    longest = float(dialogue.prompts()[0][-1]) + dialogue.answered
    limit = served.predictor.plan.model.max_context
    if limit is not None and longest > limit:
        notes.append(f"{name}: its last turn of {longest:.0f} tokens exceeds the model's maximum of {limit}")
    return DialogueCost(
        dialogue.turns, dialogue.system, dialogue.asked, dialogue.answered, time.sent_tokens, time.computed_tokens,
        second * float(time.cached.sum()), second * float(time.recomputed.sum()), time.saving,
        second * float(time.cached[0]), second * float(time.cached[-1]), second * float(time.recomputed[-1]),
    )  # fmt: skip


def context_cost(served: Served, prompt: int, context: int | None = None) -> ContextCost:
    """A sequence with this prompt, among as many of its kind as fit (and are asked for)."""
    predictor, asked = served.predictor, served.asked
    tokens = prompt + asked.output if context is None else float(context)
    osl = tokens - prompt
    room = float(slots(predictor, float(prompt), osl))
    times = token_times(predictor, InFlight(min(room, served.running), float(prompt), osl))
    second = served.usd_per_second
    alone = predictor.ttft(Workload(1.0, float(prompt), osl)).expected
    kept = float(predictor.memory.evaluate(1.0, tokens, float(prompt)).kv_bytes)
    return ContextCost(
        int(tokens), float(alone) * 1e3, second * float(times.prompt.expected), second * float(times.output),
        second * float(times.output) * MILLION, float(times.step.expected) * 1e3, min(room, served.running), int(room),
        served.room / room, kept,
    )  # fmt: skip


def recompute_cost(served: Served) -> RecomputeCost:
    """One request decoded with a cache and without."""
    both = naive_decoding(served.predictor, int(served.asked.prompt), int(served.asked.output))
    return RecomputeCost(
        both.cached_flops, both.naive_flops, both.flops_ratio, both.cached_s * 1e3, both.naive_s * 1e3, both.time_ratio
    )


def waste_cost(served: Served, notes: list[str]) -> Waste:
    """Reservations of the longest length against blocks."""
    asked, plan = served.asked, served.predictor.plan
    both = int(served.asked.prompt + served.asked.output)
    longest = asked.reserve or plan.deployment.settings.max_model_len or plan.model.max_context or both
    if longest < both:
        notes.append(f"reserved room: a request of {both} tokens is longer than the {longest} that are admitted")
    return memory_waste(served.predictor, asked.isl, asked.osl, max(longest, both))


def eviction_cost(served: Served, notes: list[str]) -> EvictionCost | None:
    """Swap or recompute one sequence of the mean length; None, and a note, without a host link."""
    length = int(served.asked.prompt + served.asked.output / 2.0)
    longest = served.predictor.plan.model.max_context or served.asked.long_context
    found = eviction(served.predictor, length, max(longest, length))
    if found is None:
        notes.append(f"eviction: no host link is known of {served.predictor.plan.system.accelerator.name}")
        return None
    return EvictionCost(
        length, found.bytes, found.swap * 1e3, found.recompute * 1e3, found.choice, found.short_choice,
        found.crossings, int(found.longest), found.link / 1e9,
    )  # fmt: skip
