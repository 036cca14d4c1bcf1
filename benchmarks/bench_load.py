"""Speed of 2,000 requests played, warm: the loop in CPython, numba and node, and the object simulator.

The state is made anew for every play and counts; tables, clients and printed code do not. The ratios are of one run, so
that a busy machine moves them less than the milliseconds. Targets on a quiet machine: 25, 2 and 13 ms.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import median
from time import process_time

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "load"))

from random_loads import Load, clients_of, lists, played, rules_of, simulate, state_of, tables_of

from rooflinekit.load import compiled, loop
from rooflinekit.load.arrivals import Arrival
from rooflinekit.load.javascript import javascript
from rooflinekit.load.policies import POLICIES, Limits
from rooflinekit.load.state import numpy_arrays, quick

REQUESTS, ROUNDS, TARGETS = 2000, 15, {"CPython": 25.0, "numba": 2.0, "node": 13.0}

DRIVER = """
const times = [];
for (let round = 0; round < 40; round++) {
  const began = performance.now(), s = new_state(k, n);
  start(c, k, s);
  play(c, k, t, h, s);
  times.push(performance.now() - began);
  if (round === 39) process.stdout.write(JSON.stringify({ times, end: Array.from(s.end) }));
}
"""


def load_of(users: int, rate: float) -> Load:
    """Llama 3 8B on an H100 under vLLM: 128 to 2,048 tokens in, 50 to 350 out; all at once without users and rate."""
    draw, arrivals, time = Random(1), [], 0.0
    for _ in range(REQUESTS):
        time += draw.expovariate(rate) if rate else 0.0
        arrivals.append(Arrival(time, draw.randint(128, 2048), draw.randint(50, 350)))
    limits = Limits(POLICIES["chunked"], 2048, 64 if users else 256)
    front = {"front": (1.5e-3, 1.9e-6), "stream": 5.2e-5, "beside": True, "front_ends": 1, "hop": 2e-3}
    return Load("vllm", tuple(arrivals), users, 0, limits, 30_000, 16, replicas=1, router="round-robin", **front)


def timed(play: Callable[[], object]) -> list[float]:
    """CPU times of plays after a few that warm up [ms]."""
    times = []
    for _ in range(ROUNDS):
        began = process_time()
        play()
        times.append((process_time() - began) * 1e3)
    return times[3:]


def in_node(load: Load) -> tuple[list[float], list[float]]:
    """Times of plays [ms], and when requests ended [s]."""
    t, h = tables_of(load)
    parts = {"c": clients_of(load), "k": rules_of(load), "t": t, "h": h}
    text = javascript()
    for name, part in parts.items():
        fields = {field: lists(value) for field, value in compiled.as_arrays(part)._asdict().items()}
        text += f"const {name} = {json.dumps(fields)};\n"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "play.js"
        path.write_text(f"{text}const n = {REQUESTS};\n{DRIVER}", encoding="utf-8")
        done = subprocess.run(["node", path], capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    return answer["times"][10:], answer["end"]


def measure(title: str, load: Load) -> None:
    """Print a line for each way to play."""
    each = clients_of(load), rules_of(load), *tables_of(load)
    fast = [quick(one) for one in each]
    ends = played(*fast, quick(state_of(load))).end
    found = {"CPython": timed(lambda: played(*fast, quick(state_of(load))))}
    found["CPython, named tuples"] = timed(lambda: played(*each, state_of(load)))
    if compiled.available():
        arrays = [compiled.as_arrays(one) for one in each]
        found["numba"] = timed(lambda: played(*arrays, state_of(load, numpy_arrays()), compiled.begun))
        assert played(*arrays, state_of(load, numpy_arrays()), compiled.begun).end.tolist() == ends
    if shutil.which("node"):
        found["node"], node_ends = in_node(load)
        assert node_ends == ends
    found["object simulator"] = timed(lambda: simulate(load))
    state = played(*fast, quick(state_of(load)))
    print(f"{title}: {sum(state.steps_made):,} steps, {state.counts[loop.STAMP]:,} events")
    for name, times in found.items():
        target = f"  (target {TARGETS[name]:g})" if name in TARGETS else ""
        ratio = min(found["object simulator"]) / min(times)
        print(f"  {name:22} {min(times):7.2f} ms, median {median(times):7.2f}, {ratio:6.1f} x simulator{target}")


def main() -> None:
    """Measure both loads."""
    measure("closed loop of 64 users", load_of(64, 0.0))
    burst = load_of(0, 0.0)
    s = played(clients_of(burst), rules_of(burst), *tables_of(burst), state_of(burst))
    knee = REQUESTS / max(s.end)
    for share in (0.3, 0.7):
        measure(f"open loop at {share:g} of the {knee:.1f}/s that can be served", load_of(0, share * knee))


if __name__ == "__main__":
    main()
