"""`rooflinekit plan`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rooflinekit.cli.options import Calibration, Count, MemoryFraction
from rooflinekit.cli.output import Format, emit, to_csv, to_json
from rooflinekit.specs.writing import check_target

if TYPE_CHECKING:
    from rooflinekit.decision.planning.inverse import BreakEven, Solution
    from rooflinekit.decision.planning.plan import PlanAnswer

__all__ = ["plan"]

_DEGREES = ("tp", "pp", "ep", "dp")
_INVERSE = ("batch", "cached")
_OF_FLEETS = (
    "rate", "users", "trace", "peak", "clean", "max_gpus", "prices", "limits", "headroom", "redundancy", "load_gbps",
)  # fmt: skip


def plan(
    model: Annotated[str, typer.Argument(help="Name, Hugging Face id, or path to a config.json or its folder.")],
    gpu: Annotated[str, typer.Option(help="Accelerators to choose from, comma between them.")] = "h100-sxm",
    slo: Annotated[str | None, typer.Option(help="Objectives, such as 'p95 ttft<1s, p95 tpot<40ms'.")] = None,
    ttft: Annotated[
        float | None, typer.Option(help="In place of --slo: 95th percentile of TTFT at most, in ms.")
    ] = None,
    tpot: Annotated[
        float | None, typer.Option(help="In place of --slo: 95th percentile of TPOT at most, in ms.")
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Requests a second in the mean.")] = None,
    users: Annotated[
        int | None,
        Count("Users who each wait for their answer, in place of a rate.", "--users", "--concurrency"),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="A trace of requests: rate, lengths and bursts come from it.")
    ] = None,
    clean: Annotated[bool, typer.Option("--clean", help="Drop rows of a trace that cannot be trusted.")] = False,
    peak: Annotated[float | None, typer.Option(help="The busiest hour over the mean of the day.")] = None,
    isl: Annotated[
        str | None, typer.Option(help="Prompt length: 1024, uniform:100-200, lognormal:mean=900,cv=1.")
    ] = None,
    osl: Annotated[str | None, typer.Option(help="Output length, likewise.")] = None,
    cv: Annotated[float | None, typer.Option(help="Variation of the gaps between arrivals: 1 is Poisson.")] = None,
    engine: Annotated[str, typer.Option(help="Engines to choose from, comma between them.")] = "vllm",
    weights: Annotated[
        str | None, typer.Option(help="Weight formats to choose from (default: the checkpoint's).")
    ] = None,
    kv: Annotated[str | None, typer.Option(help="KV cache formats to choose from (default: as activations).")] = None,
    activations: Annotated[str | None, typer.Option(help="Activation format (default: the checkpoint's).")] = None,
    tp: Annotated[str | None, typer.Option(help="Tensor parallel degrees to choose from (default: all).")] = None,
    pp: Annotated[str | None, typer.Option(help="Pipeline stages to choose from (default: 1, more if needed).")] = None,
    ep: Annotated[str | None, typer.Option(help="Expert parallel degrees to choose from (default: all).")] = None,
    dp: Annotated[str | None, typer.Option(help="Attention replicas to choose from (default: all).")] = None,
    max_gpus: Annotated[int | None, Count("Accelerators of one replica at most (default: 8, with experts 16).")] = None,
    token_budget: Annotated[str | None, typer.Option(help="Token budgets of a step to choose from.")] = None,
    max_num_seqs: Annotated[str | None, typer.Option(help="Limits of running sequences to choose from.")] = None,
    memory_fraction: MemoryFraction = None,
    aggregated_only: Annotated[
        bool, typer.Option("--aggregated-only", help="No pools for prefill and decode.")
    ] = False,
    one_kind: Annotated[bool, typer.Option("--one-kind", help="No fleets of two kinds of accelerator.")] = False,
    price: Annotated[list[str] | None, typer.Option(help="USD for one GPU-hour, as h100-sxm=2.10; repeat.")] = None,
    limit: Annotated[list[str] | None, typer.Option(help="How many there are, as h100-sxm=16; repeat.")] = None,
    headroom: Annotated[float, typer.Option(help="Share of what a replica bears that is kept free.")] = 0.0,
    redundancy: Annotated[int, Count("Replicas that may fail: N+k.")] = 0,
    pue: Annotated[float, typer.Option(help="Power of the building over power of the machines.")] = 1.0,
    load_gbps: Annotated[float | None, typer.Option(help="Rate at which a replica loads weights, in GB/s.")] = None,
    confirm: Annotated[int, Count("Candidates that are confirmed by simulation.")] = 3,
    seed: Annotated[int, Count("Seed of the simulations.")] = 0,
    max: Annotated[str | None, typer.Option(help="Ask instead for the largest batch, context, rate or users.")] = None,
    find: Annotated[str | None, typer.Option(help="Ask instead for the least: gpus, bandwidth or price.")] = None,
    subject_to: Annotated[
        str | None, typer.Option(help="Objectives of --max and --find: 'tpot<30ms,ttft<500ms'.")
    ] = None,
    batch: Annotated[int | None, Count("Sequences of a static batch, for --max context and --find bandwidth.")] = None,
    cached: Annotated[int | None, Count("Prompt tokens already in the cache, for a static batch.")] = None,
    calibration: Calibration = None,
    format: Annotated[Format, typer.Option(help="Output format.")] = Format.table,
    out: Annotated[Path | None, typer.Option(help="Write to this file instead.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """From traffic, objectives and prices to the cheapest deployments; or the largest load of one deployment."""
    if out is not None:
        check_target(out, force)
    degrees = {"tp": _counts(tp, "tp"), "pp": _counts(pp, "pp"), "ep": _counts(ep, "ep"), "dp": _counts(dp, "dp")}
    asked: dict[str, Any] = {
        "rate": rate, "users": users, "trace": trace, "clean": clean or None, "peak": peak, "isl": isl, "osl": osl,
        "cv": cv, "engines": _names(engine), "weights": _names(weights), "kv": _names(kv), **degrees,
        "activations": activations, "max_gpus": max_gpus, "token_budgets": _counts(token_budget, "token_budget"),
        "max_num_seqs": _counts(max_num_seqs, "max_num_seqs"), "memory_fraction": memory_fraction,
        "disaggregated": not aggregated_only, "mixed": not one_kind, "prices": _priced(price or []),
        "limits": _limited(limit or []), "headroom": headroom, "redundancy": redundancy, "pue": pue,
        "load_gbps": load_gbps, "confirm": confirm, "seed": seed, "calibration": calibration,
    }  # fmt: skip
    static = {"batch": batch, "cached": cached}
    if max is None and find is None:
        _refuse(static | {"subject_to": subject_to}, "needs --max or --find")
    objectives = _objectives(
        slo, subject_to, {"ttft": ttft, "tpot": tpot}, max in ("batch", "context") or find == "bandwidth"
    )
    emit(_render(_answered(model, _names(gpu) or [], objectives, (max, find), asked | static), format), out, force)


def _answered(
    model: str, gpus: list[str], slo: str | None, inverse: tuple[str | None, str | None], asked: dict[str, Any]
) -> PlanAnswer | Solution | BreakEven:
    """Ask the question that the options make."""
    from rooflinekit.decision.planning.inverse import break_even_prices, fewest_gpus
    from rooflinekit.decision.planning.plan import plan as run

    largest, least = inverse
    if largest is not None and least is not None:
        raise typer.BadParameter("--max and --find exclude each other")
    if largest is not None or least == "bandwidth":
        return _one_deployment(model, gpus, largest, slo, asked)
    if least is not None:
        _refuse({key: asked[key] for key in _INVERSE}, f"has no part in --find {least}")
    fleet = {key: value for key, value in asked.items() if key not in _INVERSE}
    chosen = {} if slo is None else {"slo": slo}
    match least:
        case None:
            return run(model, gpus, **chosen, **fleet)
        case "gpus":
            return fewest_gpus(model, gpus, **chosen, **fleet)
        case "price":
            return break_even_prices(model, gpus, **chosen, **fleet)
        case _:
            from rooflinekit.model.types.errors import UnknownNameError

            raise UnknownNameError("--find", least, ("gpus", "bandwidth", "price"))


def _one_deployment(
    model: str, gpus: list[str], largest: str | None, slo: str | None, asked: dict[str, Any]
) -> Solution:
    """Questions about one deployment: every list has one element."""
    from rooflinekit.decision.planning import inverse
    from rooflinekit.decision.planning.inverse import required_bandwidth
    from rooflinekit.model.types.errors import InputError

    names = {"engines": "engine", "token_budgets": "token_budget"}
    single: dict[str, Any] = {}
    for key in ("engines", "weights", "kv", *_DEGREES, "token_budgets", "max_num_seqs"):
        if asked[key] is not None and len(asked[key]) != 1:
            raise InputError(f"--max and --find bandwidth ask about one deployment; give {names.get(key, key)} once")
        single[names.get(key, key)] = asked[key] and asked[key][0]
    if len(gpus) != 1:
        raise InputError("--max and --find bandwidth ask about one deployment; give one --gpu")
    ours = ("isl", "osl", "cv", "batch", "cached", "activations", "memory_fraction", "calibration")
    given = {key: asked[key] for key in ours} | single
    _refuse({key: asked[key] or None for key in _OF_FLEETS}, "has no part in --max and --find bandwidth")
    given = {key: value for key, value in given.items() if value is not None}
    if largest not in ("rate", "users"):
        given |= {key: _whole(given[key], key) for key in ("isl", "osl") if key in given}
    if largest is None:
        return required_bandwidth(model, gpus[0], slo or "", **given)
    return inverse.largest(largest, model, gpus[0], slo or "", **given)


def _objectives(slo: str | None, subject_to: str | None, limits: dict[str, float | None], static: bool) -> str | None:
    """Said in one of three ways; `limits` in ms are 95th percentiles, or of a static batch the mean."""
    from rooflinekit.model.types.errors import InputError

    statistic = "" if static else "p95 "
    listed = [f"{statistic}{metric}<{limit:.12g}ms" for metric, limit in limits.items() if limit is not None]
    said = [each for each in (slo, subject_to, ", ".join(listed) or None) if each is not None]
    if len(said) > 1:
        raise InputError("--slo, --subject-to, and --ttft with --tpot say the same thing; give one")
    return said[0] if said else None


def _refuse(given: dict[str, Any], why: str) -> None:
    from rooflinekit.model.types.errors import InputError

    for key, value in given.items():
        if value is not None:
            raise InputError(
                f"--{key.removesuffix('s') if key in ('prices', 'limits') else key.replace('_', '-')} {why}"
            )


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def _counts(text: str | None, key: str) -> list[int] | None:
    parts = _names(text)
    return None if parts is None else [_whole(part, key) for part in parts]


def _whole(text: str, key: str) -> int:
    from rooflinekit.model.types.errors import InputError

    try:
        return int(text)
    except ValueError:
        raise InputError(f"{key} must be whole numbers here, such as 2,4, not {text!r}") from None


def _pairs(texts: list[str], what: str) -> dict[str, float]:
    """`name=number`, each name once."""
    from rooflinekit.model.types.errors import InputError

    found: dict[str, float] = {}
    for text in texts:
        name, sign, value = (part.strip() for part in text.rpartition("="))
        try:
            number = float(value)
        except ValueError:
            sign, number = "", 0.0
        if not sign or not name or name in found:
            raise InputError(f"{what} {text!r} is not a new name=number; write it like h100-sxm=16")
        found[name] = number
    return found


def _priced(texts: list[str]) -> dict[str, float]:
    return _pairs(texts, "price")


def _limited(texts: list[str]) -> dict[str, int | float]:
    return {name: int(most) if most == int(most) else most for name, most in _pairs(texts, "limit").items()}


def _render(answer: PlanAnswer | Solution | BreakEven, format: Format) -> str:
    from rooflinekit.decision.planning.inverse import Solution
    from rooflinekit.decision.planning.plan import PlanAnswer
    from rooflinekit.report import plan as report

    if format is Format.json:
        return to_json(answer.to_dict())
    if isinstance(answer, PlanAnswer):
        match format:
            case Format.csv:
                return to_csv(report.plan_rows(answer))
            case Format.md:
                return report.plan_markdown(answer)
            case _:
                return report.plan_text(answer)
    if isinstance(answer, Solution):
        if format is Format.csv:
            return to_csv([report.solution_row(answer)])
        return report.solution_text(answer)
    return to_csv(answer.rows) if format is Format.csv else report.break_even_text(answer)
