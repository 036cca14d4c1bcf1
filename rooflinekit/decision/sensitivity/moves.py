"""Single changes to a deployment that might help, each with the option that makes it and what it risks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rooflinekit.decision.sensitivity.question import Setting, latent_variant
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.step import Plan
from rooflinekit.model.traffic.energy import static_power
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.model import Attention, LatentAttention
from rooflinekit.model.types.speculation import Speculation
from rooflinekit.model.types.workload import Workload
from rooflinekit.specs import load_accelerator

_EXACT = "none: the same arithmetic"
_CAVEATS = {
    "weights": "weights are rounded to {bits} bits: measure quality on your task",
    "kv": "keys and values are rounded to 8 bits: measure quality, above all on long contexts",
    "batch": "none for quality; each user waits longer",
    "chunk": "none for quality; moves time between TTFT and TPOT",
    "prefix": "none for quality; the share of prompts that hit is given, not predicted",
    "draft": "none if verified exactly; the acceptance is given, and depends on the text",
    "mla": "another model: it would have to be trained",
    "gpu": "none for quality; another machine",
    "engine": "none for quality; another engine",
    "cap": "none for quality; prompts take longer",
}
_ENGINES = ("vllm", "sglang", "trtllm")


@dataclass(frozen=True)
class Move:
    """One change. setting: the deployment with it; None where it needs something that was not given (`reason`)."""

    name: str
    option: str
    caveat: str
    setting: Setting | None
    reason: str = ""
    fallbacks: tuple[Setting, ...] = field(default=(), repr=False)  #: tried in turn where the first does not fit


def moves(  # noqa: PLR0913, PLR0917 - what there is to try
    setting: Setting, plan: Plan, prefix: float | None = None, draft: Speculation | None = None,
    gpus: Mapping[str, float | None] | None = None, models: Sequence[str] = (),
) -> Iterator[Move]:  # fmt: skip
    """Every move, possible or not; whether it runs and fits is for the caller to find out.

    prefix: share of each prompt that is in the cache; gpus: accelerators to try with the USD of their hour, if known.
    """
    yield from _formats(setting, plan)
    yield from _degrees(setting, plan)
    yield from _engine(setting, plan)
    yield _prefix(setting, prefix)
    yield _draft(setting, draft)
    for name, hour in (gpus or {}).items():  # with the same split, or with more of them where they are too small
        if load_accelerator(name).value.name == plan.system.accelerator.name:
            yield Move(f"gpu {name}", f"--gpu {name}", _CAVEATS["gpu"], None, "it is the present one")
            continue
        there = replace(setting, gpu=name, usd_per_gpu_hour=hour).on(system=None)
        wider = tuple(there.on(tp=setting.deployment.tp * factor) for factor in (2, 4, 8))
        yield Move(f"gpu {name}", f"--gpu {name}", _CAVEATS["gpu"], there, fallbacks=wider)
    yield from _cap(setting, plan)
    yield _latent(setting, plan)
    for name in models:
        yield Move(f"model {name}", name, "another model", replace(setting, model=name))


_CAPS = (0.5, 0.6, 0.7, 0.8, 0.9)  # of the rated power: what is tried as a cap


def joules_per_token(predictor: Predictor, work: Workload) -> float | None:
    """Energy of an output token of a static batch; None where no power limit is known."""
    power = static_power(predictor, work)
    return None if power is None else float(power.joules_per_output_token)


def _cap(setting: Setting, plan: Plan) -> Iterator[Move]:
    """The power cap with the fewest joules a token."""
    gpu = plan.system.accelerator
    if gpu.power is None or setting.deployment.power_cap is not None:
        return
    tried = []
    for cap in (round(share * gpu.tdp_w) for share in _CAPS):
        capped = setting.on(power_cap=float(cap))
        joules = joules_per_token(capped.resolved()[0], setting.question.work)
        tried.append((joules, cap, capped))
    _, cap, best = min(tried, key=lambda each: each[0] or 0.0)
    yield Move(f"power cap {cap} W", f"--power-cap {cap}", _CAVEATS["cap"], best)


def _formats(setting: Setting, plan: Plan) -> Iterator[Move]:
    stored: Dtype = getattr(plan.precision.formats, plan.model.matrices[-1])
    for dtype, bits in ((Dtype.FP8, 8), (Dtype.INT4, 4)):
        name, option, caveat = f"{dtype} weights", f"--weights {dtype}", _CAVEATS["weights"].format(bits=bits)
        if stored.bytes < dtype.bytes * 1.25:
            yield Move(name, option, caveat, None, f"the weights are {stored} already")
        else:
            yield Move(name, option, caveat, setting.on(weights=dtype))
    if plan.precision.kv.bytes <= 1:
        yield Move("fp8 cache", "--kv fp8", _CAVEATS["kv"], None, f"the cache is {plan.precision.kv} already")
    else:
        yield Move("fp8 cache", "--kv fp8", _CAVEATS["kv"], setting.on(kv=Dtype.FP8))


def _degrees(setting: Setting, plan: Plan) -> Iterator[Move]:
    tp = 2 * plan.deployment.tp
    yield Move(f"tp {tp}", f"--tp {tp}", _EXACT, setting.on(tp=tp))
    if plan.deployment.tp % 2 == 0:
        less = plan.deployment.tp // 2
        yield Move(f"tp {less}", f"--tp {less}", _EXACT, setting.on(tp=less))
    question = setting.question
    option = "--concurrency" if question.users else "--batch"
    twice = f"{option} {2 * question.parallel:.0f}"
    word = "users" if question.users else "batch"
    doubled = replace(setting, question=question.scaled(batch=2 * question.parallel))
    yield Move(f"{word} {2 * question.parallel:.0f}", twice, _CAVEATS["batch"], doubled)


def _engine(setting: Setting, plan: Plan) -> Iterator[Move]:
    for budget in (int(plan.token_budget // 2), int(plan.token_budget * 2)):
        if budget >= 1:
            option = f"--token-budget {budget}"
            yield Move(f"chunks of {budget}", option, _CAVEATS["chunk"], setting.told(token_budget=budget))
    for engine in _ENGINES:
        if engine != plan.deployment.engine:
            changed = setting.on(engine=engine, engine_version=None)
            yield Move(f"engine {engine}", f"--engine {engine}", _CAVEATS["engine"], changed)


def _prefix(setting: Setting, share: float | None) -> Move:
    question = setting.question
    name, caveat = "prefix cache", _CAVEATS["prefix"]
    if share is None:
        return Move(name, "--prefix SHARE", caveat, None, "give --prefix, the share of each prompt that is cached")
    cached = min(float(round(share * float(question.work.isl))), float(question.work.isl) - 1.0)
    option = f"--cached {cached:.0f}"
    if cached <= float(question.work.cached):
        return Move(name, option, caveat, None, f"{question.work.cached:.0f} tokens are cached already")
    return Move(f"{name} {share:.0%}", option, caveat, replace(setting, question=question.scaled(cached=cached)))


def _draft(setting: Setting, draft: Speculation | None) -> Move:
    caveat = _CAVEATS["draft"]
    if draft is None:
        needed = "give --draft, --draft-tokens and --acceptance: none is assumed"
        return Move("speculation", "--draft", caveat, None, needed)
    rates = ",".join(f"{rate:g}" for rate in draft.acceptance)
    option = f"--draft {draft.draft} --draft-tokens {draft.draft_tokens} --acceptance {rates}"
    return Move(f"draft {draft.draft}", option, caveat, replace(setting, draft=draft))


def _latent(setting: Setting, plan: Plan) -> Move:
    """Latent attention in place of grouped heads; what it keeps a token is in the name."""
    name, option, caveat = "MLA model", "another model", _CAVEATS["mla"]
    mixers = {layer.mixer for layer in plan.model.layers}
    if any(isinstance(mixer, LatentAttention) for mixer in mixers):
        return Move(name, option, caveat, None, "the model has latent attention already")
    if not any(isinstance(mixer, Attention) and not mixer.window and not mixer.chunk for mixer in mixers):
        return Move(name, option, caveat, None, "the model has no full attention layers")
    return Move(name, option, caveat, replace(setting, model_change=latent_variant))
