"""Result of a simulation: plain numbers with units in their names."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, field, fields, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any, TypeAlias

from rooflinekit.estimation.results import DoubtResult
from rooflinekit.load.played import Sample, marks, standard_errors
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.serving.energy import Run, run_power, token_energy
from rooflinekit.model.serving.flight import InFlight
from rooflinekit.model.speculation import SpeculativePredictor
from rooflinekit.model.types.answer import DeploymentAnswer, Json, plain_fields
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.simulation.event_loop import Simulation
from rooflinekit.simulation.kv_blocks import BlockPool
from rooflinekit.simulation.ledger import RESOLUTION, Ledger, RequestObjective, Sketch
from rooflinekit.simulation.replica import ReplicaWork
from rooflinekit.simulation.watch import Batches

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Spread:
    """A duration over requests (or tokens) [ms]; None if there were none.

    Percentiles are exact where the loop played, and else, and of gaps between tokens, within 0.25 %.

    errors: standard errors of the mean and the percentiles [ms], from those of ten to twenty parts of the run (batch
    means); empty where the run was too short, or the duration is not kept by pieces.
    """

    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    max: float | None
    n: int
    errors: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, sketch: Sketch | Sample, pieces: Sequence[Sketch | Sample] = ()) -> Spread:
        """Read a sketch of seconds, and those of pieces of the run."""
        if not sketch.count:
            return cls(None, None, None, None, None, None, 0)
        errors = standard_errors([each for each in pieces if each.count])
        return cls(**marks(sketch), max=sketch.largest * 1e3, n=sketch.count, errors=errors)


_BINS = 8  # of a histogram, up to the 99th percentile


@dataclass(frozen=True, slots=True)
class Bin:
    """Requests whose duration lies between two ends [ms], the lower one left out."""

    above_ms: float
    upto_ms: float
    requests: int

    @classmethod
    def of(cls, sketch: Sketch | Sample) -> tuple[Bin, ...]:
        """Equal widths from the shortest duration to the 99th percentile [s], and what is longer.

        >>> [each.requests for each in Bin.of(Sample([0.1, 0.2, 0.2, 0.4]))]
        [1, 0, 2, 0, 0, 0, 0, 1]
        """
        if not sketch.count:
            return ()
        low, high = sketch.quantile(0.0), sketch.quantile(0.99)
        ends = [low + (high - low) * place / _BINS for place in range(1, _BINS)] if high > low else []
        counts = [*map(sketch.upto, ends), sketch.upto(high * (1.0 + RESOLUTION)), sketch.count]
        edges = [low, *ends, high, max(sketch.largest, high)]
        made = zip(edges, edges[1:], [0, *counts], counts, strict=False)
        bins = [cls(1e3 * above, 1e3 * upto, count - before) for above, upto, before, count in made]
        return tuple(bins if bins[-1].requests else bins[:-1])


@dataclass(frozen=True, slots=True)
class Counts:
    """Every request is in one of finished, rejected and cut (by the end of the run)."""

    arrived: int
    finished: int
    rejected: int
    cut: int
    measured: int  #: finished and not of the warm-up: what the statistics are over
    preemptions: int
    swaps: int  #: preemptions to host memory

    @property
    def complete(self) -> bool:
        """True if nothing was cut."""
        return self.cut == 0


@dataclass(frozen=True, slots=True)
class ReplicaUse:
    """Use of one replica over the run."""

    role: str  #: serve, prefill or decode; encode: an accelerator of the encoders, whose batch is of requests
    steps: int
    decode_steps: int
    utilisation: float  #: share of the time with a step under way
    mean_batch: float  #: sequences in a step, weighted by its time
    kv_use: float  #: share of the blocks in use, over the whole run
    prefix_hit_rate: float | None  #: share of prompt tokens found in the prefix cache or its tiers; None without one
    tiers: dict[str, float]  #: of them, share that came from each tier; of one that replicas share, for all
    prompt_tokens: int  #: computed, those lost in preemptions again
    decode_tokens: int
    replicas: int = 1  #: of which these are the means

    @classmethod
    def of(  # noqa: PLR0913, PLR0917 - what one replica did, and out of what
        cls, role: str, work: ReplicaWork, blocks: int, seconds: float, hits: float | None, tiers: dict[str, float]
    ) -> ReplicaUse:
        """Use of a replica with so many blocks, from its work in a run of so many seconds."""
        busy, held = (each / (seconds or math.inf) for each in (work.busy, work.blocks / blocks))
        batch = work.sequences / work.busy if work.busy else 0.0
        return cls(role, work.steps, work.decode_steps, busy, batch, held, hits, tiers, work.computed, work.made)

    @classmethod
    def encoders(cls, gpus: int, busy: float, parts: int, seconds: float, tiers: Iterable[str] = ()) -> ReplicaUse:
        """Use of the accelerators that encode images, all in one: seconds with an image, and parts of requests."""
        share = min(busy / gpus / (seconds or math.inf), 1.0)  # of a run that was cut, some is still to come
        steps = round(parts / gpus)
        return cls("encode", steps, 0, share, float(steps > 0), 0.0, None, dict.fromkeys(tiers, 0.0), 0, 0, gpus)

    @classmethod
    def means(cls, uses: Iterable[ReplicaUse]) -> tuple[ReplicaUse, ...]:
        """The mean of all of each role; numbers of steps and tokens are rounded."""
        found: dict[str, list[ReplicaUse]] = {}
        for use in uses:
            found.setdefault(use.role, []).append(use)
        return tuple(cls._mean(alike) for alike in found.values())

    @classmethod
    def _mean(cls, uses: Sequence[ReplicaUse]) -> ReplicaUse:
        rates = [use.prefix_hit_rate for use in uses if use.prefix_hit_rate is not None]
        counts = ("steps", "decode_steps", "prompt_tokens", "decode_tokens")
        names = (*counts, "utilisation", "mean_batch", "kv_use")
        means: dict[str, Any] = {name: fmean(getattr(use, name) for use in uses) for name in names}
        means |= {name: round(means[name]) for name in counts}
        tiers = {name: fmean(use.tiers[name] for use in uses) for name in uses[0].tiers}
        hits, many = fmean(rates) if rates else None, sum(use.replicas for use in uses)
        return cls(uses[0].role, prefix_hit_rate=hits, tiers=tiers, replicas=many, **means)


def _from_tiers(pool: BlockPool, simulation: Simulation) -> dict[str, float]:
    """Share of the prompt tokens that came from each tier."""
    found = {}
    for tier in getattr(pool, "tiers", ()):
        users = [each.pool for each in simulation.fleet.all if tier in getattr(each.pool, "tiers", ())]
        asked = sum(each.asked for each in users)
        found[tier.name] = tier.loaded * pool.per * pool.size / asked if asked else 0.0
    return found


_Replicas: TypeAlias = tuple[Sequence[Predictor], Sequence[ReplicaWork]]


@dataclass(frozen=True)
class Books:
    """Books of a run, or of runs side by side: the cells of a fleet.

    pieces: latencies by parts of the run, or by cells; diverging: runs in which requests pile up;
    unsettled: these, and runs that are too short to say.
    """

    ledger: Ledger
    uses: tuple[ReplicaUse, ...]
    pieces: Sequence[tuple[Sketch | Sample, ...]]
    duration: float  #: [s]
    joules: float | None
    gpus: int
    gpu_seconds: float  #: of all accelerators, each as long as its run
    steps: int
    tokens: int  #: of all outputs
    swapped: int
    diverging: int
    unsettled: int
    interrupted: bool
    served: float | None = None  #: requests a second, where the loop played [1/s]
    runs: int = 1
    exact: Mapping[str, Sample] = field(default_factory=dict)  #: latencies by their names in the ledger, where kept
    parts: tuple[dict[str, float], dict[str, float]] | None = None  #: of TTFT and TPOT [ms], where the loop played
    others_spans: Sequence[Sequence[float]] = ()  #: of the request nearest to the mean, as `Played` has them

    @property
    def diverges(self) -> bool:
        """True if requests pile up in at least half of the runs."""
        return 0 < self.runs <= 2 * self.diverging

    @property
    def settled(self) -> bool:
        """True if less than half of the runs end while the number in the system still grows."""
        return not 0 < self.runs <= 2 * self.unsettled

    @classmethod
    def of(cls, replicas: _Replicas, ledger: Ledger, seconds: float, growth: tuple[bool, bool], **more: Any) -> Books:
        """Books of a run of so many seconds, with predictor and work of each replica; `more` are the other fields.

        growth: of the requests in the system, and of those without a first token. Where no more wait, the engine begins
        what comes: its batch still fills, and it has not shown its limit.
        """
        predictors, works = replicas
        gpus = sum(predictor.plan.deployment.gpus for predictor in predictors)
        more |= {name: sum(getattr(work, name) for work in works) for name in ("steps", "swapped")}
        more |= {"diverging": int(all(growth)), "unsettled": int(growth[0])}
        return cls(ledger, duration=seconds, gpus=gpus, gpu_seconds=gpus * seconds, **more)

    @classmethod
    def of_run(cls, run: Simulation, predictors: Sequence[Predictor], batches: Batches) -> Books:
        """Books of a finished run of the object simulator."""
        fleet, uses = run.fleet, list[ReplicaUse]()
        works = [replace(each.work, made=each.decoding.tokens) for each in fleet.all]
        for replica, work in zip(fleet.all, works, strict=True):
            role = "serve" if not fleet.prefills else "prefill" if replica.exports else "decode"
            pool = replica.pool
            hits = pool.found / pool.asked if pool.asked else None
            uses.append(ReplicaUse.of(role, work, pool.total, run.now, hits, _from_tiers(pool, run)))
        if station := fleet.front_end.encoders:
            uses.append(ReplicaUse.encoders(station.gpus, station.busy, station.encoded, run.now, uses[0].tiers))
        roles, tokens = [use.role for use in uses[: len(works)]], sum(work.made + work.first_tokens for work in works)
        made = {"uses": tuple(uses), "pieces": batches.full, "tokens": tokens, "interrupted": run.interrupted}
        made["joules"] = energy_of(predictors, works, roles, run.ledger.finished, run.now)
        return cls.of((predictors, works), run.ledger, run.now, batches.growth, **made)

    @classmethod
    def joined(cls, parts: Sequence[Books], interrupted: bool = False) -> Books:
        """Join the books of several runs; replicas of one role become one line, with the mean of their shares."""
        spent = [part.joules for part in parts if part.joules is not None]
        return cls(
            ledger=Ledger.joined([part.ledger for part in parts]),
            uses=ReplicaUse.means(use for part in parts for use in part.uses),
            pieces=[(part.ledger.ttft, part.ledger.tpot, part.ledger.e2el) for part in parts],
            duration=max(part.duration for part in parts),
            joules=sum(spent) if len(spent) == len(parts) else None,
            interrupted=interrupted,
            **{name: sum(getattr(part, name) for part in parts) for name in _ADDED},
        )

    def plain(self) -> Json:
        """Return plain values for JSON, without pieces; `read` reads them back."""
        own = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in _UNWRITTEN}
        return own | {"ledger": self.ledger.plain(), "uses": [asdict(use) for use in self.uses], "pieces": []}

    @classmethod
    def read(cls, plain: dict[str, Any], objective: RequestObjective) -> Books:
        """Read the values of `plain`."""
        uses = tuple(ReplicaUse(**use) for use in plain["uses"])
        return cls(**plain | {"ledger": Ledger.of(plain["ledger"], objective), "uses": uses})


_UNWRITTEN = ("exact", "served", "parts", "others_spans")
_ADDED = ("gpus", "gpu_seconds", "steps", "tokens", "swapped", "diverging", "unsettled", "runs")


@dataclass(frozen=True)
class Outcome(DeploymentAnswer):
    """A simulated run. Rates are over `duration_s`, from the first measured arrival to the last end.

    diverges: requests pile up as long as they come, fewer are served than offered: waits are those of this run only.
    settled: no growth of the number in the system was seen; where one was and nothing diverges, the run is too short.
    ttft_parts_ms, tpot_parts_ms: what both means are made of, as `estimate` has it; None of cells, and of runs with
    prefix caches, tiers, pools or sessions. others_spans: shares of the time that the request nearest to the mean got
    tokens, begin and end, in which prompts of others were computed.
    """

    requests: Counts
    duration_s: float
    ttft_ms: Spread
    tpot_ms: Spread
    itl_ms: Spread
    e2e_ms: Spread
    queue_ms: Spread
    request_rate: float | None  #: finished [1/s]
    goodput_rate: float | None  #: of them those that met the objective [1/s]; None without one
    goodput: float | None  #: share that met it
    output_tok_s: float | None
    output_tok_s_per_gpu: float | None
    power_w_per_gpu: float | None  #: mean over the run and all boards, idle while nothing runs
    energy_per_output_token_j: float | None  #: all energy of all boards in the run over all output tokens
    steps: int
    replicas: tuple[ReplicaUse, ...]
    diverges: bool
    settled: bool
    interrupted: bool
    warnings: tuple[str, ...]
    ttft_parts_ms: dict[str, float] | None = None
    tpot_parts_ms: dict[str, float] | None = None
    others_spans: Sequence[Sequence[float]] = ()
    ttft_histogram: tuple[Bin, ...] = ()  #: first tokens of the requests that count, in equal widths up to P99
    interval: dict[str, list[float]] | None = None
    """Of 90 %, of the means of TTFT and TPOT [ms]; None at the bound, and of runs that the loop does not play."""
    interval80: dict[str, list[float]] | None = None
    bound: dict[str, float] | None = None  #: of the same load at the datasheet's rates
    doubt: dict[str, DoubtResult] | None = None  #: by time: what widens its interval most
    timeline: tuple[dict[str, float], ...] = field(default=(), repr=False)

    def to_dict(self) -> Json:
        """Nested plain data for JSON, without the timeline."""
        return {name: value for name, value in plain_fields(self).items() if name != "timeline"}

    def to_row(self) -> dict[str, object]:
        """One flat row: inputs, counts, and every statistic as metric_statistic."""
        row: dict[str, Any] = {key: getattr(self, key) for key in ("model", "gpu", "engine", "level", "evidence")}
        row |= self.inputs | asdict(self.requests)
        for name in ("ttft", "tpot", "itl", "e2e", "queue"):
            spread = asdict(getattr(self, f"{name}_ms"))
            row |= {f"{name}_{key}_ms": value for key, value in spread.items() if key not in ("n", "errors")}
        for name, parts in (("ttft", self.ttft_parts_ms), ("tpot", self.tpot_parts_ms)):
            row |= {f"{name}_{part}_ms": value for part, value in (parts or {}).items()}
        rates = ["request_rate", "goodput_rate", "goodput", "output_tok_s", "output_tok_s_per_gpu", "power_w_per_gpu"]
        rates += ["energy_per_output_token_j", "duration_s", "diverges", "settled"]
        row |= {key: getattr(self, key) for key in rates}
        made = {"calibration_hash": self.calibration["hash"] if self.calibration else "", "version": self.version}
        return row | made | {"warnings": "; ".join(self.warnings)}

    def to_rows(self) -> list[Json]:
        """`to_row` as a table of one row: runs can be put below each other."""
        return [self.to_row()]

    def timeline_frame(self) -> pd.DataFrame:
        """Queue, batch and cache over time, one row a replica and moment."""
        import pandas as pd  # noqa: PLC0415 - only where it is asked for

        return pd.DataFrame(self.timeline)


def energy_of(
    predictors: Sequence[Predictor], works: Sequence[ReplicaWork], roles: Sequence[str], finished: int, now: float
) -> float | None:
    """Energy of a run of so many seconds [J]; None where no power limit is known.

    predictors, works, roles: of the replicas. Those of one role and deployment spend together what `run_power` says at
    their mean batch and the mean lengths of the run.
    """
    finished = max(finished, 1)
    isl = max(sum(work.computed for work in works) / finished, 1.0)
    osl = max(sum(work.made + work.first_tokens for work in works) / finished, 1.0)
    alike: dict[tuple[int, str], list[int]] = {}
    for place, (predictor, role) in enumerate(zip(predictors, roles, strict=True)):
        alike.setdefault((id(predictor), role), []).append(place)
    joules = 0.0
    for places in alike.values():
        predictor, own = predictors[places[0]], [works[place] for place in places]
        if predictor.plan.system.accelerator.power is None:
            return None
        decoded, steps = (float(sum(getattr(work, name) for work in own)) for name in ("made", "decode_steps"))
        yielded = predictor.draft.choice.tokens_per_pass if isinstance(predictor, SpeculativePredictor) else 1.0
        load = InFlight(max(decoded / yielded / steps, 1.0) if steps else 1.0, isl, osl)
        computed, busy = (sum(getattr(work, name) for work in own) for name in ("computed", "busy"))
        run = Run(computed / isl, decoded, 1.0, busy, now * len(own))
        joules += float(run_power(token_energy(predictor, load), run).joules_per_output_token) if now else 0.0
    return joules


def summarise(books: Books, **more: Any) -> Outcome:
    """Turn books into an answer; `more` are the fields of the deployment and the run that books do not have."""
    firsts, tokens, wholes = zip(*books.pieces, strict=True) if books.pieces else ((), (), ())
    ledger, gpus = books.ledger, books.gpus
    names = ("ttft", "tpot", "e2el", "queued")
    ttft, tpot, e2e, queued = (books.exact.get(name) or getattr(ledger, name) for name in names)
    span = ledger.last_end - ledger.measured_from
    span = span if 0 < span < math.inf else math.nan
    speed = _finite(ledger.measured_tokens / span)
    asked = ledger.objective.ttft is not None or ledger.objective.tpot is not None
    spent = math.nan if books.joules is None else books.joules
    fates = (ledger.arrived, ledger.finished, ledger.rejected, ledger.cut, ledger.measured, ledger.preempted)
    more |= {name: getattr(books, name) for name in ("steps", "diverges", "settled", "interrupted", "others_spans")}
    return Outcome(
        requests=Counts(*fates, books.swapped),
        duration_s=books.duration,
        ttft_ms=Spread.of(ttft, firsts),
        tpot_ms=Spread.of(tpot, tokens),
        itl_ms=Spread.of(ledger.itl),
        e2e_ms=Spread.of(e2e, wholes),
        queue_ms=Spread.of(queued),
        request_rate=_finite(ledger.measured / span),
        goodput_rate=_finite(ledger.good / span) if asked else None,
        goodput=_finite(ledger.good / ledger.measured if ledger.measured else math.nan) if asked else None,
        output_tok_s=speed,
        output_tok_s_per_gpu=None if speed is None else speed / gpus,
        power_w_per_gpu=_finite(spent / books.gpu_seconds) if books.gpu_seconds else None,
        energy_per_output_token_j=_finite(spent / books.tokens) if books.tokens else None,
        replicas=books.uses,
        ttft_histogram=Bin.of(ttft),
        ttft_parts_ms=books.parts and books.parts[0],
        tpot_parts_ms=books.parts and books.parts[1],
        **more,
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
