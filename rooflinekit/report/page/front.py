"""The front door of reports: names and keywords, a plan or a table in, one HTML file out."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooflinekit.estimation.options import OwnKeywords
from rooflinekit.model.types.errors import InputError, RooflinekitError
from rooflinekit.report.document import headed
from rooflinekit.report.look import hues_of
from rooflinekit.report.page import deployment
from rooflinekit.report.page.offers import make_offers
from rooflinekit.report.page.render import LIMIT_BYTES, Page, card, figure, heading, paragraphs, render
from rooflinekit.specs.writing import check_target, write_whole
from rooflinekit.version import __version__

if TYPE_CHECKING:
    from rooflinekit.decision.economics.price import HourlyPrice
    from rooflinekit.simulation.outcome import Outcome


@dataclass(frozen=True)
class Report:
    """Written page."""

    path: Path
    title: str
    bytes: int


def write_report(
    out: str | PathLike[str],
    model: str | PathLike[str] | None = None,
    gpu: str | PathLike[str] = "h100-sxm",
    **more: Any,
) -> Report:
    """Write a report as one self-contained HTML file.

    Args:
        out: the file to write; its folder must exist.
        model: a model's name or path, for a report on one deployment.
        gpu: an accelerator's name or path.
        **more: the scenario as `estimate` takes it, and against (an accelerator, or keywords that differ, as a dict or
            as "gpu=b200-sxm,tp=4"); simulation (what `simulate` returned); models, gpus, engines (names that the page
            offers besides); price (USD of an accelerator and hour, by name, or a CSV as `plan` takes it; else catalogue
            quotes); walk (False leaves the shapes out). Or in place of a model: plan (what `plan` returned,
            its JSON as a dict, or the path of a file with it), or sweep (what `sweep` returned, or the path of a CSV or
            Parquet file). force: overwrite a file.

    Returns:
        A `Report`: path, title and size in bytes.

    Raises:
        InputError: (and its kinds) for anything that makes no sense, and a file that exists.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     made = write_report(f"{folder}/report.html", "llama-3-8b", batch=8, models=(), gpus=(), walk=False)
    >>> made.title
    'llama-3-8b on h100-sxm, vllm'
    """
    path, force = Path(out), bool(more.pop("force", False))
    check_target(path, force)
    page, content = _made(model, gpu, more)
    if len(content) > LIMIT_BYTES:
        told = f"{len(content) / 1e6:.1f} MB, more than {LIMIT_BYTES / 1e6}"
        raise InputError(f"the page would have {told}; offer fewer models and GPUs")
    return Report(write_whole(path, content, force), page.title, len(content))


def _made(model: str | PathLike[str] | None, gpu: str | PathLike[str], more: dict[str, object]) -> tuple[Page, bytes]:
    """A page and its file."""
    collecting = gc.isenabled()
    gc.disable()  # what a page is made of stays until it is written: there is nothing to collect
    try:
        page = _page(model, gpu, dict(more))
        return page, render(page).encode()
    finally:
        if collecting:
            if not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()  # now among the oldest: collected when memory fills, and not at once
            gc.enable()


def _page(model: str | PathLike[str] | None, gpu: str | PathLike[str], more: dict[str, Any]) -> Page:
    subjects = {"model": model, "plan": more.pop("plan", None), "sweep": more.pop("sweep", None)}
    given = [name for name, value in subjects.items() if value is not None]
    if len(given) != 1:
        raise InputError(f"a report is on one of a model, a plan or a sweep, not on {' and '.join(given) or 'nothing'}")
    offered = {name: more.pop(name, None) for name in ("models", "gpus", "engines")}
    if given == ["model"]:
        own = {key: more.pop(key, None) for key in ("against", "simulation", "price")}
        walk = more.pop("walk", True)
        scenario = {key: value for key, value in more.items() if value is not None}
        return _deployment_page(deployment.PageDeployment.of(str(model), str(gpu), scenario), offered, walk=walk, **own)
    for key in more:
        raise InputError(f"{key} belongs to a report on a model; a {given[0]} brings its own deployments")
    if given == ["plan"]:
        return _plan_page(subjects["plan"], offered)
    return _table_page(subjects["sweep"])


def _deployment_page(  # noqa: PLR0913, PLR0917 - what a page is told besides
    deployed: deployment.PageDeployment,
    offered: OwnKeywords,
    against: object,
    simulation: Outcome | None,
    price: object,
    walk: bool,
) -> Page:
    other, changes = None, read_against(against)
    if changes is not None:
        changed = {"model": deployed.asked.model, "gpu": deployed.asked.gpu, **deployed.scenario, **changes}
        other = deployment.PageDeployment.of(str(changed.pop("model")), str(changed.pop("gpu")), changed)
    framed, card_of_walk = deployment.walked(deployed) if walk else ("", "")
    offers = make_offers(deployed.asked, **offered)
    data, functions = deployment.slider_data(offers, deployed, other)
    data["walk"] = framed or None
    named, told, simulated = headed(deployed.answer), f'<div id="lead">{deployment.lead(deployed)}</div>', ""
    if price is not None:
        from rooflinekit.decision.economics.price import quotes_of  # noqa: PLC0415 - only where prices are given

        quotes = quotes_of([plan.system.accelerator for plan in offers.gpus.values()], price)
        _quote(data, quotes.hourly)
        told += paragraphs(quotes.notes, "notes")
    if other is not None:
        named = f"{named}, against {headed(other.answer)}"
        told += deployment.lead(other, before="Against ", told_of=f"{headed(other.answer)}: ")
    if simulation is not None:
        simulated = f'<div class="wrap">{simulation_card(simulation, deployed.named)}</div>'
        data["simulation"] = simulation_data(simulation)
    after, below = simulated + deployment.after(deployed), deployment.below(deployed, card_of_walk)
    foot, frames = deployment.foot_notes(deployed.answer), (framed,) if framed else ()
    return Page(named, told, "", deployment.accountant(), after, below, foot, data, functions, frames)


def _quote(data: dict[str, Any], prices: Mapping[str, HourlyPrice | None]) -> None:
    """Put prices of an hour and who says so where catalogue quotes stand (`roofs`)."""
    for gpu, price in prices.items():
        if price is not None and gpu in data["offers"]["gpus"]:
            said = price.term or price.source
            data["offers"]["gpus"][gpu]["price"] = [float(price.usd_per_gpu_hour), said, price.source]


def _plan_page(subject: object, offered: OwnKeywords) -> Page:
    """With the accountant on the deployment that the plan chose."""
    from rooflinekit.report.page import plan as read  # noqa: PLC0415 - other pages do not wait for pydantic

    plan = read.read_plan(subject)
    named = f"Plan for {plan['model']}"
    shown = read.plan_data(plan)
    own = {"plan": shown, "hues": hues_of({str(each["scenario"]["gpu"]) for each in plan["pareto"]})}
    page = Page(named, heading(named) + read.plan_lead(plan), read.plan_cards(plan), data=own)
    try:
        chosen = read.chosen_replica(plan)
        deployed = deployment.PageDeployment.of(chosen.model, chosen.gpu, chosen.scenario)
    except RooflinekitError as error:  # a model or a file that is not on this machine
        told = paragraphs([f"The chosen deployment cannot be looked into here: {error}"])
        return replace(page, after=told, foot=_foot(plan["version"]))
    more, functions = deployment.slider_data(make_offers(deployed.asked, **offered), deployed, None)
    _quote(more, read.plan_prices(plan))
    title, accountant = f"{chosen.heading}: ", deployment.accountant()
    told = f'<div class="wrap" id="lead">{deployment.lead(deployed, chosen.pool, title)}</div>{accountant}'
    data = page.data | more
    data |= {"hues": page.data["hues"] | more["hues"], "heading": title, "pool": bool(chosen.pool)}
    after, below = deployment.after(deployed), deployment.below(deployed, "")
    foot = deployment.foot_notes(deployed.answer)
    return replace(page, accountant=told, after=after, below=below, foot=foot, data=data, functions=functions)


def _table_page(sweep: Any) -> Page:
    """Raises InputError where no column is an answer."""
    from rooflinekit.report.page.rows import rows_card, rows_data, rows_lead  # noqa: PLC0415 - pandas takes longer than a page

    table, name = sweep, "the table"
    if not hasattr(sweep, "columns"):
        from rooflinekit.decision.sweeping.tables import read_answers  # noqa: PLC0415 - as above

        table, name = read_answers(str(sweep)), Path(sweep).name
    data = rows_data(table)
    named = f"Sweep of {data['total']:,} {'row' if data['total'] == 1 else 'rows'}"
    told = heading(named) + paragraphs([rows_lead(data, name)], "answer")
    hues = hues_of(map(str, table["gpu"].unique())) if "gpu" in table else {}
    return Page(named, told, rows_card(data), foot=_foot(__version__), data={"table": data, "hues": hues})


def _foot(version: str) -> str:
    return paragraphs([f"rooflinekit {version}. This page loads and sends nothing."])


def read_against(against: object) -> dict[str, object] | None:
    """Changes by a second deployment: {"gpu": name} for a name alone; numbers where they are.

    >>> read_against("b200-sxm"), read_against("tp=4,weights=fp8")
    ({'gpu': 'b200-sxm'}, {'tp': 4, 'weights': 'fp8'})
    """
    if against is None or isinstance(against, dict):
        return None if against is None else dict(against)
    parts = [part.strip() for part in str(against).split(",") if part.strip()]
    if not parts:
        raise InputError("against needs an accelerator, or what differs, as in tp=4,weights=fp8")
    if len(parts) == 1 and "=" not in parts[0]:
        return {"gpu": parts[0]}
    found: dict[str, Any] = {}
    for part in parts:
        key, sign, value = (word.strip() for word in part.partition("="))
        if not sign or not key or not value:
            raise InputError(f"against: {part!r} is no key=value; write it like gpu=b200-sxm,tp=4")
        found[key.replace("-", "_")] = _value(value)
    return found


def _value(text: str) -> object:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)


_BINS = 400  # of a timeline: more cannot be told apart on a screen
_METRICS = (
    ("ttft_ms", "first token (TTFT)"),
    ("tpot_ms", "time per token (TPOT)"),
    ("itl_ms", "between tokens (ITL)"),
    ("e2e_ms", "whole request"),
    ("queue_ms", "waiting"),
)


def simulation_card(outcome: Outcome, of: str) -> str:
    """Counts, and places for three charts; `of`: what was simulated."""
    counts = outcome.requests
    words = [
        f"{counts.measured:,} requests counted of {counts.finished:,} finished, {counts.rejected:,} rejected, "
        f"{counts.cut:,} cut by the end, {counts.preemptions:,} preemptions, in {outcome.duration_s:.4g} s. From the "
        f"first counted arrival to the last answer: {outcome.request_rate or 0.0:.4g} requests/s and "
        f"{outcome.output_tok_s or 0.0:.4g} tokens/s. The start and the end of a short run lower both.",
        *outcome.warnings,
    ]
    charts = (("sim-spread", "Percentiles"), ("sim-line", "Requests over time"), ("sim-kv", "Cache in use"))
    boxes = "".join(figure(name, heading) for name, heading in charts)
    return card("Simulated, request by request", paragraphs(words, "facts") + boxes, "simulation", of=of)


def simulation_data(outcome: Outcome) -> dict[str, object]:
    """Percentiles [ms], and the timeline of all replicas together in a few hundred steps."""
    spreads = [(title, asdict(getattr(outcome, name)), False) for name, title in _METRICS if getattr(outcome, name).n]
    return {"spreads": spreads, "line": _line(outcome.timeline)}


def _line(rows: tuple[dict[str, float], ...]) -> dict[str, list[float]]:
    """Sums over replicas of queue and batch, mean of the cache's use, at the ends of equal spans of time."""
    line: dict[str, list[float]] = {"time": [], "queue": [], "batch": [], "kv": []}
    if not rows:
        return line
    width = max(rows[-1]["time_s"] / _BINS, 1e-9)
    latest: dict[float, dict[str, float]] = {}

    def record(time: float) -> None:
        line["time"].append(round(time, 6))
        line["queue"].append(sum(row["queue"] for row in latest.values()))
        line["batch"].append(sum(row["batch"] for row in latest.values()))
        line["kv"].append(round(sum(row["kv_use"] for row in latest.values()) / len(latest), 5))

    end = width
    for row in rows:
        while row["time_s"] > end and latest:
            record(end)
            end += width
        latest[row["replica"]] = row
    record(rows[-1]["time_s"])
    return line
