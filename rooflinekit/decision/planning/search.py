"""The search: every deployment of a space, how much each bears, and the fleets that carry the traffic."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from heapq import heapify, heappop, heappush
from itertools import chain, combinations, groupby, product
from statistics import NormalDist
from typing import Any, NamedTuple

from rooflinekit.decision.planning.cost import Tariff, fleet_watts
from rooflinekit.decision.planning.demand import Course, Demand
from rooflinekit.decision.planning.fleet import (
    WIDE,
    Ability,
    Bearer,
    Option,
    Part,
    Replica,
    Reserve,
    lay_out,
    shared_out,
)
from rooflinekit.decision.planning.objective import Objective, missed
from rooflinekit.estimation.results import shares_by_cause
from rooflinekit.load.compiled import prepare
from rooflinekit.load.curve import SHARES
from rooflinekit.load.scene import CacheTier
from rooflinekit.model.types.answer import Plain
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.errors import DeploymentError, DoesNotFitError, DtypeError, WorkloadError
from rooflinekit.model.types.hardware import System
from rooflinekit.model.types.model import MixtureOfExperts, Model
from rooflinekit.model.types.units import percent, significant
from rooflinekit.model.types.workload import Workload
from rooflinekit.specs import load_accelerator, load_model, load_system
from rooflinekit.specs.calibration.evidence import EVIDENCE, evidence

BUDGETS = (2048, 4096, 8192, 16384)
"""Token budgets of a step that are tried beside the engine's default."""
SEQUENCES = (128, 256, 512)
"""Limits of running sequences that are tried beside the engine's default."""
_STAGES = (2, 4, 8)
_DENSE, _SPARSE, _STAGED = 8, 16, 32  # accelerators of one replica at most: dense, with experts, in stages

Split = dict[str, int]
Progress = Callable[[str, int, int], None]
"""Told what is worked at, which piece it is, and of how many."""


def silent(what: str, number: int, of: int) -> None:
    """Tell nobody."""


NOT_MEASURED = "its kernels are not measured"
_SHARING = 4096  # replicas with prefix caches from which no more are looked for
_TRIES = 64  # replicas that are added where an objective of the whole request fails though those of its parts hold
_ANSWER = 2.0  # tokens from which there is something to decode
_REQUESTS = 200_000  # of all plays of one accelerator, about
_COMPILING = "compile the loop that plays loads, once"
_BETTER = 1.01  # a setting has to bear this much more than one that was tried before; plays err by as much
_SETTINGS = 1.15  # times the load of the engine's settings, which others bear at most
_MIXED = 64  # replicas of one kind in a mixed fleet, from none up and from the most down
_PAIRS = 3  # of pools on unlike accelerators that are sized
_LONG = 256  # tokens to which the longest admitted sequence is rounded up
_CLUSTER = 10_000  # accelerators of one fleet beyond which somebody has to say that they exist


@dataclass(frozen=True)
class Space:
    """What a search goes through; an empty tuple means all that are valid, None (of formats) the checkpoint's own.

    max_gpus: accelerators of one replica at most (None: 8, or 16 with experts). disaggregated: also pools for prefill
    and decode. mixed: also fleets of two kinds of replica.
    """

    gpus: tuple[str, ...]
    engines: tuple[str, ...] = ("vllm",)
    weights: tuple[str | None, ...] = (None,)
    kv: tuple[str | None, ...] = (None,)
    tp: tuple[int, ...] = ()
    pp: tuple[int, ...] = ()
    ep: tuple[int, ...] = ()
    dp: tuple[int, ...] = ()
    token_budgets: tuple[int, ...] = ()
    max_num_seqs: tuple[int, ...] = ()
    max_gpus: int | None = None
    system: str | None = None
    shared: Mapping[str, Any] = field(default_factory=dict, hash=False)  #: keywords that all candidates share
    drafts: tuple[dict[str, Any], ...] = ()  #: keywords of each
    encoder_gpus: tuple[int, ...] = (0,)  #: accelerators of one replica that encode images and nothing else
    disaggregated: bool = True
    mixed: bool = False

    def __post_init__(self) -> None:
        if not self.gpus or not self.engines:
            raise WorkloadError("a plan needs at least one gpu and one engine")

    @property
    def told(self) -> bool:
        """Whether the split is given in part."""
        return bool(self.tp or self.pp or self.ep or self.dp)


def searched(model: Model, space: Space) -> str:
    """How far a search went, in words: the splits asked for, or the largest replica."""
    if space.told:
        return "in the splits asked for"
    return f"with up to {space.max_gpus or most_accelerators(model)} GPUs a replica, as searched (--max-gpus)"


def most_accelerators(model: Model) -> int:
    """Accelerators of one replica at most, where nobody says how many."""
    return _SPARSE if any(isinstance(layer.ffn, MixtureOfExperts) for layer in model.layer_counts) else _DENSE


def splits(model: Model, system: System, space: Space, staged: bool = False) -> list[Split]:
    """Splits of one replica, the fewest accelerators first; whether each exists is checked when it is laid out.

    Powers of two for tp. With experts: whole experts on every rank or none (ep), with copies of some where they do not
    come out even, and attention replicated over some of them (dp), or over the whole scale-up domain.
    Pipeline stages (`staged`), and tp over the hosts of a named system, are tried where nothing else holds the model,
    or when they are asked for.
    """
    experts = max(
        (ffn.experts for layer in model.layer_counts if isinstance(ffn := layer.ffn, MixtureOfExperts)), default=0
    )
    most = space.max_gpus or (_STAGED if staged else most_accelerators(model))
    tps = space.tp or _powers(min(system.max_gpus if space.system and staged else system.domain_size, most))
    stages = (1, *_STAGES) if space.system else _STAGES
    pps = space.pp or (stages if staged else (1,))
    domain = (system.domain_size,) if system.domain_size <= most else ()
    largest = {space.max_gpus} if space.max_gpus else set[int]()
    dps = space.dp or (tuple({*_powers(most), *domain, *largest}) if experts and system.max_gpus > 1 else (1,))
    found = []
    for tp, pp, dp in product(tps, pps, dps):
        group = tp * dp
        eps = space.ep or ((1, group) if dp == 1 and group > 1 else (group,)) if experts else (space.ep or (1,))
        if group * pp > min(max(most, *tps), system.max_gpus) and not space.told:
            continue
        for ep in dict.fromkeys(eps):
            split = {"tp": tp, "pp": pp, "ep": ep, "dp": dp}
            copies = -experts % ep if ep <= experts and "redundant_experts" not in space.shared else 0
            found.append(split | ({"redundant_experts": copies} if copies else {}))  # as many as make ranks even
    return sorted(found, key=lambda split: (split["tp"] * split["pp"] * split["dp"], split["pp"], split["dp"]))


def _powers(most: int) -> tuple[int, ...]:
    return tuple(1 << exponent for exponent in range(most.bit_length()))


@dataclass(frozen=True)
class PlanQuestion:
    """All that a plan is asked.

    confidence: probability with which every objective has to hold; deviations: of the calibrated interval, the same.
    course: how the load goes over time, whose first peak is that of the demand. sensitivity: whether the fleet is sized
    again with each assumption a fifth off.
    """

    model: str
    demand: Demand
    slo: tuple[Objective, ...]
    space: Space
    reserve: Reserve
    tariff: Tariff
    calibration: str | None = None
    confidence: float = 0.5
    measured_only: bool = False
    seed: int = 0
    course: Course | None = None
    sensitivity: bool = False
    progress: Progress = field(default=silent, repr=False)
    near: dict[Any, int] = field(default_factory=dict, repr=False, compare=False)  #: where capacities ended so far

    @property
    def deviations(self) -> float:
        """Standard deviations of a normal distribution up to the confidence."""
        return NormalDist().inv_cdf(self.confidence)

    def part(self, replica: Replica, role: str = "serve", transfer: float = 0.0) -> Part:
        """As few of these replicas as carry the peak with the confidence asked for; none where one bears nothing.

        Where the interval of what ends the capacity is too wide, as few as carry it at expected times.
        """
        bearer = self.bearer(replica, role, transfer)
        part = Part.of(bearer, self.demand, self.slo, self.reserve, self.deviations)
        binds = {each.metric for each in self.slo if str(each) in part.ability.binds} or {"tpot"}
        if self.deviations <= 0.0 or all(replica.width(self.demand, metric) <= WIDE for metric in binds):
            return part
        return Part.of(bearer, self.demand, self.slo, self.reserve, 0.0)

    def budgets(self, replica: Replica) -> list[Replica]:
        """The replica with the engine's token budget, and with the smallest where it has room."""
        try:
            smallest = replica.retuned({"token_budget": min(self.space.token_budgets or BUDGETS)}, self.demand)
        except DoesNotFitError:
            return [replica]
        return [replica, smallest]

    def misses(self, bearer: Bearer, working: int, deviations: float, share: float = 1.0) -> bool:
        """Whether so few replicas miss an objective with this share of the traffic, as they are played."""
        few = Part(bearer, Ability(0.0, ()), working, self.reserve, share, deviations)
        full = bearer.knee(few.seen(self.demand))
        return few.load(self.demand, self.reserve.headroom) >= full or not few.holds(self.demand, self.slo)

    def bearer(self, replica: Replica, role: str = "serve", transfer: float = 0.0) -> Bearer:
        """What bears a load in the plays of this question."""
        return Bearer(replica, role, transfer, self.seed, self.near)


@dataclass(frozen=True)
class Refusal(Plain):
    """A deployment that is no candidate, and why."""

    what: str
    why: str


@dataclass(frozen=True)
class Near:
    """What an objective comes to on a deployment at the least load that is played, over its limit, and its cause."""

    over: float
    objective: Objective
    name: str
    seconds: float
    cause: str


@dataclass
class Found:
    """What a search has seen: replicas with their best settings that bear something, options, and refusals."""

    able: list[Part] = field(default_factory=list)
    options: list[Option] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    tried: int = 0
    near: list[tuple[Near, ...]] = field(default_factory=list)  #: objectives that fail without waiting, by deployment
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False


def search(question: PlanQuestion, found: Found | None = None) -> Found:
    """Go through the whole space; `found`: what is filled, which an interrupt leaves with what was found by then.

    Raises InputError (and its kinds) for names and numbers that make no sense.
    """
    found, space, pools = found or Found(), question.space, list[_Pools]()
    prepare(_REQUESTS * len(space.gpus) * len(space.engines), partial(question.progress, _COMPILING, 0, 1))
    model = load_model(question.model).value
    longest = longest_admitted(model, question.demand, found)
    shared = {"max_model_len": longest, **space.shared}
    bases = [
        (
            gpu,
            {
                key: value
                for key, value in ({"engine": engine, "weights": weights, "kv": kv} | shared).items()
                if value is not None
            }
            | ({"encoder_gpus": encoders} if encoders else {}),
        )
        for gpu, engine, weights, kv, encoders in product(
            space.gpus, space.engines, space.weights, space.kv, space.encoder_gpus
        )
    ]
    for gpu, own in groupby(enumerate(bases), key=lambda each: each[1][0]):
        accelerator, laid_out = load_accelerator(gpu).value, list[Replica]()
        system = load_system(space.system, accelerator).value if space.system else System.of(accelerator)
        for number, (_, base) in own:
            question.progress(f"search {gpu}", number, len(bases))
            seen, first = list[Replica](), len(found.options)
            for staged in (False,) if space.told else (False, True):  # stages where nothing else holds the model
                seen = seen or list(_laid_out(question, gpu, base, splits(model, system, space, staged), found))
            for replica in _by_outlook(question, seen):
                if (settled := _aggregated(question, replica, found)) is not None:
                    _cached(question, settled, found)
                    _drafted(question, settled, found)
            found.options[first:] = sorted(found.options[first:], key=lambda option: option.parts[0].replica.gpus)
            laid_out += seen
        if space.disaggregated and not question.demand.closed and question.demand.osl.mean >= _ANSWER:
            pools += _disaggregated(question, laid_out, found)
    if space.mixed:
        found.options += _unlike(question, pools)
        rank = question.tariff.rank
        least = min((rank(option) for option in found.options), default=(math.inf, 0))
        found.options += [mix for mix in _mixed(question, found.able) if rank(mix) < least]
    return found


def longest_admitted(model: Model, demand: Demand, found: Found) -> int | None:
    """The longest sequence that an engine has to admit: that of the traffic, rounded up.

    Raises WorkloadError where the model has no room for it.
    """
    limit, asked = model.max_context, demand.longest
    if limit is not None and asked > limit:
        if math.isfinite(asked) and asked < 1e7:
            raise WorkloadError(
                f"the longest request has {asked:,.0f} tokens, but {model.name}'s maximum context is {limit:,}"
            )
        found.notes.append(f"requests longer than {model.name}'s context of {limit:,} tokens would be refused")
        return limit
    rounded = math.ceil(max(asked, demand.longest_played) / _LONG) * _LONG
    return rounded if limit is None else min(rounded, limit)


def _laid_out(
    question: PlanQuestion, gpu: str, base: dict[str, object], chosen: list[Split], found: Found
) -> Iterator[Replica]:
    """Every split that exists and holds the model, with default settings."""
    for split in chosen:
        scenario = {key: value for key, value in split.items() if value > 1 or key == "tp"} | base
        try:
            replica = lay_out(question.model, gpu, scenario, question.demand, question.calibration)
        except (DoesNotFitError, DeploymentError, DtypeError) as error:  # a wrong name is wrong for all
            found.refused.append(Refusal(_name(gpu, scenario), str(error)))
            continue
        if question.measured_only and (level := evidence(replica.resolved.plan)) != "measured":
            found.refused.append(Refusal(_name(gpu, scenario), f"{level}: {NOT_MEASURED}"))
        else:
            yield replica


def _by_outlook(question: PlanQuestion, replicas: Sequence[Replica]) -> Sequence[Replica]:
    """The replicas whose accelerators promise to bear most first, so that others can be left out; users' smallest."""
    if question.demand.closed:
        return replicas
    return sorted(replicas, key=lambda each: -each.outlook(question.demand, question.slo) / each.gpus)


def _name(gpu: str, scenario: dict[str, Any]) -> str:
    split = " ".join(f"{key}{scenario[key]}" for key in ("tp", "pp", "ep", "dp") if scenario.get(key, 1) > 1)
    formats = " ".join(f"{key} {scenario[key]}" for key in ("weights", "kv") if key in scenario)
    encoders = f"+ {scenario['encoder_gpus']} for images" if "encoder_gpus" in scenario else ""
    draft = f"with {scenario['draft_tokens']} tokens of {scenario['draft']}" if "draft" in scenario else ""
    exchange = "two-batch" if scenario.get("two_batch") else scenario.get("all_to_all", "")
    every = (gpu, split or "tp1", exchange, encoders, formats, scenario["engine"], draft)
    return " ".join(part for part in every if part)


def _kind(replica: Replica) -> tuple[Any, ...]:
    """What the fleets have in common of which only the cheapest split is looked for."""
    return (replica.gpu, *(replica.scenario.get(key) for key in ("engine", "weights", "kv", "encoder_gpus")))


def _sureness(question: PlanQuestion, base: Replica) -> float:
    """Place of the interval for which such replicas can be bought."""
    wide = all(base.width(question.demand, each.metric) > WIDE for each in question.slo)
    return 0.0 if wide else question.deviations


def _known(question: PlanQuestion, base: Replica, found: Found) -> list[Option]:
    """Fleets of this kind that are known at least as well as this one can be."""
    least = _sureness(question, base)
    return [each for each in found.options if _kind(each.parts[0].replica) == _kind(base) and each.deviations >= least]


def _fewer(question: PlanQuestion, base: Replica, found: Found) -> int | None:
    """The most of these replicas that would cost less than what is known; None where there is nothing to beat.

    Of fleets that cost the same, that of smaller replicas counts.
    """
    demand, rank = question.demand, question.tariff.rank
    own = [each for each in _known(question, base, found) if each.kind == "aggregated"]
    if not own or demand.closed or demand.prefixes is not None or question.tariff.saves is not None or question.course:
        return None  # over time another fleet than that of the peak may win
    one = Part(question.bearer(base), Ability(1.0, ()), 1, question.reserve)
    return bisect_left(
        range(1, _CLUSTER // base.gpus + 1),
        min((*rank(each), each.parts[0].replica.gpus) for each in own),
        key=lambda working: (*rank(Option("aggregated", (replace(one, working=working),))), base.gpus),
    )


def _beaten(question: PlanQuestion, base: Replica, fewer: int, found: Found) -> bool:
    """Whether so few replicas miss an objective with each draft and exchange of experts, and without.

    They are played with the engine's token budget and with the smallest, at less than their load: other settings may
    bear that much more. Where an exchange that takes no time would miss one too, no exchange has to be tried.
    """

    def misses(replica: Replica) -> bool:
        staffed, sure = question.bearer(replica).staffed(question.demand), _sureness(question, base)
        several = question.budgets(staffed)
        return all(question.misses(question.bearer(each), fewer, sure, 1.0 / _SETTINGS) for each in several)

    def all_miss(others: Sequence[Mapping[str, Any]]) -> bool:
        changed = (_changed(question, base, each, found) for each in others)
        return all(misses(replica) for replica in changed if replica)

    exchanges = _exchanges(base)
    least = _changed(question, base, exchanges[0], found) if exchanges and base.scenario.get("dp", 1) > 1 else None
    if least is None:
        return misses(base) and all_miss((*question.space.drafts, *exchanges))
    if misses(least.with_free_exchanges()):
        found.tried += len(exchanges) - 1
        return all_miss(question.space.drafts)
    return misses(base) and all_miss(question.space.drafts) and misses(least) and all_miss(exchanges[1:])


def _cached(question: PlanQuestion, base: Replica, found: Found) -> None:
    """The same with a prefix cache, alone and with the tiers behind it: the fewest that find enough together.

    What a cache finds depends on how many replicas share it: few find little and have much to compute.
    """
    demand = question.demand
    if demand.prefixes is None or demand.closed:
        return
    for tiers in dict.fromkeys(((), demand.prefixes.tiers)):

        @cache
        def sharing(replicas: int, tiers: tuple[CacheTier, ...] = tiers) -> Part:
            return question.part(base.remembering(demand, tiers, float(replicas)))

        def carry(replicas: int, sharing: Callable[[int], Part] = sharing) -> bool:
            return 0 < sharing(replicas).working <= replicas

        found.tried += 1
        high = math.ceil(max(demand.peak_load / question.bearer(base).knee(demand), 1.0))
        while not carry(high) and high < _SHARING:
            high *= 2
        if not carry(high):
            continue
        working = bisect_left(range(1, high), True, key=carry) + 1
        part = replace(sharing(working), working=working)
        if not refused_fleet(question, (part,)):
            found.options.append(Option("aggregated", (part,)))


def _changed(question: PlanQuestion, base: Replica, more: Mapping[str, Any], found: Found) -> Replica | None:
    """The same deployment with other options; None, and a refusal, where it does not exist or has no room."""
    told = {key: value for key, value in base.scenario.items() if key not in ("model", "gpu")} | dict(more)
    found.tried += 1
    try:
        return lay_out(question.model, base.scenario["gpu"], told, question.demand, question.calibration)
    except (DoesNotFitError, DeploymentError, DtypeError) as error:
        found.refused.append(Refusal(_name(base.gpu, told), str(error)))
        return None


def _drafted(question: PlanQuestion, base: Replica, found: Found) -> None:
    """The same with each draft; a candidate where a replica bears more with it."""
    plain = next((part.ability.load for part in found.able if part.replica is base), 0.0)
    for draft in question.space.drafts:
        if (replica := _changed(question, base, draft, found)) is None:
            continue
        part, name = question.part(replica), _name(base.gpu, replica.scenario)
        bears, unit = part.ability.load, question.demand.unit
        if bears <= plain * _BETTER:
            found.refused.append(Refusal(name, f"serves {bears:.3g} {unit}, and {plain:.3g} without the draft"))
            continue
        _offered(question, part, name, found)
        _cached(question, replica, found)


def _aggregated(question: PlanQuestion, base: Replica, found: Found) -> Replica | None:
    """A split with its best settings and exchange of experts, as a candidate where it meets the objectives.

    The one that bears most is returned; None where full engines would cost more than what is known.
    """
    name, fewer = _name(base.gpu, base.scenario), _fewer(question, base, found)
    if fewer is not None and (not fewer or _beaten(question, base, fewer, found)):
        found.refused.append(Refusal(name, "as few as would cost less than a fleet that is known miss the objectives"))
        return None
    best = settled(question, base, found)
    if best is None:
        found.refused.append(Refusal(name, "no setting has room"))
        return None
    best = _exchanged(question, best, found)
    if best.working:
        _offered(question, best, name, found)
    else:
        found.refused.append(Refusal(name, _how_near(question, best, found)))
    return best.replica


def settled(question: PlanQuestion, base: Replica, found: Found) -> Part | None:
    """A split with the settings at which it bears most: token budgets, then limits of sequences at the best of them.

    Those of the engine stand where nothing is better; None where none has room.
    """
    space, demand = question.space, question.demand
    base = question.bearer(base).staffed(demand)
    best: Part | None = None
    chosen: dict[str, int] = {}
    budgets: Sequence[int | None] = space.token_budgets or (None, *BUDGETS)
    limits: Sequence[int | None] = space.max_num_seqs or (None, *SEQUENCES)
    usual = int(base.resolved.plan.token_budget)
    for key, values in (("token_budget", budgets), ("max_num_seqs", limits)):
        rivals: list[tuple[float, int, Replica, dict[str, int]]] = []
        wanted = _places(question, best) if best and key == "max_num_seqs" else math.inf
        for value in (each for each in values if each != usual or key != "token_budget" or None not in values):
            setting = chosen | ({} if value is None else {key: value})
            if "max_num_seqs" not in setting and limits[0] is not None:
                setting["max_num_seqs"] = limits[0]
            found.tried += 1
            try:
                replica = base.retuned(setting, demand) if setting else base
            except DoesNotFitError:
                continue
            if best is None:
                best, chosen = question.part(replica), setting
            elif replica.scenario != best.replica.scenario and (
                (value or 0) < wanted or replica.room > _BETTER * best.replica.room
            ):
                left = question.bearer(replica).room_left(best, demand, question.slo)
                rivals.append((left, len(rivals), replica, setting))
        for _, _, replica, setting in sorted(each for each in rivals if each[0] > _BETTER)[:-2:-1]:
            part = question.part(replica)
            if best is None or _better(part, best):
                best, chosen = part, setting
    return best


def _places(question: PlanQuestion, best: Part) -> float:
    """Sequences that ran at once at most in the plays that a replica sustains: no larger limit changes their steps."""
    played = best.bearer.curve(best.seen(question.demand)).played.values() if best.working else ()
    return float(max((each.played.most_at_once for each in played if each.stable), default=math.inf))


EXCHANGES: tuple[dict[str, Any], ...] = ({"all_to_all": "deepep"}, {"all_to_all": "deepep", "two_batch": True})
"""Ways to bring tokens to experts on other ranks that are tried beside the engine's own."""


def _exchanges(replica: Replica) -> tuple[dict[str, Any], ...]:
    """Those that are tried; without experts on several ranks none."""
    return EXCHANGES if replica.scenario.get("ep", 1) > 1 else ()


def _exchanged(question: PlanQuestion, best: Part, found: Found) -> Part:
    """The same with another exchange of the experts, where that bears more."""
    for exchange in _exchanges(best.replica):
        replica = _changed(question, best.replica, exchange, found)
        if replica and question.bearer(replica).room_left(best, question.demand, question.slo) > _BETTER:
            part = question.part(replica)
            best = part if _better(part, best) else best
    return best


def _better(part: Part, best: Part) -> bool:
    """Whether a replica bears more, and is known as well."""
    return part.deviations >= best.deviations and part.ability.load > best.ability.load * _BETTER


def _offered(question: PlanQuestion, part: Part, name: str, found: Found) -> None:
    """Replicas of one kind as an option, where so many are to be had."""
    part = part.confirmed(question.demand, question.slo)
    if not part.working:
        found.refused.append(Refusal(name, "no number of replicas meets the objectives, as it is played"))
        return
    found.able.append(part)
    if too_many := refused_fleet(question, (part,)):
        found.refused.append(Refusal(name, too_many))
    else:
        found.options.append(Option("aggregated", (part,)))


def refused_fleet(question: PlanQuestion, parts: Sequence[Part]) -> str:
    """Why no such fleet is to be had; empty where it is."""
    for name in dict.fromkeys(part.replica.gpu for part in parts):
        gpus, limit = sum(part.gpus for part in parts if part.replica.gpu == name), question.reserve.limit(name)
        if gpus > limit:
            return f"takes {gpus:,} {name}, more than there are"
        if math.isinf(limit) and gpus > _CLUSTER:
            return (
                f"takes {gpus:,} {name}, more than {_CLUSTER:,}: check rate, peak and objectives, "
                f"or say --limit {name}={gpus} if you mean it"
            )
    budget = question.reserve.watts
    if budget < math.inf:
        watts = fleet_watts(parts, question.demand, question.tariff.pue, peak=True)
        if watts is None or watts > budget:
            drawn = "an unknown power" if watts is None else f"{significant(watts / 1e3)} kW at the peak"
            return f"takes {drawn}, more than the {significant(budget / 1e3)} kW that there are"
    return ""


def _how_near(question: PlanQuestion, able: Part, found: Found) -> str:
    """What the objectives that fail come to at the least load that is played."""
    replica, demand = able.replica, question.demand
    feels = able.bearer.feels(demand, able.bearer.curve(demand).loads[0])
    plain, name, near = feels(1.0), _name(replica.gpu, replica.scenario), []
    for each in missed(feels, question.slo, able.deviations):
        steps, further = plain.factors(each.metric, able.deviations)
        seconds = each.value(feels(steps)) * further
        work = Workload(1.0, demand.isl.mean, demand.osl.mean)
        first = each.metric == "ttft"
        alone = Batch.prefill(1.0, work.isl)
        step = replica.predictor.plan.time(alone) if first else replica.predictor.decode_step(work)
        cause, share = max(shares_by_cause(step).items(), key=lambda entry: entry[1])
        whose = "the prompt" if first else "a decode step"
        near.append(Near(seconds / each.limit, each, name, seconds, f"{cause} takes {percent(share)} of {whose}"))
    if not near:
        return f"{', '.join(able.ability.binds)} fails at any load"
    found.near.append(tuple(near))
    least = "with one user" if demand.closed else f"at {SHARES[0]:.0%} of a full engine's rate"
    return f"even {least} " + ", ".join(f"{each.objective} is missed with {each.seconds * 1e3:.4g} ms" for each in near)


class _Pools(NamedTuple):
    """The cheapest pool of each role on one accelerator, for an engine and a pair of formats."""

    kind: tuple[Any, ...]
    prefill: Part | None
    decode: Part | None


def _disaggregated(question: PlanQuestion, laid_out: list[Replica], found: Found) -> Iterator[_Pools]:
    """The cheapest prefill pool with the cheapest decode pool, for each engine and pair of formats on one accelerator.

    The objectives on TTFT bind the one, those on TPOT the other, so that each can be chosen by itself.
    """
    kinds: dict[tuple[Any, ...], list[Replica]] = {}
    for replica in laid_out:
        if "encoder_gpus" in replica.scenario:  # beside pools nobody knows them
            continue
        kinds.setdefault(tuple(replica.scenario.get(key) for key in ("engine", "weights", "kv")), []).append(replica)
    for kind, laid in kinds.items():
        pools = [_fewest(question, laid, role, found) for role in ("prefill", "decode")]
        name, rank = f"{laid[0].gpu} prefill and decode pools, {kind[0]}", question.tariff.rank
        own = [] if question.tariff.saves or question.space.mixed else _known(question, laid[0], found)
        known = [*map(rank, own)]
        small = Part(question.bearer(laid[0]), Ability(1.0, ()), 1, question.reserve)
        least = [small, small]  # two pools are two replicas at least
        if not known or rank(Option("disaggregated", (small, small))) <= min(known):
            least = [*map(next, pools)]
        if known and rank(Option("disaggregated", tuple(least))) > min(known):
            found.refused.append(Refusal(name, "full engines would cost more than a fleet that is known"))
            continue
        replayed = question.course or question.demand.trace is not None  # fleets may grow after the search
        known_gpus = [] if replayed else [option.gpus for option in own]
        most = min(known_gpus, default=math.inf)  # of both pools together
        prefill = _cheapest_pool(question, chain(least[:1], pools[0]), most=most - least[1].gpus)
        late = (laid[0] if prefill is None else prefill.replica).link_seconds(question.demand)
        most -= prefill.gpus if prefill else 0
        decode = _cheapest_pool(question, chain(least[1:], pools[1]), late, most=most) if prefill or not own else None
        yield _Pools(kind, prefill, decode)
        if prefill is None or decode is None:
            if own:
                found.refused.append(Refusal(name, "none cheaper than a fleet that is known meet the objectives"))
            elif prefill:
                found.refused.append(Refusal(name, "no pool meets the objectives"))
            continue
        option = _whole_request(question, Option("disaggregated", (prefill, decode)))
        if option is None:
            found.refused.append(Refusal(name, "the objectives on the whole request fail, or the limit is exceeded"))
        else:
            found.options.append(option)


def _suited(question: PlanQuestion, replica: Replica, role: str, found: Found) -> Replica:
    """A replica of a pool with the exchange of experts whose full step is the shortest, and front ends for it."""
    demand, plan = question.demand, replica.resolved.plan
    own = max(replica.room / plan.deployment.dp, 1.0)
    prompts = max(float(plan.token_budget) / demand.isl.mean, 1.0)
    full = {
        "prefill": Batch.prefill(prompts, min(demand.isl.mean, float(plan.token_budget))),
        "decode": Batch.decode(own, demand.isl.mean + demand.osl.mean / 2.0),
    }[role]
    others = (other for each in _exchanges(replica) if (other := _changed(question, replica, each, found)))
    best = min((replica, *others), key=lambda each: float(each.resolved.plan.time(full).expected))
    return question.bearer(best, role).staffed(demand)


def _fewest(question: PlanQuestion, replicas: Sequence[Replica], role: str, found: Found) -> Iterator[Part]:
    """Each replica as the smallest pool of a role that full engines would be, the fewest accelerators first.

    None is worked out while one of fewer accelerators than it has itself is before it.
    """
    pools: list[tuple[int, int, Part | None]] = [(each.gpus, place, None) for place, each in enumerate(replicas)]
    heapify(pools)
    while pools:
        _, place, pool = heappop(pools)
        if pool is not None:
            yield pool
            continue
        pool = _full(question, question.bearer(_suited(question, replicas[place], role, found), role))
        heappush(pools, (pool.gpus, place, pool))


def _full(question: PlanQuestion, bearer: Bearer) -> Part:
    """As few as carry the peak where full engines do."""
    full = bearer.curve(question.demand).loads[-1] * (1.0 - question.reserve.headroom)
    working = max(math.ceil(question.demand.peak_load / full - 1e-9), 1)
    return Part(bearer, Ability(full, ("knee",)), working, question.reserve)


def _unlike(question: PlanQuestion, pools: Sequence[_Pools]) -> list[Option]:
    """The cheapest prefill pool of one accelerator with the decode pool of another, which both keep the same cache.

    Pairs are ranked with the links of their decode pools' own accelerators, and the first few sized with the link
    that they have; those of measured kernels come before others.
    """

    def rank(option: Option) -> tuple[int, tuple[float, float]]:
        rests = (EVIDENCE.index(evidence(part.replica.resolved.plan)) for part in option.parts)
        return max(rests), question.tariff.rank(option)

    pairs = [
        Option("disaggregated", (first.prefill, after.decode))
        for first, after in product(pools, pools)
        if first.prefill
        and after.decode
        and first.kind == after.kind
        and first.prefill.replica.gpu != after.decode.replica.gpu
        and not refused_fleet(question, (first.prefill, after.decode))
    ]
    sized = []
    for option in sorted(pairs, key=rank)[:_PAIRS]:
        prefill, decode = option.parts
        late = prefill.replica.link_seconds(question.demand)
        part = _cheapest_pool(question, [_full(question, decode.bearer)], late)
        whole = part and _whole_request(question, Option("disaggregated", (prefill, part)))
        sized += [whole] if whole else []
    return sorted(sized, key=rank)[:1]


def _cheapest_pool(
    question: PlanQuestion, pools: Iterable[Part], transfer: float = 0.0, most: float = math.inf
) -> Part | None:
    """The pool of fewest accelerators, of those that full engines would be; of equals the one with more to spare.

    most: accelerators that it may take.
    """
    best: Part | None = None
    for least in pools:
        replica, role = least.replica, least.role
        if least.gpus > most:
            break
        if most < math.inf and question.misses(
            question.bearer(replica, role, transfer), int(most // replica.gpus), _sureness(question, replica)
        ):
            continue
        part = question.part(replica, role, transfer).confirmed(question.demand, question.slo)
        if part.working and (best is None or _pool_rank(part) < _pool_rank(best)):
            best = part
            most = part.gpus if part.deviations == question.deviations else most
    return best


def _pool_rank(part: Part) -> tuple[float, int, float]:
    return -part.deviations, part.gpus, -part.ability.load * part.working


def _whole_request(question: PlanQuestion, option: Option) -> Option | None:
    """Add replicas until objectives on the whole request hold; None where that does not help, or none are left."""
    for _ in range(_TRIES):
        if refused_fleet(question, option.parts):
            return None
        if not missed(option.feels(question.demand), question.slo, option.deviations):
            return option
        option = option.grown()
    return None


def _mixed(question: PlanQuestion, able: list[Part]) -> list[Option]:
    """The cheapest fleet of two accelerators for each pair, where it is cheaper than either alone.

    Exact for two kinds of replica: for every number of the one, the least number of the other that carries the rest.
    """
    if question.demand.closed or any(question.tariff.price(each.replica.gpu) is None for each in able):
        return []
    pairs = (pair for pair in combinations(able, 2) if pair[0].replica.gpu != pair[1].replica.gpu)
    mixes = (whole for pair in pairs if (mix := _pair(question, *pair)) and (whole := _whole_request(question, mix)))
    return sorted(mixes, key=question.tariff.rank)[:1]


def _pair(question: PlanQuestion, first: Part, second: Part) -> Option | None:
    """The cheapest fleet of both kinds; exact while one of them is at most 64 replicas beyond none or the most."""
    reserve, peak = question.reserve, question.demand.peak_load
    bears = [each.ability.load * (1.0 - reserve.headroom) for each in (first, second)]
    price = [each.replica.gpus * (question.tariff.price(each.replica.gpu) or 0.0) for each in (first, second)]
    most_of = [reserve.limit(each.replica.gpu) for each in (first, second)]
    limits = [
        most if math.isinf(most) else most // each.replica.gpus
        for most, each in zip(most_of, (first, second), strict=True)
    ]
    lost = [reserve.spares(each.replica, _CLUSTER) for each in (first, second)]
    needed = peak + max(spare * each for spare, each in zip(lost, bears, strict=True))  # what fails together
    most = int(min(math.ceil(needed / bears[0]), limits[0]))
    found = []
    for count in {*range(1, min(most, _MIXED) + 1), *range(max(most - _MIXED, 1), most + 1)}:
        other = math.ceil((needed - count * bears[0]) / bears[1] - 1e-9)
        if 1 <= other <= limits[1]:
            gpus = count * first.replica.gpus + other * second.replica.gpus
            found.append((count * price[0] + other * price[1], gpus, count, other))
    if not found:
        return None
    _, _, count, other = min(found, key=lambda mix: (mix[1], mix[0]) if question.tariff.by_gpus else mix[:2])
    strongest = 0 if lost[0] * bears[0] >= lost[1] * bears[1] else 1  # of which some may fail
    parts = []
    for place, (able, n) in enumerate(((first, count), (second, other))):
        spare = min(lost[place], n - 1) if place == strongest else 0
        parts.append(replace(able, working=n - spare, reserve=replace(reserve, redundancy=spare, hosts=0)))
    return Option("mixed", shared_out(parts))
