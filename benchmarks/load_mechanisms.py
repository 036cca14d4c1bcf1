"""First tokens under load: which mechanisms move which measured rows, written as a table.

    python benchmarks/load_mechanisms.py TABLE... [--out reports/load-mechanisms.md] [--cache rows.pkl]

TABLE is a serving table (docs/accuracy.md). Each closed-loop row is predicted with the engine costs that ship and one
mechanism changed at a time. A mechanism is kept if the rows that it must move come nearer, and the others stay.
"""

# ruff: noqa: E501 - a row of a table is one line

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from rooflinekit.evidence.accuracy_serving import ServedGroup, predict_group, read_serving_table, served_groups
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.types.engine import LoadEnds, StepCosts
from rooflinekit.model.types.model import MixtureOfExperts

ENGINES = ("sglang", "trtllm", "vllm")
LAUNCHES = (26e-6, 90e-6, 120e-6)  # s: of a prompt step, beside those that ship
_SHORT, _LONG = 1500, 4500  # tokens
_BANDS = ((0, 8), (8, 32), (32, 128), (128, 4096))  # users

Change = Callable[[ServedGroup], ServedGroup]

_HEAD = """# Which mechanisms move first tokens under load

{rows:,} measured times to the first token of closed loops, and {tokens:,} of an output token, predicted with the engine costs
that ship and one thing changed at a time (`benchmarks/load_mechanisms.py`). Cells are the median error in %, and in brackets the
median bias. `ships`: a front end of 3 ms and 3 µs a token of the prompt, one step made up ahead, 60 µs of the host for each
launch of a prompt step, which is not replayed from a CUDA graph, and settings and the first burst as clients and scripts
say."""

_VERDICTS = """@@VERDICTS@@"""


def with_costs(group: ServedGroup, change: Callable[[StepCosts], StepCosts]) -> ServedGroup:
    """The same deployment with other costs, and no factors of intervals under load."""
    plan = group.resolved.plan
    engine = replace(plan.engine, costs=change(plan.engine.costs), loaded=LoadEnds())
    predictor = Predictor(replace(plan, engine=engine), group.resolved.predictor.memory)
    return replace(group, resolved=replace(group.resolved, predictor=predictor))


def launched(seconds: float) -> Change:
    """Each launch of a prompt step takes so long."""
    return lambda group: with_costs(group, lambda costs: replace(costs, prompt=seconds / (costs.launch or 1.0)))


def without(cost: str) -> Change:
    """An engine to which something takes no time."""
    return lambda group: with_costs(group, lambda costs: replace(costs, **{cost: 0.0}))


def unhurried(group: ServedGroup) -> ServedGroup:
    """Users whose first prompts do not come all at once."""
    return replace(group, client=replace(group.client, requests=float("inf")))


def unset(group: ServedGroup) -> ServedGroup:
    """Servers that hold no prompt back."""
    return replace(group, client=replace(group.client, servers=()))


WAYS: dict[str, Change] = {
    "ships": lambda group: group,
    "no overlap": without("overlap"),
    "no tokeniser": without("token"),
    **{f"launch {1e6 * each:.0f} us": launched(each) for each in LAUNCHES},
    "no burst": unhurried,
    "no settings": unset,
}


def predicted(paths: list[Path]) -> pd.DataFrame:
    """TTFT of all closed loops, and a third of the TPOT, in every way."""
    tables = pd.concat([read_serving_table(path) for path in paths], ignore_index=True)
    token = (tables["metric"] == "tpot_ms") & (np.random.default_rng(0).random(len(tables)) < 1 / 3)
    looped = tables[(tables["load"] == "concurrency") & ((tables["metric"] == "ttft_ms") | token)]
    found = []
    for group in served_groups(looped, None, Counter()):
        layers = group.resolved.plan.model.layers
        table = group.table.assign(engine=group.resolved.plan.deployment.engine)
        table["experts"] = "MoE" if any(isinstance(layer.ffn, MixtureOfExperts) for layer in layers) else "dense"
        for way, change in WAYS.items():
            table[way] = predict_group(change(group)).value
        found.append(table)
    return pd.concat(found)


def report(rows: pd.DataFrame) -> str:
    """The tables, in Markdown."""
    first, token = (rows[rows["metric"] == metric] for metric in ("ttft_ms", "tpot_ms"))
    short, long = first["isl"] <= _SHORT, first["isl"] > _LONG
    expert, engine = first["experts"] == "MoE", first["engine"]
    model, chip, own = (first[name] for name in ("model", "gpu", "source_key"))
    parts = {
        f"prompts up to {_SHORT:,}, dense": short & ~expert, f"prompts up to {_SHORT:,}, MoE": short & expert,
        f"prompts above {_LONG:,}, dense": long & ~expert, f"prompts above {_LONG:,}, MoE": long & expert,
        f"deepseek-r1 up to {_SHORT:,}": short & (model == "deepseek-r1"),
        "gpt-oss-120b, Hopper": (model == "gpt-oss-120b") & chip.isin(["h100-sxm", "h200-sxm"]),
        "gpt-oss-120b, Blackwell": (model == "gpt-oss-120b") & (chip == "b200-sxm"),
        "llama-3.1-70b": model == "llama-3.1-70b",
        "llama-3.1-8b, client unknown": own == "aicgap",
        **{name: engine == name for name in ENGINES},
    }  # fmt: skip
    bands = {f"{low + 1} to {high} users": (first["concurrency"] > low) & (first["concurrency"] <= high)
             for low, high in _BANDS}  # fmt: skip
    ways = list(WAYS)
    lines = [
        _HEAD.format(rows=len(first), tokens=len(token)),
        _table(["first tokens", "rows", *ways], [_line(name, first[own], ways) for name, own in (parts | bands).items()]
               + [_line("all", first, ways), _line("TPOT, all", token, ways)]),
        _VERDICTS,
    ]  # fmt: skip
    return "\n\n".join(lines) + "\n"


def _line(name: str, rows: pd.DataFrame, ways: list[str]) -> list[str]:
    """Median error and bias of each way."""
    errors = [rows[way] / rows["value"] - 1.0 for way in ways]
    cells = [f"{100 * error.abs().median():.0f} ({100 * error.median():+.0f})" for error in errors]
    return [name, f"{len(rows):,}", *cells]


def _table(head: list[str], rows: list[list[str]]) -> str:
    rule = ["---", *["--:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, help="the report, in Markdown")
    parser.add_argument("--cache", type=Path, help="keep the predicted rows in this pickle, and use it if it is there")
    arguments = parser.parse_args()
    if arguments.cache and arguments.cache.exists():
        rows = pd.read_pickle(arguments.cache)
    else:
        rows = predicted(arguments.tables)
        if arguments.cache:
            pd.to_pickle(rows, arguments.cache)
    text = report(rows)
    if arguments.out:
        arguments.out.write_text(text, encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
