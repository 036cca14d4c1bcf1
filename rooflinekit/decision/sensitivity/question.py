"""What is asked of a deployment, what it answers, and the deployment as choices that can be changed one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from os import PathLike
from typing import Any, cast

from rooflinekit.estimation.estimator import resolve
from rooflinekit.estimation.notes import memory_remarks, said
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.step import make_plan
from rooflinekit.model.traffic.closed_form import Find, Traffic, closed_loop
from rooflinekit.model.traffic.mixing import slots
from rooflinekit.model.traffic.root import root
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.model.types.model import Attention, LatentAttention, Layer, Model
from rooflinekit.model.types.numeric import Numeric
from rooflinekit.model.types.speculation import Speculation
from rooflinekit.model.types.time import Time
from rooflinekit.model.types.workload import Workload

METRICS = ("ttft", "tpot", "throughput", "cost")

_RANK, _ROTARY = 4, 2  # DeepSeek-V2 (arXiv:2405.04434), 2.1: a latent of 4 heads, and a rotary part of half a head


@dataclass(frozen=True)
class Answer:
    """Times [s], output tokens a second of one accelerator, and its seconds that an output token takes.

    batch: sequences that decode together; gpu_seconds times the price of an accelerator second is the cost of a token,
    its share of the prompts included.
    """

    ttft: float
    tpot: float
    tok_s_per_gpu: float
    batch: float

    @property
    def gpu_seconds(self) -> float:
        """Accelerator seconds of one output token."""
        return 1.0 / self.tok_s_per_gpu

    def metrics(self) -> dict[str, float]:
        """The four that elasticities are about."""
        values = (self.ttft, self.tpot, self.tok_s_per_gpu, self.gpu_seconds)
        return dict(zip(METRICS, values, strict=True))


def _answer(ttft: Time, tpot: Time, rate: Numeric, batch: Numeric) -> Answer:
    """One scenario: numbers, or the symbols of one while it is traced."""
    return Answer(*(cast("float", value) for value in (ttft.expected, tpot.expected, rate, batch)))


@dataclass(frozen=True)
class Question:
    """A workload; with `users` its batch is the users of a closed loop, of whom those that fit run together."""

    work: Workload
    users: bool = False

    @property
    def parallel(self) -> float:
        """Sequences of the batch, or users."""
        return float(self.work.batch)

    def ask(self, predictor: Predictor, find: Find = root) -> Answer:
        """Evaluate the static batch or the closed loop, whose roots `find` searches."""
        gpus = predictor.plan.deployment.gpus
        if not self.users:
            point = predictor.evaluate(self.work)
            rate = point.output_rate(self.work.batch, self.work.osl) / gpus
            return _answer(point.ttft, point.tpot, rate, self.work.batch)
        traffic = Traffic(self.work.isl, self.work.osl, cached=self.work.cached)
        loaded = closed_loop(predictor, self.work.batch, traffic, find=find)
        return _answer(loaded.ttft, loaded.tpot, loaded.rate * self.work.osl / gpus, loaded.running)

    def misfit(self, predictor: Predictor) -> str:
        """Why it cannot run; empty where it can."""
        batch = 1.0 if self.users else self.work.batch
        new = self.work.isl - self.work.cached
        memory = predictor.memory.evaluate(batch, self.work.longest_context, new)
        if self.users and float(slots(predictor, self.work.isl, self.work.osl)) >= 1.0:
            return ""
        return next(said(memory_remarks(memory.needed_bytes, memory.available_bytes)), "")

    def scaled(self, **changes: float) -> Question:
        """The same with other numbers in its workload."""
        return replace(self, work=replace(self.work, **changes))


@dataclass(frozen=True)
class Setting:
    """What `estimate` takes as names, a question, and the USD of one accelerator hour if anybody knows it.

    model_change: what another model's attention would be; None for the model as it is.
    """

    model: str | PathLike[str]
    gpu: str | PathLike[str]
    deployment: Deployment
    calibration: str | None
    question: Question
    draft: Speculation | None = None
    usd_per_gpu_hour: float | None = None
    model_change: Callable[[Model], Model] | None = None

    def on(self, **changes: Any) -> Setting:
        """The same with another choice in the deployment."""
        return replace(self, deployment=replace(self.deployment, **changes))

    def told(self, **settings: Any) -> Setting:
        """The same with another setting of the engine."""
        return self.on(settings=replace(self.deployment.settings, **settings))

    def resolved(self) -> tuple[Predictor, tuple[str, ...]]:
        """The predictor, and what a user should hear. Raises what `estimate` raises for names and deployments."""
        found = resolve(self.model, self.gpu, self.deployment, self.calibration, self.draft)
        if self.model_change is None:
            return found.predictor, found.warnings
        plan = found.predictor.plan
        other = make_plan(self.model_change(plan.model), self.deployment, plan.system, plan.calibration, plan.engine)
        return found.predictor.on(other), found.warnings


def latent_variant(model: Model) -> Model:
    """The model with multi-head latent attention in place of full softmax attention, its width and heads kept.

    A latent of 4 head dimensions and a rotary part of half a one, as DeepSeek-V2 has (arXiv:2405.04434, section 2.1).

    >>> from rooflinekit.model.memory.cache import model_cache_law
    >>> from rooflinekit.specs import load_model
    >>> gqa = load_model("llama-3-8b").value
    >>> model_cache_law(gqa).bytes_per_token, model_cache_law(latent_variant(gqa)).bytes_per_token  # 32 · 576 · 2 B
    (131072.0, 36864.0)
    """
    return replace(model, name=f"{model.name} with MLA", layers=tuple(_latent(layer) for layer in model.layers))


def _latent(layer: Layer) -> Layer:
    mixer = layer.mixer
    if not isinstance(mixer, Attention) or mixer.window is not None or mixer.chunk is not None:
        return layer
    d = mixer.head_dim
    return replace(layer, mixer=LatentAttention(mixer.heads, None, _RANK * d, d, d // _ROTARY, mixer.v_head_dim))
