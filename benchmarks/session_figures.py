"""Turns, gaps and lengths of the conversations in a trace with block ids, as `simulation.sessions` has them.

    python benchmarks/session_figures.py mooncake_conversation.jsonl.gz

A prompt continues another of its conversation where it begins with all full blocks of that one and is longer. Turns are
those of conversations that begin in the first third of the trace, since it cuts the others off.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np

from rooflinekit.simulation.reuse import conversations
from rooflinekit.simulation.traces import load_trace


def main(path: str) -> None:
    """Print least, quantiles, largest and mean of each."""
    trace = load_trace(Path(path))
    found: dict[int, list[int]] = defaultdict(list)
    for number, first in enumerate(conversations(trace)):
        found[first].append(number)
    gaps, asked = [], []
    for turns in found.values():
        for one, other in pairwise(turns):
            whole = trace.isl[one] // (trace.block_tokens or 1)
            if trace.isl[other] > trace.isl[one] and trace.prefix(other)[:whole] == trace.prefix(one)[:whole]:
                gaps.append(trace.time[other] - trace.time[one])
                asked.append(trace.isl[other] - trace.isl[one] - trace.osl[one])
    early = [len(turns) for first, turns in found.items() if trace.time[first] < trace.time[-1] / 3]
    first = [trace.isl[number] for number in found]
    for name, values in (("turns", early), ("wait [s]", gaps), ("first", first), ("asked", asked)):
        quantiles = np.quantile(values, (0.0, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0))
        print(f"{name:10}", *(f"{value:10,.0f}" for value in quantiles), f"  mean {np.mean(values):,.2f}")


if __name__ == "__main__":
    main(sys.argv[1])
