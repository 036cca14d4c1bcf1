"""What an option costs: dollars an hour and a million tokens, watts, joules, and the start of a replica."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rooflinekit.decision.economics.energy import POWER_ASSUMPTION, deployment_watts
from rooflinekit.decision.economics.price import HourlyPrice, hourly_price, priced_names, quoted_price, usd_per_million
from rooflinekit.decision.economics.token_prices import MILLION, token_times
from rooflinekit.decision.planning.demand import Demand
from rooflinekit.decision.planning.option import Option, Part
from rooflinekit.decision.planning.replica import Replica
from rooflinekit.model.traffic.mixing import InFlight
from rooflinekit.model.types.errors import InputError, WorkloadError
from rooflinekit.model.types.hardware import Accelerator
from rooflinekit.model.types.units import GB
from rooflinekit.specs import load_accelerator

__all__ = ["LOAD_GB_S", "Cost", "Tariff", "cold_start_s", "cost_of", "read_tariff"]

LOAD_GB_S = 5.0
LOAD_ASSUMPTION = "assumption: one local NVMe drive for each replica"
_HOUR = 3600.0


@dataclass(frozen=True)
class Tariff:
    """Prices by accelerator (None: nobody knows), PUE, and the rate at which weights come to a replica [B/s]."""

    prices: Mapping[str, HourlyPrice | None]
    pue: float = 1.0
    load_bytes_s: float = LOAD_GB_S * GB
    assumptions: tuple[str, ...] = field(default=())
    by_gpus: bool = False  #: rank by accelerators first

    def price(self, gpu: str) -> float | None:
        """One accelerator hour [USD]."""
        known = self.prices.get(gpu)
        return None if known is None else float(known.usd_per_gpu_hour)

    def per_hour(self, option: Option) -> float | None:
        """The whole fleet [USD/h]; None where a price is missing."""
        prices = [(part.gpus, self.price(part.replica.gpu)) for part in option.parts]
        known = [gpus * price for gpus, price in prices if price is not None]
        return sum(known) if len(known) == len(prices) else None

    def rank(self, option: Option) -> tuple[float, float]:
        """The cheaper first; those without a price after all others, by their accelerators."""
        known = self.per_hour(option)
        hour = float("inf") if known is None else round(known, 6)
        return (option.gpus, hour) if self.by_gpus else (hour, option.gpus)


def read_tariff(
    gpus: tuple[str, ...], given: float | str | Mapping[str, float], pue: float, load_gb_s: float | None
) -> Tariff:
    """Prices of these accelerators: those given, else the dated quotes in their files.

    Raises InputError for a price of an accelerator that is not asked about, WorkloadError for numbers without sense.
    """
    loaded = {gpu: load_accelerator(gpu).value for gpu in gpus}
    named: dict[str, float] = {}
    prices = priced_names(given)
    known = {each.name for each in loaded.values()}
    for name, price in (prices if isinstance(prices, Mapping) else dict.fromkeys(known, prices)).items():
        if name not in known:
            raise InputError(f"a price is given for {name}, which is not among --gpu {', '.join(gpus)}")
        named[name] = price
    hourly = {each.name: _price(each, named.get(each.name)) for each in loaded.values()}
    if not 1.0 <= pue <= 10.0:
        raise WorkloadError(f"pue is power of the building over power of the machines, from 1 to 10, not {pue!r}")
    if load_gb_s is not None and not 0.0 < load_gb_s <= 1e6:
        raise WorkloadError(f"load_gbps must be a number of GB/s above 0, not {load_gb_s!r}")
    told = f"weights load at {LOAD_GB_S:g} GB/s ({LOAD_ASSUMPTION})" if load_gb_s is None else ""
    notes = tuple(note for note in (POWER_ASSUMPTION, told) if note)
    return Tariff(hourly, pue, (load_gb_s or LOAD_GB_S) * GB, notes)


def _price(accelerator: Accelerator, given: float | None) -> HourlyPrice | None:
    return quoted_price(accelerator) if given is None else hourly_price(accelerator, given)


@dataclass(frozen=True)
class Cost:
    """Money and energy of an option at the mean load, spares included; None without a price or a rated power.

    Dollars are for a million tokens of each kind; `million_tokens_usd` is over all tokens, in and out.
    """

    usd_per_hour: float | None
    cached_input_usd: float | None
    input_usd: float | None
    output_usd: float | None
    million_tokens_usd: float | None
    watts: float | None
    joules_per_output_token: float | None
    output_tok_s: float


def cost_of(option: Option, demand: Demand, tariff: Tariff) -> Cost:
    """Price the tokens of an option: every part's hour divided by what it serves in the mean.

    Input is what a prompt adds to the steps of the others, output the decode steps (`economics.token_prices`); the
    prefill pool is all input and the decode pool all output.
    """
    rate = sum(_rate(part, demand) for part in option.parts if part.role != "decode")
    isl, osl, hour, watts = demand.isl.mean, demand.osl.mean, tariff.per_hour(option), _watts(option, tariff)
    cached = new = made = whole = None
    if hour is not None:
        pieces = [_pieces(part, demand, tariff) for part in option.parts]
        cached, new, made = (sum(kind) / rate / _HOUR for kind in zip(*pieces, strict=True))
        whole = float(usd_per_million(hour, rate * (isl + osl)))
    joules = None if watts is None else watts / (rate * osl)
    return Cost(hour, cached, new, made, whole, watts, joules, rate * osl)


def _rate(part: Part, demand: Demand) -> float:
    """Requests a second that a part serves in the mean."""
    load = part.mean_load(demand)
    if not demand.closed:
        return load * part.replicas
    return float(part.replica.answer(demand, load).loaded.rate) * part.replicas


def _pieces(part: Part, demand: Demand, tariff: Tariff) -> tuple[float, float, float]:
    """USD an hour of the part, times a million, over tokens of a request: cached input, input, output."""
    traffic = demand.traffic
    hour = part.gpus * (tariff.price(part.replica.gpu) or 0.0) * MILLION
    running = (
        float(part.replica.answer(demand, part.mean_load(demand)).loaded.running) if part.role != "prefill" else 1.0
    )
    times = token_times(part.replica.predictor, InFlight(running, traffic.isl, traffic.osl))
    if part.role == "decode":
        return 0.0, 0.0, hour / float(traffic.osl)
    seconds = float(times.prompt.expected) if part.role == "prefill" else float(times.request)
    cached, new = (hour * float(each) / seconds for each in (times.cached, times.input))
    return cached, new, 0.0 if part.role == "prefill" else hour * float(times.output) / seconds


def _watts(option: Option, tariff: Tariff) -> float | None:
    accelerators = [(part.replica.resolved.plan.system.accelerator, part.gpus) for part in option.parts]
    if not all(accelerator.tdp_w for accelerator, _ in accelerators):
        return None
    return sum(float(deployment_watts(accelerator, gpus, tariff.pue)) for accelerator, gpus in accelerators)


def cold_start_s(replica: Replica, tariff: Tariff) -> float:
    """Time until a new replica has its weights: what all its accelerators hold, over the rate [s]."""
    stages = replica.predictor.memory.stages
    held = sum(stage.weight_bytes for stage in stages) * replica.gpus / len(stages)
    return held / tariff.load_bytes_s
