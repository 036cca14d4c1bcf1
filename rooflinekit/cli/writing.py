"""Commands that write a page or a workbook, or serve answers: `report`, `workbook`, `serve` and `mcp`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooflinekit.cli.command import MAYBE_MODEL, Argument, command, refuse
from rooflinekit.cli.output import CommandOutput, emit, note, working
from rooflinekit.estimation import scenario as tables
from rooflinekit.estimation.options import OwnKeywords, Value, options_of
from rooflinekit.model.types.errors import InputError, nearest_of

if TYPE_CHECKING:
    from rooflinekit.simulation.outcome import Outcome

_FORMATS = {".html", ".xlsx", ".csv", ".json", ".md", ".parquet", ".pdf", ".png", ".svg", ".txt"}


@command(
    tables.WrittenOptions,
    tables.PageOptions,
    tables.AcceleratorOptions,
    tables.Scenario,
    tables.Pictures,
    arguments={"model": MAYBE_MODEL},
    leave=("allow_oom", "format"),
)
def report(
    model: str | None,
    *,
    to: CommandOutput,
    plan: Path | None = None,
    sweep: Path | None = None,
    against: str | None = None,
    simulate: int | None = None,
    models: list[str] | None = None,
    gpus: list[str] | None = None,
    engines: list[str] | None = None,
    price: Any = None,
    **scenario: Value,
) -> None:
    """Write one self-contained HTML page on a deployment, a comparison, a plan or a sweep, with live sliders."""
    from rooflinekit.estimation.estimator import estimate as predict
    from rooflinekit.report.page import write_report

    if model is None and plan is None and sweep is None:
        raise InputError("say what the report is on: MODEL, --plan FILE or --sweep FILE")
    out = _named(to.out or Path("report.html"), "page", ".html")
    to = to._replace(out=out)
    to.check("Estimate")
    if simulate is not None:
        to.check("Outcome")
    told: OwnKeywords = {"models": models, "gpus": gpus, "engines": engines}
    if model is None or plan is not None or sweep is not None:
        said = {"model": model, "against": against, "simulate": simulate, "price": price, "plots": to.plots, **scenario}
        for key in (key for key, value in said.items() if value is not None):  # a plan or a sweep brings its own
            name = "MODEL" if key == "model" else "--" + key.replace("_", "-")
            raise InputError(f"{name} belongs to a report on a model; leave it out beside --plan or --sweep")
        with working(f"writing {out.name}"):
            made = write_report(out, plan=plan, sweep=sweep, force=to.force, **told)
    else:
        with working(f"writing {out.name}"):
            outcome = _simulated(model, simulate, scenario)
            told |= {"against": against, "simulation": outcome, "price": price}
            made = write_report(out, model, force=to.force, **told, **scenario)
        if to.plots is not None:
            drawn = predict(model, allow_oom=True, **scenario)
            to.draw(drawn if outcome is None else [drawn, outcome])
    emit(f"{made.path}: {made.title}, {made.bytes / 1e6:.2f} MB")


def _named(out: Path, what: str, suffix: str) -> Path:
    """The file, unless its suffix is that of another format: programs would fail to open it."""
    if out.suffix.lower() in _FORMATS and out.suffix.lower() != suffix:
        raise InputError(f"{out}: a {what} is {suffix[1:].upper()}; name the file {out.with_suffix(suffix).name}")
    return out


def _simulated(model: str, requests: int | None, scenario: OwnKeywords) -> Outcome | None:
    from rooflinekit.simulation.simulate import simulate as run

    if requests is None:
        return None
    if "rate" not in scenario and "concurrency" not in scenario:
        raise InputError("--simulate needs a load: add --rate or --concurrency")
    known = {key: value for key, value in scenario.items() if key in ("gpu", *options_of(tables.SimulationOptions))}
    return run(model, **known | {"requests": requests})


_OFFERED = ("model", "gpu", "tp", "pp", "ep", "dp", "cp", "microbatches", "weights", "kv", "engine", "calibration")
_STARTS = ("requests", "ttft", "tpot", "batch", "isl", "osl", "cached", "users", "rate", "peak", "headroom", "price",
           "burstiness", "isl_cv", "osl_cv", "seed")  # fmt: skip
_NAMES = {"model": "models", "gpu": "gpus", "requests": "requests_per_hour", "ttft": "ttft_ms", "tpot": "tpot_ms"}
"""Names of options in the workbook where they differ."""
_SHOWN = 3  # reasons that are printed; the sheet Notes has all


@command(  # the lists of a workbook count where a deployment has one value, and come first in the help
    tables.WrittenOptions,
    tables.Workbook,
    tables.Prefix,
    tables.Seeing,
    tables.SpeculationOptions,
    tables.RequestsOptions,
    tables.Seed,
    tables.Workbook,
    leave=("format",),
    arguments={"models": Argument("Models to offer, as --model takes them.", False, many=True, complete="model")},
)
def workbook(models: list[str], *, to: CommandOutput, **said: Value) -> None:
    """Write a capacity workbook (.xlsx) whose formulas are live: results, sweeps, fleet and cost."""
    from rooflinekit.decision.economics.price import price_among, priced_names
    from rooflinekit.report.workbook import Choices, Planned, write_workbook
    from rooflinekit.simulation.execute import processors
    from rooflinekit.specs import load_accelerator

    if models:
        said["model"] = [*models, *said.get("model", ())]
    out = _named(to.out or Path("workbook.xlsx"), "workbook", ".xlsx")
    to._replace(out=out).check()
    offered, starts = (
        {_NAMES.get(key, key): said.pop(key) for key in keys if key in said} for keys in (_OFFERED, _STARTS)
    )
    lists: OwnKeywords = {key: tuple(value) if isinstance(value, list) else value for key, value in offered.items()}
    choices = Choices(**lists, scenario=said)
    if "rate" in starts and starts.keys() & {"users", "requests_per_hour"}:
        raise InputError("--rate stands in place of --users and --requests; give one or the other")
    for key in ("isl", "osl"):
        if isinstance(tokens := starts.get(key), str):
            raise InputError(f"{key} of a workbook is a number of tokens, not {tokens!r}")
    if isinstance(price := starts.get("price"), (dict, str)):
        names = {load_accelerator(gpu).value.name for gpu in choices.gpus}
        starts["prices"] = priced_names(starts.pop("price"))
        if not names & starts["prices"].keys():
            price_among(price, [load_accelerator(gpu).value for gpu in choices.gpus])
    with working(f"writing {out.name}"):
        built = write_workbook(out, choices, Planned(**starts), to.force, processors())
    lines = [f"{out}: {built.offered} deployments to choose from, {built.bytes / 1e6:.1f} MB"]
    if built.refused:
        lines.append(f"{len(built.refused)} combinations cannot be run (sheet Notes has all):")
        lines += [f"  {key.replace('|', ', ')}: {reason}" for key, reason in built.refused[:_SHOWN]]
    emit("\n".join(lines))


_HOST, _PORT, _SECONDS = "127.0.0.1", 8000, 30.0


@command(tables.Serving, arguments={})
def serve(
    *,
    to: CommandOutput,
    host: str = _HOST,
    port: int = _PORT,
    workers: int | None = None,
    site: Path | None = None,
    seconds: float | None = None,
    engine_of: str | None = None,
    time: str | None = None,
    streams: int | None = None,
) -> None:
    """Answer questions over HTTP: JSON in, JSON out, described at /openapi.json; charts for a browser at /.

    With --engine-of, pretend to be an engine: an OpenAI-compatible server whose tokens come at played times.
    """
    if engine_of is not None:
        refuse({"workers": workers, "site": site, "seconds": seconds}, "is of the other server; leave --engine-of out")
        _serve_engine(engine_of, (host, port), (time or "real").lower(), streams)
        return
    refuse({"time": time, "streams": streams}, "goes with --engine-of")
    from rooflinekit.ops.web import listen, run
    from rooflinekit.simulation.execute import processors

    seconds = _SECONDS if seconds is None else seconds
    name = f"[{host}]" if ":" in host else host
    with listen(host, port) as listening:
        said = f"serving on http://{name}:{port}; /openapi.json says what; ends with Ctrl-C"
        run(listening, workers or processors(), seconds, site, lambda: note(said))


_SERVED = "a plan's JSON file, or a MODEL with options of simulate, such as 'llama-3-8b --gpu h100 --tp 2'"


def _serve_engine(told: str, address: tuple[str, int], time: str, streams: int | None) -> None:
    """Serve as an engine until a signal comes."""
    from rooflinekit.ops.engine import Deployed, PlayedEngine
    from rooflinekit.ops.openai import STREAMS, run
    from rooflinekit.ops.web import listen

    host, port = address
    path = Path(told.strip())
    if path.suffix == ".json" and " " not in str(path) and path.is_file():
        deployed = Deployed.planned(path)
    else:
        try:
            deployed = Deployed.read(**_options(told))
        except InputError:
            if told.strip() and " " not in str(path) and path.is_dir() and not (path / "config.json").exists():
                raise InputError(f"--engine-of {told!r} is a folder without a config.json; give {_SERVED}") from None
            raise
    with listen(host, port) as listening:
        engine = PlayedEngine(deployed)
        for said in engine.notes:
            note(said)
        name = f"[{host}]" if ":" in host else host
        said = f"{deployed.name} at played times on http://{name}:{port}/v1 ({time} time); ends with Ctrl-C"
        run(listening, engine, time, streams or STREAMS, lambda: note(said))


def _options(told: str) -> OwnKeywords:
    """The model and the options of `simulate` that a text holds; raises InputError for another text."""
    import shlex

    from rooflinekit.cli.command import find

    simulated = find("simulate")
    try:
        words = shlex.split(told)
    except ValueError as error:
        raise InputError(f"--engine-of {told!r}: {error}") from None
    shown = {name: option for name, option in simulated.options.items() if name not in CommandOutput._fields}
    for word in (word.partition("=")[0] for word in words if word.startswith("-")):
        name = simulated.aliases.get(word, word).removeprefix("--").replace("-", "_")
        if name not in shown or not word.startswith("--"):
            raise InputError(f"--engine-of: no option {word} of simulate; nearest: {nearest_of(name, shown)}")
    texts = simulated.words(words)
    if texts is None or "model" not in texts:
        raise InputError(f"--engine-of {told!r} names no model; give {_SERVED}")
    return {name: simulated.value(name, text) for name, text in texts.items()}


@command(tables.Answering, arguments={})
def mcp(*, to: CommandOutput, seconds: float = _SECONDS) -> None:
    """Answer an assistant over standard input and output, by the Model Context Protocol."""
    from rooflinekit.ops.assistants import run

    run(seconds)
