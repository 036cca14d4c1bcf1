"""The tables of the docs that come from the code and data: options, models, accelerators, engines, exported metrics.

python -m docs.generate.tables docs/cli.md docs/catalogue.md docs/engines.md docs/watch.md docs/scenario.schema.json

A page holds its tables between marks. The JSON Schema of a scenario is written whole.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from rooflinekit.cli.command import find, grouped
from rooflinekit.estimation.options import OptionRow, model_of, options_of
from rooflinekit.estimation.scenario import GROUPS, AcceleratorOptions, Scenario, WrittenOptions
from rooflinekit.ops.operation import alert_rows, metric_rows
from rooflinekit.report.catalogue import accelerator_row, model_row
from rooflinekit.report.document import CellTable
from rooflinekit.specs import load_accelerator, load_model, names
from rooflinekit.specs.engines import engine_names, load_engine, step_ranges
from rooflinekit.specs.escaping import Marked

__all__ = ["refreshed", "schema"]

_TABLE = re.compile(r"<!-- ([a-z]+)(?: of ([a-z ]+))? -->\n.*?<!-- /\1 -->", re.DOTALL)
_MODELS = ["model", "parameters", "active", "layers", "mixers", "weights", "KV bytes/token", "context", "source"]
_GPUS = ["accelerator", "bf16 TFLOP/s", "fp16", "fp8", "GB", "GB/s", "link GB/s", "linked", "$/h", "confidence"]
_COSTS = {
    "step": "µs", "ranks": "µs", "sequence": "µs", "sequence_ranks": "µs", "layer": "µs", "collective": "µs",
    "hidden": "share", "grouped": "factor", "compute": "factor", "memory": "factor", "dequantised": "factor",
    "unbiased": "factor", "routed": "µs", "routed_launches": "kernels", "launch": "µs", "prompt": "factor",
    "expert_launches": "kernels", "block_launches": "kernels", "latent_launches": "kernels",
    "graph_tokens": "tokens", "request": "ms",
    "hop": "ms", "token": "µs", "chunk": "µs", "detokenised": "µs", "hand_over": "µs", "overlap": "steps",
}  # fmt: skip
_SCALES = {"µs": 1e6, "ms": 1e3}


def refreshed(page: str) -> str:
    """The page with the present tables between its marks."""

    def table(hit: re.Match[str]) -> str:
        words = [hit[2]] if hit[2] else []
        return f"{hit[0].splitlines()[0]}\n{_MADE[hit[1]](*words)}\n<!-- /{hit[1]} -->"

    return _TABLE.sub(table, page)


def schema() -> str:
    """The keywords of `estimate`, and the columns of `estimate_frame`, as a JSON Schema."""
    gpu = options_of(AcceleratorOptions)["gpu"]
    made = model_of(Scenario, model=(str, ...), gpu=(str | None, gpu.default)).model_json_schema()
    made |= {"$schema": "https://json-schema.org/draft/2020-12/schema", "description": "A scenario of rooflinekit."}
    return json.dumps(made, indent=2, ensure_ascii=False) + "\n"


def _options(words: str) -> str:
    command, known = find(words), find("estimate").options
    above = options_of(WrittenOptions) if "format" in command.options else {}
    options = {name: row for name, row in command.options.items() if above.get(name) is not row}
    same = {} if words == "estimate" else {name: row for name, row in options.items() if known.get(name) is row}
    own = {name: row for name, row in options.items() if name not in same}
    if len(same) < 5:
        own, same = options, {}
    parts = [_coded(command.help), *(["\n".join(_rows(own))] if own else [])]
    if same:
        names = ", ".join(f"`{_flag(name)}`" + (f", `-{row.short}`" if row.short else "") for name, row in same.items())
        parts.append(f"As in `estimate`: {names}.")
    if above:
        parts.append("Also `--format`, `--out`, `--force`.")
    return "\n\n".join(parts)


def _rows(options: dict[str, OptionRow]) -> Iterator[str]:
    yield "| option | default | meaning |"
    yield "|---|---|---|"
    for group, rows in grouped(options, tuple(GROUPS)):
        if len(options) > len(rows):
            yield f"| **{group}** | | |"
        for name, row in rows.items():
            short = f", `-{row.short}`" if row.short else ""
            yield f"| `{_flag(name)}`{short} | {_default(row)} | {_meaning(row)} |"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _default(row: OptionRow) -> str:
    if row.default is None or row.default is False:
        return row.usual
    return f"`{row.default}`" if isinstance(row.default, str) else str(row.default)


def _meaning(row: OptionRow) -> str:
    unit = f" [{row.unit}]" if row.unit in ("ms", "tokens", "1/s") else ""
    also = "".join(f"; also `{_flag(old)}`" for old in row.also)
    text = row.help.rstrip(".").replace("|", "\\|").replace("<", "\\<")
    return f"{_coded(text)}{unit}{also}"


def _coded(text: str) -> str:
    return re.sub(r"(?<!`)(--[a-z][a-z-]+)", r"`\1`", text)


def _models() -> str:
    rows = []
    for model in (load_model(name).value for name in names("model")):
        row = model_row(model)
        context = "-" if row["max_context"] is None else f"{row['max_context']:,}"
        counts = [f"{row['params_total']:,}", f"{row['params_active']:,}", str(row["layers"])]
        kinds = [row["mixers"], row["weights"], f"{row['kv_bytes_per_token']:,.0f}", context]
        rows.append([row["name"], *counts, *kinds, Marked(f"[source]({model.source})")])
    return "\n".join([f"## {len(rows)} models", "", *CellTable(_MODELS, rows, left=(0, 4, 5, 8)).markdown()])


def _accelerators() -> str:
    rows = []
    for gpu in (load_accelerator(name).value for name in names("accelerator")):
        row = accelerator_row(gpu)
        keys = ("bf16_tflops", "fp16_tflops", "fp8_tflops", "memory_gb", "bandwidth_gb_s", "link_gb_s", "domain_size")
        numbers = ["-" if row[key] is None else f"{row[key]:,.5g}" for key in keys]
        price = "-" if gpu.price is None else f"{gpu.price.usd_per_hour:.2f} ({gpu.price.date})"
        worst = "".join(
            max((p.confidence for p in gpu.provenance if p.quantity.startswith(part)), default="-")
            for part in ("compute", "memory", "links")
        )
        rows.append([gpu.name, *numbers, price, worst])
    return "\n".join([f"## {len(rows)} accelerators", "", *CellTable(_GPUS, rows).markdown()])


def _engines() -> str:
    costs = {" ".join(filter(None, (name, since, gpu))): load_engine(name, since or None, gpu).costs
             for name in engine_names() for since, gpu in step_ranges(name)}  # fmt: skip
    rows = [
        [f"{key} ({unit})", *(_cost(getattr(each, key), each.spread.get(key, 0.0), unit) for each in costs.values())]
        for key, unit in _COSTS.items()
    ]
    return "\n".join(CellTable(["", *costs], rows).markdown())


def _cost(value: float, spread: float, unit: str) -> str:
    scale = _SCALES.get(unit, 1.0)
    texts = [f"{scale * each:,.0f}" if scale * each >= 100 else f"{scale * each:.2g}" for each in (value, spread)]
    return " ± ".join(texts) if value or spread else "0"


def _metrics() -> str:
    rows = [[_code(name), Marked(", ".join(map(_code, labels))), text] for name, labels, text in metric_rows()]
    return "\n".join(CellTable(["name", "labels", "meaning"], rows, left=(0, 1, 2)).markdown())


def _alerts() -> str:
    rows = [[_code(name), lasting, text] for name, lasting, text in alert_rows()]
    return "\n".join(CellTable(["alert", "after", "meaning"], rows, left=(0, 1, 2)).markdown())


def _code(text: str) -> str:
    return Marked(f"`{text}`")


_MADE: Mapping[str, Callable[..., str]] = {
    "options": _options, "models": _models, "accelerators": _accelerators, "engines": _engines,
    "metrics": _metrics, "alerts": _alerts,
}  # fmt: skip


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        text = schema() if path.suffix == ".json" else refreshed(path.read_text(encoding="utf-8"))
        path.write_text(text, encoding="utf-8")
