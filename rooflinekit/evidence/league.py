"""Ours beside other predictors on the same measured figures: who is nearest, by name, and by how much.

Other tools are asked where they are installed (`rooflinekit.evidence.rivals`); each is told the same of a load.
"""

from __future__ import annotations

import json
import math
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

import pandas as pd

from rooflinekit.estimation.options import OwnKeywords
from rooflinekit.evidence import accuracy_serving as tables
from rooflinekit.evidence import rivals
from rooflinekit.evidence.accuracy_serving import ServedGroup, predict_group
from rooflinekit.evidence.benchmark_runs import Given, pose
from rooflinekit.evidence.compare import metrics_of
from rooflinekit.evidence.measured import MeasuredRun, is_benchmark, read_measurements
from rooflinekit.evidence.rivals import RivalQuestion
from rooflinekit.model.step import Plan
from rooflinekit.model.types.answer import Answer, Plain
from rooflinekit.model.types.errors import InputError, RooflinekitError
from rooflinekit.model.types.model import Attention, MixtureOfExperts
from rooflinekit.model.types.speculation import Speculation

OURS, BOUND = "rooflinekit", "datasheet bound"
_NEAR = 1.01  # errors whose ratio is below this are equal: rounding of reported figures
_OUTPUT = {"output_tok_s": "output_tok_s_total"}  # of a run of a client


@dataclass(frozen=True)
class LeagueFigure(Plain):
    """A measured figure with everybody's answer, in its own unit; `name` says of what it is.

    answers: by tool; None where a tool has none, and `reasons` says why.
    """

    name: str
    source: str
    model: str
    gpu: str
    engine: str
    users: float
    metric: str
    measured: float
    answers: Mapping[str, float | None]
    reasons: Mapping[str, str] = field(default_factory=dict)

    def error(self, tool: str) -> float | None:
        """Signed relative error of a tool."""
        answer = self.answers.get(tool)
        return None if answer is None else answer / self.measured - 1.0

    def outcome(self, tool: str) -> str:
        """Comparison with a tool: `win`, `loss`, `draw`; empty where one of both has no answer.

        >>> made = lambda ours: LeagueFigure("", "", "m", "g", "vllm", 1, "tpot_ms", 10.0, {OURS: ours, "other": 12.0})
        >>> [made(ours).outcome("other") for ours in (11.0, 12.0, 15.0)]
        ['win', 'draw', 'loss']
        """
        both = [self.answers.get(name) for name in (OURS, tool)]
        if None in both:
            return ""
        ours, theirs = (abs(math.log(float(each or 0.0) / self.measured)) for each in both)
        if abs(ours - theirs) <= math.log(_NEAR):
            return "draw"
        return "win" if ours < theirs else "loss"


@dataclass(frozen=True)
class Standing(Plain):
    """A tool: how many figures it answers, its errors there and ours, and how often we are nearer.

    error: median over groups (source, model, accelerator, metric) of the median |predicted / measured − 1|; bias: that
    of predicted / measured − 1; ours: our error on the same figures.
    """

    tool: str
    figures: int
    answered: int
    error: float | None
    bias: float | None
    ours: float | None
    wins: int
    losses: int
    draws: int


@dataclass(frozen=True)
class League(Answer):
    """All figures, the tools, and what could not be read or asked."""

    figures: tuple[LeagueFigure, ...]
    standings: tuple[Standing, ...]
    unanswered: Mapping[str, int]
    absent: tuple[str, ...]  #: tools that are not installed

    @property
    def rows(self) -> int:
        """Figures, those that we have no answer to among them."""
        return len(self.figures) + sum(self.unanswered.values())

    @property
    def answered(self) -> int:
        """Number of figures that we answer."""
        return sum(each.answers[OURS] is not None for each in self.figures)


def league(
    files: Sequence[Path], progress: Callable[[str], None] | None = None, calibration: str | None = None, **said: object
) -> League:
    """Score us, and other predictors that are installed, on measured figures.

    Args:
        files: serving tables, results of benchmark clients, and what people paste of them; none: the shipped table.
        progress: called with the name of each piece of work.
        calibration: for our predictions, as everywhere.
        **said: what results of clients leave out, as keywords: model, gpu, engine, tp ...

    Raises:
        RooflinekitError: (one of its kinds) where no figure can be read.
    """
    told, unanswered = progress or (lambda _: None), Counter[str]()
    found: list[tuple[LeagueFigure, RivalQuestion]] = []
    for path in files or [tables.published_table()]:
        told(path.name)
        if is_benchmark(path):
            found += _of_runs(path, Given.of(**said, calibration=calibration), unanswered)
        elif said:
            raise InputError(f"{path.name} is a serving table, whose rows say it; leave --{next(iter(said))} out")
        else:
            found += _of_table(path, calibration, unanswered)
    if not found:
        reason = next(iter(unanswered), "no measured figures")
        raise InputError(f"{', '.join(file.name for file in files)}: {reason}")
    answers: dict[str, list[dict[str, float] | str]] = {}
    absent = []
    for tool in rivals.TOOLS:
        python = rivals.interpreter(tool)
        if python is None:
            absent.append(rivals.TITLES[tool])
            continue
        told(rivals.TITLES[tool])
        answers[rivals.TITLES[tool]] = _ask(python, tool, [question for _, question in found])
    told_by = ({tool: each[place] for tool, each in answers.items()} for place in range(len(found)))
    figures = tuple(_beside(figure, said) for (figure, _), said in zip(found, told_by, strict=True))
    standings = tuple(_standing(tool, figures) for tool in (OURS, BOUND, *answers))
    return League(figures, standings, dict(unanswered), tuple(absent))


def _ask(python: str, tool: str, asked: Sequence[RivalQuestion]) -> list[dict[str, float] | str]:
    """Answers of a tool to each question, asked in the environment that it is installed in; equal ones once."""
    each = list(dict.fromkeys(asked))
    told = json.dumps([question._asdict() for question in each])
    done = subprocess.run([python, rivals.__file__, tool], input=told, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(f"{rivals.TITLES[tool]} could not be asked: {(done.stderr.strip().splitlines() or ['-'])[-1]}")
    by_question = dict(zip(each, json.loads(done.stdout), strict=True))
    return [by_question[question] for question in asked]


def _beside(figure: LeagueFigure, said: Mapping[str, dict[str, float] | str]) -> LeagueFigure:
    """A figure with the answers of other tools, each its own for this metric, or why there is none."""
    answers, reasons = dict(figure.answers), dict[str, str]()
    for tool, found in said.items():
        value = math.nan if isinstance(found, str) else found.get(figure.metric, math.nan)
        answers[tool] = value if math.isfinite(value) and value > 0.0 else None
        if answers[tool] is None:
            reasons[tool] = found if isinstance(found, str) else f"no {figure.metric} of this load"
    return replace(figure, answers=answers, reasons=reasons)


def _standing(tool: str, figures: Sequence[LeagueFigure]) -> Standing:
    known = [each for each in figures if each.answers.get(tool) is not None and each.answers[OURS] is not None]
    said = [each for each in figures if each.answers.get(tool) is not None]
    counts = Counter(each.outcome(tool) for each in known) if tool != OURS else Counter[str]()
    sizes = _median(said, tool, abs), _median(said, tool, float), _median(known, OURS, abs)
    return Standing(tool, len(figures), len(said), *sizes, *(counts[name] for name in ("win", "loss", "draw")))


def _median(figures: Sequence[LeagueFigure], tool: str, of: Callable[[float], float]) -> float | None:
    """Median over groups of the median of what `of` makes of errors."""
    groups: dict[tuple[str, ...], list[float]] = {}
    for each in figures:
        error = each.error(tool)
        if error is not None:
            groups.setdefault((each.source, each.model, each.gpu, each.metric), []).append(of(error))
    return median(map(median, groups.values())) if groups else None


def _of_table(
    path: Path, calibration: str | None, unanswered: Counter[str]
) -> Iterator[tuple[LeagueFigure, RivalQuestion]]:
    for group in tables.served_groups(tables.read_serving_table(path), calibration, unanswered):
        ours, bounds = predict_group(group, ends=False), _bounds(group)
        unanswered.update(ours.reason[ours.reason != ""].tolist())
        rows = group.table[["source_key", "metric", "value"]].itertuples(index=False)
        for place, (question, (source, metric, value)) in enumerate(zip(questions(group), rows, strict=True)):
            if not ours.reason[place]:
                answers = {OURS: float(ours.value[place]), BOUND: bounds[place]}
                yield _figure(str(source) or path.stem, question, str(metric), float(value), answers), question


def _figure(
    source: str, asked: RivalQuestion, metric: str, measured: float, answers: Mapping[str, float | None]
) -> LeagueFigure:
    load = f"{asked.users:g} users" if asked.users else f"{asked.rate:.3g} requests/s" if asked.rate else asked.load
    split = f"{asked.gpus} x " if asked.gpus > 1 else ""
    name = f"{asked.model} on {split}{asked.gpu}, {load}, {asked.isl:.0f}/{asked.osl:.0f}"
    return LeagueFigure(name, source, asked.model, asked.gpu, asked.engine, asked.users, metric, measured, answers)


def _bounds(group: ServedGroup) -> list[float | None]:
    """Each row at the datasheet's rates; None where we have no more than that, or no answer."""
    resolved = group.resolved
    if resolved.plan.calibration is None:
        return [None] * len(group.table)
    bare = resolved.predictor.on(replace(resolved.plan, calibration=None))
    found = predict_group(replace(group, resolved=replace(resolved, predictor=bare)), ends=False)
    return [float(value) if math.isfinite(value) else None for value in found.value]


def questions(group: ServedGroup) -> Iterator[RivalQuestion]:
    """Questions to every tool for each row of a group; lengths are the mean ones of the client's requests."""
    table, plan, shrunk = group.table, group.resolved.plan, mean_share(group)
    facts = _deployment(plan) | {"drafts": group.server.draft_tokens, "accepted": _accepted(group.server.draft_tokens)}
    columns = (table[name] for name in ("load", "isl", "osl", "concurrency", "rate", "requests"))
    for load, isl, osl, users, rate, requests, share in zip(*columns, shrunk, strict=True):
        told = [0.0 if math.isnan(each) else each for each in (users, rate, requests)]
        lengths = {"isl": isl * share, "osl": 1.0 if math.isnan(osl) else osl * share}
        load_of = {"load": load, "users": told[0], "rate": told[1], "requests": round(told[2])}
        yield RivalQuestion(**facts, **lengths, **load_of)


def mean_share(group: ServedGroup) -> pd.Series[float]:
    """Mean length of the requests of each row over the nominal one; a static batch has the nominal one."""
    return (group.table["load"] != "static") * (group.client.mean_length - 1.0) + 1.0


def _accepted(drafts: int) -> float:
    """Tokens of a draft that are accepted, in the mean."""
    speculation = Speculation.read({"draft": "mtp", "draft_tokens": drafts} if drafts else {})
    return speculation.tokens_per_pass - 1.0 if speculation else 0.0


def _deployment(plan: Plan) -> OwnKeywords:
    model, split, chip = plan.model, plan.deployment, plan.system.accelerator
    mixer, ffn = model.layers[-1].mixer, model.layers[-1].ffn
    moe, attends = isinstance(ffn, MixtureOfExperts), isinstance(mixer, Attention)
    return {
        "model": model.name, "gpu": chip.name, "engine": split.engine, "tp": split.tp, "pp": split.pp, "ep": split.ep,
        "dp": split.dp, "gpus": split.gpus, "weights": str(getattr(plan.precision.formats, model.matrices[-1])),
        "kv": str(plan.precision.kv), "experts": getattr(ffn, "experts", 0), "top_k": getattr(ffn, "top_k", 0),
        "hidden": model.hidden, "layers": len(model.layers), "vocab": model.vocab, "ffn": getattr(ffn, "width", 0),
        "heads": getattr(mixer, "heads", 0), "kv_heads": getattr(mixer, "kv_heads", 0),
        "llama": int(attends and not moe and bool(getattr(ffn, "gated", False)) and model.layers[-1].norms == 2),
    }  # fmt: skip


def _of_runs(path: Path, given: Given, unanswered: Counter[str]) -> Iterator[tuple[LeagueFigure, RivalQuestion]]:
    for run in read_measurements(path):
        if not isinstance(run, MeasuredRun):
            continue
        try:
            posed = pose(run, given)
            expected = posed.predict()
        except RooflinekitError as error:
            unanswered[str(error)] += 1
            continue
        plan, load = posed.resolved.plan, posed.load
        users = float(load.users or 0) if posed.work is None else float(posed.work.batch)
        kind = "static" if posed.work is not None else "poisson" if load.users is None else "concurrency"
        asked: OwnKeywords = {"load": kind, "isl": load.isl.mean, "osl": load.osl.mean, "users": users}
        asked |= {"rate": load.rate or 0.0, "requests": load.requests or 0}
        question = RivalQuestion(**asked, **_deployment(plan))
        for each in metrics_of(posed.run, expected):
            answers = {OURS: each.predicted, BOUND: each.bound}
            metric = _OUTPUT.get(each.metric, each.metric)
            yield _figure(run.tool, question, metric, each.measured, answers), question
