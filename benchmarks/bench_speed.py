"""How many scenarios a second, in how much memory, and what one command costs.

    python benchmarks/bench_speed.py [--rows 10000 100000 1000000]

Prints, for scenarios that differ in batch and context, the rows a second of `rk.estimate_frame` and of the
arrays under it on one core, and the peak memory; then the CPU seconds of `rooflinekit estimate llama3-8b --batch 32`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import subprocess
import sys
import time

import numpy as np
import pandas as pd

from rooflinekit.estimation.frames import estimate_frame
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.step import make_plan
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.hardware import System
from rooflinekit.model.types.workload import Workload
from rooflinekit.specs import load_accelerator, load_model
from rooflinekit.specs.calibration.load import load_calibration

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
    estimate_frame(table.head(100))
    start = time.process_time()
    result = estimate_frame(table)
    took = time.process_time() - start
    assert (result["error"] == "").all()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform != "darwin" else 2**30)
    print(f"estimate_frame  {rows:>9,} rows  {took:7.2f} s CPU  {rows / took:>10,.0f} rows/s  peak {peak:.2f} GiB")


def step_run(rows: int) -> None:
    """The arrays under it, in pieces that stay in the processor's cache.

    One decode step a row: every kernel of every row, and TPOT with its interval, as a sweep asks for it.
    """
    plan = make_plan(
        load_model(MODEL).value, Deployment(), System.of(load_accelerator(GPU).value), load_calibration(f"{GPU}--vllm")
    )
    draw = np.random.default_rng(0)
    batch, context = draw.integers(1, 512, rows).astype(float), draw.integers(1, 8000, rows).astype(float)
    predictor, piece = Predictor.of(plan), 8_192
    ways = {
        "decode kernels": lambda b, c: plan.time(Batch.decode(b, c)).time,
        "decode sweep": lambda b, c: predictor.tpot(Workload(b, c, c, context=c)),
    }
    for name, way in ways.items():
        start = time.process_time()
        for at in range(0, rows, piece):
            way(batch[at : at + piece], context[at : at + piece])
        took = time.process_time() - start
        print(f"{name:<14}  {rows:>9,} rows  {took:7.2f} s CPU  {rows / took:>10,.0f} rows/s")


def command_run(times: int = 5) -> None:
    """CPU seconds of the command, the least of a few runs."""
    command = [sys.executable, "-m", "rooflinekit", "estimate", MODEL, "--batch", "32"]
    spent = []
    for _ in range(times):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    print(f"one estimate    {min(spent):.3f} s CPU (least of {times}; the aim is 0.35)")


def main() -> None:
    """Each size in a process of its own, so that a peak is its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    sizes = parser.parse_args().rows
    for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[threads] = "1"  # the processes that measure start with it
    fresh = multiprocessing.get_context("spawn")
    for work in (frame_run, step_run):
        for rows in sizes:
            process = fresh.Process(target=work, args=(rows,))
            process.start()
            process.join()
            if process.exitcode:
                sys.exit(process.exitcode)
    command_run()


if __name__ == "__main__":
    main()
