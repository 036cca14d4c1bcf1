r"""What load, chunked prefill, a prefix cache and disaggregation do to P99, on request traces.

    python benchmarks/trace_examples.py conversation.csv code.csv --out reports/data/simulator-traces.csv \
        --plots reports

Llama-3 70B on eight H100, vLLM's settings. Each trace is replayed faster and faster until the deployment no longer
keeps up. Disaggregation gets two deployments, one for prompts and one for decoding, and is compared with two that do
both. The traces say nothing about common prefixes, so the prefix cache is shown on an assumed one of 512 tokens.
Pictures need matplotlib.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from rooflinekit.simulation.simulate import simulate

MODEL, GPU, DEPLOYMENT = "llama-3-70b", "h100-sxm", {"tp": 8}
SPEEDS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0)
VARIANTS: dict[str, dict[str, Any]] = {
    "chunked": {"policy": "chunked", "token_budget": 2048},
    "whole prompts": {"policy": "continuous"},
    "prompts first": {"policy": "prefill-priority"},
    "prefix of 512 cached": {"policy": "chunked", "token_budget": 2048, "shared_prefix": 512, "prefix_cache": True},
    "two deployments": {"policy": "chunked", "token_budget": 2048, "replicas": 2, "router": "least-loaded"},
    "prefill and decode apart": {"policy": "chunked", "token_budget": 2048, "prefill_replicas": 1},
}
_LOST = 5000  # median TTFT [ms] at which the deployment does not keep up
SHOWN = ("ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "tpot_p99_ms", "itl_p99_ms", "e2e_p99_ms")


def runs(trace: Path, requests: int | None) -> Iterator[dict[str, Any]]:
    """One row for each variant and speed, up to the first speed at which the queue grows without end."""
    for name, settings in VARIANTS.items():
        for speed in SPEEDS:
            setup = DEPLOYMENT | {"max_num_seqs": 256} | settings
            outcome = simulate(MODEL, GPU, trace=trace, speed=speed, requests=requests, max_model_len=16_384, **setup)
            row = outcome.to_row()
            busy = max(replica.utilisation for replica in outcome.replicas)
            offered = pd.read_csv(trace, nrows=requests).iloc[:, 0]
            rate = (len(offered) - 1) / (offered.iloc[-1] - offered.iloc[0]) * speed
            kept = {key: row[key] for key in (*SHOWN, "request_rate", "rejected", "preemptions")}
            yield {"trace": trace.stem, "variant": name, "speed": speed, "offered_rate": rate, "busiest": busy, **kept}
            print(f"{trace.stem:28} {name:26} x {speed}: TTFT p99 {row['ttft_p99_ms']:,.0f} ms", flush=True)
            if row["ttft_p50_ms"] > _LOST:
                break


def plot(table: pd.DataFrame, folder: Path) -> None:
    """P99 against load, one picture a trace."""
    import matplotlib as mpl  # noqa: PLC0415 - the table needs none
    from matplotlib import pyplot  # noqa: PLC0415

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "rooflinekit"
    for trace, rows in table.groupby("trace"):
        figure, axes = pyplot.subplots(1, 2, figsize=(10, 4.5), constrained_layout=True)
        for axis, column, title in zip(axes, ("ttft_p99_ms", "itl_p99_ms"), ("TTFT", "ITL"), strict=True):
            for variant, line in rows.groupby("variant", sort=False):
                axis.plot(line["offered_rate"], line[column], marker="o", markersize=3, label=variant)
            axis.set(xlabel="requests a second", ylabel=f"P99 of {title} [ms]", yscale="log")
            axis.grid(alpha=0.3)
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
        figure.suptitle(f"{MODEL} on 8 x {GPU}, {trace}")
        figure.savefig(folder / f"simulator-{trace}.svg", metadata={"Date": None})
        pyplot.close(figure)


def main() -> None:
    """All traces into one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path, nargs="+")
    parser.add_argument("--requests", type=int)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plots", type=Path)
    given = parser.parse_args()
    table = pd.DataFrame([row for trace in given.traces for row in runs(trace, given.requests)])
    if given.out:
        table.round(4).to_csv(given.out, index=False)
    if given.plots:
        plot(table, given.plots)
    print(table.drop(columns=["rejected", "preemptions"]).round(2).to_string(index=False))


if __name__ == "__main__":
    main()
