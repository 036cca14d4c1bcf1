"""What one command, one more answer and a million scenarios cost: ratios and rates of one run.

    python benchmarks/bench_speed.py [--rows 10000 100000 1000000]

Prints the CPU seconds of `rooflinekit estimate llama3-8b --batch 32` over those of `import typer`, the milliseconds of
one more `rk.estimate` in a warm process, and rows a second on one core: of `rk.estimate_frame` for rows that differ in
batch, prompt and output, and of arrays of decode steps through the graph of a deployment. A table is answered twice in
its process, and the second time counts: the first also pays for memory that the process touches for the first time.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import subprocess
import sys
import time
from statistics import median

import numpy as np
import pandas as pd

import rooflinekit as rk
from rooflinekit.estimation.estimator import resolve
from rooflinekit.estimation.frames import estimate_frame
from rooflinekit.model.graph import trace
from rooflinekit.model.graph.arrays import Vectorised
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.workload import Workload

MODEL, GPU = "llama-3-8b", "h100-sxm"


def scenarios(rows: int) -> pd.DataFrame:
    """Rows of one deployment that differ in batch, prompt and output."""
    draw = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "model": MODEL,
            "gpu": GPU,
            "batch": draw.integers(1, 512, rows),
            "isl": draw.integers(1, 8000, rows),
            "osl": draw.integers(2, 1000, rows),
        }
    )


def frame_run(rows: int) -> None:
    """One table: rows a second, and the peak memory of this process."""
    table = scenarios(rows)
    for _ in range(2):
        start = time.process_time()
        result = estimate_frame(table)
        took = time.process_time() - start
        assert (result["error"] == "").all()
        del result
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform != "darwin" else 2**30)
    print(f"estimate_frame  {rows:>9,} rows  {took:7.2f} s CPU  {rows / took:>10,.0f} rows/s  peak {peak:.2f} GiB")


def decode_run(rows: int) -> None:
    """Arrays of decode steps: the sum of all kernels, and TPOT with its bound and interval."""
    predictor = resolve(MODEL, GPU, Deployment(), None).predictor
    draw = np.random.default_rng(0)
    inputs = {"batch": draw.integers(1, 512, rows).astype(float), "context": draw.integers(1, 8000, rows).astype(float)}
    ways = {
        "decode kernels": lambda batch, context: predictor.plan.time(Batch.decode(batch, context)).expected,
        "decode TPOT": lambda batch, context: predictor.tpot(Workload(batch, context, context, context=context)),
    }
    for name, way in ways.items():
        for _ in range(2):
            start = time.process_time()
            Vectorised(trace(way, list(inputs)))(**inputs)
            took = time.process_time() - start
        print(f"{name:<14}  {rows:>9,} rows  {took:7.2f} s CPU  {rows / took:>10,.0f} rows/s, tracing included")


def answer_run(_: int) -> None:
    """One more answer in a warm process."""
    rk.estimate(MODEL, GPU, batch=32)
    spent = []
    for batch in range(33, 65):
        start = time.process_time()
        rk.estimate(MODEL, GPU, batch=batch)
        spent.append(time.process_time() - start)
    print(f"one more rk.estimate                {1e3 * median(spent):7.2f} ms CPU (median of {len(spent)})")


def command_run(times: int = 5) -> None:
    """CPU seconds of the command over those of importing typer, the least of a few runs of each."""
    command = _cpu_seconds(["-m", "rooflinekit", "estimate", MODEL, "--batch", "32"], times)
    importing = _cpu_seconds(["-c", "import typer"], times)
    print(f"one command                         {command:7.3f} s CPU, {command / importing:.1f} times `import typer`")


def _cpu_seconds(arguments: list[str], times: int) -> float:
    spent = []
    for _ in range(times):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(spent)


def main() -> None:
    """Each size in a process of its own, so that a peak is its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    sizes = parser.parse_args().rows
    for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[threads] = "1"  # the processes that measure start with it
    command_run()
    fresh = multiprocessing.get_context("spawn")
    for work, argument in [(answer_run, 0), *((way, rows) for way in (frame_run, decode_run) for rows in sizes)]:
        process = fresh.Process(target=work, args=(argument,))
        process.start()
        process.join()
        if process.exitcode:
            sys.exit(process.exitcode)


if __name__ == "__main__":
    main()
