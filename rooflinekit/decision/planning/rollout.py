"""Rollouts of reinforcement learning: how long a training step takes, and how many GPU-hours.

A step needs `answers` answers. They are sent at once and played as a burst, and training waits for the last (barrier):

    step = generation + training + weights                on the same accelerators, one after the other
    step = max(generation, training) + weights            apart, training one step behind

With partial rollouts so many answers stay in flight: one begins whenever one ends, and those that are not done go on
with the next weights. Then generation = answers / (answers a second of that closed loop), and after each exchange of
weights the caches of those in flight are computed anew.

    training = _PASSES · Σ forward FLOPs(prompt + answer) / (accelerators · peak · MFU)
    weights = bytes of one replica / rate                 each replica gets all of them
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np

from rooflinekit.estimation.estimator import Resolved, read_deployment, resolve
from rooflinekit.estimation.options import part_of, read
from rooflinekit.estimation.scenario import DEPLOYMENT_KEYS, RolloutCase
from rooflinekit.load.answer import Load, LoadPlay, play_load
from rooflinekit.load.lengths import lengths_of
from rooflinekit.load.scene import Scheduler
from rooflinekit.model.step import Plan
from rooflinekit.model.types.answer import Plain, Tabled
from rooflinekit.model.types.batch import Batch, whole_number
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.errors import InputError
from rooflinekit.model.types.units import GB, format_time
from rooflinekit.version import __version__

TRAIN_MFU = {"dense": 0.25, "experts": 0.025}
"""Share of the 16-bit peak that training gets: geometric means of the ten steps of NeMo RL 0.4 on H100 that are
published (docs/about/performance-summary.md, 06beed91), less the played generation where both take turns. They are 16
to 33 % of dense models, and 1 to 6 % of those with experts; 10 % in release 0.6."""
MFU_NOTE = (
    "training gets 25 % of the 16-bit peak, with experts 2.5 % (assumption: the mean of NeMo RL's published steps, "
    "which get 16 to 33 %, and 1 to 10 %); --train-mfu says what yours gets"
)
SYNC_GBPS = 16.6
"""Geometric mean of 61.1 GB in 4.38 s and 470 GB in 23.7 s: Qwen3-30B-A3B and 235B-A22B from 16 and 64 accelerators to
as many others, verl's checkpoint engine on H20 (recipe/fully_async_policy/README.md, 19997f9e)."""
SYNC_NOTE = (
    "each replica gets its weights at 16.6 GB/s (verl's checkpoint engine, which sends all to each accelerator); where "
    "each accelerator gets its share alone it is faster: --load-gbps"
)
_PASSES = 5.0  # forward, backward (twice a forward), log-probabilities of the policy and of the reference
_TAIL = 0.9  # share of the answers after which the rest are stragglers
_DOUBLINGS = 8  # fleets that are tried unless told


@dataclass(frozen=True)
class RolloutStep(Plain):
    """A training step on one fleet.

    train_gpus: those that do nothing else, 0 where the same do both; generation_s: until training has its answers,
    tail_s of it for the last tenth of them; recompute_s of it: caches of those in flight, after an exchange of weights;
    training_s, sync_s: as the module says; tok_s_per_gpu: tokens of prompts and answers over the step and all
    accelerators.
    """

    replicas: int
    rollout_gpus: int
    train_gpus: int
    step_s: float
    generation_s: float
    tail_s: float
    recompute_s: float
    training_s: float
    sync_s: float
    gpu_hours: float
    tok_s_per_gpu: float

    derived = ("gpus",)

    @property
    def gpus(self) -> int:
        """All accelerators."""
        return self.rollout_gpus + self.train_gpus


@dataclass(frozen=True)
class RolloutPlan(Tabled):
    """Training steps on fleets of several sizes; `best` takes the fewest GPU-hours.

    tokens: of prompts and answers of a step; weight_bytes: what each replica gets after it; train_flops: of a step.
    """

    version: str
    model: str
    gpu: str
    engine: str
    question: str
    answers: int
    tokens: float
    weight_bytes: float
    train_flops: float
    best: RolloutStep
    steps: tuple[RolloutStep, ...]
    notes: tuple[str, ...]
    scenario: dict[str, Any]

    def to_rows(self) -> list[dict[str, Any]]:
        """A row for each fleet."""
        return [each.to_dict() for each in self.steps]


def forward_flops(plan: Plan, lengths: Sequence[float]) -> float:
    """FLOPs of one pass over sequences of these lengths, logits of every token included."""
    tokens = np.asarray(lengths, float)
    timed = plan.time(Batch.prefill(1.0, tokens)).kernels
    own = sum(np.broadcast_to(each.kernel.count * each.kernel.flops, tokens.shape).sum() for each in timed)
    logits = 2.0 * plan.model.vocab * plan.model.hidden * (tokens - 1.0).sum()  # serving has those of the last alone
    return float(own) * plan.deployment.tp + float(logits)  # stages are added up, and ranks of dp have their own


@dataclass(frozen=True)
class _Rollout:
    """Facts that all fleets of a question share."""

    resolved: Resolved
    asked: Load
    answers: int
    in_flight: int | None
    train_gpus: int
    flops: float  #: of training on the answers of a step
    mfu: float
    sync: float  #: [s]

    @property
    def tokens(self) -> float:
        """Mean tokens of a prompt with its answer."""
        drawn = self.asked.drawn
        return (sum(drawn.isl) + sum(drawn.osl)) / len(drawn.isl)

    def step(self, replicas: int) -> tuple[RolloutStep, LoadPlay]:
        """A step on so many replicas, and what was played."""
        plan, apart = self.resolved.plan, self.train_gpus
        play = play_load(self.resolved.predictor, self.asked, Scheduler(replicas=replicas, seed=self.asked.seed))
        until, tail = self._generation(play)
        again, gpus = self._recomputed(play, replicas), replicas * plan.deployment.gpus
        generation, whole = until + again, gpus + apart
        peak = plan.system.accelerator.peak(Dtype.BF16)
        training = self.flops / ((apart or gpus) * peak * self.mfu)
        step = (max(generation, training) if apart else generation + training) + self.sync
        return RolloutStep(
            replicas,
            gpus,
            apart,
            step,
            generation,
            tail,
            again,
            training,
            self.sync,
            step * whole / 3600.0,
            self.answers * self.tokens / step / whole,
        ), play

    def _generation(self, play: LoadPlay) -> tuple[float, float]:
        """Seconds until the answers are there, and those for the last tenth; with answers in flight no one waits."""
        ends = np.sort(play.played.end)
        if self.in_flight is None:
            return float(ends[-1]), float(ends[-1] - ends[int(_TAIL * (len(ends) - 1))])
        first, last = self.in_flight, len(ends) - self.in_flight  # before and beyond, fewer are in flight
        return self.answers * float(ends[last - 1] - ends[first - 1]) / (last - first), 0.0

    def _recomputed(self, play: LoadPlay, replicas: int) -> float:
        """Seconds in which a replica computes the caches of what it has in flight once more."""
        if self.in_flight is None:
            return 0.0
        osl = play.played.osl.astype(float)
        made = float((osl * osl).mean() / osl.mean()) / 2.0  # of an answer that is met under way
        plan, held = self.resolved.plan, self.in_flight / replicas
        tokens, budget = self.asked.isl.mean + made, float(play.scene.limits.token_budget)
        each = max(budget / tokens, 1.0)  # sequences of a step
        return held / each * float(plan.time(Batch.prefill(each / plan.deployment.dp, tokens)).expected)


def plan_rollout(
    answers: int, model: str | PathLike[str], gpu: str | PathLike[str] = "h100-sxm", **scenario: object
) -> RolloutPlan:
    """Time and GPU-hours of a training step with so many answers.

    Args:
        answers: of a step, as prompts times samples.
        model: a model's name or path.
        gpu: an accelerator's name or path.
        **scenario: isl, osl (lengths or laws of them); samples of a prompt; in_flight, rollout_gpus, train_gpus,
            train_mfu, load_gbps, seed; the deployment of a replica as `estimate` takes it; calibration.

    Raises:
        InputError: (and its kinds) for anything that makes no sense; DoesNotFitError if not one request fits.

    >>> made = plan_rollout(64, "llama-3-8b", isl=100, osl=200, rollout_gpus=[2], calibration="none", load_gbps=16)
    >>> made.best.rollout_gpus, round(made.best.sync_s, 2)
    (2, 1.0)
    """
    answers = whole_number(answers, "answers")
    given = read(RolloutCase, scenario)
    resolved = resolve(model, gpu, read_deployment(part_of(given, DEPLOYMENT_KEYS)), given.get("calibration"))
    plan, memory = resolved.plan, resolved.predictor.memory
    isl, osl = lengths_of(given)
    in_flight, samples, gpus = given.get("in_flight"), given.get("samples", 1), plan.deployment.gpus
    weights = float(memory.evaluate(1.0, isl.mean + osl.mean, isl.mean).weight_bytes) * gpus
    users = in_flight or answers
    count = answers if in_flight is None else 3 * users + answers
    asked = Load(
        isl,
        osl,
        users=users,
        requests=count,
        warmup=0,
        seed=given.get("seed", 0),
        prompts=-(-count // samples) if samples > 1 else 0,
    )
    kind = "experts" if "experts" in plan.model.matrices else "dense"
    mfu, rate = given.get("train_mfu", TRAIN_MFU[kind]), given.get("load_gbps", SYNC_GBPS) * GB
    lengths = [sum(pair) for pair in zip(asked.drawn.isl, asked.drawn.osl, strict=True)]
    flops = _PASSES * forward_flops(plan, lengths) * answers / len(lengths)
    question = _Rollout(resolved, asked, answers, in_flight, given.get("train_gpus", 0), flops, mfu, weights / rate)
    plays = [question.step(replicas) for replicas in _replicas(given.get("rollout_gpus"), gpus, users)]
    best, play = min(plays, key=lambda each: each[0].gpu_hours)
    low, high = play.reaches["tpot"].factors() if plan.calibration else (1.0, 1.0)
    notes = list(resolved.warnings)
    if plan.calibration:
        ends = " to ".join(format_time(best.generation_s * each) for each in (low, high))
        notes.append(f"on {best.rollout_gpus} GPU{'s' * (best.rollout_gpus > 1)} generation takes {ends} (90 %)")
    if "train_mfu" not in given:
        notes.append(MFU_NOTE)
    if "load_gbps" not in given:
        notes.append(SYNC_NOTE)
    notes.append("whether weights, gradients and optimizer of training fit is not looked at")
    if refused := int(play.played.refused.sum()):
        notes.append(f"{refused} answers are refused: longer than the engine takes")
    waits = "the last of them" if in_flight is None else f"so many of {in_flight:,} in flight"
    where = "one step behind, on accelerators of its own" if "train_gpus" in given else "in turn on the same"
    return RolloutPlan(
        __version__,
        plan.model.name,
        plan.system.accelerator.name,
        plan.deployment.engine,
        f"{answers:,} answers a step; training waits for {waits}, {where}",
        answers,
        answers * question.tokens,
        weights,
        flops,
        best,
        tuple(step for step, _ in plays),
        tuple(notes),
        {"model": str(model), "gpu": str(gpu), **given},
    )


def _replicas(told: int | Sequence[int] | None, gpus: int, most: int) -> list[int]:
    """Replicas of each fleet: those of the accelerators that were told, else powers of two."""
    if told is None:
        return [2**power for power in range(_DOUBLINGS) if 2**power <= most]
    told = [told] if isinstance(told, int) else told
    for each in told:
        if each % gpus:
            raise InputError(f"rollout_gpus {each}: a replica takes {gpus}; give a multiple of it")
    return [each // gpus for each in told]
