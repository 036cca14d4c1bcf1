"""Accelerators that hold a model on one host: the least tensor parallelism, time per token, price of output tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from os import PathLike
from typing import Unpack

from rooflinekit.decision.sensitivity.moves import Setting
from rooflinekit.estimation.estimator import Question, ask, inputs
from rooflinekit.estimation.options import keywords
from rooflinekit.estimation.scenario import Scenario
from rooflinekit.model.types.answer import Tabled, plain_fields
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.errors import RooflinekitError
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.specs import load_accelerator, names
from rooflinekit.specs.calibration.evidence import evidence
from rooflinekit.version import __version__

_HOST = (1, 2, 4, 8)  # accelerators of a host that are tried, where its scale-up domain has so many
_NARROWER = (Dtype.FP8, Dtype.INT4)
HOLDS = ("fits", "narrower", "too small")
"""Kinds of fit: as published; with narrower weights; not in one host."""


@dataclass(frozen=True)
class Fit:
    """One accelerator: whether it holds the model, on how many of them, and what a token takes and costs there.

    weights: the format that it takes, "" as asked; reason: why it is too small. Numbers are None where it is.
    """

    gpu: str
    holds: str  #: one of `HOLDS`
    tp: int | None = None
    weights: str = ""
    tpot_ms: float | None = None
    usd_per_million_output: float | None = None
    evidence: str | None = None
    reason: str = ""

    @property
    def option(self) -> str:
        """Option of the command line for this fit."""
        words = [f"--gpu {self.gpu}", *([f"--tp {self.tp}"] if (self.tp or 1) > 1 else [])]
        return " ".join([*words, *([f"--weights {self.weights}"] if self.weights else [])])


@dataclass(frozen=True)
class FitsOn(Tabled):
    """The accelerators, those that hold the model as asked first, by the price and then the time of a token."""

    version: str
    model: str
    inputs: dict[str, object]
    fits: tuple[Fit, ...]

    def of(self, holds: str) -> list[Fit]:
        """Accelerators of a kind."""
        return [each for each in self.fits if each.holds == holds]

    def to_rows(self) -> list[dict[str, object]]:
        """One flat row each."""
        return [{**plain_fields(each), "option": each.option} for each in self.fits]


@keywords(Scenario)
def fits_on(model: str | PathLike[str], gpus: Iterable[str] | None = None, **scenario: Unpack[Scenario]) -> FitsOn:
    """Find the accelerators that hold a model, on one host.

    Args:
        model: a name or a path, as `estimate` takes it.
        gpus: names of accelerators; all that are known unless told.
        **scenario: the options of `Scenario`; tp is found, and of weights narrower ones are tried.

    Returns:
        `FitsOn`: for each accelerator the least tensor parallelism of 1, 2, 4, 8 at which it fits, with its time per
        token, the price of a million output tokens where its file has one, and what the time rests on.

    Raises:
        InputError: (and its kinds) for anything that makes no sense.

    >>> found = fits_on("llama-3.3-70b", ["h100-sxm", "h200-sxm", "l4"])
    >>> [(each.gpu, each.holds, each.tp, each.weights) for each in found.fits]
    [('h100-sxm', 'fits', 2, ''), ('h200-sxm', 'fits', 2, ''), ('l4', 'fits', 8, '')]
    """
    question = ask(model, "h100-sxm", {"allow_oom": True, **scenario})
    return board(question, gpus)


def board(question: Question, gpus: Iterable[str] | None = None) -> FitsOn:
    """List the accelerators for a question of `estimate`, whatever its accelerator is."""
    setting, plan = Setting.of(question), question.resolved.plan
    found = sorted((_fit(setting, name) for name in (names("accelerator") if gpus is None else gpus)), key=_order)
    return FitsOn(__version__, plan.model.name, inputs(plan, question.work), tuple(found))


def priced() -> list[str]:
    """Names of the accelerators whose files have a price."""
    return [name for name in names("accelerator") if load_accelerator(name).value.price is not None]


def _order(found: Fit) -> tuple[int, float, float, str]:
    most = float("inf")
    return (HOLDS.index(found.holds), found.usd_per_million_output or most, found.tpot_ms or most, found.gpu)


def _settings(setting: Setting, gpu: str) -> Iterator[tuple[Setting, str]]:
    """On one of it, and on as many more as its scale-up links join; then with narrower weights."""
    there, joined = replace(setting, gpu=gpu).on(system=None, pp=1, dp=1, ep=1, cp=1), _joined(gpu)
    for weights in (None, *_NARROWER):
        for tp in (tp for tp in _HOST if tp <= joined):
            here = there.on(tp=tp) if weights is None else there.on(tp=tp, weights=weights)
            yield here, "" if weights is None else weights.value


def _joined(gpu: str) -> int:
    """Accelerators of one host or scale-up domain."""
    return load_accelerator(gpu).value.domain_size


def _fit(setting: Setting, gpu: str) -> Fit:
    reason = ""
    for attempt, weights in _settings(setting, gpu):
        try:  # memory needs no calibration, and reading one takes ten times as long
            misfit = attempt.question.misfit(replace(attempt, calibration="none").resolved()[0])
            if not misfit:
                return _answered(attempt, gpu, weights)
        except RooflinekitError as error:
            misfit = str(error)
        reason = reason or misfit
    return Fit(gpu, HOLDS[2], reason=reason)


def _answered(setting: Setting, gpu: str, weights: str) -> Fit:
    predictor = setting.resolved()[0]
    answer, accelerator = setting.question.ask(predictor), predictor.plan.system.accelerator
    hour = None if accelerator.price is None else float(accelerator.price.usd_per_hour)
    usd = None if hour is None else hour / 3600.0 / answer.tok_s_per_gpu * 1e6
    holds = HOLDS[1] if weights else HOLDS[0]
    return Fit(gpu, holds, setting.deployment.tp, weights, answer.tpot * 1e3, usd, evidence(predictor.plan))
