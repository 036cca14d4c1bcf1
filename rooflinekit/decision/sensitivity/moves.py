"""Changes of a deployment, each evaluated; and advice: the best of them, with what they gain and what they cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from os import PathLike
from typing import TYPE_CHECKING, Any

from rooflinekit.decision.sensitivity.ranking import rank
from rooflinekit.estimation.estimator import question_of, resolve
from rooflinekit.estimation.notes import memory_remarks, said
from rooflinekit.estimation.options import OwnKeywords
from rooflinekit.estimation.results import Estimate
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.serving.energy import static_power
from rooflinekit.model.speculation import SpeculativePredictor
from rooflinekit.model.step import Plan, make_plan
from rooflinekit.model.timing.calibrated import FamilyFit, Fits
from rooflinekit.model.types.answer import Plain
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.errors import RooflinekitError
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.model.types.model import Attention, LatentAttention, MixtureOfExperts, Model
from rooflinekit.model.types.speculation import Speculation
from rooflinekit.model.types.units import percent
from rooflinekit.model.types.workload import Workload
from rooflinekit.specs import counted_chips, load_accelerator
from rooflinekit.specs.calibration.evidence import EVIDENCE, evidence
from rooflinekit.specs.engines import load_engine

if TYPE_CHECKING:
    from rooflinekit.estimation.estimator import Question as Asked
    from rooflinekit.load.answer import Load, LoadPlay
    from rooflinekit.load.lengths import Length

METRICS = ("ttft", "tpot", "throughput", "cost")
MEASURES = (*METRICS, "energy")


@dataclass(frozen=True)
class MoveAnswer:
    """Times [s], output tokens a second of one accelerator, and its seconds that an output token takes.

    Numbers, or the symbols of one scenario that is traced. batch: sequences that decode together; played: the load
    behind them, None of a static batch. gpu_seconds times the price of an accelerator second is the cost of a token,
    its share of the prompts included.
    """

    ttft: Any
    tpot: Any
    tok_s_per_gpu: Any
    batch: Any
    played: LoadPlay | None = None

    @property
    def gpu_seconds(self) -> Any:
        """Accelerator seconds of one output token."""
        return 1.0 / self.tok_s_per_gpu

    def metrics(self) -> dict[str, Any]:
        """The four that elasticities are about."""
        return dict(zip(METRICS, (self.ttft, self.tpot, self.tok_s_per_gpu, self.gpu_seconds), strict=True))


@dataclass(frozen=True)
class MoveQuestion:
    """A static batch, or a load: then the work has its mean lengths, and the sequences that stand for it elsewhere."""

    work: Workload
    load: Load | None = None

    @property
    def parallel(self) -> float:
        """Sequences of the batch, users, or requests a second."""
        if self.load is None:
            return float(self.work.batch)
        return float(self.load.users or self.load.rate or 0.0)

    @property
    def parameter(self) -> str:
        """Name of that parameter."""
        return "batch" if self.load is None else "rate" if self.load.users is None else "users"

    def ask(self, predictor: Predictor) -> MoveAnswer:
        """Evaluate the static batch, or play the load."""
        gpus = predictor.plan.deployment.gpus
        if self.load is None:
            point = predictor.evaluate(self.work)
            rate = point.output_rate(self.work.batch, self.work.osl) / gpus
            return MoveAnswer(point.ttft.expected, point.tpot.expected, rate, self.work.batch)
        from rooflinekit.load.answer import play_load  # noqa: PLC0415 - a static batch loads no NumPy

        found = play_load(predictor, self.load)
        return MoveAnswer(found.samples["ttft"].mean, found.tpot, found.output_rate / gpus, found.played.running, found)

    def misfit(self, predictor: Predictor) -> str:
        """Why it cannot run; empty where it can."""
        batch = 1.0 if self.load else self.work.batch
        new = self.work.isl - self.work.cached
        memory = predictor.memory.evaluate(batch, self.work.longest_context, new)
        if self.load and float(predictor.memory.max_batch(self.load.typical, self.load.typical)) >= 1.0:
            return ""
        return next(said(memory_remarks(memory.needed_bytes, memory.available_bytes)), "")

    def scaled(self, **changes: float) -> MoveQuestion:
        """The question with other numbers in its workload and load."""
        work, load = replace(self.work, **changes), self.load
        if load is None:
            return MoveQuestion(work)
        if "isl" in changes:
            load = replace(load, isl=_of_mean(load.isl, changes["isl"]))
        if "cached" in changes:
            load = replace(load, cached=changes["cached"])
        return MoveQuestion(work, load)

    def times(self, parallel: float) -> MoveQuestion:
        """The question with another batch, other users or another rate."""
        if self.load is None:
            return self.scaled(batch=parallel)
        load = self.load
        if load.users is None:
            return replace(self, load=replace(load, rate=parallel))
        told = None if load.requests is None else max(round(load.requests * parallel / load.users), int(parallel))
        return replace(self, load=replace(load, users=int(parallel), requests=told))


def _of_mean(length: Length, mean: float) -> Length:
    """A length with another mean, that varies as much."""
    from rooflinekit.load.lengths import Fixed, LogNormal, cv  # noqa: PLC0415 - as above

    spread = cv(length)
    return LogNormal(mean, spread) if spread else Fixed(round(mean))


@dataclass(frozen=True)
class Setting:
    """Setting of a question: names for `estimate`, a question, and the USD of one accelerator hour if anybody knows it.

    model_change: what another model's attention would be; None for the model as it is. kernel: another fit under a key
    of the calibration.
    """

    model: str | PathLike[str]
    gpu: str | PathLike[str]
    deployment: Deployment
    calibration: str | None
    question: MoveQuestion
    draft: Speculation | None = None
    usd_per_gpu_hour: float | None = None
    model_change: Callable[[Model], Model] | None = None
    kernel: tuple[str, FamilyFit] | None = None

    @classmethod
    def of(cls, asked: Asked) -> Setting:
        """Setting of a question of `estimate`."""
        predictor, load = asked.resolved.predictor, asked.asked
        draft = predictor.draft.choice if isinstance(predictor, SpeculativePredictor) else None
        work = asked.work if load is None else replace(asked.work, batch=float(load.users or 1))
        deployment = predictor.plan.deployment
        return cls(asked.model, asked.gpu, deployment, asked.calibration, MoveQuestion(work, load), draft)

    def on(self, **changes: Any) -> Setting:
        """The setting with another choice in the deployment."""
        return replace(self, deployment=replace(self.deployment, **changes))

    def told(self, **settings: Any) -> Setting:
        """The setting with another option of the engine."""
        return self.on(settings=replace(self.deployment.settings, **settings))

    def resolved(self) -> tuple[Predictor, tuple[str, ...]]:
        """The predictor, and what a user should hear. Raises what `estimate` raises for names and deployments."""
        found = resolve(self.model, self.gpu, self.deployment, self.calibration, self.draft)
        if self.kernel is not None and (own := found.predictor.plan.calibration) is not None:
            key, fit = self.kernel
            tried = replace(own, families=Fits.of(own.families) | {key: fit})
            return found.predictor.on(replace(found.predictor.plan, calibration=tried)), found.warnings
        if self.model_change is None:
            return found.predictor, found.warnings
        plan = found.predictor.plan
        other = make_plan(self.model_change(plan.model), self.deployment, plan.system, plan.calibration, plan.engine)
        return found.predictor.on(other), found.warnings


_EXACT = "none: the same arithmetic"
CAVEATS = {
    "weights": "{bits}-bit weights: measure quality",
    "kv": "8-bit KV cache: measure quality",
    "batch": "none for quality; each user waits longer",
    "chunk": "none for quality; moves time between TTFT and TPOT",
    "engine": "none for quality; another engine",
    "prefix": "none for quality; the share of prompts that hit is given, not predicted",
    "draft": "none if verified exactly; the acceptance is given, and depends on the text",
    "mla": "another model, which has to be trained",
    "gpu": "none for quality; another machine",
    "cap": "none for quality; prompts take longer",
}
"""Caveat of each kind of move, in words."""
_ENGINES = ("vllm", "sglang", "trtllm")
_CAPS = (0.5, 0.6, 0.7, 0.8, 0.9)  # of the rated power: what is tried as a cap

NO_CHANGE = "changes nothing"
"""The reason why a possible move is not ranked."""

_SAME = 5e-3  # relative: a metric that changes by less does not change


@dataclass(frozen=True, slots=True)
class Operating:
    """Answer of a deployment; USD are None where nobody knows a price, joules where nobody asked for them."""

    ttft_ms: float
    tpot_ms: float
    output_tok_s: float
    output_tok_s_per_gpu: float
    gpus: int
    running: float  #: sequences that decode together
    kv_bytes_per_token: float
    gpu_seconds_per_token: float  #: of an output token, its share of the prompts included
    usd_per_million_output: float | None
    joules_per_output_token: float | None  #: of the boards, its share of the prompts included
    stable: bool = True  #: whether the rate can be sustained


@dataclass(frozen=True, slots=True)
class MoveResult:
    """One change and what it gives.

    changes: keywords of `estimate`; ratio: ttft, tpot, throughput (of one accelerator), cost and energy (of an output
    token) over those at present.
    """

    move: str
    option: str
    caveat: str
    possible: bool
    reason: str  #: why it is not possible, or not ranked
    answer: Operating | None = None
    ratio: dict[str, float | None] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()  #: what a user should hear about it that is not true of the present deployment
    evidence: str | None = None  #: what its times rest on
    changes: OwnKeywords = field(default_factory=dict)

    def to_row(self) -> dict[str, object]:
        """One flat row; empty cells where it is not possible."""
        head = {"move": self.move, "option": self.option, "possible": self.possible}
        ratios = {f"{name}_ratio": self.ratio.get(name) for name in MEASURES}
        fields = Operating.__slots__
        numbers = {name: getattr(self.answer, name, None) for name in fields}
        words = {"caveat": self.caveat, "reason": self.reason, "evidence": self.evidence}
        words["warnings"] = "; ".join(self.warnings)
        return {**head, **ratios, **numbers, **words}


Tried = tuple[MoveResult, tuple[Setting, ...]]
"""A move, and the settings with it, the next where the one before does not fit; none where it is not possible."""


def move(
    name: str, changes: OwnKeywords, caveat: str, *settings: Setting, needs: str = "", option: str | None = None
) -> Tried:
    """One change; `needs`: why it is not possible; option: what the command line calls it, where it is no option."""
    words = " ".join(f"--{key.replace('_', '-')} {value}" for key, value in changes.items())
    made = MoveResult(name, words if option is None else option, caveat, not needs, needs, changes=changes)
    return made, () if needs else settings


def formats(setting: Setting, plan: Plan) -> Iterator[Tried]:
    """Narrower weights; a narrower cache, or a wide one where it is narrow."""
    stored: Dtype = getattr(plan.precision.formats, plan.model.matrices[-1])
    for dtype, bits in ((Dtype.FP8, 8), (Dtype.INT4, 4)):
        needs = f"the weights are {stored} already" if stored.bytes < dtype.bytes * 1.25 else ""
        yield move(
            f"{dtype} weights",
            {"weights": dtype.value},
            CAVEATS["weights"].format(bits=bits),
            setting.on(weights=dtype),
            needs=needs,
        )
    narrow, stream = plan.precision.kv.bytes <= 1, plan.precision.stream
    needs = f"the cache is {plan.precision.kv} already" if narrow else ""
    yield move("fp8 cache", {"kv": "fp8"}, CAVEATS["kv"], setting.on(kv=Dtype.FP8), needs=needs)
    if narrow:
        yield move(
            f"{stream} cache", {"kv": stream.value}, "none: no rounding of keys and values", setting.on(kv=stream)
        )


def split(setting: Setting, plan: Plan) -> Iterator[Tried]:
    """Twice and half the tensor parallelism; of experts also each whole, with attention in replicas."""
    tp, routed = plan.deployment.tp, any(isinstance(layer.ffn, MixtureOfExperts) for layer in plan.model.layers)
    if routed and plan.deployment.gpus == tp > 1:
        yield move(f"dp {tp} ep {tp}", {"tp": 1, "dp": tp, "ep": tp}, _EXACT, setting.on(tp=1, dp=tp, ep=tp))
    for degree in (2 * tp, tp // 2) if tp % 2 == 0 else (2 * tp,):
        yield move(f"tp {degree}", {"tp": degree}, _EXACT, setting.on(tp=degree))


def crowd(setting: Setting) -> Tried:
    """Twice the batch, the users or the rate."""
    question = setting.question
    twice, key = 2 * question.parallel, {"users": "concurrency"}.get(question.parameter, question.parameter)
    changes = {key: int(twice) if twice == int(twice) else twice}
    return move(
        f"{question.parameter} {twice:g}", changes, CAVEATS["batch"], replace(setting, question=question.times(twice))
    )


_RANK, _ROTARY = 4, 2  # DeepSeek-V2 (arXiv:2405.04434), 2.1: a latent of 4 heads, and a rotary part of half a head


def latent_variant(model: Model) -> Model:
    """The model with multi-head latent attention in place of full softmax attention, its width and heads kept.

    A latent of 4 head dimensions and a rotary part of half a one, as DeepSeek-V2 has (arXiv:2405.04434, section 2.1).

    >>> from rooflinekit.model.cache import model_cache_law
    >>> from rooflinekit.specs import load_model
    >>> gqa = load_model("llama-3-8b").value
    >>> model_cache_law(gqa).bytes_per_token, model_cache_law(latent_variant(gqa)).bytes_per_token  # 32 · 576 · 2 B
    (131072.0, 36864.0)
    """
    layers = []
    for layer in model.layers:
        mixer = layer.mixer
        if isinstance(mixer, Attention) and mixer.window is None and mixer.chunk is None:
            d = mixer.head_dim
            latent = LatentAttention(mixer.heads, None, _RANK * d, d, d // _ROTARY, mixer.v_head_dim)
            layers.append(replace(layer, mixer=latent))
        else:
            layers.append(layer)
    return replace(model, name=f"{model.name} with MLA", layers=tuple(layers))


def moves(  # noqa: PLR0913, PLR0917 - what there is to try
    setting: Setting,
    plan: Plan,
    prefix: float | None = None,
    draft: Speculation | None = None,
    gpus: Mapping[str, float | None] | None = None,
    models: Sequence[str] = (),
    kernels: Sequence[Tried] = (),
) -> Iterator[Tried]:
    """Every move, possible or not; whether it runs and fits is for the caller to find out.

    prefix: share of each prompt that is in the cache; gpus: accelerators to try with the USD of their hour, if known;
    kernels: moves to measured ones in place of the present.
    """
    yield from formats(setting, plan)
    yield from split(setting, plan)
    yield crowd(setting)
    for chunk in filter(None, (int(plan.token_budget // 2), int(plan.token_budget * 2))):
        yield move(f"chunks of {chunk}", {"token_budget": chunk}, CAVEATS["chunk"], setting.told(token_budget=chunk))
    if plan.engine.costs.serial and not plan.engine.costs.overlap:  # prepares a step ahead only if told
        yield move("async scheduling", {"async_scheduling": "on"}, _EXACT, setting.told(async_scheduling="on"))
    vendor = plan.system.accelerator.vendor
    for engine in _ENGINES:
        if engine != plan.deployment.engine and vendor in (load_engine(engine).vendors or [vendor]):
            changed = setting.on(engine=engine, engine_version=None)
            yield move(f"engine {engine}", {"engine": engine}, CAVEATS["engine"], changed)
    yield from kernels
    yield from _requests(setting, prefix, draft)
    for name, hour in (gpus or {}).items():  # with the same split, or with more of them where they are too small
        there = replace(setting, gpu=name, usd_per_gpu_hour=hour).on(system=None)
        wider = (there.on(tp=setting.deployment.tp * factor) for factor in (2, 4, 8))
        present = load_accelerator(name).value.name == plan.system.accelerator.name
        yield move(
            f"gpu {name}",
            {"gpu": name},
            CAVEATS["gpu"],
            there,
            *wider,
            needs="it is the present one" if present else "",
        )
    gpu = plan.system.accelerator
    if gpu.power is not None and setting.deployment.power_cap is None:  # the cap with the fewest joules a token
        caps = [round(share * gpu.tdp_w) for share in _CAPS]
        capped = {cap: setting.on(power_cap=float(cap)) for cap in caps}
        work = setting.question.work
        cap = min(caps, key=lambda cap: (joules_per_token(capped[cap].resolved()[0], work) or 0.0, cap))
        yield move(f"power cap {cap} W", {"power_cap": cap}, CAVEATS["cap"], capped[cap])
    mixers, needs = {layer.mixer for layer in plan.model.layers}, ""
    if any(isinstance(mixer, LatentAttention) for mixer in mixers):
        needs = "the model has latent attention already"
    elif not any(isinstance(mixer, Attention) and not mixer.window and not mixer.chunk for mixer in mixers):
        needs = "the model has no full attention layers"
    yield move(
        "MLA model",
        {},
        CAVEATS["mla"],
        replace(setting, model_change=latent_variant),
        needs=needs,
        option="another model",
    )
    for name in models:
        yield move(f"model {name}", {"model": name}, "another model", replace(setting, model=name), option=name)


def _requests(setting: Setting, share: float | None, draft: Speculation | None) -> Iterator[Tried]:
    """A prefix cache, and a draft: both need what nobody predicts."""
    work, name, caveat = setting.question.work, "prefix cache", CAVEATS["prefix"]
    if share is None:
        needs = "give --prefix, the share of each prompt that is cached"
        yield move(name, {}, caveat, needs=needs, option="--prefix SHARE")
    else:
        cached = min(float(round(share * float(work.isl))), float(work.isl) - 1.0)
        needs = f"{work.cached:.0f} tokens are cached already" if cached <= float(work.cached) else ""
        hits = replace(setting, question=setting.question.scaled(cached=cached))
        yield move(name if needs else f"{name} {percent(share)}", {"cached": int(cached)}, caveat, hits, needs=needs)
    if draft is None:
        needs = "give --draft, --draft-tokens and --acceptance: none is assumed"
        yield move("speculation", {}, CAVEATS["draft"], needs=needs, option="--draft")
    else:
        rates = ",".join(f"{rate:g}" for rate in draft.acceptance)
        changes = {"draft": draft.draft, "draft_tokens": draft.draft_tokens, "acceptance": rates}
        yield move(f"draft {draft.draft}", changes, CAVEATS["draft"], replace(setting, draft=draft))


def joules_per_token(predictor: Predictor, work: Workload) -> float | None:
    """Energy of an output token of a static batch; None where no power limit is known."""
    power = static_power(predictor, work)
    return None if power is None else float(power.joules_per_output_token)


def _joules(answer: MoveAnswer, predictor: Predictor, work: Workload) -> float | None:
    """Joules of a static batch or a load."""
    if answer.played is None:
        return joules_per_token(predictor, work)
    power = answer.played.power
    return None if power is None else float(power.joules_per_output_token)


def operate(setting: Setting, predictor: Predictor, energy: bool = True) -> Operating:
    """Ask the question, and price the answer where the price of an hour is known; energy: with its joules."""
    answer, gpus, work = setting.question.ask(predictor), predictor.plan.deployment.gpus, setting.question.work
    hour, rate = setting.usd_per_gpu_hour, answer.tok_s_per_gpu
    return Operating(
        answer.ttft * 1e3,
        answer.tpot * 1e3,
        rate * gpus,
        rate,
        gpus,
        answer.batch,
        predictor.memory.kv_bytes_per_token,
        answer.gpu_seconds,
        None if hour is None else hour / 3600.0 / rate * 1e6,
        _joules(answer, predictor, work) if energy else None,
        answer.played is None or answer.played.stable,
    )


def try_move(
    tried: Tried, present: Setting, now: Operating, known: tuple[str, ...] = (), energy: bool = True
) -> MoveResult:
    """Make the move; what is refused, or does not fit, says why. `known` warnings are true of the present one too."""
    made, settings = tried
    reason = made.reason
    for attempt in settings:
        try:
            predictor, warnings = attempt.resolved()
            misfit = attempt.question.misfit(predictor)
            if not misfit:
                break
            reason = reason or misfit
        except RooflinekitError as error:
            reason = reason or str(error)
    else:
        return replace(made, possible=False, reason=reason)
    then = operate(attempt, predictor, energy)
    cost: float | None = None
    if attempt.gpu == present.gpu:  # accelerator seconds; on another in USD, if both prices are known
        cost = then.gpu_seconds_per_token / now.gpu_seconds_per_token
    elif then.usd_per_million_output is not None and now.usd_per_million_output is not None:
        cost = then.usd_per_million_output / now.usd_per_million_output
    joules, before = then.joules_per_output_token, now.joules_per_output_token
    ratio = {
        "ttft": then.ttft_ms / now.ttft_ms,
        "tpot": then.tpot_ms / now.tpot_ms,
        "throughput": then.output_tok_s_per_gpu / now.output_tok_s_per_gpu,
        "cost": cost,
        "energy": None if joules is None or before is None else joules / before,
    }
    same = all(value is None or abs(value - 1.0) < _SAME for name, value in ratio.items() if name != "energy")
    same = same and (ratio["energy"] is None or abs(ratio["energy"] - 1.0) < _SAME)
    more = {} if attempt is settings[0] else {"tp": attempt.deployment.tp}
    wider = "".join(f" tp {degree}" for degree in more.values())
    return replace(
        made,
        move=made.move + wider,
        option=made.option + wider.replace(" tp", " --tp"),
        reason=NO_CHANGE if same else "",
        answer=then,
        ratio=ratio,
        evidence=evidence(predictor.plan),
        changes=made.changes | more,
        warnings=tuple(warning for warning in (*warnings, *overload(then)) if warning not in known),
    )


def overload(found: Operating) -> Iterator[str]:
    """Remark that the rate cannot be sustained."""
    if not found.stable:
        yield "overload: the rate cannot be sustained, and first tokens wait the longer, the longer it lasts"


def weaker(found: str | None, present: str) -> bool:
    """True if an evidence is weaker than the present one."""
    return EVIDENCE.index(found or present) > EVIDENCE.index(present)


# --- advice ---------------------------------------------------------------------------------------------------------

ADVISED = ("tpot", "cost", "ttft")
"""Metrics of advice: time per token, cost of an output token, time to first token."""

LOSSES = (2, 3)
"""How many of them are a loss where they grow, of a static batch and under load.

Of a static batch, all of whose prompts come at once, TTFT is none.
"""

LEAST = 0.02
"""Relative: a smaller gain is no advice."""
NONE_SUSTAINS = "no change that was tried, on evidence as good as now, sustains the load"
SHOWN, PLAYED = 3, 2
"""Moves of a metric, and moves that are played of a load."""


@dataclass(frozen=True)
class Advice(Plain):
    """One of the best changes for a metric: evaluated, allowed, and worth more than it costs.

    metric: `tpot`, `cost` or `ttft`; change: of that metric, -0.2 for a fifth less; changes: keywords of `estimate`
    that make the move; ratio: every metric over what it is now; needs: other accelerators and formats, in words.
    """

    metric: str
    move: str
    option: str
    changes: OwnKeywords
    change: float
    ratio: dict[str, float | None]
    needs: tuple[str, ...]
    evidence: str

    derived = ("price",)

    @property
    def price(self) -> tuple[str, ...]:
        """Price of the move in words: metrics that become worse, and what it needs."""
        losses = ((name, self.ratio.get(name) or 1.0) for name in ADVISED if name != self.metric)
        return (
            *(f"{NAMES[name]} {signed_share(ratio - 1.0)}" for name, ratio in losses if ratio >= 1.0 + LEAST),
            *self.needs,
        )


def best(
    tried: Iterable[MoveResult], present: str, gpus: int, loaded: bool, gpu: str = "h100-sxm"
) -> tuple[Advice, ...]:
    """The best of some moves for each metric, the best of all metrics first.

    Allowed are moves that fit, sustain the load, and rest on no weaker evidence than the present times (`present`).
    """
    allowed = [
        each
        for each in tried
        if each.possible and each.answer is not None and each.answer.stable and not weaker(each.evidence, present)
    ]
    found = [-1] * (len(ADVISED) * SHOWN)
    ratios = [[each.ratio.get(metric) or 1.0 for metric in ADVISED] for each in allowed]
    rank(ratios, LOSSES[loaded], len(ADVISED), 1.0 - LEAST, found)
    metrics = ADVISED * SHOWN
    return tuple(
        _advice(allowed[each], metric, present, (gpus, gpu))
        for each, metric in zip(found, metrics, strict=True)
        if each >= 0
    )


def _advice(made: MoveResult, metric: str, present: str, now: tuple[int, str]) -> Advice:
    assert made.answer is not None
    taken, ratio, needs = made.answer.gpus, made.ratio[metric], []
    assert ratio is not None
    gpus, gpu = now
    if taken != gpus:
        needs.append(f"{counted_chips(taken, str(made.changes.get('gpu', gpu)))} in place of {gpus}")
    if not made.caveat.startswith("none"):
        needs.append(made.caveat)
    return Advice(
        metric, made.move, made.option, made.changes, ratio - 1.0, made.ratio, tuple(needs), made.evidence or present
    )


NAMES = {"tpot": "TPOT", "cost": "cost", "ttft": "TTFT"}
"""Names of the metrics."""


def signed_share(change: float) -> str:
    """A relative change in percent, with its sign; a large one as a factor.

    >>> signed_share(-0.4132), signed_share(0.004), signed_share(4.0)
    ('−41 %', '+0 %', 'x 5.0')
    """
    if change > 1.0:
        return f"x {1.0 + change:.1f}"
    return f"{'+' if change > -5e-3 else '−'}{abs(100.0 * change):.0f} %"


def said_best(advised: Sequence[Advice], stable: bool = True) -> str:
    """The best move of each metric, as sentences; stable: whether the load is sustained now."""
    first: dict[str, Advice] = {}
    for each in advised:
        first.setdefault(each.metric, each)
    if not first:
        return "No move tried here gains more than it costs." if stable else f"Overload: {NONE_SUSTAINS}."
    return " ".join(
        f"Best for {NAMES[metric]}: {each.move}, {signed_share(each.change)}"
        + (f" ({'; '.join(each.price)})." if each.price else ".")
        for metric, each in first.items()
    )


def changes_of(setting: Setting, plan: Plan) -> list[Tried]:
    """The moves that advice tries: number formats and tensor parallelism on the same accelerators and engine."""
    return [*formats(setting, plan), *split(setting, plan)]


def candidates(setting: Setting, predictor: Predictor, present: str, running: float) -> list[Tried]:
    """The moves that advice evaluates; of a load those that are best for a static batch of what runs.

    A step table and a play for each move would take longer than the answer itself. present: the evidence of the answer;
    running: sequences in steps, in the mean.
    """
    changes, load = changes_of(setting, predictor.plan), setting.question.load
    if load is None:
        return [*changes, crowd(setting)]
    work = setting.question.work
    room = max(float(predictor.memory.max_batch(work.longest_context, work.isl - work.cached)), 1.0)
    at = replace(setting, question=MoveQuestion(replace(work, batch=min(max(float(round(running)), 1.0), room))))
    static = [(made, tuple(replace(one, question=at.question) for one in some)) for made, some in changes]
    now = operate(at, predictor, energy=False)
    found = best(
        (try_move(each, at, now, energy=False) for each in static),
        present,
        now.gpus,
        True,
        predictor.plan.system.accelerator.name,
    )
    first = [*dict.fromkeys(each.move for each in found)][:PLAYED]
    return [each for each in changes if each[0].move in first]


def advice(answer: Estimate) -> tuple[Advice, ...]:
    """The best changes of a deployment that was answered, each evaluated as `estimate` would.

    Tried are number formats, tensor parallelism and, of a static batch, twice its size: on the same accelerator with
    the same engine (`levers` tries others). Empty for an answer that was read back, and for one that does not fit.

    >>> from rooflinekit.estimation.estimator import estimate
    >>> first = advice(estimate("llama-3-8b", batch=8))[0]
    >>> first.metric, first.option, -0.6 < first.change < -0.3
    ('tpot', '--weights int4', True)
    """
    asked = question_of(answer)
    if asked is None or not answer.memory.fits:
        return ()
    setting, gpus, rate = Setting.of(asked), asked.resolved.plan.deployment.gpus, answer.output_tok_s_per_gpu
    load = answer.load
    running, stable = (float(answer.inputs["batch"]), True) if load is None else (load.running, load.stable)
    now = Operating(
        answer.ttft_ms,
        answer.tpot_ms,
        answer.output_tok_s,
        rate,
        gpus,
        running,
        answer.memory.kv_bytes_per_token,
        1.0 / rate,
        None,
        None,
        stable,
    )
    tried = candidates(setting, asked.resolved.predictor, answer.evidence, running)
    results = (try_move(each, setting, now, energy=False) for each in tried)
    return best(results, answer.evidence, gpus, load is not None, answer.gpu)
