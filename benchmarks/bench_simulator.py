"""How many engine steps and requests a second the simulator serves, and in how much memory.

    python benchmarks/bench_simulator.py [--requests 10000 100000 1000000]

CPU seconds of one core, table and arrival generation included. Steady decode: 64 sequences of 100,000 tokens each on
one replica; steps that are taken together because nothing happens between them count one by one, as the clock runs
through them, and the second line takes every step by itself. Closed loop: 500 to 1,000 tokens in, 500 to 1,500 out.
Requests: Poisson arrivals of 100 tokens in and 20 out at a load that keeps about forty running. Between them the time
of one look into a step table, and of building one.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing import get_context

from rooflinekit.estimation.estimator import Resolved, resolve
from rooflinekit.load.arrivals import Arrival, ClosedLoop, Gamma, Requests, generate
from rooflinekit.load.lengths import Fixed, Uniform
from rooflinekit.load.policies import Limits
from rooflinekit.load.scene import Scheduler
from rooflinekit.load.table import build_table
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.simulation.decoding import Lockstep
from rooflinekit.simulation.event_loop import ReplicaFleet, Simulation
from rooflinekit.simulation.kv_blocks import BlockPool
from rooflinekit.simulation.ledger import Ledger, RequestObjective
from rooflinekit.simulation.replica import ObjectReplica
from rooflinekit.simulation.requests import Source
from rooflinekit.simulation.simulate import SentLoad, serve

MODEL, GPU, RATE = "llama-3-8b", "h100-sxm", 200.0


def deployment() -> Resolved:
    """The small deployment."""
    return resolve(MODEL, GPU, Deployment(), None)


def peak() -> float:
    """Peak memory of this process [MiB]."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**10 if sys.platform != "darwin" else 2**20)


def steady_run(longest: int) -> None:
    """Decode steps of a full batch, with nothing else going on."""
    table = build_table(deployment().plan, 64, 131_072)
    pool, ledger = BlockPool(64 * 6272, 16), Ledger(RequestObjective())
    replica = ObjectReplica(Limits(max_num_seqs=64, longest_run=longest), table, Lockstep(pool), ledger)
    arrivals: Iterator[Arrival] = iter([Arrival(0.0, 100, 100_000)] * 64)
    run = Simulation(ReplicaFleet([replica]), Source(arrivals), ledger)
    start = time.process_time()
    run.run()
    took = time.process_time() - start
    assert ledger.finished == 64
    how = "one by one" if longest == 1 else "together"
    print(f"steady decode, {how:10}  {replica.work.steps:>9,} steps     {took:6.2f} s CPU  "
          f"{replica.work.steps / took:>11,.0f} steps/s")  # fmt: skip


def closed_run(users: int) -> None:
    """A closed loop in steady state: mostly decoding, with requests that end and begin all the time."""
    resolved, count = deployment(), 200 * users
    arrivals = generate(ClosedLoop(users, count), Requests(Uniform(500, 1000), Uniform(500, 1500)), count)
    start = time.process_time()
    load = SentLoad(Uniform(500, 1000), Uniform(500, 1500), users, sent=arrivals)
    outcome = serve(resolved, load, Scheduler(max_num_seqs=users))
    took = time.process_time() - start
    assert outcome.requests.finished == count
    print(f"closed loop, {users:>3} users     {outcome.steps:>9,} steps     {took:6.2f} s CPU  "
          f"{outcome.steps / took:>11,.0f} steps/s")  # fmt: skip


def request_run(count: int) -> None:
    """Requests of a small deployment, from their generation to the percentiles."""
    resolved = deployment()
    start = time.process_time()
    arrivals = generate(Gamma(RATE), Requests(Fixed(100), Fixed(20)), count)
    outcome = serve(resolved, SentLoad(Fixed(100), Fixed(20), sent=arrivals), Scheduler(max_num_seqs=256))
    took = time.process_time() - start
    assert outcome.requests.finished == count
    print(f"requests                   {count:>9,} requests  {took:6.2f} s CPU  {count / took:>11,.0f} requests/s  "
          f"{outcome.steps / took:>9,.0f} steps/s  mean batch {outcome.replicas[0].mean_batch:.0f}  "
          f"peak {peak():.0f} MiB")  # fmt: skip


def table_run(_: int) -> None:
    """One look into a table, and one table."""
    plan = replace(deployment().plan)
    start = time.perf_counter()
    table = build_table(plan, 512, 131_072)
    built = time.perf_counter() - start
    for name, call in (("decode", (64, 2048)), ("mixed", (64, 2048, 512, 1024))):
        start = time.process_time()
        for _number in range(200_000):
            table(*call)
        print(f"step table, {name:6}         {(time.process_time() - start) / 0.2:6.2f} µs a call")
    print(f"step table, built          {1e3 * built:6.0f} ms")


def main() -> None:
    """Each measurement in a process of its own, so that a peak is its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    fresh = get_context("spawn")
    work = [(steady_run, 1 << 30), (steady_run, 1), (closed_run, 16), (closed_run, 64), (table_run, 0)]
    work += [(request_run, count) for count in parser.parse_args().requests]
    for function, argument in work:
        process = fresh.Process(target=function, args=(argument,))
        process.start()
        process.join()
        if process.exitcode:
            sys.exit(process.exitcode)


if __name__ == "__main__":
    main()
