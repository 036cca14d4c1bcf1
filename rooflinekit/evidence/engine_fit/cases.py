"""Benchmark files as rows of a fit to one deployment: each run once, whatever the order of the files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from rooflinekit.estimation.estimator import read_deployment, resolve
from rooflinekit.evidence.benchmark_runs import Given, Kept, Posed, listed, pose, room_of
from rooflinekit.evidence.compare import beaten, doubts
from rooflinekit.evidence.kernel_fit.groups import ENGINE_STEP
from rooflinekit.evidence.measured import is_of_harness, read_measurements
from rooflinekit.evidence.measurement import MeasuredRun, MeasuredSpread, RunFacts, StartUp
from rooflinekit.evidence.steps import MeasuredStep, deployment_of, read_steps
from rooflinekit.load.answer import Load, play_load
from rooflinekit.load.lengths import Fixed
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.timing.calibrated import Calibration
from rooflinekit.model.types.engine import StepCosts
from rooflinekit.model.types.errors import InputError, RooflinekitError
from rooflinekit.model.types.workload import Workload
from rooflinekit.specs.engines import step_range

Entry: TypeAlias = MeasuredRun | StartUp | MeasuredStep
"""An entry of a file."""
METRICS = ("ttft_ms", "tpot_ms", "output_tok_s")


@dataclass(frozen=True)
class FitCase:
    """One run of the file number `file`; measured: metric -> time [s], that of a token for throughput."""

    posed: Posed
    file: int
    measured: dict[str, float]
    running: float

    def times(self, predictor: Predictor) -> list[float]:
        """Measured times, as this predictor has it [s]; each play draws the same requests."""
        if self.posed.work is not None:
            point = predictor.evaluate(self.posed.work)
            static = {"ttft_ms": point.ttft, "tpot_ms": point.tpot}
            return [float(static[name].expected) for name in self.measured]
        found = play_load(predictor, self.posed.load, self.posed.scheduler)
        times = dict(zip(METRICS, (found.samples["ttft"].mean, found.tpot, 1.0 / found.output_rate), strict=True))
        return [times[name] for name in self.measured]


def case_of(posed: Posed, file: int) -> FitCase:
    """The rows of a run: TTFT and TPOT; throughput only where TPOT is missing, since it follows from them.

    In an open loop throughput is the rate and says nothing.
    """
    run = posed.run
    times: dict[str, float] = {}
    for name, spread in (("ttft_ms", run.ttft), ("tpot_ms", run.tpot)):
        value = spread.middle[1]
        if value and (name == "ttft_ms" or posed.load.osl.mean > 1):
            times[name] = value / 1e3
    if run.output_tok_s and "tpot_ms" not in times and posed.load.rate is None:
        times["output_tok_s"] = 1.0 / run.output_tok_s
    bounds, running = posed.limits()
    if said := doubts(beaten(run, bounds)):
        raise InputError(said[0])
    return FitCase(posed, file, times, running)


def with_costs(predictor: Predictor, costs: StepCosts) -> Predictor:
    """The deployment with an engine of these costs."""
    plan = predictor.plan
    return Predictor(replace(plan, engine=replace(plan.engine, costs=costs)), predictor.memory)


def pose_step(step: MeasuredStep, given: Given) -> Posed:
    """A whole step as the static batch that it is: TTFT of a prompt, TPOT of a decode step."""
    row, point = step.row, step.point
    gpu = given.facts.gpu or step.gpu
    resolved = resolve(row["model"], gpu, read_deployment(deployment_of(row)), given.calibration)
    work = Workload.checked(**point.workload)
    facts = RunFacts(row["model"], gpu, row.get("engine"), 1, point.workload["isl"], point.workload["osl"], point.batch)
    ttft, tpot = (MeasuredSpread(mean=row["whole_us"] / 1e3 if point.metric == name else None) for name in METRICS[:2])
    run = MeasuredRun(step.source, step.tool, facts, ttft, tpot)
    load = Load(Fixed(round(float(work.isl))), Fixed(round(float(work.osl))), round(point.batch))
    return Posed(run, facts, resolved, load, work=work)


@dataclass(frozen=True)
class Benchmarks:
    """Cases with their files: names, hashes and tools by number; what was left out, and why."""

    cases: tuple[FitCase, ...]
    names: tuple[str, ...]
    hashes: tuple[str, ...]
    tools: tuple[str, ...]
    notes: tuple[str, ...]
    failed: dict[str, str]

    @property
    def calibration(self) -> Calibration:
        """Calibration of all cases."""
        found = self.cases[0].posed.resolved.plan.calibration
        if found is None:
            raise InputError("engine costs are fitted on a calibration; leave --calibration none out")
        return found


def read_benchmarks(files: Sequence[Path], given: Given) -> Benchmarks:
    """Read and pose every run of the files; files in the order of their hashes. Raises what `posed_benchmarks` does."""
    notes: list[str] = []
    failed: dict[str, RooflinekitError] = {}
    return posed_benchmarks(*_runs(files, notes, failed), given, notes, failed)


def posed_benchmarks(
    names: Mapping[str, str],
    runs: Mapping[str, Sequence[Entry]],
    given: Given,
    notes: list[str],
    failed: dict[str, RooflinekitError],
) -> Benchmarks:
    """Pose the runs of files that have been read: names and entries by hash; notes and failures so far.

    A file or run that is there twice counts once, and one that the calibration in use has seen does not count.
    """
    entries = [entry for digest in names for entry in runs[digest]]
    runs_of_clients = [entry for entry in entries if not isinstance(entry, MeasuredStep)]
    if entries and not runs_of_clients:
        given.refuse_beside(", ".join(names.values()))
    room, given = room_of(runs_of_clients), given.with_logs(runs_of_clients)
    posed: list[tuple[str, Posed]] = []
    kept: Kept = {}
    for digest in names:
        for entry in runs[digest]:
            with listed(failed, entry.source):
                if isinstance(entry, MeasuredStep):
                    posed.append((digest, pose_step(entry, given)))
                elif not isinstance(entry, StartUp):
                    posed.append((digest, pose(entry, given, room, kept)))
    if not posed:
        raise next(iter(failed.values())) if failed else InputError("the files hold no run of a benchmark")
    _check_alike([one for _, one in posed])
    calibration = posed[0][1].resolved.plan.calibration
    seen = set(calibration.served.hashes) if calibration and calibration.served else set()
    fresh = [(digest, one) for digest, one in posed if digest not in seen]
    known = {names[digest] for digest, _ in posed if digest in seen}
    notes += [f"{name}: the calibration in use has seen this file; left out" for name in sorted(known)]
    if not fresh:
        raise InputError("the calibration in use has seen every one of these files; there is nothing to fit")
    hashes = list(dict.fromkeys(digest for digest, _ in fresh))
    notes += dict.fromkeys(note for _, one in fresh for note in one.assumed)
    cases: list[FitCase] = []
    counted: dict[MeasuredRun, str] = {}
    for digest, one in fresh:
        same = replace(one.run, source="")
        if same in counted:
            notes.append(f"{one.run.source} is the same run as {counted[same]}; counted once")
            continue
        counted[same] = one.run.source
        with listed(failed, one.run.source):
            cases.append(case_of(one, hashes.index(digest)))
    silent = (case.posed.run.source for case in cases if not case.measured)
    notes += [f"{name}: no TTFT, TPOT or throughput that depends on the engine; not used" for name in silent]
    used = tuple(case for case in cases if case.measured)
    if not used:
        nothing = InputError("no run has a TTFT, a TPOT or a throughput that depends on the engine")
        raise next(iter(failed.values()), nothing)
    tools = tuple(next(one.run.tool for other, one in fresh if other == digest) for digest in hashes)
    reasons = {name: str(why) for name, why in failed.items()}
    return Benchmarks(used, tuple(names[digest] for digest in hashes), tuple(hashes), tools, tuple(notes), reasons)


def _runs(
    files: Sequence[Path], notes: list[str], failed: dict[str, RooflinekitError]
) -> tuple[dict[str, str], dict[str, list[Entry]]]:
    """Name and entries of every file, each once, by its hash and in that order."""
    names: dict[str, str] = {}
    runs: dict[str, list[Entry]] = {}
    for path in sorted(files, key=str):
        with listed(failed, str(path)):
            steps = read_steps(path) if is_of_harness(path) else []
            entries: list[Entry] = [step for step in steps if step.row["op"] == ENGINE_STEP]
            entries = entries or [*read_measurements(path)]
            digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
            if digest in names:
                notes.append(f"{path.name} is the same file as {names[digest]}; counted once")
            names.setdefault(digest, path.name)
            runs.setdefault(digest, entries)
    return dict(sorted(names.items())), runs


def _check_alike(posed: Sequence[Posed]) -> None:
    kinds = set()
    for one in posed:
        plan = one.resolved.plan
        deployment, accelerator = plan.deployment, plan.system.accelerator
        since = step_range(deployment.engine, deployment.engine_version)
        kinds.add(f"{f'{deployment.engine} {since}'.strip()} on {accelerator.name}")
        if deployment.engine == "ideal":
            raise InputError("engine ideal adds nothing to its kernels; name the engine that served")
    if len(kinds) > 1:
        raise InputError(f"the files are of {', '.join(sorted(kinds))}; calibrate each by itself")
