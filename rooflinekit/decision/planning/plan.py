"""The front door of planning: traffic, objectives and prices in, `PlanAnswer` out, in numbers and in words."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from os import PathLike
from typing import Any, Unpack

from rooflinekit.decision.planning.cost import (
    FleetCost,
    Hosts,
    Point,
    added,
    cold_start_s,
    cost_of,
    hosts_of,
    points,
    read_tariff,
)
from rooflinekit.decision.planning.demand import OVER_TIME, Demand, asked_profile, read_course, read_demand
from rooflinekit.decision.planning.fleet import WIDE, Option, Part, Reserve
from rooflinekit.decision.planning.objective import (
    Objective,
    chance,
    limits_in_words,
    parse_objectives,
    probability_text,
    refuse_undecoded,
    slowest_factor,
)
from rooflinekit.decision.planning.over_time import OverTime, over_time
from rooflinekit.decision.planning.rank import (
    Measurement,
    Ranked,
    Swing,
    measurements,
    ranked,
    router_note,
    swings,
    warnings,
)
from rooflinekit.decision.planning.search import (
    NOT_MEASURED,
    Found,
    Near,
    PlanQuestion,
    Progress,
    Refusal,
    Space,
    refused_fleet,
    search,
    searched,
    silent,
)
from rooflinekit.estimation.options import keywords, options_of, part_of, read
from rooflinekit.estimation.scenario import IMAGE_SIZE, SPECULATION_KEYS, PlanOptions, Steps
from rooflinekit.model.types.answer import Plain, Tabled, plain_fields
from rooflinekit.model.types.batch import positive, whole_number
from rooflinekit.model.types.dtype import parse_dtype
from rooflinekit.model.types.errors import DoesNotFitError, InfeasibleError, InputError, WorkloadError
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.model.types.model import Model
from rooflinekit.model.types.speculation import Speculation
from rooflinekit.model.types.time import SIGMAS
from rooflinekit.model.types.units import percent
from rooflinekit.model.types.vision import Images
from rooflinekit.specs import counted_chips, load_accelerator, load_model, noun_of
from rooflinekit.specs.calibration.evidence import EVIDENCE
from rooflinekit.version import __version__

_CLOSE = 0.005  # relative: costs this near are equal
_FORMATS = ("weights", "kv", "activations")
_SPACE_LISTS = (
    "engines",
    "weights",
    "kv",
    "tp",
    "pp",
    "ep",
    "dp",
    "encoder_gpus",
    "token_budgets",
    "max_num_seqs",
)
_NAMES = {
    "engine": "engines",
    "token_budget": "token_budgets",
    "concurrency": "users",
    "burstiness": "cv",
    "price": "prices",
    "limit": "limits",
}
"""Options whose parts have names of their own here: there may be several."""

_DRAFTED = (1, 3)  # tokens of a draft that are tried
_SPARE = re.compile(r"(?P<count>\d{1,4})\s*(?P<what>host|gpu)?s?")
_ROLES = {"prefill": "prefill ", "decode": "decode "}
_SHARES = (0.5, 0.9, 0.95, 0.99)
_STATISTICS = ("mean", "p50", "p95", "p99")
DEFAULT_SLO = "p95 ttft<1s, p95 tpot<50ms"


@dataclass(frozen=True)
class Fleet(Plain):
    """Replicas of one deployment. Loads are requests/s or users of one replica.

    scenario: keywords of `rk.estimate`; replicas: all of them, `spare` of which may fail; load: at the peak with the
    spares down; capacity: within the objectives at the confidence that the fleet is sized for; expected_capacity: where
    steps take as long as expected; knee: at any latency (None in a closed loop); utilisation: load over knee; headroom:
    of the capacity; cold_start_s: weights at the stated rate; burstiness: deviation over mean of the gaps between
    requests that one replica sees (None in a closed loop); hit_rate: share of the prompt tokens that the prefix cache
    and its tiers find (None: no cache).
    """

    role: str
    scenario: dict[str, Any]
    gpus_per_replica: int
    replicas: int
    spare: int
    share: float
    load: float
    capacity: float
    expected_capacity: float
    knee: float | None
    utilisation: float | None
    headroom: float
    binds: tuple[str, ...]
    cold_start_s: float
    burstiness: float | None = None
    hit_rate: float | None = None
    tiers: tuple[str, ...] = ()

    derived = ("gpus",)

    @property
    def gpus(self) -> int:
        """Accelerators."""
        return self.replicas * self.gpus_per_replica

    @property
    def caching(self) -> str:
        """Prefix caching in words; empty where it does not."""
        if self.hit_rate is None:
            return ""
        return f" with prefix cache{''.join(f' + {tier}' for tier in self.tiers)}"


@dataclass(frozen=True)
class Candidate(Plain):
    """One way to serve the traffic.

    evidence: what its times rest on; known: whether the interval that decides is narrow enough to buy for it, else the
    fleet is that at expected times; predicted: mean and percentiles of ttft_ms, tpot_ms and e2el_ms, played at the peak
    with the spares down; interval: 90 % of means and limited percentiles [ms], None beyond what can be sustained at its
    end; probability: that each objective holds, None without a calibrated interval; errors: standard error of what each
    objective is about [ms]; requests, played: how many were played, and which; expected_gpus: of the fleet at expected
    times; hosts: what its replicas stand on; lost: why it is not the best.
    """

    kind: str
    fleets: tuple[Fleet, ...]
    cost: FleetCost
    evidence: str
    known: bool
    predicted: dict[str, dict[str, float | None]]
    interval: dict[str, list[float | None]] | None
    probability: dict[str, float | None]
    errors: dict[str, float]
    requests: int
    played: str
    expected_gpus: int
    hosts: tuple[Hosts, ...] = ()
    lost: str | None = None

    @property
    def gpus(self) -> int:
        """Accelerators in all."""
        return sum(fleet.gpus for fleet in self.fleets)

    @property
    def replicas(self) -> int:
        """Replicas in all."""
        return sum(fleet.replicas for fleet in self.fleets)

    @property
    def gpu(self) -> str:
        """Accelerators of the candidate."""
        return "+".join(dict.fromkeys(str(fleet.scenario["gpu"]) for fleet in self.fleets))

    @property
    def engine(self) -> str:
        """Engines of the candidate."""
        return "+".join(dict.fromkeys(str(fleet.scenario["engine"]) for fleet in self.fleets))

    @property
    def name(self) -> str:
        """`11 x TP2`, or `8P TP2 + 3D TP2`."""
        pieces = []
        for fleet in self.fleets:
            role = {"prefill": "P", "decode": "D"}.get(fleet.role, "")
            formats = "".join(f" {fleet.scenario[key]}" for key in ("weights", "kv") if key in fleet.scenario)
            sign = f"{fleet.replicas}{role}" if role else f"{fleet.replicas} x"
            pieces.append(f"{sign} {split_name(fleet.scenario)}{formats}{fleet.caching}")
        return " + ".join(pieces)

    @property
    def risk(self) -> tuple[str, float | None]:
        """The objective that is most likely to fail, and the probability that it holds."""
        known = {name: value for name, value in self.probability.items() if value is not None}
        if known:
            name = min(known, key=lambda name: known[name])
            return name, known[name]
        binds = [what for fleet in self.fleets for what in fleet.binds if what in self.probability]
        return (binds or list(self.probability) or [""])[0], None

    def latency(self, objective: str) -> float | None:
        """Latency of an objective [ms]."""
        statistic, metric = objective.split()[:2]
        return self.predicted[f"{metric.lower()}_ms"].get(statistic)

    def to_dict(self) -> dict[str, Any]:
        """Return the candidate as JSON: `scenario` and `replicas`, or `prefill` and `decode`, or `fleet`."""
        cost = asdict(self.cost)
        million = {
            "cached_input": cost.pop("cached_input_usd"),
            "input": cost.pop("input_usd"),
            "output": cost.pop("output_usd"),
            "all": cost.pop("million_tokens_usd"),
        }
        own = plain_fields(self)
        fleets, _ = own.pop("fleets"), own.pop("cost")
        by_role = {fleet["role"]: fleet for fleet in fleets}
        parts: dict[str, Any] = {"aggregated": fleets[0], "disaggregated": by_role}.get(self.kind, {"fleet": fleets})
        head: dict[str, Any] = {"kind": self.kind, "gpus": self.gpus, "replicas": self.replicas}
        return head | parts | cost | {"usd_per_million_tokens": million} | own

    def to_row(self) -> dict[str, Any]:
        """One flat row of a table."""
        cost = self.cost
        name, chance = self.risk
        row: dict[str, Any] = {
            "kind": self.kind, "plan": self.name, "gpu": self.gpu, "gpus": self.gpus, "replicas": self.replicas,
            "hosts": sum(each.count for each in self.hosts), "free_gpus": sum(each.spare for each in self.hosts),
            "evidence": self.evidence, "usd_per_hour": cost.usd_per_hour,
            "cached_input_usd_per_million": cost.cached_input_usd, "input_usd_per_million": cost.input_usd,
            "output_usd_per_million": cost.output_usd, "usd_per_million_tokens": cost.million_tokens_usd,
            "watts": cost.watts, "joules_per_output_token": cost.joules_per_output_token,
            "binding": name, "probability": chance,
        }  # fmt: skip
        row |= {f"probability {objective}": value for objective, value in self.probability.items()}
        row |= {
            f"predicted_{metric}_{name}": self.predicted.get(metric, {}).get(name)
            for metric in ("ttft_ms", "tpot_ms", "e2el_ms")
            for name in _STATISTICS
        }
        (fleet, *others) = self.fleets
        row |= {"load": None if others else fleet.load, "knee": None if others else fleet.knee}
        row |= {
            f"{end}_{key}": pair[at]
            for key, pair in (self.interval or {}).items()
            for at, end in enumerate(("low", "high"))
        }
        row |= {"expected_gpus": self.expected_gpus, "known": self.known}
        return row | {"played": self.played, "lost": self.lost}


@dataclass(frozen=True)
class PlanAnswer(Tabled):
    """A plan: the answer in words, the best candidate, all others by cost, the fronts, and what was refused.

    confidence: probability that every objective holds; summary: the answer, why it wins and what would change it;
    expected: the cheapest fleet at expected times, None where it is
    the best; measured: the cheapest with measured kernels, None where that is the best; router: what requests at random
    would take; stand_ins: what would have to be true for accelerators without measured kernels to win; over_time: by
    the hour and month, None for one peak; sensitivity: the fleet with each assumption a fifth off, where it is asked.
    """

    version: str
    model: str
    traffic: dict[str, Any]
    question: str
    slo: tuple[str, ...]
    confidence: float
    answer: str
    summary: tuple[str, ...]
    expected: str | None
    measured: str | None
    router: str
    stand_ins: tuple[str, ...]
    candidates: tuple[Candidate, ...]
    pareto: tuple[Point, ...]
    refused: tuple[Refusal, ...]
    tried: int
    prices: dict[str, dict[str, Any] | None]
    interrupted: bool
    warnings: tuple[str, ...]
    over_time: OverTime | None = None
    sensitivity: tuple[Swing, ...] = ()
    measure: tuple[Measurement, ...] = ()

    derived = ("best",)

    @property
    def best(self) -> Candidate:
        """The cheapest that is known well enough; of none, the cheapest at expected times."""
        return self.candidates[0]

    def to_dict(self) -> dict[str, Any]:
        """Nested plain data for JSON."""
        data = plain_fields(self)
        del data["question"]
        return data

    def to_rows(self) -> list[dict[str, Any]]:
        """One flat row a candidate."""
        return [{"rank": rank, **each.to_row()} for rank, each in enumerate(self.candidates, 1)]


def split_name(scenario: dict[str, Any]) -> str:
    """`TP8`, or `TP1 DP8 EP8`; with encoders `TP1 + 2 for images`; with a draft and its tokens `TP8 + mtp (1)`.

    >>> split_name({"tp": 4, "ep": 4}), split_name({})
    ('TP4 EP4', 'TP1')
    """
    degrees = [(key, scenario.get(key, 1)) for key in ("tp", "pp", "dp", "ep")]
    beside = [f"+ {scenario['encoder_gpus']} for images"] if scenario.get("encoder_gpus") else []
    beside += [f"+ {scenario['redundant_experts']} copies of experts"] if scenario.get("redundant_experts") else []
    beside += ["two-batch" if scenario.get("two_batch") else "deepep"] if "all_to_all" in scenario else []
    beside += [f"+ {scenario['draft']} ({scenario['draft_tokens']})"] if "draft" in scenario else []
    return " ".join([*(f"{key.upper()}{n}" for key, n in degrees if n > 1 or key == "tp"), *beside])


def deployment_name(scenario: dict[str, object]) -> str:
    """Split, and formats that were asked for.

    >>> deployment_name({"tp": 2, "weights": "fp8"})
    'TP2 weights fp8'
    """
    return " ".join([split_name(scenario), *(f"{key} {scenario[key]}" for key in _FORMATS if key in scenario)])


def answer_in_words(best: Candidate, question: PlanQuestion, beside: Sequence[str] = ()) -> str:
    """The answer as a sentence or five, with the arithmetic that leads to it; `beside`: what else there is to say."""
    pieces = []
    for fleet in best.fleets:
        role = "" if fleet.role == "serve" else f"{fleet.role} "
        number = f"{fleet.replicas} {role}replica{'s' if fleet.replicas > 1 else ''}"
        pieces.append(f"{number} x {deployment_name(fleet.scenario)} on {fleet.scenario['gpu']}{fleet.caching}")
    money = "no price is known, so plans are compared by GPUs"
    if best.cost.usd_per_hour is not None:
        million = _three(best.cost.million_tokens_usd or 0.0)
        money = f"${best.cost.usd_per_hour:,.2f} an hour, ${million} a million tokens in and out"
    parts = [f"{_chips(best)} = {' + '.join(pieces)}, {best.engine} ({best.evidence}): {money}."]
    if not best.known:
        parts.append(_not_known(question))
    parts += [_sizing(fleet, best, question) for fleet in best.fleets]
    parts += _standing(best, question)
    if (choice := Speculation.read(part_of(best.fleets[0].scenario, SPECULATION_KEYS))) is not None:
        parts.append(f"A pass verifies {choice.verified} drafted tokens and yields {choice.tokens_per_pass:.3g}.")
    name, chance_of = best.risk
    if chance_of is not None and best.known:
        parts.append(f"{name} holds with a probability of {probability_text(chance_of)}, the least of all objectives.")
    return " ".join([*parts, *beside])


def _not_known(question: PlanQuestion) -> str:
    return (
        "This is the fleet at expected times: they are not known well enough to buy for "
        f"{question.confidence * 100:g} % confidence, the ends of an interval are more than {WIDE:g} times apart."
    )


def _expected_in_words(order: Sequence[Ranked], question: PlanQuestion) -> str | None:
    """The cheapest fleet at expected times, and what the confidence costs on top; None where it is the best."""
    known = [entry for entry in order if entry.known]
    if not question.deviations or not known:
        return None
    other = min((entry.expected for entry in known), key=question.tariff.rank)
    best = order[0].option
    if question.tariff.rank(other) >= question.tariff.rank(best):
        return None
    hour, whole = (question.tariff.per_hour(each) for each in (other, best))
    name = " + ".join(f"{part.replicas} x {deployment_name(part.replica.scenario)}" for part in other.parts)
    on = "" if other.names == best.names else f" on {' + '.join(other.names)}"
    money = "" if hour is None or whole is None else f", ${hour:,.2f} an hour"
    more = (
        f"{counted_chips(best.gpus - other.gpus, *best.names)}"
        if hour is None or whole is None
        else f"${whole - hour:,.2f} an hour"
    )
    sure = f"{question.confidence * 100:g} %"
    do = "does" if other.gpus == 1 else "do"
    chips = counted_chips(other.gpus, *other.names)
    return f"At expected times {chips} {do} ({name}{on}){money}. Price of certainty ({sure}): {more}."


def _measured_in_words(candidates: Sequence[Candidate]) -> str | None:
    """The cheapest with measured kernels, where that is not the best."""
    if candidates[0].evidence == EVIDENCE[0]:
        return None
    other = next((each for each in candidates if each.evidence == EVIDENCE[0] and each.known), None)
    if other is None:
        return None
    money = "" if other.cost.usd_per_hour is None else f", ${other.cost.usd_per_hour:,.2f} an hour"
    return f"The cheapest with measured kernels is {other.name} on {other.gpu}: {_chips(other)}{money}."


def _why(candidates: Sequence[Candidate], lost: Sequence[Candidate], question: PlanQuestion) -> str:
    """Sentence on the limit of the best, and how much dearer the next accelerator or fleet is."""
    best = candidates[0]
    if not best.known:
        return _not_known(question)
    binds = limits_in_words(what for fleet in best.fleets for what in fleet.binds)
    several = "" if " and " in binds else "s"
    every = all(fleet.binds == ("users",) for fleet in best.fleets)
    limit = "A replica serves all users" if every else f"{binds} limit{several} a replica"
    limit = limit.replace("a full", "A full", 1) if limit.startswith("a full") else limit
    if not lost:
        return f"{limit}; nothing else that was tried carries the traffic for less."
    other = next((each for each in lost if each.gpu != best.gpu), lost[0])
    name = other.gpu if other.gpu != best.gpu else f"{other.name} on {other.gpu}"
    why = other.lost or "dearer"
    return f"{limit}. The next, {name}, {'' if why.startswith('costs') else 'is '}{why}."


def _standing(best: Candidate, question: PlanQuestion) -> Iterator[str]:
    """The hosts, what they cost where they are rented whole, and what the spare replicas cost."""
    price = question.tariff.price
    if any(each.size > 1 for each in best.hosts):
        whole = added(None if (each := price(host.gpu)) is None else host.spare * each for host in best.hosts)
        rented = f", which cost ${whole:,.2f} an hour more where hosts are rented whole" if whole else ""
        rented = ", which are paid" if whole and question.tariff.whole_hosts else rented
        yield f"That is {' and '.join(map(str, best.hosts))}{rented}."
    kept = [(fleet.spare * fleet.gpus_per_replica, price(fleet.scenario["gpu"])) for fleet in best.fleets]
    if count := sum(gpus for gpus, _ in kept):
        money = added(None if each is None else gpus * each for gpus, each in kept)
        cost = "" if money is None else f", at ${money:,.2f} an hour"
        hosts = question.reserve.hosts
        fail = f", so that {hosts} host{'s' if hosts > 1 else ''} may fail" if hosts else ""
        yield f"{counted_chips(count, *_kinds(best))} of them are spare{fail}{cost}."


def _chips(candidate: Candidate) -> str:
    """Its accelerators, counted."""
    return counted_chips(candidate.gpus, *_kinds(candidate))


def _kinds(candidate: Candidate) -> list[str]:
    """Names of its accelerators."""
    return [str(fleet.scenario["gpu"]) for fleet in candidate.fleets]


def _sizing(fleet: Fleet, best: Candidate, question: PlanQuestion) -> str:
    """Sentence on the number of replicas and the capacity of each."""
    demand, reserve = question.demand, question.reserve
    working, peak, unit = fleet.replicas - fleet.spare, demand.peak_load * fleet.share, demand.unit
    role = "replica" if fleet.role == "serve" else f"{fleet.role} replica"
    if fleet.binds == ("users",):
        return f"One {role} serves all {peak:,g} users."
    limit = "its engine is full" if fleet.binds == ("knee",) else f"{' and '.join(fleet.binds)} fails"
    each, divisor = fleet.capacity * (1.0 - reserve.headroom), _three(fleet.capacity)
    if reserve.headroom:
        divisor = f"({divisor} x {1.0 - reserve.headroom:g})"
    each = max(math.floor(each + 1e-9), 1) if demand.closed else each
    needed = max(math.ceil(peak / each - 1e-6), 1)
    sure = ""
    if best.known and fleet.expected_capacity > fleet.capacity * (1.0 + _CLOSE):
        sure = f" with {question.confidence * 100:g} % confidence ({_three(fleet.expected_capacity)} expected)"
    sentence = (
        f"One {role} serves {_three(fleet.capacity)} {unit}{sure} before {limit}; "
        f"{_three(peak)} / {divisor} = {_three(peak / each)}, so {needed:,} carr{'ies' if needed == 1 else 'y'} the "
        f"{'peak' if demand.peak > 1 else 'load'}"
    )
    why = (
        "whose arrivals are even enough"
        if best.played.endswith("requests at the peak")
        else "by a replay of its requests"
    )
    sentence += f", {working} {why}" if working > needed else ""
    return sentence + (f", and {fleet.spare} more may fail." if fleet.spare else ".")


def lost_in_words(other: Candidate, best: Candidate, demand: Demand) -> str:
    """Why a candidate is not the best: which of price, use of a GPU and rounding makes it dearer."""
    mine, theirs = other.cost.usd_per_hour, best.cost.usd_per_hour
    money = "" if mine is None else f", ${mine:,.2f} an hour"
    if best.known and not other.known:
        return f"not known well enough: {_chips(other)} at expected times{money}"
    hours = None if mine is None or theirs is None else (mine, theirs)
    ratio = hours[0] / hours[1] if hours else other.gpus / best.gpus
    if abs(ratio - 1.0) < _CLOSE:
        left = [percent(min(fleet.headroom for fleet in each.fleets)) for each in (other, best)]
        own = f"{left[0]} of its capacity is unused, of the best's {left[1]}"
        return f"costs as much{'' if hours else ', in GPUs'}; {own}"
    head = f"{percent(abs(ratio - 1.0))} {('dearer' if ratio > 1 else 'cheaper') if hours else 'more GPUs'}"
    limit = limits_in_words(what for fleet in other.fleets for what in fleet.binds)
    use, its = demand.peak_load / best.gpus, demand.peak_load / other.gpus
    reasons = [
        f"each {noun_of(*_kinds(other), *_kinds(best))} handles {_three(its)} {demand.unit} (the best: {_three(use)})"
    ]
    reasons += [] if all(fleet.binds == ("users",) for fleet in other.fleets) else [f"limited by {limit}"]
    if hours:
        each = [cost / candidate.gpus for cost, candidate in zip(hours, (other, best), strict=True)]
        if abs(each[0] / each[1] - 1.0) > _CLOSE:
            reasons.append(f"and costs ${each[0]:.2f} an hour (the best: ${each[1]:.2f})")
    idle = min(fleet.headroom for fleet in other.fleets)
    if idle > 0.1:
        reasons.append(f"{percent(idle)} of its capacity is unused")
    return f"{head}: {', '.join(reasons)}"


def _three(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _read(scenario: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a plan, checked and by the names that they have here."""
    if "gpu" in scenario:
        raise InputError("unknown option 'gpu'; nearest: gpus, the accelerators to choose from")
    if scenario.get("sensitivity") and scenario.get("mixed"):
        raise InputError("sensitivity and mixed exclude each other; give one")
    return {_NAMES.get(key, key): value for key, value in read(PlanOptions, scenario).items()}


def read_question(
    model: str | PathLike[str],
    gpus: str | Sequence[str],
    slo: str | Sequence[str],
    scenario: Mapping[str, object],
    progress: Progress | None = None,
) -> PlanQuestion:
    """Read what a plan is asked.

    Raises InputError (and its kinds) for anything that makes no sense.
    """
    given = _read(scenario)
    if "classes" in given:
        raise InputError("classes of requests have a plan of their own: plan_classes(FILE, MODEL), or --classes")
    if given.pop("aggregated_only", False):
        given["disaggregated"] = False
    if given.keys() & OVER_TIME:
        given["mixed"] = False  # whose hours would be a search of their own
    if given.get("autoscale"):
        given["disaggregated"] = False  # one number of replicas is scaled
    if given.pop("one_kind", False):
        if given.get("mixed"):
            raise InputError("one_kind and mixed exclude each other; give one")
        given["mixed"] = False
    names = (gpus,) if isinstance(gpus, str) else tuple(gpus)
    seen: dict[str, str] = {}
    for gpu in names:
        name = load_accelerator(gpu).value.name
        if name in seen:
            raise InputError(f"{gpu} and {seen[name]} are the same accelerator; name it once")
        seen[name] = gpu
    loaded = load_model(model).value
    context, images = loaded.max_context, Images.read(given.get("images", 0), given.get("image_size", IMAGE_SIZE))
    if images:
        given["image_tokens"] = loaded.seeing(images).tokens(images)
    if any(_listed("encoder_gpus", given.get("encoder_gpus", 0))):
        if images is None:
            raise InputError("encoder_gpus encode images, but none come; add images=N, or leave encoder_gpus out")
        if given.get("autoscale"):
            raise InputError("encoder_gpus does not go with autoscale; leave one of them out")
    objectives = parse_objectives(slo)
    profile = asked_profile(given)
    demand = read_demand(given | {"max_context": context}, objectives)
    refuse_undecoded(objectives, demand.osl.mean)
    reserve = _reserve(names, given)
    demand = replace(demand, reach=1.0 / (1.0 - reserve.headroom))
    shared = part_of(given, ("memory_fraction", "activations", "system", *options_of(Steps)))
    shared |= {"images": images.count, "image_size": given.get("image_size", IMAGE_SIZE)} if images else {}
    adapters = {"lora_rank": 0, "lora_adapters": 1} | part_of(given, ("lora_rank", "lora_adapters"))
    shared |= adapters if adapters["lora_rank"] or adapters["lora_adapters"] > 1 else {}
    space = {each.name: given[each.name] for each in fields(Space) if each.name in given}
    several = {key: _listed(key, value) for key, value in space.items() if key in _SPACE_LISTS}
    return PlanQuestion(
        model=str(model),
        demand=demand,
        slo=objectives,
        space=Space(**space | several | {"gpus": names, "shared": shared, "drafts": tuple(_drafts(loaded, given))}),
        reserve=reserve,
        tariff=read_tariff(names, given, demand),
        calibration=given.get("calibration"),
        confidence=given.get("confidence", 0.9),
        measured_only=given.get("measured_only", False),
        seed=given.get("seed", 0),
        course=read_course(given, profile, demand),
        sensitivity=given.get("sensitivity", False),
        progress=progress or silent,
    )


def _drafts(model: Model, given: dict[str, object]) -> Iterator[dict[str, Any]]:
    """Drafts that are tried beside none: the one asked for, else the MTP layers of the checkpoint."""
    told = part_of(given, ("draft_tokens", "acceptance"))
    draft = given.get("draft", "mtp" if model.mtp_layers else "none")
    if draft == "none" and told:
        raise InputError(f"{min(told)} needs a draft: eagle3, mtp, or a model's name")
    for tokens in _listed("draft_tokens", told.get("draft_tokens", _DRAFTED)) if draft != "none" else ():
        choice = {"draft": draft, "draft_tokens": tokens} | part_of(told, ("acceptance",))
        Speculation.read(choice)
        yield choice


def _listed(key: str, value: object) -> tuple[Any, ...]:
    """One or several; counts are checked."""
    several = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    if not several:
        raise WorkloadError(f"{key} is an empty list; leave it out to search all")
    if key in ("weights", "kv"):
        for each in several:
            parse_dtype(each)  # a format that nobody knows is no candidate's fault
    counted = key not in ("engines", "weights", "kv")
    least = 0 if key == "encoder_gpus" else 1
    return tuple(dict.fromkeys(whole_number(each, key, least) if counted else str(each) for each in several))


def _reserve(gpus: tuple[str, ...], given: dict[str, Any]) -> Reserve:
    limits, watts = [], math.inf
    for name, most in dict(given.get("limits", {})).items():
        if name == "power":
            watts = positive(most, "limit of power")
            continue
        accelerator = load_accelerator(name).value.name
        if accelerator not in {load_accelerator(gpu).value.name for gpu in gpus}:
            raise InputError(f"a limit is given for {accelerator}, which is not among the gpus: {', '.join(gpus)}")
        limits.append((accelerator, whole_number(most, f"limit of {name}", 0)))
    fail = {"redundancy": given.get("redundancy", 0), "hosts": 0}
    if (spare := given.get("spare")) is not None:
        told = _SPARE.fullmatch(str(spare).strip().lower())
        if told is None:
            raise WorkloadError(f"spare says what may fail, as 1host or 2gpus, not {spare!r}")
        if fail["redundancy"]:
            raise InputError("spare and redundancy both say what may fail; give one")
        fail["redundancy" if told["what"] == "gpu" else "hosts"] = int(told["count"])  # a replica falls with each GPU
    return Reserve(given.get("headroom", 0.0), **fail, limits=tuple(limits), watts=watts, rack=given.get("rack"))


@keywords(PlanOptions)
def plan(
    model: str | PathLike[str],
    gpus: str | Sequence[str] = ("h100-sxm",),
    slo: str | Sequence[str] | None = None,
    *,
    progress: Progress | None = None,
    **scenario: Unpack[PlanOptions],
) -> PlanAnswer:
    """The cheapest deployments that carry a traffic within its objectives, with a stated probability.

    Args:
        model: a model's name or path.
        gpus: accelerators to choose from, names or paths, or one of them.
        slo: objectives as `parse_objectives` reads them, such as "p95 ttft<1s, p95 tpot<40ms"; several add up.
        progress: called with what is worked at, which piece it is, and of how many.
        **scenario: the options of `PlanOptions` in docs/cli.md: traffic, search, money, reserves; None is the default.

    Returns:
        A `PlanAnswer`: `answer` in words, `best`, `candidates` by cost, `pareto`, `refused`.

    Raises:
        InputError: (and its kinds) for anything that makes no sense; DoesNotFitError if no deployment holds the model;
            InfeasibleError if none meets the objectives: it says how near the best comes.

    >>> answer = plan("llama-3-8b", rate=20, isl=1000, osl=100, tp=[1], disaggregated=False)
    >>> answer.best.gpus == answer.best.replicas, answer.best.fleets[0].scenario["tp"]
    (True, 1)
    """
    question = read_question(model, gpus, slo or DEFAULT_SLO, scenario, progress)
    found = Found()
    try:
        search(question, found)
    except KeyboardInterrupt:  # what is found by now can be compared
        if not found.options:
            raise
        found.interrupted = True
        known = {name for option in found.options for name in option.names}
        names = [load_accelerator(gpu).value.name for gpu in question.space.gpus]
        left = [name for name in names if name not in known] or ["some deployments"]
        found.notes.append(f"interrupted: the search left out {', '.join(left)}")
    order = ranked(question, found)
    if not order:
        raise nothing_found(question, found)
    for part in order[0].option.parts:
        part.play_ends(question.demand)
    candidates = [candidate_of(question, order[0])]
    router, stand_ins = "", list[str]()
    try:
        for place, entry in enumerate(order[1:], 1):
            question.progress("play candidates at the peak", place, len(order))
            candidates.append(candidate_of(question, entry))
        router, stand_ins = router_note(question, order[0].option), _stand_ins(question, order)
    except KeyboardInterrupt:  # the plan is known
        found.interrupted = True
    best = candidates[0]
    lost = [replace(each, lost=lost_in_words(each, best, question.demand)) for each in candidates[1:]]
    names = [
        " + ".join(f"{_ROLES.get(fleet.role, '')}{deployment_name(fleet.scenario)}" for fleet in each.fleets)
        + f" on {each.gpu}"
        for each in candidates
    ]
    over = None
    try:
        over = over_time(question, question.course, order[: len(names)], names) if question.course else None
        found.interrupted |= over is not None and over.interrupted
    except KeyboardInterrupt:  # the plan is known
        found.interrupted = True
    sensitive, measure = list[Swing](), list[Measurement]()
    try:
        measure += measurements(question, order)
        sensitive += swings(question, order[0].option) if question.sensitivity else []
    except KeyboardInterrupt:  # the plan is known
        found.interrupted = True
    expected, measured = _expected_in_words(order, question), _measured_in_words(candidates)
    pays = f"A measurement would pay: {measure[0]} (-v has the commands)." if measure else ""
    return PlanAnswer(
        version=__version__,
        model=load_model(question.model).value.name,
        traffic=question.demand.to_dict(),
        question=str(question.demand),
        slo=tuple(map(str, question.slo)),
        confidence=question.confidence,
        answer=answer_in_words(best, question, [each for each in (expected, measured) if each]),
        summary=tuple(filter(None, (_why(candidates, lost, question), expected, measured, pays, router))),
        expected=expected,
        measured=measured,
        router=router,
        stand_ins=tuple(stand_ins),
        candidates=(best, *lost),
        pareto=tuple(points(found.able, question.tariff)),
        refused=tuple(found.refused),
        tried=found.tried,
        prices={gpu: None if price is None else price.to_dict() for gpu, price in question.tariff.prices.items()},
        interrupted=found.interrupted,
        warnings=tuple(dict.fromkeys(warnings(question, found, order))),
        over_time=over,
        sensitivity=tuple(sensitive),
        measure=tuple(measure),
    )


def nothing_found(question: PlanQuestion, found: Found) -> DoesNotFitError | InfeasibleError:
    """Why there is no plan, how near the best comes, and what stands in the way."""
    slo = ", ".join(map(str, question.slo))
    if found.near and not found.able:
        nearest = min(found.near, key=lambda each: max(near.over for near in each))
        words = ", ".join(f"{near.objective} is missed with {near.seconds * 1e3:.4g} ms" for near in nearest)
        best: dict[str, Near] = {}
        for near in (each for several in found.near for each in several):
            key = str(near.objective)
            best[key] = min(best.get(key, near), near, key=lambda each: each.seconds)
        reached = "; ".join(
            f"{near.objective.statistic} {near.objective.metric.upper()} reaches {near.seconds * 1e3:.4g} ms on "
            f"{near.name}, where {near.cause}"
            for near in best.values()
        )
        sure = f" with {question.confidence * 100:g} % confidence" if question.confidence != 0.5 else ""
        near_one = f"the nearest is {nearest[0].name}: {words}"
        space = searched(load_model(question.model).value, question.space)
        return InfeasibleError(f"no deployment meets {slo}{sure} {space}; {near_one}; at best {reached}")
    if found.able:
        why = refused_fleet(question, (min(found.able, key=lambda part: part.gpus),))
        what = next((each for each in found.refused if each.why == why), found.refused[-1])
        limits = ", ".join(f"{most} {gpu}" for gpu, most in question.reserve.limits)
        carry = f"{limits} do not serve {question.demand}" if limits else f"no deployment serves {question.demand}"
        return InfeasibleError(f"{carry}; {what.what} {what.why}")
    tried = "; ".join(f"{each.what}: {each.why}" for each in found.refused[:-4:-1])  # the largest come nearest
    if question.measured_only and any(each.why.endswith(NOT_MEASURED) for each in found.refused):
        return InfeasibleError(f"measured_only leaves no deployment of {question.model}; {tried}")
    return DoesNotFitError(f"no deployment holds {question.model}; {tried or 'nothing was left to try'}")


def candidate_of(question: PlanQuestion, entry: Ranked) -> Candidate:
    """A ranked option with its fleets, cost, latencies and probabilities."""
    demand, option = question.demand, entry.option
    feels = option.feels(demand)
    felt = feels(1.0)
    requests = sum(int(part.played(demand).played.counted.sum()) for part in option.parts)
    played, seen = f"{requests:,} requests at the peak", felt
    errors = {str(each): error for each in question.slo if (error := _error(option, demand, each)) is not None}
    if entry.replayed is not None:
        played, requests, seen, errors = entry.replayed.played, entry.replayed.requests, entry.replayed.felt, {}
    return Candidate(
        kind=option.kind,
        fleets=tuple(
            _fleet(question, *each, entry.known) for each in zip(option.parts, entry.expected.parts, strict=True)
        ),
        cost=cost_of(option, demand, question.tariff),
        evidence=entry.evidence,
        known=entry.known,
        predicted=seen.table(_SHARES),
        interval=_interval(question, option) or None,
        probability={str(each): chance(feels, each, option.deviations) for each in question.slo},
        errors=errors,
        requests=requests,
        played=played,
        expected_gpus=entry.expected.gpus,
        hosts=hosts_of(
            ((f"{_ROLES.get(part.role, '')}{split_name(part.replica.scenario)}", part) for part in option.parts),
            question.reserve.rack,
        ),
    )


def _error(option: Option, demand: Demand, objective: Objective) -> float | None:
    """Standard error of what an objective is about, the largest of the parts [ms]; of one class none is known."""
    if objective.of:
        return None
    metric = "e2e" if objective.metric == "e2el" else objective.metric
    found = [part.played(demand).errors(metric).get(objective.statistic) for part in option.parts]
    return max((each for each in found if each is not None), default=None)


def _interval(question: PlanQuestion, option: Option) -> dict[str, list[float | None]]:
    """90 % of means, and of the percentiles that objectives are about [ms]."""
    feels, found = option.feels(question.demand), dict[str, list[float | None]]()
    felt = feels(1.0)
    means = [Objective(metric, None, math.inf) for metric in ("ttft", "tpot")]
    for each in (*means, *(each for each in question.slo if each.share is not None)):
        if each.metric not in felt.ends:
            continue
        ends = []
        for end in (-SIGMAS, SIGMAS):
            steps, further = felt.factors(each.metric, end)
            seconds = each.value(feels(steps)) * further
            ends.append(seconds * 1e3 if math.isfinite(seconds) else None)
        of = f"{each.of}_" if each.of else ""
        found[of + f"{each.statistic}_{each.metric}_ms".removeprefix("mean_")] = ends
    return found


def _fleet(question: PlanQuestion, part: Part, expected: Part, known: bool) -> Fleet:
    demand, load = question.demand, part.load(question.demand)
    knee = None if demand.closed else part.bearer.knee(part.seen(demand))
    return Fleet(
        role=part.role,
        scenario=part.replica.scenario,
        gpus_per_replica=part.replica.gpus,
        replicas=part.replicas,
        spare=part.spare,
        share=part.share,
        load=load,
        capacity=part.ability.load,
        expected_capacity=expected.ability.load if known else part.ability.load,
        knee=knee,
        utilisation=None if knee is None else load / knee,
        headroom=1.0 - load / part.ability.load,
        binds=part.ability.binds,
        cold_start_s=cold_start_s(part.replica, question.tariff),
        burstiness=None if demand.closed else part.seen(demand).arrival_cv,
        hit_rate=None if part.replica.kept is None else part.replica.kept.cached / demand.isl.mean,
        tiers=() if part.replica.kept is None else tuple(tier.name for tier in part.replica.kept.tiers),
    )


def _stand_ins(question: PlanQuestion, order: list[Ranked]) -> list[str]:
    """For each accelerator without measured kernels, what would have to be true for it to win against measured ones."""
    best, said = order[0], []
    price = question.tariff.per_hour(best.option)
    if best.evidence != EVIDENCE[0] or question.demand.closed:
        return []
    seen = {entry.option.names for entry in order if entry.evidence == EVIDENCE[0]}
    for entry in order:
        option = entry.option
        if option.names in seen or option.kind != "aggregated":
            continue
        seen.add(option.names)
        (part,) = option.parts
        each = question.tariff.price(part.replica.gpu)
        if price is not None and each is not None:
            most = math.ceil(price / (each * part.replica.gpus) - 1e-9) - 1 - part.spare
        else:
            most = math.ceil(best.option.gpus / part.replica.gpus) - 1 - part.spare
        name = f"{part.replica.gpu} ({entry.evidence})"
        if most < 1:
            takes = "takes fewer GPUs" if price is None or each is None else "costs less"
            said.append(f"{name} cannot win: not one replica {takes} than the plan")
            continue
        fewer = Option("aggregated", (replace(part, working=most),))
        feels = fewer.feels(question.demand)
        factor = slowest_factor(feels, question.slo)
        gpus = (most + part.spare) * part.replica.gpus
        chips = counted_chips(gpus, part.replica.gpu)
        if factor is None:
            said.append(f"{name} cannot win: no speed of its kernels within reach lets {chips} do")
        else:
            money = "" if each is None else f" at ${gpus * each:,.2f} an hour"
            said.append(
                f"{name} wins with {chips}{money} if its steps take at most {factor:.2f} times as long as "
                "predicted without measured kernels"
            )
    return said
