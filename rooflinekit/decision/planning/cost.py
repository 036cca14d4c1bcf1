"""Cost of an option: machines, dollars, watts and joules; the fronts of speed against use, cost against latency."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from rooflinekit.decision.economics.price import (
    MONTH_HOURS,
    POWER_NOTE,
    HourlyPrice,
    quotes_of,
    read_carbon,
    usd_per_million,
)
from rooflinekit.decision.economics.token_prices import MILLION, token_times
from rooflinekit.decision.planning.demand import Demand
from rooflinekit.decision.planning.fleet import Option, Part, Replica
from rooflinekit.load.answer import LoadPlay
from rooflinekit.model.power import plug_power
from rooflinekit.model.types.answer import Plain
from rooflinekit.model.types.units import GB
from rooflinekit.specs import counted_chips, load_accelerator

LOAD_GB_S = 5.0
LOAD_ASSUMPTION = "assumption: one local NVMe drive for each replica"
LOAD_NOTE = f"weights load at {LOAD_GB_S:g} GB/s ({LOAD_ASSUMPTION})"
_HOUR = 3600.0

_HOST = 16  # accelerators of one machine at most; a larger domain is a rack

T = TypeVar("T")
_Names = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Tariff:
    """Prices by accelerator (None: nobody knows), PUE, and the rate at which weights come to a replica [B/s]."""

    prices: Mapping[str, HourlyPrice | None]
    pue: float = 1.0
    load_bytes_s: float = LOAD_GB_S * GB
    assumptions: tuple[str, ...] = ()
    by_gpus: bool = False  #: rank by accelerators first
    saves: Demand | None = None  #: the traffic at which the fleet that draws least is first
    terms: Mapping[str, tuple[HourlyPrice, ...]] = field(default_factory=dict)  #: commitments and spot prices
    carbon: tuple[float, str] | None = None  #: grams of CO2 a kWh, and who says so
    whole_hosts: bool = False  #: whether hosts are rented whole

    def price(self, gpu: str) -> float | None:
        """One accelerator hour [USD]."""
        known = self.prices.get(gpu)
        return None if known is None else float(known.usd_per_gpu_hour)

    def per_hour(self, option: Option) -> float | None:
        """The whole fleet [USD/h]; None where a price is missing."""
        paid = [(part.gpus, part.replica.gpu) for part in option.parts]
        if self.whole_hosts:
            paid = [(host.size * host.count, host.gpu) for host in hosts_of(("", part) for part in option.parts)]
        hour = added(None if (price := self.price(gpu)) is None else gpus * price for gpus, gpu in paid)
        rent = sum(part.replicas * part.replica.kept.usd_hour for part in option.parts if part.replica.kept)
        return None if hour is None else hour + rent

    def rank(self, option: Option) -> tuple[float, float]:
        """The cheaper first; those without a price after all others, by their accelerators."""
        known = self.per_hour(option)
        hour = float("inf") if known is None else round(known, 6)
        if self.saves is not None:
            watts = fleet_watts(option.parts, self.saves, self.pue)
            return (float("inf") if watts is None else round(watts, 3), hour)
        return (option.gpus, hour) if self.by_gpus else (hour, option.gpus)


def added(prices: Iterable[float | None]) -> float | None:
    """The sum of prices; None where one of them is not known.

    >>> added([1.0, 2.5]), added([1.0, None])
    (3.5, None)
    """
    several = list(prices)
    known = [each for each in several if each is not None]
    return sum(known) if len(known) == len(several) else None


def read_tariff(gpus: tuple[str, ...], given: Mapping[str, Any], demand: Demand) -> Tariff:
    """Prices of these accelerators: those of a plan's options, else the dated quotes in their files.

    Raises InputError and WorkloadError for prices without sense.
    """
    quotes = quotes_of((load_accelerator(gpu).value for gpu in gpus), given.get("prices"))
    rate, by = given.get("load_gbps"), given.get("by")
    notes = (*quotes.notes, POWER_NOTE, *(() if rate else (LOAD_NOTE,)))
    return Tariff(
        quotes.hourly,
        given.get("pue", 1.0),
        (rate or LOAD_GB_S) * GB,
        notes,
        by == "gpus",
        demand if by == "energy" else None,
        quotes.terms,
        read_carbon(given.get("carbon")),
        bool(given.get("whole_hosts")),
    )


@dataclass(frozen=True)
class FleetCost:
    """Money and energy of an option at the mean load, spares included; None without a price or a rated power.

    usd_per_month: of 730 hours; dollars are for a million tokens of each kind, and all of them together pay for the
    fleet, idle time included; `million_tokens_usd` is over all tokens, in and out; peak_watts: in the busiest hour.
    """

    usd_per_hour: float | None
    usd_per_month: float | None
    cached_input_usd: float | None
    input_usd: float | None
    output_usd: float | None
    million_tokens_usd: float | None
    watts: float | None  #: at the meter in the mean, as `joules_per_output_token` is
    peak_watts: float | None
    joules_per_output_token: float | None
    output_tok_s: float


def cost_of(option: Option, demand: Demand, tariff: Tariff) -> FleetCost:
    """Price the tokens of an option: every part's hour divided by what it serves in the mean.

    Input is what a prompt adds to the steps of the others, output the decode steps (`economics.token_prices`); the
    prefill pool is all input and the decode pool all output.
    """
    rate = sum(_rate(part, demand) for part in option.parts if part.role != "decode")
    isl, osl, hour = demand.isl.mean, demand.osl.mean, tariff.per_hour(option)
    watts, peak = (fleet_watts(option.parts, demand, tariff.pue, busiest) for busiest in (False, True))
    cached = new = made = whole = None
    if hour is not None:
        pieces = [_pieces(part, demand, tariff) for part in option.parts]
        paid = hour / sum(part.gpus * (tariff.price(part.replica.gpu) or 0.0) for part in option.parts)
        cached, new, made = (paid * sum(kind) / rate / _HOUR for kind in zip(*pieces, strict=True))
        whole = float(usd_per_million(hour, rate * (isl + osl)))
    joules = None if watts is None else watts / (rate * osl)
    month = None if hour is None else hour * MONTH_HOURS
    return FleetCost(hour, month, cached, new, made, whole, watts, peak, joules, rate * osl)


def _rate(part: Part, demand: Demand) -> float:
    """Requests a second that a part serves in the mean."""
    load = part.mean_load(demand)
    each = part.bearer.read(part.seen(demand), load, lambda played: played.rate) if demand.closed else load
    return each * part.replicas


def _pieces(part: Part, demand: Demand, tariff: Tariff) -> tuple[float, float, float]:
    """USD an hour of the part, times a million, over tokens of a request: cached input, input, output."""
    hour = part.gpus * (tariff.price(part.replica.gpu) or 0.0) * MILLION
    load = part.bearer.in_flight(part.seen(demand), part.mean_load(demand))
    times = token_times(part.replica.predictor, load)
    if part.role == "decode":
        return 0.0, 0.0, hour / float(load.osl)
    seconds = float(times.prompt.expected) if part.role == "prefill" else float(times.request)
    cached, new = (hour * float(each) / seconds for each in (times.cached, times.input))
    return cached, new, 0.0 if part.role == "prefill" else hour * float(times.output) / seconds


def fleet_watts(parts: Sequence[Part], demand: Demand, pue: float, peak: bool = False) -> float | None:
    """Power of a fleet at the meter in the mean of the day, or at its peak; None without a rated power.

    Boards with their share of hosts and power supplies, times PUE; boards that no replica has are not counted. Every
    replica draws what it drew in the plays at its load, idle power between its requests among it.
    """
    whole = 0.0
    for part in parts:
        if part.replica.predictor.plan.system.accelerator.power is None:
            return None
        load = part.load(demand) if peak else part.mean_load(demand)
        whole += part.bearer.read(part.seen(demand), load, _plug_watts) * part.gpus
    return whole * pue


def _plug_watts(played: LoadPlay) -> float:
    """Power of a board with its share of the machine, in a play [W]; 0 where no power limit is known."""
    return 0.0 if played.power is None else float(played.power.plug)


def cold_start_s(replica: Replica, tariff: Tariff) -> float:
    """Time until a new replica has its weights: what all its accelerators hold, over the rate [s]."""
    stages = replica.predictor.memory.stages
    held = sum(stage.weight_bytes for stage in stages) * replica.gpus / len(stages)
    return held / tariff.load_bytes_s


@dataclass(frozen=True)
class Point(Plain):
    """One replica at one load.

    on: the fronts it stands on, `speed` (tok/s/user against tok/s/GPU) or `cost` (USD a million tokens, in and out,
    against the mean time of a request).
    """

    scenario: dict[str, Any]
    gpus: int
    load: float
    tok_s_per_user: float
    tok_s_per_gpu: float
    ttft_ms: float
    e2el_ms: float
    usd_per_million_tokens: float | None
    on: tuple[str, ...] = ()


def points(parts: Sequence[Part], tariff: Tariff) -> list[Point]:
    """Every replica at the loads that were played of it, those that stand on a front."""
    seen = []
    for replica, curve in ((part.replica, curve) for part in parts for curve in part.replica.curves):
        price, gpus = tariff.price(replica.gpu), replica.gpus
        isl, osl = curve.asked.isl.mean, curve.asked.osl.mean
        for load, played in curve.played.items():
            if not played.stable:
                continue
            rate, (ttft, e2e) = played.rate / curve.scheduler.replicas, (played.samples[key] for key in ("ttft", "e2e"))
            usd = None if price is None else float(usd_per_million(price * gpus, rate * (isl + osl)))
            seen.append(Point(replica.scenario, gpus, load, 1.0 / played.tpot, rate * osl / gpus, ttft.mean * 1e3,
                              e2e.mean * 1e3, usd))  # fmt: skip
    speed = front(seen, lambda point: (-point.tok_s_per_user, -point.tok_s_per_gpu))
    priced = [point for point in seen if point.usd_per_million_tokens is not None]
    cost = front(priced, lambda point: (point.e2el_ms, point.usd_per_million_tokens or 0.0))
    named = [(point, tuple(n for n, on in (("speed", speed), ("cost", cost)) if point in on)) for point in seen]
    return sorted((replace(point, on=on) for point, on in named if on), key=lambda point: -point.tok_s_per_user)


def front(items: Sequence[T], costs: Callable[[T], tuple[float, float]]) -> list[T]:
    """Items that no other beats in both costs, the first cost rising; of equal ones the first.

    >>> front([(1, 5), (2, 2), (3, 3), (4, 1)], lambda item: item)
    [(1, 5), (2, 2), (4, 1)]
    """
    found, least = list[T](), math.inf
    for item in sorted(items, key=costs):
        if (second := costs(item)[1]) < least:
            found.append(item)
            least = second
    return found


@dataclass(frozen=True)
class Hosts(Plain):
    """Machines of one accelerator.

    size: accelerators of each, the scale-up domain; count: machines; spare: accelerators that no replica has; packed:
    what stands on them, and how many stand so. watts_most: of a machine at the plug with its boards at their limit,
    None where that is not known; racks: of the stated power that hold all machines, None where none is stated, 0 where
    one holds no machine.
    """

    gpu: str
    size: int
    count: int
    spare: int
    packed: tuple[tuple[str, int], ...]
    watts_most: float | None = None
    racks: int | None = None

    def __str__(self) -> str:
        left = f", {counted_chips(self.spare, self.gpu)} free" if self.spare else ""
        return f"{self.count:,} {self.kind}{'s' if self.count > 1 else ''} of {self.size} {self.gpu}{left}"

    @property
    def kind(self) -> str:
        """Name of a machine."""
        return "host" if self.size <= _HOST else "rack-scale domain"

    @property
    def power(self) -> str:
        """Largest draw of each machine, and the racks that hold them."""
        racks = "" if self.racks is None else f"; all fit in {self.racks:,} rack{'s' if self.racks > 1 else ''}"
        racks = "; a rack has no room for it" if self.racks == 0 else racks
        most = (self.watts_most or 0.0) / 1e3
        return f"a {self.kind} of {self.size} {self.gpu} draws {most:.3g} kW at most at the plug{racks}"

    @property
    def stands(self) -> str:
        """The hosts with the replicas on them."""
        return f"{self}: {'; '.join(f'{count} x [{names}]' for names, count in self.packed)}"


def hosts_of(parts: Iterable[tuple[str, Part]], rack: float | None = None) -> tuple[Hosts, ...]:
    """Pack the named replicas of a fleet, the largest first, each onto the first host with room (first fit decreasing).

    Sizes that are powers of two leave no more hosts than any other packing. A replica larger than a host takes whole
    ones. Where hosts may fail, none holds more of a part than the spares of that part make up for. A rack of so many
    watts holds as many machines as draw that with their boards at their limit.
    """
    kinds: dict[str, list[tuple[int, str, Part]]] = {}
    for name, part in parts:
        kinds.setdefault(part.replica.gpu, []).append((part.replica.gpus, name, part))
    return tuple(_packed(gpu, several, rack) for gpu, several in kinds.items())


def _packed(gpu: str, several: list[tuple[int, str, Part]], rack: float | None) -> Hosts:
    system = several[0][2].replica.resolved.plan.system
    size, law = system.domain_size, system.accelerator.power
    hosts: Counter[tuple[int, _Names]] = Counter()  # how many have so much room left, and who stands there
    for gpus, name, part in sorted(several, key=lambda each: (-each[0], each[1])):
        left = part.replicas
        if gpus > size:
            whole = -(-gpus // size)
            hosts[0, ((f"1/{whole} of {name}", 1),)] += (whole - 1) * left
            hosts[whole * size - gpus, ((f"1/{whole} of {name}", 1),)] += left
            continue
        most = part.replica.on_a_host
        if part.reserve.hosts:  # which may fail: as many as there are spares for one
            most = min(most, part.working)
        for (room, names), there in [*hosts.items(), ((size, ()), left)]:
            count = there
            while left and count and (each := min(room // gpus, most, left)):
                many = min(count, left // each)
                hosts[room, names] -= many if names else 0
                hosts[room - each * gpus, (*names, (name, each))] += many
                left, count = left - many * each, count - many
    stands: Counter[str] = Counter()
    for (_, names), count in hosts.items():
        stands[", ".join(f"{many} x {name}" if many > 1 else name for name, many in dict(names).items())] += count
    spare = sum(room * count for (room, _), count in hosts.items())
    watts = None if law is None else float(plug_power(size * law.limit, law.host))
    held = int(rack / watts) if rack and watts else 0
    racks = -(-hosts.total() // held) if held else 0 if rack and watts else None
    return Hosts(gpu, size, hosts.total(), spare, tuple(each for each in stands.items() if each[1]), watts, racks)
