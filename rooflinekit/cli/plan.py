"""`rooflinekit plan`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rooflinekit.cli.command import command, refuse
from rooflinekit.cli.failures import INTERRUPTED
from rooflinekit.cli.output import CommandOutput, counting
from rooflinekit.estimation import scenario as tables
from rooflinekit.estimation.options import OwnKeywords, Value, options_of, part_of
from rooflinekit.model.types.errors import InputError

if TYPE_CHECKING:
    from rooflinekit.decision.planning.classes import ClassPlan
    from rooflinekit.decision.planning.inverse import BreakEven, Solution
    from rooflinekit.decision.planning.plan import PlanAnswer
    from rooflinekit.decision.planning.rollout import RolloutPlan

_LISTS = ("engine", "weights", "kv", "tp", "pp", "ep", "dp", "token_budget", "max_num_seqs")
_STATIC = ("batch",)
_SEARCHED = ("aggregated_only", "one_kind", "seed", "by")  # how fleets are searched: one needs no search


@command(tables.Accelerators, tables.PlanOptions, tables.InverseOptions, tables.WrittenOptions, leave=("context",))
def plan(
    model: str,
    *,
    to: CommandOutput,
    gpu: Sequence[str] = ("h100-sxm",),
    slo: Sequence[str] = (),
    subject_to: str | None = None,
    ttft: float | None = None,
    tpot: float | None = None,
    max: str | None = None,
    find: str | None = None,
    details: bool = False,
    **asked: Value,
) -> int:
    """From traffic, objectives and prices to the cheapest deployments; or the largest load of one deployment."""
    to.check()
    if max is None and find is None:
        refuse(part_of(asked, _STATIC) | ({"subject_to": subject_to} if subject_to else {}), "needs --max or --find")
    static = max in ("batch", "context") or find == "bandwidth"
    if "clean" in asked and "trace" not in asked:
        raise InputError("--clean is about the rows of a trace; add --trace, or leave it out")
    objectives = _objectives(slo, subject_to, {"ttft": ttft, "tpot": tpot}, static)
    answer = _answered(model, list(gpu), objectives, (max, find), asked)
    if details and (max or find or "classes" in asked or asked.get("budget")):
        raise InputError("-v shows how a fleet was found; leave it out with --max, --find and --classes")
    to.show(answer, **({"details": True} if details else {}))
    return INTERRUPTED if getattr(answer, "interrupted", False) else 3 if getattr(answer, "unmet", ()) else 0


def _answered(
    model: str, gpus: list[str], slo: str | None, inverse: tuple[str | None, str | None], asked: OwnKeywords
) -> PlanAnswer | ClassPlan | Solution | BreakEven | RolloutPlan:
    """Ask the question that the options make."""
    from rooflinekit.decision.planning.inverse import break_even_prices, fewest_gpus
    from rooflinekit.decision.planning.plan import plan as run

    largest, least = inverse
    if (answers := asked.pop("rollout", None)) is not None:
        if largest or least or slo:
            raise InputError("--rollout asks how long a training step takes; leave --max, --find and objectives out")
        return _rollout(answers, model, gpus, asked)
    refuse(part_of(asked, options_of(tables.Rollout)), "goes with --rollout")
    if (classes := asked.pop("classes", None)) is not None:
        from rooflinekit.decision.planning.classes import plan_classes

        if largest or least or "budget" in asked:
            raise InputError("--classes asks for fleets; leave --max, --find and --budget out")
        with counting("plan") as progress:
            return plan_classes(classes, model, gpus, slo, progress=progress, **asked)
    budget = asked.pop("budget", None)
    if budget is not None:
        from rooflinekit.decision.planning.inverse import affordable

        if largest != "rate":
            raise InputError("--budget needs --max rate: the largest load that it pays for")
        with counting("plan") as progress:
            return affordable(model, gpus, slo, budget, progress=progress, **asked)
    if largest is not None and least is not None:
        raise InputError("--max and --find exclude each other")
    if largest is not None or least == "bandwidth":
        return _one_deployment(model, gpus, largest, slo, asked)
    if least is not None:
        refuse(part_of(asked, _STATIC), f"has no part in --find {least}")
    if least not in (None, "gpus"):
        return break_even_prices(model, gpus, slo, **asked)
    with counting("plan") as progress:
        return (fewest_gpus if least else run)(model, gpus, slo, progress=progress, **asked)


def _rollout(answers: int, model: str, gpus: list[str], asked: OwnKeywords) -> RolloutPlan:
    """Training steps on fleets of one deployment."""
    from rooflinekit.decision.planning.rollout import plan_rollout

    single = _single("--rollout asks", gpus, asked)
    refuse(
        {key: value for key, value in asked.items() if key not in (*options_of(tables.RolloutCase), *_LISTS)},
        "has no part in --rollout",
    )
    return plan_rollout(answers, model, gpus[0], **asked | single)


def _single(asking: str, gpus: list[str], asked: OwnKeywords) -> OwnKeywords:
    """The one element of each list, of a question about one deployment."""
    for key, found in {"--gpu": gpus, **part_of(asked, _LISTS)}.items():
        if len(found) != 1:
            raise InputError(f"{asking} about one deployment; give {key} once")
    return {key: found[0] for key, found in part_of(asked, _LISTS).items()}


def _one_deployment(model: str, gpus: list[str], largest: str | None, slo: str | None, asked: OwnKeywords) -> Solution:
    """Questions about one deployment: every list has one element."""
    from rooflinekit.decision.planning import inverse
    from rooflinekit.decision.planning.inverse import required_bandwidth

    single = {"engine": "vllm"} | _single("--max and --find bandwidth ask", gpus, asked)  # it is named, given or not
    loaded = largest in ("rate", "users", "concurrency")
    taken = [*(options_of(tables.LoadCase) | options_of(tables.StaticCase)), *(["confidence"] if loaded else ())]
    fleets = {key: value for key, value in asked.items() if key not in (*taken, *_LISTS, *_SEARCHED)}
    refuse(fleets, "has no part in --max and --find bandwidth")
    given = part_of(asked, [key for key in taken if key not in single]) | single
    for key in ("isl", "osl"):
        if not loaded and (isinstance(given.get(key), str) or f"{key}_cv" in given):
            raise InputError(f"{key} is one length here, such as 1024: no load is played whose lengths vary")
    if largest is None:
        return required_bandwidth(model, gpus[0], slo or "", **given)
    return inverse.largest("users" if largest == "concurrency" else largest, model, gpus[0], slo or "", **given)


def _objectives(
    slo: Sequence[str], subject_to: str | None, limits: dict[str, float | None], static: bool
) -> str | None:
    """Said in one of three ways; `limits` in ms are 95th percentiles, or of a static batch the mean."""
    statistic = "" if static else "p95 "
    listed = [f"{statistic}{metric}<{limit:.12g}ms" for metric, limit in limits.items() if limit is not None]
    said = [
        each for each in (", ".join(slo) if slo else None, subject_to, ", ".join(listed) or None) if each is not None
    ]
    if len(said) > 1:
        raise InputError("--slo, --subject-to, and --ttft with --tpot say the same thing; give one")
    return said[0] if said else None
