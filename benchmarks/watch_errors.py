"""How soon `rooflinekit watch` finds planted slow-downs in a measured run, and how often it alarms for nothing.

    python benchmarks/watch_errors.py RUN... [--turns 10] [--usual 600] [--weeks 50]
    python benchmarks/watch_errors.py --swing 5

A RUN is a folder with `config.json` (model, gpu, engine_kwargs, kv_cache) and `requests.csv` (one request a row:
lengths, and when it came, had its first and its last token). Minutes of traffic are drawn from its requests, as many
as came in a minute, and written as a log and as a recording of vLLM's metrics; both are read and watched as any other.
What a request took beyond the pace of those beside it is one long gap, as after a preemption. A slow-down lengthens all
other gaps: in proportion (kernels), by the same time (host), or by the cache that they read (KV); its size is the share
that it adds to their mean. False alarms are counted over weeks of deviations drawn from those of minutes without a
change. `--swing` counts them over weeks in which the rate goes from 4 to 16 requests a second and back each day, at a
server (Llama-3-8B, H100, vLLM) whose costs are not those of the prediction.
"""

from __future__ import annotations

import argparse
import json
import time
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from rooflinekit.evidence.benchmark_runs import Given, resolve_facts
from rooflinekit.evidence.exposition import MeasuredInterval, read_recording, read_request_log, scrape_text
from rooflinekit.evidence.measurement import RunFacts, StartUp
from rooflinekit.evidence.watching import LEARNT, SMALLEST, ChangeDetector, Watcher
from rooflinekit.load.answer import Load, play_load
from rooflinekit.load.lengths import Fixed, LogNormal

SOON = 5  # minutes within which a slow-down must be found
JUDGED = ("tpot", "stalls")  # a drawn request brings the TTFT of another load
_METRICS = {"ttft": "time_to_first_token_seconds", "e2e": "e2e_request_latency_seconds",
            "isl": "request_prompt_tokens", "osl": "request_generation_tokens"}  # fmt: skip
_GAPS = "inter_token_latency_seconds"
_EDGES = np.array(
    [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, np.inf]
)  # of vLLM's histogram of gaps [s]
_STOOD = 0.03  # of the time of a request's tokens: less beyond the pace of others is chance


def read_run(folder: Path) -> tuple[pd.DataFrame, Given, StartUp]:
    """Requests with their times [s], what is known of the deployment, and its cache."""
    said = json.loads((folder / "config.json").read_text())
    table = pd.read_csv(folder / "requests.csv")
    table = table[table.output_tokens > 1].assign(ttft=table.first_token_s - table.arrival_s)
    tokens, lasted = table.output_tokens - 1, table.last_token_s - table.first_token_s
    middle = (table.first_token_s + table.last_token_s) / 2
    beside = [(table.first_token_s < time) & (time < table.last_token_s) for time in middle]
    pace = np.array([(lasted / tokens)[others].median() for others in beside])
    stood = (lasted - pace * tokens).where(lasted > (1.0 + _STOOD) * pace * tokens, 0.0)
    table = table.assign(stood=stood, gap=(lasted - stood) / tokens)
    arguments = said["engine_kwargs"]
    given = Given.of(model=said["model"], gpu=said["gpu"], engine=f"{said['engine']}@{said['engine_version']}",
                     tp=arguments["tensor_parallel_size"], max_num_seqs=arguments["max_num_seqs"])  # fmt: skip
    return table, given, StartUp("start-up", kv_tokens=said["kv_cache"]["num_kv_tokens"], facts=RunFacts())


def minute(
    table: pd.DataFrame, rate: float, rng: np.random.Generator, cause: str = "", size: float = 0.0
) -> pd.DataFrame:
    """Requests of a minute, slowed down."""
    drawn = table.iloc[rng.integers(len(table), size=max(rng.poisson(60.0 * rate), 1))]
    mean, context = table.gap.mean(), table.input_tokens + table.output_tokens / 2
    reads = drawn.input_tokens + drawn.output_tokens / 2
    more = {"": 0.0, "kernels": drawn.gap, "host": mean, "KV": mean * reads / context.mean()}[cause]
    slowed = drawn.assign(gap=drawn.gap + size * more)
    return slowed.assign(e2e=slowed.ttft + slowed.stood + slowed.gap * (slowed.output_tokens - 1))


def as_log(minutes: list[pd.DataFrame]) -> list[MeasuredInterval]:
    """The minutes as a log of requests: each ends in its minute, evenly over it."""
    lines = [
        {"start_time": 60.0 * (place + 1 + (turn + 0.5) / len(drawn)) - row.e2e, "input_tokens": row.input_tokens,
         "output_tokens": row.output_tokens, "ttft_s": row.ttft, "e2e_s": row.e2e}
        for place, drawn in enumerate(minutes) for turn, row in enumerate(drawn.itertuples())
    ]  # fmt: skip
    return read_request_log("run", lines)


def as_recording(minutes: list[pd.DataFrame]) -> list[MeasuredInterval]:
    """The minutes as vLLM's metrics count them."""
    totals = {f"{name}_{end}": 0.0 for name in _METRICS.values() for end in ("sum", "count")}
    totals |= {"generation_tokens_total": 0.0, "prompt_tokens_total": 0.0, f"{_GAPS}_sum": 0.0, f"{_GAPS}_count": 0.0}
    buckets = np.zeros(len(_EDGES))
    text = ""
    for place, drawn in enumerate([None, *minutes]):
        if drawn is not None:
            values = {"ttft": drawn.ttft, "e2e": drawn.e2e, "isl": drawn.input_tokens, "osl": drawn.output_tokens}
            for name, column in values.items():
                totals[f"{_METRICS[name]}_sum"] += float(column.sum())
                totals[f"{_METRICS[name]}_count"] += len(column)
            tokens = drawn.output_tokens - 1
            totals[f"{_GAPS}_sum"] += float((drawn.gap * tokens + drawn.stood).sum())
            totals[f"{_GAPS}_count"] += float(tokens.sum())
            for lengths, counts in ((drawn.gap, tokens - (drawn.stood > 0)), (drawn.stood, drawn.stood > 0)):
                np.add.at(buckets, np.searchsorted(_EDGES, lengths), counts)
            totals["generation_tokens_total"] += float(drawn.output_tokens.sum())
            totals["prompt_tokens_total"] += float(drawn.input_tokens.sum())
        lines = [f"vllm:{name} {value!r}" for name, value in totals.items()]
        lines += [f'vllm:{_GAPS}_bucket{{le="{str(edge).replace("inf", "+Inf")}"}} {count}'
                  for edge, count in zip(_EDGES, np.cumsum(buckets), strict=True)]  # fmt: skip
        text += scrape_text("\n".join(lines), 60.0 * place)
    return read_recording("run", text)


def _alarms(strains: list[tuple[float, float]], name: str, weeks: int, rng: np.random.Generator) -> int:
    """Changes that are found in weeks of minutes without one."""
    alarms = 0
    for _ in range(weeks):
        change, was = ChangeDetector(SMALLEST[name]), False
        for place, (value, at) in enumerate(rng.choice(strains, 7 * 24 * 60)):
            change.see(float(value), place, float(at))
            alarms += change.since is not None and not was
            was = change.since is not None
    return alarms


def swing(weeks: int) -> None:
    """False alarms a week where the prediction is off by another share at each load of the day."""
    rng, rates = np.random.default_rng(0), np.arange(2.0, 24.0)
    predictor = resolve_facts(RunFacts("llama-3-8b", "h100-sxm", tp=1), Given()).predictor
    plan, costs = predictor.plan, predictor.plan.costs
    off = {"a step takes 1 ms more": {"step": costs.step + 1e-3},
           "a sequence of a step takes 20 us more": {"sequence": costs.sequence + 2e-5},
           "arithmetic takes 20 % more": {"compute": 1.2 * costs.compute}}  # fmt: skip
    for name, changed in off.items():
        server = predictor.on(replace(plan, engine=replace(plan.engine, costs=replace(costs, **changed))))
        rows = []
        for rate in rates:
            served = play_load(server, Load(Fixed(1000), Fixed(200), rate=rate))
            users = max(round(rate * served.samples["e2e"].mean), 1)
            together = Load(LogNormal(1000.0, 0.2), LogNormal(200.0, 0.2), users)
            expected = play_load(predictor, together).tpot
            rows.append((np.log(served.tpot / expected), np.log(expected)))
        strains, loads = np.array(rows).T
        for noise in (0.01, 0.02):
            alarms = 0
            for _ in range(weeks):
                change, was = ChangeDetector(SMALLEST["tpot"]), False
                for place in range(7 * 24 * 60):
                    rate = rng.poisson(60.0 * (10.0 + 6.0 * np.sin(2.0 * np.pi * place / (24 * 60)))) / 60.0
                    strain, at = (float(np.interp(rate, rates, column)) for column in (strains, loads))
                    change.see(strain + rng.normal(0.0, noise), place, at)
                    alarms += change.since is not None and not was
                    was = change.since is not None
            ends = np.interp((4.0, 16.0), rates, strains)
            print(f"{name}: {ends[0]:+.1%} to {ends[1]:+.1%}, noise {noise:.0%}: {alarms} in {weeks} weeks", flush=True)


def report(folder: Path, asked: argparse.Namespace) -> None:
    """Minutes to each planted slow-down, and false alarms a week."""
    rng = np.random.default_rng(0)
    table, given, log = read_run(folder)
    rate = len(table) / float(table.last_token_s.max())
    usual = [minute(table, rate, rng) for _ in range(asked.usual)]
    for read in (as_log, as_recording):
        watcher, begun = Watcher(given, logs=[log]), time.process_time()
        intervals = read(usual)
        for each in intervals[:LEARNT]:
            watcher.see(each)
        rest = deepcopy(watcher)
        for each in intervals[LEARNT:]:
            rest.see(each)
        faster = 60.0 * len(intervals) / (time.process_time() - begun)
        strains = np.array([each.strain["tpot"][0] for each in rest.seen])
        spread = float(np.std(np.diff(strains)) / np.sqrt(2.0))
        alarms = {
            name: _alarms([each.strain[name] for each in rest.seen if name in each.strain], name, asked.weeks, rng)
            for name in JUDGED
        }
        print(f"{folder.name}, {read.__name__[3:]}: {faster:,.0f} x real time; a minute varies by {spread:.1%}; "
              f"false alarms in {asked.weeks} weeks: {alarms}")  # fmt: skip
        for cause in ("kernels", "host", "KV"):
            for size in (0.05, 0.1, 0.2):
                took = []
                for _ in range(asked.turns):
                    here = deepcopy(watcher)
                    slow = read([minute(table, rate, rng, cause, size) for _ in range(SOON)])
                    for place, each in enumerate(slow, 1):
                        here.see(each)
                        if any(drift.metric == "tpot" for drift in here.answer().drifts):
                            took.append(place)
                            break
                found = f"after {np.mean(took):.1f} minutes" if took else ""
                print(f"  {cause} {size:.0%}: {len(took)} of {asked.turns} {found}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--swing", type=int, default=0)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--usual", type=int, default=600)
    parser.add_argument("--weeks", type=int, default=50)
    asked = parser.parse_args()
    if asked.swing:
        swing(asked.swing)
    for folder in asked.runs:
        report(folder, asked)


if __name__ == "__main__":
    main()
