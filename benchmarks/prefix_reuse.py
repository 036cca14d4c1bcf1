r"""What prefix caches of any size, host memory and a remote tier save of a trace with block ids.

    python benchmarks/prefix_reuse.py mooncake_conversation.jsonl.gz mooncake_synthetic.jsonl.gz --out reports

Llama-3.3 70B on four replicas of four H100, vLLM's settings, 3 USD a GPU hour. Prices of memory are assumptions: 0.002
USD a GB and hour for a host's, 0.0001 for a remote store's.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

import rooflinekit as rk

TIERS = ("host=1TB,50GB/s,10us,0.002$/GBh", "remote=20TB,5GB/s,1ms,0.0001$/GBh,shared")


def main() -> None:
    """Write the table of all traces, and the picture of the first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="folder of the reports")
    asked = parser.parse_args()
    found = [
        rk.trace(trace, model="llama-3.3-70b", tp=4, replicas=4, price=3.0, cache_tier=TIERS) for trace in asked.traces
    ]
    rows = [
        {"trace": each.trace, "hit_rate_without_end": each.hit_rate, **row} for each in found for row in each.to_rows()
    ]
    pd.DataFrame(rows).to_csv(asked.out / "data" / "prefix-reuse.csv", index=False, float_format="%.6g")
    rk.plot(found[0], "hit-rate").save(asked.out / "prefix-reuse.svg", force=True)


if __name__ == "__main__":
    main()
