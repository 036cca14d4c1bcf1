"""Commands that ask one function of the package and print its answer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooflinekit.cli.command import MAYBE_MODEL, MODEL, Argument, command
from rooflinekit.cli.failures import INTERRUPTED
from rooflinekit.cli.output import CommandOutput, columns_of, counting, emit, note, to_json, working
from rooflinekit.cli.standard_input import pasted
from rooflinekit.estimation import scenario as tables
from rooflinekit.estimation.options import Keywords, Value, options_of
from rooflinekit.model.types import errors
from rooflinekit.specs.escaping import csv_text
from rooflinekit.specs.writing import check_target

if TYPE_CHECKING:
    from rooflinekit.decision.launching.launch import Launch
    from rooflinekit.evidence.compare import Comparison

_EVERY = 1000  # requests between two moves of the progress bar
_SCRIPT = "launch.sh"


def _function(place: str) -> Any:
    """A function of the package, `module:name`, imported when it is asked."""
    module, name = place.split(":")
    return getattr(import_module(f"rooflinekit.{module}"), name)


def _asking(
    place: str,
    said: str,
    *rows: Any,
    arguments: Mapping[str, Argument] | None = None,
    pictures: str = "",
    shown: Any = tables.WrittenOptions,
    slow: str = "",
) -> Callable[..., int | None]:
    """A command that asks one function and shows its answer; rows of `shown` are about how it is shown.

    slow: what it does, shown on a terminal while it lasts.
    """
    seen = options_of(shown)

    def ask(*words: str | None, to: CommandOutput, **scenario: Value) -> int | None:
        how = {name: seen[name].check(name, scenario.pop(name)) for name in (*scenario,) if name in seen}
        to.check(pictures)
        given = [word for word in words if word is not None]
        try:
            with working(slow) if slow else nullcontext():
                answer = _function(place)(*given, **scenario)
        except errors.DoesNotFitError as error:
            if to.format != "table":
                raise
            note(str(error))
            return _others(given[0], scenario, error.exit_code)
        to.draw(answer)
        to.show(answer, **how)
        return None

    ask.__doc__ = said
    return command(*rows, *((tables.Pictures,) if pictures else ()), shown, arguments=arguments)(ask)


def _others(model: str, scenario: Keywords, code: int) -> int:
    """Say which accelerators with a price hold the model, on the standard error; give the exit code back."""
    from rooflinekit.decision.fits import fits_on, priced
    from rooflinekit.report.document import WIDTH
    from rooflinekit.report.fits import lines

    known = {name: value for name, value in scenario.items() if name in options_of(tables.Scenario) and name != "tp"}
    with suppress(errors.RooflinekitError):  # the misfit is said; what is more has to fit the scenario
        for line in lines(fits_on(model, priced(), **known), columns_of(sys.stderr, WIDTH)):
            note(line, "")
        note(f"`rooflinekit gpus --fits {model}` has all", "")
    return code


estimate = _asking(
    "estimation.estimator:estimate",
    "Predict TTFT, TPOT, throughput and memory of a static batch, or under load, kernel by kernel.",
    tables.AcceleratorOptions,
    tables.Scenario,
    pictures="Estimate",
    shown=tables.Detailed,
)
explain = _asking(
    "explanation.front:explain",
    "Derive one number of an estimate: formulas, numbers and sources, down to the kernels.",
    tables.AcceleratorOptions,
    tables.Scenario,
    shown=tables.Tree,
    slow="deriving",
    arguments={
        "model": MODEL,
        "metric": Argument("tpot (unless told), ttft, memory, decode.attention, decode.flops, ridge ...", False),
    },
)
trace = _asking(
    "decision.economics.retention:trace",
    "Sum a trace up: rate, lengths, and the share of its prompts that a prefix cache of any size finds.",
    tables.AcceleratorOptions,
    tables.Retention,
    pictures="TraceAnswer",
    arguments={"file": Argument("A trace: Azure, Mooncake, BurstGPT, Bailian, CSV.")},
)
levers = _asking(
    "decision.sensitivity.levers:levers",
    "Say what would help a deployment most: elasticities, weights or cache, and moves ranked by gain.",
    tables.AcceleratorOptions,
    tables.LeversOptions,
    pictures="Levers",
    slow="trying moves",
)
cost = _asking(
    "decision.economics.cost:cost",
    "Price cached, input and output tokens, dialogues and long contexts, and say why output costs more.",
    tables.AcceleratorOptions,
    tables.CostOptions,
)


@command(
    tables.AcceleratorOptions, tables.SimulationOptions, tables.TracedOptions, tables.Pictures, tables.WrittenOptions
)
def simulate(
    model: str,
    *,
    to: CommandOutput,
    timeline: Path | None = None,
    chrome_trace: Path | None = None,
    resume: bool = False,
    **scenario: Value,
) -> int:
    """Serve requests step by step, and say what users feel: percentiles of TTFT, TPOT and latency under load."""
    from rooflinekit.simulation.simulate import simulate as run
    from rooflinekit.simulation.watch import TIMELINE, ChromeTrace

    for path in (timeline, chrome_trace):
        if path is not None:
            check_target(path, to.force)
    to.check("Outcome")
    cells = scenario.get("cells", 1)
    if cells > 1 and (timeline or chrome_trace):
        raise errors.InputError("--timeline and --chrome-trace show one machine's run; leave --cells out")
    if resume and (to.out is None or cells < 2):
        raise errors.InputError("--resume keeps finished cells beside the output; add --cells N and --out FILE")
    events = ChromeTrace() if chrome_trace else None
    kept = to.out.with_name(f"{to.out.name}.cells") if resume and to.out else None
    if cells > 1:
        with counting("cells", cells) as step:
            outcome = run(model, kept=kept, progress=lambda _: step(""), **scenario)
        if kept and outcome.interrupted:
            raise errors.InterruptedRunError(
                f"interrupted; finished cells are in {kept}; the same command goes on from there"
            )
    else:
        with _progress(scenario.get("requests")) as progress:
            outcome = run(model, watch=events, progress=progress, **scenario)
    if timeline is not None:
        emit(csv_text(outcome.timeline or [dict.fromkeys(TIMELINE)]), timeline, to.force)
    if chrome_trace is not None and events is not None:
        emit(to_json(events.to_dict()), chrome_trace, to.force)
    to.draw(outcome)
    to.show(outcome)
    if kept:
        kept.unlink()
    if outcome.interrupted and to.out:
        raise errors.InterruptedRunError(f"interrupted; what was served until then is in {to.out}")
    return INTERRUPTED if outcome.interrupted else 0


@contextmanager
def _progress(total: int | None) -> Iterator[Callable[[int], None]]:
    """Move a bar as requests end."""
    with counting("thousands of requests", total and -(-total // _EVERY)) as step:
        shown = 0

        def ended(count: int) -> None:
            nonlocal shown
            while shown * _EVERY < count:
                step("")
                shown += 1

        yield ended


@command(tables.AcceleratorOptions, tables.Shapes, tables.WrittenOptions)
def shapes(model: str, *, to: CommandOutput, **scenario: Value) -> None:
    """Walk every tensor of a prefill and a decode step through a model: shapes, FLOP and bytes of each step.

    A file given to --out that ends in .html is a page to step through.
    """
    from rooflinekit.explanation.walk.front import shapes as walk_through

    page = to.out is not None and to.out.suffix.lower() == ".html"
    if page and to.format != "table":
        raise errors.InputError(
            f"{to.out} would be a page, and --format {to.format} is another format; leave one of them out"
        )
    to.check()
    walk = walk_through(model, **scenario)
    if not page:
        return to.show(walk)
    from rooflinekit.report.walk import walk_page

    return to.emit(walk_page(walk))


@command(
    tables.AcceleratorOptions,
    tables.Scenario,
    tables.WrittenOptions,
    tables.Launching,
    arguments={"model": MAYBE_MODEL},
    leave=("allow_oom",),
)
def launch(model: str | None, *, to: CommandOutput, target: str | None = None, **scenario: Value) -> None:
    """Write a deployment or a plan for vLLM, SGLang, TensorRT-LLM or llama.cpp: commands, configuration, manifests."""
    from rooflinekit.decision.launching.launch import launch as export
    from rooflinekit.decision.launching.launch import launch_script

    if "plan" in scenario and "gpu" in scenario:
        raise errors.InputError("a plan has its own accelerators; leave --gpu out")
    made, out = export(model, **scenario), to.out
    if target is not None:
        from rooflinekit.ops.manifests import manifest

        if to.format != "table":
            raise errors.InputError("a manifest is YAML; leave --format out")
        to.check()
        return to.emit(manifest(made, target))
    if out is not None and (out.is_dir() or str(out).endswith("/") or not (out.exists() or out.suffix)):
        return _write(made, out, to)
    to.check()
    return to.emit(launch_script(made)) if to.format == "table" else to.show(made)


def _write(made: Launch, folder: Path, to: CommandOutput) -> None:
    """The script and its configuration files into a folder; nothing if one of them is there already."""
    from rooflinekit.decision.launching.launch import launch_script

    if to.format != "table":
        raise errors.InputError(f"--format {to.format} is one file; give --out a file's name, not a folder")
    files = {_SCRIPT: launch_script(made, with_files=False), **made.files}
    if folder.is_dir():
        for name in files:
            check_target(folder / name, to.force)
    elif not folder.parent.is_dir():
        raise errors.InputError(f"{folder.parent} is not a folder; make it first")
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        emit(text, folder / name, to.force)
    (folder / _SCRIPT).chmod(0o755)
    emit("\n".join(f"wrote {folder / name}" for name in files))


_RESULTS = {
    "files": Argument(
        "Results of benchmark clients, pasted ones too (- is standard input), start-up logs, predictions (JSON).",
        many=True,
    )
}


@command(tables.ServedOptions, tables.Reconciled, arguments=_RESULTS)
def compare(files: list[str], *, to: CommandOutput, why: bool = False, **said: Value) -> int:
    """Set measured benchmark files beside the prediction, and say what the gap is made of."""
    found = _compared(files, to, "all" if why else "", said)
    to.show(found)
    return 4 if found.failed else 0


@command(tables.ServedOptions, tables.WrittenOptions, arguments=_RESULTS)
def verify(files: list[str], *, to: CommandOutput, **said: Value) -> int:
    """Check a prediction with the result of the benchmark that it names, and explain what lies outside its interval.

    The exit code is 4 where a figure does.
    """
    from rooflinekit.evidence.measurement import PREDICTED

    found = _compared(files, to, "outside", said)
    if found.runs[0].tool == PREDICTED and len(files) - len(found.failed) == 1:
        missing = next(iter(found.failed.values()), "give the result of the benchmark that it names as well")
        raise errors.InputError(f"nothing beside the prediction {found.runs[0].source}: {missing}")
    to.show(found)
    return 4 if found.failed or not all(run.inside for run in found.runs) else 0


def _compared(files: list[str], to: CommandOutput, why: str, said: Keywords) -> Comparison:
    from rooflinekit.evidence.compare import Given
    from rooflinekit.evidence.compare import compare as compared

    given = Given.of(**said)
    to.check()
    with pasted(files) as paths, counting("comparing", len(files)) as progress:
        return compared(paths, given, progress=progress, why=why)


@command(
    tables.Guarding,
    tables.Judged,
    arguments={
        "files": Argument("Runs of pytest-benchmark, nvbench, Triton, kernel tables, load generators.", many=True)
    },
)
def guard(
    files: list[str], *, to: CommandOutput, junit: Path | None = None, baseline: Sequence[str] = (), **said: Value
) -> int:
    """Find what became slower: benchmarks against an earlier run with its noise, or the prediction's interval.

    The exit code is 4 where something has.
    """
    from rooflinekit.evidence.guard import guard as judge
    from rooflinekit.evidence.report import guard_line, junit_xml

    if junit is not None:
        check_target(junit, to.force)
    to.check()
    with pasted([*files, *baseline]) as paths:
        found = judge(paths[: len(files)], paths[len(files) :], **said)
    if junit is not None:
        emit(junit_xml(found), junit, to.force)
    to.show(found)
    for row in found.regressions if to.out is not None else ():
        note(guard_line(row, found.against))
    return 4 if found.regressions else 0


@command(
    tables.ServedOptions,
    tables.Watching,
    tables.WrittenOptions,
    leave=("concurrency",),
    arguments={
        "sources": Argument(
            "Addresses of servers' metrics, or recordings and request logs; start-up logs beside them.", many=True
        )
    },
)
def watch(sources: list[str], *, to: CommandOutput, **said: Value) -> int:
    """Set a running fleet beside its prediction: gaps and their causes, drifts, headroom.

    Several addresses are replicas that share the load.
    """
    from rooflinekit.cli.watch import watch as run

    return run(sources, to, **said)


def _scoring(
    place: str, said: str, files: Argument, *, table: Any = tables.Scored, leave: Sequence[str] = ("gpu",)
) -> Callable[..., int]:
    """A command that scores measured tables; the exit code is 4 where a row could not be answered."""

    def score(files: list[str], *, to: CommandOutput, **how: Value) -> int:
        to.check()
        with pasted(files) as paths, counting("scoring") as progress:
            found = _function(f"evidence.{place}")([Path(file) for file in paths], progress=progress, **how)
        to.show(found)
        return 4 if found.answered < found.rows else 0

    score.__doc__ = said
    return command(*(table if isinstance(table, tuple) else (table,)), leave=leave, arguments={"files": files})(score)


kernels = _scoring(
    "accuracy:kernel_accuracy",
    "Score kernel latencies: errors by operation, accelerator, engine and number format.",
    Argument("Measurement files (.jsonl), or kernel tables (CSV, Parquet).", many=True),
    leave=(),
)
memory = _scoring(
    "accuracy_memory:memory_accuracy",
    "Score memory: weights, activation peak, cache pool and its tokens, by engine.",
    Argument("Memory tables (CSV).", many=True),
    table=tables.WrittenOptions,
)
serving = _scoring(
    "accuracy_serving:serving_accuracy",
    "Score whole requests: latencies and throughputs by source, model, accelerator and metric.",
    Argument("Serving tables (CSV, Parquet), results of clients; none: the shipped table.", required=False, many=True),
)
league = _scoring(
    "league:league",
    "Score us beside other predictors that are installed, on the same measured figures.",
    Argument("Serving tables, results of clients, pasted text; none: the shipped table.", required=False, many=True),
    table=(tables.ServedOptions, tables.WrittenOptions),
    leave=(),
)
energy = _scoring(
    "accuracy_energy:energy_accuracy",
    "Score board power and joules a token of whole runs, by source, model and accelerator.",
    Argument("Tables of runs with power (CSV, Parquet).", many=True),
)


@command(tables.WrittenOptions, arguments={})
def models(*, to: CommandOutput) -> None:
    """List the models that are known."""
    from rooflinekit.report.catalogue import model_row
    from rooflinekit.specs import load_model, names

    _list([model_row(load_model(name).value) for name in names("model")], to)


@command(tables.Listed, arguments={})
def gpus(*, to: CommandOutput, fits: str | None = None, **scenario: Value) -> None:
    """List the accelerators that are known, or those that hold a model."""
    if fits is not None:
        from rooflinekit.decision.fits import fits_on

        to.check()
        return to.show(fits_on(fits, **scenario))
    if scenario:
        raise errors.InputError(f"--{min(scenario)} belongs to --fits MODEL; give both")
    from rooflinekit.report.catalogue import accelerator_row
    from rooflinekit.specs import load_accelerator, names

    return _list([accelerator_row(load_accelerator(name).value) for name in names("accelerator")], to)


def _list(rows: list[dict[str, Any]], to: CommandOutput) -> None:
    from rooflinekit.report.catalogue import listed

    to.check()
    to.write(lambda: rows, lambda: rows, lambda: listed(rows, everything=to.format == "md"))


@command(
    tables.Shown, arguments={"name": Argument("A model or an accelerator: name, id or path.", False, complete="model")}
)
def show(name: str | None, *, to: CommandOutput, template: str | None = None) -> None:
    """Show one model or accelerator with its sources, or print a template for a new one."""
    from rooflinekit.report.answers import document_of
    from rooflinekit.report.catalogue import entry, flat
    from rooflinekit.specs import accelerator_template, load_accelerator, load_model, model_template
    from rooflinekit.specs.locate import kind_of_file, unknown_name

    to.check()
    if template is not None:
        if name is not None or to.format != "table":
            raise errors.InputError("--template prints a file: leave NAME and --format out")
        if template in ("dashboard", "rules"):
            return to.emit(_function(f"ops.operation:{template}")())
        return to.emit(model_template() if template == "model" else accelerator_template())
    if name is None:
        raise errors.InputError("show needs the NAME of a model or accelerator, or --template gpu (or model)")
    kind = kind_of_file(name)
    loaders = {"model": load_model, "accelerator": load_accelerator}
    near: list[str] = []
    for load in [loaders[kind]] if kind else loaders.values():  # a file is what it holds; a name first a model's
        try:
            found: Any = load(name)
            break
        except errors.UnknownNameError as unknown:
            near += unknown.suggestions
    else:
        raise unknown_name("model or accelerator", name, near)
    return to.write(lambda: entry(found), lambda: [flat(found)], lambda: document_of(found))
