"""How fast sweeps are, in how much memory, and what a second dask worker adds.

    python benchmarks/bench_sweep.py [--rows 100000 1000000 10000000] [--folder DIR]

Prints, for grids written to Parquet as `rooflinekit sweep … --out` does, CPU seconds, rows a second and the peak memory
of the process; then the wall seconds of a simulated sweep on one and on two dask workers of one thread each.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

from rooflinekit.decision.sweeping.sweep import Grid, Means, SweepJob, run
from rooflinekit.decision.sweeping.tables import write_table

SIMULATED = {"model": "llama-3-8b", "rate": [float(r) for r in range(1, 25)], "requests": 4000, "isl": 1000, "osl": 400}


def grid(rows: int) -> Grid:
    """About so many scenarios of one deployment: 100 batches, lengths in equal steps."""
    each = max(round((rows / 100) ** 0.5), 1)
    lengths = {name: range(16, 16 + 8 * each, 8) for name in ("isl", "osl")}
    return Grid.of({"model": "llama-3-8b", "gpu": "h100-sxm", "batch": range(1, 101)} | lengths)


def written(rows: int, folder: str) -> None:
    """One grid into a Parquet file."""
    scenarios, out = grid(rows), Path(folder) / f"sweep-{rows}.parquet"
    start, wall = time.process_time(), time.perf_counter()
    write_table(run(scenarios, SweepJob(), Means()), out)
    took, passed = time.process_time() - start, time.perf_counter() - wall
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    size = out.stat().st_size / 1e9
    out.unlink()
    print(
        f"sweep to Parquet  {scenarios.rows:>10,} rows  {took:7.1f} s CPU  {scenarios.rows / took:>9,.0f} rows/s  "
        f"wall {passed:6.1f} s  peak {peak:.2f} GiB  file {size:.2f} GB"
    )


def simulated() -> None:
    """A simulated sweep on one worker, then on two; the workers are warm."""
    from distributed import Client, LocalCluster  # noqa: PLC0415 - only for this part

    taken = []
    for workers in (1, 2):
        with (
            LocalCluster(n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=":0") as cluster,
            Client(cluster) as client,
        ):
            client.run(lambda: __import__("rooflinekit.decision.sweeping.sweep"))
            start = time.perf_counter()
            rows = sum(
                len(part)
                for part in run(Grid.of(SIMULATED), SweepJob(True), Means(scheduler=cluster.scheduler_address))
            )
            taken.append(time.perf_counter() - start)
            print(f"simulated sweep   {rows:>10,} rows  {workers} dask workers  {taken[-1]:7.1f} s")
    print(f"two workers give {taken[0] / taken[1]:.2f} x one (load average {os.getloadavg()[0]:.1f} before)")


def main() -> None:
    """Each size in a process of its own, so that a peak is its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="*", default=[100_000, 1_000_000, 10_000_000])
    parser.add_argument("--folder", default=tempfile.gettempdir())
    parser.add_argument("--no-dask", action="store_true")
    asked = parser.parse_args()
    for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[threads] = "1"  # the processes that measure start with it
    fresh = multiprocessing.get_context("spawn")
    for rows in asked.rows:
        process = fresh.Process(target=written, args=(rows, asked.folder))
        process.start()
        process.join()
        if process.exitcode:
            sys.exit(process.exitcode)
    if not asked.no_dask:
        simulated()


if __name__ == "__main__":
    main()
