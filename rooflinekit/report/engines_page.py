"""`docs/engines.md`: what every engine adds to its kernels, by version, in one table.

python -m rooflinekit.report.engines_page > docs/engines.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from rooflinekit.model.types.engine import StepCosts
from rooflinekit.report.table import markdown
from rooflinekit.specs.engines import engine_names, load_engine, step_ranges

__all__ = ["engines_markdown"]

_ROWS = (
    ("step", "µs", 1e6), ("ranks", "µs", 1e6), ("sequence", "µs", 1e6), ("sequence_ranks", "µs", 1e6),
    ("layer", "µs", 1e6), ("collective", "µs", 1e6), ("hidden", "share", 1.0), ("grouped", "factor", 1.0),
    ("launch", "µs", 1e6), ("request", "ms", 1e3),
)  # fmt: skip
_MEANING = {
    "step": "host work of each step that the accelerator waits for: schedule, inputs, sampling, detokenising",
    "ranks": "more of it where several accelerators take part",
    "sequence": "host work for each sequence of a step",
    "sequence_ranks": "more of it where several accelerators take part",
    "layer": "gaps between the kernels of a layer",
    "collective": "a collective in a step over the same one in a benchmark loop: ranks wait for each other",
    "launch": "host time to launch what the model counts as one kernel, where no CUDA graph is replayed",
    "request": "front end of a request before its first token (only under load)",
    "hidden": "share of each kernel's launch that its neighbours hide (programmatic dependent launch)",
    "grouped": "decode attention takes 1 + grouped·(1 − K/H) times as long: keys are read again for each query head",
}


def engines_markdown() -> str:
    """The page."""
    shown = [name for name in engine_names() if step_ranges(name)]
    engines = {_title(name, since): load_engine(name, since or None).costs for name, since in _versions(shown)}
    rows = [[f"{key} ({unit})", *(_cell(each, key, scale) for each in engines.values())] for key, unit, scale in _ROWS]
    return "\n".join(
        [
            "# Engines",
            "",
            "Generated from `rooflinekit/specs/profiles/` by `make catalogue`; do not edit.",
            "",
            "An engine runs kernels and adds to them. `--engine vllm` is the newest version described, `--engine",
            "vllm@0.6.3` that version. A step takes",
            "",
            "    t = max(Σ kernels + gaps, launches · launch) + host",
            "    host = step + ranks + sequences · (sequence + sequence_ranks)",
            "    gaps = layers · layer + collectives · collective − hidden · Σ launch floors",
            "",
            "`ranks` and `sequence_ranks` count where several accelerators take part. CUDA graphs replay decode steps,",
            "so that only prefill (and `--eager`) can be bound by launches. Kernel times are the calibration's; with",
            "`--calibration none` or `--engine ideal` nothing is added.",
            "",
            *(f"* **{key}**: {meaning}" for key, meaning in _MEANING.items()),
            "",
            "Fitted with `benchmarks/fit_engines.py` to published end-to-end times, the kernel times fixed; ± is one",
            "standard error over groups of rows drawn with replacement, and `launch` is from two rows by hand. Costs",
            "that rows cannot tell apart (`layer` and `hidden`, `step` and `ranks`) are drawn towards what all engines",
            "have together. [accuracy.md](accuracy.md) says how well this predicts rows that the fit has not seen.",
            "",
            *markdown(["", *engines], rows),
            "",
            "How each engine divides the memory of an accelerator is in [method.md](method.md), section 6; its numbers",
            "with their sources are in `rooflinekit/specs/profiles/*.yaml`, and in `provenance` of every answer.",
        ]
    )


def _versions(names: list[str]) -> Iterator[tuple[str, str]]:
    for name in names:
        yield from ((name, since) for since in step_ranges(name))


def _title(name: str, since: str) -> str:
    return f"{name} {since}".strip()


def _cell(costs: StepCosts, key: str, scale: float) -> str:
    value, spread = scale * getattr(costs, key), scale * costs.spread.get(key, 0.0)
    return f"{_three(value)} ± {_three(spread)}" if value or spread else "0"


def _three(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


if __name__ == "__main__":
    sys.stdout.write(engines_markdown() + "\n")
