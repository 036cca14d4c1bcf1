"""The front door of costs: names and keywords in, `Cost` out; conversations and agents' runs with their history.

The history of a dialogue is sent again with every turn, and computed again unless it is cached. Symbols: n turns, p
tokens of system prompt, q tokens asked a turn (a question, a tool's result), a tokens answered.

    S_k = p + k·(q + a) + q,  k = 0 … n − 1       prompt of turn k: everything said before, and the question
    c_k = p + k·(q + a)  with a prefix cache (k ≥ 1; for k = 0 the p tokens if others share them), else 0
    time = Σ_k [ s(S_k, c_k) + a·t_d(C_k)/C_k ]   as in `token_prices`; C_k: sequences of that length that fit

Without a cache the prompts add up to n·(p + q) + (q + a)·n(n − 1)/2 tokens: the square of the turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from os import PathLike
from typing import Any, Unpack

from rooflinekit.decision.economics.price import POWER_NOTE, co2_per_million, host_note, read_carbon, read_price
from rooflinekit.decision.economics.token_prices import (
    MILLION,
    TokenPrices,
    TokenTimes,
    TokenWork,
    token_prices,
    token_times,
    token_work,
)
from rooflinekit.estimation.estimator import deploy, estimate, shown
from rooflinekit.estimation.notes import room_for_one
from rooflinekit.estimation.options import Keywords, keywords, options_of, part_of, read
from rooflinekit.estimation.results import about
from rooflinekit.estimation.scenario import (
    LOAD_KEYS,
    WORKLOAD_KEYS,
    CostOptions,
    LayoutOptions,
    Protocol,
)
from rooflinekit.estimation.traffic import load_of, read_load
from rooflinekit.load.answer import Load, play_load
from rooflinekit.load.lengths import Length
from rooflinekit.model.cache import cache_law
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.power import plug_power
from rooflinekit.model.serving.energy import TokenEnergy, load_power, token_energy
from rooflinekit.model.serving.flight import InFlight, slots
from rooflinekit.model.step import Plan
from rooflinekit.model.types.answer import DeploymentAnswer, Json
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.errors import DoesNotFitError, InputError, WorkloadError
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.model.types.late import np
from rooflinekit.model.types.numeric import Array, Numeric, maximum
from rooflinekit.model.types.workload import Workload

_LENGTHS = 1024  # lengths that a sum over tokens is taken at; all of them up to here

_POINTS = 200
_ALIKE = 1.05  # blocks and tiles make stairs of both curves; closer than this they count as equally fast


@dataclass(frozen=True, slots=True)
class RecomputeCost:
    """One sequence decoded with a cache, and by running everything again for each token; FLOP on one accelerator."""

    cached_flops: float
    naive_flops: float
    flops_ratio: float
    cached_ms: float
    naive_ms: float
    time_ratio: float


def naive_decoding(predictor: Predictor, isl: int, osl: int) -> RecomputeCost:
    """One sequence, decoded with a cache and without.

        cached = prefill(S) + Σ_{i=1}^{N−1} decode(S + i)
        naive  = Σ_{i=0}^{N−1} prefill(S + i)

    In FLOP that is about (S + N) against N·S + N(N − 1)/2 tokens, in time less: a prefill computes at the peak, a
    decode step waits for the memory.

    >>> from rooflinekit.estimation.estimator import read_deployment, resolve
    >>> plain = resolve("llama-3-8b", "h100-sxm", read_deployment({}), "none").predictor
    >>> both = naive_decoding(plain, 1000, 101)
    >>> round(both.flops_ratio)  # (101 · 1000 + 101 · 50)/(1000 + 100) = 96
    96
    >>> both.time_ratio < both.flops_ratio
    True
    """
    plan = predictor.plan
    first = _work(plan, Batch.prefill(1.0, float(isl)), 1)
    naive = _work(plan, Batch.prefill(1.0, _lengths(isl, osl)), osl)
    steps = _work(plan, Batch.decode(1.0, _lengths(isl + 1, osl - 1)), osl - 1) if osl > 1 else (0.0, 0.0)
    flops, seconds = first[0] + steps[0], first[1] + steps[1]
    return RecomputeCost(flops, naive[0], naive[0] / flops, seconds * 1e3, naive[1] * 1e3, naive[1] / seconds)


def _lengths(first: int, count: int) -> Array:
    """Lengths first … first + count − 1, or evenly spaced ones among them."""
    points = min(count, _LENGTHS)
    return np.round(first + (np.arange(points) + 0.5) * (count / points) - 0.5)


def _work(plan: Plan, batch: Batch, count: int) -> tuple[float, float]:
    """FLOP and time [s] of `count` steps, of which the batch is a sample."""
    step = plan.time(batch)
    flops = sum((timed.kernel.count * timed.kernel.flops for timed in step.kernels), 0.0)
    return float(np.mean(flops)) * count, float(np.mean(step.expected)) * count


@dataclass(frozen=True)
class Waste:
    """Mean tokens of a sequence, shares of the taken memory that hold content, and sequences that fit."""

    reserved_tokens: float
    final_tokens: float
    held_tokens: float
    block: int
    reserved_used: float
    final_used: float
    paged_used: float
    reserved_sequences: int
    final_sequences: int
    paged_sequences: int


def memory_waste(predictor: Predictor, isl: Length, osl: Length, longest: int) -> Waste:
    """Compare reservations of `longest` tokens, exact reservations, and blocks, as Kwon et al. 2023 (arXiv:2309.06180).

        held  = E[S] + E[N²]/(2·E[N])     tokens with content, in the mean over time: long answers are there longer
        final = E[S] + E[N²]/E[N]         tokens where the end is known and reserved
        paged = held + (b − 1)/2          blocks of b tokens: half of the last one is empty

    Sequences that fit are those of the mean length, without the engine's limit on their number.

    >>> from rooflinekit.estimation.estimator import read_deployment, resolve
    >>> from rooflinekit.load.lengths import Fixed, Uniform
    >>> plain = resolve("llama-3-8b", "h100-sxm", read_deployment({}), "none").predictor
    >>> w = memory_waste(plain, Fixed(1000), Fixed(200), 4400)
    >>> w.held_tokens, round(w.reserved_used, 3), w.block, round(w.paged_used, 4)  # 1100/4400, 1100/1107.5
    (1100.0, 0.25, 16, 0.9932)
    >>> memory_waste(plain, Fixed(1), Uniform(1, 6), 100).held_tokens  # 1 + (91/6)/7
    3.1667
    """
    plan = predictor.plan
    growth = osl.second_moment / osl.mean
    held, final = isl.mean + growth / 2.0, isl.mean + growth
    block = predictor.memory.stages[0].layout.block
    law = cache_law(plan.model.layers, plan.precision.kv, policy=plan.deployment.kv_policy)
    content = float(law.bytes(held))
    reserved, exact, paged = (
        content / float(law.bytes(taken)) for taken in (float(longest), final, held + (block - 1.0) / 2.0)
    )
    fit = [
        int(float(predictor.memory.max_batch(tokens, min(isl.mean, tokens))))
        for tokens in (float(longest), final, held)
    ]
    return Waste(float(longest), final, held, block, reserved, exact, paged, *fit)


@dataclass(frozen=True, slots=True)
class EvictionCost:
    """Evicting one sequence of `length` tokens: copied to the host and back, or computed again.

    choice: the faster one at this length; short_choice: for the shortest sequences. crossings: lengths [tokens] at
    which the faster one changes, by more than 5 % in the end, up to `longest`; break_even_link_gb_s: the host link at
    which both would take as long at this length.
    """

    length: int
    kv_bytes: float
    swap_ms: float
    recompute_ms: float
    choice: str
    short_choice: str
    crossings: tuple[float, ...]
    longest: int
    break_even_link_gb_s: float


def swap_time(predictor: Predictor, length: Numeric) -> Numeric:
    """Out and in over the host link: 2·bytes/β, every accelerator over its own at once [s].

    >>> from rooflinekit.estimation.estimator import read_deployment, resolve
    >>> plain = resolve("llama-3-8b", "h100-sxm", read_deployment({}), "none").predictor
    >>> round(swap_time(plain, 1024.0) * 1e3, 2)  # 2 · 134.2 MB over 63 GB/s
    4.26
    """
    return 2.0 * _bytes(predictor, length) / predictor.plan.system.accelerator.pcie_bandwidth


def recompute_time(predictor: Predictor, length: Numeric) -> Numeric:
    """A prefill of the whole sequence by itself [s]."""
    return predictor.plan.time(Batch.prefill(1.0, length)).expected


def eviction(predictor: Predictor, length: int, longest: int) -> EvictionCost | None:
    """Compare the two at `length`, and look for crossings from 1 to `longest` tokens; None without a host link.

    >>> from rooflinekit.estimation.estimator import read_deployment, resolve
    >>> old = resolve("llama-2-7b", "v100-pcie-16gb", read_deployment({}), "none").predictor
    >>> e = eviction(old, 1024, 4096)  # 1 MB a token both ways over 16 GB/s is 66 µs; 13 GFLOP at 112 TFLOP/s, 118 µs
    >>> e.choice, e.crossings
    ('swap', ())
    """
    if not float(predictor.plan.system.accelerator.pcie_bandwidth):
        return None

    def ratio(tokens: Numeric) -> Numeric:
        return swap_time(predictor, tokens) / recompute_time(predictor, tokens)

    swap, recompute = float(swap_time(predictor, float(length))), float(recompute_time(predictor, float(length)))
    held = float(_bytes(predictor, float(length)))
    return EvictionCost(
        length=length,
        kv_bytes=held,
        swap_ms=swap * 1e3,
        recompute_ms=recompute * 1e3,
        choice="swap" if swap <= recompute else "recompute",
        short_choice="swap" if float(ratio(1.0)) <= 1.0 else "recompute",
        crossings=_crossings(ratio, float(longest)),
        longest=longest,
        break_even_link_gb_s=2.0 * held / recompute / 1e9,
    )


def _bytes(predictor: Predictor, length: Numeric) -> Numeric:
    """Cache of one sequence on the fullest accelerator [B]."""
    ranks = float(predictor.memory.ranks)
    return reduce(maximum, (stage.layout.law.bytes(length / ranks) for stage in predictor.memory.stages))


def _crossings(ratio: Callable[[Numeric], Numeric], longest: float) -> tuple[float, ...]:
    """Lengths at which swap/recompute passes 1 and then differs from it by more than the steps of a staircase."""
    grid = np.unique(np.round(np.geomspace(1.0, max(longest, 2.0), _POINTS)))
    ratios = np.asarray(ratio(grid))
    decisive = np.flatnonzero(np.abs(np.log(ratios)) > np.log(_ALIKE))
    found = []
    for before, after in pairwise(decisive):
        low, high, first = float(grid[before]), float(grid[after]), ratios[before] > 1.0
        if first == (ratios[after] > 1.0):
            continue
        while high - low > 1.0:  # a whole number of tokens at which the faster one is no longer that at the low end
            middle = (low + high) // 2.0
            low, high = (middle, high) if (float(ratio(middle)) > 1.0) == first else (low, middle)
        found.append(high)
    return tuple(found)


@dataclass(frozen=True)
class Dialogue:
    """Turns that share a history; counts in tokens.

    shared: the system prompt is in the cache before the first turn, because other dialogues use it too.
    """

    turns: int
    system: int
    asked: int
    answered: int
    shared: bool = False

    def prompts(self) -> tuple[Array, Array]:
        """Tokens of each turn's prompt, and of them those that were there before.

        >>> sent, before = Dialogue(3, 100, 10, 20).prompts()
        >>> sent.tolist(), before.tolist()
        ([110.0, 140.0, 170.0], [0.0, 130.0, 160.0])
        """
        before = self.system + np.arange(self.turns, dtype=float) * (self.asked + self.answered)
        sent = before + self.asked
        if not self.shared:
            before[0] = 0.0
        return sent, before


@dataclass(frozen=True)
class DialogueTime:
    """Seconds of a replica that a dialogue takes, by turn, with and without a prefix cache; tokens of all turns."""

    cached: Array
    recomputed: Array
    sent_tokens: float
    computed_tokens: float  #: of them, with the cache

    @property
    def saving(self) -> float:
        """Share of the time without a cache that the cache saves."""
        return 1.0 - float(self.cached.sum() / self.recomputed.sum())


def dialogue_time(predictor: Predictor, dialogue: Dialogue, running: float) -> DialogueTime:
    """Time of a replica that serves `running` such dialogues at once, or as many as its cache holds.

    The history stays in the cache from turn to turn (every look-up hits), and what it takes there while nobody
    computes is not charged.

    >>> from rooflinekit.estimation.estimator import read_deployment, resolve
    >>> plain = resolve("llama-3-8b", "h100-sxm", read_deployment({}), "none").predictor
    >>> ten = dialogue_time(plain, Dialogue(10, 1000, 100, 300), 32.0)
    >>> ten.sent_tokens, ten.computed_tokens  # 10 · 1100 + 400 · 45; the first prompt, and 9 questions
    (29000.0, 2000.0)
    >>> bool(ten.cached[0] == ten.recomputed[0]), bool(ten.cached[9] < ten.recomputed[9])
    (True, True)
    """
    sent, before = dialogue.prompts()
    room = np.asarray(slots(predictor, sent, float(dialogue.answered)))
    if room.min() < 1.0:
        longest = float(sent[-1]) + dialogue.answered
        raise DoesNotFitError(f"{predictor.plan.model.name}: not one dialogue of {longest:.0f} tokens fits in memory")
    users = np.minimum(room, running)
    with_cache, without = (
        np.asarray(token_times(predictor, InFlight(users, sent, float(dialogue.answered), cached)).request)
        for cached in (before, 0.0 * before)
    )
    computed = float((sent - before).sum())
    return DialogueTime(with_cache, without, float(sent.sum()), computed)


_LONG = 131_072
_PLAYED = {"requests", "burstiness", *options_of(Protocol)}  # options that only a load which is played has
_HOUR = 3600.0
_KWH = 3.6e6


@dataclass(frozen=True, slots=True)
class PriceResult:
    """Prices of tokens, and the energy of one at the meter; energy is None where the rated power is not known.

    watts: of the replica in the mean of the paid time, with its share of the machine, times PUE; so are joules. The
    prompt's energy is in kwh_, co2_kg_ (None without a carbon intensity) and tok_s_per_mw. board_watts: of one board
    alone; node_: a machine full of such replicas, at the plug, in the mean and with its boards at their limit. rack_:
    such machines that a rack of the stated power holds at that limit, and what they draw in the mean.

    interval: [low, high] of input and output, as the times have it. holding: what a million tokens of cache take of
    the replica in an hour; break_even_hold_s: how long a cached token may wait for its next use before computing it
    again is cheaper, where the pool is full.
    """

    usd_per_gpu_hour: float
    source: str
    gpus: int
    replica_usd_per_hour: float
    utilisation: float
    running: float
    cached_usd_per_million: float
    input_usd_per_million: float
    output_usd_per_million: float
    request_usd: float
    asymmetry: float
    interval: dict[str, list[float]] | None
    watts: float | None
    joules_per_cached_token: float | None
    joules_per_input_token: float | None
    joules_per_output_token: float | None
    kwh_per_million_output: float | None
    co2_kg_per_million_output: float | None
    output_tok_s_per_mw: float | None
    board_watts: float | None
    node_gpus: int
    node_watts: float | None
    node_watts_most: float | None
    rack_nodes: int | None
    rack_watts: float | None
    holding_usd_per_million_hours: float
    break_even_hold_s: float


@dataclass(frozen=True, slots=True)
class Reason:
    """Why output costs more than input: what one token of each takes."""

    input: TokenWork
    output: TokenWork
    sentence: str


@dataclass(frozen=True, slots=True)
class DialogueCost:
    """A conversation or an agent's run, with a prefix cache and without."""

    turns: int
    system_tokens: int
    asked_tokens: int
    answered_tokens: int
    sent_tokens: float
    computed_tokens: float
    usd: float
    usd_without_cache: float
    saving: float
    first_turn_usd: float
    last_turn_usd: float
    last_turn_usd_without_cache: float


@dataclass(frozen=True, slots=True)
class ContextCost:
    """One sequence at a context: the time and price of its first token, of each further one, and what it displaces.

    displaced: sequences of the ordinary length that would fit in its place; running: that decode together; step_ms:
    one decode step of them, without the prompts of others.
    """

    context: int
    ttft_ms: float
    prompt_usd: float
    token_usd: float
    output_usd_per_million: float
    step_ms: float
    running: float
    slots: int
    displaced: float
    kv_bytes: float


@dataclass(frozen=True)
class Cost(DeploymentAnswer):
    """Prices of tokens on a deployment, with reasons and consequences. A part is None where it cannot be answered."""

    prices: PriceResult
    reason: Reason
    conversation: DialogueCost | None
    agent: DialogueCost | None
    ordinary_context: ContextCost
    long_context: ContextCost | None
    recompute: RecomputeCost
    waste: Waste
    eviction: EvictionCost | None
    warnings: tuple[str, ...]

    def to_rows(self) -> list[Json]:
        """One row a number: section, name, value."""
        sections = {key: value for key, value in self.to_dict().items() if isinstance(value, dict)}
        return [
            {"section": section, "name": name, "value": value}
            for section, values in sections.items()
            for name, value in _flat(values)
        ]


def _flat(values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Nested names joined by a dot, lists by semicolons."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{inner}", deeper) for inner, deeper in _flat(value))
        else:
            yield name, ";".join(map(str, value)) if isinstance(value, list) else value


@dataclass(frozen=True)
class CostQuestion:
    """Lengths of requests, what runs at once, and the dialogues to price; counts in tokens."""

    load: Load  #: arrivals at a rate, which are played; else users who share each step, or as many as fit
    utilisation: float
    pue: float
    carbon: tuple[float, str] | None
    rack: float | None
    conversation: Dialogue
    agent: Dialogue
    long_context: int
    long_given: bool
    reserve: int | None

    @property
    def prompt(self) -> float:
        """Mean prompt, in whole tokens."""
        return float(max(round(self.load.isl.mean), 1))

    @property
    def output(self) -> float:
        """Mean output, in whole tokens."""
        return float(max(round(self.load.osl.mean), 1))

    @classmethod
    def read(cls, given: Keywords) -> CostQuestion:
        """Read keywords that `Cost` has checked; those of the deployment and of prices are left alone."""
        usual = {name: option.default for name, option in options_of(CostOptions).items()} | {"long_context": _LONG}
        said = usual | dict(given)
        load, shared = load_of(given), said["shared_prompt"]
        answer = max(round(load.osl.mean), 1)
        asked = cls(
            _arriving(given) or load,
            said["utilisation"],
            1.0 if said["pue"] is None else said["pue"],
            read_carbon(said["carbon"]),
            said["rack"],
            Dialogue(said["turns"], said["system_prompt"], said["question"], answer, shared),
            Dialogue(said["calls"], said["agent_prompt"], said["tool_result"], said["tool_call"], shared),
            said["long_context"],
            "long_context" in given,
            said["reserve"],
        )
        both = asked.prompt + asked.output
        if asked.reserve is not None and asked.reserve < both:
            raise WorkloadError(f"reserve={asked.reserve} holds no mean request of {both:.0f} tokens")
        if load.cached >= asked.prompt:
            raise WorkloadError(
                f"cached={load.cached:.0f} leaves nothing of isl={asked.prompt:.0f} to compute; use less"
            )
        return asked


def _arriving(given: Keywords) -> Load | None:
    """The arrivals to be played; without a rate None, and then no option may speak of them."""
    if given.get("rate") is None:
        for key in _PLAYED & given.keys():
            raise InputError(f"{key} is of a load that is played; add a rate (requests/s)")
        return None
    for key in ("concurrency", "utilisation"):
        if given.get(key) is not None:
            raise WorkloadError(f"rate and {key} exclude each other; give one")
    return read_load(part_of(given, (*LOAD_KEYS, *WORKLOAD_KEYS)))


def sequences_at(predictor: Predictor, load: Load) -> float:
    """Sequences that share a decode step of a load, as it is played."""
    with room_for_one(predictor, load.isl.mean, load.osl.mean):
        played = play_load(predictor, load)
    if not played.stable:
        raise WorkloadError(f"overload: {load.rate:g}/s arrive, {played.knee:.3g}/s are served; add replicas")
    return played.sequences


def refuse_misfit(model: str | PathLike[str], gpu: str | PathLike[str], given: Keywords, misfit: str) -> None:
    """Say what `estimate` says of such a batch, or else `misfit`. Raises DoesNotFitError."""
    asked = part_of(given, (*WORKLOAD_KEYS, *options_of(LayoutOptions)))
    try:
        estimate(model, gpu, **asked)
    except DoesNotFitError as error:
        raise DoesNotFitError(str(error).partition(" (--allow-oom")[0]) from None  # an option of estimate alone
    raise DoesNotFitError(misfit)


@dataclass(frozen=True)
class PricedLoad:
    """A deployment, what is asked of it, and what its tokens take and cost; `room`: such sequences that fit."""

    predictor: Predictor
    asked: CostQuestion
    times: TokenTimes
    prices: TokenPrices
    room: float
    tokens: TokenEnergy | None

    @property
    def usd_per_second(self) -> float:
        """Price of a second of a replica, idle time included."""
        return float(self.prices.replica_usd_per_hour) / _HOUR / self.asked.utilisation

    @property
    def running(self) -> float:
        """Sequences at once."""
        return float(self.times.load.users)

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


def energy_of(served: PricedLoad, notes: list[str]) -> Json:
    """Fields of `PriceResult`: energy of every kind of token, times PUE; idle time is spread over all tokens alike.

    A token of a cached prefix takes the power of a prompt for its time, so that all parts add up to the request.
    """
    accelerator, asked = served.predictor.plan.system.accelerator, served.asked
    tokens, times = served.tokens, served.times
    if tokens is None:
        notes.append(f"energy: {accelerator.name} has no rated power in its file")
        return dict.fromkeys(_ENERGY)
    osl, cached, fresh = float(times.load.osl), float(times.load.cached), asked.prompt - float(times.load.cached)
    idle = tokens.gpus * tokens.law.idle * max(1.0 / asked.utilisation - 1.0, 0.0)
    prompt, seconds = float(tokens.prompt.total), float(times.prompt.expected)
    held = float(times.cached) * prompt / seconds if seconds else 0.0
    kinds = (
        (held, times.cached),
        ((prompt - cached * held) / fresh, times.input),
        (tokens.step.total, times.output),
    )
    site = asked.pue * float(plug_power(1.0, tokens.law.host))
    each = [site * (float(joules) + idle * float(time)) for joules, time in kinds]
    request = cached * each[0] + fresh * each[1] + osl * each[2]
    watts = request * asked.utilisation / float(times.request)
    whole = request / osl
    board, size = watts / (tokens.gpus * site), served.predictor.plan.system.domain_size
    node, most = (size * float(plug_power(each, tokens.law.host)) for each in (board, tokens.law.limit))
    racked = None if asked.rack is None else int(asked.rack / most)
    drawn = None if racked is None else racked * node
    kg = None if asked.carbon is None else float(co2_per_million(whole, asked.carbon[0]))
    notes.append(f"{POWER_NOTE}; {host_note(tokens.law.host)}; PUE {asked.pue:g}")
    if asked.carbon is not None:
        notes.append(f"CO2: {asked.carbon[0]:g} g/kWh ({asked.carbon[1]})")
    million = (whole / _KWH * MILLION, kg, MILLION / whole)
    return dict(zip(_ENERGY, (watts, *each, *million, board, node, most, racked, drawn), strict=True))


_ENERGY = (
    "watts",
    "joules_per_cached_token",
    "joules_per_input_token",
    "joules_per_output_token",
    "kwh_per_million_output",
    "co2_kg_per_million_output",
    "output_tok_s_per_mw",
    "board_watts",
    "node_watts",
    "node_watts_most",
    "rack_nodes",
    "rack_watts",
)


def price_result(served: PricedLoad, notes: list[str]) -> PriceResult:
    """Prices with their interval, energy, and the price of holding a token."""
    prices, times, deployment = served.prices, served.times, served.predictor.plan.deployment
    cached, new, made = (
        float(each)
        for each in (prices.cached_usd_per_million, prices.input_usd_per_million, prices.output_usd_per_million)
    )
    work = Workload(1.0, times.load.isl, times.load.osl)
    pool = served.predictor.memory.evaluate(1.0, work.longest_context, work.isl).kv_pool_tokens
    holding = float(prices.replica_usd_per_hour) / served.asked.utilisation / float(pool * deployment.dp) * MILLION
    interval = None
    if served.predictor.plan.calibration:
        priced = (("input", new, times.prompt), ("output", made, times.step))
        interval = {
            f"{kind}_usd_per_million": [price * float(end / time.expected) for end in (time.low, time.high)]
            for kind, price, time in priced
        }
    return PriceResult(
        float(prices.hour.usd_per_gpu_hour), prices.hour.source, deployment.gpus, float(prices.replica_usd_per_hour),
        served.asked.utilisation, served.running, cached, new, made, float(prices.request_usd),
        float(times.asymmetry), interval,
        **energy_of(served, notes), node_gpus=served.predictor.plan.system.domain_size,
        holding_usd_per_million_hours=holding, break_even_hold_s=(new - cached) / holding * _HOUR,
    )  # fmt: skip


def dialogue_cost(served: PricedLoad, dialogue: Dialogue, name: str, notes: list[str]) -> DialogueCost | None:
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
        dialogue.turns,
        dialogue.system,
        dialogue.asked,
        dialogue.answered,
        time.sent_tokens,
        time.computed_tokens,
        second * float(time.cached.sum()),
        second * float(time.recomputed.sum()),
        time.saving,
        second * float(time.cached[0]),
        second * float(time.cached[-1]),
        second * float(time.recomputed[-1]),
    )


def context_cost(served: PricedLoad, prompt: int, context: int | None = None) -> ContextCost:
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
        int(tokens),
        float(alone) * 1e3,
        second * float(times.prompt.expected),
        second * float(times.output),
        second * float(times.output) * MILLION,
        float(times.step.expected) * 1e3,
        min(room, served.running),
        int(room),
        served.room / room,
        kept,
    )


def why(times: TokenTimes, given: TokenWork, made: TokenWork, experts: bool = False) -> str:
    """Set the FLOP of the two beside their bytes and their time; `experts`: not every token visits every weight."""
    load = times.load
    context = float(load.isl) + float(load.osl) / 2.0
    weights = f"{made.shared_by:.0f} tokens share one reading of the weights in a decode step, {given.shared_by:.0f}"
    fewer = " (an expert's only those that visit it)" if experts else ""
    return (
        f"An output token takes {made.flops / given.flops:.2f} x the FLOP of an input token and "
        f"{made.seconds / given.seconds:.1f} x its time. {weights} in a prompt{fewer}. For each output token "
        f"a sequence reads its own cache of about {context:,.0f} tokens. All tokens of a prompt share one reading."
    )


@keywords(CostOptions)
def cost(model: str | PathLike[str], gpu: str | PathLike[str] = "h100-sxm", **scenario: Unpack[CostOptions]) -> Cost:
    """Price tokens on a deployment: cached, input and output, conversations, long contexts.

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
    >>> bought = cost("llama-3-8b", isl=2000, osl=300, rate=5, price=3.6).prices
    >>> round(1e3 * bought.request_usd, 9)  # 3.6 USD an hour, of 18,000 requests
    0.2
    """
    given = read(CostOptions, scenario)
    asked = CostQuestion.read(given)
    resolved = deploy(model, gpu, given)
    plan = resolved.plan
    # A PUE alone is about energy, not about the price.
    money = given if "purchase" in given else {key: value for key, value in given.items() if key != "pue"}
    room = float(slots(resolved.predictor, asked.prompt, asked.output))
    if room < 1.0:
        lengths = {"isl": int(asked.prompt), "osl": int(asked.output)}
        refuse_misfit(model, gpu, given | lengths, f"{plan.model.name}: not one request fits in memory")
    users, rate = asked.load.users, asked.load.rate
    running = room if users is None else min(float(users), room)
    if rate is not None:
        running = sequences_at(resolved.predictor, asked.load)
    load = InFlight(running, asked.prompt, asked.output, asked.load.cached)
    times, tokens = token_times(resolved.predictor, load), None
    if rate is not None:  # what is served in the hour bears all of it
        asked = replace(asked, utilisation=rate * float(times.request))
    watts = None
    if plan.system.accelerator.power is not None:
        tokens = token_energy(resolved.predictor, load)
        watts = float(load_power(tokens, load.osl, asked.utilisation * load.osl / times.request).plug)
    hour, said = read_price(plan.system.accelerator, money, watts)
    prices = token_prices(times, hour, plan.deployment.gpus, asked.utilisation)
    served = PricedLoad(resolved.predictor, asked, times, prices, room, tokens)
    input_work, output_work = token_work(resolved.predictor, times)
    notes, parts = [], dict[str, Any]()
    if users is not None and users > room:
        notes.append(f"{room:.0f} of {users} sequences fit at a time; prices are those of {room:.0f}")
    parts["prices"] = price_result(served, notes)
    for name in ("conversation", "agent"):
        parts[name] = dialogue_cost(served, getattr(asked, name), name, notes)
    parts["long_context"] = served.long_context(notes)
    both = int(asked.prompt + asked.output)
    longest = asked.reserve or plan.deployment.settings.max_model_len or plan.model.max_context or both
    if longest < both:
        notes.append(f"reserved room: a request of {both} tokens is longer than the {longest} that are admitted")
    mean, most = int(asked.prompt + asked.output / 2.0), plan.model.max_context or asked.long_context
    parts["eviction"] = eviction(resolved.predictor, mean, max(most, mean))
    if parts["eviction"] is None:
        notes.append(f"eviction: no host link is known of {plan.system.accelerator.name}")
    return Cost(
        **about(plan),
        inputs=shown(
            plan,
            isl=int(asked.prompt),
            osl=int(asked.output),
            cached=int(asked.load.cached),
            concurrency=users,
            rate=rate,
        )
        | {"pue": asked.pue},
        **parts,
        reason=Reason(
            input_work, output_work, why(served.times, input_work, output_work, "experts" in plan.model.matrices)
        ),
        ordinary_context=context_cost(served, int(asked.prompt)),
        recompute=naive_decoding(resolved.predictor, int(asked.prompt), int(asked.output)),
        waste=memory_waste(resolved.predictor, asked.load.isl, asked.load.osl, max(longest, both)),
        warnings=(*resolved.warnings, *said, *notes),
    )
