"""`rooflinekit validate`."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from rooflinekit.cli.command import command
from rooflinekit.cli.output import CommandOutput, counting, emit
from rooflinekit.estimation.options import Value
from rooflinekit.estimation.scenario import Measuring
from rooflinekit.model.types.errors import InputError, InterruptedRunError, RooflinekitError, needing
from rooflinekit.specs.writing import write_whole

if TYPE_CHECKING:
    from rooflinekit.evidence.kernel_fit.groups import Measurements
    from rooflinekit.validate.closed_loop import ServedEngine
    from rooflinekit.validate.device import Device
    from rooflinekit.validate.record import Recorder

_STEADY = 1.05
"""Longest over shortest time of a sentinel up to which a machine counts as steady."""


@command(Measuring, arguments={})
def validate(
    *,
    to: CommandOutput,
    suite: str = "quick",
    device: str | None = None,
    model: str | None = None,
    budget: float | None = None,
    gpu: str | None = None,
    check: bool = False,
    resume: bool = False,
    retry_failed: bool = False,
    engine: str | None = None,
    **load: Value,
) -> int:
    """Run the real kernels and models on this machine: check them, or measure them for `calibrate`."""
    if engine is not None:
        if budget or check or resume or retry_failed:
            raise InputError("--engine measures a server; --budget, --check and --resume are of kernels")
        return _serve(to, engine, model, gpu, device, **load)
    if load:
        raise InputError(f"--{next(iter(load))} is of a server under load; add --engine llama.cpp or vllm")
    place = _open(device)
    if check:
        return _check(place)
    from rooflinekit.specs import load_accelerator, load_model
    from rooflinekit.validate.record import Recorder, header
    from rooflinekit.validate.suite import BUDGETS, MODELS

    if to.out is None:
        raise InputError("validate needs --out DIR for its measurement file, or --check")
    minutes = BUDGETS[suite] if budget is None else budget
    if gpu is not None:
        load_accelerator(gpu)  # a name nobody knows is said before the work
    asked = model or MODELS["cuda" if place.is_cuda else "cpu"]
    known = load_model(asked).value.name
    named = str(Path(asked).resolve()) if Path(asked).exists() else known  # a path stays one, to be read again
    if to.force and (resume or retry_failed):
        other = "--resume goes on with it" if resume else "--retry-failed goes on with it"
        raise InputError(f"--force replaces a run and {other}: give one of them")
    to.out.mkdir(parents=True, exist_ok=True)
    again = {"resume": resume or retry_failed, "force": to.force, "retry_failed": retry_failed}
    return _measure(place, suite, named, minutes, Recorder(to.out, header(place, suite, named), **again), gpu)


def _serve(
    to: CommandOutput,
    engine: str,
    model: str | None,
    gpu: str | None,
    device: str | None,
    *,
    server: str | None = None,
    concurrency: Sequence[int] = (1, 2, 4, 8),
    isl: int = 128,
    osl: int = 64,
    rounds: int = 5,
) -> int:
    """Measure a server under load, for `compare` and `calibrate`."""
    from rooflinekit.specs import load_accelerator
    from rooflinekit.validate.closed_loop import FILE, ClosedLoad, LlamaCpp, measure, serving

    if to.out is None or model is None:
        named = "FILE.gguf" if engine == "llama.cpp" else "NAME"
        raise InputError(f"validate --engine {engine} needs --model {named} and --out DIR")
    if unused := device if engine == "llama.cpp" else server:
        raise InputError(f"--engine {engine} takes no --{'device' if engine == 'llama.cpp' else 'server'} {unused}")
    if gpu is not None:
        load_accelerator(gpu)  # a name nobody knows is said before the work
    path, said = to.out / FILE, {"model_id": model, **({"gpu": gpu} if gpu else {})}
    if path.exists() and not to.force:
        raise InputError(f"{path} exists; --force replaces it")
    to.out.mkdir(parents=True, exist_ok=True)
    load = ClosedLoad(tuple(sorted(set(concurrency))), isl, osl, rounds=rounds)
    with ExitStack() as open_until_measured, counting("measuring") as at:
        if engine == "llama.cpp":
            started = serving(server or "llama-server", model, load, to.out / "server.log")
            served: ServedEngine = LlamaCpp(open_until_measured.enter_context(started))
        else:
            place = _open(device)
            from rooflinekit.validate.vllm_load import LONGEST, vllm_serving

            if (most := isl + max(load.answers)) > LONGEST:
                raise InputError(f"requests of up to {most:,} tokens; vLLM is started for {LONGEST:,}, so lower --isl")
            served = open_until_measured.enter_context(vllm_serving(model, place, to.out / "model"))
        rows = measure(served, load, said, at)
    write_whole(path, "".join(json.dumps(row) + "\n" for row in rows).encode(), to.force)
    lines = [f"wrote {path}: {len(rows)} runs"]
    lines += [
        f"  {row['max_concurrency']} users: TTFT {row['mean_ttft_ms']:.4g} ms, TPOT {row['mean_tpot_ms']:.4g} ms"
        for row in rows
    ]
    made = to.out / "served.yaml"
    following = f"  rooflinekit calibrate {path} --gpu {quote(gpu or 'NAME')} --tp 1 --out {made}"
    emit("\n".join([*lines, "next:", following]))
    return 0


def _open(name: str | None) -> Device:
    with needing("running kernels", "gpu"):
        import torch  # noqa: F401
    from rooflinekit.validate.device import open_device

    return open_device(name)


def _check(place: Device) -> int:
    """Print every check; exit code 1 if any kernel is wrong."""
    from rooflinekit.report.document import CellTable
    from rooflinekit.validate.checks import run_checks

    with counting("checking") as progress:
        results = run_checks(str(place.torch), progress)
    cells = [
        [
            "FAIL" if r.failed else "missing" if r.missing else "pass",
            r.name,
            f"{r.error:.2g}",
            f"{r.tolerance:.2g}",
            r.detail,
        ]
        for r in results
    ]
    wrong, right = (sum(getattr(r, kind) for r in results) for kind in ("failed", "passed"))
    lines = CellTable(["", "check", "error", "tolerance", ""], cells, left=(0, 1, 4)).text()
    absent = f"; {len(results) - right - wrong} kernels are not installed here" if right + wrong < len(results) else ""
    emit("\n".join([*lines, "", f"{right} of {right + wrong} checks passed on {place.name}{absent}"]))
    return 1 if wrong else 0


def _measure(place: Device, suite: str, model: str, minutes: float, recorder: Recorder, gpu: str | None) -> int:
    from rooflinekit.validate.supervise import Supervisor

    with recorder:
        try:
            with counting("measuring") as progress:
                work = Supervisor(place, suite, model, recorder, time.monotonic() + 60.0 * minutes, progress)
                for line in work.check() if place.is_cuda and suite in ("quick", "full", "kernels") else ():
                    emit(f"note: {line}")
                ending = work.run()
        except KeyboardInterrupt:
            recorder.end("interrupted")
            kept = sum(recorder.counts.values())
            raise InterruptedRunError(
                f"interrupted; {kept} rows are kept in {recorder.path}, and --resume goes on"
            ) from None
        recorder.end(ending)
    emit("\n".join(_said(place, recorder, ending, minutes, gpu)))
    return 4 if recorder.counts["failed"] else 0


def _said(place: Device, recorder: Recorder, ending: str, minutes: float, gpu: str | None) -> list[str]:
    """Lines of a run: files, failures with their reasons, models beside their prediction, and the next commands."""
    from rooflinekit.evidence.kernel_fit.groups import read_measurements
    from rooflinekit.evidence.kernel_fit.tables import OPERATIONS

    found = read_measurements(recorder.path)
    counts = ", ".join(f"{count} {status}" for status, count in found.counts.items()) or "no rows"
    lines = [f"wrote {recorder.path}: run {recorder.run} on {place.name}, {counts}"]
    lines += [*_reasons(found.rows), *_drift(found)]
    if ending == "budget":
        spent = "1 minute was" if minutes == 1.0 else f"{minutes:g} minutes were"
        lines.append(f"note: {spent} not enough for all; --resume measures the rest")
    if not place.is_cuda and (spec := _write_spec(found)):
        lines.append(f"wrote {spec}: this CPU as an accelerator, from its ceilings")
        gpu = gpu or spec
    gpu = gpu or place.name
    if found.header["suite"] in ("full", "model", "engine"):
        lines += _predicted(found, gpu)
    whose = [row.get("engine", found.header["engine"]) for op in OPERATIONS for row in found.of(op)]
    served = found.of("serving_step")
    lines += ["next, on any machine with the file:"] if whose or served else []
    if served:
        file, made = f"{recorder.path} --gpu {quote(gpu)}", recorder.path.with_name("served.yaml")
        lines.append(f"  rooflinekit compare {file}")
        lines.append(f"  rooflinekit calibrate {file} --out {made}")
    for engine in sorted({name for each in whose for name in each.split("+")}):
        made, file = recorder.path.with_name(f"{engine}.yaml"), f"{recorder.path} --gpu {quote(gpu)}"
        lines.append(f"  rooflinekit calibrate {file} --engine {engine} --out {made}")
        lines.append(f"  rooflinekit accuracy kernels {file} --calibration {made}")
    return lines


def _write_spec(found: Measurements) -> str:
    """The file of this CPU as an accelerator, beside the measurements; "" where the run did not get that far."""
    from rooflinekit.validate.spec import SPEC_FILE, cpu_spec, has_ceilings

    if not has_ceilings(found):
        return ""
    spec = found.path.with_name(SPEC_FILE)
    try:
        spec.write_text(cpu_spec(found), encoding="utf-8")
    except OSError as error:
        raise InputError(f"{spec}: {error.strerror}; the rows are in {found.path}") from None
    return str(spec)


def _predicted(found: Measurements, gpu: str) -> list[str]:
    """The models' steps beside what `estimate` says of the accelerator, if anybody knows it."""
    from rooflinekit.validate.compare_model import model_report

    rows = found.of("model") + found.of("serving_step")
    try:
        return ["", *model_report(rows, gpu), ""] if rows else []
    except RooflinekitError as error:
        return [f"note: no prediction for the model's steps: {error}; --gpu names the accelerator"]


def _drift(found: Measurements) -> list[str]:
    """Lines on sentinels whose time drifted during the run."""
    times: dict[str, list[float]] = {}
    for row in found.of("sentinel"):
        times.setdefault(row["kind"], []).append(row["latency_us"])
    return [
        f"note: the same {kind} took {min(each):.4g} to {max(each):.4g} us within this run; rows beside it drift alike"
        for kind, each in times.items()
        if max(each) > _STEADY * min(each)
    ]


def _reasons(rows: Any) -> list[str]:
    """Rows without a time, counted by backend and reason."""
    failed = (row for row in rows if row["status"] != "ok")
    counted = Counter(f"{row['op']}, {row['backend']}: {row['status']}: {row['detail']}" for row in failed)
    return [f"note: {count} x {reason}" for reason, count in counted.items()]
