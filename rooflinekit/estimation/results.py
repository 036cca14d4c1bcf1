"""Results of an estimate: plain numbers with units in their names, ready for JSON, tables and notebooks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, field, fields
from functools import reduce
from operator import attrgetter
from typing import Any

from rooflinekit.model.capacity import Memory
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.power import PARTS as ENERGY_PARTS
from rooflinekit.model.power import kernel_energy
from rooflinekit.model.roofline import StepTime, peak_time, stream_time, time_parts
from rooflinekit.model.serving.energy import LoadPower, TokenEnergy
from rooflinekit.model.speculation import SpeculativePredictor
from rooflinekit.model.step import Plan
from rooflinekit.model.types.answer import DeploymentAnswer, Json
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.model.types.hardware import Accelerator, Provenance
from rooflinekit.model.types.numeric import Numeric, maximum, where
from rooflinekit.model.types.time import KernelTime
from rooflinekit.model.types.workload import Workload
from rooflinekit.specs.calibration.evidence import evidence
from rooflinekit.version import __version__


@dataclass(frozen=True, slots=True)
class KernelResult:
    """One kernel of a step; totals over its `count` launches, on one accelerator."""

    name: str
    family: str
    count: int
    dtype: str
    flops: float
    weight_bytes: float
    kv_read_bytes: float
    kv_write_bytes: float
    activation_bytes: float
    network_bytes: float
    intensity: float | None  #: FLOP per byte of memory traffic; None without traffic
    time_us: float
    bound_us: float
    bound: str  #: what the time is spent on: compute, memory, network or overhead
    energy_uj: float | None = None  #: of the board; None where its power limit is not known

    @classmethod
    def of(
        cls, timed: KernelTime, split: Mapping[str, Any] | None = None, board: Accelerator | None = None
    ) -> KernelResult:
        """Read the scalars of one timed kernel; `split` is its time by cause, where that is known."""
        kernel, n, traffic = timed.kernel, timed.kernel.count, float(timed.kernel.bytes)
        flops, weights, read, written, activations, sent = (n * float(size) for size in _work(kernel))
        intensity = float(kernel.flops) / traffic if traffic else None
        law = board.power if board else None
        joules = float(kernel_energy(timed, board, law).total) if board and law else None
        return cls(
            kernel.name, kernel.family, n, kernel.dtype.value, flops, weights, read, written, activations, sent,
            intensity, float(timed.expected) * 1e6, float(timed.bound) * 1e6, regime(timed, split),
            None if joules is None else joules * 1e6,
        )  # fmt: skip

    @property
    def bytes(self) -> float:
        """Memory traffic of all launches."""
        return self.weight_bytes + self.kv_read_bytes + self.kv_write_bytes + self.activation_bytes


_work = attrgetter("flops", "weight_bytes", "kv_read_bytes", "kv_write_bytes", "activation_bytes", "network_bytes")


def time_by_cause(timed: KernelTime) -> dict[str, Numeric]:
    """A kernel's time [s], split between its launch and the resource that it waits for.

    The split is in proportion to what either alone would need, since a correction scales both.
    """
    needs = {"memory": timed.memory, "compute": timed.compute, "network": timed.network}
    busy = reduce(maximum, needs.values())
    needed = timed.overhead + busy
    split: dict[str, Numeric] = {"overhead": timed.overhead / where(needed == 0.0, 1.0, needed) * timed.expected}
    left = timed.expected - split["overhead"]
    for cause, alone in needs.items():  # of equal ones the first
        split[cause] = where(alone == busy, left, 0.0)
        left = left - split[cause]
    return {cause: split[cause] for cause in (*needs, "overhead")}


def regime(timed: KernelTime, split: Mapping[str, Any] | None = None) -> str:
    """The limit of most of the time."""
    split = split or time_by_cause(timed)
    return max(split, key=split.__getitem__)


def shares_by_cause(step: StepTime, splits: Sequence[Mapping[str, Any]] | None = None) -> dict[str, float]:
    """Share of the step's time by cause; `splits` of its kernels, where they are known."""
    splits = [time_by_cause(timed) for timed in step.kernels] if splits is None else splits
    causes = ("compute", "memory", "network", "overhead")
    return {cause: float(sum(split[cause] for split in splits)) / float(step.expected) for cause in causes}


@dataclass(frozen=True, slots=True)
class StepResult:
    """One engine step on one accelerator (the busiest); under PP the sum over the stages a token passes.

    mfu: share of the time that the arithmetic would need at peak; mbu: the same for the bytes of weights and cache.
    """

    time_ms: float
    bound_ms: float
    flops: float
    bytes: float
    intensity: float
    bound: str
    mfu: float
    mbu: float
    shares: dict[str, float]  #: of the time, by cause: compute, memory, network, overhead
    time_parts_ms: dict[str, float]  #: what the time adds up from, as `time_parts` says
    kernels: tuple[KernelResult, ...]

    @classmethod
    def of(cls, step: StepTime, accelerator: Accelerator) -> StepResult:
        """Sum the kernels; the regime is the cause that takes most of the time."""
        splits = [time_by_cause(timed) for timed in step.kernels]
        kernels = tuple(KernelResult.of(*each, accelerator) for each in zip(step.kernels, splits, strict=True))
        time, shares = float(step.expected), shares_by_cause(step, splits)
        flops = sum(kernel.flops for kernel in kernels)
        traffic = sum(kernel.bytes for kernel in kernels)
        mfu, mbu = (
            sum(float(ideal(timed.kernel, accelerator)) for timed in step.kernels) / time
            for ideal in (peak_time, stream_time)
        )
        parts = {part: float(each) * 1e3 for part, each in time_parts(step, accelerator).items()}
        return cls(
            time * 1e3, float(step.bound) * 1e3, flops, traffic, flops / traffic, max(shares, key=shares.__getitem__),
            mfu, mbu, shares, parts, kernels,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class MemoryResult:
    """Memory of the busiest accelerator; `kv_bytes_per_token` is for one sequence over all accelerators.

    max_batch counts sequences of this length over the deployment, max_context tokens at this batch (None: unlimited).
    overhead_bytes is context, non_torch and graphs together. The pool is what the engine sets aside for the cache; of a
    deployment that does not fit, needed_bytes are missing from available_bytes.
    """

    fits: bool
    capacity_bytes: float
    weight_bytes: float
    kv_bytes: float
    activation_bytes: float
    overhead_bytes: float
    total_bytes: float
    max_batch: int
    max_context: int | None
    kv_bytes_per_token: float
    context_bytes: float
    non_torch_bytes: float
    graph_bytes: float
    kv_pool_bytes: float
    kv_pool_tokens: int
    kv_blocks: int
    max_concurrency: float
    needed_bytes: float
    available_bytes: float

    @classmethod
    def of(cls, memory: Memory) -> MemoryResult:
        """Read the scalars."""
        values = {each.name: _PLAIN[str(each.type)](getattr(memory, each.name)) for each in fields(cls)}
        return cls(**values)


_PLAIN: Mapping[str, Callable[[Any], Any]] = {
    "bool": bool,
    "int": int,
    "float": float,
    "int | None": lambda size: None if math.isinf(size) else int(size),
}


@dataclass(frozen=True, slots=True)
class SpeculationResult:
    """Effect of a draft on the decode; times of one round at the reported context.

    break_even_acceptance: that of every token at which a round is as fast as plain steps (None: it never is);
    best_draft_tokens: of up to 8 in a row, 0 if none helps.
    """

    draft: str
    method: str
    draft_tokens: int
    verified_tokens: int
    acceptance: tuple[float, ...]
    tokens_per_pass: float
    verify_ms: float
    draft_ms: float
    speedup: float
    break_even_acceptance: float | None
    best_draft_tokens: int
    draft_weight_bytes: float

    @classmethod
    def of(cls, predictor: Predictor, work: Workload) -> SpeculationResult | None:
        """Read it from a speculative predictor; None from a plain one."""
        if not isinstance(predictor, SpeculativePredictor):
            return None
        draft, choice = predictor.draft, predictor.draft.choice
        verify, drafting = predictor.round(work, work.decode_context)
        return cls(
            draft.model.name if draft.model else choice.draft, choice.method, choice.draft_tokens, choice.verified,
            choice.acceptance, choice.tokens_per_pass, float(verify.expected) * 1e3, float(drafting.expected) * 1e3,
            predictor.speedup(work), predictor.break_even(work), predictor.best_draft_tokens(work), draft.weight_bytes,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class EnergyResult:
    """Power of a board and energy of tokens; hosts, cooling and conversion are counted in `plug_w_per_gpu` alone.

    power_w_per_gpu: mean over a request, or under load over the time, waiting included; interval: of that, 90 %.
    plug_w_per_gpu: the same with the board's share of its host and power supplies, without cooling.
    energy_per_output_token_j: all energy of all boards over all output tokens, prompts included; parts_j: what it is
    spent on. request_j, prefill_j_per_token (of a prompt token) and decode_j_per_token leave waiting between requests
    out. busy: share of the time in which there is a step. measured: the law was fitted to this chip's own kernels.
    """

    power_w_per_gpu: float
    plug_w_per_gpu: float
    interval: list[float]
    prefill_w: float
    decode_w: float
    idle_w: float
    limit_w: float
    busy: float
    energy_per_output_token_j: float
    parts_j: dict[str, float]
    prefill_j_per_token: float
    decode_j_per_token: float
    request_j: float
    measured: bool

    @classmethod
    def of(cls, tokens: TokenEnergy, work: Workload, found: LoadPower) -> EnergyResult:
        """Of requests and the power over them; prefill makes the first token."""
        law, gpus = tokens.law, tokens.gpus
        watts, whole = float(found.watts), float(found.joules_per_output_token)
        made = float(work.osl) - 1.0
        prompt, token = float(tokens.prompt.total), float(tokens.step.total)
        parts = {part: float(getattr(found.energy, part)) for part in ENERGY_PARTS}
        stepping, prompting = token / float(tokens.step_seconds), float(tokens.prompt_seconds)  # 0 behind launches
        return cls(
            watts, float(found.plug), [max(watts / law.run_width, law.idle), min(watts * law.run_width, law.limit)],
            (prompt / prompting if prompting else stepping) / gpus, stepping / gpus,
            law.idle, law.limit, float(found.busy), whole, parts,
            prompt / float(work.isl - work.cached), token, prompt + made * token, law.measured,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Times of users under a load that was played; times in ms, rates in requests a second."""

    arrivals: str  #: in words
    stable: bool  #: whether the rate can be sustained
    running: float  #: sequences in steps, in the mean
    slots: int  #: requests of mean lengths that run at once at most
    rate: float  #: at which requests come, or the users of a closed loop get them
    knee_rate: float  #: the largest that can be sustained
    prompt_share: float  #: share of the time in which prompts lengthen steps
    queue_ms: float  #: of TTFT, behind prompts that came before and for a place
    percentiles: dict[str, dict[str, float]]  #: p50, p90, p95 and p99 of TTFT, TPOT and end to end
    slo: dict[str, float | None]  #: objectives
    goodput: float | None  #: requests that meet them; None without one
    encoders_busy: float | None  #: share of the time in which accelerators encode images; None without any
    encoders_wait_ms: float | None  #: mean wait for one of them, no part of `queue_ms`
    errors: dict[str, dict[str, float]]  #: standard errors of means and percentiles
    ttft_parts_ms: dict[str, float]  #: what the mean TTFT is made of
    tpot_parts_ms: dict[str, float]  #: what the mean TPOT is made of
    others_spans: list[list[float]]  #: of the request nearest to the mean: begin and end of others' prompts
    requests: int  #: that count in all of these
    warmup: int  #: that came before them and do not
    makespan_s: float  #: from the first of them to the end of the last


@dataclass(frozen=True, slots=True)
class DoubtResult:
    """The widest part of an interval, in words; one_run: ends of the 80 % interval [ms] after one run of one's own."""

    cause: str
    one_run: list[float] | None


@dataclass(frozen=True)
class Estimate(DeploymentAnswer):
    """The answer for one operating point. `to_dict()` is the published JSON, `to_frame()` the kernels as a table."""

    ttft_ms: float
    tpot_ms: float
    e2e_ms: float
    output_tok_s: float
    output_tok_s_per_gpu: float
    output_tok_s_per_user: float
    interval: dict[str, list[float]] | None  #: of 90 %; None at the bound
    interval80: dict[str, list[float]] | None  #: of 80 %
    doubt: dict[str, DoubtResult] | None  #: by time: what widens its interval most; None at the bound
    interval_tested: str | None  #: how many measurements left out of the fits lay inside; None of stand-ins
    bound: dict[str, float]
    memory: MemoryResult
    prefill: StepResult
    decode: StepResult
    speculation: SpeculationResult | None
    load: LoadResult | None  #: under load: what users feel; None for a static batch
    energy: EnergyResult | None  #: None where the accelerator's power limit is not known
    measure: list[dict[str, str]]  #: the command of each benchmark client that measures this, with its name as `tool`
    provenance: Sequence[Provenance] = field(repr=False)
    warnings: tuple[str, ...]

    def to_row(self) -> dict[str, object]:
        """Inputs and answers as one flat row, as `estimate_frame` names them; the kernels are left out."""
        spans = self.interval or {}
        row: dict[str, Any] = {"model": self.model, "gpu": self.gpu, **self.inputs}
        for time in ("ttft", "tpot"):
            low, high = spans.get(f"{time}_ms") or (None, None)
            row |= {f"{time}_ms": getattr(self, f"{time}_ms"), f"{time}_low_ms": low, f"{time}_high_ms": high}
            row[f"{time}_bound_ms"] = self.bound[f"{time}_ms"]
        row |= {name: getattr(self, name) for name in ("e2e_ms", "output_tok_s", "output_tok_s_per_gpu")}
        row |= {"output_tok_s_per_user": self.output_tok_s_per_user, **asdict(self.memory)}
        row |= {
            name: getattr(self.energy, name, None)
            for name in ("power_w_per_gpu", "plug_w_per_gpu", "energy_per_output_token_j")
        }
        row |= {
            key: getattr(self.speculation, key, None)
            for key in ("draft", "draft_tokens", "acceptance", "tokens_per_pass")
        }
        if self.speculation is not None:
            row["acceptance"] = ",".join(f"{rate:g}" for rate in self.speculation.acceptance)
        made = {"calibration_hash": self.calibration["hash"] if self.calibration else "", "version": self.version}
        return row | {"level": self.level, "evidence": self.evidence, **made, "warnings": "; ".join(self.warnings)}

    def to_rows(self) -> list[Json]:
        """Every kernel of prefill and decode, one row each, with a `step` column."""
        steps = (("prefill", self.prefill), ("decode", self.decode))
        return [{"step": name, **asdict(kernel)} for name, step in steps for kernel in step.kernels]


def about(plan: Plan) -> dict[str, Any]:
    """The basis of an answer: the version, the names of what ran, the level, and its evidence."""
    calibration = plan.calibration
    return {
        "version": __version__,
        "model": plan.model.name,
        "gpu": plan.system.accelerator.name,
        "engine": plan.deployment.engine,
        "level": "expected" if calibration else "bound",
        "calibration": {"name": calibration.name, "hash": calibration.hash} if calibration else None,
        "evidence": evidence(plan),
    }
