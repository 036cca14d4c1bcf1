"""Score the prediction of a measured llama.cpp server at numbers of users that its calibration has not seen.

    python benchmarks/served_errors.py reports/data/llamacpp-epyc --out reports/served-llamacpp.md

The folder has what `rooflinekit validate` wrote (served.jsonl, this-cpu.yaml) and the model's config.json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory

from rooflinekit.evidence.benchmark_runs import Given, pose, predict_load
from rooflinekit.evidence.engine_fit import EngineFit, fit_engine
from rooflinekit.evidence.measured import MeasuredRun, read_measurements
from rooflinekit.report.document import CellTable

SEEN = (2, 4, 8)
"""Users of the runs that the fit takes."""
OTHERS = ((1, 2, 4, 8), (2, 4, 6, 8), (2, 8))
"""Other choices, for what the choice changes."""
METRICS = ("ttft", "tpot")
Found = dict[int, dict[str, tuple[float, float, float]]]


def errors(folder: Path, users: tuple[int, ...] = SEEN) -> tuple[EngineFit, Found]:
    """The fit to the runs of these users; and of all runs by metric: measured, predicted before, and after it [ms]."""
    said = {"model": str(folder / "config.json"), "gpu": str(folder / "this-cpu.yaml"), "tp": 1,
            "activations": "fp32", "kv": "fp16"}  # fmt: skip
    lines = (folder / "served.jsonl").read_text(encoding="utf-8").splitlines()
    with TemporaryDirectory() as scratch:
        seen, made = Path(scratch, "seen.jsonl"), Path(scratch, "served.yaml")
        seen.write_text("\n".join(line for line in lines if json.loads(line)["max_concurrency"] in users))
        before = Given.of(**said)
        fit = fit_engine([seen], before, "2026-11-23")
        made.write_text(fit.text)
        after = Given.of(**said, calibration=str(made))
        found: Found = {}
        for run in read_measurements(folder / "served.jsonl"):
            if isinstance(run, MeasuredRun):
                old, new = (
                    predict_load(at.resolved.predictor, at.load, at.scheduler)
                    for at in (pose(run, before), pose(run, after))
                )
                found[run.facts.concurrency or 0] = {
                    name: (getattr(run, name).mean or 0.0, getattr(old, f"{name}_ms"), getattr(new, f"{name}_ms"))
                    for name in METRICS
                }
    return fit, found


def worst(found: Found, seen: tuple[int, ...] = SEEN) -> dict[str, float]:
    """The largest error after the fit at numbers of users that it has not seen."""
    unseen = [row for users, row in found.items() if users not in seen]
    return {name: max(abs(row[name][2] / row[name][0] - 1.0) for row in unseen) for name in METRICS}


def _within(found: Found, seen: tuple[int, ...]) -> str:
    most = worst(found, seen)
    return f"TTFT is within {most['ttft']:.0%} and TPOT within {most['tpot']:.0%}"


def report(folder: Path) -> str:
    """The page."""
    fit, found = errors(folder)
    head = json.loads((folder / "served.jsonl").read_text(encoding="utf-8").splitlines()[0])
    cells = [
        [f"{users}{'' if users in SEEN else ' (unseen)'}",
         *(text for name in METRICS for text in _compared(*row[name]))]
        for users, row in found.items()
    ]  # fmt: skip
    heads = ["users", *(f"{name.upper()}{part}" for name in METRICS for part in ("", ", before", ", after"))]
    costs = [[each.prior.name, *(_value(each.prior.name, value) for value in (each.prior.value, each.value)),
              f"{each.data:.0%}"] for each in fit.outcomes]  # fmt: skip
    said = f"{head['device']['name']}, {head['device']['cores']} cores; {head['server_version']}; {head['date']}"
    return "\n".join([
        "# A llama.cpp server on a CPU", "",
        "Written by `python benchmarks/served_errors.py`; [how](../docs/home.md#measure-a-server-of-your-own).", "",
        f"Measured: {said}. `{head['command']}`", "",
        f"Fitted to {_listed(SEEN)} users: at all others {_within(found, SEEN)}.",
        "ggml multiplies a single row by a kernel of its own, as fast as the weights are read. Two rows take more",
        "than twice as long (tinyBLAS, `sgemm.cpp`, leaves out `n < 2`). So the fitted costs of a step and of a",
        "sequence are those of the sequences beside the first. An odd number of rows is faster than the even",
        "number below it. No cost describes that, and most of the errors come from it. Fitted to other",
        "runs:", "",
        *(f"* {_listed(users)} users: {_within(errors(folder, users)[1], users)}." for users in OTHERS), "",
        "```", *CellTable(heads, cells, left=(0,)).text(), "```", "",
        "What the fit changed, and the share that the measurement has in each value:", "",
        "```", *CellTable(["", "before", "after", "data"], costs, left=(0,)).text(), "```", "",
    ])  # fmt: skip


def _listed(users: tuple[int, ...]) -> str:
    return ", ".join(map(str, users))


def _compared(measured: float, before: float, after: float) -> list[str]:
    return [f"{measured:.1f} ms", f"{before / measured - 1.0:+.0%}", f"{after / measured - 1.0:+.0%}"]


def _value(name: str, value: float) -> str:
    return f"x {value:.2f}" if name in ("memory", "compute") else f"{1e3 * value:.2f} ms"


def main() -> None:
    """Read the folder, write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    said = parser.parse_args()
    said.out.write_text(report(said.folder), encoding="utf-8")


if __name__ == "__main__":
    main()
