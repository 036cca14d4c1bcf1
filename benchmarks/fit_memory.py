"""Fit the fitted constants of the memory rules, score them on runs they have not seen, and write the report.

    python benchmarks/fit_memory.py measured.csv [--report reports/accuracy-memory.md]

Most of a memory rule is read from the engines' sources. What is left, for vLLM's V1, is what lies outside the allocator
(`non_torch`), what the allocator holds besides while a layer or the sampler runs (`layer_base`, `sampler_base`), and
CUDA graphs (what each layer adds to each). Each run is predicted with constants from the runs of other
architectures; printed constants are those of all runs, and are what the profiles should hold.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np

from rooflinekit.evidence.accuracy_memory import (
    QUANTITIES,
    StartUpRun,
    StartUpSetup,
    engine_of,
    memory_accuracy,
    memory_of,
    predict_run,
    read_memory_tables,
    run_plan,
    setup_of,
)
from rooflinekit.model.capacity import captured_graphs, make_memory_model
from rooflinekit.model.footprint import activation_peak
from rooflinekit.model.types.engine import Engine
from rooflinekit.model.types.errors import RooflinekitError
from rooflinekit.model.types.units import GIB, MIB
from rooflinekit.report.answers import document_of
from rooflinekit.report.document import markdown_text

FAMILIES = {
    "non_torch": (("0.9", "0.17"), ("0.18", "0.20", "0.21")),
    "sampler_base": (("0.9", "0.17", "0.18", "0.20", "0.21"),),
    "layer_base": (("0.17", "0.18", "0.20", "0.21"),),
    "graphs": (("0.17", "0.18", "0.20", "0.21"),),
}
"""Ranges of vLLM versions that share a constant."""

INTRODUCTION = (
    "Figures that engines printed as they started (vLLM, SGLang, TensorRT-LLM, llama.cpp) against the rules of",
    "[method, section 6](../docs/method.md). Each is predicted from settings alone: model, formats, split, the",
    "engine's version, what it was told. Sizes are those of the busiest GPU. Some tables have `cudagraph_gib` below 0:",
    "there it is a difference. Written by `benchmarks/fit_memory.py`.",
)

EXCESS = 0.03 * GIB
"""Above what the sampler holds, from where on a peak is one of the layers."""

TARGETS = {
    "weights_gib_per_gpu": "median 1 %, 90 % of the rows 5 %", "activation_peak_gib": "median 5 %",
    "kv_pool_gib_per_gpu": "median 1 %", "kv_pool_tokens": "median 1.5 %",
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A run that can be answered, with its profile; `kind` is its architecture."""

    run: StartUpRun
    setup: StartUpSetup
    engine: Engine
    kind: tuple[int, int]


def cases(files: list[Path]) -> list[Case]:
    found = []
    for run in read_memory_tables(files):
        try:
            setup = setup_of(run)
            engine = engine_of(setup)
            predict_run(setup, engine)
        except RooflinekitError:
            continue
        found.append(Case(run, setup, engine, (setup.model.hidden, setup.model.depth)))
    return found


def family(constant: str, engine: Engine) -> tuple[str, ...]:
    if engine.name != "vllm":
        return ()
    return next((ranges for ranges in FAMILIES[constant] if engine.since in ranges), ())


def several(case: Case) -> bool:
    deployment = case.setup.deployment
    return deployment.gpus > deployment.pp and case.setup.accelerator.link_kind != "pcie"


def non_torch(seen: list[Case], case: Case) -> float | None:
    values = [
        c.run.values["non_torch_gib"] for c in seen if "non_torch_gib" in c.run.values and several(c) is several(case)
    ]
    return median(values) * GIB if values else None


def base(seen: list[Case], part: str) -> float | None:
    """Median of what the peak has beyond its form, over the runs where this part of it is the larger one.

    Layers are what a peak comes from that the sampler does not explain.
    """
    left = []
    for case in seen:
        recurrent = any(layer.mixer and layer.mixer.kind == "gated_delta_net" for layer in case.setup.model.layers)
        if recurrent or case.setup.model.tower or "activation_peak_gib" not in case.run.values:
            continue
        rule = replace(case.engine.memory, layer_base=0.0, sampler_base=0.0)
        plan = run_plan(case.setup, replace(case.engine, memory=rule))
        memory = make_memory_model(plan)
        peak = activation_peak(plan, memory.tokens)
        forms = {
            "layer_base": float(peak.layer(memory.tokens)),
            "sampler_base": float(peak.sampler(memory.tokens, memory.rows)),
        }
        above = case.run.values["activation_peak_gib"] * GIB - forms["sampler_base"] - case.engine.memory.sampler_base
        if part == ("layer_base" if above > EXCESS else "sampler_base"):
            left.append(case.run.values["activation_peak_gib"] * GIB - forms[part])
    return max(median(left), 0.0) if left else None


def graphs(seen: list[Case]) -> float | None:
    """What a layer adds to a graph, beside the fixed part; equal runs, and those that state their settings, count."""
    found = set()
    for case in seen:
        stated = case.setup.deployment.settings.max_num_seqs is not None
        if stated and case.run.values.get("cudagraph_gib", 0.0) > 0:
            count, held = captured_graphs(run_plan(case.setup, case.engine))
            left = case.run.values["cudagraph_gib"] * GIB - held - case.engine.memory.graphs
            found.add(left / (count * case.setup.model.depth / case.setup.deployment.pp))
    return median(found) if found else None


def fitted(everything: list[Case], case: Case, held_out: bool) -> dict[str, object]:
    """Constants for one run, from the runs of its family; those of its own architecture left out if asked."""
    found: dict[str, object] = {}
    for constant in FAMILIES:
        ranges = family(constant, case.engine)
        seen = [c for c in everything if ranges and family(constant, c.engine) == ranges]
        seen = [c for c in seen if not (held_out and c.kind == case.kind)]
        if constant == "non_torch":
            value = non_torch(seen, case)
            found |= {} if value is None else {constant: (value, value)}
        elif constant == "graphs":
            value = graphs(seen)
            found |= {} if value is None else {"graphs_per_layer": value}
        else:
            value = base(seen, constant)
            found |= {} if value is None else {constant: value}
    return found


def held_out_errors(everything: list[Case]) -> dict[tuple[str, str], list[float]]:
    errors = defaultdict(list)
    for case in everything:
        rule = replace(case.engine.memory, **fitted(everything, case, held_out=True))
        engine = replace(case.engine, memory=rule)
        predicted = predict_run(case.setup, engine)
        for quantity, value in case.run.values.items():
            if quantity in predicted and value > 0:
                errors[case.run.engine, quantity].append(abs(predicted[quantity] / value - 1.0))
    return errors


def constants(everything: list[Case]) -> list[str]:
    """Each fitted constant of each family, from all runs, and how many there were."""
    lines = []
    for constant, families in FAMILIES.items():
        for ranges in families:
            own = [c for c in everything if family(constant, c.engine) == ranges]
            values: dict[str, float | None] = {}
            if constant == "non_torch":
                for name, many in (("one GPU", False), ("several", True)):
                    some = [c for c in own if several(c) is many]
                    values[name] = non_torch(some, some[0]) if some else None
            elif constant == "graphs":
                values["a layer of a graph"] = graphs(own)
            else:
                values[""] = base(own, constant)
            text = ", ".join(
                f"{name} {value / MIB:.4g} MiB".strip() for name, value in values.items() if value is not None
            )
            lines.append(f"{constant}, vLLM from {', '.join(ranges)} ({len(own)} runs): {text}")
    return lines


def verdicts(everything: list[Case]) -> list[str]:
    """Runs whose log shows a refusal or a failure, and what the rule says of them."""
    lines = []
    for case in everything:
        notes = case.run.facts.get("notes", "").lower()
        if "refused" in notes or "failed" in notes or "not fit" in notes:
            fits = bool(memory_of(case.setup, case.engine).fits)
            lines.append(
                f"| {case.run.facts['run_id']} | {case.run.facts['model']} | {'fits' if fits else 'does not fit'} |"
            )
    return lines


def report(files: list[Path], everything: list[Case]) -> str:
    errors = held_out_errors(everything)
    lines = [
        "# Memory against start-up logs",
        "",
        *INTRODUCTION,
        "",
        *markdown_text(document_of(memory_accuracy(files))).split("\n"),
        "",
    ]
    lines += ["## With constants from other architectures", ""]
    lines += ["| engine | quantity | n | median | 90 % of the rows within | target |", "|---|---|---:|---:|---:|---|"]
    for engine, quantity in sorted(errors, key=lambda key: (key[0], QUANTITIES.index(key[1]))):
        sizes = errors[engine, quantity]
        figures = f"{100 * median(sizes):.2f} % | {100 * float(np.quantile(sizes, 0.9)):.1f} %"
        lines.append(f"| {engine} | {quantity} | {len(sizes)} | {figures} | {TARGETS.get(quantity, '')} |")
    lines += [
        "",
        "## Configurations that a log shows failing",
        "",
        "| run | model | rule |",
        "|---|---|---|",
        *verdicts(everything),
    ]
    lines += ["", "## Fitted constants", "", *(f"- {line}" for line in constants(everything)), ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--report", type=Path)
    asked = parser.parse_args()
    text = report(asked.tables, cases(asked.tables))
    if asked.report:
        asked.report.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
